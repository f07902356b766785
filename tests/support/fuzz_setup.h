/*
 * fuzz_setup.h - what a seed of tests/fuzz/fuzz_trainer.c stands for: a backend, a policy, batches, and the
 * kind of trouble that they meet.
 */
#ifndef MEMTRAIN_TESTS_FUZZ_SETUP_H
#define MEMTRAIN_TESTS_FUZZ_SETUP_H

#include "fake_backend.h"

#include <memtrain/trainer.h>

typedef enum fuzz_trouble {
    FUZZ_BUDGETS = 0,     /* other budgets are told */
    FUZZ_TENSORS = 1,     /* someone else holds some of the memory */
    FUZZ_REFUSALS = 2,    /* a request is refused that the budget has room for */
    FUZZ_NO_EVIDENCE = 3, /* a chunk does not fit, and nothing says why */
    FUZZ_DEVICE = 4,      /* the device has less than the budget, and does not tell */
    FUZZ_TROUBLES = 5
} fuzz_trouble;

typedef struct fuzz_setup {
    uint64_t seed;
    fuzz_trouble trouble;
    fake_options backend;
    mt_policy_options policy;
    size_t fits;  /* samples of a chunk that the budget holds, gradients and wide kernels aside */
    size_t batch; /* samples */
    int batches_vary; /* 1: a batch has fewer now and then */
    int evaluates;    /* 1: between two steps, now and then */
} fuzz_setup;

fuzz_setup fuzz_setup_of(uint64_t seed);

/* Of 0 to bound - 1, and whether one of that many cases is it. */
size_t fuzz_below(uint64_t *random, size_t bound);
int fuzz_one_in(uint64_t *random, size_t cases);

/* In one line; static: the next call overwrites it. */
const char *fuzz_setup_text(const fuzz_setup *setup);

#endif
