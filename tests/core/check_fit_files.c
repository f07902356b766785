/*
 * check_fit_files.c - the loop on the fake backend: files within epochs, numbers of steps, runs that are stopped and go on
 */
#include "fit_fixture.h"
#include "suite.h"
#include "trainer_state.h"

#include <math.h>

/* ---- files within epochs --------------------------------------------------------------------------------- */

/* 3 batches an epoch, 2 epochs; a clock that goes on by a second with each batch. */
static const struct {
    uint64_t every;
    double seconds;
    const char *text;
} saves[] = {
    {2, 0,
     "begin1 t0,1 t2,3 save(last) t4 epoch1 save(last) "
     "begin2 t0,1 save(last) t2,3 t4 epoch2 save(last) "},
    {3, 0,
     "begin1 t0,1 t2,3 t4 epoch1 save(last) "
     "begin2 t0,1 t2,3 t4 epoch2 save(last) "},
    {100, 0, "begin1 t0,1 t2,3 t4 epoch1 save(last) begin2 t0,1 t2,3 t4 epoch2 save(last) "},
    {0, 100, "begin1 t0,1 t2,3 t4 epoch1 save(last) begin2 t0,1 t2,3 t4 epoch2 save(last) "},
    {0, 2,
     "begin1 t0,1 t2,3 save(last) t4 epoch1 save(last) "
     "begin2 t0,1 t2,3 save(last) t4 epoch2 save(last) "},
    {0, 0.5,
     "begin1 t0,1 save(last) t2,3 save(last) t4 epoch1 save(last) "
     "begin2 t0,1 save(last) t2,3 save(last) t4 epoch2 save(last) "},
    {1, 2,
     "begin1 t0,1 save(last) t2,3 save(last) t4 epoch1 save(last) "
     "begin2 t0,1 save(last) t2,3 save(last) t4 epoch2 save(last) "},
};

static double batches(void *user) {
    ck_assert_ptr_eq(user, &fit_seen);
    return (double)fit_seen.loads;
}

/* In order, and with a file. */
static void begin_in_order(size_t samples, size_t validation, size_t batch, uint64_t epochs) {
    fit_begin(samples, validation, batch, epochs);
    fit.options.shuffle = 0;
    fit.options.last = "last";
}

TEST_LOOP("fit_files", saved_within_epochs, LENGTH(saves)) {
    begin_in_order(5, 0, 2, 2);
    fit.options.save_every = saves[_i].every;
    fit.options.save_seconds = saves[_i].seconds;
    fit.callbacks.now = batches;
    ck_ok(fit_goes());
    ck_assert_str_eq(fit_seen.text, saves[_i].text);
}

/* The run is lost at any step; the next one goes on from the file, and ends as one that was never lost. */
TEST("fit_files", on_from_within_an_epoch) {
    fit_begin(7, 3, 2, 2);
    fit.options.last = "last";
    fit.options.save_every = 1;
    fit_run();
    ck_assert_uint_eq(fit.report.steps, 8);
    const uint64_t hash = fake_hash(&fake);
    for (size_t lost = 2; lost <= 8; lost++) {
        fit_forget();
        memset(fit_files, 0, sizeof fit_files);
        fit_seen.fails = "step";
        fit_seen.fails_at = lost;
        ck_status(fit_goes(), MT_EIO);
        fit_end();
        fit_forget();
        fit.options.resume = "last";
        ck_ok(fit_goes());
        fit.options.resume = NULL;
        ck_assert_uint_eq(fit.report.steps, 8);
        ck_assert_uint_eq(fit_seen.loads, 8 - (lost - 1) + 2 * (lost > 4 ? 1 : 2));
        ck_assert(fake_hash(&fake) == hash);
        fit_end();
    }
}

/* The file has what the callback did: a step that it refuses is in no file. */
static mt_status on_step_note(void *user, const mt_fit_report *so_far,
                              const mt_step_report *report) {
    (void)user, (void)so_far, (void)report;
    fit_note("step ");
    return MT_OK;
}

TEST("fit_files", saved_after_the_callback) {
    begin_in_order(4, 0, 2, 1);
    fit.options.save_every = 1;
    fit.callbacks.step = on_step_note;
    fit.trainer = fit_trainer();
    ck_ok(mt_fit(fit.trainer, &fit.source, &fit.options, &fit.callbacks, NULL)); /* no report */
    ck_assert_str_eq(fit_seen.text, "begin1 t0,1 step save(last) t2,3 step epoch1 save(last) ");
}

/* Of several processes one is late: each of them writes its file. */
static double late_others;

static mt_status sum_with_others(void *self, double *values, size_t count) {
    (void)self;
    if (count == 1) values[0] += late_others;
    return count == 1 ? fit_answer("agree") : MT_OK;
}

TEST_LOOP("fit_files", saved_by_all_processes, 2) {
    begin_in_order(6, 0, 2, 1);
    fit.trainer = fit_trainer();
    fit.trainer->backend.agree = sum_with_others;
    fit.options.save_seconds = 1000;
    fit.callbacks.now = batches;
    late_others = _i;
    ck_ok(fit_goes());
    ck_assert_str_eq(fit_seen.text,
                     _i ? "begin1 t0,1 save(last) t2,3 save(last) t4,5 epoch1 save(last) "
                        : "begin1 t0,1 t2,3 t4,5 epoch1 save(last) ");
    fit_seen.fails = "agree";
    fit_seen.fails_at = 1;
    ck_status(fit_goes(), MT_EIO);
}

/* ---- files that cannot be written ------------------------------------------------------------------------ */

static mt_status on_save_text(void *state, const char *path, const char *position) {
    (void)state, (void)position;
    fit_note("save(%s) ", path);
    return fit_answer("save");
}

static char logged[256];

static void keep_line(void *user, mt_log_level level, const char *text) {
    (void)user;
    ck_assert_int_eq(level, MT_LOG_WARNING);
    snprintf(logged, sizeof logged, "%s", text);
}

/* A save that fails, of two epochs of two batches: the second and the fourth are of an epoch's end. */
static const struct {
    uint64_t every;
    double seconds;
    size_t fails_at;
    mt_status status;
    const char *words, *text;
} full[] = {
    {1, 0, 1, MT_OK, "full", "t0,1 s t2,3 s t0,1 s t2,3 s "},
    {1, 0, 2, MT_OK, "full", "t0,1 s t2,3 s t0,1 s t2,3 s "},
    {0, 0.5, 3, MT_OK, "full", "t0,1 s t2,3 s t0,1 s t2,3 s "},
    {1, 0, 3, MT_OK, NULL, "t0,1 s t2,3 s t0,1 s t2,3 s "},
    {1, 0, 4, MT_OK, "full", "t0,1 s t2,3 s t0,1 s t2,3 s s "},
    {0, 0, 1, MT_EIO, "full", "t0,1 t2,3 s "},
    {0, 0, 2, MT_EIO, "full", "t0,1 t2,3 s t0,1 t2,3 s "},
};

static void begin_to_fill(uint64_t every, double seconds) {
    begin_in_order(4, 0, 2, 2);
    fit.options.last = "s";
    fit.options.save_every = every;
    fit.options.save_seconds = seconds;
    fit.callbacks.now = batches;
    fit.callbacks.begin = NULL;
    fit.callbacks.epoch = NULL;
    fit.callbacks.save = on_save_text;
    logged[0] = '\0';
}

/* What was called, without "save(s)" in full. */
static void fit_called(const char *expected) {
    char text[256] = "";
    for (const char *at = fit_seen.text; *at;) {
        const int is_save = strncmp(at, "save(s)", 7) == 0;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%c", is_save ? 's' : *at);
        at += is_save ? 7 : 1;
    }
    ck_assert_str_eq(text, expected);
}

TEST_LOOP("fit_files", a_full_disk_between_saves, LENGTH(full)) {
    begin_to_fill(full[_i].every, full[_i].seconds);
    fit_seen.fails = "save";
    fit_seen.fails_at = full[_i].fails_at;
    fit_seen.words = full[_i].words;
    mt_set_log(keep_line, NULL);
    ck_status(fit_goes(), full[_i].status);
    mt_set_log(NULL, NULL);
    fit_called(full[_i].text);
    ck_assert_int_eq(logged[0] != '\0', full[_i].status == MT_OK);
    if (full[_i].status != MT_OK) return;
    ck_contains(logged, "mt_fit: 's' is not written now, and the next save tries again: ");
    ck_contains(logged, full[_i].words ? full[_i].words : "save has failed and does not say why");
    ck_assert_str_eq(mt_last_error(), "");
}

static mt_status on_save_full(void *state, const char *path, const char *position) {
    (void)on_save_text(state, path, position);
    return mt_set_error(MT_EIO, "no space");
}

/* Never room: all is trained, and the end is an error. */
TEST("fit_files", a_disk_that_stays_full) {
    begin_to_fill(1, 0);
    fit.callbacks.save = on_save_full;
    ck_refused(fit_goes(), MT_EIO, "no space");
    fit_called("t0,1 s t2,3 s t0,1 s t2,3 s s ");
    ck_assert_uint_eq(fit.report.steps, 4);
    ck_assert_int_eq(fit.report.end, MT_FIT_FAILED);
}

static mt_status on_save_refused(void *state, const char *path, const char *position) {
    (void)on_save_text(state, path, position);
    return mt_set_error(MT_EINVAL, "a folder");
}

/* A name that is wrong stays wrong. */
TEST("fit_files", what_is_no_failed_write_ends_the_run) {
    begin_to_fill(1, 0);
    fit.callbacks.save = on_save_refused;
    ck_refused(fit_goes(), MT_EINVAL, "a folder");
    fit_called("t0,1 s ");
}

/* ---- a number of steps ----------------------------------------------------------------------------------- */

/* 3 batches an epoch, 3 epochs. */
static const struct {
    uint64_t steps;
    const char *text;
    uint64_t epoch, epochs_done;
} bounds[] = {
    {1, "begin1 t0,1 v0 epoch1+! save(last) ", 1, 0},
    {3, "begin1 t0,1 t2,3 t4 v0 epoch1+! save(last) ", 1, 1},
    {4, "begin1 t0,1 t2,3 t4 epoch1 save(last) begin2 t0,1 v0 epoch2+! save(last) ", 2, 1},
    {100,
     "begin1 t0,1 t2,3 t4 epoch1 save(last) begin2 t0,1 t2,3 t4 epoch2 save(last) "
     "begin3 t0,1 t2,3 t4 v0 epoch3+! save(last) ",
     3, 3},
};

static mt_status on_part(void *user, const mt_fit_report *at, const mt_epoch_report *report) {
    (void)user, (void)report;
    fit_note("epoch%llu%s%s ", (unsigned long long)at->epoch, at->evaluated ? "+" : "",
             at->is_best ? "!" : "");
    ck_assert_uint_eq(at->epochs_done, at->epoch - (at->batch < at->batches));
    return MT_OK;
}

TEST_LOOP("fit_files", a_number_of_steps, LENGTH(bounds)) {
    begin_in_order(5, 1, 2, 3);
    fit.options.evaluate_every = 3;
    fit.options.steps = bounds[_i].steps;
    fit.callbacks.epoch = on_part;
    ck_ok(fit_goes());
    ck_assert_str_eq(fit_seen.text, bounds[_i].text);
    ck_assert_uint_eq(fit.report.steps, bounds[_i].steps < 9 ? bounds[_i].steps : 9);
    ck_assert_uint_eq(fit.report.epoch, bounds[_i].epoch);
    ck_assert_uint_eq(fit.report.epochs_done, bounds[_i].epochs_done);
    ck_assert_int_eq(fit.report.end, MT_FIT_DONE);
    /* As many again: nothing is left, and the file is there all the same. */
    fit_forget();
    fit.options.resume = "last";
    ck_ok(fit_goes());
    ck_assert_str_eq(fit_seen.text, "load(last) save(last) ");
    ck_assert_int_eq(fit.report.end, MT_FIT_DONE);
}

/* In parts of so many steps as in one. */
TEST_LOOP("fit_files", on_from_a_number_of_steps, 4) {
    const uint64_t part = (uint64_t)_i + 1;

    fit_begin(5, 0, 2, 3);
    fit.schedule.kind = MT_SCHEDULE_COSINE;
    fit.options.schedule = &fit.schedule;
    fit_run();
    const uint64_t hash = fake_hash(&fake);
    fit.callbacks.epoch = on_part;
    fit.options.last = "last";
    for (uint64_t steps = part; steps < 9 + part; steps += part) {
        fit.options.steps = steps;
        ck_ok(fit_goes());
        fit.options.resume = "last";
        ck_assert(fake_hash(&fake) == hash || steps < 9);
        fit_end();
    }
}

/* A stop once the steps are made is one before their evaluation. */
TEST("fit_files", stopped_at_its_last_step) {
    begin_in_order(5, 1, 2, 1);
    fit.options.steps = 2;
    fit.callbacks.stop = fit_on_stop;
    fit_seen.stop_after = 2;
    ck_ok(fit_goes());
    ck_assert_str_eq(fit_seen.text, "begin1 t0,1 t2,3 save(last) ");
    ck_assert_int_eq(fit.report.end, MT_FIT_STOPPED);
}

/* No epoch: a file of what there is. */
TEST("fit_files", no_epochs) {
    fit_begin(5, 0, 2, 0);
    fit.schedule.kind = MT_SCHEDULE_COSINE;
    fit.options.schedule = &fit.schedule;
    fit.options.last = "last";
    fit_run();
    ck_assert_str_eq(fit_seen.text, "save(last) ");
    ck_assert_int_eq(fit.report.end, MT_FIT_DONE);
    ck_assert_uint_eq(fit.report.epoch, 0);
}

/* ---- stopped, and on ------------------------------------------------------------------------------------ */

static const struct {
    size_t samples, validation;
    int shuffle, drop_last, spread;
    uint64_t every;
} parts[] = {{11, 0, 1, 0, 1, 1}, {11, 5, 1, 1, 0, 1}, {9, 4, 0, 0, 1, 2}, {8, 1, 1, 0, 1, 3}};

/* Loads and epochs without the marks of files and beginnings, so that two halves are one run. */
static void without_files(const char *text, char *out) {
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, " ") + 1;
        int is_told = strncmp(at, "save(", 5) == 0 || strncmp(at, "load(", 5) == 0 ||
                      strncmp(at, "begin", 5) == 0 || *at == 'v';
        if (!is_told) memcpy(out, at, length);
        if (!is_told) out += length;
        at += length;
    }
    *out = 0;
}

/* Stopped the n-th time that it is asked, and on with a new trainer: the same samples, rates, figures and bits. */
TEST_LOOP("fit_files", stopped_and_on, LENGTH(parts)) {
    static char whole[FIT_TEXT], both[FIT_TEXT], calls[FIT_TEXT];
    double rates[FIT_RATES], before[FIT_RATES];

    fit_begin(parts[_i].samples, parts[_i].validation, 4, 3);
    fit.options.seed = 9;
    fit.options.shuffle = parts[_i].shuffle;
    fit.options.drop_last = parts[_i].drop_last;
    fit.options.evaluate_every = parts[_i].every;
    fit.options.schedule = &fit.schedule;
    fit.schedule.kind = parts[_i].spread ? MT_SCHEDULE_COSINE : MT_SCHEDULE_STEP;
    fit.schedule.step_every = 3;
    fit_run();
    const mt_fit_report first = fit.report;
    const uint64_t hash = fake_hash(&fake);
    without_files(fit_seen.text, whole);
    memcpy(rates, fit_seen.rates, sizeof rates);
    fit.options.last = "last";
    for (size_t n = 0;; n++) {
        fit_forget();
        fit_seen.stop_after = n;
        fit.callbacks.stop = fit_on_stop;
        fit.options.resume = NULL;
        ck_ok(fit_goes());
        fit_end();
        if (fit.report.end == MT_FIT_DONE) break;
        ck_assert_int_eq(fit.report.end, MT_FIT_STOPPED);
        ck_assert_uint_eq(fit_seen.asked, n + 1); /* not asked again */
        ck_assert_uint_eq(fit.report.steps, fake.step);

        size_t rate_count = fit_seen.rate_count, length = fit_seen.length;
        memcpy(both, fit_seen.text, length + 1);
        memcpy(before, fit_seen.rates, sizeof before);
        fit_forget();
        fit.callbacks.stop = NULL;
        fit.options.resume = "last";
        fit_run();
        memcpy(both + length, fit_seen.text, fit_seen.length + 1);
        memcpy(before + rate_count, fit_seen.rates, fit_seen.rate_count * sizeof *before);
        without_files(both, calls);
        ck_assert_str_eq(calls, whole);
        ck_assert_uint_eq(rate_count + fit_seen.rate_count, first.total_steps);
        ck_assert(memcmp(before, rates, first.total_steps * sizeof *rates) == 0);
        ck_assert(fake_hash(&fake) == hash);
        ck_assert_uint_eq(fit.report.steps, first.steps);
        ck_assert_uint_eq(fit.report.best_epoch, first.best_epoch);
        ck_assert(memcmp(&fit.report.best, &first.best, sizeof first.best) == 0);
    }
    ck_assert(fake_hash(&fake) == hash);
}

/* The best one's file is that of the end of its epoch. */
TEST("fit_files", on_from_the_best) {
    fit_begin(8, 4, 4, 4);
    fit.options.best = "best";
    fit_run();
    const uint64_t hash = fake_hash(&fake), best_epoch = fit.report.best_epoch;
    fit_forget();
    fit.options.resume = "best";
    fit_run();
    ck_assert_uint_eq(fit.report.best_epoch, best_epoch);
    ck_assert(fake_hash(&fake) == hash);
}

/* The flag of a signal; and an evaluation that was stopped is none of the next one's figures. */
TEST("fit_files", flag) {
    volatile sig_atomic_t stop = 1;

    fit_begin(4, 6, 2, 1);
    fit.options.last = "last";
    fit.options.stop = &stop;
    ck_ok(fit_goes());
    ck_assert_str_eq(fit_seen.text, "begin1 save(last) ");
    ck_assert_int_eq(fit.report.end, MT_FIT_STOPPED);
    stop = 0;
    fit.callbacks.stop = fit_on_stop;
    fit_seen.stop_after = 5; /* two steps, the evaluation, two of its three batches */
    ck_ok(fit_goes());
    ck_assert_uint_eq(fit.report.batch, 2);
    ck_assert_uint_eq(fit.report.epochs_done, 0);
    fit.options.resume = "last";
    fit_seen.stop_after = SIZE_MAX;
    ck_ok(fit_goes());
    ck_assert_uint_eq(fit_seen.epochs[0].eval_samples, 6);
    ck_assert_uint_eq(fit_seen.epochs[0].samples, 0); /* those of this call */
}

/* A callback may evaluate on its own: that is none of the run's figures. */
static mt_status on_step_evaluate(void *user, const mt_fit_report *so_far,
                                  const mt_step_report *report) {
    (void)user, (void)so_far, (void)report;
    evaluate(fit.trainer, 5, 1);
    return MT_OK;
}

TEST("fit_files", evaluations_of_callbacks) {
    fit_begin(4, 6, 2, 2);
    fit.callbacks.step = on_step_evaluate;
    ck_ok(fit_goes());
    ck_assert_uint_eq(fit_seen.epochs[0].eval_samples, 6);
    ck_assert_uint_eq(fit_seen.epochs[1].eval_samples, 6);
}

/* A batch that the trainer drops is one that is done: the rates and a resume count it. */
static mt_status on_dropped(void *user, const mt_fit_report *so_far, const mt_step_report *report) {
    (void)user;
    ck_assert_uint_eq(report->samples, so_far->batch == 2 ? 0 : 4);
    return MT_OK;
}

TEST("fit_files", dropped) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    fake_options fitting = fits(14);

    fitting.min_micro_batch = 2;
    own.drop_small = 1;
    fit_begin(5, 0, 4, 2);
    fit.callbacks.step = on_dropped;
    fit.trainer = trainer_of(&fitting, &own);
    ck_ok(fit_goes());
    ck_assert_uint_eq(fit.report.steps, 4);
    ck_assert_uint_eq(fake.step, 2);
}

/* More epochs than before, where the rates of those that are done stay the same. */
TEST("fit_files", more_epochs) {
    fit_begin(8, 0, 4, 4);
    fit.options.schedule = &fit.schedule;
    fit_run();
    const uint64_t hash = fake_hash(&fake);
    fit.options.epochs = 2;
    fit.options.last = "last";
    fit_run();
    fit.options.epochs = 4;
    fit.options.resume = "last";
    fit_run();
    ck_assert_uint_eq(fit.report.epochs_done, 4);
    ck_assert(fake_hash(&fake) == hash);
    fit.options.epochs = 1; /* fewer: it is over */
    fit_forget();
    fit_run();
    ck_assert_str_eq(fit_seen.text, "load(last) save(last) ");
    ck_assert_int_eq(fit.report.end, MT_FIT_DONE);
    ck_assert_uint_eq(fit.report.epoch, 4);
}

FIT_SUITE("fit_files")
