/*
 * hog.c - another process takes memory and returns it at random, between steps and in the middle of
 * them, for 500 steps. Prints the OOMs that reached the user (none are to), those that a step met, and
 * after how many steps the samples a second were back when the memory was, at worst and on average;
 * each the worst of several hogs, which come and go after up to 40 steps, or up to 200.
 *
 *     hog told    to_user=... ooms=... steps_back=... (mean ...)
 *     hog untold  to_user=... ooms=... steps_back=... (mean ...)
 *
 * told: the budget says what is left, as the host's does; of backends that keep finished chunks, that do not,
 * and that cannot record. untold: nothing but refusals do, with evidence, as on a card that others use too, and
 * without; of backends that record, that measure peaks, and that do neither, as MPS.
 */
#include "fake_backend.h"

#include <memtrain/trainer.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 500
#define WARM_UP 40
#define HOGS 20
#define BATCH 64
#define MOST_STEPS 13
#define SHORT 40 /* steps that a hog is there, and that it is not */
#define LONG 200
#define BACK 0.98 /* of the samples a second before */

typedef struct figures {
    unsigned to_user;
    uint64_t ooms;
    int steps_back; /* worst */
    double sum_back;
    int returns;
} figures;

/* Backends, and what each tells. */
typedef struct hog_kind {
    unsigned absent;
    int keep, no_peaks, no_evidence;
} hog_kind;

static const hog_kind told[] = {{0, 0, 0, 0}, {0, 1, 0, 0}, {FAKE_BIT(FAKE_RECORD), 0, 0, 0}};
static const hog_kind untold[] = {
    {0, 0, 0, 1},
    {0, 1, 0, 1},
    {FAKE_BIT(FAKE_RECORD), 0, 0, 1},
    {FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK), 0, 1, 1},
    {FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK), 1, 1, 1},
    {0, 0, 0, 0},
    {0, 1, 0, 0},
    {FAKE_BIT(FAKE_RECORD), 0, 0, 0},
};

static fake_backend fake;
static mt_backend inner;

/* What the hog does to the budget, or to a limit that is not told, and before which chunk from now on. */
static struct {
    uint64_t random;
    size_t *limit;
    size_t whole, least; /* budgets: of the trainer alone, and that the hog always leaves */
    size_t next;
    int chunks; /* 0: done */
    int until;  /* the step at which it comes or goes ... */
    int most;   /* ... in at most so many */
    int is_here;
} hog;

static size_t below(size_t bound) {
    return (size_t)(fake_random(&hog.random) % bound);
}

static mt_status accumulate(void *self, size_t first, size_t count, double weight,
                            mt_chunk_result *out) {
    if (hog.chunks > 0 && --hog.chunks == 0) *hog.limit = hog.next;
    return inner.accumulate(self, first, count, weight, out);
}

/* The limit becomes another: now, or before one of the next chunks. */
static void change(size_t limit) {
    hog.next = limit;
    hog.chunks = (int)below(4);
    if (hog.chunks == 0) *hog.limit = limit;
}

/* Before each step. Returns whether the memory is back from this step on. */
static int hog_moves(int step) {
    if (step >= hog.until) {
        hog.is_here = !hog.is_here;
        hog.until = step + 1 + (int)below((size_t)hog.most);
        if (!hog.is_here) {
            hog.chunks = 0;
            *hog.limit = hog.whole;
            return 1;
        }
    }
    if (hog.is_here && below(3) == 0) change(hog.least + below(hog.whole - hog.least));
    return 0;
}

static mt_trainer *start(const hog_kind *kind, int is_told) {
    fake_options options = fake_fits(&fake_train_program, 40);
    mt_trainer *trainer = NULL;
    mt_backend seam;

    options.seconds = fake_seconds;
    options.keep = kind->keep;
    options.absent = kind->absent;
    options.no_peaks = kind->no_peaks;
    options.no_evidence = kind->no_evidence;
    hog.limit = is_told ? &fake.options.budget_bytes : &fake.options.device_bytes;
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

static int run(const hog_kind *kind, int is_told, uint64_t seed, figures *out) {
    mt_run_report report = MT_RUN_REPORT_INIT;
    double before = 0;
    int since = -1; /* steps since the memory is back, as long as the speed is not */
    mt_trainer *trainer;

    hog.random = seed;
    hog.is_here = hog.chunks = 0;
    hog.until = WARM_UP;
    hog.most = seed % 2 ? SHORT : LONG;
    trainer = start(kind, is_told);
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

/* Returns whether all went as it is to go. */
static int report(const char *name, const hog_kind *kinds, size_t count, int is_told) {
    figures worst = {0, 0, 0, 0, 0};

    for (size_t i = 0; i < count; i++)
        for (uint64_t seed = 1; seed <= HOGS; seed++)
            if (!run(&kinds[i], is_told, seed, &worst)) {
                fprintf(stderr, "hog: %s\n", mt_last_error());
                return 0;
            }
    printf("hog %-6s  to_user=%u ooms=%llu steps_back=%d (mean %.2f)\n", name, worst.to_user,
           (unsigned long long)worst.ooms, worst.steps_back,
           worst.returns > 0 ? worst.sum_back / worst.returns : 0);
    return worst.to_user == 0 && worst.steps_back <= MOST_STEPS;
}

int main(void) {
    int is_well = report("told", told, sizeof(told) / sizeof(told[0]), 1);

    is_well &= report("untold", untold, sizeof(untold) / sizeof(untold[0]), 0);
    return is_well ? EXIT_SUCCESS : EXIT_FAILURE;
}
