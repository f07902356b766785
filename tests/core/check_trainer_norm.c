/*
 * check_trainer_norm.c - chunks that normalise over their samples: found by the first that runs, never of one sample
 * then, and told once where they are small.
 */
#include "suite.h"
#include "trainer_rungs.h"
#include "trainer_tests.h"
#include "tuned.h"

#include <stdio.h>
#include <string.h>

/* Chunks of at most m samples fit; only a chunk tells that it normalises. */
static void show(size_t m) {
    options = fits(m);
    options.shows_norm = 1;
}

/* ---- found by a chunk ------------------------------------------------------------------------- */

/* The recordings that had been kept until then are taken back once, and the step is that of its chunks from the start. */
TEST("norm", found) {
    show(12);
    trainer = trainer_with(&options, NULL);
    mt_step_report report = step(trainer, 32, 1);
    size_t chunks[32], count = report.chunk_count;
    uint64_t hash = fake_hash(&fake);
    memcpy(chunks, report.chunks, count * sizeof *chunks);
    ck_assert_uint_ge(count_kind(FAKE_ROLLBACK), 1);
    ck_assert_uint_gt(report.discarded, 0);
    for (size_t i = 0; i < count; i++)
        ck_assert_uint_gt(chunks[i], FIRST_CHUNK); /* no small recording */
    fake_log_clear(&fake);
    ck_assert_uint_eq(step(trainer, 32, 2).discarded, 0);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 0);
    done(trainer);

    trainer = trainer_with(&options, NULL);
    step_in(chunks, count, 32, 1);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 0);
    ck_assert_uint_eq(fake_hash(&fake), hash);
}

/* A whole batch that is one chunk is what it would be anyway. */
TEST("norm", found_in_a_whole_batch) {
    show(100);
    options.budget_bytes = 0;
    trainer = trainer_with(&options, NULL);
    ck_assert_uint_eq(step(trainer, 32, 1).chunk_count, 1);
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 0);
}

/* An evaluation does not normalise over its samples, whatever a backend says: it has chunks of any size. */
TEST("norm", not_of_evaluations) {
    options = fits(1);
    options.shows_norm = 2;
    trainer = trainer_with(&options, NULL);
    ck_assert_uint_eq(evaluate(trainer, 4, 1).samples, 4);
}

/* Where one sample fits and two do not, the step fails; without a norm it goes through in ones. */
TEST_LOOP("norm", never_of_one_sample, 2) {
    options = fits(1);
    options.shows_norm = _i;
    trainer = trainer_with(&options, NULL);
    if (_i)
        step_fails(trainer, 4, 1, MT_EDEVMEM);
    else
        ck_assert_uint_eq(step(trainer, 4, 1).chunk_count, 4);
}

/* A size that the options fix is refused in each step, as where describe tells of the norm; a given chunk is not. */
TEST_LOOP("norm", fixed_to_one_sample, 2) {
    static const size_t ones[] = {1, 1, 1, 1};

    show(12);
    if (_i)
        policy.max_micro_batch = 1;
    else
        policy.micro_batch = 1;
    trainer = trainer_with(&options, &policy);
    step_in(ones, 4, 4, 1);
    for (uint64_t id = 2; id <= 3; id++) {
        step_refused(4, id, MT_EINVAL,
                     "micro_batch is 1; the backend accepts chunks of at least 2");
    }
}

/* A size that leaves one sample over is cut otherwise; one that does not runs on. */
TEST_LOOP("norm", fixed_and_one_sample_over, 2) {
    mt_step_report report;

    show(40);
    policy.micro_batch = 2;
    trainer = trainer_with(&options, &policy);
    report = step(trainer, _i ? 3 : 4, 1);
    for (size_t i = 0; i < report.chunk_count; i++) ck_assert_uint_ge(report.chunks[i], 2);
    ck_assert_int_eq(report.discarded > 0, _i);
    ck_assert_uint_eq(step(trainer, _i ? 3 : 4, 2).discarded, 0);
}

/*
 * Where a rung is taken in mid-step 2 samples fit, and 3 do not or are not known to. 59 samples are 28 chunks of 2 and one
 * of 3. The step ends.
 */
TEST_LOOP("norm", the_smallest_chunk_is_not_known_to_fit, 2 * 24) {
    size_t two = budget_with(BIT(CHECKPOINTING), 2), three = budget_with(BIT(CHECKPOINTING), 3);

    options = with_rungs(BIT(CHECKPOINTING), two + (three - two) * (size_t)(_i / 2) / 24);
    options.normalises_over_batch = 1;
    options.seconds = fake_seconds;
    if (_i % 2) options.absent = FAKE_BIT(FAKE_RECORD);
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 3; id++) {
        fake_log_clear(&fake);
        fake_fail_kind(&fake, FAKE_ACCUMULATE, 200, MT_ESTATE); /* of a step that does not end */
        step_fails(trainer, 59, id, MT_EDEVMEM);
    }
}

/* ---- small chunks are told ----------------------------------------------------------------------- */

/* Chunks that the caller has chosen stay, of one sample too, and are told once. */
TEST_LOOP("norm", chunks_of_ones_own, 2) {
    static const size_t ones[] = {1, 1, 1, 1};

    show(12);
    policy.micro_batch = policy.min_micro_batch = _i ? 1 : 0;
    trainer = trainer_with(&options, &policy);
    mt_set_log(keep_log, NULL);
    for (uint64_t id = 1; id <= 2; id++) {
        if (!_i) ck_ok(mt_trainer_set_chunks(trainer, ones, 4));
        ck_assert_uint_eq(step(trainer, 4, id).chunk_count, 4);
    }
    ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 0);
    ck_assert_int_eq(log_lines, 1);
    ck_contains(logged, "chunks of at most 1 of the batch's 4 samples");
}

/* From 8 samples on nothing is said, nor of a batch that is not cut, nor where nothing normalises. */
TEST_LOOP("norm", small_chunks_are_told, 6) {
    static const struct {
        size_t chunk, batch;
        int normalises, prepares, told;
    } cases[] = {
        {2, 32, 1, 0, 1}, {7, 32, 1, 0, 1}, {8, 32, 1, 0, 0},
        {4, 4, 1, 0, 0},  {2, 32, 0, 0, 0}, {2, 32, 0, 1, 0},
    };
    char size[64];

    options = fits(40);
    options.normalises_over_batch = cases[_i].normalises;
    options.prepares = cases[_i].prepares;
    policy.micro_batch = cases[_i].chunk;
    trainer = trainer_with(&options, &policy);
    mt_set_log(keep_log, NULL);
    for (uint64_t id = 1; id <= 3; id++) step(trainer, cases[_i].batch, id);
    ck_assert_int_eq(log_lines, cases[_i].told);
    snprintf(size, sizeof size, "at most %zu of the batch's %zu samples", cases[_i].chunk,
             cases[_i].batch);
    if (cases[_i].told) ck_contains(logged, size);
    if (cases[_i].told) ck_contains(logged, "min_micro_batch of 8");
}

TRAINER_SUITE("trainer_norm")
