/*
 * policy_device.h - a little device that plays the chunks of a policy, for the check_policy_*.c: its
 * memory is the fake backend's training program, and there is no trainer between.
 */
#ifndef MEMTRAIN_TESTS_POLICY_DEVICE_H
#define MEMTRAIN_TESTS_POLICY_DEVICE_H

#include "fake_backend.h"

#include <memtrain/policy.h>

#define DEVICE_CHUNKS_MAX 600

typedef struct device {
    mt_policy *policy;
    size_t budget, resident;
    double (*seconds)(size_t samples);
    int records; /* recordings are filled */
    /* the ladder */
    unsigned rungs;          /* that are on */
    unsigned refused_on;     /* those that cannot be turned on ... */
    mt_status why;           /* ... and why */
    size_t cpu_budget;       /* while MT_RUNG_CPU is on */
    double slower[MT_RUNGS]; /* factor of the time while a rung is on; 0: 1 */
    /* of the last batch */
    mt_plan plan;
    size_t chunks[DEVICE_CHUNKS_MAX], count;
    unsigned ooms;
    size_t discarded;
    size_t learnt[8], learnt_count; /* the chunks that were discarded */
    size_t tried_too_large[DEVICE_CHUNKS_MAX];
} device;

void check_balanced(const mt_plan *plan, size_t samples, size_t chunks);

mt_policy *policy_new(mt_policy_options options, mt_backend_info info);

device device_new(size_t budget, mt_policy_options options, mt_backend_info info);

mt_memory device_memory(const device *dev);

/* Largest chunk that the device can run in its budget. */
size_t device_fits(const device *dev);

/* The same as far as it is known once so many samples were recorded, and no others: twice as many at least. */
size_t device_bound(const device *dev, size_t samples);

mt_status device_chunk(device *dev, mt_mode mode, size_t samples);

/* An OOM of a chunk as the budget explains it. */
mt_oom oom_explained(const device *dev, size_t chunk, unsigned attempt);

/* One that it does not: in use and request are within it. */
mt_oom oom_injected(const device *dev, size_t chunk, unsigned attempt);

mt_action answer(device *dev, mt_oom oom);

/* A plan, its rungs turned on or refused. */
mt_status device_plan(device *dev, mt_mode mode, size_t samples);

/* All chunks of the plan, extended where it is open; *failed is one that did not fit. */
mt_status device_attempt(device *dev, mt_mode mode, size_t *failed);

/* One batch, as a trainer would run it. */
mt_status device_batch(device *dev, mt_mode mode, size_t samples);

void check_covers(const device *dev, size_t samples);

/* Bytes above the start at the peak of m samples with these rungs on. */
size_t rung_peak(unsigned rungs, size_t m);

/* The bytes that m samples need in all, resident ones included. */
size_t need(size_t m);

#endif
