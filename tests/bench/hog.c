/*
 * hog.c - another process takes memory and returns it at random, between steps and in the middle of
 * them, for 500 steps. Prints the OOMs that reached the user (none are to), those that a step met, and
 * after how many steps the samples a second were back when the memory was, at worst and on average;
 * each the worst of several hogs, and of backends that keep finished chunks, that do not, and that
 * cannot record.
 *
 *     hog  to_user=... ooms=... steps_back=... (mean ...)
 */
#include "fake_backend.h"

#include <memtrain/trainer.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 500
#define WARM_UP 40
#define HOGS 20
#define BATCH 64
#define MOST_STEPS 10
#define BACK 0.98 /* of the samples a second before */

typedef struct figures {
    unsigned to_user;
    uint64_t ooms;
    int steps_back; /* worst */
    double sum_back;
    int returns;
} figures;

static fake_backend fake;
static mt_backend inner;

/* What the hog does to the budget, and before which chunk from now on. */
static struct {
    uint64_t random;
    size_t whole, least; /* budgets: of the trainer alone, and that the hog always leaves */
    size_t next;
    int chunks; /* 0: done */
    int until;  /* the step at which it comes or goes */
    int is_here;
} hog;

static size_t below(size_t bound) {
    return (size_t)(fake_random(&hog.random) % bound);
}

static mt_status accumulate(void *self, size_t first, size_t count, double weight,
                            mt_chunk_result *out) {
    if (hog.chunks > 0 && --hog.chunks == 0) fake.options.budget_bytes = hog.next;
    return inner.accumulate(self, first, count, weight, out);
}

/* The budget becomes another: now, or before one of the next chunks. */
static void change(size_t budget) {
    hog.next = budget;
    hog.chunks = (int)below(4);
    if (hog.chunks == 0) fake.options.budget_bytes = budget;
}

/* Before each step. Returns whether the memory is back from this step on. */
static int hog_moves(int step) {
    if (step >= hog.until) {
        hog.is_here = !hog.is_here;
        hog.until = step + 1 + (int)below(40);
        if (!hog.is_here) {
            hog.chunks = 0;
            fake.options.budget_bytes = hog.whole;
            return 1;
        }
    }
    if (hog.is_here && below(3) == 0) change(hog.least + below(hog.whole - hog.least));
    return 0;
}

static mt_trainer *start(int kind) {
    fake_options options = fake_fits(&fake_train_program, 40);
    mt_trainer *trainer = NULL;
    mt_backend seam;

    options.seconds = fake_seconds;
    options.keep = kind == 1;
    options.absent = kind == 2 ? FAKE_BIT(FAKE_RECORD) : 0;
    hog.whole = options.budget_bytes;
    hog.least = options.resident_bytes + fake_program_peak(&fake_train_program, 2);
    fake_init(&fake, &options);
    inner = seam = fake_seam(&fake);
    seam.accumulate = accumulate;
    if (mt_trainer_new(&seam, NULL, &trainer) != MT_OK) return NULL;
    return trainer;
}

static double samples_a_second(mt_trainer *trainer, int step, figures *out) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_batch batch = {sizeof(batch), NULL, BATCH, (uint64_t)step};

    if (mt_trainer_step(trainer, &batch, &report) == MT_OK)
        return (double)report.samples / report.seconds;
    out->to_user++;
    return 0;
}

static void count_return(figures *out, int steps) {
    if (steps > out->steps_back) out->steps_back = steps;
    out->sum_back += steps;
    out->returns++;
}

static int run(int kind, uint64_t seed, figures *out) {
    mt_run_report report = MT_RUN_REPORT_INIT;
    double before = 0;
    int since = -1; /* steps since the memory is back, as long as the speed is not */
    mt_trainer *trainer;

    hog.random = seed;
    hog.is_here = hog.chunks = 0;
    hog.until = WARM_UP;
    trainer = start(kind);
    if (trainer == NULL) return 0;
    for (int step = 0; step < WARM_UP + STEPS; step++) {
        double speed;

        if (hog_moves(step)) since = 0;
        if (hog.is_here) since = -1;
        speed = samples_a_second(trainer, step, out);
        if (step < WARM_UP) before = speed;
        if (since < 0) continue;
        since++;
        if (speed >= BACK * before) {
            count_return(out, since);
            since = -1;
        } else if (since > MOST_STEPS) {
            count_return(out, since);
        }
    }
    if (mt_trainer_summary(trainer, &report) != MT_OK) return 0;
    if (report.ooms > out->ooms) out->ooms = report.ooms;
    mt_trainer_free(trainer);
    return 1;
}

int main(void) {
    figures worst = {0, 0, 0, 0, 0};

    for (int kind = 0; kind < 3; kind++)
        for (uint64_t seed = 1; seed <= HOGS; seed++)
            if (!run(kind, seed, &worst)) {
                fprintf(stderr, "hog: %s\n", mt_last_error());
                return EXIT_FAILURE;
            }
    printf("hog  to_user=%u ooms=%llu steps_back=%d (mean %.2f)\n", worst.to_user,
           (unsigned long long)worst.ooms, worst.steps_back,
           worst.returns > 0 ? worst.sum_back / worst.returns : 0);
    return worst.to_user == 0 && worst.steps_back <= MOST_STEPS ? EXIT_SUCCESS : EXIT_FAILURE;
}
