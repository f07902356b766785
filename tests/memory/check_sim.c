/*
 * check_sim.c - the simulated card: every rule of CUDA's and MPS's allocators in a row of its own
 * with its source, the words of their errors, a random walk under invariants, host memory that
 * runs out.
 *
 * CCA: PyTorch 2.11, c10/cuda/CUDACachingAllocator.cpp. AC: c10/core/AllocatorConfig.h. MA:
 * aten/src/ATen/mps/MPSAllocator.h and .mm. Rows without a source are the model's own rules.
 */
#include "counting_allocator.h"
#include "suite.h"

#include <memtrain/sim.h>
#include <stdint.h>
#include <stdio.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* ---- scripts: what is done to a card, and what it looks like afterwards --------------------- */

typedef enum op { END, ALLOC, REFUSED, FREE, EMPTY, OTHERS, RATIO, STREAM } op;

typedef struct action {
    op what;
    size_t value; /* bytes, or which allocation of the script is freed, from 0 on */
    double ratio;
} action;

/* clang-format off */
#define A(bytes)  {ALLOC, bytes, 0}   /* succeeds */
#define X(bytes)  {REFUSED, bytes, 0} /* does not */
#define F(number) {FREE, number, 0}
#define E         {EMPTY, 0, 0}
#define O(bytes)  {OTHERS, bytes, 0}
#define R(ratio)  {RATIO, 0, ratio}
#define S(number) {STREAM, number, 0}
/* clang-format on */

typedef struct row {
    const char *rule;
    mt_sim_options options; /* size is set by the test */
    action script[20];
    size_t allocated, reserved, inactive_split, segments;
    uint64_t retries, ooms;
} row;

static mt_sim *card_of(mt_sim_options options) {
    mt_sim *sim;

    options.size = sizeof(options);
    ck_ok(mt_sim_new(&options, &sim));
    return sim;
}

static mt_sim_stats stats_of(const mt_sim *sim) {
    mt_sim_stats stats = {.size = sizeof(stats)};

    ck_ok(mt_sim_read_stats(sim, &stats));
    return stats;
}

static void perform(mt_sim *sim, const action *script) {
    mt_sim_block blocks[20];
    size_t count = 0;

    for (const action *a = script; a->what != END; a++) {
        switch (a->what) {
        case ALLOC:
            ck_ok(mt_sim_alloc(sim, a->value, &blocks[count++]));
            break;
        case REFUSED:
            ck_status(mt_sim_alloc(sim, a->value, &blocks[count]), MT_EDEVMEM);
            ck_assert_uint_eq(blocks[count].address, 0);
            break;
        case FREE:
            ck_ok(mt_sim_release(sim, blocks[a->value].address));
            break;
        case EMPTY:
            ck_ok(mt_sim_empty_cache(sim, NULL));
            break;
        case OTHERS:
            ck_ok(mt_sim_set_others(sim, a->value));
            break;
        case RATIO:
            ck_ok(mt_sim_set_ratio(sim, a->ratio));
            break;
        case STREAM:
            ck_ok(mt_sim_set_stream(sim, a->value));
            break;
        case END:
            break;
        }
    }
}

static void check_row(const row *r) {
    mt_sim *sim = card_of(r->options);
    mt_sim_stats s;

    perform(sim, r->script);
    s = stats_of(sim);
#define SAME(field, expected)                                                                      \
    ck_assert_msg(s.field == (expected), "%s: " #field " is %llu, not %llu", r->rule,              \
                  (unsigned long long)s.field, (unsigned long long)(expected))
    SAME(allocated_bytes, r->allocated);
    SAME(reserved_bytes, r->reserved);
    SAME(inactive_split_bytes, r->inactive_split);
    SAME(segments, r->segments);
    SAME(alloc_retries, r->retries);
    SAME(ooms, r->ooms);
#undef SAME
    mt_sim_free(sim);
}

/* ---- CUDA ----------------------------------------------------------------------------------- */

#define CARD(mib)                                                                                  \
    { .total_bytes = (mib)*MIB }

/* clang-format off */
static const row cuda_rows[] = {
    /* rounding */
    {"CCA round_size: below 512 bytes", {0}, {A(1)}, 512, 2 * MIB, 2 * MIB - 512, 1, 0, 0},
    {"CCA round_size: a multiple of 512 stays",
     {0}, {A(1024)}, 1024, 2 * MIB, 2 * MIB - 1024, 1, 0, 0},
    {"CCA round_size: up to a multiple of 512",
     {0}, {A(1025)}, 1536, 2 * MIB, 2 * MIB - 1536, 1, 0, 0},
    {"CCA malloc: no bytes take nothing", {0}, {A(0)}, 0, 0, 0, 0, 0, 0},
    {"CCA roundup_power2_next_division: 4 steps",
     {.roundup_power2_divisions = 4}, {A(5347738)}, 6 * MIB, 20 * MIB, 14 * MIB, 1, 0, 0},
    {"CCA roundup_power2_next_division: a power of two stays",
     {.roundup_power2_divisions = 4}, {A(4 * MIB)}, 4 * MIB, 20 * MIB, 16 * MIB, 1, 0, 0},
    {"CCA roundup_power2_next_division: just above 512 times the divisions",
     {.roundup_power2_divisions = 4}, {A(2049)}, 2560, 2 * MIB, 2 * MIB - 2560, 1, 0, 0},
    {"CCA round_size: up to 512 times the divisions as ever",
     {.roundup_power2_divisions = 4}, {A(1200)}, 1536, 2 * MIB, 2 * MIB - 1536, 1, 0, 0},
    /* pools and segments */
    {"CCA get_pool, AC kSmallSize: 1 MiB is small", {0}, {A(MIB)}, MIB, 2 * MIB, MIB, 1, 0, 0},
    {"CCA get_allocation_size: a byte more is large, from 20 MiB",
     {0}, {A(MIB + 1)}, 1049088, 20 * MIB, 19922432, 1, 0, 0},
    {"CCA get_allocation_size, AC kMinLargeAlloc: below 10 MiB from 20 MiB",
     {0}, {A(10485248)}, 10485248, 20 * MIB, 10486272, 1, 0, 0},
    {"CCA get_allocation_size: from 10 MiB on a segment of its own",
     {0}, {A(10 * MIB)}, 10 * MIB, 10 * MIB, 0, 1, 0, 0},
    {"CCA get_allocation_size, AC kRoundLarge: rounded to 2 MiB",
     {0}, {A(10 * MIB + 1)}, 10486272, 12 * MIB, 2096640, 1, 0, 0},
    {"AC large_segment_size_mb",
     {.large_segment_bytes = 32 * MIB}, {A(5 * MIB)}, 5 * MIB, 32 * MIB, 27 * MIB, 1, 0, 0},
    {"CCA get_pool: small and large do not share",
     {0}, {A(512 * KIB), A(2 * MIB)},
     512 * KIB + 2 * MIB, 22 * MIB, 18 * MIB + 1536 * KIB, 2, 0, 0},
    {"CCA get_free_block: three of 9 MiB, two to a segment",
     {0}, {A(9 * MIB), A(9 * MIB), A(9 * MIB)}, 27 * MIB, 40 * MIB, 13 * MIB, 2, 0, 0},
    /* streams */
    {"CCA BlockComparatorSize: a stream has segments of its own",
     {0}, {A(512 * KIB), S(7), A(512 * KIB)}, MIB, 4 * MIB, 3 * MIB, 2, 0, 0},
    {"CCA BlockComparatorSize: what was given back stays with its stream",
     {0}, {A(5 * MIB), F(0), S(7), A(5 * MIB)}, 5 * MIB, 40 * MIB, 15 * MIB, 2, 0, 0},
    {"CCA BlockComparatorSize: and is used again there",
     {0}, {S(7), A(5 * MIB), S(0), F(0), S(7), A(6 * MIB)}, 6 * MIB, 20 * MIB, 14 * MIB, 1, 0, 0},
    {"CCA release_cached_blocks: those of all streams go",
     CARD(40), {A(20 * MIB), S(7), A(20 * MIB), F(0), F(1), S(8), A(30 * MIB)},
     30 * MIB, 30 * MIB, 0, 1, 1, 0},
    {"CCA garbage_collect_cached_blocks: of whatever stream",
     {.total_bytes = 200 * MIB, .ratio = 0.5, .gc_threshold = 0.5},
     {S(7), A(30 * MIB), F(0), S(0), A(50 * MIB), A(32 * MIB)},
     82 * MIB, 82 * MIB, 0, 2, 0, 0},
    /* splitting */
    {"CCA should_split: small, a remainder of 512 bytes is split off",
     {0}, {A(MIB), A(MIB - 512)}, 2 * MIB - 512, 2 * MIB, 512, 1, 0, 0},
    {"CCA should_split: large, a remainder of 1 MiB is not",
     {0}, {A(20 * MIB), F(0), A(19 * MIB)}, 20 * MIB, 20 * MIB, 0, 1, 0, 0},
    {"CCA should_split: large, more than 1 MiB is",
     {0}, {A(20 * MIB), F(0), A(19 * MIB - 512)}, 19 * MIB - 512, 20 * MIB, MIB + 512, 1, 0, 0},
    /* the cache */
    {"CCA free: a segment stays reserved", {0}, {A(5 * MIB), F(0)}, 0, 20 * MIB, 0, 1, 0, 0},
    {"CCA get_free_block: what is cached is used again",
     {0}, {A(5 * MIB), F(0), A(6 * MIB)}, 6 * MIB, 20 * MIB, 14 * MIB, 1, 0, 0},
    {"CCA get_free_block: the smallest that is large enough",
     {0}, {A(30 * MIB), A(24 * MIB), A(40 * MIB), F(0), F(1), F(2), A(22 * MIB)},
     22 * MIB, 94 * MIB, 2 * MIB, 3, 0, 0},
    {"CCA try_merge_blocks: neighbours merge, either order",
     {0}, {A(4 * MIB), A(4 * MIB), A(4 * MIB), F(0), F(2), F(1), A(20 * MIB)},
     20 * MIB, 20 * MIB, 0, 1, 0, 0},
    {"CCA try_merge_blocks: not over a block in use",
     {0}, {A(6 * MIB), A(6 * MIB), A(6 * MIB), F(0), F(2), A(9 * MIB)},
     15 * MIB, 40 * MIB, 25 * MIB, 2, 0, 0},
    {"CCA emptyCache: wholly free segments go back",
     {0}, {A(5 * MIB), A(30 * MIB), A(100), F(0), F(1), F(2), E}, 0, 0, 0, 0, 0, 0},
    {"CCA emptyCache: one block in use keeps its segment",
     {0}, {A(9 * MIB), A(9 * MIB), F(0), E}, 9 * MIB, 20 * MIB, 11 * MIB, 1, 0, 0},
    /* running out */
    {"CCA malloc: the cache is emptied, and that is a retry",
     CARD(40), {A(20 * MIB), F(0), A(30 * MIB)}, 30 * MIB, 30 * MIB, 0, 1, 1, 0},
    {"CCA malloc: a retry that fails counts as well",
     CARD(40), {A(20 * MIB), X(30 * MIB)}, 20 * MIB, 20 * MIB, 0, 1, 1, 1},
    {"CCA malloc: fragments do not help, allocated would fit",
     CARD(40), {A(9 * MIB), A(9 * MIB), A(9 * MIB), A(9 * MIB), F(0), F(2), X(10 * MIB)},
     18 * MIB, 40 * MIB, 22 * MIB, 2, 1, 1},
    {"CCA malloc: a small request needs a whole small segment",
     CARD(20), {A(19 * MIB), X(1)}, 20 * MIB, 20 * MIB, 0, 1, 1, 1},
    {"cudaMalloc: what others hold is not there",
     CARD(40), {O(25 * MIB), X(5 * MIB), O(20 * MIB), A(5 * MIB)},
     5 * MIB, 20 * MIB, 15 * MIB, 1, 1, 1},
    {"cudaMalloc: others may take more than is free",
     CARD(40), {A(20 * MIB), O(50 * MIB), X(100), F(0), A(20 * MIB)},
     20 * MIB, 20 * MIB, 0, 1, 1, 1},
    {"CCA allocate: an exabyte is refused unseen", {0}, {X((size_t)1 << 60)}, 0, 0, 0, 0, 0, 0},
    /* the limit */
    {"CCA setMemoryFraction: counts segments, not blocks",
     CARD(100), {R(0.2), A(5 * MIB), X(16 * MIB)}, 5 * MIB, 20 * MIB, 15 * MIB, 1, 1, 1},
    {"CCA setMemoryFraction: exactly the limit",
     CARD(100), {R(0.2), A(20 * MIB)}, 20 * MIB, 20 * MIB, 0, 1, 0, 0},
    {"CCA setMemoryFraction: 1 takes the limit away",
     CARD(100), {R(0.2), R(1), A(90 * MIB)}, 90 * MIB, 90 * MIB, 0, 1, 0, 0},
    {"CCA setMemoryFraction: what is held stays, and is used again",
     CARD(100), {A(60 * MIB), R(0.2), F(0), A(60 * MIB)}, 60 * MIB, 60 * MIB, 0, 1, 0, 0},
    /* max_split_size */
    {"CCA should_split: an oversize request is not split",
     {.max_split_bytes = 30 * MIB}, {A(40 * MIB), F(0), A(32 * MIB)},
     40 * MIB, 40 * MIB, 0, 1, 0, 0},
    {"CCA get_free_block: an oversize block is for oversize requests",
     {.max_split_bytes = 30 * MIB}, {A(40 * MIB), F(0), A(12 * MIB)},
     12 * MIB, 52 * MIB, 0, 2, 0, 0},
    {"CCA get_free_block: not with more than the slack",
     {.max_split_bytes = 30 * MIB}, {A(52 * MIB), F(0), A(32 * MIB)},
     32 * MIB, 84 * MIB, 0, 2, 0, 0},
    {"CCA release_available_cached_blocks: an oversize block goes, no retry",
     {.total_bytes = 100 * MIB, .max_split_bytes = 30 * MIB},
     {A(60 * MIB), A(20 * MIB), F(0), F(1), A(30 * MIB)},
     30 * MIB, 50 * MIB, 0, 2, 0, 0},
    {"CCA release_available_cached_blocks: the largest ones until they suffice",
     {.total_bytes = 100 * MIB, .max_split_bytes = 30 * MIB},
     {A(40 * MIB), A(30 * MIB), A(20 * MIB), F(0), F(1), F(2), A(70 * MIB)},
     70 * MIB, 90 * MIB, 0, 2, 0, 0},
    /* garbage collection */
    {"CCA garbage_collect_cached_blocks: above the threshold the oldest go",
     {.total_bytes = 200 * MIB, .ratio = 0.5, .gc_threshold = 0.5},
     {A(30 * MIB), A(28 * MIB), F(0), A(20 * MIB), F(1), A(32 * MIB)},
     52 * MIB, 52 * MIB + 10 * MIB, 10 * MIB, 2, 0, 0},
    {"CCA garbage_collect_cached_blocks: without a limit never",
     {.total_bytes = 200 * MIB, .gc_threshold = 0.1}, {A(30 * MIB), F(0), A(40 * MIB)},
     40 * MIB, 70 * MIB, 0, 2, 0, 0},
};
/* clang-format on */

TEST_LOOP("rules", cuda_rules, LENGTH(cuda_rows)) {
    check_row(&cuda_rows[_i]);
}

/* ---- MPS ------------------------------------------------------------------------------------ */

/* A machine of 16 GiB, of which 10 are recommended, as real ones. */
#define MAC .flavour = MT_SIM_MPS, .total_bytes = 16 * GIB, .recommended_bytes = 10 * GIB
/* A machine without a high watermark, whose memory runs out. */
#define TINY(mib)                                                                                  \
    .flavour = MT_SIM_MPS, .total_bytes = (mib)*MIB, .recommended_bytes = 10 * GIB,                \
    .max_buffer_bytes = GIB, .ratio = -1

/* clang-format off */
static const row mps_rows[] = {
    /* sizes and heaps */
    {"MA get_allocation_size: up to the device's alignment",
     {MAC}, {A(100)}, 256, 8 * MIB, 8 * MIB - 256, 1, 0, 0},
    {"Metal: the alignment is the device's",
     {MAC, .align_bytes = 16 * KIB}, {A(100)}, 16 * KIB, 8 * MIB, 8 * MIB - 16 * KIB, 1, 0, 0},
    {"MA get_allocation_size, kLargeBucketShift: above 1 MiB up to a bucket",
     {MAC, .large_buckets = 32}, {A(MIB + 1), A(5 * MIB + 1)},
     6 * MIB + (32 + 128) * KIB, 32 * MIB, 26 * MIB - (32 + 128) * KIB, 1, 0, 0},
    {"MA get_allocation_size: 1 MiB itself is left alone",
     {MAC, .large_buckets = 32}, {A(MIB - 100)}, MIB, 8 * MIB, 7 * MIB, 1, 0, 0},
    {"MA get_allocation_size: a bucket is a page at the least",
     {MAC, .large_buckets = 128}, {A(MIB + 1)}, MIB + 16 * KIB, 32 * MIB, 31 * MIB - 16 * KIB, 1, 0, 0},
    {"MA get_allocation_size: what grows a little is served by what it had",
     {MAC, .large_buckets = 32}, {A(5 * MIB + 1), F(0), A(5 * MIB + 100 * KIB)},
     5 * MIB + 128 * KIB, 32 * MIB, 27 * MIB - 128 * KIB, 1, 0, 0},
    {"MA get_allocation_size: no bucket of another heap",
     {MAC, .large_buckets = 32}, {A(10 * MIB - 256)}, 10 * MIB - 256, 32 * MIB, 22 * MIB + 256, 1, 0, 0},
    {"MA get_allocation_size: none of maxBufferLength",
     {MAC, .large_buckets = 32, .max_buffer_bytes = 64 * MIB}, {A(63 * MIB + 1)},
     63 * MIB + 256, GIB, GIB - 63 * MIB - 256, 1, 0, 0},
    {"MA createHeapBlock, kSmallHeap: up to 1 MiB from 8 MiB",
     {MAC}, {A(MIB)}, MIB, 8 * MIB, 7 * MIB, 1, 0, 0},
    {"MA createHeapBlock, kLargeHeap: below 10 MiB from 32 MiB",
     {MAC}, {A(MIB + 1)}, MIB + 256, 32 * MIB, 31 * MIB - 256, 1, 0, 0},
    {"MA createHeapBlock, kXLargeHeap: from 10 MiB from 1 GiB",
     {MAC}, {A(10 * MIB)}, 10 * MIB, GIB, GIB - 10 * MIB, 1, 0, 0},
    {"MA createHeapBlock: from half of that a heap of its own, rounded to 2 MiB",
     {MAC}, {A(512 * MIB + 1)}, 512 * MIB + 256, 514 * MIB, 2 * MIB - 256, 1, 0, 0},
    {"Model: small machines have small heaps",
     {.flavour = MT_SIM_MPS, .recommended_bytes = 400 * MIB}, {A(10 * MIB)},
     10 * MIB, 50 * MIB, 40 * MIB, 1, 0, 0},
    {"MA get_pool: up to 8 bytes from the shared pool",
     {MAC}, {A(8), A(9)}, 512, 16 * MIB, 16 * MIB - 512, 2, 0, 0},
    {"MA get_free_heap: the heap with the least room that is enough",
     {MAC}, {A(9 * MIB), A(9 * MIB), A(9 * MIB), A(9 * MIB), A(5 * MIB)},
     41 * MIB, 64 * MIB, 23 * MIB, 2, 0, 0},
    /* the cache */
    {"MA free_buffer: a buffer stays in the cache",
     {MAC}, {A(5 * MIB), F(0)}, 0, 32 * MIB, 27 * MIB, 1, 0, 0},
    {"MA get_free_buffer: and is reused whole, never split",
     {MAC}, {A(9 * MIB), F(0), A(2 * MIB)}, 9 * MIB, 32 * MIB, 23 * MIB, 1, 0, 0},
    {"MA get_free_buffer: up to 32 MiB too large",
     {MAC}, {A(44 * MIB), F(0), A(12 * MIB)}, 44 * MIB, GIB, GIB - 44 * MIB, 1, 0, 0},
    {"MA get_free_buffer: beyond that the heap's room is used",
     {MAC}, {A(45 * MIB), F(0), A(12 * MIB)}, 12 * MIB, GIB, GIB - 57 * MIB, 1, 0, 0},
    {"MA get_free_buffer: without such room the buffer is dissolved in its heap",
     {MAC}, {A(600 * MIB), F(0), A(12 * MIB)}, 12 * MIB, 600 * MIB, 588 * MIB, 1, 0, 0},
    {"MA emptyCache: heaps without buffers go back",
     {MAC}, {A(5 * MIB), A(100), F(0), F(1), E}, 0, 0, 0, 0, 0, 0},
    {"MA emptyCache: a buffer in use keeps its heap, the rest of it is free for others",
     {MAC}, {A(5 * MIB), A(5 * MIB), F(0), E}, 5 * MIB, 32 * MIB, 27 * MIB, 1, 0, 0},
    {"Metal: freed buffers leave room for larger ones in their heap",
     {MAC}, {A(9 * MIB), A(9 * MIB), A(9 * MIB), F(0), F(1), E, A(9 * MIB + 512 * KIB)},
     18 * MIB + 512 * KIB, 32 * MIB, 13 * MIB + 512 * KIB, 1, 0, 0},
    /* running out */
    {"MA release_available_cached_buffers: as many of the pool as needed, no retry",
     {TINY(32)}, {A(9 * MIB), A(9 * MIB), A(9 * MIB), F(0), F(1), F(2), A(9 * MIB + 512 * KIB)},
     9 * MIB + 512 * KIB, 32 * MIB, 13 * MIB + 512 * KIB, 1, 0, 0},
    {"MA release_cached_buffers: then all of all pools",
     {TINY(32)}, {A(100), F(0), A(5 * MIB)}, 5 * MIB, 32 * MIB, 27 * MIB, 1, 1, 0},
    {"Model: heaps end where the machine does",
     {TINY(32)}, {A(100), X(5 * MIB)}, 256, 8 * MIB, 8 * MIB - 256, 1, 1, 1},
    {"MA alloc_buffer_block: maxBufferLength itself is too much",
     {MAC, .max_buffer_bytes = 64 * MIB}, {X(64 * MIB), A(64 * MIB - 1)},
     64 * MIB, GIB, GIB - 64 * MIB, 1, 0, 1},
    /* watermarks */
    {"MA alloc_buffer: the high watermark counts the buffer, not its heap",
     {MAC}, {R(0.001), A(10 * MIB)}, 10 * MIB, GIB, GIB - 10 * MIB, 1, 0, 0},
    {"MA alloc_buffer: so a heap above it ends everything, room inside included",
     {MAC}, {R(0.001), A(10 * MIB), X(100), X(10 * MIB)}, 10 * MIB, GIB, GIB - 10 * MIB, 1, 2, 2},
    {"MA get_free_buffer: what is cached is refused as well, and released",
     {MAC}, {A(600 * MIB), F(0), R(0.06), A(600 * MIB)}, 600 * MIB, 600 * MIB, 0, 1, 0, 0},
    {"MA setHighWatermarkRatio: 0 is no limit",
     {MAC}, {R(0.001), R(0), A(2 * GIB)}, 2 * GIB, 2 * GIB, 0, 1, 0, 0},
    {"MA: other allocations count (currentAllocatedSize)",
     {MAC}, {R(0.5), O(4 * GIB), X(2 * GIB), O(3 * GIB), A(2 * GIB)}, 2 * GIB, 2 * GIB, 0, 1, 1, 1},
    {"MA createHeapBlock: no heap of 1 GiB under pressure",
     {MAC, .low_watermark_ratio = 0.1}, {O(GIB), A(10 * MIB)}, 10 * MIB, 10 * MIB, 0, 1, 0, 0},
    {"MA getLowWatermarkValue: pressure begins with less than 1 MiB of room",
     {MAC, .low_watermark_ratio = 0.1}, {O(GIB - MIB + 1), A(10 * MIB)},
     10 * MIB, 10 * MIB, 0, 1, 0, 0},
    {"MA getLowWatermarkValue: not with 1 MiB",
     {MAC, .low_watermark_ratio = 0.1}, {O(GIB - MIB), A(10 * MIB)},
     10 * MIB, GIB, GIB - 10 * MIB, 1, 0, 0},
    {"MA setLowWatermarkRatio: 0 is no pressure",
     {MAC, .low_watermark_ratio = -1}, {O(9 * GIB), A(10 * MIB)},
     10 * MIB, GIB, GIB - 10 * MIB, 1, 0, 0},
    {"MA garbage_collect_cached_buffers: the oldest of the pool, heaps of their own go back",
     {MAC, .low_watermark_ratio = 0.1}, {A(600 * MIB), A(700 * MIB), F(0), F(1), A(800 * MIB)},
     800 * MIB, 1500 * MIB, 0, 2, 0, 0},
};
/* clang-format on */

TEST_LOOP("rules", mps_rules, LENGTH(mps_rows)) {
    check_row(&mps_rows[_i]);
}

/* ---- words ---------------------------------------------------------------------------------- */

TEST("rest", cuda_words) {
    mt_sim_block block;
    mt_sim *sim = card_of((mt_sim_options){.total_bytes = 40 * MIB, .others_bytes = 10 * MIB});

    ck_ok(mt_sim_alloc(sim, 5 * MIB, &block));
    ck_status(mt_sim_alloc(sim, 15 * MIB + 1, &block), MT_EDEVMEM);
    ck_assert_str_eq(
        mt_last_error(),
        "CUDA out of memory. Tried to allocate 16.00 MiB. GPU 0 has a total capacity of 40.00 MiB "
        "of which 10.00 MiB is free. Including non-PyTorch memory, this process has 20.00 MiB "
        "memory in use. Of the allocated memory 5.00 MiB is allocated by PyTorch, and 15.00 MiB is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.");
    ck_ok(mt_sim_set_ratio(sim, 0.5));
    ck_refused(mt_sim_refuse(sim, 100), MT_EDEVMEM, "Tried to allocate 2.00 MiB.");
    ck_contains(mt_last_error(), "20.00 MiB allowed; Of the allocated");
    ck_refused(mt_sim_refuse(sim, (size_t)1 << 60), MT_EDEVMEM, "more than 1EB memory.");
    ck_assert_uint_eq(stats_of(sim).ooms, 2);
    ck_status(mt_sim_set_ratio(sim, 1.5), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "invalid fraction:1.5. Please set within [0, 1].");
    mt_sim_free(sim);
}

TEST("rest", mps_words) {
    mt_sim_block block;
    mt_sim *sim =
        card_of((mt_sim_options){MAC, .others_bytes = 3 * GIB, .max_buffer_bytes = 12 * GIB});

    ck_ok(mt_sim_alloc(sim, 2 * GIB, &block));
    ck_ok(mt_sim_set_ratio(sim, 0.5));
    ck_status(mt_sim_alloc(sim, 1000, &block), MT_EDEVMEM);
    ck_assert_str_eq(
        mt_last_error(),
        "MPS backend out of memory (MPS allocated: 2.00 GiB, other allocations: 3.00 GiB, "
        "max allowed: 5.00 GiB). Tried to allocate 1024 bytes on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
        "allocations (may cause system failure).");
    ck_refused(mt_sim_alloc(sim, 1, &block), MT_EDEVMEM,
               "Tried to allocate 256 bytes on shared pool.");
    ck_ok(mt_sim_set_ratio(sim, 0));
    ck_status(mt_sim_refuse(sim, 3 * MIB), MT_EDEVMEM);
    ck_assert_str_eq(mt_last_error(),
                     "MPS backend out of memory (MPS allocated: 2.00 GiB, other allocations: 3.00 "
                     "GiB). Tried to allocate 3.00 MiB on private pool.");
    ck_status(mt_sim_alloc(sim, 12 * GIB, &block), MT_EDEVMEM);
    ck_assert_str_eq(mt_last_error(), "Invalid buffer size: 12.00 GiB");
    ck_status(mt_sim_set_ratio(sim, 2.5), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "invalid high watermark ratio 2.5");
    mt_sim_free(sim);
}

/* ---- options and arguments ------------------------------------------------------------------ */

static const struct {
    mt_sim_options options;
    const char *word;
} refused_options[] = {
    {{.flavour = (mt_sim_flavour)7}, "flavour is 7"},
    {{.max_split_bytes = 19 * MIB}, "max_split_bytes"},
    {{.max_non_split_rounding_bytes = MIB}, "max_non_split_rounding_bytes"},
    {{.large_segment_bytes = 10 * MIB}, "large_segment_bytes"},
    {{.roundup_power2_divisions = 3}, "roundup_power2_divisions is 3"},
    {{.gc_threshold = 1.0}, "gc_threshold"},
    {{.ratio = 1.1}, "invalid fraction:1.1"},
    {{.flavour = MT_SIM_MPS, .align_bytes = 100}, "align_bytes"},
    {{.flavour = MT_SIM_MPS, .xlarge_heap_bytes = MIB}, "xlarge_heap_bytes"},
    {{.flavour = MT_SIM_MPS, .large_buckets = 3}, "large_buckets is 3"},
    {{.flavour = MT_SIM_MPS, .ratio = 2.1}, "invalid high watermark ratio 2.1"},
    /* the trap of PYTORCH_MPS_HIGH_WATERMARK_RATIO alone */
    {{.flavour = MT_SIM_MPS, .ratio = 0.7}, "invalid low watermark ratio 1.4"},
};

TEST_LOOP("rest", options_that_are_refused, LENGTH(refused_options)) {
    mt_sim_options options = refused_options[_i].options;
    mt_sim *sim = (mt_sim *)&options;

    options.size = sizeof(options);
    ck_refused(mt_sim_new(&options, &sim), MT_EINVAL, refused_options[_i].word);
    ck_assert_ptr_null(sim);
}

TEST("rest", defaults) {
    mt_sim *sim;
    mt_sim_stats stats;

    ck_ok(mt_sim_new(NULL, &sim));
    stats = stats_of(sim);
    ck_assert_uint_eq(stats.total_bytes, 8 * GIB);
    ck_assert_uint_eq(stats.limit_bytes, SIZE_MAX);
    ck_assert_uint_eq(stats.recommended_bytes, 0);
    mt_sim_free(sim);
    sim = card_of((mt_sim_options){.flavour = MT_SIM_MPS});
    stats = stats_of(sim);
    ck_assert_uint_eq(stats.total_bytes, 16 * GIB);
    ck_assert_uint_eq(stats.recommended_bytes, 16 * GIB / 3 * 2);
    ck_assert_uint_eq(stats.limit_bytes, (size_t)(1.7 * (double)stats.recommended_bytes));
    mt_sim_free(sim);
    sim = card_of((mt_sim_options){.flavour = MT_SIM_MPS, .total_bytes = 64 * GIB});
    ck_assert_uint_eq(stats_of(sim).recommended_bytes, 48 * GIB);
    mt_sim_free(sim);
}

TEST("rest", arguments) {
    mt_sim_block block;
    mt_sim_stats stats = {0};
    mt_memory memory = {0};
    mt_sim *sim = card_of((mt_sim_options){0}), *stale = sim;
    mt_sim_options unset = {0};

    ck_status(mt_sim_new(NULL, NULL), MT_EINVAL);
    ck_refused(mt_sim_new(&unset, &stale), MT_EINVAL, "options->size");
    ck_status(mt_sim_alloc(sim, 1, NULL), MT_EINVAL);
    ck_status(mt_sim_read_stats(sim, NULL), MT_EINVAL);
    ck_status(mt_sim_read_stats(sim, &stats), MT_EINVAL);
    ck_status(mt_sim_memory(sim, &memory), MT_EINVAL);
    ck_status(mt_sim_visit_blocks(sim, NULL, NULL), MT_EINVAL);
    ck_refused(mt_sim_release(sim, 12345), MT_EINVAL, "0x3039");
    ck_ok(mt_sim_release(sim, 0));
    ck_ok(mt_sim_alloc(sim, 1000, &block));
    ck_status(mt_sim_release(sim, block.address + 512), MT_EINVAL);
    ck_ok(mt_sim_release(sim, block.address));
    ck_status(mt_sim_release(sim, block.address), MT_EINVAL);
    stale = sim;
    mt_sim_free(sim);
    mt_sim_free(NULL);
    mt_sim_free(stale);
    ck_refused(mt_sim_alloc(stale, 1, &block), MT_EINVAL, "not a live handle");
    ck_status(mt_sim_empty_cache(stale, NULL), MT_EINVAL);
    ck_status(mt_sim_set_ratio(NULL, 1), MT_EINVAL);
    ck_status(mt_sim_set_stream(NULL, 1), MT_EINVAL);
    ck_status(mt_sim_set_others(NULL, 1), MT_EINVAL);
    ck_status(mt_sim_reset_peak(NULL), MT_EINVAL);
    ck_status(mt_sim_refuse(NULL, 1), MT_EINVAL);
}

/* ---- figures -------------------------------------------------------------------------------- */

static mt_memory check_memory(const mt_sim *sim, size_t budget, size_t allocated, size_t reserved,
                              size_t peak, uint64_t retries) {
    mt_memory memory = {.size = sizeof(memory)};

    ck_ok(mt_sim_memory(sim, &memory));
    ck_assert_uint_eq(memory.budget_bytes, budget);
    ck_assert_uint_eq(memory.allocated_bytes, allocated);
    ck_assert_uint_eq(memory.reserved_bytes, reserved);
    ck_assert_uint_eq(memory.peak_bytes, peak);
    ck_assert_uint_eq(memory.alloc_retries, retries);
    return memory;
}

TEST("rest", cuda_memory) {
    mt_sim *sim = card_of((mt_sim_options){.total_bytes = 100 * MIB});
    mt_sim_block a, b;
    mt_memory memory;

    ck_ok(mt_sim_alloc(sim, 30 * MIB, &a));
    ck_ok(mt_sim_alloc(sim, 5 * MIB, &b));
    ck_assert_uint_eq(b.bytes, 5 * MIB);
    ck_assert_uint_eq(b.requested_bytes, 5 * MIB);
    ck_assert_uint_eq(b.segment_bytes, 20 * MIB);
    ck_ok(mt_sim_release(sim, a.address));
    ck_ok(mt_sim_set_others(sim, 10 * MIB));
    memory = check_memory(sim, 90 * MIB, 5 * MIB, 50 * MIB, 35 * MIB, 0);
    ck_assert_uint_eq(memory.free_bytes, 40 * MIB);
    ck_ok(mt_sim_set_ratio(sim, 0.6));
    ck_ok(mt_sim_reset_peak(sim));
    ck_ok(mt_sim_alloc(sim, 32 * MIB, &a));
    check_memory(sim, 60 * MIB, 37 * MIB, 52 * MIB, 37 * MIB, 1);
    ck_assert_uint_eq(stats_of(sim).peak_reserved_bytes, 52 * MIB);
    ck_ok(mt_sim_set_others(sim, 200 * MIB));
    check_memory(sim, 1, 37 * MIB, 52 * MIB, 37 * MIB, 1);
    mt_sim_free(sim);
}

/* Neither peak nor retries, which MPS does not count. */
TEST("rest", mps_memory) {
    mt_sim *sim = card_of((mt_sim_options){MAC});
    mt_sim_block a;

    ck_ok(mt_sim_alloc(sim, 5 * MIB, &a));
    ck_ok(mt_sim_set_others(sim, GIB));
    ck_ok(mt_sim_set_ratio(sim, 0.5));
    check_memory(sim, 4 * GIB, 5 * MIB, 32 * MIB, 0, 0);
    mt_sim_free(sim);
}

/* ---- a random walk -------------------------------------------------------------------------- */

enum { LIVE = 64 };

typedef struct walk {
    mt_sim *sim;
    mt_sim_block live[LIVE];
    uint64_t random;
    /* of the map of the card */
    uint64_t end, segment, segment_end;
    size_t allocated, reserved, used, segments;
    int was_free, is_cuda;
} walk;

static uint64_t draw(walk *w, uint64_t below) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (w->random >> 33) % below;
}

/* Blocks follow each other without overlap or hole, and fill their segments. */
static void check_block(void *user, const mt_sim_block *b) {
    walk *w = user;

    if (b->segment_address != w->segment) {
        ck_assert_uint_eq(w->end, w->segment_end);
        ck_assert_uint_ge(b->segment_address, w->segment_end);
        ck_assert_uint_eq(b->address, b->segment_address);
        w->segment = b->segment_address;
        w->segment_end = b->segment_address + b->segment_bytes;
        w->reserved += b->segment_bytes;
        w->segments++;
        w->was_free = 0;
    } else {
        ck_assert_uint_eq(b->address, w->end);
    }
    ck_assert_uint_gt(b->bytes, 0);
    ck_assert_uint_le(b->requested_bytes, b->bytes);
    ck_assert_int_eq(b->in_use, b->requested_bytes > 0);
    if (w->is_cuda) ck_assert_msg(b->in_use || !w->was_free, "two free neighbours");
    w->was_free = !b->in_use;
    w->end = b->address + b->bytes;
    if (!b->in_use) return;
    w->allocated += b->bytes;
    w->used++;
}

static void check_map(walk *w) {
    mt_sim_stats s = stats_of(w->sim);

    w->end = w->segment = w->segment_end = 0;
    w->allocated = w->reserved = w->used = w->segments = 0;
    ck_ok(mt_sim_visit_blocks(w->sim, check_block, w));
    ck_assert_uint_eq(w->end, w->segment_end);
    ck_assert_uint_eq(w->allocated, s.allocated_bytes);
    ck_assert_uint_eq(w->reserved, s.reserved_bytes);
    ck_assert_uint_eq(w->used, s.allocations);
    ck_assert_uint_eq(w->segments, s.segments);
    ck_assert_uint_le(s.requested_bytes, s.allocated_bytes);
    ck_assert_uint_le(s.allocated_bytes + s.inactive_split_bytes, s.reserved_bytes);
    ck_assert_uint_le(s.allocated_bytes, s.peak_allocated_bytes);
    ck_assert_uint_le(s.reserved_bytes, s.peak_reserved_bytes);
    ck_assert_uint_le(s.peak_reserved_bytes, s.total_bytes);
    ck_assert_uint_le(s.free_bytes, s.total_bytes - s.reserved_bytes);
}

static void step_of(walk *w) {
    mt_sim_block *slot = &w->live[draw(w, LIVE)];
    size_t bytes = (size_t)1 << draw(w, 26);

    bytes += draw(w, bytes);
    if (draw(w, 200) == 0) ck_ok(mt_sim_empty_cache(w->sim, NULL));
    if (draw(w, 50) == 0) ck_ok(mt_sim_set_stream(w->sim, draw(w, 3)));
    if (draw(w, 300) == 0) ck_ok(mt_sim_set_others(w->sim, draw(w, 100) * MIB));
    if (slot->address) {
        ck_ok(mt_sim_release(w->sim, slot->address));
        slot->address = 0;
        return;
    }
    mt_status status = mt_sim_alloc(w->sim, bytes, slot);
    ck_assert_msg(status == MT_OK || status == MT_EDEVMEM, "%s", mt_last_error());
    if (status == MT_OK) ck_assert_uint_ge(slot->bytes, bytes);
}

static const mt_sim_options walked[] = {
    {.total_bytes = 400 * MIB},
    {.total_bytes = 400 * MIB, .ratio = 0.6, .gc_threshold = 0.5, .max_split_bytes = 24 * MIB},
    {.total_bytes = 400 * MIB, .roundup_power2_divisions = 8, .large_segment_bytes = 40 * MIB},
    {.flavour = MT_SIM_MPS, .recommended_bytes = 150 * MIB},
    {.flavour = MT_SIM_MPS, .recommended_bytes = 300 * MIB, .ratio = 1, .low_watermark_ratio = 0.4},
    {.flavour = MT_SIM_MPS, .recommended_bytes = 300 * MIB, .ratio = -1, .align_bytes = 16 * KIB},
};

/* Everything goes back in the end, and meanwhile the books and the map agree. */
TEST_LOOP("rest", random_walk, LENGTH(walked)) {
    walk w = {.random = 99, .is_cuda = walked[_i].flavour != MT_SIM_MPS};
    size_t kept = 0;

    w.sim = card_of(walked[_i]);
    for (int i = 0; i < 20000; i++) {
        step_of(&w);
        if (i % 50 == 0) check_map(&w);
    }
    mt_sim_stats s = stats_of(w.sim);
    ck_assert_uint_gt(s.alloc_retries, 10);
    ck_assert_uint_gt(s.ooms, 10);
    for (int i = 0; i < LIVE; i++)
        if (w.live[i].address) ck_ok(mt_sim_release(w.sim, w.live[i].address));
    ck_ok(mt_sim_empty_cache(w.sim, &kept));
    ck_assert_uint_gt(kept, 0);
    check_map(&w);
    s = stats_of(w.sim);
    ck_assert_uint_eq(s.allocated_bytes, 0);
    ck_assert_uint_eq(s.requested_bytes, 0);
    /* MPS keeps a heap that was emptied for another buffer (MA release_buffer). */
    if (w.is_cuda) ck_assert_uint_eq(s.reserved_bytes, 0);
    ck_assert_uint_eq(s.reserved_bytes, s.inactive_split_bytes);
    mt_sim_free(w.sim);
}

/* Each request for host memory fails in turn: nothing has changed then, and nothing leaks. */
TEST("rest", host_memory_runs_out) {
    mt_sim *sim;
    mt_sim_block blocks[40];
    size_t n;

    ck_ok(counting_install());
    for (n = 1;; n++) {
        counting_fail_at(n, 0);
        mt_status status = mt_sim_new(NULL, &sim);
        if (status == MT_OK) break;
        ck_status(status, MT_ENOMEM);
        ck_assert_uint_eq(counting_live(), 0);
    }
    ck_assert_uint_gt(n, 1);
    mt_sim_free(sim);
    for (n = 2;; n++) {
        counting_fail_at(n, 0);
        ck_ok(mt_sim_new(NULL, &sim));
        for (int i = 0; i < 40; i++) {
            mt_sim_stats before = stats_of(sim), after;
            mt_status status = mt_sim_set_stream(sim, (uint64_t)i / 16);
            if (status != MT_OK) {
                ck_status(status, MT_ENOMEM);
                ck_ok(mt_sim_set_stream(sim, (uint64_t)i / 16));
            }
            status = mt_sim_alloc(sim, (size_t)(i + 1) * 700 * KIB, &blocks[i]);
            if (status == MT_OK) continue;
            ck_status(status, MT_ENOMEM);
            after = stats_of(sim);
            ck_assert_mem_eq(&before, &after, sizeof(before));
            ck_ok(mt_sim_alloc(sim, (size_t)(i + 1) * 700 * KIB, &blocks[i]));
        }
        for (int i = 0; i < 40; i++) ck_ok(mt_sim_release(sim, blocks[i].address));
        mt_sim_free(sim);
        ck_assert_uint_eq(counting_live(), 0);
        if (!counting_fired()) break;
    }
    ck_assert_uint_gt(n, 10);
}

SUITE("sim")
