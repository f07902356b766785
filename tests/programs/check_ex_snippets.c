/*
 * check_ex_snippets.c - the fragments of C that the pages in docs/ show, each in a place where it can run.
 * setup/check_pages.sh takes them out of the pages.
 */
#include <memtrain/call.h>
#include <memtrain/processes.h>
#include <memtrain/safetensors.h>
#include <memtrain/tensor.h>
#include <memtrain/trainer.h>

#include "suite.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

/* ---- what the fragments take for granted ------------------------------------------------------- */

#define INTO(out, name, ...) mt_call_into(name, MT_VALUES(__VA_ARGS__), MT_NO_KEYWORDS, out)

/* y = x w for 8 numbers x, trained to be 1: a model, its optimiser and its trainer. */
typedef struct subject {
    mt_tensor *weight, *x;
    mt_torch_batch data;
    mt_batch batch;
    mt_model *model;
    mt_torch *torch;
    mt_trainer *trainer;
} subject;

static mt_status visit_weight(void *self, mt_visit_fn fn, void *user) {
    return fn(user, "weight", ((subject *)self)->weight);
}

static mt_status distance(void *self, mt_tensor *const *batch, size_t count, mt_tensor *out,
                          mt_tensor *metrics) {
    mt_status status = INTO(out, "aten::linear", mt_value_tensor(batch[0]),
                            mt_value_tensor(((subject *)self)->weight));
    (void)count, (void)metrics;
    if (status == MT_OK) status = INTO(out, "aten::sub", mt_value_tensor(out), mt_value_double(1));
    if (status == MT_OK) status = INTO(out, "aten::square", mt_value_tensor(out));
    return status == MT_OK ? INTO(out, "aten::mean", mt_value_tensor(out)) : status;
}

static void open_model(subject *s) {
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    memset(s, 0, sizeof *s);
    traits.checkpoints = 1;
    ops.visit_parameters = visit_weight;
    ops.loss = distance;
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_tensor_new(&s->weight));
    ck_ok(INTO(s->weight, "aten::zeros", MT_INTS(1, 8)));
    ck_ok(INTO(s->weight, "aten::requires_grad_", mt_value_tensor(s->weight)));
    ck_ok(mt_model_new(&ops, s, &traits, &s->model));
}

static void open_subject(subject *s) {
    mt_backend backend = MT_BACKEND_INIT;
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.lr = 0.01;
    open_model(s);
    ck_ok(mt_tensor_new(&s->x));
    ck_ok(INTO(s->x, "aten::ones", MT_INTS(16, 8)));
    s->data = (mt_torch_batch){sizeof s->data, &s->x, 1};
    s->batch = (mt_batch){sizeof s->batch, &s->data, 16, 0};
    ck_ok(mt_torch_new(s->model, &options, &s->torch));
    ck_ok(mt_torch_backend(s->torch, &backend));
    ck_ok(mt_trainer_new(&backend, NULL, &s->trainer));
}

static void close_subject(subject *s) {
    mt_trainer_free(s->trainer);
    mt_torch_free(s->torch);
    mt_model_free(s->model);
    mt_tensor_free(s->weight);
    mt_tensor_free(s->x);
}

/* ---- docs/processes.md --------------------------------------------------------------------------- */

#include "together.c"

/* MPI as far as the fragment goes: of two processes that say the same. */
enum { MPI_SUCCESS = 0, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD };
#define MPI_IN_PLACE NULL
static int MPI_Allreduce(void *in, float *values, int count, int type, int op, int world) {
    ck_assert(!in && type == MPI_FLOAT && op == MPI_SUM && world == MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) values[i] *= 2;
    return MPI_SUCCESS;
}

#include "mpi_sum.c"

static int trained;

static mt_status train_once(mt_torch *torch, int rank) {
    trained += torch != NULL && rank == 0;
    return MT_OK;
}

TEST("pages", processes) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    float values[2] = {1, 2};
    subject s;
    open_model(&s);
    ck_ok(train_together(s.model, &options, train_once));
    ck_assert_int_eq(trained, 1);
    ck_ok(sum_floats(NULL, values, 2));
    ck_assert(values[0] == 2 && values[1] == 4);
    mt_model_free(s.model);
    mt_tensor_free(s.weight);
}

/* ---- docs/call.md -------------------------------------------------------------------------------- */

TEST("pages", call) {
    mt_tensor *x, *weight;
    float numbers[9];
    ck_ok(mt_tensor_new(&x));
    ck_ok(mt_tensor_new(&weight));
    ck_ok(INTO(x, "aten::ones", MT_INTS(1, 1, 3, 3)));
    ck_ok(INTO(weight, "aten::ones", MT_INTS(1, 1, 3, 3)));
#include "call.c"
    ck_ok(status);
    ck_ok(mt_tensor_read(y, MT_FLOAT32, numbers, sizeof numbers));
    ck_assert_float_eq(numbers[0], 4); /* padded: a corner sees four ones */
    ck_assert_float_eq(numbers[4], 9);
    mt_tensor_free(y);
    mt_tensor_free(x);
    mt_tensor_free(weight);
}

/* ---- docs/threads.md ------------------------------------------------------------------------------ */

#include "job.c"

TEST("pages", job) {
    subject subjects[2];
    struct job jobs[2] = {{0}, {0}};
    pthread_t threads[2];
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    for (int i = 0; i < 2; i++) {
        open_subject(&subjects[i]);
        jobs[i].trainer = subjects[i].trainer;
        jobs[i].batch = &subjects[i].batch;
    }
    subjects[1].batch.count = 17; /* of 16 */
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, train, &jobs[i]), 0);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_ok(jobs[0].status);
    ck_assert_str_eq(jobs[0].line, "");
    ck_status(jobs[1].status, MT_EINVAL);
    ck_contains(jobs[1].line, "17");
    ck_assert_str_eq(mt_last_error(), ""); /* of this thread */
    ck_ok(mt_trainer_evaluate(subjects[0].trainer, &subjects[0].batch, &report));
    ck_assert_double_lt(report.loss, 0.1); /* from 1 */
    for (int i = 0; i < 2; i++) close_subject(&subjects[i]);
}

/* ---- docs/abi.md ---------------------------------------------------------------------------------- */

struct net {
    size_t parameter_bytes;
};

#include "describe.c"

TEST("pages", told_by_fields) {
    struct net net = {32};
    mt_backend_info info = {.size = sizeof info + 8}; /* of a newer library */
    ck_ok(describe(&net, &info));
    ck_assert_uint_eq(info.size, sizeof info + 8);
    ck_assert_str_eq(info.device, "cpu");
    ck_assert_uint_eq(info.parameter_bytes, 32);
}

/* The libraries of a test are those of its headers. */
TEST("pages", version) {
    FILE *told = tmpfile();
    ck_assert_ptr_nonnull(told);
#undef stderr
#define stderr told
#include "version.c"
#undef stderr
    ck_assert_int_eq(ftell(told), 0);
    fclose(told);
}

/* ---- docs/checkpoints.md and docs/savers.md --------------------------------------------------------- */

TEST("pages", weights) {
    const int64_t shape[] = {1, 8};
    const float numbers[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const mt_safetensors_tensor file[] = {
        {"module.fc.weight", MT_ST_F32, 2, shape, sizeof numbers, numbers},
        {"module.weight", MT_ST_F32, 2, shape, sizeof numbers, numbers}};
    char folder[] = "/tmp/check_ex_snippets.XXXXXX";
    float read[8];
    subject s;
    mt_status status;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_ok(mt_safetensors_save("resnet18.safetensors", file, 2, NULL));
    open_model(&s);
    mt_model *model = s.model;
#include "weights.c"
    unlink("resnet18.safetensors");
    rmdir(folder);
    ck_ok(status);
    ck_ok(mt_tensor_read(s.weight, MT_FLOAT32, read, sizeof read));
    ck_assert_mem_eq(read, numbers, sizeof numbers);
    close_subject(&s);
}

TEST("pages", chosen) {
    subject s;
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    open_model(&s);
#include "chosen.c"
    ck_ok(mt_torch_new(s.model, &options, &s.torch));
    close_subject(&s);
}

SUITE("ex_snippets")
