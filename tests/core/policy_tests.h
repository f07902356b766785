/*
 * policy_tests.h - what the tests of a policy have in common: the device that each of them has, and its batches.
 */
#ifndef MEMTRAIN_TESTS_POLICY_TESTS_H
#define MEMTRAIN_TESTS_POLICY_TESTS_H

#include "each_test.h"
#include "policy_device.h"

/* Each test runs in a process of its own, so there is one for all. Its policy is freed at the end of the test. */
static device dev;

static inline void free_device(void) {
    mt_policy_free(dev.policy);
    dev.policy = NULL;
}

/* So many batches of training, all of which go through. */
static inline void train(int batches, size_t samples) {
    for (int batch = 0; batch < batches; batch++) ck_ok(device_batch(&dev, MT_TRAIN, samples));
}

/* An OOM of a chunk that leaves no evidence. */
static inline mt_oom oom_untold(size_t chunk, unsigned attempt) {
    mt_oom oom = oom_explained(&dev, chunk, attempt);

    oom.refused = oom.refused_bytes = oom.refused_in_use_bytes = 0;
    return oom;
}

/* The answer to an OOM; where it asks for another plan of the batch, there is one. */
static inline mt_action answer_and_plan(mt_oom oom, size_t samples) {
    mt_action action = answer(&dev, oom);

    if (action == MT_ACTION_REPLAN) ck_ok(device_plan(&dev, MT_TRAIN, samples));
    return action;
}

/* Whether the chunk is tried once more as it is. */
static inline int is_again(mt_action action) {
    return action == MT_ACTION_RETRY || action == MT_ACTION_CLEAR;
}

/* In place of SUITE. */
#define DEVICE_SUITE(name)                                                                         \
    int main(void) {                                                                               \
        suite_each_test(NULL, free_device);                                                        \
        return suite_run_named(name);                                                              \
    }

#endif
