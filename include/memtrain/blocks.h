/*
 * memtrain/blocks.h - the blocks of a chunk: what it takes of a device's memory, and when.
 *
 * memtrain/arena.h lays them out in one piece of memory. memtrain/sim.h shows what the allocator of
 * a card makes of them.
 */
#ifndef MEMTRAIN_BLOCKS_H
#define MEMTRAIN_BLOCKS_H

#include <memtrain/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A block: its size, when it is alive, and where it lies. */
typedef struct mt_block {
    size_t bytes;
    size_t begin;  /* instant at which it is taken, in any unit that orders instants */
    size_t end;    /* instant of its release, after begin. SIZE_MAX: at the end of all */
    size_t offset; /* out: from the start of the arena */
} mt_block;

/*
 * Gives the blocks of a chunk of m samples, in the order in which they are taken. Lifetimes are
 * those recorded, counted in blocks taken. Sizes are on the lines through those of two recordings.
 * A block that was released after the chunk, or never, lives to the end of the chunk (SIZE_MAX).
 *
 * @param small    a recording
 * @param large    a recording of a larger chunk. The blocks are those of large. The size of each
 *                 follows from its own size and its partner's in small (see mt_memory_model).
 *                 Without a partner it is its own size. NULL: the blocks are those of small as they
 *                 are, and samples must be those of small
 * @param samples  m
 * @param apart    1: gradients that are handed over live to the end (see mt_event_sink)
 * @param blocks   room for capacity blocks; NULL with capacity 0 to ask for the count
 * @param count    out: number of blocks
 * @return MT_OK, MT_EINVAL, MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_recording_blocks(const mt_recording *small,
                                                  const mt_recording *large, size_t samples,
                                                  int apart, mt_block *blocks, size_t capacity,
                                                  size_t *count);

#ifdef __cplusplus
}
#endif
#endif
