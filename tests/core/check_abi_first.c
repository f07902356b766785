/*
 * check_abi_first.c - a program that was compiled with the headers in abi/first, whose structs are smaller, and runs
 * with the library as it is.
 */
/* In the order in which they include each other, so that none of the present ones is taken. */
#include "abi/first/memtrain/status.h"

#include "abi/first/memtrain/backend.h"

#include "abi/first/memtrain/policy.h"

#include "abi/first/memtrain/trainer.h"

#include "suite.h"

#include <math.h>

/* ---- a backend of its time: a line through points, in little memory ------------------------------------- */

enum { ROOM = 10, POINTS = 64 };

static struct line {
    double w, b, dw, db;
    size_t most; /* samples of a chunk that went through */
    unsigned rollbacks;
} line;

static mt_status describe(void *self, mt_backend_info *out) {
    mt_backend_info info = {sizeof info, "cpu", "1", 1, 0, 0, 16, 16, 0, 0, 0, NULL};

    (void)self;
    ck_assert_uint_ge(out->size, sizeof info);
    memcpy((char *)out + sizeof out->size, (char *)&info + sizeof info.size,
           sizeof info - sizeof info.size);
    return MT_OK;
}

static mt_status memory(void *self, mt_memory *out) {
    (void)self;
    out->budget_bytes = 1000;
    out->allocated_bytes = out->reserved_bytes = 100;
    return MT_OK;
}

static mt_status begin(void *self, const mt_batch *batch) {
    (void)batch;
    ((struct line *)self)->dw = ((struct line *)self)->db = 0;
    return MT_OK;
}

static mt_status rollback(void *self) {
    ((struct line *)self)->rollbacks++;
    return begin(self, NULL);
}

static double error_at(const struct line *l, size_t i, double *x) {
    *x = (double)i / 32 - 1;
    return l->w * *x + l->b - (2 * *x + 1);
}

static mt_status accumulate(void *self, size_t first, size_t count, double weight,
                            mt_chunk_result *out) {
    struct line *l = self;
    double x;

    if (count > ROOM) {
        out->refused = 1;
        out->refused_bytes = 90 * count;
        out->refused_in_use_bytes = 100;
        return mt_set_error(MT_EDEVMEM, "%zu points", count);
    }
    for (size_t i = first; i < first + count; i++) {
        double error = error_at(l, i, &x);
        l->dw += weight * 2 * error * x / (double)count;
        l->db += weight * 2 * error / (double)count;
        out->loss_sum += error * error;
    }
    out->units = (double)count;
    if (count > l->most) l->most = count;
    return MT_OK;
}

static mt_status apply(void *self, mt_apply_result *out) {
    struct line *l = self;

    l->w -= 0.3 * l->dw;
    l->b -= 0.3 * l->db;
    out->grad_norm = hypot(l->dw, l->db);
    return MT_OK;
}

static mt_status evaluate(void *self, const mt_batch *batch, size_t first, size_t count,
                          mt_chunk_result *out) {
    double x;

    ck_assert_uint_eq(batch->id, 7);
    for (size_t i = first; i < first + count; i++) out->loss_sum += pow(error_at(self, i, &x), 2);
    out->units = (double)count;
    return MT_OK;
}

/* Of a line that has learnt nothing. */
static mt_backend seam(void) {
    mt_backend backend = MT_BACKEND_INIT;

    memset(&line, 0, sizeof line);
    backend.self = &line;
    backend.describe = describe;
    backend.memory = memory;
    backend.begin = begin;
    backend.accumulate = accumulate;
    backend.rollback = rollback;
    backend.apply = apply;
    backend.evaluate = evaluate;
    return backend;
}

/* ---- what it does ---------------------------------------------------------------------------------------- */

/* A struct, and bytes behind it that are not the library's. */
#define FENCED(type)                                                                               \
    struct {                                                                                       \
        type it;                                                                                   \
        unsigned char after[256];                                                                  \
    }
#define FENCE(fenced, type, initial)                                                               \
    do {                                                                                           \
        memset(&(fenced), 0xa5, sizeof(fenced));                                                   \
        (fenced).it = (type)initial;                                                               \
    } while (0)
#define CHECK_FENCE(fenced)                                                                        \
    for (size_t fence_ = 0; fence_ < sizeof(fenced).after; fence_++)                               \
    ck_assert_msg((fenced).after[fence_] == 0xa5, "%s: byte %zu behind it was written", #fenced,   \
                  fence_)

/* These are the headers of then, and the library is not. */
TEST("first", headers_are_older) {
    ck_assert_uint_eq(sizeof(mt_backend), 14 * sizeof(void *));
    ck_assert_uint_eq(sizeof(mt_plan), 8 * (4 + 2 * MT_PLAN_GROUPS) + 8);
    ck_assert_int_eq(mt_version_number(), MT_VERSION_NUMBER);
}

TEST("first", trains) {
    FENCED(mt_step_report) step;
    FENCED(mt_eval_report) eval;
    FENCED(mt_epoch_report) epoch;
    FENCED(mt_run_report) run;
    mt_backend backend = seam();
    mt_batch batch = {sizeof batch, NULL, POINTS, 7};
    mt_trainer *trainer;

    ck_ok(mt_trainer_new(&backend, NULL, &trainer));
    for (uint64_t i = 1; i <= 60; i++) {
        FENCE(step, mt_step_report, MT_STEP_REPORT_INIT);
        ck_ok(mt_trainer_step(trainer, &batch, &step.it));
        CHECK_FENCE(step);
        ck_assert_uint_eq(step.it.size, sizeof step.it);
        ck_assert_uint_eq(step.it.step, i);
        ck_assert_uint_eq(step.it.samples, POINTS);
        ck_assert_uint_eq(step.it.budget_bytes, 1000);
    }
    ck_assert_uint_le(line.most, ROOM);
    ck_assert_uint_ge(line.rollbacks, 1);
    ck_assert_double_eq_tol(line.w, 2, 0.05);
    ck_assert_double_eq_tol(line.b, 1, 0.05);
    FENCE(eval, mt_eval_report, MT_EVAL_REPORT_INIT);
    FENCE(epoch, mt_epoch_report, MT_EPOCH_REPORT_INIT);
    FENCE(run, mt_run_report, MT_RUN_REPORT_INIT);
    ck_ok(mt_trainer_evaluate(trainer, &batch, &eval.it));
    ck_ok(mt_trainer_end_epoch(trainer, &epoch.it));
    ck_ok(mt_trainer_finish(trainer, &run.it));
    CHECK_FENCE(eval);
    CHECK_FENCE(epoch);
    CHECK_FENCE(run);
    ck_assert_double_lt(eval.it.loss, 1e-3);
    ck_assert_uint_eq(epoch.it.samples, 60 * POINTS);
    ck_assert_uint_eq(run.it.steps, 60);
    ck_assert_uint_eq(run.it.ooms, line.rollbacks);
    mt_trainer_free(trainer);
}

/* Options of then, whose last field is the last one that is read. */
TEST("first", options_of_then) {
    FENCED(mt_policy_options) policy;
    mt_trainer_options options;
    mt_step_report step = MT_STEP_REPORT_INIT;
    mt_backend backend = seam();
    mt_batch batch = {sizeof batch, NULL, POINTS, 7};
    mt_trainer *trainer;

    /* What follows would be refused as rungs and rules. */
    FENCE(policy, mt_policy_options, MT_POLICY_OPTIONS_INIT);
    policy.it.micro_batch = 4;
    /* Field by field, so that there is anything in its padding. */
    memset(&options, 0xa5, sizeof options);
    options.size = sizeof options;
    options.policy = &policy.it;
    options.trace = NULL;
    options.trace_user = NULL;
    options.batch = 0;
    options.seed = 0;
    options.drop_small = 0;
    ck_ok(mt_trainer_new(&backend, &options, &trainer));
    ck_ok(mt_trainer_step(trainer, &batch, &step));
    ck_assert_uint_eq(line.most, 4);
    ck_assert_uint_eq(step.chunk_count, POINTS / 4);
    ck_assert_int_eq(step.reason, MT_PLAN_USER);
    /* That updates of losses that are not finite are made is an option of later callers. */
    line.w = INFINITY;
    ck_ok(mt_trainer_step(trainer, &batch, &step));
    ck_assert_int_ne(step.skipped, 0);
    ck_assert(isinf(line.w));
    mt_trainer_free(trainer);
}

TEST("first", memory_of_the_host) {
    FENCED(mt_host_memory) host;

    FENCE(host, mt_host_memory, {.size = sizeof(mt_host_memory)});
    ck_ok(mt_host_memory_read(NULL, &host.it));
    CHECK_FENCE(host);
    ck_assert_uint_gt(host.it.total_bytes, 0);
    ck_assert_uint_gt(host.it.budget_bytes, 0);
}

SUITE("abi_first")
