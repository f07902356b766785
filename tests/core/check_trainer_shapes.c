/*
 * check_trainer_shapes.c - batches whose samples have several shapes: each shape is learnt for itself,
 * and what is known of one is exact however they alternate.
 */
#include "suite.h"
#include "trainer_tests.h"
#include "tuned.h"

/* In the fake, samples of shape s are 1 + s times as large. */
static uint64_t id_of(uint64_t shape, uint64_t number) {
    return shape << 32 | number;
}

static size_t chunk_bytes(uint64_t shape, size_t m) {
    return fake_program_peak(&fake_train_program, m * (size_t)(1 + shape));
}

static void shape(size_t fits) {
    options = fake_fits(&fake_train_program, fits);
    options.shapes = 1;
}

static size_t largest_chunk(const mt_step_report *report) {
    size_t largest = 0;

    for (size_t i = 0; i < report->chunk_count; i++)
        if (report->chunks[i] > largest) largest = report->chunks[i];
    return largest;
}

/* Each step's prediction is the measured peak; nothing is refused; the larger go in smaller chunks. */
TEST_LOOP("shapes", alternating, 5) {
    static const struct {
        int shapes, steps;
    } runs[] = {{1, 10}, {2, 20}, {3, 30}, {7, 70}, {30, 90}};

    shape((size_t)65 * FIRST_CHUNK); /* of the largest a few fit */
    policy.deterministic = 1;
    trainer = trainer_with(&options, &policy);
    for (int i = 0; i < runs[_i].steps; i++) {
        uint64_t shape = (uint64_t)(i % runs[_i].shapes);
        mt_step_report report = step(trainer, 32, id_of(shape, (uint64_t)i));

        ck_assert_uint_eq(report.retries, 0);
        if (i < runs[_i].shapes) continue; /* the first of a shape is where it is learnt */
        ck_assert_uint_eq(report.predicted_peak_bytes, report.peak_bytes);
        ck_assert_uint_eq(report.peak_bytes,
                          options.resident_bytes + chunk_bytes(shape, largest_chunk(&report)));
    }
    ck_assert_uint_eq(fake.genuine, 0);
}

/* A backend that says nothing of itself has shapes all the same. */
TEST("shapes", without_describe) {
    shape(130);
    options.absent = FAKE_BIT(FAKE_DESCRIBE);
    trainer = trainer_with(&options, NULL);
    for (uint64_t i = 0; i < 8; i++) step(trainer, 32, id_of(i % 2, i));
}

/* And one that fails to say it anew ends the step before it began. */
TEST("shapes", describe_fails) {
    shape(130);
    trainer = trainer_with(&options, NULL);
    step(trainer, 32, id_of(0, 0));
    fake_fail_kind(&fake, FAKE_DESCRIBE, 1, MT_EIO);
    step_fails(trainer, 32, id_of(1, 1), MT_EIO);
    fake_fail_at(&fake, 0, 0);
    step(trainer, 32, id_of(1, 1));
}

/* Times are apart too: each shape ends with the chunks that are the fastest for it. */
static double falls_off(size_t samples) {
    return 0.01 * (double)samples * (samples > 16 ? 4 : 1) + 0.01;
}

TEST("shapes", times_are_apart) {
    mt_step_report report[2];

    shape(200);
    options.seconds = falls_off;
    trainer = trainer_with(&options, NULL);
    for (uint64_t i = 0; i < 60; i++) report[i % 2] = step(trainer, 32, id_of(i % 2, i));
    report[0] = step(trainer, 32, id_of(0, 60));
    ck_assert_uint_le(largest_chunk(&report[0]), 16);
    ck_assert_uint_gt(largest_chunk(&report[0]), 8);
    report[1] = step(trainer, 32, id_of(1, 61)); /* twice as large */
    ck_assert_uint_le(largest_chunk(&report[1]), 8);
}

/* More shapes than are remembered: they are learnt anew, without an OOM. */
TEST("shapes", more_than_are_remembered) {
    shape(200);
    trainer = trainer_with(&options, NULL);
    for (uint64_t i = 0; i < 120; i++) step(trainer, 16, id_of(i % 40, i));
    ck_assert_uint_eq(fake.genuine, 0);
}

TEST("shapes", shape_fails) {
    shape(64);
    trainer = trainer_with(&options, NULL);
    fake_fail_kind(&fake, FAKE_SHAPE, 1, MT_EIO);
    step_refused(16, 1, MT_EIO, "injected: shape");
    fake_fail_kind(&fake, FAKE_SHAPE, 1, MT_EIO);
    evaluation_fails(16, 1, MT_EIO);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 0);
    step(trainer, 16, 1);
}

TRAINER_SUITE("trainer_shapes")
