/*
 * check_policy_time.c - sizes by measured time, and by the room that is left.
 */
#include "choose.h"
#include "policy_device.h"
#include "suite.h"

/* ---- time ----------------------------------------------------------------------------------- */

/* 41 s an epoch at 16 samples and 266 s at 24: seven times slower beyond the edge. */
static double cliff(size_t m) {
    return m > 16 ? 0.266 * (double)m : 0.02 + 0.041 * (double)m;
}

/* Larger is always better. */
static double steady(size_t m) {
    return 0.05 + 0.01 * (double)m;
}

/* 12 % slower at 64 than at 16, as measured for a ResNet-18. */
static double shallow(size_t m) {
    return (double)m * (m > 32 ? 0.0112 : m > 8 ? 0.0100 : 0.0140);
}

static size_t largest_chunk_of_the_last(device *dev, size_t samples, int steps, int last) {
    size_t largest = 0;

    for (int step = 0; step < steps; step++) {
        ck_ok(device_batch(dev, MT_TRAIN, samples));
        check_covers(dev, samples);
        for (size_t i = 0; i < dev->count && step >= steps - last; i++)
            largest = dev->chunks[i] > largest ? dev->chunks[i] : largest;
    }
    return largest;
}

START_TEST(time_cliff) {
    device dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});
    size_t largest;

    dev.seconds = cliff;
    largest = largest_chunk_of_the_last(&dev, 96, 60, 40);
    ck_assert_uint_le(largest, 16);
    ck_assert_uint_ge(largest, 8);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_THROUGHPUT);
    ck_assert_double_eq_tol(mt_policy_predict_seconds(dev.policy, MT_TRAIN, dev.chunks[0]),
                            cliff(dev.chunks[0]), 1e-12);
    ck_assert_double_eq(mt_policy_predict_seconds(dev.policy, MT_TRAIN, 199), 0);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(time_steady) {
    device dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});

    dev.seconds = steady;
    ck_assert_uint_eq(largest_chunk_of_the_last(&dev, 96, 60, 40), 96);
    ck_assert_uint_eq(dev.count, 1);
    mt_policy_free(dev.policy);
}
END_TEST

/* What was fastest and then becomes slow is left, though it was fast once. */
static double throttled(size_t m) {
    return m > 16 ? 0.05 * (double)m : 0.05 + 0.01 * (double)m;
}

START_TEST(time_gets_worse) {
    device dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});
    size_t largest;

    dev.seconds = steady;
    ck_assert_uint_eq(largest_chunk_of_the_last(&dev, 96, 60, 40), 96);
    dev.seconds = throttled;
    largest = largest_chunk_of_the_last(&dev, 96, 200, 40);
    ck_assert_uint_le(largest, 16);
    ck_assert_uint_ge(largest, 8);
    mt_policy_free(dev.policy);
}
END_TEST

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

START_TEST(time_of_small_sizes_is_found_out) {
    device dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});
    size_t largest;

    dev.seconds = with_set_up;
    largest = largest_chunk_of_the_last(&dev, 64, 20, 10);
    ck_assert_uint_lt(largest, 16);
    ck_assert_uint_ge(largest, 8);
    mt_policy_free(dev.policy);
}
END_TEST

/* What a size of 16 is expected to take, between a first run of 4 and two runs of 32. */
static const struct {
    double first, warm[2], expected;
} between_runs[] = {
    {0.020, {0.13, 0.10}, 0.01125 + 12.0 / 28 * (0.10 - 0.01125)}, /* 0.9 x what 32 take a sample */
    {0.040, {0.13, 0.10}, 0.01125 + 12.0 / 28 * (0.10 - 0.01125)},
    {0.060, {0.13, 0.10}, 0.030 + 12.0 / 28 * (0.10 - 0.030)},
    {0.060, {0.10, 0.10}, 0.054 + 12.0 / 28 * (0.10 - 0.054)},
};

START_TEST(time_between) {
    mt__timings timings = {.count = 0};

    mt__timings_note(&timings, 4, between_runs[_i].first);
    mt__timings_note(&timings, 32, between_runs[_i].warm[0]);
    mt__timings_note(&timings, 32, between_runs[_i].warm[1]);
    ck_assert_double_eq_tol(mt__chunk_seconds(&timings, 16), between_runs[_i].expected, 1e-9);
}
END_TEST

START_TEST(time_shallow) {
    device dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});
    size_t largest;

    dev.seconds = shallow;
    largest = largest_chunk_of_the_last(&dev, 64, 60, 40);
    ck_assert_uint_le(largest, 32);
    ck_assert_uint_gt(largest, 8);
    mt_policy_free(dev.policy);
}
END_TEST

/* The fastest of those that fit, not the fastest. */
START_TEST(time_within_memory) {
    device dev = device_new(need(20), (mt_policy_options){0}, (mt_backend_info){0});

    dev.seconds = steady;
    ck_assert_uint_eq(largest_chunk_of_the_last(&dev, 96, 60, 40), 20);
    ck_assert_uint_eq(dev.ooms, 0);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(time_deterministic) {
    mt_policy_options options = {.deterministic = 1};
    device dev[2];

    for (int d = 0; d < 2; d++) dev[d] = device_new(need(40), options, (mt_backend_info){0});
    dev[0].seconds = cliff;
    dev[1].seconds = steady;
    for (int step = 0; step < 30; step++) {
        for (int d = 0; d < 2; d++) ck_ok(device_batch(&dev[d], MT_TRAIN, step % 3 == 2 ? 50 : 96));
        ck_assert_uint_eq(dev[0].count, dev[1].count);
        ck_assert_mem_eq(dev[0].chunks, dev[1].chunks, dev[0].count * sizeof(size_t));
    }
    check_balanced(&dev[0].plan, 50, 2);
    mt_policy_free(dev[0].policy);
    mt_policy_free(dev[1].policy);
}
END_TEST

/* ---- room ----------------------------------------------------------------------------------- */

START_TEST(room_shrinks_and_grows) {
    mt_policy_options options = {.deterministic = 1};
    device dev = device_new(need(40), options, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 2);
    dev.budget = need(20);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 4);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_BUDGET);
    ck_assert_uint_eq(dev.ooms, 0);
    dev.budget = need(70);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 1);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_GROWTH);
    mt_policy_free(dev.policy);
}
END_TEST

/* More allocated at the start leaves as much less room as a smaller budget. */
START_TEST(room_is_what_is_left) {
    mt_policy_options options = {.deterministic = 1};
    device dev = device_new(need(40), options, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    dev.resident += need(40) - need(20);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 4);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(another_batch_size_is_a_start) {
    device dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_ok(device_plan(&dev, MT_TRAIN, 17));
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_START);
    mt_policy_free(dev.policy);
}
END_TEST

static Suite *suite_policy_time(void) {
    Suite *suite = suite_create("policy_time");
    TCase *time = suite_case(suite, "time"), *room = suite_case(suite, "room");

    tcase_add_test(time, time_cliff);
    tcase_add_test(time, time_steady);
    tcase_add_test(time, time_gets_worse);
    tcase_add_test(time, time_of_small_sizes_is_found_out);
    tcase_add_loop_test(time, time_between, 0, LENGTH(between_runs));
    tcase_add_test(time, time_shallow);
    tcase_add_test(time, time_within_memory);
    tcase_add_test(time, time_deterministic);
    tcase_add_test(room, room_shrinks_and_grows);
    tcase_add_test(room, room_is_what_is_left);
    tcase_add_test(room, another_batch_size_is_a_start);
    return suite;
}

int main(void) {
    return suite_run(suite_policy_time());
}
