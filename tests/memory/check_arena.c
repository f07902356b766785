/*
 * check_arena.c - layouts: blocks alive together never overlap, the arena comes near to the bound, and the
 * search only ever makes it smaller.
 */
#include "counting_allocator.h"
#include "fake_backend.h"
#include "fake_blocks.h"
#include "suite.h"

#include <memtrain/arena.h>

#define LINE 64
#define MOST_BLOCKS 4000

static size_t rounded(size_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

/* No two blocks alive together share a byte, and none reaches above the arena. */
static void check_layout(const mt_block *blocks, size_t count, const mt_layout *layout) {
    for (size_t i = 0; i < count; i++) {
        const mt_block *a = &blocks[i];

        ck_assert_uint_eq(a->offset % LINE, 0);
        ck_assert_uint_le(a->offset + rounded(a->bytes), layout->bytes);
        for (size_t j = 0; j < i; j++) {
            const mt_block *b = &blocks[j];
            int together = a->begin < b->end && b->begin < a->end;

            if (!together || a->bytes == 0 || b->bytes == 0) continue;
            ck_assert(a->offset + rounded(a->bytes) <= b->offset ||
                      b->offset + rounded(b->bytes) <= a->offset);
        }
    }
    ck_assert_uint_ge(layout->bytes, layout->lower_bound_bytes);
    ck_assert_ptr_nonnull(layout->order);
}

/* Blocks of which the first ones, so many, stay where they are. */
static mt_layout laid_out(mt_block *blocks, size_t count, size_t fixed) {
    mt_layout layout = MT_LAYOUT_INIT;

    ck_ok(mt_arena_layout(blocks, count, fixed, LINE, &layout));
    check_layout(blocks, count, &layout);
    return layout;
}

/* ---- small cases ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t count;
    mt_block blocks[6];
    size_t bytes; /* of the arena, and the bound; 0: not the same */
} cases[] = {
    {"none", 0, {{0, 0, 0, 0}}, 0},
    {"one", 1, {{100, 0, 5, 0}}, 128},
    {"one after the other", 2, {{128, 0, 5, 0}, {128, 5, 9, 0}}, 128},
    {"together", 2, {{128, 0, 6, 0}, {128, 5, 9, 0}}, 256},
    {"to the end", 2, {{64, 3, SIZE_MAX, 0}, {64, 0, SIZE_MAX, 0}}, 128},
    {"empty blocks", 2, {{0, 0, 9, 0}, {64, 1, 2, 0}}, 64},
    {"a gap is filled", 4, {{128, 0, 10, 0}, {256, 0, 4, 0}, {128, 0, 10, 0}, {192, 5, 9, 0}}, 512},
    /* The two in the middle cannot both lie beside their neighbours: no layout reaches the bound. */
    {"above the bound",
     6,
     {{128, 0, 2, 0}, {64, 0, 4, 0}, {64, 1, 6, 0}, {128, 3, 8, 0}, {64, 5, 9, 0}, {128, 7, 10, 0}},
     0},
};

TEST_LOOP("layouts", small_cases, LENGTH(cases)) {
    mt_block blocks[6];
    mt_layout layout;

    memcpy(blocks, cases[_i].blocks, sizeof(blocks));
    layout = laid_out(blocks, cases[_i].count, 0);
    if (cases[_i].bytes || !cases[_i].count)
        ck_assert_msg(layout.bytes == cases[_i].bytes &&
                          layout.lower_bound_bytes == cases[_i].bytes,
                      "%s: %zu, bound %zu", cases[_i].name, layout.bytes, layout.lower_bound_bytes);
}

/* ---- what a training step looks like ------------------------------------------------------------ */

TEST_LOOP("layouts", training_steps, 12) {
    static mt_block blocks[MOST_BLOCKS];
    uint64_t random = (uint64_t)_i;
    size_t count = fake_blocks(blocks, 3 + 20 * (size_t)_i, &random);
    mt_layout layout = laid_out(blocks, count, 0);

    ck_assert_double_le((double)layout.bytes, 1.08 * (double)layout.lower_bound_bytes);
}

/* Blocks without any order: the bound is out of reach, the rules are not. */
TEST_LOOP("layouts", random_blocks, 20) {
    static mt_block blocks[MOST_BLOCKS];
    uint64_t random = 77 + (uint64_t)_i;
    size_t count = 1 + fake_random(&random) % 300;

    for (size_t i = 0; i < count; i++) {
        size_t begin = fake_random(&random) % 100;

        blocks[i] = (mt_block){fake_random(&random) % 5000, begin,
                               begin + 1 + fake_random(&random) % 30, 0};
    }
    laid_out(blocks, count, 0);
}

/* Blocks that stay where they are: others lie around them, and above only where they must. */
TEST_LOOP("layouts", fixed_blocks, 8) {
    static mt_block blocks[MOST_BLOCKS + 3];
    uint64_t random = (uint64_t)_i;
    mt_layout layout, later = MT_LAYOUT_INIT;
    mt_arena_search *search;
    size_t count;

    blocks[0] = (mt_block){5000, 0, SIZE_MAX, 128};
    blocks[1] = (mt_block){300000, 0, 70, 640000};
    blocks[2] = (mt_block){300000, 70, SIZE_MAX, 640064};
    count = 3 + fake_blocks(blocks + 3, 20, &random);
    layout = laid_out(blocks, count, 3);
    ck_assert_uint_eq(blocks[0].offset, 128);
    ck_assert_uint_eq(blocks[1].offset, 640000);
    ck_assert_uint_eq(blocks[2].offset, 640064);
    ck_ok(mt_arena_search_new(blocks, count, 3, LINE, &search));
    ck_assert_uint_le(mt_arena_search_run(search, 100), layout.bytes);
    ck_ok(mt_arena_search_result(search, blocks, count, &later));
    check_layout(blocks, count, &later);
    ck_assert_uint_eq(blocks[2].offset, 640064);
    mt_arena_search_free(search);
}

TEST("layouts", fixed_blocks_are_checked) {
    mt_block blocks[3] = {{100, 0, 5, 0}, {100, 4, 9, 64}, {100, 0, 9, 0}};
    mt_layout layout = MT_LAYOUT_INIT;
    mt_arena_search *search;

    ck_status(mt_arena_layout(blocks, 3, 4, LINE, &layout), MT_EINVAL);
    ck_refused(mt_arena_layout(blocks, 3, 2, LINE, &layout), MT_EINVAL,
               "fixed blocks 0 and 1 overlap");
    blocks[1].offset = 130;
    ck_status(mt_arena_layout(blocks, 3, 2, LINE, &layout), MT_EINVAL);
    blocks[1].offset = 128;
    ck_ok(mt_arena_layout(blocks, 3, 2, LINE, &layout));
    ck_assert_uint_eq(blocks[2].offset, 256);
    ck_ok(mt_arena_layout(blocks, 2, 2, LINE, &layout));
    ck_assert_uint_eq(layout.bytes, 256);
    ck_status(mt_arena_search_new(blocks, 2, 2, LINE, &search), MT_EINVAL);
}

/* The same blocks have the same layout each time. */
TEST("layouts", no_chance) {
    static mt_block blocks[2][MOST_BLOCKS];
    mt_layout layout[2];

    for (int i = 0; i < 2; i++) {
        uint64_t random = 5;
        layout[i] = laid_out(blocks[i], fake_blocks(blocks[i], 50, &random), 0);
    }
    ck_assert_mem_eq(blocks[0], blocks[1], sizeof(blocks[0]));
    ck_assert_uint_eq(layout[0].bytes, layout[1].bytes);
}

/* So many that not every order can be tried. */
TEST("layouts", many_blocks) {
    const size_t layers = 4000;
    mt_block *blocks = calloc(4 * layers, sizeof(*blocks));
    uint64_t random = 9;
    mt_layout layout = MT_LAYOUT_INIT;

    ck_assert_ptr_nonnull(blocks);
    ck_ok(mt_arena_layout(blocks, fake_blocks(blocks, layers, &random), 0, LINE, &layout));
    ck_assert_double_le((double)layout.bytes, 1.08 * (double)layout.lower_bound_bytes);
    free(blocks);
}

/* ---- what is worse than it was ---------------------------------------------------------------------- */

enum { HARD = 120, HARD_CASES = 24 };

/* xorshift64 (Marsaglia 2003) */
static size_t drawn(uint64_t *x, size_t below) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return (size_t)(*x % below);
}

/* Blocks of three kinds of sizes; a quarter lives long, and in each third case some end as they began. */
static void draw_hard(mt_block *blocks, size_t number) {
    static const size_t lines[] = {4, 64, 1000};
    uint64_t x = UINT64_C(88172645463325252) + number;

    for (int i = 0; i < 20; i++) drawn(&x, 2);
    for (size_t i = 0; i < HARD; i++) {
        size_t begin = drawn(&x, 200);
        size_t life = drawn(&x, 4) ? 1 + drawn(&x, 20) : 1 + drawn(&x, number % 2 ? 160 : 40);
        size_t most = lines[drawn(&x, 3)];

        if (number % 3 == 0 && i < 30) {
            begin = i;
            life = 200 - 2 * i;
        }
        blocks[i] = (mt_block){LINE * (1 + drawn(&x, most)), begin, begin + life, 0};
    }
}

/* No one order is the best of all, and the search finds what none does; who makes these less writes it here. */
TEST("search", hard_cases) {
    const size_t at_first = 9375680, found = 9262400;
    size_t sums[2] = {0, 0};

    for (size_t number = 0; number < HARD_CASES; number++) {
        mt_block blocks[HARD];
        mt_arena_search *search;

        draw_hard(blocks, number);
        sums[0] += laid_out(blocks, HARD, 0).bytes;
        ck_ok(mt_arena_search_new(blocks, HARD, 0, LINE, &search));
        sums[1] += mt_arena_search_run(search, 2000);
        mt_arena_search_free(search);
    }
    ck_assert_uint_le(sums[0], at_first);
    ck_assert_uint_le(sums[1], found);
}

/* ---- the search --------------------------------------------------------------------------------- */

TEST_LOOP("search", the_search_gains, 8) {
    static mt_block blocks[MOST_BLOCKS];
    uint64_t random = (uint64_t)_i;
    size_t count = fake_blocks(blocks, 30, &random), before;
    mt_layout first = laid_out(blocks, count, 0), later = MT_LAYOUT_INIT;
    mt_arena_search *search;

    ck_ok(mt_arena_search_new(blocks, count, 0, LINE, &search));
    ck_assert_uint_eq(mt_arena_search_run(search, 0), first.bytes);
    before = first.bytes;
    for (int slice = 0; slice < 20; slice++) {
        size_t now = mt_arena_search_run(search, 10);

        ck_assert_uint_le(now, before);
        before = now;
        ck_ok(mt_arena_search_result(search, blocks, count, &later));
        ck_assert_uint_eq(later.bytes, now);
        check_layout(blocks, count, &later);
    }
    ck_assert_uint_eq(later.lower_bound_bytes, first.lower_bound_bytes);
    mt_arena_search_free(search);
}

TEST("search", the_search_is_checked) {
    mt_block blocks[2] = {{64, 0, 2, 0}, {64, 1, 3, 0}};
    mt_layout layout = MT_LAYOUT_INIT, unset = {0, 0, 0, NULL};
    mt_arena_search *search;

    ck_status(mt_arena_search_new(blocks, 2, 0, LINE, NULL), MT_EINVAL);
    ck_status(mt_arena_search_new(NULL, 2, 0, LINE, &search), MT_EINVAL);
    ck_status(mt_arena_search_new(blocks, 0, 0, LINE, &search), MT_EINVAL);
    ck_assert_ptr_null(search);
    ck_ok(mt_arena_search_new(blocks, 2, 0, LINE, &search));
    ck_status(mt_arena_search_result(search, NULL, 2, &layout), MT_EINVAL);
    ck_status(mt_arena_search_result(search, blocks, 1, &layout), MT_EINVAL);
    ck_status(mt_arena_search_result(search, blocks, 2, NULL), MT_EINVAL);
    ck_status(mt_arena_search_result(search, blocks, 2, &unset), MT_EINVAL);
    mt_arena_search_free(search);
    mt_arena_search_free(search);
    ck_assert_uint_eq(mt_arena_search_run(search, 1), 0);
    ck_status(mt_arena_search_result(search, blocks, 2, &layout), MT_EINVAL);
}

/* ---- arguments and host memory ------------------------------------------------------------------ */

TEST("arguments", arguments_are_checked) {
    mt_block good = {64, 0, 2, 7}, empty = {64, 2, 2, 7}, huge[2] = {{SIZE_MAX / 2, 0, 1, 7}};
    mt_layout layout = MT_LAYOUT_INIT, unset = {0, 0, 0, NULL};

    ck_status(mt_arena_layout(&good, 1, 0, LINE, NULL), MT_EINVAL);
    ck_status(mt_arena_layout(&good, 1, 0, LINE, &unset), MT_EINVAL);
    ck_status(mt_arena_layout(NULL, 1, 0, LINE, &layout), MT_EINVAL);
    ck_status(mt_arena_layout(&good, 1, 0, 0, &layout), MT_EINVAL);
    ck_status(mt_arena_layout(&good, 1, 0, 48, &layout), MT_EINVAL);
    ck_refused(mt_arena_layout(&empty, 1, 0, LINE, &layout), MT_EINVAL,
               "block 0 lives from 2 to 2");
    huge[1] = huge[0];
    ck_status(mt_arena_layout(huge, 2, 0, LINE, &layout), MT_EINVAL);
    ck_assert_uint_eq(good.offset, 7);
    ck_assert_uint_eq(layout.bytes, 0);
}

TEST("arguments", without_host_memory) {
    mt_status status = MT_ENOMEM;
    size_t n = 0;

    ck_ok(counting_install());
    while (status == MT_ENOMEM) {
        mt_block blocks[2] = {{64, 0, 2, 7}, {128, 1, 3, 7}};
        mt_layout layout = MT_LAYOUT_INIT;
        mt_arena_search *search = NULL;

        counting_fail_at(++n, 0);
        status = mt_arena_layout(blocks, 2, 0, LINE, &layout);
        if (status != MT_OK) ck_assert_uint_eq(blocks[0].offset, 7);
        if (status == MT_OK) status = mt_arena_search_new(blocks, 2, 0, LINE, &search);
        if (status != MT_OK) ck_assert_ptr_null(search);
        mt_arena_search_free(search);
        ck_assert_uint_eq(counting_live(), 0);
    }
    counting_fail_at(0, 0);
    ck_ok(status);
    ck_assert_uint_gt(n, 12);
}

SUITE("arena")
