/*
 * check_sim_play.c - the blocks of a chunk on a simulated card: what is reserved for them, and that it is
 * what taking and releasing them one by one comes to.
 */
#include "counting_allocator.h"
#include "fake_blocks.h"
#include "suite.h"

#include <memtrain/sim.h>

#define MIB ((size_t)1 << 20)
#define MOST 500

static mt_sim *card_of(mt_sim_flavour flavour, size_t bytes) {
    mt_sim_options options = MT_SIM_OPTIONS_INIT;
    mt_sim *sim;

    options.flavour = flavour;
    options.total_bytes = options.recommended_bytes = bytes;
    if (flavour == MT_SIM_CUDA) options.recommended_bytes = 0;
    ck_ok(mt_sim_new(&options, &sim));
    return sim;
}

static mt_sim_stats stats_of(const mt_sim *sim) {
    mt_sim_stats stats = {.size = sizeof(stats)};

    ck_ok(mt_sim_read_stats(sim, &stats));
    return stats;
}

static const struct {
    const char *name;
    mt_block blocks[4];
    size_t count, reserved_mib;
} rows[] = {
    {"none", {{0}}, 0, 0},
    {"small ones share a segment", {{MIB / 2, 0, SIZE_MAX, 0}, {MIB / 2, 1, SIZE_MAX, 0}}, 2, 2},
    {"one after the other", {{32 * MIB, 0, 1, 0}, {32 * MIB, 1, 2, 0}}, 2, 32},
    {"together", {{32 * MIB, 0, 2, 0}, {32 * MIB, 1, 2, 0}}, 2, 64},
    {"to the end", {{32 * MIB, 0, SIZE_MAX, 0}, {32 * MIB, 5, 6, 0}}, 2, 64},
    {"no place where a smaller one was", {{32 * MIB, 0, 1, 0}, {34 * MIB, 1, 2, 0}}, 2, 66},
    {"a request of nothing takes nothing", {{0, 0, 1, 0}, {32 * MIB, 1, 2, 0}}, 2, 32},
    {"all released at one instant",
     {{32 * MIB, 0, 3, 0}, {32 * MIB, 1, 3, 0}, {32 * MIB, 2, 3, 0}, {32 * MIB, 3, 4, 0}},
     4,
     96},
};

TEST_LOOP("plays", reserved_for_them, LENGTH(rows)) {
    mt_sim *sim = card_of(MT_SIM_CUDA, 1024 * MIB);
    mt_sim_stats stats;

    ck_ok(mt_sim_play(sim, rows[_i].blocks, rows[_i].count));
    stats = stats_of(sim);
    ck_assert_msg(stats.peak_reserved_bytes == rows[_i].reserved_mib * MIB, "%s: %zu",
                  rows[_i].name, stats.peak_reserved_bytes);
    ck_assert_uint_eq(stats.allocated_bytes, 0);
    mt_sim_free(sim);
}

/* The same with a look at all of them at each instant. */
static void by_hand(mt_sim *sim, const mt_block *blocks, size_t count) {
    mt_sim_block taken[MOST] = {{0}};
    size_t last = 0;

    for (size_t i = 0; i < count; i++) {
        for (size_t now = last + 1; now <= blocks[i].begin; now++)
            for (size_t b = 0; b < i; b++)
                if (blocks[b].end == now) ck_ok(mt_sim_release(sim, taken[b].address));
        last = blocks[i].begin;
        ck_ok(mt_sim_alloc(sim, blocks[i].bytes, &taken[i]));
    }
    for (size_t b = 0; b < count; b++)
        if (blocks[b].end > last) ck_ok(mt_sim_release(sim, taken[b].address));
}

static int by_begin(const void *a, const void *b) {
    const mt_block *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

TEST_LOOP("plays", as_by_hand, 12) {
    mt_sim_flavour flavour = _i % 2 ? MT_SIM_MPS : MT_SIM_CUDA;
    mt_sim *played = card_of(flavour, 8192 * MIB), *other = card_of(flavour, 8192 * MIB);
    mt_block blocks[MOST];
    uint64_t random = (uint64_t)_i;
    size_t count = fake_blocks(blocks, 20 + (size_t)_i, &random);
    mt_sim_stats a, b;

    qsort(blocks, count, sizeof(*blocks), by_begin);
    for (size_t i = 0; i < count; i++) blocks[i].bytes *= 1 + fake_random(&random) % 200;
    for (int turn = 0; turn < 2; turn++) { /* on a card with a cache, too */
        ck_ok(mt_sim_play(played, blocks, count));
        by_hand(other, blocks, count);
    }
    a = stats_of(played);
    b = stats_of(other);
    ck_assert_mem_eq(&a, &b, sizeof(a));
    ck_assert_uint_gt(a.peak_reserved_bytes, a.peak_allocated_bytes);
    mt_sim_free(played);
    mt_sim_free(other);
}

/* What was taken before it is given back; what lay there before stays. */
TEST_LOOP("plays", refused, 2) {
    static const mt_block blocks[] = {
        {30 * MIB, 0, 9, 0}, {30 * MIB, 1, 2, 0}, {70 * MIB, 2, 3, 0}};
    mt_sim *sim = card_of(_i ? MT_SIM_MPS : MT_SIM_CUDA, 100 * MIB);
    mt_sim_block before;

    ck_ok(mt_sim_alloc(sim, 20 * MIB, &before));
    ck_status(mt_sim_play(sim, blocks, 3), MT_EDEVMEM);
    ck_assert_uint_eq(stats_of(sim).allocations, 1);
    ck_ok(mt_sim_release(sim, before.address));
    ck_assert_uint_eq(stats_of(sim).allocated_bytes, 0);
    mt_sim_free(sim);
}

TEST("plays", arguments) {
    static const mt_block backwards = {1, 3, 3, 0}, unordered[] = {{1, 2, 3, 0}, {1, 1, 3, 0}};
    mt_sim *sim = card_of(MT_SIM_CUDA, 100 * MIB);

    ck_status(mt_sim_play(NULL, unordered, 2), MT_EINVAL);
    ck_status(mt_sim_play(sim, NULL, 1), MT_EINVAL);
    ck_ok(mt_sim_play(sim, NULL, 0));
    ck_refused(mt_sim_play(sim, &backwards, 1), MT_EINVAL, "block 0 lives from 3 to 3");
    ck_refused(mt_sim_play(sim, unordered, 2), MT_EINVAL, "block 1 begins at 1");
    mt_sim_free(sim);
}

TEST("plays", host_memory_runs_out) {
    mt_block blocks[MOST];
    uint64_t random = 1, n;
    size_t count = fake_blocks(blocks, 10, &random);

    qsort(blocks, count, sizeof(*blocks), by_begin);
    ck_ok(counting_install());
    for (n = 1;; n++) {
        mt_sim *sim = card_of(MT_SIM_CUDA, 1024 * MIB);
        counting_fail_at(n, 0);
        mt_status status = mt_sim_play(sim, blocks, count);
        int failed = counting_fired();
        counting_fail_at(0, 0);
        if (failed) ck_status(status, MT_ENOMEM);
        ck_assert_uint_eq(stats_of(sim).allocations, 0);
        mt_sim_free(sim);
        ck_assert_uint_eq(counting_live(), 0);
        if (!failed) break;
    }
    ck_assert_uint_gt(n, 5);
}

SUITE("sim_play")
