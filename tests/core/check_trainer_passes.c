/*
 * check_trainer_passes.c - memory that others take for a while and no budget tells of: the step goes through,
 * and afterwards all is as before; and what never fits is tried ever more rarely.
 */
#include "suite.h"
#include "trainer_tests.h"
#include "tuned.h"

/* What a backend knows, from most to least. */
static const struct {
    const char *name;
    unsigned absent;
    int no_peaks, no_evidence, keep;
} backends[] = {
    {"recordings, evidence", 0, 0, 0, 0},
    {"recordings", 0, 0, 1, 0},
    {"recordings, chunks stay", 0, 0, 1, 1},
    {"peaks, evidence", FAKE_BIT(FAKE_RECORD), 0, 0, 0},
    {"peaks", FAKE_BIT(FAKE_RECORD), 0, 1, 0},
    {"nothing", FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK), 1, 1, 0},
    {"nothing, chunks stay", FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK), 1, 1, 1},
};

static size_t bytes_for(size_t samples) {
    return fake_defaults.resident_bytes + fake_program_peak(&fake_train_program, samples);
}

static void take_options(int row) {
    options.budget_bytes = bytes_for(40) + FAKE_GRADIENT_BYTES;
    options.seconds = fake_seconds;
    options.absent = backends[row].absent;
    options.no_peaks = backends[row].no_peaks;
    options.no_evidence = backends[row].no_evidence;
    options.keep = options.tells_gradients = backends[row].keep;
}

/* Seconds of the steps from id on, the last one's. */
static double steps(uint64_t *id, int count) {
    double seconds = 0;

    for (int i = 0; i < count; i++) seconds = step(trainer, 64, (*id)++).seconds;
    return seconds;
}

/* A shortage of one step, and the speed some steps later. */
TEST_LOOP("passes", a_shortage_passes, 2 * LENGTH(backends)) {
    static const size_t left[] = {4, 13};
    int row = _i / 2;
    uint64_t id = 1;

    take_options(row);
    trainer = trainer_with(&options, NULL);
    double before = steps(&id, 40), during, after;
    fake.options.device_bytes = bytes_for(left[_i % 2]);
    during = steps(&id, 1);
    fake.options.device_bytes = 0;
    after = steps(&id, FAILURE_WAIT + SHORTAGE_WAIT + 2);
    ck_assert_msg(after <= before * 1.001, "%s: %g s a step before, %g in and %g after it",
                  backends[row].name, before, during, after);
}

/* A hog that nothing tells of, in half of 500 steps: none fails, and some time later the speed is back. */
TEST_LOOP("passes", hog_that_is_not_told, LENGTH(backends)) {
    uint64_t id = 1, state = 7;

    take_options(_i);
    trainer = trainer_with(&options, NULL);
    double before = steps(&id, 40);
    while (id < 540) {
        fake.options.device_bytes =
            fake_random(&state) % 2 ? bytes_for(fake_random(&state) % 30 + 4) : 0;
        steps(&id, (int)(fake_random(&state) % 6) + 1);
    }
    fake.options.device_bytes = 0;
    steps(&id, 18 * (FAILURE_WAIT +
                     SHORTAGE_WAIT)); /* what was tried in vain is tried ever more rarely */
    ck_assert_msg(steps(&id, 1) <= before * 1.001, "%s", backends[_i].name);
}

/* The program with so many per cent more of each allocation, for other kernels. */
static fake_program larger_by(int percent) {
    static fake_allocation more[FAKE_ALLOCATIONS_MAX];
    fake_program program = {more, fake_train_program.count};

    for (size_t i = 0; i < program.count; i++) {
        more[i] = fake_train_program.allocations[i];
        more[i].base = more[i].base * (100 + percent) / 100;
        more[i].per_sample = more[i].per_sample * (100 + percent) / 100;
    }
    return program;
}

/* Half of a small chunk's time is its set-up. */
static double mostly_set_up(size_t samples) {
    return 0.1 + 0.01 * (double)samples;
}

/* From 16 samples on kernels need more, and 16 would fit but for that: one that never does. */
TEST_LOOP("stays", what_never_fits_is_tried_rarely, 2) {
    static const int percent[] = {2, 10};
    uint64_t id = 1, early;

    take_options(0);
    options.wide = larger_by(percent[_i]);
    options.wide_above = 15;
    options.budget_bytes = bytes_for(16) + 500;
    options.seconds = mostly_set_up;
    trainer = trainer_with(&options, NULL);
    steps(&id, 100);
    early = fake.genuine;
    ck_assert_uint_ge(early, 1);
    ck_assert_uint_le(early, 8);
    steps(&id, 3000);
    ck_assert_uint_le(fake.genuine - early, 10);
}

/*
 * Room comes while chunks are kept by a bound, after an OOM: the chunk that is recorded before larger ones runs in
 * place, so that the recording tells both, and the whole batch is next.
 */
TEST("stays", more_room_and_other_kernels) {
    mt_step_report report;
    uint64_t id = 1;

    options.wide = (fake_program){fake_wide_allocations, FAKE_WIDE_COUNT};
    options.wide_above = 15;
    options.tells_wide = options.keep = 1;
    options.seconds = mostly_set_up;
    options.budget_bytes = bytes_for(12);
    trainer = trainer_with(&options, NULL);
    for (int i = 0; i < 3; i++) (void)step(trainer, 24, id++);
    fake_fail_kind(&fake, FAKE_ALLOCATION, 3, MT_EDEVMEM);
    for (int i = 0; i < 3; i++) (void)step(trainer, 24, id++);
    fake.options.budget_bytes *= 4;
    for (int i = 0; i < 12; i++) report = step(trainer, 24, id++);
    ck_assert_uint_eq(report.chunk_count, 1);
}

/* Two recordings whose kernels differ say nothing of each other: the larger one stands for sizes from there. */
TEST_LOOP("stays", a_change_between_the_first_two_recordings, 2) {
    static const size_t batches[] = {128, 16}, budgets[] = {350000, 325000};
    mt_step_report report;
    uint64_t id = 1;

    policy.deterministic = 1;
    policy.keep_chunks = MT_KEEP_NEVER;
    options.budget_bytes = budgets[_i];
    options.wide = (fake_program){fake_wide_allocations, FAKE_WIDE_COUNT};
    options.wide_above = 2;
    trainer = trainer_with(&options, &policy);
    for (int i = 0; i < 3; i++) report = step(trainer, batches[_i], id++);
    ck_assert_uint_eq(fake.genuine, 0);
    ck_assert_uint_eq(report.predicted_peak_bytes, report.peak_bytes);
    ck_assert_uint_le(report.chunk_count, batches[_i] / 19 + 2); /* 19 fit */
}

/* Above 6 samples, the most that fit, kernels need more, which no recording has seen: larger ones fail at first. */
TEST("stays", sizes_below_a_failure_are_tried) {
    uint64_t id = 1;

    policy.deterministic = 1;
    options.tells_gradients = 1;
    options.budget_bytes = 150000;
    options.wide = (fake_program){fake_wide_allocations, FAKE_WIDE_COUNT};
    options.wide_above = 6;
    trainer = trainer_with(&options, &policy);
    step(trainer, 3, id++);
    steps(&id, 60);
    ck_assert_uint_eq(step(trainer, 64, id++).chunk_count, 11); /* of 6 and 5 */
    ck_assert_uint_le(fake.genuine, 16);
}

static double off_a_cliff(size_t samples) {
    return 0.0005 * (double)samples * (samples > 8 ? 4 : 1);
}

static double proportional(size_t samples) {
    return 0.01 * (double)samples;
}

/* Where there was no room for one sample, in the first step or later. */
static const struct {
    const char *name;
    int before; /* steps, of so many samples */
    size_t before_batch;
    size_t batch, micro_batch;
    int no_evidence;
    double (*seconds)(size_t samples);
} rungs_taken[] = {
    {"long after the first step", 20, 64, 64, 0, 0, fake_seconds},
    {"the same, and nothing tells why", 20, 64, 64, 0, 1, fake_seconds},
    {"in the first step", 0, 0, 64, 0, 0, mostly_set_up},
    {"in the second one, when a small chunk alone was timed", 1, 2, 64, 0, 0, mostly_set_up},
    {"where sizes beyond a cliff are slow", 20, 64, 64, 0, 0, off_a_cliff},
    {"where chunks are fixed", 20, 61, 61, 2, 0, proportional},
};

/* A rung that one bad step has forced on is left, where the step is faster without it. */
TEST_LOOP("passes", a_rung_is_left, LENGTH(rungs_taken)) {
    uint64_t id = 1;

    options = fits(64);
    options.rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    options.seconds = rungs_taken[_i].seconds;
    options.rung_seconds[MT_RUNG_CHECKPOINTING] = 1.3;
    options.no_evidence = rungs_taken[_i].no_evidence;
    policy.micro_batch = rungs_taken[_i].micro_batch;
    trainer = trainer_with(&options, &policy);
    for (int i = 0; i < rungs_taken[_i].before; i++)
        step(trainer, rungs_taken[_i].before_batch, id++);
    fake.options.device_bytes = bytes_for(1) - 1000;
    ck_assert_msg(step(trainer, rungs_taken[_i].batch, id++).rungs == options.rungs, "%s",
                  rungs_taken[_i].name);
    fake.options.device_bytes = 0;
    for (int i = 0; i < 3 * RUNG_WAIT; i++) step(trainer, rungs_taken[_i].batch, id++);
    ck_assert_msg(fake.rungs == 0, "%s", rungs_taken[_i].name);
}

/* The n-th call of accumulate meets a refusal that does not come again, for these n. */
static struct {
    mt_backend seam;
    int call;
    int refused[4];
} refusing;

static mt_status accumulate_or_refuse(void *self, size_t first, size_t count, double weight,
                                      mt_chunk_result *out) {
    refusing.call++;
    for (int i = 0; i < LENGTH(refusing.refused); i++)
        if (refusing.refused[i] == refusing.call)
            fake_fail_kind(&fake, FAKE_ALLOCATION, 1, MT_EDEVMEM);
    return refusing.seam.accumulate(self, first, count, weight, out);
}

/* Four of them in one step, each of another chunk, where chunks stay: more than one chunk would be given. */
TEST_LOOP("tries", each_chunk_has_its_own_tries, 2) {
    mt_step_report report;
    mt_backend seam;

    options = fits(40);
    policy.micro_batch = 2;
    policy.max_retries = _i == 0 ? DEFAULT_RETRIES : 2;
    options.keep = options.tells_gradients = 1;
    options.no_evidence = 0;
    options.budget_bytes += FAKE_GRADIENT_BYTES;
    refusing.seam = seam = new_seam();
    seam.accumulate = accumulate_or_refuse;
    own.policy = &policy;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    step(trainer, 64, 1); /* what a chunk needs is known now, so it may stay */
    refusing.call = 0;
    for (int i = 0; i < 4; i++) refusing.refused[i] = 5 + 6 * i;
    report = step(trainer, 64, 1);
    ck_assert_uint_eq(report.retries, 4);
    ck_assert_uint_eq(report.chunk_count, 32);
}

static mt_status mark_once(void *self) {
    return refusing.call > 0 ? MT_EDEVMEM : refusing.seam.mark(self);
}

static mt_status accumulate_first(void *self, size_t first, size_t count, double weight,
                                  mt_chunk_result *out) {
    if (++refusing.call == 2) fake_fail_kind(&fake, FAKE_ALLOCATION, 1, MT_EDEVMEM);
    return refusing.seam.accumulate(self, first, count, weight, out);
}

static mt_status rollback_all(void *self) {
    refusing.call = 0;
    return refusing.seam.rollback(self);
}

/* The second chunk can never be marked, and what fails in it takes the first one back too, which stays each time. */
TEST("tries", a_step_ends) {
    mt_backend seam;

    options = fits(40);
    policy.micro_batch = 2;
    policy.max_retries = 2;
    options.keep = options.tells_gradients = 1;
    options.budget_bytes += FAKE_GRADIENT_BYTES;
    refusing.seam = seam = new_seam();
    own.policy = &policy;
    seam.accumulate = accumulate_first;
    seam.mark = mark_once;
    seam.rollback = rollback_all;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    refusing.call = -64;
    step(trainer, 64, 1); /* what a chunk needs is known now, so it may stay */
    refusing.call = 0;
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 10000, MT_ESTATE); /* of a step that does not end */
    step_fails(trainer, 64, 1, MT_EDEVMEM);
}

/* What the user has taken is released while the n-th chunk runs, that does not fit all the same. */
static struct {
    mt_backend seam;
    int chunks;
    size_t bytes;
} releasing;

static mt_status accumulate_and_release(void *self, size_t first, size_t count, double weight,
                                        mt_chunk_result *out) {
    if (--releasing.chunks == 0) fake.allocated -= releasing.bytes;
    return releasing.seam.accumulate(self, first, count, weight, out);
}

/* There is more room for the next plan than the chunk had that failed: it is for a smaller one still. */
TEST_LOOP("passes", memory_comes_back, 2) {
    mt_backend seam;

    options = fits(20);
    options.absent = _i == 0 ? FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK) : 0;
    options.no_peaks = _i == 0;
    options.wide = _i == 0 ? options.wide : (fake_program){fake_wide_allocations, FAKE_WIDE_COUNT};
    options.wide_above = 10;
    releasing.seam = seam = new_seam();
    seam.accumulate = accumulate_and_release;
    releasing.chunks = _i == 0 ? 6 : 5;
    releasing.bytes = 5000;
    fake.allocated += releasing.bytes;
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    step(trainer, 128, 1);
    if (_i == 0) ck_assert_uint_ge(fake.genuine, 1);
}

/* Neither recordings nor peaks: nothing is run for their sake and taken back. */
TEST("tries", nothing_is_recorded_in_vain) {
    take_options(5);
    options.normalises_over_batch = 1;
    trainer = trainer_with(&options, NULL);
    ck_assert_uint_eq(step(trainer, 32, 1).discarded, 0);
}

/* One sample is all that is known, and its bound says that no more fit. */
TEST_LOOP("tries", a_bound_of_few_is_tried, 2) {
    uint64_t id = 1;

    take_options(_i ? 3 : 0);
    options.budget_bytes = bytes_for(6);
    trainer = trainer_with(&options, NULL);
    step(trainer, 1, id++);
    steps(&id, 60);
    ck_assert_uint_ge(step(trainer, 64, id).chunks[0], 5);
}

TRAINER_SUITE("trainer_passes")
