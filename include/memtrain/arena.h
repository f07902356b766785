/*
 * memtrain/arena.h - lays out all blocks of a chunk in one piece of memory, before the chunk runs.
 *
 * A chunk takes the same blocks in the same order each time. So the place of each block can be
 * decided once, from the time during which it is alive. Blocks that are never alive together may
 * share bytes.
 *
 * This is the dynamic storage allocation problem (Garey & Johnson 1979, SR2). It is hard to solve
 * and easy to approximate. Blocks are placed one after the other. Each goes into a gap between the
 * blocks that it lives together with. The order of placing matters. So several orders are tried,
 * and the best is kept. A search that moves blocks in the order can go on beside other work.
 *
 * The idea is that of Sekiyama et al. 2018 (profile-guided memory planning, arXiv 1804.10001). The
 * greedy orders are those of the planners of TFLite and TVM (Pisarchyk & Lee 2020, arXiv
 * 2001.03288). OLLA (Steiner et al. 2022, arXiv 2210.12924) shows what a solver could still gain.
 *
 * All functions are pure functions over the caller's arrays. They use no device, no clock, and only
 * memory of the host. They are in libmemtrain_memory: link with -lmemtrain_memory -lmemtrain.
 */
#ifndef MEMTRAIN_ARENA_H
#define MEMTRAIN_ARENA_H

#include <memtrain/blocks.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a layout comes to. */
typedef struct mt_layout {
    size_t size;              /* sizeof(mt_layout) */
    size_t bytes;             /* of the arena */
    size_t lower_bound_bytes; /* most bytes alive at a time: no layout can be smaller */
    const char *order;        /* by what the best layout was placed: "size", ... Static */
} mt_layout;

#define MT_LAYOUT_INIT                                                                             \
    { sizeof(mt_layout), 0, 0, NULL }

/*
 * Writes an offset into each block, so that blocks that are alive together do not overlap.
 *
 * It takes a few milliseconds for 1,000 blocks, and a fifth of a second for 10,000. Beyond that
 * fewer orders are tried. 100,000 blocks take some ten seconds. Any thread.
 *
 * @param blocks     count blocks; sizes are rounded up to alignment
 * @param fixed      number of blocks, the first ones, that stay where their offset says
 * @param alignment  of every offset, a power of two
 * @param out        what the layout comes to
 * @return MT_OK; MT_EINVAL (a block that ends before it begins, fixed blocks that overlap, an
 *         alignment that is not a power of two, more bytes than any memory has); MT_ENOMEM. After a
 *         failure the offsets are as before
 */
MT_API MT_NODISCARD mt_status mt_arena_layout(mt_block *blocks, size_t count, size_t fixed,
                                              size_t alignment, mt_layout *out);

/* A search for a smaller layout. It goes on from where it stopped. One thread at a time. */
typedef struct mt_arena_search mt_arena_search;

/*
 * Makes a search.
 *
 * @param blocks  as for mt_arena_layout, with the same fixed and alignment; copied
 * @param out     new reference: free with mt_arena_search_free
 * @return MT_OK, MT_EINVAL, MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_arena_search_new(const mt_block *blocks, size_t count,
                                                  size_t fixed, size_t alignment,
                                                  mt_arena_search **out);

/* Frees a search. NULL is a no-op. */
MT_API void mt_arena_search_free(mt_arena_search *search);

/*
 * Goes on with a search. The result is the same in every run.
 *
 * @param tries  changes to try; one takes about as long as to place all blocks once
 * @return bytes of the best layout so far; 0 for a bad handle
 */
MT_API size_t mt_arena_search_run(mt_arena_search *search, unsigned tries);

/* Writes the offsets of the best layout into the blocks that the search was made from. */
MT_API MT_NODISCARD mt_status mt_arena_search_result(const mt_arena_search *search,
                                                     mt_block *blocks, size_t count,
                                                     mt_layout *out);

/*
 * Moves blocks within a layout to places where memory was in use a moment before. Such memory is
 * probably still in the processor's cache. So a step is faster, and the arena does not grow.
 *
 * 10,000 tries on 500 blocks take a few milliseconds. Any thread.
 *
 * @param blocks          with the offsets of a layout. Blocks that are alive together must not
 *                        overlap. Sizes are rounded up to alignment
 * @param fixed           number of blocks, the first ones, that stay where they are
 * @param bytes           of the layout
 * @param tries           moves to try; a move is kept unless it makes the layout colder. 0 only
 *                        measures
 * @param random          state of the random numbers, with any value at first; the next call goes
 *                        on from it
 * @param out_cold_bytes  cold bytes: of the bytes that all blocks take, those that nothing has used
 *                        for a while. A byte counts as 1 if more than 2 MiB were taken since it was
 *                        last in use, or if it was never in use. It counts in proportion if less
 *                        was taken
 * @return MT_OK, MT_EINVAL, MT_ENOMEM; after a failure the offsets are as before
 */
MT_API MT_NODISCARD mt_status mt_arena_warm(mt_block *blocks, size_t count, size_t fixed,
                                            size_t alignment, size_t bytes, size_t tries,
                                            uint64_t *random, double *out_cold_bytes);

#ifdef __cplusplus
}
#endif
#endif
