/*
 * fit.c - the loop over epochs: orders of samples, evaluations, rates, checkpoints, and when it ends.
 *
 * A step is trainer.c's. Files, signals and clocks are the caller's: callbacks.
 */
#include <memtrain/fit.h>

#include "trainer_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct fit {
    mt_trainer *trainer;
    mt_source source, validation;
    mt_fit_options options;
    mt_fit_callbacks call;
    mt_schedule schedule;
    uint64_t spread; /* steps that the schedule was laid out over by mt_fit; 0: it had its own */
    mt_fit_report run;
    size_t *index; /* the epoch's order; in an evaluation, the numbers of one batch */
    double started;
    double saved; /* when last was written, or the run began; by `now` */
    int is_saved; /* last has what the run has come to */
} fit;

/* ---- orders ------------------------------------------------------------------------------------- */

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* A number below n, each as likely as the others. */
static uint64_t below(uint64_t *state, uint64_t n) {
    uint64_t rest = (UINT64_MAX % n + 1) % n; /* of 2^64 */
    uint64_t drawn = splitmix64(state);
    while (drawn > UINT64_MAX - rest) drawn = splitmix64(state);
    return drawn % n;
}

static void count_up(size_t first, size_t count, size_t *out) {
    for (size_t i = 0; i < count; i++) out[i] = first + i;
}

mt_status mt_fit_order(uint64_t seed, uint64_t epoch, size_t samples, size_t *out) {
    MT__CHECK(out, "mt_fit_order: out is NULL");
    uint64_t state = splitmix64(&seed) ^ epoch;
    count_up(0, samples, out);
    for (size_t i = samples; i-- > 1;) {
        size_t j = (size_t)below(&state, (uint64_t)i + 1);
        size_t moved = out[i];
        out[i] = out[j];
        out[j] = moved;
    }
    return MT_OK;
}

/* ---- arguments ---------------------------------------------------------------------------------- */

/* Copies a struct of the caller's; theirs NULL: it stays as it is. */
static mt_status take(void *own, size_t own_size, const void *theirs, const char *name) {
    return theirs ? mt__take_versioned(own, own_size, theirs, "mt_fit", name) : MT_OK;
}

static mt_status check_source(const mt_source *s, const char *name) {
    MT__CHECK(s->load, "mt_fit: %s->load is NULL", name);
    MT__CHECK(s->samples > 0 && s->samples <= SIZE_MAX / sizeof(size_t),
              "mt_fit: %s->samples is %zu; at least 1 is accepted", name, s->samples);
    return MT_OK;
}

static mt_status take_arguments(fit *f, const mt_source *source, const mt_fit_options *options,
                                const mt_fit_callbacks *callbacks, const void *report) {
    mt_status status = mt__check_ready(f->trainer, "mt_fit");
    if (status == MT_OK && report) status = mt__check_sized(report, "mt_fit", "report");
    if (status != MT_OK) return status;
    MT__CHECK(source, "mt_fit: source is NULL");
    status = take(&f->source, sizeof f->source, source, "source");
    if (status == MT_OK) status = take(&f->options, sizeof f->options, options, "options");
    if (status == MT_OK) status = take(&f->call, sizeof f->call, callbacks, "callbacks");
    if (status == MT_OK) status = check_source(&f->source, "source");
    if (status != MT_OK) return status;
    MT__CHECK(f->options.batch && f->options.evaluate_every,
              "mt_fit: options->%s is 0; at least 1 is accepted",
              f->options.batch ? "evaluate_every" : "batch");
    if (!f->options.validation) return MT_OK;
    status = take(&f->validation, sizeof f->validation, f->options.validation, "validation");
    return status == MT_OK ? check_source(&f->validation, "validation") : status;
}

/* What an option needs beside it. */
static mt_status check_needs(const fit *f) {
    static const struct {
        char option[13], needed[11];
    } rows[] = {{"best", "validation"},   {"patience", "validation"}, {"save_every", "last"},
                {"save_seconds", "last"}, {"best", "save"},           {"last", "save"},
                {"resume", "load"},       {"resume", "position"},     {"schedule", "set_lr"},
                {"save_seconds", "now"}};
    enum { OPTIONS = 4 }; /* what the others need is a callback */
    const mt_fit_options *o = &f->options;
    const mt_fit_callbacks *c = &f->call;
    const int lacks[] = {o->best && !o->validation, o->patience && !o->validation,
                         o->save_every && !o->last, o->save_seconds > 0 && !o->last,
                         o->best && !c->save,       o->last && !c->save,
                         o->resume && !c->load,     o->resume && !c->position,
                         o->schedule && !c->set_lr, o->save_seconds > 0 && !c->now};
    for (int i = 0; i < (int)(sizeof lacks / sizeof *lacks); i++)
        MT__CHECK(!lacks[i], "mt_fit: options->%s is set, and %s->%s is NULL", rows[i].option,
                  i < OPTIONS ? "options" : "callbacks", rows[i].needed);
    return MT_OK;
}

static mt_status check_numbers(const fit *f) {
    const mt_fit_options *o = &f->options;
    const size_t metrics = f->trainer->info.metric_count;
    MT__CHECK(
        !o->drop_last || o->batch <= f->source.samples,
        "mt_fit: options->batch is %zu; accepted with drop_last: at most source->samples, %zu",
        o->batch, f->source.samples);
    MT__CHECK(o->epochs <= INT64_MAX / f->source.samples,
              "mt_fit: options->epochs is %llu; accepted: less than 2^63 samples",
              (unsigned long long)o->epochs);
    MT__CHECK(o->save_seconds >= 0,
              "mt_fit: options->save_seconds is %g; accepted: 0 for none, or a number above it",
              o->save_seconds);
    MT__CHECK(o->metric >= MT_FIT_LOSS && (o->metric < 0 || (size_t)o->metric < metrics),
              "mt_fit: options->metric is %d; accepted: MT_FIT_LOSS (-1), or a metric below %zu",
              o->metric, metrics);
    if (o->validation && !f->trainer->backend.evaluate)
        return mt_set_error(MT_ENOTSUP,
                            "mt_fit: options->validation is set, and the backend has no evaluate");
    return MT_OK;
}

/* A schedule without steps of its own is laid out over the run. */
static mt_status take_schedule(fit *f) {
    if (!f->options.schedule) return MT_OK;
    mt_status status = take(&f->schedule, sizeof f->schedule, f->options.schedule, "schedule");
    if (status != MT_OK) return status;
    const int goes_down =
        f->schedule.kind == MT_SCHEDULE_COSINE || f->schedule.kind == MT_SCHEDULE_LINEAR;
    if (goes_down && !f->schedule.steps)
        f->schedule.steps = f->spread = f->run.total_steps + !f->run.total_steps;
    return isnan(mt_schedule_rate(&f->schedule, 0)) ? MT_EINVAL : MT_OK;
}

/* Room for an order of so many samples, and for the numbers of a batch of an evaluation. */
static mt_status take_index(fit *f, size_t samples) {
    size_t most = mt__min(f->options.batch, f->validation.samples);
    f->index = mt__alloc(mt__max(samples, most), sizeof *f->index);
    return f->index ? MT_OK : mt_set_error(MT_ENOMEM, "mt_fit: out of host memory");
}

static mt_status prepare(fit *f) {
    const mt_fit_options *o = &f->options;
    mt_status status = check_numbers(f);
    if (status == MT_OK) status = check_needs(f);
    if (status != MT_OK) return status;
    size_t samples = f->source.samples;
    f->run.batches = o->drop_last ? samples / o->batch : mt__ceil_div(samples, o->batch);
    f->run.epochs = o->epochs;
    f->run.total_steps = o->epochs * f->run.batches;
    f->run.epoch = 1;
    f->run.rate = f->run.best = (double)NAN;
    status = take_schedule(f);
    return status == MT_OK ? take_index(f, samples) : status;
}

/* ---- callbacks ---------------------------------------------------------------------------------- */

/* Before a function of the caller's: what it says is its own. */
static const mt_fit_report *ask(fit *f) {
    if (f->call.now) f->run.seconds = f->call.now(f->call.user) - f->started;
    mt_set_error(MT_OK, "%s", "");
    return &f->run;
}

/* After it: it may fail without a word. */
static mt_status told(mt_status status, const char *name) {
    if (status == MT_OK || mt_last_error()[0]) return status;
    return mt_set_error(status, "mt_fit: %s has failed and does not say why: %s", name,
                        mt_status_text(status));
}

/* Once it was so it stays so. */
static int is_stopped(fit *f) {
    const mt_fit_options *o = &f->options;
    if (f->run.end == MT_FIT_STOPPED) return 1;
    int is_told = (o->stop && *o->stop) || (f->call.stop && f->call.stop(f->call.user));
    if (is_told) f->run.end = MT_FIT_STOPPED;
    return is_told;
}

static mt_status load(fit *f, const mt_source *source, const size_t *index, size_t count,
                      mt_batch *out) {
    const mt_batch initial = MT_BATCH_INIT;
    *out = initial;
    out->count = count;
    ask(f);
    return told(source->load(source->self, index, count, out), "load");
}

static void release(const mt_source *source, mt_batch *batch) {
    if (source->release) source->release(source->self, batch);
}

/* ---- positions ---------------------------------------------------------------------------------- */

/* The first six decide order and rates: a run that goes on has to have the same. */
enum { ORDER = 6, EPOCHS_DONE = ORDER, BATCHES_DONE, BEST, BEST_EPOCH, WORSE, PLACES };

static const char places[PLACES][13] = {"seed",      "samples",    "batch",       "shuffle",
                                        "drop_last", "steps",      "epochs_done", "batches_done",
                                        "best",      "best_epoch", "worse"};

static void read_place(const fit *f, uint64_t place[PLACES]) {
    const mt_fit_options *o = &f->options;
    const mt_fit_report *r = &f->run;
    const uint64_t now[PLACES] = {o->seed,
                                  f->source.samples,
                                  o->batch,
                                  o->shuffle != 0,
                                  o->drop_last != 0,
                                  f->spread,
                                  r->epochs_done,
                                  r->epoch > r->epochs_done ? r->batch : 0,
                                  0,
                                  r->best_epoch,
                                  r->worse};
    memcpy(place, now, sizeof now);
    memcpy(&place[BEST], &r->best, sizeof r->best); /* its bits */
}

static mt_status save(fit *f, const char *path) {
    char text[MT_FIT_POSITION_MAX];
    uint64_t place[PLACES];
    size_t length = 0;
    if (!path) return MT_OK;
    read_place(f, place);
    for (size_t i = 0; i < PLACES; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%c\"%s\":%llu",
                                   i ? ',' : '{', places[i], (unsigned long long)place[i]);
    snprintf(text + length, sizeof text - length, "}");
    ask(f);
    return told(f->call.save(f->call.state, path, text), "save");
}

/* The time that the file takes is none of the next interval. */
static mt_status save_last(fit *f) {
    mt_status status = save(f, f->options.last);
    f->is_saved = 1;
    if (f->options.save_seconds > 0) f->saved = f->call.now(f->call.user);
    return status;
}

/* A disk that is full may have room at the next save. The run's end is written by save_last, which fails. */
static mt_status try_to_save(fit *f) {
    const mt_fit_options *o = &f->options;
    mt_status status = save_last(f);
    if (status != MT_EIO || !(o->save_every || o->save_seconds > 0)) return status;
    f->is_saved = 0;
    mt_log(MT_LOG_WARNING, "mt_fit: '%.200s' is not written now, and the next save tries again: %s",
           o->last, mt_last_error());
    mt_set_error(MT_OK, "%s", "");
    return MT_OK;
}

/* Exactly what save() writes. */
static int read_text(char *text, uint64_t place[PLACES]) {
    mt__json json = {text, strlen(text), 0, NULL};
    char *name;
    for (size_t i = 0; i < PLACES; i++)
        if (!mt__json_take(&json, i ? ',' : '{') || !mt__json_string(&json, &name) ||
            strcmp(name, places[i]) != 0 || !mt__json_take(&json, ':') ||
            !mt__json_whole(&json, &place[i]))
            return 0;
    return mt__json_take(&json, '}') && mt__json_end(&json);
}

/* Whether the run that was at this place is this one. */
static mt_status check_place(const fit *f, const uint64_t place[PLACES]) {
    uint64_t own[PLACES];
    const char *path = f->options.resume;
    read_place(f, own);
    for (size_t i = 0; i < ORDER; i++)
        MT__CHECK(own[i] == place[i],
                  "mt_fit: %s is %llu; accepted: %llu, as in the run of options->resume '%.200s'",
                  places[i], (unsigned long long)own[i], (unsigned long long)place[i], path);
    MT__CHECK(place[BATCHES_DONE] <= f->run.batches &&
                  place[EPOCHS_DONE] <= INT64_MAX / f->run.batches,
              "mt_fit: options->resume: '%.200s' is at batch %llu of epoch %llu, which has %zu",
              path, (unsigned long long)place[BATCHES_DONE],
              (unsigned long long)place[EPOCHS_DONE] + 1, f->run.batches);
    return MT_OK;
}

static void take_place(mt_fit_report *run, const uint64_t place[PLACES]) {
    run->epochs_done = place[EPOCHS_DONE];
    run->epoch = place[EPOCHS_DONE] + 1;
    run->batch = (size_t)place[BATCHES_DONE];
    memcpy(&run->best, &place[BEST], sizeof run->best);
    run->best_epoch = place[BEST_EPOCH];
    run->worse = place[WORSE];
    run->steps = place[EPOCHS_DONE] * run->batches + place[BATCHES_DONE];
}

/* Nothing changes before all was found to be right. */
static mt_status resume(fit *f) {
    char text[MT_FIT_POSITION_MAX] = "";
    uint64_t place[PLACES];
    void *state = f->call.state;
    const char *path = f->options.resume;
    if (!path) return MT_OK;
    ask(f);
    mt_status status = told(f->call.position(state, path, text, sizeof text), "position");
    if (status != MT_OK) return status;
    MT__CHECK(read_text(text, place),
              "mt_fit: options->resume: '%.200s' does not say where a run of mt_fit was", path);
    status = check_place(f, place);
    if (status != MT_OK) return status;
    ask(f);
    status = told(f->call.load(state, path), "load");
    if (status == MT_OK) take_place(&f->run, place);
    return status;
}

/* ---- an epoch ----------------------------------------------------------------------------------- */

/* options->steps. */
static int is_enough(const fit *f) {
    return f->options.steps && f->run.steps >= f->options.steps;
}

/* Whether the epoch that is under way has a batch to come. */
static int is_within(const fit *f) {
    return f->run.batch < f->run.batches && !is_enough(f);
}

static mt_status set_rate(fit *f) {
    if (!f->options.schedule) return MT_OK;
    f->run.rate = mt_schedule_rate(&f->schedule, f->run.steps);
    ask(f);
    return told(f->call.set_lr(f->call.state, f->run.rate), "set_lr");
}

/* The clocks of several processes differ, and their files are to be of one step. */
static mt_status is_late(fit *f, double *late) {
    const mt_backend *b = &f->trainer->backend;
    *late = f->call.now(f->call.user) - f->saved >= f->options.save_seconds;
    if (!b->agree) return MT_OK;
    mt_set_error(MT_OK, "%s", "");
    return told(b->agree(b->self, late, 1), "agree");
}

/* Within an epoch: its end has a file of its own. */
static mt_status save_if_due(fit *f) {
    const mt_fit_options *o = &f->options;
    double late = 0;
    mt_status status = MT_OK;
    if (!is_within(f)) return MT_OK;
    if (o->save_seconds > 0) status = is_late(f, &late);
    int due = late > 0 || (o->save_every && f->run.steps % o->save_every == 0);
    return status == MT_OK && due ? try_to_save(f) : status;
}

static mt_status train_batch(fit *f) {
    mt_batch batch;
    mt_step_report report = MT_STEP_REPORT_INIT;
    size_t first = f->run.batch * f->options.batch;
    size_t count = mt__min(f->options.batch, f->source.samples - first);
    mt_status status = set_rate(f);
    if (status == MT_OK) status = load(f, &f->source, f->index + first, count, &batch);
    if (status != MT_OK) return status;
    status = mt_trainer_step(f->trainer, &batch, &report);
    release(&f->source, &batch);
    if (status != MT_OK) return status;
    f->run.batch++;
    f->run.steps++;
    f->is_saved = 0;
    if (f->call.step) status = told(f->call.step(f->call.user, ask(f), &report), "step");
    return status == MT_OK ? save_if_due(f) : status;
}

/* Adds to *done the samples of this process that were evaluated. NULL: they are not asked for. */
static mt_status evaluate(fit *f, size_t *done) {
    mt_status status = MT_OK;
    size_t samples = f->validation.samples, count;
    memset(&f->trainer->eval, 0, sizeof f->trainer->eval); /* of one that was stopped */
    for (size_t first = 0; first < samples && status == MT_OK && !is_stopped(f); first += count) {
        mt_batch batch;
        count = mt__min(f->options.batch, samples - first);
        count_up(first, count, f->index);
        status = load(f, &f->validation, f->index, count, &batch);
        if (status != MT_OK) return status;
        status = mt_trainer_evaluate(f->trainer, &batch, NULL);
        release(&f->validation, &batch);
        if (status == MT_OK && done) *done += count;
    }
    f->run.evaluated = status == MT_OK && f->run.end == MT_FIT_RUNNING;
    return status;
}

static int is_due(const fit *f) {
    const mt_fit_options *o = &f->options;
    int is_last = f->run.epoch == o->epochs || is_enough(f);
    return o->validation && (is_last || f->run.epoch % o->evaluate_every == 0);
}

static void judge(fit *f, const mt_epoch_report *report) {
    mt_fit_report *r = &f->run;
    int metric = f->options.metric;
    double value = metric < 0 ? report->eval_loss : report->eval_metrics[metric];
    double gain = f->options.maximise ? value - r->best : r->best - value;
    r->is_best = r->evaluated && isfinite(value) && (!r->best_epoch || gain > 0);
    r->worse += r->evaluated && !r->is_best;
    if (!r->is_best) return;
    r->best = value;
    r->best_epoch = r->epoch;
    r->worse = 0;
}

static mt_status end_epoch(fit *f) {
    mt_epoch_report report = MT_EPOCH_REPORT_INIT;
    mt_status status = mt_trainer_end_epoch(f->trainer, &report);
    if (status != MT_OK) return status;
    report.epoch = f->run.epoch;
    if (f->run.batch == f->run.batches) f->run.epochs_done = f->run.epoch;
    judge(f, &report);
    if (f->call.epoch) status = told(f->call.epoch(f->call.user, ask(f), &report), "epoch");
    if (status == MT_OK && f->run.is_best) status = save(f, f->options.best);
    return status == MT_OK ? try_to_save(f) : status;
}

/* What earlier calls have left of an epoch is none of this one's. */
static mt_status begin_epoch(fit *f) {
    mt_trainer *t = f->trainer;
    memset(&t->train, 0, sizeof t->train);
    memset(&t->eval, 0, sizeof t->eval);
    t->epoch_seconds = 0;
    t->epoch_peak_bytes = 0;
    if (f->run.epoch == f->run.epochs_done) f->run.batch = 0;
    f->run.epoch = f->run.epochs_done + 1;
    f->run.evaluated = f->run.is_best = 0;
    if (f->options.shuffle)
        (void)!mt_fit_order(f->options.seed, f->run.epoch, f->source.samples, f->index);
    else
        count_up(0, f->source.samples, f->index);
    return f->call.begin ? told(f->call.begin(f->call.user, ask(f)), "begin") : MT_OK;
}

static mt_status train_epoch(fit *f) {
    mt_status status = begin_epoch(f);
    while (status == MT_OK && is_within(f) && !is_stopped(f)) status = train_batch(f);
    if (status != MT_OK || is_stopped(f)) return status;
    if (is_due(f)) status = evaluate(f, NULL);
    if (status != MT_OK || f->run.end != MT_FIT_RUNNING) return status;
    return end_epoch(f);
}

/* Whether the run is over before its next epoch, and why. */
static int is_over(fit *f) {
    const uint64_t patience = f->options.patience;
    if (f->run.end == MT_FIT_STOPPED) return 1;
    if (f->run.epochs_done >= f->options.epochs || is_enough(f))
        f->run.end = MT_FIT_DONE;
    else if (patience && f->run.worse >= patience)
        f->run.end = MT_FIT_PATIENCE;
    if (f->run.end != MT_FIT_RUNNING && !f->run.batch) f->run.epoch = f->run.epochs_done;
    return f->run.end != MT_FIT_RUNNING;
}

static mt_status go(fit *f) {
    mt_status status = resume(f);
    while (status == MT_OK && !is_over(f)) status = train_epoch(f);
    return status == MT_OK && !f->is_saved ? save_last(f) : status;
}

/* As much as the caller's struct has room for. */
static void give(const void *own, size_t own_size, void *theirs) {
    size_t size;
    memcpy(&size, theirs, sizeof size);
    mt__copy_versioned(theirs, mt__min(size, own_size), own, own_size);
}

static fit new_fit(mt_trainer *trainer) {
    const fit f = {trainer,
                   MT_SOURCE_INIT,
                   MT_SOURCE_INIT,
                   MT_FIT_OPTIONS_INIT,
                   MT_FIT_CALLBACKS_INIT,
                   MT_SCHEDULE_INIT,
                   0,
                   MT_FIT_REPORT_INIT,
                   NULL,
                   0,
                   0,
                   0};
    return f;
}

mt_status mt_fit(mt_trainer *trainer, const mt_source *source, const mt_fit_options *options,
                 const mt_fit_callbacks *callbacks, mt_fit_report *report) {
    fit f = new_fit(trainer);
    mt_status status = take_arguments(&f, source, options, callbacks, report);
    if (status == MT_OK) status = prepare(&f);
    if (status != MT_OK) return status;
    if (f.call.now) f.started = f.saved = f.call.now(f.call.user);
    status = go(&f);
    if (status != MT_OK) f.run.end = MT_FIT_FAILED;
    mt__free(f.index);
    if (report) give(&f.run, sizeof f.run, report);
    return status;
}

/* ---- outside of epochs -------------------------------------------------------------------------- */

mt_status mt_fit_evaluate(mt_trainer *trainer, const mt_source *source,
                          const mt_fit_options *options, const mt_fit_callbacks *callbacks,
                          mt_eval_report *report) {
    fit f = new_fit(trainer);
    mt_eval_report out = MT_EVAL_REPORT_INIT;
    MT__CHECK(report, "mt_fit: report is NULL");
    mt_status status = take_arguments(&f, source, options, callbacks, report);
    f.validation = f.source;
    if (status == MT_OK) status = take_index(&f, 0);
    if (status != MT_OK) return status;
    const double seconds = trainer->epoch_seconds;
    const size_t peak_bytes = trainer->epoch_peak_bytes;
    status = evaluate(&f, &out.samples);
    out.seconds = trainer->epoch_seconds - seconds;
    out.loss = mt__means(trainer, &trainer->eval, out.metrics);
    trainer->epoch_seconds = seconds; /* an epoch that is under way has none of it */
    trainer->epoch_peak_bytes = peak_bytes;
    memset(&trainer->eval, 0, sizeof trainer->eval);
    mt__free(f.index);
    give(&out, sizeof out, report);
    return status;
}
