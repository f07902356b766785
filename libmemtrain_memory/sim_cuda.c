/*
 * sim_cuda.c - the rules of CUDA's caching allocator: PyTorch 2.11,
 * c10/cuda/CUDACachingAllocator.cpp, class DeviceCachingAllocator, whose functions are named at
 * each rule; the constants are those of c10/core/AllocatorConfig.h.
 */
#include "sim_state.h"

#include <stdio.h>

#define BLOCK_LEAST ((size_t)512)      /* kMinBlockSize */
#define SMALL_MOST MT__MIB             /* kSmallSize */
#define SMALL_SEGMENT (2 * MT__MIB)    /* kSmallBuffer */
#define LARGE_OWN (10 * MT__MIB)       /* kMinLargeAlloc */
#define LARGE_ROUND (2 * MT__MIB)      /* kRoundLarge */
#define LARGE_SEGMENT (20 * MT__MIB)   /* large_segment_size */
#define REQUEST_MOST ((size_t)1 << 60) /* one exabyte */

enum { POOL_SMALL, POOL_LARGE };

/* ---- options (AcceleratorAllocatorConfig::parseArgs) ---------------------------------------- */

static int is_power_of_two(size_t n) {
    return n && !(n & (n - 1));
}

mt_status mt__cuda_check(mt_sim_options *o) {
    if (!o->total_bytes) o->total_bytes = 8192 * MT__MIB;
    if (!o->large_segment_bytes) o->large_segment_bytes = LARGE_SEGMENT;
    if (!o->max_split_bytes) o->max_split_bytes = SIZE_MAX;
    if (!o->max_non_split_rounding_bytes) o->max_non_split_rounding_bytes = o->large_segment_bytes;
    if (!o->roundup_power2_divisions) o->roundup_power2_divisions = 1;
    if (!(o->ratio > 0)) o->ratio = 1;
    MT__CHECK(o->large_segment_bytes > LARGE_OWN,
              "mt_sim_new: options->large_segment_bytes is %zu, must be above 10 MiB",
              o->large_segment_bytes);
    MT__CHECK(o->max_split_bytes >= o->large_segment_bytes,
              "mt_sim_new: options->max_split_bytes is %zu, too small, must be >= %zu",
              o->max_split_bytes, o->large_segment_bytes);
    MT__CHECK(o->max_non_split_rounding_bytes >= o->large_segment_bytes,
              "mt_sim_new: options->max_non_split_rounding_bytes is %zu, too small, must be >= %zu",
              o->max_non_split_rounding_bytes, o->large_segment_bytes);
    MT__CHECK(is_power_of_two(o->roundup_power2_divisions),
              "mt_sim_new: options->roundup_power2_divisions is %u, no power of two",
              o->roundup_power2_divisions);
    MT__CHECK(o->gc_threshold >= 0 && o->gc_threshold < 1,
              "mt_sim_new: options->gc_threshold is %g, must be above 0 and below 1",
              o->gc_threshold);
    return MT_OK;
}

/* setMemoryFraction: a fraction of 1 is no limit. */
mt_status mt__cuda_set_ratio(mt_sim *s, double ratio) {
    MT__CHECK(ratio >= 0 && ratio <= 1, "invalid fraction:%g. Please set within [0, 1].", ratio);
    s->stats.limit_bytes = ratio < 1 ? (size_t)(ratio * (double)s->stats.total_bytes) : SIZE_MAX;
    return MT_OK;
}

void mt__cuda_start_stream(mt__stream *stream) {
    stream->pools[POOL_SMALL].small = 1;
}

mt_status mt__cuda_start(mt_sim *s) {
    mt__cuda_start_stream(&s->first);
    return mt__cuda_set_ratio(s, s->options.ratio);
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* roundup_power2_next_division: between two powers of two there are so many steps. */
static size_t round_to_division(size_t bytes, size_t divisions) {
    size_t power = 1;
    while (power <= bytes / 2) power *= 2;
    if (power == bytes) return bytes;
    size_t step = power / divisions;
    return step ? round_up(bytes, step) : 2 * power;
}

/* round_size */
static size_t round_request(const mt_sim *s, size_t bytes) {
    size_t divisions = s->options.roundup_power2_divisions;
    if (bytes < BLOCK_LEAST) return BLOCK_LEAST;
    if (divisions > 1 && bytes > BLOCK_LEAST * divisions)
        return round_to_division(bytes, divisions);
    return round_up(bytes, BLOCK_LEAST);
}

/* get_allocation_size */
static size_t segment_bytes(const mt_sim *s, size_t rounded) {
    if (rounded <= SMALL_MOST) return SMALL_SEGMENT;
    return rounded < LARGE_OWN ? s->options.large_segment_bytes : round_up(rounded, LARGE_ROUND);
}

/* get_pool, and BlockComparatorSize: a block goes to requests of its stream alone. */
static mt__pool *pool_of(mt_sim *s, size_t rounded) {
    return &s->stream->pools[rounded <= SMALL_MOST ? POOL_SMALL : POOL_LARGE];
}

/* ---- the cache ------------------------------------------------------------------------------ */

static int collects(const mt_sim *s) {
    return s->stats.limit_bytes < SIZE_MAX && s->options.gc_threshold > 0;
}

/*
 * get_free_block: the smallest that is large enough, at the lowest address. An oversize block is
 * for oversize requests alone, and for those that do not waste too much of it.
 */
static mt__block *find_cached(mt_sim *s, mt__pool *pool, size_t rounded) {
    size_t split = s->options.max_split_bytes, slack = s->options.max_non_split_rounding_bytes;
    if (collects(s)) s->clock++;
    mt__block *block = mt__block_by_size(mt__tree_from(pool->cached, rounded, 0));
    if (!block) return NULL;
    if (rounded < split && block->bytes >= split) return NULL;
    if (rounded >= split && block->bytes >= mt__add(rounded, slack)) return NULL;
    mt__sim_take(s, block);
    return block;
}

/* alloc_block: the limit counts whole segments. */
static mt__block *map(mt_sim *s, mt__pool *pool, size_t bytes) {
    if (mt__exceeds(s->stats.reserved_bytes, bytes, s->stats.limit_bytes)) return NULL;
    return mt__sim_map(s, pool, bytes);
}

/* release_block */
static void unmap(mt_sim *s, mt__block *block) {
    mt__sim_take(s, block);
    mt__sim_unmap(s, block);
}

static int is_whole(const mt__block *block) {
    return !block->prev && !block->next;
}

/* release_available_cached_blocks: oversize blocks, which were never split, until they suffice. */
static int release_oversize(mt_sim *s, mt__pool *pool, size_t rounded) {
    size_t split = s->options.max_split_bytes, freed = 0;
    if (split == SIZE_MAX) return 0;
    size_t wanted = mt__max(rounded, split);
    mt__block *block = mt__block_by_size(mt__tree_from(pool->cached, wanted, 0));
    if (block) {
        unmap(s, block);
        return 1;
    }
    while (freed < wanted) {
        block = mt__block_by_size(mt__tree_last(pool->cached));
        if (!block || block->bytes < split) return 0;
        freed += block->bytes;
        unmap(s, block);
    }
    return 1;
}

/* release_blocks: all blocks that have no neighbour. */
static void release_whole(mt_sim *s, mt__pool *pool) {
    mt__node *node = mt__tree_first(pool->cached);
    while (node) {
        mt__node *next = mt__tree_next(pool->cached, node);
        if (is_whole(mt__block_by_size(node))) unmap(s, mt__block_by_size(node));
        node = next;
    }
}

void mt__cuda_empty_cache(mt_sim *s) {
    for (mt__stream *stream = &s->first; stream; stream = stream->next) {
        release_whole(s, &stream->pools[POOL_LARGE]);
        release_whole(s, &stream->pools[POOL_SMALL]);
    }
}

/* ---- garbage collection (garbage_collect_cached_blocks) ------------------------------------- */

/* Ages of the whole free blocks of a large pool, added to *sum. Returns how many there are. */
static size_t sum_ages(const mt_sim *s, mt__node *set, double *sum) {
    size_t count = 0;
    for (mt__node *node = mt__tree_first(set); node; node = mt__tree_next(set, node)) {
        const mt__block *block = mt__block_by_size(node);
        if (!is_whole(block)) continue;
        *sum += (double)(s->clock - block->age);
        count++;
    }
    return count;
}

/* Frees those at least as old as the mean, all of them. Returns their bytes. */
static size_t free_old(mt_sim *s, mt__node **set, double mean) {
    size_t freed = 0;
    for (mt__node *node = mt__tree_first(*set), *next; node; node = next) {
        mt__block *block = mt__block_by_size(node);
        next = mt__tree_next(*set, node);
        if (!is_whole(block) || (double)(s->clock - block->age) < mean) continue;
        freed += block->bytes;
        unmap(s, block);
    }
    return freed;
}

static void collect_garbage(mt_sim *s) {
    if (!collects(s)) return;
    size_t threshold = (size_t)(s->options.gc_threshold * (double)s->stats.limit_bytes);
    if (s->stats.reserved_bytes <= threshold) return;
    size_t target = s->stats.reserved_bytes - threshold, reclaimed = 0, freed = 1;
    while (reclaimed < target && freed) {
        double ages = 0;
        size_t count = 0;
        for (mt__stream *own = &s->first; own; own = own->next)
            count += sum_ages(s, own->pools[POOL_LARGE].cached, &ages);
        if (!count) return;
        freed = 0;
        for (mt__stream *own = &s->first; own; own = own->next)
            freed += free_old(s, &own->pools[POOL_LARGE].cached, ages / (double)count);
        reclaimed += freed;
    }
}

/* ---- requests (malloc) ---------------------------------------------------------------------- */

static mt_status refuse(mt_sim *s, size_t segment) {
    char wanted[32], total[32], left[32], own[32], used[32], cached[32], most[32], allowed[64] = "";
    const mt_sim_stats *n = &s->stats;
    s->stats.ooms++;
    if (n->limit_bytes < SIZE_MAX)
        snprintf(allowed, sizeof allowed, "%s allowed; ", mt__sim_words(n->limit_bytes, most));
    return mt_set_error(
        MT_EDEVMEM,
        "CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of %s of which %s is "
        "free. Including non-PyTorch memory, this process has %s memory in use. %sOf the allocated "
        "memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated. If "
        "reserved "
        "but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation.",
        mt__sim_words(segment, wanted), mt__sim_words(n->total_bytes, total),
        mt__sim_words(mt__sim_free_bytes(s), left), mt__sim_words(n->reserved_bytes, own), allowed,
        mt__sim_words(n->allocated_bytes, used),
        mt__sim_words(n->reserved_bytes - n->allocated_bytes, cached));
}

mt_status mt__cuda_refuse(mt_sim *s, size_t bytes) {
    if (bytes >= REQUEST_MOST)
        return mt_set_error(MT_EDEVMEM,
                            "CUDA out of memory. Tried to allocate more than 1EB memory.");
    return refuse(s, segment_bytes(s, round_request(s, bytes)));
}

/* What malloc tries one after the other; only the last try counts as a retry. */
static mt__block *find_or_map(mt_sim *s, mt__pool *pool, size_t rounded) {
    size_t segment = segment_bytes(s, rounded);
    mt__block *block = find_cached(s, pool, rounded);
    if (block) return block;
    collect_garbage(s);
    block = map(s, pool, segment);
    if (!block && release_oversize(s, pool, rounded)) block = map(s, pool, segment);
    if (block) return block;
    mt__cuda_empty_cache(s);
    s->stats.alloc_retries++;
    return map(s, pool, segment);
}

/* should_split */
static int is_worth_splitting(const mt_sim *s, const mt__block *block, size_t rounded) {
    size_t rest = block->bytes - rounded;
    if (block->segment->pool->small) return rest >= BLOCK_LEAST;
    return rounded < s->options.max_split_bytes && rest > SMALL_MOST;
}

static void cache(mt_sim *s, mt__block *block) {
    block->age = s->clock;
    mt__sim_put(s, block, MT__BLOCK_CACHED);
}

/* The low part is handed out, the rest goes back to the cache (alloc_found_block). */
mt__block *mt__cuda_alloc(mt_sim *s, size_t bytes) {
    mt__block *block = NULL;
    if (bytes < REQUEST_MOST) {
        size_t rounded = round_request(s, bytes);
        block = find_or_map(s, pool_of(s, rounded), rounded);
        if (block && is_worth_splitting(s, block, rounded))
            cache(s, mt__sim_split(s, block, rounded));
    }
    if (block)
        mt__sim_use(s, block, bytes);
    else
        (void)mt__cuda_refuse(s, bytes);
    return block;
}

/* free_block, try_merge_blocks */
void mt__cuda_release(mt_sim *s, mt__block *block) {
    cache(s, mt__sim_merge(s, block, MT__BLOCK_CACHED));
}
