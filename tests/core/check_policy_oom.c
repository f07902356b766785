/*
 * check_policy_oom.c - what an OOM is answered with, and what is remembered of it.
 */
#include "candidates.h"
#include "policy_state.h"
#include "policy_tests.h"
#include "suite.h"
#include "tuned.h"

/* The device has learnt, and is at a plan of two chunks of 32. */
static void learn(mt_policy_options options) {
    dev = device_new(need(40), options, (mt_backend_info){0});
    train(2, 64);
}

/*
 * Chunks of 32 do not fit any more: smaller ones are planned for some steps, since what took the room may have
 * passed by then.
 */
TEST("oom", oom_by_the_budget) {
    learn((mt_policy_options){.deterministic = 1});
    size_t failed = mt_plan_chunk(&dev.plan, 0);
    ck_assert_uint_eq(failed, 32);
    ck_assert_int_eq(answer(&dev, oom_explained(&dev, failed, 1)), MT_ACTION_REPLAN);
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_OOM);
    for (int step = 0; step < FAILURE_WAIT; step++) {
        ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), failed);
        train(1, 64);
    }
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), failed);
}

/* Refused again and again: each plan is smaller than what has failed, until none is left. */
TEST_LOOP("oom", oom_again_and_again, 2) {
    mt_action action = MT_ACTION_REPLAN;
    mt_status status = MT_OK;
    unsigned attempt = 0;
    size_t last = SIZE_MAX;

    learn((mt_policy_options){.deterministic = _i});
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    while (status == MT_OK && action != MT_ACTION_GIVE_UP) {
        size_t m = mt_plan_chunk(&dev.plan, 0);

        if (action == MT_ACTION_REPLAN) ck_assert_uint_lt(m, last);
        last = m;
        ck_assert_uint_le(++attempt, DEFAULT_RETRIES + 1);
        action = answer(&dev, oom_explained(&dev, m, attempt));
        if (action == MT_ACTION_REPLAN) status = device_plan(&dev, MT_TRAIN, 64);
    }
    ck_assert(status == MT_EDEVMEM || status == MT_OK);
}

/* A first refusal beside a cache, and its answer; what is not told of leaves no evidence. */
static const struct {
    const char *name;
    int is_told;
    size_t chunk, missing, cached; /* samples, 0: outside of a chunk; bytes above the budget */
    mt_action expected;
} refusals[] = {
    {"as much as there was", 1, 32, 0, 0, MT_ACTION_RETRY},
    {"a byte more", 1, 32, 1, 0, MT_ACTION_REPLAN},
    {"above the budget with an empty cache too", 1, 32, 1, 4096, MT_ACTION_REPLAN},
    {"no evidence and no cache", 0, 32, 0, 0, MT_ACTION_REPLAN},
    {"no evidence and a cache", 0, 32, 0, 1, MT_ACTION_CLEAR},
    {"no chunk and no evidence", 0, 0, 0, 0, MT_ACTION_RETRY},
    {"no chunk, with evidence", 1, 0, 1, 0, MT_ACTION_GIVE_UP},
};

TEST_LOOP("oom", oom_at_first, LENGTH(refusals)) {
    learn((mt_policy_options){.deterministic = 1});
    mt_oom oom = oom_explained(&dev, refusals[_i].chunk, 1);
    oom.refused_in_use_bytes = dev.budget - 4096 + refusals[_i].missing;
    oom.memory.reserved_bytes += refusals[_i].cached;
    if (!refusals[_i].is_told) oom.refused = oom.refused_bytes = oom.refused_in_use_bytes = 0;
    ck_assert_msg(answer(&dev, oom) == refusals[_i].expected, "%s", refusals[_i].name);
}

/* What is remembered is the room that the chunk began with, whatever is in use when it has failed. */
TEST("oom", oom_in_the_room_of_before) {
    learn((mt_policy_options){.deterministic = 1});
    mt_oom oom = oom_explained(&dev, 32, 1);
    oom.memory.allocated_bytes = oom.memory.reserved_bytes = dev.budget;
    ck_assert_int_eq(answer(&dev, oom), MT_ACTION_REPLAN);
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    ck_ok(device_plan(&dev, MT_TRAIN, 64)); /* the next step */
    ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), 32);
}

/* One clear for each chunk size, whichever reason was seen first. */
TEST("oom", oom_explained_after_a_clear) {
    learn((mt_policy_options){.deterministic = 1});
    mt_oom oom = oom_explained(&dev, 32, 3);
    oom.memory.reserved_bytes += 8192;
    for (unsigned attempt = 1; attempt <= 2; attempt++)
        ck_assert(is_again(answer(&dev, oom_injected(&dev, 32, attempt))));
    ck_assert_int_eq(answer(&dev, oom), MT_ACTION_REPLAN);
}

/* Chunks do not fit in this step, but what happens outside of them may be an accident all the same. */
TEST("oom", oom_outside_in_a_shortage) {
    mt_oom oom = {.size = sizeof(oom), .phase = MT_PHASE_APPLY, .attempt = 2};

    learn((mt_policy_options){.deterministic = 1});
    ck_assert_int_eq(answer(&dev, oom_explained(&dev, 32, 1)), MT_ACTION_REPLAN);
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    oom.memory = device_memory(&dev);
    ck_assert(is_again(answer(&dev, oom)));
}

/* Of an evaluation there is no second set of gradients to give up, though the last step had one. */
TEST("oom", oom_of_an_evaluation) {
    mt_backend_info info = {.keeps_chunks = 1, .gradient_bytes = 100};
    mt_oom oom;

    dev = device_new(need(40), (mt_policy_options){.keep_chunks = MT_KEEP_ALWAYS}, info);
    train(2, 32);
    ck_assert_int_eq(dev.plan.keep, 1);
    ck_ok(device_batch(&dev, MT_EVALUATE, 32));
    ck_assert_int_eq(dev.plan.keep, 0);
    ck_ok(device_plan(&dev, MT_EVALUATE, 1));
    oom = oom_untold(1, 1);
    oom.mode = MT_EVALUATE;
    ck_assert(is_again(answer(&dev, oom)));
}

/* An accident: the same again, an empty cache, other chunks. */
TEST("oom", oom_answers_in_order) {
    static const mt_action actions[] = {MT_ACTION_RETRY, MT_ACTION_CLEAR, MT_ACTION_REPLAN};

    learn((mt_policy_options){.deterministic = 1});
    for (unsigned i = 0; i < LENGTH(actions); i++)
        ck_assert_int_eq(answer(&dev, oom_injected(&dev, 32, i + 1)), actions[i]);
}

/* Chunks of an evaluation that went through stay, so the next one has answers of its own. */
TEST("oom", accidents_of_an_evaluation) {
    learn((mt_policy_options){.deterministic = 1});
    ck_ok(device_plan(&dev, MT_EVALUATE, 100));
    for (unsigned chunk = 1; chunk <= 2 * DEFAULT_RETRIES; chunk++) {
        mt_oom oom = oom_injected(&dev, 3, chunk);

        oom.mode = MT_EVALUATE;
        ck_assert_int_eq(answer(&dev, oom), MT_ACTION_RETRY);
        ck_ok(device_chunk(&dev, MT_EVALUATE, 3));
    }
}

/* Injected: the same plan once more, and nothing is learnt. */
TEST("oom", oom_not_by_the_budget) {
    learn((mt_policy_options){.deterministic = 1});
    mt_plan before = dev.plan;
    size_t bytes = mt_policy_predict_bytes(dev.policy, MT_TRAIN, 32);
    for (int step = 0; step < 10; step++) {
        ck_assert(is_again(answer(&dev, oom_injected(&dev, 32, 1))));
        ck_ok(device_plan(&dev, MT_TRAIN, 64));
        check_balanced(&dev.plan, 64, mt_plan_chunks(&before));
        ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 32), bytes);
        train(1, 64);
    }
}

/* Whatever is answered to endless refusals, it ends; the next step is as if nothing had been. */
TEST_LOOP("oom", oom_injected_for_ever, 4) {
    static const unsigned retries[] = {0, 1, 3, 30};
    unsigned bound = retries[_i] > 0 ? retries[_i] : DEFAULT_RETRIES, attempt = 0;
    mt_action action;

    learn((mt_policy_options){.deterministic = 1, .max_retries = retries[_i]});
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    do {
        size_t m = mt_plan_chunk(&dev.plan, 0);

        ck_assert_uint_le(++attempt, bound + 1);
        action = answer_and_plan(oom_injected(&dev, m, attempt), 64);
    } while (action != MT_ACTION_GIVE_UP);
    ck_assert_uint_gt(attempt, 1);
    train(1, 64);
    check_balanced(&dev.plan, 64, 2);
}

/* Another process has left room for so many samples, and nobody tells. */
static mt_oom oom_in_a_shortage(size_t left, size_t chunk, unsigned attempt) {
    mt_oom oom = oom_injected(&dev, chunk, attempt);

    oom.refused_in_use_bytes = dev.resident + rung_peak(0, left);
    oom.refused_bytes = 1;
    return oom;
}

/* Refusals that the budget does not explain, until the chunk is cut. */
static void cut_unexplained(void) {
    mt_action action = MT_ACTION_RETRY;

    for (unsigned attempt = 1; action != MT_ACTION_REPLAN; attempt++) {
        ck_assert_uint_le(attempt, 4);
        action = answer_and_plan(oom_in_a_shortage(20, 32, attempt), 64);
    }
    ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), 32);
}

/* Not the device's memory was refused, and so no bytes are told: halves, at once when it is known, and nothing of the device. */
TEST("oom", other_memory_than_the_devices) {
    learn((mt_policy_options){.deterministic = 1});
    const size_t bytes = mt_policy_predict_bytes(dev.policy, MT_TRAIN, 32);
    size_t chunk = 32;
    for (unsigned attempt = 1; chunk > 8; attempt++) {
        mt_oom oom = oom_injected(&dev, chunk, attempt);
        oom.refused_bytes = oom.refused_in_use_bytes = 0;
        mt_action action = answer(&dev, oom);
        if (chunk == 32 && is_again(action)) continue; /* as any accident, until it is known */
        ck_assert_int_eq(action, MT_ACTION_REPLAN);
        chunk /= 2;
        ck_ok(device_plan(&dev, MT_TRAIN, 64));
        ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), chunk);
    }
    for (int step = 0; step < FAILURE_WAIT; step++) {
        ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), 16);
        ck_assert_uint_ge(mt_plan_chunk(&dev.plan, 0), 8);
        train(1, 64);
    }
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 32);
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 32), bytes);
}

/* A step that is cut for that has met something that takes memory: for some steps there is as much less. */
TEST("oom", unexplained_again) {
    learn((mt_policy_options){.deterministic = 1});
    for (int round = 0; round < 3; round++) {
        cut_unexplained();
        for (int step = 1; step < SHORTAGE_WAIT; step++) {
            train(1, 64);
            ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), 32);
        }
        train(1, 64);
        ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 32);
    }
}

/* Evaluations are steps like others: each is one fewer for which the limit holds. */
TEST_LOOP("oom", a_shortage_in_evaluations, SHORTAGE_WAIT) {
    learn((mt_policy_options){.deterministic = 1});
    cut_unexplained();
    for (int step = 0; step < _i; step++) ck_ok(device_batch(&dev, MT_EVALUATE, 64));
    for (int step = _i + 1; step < SHORTAGE_WAIT; step++) {
        train(1, 64);
        ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), 32);
    }
    train(1, 64);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 32);
}

/* A step that gives up tells nothing of a shortage that was met before it. */
TEST("oom", a_shortage_outlives_giving_up) {
    learn((mt_policy_options){.deterministic = 1});
    cut_unexplained();
    ck_ok(device_plan(&dev, MT_EVALUATE, 64));
    mt_oom oom = oom_injected(&dev, 2, 1);
    oom.mode = MT_EVALUATE;
    for (oom.plan_is_fixed = 1; answer(&dev, oom) != MT_ACTION_GIVE_UP; oom.attempt++)
        ck_assert_uint_le(oom.attempt, DEFAULT_RETRIES);
    train(1, 64);
    ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), 32);
}

/* What takes the memory of one device takes none of another's. */
TEST("oom", a_shortage_stays_behind) {
    mt_policy_options options = {.deterministic = 1, .allow_rungs = MT_RUNG_BIT(MT_RUNG_CPU)};
    unsigned attempt = 0;

    dev = device_new(need(40), options, (mt_backend_info){.rungs = MT_RUNG_BIT(MT_RUNG_CPU)});
    dev.cpu_budget = need(400);
    train(1, 64);
    while (!dev.rungs) {
        ck_assert_uint_le(++attempt, 30);
        answer_and_plan(oom_in_a_shortage(1, mt_plan_chunk(&dev.plan, 0), attempt), 64);
    }
    train(1, 64);
    check_balanced(&dev.plan, 64, 1);
}

/* In a shortage that lasts each try costs one OOM, or two: no second try, no clear, no way down from the top. */
TEST_LOOP("oom", a_try_in_vain, 2) {
    size_t tried = 0;

    learn((mt_policy_options){.deterministic = 1});
    for (int step = 0; step < 60; step++) {
        unsigned ooms = 0;

        ck_ok(device_plan(&dev, MT_TRAIN, 64));
        while (mt_plan_chunk(&dev.plan, 0) > 8) { /* another process has left room for 8 */
            mt_oom oom = oom_in_a_shortage(8, mt_plan_chunk(&dev.plan, 0), ++ooms);

            oom.memory.reserved_bytes += _i ? 2000 : 0;
            answer_and_plan(oom, 64);
        }
        for (size_t i = 0; i < 8; i++) ck_ok(device_chunk(&dev, MT_TRAIN, 8));
        tried += ooms > 0;
        if (tried > 2) ck_assert_uint_le(ooms, 3);
    }
    ck_assert_uint_ge(tried, 5);
    ck_assert_uint_le(tried, 10);
}

/* Steps from one with room for fewer samples than it tries to the next that tries 32 at once. */
static int steps_until_tried(size_t left) {
    for (int steps = 0;; steps++) {
        unsigned ooms = 0;

        ck_assert_int_le(steps, 2 * SHORTAGE_WAIT);
        ck_ok(device_plan(&dev, MT_TRAIN, 64));
        if (steps > 0 && mt_plan_chunk(&dev.plan, 0) == 32) return steps;
        while (mt_plan_chunk(&dev.plan, 0) > left)
            answer_and_plan(oom_in_a_shortage(left, mt_plan_chunk(&dev.plan, 0), ++ooms), 64);
        for (size_t i = 0; i < mt_plan_chunks(&dev.plan); i++)
            ck_ok(device_chunk(&dev, MT_TRAIN, mt_plan_chunk(&dev.plan, i)));
    }
}

/* A shortage that is still there holds a step longer; a tighter one is another, with a wait of its own. */
TEST("oom", another_shortage) {
    learn((mt_policy_options){.deterministic = 1});
    ck_assert_int_eq(steps_until_tried(20), SHORTAGE_WAIT);
    ck_assert_int_eq(steps_until_tried(20), SHORTAGE_WAIT + 1);
    ck_assert_int_eq(steps_until_tried(20), SHORTAGE_WAIT + 2);
    ck_assert_int_eq(steps_until_tried(8), SHORTAGE_WAIT);
    ck_assert_int_eq(steps_until_tried(8), SHORTAGE_WAIT + 1);
    ck_assert_int_eq(steps_until_tried(20), SHORTAGE_WAIT + 2); /* its limit stays */
    ck_assert_int_eq(steps_until_tried(8), SHORTAGE_WAIT + 3);
}

/* Fixed chunks, by replay or by the options, are tried again but never cut anew. */
TEST_LOOP("oom", oom_fixed_plan, 4) {
    mt_action action;
    unsigned attempt = 0;

    learn((mt_policy_options){.micro_batch = _i / 2 == 0 ? 0 : 32});
    do {
        mt_oom oom =
            _i % 2 == 0 ? oom_explained(&dev, 32, ++attempt) : oom_injected(&dev, 32, ++attempt);

        oom.plan_is_fixed = _i / 2 == 0;
        ck_assert_uint_le(attempt, DEFAULT_RETRIES + 1);
        action = answer(&dev, oom);
        ck_assert_int_ne(action, MT_ACTION_REPLAN);
    } while (action != MT_ACTION_GIVE_UP);
    train(1, 64);
    check_balanced(&dev.plan, 64, 2); /* nothing was learnt */
}

/* A replay takes no rung, which it has not run with; a step in chunks of the user's size does. */
TEST_LOOP("oom", oom_fixed_plan_and_rungs, 2) {
    const unsigned rung = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    mt_policy_options options = {.micro_batch = 32, .allow_rungs = rung};
    mt_action action = MT_ACTION_RETRY;

    dev = device_new(need(40), options, (mt_backend_info){.rungs = rung});
    train(1, 64);
    for (unsigned attempt = 1; action == MT_ACTION_RETRY || action == MT_ACTION_CLEAR; attempt++) {
        mt_oom oom = oom_injected(&dev, 32, attempt);

        oom.plan_is_fixed = _i;
        action = answer(&dev, oom);
    }
    ck_assert_int_eq(action, _i ? MT_ACTION_GIVE_UP : MT_ACTION_REPLAN);
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    ck_assert_int_eq(dev.plan.reason, _i ? MT_PLAN_USER : MT_PLAN_OOM);
}

/* Outside of a chunk there is nothing to make smaller. */
TEST_LOOP("oom", oom_outside_a_chunk, 2) {
    static const mt_phase phases[] = {MT_PHASE_BEGIN, MT_PHASE_APPLY};
    mt_oom oom = {.size = sizeof(oom), .phase = phases[_i]};
    unsigned attempt = 0;

    learn((mt_policy_options){.deterministic = 1});
    oom.memory = device_memory(&dev);
    do {
        oom.attempt = ++attempt;
        ck_assert_uint_le(attempt, DEFAULT_RETRIES + 1);
    } while (answer(&dev, oom) != MT_ACTION_GIVE_UP);
    train(1, 64);
    check_balanced(&dev.plan, 64, 2);
}

/* What failed in little room may be tried in more. */
TEST("oom", oom_is_forgotten_in_more_room) {
    learn((mt_policy_options){.deterministic = 1});
    ck_assert_int_eq(answer(&dev, oom_explained(&dev, 32, 1)), MT_ACTION_REPLAN);
    train(1, 64);
    ck_assert_uint_lt(dev.chunks[0], 32);
    dev.budget = 4 * need(64);
    train(1, 64);
    check_balanced(&dev.plan, 64, 1);
}

/* What once failed in little room is no reason against a cut that is made for another reason. */
TEST("oom", oom_long_ago) {
    mt_action action = MT_ACTION_RETRY;

    dev = device_new(need(12), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    train(1, 64);
    ck_assert_int_eq(answer(&dev, oom_explained(&dev, 5, 1)), MT_ACTION_REPLAN);
    train(1, 64);
    dev.budget = need(400);
    train(1, 64);
    check_balanced(&dev.plan, 64, 1);
    for (unsigned attempt = 1; attempt < 8 && action != MT_ACTION_REPLAN; attempt++) {
        action = answer(&dev, oom_injected(&dev, 64, attempt));
        ck_assert_int_ne(action, MT_ACTION_GIVE_UP);
    }
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    ck_assert_uint_ge(mt_plan_chunks(&dev.plan), 2);
    train(1, 64); /* more than was said to be left */
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 1); /* nothing was learnt */
}

/* No budget is known: sizes shrink by half, not by one chunk, until they fit. */
TEST("oom", oom_without_a_budget) {
    mt_action action = MT_ACTION_REPLAN;
    size_t chunk = 90;
    unsigned attempt = 0;

    dev = device_new(0, (mt_policy_options){0}, (mt_backend_info){0});
    ck_ok(device_plan(&dev, MT_TRAIN, 90));
    ck_ok(device_chunk(&dev, MT_TRAIN, 4));
    while (chunk > 8) {
        mt_oom oom = oom_explained(&dev, chunk, ++attempt);

        oom.memory.budget_bytes = 0;
        action = answer(&dev, oom);
        ck_assert_int_eq(action, MT_ACTION_REPLAN);
        ck_ok(device_plan(&dev, MT_TRAIN, 90));
        ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), largest_balanced(90, chunk / 2));
        chunk = mt_plan_chunk(&dev.plan, 0);
    }
}

/* Half of what failed may be less than is legal: then the smallest legal chunk is tried. */
static const struct {
    size_t samples, least, smallest;
} halves[] = {{17, 8, 9},    {15, 8, 15}, {16, 8, 8}, {23, 8, 12},
              {100, 30, 34}, {5, 2, 3},   {3, 1, 1}};

TEST_LOOP("oom", oom_down_to_the_smallest, LENGTH(halves)) {
    mt_action action = MT_ACTION_REPLAN;
    size_t chunk = halves[_i].samples;

    dev = device_new(0, (mt_policy_options){.min_micro_batch = halves[_i].least},
                     (mt_backend_info){0});
    ck_ok(device_plan(&dev, MT_TRAIN, halves[_i].samples));
    for (unsigned attempt = 1; action != MT_ACTION_GIVE_UP; attempt++) {
        mt_oom oom = oom_explained(&dev, chunk, attempt);

        ck_assert_uint_le(attempt, DEFAULT_RETRIES + 1);
        oom.memory.budget_bytes = 0;
        action = answer_and_plan(oom, halves[_i].samples);
        chunk = mt_plan_chunk(&dev.plan, 0);
    }
    ck_assert_uint_eq(chunk, halves[_i].smallest);
}

/* Eight refusals without evidence that never come again: the plan is as before some batches later. */
TEST("oom", oom_that_passes_is_forgotten) {
    size_t before;

    dev = device_new(need(64), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    train(2, 128);
    before = mt_plan_chunks(&dev.plan);
    for (unsigned attempt = 1; attempt <= 8; attempt++)
        answer_and_plan(oom_untold(mt_plan_chunk(&dev.plan, 0), attempt), 128);
    ck_assert_uint_gt(mt_plan_chunks(&dev.plan), before);
    train(100, 128);
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), before);
    ck_assert_uint_eq(dev.ooms, 0);
}

/* ---- a cache in the way ---------------------------------------------------------------------- */

/* Without evidence, beside a cache: all that a device like MPS tells. */
static mt_oom oom_beside_a_cache(size_t chunk, unsigned attempt) {
    mt_oom oom = oom_untold(chunk, attempt);

    oom.memory.reserved_bytes += 2000;
    return oom;
}

/* Down to one sample, each size is tried again with an empty cache, within the retries there are. */
TEST_LOOP("oom", each_size_has_its_clear, 6) {
    static const size_t batches[] = {8, 64, 256};
    mt_action action = MT_ACTION_REPLAN, before;
    unsigned attempt = 0;
    size_t chunk;

    dev = device_new(_i < 3 ? 0 : need(64), (mt_policy_options){0}, (mt_backend_info){0});
    dev.records = 0; /* nothing but the budget is known, or not even that: 0 */
    ck_ok(device_plan(&dev, MT_TRAIN, batches[_i % 3]));
    do {
        before = action;
        chunk = mt_plan_chunk(&dev.plan, 0);
        action = answer_and_plan(oom_beside_a_cache(chunk, ++attempt), batches[_i % 3]);
        if (before == MT_ACTION_REPLAN) ck_assert_int_eq(action, MT_ACTION_CLEAR);
        if (before == MT_ACTION_CLEAR) ck_assert_int_ne(action, MT_ACTION_CLEAR);
    } while (action != MT_ACTION_GIVE_UP);
    ck_assert_uint_eq(chunk, 1);
    ck_assert_uint_le(attempt, 2 * DEFAULT_RETRIES + 1);
}

/* Memory runs out before the first plan of a step: what may pass is tried, and then there is nothing to make smaller. */
TEST_LOOP("oom", oom_before_a_plan, 8) {
    mt_policy_options options = {.allow_rungs = _i % 2 ? MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH) : 0};
    mt_backend_info info = {.rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING)};
    size_t chunk = _i & 4 ? 8 : 0;

    dev = device_new(need(40), options, info);
    if (_i & 2) train(1, 32);
    ck_ok(mt_policy_begin(dev.policy, NULL));
    mt_oom oom = oom_explained(&dev, chunk, 1);
    oom.phase = chunk ? MT_PHASE_ACCUMULATE : MT_PHASE_BEGIN;
    ck_assert_int_eq(answer(&dev, oom), MT_ACTION_GIVE_UP);
    oom = oom_injected(&dev, chunk, 1);
    ck_assert(is_again(answer(&dev, oom)));
    ck_ok(device_batch(&dev, MT_TRAIN, 20));
    check_covers(&dev, 20);
    ck_assert_uint_eq(dev.plan.rungs, 0);
}

/* What is told before the first plan of a step does not make it a part of the step before. */
TEST_LOOP("oom", told_before_a_plan, 2) {
    mt_backend_info info = {.rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING), .min_micro_batch = 2};

    dev = device_new(need(40), (mt_policy_options){0}, info);
    train(3, 32);
    ck_ok(mt_policy_begin(dev.policy, NULL));
    ck_ok(_i ? mt_policy_replan(dev.policy)
             : mt_policy_rung_failed(dev.policy, MT_RUNG_AMP, 1, MT_ENOTSUP));
    dev.budget = need(2) - 1;
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    check_covers(&dev, 32);
    ck_assert_uint_eq(dev.plan.rungs, MT_RUNG_BIT(MT_RUNG_CHECKPOINTING));
}

/* That small chunks need more may be told by a file, before any chunk ran: larger ones are no larger than is allowed. */
TEST("oom", too_small_before_any_ran) {
    dev = device_new(need(40), (mt_policy_options){.max_micro_batch = 2}, (mt_backend_info){0});
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    mt__policy_current(dev.policy, MT_TRAIN)->too_small = 2;
    for (unsigned attempt = 1; attempt <= 4; attempt++) {
        if (answer_and_plan(oom_injected(&dev, 2, attempt), 64) == MT_ACTION_GIVE_UP) break;
        ck_assert_uint_le(mt_plan_chunk(&dev.plan, 0), 2);
    }
}

int main(void) {
    suite_each_test(NULL, free_device);
    tcase_set_tags(suite_case_named("oom"), "oom");
    return suite_run_named("policy_oom");
}
