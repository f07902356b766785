/*
 * fake_blocks.h - the blocks of a training step without one, for the suites of layouts.
 */
#ifndef FAKE_BLOCKS_H
#define FAKE_BLOCKS_H

#include "fake_backend.h"

#include <memtrain/arena.h>

/*
 * Activations that live until their backward, short helpers in between, and gradients to the end: four
 * blocks a layer, which are written to blocks. Returns how many.
 */
static inline size_t fake_blocks(mt_block *blocks, size_t layers, uint64_t *random) {
    size_t n = 0, last = 8 * layers;

    for (size_t layer = 0; layer < layers; layer++) {
        size_t bytes = 64 + fake_random(random) % 100000, back = last - 4 * layer;

        blocks[n++] = (mt_block){bytes, 4 * layer, back + 3, 0};
        blocks[n++] = (mt_block){bytes / 2, 4 * layer + 1, 4 * layer + 2, 0};
        blocks[n++] = (mt_block){bytes, back, back + 4, 0};
        blocks[n++] = (mt_block){1 + fake_random(random) % 30000, back + 1, SIZE_MAX, 0};
    }
    return n;
}

#endif
