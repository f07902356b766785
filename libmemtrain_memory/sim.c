/*
 * sim.c - the simulated card: handle, options, books. The rules of its two allocators are in
 * sim_cuda.c and sim_mps.c.
 */
#include "sim_state.h"

#include <stdio.h>

/* ---- structs: a request must not fail halfway, so what it may need is there before it begins  */

static int spare_block(mt_sim *s) {
    mt__block *block = mt__alloc(1, sizeof *block);
    if (!block) return 0;
    block->next = s->spare_blocks;
    s->spare_blocks = block;
    return 1;
}

static int spare_segment(mt_sim *s) {
    mt__segment *segment = mt__alloc(1, sizeof *segment);
    if (!segment) return 0;
    segment->spare = s->spare_segments;
    s->spare_segments = segment;
    return 1;
}

/* A request makes at most one segment, and two blocks: all of it, and what is split off. */
static int prepare(mt_sim *s) {
    while (!s->spare_blocks || !s->spare_blocks->next)
        if (!spare_block(s)) return 0;
    return s->spare_segments || spare_segment(s);
}

static mt__block *new_block(mt_sim *s, mt__segment *segment, uint64_t address, size_t bytes) {
    mt__block *block = s->spare_blocks;
    s->spare_blocks = block->next;
    *block = (mt__block){.address = address, .bytes = bytes, .segment = segment};
    mt__tree_insert(&s->blocks, &block->by_address, address, 0);
    return block;
}

static void drop_block(mt_sim *s, mt__block *block) {
    mt__tree_remove(&s->blocks, &block->by_address);
    block->next = s->spare_blocks;
    s->spare_blocks = block;
}

/* ---- segments and blocks -------------------------------------------------------------------- */

size_t mt__sim_free_bytes(const mt_sim *s) {
    size_t taken = mt__add(s->stats.reserved_bytes, s->stats.others_bytes);
    return s->stats.total_bytes - mt__min(taken, s->stats.total_bytes);
}

mt__block *mt__sim_map(mt_sim *s, mt__pool *pool, size_t bytes) {
    if (bytes > mt__sim_free_bytes(s)) return NULL;
    mt__segment *segment = s->spare_segments;
    s->spare_segments = segment->spare;
    *segment = (mt__segment){.address = s->next_address, .bytes = bytes, .pool = pool};
    s->next_address += bytes;
    s->stats.segments++;
    s->stats.reserved_bytes += bytes;
    s->stats.peak_reserved_bytes = mt__max(s->stats.peak_reserved_bytes, s->stats.reserved_bytes);
    return new_block(s, segment, segment->address, bytes);
}

void mt__sim_unmap(mt_sim *s, mt__block *block) {
    mt__segment *segment = block->segment;
    s->stats.segments--;
    s->stats.reserved_bytes -= segment->bytes;
    drop_block(s, block);
    segment->spare = s->spare_segments;
    s->spare_segments = segment;
}

mt__block *mt__sim_split(mt_sim *s, mt__block *block, size_t bytes) {
    mt__block *rest = new_block(s, block->segment, block->address + bytes, block->bytes - bytes);
    block->bytes = bytes;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next) rest->next->prev = rest;
    block->next = rest;
    return rest;
}

/* CUDA's counter has free blocks of split segments; MPS has none, and gaps are what is like it. */
static int is_inactive_split(const mt_sim *s, const mt__block *block, mt__block_state state) {
    if (s->options.flavour == MT_SIM_MPS) return state == MT__BLOCK_GAP;
    return block->prev || block->next;
}

static mt__node **set_of(mt__block *block, mt__block_state state) {
    return state == MT__BLOCK_CACHED ? &block->segment->pool->cached : &block->segment->gaps;
}

void mt__sim_put(mt_sim *s, mt__block *block, mt__block_state state) {
    if (state == MT__BLOCK_CACHED) block->segment->pool->cached_bytes += block->bytes;
    if (is_inactive_split(s, block, state)) s->stats.inactive_split_bytes += block->bytes;
    mt__tree_insert(set_of(block, state), &block->by_size, block->bytes, block->address);
    block->state = state;
}

void mt__sim_take(mt_sim *s, mt__block *block) {
    mt__block_state state = block->state;
    if (state == MT__BLOCK_CACHED) block->segment->pool->cached_bytes -= block->bytes;
    if (is_inactive_split(s, block, state)) s->stats.inactive_split_bytes -= block->bytes;
    mt__tree_remove(set_of(block, state), &block->by_size);
    block->state = MT__BLOCK_TAKEN;
}

/* The second of two neighbours becomes a part of the first. */
static mt__block *join(mt_sim *s, mt__block *first, mt__block *second) {
    first->bytes += second->bytes;
    first->next = second->next;
    if (first->next) first->next->prev = first;
    drop_block(s, second);
    return first;
}

mt__block *mt__sim_merge(mt_sim *s, mt__block *block, mt__block_state state) {
    mt__block *prev = block->prev, *next = block->next;
    if (prev && prev->state == state) {
        mt__sim_take(s, prev);
        block = join(s, prev, block);
    }
    if (next && next->state == state) {
        mt__sim_take(s, next);
        block = join(s, block, next);
    }
    return block;
}

void mt__sim_use(mt_sim *s, mt__block *block, size_t requested_bytes) {
    mt_sim_stats *stats = &s->stats;
    block->state = MT__BLOCK_IN_USE;
    block->requested_bytes = requested_bytes;
    stats->allocations++;
    stats->requested_bytes += requested_bytes;
    stats->allocated_bytes += block->bytes;
    stats->peak_allocated_bytes = mt__max(stats->peak_allocated_bytes, stats->allocated_bytes);
}

static void unuse(mt_sim *s, mt__block *block) {
    s->stats.allocations--;
    s->stats.requested_bytes -= block->requested_bytes;
    s->stats.allocated_bytes -= block->bytes;
    block->requested_bytes = 0;
    block->state = MT__BLOCK_TAKEN;
}

const char *mt__sim_words(size_t bytes, char text[32]) {
    static const struct {
        size_t above;
        double unit;
        const char *name;
    } units[] = {
        {(size_t)1 << 30, 1073741824.0, "GiB"}, {MT__MIB, 1048576.0, "MiB"}, {1024, 1024.0, "KiB"}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (bytes <= units[i].above) continue;
        snprintf(text, 32, "%.2f %s", (double)bytes / units[i].unit, units[i].name);
        return text;
    }
    snprintf(text, 32, "%zu bytes", bytes);
    return text;
}

/* ---- the handle ----------------------------------------------------------------------------- */

#define CHECK_SIM(function) MT__CHECK_HANDLE(sim, MT__KIND_SIM, function)

static mt_status check_options(mt_sim_options *o) {
    if (!o->flavour) o->flavour = MT_SIM_CUDA;
    if (o->flavour == MT_SIM_CUDA) return mt__cuda_check(o);
    if (o->flavour == MT_SIM_MPS) return mt__mps_check(o);
    return mt_set_error(MT_EINVAL, "mt_sim_new: options->flavour is %d", (int)o->flavour);
}

static mt_status start(mt_sim *s) {
    s->stats.total_bytes = s->options.total_bytes;
    s->stats.others_bytes = s->options.others_bytes;
    s->stream = &s->first;
    s->next_address = (uint64_t)1 << 40; /* looks like an address, and is no host's */
    return s->options.flavour == MT_SIM_MPS ? mt__mps_start(s) : mt__cuda_start(s);
}

mt_status mt_sim_new(const mt_sim_options *options, mt_sim **out) {
    mt_sim_options own = MT_SIM_OPTIONS_INIT;
    MT__CHECK(out, "mt_sim_new: out is NULL");
    *out = NULL;
    if (options) {
        MT__CHECK(options->size >= sizeof options->size, "mt_sim_new: options->size is not set");
        mt__copy_versioned(&own, sizeof own, options, options->size);
    }
    mt_status status = check_options(&own);
    if (status != MT_OK) return status;
    mt_sim *s = mt__alloc(1, sizeof *s);
    if (!s || !mt__handle_add(s, MT__KIND_SIM)) {
        mt__free(s);
        return mt_set_error(MT_ENOMEM, "mt_sim_new: out of host memory");
    }
    s->options = own;
    status = start(s);
    if (status != MT_OK)
        mt_sim_free(s);
    else
        *out = s;
    return status;
}

static void free_blocks(mt_sim *s) {
    for (mt__node *node = mt__tree_first(s->blocks); node; node = mt__tree_first(s->blocks)) {
        mt__block *block = MT__OWNER(node, mt__block, by_address);
        if (!block->next) mt__free(block->segment);
        mt__tree_remove(&s->blocks, node);
        mt__free(block);
    }
}

void mt_sim_free(mt_sim *sim) {
    if (!mt__handle_remove(sim, MT__KIND_SIM)) return;
    free_blocks(sim);
    while (sim->spare_blocks) {
        mt__block *block = sim->spare_blocks;
        sim->spare_blocks = block->next;
        mt__free(block);
    }
    while (sim->first.next) {
        mt__stream *stream = sim->first.next;
        sim->first.next = stream->next;
        mt__free(stream);
    }
    while (sim->spare_segments) {
        mt__segment *segment = sim->spare_segments;
        sim->spare_segments = segment->spare;
        mt__free(segment);
    }
    mt__free(sim);
}

/* ---- requests ------------------------------------------------------------------------------- */

static void describe(const mt__block *block, mt_sim_block *out) {
    *out = (mt_sim_block){.address = block->address,
                          .bytes = block->bytes,
                          .requested_bytes = block->requested_bytes,
                          .segment_address = block->segment->address,
                          .segment_bytes = block->segment->bytes,
                          .in_use = block->state == MT__BLOCK_IN_USE};
}

mt_status mt_sim_alloc(mt_sim *sim, size_t bytes, mt_sim_block *out) {
    MT__CHECK(out, "mt_sim_alloc: out is NULL");
    *out = (mt_sim_block){.address = 0};
    CHECK_SIM("mt_sim_alloc");
    if (!bytes) return MT_OK;
    if (!prepare(sim)) return mt_set_error(MT_ENOMEM, "mt_sim_alloc: out of host memory");
    mt__block *block =
        sim->options.flavour == MT_SIM_MPS ? mt__mps_alloc(sim, bytes) : mt__cuda_alloc(sim, bytes);
    if (!block) return MT_EDEVMEM;
    describe(block, out);
    return MT_OK;
}

mt_status mt_sim_release(mt_sim *sim, uint64_t address) {
    CHECK_SIM("mt_sim_release");
    if (!address) return MT_OK;
    mt__node *node = mt__tree_from(sim->blocks, address, 0);
    mt__block *block = node ? MT__OWNER(node, mt__block, by_address) : NULL;
    MT__CHECK(block && block->address == address && block->state == MT__BLOCK_IN_USE,
              "mt_sim_release: no block in use starts at 0x%llx", (unsigned long long)address);
    unuse(sim, block);
    if (sim->options.flavour == MT_SIM_MPS)
        mt__mps_release(sim, block);
    else
        mt__cuda_release(sim, block);
    return MT_OK;
}

mt_status mt_sim_empty_cache(mt_sim *sim, size_t *out_released_bytes) {
    if (out_released_bytes) *out_released_bytes = 0;
    CHECK_SIM("mt_sim_empty_cache");
    size_t before = sim->stats.reserved_bytes;
    if (sim->options.flavour == MT_SIM_MPS)
        mt__mps_empty_cache(sim);
    else
        mt__cuda_empty_cache(sim);
    if (out_released_bytes) *out_released_bytes = before - sim->stats.reserved_bytes;
    return MT_OK;
}

mt_status mt_sim_refuse(mt_sim *sim, size_t bytes) {
    CHECK_SIM("mt_sim_refuse");
    return sim->options.flavour == MT_SIM_MPS ? mt__mps_refuse(sim, bytes)
                                              : mt__cuda_refuse(sim, bytes);
}

mt_status mt_sim_set_ratio(mt_sim *sim, double ratio) {
    CHECK_SIM("mt_sim_set_ratio");
    return sim->options.flavour == MT_SIM_MPS ? mt__mps_set_ratio(sim, ratio)
                                              : mt__cuda_set_ratio(sim, ratio);
}

mt_status mt_sim_set_stream(mt_sim *sim, uint64_t stream) {
    CHECK_SIM("mt_sim_set_stream");
    if (sim->options.flavour == MT_SIM_MPS) return MT_OK;
    mt__stream *found = &sim->first;
    while (found && found->id != stream) found = found->next;
    if (!found) {
        found = mt__alloc(1, sizeof *found);
        if (!found) return mt_set_error(MT_ENOMEM, "mt_sim_set_stream: out of host memory");
        found->id = stream;
        found->next = sim->first.next;
        sim->first.next = found;
        mt__cuda_start_stream(found);
    }
    sim->stream = found;
    return MT_OK;
}

mt_status mt_sim_set_others(mt_sim *sim, size_t bytes) {
    CHECK_SIM("mt_sim_set_others");
    sim->stats.others_bytes = bytes;
    return MT_OK;
}

/* ---- figures -------------------------------------------------------------------------------- */

mt_status mt_sim_read_stats(const mt_sim *sim, mt_sim_stats *out) {
    CHECK_SIM("mt_sim_read_stats");
    MT__CHECK(out && out->size >= sizeof out->size,
              "mt_sim_read_stats: out is NULL or without size");
    mt_sim_stats now = sim->stats;
    size_t size = mt__min(out->size, sizeof now);
    now.free_bytes = mt__sim_free_bytes(sim);
    mt__copy_versioned(out, size, &now, size);
    return MT_OK;
}

mt_status mt_sim_reset_peak(mt_sim *sim) {
    CHECK_SIM("mt_sim_reset_peak");
    sim->stats.peak_allocated_bytes = sim->stats.allocated_bytes;
    sim->stats.peak_reserved_bytes = sim->stats.reserved_bytes;
    return MT_OK;
}

/* On MPS the watermark counts other allocations too; CUDA's limit counts its own segments alone. */
static size_t most_reserved(const mt_sim *sim) {
    const mt_sim_stats *s = &sim->stats;
    size_t left = s->total_bytes - mt__min(s->others_bytes, s->total_bytes);
    size_t limit = s->limit_bytes;
    if (sim->options.flavour == MT_SIM_MPS && limit < SIZE_MAX)
        limit -= mt__min(s->others_bytes, limit);
    return mt__max(mt__min(left, limit), 1);
}

mt_status mt_sim_memory(const mt_sim *sim, mt_memory *out) {
    CHECK_SIM("mt_sim_memory");
    MT__CHECK(out && out->size >= sizeof out->size, "mt_sim_memory: out is NULL or without size");
    int counts = sim->options.flavour == MT_SIM_CUDA;
    mt_memory now = {.budget_bytes = most_reserved(sim),
                     .allocated_bytes = sim->stats.allocated_bytes,
                     .reserved_bytes = sim->stats.reserved_bytes,
                     .peak_bytes = counts ? sim->stats.peak_allocated_bytes : 0,
                     .free_bytes = mt__sim_free_bytes(sim),
                     .alloc_retries = counts ? sim->stats.alloc_retries : 0};
    size_t size = mt__min(out->size, sizeof now);
    mt__copy_versioned(out, size, &now, size);
    return MT_OK;
}

mt_status mt_sim_visit_blocks(const mt_sim *sim, mt_sim_block_fn fn, void *user) {
    CHECK_SIM("mt_sim_visit_blocks");
    MT__CHECK(fn, "mt_sim_visit_blocks: fn is NULL");
    for (mt__node *node = mt__tree_first(sim->blocks); node;
         node = mt__tree_next(sim->blocks, node)) {
        mt_sim_block row;
        describe(MT__OWNER(node, mt__block, by_address), &row);
        fn(user, &row);
    }
    return MT_OK;
}
