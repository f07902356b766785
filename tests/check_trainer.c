/*
 * check_trainer.c - the transaction: order of the calls, weights, reports, evaluation, epochs, what
 * happens when something fails for good. Failures of memory one by one are in check_oom_core.c.
 */
#include "fake_backend.h"
#include "suite.h"

#include <math.h>
#include <memtrain/trainer.h>
#include <pthread.h>
#include <stdio.h>

static fake_backend fake;

static mt_trainer *trainer_with(const fake_options *options, const mt_policy_options *policy) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    mt_trainer *trainer;
    mt_backend seam;

    fake_init(&fake, options);
    seam = fake_seam(&fake);
    own.policy = policy;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    fake_log_clear(&fake);
    return trainer;
}

static mt_batch batch_of(size_t count, uint64_t id) {
    mt_batch batch = {sizeof(batch), NULL, count, id};

    return batch;
}

/* Options whose budget holds chunks of at most m samples. */
static fake_options fits(size_t m) {
    fake_options options = fake_defaults;

    options.budget_bytes = options.resident_bytes + fake_program_peak(&fake_train_program, m);
    return options;
}

static mt_step_report step(mt_trainer *trainer, size_t count, uint64_t id) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_batch batch = batch_of(count, id);

    ck_ok(mt_trainer_step(trainer, &batch, &report));
    ck_assert_uint_eq(report.samples, count);
    return report;
}

/* Ends a test: the fake has nothing to complain about, and nothing is left open. */
static void done(mt_trainer *trainer) {
    mt_trainer_free(trainer);
    ck_assert_msg(fake.complaint == NULL, "%s", fake.complaint);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
}

static void check_log(const char *expected) {
    ck_assert_str_eq(fake_log_text(&fake, FAKE_STEP_KINDS), expected);
    fake_log_clear(&fake);
}

static size_t count_kind(fake_kind kind) {
    size_t count = 0;

    for (size_t i = 0; i < fake.logged; i++) count += fake.log[i].kind == kind;
    return count;
}

/* ---- order of the calls --------------------------------------------------------------------- */

START_TEST(order_plain) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    fake_options options = fits(12);
    mt_trainer *trainer;

    policy.deterministic = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    check_log("begin accumulate(0+2) accumulate(2+4) accumulate(6+9) accumulate(15+9) "
              "accumulate(24+8) apply");
    step(trainer, 32, 2);
    check_log("begin accumulate(0+11) accumulate(11+11) accumulate(22+10) apply");
    step(trainer, 12, 3);
    check_log("begin accumulate(0+12) apply");
    done(trainer);
}
END_TEST

START_TEST(order_discarded_recording) {
    fake_options options = fits(12);
    mt_step_report report;
    mt_trainer *trainer;

    options.normalises_over_batch = 1;
    trainer = trainer_with(&options, NULL);
    report = step(trainer, 24, 1);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 2);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 1);
    ck_assert_uint_eq(count_kind(FAKE_ACCUMULATE), 4);
    ck_assert_uint_eq(report.chunk_count, 2);
    ck_assert_uint_eq(report.discarded, 6);
    fake_log_clear(&fake);
    step(trainer, 24, 2);
    check_log("begin accumulate(0+12) accumulate(12+12) apply");
    done(trainer);
}
END_TEST

START_TEST(order_transient_failure) {
    fake_options options = fits(16);
    mt_trainer *trainer = trainer_with(&options, NULL);

    step(trainer, 32, 1);
    fake_log_clear(&fake);
    fake_fail_kind(&fake, FAKE_ALLOCATION, 15, MT_EDEVMEM);
    ck_assert_uint_eq(step(trainer, 32, 2).retries, 1);
    check_log("begin accumulate(0+16) accumulate!(16+16) rollback "
              "begin accumulate(0+16) accumulate(16+16) apply");
    done(trainer);
}
END_TEST

/* Nothing has begun when begin fails, so nothing is taken back. */
START_TEST(order_begin_fails) {
    mt_batch batch = batch_of(16, 1);
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);

    fake_fail_kind(&fake, FAKE_BEGIN, 1, MT_EIO);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EIO);
    ck_contains(mt_last_error(), "injected: begin");
    check_log("begin!");
    done(trainer);
}
END_TEST

START_TEST(order_apply_fails) {
    mt_batch batch = batch_of(16, 1);
    fake_options options = fake_defaults;
    mt_trainer *trainer;

    options.budget_bytes = 0;
    trainer = trainer_with(&options, NULL);
    fake_fail_kind(&fake, FAKE_APPLY, 1, MT_ETORCH);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ETORCH);
    ck_contains(mt_last_error(), "injected: apply");
    check_log("begin accumulate(0+16) apply! rollback");
    done(trainer);
}
END_TEST

/* The least a backend has: memory, begin, accumulate, rollback, apply. */
START_TEST(order_least_backend) {
    fake_options options = fits(12);
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_batch batch = batch_of(32, 1);
    mt_trainer *trainer;

    options.absent = ~0U;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 10; id++) step(trainer, 32, id);
    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), MT_ENOTSUP);
    ck_ok(mt_trainer_finish(trainer, &run));
    ck_assert_str_eq(run.state_sha256, "");
    ck_assert_uint_eq(run.samples_trained, 320);
    ck_assert_uint_eq(fake.state.updates, 10);
    ck_assert_uint_eq(fake.genuine, 0);
    done(trainer);
}
END_TEST

/* The batch that begin sees is the caller's. */
START_TEST(order_batch_is_passed_on) {
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    mt_batch batch = batch_of(7, 99);

    batch.data = &fake;
    ck_ok(mt_trainer_step(trainer, &batch, NULL));
    ck_assert_ptr_eq(fake.batch_seen.data, &fake);
    ck_assert_uint_eq(fake.batch_seen.count, 7);
    ck_assert_uint_eq(fake.batch_seen.id, 99);
    done(trainer);
}
END_TEST

/* ---- weights and gradients ------------------------------------------------------------------ */

static const double units_table[] = {3, 1, 0, 0, 5, 2.5, 1, 7, 0, 0, 0};

static fake_options with_units(size_t m) {
    fake_options options = fits(m);

    options.units = units_table;
    options.unit_count = 11;
    options.noise = 0;
    return options;
}

static double units_in(size_t first, size_t count) {
    double sum = 0;

    for (size_t i = first; i < first + count; i++) sum += units_table[i % 11];
    return sum;
}

/* Each weight is the chunk's share of the batch's units; they sum to 1. */
START_TEST(weights_are_shares) {
    fake_options options = with_units(5);
    mt_trainer *trainer = trainer_with(&options, NULL);
    double sum = 0;

    step(trainer, 31, 1);
    fake_log_clear(&fake);
    step(trainer, 31, 2);
    for (size_t i = 0; i < fake.logged; i++) {
        const fake_call *call = &fake.log[i];

        if (call->kind != FAKE_ACCUMULATE) continue;
        ck_assert_double_eq_tol(call->weight, units_in(call->first, call->count) / units_in(0, 31),
                                1e-15);
        sum += call->weight;
    }
    ck_assert_double_eq_tol(sum, 1, 1e-12);
    done(trainer);
}
END_TEST

START_TEST(weights_without_units) {
    static const size_t chunks[] = {5, 5, 1};
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    size_t seen = 0;

    ck_ok(mt_trainer_set_chunks(trainer, chunks, 3));
    step(trainer, 11, 1);
    for (size_t i = 0; i < fake.logged; i++)
        if (fake.log[i].kind == FAKE_ACCUMULATE)
            ck_assert_double_eq(fake.log[i].weight, (double)chunks[seen++] / 11.0);
    ck_assert_uint_eq(seen, 3);
    done(trainer);
}
END_TEST

/* A chunk without units has no weight, and a batch without any moves nothing. */
START_TEST(weights_of_no_units) {
    static const size_t chunks[] = {2, 2, 4}, empty[] = {2, 1};
    static const double nothing[] = {0};
    fake_options options = with_units(40);
    mt_trainer *trainer = trainer_with(&options, NULL);
    uint64_t before;

    ck_ok(mt_trainer_set_chunks(trainer, chunks, 3));
    ck_assert(isfinite(step(trainer, 8, 1).loss));
    fake.options.units = nothing;
    fake.options.unit_count = 1;
    memset(fake.state.momentum, 0, sizeof(fake.state.momentum));
    before = fake_hash(&fake);
    ck_ok(mt_trainer_set_chunks(trainer, empty, 2));
    step(trainer, 3, 2);
    ck_assert_uint_ne(fake_hash(&fake), before); /* buffers move, parameters stay finite */
    for (size_t i = 0; i < fake.logged; i++) ck_assert(isfinite(fake.log[i].weight));
    for (int j = 0; j < FAKE_PARAMETERS; j++) ck_assert(isfinite(fake.state.parameters[j]));
    done(trainer);
}
END_TEST

/* Units are counts or sums: no backend means a negative one, or none that is a number. */
START_TEST(weights_of_impossible_units) {
    static const double values[] = {-1, NAN};
    fake_options options = with_units(40);
    mt_batch batch = batch_of(8, 1);
    mt_trainer *trainer;
    uint64_t before;

    options.units = &values[_i];
    options.unit_count = 1;
    trainer = trainer_with(&options, NULL);
    before = fake_hash(&fake);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL);
    ck_assert_uint_eq(fake_hash(&fake), before);
    done(trainer);
}
END_TEST

/* The parameters after one step on 23 samples in k balanced chunks. */
static void parameters_in_chunks(const fake_options *options, size_t k, double *out, double *loss) {
    mt_trainer *trainer = trainer_with(options, NULL);
    size_t chunks[23];
    mt_plan plan;

    ck_ok(mt_plan_balanced(23, k, &plan));
    for (size_t i = 0; i < k; i++) chunks[i] = mt_plan_chunk(&plan, i);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, k));
    *loss = step(trainer, 23, 5).loss;
    memcpy(out, fake.state.parameters, sizeof(fake.state.parameters));
    done(trainer);
}

/* k chunks give the gradient and the loss of the whole batch; with and without units. */
START_TEST(gradients_add_up) {
    fake_options options = _i == 0 ? with_units(40) : fake_defaults;
    double whole[FAKE_PARAMETERS], cut[FAKE_PARAMETERS], whole_loss, loss;

    options.noise = 0;
    parameters_in_chunks(&options, 1, whole, &whole_loss);
    for (size_t k = 2; k <= 23; k++) {
        parameters_in_chunks(&options, k, cut, &loss);
        ck_assert_double_eq_tol(loss, whole_loss, 1e-12);
        for (int j = 0; j < FAKE_PARAMETERS; j++) ck_assert_double_eq_tol(cut[j], whole[j], 1e-13);
    }
}
END_TEST

/* ---- chunks given --------------------------------------------------------------------------- */

START_TEST(given_chunks) {
    static const size_t chunks[] = {1, 7, 2, 6};
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    mt_step_report report;

    ck_ok(mt_trainer_set_chunks(trainer, chunks, 4));
    report = step(trainer, 16, 1);
    check_log("begin accumulate(0+1) accumulate(1+7) accumulate(8+2) accumulate(10+6) apply");
    ck_assert_int_eq(report.reason, MT_PLAN_REPLAY);
    ck_assert_uint_eq(report.chunk_count, 4);
    ck_assert_mem_eq(report.chunks, chunks, sizeof(chunks));
    report = step(trainer, 16, 2); /* used once */
    ck_assert_int_ne(report.reason, MT_PLAN_REPLAY);
    done(trainer);
}
END_TEST

/* Any two sizes teach the model, the larger one first as well. */
START_TEST(given_chunks_teach) {
    static const size_t chunks[] = {9, 7};
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    const mt_policy *policy = mt_trainer_policy(trainer);

    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    step(trainer, 16, 1);
    for (size_t m = 1; m < 40; m++)
        ck_assert_uint_eq(mt_policy_predict_bytes(policy, MT_TRAIN, m),
                          fake_program_peak(&fake_train_program, m));
    done(trainer);
}
END_TEST

/* The caller's array may change after the call, and the last one given counts. */
START_TEST(given_chunks_are_copied) {
    size_t chunks[] = {3, 5};
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);

    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    chunks[0] = 4;
    chunks[1] = 4;
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    chunks[0] = 0;
    step(trainer, 8, 1);
    check_log("begin accumulate(0+4) accumulate(4+4) apply");
    done(trainer);
}
END_TEST

START_TEST(given_chunks_that_do_not_add_up) {
    static const size_t few[] = {4, 4}, overflow[] = {SIZE_MAX, 9};
    mt_batch batch = batch_of(9, 1);
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    uint64_t before = fake_hash(&fake);

    ck_ok(mt_trainer_set_chunks(trainer, few, 2));
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL);
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 0);
    step(trainer, 9, 1); /* forgotten with the step that was refused */
    ck_ok(mt_trainer_set_chunks(trainer, overflow, 2));
    batch.count = 8; /* what the sum is, modulo 2^64 */
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL);
    done(trainer);
}
END_TEST

START_TEST(given_chunks_retry_but_stay) {
    static const size_t chunks[] = {9, 7};
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);

    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    fake_fail_kind(&fake, FAKE_ALLOCATION, 14, MT_EDEVMEM);
    step(trainer, 16, 1);
    check_log("begin accumulate(0+9) accumulate!(9+7) rollback "
              "begin accumulate(0+9) accumulate(9+7) apply");
    done(trainer);
}
END_TEST

START_TEST(given_chunks_that_do_not_fit) {
    static const size_t chunks[] = {30, 2};
    fake_options options = fits(20);
    mt_batch batch = batch_of(32, 1);
    mt_trainer *trainer = trainer_with(&options, NULL);
    uint64_t before = fake_hash(&fake);

    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_uint_eq(fake_hash(&fake), before);
    for (size_t i = 0; i < fake.logged; i++)
        ck_assert(fake.log[i].kind != FAKE_ACCUMULATE || fake.log[i].count == 30);
    step(trainer, 32, 1);
    done(trainer);
}
END_TEST

/* ---- reports -------------------------------------------------------------------------------- */

static double per_sample(size_t samples) {
    return 0.001 + 0.0005 * (double)samples;
}

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
        *seconds += per_sample(call->count);
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

    options.seconds = per_sample;
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

/* ---- small batches, whole batches ------------------------------------------------------------ */

START_TEST(small_batch_is_one_chunk) {
    fake_options options = fits(30);
    mt_trainer *trainer;

    options.min_micro_batch = 8;
    trainer = trainer_with(&options, NULL);
    step(trainer, 64, 1);
    fake_log_clear(&fake);
    step(trainer, 5, 2);
    check_log("begin accumulate(0+5) apply");
    done(trainer);
}
END_TEST

START_TEST(small_batch_is_dropped) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_batch small = batch_of(7, 2);
    fake_options options = fake_defaults;
    mt_trainer *trainer;
    mt_backend seam;
    uint64_t before;

    options.min_micro_batch = 8;
    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    own.drop_small = 1;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    step(trainer, 32, 1);
    before = fake_hash(&fake);
    fake_log_clear(&fake);
    ck_ok(mt_trainer_step(trainer, &small, &report));
    check_log("");
    ck_assert_uint_eq(report.samples, 0);
    ck_assert_uint_eq(report.chunk_count, 0);
    ck_assert_uint_eq(fake_hash(&fake), before);
    step(trainer, 8, 3);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.samples_trained, 40);
    ck_assert_uint_eq(run.steps, 2);
    done(trainer);
}
END_TEST

START_TEST(whole_batch_fits) {
    fake_options options = fits(30);
    mt_trainer *trainer;

    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id < 4; id++) {
        fake_log_clear(&fake);
        step(trainer, 30, id);
        check_log("begin accumulate(0+30) apply");
    }
    done(trainer);
}
END_TEST

START_TEST(whole_batch_does_not_fit) {
    fake_options options = fits(30);
    mt_batch batch = batch_of(31, 1);
    char text[2000];
    mt_trainer *trainer;
    uint64_t before;

    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, NULL);
    before = fake_hash(&fake);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert_uint_le(count_kind(FAKE_BEGIN), 17);
    for (size_t i = 0; i < fake.logged; i++)
        ck_assert(fake.log[i].kind != FAKE_ACCUMULATE || fake.log[i].count == 31);
    ck_assert_uint_gt(mt_trainer_explain(trainer, text, sizeof(text)), 0);
    step(trainer, 30, 2);
    done(trainer);
}
END_TEST

/* Cutting would change the loss, whoever asks for it; and the refusal is over with the step. */
START_TEST(whole_batch_is_not_cut) {
    static const size_t chunks[] = {8, 8}, whole[] = {16};
    fake_options options = fits(30);
    mt_batch batch = batch_of(16, 1);
    mt_trainer *trainer;

    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL);
    check_log("");
    step(trainer, 16, 1);
    ck_ok(mt_trainer_set_chunks(trainer, whole, 1));
    step(trainer, 16, 2);
    done(trainer);
}
END_TEST

/* A loss that couples the samples is another figure in chunks: evaluation does not cut it either. */
START_TEST(whole_batch_is_evaluated_whole) {
    fake_options options = fits(30);
    mt_batch batch = batch_of(16, 1);
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_trainer *trainer;

    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_evaluate(trainer, &batch, &report));
    ck_assert_uint_eq(report.chunk_count, 1);
    batch.count = 4000;
    ck_status(mt_trainer_evaluate(trainer, &batch, &report), MT_EDEVMEM);
    ck_contains(mt_last_error(), "a batch of 4000 samples does not fit");
    done(trainer);
}
END_TEST

START_TEST(whole_batch_against_micro_batch) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    fake_options options = fits(30);
    mt_batch batch = batch_of(16, 1);
    mt_trainer *trainer;
    mt_backend seam;
    mt_status status;

    options.needs_whole_batch = 1;
    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    policy.micro_batch = 4;
    own.policy = &policy;
    status = mt_trainer_new(&seam, &own, &trainer);
    if (status == MT_OK) /* refused here or at the first batch */
        status = mt_trainer_step(trainer, &batch, NULL);
    ck_status(status, MT_EINVAL);
    ck_assert_uint_eq(count_kind(FAKE_ACCUMULATE), 0);
    mt_trainer_free(trainer);
}
END_TEST

/* ---- evaluation ----------------------------------------------------------------------------- */

static mt_eval_report evaluate(mt_trainer *trainer, size_t count, uint64_t id) {
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_batch batch = batch_of(count, id);

    ck_ok(mt_trainer_evaluate(trainer, &batch, &report));
    ck_assert_uint_eq(report.samples, count);
    ck_assert_uint_eq(report.size, sizeof(report));
    return report;
}

static fake_options eval_fits(size_t m) {
    fake_options options = fake_defaults;

    options.budget_bytes = options.resident_bytes + fake_program_peak(&fake_eval_program, m);
    return options;
}

/* Fails each allocation of an evaluation in turn: each sample counts once all the same. */
START_TEST(evaluation_counts_once) {
    fake_options options = eval_fits(9);
    mt_eval_report clean;
    mt_trainer *trainer = trainer_with(&options, NULL);
    uint64_t n, before = fake_hash(&fake);

    clean = evaluate(trainer, 40, 4);
    done(trainer);
    for (n = 1; n < 1000; n++) {
        mt_eval_report report;
        size_t went_through = 0;

        trainer = trainer_with(&options, NULL);
        fake_fail_kind(&fake, FAKE_ALLOCATION, n, MT_EDEVMEM);
        report = evaluate(trainer, 40, 4);
        ck_assert_double_eq_tol(report.loss, clean.loss, 1e-12);
        ck_assert_double_eq_tol(report.metrics[0], clean.metrics[0], 1e-12);
        ck_assert_double_eq_tol(report.metrics[1], clean.metrics[1], 1e-12);
        ck_assert_uint_eq(report.retries, fake.fired);
        for (size_t i = 0; i < fake.logged; i++)
            went_through += fake.log[i].kind == FAKE_EVALUATE && fake.log[i].status == MT_OK;
        ck_assert_uint_eq(report.chunk_count, went_through);
        ck_assert_uint_eq(fake_hash(&fake), before);
        done(trainer);
        if (fake.fired == 0) break;
    }
    ck_assert_uint_gt(n, 20);
}
END_TEST

START_TEST(evaluation_in_its_own_chunks) {
    fake_options options = eval_fits(9);
    mt_trainer *trainer = trainer_with(&options, NULL);
    mt_eval_report report;

    evaluate(trainer, 27, 1);
    fake_log_clear(&fake);
    report = evaluate(trainer, 27, 2);
    check_log("evaluate(0+9) evaluate(9+9) evaluate(18+9)");
    ck_assert_uint_eq(report.chunk_count, 3);
    ck_assert_uint_eq(report.peak_bytes, options.budget_bytes);
    ck_assert_uint_eq(report.retries, 0);
    done(trainer);
}
END_TEST

/* It fits by no means: no sums are handed over, the epoch does not count it. */
START_TEST(evaluation_does_not_fit) {
    fake_options options = eval_fits(1);
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_batch batch = batch_of(6, 1);
    mt_trainer *trainer;

    options.budget_bytes--;
    trainer = trainer_with(&options, NULL);
    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_uint_gt(mt_trainer_explain(trainer, NULL, 0), 0);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.eval_samples, 0);
    ck_assert(isnan(epoch.eval_loss));
    done(trainer);
}
END_TEST

START_TEST(evaluation_fails_otherwise) {
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    mt_batch batch = batch_of(16, 1);

    fake_fail_kind(&fake, FAKE_EVALUATE, 1, MT_EUSER);
    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), MT_EUSER);
    ck_contains(mt_last_error(), "injected: evaluate");
    ck_assert_uint_eq(fake.logged > 0 ? count_kind(FAKE_EVALUATE) : 0, 1);
    evaluate(trainer, 16, 1);
    done(trainer);
}
END_TEST

/* ---- epochs --------------------------------------------------------------------------------- */

START_TEST(epoch_means) {
    fake_options options = with_units(6);
    mt_trainer *trainer;

    options.seconds = per_sample;
    trainer = trainer_with(&options, NULL);
    for (uint64_t number = 1; number <= 3; number++) {
        mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
        double loss = 0, units = 0, metric = 0, eval_loss = 0, seconds = 0;
        size_t samples = 0, peak = 0;

        for (uint64_t i = 0; i < 4; i++) {
            size_t count = 10 + 9 * (size_t)i;
            mt_step_report report = step(trainer, count, 10 * number + i);

            loss += report.loss * units_in(0, count);
            units += units_in(0, count);
            metric += report.metrics[1] * (double)count;
            seconds += report.seconds;
            samples += count;
            peak = report.peak_bytes > peak ? report.peak_bytes : peak;
        }
        for (uint64_t i = 0; i < 2; i++) {
            mt_eval_report report = evaluate(trainer, 12, number + i);

            eval_loss += report.loss * units_in(0, 12);
            seconds += report.seconds;
        }
        ck_ok(mt_trainer_end_epoch(trainer, &epoch));
        ck_assert_uint_eq(epoch.epoch, number);
        ck_assert_uint_eq(epoch.samples, samples);
        ck_assert_uint_eq(epoch.eval_samples, 24);
        ck_assert_double_eq_tol(epoch.loss, loss / units, 1e-12);
        ck_assert_double_eq_tol(epoch.eval_loss, eval_loss / (2 * units_in(0, 12)), 1e-12);
        ck_assert_double_eq_tol(epoch.metrics[1], metric / (double)samples, 1e-12);
        ck_assert_double_eq_tol(epoch.seconds, seconds, 1e-9);
        ck_assert_uint_ge(epoch.peak_bytes, peak);
    }
    done(trainer);
}
END_TEST

START_TEST(epoch_of_nothing) {
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);

    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.epoch, 1);
    ck_assert_uint_eq(epoch.samples, 0);
    ck_assert(isnan(epoch.loss) && isnan(epoch.eval_loss));
    step(trainer, 8, 1);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.epoch, 2);
    ck_assert_uint_eq(epoch.samples, 8);
    ck_assert(isfinite(epoch.loss) && isnan(epoch.eval_loss));
    done(trainer);
}
END_TEST

/* ---- what fails for good -------------------------------------------------------------------- */

static const struct {
    fake_kind kind;
    mt_status status;
} failures[] = {
    {FAKE_MEMORY, MT_EIO},        {FAKE_RESET_PEAK, MT_ETORCH}, {FAKE_BEGIN, MT_ESTATE},
    {FAKE_ACCUMULATE, MT_EUSER},  {FAKE_ACCUMULATE, MT_ETORCH}, {FAKE_ACCUMULATE, MT_ENOMEM},
    {FAKE_ALLOCATION, MT_ETORCH}, {FAKE_APPLY, MT_EUSER},       {FAKE_APPLY, MT_EIO},
    {FAKE_RECORD, MT_ENOTSUP},    {FAKE_UNITS, MT_EINVAL},
};

/* A failure that is no matter of memory: the step is over and undone, its text arrives. */
START_TEST(failure_is_handed_on) {
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    mt_batch batch = batch_of(32, 1);
    uint64_t before = fake_hash(&fake);

    fake_fail_kind(&fake, failures[_i].kind, 1, failures[_i].status);
    ck_status(mt_trainer_step(trainer, &batch, NULL), failures[_i].status);
    ck_contains(mt_last_error(), "injected: ");
    ck_assert_uint_eq(fake.fired, 1);
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert(fake_gradients_zero(&fake));
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
    ck_assert_uint_le(count_kind(FAKE_BEGIN), 1);
    ck_assert_uint_eq(mt_trainer_explain(trainer, NULL, 0), 0); /* not for memory */
    ck_assert_uint_eq(step(trainer, 32, 1).step, 1);
    done(trainer);
}
END_TEST

/* A user's callback stops in the middle of a batch. */
START_TEST(user_stops) {
    fake_options options = fits(6);
    mt_trainer *trainer = trainer_with(&options, NULL);
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_batch batch = batch_of(30, 2);
    uint64_t before;

    step(trainer, 30, 1);
    before = fake_hash(&fake);
    fake_log_clear(&fake);
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 3, MT_EUSER);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EUSER);
    check_log("begin accumulate(0+6) accumulate(6+6) accumulate!(12+6) rollback");
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.steps, 1);
    ck_assert_uint_eq(run.samples_trained, 30);
    ck_assert_uint_eq(run.ooms, 0);
    done(trainer);
}
END_TEST

START_TEST(describe_fails) {
    mt_trainer *trainer;
    mt_backend seam;

    fake_init(&fake, &fake_defaults);
    seam = fake_seam(&fake);
    fake_fail_kind(&fake, FAKE_DESCRIBE, 1, MT_ENOTSUP);
    ck_status(mt_trainer_new(&seam, NULL, &trainer), MT_ENOTSUP);
    ck_assert_ptr_null(trainer);
    ck_contains(mt_last_error(), "injected: describe");
}
END_TEST

static mt_status describe_too_many(void *self, mt_backend_info *out) {
    (void)self;
    out->metric_count = MT_METRICS_MAX + 1;
    return MT_OK;
}

START_TEST(describe_too_many_metrics) {
    mt_trainer *trainer;
    mt_backend seam;

    fake_init(&fake, &fake_defaults);
    seam = fake_seam(&fake);
    seam.describe = describe_too_many;
    ck_status(mt_trainer_new(&seam, NULL, &trainer), MT_EINVAL);
    ck_contains(mt_last_error(), "metric");
}
END_TEST

/* After a failed rollback nothing is done any more, and each refusal says why. */
START_TEST(poisoned) {
    static const size_t chunks[] = {8};
    mt_trainer *trainer = trainer_with(&fake_defaults, NULL);
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_batch batch = batch_of(8, 1);
    size_t calls;

    fake_fail_kind(&fake, FAKE_ACCUMULATE, 1, MT_EDEVMEM);
    fake_fail_kind(&fake, FAKE_ROLLBACK, 1, MT_EIO);
    ck_assert_int_ne(mt_trainer_step(trainer, &batch, NULL), MT_OK);
    calls = fake.logged;
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE);
    ck_contains(mt_last_error(), "injected: rollback");
    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), MT_ESTATE);
    ck_contains(mt_last_error(), "injected: rollback");
    ck_assert_uint_eq(fake.logged, calls);
    if (_i == 1) {
        ck_status(mt_trainer_set_chunks(trainer, chunks, 1), MT_ESTATE);
        ck_status(mt_trainer_end_epoch(trainer, NULL), MT_ESTATE);
        ck_status(mt_trainer_finish(trainer, &run), MT_ESTATE);
        ck_contains(mt_last_error(), "injected: rollback");
    }
    mt_trainer_free(trainer);
}
END_TEST

/* ---- memory runs out for good --------------------------------------------------------------- */

START_TEST(retries_are_bounded) {
    static const unsigned retries[] = {0, 1, 2, 5};
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    fake_options options = fits(14);
    unsigned bound = retries[_i] > 0 ? retries[_i] : 16;
    mt_batch batch = batch_of(32, 2);
    mt_trainer *trainer;
    uint64_t before;

    policy.max_retries = retries[_i];
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    before = fake_hash(&fake);
    fake_log_clear(&fake);
    fake.counted = FAKE_BIT(FAKE_ALLOCATION);
    fake_fail_at(&fake, 1, 1);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_uint_le(count_kind(FAKE_BEGIN), bound + 1);
    ck_assert_uint_ge(count_kind(FAKE_BEGIN), 2);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), count_kind(FAKE_ROLLBACK));
    ck_assert_uint_eq(fake_hash(&fake), before);
    fake_fail_at(&fake, 0, 0);
    step(trainer, 32, 2);
    done(trainer);
}
END_TEST

/* The text names the budget, what is allocated and by whom, what a chunk needs, what would help. */
START_TEST(explained) {
    fake_options options = fits(1);
    mt_batch batch = batch_of(32, 1);
    char text[4000], budget[40], cut[20];
    mt_trainer *trainer;
    size_t length;

    options.budget_bytes--;
    trainer = trainer_with(&options, NULL);
    ck_assert_uint_eq(mt_trainer_explain(trainer, text, sizeof(text)), 0);
    ck_assert_str_eq(text, "");
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    length = mt_trainer_explain(trainer, text, sizeof(text));
    ck_assert_uint_eq(length, strlen(text));
    ck_contains(text, "budget");
    ck_contains(text, mt_format_size(options.budget_bytes, budget, sizeof(budget)));
    ck_contains(text, "parameter");
    ck_contains(text, "gradient");
    ck_contains(text, "optimi");
    ck_contains(text, "fit");
    ck_contains(text, "\n");
    ck_assert_uint_eq(mt_trainer_explain(trainer, cut, sizeof(cut)), length);
    ck_assert_uint_eq(strlen(cut), sizeof(cut) - 1);
    ck_assert_int_eq(strncmp(cut, text, sizeof(cut) - 1), 0);
    fake.options.budget_bytes *= 10;
    step(trainer, 32, 1);
    ck_assert_uint_eq(mt_trainer_explain(trainer, text, sizeof(text)), 0);
    done(trainer);
}
END_TEST

static mt_status describe_adam(void *self, mt_backend_info *out) {
    (void)self;
    out->parameter_bytes = 4000;
    out->optimizer_bytes = 8000;
    return MT_OK;
}

/* What would help depends: on the size that was fixed, on the optimiser, on what is known. */
START_TEST(explained_by_case) {
    static const char *const words[] = {"micro-batch", "optimiser", "not known"};
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    fake_options options = fits(2);
    mt_batch batch = batch_of(32, 1);
    mt_trainer *trainer;
    mt_backend seam;
    char text[4000];

    if (_i == 2) { /* a device with a limit that it does not tell */
        options.device_bytes = options.resident_bytes + 100;
        options.budget_bytes = 0;
    }
    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    seam.describe = describe_adam;
    policy.micro_batch = 8;
    own.policy = &policy;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_uint_gt(mt_trainer_explain(trainer, text, sizeof(text)), 0);
    ck_contains(text, words[_i]);
    done(trainer);
}
END_TEST

/* The budget that the text asks for is the one that suffices, to the byte. */
START_TEST(explained_budget_suffices) {
    fake_options options = fits(40);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_batch batch = batch_of(32, 1);
    size_t enough = options.resident_bytes + fake_program_peak(&fake_train_program, 8);
    char text[4000], number[40];
    mt_trainer *trainer;

    policy.min_micro_batch = 8;
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    fake.options.budget_bytes = enough - 1;
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    mt_trainer_explain(trainer, text, sizeof(text));
    snprintf(number, sizeof(number), "%zu", enough);
    ck_contains(text, number);
    fake.options.budget_bytes = enough;
    step(trainer, 32, 1);
    done(trainer);
}
END_TEST

/* A size that the user fixed is not made smaller behind the user's back. */
START_TEST(fixed_micro_batch_does_not_fit) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    fake_options options = fits(6);
    mt_batch batch = batch_of(32, 1);
    mt_trainer *trainer;
    uint64_t before;

    policy.micro_batch = 8;
    trainer = trainer_with(&options, &policy);
    before = fake_hash(&fake);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert_uint_le(count_kind(FAKE_BEGIN), 17);
    for (size_t i = 0; i < fake.logged; i++)
        ck_assert(fake.log[i].kind != FAKE_ACCUMULATE || fake.log[i].count == 8);
    step(trainer, 6, 2); /* one chunk of 6 */
    done(trainer);
}
END_TEST

/* ---- budgets that change, models that are wrong ---------------------------------------------- */

/* Memory taken by others and given back, between steps: no OOM at all. */
START_TEST(hog_comes_and_goes) {
    fake_options options = fits(20);
    mt_trainer *trainer;
    size_t largest[31];

    options.hog_from = 10;
    options.hog_until = 20;
    options.hog_bytes = 100000;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 30; id++) largest[id] = step(trainer, 64, id).chunks[0];
    ck_assert_uint_eq(fake.genuine, 0);
    for (uint64_t id = 10; id < 20; id++) ck_assert_uint_lt(largest[id], largest[9]);
    ck_assert_uint_eq(largest[30], largest[9]);
    done(trainer);
}
END_TEST

/* A limit of the device below the budget that it tells. */
START_TEST(device_holds_less_than_it_says) {
    fake_options options = fits(40);
    mt_trainer *trainer;

    options.device_bytes = options.resident_bytes + fake_program_peak(&fake_train_program, 13);
    options.no_evidence = _i;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 10; id++) step(trainer, 64, id);
    done(trainer);
}
END_TEST

static const fake_allocation wide_allocations[] = {
    {40000, 100, 2}, {1000, 2000, FAKE_AT_END},  {90000, 9000, 4}, {512, 1500, 9},
    {64, 3000, 6},   {30000, 8000, FAKE_AT_END},
};

/* Another kernel above 10 samples, which the recordings of 2 and 4 do not show. */
START_TEST(kernel_changes_with_the_chunk) {
    fake_options options = fits(25);
    mt_trainer *trainer;

    options.wide.allocations = wide_allocations;
    options.wide.count = 6;
    options.wide_above = 10;
    options.absent = _i == 0 ? 0 : FAKE_BIT(FAKE_RECORD);
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 30; id++) step(trainer, 64, id);
    ck_assert_uint_ge(fake.genuine, 1);
    ck_assert_uint_le(fake.genuine, 8); /* it learns: not one OOM a step */
    done(trainer);
}
END_TEST

/* A recording that is run and taken back, and from which nothing is learnt, is not run for ever. */
START_TEST(nothing_is_learnt_from_the_recording) {
    fake_options options = fits(_i == 0 ? 30 : 12);
    mt_trainer *trainer;

    options.normalises_over_batch = 1;
    options.absent = FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK);
    options.no_peaks = 1;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 10; id++) {
        mt_step_report report = step(trainer, 32, id);

        ck_assert_uint_le(report.discarded, id == 1 ? 200 : 64);
    }
    done(trainer);
}
END_TEST

/* Nothing but the budget is known: no recordings, no peaks, no evidence. */
START_TEST(nothing_is_known) {
    fake_options options = fits(13);
    mt_trainer *trainer;

    options.absent = FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK);
    options.no_peaks = 1;
    options.no_evidence = 1;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 30; id++) step(trainer, 64, id);
    ck_assert_uint_le(fake.genuine, 12);
    done(trainer);
}
END_TEST

/* ---- cache ---------------------------------------------------------------------------------- */

START_TEST(cache_every) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_trainer *trainer;

    policy.clear_every = 3;
    trainer = trainer_with(&fake_defaults, &policy);
    for (uint64_t id = 1; id <= 31; id++) step(trainer, 16, id);
    ck_assert_uint_eq(count_kind(FAKE_EMPTY_CACHE), 10);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.clears, 10);
    done(trainer);
}
END_TEST

START_TEST(cache_never) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    fake_options options = fits(14);
    mt_trainer *trainer;

    policy.clear_every = MT_CLEAR_NEVER;
    policy.eval_clear_every = MT_CLEAR_NEVER;
    options.cache_keeps_bytes = 30000;
    trainer = trainer_with(&options, &policy);
    for (uint64_t id = 1; id <= 20; id++) {
        step(trainer, 32, id);
        evaluate(trainer, 16, id);
    }
    ck_assert_uint_eq(count_kind(FAKE_EMPTY_CACHE), 0);
    done(trainer);
}
END_TEST

/* On evidence, at no more than 1 % of the time. */
START_TEST(cache_automatic) {
    fake_options options = fits(14);
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_trainer *trainer;

    options.cache_keeps_bytes = 30000;
    options.seconds = per_sample;
    options.clear_seconds = 0.004;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 200; id++) step(trainer, 32, id);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_gt(fake.clears, 2);
    ck_assert_double_le((double)fake.clears * 0.004, 0.01 * run.seconds + 0.004);
    done(trainer);
}
END_TEST

/* ---- two at once ---------------------------------------------------------------------------- */

static fake_backend fakes[2];

static void *trainer_thread(void *argument) {
    fake_backend *own = argument;
    mt_backend seam = fake_seam(own);
    mt_trainer *trainer = NULL;
    mt_status status = mt_trainer_new(&seam, NULL, &trainer);

    for (uint64_t id = 1; id <= 300 && status == MT_OK; id++) {
        mt_batch batch = batch_of(32, id);

        if (id % 10 == 0) fake_fail_kind(own, FAKE_ALLOCATION, 3, MT_EDEVMEM);
        status = mt_trainer_step(trainer, &batch, NULL);
        if (status == MT_OK) status = mt_trainer_evaluate(trainer, &batch, NULL);
    }
    mt_trainer_free(trainer);
    return status == MT_OK ? own : NULL;
}

/* Two trainers in two threads go their way as if alone. */
START_TEST(two_threads) {
    fake_options options = fits(14);
    pthread_t threads[2];
    void *result;

    for (int i = 0; i < 2; i++) {
        fake_init(&fakes[i], &options);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, trainer_thread, &fakes[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], &result), 0);
        ck_assert_ptr_eq(result, &fakes[i]);
    }
    fake_init(&fake, &options);
    ck_assert_ptr_nonnull(trainer_thread(&fake));
    ck_assert_uint_eq(fake_hash(&fakes[0]), fake_hash(&fake));
    ck_assert_uint_eq(fake_hash(&fakes[1]), fake_hash(&fake));
}
END_TEST

static Suite *suite_trainer(void) {
    Suite *suite = suite_create("trainer");
    TCase *order = suite_case(suite, "order"), *weights = suite_case(suite, "weights"),
          *given = suite_case(suite, "given"), *report = suite_case(suite, "report"),
          *cut = suite_case(suite, "cut"), *eval = suite_case(suite, "eval"),
          *failure = suite_case(suite, "failure"), *memory = suite_case(suite, "memory"),
          *cache = suite_case(suite, "cache"), *threads = suite_case(suite, "threads"),
          *endless = suite_case(suite, "endless");

    tcase_add_test(order, order_plain);
    tcase_add_test(order, order_discarded_recording);
    tcase_add_test(order, order_transient_failure);
    tcase_add_test(order, order_begin_fails);
    tcase_add_test(order, order_apply_fails);
    tcase_add_test(order, order_least_backend);
    tcase_add_test(order, order_batch_is_passed_on);
    tcase_add_test(weights, weights_are_shares);
    tcase_add_test(weights, weights_without_units);
    tcase_add_test(weights, weights_of_no_units);
    tcase_add_loop_test(weights, weights_of_impossible_units, 0, 2);
    tcase_add_loop_test(weights, gradients_add_up, 0, 2);
    tcase_add_test(given, given_chunks);
    tcase_add_test(given, given_chunks_teach);
    tcase_add_test(given, given_chunks_are_copied);
    tcase_add_test(given, given_chunks_that_do_not_add_up);
    tcase_add_test(given, given_chunks_retry_but_stay);
    tcase_add_test(given, given_chunks_that_do_not_fit);
    tcase_add_test(report, reports_add_up);
    tcase_add_test(report, report_loss_and_metrics);
    tcase_add_test(report, report_predictions);
    tcase_add_test(report, report_skipped);
    tcase_add_test(report, report_of_finish);
    tcase_add_test(report, report_of_an_older_caller);
    tcase_add_test(cut, small_batch_is_one_chunk);
    tcase_add_test(cut, small_batch_is_dropped);
    tcase_add_test(cut, whole_batch_fits);
    tcase_add_test(cut, whole_batch_does_not_fit);
    tcase_add_test(cut, whole_batch_is_not_cut);
    tcase_add_test(cut, whole_batch_against_micro_batch);
    tcase_add_test(cut, whole_batch_is_evaluated_whole);
    tcase_add_test(eval, evaluation_counts_once);
    tcase_add_test(eval, evaluation_in_its_own_chunks);
    tcase_add_test(eval, evaluation_does_not_fit);
    tcase_add_test(eval, evaluation_fails_otherwise);
    tcase_add_test(eval, epoch_means);
    tcase_add_test(eval, epoch_of_nothing);
    tcase_add_loop_test(failure, failure_is_handed_on, 0, LENGTH(failures));
    tcase_add_test(failure, user_stops);
    tcase_add_test(failure, describe_fails);
    tcase_add_test(failure, describe_too_many_metrics);
    tcase_add_loop_test(failure, poisoned, 0, 2);
    tcase_add_loop_test(memory, retries_are_bounded, 0, 4);
    tcase_add_test(memory, explained);
    tcase_add_loop_test(memory, explained_by_case, 0, 3);
    tcase_add_test(memory, explained_budget_suffices);
    tcase_add_test(memory, fixed_micro_batch_does_not_fit);
    tcase_add_test(memory, hog_comes_and_goes);
    tcase_add_loop_test(memory, device_holds_less_than_it_says, 0, 2);
    tcase_add_loop_test(memory, kernel_changes_with_the_chunk, 0, 2);
    tcase_add_test(memory, nothing_is_known);
    tcase_add_test(cache, cache_every);
    tcase_add_test(cache, cache_never);
    tcase_add_test(cache, cache_automatic);
    tcase_add_test(threads, two_threads);
    tcase_set_timeout(endless, 5);
    tcase_add_loop_test(endless, nothing_is_learnt_from_the_recording, 0, 2);
    return suite;
}

int main(void) {
    return suite_run(suite_trainer());
}
