/*
 * check_trainer_report.c - what a step and a run report agrees with what was done.
 */
#include "suite.h"
#include "trainer_fixture.h"

#include <math.h>

/* ---- reports -------------------------------------------------------------------------------- */

static void check_step_report(const mt_step_report *report, size_t count, uint64_t number) {
    size_t sum = 0;

    ck_assert_uint_eq(report->size, sizeof(*report));
    ck_assert_uint_eq(report->step, number);
    ck_assert_uint_eq(report->samples, count);
    for (size_t i = 0; i < report->chunk_count; i++) sum += report->chunks[i];
    ck_assert_uint_eq(sum, count);
    ck_assert(isfinite(report->loss));
    ck_assert(report->grad_norm > 0);
    ck_assert_uint_le(report->peak_bytes, fake.options.budget_bytes);
    ck_assert_uint_le(report->budget_bytes, fake.options.budget_bytes);
    ck_assert_uint_gt(report->peak_bytes, report->allocated_bytes);
    ck_assert_uint_ge(report->reserved_bytes, report->allocated_bytes);
    ck_assert_uint_eq(report->allocated_bytes, fake.options.resident_bytes);
}

/* Samples and seconds of the chunks in the log, those of steps taken back included. */
static void log_work(size_t *went_through, size_t *all, double *seconds) {
    for (size_t i = 0; i < fake.logged; i++) {
        const fake_call *call = &fake.log[i];

        if (call->kind != FAKE_ACCUMULATE) continue;
        *all += call->count;
        *went_through += call->status == MT_OK ? call->count : 0;
        *seconds += fake_seconds(call->count);
    }
}

/* Thirty steps with faults, a hog and another batch size: all sums agree with the calls. */
START_TEST(reports_add_up) {
    fake_options options = fits(14);
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_trainer *trainer;
    size_t trained = 0, discarded = 0, through = 0, all = 0, peak = 0;
    size_t smallest = SIZE_MAX, largest = 0;
    double seconds = 0, logged = 0;
    unsigned retries = 0;

    options.seconds = fake_seconds;
    options.hog_from = 12;
    options.hog_until = 18;
    options.hog_bytes = 60000;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 30; id++) {
        size_t count = id % 7 == 0 ? 19 : 32;
        mt_step_report report;

        if (id % 5 == 0) fake_fail_kind(&fake, FAKE_ALLOCATION, id, MT_EDEVMEM);
        report = step(trainer, count, id);
        check_step_report(&report, count, id);
        trained += count;
        discarded += report.discarded;
        retries += report.retries;
        seconds += report.seconds;
        peak = report.peak_bytes > peak ? report.peak_bytes : peak;
        for (size_t i = 0; i < report.chunk_count; i++) {
            smallest = report.chunks[i] < smallest ? report.chunks[i] : smallest;
            largest = report.chunks[i] > largest ? report.chunks[i] : largest;
        }
    }
    log_work(&through, &all, &logged);
    ck_assert_uint_eq(retries, 6);
    ck_assert_double_eq_tol(seconds, logged, 1e-9);
    ck_assert_uint_ge(discarded, through - trained);
    ck_assert_uint_le(discarded, all - trained);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.steps, 30);
    ck_assert_uint_eq(run.samples_trained, trained);
    ck_assert_uint_eq(run.samples_discarded, discarded);
    ck_assert_uint_eq(run.ooms, 6);
    ck_assert_uint_eq(run.clears, fake.clears);
    ck_assert_uint_eq(run.peak_bytes, peak);
    ck_assert_uint_eq(run.budget_bytes, options.budget_bytes);
    ck_assert_uint_eq(run.smallest_chunk, smallest);
    ck_assert_uint_eq(run.largest_chunk, largest);
    ck_assert_double_eq_tol(run.seconds, seconds, 1e-9);
    ck_assert_str_eq(run.state_sha256, "");
    done(trainer);
}
END_TEST

START_TEST(report_loss_and_metrics) {
    fake_options options = with_units(5);
    mt_trainer *trainer = trainer_with(&options, NULL);
    mt_step_report report;
    mt_batch batch = batch_of(21, 3);
    mt_chunk_result whole = {.size = sizeof(whole)};
    mt_backend seam = fake_seam(&fake);

    fake.options.budget_bytes = 0; /* for this one look at the whole batch */
    ck_ok(seam.evaluate(&fake, &batch, 0, 21, &whole));
    fake.options.budget_bytes = options.budget_bytes;
    report = step(trainer, 21, 3);
    ck_assert_double_eq_tol(report.loss, whole.loss_sum / whole.units, 1e-12);
    ck_assert_double_eq_tol(report.metrics[0], whole.metric_sums[0] / 21, 1e-12);
    ck_assert_double_eq_tol(report.metrics[1], whole.metric_sums[1] / 21, 1e-12);
    done(trainer);
}
END_TEST

/* The peak that is predicted is the one that is seen. */
START_TEST(report_predictions) {
    fake_options options = fits(14);
    mt_trainer *trainer = trainer_with(&options, NULL);

    step(trainer, 32, 1);
    for (uint64_t id = 2; id < 6; id++) {
        mt_step_report report = step(trainer, 32, id);

        ck_assert_uint_eq(report.predicted_peak_bytes, report.peak_bytes);
    }
    ck_assert_uint_eq(mt_policy_predict_bytes(mt_trainer_policy(trainer), MT_TRAIN, 9),
                      fake_program_peak(&fake_train_program, 9));
    done(trainer);
}
END_TEST

/* A step that the scaler skipped counts, and is marked. */
START_TEST(report_skipped) {
    fake_options options = fake_defaults;
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_trainer *trainer;

    options.skip_step = 2;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 3; id++) ck_assert_int_eq(step(trainer, 8, id).skipped, id == 2);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.samples_trained, 24);
    ck_assert_uint_eq(run.steps, 3);
    ck_assert_uint_eq(fake.state.updates, 2);
    done(trainer);
}
END_TEST

/* Asked for, a loss that is no number takes the step back: no update, and the epoch's mean stays one. */
START_TEST(report_not_finite) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    fake_options options = fake_defaults;
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_step_report report;
    mt_trainer *trainer;
    uint64_t before;

    own.skip_not_finite = _i;
    trainer = trainer_of(&options, &own);
    step(trainer, 8, 1);
    before = fake_hash(&fake);
    fake.options.not_finite = 1;
    report = step(trainer, 8, 2);
    ck_assert(isnan(report.loss));
    ck_assert_int_eq(report.skipped, _i);
    ck_assert_uint_eq(report.samples, 8);
    ck_assert_uint_eq(report.discarded, _i ? 8 : 0);
    ck_assert_int_eq(fake_hash(&fake) == before, _i);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), (size_t)_i);
    fake.options.not_finite = 0;
    ck_assert_int_eq(step(trainer, 8, 3).skipped, 0);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_int_eq(isfinite(epoch.loss) != 0, _i);
    ck_assert_uint_eq(epoch.samples, _i ? 16 : 24);
    done(trainer);
}
END_TEST

/* A rollback that fails there loses the state as any other does. */
START_TEST(report_not_finite_and_no_rollback) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    fake_options options = fake_defaults;
    mt_batch batch = batch_of(8, 1);
    mt_trainer *trainer;

    own.skip_not_finite = options.not_finite = 1;
    trainer = trainer_of(&options, &own);
    fake_fail_kind(&fake, FAKE_ROLLBACK, 1, MT_EIO);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE);
    done(trainer);
}
END_TEST

START_TEST(report_of_finish) {
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    mt_backend seam = fake_seam(&fake);
    char expected[65];

    step(trainer, 8, 1);
    ck_ok(seam.state_sha256(&fake, expected));
    ck_ok(mt_trainer_finish(trainer, &run));
    ck_assert_str_eq(run.state_sha256, expected);
    done(trainer);
}
END_TEST

/* A caller that was built with a shorter struct gets as much as it knows. */
START_TEST(report_of_an_older_caller) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    mt_batch batch = batch_of(8, 1);

    report.size = offsetof(mt_step_report, chunks);
    report.retries = 77;
    ck_ok(mt_trainer_step(trainer, &batch, &report));
    ck_assert_uint_eq(report.size, offsetof(mt_step_report, chunks));
    ck_assert_uint_eq(report.samples, 8);
    ck_assert_uint_eq(report.retries, 77);
    ck_assert_ptr_null(report.chunks);
    done(trainer);
}
END_TEST

static Suite *suite_trainer_report(void) {
    Suite *suite = suite_create("trainer_report");
    TCase *report = suite_case(suite, "report");

    tcase_add_test(report, reports_add_up);
    tcase_add_test(report, report_loss_and_metrics);
    tcase_add_test(report, report_predictions);
    tcase_add_test(report, report_skipped);
    tcase_add_loop_test(report, report_not_finite, 0, 2);
    tcase_add_test(report, report_not_finite_and_no_rollback);
    tcase_add_test(report, report_of_finish);
    tcase_add_test(report, report_of_an_older_caller);
    return suite;
}

int main(void) {
    return suite_run(suite_trainer_report());
}
