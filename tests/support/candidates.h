/*
 * candidates.h - sizes of chunks that follow from the numbers of tuned.h, by the rules in docs/policy.md.
 */
#ifndef MEMTRAIN_TESTS_CANDIDATES_H
#define MEMTRAIN_TESTS_CANDIDATES_H

#include "tuned.h"

#include <stddef.h>

/* The least power of two from so many samples on, of those up to 64. */
#define POWER_FROM(least)                                                                          \
    ((least) <= 4 ? 4 : (least) <= 8 ? 8 : (least) <= 16 ? 16 : (least) <= 32 ? 32 : 64)

/* The largest of as few balanced chunks as fit. */
static inline size_t largest_balanced(size_t samples, size_t fits) {
    size_t chunks = (samples + fits - 1) / fits;

    return (samples + chunks - 1) / chunks;
}

/* The smallest that is tried for speed where the largest has so many samples. */
static inline size_t smallest_candidate(size_t largest, int normalises) {
    size_t least = normalises ? LEAST_NORMALISED : 2 * FIRST_CHUNK, power = 1;

    if (least < largest / SMALLEST_SHARE) least = largest / SMALLEST_SHARE;
    while (power < least) power *= 2;
    return power < largest ? power : largest;
}

#endif
