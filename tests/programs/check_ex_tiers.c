/*
 * check_ex_tiers.c - which tier a step has run in, what a tier that is named sets, and the line between two.
 */
#include "suite.h"
#include "tiers.h"

enum { CPU = MT_RUNG_BIT(MT_RUNG_CPU), MINIMAL = MT_RUNG_BIT(MT_RUNG_MINIMAL) };

static const struct {
    const char *device;
    unsigned rungs;
    ex_tier tier;
} places[] = {
    {"mps", 0, EX_TIER_ACCELERATOR},
    {"sim:mps", MT_RUNG_BIT(MT_RUNG_CHECKPOINTING), EX_TIER_ACCELERATOR},
    {"cuda:1", MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH), EX_TIER_ACCELERATOR},
    {"mps", CPU, EX_TIER_CPU},
    {"cpu", 0, EX_TIER_CPU},
    {"cpu", MT_RUNG_BIT(MT_RUNG_CHECKPOINTING), EX_TIER_CPU},
    {"cpu", MINIMAL, EX_TIER_MINIMAL},
    {"mps", CPU | MINIMAL, EX_TIER_MINIMAL},
};

TEST_LOOP("tiers", where_a_step_ran, LENGTH(places)) {
    ck_assert_int_eq(ex_tier_of(places[_i].device, places[_i].rungs), places[_i].tier);
}

static const struct {
    const char *device;
    int64_t accumulate, threads;
} figures[] = {{"mps", 8, 4}, {"cpu", 16, 2}, {"cpu", 32, 1}};

TEST_LOOP("tiers", a_tier_that_is_named, LENGTH(figures)) {
    ex_flags flags = EX_FLAGS_INIT;
    ex_tier_defaults((ex_tier)(_i + 1), &flags);
    ck_assert_str_eq(flags.device, figures[_i].device);
    ck_assert_int_eq(flags.batch, 1);
    ck_assert_int_eq(flags.accumulate, figures[_i].accumulate);
    ck_assert_int_eq(flags.threads, figures[_i].threads);
    ck_assert_int_eq(flags.fallback, 0);
    ck_assert_int_eq(flags.workers == 0, _i == 2);
    ck_assert_int_eq(flags.progress == EX_PROGRESS_OFF, _i == 2);
}

TEST("tiers", none_that_is_named_falls) {
    ex_flags flags = EX_FLAGS_INIT, before = flags;
    ex_tier_defaults(EX_TIER_AUTO, &flags);
    ck_assert_int_eq(flags.fallback, CPU | MINIMAL);
    ck_assert_int_eq(flags.batch, before.batch);
    ck_assert_int_eq(flags.accumulate, 1);
    ck_assert_str_eq(flags.device, "auto");
}

TEST("tiers", a_line_tells_of_it) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    char line[256];
    report.step = 7;
    report.samples = 16;
    ex_tier_changed(EX_TIER_CPU, EX_TIER_MINIMAL, &report, line, sizeof line);
    ck_contains(line, "tier 2, the CPU, is left in step 7");
    ck_contains(line, "tier 3, one thread and nothing beside the training, all 16 samples");
    ex_tier_changed(EX_TIER_CPU, EX_TIER_ACCELERATOR, &report, line, sizeof line);
    ck_contains(line, "tier 1, the accelerator, has room again");
}

SUITE("ex_tiers")
