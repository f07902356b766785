/*
 * check_policy_clear.c - when the cache is emptied.
 */
#include "policy_device.h"
#include "suite.h"
#include "tuned.h"

static mt_memory cached(size_t allocated, size_t reserved, uint64_t retries) {
    mt_memory memory = {.size = sizeof(memory)};

    memory.budget_bytes = 1000;
    memory.allocated_bytes = allocated;
    memory.reserved_bytes = reserved;
    memory.alloc_retries = retries;
    return memory;
}

static void spend(mt_policy *policy, double seconds) {
    mt_chunk_result result = {.size = sizeof(result), .seconds = seconds};

    ck_ok(mt_policy_observe(policy, MT_TRAIN, 8, 0, &result));
}

static const struct {
    const char *name;
    int every;
    size_t allocated, reserved;
    uint64_t retries; /* there were 5 before */
    mt_mode before, now;
    mt_clear_reason expected;
} clears[] = {
    {"nothing cached", 0, 300, 300, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"a cache", 0, 300, 400, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"a large cache", 0, 300, 401, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"all of the budget", 0, 300, 1000, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"more than the budget", 0, 300, 1001, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_EVIDENCE},
    {"the allocator had to retry", 0, 300, 390, 6, MT_TRAIN, MT_TRAIN, MT_CLEAR_EVIDENCE},
    {"retries of before", 0, 300, 390, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"another mode alone", 0, 300, 900, 5, MT_TRAIN, MT_EVALUATE, MT_CLEAR_NOT},
    {"and back", 0, 300, 900, 5, MT_EVALUATE, MT_TRAIN, MT_CLEAR_NOT},
    {"never, with all evidence", -1, 300, 900, 9, MT_TRAIN, MT_EVALUATE, MT_CLEAR_NOT},
    {"epochs alone, with all evidence", -2, 300, 1100, 9, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
};

TEST_LOOP("cache", clear_automatic, LENGTH(clears)) {
    mt_policy_options options = {.clear_every = clears[_i].every,
                                 .eval_clear_every =
                                     clears[_i].every < 0 ? MT_CLEAR_NEVER : clears[_i].every};
    mt_policy *policy = policy_new(options, (mt_backend_info){0});
    mt_memory memory = cached(300, 300, 5);

    spend(policy, 100);
    ck_assert_int_eq(mt_policy_clear(policy, clears[_i].before, &memory), MT_CLEAR_NOT);
    memory = cached(clears[_i].allocated, clears[_i].reserved, clears[_i].retries);
    ck_assert_msg(mt_policy_clear(policy, clears[_i].now, &memory) == clears[_i].expected, "%s",
                  clears[_i].name);
    mt_policy_free(policy);
}

/* Each N-th step, whatever the evidence; the two modes count for themselves. */
TEST("cache", clear_every) {
    mt_policy_options options = {.clear_every = 5, .eval_clear_every = 3};
    mt_policy *policy = policy_new(options, (mt_backend_info){0});
    mt_memory memory = cached(300, 300, 0);
    int cleared[2] = {0, 0}, last[2] = {-1, -1};
    static const int every[2] = {5, 3};

    for (int call = 0; call < 60; call++)
        for (int mode = 0; mode < 2; mode++) {
            mt_clear_reason reason = mt_policy_clear(policy, (mt_mode)mode, &memory);

            if (reason == MT_CLEAR_NOT) continue;
            ck_assert_int_eq(reason, MT_CLEAR_EVERY);
            if (last[mode] >= 0) ck_assert_int_eq(call - last[mode], every[mode]);
            last[mode] = call;
            cleared[mode]++;
        }
    ck_assert_int_ge(cleared[0], 11);
    ck_assert_int_le(cleared[0], 12);
    ck_assert_int_ge(cleared[1], 19);
    ck_assert_int_le(cleared[1], 20);
    mt_policy_free(policy);
}

/* The allocator retries in every step: the clears cost no more than a hundredth of the time, one of them apart. */
TEST_LOOP("cache", clear_costs_at_most_a_hundredth, 4) {
    static const double costs[] = {0.001, 0.05, 0.5, 30};
    mt_clear_result result = {.size = sizeof(result), .seconds = costs[_i]};
    mt_policy *policy = policy_new((mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = cached(300, 950, 0);
    double time = 0, cost = 0;

    for (int step = 0; step < 10000; step++) {
        memory.alloc_retries++;
        if (mt_policy_clear(policy, MT_TRAIN, &memory) == MT_CLEAR_EVIDENCE) {
            mt_policy_cleared(policy, &result);
            cost += costs[_i];
        }
        spend(policy, 0.5);
        time += 0.5;
        ck_assert_double_le(cost, time / HUNDREDTH + costs[_i]);
    }
    ck_assert_double_ge(cost, costs[_i] < 1 ? (10000 / HUNDREDTH - 1) * costs[_i]
                                            : 0.4 * time / HUNDREDTH);
    mt_policy_free(policy);
}

/* More than the budget is reserved again after each clear: that is what chunks need, and the next clear waits. */
TEST("cache", clear_of_what_comes_back) {
    mt_clear_result result = {.size = sizeof(result), .seconds = 0.0001};
    mt_policy *policy = policy_new((mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = cached(300, 1100, 0);

    for (int step = 0; step < 1000; step++) {
        mt_clear_reason reason = mt_policy_clear(policy, MT_TRAIN, &memory);

        ck_assert_int_eq(reason, step % HUNDREDTH == 0 ? MT_CLEAR_EVIDENCE : MT_CLEAR_NOT);
        if (reason == MT_CLEAR_EVIDENCE) mt_policy_cleared(policy, &result);
        spend(policy, 1);
    }
    mt_policy_free(policy);
}

/* Without a price of clears, or where no time may decide: one in a hundred calls of a mode. */
static const struct {
    int deterministic;
    double clear, chunk;
} priceless[] = {{0, 0, 0.5}, {0, 0, 0}, {1, 0.0001, 100}, {1, 100, 0.0001}};

TEST_LOOP("cache", clear_without_a_price, LENGTH(priceless)) {
    mt_policy_options options = {.deterministic = priceless[_i].deterministic};
    mt_clear_result result = {.size = sizeof(result), .seconds = priceless[_i].clear};
    mt_policy *policy = policy_new(options, (mt_backend_info){0});
    mt_memory memory = cached(300, 1100, 0);

    for (int call = 0; call < 1000; call++) {
        mt_mode mode = call % 2 == 0 ? MT_TRAIN : MT_EVALUATE;
        mt_clear_reason reason = mt_policy_clear(policy, mode, &memory);

        ck_assert_int_eq(reason, call % (2 * HUNDREDTH) < 2 ? MT_CLEAR_EVIDENCE : MT_CLEAR_NOT);
        if (reason == MT_CLEAR_EVIDENCE) mt_policy_cleared(policy, &result);
        spend(policy, priceless[_i].chunk);
    }
    mt_policy_free(policy);
}

/* A clear that took no time that could be measured pays for none of the dear one before. */
TEST_LOOP("cache", clear_without_a_time, 2) {
    mt_clear_result dear = {.size = sizeof(dear), .seconds = 100}, none = {.size = sizeof(none)};
    mt_policy *policy = policy_new((mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = cached(300, 1100, 0);

    spend(policy, 1);
    mt_policy_cleared(policy, &dear);
    none.seconds = -_i;
    mt_policy_cleared(policy, &none);
    for (int call = 0; call < 300; call++)
        ck_assert_int_eq(mt_policy_clear(policy, MT_TRAIN, &memory), MT_CLEAR_NOT);
    mt_policy_free(policy);
}

/* A steady run: the cache is what the step takes again, and no clear is ever worth it. */
TEST("cache", clear_never_in_a_steady_run) {
    mt_policy *policy = policy_new((mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = cached(300, 950, 0);

    for (int step = 0; step < 1000; step++) {
        ck_assert_int_eq(mt_policy_clear(policy, MT_TRAIN, &memory), MT_CLEAR_NOT);
        spend(policy, 1);
    }
    mt_policy_free(policy);
}

SUITE("policy_clear")
