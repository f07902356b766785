/*
 * check_ex_means.c - means over all batches of an evaluation, from the means of each.
 */
#include "suite.h"
#include "means.h"

#include <math.h>

static mt_eval_report batch(size_t samples, double loss, double first, double second) {
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    report.samples = samples;
    report.loss = loss;
    report.metrics[0] = first;
    report.metrics[1] = second;
    report.peak_bytes = 100 * samples;
    report.chunk_count = 1;
    return report;
}

/* Two batches of 1 and 3 samples, with 10 and 2 units: sums by hand. */
static const struct {
    int over[2];
    double metrics[2]; /* over both */
} cases[] = {
    /* 0.5 x 1 + 0.25 x 3 over 4, and 8 x 1 + 4 x 3 over 4 */
    {{MT_OVER_SAMPLES, MT_OVER_SAMPLES}, {1.25 / 4, 5}},
    /* 0.5 x 10 + 0.25 x 2 over 12 */
    {{MT_OVER_UNITS, MT_OVER_SAMPLES}, {5.5 / 12, 5}},
    /* IoU: intersections of 0.5 x 8 and 0.25 x 12 over unions of 8 and 12 */
    {{1, MT_OVER_SAMPLES}, {7.0 / 20, 5}},
    /* unions that are told over units: 80 and 8 */
    {{1, MT_OVER_UNITS}, {42.0 / 88, 88.0 / 12}},
};

static mt_eval_report of_both(const int *over) {
    const mt_backend_info info = {sizeof info, .metric_count = 2, .metric_over = over};
    const mt_eval_report first = batch(1, 2, 0.5, 8), second = batch(3, 4, 0.25, 4);
    ex_means means;
    ex_means_init(&means, &info);
    ex_means_add(&means, &first, 10);
    ex_means_add(&means, &second, 2);
    return ex_means_of(&means);
}

START_TEST(metrics_are_over_what_they_say) {
    const mt_eval_report all = of_both(cases[_i].over);
    for (int i = 0; i < 2; i++)
        ck_assert_double_eq_tol(all.metrics[i], cases[_i].metrics[i], 1e-12);
    ck_assert_double_eq_tol(all.loss, 28.0 / 12, 1e-12); /* over units */
    ck_assert_uint_eq(all.samples, 4);
    ck_assert_uint_eq(all.chunk_count, 2);
    ck_assert_uint_eq(all.peak_bytes, 300);
}
END_TEST

START_TEST(samples_where_nothing_is_said) {
    ck_assert_double_eq_tol(of_both(NULL).metrics[0], 1.25 / 4, 1e-12);
}
END_TEST

/* A batch without a union has no IoU, and is none of the others' business. */
START_TEST(a_batch_of_nothing_adds_nothing) {
    const int over[2] = {1, MT_OVER_SAMPLES};
    const mt_backend_info info = {sizeof info, .metric_count = 2, .metric_over = over};
    const mt_eval_report empty = batch(2, 1, NAN, 0), other = batch(2, 1, 0.5, 6);
    ex_means means;
    ex_means_init(&means, &info);
    ck_assert_double_nan(ex_means_of(&means).loss);
    ex_means_add(&means, &empty, 2);
    ck_assert_double_nan(ex_means_of(&means).metrics[0]);
    ex_means_add(&means, &other, 2);
    ck_assert_double_eq_tol(ex_means_of(&means).metrics[0], 0.5, 1e-12);
}
END_TEST

/* Senseless, but no reason to run for ever. */
START_TEST(metrics_over_each_other) {
    const int over[2] = {1, 0};
    ck_assert(isfinite(of_both(over).metrics[0]));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("ex_means");
    TCase *means = suite_case(suite, "means");

    tcase_add_loop_test(means, metrics_are_over_what_they_say, 0, LENGTH(cases));
    tcase_add_test(means, samples_where_nothing_is_said);
    tcase_add_test(means, a_batch_of_nothing_adds_nothing);
    tcase_add_test(means, metrics_over_each_other);
    return suite_run(suite);
}
