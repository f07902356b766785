/*
 * check_blocks.c - the blocks of a chunk of any size, from recordings of two: as if it had been recorded.
 */
#include "counting_allocator.h"
#include "fake_backend.h"
#include "suite.h"

#include <memtrain/arena.h>

static void event(void *recording, void *address, int64_t bytes) {
    mt_recording_event(recording, address, bytes);
}

/* The two recordings of a test, and the blocks that they tell of. */
static mt_recording *small, *large;
static mt_block blocks[FAKE_ALLOCATIONS_MAX];
static size_t count;

static mt_status tell(size_t samples, int apart, size_t capacity) {
    return mt_recording_blocks(small, large, samples, apart, blocks, capacity, &count);
}

static void free_recordings(void) {
    mt_recording_free(small);
    mt_recording_free(large);
    small = large = NULL;
}

/* One that events are told to. */
static mt_recording *recording_of(size_t samples) {
    mt_recording *recording;

    ck_ok(mt_recording_new(&recording));
    ck_ok(mt_recording_start(recording, samples));
    return recording;
}

static mt_recording *record(const fake_program *program, size_t samples) {
    mt_recording *recording = recording_of(samples);
    mt_event_sink sink = {recording, event};

    fake_program_record(program, samples, &sink);
    return recording;
}

/* Of any size, also between and below those recorded: as if it had been recorded itself. */
TEST("blocks", blocks_of_any_size) {
    mt_block own[FAKE_ALLOCATIONS_MAX];
    size_t own_count;

    small = record(&fake_train_program, 2);
    large = record(&fake_train_program, 4);
    for (size_t m = 1; m < 40; m++) {
        mt_recording *recording = record(&fake_train_program, m);
        mt_layout layout = MT_LAYOUT_INIT;

        ck_ok(mt_recording_blocks(small, large, m, 0, NULL, 0, &count));
        ck_assert_uint_eq(count, fake_train_program.count);
        ck_ok(tell(m, 0, FAKE_ALLOCATIONS_MAX));
        ck_ok(mt_recording_blocks(recording, NULL, m, 0, own, FAKE_ALLOCATIONS_MAX, &own_count));
        ck_assert_uint_eq(count, own_count);
        ck_assert_mem_eq(blocks, own, count * sizeof(*blocks));
        ck_ok(mt_arena_layout(blocks, count, 0, 1, &layout));
        ck_assert_uint_eq(layout.lower_bound_bytes, fake_program_peak(&fake_train_program, m));
        mt_recording_free(recording);
    }
}

/* A gradient ends where it is handed over, or with the chunk. */
TEST("blocks", gradients_live_on) {
    small = recording_of(3);
    event(small, (void *)0x40, 100);
    event(small, (void *)0x80, 200);
    event(small, (void *)0x80, 0);
    event(small, (void *)0x40, -100);
    event(small, (void *)0x80, -200);
    ck_ok(tell(3, 0, 2));
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(blocks[0].end, 2);
    ck_assert_uint_eq(blocks[1].begin, 1);
    ck_assert_uint_eq(blocks[1].end, 2);
    ck_ok(tell(3, 1, 2));
    ck_assert_uint_eq(blocks[0].end, 2);
    ck_assert_uint_eq(blocks[1].end, SIZE_MAX);
}

TEST("edges", recordings_are_checked) {
    const size_t all = FAKE_ALLOCATIONS_MAX;

    small = record(&fake_train_program, 2);
    large = record(&fake_train_program, 4);
    count = 9;
    ck_status(mt_recording_blocks(NULL, large, 8, 0, blocks, all, &count), MT_EINVAL);
    ck_status(mt_recording_blocks(small, large, 8, 0, blocks, all, NULL), MT_EINVAL);
    ck_status(mt_recording_blocks(small, large, 8, 0, NULL, all, &count), MT_EINVAL);
    ck_status(tell(8, 0, 3), MT_EINVAL);
    ck_status(tell(0, 0, all), MT_EINVAL);
    ck_status(mt_recording_blocks(small, NULL, 4, 0, blocks, all, &count), MT_EINVAL);
    ck_refused(mt_recording_blocks(large, small, 8, 0, blocks, all, &count), MT_EINVAL,
               "'small' is of 4 samples and 'large' of 2");
    ck_refused(
        mt_recording_blocks(small, (mt_recording *)(void *)blocks, 8, 0, blocks, all, &count),
        MT_EINVAL, "large");
    ck_assert_uint_eq(count, 0);
}

/* The larger chunk has a block that the smaller one has not: it keeps its size, the others grow. */
TEST("blocks", one_block_more) {
    static const fake_allocation few[] = {{0, 100, FAKE_AT_END}, {64, 30, FAKE_AT_END}};
    static const fake_allocation more[] = {
        {0, 100, FAKE_AT_END}, {7777, 0, 2}, {64, 30, FAKE_AT_END}};
    static const fake_program small_program = {few, 2}, large_program = {more, 3};

    small = record(&small_program, 2);
    large = record(&large_program, 4);
    ck_ok(mt_recording_blocks(small, large, 8, 0, NULL, 0, &count));
    ck_assert_uint_eq(count, 3);
    ck_ok(tell(8, 0, 3));
    ck_assert_uint_eq(blocks[0].bytes, 800);
    ck_assert_uint_eq(blocks[1].bytes, 7777);
    ck_assert_uint_eq(blocks[1].end, 2);
    ck_assert_uint_eq(blocks[2].bytes, 304);
}

/* One chunk ran apart and the other in place: the same blocks, as either of them asks. */
TEST("blocks", recordings_of_both_ways) {
    for (size_t i = 0; i < 2; i++) {
        mt_recording *recording = recording_of(2 + 2 * i);

        event(recording, (void *)0x80, 200);
        event(recording, (void *)0x80, 0);
        if (i == 0) event(recording, (void *)0x80, -200);
        event(recording, (void *)0x40, 100 + 20 * (int64_t)i);
        event(recording, (void *)0x40, -1);
        if (i == 1) event(recording, (void *)0x80, -200);
        *(i == 0 ? &small : &large) = recording;
    }
    for (int apart = 0; apart < 2; apart++) {
        ck_ok(tell(8, apart, 2));
        ck_assert_uint_eq(blocks[0].bytes, 200);
        ck_assert_uint_eq(blocks[0].end, apart ? SIZE_MAX : 1);
        ck_assert_uint_eq(blocks[1].bytes, 160);
        ck_assert_uint_eq(blocks[1].end, 2);
    }
}

/* Blocks of so many bytes each up to a 0, none of them released: a recording by hand. */
static mt_recording *record_sizes(size_t samples, const int64_t *bytes) {
    mt_recording *recording = recording_of(samples);

    for (size_t i = 0; bytes[i]; i++)
        event(recording, (void *)(uintptr_t)(0x40 * (i + 1)), bytes[i]);
    return recording;
}

#define BIT(n) ((int64_t)1 << (n))

static const struct {
    const char *name;
    size_t from, to, samples;   /* of the two recordings, and of the blocks that they tell of */
    int64_t small[3], large[3]; /* bytes */
    size_t bytes[2];
    int nearly; /* to a millionth */
} sizes[] = {
    /* 3 bytes more in 2 samples are rounded up at one sample more, and no size falls below 1. */
    {"no whole number", 2, 4, 7, {100, 100}, {103, 40}, {108, 1}, 0},
    {"no whole number, fewer", 2, 4, 1, {100, 100}, {103, 40}, {99, 130}, 0},
    /* Beyond any memory: as large as a sum of some blocks can still be counted. */
    {"endless", 2, 4, (size_t)INT64_MAX, {1000, 50}, {2000, 50}, {SIZE_MAX / 8, 50}, 0},
    /* One of the two has no blocks: those of the larger are what it had, whatever the size. */
    {"none in the small one", 2, 4, 8, {0}, {1000, 50}, {1000, 50}, 0},
    {"none in the large one", 2, 4, 8, {1000, 50}, {0}, {0}, 0},
    {"none at all", 2, 4, 8, {0}, {0}, {0}, 0},
    /* Where the product of two of the numbers has more than 63 bits, so has no result. */
    {"a rise of almost 1", 1, BIT(40) + 1, BIT(30), {1}, {BIT(40)}, {BIT(30)}, 1},
    {"immense, the same", 2, 4, SIZE_MAX, {50}, {50}, {50}, 1},
    {"immense, one more", 2, 4, SIZE_MAX, {50}, {51}, {SIZE_MAX / 16}, 1},
    {"immense, one less", 2, 4, SIZE_MAX, {51}, {50}, {1}, 1},
    {"half as many, two less", 2, 4, SIZE_MAX / 2 + 1, {50}, {48}, {1}, 1},
    {"an immense recording", 2, SIZE_MAX / 8, 3, {50}, {51}, {51}, 1},
    {"between", 2, 4, 3, {INT64_MAX}, {1}, {SIZE_MAX / 8}, 1},
    {"between, rising", 2, 4, 3, {1}, {INT64_MAX}, {SIZE_MAX / 8}, 1},
    {"as many as one has", 2, 4, 4, {INT64_MAX}, {BIT(60)}, {SIZE_MAX / 8}, 1},
    {"as many as the other has", 2, 4, 2, {BIT(60)}, {INT64_MAX}, {SIZE_MAX / 8}, 1},
};

TEST_LOOP("edges", blocks_by_hand, LENGTH(sizes)) {
    size_t expected = 0;

    small = record_sizes(sizes[_i].from, sizes[_i].small);
    large = record_sizes(sizes[_i].to, sizes[_i].large);
    while (expected < 2 && sizes[_i].bytes[expected]) expected++;
    ck_ok(tell(sizes[_i].samples, 0, 2));
    ck_assert_uint_eq(count, expected);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = sizes[_i].bytes[i], near = sizes[_i].nearly ? bytes / 1000000 : 0;

        ck_assert_msg(blocks[i].bytes >= bytes - near && blocks[i].bytes <= bytes + near,
                      "%s: %zu, not %zu", sizes[_i].name, blocks[i].bytes, bytes);
        ck_assert_uint_eq(blocks[i].begin, i);
        ck_assert_uint_eq(blocks[i].end, SIZE_MAX);
    }
}

TEST("edges", immense_recording) {
    static const int64_t size[] = {50, 0};

    small = record_sizes(2, size);
    large = record_sizes(SIZE_MAX, size);
    ck_status(tell(8, 0, 1), MT_EINVAL);
}

/* Host memory ran out while one of them was made. */
TEST_LOOP("edges", incomplete, 2) {
    ck_ok(counting_install());
    small = recording_of(2);
    counting_fail_at(_i == 0, 0);
    event(small, (void *)0x40, 100);
    large = recording_of(4);
    counting_fail_at(_i == 1, 0);
    event(large, (void *)0x40, 100);
    ck_refused(tell(8, 0, 2), MT_EINVAL, "incomplete");
    ck_assert_uint_eq(count, 0);
    free_recordings();
    ck_assert_uint_eq(counting_live(), 0);
}

/* Each request for host memory fails in turn: nothing is told and nothing kept; then the same as ever. */
TEST("edges", without_host_memory) {
    static const int64_t two[] = {100, 64, 0}, three[] = {200, 7777, 64, 0};
    mt_block expected[3];
    size_t n = 0, live;
    mt_status status;

    ck_ok(counting_install());
    small = record_sizes(2, two);
    large = record_sizes(4, three); /* of another shape, so that they are aligned */
    ck_ok(mt_recording_blocks(small, large, 8, 0, expected, 3, &count));
    live = counting_live();
    do {
        counting_fail_at(++n, 0);
        status = tell(8, 0, 3);
        ck_assert_uint_eq(counting_live(), live);
        ck_assert_uint_eq(count, status == MT_OK ? 3 : 0);
        if (status != MT_OK) ck_status(status, MT_ENOMEM);
        if (status != MT_OK) ck_contains(mt_last_error(), "out of host memory");
    } while (status != MT_OK && n < 100);
    ck_assert_uint_eq(n, 6); /* a list, partners, two orders, a table */
    ck_assert_mem_eq(blocks, expected, sizeof(expected));
    counting_fail_at(0, 0);
    free_recordings();
    ck_assert_uint_eq(counting_live(), 0);
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("blocks"), NULL, free_recordings);
    tcase_add_checked_fixture(suite_case_named("edges"), NULL, free_recordings);
    return suite_run_named("blocks");
}
