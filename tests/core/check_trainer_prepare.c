/*
 * check_trainer_prepare.c - a backend that is told of a step's chunks beforehand (mt_backend.prepare) is
 * asked for these and no others, whatever fails. The fake complains of any other; failures one by one are
 * in check_oom_core.c.
 */
#include "counting_allocator.h"
#include "suite.h"
#include "trainer_rungs.h"
#include "trainer_tests.h"

#define PREPARE_KINDS (FAKE_STEP_KINDS | FAKE_BIT(FAKE_MARK))

static void begin(void) {
    begin_defaults();
    policy.deterministic = 1;
}

/* Room for chunks of m samples beside what is prepared for a batch of 64. */
static void tell(size_t m) {
    options = fits(m);
    options.prepares = 1;
    options.budget_bytes += (size_t)64 * FAKE_PREPARED_BYTES;
}

/* The trainer has had a batch of 32, and its log is empty. */
static void learn(size_t m) {
    tell(m);
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    fake_log_clear(&fake);
}

/* ---- the order of the calls ----------------------------------------------------------------------- */

/* Recordings are taken back, each told of alone; then all chunks of the batch. "prepare(3+32)": three of
   32 samples. */
TEST("calls", order) {
    tell(12);
    trainer = trainer_with(&options, &policy);
    step_by(
        32, 1,
        printed("begin prepare(1+%d) accumulate(0+%d) rollback begin prepare(1+%d) "
                "accumulate(0+%d) rollback "
                "begin prepare(1+11) accumulate(0+11) rollback "
                "begin prepare(3+32) accumulate(0+11) accumulate(11+11) accumulate(22+10) apply",
                FIRST_CHUNK, FIRST_CHUNK, 2 * FIRST_CHUNK, 2 * FIRST_CHUNK));
    step_by(12, 2, "begin prepare(1+12) accumulate(0+12) apply");
    ck_assert_uint_eq(fake.genuine, 0);
}

/* A first batch that begins with a small chunk is closed before it begins: that chunk is no recording for it. */
TEST_LOOP("calls", begins_small, 2) {
    mt_step_report report;

    tell(_i ? 200 : 24);
    options.seconds = fake_seconds;
    trainer = trainer_with(&options, NULL);
    report = step(trainer, 60, 1);
    ck_assert_uint_eq(report.discarded, FIRST_CHUNK);
    ck_assert_uint_le(report.predicted_peak_bytes, report.peak_bytes);
    if (report.predicted_peak_bytes) /* 0: one recording tells of no other size */
        ck_assert_uint_le(report.peak_bytes - report.predicted_peak_bytes, report.peak_bytes / 50);
    if (_i == 0)
        check_log(printed("begin prepare(1+%d) accumulate(0+%d) rollback "
                          "begin prepare(8+60) accumulate(0+8) accumulate(8+8) accumulate(16+8) "
                          "accumulate(24+8) accumulate(32+7) accumulate(39+7) accumulate(46+7) "
                          "accumulate(53+7) apply",
                          FIRST_CHUNK, FIRST_CHUNK));
    for (uint64_t id = 2; id < 30; id++) step(trainer, 60, id);
}

/*
 * All chunks of a batch have one size: one that is to be known is that of a whole batch, and each is tried for one or two.
 * In the twelfth none runs again, which follows from KNOWN_RUNS and RERUN_AFTER.
 */
TEST("calls", does_not_run_again) {
    tell(64);
    options.seconds = fake_seconds;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id < 12; id++) {
        mt_step_report report = step(trainer, 64, id);

        for (size_t i = 1; i < report.chunk_count; i++)
            ck_assert_uint_le(report.chunks[0] - report.chunks[i], 1);
    }
    fake_log_clear(&fake);
    step_by(64, 12, "begin prepare(1+64) accumulate(0+64) apply");
}

/* Chunks that are given; and those of a batch too small to record two. */
TEST("calls", given_and_small) {
    static const size_t chunks[] = {5, 20, 7};

    learn(40);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 3));
    step_by(32, 2, "begin prepare(3+32) accumulate(0+5) accumulate(5+20) accumulate(25+7) apply");
    done(trainer);
    trainer = trainer_with(&options, NULL);
    step_by(FIRST_CHUNK + 1, 1,
            printed("begin prepare(1+%d) accumulate(0+%d) rollback begin prepare(1+%d) "
                    "accumulate(0+%d) apply",
                    FIRST_CHUNK, FIRST_CHUNK, FIRST_CHUNK + 1, FIRST_CHUNK + 1));
}

/* Chunks are neither marked nor are gradients given back, though the backend could. */
TEST("calls", neither_marked_nor_alone) {
    tell(32);
    options.keep = options.holds = options.tells_gradients = 1;
    policy.keep_chunks = MT_KEEP_ALWAYS;
    trainer = trainer_with(&options, &policy);
    for (uint64_t id = 1; id < 5; id++) step(trainer, 32, id);
    ck_assert_uint_eq(count_kind(FAKE_MARK) + count_kind(FAKE_REWIND), 0);
    ck_assert_int_eq(fake.holding, 1);
}

/* Evaluation is not told of, and its first chunks are recorded as ever. */
TEST("calls", evaluation) {
    learn(12);
    evaluate(trainer, 40, 1);
    ck_assert_uint_eq(count_kind(FAKE_PREPARE), 0);
}

/* A batch that is made smaller is told of as such. */
TEST("calls", fewer_samples) {
    tell(4);
    options.may_shorten = 1;
    policy.allow_rungs = BIT(SMALLER_BATCH);
    options.needs_whole_batch = 1;
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_lt(some(trainer, 10, 1).samples, 10);
    ck_assert_uint_eq(fake.told_next, 0); /* forgotten with the step */
}

/* ---- what fails -------------------------------------------------------------------------------------- */

static const struct {
    fake_kind kind;
    int call;
    const char *calls;
} failures[] = {
    {FAKE_PREPARE, 1,
     "begin prepare!(3+32) rollback begin prepare(3+32) accumulate(0+11) accumulate(11+11) "
     "accumulate(22+10) apply"},
    {FAKE_ALLOCATION, 2,
     "begin prepare!(3+32) rollback begin prepare(3+32) accumulate(0+11) accumulate(11+11) "
     "accumulate(22+10) apply"},
    {FAKE_ACCUMULATE, 2,
     "begin prepare(3+32) accumulate(0+11) accumulate!(11+11) rollback begin prepare(3+32) "
     "accumulate(0+11) accumulate(11+11) accumulate(22+10) apply"},
    {FAKE_APPLY, 1,
     "begin prepare(3+32) accumulate(0+11) accumulate(11+11) accumulate(22+10) apply! rollback "
     "begin prepare(3+32) accumulate(0+11) accumulate(11+11) accumulate(22+10) apply"},
};

/* Whatever runs out of memory once, the whole step is taken back and told of again. */
TEST_LOOP("fails", taken_back_whole, LENGTH(failures)) {
    learn(12);
    fake_fail_kind(&fake, failures[_i].kind, (uint64_t)failures[_i].call, MT_EDEVMEM);
    ck_assert_uint_eq(step(trainer, 32, 2).retries, 1);
    check_log(failures[_i].calls);
}

/* What is no matter of memory ends the step, also in prepare. */
TEST("fails", failure_is_handed_on) {
    learn(12);
    fake_fail_kind(&fake, FAKE_PREPARE, 1, MT_EUSER);
    step_refused(32, 2, MT_EUSER, "injected: prepare");
    check_log("begin prepare!(3+32) rollback");
    step(trainer, 32, 2);
}

/* prepare runs out of memory while there are chunks as large as this. */
static mt_backend real;
static size_t too_large;

static mt_status prepare_small(void *self, const size_t *chunks, size_t count,
                               mt_chunk_result *out) {
    for (size_t i = 0; i < count; i++)
        if (chunks[i] >= too_large) fake_fail_kind(&fake, FAKE_PREPARE, 1, MT_EDEVMEM);
    return real.prepare(self, chunks, count, out);
}

/* An OOM of prepare is one of the largest chunk: without evidence it is that size that did not fit. */
TEST("fails", answered_as_the_largest) {
    mt_step_report report;
    mt_backend seam;

    tell(12);
    own.policy = &policy;
    options.no_evidence = 1;
    real = seam = new_seam();
    seam.prepare = prepare_small;
    too_large = 8;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    report = step(trainer, 32, 1);
    ck_assert_uint_gt(report.retries, 0);
    for (size_t i = 0; i < report.chunk_count; i++) ck_assert_uint_lt(report.chunks[i], 8);
    too_large = 0;
}

/* Given chunks are not changed: after a clear the step gives up. */
TEST("fails", given_chunks_give_up) {
    static const size_t chunks[] = {16, 16};

    learn(40);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    fake_fail_kind_for_ever(&fake, FAKE_PREPARE, 1, MT_EDEVMEM);
    step_fails(trainer, 32, 2, MT_EDEVMEM);
    fake_fail_kind(&fake, FAKE_PREPARE, 0, MT_OK);
    step(trainer, 32, 2);
}

/*
 * Recordings do not know what is prepared. The chunk that it leaves too little room for is known from the
 * first step on, and not tried in each.
 */
TEST("fails", what_is_prepared_is_learnt) {
    options = fits(16);
    options.prepares = 1;
    options.budget_bytes += (size_t)4 * FAKE_PREPARED_BYTES; /* as much as recordings have shown */
    trainer = trainer_with(&options, &policy);
    step(trainer, 64, 1);
    ck_assert_uint_le(fake.genuine, 1);
    fake_log_clear(&fake);
    step_by(64, 2,
            "begin prepare(5+64) accumulate(0+13) accumulate(13+13) accumulate(26+13) "
            "accumulate(39+13) accumulate(52+12) apply");
    for (uint64_t id = 3; id <= 20; id++) step(trainer, 64, id);
    ck_assert_uint_le(fake.genuine, 1);
}

/* Host memory runs out at each request in turn: the step is undone, and the next one goes through. */
TEST("fails", without_host_memory) {
    size_t n = 0, fired;

    ck_ok(counting_install());
    do {
        mt_batch batch = batch_of(64, 1);
        uint64_t before;
        mt_status status;

        tell(2);
        trainer = trainer_with(&options, NULL);
        before = fake_hash(&fake);
        counting_fail_at(++n, 0);
        status = mt_trainer_step(trainer, &batch, NULL);
        fired = counting_fired();
        counting_fail_at(0, 0);
        ck_assert(status == MT_OK || (status == MT_ENOMEM && fired));
        ck_assert((fake_hash(&fake) == before) == (status != MT_OK));
        if (status == MT_ENOMEM) ck_contains(mt_last_error(), "out of host memory");
        step(trainer, 64, 2);
        end_trainer();
        ck_assert_uint_eq(counting_live(), 0);
    } while (fired);
    ck_assert_uint_gt(n, 4);
}

TRAINER_SUITE_FROM("trainer_prepare", begin)
