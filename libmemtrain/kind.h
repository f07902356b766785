/*
 * kind.h - what is known of one kind of chunk: predicted peaks, what corrects them, what did not fit, times.
 *
 * A kind is a mode, an input shape, and the rungs that are on. Its chunks run in one of two ways: gradients in place, or
 * apart (a second set, so that a chunk can be taken back alone). Both peaks are known from one recording. Pure functions
 * over a value; split.c and answer.c say when.
 */
#ifndef MT_KIND_H
#define MT_KIND_H

#include "recording.h"
#include "sizes.h"

enum { MT__RANGES = 4 };

typedef enum mt__way { MT__IN_PLACE = 0, MT__APART = 1, MT__WAYS = 2 } mt__way;

typedef struct mt__key {
    mt_mode mode;
    uint64_t shape;
    unsigned rungs; /* MT_RUNG_BITs, but not that of a smaller batch, which changes no chunk */
} mt__key;

/* Sizes that use the same kernels, as far as recordings have shown. The ranges of a kind follow one another. */
typedef struct mt__range {
    size_t from, top;                 /* the smallest and the largest size that was recorded */
    mt_memory_model *model[MT__WAYS]; /* APART: NULL where recordings did not tell */
} mt__range;

/* A chunk that did not fit. */
typedef struct mt__failure {
    size_t chunk;      /* samples; 0: none is remembered */
    size_t room;       /* bytes that there were for it; SIZE_MAX: not known */
    uint64_t until;    /* the plan of its kind with which it is forgotten */
    unsigned patience; /* plans from the failure to then */
} mt__failure;

/* A measured peak. */
typedef struct mt__peak {
    size_t samples; /* 0: none was measured */
    size_t bytes;
} mt__peak;

/* What measurements and failures say, of one way. */
typedef struct mt__limits {
    mt__peak low, high; /* of the smallest chunk and of the largest one whose peak was measured */
    size_t residual;    /* bytes by which a peak was above the prediction */
    size_t smallest_ran, largest_ran; /* 0: none did */
    size_t proven_room;               /* the least room in which that chunk went through */
    mt__failure failed[2];            /* of a size that never went through, and of one that had */
} mt__limits;

/* The last plan, to tell why the next one for a batch of that size differs. */
typedef struct mt__seen {
    size_t samples; /* 0: there was none */
    size_t fewest;  /* chunks that memory asked for */
    size_t chunks;  /* chunks that were planned */
    mt_plan_reason reason;
} mt__seen;

/* Measured times, which kinds of nearly the same length share: seconds a unit of length, where lengths are known. */
typedef struct mt__times {
    size_t kinds;  /* that share them */
    size_t length; /* of the first of these */
    mt__sizes sizes;
} mt__times;

typedef struct mt__kind mt__kind;
struct mt__kind {
    mt__key key;
    uint64_t family;     /* mt_shape's */
    size_t length;       /* 0: not known */
    mt__kind *next;      /* with the same hash */
    uint64_t plans;      /* of its steps; training steps with further rungs on count too */
    size_t change;       /* samples from which on kernels are said to be others; 0: not known */
    mt_recording *first; /* the recording of the newest range while it is the only one, or NULL */
    mt__range range[MT__RANGES];
    size_t ranges;
    int is_inherited; /* the ranges were told from other lengths, and no chunk has shown them to be wrong */
    int is_partial; /* the only range is of a chunk that was cut short: it needs as much at least */
    int has_run;    /* a chunk went through */
    size_t too_small; /* chunks up to that size need more than larger ones; 0: none do */
    size_t learnt;    /* the largest chunk that was run to learn from, and taken back; 0: none */
    mt__limits limits[MT__WAYS];
    mt__times *times; /* with one reference */
    mt__seen seen;
};

/* NULL when out of host memory. change: mt_backend_info.kernels_change. */
mt__kind *mt__kind_new(const mt__key *key, const mt_shape *shape, size_t change);
void mt__kind_free(mt__kind *kind); /* NULL is a no-op */

/* ---- what is asked ---- */

/* Whether recordings tell the peaks of chunks that run this way. */
int mt__kind_is_recorded(const mt__kind *kind, mt__way way);

/* Bytes that so many samples need as recordings tell, which there are. */
size_t mt__kind_recorded(const mt__kind *kind, mt__way way, size_t samples);

/* Bytes that so many samples need above the start, corrections included; 0: not known. */
size_t mt__kind_predict(const mt__kind *kind, mt__way way, size_t samples);

/* Whether that is more than an estimate: of two recordings, from the smaller one on, of other lengths, or measured. */
int mt__kind_is_sure(const mt__kind *kind, mt__way way, size_t samples);

/* The largest chunk that is thought to fit into room; SIZE_MAX when nothing is known. */
size_t mt__kind_largest(const mt__kind *kind, mt__way way, size_t room);

/* Whether its own recordings say, without corrections, that so many samples do not fit. 0 where they say nothing. */
int mt__kind_rules_out(const mt__kind *kind, mt__way way, size_t samples, size_t room);

/* The largest size against which no failure speaks, remembered of as much room; SIZE_MAX: none does. */
size_t mt__kind_allowed(const mt__kind *kind, mt__way way, size_t room);

/* All that failed may be tried at once: it may have failed on another device. */
void mt__kind_forget(mt__kind *kind);

/* Whether a recording of so many samples would tell something new. */
int mt__kind_wants_recording(const mt__kind *kind, size_t samples);

/* ---- what is learnt ---- */

/* A step is planned with it: what failed comes nearer to its next try, and corrections fall. */
void mt__kind_begin(mt__kind *kind);

/*
 * A chunk went through. recording: of it, or NULL; taken over where *recording is NULL after the call.
 * peak: bytes above its start; 0: not known. room: that it had; 0: not known.
 */
void mt__kind_learn(mt__kind *kind, mt__way way, size_t samples, size_t peak, size_t room,
                    mt_recording **recording);

/*
 * A chunk did not fit into room (SIZE_MAX: not known), and needs so many bytes at least (0: not known). recording: of
 * what it did before, or NULL.
 */
void mt__kind_fail(mt__kind *kind, mt__way way, size_t samples, size_t room, size_t need,
                   mt_recording *recording);

/* All that recordings, or other lengths, have told of peaks. */
void mt__kind_drop_ranges(mt__kind *kind);

/* A chunk took so long; and what one takes, 0: not known. */
void mt__kind_note_time(mt__kind *kind, size_t samples, double seconds);
double mt__kind_seconds(const mt__kind *kind, size_t samples);

/* Goes on with the times of another kind instead of its own, which are none yet. */
void mt__kind_share_times(mt__kind *kind, const mt__kind *with);

#endif
