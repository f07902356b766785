/*
 * shapes.c - batches of many shapes in turn, each a kind of its own: time against the fewest chunks that fit, learning
 * included, OOMs, and nanoseconds of the host a step.
 *
 *     shapes 33  time=... second_half=... ooms=...
 */
#include "fake_backend.h"

#include <memtrain/trainer.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH 64
#define FITS 24
#define STEPS 4000

static double seconds(size_t samples) {
    return 4e-3 + 3e-3 * (double)samples;
}

static double best(void) {
    size_t chunks = (BATCH + FITS - 1) / FITS, small = BATCH / chunks, larger = BATCH % chunks;

    return (double)(chunks - larger) * seconds(small) + (double)larger * seconds(small + 1);
}

static uint64_t shapes; /* in turn */

static mt_status shape_of(void *self, const mt_batch *batch, mt_shape *out) {
    (void)self;
    out->id = batch->id % shapes;
    return MT_OK;
}

static int run(uint64_t count) {
    static fake_backend fake;
    fake_options options = fake_fits(&fake_train_program, FITS);
    mt_run_report end = MT_RUN_REPORT_INIT;
    double total = 0, half = 0;
    mt_trainer *trainer;
    mt_backend seam;

    options.seconds = seconds;
    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    seam.shape = shape_of;
    shapes = count;
    if (mt_trainer_new(&seam, NULL, &trainer) != MT_OK) return 0;
    for (uint64_t i = 0; i < STEPS; i++) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        mt_batch batch = {sizeof(batch), NULL, BATCH, i};

        if (mt_trainer_step(trainer, &batch, &report) != MT_OK) return 0;
        total += report.seconds;
        if (i >= STEPS / 2) half += report.seconds;
    }
    if (mt_trainer_summary(trainer, &end) != MT_OK) return 0;
    mt_trainer_free(trainer);
    printf("shapes %llu  time=%.3f second_half=%.3f ooms=%llu\n", (unsigned long long)shapes,
           total / (STEPS * best()), half / (STEPS / 2 * best()), (unsigned long long)end.ooms);
    return total / (STEPS * best()) <= 1.1 && end.ooms == 0;
}

int main(void) {
    int is_well = run(1);

    is_well &= run(33);
    is_well &= run(100);
    is_well &= run(500);
    return is_well ? EXIT_SUCCESS : EXIT_FAILURE;
}
