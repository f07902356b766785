/*
 * sim_state.h - the inside of mt_sim, shared by sim.c (handle, books), sim_cuda.c and sim_mps.c
 * (the rules of each allocator).
 */
#ifndef MT_SIM_STATE_H
#define MT_SIM_STATE_H

#include <memtrain/sim.h>

#include "internal.h"
#include "tree.h"

#define MT__MIB ((size_t)1 << 20)

typedef struct mt__block mt__block;

/*
 * A set of blocks for requests of one kind. CUDA: free blocks. MPS: cached buffers, and the heaps
 * that all of the pool's buffers lie in.
 */
typedef struct mt__pool {
    mt__node *cached; /* mt__block.by_size */
    size_t cached_bytes;
    mt__node *heaps; /* MPS: mt__heap.node */
    int small, shared;
} mt__pool;

/*
 * The pools of one stream: of CUDA's each has its own, so that nothing that one stream has given back goes to another. MPS has
 * one for all.
 */
enum { MT__POOLS = 3 };
typedef struct mt__stream {
    uint64_t id;
    mt__pool pools[MT__POOLS];
    struct mt__stream *next;
} mt__stream;

/* One piece of memory from the device: a segment of CUDA's, a heap of Metal's. */
typedef struct mt__segment {
    mt__node node; /* MPS: in its pool's heaps, by (available, address) */
    uint64_t address;
    size_t bytes;
    mt__pool *pool;
    mt__node *gaps;            /* MPS: bytes in no buffer, mt__block.by_size */
    size_t buffers;            /* MPS: in the heap, cached ones included */
    int is_exclusive;          /* MPS: made for one buffer */
    struct mt__segment *spare; /* the next one of the list of spares */
} mt__segment;

typedef enum mt__block_state {
    MT__BLOCK_TAKEN, /* between two states, in no set */
    MT__BLOCK_IN_USE,
    MT__BLOCK_CACHED, /* CUDA: free; MPS: a buffer without a user */
    MT__BLOCK_GAP     /* MPS: of a heap, in no buffer */
} mt__block_state;

/* A segment is a list of blocks without holes, in the order of their addresses. */
struct mt__block {
    mt__node by_size;    /* in the pool's cache or the heap's gaps, by (bytes, address) */
    mt__node by_address; /* in mt_sim.blocks */
    uint64_t address;
    size_t bytes, requested_bytes;
    mt__segment *segment;
    mt__block *prev, *next; /* neighbours; next also links spares */
    mt__block_state state;
    uint64_t age; /* CUDA: the clock when it was cached; MPS: searches since then */
};

struct mt_sim {
    mt_sim_options options; /* defaults filled in */
    mt_sim_stats stats;     /* kept up to date, but for free_bytes */
    size_t low_limit;       /* MPS: bytes of the low watermark; SIZE_MAX: off */
    mt__stream first;       /* stream 0, and by its next all others */
    mt__stream *stream;     /* of requests from now on */
    mt__node *blocks;       /* all that are no spares */
    uint64_t next_address;
    uint64_t clock; /* CUDA: searches, the time of the garbage collection */
    mt__block *spare_blocks;
    mt__segment *spare_segments;
};

/* ---- sim.c: what both allocators do --------------------------------------------------------- */

/* What is left of the device for new segments. */
size_t mt__sim_free_bytes(const mt_sim *s);

/* Whether a + b is more than the limit, without overflow. */
static inline int mt__exceeds(size_t a, size_t b, size_t limit) {
    return b > limit || a > limit - b;
}

/*
 * A new segment with one block (MT__BLOCK_TAKEN) over all of it, or NULL when the device has no
 * room. The structs come from the spares, of which mt_sim_alloc has made sure there are enough.
 */
mt__block *mt__sim_map(mt_sim *s, mt__pool *pool, size_t bytes);

/* Gives a segment back whose only block is this one, which is MT__BLOCK_TAKEN. */
void mt__sim_unmap(mt_sim *s, mt__block *block);

/* Cuts what is beyond bytes off a block that is MT__BLOCK_TAKEN, as a new one. */
mt__block *mt__sim_split(mt_sim *s, mt__block *block, size_t bytes);

/*
 * Puts a block that is MT__BLOCK_TAKEN into the set of that state (cached, gap), and takes it out
 * again. It must have the neighbours then that it had.
 */
void mt__sim_put(mt_sim *s, mt__block *block, mt__block_state state);
void mt__sim_take(mt_sim *s, mt__block *block);

/* The block, MT__BLOCK_TAKEN, with the neighbours in that state merged into it. */
mt__block *mt__sim_merge(mt_sim *s, mt__block *block, mt__block_state state);

/* Marks a block that is MT__BLOCK_TAKEN as in use, and counts it. */
void mt__sim_use(mt_sim *s, mt__block *block, size_t requested_bytes);

static inline mt__block *mt__block_by_size(mt__node *node) {
    return node ? MT__OWNER(node, mt__block, by_size) : NULL;
}

/* A size in the words of both allocators' errors: "1.50 GiB". */
const char *mt__sim_words(size_t bytes, char text[32]);

/* ---- the allocators: the block that serves a request, NULL after an error line was set ------ */

mt__block *mt__cuda_alloc(mt_sim *s, size_t bytes);
void mt__cuda_release(mt_sim *s, mt__block *block);
void mt__cuda_empty_cache(mt_sim *s);
mt_status mt__cuda_set_ratio(mt_sim *s, double ratio);
mt_status mt__cuda_check(mt_sim_options *o);
mt_status mt__cuda_start(mt_sim *s);
void mt__cuda_start_stream(mt__stream *stream);
mt_status mt__cuda_refuse(mt_sim *s, size_t bytes);

mt__block *mt__mps_alloc(mt_sim *s, size_t bytes);
void mt__mps_release(mt_sim *s, mt__block *block);
void mt__mps_empty_cache(mt_sim *s);
mt_status mt__mps_set_ratio(mt_sim *s, double ratio);
mt_status mt__mps_check(mt_sim_options *o);
mt_status mt__mps_start(mt_sim *s);
mt_status mt__mps_refuse(mt_sim *s, size_t bytes);

#endif
