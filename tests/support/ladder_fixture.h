/*
 * ladder_fixture.h - devices short of memory, for the check_ladder*.c: budgets that one rung or two make
 * up for, and batches that must not be cut.
 */
#ifndef MEMTRAIN_TESTS_LADDER_FIXTURE_H
#define MEMTRAIN_TESTS_LADDER_FIXTURE_H

#include "policy_device.h"
#include "rungs.h"

#define NOTHING_FITS ((size_t)5000)

/* Rungs as letters: "co" for checkpointing and offload; "-" for none. Static. */
const char *letters(unsigned rungs);

/* A device that has learnt without rungs, and may use these. */
device learnt(unsigned rungs, size_t budget);

/* Not enough for one sample, nor a first chunk, without a rung, and enough for a few with one; the same for two rungs. */
size_t for_one_rung(void);
size_t for_two_rungs(void);

/* One whose batches are whole or made smaller, in room for so many samples. */
device whole_batches(size_t fits, mt_rate_rule rule);

#endif
