/*
 * prepare.c - what mt_fit trains: batches, model and trainer, as the flags have them; see training.h.
 */
#include "training_parts.h"

#include "dataset_split.h"
#include "explain.h"
#include "rehearse.h"
#include "report.h"
#include "writable.h"

#include <memtrain/torch_dry.h>

#include <stdio.h>
#include <string.h>

/* ---- files and device -------------------------------------------------------------------------- */

/* Samples of an epoch's last batch; 0: it is as large as the others. */
size_t ex_rest_of_epoch(const ex_training *t) {
    return t->source.count(t->source.self, EX_TRAINING) % (size_t)t->flags->batch;
}

/* What a checkpoint says of the run beside its state. */
ex_run ex_this_run(const ex_training *t) {
    return (ex_run){.program = t->program->name,
                    .seed = t->flags->seed,
                    .image_size = t->flags->image_size,
                    .threads = t->device.threads,
                    .settings = t->settings,
                    .setting_count = t->setting_count,
                    .names = t->source.names};
}

/* What was learnt replaces the file: it has to be one that a run has written. An empty one is none yet. */
static mt_status check_learned(const char *path) {
    static const char begin[] = "memtrain learned ";
    char text[sizeof begin - 1];
    mt_status status = ex_check_writable("--learned", path);
    FILE *file = status == MT_OK && path ? fopen(path, "rb") : NULL;
    if (!file) return status;
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    if (!length || (length == sizeof text && memcmp(text, begin, length) == 0)) return MT_OK;
    return mt_set_error(MT_EINVAL,
                        "--learned: '%s' is a file of something else; accepted: one that a run has "
                        "written, or a name that is free",
                        path);
}

/* A run that is replayed or goes on has the order of pictures of the first, where its flags leave it open. */
static void take_order(ex_training *t) {
    int order = t->flags->resume ? t->from.channels_last : ex_replay_order(t->replay);
    if (t->flags->channels_last != EX_CHANNELS_LAST_AUTO || order < 0) return;
    t->flags->channels_last = order;
    t->setting_count = ex_flags_settings(t->flags, &t->program->own, t->settings);
}

static mt_status open_files(ex_training *t) {
    const ex_flags *flags = t->flags;
    const ex_run run = ex_this_run(t);
    mt_status status = ex_checkpoint_open(flags->resume, &run, &t->from);
    if (status == MT_OK) status = ex_check_writable("--save", flags->save);
    if (status == MT_OK) status = check_learned(flags->learned);
    if (status == MT_OK) status = ex_replay_open(flags->replay, &t->replay);
    if (status == MT_OK)
        status = ex_replay_check(t->replay, t->program->name, flags->seed, flags->image_size,
                                 t->settings, t->setting_count);
    if (status == MT_OK) take_order(t);
    return status;
}

/* A run that is replayed or goes on has the threads of the first. */
static mt_status open_device(ex_training *t) {
    int threads = t->flags->resume ? t->from.threads : ex_replay_threads(t->replay);
    mt_status status = ex_device_open(t->flags, t->program->budget, threads, &t->device);
    if (status == MT_OK && !t->flags->check) status = ex_tracefile_open(t->flags->trace, &t->trace);
    if (status != MT_OK) return status;
    t->torch_options = ex_flags_torch(t->flags, t->device.name);
    t->torch_options.processes = &t->processes.group;
    return ex_html_report_open(t->flags->report, &t->report);
}

/* The weights are those of the first. */
mt_status ex_training_seed(const ex_training *t) {
    uint64_t rank = (uint64_t)t->processes.group.rank;
    return mt_torch_seed((uint64_t)t->flags->seed + (rank << 32));
}

mt_status ex_training_open(ex_training *t) {
    mt_status status = open_files(t);
    if (status == MT_OK) status = open_device(t);
    return status == MT_OK ? ex_training_seed(t) : status;
}

/* ---- data -------------------------------------------------------------------------------------- */

/* Batches are rendered by threads while the step before them runs. */
mt_status ex_training_data(ex_training *t, const ex_source *source) {
    const ex_batches_options options = ex_batches_options_of(t->flags);
    t->source = ex_processes_share(&t->processes, source);
    t->progress.unit = t->source.unit;
    t->progress.processes = (size_t)t->flags->processes;
    mt_status status = ex_checkpoint_names(t->flags->resume, &t->from, &t->source.names);
    if (status == MT_OK) status = ex_batches_new(&t->source, &options, &t->batches);
    if (status == MT_OK) t->device.ahead_bytes = ex_batches_ahead_bytes(t->batches);
    return status;
}

/* ---- whether it goes together ------------------------------------------------------------------ */

/* An epoch that is left out as a whole would be one of nothing. */
static mt_status check_samples(const ex_training *t) {
    size_t count = t->source.count(t->source.self, EX_TRAINING);
    size_t least = ex_flags_least(t->flags, &t->info);
    if (count >= least) return MT_OK;
    if (t->flags->processes > 1)
        return mt_set_error(MT_EINVAL,
                            "--processes: %lld leave each %zu %s for training; %zu are the fewest "
                            "that this network can be trained on at once",
                            (long long)t->flags->processes, count, t->source.unit, least);
    return mt_set_error(MT_EINVAL,
                        "only %zu %s for training; %zu are the fewest that this network can be "
                        "trained on at once",
                        count, t->source.unit, least);
}

/* The flags that decide what is computed, and how many steps there are, as a number. */
static uint64_t plan_of(const ex_training *t) {
    const int64_t numbers[] = {t->flags->seed,
                               t->flags->image_size,
                               t->flags->epochs,
                               t->flags->steps,
                               (int64_t)t->source.count(t->source.self, EX_TRAINING),
                               (int64_t)t->source.count(t->source.self, EX_VALIDATION)};
    uint64_t hash = ex_hash(EX_HASH_INIT, numbers, sizeof numbers);
    for (size_t i = 0; i < t->setting_count; i++)
        hash = ex_hash(hash, t->settings[i].value, strlen(t->settings[i].value) + 1);
    return hash;
}

/* Each process has flags and files of its own: they are to be those of one run. */
static mt_status compare_processes(const ex_training *t) {
    const uint64_t position = (t->from.epoch << 32) + t->from.batches;
    mt_status status =
        ex_processes_same(&t->processes, plan_of(t), "have other flags or data than each other");
    if (status == MT_OK)
        status =
            ex_processes_same(&t->processes, position,
                              "have files of --resume that are of other steps than each other");
    return status == MT_OK && t->flags->resume ? mt_torch_check_processes(t->torch) : status;
}

/* What a trace asks of the device and of the data, which are there by now. */
static mt_status check_replay(const ex_training *t) {
    const ex_epoch epoch = {t->source.count(t->source.self, EX_TRAINING), (size_t)t->flags->batch,
                            ex_flags_least(t->flags, &t->info)};
    mt_status status = ex_replay_check_rungs(t->replay, t->info.rungs);
    return status == MT_OK ? ex_replay_check_batches(t->replay, &epoch) : status;
}

/* ---- model and trainer ------------------------------------------------------------------------- */

/* The run of a backend whose functions are told of nothing but its own self. */
static ex_training *current;

/* The rung minimal: nothing runs, is held or is drawn beside the training, from the step on that needs it. */
static void go_minimal(ex_training *t) {
    ex_batches_stop_ahead(t->batches);
    t->device.ahead_bytes = 0;
    ex_progress_no_bar(&t->progress);
}

static mt_status set_rung(void *self, mt_rung rung, int on) {
    if (rung == MT_RUNG_MINIMAL && on) go_minimal(current);
    return current->set_rung(self, rung, on);
}

static mt_status describe(ex_training *t) {
    mt_status status = mt_torch_backend(t->torch, &t->backend);
    t->info.size = sizeof t->info;
    current = t;
    t->set_rung = t->backend.set_rung;
    if (t->set_rung) t->backend.set_rung = set_rung;
    return status == MT_OK ? t->backend.describe(t->backend.self, &t->info) : status;
}

/* The network, and beside it on the device its gradients and the optimiser's state. */
static mt_status make_backend(ex_training *t, ex_make_fn make) {
    mt_status status = make(t->program->self, &t->model);
    if (status == MT_OK)
        status = ex_device_torch(t->flags, &t->device, &t->torch_options, t->model, &t->torch);
    if (status == MT_OK && t->flags->resume)
        status = mt_torch_load(t->torch, t->flags->resume, NULL, 0);
    if (status == MT_OK) status = describe(t);
    if (status == MT_OK) status = check_samples(t);
    if (status == MT_OK) status = compare_processes(t);
    return status == MT_OK ? ex_flags_check(t->flags, &t->info, ex_rest_of_epoch(t)) : status;
}

static void on_trace(void *user, const char *line) {
    ex_training *t = user;
    ex_tracefile_line(t->trace, line);
    ex_html_report_line(t->report, line);
}

static mt_status make_trainer(ex_training *t) {
    mt_policy_options policy = ex_flags_policy(t->flags);
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    options.policy = &policy;
    if (!t->flags->check) options.trace = t->trace || t->report ? on_trace : NULL;
    options.trace_user = t;
    options.batch = (size_t)t->flags->batch;
    options.seed = (uint64_t)t->flags->seed;
    options.apply_not_finite = t->flags->apply_not_finite;
    if (!t->flags->check) options.learned = t->flags->learned;
    mt_status status = mt_trainer_new(&t->backend, &options, &t->trainer);
    if (status != MT_OK) return status;
    const ex_traced_device device = {t->flags->device, t->device.left, t->device.mapped_bytes};
    if (t->flags->check) return MT_OK; /* trains nothing, and has no trace */
    ex_trace_program(on_trace, t, t->program->name, t->device.threads, t->flags->image_size,
                     t->flags->resume, &device, t->settings, t->setting_count, t->argv);
    return ex_tracefile_check(t->trace);
}

int64_t ex_chunks_of(const ex_flags *flags) {
    if (flags->micro_batch) return flags->micro_batch;
    return flags->deterministic ? EX_CHUNKS_DETERMINISTIC : EX_CHUNKS_MEASURED;
}

static void name_chunks(int64_t chunks, char *text, size_t capacity) {
    if (chunks > 0)
        snprintf(text, capacity, "--micro-batch %lld", (long long)chunks);
    else
        snprintf(text, capacity, "%s",
                 chunks == EX_CHUNKS_DETERMINISTIC ? "--deterministic" : "what is measured");
}

/* Why a run that goes on may not end with the bits of one that was not stopped, in text; 0: it does. */
static int tell_other_bits(const ex_training *t, char *text, size_t capacity) {
    char now[48], then[48];
    int64_t chunks = ex_chunks_of(t->flags);
    if (t->info.needs_whole_batch) return 0;
    if (t->from.chunks != EX_CHUNKS_UNKNOWN && t->from.chunks != chunks) {
        name_chunks(chunks, now, sizeof now);
        name_chunks(t->from.chunks, then, sizeof then);
        return snprintf(text, capacity, "chunks are by %s, and were by %s", now, then);
    }
    if (t->flags->micro_batch) return 0;
    mt_format_size(t->device.budget_bytes, now, sizeof now);
    mt_format_size((size_t)t->from.budget, then, sizeof then);
    if (!t->flags->deterministic)
        return snprintf(text, capacity,
                        "chunks are chosen anew, by what is measured; --deterministic or "
                        "--micro-batch N keeps them");
    if (!t->backend.record)
        return snprintf(text, capacity, "%s does not tell what a chunk needs beforehand",
                        t->device.name);
    if (t->from.budget && t->from.budget != t->device.budget_bytes)
        return snprintf(text, capacity, "the budget is %s, and was %s", now, then);
    if (t->from.replans)
        return snprintf(text, capacity,
                        "what was learnt when memory ran out, in %llu of its steps, is not in the "
                        "file",
                        (unsigned long long)t->from.replans);
    return 0;
}

/* Steps of the whole run that the file of --resume has, as mt_fit counts them. */
static uint64_t steps_done(const ex_training *t) {
    const size_t rest = ex_rest_of_epoch(t), batch = (size_t)t->flags->batch;
    const size_t whole = t->source.count(t->source.self, EX_TRAINING) / batch;
    const int has_rest = rest && rest >= ex_flags_least(t->flags, &t->info);
    return (t->from.epoch - 1) * (whole + (size_t)has_rest) + t->from.batches;
}

static void tell_where(const ex_training *t) {
    char why[256];
    mt_log(MT_LOG_INFO, "going on from '%s': epoch %llu, %llu of its batches are done",
           t->flags->resume, (unsigned long long)t->from.epoch,
           (unsigned long long)t->from.batches);
    uint64_t steps = steps_done(t);
    if (t->from.epoch > (uint64_t)t->flags->epochs)
        mt_log(MT_LOG_INFO,
               "nothing is left to do: --epochs %lld are done; a run with --schedule constant goes "
               "on with more",
               (long long)t->flags->epochs);
    else if (t->flags->steps && steps >= (uint64_t)t->flags->steps)
        mt_log(MT_LOG_INFO,
               "nothing is left to do: --steps %lld are done, the file has %llu; the run goes on "
               "with a larger --steps, or without it to the end of --epochs %lld",
               (long long)t->flags->steps, (unsigned long long)steps, (long long)t->flags->epochs);
    else if (tell_other_bits(t, why, sizeof why))
        mt_log(MT_LOG_INFO, "it may end with other bits than a run that was not stopped: %s", why);
}

static void introduce(const ex_training *t) {
    size_t rest = ex_rest_of_epoch(t), least = ex_flags_least(t->flags, &t->info);
    if (t->program->introduce) t->program->introduce(t->program->self, t);
    ex_report_job(t->program->model_name, t->flags, &t->device, &t->info);
    if (t->flags->processes > 1)
        printf("%lld processes, each with its share of the samples, in batches of %lld\n",
               (long long)t->flags->processes, (long long)t->flags->batch);
    if (t->flags->accumulate > 1 || t->flags->processes > 1)
        printf("Effective batch size: %lld\n", (long long)(t->flags->batch * t->flags->processes));
    if (t->flags->resume) tell_where(t);
    if (rest && rest < least)
        mt_log(MT_LOG_INFO, "the last %zu of each epoch are left out: a chunk has at least %zu",
               rest, least);
}

/* Real chunks of large pictures take minutes. The batch is there before: it has its share of the budget. */
static mt_status explain_chunks(ex_training *t) {
    mt_batch batch;
    mt_status status = ex_batches_fill(t->batches, EX_TRAINING, 1, 0, &batch);
    if (status != MT_OK) return status;
    if (!ex_rehearse_is_dry(t->flags->rehearse, t->flags->image_size))
        return ex_explain(&t->backend, &batch, t->flags, &t->device);
    printf("A dry run: chunks take their memory, and nearly nothing is computed.\n");
    status = mt_dry_run(1);
    if (status != MT_OK) return status;
    status = ex_explain(&t->backend, &batch, t->flags, &t->device);
    mt_status ended = mt_dry_run(0);
    return status == MT_OK ? ended : status;
}

/* Where a network takes no other pictures than its own, its own chunks are run. */
static mt_status explain(ex_training *t) {
    const ex_flags *flags = t->flags;
    ex_rehearsal rehearsal;
    if (!ex_rehearse_wants(flags->rehearse, flags->image_size)) return explain_chunks(t);
    mt_status status =
        ex_rehearse_open(&t->backend, &t->source, flags->image_size, (size_t)flags->batch,
                         ex_flags_least(flags, &t->info), &rehearsal);
    int goes = status == MT_OK || (status == MT_EDEVMEM && flags->rehearse == EX_REHEARSE_ON);
    if (goes) {
        printf("Chunks of %lld x %lld pixels are not run: those of 96, 128 and 160 pixels tell "
               "what they take.\n",
               (long long)flags->image_size, (long long)flags->image_size);
        status = ex_explain(&rehearsal.backend, &rehearsal.batch, flags, &t->device);
    } else if (flags->rehearse == EX_REHEARSE_AUTO) {
        mt_log(MT_LOG_INFO, "smaller pictures cannot tell what these take: %s", mt_last_error());
    }
    ex_rehearse_close(&rehearsal);
    return goes || flags->rehearse == EX_REHEARSE_ON ? status : explain_chunks(t);
}

/*
 * The budget is too small even for what is there before the first step. The same on the CPU without a
 * budget, for a moment, tells the figures; the error line stays the one of the failure.
 */
static void explain_state(ex_training *t, ex_make_fn make) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    mt_memory memory = MT_MEMORY_INIT;
    mt_torch_options options = t->torch_options;
    options.device = "cpu";
    options.processes = NULL; /* others may fit */
    mt_model_free(t->model);
    t->model = NULL;
    mt_status status = mt_device_set_budget("cpu", 0);
    if (status == MT_OK) status = make(t->program->self, &t->model);
    if (status == MT_OK) status = mt_torch_new(t->model, &options, &t->torch);
    if (status == MT_OK) status = describe(t);
    if (status == MT_OK) status = mt_device_memory("cpu", &memory);
    if (status == MT_OK) ex_explain_state(&t->info, memory.allocated_bytes, &t->device);
    mt_torch_free(t->torch);
    t->torch = NULL;
    (void)!mt_set_error(MT_EDEVMEM, "%s", reason);
}

mt_status ex_training_model(ex_training *t, ex_make_fn make) {
    mt_status status = ex_training_order(t, make);
    if (status == MT_OK) status = make_backend(t, make);
    if (status == MT_EDEVMEM) (void)!ex_device_follow(t->flags, &t->device);
    if (status == MT_EDEVMEM && t->flags->explain && !t->torch) explain_state(t, make);
    if (status == MT_OK) status = check_replay(t);
    if (status == MT_OK && !t->quiet) introduce(t);
    if (status == MT_OK && t->flags->explain) status = explain(t);
    if (status == MT_OK) status = make_trainer(t);
    if (status == MT_OK) ex_training_fit(t);
    return status;
}
