/*
 * rungs.h - short words for the rungs of the ladder.
 */
#ifndef MEMTRAIN_TESTS_RUNGS_H
#define MEMTRAIN_TESTS_RUNGS_H

#include "tuned.h"

#include <math.h>
#include <memtrain/backend.h>

#define BIT(rung) MT_RUNG_BIT(MT_RUNG_##rung)
#define ALL (MT_RUNG_BIT(MT_RUNGS) - 1)

/* Samples that are tried after a first chunk, as it does not tell which bytes grow. */
#define FEW (2 * FIRST_CHUNK)

/* A batch that is one chunk has so many samples once it was made smaller; with one cut less; and when it fits. */
static inline size_t cut_once(size_t samples) {
    return (size_t)((double)samples * CUT);
}

static inline size_t one_cut_less(size_t samples) {
    return (size_t)ceil((double)samples / CUT);
}

static inline size_t cut_to(size_t fits, size_t samples) {
    while (samples > fits) samples = cut_once(samples);
    return samples;
}

#endif
