/*
 * fake_program.h - the blocks of a chunk, for fake_program.c, which tells of a whole chunk, and fake_backend.c, which runs one.
 */
#ifndef FAKE_PROGRAM_H
#define FAKE_PROGRAM_H

#include "fake_backend.h"

size_t fake_allocation_bytes(const fake_allocation *allocation, size_t samples);

/* Whether a block is given back before the one of number now is taken. */
int fake_dies_before(const fake_program *program, size_t which, size_t now);

/* Blocks of a chunk that are alive, each in a slot; the lowest free slot is taken first. */
typedef struct fake_live {
    size_t bytes[FAKE_ALLOCATIONS_MAX];
    size_t slot_of[FAKE_ALLOCATIONS_MAX];
    int taken[FAKE_ALLOCATIONS_MAX];
    int alive[FAKE_ALLOCATIONS_MAX];
} fake_live;

/* Each tells the sink. */
void fake_tell(const mt_event_sink *sink, size_t slot, int64_t bytes);
void fake_block_take(fake_live *all, size_t which, size_t bytes, const mt_event_sink *sink);

/* @return its bytes; 0: it is not alive */
size_t fake_block_release(fake_live *all, size_t which, const mt_event_sink *sink);

#endif
