/*
 * check_fit_evaluate.c - evaluations outside of epochs
 */
#include "fit_fixture.h"
#include "suite.h"
#include "trainer_state.h"

#include <math.h>
#include <stddef.h>

/* ---- an evaluation outside of epochs -------------------------------------------------------------------- */

/* Of two batches, of 3 and 1 samples: their units, losses and metrics. */
static struct { double units, loss, metrics[2]; } two[] = {{2, 8, {0.75, 0}}, {10, 20, {0.5, 8}}};

static mt_status evaluated(void *self, const mt_batch *batch, size_t first, size_t count,
                           mt_chunk_result *out) {
    const int i = batch->count == 1;
    (void)self, (void)count;
    if (first > 0) return MT_OK; /* all is in the first chunk */
    out->seconds = 0.25;
    out->peak_bytes = 1 << 20;
    out->units = two[i].units;
    out->loss_sum = two[i].loss;
    for (int m = 0; m < 2; m++) out->metric_sums[m] = two[i].metrics[m];
    return MT_OK;
}

static const struct {
    int over[2], is_told;
    double union_of_first;
    double metrics[2];
} overs[] = {
    {{MT_OVER_SAMPLES, MT_OVER_SAMPLES}, 1, 12, {1.25 / 4, 5}},
    {{MT_OVER_SAMPLES, MT_OVER_SAMPLES}, 0, 12, {1.25 / 4, 5}},
    {{MT_OVER_UNITS, MT_OVER_SAMPLES}, 1, 12, {1.25 / 12, 5}},
    {{1, MT_OVER_SAMPLES}, 1, 12, {1.25 / 20, 5}}, /* IoU: intersections over unions */
    {{1, MT_OVER_UNITS}, 1, 12, {1.25 / 20, 20.0 / 12}},
    {{1, MT_OVER_SAMPLES}, 1, 0, {1.25 / 8, 2}}, /* a batch without a union adds nothing to it */
    {{1, MT_OVER_SAMPLES}, 1, -8, {NAN, 0}},     /* none at all */
    {{1, 0}, 1, 12, {1.25 / 20, 16}},            /* over each other: senseless, and an end */
};

TEST_LOOP("fit_evaluate", means_of_a_source, LENGTH(overs)) {
    mt_eval_report report = MT_EVAL_REPORT_INIT;

    fit_begin(1, 4, 3, 1);
    fit.trainer = fit_scripted_trainer();
    fit.trainer->backend.evaluate = evaluated;
    fit.trainer->info.metric_over = overs[_i].is_told ? overs[_i].over : NULL;
    two[0].metrics[1] = overs[_i].union_of_first;
    for (int twice = 0; twice < 2; twice++) {
        fit_forget();
        ck_ok(mt_fit_evaluate(fit.trainer, &fit.validation, &fit.options, NULL, &report));
        ck_assert_str_eq(fit_seen.text, "v0,1,2 v3 ");
        ck_assert_uint_eq(report.samples, 4);
        ck_assert_double_eq_tol(report.loss, 28.0 / 12, 1e-12); /* over units */
        ck_assert_double_eq(report.seconds, 0.5);               /* of two batches */
        /* An epoch that is under way has none of it. */
        ck_assert_double_eq(fit.trainer->epoch_seconds, 0);
        ck_assert_uint_eq(fit.trainer->epoch_peak_bytes, 0);
        for (int m = 0; m < 2; m++)
            ck_assert(isnan(overs[_i].metrics[m])
                          ? isnan(report.metrics[m])
                          : fabs(report.metrics[m] - overs[_i].metrics[m]) < 1e-12);
    }
}

/* In an epoch it is none of the epoch's figures, and may be in a callback. */
static mt_status on_step_test(void *user, const mt_fit_report *so_far,
                              const mt_step_report *report) {
    mt_source source = fit_source(5, "w");
    mt_eval_report out = MT_EVAL_REPORT_INIT;
    (void)user, (void)so_far, (void)report;
    ck_ok(mt_fit_evaluate(fit.trainer, &source, NULL, NULL, &out));
    ck_assert_uint_eq(out.samples, 5);
    return MT_OK;
}

TEST("fit_evaluate", apart_from_the_epoch) {
    fit_begin(4, 6, 2, 2);
    fit.callbacks.step = on_step_test;
    fit.options.validation = NULL;
    ck_ok(fit_goes());
    ck_assert_uint_eq(fit_seen.epochs[1].eval_samples, 0);
    fit.options.validation = &fit.validation;
    ck_ok(fit_goes());
    ck_assert_uint_eq(fit_seen.epochs[2].eval_samples, 6);
}

TEST("fit_evaluate", a_stopped_evaluation) {
    mt_eval_report report = MT_EVAL_REPORT_INIT;

    fit_begin(1, 6, 2, 1);
    fit.trainer = fit_trainer();
    fit.callbacks.stop = fit_on_stop;
    fit_seen.stop_after = 2;
    ck_ok(mt_fit_evaluate(fit.trainer, &fit.validation, &fit.options, &fit.callbacks, &report));
    ck_assert_uint_eq(report.samples, 4);
    fit_seen.stop_after = 0;
    ck_ok(mt_fit_evaluate(fit.trainer, &fit.validation, &fit.options, &fit.callbacks, &report));
    ck_assert_uint_eq(report.samples, 0);
    ck_assert_double_nan(report.loss);
    fit_seen.stop_after = SIZE_MAX;
    fit_seen.fails = "load";
    fit_seen.fails_at = 1;
    ck_status(mt_fit_evaluate(fit.trainer, &fit.validation, &fit.options, &fit.callbacks, &report),
              MT_EIO);
}

TEST("fit_evaluate", an_evaluation_is_refused) {
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    const mt_source *source = &fit.validation;

    fit_begin(1, 6, 0, 1);
    fit.trainer = fit_trainer();
    ck_status(mt_fit_evaluate(NULL, source, NULL, NULL, &report), MT_EINVAL);
    ck_refused(mt_fit_evaluate(fit.trainer, NULL, NULL, NULL, &report), MT_EINVAL,
               "source is NULL");
    ck_refused(mt_fit_evaluate(fit.trainer, source, NULL, NULL, NULL), MT_EINVAL, "report is NULL");
    ck_refused(mt_fit_evaluate(fit.trainer, source, &fit.options, NULL, &report), MT_EINVAL,
               "options->batch is 0; at least 1");
    report.size = 1;
    ck_refused(mt_fit_evaluate(fit.trainer, source, NULL, NULL, &report), MT_EINVAL,
               "report->size is not set");
    report.size = offsetof(mt_eval_report, metrics); /* of an earlier version: no more is written */
    report.metrics[0] = 77;
    ck_ok(mt_fit_evaluate(fit.trainer, source, NULL, NULL, &report));
    ck_assert(report.metrics[0] == 77 && report.samples == 6);
    fit.trainer->backend.evaluate = NULL;
    ck_status(mt_fit_evaluate(fit.trainer, source, NULL, NULL, &report), MT_ENOTSUP);
}

FIT_SUITE("fit_evaluate")
