/*
 * few_shot_test.c - the checks of --self-test, each on steps of networks that begin with the same weights; see
 * few_shot_test.h.
 */
#include "few_shot_test.h"

#include "batches.h"
#include "device.h"
#include "report.h"

#include <math.h>
#include <memtrain/trainer.h>
#include <stdio.h>
#include <string.h>

enum { EPISODES = 2, STEPS = 3 };

/* What all checks share. */
typedef struct bench {
    const ex_flags *flags;
    ex_device device;
    ex_class_sets classes;
    ex_episodes episodes;
    profoct_model_options model;
    ex_batches *batches;
    int failed;
} bench;

/* One network, trained for a few steps of two episodes. */
typedef struct trial {
    profoct_model_options model;
    size_t chunk; /* episodes at once */
    mt_dtype amp;
    int clear_every, steps;
    /* What was seen: of the first step, and of all. */
    double loss, norm;
    size_t peak_bytes, peak_reserved;
    mt_run_report run;
} trial;

/* ---- trials ------------------------------------------------------------------------------------ */

static trial trial_of(const bench *b) {
    return (trial){.model = b->model,
                   .chunk = EPISODES,
                   .amp = MT_DTYPE_NONE,
                   .clear_every = MT_CLEAR_NEVER,
                   .steps = 1,
                   .run = MT_RUN_REPORT_INIT};
}

static mt_status run_step(const bench *b, trial *t, mt_trainer *trainer, int step) {
    mt_batch batch;
    mt_step_report report = MT_STEP_REPORT_INIT;
    const size_t ones[EPISODES] = {1, 1}, whole[1] = {EPISODES};
    mt_status status = ex_batches_fill(b->batches, EX_TRAINING, 1, (size_t)step, &batch);
    if (status == MT_OK)
        status = t->chunk == 1 ? mt_trainer_set_chunks(trainer, ones, EPISODES)
                               : mt_trainer_set_chunks(trainer, whole, 1);
    if (status == MT_OK) status = mt_trainer_step(trainer, &batch, &report);
    if (status != MT_OK || step > 0) return status;
    t->loss = report.loss;
    t->norm = report.grad_norm;
    t->peak_bytes = report.peak_bytes;
    return MT_OK;
}

static mt_status run_steps(const bench *b, trial *t, mt_torch *torch) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_backend backend = MT_BACKEND_INIT;
    mt_trainer *trainer = NULL;
    policy.clear_every = t->clear_every;
    options.policy = &policy;
    mt_status status = mt_torch_backend(torch, &backend);
    if (status == MT_OK) status = mt_trainer_new(&backend, &options, &trainer);
    for (int i = 0; i < t->steps && status == MT_OK; i++) status = run_step(b, t, trainer, i);
    if (status == MT_OK) status = mt_trainer_finish(trainer, &t->run);
    mt_trainer_free(trainer);
    return status;
}

/* From the same weights each time. Clipping at a norm that nothing reaches has the norm computed. */
static mt_status run(const bench *b, trial *t) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    mt_model *model = NULL;
    mt_torch *torch = NULL;
    options.device = b->device.name;
    options.clip_norm = 1e9;
    options.amp = t->amp;
    mt_status status = mt_torch_seed((uint64_t)b->flags->seed);
    if (status == MT_OK) status = profoct_model_new(&t->model, &model);
    if (status == MT_OK) status = mt_torch_new(model, &options, &torch);
    if (status == MT_OK) status = run_steps(b, t, torch);
    mt_torch_free(torch);
    mt_model_free(model);
    return status;
}

/* ---- checks ------------------------------------------------------------------------------------ */

static int is_near(double a, double b, double share) {
    return isfinite(a) && isfinite(b) && fabs(a - b) <= share * fmax(fabs(a), fabs(b));
}

static const char *size_text(size_t bytes, char text[32]) {
    return mt_format_size(bytes, text, 32);
}

/* The beginning of a check's line. */
static void say(bench *b, const char *name, int passed) {
    b->failed += !passed;
    printf("%-22s %s: ", name, passed ? "passed" : "FAILED");
}

/* Two episodes one after the other are the batch of two. */
static mt_status check_accumulation(bench *b) {
    trial whole = trial_of(b), parts = trial_of(b);
    char one[32], two[32];
    parts.chunk = 1;
    mt_status status = run(b, &whole);
    if (status == MT_OK) status = run(b, &parts);
    if (status != MT_OK) return status;
    say(b, "gradient accumulation",
        is_near(whole.loss, parts.loss, 1e-4) && is_near(whole.norm, parts.norm, 1e-3));
    printf("loss %.6f at once, %.6f one by one; norm of the gradient %.6f, %.6f; peak %s, %s\n",
           whole.loss, parts.loss, whole.norm, parts.norm, size_text(whole.peak_bytes, one),
           size_text(parts.peak_bytes, two));
    return MT_OK;
}

/* fp16 with its scaler on a card that has it, as the script has it on CUDA; bf16 elsewhere. */
static mt_status check_amp(bench *b) {
    trial full = trial_of(b), half = trial_of(b);
    char one[32], two[32];
    int has_half = ex_flags_has_half(b->device.name);
    half.amp = has_half ? MT_FLOAT16 : MT_BFLOAT16;
    mt_status status = run(b, &full);
    if (status == MT_OK) status = run(b, &half);
    if (status != MT_OK) return status;
    say(b, "mixed precision", is_near(full.loss, half.loss, 0.05) && isfinite(half.norm));
    printf("%s: loss %.4f in float, %.4f; norm of the gradient %.4f, %.4f; peak %s, %s\n",
           has_half ? "fp16" : "bf16", full.loss, half.loss, full.norm, half.norm,
           size_text(full.peak_bytes, one), size_text(half.peak_bytes, two));
    return MT_OK;
}

/* The terms of attention without a graph change no gradient and keep nothing; with one they do. */
static mt_status check_detached(bench *b) {
    trial none = trial_of(b), detached, attached;
    char texts[3][32];
    none.model.vic = 1;
    none.model.dynamic = 0; /* weights that follow the terms would change the gradient */
    attached = detached = none;
    none.model.vic_on_attention = 0;
    detached.model.vic_on_attention = attached.model.vic_on_attention = 1;
    detached.model.detach = 1;
    attached.model.detach = 0;
    mt_status status = run(b, &none);
    if (status == MT_OK) status = run(b, &detached);
    if (status == MT_OK) status = run(b, &attached);
    if (status != MT_OK) return status;
    say(b, "VIC detached",
        is_near(none.norm, detached.norm, 1e-6) && !is_near(none.norm, attached.norm, 1e-6) &&
            detached.peak_bytes <= attached.peak_bytes);
    printf("norm of the gradient %.6f without VIC on attention, %.6f detached, %.6f attached; peak "
           "%s, %s, "
           "%s\n",
           none.norm, detached.norm, attached.norm, size_text(none.peak_bytes, texts[0]),
           size_text(detached.peak_bytes, texts[1]), size_text(attached.peak_bytes, texts[2]));
    return MT_OK;
}

/* Clearing after each step costs time and changes nothing. */
static mt_status check_clearing(bench *b) {
    trial never = trial_of(b), always = trial_of(b);
    never.steps = always.steps = STEPS;
    always.clear_every = 1;
    mt_status status = run(b, &never);
    if (status == MT_OK) status = run(b, &always);
    if (status != MT_OK) return status;
    int same = strcmp(never.run.state_sha256, always.run.state_sha256) == 0;
    say(b, "cache clearing", always.run.clears >= STEPS - 1 && !never.run.clears && same);
    printf("%llu times in %d steps, and %llu; the states after them are %s\n",
           (unsigned long long)always.run.clears, STEPS, (unsigned long long)never.run.clears,
           same ? "the same to the bit" : "different");
    return MT_OK;
}

/* ---- all of them ------------------------------------------------------------------------------- */

/* Batches are not cut here, and would not fit the budget that suits a run. */
static mt_status prepare(bench *b, const char *argv0, const char *folder) {
    const ex_batches_options options = {.batch = EPISODES};
    mt_status status = ex_device_open(b->flags, "auto", 0, &b->device);
    if (status == MT_OK)
        status = ex_class_sets_open(b->flags, argv0, folder, &b->episodes.shape, &b->classes);
    if (status != MT_OK) return status;
    b->episodes.classes = &b->classes;
    const ex_source source = ex_episodes_source(&b->episodes);
    return ex_batches_new(&source, &options, &b->batches);
}

static mt_status check_all(bench *b) {
    mt_status (*const checks[])(bench *) = {check_accumulation, check_amp, check_detached,
                                            check_clearing};
    mt_status status = MT_OK;
    for (size_t i = 0; i < EX_ROWS(checks) && status == MT_OK; i++) status = checks[i](b);
    return status;
}

int ex_few_shot_test(const ex_flags *flags, const char *argv0, const char *folder,
                     const ex_shape *shape, const profoct_model_options *model) {
    bench b = {.flags = flags, .model = *model};
    b.episodes = (ex_episodes){.set = {EX_TRAIN_CLASSES, EX_VAL_CLASSES},
                               .counts = {EPISODES * STEPS, 0},
                               .shape = *shape,
                               .side = (int)flags->image_size,
                               .seed = (uint64_t)flags->seed};
    mt_status status = prepare(&b, argv0, folder);
    if (status == MT_OK) status = check_all(&b);
    const ex_failure failure = {.program = "profoct",
                                .status = status,
                                .has_state = 1,
                                .flags = flags,
                                .device = &b.device};
    if (status != MT_OK)
        ex_report_failure(&failure);
    else
        printf("self-test: %s\n", b.failed ? "FAILED" : "passed");
    ex_batches_free(b.batches);
    ex_class_sets_close(&b.classes);
    return status != MT_OK ? ex_exit_status(status, 0) : b.failed > 0;
}
