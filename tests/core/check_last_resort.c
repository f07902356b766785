/*
 * check_last_resort.c - no legal chunk fits beside gradients that are held: before the next rung, and before it is given
 * up, the whole batch is tried as one chunk whose gradients are the only ones.
 */
#include "suite.h"
#include "trainer_rungs.h"
#include "trainer_tests.h"

#include <stdio.h>

#define LEAST FIRST_CHUNK
#define BATCH (64 / LEAST * LEAST)

/* So little a sample that the gradients, 3000 bytes, are more than what grows with the batch. */
static const fake_allocation flat_allocations[] = {{1000, 10, FAKE_AT_END}};
static const fake_program flat = {flat_allocations, 1};

static size_t alone(size_t samples) {
    return fake_defaults.resident_bytes + fake_program_peak(&flat, samples) + FAKE_GRADIENT_BYTES;
}

static size_t beside(size_t samples) {
    return alone(samples) + FAKE_GRADIENT_BYTES;
}

static void hold(size_t budget) {
    options.train = flat;
    options.keep = options.tells_gradients = options.holds = 1;
    options.min_micro_batch = LEAST;
    options.budget_bytes = budget;
}

/* ---- when it is tried ------------------------------------------------------------------------ */

/*
 * What a backend tells of, and how the batch may be cut; all of it fits in the bytes of the batch alone. Those that are
 * tried come first.
 */
enum { TRIED = 9 };
static const struct {
    const char *name;
    unsigned absent;
    int normalises, no_evidence, no_peaks, needs_whole;
    mt_policy_options policy;
    int is_tried;
} kinds[] = {
    {"chosen", 0, 0, 0, 0, 0, {0}, 1},
    {"deterministic", 0, 0, 0, 0, 0, {.deterministic = 1}, 1},
    {"normalising", 0, 1, 0, 0, 0, {0}, 1},
    {"no recordings", FAKE_BIT(FAKE_RECORD), 0, 0, 0, 0, {0}, 1},
    {"no evidence", 0, 0, 1, 0, 0, {0}, 1},
    {"neither peaks nor recordings", FAKE_BIT(FAKE_RECORD), 0, 1, 1, 0, {0}, 1},
    {"one chunk is given", 0, 0, 0, 0, 0, {.micro_batch = BATCH}, 1},
    {"it cannot be cut", 0, 0, 0, 0, 1, {0}, 1},
    {"chunks are kept", 0, 0, 0, 0, 0, {.keep_chunks = MT_KEEP_ALWAYS}, 1},
    {"chunks are given", 0, 0, 0, 0, 0, {.micro_batch = BATCH / 2}, 0},
    {"chunks are bounded", 0, 0, 0, 0, 0, {.max_micro_batch = BATCH - 1}, 0},
    {"whole steps are wanted", 0, 0, 0, 0, 0, {.keep_chunks = MT_KEEP_NEVER}, 0},
    {"nothing is kept", FAKE_BIT(FAKE_REWIND), 0, 0, 0, 0, {0}, 0},
};

static void train_kind(int row, size_t budget) {
    hold(budget);
    policy = kinds[row].policy;
    policy.size = sizeof(policy);
    options.absent = kinds[row].absent & ~FAKE_BIT(FAKE_REWIND);
    options.keep = !(kinds[row].absent & FAKE_BIT(FAKE_REWIND));
    options.normalises_over_batch = kinds[row].normalises;
    options.no_evidence = kinds[row].no_evidence;
    options.no_peaks = kinds[row].no_peaks;
    options.needs_whole_batch = kinds[row].needs_whole;
    trainer = trainer_with(&options, &policy);
}

/* Once it has gone through it is the plan, and memory does not run out again. */
TEST_LOOP("when", tried_where_nothing_else_fits, LENGTH(kinds)) {
    mt_step_report report;
    uint64_t refused;

    train_kind(_i, alone(BATCH));
    if (!kinds[_i].is_tried) {
        step_fails(trainer, BATCH, 1, MT_EDEVMEM);
        ck_assert_msg(fake.holding, "%s", kinds[_i].name);
        return;
    }
    step(trainer, BATCH, 1);
    ck_assert_msg(!fake.holding, "%s", kinds[_i].name);
    refused = fake.genuine;
    for (uint64_t id = 2; id < 40; id++) {
        fake_log_clear(&fake);
        report = step_by(BATCH, id, printed("begin accumulate(0+%d) apply", BATCH));
        if (!kinds[_i].no_peaks) ck_assert_uint_eq(report.predicted_peak_bytes, report.peak_bytes);
    }
    if (!kinds[_i].no_peaks) ck_assert_uint_eq(fake.genuine, refused);
    fake.options.budget_bytes = beside(BATCH); /* there would be room for them again */
    step(trainer, BATCH, 40);
    ck_assert_msg(!fake.holding, "%s", kinds[_i].name);
}

/* One byte less: it is tried once, then it is remembered for some steps that it does not fit. */
TEST_LOOP("when", tried_in_vain, LENGTH(kinds)) {
    train_kind(_i, alone(BATCH) - 1);
    step_fails(trainer, BATCH, 1, MT_EDEVMEM);
    ck_assert_uint_eq(count_kind(FAKE_HOLD_GRADIENTS) > 0, kinds[_i].is_tried);
    fake_log_clear(&fake);
    step_fails(trainer, BATCH, 2, MT_EDEVMEM);
    if (!kinds[_i].no_evidence)
        ck_assert_uint_le(count_kind(FAKE_HOLD_GRADIENTS), 1); /* taken again, not given back */
    fake.options.budget_bytes = beside(BATCH);
    step(trainer, BATCH, 3);
}

/* Not even the batch's own block fits: a user is told of the smallest chunk, not of the batch that was tried alone. */
TEST("when", told_of_the_smallest) {
    size_t block = fake_program_peak(&flat, BATCH);
    char line[96];

    train_kind(0, fake_defaults.resident_bytes + block - 1);
    step_fails(trainer, BATCH, 1, MT_EDEVMEM);
    ck_assert_uint_gt(count_kind(FAKE_HOLD_GRADIENTS), 0);
    snprintf(line, sizeof(line), "does not fit on fake:0: refused %zu bytes",
             fake_program_peak(&flat, LEAST));
    ck_contains(mt_last_error(), line);
}

/* A batch that is larger than the one that went through is tried as well; a smaller one is known to fit. */
TEST("when", other_batches) {
    uint64_t refused;

    train_kind(0, alone(BATCH));
    step(trainer, BATCH, 1);
    refused = fake.genuine;
    fake_log_clear(&fake);
    step_by(BATCH / 2, 2, printed("begin accumulate(0+%d) apply", BATCH / 2));
    ck_assert_uint_eq(fake.genuine, refused);
    step_fails(trainer, BATCH + 1, 3, MT_EDEVMEM);
    fake.options.budget_bytes = alone(BATCH + 8);
    step(trainer, BATCH + 8, 4);
    ck_assert_int_eq(fake.holding, 0);
    fake.options.budget_bytes = beside(BATCH + 8);
    step(trainer, 16 * BATCH, 5); /* that does not fit alone */
    ck_assert_int_eq(fake.holding, 1);
}

/* Room for held gradients and the smallest chunk: there is another way, so this one is not tried. */
TEST_LOOP("when", not_tried_where_something_fits, LENGTH(kinds)) {
    train_kind(_i, beside(LEAST));
    step(trainer, LEAST, 1);
    ck_assert_uint_eq(count_kind(FAKE_HOLD_GRADIENTS), 0);
    for (uint64_t id = 2; id < 9; id++) step(trainer, LEAST, id);
    ck_assert_uint_eq(fake.genuine, 0);
}

/* One chunk that is given, or all there can be, is known to fit alone and not in place: so it is planned. */
TEST_LOOP("when", known_of_one_chunk, 2) {
    static const int rows[] = {6, 7}; /* of kinds: one chunk is given; it cannot be cut */

    train_kind(rows[_i], beside(BATCH) + FAKE_GRADIENT_BYTES);
    step(trainer, BATCH, 1);
    if (_i == 0) step(trainer, BATCH / 2, 2);
    if (_i == 0) step(trainer, BATCH, 3);
    ck_assert_uint_eq(count_kind(FAKE_HOLD_GRADIENTS), 0); /* there is room for them */
    fake.options.budget_bytes = alone(BATCH);
    fake_log_clear(&fake);
    step_by(BATCH, 4, printed("hold begin accumulate(0+%d) apply", BATCH));
    fake.options.budget_bytes = beside(BATCH) + FAKE_GRADIENT_BYTES;
    step_by(BATCH, 5, printed("begin accumulate(0+%d) apply", BATCH));
    ck_assert_uint_eq(fake.genuine, 0);
}

/* Known not to fit either: it is not tried. */
TEST_LOOP("when", known_to_be_in_vain, 2) {
    train_kind(_i, beside(BATCH) + FAKE_GRADIENT_BYTES);
    step(trainer, BATCH, 1);
    fake.options.budget_bytes = alone(BATCH) - 1;
    fake_log_clear(&fake);
    step_fails(trainer, BATCH, 2, MT_EDEVMEM);
    ck_assert_uint_eq(fake.genuine, 0);
    ck_assert_uint_eq(count_kind(FAKE_HOLD_GRADIENTS), 0);
}

/* Small chunks are faster by far, but do not fit any more: they are not what is planned for that. */
static double small_is_fast(size_t samples) {
    return 0.001 * (double)samples * (samples > 16 ? 3 : 1);
}

TEST_LOOP("when", faster_chunks_that_do_not_fit, 3) {
    hold(beside(20));
    options.min_micro_batch = (size_t)_i;
    options.seconds = small_is_fast;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id < 9; id++) step(trainer, BATCH, id);
    ck_assert_int_eq(fake.holding, 1);
    fake.options.budget_bytes = alone(BATCH) + 100;
    for (uint64_t id = 9; id < 99; id++) step(trainer, BATCH, id);
    ck_assert_uint_le(fake.genuine, 2);
    ck_assert_int_eq(fake.holding, 0);
}

/*
 * Chunks of 32 are the fastest, and fit neither way: what decides is whether those of 4, which fit beside gradients, are
 * faster than the batch alone.
 */
static double four_are_slow(size_t samples) {
    return 0.001 * (double)samples * (samples < 20 ? 3 : samples > 40 ? 2 : 1);
}

static double four_are_fast(size_t samples) {
    return 0.001 * (double)samples * (samples < 20 ? 1.5 : samples > 40 ? 4 : 1);
}

TEST_LOOP("when", the_fastest_fits_neither_way, 2) {
    static const fake_allocation allocations[] = {{1000, 50, FAKE_AT_END}};
    const fake_program medium = {allocations, 1};

    hold(0);
    options.train = medium;
    options.seconds = _i ? four_are_fast : four_are_slow;
    options.budget_bytes =
        options.resident_bytes + fake_program_peak(&medium, BATCH) + 3 * FAKE_GRADIENT_BYTES;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id < 20; id++) step(trainer, BATCH, id);
    ck_assert_uint_eq(step(trainer, BATCH, 20).chunk_count, 2);
    fake.options.budget_bytes -= 2 * FAKE_GRADIENT_BYTES;
    for (uint64_t id = 21; id < 25; id++) step(trainer, BATCH, id);
    ck_assert_int_eq(fake.holding, _i);
    ck_assert_uint_eq(fake.genuine, 0);
}

/* One recording tells of the batch no more than a bound, which does not keep it from being tried. */
TEST("when", one_recording_is_no_knowledge) {
    hold(beside(LEAST) + 10);
    policy.deterministic = 1;
    options.normalises_over_batch = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, BATCH, 1);
    fake.options.budget_bytes = alone(BATCH);
    step(trainer, BATCH, 2);
    ck_assert_int_eq(fake.holding, 0);
}

/* That it was in vain in one step does not keep it from being tried in another, where there is more room. */
TEST_LOOP("when", in_vain_and_then_not, TRIED) {
    train_kind(_i, alone(BATCH) - 1);
    step_fails(trainer, BATCH, 1, MT_EDEVMEM);
    fake.options.budget_bytes = alone(BATCH);
    step(trainer, BATCH, 2);
    ck_assert_int_eq(fake.holding, 0);
}

/* Without peaks it is known by what went through and what did not. */
TEST("when", known_without_peaks) {
    uint64_t refused;

    hold(alone(BATCH));
    policy.micro_batch = BATCH;
    options.no_peaks = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, BATCH, 1);
    step_fails(trainer, 2 * BATCH, 2, MT_EDEVMEM);
    refused = fake.genuine;
    step(trainer, BATCH, 3); /* the last plan was of two chunks in place */
    ck_assert_uint_eq(fake.genuine, refused);
    fake.options.budget_bytes -= 1;
    step_fails(trainer, BATCH, 4, MT_EDEVMEM);
    fake.options.budget_bytes += 1;
    step(trainer, BATCH, 5);
}

/* ---- beside the ladder ------------------------------------------------------------------------ */

/* The rung that is allowed, bytes that are missing without it, and what is on in the end. */
static const struct {
    const char *name;
    size_t missing;
    unsigned allowed, taken;
    int needs_whole, holding;
} ladders[] = {
    {"no rung is needed", 0, BIT(CHECKPOINTING) | BIT(CPU), 0, 0, 0},
    {"alone with a rung", 1, BIT(CHECKPOINTING) | BIT(CPU), BIT(CHECKPOINTING), 0, 0},
    {"another device", 1, BIT(CPU), BIT(CPU), 0, 1},
    {"chunks cannot be smaller", 1, BIT(SMALLER_BATCH), 0, 0, 0}, /* as the last try has left it */
    {"a smaller batch has them held", 1, BIT(SMALLER_BATCH), 0, 1, 1},
};

TEST_LOOP("ladder", before_each_rung, LENGTH(ladders)) {
    hold(alone(BATCH) - ladders[_i].missing);
    policy = allowing(ladders[_i].allowed);
    options.rungs = ladders[_i].allowed;
    options.cpu_bytes = beside(BATCH);
    options.may_shorten = 1;
    options.needs_whole_batch = ladders[_i].needs_whole;
    trainer = trainer_with(&options, &policy);
    if (ladders[_i].taken || !ladders[_i].missing)
        step(trainer, BATCH, 1);
    else
        step_fails(trainer, BATCH, 1, MT_EDEVMEM); /* chunks are as small as it gets */
    ck_assert_uint_eq(fake.rungs, ladders[_i].taken);
    ck_assert_int_eq(fake.holding, ladders[_i].holding);
}

/* ---- what it leaves --------------------------------------------------------------------------- */

/* The same bits as a run that was given these chunks, gradients held all the time. */
TEST_LOOP("after", same_bits, TRIED) {
    static const size_t whole[] = {BATCH};
    uint64_t hash;

    train_kind(_i, alone(BATCH));
    hold(0);
    step(trainer, BATCH, 1);
    step(trainer, BATCH, 2);
    hash = fake_hash(&fake);
    mt_trainer_free(trainer);
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 2; id++) {
        step_in(whole, 1, BATCH, id);
    }
    ck_assert_uint_eq(fake_hash(&fake), hash);
}

/* What is named is what the smallest chunk needs beside gradients that are held, whatever ran last. */
TEST("after", the_budget_that_is_named) {
    char text[4096], size[32], budget[64];

    train_kind(0, alone(BATCH) - 1);
    step_fails(trainer, BATCH, 1, MT_EDEVMEM);
    ck_assert_int_eq(fake.holding, 0);
    mt_trainer_explain(trainer, text, sizeof(text));
    mt_format_size(beside(LEAST), size, sizeof(size));
    snprintf(budget, sizeof(budget), "a budget of more than %s", size);
    ck_assert_msg(strstr(text, budget) != NULL, "%s", text);
    ck_assert_msg(strstr(text, printed("of %d samples", LEAST)) != NULL, "%s", text);
}

/* Alone a batch normalises over all of its samples, so that it is not done again. */
TEST("after", shows_a_norm) {
    hold(alone(BATCH));
    options.shows_norm = 1;
    trainer = trainer_with(&options, NULL);
    ck_assert_uint_eq(step(trainer, BATCH, 1).chunk_count, 1);
    ck_assert_uint_eq(step(trainer, BATCH, 2).chunk_count, 1);
}

static size_t lines;

static void count_lines(void *user, const char *line) {
    (void)user;
    lines += strstr(line, "\"reason\":\"oom\"") != NULL &&
             strstr(line, printed("\"chunks\":[%d]", BATCH)) != NULL &&
             strstr(line, "\"alone\":true") != NULL;
}

TEST("after", in_the_trace) {
    hold(alone(BATCH));
    own.trace = count_lines;
    trainer = trainer_of(&options, &own);
    step(trainer, BATCH, 1);
    ck_assert_uint_eq(lines, 1);
}

TRAINER_SUITE("last_resort")
