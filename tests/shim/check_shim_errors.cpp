/*
 * check_shim_errors.cpp - NULL and stale arguments of every public function, the order of the calls
 * of a step, and what becomes of exceptions, whatever is thrown.
 */
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

void init(void) {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
}

/* The status must be MT_EINVAL and the line exactly this. */
void refused(mt_status status, const char *line) {
    ck_status(status, MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), line);
}

/* The same of a line that ends with the devices that are here. */
void refused_name(mt_status status, const char *line) {
    refused(status, with_cards_here(line).c_str());
}

mt_status nothing(void *, const char *, mt_tensor *) {
    return MT_OK;
}

} // namespace

TEST("arguments", null_arguments) {
    const int64_t shape[] = {2, -1};
    float data[2] = {0, 0};
    mt_tensor *tensor;
    mt_model *model;
    mt_torch *torch;
    mt_memory memory = {};
    mt_batch batch = MT_BATCH_INIT;
    mt_chunk_result chunk = chunk_result();
    mt_apply_result applied = apply_result();
    mt_backend backend = MT_BACKEND_INIT;
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_torch_init_options no_size = {0, 0, 0};
    char text[65];

    refused(mt_torch_init(&no_size), "mt_torch_init: options->size is not set");
    refused(mt_torch_set_threads(0), "mt_torch_set_threads: threads is 0, must be at least 1");
    refused(mt_device_check(nullptr), "mt_device_check: device is NULL");
    refused_name(mt_device_check(""),
                 "mt_device_check: '' is not the name of a device; accepted: cpu, "
                 "cuda, cuda:N, xpu, xpu:N, mps, sim:cuda, sim:mps; here: cpu");
    refused_name(mt_device_check("toaster"),
                 "mt_device_check: 'toaster' is not the name of a device; "
                 "accepted: cpu, cuda, cuda:N, xpu, xpu:N, mps, sim:cuda, sim:mps; here: cpu");
    ck_status(mt_device_check("xla"), MT_ENOTSUP);
    refused(mt_device_set_budget(nullptr, 1), "mt_device_set_budget: device is NULL");
    refused(mt_device_memory("cpu", nullptr), "mt_device_memory: out is NULL");
    refused(mt_device_memory("cpu", &memory), "mt_device_memory: out->size is not set");
    memory.size = sizeof memory;
    refused(mt_device_memory(nullptr, &memory), "mt_device_memory: device is NULL");
    refused(mt_device_reset_peak(nullptr), "mt_device_reset_peak: device is NULL");
    refused(mt_empty_cache(nullptr, nullptr), "mt_empty_cache: device is NULL");
    refused(mt_tensor_from_memory(data, MT_FLOAT32, 1, shape, nullptr),
            "mt_tensor_from_memory: out is NULL");
    refused(mt_tensor_from_memory(nullptr, MT_FLOAT32, 1, shape, &tensor),
            "mt_tensor_from_memory: data is NULL");
    refused(mt_tensor_from_memory(data, MT_FLOAT32, 1, nullptr, &tensor),
            "mt_tensor_from_memory: shape is NULL");
    refused(mt_tensor_from_memory(data, MT_FLOAT32, 2, shape, &tensor),
            "mt_tensor_from_memory: shape[1] is -1; accepted: at least 0");
    refused(mt_tensor_from_memory(data, MT_DTYPE_NONE, 1, shape, &tensor),
            "mt_tensor_from_memory: dtype 0 is none of mt_dtype");
    ck_assert_ptr_null(tensor);
    mt_tensor_free(nullptr);
    ck_assert_ptr_null(mt_tensor_get(nullptr));
    refused(mt_visit_tensor(nullptr, "a", nothing, nullptr), "mt_visit_tensor: tensor is NULL");
    refused(mt_visit_tensor(data, nullptr, nothing, nullptr), "mt_visit_tensor: name is NULL");
    refused(mt_visit_tensor(data, "a", nullptr, nullptr), "mt_visit_tensor: fn is NULL");
    refused(mt_model_new(nullptr, nullptr, nullptr, &model), "mt_model_new: ops is NULL");
    refused(mt_model_new(&ops, nullptr, nullptr, nullptr), "mt_model_new: out is NULL");
    refused(mt_model_new(&ops, nullptr, nullptr, &model),
            "mt_model_new: ops->visit_parameters is NULL");
    ck_assert_ptr_null(model);
    mt_model_free(nullptr);
    refused(mt_torch_new(nullptr, nullptr, nullptr), "mt_torch_new: out is NULL");
    refused(mt_torch_new(nullptr, nullptr, &torch), "mt_torch_new: model is NULL");
    ck_assert_ptr_null(torch);
    mt_torch_free(nullptr);
    refused(mt_torch_backend(nullptr, &backend), "mt_torch_backend: torch is NULL");
    refused(mt_torch_backend(nullptr, nullptr), "mt_torch_backend: out is NULL");
    refused(mt_train_step(nullptr, &batch, nullptr, nullptr), "mt_train_step: torch is NULL");
    refused(mt_begin(nullptr, &batch), "mt_begin: torch is NULL");
    refused(mt_accumulate(nullptr, 0, 1, 1, &chunk), "mt_accumulate: torch is NULL");
    refused(mt_rollback(nullptr), "mt_rollback: torch is NULL");
    refused(mt_apply(nullptr, &applied), "mt_apply: torch is NULL");
    refused(mt_evaluate(nullptr, &batch, 0, 1, &chunk), "mt_evaluate: torch is NULL");
    refused(mt_torch_set_lr(nullptr, 1), "mt_torch_set_lr: torch is NULL");
    refused(mt_torch_state_sha256(nullptr, text), "mt_torch_state_sha256: torch is NULL");
    refused(mt_torch_visit_state(nullptr, nothing, nullptr), "mt_torch_visit_state: torch is NULL");
    mt_injected(nullptr, nullptr);
    ck_status(mt_torch_exception(), MT_ESTATE);
}

/* Handles that were freed, and handles of another kind. */
TEST("arguments", stale_handles) {
    mt_torch *torch;
    mt_model *model;
    mt_tensor *stale[2];
    {
        Batch batch(1);
        stale[0] = batch.images();
        stale[1] = batch.labels();
    }
    {
        Trainer trainer(options_of(MT_ADAMW));
        torch = trainer.torch;
        model = trainer.model;
    }
    Batch batch(2);
    mt_chunk_result chunk = chunk_result();
    mt_apply_result applied = apply_result();
    mt_backend backend = MT_BACKEND_INIT;
    mt_torch *out;
    char text[65];
    refused(mt_torch_new(model, nullptr, &out), "mt_torch_new: model is not a live handle");
    refused(mt_torch_new(reinterpret_cast<mt_model *>(batch.images()), nullptr, &out),
            "mt_torch_new: model is not a live handle");
    refused(mt_torch_backend(torch, &backend), "mt_torch_backend: torch is not a live handle");
    refused(mt_train_step(torch, batch.get(), nullptr, nullptr),
            "mt_train_step: torch is not a live handle");
    refused(mt_begin(torch, batch.get()), "mt_begin: torch is not a live handle");
    refused(mt_accumulate(torch, 0, 1, 1, &chunk), "mt_accumulate: torch is not a live handle");
    refused(mt_rollback(torch), "mt_rollback: torch is not a live handle");
    refused(mt_apply(torch, &applied), "mt_apply: torch is not a live handle");
    refused(mt_evaluate(torch, batch.get(), 0, 1, &chunk),
            "mt_evaluate: torch is not a live handle");
    refused(mt_torch_set_lr(torch, 1), "mt_torch_set_lr: torch is not a live handle");
    refused(mt_torch_state_sha256(torch, text),
            "mt_torch_state_sha256: torch is not a live handle");
    refused(mt_torch_visit_state(torch, nothing, nullptr),
            "mt_torch_visit_state: torch is not a live handle");
    mt_torch_free(torch);
    mt_model_free(model);
    mt_tensor_free(stale[0]);
    ck_assert_ptr_null(mt_tensor_get(stale[0]));

    Trainer trainer(options_of(MT_ADAMW));
    mt_torch_batch data = MT_TORCH_BATCH_INIT;
    mt_batch dead = MT_BATCH_INIT;
    data.tensors = stale;
    data.count = 2;
    dead.data = &data;
    dead.count = 1;
    refused(mt_begin(trainer.torch, &dead), "mt_begin: tensor 0 of the batch is not a live handle");
}

TEST("arguments", bad_batches) {
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(4);
    mt_chunk_result chunk = chunk_result();
    mt_batch bad = *batch.get();
    refused(mt_begin(trainer.torch, nullptr), "mt_begin: batch is NULL");
    bad.count = 0;
    refused(mt_begin(trainer.torch, &bad), "mt_begin: batch->count is 0; accepted: at least 1");
    refused(mt_train_step(trainer.torch, nullptr, nullptr, nullptr),
            "mt_train_step: batch is NULL");
    bad.count = 5;
    refused(mt_begin(trainer.torch, &bad),
            "mt_begin: batch->count is 5; accepted: 1 to 4, the samples of the tensors");
    refused(mt_train_step(trainer.torch, &bad, nullptr, nullptr),
            "mt_train_step: batch->count is 5; accepted: 1 to 4, the samples of the tensors");
    refused(mt_evaluate(trainer.torch, &bad, 0, 4, &chunk),
            "mt_evaluate: batch->count is 5; accepted: 1 to 4, the samples of the tensors");
    bad.count = SIZE_MAX; /* negative where a size is a signed number */
    refused(mt_begin(trainer.torch, &bad),
            "mt_begin: batch->count is 18446744073709551615; accepted: 1 to 4, the samples of "
            "the tensors");
    refused(mt_evaluate(trainer.torch, batch.get(), 3, 2, &chunk),
            "mt_evaluate: count is 2; accepted: 1 to 1 from sample 3 on");
    refused(mt_evaluate(trainer.torch, batch.get(), 4, 1, &chunk),
            "mt_evaluate: first is 4; accepted: 0 to 3");
    bad.count = 4;
    bad.data = nullptr;
    refused(mt_begin(trainer.torch, &bad), "mt_begin: batch->data is NULL");
    mt_torch_batch data = *static_cast<const mt_torch_batch *>(batch.get()->data);
    bad.data = &data;
    data.count = 9;
    refused(mt_begin(trainer.torch, &bad),
            "mt_begin: batch->data->count is 9; accepted: 1 to 8 tensors");

    ck_ok(mt_begin(trainer.torch, batch.get()));
    refused(mt_accumulate(trainer.torch, 2, 3, 1.0, &chunk),
            "mt_accumulate: count is 3; accepted: 1 to 2 from sample 2 on");
    refused(mt_accumulate(trainer.torch, 0, 0, 1.0, &chunk),
            "mt_accumulate: count is 0; accepted: 1 to 4 from sample 0 on");
    refused(mt_accumulate(trainer.torch, SIZE_MAX, 2, 1.0, &chunk),
            "mt_accumulate: first is 18446744073709551615; accepted: 0 to 3");
    refused(mt_accumulate(trainer.torch, 0, 4, -1.0, &chunk), "mt_accumulate: weight is -1");
    refused(mt_accumulate(trainer.torch, 0, 4, 1.0, nullptr), "mt_accumulate: out is NULL");
    /* Arguments that were refused have not harmed the step. */
    ck_ok(mt_accumulate(trainer.torch, 0, 4, 1.0, &chunk));
    ck_ok(mt_rollback(trainer.torch));
}

/* Sizes whose product is more than a tensor can have, also where one of them is 0. */
TEST("arguments", bad_shapes) {
    const int64_t most = INT64_MAX, half = int64_t(1) << 31;
    const int64_t product[] = {half, 2, half, 2}, with_zero[] = {0, most, 2}, one[] = {most};
    const int64_t empty[] = {0, 3};
    float data[2] = {0, 0};
    mt_tensor *tensor;
    refused(mt_tensor_from_memory(data, MT_FLOAT32, 4, product, &tensor),
            "mt_tensor_from_memory: shape[2] is 2147483648; accepted: at most 536870911 there, for "
            "9223372036854775807 bytes");
    ck_status(mt_tensor_from_memory(data, MT_UINT8, 4, product, &tensor), MT_EINVAL);
    ck_status(mt_tensor_from_memory(data, MT_FLOAT32, 1, one, &tensor), MT_EINVAL);
    ck_status(mt_tensor_from_memory(data, MT_UINT8, 3, with_zero, &tensor), MT_EINVAL);
    ck_assert_ptr_null(tensor);
    ck_ok(mt_tensor_from_memory(nullptr, MT_FLOAT32, 2, empty, &tensor));
    mt_tensor_free(tensor);
}

TEST("arguments", bad_options) {
    mt_model *model;
    mt_torch *torch;
    ck_ok(net_model_new({}, &model));
    auto with = [&](std::function<void(mt_torch_options &)> change) {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        change(options);
        return mt_torch_new(model, &options, &torch);
    };
    refused(with([](auto &o) { o.lr = 0; }), "mt_torch_new: options->lr is 0, must be above 0");
    refused(with([](auto &o) { o.beta2 = 1; }),
            "mt_torch_new: options->beta2 is 1, must be at least 0 and below 1");
    refused(with([](auto &o) { o.eps = 0; }), "mt_torch_new: options->eps is 0, must be above 0");
    refused(with([](auto &o) { o.weight_decay = -1; }),
            "mt_torch_new: options->weight_decay is -1, must be at least 0");
    refused(with([](auto &o) { o.lr = std::stod("nan"); }),
            "mt_torch_new: options->lr is nan, must be above 0");
    refused(
        with([](auto &o) { memset(&o.optimizer, 9, 1); }),
        "mt_torch_new: options->optimizer is 9; accepted: MT_SGD (1), MT_ADAM (2), MT_ADAMW (3)");
    refused(with([](auto &o) {
                o.optimizer = MT_SGD;
                o.momentum = 0;
                o.nesterov = 1;
            }),
            "mt_torch_new: options->nesterov needs a momentum above 0");
    refused(
        with([](auto &o) { o.scale_start = 3; }),
        "mt_torch_new: options->scale_start is 3; accepted: a power of two from 2^-16 to 2^32, or "
        "0");
    refused_name(
        with([](auto &o) { o.device = "toaster"; }),
        "mt_torch_new: 'toaster' is not the name of a device; accepted: cpu, cuda, cuda:N, "
        "xpu, xpu:N, mps, sim:cuda, sim:mps; here: cpu");
    ck_status(with([](auto &o) { o.device = "cuda:77"; }), MT_ENOTSUP);
    ck_assert_ptr_null(torch);
    ck_ok(with([](auto &) {}));
    refused(mt_torch_set_lr(torch, -1), "mt_torch_set_lr: lr is -1, must be above 0");
    ck_ok(mt_torch_set_lr(torch, 0.5));
    mt_torch_free(torch);
    mt_model_free(model);
}

TEST("arguments", order_of_calls) {
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(4);
    mt_chunk_result chunk = chunk_result();
    mt_apply_result applied = apply_result();
    mt_torch *torch = trainer.torch;
    ck_status(mt_accumulate(torch, 0, 4, 1.0, &chunk), MT_ESTATE);
    ck_assert_str_eq(mt_last_error(), "mt_accumulate: no step has begun");
    ck_status(mt_apply(torch, &applied), MT_ESTATE);
    ck_status(mt_rollback(torch), MT_ESTATE);
    ck_ok(mt_begin(torch, batch.get()));
    ck_status(mt_begin(torch, batch.get()), MT_ESTATE);
    ck_assert_str_eq(mt_last_error(), "mt_begin: a step has begun and not ended");
    ck_status(mt_evaluate(torch, batch.get(), 0, 4, &chunk), MT_ESTATE);
    ck_ok(mt_inject_oom(1, 0));
    ck_status(mt_accumulate(torch, 0, 4, 1.0, &chunk), MT_EDEVMEM);
    ck_status(mt_accumulate(torch, 0, 4, 1.0, &chunk), MT_ESTATE);
    ck_status(mt_apply(torch, &applied), MT_ESTATE);
    ck_assert_str_eq(mt_last_error(), "mt_apply: the step has failed and waits for its rollback");
    ck_status(mt_begin(torch, batch.get()), MT_ESTATE);
    ck_ok(mt_rollback(torch));
    ck_ok(mt_train_step(torch, batch.get(), nullptr, nullptr));
    ck_ok(mt_inject_oom(9, 0));
    std::string before = trainer.hash();
    ck_ok(mt_inject_oom(9, 0));
    ck_status(mt_train_step(torch, batch.get(), nullptr, nullptr), MT_EDEVMEM);
    ck_assert(before == trainer.hash());
    ck_ok(mt_train_step(torch, batch.get(), nullptr, nullptr));
}

/* A rollback that cannot be done loses the state, and every later call says so. */
TEST("arguments", poison) {
    bool fails = false;
    mt_model *model;
    mt_torch *torch;
    struct Ops {
        bool *fails;
        at::Tensor weight = at::ones({2}).requires_grad_();
        static Ops &of(void *self) { return *static_cast<Ops *>(self); }
    } self{&fails};
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    ops.visit_parameters = [](void *s, mt_visit_fn fn, void *user) {
        return mt_visit_tensor(&Ops::of(s).weight, "weight", fn, user);
    };
    ops.visit_buffers = [](void *s, mt_visit_fn, void *) {
        return *Ops::of(s).fails ? mt_set_error(MT_EIO, "the buffers are gone") : MT_OK;
    };
    ops.loss = [](void *s, mt_tensor *const *, size_t, mt_tensor *loss, mt_tensor *) {
        memtrain::tensor(loss) = Ops::of(s).weight.sum();
        return MT_OK;
    };
    Batch batch(2);
    mt_chunk_result chunk = chunk_result();
    mt_apply_result applied = apply_result();
    ck_ok(mt_model_new(&ops, &self, nullptr, &model));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_ok(mt_train_step(torch, batch.get(), nullptr, nullptr));
    ck_ok(mt_begin(torch, batch.get()));
    fails = true;
    ck_status(mt_rollback(torch), MT_EIO);
    fails = false;
    for (mt_status status :
         {mt_begin(torch, batch.get()), mt_accumulate(torch, 0, 2, 1, &chunk), mt_rollback(torch),
          mt_apply(torch, &applied), mt_evaluate(torch, batch.get(), 0, 2, &chunk)}) {
        ck_assert_int_eq(status, MT_ESTATE);
        ck_contains(mt_last_error(), "the state is lost: the buffers are gone");
    }
    mt_torch_free(torch);
    mt_model_free(model);
}

/* ---- exceptions ---- */

struct Case {
    const char *text;
    mt_status status;
};

/* The literal texts that mean memory, and some that only look like it. */
static const Case texts[] = {
    {"CUDA out of memory. Tried to allocate 20.00 MiB.", MT_EDEVMEM},
    {"CUDA error: out of memory", MT_EDEVMEM},
    {"MPS backend out of memory (MPS allocated: 1 GB)", MT_EDEVMEM},
    {"Invalid buffer size: 9.00 GB", MT_EDEVMEM},
    {"[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
     "you tried to allocate 8 bytes. Error code 12 (Cannot allocate memory)",
     MT_EDEVMEM},
    {"DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.", MT_EDEVMEM},
    {"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_ALLOC_FAILED", MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", MT_EDEVMEM},
    {"std::bad_alloc", MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", MT_ETORCH},
    {"could not create a primitive", MT_ETORCH},
    {"CUDA error: invalid device function", MT_ETORCH},
    {"CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", MT_EDEVMEM},
    {"cuFFT error: CUFFT_ALLOC_FAILED", MT_EDEVMEM},
    {"cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
     MT_EDEVMEM},
    {"cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnSgeqrf(handle)`",
     MT_ETORCH},
    {"cusolver error: CUSOLVER_STATUS_NOT_INITIALIZED, when calling `cusolverDnCreate`",
     MT_EDEVMEM},
    {"CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`", MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", MT_EDEVMEM},
    {"miopenStatusNotInitialized", MT_EDEVMEM},
    {"level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)", MT_EDEVMEM},
    {"level_zero backend failed with error: 4 (UR_RESULT_ERROR_INVALID_VALUE)", MT_ETORCH},
    {"mat1 and mat2 shapes cannot be multiplied", MT_ETORCH},
    {"", MT_ETORCH},
};

TEST_LOOP("exceptions", texts_of_libtorch_and_others, LENGTH(texts)) {
    const Case &c = texts[_i];
    try {
        throw std::runtime_error(c.text);
    } catch (...) {
        ck_status(mt_torch_exception(), c.status);
    }
    ck_assert_str_eq(mt_last_error(), c.text);
    try {
        TORCH_CHECK(false, c.text, "\nand a second line");
    } catch (...) {
        ck_status(mt_torch_exception(), c.status);
    }
    ck_assert_str_eq(mt_last_error(), *c.text ? c.text : "and a second line");
}

/* Words of drivers and cards, and what is said to help. */
static const char *const remedies[][2] = {
    {"CUDA error: an illegal memory access was encountered", "started anew"},
    {"HIP error: device-side assert triggered", "started anew"},
    {"CUDA error: unspecified launch failure", "started anew"},
    {"CUDA error: uncorrectable ECC error encountered", "started anew"},
    {"CUDA error: misaligned address", "started anew"},
    {"CUDA error: an illegal instruction was encountered", "started anew"},
    {"CUDA error: the launch timed out and was terminated", "started anew"},
    {"CUDA error: operation not supported on global/shared address space", "started anew"},
    {"CUDA error: uncorrectable NVLink error detected during the execution", "started anew"},
    {"CUDA error: CUDA-capable device(s) is/are busy or unavailable", "compute mode"},
    {"CUDA error: hardware stack error", "started anew"},
    {"CUDA error: invalid program counter", "started anew"},
    {"level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "started anew"},
    {"level_zero backend failed with error: 21 (UR_RESULT_ERROR_DEVICE_REQUIRES_RESET)",
     "started anew"},
    {"CUDA error: no kernel image is available for execution on the device",
     "has no kernels for the card"},
    {"CUDA error: CUDA driver version is insufficient for CUDA runtime version",
     "the driver is older"},
    {"The NVIDIA driver on your system is too old (found version 11040).", "the driver is older"},
};

TEST_LOOP("exceptions", what_helps_is_said, LENGTH(remedies)) {
    try {
        throw std::runtime_error(remedies[_i][0]);
    } catch (...) {
        ck_status(mt_torch_exception(), MT_ETORCH);
    }
    ck_assert_ptr_eq(strstr(mt_last_error(), remedies[_i][0]), mt_last_error());
    ck_contains(mt_last_error(), remedies[_i][1]);
}

/* What a loss function throws, what becomes of it, and that the step can be taken back. */
struct Thrown {
    const char *name;
    void (*act)(void);
    mt_status status;
    const char *line;
};

static const Thrown thrown[] = {
    {"c10::Error", [] { TORCH_CHECK(false, "shapes"); }, MT_ETORCH, "shapes"},
    {"c10::OutOfMemoryError", [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "it is full"); },
     MT_EDEVMEM, "it is full"},
    {"std::bad_alloc", [] { throw std::bad_alloc(); }, MT_EDEVMEM, "out of host memory"},
    {"std::bad_array_new_length", [] { throw std::bad_array_new_length(); }, MT_EDEVMEM,
     "out of host memory"},
    {"std::runtime_error", [] { throw std::runtime_error("a\nb"); }, MT_ETORCH, "a"},
    {"OOM as text", [] { throw std::runtime_error("RuntimeError: CUDA out of memory. x"); },
     MT_EDEVMEM, "RuntimeError: CUDA out of memory. x"},
    {"int", [] { throw 42; }, MT_ETORCH, "an exception that is no std::exception"},
    {"int after a refusal",
     [] {
         mt_status armed = mt_inject_oom(1, 0);
         try {
             if (armed == MT_OK) at::ones({1});
         } catch (const c10::Error &) {
             throw 42;
         }
     },
     MT_EDEVMEM, "an exception that is no std::exception"},
    {"oneDNN after a refusal",
     [] {
         mt_status armed = mt_inject_oom(1, 0);
         try {
             if (armed == MT_OK) at::ones({1});
         } catch (const c10::Error &) {
             throw std::runtime_error("could not create a primitive");
         }
     },
     MT_EDEVMEM, "could not create a primitive"},
    {"int after a refusal of the device",
     [] {
         mt_status armed = mt_inject_oom(1, 0);
         try {
             if (armed == MT_OK) at::ones({1}, tensor_device());
         } catch (const c10::Error &) {
             throw 42;
         }
     },
     MT_EDEVMEM, "an exception that is no std::exception"},
    {"BatchNorm over one value",
     [] {
         torch::nn::BatchNorm1d(4)->forward(at::ones({1, 4}));
     },
     MT_ETORCH,
     "Expected more than 1 value per channel when training, got input size [1, 4]; a layer that "
     "normalises over the batch has nothing to normalise over in a chunk of one: a min_micro_batch "
     "of at "
     "least 2 is accepted, or larger samples; where the batch has one sample, drop_small or "
     "mt_fit's drop_last leaves it out"},
    {"grad mode left off",
     [] {
         c10::GradMode::set_enabled(false);
         throw std::runtime_error("off");
     },
     MT_ETORCH, "off"},
};

TEST_LOOP("exceptions", exceptions_in_the_loss, LENGTH(thrown)) {
    const Thrown &t = thrown[_i];
    bool active = true;
    Trainer trainer(options_of(MT_ADAMW), {}, [&](Net &) {
        if (active) t.act();
    });
    Batch batch(4);
    mt_chunk_result chunk = chunk_result();
    std::string before = trainer.hash();
    ck_ok(mt_begin(trainer.torch, batch.get()));
    mt_status status = mt_accumulate(trainer.torch, 0, 4, 1.0, &chunk);
    /* On MPS a refusal leaves no evidence behind; one by the host's allocator does. */
    bool is_device = !suite_on_card() || std::strstr(t.name, "of the device");
    bool is_lost = suite_on_mps() && is_device && std::strstr(t.name, "after a refusal");
    mt_status expected = is_lost ? MT_ETORCH : t.status;
    ck_assert_msg(status == expected, "%s: %s", t.name, mt_status_name(status));
    ck_assert_str_eq(mt_last_error(), t.line);
    ck_assert(c10::GradMode::is_enabled());
    ck_ok(mt_rollback(trainer.torch));
    ck_ok(mt_inject_oom(0, 0));
    ck_assert(before == trainer.hash());
    active = false;
    ck_ok(mt_train_step(trainer.torch, batch.get(), &chunk, nullptr));
    active = true;
    /* The same outside of a step, and while a model is made. */
    ck_status(mt_evaluate(trainer.torch, batch.get(), 0, 4, &chunk), expected);
    mt_model *model;
    ck_status(memtrain::make_model(&model,
                                   [&] {
                                       t.act();
                                       return memtrain::model(std::make_shared<Net>(NetOptions()),
                                                              {},
                                                              [](Net &, const memtrain::Tensors &) {
                                                                  return memtrain::Output{};
                                                              });
                                   }),
              is_device && suite_on_card() ? MT_ETORCH : t.status); /* whose count, nobody knows */
    ck_assert_ptr_null(model);
}

/* A refusal that was dealt with leaves no evidence against a later error of another kind. */
/* A model in C whose own code meets what libtorch refuses, and says only that something failed. */
struct Mute {
    at::Tensor weight = at::ones({4}).set_requires_grad(true);
    bool fails = false;
};

mt_status visit_mute(void *self, mt_visit_fn fn, void *user) {
    return mt_visit_tensor(&static_cast<Mute *>(self)->weight, "weight", fn, user);
}

mt_status loss_of_mute(void *self, mt_tensor *const *, size_t, mt_tensor *out_loss, mt_tensor *) {
    Mute &mute = *static_cast<Mute *>(self);
    try {
        at::Tensor square = mute.weight * mute.weight;
        if (mute.fails) throw std::runtime_error("other");
        memtrain::tensor(out_loss) = square.sum();
        return MT_OK;
    } catch (...) {
        return mt_set_error(MT_ETORCH, "it did not work");
    }
}

/* A chunk of a model with this loss: out of memory where a request of it is refused, and else its own failure. */
void expect_of_mute(decltype(loss_of_mute) loss, mt_status failure, const char *words) {
    init();
    Mute mute;
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    Batch batch(2);
    ops.visit_parameters = visit_mute;
    ops.loss = loss;
    ck_ok(mt_model_new(&ops, &mute, nullptr, &model));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    for (bool is_oom : {true, false}) {
        mt_chunk_result chunk = chunk_result();
        mute.fails = !is_oom;
        ck_ok(mt_begin(torch, batch.get()));
        /* The images and labels of the chunk are views: the first request is the loss's. */
        if (is_oom) ck_ok(mt_inject_oom(1, 0));
        ck_refused(mt_accumulate(torch, 0, 2, 1.0, &chunk), is_oom ? MT_EDEVMEM : failure, words);
        ck_assert_uint_eq(chunk.refused, is_oom);
        ck_ok(mt_inject_oom(0, 0));
        ck_ok(mt_rollback(torch));
    }
    mt_torch_free(torch);
    mt_model_free(model);
}

/* What was refused tells that it was memory; without a refusal the status is the model's. */
TEST("exceptions", evidence_of_a_mute_model) {
    expect_of_mute(loss_of_mute, MT_ETORCH, "it did not work");
}

TEST("exceptions", evidence_ends_with_the_call) {
    ck_ok(mt_inject_oom(1, 0));
    try {
        at::ones({1});
        ck_abort();
    } catch (...) {
        ck_status(mt_torch_exception(), MT_EDEVMEM);
    }
    try {
        throw std::runtime_error("something else");
    } catch (...) {
        ck_status(mt_torch_exception(), MT_ETORCH);
    }
    ck_ok(mt_torch_set_threads(1));
}

/*
 * A program with a C++ runtime of its own calls within a catch block, and this library sees no exception. It is the same where
 * the block has ended: a refused request is an OOM, and anything else an error that says why.
 */
mt_status loss_unseen(void *self, mt_tensor *const *, size_t, mt_tensor *, mt_tensor *) {
    Mute &mute = *static_cast<Mute *>(self);
    try {
        if (mute.fails) throw std::runtime_error("something else");
        (void)at::ones({1}, mute.weight.device());
    } catch (const std::exception &) {
    }
    return mt_torch_exception();
}

TEST("exceptions", exceptions_that_are_not_seen) {
    expect_of_mute(loss_unseen, MT_ESTATE, "-static-libstdc++");
}

/* TorchScript turns every exception into std::runtime_error; the line is its last, the cause. */
TEST("exceptions", torchscript) {
    torch::jit::Module script("script");
    script.define("def forward(self, x):\n    return torch.relu(x) + torch.exp(x)\n");
    Trainer trainer(options_of(MT_ADAMW), {}, [&script](Net &net) {
        at::Tensor x = at::ones({10}, device_of(net));
        mt_status armed = mt_inject_oom(2, 0);
        if (armed == MT_OK) script.forward({x});
    });
    Batch batch(4);
    mt_chunk_result chunk = chunk_result();
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_refused(mt_accumulate(trainer.torch, 0, 4, 1.0, &chunk), MT_EDEVMEM,
               suite_on_cpu()                      ? "budget: injected"
               : suite_on_card() && suite_on_mps() ? "Invalid buffer size"
                                                   : "out of memory");
    ck_assert_uint_eq(chunk.refused, suite_on_cpu());
    ck_ok(mt_rollback(trainer.torch));
}

/* Losses that are none. */
TEST_LOOP("exceptions", bad_losses, 4) {
    const char *lines[] = {
        "the model's loss is missing: its loss has written nothing into out_loss",
        "the model's loss has the shape [3]; accepted: a scalar, the mean over the chunk",
        "the model's loss has no graph: it was detached, computed without gradients, or from "
        "nothing that trains",
        "the model gave 3 metrics and names 0"};
    int kind = _i;
    mt_model *model;
    mt_torch *torch;
    Batch batch(4);
    mt_chunk_result chunk = chunk_result();
    ck_ok(memtrain::make_model(&model, [&] {
        return memtrain::model(std::make_shared<Net>(NetOptions()), {},
                               [kind](Net &net, const memtrain::Tensors &) {
                                   memtrain::Output output;
                                   if (kind == 1) output.loss = net.unused * 2;
                                   if (kind == 2) output.loss = at::ones({});
                                   if (kind == 3) output.loss = net.unused.sum();
                                   if (kind == 3) output.metrics = at::ones({3});
                                   return output;
                               });
    }));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_ok(mt_begin(torch, batch.get()));
    ck_status(mt_accumulate(torch, 0, 4, 1.0, &chunk), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), lines[kind]);
    ck_ok(mt_rollback(torch));
    mt_torch_free(torch);
    mt_model_free(model);
}

/* destroy is called once, whether mt_model_new succeeds or not. */
TEST("arguments", destroy_is_called_once) {
    int destroyed = 0;
    const char *const none[] = {nullptr};
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    mt_model *model;
    ops.destroy = [](void *self) { ++*static_cast<int *>(self); };
    ck_status(mt_model_new(&ops, &destroyed, nullptr, nullptr), MT_EINVAL);
    ck_assert_int_eq(destroyed, 1);
    ck_status(mt_model_new(&ops, &destroyed, nullptr, &model), MT_EINVAL);
    ck_assert_int_eq(destroyed, 2);
    ops.visit_parameters = [](void *, mt_visit_fn, void *) { return MT_OK; };
    ops.loss = [](void *, mt_tensor *const *, size_t, mt_tensor *, mt_tensor *) { return MT_OK; };
    traits.metric_count = 9;
    ck_status(mt_model_new(&ops, &destroyed, &traits, &model), MT_EINVAL);
    traits.metric_count = 1;
    traits.metric_names = none;
    ck_status(mt_model_new(&ops, &destroyed, &traits, &model), MT_EINVAL);
    ck_assert_int_eq(destroyed, 4);
    ck_ok(mt_model_new(&ops, &destroyed, nullptr, &model));
    ck_assert_int_eq(destroyed, 4);
    mt_model_free(model);
    mt_model_free(model);
    ck_assert_int_eq(destroyed, 5);
    ops.destroy = [](void *) { throw 1; };
    ck_ok(mt_model_new(&ops, nullptr, nullptr, &model));
    mt_model_free(model);
}

int main() {
    tcase_add_checked_fixture(suite_case_named("arguments"), init, nullptr);
    tcase_add_checked_fixture(suite_case_named("exceptions"), init, nullptr);
    return suite_run_named("shim_errors");
}
