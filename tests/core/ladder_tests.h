/*
 * ladder_tests.h - batches that end with certain rungs on, for check_ladder.c and check_ladder_leave.c.
 */
#ifndef MEMTRAIN_TESTS_LADDER_TESTS_H
#define MEMTRAIN_TESTS_LADDER_TESTS_H

#include "ladder_fixture.h"
#include "policy_tests.h"

/* So many batches, after which these rungs are on. */
static inline void train_on(const char *rungs, int batches, size_t samples) {
    train(batches, samples);
    ck_assert_str_eq(letters(dev.rungs), rungs);
}

/* The same in a budget that is there from now on. */
static inline void train_in(size_t budget, const char *rungs, int batches, size_t samples) {
    dev.budget = budget;
    train_on(rungs, batches, samples);
}

#endif
