/*
 * sizes.h - measured times of chunks: which sizes are to run, and which is the fastest.
 *
 * The candidates are the largest size that fits and the powers of two below it, down to a quarter, and on while the last is
 * nearly the fastest. Each runs three times, as one chunk of a real batch. So they have to be the same in each batch: a size
 * that changes is never known. Pure functions over a value. Rules: docs/policy.md.
 */
#ifndef MT_SIZES_H
#define MT_SIZES_H

#include "internal.h"

enum { MT__SIZES = 32, MT__TIMES = 8 };

/* What was measured of one size. */
typedef struct mt__size {
    size_t samples;
    size_t runs;             /* times that it ran */
    uint64_t last_batch;     /* mt__sizes.batches when it ran last */
    double times[MT__TIMES]; /* seconds of the last runs, in a ring */
    double seconds;          /* what a run is expected to take */
} mt__size;

/* Sorted by samples. */
typedef struct mt__sizes {
    mt__size entry[MT__SIZES];
    size_t count;
    uint64_t batches; /* that were planned */
} mt__sizes;

/* Chunks that may run: least to top samples. */
typedef struct mt__bounds {
    size_t least, top;
    size_t left;  /* the least that a chunk may leave of a batch, unless it leaves none */
    size_t alone; /* a larger size that fits too, as the only chunk of its batch; 0: none */
    size_t even;  /* samples of a batch whose chunks all have one size; 0: they need not */
    size_t legal; /* the smallest chunk that is legal */
} mt__bounds;

/* Whether so many samples can be cut into chunks of at least least samples, none of which is above most. */
static inline int mt__can_be_cut(size_t samples, size_t least, size_t most) {
    return samples >= least && mt__ceil_div(samples, samples / least) <= most;
}

/* A chunk of so many samples took so long, both above 0. Where there is no place the size that did not run for longest is forgotten. */
void mt__sizes_note(mt__sizes *sizes, size_t samples, double seconds);

/* Seconds that were measured of a chunk of exactly so many samples; 0: none. */
double mt__sizes_measured(const mt__sizes *sizes, size_t samples);

/* Whether chunks of exactly so many samples ran as often as they have to. */
int mt__sizes_is_known(const mt__sizes *sizes, size_t samples);

/*
 * Seconds that a batch is expected to take in so many balanced chunks; 0: nothing was measured. Where any size ran again, those
 * that ran once tell of no other.
 */
double mt__sizes_batch_seconds(const mt__sizes *sizes, size_t samples, size_t chunks);

/*
 * The next size to run as one chunk, so that it is known, in a batch of which rest is left; 0: none. Sizes grow within a
 * batch.
 * @param last  the chunk of the batch that ran last; 0: none
 */
size_t mt__sizes_next(const mt__sizes *sizes, const mt__bounds *bounds, size_t rest, size_t last);

/* The fastest size within bounds that ran, of which so many samples leave nothing or a legal chunk; 0: none. */
size_t mt__sizes_that_ran(const mt__sizes *sizes, const mt__bounds *bounds, size_t samples);

/* The number of balanced chunks within bounds that takes least time as expected; the fewest where nothing was measured. */
size_t mt__sizes_fastest(const mt__sizes *sizes, const mt__bounds *bounds, size_t samples);

#endif
