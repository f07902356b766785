/*
 * memtrain/arena.h - one piece of memory for all blocks of a chunk, laid out before it runs.
 *
 * A chunk takes the same blocks in the same order each time, so where each one lies can be decided once,
 * from when they live: blocks that are never alive together may share bytes. This is the dynamic storage
 * allocation problem (Garey & Johnson 1979, SR2), hard to solve and easy to come near to: blocks are placed
 * one after the other, each into a gap between those that it lives together with. In which order they are
 * placed matters, so several are tried and the best is kept; a search that moves blocks about can go on
 * beside other work. After Sekiyama et al. 2018 (profile-guided memory planning, arXiv 1804.10001), with
 * the greedy orders of TFLite's and TVM's planners (Pisarchyk & Lee 2020, arXiv 2001.03288), and for what
 * a solver could still gain OLLA (Steiner et al. 2022, arXiv 2210.12924).
 *
 * Pure functions over the caller's arrays: no device, no clock, no memory but the host's. They are in
 * libmemtrain_memory: link with -lmemtrain_memory -lmemtrain.
 */
#ifndef MEMTRAIN_ARENA_H
#define MEMTRAIN_ARENA_H

#include <memtrain/blocks.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mt_layout {
    size_t size;              /* sizeof(mt_layout) */
    size_t bytes;             /* of the arena */
    size_t lower_bound_bytes; /* most bytes alive at a time: no layout can do with less */
    const char *order;        /* what the best layout was placed by, "size", ...; static */
} mt_layout;

#define MT_LAYOUT_INIT                                                                             \
    { sizeof(mt_layout), 0, 0, NULL }

/*
 * Writes an offset into each block such that blocks alive together do not overlap.
 *
 * @param blocks     count of them; sizes are rounded up to alignment
 * @param fixed      so many blocks, the first ones, lie where their offset says and stay there
 * @param alignment  of every offset, a power of two
 * @param out        what came of it
 * @return MT_OK; MT_EINVAL (a block that ends before it begins, fixed blocks that overlap, an alignment that
 *         is no power of two, bytes beyond any memory); MT_ENOMEM. After a failure the offsets are as they were.
 *
 * Any thread. For 1,000 blocks it takes a few milliseconds; for 10,000 a fifth of a
 * second; beyond that fewer orders are tried, and 100,000 take some ten seconds.
 */
MT_API MT_NODISCARD mt_status mt_arena_layout(mt_block *blocks, size_t count, size_t fixed,
                                              size_t alignment, mt_layout *out);

/* A search for a smaller layout, that goes on from where it is. One thread at a time. */
typedef struct mt_arena_search mt_arena_search;

/*
 * @param blocks  as for mt_arena_layout, with the same fixed and alignment; copied
 * @param out     new reference: free with mt_arena_search_free
 * @return MT_OK, MT_EINVAL, MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_arena_search_new(const mt_block *blocks, size_t count,
                                                  size_t fixed, size_t alignment,
                                                  mt_arena_search **out);

/* NULL is a no-op. */
MT_API void mt_arena_search_free(mt_arena_search *search);

/*
 * Tries that many changes (one takes about as long as placing all blocks once) and returns the bytes of
 * the best layout so far; 0 for a bad handle. The same numbers come in every run.
 */
MT_API size_t mt_arena_search_run(mt_arena_search *search, unsigned tries);

/* Writes the offsets of the best layout into the blocks that the search was made from. */
MT_API MT_NODISCARD mt_status mt_arena_search_result(const mt_arena_search *search,
                                                     mt_block *blocks, size_t count,
                                                     mt_layout *out);

/*
 * Moves blocks within a layout to where memory was in use a moment before, which is likely to be in the
 * processor's cache still: a step is the faster for it, and the arena no larger.
 *
 * @param blocks          with the offsets of a layout, of which no two that are alive together overlap; sizes
 *                        are rounded up to alignment
 * @param fixed           so many blocks, the first ones, stay where they are
 * @param bytes           of the layout
 * @param tries           moves to try; each is kept if the layout is no colder for it. 0 only measures
 * @param random          state of the random numbers, any value at first; goes on in the next call
 * @param out_cold_bytes  of the bytes that all blocks take, those that nothing has used for a while: a byte
 *                        counts as 1 if more than 2 MiB were taken since it was last in use (or it never
 *                        was), and in proportion if less
 * @return MT_OK, MT_EINVAL, MT_ENOMEM; after a failure the offsets are as they were
 *
 * Any thread. 10,000 tries on 500 blocks take a few milliseconds.
 */
MT_API MT_NODISCARD mt_status mt_arena_warm(mt_block *blocks, size_t count, size_t fixed,
                                            size_t alignment, size_t bytes, size_t tries,
                                            uint64_t *random, double *out_cold_bytes);

#ifdef __cplusplus
}
#endif
#endif
