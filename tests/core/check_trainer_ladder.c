/*
 * check_trainer_ladder.c - the rungs as a trainer takes and leaves them: what the backend is told, and what
 * the reports say. The end of the ladder, replays and the trace: check_trainer_rungs.c.
 */
#include "suite.h"
#include "trainer_rungs.h"
#include "trainer_tests.h"

/* The savers, and room for 20 samples without them. */
static void begin(void) {
    begin_defaults();
    options = with_rungs(SAVERS, budget_with(0, 20));
}

/* Steps until other rungs are on, or most. */
static int steps_until_other(int most) {
    unsigned before = fake.rungs;
    int steps = 0;

    while (steps < most && fake.rungs == before) {
        some(trainer, 32, 100 + (uint64_t)steps);
        steps++;
    }
    return steps;
}

/* ---- up ------------------------------------------------------------------------------------- */

/* The rungs that suffice for a few samples, and what is on then. */
static const struct {
    const char *name;
    unsigned has, allow, forbid, suffice;
    const char *calls; /* to set_rung: on, rung counted from 1 */
} rows[] = {
    {"room", ALL, ALL, 0, 0, ""},
    {"one", ALL, 0, 0, BIT(CHECKPOINTING), "set_rung(1+1)"},
    {"two", ALL, 0, 0, SAVERS, "set_rung(1+1) set_rung(1+2)"},
    {"one forbidden", ALL, 0, BIT(CHECKPOINTING), BIT(OFFLOAD), "set_rung(1+2)"},
    {"one not there", BIT(OFFLOAD), 0, 0, BIT(OFFLOAD), "set_rung(1+2)"},
    {"half precision", BIT(AMP), BIT(AMP), 0, BIT(AMP), "set_rung(1+3)"},
    {"the other device", BIT(CPU), BIT(CPU), 0, BIT(CPU), "set_rung(1+5)"},
    {"minimal", BIT(MINIMAL), BIT(MINIMAL), 0, BIT(MINIMAL), "set_rung(1+6)"},
};

/* Found out by OOMs in the first step, or known before a later one, where the budget has shrunk. */
TEST_LOOP("up", climbs, 2 * LENGTH(rows)) {
    int row = _i / 2, beforehand = _i % 2;
    size_t enough = budget_with(rows[row].suffice, FEW);
    mt_step_report report;

    options = with_rungs(rows[row].has, beforehand ? budget_with(0, 20) : enough);
    policy = allowing(rows[row].allow);
    policy.forbid_rungs = rows[row].forbid;
    trainer = trainer_with(&options, &policy);
    if (beforehand) step(trainer, 32, 1);
    fake.options.budget_bytes = enough;
    fake_log_clear(&fake);
    report = step(trainer, 32, 2);
    ck_assert_msg(strcmp(fake_log_text(&fake, FAKE_BIT(FAKE_SET_RUNG)), rows[row].calls) == 0,
                  "%s: %s", rows[row].name, fake_log_text(&fake, FAKE_BIT(FAKE_SET_RUNG)));
    ck_assert_uint_eq(report.rungs, rows[row].suffice);
    ck_assert_double_eq(report.rate, 1);
    if (beforehand && rows[row].suffice != SAVERS) ck_assert_uint_eq(fake.genuine, 0);
    fake_log_clear(&fake);
    step(trainer, 32, 3); /* and it stays so */
    ck_assert_str_eq(fake_log_text(&fake, FAKE_BIT(FAKE_SET_RUNG)), "");
}

/* A backend without set_rung has none, whatever it says of itself. */
TEST("up", no_set_rung) {
    mt_backend seam;

    options = with_rungs(SAVERS, budget_with(SAVERS, FEW));
    seam = new_seam();
    seam.set_rung = NULL;
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    step_fails(trainer, 32, 1, MT_EDEVMEM);
}

/* Evaluation that does not fit asks for rungs too, but for neither a smaller batch nor what spares a backward pass. */
TEST("up", evaluation_climbs) {
    options = with_rungs(SAVERS | BIT(AMP), budget_with(0, 20));
    policy = allowing(ALL);
    options.eval = fake_train_program; /* as heavy as training */
    trainer = trainer_with(&options, &policy);
    evaluate(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
    evaluate(trainer, 32, 2);
    ck_assert_uint_eq(fake.rungs, BIT(AMP));
}

/* ---- a rung that cannot be set --------------------------------------------------------------- */

/* A step has gone through that no rung was needed for; the next one needs one, which memory runs out for. */
static void run_short_of_memory(void) {
    policy.clear_every = MT_CLEAR_NEVER;
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
    fake_log_clear(&fake);
    fake_fail_kind(&fake, FAKE_SET_RUNG, 1, MT_EDEVMEM);
}

/* Refused for want of memory: once more with an empty cache, before it is done without. */
TEST("refused", refused_once) {
    run_short_of_memory();
    step(trainer, 32, 2);
    ck_assert_str_eq(fake_log_text(&fake, FAKE_BIT(FAKE_SET_RUNG) | FAKE_BIT(FAKE_EMPTY_CACHE)),
                     "set_rung!(1+1) empty_cache set_rung(1+1)");
}

/* A cache that cannot be emptied for another reason than memory says nothing of the rung. */
TEST("refused", refused_and_not_cleared) {
    run_short_of_memory();
    fake_fail_kind(&fake, FAKE_EMPTY_CACHE, 1, MT_EIO);
    step_refused(32, 2, MT_EIO, "injected: empty_cache");
    ck_assert_uint_eq(fake.rungs, 0);
    ck_assert_uint_eq(step(trainer, 32, 2).rungs, BIT(CHECKPOINTING)); /* and it is tried again */
}

/* The next one instead: for this step, or for good. */
TEST_LOOP("refused", refused_on, 2) {
    static const struct {
        mt_status why;
        unsigned later;
    } cases[] = {{MT_EDEVMEM, BIT(CHECKPOINTING)}, {MT_ENOTSUP, BIT(OFFLOAD)}};

    trainer = trainer_with(&options, NULL);
    step(trainer, 32, 1);
    fake.options.refused_on = BIT(CHECKPOINTING);
    fake.options.refused_status = cases[_i].why;
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
    ck_assert_uint_eq(step(trainer, 32, 2).rungs, BIT(OFFLOAD));
    fake.options.refused_on = 0;
    fake.options.budget_bytes = budget_with(0, 20);
    ck_assert_int_eq(steps_until_other(100), RUNG_WAIT + 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
    ck_assert_uint_eq(step(trainer, 32, 3).rungs, cases[_i].later);
}

/* Turned off in vain, it stays on, and the steps go on. */
TEST_LOOP("refused", refused_off, 2) {
    trainer = trainer_with(&options, NULL);
    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
    step(trainer, 32, 2);
    fake.options.budget_bytes = budget_with(0, 20);
    fake.options.refused_off = BIT(CHECKPOINTING);
    fake.options.refused_status = _i == 0 ? MT_EDEVMEM : MT_ENOTSUP;
    fake_log_clear(&fake);
    for (uint64_t id = 3; id < 3 + 20 * RUNG_WAIT; id++)
        ck_assert_uint_eq(step(trainer, 32, id).rungs, BIT(CHECKPOINTING));
    ck_assert_uint_ge(count_kind(FAKE_SET_RUNG), 2);
    ck_assert_uint_le(count_kind(FAKE_SET_RUNG), 16); /* not after each wait */
    fake.options.refused_off = 0;
    ck_assert_int_lt(steps_until_other(50 * RUNG_WAIT), 50 * RUNG_WAIT);
}

/* Any other failure is no matter of memory, and ends the step. */
TEST_LOOP("refused", set_rung_fails, 2) {
    static const fake_kind kinds[] = {FAKE_SET_RUNG, FAKE_SET_RATE};

    policy = allowing(BIT(SMALLER_BATCH));
    policy.rate_rule = MT_RATE_LINEAR;
    options.rungs = _i == 0 ? SAVERS : 0;
    options.needs_whole_batch = _i;
    trainer = trainer_with(&options, &policy);
    step(trainer, 20, 1);
    fake.options.budget_bytes = _i == 0 ? budget_with(BIT(CHECKPOINTING), FEW) : budget_with(0, 10);
    fake_fail_kind(&fake, kinds[_i], 1, MT_EIO);
    step_refused(20, 2, MT_EIO, "injected: set_r");
    some(trainer, 20, 2);
}

/* ---- down ----------------------------------------------------------------------------------- */

TEST("down", leaves) {
    int wait = RUNG_WAIT;

    trainer = trainer_with(&options, NULL);
    step(trainer, 32, 1);
    for (int round = 0; round < 4; round++) {
        fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
        step(trainer, 32, 2);
        ck_assert_uint_eq(fake.rungs, BIT(CHECKPOINTING));
        fake.options.budget_bytes = budget_with(0, 20);
        ck_assert_int_eq(steps_until_other(1000), wait + 1);
        ck_assert_uint_eq(fake.rungs, 0);
        wait *= 2;
    }
    ck_assert_uint_eq(fake.genuine, 0);
}

/* ---- a smaller batch ------------------------------------------------------------------------ */

/* Its first samples are a batch like any other: same bits as one of that many, at that rate. */
TEST_LOOP("smaller", shortened_step, 3) {
    const size_t few = cut_to(20, 32);
    const double share = (double)few / 32;
    const struct {
        mt_rate_rule rule;
        double rate;
    } rules[] = {{MT_RATE_KEEP, 1}, {MT_RATE_LINEAR, share}, {MT_RATE_SQRT, sqrt(share)}};
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_step_report first, second, expected;
    uint64_t hash;

    options = whole(20);
    policy = allowing(BIT(SMALLER_BATCH));
    policy.rate_rule = rules[_i].rule;
    trainer = trainer_with(&options, &policy);
    first = some(trainer, 32, 1);
    second = some(trainer, 32, 2);
    ck_assert_uint_eq(first.rungs, BIT(SMALLER_BATCH));
    ck_assert_uint_eq(first.samples, few);
    ck_assert_uint_eq(second.samples, few);
    ck_assert_uint_eq(second.chunk_count, 1);
    ck_assert_uint_eq(second.chunks[0], few);
    ck_assert_double_eq_tol(second.rate, rules[_i].rate, 1e-15);
    ck_assert_double_eq(fake.rate, second.rate);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.samples_trained, 2 * few);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.samples, 2 * few);
    hash = fake_hash(&fake);
    done(trainer);

    options.budget_bytes = budget_with(0, 40);
    trainer = trainer_with(&options, NULL);
    fake.rate = second.rate;
    expected = step(trainer, few, 1);
    ck_assert_double_eq(expected.loss, first.loss);
    expected = step(trainer, few, 2);
    ck_assert_double_eq(expected.loss, second.loss);
    ck_assert_mem_eq(expected.metrics, second.metrics, sizeof(expected.metrics));
    ck_assert_double_eq(expected.grad_norm, second.grad_norm);
    ck_assert_uint_eq(fake_hash(&fake), hash);
}

/* A batch that can be cut is cut, however small the room. */
TEST("smaller", not_where_it_can_be_cut) {
    options = with_rungs(0, budget_with(0, 4));
    policy = allowing(BIT(SMALLER_BATCH));
    trainer = trainer_with(&options, &policy);
    for (uint64_t id = 1; id < 4; id++) ck_assert_uint_eq(step(trainer, 32, id).rungs, 0);
    fake.options.budget_bytes = budget_with(0, 1) - 1;
    step_fails(trainer, 32, 4, MT_EDEVMEM);
}

/* Samples are chunks of at least 8: a batch of 12 is one, and has to be made smaller. */
TEST("smaller", smallest_chunk) {
    options = with_rungs(0, budget_with(0, 10));
    policy = allowing(BIT(SMALLER_BATCH));
    options.min_micro_batch = 8;
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_eq(some(trainer, 30, 1).samples, 30);
    ck_assert_uint_eq(some(trainer, 8, 2).samples, 8);
    ck_assert_uint_eq(some(trainer, 12, 3).samples, cut_once(12) > 8 ? cut_once(12) : 8);
    ck_assert_uint_eq(some(trainer, 8, 4).samples, 8);
    fake.options.budget_bytes = budget_with(0, 8) - 1;
    step_fails(trainer, 8, 5, MT_EDEVMEM); /* a smaller chunk is not legal */
    ck_assert_uint_eq(some(trainer, 7, 6).samples, 7);
}

/* A batch that cannot be made smaller has passed a rung over, which the next one needs. */
TEST("smaller", passed_over) {
    mt_step_report report;

    options = with_rungs(BIT(MINIMAL), budget_with(BIT(MINIMAL), 12));
    policy = allowing(BIT(SMALLER_BATCH) | BIT(MINIMAL));
    options.min_micro_batch = 8;
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_eq(step(trainer, 8, 1).rungs, BIT(MINIMAL));
    report = some(trainer, 15, 2);
    ck_assert_uint_eq(report.rungs, BIT(SMALLER_BATCH) | BIT(MINIMAL));
    ck_assert_uint_eq(report.samples, cut_to(12, 15));
}

/* There is room again: one cut less at a time, and at last the whole batch at the full rate. */
TEST("smaller", grows_back) {
    const size_t first = cut_once(cut_once(cut_once(32)));
    const size_t second = one_cut_less(first), third = one_cut_less(second);
    mt_step_report report;
    uint64_t id = 1;

    options = whole(first);
    policy = allowing(BIT(SMALLER_BATCH));
    policy.rate_rule = MT_RATE_LINEAR;
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_eq(some(trainer, 32, id++).samples, first);
    fake.options.budget_bytes = budget_with(0, one_cut_less(third) - 1);
    for (int i = 0; i < RUNG_WAIT; i++) ck_assert_uint_eq(some(trainer, 32, id++).samples, first);
    for (int i = 0; i <= RUNG_WAIT; i++) ck_assert_uint_eq(some(trainer, 32, id++).samples, second);
    for (int i = 0; i < 7 * RUNG_WAIT; i++) report = some(trainer, 32, id++);
    ck_assert_uint_eq(report.samples, third);
    ck_assert_double_eq(report.rate, (double)third / 32);
    fake.options.budget_bytes = budget_with(0, 40);
    for (int i = 0; i < 10 * RUNG_WAIT; i++) report = some(trainer, 32, id++);
    ck_assert_uint_eq(report.samples, 32);
    ck_assert_uint_eq(report.rungs, 0);
    ck_assert_double_eq(report.rate, 1);
    ck_assert_double_eq(fake.rate, 1);
}

/* A backend without set_rate keeps its rate, and the report says so. */
TEST("smaller", no_set_rate) {
    mt_step_report report;

    options = whole(20);
    policy = allowing(BIT(SMALLER_BATCH));
    policy.rate_rule = MT_RATE_LINEAR;
    options.absent = FAKE_BIT(FAKE_SET_RATE);
    trainer = trainer_with(&options, &policy);
    report = some(trainer, 32, 1);
    ck_assert_uint_eq(report.samples, cut_to(20, 32));
    ck_assert_double_eq(report.rate, 1);
}

/* A large batch of which little fits, and nothing is known of it: one step finds what does. */
TEST_LOOP("smaller", far_too_large, 5) {
    static const size_t fitting[] = {20, 8, 4, 2, 1};

    options = whole(fitting[_i]);
    policy = allowing(BIT(SMALLER_BATCH));
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_le(some(trainer, 32, 1).samples, fitting[_i]);
}

/* ---- the other device ----------------------------------------------------------------------- */

/* Nothing fits any more, and then all does: no step is lost on the way there and back, each time. */
TEST_LOOP("device", to_the_cpu_and_back, 2) {
    unsigned rungs = _i == 0 ? BIT(CPU) : BIT(CPU) | BIT(MINIMAL);
    uint64_t id = 1;

    options = with_rungs(rungs, budget_with(0, 20));
    policy = allowing(rungs);
    options.seconds = fake_seconds;
    options.rung_seconds[MT_RUNG_CPU] = 5;
    if (_i == 1) options.cpu_bytes = budget_with(rungs, FEW);
    trainer = trainer_with(&options, &policy);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) ck_assert_uint_eq(step(trainer, 32, id++).rungs, 0);
        fake.options.budget_bytes = options.resident_bytes + 100;
        for (int i = 0; i < 20; i++) ck_assert_uint_eq(step(trainer, 32, id++).rungs, rungs);
        fake.options.budget_bytes = budget_with(0, 20);
        ck_assert_int_lt(steps_until_other(2000), 2000);
        ck_assert_uint_eq(fake.rungs, 0);
    }
    ck_assert_uint_eq(fake.step, fake.state.updates);
}

/* The chunks on the other device are those that its memory holds, from the first step there. */
TEST("device", chunks_fit_the_device) {
    uint64_t genuine;

    options = with_rungs(BIT(CPU), budget_with(0, 20));
    policy = allowing(BIT(CPU));
    policy.deterministic = 1;
    options.cpu_bytes = budget_with(BIT(CPU), 7);
    trainer = trainer_with(&options, &policy);
    step(trainer, 40, 1);
    fake.options.budget_bytes = options.resident_bytes + 100;
    for (uint64_t id = 2; id < 4; id++) step(trainer, 40, id);
    fake.options.budget_bytes = budget_with(0, 20);
    genuine = fake.genuine;
    while (fake.rungs) step(trainer, 40, 5);
    step(trainer, 40, 6);
    fake.options.budget_bytes = options.resident_bytes + 100;
    fake_log_clear(&fake);
    ck_assert_uint_eq(step(trainer, 40, 7).rungs, BIT(CPU)); /* again: it is known by now */
    ck_assert_uint_eq(fake.genuine, genuine);
    ck_assert_uint_le(step(trainer, 40, 8).chunks[0], 7);
}

/*
 * A device that tells nothing is not asked for recordings, and no samples are thrown away for them; the other one is
 * as soon as it is there, so what chunks need there is foretold to the byte.
 */
TEST_LOOP("device", recordings_of_one_device, 2) {
    mt_step_report report;

    options = with_rungs(BIT(CPU), budget_with(0, 20));
    policy = allowing(BIT(CPU));
    options.record_rungs = BIT(CPU);
    options.normalises_over_batch = _i;
    options.cpu_bytes = budget_with(BIT(CPU), 20);
    trainer = trainer_with(&options, &policy);
    for (uint64_t id = 1; id < 9; id++) ck_assert_uint_eq(step(trainer, 16, id).discarded, 0);
    ck_assert_uint_eq(count_kind(FAKE_RECORD), 0);
    fake.options.budget_bytes = options.resident_bytes + 100;
    report = step(trainer, 40, 9);
    ck_assert_uint_eq(report.rungs, BIT(CPU));
    ck_assert_uint_gt(count_kind(FAKE_RECORD), 0);
    for (uint64_t id = 10; id < 14; id++) {
        report = step(trainer, 40, id);
        ck_assert_uint_eq(report.rungs, BIT(CPU));
        ck_assert_uint_eq(report.predicted_peak_bytes, report.peak_bytes);
    }
}

TRAINER_SUITE_FROM("trainer_ladder", begin)
