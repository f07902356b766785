/*
 * warm.c - moves blocks to where memory was in use a moment before, within the bytes of a layout.
 *
 * Memory that a block takes over soon after another one has left it is still in the processor's cache;
 * memory that nothing has used for a while must come from afar, and what is in the cache must go there.
 * The age of a byte that a block takes is counted in bytes: of the blocks that were taken since the one
 * which had it last was released. A byte as old as NEAR, or older, or never used before, is cold.
 *
 * What a layout costs is the sum over the blocks of the ages of their bytes, each as a part of NEAR. A
 * block is moved to the edge of another one, and stays there if that costs no more.
 */
#include <memtrain/arena.h>

#include <stdlib.h>

#include "layout.h"

#define NEAR ((double)(2 << 20)) /* about what one core may count on of the caches */
#define SMALL 4096               /* a block of fewer bytes is not worth moving */

typedef struct range {
    size_t from, top;
} range;

typedef struct heat {
    size_t count, fixed;
    mt_block *blocks;
    double *taken;             /* bytes that were taken by all before a block begins ... */
    double *released;          /* ... and before it has ended */
    size_t *by_begin, *by_end; /* blocks in those orders */
    size_t *ended;             /* how many of by_end have ended when a block begins */
    size_t *begun;             /* how many of by_begin have begun when it ends */
    range *pieces;
    uint64_t random;
} heat;

static size_t top_of(const mt_block *b) {
    return b->offset + b->bytes;
}

static int share_bytes(const mt_block *a, size_t offset, const mt_block *b) {
    return offset < top_of(b) && b->offset < offset + a->bytes;
}

/* What one block costs: those that had its bytes before are looked through, the last one first. */
static double cost_of(const heat *h, size_t which) {
    const mt_block *b = &h->blocks[which];
    size_t holes = 1;
    double cost = 0, cold = (double)b->bytes;
    h->pieces[0] = (range){b->offset, top_of(b)};
    for (size_t k = h->ended[which]; k-- > 0 && holes > 0;) {
        const mt_block *old = &h->blocks[h->by_end[k]];
        double age = h->taken[which] - h->released[h->by_end[k]];
        if (age >= NEAR) break;
        for (size_t i = 0; i < holes;) {
            range hole = h->pieces[i];
            size_t from = mt__max(hole.from, old->offset), top = mt__min(hole.top, top_of(old));
            if (from >= top) {
                i++;
                continue;
            }
            cost += (double)(top - from) * age / NEAR;
            cold -= (double)(top - from);
            h->pieces[i] = h->pieces[--holes];
            if (hole.from < from) h->pieces[holes++] = (range){hole.from, from};
            if (top < hole.top) h->pieces[holes++] = (range){top, hole.top};
        }
    }
    return cost + cold;
}

/* What a block costs, and those after it that lie where it lies or where it would be moved to. */
static double cost_around(const heat *h, size_t which, size_t other_offset) {
    const mt_block *b = &h->blocks[which];
    double cost = cost_of(h, which);
    for (size_t k = h->begun[which]; k < h->count; k++) {
        size_t later = h->by_begin[k];
        if (h->taken[later] - h->released[which] >= NEAR) break;
        if (share_bytes(b, b->offset, &h->blocks[later]) ||
            share_bytes(b, other_offset, &h->blocks[later]))
            cost += cost_of(h, later);
    }
    return cost;
}

static int is_free(const heat *h, size_t which, size_t offset) {
    const mt_block *b = &h->blocks[which];
    for (size_t i = 0; i < h->count; i++) {
        const mt_block *other = &h->blocks[i];
        if (i != which && other->begin < b->end && b->begin < other->end &&
            share_bytes(b, offset, other))
            return 0;
    }
    return 1;
}

/* An edge of the neighbour at which a block of so many bytes could lie; SIZE_MAX: below the arena. */
static size_t choose_edge(heat *h, const mt_block *neighbour, size_t bytes) {
    size_t edge = mt__random_below(&h->random, 4);
    size_t offset = edge & 1 ? top_of(neighbour) : neighbour->offset;
    if (edge < 2) return offset;
    return offset < bytes ? SIZE_MAX : offset - bytes;
}

static void try_move(heat *h, size_t limit) {
    size_t which = h->fixed + mt__random_below(&h->random, h->count - h->fixed);
    mt_block *b = &h->blocks[which];
    if (b->bytes < SMALL) return;
    size_t from = b->offset;
    size_t to = choose_edge(h, &h->blocks[mt__random_below(&h->random, h->count)], b->bytes);
    if (to == from || to > limit - b->bytes || !is_free(h, which, to)) return;
    double before = cost_around(h, which, to);
    b->offset = to;
    if (cost_around(h, which, from) > before) b->offset = from;
}

static mt_status check_inside(const mt_block *blocks, size_t count, size_t alignment,
                              size_t bytes) {
    for (size_t i = 0; i < count; i++) {
        size_t size = mt__rounded(blocks[i].bytes, alignment);
        MT__CHECK(blocks[i].offset % alignment == 0 && blocks[i].offset <= bytes &&
                      size <= bytes - blocks[i].offset,
                  "mt_arena_warm: block %zu lies at %zu with %zu bytes; accepted: multiples of %zu "
                  "within the arena's %zu bytes",
                  i, blocks[i].offset, size, alignment, bytes);
    }
    return MT_OK;
}

/* ---- the order of things ------------------------------------------------------------------------- */

typedef struct instant {
    size_t when, index;
} instant;

static int by_when(const void *a, const void *b) {
    const instant *x = a, *y = b;
    if (x->when != y->when) return x->when < y->when ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Both lists are sorted; a block that begins where another one ends comes after it. */
static void fill(heat *h, instant *begins, instant *ends) {
    double taken = 0;
    for (size_t i = 0; i < h->count; i++) {
        begins[i] = (instant){h->blocks[i].begin, i};
        ends[i] = (instant){h->blocks[i].end, i};
    }
    qsort(begins, h->count, sizeof *begins, by_when);
    qsort(ends, h->count, sizeof *ends, by_when);
    for (size_t b = 0, e = 0; b < h->count; b++) {
        size_t index = h->by_begin[b] = begins[b].index;
        for (; e < h->count && ends[e].when <= begins[b].when; e++) {
            h->released[ends[e].index] = taken;
            h->begun[ends[e].index] = b;
        }
        h->taken[index] = taken;
        h->ended[index] = e;
        taken += (double)h->blocks[index].bytes;
    }
    for (size_t e = 0; e < h->count; e++) {
        h->by_end[e] = ends[e].index;
        if (ends[e].when <= begins[h->count - 1].when) continue;
        h->released[ends[e].index] = taken;
        h->begun[ends[e].index] = h->count;
    }
}

static void heat_free(heat *h) {
    mt__free(h->blocks);
    mt__free(h->taken);
    mt__free(h->released);
    mt__free(h->by_begin);
    mt__free(h->by_end);
    mt__free(h->ended);
    mt__free(h->begun);
    mt__free(h->pieces);
}

static mt_status heat_new(const mt_block *blocks, size_t count, size_t fixed, size_t alignment,
                          heat *h) {
    instant *begins = mt__alloc(count, sizeof *begins), *ends = mt__alloc(count, sizeof *ends);
    *h = (heat){.count = count, .fixed = fixed};
    h->blocks = mt__alloc(count, sizeof *h->blocks);
    h->taken = mt__alloc(count, sizeof *h->taken);
    h->released = mt__alloc(count, sizeof *h->released);
    h->by_begin = mt__alloc(count, sizeof *h->by_begin);
    h->by_end = mt__alloc(count, sizeof *h->by_end);
    h->ended = mt__alloc(count, sizeof *h->ended);
    h->begun = mt__alloc(count, sizeof *h->begun);
    h->pieces = mt__alloc(2 * count + 2, sizeof *h->pieces);
    int has_memory = begins && ends && h->blocks && h->taken && h->released && h->by_begin &&
                     h->by_end && h->ended && h->begun && h->pieces;
    for (size_t i = 0; has_memory && i < count; i++) {
        h->blocks[i] = blocks[i];
        h->blocks[i].bytes = mt__rounded(blocks[i].bytes, alignment);
    }
    if (has_memory) fill(h, begins, ends);
    mt__free(begins);
    mt__free(ends);
    return has_memory ? MT_OK : mt_set_error(MT_ENOMEM, "mt_arena_warm: out of host memory");
}

mt_status mt_arena_warm(mt_block *blocks, size_t count, size_t fixed, size_t alignment,
                        size_t bytes, size_t tries, uint64_t *random, double *out_cold_bytes) {
    heat h;
    MT__CHECK(random, "mt_arena_warm: random is NULL");
    MT__CHECK(out_cold_bytes, "mt_arena_warm: out_cold_bytes is NULL");
    mt_status status = mt__check_blocks("mt_arena_warm", blocks, count, fixed, alignment);
    if (status == MT_OK) status = check_inside(blocks, count, alignment, bytes);
    if (status != MT_OK) return status;
    *out_cold_bytes = 0;
    if (count == 0) return MT_OK;
    status = heat_new(blocks, count, fixed, alignment, &h);
    if (status == MT_OK) {
        h.random = *random;
        for (size_t i = 0; fixed < count && i < tries; i++) try_move(&h, bytes);
        for (size_t i = 0; i < count; i++) *out_cold_bytes += cost_of(&h, i);
        for (size_t i = 0; i < count; i++) blocks[i].offset = h.blocks[i].offset;
        *random = h.random;
    }
    heat_free(&h);
    return status;
}
