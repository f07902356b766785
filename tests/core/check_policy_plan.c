/*
 * check_policy_plan.c - plans, and the sizes that memory and bounds leave.
 */
#include "counting_allocator.h"
#include "policy_tests.h"
#include "suite.h"
#include "tuned.h"

#include <stdio.h>

/* ---- plans ---------------------------------------------------------------------------------- */

TEST("plan", balanced) {
    mt_plan plan;

    for (size_t samples = 1; samples <= 64; samples++)
        for (size_t chunks = 1; chunks <= samples; chunks++) {
            ck_ok(mt_plan_balanced(samples, chunks, &plan));
            ck_assert_uint_eq(plan.size, sizeof(plan));
            ck_assert_uint_eq(plan.samples, samples);
            ck_assert_int_eq(plan.discard, 0);
            check_balanced(&plan, samples, chunks);
        }
}

TEST("plan", balanced_refused) {
    mt_plan plan;

    ck_status(mt_plan_balanced(0, 0, &plan), MT_EINVAL);
    ck_status(mt_plan_balanced(0, 1, &plan), MT_EINVAL);
    ck_status(mt_plan_balanced(5, 0, &plan), MT_EINVAL);
    ck_status(mt_plan_balanced(5, 6, &plan), MT_EINVAL);
    ck_status(mt_plan_balanced(5, SIZE_MAX, &plan), MT_EINVAL);
}

TEST("plan", plan_by_hand) {
    static const size_t expected[] = {2, 4, 9, 9, 9, 8, 0, 0};
    mt_plan plan = {.size = sizeof(plan),
                    .samples = 60,
                    .groups = 4,
                    .group = {{2, 1}, {4, 1}, {9, 3}, {8, 1}}};

    ck_assert_uint_eq(mt_plan_chunks(&plan), 6);
    ck_assert_uint_eq(mt_plan_covered(&plan), 41);
    for (int i = 0; i < LENGTH(expected); i++)
        ck_assert_uint_eq(mt_plan_chunk(&plan, (size_t)i), expected[i]);
}

TEST("plan", words) {
    static const char *const reasons[] = {"start",  "throughput", "growth", "oom",
                                          "budget", "replay",     "user"};
    static const char *const phases[] = {"begin", "accumulate", "apply", "evaluate"};
    static const char *const clears[] = {"every", "evidence", "epoch", "oom"};

    for (int i = 0; i < LENGTH(reasons); i++)
        ck_assert_str_eq(mt_plan_reason_name((mt_plan_reason)i), reasons[i]);
    for (int i = 0; i < LENGTH(phases); i++)
        ck_assert_str_eq(mt_phase_name((mt_phase)i), phases[i]);
    for (int i = 0; i < LENGTH(clears); i++)
        ck_assert_str_eq(mt_clear_reason_name((mt_clear_reason)(i + 1)), clears[i]);
    ck_assert_str_eq(mt_plan_reason_name((mt_plan_reason)LENGTH(reasons)), "?");
    ck_assert_str_eq(mt_phase_name((mt_phase)LENGTH(phases)), "?");
    ck_assert_str_eq(mt_clear_reason_name((mt_clear_reason)(LENGTH(clears) + 1)), "?");
}

/* ---- sizes ---------------------------------------------------------------------------------- */

/*
 * Deterministic plans after learning, by brute force: as few balanced chunks as memory and bounds
 * allow. Rows whose bounds leave no legal cut are in bounds_conflict below.
 */
static const struct {
    size_t fits, samples, least, most;
    size_t chunks;
} cuts[] = {
    {32, 32, 0, 0, 1},   {31, 32, 0, 0, 2},   {16, 32, 0, 0, 2},   {15, 32, 0, 0, 3},
    {7, 32, 0, 0, 5},    {6, 32, 0, 0, 6},    {6, 6, 0, 0, 1},     {6, 7, 0, 0, 2},
    {100, 64, 0, 16, 4}, {100, 64, 0, 10, 7}, {12, 64, 0, 16, 6},  {12, 64, 4, 0, 6},
    {12, 64, 4, 8, 8},   {50, 5, 8, 0, 1},    {50, 17, 8, 0, 1},   {6, 512, 0, 0, 86},
    {300, 512, 0, 0, 2}, {100, 1, 0, 0, 1},   {100, 64, 0, 3, 22}, {100, 64, 0, 1, 64},
    {100, 64, 0, 2, 32},
};

TEST_LOOP("sizes", cut_deterministic, LENGTH(cuts)) {
    mt_policy_options options = {.deterministic = 1};

    options.min_micro_batch = cuts[_i].least;
    options.max_micro_batch = cuts[_i].most;
    dev = device_new(need(cuts[_i].fits), options, (mt_backend_info){0});
    ck_assert_uint_eq(device_fits(&dev), cuts[_i].fits);
    for (int step = 0; step < 4; step++) {
        train(1, cuts[_i].samples);
        check_covers(&dev, cuts[_i].samples);
        ck_assert_uint_eq(dev.ooms, 0);
        for (size_t i = 0; i < dev.count && cuts[_i].most > 0; i++)
            ck_assert_uint_le(dev.chunks[i], cuts[_i].most);
    }
    check_balanced(&dev.plan, cuts[_i].samples, cuts[_i].chunks);
}

/* The same for many budgets at once, without a table. */
TEST_LOOP("sizes", cut_property, 70) {
    size_t fits = 4 + (size_t)_i;

    dev = device_new(need(fits), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    train(1, 64);
    train(1, 1);
    ck_assert_uint_eq(dev.plan.predicted_peak_bytes, 0); /* one may have kernels of its own */
    for (size_t samples = 1; samples <= 64; samples++) {
        train(1, samples);
        ck_assert_uint_eq(dev.ooms, 0);
        check_balanced(&dev.plan, samples, (samples + fits - 1) / fits);
        ck_assert_uint_eq(dev.plan.predicted_peak_bytes, need(dev.chunks[0]));
    }
}

/*
 * No cut of 10 has all chunks between 4 and 4: no size may be tried that has just failed, but once more
 * with an empty cache.
 */
TEST("sizes", bounds_conflict) {
    dev = device_new(need(4), (mt_policy_options){.min_micro_batch = 4}, (mt_backend_info){0});
    mt_status status = device_batch(&dev, MT_TRAIN, 10);
    ck_assert(status == MT_OK || status == MT_EDEVMEM);
    for (unsigned i = 2; i < dev.ooms; i++)
        ck_assert_msg(dev.tried_too_large[i] < dev.tried_too_large[i - 2],
                      "%zu samples did not fit, and were tried again", dev.tried_too_large[i]);
    dev.budget = need(40); /* there is room now: what failed before is no obstacle */
    train(3, 10);
    check_covers(&dev, 10);
}

/* Chunks that the user has fixed: none below the smallest, and else none above the size. */
static const struct {
    size_t least, fixed, samples, chunks;
} fixed_cuts[] = {
    {0, 1, 5, 5}, {0, 2, 5, 3},  {2, 2, 3, 1},  {2, 2, 5, 2}, {2, 2, 8, 4},
    {5, 5, 8, 1}, {5, 5, 10, 2}, {5, 6, 14, 2}, {5, 9, 4, 1}, {3, 7, 15, 3},
};

TEST_LOOP("sizes", cut_fixed, 2 * LENGTH(fixed_cuts)) {
    mt_policy_options by_user = {.micro_batch = fixed_cuts[_i / 2].fixed};
    mt_backend_info info = {0};

    if (_i % 2 == 0) by_user.min_micro_batch = fixed_cuts[_i / 2].least;
    if (_i % 2 == 1) info.min_micro_batch = fixed_cuts[_i / 2].least;
    dev = device_new(need(40), by_user, info);
    train(1, fixed_cuts[_i / 2].samples);
    check_balanced(&dev.plan, fixed_cuts[_i / 2].samples, fixed_cuts[_i / 2].chunks);
}

TEST_LOOP("sizes", no_budget, 2) {
    dev = device_new(0, (mt_policy_options){0}, (mt_backend_info){.normalises_over_batch = _i});
    for (size_t samples = 1; samples < 600; samples += 37) {
        ck_ok(device_plan(&dev, MT_TRAIN, samples));
        check_balanced(&dev.plan, samples, 1);
        ck_assert_int_eq(dev.plan.discard, 0);
        ck_ok(device_chunk(&dev, MT_TRAIN, samples));
    }
}

/* The budget is not known any more after the sizes are: whole batches, and no hanging. */
TEST("endless", budget_forgotten) {
    dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});
    train(1, 32);
    dev.budget = 0;
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 1);
}

/* More budget than any memory: the same. */
TEST_LOOP("endless", budget_endless, 3) {
    static const size_t budgets[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 62};

    dev = device_new(budgets[_i], (mt_policy_options){0}, (mt_backend_info){0});
    train(1, 32);
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 1);
}

/* Known not to fit: said before anything is run. */
TEST_LOOP("sizes", nothing_fits, 2) {
    static const size_t least[] = {FIRST_CHUNK, 8}, batch = (size_t)16 * FIRST_CHUNK;
    mt_policy_options options = {.min_micro_batch = least[_i]};
    char bytes[3][32], text[300];

    dev = device_new(need(24), options, (mt_backend_info){0});
    train(1, batch);
    dev.budget = need(least[_i]) - 1;
    ck_status(device_plan(&dev, MT_TRAIN, batch), MT_EDEVMEM);
    snprintf(text, sizeof(text),
             "a chunk of %zu needs %s beside the %s in use, and the budget is %s; a budget of %zu "
             "bytes would do",
             least[_i], mt_format_size(need(least[_i]) - dev.resident, bytes[0], 32),
             mt_format_size(dev.resident, bytes[1], 32), mt_format_size(dev.budget, bytes[2], 32),
             need(least[_i]));
    ck_contains(mt_last_error(), text);
    dev.budget++;
    ck_ok(device_plan(&dev, MT_TRAIN, batch));
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), least[_i]);
    dev.budget = need(24);
    train(1, batch);
}

/* A budget in which not even the first recording fits is found out by trying. */
TEST("sizes", first_recording_does_not_fit) {
    device none = device_new(need(1) - 1, (mt_policy_options){0}, (mt_backend_info){0});

    dev = device_new(need(1), (mt_policy_options){0}, (mt_backend_info){0});
    train(1, 8);
    check_covers(&dev, 8);
    ck_assert_uint_le(dev.ooms, 3);
    ck_status(device_batch(&none, MT_TRAIN, 8), MT_EDEVMEM);
    ck_assert_uint_le(none.ooms, 5);
    mt_policy_free(none.policy);
}

TEST("sizes", fixed_micro_batch) {
    static const size_t samples[] = {32, 33, 5, 1, 64};

    dev = device_new(need(30), (mt_policy_options){.micro_batch = 8}, (mt_backend_info){0});
    for (int i = 0; i < LENGTH(samples); i++) {
        train(1, samples[i]);
        check_covers(&dev, samples[i]);
        ck_assert_uint_eq(dev.count, (samples[i] + 7) / 8);
        ck_assert_int_eq(dev.plan.reason, MT_PLAN_USER);
        for (size_t j = 0; j < dev.count; j++) ck_assert_uint_le(dev.chunks[j], 8);
    }
    ck_assert_uint_eq(dev.chunks[0], 8);
}

/* The loop at the head of memtrain/policy.h, step by step. */
static size_t step_of_the_header(size_t batch) {
    mt_policy *policy = dev.policy;
    mt_plan plan;
    size_t ran, rolled_back = 0;

    dev.ooms = 0;
    ck_ok(mt_policy_begin(policy, NULL));
plan:;
    mt_memory memory = device_memory(&dev);
    ck_ok(mt_policy_plan(policy, MT_TRAIN, batch, &memory, &plan));
    ck_assert_uint_eq(plan.rungs, 0);
    ck_assert_int_eq(plan.keep, 0);
run:
    ran = 0;
    for (size_t i = 0;; i++) {
        if (i == mt_plan_chunks(&plan) && !plan.discard && mt_plan_covered(&plan) < plan.samples)
            ck_ok(mt_policy_extend(policy, MT_TRAIN, &memory, &plan));
        size_t samples = mt_plan_chunk(&plan, i);
        if (samples == 0) break;
        /* It asks for the recording, fills it, and observes. */
        mt_status status = device_chunk(&dev, MT_TRAIN, samples);
        if (status == MT_EDEVMEM) {
            mt_oom oom = oom_explained(&dev, samples, ++dev.ooms);
            mt_action action = answer(&dev, oom);
            rolled_back += ran;
            ck_assert_int_ne(action, MT_ACTION_GIVE_UP);
            if (action == MT_ACTION_REPLAN) goto plan;
            goto run;
        }
        ck_ok(status);
        ran += samples;
    }
    if (plan.discard) {
        rolled_back += ran;
        goto plan;
    }
    ck_assert_uint_eq(ran, batch);
    return rolled_back;
}

/* It trains whole batches from the first step on; the next ones fail nowhere and throw nothing away. */
TEST_LOOP("sizes", loop_of_the_header, 4) {
    static const size_t budgets[] = {3, 12, 24, 1000};
    mt_backend_info nothing = {0};

    for (int i = 0; i < 2; i++) {
        dev = device_new(need(budgets[_i]), (mt_policy_options){0}, nothing);
        if (i) dev.records = 0;
        (void)step_of_the_header(32);
        ck_assert_uint_le(dev.ooms, 5);
        for (int step = 0; step < 10; step++) (void)step_of_the_header(32);
        ck_assert_uint_eq(step_of_the_header(32), 0);
        ck_assert_uint_eq(dev.ooms, 0);
        if (!i) free_device();
    }
}

TEST("sizes", plans_allocate_nothing) {
    mt_memory memory;

    ck_ok(counting_install());
    dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});
    counting_fail_at(1, 1);
    memory = device_memory(&dev);
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 32, &memory, &dev.plan));
    counting_fail_at(0, 0);
    train(3, 32);
    counting_fail_at(1, 1);
    for (size_t samples = 1; samples < 64; samples++) train(1, samples);
    ck_assert_uint_eq(counting_requests(), 0);
    free_device();
    ck_assert_uint_eq(counting_live(), 0);
}

int main(void) {
    suite_each_test(NULL, free_device);
    tcase_set_timeout(suite_case_named("endless"), 5);
    return suite_run_named("policy_plan");
}
