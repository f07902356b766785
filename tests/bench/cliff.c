/*
 * cliff.c - how soon the fastest chunk is found where a larger one can be much slower: the seconds that
 * an epoch of 50 samples took in batches of 4, 8, 16 and 24, 28 s, 47 s, 41 s and 266 s, with 32 out of
 * memory. Prints the batches before the first one that is cut as those at the end, the time of these
 * against that of the best fixed size, and the time of a hundred batches against it, search included, and
 * what other sizes cost that run again later; in brackets the worst of several sizes of batch.
 *
 *     cliff  batches=... (...) found=... (...) total=... (...)
 */
#include "fake_backend.h"

#include <memtrain/trainer.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCHES 100
#define MOST_BATCHES 3
#define MOST_TOTAL 1.05
#define GOOD 1.1 /* of the best: candidates are spaced, so the best itself may not be among them */

/* Seconds of one chunk as measured, and between the sizes on a line. */
static const struct {
    size_t samples;
    double epoch;
} measured[] = {{4, 28}, {8, 47}, {16, 41}, {24, 266}};

static double measured_seconds(int i) {
    return measured[i].epoch * (double)measured[i].samples / 50;
}

/* Below 4 nothing was measured: half of the time of 4 is taken to be the same for any chunk. */
static double cliff_seconds(size_t samples) {
    int i = 0;

    if (samples < 4) return measured_seconds(0) * (0.5 + (double)samples / 8);
    while (i < 2 && samples > measured[i + 1].samples) i++;
    return measured_seconds(i) + (measured_seconds(i + 1) - measured_seconds(i)) *
                                     (double)(samples - measured[i].samples) /
                                     (double)(measured[i + 1].samples - measured[i].samples);
}

/* Seconds of a batch in the best number of balanced chunks that fit. */
static double best_seconds(size_t batch) {
    double best = 0;

    for (size_t k = (batch + 23) / 24; k <= batch; k++) {
        size_t small = batch / k, larger = batch % k;
        double seconds =
            (double)(k - larger) * cliff_seconds(small) + (double)larger * cliff_seconds(small + 1);

        if (best == 0 || seconds < best) best = seconds;
    }
    return best;
}

typedef struct figures {
    int batches;
    double found, total;
} figures;

/* 0: a step failed. */
static int run(size_t batch_size, figures *out) {
    fake_options options = fake_fits(&fake_train_program, 24);
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_batch batch = {sizeof(batch), NULL, batch_size, 0};
    double seconds[BATCHES], best = best_seconds(batch_size);
    static fake_backend fake;
    mt_trainer *trainer;
    mt_backend seam;

    options.seconds = cliff_seconds;
    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    if (mt_trainer_new(&seam, NULL, &trainer) != MT_OK) return 0;
    out->total = 0;
    for (int i = 0; i < BATCHES; i++) {
        batch.id = (uint64_t)i;
        if (mt_trainer_step(trainer, &batch, &report) != MT_OK) return 0;
        seconds[i] = report.seconds;
        out->total += report.seconds / (best * BATCHES);
    }
    mt_trainer_free(trainer);
    out->found = seconds[BATCHES - 1] / best;
    out->batches = 0;
    while (seconds[out->batches] > 1.0001 * seconds[BATCHES - 1]) out->batches++;
    return fake.genuine == 0;
}

static void keep_worst(figures *worst, const figures *other) {
    if (other->batches > worst->batches) worst->batches = other->batches;
    if (other->found > worst->found) worst->found = other->found;
    if (other->total > worst->total) worst->total = other->total;
}

int main(void) {
    static const size_t sizes[] = {8, 16, 24, 32, 40, 48, 50, 64, 96, 100, 128, 256};
    figures original, worst = {0, 0, 0}, other;

    if (!run(32, &original)) {
        fprintf(stderr, "cliff: %s\n", mt_last_error());
        return EXIT_FAILURE;
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (!run(sizes[i], &other)) return EXIT_FAILURE;
        keep_worst(&worst, &other);
    }
    printf("cliff  batches=%d (%d) found=%.3f (%.3f) total=%.3f (%.3f)\n", original.batches,
           worst.batches, original.found, worst.found, original.total, worst.total);
    return original.batches <= MOST_BATCHES && original.found <= GOOD && worst.total <= MOST_TOTAL
               ? EXIT_SUCCESS
               : EXIT_FAILURE;
}
