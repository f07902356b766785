/*
 * check_trainer_report.c - what a step and a run report agrees with what was done.
 */
#include "suite.h"
#include "trainer_tests.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    ck_assert_double_eq(report->lr, 0.05);
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
TEST("report", reports_add_up) {
    mt_run_report run = MT_RUN_REPORT_INIT;
    size_t trained = 0, discarded = 0, through = 0, all = 0, peak = 0;
    size_t smallest = SIZE_MAX, largest = 0;
    double seconds = 0, in_log = 0;
    unsigned retries = 0;

    options = fits(14);
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
    log_work(&through, &all, &in_log);
    ck_assert_uint_eq(retries, 6);
    ck_assert_double_eq_tol(seconds, in_log, 1e-9);
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
}

TEST("report", report_loss_and_metrics) {
    mt_step_report report;
    mt_batch batch = batch_of(21, 3);
    mt_chunk_result whole = {.size = sizeof(whole)};

    options = with_units(5);
    trainer = trainer_with(&options, NULL);
    mt_backend seam = fake_seam(&fake);
    fake.options.budget_bytes = 0; /* for this one look at the whole batch */
    ck_ok(seam.evaluate(&fake, &batch, 0, 21, &whole));
    fake.options.budget_bytes = options.budget_bytes;
    report = step(trainer, 21, 3);
    ck_assert_double_eq_tol(report.loss, whole.loss_sum / whole.units, 1e-12);
    ck_assert_double_eq_tol(report.metrics[0], whole.metric_sums[0] / 21, 1e-12);
    ck_assert_double_eq_tol(report.metrics[1], whole.metric_sums[1] / 21, 1e-12);
}

/* The peak that is predicted is the one that is seen. */
TEST("report", report_predictions) {
    options = fits(14);
    trainer = trainer_with(&options, NULL);
    step(trainer, 32, 1);
    for (uint64_t id = 2; id < 6; id++) {
        mt_step_report report = step(trainer, 32, id);

        ck_assert_uint_eq(report.predicted_peak_bytes, report.peak_bytes);
    }
    ck_assert_uint_eq(mt_policy_predict_bytes(mt_trainer_policy(trainer), MT_TRAIN, 9),
                      fake_program_peak(&fake_train_program, 9));
}

/* A step that the scaler skipped counts, and is marked. */
TEST("report", report_skipped) {
    mt_run_report run = MT_RUN_REPORT_INIT;

    options.skip_step = 2;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 3; id++) ck_assert_int_eq(step(trainer, 8, id).skipped, id == 2);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.samples_trained, 24);
    ck_assert_uint_eq(run.steps, 3);
    ck_assert_uint_eq(fake.state.updates, 2);
}

/*
 * A loss that is not finite takes the step back: no update, and the epoch's mean stays a number. The update is made
 * where that is asked for. A loss scaler, which looks at gradients, changes nothing of that.
 */
TEST_LOOP("report", report_not_finite, 3) {
    int is_skipped = _i != 1;
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_step_report report;
    uint64_t before;

    own.apply_not_finite = _i == 1;
    options.scales_loss = _i == 2;
    trainer = trainer_of(&options, &own);
    mt_set_log(keep_log, NULL);
    step(trainer, 8, 1);
    before = fake_hash(&fake);
    fake.options.not_finite = 1;
    report = step(trainer, 8, 2);
    ck_assert(isnan(report.loss));
    ck_assert_int_eq(report.skipped, is_skipped ? MT_SKIP_NOT_FINITE : MT_SKIP_NOT);
    ck_assert_uint_eq(report.samples, 8);
    ck_assert_uint_eq(report.discarded, is_skipped ? 8 : 0);
    ck_assert_int_eq(fake_hash(&fake) == before, is_skipped);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), (size_t)is_skipped);
    ck_assert_uint_eq(count_kind(FAKE_APPLY), is_skipped ? 1 : 2);
    ck_assert_int_eq(log_lines, is_skipped);
    if (is_skipped) ck_contains(logged, "step 2 is taken back: its loss is");
    if (is_skipped) ck_contains(logged, "the parameters are as before");
    fake.options.not_finite = 0;
    ck_assert_int_eq(step(trainer, 8, 3).skipped, 0);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_int_eq(isfinite(epoch.loss) != 0, is_skipped);
    ck_assert_uint_eq(epoch.samples, is_skipped ? 16 : 24);
}

/* What apply leaves out is told with the norm of the gradient; a loss scaler's own steps are no news. */
TEST_LOOP("report", report_gradient_not_finite, 2) {
    options.skip_step = 1;
    options.scales_loss = _i;
    trainer = trainer_with(&options, NULL);
    mt_set_log(keep_log, NULL);
    ck_assert_int_eq(step(trainer, 8, 1).skipped, MT_SKIP_APPLY);
    ck_assert_int_eq(log_lines, !_i);
    if (!_i) ck_contains(logged, "the norm of its gradient");
}

/* Where it was to be applied, a loss that is no number is told though a scaler left the update out. */
TEST("report", report_scaler_and_loss_not_finite) {
    own.apply_not_finite = 1;
    options.skip_step = 1;
    options.scales_loss = options.not_finite = 1;
    trainer = trainer_of(&options, &own);
    mt_set_log(keep_log, NULL);
    ck_assert_int_eq(step(trainer, 8, 1).skipped, MT_SKIP_APPLY);
    ck_assert_int_eq(log_lines, 1);
    ck_contains(logged, "step 1 makes no update: its loss is");
    ck_contains(logged, "the parameters are as before");
}

/* Parameters that an earlier step has spoilt are not as before, and the line says so; what cannot be looked at is. */
TEST_LOOP("report", report_spoilt_parameters, 3) {
    options.not_finite = 1;
    options.spoilt = _i == 2 ? -1 : 1;
    options.scales_loss = _i == 1;
    trainer = trainer_with(&options, NULL);
    mt_set_log(keep_log, NULL);
    ck_assert_int_eq(step(trainer, 8, 1).skipped, MT_SKIP_NOT_FINITE);
    ck_assert_int_eq(log_lines, 1);
    ck_contains(logged, _i == 2 ? "the parameters are as before"
                                : "the parameters hold values that are not finite since an "
                                  "earlier step");
    ck_assert_str_eq(mt_last_error(), "");
}

/* Units of chunks that do not add up to the batch's give another gradient: the step fails, and nothing has happened. */
TEST_LOOP("report", units_that_do_not_add_up, 6) {
    static const struct {
        double all, off;
        const char *says; /* NULL: rounding, or right */
    } cases[] = {
        {3, 1, "add up to 100, and those of the batch's 32 samples are 96"},
        {0, 1, "add up to 4, and those of the batch's 32 samples are 0"},
        {0.5, -0.1, "add up to 15.6, and those of the batch's 32 samples are 16"},
        {2.5e5, 1, NULL},
        {0.3, 1e-5, NULL},
        {3, 0, NULL},
    };
    static const size_t eights[] = {8, 8, 8, 8};

    options = fits(40);
    options.units = &cases[_i].all;
    options.unit_count = 1;
    options.units_off = cases[_i].off;
    options.budget_bytes = 0;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 2; id++) {
        ck_ok(mt_trainer_set_chunks(trainer, eights, 4));
        if (cases[_i].says)
            step_refused(32, id, MT_EINVAL, cases[_i].says);
        else
            step(trainer, 32, id);
    }
}

/* Samples 0 to 7 of each batch have no label. */
static const double masked[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 1, 0, 0, 3, 1};

static void train_masked(size_t unit_count, int mean_of_nothing, unsigned absent) {
    options = fits(40);
    options.noise = 0;
    options.units = masked;
    options.unit_count = unit_count;
    options.mean_of_nothing = mean_of_nothing;
    options.absent = absent;
    trainer = trainer_of(&options, NULL);
}

/* Chunks without a label add nothing, though their mean is 0/0: the step is that of the whole batch. */
TEST("report", masked_chunks) {
    static const size_t whole[] = {32}, fours[] = {4, 4, 4, 4, 4, 4, 4, 4};
    mt_step_report reports[2];
    double parameters[2][FAKE_PARAMETERS];
    mt_eval_report evals[2];

    for (int cut = 0; cut < 2; cut++) {
        train_masked(16, 1, 0);
        reports[cut] = step_in(cut ? fours : whole, cut ? 8 : 1, 32, 1);
        evals[cut] = evaluate(trainer, 32, 2);
        memcpy(parameters[cut], fake.state.parameters, sizeof parameters[cut]);
        ck_assert_uint_eq(fake.state.updates, 1);
        end_trainer();
    }
    ck_assert_int_eq(reports[1].skipped, MT_SKIP_NOT);
    ck_assert_double_eq_tol(reports[1].loss, reports[0].loss, 1e-12);
    ck_assert_double_eq_tol(evals[1].loss, evals[0].loss, 1e-12);
    ck_assert(isfinite(reports[1].metrics[0]) && isfinite(evals[1].metrics[0]));
    ck_assert_double_eq_tol(reports[1].metrics[1], reports[0].metrics[1], 1e-12);
    for (int i = 0; i < FAKE_PARAMETERS; i++)
        ck_assert_double_eq_tol(parameters[1][i], parameters[0][i], 1e-12);
}

/*
 * Of a batch without any label there is no update, whatever its chunks are, and one line about it; also where units are
 * not known before the chunks have run.
 */
TEST_LOOP("report", masked_batch, 3) {
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_step_report report;

    train_masked(8, _i == 1, _i == 2 ? FAKE_BIT(FAKE_UNITS) : 0);
    uint64_t before = fake_hash(&fake);
    mt_set_log(keep_log, NULL);
    for (uint64_t id = 1; id <= 3; id++) report = step(trainer, 32, id);
    ck_assert_int_eq(report.skipped, MT_SKIP_NO_UNITS);
    ck_assert(isnan(report.loss));
    ck_assert_int_eq(log_lines, 3);
    ck_contains(logged, "step 3 is skipped: the batch of 32 samples has no units");
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert_uint_eq(count_kind(FAKE_APPLY), 0);
    ck_assert(isnan(evaluate(trainer, 32, 4).loss));
    fake.options.unit_count = 16;
    ck_assert_int_eq(step(trainer, 32, 5).skipped, MT_SKIP_NOT);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.steps, 4);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert(isfinite(epoch.loss));
    ck_assert_uint_eq(epoch.samples, 32);
}

/* A rollback that fails there loses the state as any other does. */
TEST("report", report_not_finite_and_no_rollback) {
    mt_batch batch = batch_of(8, 1);

    options.not_finite = 1;
    trainer = trainer_of(&options, &own);
    fake_fail_kind(&fake, FAKE_ROLLBACK, 1, MT_EIO);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE);
}

TEST("report", report_of_finish) {
    mt_run_report run = MT_RUN_REPORT_INIT;
    char expected[65];

    trainer = trainer_with(&fake_defaults, NULL);
    mt_backend seam = fake_seam(&fake);
    step(trainer, 8, 1);
    ck_ok(seam.state_sha256(&fake, expected));
    ck_ok(mt_trainer_finish(trainer, &run));
    ck_assert_str_eq(run.state_sha256, expected);
}

/* A caller that was built with a shorter struct gets as much as it knows. */
TEST("report", report_of_an_older_caller) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_batch batch = batch_of(8, 1);

    trainer = trainer_with(&fake_defaults, NULL);
    report.size = offsetof(mt_step_report, chunks);
    report.retries = 77;
    ck_ok(mt_trainer_step(trainer, &batch, &report));
    ck_assert_uint_eq(report.size, offsetof(mt_step_report, chunks));
    ck_assert_uint_eq(report.samples, 8);
    ck_assert_uint_eq(report.retries, 77);
    ck_assert_ptr_null(report.chunks);
}

TRAINER_SUITE("trainer_report")
