/*
 * fuzz_run.h - one run of tests/fuzz/fuzz_trainer.c: steps in trouble, and then in peace.
 *
 * In trouble steps may fail. What must hold all the same: a call ends, and with MT_OK or MT_EDEVMEM; each
 * sample is trained once; a step that fails leaves the state as it was, as each evaluation does; the fake
 * backend has nothing to complain about; the trace, replayed where there is no trouble, ends in the same bits.
 * In peace the trainer comes back to what one does that has met no trouble; where it does not, that is a scar.
 */
#ifndef MEMTRAIN_TESTS_FUZZ_RUN_H
#define MEMTRAIN_TESTS_FUZZ_RUN_H

#include "fuzz_setup.h"

typedef struct fuzz_outcome {
    char failure[1600];         /* what did not hold, with the seed; "": all did */
    char scar[1600];            /* what is not as without the trouble, with the seed; "": all is */
    size_t steps, failed_steps; /* in trouble */
} fuzz_outcome;

void fuzz_run(uint64_t seed, fuzz_outcome *out);

typedef struct fuzz_totals {
    size_t runs, failures, scars, steps, failed_steps;
} fuzz_totals;

/* Runs of so many seeds from one on are added to the totals; what failed and scars are printed. */
void fuzz_runs(uint64_t from, uint64_t count, fuzz_totals *totals);

/*
 * There are some, about 1 in 500 runs: what failed in vain is tried again ever more rarely, so after enough
 * trouble the next try is later than peace lasts; and among sizes that take about as long, another one may be
 * where the trainer stays.
 */
size_t fuzz_scars_allowed(size_t runs);

#endif
