/*
 * check_policy_learn.c - what the first chunks teach.
 */
#include "policy_device.h"
#include "suite.h"

START_TEST(learning_open) {
    device dev =
        device_new(need(12), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    mt_memory memory = device_memory(&dev);

    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_int_eq(dev.plan.discard, 0);
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 2);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 2);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 1), 4);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_START);
    ck_ok(device_chunk(&dev, MT_TRAIN, 2));
    ck_ok(device_chunk(&dev, MT_TRAIN, 4));
    ck_ok(mt_policy_extend(dev.policy, MT_TRAIN, &memory, &dev.plan));
    ck_assert_uint_eq(mt_plan_covered(&dev.plan), 32);
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 5); /* 2, 4 and 26 in chunks of at most 12 */
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 2), 9);
    mt_policy_free(dev.policy);
}
END_TEST

/* The bytes are exact from the second chunk on, and recording is over. */
START_TEST(learning_is_exact) {
    device dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});

    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), 0);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    check_covers(&dev, 32);
    ck_assert_uint_eq(dev.ooms, 0);
    for (size_t m = 1; m < 100; m++)
        ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, m),
                          fake_program_peak(&fake_train_program, m));
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(dev.plan.predicted_peak_bytes, need(mt_plan_chunk(&dev.plan, 0)));
    ck_assert_ptr_null(mt_policy_recording(dev.policy, MT_TRAIN, 7));
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(learning_discards) {
    mt_backend_info info = {.normalises_over_batch = 1};
    device dev = device_new(need(12), (mt_policy_options){0}, info);

    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_int_eq(dev.plan.discard, 1);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 2);
    ck_assert_uint_eq(mt_plan_covered(&dev.plan), 2);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(dev.discarded, 6);
    ck_assert_uint_eq(dev.count, 3); /* no tiny chunk is among those that count */
    check_covers(&dev, 32);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(dev.discarded, 0);
    mt_policy_free(dev.policy);
}
END_TEST

/*
 * What is taken back: 2 samples where they alone tell of room for 8 with which the batch can begin, and 4 too where
 * they do not, where chunks as large are not to come or where their kernels are others.
 */
static const struct {
    size_t room, samples, most, least, change;
    int deterministic, untimed;
    size_t discarded, next; /* samples, and the first chunk that counts */
} discards[] = {
    {100, 64, 0, 0, 0, 0, 0, 2, 8},     {100, 400, 0, 0, 0, 0, 0, 2, 8},
    {1000, 400, 0, 0, 0, 0, 0, 2, 50},  {100, 16, 0, 0, 0, 0, 0, 2, 8},
    {100, 17, 0, 0, 0, 0, 0, 2, 8},     {100, 15, 0, 0, 0, 0, 0, 6, 15},
    {16, 64, 0, 0, 0, 0, 0, 6, 8},      {100, 64, 16, 0, 0, 0, 0, 2, 8},
    {100, 64, 15, 0, 0, 0, 0, 6, 8},    {100, 64, 0, 4, 0, 0, 0, 4, 8},
    {100, 64, 0, 5, 0, 0, 0, 15, 8},    {100, 64, 0, 0, 8, 0, 0, 6, 8},
    {100, 64, 0, 0, 9, 0, 0, 2, 8},     {1000, 400, 0, 0, 50, 0, 0, 2, 8},
    {1000, 400, 0, 0, 51, 0, 0, 2, 50}, {100, 64, 0, 0, 2, 0, 0, 2, 8},
    {100, 64, 0, 0, 3, 0, 0, 3, 8},     {100, 64, 0, 0, 0, 1, 0, 6, 64},
    {100, 64, 0, 0, 0, 0, 1, 6, 8},     {17, 64, 0, 0, 0, 0, 0, 6, 8},
    {18, 64, 0, 0, 0, 0, 0, 2, 8},
};

START_TEST(learning_discards_little) {
    mt_policy_options options = {.deterministic = discards[_i].deterministic,
                                 .max_micro_batch = discards[_i].most,
                                 .min_micro_batch = discards[_i].least};
    mt_backend_info info = {.normalises_over_batch = 1, .kernels_change = discards[_i].change};
    device dev = device_new(need(discards[_i].room), options, info);

    if (!discards[_i].untimed) dev.seconds = fake_seconds;
    ck_ok(device_batch(&dev, MT_TRAIN, discards[_i].samples));
    ck_assert_uint_eq(dev.discarded, discards[_i].discarded);
    ck_assert_uint_eq(dev.chunks[0], discards[_i].next);
    check_covers(&dev, discards[_i].samples);
    /* The model is as exact as ever. */
    for (size_t m = 8; m < 100 && !discards[_i].change; m++)
        ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, m),
                          fake_program_peak(&fake_train_program, m));
    for (int batch = 0; batch < 5; batch++) {
        ck_ok(device_batch(&dev, MT_TRAIN, discards[_i].samples));
        ck_assert_uint_eq(dev.discarded, 0);
        ck_assert_uint_eq(dev.ooms, 0);
        for (size_t i = 0; i < dev.count; i++) ck_assert_uint_ge(dev.chunks[i], 8);
    }
    mt_policy_free(dev.policy);
}
END_TEST

/* The next batch is one that the second recording cannot be left to: it is taken back too, where there is one. */
START_TEST(learning_discards_in_two_batches) {
    static const struct {
        size_t samples, discarded; /* of the second batch */
    } after[] = {{15, 4}, {4, 4}, {3, 0}, {16, 0}};
    mt_backend_info info = {.normalises_over_batch = 1};
    device dev = device_new(need(100), (mt_policy_options){0}, info);

    dev.seconds = fake_seconds;
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    size_t failed;
    ck_ok(device_attempt(&dev, MT_TRAIN, &failed));
    ck_ok(device_batch(&dev, MT_TRAIN, after[_i].samples));
    ck_assert_uint_eq(dev.discarded, after[_i].discarded);
    for (int batch = 0; batch < 2; batch++) {
        ck_ok(device_batch(&dev, MT_TRAIN, 3));
        ck_assert_uint_eq(dev.discarded, 0);
        ck_assert_uint_eq(dev.count, 1);
    }
    mt_policy_free(dev.policy);
}
END_TEST

/* Evaluation does not normalise over the chunk: nothing is thrown away. It learns on its own. */
START_TEST(learning_by_mode) {
    mt_backend_info info = {.normalises_over_batch = 1};
    device dev = device_new(need(12), (mt_policy_options){0}, info);

    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_EVALUATE, 8), 0);
    ck_ok(device_plan(&dev, MT_EVALUATE, 32));
    ck_assert_int_eq(dev.plan.discard, 0);
    ck_assert_uint_lt(mt_plan_covered(&dev.plan), 32);
    ck_ok(device_batch(&dev, MT_EVALUATE, 32));
    ck_assert_uint_gt(mt_policy_predict_bytes(dev.policy, MT_EVALUATE, 8), 0);
    mt_policy_free(dev.policy);
}
END_TEST

/* Batches of every size as the first one, for every smallest legal chunk. */
START_TEST(learning_any_batch) {
    size_t samples = (size_t)_i + 1;

    for (size_t least = 0; least <= 9; least++)
        for (int normalises = 0; normalises < 2; normalises++) {
            mt_backend_info info = {.min_micro_batch = least, .normalises_over_batch = normalises};
            device dev = device_new(need(30), (mt_policy_options){0}, info);

            for (int step = 0; step < 3; step++) {
                ck_ok(device_batch(&dev, MT_TRAIN, samples));
                check_covers(&dev, samples);
                ck_assert_uint_eq(dev.ooms, 0);
                for (size_t i = 0; i < dev.count; i++)
                    ck_assert(dev.chunks[i] >= least || samples < least);
            }
            mt_policy_free(dev.policy);
        }
}
END_TEST

START_TEST(learning_from_the_smallest_legal) {
    mt_backend_info info = {.min_micro_batch = 8};
    mt_policy_options options = {.min_micro_batch = 3};
    device backend_says = device_new(need(40), (mt_policy_options){0}, info);
    device user_says = device_new(need(40), options, info);

    ck_ok(device_plan(&backend_says, MT_TRAIN, 64));
    ck_assert_uint_eq(mt_plan_chunk(&backend_says.plan, 0), 8);
    ck_assert_uint_gt(mt_plan_chunk(&backend_says.plan, 1), 8);
    ck_ok(device_plan(&user_says, MT_TRAIN, 64));
    ck_assert_uint_eq(mt_plan_chunk(&user_says.plan, 0), 3);
    ck_assert_uint_gt(mt_plan_chunk(&user_says.plan, 1), 3);
    mt_policy_free(backend_says.policy);
    mt_policy_free(user_says.policy);
}
END_TEST

/* A backend without recordings: sizes are found by trying, from the peaks that were measured. */
START_TEST(learning_without_recordings) {
    device dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});

    dev.records = 0;
    for (int step = 0; step < 20; step++) {
        ck_ok(device_batch(&dev, MT_TRAIN, 32));
        check_covers(&dev, 32);
    }
    ck_assert_uint_eq(dev.ooms, 0);
    ck_assert_uint_le(dev.count, 8);
    mt_policy_free(dev.policy);
}
END_TEST

/* A recording that an OOM cut short is not taken for that of a later chunk. */
START_TEST(learning_after_an_oom) {
    device dev = device_new(need(1), (mt_policy_options){0}, (mt_backend_info){0});
    mt_recording *recording = mt_policy_recording(dev.policy, MT_TRAIN, 2);
    mt_chunk_result result = {.size = sizeof(result)};

    ck_assert_ptr_nonnull(recording);
    mt_recording_event(recording, &dev, 100);
    answer(&dev, oom_explained(&dev, 2, 1));
    ck_ok(mt_policy_observe(dev.policy, MT_TRAIN, 1, dev.resident, &result));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 1), 0);
    mt_policy_free(dev.policy);
}
END_TEST

static Suite *suite_policy_learn(void) {
    Suite *suite = suite_create("policy_learn");
    TCase *learning = suite_case(suite, "learning");

    tcase_add_test(learning, learning_open);
    tcase_add_test(learning, learning_is_exact);
    tcase_add_test(learning, learning_discards);
    tcase_add_loop_test(learning, learning_discards_in_two_batches, 0, 4);
    tcase_add_loop_test(learning, learning_discards_little, 0, LENGTH(discards));
    tcase_add_test(learning, learning_by_mode);
    tcase_add_loop_test(learning, learning_any_batch, 0, 40);
    tcase_add_test(learning, learning_from_the_smallest_legal);
    tcase_add_test(learning, learning_without_recordings);
    tcase_add_test(learning, learning_after_an_oom);
    return suite;
}

int main(void) {
    return suite_run(suite_policy_learn());
}
