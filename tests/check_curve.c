/*
 * check_curve.c - what recordings of chunks say of other sizes: the range of sizes that takes the same
 * kernels, where the next one begins, and both peaks of chunks whose gradients are handed over.
 */
#include "curve.h"
#include "counting_allocator.h"
#include "suite.h"

static const mt__kind training = {MT_TRAIN, 0, 0};

/* change: the size from which on kernels are said to be others. */
static mt__curve *curve_told(size_t change) {
    mt__curve *curve = mt__curve_new(&training, change);

    ck_assert_ptr_nonnull(curve);
    return curve;
}

static mt__curve *curve_new(void) {
    return curve_told(0);
}

/* A block is taken and dies; gradient: it is handed over before that, where chunks are apart later. */
static void event(mt_recording *recording, uintptr_t address, int64_t bytes) {
    mt_recording_event(recording, (void *)address, bytes);
}

/* Kernels of sizes from here on need other memory. */
#define CHANGE 16
#define GRADIENT 500

/* Bytes of the activations of m samples. */
static size_t activations(size_t m) {
    return m < CHANGE ? 1000 + 100 * m : 1200 + 110 * m;
}

/* The peak of m samples, which comes when activations and gradient are there; or in all, apart. */
static size_t peak(size_t m, int apart) {
    size_t backward = activations(m) + GRADIENT, update = GRADIENT + 10 * m + 900;

    return apart && update + GRADIENT > backward ? update + GRADIENT : backward;
}

/*
 * A chunk of m samples as it runs one way: activations, a gradient, and another gradient when the
 * activations are gone. handed: the sink is told of them.
 */
static void fill(mt_recording *recording, size_t m, int apart, int handed) {
    event(recording, 0x100, (int64_t)activations(m));
    event(recording, 0x200, GRADIENT);
    if (handed) event(recording, 0x200, 0);
    if (!apart) event(recording, 0x200, -GRADIENT);
    event(recording, 0x100, -1);
    event(recording, 0x300, (int64_t)(900 + 10 * m));
    event(recording, 0x400, GRADIENT);
    if (handed) event(recording, 0x400, 0);
    event(recording, 0x400, -GRADIENT);
    event(recording, 0x300, -1);
    if (apart) event(recording, 0x200, -1);
}

/* Runs a chunk as a policy does; returns whether it was recorded. */
static int run(mt__curve *curve, size_t m, int keep, int handed) {
    mt_recording *recording = mt__curve_record(curve, m);

    if (recording != NULL) fill(recording, m, keep, handed);
    mt__curve_learn(curve, keep, m, peak(m, keep));
    return recording != NULL;
}

/* ---- both peaks ------------------------------------------------------------------------------- */

START_TEST(both_peaks_from_one_recording) {
    int keep = _i & 1, handed = _i >> 1;
    mt__curve *curve = curve_new();

    ck_assert(!mt__curve_is_recorded(curve, 0));
    ck_assert(run(curve, 2, keep, handed));
    ck_assert(run(curve, 4, keep, handed));
    ck_assert_int_eq(mt__curve_is_recorded(curve, 0), !keep || handed);
    ck_assert_int_eq(mt__curve_is_recorded(curve, 1), handed);
    for (size_t m = 2; m < CHANGE; m++) {
        if (!keep || handed) ck_assert_uint_eq(mt__curve_predict(curve, 0, m), peak(m, 0));
        if (handed) ck_assert_uint_eq(mt__curve_predict(curve, 1, m), peak(m, 1));
    }
    mt__curve_free(curve);
}
END_TEST

/* One that is handed over twice, or not known, is no other block. */
START_TEST(handed_over_once) {
    mt_recording *recording;

    ck_ok(mt_recording_new(&recording));
    event(recording, 0x100, 0);
    mt__recording_restart(recording, 2);
    event(recording, 0x100, 0);
    event(recording, 0x100, 64);
    event(recording, 0x100, 0);
    event(recording, 0x100, 0);
    event(recording, 0x200, 0);
    event(recording, 0x200, 32);
    ck_assert_uint_eq(recording->handed_over, 1);
    ck_assert_uint_eq(mt__recording_peak(recording, 0), 64);
    ck_assert_uint_eq(mt__recording_peak(recording, 1), 96);
    mt_recording_free(recording);
}
END_TEST

/* ---- ranges ------------------------------------------------------------------------------------ */

/* Sizes that run one after the other, whether each is recorded, and what is predicted then. */
typedef struct expected {
    size_t run;
    int recorded;
    size_t ranges;
    size_t exact_from, exact_to; /* sizes predicted to the byte afterwards; 0: none but those run */
} expected;

static const expected runs[][8] = {
    {{2, 1, 1, 0, 0}, {2, 0, 1, 0, 0}, {4, 1, 1, 2, 15}, {3, 0, 1, 2, 15}, {8, 1, 1, 2, 15}},
    {{4, 1, 1, 0, 0}, {2, 1, 1, 2, 15}, {12, 1, 1, 2, 15}, {8, 0, 1, 2, 15}},
    /* Two of the larger sizes make a range of their own. */
    {{2, 1, 1, 0, 0},
     {4, 1, 1, 2, 15},
     {16, 1, 2, 2, 15},
     {16, 0, 2, 2, 15},
     {32, 1, 2, 2, 400},
     {64, 1, 2, 2, 400},
     {50, 0, 2, 2, 400}},
    /* The upper range comes down to where it begins. */
    {{2, 1, 1, 0, 0},
     {4, 1, 1, 2, 15},
     {40, 1, 2, 2, 15},
     {80, 1, 2, 2, 15},
     {20, 1, 2, 2, 15},
     {16, 1, 2, 2, 400}},
    /* The lower one goes up, also while the upper one waits for its second size. */
    {{2, 1, 1, 0, 0},
     {4, 1, 1, 2, 15},
     {64, 1, 2, 2, 15},
     {8, 1, 2, 2, 15},
     {8, 0, 2, 2, 15},
     {32, 1, 2, 2, 15},
     {128, 1, 2, 2, 15}},
};

START_TEST(ranges_follow_the_kernels) {
    mt__curve *curve = curve_new();

    for (const expected *e = runs[_i]; e < runs[_i] + 8 && e->run > 0; e++) {
        ck_assert_int_eq(run(curve, e->run, 0, 1), e->recorded);
        ck_assert_uint_eq(curve->ranges, e->ranges);
        ck_assert_uint_ge(mt__curve_predict(curve, 0, e->run), peak(e->run, 0));
        ck_assert_uint_le(mt__curve_predict(curve, 0, e->run), peak(e->run, 0) + 1);
        for (size_t m = e->exact_from; m > 0 && m <= e->exact_to; m++)
            for (int keep = 0; keep < 2; keep++)
                ck_assert_uint_eq(mt__curve_predict(curve, keep, m), peak(m, keep));
    }
    mt__curve_free(curve);
}
END_TEST

/* The largest that fits is the last of which the prediction says so, whatever range that is in. */
START_TEST(largest_agrees_with_predict) {
    mt__curve *curve = curve_told(_i ? CHANGE : 0);
    const size_t sizes[] = {2, 4, 16, 32};

    for (int i = 0; i < LENGTH(sizes); i++) {
        (void)run(curve, sizes[i], 0, 1);
        for (size_t room = 1; room < 12000; room += 37)
            for (int keep = 0; keep < 2; keep++) {
                size_t m = mt__curve_largest(curve, keep, room);
                size_t first = mt__curve_before(curve, m); /* that has to fit, then */

                if (m > 0)
                    ck_assert_uint_le(mt__curve_predict(curve, keep, first ? first : m), room);
                if (!first) ck_assert_uint_gt(mt__curve_predict(curve, keep, m + 1), room);
            }
    }
    mt__curve_free(curve);
}
END_TEST

/* Sizes that run where the change is told; what is to run before so many samples, and how many ranges there are. */
static const struct {
    size_t run, before15, before16, before40, before400, ranges;
    int told40; /* whether that is no guess */
} told[][6] = {
    {{2, 0, 4, 4, 4, 1, 0},
     {4, 0, 16, 16, 16, 1, 0},
     {16, 0, 0, 32, 32, 2, 0},
     {32, 0, 0, 0, 0, 2, 1}},
    {{4, 0, 8, 8, 8, 1, 0},
     {8, 0, 16, 16, 16, 1, 0},
     {20, 0, 0, 0, 40, 2, 0},
     {30, 0, 0, 0, 0, 2, 1}},
    {{12, 0, 16, 16, 16, 1, 0},
     {24, 0, 0, 0, 48, 2, 0},
     {48, 0, 0, 0, 0, 2, 1}}, /* the first two differ */
    {{8, 0, 16, 16, 16, 1, 0},
     {16, 0, 0, 32, 32, 2, 0},
     {32, 0, 0, 0, 0, 2, 1}},                         /* so they do where one is the size itself */
    {{20, 0, 0, 0, 0, 1, 0}, {40, 0, 0, 0, 0, 1, 1}}, /* all are of the larger kernels */
};

START_TEST(a_change_is_told) {
    mt__curve *curve = curve_told(CHANGE);

    ck_assert_uint_eq(mt__curve_before(curve, 400), 0);
    for (size_t i = 0; i < LENGTH(told[_i]) && told[_i][i].run; i++) {
        ck_assert(run(curve, told[_i][i].run, 0, 1));
        ck_assert_uint_eq(mt__curve_before(curve, 15), told[_i][i].before15);
        ck_assert_uint_eq(mt__curve_before(curve, 16), told[_i][i].before16);
        ck_assert_uint_eq(mt__curve_before(curve, 40), told[_i][i].before40);
        ck_assert_uint_eq(mt__curve_before(curve, 400), told[_i][i].before400);
        ck_assert_uint_eq(curve->ranges, told[_i][i].ranges);
        /* With what a chunk that is to run first may need more. */
        if (told[_i][i].before16) {
            const mt_memory_model *model = curve->range[0].model[0];
            size_t bytes = mt_memory_model_peak(model, 64), fixed = mt_memory_model_peak(model, 1);

            ck_assert_uint_eq(mt__curve_predict(curve, 0, 64), bytes + (bytes - fixed) / 32);
            ck_assert(!mt__curve_rules_out(curve, 64, 1)); /* nor is it ruled out */
        }
        ck_assert_int_eq(mt__curve_is_told(curve, 0, 40), told[_i][i].told40);
        ck_assert_int_eq(mt__curve_is_bound(curve, 40), i == 0); /* in proportion to the only one */
    }
    for (size_t m = 40; m < 400; m++) ck_assert_uint_eq(mt__curve_predict(curve, 0, m), peak(m, 0));
    mt__curve_free(curve);
}
END_TEST

/* Of one sample two and four say little: its own last peak counts, each way, and is no correction of theirs. */
START_TEST(one_sample) {
    mt__curve *curve = curve_new();

    ck_assert(!mt__curve_is_told(curve, 0, 1)); /* nor is anything else */
    (void)run(curve, 2, 0, 1);
    (void)run(curve, 4, 0, 1);
    for (int keep = 0; keep < 2; keep++) {
        ck_assert(!mt__curve_is_told(curve, keep, 1));
        ck_assert(mt__curve_is_told(curve, keep, 2));
        ck_assert_uint_eq(mt__curve_predict(curve, keep, 1), peak(1, keep));
        for (size_t bytes = 9000; bytes > 40; bytes /= 8) {
            mt__curve_learn(curve, keep, 1, bytes);
            ck_assert(mt__curve_is_told(curve, keep, 1));
            ck_assert_uint_eq(mt__curve_predict(curve, keep, 1), bytes);
            ck_assert_uint_eq(mt__curve_predict(curve, keep, 2), peak(2, keep));
        }
    }
    mt__curve_free(curve);
    curve = curve_new(); /* recorded itself, it is a size like any */
    (void)run(curve, 1, 0, 1);
    for (int keep = 0; keep < 2; keep++) ck_assert(mt__curve_is_told(curve, keep, 1));
    mt__curve_free(curve);
}
END_TEST

/* Of kernels that one size was recorded of, that and what is below are no guess. */
START_TEST(no_guess_below_a_recording) {
    mt__curve *curve = curve_new();

    for (size_t m = 2; m <= 4; m += 2) (void)run(curve, m, 0, 1);
    (void)run(curve, 20, 0, 1);
    ck_assert_uint_eq(curve->ranges, 2);
    ck_assert(mt__curve_is_told(curve, 0, 15));
    ck_assert(mt__curve_is_told(curve, 0, 20));
    ck_assert(!mt__curve_is_told(curve, 0, 21));
    mt__curve_free(curve);
}
END_TEST

/* A third size after 2 and 4 of 100,000 bytes a sample: as many more or less are of other kernels. */
START_TEST(predicted_within_a_1024th) {
    static const struct {
        int off;
        size_t ranges;
    } rows[] = {{0, 1}, {781, 1}, {782, 2}, {-781, 1}, {-782, 2}};
    mt__curve *curve = curve_new();

    for (size_t m = 2; m <= 8; m *= 2) {
        int64_t bytes = 100000 * (int64_t)m + (m == 8 ? rows[_i].off : 0);

        event(mt__curve_record(curve, m), 0x100, bytes);
        mt__curve_learn(curve, 0, m, 0);
    }
    ck_assert_uint_eq(curve->ranges, rows[_i].ranges);
    mt__curve_free(curve);
}
END_TEST

/* Kernels that change all the time: there are no more ranges than there is place for. */
START_TEST(ranges_are_full) {
    mt__curve *curve = curve_told(_i ? (size_t)1 << 19 : 0);

    for (size_t m = 2; m < ((size_t)1 << 20); m *= 2) {
        mt_recording *recording = mt__curve_record(curve, m);

        ck_assert_ptr_nonnull(recording);
        event(recording, 0x100, (int64_t)(m * m));
        mt__curve_learn(curve, 0, m, m * m);
        ck_assert_uint_ge(mt__curve_predict(curve, 0, m), m * m);
    }
    ck_assert_uint_eq(curve->ranges, MT__RANGES);
    ck_assert_uint_eq(mt__curve_before(curve, (size_t)1 << 19), 0); /* also where that is told */
    ck_assert_uint_eq(mt__curve_largest(curve, 0, SIZE_MAX), SIZE_MAX);
    mt__curve_free(curve);
}
END_TEST

/* While one recording speaks for all larger sizes, nothing is ruled out by it. */
START_TEST(one_recording_rules_nothing_out) {
    mt__curve *curve = curve_new();

    ck_assert(!mt__curve_rules_out(curve, 2, 1));
    (void)run(curve, 2, 0, 1);
    ck_assert(!mt__curve_rules_out(curve, 2, 1));
    (void)run(curve, 4, 0, 1);
    ck_assert(mt__curve_rules_out(curve, 8, peak(8, 0) - 1));
    ck_assert(
        !mt__curve_rules_out(curve, 1, 1)); /* below what was recorded: it may be another kernel */
    ck_assert(!mt__curve_rules_out(curve, 8, peak(8, 0)));
    (void)run(curve, 16, 0, 1);
    ck_assert(!mt__curve_rules_out(curve, 20, 1));
    (void)run(curve, 32, 0, 1);
    ck_assert(mt__curve_rules_out(curve, 20, peak(20, 0) - 1));
    mt__curve_fail(curve, 0, 20, SIZE_MAX, 1);
    ck_assert(!mt__curve_rules_out(curve, 20, 1));
    mt__curve_free(curve);
}
END_TEST

/* Nor do recordings that are not of the same kernels: what one of them alone has is a margin. */
START_TEST(recordings_that_disagree_rule_nothing_out) {
    mt__curve *curve = curve_new();
    mt_recording *recording = mt__curve_record(curve, 2);

    fill(recording, 2, 0, 1);
    mt_recording_event(recording, (void *)0x900, 70);
    mt_recording_event(recording, (void *)0x900, -1);
    mt__curve_learn(curve, 0, 2, 0);
    (void)run(curve, 4, 0, 1);
    ck_assert_uint_gt(mt_memory_model_margin(curve->range[0].model[0]), 0);
    ck_assert(!mt__curve_rules_out(curve, 8, 1));
    mt__curve_free(curve);
}
END_TEST

/*
 * Where what one of them alone has is much, the larger one begins a range, and the smaller one is an end:
 * whichever runs first.
 */
START_TEST(kernels_change_between_the_first_two) {
    mt__curve *curve = curve_new();

    for (int i = 0; i < 2; i++) {
        size_t m = i == _i ? 2 : 4;
        mt_recording *recording = mt__curve_record(curve, m);

        fill(recording, m, 0, 1);
        if (m == 2) event(recording, 0x900, 700);
        if (m == 2) event(recording, 0x900, -1);
        mt__curve_learn(curve, 0, m, 0);
    }
    ck_assert_uint_eq(curve->ranges, 2);
    ck_assert_uint_ge(mt__curve_predict(curve, 0, 4), peak(4, 0));
    ck_assert_uint_le(mt__curve_predict(curve, 0, 4), peak(4, 0) + 1);
    ck_assert(!mt__curve_rules_out(curve, 3, 1));
    ck_assert(!mt__curve_rules_out(curve, 8, 1));
    ck_assert(run(curve, 8, 0, 1));
    for (size_t m = 4; m < CHANGE; m++)
        ck_assert_uint_eq(mt__curve_predict(curve, 0, m), peak(m, 0));
    ck_assert(mt__curve_rules_out(curve, 8, 1));
    mt__curve_free(curve);
}
END_TEST

/* An eighth of the larger one's peak is much. */
START_TEST(an_eighth_is_no_change) {
    mt__curve *curve = curve_new();
    mt_recording *recording = mt__curve_record(curve, 2);

    fill(recording, 2, 0, 1);
    event(recording, 0x900, (int64_t)(peak(4, 0) / 8) + _i);
    event(recording, 0x900, -1);
    mt__curve_learn(curve, 0, 2, 0);
    (void)run(curve, 4, 0, 1);
    ck_assert_uint_eq(curve->ranges, 1 + (size_t)_i);
    mt__curve_free(curve);
}
END_TEST

/* A chunk of kernels that change twice, at 16 and at 32 samples. Returns its bytes. */
static size_t run_changing(mt__curve *curve, size_t m) {
    size_t bytes = 1000 + 100 * m + (m >= 16 && m < 32 ? 4000 : 0);
    mt_recording *recording = mt__curve_record(curve, m);

    if (recording != NULL) {
        event(recording, 0x100, (int64_t)bytes);
        for (uintptr_t other = 0; other < m / 32; other++) event(recording, 0x900 + other, 8);
    }
    mt__curve_learn(curve, 0, m, 0);
    return bytes;
}

/* They change again before there is a second recording of the middle ones: each size is predicted from its own. */
START_TEST(kernels_change_twice) {
    static const struct {
        size_t samples, ranges;
    } rows[] = {{2, 1}, {4, 1}, {16, 2}, {32, 3}, {64, 3}, {128, 3}};
    mt__curve *curve = curve_new();

    for (int i = 0; i < LENGTH(rows); i++) {
        size_t m = rows[i].samples, bytes = run_changing(curve, m);

        ck_assert(mt__curve_is_recorded(curve, 0));
        ck_assert_uint_eq(curve->ranges, rows[i].ranges);
        ck_assert_uint_ge(mt__curve_predict(curve, 0, m), bytes);
        ck_assert_uint_le(mt__curve_predict(curve, 0, m), bytes + bytes / 99);
    }
    mt__curve_free(curve);
}
END_TEST

/* Both peaks of the only size that was recorded of its kernels are its own, however those of others relate. */
START_TEST(both_peaks_of_the_only_size) {
    mt__curve *curve = curve_new();
    mt_recording *recording;

    (void)run(curve, 2, 0, 1);
    (void)run(curve, 4, 0, 1);
    recording = mt__curve_record(curve, CHANGE);
    event(recording, 0x100, 1000);
    event(recording, 0x200, 2000);
    if (_i) event(recording, 0x200, 0);
    event(recording, 0x200, -1);
    event(recording, 0x100, -1);
    event(recording, 0x300, 2500);
    event(recording, 0x300, -1);
    mt__curve_learn(curve, 0, CHANGE, 0);
    ck_assert_uint_eq(curve->ranges, 2);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, CHANGE), 3000);
    ck_assert_uint_lt(mt__curve_largest(curve, 0, 2999), CHANGE);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, 3000), CHANGE);
    if (_i) {
        ck_assert_uint_eq(mt__curve_predict(curve, 1, CHANGE), 4500);
        ck_assert_uint_eq(mt__curve_predict(curve, 1, CHANGE + 1), 4500); /* no less than that */
        ck_assert_uint_lt(mt__curve_largest(curve, 1, 4499), CHANGE);
        ck_assert_uint_ge(mt__curve_largest(curve, 1, 4500), CHANGE);
    }
    mt__curve_free(curve);
}
END_TEST

/* Rooms without an end, where values would saturate: an answer, and at once. */
START_TEST(endless_room) {
    static const size_t rooms[] = {SIZE_MAX, SIZE_MAX - 99, SIZE_MAX / 2, INT64_MAX / 2};
    const size_t sizes[] = {2, 4, 16};
    mt__curve *curve = curve_new();

    for (int i = 0; i < LENGTH(sizes); i++) {
        mt_recording *recording = mt__curve_record(curve, sizes[i]);

        fill(recording, sizes[i], 0, 1);
        mt__curve_learn(curve, 0, sizes[i], peak(sizes[i], 0) + 99); /* others take something too */
        ck_assert_uint_eq(mt__curve_predict(curve, 0, SIZE_MAX), SIZE_MAX);
        for (int r = 0; r < LENGTH(rooms); r++)
            ck_assert_uint_ge(mt__curve_largest(curve, 0, rooms[r]), (size_t)1 << 40);
    }
    ck_assert_uint_eq(mt__curve_largest(curve, 0, 90), 0);
    mt__curve_free(curve);
}
END_TEST

/* A third range waits for its second size while the second one comes down to where it begins. */
START_TEST(a_range_comes_down_below_another) {
    static const size_t sizes[] = {2, 4, 40, 80, 400, 20};
    mt__curve *curve = curve_new();

    for (int i = 0; i < LENGTH(sizes); i++) {
        size_t m = sizes[i], bytes = m < 20 ? 100 * m : m < 400 ? 150 * m : 170 * m;

        event(mt__curve_record(curve, m), 0x100, (int64_t)bytes);
        mt__curve_learn(curve, 0, m, bytes);
    }
    ck_assert_uint_eq(curve->ranges, 3);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 10), 1000);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 20), 3000);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 300), 45000);
    mt__curve_free(curve);
}
END_TEST

/* A correction is halved with each step, of either way to run, as far as it is not seen again. */
START_TEST(corrections_fade) {
    mt__curve *curve = curve_new();

    (void)run(curve, 2, 0, 1);
    (void)run(curve, 4, 0, 1);
    mt__curve_learn(curve, 0, 4, peak(4, 0) + 160);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 4), peak(4, 0) + 160);
    mt__curve_learn(curve, 0, 4, peak(4, 0) + 100);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 4), peak(4, 0) + 160);
    mt__curve_forget(curve, 1);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 4), peak(4, 0) + 80);
    mt__curve_learn(curve, 0, 4, peak(4, 0) + 100);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 4), peak(4, 0) + 100);
    mt__curve_learn(curve, 1, 4, peak(4, 1) + 50);
    mt__curve_forget(curve, 2);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 4), peak(4, 0) + 50);
    ck_assert_uint_eq(mt__curve_predict(curve, 1, 4), peak(4, 1) + 25);
    mt__curve_free(curve);
}
END_TEST

/* They are of the recordings there were: with another one they begin anew. */
START_TEST(corrections_begin_anew) {
    static const size_t sizes[] = {2, 4, 16};
    mt__curve *curve = curve_new();

    for (int i = 0; i < LENGTH(sizes); i++) {
        (void)run(curve, sizes[i], 0, 1);
        ck_assert_uint_eq(mt__curve_predict(curve, 0, 2), peak(2, 0));
        mt__curve_learn(curve, 0, 2, peak(2, 0) + 160);
        ck_assert_uint_eq(mt__curve_predict(curve, 0, 2), peak(2, 0) + 160);
    }
    mt__curve_free(curve);
}
END_TEST

/*
 * 8 samples went through, 16 did not in a room that was to hold 21: 15 are left. Neither did 15, so what is beyond
 * half the way is taken to need twice as much more, and 11 are left, which is half the way.
 */
START_TEST(half_way_is_left) {
    mt__curve *curve = curve_new();
    size_t room = 16 * 100 + 500;

    for (size_t m = 2; m <= 4; m += 2) {
        event(mt__curve_record(curve, m), 0x100, 100 * (int64_t)m);
        mt__curve_learn(curve, 0, m, 0);
    }
    mt__curve_prove(curve, 0, 8, room);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, room), 21);
    mt__curve_fail(curve, 0, 16, room, 1);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, room), 15);
    mt__curve_fail(curve, 0, 15, room, 1);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, room), 11);
    mt__curve_free(curve);
}
END_TEST

/* A chunk whose peak is not known says nothing of others; one that does not fit is a failure, new or not. */
START_TEST(known_and_not) {
    mt__curve *curve = curve_new();

    mt__curve_learn(curve, 0, 16, 160);
    mt__curve_learn(curve, 0, 32, 0);
    ck_assert_uint_ge(mt__curve_predict(curve, 0, 32), 320);
    mt__curve_prove(curve, 0, 32, 900);
    ck_assert(!mt__curve_has_failures(curve));
    mt__curve_fail(curve, 0, 32 + (size_t)_i, 900, 1);
    ck_assert(mt__curve_has_failures(curve));
    mt__curve_free(curve);
}
END_TEST

/* What may be tried where one size of few samples is all that is known, and what failed is above that. */
START_TEST(beyond_a_bound) {
    static const struct {
        int recorded;
        size_t sizes[3], failed, beyond;
    } rows[] = {
        {0, {3}, 0, 6}, {0, {4}, 0, 0},    {0, {3}, 5, 4},       {1, {2}, 0, 4},
        {1, {4}, 0, 0}, {1, {2, 4}, 0, 0}, {1, {1, 2, 3}, 0, 0},
    };
    mt__curve *curve = curve_new();

    for (size_t i = 0; i < LENGTH(rows[_i].sizes) && rows[_i].sizes[i]; i++) {
        size_t m = rows[_i].sizes[i], bytes = 1000 * m + (m == 3 ? 500 : 0); /* other kernels */

        if (rows[_i].recorded) event(mt__curve_record(curve, m), 0x100, (int64_t)bytes);
        mt__curve_learn(curve, 0, m, bytes);
    }
    if (rows[_i].failed) mt__curve_fail(curve, 0, rows[_i].failed, 9000, 1);
    ck_assert_uint_eq(mt__curve_beyond_bound(curve, 9000), rows[_i].beyond);
    mt__curve_free(curve);
}
END_TEST

/* A measured peak alone, smaller than its samples: room for all of them is no overflow. */
START_TEST(endless_room_by_a_bound) {
    mt__curve *curve = curve_new();

    mt__curve_learn(curve, 0, 1024, 512);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, SIZE_MAX), SIZE_MAX);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, 511), 0);
    mt__curve_free(curve);
}
END_TEST

/* Lines that fall to nothing beyond a change of kernels: a range begins all the same. */
START_TEST(a_model_that_falls_to_nothing) {
    static const size_t bytes[] = {1000, 100, 5000, 9000};
    static const size_t sizes[] = {2, 4, 64, 128};
    mt__curve *curve = curve_new();

    for (int i = 0; i < LENGTH(sizes); i++) {
        event(mt__curve_record(curve, sizes[i]), 0x100, (int64_t)bytes[i]);
        mt__curve_learn(curve, 0, sizes[i], bytes[i]);
        ck_assert_uint_ge(mt__curve_predict(curve, 0, sizes[i]), bytes[i]);
        (void)mt__curve_largest(curve, 0, 3000);
    }
    mt__curve_free(curve);
}
END_TEST

/* ---- recordings that are of no use -------------------------------------------------------------- */

static void run_steady(mt__curve *curve, size_t m) {
    (void)run(curve, m, 0, 1);
}

static void run_of_two_changes(mt__curve *curve, size_t m) {
    (void)run_changing(curve, m);
}

static void known_from_the_change_on(mt__curve *curve) {
    for (size_t m = 2 * CHANGE; m < 100; m++) {
        ck_assert_uint_ge(mt__curve_predict(curve, 0, m), peak(m, 0));
        ck_assert_uint_le(mt__curve_predict(curve, 0, m), peak(m, 0) * 21 / 20);
    }
}

static void known_above_both_changes(mt__curve *curve) {
    ck_assert(mt__curve_is_recorded(curve, 0));
    ck_assert_uint_ge(mt__curve_predict(curve, 0, 64), run_changing(curve, 64));
}

static const struct {
    void (*run)(mt__curve *, size_t samples);
    void (*check)(mt__curve *);
} starved[] = {
    {run_steady, known_from_the_change_on},
    {run_of_two_changes, known_above_both_changes},
};

/* Host memory runs out while a chunk is recorded or taken in: the next one is recorded instead. */
START_TEST(without_host_memory) {
    const size_t sizes[] = {2, 4, 16, 32, 64};
    int failed = 0;

    ck_ok(counting_install());
    for (int at = 1; at < 60; at++) {
        mt__curve *curve = curve_new();

        counting_fail_at((size_t)at, 0);
        for (int i = 0; i < LENGTH(sizes); i++) starved[_i].run(curve, sizes[i]);
        failed += counting_fired() > 0;
        counting_fail_at(0, 0);
        for (int i = 0; i < LENGTH(sizes); i++) starved[_i].run(curve, sizes[i]);
        starved[_i].check(curve);
        mt__curve_free(curve);
    }
    ck_assert_int_gt(failed, 10);
    ck_assert_uint_eq(counting_live(), 0);
}
END_TEST

/* A chunk that needs nothing cannot say what others need. */
START_TEST(empty_recording) {
    mt__curve *curve = curve_new();

    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_nonnull(mt__curve_record(curve, 2));
        mt__curve_learn(curve, 0, 2, 0);
    }
    ck_assert_uint_eq(curve->ranges, 0);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 2), 0);
    mt__curve_free(curve);
}
END_TEST

/* Failures of larger chunks are no reason to go below one that went through, in as much room. */
START_TEST(what_went_through_fits) {
    mt__curve *curve = curve_new();

    mt__curve_learn(curve, 1, 16, 160);
    mt__curve_prove(curve, 1, 16, 210);
    mt__curve_prove(curve, 0, 16, 200);
    mt__curve_prove(curve, 0, 16, 220);
    mt__curve_prove(curve, 0, 2, 100);
    mt__curve_fail(curve, 0, 17, 200, 1);
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 17), 201);
    ck_assert_uint_gt(mt__curve_largest(curve, 0, 2000), 100); /* it failed in less room */
    mt__curve_fail(curve, 0, 17, 230, 1);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, 200), 16);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, 10), 0); /* less than the correction */
    ck_assert_uint_eq(mt__curve_predict(curve, 0, 16), 160);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, 199), 0);
    ck_assert_uint_eq(curve->evidence[1].proven_room, 210);
    mt__curve_fail(curve, 0, 16, 200, 1); /* until that is forgotten */
    ck_assert_uint_lt(mt__curve_largest(curve, 0, 200), 16);
    ck_assert_uint_eq(mt__curve_largest(curve, 0, 100),
                      0); /* nor is what is tried then sure to fit */
    mt__curve_forget(curve, 1000);
    ck_assert_uint_ge(mt__curve_largest(curve, 0, 200), 16);
    mt__curve_free(curve);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("curve");
    TCase *both = suite_case(suite, "both peaks"), *ranges = suite_case(suite, "ranges");
    TCase *useless = suite_case(suite, "of no use");

    tcase_add_loop_test(both, both_peaks_from_one_recording, 0, 4);
    tcase_add_test(both, handed_over_once);
    tcase_add_loop_test(ranges, ranges_follow_the_kernels, 0, LENGTH(runs));
    tcase_add_loop_test(ranges, largest_agrees_with_predict, 0, 2);
    tcase_add_loop_test(ranges, a_change_is_told, 0, LENGTH(told));
    tcase_add_test(ranges, one_sample);
    tcase_add_test(ranges, no_guess_below_a_recording);
    tcase_add_loop_test(ranges, predicted_within_a_1024th, 0, 5);
    tcase_add_loop_test(ranges, ranges_are_full, 0, 2);
    tcase_add_test(ranges, one_recording_rules_nothing_out);
    tcase_add_test(ranges, recordings_that_disagree_rule_nothing_out);
    tcase_add_loop_test(ranges, kernels_change_between_the_first_two, 0, 2);
    tcase_add_loop_test(ranges, an_eighth_is_no_change, 0, 2);
    tcase_add_test(ranges, kernels_change_twice);
    tcase_add_loop_test(ranges, both_peaks_of_the_only_size, 0, 2);
    tcase_add_test(ranges, endless_room);
    tcase_add_test(ranges, corrections_fade);
    tcase_add_test(ranges, corrections_begin_anew);
    tcase_add_test(ranges, half_way_is_left);
    tcase_add_loop_test(ranges, known_and_not, 0, 2);
    tcase_add_loop_test(ranges, beyond_a_bound, 0, 7);
    tcase_add_test(ranges, a_range_comes_down_below_another);
    tcase_add_test(ranges, endless_room_by_a_bound);
    tcase_add_test(ranges, a_model_that_falls_to_nothing);
    tcase_add_test(ranges, what_went_through_fits);
    tcase_add_loop_test(useless, without_host_memory, 0, LENGTH(starved));
    tcase_add_test(useless, empty_recording);
    return suite_run(suite);
}
