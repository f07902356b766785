/*
 * recording.h - the events of one chunk, as the memory model reads them.
 */
#ifndef MT_RECORDING_H
#define MT_RECORDING_H

#include "json.h"

/* What happened to a block. */
typedef enum mt__what { MT__TAKEN, MT__HANDED_OVER, MT__RELEASED } mt__what;

/*
 * One event. An allocation has its size in bytes and, once released, the index of that release in
 * partner, SIZE_MAX while it is alive; the other events of a block have the index of its allocation.
 */
typedef struct mt__event {
    size_t bytes; /* 0 but for an allocation */
    size_t partner;
    size_t number; /* of an allocation: how many were before it */
    mt__what what;
    int handed_over; /* of an allocation: there is such an event */
} mt__event;

struct mt_recording {
    size_t samples;
    mt__event *events;
    size_t count, capacity;
    size_t allocations;
    size_t live_bytes, peak_bytes;
    size_t handed_over;    /* events of that kind */
    struct mt__live *live; /* hash table: address of a live block -> its event */
    size_t live_capacity, live_count;
    int incomplete; /* host memory ran out */
};

enum { MT__LENGTHS = 3 }; /* that a length between them is told from */

/* start + rise * (m - from) / run bytes of m samples, with from and run of its part. */
typedef struct mt__line {
    int64_t start, rise;
} mt__line;

/* The upper envelope of the lines of one sample length. */
typedef struct mt__part {
    size_t from;  /* samples of the smaller recording */
    size_t run;   /* samples between the recordings */
    size_t count; /* of lines, in rising order of rise */
    double weight;
} mt__part;

struct mt_memory_model {
    size_t margin; /* bytes without a partner */
    size_t parts;  /* 1, of weight 1; or MT__LENGTHS */
    mt__part part[MT__LENGTHS];
    mt__line lines[]; /* of all parts, one after the other */
};

/* Forgets all events and starts anew, for a chunk of at least 1 sample. */
void mt__recording_restart(mt_recording *recording, size_t samples);

/*
 * Whether an event ends the life of its block. A gradient that was handed over is dead at once where
 * gradients are added in place, and lives to the end of the chunk where they are a second set (apart).
 */
int mt__ends_life(const mt_recording *recording, const mt__event *event, int apart);

/*
 * Writes for the i-th allocation of large the number of its partner in small, negative for none. Returns
 * 0 when out of host memory; -1 where too many have none: a chunk that loops over its samples has ever more allocations.
 */
int mt__pair_up(const mt_recording *small, const mt_recording *large, ptrdiff_t *partner);

/* The most bytes live at a time, with gradients in place or apart. */
size_t mt__recording_peak(const mt_recording *recording, int apart);

/*
 * As mt_memory_model_new, of recordings known to be complete and ascending; apart: for chunks whose
 * gradients are a second set, whichever way the recordings were made.
 */
mt_status mt__memory_model_new(const mt_recording *small, const mt_recording *large, int apart,
                               mt_memory_model **out);

/*
 * The model of a sample length between, or a little beyond, those of the given models, each of recordings: its peak is the
 * weighted sum of theirs. Nothing of them is kept. NULL when out of host memory.
 */
mt_memory_model *mt__memory_model_between(const mt_memory_model *const of[MT__LENGTHS],
                                          const double weight[MT__LENGTHS]);

/* A model of one part. NULL when out of host memory. */
mt_memory_model *mt__memory_model_of(const mt__line *lines, const mt__part *part, size_t margin);

#endif
