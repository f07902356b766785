/*
 * check_policy_clear.c - when the cache is emptied.
 */
#include "policy_device.h"
#include "suite.h"

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
    size_t predicted;
    uint64_t retries; /* there were 5 before */
    mt_mode before, now;
    mt_clear_reason expected;
} clears[] = {
    {"nothing cached", 0, 300, 300, 900, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"cache and peak fit", 0, 300, 400, 900, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"cache and peak do not fit", 0, 300, 401, 900, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_EVIDENCE},
    {"peak not known", 0, 300, 390, 0, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"the allocator had to retry", 0, 300, 390, 400, 6, MT_TRAIN, MT_TRAIN, MT_CLEAR_EVIDENCE},
    {"retries of before", 0, 300, 390, 400, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"another mode, large cache", 0, 300, 401, 0, 5, MT_TRAIN, MT_EVALUATE, MT_CLEAR_EVIDENCE},
    {"another mode, small cache", 0, 300, 400, 0, 5, MT_TRAIN, MT_EVALUATE, MT_CLEAR_NOT},
    {"and back, large cache", 0, 300, 401, 0, 5, MT_EVALUATE, MT_TRAIN, MT_CLEAR_EVIDENCE},
    {"never, with all evidence", -1, 300, 900, 900, 9, MT_TRAIN, MT_EVALUATE, MT_CLEAR_NOT},
};

START_TEST(clear_automatic) {
    mt_policy_options options = {.clear_every = clears[_i].every,
                                 .eval_clear_every = clears[_i].every};
    mt_policy *policy = policy_new(options, (mt_backend_info){0});
    mt_memory memory = cached(300, 300, 5);

    spend(policy, 100);
    ck_assert_int_eq(mt_policy_clear(policy, clears[_i].before, &memory, 0), MT_CLEAR_NOT);
    memory = cached(clears[_i].allocated, clears[_i].reserved, clears[_i].retries);
    ck_assert_msg(mt_policy_clear(policy, clears[_i].now, &memory, clears[_i].predicted) ==
                      clears[_i].expected,
                  "%s", clears[_i].name);
    mt_policy_free(policy);
}
END_TEST

/* Each N-th step, whatever the evidence; the two modes count for themselves. */
START_TEST(clear_every) {
    mt_policy_options options = {.clear_every = 5, .eval_clear_every = 3};
    mt_policy *policy = policy_new(options, (mt_backend_info){0});
    mt_memory memory = cached(300, 300, 0);
    int cleared[2] = {0, 0}, last[2] = {-1, -1};
    static const int every[2] = {5, 3};

    for (int call = 0; call < 60; call++)
        for (int mode = 0; mode < 2; mode++) {
            mt_clear_reason reason = mt_policy_clear(policy, (mt_mode)mode, &memory, 5000);

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
END_TEST

/* Evidence at every step: the clears cost no more than 1 % of the time, one of them apart. */
START_TEST(clear_costs_at_most_one_percent) {
    static const double costs[] = {0.001, 0.05, 0.5, 30};
    mt_clear_result result = {.size = sizeof(result), .seconds = costs[_i]};
    mt_policy *policy = policy_new((mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = cached(300, 900, 0);
    double time = 0, cost = 0;

    for (int step = 0; step < 10000; step++) {
        if (mt_policy_clear(policy, MT_TRAIN, &memory, 900) == MT_CLEAR_EVIDENCE) {
            mt_policy_cleared(policy, &result);
            cost += costs[_i];
        }
        spend(policy, 0.5);
        time += 0.5;
        ck_assert_double_le(cost, 0.01 * time + costs[_i]);
    }
    ck_assert_double_ge(cost, costs[_i] < 0.005 ? 9999 * costs[_i] : 0.004 * time);
    mt_policy_free(policy);
}
END_TEST

static Suite *suite_policy_clear(void) {
    Suite *suite = suite_create("policy_clear");
    TCase *cache = suite_case(suite, "cache");

    tcase_add_loop_test(cache, clear_automatic, 0, LENGTH(clears));
    tcase_add_test(cache, clear_every);
    tcase_add_loop_test(cache, clear_costs_at_most_one_percent, 0, 4);
    return suite;
}

int main(void) {
    return suite_run(suite_policy_clear());
}
