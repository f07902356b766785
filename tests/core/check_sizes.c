/*
 * check_sizes.c - what measured times of chunks tell: which size is to run next, and which is the fastest.
 */
#include "sizes.h"
#include "suite.h"
#include "tuned.h"

#include <math.h>

typedef struct run {
    uint64_t batch; /* in which it was; or one of those below */
    size_t samples;
    double seconds;
} run;

/* A size that ran in as many batches, from the first one on, as make it known; and in one less. */
enum { KNOWN = 1000, HARDLY_KNOWN = 1001 };

enum { RUNS = 12 };

static mt__sizes sizes_of(const run *runs, uint64_t batches) {
    mt__sizes sizes = {.count = 0};

    for (int i = 0; i < RUNS && runs[i].samples; i++) {
        uint64_t first = runs[i].batch, last = first;

        if (first >= KNOWN) last = first == KNOWN ? KNOWN_RUNS : KNOWN_RUNS - 1;
        if (first >= KNOWN) first = 1;
        for (sizes.batches = first; sizes.batches <= last; sizes.batches++)
            mt__sizes_note(&sizes, runs[i].samples, runs[i].seconds);
    }
    sizes.batches = batches;
    return sizes;
}

/* ---- what is measured --------------------------------------------------------------------------- */

/* The least of the last eight runs. */
static const struct {
    run runs[RUNS];
    double of_8;
} measured[] = {
    {{{1, 4, 1}}, 0},
    {{{1, 8, 1}}, 1},
    {{{1, 8, 1}, {1, 8, 0.8}}, 0.8},
    {{{1, 8, 0.8}, {1, 8, 1}}, 0.8},
    {{{1, 8, 9}, {1, 8, 0.8}, {2, 8, 0.9}, {3, 8, 7}}, 0.8},
    {{{1, 8, 4}, {1, 8, 4}, {2, 8, 3}, {2, 4, 9}, {2, 8, 2}, {2, 8, 1}, {3, 8, 3}}, 1},
    /* The first two are forgotten. */
    {{{1, 8, 1},
      {1, 8, 1},
      {2, 8, 3},
      {3, 8, 3},
      {4, 8, 3},
      {5, 8, 3},
      {6, 8, 3},
      {7, 8, 3},
      {8, 8, 3},
      {9, 8, 4}},
     3},
};

TEST_LOOP("runs", runs_are_measured, LENGTH(measured)) {
    mt__sizes sizes = sizes_of(measured[_i].runs, 1);

    ck_assert_double_eq_tol(mt__sizes_measured(&sizes, 8), measured[_i].of_8, 1e-12);
    ck_assert_double_eq(mt__sizes_measured(&sizes, 7), 0);
}

/* Whatever the order, sizes ascend; where there is no place for another, the one that did not run for longest is forgotten. */
TEST_LOOP("runs", a_full_table, 3) {
    mt__sizes sizes = {.count = 0};

    for (size_t i = 1; i <= MT__SIZES; i++) {
        size_t samples = 100 + (i * 13) % MT__SIZES;

        sizes.batches = samples == 105 ? 1 : 1 + i;
        mt__sizes_note(&sizes, samples, 1);
    }
    mt__sizes_note(&sizes, 50 + 100 * (size_t)_i, 2); /* below all, among them, above them */
    ck_assert_uint_eq(sizes.count, MT__SIZES);
    for (size_t i = 1; i < sizes.count; i++)
        ck_assert_uint_lt(sizes.entry[i - 1].samples, sizes.entry[i].samples);
    ck_assert_double_eq(mt__sizes_measured(&sizes, 105), 0);
    ck_assert_double_eq(mt__sizes_measured(&sizes, 104), 1);
    ck_assert_double_eq(mt__sizes_measured(&sizes, 50 + 100 * (size_t)_i), 2);
}

/* ---- what is expected --------------------------------------------------------------------------- */

/* Seconds of a batch in so many chunks. */
static const struct {
    run runs[RUNS];
    uint64_t batches;
    size_t samples, chunks;
    double expected;
} batches[] = {
    {{{0}}, 1, 8, 1, 0},
    {{{1, 8, 1}}, 1, 8, 1, 1},
    {{{1, 8, 1}}, 1, 24, 3, 3},
    {{{1, 8, 1}}, 1, 4, 1, 0.5}, /* in proportion, below and above */
    {{{1, 8, 1}}, 1, 16, 1, 2},
    {{{1, 8, 1}, {1, 16, 3}}, 1, 12, 1, 2}, /* on a line */
    {{{1, 8, 1}, {1, 16, 3}}, 1, 23, 2, 1.75 + 2},
    {{{1, 8, 1}, {1, 16, 3}}, 1, 2, 1, 0.25},
    {{{1, 8, 1}, {1, 16, 3}}, 1, 32, 1, 6},
    /* A size that ran once tells nothing where one ran again, and of itself the most that it takes. */
    {{{1, 8, 2}, {KNOWN, 16, 3}}, 1, 8, 1, 1.5},
    {{{1, 8, 1}, {KNOWN, 16, 3}}, 1, 8, 1, 1},
    {{{KNOWN, 8, 1}, {1, 16, 3}}, 1, 16, 1, 2},
    {{{KNOWN, 8, 1}, {1, 12, 9}, {KNOWN, 16, 3}}, 1, 12, 1, 2},
};

TEST_LOOP("runs", seconds_of_batches, LENGTH(batches)) {
    mt__sizes sizes = sizes_of(batches[_i].runs, batches[_i].batches);

    ck_assert_double_eq_tol(
        mt__sizes_batch_seconds(&sizes, batches[_i].samples, batches[_i].chunks),
        batches[_i].expected, 1e-12);
}

/* ---- the next size ------------------------------------------------------------------------------ */

/* Three sizes, of which the smallest took so long; the others 0.025 seconds a sample. */
#define DOWN_TO_16(seconds)                                                                        \
    {KNOWN, 16, seconds}, {KNOWN, 32, 0.8}, {                                                      \
        KNOWN, 64, 1.6                                                                             \
    }

/* A size that is so many samples larger than one of which four are the part that makes no other size. */
#define NEAR(more) (4 * NEARLY + (more))

static const struct {
    run runs[RUNS];
    uint64_t batches;
    mt__bounds bounds; /* least, top, left, alone, even, legal */
    size_t rest, last, next;
} nexts[] = {
    /* From the smallest candidate on, doubled. */
    {{{0}}, 1, {4, 16, 1, 0, 0, 1}, 64, 0, 4},
    {{{0}}, 1, {5, 32, 1, 0, 0, 1}, 64, 0, 8},
    {{{0}}, 1, {5, 5, 1, 0, 0, 1}, 64, 0, 5},
    {{{0}}, 1, {1, 1, 1, 0, 0, 1}, 64, 0, 1},
    {{{1, 2, 0.1}}, 1, {8, 32, 1, 0, 0, 1}, 62, 2, 8}, /* however much smaller the recording was */
    {{{1, 4, 0.1}}, 1, {4, 32, 1, 0, 0, 1}, 60, 4, 8},
    {{{1, 4, 0.1}, {1, 8, 0.2}}, 1, {4, 64, 1, 0, 0, 1}, 52, 8, 16},
    {{{1, 32, 1}}, 1, {4, 40, 1, 0, 0, 1}, 100, 32, 40}, /* the largest is no power */
    {{{1, 4, 0.1}, {1, 8, 0.2}},
     1,
     {4, 64, 1, 0, 0, 1},
     10,
     8,
     0}, /* it is too large for the rest */
    {{{1, 4, 0.1}, {1, 8, 0.2}}, 1, {4, 64, 8, 0, 0, 1}, 20, 8, 0},  /* or leaves too little */
    {{{1, 4, 0.1}, {1, 8, 0.2}}, 1, {4, 64, 8, 0, 0, 1}, 16, 8, 16}, /* or nothing */
    {{{1, 4, 0.1}, {1, 8, 0.2}}, 1, {4, 64, 8, 0, 0, 1}, 24, 8, 16},
    {{{0}}, 1, {64, 64, 42, 0, 0, 42}, 142, 0, 0}, /* or what is one chunk that does not fit: 78 */
    {{{0}}, 1, {64, 64, 42, 0, 0, 42}, 148, 0, 64},
    /* Below a share of the largest, where the one above is known and is no slower than all above it. */
    {{{0}}, 1, {1, 64, 1, 0, 0, 1}, 64, 0, 64 / SMALLEST_SHARE},
    {{DOWN_TO_16(0.4)}, KNOWN_RUNS, {1, 64, 1, 0, 0, 1}, 64, 0, 8},
    {{DOWN_TO_16(0.43)}, KNOWN_RUNS, {1, 64, 1, 0, 0, 1}, 64, 0, 0},
    {{DOWN_TO_16(0.4)}, KNOWN_RUNS, {9, 64, 1, 0, 0, 1}, 64, 0, 0}, /* but no less than the least */
    {{DOWN_TO_16(0.4), {KNOWN, 8, 0.2}}, KNOWN_RUNS, {1, 64, 1, 0, 0, 1}, 64, 0, 4},
    {{DOWN_TO_16(0.4), {KNOWN, 8, 0.22}}, KNOWN_RUNS, {1, 64, 1, 0, 0, 1}, 64, 0, 0},
    {{{KNOWN, 16, 0.4}, {HARDLY_KNOWN, 32, 0.8}, {KNOWN, 64, 1.6}},
     KNOWN_RUNS,
     {1, 64, 1, 0, 0, 1},
     64,
     0,
     32}, /* not all are known */
    {{{KNOWN, 16, 0.4}, {KNOWN, 32, CLIFF * 0.81}},
     KNOWN_RUNS,
     {1, 64, 1, 0, 0, 1},
     64,
     0,
     8}, /* beyond a cliff none is to be */
    {{{KNOWN, 16, 0.4}, {KNOWN, 32, 0.8}}, KNOWN_RUNS, {1, 64, 1, 0, 0, 1}, 100, 0, 64}, /* first */
    {{{KNOWN, 16, 0.4}, {KNOWN, 32, 0.8}}, KNOWN_RUNS, {1, 64, 40, 0, 0, 1}, 100, 0, 8}, /* never */
    /* A cliff, and what is none. */
    {{{1, 4, 0.1}, {1, 8, CLIFF * 0.2 + 0.01}}, 1, {4, 64, 1, 0, 0, 1}, 52, 8, 0},
    {{{1, 4, 0.1}, {1, 8, CLIFF * 0.2 - 0.01}}, 1, {4, 64, 1, 0, 0, 1}, 52, 8, 16},
    {{{1, 8, 0.2}, {1, 12, 3}},
     2,
     {4, 16, 1, 0, 0, 1},
     52,
     8,
     16}, /* of a size that does not run again */
    /* A spike in a first run: it runs again, larger ones do not until then. */
    {{{1, 4, 0.1}, {1, 8, CLIFF * 0.3}}, 2, {4, 32, 1, 0, 0, 1}, 60, 4, 8},
    {{{1, 4, 0.1}, {2, 8, CLIFF * 0.3}}, 2, {4, 64, 1, 0, 0, 1}, 52, 8, 0},
    {{{1, 4, 0.1}, {1, 8, CLIFF * 0.3}, {2, 8, 0.2}}, 3, {4, 64, 1, 0, 0, 1}, 52, 8, 16},
    /* Each until it is known. */
    {{{1, 4, 0.1}, {1, 8, 0.2}, {1, 16, 0.4}}, 2, {4, 16, 1, 0, 0, 1}, 64, 0, 4},
    {{{1, 4, 0.1}, {1, 8, 0.2}, {1, 16, 0.4}}, 2, {4, 64, 1, 0, 0, 1}, 36, 16, 32},
    {{{1, 4, 0.1}, {1, 8, 0.2}, {1, 16, 0.4}}, 2, {4, 64, 12, 0, 0, 1}, 36, 16, 0}, /* 32 leave 4 */
    {{{KNOWN, 8, 0.2}, {HARDLY_KNOWN, 16, 0.4}}, KNOWN_RUNS, {8, 16, 1, 0, 0, 1}, 64, 0, 16},
    {{{KNOWN, 8, 0.2}, {KNOWN, 16, 0.4}}, KNOWN_RUNS, {8, 16, 1, 0, 0, 1}, 64, 0, 0}, /* all are */
    /* And again after RERUN_AFTER times as many batches as when they ran last, if they are not much slower. */
    {{{KNOWN, 8, 0.2}}, RERUN_AFTER *KNOWN_RUNS, {8, 8, 1, 0, 0, 1}, 64, 0, 0},
    {{{KNOWN, 8, 0.2}}, RERUN_AFTER *KNOWN_RUNS + 1, {8, 8, 1, 0, 0, 1}, 64, 0, 8},
    {{{KNOWN, 8, 0.2}, {KNOWN_RUNS + 1, 8, 0.2}},
     RERUN_AFTER *(KNOWN_RUNS + 1),
     {8, 8, 1, 0, 0, 1},
     64,
     0,
     0},
    {{{KNOWN, 8, 0.2}, {RERUN_AFTER * KNOWN_RUNS - 1, 8, 0.2}, {KNOWN, 16, CLIFF * 0.39}},
     RERUN_AFTER *KNOWN_RUNS + 1,
     {8, 16, 1, 0, 0, 1},
     64,
     0,
     16},
    {{{KNOWN, 8, 0.2}, {RERUN_AFTER * KNOWN_RUNS - 1, 8, 0.2}, {KNOWN, 16, CLIFF * 0.41}},
     RERUN_AFTER *KNOWN_RUNS + 1,
     {8, 16, 1, 0, 0, 1},
     64,
     0,
     0},
    /* A size that is hardly another than one that is known is known. */
    {{{KNOWN, NEAR(0), 1}}, KNOWN_RUNS, {NEAR(-2), NEAR(-2), 1, 0, 0, 1}, NEARLY * 8, 0, 0},
    {{{KNOWN, NEAR(0), 1}}, KNOWN_RUNS, {NEAR(3), NEAR(3), 1, 0, 0, 1}, NEARLY * 9, 0, 0},
    {{{KNOWN, NEAR(0), 1}}, KNOWN_RUNS, {NEAR(-4), NEAR(-4), 1, 0, 0, 1}, NEARLY * 8, 0, NEAR(-4)},
    {{{HARDLY_KNOWN, NEAR(0), 1}},
     KNOWN_RUNS,
     {NEAR(-2), NEAR(-2), 1, 0, 0, 1},
     NEARLY * 8,
     0,
     NEAR(-2)},
    /* Chunks of one size: 16 of 43 are 15. */
    {{{0}}, 1, {8, 32, 1, 0, 43, 1}, 43, 0, 8},
    {{{KNOWN, 8, 0.2}}, KNOWN_RUNS + 1, {8, 40, 1, 0, 43, 1}, 43, 0, 15},
    {{{KNOWN, 8, 0.2}, {KNOWN, 15, 0.2}}, KNOWN_RUNS + 1, {8, 40, 1, 0, 43, 1}, 43, 0, 22},
    {{{KNOWN, 8, 0.2}, {KNOWN, 15, CLIFF * 0.6}}, KNOWN_RUNS + 1, {8, 40, 1, 0, 43, 1}, 43, 0, 0},
    /* But no smaller than is legal: 59 in eights are 8 chunks, of which 5 have 7. */
    {{{0}}, 1, {8, 32, 1, 0, 59, 8}, 59, 0, 9},
    /* What is known before any batch was planned, as in a kind that begins within a step, is known. */
    {{{0, 4, 0.1}, {0, 4, 0.1}, {0, 4, 0.1}}, 0, {4, 4, 1, 0, 0, 1}, 64, 0, 0},
    /* One that fits as the only chunk of its batch. */
    {{{KNOWN, 64, 1}}, KNOWN_RUNS, {64, 64, 1, 96, 0, 1}, 96, 0, 96},
    {{{KNOWN, 64, 1}}, KNOWN_RUNS, {64, 64, 1, 48, 0, 1}, 96, 0, 0},
    {{{KNOWN, 64, 1}, {KNOWN, 96, 1}}, KNOWN_RUNS, {64, 64, 1, 96, 0, 1}, 96, 0, 0},
};

TEST_LOOP("choice", the_next_size, LENGTH(nexts)) {
    mt__sizes sizes = sizes_of(nexts[_i].runs, nexts[_i].batches);

    ck_assert_uint_eq(mt__sizes_next(&sizes, &nexts[_i].bounds, nexts[_i].rest, nexts[_i].last),
                      nexts[_i].next);
}

/* ---- one that ran ------------------------------------------------------------------------------- */

static const struct {
    run runs[RUNS];
    mt__bounds bounds;
    size_t samples, size;
} rans[] = {
    {{{0}}, {4, 64, 1, 0, 0, 1}, 64, 0},
    {{{1, 8, 1}}, {4, 64, 1, 0, 0, 1}, 64, 8},
    {{{1, 8, 1}, {1, 16, 1.9}, {1, 32, 4}}, {4, 64, 1, 0, 0, 1}, 60, 16},
    {{{1, 8, 1}, {1, 16, 2}}, {4, 64, 1, 0, 0, 1}, 60, 16}, /* the larger of two as fast */
    {{{1, 8, 1}, {1, 16, 1}}, {4, 15, 1, 0, 0, 1}, 60, 8},  /* no larger than fits */
    {{{1, 8, 1}, {1, 16, 9}}, {9, 64, 1, 0, 0, 1}, 60, 16}, /* nor smaller than the least */
    /* What is left is legal. */
    {{{1, 8, 1}, {1, 16, 1}}, {4, 64, 4, 0, 0, 1}, 36, 16},
    {{{1, 8, 1}, {1, 16, 1}}, {4, 64, 5, 0, 0, 1}, 36, 0},
    {{{1, 8, 1}, {1, 16, 1}}, {4, 64, 5, 0, 0, 1}, 40, 16},
    {{{1, 8, 1}, {1, 16, 1}}, {4, 64, 9, 0, 0, 1}, 40, 8},
    {{{1, 8, 1}, {1, 16, 1}}, {4, 64, 9, 0, 0, 1}, 48, 16},
};

TEST_LOOP("choice", the_fastest_that_ran, LENGTH(rans)) {
    mt__sizes sizes = sizes_of(rans[_i].runs, 1);

    ck_assert_uint_eq(mt__sizes_that_ran(&sizes, &rans[_i].bounds, rans[_i].samples),
                      rans[_i].size);
}

/* ---- the fastest -------------------------------------------------------------------------------- */

static const struct {
    run runs[RUNS];
    mt__bounds bounds;
    size_t samples, chunks;
} fastests[] = {
    {{{0}}, {4, 64, 1, 0, 0, 1}, 64, 1}, /* nothing was measured: the fewest */
    {{{0}}, {4, 40, 1, 0, 0, 1}, 64, 2},
    {{{1, 8, 1}}, {4, 64, 1, 0, 0, 1}, 64, 1}, /* no slower in one */
    {{{1, 8, 1}}, {4, 40, 1, 0, 0, 1}, 64, 2},
    {{{1, 8, 1}, {1, 64, 7}}, {4, 64, 1, 0, 0, 1}, 64, 1},
    {{{1, 8, 1}, {1, 64, 9}}, {4, 64, 1, 0, 0, 1}, 64, 8},
    {{{1, 8, 1}, {1, 16, 1.5}, {1, 64, 9}}, {4, 64, 1, 0, 0, 1}, 64, 4},
    {{{1, 8, 1}, {1, 16, 1.5}, {1, 64, 9}}, {4, 64, 1, 0, 0, 1}, 24, 2}, /* balanced: two of 12 */
    {{{1, 8, 1}, {1, 64, 9}}, {10, 64, 1, 0, 0, 1}, 64, 6}, /* none smaller than the least */
    {{{1, 8, 1}, {1, 64, 9}}, {80, 80, 1, 0, 0, 1}, 64, 1},
    /* What set a size up does not speak against its neighbours. */
    {{{KNOWN, 16, 20}, {1, 18, 32}, {KNOWN, 22, 26}}, {4, 22, 1, 0, 0, 1}, 64, 3},
    {{{KNOWN, 16, 20}, {1, 18, 32}, {2, 18, 32}, {KNOWN, 22, 26}}, {4, 22, 1, 0, 0, 1}, 64, 4},
    /* What ran does not fit any more, or alone. */
    {{{1, 32, 4}, {1, 64, 7}}, {4, 40, 1, 0, 0, 1}, 64, 2},
    {{{1, 32, 4}, {1, 64, 7}}, {4, 40, 1, 64, 0, 1}, 64, 1},
    {{{1, 32, 4}, {1, 64, 9}}, {4, 40, 1, 64, 0, 1}, 64, 2},
};

TEST_LOOP("choice", the_fastest, LENGTH(fastests)) {
    mt__sizes sizes = sizes_of(fastests[_i].runs, 1);

    ck_assert_uint_eq(mt__sizes_fastest(&sizes, &fastests[_i].bounds, fastests[_i].samples),
                      fastests[_i].chunks);
}

SUITE("sizes")
