/*
 * check_trainer_ladder.c - the rungs as a trainer takes and leaves them: what the backend is told, what
 * the reports and the trace say, and that a replay of them ends with the same bits.
 */
#include "suite.h"
#include "trainer_fixture.h"

#include <math.h>
#include <stdio.h>

#define BIT(rung) MT_RUNG_BIT(MT_RUNG_##rung)
#define ALL (MT_RUNG_BIT(MT_RUNGS) - 1)
#define SAVERS (BIT(CHECKPOINTING) | BIT(OFFLOAD))

enum { PATIENCE = 8 };

/* A budget for m samples with these rungs on. */
static size_t budget_with(unsigned rungs, size_t m) {
    fake_allocation storage[FAKE_ALLOCATIONS_MAX];
    fake_program program = fake_program_with(&fake_train_program, rungs, storage);

    return fake_defaults.resident_bytes + fake_program_peak(&program, m);
}

static fake_options with_rungs(unsigned rungs, size_t budget) {
    fake_options options = fake_defaults;

    options.rungs = rungs & ~BIT(SMALLER_BATCH);
    options.budget_bytes = budget;
    options.cpu_bytes = budget_with(0, 40);
    options.may_shorten = 1;
    options.min_micro_batch = 2;
    return options;
}

static mt_policy_options allowing(unsigned rungs) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;

    policy.allow_rungs = rungs;
    return policy;
}

/* One step that goes through, on all or some of its samples. */
static mt_step_report some(mt_trainer *trainer, size_t count, uint64_t id) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_batch batch = batch_of(count, id);

    ck_ok(mt_trainer_step(trainer, &batch, &report));
    return report;
}

/* Steps until other rungs are on, or most. */
static int steps_until_other(mt_trainer *trainer, int most) {
    unsigned before = fake.rungs;
    int steps = 0;

    while (steps < most && fake.rungs == before) {
        some(trainer, 32, 100 + (uint64_t)steps);
        steps++;
    }
    return steps;
}

/* ---- trace ---------------------------------------------------------------------------------- */

static char trace[400][1000];
static size_t traced;

static void keep_line(void *user, const char *line) {
    (void)user;
    if (traced < 400) snprintf(trace[traced++], sizeof(trace[0]), "%s", line);
}

static mt_trainer *traced_trainer(const fake_options *options, const mt_policy_options *policy) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;

    own.policy = policy;
    own.trace = keep_line;
    return trainer_of(options, &own);
}

/* Lines with both texts in them. */
static size_t lines_with(const char *one, const char *other) {
    size_t count = 0;

    for (size_t i = 0; i < traced; i++)
        count += strstr(trace[i], one) != NULL && strstr(trace[i], other) != NULL;
    return count;
}

/* ---- up ------------------------------------------------------------------------------------- */

/* The rungs that suffice for four samples, and what is on then. */
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
START_TEST(climbs) {
    int row = _i / 2, beforehand = _i % 2;
    size_t enough = budget_with(rows[row].suffice, 4);
    fake_options options = with_rungs(rows[row].has, beforehand ? budget_with(0, 20) : enough);
    mt_policy_options policy = allowing(rows[row].allow);
    mt_trainer *trainer;
    mt_step_report report;

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
    done(trainer);
}
END_TEST

/* A backend without set_rung has none, whatever it says of itself. */
START_TEST(no_set_rung) {
    fake_options options = with_rungs(SAVERS, budget_with(SAVERS, 4));
    mt_backend seam;
    mt_trainer *trainer;

    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    seam.set_rung = NULL;
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    step_fails(trainer, 32, 1, MT_EDEVMEM);
    done(trainer);
}
END_TEST

/* Evaluation that does not fit asks for the rungs too, but for a smaller batch. */
/* Rungs that spare what a backward pass needs are none for it. */
START_TEST(evaluation_climbs) {
    fake_options options = with_rungs(SAVERS | BIT(AMP), budget_with(0, 20));
    mt_policy_options policy = allowing(ALL);
    fake_program heavy = fake_train_program;
    mt_trainer *trainer;

    options.eval = heavy;
    trainer = trainer_with(&options, &policy);
    evaluate(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    evaluate(trainer, 32, 2);
    ck_assert_uint_eq(fake.rungs, BIT(AMP));
    done(trainer);
}
END_TEST

/* ---- a rung that cannot be set --------------------------------------------------------------- */

/* A step has gone through that no rung was needed for; the next one needs one, which memory runs out for. */
static mt_trainer *trainer_short_of_memory(void) {
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer *trainer;

    policy.clear_every = MT_CLEAR_NEVER;
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    fake_log_clear(&fake);
    fake_fail_kind(&fake, FAKE_SET_RUNG, 1, MT_EDEVMEM);
    return trainer;
}

/* Refused for want of memory: once more with an empty cache, before it is done without. */
START_TEST(refused_once) {
    mt_trainer *trainer = trainer_short_of_memory();

    step(trainer, 32, 2);
    ck_assert_str_eq(fake_log_text(&fake, FAKE_BIT(FAKE_SET_RUNG) | FAKE_BIT(FAKE_EMPTY_CACHE)),
                     "set_rung!(1+1) empty_cache set_rung(1+1)");
    done(trainer);
}
END_TEST

/* A cache that cannot be emptied for another reason than memory says nothing of the rung. */
START_TEST(refused_and_not_cleared) {
    mt_trainer *trainer = trainer_short_of_memory();

    fake_fail_kind(&fake, FAKE_EMPTY_CACHE, 1, MT_EIO);
    step_fails(trainer, 32, 2, MT_EIO);
    ck_contains(mt_last_error(), "injected: empty_cache");
    ck_assert_uint_eq(fake.rungs, 0);
    ck_assert_uint_eq(step(trainer, 32, 2).rungs, BIT(CHECKPOINTING)); /* and it is tried again */
    done(trainer);
}
END_TEST

/* The next one instead: for this step, or for good. */
START_TEST(refused_on) {
    static const struct {
        mt_status why;
        unsigned later;
    } cases[] = {{MT_EDEVMEM, BIT(CHECKPOINTING)}, {MT_ENOTSUP, BIT(OFFLOAD)}};
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer = trainer_with(&options, NULL);

    step(trainer, 32, 1);
    fake.options.refused_on = BIT(CHECKPOINTING);
    fake.options.refused_status = cases[_i].why;
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    ck_assert_uint_eq(step(trainer, 32, 2).rungs, BIT(OFFLOAD));
    fake.options.refused_on = 0;
    fake.options.budget_bytes = budget_with(0, 20);
    ck_assert_int_eq(steps_until_other(trainer, 100), PATIENCE + 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    ck_assert_uint_eq(step(trainer, 32, 3).rungs, cases[_i].later);
    done(trainer);
}
END_TEST

/* Turned off in vain, it stays on, and the steps go on. */
START_TEST(refused_off) {
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer = trainer_with(&options, NULL);

    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    step(trainer, 32, 2);
    fake.options.budget_bytes = budget_with(0, 20);
    fake.options.refused_off = BIT(CHECKPOINTING);
    fake.options.refused_status = _i == 0 ? MT_EDEVMEM : MT_ENOTSUP;
    fake_log_clear(&fake);
    for (uint64_t id = 3; id < 80; id++)
        ck_assert_uint_eq(step(trainer, 32, id).rungs, BIT(CHECKPOINTING));
    ck_assert_uint_ge(count_kind(FAKE_SET_RUNG), 2);
    ck_assert_uint_le(count_kind(FAKE_SET_RUNG), 6);
    fake.options.refused_off = 0;
    ck_assert_int_lt(steps_until_other(trainer, 200), 200);
    done(trainer);
}
END_TEST

/* Any other failure is no matter of memory, and ends the step. */
START_TEST(set_rung_fails) {
    static const fake_kind kinds[] = {FAKE_SET_RUNG, FAKE_SET_RATE};
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer;

    policy.rate_rule = MT_RATE_LINEAR;
    options.rungs = _i == 0 ? SAVERS : 0;
    options.needs_whole_batch = _i;
    trainer = trainer_with(&options, &policy);
    step(trainer, 20, 1);
    fake.options.budget_bytes = _i == 0 ? budget_with(BIT(CHECKPOINTING), 4) : budget_with(0, 10);
    fake_fail_kind(&fake, kinds[_i], 1, MT_EIO);
    step_fails(trainer, 20, 2, MT_EIO);
    ck_contains(mt_last_error(), "injected: set_r");
    some(trainer, 20, 2);
    done(trainer);
}
END_TEST

/* ---- down ----------------------------------------------------------------------------------- */

START_TEST(leaves) {
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer = trainer_with(&options, NULL);
    int wait = PATIENCE;

    step(trainer, 32, 1);
    for (int round = 0; round < 4; round++) {
        fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
        step(trainer, 32, 2);
        ck_assert_uint_eq(fake.rungs, BIT(CHECKPOINTING));
        fake.options.budget_bytes = budget_with(0, 20);
        ck_assert_int_eq(steps_until_other(trainer, 1000), wait + 1);
        ck_assert_uint_eq(fake.rungs, 0);
        wait *= 2;
    }
    ck_assert_uint_eq(fake.genuine, 0);
    done(trainer);
}
END_TEST

/* With the rung on a chunk is faster than it was without: it stays. */
START_TEST(stays_where_it_is_faster) {
    static const double times[] = {0.5, 2};
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer;

    options.seconds = fake_seconds;
    options.rung_seconds[MT_RUNG_CHECKPOINTING] = times[_i];
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id < 6; id++) step(trainer, 32, id);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    for (uint64_t id = 6; id < 10; id++) step(trainer, 32, id);
    fake.options.budget_bytes = budget_with(0, 20);
    steps_until_other(trainer, 100);
    ck_assert_uint_eq(fake.rungs, _i == 0 ? BIT(CHECKPOINTING) : 0);
    done(trainer);
}
END_TEST

/* ---- a smaller batch ------------------------------------------------------------------------ */

static fake_options whole(size_t fits) {
    fake_options options = with_rungs(0, budget_with(0, fits));

    options.min_micro_batch = 0;
    options.needs_whole_batch = 1;
    options.units = fake_unit_table;
    options.unit_count = FAKE_UNITS_COUNT;
    return options;
}

/* Its first samples are a batch like any other: same bits as one of that many, at that rate. */
START_TEST(shortened_step) {
    static const struct {
        mt_rate_rule rule;
        double rate;
    } rules[] = {{MT_RATE_KEEP, 1}, {MT_RATE_LINEAR, 0.625}, {MT_RATE_SQRT, 0.79056941504209483}};
    fake_options options = whole(20);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_step_report first, second, expected;
    mt_trainer *trainer;
    uint64_t hash;

    policy.rate_rule = rules[_i].rule;
    trainer = trainer_with(&options, &policy);
    first = some(trainer, 32, 1);
    second = some(trainer, 32, 2);
    ck_assert_uint_eq(first.rungs, BIT(SMALLER_BATCH));
    ck_assert_uint_eq(first.samples, 20);
    ck_assert_uint_eq(second.samples, 20);
    ck_assert_uint_eq(second.chunk_count, 1);
    ck_assert_uint_eq(second.chunks[0], 20);
    ck_assert_double_eq_tol(second.rate, rules[_i].rate, 1e-15);
    ck_assert_double_eq(fake.rate, second.rate);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.samples_trained, 40);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.samples, 40);
    hash = fake_hash(&fake);
    done(trainer);

    options.budget_bytes = budget_with(0, 40);
    trainer = trainer_with(&options, NULL);
    fake.rate = second.rate;
    expected = step(trainer, 20, 1);
    ck_assert_double_eq(expected.loss, first.loss);
    expected = step(trainer, 20, 2);
    ck_assert_double_eq(expected.loss, second.loss);
    ck_assert_mem_eq(expected.metrics, second.metrics, sizeof(expected.metrics));
    ck_assert_double_eq(expected.grad_norm, second.grad_norm);
    ck_assert_uint_eq(fake_hash(&fake), hash);
    done(trainer);
}
END_TEST

/* A batch that can be cut is cut, however small the room. */
START_TEST(not_where_it_can_be_cut) {
    fake_options options = with_rungs(0, budget_with(0, 4));
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_trainer *trainer = trainer_with(&options, &policy);

    for (uint64_t id = 1; id < 4; id++) ck_assert_uint_eq(step(trainer, 32, id).rungs, 0);
    fake.options.budget_bytes = budget_with(0, 1) - 1;
    step_fails(trainer, 32, 4, MT_EDEVMEM);
    done(trainer);
}
END_TEST

/* Samples are chunks of at least 8: a batch of 12 is one, and has to be made smaller. */
START_TEST(smallest_chunk) {
    fake_options options = with_rungs(0, budget_with(0, 10));
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_trainer *trainer;

    options.min_micro_batch = 8;
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_eq(some(trainer, 30, 1).samples, 30);
    ck_assert_uint_eq(some(trainer, 8, 2).samples, 8);
    ck_assert_uint_eq(some(trainer, 12, 3).samples, 9);
    ck_assert_uint_eq(some(trainer, 8, 4).samples, 8);
    fake.options.budget_bytes = budget_with(0, 8) - 1;
    step_fails(trainer, 8, 5, MT_EDEVMEM); /* a smaller chunk is not legal */
    ck_assert_uint_eq(some(trainer, 7, 6).samples, 7);
    done(trainer);
}
END_TEST

/* A batch that cannot be made smaller has passed a rung over, which the next one needs. */
START_TEST(passed_over) {
    fake_options options = with_rungs(BIT(MINIMAL), budget_with(BIT(MINIMAL), 12));
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH) | BIT(MINIMAL));
    mt_trainer *trainer;
    mt_step_report report;

    options.min_micro_batch = 8;
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_eq(step(trainer, 8, 1).rungs, BIT(MINIMAL));
    report = some(trainer, 15, 2);
    ck_assert_uint_eq(report.rungs, BIT(SMALLER_BATCH) | BIT(MINIMAL));
    ck_assert_uint_eq(report.samples, 12);
    done(trainer);
}
END_TEST

/* There is room again: one cut less at a time, and at last the whole batch at the full rate. */
START_TEST(grows_back) {
    fake_options options = whole(16);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_step_report report;
    mt_trainer *trainer;

    policy.rate_rule = MT_RATE_LINEAR;
    trainer = trainer_with(&options, &policy);
    ck_assert_uint_eq(some(trainer, 32, 1).samples, 16);
    fake.options.budget_bytes = budget_with(0, 26);
    for (uint64_t id = 2; id < 9; id++) ck_assert_uint_eq(some(trainer, 32, id).samples, 16);
    ck_assert_uint_eq(some(trainer, 32, 9).samples, 16);
    for (uint64_t id = 10; id < 18; id++) ck_assert_uint_eq(some(trainer, 32, id).samples, 20);
    for (uint64_t id = 18; id < 40; id++) report = some(trainer, 32, id);
    ck_assert_uint_eq(report.samples, 25);
    ck_assert_double_eq(report.rate, 25.0 / 32);
    fake.options.budget_bytes = budget_with(0, 40);
    for (uint64_t id = 40; id < 80; id++) report = some(trainer, 32, id);
    ck_assert_uint_eq(report.samples, 32);
    ck_assert_uint_eq(report.rungs, 0);
    ck_assert_double_eq(report.rate, 1);
    ck_assert_double_eq(fake.rate, 1);
    done(trainer);
}
END_TEST

/* A backend without set_rate keeps its rate, and the report says so. */
START_TEST(no_set_rate) {
    fake_options options = whole(20);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_step_report report;
    mt_trainer *trainer;

    policy.rate_rule = MT_RATE_LINEAR;
    options.absent = FAKE_BIT(FAKE_SET_RATE);
    trainer = trainer_with(&options, &policy);
    report = some(trainer, 32, 1);
    ck_assert_uint_eq(report.samples, 20);
    ck_assert_double_eq(report.rate, 1);
    done(trainer);
}
END_TEST

/* A large batch of which little fits, and nothing is known of it: one step finds what does. */
START_TEST(far_too_large) {
    static const size_t fitting[] = {20, 8, 4, 2, 1};
    fake_options options = whole(fitting[_i]);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_trainer *trainer = trainer_with(&options, &policy);

    ck_assert_uint_le(some(trainer, 32, 1).samples, fitting[_i]);
    done(trainer);
}
END_TEST

/* ---- the other device ----------------------------------------------------------------------- */

/* Nothing fits any more, and then all does: no step is lost on the way there and back, each time. */
START_TEST(to_the_cpu_and_back) {
    unsigned rungs = _i == 0 ? BIT(CPU) : BIT(CPU) | BIT(MINIMAL);
    fake_options options = with_rungs(rungs, budget_with(0, 20));
    mt_policy_options policy = allowing(rungs);
    mt_trainer *trainer;
    uint64_t id = 1;

    options.seconds = fake_seconds;
    options.rung_seconds[MT_RUNG_CPU] = 5;
    if (_i == 1) options.cpu_bytes = budget_with(rungs, 4);
    trainer = trainer_with(&options, &policy);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) ck_assert_uint_eq(step(trainer, 32, id++).rungs, 0);
        fake.options.budget_bytes = options.resident_bytes + 100;
        for (int i = 0; i < 20; i++) ck_assert_uint_eq(step(trainer, 32, id++).rungs, rungs);
        fake.options.budget_bytes = budget_with(0, 20);
        ck_assert_int_lt(steps_until_other(trainer, 2000), 2000);
        ck_assert_uint_eq(fake.rungs, 0);
    }
    ck_assert_uint_eq(fake.step, fake.state.updates);
    done(trainer);
}
END_TEST

/* The chunks on the other device are those that its memory holds, from the first step there. */
START_TEST(chunks_fit_the_device) {
    fake_options options = with_rungs(BIT(CPU), budget_with(0, 20));
    mt_policy_options policy = allowing(BIT(CPU));
    mt_trainer *trainer;
    uint64_t genuine;

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
    done(trainer);
}
END_TEST

/* ---- the end of the ladder ------------------------------------------------------------------- */

/* Everything is as before, and the next step starts where this one did. */
START_TEST(gives_up) {
    fake_options options = with_rungs(ALL, budget_with(0, 20));
    mt_policy_options policy = allowing(ALL);
    mt_trainer *trainer;

    options.needs_whole_batch = _i % 2;
    options.keep = _i / 2;
    options.cpu_bytes = options.resident_bytes + 10;
    trainer = trainer_with(&options, &policy);
    step(trainer, 20, 1);
    fake.options.budget_bytes = options.resident_bytes + 10;
    step_fails(trainer, 20, 2, MT_EDEVMEM);
    step_fails(trainer, 20, 2, MT_EDEVMEM);
    fake.options.budget_bytes = budget_with(0, 20);
    ck_assert_uint_eq(step(trainer, 20, 2).rungs, 0);
    ck_assert_uint_eq(fake.rungs, 0);
    ck_assert_double_eq(fake.rate, 1);
    done(trainer);
}
END_TEST

/* What was taken in vain is turned off, the newest first; those of before stay, and are not tried. */
static const struct {
    const char *name;
    int on_before;     /* a rung is on when the step begins */
    int evaluates;     /* no step but an evaluation gives up */
    unsigned stays_on; /* cannot be turned off ... */
    mt_status why;
    mt_status expected;
    unsigned on_after;
    const char *calls;
} backs[] = {
    {"a step", 0, 0, 0, MT_OK, MT_EDEVMEM, 0,
     "set_rung(1+1) set_rung(1+2) set_rung(0+2) set_rung(0+1)"},
    {"an evaluation", 0, 1, 0, MT_OK, MT_EDEVMEM, 0, "set_rung(1+3) set_rung(0+3)"},
    {"on one already", 1, 0, 0, MT_OK, MT_EDEVMEM, BIT(CHECKPOINTING),
     "set_rung(1+2) set_rung(0+2)"},
    {"no room to turn it off", 0, 0, BIT(OFFLOAD), MT_EDEVMEM, MT_EDEVMEM, BIT(OFFLOAD),
     "set_rung(1+1) set_rung(1+2) set_rung!(0+2) set_rung!(0+2) set_rung(0+1)"},
    {"not to be turned off at all", 0, 0, BIT(OFFLOAD), MT_ENOTSUP, MT_EDEVMEM, BIT(OFFLOAD),
     "set_rung(1+1) set_rung(1+2) set_rung!(0+2) set_rung(0+1)"},
    {"another failure", 0, 0, BIT(OFFLOAD), MT_EIO, MT_EIO, SAVERS,
     "set_rung(1+1) set_rung(1+2) set_rung!(0+2)"},
};

START_TEST(gives_rungs_back) {
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    static const fake_allocation huge[] = {{10000000, 1, FAKE_AT_END}};
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_batch batch = batch_of(32, 3);
    mt_trainer *trainer;
    mt_status status;

    if (backs[_i].evaluates) {
        options.eval = (fake_program){huge, 1};
        options.rungs |= policy.allow_rungs = BIT(AMP);
    }
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    if (backs[_i].on_before) fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    step(trainer, 32, 2);
    fake.options.refused_off = backs[_i].stays_on;
    fake.options.refused_status = backs[_i].why;
    if (!backs[_i].evaluates) fake.options.budget_bytes = options.resident_bytes + 10;
    fake_log_clear(&fake);
    status = backs[_i].evaluates ? mt_trainer_evaluate(trainer, &batch, NULL)
                                 : mt_trainer_step(trainer, &batch, NULL);
    ck_status(status, backs[_i].expected);
    if (backs[_i].expected == MT_EDEVMEM) ck_contains(mt_last_error(), "does not fit on");
    ck_assert_msg(strcmp(fake_log_text(&fake, FAKE_BIT(FAKE_SET_RUNG)), backs[_i].calls) == 0,
                  "%s: %s", backs[_i].name, fake_log_text(&fake, FAKE_BIT(FAKE_SET_RUNG)));
    ck_assert_uint_eq(fake.rungs, backs[_i].on_after);
    fake.options.refused_off = 0;
    fake.options.budget_bytes = budget_with(0, 20);
    step(trainer, 32, 4);
    done(trainer);
}
END_TEST

static char warned[512];

static void keep_warning(void *user, mt_log_level level, const char *text) {
    (void)user;
    if (level == MT_LOG_WARNING) snprintf(warned, sizeof warned, "%s", text);
}

/* One that was left by the step that fails is turned on again; where that cannot be, it is told. */
START_TEST(gives_a_left_rung_back) {
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer *trainer;

    policy.max_retries = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    step(trainer, 32, 2);
    fake.options.budget_bytes = budget_with(0, 20);
    for (int i = 0; i < PATIENCE; i++) step(trainer, 32, 3);
    ck_assert_uint_eq(fake.rungs, BIT(CHECKPOINTING));
    fake.options.device_bytes = options.resident_bytes + 10;
    fake.options.refused_on = _i == 0 ? 0 : BIT(CHECKPOINTING);
    mt_set_log(keep_warning, NULL);
    fake_log_clear(&fake);
    step_fails(trainer, 32, 4, MT_EDEVMEM);
    ck_assert_str_eq(fake_log_text(&fake, FAKE_BIT(FAKE_SET_RUNG)),
                     _i == 0 ? "set_rung(0+1) set_rung(1+1)" : "set_rung(0+1) set_rung!(1+1)");
    ck_assert_str_eq(warned, _i == 0 ? ""
                                     : "rung checkpointing cannot be turned on: refused: "
                                       "checkpointing");
    mt_set_log(NULL, NULL);
    fake.options.device_bytes = 0;
    ck_assert_uint_eq(step(trainer, 32, 5).rungs, _i == 0 ? BIT(CHECKPOINTING) : 0);
    done(trainer);
}
END_TEST

/* Nor does the rate of a batch made smaller stay. */
START_TEST(gives_rate_back) {
    fake_options options = whole(20);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_batch batch = batch_of(20, 2);
    mt_trainer *trainer;

    policy.rate_rule = MT_RATE_LINEAR;
    options.absent = FAKE_BIT(FAKE_RECORD); /* so that it is tried */
    trainer = trainer_with(&options, &policy);
    some(trainer, 20, 1);
    fake.options.budget_bytes = options.resident_bytes + 10;
    fake_log_clear(&fake);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_double_eq(fake.rate, 1);
    ck_assert_uint_ge(count_kind(FAKE_SET_RATE), 2);
    done(trainer);
}
END_TEST

/* Each rate that cannot be set, on the way to fewer samples or back: the step is over with that. */
START_TEST(rate_fails) {
    fake_options options = whole(20);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_batch batch = batch_of(20, 2);
    mt_step_report report;
    uint64_t n = 0;
    mt_status status;

    policy.rate_rule = MT_RATE_LINEAR;
    options.absent = FAKE_BIT(FAKE_RECORD); /* so that it is tried */
    do {
        mt_trainer *trainer = trainer_with(&options, &policy);
        uint64_t before;

        some(trainer, 20, 1);
        before = fake_hash(&fake);
        fake.options.budget_bytes = options.resident_bytes + 10;
        fake_fail_kind(&fake, FAKE_SET_RATE, ++n, MT_EIO);
        status = mt_trainer_step(trainer, &batch, NULL);
        ck_assert_int_eq(status, fake.fired ? MT_EIO : MT_EDEVMEM);
        ck_contains(mt_last_error(), fake.fired ? "injected: set_rate" : "does not fit on");
        ck_assert_uint_eq(fake_hash(&fake), before);
        fake.options.budget_bytes = options.budget_bytes;
        report = some(trainer, 20, 2);
        ck_assert_double_eq(fake.rate, (double)report.samples / 20);
        done(trainer);
    } while (status == MT_EIO);
    ck_assert_uint_ge(n, 3);
}
END_TEST

/* The same by failures that no budget explains, with a recording to be taken back on each rung. */
START_TEST(gives_up_for_no_reason) {
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer *trainer;

    policy.max_retries = 100;
    options.normalises_over_batch = _i % 2;
    options.min_micro_batch = 4;
    options.keep = _i / 2;
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    step(trainer, 32, 1);
    fake_fail_kind_for_ever(&fake, FAKE_ALLOCATION, 20, MT_EDEVMEM);
    step_fails(trainer, 32, 2, MT_EDEVMEM);
    fake_fail_kind(&fake, FAKE_ALLOCATION, 0, MT_OK);
    ck_assert_uint_eq(step(trainer, 32, 2).rungs, 0);
    done(trainer);
}
END_TEST

/* Evaluation that does not fit takes no rung away that training needs. */
START_TEST(evaluation_gives_up) {
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    static const fake_allocation huge[] = {{10000000, 1, FAKE_AT_END}};
    mt_batch batch = batch_of(16, 3);
    mt_trainer *trainer;

    options.eval = (fake_program){huge, 1};
    options.absent = FAKE_BIT(FAKE_RECORD); /* so that to climb again would cost an OOM */
    trainer = trainer_with(&options, NULL);
    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    ck_assert_uint_eq(step(trainer, 32, 2).rungs, BIT(CHECKPOINTING));
    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), MT_EDEVMEM);
    fake_log_clear(&fake);
    ck_assert_uint_eq(step(trainer, 32, 4).rungs, BIT(CHECKPOINTING));
    ck_assert_uint_eq(fake.rungs, BIT(CHECKPOINTING));
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 0);
    done(trainer);
}
END_TEST

/* Nor is evaluation tried again and again with a smaller batch, which is of no use to it. */
START_TEST(evaluation_is_not_shortened) {
    fake_options options = whole(20);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    static const fake_allocation huge[] = {{10000000, 1, FAKE_AT_END}};
    mt_batch batch = batch_of(16, 3);
    mt_trainer *trainer;

    options.eval = (fake_program){huge, 1};
    trainer = trainer_with(&options, &policy);
    step(trainer, 20, 1);
    fake_log_clear(&fake);
    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_uint_le(count_kind(FAKE_EVALUATE), 3);
    ck_assert_uint_eq(step(trainer, 20, 4).rungs, 0);
    done(trainer);
}
END_TEST

/* ---- replay --------------------------------------------------------------------------------- */

/* The chunks, rungs and rates of a run, given to one with all the memory: the same bits. */
START_TEST(replay_is_bit_equal) {
    enum { STEPS = 30 };
    size_t chunks[STEPS][64], counts[STEPS], samples[STEPS];
    unsigned rungs[STEPS], seen = 0;
    double rates[STEPS];
    fake_options options = _i == 0 ? whole(16) : with_rungs(ALL, budget_with(0, 8));
    mt_policy_options policy = allowing(ALL);
    mt_trainer *trainer;
    uint64_t hash;

    policy.rate_rule = MT_RATE_LINEAR;
    trainer = trainer_with(&options, &policy);
    for (int i = 0; i < STEPS; i++) {
        mt_step_report report;

        if (i == 5) fake.options.budget_bytes = budget_with(_i == 0 ? 0 : SAVERS, 6);
        if (i == 12) fake.options.budget_bytes = budget_with(0, 40);
        report = some(trainer, 32, (uint64_t)i);
        ck_assert_uint_le(report.chunk_count, 64);
        memcpy(chunks[i], report.chunks, report.chunk_count * sizeof(chunks[i][0]));
        counts[i] = report.chunk_count;
        samples[i] = report.samples;
        rungs[i] = report.rungs;
        rates[i] = report.rate;
        seen |= rungs[i];
    }
    ck_assert_uint_eq(seen, _i == 0 ? BIT(SMALLER_BATCH) : SAVERS);
    hash = fake_hash(&fake);
    done(trainer);

    options.budget_bytes = 0;
    trainer = trainer_with(&options, NULL);
    for (int i = 0; i < STEPS; i++) {
        ck_ok(mt_trainer_set_chunks(trainer, chunks[i], counts[i]));
        ck_ok(mt_trainer_set_rungs(trainer, rungs[i], rates[i]));
        ck_assert_uint_eq(step(trainer, samples[i], (uint64_t)i).rungs, rungs[i]);
        ck_assert_double_eq(fake.rate, rates[i]);
    }
    ck_assert_uint_eq(fake_hash(&fake), hash);
    done(trainer);
}
END_TEST

/* The batch as it was handed over the first time: the first samples of it are trained, and weighed alone. */
START_TEST(replay_of_a_whole_batch) {
    enum { STEPS = 8 };
    fake_options options = whole(20);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_trainer *trainer = trainer_with(&options, &policy);
    mt_step_report reports[STEPS];
    size_t chunks[STEPS];
    uint64_t hash;

    for (int i = 0; i < STEPS; i++) {
        reports[i] = some(trainer, i == 3 ? 15 : 32, (uint64_t)i);
        ck_assert_uint_eq(reports[i].chunk_count, 1);
        chunks[i] = reports[i].chunks[0];
    }
    ck_assert_uint_eq(reports[0].samples, 20);
    hash = fake_hash(&fake);
    done(trainer);

    options.budget_bytes = 0;
    trainer = trainer_with(&options, NULL);
    for (int i = 0; i < STEPS; i++) {
        ck_ok(mt_trainer_set_chunks(trainer, &chunks[i], 1));
        ck_ok(mt_trainer_set_rungs(trainer, reports[i].rungs, reports[i].rate));
        ck_assert_uint_eq(some(trainer, i == 3 ? 15 : 32, (uint64_t)i).samples, chunks[i]);
    }
    ck_assert_uint_eq(fake_hash(&fake), hash);
    done(trainer);
}
END_TEST

/* Fewer samples than the batch are a step that was made smaller; more are none of this batch. */
static const struct {
    size_t chunk;
    unsigned rungs;
    mt_status status;
} of_32[] = {
    {20, BIT(SMALLER_BATCH), MT_OK},     {32, BIT(SMALLER_BATCH), MT_OK},
    {33, BIT(SMALLER_BATCH), MT_EINVAL}, {20, 0, MT_EINVAL},
    {20, BIT(CHECKPOINTING), MT_EINVAL},
};

START_TEST(replay_of_more_or_fewer_samples) {
    fake_options options = with_rungs(SAVERS, 0);
    mt_trainer *trainer = trainer_with(&options, NULL);
    mt_batch batch = batch_of(32, 1);

    ck_ok(mt_trainer_set_chunks(trainer, &of_32[_i].chunk, 1));
    ck_ok(mt_trainer_set_rungs(trainer, of_32[_i].rungs, 1));
    ck_status(mt_trainer_step(trainer, &batch, NULL), of_32[_i].status);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), of_32[_i].status == MT_OK);
    done(trainer);
}
END_TEST

/* For one step alone: the next one with chunks, or without, has no rung again. */
START_TEST(set_rungs_is_used_once) {
    static const size_t chunks[] = {8, 8};
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer = trainer_with(&options, NULL);

    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_ok(mt_trainer_set_rungs(trainer, SAVERS, 0.5));
    ck_assert_uint_eq(step(trainer, 16, 1).rungs, SAVERS);
    ck_assert_double_eq(fake.rate, 0.5);
    if (_i == 1) ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_assert_uint_eq(step(trainer, 16, 2).rungs, 0);
    ck_assert_double_eq(fake.rate, 1);
    ck_status(mt_trainer_set_rungs(trainer, 0, 1), MT_EINVAL);
    done(trainer);
}
END_TEST

/* Chunks that were given teach nothing of rungs that they ran without. */
START_TEST(replay_teaches_nothing_wrong) {
    static const size_t chunks[] = {3, 3};
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer = trainer_with(&options, NULL);
    const mt_policy *policy = mt_trainer_policy(trainer);
    size_t bytes;

    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    step(trainer, 32, 2);
    bytes = mt_policy_predict_bytes(policy, MT_TRAIN, 8);
    fake.options.budget_bytes = budget_with(0, 20);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_assert_uint_eq(step(trainer, 6, 3).rungs, 0);
    ck_assert_uint_eq(mt_policy_predict_bytes(policy, MT_TRAIN, 8), bytes);
    done(trainer);
}
END_TEST

/* A rung that cannot be set ends the step: it would not be the one of the trace. */
START_TEST(replay_fails) {
    static const size_t chunks[] = {8, 8};
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer = trainer_with(&options, NULL);

    fake.options.refused_on = BIT(OFFLOAD);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_ok(mt_trainer_set_rungs(trainer, SAVERS, 1));
    step_fails(trainer, 16, 1, MT_ENOTSUP);
    ck_contains(mt_last_error(), "refused: offload");
    ck_assert_uint_eq(step(trainer, 16, 1).rungs, 0);
    done(trainer);
}
END_TEST

static const struct {
    unsigned rungs;
    double rate;
    const char *named;
} bad_rungs[] = {
    {BIT(AMP), 1, "rungs is 0x4; the backend knows 0xb"},
    {MT_RUNG_BIT(MT_RUNGS), 1, "rungs is 0x40"},
    {0, 0, "rate is 0"},
    {0, -1, "rate is -1"},
    {0, (double)INFINITY, "rate is inf"},
    {0, (double)NAN, "rate is"},
};

START_TEST(set_rungs_is_checked) {
    static const size_t chunks[] = {8, 8};
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    mt_trainer *trainer = trainer_with(&options, NULL);

    ck_status(mt_trainer_set_rungs(NULL, 0, 1), MT_EINVAL);
    ck_status(mt_trainer_set_rungs(trainer, 0, 1), MT_EINVAL);
    ck_contains(mt_last_error(), "mt_trainer_set_chunks first");
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_status(mt_trainer_set_rungs(trainer, bad_rungs[_i].rungs, bad_rungs[_i].rate), MT_EINVAL);
    ck_contains(mt_last_error(), bad_rungs[_i].named);
    ck_assert_uint_eq(step(trainer, 16, 1).rungs, 0);
    done(trainer);
}
END_TEST

/* ---- the trace ------------------------------------------------------------------------------ */

START_TEST(rungs_in_the_trace) {
    fake_options options = with_rungs(SAVERS, budget_with(0, 20));
    static const size_t chunks[] = {16};
    mt_trainer *trainer = traced_trainer(&options, NULL);

    step(trainer, 32, 1);
    ck_assert_uint_eq(lines_with("\"rungs\"", ""), 0);
    ck_assert_uint_eq(lines_with("\"rate\"", ""), 0);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), 4);
    step(trainer, 32, 2);
    ck_assert_uint_eq(lines_with("{\"event\":\"rung\",\"step\":2,\"name\":\"checkpointing\","
                                 "\"on\":true,\"reason\":\"budget\"}",
                                 ""),
                      1);
    ck_assert_uint_eq(lines_with("{\"event\":\"step\",\"step\":2", "\"rungs\":[\"checkpointing\"]"),
                      1);
    fake.options.budget_bytes = budget_with(0, 20);
    while (fake.rungs) step(trainer, 32, 3);
    ck_assert_uint_eq(lines_with("\"on\":false,\"reason\":\"room\"}", "\"checkpointing\""), 1);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 1));
    ck_ok(mt_trainer_set_rungs(trainer, SAVERS, 0.25));
    step(trainer, 16, 4);
    ck_assert_uint_eq(lines_with("\"on\":true,\"reason\":\"replay\"}", ""), 2);
    ck_assert_uint_eq(lines_with("\"rungs\":[\"checkpointing\",\"offload\"],\"rate\":0.25", ""), 1);
    done(trainer);
}
END_TEST

START_TEST(smaller_batch_in_the_trace) {
    fake_options options = whole(20);
    mt_policy_options policy = allowing(BIT(SMALLER_BATCH));
    mt_trainer *trainer;

    policy.rate_rule = MT_RATE_LINEAR;
    trainer = traced_trainer(&options, &policy);
    some(trainer, 32, 1);
    ck_assert_uint_eq(lines_with("\"event\":\"rung\"",
                                 "\"name\":\"smaller_batch\",\"on\":true,\"reason\":\"oom\"}"),
                      1);
    ck_assert_uint_eq(lines_with("\"event\":\"step\"", "\"samples\":20,\"chunks\":[20]"), 1);
    ck_assert_uint_eq(
        lines_with("\"event\":\"step\"", "\"rungs\":[\"smaller_batch\"],\"rate\":0.625"), 1);
    done(trainer);
}
END_TEST

static Suite *suite_trainer_ladder(void) {
    Suite *suite = suite_create("trainer_ladder");
    TCase *up = suite_case(suite, "up"), *refused = suite_case(suite, "refused"),
          *down = suite_case(suite, "down"), *smaller = suite_case(suite, "smaller"),
          *device = suite_case(suite, "device"), *end = suite_case(suite, "end"),
          *replay = suite_case(suite, "replay"), *lines = suite_case(suite, "trace");

    tcase_add_loop_test(up, climbs, 0, 2 * LENGTH(rows));
    tcase_add_test(up, no_set_rung);
    tcase_add_test(up, evaluation_climbs);
    tcase_add_test(refused, refused_once);
    tcase_add_test(refused, refused_and_not_cleared);
    tcase_add_loop_test(refused, refused_on, 0, 2);
    tcase_add_loop_test(refused, refused_off, 0, 2);
    tcase_add_loop_test(refused, set_rung_fails, 0, 2);
    tcase_add_test(down, leaves);
    tcase_add_loop_test(down, stays_where_it_is_faster, 0, 2);
    tcase_add_loop_test(smaller, shortened_step, 0, 3);
    tcase_add_test(smaller, not_where_it_can_be_cut);
    tcase_add_test(smaller, smallest_chunk);
    tcase_add_test(smaller, passed_over);
    tcase_add_test(smaller, grows_back);
    tcase_add_test(smaller, no_set_rate);
    tcase_add_loop_test(smaller, far_too_large, 0, 5);
    tcase_add_loop_test(device, to_the_cpu_and_back, 0, 2);
    tcase_add_test(device, chunks_fit_the_device);
    tcase_add_loop_test(end, gives_up, 0, 4);
    tcase_add_loop_test(end, gives_rungs_back, 0, LENGTH(backs));
    tcase_add_loop_test(end, gives_a_left_rung_back, 0, 2);
    tcase_add_test(end, gives_rate_back);
    tcase_add_test(end, rate_fails);
    tcase_add_loop_test(end, gives_up_for_no_reason, 0, 4);
    tcase_add_test(end, evaluation_gives_up);
    tcase_add_test(end, evaluation_is_not_shortened);
    tcase_add_loop_test(replay, replay_is_bit_equal, 0, 2);
    tcase_add_test(replay, replay_of_a_whole_batch);
    tcase_add_loop_test(replay, replay_of_more_or_fewer_samples, 0, LENGTH(of_32));
    tcase_add_loop_test(replay, set_rungs_is_used_once, 0, 2);
    tcase_add_test(replay, replay_teaches_nothing_wrong);
    tcase_add_test(replay, replay_fails);
    tcase_add_loop_test(replay, set_rungs_is_checked, 0, LENGTH(bad_rungs));
    tcase_add_test(lines, rungs_in_the_trace);
    tcase_add_test(lines, smaller_batch_in_the_trace);
    return suite;
}

int main(void) {
    return suite_run(suite_trainer_ladder());
}
