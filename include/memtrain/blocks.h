/*
 * memtrain/blocks.h - the blocks of a chunk: what it takes of a device's memory, and when.
 *
 * For a layout of them in one piece of memory see memtrain/arena.h, for what a card's allocator makes of them
 * memtrain/sim.h.
 */
#ifndef MEMTRAIN_BLOCKS_H
#define MEMTRAIN_BLOCKS_H

#include <memtrain/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A block that is alive from one instant to another, and where it lies. */
typedef struct mt_block {
    size_t bytes;
    size_t begin;  /* instant at which it is taken; any unit that orders instants */
    size_t end;    /* instant at which it is released, after begin; SIZE_MAX: at the end of all */
    size_t offset; /* out: from the start of the arena */
} mt_block;

/*
 * The blocks of a chunk of m samples, in the order in which they are taken: lifetimes as recorded, in
 * blocks taken, and sizes on the lines through those of two recordings. A block that was released after
 * the chunk, or never, lives to its end (SIZE_MAX).
 *
 * @param small, large  two recordings: the blocks are those of large, each with the size that it and its
 *                      partner in small tell (see mt_memory_model), or its own where it has none. large
 *                      NULL: blocks of small as they are, samples must be those of small
 * @param apart         1: gradients that are handed over live to the end (see mt_event_sink)
 * @param blocks        room for capacity of them; NULL with capacity 0 to ask for the count
 * @param count         out: how many there are
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
