/*
 * check_abi_sizes.c - callers of an older version: every struct of libmemtrain that begins with its size, at each
 * size that it can have, against the end of its memory.
 */
#include <memtrain/arena.h>
#include <memtrain/fit.h>
#include <memtrain/safetensors.h>
#include <memtrain/schedule.h>
#include <memtrain/segments.h>
#include <memtrain/sim.h>

#include "edge.h"
#include "suite.h"
#include "trainer_fixture.h"

#include <math.h>

/* ---- the policy and the trainer ------------------------------------------------------------------------ */

static mt_status policy_options(void *given) {
    mt_policy *policy;
    mt_plan plan;
    mt_memory memory = {sizeof memory, 1000, 0, 0, 0, 0, 0};
    mt_status status = mt_policy_new(given, NULL, &policy);

    if (status == MT_OK) status = mt_policy_plan(policy, MT_TRAIN, 8, &memory, &plan);
    mt_policy_free(policy);
    return status;
}

static mt_status backend_info(void *given) {
    mt_policy *policy;
    mt_status status = mt_policy_new(NULL, given, &policy);

    mt_policy_free(policy);
    return status;
}

/* Three steps, so that recordings are made and used. */
static mt_status some_steps(const mt_backend *seam, const mt_trainer_options *options) {
    mt_trainer *trainer;
    mt_status status = mt_trainer_new(seam, options, &trainer);

    for (uint64_t id = 1; id <= 3 && status == MT_OK; id++) {
        mt_batch batch = batch_of(32, id);

        status = mt_trainer_step(trainer, &batch, NULL);
    }
    mt_trainer_free(trainer);
    ck_assert_ptr_null(fake.complaint);
    return status;
}

static mt_status backend(void *given) {
    return some_steps(given, NULL);
}

static mt_status trainer_options(void *given) {
    mt_backend seam = fake_seam(&fake);

    return some_steps(&seam, given);
}

static mt_status options_of_the_policy(void *given) {
    mt_backend seam = fake_seam(&fake);
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;

    own.policy = given;
    return some_steps(&seam, &own);
}

static mt_trainer *trainer;

static mt_status batch(void *given) {
    return mt_trainer_step(trainer, given, NULL);
}

static mt_status step_report(void *given) {
    mt_batch own = batch_of(8, 1);

    return mt_trainer_step(trainer, &own, given);
}

static mt_status eval_report(void *given) {
    mt_batch own = batch_of(8, 1);

    return mt_trainer_evaluate(trainer, &own, given);
}

static mt_status epoch_report(void *given) {
    return mt_trainer_end_epoch(trainer, given);
}

static mt_status run_report(void *given) {
    return mt_trainer_summary(trainer, given);
}

static mt_status last_report(void *given) {
    return mt_trainer_finish(trainer, given);
}

static mt_status load_of_source(void *self, const size_t *index, size_t count, mt_batch *out) {
    (void)self, (void)index, (void)count, (void)out;
    return MT_OK;
}

static const mt_source source = {sizeof source, NULL, 8, load_of_source, NULL};

static mt_status fit_source(void *given) {
    return mt_fit(trainer, given, NULL, NULL, NULL);
}

static mt_status fit_options(void *given) {
    return mt_fit(trainer, &source, given, NULL, NULL);
}

static mt_status fit_callbacks(void *given) {
    return mt_fit(trainer, &source, NULL, given, NULL);
}

static mt_status fit_report(void *given) {
    return mt_fit(trainer, &source, NULL, NULL, given);
}

TEST("sizes", policy_and_trainer) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_step_report step = MT_STEP_REPORT_INIT;
    mt_eval_report eval = MT_EVAL_REPORT_INIT;
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_fit_options loop = MT_FIT_OPTIONS_INIT;
    mt_fit_callbacks callbacks = MT_FIT_CALLBACKS_INIT;
    mt_fit_report end = MT_FIT_REPORT_INIT;
    mt_backend_info info = {sizeof info, "cpu", "1",  1, 0, 0, 0, 0, 0, 0, 0, NULL,
                            0,           0,     NULL, 0, 0, 0, 0, 0, 0, 0, 0};
    mt_batch full = batch_of(8, 1);
    fake_options fitting = fits(14);
    mt_backend seam;

    fake_init(&fake, &fitting);
    seam = fake_seam(&fake);
    const edge_row alone[] = {
        {"mt_policy_options", sizeof policy, 0, &policy, policy_options},
        {"mt_policy_options of a trainer", sizeof policy, 0, &policy, options_of_the_policy},
        {"mt_backend_info", sizeof info, 0, &info, backend_info},
        {"mt_backend", sizeof seam, offsetof(mt_backend, evaluate), &seam, backend},
        {"mt_trainer_options", sizeof options, 0, &options, trainer_options},
    };
    for (int i = 0; i < LENGTH(alone); i++) edge_each(&alone[i]);

    trainer = trainer_of(&fitting, NULL);
    const edge_row of_a_trainer[] = {
        {"mt_batch", sizeof full, sizeof full, &full, batch},
        {"mt_step_report", sizeof step, 0, &step, step_report},
        {"mt_eval_report", sizeof eval, 0, &eval, eval_report},
        {"mt_epoch_report", sizeof epoch, 0, &epoch, epoch_report},
        {"mt_run_report", sizeof run, 0, &run, run_report},
        {"mt_run_report at the end", sizeof run, 0, &run, last_report},
        {"mt_source", sizeof source, offsetof(mt_source, release), &source, fit_source},
        {"mt_fit_options", sizeof loop, 0, &loop, fit_options},
        {"mt_fit_callbacks", sizeof callbacks, 0, &callbacks, fit_callbacks},
        {"mt_fit_report", sizeof end, 0, &end, fit_report},
    };
    for (int i = 0; i < LENGTH(of_a_trainer); i++) edge_each(&of_a_trainer[i]);
    done(trainer);
}

/* ---- the others ------------------------------------------------------------------------------------------ */

static mt_sim *card;

static mt_status sim_options(void *given) {
    mt_sim *sim;
    mt_status status = mt_sim_new(given, &sim);

    mt_sim_free(sim);
    return status;
}

static mt_status sim_stats(void *given) {
    return mt_sim_read_stats(card, given);
}

static mt_status sim_memory(void *given) {
    return mt_sim_memory(card, given);
}

static mt_status host_memory(void *given) {
    return mt_host_memory_read(NULL, given);
}

static mt_status schedule(void *given) {
    return isnan(mt_schedule_rate(given, 3)) ? MT_EINVAL : MT_OK;
}

static mt_status segments_choice(void *given) {
    const mt_segment_cost costs[] = {{100, 10, 1.0, 0}, {200, 10, 1.0, 0}};
    unsigned char recompute[2];
    mt_status status = mt_segments_choose(costs, 2, 1000, recompute, given);

    return status == MT_OK ? mt_segments_price(costs, 2, recompute, given) : status;
}

static mt_status layout(void *given) {
    mt_block blocks[] = {{64, 0, 1, 0}, {64, 1, 2, 0}};

    return mt_arena_layout(blocks, 2, 0, 64, given);
}

static mt_status save_options(void *given) {
    char path[] = "/tmp/check_abi_sizes.XXXXXX";
    const int64_t shape[] = {2};
    const float data[] = {1, 2};
    const mt_safetensors_tensor tensor = {"x", MT_ST_F32, 1, shape, 8, data};
    int file = mkstemp(path);

    ck_assert_int_ge(file, 0);
    close(file);
    mt_status status = mt_safetensors_save(path, &tensor, 1, given);
    unlink(path);
    return status;
}

TEST("sizes", what_needs_no_trainer) {
    mt_sim_options options = MT_SIM_OPTIONS_INIT;
    mt_sim_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    mt_memory memory = {sizeof memory, 0, 0, 0, 0, 0, 0};
    mt_host_memory host = {sizeof host, 0, 0, 0, 0, 0, 0, 0, 0};
    mt_schedule rates = MT_SCHEDULE_INIT;
    mt_segments_choice choice = MT_SEGMENTS_CHOICE_INIT;
    mt_layout place = MT_LAYOUT_INIT;
    mt_safetensors_save_options saving = MT_SAFETENSORS_SAVE_OPTIONS_INIT;

    ck_ok(mt_sim_new(NULL, &card));
    const edge_row rows[] = {
        {"mt_sim_options", sizeof options, 0, &options, sim_options},
        {"mt_sim_stats", sizeof stats, 0, &stats, sim_stats},
        {"mt_memory of a card", sizeof memory, 0, &memory, sim_memory},
        {"mt_host_memory", sizeof host, 0, &host, host_memory},
        {"mt_schedule", sizeof rates, 0, &rates, schedule},
        {"mt_segments_choice", sizeof choice, 0, &choice, segments_choice},
        {"mt_layout", sizeof place, 0, &place, layout},
        {"mt_safetensors_save_options", sizeof saving, 0, &saving, save_options},
    };
    for (int i = 0; i < LENGTH(rows); i++) edge_each(&rows[i]);
    mt_sim_free(card);
}

SUITE("abi_sizes")
