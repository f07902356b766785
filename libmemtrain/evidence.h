/*
 * evidence.h - what corrects predictions, or stands in for them: measured peaks, chunks that went through
 * and chunks that did not fit. Pure functions over a value.
 *
 * Two failures are remembered, since they pass for different reasons: of a size larger than any that went
 * through, which may never fit, and of one that had gone through, which does again when what took its room is gone.
 */
#ifndef MT_EVIDENCE_H
#define MT_EVIDENCE_H

#include "internal.h"

/* A chunk that did not fit. */
typedef struct mt__failure {
    size_t chunk;       /* samples; 0: none is remembered */
    size_t room;        /* that was there for it; SIZE_MAX: not known */
    uint64_t noted_at;  /* the step in which it did not */
    uint64_t forget_at; /* the step by which what took the room may have passed */
    unsigned patience;  /* steps until then; more where it had not */
    size_t tried;       /* the size last forgotten, until one as large goes through; 0: none */
} mt__failure;

/* Of chunks that run one way; zeros to begin with. */
typedef struct mt__evidence {
    size_t bound_peak,
        bound_samples; /* a measured peak, to which those of larger chunks are proportional */
    size_t low_peak, low_samples; /* that of the smallest chunk */
    size_t residual;              /* bytes by which a measured peak was above the prediction */
    size_t largest_ran;
    size_t proven_room;   /* the least room in which that chunk went through */
    mt__failure beyond;   /* of a chunk larger than any that had gone through */
    size_t missing;       /* bytes that the prediction lacks if it is to say so */
    mt__failure shortage; /* of one no larger */
    size_t fits;          /* the largest that went through in that shortage; 0: none yet */
    size_t ceiling;       /* the size above that which failed last, other than the whole */
    size_t next;          /* the largest to be tried while it is remembered */
} mt__evidence;

/* Without recordings: so many samples peaked so many bytes above their start. */
void mt__evidence_bound(mt__evidence *evidence, size_t samples, size_t peak);

/* What so many samples need at most by these peaks (0: not known), and how many fit (SIZE_MAX: not known). */
size_t mt__evidence_bytes(const mt__evidence *evidence, size_t samples);
size_t mt__evidence_fitting(const mt__evidence *evidence, size_t room);

/* A chunk went through; in a plan that has succeeded, with so much room. */
void mt__evidence_ran(mt__evidence *evidence, size_t samples);
void mt__evidence_prove(mt__evidence *evidence, size_t samples, size_t room);

/* One that was predicted to need so many bytes (0: not known) did not fit into room, in this step. */
void mt__evidence_fail(mt__evidence *evidence, size_t samples, size_t room, size_t predicted,
                       uint64_t step);

/* Whether it is known by now that something else has its room: noted in this step, or before and tried again. */
int mt__evidence_is_short(const mt__evidence *evidence, size_t samples, uint64_t step);

/* Whether a failure is remembered of at least so much room. */
int mt__failure_holds(const mt__failure *failure, size_t room);

/* Whether so many samples are remembered to have failed in no more room than this. */
int mt__evidence_has_failed(const mt__evidence *evidence, size_t samples, size_t room);

/* A step begins: what failed long enough ago is forgotten, and corrections are halved. */
void mt__evidence_forget(mt__evidence *evidence, uint64_t step);

/* The next size to try where nothing predicts one: two thirds, as candidates are spaced. */
size_t mt__smaller(size_t chunk);

/* The largest size of which no failure says more bytes: half the way from what has gone through to what has not. */
size_t mt__evidence_half_way(const mt__evidence *evidence);

/* Bytes that measured peaks and failures add to a prediction. */
size_t mt__evidence_correction(const mt__evidence *evidence, size_t samples);

#endif
