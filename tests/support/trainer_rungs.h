/*
 * trainer_rungs.h - the trainer of trainer_fixture.h with rungs, for the suites of the ladder.
 */
#ifndef MEMTRAIN_TESTS_TRAINER_RUNGS_H
#define MEMTRAIN_TESTS_TRAINER_RUNGS_H

#include "rungs.h"
#include "trainer_fixture.h"

#define SAVERS (BIT(CHECKPOINTING) | BIT(OFFLOAD))

/* A budget for m samples with these rungs on. */
size_t budget_with(unsigned rungs, size_t m);

/* A backend that has these; whole: one that has none, and whose batches of uneven units cannot be cut. */
fake_options with_rungs(unsigned rungs, size_t budget);
fake_options whole(size_t fits);

mt_policy_options allowing(unsigned rungs);

/* One step that goes through, on all or some of its samples. */
mt_step_report some(mt_trainer *trainer, size_t count, uint64_t id);

#endif
