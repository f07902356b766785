/*
 * fit_fixture.c - see fit_fixture.h.
 */
#include "fit_fixture.h"

#include "suite.h"
#include "trainer_state.h"

#include <stdarg.h>

/* ---- a run that writes down what happens ---------------------------------------------------------- */

fit_file fit_files[FIT_FILES];
fit_calls fit_seen;
int fit_quiet;
fit_case fit;

void fit_note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fit_seen.length += (size_t)vsnprintf(fit_seen.text + fit_seen.length,
                                         FIT_TEXT - fit_seen.length, format, arguments);
    va_end(arguments);
    ck_assert_uint_lt(fit_seen.length, FIT_TEXT);
}

mt_status fit_answer(const char *name) {
    if (!fit_seen.fails || strcmp(fit_seen.fails, name) != 0 || --fit_seen.fails_at) return MT_OK;
    return fit_seen.words ? mt_set_error(MT_EIO, "%s", fit_seen.words) : MT_EIO;
}

/* What the fake trains on is a function of the batch's id and of places in it: the numbers in their order. */
static mt_status load(void *self, const size_t *index, size_t count, mt_batch *out) {
    ck_assert_uint_eq(out->count, count);
    ck_assert_uint_eq(out->size, sizeof *out);
    if (!fit_quiet) fit_note("%s", (const char *)self);
    for (size_t i = 0; i < count; i++) {
        if (!fit_quiet) fit_note("%s%zu", i ? "," : "", index[i]);
        out->id = (out->id ^ (index[i] + 1)) * UINT64_C(0x100000001b3) % 0x7fffffff;
    }
    if (!fit_quiet) fit_note(" ");
    mt_status status = fit_answer("load");
    fit_seen.loads += status == MT_OK;
    return status;
}

static void release(void *self, mt_batch *batch) {
    (void)self;
    ck_assert_uint_gt(batch->count, 0);
    fit_seen.releases++;
}

static mt_status on_begin(void *user, const mt_fit_report *run) {
    ck_assert_ptr_eq(user, &fit_seen);
    fit_note("begin%llu ", (unsigned long long)run->epoch);
    return fit_answer("begin");
}

static mt_status on_step(void *user, const mt_fit_report *run, const mt_step_report *report) {
    ck_assert_ptr_eq(user, &fit_seen);
    ck_assert_uint_eq(run->size, sizeof *run);
    ck_assert_uint_gt(report->samples, 0);
    ck_assert_int_eq(run->end, MT_FIT_RUNNING);
    return fit_answer("step");
}

static mt_status on_epoch(void *user, const mt_fit_report *run, const mt_epoch_report *report) {
    ck_assert_ptr_eq(user, &fit_seen);
    ck_assert_uint_eq(run->epoch, report->epoch);
    ck_assert_uint_eq(run->epochs_done, report->epoch);
    fit_note("epoch%llu%s%s ", (unsigned long long)run->epoch, run->evaluated ? "+" : "",
             run->is_best ? "!" : "");
    fit_seen.runs[fit_seen.epoch_count % 16] = *run;
    fit_seen.epochs[fit_seen.epoch_count++ % 16] = *report;
    return fit_answer("epoch");
}

int fit_on_stop(void *user) {
    ck_assert_ptr_eq(user, &fit_seen);
    return ++fit_seen.asked > fit_seen.stop_after;
}

double fit_now(void *user) {
    ck_assert_ptr_eq(user, &fit_seen);
    return fit_seen.clock += 0.5;
}

static int file_of(const char *path) {
    for (int i = 0; i < FIT_FILES; i++)
        if (!fit_files[i].path || strcmp(fit_files[i].path, path) == 0) return i;
    ck_abort_msg("too many files");
}

static mt_status save(void *state, const char *path, const char *position) {
    int i = file_of(path);
    ck_assert_ptr_eq(state, &fake);
    fit_note("save(%s) ", path);
    mt_status status = fit_answer("save");
    if (status != MT_OK) return status;
    fit_files[i].path = path;
    fit_files[i].state = fake.state;
    snprintf(fit_files[i].position, sizeof fit_files[i].position, "%s", position);
    return MT_OK;
}

static mt_status position(void *state, const char *path, char *text, size_t capacity) {
    int i = file_of(path);
    ck_assert_ptr_eq(state, &fake);
    mt_status status = fit_answer("position");
    if (status != MT_OK) return status;
    if (!fit_files[i].path) return mt_set_error(MT_EIO, "there is no '%s'", path);
    snprintf(text, capacity, "%s", fit_files[i].position);
    return MT_OK;
}

static mt_status reload(void *state, const char *path) {
    ck_assert_ptr_eq(state, &fake);
    fit_note("load(%s) ", path);
    mt_status status = fit_answer("reload");
    if (status == MT_OK) fake.state = fit_files[file_of(path)].state;
    return status;
}

static mt_status set_lr(void *state, double rate) {
    ck_assert_ptr_eq(state, &fake);
    ck_assert_uint_lt(fit_seen.rate_count, FIT_RATES);
    fit_seen.rates[fit_seen.rate_count++] = rate;
    return fit_answer("set_lr");
}

/* ---- what the tests begin with ------------------------------------------------------------------------ */

mt_source fit_source(size_t samples, const char *mark) {
    mt_source source = MT_SOURCE_INIT;
    source.self = (void *)(uintptr_t)mark;
    source.samples = samples;
    source.load = load;
    source.release = release;
    return source;
}

void fit_forget(void) {
    memset(&fit_seen, 0, sizeof fit_seen);
    fit_seen.stop_after = SIZE_MAX;
}

/* Chunks of two samples: the same ones whatever is known of memory. */
mt_trainer *fit_trainer(void) {
    fake_options options = fits(14);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.micro_batch = 2;
    return trainer_with(&options, &policy);
}

void fit_setup(void) {
    memset(fit_files, 0, sizeof fit_files);
    fit_forget();
    fit_quiet = 0;
}

void fit_begin(size_t samples, size_t validation, size_t batch, uint64_t epochs) {
    fit.source = fit_source(samples, "t");
    fit.validation = fit_source(validation, "v");
    fit.schedule = (mt_schedule)MT_SCHEDULE_INIT;
    fit.options = (mt_fit_options)MT_FIT_OPTIONS_INIT;
    fit.options.batch = batch;
    fit.options.epochs = epochs;
    if (validation) fit.options.validation = &fit.validation;
    fit.callbacks = (mt_fit_callbacks)MT_FIT_CALLBACKS_INIT;
    fit.callbacks.user = &fit_seen;
    fit.callbacks.begin = on_begin;
    fit.callbacks.step = on_step;
    fit.callbacks.epoch = on_epoch;
    fit.callbacks.state = &fake;
    fit.callbacks.save = save;
    fit.callbacks.position = position;
    fit.callbacks.load = reload;
    fit.callbacks.set_lr = set_lr;
    fit.report = (mt_fit_report)MT_FIT_REPORT_INIT;
}

mt_status fit_goes(void) {
    if (!fit.trainer) fit.trainer = fit_trainer();
    return mt_fit(fit.trainer, &fit.source, &fit.options, &fit.callbacks, &fit.report);
}

void fit_end(void) {
    if (fit.trainer) done(fit.trainer);
    fit.trainer = NULL;
}

void fit_run(void) {
    ck_ok(fit_goes());
    ck_assert_uint_eq(fit_seen.loads, fit_seen.releases);
    fit_end();
}

/* Losses of an evaluation after another; metric 0 is minus that. */
const double *fit_script;

static mt_status scripted(void *self, const mt_batch *batch, size_t first, size_t count,
                          mt_chunk_result *out) {
    (void)self, (void)batch;
    out->loss_sum = *fit_script * (double)count;
    out->metric_sums[0] = -*fit_script * (double)count;
    out->units = (double)count;
    out->seconds = 0;
    if (first + count == batch->count) fit_script++;
    return MT_OK;
}

size_t fit_count_of(const char *word) {
    size_t count = 0;
    for (const char *at = fit_seen.text; (at = strstr(at, word)) != NULL; at++) count++;
    return count;
}

mt_trainer *fit_scripted_trainer(void) {
    fake_options options = fits(14);
    mt_trainer *trainer = trainer_of(&options, NULL);

    trainer->backend.evaluate = scripted;
    return trainer;
}
