/*
 * arena.c - where blocks lie whose lifetimes are known: greedy placement in several orders, and a search.
 */
#include <memtrain/arena.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

/* Comparisons of blocks that the first layout may cost: about a tenth of a second. */
#define MOST_WORK ((uint64_t)70000000)

/* splitmix64 (Steele, Lea & Flood 2014). */
size_t mt__random_below(uint64_t *random, size_t n) {
    uint64_t z = (*random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)((z ^ (z >> 31)) % n);
}

size_t mt__rounded(size_t bytes, size_t alignment) {
    return (bytes + alignment - 1) & ~(alignment - 1);
}

/* ---- placement --------------------------------------------------------------------------------- */

/* A block that has its place. Instants are numbers of instants, so that many fit into the cache. */
typedef struct placed {
    uint32_t begin, end, index;
} placed;

typedef struct problem {
    size_t count;
    size_t fixed;            /* the first of them have their place */
    mt_block *blocks;        /* own copy, bytes rounded up */
    uint32_t *begins, *ends; /* instants of the blocks, numbered in their order */
    placed *list;            /* room for all; sorted by offset */
    size_t *offsets, *tops;  /* of the placement that was made last */
    size_t lower_bound;
    uint64_t work; /* comparisons so far */
} problem;

typedef enum fit { BEST_FIT, FIRST_FIT, FITS } fit;

/* What is looked through at a time, without a branch that nobody can predict. */
#define SLICE 128

/* Those of a slice of the list that live together with a block; returns how many. */
static size_t find_neighbours(const placed *list, size_t count, uint32_t begin, uint32_t end,
                              uint32_t *neighbours) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        neighbours[found] = list[i].index;
        found += (size_t)((list[i].begin < end) & (begin < list[i].end));
    }
    return found;
}

/* The offset of the smallest gap, or the lowest, that holds the block; above all where there is none. */
static size_t find_gap(const problem *p, size_t placed_count, size_t index, fit how) {
    size_t bytes = p->blocks[index].bytes, free_from = 0, best = SIZE_MAX, offset = SIZE_MAX;
    uint32_t neighbours[SLICE];
    for (size_t at = 0; at < placed_count; at += SLICE) {
        size_t found = find_neighbours(p->list + at, mt__min(placed_count - at, SLICE),
                                       p->begins[index], p->ends[index], neighbours);
        for (size_t i = 0; i < found; i++) {
            size_t other = p->offsets[neighbours[i]];
            size_t gap = other > free_from ? other - free_from : 0;
            if (gap && gap >= bytes && gap < best) {
                best = gap;
                offset = free_from;
                if (how == FIRST_FIT || gap == bytes) return offset;
            }
            free_from = mt__max(free_from, p->tops[neighbours[i]]);
        }
    }
    return best < SIZE_MAX ? offset : free_from;
}

static void insert(problem *p, size_t placed_count, size_t index, size_t offset) {
    size_t low = 0, high = placed_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (p->offsets[p->list[middle].index] <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(p->list + low + 1, p->list + low, (placed_count - low) * sizeof *p->list);
    p->list[low] = (placed){p->begins[index], p->ends[index], (uint32_t)index};
    p->offsets[index] = offset;
    p->tops[index] = offset + p->blocks[index].bytes;
}

/*
 * Places all blocks, those that are not fixed in that order; returns the bytes, or SIZE_MAX when they
 * would be most or more.
 */
static size_t place(problem *p, const size_t *order, fit how, size_t most) {
    size_t bytes = 0;
    for (size_t i = 0; i < p->count; i++) {
        const mt_block *block = &p->blocks[order[i]];
        size_t offset = i < p->fixed ? block->offset : find_gap(p, i, order[i], how);
        p->work += i;
        bytes = mt__max(bytes, offset + block->bytes);
        if (bytes >= most && i >= p->fixed) return SIZE_MAX;
        insert(p, i, order[i], offset);
    }
    return bytes;
}

/* ---- orders ------------------------------------------------------------------------------------- */

/* What a block is sorted by, descending; among equals the earlier one comes first. */
typedef struct key {
    double value;
    size_t index;
} key;

static double lifetime(const mt_block *b, size_t last) {
    return (double)(mt__min(b->end, last) - b->begin);
}

static double by_size(const mt_block *b, size_t last) {
    (void)last;
    return (double)b->bytes;
}

static double by_area(const mt_block *b, size_t last) {
    return (double)b->bytes * lifetime(b, last);
}

static double by_root_of_area(const mt_block *b, size_t last) {
    return (double)b->bytes * sqrt(lifetime(b, last));
}

static double by_first_use(const mt_block *b, size_t last) {
    (void)last;
    return -(double)b->begin;
}

/* Those that live for a fifth of the time lie at the bottom, by size; then the others, by size. */
static double by_long_life(const mt_block *b, size_t last) {
    return lifetime(b, last) > 0.2 * (double)last ? 1e18 + (double)b->bytes : (double)b->bytes;
}

static const struct {
    const char *name;
    double (*value)(const mt_block *block, size_t last);
    fit how;
} orders[] = {
    {"size", by_size, BEST_FIT},
    {"area", by_area, BEST_FIT},
    {"long life", by_long_life, BEST_FIT},
    {"root of area", by_root_of_area, BEST_FIT},
    {"lifetime", lifetime, BEST_FIT},
    {"size, first fit", by_size, FIRST_FIT},
    {"area, first fit", by_area, FIRST_FIT},
    {"root of area, first fit", by_root_of_area, FIRST_FIT},
    {"lifetime, first fit", lifetime, FIRST_FIT},
    {"first use", by_first_use, BEST_FIT},
};

enum { ORDERS = sizeof orders / sizeof *orders };

static int by_value(const void *a, const void *b) {
    const key *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static size_t last_instant(const problem *p) {
    size_t last = 0;
    for (size_t i = 0; i < p->count; i++) {
        last = mt__max(last, p->blocks[i].begin + 1);
        if (p->blocks[i].end < SIZE_MAX) last = mt__max(last, p->blocks[i].end);
    }
    return last;
}

static void sort(const problem *p, size_t which, key *keys, size_t *order) {
    size_t last = last_instant(p);
    for (size_t i = 0; i < p->count; i++)
        keys[i] = (key){i < p->fixed ? INFINITY : orders[which].value(&p->blocks[i], last), i};
    qsort(keys, p->count, sizeof *keys, by_value);
    for (size_t i = 0; i < p->count; i++) order[i] = keys[i].index;
}

/* ---- the problem --------------------------------------------------------------------------------- */

/* A change of the bytes that are alive. */
typedef struct change {
    size_t instant, index;
    int is_release;
} change;

/* Releases come first: a block may begin where another one ends. */
static int by_instant(const void *a, const void *b) {
    const change *x = a, *y = b;
    if (x->instant != y->instant) return x->instant < y->instant ? -1 : 1;
    return y->is_release - x->is_release;
}

/* The most bytes alive at a time, and the number of each instant. */
static void play(problem *p, const change *changes) {
    size_t now = 0;
    uint32_t instant = 0;
    for (size_t i = 0; i < 2 * p->count; i++) {
        const change *c = &changes[i];
        if (i > 0 && c->instant != c[-1].instant) instant++;
        (c->is_release ? p->ends : p->begins)[c->index] = instant;
        if (c->is_release)
            now -= p->blocks[c->index].bytes;
        else
            p->lower_bound = mt__max(p->lower_bound, now += p->blocks[c->index].bytes);
    }
}

static mt_status number_instants(problem *p) {
    change *changes = mt__alloc(2 * p->count, sizeof *changes);
    if (!changes) return mt_set_error(MT_ENOMEM, "mt_arena_layout: out of host memory");
    for (size_t i = 0; i < p->count; i++) {
        changes[2 * i] = (change){p->blocks[i].begin, i, 0};
        changes[2 * i + 1] = (change){p->blocks[i].end, i, 1};
    }
    qsort(changes, 2 * p->count, sizeof *changes, by_instant);
    play(p, changes);
    mt__free(changes);
    return MT_OK;
}

static int overlap(const mt_block *a, const mt_block *b) {
    return a->begin < b->end && b->begin < a->end && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static mt_status check_fixed(const char *function, const mt_block *blocks, size_t fixed,
                             size_t alignment) {
    for (size_t i = 0; i < fixed; i++) {
        MT__CHECK(blocks[i].offset % alignment == 0 && blocks[i].offset < SIZE_MAX / 4,
                  "%s: fixed block %zu lies at %zu; a multiple of %zu below 2^%d is accepted",
                  function, i, blocks[i].offset, alignment, (int)(8 * sizeof(size_t)) - 2);
        for (size_t j = 0; j < i; j++)
            MT__CHECK(!overlap(&blocks[i], &blocks[j]), "%s: fixed blocks %zu and %zu overlap",
                      function, j, i);
    }
    return MT_OK;
}

mt_status mt__check_blocks(const char *function, const mt_block *blocks, size_t count, size_t fixed,
                           size_t alignment) {
    size_t total = 0;
    MT__CHECK(blocks || count == 0, "%s: blocks is NULL", function);
    MT__CHECK(count < UINT32_MAX / 2, "%s: count is %zu; fewer than 2^31 are accepted", function,
              count);
    MT__CHECK(fixed <= count, "%s: fixed is %zu of %zu blocks", function, fixed, count);
    MT__CHECK(alignment && !(alignment & (alignment - 1)),
              "%s: alignment is %zu; a power of two is accepted", function, alignment);
    for (size_t i = 0; i < count; i++) {
        MT__CHECK(blocks[i].begin < blocks[i].end,
                  "%s: block %zu lives from %zu to %zu; it must end after it begins", function, i,
                  blocks[i].begin, blocks[i].end);
        total = mt__add(total, mt__add(blocks[i].bytes, alignment));
    }
    MT__CHECK(total < SIZE_MAX / 4, "%s: the blocks have more bytes than any memory", function);
    return check_fixed(function, blocks, fixed, alignment);
}

static void problem_free(problem *p) {
    mt__free(p->blocks);
    mt__free(p->begins);
    mt__free(p->ends);
    mt__free(p->list);
    mt__free(p->offsets);
    mt__free(p->tops);
}

static mt_status problem_new(const mt_block *blocks, size_t count, size_t fixed, size_t alignment,
                             problem *p) {
    *p = (problem){.count = count, .fixed = fixed};
    p->blocks = mt__alloc(count, sizeof *p->blocks);
    p->begins = mt__alloc(count, sizeof *p->begins);
    p->ends = mt__alloc(count, sizeof *p->ends);
    p->list = mt__alloc(count + 1, sizeof *p->list);
    p->offsets = mt__alloc(count, sizeof *p->offsets);
    p->tops = mt__alloc(count, sizeof *p->tops);
    if (!p->blocks || !p->begins || !p->ends || !p->list || !p->offsets || !p->tops)
        return mt_set_error(MT_ENOMEM, "mt_arena_layout: out of host memory");
    for (size_t i = 0; i < count; i++) {
        p->blocks[i] = blocks[i];
        p->blocks[i].bytes = mt__rounded(blocks[i].bytes, alignment);
    }
    return number_instants(p);
}

/* ---- the first layout ------------------------------------------------------------------------------ */

/* Tries the orders; the best one's number, offsets and bytes. */
static mt_status try_orders(problem *p, size_t *best_offsets, size_t *which, size_t *bytes) {
    key *keys = mt__alloc(p->count, sizeof *keys);
    size_t *order = mt__alloc(p->count, sizeof *order);
    int has_memory = keys && order;
    *bytes = SIZE_MAX;
    for (size_t i = 0; has_memory && i < ORDERS; i++) {
        if (*bytes <= p->lower_bound || (i > 0 && p->work > MOST_WORK)) break;
        sort(p, i, keys, order);
        size_t now = place(p, order, orders[i].how, *bytes);
        if (now == SIZE_MAX) continue;
        *bytes = now;
        *which = i;
        memcpy(best_offsets, p->offsets, p->count * sizeof *best_offsets);
    }
    mt__free(keys);
    mt__free(order);
    return has_memory ? MT_OK : mt_set_error(MT_ENOMEM, "mt_arena_layout: out of host memory");
}

static void give(mt_layout *out, const mt_layout *own) {
    size_t size = out->size;
    memcpy(out, own, mt__min(size, sizeof *own));
    out->size = size;
}

mt_status mt_arena_layout(mt_block *blocks, size_t count, size_t fixed, size_t alignment,
                          mt_layout *out) {
    mt_layout own = MT_LAYOUT_INIT;
    size_t which = 0;
    problem p;
    MT__CHECK(out && out->size >= sizeof out->size,
              "mt_arena_layout: out->size is not set; use MT_LAYOUT_INIT");
    mt_status status = mt__check_blocks("mt_arena_layout", blocks, count, fixed, alignment);
    if (status != MT_OK) return status;
    own.order = orders[0].name;
    if (count > 0) {
        size_t *offsets = mt__alloc(count, sizeof *offsets);
        status = problem_new(blocks, count, fixed, alignment, &p);
        if (status == MT_OK && !offsets)
            status = mt_set_error(MT_ENOMEM, "mt_arena_layout: out of host memory");
        if (status == MT_OK) status = try_orders(&p, offsets, &which, &own.bytes);
        for (size_t i = 0; status == MT_OK && i < count; i++) blocks[i].offset = offsets[i];
        own.lower_bound_bytes = p.lower_bound;
        own.order = orders[which].name;
        problem_free(&p);
        mt__free(offsets);
    }
    if (status == MT_OK) give(out, &own);
    return status;
}

/* ---- the search ------------------------------------------------------------------------------------- */

struct mt_arena_search {
    problem problem;
    size_t *order, *trial; /* the best order, and the one that is being tried */
    size_t *offsets;       /* of the best order */
    size_t bytes;
    fit how; /* as the orders were placed that it began with */
    uint64_t random;
};

/* Moves the k-th of the order to an earlier place. */
static void move_up(size_t *order, size_t k, size_t to) {
    size_t moved = order[k];
    memmove(order + to + 1, order + to, (k - to) * sizeof *order);
    order[to] = moved;
}

/* One of the blocks that reach the top of the arena: place it before some that it now lies above. */
static void change_order(mt_arena_search *s) {
    const problem *p = &s->problem;
    size_t first = p->fixed, n = p->count - first, tops = 0, chosen = first;
    for (size_t k = first; k < p->count; k++) {
        size_t i = s->trial[k];
        if (s->offsets[i] + p->blocks[i].bytes < s->bytes) continue;
        if (mt__random_below(&s->random, ++tops) == 0) chosen = k;
    }
    if (chosen > first)
        move_up(s->trial, chosen, first + mt__random_below(&s->random, chosen - first));
    if (mt__random_below(&s->random, 3)) return;
    size_t a = first + mt__random_below(&s->random, n), b = first + mt__random_below(&s->random, n),
           other = s->trial[a];
    s->trial[a] = s->trial[b];
    s->trial[b] = other;
}

static void try_change(mt_arena_search *s) {
    problem *p = &s->problem;
    memcpy(s->trial, s->order, p->count * sizeof *s->trial);
    change_order(s);
    /* As good is good enough: it leads away from where nothing is to be gained. */
    size_t bytes = place(p, s->trial, s->how, s->bytes + 1);
    if (bytes == SIZE_MAX) return;
    s->bytes = bytes;
    memcpy(s->order, s->trial, p->count * sizeof *s->order);
    memcpy(s->offsets, p->offsets, p->count * sizeof *s->offsets);
}

static void search_destroy(mt_arena_search *s) {
    problem_free(&s->problem);
    mt__free(s->order);
    mt__free(s->trial);
    mt__free(s->offsets);
    mt__free(s);
}

/* The order that gives the least bytes, and its layout. */
static mt_status begin_search(mt_arena_search *s) {
    problem *p = &s->problem;
    key *keys = mt__alloc(p->count, sizeof *keys);
    size_t which = 0;
    if (!keys || !s->order || !s->trial || !s->offsets) {
        mt__free(keys);
        return mt_set_error(MT_ENOMEM, "mt_arena_search_new: out of host memory");
    }
    mt_status status = try_orders(p, s->offsets, &which, &s->bytes);
    s->how = orders[which].how;
    sort(p, which, keys, s->order);
    mt__free(keys);
    return status;
}

mt_status mt_arena_search_new(const mt_block *blocks, size_t count, size_t fixed, size_t alignment,
                              mt_arena_search **out) {
    MT__CHECK(out, "mt_arena_search_new: out is NULL");
    *out = NULL;
    mt_status status = mt__check_blocks("mt_arena_search_new", blocks, count, fixed, alignment);
    if (status != MT_OK) return status;
    MT__CHECK(count > fixed,
              "mt_arena_search_new: there is no block to move: %zu, and fixed is %zu", count,
              fixed);
    mt_arena_search *s = mt__alloc(1, sizeof *s);
    if (!s) return mt_set_error(MT_ENOMEM, "mt_arena_search_new: out of host memory");
    status = problem_new(blocks, count, fixed, alignment, &s->problem);
    s->order = mt__alloc(count, sizeof *s->order);
    s->trial = mt__alloc(count, sizeof *s->trial);
    s->offsets = mt__alloc(count, sizeof *s->offsets);
    if (status == MT_OK) status = begin_search(s);
    if (status == MT_OK && !mt__handle_add(s, MT__KIND_SEARCH))
        status = mt_set_error(MT_ENOMEM, "mt_arena_search_new: out of host memory");
    if (status != MT_OK) {
        search_destroy(s);
        return status;
    }
    *out = s;
    return MT_OK;
}

void mt_arena_search_free(mt_arena_search *search) {
    if (mt__handle_remove(search, MT__KIND_SEARCH)) search_destroy(search);
}

size_t mt_arena_search_run(mt_arena_search *search, unsigned tries) {
    if (!mt__handle_is(search, MT__KIND_SEARCH)) return 0;
    while (tries-- > 0 && search->bytes > search->problem.lower_bound) try_change(search);
    return search->bytes;
}

mt_status mt_arena_search_result(const mt_arena_search *search, mt_block *blocks, size_t count,
                                 mt_layout *out) {
    mt_layout own = MT_LAYOUT_INIT;
    MT__CHECK_HANDLE(search, MT__KIND_SEARCH, "mt_arena_search_result");
    MT__CHECK(blocks, "mt_arena_search_result: blocks is NULL");
    MT__CHECK(count == search->problem.count,
              "mt_arena_search_result: count is %zu; the search is of %zu blocks", count,
              search->problem.count);
    MT__CHECK(out && out->size >= sizeof out->size,
              "mt_arena_search_result: out->size is not set; use MT_LAYOUT_INIT");
    for (size_t i = 0; i < count; i++) blocks[i].offset = search->offsets[i];
    own.bytes = search->bytes;
    own.lower_bound_bytes = search->problem.lower_bound;
    own.order = "search";
    give(out, &own);
    return MT_OK;
}
