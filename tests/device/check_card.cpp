/*
 * check_card.cpp - what the shim does with a card, on the test device (tests/device/card.hpp) under libtorch's keys for CUDA, XPU
 * and MPS: it is loaded before everything else, so this program starts itself again, once for each.
 */
#include <climits>
#include <clocale>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>

#include <libgen.h>
#include <sys/wait.h>
#include <unistd.h>

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
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/modules/normalization.h>

#include <memtrain/processes.h>
#include <memtrain/safetensors.h>
#include <memtrain/tensor.h>
#include <memtrain/trainer.hpp>

extern "C" {
#include "device.h"
}

#include "check_shim.hpp"
#include "card.h"
#include "locales.h"

using namespace check_shim;

namespace {

constexpr size_t MiB = size_t{1} << 20;

mt_card_counters counters() {
    mt_card_counters now = {};
    mt_card_read(&now);
    return now;
}

mt_status train(const Trainer &trainer, const Batch &batch) {
    return mt_train_step(trainer.torch, batch.get(), nullptr, nullptr);
}

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

/* Weights in half precision, whose gradient is the batch. */
struct Half : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({4}).to(at::kHalf));
};

} // namespace

/* The network's numbers are those of the CPU, but for rounding. */
START_TEST(as_on_the_cpu) {
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
END_TEST

/* The allocator's limit is set whenever the budget is, also once the card is in use, which a seed is enough for. */
/* The second time where a program writes numbers with a comma: libtorch's settings are text, which would be cut at it. */
START_TEST(budget_is_the_allocators_limit) {
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
END_TEST

/*
 * A norm over a sample is no batch norm where libtorch puts it together from one, as it does for a device that has no kernel for
 * it: embeddings of chunks are the batch's. Here that is a layer norm; on MPS it was a group norm in earlier versions (pytorch#182805).
 */
START_TEST(norm_of_a_sample) {
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
END_TEST

/* A segment leaves the types alone that autocast chose, forwards and backwards; on MPS other types end the process. */
START_TEST(norm_at_the_end_of_a_segment) {
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
END_TEST

/* The norm of all gradients is waited for once, not once a parameter. */
START_TEST(clipping_waits_once) {
    uint64_t waits[2];
    for (int clips = 0; clips < 2; clips++) {
        Batch batch(8);
        Trainer trainer(options_of(MT_SGD, clips ? 0.01 : 0.0));
        ck_ok(train(trainer, batch));
        uint64_t before = counters().waits;
        ck_ok(train(trainer, batch));
        waits[clips] = counters().waits - before;
    }
    ck_assert_uint_le(waits[1], waits[0] + 1);
}
END_TEST

/* Eight chunks of two; the backend does without collect, or has it. */
struct Loop {
    Batch batch{16};
    Trainer trainer;
    mt_trainer *loop = nullptr;
    Loop(double clip, bool collects, int keep = MT_KEEP_AUTO)
        : trainer(options_of(MT_ADAMW, clip)) {
        mt_backend seam = seam_of(trainer);
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        policy.micro_batch = 2;
        policy.keep_chunks = keep;
        own.policy = &policy;
        ck_assert_ptr_nonnull(reinterpret_cast<void *>(seam.collect));
        if (!collects) seam.collect = nullptr;
        ck_ok(mt_trainer_new(&seam, &own, &loop));
    }
    ~Loop() { mt_trainer_free(loop); }
    mt_step_report step() {
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(mt_trainer_step(loop, batch.get(), &report));
        return report;
    }
};

/*
 * The card is waited for once for all losses, and once for the update. Where MPS clips, its norm comes in between; and
 * each copy to it is waited for.
 */
START_TEST(waits_twice_a_step) {
    for (double clip : {0.0, 0.5}) {
        Loop loop(clip, true);
        loop.step();
        mt_card_counters before = counters();
        loop.step();
        mt_card_counters after = counters();
        uint64_t waits = after.waits - before.waits, copies = after.to_card - before.to_card;
        if (suite_on_mps()) waits -= copies;
        ck_assert_uint_eq(waits, suite_on_mps() && clip > 0.0 ? 3 : 2);
    }
}
END_TEST

/* Nothing else changes by that: losses, metrics and weights have the same bits. */
START_TEST(same_figures_without_waiting) {
    for (int keep : {MT_KEEP_AUTO, MT_KEEP_ALWAYS}) {
        Loop waits(0.5, false, keep), defers(0.5, true, keep);
        for (int i = 0; i < 4; i++) {
            /* one random generator serves both */
            ck_ok(mt_torch_seed(static_cast<uint64_t>(i)));
            mt_step_report a = waits.step();
            ck_ok(mt_torch_seed(static_cast<uint64_t>(i)));
            mt_step_report b = defers.step();
            ck_assert_double_eq(a.loss, b.loss);
            ck_assert_mem_eq(a.metrics, b.metrics, sizeof a.metrics);
            ck_assert_double_eq(a.grad_norm, b.grad_norm);
            ck_assert_uint_eq(a.chunk_count, b.chunk_count);
            ck_assert_double_gt(b.seconds, 0.0);
        }
        ck_assert(waits.trainer.hash() == defers.trainer.hash());
    }
}
END_TEST

/* Each request of a step with deferred chunks is refused in turn: it goes through, with the bits of one that met nothing. */
START_TEST(every_request_of_deferred_chunks) {
    int keep = _i ? MT_KEEP_ALWAYS : MT_KEEP_NEVER, fired = 0;
    std::string expected;
    uint64_t stride = getenv("MT_TEST_SLOW") ? 1 : 4;
    for (uint64_t n = 0;; n += n ? stride : 1) {
        Loop loop(0.5, true, keep);
        ck_ok(mt_torch_seed(5));
        loop.step();
        uint64_t count = 0;
        ck_ok(mt_inject_oom(n, 0));
        mt_step_report report = loop.step();
        mt_injected(nullptr, &count);
        ck_ok(mt_inject_oom(0, 0));
        if (!n) expected = loop.trainer.hash();
        ck_assert_msg(loop.trainer.hash() == expected, "request %llu: other bits",
                      static_cast<unsigned long long>(n));
        fired += count != 0;
        if (n && !count) break;
        ck_assert_uint_eq(report.chunk_count, 8);
    }
    ck_assert_int_gt(fired, 25);
}
END_TEST

/* Figures of chunks are read where XPU has no doubles, those that are waited for and others. */
START_TEST(no_doubles) {
    mt_card_lack_doubles(1);
    Loop loop(0.5, true);
    for (int i = 0; i < 3; i++) {
        mt_step_report report = loop.step();
        ck_assert(std::isfinite(report.loss));
        ck_assert_uint_eq(report.chunk_count, 8);
    }
}
END_TEST

/* What a GPU that ignores what it is given leaves behind is no result: out of memory at first, then an error to stop at. */
START_TEST(ignored) {
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
END_TEST

/* In an update it is half made: the state is lost, and said to be. */
START_TEST(ignored_update) {
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
END_TEST

/* A batch that lies on the card has come when a chunk of it is used on the host. */
START_TEST(batch_of_the_card_on_the_cpu) {
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
END_TEST

/* Its driver takes up to a millisecond for an answer. */
START_TEST(driver_is_not_asked_in_a_step) {
    Batch batch(8);
    Trainer trainer(options_of(MT_SGD));
    ck_ok(mt_device_set_budget(suite_device(), 256 * MiB));
    mt_backend seam = seam_of(trainer);
    mt_trainer *loop = nullptr;
    ck_ok(mt_trainer_new(&seam, nullptr, &loop));
    ck_ok(mt_trainer_step(loop, batch.get(), nullptr));
    uint64_t before = counters().questions;
    for (int i = 0; i < 3; i++) ck_ok(mt_trainer_step(loop, batch.get(), nullptr));
    ck_assert_uint_eq(counters().questions, before);
    mt_trainer_free(loop);
}
END_TEST

/*
 * A library that was refused a work space and did without has not failed: what fails after it is what it is. cuDNN may do so
 * where the program has unset what keeps its bits.
 */
START_TEST(swallowed_refusals_are_no_errors) {
    Batch batch(8);
    Trainer trainer(options_of(MT_SGD));
    at::globalContext().setDeterministicCuDNN(false);
    mt_card_use_work_space(size_t{1} << 38);
    ck_ok(train(trainer, batch));
    memtrain::tensor(batch.labels()).fill_(77);
    ck_status(train(trainer, batch), MT_ETORCH);
    ck_contains(mt_last_error(), "out of bounds");
}
END_TEST

/* What hides a refusal is one where there was one; handles that could not be made want memory. */
START_TEST(texts) {
    static const struct {
        const char *text;
        bool swallowed;
        mt_status status;
    } cases[] = {
        {"GET was unable to find an engine to execute this computation", true, MT_EDEVMEM},
        {"GET was unable to find an engine to execute this computation", false, MT_ETORCH},
        {"Unable to find a valid cuDNN algorithm to run convolution", true, MT_EDEVMEM},
        {"CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", false,
         MT_EDEVMEM},
        {"cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", false, MT_EDEVMEM},
        {"cuFFT error: CUFFT_ALLOC_FAILED", false, MT_EDEVMEM},
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
        {"level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", false,
         MT_ETORCH},
        {"mat1 and mat2 shapes cannot be multiplied (8x72 and 71x5)", true, MT_ETORCH},
    };
    Batch batch(8);
    const auto &one = cases[_i];
    Trainer trainer(options_of(MT_SGD), {}, [&](Net &net) {
        (void)net.conv1->forward(memtrain::tensor(batch.images()).to(device_of(net)));
        TORCH_CHECK(false, one.text);
    });
    at::globalContext().setDeterministicCuDNN(false);
    mt_card_use_work_space(one.swallowed ? size_t{1} << 38 : 0);
    ck_status(train(trainer, batch), one.status);
    ck_contains(mt_last_error(), one.text);
}
END_TEST

/* Cards before compute capability 8.0 take bfloat16 and have no engine for it: said before a step runs. */
START_TEST(no_bfloat16) {
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
END_TEST

/* The norm of half-precision gradients is larger than half precision can say. */
START_TEST(norm_of_half_precision) {
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
END_TEST

/* A card that is lost is no memory, and the line says what to do. */
START_TEST(lost_card) {
    Batch batch(8);
    Trainer trainer(options_of(MT_SGD));
    ck_ok(train(trainer, batch));
    mt_card_break(1);
    mt_status status = train(trainer, batch);
    ck_assert_msg(status == MT_ETORCH || status == MT_ESTATE, "status %d", status);
    ck_contains(mt_last_error(), "illegal memory access");
    ck_contains(mt_last_error(), "started anew");
    mt_card_break(0);
}
END_TEST

namespace {

/* A batch of two samples in pinned memory, and a model that fails after its copy where it is told to. */
struct PinnedBatch {
    bool fails = false;
    at::Tensor kept, data = at::full({2, 4}, 3.0).pin_memory();
    std::optional<memtrain::Trainer> trainer;
    memtrain::detail::Handle handle{data};
    mt_tensor *tensors[1] = {handle.get()};
    mt_torch_batch rows = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    mt_chunk_result result = chunk_result();
    PinnedBatch() {
        ck_ok(mt_torch_init(nullptr));
        trainer.emplace(
            memtrain::model(std::make_shared<Half>(), {},
                            [this](Half &half, const memtrain::Tensors &given) {
                                kept = given[0];
                                TORCH_CHECK(!fails, "no loss");
                                return memtrain::Output{at::mul(half.weight, kept).sum(), {}};
                            }),
            options_of(MT_SGD));
        rows.tensors = tensors;
        rows.count = 1;
        batch.count = 2;
        batch.data = &rows;
    }
};

} // namespace

/*
 * A batch in pinned memory is the caller's again when a chunk has failed: the card has read it. The first chunk of a step zeroes
 * gradients, which is a kernel that the copy is done before; it is the second that fails.
 */
START_TEST(pinned_batch_of_a_chunk_that_fails) {
    PinnedBatch of;
    ck_ok(mt_begin(of.trainer->torch(), &of.batch));
    ck_ok(mt_accumulate(of.trainer->torch(), 0, 1, 0.5, &of.result));
    of.fails = true;
    ck_status(mt_accumulate(of.trainer->torch(), 1, 1, 0.5, &of.result), MT_ETORCH);
    ck_contains(mt_last_error(), "no loss");
    of.data.fill_(5.0);
    ck_assert_double_eq(of.kept.sum().item().toDouble(), 12.0);
    ck_ok(mt_rollback(of.trainer->torch()));
}
END_TEST

/* The same of an evaluation. */
START_TEST(pinned_batch_of_an_evaluation_that_fails) {
    PinnedBatch of;
    of.fails = true;
    ck_status(mt_evaluate(of.trainer->torch(), &of.batch, 0, 2, &of.result), MT_ETORCH);
    ck_contains(mt_last_error(), "no loss");
    of.data.fill_(5.0);
    ck_assert_double_eq(of.kept.sum().item().toDouble(), 24.0);
}
END_TEST

/* A rollback waits: of the chunks before it some may not have been waited for. */
START_TEST(rollback_waits) {
    PinnedBatch of;
    ck_ok(mt_begin(of.trainer->torch(), &of.batch));
    of.result.deferred = 1;
    ck_ok(mt_accumulate(of.trainer->torch(), 0, 1, 0.5, &of.result));
    uint64_t before = counters().waits;
    ck_ok(mt_rollback(of.trainer->torch()));
    ck_assert_uint_gt(counters().waits, before);
}
END_TEST

/* What the writer of a tensor has given to any stream is done when the tensor is handed over. */
START_TEST(dlpack_waits_for_the_card) {
    ck_ok(mt_device_check(suite_device()));
    at::Tensor tensor = at::ones({2, 3}, at::device(c10::Device(suite_device())));
    for (bool on_card : {true, false}) {
        DLManagedTensor *out = nullptr;
        mt_tensor *in = nullptr;
        memtrain::detail::Handle handle(on_card ? tensor : at::ones({2, 3}));
        ck_ok(mt_tensor_to_dlpack(handle.get(), &out));
        uint64_t before = counters().waits;
        ck_ok(mt_tensor_from_dlpack(out, &in));
        ck_assert_uint_eq(counters().waits - before, on_card);
        mt_tensor_free(in);
    }
}
END_TEST

/*
 * A marked chunk that is one of several brings its gradients to the block by one kernel, where a plain one has autograd add them
 * parameter by parameter, of which six have a gradient here. The update is the same.
 */
START_TEST(gradients_by_block) {
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
END_TEST

/*
 * What libraries take at their first product, and at their first with a bias, and keep is there before a chunk is recorded, of either
 * thread. In the second run the backward pass computes segments again, with their products.
 */
START_TEST(work_spaces_are_taken_first) {
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
END_TEST

/* Processes of a machine: each has the card of its number, or shares one where there are fewer, which is said. */
START_TEST(cards_of_processes) {
    static const struct {
        const char *cards;
        int64_t processes, rank;
        const char *number;
        bool is_told;
    } cases[] = {
        {"4", 4, 3, ":3", false}, {"2", 4, 3, ":1", true}, {"2", 4, 2, ":0", true},
        {"1", 2, 1, ":0", true},  {"2", 1, 0, "", false},
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
    ck_ok(ex_device_open(&flags, nullptr, 0, &device));
    ck_assert_str_eq(device.name, (suite_device() + std::string(one.number)).c_str());
    ck_ok(mt_device_count(suite_device(), &count));
    ck_assert_int_eq(static_cast<int>(count), std::atoi(one.cards));
    std::string words = "see " + std::string(one.cards) + " " + suite_device() + " device";
    ck_assert_int_eq(log.find(words) != std::string::npos, one.is_told);
}
END_TEST

/* The line is said once, not by each process. */
START_TEST(one_process_tells_of_shared_cards) {
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
END_TEST

/* A file has the generators by their device, and a trainer takes them up. */
START_TEST(names_of_generators) {
    Batch batch(8);
    char path[] = "/tmp/check_card.XXXXXX";
    std::string name = suite_on_mps() ? "rng.mps" : std::string("rng.") + suite_device() + ".0";
    mt_safetensors *file = nullptr;
    size_t index = 0;
    Trainer one(options_of(MT_ADAMW)), other(options_of(MT_ADAMW));
    ck_ok(train(one, batch));
    int number = mkstemp(path);
    ck_assert_int_ge(number, 0);
    close(number);
    mt_torch_save_options options = MT_TORCH_SAVE_OPTIONS_INIT;
    options.keep = 0;
    ck_ok(mt_torch_save(one.torch, path, &options));
    ck_ok(mt_safetensors_open(path, &file));
    ck_ok(mt_safetensors_find(file, name.c_str(), &index));
    mt_safetensors_free(file);
    ck_ok(mt_torch_load(other.torch, path, nullptr, 0));
    ck_assert(one.hash() == other.hash());
    ck_assert_int_eq(std::remove(path), 0);
}
END_TEST

/* Out and in again it is the same memory of the same card, which DLPack calls by another name. */
START_TEST(dlpack) {
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
END_TEST

/* What a traced graph calls is not what a module calls: libtorch itself picks the device's convolution. */
START_TEST(convolution_of_a_graph) {
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
END_TEST

/* As on CUDA a kernel takes tensors of one device, and single numbers of the host's. */
START_TEST(tensors_of_two_devices) {
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
END_TEST

/* mt_inject_oom reaches the allocator from outside: the refusal is the allocator's own, and the next request is served. */
START_TEST(requests_of_the_card_are_counted) {
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
END_TEST

/* Each stream has memory of its own: what one has given back no other one gets. */
START_TEST(streams_have_pools) {
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
END_TEST

/* Emptying the cache of one card empties those of all, as CUDA's allocator does. Memory in use stays. */
START_TEST(caches_of_all_cards) {
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
END_TEST

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
START_TEST(every_request_fails) {
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
END_TEST

/*
 * Chunks are copied while the card computes those before, so that slow copies cost a step of eight that of the first chunk. Numbers
 * are those of copies that cost nothing; no more than two chunks are on the card, and the host waits for the card no more often.
 */
START_TEST(copies_beside_kernels) {
    uint64_t time = 0, kernels = 0;
    size_t peaks[2];
    std::string hashes[2];
    for (bool is_slow : {false, true}) {
        Loop loop(0.5, true);
        for (int i = 0; i < 2; i++) loop.step();
        mt_card_counters before = counters();
        const mt_card_costs costs = {10, 1000, is_slow ? uint64_t{8000} << 10 : 0, 0};
        mt_card_start_clock(&costs);
        ck_ok(mt_torch_seed(7));
        ck_ok(mt_device_reset_peak(suite_device()));
        loop.step();
        mt_card_clock clock = {};
        mt_card_read_clock(&clock);
        mt_card_start_clock(nullptr);
        ck_assert_uint_eq(counters().waits - before.waits, 2);
        ck_assert_uint_eq(counters().event_waits - before.event_waits, 6);
        hashes[is_slow] = loop.trainer.hash();
        peaks[is_slow] = memory_on(suite_device()).peak_bytes;
        kernels = clock.kernels;
        time = clock.host;
        if (is_slow) ck_assert_uint_gt(clock.to_card, 8 * 10000);
    }
    ck_assert_uint_le(time, kernels + 20000);
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_uint_eq(peaks[0], peaks[1]);
}
END_TEST

/* The CPU's budget knows of the pinned memory: two slots, each a power of two above 2 x 3 x 8 x 8 floats and 2 labels. */
START_TEST(pinned_memory_is_counted) {
    size_t before = cpu_memory().allocated_bytes, with_slots = 0;
    {
        Loop loop(0.0, true);
        size_t empty = cpu_memory().allocated_bytes;
        loop.step();
        with_slots = cpu_memory().allocated_bytes;
        ck_assert_uint_eq(with_slots - empty, 2 * 2048);
        loop.step();
        ck_assert_uint_eq(cpu_memory().allocated_bytes, with_slots);
    }
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
}
END_TEST

/* Of the first step, in which slots are made. */
START_TEST(every_request_of_a_first_step) {
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
END_TEST

/* A batch that is pinned, on the card, in another order or of nothing gives the numbers of a plain one. */
START_TEST(batches_of_each_kind) {
    ck_ok(mt_torch_init(nullptr));
    at::Tensor rows = at::arange(32, at::kFloat).reshape({8, 4});
    const at::Tensor batches[] = {rows,
                                  rows.pin_memory(),
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
END_TEST

namespace {

/* Eight layers of 512 numbers, of which each saves some that are large enough to be put away. */
struct Chain : torch::nn::Module {
    std::vector<nn::Linear> linears;
    Chain() {
        for (int i = 0; i < 8; i++)
            linears.push_back(register_module("linear" + std::to_string(i), nn::Linear(512, 512)));
    }
};

struct ChainLoop {
    memtrain::Tensors batch;
    std::optional<memtrain::Trainer> trainer;
    explicit ChainLoop(int offload) {
        mt_torch_options options = options_of(MT_SGD);
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        options.offload = offload;
        policy.micro_batch = 4;
        own.policy = &policy;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_seed(3));
        batch = {at::randn({16, 512})};
        trainer.emplace(memtrain::model(std::make_shared<Chain>(), {},
                                        [](Chain &net, const memtrain::Tensors &tensors) {
                                            at::Tensor x = tensors[0];
                                            for (nn::Linear &linear : net.linears)
                                                x = at::sigmoid(linear->forward(x));
                                            return memtrain::Output{x.square().mean(), {}};
                                        }),
                        options, &own);
    }
    std::string hash() const {
        char hash[65];
        ck_ok(mt_torch_state_sha256(trainer->torch(), hash));
        return hash;
    }
};

} // namespace

/* Saved tensors go out and come back while the card computes: slow copies cost little time, and change no bit. */
START_TEST(offload_beside_kernels) {
    uint64_t times[2];
    std::string hashes[2];
    for (int offload : {MT_OFFLOAD_NEVER, MT_OFFLOAD_HOST}) {
        const mt_card_costs costs = {10, 1000, uint64_t{1500} << 7,
                                     10}; /* 1500 a tensor of 8 KiB */
        ChainLoop loop(offload);
        for (int i = 0; i < 3; i++) (void)loop.trainer->step(loop.batch);
        mt_card_counters before = counters();
        mt_card_start_clock(&costs);
        for (int i = 0; i < 2; i++) (void)loop.trainer->step(loop.batch);
        mt_card_clock clock = {};
        mt_card_read_clock(&clock);
        mt_card_start_clock(nullptr);
        ck_assert_uint_eq(counters().waits - before.waits, 4);
        times[offload != MT_OFFLOAD_NEVER] = clock.host;
        hashes[offload != MT_OFFLOAD_NEVER] = loop.hash();
    }
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_uint_le(times[1], times[0] + times[0] / 8);
}
END_TEST

/* What was changed in place keeps the numbers that were saved once it is out, which is when two others have followed it. */
START_TEST(changed_once_it_is_out) {
    ck_ok(mt_torch_init(nullptr));
    auto options = at::device(c10::Device(suite_device()));
    for (bool others_follow : {true, false}) {
        at::Tensor sum, x = at::ones({64, 512}, options).requires_grad_(true), wanted;
        bool is_changed = false;
        auto body = [&] {
            at::Tensor y = x.exp();
            sum = (y * y).sum();
            if (others_follow) sum = sum + x.sin().tanh().tanh().tanh().sum();
            c10::NoGradGuard no_graph;
            if (is_changed) y.add_(1);
        };
        auto call = [](void *user) {
            (*static_cast<decltype(body) *>(user))();
            return MT_OK;
        };
        body();
        sum.backward();
        wanted = x.grad();
        x.mutable_grad() = at::Tensor();
        is_changed = true;
        ck_ok(mt_offload(suite_device(), MT_OFFLOAD_HOST, nullptr, call, &body));
        std::string words;
        try {
            sum.backward();
            ck_assert(x.grad().equal(wanted));
        } catch (const c10::Error &error) {
            words = error.what();
        }
        if (others_follow)
            ck_assert_str_eq(words.c_str(), "");
        else
            ck_contains(words.c_str(), "was on its way to the host");
    }
}
END_TEST

namespace {

/* 36 MiB, three pieces of a sum. */
struct Long : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({9 << 20}));
};

/* Another process that has the same numbers; how many copies have been given when the pieces of a gradient are summed. */
struct Twin {
    std::vector<uint64_t> copies;
    template <class Number> static mt_status sum(void *self, Number *values, size_t n) {
        if (n > 1000) static_cast<Twin *>(self)->copies.push_back(counters().to_host);
        for (size_t i = 0; i < n; i++) values[i] *= 2;
        return MT_OK;
    }
};

} // namespace

/* While a piece is summed the next one is on its way, and none is lost or taken twice. */
START_TEST(sums_of_processes) {
    Twin twin;
    mt_process_group group = MT_PROCESS_GROUP_INIT;
    group.self = &twin;
    group.count = 2;
    group.sum_floats = &Twin::sum<float>;
    group.sum_doubles = &Twin::sum<double>;
    mt_torch_options options = options_of(MT_SGD);
    options.processes = &group;
    ck_ok(mt_torch_init(nullptr));
    auto net = std::make_shared<Long>();
    memtrain::Trainer trainer(
        memtrain::model(net, {},
                        [](Long &self, const memtrain::Tensors &batch) {
                            at::Tensor mean = self.weight.mean();
                            return memtrain::Output{mean * batch[0].mean(), {}};
                        }),
        options);
    for (int i = 0; i < 2; i++) {
        at::Tensor before = net->weight.detach().clone();
        twin.copies.clear();
        (void)trainer.step({at::full({2, 1}, 1e6)});
        ck_assert_uint_eq(twin.copies.size(), 3);
        ck_assert_uint_eq(twin.copies[1] - twin.copies[0], 1);
        ck_assert_uint_eq(twin.copies[2] - twin.copies[1], 0);
        at::Tensor change = (net->weight.detach() - before).cpu();
        ck_assert_double_lt(change[0].item().toDouble(), 0.0);
        ck_assert_double_eq(change.min().item().toDouble(), change.max().item().toDouble());
    }
}
END_TEST

/* ---- the test device's own promises ---- */

namespace {

/* Two streams of the card, a tensor of 1 MiB on it, and one in pinned memory. */
struct Streams {
    c10::Device device{suite_device()};
    c10::impl::VirtualGuardImpl guard{device.type()};
    c10::Stream side = c10::Stream(c10::Stream::DEFAULT, device);
    at::Tensor there, pinned = at::ones({MiB / 4});
    Streams() {
        ck_ok(mt_torch_init(nullptr));
        side = guard.getStreamFromGlobalPool(device);
        there = at::zeros({MiB / 4}, at::device(device));
        pinned = pinned.pin_memory();
        guard.synchronizeDevice(0);
    }
    at::Tensor copied() const {
        c10::StreamGuard on(side);
        return pinned.to(device, /*non_blocking=*/true);
    }
    uint64_t time() const {
        guard.synchronizeDevice(0);
        mt_card_clock clock = {};
        mt_card_read_clock(&clock);
        return clock.host;
    }
};

} // namespace

/* A kernel and a copy of another stream take their time beside each other, and one after the other where an event says so. */
START_TEST(streams_beside_each_other) {
    const mt_card_costs costs = {1, 1000, 800, 10};
    Streams streams;
    mt_card_start_clock(&costs);
    at::Tensor copied = streams.copied();
    streams.there.add_(1);
    ck_assert_uint_eq(streams.time(), 1 + 1000 + 10);

    mt_card_start_clock(&costs);
    copied = streams.copied();
    c10::Event event(streams.device.type());
    event.record(streams.side);
    event.block(streams.guard.getStream(streams.device));
    copied.add_(1);
    ck_assert(!event.query());
    ck_assert_uint_eq(streams.time(), 800 + 1000 + 10);
    ck_assert(event.query());
    ck_assert_double_eq(copied[0].item().toDouble(), 2.0);
}
END_TEST

/* A stream that has not waited for what another one was given finds nothing there yet, and the test device says so. */
START_TEST(forgotten_events) {
    std::string words;
    Streams streams;
    at::Tensor copied = streams.copied();
    try {
        copied.add_(1);
    } catch (const c10::Error &error) {
        words = error.what();
    }
    ck_contains(words.c_str(), "has not waited for it");
}
END_TEST

/* Memory that another stream uses is given to nobody until that one is through, where it was said to be used there. */
START_TEST(memory_that_another_stream_uses) {
    for (bool is_told : {true, false}) {
        const mt_card_costs costs = {0, 1000, 800, 0};
        Streams streams;
        at::Tensor host = at::zeros({MiB / 4}).pin_memory();
        c10::Event event(streams.device.type());
        mt_card_start_clock(&costs);
        streams.there.fill_(3);
        event.record(streams.guard.getStream(streams.device));
        event.block(streams.side);
        {
            c10::StreamGuard on(streams.side);
            host.copy_(streams.there, /*non_blocking=*/true);
        }
        if (is_told)
            streams.guard.recordDataPtrOnStream(streams.there.storage().data_ptr(), streams.side);
        const void *before = streams.there.const_data_ptr();
        streams.there = at::Tensor();
        streams.there = at::zeros({MiB / 4}, at::device(streams.device));
        ck_assert_int_eq(streams.there.const_data_ptr() == before, !is_told);
        ck_assert_uint_eq(streams.time(), 2000); /* of two kernels, the copy beside the second */
        ck_assert_int_eq(host[0].item().toDouble() == 3.0, is_told);
    }
}
END_TEST

namespace {

/* Under a sanitizer its own library has to come first. */
bool can_preload() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__APPLE__)
    return false;
#else
    return true;
#endif
}

/* The exit status of this program as one with a card of that kind; -1: that cannot be done. */
int run_with(const std::string &kind, char **argv) {
    char folder[PATH_MAX];
    if (!can_preload() || !realpath(argv[0], folder)) return -1;
    std::string library = std::string(dirname(folder)) + "/libcard_" + kind + ".so";
    if (access(library.c_str(), R_OK)) return -1;
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_PRELOAD", library.c_str(), 1);
        setenv("MT_TEST_DEVICE", kind.c_str(), 1);
        execv(argv[0], argv);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

} // namespace

int main(int, char **argv) {
    if (!mt_card_read) {
        int failed = 0;
        for (const char *kind : {"cuda", "xpu", "mps"}) {
            int status = run_with(kind, argv);
            if (status < 0) suite_skip(kind, "the test device cannot be loaded before all else");
            failed |= status > 0;
        }
        return failed;
    }
    Suite *suite = suite_create("card");
    TCase *cases = suite_case(suite, suite_device());
    tcase_add_test(cases, as_on_the_cpu);
    tcase_add_test(cases, names_of_generators);
    tcase_add_test(cases, norm_of_a_sample);
    tcase_add_test(cases, norm_at_the_end_of_a_segment);
    tcase_add_test(cases, clipping_waits_once);
    tcase_add_test(cases, waits_twice_a_step);
    tcase_add_test(cases, same_figures_without_waiting);
    tcase_add_loop_test(cases, every_request_of_deferred_chunks, 0, 2);
    tcase_add_test(cases, batch_of_the_card_on_the_cpu);
    tcase_add_loop_test(cases, every_request_fails, 0, 2);
    tcase_add_test(cases, tensors_of_two_devices);
    tcase_add_test(cases, requests_of_the_card_are_counted);
    if (suite_on_mps()) {
        tcase_add_test(cases, ignored);
        tcase_add_test(cases, ignored_update);
    } else {
        tcase_add_loop_test(cases, budget_is_the_allocators_limit, 0, 2);
        tcase_add_test(cases, driver_is_not_asked_in_a_step);
        tcase_add_test(cases, swallowed_refusals_are_no_errors);
        tcase_add_loop_test(cases, texts, 0, 21);
        tcase_add_test(cases, no_bfloat16);
        tcase_add_test(cases, norm_of_half_precision);
        tcase_add_test(cases, lost_card);
        tcase_add_test(cases, gradients_by_block);
        tcase_add_test(cases, pinned_batch_of_a_chunk_that_fails);
        tcase_add_test(cases, pinned_batch_of_an_evaluation_that_fails);
        tcase_add_test(cases, rollback_waits);
        tcase_add_test(cases, dlpack_waits_for_the_card);
        if (suite_on_xpu())
            tcase_add_test(cases, no_doubles);
        else
            tcase_add_loop_test(cases, work_spaces_are_taken_first, 0, 2);
        tcase_add_loop_test(cases, cards_of_processes, 0, 5);
        tcase_add_test(cases, one_process_tells_of_shared_cards);
        tcase_add_test(cases, dlpack);
        tcase_add_test(cases, convolution_of_a_graph);
        tcase_add_test(cases, copies_beside_kernels);
        tcase_add_test(cases, pinned_memory_is_counted);
        tcase_add_test(cases, every_request_of_a_first_step);
        tcase_add_test(cases, batches_of_each_kind);
        tcase_add_test(cases, offload_beside_kernels);
        tcase_add_test(cases, changed_once_it_is_out);
        tcase_add_test(cases, sums_of_processes);
        tcase_add_test(cases, streams_have_pools);
        tcase_add_test(cases, caches_of_all_cards);
        tcase_add_test(cases, streams_beside_each_other);
        tcase_add_test(cases, forgotten_events);
        tcase_add_test(cases, memory_that_another_stream_uses);
    }
    return suite_run(suite);
}
