/*
 * check_card_streams.cpp - what the shim does beside a card that computes, on the test device: how often it waits, copies,
 * pinned memory, saved tensors on their way, sums of processes, streams and events.
 */
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memtrain/processes.h>
#include <memtrain/tensor.h>
#include <memtrain/trainer.hpp>

#include "card_suite.hpp"
#include "contrastive_subject.hpp"

using namespace card_suite;

/* The norm of all gradients is waited for once, not once a parameter. */
TEST(suite_device(), clipping_waits_once) {
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
    std::string hash() const { return trainer.hash(); }
    mt_step_report step() {
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(mt_trainer_step(loop, batch.get(), &report));
        return report;
    }
    mt_eval_report evaluate() {
        mt_eval_report report = MT_EVAL_REPORT_INIT;
        ck_ok(mt_trainer_evaluate(loop, batch.get(), &report));
        return report;
    }
};

/* The card is waited for once for all losses, and once for the update. Where MPS clips, its norm comes with the losses. */
TEST(suite_device(), waits_twice_a_step) {
    for (double clip : {0.0, 0.5}) {
        Loop loop(clip, true);
        loop.step();
        uint64_t before = counters().waits;
        loop.step();
        ck_assert_uint_eq(counters().waits - before, 2);
    }
}

/* Its figures are read at its end, and are those of one that waits for each chunk. */
TEST(suite_device(), an_evaluation_waits_once) {
    Loop waits(0.0, false), defers(0.0, true);
    for (int i = 0; i < 3; i++) {
        uint64_t before = counters().waits;
        mt_eval_report b = defers.evaluate();
        uint64_t waited = counters().waits - before;
        mt_eval_report a = waits.evaluate();
        if (i > 0) ck_assert_uint_eq(waited, 1); /* the first chunks of a size are timed */
        ck_assert_uint_eq(b.chunk_count, 8);
        ck_assert_mem_eq(&a.loss, &b.loss, sizeof a.loss);
        ck_assert_mem_eq(a.metrics, b.metrics, sizeof a.metrics);
        ck_assert_double_gt(b.seconds, 0.0);
    }
}

/* A loss over sixteen pairs, in eight chunks, with dropout. */
struct PairsLoop {
    networks::Pairs pairs;
    contrastive_subject::Subject subject;
    mt_trainer *loop = nullptr;
    explicit PairsLoop(bool collects)
        : pairs(16, contrastive_subject::towers(0.2)),
          subject(contrastive_subject::towers(0.2), options_of(MT_ADAMW)) {
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        policy.micro_batch = 2;
        own.policy = &policy;
        if (!collects) subject.seam.collect = nullptr;
        ck_ok(mt_trainer_new(&subject.seam, &own, &loop));
    }
    ~PairsLoop() { mt_trainer_free(loop); }
    std::string hash() const { return subject.hash(); }
    PairsLoop(const PairsLoop &) = delete;
    PairsLoop &operator=(const PairsLoop &) = delete;

    mt_step_report step() {
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(mt_trainer_step(loop, &pairs.batch, &report));
        ck_assert_uint_eq(report.chunk_count, 8);
        return report;
    }
};

/* The embeddings of the batch come first, and nobody waits for them either. */
TEST(suite_device(), waits_twice_a_step_of_pairs) {
    PairsLoop loop(true);
    for (int i = 0; i < 3; i++) loop.step();
    uint64_t before = counters().waits;
    loop.step();
    ck_assert_uint_eq(counters().waits - before, 2);
}

/* Steps with the same random numbers have the same figures and bits; the sum of their metric. */
template <class AnyLoop> double same_steps(AnyLoop &waits, AnyLoop &defers, int steps) {
    double metrics = 0;
    for (int i = 0; i < steps; i++) {
        /* one random generator serves both */
        ck_ok(mt_torch_seed(static_cast<uint64_t>(i)));
        mt_step_report a = waits.step();
        ck_ok(mt_torch_seed(static_cast<uint64_t>(i)));
        mt_step_report b = defers.step();
        ck_assert_double_eq(a.loss, b.loss);
        ck_assert_mem_eq(a.metrics, b.metrics, sizeof a.metrics);
        ck_assert_mem_eq(&a.grad_norm, &b.grad_norm, sizeof a.grad_norm); /* NaN without clipping */
        ck_assert_uint_eq(a.chunk_count, b.chunk_count);
        ck_assert_double_gt(b.seconds, 0.0);
        metrics += b.metrics[0];
    }
    ck_assert(waits.hash() == defers.hash());
    return metrics;
}

/*
 * Each stride-th request of a step is refused, after some steps that met nothing. It goes through, with the bits of one that met
 * nothing. How many were refused.
 */
template <class Make> int every_request(Make make, int steps, uint64_t stride) {
    int fired = 0;
    std::string expected;
    for (uint64_t n = 0;; n += n ? stride : 1) {
        auto loop = make();
        ck_ok(mt_torch_seed(5));
        for (int i = 0; i < steps; i++) loop.step();
        uint64_t count = 0;
        ck_ok(mt_inject_oom(n, 0));
        mt_step_report report = loop.step();
        mt_injected(nullptr, &count);
        ck_ok(mt_inject_oom(0, 0));
        if (!n) expected = loop.hash();
        ck_assert_msg(loop.hash() == expected, "request %llu: other bits",
                      static_cast<unsigned long long>(n));
        fired += count != 0;
        if (n && !count) return fired;
        ck_assert_uint_eq(report.chunk_count, 8);
    }
}

TEST(suite_device(), same_figures_of_pairs_without_waiting) {
    PairsLoop waits(false), defers(true);
    ck_assert_double_gt(same_steps(waits, defers, 5), 0.0);
}

/* The embeddings' too. */
TEST(suite_device(), every_request_of_pairs_without_waiting) {
    uint64_t stride = getenv("MT_TEST_SLOW") ? 11 : 101; /* of some 2,400 */
    ck_assert_int_gt(every_request([] { return PairsLoop(true); }, 3, stride), 10);
}

/* A metric that the model gives on the host is neither copied there and back, nor waited for. */
TEST(suite_device(), metrics_on_the_host) {
    Batch batch(16);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    policy.micro_batch = 2;
    own.policy = &policy;
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_seed(7));
    memtrain::Trainer trainer(
        memtrain::model(std::make_shared<torch::nn::LinearImpl>(3 * 8 * 8, 5), {"count"},
                        [](torch::nn::LinearImpl &net, const memtrain::Tensors &tensors) {
                            at::Tensor logits = net.forward(tensors[0].flatten(1));
                            return memtrain::Output{
                                at::cross_entropy_loss(logits, tensors[1]),
                                at::full({1}, static_cast<double>(logits.size(0)),
                                         at::device(at::kCPU).dtype(at::kDouble))};
                        }),
        options_of(MT_SGD), &own);
    memtrain::Tensors tensors = {memtrain::tensor(batch.images()),
                                 memtrain::tensor(batch.labels())};
    for (int i = 0; i < 2; i++) ck_assert_double_eq(trainer.step(tensors).metrics[0], 1.0);
    uint64_t before = counters().waits;
    ck_assert_double_eq(trainer.step(tensors).metrics[0], 1.0);
    ck_assert_uint_eq(counters().waits - before, 2);
}

/* A norm that came with the losses is not that of a gradient that was changed since. */
TEST(suite_device(), norm_of_a_gradient_that_is_changed) {
    double norms[2];
    for (int changes = 0; changes < 2; changes++) {
        Batch batch(4);
        Trainer trainer(options_of(MT_SGD, 0.5));
        mt_apply_result applied = apply_result();
        ck_ok(mt_begin(trainer.torch, batch.get()));
        mt_chunk_result result = chunk_result();
        result.deferred = 1;
        ck_ok(mt_accumulate(trainer.torch, 0, 4, 1.0, &result));
        ck_assert_int_eq(result.deferred, 1);
        ck_ok(mt_collect(trainer.torch, &result));
        if (changes)
            for (at::Tensor &parameter : trainer.net->parameters()) {
                c10::NoGradGuard no_grad;
                parameter.mutable_grad().mul_(4);
            }
        ck_ok(mt_apply(trainer.torch, &applied));
        norms[changes] = applied.grad_norm;
    }
    ck_assert_double_eq_tol(norms[1], 4 * norms[0], 1e-5 * norms[1]);
}

/* Nothing else changes by that: losses, metrics and weights have the same bits. */
TEST(suite_device(), same_figures_without_waiting) {
    for (int keep : {MT_KEEP_AUTO, MT_KEEP_ALWAYS}) {
        Loop waits(0.5, false, keep), defers(0.5, true, keep);
        same_steps(waits, defers, 4);
    }
}

/* Each chunk of two counts 2^25 + 2, which float32 has not. */
struct Counts {
    Batch batch{16};
    std::shared_ptr<torch::nn::LinearImpl> net =
        std::make_shared<torch::nn::LinearImpl>(3 * 8 * 8, 5);
    std::optional<memtrain::Trainer> trainer;

    mt_status make() {
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        policy.micro_batch = 2;
        auto loss = [](torch::nn::LinearImpl &linear, const memtrain::Tensors &tensors) {
            at::Tensor logits = linear.forward(tensors[0].flatten(1));
            return memtrain::Output{at::cross_entropy_loss(logits, tensors[1]),
                                    at::full({1}, 33554434, logits.options().dtype(at::kLong))};
        };
        try {
            trainer.emplace(memtrain::model(net, {"count"}, loss), options_of(MT_SGD), policy);
        } catch (const memtrain::Error &error) {
            return error.status;
        }
        return MT_OK;
    }

    double told() {
        memtrain::Tensors tensors = {memtrain::tensor(batch.images()),
                                     memtrain::tensor(batch.labels())};
        ck_ok(make());
        for (int i = 0; i < 2; i++) (void)trainer->step(tensors); /* whose chunks are waited for */
        return trainer->step(tensors).metrics[0];
    }
};

/* Figures lie on the card in doubles where it has some: there a count above 2^24 stays what it is. */
TEST_LOOP_IF(!suite_on_mps(), "MPS never has doubles", suite_device(), figures_in_doubles, 2) {
    ck_ok(mt_torch_init(nullptr));
    mt_card_lack_doubles(_i);
    ck_assert_double_eq(Counts().told(), _i ? 16777216.0 : 16777217.0);
}

/* A card that is full when it is asked for doubles is not one without. */
TEST_IF(!suite_on_mps(), "MPS never has doubles", suite_device(), doubles_after_a_refusal) {
    ck_ok(mt_torch_init(nullptr));
    uint64_t fired = 1;
    for (uint64_t n = 1; fired; n++) {
        Counts counts;
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = counts.make();
        mt_injected(nullptr, &fired);
        ck_ok(mt_inject_oom(0, 0));
        ck_status(status, fired ? MT_EDEVMEM : MT_OK);
    }
    ck_assert_double_eq(Counts().told(), 16777217.0);
}

/* Nor is one that is lost then: at any conversion. */
TEST_IF(!suite_on_mps(), "MPS never has doubles", suite_device(), doubles_after_a_loss) {
    static int left = 0;
    ck_ok(mt_torch_init(nullptr));
    auto lose = [](const at::RecordFunction &call) -> std::unique_ptr<at::ObserverContext> {
        if (!std::strcmp(call.name(), "aten::_to_copy") && --left == 0) mt_card_break(1);
        return nullptr;
    };
    auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(+lose));
    int n = 0;
    for (mt_status status = MT_ETORCH; status != MT_OK; mt_card_break(0)) {
        left = ++n;
        status = Counts().make();
        ck_assert_int_eq(status, left > 0 ? MT_OK : MT_ETORCH);
        if (status != MT_OK) ck_contains(mt_last_error(), "started anew");
    }
    ck_assert_int_gt(n, 1);
    at::removeCallback(handle);
    ck_assert_double_eq(Counts().told(), 16777217.0);
}

/* Figures of chunks are read where the card has no doubles, those that are waited for and others. */
TEST_IF(suite_on_xpu() || suite_on_mps(), "CUDA always has doubles", suite_device(), no_doubles) {
    mt_card_lack_doubles(1);
    ck_ok(mt_device_check(suite_device()));
    at::Tensor mask = at::ones({2, 2}, at::device(c10::Device(suite_device())));
    ck_assert(
        memtrain::intersection_union(mask, mask).cpu().to(at::kFloat).equal(at::full({2}, 4.0)));
    Loop loop(0.5, true);
    for (int i = 0; i < 3; i++) {
        mt_step_report report = loop.step();
        ck_assert(std::isfinite(report.loss));
        ck_assert_uint_eq(report.chunk_count, 8);
    }
}

TEST_LOOP(suite_device(), every_request_of_deferred_chunks, 2) {
    int keep = _i ? MT_KEEP_ALWAYS : MT_KEEP_NEVER;
    uint64_t stride = getenv("MT_TEST_SLOW") ? 1 : 4;
    ck_assert_int_gt(every_request([keep] { return Loop(0.5, true, keep); }, 1, stride), 25);
}

/*
 * Each stride-th request of an evaluation is refused, once or with all after it. One that goes through has the figures of one that
 * met nothing. Else memory has run out. The weights stay, and the next evaluation has these figures too. Of a first evaluation
 * some chunks are waited for, and those that are not are run again alone.
 */
TEST_LOOP(suite_device(), every_request_of_an_evaluation, 4) {
    const bool persistent = _i % 2, first = _i / 2;
    uint64_t stride = getenv("MT_TEST_SLOW") ? 1 : 3;
    int fired = 0;
    Loop peaceful(0.0, true);
    mt_eval_report expected = peaceful.evaluate();
    auto is_expected = [&](const mt_eval_report &report) {
        ck_assert_mem_eq(&report.loss, &expected.loss, sizeof expected.loss);
        ck_assert_mem_eq(report.metrics, expected.metrics, sizeof expected.metrics);
        ck_assert_uint_eq(report.samples, 16);
    };
    for (uint64_t n = 1, count = 1; count; n += stride) {
        Loop loop(0.0, true);
        for (int i = 0; i < (first ? 0 : 2); i++) loop.evaluate();
        mt_eval_report report = MT_EVAL_REPORT_INIT;
        std::string before = loop.hash();
        ck_ok(mt_inject_oom(n, persistent));
        mt_status status = mt_trainer_evaluate(loop.loop, loop.batch.get(), &report);
        mt_injected(nullptr, &count);
        ck_ok(mt_inject_oom(0, 0));
        fired += count != 0;
        ck_status(status, persistent && count ? MT_EDEVMEM : MT_OK);
        if (status == MT_OK) is_expected(report);
        ck_assert_msg(loop.hash() == before, "request %llu: other bits",
                      static_cast<unsigned long long>(n));
        is_expected(loop.evaluate());
    }
    ck_assert_int_gt(fired, 10);
}

namespace {

/* Counts its chunks in a buffer and in a parameter, in evaluations too. */
struct Counting : torch::nn::Module {
    nn::Linear layer{register_module("layer", nn::Linear(3 * 8 * 8, 5))};
    at::Tensor chunks = register_buffer("chunks", at::zeros({1}));
    at::Tensor average = register_parameter("average", at::zeros({1}), /*requires_grad=*/false);
};

} // namespace

/* Of an evaluation that begins anew because memory ran out late, what a model writes is written once. */
TEST_LOOP(suite_device(), written_once_in_an_evaluation, 2) {
    Batch batch(16);
    const memtrain::Tensors tensors = {memtrain::tensor(batch.images()),
                                       memtrain::tensor(batch.labels())};
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.micro_batch = 2;
    int fired = 0;
    ck_ok(mt_torch_init(nullptr));
    for (uint64_t n = 1, count = 1; count; n += 3) {
        auto net = std::make_shared<Counting>();
        memtrain::Trainer trainer(
            memtrain::model(net, {},
                            [](Counting &own, const memtrain::Tensors &of) {
                                c10::NoGradGuard no_grad;
                                own.chunks.add_(1);
                                own.average.add_(1);
                                at::Tensor out = own.layer(of[0].flatten(1));
                                return memtrain::Output{at::cross_entropy_loss(out, of[1]), {}};
                            }),
            options_of(MT_SGD), policy);
        mt_status status = MT_OK;
        for (int i = 0; i < 2; i++) (void)trainer.evaluate(tensors);
        ck_ok(mt_inject_oom(n, _i));
        try {
            (void)trainer.evaluate(tensors);
        } catch (const memtrain::Error &error) {
            status = error.status;
        }
        mt_injected(nullptr, &count);
        ck_ok(mt_inject_oom(0, 0));
        fired += count != 0;
        ck_status(status, _i && count ? MT_EDEVMEM : MT_OK);
        double expected = status == MT_OK ? 24 : 16;
        ck_assert_msg(net->chunks.item().toDouble() == expected &&
                          net->average.item().toDouble() == expected,
                      "request %llu: %g and %g chunks", static_cast<unsigned long long>(n),
                      net->chunks.item().toDouble(), net->average.item().toDouble());
    }
    ck_assert_int_gt(fired, 10);
}

/* Its driver takes up to a millisecond for an answer. A budget is set, or there is that by default. */
TEST_LOOP(suite_device(), driver_is_not_asked_in_a_step, 2) {
    Batch batch(8);
    Trainer trainer(options_of(MT_SGD));
    if (_i) ck_ok(mt_device_set_budget(suite_device(), 256 * MiB));
    mt_backend seam = seam_of(trainer);
    mt_trainer *loop = nullptr;
    ck_ok(mt_trainer_new(&seam, nullptr, &loop));
    ck_ok(mt_trainer_step(loop, batch.get(), nullptr));
    uint64_t before = counters().questions;
    for (int i = 0; i < 3; i++) ck_ok(mt_trainer_step(loop, batch.get(), nullptr));
    ck_assert_uint_eq(counters().questions, before);
    mt_trainer_free(loop);
}

namespace {

/*
 * A batch of two samples that the card copies while the host goes on: in pinned memory, on MPS in any. And a model that fails after
 * its copy where it is told to.
 */
struct LentBatch {
    bool fails = false;
    std::function<void()> before; /* the next forward pass */
    at::Tensor kept, data = at::full({2, 4}, 3.0);
    std::optional<memtrain::Trainer> trainer;
    memtrain::detail::Handle handle{data = suite_on_mps() ? data : data.pin_memory()};
    mt_tensor *tensors[1] = {handle.get()};
    mt_torch_batch rows = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    mt_chunk_result result = chunk_result();
    LentBatch() {
        ck_ok(mt_torch_init(nullptr));
        trainer.emplace(
            memtrain::model(std::make_shared<Half>(), {},
                            [this](Half &half, const memtrain::Tensors &given) {
                                if (auto call = std::exchange(before, {})) call();
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
 * A batch is the caller's again when a chunk has failed: the card has read it. The first chunk of a step zeroes gradients, which is
 * a kernel that the copy is done before; it is the second that fails.
 */
TEST(suite_device(), batch_of_a_chunk_that_fails) {
    LentBatch of;
    ck_ok(mt_begin(of.trainer->torch(), &of.batch));
    ck_ok(mt_accumulate(of.trainer->torch(), 0, 1, 0.5, &of.result));
    of.fails = true;
    ck_status(mt_accumulate(of.trainer->torch(), 1, 1, 0.5, &of.result), MT_ETORCH);
    ck_contains(mt_last_error(), "no loss");
    of.data.fill_(5.0);
    ck_assert_double_eq(of.kept.sum().item().toDouble(), 12.0);
    ck_ok(mt_rollback(of.trainer->torch()));
}

/* The same of an evaluation. */
TEST(suite_device(), batch_of_an_evaluation_that_fails) {
    LentBatch of;
    of.fails = true;
    ck_status(mt_evaluate(of.trainer->torch(), &of.batch, 0, 2, &of.result), MT_ETORCH);
    ck_contains(mt_last_error(), "no loss");
    of.data.fill_(5.0);
    ck_assert_double_eq(of.kept.sum().item().toDouble(), 24.0);
}

/* And of one that a model makes within another, and goes on from. */
TEST(suite_device(), batch_of_an_evaluation_within_another) {
    LentBatch of;
    at::Tensor inner;
    memtrain::detail::Handle outer(at::ones({2, 4}));
    mt_tensor *tensors[] = {outer.get()};
    mt_torch_batch rows = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    rows.tensors = tensors;
    rows.count = 1;
    batch.count = 2;
    batch.data = &rows;
    of.before = [&] {
        of.fails = true;
        ck_status(mt_evaluate(of.trainer->torch(), &of.batch, 0, 2, &of.result), MT_ETORCH);
        ck_contains(mt_last_error(), "no loss");
        of.fails = false;
        of.data.fill_(5.0);
        inner = of.kept;
    };
    ck_ok(mt_evaluate(of.trainer->torch(), &batch, 0, 2, &of.result));
    ck_assert_double_eq(inner.sum().item().toDouble(), 24.0);
}

/* A rollback waits: of the chunks before it some may not have been waited for. */
TEST(suite_device(), rollback_waits) {
    LentBatch of;
    ck_ok(mt_begin(of.trainer->torch(), &of.batch));
    of.result.deferred = 1;
    ck_ok(mt_accumulate(of.trainer->torch(), 0, 1, 0.5, &of.result));
    uint64_t before = counters().waits;
    ck_ok(mt_rollback(of.trainer->torch()));
    ck_assert_uint_gt(counters().waits, before);
}

/* So do an update without a gradient, and the end of a trainer within a step. */
TEST_LOOP(suite_device(), others_wait, 2) {
    LentBatch of;
    mt_apply_result applied = MT_APPLY_RESULT_INIT;
    ck_ok(mt_begin(of.trainer->torch(), &of.batch));
    of.result.deferred = 1;
    ck_ok(mt_accumulate(of.trainer->torch(), 0, 2, _i ? 0.5 : 0.0, &of.result));
    uint64_t before = counters().waits;
    if (_i)
        of.trainer.reset();
    else
        ck_ok(mt_apply(of.trainer->torch(), &applied));
    ck_assert_uint_gt(counters().waits, before);
}

/* The test device tells who gives memory back that MPS still reads, or hands it what would be a temporary tensor. */
TEST_IF(suite_on_mps(), "MPS alone reads the host's memory where it lies", suite_device(),
        memory_that_mps_still_reads) {
    ck_ok(mt_torch_init(nullptr));
    at::Tensor rows = at::ones({4, 2});
    auto sent = [](const at::Tensor &from) {
        return from.to(c10::Device(suite_device()), from.scalar_type(), /*non_blocking=*/true);
    };
    ck_assert_int_eq(signal_of([&] { (void)sent(rows.t()); }), SIGABRT);
    ck_assert_int_eq(signal_of([&] {
                         at::Tensor there = sent(rows.clone());
                         there.add_(1);
                     }),
                     SIGABRT);
    ck_assert_int_eq(signal_of([&] { (void)sent(rows).add_(1); }), 0);
}

/* What the writer of a tensor has given to any stream is done when the tensor is handed over. */
TEST_IF(!suite_on_mps(), "DLPack brings no tensors of MPS in", suite_device(),
        dlpack_waits_for_the_card) {
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

/*
 * Chunks are copied while the card computes those before, so that slow copies cost a step of eight that of the first chunk. Numbers
 * are those of copies that cost nothing; no more than two chunks are on the card, and the host waits for the card no more often.
 */
TEST_IF(!suite_on_mps(), "MPS copies on the stream that computes", suite_device(),
        copies_beside_kernels) {
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

/* The CPU's budget knows of the pinned memory: two slots, each a power of two above 2 x 3 x 8 x 8 floats and 2 labels. */
TEST_IF(!suite_on_mps(), "on MPS there are no slots of pinned memory", suite_device(),
        pinned_memory_is_counted) {
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
TEST_IF(!suite_on_mps(), "MPS copies on the stream that computes", suite_device(),
        offload_beside_kernels) {
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

/* What was changed in place keeps the numbers that were saved once it is out, which is when two others have followed it. */
TEST_IF(!suite_on_mps(), "MPS copies on the stream that computes", suite_device(),
        changed_once_it_is_out) {
    ck_ok(mt_torch_init(nullptr));
    mt_card_let_race(1);
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
TEST_IF(!suite_on_mps(), "gradients of MPS are not copied in pieces", suite_device(),
        sums_of_processes) {
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
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(),
        streams_beside_each_other) {
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

/* A stream that has not waited for what another one was given finds nothing there yet, and the test device says so. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(), forgotten_events) {
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

/* Nor may a stream write to what another one is still reading. After an event that is over it may. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(), forgotten_readers) {
    for (bool has_event : {false, true}) {
        std::string words;
        Streams streams;
        at::Tensor host = at::zeros({MiB / 4}).pin_memory();
        {
            c10::StreamGuard on(streams.side);
            host.copy_(streams.there, /*non_blocking=*/true);
        }
        if (has_event) {
            c10::Event event(streams.device.type());
            event.record(streams.side);
            event.block(streams.guard.getStream(streams.device));
        }
        try {
            streams.there.add_(1);
        } catch (const c10::Error &error) {
            words = error.what();
        }
        ck_assert_int_eq(words.find("has not waited for it") == std::string::npos, has_event);
        streams.guard.synchronizeDevice(0);
    }
}

/* Memory that another stream uses is given to nobody until that one is through, where it was said to be used there. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(),
        memory_that_another_stream_uses) {
    for (bool is_told : {true, false}) {
        mt_card_let_race(!is_told);
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

int main(int, char **argv) {
    return card_main("card_streams", argv);
}
