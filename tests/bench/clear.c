/*
 * clear.c - what clearing the cache costs, under a cache that grows with each chunk and a clear whose
 * price was measured: 44 % of the time where each step clears. Prints the share of the time for
 * automatic clearing and for each step and each tenth, with the number of clears and the times that
 * the allocator had to clear by itself.
 *
 *     clear  auto=... % (... clears, ... retries) every_1=... % every_10=... %
 */
#include "fake_backend.h"

#include <memtrain/trainer.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 2000
#define BATCH 32
#define MOST 0.01

typedef struct figures {
    double share;
    unsigned long long clears, retries;
} figures;

/* Seconds of a clear that costs 44 % beside a step of one chunk. */
static double clear_seconds(void) {
    return 0.44 / 0.56 * fake_seconds(BATCH);
}

static int run(int clear_every, figures *out) {
    fake_options options = fake_fits(&fake_train_program, BATCH + BATCH / 4);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    mt_run_report report = MT_RUN_REPORT_INIT;
    mt_batch batch = {sizeof(batch), NULL, BATCH, 0};
    static fake_backend fake;
    mt_trainer *trainer;
    mt_backend seam;

    options.seconds = fake_seconds;
    options.cache_keeps_bytes = options.budget_bytes / 20;
    options.clear_seconds = clear_seconds();
    policy.clear_every = clear_every;
    own.policy = &policy;
    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    if (mt_trainer_new(&seam, &own, &trainer) != MT_OK) return 0;
    for (batch.id = 1; batch.id <= STEPS; batch.id++)
        if (mt_trainer_step(trainer, &batch, NULL) != MT_OK) return 0;
    if (mt_trainer_summary(trainer, &report) != MT_OK) return 0;
    mt_trainer_free(trainer);
    out->clears = fake.clears;
    out->retries = fake.retries;
    out->share = (double)fake.clears * clear_seconds();
    out->share /= report.seconds + out->share;
    return 1;
}

int main(void) {
    figures automatic, each, tenth;

    if (!run(MT_CLEAR_AUTO, &automatic) || !run(1, &each) || !run(10, &tenth)) {
        fprintf(stderr, "clear: %s\n", mt_last_error());
        return EXIT_FAILURE;
    }
    printf("clear  auto=%.2f %% (%llu clears, %llu retries) every_1=%.2f %% every_10=%.2f %%\n",
           100 * automatic.share, automatic.clears, automatic.retries, 100 * each.share,
           100 * tenth.share);
    return automatic.share <= MOST ? EXIT_SUCCESS : EXIT_FAILURE;
}
