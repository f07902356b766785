/*
 * tiers.h - devices in the order in which a run falls back, each with what keeps its memory low.
 *
 * A tier that is named is a set of defaults: batches of one, so many of them accumulated, threads, how much
 * is shown. Where none is named a run goes from tier to tier by itself, by the rungs of the policy.
 */
#ifndef EX_TIERS_H
#define EX_TIERS_H

#include "flags.h"

#include <memtrain/trainer.h>

typedef enum ex_tier {
    EX_TIER_AUTO = 0,
    EX_TIER_ACCELERATOR = 1,
    EX_TIER_CPU = 2,
    EX_TIER_MINIMAL = 3
} ex_tier;

/* Words for a flag. */
extern const ex_word ex_tier_words[];

/* "tier 2, the CPU". Static. */
const char *ex_tier_name(ex_tier tier);

/* Sets the flags that a tier is about; of the others none. */
void ex_tier_defaults(ex_tier tier, ex_flags *flags);

/* Where a step ran that began on the device with these rungs. */
ex_tier ex_tier_of(const char *device, unsigned rungs);

/*
 * Writes one line, when a step has run in another tier than the one before: which was left, when, and what
 * stays as it was.
 */
void ex_tier_changed(ex_tier before, ex_tier now, const mt_step_report *report, char *line,
                     size_t capacity);

#endif
