/*
 * recording.h - the events of one chunk, as the memory model reads them.
 */
#ifndef MT_RECORDING_H
#define MT_RECORDING_H

#include "internal.h"

/*
 * One event. An allocation has its size in bytes and, once released, the index of that release in
 * partner; a release has the index of its allocation. SIZE_MAX: still alive at the end.
 */
typedef struct mt__event {
    size_t bytes; /* 0: a release */
    size_t partner;
} mt__event;

struct mt_recording {
    size_t samples;
    mt__event *events;
    size_t count, capacity;
    size_t allocations;
    size_t live_bytes, peak_bytes;
    struct mt__live *live; /* hash table: address of a live block -> its event */
    size_t live_capacity, live_count;
    int incomplete; /* host memory ran out */
};

/* Forgets all events and starts anew, for a chunk of at least 1 sample. */
void mt__recording_restart(mt_recording *recording, size_t samples);

#endif
