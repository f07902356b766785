/*
 * check_card_waits.cpp - how often the shim waits for a card that computes, and asks its driver, on the test device: steps,
 * evaluations and pairs whose figures are read at their end, in doubles or without, and requests of them that fail.
 */
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

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

/* Counts of pixels are doubles wherever the device has some: a request that is refused is told, and none of them is lost. */
TEST_IF(!suite_on_mps(), "MPS never has doubles", suite_device(), counts_of_pixels_in_doubles) {
    ck_ok(mt_device_check(suite_device()));
    at::Tensor counts, mask = at::ones({2, 2}, at::device(c10::Device(suite_device())));
    uint64_t n = 1;
    for (; !counts.defined(); n++) {
        ck_ok(mt_inject_oom(n, 0));
        try {
            counts = memtrain::intersection_union(mask, mask);
        } catch (const c10::OutOfMemoryError &) {
            /* the n-th of its requests */
        }
        ck_ok(mt_inject_oom(0, 0));
    }
    ck_assert_uint_gt(n, 2);
    ck_assert(counts.scalar_type() == at::kDouble);
    ck_assert(counts.cpu().equal(at::full({2}, 4.0, at::kDouble)));
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

int main(int, char **argv) {
    return card_main("card_waits", argv);
}
