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

/* A function that makes this call with a struct that is given to it. */
#define CALL(name, call)                                                                           \
    static mt_status name(void *given) {                                                           \
        return call;                                                                               \
    }

/* A struct as callers begin with it, and the call that takes it at any size. */
#define ROW(type, initial, call)                                                                   \
    { #type ", " #call, sizeof(type), 0, &(type)initial, call }

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

static mt_backend seam;

static mt_status options_of_the_policy(void *given) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;

    own.policy = given;
    return some_steps(&seam, &own);
}

CALL(backend, some_steps(given, NULL))
CALL(trainer_options, some_steps(&seam, given))

static mt_trainer *trainer;
static mt_batch eight; /* samples */

CALL(batch, mt_trainer_step(trainer, given, NULL))
CALL(step_report, mt_trainer_step(trainer, &eight, given))
CALL(eval_report, mt_trainer_evaluate(trainer, &eight, given))
CALL(epoch_report, mt_trainer_end_epoch(trainer, given))
CALL(run_report, mt_trainer_summary(trainer, given))
CALL(last_report, mt_trainer_finish(trainer, given))

static mt_status load_of_source(void *self, const size_t *index, size_t count, mt_batch *out) {
    (void)self, (void)index, (void)count, (void)out;
    return MT_OK;
}

static const mt_source source = {sizeof source, NULL, 8, load_of_source, NULL};

CALL(fit_source, mt_fit(trainer, given, NULL, NULL, NULL))
CALL(fit_options, mt_fit(trainer, &source, given, NULL, NULL))
CALL(fit_callbacks, mt_fit(trainer, &source, NULL, given, NULL))
CALL(fit_report, mt_fit(trainer, &source, NULL, NULL, given))

TEST("sizes", policy_and_trainer) {
    mt_backend_info info = {
        .size = sizeof info, .device = "cpu", .version = "1", .min_micro_batch = 1};
    fake_options fitting = fits(14);

    fake_init(&fake, &fitting);
    seam = fake_seam(&fake);
    const edge_row alone[] = {
        ROW(mt_policy_options, MT_POLICY_OPTIONS_INIT, policy_options),
        ROW(mt_policy_options, MT_POLICY_OPTIONS_INIT, options_of_the_policy),
        {"mt_backend_info", sizeof info, 0, &info, backend_info},
        {"mt_backend", sizeof seam, offsetof(mt_backend, evaluate), &seam, backend},
        ROW(mt_trainer_options, MT_TRAINER_OPTIONS_INIT, trainer_options),
    };
    for (int i = 0; i < LENGTH(alone); i++) edge_each(&alone[i]);

    trainer = trainer_of(&fitting, NULL);
    eight = batch_of(8, 1);
    const edge_row of_a_trainer[] = {
        {"mt_batch", sizeof eight, sizeof eight, &eight, batch},
        ROW(mt_step_report, MT_STEP_REPORT_INIT, step_report),
        ROW(mt_eval_report, MT_EVAL_REPORT_INIT, eval_report),
        ROW(mt_epoch_report, MT_EPOCH_REPORT_INIT, epoch_report),
        ROW(mt_run_report, MT_RUN_REPORT_INIT, run_report),
        ROW(mt_run_report, MT_RUN_REPORT_INIT, last_report),
        {"mt_source", sizeof source, offsetof(mt_source, release), &source, fit_source},
        ROW(mt_fit_options, MT_FIT_OPTIONS_INIT, fit_options),
        ROW(mt_fit_callbacks, MT_FIT_CALLBACKS_INIT, fit_callbacks),
        ROW(mt_fit_report, MT_FIT_REPORT_INIT, fit_report),
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

CALL(sim_stats, mt_sim_read_stats(card, given))
CALL(sim_memory, mt_sim_memory(card, given))
CALL(host_memory, mt_host_memory_read(NULL, given))
CALL(schedule, isnan(mt_schedule_rate(given, 3)) ? MT_EINVAL : MT_OK)

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
    const edge_row rows[] = {
        ROW(mt_sim_options, MT_SIM_OPTIONS_INIT, sim_options),
        ROW(mt_sim_stats, MT_SIM_STATS_INIT, sim_stats),
        ROW(mt_memory, MT_MEMORY_INIT, sim_memory),
        ROW(mt_host_memory, MT_HOST_MEMORY_INIT, host_memory),
        ROW(mt_schedule, MT_SCHEDULE_INIT, schedule),
        ROW(mt_segments_choice, MT_SEGMENTS_CHOICE_INIT, segments_choice),
        ROW(mt_layout, MT_LAYOUT_INIT, layout),
        ROW(mt_safetensors_save_options, MT_SAFETENSORS_SAVE_OPTIONS_INIT, save_options),
    };

    ck_ok(mt_sim_new(NULL, &card));
    for (int i = 0; i < LENGTH(rows); i++) edge_each(&rows[i]);
    mt_sim_free(card);
}

SUITE("abi_sizes")
