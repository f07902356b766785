/*
 * tiers.c - what the tiers are; see tiers.h.
 */
#include "tiers.h"

#include <stdio.h>
#include <string.h>

const ex_word ex_tier_words[] = {{"auto", EX_TIER_AUTO},
                                 {"1", EX_TIER_ACCELERATOR},
                                 {"2", EX_TIER_CPU},
                                 {"3", EX_TIER_MINIMAL},
                                 {NULL, 0}};

/* The figures of the script that these tiers are from; batches are of one sample in all of them. */
static const struct {
    const char *name, *device;
    int64_t accumulate, threads, workers, clear_every, progress;
} tiers[] = {
    {.name = "tier auto"},
    {"tier 1, the accelerator", "mps", 8, 4, 1, MT_CLEAR_EPOCHS, EX_PROGRESS_AUTO},
    {"tier 2, the CPU", "cpu", 16, 2, 1, MT_CLEAR_EPOCHS, EX_PROGRESS_PLAIN},
    {"tier 3, one thread and nothing beside the training", "cpu", 32, 1, 0, 1, EX_PROGRESS_OFF},
};

const char *ex_tier_name(ex_tier tier) {
    return tiers[tier].name;
}

void ex_tier_defaults(ex_tier tier, ex_flags *flags) {
    if (tier == EX_TIER_AUTO) {
        flags->fallback = MT_RUNG_BIT(MT_RUNG_CPU) | MT_RUNG_BIT(MT_RUNG_MINIMAL);
        return;
    }
    flags->device = tiers[tier].device;
    flags->batch = 1;
    flags->accumulate = tiers[tier].accumulate;
    flags->threads = tiers[tier].threads;
    flags->workers = tiers[tier].workers;
    flags->clear_every = tiers[tier].clear_every;
    flags->progress = tiers[tier].progress;
}

ex_tier ex_tier_of(const char *device, unsigned rungs) {
    if (rungs & MT_RUNG_BIT(MT_RUNG_MINIMAL)) return EX_TIER_MINIMAL;
    if (rungs & MT_RUNG_BIT(MT_RUNG_CPU) || strcmp(device, "cpu") == 0) return EX_TIER_CPU;
    return EX_TIER_ACCELERATOR;
}

void ex_tier_changed(ex_tier before, ex_tier now, const mt_step_report *report, char *line,
                     size_t capacity) {
    unsigned long long step = report->step;
    if (now > before)
        snprintf(line, capacity,
                 "%s, is left in step %llu, for which it had no room: the same step went through "
                 "in %s, all %zu samples of it",
                 tiers[before].name, step, tiers[now].name, report->samples);
    else
        snprintf(line, capacity, "%s, was left in step %llu: %s, has room again",
                 tiers[before].name, step, tiers[now].name);
}
