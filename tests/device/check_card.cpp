/*
 * check_card.cpp - what the shim does with a card, on the test device under libtorch's keys for CUDA, XPU and MPS: numbers,
 * memory and its limits, words of errors, generators, requests that fail.
 */
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>

#include <ATen/DLConvertor.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/modules/normalization.h>

#include <memtrain/safetensors.h>
#include <memtrain/tensor.h>
#include <memtrain/trainer.hpp>

extern "C" {
#include "device.h"
}

#include "card_suite.hpp"
#include "locales.h"

using namespace card_suite;

namespace {

/* Pictures of 3x8x8 to 5 classes by a convolution, a norm and a linear layer. */
template <class Norm> struct Normed : nn::Module {
    nn::Conv2d conv{nullptr};
    Norm norm{nullptr};
    nn::Linear linear{nullptr};
    explicit Normed(const Norm &its_norm) {
        conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 4, 3)));
        norm = register_module("norm", its_norm);
        linear = register_module("linear", nn::Linear(4 * 6 * 6, 5));
    }
};
using Layered = Normed<nn::LayerNorm>;
using Segment = Normed<nn::BatchNorm2d>;

} // namespace

/* The network's numbers are those of the CPU, but for rounding. */
TEST(suite_device(), as_on_the_cpu) {
    Batch batch(8);
    NetOptions plain;
    plain.dropout = false;
    Trainer card(options_of(MT_ADAMW, 0.5), plain);
    mt_torch_options options = options_of(MT_ADAMW, 0.5);
    options.device = "cpu";
    Trainer cpu(options, plain);
    for (int i = 0; i < 3; i++) {
        mt_chunk_result there = chunk_result(), here = chunk_result();
        ck_ok(mt_train_step(card.torch, batch.get(), &there, nullptr));
        ck_ok(mt_train_step(cpu.torch, batch.get(), &here, nullptr));
        ck_assert_double_eq_tol(there.loss_sum / here.loss_sum, 1.0, 1e-5);
        ck_assert_double_eq(there.metric_sums[0], here.metric_sums[0]);
    }
    ck_assert_uint_gt(counters().kernels, 100);
    const std::string kind = suite_device();
    ck_assert_int_eq(at::globalContext().deterministicCuDNN(), kind == "cuda");
    ck_assert_int_eq(at::globalContext().deterministicMkldnn(), kind == "xpu");
}

/* The allocator's limit is set whenever the budget is, also once the card is in use, which a seed is enough for. */
/* The second time where a program writes numbers with a comma: libtorch's settings are text, which would be cut at it. */
TEST_LOOP_IF(!suite_on_mps(), "without a budget MPS has a limit of 1.7 times its working set",
             suite_device(), budget_is_the_allocators_limit, 2) {
    mt_memory memory = MT_MEMORY_INIT;
    if (_i) {
        if (!locales_make("card: budget_is_the_allocators_limit")) return;
        ck_assert_ptr_nonnull(setlocale(LC_ALL, LOCALE_COMMA));
        char text[8];
        snprintf(text, sizeof text, "%.1f", 0.5);
        ck_assert_str_eq(text, "0,5");
    }
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_seed(1));
    ck_ok(mt_device_memory(suite_device(), &memory));
    double whole = static_cast<double>(memory.free_bytes);
    ck_assert_double_eq(mt_card_share(), 1.0);
    ck_ok(mt_device_set_budget(suite_device(), 256 * MiB));
    ck_assert_double_eq_tol(mt_card_share(), 256.0 * MiB / whole, 1e-9);
    ck_ok(mt_device_set_budget(suite_device(), 0));
    ck_assert_double_eq(mt_card_share(), 1.0);
    if (_i) locales_remove();
}

/*
 * A norm over a sample is no batch norm where libtorch puts it together from one, as it does for a device that has no kernel for
 * it: embeddings of chunks are the batch's. Here that is a layer norm; on MPS it was a group norm in earlier versions (pytorch#182805).
 */
TEST(suite_device(), norm_of_a_sample) {
    Batch batch(8);
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_seed(7));
    memtrain::Trainer trainer(
        memtrain::contrastive_model(
            std::make_shared<Layered>(nn::LayerNorm(nn::LayerNormOptions({4, 6, 6}))), {},
            [](Layered &net, const memtrain::Tensors &tensors) {
                return memtrain::Tensors{net.linear(net.norm(net.conv(tensors[0])).flatten(1)),
                                         tensors[1]};
            },
            [](Layered &, const memtrain::Tensors &tensors) {
                return memtrain::Output{at::cross_entropy_loss(tensors[0], tensors[1]), {}};
            }),
        options_of(MT_SGD));
    memtrain::Tensors tensors = {memtrain::tensor(batch.images()),
                                 memtrain::tensor(batch.labels())};
    for (int i = 0; i < 2; i++) ck_assert(std::isfinite(trainer.step(tensors).loss));
}

/* A segment leaves the types alone that autocast chose, forwards and backwards; on MPS other types end the process. */
TEST(suite_device(), norm_at_the_end_of_a_segment) {
    std::vector<c10::ScalarType> types;
    double losses[2] = {0, 0};
    for (int checkpointing : {MT_CHECKPOINTING_AUTO, MT_CHECKPOINTING_ON}) {
        Batch batch(8);
        mt_chunk_result result = chunk_result();
        mt_torch_options options = options_of(MT_SGD);
        options.amp = MT_BFLOAT16;
        options.checkpointing = checkpointing;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_seed(7));
        mt_model *model = nullptr;
        mt_torch *torch = nullptr;
        ck_ok(memtrain::make_model(&model, [&] {
            auto description = memtrain::model(
                std::make_shared<Segment>(nn::BatchNorm2d(4)), {},
                [&types](Segment &net, const memtrain::Tensors &tensors) {
                    at::Tensor x =
                        memtrain::checkpoint_conv_norm([](const at::Tensor &in) { return in * 2; },
                                                       tensors[0], net.conv, net.norm);
                    types.push_back(x.scalar_type());
                    at::Tensor logits = net.linear(x.flatten(1));
                    return memtrain::Output{at::cross_entropy_loss(logits, tensors[1]), {}};
                });
            description.checkpoints = true;
            return description;
        }));
        ck_ok(mt_torch_new(model, &options, &torch));
        for (int i = 0; i < 3; i++) ck_ok(mt_train_step(torch, batch.get(), &result, nullptr));
        losses[checkpointing == MT_CHECKPOINTING_ON] = result.loss_sum;
        mt_torch_free(torch);
        mt_model_free(model);
    }
    ck_assert_double_eq(losses[0], losses[1]);
    for (c10::ScalarType type : types)
        ck_assert(type == (suite_on_mps() ? c10::kFloat : c10::kBFloat16));
}

/* What a GPU that ignores what it is given leaves behind is no result: out of memory at first, then an error to stop at. */
TEST_IF(suite_on_mps(), "Metal alone ignores work and tells no error", suite_device(), ignored) {
    Batch batch(8);
    Trainer trainer(options_of(MT_ADAMW));
    ck_ok(train(trainer, batch));
    std::string before = trainer.hash();
    mt_card_ignore(1);
    ck_status(train(trainer, batch), MT_EDEVMEM);
    ck_contains(mt_last_error(), "has not done what it was given");
    ck_status(train(trainer, batch), MT_EIO);
    ck_contains(mt_last_error(), "started anew");
    mt_card_ignore(0);
    ck_assert(trainer.hash() == before);
    ck_ok(train(trainer, batch));
}

/* In an update it is half made: the state is lost, and said to be. */
TEST_IF(suite_on_mps(), "Metal alone ignores work and tells no error", suite_device(),
        ignored_update) {
    Batch batch(8);
    Trainer trainer(options_of(MT_ADAMW));
    mt_chunk_result result = chunk_result();
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(mt_accumulate(trainer.torch, 0, 8, 1.0, &result));
    mt_card_ignore(1);
    mt_apply_result applied = apply_result();
    ck_status(mt_apply(trainer.torch, &applied), MT_EIO);
    ck_contains(mt_last_error(), "started anew");
    ck_status(mt_begin(trainer.torch, batch.get()), MT_ESTATE);
    ck_contains(mt_last_error(), "the state is lost");
    mt_card_ignore(0);
}

/* A batch that lies on the card has come when a chunk of it is used on the host. */
TEST(suite_device(), batch_of_the_card_on_the_cpu) {
    double loss[2] = {0, 1};
    for (int on = 0; on < 2; on++) {
        Batch batch(8);
        Trainer trainer(options_of(MT_SGD));
        mt_backend seam = seam_of(trainer);
        mt_chunk_result result = chunk_result();
        if (on)
            for (mt_tensor *tensor : {batch.images(), batch.labels()})
                memtrain::tensor(tensor) = memtrain::tensor(tensor).to(device_of(*trainer.net));
        ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 1));
        ck_ok(mt_train_step(trainer.torch, batch.get(), &result, nullptr));
        loss[on] = result.loss_sum;
    }
    ck_assert_double_eq(loss[0], loss[1]);
}

/*
 * A library that was refused a work space and did without has not failed: what fails after it is what it is. cuDNN may do so
 * where the program has unset what keeps its bits.
 */
TEST_IF(!suite_on_mps(), "MPS has no library that goes on after a refusal", suite_device(),
        swallowed_refusals_are_no_errors) {
    Batch batch(8);
    Trainer trainer(options_of(MT_SGD));
    at::globalContext().setDeterministicCuDNN(false);
    mt_card_use_work_space(size_t{1} << 38);
    ck_ok(train(trainer, batch));
    memtrain::tensor(batch.labels()).fill_(77);
    ck_status(train(trainer, batch), MT_ETORCH);
    ck_contains(mt_last_error(), "out of bounds");
}

/* Of a library's error, whether one of its requests was refused before, and what it is taken for. */
static const struct {
    const char *text;
    bool swallowed;
    mt_status status;
} library_errors[] = {
    {"GET was unable to find an engine to execute this computation", true, MT_EDEVMEM},
    {"GET was unable to find an engine to execute this computation", false, MT_ETORCH},
    {"Unable to find a valid cuDNN algorithm to run convolution", true, MT_EDEVMEM},
    {"CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", false,
     MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", false, MT_EDEVMEM},
    {"cuFFT error: CUFFT_ALLOC_FAILED", false, MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", true, MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", false, MT_ETORCH},
    {"CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", true, MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", true, MT_EDEVMEM},
    {"cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", false, MT_ETORCH},
    {"could not execute a primitive", true, MT_EDEVMEM},
    {"could not execute a primitive", false, MT_ETORCH},
    {"miopenStatusInternalError", true, MT_EDEVMEM},
    {"miopenStatusInternalError", false, MT_ETORCH},
    {"CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", false, MT_EDEVMEM},
    {"HIP error: out of memory", false, MT_EDEVMEM},
    {"CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", false,
     MT_EDEVMEM},
    {"CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED", false, MT_EDEVMEM},
    {"HIPSOLVER_STATUS_ALLOC_FAILED", false, MT_EDEVMEM},
    {"CUDA error: HIPSPARSE_STATUS_INSUFFICIENT_RESOURCES", false, MT_EDEVMEM},
    {"cuFFT error: HIPFFT_ALLOC_FAILED", false, MT_EDEVMEM},
    {"miopenStatusAllocFailed", false, MT_EDEVMEM},
    {"miopenStatusUnknownError", true, MT_EDEVMEM},
    {"miopenStatusUnknownError", false, MT_ETORCH},
    {"HIP error: an illegal memory access was encountered", false, MT_ETORCH},
    {"level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", false,
     MT_EDEVMEM},
    {"UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", false,
     MT_EDEVMEM},
    {"level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", false, MT_ETORCH},
    {"level_zero backend failed with error: 21 (UR_RESULT_ERROR_DEVICE_REQUIRES_RESET)", false,
     MT_ETORCH},
    {"mat1 and mat2 shapes cannot be multiplied (8x72 and 71x5)", true, MT_ETORCH},
};

/* What hides a refusal is one where there was one; handles that could not be made want memory. */
TEST_LOOP_IF(!suite_on_mps(), "the texts are those of CUDA, ROCm and XPU", suite_device(), texts,
             LENGTH(library_errors)) {
    Batch batch(8);
    const auto &one = library_errors[_i];
    Trainer trainer(options_of(MT_SGD), {}, [&](Net &net) {
        (void)net.conv1->forward(memtrain::tensor(batch.images()).to(device_of(net)));
        TORCH_CHECK(false, one.text);
    });
    at::globalContext().setDeterministicCuDNN(false);
    mt_card_use_work_space(one.swallowed ? size_t{1} << 38 : 0);
    ck_status(train(trainer, batch), one.status);
    ck_contains(mt_last_error(), one.text);
}

/* Cards before compute capability 8.0 take bfloat16 and have no engine for it: said before a step runs. */
TEST_IF(!suite_on_mps(), "MPS is not asked for a convolution in bfloat16", suite_device(),
        no_bfloat16) {
    Batch batch(8);
    Trainer plain(options_of(MT_SGD));
    mt_backend seam = seam_of(plain);
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_torch_options options = options_of(MT_SGD);
    mt_card_lack_bfloat16(1);
    ck_status(seam.set_rung(seam.self, MT_RUNG_AMP, 1), MT_ENOTSUP);
    ck_ok(train(plain, batch));
    ck_ok(net_model_new({}, &model));
    options.amp = MT_BFLOAT16;
    ck_status(mt_torch_new(model, &options, &torch), MT_ENOTSUP);
    ck_contains(mt_last_error(), "accepted there: MT_FLOAT16");
    mt_card_lack_bfloat16(0);
    ck_ok(mt_torch_new(model, &options, &torch));
    ck_ok(seam.set_rung(seam.self, MT_RUNG_AMP, 1));
    mt_torch_free(torch);
    mt_model_free(model);
}

/* Segments are chosen by measured peaks: said before a step runs. */
TEST_IF(suite_on_mps(), "all but MPS tell peaks", suite_device(), segments_cannot_be_chosen) {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_torch_options options = options_of(MT_SGD);
    ck_ok(net_model_new({}, &model));
    options.checkpointing = MT_CHECKPOINTING_CHOSEN;
    options.activation_share = 0.5;
    ck_refused(mt_torch_new(model, &options, &torch), MT_ENOTSUP,
               "MPS tells no peaks to choose by; accepted: MT_CHECKPOINTING_AUTO");
    ck_assert_ptr_null(torch);
    mt_model_free(model);
}

/* The norm of half-precision gradients is larger than half precision can say. */
TEST(suite_device(), norm_of_half_precision) {
    mt_torch_options options = options_of(MT_SGD, 1.0);
    ck_ok(mt_torch_init(nullptr));
    memtrain::Trainer trainer(
        memtrain::model(
            std::make_shared<Half>(), {},
            [](Half &half, const memtrain::Tensors &batch) {
                return memtrain::Output{at::mul(half.weight.to(at::kFloat), batch[0]).sum(), {}};
            }),
        options);
    mt_step_report report = trainer.step({at::full({1, 4}, 60000.0)}); /* the largest: 65,504 */
    ck_assert_double_eq_tol(report.grad_norm, 120000.0, 64.0);
    ck_assert_int_eq(report.skipped, MT_SKIP_NOT);
}

/* A card that is lost is no memory, and the line says what to do. */
TEST_IF(!suite_on_mps(), "Metal tells no lost card", suite_device(), lost_card) {
    Batch batch(8);
    Trainer trainer(options_of(MT_SGD));
    ck_ok(train(trainer, batch));
    mt_card_break(1);
    mt_status status = train(trainer, batch);
    ck_assert_msg(status == MT_ETORCH || status == MT_ESTATE, "status %d", status);
    ck_contains(mt_last_error(), suite_on_xpu() ? "DEVICE_LOST" : "illegal memory access");
    ck_contains(mt_last_error(), "started anew");
    mt_card_break(0);
}

/* Nor is it one that can be used; one that is well can. One that this process has not used is not asked. */
TEST_IF(!suite_on_mps(), "Metal tells no lost card", suite_device(), lost_card_is_told) {
    ck_ok(mt_torch_init(nullptr));
    uint64_t before = counters().waits;
    ck_ok(mt_device_check(suite_device()));
    ck_assert_uint_eq(counters().waits, before);
    Trainer trainer(options_of(MT_SGD));
    ck_ok(mt_device_check(suite_device()));
    mt_card_break(1);
    ck_refused(mt_device_check(suite_device()), MT_ETORCH,
               suite_on_xpu() ? "UR_RESULT_ERROR_DEVICE_LOST" : "illegal memory access");
    ck_contains(mt_last_error(), "started anew");
    mt_card_break(0);
    ck_ok(mt_device_check(suite_device()));
}

/*
 * A marked chunk that is one of several brings its gradients to the block by one kernel, where a plain one has autograd add them
 * parameter by parameter, of which six have a gradient here. The update is the same.
 */
TEST_IF(!suite_on_mps(), "as MPS the test device adds a list tensor by tensor", suite_device(),
        gradients_by_block) {
    uint64_t kernels[2];
    std::string hashes[2];
    NetOptions plain;
    plain.norm = plain.dropout = false;
    for (bool marked : {false, true}) {
        Batch batch(8);
        Trainer trainer(options_of(MT_SGD), plain);
        mt_chunk_result result = chunk_result();
        for (size_t first : {0, 4}) {
            if (!first) ck_ok(mt_begin(trainer.torch, batch.get()));
            if (marked) ck_ok(mt_mark(trainer.torch));
            uint64_t before = counters().kernels;
            ck_ok(mt_accumulate(trainer.torch, first, 4, 0.5, &result));
            kernels[marked] = counters().kernels - before;
        }
        mt_apply_result applied = apply_result();
        ck_ok(mt_apply(trainer.torch, &applied));
        hashes[marked] = trainer.hash();
    }
    ck_assert(hashes[1] == hashes[0]);
    ck_assert_uint_eq(kernels[1], kernels[0] - 6 + 1);
}

/*
 * What libraries take at their first product, and at their first with a bias, and keep is there before a chunk is recorded, of either
 * thread. In the second run the backward pass computes segments again, with their products.
 */
TEST_LOOP_IF(!suite_on_mps() && !suite_on_xpu(), "work spaces of products are those of cuBLAS",
             suite_device(), work_spaces_are_taken_first, 2) {
    Batch batch(8);
    mt_card_keep_work_spaces(8 * MiB);
    mt_torch_options options = options_of(MT_SGD);
    if (_i) options.checkpointing = MT_CHECKPOINTING_ON;
    Trainer trainer(options);
    size_t before = memory_on(suite_device()).allocated_bytes;
    ck_assert_uint_gt(before, 32 * MiB);
    ck_ok(train(trainer, batch));
    ck_assert_uint_eq(memory_on(suite_device()).allocated_bytes, before);
}

/* Processes of a machine: each has the card of its number, or shares one where there are fewer, which is said. */
TEST_LOOP_IF(!suite_on_mps(), "there is one MPS device, without a number", suite_device(),
             cards_of_processes, 5) {
    static const struct {
        const char *cards;
        int64_t processes, rank;
        const char *number;
        size_t sharers; /* of that card */
    } cases[] = {
        {"4", 4, 3, ":3", 1}, {"2", 4, 3, ":1", 2}, {"2", 4, 2, ":0", 2},
        {"1", 2, 1, ":0", 2}, {"2", 1, 0, "", 1},
    };
    static std::string log;
    const auto &one = cases[_i];
    ex_flags flags{};
    ex_device device;
    size_t count = 0;
    setenv("MT_TEST_CARDS", one.cards, 1);
    mt_set_log([](void *, mt_log_level, const char *text) { log += text; }, nullptr);
    flags.device = "auto";
    flags.processes = flags.sharing = one.processes;
    flags.card = one.rank;
    flags.budget = "0.5";
    ck_ok(mt_torch_init(nullptr));
    size_t whole = memory_on(suite_device()).free_bytes;
    ck_ok(ex_device_open(&flags, nullptr, 0, &device));
    ck_assert_str_eq(device.name, (suite_device() + std::string(one.number)).c_str());
    ck_assert_uint_eq(device.room_bytes, whole / one.sharers);
    ck_ok(mt_device_count(suite_device(), &count));
    ck_assert_int_eq(static_cast<int>(count), std::atoi(one.cards));
    std::string words = "see " + std::string(one.cards) + " " + suite_device() + " device";
    ck_assert_int_eq(log.find(words) != std::string::npos, one.sharers > 1);
}

/*
 * A card that is named is the same for all processes of the machine, which is said; a fraction is of its part, and what the
 * device would take by itself is shared out.
 */
TEST_LOOP(suite_device(), a_named_card_is_shared, 2) {
    static std::string log;
    std::string name = suite_device();
    ex_flags flags{};
    ex_device device;
    mt_set_log([](void *, mt_log_level, const char *text) { log += text; }, nullptr);
    if (!suite_on_mps()) name += ":0";
    flags.device = name.c_str();
    flags.processes = flags.sharing = 2;
    ck_ok(mt_device_set_budget(name.c_str(), 0));
    size_t all = memory_on(name.c_str()).budget_bytes;
    flags.budget = _i ? "auto" : "0.5";
    ck_ok(ex_device_open(&flags, nullptr, 0, &device));
    ck_assert_str_eq(device.name, name.c_str());
    ck_assert_uint_eq(device.sharers, 2);
    if (_i) ck_assert_uint_eq(device.budget_bytes, all / 2);
    ck_contains(log.c_str(), ("2 processes of this machine share '" + name + "'").c_str());
}

/* The line is said once, not by each process. */
TEST_IF(!suite_on_mps(), "there is one MPS device, without a number", suite_device(),
        one_process_tells_of_shared_cards) {
    ex_flags flags{};
    ex_device device;
    setenv("RANK", "1", 1);
    mt_set_log([](void *, mt_log_level,
                  const char *text) { ck_assert_msg(!std::strstr(text, " device"), "%s", text); },
               nullptr);
    flags.device = suite_device();
    flags.processes = flags.sharing = 2;
    flags.card = 1;
    ck_ok(ex_device_open(&flags, nullptr, 0, &device));
    ck_assert_str_eq(device.name, (suite_device() + std::string(":0")).c_str());
}

/* A file has the generators by their device, and a trainer takes them up. */
TEST(suite_device(), names_of_generators) {
    Batch batch(8);
    Trainer one(options_of(MT_ADAMW)), other(options_of(MT_ADAMW));
    ck_ok(train(one, batch));
    same_by_file(one, other,
                 suite_on_mps() ? "rng.mps" : std::string("rng.") + suite_device() + ".0");
}

/* Out and in again it is the same memory of the same card, which DLPack calls by another name. */
TEST_IF(!suite_on_mps(), "DLPack brings no tensors of MPS in", suite_device(), dlpack) {
    static const std::map<std::string, int> types = {{"cuda", kDLCUDA}, {"xpu", kDLOneAPI}};
    ck_ok(mt_device_check(suite_device()));
    at::Tensor tensor = at::ones({2, 3}, at::device(c10::Device(suite_device())));
    DLManagedTensor *out = nullptr;
    mt_tensor *in = nullptr;
    ck_ok(mt_tensor_to_dlpack(memtrain::detail::Handle(tensor).get(), &out));
    ck_assert_int_eq(out->dl_tensor.device.device_type, types.at(suite_device()));
    ck_ok(mt_tensor_from_dlpack(out, &in));
    ck_assert(memtrain::tensor(in).device() == tensor.device());
    ck_assert_ptr_eq(memtrain::tensor(in).const_data_ptr(), tensor.const_data_ptr());
    mt_tensor_free(in);
}

/* What a traced graph calls is not what a module calls: libtorch itself picks the device's convolution. */
TEST_IF(!suite_on_mps(), "the test device has no convolution of MPS's own", suite_device(),
        convolution_of_a_graph) {
    ck_ok(mt_device_check(suite_device()));
    at::Tensor picture = at::ones({1, 2, 4, 4}), weight = at::ones({3, 2, 3, 3});
    auto run = [&](c10::Device device) {
        at::Tensor mine = weight.to(device).detach().requires_grad_(true);
        at::Tensor out = at::_convolution(picture.to(device), mine, {}, {1, 1}, {0, 0}, {1, 1},
                                          false, {0, 0}, 1, false, false, true, true);
        out.sum().backward();
        return std::make_pair(out.detach().cpu(), mine.grad().cpu());
    };
    auto there = run(c10::Device(suite_device())), here = run(c10::kCPU);
    ck_assert(there.first.equal(here.first));
    ck_assert(there.second.equal(here.second));
}

/* As on CUDA a kernel takes tensors of one device, and single numbers of the host's. */
TEST(suite_device(), tensors_of_two_devices) {
    const c10::Device device(suite_device());
    at::Tensor there = at::ones({2, 2}, device), here = at::ones({2, 2});
    const std::function<void()> refused[] = {
        [&] { (void)at::mm(there, here); },
        [&] { (void)at::add(here, there); },
        [&] {
            (void)at::cat({there, here});
        },
        [&] { (void)at::sum_out(here, there, at::IntArrayRef{0}); },
    };
    for (const auto &call : refused) {
        try {
            call();
            ck_abort_msg("tensors of two devices were taken");
        } catch (const c10::Error &error) {
            ck_contains(error.what(), "Expected all tensors to be on the same device");
        }
    }
    ck_assert_double_eq(at::add(there, at::scalar_tensor(2)).sum().item<double>(), 12.0);
    ck_assert_double_eq(there.index({at::zeros({1}, at::kLong)}).sum().item<double>(), 2.0);
}

/* mt_inject_oom reaches the allocator from outside: the refusal is the allocator's own, and the next request is served. */
TEST(suite_device(), requests_of_the_card_are_counted) {
    const c10::Device device(suite_device());
    uint64_t requests = 0, refused = 0;
    ck_ok(mt_torch_init(nullptr));
    at::Tensor released = at::empty({64 << 20}, device);
    released.reset();
    size_t before = memory_on(suite_device()).reserved_bytes;
    ck_ok(mt_inject_oom(2, 0));
    at::Tensor first = at::empty({1000}, device);
    try {
        (void)at::empty({1000}, device);
        ck_abort_msg("the request was not refused");
    } catch (const c10::Error &error) {
        bool typed = dynamic_cast<const c10::OutOfMemoryError *>(&error) != nullptr;
        ck_assert_int_eq(typed, !suite_on_mps());
        ck_contains(error.what(), suite_on_mps() ? "Invalid buffer size" : " out of memory. Tried");
    }
    first = at::empty({1000}, device);
    mt_injected(&requests, &refused);
    ck_ok(mt_inject_oom(0, 0));
    ck_assert_uint_eq(requests, 3);
    ck_assert_uint_eq(refused, 1);
    if (!suite_on_mps()) ck_assert_uint_lt(memory_on(suite_device()).reserved_bytes, before);
}

/* Each stream has memory of its own: what one has given back no other one gets. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(), streams_have_pools) {
    const c10::Device device(suite_device());
    auto type = device.type();
    c10::impl::VirtualGuardImpl guard(type);
    at::Tensor first = at::empty({1000}, device);
    first.reset();
    size_t before = memory_on(suite_device()).reserved_bytes;
    {
        c10::StreamGuard on(guard.getStreamFromGlobalPool(c10::Device(type, 0)));
        first = at::empty({1000}, device);
        ck_assert_uint_eq(memory_on(suite_device()).reserved_bytes, before + 2 * MiB);
        first.reset();
    }
    first = at::empty({1000}, device);
    ck_assert_uint_eq(memory_on(suite_device()).reserved_bytes, before + 2 * MiB);
}

/* Emptying the cache of one card empties those of all, as CUDA's allocator does. Memory in use stays. */
TEST_IF(!suite_on_mps(), "there is one MPS device", suite_device(), caches_of_all_cards) {
    const std::string kind = suite_device();
    const c10::Device other(kind + ":1");
    setenv("MT_TEST_CARDS", "2", 1);
    at::Tensor used = at::ones({MiB}, other);
    at::empty({8 * MiB}, other).reset();
    mt_memory before = memory_on(other.str().c_str());
    ck_ok(mt_empty_cache((kind + ":0").c_str(), nullptr));
    mt_memory after = memory_on(other.str().c_str());
    ck_assert_uint_eq(after.reserved_bytes, before.reserved_bytes - 32 * MiB);
    ck_assert_uint_eq(after.allocated_bytes, before.allocated_bytes);
    ck_assert_double_eq(used.sum().item().toDouble(), static_cast<double>(MiB));
}

/*
 * A step in which the n-th request fails, 0: none: it is taken back, and goes through when it is done again. Returns whether
 * one has failed.
 */
bool fails_and_recovers(Trainer &trainer, const Batch &batch, uint64_t n) {
    uint64_t failed = 0;
    std::string before = trainer.hash();
    ck_ok(mt_inject_oom(n, 0));
    mt_status status = train(trainer, batch);
    mt_injected(nullptr, &failed);
    ck_ok(mt_inject_oom(0, 0));
    if (!failed) return false;
    ck_status(status, MT_EDEVMEM);
    ck_assert(trainer.hash() == before);
    ck_ok(train(trainer, batch));
    return true;
}

/*
 * Each request of a step fails in turn: nothing of it is left, and the step goes through afterwards with the same bits. On CUDA
 * the work spaces of convolutions are among these requests.
 */
TEST_LOOP(suite_device(), every_request_fails, 2) {
    static const mt_optimizer optimizers[] = {MT_SGD, MT_ADAMW};
    if (!std::strcmp(suite_device(), "cuda")) mt_card_use_work_space(MiB);
    mt_torch_options options = options_of(optimizers[_i], 0.5);
    std::string wanted;
    {
        Batch batch(8);
        Trainer clean(options);
        for (int i = 0; i < 2; i++) ck_ok(train(clean, batch));
        wanted = clean.hash();
    }
    uint64_t failed = 1, n = 0;
    while (failed) {
        Batch batch(8);
        Trainer trainer(options);
        ck_ok(train(trainer, batch));
        failed = fails_and_recovers(trainer, batch, ++n);
        ck_assert_msg(trainer.hash() == wanted, "request %llu", static_cast<unsigned long long>(n));
    }
    ck_assert_uint_gt(n, 30);
    ck_assert_uint_eq(counters().detours, 0);
}

/* Of the first step, in which slots are made but on MPS. */
TEST(suite_device(), every_request_of_a_first_step) {
    uint64_t failed = 1, n = 0;
    std::string wanted;
    while (failed) {
        Batch batch(8);
        Trainer trainer(options_of(MT_SGD));
        failed = fails_and_recovers(trainer, batch, n);
        if (!n) wanted = trainer.hash();
        ck_assert_msg(trainer.hash() == wanted, "request %llu", static_cast<unsigned long long>(n));
        failed |= !n++;
    }
    ck_assert_uint_gt(n, 30);
}

/* The device itself: pinned memory stays as it is until the host knows that a copy from it is through. */
TEST_LOOP_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(),
             a_host_that_writes_too_early, 2) {
    ck_ok(mt_torch_init(nullptr));
    std::string words;
    at::Tensor host = at::ones({64}).pin_memory();
    at::Tensor there = host.to(c10::Device(suite_device()), /*non_blocking=*/true) + 1;
    if (_i) (void)there.cpu();
    host.fill_(5);
    try {
        (void)there.cpu();
    } catch (const c10::Error &error) {
        words = error.what_without_backtrace();
    }
    ck_assert_int_eq(words.empty(), _i);
    if (!_i) ck_contains(words.c_str(), "written to pinned memory before it knew");
    ck_assert(there.cpu().equal(at::full({64}, 2.0)));
}

/* A batch that is pinned, on the card, in another order or of nothing gives the numbers of a plain one. */
TEST(suite_device(), batches_of_each_kind) {
    ck_ok(mt_torch_init(nullptr));
    at::Tensor rows = at::arange(32, at::kFloat).reshape({8, 4});
    const at::Tensor batches[] = {rows,
                                  suite_on_mps() ? rows : rows.pin_memory(),
                                  rows.to(c10::Device(suite_device())),
                                  rows.t().contiguous().t(),
                                  rows.repeat({2, 1}).slice(0, 0, 16, 2),
                                  rows.clone().requires_grad_(true)};
    for (const at::Tensor &batch : batches) {
        std::vector<at::Tensor> chunks;
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        policy.micro_batch = 2;
        own.policy = &policy;
        memtrain::Trainer trainer(
            memtrain::model(std::make_shared<Half>(), {},
                            [&](Half &half, const memtrain::Tensors &tensors) {
                                chunks.push_back(tensors[0].detach().clone());
                                ck_assert_int_eq(tensors[1].size(1), 0);
                                at::Tensor sum = at::mul(half.weight, tensors[0]).sum();
                                return memtrain::Output{sum, {}};
                            }),
            options_of(MT_SGD), &own);
        for (int i = 0; i < 4; i++) {
            chunks.clear();
            (void)trainer.step({batch, at::ones({batch.size(0), 0})});
            at::Tensor seen = at::cat(chunks).cpu();
            ck_assert(seen.equal(batch.detach().cpu()));
        }
    }
}

int main(int, char **argv) {
    return card_main("card", argv);
}
