/*
 * check_policy_time.c - sizes by measured time, and by the room that is left.
 */
#include "candidates.h"
#include "policy_tests.h"
#include "suite.h"

/* ---- time ----------------------------------------------------------------------------------- */

/* Batches until all sizes are known, of which two run after the others here; and until each has run again. */
enum { LEARNT = 3 * KNOWN_RUNS + 1, AGAIN = LEARNT * RERUN_AFTER };

/* 41 s an epoch at 16 samples and 266 s at 24: seven times slower beyond the edge. */
static double cliff(size_t m) {
    return m > 16 ? 0.266 * (double)m : 0.02 + 0.041 * (double)m;
}

/* Slower a sample the larger the chunk. */
static double ever_slower(size_t m) {
    return 0.01 * (double)m * (1 + (double)m / 100);
}

/* Larger is always better. */
static double steady(size_t m) {
    return 0.05 + 0.01 * (double)m;
}

/* 12 % slower at 64 than at 16, as measured for a ResNet-18. */
static double shallow(size_t m) {
    return (double)m * (m > 32 ? 0.0112 : m > 8 ? 0.0100 : 0.0140);
}

/* A device with room for so many samples, whose chunks take so long. */
static void timed(size_t fits, double (*seconds)(size_t), int normalises) {
    mt_backend_info info = {.normalises_over_batch = normalises};

    dev = device_new(need(fits), (mt_policy_options){0}, info);
    dev.seconds = seconds;
}

static size_t largest_chunk_of_the_last(size_t samples, int steps, int last) {
    size_t largest = 0;

    for (int step = 0; step < steps; step++) {
        train(1, samples);
        check_covers(&dev, samples);
        for (size_t i = 0; i < dev.count && step >= steps - last; i++)
            largest = dev.chunks[i] > largest ? dev.chunks[i] : largest;
    }
    return largest;
}

/* That is between these. */
static void check_largest(size_t samples, int steps, int last, size_t least, size_t most) {
    size_t largest = largest_chunk_of_the_last(samples, steps, last);

    ck_assert_uint_ge(largest, least);
    ck_assert_uint_le(largest, most);
}

TEST("time", time_cliff) {
    timed(200, cliff, 0);
    check_largest(96, 120, 40, 8, 16); /* a second run of 20 is behind */
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_THROUGHPUT);
    ck_assert_double_eq_tol(mt_policy_predict_seconds(dev.policy, MT_TRAIN, dev.chunks[0]),
                            cliff(dev.chunks[0]), 1e-12);
    ck_assert_double_eq(mt_policy_predict_seconds(dev.policy, MT_TRAIN, 199), 0);
}

/* Ten samples are a small share of what fits, and eleven take several times as long. */
static double cliff_at_the_end(size_t m) {
    return 0.0028 + 0.0005 * (double)m * (m > 10 ? 5 : 1);
}

TEST_LOOP("time", time_cliff_where_the_search_ends, 2) {
    timed(85, cliff_at_the_end, _i);
    ck_assert_uint_le(largest_chunk_of_the_last(118, 20, 10), 10);
    /* Of the candidates 8 is the fastest; 9 are as good where they ran: what was left had so many. LEAST_NORMALISED */
    ck_assert_uint_eq(dev.count, _i ? 14 : 15);
}

/* More room comes, of which even a small share lies beyond the cliff: what was measured to be fast stays. */
TEST_LOOP("time", time_cliff_and_more_room, 4) {
    static const size_t batches[] = {99, 118, 155, 270};

    timed(12, cliff_at_the_end, 0);
    ck_assert_uint_le(largest_chunk_of_the_last(batches[_i], 20, 5), 10);
    dev.budget = need(600);
    ck_assert_uint_le(largest_chunk_of_the_last(batches[_i], 40, 10), 10);
}

/* Still smaller ones would be chosen for speed, but layers normalise over them. */
TEST("time", time_of_too_small_chunks) {
    timed(32, ever_slower, 1);
    for (size_t samples = 2 * LEAST_NORMALISED; samples < 64; samples++) {
        (void)largest_chunk_of_the_last(samples, 5, 1);
        for (size_t i = 0; i < dev.count; i++) ck_assert_uint_ge(dev.chunks[i], LEAST_NORMALISED);
    }
}

/* In an evaluation they do no harm. */
TEST("time", time_of_small_chunks_in_an_evaluation) {
    timed(32, ever_slower, 1);
    for (int batch = 0; batch < 20; batch++) ck_ok(device_batch(&dev, MT_EVALUATE, 32));
    ck_assert_uint_lt(dev.chunks[0], LEAST_NORMALISED);
}

TEST("time", time_steady) {
    timed(200, steady, 0);
    ck_assert_uint_eq(largest_chunk_of_the_last(96, 60, 40), 96);
    ck_assert_uint_eq(dev.count, 1);
}

/* What was fastest and then becomes slow is left, though it was fast once. */
static double throttled(size_t m) {
    return m > 32 ? 0.05 * (double)m : 0.05 + 0.01 * (double)m;
}

TEST("time", time_gets_worse) {
    timed(200, steady, 0);
    ck_assert_uint_eq(largest_chunk_of_the_last(96, 60, 40), 96);
    dev.seconds = throttled;
    check_largest(96, 150, 40, 16, 32);
}

/*
 * Other kernels from 16 samples on, and each size's first run sets its kernels up, which is most of the time
 * of the small sizes that are recorded: a depthwise network on one thread.
 */
static double with_set_up(size_t m) {
    static unsigned char has_run[256];
    double set_up = has_run[m] ? 0 : 0.03;

    has_run[m] = 1;
    return set_up + (double)m * (m < 16 ? 0.0027 : 0.0032);
}

TEST("time", time_of_small_sizes_is_found_out) {
    timed(200, with_set_up, 0);
    check_largest(64, AGAIN, 3, 8, 15);
}

TEST("time", time_shallow) {
    timed(200, shallow, 0);
    check_largest(64, 2 * AGAIN, AGAIN, 9, 32);
}

/* The candidate that comes after the recording of a first chunk, where that is all that tells what fits. */
static size_t candidate_after(size_t first, size_t samples, int normalises) {
    size_t known = largest_balanced(samples, device_bound(&dev, first));

    return smallest_candidate(known, normalises);
}

/* The next larger one. */
static size_t candidate_above(size_t candidate, size_t largest) {
    size_t power = 1;

    while (power <= candidate) power *= 2;
    return power < largest ? power : largest;
}

/* The largest that is tried: up to one that is much slower than a smaller one. */
static size_t last_candidate(size_t candidate, size_t largest, double (*seconds)(size_t)) {
    double best = seconds(FIRST_CHUNK) / FIRST_CHUNK;

    for (;; candidate = candidate_above(candidate, largest)) {
        double rate = seconds(candidate) / (double)candidate;

        if (candidate == largest || rate > CLIFF * best) return candidate;
        best = rate < best ? rate : best;
    }
}

/*
 * The first batch begins with a recording, which does not count where layers normalise, and the smallest candidate: a
 * power of two from a share of the largest chunk on. Sizes grow from there unless that makes them much slower.
 */
static const struct {
    double (*seconds)(size_t);
    size_t room;
    int normalises;
} first_chunks[] = {
    {steady, 200, 0}, {steady, 200, 1},      {ever_slower, 200, 0},
    {steady, 20, 1},  {ever_slower, 200, 1}, {steady, 12, 0},
};

TEST_LOOP("time", time_of_the_first_batches, LENGTH(first_chunks)) {
    size_t first, last, largest, later;
    size_t recordings = first_chunks[_i].normalises ? 0 : 1; /* that are chunks of the batch */

    timed(first_chunks[_i].room, first_chunks[_i].seconds, first_chunks[_i].normalises);
    first = candidate_after(FIRST_CHUNK, 96, first_chunks[_i].normalises);
    last = last_candidate(first, largest_balanced(96, first_chunks[_i].room),
                          first_chunks[_i].seconds);
    largest = largest_chunk_of_the_last(96, 1, 1);
    ck_assert_uint_eq(dev.chunks[recordings], first);
    later = largest_chunk_of_the_last(96, 9, 9);
    ck_assert_uint_eq(later > largest ? later : largest, last);
}

/* Whether one of so many first chunks had that size. */
static int has_run(size_t samples, size_t chunks) {
    while (chunks > 0 && dev.chunks[chunks - 1] != samples) chunks--;
    return chunks > 0;
}

/*
 * All chunks of a first batch: a recording of the smallest legal size, which does not count where layers normalise; then
 * each candidate once, each larger than the last, as far as there are samples, or groups of a plan; and what is left,
 * in sizes that ran but for the last chunk.
 */
static void check_first_batch(size_t room, size_t least, size_t samples, int normalises) {
    size_t first = least > FIRST_CHUNK ? least : FIRST_CHUNK;
    size_t largest = largest_balanced(samples, room), i = 0;
    size_t next = candidate_after(first, samples, normalises);

    if (!normalises) ck_assert_uint_eq(dev.chunks[i++], first);
    if (next <= first) next = candidate_above(first, largest);
    if (!normalises) samples -= first;
    while (next <= samples && i < MT_PLAN_GROUPS - 3) {
        ck_assert_uint_eq(dev.chunks[i++], next);
        samples -= next;
        if (next == largest) break;
        next = candidate_above(next, largest);
    }
    for (size_t ran = i; i < dev.count; i++) {
        ck_assert(has_run(dev.chunks[i], ran) || i + 1 == dev.count);
        samples -= dev.chunks[i];
    }
    ck_assert_uint_eq(samples, 0);
}

static const struct {
    size_t room, least, samples;
} first_batches[] = {
    {200, 0, 64}, /* the largest is left to the next */
    {30, 0, 100}, /* what fits is less */
    {71, 0, 500}, /* that is more than a plan has room for */
    {20, 4, 45},  /* what is left is larger, and fits */
};

TEST_LOOP("time", time_of_the_first_batch, LENGTH(first_batches)) {
    size_t room = first_batches[_i].room, least = first_batches[_i].least;

    dev =
        device_new(need(room), (mt_policy_options){.min_micro_batch = least}, (mt_backend_info){0});
    dev.seconds = steady;
    train(1, first_batches[_i].samples);
    check_first_batch(room, least, first_batches[_i].samples, 0);
}

/*
 * The same where kernels are said to change at some size: two recordings on both sides of it tell nothing together, so
 * that peaks are not foretold until there are two on one side. No chunk runs for that alone.
 */
static const struct {
    size_t room, change, samples;
    int deterministic, normalises;
    size_t least;
    size_t learnt[5], chunks[9]; /* taken back, and of a batch that no times have a part in */
} changes[] = {
    {200, 16, 64, 0, 0, 0, {0}, {0}},
    {200, 48, 120, 0, 0, 0, {0}, {0}},
    {600, 16, 400, 0, 0, 0, {0}, {0}},           /* its share is larger */
    {200, 16, 64, 1, 0, 0, {FIRST_CHUNK}, {64}}, /* growth is a matter of times */
    {30, 16, 40, 1, 0, 0, {FIRST_CHUNK, 2 * FIRST_CHUNK, 20}, {20, 20}},
    /* Nothing so large fits. */
    {14, 16, 40, 1, 0, 0, {FIRST_CHUNK, 2 * FIRST_CHUNK, 14}, {14, 13, 13}},
    {200, 16, 12, 1, 0, 0, {FIRST_CHUNK}, {12}},
    {200, 16, 16, 1, 1, 0, {FIRST_CHUNK}, {16}},
    {600, 16, 256, 0, 1, 0, {FIRST_CHUNK}, {0}},
    {200, 1, 64, 1, 0, 0, {FIRST_CHUNK}, {64}},
    {200, 16, 30, 1, 0, 4, {4}, {30}},
    {200, 16, 24, 1, 1, 2, {FIRST_CHUNK}, {24}},
    {200, 16, 64, 1, 0, 8, {8}, {64}},
};

/* Whether these are the first of a list that ends with 0. */
static void check_begins(const size_t *chunks, const size_t *expected, size_t most) {
    for (size_t i = 0; i < most && expected[i]; i++) ck_assert_uint_eq(chunks[i], expected[i]);
}

TEST_LOOP("time", time_of_a_change, LENGTH(changes)) {
    mt_policy_options options = {.deterministic = changes[_i].deterministic,
                                 .min_micro_batch = changes[_i].least};
    mt_backend_info info = {.normalises_over_batch = changes[_i].normalises,
                            .kernels_change = changes[_i].change};
    size_t count;

    dev = device_new(need(changes[_i].room), options, info);
    dev.seconds = steady;
    train(1, changes[_i].samples);
    check_begins(dev.learnt, changes[_i].learnt, LENGTH(changes[_i].learnt));
    check_begins(dev.chunks, changes[_i].chunks, LENGTH(changes[_i].chunks));
    check_covers(&dev, changes[_i].samples);
    if (!options.deterministic)
        check_first_batch(changes[_i].room, 0, changes[_i].samples, changes[_i].normalises);
    count = dev.count;
    train(1, changes[_i].samples);
    if (options.deterministic) ck_assert_uint_eq(dev.count, count); /* as the first */
    train(5, 128);
    ck_assert_uint_eq(dev.ooms, 0);
    ck_assert(dev.plan.predicted_peak_bytes > 0);
}

/* More room than before, and no chunk that large was recorded: the batch itself is. */
TEST("time", time_of_a_change_met_late) {
    mt_policy_options options = {.deterministic = 1};

    dev = device_new(need(12), options, (mt_backend_info){.kernels_change = 16});
    train(4, 24);
    check_balanced(&dev.plan, 24, 2);
    dev.budget = 0; /* no budget, and no matter */
    ck_ok(device_plan(&dev, MT_TRAIN, 24));
    check_balanced(&dev.plan, 24, 1);
    dev.budget = need(100);
    train(1, 24);
    ck_assert_uint_eq(dev.plan.predicted_peak_bytes, 0); /* of kernels not met yet */
    ck_assert_uint_eq(dev.learnt_count, 0);
    ck_assert_uint_eq(dev.count, 1);
    train(1, 24);
    ck_assert_uint_eq(dev.plan.predicted_peak_bytes, need(24));
    ck_assert_uint_eq(dev.learnt_count, 0);
    ck_assert_uint_eq(dev.count, 1);
}

/* First batches too small to be cut: they are the recording, and the next batch has none taken back. */
static const struct {
    size_t change, least, first, samples;
} small_first[] = {{16, 0, FIRST_CHUNK, 64}, {5, 8, 3, 64}, {40, 16, 7, 64}};

TEST_LOOP("time", time_of_a_small_first_batch, LENGTH(small_first)) {
    mt_policy_options options = {.deterministic = 1, .min_micro_batch = small_first[_i].least};
    mt_backend_info info = {.kernels_change = small_first[_i].change};

    dev = device_new(need(200), options, info);
    train(1, small_first[_i].first);
    train(1, small_first[_i].samples);
    ck_assert_uint_eq(dev.learnt_count, 0);
    ck_assert_uint_eq(dev.count, 1);
    check_covers(&dev, small_first[_i].samples);
}

/* A small first batch, and then twice that is still below the smallest legal chunk, or leaves less than one. */
TEST_LOOP("time", time_of_growth_is_legal, 2) {
    static const size_t first[] = {7, 12}, samples[] = {40, 38};

    dev = device_new(need(30), (mt_policy_options){.min_micro_batch = 16}, (mt_backend_info){0});
    dev.seconds = steady;
    train(1, first[_i]);
    if (_i == 1) dev.budget = need(40);
    for (int batch = 0; batch < 5; batch++) {
        train(1, samples[_i]);
        for (size_t i = 0; i < dev.count; i++) ck_assert_uint_ge(dev.chunks[i], 16);
    }
}

/* Some chunks, from the n-th of all on, take longer for a reason of the machine's. */
static struct {
    int chunk, first, count;
    double factor;
} hiccup;

static double with_hiccup(size_t m) {
    int since = ++hiccup.chunk - hiccup.first;
    return steady(m) * (since >= 0 && since < hiccup.count ? hiccup.factor : 1);
}

/* The chunks from first on, so many, are slower by that factor; the largest size is found all the same. */
static void find_the_largest(int normalises, int first, int count, double factor, int batches) {
    timed(200, with_hiccup, normalises);
    hiccup.chunk = 0;
    hiccup.first = first;
    hiccup.count = count;
    hiccup.factor = factor;
    train(batches, 64);
    ck_assert_uint_eq(dev.count, 1);
    ck_assert_uint_eq(dev.chunks[0], 64);
}

/* Whichever chunk of the first batches it was. */
TEST_LOOP("time", time_of_a_hiccup, 48) {
    static const double factors[] = {1.2, 1.35};

    find_the_largest(_i % 2, _i / 2 % 12 + 1, 1, factors[_i / 24], LEARNT);
}

/* The machine is a fifth slower for a while: a larger size that met it has other runs, ever later. */
TEST_LOOP("time", time_of_a_slow_while, 96) {
    static const struct {
        int chunks, batches;
    } rows[] = {{2, AGAIN}, {4, AGAIN}, {8, 2 * AGAIN}, {16, 2 * AGAIN}};

    find_the_largest(_i % 2, _i / 2 % 12 + 1, rows[_i / 24].chunks, 1.2, rows[_i / 24].batches);
}

/* Half of 19 samples, all that fit, are set-up. */
static double half_set_up(size_t m) {
    return 0.020 + 0.001 * (double)m;
}

/* Beside a size that runs again there are no crumbs: 256 samples are 14 chunks of 19 at the least. */
TEST("time", time_of_what_is_left) {
    timed(19, half_set_up, 0);
    train(1, 256);
    for (int batch = 0; batch < 20; batch++) {
        train(1, 256);
        ck_assert_uint_le(dev.count, 17);
    }
}

static double cliff_at_41(size_t m) {
    return 0.020 + 0.001 * (double)m * (m > 40 ? 3 : 1);
}

static int is_balanced(void) {
    for (size_t i = 1; i < dev.count; i++)
        if (dev.chunks[0] - dev.chunks[i] > 1) return 0; /* larger ones count as well */
    return 1;
}

/* Where batches are of many sizes, chunks that run to be known cost little: beyond the cliff none runs. */
TEST("time", time_of_varying_batches) {
    uint64_t state = 5;
    double took = 0, best = 0;

    timed(60, cliff_at_41, 0);
    for (int batch = 0; batch < 2000; batch++) {
        size_t samples = 33 + (size_t)(fake_random(&state) % 32);

        train(1, samples);
        if (batch < 1000) continue;
        for (size_t i = 0; i < dev.count; i++) took += cliff_at_41(dev.chunks[i]);
        best += samples > 40 ? 2 * cliff_at_41(samples / 2) + (samples % 2 ? 0.001 : 0)
                             : cliff_at_41(samples);
    }
    ck_assert_double_le(took, 1.03 * best);
}

/* Larger is always better, but to run for the first time costs much: memory that was never touched. */
static size_t touched;

static double with_first_touch(size_t m) {
    double touch = m > touched ? 0.100 * (double)(m - touched) : 0;

    touched = m > touched ? m : touched;
    return touch + steady(m);
}

/* A first run of a large chunk that took several batches' time is followed by a second, in the end. */
TEST("time", time_of_first_touches) {
    dev = device_new(need(20), (mt_policy_options){0}, (mt_backend_info){0});
    touched = 0;
    dev.seconds = with_first_touch;
    (void)largest_chunk_of_the_last(120, 2, 2);
    dev.budget = need(200);
    ck_assert_uint_eq(largest_chunk_of_the_last(120, 500, 10), 120);
}

/* From 16 samples on a fifth slower, or by more than any size may be that is followed by a larger one. */
static double edge(size_t m) {
    return 0.0001 + (double)m * (m < 16 ? 0.0027 : 0.0032);
}

static double steep_edge(size_t m) {
    return 0.0001 + (double)m * 0.0027 * (m < 16 ? 1 : 1.25 * CLIFF);
}

/*
 * Each size runs in the first batches, the larger ones later; beyond a cliff none does, and what is left has a size that ran.
 * What is the fastest is known once each has run as often as it takes, or that 16 are much slower.
 */
static const struct {
    double (*seconds)(size_t);
    size_t first[8], second[8];
    int known; /* batches until all are of 8 */
} edges[] = {
    {edge, {16, 32, 8}, {16, 32, 8}, 2 * KNOWN_RUNS},
    {steep_edge, {16, 16, 16, 8}, {8, 8, 8, 8, 8, 8, 8}, 1},
};

TEST_LOOP("time", time_of_an_edge, 2) {
    timed(200, edges[_i].seconds, 1);
    for (int batch = 0; batch < edges[_i].known; batch++) {
        train(1, 56);
        check_covers(&dev, 56);
        if (batch == 0) check_begins(dev.chunks, edges[_i].first, 8);
        if (batch == 1) check_begins(dev.chunks, edges[_i].second, 8);
    }
    train(1, 56);
    check_balanced(&dev.plan, 56, 7);
}

/* The fastest of those that fit, not the fastest. */
TEST("time", time_within_memory) {
    timed(20, steady, 0);
    ck_assert_uint_eq(largest_chunk_of_the_last(96, 60, 40), 20);
    ck_assert_uint_eq(dev.ooms, 0);
}

TEST("time", time_deterministic) {
    mt_policy_options options = {.deterministic = 1};
    device both[2];

    for (int d = 0; d < 2; d++) both[d] = device_new(need(40), options, (mt_backend_info){0});
    both[0].seconds = cliff;
    both[1].seconds = steady;
    for (int step = 0; step < 30; step++) {
        for (int d = 0; d < 2; d++)
            ck_ok(device_batch(&both[d], MT_TRAIN, step % 3 == 2 ? 50 : 96));
        ck_assert_uint_eq(both[0].count, both[1].count);
        ck_assert_mem_eq(both[0].chunks, both[1].chunks, both[0].count * sizeof(size_t));
    }
    check_balanced(&both[0].plan, 50, 2);
    mt_policy_free(both[0].policy);
    mt_policy_free(both[1].policy);
}

/* Nor does a size run again. */
TEST_LOOP("time", time_does_not_run_again, 2) {
    int again = 0;

    dev = device_new(need(40), (mt_policy_options){.deterministic = _i == 0}, (mt_backend_info){0});
    dev.seconds = steady;
    train(1, 80);
    for (int batch = 0; batch < 20; batch++) {
        train(1, 80);
        again += !is_balanced();
    }
    ck_assert_int_eq(again == 0, _i == 0);
}

/* A single sample may take kernels of its own: it does not run again as a chunk of a larger batch. */
TEST("time", time_of_one_sample) {
    static const size_t batches[] = {1, 2, 2, 3};

    timed(40, steady, 0);
    for (int batch = 0; batch < LENGTH(batches); batch++) train(1, batches[batch]);
    check_balanced(&dev.plan, 3, 1);
}

/* ---- room ----------------------------------------------------------------------------------- */

TEST("room", room_shrinks_and_grows) {
    dev = device_new(need(40), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    train(2, 64);
    check_balanced(&dev.plan, 64, 2);
    dev.budget = need(20);
    train(1, 64);
    check_balanced(&dev.plan, 64, 4);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_BUDGET);
    ck_assert_uint_eq(dev.ooms, 0);
    dev.budget = need(70);
    train(1, 64);
    check_balanced(&dev.plan, 64, 1);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_GROWTH);
}

/* More allocated at the start leaves as much less room as a smaller budget. */
TEST("room", room_is_what_is_left) {
    dev = device_new(need(40), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    train(1, 64);
    dev.resident += need(40) - need(20);
    train(1, 64);
    check_balanced(&dev.plan, 64, 4);
}

/* A plan is as it is for the reason that made it so, until there is another. */
TEST("room", reasons_stay) {
    static const struct {
        size_t fits;
        mt_plan_reason reason;
    } rows[] = {{40, MT_PLAN_START},  {40, MT_PLAN_START},  {20, MT_PLAN_BUDGET},
                {20, MT_PLAN_BUDGET}, {40, MT_PLAN_GROWTH}, {40, MT_PLAN_GROWTH}};

    dev = device_new(need(40), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    train(1, 64);
    for (int i = 0; i < LENGTH(rows); i++) {
        dev.budget = need(rows[i].fits);
        train(1, 64);
        ck_assert_int_eq(dev.plan.reason, rows[i].reason);
    }
}

/* Times are one, of a batch size that had another and of a new one. */
TEST("room", speed_is_a_reason) {
    dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});
    train(3, 96);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_START);
    dev.seconds = cliff;
    train(3, 16);
    ck_assert_uint_le(largest_chunk_of_the_last(96, 10, 1), 16);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_THROUGHPUT);
    ck_ok(device_plan(&dev, MT_TRAIN, 80));
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_THROUGHPUT);
}

TEST("room", another_batch_size_is_a_start) {
    dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});
    train(2, 64);
    ck_ok(device_plan(&dev, MT_TRAIN, 17));
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_START);
}

DEVICE_SUITE("policy_time")
