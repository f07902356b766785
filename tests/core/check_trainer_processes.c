/*
 * check_trainer_processes.c - steps that several processes take together (mt_backend.agree). The others are a few
 * numbers here, added to what the trainer says. What counts is that it says so twice a step, whatever fails, since the
 * others wait for it, and that a step is applied by all or by none.
 */
#include "suite.h"
#include "trainer_rungs.h"
#include "trainer_tests.h"

#include <math.h>

enum { FAILED = 0, LOSS = 1, UNITS = 2, SAMPLES = 3, METRICS = 4, VALUES = 4 + MT_METRICS_MAX };
enum { CALLS_MAX = 8 };

/* The other processes, and what they heard. */
static struct peers {
    double say[CALLS_MAX][VALUES];   /* in their n-th call, added */
    double heard[CALLS_MAX][VALUES]; /* before that */
    size_t calls;
    size_t fail_at; /* call from 1 on in which they are not to be reached; 0: none */
    mt_status fail_status;
    size_t covered[CALLS_MAX]; /* samples of the open step then; SIZE_MAX: none is open */
} peers;

static mt_status agree(void *self, double *values, size_t count) {
    const fake_backend *f = self;
    size_t call = peers.calls++;

    ck_assert_uint_lt(call, CALLS_MAX);
    ck_assert_uint_eq(count, VALUES);
    peers.covered[call] = f->batch ? f->covered : SIZE_MAX;
    memcpy(peers.heard[call], values, sizeof(peers.heard[call]));
    if (call + 1 == peers.fail_at) return mt_set_error(peers.fail_status, "nobody is there");
    for (size_t i = 0; i < VALUES; i++) values[i] += peers.say[call][i];
    return MT_OK;
}

/* A new trainer beside them; join: one that is made, and whose log is empty. */
static mt_status try_to_join(const mt_trainer_options *wishes) {
    mt_backend seam = new_seam();

    memset(&peers, 0, sizeof(peers));
    seam.agree = agree;
    return mt_trainer_new(&seam, wishes, &trainer);
}

static void join(const mt_trainer_options *wishes) {
    ck_ok(try_to_join(wishes));
    fake_log_clear(&fake);
}

/* What another process has done: so many samples, each with this loss and a first metric of 1. */
static void say(size_t call, size_t samples, double loss) {
    double *values = peers.say[call];

    values[UNITS] = (double)samples;
    if (call == 0) return;
    values[LOSS] = loss * (double)samples;
    values[SAMPLES] = values[METRICS] = (double)samples;
}

/* ---- steps that go through ---------------------------------------------------------------------- */

TEST("go_through", two_words_a_step) {
    options = fits(12);
    join(NULL);
    for (size_t id = 1; id <= 3; id++) {
        peers.calls = 0;
        step(trainer, 32, id);
        ck_assert_uint_eq(peers.calls, 2);
        ck_assert_uint_eq(peers.covered[0], SIZE_MAX);
        ck_assert_uint_eq(peers.covered[1], 32);
        ck_assert(peers.heard[0][UNITS] == 32);
        ck_assert(peers.heard[0][FAILED] == 0 && peers.heard[1][FAILED] == 0);
        ck_assert(peers.heard[1][SAMPLES] == 32);
    }
}

/* Weights are shares of all samples, so the gradients of all add up; reports are of all, but for samples. */
TEST("go_through", sums_are_of_all) {
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_step_report report;

    options = fits(12);
    join(NULL);
    say(0, 96, 0);
    say(1, 96, 5.0);
    report = step(trainer, 32, 1);
    for (size_t i = 0; i < fake.logged; i++)
        if (fake.log[i].kind == FAKE_ACCUMULATE)
            ck_assert(fake.log[i].weight == (double)fake.log[i].count / 128);
    ck_assert_double_eq_tol(report.loss, (peers.heard[1][LOSS] + 96 * 5.0) / 128, 1e-12);
    ck_assert_double_eq_tol(report.metrics[0], (peers.heard[1][METRICS] + 96) / 128, 1e-12);
    ck_assert_uint_eq(report.samples, 32);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.samples, 128);
    ck_assert_double_eq_tol(epoch.loss, report.loss, 1e-12);
}

TEST("go_through", alone_it_changes_nothing) {
    options = with_units(12);
    trainer = trainer_with(&options, NULL);
    mt_step_report report = step(trainer, 32, 1);
    uint64_t hash = fake_hash(&fake);
    mt_trainer_free(trainer);
    join(NULL);
    ck_assert(step(trainer, 32, 1).loss == report.loss);
    ck_assert_uint_eq(fake_hash(&fake), hash);
}

/* One loss that is no number is everybody's. */
TEST("go_through", all_skip_or_none) {
    mt_step_report report;

    join(NULL);
    say(0, 32, 0);
    say(1, 32, (double)NAN);
    report = step(trainer, 32, 1);
    ck_assert_int_eq(report.skipped, MT_SKIP_NOT_FINITE);
    ck_assert(isnan(report.loss));
    ck_assert_uint_eq(count_kind(FAKE_APPLY), 0);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 1);
}

/*
 * This process has no label in its batch. Where others have some it takes part in the update, and reports their loss;
 * where none has the step is skipped by all, after both words.
 */
TEST_LOOP("go_through", no_label_here, 2) {
    static const double none[] = {0};
    mt_step_report report;

    options = fits(12);
    options.units = none;
    options.unit_count = options.mean_of_nothing = 1;
    join(NULL);
    for (int call = 0; call < 2 && _i; call++) say((size_t)call, 96, 5.0);
    report = step(trainer, 32, 1);
    ck_assert_int_eq(report.skipped, _i ? MT_SKIP_NOT : MT_SKIP_NO_UNITS);
    ck_assert_uint_eq(peers.calls, 2);
    ck_assert(peers.heard[1][UNITS] == 0 && peers.heard[1][LOSS] == 0);
    ck_assert_uint_eq(count_kind(FAKE_APPLY), (size_t)_i);
    if (_i) ck_assert_double_eq_tol(report.loss, 5.0, 1e-12);
    peers.calls = 0;
    for (int call = 0; call < 2; call++) say((size_t)call, 0, 0);
    if (_i) say(0, 96, 5.0);
    if (_i) peers.say[0][LOSS] = 5.0 * 96;
    if (_i) ck_assert_double_eq_tol(evaluate(trainer, 32, 2).loss, 5.0, 1e-12);
}

/* ---- steps that do not ---------------------------------------------------------------------------- */

/* Another process has failed before the step, or in it: nothing has happened, and the next step goes through. */
TEST_LOOP("fail", another_fails, 2) {
    options = fits(12);
    join(NULL);
    step(trainer, 32, 1);
    fake_log_clear(&fake);
    peers.calls = 0;
    peers.say[_i][FAILED] = 2;
    step_refused(32, 2, MT_EPEER, "2 of the processes could not");
    ck_assert_uint_eq(peers.calls, (size_t)_i + 1);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), (size_t)_i);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), (size_t)_i);
    ck_assert_uint_eq(mt_trainer_explain(trainer, NULL, 0), 0);
    peers.say[_i][FAILED] = 0;
    peers.calls = 0;
    step(trainer, 32, 2);
}

/* They are not to be reached: that is not tried again, even where it is a matter of memory. */
TEST_LOOP("fail", nobody_is_there, 4) {
    static const mt_status why[] = {MT_EIO, MT_EDEVMEM};

    options = fits(12);
    join(NULL);
    step(trainer, 32, 1);
    fake_log_clear(&fake);
    peers.calls = 0;
    peers.fail_at = 1 + (size_t)_i / 2;
    peers.fail_status = why[_i % 2];
    step_refused(32, 2, why[_i % 2], "nobody is there");
    ck_assert_uint_eq(peers.calls, peers.fail_at);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), peers.fail_at - 1);
    ck_assert_uint_eq(count_kind(FAKE_APPLY), 0);
}

/* Others may have applied it by then. */
TEST("fail", apply_is_not_tried_again) {
    char text[2048];

    options = fits(12);
    join(NULL);
    step(trainer, 32, 1);
    fake_log_clear(&fake);
    peers.calls = 0;
    fake_fail_kind(&fake, FAKE_APPLY, 1, MT_EDEVMEM);
    step_fails(trainer, 32, 2, MT_EDEVMEM);
    ck_assert_uint_eq(peers.calls, 2);
    ck_assert_uint_eq(count_kind(FAKE_APPLY), 1);
    ck_assert_uint_gt(mt_trainer_explain(trainer, text, sizeof text), 0);
    ck_contains(text, "memory ran out in apply");
}

/* All calls of the seam fail in turn, once and for good: each time the others hear twice how it went. */
TEST_LOOP("fail", they_always_hear_of_it, 4) {
    static const mt_status why[] = {MT_EDEVMEM, MT_EDEVMEM, MT_EIO};
    size_t failed = 0, recovered = 0;

    options = fits(12);
    options.keep = options.tells_gradients = _i % 2;
    options.normalises_over_batch = _i / 2;
    for (int kind = 0; kind < LENGTH(why); kind++) {
        for (uint64_t n = 1;; n++) {
            mt_batch batch = batch_of(32, 1);
            uint64_t before;
            mt_status status;
            int in_join;

            join(NULL);
            before = fake_hash(&fake);
            if (kind == 2)
                fake_fail_with(&fake, n, why[kind]);
            else
                fake_fail_at(&fake, n, kind);
            status = mt_trainer_step(trainer, &batch, NULL);
            in_join = peers.calls == 1;
            ck_assert_msg(peers.calls == (status == MT_OK || !in_join ? 2U : 1U),
                          "call %d failed, others heard %zu times", (int)n, peers.calls);
            /* The update fails behind the last word. */
            if (status != MT_OK && !count_kind(FAKE_APPLY))
                ck_assert(peers.heard[peers.calls - 1][FAILED] == 1);
            if (in_join) ck_assert_uint_eq(count_kind(FAKE_BEGIN), 0);
            if (status != MT_OK) ck_assert_uint_eq(fake_hash(&fake), before);
            if (status != MT_OK) ck_contains(mt_last_error(), "injected");
            failed += status != MT_OK;
            recovered += status == MT_OK && fake.fired > 0;
            uint64_t fired = fake.fired;
            fake_fail_at(&fake, 0, 0);
            end_trainer();
            if (!fired) break;
        }
    }
    ck_assert_uint_gt(failed, 20);
    ck_assert_uint_gt(recovered, 20);
}

/* Calls that are refused are calls that others wait for. */
TEST("fail", they_hear_of_what_is_refused) {
    static const size_t wrong[] = {3, 3};
    mt_batch batch = batch_of(0, 1);
    mt_step_report report = {.size = 0};
    mt_eval_report eval = {.size = 0};

    join(NULL);
    ck_refused(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL, "batch->count is 0");
    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), MT_EINVAL);
    batch.count = 32;
    ck_ok(mt_trainer_set_chunks(trainer, wrong, 2));
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL);
    ck_status(mt_trainer_step(trainer, &batch, &report), MT_EINVAL);
    ck_status(mt_trainer_evaluate(trainer, &batch, &eval), MT_EINVAL);
    ck_assert_uint_eq(peers.calls, 5);
    for (size_t i = 0; i < peers.calls; i++) ck_assert(peers.heard[i][FAILED] == 1);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 0);
    peers.calls = 0;
    step(trainer, 32, 1);
    done(trainer);
    peers.calls = 0;
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL); /* it is freed */
    ck_assert_uint_eq(peers.calls, 0);
    trainer = NULL;
}

/* One whose state is lost has lost it for all. */
TEST("fail", they_hear_of_a_poisoned_one) {
    mt_batch batch = batch_of(32, 1);

    join(NULL);
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 1, MT_EIO);
    fake_fail_kind(&fake, FAKE_ROLLBACK, 1, MT_EIO);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE);
    ck_assert_uint_eq(peers.calls, 2);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE);
    ck_assert_uint_eq(peers.calls, 3);
    ck_assert(peers.heard[1][FAILED] == 1 && peers.heard[2][FAILED] == 1);
}

/* ---- batches that are left out -------------------------------------------------------------------- */

/* Whoever has too few samples, all leave the batch out. */
TEST_LOOP("others", all_leave_it_out, 2) {
    options = fits(12);
    options.min_micro_batch = 4;
    own.drop_small = 1;
    join(&own);
    peers.say[0][SAMPLES] = _i;
    ck_assert_uint_eq(some(trainer, _i ? 32 : 3, 1).samples, 0);
    ck_assert_uint_eq(peers.calls, 1);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 0);
    ck_assert(peers.heard[0][SAMPLES] == !_i);
}

/* ---- evaluation ----------------------------------------------------------------------------------- */

TEST("others", an_evaluation_is_of_all) {
    mt_eval_report report;

    join(NULL);
    peers.say[0][LOSS] = 70;
    peers.say[0][UNITS] = peers.say[0][SAMPLES] = peers.say[0][METRICS] = 10;
    report = evaluate(trainer, 20, 1);
    ck_assert_uint_eq(peers.calls, 1);
    ck_assert_double_eq_tol(report.loss, (peers.heard[0][LOSS] + 70) / 30, 1e-12);
    ck_assert_double_eq_tol(report.metrics[0], (peers.heard[0][METRICS] + 10) / 30, 1e-12);
}

TEST_LOOP("others", an_evaluation_fails, 2) {
    static const fake_kind kinds[] = {FAKE_MEMORY, FAKE_EVALUATE};

    join(NULL);
    fake_fail_kind(&fake, kinds[_i], 1, MT_EIO);
    evaluation_fails(20, 1, MT_EIO);
    ck_contains(mt_last_error(), "injected");
    ck_assert_uint_eq(peers.calls, 1);
    ck_assert(peers.heard[0][FAILED] == 1);
    peers.calls = 0;
    peers.say[0][FAILED] = 1;
    evaluation_fails(20, 1, MT_EPEER);
}

/* ---- options -------------------------------------------------------------------------------------- */

TEST("others", batches_keep_their_size) {
    policy.allow_rungs = BIT(SMALLER_BATCH);
    own.policy = &policy;
    ck_refused(try_to_join(&own), MT_ENOTSUP, "smaller_batch");
    policy.allow_rungs = BIT(AMP);
    join(&own);
}

TRAINER_SUITE("trainer_processes")
