/*
 * check_trainer_batch.c - batches below the smallest legal chunk, and those that must not be cut.
 */
#include "suite.h"
#include "trainer_rungs.h"
#include "trainer_tests.h"

TEST("cut", small_batch_is_one_chunk) {
    options = fits(30);
    options.min_micro_batch = 8;
    trainer = trainer_with(&options, NULL);
    step(trainer, 64, 1);
    fake_log_clear(&fake);
    step_by(5, 2, "begin accumulate(0+5) apply");
}

TEST("cut", small_batch_is_dropped) {
    mt_step_report report;
    mt_run_report run = MT_RUN_REPORT_INIT;
    uint64_t before;

    options.min_micro_batch = 8;
    own.drop_small = 1;
    trainer = trainer_of(&options, &own);
    step(trainer, 32, 1);
    before = fake_hash(&fake);
    fake_log_clear(&fake);
    report = some(trainer, 7, 2);
    check_log("");
    ck_assert_uint_eq(report.samples, 0);
    ck_assert_uint_eq(report.chunk_count, 0);
    ck_assert_uint_eq(fake_hash(&fake), before);
    step(trainer, 8, 3);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.samples_trained, 40);
    ck_assert_uint_eq(run.steps, 2);
}

/* What was said of a dropped batch is said of it alone: its chunks, and no failure of before. */
TEST("cut", dropped_batch_leaves_nothing) {
    static const size_t chunks[] = {4, 3};

    options = fits(20);
    options.min_micro_batch = 8;
    own.drop_small = 1;
    trainer = trainer_of(&options, &own);
    step(trainer, 32, 1);
    fake.options.budget_bytes = options.resident_bytes + 100;
    step_fails(trainer, 32, 2, MT_EDEVMEM);
    ck_assert_uint_gt(mt_trainer_explain(trainer, NULL, 0), 0);
    fake.options.budget_bytes = options.budget_bytes;
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    some(trainer, 7, 2);
    ck_assert_uint_eq(mt_trainer_explain(trainer, NULL, 0), 0);
    fake_log_clear(&fake);
    ck_assert_int_ne(step(trainer, 16, 3).reason, MT_PLAN_REPLAY);
    check_log("begin accumulate(0+16) apply");
}

TEST("cut", whole_batch_fits) {
    options = fits(30);
    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id < 4; id++) {
        fake_log_clear(&fake);
        step_by(30, id, "begin accumulate(0+30) apply");
    }
}

TEST("cut", whole_batch_does_not_fit) {
    options = fits(30);
    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, NULL);
    step_fails(trainer, 31, 1, MT_EDEVMEM);
    ck_assert_uint_le(count_kind(FAKE_BEGIN), DEFAULT_RETRIES + 1);
    check_only_chunks_of(31);
    ck_assert_str_ne(explanation(), "");
    step(trainer, 30, 2);
}

/* Cutting would change the loss, whoever asks for it; and the refusal is over with the step. */
TEST("cut", whole_batch_is_not_cut) {
    static const size_t chunks[] = {8, 8}, whole[] = {16};

    options = fits(30);
    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    step_fails(trainer, 16, 1, MT_EINVAL);
    check_log("");
    step(trainer, 16, 1);
    step_in(whole, 1, 16, 2);
}

/* A loss that couples the samples is another figure in chunks: evaluation does not cut it either. */
TEST("cut", whole_batch_is_evaluated_whole) {
    mt_batch batch = batch_of(16, 1);
    mt_eval_report report = MT_EVAL_REPORT_INIT;

    options = fits(30);
    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_evaluate(trainer, &batch, &report));
    ck_assert_uint_eq(report.chunk_count, 1);
    batch.count = 4000;
    ck_refused(mt_trainer_evaluate(trainer, &batch, &report), MT_EDEVMEM,
               "a batch of 4000 samples does not fit");
}

TEST("cut", whole_batch_against_micro_batch) {
    mt_batch batch = batch_of(16, 1);
    mt_backend seam;
    mt_status status;

    options = fits(30);
    options.needs_whole_batch = 1;
    seam = new_seam();
    policy.micro_batch = 4;
    own.policy = &policy;
    status = mt_trainer_new(&seam, &own, &trainer);
    if (status == MT_OK) /* refused here or at the first batch */
        status = mt_trainer_step(trainer, &batch, NULL);
    ck_status(status, MT_EINVAL);
    ck_assert_uint_eq(count_kind(FAKE_ACCUMULATE), 0);
}

TRAINER_SUITE("trainer_batch")
