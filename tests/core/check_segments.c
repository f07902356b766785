/*
 * check_segments.c - which segments are computed again: against all sets of short chains, on long chains,
 * and what is refused.
 */
#include "counting_allocator.h"
#include "suite.h"

#include <memtrain/segments.h>

#include <math.h>
#include <stdint.h>

enum { MOST = 300, SHORT = 10, CHAINS = 400 };

static uint32_t state;

static size_t draw(size_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

/* Few different numbers, so that there are ties; or many. */
static void make_chain(mt_segment_cost *chain, size_t count, size_t range) {
    for (size_t i = 0; i < count; i++) {
        chain[i].output_bytes = draw(range);
        chain[i].kept_bytes = chain[i].output_bytes + draw(4 * range);
        chain[i].seconds = (double)draw(range);
        chain[i].work_bytes = 0;
    }
}

/* What operators need: more than what stays, or less, which counts for nothing. */
static void add_work(mt_segment_cost *chain, size_t count, size_t range) {
    for (size_t i = 0; i < count; i++)
        chain[i].work_bytes = draw(2) ? chain[i].kept_bytes + draw(2 * range) : draw(range);
}

static size_t alive(const mt_segment_cost *s) {
    return s->work_bytes > s->kept_bytes ? s->work_bytes : s->kept_bytes;
}

/* The sums of the header, by hand. */
static size_t peak_of(const mt_segment_cost *chain, size_t count, const unsigned char *again) {
    size_t behind = 0, peak = 0;

    for (size_t i = 0; i < count; i++) {
        if (behind + alive(&chain[i]) > peak) peak = behind + alive(&chain[i]);
        behind += again[i] ? chain[i].output_bytes : chain[i].kept_bytes;
    }
    return peak;
}

static double seconds_of(const mt_segment_cost *chain, size_t count, const unsigned char *again) {
    double seconds = 0;

    for (size_t i = 0; i < count; i++)
        if (again[i]) seconds += chain[i].seconds;
    return seconds;
}

/* The fewest seconds of all sets that keep within the budget; infinity: none does. */
static double try_all(const mt_segment_cost *chain, size_t count, size_t budget) {
    double best = HUGE_VAL;

    for (size_t set = 0; set < (size_t)1 << count; set++) {
        unsigned char again[SHORT];

        for (size_t i = 0; i < count; i++) again[i] = set >> i & 1;
        if (peak_of(chain, count, again) <= budget && seconds_of(chain, count, again) < best)
            best = seconds_of(chain, count, again);
    }
    return best;
}

/* Of a set: what was chosen, and the price of it. */
static void check_choice(const mt_segment_cost *chain, size_t count, const unsigned char *again,
                         const mt_segments_choice *choice) {
    size_t recomputed = 0;

    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_le(again[i], 1);
        recomputed += again[i];
    }
    ck_assert_uint_eq(choice->recomputed, recomputed);
    ck_assert_uint_eq(choice->peak_bytes, peak_of(chain, count, again));
    ck_assert_double_eq(choice->seconds, seconds_of(chain, count, again));
    mt_segments_choice price = MT_SEGMENTS_CHOICE_INIT;
    ck_ok(mt_segments_price(chain, count, again, &price));
    ck_assert_mem_eq(&price, choice, sizeof price);
}

TEST_LOOP("segments", best_of_all_sets, 3) {
    static const size_t ranges[] = {4, 100, 1000000};
    unsigned fitting = 0, partial = 0;

    for (uint32_t seed = 1; seed <= CHAINS; seed++) {
        mt_segment_cost chain[SHORT];
        unsigned char none[SHORT] = {0}, again[SHORT];
        mt_segments_choice choice = MT_SEGMENTS_CHOICE_INIT;
        size_t count, budget;
        double best;
        mt_status status;

        state = seed;
        count = 1 + draw(SHORT);
        make_chain(chain, count, ranges[_i]);
        if (seed % 2) add_work(chain, count, ranges[_i]);
        budget = draw(peak_of(chain, count, none) + 2);
        best = try_all(chain, count, budget);
        status = mt_segments_choose(chain, count, budget, again, &choice);
        ck_assert_msg(status == (isfinite(best) ? MT_OK : MT_EDEVMEM), "seed %u: %s", seed,
                      mt_status_name(status));
        check_choice(chain, count, again, &choice);
        if (status == MT_EDEVMEM) {
            ck_assert_uint_eq(choice.recomputed, count);
            continue;
        }
        ck_assert_msg(choice.seconds == best, "seed %u: %g s, not %g", seed, choice.seconds, best);
        ck_assert_uint_le(choice.peak_bytes, budget);
        fitting++;
        partial += choice.recomputed > 0 && choice.recomputed < count;
    }
    ck_assert_uint_gt(fitting, CHAINS / 4);
    ck_assert_uint_gt(partial, CHAINS / 10);
}

/* Bytes kept and left, seconds; budget; what is expected. */
TEST("segments", by_hand) {
    static const struct {
        size_t count, budget;
        mt_segment_cost chain[3];
        mt_status status;
        unsigned char again[3];
        size_t peak;
    } table[] = {
        /* room for all */
        {3, 30, {{10, 1, 1, 0}, {10, 1, 1, 0}, {10, 1, 1, 0}}, MT_OK, {0, 0, 0}, 30},
        /* one is enough: the cheapest, and never the last, which is alive at the peak anyway */
        {3, 29, {{10, 1, 2, 0}, {10, 1, 1, 0}, {10, 1, .5, 0}}, MT_OK, {0, 1, 0}, 21},
        {3, 12, {{10, 1, 2, 0}, {10, 1, 1, 0}, {10, 1, 1, 0}}, MT_OK, {1, 1, 0}, 12},
        {3, 11, {{10, 1, 2, 0}, {10, 1, 1, 0}, {10, 1, 1, 0}}, MT_EDEVMEM, {1, 1, 1}, 12},
        /* a peak in the middle: what comes before it counts, not the cheap one behind */
        {3, 107, {{9, 4, 1, 0}, {100, 2, 5, 0}, {3, 1, .5, 0}}, MT_OK, {1, 0, 0}, 107},
        {3, 106, {{9, 4, 1, 0}, {100, 2, 5, 0}, {3, 1, .5, 0}}, MT_OK, {1, 1, 0}, 104},
        /* a segment of no activations beside its output gains nothing by a second run */
        {2, 10, {{5, 5, 1, 0}, {5, 1, 1, 0}}, MT_OK, {0, 0, 0}, 10},
        {1, 10, {{10, 10, 1, 0}, {0, 0, 0, 0}}, MT_OK, {0}, 10},
        {1, 0, {{0, 0, 1, 0}, {0, 0, 0, 0}}, MT_OK, {0}, 0},
    };

    for (int i = 0; i < LENGTH(table); i++) {
        unsigned char again[3] = {9, 9, 9};
        mt_segments_choice choice = MT_SEGMENTS_CHOICE_INIT;

        ck_status(
            mt_segments_choose(table[i].chain, table[i].count, table[i].budget, again, &choice),
            table[i].status);
        ck_assert_msg(memcmp(again, table[i].again, table[i].count) == 0, "row %d", i);
        ck_assert_msg(choice.peak_bytes == table[i].peak, "row %d: peak %zu", i, choice.peak_bytes);
    }
}

/* Lists that are thinned out: within the budget, and no slower than 1 % beyond what a greedy choice takes. */
TEST_LOOP("segments", long_chains, 3) {
    static mt_segment_cost chain[MOST];
    static unsigned char none[MOST], all[MOST], again[MOST], greedy[MOST];
    size_t least, most;

    state = (uint32_t)_i + 1;
    make_chain(chain, MOST, 1000000);
    memset(all, 1, sizeof all);
    least = peak_of(chain, MOST, all);
    most = peak_of(chain, MOST, none);
    for (int share = 1; share < 10; share++) {
        mt_segments_choice choice = MT_SEGMENTS_CHOICE_INIT;
        size_t budget = least + (most - least) / 10 * (size_t)share;

        ck_ok(mt_segments_choose(chain, MOST, budget, again, &choice));
        check_choice(chain, MOST, again, &choice);
        ck_assert_uint_le(choice.peak_bytes, budget);
        memcpy(greedy, all, sizeof greedy);
        for (;;) { /* the one with the most seconds a byte that still fits is not computed again */
            size_t best = MOST;
            double worth = -1;

            for (size_t i = 0; i < MOST; i++) {
                double bytes = (double)(chain[i].kept_bytes - chain[i].output_bytes + 1);

                if (!greedy[i] || chain[i].seconds / bytes <= worth) continue;
                greedy[i] = 0;
                if (peak_of(chain, MOST, greedy) <= budget) {
                    worth = chain[i].seconds / bytes;
                    best = i;
                }
                greedy[i] = 1;
            }
            if (best == MOST) break;
            greedy[best] = 0;
        }
        ck_assert_double_le(choice.seconds, 1.01 * seconds_of(chain, MOST, greedy));
    }
}

TEST("segments", refused) {
    mt_segment_cost good[] = {{10, 1, 1, 0}, {10, 1, 1, 0}};
    const struct {
        mt_segment_cost second;
        const char *word;
    } table[] = {
        {{10, 11, 1, 0}, "segments[1].output_bytes is 11"},
        {{10, 1, -1, 0}, "segments[1].seconds is -1"},
        {{10, 1, NAN, 0}, "segments[1].seconds"},
        {{10, 1, INFINITY, 0}, "segments[1].seconds"},
        {{SIZE_MAX, 1, 1, 0}, "segments[1].kept_bytes"},
        {{10, 1, 1, SIZE_MAX}, "segments[1].work_bytes"},
    };
    unsigned char again[2];
    mt_segments_choice choice = MT_SEGMENTS_CHOICE_INIT, unset = {0, 0, 0, 0};

    for (int i = 0; i < LENGTH(table); i++) {
        mt_segment_cost chain[2] = {good[0], table[i].second};

        ck_refused(mt_segments_choose(chain, 2, 100, again, &choice), MT_EINVAL, table[i].word);
        ck_refused(mt_segments_price(chain, 2, NULL, &choice), MT_EINVAL, table[i].word);
    }
    ck_refused(mt_segments_price(NULL, 2, NULL, &choice), MT_EINVAL,
               "mt_segments_price: segments is NULL");
    ck_status(mt_segments_price(good, 2, NULL, NULL), MT_EINVAL);
    ck_status(mt_segments_choose(NULL, 2, 100, again, &choice), MT_EINVAL);
    ck_status(mt_segments_choose(good, 0, 100, again, &choice), MT_EINVAL);
    ck_status(mt_segments_choose(good, 2, 100, NULL, &choice), MT_EINVAL);
    ck_status(mt_segments_choose(good, 2, 100, again, NULL), MT_EINVAL);
    ck_status(mt_segments_choose(good, 2, 100, again, &unset), MT_EINVAL);
    ck_ok(mt_segments_price(good, 2, NULL, &choice));
    ck_assert_uint_eq(choice.peak_bytes, 20);
    ck_assert_uint_eq(choice.recomputed, 0);
    ck_refused(mt_segments_choose(good, 2, 10, again, &choice), MT_EDEVMEM, "11 B");
}

TEST("segments", without_host_memory) {
    mt_segment_cost chain[] = {{10, 1, 1, 0}, {10, 1, 1, 0}, {10, 1, 1, 0}};
    unsigned char again[3];
    mt_segments_choice choice = MT_SEGMENTS_CHOICE_INIT;
    size_t n = 1;

    ck_ok(counting_install());
    for (;; n++) {
        mt_status status;

        counting_fail_at(n, 0);
        status = mt_segments_choose(chain, 3, 25, again, &choice);
        ck_assert_uint_eq(counting_live(), 0);
        if (!counting_fired()) break;
        ck_assert_int_eq(status, MT_ENOMEM);
    }
    ck_assert_uint_gt(n, 4);
}

SUITE("segments")
