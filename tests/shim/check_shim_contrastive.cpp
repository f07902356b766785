/*
 * check_shim_contrastive.cpp - a loss over pairs by cached embeddings: the gradients of the whole batch,
 * the random numbers of the first pass in the second, the rest of the library beside it, errors and evaluation.
 */
#include <cmath>
#include <map>
#include <numeric>

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>

#include <memtrain/trainer.h>

#include "contrastive_subject.hpp"

using namespace contrastive_subject;

namespace {

c10::Device device_of(const Subject &s) {
    return s.net->parameters()[0].device();
}

/* Loss and gradients of the batch in one graph, whose chunks draw their random numbers in this order. */
struct Whole {
    double loss, metric;
    std::vector<at::Tensor> gradients;
};

Whole by_hand(const Subject &s, const Pairs &pairs, const std::vector<size_t> &chunks) {
    std::vector<at::Tensor> images, texts;
    int64_t first = 0;
    s.net->train();
    for (size_t count : chunks) {
        auto n = static_cast<int64_t>(count);
        images.push_back(s.net->image(pairs.pictures.narrow(0, first, n).to(device_of(s))));
        texts.push_back(s.net->text(pairs.words.narrow(0, first, n).to(device_of(s))));
        first += n;
    }
    memtrain::Output all = s.net->join({at::cat(images), at::cat(texts)});
    s.net->zero_grad(/*set_to_none=*/false);
    all.loss.backward();
    Whole whole = {all.loss.item().toDouble(), all.metrics.item().toDouble(), {}};
    for (const at::Tensor &p : s.net->parameters())
        if (p.requires_grad()) whole.gradients.push_back(p.grad().clone());
    return whole;
}

/* Norm of the difference over the norm, of all gradients together. */
double difference(const Subject &s, const Whole &whole) {
    double square = 0, size = 0;
    size_t i = 0;
    for (const at::Tensor &p : s.net->parameters()) {
        if (!p.requires_grad()) continue;
        const at::Tensor &expected = whole.gradients[i++];
        double most = expected.abs().max().item().toDouble();
        double off = (p.grad() - expected).abs().max().item().toDouble();
        ck_assert_msg(off <= 1e-3 * most + 1e-12, "gradient %zu is off by %g of %g", i - 1, off,
                      most);
        square += std::pow((p.grad() - expected).norm().item().toDouble(), 2);
        size += std::pow(expected.norm().item().toDouble(), 2);
    }
    ck_assert_uint_eq(i, whole.gradients.size());
    return std::sqrt(square / size);
}

at::Generator generator(const Subject &s) {
    return at::globalContext().defaultGenerator(device_of(s));
}

const std::vector<size_t> cuts[] = {
    std::vector<size_t>(8, 16), {128}, {40, 1, 33, 2, 52}, {64, 64}, std::vector<size_t>(128, 1),
};

/* ---- the gradient of the batch -------------------------------------------------------------------- */

/* Tensors of simulated cards are the CPU's. */
bool has_doubles() {
    ck_ok(mt_torch_init(nullptr));
    if (!suite_on_card()) return true;
    at::Tensor number = at::zeros({1}, at::device(c10::Device(suite_device())));
    try {
        (void)number.to(at::kDouble);
    } catch (const std::exception &) {
        return false;
    }
    return true;
}

/* cut, dropout, a parameter that both halves use, double: also the random numbers end where they should. */
TEST_LOOP("gradients", gradients_are_the_batchs, 8 * LENGTH(cuts)) {
    const std::vector<size_t> &chunks = cuts[static_cast<size_t>(_i) / 8];
    bool dropout = _i & 1, shared = _i & 2, exact = (_i & 4) && has_doubles();
    at::ScalarType type = exact ? at::kDouble : at::kFloat;
    TowersOptions o = towers(dropout ? 0.2 : 0.0, shared);
    Subject s(o, options_of(MT_SGD), type);
    Pairs pairs(128, o, type);
    at::Tensor state = generator(s).get_state();
    Whole whole = by_hand(s, pairs, chunks);
    at::Tensor after = generator(s).get_state();
    generator(s).set_state(state);
    Sums sums = run(s, pairs, chunks);
    double tolerance = exact ? 1e-12 : 1e-5;
    double off = difference(s, whole);
    ck_assert_msg(off < tolerance, "off by %g", off);
    ck_assert_double_eq(sums.units, 128.0);
    ck_assert_double_lt(std::abs(sums.loss / 128 / whole.loss - 1), tolerance);
    ck_assert_double_eq(sums.metric, whole.metric);
    ck_assert(generator(s).get_state().equal(after));
    ck_ok(mt_rollback(s.torch));
    ck_assert(generator(s).get_state().equal(state));
}

/* The loss of chunks alone is another: what the test above compares with is not met by accident. */
TEST("gradients", chunks_alone_are_another_loss) {
    TowersOptions o = towers(0.0);
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(128, o);
    Whole whole = by_hand(s, pairs, {128});
    double alone = 0;
    for (int64_t i = 0; i < 8; i++) {
        at::Tensor pictures = pairs.pictures.narrow(0, 16 * i, 16).to(device_of(s));
        at::Tensor words = pairs.words.narrow(0, 16 * i, 16).to(device_of(s));
        alone += s.net->join(s.net->embed({pictures, words})).loss.item().toDouble() / 8;
    }
    ck_assert_double_gt(std::abs(whole.loss / alone - 1), 0.1);
}

/* A step of samples that are fewer than the batch's is one of these alone. */
TEST("gradients", part_of_the_batch) {
    TowersOptions o = towers(0.0);
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(128, o), part(48, o);
    Whole whole = by_hand(s, pairs, {48});
    run(s, pairs, {16, 32});
    ck_assert_double_lt(difference(s, whole), 1e-5);
}

/* prepare again: the work of the step begins anew, random numbers and gradients as begin found them. */
TEST("gradients", prepared_anew) {
    TowersOptions o = towers(0.2);
    Subject s(o, options_of(MT_SGD)), t(o, options_of(MT_SGD));
    Pairs pairs(16, o);
    mt_chunk_result result = chunk_result();
    ck_ok(mt_torch_seed(3));
    run(t, pairs, {8, 8});
    apply(t);
    ck_ok(mt_torch_seed(3));
    ck_ok(mt_begin(s.torch, &pairs.batch));
    ck_ok(prepare(s, {4}));
    ck_ok(mt_accumulate(s.torch, 0, 4, 1.0, &result));
    ck_ok(prepare(s, {8, 8}));
    ck_ok(mt_accumulate(s.torch, 0, 8, 0.5, &result));
    ck_ok(mt_accumulate(s.torch, 8, 8, 0.5, &result));
    apply(s);
    ck_assert(s.hash() == t.hash());
}

/* ---- with the rest of the library -------------------------------------------------------------------- */

std::string hash_of_steps(const mt_torch_options &options, double *norm = nullptr) {
    TowersOptions o = towers(0.2);
    Subject s(o, options);
    Pairs pairs(24, o);
    mt_apply_result applied = apply_result();
    for (int i = 0; i < 3; i++) {
        run(s, pairs, {8, 12, 4});
        ck_ok(mt_apply(s.torch, &applied));
    }
    if (norm) *norm = applied.grad_norm;
    return s.hash();
}

/* Segments, tensors that wait elsewhere, and the heap in the place of an arena: the same bits. */
TEST("rest", savers_keep_the_bits) {
    mt_torch_options options = options_of(MT_ADAMW, 0.05);
    double norm = 0;
    std::string expected = hash_of_steps(options, &norm);
    ck_assert_double_gt(norm, 0);
    options.arena = MT_ARENA_NEVER;
    ck_assert(hash_of_steps(options) == expected);
    options.checkpointing = MT_CHECKPOINTING_ON;
    ck_assert(hash_of_steps(options) == expected);
    options.offload = MT_OFFLOAD_FILE;
    ck_assert(hash_of_steps(options) == expected);
}

/* mt_train_step is a step of one chunk. */
TEST("rest", plain_step) {
    TowersOptions o = towers(0.2);
    Subject s(o, options_of(MT_ADAM)), t(o, options_of(MT_ADAM));
    Pairs pairs(24, o);
    mt_chunk_result result = chunk_result();
    ck_ok(mt_torch_seed(3));
    Sums sums = run(t, pairs, {24});
    apply(t);
    ck_ok(mt_torch_seed(3));
    ck_ok(mt_train_step(s.torch, &pairs.batch, &result, nullptr));
    ck_assert_double_eq(result.loss_sum, sums.loss);
    ck_assert_uint_eq(result.peak_bytes, sums.peak);
    ck_assert(s.hash() == t.hash());
}

/* Frozen parameters get no gradient, whichever half uses them; the others keep theirs. */
TEST("rest", frozen) {
    TowersOptions o = towers(0.0);
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(32, o);
    Whole all = by_hand(s, pairs, {32});
    ck_ok(mt_torch_freeze(s.torch, "visual.*", 1));
    ck_ok(mt_torch_freeze(s.torch, "logit_scale", 1));
    Whole whole = by_hand(s, pairs, {32});
    ck_assert_uint_lt(whole.gradients.size(), all.gradients.size());
    run(s, pairs, {8, 24});
    ck_assert_double_lt(difference(s, whole), 1e-5);
    apply(s);
    ck_ok(mt_torch_freeze(s.torch, "*", 0));
    ck_ok(mt_torch_freeze(s.torch, "visual.*", 1));
    ck_ok(mt_torch_freeze(s.torch, "tokens*", 1));
    ck_ok(mt_torch_freeze(s.torch, "positions", 1));
    ck_ok(mt_torch_freeze(s.torch, "blocks*", 1));
    ck_ok(mt_torch_freeze(s.torch, "norm*", 1));
    ck_ok(mt_torch_freeze(s.torch, "project*", 1));
    whole = by_hand(s, pairs, {32}); /* of the scale alone, which no chunk reaches */
    ck_assert_uint_eq(whole.gradients.size(), 1);
    run(s, pairs, {8, 24});
    ck_assert_double_lt(difference(s, whole), 1e-5);
    apply(s);
}

/* The loss is scaled once, and a gradient that is not finite skips the step. */
TEST_IF(!suite_on_mps(), "MPS takes bfloat16 alone, which needs no scaler", "rest", scaled) {
    TowersOptions o = towers(0.0);
    mt_torch_options options = options_of(MT_SGD);
    Subject plain(o, options);
    options.amp = MT_FLOAT16;
    options.scale_start = 1024;
    Subject s(o, options);
    Pairs pairs(32, o);
    Sums expected = run(plain, pairs, {8, 24}), sums = run(s, pairs, {8, 24});
    ck_assert_double_lt(std::abs(sums.loss / expected.loss - 1), 0.02);
    double scale = s.net->logit_scale.grad().item().toDouble() /
                   plain.net->logit_scale.grad().item().toDouble();
    ck_assert_double_lt(std::abs(scale / 1024 - 1), 0.1);
    mt_apply_result applied = apply_result();
    ck_ok(mt_apply(s.torch, &applied));
    ck_assert_int_eq(applied.skipped, 0);
    std::string before = s.hash();
    {
        c10::NoGradGuard no_grad;
        s.net->logit_scale.fill_(20.0);
    }
    run(s, pairs, {8, 24});
    ck_ok(mt_apply(s.torch, &applied));
    ck_assert_int_eq(applied.skipped, 1);
    ck_assert_double_eq(mt_torch_scale(s.torch), 512);
}

/* ---- models of other kinds ----------------------------------------------------------------------------- */

/* Counts how often embed ran, hands labels on as an embedding, and normalises or not. */
struct Odd : nn::Module {
    nn::Linear linear = register_module("linear", nn::Linear(16, 4));
    nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(4));
    at::Tensor calls = register_buffer("calls", at::zeros({1}));
    at::Tensor seen = register_buffer("seen", at::zeros({1}));
    bool keeps_norm_still;
    explicit Odd(bool still) : keeps_norm_still(still) {}
    void train(bool on = true) override {
        nn::Module::train(on);
        if (keeps_norm_still) norm->train(false);
    }
};

auto odd(std::shared_ptr<Odd> net, int64_t wrong = 0) {
    auto description = memtrain::contrastive_model(
        net, {"mean"},
        [wrong](Odd &n, const memtrain::Tensors &batch) {
            n.calls += 1;
            at::Tensor e = n.norm(n.linear(batch[0]));
            if (wrong == 1) e = e.narrow(0, 0, 1);
            if (wrong == 2) return memtrain::Tensors{e};
            if (wrong == 3) e = e.narrow(1, 0, batch[0].size(0) % 3 + 1);
            return memtrain::Tensors{e, batch[1]};
        },
        [](Odd &n, const memtrain::Tensors &embeddings) {
            n.seen += 1;
            at::Tensor loss = at::cross_entropy_loss(embeddings[0], embeddings[1]);
            return memtrain::Output{loss, embeddings[1].sum().reshape({1}).to(at::kFloat)};
        });
    return description;
}

struct OddSubject {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    std::shared_ptr<Odd> net;
    std::vector<float> numbers;
    std::vector<int64_t> labels;
    mt_tensor *tensors[2];
    mt_torch_batch data = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;

    explicit OddSubject(int64_t wrong = 0) : numbers(12 * 16), labels(12) {
        mt_torch_options options = options_of(MT_SGD);
        const int64_t shape[] = {12, 16};
        std::iota(labels.begin(), labels.end(), 0);
        for (int64_t &label : labels) label %= 4;
        for (size_t i = 0; i < numbers.size(); i++) numbers[i] = static_cast<float>(i % 7) - 3;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(memtrain::make_model(&model, [&] {
            net = std::make_shared<Odd>(true);
            return odd(net, wrong);
        }));
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_tensor_from_memory(numbers.data(), MT_FLOAT32, 2, shape, &tensors[0]));
        ck_ok(mt_tensor_from_memory(labels.data(), MT_INT64, 1, shape, &tensors[1]));
        data.tensors = tensors;
        data.count = 2;
        batch.data = &data;
        batch.count = 12;
    }
    ~OddSubject() {
        mt_torch_free(torch);
        mt_model_free(model);
        for (mt_tensor *tensor : tensors) mt_tensor_free(tensor);
    }
};

/* Buffers that embed changes have changed once, and labels come through as they are. */
TEST("rest", buffers_and_labels) {
    OddSubject s;
    const size_t chunks[] = {5, 4, 3};
    mt_chunk_result result = chunk_result();
    mt_apply_result applied = apply_result();
    double loss = 0;
    size_t first = 0;
    ck_ok(mt_begin(s.torch, &s.batch));
    ck_ok(mt_prepare(s.torch, chunks, 3, &result));
    for (size_t count : chunks) {
        result = chunk_result();
        ck_ok(mt_accumulate(s.torch, first, count, 1.0, &result));
        ck_assert_double_eq(result.metric_sums[0], first ? 0.0 : 18.0);
        loss += result.loss_sum;
        first += count;
    }
    ck_ok(mt_apply(s.torch, &applied));
    ck_assert_double_gt(loss, 0);
    ck_assert_double_eq(s.net->calls.item().toDouble(), 3.0);
    ck_assert_double_eq(s.net->seen.item().toDouble(), 0.0);
}

TEST_LOOP("errors", odd_embeddings, 3) {
    static const char *const words[] = {"samples in dimension 0", "instead of 2", "another shape"};
    static const mt_status statuses[] = {MT_EINVAL, MT_ETORCH, MT_EINVAL};
    OddSubject s(_i + 1);
    const size_t chunks[] = {5, 4, 3};
    mt_chunk_result result = chunk_result();
    ck_ok(mt_begin(s.torch, &s.batch));
    mt_status status = mt_prepare(s.torch, chunks, 3, &result);
    ck_assert(status == statuses[_i] || status == MT_EINVAL);
    ck_contains(mt_last_error(), words[_i]);
    ck_ok(mt_rollback(s.torch));
}

/* A layer that sees the chunk while it trains would make other embeddings of other chunks. */
TEST("errors", no_batch_norm) {
    mt_model *model;
    ck_ok(mt_torch_init(nullptr));
    ck_refused(memtrain::make_model(&model, [] { return odd(std::make_shared<Odd>(false)); }),
               MT_EINVAL, "normalises_over_batch");
    ck_assert_ptr_null(model);
}

/* ---- errors ---------------------------------------------------------------------------------------------- */

TEST("errors", out_of_order) {
    TowersOptions o = towers(0.0);
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(16, o);
    mt_chunk_result result = chunk_result();
    mt_apply_result applied = apply_result();
    ck_status(prepare(s, {8, 8}), MT_ESTATE);
    ck_ok(mt_begin(s.torch, &pairs.batch));
    ck_refused(mt_accumulate(s.torch, 0, 8, 1.0, &result), MT_ESTATE,
               "samples 0 to 7 were not prepared");
    ck_status(mt_apply(s.torch, &applied), MT_ESTATE);
    ck_ok(prepare(s, {8, 8}));
    ck_refused(mt_accumulate(s.torch, 8, 8, 1.0, &result), MT_ESTATE,
               "samples 8 to 15 were not prepared as a chunk; the next one is 0 to 7");
    ck_status(mt_accumulate(s.torch, 0, 7, 1.0, &result), MT_ESTATE);
    ck_ok(mt_accumulate(s.torch, 0, 8, 1.0, &result));
    ck_refused(mt_apply(s.torch, &applied), MT_ESTATE, "samples 8 to 15 is missing");
    ck_ok(mt_accumulate(s.torch, 8, 8, 1.0, &result));
    ck_status(mt_accumulate(s.torch, 8, 8, 1.0, &result), MT_ESTATE);
    apply(s);
    ck_ok(mt_begin(s.torch, &pairs.batch));
    ck_status(mt_mark(s.torch), MT_ENOTSUP);
    ck_ok(mt_rollback(s.torch));
    ck_status(mt_hold_gradients(s.torch, 0), MT_ENOTSUP);
    ck_ok(mt_hold_gradients(s.torch, 1));
    ck_assert(!s.seam.mark && !s.seam.rewind && !s.seam.hold_gradients);
}

TEST("errors", arguments) {
    TowersOptions o = towers(0.0);
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(16, o);
    mt_chunk_result result = chunk_result();
    const size_t one[] = {16};
    ck_ok(mt_begin(s.torch, &pairs.batch));
    ck_status(mt_prepare(nullptr, one, 1, &result), MT_EINVAL);
    ck_status(mt_prepare(s.torch, nullptr, 1, &result), MT_EINVAL);
    ck_status(mt_prepare(s.torch, one, 0, &result), MT_EINVAL);
    ck_status(mt_prepare(s.torch, one, 1, nullptr), MT_EINVAL);
    ck_status(prepare(s, {8, 0}), MT_EINVAL);
    ck_refused(prepare(s, {8, 9}), MT_EINVAL, "chunks[1] is 9; accepted: 1 to 8");
    ck_ok(prepare(s, {8, 8}));
    ck_ok(mt_rollback(s.torch));
    Trainer plain(options_of(MT_SGD));
    Batch batch(12);
    ck_ok(mt_begin(plain.torch, batch.get()));
    ck_status(mt_prepare(plain.torch, one, 1, &result), MT_ENOTSUP);
    ck_ok(mt_rollback(plain.torch));
    ck_assert(!seam_of(plain).prepare);
}

mt_status visit(void *, mt_visit_fn, void *) {
    return MT_OK;
}
mt_status some_embed(void *, mt_tensor *const *, size_t, mt_tensor *const *, size_t) {
    return MT_OK;
}
mt_status some_join(void *, mt_tensor *const *, size_t, mt_tensor *, mt_tensor *) {
    return MT_OK;
}
mt_status some_units(void *, mt_tensor *const *, size_t, double *) {
    return MT_OK;
}

TEST("errors", models_that_are_refused) {
    mt_model *model;
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    ops.visit_parameters = visit;
    traits.embedding_count = 2;
    ck_refused(mt_model_new(&ops, nullptr, &traits, &model), MT_EINVAL, "ops->embed");
    ops.embed = some_embed;
    ck_refused(mt_model_new(&ops, nullptr, &traits, &model), MT_EINVAL, "ops->join");
    ops.join = some_join;
    ops.units = some_units;
    ck_refused(mt_model_new(&ops, nullptr, &traits, &model), MT_EINVAL, "ops->units");
    ops.units = nullptr;
    traits.normalises_over_batch = 1;
    ck_refused(mt_model_new(&ops, nullptr, &traits, &model), MT_EINVAL, "normalises_over_batch");
    traits.normalises_over_batch = 0;
    traits.needs_whole_batch = 1;
    ck_refused(mt_model_new(&ops, nullptr, &traits, &model), MT_EINVAL, "needs_whole_batch");
    traits.needs_whole_batch = 0;
    traits.embedding_count = MT_TENSORS_MAX + 1;
    ck_refused(mt_model_new(&ops, nullptr, &traits, &model), MT_EINVAL, "embedding_count");
    traits.embedding_count = MT_TENSORS_MAX;
    ck_ok(mt_model_new(&ops, nullptr, &traits, &model));
    mt_model_free(model);
}

/* ---- evaluation -------------------------------------------------------------------------------------------- */

mt_status evaluate(const Subject &s, const Pairs &pairs, size_t first, size_t count, Sums &sums) {
    mt_chunk_result result = chunk_result();
    mt_status status = mt_evaluate(s.torch, &pairs.batch, first, count, &result);
    add(sums, result);
    return status;
}

Whole evaluated_by_hand(const Subject &s, const Pairs &pairs) {
    c10::NoGradGuard no_grad;
    s.net->eval();
    memtrain::Output all =
        s.net->join(s.net->embed({pairs.pictures.to(device_of(s)), pairs.words.to(device_of(s))}));
    return {all.loss.item().toDouble(), all.metrics.item().toDouble(), {}};
}

/* The last chunk tells of the whole batch, whose chunks may be of any size. */
TEST("evaluation", evaluation) {
    TowersOptions o = towers(0.2);
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(40, o);
    Whole whole = evaluated_by_hand(s, pairs);
    std::string before = s.hash();
    size_t held = s.memory().allocated_bytes;
    for (int i = 0; i < 2; i++) {
        Sums sums;
        ck_ok(evaluate(s, pairs, 0, 16, sums));
        ck_ok(evaluate(s, pairs, 16, 7, sums));
        ck_assert_double_eq(sums.units + sums.loss + sums.metric, 0.0);
        ck_ok(evaluate(s, pairs, 23, 17, sums));
        ck_assert_double_eq(sums.units, 40.0);
        ck_assert_double_eq_tol(sums.loss / 40, whole.loss, 1e-5);
        ck_assert_double_eq(sums.metric, whole.metric);
        ck_assert_uint_eq(s.memory().allocated_bytes, held);
    }
    ck_assert(s.hash() == before);
}

TEST("evaluation", evaluation_out_of_order) {
    TowersOptions o = towers(0.2);
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(40, o), other(40, o);
    Sums sums;
    size_t held = s.memory().allocated_bytes;
    other.batch.id = 1;
    ck_status(evaluate(s, pairs, 16, 8, sums), MT_ESTATE);
    ck_ok(evaluate(s, pairs, 0, 16, sums));
    ck_refused(evaluate(s, pairs, 24, 8, sums), MT_ESTATE, "first is 24, and of this batch 16");
    ck_status(evaluate(s, other, 16, 24, sums), MT_ESTATE);
    ck_ok(evaluate(s, pairs, 16, 8, sums));
    ck_assert_uint_gt(s.memory().allocated_bytes, held);
    ck_ok(mt_begin(s.torch, &pairs.batch)); /* a step forgets it */
    ck_assert_uint_eq(s.memory().allocated_bytes, held);
    ck_ok(mt_rollback(s.torch));
    ck_status(evaluate(s, pairs, 24, 16, sums), MT_ESTATE);
}

/* Every request fails in turn: the evaluation goes through, and counts each sample once. */
TEST("evaluation", evaluation_under_faults) {
    TowersOptions o = towers(0.2);
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(24, o);
    Whole whole = evaluated_by_hand(s, pairs);
    size_t held = s.memory().allocated_bytes;
    uint64_t failed = 1, failures = 0;
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    policy.micro_batch = 8;
    own.policy = &policy;
    for (uint64_t n = 1; failed; n++) {
        mt_trainer *trainer;
        mt_eval_report report = MT_EVAL_REPORT_INIT;
        ck_ok(mt_trainer_new(&s.seam, &own, &trainer));
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = mt_trainer_evaluate(trainer, &pairs.batch, &report);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_ok(status);
        ck_assert_uint_eq(report.samples, 24);
        ck_assert_double_eq_tol(report.loss, whole.loss, 1e-5);
        ck_assert_double_eq(report.metrics[0], whole.metric / 24);
        ck_assert_uint_eq(s.memory().allocated_bytes, held);
        failures += failed;
        mt_trainer_free(trainer);
    }
    ck_assert_uint_gt(failures, 100);
}

} // namespace

SUITE("shim_contrastive")
