/*
 * sim_play.c - the blocks of a chunk on a simulated card: what its allocator reserves for them.
 */
#include <memtrain/sim.h>

#include "internal.h"

#include <stdlib.h>

/* When a block is released, and which. */
typedef struct release {
    size_t end, block;
} release;

static int by_end(const void *a, const void *b) {
    const release *x = a, *y = b;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return x->block < y->block ? -1 : x->block > y->block;
}

static mt_status check_blocks(const mt_block *blocks, size_t count) {
    MT__CHECK(blocks || count == 0, "mt_sim_play: blocks is NULL");
    for (size_t i = 0; i < count; i++) {
        MT__CHECK(blocks[i].begin < blocks[i].end,
                  "mt_sim_play: block %zu lives from %zu to %zu; it must end after it begins", i,
                  blocks[i].begin, blocks[i].end);
        MT__CHECK(i == 0 || blocks[i - 1].begin <= blocks[i].begin,
                  "mt_sim_play: block %zu begins at %zu, before the one before it", i,
                  blocks[i].begin);
    }
    return MT_OK;
}

/* Each block at its instant, those first that end then. Returns how many were released. */
static mt_status take(mt_sim *sim, const mt_block *blocks, size_t count, const release *releases,
                      uint64_t *addresses, size_t *released) {
    mt_sim_block block;
    mt_status status = MT_OK;
    for (size_t i = 0; i < count && status == MT_OK; i++) {
        for (; releases[*released].end <= blocks[i].begin && status == MT_OK; ++*released)
            status = mt_sim_release(sim, addresses[releases[*released].block]);
        if (status == MT_OK) status = mt_sim_alloc(sim, blocks[i].bytes, &block);
        if (status == MT_OK) addresses[i] = block.address;
    }
    return status;
}

/* Address 0, of blocks that were never taken, is none. */
static void give_back(mt_sim *sim, size_t count, const release *releases, const uint64_t *addresses,
                      size_t released) {
    for (size_t r = released; r < count; r++)
        if (mt_sim_release(sim, addresses[releases[r].block]) != MT_OK) return;
}

mt_status mt_sim_play(mt_sim *sim, const mt_block *blocks, size_t count) {
    size_t released = 0;
    MT__CHECK_HANDLE(sim, MT__KIND_SIM, "mt_sim_play");
    mt_status status = check_blocks(blocks, count);
    if (status != MT_OK || count == 0) return status;
    release *releases = mt__alloc(count, sizeof *releases);
    uint64_t *addresses = mt__alloc(count, sizeof *addresses);
    for (size_t i = 0; releases && i < count; i++) releases[i] = (release){blocks[i].end, i};
    if (releases && addresses) {
        qsort(releases, count, sizeof *releases, by_end);
        status = take(sim, blocks, count, releases, addresses, &released);
        give_back(sim, count, releases, addresses, released);
    } else {
        status = mt_set_error(MT_ENOMEM, "mt_sim_play: out of host memory");
    }
    mt__free(releases);
    mt__free(addresses);
    return status;
}
