/*
 * curve.h - what is known of one kind of chunk: recordings, predicted peaks, times.
 *
 * A kind is a mode, an input shape, and the rungs that are on. Its chunks run in one of two ways,
 * gradients in place or apart (keep: a second set, so that a chunk can be taken back alone), whose
 * peaks differ and are both known from one recording. Pure functions over a value; cut.c says when.
 */
#ifndef MT_CURVE_H
#define MT_CURVE_H

#include "choose.h"
#include "evidence.h"
#include "recording.h"

enum { MT__SEEN = 8, MT__RANGES = 4 };

typedef struct mt__kind {
    mt_mode mode;
    uint64_t shape;
    unsigned rungs; /* MT_RUNG_BITs */
} mt__kind;

int mt__same_kind(const mt__kind *a, const mt__kind *b);

/* The last plan for a batch size, to tell why the next one differs. */
typedef struct mt__seen {
    size_t samples; /* 0: free */
    size_t fewest;  /* chunks that memory asked for */
    size_t chunks;  /* chunks that were planned */
    mt_plan_reason reason;
} mt__seen;

/*
 * Sizes that use the same kernels, as far as recordings have shown; the ranges of a curve follow one
 * another, and a size between two of them is taken to be of the lower one.
 */
typedef struct mt__range {
    size_t from, top;          /* sizes that have been recorded, the smallest and the largest */
    mt_memory_model *model[2]; /* by keep; NULL: that of the range below, times scale */
    double scale;
    /* By keep, while from is the only size that has been recorded: its peak; 0: not known. */
    size_t own[2];
} mt__range;

typedef struct mt__curve {
    mt__kind kind;
    size_t change;           /* samples from which on kernels are said to be others; 0: not known */
    uint64_t used;           /* when it was last asked for, in plans */
    mt_recording *first;     /* of the newest range, while that is its only one */
    mt_recording *recording; /* to be filled next */
    int has_first;           /* first is there, and waits for another size */
    int filling;             /* recording is being filled */
    mt__range range[MT__RANGES];
    size_t ranges;
    size_t single[2]; /* by keep: last peak of one sample, where recordings are of more; 0: none */
    mt__evidence evidence[2]; /* by keep */
    mt__timings timings;
    int has_run;   /* a chunk went through: two sizes are recorded before that, or never */
    int has_begun; /* the plan that begins the first batch has been given */
    size_t
        learnt; /* the largest that a deterministic run has taken back to learn from it; 0: none */
    int records_one; /* the last recording that was planned is one chunk, to be taken back, and the first */
    mt__seen seen[MT__SEEN];
    size_t next_seen;
} mt__curve;

/* NULL when out of host memory. change: mt_backend_info.kernels_change. */
mt__curve *mt__curve_new(const mt__kind *kind, size_t change);
void mt__curve_free(mt__curve *curve); /* NULL is a no-op */

/* Whether recordings tell the peaks of chunks that run this way. */
int mt__curve_is_recorded(const mt__curve *curve, int keep);

/* Whether a prediction for so many samples is in proportion to the only, smaller size that was recorded. */
int mt__curve_is_bound(const mt__curve *curve, size_t samples);

/* Whether bytes are predicted, and how many above the start, corrections included; 0: not known. */
size_t mt__curve_predict(const mt__curve *curve, int keep, size_t samples);

/*
 * The chunk to record before so many samples, 0 where recordings speak for them: the smallest of other kernels;
 * twice the only one that was recorded of these, or below those.
 */
size_t mt__curve_before(const mt__curve *curve, size_t samples);

/*
 * Whether a prediction for so many samples is more than a guess: of kernels of which two sizes were recorded, of the
 * only one recorded, or of a single sample, which may have kernels of its own, when one has run.
 */
int mt__curve_is_told(const mt__curve *curve, int keep, size_t samples);

/* Largest chunk that is predicted to fit into room; SIZE_MAX when nothing is known. */
size_t mt__curve_largest(const mt__curve *curve, int keep, size_t room);

/*
 * Where one recording or measured peak of few samples is all that is known: the chunk that may be tried,
 * whatever mt__curve_largest says of it. Else 0.
 */
size_t mt__curve_beyond_bound(const mt__curve *curve, size_t room);

/* Whether it is known, exactly and not by a guess, that so many samples do not fit into room. */
int mt__curve_rules_out(const mt__curve *curve, size_t samples, size_t room);

/* Whether recordings of smaller and of larger chunks of the same range say what this one needs. */
int mt__curve_covers(const mt__curve *curve, size_t samples);

/*
 * The recording to fill while a chunk of that many samples runs, or NULL: of two sizes at the start,
 * and of each size beyond those recorded, since larger chunks may take other kernels.
 */
mt_recording *mt__curve_record(mt__curve *curve, size_t samples);

/* A chunk went through and peaked so many bytes above its start (0: not known). */
void mt__curve_learn(mt__curve *curve, int keep, size_t samples, size_t peak);

/* That chunk had so much room: it is taken to fit into as much, but while it is remembered to have failed. */
void mt__curve_prove(mt__curve *curve, int keep, size_t samples, size_t room);

/*
 * In this step a chunk did not fit into room (SIZE_MAX: of a size not known): the prediction will say so,
 * until a later step forgets it.
 */
void mt__curve_fail(mt__curve *curve, int keep, size_t samples, size_t room, uint64_t step);

/* Whether chunks with gradients in place are remembered to have failed. */
int mt__curve_has_failures(const mt__curve *curve);

/* Whether so many samples have failed in no more room than this. */
int mt__curve_has_failed(const mt__curve *curve, int keep, size_t samples, size_t room);

/* A step begins: what failed long enough ago is forgotten, since what took the room may have passed. */
void mt__curve_forget(mt__curve *curve, uint64_t step);

/* The entry of a batch size, or NULL; and one to overwrite. */
mt__seen *mt__curve_find_seen(mt__curve *curve, size_t samples);
mt__seen *mt__curve_new_seen(mt__curve *curve);

#endif
