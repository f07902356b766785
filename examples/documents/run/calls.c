/*
 * calls.c - what mt_fit is called with: sources, options from the flags, and callbacks; see training.h.
 */
#include "training_parts.h"

#include "clock.h"
#include "inject.h"
#include "interrupt.h"
#include "model_check.h"
#include "report.h"

#include <math.h>
#include <sys/stat.h>

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
    size_t batch = *index / t->fit.batch;
    mt_status status = ex_batches_fill(t->batches, EX_TRAINING, t->at.epoch, batch, out);
    if (status == MT_OK) status = ex_replay_next(t->replay, count, t->trainer);
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

void ex_disarm(ex_training *t) {
    if (t->is_armed) ex_inject_disarm(&t->flags->inject, t->at.steps + 1);
    t->is_armed = 0;
}

/* --check: what is frozen in the first epoch is frozen here. */
static mt_status check_model(ex_training *t) {
    mt_batch batch;
    mt_status status =
        ex_batches_fill(t->batches, EX_TRAINING, t->at.epoch, t->at.batch % t->at.batches, &batch);
    return status == MT_OK ? ex_model_check(t->torch, &batch, &t->faults) : status;
}

/* Until here there is nothing to save: a signal ends the program at once, however long it measures. */
static void begin_to_train(ex_training *t) {
    if (!t->began) ex_interrupt_catch();
    t->began = ex_seconds();
    ex_progress_epoch(&t->progress, t->at.epoch, t->at.epochs, t->at.batch, t->at.batches);
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
    ex_disarm(t);
    t->at = *at;
    t->from.replans += report->reason == MT_PLAN_OOM;
    t->seconds = ex_seconds() - t->began;
    mt_status status = check_loss(t, report);
    if (status != MT_OK) return status;
    if (t->program->after_step) t->program->after_step(t->program->self, t, report);
    ex_progress_step(&t->progress, report);
    return MT_OK;
}

/* Whether mt_fit makes no other epoch for the reason of --patience alone. */
static int is_out_of_patience(const ex_training *t) {
    const mt_fit_options *o = &t->fit;
    int is_last = t->at.epochs_done >= o->epochs || (o->steps && t->at.steps >= o->steps);
    return o->patience && t->at.worse >= o->patience && !is_last;
}

static void report_patience(const ex_training *t) {
    if (t->at.best_epoch)
        printf("no epoch since %llu was better", (unsigned long long)t->at.best_epoch);
    else
        printf("no epoch had a finite figure");
    printf(": --patience %llu ends the run\n", (unsigned long long)t->fit.patience);
}

static mt_status on_epoch(void *user, const mt_fit_report *at, const mt_epoch_report *report) {
    ex_training *t = user;
    t->at = *at;
    t->last = *report;
    if (!t->least_seconds || t->seconds < t->least_seconds) t->least_seconds = t->seconds;
    ex_progress_clear(&t->progress);
    if (!t->quiet) ex_report_epoch(report, t->info.metric_names[0], ex_seconds() - t->began);
    mt_status status = MT_OK;
    if (t->program->after_epoch) status = t->program->after_epoch(t->program->self, t, report);
    if (status == MT_OK && !t->quiet && is_out_of_patience(t)) report_patience(t);
    return status;
}

static mt_status set_lr(void *self, double rate) {
    return mt_torch_set_lr(((ex_training *)self)->torch, rate);
}

/* ---- files ------------------------------------------------------------------------------------- */

static mt_status save_as(const ex_training *t, const char *path, const char *place) {
    const ex_run run = ex_this_run(t);
    ex_position at = t->from;
    at.budget = t->device.budget_bytes;
    at.chunks = ex_chunks_of(t->flags);
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

/* ---- options ----------------------------------------------------------------------------------- */

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

void ex_training_fit(ex_training *t) {
    const ex_flags *flags = t->flags;
    const size_t rest = ex_rest_of_epoch(t);
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
    t->fit.maximise = t->info.metric_count > 0;
    if (t->fit.validation && !flags->check) t->fit.patience = (uint64_t)flags->patience;
    name_files(t);
    size_t batches = t->training.samples / t->fit.batch + (rest && !t->fit.drop_last);
    t->schedule = ex_flags_schedule(flags, (uint64_t)flags->epochs * batches);
    t->fit.schedule = &t->schedule;
    t->calls = (mt_fit_callbacks){sizeof t->calls, t, on_begin, on_step,    on_epoch,  on_stop,
                                  on_now,          t, save,     tell_place, is_loaded, set_lr};
}
