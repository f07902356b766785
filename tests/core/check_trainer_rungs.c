/*
 * check_trainer_rungs.c - what remains of the rungs of a trainer: nothing of those that were taken in vain,
 * a trace that tells of each, and a replay that ends with the same bits. Which are taken and left:
 * check_trainer_ladder.c.
 */
#include "suite.h"
#include "trainer_rungs.h"
#include "trainer_tests.h"

#include <math.h>
#include <stdio.h>

/* The savers, and room for 20 samples without them. */
static void begin(void) {
    begin_defaults();
    options = with_rungs(SAVERS, budget_with(0, 20));
}

/* ---- the end of the ladder ------------------------------------------------------------------- */

/* Everything is as before, and the next step starts where this one did. */
TEST_LOOP("end", gives_up, 4) {
    options = with_rungs(ALL, budget_with(0, 20));
    policy = allowing(ALL);
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
}

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

TEST_LOOP("end", gives_rungs_back, LENGTH(backs)) {
    static const fake_allocation huge[] = {{10000000, 1, FAKE_AT_END}};
    mt_batch batch = batch_of(32, 3);
    mt_status status;

    if (backs[_i].evaluates) {
        options.eval = (fake_program){huge, 1};
        options.rungs |= policy.allow_rungs = BIT(AMP);
    }
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    if (backs[_i].on_before) fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
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
}

static char warned[512];

static void keep_warning(void *user, mt_log_level level, const char *text) {
    (void)user;
    if (level == MT_LOG_WARNING) snprintf(warned, sizeof warned, "%s", text);
}

/* One that was left by the step that fails is turned on again; where that cannot be, it is told. */
TEST_LOOP("end", gives_a_left_rung_back, 2) {
    policy.max_retries = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
    step(trainer, 32, 2);
    fake.options.budget_bytes = budget_with(0, 20);
    for (int i = 0; i < RUNG_WAIT; i++) step(trainer, 32, 3);
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
}

/* Nor does the rate of a batch made smaller stay. */
TEST("end", gives_rate_back) {
    mt_batch batch = batch_of(20, 2);

    options = whole(20);
    policy = allowing(BIT(SMALLER_BATCH));
    policy.rate_rule = MT_RATE_LINEAR;
    options.absent = FAKE_BIT(FAKE_RECORD); /* so that it is tried */
    trainer = trainer_with(&options, &policy);
    some(trainer, 20, 1);
    fake.options.budget_bytes = options.resident_bytes + 10;
    fake_log_clear(&fake);
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM);
    ck_assert_double_eq(fake.rate, 1);
    ck_assert_uint_ge(count_kind(FAKE_SET_RATE), 2);
}

/* Each rate that cannot be set, on the way to fewer samples or back: the step is over with that. */
TEST("end", rate_fails) {
    mt_batch batch = batch_of(20, 2);
    mt_step_report report;
    uint64_t n = 0;
    mt_status status;

    options = whole(20);
    policy = allowing(BIT(SMALLER_BATCH));
    policy.rate_rule = MT_RATE_LINEAR;
    options.absent = FAKE_BIT(FAKE_RECORD); /* so that it is tried */
    do {
        uint64_t before;

        trainer = trainer_with(&options, &policy);
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
        end_trainer();
    } while (status == MT_EIO);
    ck_assert_uint_ge(n, 3);
}

/* The same by failures that no budget explains, with a recording to be taken back on each rung. */
TEST_LOOP("end", gives_up_for_no_reason, 4) {
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
}

/* Evaluation that does not fit takes no rung away that training needs. */
TEST("end", evaluation_gives_up) {
    static const fake_allocation huge[] = {{10000000, 1, FAKE_AT_END}};
    const size_t first = 2 * LEAST_NORMALISED, batch = first * SMALLEST_SHARE;

    options.min_micro_batch = first / 2;
    options.eval = (fake_program){huge, 1};
    options.absent = FAKE_BIT(FAKE_RECORD); /* so that to climb again would cost an OOM */
    trainer = trainer_with(&options, NULL);
    step(trainer, batch, 1);
    /* For half of what such a kind begins with. */
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), first / 2);
    ck_assert_uint_eq(step(trainer, batch, 2).rungs, BIT(CHECKPOINTING));
    evaluation_fails(16, 3, MT_EDEVMEM);
    fake_log_clear(&fake);
    ck_assert_uint_eq(step(trainer, batch, 4).rungs, BIT(CHECKPOINTING));
    ck_assert_uint_eq(fake.rungs, BIT(CHECKPOINTING));
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 0);
}

/* Nor is evaluation tried again and again with a smaller batch, which is of no use to it. */
TEST("end", evaluation_is_not_shortened) {
    static const fake_allocation huge[] = {{10000000, 1, FAKE_AT_END}};

    options = whole(20);
    policy = allowing(BIT(SMALLER_BATCH));
    options.eval = (fake_program){huge, 1};
    trainer = trainer_with(&options, &policy);
    step(trainer, 20, 1);
    fake_log_clear(&fake);
    evaluation_fails(16, 3, MT_EDEVMEM);
    ck_assert_uint_le(count_kind(FAKE_EVALUATE), 3);
    ck_assert_uint_eq(step(trainer, 20, 4).rungs, 0);
}

/* ---- replay --------------------------------------------------------------------------------- */

/* The chunks, rungs and rates of a run, given to one with all the memory: the same bits. */
TEST_LOOP("replay", replay_is_bit_equal, 2) {
    enum { STEPS = 30 };
    size_t chunks[STEPS][64], counts[STEPS], samples[STEPS];
    unsigned rungs[STEPS], seen = 0;
    double rates[STEPS];
    uint64_t hash;

    options = _i == 0 ? whole(16) : with_rungs(ALL, budget_with(0, 8));
    policy = allowing(ALL);
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
}

/* The batch as it was handed over the first time: the first samples of it are trained, and weighed alone. */
TEST("replay", replay_of_a_whole_batch) {
    enum { STEPS = 8 };
    mt_step_report reports[STEPS];
    size_t chunks[STEPS];
    uint64_t hash;

    options = whole(20);
    policy = allowing(BIT(SMALLER_BATCH));
    trainer = trainer_with(&options, &policy);
    for (int i = 0; i < STEPS; i++) {
        reports[i] = some(trainer, i == 3 ? 15 : 32, (uint64_t)i);
        ck_assert_uint_eq(reports[i].chunk_count, 1);
        chunks[i] = reports[i].chunks[0];
    }
    ck_assert_uint_eq(reports[0].samples, cut_to(20, 32));
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
}

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

TEST_LOOP("replay", replay_of_more_or_fewer_samples, LENGTH(of_32)) {
    mt_batch batch = batch_of(32, 1);

    options = with_rungs(SAVERS, 0);
    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, &of_32[_i].chunk, 1));
    ck_ok(mt_trainer_set_rungs(trainer, of_32[_i].rungs, 1));
    ck_status(mt_trainer_step(trainer, &batch, NULL), of_32[_i].status);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), of_32[_i].status == MT_OK);
}

/* For one step alone: the next one with chunks, or without, has no rung again. */
TEST_LOOP("replay", set_rungs_is_used_once, 2) {
    static const size_t chunks[] = {8, 8};

    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_ok(mt_trainer_set_rungs(trainer, SAVERS, 0.5));
    ck_assert_uint_eq(step(trainer, 16, 1).rungs, SAVERS);
    ck_assert_double_eq(fake.rate, 0.5);
    if (_i == 1) ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_assert_uint_eq(step(trainer, 16, 2).rungs, 0);
    ck_assert_double_eq(fake.rate, 1);
    ck_status(mt_trainer_set_rungs(trainer, 0, 1), MT_EINVAL);
}

/* Chunks that were given teach nothing of rungs that they ran without. */
TEST("replay", replay_teaches_nothing_wrong) {
    static const size_t chunks[] = {3, 3};
    size_t bytes;

    trainer = trainer_with(&options, NULL);
    step(trainer, 32, 1);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
    step(trainer, 32, 2);
    bytes = mt_policy_predict_bytes(mt_trainer_policy(trainer), MT_TRAIN, 8);
    fake.options.budget_bytes = budget_with(0, 20);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_assert_uint_eq(step(trainer, 6, 3).rungs, 0);
    ck_assert_uint_eq(mt_policy_predict_bytes(mt_trainer_policy(trainer), MT_TRAIN, 8), bytes);
}

/* A rung that cannot be set ends the step: it would not be the one of the trace. */
TEST("replay", replay_fails) {
    static const size_t chunks[] = {8, 8};

    trainer = trainer_with(&options, NULL);
    fake.options.refused_on = BIT(OFFLOAD);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_ok(mt_trainer_set_rungs(trainer, SAVERS, 1));
    step_refused(16, 1, MT_ENOTSUP, "refused: offload");
    ck_assert_uint_eq(step(trainer, 16, 1).rungs, 0);
}

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

TEST_LOOP("replay", set_rungs_is_checked, LENGTH(bad_rungs)) {
    static const size_t chunks[] = {8, 8};

    trainer = trainer_with(&options, NULL);
    ck_status(mt_trainer_set_rungs(NULL, 0, 1), MT_EINVAL);
    ck_refused(mt_trainer_set_rungs(trainer, 0, 1), MT_EINVAL, "mt_trainer_set_chunks first");
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    ck_refused(mt_trainer_set_rungs(trainer, bad_rungs[_i].rungs, bad_rungs[_i].rate), MT_EINVAL,
               bad_rungs[_i].named);
    ck_assert_uint_eq(step(trainer, 16, 1).rungs, 0);
}

/* ---- the trace ------------------------------------------------------------------------------ */

static char trace[400][1000];
static size_t traced;

static void keep_line(void *user, const char *line) {
    (void)user;
    if (traced < 400) snprintf(trace[traced++], sizeof(trace[0]), "%s", line);
}

/* Lines with both texts in them. */
static size_t lines_with(const char *one, const char *other) {
    size_t count = 0;

    for (size_t i = 0; i < traced; i++)
        count += strstr(trace[i], one) != NULL && strstr(trace[i], other) != NULL;
    return count;
}

TEST("trace", rungs_in_the_trace) {
    static const size_t chunks[] = {16};

    own.trace = keep_line;
    trainer = trainer_of(&options, &own);
    step(trainer, 32, 1);
    ck_assert_uint_eq(lines_with("\"rungs\"", ""), 0);
    ck_assert_uint_eq(lines_with("\"rate\"", ""), 0);
    fake.options.budget_bytes = budget_with(BIT(CHECKPOINTING), FEW);
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
}

TEST("trace", smaller_batch_in_the_trace) {
    const int few = (int)cut_to(20, 32);

    options = whole(20);
    policy = allowing(BIT(SMALLER_BATCH));
    policy.rate_rule = MT_RATE_LINEAR;
    own.policy = &policy;
    own.trace = keep_line;
    trainer = trainer_of(&options, &own);
    some(trainer, 32, 1);
    ck_assert_uint_eq(lines_with("\"event\":\"rung\"",
                                 "\"name\":\"smaller_batch\",\"on\":true,\"reason\":\"oom\"}"),
                      1);
    ck_assert_uint_eq(
        lines_with("\"event\":\"step\"", printed("\"samples\":%d,\"chunks\":[%d]", few, few)), 1);
    ck_assert_uint_eq(lines_with("\"event\":\"step\"",
                                 printed("\"rungs\":[\"smaller_batch\"],\"rate\":%g", few / 32.0)),
                      1);
}

TRAINER_SUITE_FROM("trainer_rungs", begin)
