/*
 * check_trainer_metrics.c - what metrics are divided by: samples, units, or another metric's sum; the
 * same over chunks of any size, in training, evaluation and over an epoch.
 */
#include "suite.h"
#include "trainer_fixture.h"

static const int *over; /* of the trainer that is being made */
static mt_backend seam;

static mt_status describe(void *self, mt_backend_info *out) {
    mt_status status = seam.describe(self, out);

    out->metric_over = over;
    return status;
}

static mt_status trainer_over(const int *metric_over, mt_trainer **out) {
    fake_options options = with_units(40);
    mt_backend own;

    fake_init(&fake, &options);
    seam = own = fake_seam(&fake);
    own.describe = describe;
    over = metric_over;
    return mt_trainer_new(&own, NULL, out);
}

/* Sums of the two metrics over a batch, from a trainer that divides by samples. */
static void sums_of(size_t count, double *out) {
    mt_trainer *trainer;
    mt_eval_report report;

    ck_ok(trainer_over(NULL, &trainer));
    report = evaluate(trainer, count, 1);
    for (int i = 0; i < FAKE_METRICS; i++) out[i] = report.metrics[i] * (double)count;
    mt_trainer_free(trainer);
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

START_TEST(divided) {
    double sums[FAKE_METRICS];
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_trainer *trainer;
    mt_eval_report report;

    sums_of(30, sums);
    ck_ok(trainer_over(cases[_i].over, &trainer));
    report = evaluate(trainer, 30, 1);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    for (int i = 0; i < FAKE_METRICS; i++) {
        double value = expected(sums, 30, i, cases[_i].over[i]);

        ck_assert_double_eq_tol(report.metrics[i], value, 1e-12);
        ck_assert_double_eq_tol(epoch.eval_metrics[i], value, 1e-12);
    }
    done(trainer);
}
END_TEST

START_TEST(refused) {
    static const int wrong[][FAKE_METRICS] = {{2, -1}, {-1, -3}, {-1, 7}};
    mt_trainer *trainer;

    ck_status(trainer_over(wrong[_i], &trainer), MT_EINVAL);
    ck_contains(mt_last_error(), "metric_over[");
}
END_TEST

static Suite *suite_metrics(void) {
    Suite *suite = suite_create("trainer_metrics");
    TCase *means = suite_case(suite, "means");

    tcase_add_loop_test(means, divided, 0, LENGTH(cases));
    tcase_add_loop_test(means, refused, 0, 3);
    return suite;
}

int main(void) {
    return suite_run(suite_metrics());
}
