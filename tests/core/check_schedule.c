/*
 * check_schedule.c - learning rates against tables of the formulas that PyTorch documents, and what is no
 * schedule.
 */
#include "suite.h"

#include <memtrain/schedule.h>

#include <math.h>
#include <stddef.h>

/* kind, rate, end_rate, steps, step_every, step_factor, warmup, warmup_factor */
#define SCHEDULE(...)                                                                              \
    { sizeof(mt_schedule), __VA_ARGS__ }

static const struct {
    mt_schedule schedule;
    uint64_t step;
    double rate;
} rows[] = {
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.1, 0, 0, 0, 0, 0, 0), 0, 0.1},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.1, 0, 0, 0, 0, 0, 0), UINT64_MAX, 0.1},
    /* LinearLR's own example: start_factor 0.5, total_iters 4. */
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.05, 0, 0, 0, 0, 4, 0.5), 0, 0.025},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.05, 0, 0, 0, 0, 4, 0.5), 1, 0.03125},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.05, 0, 0, 0, 0, 4, 0.5), 2, 0.0375},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.05, 0, 0, 0, 0, 4, 0.5), 3, 0.04375},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.05, 0, 0, 0, 0, 4, 0.5), 4, 0.05},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.05, 0, 0, 0, 0, 4, 0), 0, 0},
    /* StepLR's own example: step_size 30, gamma 0.1. */
    {SCHEDULE(MT_SCHEDULE_STEP, 0.05, 0, 0, 30, 0.1, 0, 0), 29, 0.05},
    {SCHEDULE(MT_SCHEDULE_STEP, 0.05, 0, 0, 30, 0.1, 0, 0), 30, 0.005},
    {SCHEDULE(MT_SCHEDULE_STEP, 0.05, 0, 0, 30, 0.1, 0, 0), 59, 0.005},
    {SCHEDULE(MT_SCHEDULE_STEP, 0.05, 0, 0, 30, 0.1, 0, 0), 60, 0.0005},
    {SCHEDULE(MT_SCHEDULE_STEP, 0.05, 0, 0, 30, 0.1, 7, 0.5), 36, 0.05},
    {SCHEDULE(MT_SCHEDULE_STEP, 0.05, 0, 0, 30, 0.1, 7, 0.5), 37, 0.005},
    /* CosineAnnealingLR: T_max 100, eta_min 0.01. */
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 100, 0, 0, 0, 0), 0, 0.1},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 100, 0, 0, 0, 0), 1, 0.09997779521645793},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 100, 0, 0, 0, 0), 25, 0.08681980515339464},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 100, 0, 0, 0, 0), 50, 0.055},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 100, 0, 0, 0, 0), 99, 0.010022204783542078},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 100, 0, 0, 0, 0), 100, 0.01},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 100, 0, 0, 0, 0), UINT64_MAX, 0.01},
    /* The same behind 10 steps of warm-up from 0.02 on. */
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 110, 0, 0, 10, 0.2), 0, 0.02},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 110, 0, 0, 10, 0.2), 5, 0.06},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 110, 0, 0, 10, 0.2), 10, 0.1},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 110, 0, 0, 10, 0.2), 35, 0.08681980515339464},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0.01, 110, 0, 0, 10, 0.2), 110, 0.01},
    /* LinearLR down: end_factor 0.25 and 0. */
    {SCHEDULE(MT_SCHEDULE_LINEAR, 0.4, 0.1, 10, 0, 0, 0, 0), 0, 0.4},
    {SCHEDULE(MT_SCHEDULE_LINEAR, 0.4, 0.1, 10, 0, 0, 0, 0), 3, 0.31},
    {SCHEDULE(MT_SCHEDULE_LINEAR, 0.4, 0.1, 10, 0, 0, 0, 0), 10, 0.1},
    {SCHEDULE(MT_SCHEDULE_LINEAR, 0.4, 0.1, 10, 0, 0, 0, 0), 11, 0.1},
    {SCHEDULE(MT_SCHEDULE_LINEAR, 0.4, 0, 12, 0, 0, 2, 1), 1, 0.4},
    {SCHEDULE(MT_SCHEDULE_LINEAR, 0.4, 0, 12, 0, 0, 2, 1), 7, 0.2},
    {SCHEDULE(MT_SCHEDULE_LINEAR, 0.4, 0, 12, 0, 0, 2, 1), 12, 0},
};

TEST_LOOP("rates", rates, LENGTH(rows)) {
    double rate = mt_schedule_rate(&rows[_i].schedule, rows[_i].step);
    ck_assert_double_eq_tol(rate, rows[_i].rate, 1e-15 + 1e-14 * rows[_i].rate);
}

static const struct {
    mt_schedule schedule;
    const char *word;
} wrong[] = {
    {SCHEDULE((mt_schedule_kind)9, 0.1, 0, 0, 0, 0, 0, 0), "kind is 9"},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0, 0, 0, 0, 0, 0, 0), "rate is 0"},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, INFINITY, 0, 0, 0, 0, 0, 0), "rate is inf"},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, NAN, 0, 0, 0, 0, 0, 0), "rate is"},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.1, 0, 0, 0, 0, 1, 1.5), "warmup_factor is 1.5"},
    {SCHEDULE(MT_SCHEDULE_CONSTANT, 0.1, 0, 0, 0, 0, 1, -1), "warmup_factor is -1"},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, -1, 5, 0, 0, 0, 0), "end_rate is -1"},
    {SCHEDULE(MT_SCHEDULE_COSINE, 0.1, 0, 0, 0, 0, 0, 0), "steps is 0"},
    {SCHEDULE(MT_SCHEDULE_LINEAR, 0.1, 0, 5, 0, 0, 5, 0), "steps is 5"},
    {SCHEDULE(MT_SCHEDULE_STEP, 0.1, 0, 0, 0, 0.1, 0, 0), "step_every is 0"},
    {SCHEDULE(MT_SCHEDULE_STEP, 0.1, 0, 0, 3, 0, 0, 0), "step_factor is 0"},
    {{2, MT_SCHEDULE_CONSTANT, 0.1, 0, 0, 0, 0, 0, 0}, "size is not set"},
};

TEST_LOOP("rates", refused, LENGTH(wrong)) {
    ck_assert(isnan(mt_schedule_rate(&wrong[_i].schedule, 1)));
    ck_contains(mt_last_error(), wrong[_i].word);
}

/* An older caller's struct ends sooner; what it does not know is as in MT_SCHEDULE_INIT. */
TEST("rates", versions) {
    mt_schedule schedule = MT_SCHEDULE_INIT;
    ck_assert(mt_schedule_rate(&schedule, 5) == 1e-3);
    schedule.rate = 0.5;
    schedule.warmup = 100;
    schedule.size = offsetof(mt_schedule, warmup);
    ck_assert(mt_schedule_rate(&schedule, 5) == 0.5);
    ck_assert(isnan(mt_schedule_rate(NULL, 5)));
}

SUITE("schedule")
