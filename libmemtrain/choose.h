/*
 * choose.h - the pure functions of the policy: how many chunks, from measured times.
 */
#ifndef MT_CHOOSE_H
#define MT_CHOOSE_H

#include "internal.h"

enum { MT__TIMINGS = 64 };

/* Measured time of one chunk size. */
typedef struct mt__timing {
    size_t samples;
    unsigned runs;  /* 1: the first run, with its set-up; more: of this span, and 2 */
    unsigned all;   /* of all spans */
    int early;      /* all of them were in the first batch */
    double first;   /* seconds of the first run */
    double seconds; /* least of this span and the one before: noise only ever adds, but a machine
                       may become slower for good */
    double recent;  /* least of this span; 0: none yet */
    unsigned long batch; /* of the first run, see batches below */
} mt__timing;

/* Sorted by samples. */
typedef struct mt__timings {
    mt__timing entry[MT__TIMINGS];
    size_t count;
    double
        set_up; /* share of its first run that a size takes later, the least seen; 0: none seen */
    double
        set_up_seconds; /* what a first run takes longer than the second, the least seen; 0: none */
    double rate;        /* seconds a sample of the fastest size that ran twice; 0: none did */
    size_t fastest;     /* that size */
    unsigned long batches; /* since the first one, which is over then */
} mt__timings;

/* Notes that a chunk of so many samples took so long. Of more sizes than
 * there is place for those that ran least are forgotten. */
void mt__timings_note(mt__timings *timings, size_t samples, double seconds);

/* The first batch is over, or another one. */
void mt__timings_next_batch(mt__timings *timings);

/* Measured seconds of a chunk of exactly that size; 0: it never ran. */
double mt__measured_seconds(const mt__timings *timings, size_t samples);

/*
 * Expected seconds of a chunk: measured, or between the two nearest measured sizes on a line, or
 * beyond them by a power law; 0 when nothing was measured.
 */
double mt__chunk_seconds(const mt__timings *timings, size_t samples);

/* Expected seconds of a batch in so many balanced chunks. */
double mt__batch_seconds(const mt__timings *timings, size_t samples, size_t chunks);

/* Samples of the largest chunk that ran; 0: none was measured. */
size_t mt__largest_measured(const mt__timings *timings);

/*
 * Seconds of a chunk larger than all that were measured, at the least: on the line through the largest two, since
 * small ones may be mostly set-up. 0: fewer than two were.
 */
double mt__least_seconds(const mt__timings *timings, size_t samples);

/*
 * The largest chunk that is worth trying: twice the largest that ran, as long as that was no slower a
 * sample than smaller ones, and after the first batch 4 % faster than those of half its samples. SIZE_MAX where nothing
 * was measured.
 */
size_t mt__largest_worth(const mt__timings *timings);

/*
 * The smallest chunk that is worth trying: floor, or a size below it that was faster a sample than all that
 * ran from there on.
 */
size_t mt__smallest_worth(const mt__timings *timings, size_t floor);

/*
 * The largest size from least to most samples, at most rest, that is worth another run in a batch of which rest is
 * left, to be cut into so many chunks else: as one chunk, before mt__cut_as_measured() of what is left then. 0: none
 * is.
 */
size_t mt__run_again(const mt__timings *timings, size_t batch, size_t rest, size_t chunks,
                     size_t least, size_t most);

/*
 * The number of chunks, all of one size from least to most samples that has run, with the least expected time, which
 * is told where seconds is not NULL: INFINITY and 0 chunks where none makes up the samples.
 */
size_t mt__cut_as_measured(const mt__timings *timings, size_t samples, size_t least, size_t most,
                           double *seconds);

/* The candidate after so many chunks: half as many again, at least one more. */
size_t mt__next_candidate(size_t chunks);

/*
 * The number of chunks with the least expected time, among candidates spaced geometrically from
 * fewest to most, which is one too. The current number (0: none) is kept unless another is clearly faster, so that
 * shapes stay few.
 */
size_t mt__choose_chunks(const mt__timings *timings, size_t samples, size_t fewest, size_t most,
                         size_t current);

#endif
