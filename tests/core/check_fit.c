/*
 * check_fit.c - the loop on the fake backend: orders, what is called when, rates, the best epoch and patience
 */
#include "fit_fixture.h"
#include "suite.h"

#include <math.h>

/* ---- orders --------------------------------------------------------------------------------------------- */

/* By a program in Python, from the words of the header. */
static const struct {
    uint64_t seed, epoch;
    size_t samples, order[10];
} orders[] = {
    {0, 1, 10, {7, 8, 9, 5, 4, 3, 1, 6, 2, 0}},
    {0, 2, 10, {4, 1, 8, 0, 3, 6, 5, 2, 9, 7}},
    {1, 1, 10, {3, 8, 0, 1, 7, 2, 4, 9, 5, 6}},
    {UINT64_MAX, 3, 7, {0, 4, 2, 1, 5, 3, 6}},
    {0, UINT64_MAX, 5, {3, 2, 4, 0, 1}},
    {42, 1, 1, {0}},
    {0, 1, 0, {0}},
};

TEST_LOOP("fit", an_order, LENGTH(orders)) {
    size_t out[10];
    ck_ok(mt_fit_order(orders[_i].seed, orders[_i].epoch, orders[_i].samples, out));
    for (size_t i = 0; i < orders[_i].samples; i++) ck_assert_uint_eq(out[i], orders[_i].order[i]);
}

TEST("fit", a_long_order) {
    enum { SAMPLES = 100000 };
    static size_t out[SAMPLES];
    static char is_there[SAMPLES];
    uint64_t sum = 0;

    ck_ok(mt_fit_order(7, 5, SAMPLES, out));
    for (size_t i = 0; i < SAMPLES; i++) {
        ck_assert(!is_there[out[i]]);
        is_there[out[i]] = 1;
        sum += i * out[i];
    }
    ck_assert_uint_eq(out[0], 47860);
    ck_assert(sum == UINT64_C(249588731256305));
    ck_refused(mt_fit_order(7, 5, 1, NULL), MT_EINVAL, "out is NULL");
}

/* ---- what is called, in which order ------------------------------------------------------------------ */

static const struct {
    size_t samples, batch;
    uint64_t epochs, every;
    int shuffle, drop_last;
    size_t validation;
    const char *calls;
    uint64_t steps;
} flows[] = {
    {6, 2, 1, 1, 0, 0, 0, "begin1 t0,1 t2,3 t4,5 epoch1 ", 3},
    {5, 2, 1, 1, 0, 0, 0, "begin1 t0,1 t2,3 t4 epoch1 ", 3},
    {5, 2, 2, 1, 0, 1, 0, "begin1 t0,1 t2,3 epoch1 begin2 t0,1 t2,3 epoch2 ", 4},
    {3, 8, 1, 1, 0, 0, 0, "begin1 t0,1,2 epoch1 ", 1},
    {1, 1, 1, 1, 1, 1, 0, "begin1 t0 epoch1 ", 1},
    {10, 4, 2, 1, 1, 0, 0,
     "begin1 t3,8,0,1 t7,2,4,9 t5,6 epoch1 begin2 t9,6,0,5 t3,4,2,1 t8,7 epoch2 ", 6},
    {2, 2, 1, 1, 0, 0, 3, "begin1 t0,1 v0,1 v2 epoch1+! ", 1},
    {1, 4, 1, 1, 0, 0, 6, "begin1 t0 v0,1,2,3 v4,5 epoch1+! ", 1}, /* more than the source has */
    {2, 2, 5, 2, 0, 1, 1,
     "begin1 t0,1 epoch1 begin2 t0,1 v0 epoch2+! begin3 t0,1 epoch3 begin4 t0,1 v0 epoch4+! "
     "begin5 t0,1 v0 epoch5+! ",
     5},
};

TEST_LOOP("fit", a_flow, LENGTH(flows)) {
    fit_begin(flows[_i].samples, flows[_i].validation, flows[_i].batch, flows[_i].epochs);
    fit.options.seed = 1;
    fit.options.shuffle = flows[_i].shuffle;
    fit.options.drop_last = flows[_i].drop_last;
    fit.options.evaluate_every = flows[_i].every;
    fit_run();
    ck_assert_str_eq(fit_seen.text, flows[_i].calls);
    ck_assert_uint_eq(fit.report.steps, flows[_i].steps);
    ck_assert_uint_eq(fit.report.total_steps, flows[_i].steps);
    ck_assert_uint_eq(fit.report.epochs_done, flows[_i].epochs);
    ck_assert_uint_eq(fit.report.epoch, flows[_i].epochs);
    ck_assert_int_eq(fit.report.end, MT_FIT_DONE);
    ck_assert(isnan(fit.report.rate));
    ck_assert_uint_eq(fake.step, flows[_i].steps);
    for (size_t i = 0; flows[_i].validation && i < fit_seen.epoch_count; i++)
        ck_assert_uint_eq(fit_seen.epochs[i].eval_samples,
                          fit_seen.runs[i].evaluated ? flows[_i].validation : 0);
}

/* Nothing but a trainer and a source. */
TEST("fit", with_defaults) {
    size_t order[70];
    char first[16];

    fit_begin(70, 0, 1, 1);
    fit.source.release = NULL;
    fit.trainer = fit_trainer();
    ck_ok(mt_fit(fit.trainer, &fit.source, NULL, NULL, NULL));
    ck_assert_uint_eq(fake.step, 3); /* of 32, 32 and 6 samples */
    ck_ok(mt_fit_order(0, 1, 70, order));
    snprintf(first, sizeof first, "t%zu,%zu,", order[0], order[1]);
    ck_assert(strncmp(fit_seen.text, first, strlen(first)) == 0);
}

TEST("fit", clocks) {
    fit_begin(4, 0, 2, 2);
    fit_seen.clock = 1000;
    fit.callbacks.now = fit_now;
    ck_ok(fit_goes());
    ck_assert(fit.report.seconds == fit_seen.clock - 1000.5);
    ck_assert(fit.report.seconds > 1);
}

/* ---- rates ---------------------------------------------------------------------------------------------- */

TEST_LOOP("fit", some_rates, 5) {
    static const struct {
        mt_schedule_kind kind;
        uint64_t steps, as;
    } rows[] = {{MT_SCHEDULE_CONSTANT, 0, 0},
                {MT_SCHEDULE_COSINE, 0, 6},
                {MT_SCHEDULE_LINEAR, 0, 6},
                {MT_SCHEDULE_COSINE, 4, 4},
                {MT_SCHEDULE_LINEAR, 100, 100}};

    fit_begin(5, 0, 2, 2);
    fit.schedule.kind = rows[_i].kind;
    fit.schedule.steps = rows[_i].steps;
    fit.options.schedule = &fit.schedule;
    fit_run();
    ck_assert_uint_eq(fit_seen.rate_count, 6);
    fit.schedule.steps = rows[_i].as;
    for (size_t i = 0; i < 6; i++)
        ck_assert(fit_seen.rates[i] == mt_schedule_rate(&fit.schedule, i));
    ck_assert(fit.report.rate == fit_seen.rates[5]);
}

/* ---- the best, and patience ---------------------------------------------------------------------------- */

static const struct {
    int metric, maximise;
    uint64_t patience;
    double losses[8];
    uint64_t epochs_done, best_epoch, worse;
    mt_fit_end end;
    size_t saves; /* of the best */
} ends[] = {
    {MT_FIT_LOSS, 0, 0, {5, 4, 3, 2, 1, 9}, 6, 5, 1, MT_FIT_DONE, 5},
    {MT_FIT_LOSS, 0, 2, {5, 4, 6, 7, 1, 1}, 4, 2, 2, MT_FIT_PATIENCE, 2},
    {MT_FIT_LOSS, 0, 2, {5, 4, 6, 3, 4, 2}, 6, 6, 0, MT_FIT_DONE, 4},
    /* As good is not better. */
    {MT_FIT_LOSS, 0, 1, {5, 5, 1, 1, 1, 1}, 2, 1, 1, MT_FIT_PATIENCE, 1},
    {MT_FIT_LOSS, 0, 2, {NAN, NAN, 1, 1, 1, 1}, 2, 0, 2, MT_FIT_PATIENCE, 0},
    {MT_FIT_LOSS, 0, 3, {NAN, 2, INFINITY, -INFINITY, 1, 2}, 6, 5, 1, MT_FIT_DONE, 2},
    {MT_FIT_LOSS, 1, 2, {5, 4, 3, 2, 1, 9}, 3, 1, 2, MT_FIT_PATIENCE, 1},
    {0, 1, 3, {5, 4, 6, 7, 9, 1}, 5, 2, 3, MT_FIT_PATIENCE, 2},
    {0, 0, 6, {5, 4, 6, 7, 9, 1}, 6, 5, 1, MT_FIT_DONE, 4},
    {MT_FIT_LOSS, 0, 1, {1, 0, 1, 1, 1, 1}, 3, 2, 1, MT_FIT_PATIENCE, 2},
    /* What is not a finite number is never the best; a number below 0 may be. */
    {MT_FIT_LOSS, 1, 0, {NAN, -3, INFINITY, -INFINITY, -2, -2}, 6, 5, 1, MT_FIT_DONE, 2},
    {MT_FIT_LOSS, 1, 0, {0, NAN, INFINITY, 0, 0, 0}, 6, 1, 5, MT_FIT_DONE, 1},
    /* The last epoch is over, whatever patience says. */
    {MT_FIT_LOSS, 0, 5, {1, 2, 2, 2, 2, 2}, 6, 1, 5, MT_FIT_DONE, 1},
};

TEST_LOOP("fit", an_end, LENGTH(ends)) {
    double best = ends[_i].best_epoch ? ends[_i].losses[ends[_i].best_epoch - 1] : NAN;

    fit_begin(2, 2, 2, 6);
    fit.trainer = fit_scripted_trainer();
    fit_script = ends[_i].losses;
    fit.options.metric = ends[_i].metric;
    fit.options.maximise = ends[_i].maximise;
    fit.options.patience = ends[_i].patience;
    fit.options.best = "best";
    ck_ok(fit_goes());
    ck_assert_uint_eq(fit.report.epochs_done, ends[_i].epochs_done);
    ck_assert_uint_eq(fit.report.best_epoch, ends[_i].best_epoch);
    ck_assert_uint_eq(fit.report.worse, ends[_i].worse);
    ck_assert_int_eq(fit.report.end, ends[_i].end);
    ck_assert_uint_eq(fit_count_of("save(best)"), ends[_i].saves);
    ck_assert_uint_eq(fit_count_of("!"), ends[_i].saves);
    if (ends[_i].metric >= 0) best = -best;
    ck_assert(isnan(best) ? isnan(fit.report.best) : fit.report.best == best);
}

/* The best is kept over a resume, and so is how long nothing was better. */
TEST("fit", patience_goes_on) {
    static const double losses[] = {3, 2, 4, 5, 1};

    fit_begin(2, 2, 2, 3);
    fit.trainer = fit_scripted_trainer();
    fit_script = losses;
    fit.options.patience = 2;
    fit.options.last = "last";
    ck_ok(fit_goes());
    ck_assert_int_eq(fit.report.end, MT_FIT_DONE);
    fit_end();
    fit.trainer = fit_scripted_trainer();
    fit.options.epochs = 9;
    fit.options.resume = "last";
    ck_ok(fit_goes());
    ck_assert_int_eq(fit.report.end, MT_FIT_PATIENCE);
    ck_assert_uint_eq(fit.report.epochs_done, 4);
    ck_assert_uint_eq(fit.report.best_epoch, 2);
    ck_assert(fit.report.best == 2);
    /* A run that is over stays over, and trains nothing. */
    fake_log_clear(&fake);
    ck_ok(fit_goes());
    ck_assert_int_eq(fit.report.end, MT_FIT_PATIENCE);
    ck_assert_uint_eq(fit.report.epoch, 4);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 0);
}

FIT_SUITE("fit")
