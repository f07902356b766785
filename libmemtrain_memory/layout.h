/*
 * layout.h - what the makers of layouts share.
 */
#ifndef MT_LAYOUT_H
#define MT_LAYOUT_H

#include <memtrain/arena.h>

#include "internal.h"

/* A number below n > 0; the same ones come from the same state. */
size_t mt__random_below(uint64_t *random, size_t n);

/* Up to the next multiple of a power of two. */
size_t mt__rounded(size_t bytes, size_t alignment);

/* MT_EINVAL for what mt_arena_layout does not accept. */
mt_status mt__check_blocks(const char *function, const mt_block *blocks, size_t count, size_t fixed,
                           size_t alignment);

#endif
