/*
 * training.c - the flow of a run; see training.h. prepare() makes everything, train() goes through the
 * epochs, finish() says what came out, and end() what went wrong.
 */
#include "training.h"

#include "clock.h"
#include "explain.h"
#include "inject.h"
#include "interrupt.h"
#include "means.h"
#include "model_check.h"
#include "output.h"
#include "rehearse.h"
#include "report.h"
#include "writable.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

int ex_training_flags(const ex_program *program, const char *summary, ex_flags *flags, int argc,
                      char **argv, int *out_status) {
    const ex_command command = {program->name, summary,      program->budget,
                                program->data, program->own, flags};
    return ex_flags_read(&command, argc, argv, out_status);
}

int ex_training_refuse(const ex_program *program, const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "%s: ", program->name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 2;
}

/* ---- prepare ----------------------------------------------------------------------------------- */

/* Samples of an epoch's last batch; 0: it is as large as the others. */
static size_t rest_of_epoch(const ex_training *t) {
    return t->source.count(t->source.self, EX_TRAINING) % (size_t)t->flags->batch;
}

/* What a checkpoint says of the run beside its state. */
static ex_run this_run(const ex_training *t) {
    return (ex_run){.program = t->program->name,
                    .seed = t->flags->seed,
                    .image_size = t->flags->image_size,
                    .threads = t->device.threads,
                    .settings = t->settings,
                    .setting_count = t->setting_count};
}

/* Batches are rendered by threads while the step before them runs. */
static mt_status open_data(ex_training *t) {
    const ex_batches_options options = ex_batches_options_of(t->flags);
    mt_status status = t->program->open(t->program->self, t, &t->source);
    if (status != MT_OK) return status;
    t->source = ex_processes_share(&t->processes, &t->source);
    t->progress.unit = t->source.unit;
    t->progress.processes = (size_t)t->flags->processes;
    status = ex_batches_new(&t->source, &options, &t->batches);
    if (status == MT_OK) t->device.ahead_bytes = ex_batches_ahead_bytes(t->batches);
    return status;
}

/* The run of a backend whose functions are told of nothing but its own self. */
static ex_training *current;

/* The last rung: nothing runs, is held or is drawn beside the training, from the step on that needs it. */
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

static mt_torch_options torch_options(const ex_training *t) {
    mt_torch_options options = ex_flags_torch(t->flags, t->device.name);
    if (t->program->options) t->program->options(t->program->self, &options);
    options.processes = &t->processes.group;
    return options;
}

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

static void hash_bytes(uint64_t *hash, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) *hash = (*hash ^ byte[i]) * 0x100000001b3U;
}

/* The flags that decide what is computed, and how many steps there are, as a number (FNV-1a). */
static uint64_t plan_of(const ex_training *t) {
    const int64_t numbers[] = {t->flags->seed,
                               t->flags->image_size,
                               t->flags->epochs,
                               t->flags->steps,
                               (int64_t)t->source.count(t->source.self, EX_TRAINING),
                               (int64_t)t->source.count(t->source.self, EX_VALIDATION)};
    uint64_t hash = 0xcbf29ce484222325U;
    hash_bytes(&hash, numbers, sizeof numbers);
    for (size_t i = 0; i < t->setting_count; i++)
        hash_bytes(&hash, t->settings[i].value, strlen(t->settings[i].value) + 1);
    return hash;
}

/* Each process has flags and files of its own: they are to be those of one run. */
static mt_status compare_processes(const ex_training *t) {
    const uint64_t at[] = {t->from.epoch, t->from.batches};
    uint64_t position = 0xcbf29ce484222325U;
    hash_bytes(&position, at, sizeof at);
    mt_status status =
        ex_processes_same(&t->processes, plan_of(t), "have other flags or data than each other");
    if (status == MT_OK)
        status =
            ex_processes_same(&t->processes, position,
                              "have files of --resume that are of other steps than each other");
    return status == MT_OK && t->flags->resume ? mt_torch_check_processes(t->torch) : status;
}

/* The network, and beside it on the device its gradients and the optimiser's state. */
/* How a run gets its chunks, as a number and in words. */
static int64_t chunks_of(const ex_flags *flags) {
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

static mt_status make_backend(ex_training *t) {
    const mt_torch_options options = torch_options(t);
    mt_status status = t->program->model(t->program->self, t, &t->model);
    if (status == MT_OK)
        status = ex_device_torch(t->flags, &t->device, &options, t->model, &t->torch);
    if (status == MT_OK && t->flags->resume)
        status = mt_torch_load(t->torch, t->flags->resume, NULL, 0);
    if (status == MT_OK) status = describe(t);
    if (status == MT_OK) status = check_samples(t);
    if (status == MT_OK) status = compare_processes(t);
    return status == MT_OK ? ex_flags_check(t->flags, &t->info, rest_of_epoch(t)) : status;
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
    options.drop_small = 1; /* a last batch too small for the network's batch norm */
    mt_status status = mt_trainer_new(&t->backend, &options, &t->trainer);
    if (status != MT_OK) return status;
    const ex_traced_device device = {t->flags->device, t->device.left};
    if (t->flags->check) return MT_OK; /* trains nothing, and has no trace */
    ex_trace_program(on_trace, t, t->program->name, t->device.threads, t->flags->image_size,
                     t->flags->resume, &device, t->settings, t->setting_count, t->argv);
    return ex_tracefile_check(t->trace);
}

/* Why a run that goes on may not end with the bits of one that was not stopped, in text; 0: it does. */
static int tell_other_bits(const ex_training *t, char *text, size_t capacity) {
    char now[48], then[48];
    int64_t chunks = chunks_of(t->flags);
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

static void tell_where(const ex_training *t) {
    char why[256];
    mt_log(MT_LOG_INFO, "going on from '%s': epoch %llu, %llu of its batches are done",
           t->flags->resume, (unsigned long long)t->from.epoch,
           (unsigned long long)t->from.batches);
    if (t->from.epoch > (uint64_t)t->flags->epochs)
        mt_log(MT_LOG_INFO, "nothing is left to do: --epochs %lld are done",
               (long long)t->flags->epochs);
    else if (tell_other_bits(t, why, sizeof why))
        mt_log(MT_LOG_INFO, "it may end with other bits than a run that was not stopped: %s", why);
}

static void introduce(const ex_training *t) {
    size_t rest = rest_of_epoch(t), least = ex_flags_least(t->flags, &t->info);
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

static mt_status explain_run(ex_training *t) {
    mt_batch batch;
    mt_status status = ex_batches_fill(t->batches, EX_TRAINING, 1, 0, &batch);
    return status == MT_OK ? ex_explain(&t->backend, &batch, t->flags, &t->device) : status;
}

/* Where a network takes no other pictures than its own, its own chunks are run. */
static mt_status explain(ex_training *t) {
    const ex_flags *flags = t->flags;
    ex_rehearsal rehearsal;
    if (!ex_rehearse_wants(flags->rehearse, flags->image_size)) return explain_run(t);
    mt_status status =
        ex_rehearse_open(&t->backend, &t->source, flags->image_size, (size_t)flags->batch,
                         ex_flags_least(flags, &t->info), &rehearsal);
    int goes = status == MT_OK;
    if (goes) {
        printf("Chunks of %lld x %lld pixels are not run: those of 96, 128 and 160 pixels tell "
               "what they take.\n",
               (long long)flags->image_size, (long long)flags->image_size);
        status = ex_explain(&rehearsal.backend, &rehearsal.batch, flags, &t->device);
    } else if (flags->rehearse == EX_REHEARSE_AUTO) {
        mt_log(MT_LOG_INFO, "chunks are run, since they cannot be rehearsed: %s", mt_last_error());
    }
    ex_rehearse_close(&rehearsal);
    return goes || flags->rehearse == EX_REHEARSE_ON ? status : explain_run(t);
}

/*
 * The budget is too small even for what is there before the first step. The same on the CPU without a
 * budget, for a moment, tells the figures; the error line stays the one of the failure.
 */
static void explain_state(ex_training *t) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    mt_memory memory = MT_MEMORY_INIT;
    mt_torch_options options = torch_options(t);
    options.device = "cpu";
    options.processes = NULL; /* others may fit */
    mt_model_free(t->model);
    t->model = NULL;
    mt_status status = mt_device_set_budget("cpu", 0);
    if (status == MT_OK) status = t->program->model(t->program->self, t, &t->model);
    if (status == MT_OK) status = mt_torch_new(t->model, &options, &t->torch);
    if (status == MT_OK) status = describe(t);
    if (status == MT_OK) status = mt_device_memory("cpu", &memory);
    if (status == MT_OK) ex_explain_state(&t->info, memory.allocated_bytes, &t->device);
    mt_torch_free(t->torch);
    t->torch = NULL;
    (void)!mt_set_error(MT_EDEVMEM, "%s", reason);
}

static mt_status open_files(ex_training *t) {
    const ex_flags *flags = t->flags;
    const ex_run run = this_run(t);
    mt_status status = ex_checkpoint_open(flags->resume, &run, &t->from);
    if (status == MT_OK) status = ex_check_writable("--save", flags->save);
    if (status == MT_OK) status = ex_replay_open(flags->replay, &t->replay);
    if (status == MT_OK)
        status = ex_replay_check(t->replay, t->program->name, flags->seed, flags->image_size,
                                 t->settings, t->setting_count);
    return status;
}

/* What a trace asks of the device and of the data, which are there by now. */
static mt_status check_replay(const ex_training *t) {
    const ex_epoch epoch = {t->source.count(t->source.self, EX_TRAINING), (size_t)t->flags->batch,
                            ex_flags_least(t->flags, &t->info)};
    mt_status status = ex_replay_check_rungs(t->replay, t->info.rungs);
    return status == MT_OK ? ex_replay_check_batches(t->replay, &epoch) : status;
}

/* A run that is replayed or goes on has the threads of the first. */
static mt_status open_device(ex_training *t) {
    int threads = t->flags->resume ? t->from.threads : ex_replay_threads(t->replay);
    mt_status status = ex_device_open(t->flags, t->program->budget, threads, &t->device);
    if (status == MT_OK && !t->flags->check) status = ex_tracefile_open(t->flags->trace, &t->trace);
    return status == MT_OK ? ex_html_report_open(t->flags->report, &t->report) : status;
}

/* Random numbers of each process's own; the weights are those of the first. */
static mt_status draw_apart(const ex_training *t) {
    uint64_t rank = (uint64_t)t->processes.group.rank;
    return rank ? mt_torch_seed((uint64_t)t->flags->seed + (rank << 32)) : MT_OK;
}

static void prepare_fit(ex_training *t);

static mt_status prepare(ex_training *t) {
    mt_status status = open_files(t);
    if (status == MT_OK) status = open_device(t);
    if (status == MT_OK) status = draw_apart(t);
    if (status == MT_OK) status = open_data(t);
    if (status == MT_OK) status = make_backend(t);
    if (status == MT_EDEVMEM) (void)!ex_device_follow(t->flags, &t->device);
    if (status == MT_EDEVMEM && t->flags->explain && !t->torch) explain_state(t);
    if (status == MT_OK) status = check_replay(t);
    if (status == MT_OK && !t->quiet) introduce(t);
    if (status == MT_OK && t->flags->explain) status = explain(t);
    if (status == MT_OK) status = make_trainer(t);
    if (status == MT_OK) prepare_fit(t);
    return status;
}

/* ---- what mt_fit asks -------------------------------------------------------------------------- */

/* A signal to one of the processes is one to all; they ask at the same time. */
static int is_stopped(ex_training *t) {
    if (!t->stopped_by) t->stopped_by = ex_processes_signal(&t->processes, ex_interrupted());
    return t->stopped_by != 0;
}

/* A check ends before the first step. */
static int on_stop(void *user) {
    ex_training *t = user;
    return t->flags->check || is_stopped(t);
}

static double on_now(void *user) {
    (void)user;
    return ex_seconds();
}

/* Samples come in the order that their source has for the epoch. What a step needs beside its batch is set here. */
static mt_status load_training(void *self, const size_t *index, size_t count, mt_batch *out) {
    ex_training *t = self;
    size_t batch = *index / t->fit.batch, least = ex_flags_least(t->flags, &t->info);
    mt_status status = ex_batches_fill(t->batches, EX_TRAINING, t->at.epoch, batch, out);
    if (status == MT_OK) status = ex_replay_next(t->replay, count, least, t->trainer);
    if (status == MT_OK) status = ex_inject_arm(&t->flags->inject, t->at.steps + 1);
    t->is_armed = status == MT_OK;
    return status;
}

static mt_status load_validation(void *self, const size_t *index, size_t count, mt_batch *out) {
    ex_training *t = self;
    size_t batch = *index / t->fit.batch;
    (void)count;
    ex_progress_evaluate(&t->progress, batch, ex_batches_count(t->batches, EX_VALIDATION));
    return ex_batches_fill(t->batches, EX_VALIDATION, 0, batch, out);
}

static void disarm(ex_training *t) {
    if (t->is_armed) ex_inject_disarm(&t->flags->inject, t->at.steps + 1);
    t->is_armed = 0;
}

/* --check: what is frozen in the first epoch is frozen here. */
static mt_status check_model(ex_training *t) {
    mt_batch batch;
    mt_status status = ex_batches_fill(t->batches, EX_TRAINING, t->at.epoch, t->at.batch, &batch);
    return status == MT_OK ? ex_model_check(t->torch, &batch, &t->faults) : status;
}

/* Until here there is nothing to save: a signal ends the program at once, however long it measures. */
static void begin_to_train(ex_training *t) {
    if (!t->began) ex_interrupt_catch();
    t->began = ex_seconds();
    ex_progress_epoch(&t->progress, t->at.epoch, t->at.epochs, t->at.batches);
}

static mt_status on_begin(void *user, const mt_fit_report *at) {
    ex_training *t = user;
    const ex_program *p = t->program;
    t->at = *at;
    if (!t->flags->check) begin_to_train(t);
    mt_status status = p->begin_epoch ? p->begin_epoch(p->self, t, at->epoch) : MT_OK;
    return status == MT_OK && t->flags->check ? check_model(t) : status;
}

/* One such loss may be a batch's; so many in a row are the network's. */
enum { MOST_NOT_FINITE = 10 };

static mt_status check_loss(ex_training *t, const mt_step_report *report) {
    const unsigned long long step = report->step;
    if (report->skipped == MT_SKIP_NO_UNITS) return MT_OK; /* it has no loss */
    t->not_finite = isfinite(report->loss) ? 0 : t->not_finite + 1;
    if (t->not_finite < MOST_NOT_FINITE) return MT_OK;
    return mt_set_error(
        MT_ESTATE,
        "the losses of %u steps up to step %llu are not finite: there is nothing to "
        "go on from; a smaller --lr than %g or --clip 1 may keep them finite",
        t->not_finite, step, t->flags->lr);
}

static mt_status on_step(void *user, const mt_fit_report *at, const mt_step_report *report) {
    ex_training *t = user;
    disarm(t);
    t->at = *at;
    t->from.replans += report->reason == MT_PLAN_OOM;
    t->seconds = ex_seconds() - t->began;
    mt_status status = check_loss(t, report);
    if (status != MT_OK) return status;
    if (t->program->after_step) t->program->after_step(t->program->self, t, report);
    ex_progress_step(&t->progress, report);
    return MT_OK;
}

static mt_status on_epoch(void *user, const mt_fit_report *at, const mt_epoch_report *report) {
    ex_training *t = user;
    t->at = *at;
    t->last = *report;
    if (!t->least_seconds || t->seconds < t->least_seconds) t->least_seconds = t->seconds;
    ex_progress_clear(&t->progress);
    if (!t->quiet) ex_report_epoch(report, t->info.metric_names[0], ex_seconds() - t->began);
    if (!t->program->after_epoch) return MT_OK;
    return t->program->after_epoch(t->program->self, t, report);
}

static mt_status set_lr(void *self, double rate) {
    return mt_torch_set_lr(((ex_training *)self)->torch, rate);
}

/* ---- files ------------------------------------------------------------------------------------- */

static mt_status save_as(const ex_training *t, const char *path, const char *place) {
    const ex_run run = this_run(t);
    ex_position at = t->from;
    at.budget = t->device.budget_bytes;
    at.chunks = chunks_of(t->flags);
    snprintf(at.place, sizeof at.place, "%s", place);
    return ex_checkpoint_save(t->torch, path, &run, &at);
}

/*
 * Who may not read the file may not read the weights of the best epoch beside it either. The mask is the process's: no
 * other thread makes files meanwhile. A file that is there keeps its own mode.
 */
static mt_status save(void *self, const char *path, const char *place) {
    const ex_training *t = self;
    struct stat info;
    if (path == t->flags->save || stat(t->flags->save, &info) != 0) return save_as(t, path, place);
    mode_t before = umask((mode_t)~info.st_mode & 0777);
    mt_status status = save_as(t, path, place);
    umask(before);
    return status;
}

static mt_status tell_place(void *self, const char *path, char *place, size_t capacity) {
    const ex_training *t = self;
    (void)path;
    snprintf(place, capacity, "%s", t->from.place);
    return MT_OK;
}

/* The backend has begun with it. */
static mt_status is_loaded(void *self, const char *path) {
    (void)self, (void)path;
    return MT_OK;
}

/* ---- train ------------------------------------------------------------------------------------- */

static uint64_t most_steps(const ex_training *t) {
    uint64_t replayed = ex_replay_steps(t->replay), steps = (uint64_t)t->flags->steps;
    if (!t->replay) return steps;
    return steps && steps < replayed ? steps : replayed;
}

static void name_files(ex_training *t) {
    const ex_flags *flags = t->flags;
    t->fit.resume = flags->resume;
    if (!flags->save || flags->check) return;
    t->fit.last = flags->save;
    t->fit.save_every = flags->save_every.steps;
    t->fit.save_seconds = flags->save_every.seconds;
    if (!t->fit.validation || t->fit.metric == MT_FIT_LOSS) return;
    snprintf(t->best, sizeof t->best, "%s.best", flags->save);
    t->fit.best = t->best;
}

static void prepare_fit(ex_training *t) {
    const ex_flags *flags = t->flags;
    const size_t rest = rest_of_epoch(t);
    t->training = (mt_source){sizeof t->training, t, t->source.count(t->source.self, EX_TRAINING),
                              load_training, NULL};
    t->validation =
        (mt_source){sizeof t->validation, t, t->source.count(t->source.self, EX_VALIDATION),
                    load_validation, NULL};
    t->fit = (mt_fit_options)MT_FIT_OPTIONS_INIT;
    t->fit.batch = (size_t)flags->batch;
    t->fit.epochs = flags->check ? t->from.epoch : (uint64_t)flags->epochs;
    t->fit.steps = flags->check ? 0 : most_steps(t);
    if (t->replay && !ex_replay_steps(t->replay)) t->fit.epochs = 0;
    t->fit.seed = (uint64_t)flags->seed;
    t->fit.shuffle = 0; /* the source has an order for each epoch */
    t->fit.drop_last = rest && rest < ex_flags_least(flags, &t->info);
    if (t->validation.samples && !flags->no_validation) t->fit.validation = &t->validation;
    t->fit.metric = t->info.metric_count ? 0 : MT_FIT_LOSS;
    t->fit.maximise = 1;
    if (t->fit.validation) t->fit.patience = (uint64_t)flags->patience;
    name_files(t);
    size_t batches = t->training.samples / t->fit.batch + (rest && !t->fit.drop_last);
    t->schedule = ex_flags_schedule(flags, (uint64_t)flags->epochs * batches);
    t->fit.schedule = &t->schedule;
    t->calls = (mt_fit_callbacks){sizeof t->calls, t, on_begin, on_step,    on_epoch,  on_stop,
                                  on_now,          t, save,     tell_place, is_loaded, set_lr};
}

static mt_status train(ex_training *t) {
    mt_status status = mt_fit(t->trainer, &t->training, &t->fit, &t->calls, &t->at);
    disarm(t);
    ex_progress_clear(&t->progress);
    if (status == MT_OK && t->at.end == MT_FIT_PATIENCE)
        mt_log(MT_LOG_INFO, "no epoch since %llu was better: --patience %llu ends the run",
               (unsigned long long)t->at.best_epoch, (unsigned long long)t->fit.patience);
    return status;
}

/* ---- test -------------------------------------------------------------------------------------- */

/* Samples, where the backend knows no other units. */
static mt_status units_of(const ex_training *t, const mt_batch *batch, double *out) {
    *out = (double)batch->count;
    if (!t->backend.units) return MT_OK;
    return t->backend.units(t->backend.self, batch, 0, batch->count, out);
}

static mt_status evaluate(ex_training *t, ex_batches *batches, ex_means *means) {
    mt_batch batch;
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_status status = MT_OK;
    double units = 0;
    size_t count = ex_batches_count(batches, EX_VALIDATION);
    for (size_t i = 0; i < count && status == MT_OK && !is_stopped(t); i++) {
        ex_progress_evaluate(&t->progress, i, count);
        status = ex_batches_fill(batches, EX_VALIDATION, 0, i, &batch);
        if (status == MT_OK) status = mt_trainer_evaluate(t->trainer, &batch, &report);
        if (status == MT_OK) status = units_of(t, &batch, &units);
        if (status == MT_OK) ex_means_add(means, &report, units);
    }
    ex_progress_clear(&t->progress);
    return status;
}

mt_status ex_training_test(ex_training *t, const ex_source *source, mt_eval_report *out) {
    const ex_batches_options options = ex_batches_options_of(t->flags);
    ex_means means;
    ex_batches *batches;
    mt_status status = ex_batches_new(source, &options, &batches);
    if (status != MT_OK) return status;
    ex_means_init(&means, &t->info);
    status = evaluate(t, batches, &means);
    ex_batches_free(batches);
    *out = ex_means_of(&means);
    return status;
}

/* ---- finish ------------------------------------------------------------------------------------ */

static void print_stopped(const ex_training *t) {
    const char *path = t->flags->save;
    printf("stopped by %s after step %llu, which is done; %s%s\n", ex_interrupt_name(t->stopped_by),
           (unsigned long long)t->at.steps, path ? "go on with --resume " : "nothing was saved",
           path ? path : "");
}

static mt_status finish(ex_training *t) {
    mt_run_report report = MT_RUN_REPORT_INIT;
    mt_status status = mt_trainer_finish(t->trainer, &report);
    if (status != MT_OK) return status;
    ex_inject_finish(&t->flags->inject, t->at.steps);
    if (t->stopped_by)
        print_stopped(t);
    else if (t->program->result)
        t->program->result(t->program->self, t);
    if (report.steps) ex_report_run(&report, (size_t)t->flags->batch);
    ex_report_resident(t->flags, &t->device);
    return MT_OK;
}

/* The page says in one line how the run ended. */
static mt_status close_report(ex_training *t, mt_status status, const char *reason) {
    char text[64];
    if (status != MT_OK) return ex_html_report_close(t->report, EX_HTML_FAILED, reason);
    snprintf(text, sizeof text, "stopped by %s after step %llu", ex_interrupt_name(t->stopped_by),
             (unsigned long long)t->at.steps);
    return ex_html_report_close(t->report, t->stopped_by ? EX_HTML_STOPPED : EX_HTML_DONE,
                                t->stopped_by ? text : NULL);
}

/* The first failure is what the exit status says; each has its line. */
static mt_status and_also(const ex_training *t, mt_status status, mt_status other) {
    if (other != MT_OK) fprintf(stderr, "%s: %s\n", t->program->name, mt_last_error());
    return status != MT_OK ? status : other;
}

/* In the reverse order; each takes a NULL. */
static mt_status clean_up(ex_training *t) {
    mt_trainer_free(t->trainer);
    mt_torch_free(t->torch);
    mt_model_free(t->model);
    ex_batches_free(t->batches);
    if (t->program->close) t->program->close(t->program->self);
    ex_replay_free(t->replay);
    mt_status status = ex_processes_close(&t->processes);
    return and_also(t, status, ex_tracefile_close(t->trace));
}

static void report_failure(ex_training *t, mt_status status) {
    const ex_failure failure = {t->program->name, status,     t->trainer, t->torch != NULL,
                                &t->backend,      t->batches, t->flags,   &t->device};
    if (t->trainer) (void)!ex_device_follow(t->flags, &t->device);
    ex_report_failure(&failure);
    if (status == MT_EDEVMEM && t->program->remedies) t->program->remedies(t->program->self, t);
}

/* What a run has to say at its end, whatever that is; the status of all of it. */
static mt_status end(ex_training *t, mt_status status) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", status != MT_OK ? mt_last_error() : "");
    if (status != MT_OK) report_failure(t, status);
    /* A step that failed has changed nothing: the trace ends like that of any run. */
    if (status != MT_OK && t->trainer) (void)!mt_trainer_finish(t->trainer, NULL);
    status = and_also(t, status, close_report(t, status, reason));
    mt_status closed = clean_up(t);
    /* A job that does not fit is one, whichever of the processes it was. */
    if (status == MT_EPEER && closed == MT_EDEVMEM) status = MT_OK;
    status = and_also(t, status, closed);
    return ex_output_end(t->program->name) || status != MT_OK ? status : MT_EIO;
}

static ex_training new_run(const ex_program *program, ex_flags *flags, char **argv) {
    ex_training t = {
        .program = program, .flags = flags, .argv = argv, .processes.group = MT_PROCESS_GROUP_INIT};
    t.backend.size = sizeof t.backend;
    t.at.size = sizeof t.at;
    t.setting_count = ex_flags_settings(flags, &program->own, t.settings);
    return t;
}

int ex_training_main(const ex_program *program, ex_flags *flags, char **argv) {
    mt_reexec_passive(argv);
    ex_interrupt_no_pipe();
    ex_training t = new_run(program, flags, argv);
    ex_progress_init(&t.progress, (ex_progress_mode)flags->progress, "samples", stderr);
    t.progress.has_no_notes = !ex_processes_is_first();
    mt_set_log(ex_progress_log, &t.progress);
    mt_status status = ex_processes_open(flags, argv, &t.processes);
    t.setting_count = ex_flags_settings(flags, &program->own, t.settings);
    if (t.processes.group.rank) t.progress.mode = EX_PROGRESS_OFF;
    if (status == MT_OK) status = prepare(&t);
    if (status == MT_OK) status = train(&t);
    if (status == MT_OK && program->test && t.at.steps && !t.stopped_by && !flags->check)
        status = program->test(program->self, &t);
    if (status == MT_OK && !flags->check) status = finish(&t);
    status = end(&t, status);
    if (status == MT_OK && t.faults) return EX_EXIT_FAULTS;
    return ex_exit_status(status, t.stopped_by);
}

void ex_training_row(const ex_program *program, ex_flags *flags, char **argv, ex_row *out) {
    ex_training t = new_run(program, flags, argv);
    t.quiet = 1;
    *out = (ex_row){.report = MT_RUN_REPORT_INIT};
    ex_progress_init(&t.progress, EX_PROGRESS_OFF, "samples", stderr);
    mt_set_log(ex_progress_log, &t.progress);
    out->status = prepare(&t);
    if (out->status == MT_OK) out->status = train(&t);
    if (out->status == MT_OK) out->status = mt_trainer_summary(t.trainer, &out->report);
    if (out->status != MT_OK && out->status != MT_EDEVMEM)
        fprintf(stderr, "%s: %s\n", program->name, mt_last_error());
    out->seconds = t.least_seconds;
    out->samples = t.last.samples;
    (void)!clean_up(&t);
    mt_set_log(NULL, NULL);
}
