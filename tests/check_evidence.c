/*
 * check_evidence.c - measured peaks, chunks that went through and chunks that did not fit: what they say of
 * other sizes, and for how long.
 */
#include "evidence.h"
#include "suite.h"

/* ---- measured peaks without recordings --------------------------------------------------------- */

/* Chunks that ran one after the other, and what is known then. */
static const struct {
    const char *name;
    struct {
        size_t samples, peak, bound_samples, bound;
    } rows[6];
} bounds[] = {
    {"a larger chunk stands for it", {{8, 300, 8, 300}, {16, 500, 16, 500}, {20, 590, 20, 590}}},
    {"a smaller one says nothing", {{16, 500, 16, 500}, {8, 300, 16, 500}, {1, 90, 16, 500}}},
    {"a higher peak counts at once", {{16, 500, 16, 500}, {16, 600, 16, 600}}},
    {"a lower one by halves, for it may be higher again",
     {{16, 600, 16, 600}, {16, 500, 16, 550}, {16, 500, 16, 525}, {16, 700, 16, 700}}},
    {"another tensor was there: a smaller chunk has an eighth less a sample",
     {{16, 1600, 16, 1600}, {8, 720, 16, 1600}, {8, 700, 8, 700}, {4, 300, 4, 300}}},
    {"an eighth to the byte", {{16, 1440, 16, 1440}, {8, 640, 16, 1440}, {8, 639, 8, 639}}},
};

/* The same of the smallest chunk. */
static const struct {
    const char *name;
    struct {
        size_t samples, peak, low_samples, low;
    } rows[4];
} lows[] = {
    {"a larger one says nothing", {{8, 300, 8, 300}, {16, 500, 8, 300}, {9, 310, 8, 300}}},
    {"a smaller one stands for it", {{16, 500, 16, 500}, {8, 300, 8, 300}, {4, 100, 4, 100}}},
    {"a higher peak counts at once, a lower one by halves",
     {{8, 300, 8, 300}, {8, 400, 8, 400}, {8, 300, 8, 350}}},
};

/* 4 samples peaked at 500 bytes and 16 at 1700, or as the rows say. */
static const struct {
    const char *name;
    size_t low, low_peak, high, high_peak, samples, bytes, room, fits;
} lines[] = {
    {"nothing ran", 0, 0, 0, 0, 8, 0, 1000, SIZE_MAX},
    {"proportional above", 4, 500, 16, 1700, 32, 3401, 3400, 32},
    {"the largest", 4, 500, 16, 1700, 16, 1700, 1700, 16},
    {"on the line between", 4, 500, 16, 1700, 10, 1100, 1199, 10},
    {"the largest, which is no matter of rounding", 1, 100, 8, 129, 8, 129, 129, 8},
    {"the smallest", 4, 500, 16, 1700, 4, 500, 500, 4},
    {"below it", 4, 500, 16, 1700, 1, 500, 499, 0},
    {"below it, where peaks hardly grow", 4, 500, 16, 506, 1, 500, 499, 0},
    {"one peak alone", 0, 0, 16, 1700, 8, 1700, 1699, 0},
    {"one peak alone, to the byte", 0, 0, 16, 1700, 16, 1700, 1700, 16},
    {"another tensor was there", 4, 1800, 16, 1700, 8, 1700, 1699, 0},
};

START_TEST(bytes_on_a_line) {
    mt__evidence e = {0};

    if (lines[_i].low > 0) mt__evidence_bound(&e, lines[_i].low, lines[_i].low_peak);
    if (lines[_i].high > 0) mt__evidence_bound(&e, lines[_i].high, lines[_i].high_peak);
    ck_assert_msg(mt__evidence_bytes(&e, lines[_i].samples) == lines[_i].bytes, "%s: %zu bytes",
                  lines[_i].name, mt__evidence_bytes(&e, lines[_i].samples));
    ck_assert_msg(mt__evidence_fitting(&e, lines[_i].room) == lines[_i].fits, "%s: %zu fit",
                  lines[_i].name, mt__evidence_fitting(&e, lines[_i].room));
}
END_TEST

START_TEST(bounds_of_one_peak) {
    mt__evidence e = {0};

    for (int i = 0; i < 6 && bounds[_i].rows[i].samples > 0; i++) {
        mt__evidence_bound(&e, bounds[_i].rows[i].samples, bounds[_i].rows[i].peak);
        ck_assert_msg(e.bound_samples == bounds[_i].rows[i].bound_samples &&
                          e.bound_peak == bounds[_i].rows[i].bound,
                      "%s: %zu bytes for %zu samples after row %d", bounds[_i].name, e.bound_peak,
                      e.bound_samples, i);
    }
}
END_TEST

START_TEST(smallest_of_the_peaks) {
    mt__evidence e = {0};

    for (int i = 0; i < 4 && lows[_i].rows[i].samples > 0; i++) {
        mt__evidence_bound(&e, lows[_i].rows[i].samples, lows[_i].rows[i].peak);
        ck_assert_msg(e.low_samples == lows[_i].rows[i].low_samples &&
                          e.low_peak == lows[_i].rows[i].low,
                      "%s: %zu bytes for %zu samples after row %d", lows[_i].name, e.low_peak,
                      e.low_samples, i);
    }
}
END_TEST

/* ---- how long a failure is remembered ----------------------------------------------------------- */

/* Steps until a size that failed in room 100 may be tried again. */
static int steps_until_tried(mt__evidence *e, size_t samples, uint64_t *step) {
    int steps = 0;

    mt__evidence_fail(e, samples, 100, 0, *step);
    while (mt__evidence_has_failed(e, samples, 100)) {
        mt__evidence_forget(e, ++*step);
        ck_assert_int_le(++steps, 5000);
    }
    return steps;
}

/* Tried in vain each time: what may never fit ever less often, what had gone through a step later. */
static const struct {
    size_t ran;
    int steps[8];
} waits[] = {
    {0, {8, 32, 128, 512, 2048, 4096, 4096, 4096}},
    {31, {8, 32, 128, 512, 2048, 4096, 4096, 4096}},
    {32, {4, 5, 6, 7, 8, 9, 10, 11}},
    {64, {4, 5, 6, 7, 8, 9, 10, 11}},
};

START_TEST(waits_in_vain) {
    mt__evidence e = {0};
    uint64_t step = 7;

    if (waits[_i].ran > 0) mt__evidence_prove(&e, waits[_i].ran, 100);
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(steps_until_tried(&e, 32, &step), waits[_i].steps[i]);
        mt__evidence_forget(&e, ++step); /* and it is tried a step later than it may be */
    }
}
END_TEST

/* What fails again, smaller, while it is remembered was not tried in vain. */
START_TEST(waits_once) {
    static const struct {
        size_t ran;
        int steps;
    } rows[] = {{0, 8}, {64, 4}};
    mt__evidence e = {0};
    uint64_t step = 7;

    if (rows[_i].ran > 0) mt__evidence_prove(&e, rows[_i].ran, 100);
    mt__evidence_fail(&e, 64, 100, 0, step);
    ck_assert_int_eq(steps_until_tried(&e, 32, &step), rows[_i].steps);
}
END_TEST

/* Once a chunk as large goes through the next failure waits as the first; a smaller one changes nothing. */
START_TEST(patience_begins_anew) {
    static const struct {
        size_t ran, later;
        int first, second, third;
    } rows[] = {{0, 32, 8, 32, 8}, {0, 31, 8, 32, 128}, {40, 32, 4, 5, 4}, {40, 31, 4, 5, 6}};
    mt__evidence e = {0};
    uint64_t step = 0;

    if (rows[_i].ran > 0) mt__evidence_prove(&e, rows[_i].ran, 100);
    ck_assert_int_eq(steps_until_tried(&e, 32, &step), rows[_i].first);
    ck_assert_int_eq(steps_until_tried(&e, 32, &step), rows[_i].second);
    mt__evidence_ran(&e, rows[_i].later);
    ck_assert_int_eq(steps_until_tried(&e, 32, &step), rows[_i].third);
}
END_TEST

/* A larger chunk than before goes through in the shortage: it eases, so the whole is tried soon. */
START_TEST(patience_when_it_eases) {
    mt__evidence e = {0};
    uint64_t step = 0;

    mt__evidence_prove(&e, 64, 100);
    for (int i = 0; i < 6; i++) {
        (void)steps_until_tried(&e, 64, &step);
        mt__evidence_ran(&e, 8);
    }
    ck_assert_uint_eq(e.shortage.patience, 9);
    mt__evidence_fail(&e, 64, 100, 0, step);
    mt__evidence_ran(&e, 8 + (size_t)_i);
    ck_assert_uint_eq(e.shortage.patience, _i ? 4 : 10);
}
END_TEST

/* A hog that takes the room of what had gone through says nothing of what has never fitted, which is tried as seldom. */
START_TEST(a_shortage_passes_and_the_limit_stays) {
    mt__evidence e = {0};
    uint64_t step = 0;

    mt__evidence_prove(&e, 32, 100);
    for (int i = 0; i < 4; i++) (void)steps_until_tried(&e, 64, &step); /* 512 steps by now */
    mt__evidence_fail(&e, 64, 100, 0, step);
    ck_assert_int_eq(steps_until_tried(&e, 20, &step), 4);
    ck_assert(!mt__evidence_has_failed(&e, 63, 100));
    ck_assert(mt__evidence_has_failed(&e, 64, 100));
    ck_assert(!mt__evidence_has_failed(&e, 64, 101));
    mt__evidence_ran(&e, 32);
    ck_assert_int_eq(steps_until_tried(&e, 20, &step), 4);
    ck_assert(mt__evidence_has_failed(&e, 64, 100));
}
END_TEST

/* ---- corrections -------------------------------------------------------------------------------- */

/* 32 samples went through, and then sizes failed in room 1000 that were predicted to need so many bytes. */
static const struct {
    const char *name;
    struct {
        size_t samples, room, predicted;
    } failed[2];
    size_t samples, correction;
} corrections[] = {
    {"nothing failed", {{0, 0, 0}}, 64, 0},
    {"so that the prediction says so", {{64, 1000, 900}}, 64, 101},
    {"beyond half the way", {{64, 1000, 900}}, 49, 101},
    {"up to half the way", {{64, 1000, 900}}, 48, 0},
    {"twice as much when that is not enough", {{64, 1000, 900}, {64, 1000, 990}}, 64, 202},
    {"predicted to fit to the byte", {{64, 1000, 1000}}, 64, 1},
    {"predicted above the room", {{64, 1000, 1200}}, 64, 0},
    {"not predicted", {{64, 1000, 0}}, 64, 0},
    {"a room that is not known", {{64, SIZE_MAX, 900}}, 64, 0},
    {"of a size that had gone through: it needs what it needed", {{20, 1000, 900}}, 20, 0},
    {"both", {{64, 1000, 900}, {20, 1000, 990}}, 64, 101},
    {"one of both", {{64, 1000, 900}, {20, 1000, 990}}, 20, 0},
};

START_TEST(corrections_of_failures) {
    mt__evidence e = {0};

    mt__evidence_prove(&e, 32, 1000);
    for (int i = 0; i < 2 && corrections[_i].failed[i].samples > 0; i++)
        mt__evidence_fail(&e, corrections[_i].failed[i].samples, corrections[_i].failed[i].room,
                          corrections[_i].failed[i].predicted, 0);
    ck_assert_msg(
        mt__evidence_correction(&e, corrections[_i].samples) == corrections[_i].correction,
        "%s: %zu", corrections[_i].name, mt__evidence_correction(&e, corrections[_i].samples));
    e.residual = 64;
    ck_assert_uint_eq(mt__evidence_correction(&e, corrections[_i].samples),
                      corrections[_i].correction + 64);
    mt__evidence_forget(&e, 1); /* what was measured is halved */
    ck_assert_uint_eq(mt__evidence_correction(&e, corrections[_i].samples),
                      corrections[_i].correction + 32);
    mt__evidence_forget(&e, 100); /* and failures are forgotten */
    ck_assert_uint_eq(mt__evidence_correction(&e, corrections[_i].samples), 16);
}
END_TEST

/* What failed goes through in more room: while that is remembered it needs more, and what is smaller does not. */
START_TEST(corrections_in_more_room) {
    mt__evidence e = {0};

    mt__evidence_fail(&e, 64, 1000, 900, 1);
    mt__evidence_prove(&e, 80, 2000);
    ck_assert_uint_eq(mt__evidence_correction(&e, 80), 101);
    ck_assert_uint_eq(mt__evidence_correction(&e, 64), 101);
    ck_assert_uint_eq(mt__evidence_correction(&e, 63), 0);
}
END_TEST

/* The largest that went through, one that did not fit beyond any before it, and half the way between. */
START_TEST(half_way) {
    static const struct {
        size_t ran, failed, half_way;
    } rows[] = {{0, 0, 0}, {0, 64, 0}, {32, 0, 32}, {32, 64, 48}, {32, 33, 32}, {64, 32, 64}};
    mt__evidence e = {0};

    if (rows[_i].failed > 0) mt__evidence_fail(&e, rows[_i].failed, 1000, 900, 1);
    if (rows[_i].ran > 0) mt__evidence_prove(&e, rows[_i].ran, 1000);
    ck_assert_uint_eq(mt__evidence_half_way(&e), rows[_i].half_way);
}
END_TEST

/*
 * 64 samples had gone through. What fails, what goes through, what is forgotten, and the largest size to be tried
 * after it.
 */
typedef struct event {
    enum { END, FAILS, RUNS, FORGOTTEN } what;
    size_t samples, next;
} event;

static const struct {
    const char *name;
    event events[10];
} shortages[] = {
    {"the first time by thirds",
     {{FAILS, 64, 43}, {FAILS, 43, 29}, {FAILS, 29, 20}, {FAILS, 1, 0}}},
    {"in vain: one between what fits and the whole, and then what fits",
     {{FAILS, 64, 43}, {RUNS, 16, 43}, {FORGOTTEN, 0, 0}, {FAILS, 64, 32}, {FAILS, 32, 16}}},
    {"each time nearer to what fits, and then anew",
     {{FAILS, 64, 43},
      {RUNS, 4, 43},
      {FAILS, 32, 4},
      {FORGOTTEN, 0, 0},
      {FAILS, 64, 11},
      {FAILS, 11, 4},
      {FORGOTTEN, 0, 0},
      {FAILS, 64, 6},
      {FAILS, 6, 4}}},
    {"the two are near: anew from the whole",
     {{FAILS, 64, 43}, {RUNS, 4, 43}, {FAILS, 6, 4}, {FORGOTTEN, 0, 0}, {FAILS, 64, 16}}},
    {"between what fits and a whole that is less by now",
     {{FAILS, 64, 43}, {RUNS, 4, 43}, {FORGOTTEN, 0, 0}, {FAILS, 32, 11}}},
    {"what failed last is the bound while nothing fails below the whole",
     {{FAILS, 64, 43},
      {RUNS, 4, 43},
      {FAILS, 32, 4},
      {FORGOTTEN, 0, 0},
      {FAILS, 64, 11},
      {RUNS, 11, 11},
      {FORGOTTEN, 0, 0},
      {FAILS, 64, 18}}},
    {"three are near to one",
     {{FAILS, 64, 43}, {RUNS, 1, 43}, {FAILS, 3, 1}, {FORGOTTEN, 0, 0}, {FAILS, 64, 8}}},
    {"four are not",
     {{FAILS, 64, 43}, {RUNS, 1, 43}, {FAILS, 4, 1}, {FORGOTTEN, 0, 0}, {FAILS, 64, 2}}},
    {"what failed goes through in more room", {{FAILS, 20, 14}, {RUNS, 20, 14}, {FAILS, 40, 27}}},
    {"what was between fits by now",
     {{FAILS, 32, 22},
      {RUNS, 16, 22},
      {FORGOTTEN, 0, 0},
      {FAILS, 64, 22},
      {RUNS, 22, 22},
      {FORGOTTEN, 0, 0},
      {FAILS, 64, 37},
      {FAILS, 37, 22}}},
    {"still less is left",
     {{FAILS, 64, 43},
      {RUNS, 16, 43},
      {FAILS, 16, 11},
      {FAILS, 11, 8},
      {RUNS, 8, 8},
      {FAILS, 10, 8}}},
    {"nothing went through",
     {{FAILS, 64, 43}, {FORGOTTEN, 0, 0}, {FAILS, 64, 43}, {FAILS, 43, 29}}},
    {"another shortage",
     {{FAILS, 64, 43}, {RUNS, 16, 43}, {FORGOTTEN, 0, 0}, {RUNS, 64, 0}, {FAILS, 64, 43}}},
};

START_TEST(sizes_in_a_shortage) {
    mt__evidence e = {0};
    uint64_t step = 1;

    mt__evidence_prove(&e, 64, 1000);
    for (const event *it = shortages[_i].events; it->what != END; it++) {
        if (it->what == FAILS) mt__evidence_fail(&e, it->samples, 1000, 900, step);
        if (it->what == RUNS) mt__evidence_ran(&e, it->samples);
        if (it->what == FORGOTTEN) mt__evidence_forget(&e, step += 100);
        ck_assert_msg(!e.shortage.chunk || e.next == it->next, "%s: %zu after %zu",
                      shortages[_i].name, e.next, it->samples);
        ck_assert_int_eq(e.shortage.chunk > 0, it->next > 0 || it->samples == 1);
    }
}
END_TEST

/* Noted in this step, or tried again after it was forgotten. */
START_TEST(a_shortage_is_known) {
    mt__evidence e = {0};

    mt__evidence_prove(&e, 64, 1000);
    ck_assert(!mt__evidence_is_short(&e, 64, 0)); /* before the first step */
    ck_assert(!mt__evidence_is_short(&e, 64, 5));
    mt__evidence_fail(&e, 64, 1000, 0, 5);
    ck_assert(mt__evidence_is_short(&e, 1, 5));
    ck_assert(!mt__evidence_is_short(&e, 64, 6));
    mt__evidence_forget(&e, 9);
    ck_assert(mt__evidence_is_short(&e, 64, 9));
    ck_assert(!mt__evidence_is_short(&e, 63, 9));
    mt__evidence_ran(&e, 64);
    ck_assert(!mt__evidence_is_short(&e, 64, 9));
}
END_TEST

/* The least room in which the largest chunk went through. */
START_TEST(proven_rooms) {
    static const struct {
        size_t samples, room, largest, proven;
    } rows[] = {{8, 300, 8, 300}, {8, 200, 8, 200},   {8, 250, 8, 200},
                {4, 100, 8, 200}, {16, 900, 16, 900}, {8, 150, 16, 900}};
    mt__evidence e = {0};

    for (int i = 0; i < LENGTH(rows); i++) {
        mt__evidence_prove(&e, rows[i].samples, rows[i].room);
        ck_assert_uint_eq(e.largest_ran, rows[i].largest);
        ck_assert_uint_eq(e.proven_room, rows[i].proven);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("evidence");
    TCase *peaks = suite_case(suite, "peaks"), *failures = suite_case(suite, "failures");

    tcase_add_loop_test(peaks, bounds_of_one_peak, 0, LENGTH(bounds));
    tcase_add_loop_test(peaks, smallest_of_the_peaks, 0, LENGTH(lows));
    tcase_add_loop_test(peaks, bytes_on_a_line, 0, LENGTH(lines));
    tcase_add_test(peaks, proven_rooms);
    tcase_add_loop_test(failures, waits_in_vain, 0, LENGTH(waits));
    tcase_add_loop_test(failures, waits_once, 0, 2);
    tcase_add_loop_test(failures, patience_begins_anew, 0, 4);
    tcase_add_loop_test(failures, patience_when_it_eases, 0, 2);
    tcase_add_test(failures, a_shortage_passes_and_the_limit_stays);
    tcase_add_loop_test(failures, sizes_in_a_shortage, 0, LENGTH(shortages));
    tcase_add_test(failures, a_shortage_is_known);
    tcase_add_loop_test(failures, corrections_of_failures, 0, LENGTH(corrections));
    tcase_add_test(failures, corrections_in_more_room);
    tcase_add_loop_test(failures, half_way, 0, 6);
    return suite_run(suite);
}
