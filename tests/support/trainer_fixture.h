/*
 * trainer_fixture.h - one trainer on the fake backend, and what the check_trainer_*.c say of it. Each
 * test runs in a process of its own, so there is one fake for all.
 */
#ifndef MEMTRAIN_TESTS_TRAINER_FIXTURE_H
#define MEMTRAIN_TESTS_TRAINER_FIXTURE_H

#include "fake_backend.h"

#include <memtrain/trainer.h>

extern fake_backend fake;

/* A trainer on the fake, whose log is empty. */
mt_trainer *trainer_of(const fake_options *options, const mt_trainer_options *own);
mt_trainer *trainer_with(const fake_options *options, const mt_policy_options *policy);

mt_batch batch_of(size_t count, uint64_t id);

/* Options whose budget holds chunks of at most m samples; with_units: and uneven units, no noise. */
fake_options fits(size_t m);
fake_options with_units(size_t m);
double units_in(size_t first, size_t count);

/* One step or evaluation that goes through. */
mt_step_report step(mt_trainer *trainer, size_t count, uint64_t id);
mt_eval_report evaluate(mt_trainer *trainer, size_t count, uint64_t id);

/* One step that fails with this status and leaves the state as it was. */
void step_fails(mt_trainer *trainer, size_t count, uint64_t id, mt_status expected);

/* Ends a test: the fake has nothing to complain about, and nothing is left open. */
void done(mt_trainer *trainer);

/* The calls so far are these, and are forgotten. */
void check_log(const char *expected);

/* All chunks in the log have this size. */
void check_only_chunks_of(size_t count);

size_t count_kind(fake_kind kind);

#endif
