/*
 * sim_mps.c - the rules of MPS's allocator: PyTorch 2.11, aten/src/ATen/mps/MPSAllocator.h and .mm,
 * class MPSHeapAllocatorImpl, whose functions are named at each rule.
 *
 * Where a buffer lies inside a heap is Metal's business and not documented: here it takes the
 * smallest gap that is large enough, at the lowest address. The device is always done when it is
 * asked, so no buffer is ever busy.
 */
#include "sim_state.h"

#include <stdio.h>

#define SMALL_MOST MT__MIB           /* kMaxSmallAlloc */
#define LARGE_OWN (10 * MT__MIB)     /* kMinLargeAlloc */
#define LARGE_ROUND (2 * MT__MIB)    /* kRoundLarge */
#define SMALL_HEAP (8 * MT__MIB)     /* kSmallHeap */
#define LARGE_HEAP (32 * MT__MIB)    /* kLargeHeap */
#define XLARGE_HEAP (1024 * MT__MIB) /* kXLargeHeapU: the memory is the machine's */
#define SCALAR_MOST ((size_t)8)      /* kMaxScalarAlloc */
#define PAGE ((size_t)16 << 10)      /* vm_page_size of Apple's chips */

#define HIGH_RATIO 1.7 /* default_high_watermark_ratio */
#define MOST_RATIO 2.0 /* default_high_watermark_upper_bound */
#define LOW_RATIO 1.4  /* default_low_watermark_ratio_unified */

/* Pinned host memory and MPSGraph's scalars have pools of their own, which tensors never reach. */
enum { POOL_PRIVATE_SMALL, POOL_PRIVATE_LARGE, POOL_SHARED_SMALL };

/* ---- options -------------------------------------------------------------------------------- */

static void fill_in_machine(mt_sim_options *o) {
    const size_t large =
        (size_t)36 * 1000 * 1000 * 1000; /* where machines begin that keep less back */
    if (!o->total_bytes)
        o->total_bytes = o->recommended_bytes
                             ? mt__add(o->recommended_bytes, o->recommended_bytes / 2)
                             : 16384 * MT__MIB;
    if (!o->recommended_bytes)
        o->recommended_bytes =
            o->total_bytes <= large ? o->total_bytes / 3 * 2 : o->total_bytes / 4 * 3;
    if (!o->max_buffer_bytes) o->max_buffer_bytes = o->total_bytes / 2;
    if (!o->align_bytes) o->align_bytes = 256;
    if (!o->xlarge_heap_bytes && o->recommended_bytes >= 8 * XLARGE_HEAP)
        o->xlarge_heap_bytes = XLARGE_HEAP;
    if (!o->xlarge_heap_bytes)
        o->xlarge_heap_bytes =
            mt__max(o->recommended_bytes / 8 / LARGE_ROUND * LARGE_ROUND, LARGE_HEAP);
}

mt_status mt__mps_check(mt_sim_options *o) {
    fill_in_machine(o);
    MT__CHECK(!(o->align_bytes & (o->align_bytes - 1)),
              "mt_sim_new: options->align_bytes is %zu, no power of two", o->align_bytes);
    MT__CHECK(o->xlarge_heap_bytes >= 2 * LARGE_OWN && o->align_bytes <= LARGE_ROUND,
              "mt_sim_new: options->xlarge_heap_bytes must be at least 20 MiB, and align_bytes at "
              "most 2 MiB");
    MT__CHECK(!(o->large_buckets & (o->large_buckets - 1)),
              "mt_sim_new: options->large_buckets is %zu, no power of two", o->large_buckets);
    return MT_OK;
}

static size_t share(double ratio, size_t bytes) {
    return ratio > 0 ? (size_t)(ratio * (double)bytes) : SIZE_MAX;
}

/* setHighWatermarkRatio; the low one is not looked at again. */
mt_status mt__mps_set_ratio(mt_sim *s, double ratio) {
    MT__CHECK(ratio >= 0 && ratio <= MOST_RATIO, "invalid high watermark ratio %g", ratio);
    s->stats.limit_bytes = share(ratio, s->options.recommended_bytes);
    s->options.ratio = ratio;
    return MT_OK;
}

/* setLowWatermarkRatio */
static mt_status set_low_ratio(mt_sim *s, double ratio) {
    double high = s->options.ratio > 0 ? s->options.ratio : MOST_RATIO;
    MT__CHECK(ratio >= 0 && ratio <= high, "invalid low watermark ratio %g", ratio);
    s->low_limit = share(ratio, s->options.recommended_bytes);
    return MT_OK;
}

/* In the options 0 is the default, and below 0 what 0 is to the allocator: no limit. */
static double ratio_of(double option, double otherwise) {
    if (option < 0) return 0;
    return option > 0 ? option : otherwise;
}

/* init_allocator: the high watermark first. */
mt_status mt__mps_start(mt_sim *s) {
    s->stats.recommended_bytes = s->options.recommended_bytes;
    s->first.pools[POOL_PRIVATE_SMALL].small = s->first.pools[POOL_SHARED_SMALL].small = 1;
    s->first.pools[POOL_SHARED_SMALL].shared = 1;
    mt_status status = mt__mps_set_ratio(s, ratio_of(s->options.ratio, HIGH_RATIO));
    if (status != MT_OK) return status;
    return set_low_ratio(s, ratio_of(s->options.low_watermark_ratio, LOW_RATIO));
}

/* ---- sizes and pressure --------------------------------------------------------------------- */

/* One request; has_pressure may be taken back on the way (AllocParams). */
typedef struct request {
    size_t bytes, aligned;
    mt__pool *pool;
    int has_pressure;
} request;

/* The device's currentAllocatedSize: heaps, and what Metal gave to others in this process. */
static size_t current_bytes(const mt_sim *s) {
    return mt__add(s->stats.reserved_bytes, s->stats.others_bytes);
}

/* get_pool */
static mt__pool *pool_of(mt_sim *s, size_t bytes, size_t aligned) {
    if (bytes <= SCALAR_MOST) return &s->first.pools[POOL_SHARED_SMALL];
    return &s->first.pools[aligned <= SMALL_MOST ? POOL_PRIVATE_SMALL : POOL_PRIVATE_LARGE];
}

/* getLowWatermarkValue: whole MiB, so pressure begins with less than one. */
static int is_under_pressure(const mt_sim *s) {
    size_t now = current_bytes(s);
    if (s->low_limit == SIZE_MAX) return 0;
    return now >= s->low_limit || (s->low_limit - now) / MT__MIB == 0;
}

/* getHeapTier: the heap that requests of so many bytes share; 0: each has one of its own. */
static size_t shared_heap(const mt_sim *s, size_t aligned, int has_pressure) {
    if (aligned <= SMALL_MOST) return SMALL_HEAP;
    if (aligned < LARGE_OWN) return LARGE_HEAP;
    return aligned < s->options.xlarge_heap_bytes / 2 && !has_pressure
               ? s->options.xlarge_heap_bytes
               : 0;
}

static size_t rounded(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* get_allocation_size: a bucket never leads to another kind of heap, nor to a buffer that is too large. */
static size_t allocation_bytes(const mt_sim *s, size_t bytes) {
    size_t aligned = rounded(bytes, s->options.align_bytes), power = SMALL_MOST;
    if (!s->options.large_buckets || aligned <= SMALL_MOST) return aligned;
    while (power <= aligned / 2) power *= 2;
    size_t bucket = rounded(aligned, mt__max(power / s->options.large_buckets, PAGE));
    int is_other = shared_heap(s, bucket, 0) != shared_heap(s, aligned, 0);
    return is_other || bucket >= s->options.max_buffer_bytes ? aligned : bucket;
}

static request make_request(mt_sim *s, size_t bytes) {
    size_t aligned = allocation_bytes(s, bytes);
    mt__pool *pool = pool_of(s, bytes, aligned);
    return (request){bytes, aligned, pool, !pool->small && is_under_pressure(s)};
}

/* createHeapBlock */
static size_t heap_bytes(const mt_sim *s, const request *r, int *out_is_exclusive) {
    size_t shared = shared_heap(s, r->aligned, r->has_pressure);
    *out_is_exclusive = !shared;
    return shared ? shared : rounded(r->aligned, LARGE_ROUND);
}

static int exceeds_high_watermark(const mt_sim *s, const request *r) {
    return s->stats.limit_bytes < SIZE_MAX &&
           mt__exceeds(current_bytes(s), r->aligned, s->stats.limit_bytes);
}

/* ---- heaps ---------------------------------------------------------------------------------- */

static mt__segment *heap_with_room(const mt__pool *pool, size_t bytes) {
    mt__node *node = mt__tree_from(pool->heaps, bytes, 0);
    return node ? MT__OWNER(node, mt__segment, node) : NULL;
}

/* Heaps are ordered by the largest buffer that they have room for (maxAvailableSize). */
static void list_heap(mt__segment *heap) {
    mt__block *gap = mt__block_by_size(mt__tree_last(heap->gaps));
    mt__tree_insert(&heap->pool->heaps, &heap->node, gap ? gap->bytes : 0, heap->address);
}

static void unlist_heap(mt__segment *heap) {
    mt__tree_remove(&heap->pool->heaps, &heap->node);
}

static mt__segment *new_heap(mt_sim *s, const request *r) {
    int is_exclusive;
    mt__block *gap = mt__sim_map(s, r->pool, heap_bytes(s, r, &is_exclusive));
    if (!gap) return NULL;
    gap->segment->is_exclusive = is_exclusive;
    mt__sim_put(s, gap, MT__BLOCK_GAP);
    list_heap(gap->segment);
    return gap->segment;
}

/* ---- buffers -------------------------------------------------------------------------------- */

/* alloc_buffer: the watermark counts the buffer, not the heap that may have to be made for it. */
static mt__block *new_buffer(mt_sim *s, const request *r) {
    if (exceeds_high_watermark(s, r)) return NULL;
    mt__segment *heap = heap_with_room(r->pool, r->aligned);
    if (!heap) heap = new_heap(s, r);
    if (!heap) return NULL;
    mt__block *block = mt__block_by_size(mt__tree_from(heap->gaps, r->aligned, 0));
    unlist_heap(heap);
    mt__sim_take(s, block);
    if (block->bytes > r->aligned)
        mt__sim_put(s, mt__sim_split(s, block, r->aligned), MT__BLOCK_GAP);
    heap->buffers++;
    list_heap(heap);
    return block;
}

/* release_buffer: of a cached one. A heap that is kept empty stays until a buffer leaves it. */
static void release_buffer(mt_sim *s, mt__block *block, int remove_empty_heap) {
    mt__segment *heap = block->segment;
    unlist_heap(heap);
    mt__sim_take(s, block);
    heap->buffers--;
    block = mt__sim_merge(s, block, MT__BLOCK_GAP);
    if (remove_empty_heap && !heap->buffers) {
        mt__sim_unmap(s, block);
        return;
    }
    mt__sim_put(s, block, MT__BLOCK_GAP);
    list_heap(heap);
}

static void count_search(mt_sim *s, mt__pool *pool) {
    if (s->low_limit == SIZE_MAX || pool->small) return;
    for (mt__node *node = mt__tree_first(pool->cached); node;
         node = mt__tree_next(pool->cached, node))
        mt__block_by_size(node)->age++;
}

/*
 * get_free_buffer. A cached buffer is reused whole. One that is more than 32 MiB too large is not:
 * a heap with room serves instead, or the buffer is dissolved in its heap to make that room.
 */
static mt__block *find_cached(mt_sim *s, request *r) {
    if (exceeds_high_watermark(s, r)) return NULL;
    count_search(s, r->pool);
    mt__block *block = mt__block_by_size(mt__tree_from(r->pool->cached, r->aligned, 0));
    if (!block) return NULL;
    if (block->bytes > mt__add(r->aligned, LARGE_HEAP)) {
        if (!heap_with_room(r->pool, r->aligned)) {
            release_buffer(s, block, 0);
            r->has_pressure = 0;
        }
        return NULL;
    }
    mt__sim_take(s, block);
    block->age = 0;
    return block;
}

/* release_available_cached_buffers */
static int release_some(mt_sim *s, const request *r) {
    size_t freed = 0;
    mt__block *block = mt__block_by_size(mt__tree_from(r->pool->cached, r->aligned, 0));
    if (block) {
        release_buffer(s, block, 1);
        return 1;
    }
    while (freed < r->aligned) {
        block = mt__block_by_size(mt__tree_last(r->pool->cached));
        if (!block) return 0;
        freed += block->bytes;
        release_buffer(s, block, 1);
    }
    return 1;
}

/* release_cached_buffers */
void mt__mps_empty_cache(mt_sim *s) {
    for (int i = 0; i < MT__POOLS; i++)
        while (s->first.pools[i].cached)
            release_buffer(s, mt__block_by_size(mt__tree_first(s->first.pools[i].cached)), 1);
}

/* ---- garbage collection (garbage_collect_cached_buffers) ------------------------------------ */

typedef struct ages {
    double sum;
    size_t count;
} ages;

static ages sum_ages(mt__pool *pool) {
    ages all = {0, 0};
    for (mt__node *node = mt__tree_first(pool->cached); node;
         node = mt__tree_next(pool->cached, node)) {
        all.sum += (double)mt__block_by_size(node)->age;
        all.count++;
    }
    return all;
}

/* One pass in the order of sizes: those of at least the mean age, until so much is reclaimed. */
static size_t free_old(mt_sim *s, mt__pool *pool, ages *left, size_t wanted) {
    double mean = left->sum / (double)left->count;
    size_t reclaimed = 0;
    mt__node *next = mt__tree_first(pool->cached);
    while (next && reclaimed < wanted) {
        mt__block *block = mt__block_by_size(next);
        next = mt__tree_next(pool->cached, next);
        if ((double)block->age < mean) continue;
        left->sum -= (double)block->age;
        left->count--;
        reclaimed += block->bytes;
        release_buffer(s, block, block->segment->is_exclusive);
    }
    return reclaimed;
}

static void collect_garbage(mt_sim *s, mt__pool *pool) {
    size_t now = current_bytes(s), reclaimed = 0, freed = 1;
    if (now < s->low_limit) return;
    ages left = sum_ages(pool);
    while (reclaimed < now - s->low_limit && freed && left.count) {
        freed = free_old(s, pool, &left, now - s->low_limit - reclaimed);
        reclaimed += freed;
    }
}

/* ---- requests (alloc_buffer_block) ---------------------------------------------------------- */

static mt_status refuse(mt_sim *s, const request *r) {
    char own[32], other[32], most[32], wanted[32], limit[64] = "";
    int is_limited = s->stats.limit_bytes < SIZE_MAX;
    s->stats.ooms++;
    if (is_limited)
        snprintf(limit, sizeof limit, ", max allowed: %s",
                 mt__sim_words(s->stats.limit_bytes, most));
    return mt_set_error(
        MT_EDEVMEM,
        "MPS backend out of memory (MPS allocated: %s, other allocations: %s%s). Tried to allocate "
        "%s on %s pool.%s",
        mt__sim_words(s->stats.reserved_bytes, own), mt__sim_words(s->stats.others_bytes, other),
        limit, mt__sim_words(r->aligned, wanted), r->pool->shared ? "shared" : "private",
        is_limited ? " Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
                     "allocations (may cause system failure)."
                   : "");
}

static mt_status refuse_size(mt_sim *s, size_t bytes) {
    char text[32];
    s->stats.ooms++;
    return mt_set_error(MT_EDEVMEM, "Invalid buffer size: %s", mt__sim_words(bytes, text));
}

mt_status mt__mps_refuse(mt_sim *s, size_t bytes) {
    if (bytes >= s->options.max_buffer_bytes) return refuse_size(s, bytes);
    request r = make_request(s, bytes);
    return refuse(s, &r);
}

/* The second search is that after the callbacks, of which there are none. */
static mt__block *find_or_make(mt_sim *s, request *r) {
    mt__block *block = find_cached(s, r);
    if (block) return block;
    if (r->has_pressure && r->aligned < r->pool->cached_bytes) collect_garbage(s, r->pool);
    block = new_buffer(s, r);
    if (!block) block = find_cached(s, r);
    if (!block && release_some(s, r)) block = new_buffer(s, r);
    if (block) return block;
    mt__mps_empty_cache(s);
    s->stats.alloc_retries++;
    return new_buffer(s, r);
}

mt__block *mt__mps_alloc(mt_sim *s, size_t bytes) {
    mt__block *block = NULL;
    if (bytes < s->options.max_buffer_bytes) {
        request r = make_request(s, bytes);
        block = find_or_make(s, &r);
    }
    if (block)
        mt__sim_use(s, block, bytes);
    else
        (void)mt__mps_refuse(s, bytes);
    return block;
}

/* free_buffer */
void mt__mps_release(mt_sim *s, mt__block *block) {
    mt__sim_put(s, block, MT__BLOCK_CACHED);
}
