/*
 * each_test.h - what every test of a suite begins and ends with.
 */
#ifndef MEMTRAIN_TESTS_EACH_TEST_H
#define MEMTRAIN_TESTS_EACH_TEST_H

#include "suite.h"

/* Runs these before and after each test of the suite, in the test's process. NULL: nothing. */
void suite_each_test(void (*before)(void), void (*after)(void));

#endif
