/*
 * check_trainer_fuzz.c - the first runs of tests/fuzz/fuzz_trainer.c; `make check-fuzz` has more.
 */
#include "suite.h"
#include "fuzz_run.h"

enum { SEEDS = 40 };

TEST_LOOP("runs", first_runs, 5) {
    fuzz_totals totals = {0};

    fuzz_runs(1 + (uint64_t)_i * SEEDS, SEEDS, &totals);
    ck_assert_uint_eq(totals.runs, SEEDS);
    ck_assert_uint_eq(totals.failures, 0);
    ck_assert_uint_le(totals.scars, fuzz_scars_allowed(SEEDS));
}

SUITE("trainer_fuzz")
