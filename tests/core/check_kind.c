/*
 * check_kind.c - what is known of one kind of chunk: ranges of sizes that take the same kernels, peaks of both ways to
 * run, and what did not fit.
 */
#include "counting_allocator.h"
#include "kind.h"
#include "suite.h"
#include "tuned.h"

/* The kind of the test, of which nothing is known. */
static mt__kind *k;

/* In its place one whose kernels are said to change there; 0: that is not told. */
static void begin_told(size_t change) {
    mt__key key = {MT_TRAIN, 0, 0};

    mt__kind_free(k);
    k = mt__kind_new(&key, &(mt_shape){0}, change);
    ck_assert_ptr_nonnull(k);
}

static void begin(void) {
    begin_told(0);
}

static void end(void) {
    mt__kind_free(k);
    k = NULL;
}

/* ---- chunks that are recorded ------------------------------------------------------------------- */

/* Kernels of sizes from here on need other memory. */
#define CHANGE 16
#define GRADIENT 500

static void event(mt_recording *recording, uintptr_t address, int64_t bytes) {
    mt_recording_event(recording, (void *)address, bytes);
}

static size_t activations(size_t m) {
    return m < CHANGE ? 1000 + 100 * m : 1300 + 110 * m;
}

/* The peak of m samples, which comes when activations and gradient are there; or in all, apart. */
static size_t peak(size_t m, mt__way way) {
    size_t backward = activations(m) + GRADIENT, update = GRADIENT + 10 * m + 900;

    return way == MT__APART && update + GRADIENT > backward ? update + GRADIENT : backward;
}

/* Activations, a gradient, and another one when the activations are gone. handed: that is told. */
static mt_recording *record(size_t m, mt__way way, int handed) {
    mt_recording *r;

    ck_ok(mt_recording_new(&r));
    mt__recording_restart(r, m);
    event(r, 0x100, (int64_t)activations(m));
    event(r, 0x200, GRADIENT);
    if (handed) event(r, 0x200, 0);
    if (way == MT__IN_PLACE) event(r, 0x200, -GRADIENT);
    event(r, 0x100, -1);
    event(r, 0x300, (int64_t)(900 + 10 * m));
    event(r, 0x400, GRADIENT);
    if (handed) event(r, 0x400, 0);
    event(r, 0x400, -GRADIENT);
    event(r, 0x300, -1);
    if (way == MT__APART) event(r, 0x200, -1);
    return r;
}

/* What a recording that is not used any more tells. */
static void learn(mt__way way, size_t m, size_t bytes, size_t room, mt_recording *r) {
    mt__kind_learn(k, way, m, bytes, room, &r);
    mt_recording_free(r);
}

/* A chunk of m samples goes through, recorded if that is wanted; returns whether it was. */
static int run(size_t m, mt__way way, int handed) {
    int wanted = mt__kind_wants_recording(k, m);

    learn(way, m, peak(m, way), SIZE_MAX, wanted ? record(m, way, handed) : NULL);
    return wanted;
}

/* One of a single block of so many bytes. */
static void run_bytes(size_t m, size_t bytes) {
    mt_recording *r;

    ck_ok(mt_recording_new(&r));
    mt__recording_restart(r, m);
    event(r, 0x100, (int64_t)bytes);
    learn(MT__IN_PLACE, m, bytes, SIZE_MAX, r);
}

/* A chunk that went through unrecorded. */
static void ran(mt__way way, size_t m, size_t bytes, size_t room) {
    learn(way, m, bytes, room, NULL);
}

TEST_LOOP("recorded", both_peaks_from_either_way, 4) {
    mt__way way = _i & 1 ? MT__APART : MT__IN_PLACE;
    int handed = _i >> 1;

    ck_assert(!mt__kind_is_recorded(k, MT__IN_PLACE));
    ck_assert(run(2, way, handed));
    ck_assert(run(4, way, handed));
    ck_assert_int_eq(mt__kind_is_recorded(k, MT__IN_PLACE), way == MT__IN_PLACE || handed);
    ck_assert_int_eq(mt__kind_is_recorded(k, MT__APART), handed);
    for (size_t m = 2; m < CHANGE; m++)
        for (int w = 0; w < MT__WAYS; w++)
            if (mt__kind_is_recorded(k, (mt__way)w))
                ck_assert_uint_eq(mt__kind_predict(k, (mt__way)w, m), peak(m, (mt__way)w));
}

TEST("recorded", nothing_is_no_kind) {
    mt__kind_free(NULL);
}

/* Sizes that run one after the other, whether each is recorded, and what is known then. */
static const struct {
    size_t change;
    struct {
        size_t run;
        int recorded;
        size_t ranges, exact_from, exact_to; /* 0: none but those that were recorded */
        int sure40;                          /* that of 40 samples is no estimate */
    } steps[8];
} ranges[] = {
    /* One recording, two, and a third that is borne out, above or below. */
    {0,
     {{2, 1, 1, 0, 0, 0},
      {2, 0, 1, 0, 0, 0},
      {4, 1, 1, 2, 15, 1},
      {3, 0, 1, 2, 15, 1},
      {8, 1, 1, 2, 15, 1},
      {7, 0, 1, 2, 15, 1}}},
    {0, {{4, 1, 1, 0, 0, 0}, {2, 1, 1, 2, 15, 1}, {12, 1, 1, 2, 15, 1}}},
    {0, {{6, 1, 1, 0, 0, 0}, {12, 1, 1, 6, 15, 1}, {3, 1, 1, 3, 15, 1}}},
    /* Other kernels begin a range, of which two tell. */
    {0,
     {{2, 1, 1, 0, 0, 0},
      {4, 1, 1, 2, 15, 1},
      {16, 1, 2, 2, 15, 0},
      {16, 0, 2, 2, 15, 0},
      {32, 1, 2, 2, 400, 1},
      {64, 1, 2, 2, 400, 1},
      {50, 0, 2, 2, 400, 1}}},
    /* A size between two ranges that the lower one does not bear out begins one of its own. */
    {0,
     {{2, 1, 1, 0, 0, 0},
      {4, 1, 1, 2, 15, 1},
      {40, 1, 2, 2, 15, 1},
      {80, 1, 2, 2, 15, 1},
      {20, 1, 3, 2, 15, 1},
      {16, 1, 4, 2, 15, 1}}},
    {0,
     {{2, 1, 1, 0, 0, 0},
      {4, 1, 1, 2, 15, 1},
      {64, 1, 2, 2, 15, 1},
      {8, 1, 2, 2, 15, 1},
      {32, 1, 3, 2, 15, 0}}},
    /* One sample may take kernels of its own: with two it tells of no others. */
    {0, {{1, 1, 1, 0, 0, 0}, {2, 1, 2, 0, 0, 0}, {4, 1, 2, 2, 15, 1}}},
    /* Where kernels are said to change, two recordings on both sides are of no one range. */
    {16, {{8, 1, 1, 0, 0, 0}, {16, 1, 2, 0, 0, 0}, {32, 1, 2, 16, 400, 1}}},
    {16, {{4, 1, 1, 0, 0, 0}, {8, 1, 1, 4, 15, 0}, {16, 1, 2, 4, 15, 0}, {32, 1, 2, 4, 400, 1}}},
    {16, {{16, 1, 1, 0, 0, 0}, {32, 1, 1, 16, 400, 1}}}, /* all are of the larger */
    {100, {{2, 1, 1, 0, 0, 0}, {4, 1, 1, 2, 15, 1}}},    /* not met yet, but by 40 neither */
};

TEST_LOOP("recorded", ranges_follow_the_kernels, LENGTH(ranges)) {
    begin_told(ranges[_i].change);
    for (int i = 0; i < 8 && ranges[_i].steps[i].run; i++) {
        size_t m = ranges[_i].steps[i].run;

        ck_assert_int_eq(run(m, MT__IN_PLACE, 1), ranges[_i].steps[i].recorded);
        ck_assert_uint_eq(k->ranges, ranges[_i].steps[i].ranges);
        ck_assert_int_eq(mt__kind_is_sure(k, MT__IN_PLACE, 40), ranges[_i].steps[i].sure40);
        ck_assert_uint_ge(mt__kind_predict(k, MT__IN_PLACE, m), peak(m, MT__IN_PLACE));
        for (m = ranges[_i].steps[i].exact_from; m > 0 && m <= ranges[_i].steps[i].exact_to; m++)
            for (int way = 0; way < MT__WAYS; way++)
                ck_assert_uint_eq(mt__kind_predict(k, (mt__way)way, m), peak(m, (mt__way)way));
    }
}

#define BEARS_OUT (8 * 100000 / HUNDREDTH)

/* A third size after 2 and 4 of 100,000 bytes a sample: more than a hundredth more or less is of other kernels. */
TEST_LOOP("recorded", borne_out_within_a_hundredth, 5) {
    static const struct {
        int off;
        size_t ranges;
    } rows[] = {{0, 1}, {BEARS_OUT, 1}, {BEARS_OUT + 1, 2}, {-BEARS_OUT, 1}, {-BEARS_OUT - 1, 2}};

    for (size_t m = 2; m <= 8; m *= 2)
        run_bytes(m, (size_t)(100000 * (int64_t)m + (m == 8 ? rows[_i].off : 0)));
    ck_assert_uint_eq(k->ranges, rows[_i].ranges);
}

/* Kernels that change all the time: there are no more ranges than there is place for, and each speaks for what is above it. */
TEST("recorded", ranges_are_full) {
    for (size_t m = 2; m < ((size_t)1 << 20); m *= 2) {
        ck_assert(mt__kind_wants_recording(k, m));
        run_bytes(m, m * m);
        ck_assert_uint_ge(mt__kind_predict(k, MT__IN_PLACE, m), m * m);
        ck_assert(!mt__kind_wants_recording(k, m));
    }
    run_bytes(1, 1); /* below them all */
    ck_assert(!mt__kind_wants_recording(k, 1));
    ck_assert_uint_eq(k->ranges, MT__RANGES);
    ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, SIZE_MAX), SIZE_MAX);
}

/* The largest that fits is the last of which the prediction says so, whatever range that is in. */
TEST("recorded", largest_agrees_with_predict) {
    static const size_t sizes[] = {4, 8, 16, 32};

    for (int i = 0; i < LENGTH(sizes); i++) {
        /* Nothing has run, so nothing is proven. */
        learn(MT__IN_PLACE, sizes[i], 0, 0, record(sizes[i], MT__IN_PLACE, 1));
        for (size_t room = 1; room < 12000; room += 37)
            for (int way = 0; way < MT__WAYS; way++) {
                size_t m = mt__kind_largest(k, (mt__way)way, room);

                if (m > 0) ck_assert_uint_le(mt__kind_predict(k, (mt__way)way, m), room);
                ck_assert_uint_gt(mt__kind_predict(k, (mt__way)way, m + 1), room);
            }
    }
}

/* What two recordings tell of sizes among them rules sizes out; of one alone a small part of its bytes is thought to grow. */
TEST("recorded", recordings_rule_out) {
    ck_assert(!mt__kind_rules_out(k, MT__IN_PLACE, 2, 1)); /* nothing is known */
    run_bytes(4, 100 * NEARLY);
    ck_assert(mt__kind_rules_out(k, MT__IN_PLACE, 4, 100 * NEARLY - 1));
    ck_assert(!mt__kind_rules_out(k, MT__IN_PLACE, 4, 100 * NEARLY));
    ck_assert(!mt__kind_rules_out(k, MT__IN_PLACE, 2, 1)); /* below what was recorded */
    /* 100 of these bytes are of the 4 samples, and 200 of 8. */
    ck_assert(mt__kind_rules_out(k, MT__IN_PLACE, 8, 100 * NEARLY + 99));
    ck_assert(!mt__kind_rules_out(k, MT__IN_PLACE, 8, 100 * NEARLY + 100));
    run_bytes(8, 125 * NEARLY);
    ck_assert(mt__kind_rules_out(k, MT__IN_PLACE, 12, 150 * NEARLY - 1));
    ck_assert(!mt__kind_rules_out(k, MT__IN_PLACE, 12, 150 * NEARLY));
    begin_told(0); /* an event without a partner: the bytes are a bound */
    run_bytes(4, 1600);
    mt_recording *r;
    ck_ok(mt_recording_new(&r));
    mt__recording_restart(r, 8);
    event(r, 0x100, 3200);
    event(r, 0x200, 64);
    learn(MT__IN_PLACE, 8, 3264, SIZE_MAX, r);
    ck_assert_uint_eq(k->ranges, 1);
    ck_assert(!mt__kind_rules_out(k, MT__IN_PLACE, 12, 1));
}

/* A recording that is of no use is none: incomplete, empty, or of gradients apart that were not handed over. */
TEST("recorded", recordings_of_no_use) {
    mt_recording *r = record(2, MT__APART, 0);

    mt__kind_learn(k, MT__APART, 2, 0, 0, &r);
    ck_assert_ptr_nonnull(r);
    r->incomplete = 1;
    mt__kind_learn(k, MT__IN_PLACE, 2, 0, 0, &r);
    mt__kind_fail(k, MT__IN_PLACE, 2, 100, 0, r);
    mt__recording_restart(r, 2);
    mt__kind_learn(k, MT__IN_PLACE, 2, 0, 0, &r);
    mt__kind_fail(k, MT__IN_PLACE, 2, 100, 0, r);
    ck_assert_uint_eq(k->ranges, 0);
    ck_assert(k->has_run);
    mt_recording_free(r);
}

/* ---- peaks that were measured ------------------------------------------------------------------- */

/* Without recordings: on the line between the smallest and the largest, in proportion above. */
static const struct {
    struct {
        size_t samples, peak;
    } runs[4];
    size_t predict2, predict8, predict16, room, largest;
} peaks[] = {
    {{{0, 0}}, 0, 0, 0, 1000, SIZE_MAX},
    {{{8, 800}}, 800, 800, 1601, 799, 0},
    {{{8, 800}}, 800, 800, 1601, 1600, 16},
    {{{2, 800}}, 800, 3201, 6401, 100, 4}, /* which bytes grow is not known of one that is small */
    {{{4, 600}, {8, 800}}, 600, 800, 1601, 700, 6},
    {{{4, 600}, {8, 800}}, 600, 800, 1601, 599, 0},
    {{{4, 400}, {10, 1000}}, 400, 801, 1601, 700, 7},
    {{{4, 900}, {8, 800}}, 800, 800, 1601, 700, 0},  /* no line that falls */
    {{{8, 1000}, {8, 800}}, 800, 800, 1601, 900, 9}, /* the last one counts */
    {{{8, 800}, {8, 1000}}, 1000, 1000, 2001, 1000, 8},
};

TEST_LOOP("measured", peaks_are_measured, LENGTH(peaks)) {
    for (int i = 0; i < 4 && peaks[_i].runs[i].samples; i++)
        ran(MT__IN_PLACE, peaks[_i].runs[i].samples, peaks[_i].runs[i].peak, 0);
    ck_assert_uint_eq(mt__kind_predict(k, MT__IN_PLACE, 2), peaks[_i].predict2);
    ck_assert_uint_eq(mt__kind_predict(k, MT__IN_PLACE, 8), peaks[_i].predict8);
    ck_assert_uint_eq(mt__kind_predict(k, MT__IN_PLACE, 16), peaks[_i].predict16);
    ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, peaks[_i].room), peaks[_i].largest);
    ck_assert(!mt__kind_rules_out(k, MT__IN_PLACE, 1000, 1));
    ck_assert_int_eq(mt__kind_is_sure(k, MT__IN_PLACE, 8),
                     k->limits[MT__IN_PLACE].high.samples == 8);
}

/* Of chunks apart a peak is one of chunks in place at most; not the other way round. */
TEST_LOOP("measured", peaks_of_one_way, MT__WAYS) {
    ran((mt__way)_i, 8, 800, 1000);
    ck_assert_uint_eq(mt__kind_predict(k, MT__IN_PLACE, 8), 800);
    ck_assert_uint_eq(mt__kind_predict(k, MT__APART, 8), _i ? 800 : 0);
    ck_assert_uint_eq(k->limits[MT__APART].largest_ran, _i ? 8 : 0);
}

/* What went through in as much room fits, whatever is predicted. */
TEST("measured", what_ran_fits) {
    run_bytes(4, 400);
    run_bytes(8, 800);
    ran(MT__IN_PLACE, 20, 0, 1000);
    ran(MT__IN_PLACE, 20, 0, 900); /* in less */
    ran(MT__IN_PLACE, 20, 0, 950);
    ran(MT__IN_PLACE, 19, 0, 100); /* a smaller one proves nothing of it */
    ran(MT__IN_PLACE, 30, 0, 0);   /* nor does one of which the room is not known */
    ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, 900), 20);
    ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, 899), 8);
    ck_assert_uint_eq(k->limits[MT__IN_PLACE].smallest_ran, 4);
    mt__kind_fail(k, MT__IN_PLACE, 20, 950, 0, NULL); /* until it fails */
    ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, 900), 9);
}

/* A peak above what recordings tell is added to all, and halves with each plan. */
TEST("measured", residual) {
    run_bytes(4, 400);
    run_bytes(8, 800);
    ran(MT__IN_PLACE, 6, 700, 1000);
    ran(MT__IN_PLACE, 6, 650, 1000);
    ran(MT__IN_PLACE, 6, 500, 1000);
    ck_assert_uint_eq(mt__kind_predict(k, MT__IN_PLACE, 8), 900);
    ck_assert_uint_eq(mt__kind_predict(k, MT__APART, 8), 0);
    ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, 1099), 9);
    mt__kind_begin(k);
    ck_assert_uint_eq(mt__kind_predict(k, MT__IN_PLACE, 8), 850);
    run_bytes(12, 5000); /* a recording that is taken ends it where it begins a range */
    ck_assert_uint_eq(mt__kind_predict(k, MT__IN_PLACE, 8), 800);
}

/* ---- what did not fit --------------------------------------------------------------------------- */

#define DOUBLED                                                                                    \
    { FAILURE_WAIT, 2 * FAILURE_WAIT, 4 * FAILURE_WAIT, 8 * FAILURE_WAIT }
#define ONE_MORE                                                                                   \
    { FAILURE_WAIT, FAILURE_WAIT + 1, FAILURE_WAIT + 2, FAILURE_WAIT + 3 }

/* A failure is remembered for so many plans; in vain for twice as many, or one more where it has run. */
static const struct {
    size_t ran; /* a chunk that went through before, in 1000 bytes; 0: none */
    size_t need;
    unsigned patience[4]; /* of the first failure, and of each after it when its time is over */
} patiences[] = {
    {0, 0, DOUBLED},    {0, 900, DOUBLED}, {16, 0, ONE_MORE},
    {16, 900, DOUBLED}, {8, 0, DOUBLED}, /* a smaller one */
};

static unsigned plans_until_tried(size_t samples, size_t room) {
    unsigned plans = 0;

    while (samples > mt__kind_allowed(k, MT__IN_PLACE, room) && ++plans < 10000) mt__kind_begin(k);
    return plans;
}

TEST_LOOP("failed", failures_are_remembered, LENGTH(patiences)) {
    mt__kind_begin(k);
    if (patiences[_i].ran) ran(MT__IN_PLACE, patiences[_i].ran, 0, 1000);
    for (int i = 0; i < 4; i++) {
        mt__kind_fail(k, MT__IN_PLACE, 16, 1000, patiences[_i].need, NULL);
        ck_assert(17 > mt__kind_allowed(k, MT__IN_PLACE, 999));
        ck_assert(15 <= mt__kind_allowed(k, MT__IN_PLACE, 999));
        ck_assert(17 <= mt__kind_allowed(k, MT__IN_PLACE, 1001)); /* more room */
        ck_assert(17 <= mt__kind_allowed(k, MT__APART, 999));
        ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, 1000), 15);
        ck_assert_uint_eq(plans_until_tried(16, 1000), patiences[_i].patience[i]);
    }
}

/* The smaller chunk fails in the same plan: it is remembered, for as long; and the correction grows. */
TEST("failed", smaller_chunks_fail) {
    run_bytes(4, 400);
    run_bytes(8, 800);
    mt__kind_fail(k, MT__IN_PLACE, 32, 3200, 0, NULL); /* 3200 were foretold, and 3201 are needed */
    ck_assert_uint_eq(k->limits[MT__IN_PLACE].residual, 1);
    mt__kind_fail(k, MT__IN_PLACE, 31, 3200, 0, NULL);
    ck_assert_uint_eq(k->limits[MT__IN_PLACE].residual, 101);
    mt__kind_fail(k, MT__IN_PLACE, 30, 3200, 0,
                  NULL); /* 201 would do, but it was wrong three times */
    ck_assert_uint_eq(k->limits[MT__IN_PLACE].residual, 202);
    mt__kind_fail(k, MT__IN_PLACE, 21, 3200, 0, NULL); /* less is foretold than there is */
    ck_assert_uint_eq(k->limits[MT__IN_PLACE].residual, 202 + 899);
    ck_assert(21 > mt__kind_allowed(k, MT__IN_PLACE, 3200));
    ck_assert_uint_eq(plans_until_tried(21, 3200), FAILURE_WAIT);
    mt__kind_fail(k, MT__IN_PLACE, 40, 3200, 9000,
                  NULL); /* 21 that failed once are not forgotten for 40 */
    ck_assert(21 > mt__kind_allowed(k, MT__IN_PLACE, 3200));
}

/* As large as what failed goes through: in no more room, or when it is tried again. */
static const struct {
    unsigned plans; /* after the failure of 16 in 1000 bytes */
    size_t samples, room;
    int forgiven;
} forgiven[] = {
    {0, 16, 1000, 1},
    {0, 20, 1000, 1},
    {0, 15, 1000, 0},
    {0, 16, 1001, 0},
    {FAILURE_WAIT - 1, 16, 900, 1},
    {FAILURE_WAIT - 1, 16, 1001, 0},
    {FAILURE_WAIT, 16, 1000, 1},
    {FAILURE_WAIT, 16, 9000, 1},
    {FAILURE_WAIT, 15, 1000, 0},
};

TEST_LOOP("failed", failures_are_forgiven, LENGTH(forgiven)) {
    mt__kind_fail(k, MT__IN_PLACE, 16, 1000, 0, NULL);
    for (unsigned i = 0; i < forgiven[_i].plans; i++) mt__kind_begin(k);
    ran(MT__IN_PLACE, forgiven[_i].samples, 0, forgiven[_i].room);
    ck_assert_int_eq(k->limits[MT__IN_PLACE].failed[0].chunk == 0, forgiven[_i].forgiven);
}

/* Of another device all is forgotten at once, both ways. */
TEST("failed", failures_of_another_device) {
    for (int way = 0; way < MT__WAYS; way++) mt__kind_fail(k, (mt__way)way, 16, SIZE_MAX, 0, NULL);
    for (int way = 0; way < MT__WAYS; way++)
        ck_assert(16 > mt__kind_allowed(k, (mt__way)way, SIZE_MAX));
    mt__kind_forget(k);
    for (int way = 0; way < MT__WAYS; way++) ck_assert(16 <= mt__kind_allowed(k, (mt__way)way, 1));
}

/* Less than what goes through needs more than there is: sizes as small are not to be tried. */
TEST_LOOP("failed", too_small, 5) {
    static const struct {
        size_t samples, room, need, too_small;
    } rows[] = {{4, 1000, 1200, 4},
                {4, 1100, 1200, 4},
                {4, 999, 1200, 0},
                {4, 1000, 0, 0},
                {8, 1000, 1200, 0}};

    ran(MT__IN_PLACE, 8, 0, 1000);
    mt__kind_fail(k, MT__IN_PLACE, rows[_i].samples, rows[_i].room, rows[_i].need, NULL);
    ck_assert_uint_eq(k->too_small, rows[_i].too_small);
    ck_assert_int_eq(8 > mt__kind_allowed(k, MT__IN_PLACE, 999), !rows[_i].too_small);
    mt__kind_fail(k, MT__IN_PLACE, 2, 1000, 1200, NULL); /* the largest of them counts */
    ck_assert_uint_eq(k->too_small, rows[_i].too_small ? 4 : 2);
}

/* What was recorded before the refusal is what the chunk needs at least; a chunk that goes through is better. */
TEST("failed", partial_recordings) {
    mt_recording *r = record(8, MT__IN_PLACE, 1);
    size_t least = mt__recording_peak(r, 0);

    mt__kind_fail(k, MT__APART, 8, 1500, 0, r);
    ck_assert_uint_eq(k->ranges, 0);
    mt__kind_fail(k, MT__IN_PLACE, 8, 1500, 0, r);
    ck_assert(k->is_partial);
    mt__kind_fail(k, MT__IN_PLACE, 4, 1500, 0, r); /* the first one stays */
    ck_assert_uint_eq(k->range[0].from, 8);
    mt_recording_free(r);
    ck_assert(mt__kind_wants_recording(k, 8));
    ck_assert(!mt__kind_is_sure(k, MT__IN_PLACE, 8));
    ck_assert(mt__kind_rules_out(k, MT__IN_PLACE, 8, least - 1));
    ck_assert(!mt__kind_rules_out(k, MT__IN_PLACE, 8, least));
    mt__kind_forget(k);
    size_t largest = mt__kind_largest(k, MT__IN_PLACE, 8 * least);
    ck_assert_uint_le(mt__kind_predict(k, MT__IN_PLACE, largest), 8 * least);
    ck_assert_uint_gt(mt__kind_predict(k, MT__IN_PLACE, largest + 1), 8 * least);
    ck_assert(run(2, MT__IN_PLACE, 1));
    ck_assert(!k->is_partial);
    ck_assert_uint_eq(k->ranges, 1);
    ck_assert_uint_eq(k->range[0].from, 2);
}

/* Where no gradient was handed over it tells nothing of chunks apart. */
TEST("failed", partial_of_one_way) {
    mt_recording *r = record(8, MT__IN_PLACE, 0);

    mt__kind_fail(k, MT__IN_PLACE, 8, 1500, 0, r);
    ck_assert(k->is_partial);
    ck_assert_uint_eq(mt__kind_largest(k, MT__APART, 1), SIZE_MAX);
    ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, 1), 0);
    mt_recording_free(r);
}

/*
 * One size that is less than twice the first chunk and of which it is not known what grows: twice as many are tried,
 * whatever it needs.
 */
TEST_LOOP("failed", small_and_alone, 4) {
    static const struct {
        size_t samples;
        int handed;
        size_t largest; /* of those that are tried in one byte */
    } rows[] = {{FIRST_CHUNK, 0, 2 * FIRST_CHUNK},
                {2 * FIRST_CHUNK - 1, 0, 4 * FIRST_CHUNK - 2},
                {2 * FIRST_CHUNK, 0, 0},
                {FIRST_CHUNK, 1, 0}};

    learn(MT__IN_PLACE, rows[_i].samples, 0, 0,
          record(rows[_i].samples, MT__IN_PLACE, rows[_i].handed));
    ck_assert_uint_eq(mt__kind_largest(k, MT__IN_PLACE, 1), rows[_i].largest);
}

/* ---- host memory ---------------------------------------------------------------- */

/* Without host memory a recording is dropped, and what was known stays. */
TEST("rest", without_host_memory) {
    static const size_t sizes[] = {2, 4, 64};
    int done = 0;

    ck_ok(counting_install());
    for (size_t fail = 1; !done; fail++) {
        mt_recording *refused = record(9, MT__IN_PLACE, 1), *recordings[3];

        for (int i = 0; i < 3; i++) recordings[i] = record(sizes[i], MT__IN_PLACE, 1);
        begin();
        counting_fail_at(fail, 0);
        mt__kind_fail(k, MT__IN_PLACE, 9, 10, 0, refused);
        for (int i = 0; i < 3; i++) learn(MT__IN_PLACE, sizes[i], 0, 0, recordings[i]);
        done = counting_fired() == 0;
        counting_fail_at(0, 0);
        ck_assert_uint_ge(k->ranges, 1);
        for (size_t i = 0; i < k->ranges; i++)
            ck_assert_ptr_nonnull(k->range[i].model[MT__IN_PLACE]);
        mt_recording_free(refused);
        end();
        ck_assert_uint_eq(counting_live(), 0);
    }
    counting_fail_at(1, 0);
    ck_assert_ptr_null(mt__kind_new(&(mt__key){MT_TRAIN, 0, 0}, &(mt_shape){0}, 0));
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("recorded"), begin, end);
    tcase_add_checked_fixture(suite_case_named("measured"), begin, end);
    tcase_add_checked_fixture(suite_case_named("failed"), begin, end);
    return suite_run_named("kind");
}
