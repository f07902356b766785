/*
 * check_choose.c - what measured times of chunks tell, function by function; what a policy makes of it is in
 * check_policy_time.c.
 */
#include "choose.h"
#include "suite.h"

#include <math.h>

/* ---- runs of sizes ------------------------------------------------------------------------- */

struct run {
    size_t samples;
    double seconds;
};

static void note_runs(mt__timings *timings, const struct run *runs, size_t count) {
    for (size_t i = 0; i < count; i++) mt__timings_note(timings, runs[i].samples, runs[i].seconds);
}

static mt__timings timings_of(const struct run *runs, size_t count) {
    mt__timings timings = {.count = 0};

    note_runs(&timings, runs, count);
    return timings;
}

/* What a size of 16 is expected to take, between a first run of 4 and two runs of 32. */
static const struct {
    struct run runs[3];
    double expected;
} between_runs[] = {
    /* 0.9 x what 32 take a sample */
    {{{4, 0.020}, {32, 0.13}, {32, 0.10}}, 0.01125 + 12.0 / 28 * (0.10 - 0.01125)},
    {{{4, 0.040}, {32, 0.13}, {32, 0.10}}, 0.01125 + 12.0 / 28 * (0.10 - 0.01125)},
    {{{4, 0.060}, {32, 0.13}, {32, 0.10}}, 0.030 + 12.0 / 28 * (0.10 - 0.030)},
    {{{4, 0.060}, {32, 0.10}, {32, 0.10}}, 0.054 + 12.0 / 28 * (0.10 - 0.054)},
};

START_TEST(line_between) {
    mt__timings timings = timings_of(between_runs[_i].runs, LENGTH(between_runs[_i].runs));

    ck_assert_double_eq_tol(mt__chunk_seconds(&timings, 16), between_runs[_i].expected, 1e-9);
}
END_TEST

/* Runs in the first batch and after it, in their order; and what they tell. */
static const struct {
    struct run early[5], late[3];
    size_t largest_worth;
    double expected; /* of a chunk of 8 */
} told[] = {
    {{{0}}, {{0}}, SIZE_MAX, 0},
    {{{8, 1.0}}, {{0}}, 16, 0.9},                        /* nothing to compare with */
    {{{8, 1.0}, {8, 0.8}}, {{0}}, 16, 0.8},              /* in the first batch itself */
    {{{8, 1.0}, {8, 0.8}}, {{2, 1.0}}, 16, 0.9 * 0.8},   /* after it */
    {{{8, 1.0}, {8, 0.8}}, {{8, 0.8}}, 16, 0.8},         /* ran again */
    {{{8, 1.0}, {8, 0.8}, {16, 2.0}}, {{0}}, 32, 0.8},   /* first runs are no slower */
    {{{8, 1.0}, {8, 0.8}, {16, 2.1}}, {{0}}, 16, 0.8},   /* they are */
    {{{8, 1.0}, {16, 2.1}, {16, 1.0}}, {{0}}, 16, 0.45}, /* the second says nothing of it */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}, {16, 1.7}}, {{0}}, 16, 0.8}, /* second runs are */
    {{{8, 1.0}, {8, 0.8}, {16, 2.1}, {16, 1.6}}, {{0}}, 32, 0.8}, /* they are not */
    /* After the first batch twice the samples are to be 4 % faster, fewer no slower. */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{16, 1.54}, {8, 0.8}}, 16, 0.8},
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{16, 1.5}, {8, 0.8}}, 32, 0.8},
    {{{8, 1.0}, {8, 0.8}, {12, 1.4}}, {{12, 1.2}, {8, 0.8}}, 24, 0.8},
    {{{8, 1.0}, {8, 0.8}, {12, 1.4}}, {{12, 1.3}, {8, 0.8}}, 16, 0.8}, /* 8 may be doubled yet */
    {{{8, 1.0}, {8, 0.8}, {16, 2.0}}, {{16, 1.8}, {8, 0.8}}, 16, 0.8},
    /* A busy first run is no matter once a later one is as fast as the one run of a smaller size. */
    {{{3, 0.5}, {8, 4.0}}, {{8, 0.8}}, 16, 0.8},
    {{{3, 0.5}, {8, 4.0}}, {{8, 1.5}}, 8, 1.5},
    /* One run after the first batch does not lead to still larger sizes. */
    {{{8, 1.0}, {8, 0.8}}, {{8, 0.8}, {16, 1.5}}, 16, 0.8},
    /* Set-up is expected to be at most three fifths of a first run, however much another size had. */
    {{{4, 1.0}, {4, 0.5}, {8, 3.0}}, {{0}}, 8, 1.5},
    {{{4, 1.0}, {4, 0.1}, {8, 3.0}}, {{0}}, 8, 1.2},
    /* A size between two costs its set-up, once both are known. */
    {{{4, 1.0}, {12, 2.6}}, {{4, 0.8}, {12, 2.4}}, 12, 1.03 * 1.6},
    {{{4, 1.0}, {12, 2.6}}, {{4, 0.8}}, 12, 1.44},
    {{{4, 1.0}, {4, 0.8}, {12, 2.6}, {12, 2.4}}, {{0}}, 24, 1.6},
    {{{8, 1.0}, {8, 0.8}, {20, 3.0}}, {{0}}, 20, 0.8}, /* it has run already */
};

START_TEST(runs_tell) {
    mt__timings timings = {.count = 0};

    note_runs(&timings, told[_i].early, LENGTH(told[_i].early));
    if (told[_i].late[0].samples) mt__timings_next_batch(&timings);
    note_runs(&timings, told[_i].late, LENGTH(told[_i].late));
    ck_assert_uint_eq(mt__largest_worth(&timings), told[_i].largest_worth);
    ck_assert_double_eq_tol(mt__chunk_seconds(&timings, 8), told[_i].expected, 1e-12);
}
END_TEST

/* Runs in the first batch and after it; a batch, what is left of it and the sizes in question; and the answer. */
static const struct {
    struct run early[5], late[5];
    unsigned long batches; /* since the first */
    size_t batch, rest, chunks, least, most, again;
} again[] = {
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{0}}, 0, 64, 64, 8, 1, 64, 0}, /* still in the first batch */
    {{{8, 1.0}, {16, 1.9}, {32, 3.5}}, {{0}}, 1, 64, 64, 8, 1, 64, 0}, /* nothing to compare with */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{0}}, 1, 64, 64, 8, 1, 64, 16},
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}, {32, 3.5}}, {{0}}, 1, 64, 64, 8, 1, 64, 32}, /* the larger */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}, {32, 3.5}}, {{0}}, 1, 64, 64, 8, 1, 31, 16},
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}, {32, 3.5}}, {{0}}, 1, 64, 32, 4, 1, 32, 32}, /* the rest */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{0}}, 1, 64, 16, 2, 1, 64, 16},
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{0}}, 1, 64, 64, 8, 17, 64, 0}, /* too small */
    {{{4, 0.7}, {8, 1.0}, {8, 0.8}}, {{0}}, 1, 64, 64, 8, 1, 64, 4},   /* tells of growth */
    {{{3, 0.6}, {8, 1.0}, {8, 0.8}}, {{0}}, 1, 64, 63, 8, 1, 64, 0},   /* too small for that */
    {{{4, 0.7}, {8, 1.0}, {8, 0.8}}, {{0}}, 1, 68, 68, 9, 4, 64, 4},
    {{{4, 0.7}, {8, 1.0}, {8, 0.8}}, {{0}}, 1, 68, 68, 9, 5, 64, 0},    /* not legal */
    {{{4, 0.7}, {8, 1.0}, {8, 0.8}}, {{0}}, 1, 64, 64, 8, 1, 8, 0},     /* no room for that */
    {{{8, 1.0}, {8, 0.8}, {17, 1.9}}, {{0}}, 1, 64, 64, 8, 1, 64, 0},   /* leaves new sizes */
    {{{8, 1.0}, {8, 0.8}, {16, 6.0}}, {{0}}, 1, 64, 64, 8, 1, 64, 0},   /* a cliff */
    {{{8, 1.0}, {8, 0.8}, {16, 6.0}}, {{0}}, 90, 64, 64, 8, 1, 64, 16}, /* or memory that is new */
    {{{8, 1.0}, {8, 0.8}, {16, 4.4}}, {{0}}, 1, 64, 64, 8, 1, 64, 16},  /* within half a batch */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{16, 2.0}}, 1, 64, 64, 8, 1, 64, 0},  /* it has */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{16, 2.0}}, 3, 64, 64, 8, 1, 64, 0},  /* not yet */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{16, 2.0}}, 4, 64, 64, 8, 1, 64, 16}, /* once more */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{16, 1.5}}, 4, 64, 64, 4, 1, 64, 0},  /* the plan's own */
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{16, 2.0}, {16, 2.0}}, 15, 64, 64, 8, 1, 64, 0},
    {{{8, 1.0}, {8, 0.8}, {16, 1.9}}, {{16, 2.0}, {16, 2.0}}, 16, 64, 64, 8, 1, 64, 16},
    {{{8, 1.0}, {8, 0.8}, {16, 2.6}}, {{16, 2.5}}, 4, 64, 64, 8, 1, 64, 0}, /* no slope */
    {{{8, 1.0}, {8, 0.8}, {32, 4.6}}, {{32, 4.5}}, 4, 64, 64, 8, 1, 64, 0}, /* over an eighth */
};

START_TEST(sizes_run_again) {
    mt__timings timings = {.count = 0};

    note_runs(&timings, again[_i].early, LENGTH(again[_i].early));
    for (unsigned long i = 0; i < again[_i].batches; i++) mt__timings_next_batch(&timings);
    note_runs(&timings, again[_i].late, LENGTH(again[_i].late));
    ck_assert_uint_eq(mt__run_again(&timings, again[_i].batch, again[_i].rest, again[_i].chunks,
                                    again[_i].least, again[_i].most),
                      again[_i].again);
}
END_TEST

/* Only sizes that ran twice tell how fast a sample can be; a first run that took hardly longer had no set-up. */
static const struct {
    struct run runs[4];
    double rate;
    size_t fastest;
    double set_up, set_up_seconds;
} known[] = {
    {{{8, 1.0}}, 0, 0, 0, 0},
    {{{8, 1.0}, {8, 0.8}}, 0.1, 8, 0.8, 0.2},
    {{{8, 1.0}, {16, 0.8}, {8, 0.8}}, 0.1, 8, 0.8, 0.2},
    {{{8, 1.0}, {16, 0.8}, {8, 0.8}, {16, 0.7}}, 0.7 / 16, 16, 0.8, 0.1},
    {{{8, 1.0}, {8, 0.8}, {16, 3.0}, {16, 2.0}}, 0.1, 8, 2.0 / 3, 0.2},
    {{{8, 1.0}, {8, 0.99}}, 0.99 / 8, 8, 0.99, 0},
    {{{8, 1.0}, {8, 0.1}}, 0.1 / 8, 8, 0.4, 0.9},
};

START_TEST(sizes_are_known) {
    mt__timings timings = timings_of(known[_i].runs, LENGTH(known[_i].runs));

    ck_assert_double_eq_tol(timings.rate, known[_i].rate, 1e-12);
    ck_assert_uint_eq(timings.fastest, known[_i].fastest);
    ck_assert_double_eq_tol(timings.set_up, known[_i].set_up, 1e-12);
    ck_assert_double_eq_tol(timings.set_up_seconds, known[_i].set_up_seconds, 1e-12);
}
END_TEST

/* After a span of 16 runs and the first two only its own count: the least of them. */
START_TEST(old_runs_are_forgotten) {
    mt__timings timings = {.count = 0};

    mt__timings_note(&timings, 8, 0.1);
    for (int i = 0; i < 16; i++) mt__timings_note(&timings, 8, i == 7 ? 0.5 : 0.7);
    ck_assert_double_eq(mt__measured_seconds(&timings, 8), 0.1);
    mt__timings_note(&timings, 8, 0.7);
    ck_assert_double_eq(mt__measured_seconds(&timings, 8), 0.5);
}
END_TEST

/* Of more sizes than there is place for the largest stays though it ran least, since sizes grow from it. */
START_TEST(largest_is_not_dropped) {
    mt__timings timings = {.count = 0};

    for (size_t m = 1; m <= MT__TIMINGS; m++) {
        mt__timings_note(&timings, 2 * m, 1.0);
        if (m < MT__TIMINGS) mt__timings_note(&timings, 2 * m, 1.0);
    }
    mt__timings_note(&timings, 7, 1.0);
    ck_assert_uint_eq(timings.count, MT__TIMINGS);
    ck_assert_uint_eq(mt__largest_measured(&timings), 2 * MT__TIMINGS);
    ck_assert_double_gt(mt__measured_seconds(&timings, 7), 0);
}
END_TEST

/* Beyond the largest of all: on the line through two, and never less than the larger took. */
static const struct {
    struct run runs[2];
    size_t samples;
    double least;
} beyond[] = {
    {{{8, 1.0}}, 16, 0},
    {{{4, 1.0}, {8, 1.5}}, 16, 2.5},
    {{{4, 2.0}, {8, 1.5}}, 16, 1.5},
};

START_TEST(least_beyond) {
    mt__timings timings = timings_of(beyond[_i].runs, LENGTH(beyond[_i].runs));

    ck_assert_double_eq_tol(mt__least_seconds(&timings, beyond[_i].samples), beyond[_i].least,
                            1e-12);
}
END_TEST

/* A size below the floor, if it was faster a sample than all from there on. */
static const struct {
    struct run runs[4];
    size_t floor, smallest;
} floors[] = {
    {{{0}}, 8, 8},
    {{{2, 0.1}, {8, 1.0}}, 8, 2},
    {{{2, 0.3}, {8, 1.0}}, 8, 8},
    {{{2, 0.245}, {8, 1.0}}, 8, 8}, /* by 2 %: noise */
    {{{2, 0.1}, {8, 1.0}, {16, 0.7}}, 8, 8},
    {{{2, 0.3}, {4, 0.1}, {8, 1.0}}, 8, 4},
    {{{2, 0.1}, {8, 1.0}}, 16, 2}, /* nothing so large has run: the largest counts */
    {{{2, 0.3}, {8, 1.0}}, 16, 16},
};

START_TEST(smallest_worth) {
    mt__timings timings = timings_of(floors[_i].runs, LENGTH(floors[_i].runs));

    ck_assert_uint_eq(mt__smallest_worth(&timings, floors[_i].floor), floors[_i].smallest);
}
END_TEST

/* ---- numbers of chunks ---------------------------------------------------------------------- */

/* From the fewest chunks to the most, where the current number is kept unless another is clearly faster. */
static const struct {
    struct run runs[4];
    size_t samples, fewest, most, current, chunks;
} numbers[] = {
    {{{0}}, 64, 2, 9, 0, 2},
    {{{8, 1.0}, {8, 1.0}, {16, 1.98}, {16, 1.98}}, 64, 4, 8, 8, 8}, /* 1 %: noise */
    {{{8, 1.0}, {8, 1.0}, {16, 1.98}, {16, 1.98}}, 64, 4, 8, 0, 4},
    {{{8, 1.0}, {8, 1.0}, {16, 1.90}, {16, 1.90}}, 64, 4, 8, 8, 4},
    {{{4, 0.1}, {4, 0.1}, {8, 2.0}, {8, 2.0}}, 65, 9, 13, 0, 13}, /* the most are one candidate */
    {{{10, 1.0}, {10, 1.0}, {16, 3.0}, {16, 3.0}}, 70, 6, 10, 0, 7}, /* so is what ran */
    {{{4, 0.1}, {4, 0.1}, {8, 2.0}, {8, 2.0}}, 64, 9, 12, 0, 12},    /* too many chunks of 4 */
    {{{16, 0.1}, {16, 0.1}, {8, 2.0}, {8, 2.0}}, 64, 5, 8, 0, 5},    /* too few of 16 */
    {{{8, 1.0}, {8, 1.0}, {16, 2.0}, {16, 2.0}}, 64, 4, 8, 9, 4},    /* as fast, but not legal */
};

START_TEST(number_of_chunks) {
    mt__timings timings = timings_of(numbers[_i].runs, LENGTH(numbers[_i].runs));

    ck_assert_uint_eq(mt__choose_chunks(&timings, numbers[_i].samples, numbers[_i].fewest,
                                        numbers[_i].most, numbers[_i].current),
                      numbers[_i].chunks);
}
END_TEST

/* Of one size that ran, from least to most. */
static const struct {
    struct run runs[4];
    size_t samples, least, most, chunks;
    double seconds;
} measured[] = {
    {{{0}}, 64, 1, 64, 0, INFINITY},
    {{{8, 1.0}, {8, 1.0}, {16, 1.5}, {16, 1.5}}, 64, 1, 64, 4, 6.0},
    {{{8, 1.0}, {8, 1.0}, {16, 1.5}, {16, 1.5}}, 64, 1, 15, 8, 8.0},
    {{{8, 0.5}, {8, 0.5}, {16, 1.5}, {16, 1.5}}, 64, 1, 64, 8, 4.0},
    {{{8, 0.5}, {8, 0.5}, {16, 1.5}, {16, 1.5}}, 64, 9, 64, 4, 6.0},
    {{{8, 1.0}, {8, 1.0}, {16, 1.5}, {16, 1.5}}, 24, 1, 64, 3, 3.0}, /* no part of 16 */
    {{{8, 1.0}, {8, 1.0}, {16, 1.5}, {16, 1.5}}, 60, 1, 64, 0, INFINITY},
};

START_TEST(cut_as_measured) {
    mt__timings timings = timings_of(measured[_i].runs, LENGTH(measured[_i].runs));
    double seconds = 0;

    ck_assert_uint_eq(mt__cut_as_measured(&timings, measured[_i].samples, measured[_i].least,
                                          measured[_i].most, &seconds),
                      measured[_i].chunks);
    ck_assert(seconds == measured[_i].seconds || fabs(seconds - measured[_i].seconds) <= 1e-12);
}
END_TEST

static Suite *suite_choose(void) {
    Suite *suite = suite_create("choose");
    TCase *runs = suite_case(suite, "runs"), *chunks = suite_case(suite, "chunks");

    tcase_add_loop_test(runs, line_between, 0, LENGTH(between_runs));
    tcase_add_loop_test(runs, runs_tell, 0, LENGTH(told));
    tcase_add_loop_test(runs, sizes_run_again, 0, LENGTH(again));
    tcase_add_loop_test(runs, sizes_are_known, 0, LENGTH(known));
    tcase_add_test(runs, old_runs_are_forgotten);
    tcase_add_test(runs, largest_is_not_dropped);
    tcase_add_loop_test(runs, least_beyond, 0, LENGTH(beyond));
    tcase_add_loop_test(runs, smallest_worth, 0, LENGTH(floors));
    tcase_add_loop_test(chunks, number_of_chunks, 0, LENGTH(numbers));
    tcase_add_loop_test(chunks, cut_as_measured, 0, LENGTH(measured));
    return suite;
}

int main(void) {
    return suite_run(suite_choose());
}
