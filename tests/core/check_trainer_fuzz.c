/*
 * check_trainer_fuzz.c - the first runs of tests/fuzz/fuzz_trainer.c; `make check-fuzz` has more.
 */
#include "suite.h"
#include "fuzz_run.h"

enum { SEEDS = 40 };

START_TEST(first_runs) {
    fuzz_totals totals = {0};

    fuzz_runs(1 + (uint64_t)_i * SEEDS, SEEDS, &totals);
    ck_assert_uint_eq(totals.runs, SEEDS);
    ck_assert_uint_eq(totals.failures, 0);
    ck_assert_uint_le(totals.scars, fuzz_scars_allowed(SEEDS));
}
END_TEST

static Suite *suite_trainer_fuzz(void) {
    Suite *suite = suite_create("trainer_fuzz");
    TCase *runs = suite_case(suite, "runs");

    tcase_add_loop_test(runs, first_runs, 0, 5);
    return suite;
}

int main(void) {
    return suite_run(suite_trainer_fuzz());
}
