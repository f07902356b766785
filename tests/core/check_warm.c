/*
 * check_warm.c - moving blocks to warm memory: what a layout costs against a count byte by byte, and that a
 * moved layout is still one, no colder and no larger.
 */
#include "counting_allocator.h"
#include "fake_blocks.h"
#include "suite.h"

#include <memtrain/arena.h>

#define LINE 64
#define NEAR ((size_t)2 << 20)
#define MOST_BLOCKS 400
#define MOST_LINES 200000

static size_t lines_of(size_t bytes) {
    return (bytes + LINE - 1) / LINE;
}

static size_t size_of_arena(const mt_block *blocks, size_t count) {
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        size_t top = blocks[i].offset + LINE * lines_of(blocks[i].bytes);

        if (top > bytes) bytes = top;
    }
    return bytes;
}

/* A line of memory after another, instant after instant. */
static double count_cold(const mt_block *blocks, size_t count, size_t last) {
    static double used[MOST_LINES]; /* when a line was used last, in bytes taken */
    double taken = 0, cold = 0;

    for (size_t i = 0; i < MOST_LINES; i++) used[i] = -2.0 * (double)NEAR;
    for (size_t now = 0; now <= last; now++) {
        for (size_t i = 0; i < count; i++) {
            if (blocks[i].end != now) continue;
            for (size_t k = 0; k < lines_of(blocks[i].bytes); k++)
                used[blocks[i].offset / LINE + k] = taken;
        }
        for (size_t i = 0; i < count; i++) {
            if (blocks[i].begin != now) continue;
            for (size_t k = 0; k < lines_of(blocks[i].bytes); k++) {
                double age = taken - used[blocks[i].offset / LINE + k];

                cold += LINE * (age < (double)NEAR ? age / (double)NEAR : 1.0);
            }
            taken += LINE * (double)lines_of(blocks[i].bytes);
        }
    }
    return cold;
}

static void check_apart(const mt_block *blocks, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const mt_block *a = &blocks[i];

        ck_assert_uint_eq(a->offset % LINE, 0);
        for (size_t j = 0; j < i; j++) {
            const mt_block *b = &blocks[j];

            if (a->begin >= b->end || b->begin >= a->end) continue;
            ck_assert(a->offset + LINE * lines_of(a->bytes) <= b->offset ||
                      b->offset + LINE * lines_of(b->bytes) <= a->offset);
        }
    }
}

/* The cost is the one counted, before and after; the layout stays one; it gets no colder. */
TEST_LOOP("layouts", training_steps, 12) {
    mt_block blocks[MOST_BLOCKS];
    uint64_t random = (uint64_t)_i, state = 3;
    size_t count = fake_blocks(blocks, 10 + 2 * (size_t)_i, &random), last = 0;
    mt_layout layout = MT_LAYOUT_INIT;
    double first, cold, before;

    ck_ok(mt_arena_layout(blocks, count, 0, LINE, &layout));
    for (size_t i = 0; i < count; i++)
        if (blocks[i].end < SIZE_MAX && blocks[i].end > last) last = blocks[i].end;
    ck_ok(mt_arena_warm(blocks, count, 0, LINE, layout.bytes, 0, &state, &first));
    ck_assert_double_eq_tol(first, count_cold(blocks, count, last), 1e-6 * first);
    before = first;
    for (int slice = 0; slice < 10; slice++) {
        ck_ok(mt_arena_warm(blocks, count, 0, LINE, layout.bytes, 1000, &state, &cold));
        ck_assert_double_le(cold, before * (1 + 1e-9));
        ck_assert_uint_le(size_of_arena(blocks, count), layout.bytes);
        check_apart(blocks, count);
        before = cold;
    }
    ck_assert_double_eq_tol(cold, count_cold(blocks, count, last), 1e-6 * first);
    ck_assert_double_lt(cold, 0.99 * first);
}

/* A helper that was laid into memory nobody has used moves to where its forerunner has just been. */
TEST("layouts", to_the_forerunner) {
    mt_block blocks[3] = {{65536, 0, 2, 0}, {65536, 2, 4, 131072}, {65536, 3, 5, 65536}};
    uint64_t state = 1;
    double cold;

    ck_ok(mt_arena_warm(blocks, 3, 0, LINE, 196608, 200, &state, &cold));
    ck_assert_uint_eq(blocks[1].offset, blocks[0].offset);
    ck_assert_uint_ne(blocks[2].offset, blocks[1].offset);
    /* The first and the last one are cold; the one between takes over what was left that instant. */
    ck_assert_double_eq(cold, 131072.0);
}

TEST("layouts", fixed_blocks_stay) {
    mt_block blocks[MOST_BLOCKS];
    uint64_t random = 4, state = 2;
    mt_layout layout = MT_LAYOUT_INIT;
    double cold;

    blocks[0] = (mt_block){5000, 0, SIZE_MAX, 128};
    blocks[1] = (mt_block){300000, 0, 70, 640000};
    size_t count = 2 + fake_blocks(blocks + 2, 20, &random);
    ck_ok(mt_arena_layout(blocks, count, 2, LINE, &layout));
    ck_ok(mt_arena_warm(blocks, count, 2, LINE, layout.bytes, 5000, &state, &cold));
    ck_assert_uint_eq(blocks[0].offset, 128);
    ck_assert_uint_eq(blocks[1].offset, 640000);
    check_apart(blocks, count);
    ck_ok(mt_arena_warm(blocks, 2, 2, LINE, layout.bytes, 5000, &state, &cold));
}

/* The same state gives the same layout, and goes on. */
TEST("layouts", repeatable) {
    static mt_block blocks[2][MOST_BLOCKS];
    uint64_t state[2] = {7, 7};
    double cold[2];

    for (size_t i = 0; i < 2; i++) {
        uint64_t random = 5;
        size_t count = fake_blocks(blocks[i], 30, &random);
        mt_layout layout = MT_LAYOUT_INIT;

        ck_ok(mt_arena_layout(blocks[i], count, 0, LINE, &layout));
        for (size_t call = 0; call < 4; call += 1 + i) /* in four goes, or in two */
            ck_ok(mt_arena_warm(blocks[i], count, 0, LINE, layout.bytes, 500 * (1 + i), &state[i],
                                &cold[i]));
    }
    ck_assert_mem_eq(blocks[0], blocks[1], sizeof(blocks[0]));
    ck_assert_uint_eq(state[0], state[1]);
    ck_assert_double_eq(cold[0], cold[1]);
}

TEST("arguments", arguments_are_checked) {
    mt_block good[2] = {{100, 0, 2, 0}, {64, 1, 3, 128}}, empty = {64, 2, 2, 0};
    uint64_t state = 0;
    double cold = 1;

    ck_status(mt_arena_warm(NULL, 2, 0, LINE, 192, 1, &state, &cold), MT_EINVAL);
    ck_status(mt_arena_warm(good, 2, 3, LINE, 192, 1, &state, &cold), MT_EINVAL);
    ck_status(mt_arena_warm(good, 2, 0, 48, 192, 1, &state, &cold), MT_EINVAL);
    ck_status(mt_arena_warm(&empty, 1, 0, LINE, 192, 1, &state, &cold), MT_EINVAL);
    ck_status(mt_arena_warm(good, 2, 0, LINE, 192, 1, NULL, &cold), MT_EINVAL);
    ck_status(mt_arena_warm(good, 2, 0, LINE, 192, 1, &state, NULL), MT_EINVAL);
    ck_refused(mt_arena_warm(good, 2, 0, LINE, 191, 1, &state, &cold), MT_EINVAL,
               "block 1 lies at 128 with 64 bytes");
    ck_status(mt_arena_warm(good, 2, 0, LINE, 100, 1, &state, &cold), MT_EINVAL);
    good[1].offset = 130;
    ck_status(mt_arena_warm(good, 2, 0, LINE, 1000, 1, &state, &cold), MT_EINVAL);
    good[1].offset = SIZE_MAX - 63;
    ck_status(mt_arena_warm(good, 2, 0, LINE, 1000, 1, &state, &cold), MT_EINVAL);
    ck_assert_double_eq(cold, 1);
    ck_assert_uint_eq(state, 0);
    ck_ok(mt_arena_warm(NULL, 0, 0, LINE, 0, 1, &state, &cold));
    ck_assert_double_eq(cold, 0);
}

TEST("arguments", without_host_memory) {
    mt_status status = MT_ENOMEM;
    size_t n = 0;

    ck_ok(counting_install());
    while (status == MT_ENOMEM) {
        mt_block blocks[2] = {{8192, 0, 2, 0}, {8192, 2, 3, 8192}};
        uint64_t state = 9;
        double cold;

        counting_fail_at(++n, 0);
        status = mt_arena_warm(blocks, 2, 0, LINE, 16384, 50, &state, &cold);
        if (status != MT_OK) ck_assert_uint_eq(blocks[1].offset, 8192);
        if (status != MT_OK) ck_assert_uint_eq(state, 9);
        ck_assert_uint_eq(counting_live(), 0);
    }
    counting_fail_at(0, 0);
    ck_ok(status);
    ck_assert_uint_gt(n, 8);
}

SUITE("warm")
