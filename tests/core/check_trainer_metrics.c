/*
 * check_trainer_metrics.c - what metrics are divided by: samples, units, or another metric's sum; the
 * same over chunks of any size, in training, evaluation and over an epoch.
 */
#include "trainer_tests.h"

static const int *over; /* of the trainer that is being made */
static mt_backend real;

static mt_status describe(void *self, mt_backend_info *out) {
    mt_status status = real.describe(self, out);

    out->metric_over = over;
    return status;
}

static mt_status trainer_over(const int *metric_over) {
    mt_backend seam;

    options = with_units(40);
    seam = real = new_seam();
    seam.describe = describe;
    over = metric_over;
    return mt_trainer_new(&seam, NULL, &trainer);
}

/* Sums of the two metrics over a batch, from a trainer that divides by samples. */
static void sums_of(size_t count, double *out) {
    mt_eval_report report;

    ck_ok(trainer_over(NULL));
    report = evaluate(trainer, count, 1);
    for (int i = 0; i < FAKE_METRICS; i++) out[i] = report.metrics[i] * (double)count;
    end_trainer();
}

static const struct {
    int over[FAKE_METRICS];
} cases[] = {
    {{MT_OVER_SAMPLES, MT_OVER_SAMPLES}},
    {{MT_OVER_UNITS, MT_OVER_SAMPLES}},
    {{1, MT_OVER_UNITS}},
    {{0, 0}},
};

static double expected(const double *sums, size_t count, int metric, int by) {
    if (by == MT_OVER_UNITS) return sums[metric] / units_in(0, count);
    return sums[metric] / (by < 0 ? (double)count : sums[by]);
}

TEST_LOOP("means", divided, LENGTH(cases)) {
    double sums[FAKE_METRICS];
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_eval_report report;

    sums_of(30, sums);
    ck_ok(trainer_over(cases[_i].over));
    report = evaluate(trainer, 30, 1);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    for (int i = 0; i < FAKE_METRICS; i++) {
        double value = expected(sums, 30, i, cases[_i].over[i]);

        ck_assert_double_eq_tol(report.metrics[i], value, 1e-12);
        ck_assert_double_eq_tol(epoch.eval_metrics[i], value, 1e-12);
    }
}

TEST_LOOP("means", refused, 3) {
    static const int wrong[][FAKE_METRICS] = {{2, -1}, {-1, -3}, {-1, 7}};

    ck_refused(trainer_over(wrong[_i]), MT_EINVAL, "metric_over[");
}

/* ---- sums that look like means ------------------------------------------------------------------- */

/* The first metric of each chunk, from the number of samples that are right. */
static double (*metric)(double right, size_t count);

static double mean_of(double right, size_t count) {
    return (double)(float)(right / (double)count);
}
static double number_of(double right, size_t count) {
    (void)count;
    return right;
}
static double real_sum_of(double right, size_t count) {
    return right * 0.0071 + 0.0003 * (double)count;
}
static double half_points_of(double right, size_t count) {
    (void)count;
    return right / 2;
}
static double nothing_of(double right, size_t count) {
    (void)right;
    (void)count;
    return 0;
}

static void change(size_t count, mt_chunk_result *out) {
    out->metric_sums[0] = metric(out->metric_sums[0], count);
}

static mt_status accumulate(void *self, size_t first, size_t count, double weight,
                            mt_chunk_result *out) {
    mt_status status = real.accumulate(self, first, count, weight, out);

    change(count, out);
    return status;
}

static mt_status run_evaluation(void *self, const mt_batch *batch, size_t first, size_t count,
                                mt_chunk_result *out) {
    mt_status status = real.evaluate(self, batch, first, count, out);

    change(count, out);
    return status;
}

static const struct {
    double (*metric)(double right, size_t count);
    size_t samples; /* of a batch */
    int lines;
} looks[] = {
    {mean_of, 64, 1},     {mean_of, 12, 0},        {number_of, 64, 0},
    {real_sum_of, 64, 0}, {half_points_of, 64, 0}, {nothing_of, 64, 0},
};

/* Once, in training or evaluation; small batches tell nothing, and honest sums of any kind are never told. */
TEST_LOOP("means", means_are_told, LENGTH(looks)) {
    options = fits(60);
    metric = looks[_i].metric;
    mt_set_log(keep_log, NULL);
    for (uint64_t seed = 1; seed <= (looks[_i].lines ? 1 : 100); seed++) {
        mt_backend seam;

        options.seed = seed;
        seam = real = new_seam();
        seam.accumulate = accumulate;
        seam.evaluate = run_evaluation;
        ck_ok(mt_trainer_new(&seam, NULL, &trainer));
        for (uint64_t id = 1; id <= 10; id++) {
            step(trainer, looks[_i].samples, 1000 * seed + id);
            evaluate(trainer, looks[_i].samples, 1000 * seed + id + 100);
        }
        end_trainer();
    }
    ck_assert_msg(log_lines == looks[_i].lines, "%d lines: %s", log_lines, logged);
    if (log_lines) ck_contains(logged, "metric 'positive' looks like a mean: it is 0.");
    if (log_lines) ck_contains(logged, "metrics are sums over a chunk's samples");
}

TRAINER_SUITE("trainer_metrics")
