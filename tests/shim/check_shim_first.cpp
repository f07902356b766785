/*
 * check_shim_first.cpp - a program with a model, compiled with the headers in abi/first, whose structs are smaller,
 * runs with the libraries as they are.
 */
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

/* In the order in which they include each other, so that none of the present ones is taken. */
#include "abi/first/memtrain/status.h"

#include "abi/first/memtrain/backend.h"

#include "abi/first/memtrain/policy.h"

#include "abi/first/memtrain/trainer.h"

#include "abi/first/memtrain/torch.h"

#include "suite.h" /* last: Check defines fail() as a macro */

namespace {

at::Tensor &inside(mt_tensor *handle) {
    return *static_cast<at::Tensor *>(mt_tensor_get(handle));
}

/* y = x w, from 8 numbers to one. */
struct Line {
    at::Tensor weight = at::zeros({8, 1}).requires_grad_();
    int destroyed = 0;

    static Line &of(void *self) { return *static_cast<Line *>(self); }
};

mt_model_ops ops_of_then() {
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    ops.visit_parameters = [](void *self, mt_visit_fn fn, void *user) {
        return mt_visit_tensor(&Line::of(self).weight, "weight", fn, user);
    };
    ops.loss = [](void *self, mt_tensor *const *batch, size_t, mt_tensor *loss,
                  mt_tensor *metrics) {
        at::Tensor error = inside(batch[0]).matmul(Line::of(self).weight) - inside(batch[1]);
        inside(loss) = error.square().mean();
        inside(metrics) = error.detach().abs().sum().reshape({1});
        return MT_OK;
    };
    ops.destroy = [](void *self) { Line::of(self).destroyed++; };
    return ops;
}

/* A struct, and bytes behind it that are not the library's. */
template <class Struct> struct Fenced {
    Struct it;
    unsigned char after[256];

    /* Padding within the struct has anything in it, too. */
    explicit Fenced(const Struct &initial = {}) {
        memset(static_cast<void *>(this), 0xa5, sizeof *this);
        it = initial;
        it.size = sizeof it;
    }
    void check() const {
        for (unsigned char byte : after) ck_assert_uint_eq(byte, 0xa5);
        ck_assert_uint_eq(it.size, sizeof it);
    }
};

} // namespace

TEST("first", trains) {
    const char *const names[] = {"error"};
    const int64_t shapes[2][2] = {{32, 8}, {32, 1}};
    float x[32 * 8], y[32];
    mt_tensor *tensors[2];
    Line line;
    Fenced<mt_model_ops> ops(ops_of_then());
    Fenced<mt_model_traits> traits(MT_MODEL_TRAITS_INIT);
    Fenced<mt_torch_options> options(MT_TORCH_OPTIONS_INIT);
    Fenced<mt_backend> backend(MT_BACKEND_INIT);
    mt_model *model;
    mt_torch *torch;
    mt_trainer *trainer;
    ck_assert_uint_eq(sizeof(mt_backend), 14 * sizeof(void *));
    for (int i = 0; i < 32; i++) {
        y[i] = 0;
        for (int k = 0; k < 8; k++)
            y[i] += (x[8 * i + k] = static_cast<float>((i * 7 + k * 5) % 11) / 11);
    }
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_tensor_from_memory(x, MT_FLOAT32, 2, shapes[0], &tensors[0]));
    ck_ok(mt_tensor_from_memory(y, MT_FLOAT32, 2, shapes[1], &tensors[1]));
    traits.it.metric_count = 1;
    traits.it.metric_names = names;
    options.it.lr = 0.05;
    ck_ok(mt_model_new(&ops.it, &line, &traits.it, &model));
    ck_ok(mt_torch_new(model, &options.it, &torch));
    ck_ok(mt_torch_backend(torch, &backend.it));
    backend.check();
    ck_ok(mt_trainer_new(&backend.it, nullptr, &trainer));
    mt_torch_batch data = {sizeof data, tensors, 2};
    mt_batch batch = {sizeof batch, &data, 32, 1};
    double first = 0;
    for (int step = 0; step < 60; step++) {
        Fenced<mt_step_report> report;
        ck_ok(mt_trainer_step(trainer, &batch, &report.it));
        report.check();
        ck_assert_uint_eq(report.it.samples, 32);
        if (!step) first = report.it.loss;
        if (step == 59) ck_assert_double_lt(report.it.loss, 0.1 * first);
    }
    Fenced<mt_memory> memory;
    Fenced<mt_clear_result> cleared;
    Fenced<mt_chunk_result> chunk;
    Fenced<mt_apply_result> applied;
    ck_ok(mt_device_memory("cpu", &memory.it));
    ck_ok(mt_empty_cache("cpu", &cleared.it));
    ck_ok(mt_train_step(torch, &batch, &chunk.it, &applied.it));
    memory.check(), cleared.check(), chunk.check(), applied.check();
    ck_assert_double_eq(chunk.it.units, 32);
    mt_trainer_free(trainer);
    mt_torch_free(torch);
    mt_model_free(model);
    ck_assert_int_eq(line.destroyed, 1);
    for (mt_tensor *tensor : tensors) mt_tensor_free(tensor);
}

SUITE("shim_first")
