/*
 * check_trainer_step.c - the step as a transaction: order of the calls, weights of the chunks,
 * chunks that are given, two trainers at once. Failures of memory one by one are in
 * check_oom_core.c.
 */
#include "suite.h"
#include "trainer_tests.h"
#include "tuned.h"

#include <math.h>
#include <pthread.h>

/* ---- order of the calls --------------------------------------------------------------------- */

TEST("order", order_plain) {
    options = fits(12);
    policy.deterministic = 1;
    trainer = trainer_with(&options, &policy);
    step_by(32, 1,
            printed("begin accumulate(0+%d) rollback begin accumulate(0+%d) rollback begin "
                    "accumulate(0+11) rollback "
                    "begin accumulate(0+11) accumulate(11+11) accumulate(22+10) apply",
                    FIRST_CHUNK, 2 * FIRST_CHUNK));
    step_by(32, 2, "begin accumulate(0+11) accumulate(11+11) accumulate(22+10) apply");
    step_by(12, 3, "begin accumulate(0+12) apply");
}

TEST("order", order_discarded_recording) {
    mt_step_report report;

    options = fits(12);
    options.normalises_over_batch = 1;
    trainer = trainer_with(&options, NULL);
    report = step(trainer, 24, 1);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 2);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 1);
    for (size_t i = 0; i < report.chunk_count; i++)
        ck_assert_uint_gt(report.chunks[i], FIRST_CHUNK);
    ck_assert_uint_eq(report.discarded, FIRST_CHUNK);
    fake_log_clear(&fake);
    step_by(24, 2, "begin accumulate(0+12) accumulate(12+12) apply");
}

TEST("order", order_transient_failure) {
    options = fits(16);
    trainer = trainer_with(&options, NULL);
    step(trainer, 32, 1);
    fake_log_clear(&fake);
    fake_fail_kind(&fake, FAKE_ALLOCATION, 15, MT_EDEVMEM);
    ck_assert_uint_eq(step(trainer, 32, 2).retries, 1);
    check_log("begin accumulate(0+16) accumulate!(16+16) rollback "
              "begin accumulate(0+16) accumulate(16+16) apply");
}

/* Nothing has begun when begin fails, so nothing is taken back. */
TEST("order", order_begin_fails) {
    trainer = trainer_with(&fake_defaults, NULL);
    fake_fail_kind(&fake, FAKE_BEGIN, 1, MT_EIO);
    step_refused(16, 1, MT_EIO, "injected: begin");
    check_log("begin!");
}

TEST("order", order_apply_fails) {
    options.budget_bytes = 0;
    trainer = trainer_with(&options, NULL);
    fake_fail_kind(&fake, FAKE_APPLY, 1, MT_ETORCH);
    step_refused(16, 1, MT_ETORCH, "injected: apply");
    check_log("begin accumulate(0+16) apply! rollback");
}

/* The least a backend has: memory, begin, accumulate, rollback, apply. */
TEST("order", order_least_backend) {
    mt_run_report run = MT_RUN_REPORT_INIT;

    options = fits(12);
    options.absent = ~0U;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 10; id++) step(trainer, 32, id);
    evaluation_fails(32, 1, MT_ENOTSUP);
    ck_ok(mt_trainer_finish(trainer, &run));
    ck_assert_str_eq(run.state_sha256, "");
    ck_assert_uint_eq(run.samples_trained, 320);
    ck_assert_uint_eq(fake.state.updates, 10);
    ck_assert_uint_eq(fake.genuine, 0);
}

/* The batch that begin sees is the caller's. */
TEST("order", order_batch_is_passed_on) {
    mt_batch batch = batch_of(7, 99);

    trainer = trainer_with(&fake_defaults, NULL);
    batch.data = &fake;
    ck_ok(mt_trainer_step(trainer, &batch, NULL));
    ck_assert_ptr_eq(fake.batch_seen.data, &fake);
    ck_assert_uint_eq(fake.batch_seen.count, 7);
    ck_assert_uint_eq(fake.batch_seen.id, 99);
}

/* ---- weights and gradients ------------------------------------------------------------------ */

/* Each weight is the chunk's share of the batch's units; they sum to 1. */
TEST("weights", weights_are_shares) {
    double sum = 0;

    options = with_units(5);
    trainer = trainer_with(&options, NULL);
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
}

TEST("weights", weights_without_units) {
    static const size_t chunks[] = {5, 5, 1};
    size_t seen = 0;

    trainer = trainer_with(&fake_defaults, NULL);
    step_in(chunks, 3, 11, 1);
    for (size_t i = 0; i < fake.logged; i++)
        if (fake.log[i].kind == FAKE_ACCUMULATE)
            ck_assert_double_eq(fake.log[i].weight, (double)chunks[seen++] / 11.0);
    ck_assert_uint_eq(seen, 3);
}

/* A chunk without units has no weight, and a batch without any moves nothing. */
TEST("weights", weights_of_no_units) {
    static const size_t chunks[] = {2, 2, 4}, empty[] = {2, 1};
    static const double nothing[] = {0};
    uint64_t before;

    options = with_units(40);
    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 3));
    ck_assert(isfinite(step(trainer, 8, 1).loss));
    fake.options.units = nothing;
    fake.options.unit_count = 1;
    memset(fake.state.momentum, 0, sizeof(fake.state.momentum));
    before = fake_hash(&fake);
    step_in(empty, 2, 3, 2);
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert_uint_eq(count_kind(FAKE_APPLY), 1);
    for (size_t i = 0; i < fake.logged; i++) ck_assert(isfinite(fake.log[i].weight));
    for (int j = 0; j < FAKE_PARAMETERS; j++) ck_assert(isfinite(fake.state.parameters[j]));
}

/* Units are counts or sums: no backend means a negative one, or none that is a number. */
/* Chunks without a weight run no backward pass: they are not recorded, and those that have one are. */
TEST("weights", weights_of_no_units_teach_nothing) {
    static const double units[] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

    options = fits(40);
    options.units = units;
    options.unit_count = LENGTH(units);
    options.seconds = fake_seconds;
    trainer = trainer_with(&options, NULL);
    step(trainer, 6, 1);
    ck_assert_uint_eq(count_kind(FAKE_RECORD), 0);
    ck_assert_uint_eq(mt_policy_predict_bytes(mt_trainer_policy(trainer), MT_TRAIN, 4), 0);
    ck_assert_double_eq(mt_policy_predict_seconds(mt_trainer_policy(trainer), MT_TRAIN, 4), 0);
    for (uint64_t id = 2; id < 5; id++) step(trainer, 16, id);
    ck_assert_uint_gt(count_kind(FAKE_RECORD), 0);
    ck_assert_uint_eq(mt_policy_predict_bytes(mt_trainer_policy(trainer), MT_TRAIN, 16),
                      fake_program_peak(&fake_train_program, 16));
    ck_assert_uint_eq(fake.genuine, 0);
}

/*
 * Nor do those that would be recorded, however few: they do not run again for that. A deterministic step learns from
 * one of its own chunks first.
 */
TEST_LOOP("weights", weights_of_no_units_recorded, 4) {
    static const double units[] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

    options = fits(24);
    options.units = units + (_i % 2 ? 4 : 0); /* 6 without, or 2 */
    options.unit_count = LENGTH(units) - (_i % 2 ? 4 : 0);
    options.seconds = fake_seconds;
    options.normalises_over_batch = 1;
    policy.deterministic = _i / 2;
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_le(step(trainer, 24, 1).discarded, policy.deterministic ? 6 + 12 : 6);
    for (uint64_t id = 2; id < 5; id++) step(trainer, 24, id);
    ck_assert_uint_ge(mt_policy_predict_bytes(mt_trainer_policy(trainer), MT_TRAIN, 16),
                      fake_program_peak(&fake_train_program, 16));
}

TEST_LOOP("weights", weights_of_impossible_units, 2) {
    static const double values[] = {-1, NAN};

    options = with_units(40);
    options.units = &values[_i];
    options.unit_count = 1;
    trainer = trainer_with(&options, NULL);
    step_fails(trainer, 8, 1, MT_EINVAL);
}

/* The parameters after one step on 23 samples in k balanced chunks. */
static void parameters_in_chunks(size_t k, double *out, double *loss) {
    size_t chunks[23];
    mt_plan plan;

    trainer = trainer_with(&options, NULL);
    ck_ok(mt_plan_balanced(23, k, &plan));
    for (size_t i = 0; i < k; i++) chunks[i] = mt_plan_chunk(&plan, i);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, k));
    *loss = step(trainer, 23, 5).loss;
    memcpy(out, fake.state.parameters, sizeof(fake.state.parameters));
    end_trainer();
}

/* k chunks give the gradient and the loss of the whole batch; with and without units. */
TEST_LOOP("weights", gradients_add_up, 2) {
    double whole[FAKE_PARAMETERS], cut[FAKE_PARAMETERS], whole_loss, loss;

    options = _i == 0 ? with_units(40) : fake_defaults;
    options.noise = 0;
    parameters_in_chunks(1, whole, &whole_loss);
    for (size_t k = 2; k <= 23; k++) {
        parameters_in_chunks(k, cut, &loss);
        ck_assert_double_eq_tol(loss, whole_loss, 1e-12);
        for (int j = 0; j < FAKE_PARAMETERS; j++) ck_assert_double_eq_tol(cut[j], whole[j], 1e-13);
    }
}

/* ---- chunks given --------------------------------------------------------------------------- */

TEST("given", given_chunks) {
    static const size_t chunks[] = {1, 7, 2, 6};
    mt_step_report report;

    trainer = trainer_with(&fake_defaults, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 4));
    report = step_by(
        16, 1, "begin accumulate(0+1) accumulate(1+7) accumulate(8+2) accumulate(10+6) apply");
    ck_assert_int_eq(report.reason, MT_PLAN_REPLAY);
    ck_assert_uint_eq(report.chunk_count, 4);
    ck_assert_mem_eq(report.chunks, chunks, sizeof(chunks));
    report = step(trainer, 16, 2); /* used once */
    ck_assert_int_ne(report.reason, MT_PLAN_REPLAY);
}

/* Any two sizes teach the model, the larger one first as well. */
TEST("given", given_chunks_teach) {
    static const size_t chunks[] = {9, 7};

    trainer = trainer_with(&fake_defaults, NULL);
    step_in(chunks, 2, 16, 1);
    for (size_t m = 1; m < 40; m++)
        ck_assert_uint_eq(mt_policy_predict_bytes(mt_trainer_policy(trainer), MT_TRAIN, m),
                          fake_program_peak(&fake_train_program, m));
}

/* The caller's array may change after the call, and the last one given counts. */
TEST("given", given_chunks_are_copied) {
    size_t chunks[] = {3, 5};

    trainer = trainer_with(&fake_defaults, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    chunks[0] = 4;
    chunks[1] = 4;
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    chunks[0] = 0;
    step_by(8, 1, "begin accumulate(0+4) accumulate(4+4) apply");
}

TEST("given", given_chunks_that_do_not_add_up) {
    static const size_t few[] = {4, 4}, overflow[] = {SIZE_MAX, 9};
    mt_batch batch = batch_of(9, 1);

    trainer = trainer_with(&fake_defaults, NULL);
    uint64_t before = fake_hash(&fake);
    ck_ok(mt_trainer_set_chunks(trainer, few, 2));
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL);
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 0);
    step(trainer, 9, 1); /* forgotten with the step that was refused */
    ck_ok(mt_trainer_set_chunks(trainer, overflow, 2));
    batch.count = 8; /* what the sum is, modulo 2^64 */
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL);
}

TEST("given", given_chunks_retry_but_stay) {
    static const size_t chunks[] = {9, 7};

    trainer = trainer_with(&fake_defaults, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    fake_fail_kind(&fake, FAKE_ALLOCATION, 14, MT_EDEVMEM);
    step_by(16, 1,
            "begin accumulate(0+9) accumulate!(9+7) rollback "
            "begin accumulate(0+9) accumulate(9+7) apply");
}

TEST("given", given_chunks_that_do_not_fit) {
    static const size_t chunks[] = {30, 2};

    options = fits(20);
    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    step_fails(trainer, 32, 1, MT_EDEVMEM);
    check_only_chunks_of(30);
    step(trainer, 32, 1);
}

/* ---- two at once ---------------------------------------------------------------------------- */

static fake_backend fakes[2];

static void *trainer_thread(void *argument) {
    fake_backend *one = argument;
    mt_backend seam = fake_seam(one);
    mt_trainer *mine = NULL;
    mt_status status = mt_trainer_new(&seam, NULL, &mine);

    for (uint64_t id = 1; id <= 300 && status == MT_OK; id++) {
        mt_batch batch = batch_of(32, id);

        if (id % 10 == 0) fake_fail_kind(one, FAKE_ALLOCATION, 3, MT_EDEVMEM);
        status = mt_trainer_step(mine, &batch, NULL);
        if (status == MT_OK) status = mt_trainer_evaluate(mine, &batch, NULL);
    }
    mt_trainer_free(mine);
    return status == MT_OK ? one : NULL;
}

/* Two trainers in two threads go their way as if alone. */
TEST("threads", two_threads) {
    pthread_t threads[2];
    void *result;

    options = fits(14);
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

TRAINER_SUITE("trainer_step")
