/*
 * sizes.c - what it costs to find the fastest chunks: curves of time, set-ups of a new size, noise, busy moments and
 * budgets, against the best fixed number of chunks. Prints, over all runs, the geometric mean of the time of the first 20
 * batches and of 200, set-up and search included, and the speed at the end, at worst.
 *
 *     sizes 64  first_20=... all_200=... worst_at_end=...
 *
 * "small" is a curve on which the fastest size is less than a quarter of what fits.
 */
#include "fake_backend.h"

#include <math.h>
#include <memtrain/trainer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 200
#define FIRST 20
#define LAST 20
#define MOST 512

static struct {
    int curve;
    double set_up, noise, busy; /* seconds; share; chance of three times the time */
    uint64_t random;
    char has_run[MOST];
} at;

static double random_share(void) {
    return (double)(fake_random(&at.random) >> 11) / 9007199254740992.0;
}

static double normal(void) {
    return sqrt(-2 * log(random_share() + 1e-12)) * cos(6.283185307 * random_share());
}

/* Milliseconds without set-up and noise. */
static double steady(size_t samples) {
    double x = (double)samples;

    switch (at.curve) {
    case 0:
        return x + 0.5;
    case 1:
        return x + 4;
    case 2:
        return x + 30; /* mostly the same for any chunk */
    case 3:
        return samples <= 16 ? x + 3 : 19 + (x - 16) * 1.8; /* falls out of a cache */
    case 4:
        return samples < 24 ? x + 3 : 6 * x; /* a cliff */
    case 5:
        return samples < 16 ? 1.4 * (x + 2) : x + 2; /* faster kernels from 16 on */
    case 6:
        return (double)((samples + 15) / 16 * 16) + 2; /* tiles of 16 */
    default:
        return samples <= 8 ? x + 1 : 9 + (x - 8) * 1.3; /* falls out of a small cache */
    }
}

static double measured(size_t samples) {
    double seconds = 1e-3 * steady(samples) * (1 + fabs(at.noise * normal()));

    if (random_share() < at.busy) seconds *= 3;
    if (samples < MOST && !at.has_run[samples]) {
        at.has_run[samples] = 1;
        seconds += at.set_up;
    }
    return seconds;
}

static double steady_batch(size_t batch, size_t chunks) {
    size_t small = batch / chunks, larger = batch % chunks;

    return 1e-3 * ((double)(chunks - larger) * steady(small) +
                   (larger ? (double)larger * steady(small + 1) : 0));
}

static double best_batch(size_t batch, size_t fits) {
    double best = 0;

    for (size_t k = (batch + fits - 1) / fits; k <= batch; k++)
        if (best == 0 || steady_batch(batch, k) < best) best = steady_batch(batch, k);
    return best;
}

typedef struct figures {
    double first, all, worst; /* sums of logarithms; at the end */
    int runs;
} figures;

/* Returns 0 where a step failed. */
static int run(size_t batch_size, size_t fits, figures *out) {
    static fake_backend fake;
    fake_options options = fake_fits(&fake_train_program, fits);
    mt_batch batch = {sizeof(batch), NULL, batch_size, 0};
    double best = best_batch(batch_size, fits), total = 0, end = 0;
    double usual = (1 + 0.7979 * at.noise) * (1 + 2 * at.busy); /* what no choice avoids */
    mt_trainer *trainer;
    mt_backend seam;

    memset(at.has_run, 0, sizeof(at.has_run));
    options.seconds = measured;
    options.noise = 0;
    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    if (mt_trainer_new(&seam, NULL, &trainer) != MT_OK) return 0;
    for (int i = 0; i < BATCHES; i++) {
        mt_step_report report = MT_STEP_REPORT_INIT;

        batch.id = (uint64_t)i;
        if (mt_trainer_step(trainer, &batch, &report) != MT_OK) return 0;
        total += report.seconds;
        if (i == FIRST - 1) out->first += log(total / (FIRST * best * usual));
        for (size_t c = 0; i >= BATCHES - LAST && c < report.chunk_count; c++)
            end += 1e-3 * steady(report.chunks[c]);
    }
    mt_trainer_free(trainer);
    out->all += log(total / (BATCHES * best * usual));
    out->worst = fmax(out->worst, end / (LAST * best));
    out->runs++;
    return 1;
}

/* Of curves from the first to the last. */
static int report(size_t batch, int first, int last, double most, double most_worst) {
    static const double set_ups[] = {0, 10e-3, 40e-3}, noises[] = {0, 0.03, 0.15},
                        busy[] = {0, 0.03};
    static const size_t fits[] = {12, 30, 80};
    figures f = {0, 0, 0, 0};

    for (at.curve = first; at.curve <= last; at.curve++)
        for (int i = 0; i < 3 * 3 * 2 * 3; i++)
            for (uint64_t seed = 1; seed <= 6; seed++) {
                at.set_up = set_ups[i % 3];
                at.noise = noises[i / 3 % 3];
                at.busy = busy[i / 9 % 2];
                at.random = seed * 7919 + (uint64_t)(100 * i + at.curve);
                if (at.noise == 0 && at.busy == 0 && seed > 1) continue;
                if (!run(batch, fits[i / 18], &f)) {
                    fprintf(stderr, "sizes: %s\n", mt_last_error());
                    return 0;
                }
            }
    printf("sizes %zu%s  first_20=%.4f all_200=%.4f worst_at_end=%.2f (%d runs)\n", batch,
           first ? " small" : "", exp(f.first / f.runs), exp(f.all / f.runs), f.worst, f.runs);
    return exp(f.all / f.runs) <= most && f.worst <= most_worst;
}

int main(void) {
    int is_well = report(64, 0, 6, 1.016, 1.4);

    is_well &= report(48, 0, 6, 1.022, 1.4);
    is_well &= report(100, 0, 6, 1.022, 1.4);
    is_well &= report(96, 7, 7, 1.012, 1.1); /* 100 leave 4, which measure small sizes too */
    return is_well ? EXIT_SUCCESS : EXIT_FAILURE;
}
