/*
 * check_policy_learn.c - what the first chunks teach.
 */
#include "candidates.h"
#include "policy_state.h"
#include "policy_tests.h"
#include "suite.h"

TEST("learning", learning_open) {
    dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = device_memory(&dev);
    size_t known = largest_balanced(32, device_bound(&dev, FIRST_CHUNK));
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_int_eq(dev.plan.discard, 0);
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 1);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), FIRST_CHUNK);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_START);
    dev.seconds = fake_seconds;
    ck_ok(device_chunk(&dev, MT_TRAIN, FIRST_CHUNK));
    ck_ok(mt_policy_extend(dev.policy, MT_TRAIN, &memory, &dev.plan));
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 2); /* and the smallest candidate to grow from */
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 1), smallest_candidate(known, 0));
}

/*
 * A deterministic run learns from chunks that it takes back, the last of them as large as its own: so the first batch is
 * cut as later ones are, and as that of a run that goes on. What the first chunk tells is a bound that may be far too
 * high, so twice as many run too. A batch that fits whole has nothing above it to learn of.
 */
static const struct {
    size_t room, least, samples, learnt[4], chunks[4];
} repeatable[] = {
    {12, 0, 32, {FIRST_CHUNK, 2 * FIRST_CHUNK, 11}, {11, 11, 10}},
    {40, 0, 32, {FIRST_CHUNK, 2 * FIRST_CHUNK}, {32}},
    {12, 0, FIRST_CHUNK + 1, {FIRST_CHUNK}, {FIRST_CHUNK + 1}}, /* too few for a size between */
    {12, 4, 11, {4, 6}, {11}},                                  /* chunks of at least 4 */
};

TEST_LOOP("learning", learning_repeatable, LENGTH(repeatable)) {
    mt_policy_options options = {.deterministic = 1, .min_micro_batch = repeatable[_i].least};

    dev = device_new(need(repeatable[_i].room), options, (mt_backend_info){0});
    for (int batch = 0; batch < 3; batch++) {
        train(1, repeatable[_i].samples);
        for (size_t i = 0; i < 4; i++) {
            size_t learnt = i < dev.learnt_count ? dev.learnt[i] : 0;
            size_t chunk = i < dev.count ? dev.chunks[i] : 0;

            ck_assert_uint_eq(learnt, batch ? 0 : repeatable[_i].learnt[i]);
            ck_assert_uint_eq(chunk, repeatable[_i].chunks[i]);
        }
        ck_assert_uint_eq(dev.ooms, 0);
    }
}

/* A chunk to learn from that has not run has taught nothing: the step has failed for another reason, or is planned anew. */
TEST_LOOP("learning", learning_of_what_has_not_run, 2) {
    dev = device_new(need(12), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    for (int tries = 0; tries < 3; tries++) {
        ck_ok(device_plan(&dev, MT_TRAIN, 32));
        ck_assert_int_eq(dev.plan.discard, 1);
        ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), FIRST_CHUNK);
        ck_ok(_i ? mt_policy_replan(dev.policy) : mt_policy_begin(dev.policy, NULL));
    }
}

/* A batch that is made smaller, as where it cannot be split, is no kind of its own: its plans count once. */
TEST_LOOP("learning", plans_of_a_smaller_batch, 2) {
    mt_policy_options options = {.allow_rungs = MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH)};
    uint64_t before;

    dev = device_new(need(_i ? 20 : 40), options, (mt_backend_info){.needs_whole_batch = 1});
    train(3, 32);
    ck_assert_int_eq(dev.rungs != 0, _i);
    before = mt__policy_current(dev.policy, MT_TRAIN)->plans;
    train(3, 32);
    ck_assert_uint_eq(mt__policy_current(dev.policy, MT_TRAIN)->plans, before + 3);
}

/*
 * A recording is of one shape and one size: what was begun for another is not learnt from. Two of the same size have no line
 * through them.
 */
TEST("learning", learning_of_its_own) {
    mt_policy *policy = NULL;
    mt_recording *recording;
    const mt_shape shapes[] = {{.id = 1}, {.id = 2}};
    const mt_chunk_result result = {.size = sizeof result, .peak_bytes = 1600};

    ck_ok(mt_policy_new(NULL, NULL, &policy));
    ck_ok(mt_policy_begin(policy, &shapes[0]));
    recording = mt_policy_recording(policy, MT_TRAIN, 16);
    mt_recording_event(recording, &policy, 1600);
    ck_ok(mt_policy_observe(policy, MT_TRAIN, 16, 0, &result));
    ck_ok(mt_policy_begin(policy, &shapes[1]));
    recording = mt_policy_recording(policy, MT_TRAIN, 16);
    mt_recording_event(recording, &policy, 3200);
    ck_ok(mt_policy_begin(policy, &shapes[0]));
    ck_ok(mt_policy_observe(policy, MT_TRAIN, 16, 0, &result));
    recording = mt_policy_recording(policy, MT_TRAIN, 8);
    mt_recording_event(recording, &policy, 3200);
    ck_ok(mt_policy_observe(policy, MT_TRAIN, 4, 0, &result)); /* another size */
    ck_assert_uint_eq(mt_policy_predict_bytes(policy, MT_TRAIN, 16), 1600);
    mt_policy_free(policy);
}

/* The bytes are exact from the second chunk on, and recording is over. */
TEST("learning", learning_is_exact) {
    dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), 0);
    train(1, 32);
    check_covers(&dev, 32);
    ck_assert_uint_eq(dev.ooms, 0);
    for (size_t m = 1; m < 100; m++)
        ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, m),
                          fake_program_peak(&fake_train_program, m));
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(dev.plan.predicted_peak_bytes, need(mt_plan_chunk(&dev.plan, 0)));
    train(1, 32); /* of 11 samples */
    ck_assert_ptr_null(mt_policy_recording(dev.policy, MT_TRAIN, 7));
}

TEST("learning", learning_discards) {
    mt_backend_info info = {.normalises_over_batch = 1};

    dev = device_new(need(12), (mt_policy_options){0}, info);
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_int_eq(dev.plan.discard, 0); /* it is not known yet that larger ones come */
    ck_assert_uint_eq(mt_plan_covered(&dev.plan), FIRST_CHUNK);
    train(1, 32);
    ck_assert_uint_eq(dev.discarded, FIRST_CHUNK);
    for (size_t i = 0; i < dev.count; i++) ck_assert_uint_gt(dev.chunks[i], FIRST_CHUNK);
    check_covers(&dev, 32);
    train(1, 32);
    ck_assert_uint_eq(dev.discarded, 0);
}

/* The least chunk that normalises well, and the candidate from there on. */
#define WELL LEAST_NORMALISED
#define SMALL POWER_FROM(WELL)

/*
 * What is taken back: a first chunk, or the smallest legal one, that is less than half of those to come, or of the least that
 * normalises well. Any other counts.
 */
static const struct {
    size_t room, samples, most, least, change;
    int deterministic, untimed;
    size_t discarded, next; /* samples, and the first chunk that counts; 0: as the bound has it */
} discards[] = {
    {100, 64, 0, 0, 0, 0, 0, FIRST_CHUNK, SMALL},
    {100, 400, 0, 0, 0, 0, 0, FIRST_CHUNK, 0},
    {1000, 400, 0, 0, 0, 0, 0, FIRST_CHUNK, 0},
    {100, WELL + SMALL, 0, 0, 0, 0, 0, FIRST_CHUNK, SMALL},
    {100, WELL + SMALL + 1, 0, 0, 0, 0, 0, FIRST_CHUNK, SMALL},
    {100, WELL + SMALL - 1, 0, 0, 0, 0, 0, FIRST_CHUNK, WELL + SMALL - 1},
    {16, 64, 0, 0, 0, 0, 0, 0, 0},
    {100, 64, 16, 0, 0, 0, 0, FIRST_CHUNK, SMALL},
    {100, 64, 0, WELL / 2 - 1, 0, 0, 0, WELL / 2 - 1, 0},
    {100, 64, 0, WELL / 2, 0, 0, 0, 0, WELL / 2},
    {100, 64, 0, WELL, 0, 0, 0, 0, WELL},
    {100, 64, 0, 0, 8, 0, 0, FIRST_CHUNK, SMALL},
    {100, 64, 0, 0, 2, 0, 0, FIRST_CHUNK, SMALL},
    {1000, 400, 0, 0, 50, 0, 0, FIRST_CHUNK, 0},
    {100, 64, 0, 0, 0, 1, 0, 3 * FIRST_CHUNK, 64},
    {100, 64, 0, 0, 0, 0, 1, FIRST_CHUNK, 0},
    {17, 64, 0, 0, 0, 0, 0, 0, 0},
    {18, 64, 0, 0, 0, 0, 0, 0, 0},
};

TEST_LOOP("learning", learning_discards_little, LENGTH(discards)) {
    mt_policy_options options = {.deterministic = discards[_i].deterministic,
                                 .max_micro_batch = discards[_i].most,
                                 .min_micro_batch = discards[_i].least};
    mt_backend_info info = {.normalises_over_batch = 1, .kernels_change = discards[_i].change};
    size_t discarded = discards[_i].discarded, next = discards[_i].next, known;

    dev = device_new(need(discards[_i].room), options, info);
    known = largest_balanced(discards[_i].samples,
                             device_bound(&dev, discarded ? discarded : FIRST_CHUNK));
    if (!discarded && !discards[_i].least) discarded = FIRST_CHUNK;
    if (!next && discards[_i].untimed) next = known;
    if (!next) next = known < WELL ? known : smallest_candidate(known, 1);
    if (!discards[_i].untimed) dev.seconds = fake_seconds;
    train(1, discards[_i].samples);
    ck_assert_uint_eq(dev.discarded, discarded);
    ck_assert_uint_eq(dev.chunks[0], next);
    check_covers(&dev, discards[_i].samples);
    /* The model is as exact as ever. */
    for (size_t m = WELL; m < 100 && !discards[_i].change; m++)
        ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, m),
                          fake_program_peak(&fake_train_program, m));
    for (int batch = 0; batch < 5; batch++) {
        train(1, discards[_i].samples);
        ck_assert_uint_eq(dev.discarded, 0);
        ck_assert_uint_eq(dev.ooms, 0);
        for (size_t i = 0; i < dev.count; i++) ck_assert_uint_ge(dev.chunks[i], WELL);
    }
}

/* Once it is known that larger chunks come, none is taken back, whatever the next batch is. */
TEST_LOOP("learning", learning_discards_once, 4) {
    static const size_t after[] = {15, 4, 3, 16};
    mt_backend_info info = {.normalises_over_batch = 1};
    size_t failed;

    dev = device_new(need(100), (mt_policy_options){0}, info);
    dev.seconds = fake_seconds;
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_ok(device_attempt(&dev, MT_TRAIN, &failed));
    ck_assert_int_eq(dev.plan.discard, 1);
    train(1, after[_i]);
    ck_assert_uint_eq(dev.discarded, 0);
    for (int batch = 0; batch < 2; batch++) {
        train(1, 3);
        ck_assert_uint_eq(dev.discarded, 0);
        ck_assert_uint_eq(dev.count, 1);
    }
}

/* Evaluation does not normalise over the chunk: nothing is thrown away. It learns on its own. */
TEST("learning", learning_by_mode) {
    mt_backend_info info = {.normalises_over_batch = 1};

    dev = device_new(need(12), (mt_policy_options){0}, info);
    train(1, 32);
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_EVALUATE, 8), 0);
    ck_ok(device_plan(&dev, MT_EVALUATE, 32));
    ck_assert_int_eq(dev.plan.discard, 0);
    ck_assert_uint_lt(mt_plan_covered(&dev.plan), 32);
    ck_ok(device_batch(&dev, MT_EVALUATE, 32));
    ck_assert_uint_gt(mt_policy_predict_bytes(dev.policy, MT_EVALUATE, 8), 0);
}

/* Batches of every size as the first one, for every smallest legal chunk. */
TEST_LOOP("learning", learning_any_batch, 40) {
    size_t samples = (size_t)_i + 1;

    for (size_t least = 0; least <= 9; least++)
        for (int normalises = 0; normalises < 2; normalises++) {
            mt_backend_info info = {.min_micro_batch = least, .normalises_over_batch = normalises};

            dev = device_new(need(30), (mt_policy_options){0}, info);
            for (int step = 0; step < 3; step++) {
                train(1, samples);
                check_covers(&dev, samples);
                ck_assert_uint_eq(dev.ooms, 0);
                for (size_t i = 0; i < dev.count; i++)
                    ck_assert(dev.chunks[i] >= least || samples < least);
            }
            free_device();
        }
}

/* The backend's, or the user's where there is one. */
TEST_LOOP("learning", learning_from_the_smallest_legal, 2) {
    static const size_t by_user[] = {0, FIRST_CHUNK + 1}, first[] = {8, FIRST_CHUNK + 1};

    dev = device_new(need(40), (mt_policy_options){.min_micro_batch = by_user[_i]},
                     (mt_backend_info){.min_micro_batch = 8});
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), first[_i]);
    ck_assert_uint_eq(mt_plan_covered(&dev.plan), first[_i]);
}

/* A backend without recordings: sizes are found by trying, from the peaks that were measured. */
TEST("learning", learning_without_recordings) {
    dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});
    dev.records = 0;
    for (int step = 0; step < 20; step++) {
        train(1, 32);
        check_covers(&dev, 32);
    }
    ck_assert_uint_eq(dev.ooms, 0);
    ck_assert_uint_le(dev.count, 8);
}

/* A recording that an OOM cut short is not taken for that of a later chunk. */
TEST("learning", learning_after_an_oom) {
    mt_chunk_result result = {.size = sizeof(result)};

    dev = device_new(need(1), (mt_policy_options){0}, (mt_backend_info){0});
    mt_recording *recording = mt_policy_recording(dev.policy, MT_TRAIN, 2);
    ck_assert_ptr_nonnull(recording);
    mt_recording_event(recording, &dev, 100);
    answer(&dev, oom_explained(&dev, 2, 1));
    ck_ok(mt_policy_observe(dev.policy, MT_TRAIN, 1, dev.resident, &result));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 1), 0);
}

/* ---- plans in parts ---------------------------------------------------------------------------- */

enum { GRADIENT = 20000, IN_USE = 50000 }; /* bytes */

/* Of a chunk with 1000 bytes a sample, 500 more for a while, and a gradient before and after that. */
static size_t peak_of_parts(size_t m, int keep) {
    size_t before = 1000 * m + GRADIENT, during = 1500 * m + (keep ? GRADIENT : 0);
    size_t after = 1000 * m + (keep ? 2 : 1) * (size_t)GRADIENT;
    size_t most = before > during ? before : during;

    return most > after ? most : after;
}

static void record_parts(mt_recording *recording, size_t m) {
    static char block[4];

    mt_recording_event(recording, &block[0], (int64_t)(1000 * m));
    mt_recording_event(recording, &block[1], GRADIENT);
    mt_recording_event(recording, &block[1], 0);
    mt_recording_event(recording, &block[2], (int64_t)(500 * m));
    mt_recording_event(recording, &block[2], -1);
    mt_recording_event(recording, &block[3], GRADIENT);
    mt_recording_event(recording, &block[3], 0);
    mt_recording_event(recording, &block[0], -1);
    mt_recording_event(recording, &block[1], -1);
    mt_recording_event(recording, &block[3], -1);
}

/* Runs a chunk and returns its peak. */
static size_t run_parts(mt_policy *policy, const mt_plan *plan, size_t m) {
    mt_recording *recording = mt_policy_recording(policy, MT_TRAIN, m);
    mt_chunk_result result = {.size = sizeof(result), .units = (double)m};

    if (recording) record_parts(recording, m);
    result.peak_bytes = IN_USE + peak_of_parts(m, plan->keep);
    result.seconds = 0.020 + 0.001 * (double)m;
    ck_ok(mt_policy_observe(policy, MT_TRAIN, m, IN_USE, &result));
    return result.peak_bytes;
}

/* Runs a batch and returns its highest peak; *plan is the last one, whole. */
static size_t batch_in_parts(mt_policy *policy, size_t samples, const mt_memory *memory,
                             mt_plan *plan) {
    size_t most, m;

    do {
        most = 0;
        ck_ok(mt_policy_plan(policy, MT_TRAIN, samples, memory, plan));
        for (size_t i = 0;; i++) {
            m = mt_plan_chunk(plan, i);
            if (!m && !plan->discard && mt_plan_covered(plan) < samples) {
                ck_ok(mt_policy_extend(policy, MT_TRAIN, memory, plan));
                m = mt_plan_chunk(plan, i);
            }
            if (!m) break;
            size_t peak = run_parts(policy, plan, m);
            most = peak > most ? peak : most;
        }
    } while (plan->discard);
    return most;
}

/* A chunk that runs before the rest of its batch counts, with the second set of gradients that it may have had. */
TEST_LOOP("learning", plans_in_parts_tell_their_peak, 12) {
    mt_backend_info info = {.keeps_chunks = 1, .gradient_bytes = 2 * GRADIENT};
    mt_memory memory = {.size = sizeof(memory)};
    mt_plan plan;

    info.normalises_over_batch = _i % 2;
    memory.allocated_bytes = memory.reserved_bytes = IN_USE;
    for (size_t samples = 8; samples < 250; samples += 4) {
        mt_policy *policy = policy_new((mt_policy_options){0}, info);

        memory.budget_bytes = IN_USE + peak_of_parts(8 + 16 * (size_t)(_i / 2), 1);
        for (int batch = 0; batch < 12; batch++) {
            size_t most = batch_in_parts(policy, samples, &memory, &plan);

            ck_assert_uint_le(most, memory.budget_bytes);
            if (plan.predicted_peak_bytes) ck_assert_uint_eq(plan.predicted_peak_bytes, most);
        }
        mt_policy_free(policy);
    }
}

DEVICE_SUITE("policy_learn")
