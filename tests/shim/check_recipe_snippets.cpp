/*
 * check_recipe_snippets.cpp - the recipes of docs/recipes.md beside plain loops of libtorch: the same parameters after the same
 * steps, but for rounding, or the same bits where nothing is added up.
 */
#include <cmath>
#include <cstdio>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memtrain/schedule.h>
#include <memtrain/trainer.hpp>

#include "check_shim.hpp"

namespace {

namespace nn = torch::nn;

/* ---- beside libtorch ------------------------------------------------------------------------------------ */

void begin() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_seed(1));
}

template <class Module> void copy_values(const Module &from, const Module &to) {
    torch::NoGradGuard off;
    for (const auto &one : from->named_parameters())
        to->named_parameters()[one.key()].copy_(one.value());
}

/* Another module with the same values, for the plain loop. */
template <class Module> std::shared_ptr<Module> twin_of(const std::shared_ptr<Module> &module) {
    auto twin = std::make_shared<Module>();
    copy_values(module, twin);
    return twin;
}

/* The largest difference of two parameters of one name. */
template <class Module> double distance(const Module &a, const Module &b) {
    double most = 0;
    for (const auto &one : a->named_parameters()) {
        at::Tensor gap = (one.value().detach() - b->named_parameters()[one.key()].detach()).abs();
        most = std::max(most, gap.max().template item<double>());
    }
    return most;
}

/* Neither did nothing: the values have moved by far more than rounding. */
template <class Module> void ck_same(const Module &net, const Module &plain, const Module &before) {
    ck_assert_double_gt(distance(net, before), 1e-3);
    ck_assert_double_lt(distance(net, plain), 2e-5);
}

/* `steps` updates of a plain loop. */
template <class Optimizer, class Loss> void plain_loop(Optimizer &optimizer, int steps, Loss loss) {
    for (int i = 0; i < steps; i++) {
        optimizer.zero_grad();
        loss(i).backward();
        optimizer.step();
    }
}

/* Steps of a recipe run in several chunks from the first on. */
void ck_in_chunks(const memtrain::Trainer &trainer) {
    mt_run_report run = trainer.summary();
    ck_assert_uint_lt(run.smallest_chunk, run.largest_chunk);
}

struct Perceptron : nn::Module {
    nn::Linear in, out;
    explicit Perceptron(int64_t inputs = 4, int64_t outputs = 3)
        : in(register_module("in", nn::Linear(inputs, 16))),
          out(register_module("out", nn::Linear(16, outputs))) {}
    at::Tensor forward(const at::Tensor &x) { return out(torch::tanh(in(x))); }
};

/* ---- tokens --------------------------------------------------------------------------------------------- */

TEST("recipes", tokens) {
    using Net = Perceptron;
    begin();
    auto net = std::make_shared<Net>(), before = twin_of(net), plain = twin_of(net);
    at::Tensor words = at::rand({32, 3, 4}), next_words = at::randint(3, {32, 3}, at::kLong);
    next_words.slice(0, 0, 20).slice(1, 1).fill_(-100); /* chunks have shares of their own */
#include "recipe_tokens.cpp"
    torch::optim::SGD optimizer(plain->parameters(), 0.1);
    double loss = 0;
    plain_loop(optimizer, 1, [&](int) {
        at::Tensor mean =
            torch::cross_entropy_loss(plain->forward(words).flatten(0, 1), next_words.flatten(), {},
                                      at::Reduction::Mean, -100);
        loss = mean.item<double>();
        return mean;
    });
    ck_assert_uint_gt(report.chunk_count, 1);
    ck_assert_double_eq_tol(report.loss, loss, 1e-5);
    ck_same(net, plain, before);
}

/* ---- two networks --------------------------------------------------------------------------------------- */

struct Judge : Perceptron {
    Judge() : Perceptron(2, 1) {}
};
struct Forger : Perceptron {
    Forger() : Perceptron(3, 2) {}
};

TEST("recipes", two_networks) {
    begin();
    auto judge = std::make_shared<Judge>(), judge_before = twin_of(judge),
         judge_plain = twin_of(judge);
    auto forger = std::make_shared<Forger>(), forger_before = twin_of(forger),
         forger_plain = twin_of(forger);
    at::Tensor real = at::rand({24, 2}), noise = at::randn({24, 3});
#include "recipe_gan.cpp"
    torch::optim::SGD one(judge_plain->parameters(), 0.05), other(forger_plain->parameters(), 0.05);
    for (int i = 0; i < 10; i++) {
        plain_loop(one, 1, [&](int) {
            at::Tensor fake = forger_plain->forward(noise).detach();
            return (torch::softplus(-judge_plain->forward(real)) +
                    torch::softplus(judge_plain->forward(fake)))
                .mean();
        });
        plain_loop(other, 1, [&](int) {
            return torch::softplus(-judge_plain->forward(forger_plain->forward(noise))).mean();
        });
    }
    ck_in_chunks(judging);
    ck_same(judge, judge_plain, judge_before);
    ck_same(forger, forger_plain, forger_before);
}

/* ---- averages ------------------------------------------------------------------------------------------- */

TEST("recipes", averages) {
    using Net = Perceptron;
    begin();
    auto net = std::make_shared<Net>(), before = twin_of(net), plain = twin_of(net);
    auto target = twin_of(net), plain_target = twin_of(net);
    at::Tensor views = at::rand({24, 4}), other_views = at::rand({24, 4});
#include "recipe_ema.cpp"
    torch::optim::SGD optimizer(plain->parameters(), 0.1);
    for (int i = 0; i < 10; i++) {
        plain_loop(optimizer, 1, [&](int) {
            return torch::mse_loss(plain->forward(views),
                                   plain_target->forward(other_views).detach());
        });
        torch::NoGradGuard off;
        auto slow = plain_target->parameters(), fast = plain->parameters();
        for (size_t k = 0; k < slow.size(); k++) slow[k].mul_(0.99).add_(fast[k], 0.01);
    }
    ck_assert_double_lt(distance(net, plain), 2e-5);
    ck_assert_double_lt(distance(target, plain_target), 2e-5);
    ck_assert_double_gt(distance(target, before), 1e-4);
}

/* ---- gradient penalty ----------------------------------------------------------------------------------- */

TEST("recipes", gradient_penalty) {
    using Net = Judge;
    begin();
    auto net = std::make_shared<Net>(), before = twin_of(net), plain = twin_of(net);
    at::Tensor points = at::randn({24, 2});
#include "recipe_penalty.cpp"
    torch::optim::SGD optimizer(plain->parameters(), 0.01);
    plain_loop(optimizer, 10, [&](int) {
        at::Tensor x = points.detach().requires_grad_(), score = plain->forward(x);
        at::Tensor slope = torch::autograd::grad({score.sum()}, {x}, {}, true, true)[0];
        return score.mean() + 10 * (slope.norm(2, 1) - 1).square().mean();
    });
    ck_in_chunks(trainer);
    ck_same(net, plain, before);
}

/* ---- tied weights --------------------------------------------------------------------------------------- */

TEST("recipes", tied) {
    begin();
#include "recipe_tied.cpp"
    auto before = twin_of(net), plain = twin_of(net);
    at::Tensor x = at::rand({24, 12});
    for (int i = 0; i < 10; i++) trainer.step({x});
    torch::optim::SGD optimizer(plain->parameters(), 0.1);
    plain_loop(optimizer, 10, [&](int) {
        const at::Tensor &weight = plain->in->weight;
        at::Tensor code = torch::tanh(torch::matmul(x, weight.t()) + plain->in->bias);
        return torch::mse_loss(torch::matmul(code, weight), x);
    });
    ck_in_chunks(trainer);
    ck_same(net, plain, before);
}

/* ---- unused parameters ---------------------------------------------------------------------------------- */

struct Heads : nn::Module {
    nn::Linear body{register_module("body", nn::Linear(4, 16))};
    std::vector<nn::Linear> heads;
    Heads() {
        for (const char *name : {"first", "second"})
            heads.push_back(register_module(name, nn::Linear(16, 3)));
    }
};

TEST("recipes", unused) {
    using Net = Heads;
    begin();
    auto net = std::make_shared<Net>(), before = twin_of(net), plain = twin_of(net);
    at::Tensor x[] = {at::rand({24, 4}), at::rand({24, 4})};
    at::Tensor labels[] = {at::randint(3, {24}, at::kLong), at::randint(3, {24}, at::kLong)};
#include "recipe_unused.cpp"
    torch::optim::SGD optimizer(plain->parameters(),
                                torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
    plain_loop(optimizer, 6, [&](int i) {
        at::Tensor hidden = torch::tanh(plain->body(x[i % 2]));
        return torch::cross_entropy_loss(plain->heads[i % 2](hidden), labels[i % 2]);
    });
    ck_same(net, plain, before);
    at::Tensor weight = net->heads[1]->weight.detach().clone();
    task = 0;
    trainer.step({x[0], labels[0]});
    ck_assert(net->heads[1]->weight.equal(weight)); /* no decay, no moments */
}

/* ---- many lengths --------------------------------------------------------------------------------------- */

TEST("recipes", lengths) {
    struct Reader : nn::Module {
        nn::Embedding words{register_module("words", nn::Embedding(10, 8))};
        nn::Linear out{register_module("out", nn::Linear(8, 2))};
    };
    begin();
#include "recipe_lengths.cpp"
    memtrain::Trainer trainer(
        memtrain::model(
            std::make_shared<Reader>(), {},
            [](Reader &net, const memtrain::Tensors &batch) {
                at::Tensor is_word = batch[0].gt(0).unsqueeze(2);
                at::Tensor text = (net.words(batch[0]) * is_word).sum(1) / is_word.sum(1);
                return memtrain::Output{torch::cross_entropy_loss(net.out(text), batch[1]), {}};
            }),
        memtrain::adamw(0.05));
    double first = 0, last = 0;
    for (int i = 0; i < 30; i++) {
        std::vector<at::Tensor> texts;
        for (int64_t n = 0; n < 16; n++) /* the first half has low words */
            texts.push_back(
                at::randint(n < 8 ? 1 : 6, n < 8 ? 6 : 10, {1 + (7 * i + n) % 40}, at::kLong));
        at::Tensor rows = padded(texts);
        ck_assert_int_eq(rows.size(1) % 16, 0);
        ck_assert_int_le(rows.size(1), 48);
        ck_assert(rows[0].narrow(0, 0, texts[0].size(0)).equal(texts[0]));
        last = trainer.step({rows, at::arange(16).ge(8).to(at::kLong)}).loss;
        if (i == 0) first = last;
    }
    ck_assert_double_lt(last, first / 2);
}

/* ---- time-major ----------------------------------------------------------------------------------------- */

struct Recurrent : nn::Module {
    nn::GRU cells{register_module("cells", nn::GRU(4, 8))};
    nn::Linear out{register_module("out", nn::Linear(8, 3))};
};

TEST("recipes", time_major) {
    using Net = Recurrent;
    begin();
    auto net = std::make_shared<Net>(), before = twin_of(net), plain = twin_of(net);
    at::Tensor sequences = at::randn({7, 24, 4}), labels = at::randint(3, {24}, at::kLong);
#include "recipe_time.cpp"
    torch::optim::SGD optimizer(plain->parameters(), 0.1);
    plain_loop(optimizer, 10, [&](int) {
        at::Tensor states = std::get<0>(plain->cells->forward(sequences));
        return torch::cross_entropy_loss(plain->out(states[-1]), labels);
    });
    ck_in_chunks(trainer);
    ck_same(net, plain, before);
}

/* ---- a loader ------------------------------------------------------------------------------------------- */

memtrain::Output classify(Perceptron &net, const memtrain::Tensors &batch) {
    return {torch::cross_entropy_loss(net.forward(batch[0]), batch[1]), {}};
}

TEST("recipes", accumulation) {
    struct Example {
        at::Tensor data, target;
    };
    begin();
    auto net = std::make_shared<Perceptron>(), before = twin_of(net), plain = twin_of(net);
    memtrain::Trainer trainer(memtrain::model(net, {}, classify), memtrain::sgd(0.5));
    std::vector<Example> batches;
    for (int64_t n : {8, 8, 8, 8, 8, 8, 8, 4})
        batches.push_back({at::rand({n, 4}), at::randint(3, {n}, at::kLong)});
    const std::vector<Example> *loader = &batches;
#include "recipe_accumulate.cpp"
    torch::optim::SGD optimizer(plain->parameters(), 0.5);
    plain_loop(optimizer, 2, [&](int step) {
        at::Tensor sum = at::zeros({});
        int64_t count = 0;
        for (int i = 4 * step; i < 4 * step + 4; i++) {
            count += batches[i].data.size(0);
            sum = sum + torch::cross_entropy_loss(plain->forward(batches[i].data),
                                                  batches[i].target, {}, at::Reduction::Sum);
        }
        return sum / count;
    });
    ck_assert_uint_eq(trainer.summary().steps, 2);
    ck_assert_uint_eq(inputs.size(), 0);
    ck_same(net, plain, before);
}

/* ---- StepLR --------------------------------------------------------------------------------------------- */

/* Python's: the rate of epoch e is 0.1 * 0.5 ^ (e / 3). C++'s is asked. */
TEST_LOOP("recipes", step_lr, 2) {
    const bool as_in_cpp = _i;
    std::vector<double> rates, expected;
    begin();
    auto net = std::make_shared<Perceptron>();
    memtrain::Trainer trainer(memtrain::model(net, {}, classify), memtrain::sgd(0.1));
    at::Tensor x = at::rand({8, 4}), y = at::randint(3, {8}, at::kLong);
#include "recipe_steplr.cpp"
    auto plain = std::make_shared<Perceptron>();
    torch::optim::SGD optimizer(plain->parameters(), 0.1);
    torch::optim::StepLR steps(optimizer, 3, 0.5);
    for (int epoch = 0; epoch < 10; epoch++) {
        expected.push_back(as_in_cpp ? optimizer.param_groups()[0].options().get_lr()
                                     : 0.1 * std::pow(0.5, epoch / 3));
        steps.step();
    }
    ck_assert_uint_eq(rates.size(), expected.size());
    for (size_t i = 0; i < rates.size(); i++) ck_assert_double_eq_tol(rates[i], expected[i], 1e-12);
}

/* ---- pairs ---------------------------------------------------------------------------------------------- */

struct Towers : nn::Module {
    nn::Linear left{register_module("left", nn::Linear(6, 4))};
    nn::Linear right{register_module("right", nn::Linear(5, 4))};
};

TEST("recipes", loss_over_pairs) {
    using Net = Towers;
    begin();
    auto net = std::make_shared<Net>(), before = twin_of(net), plain = twin_of(net);
    at::Tensor pictures = at::rand({24, 6}), texts = at::rand({24, 5});
#include "recipe_pairs.cpp"
    torch::optim::SGD optimizer(plain->parameters(), 0.1);
    plain_loop(optimizer, 10, [&](int) {
        at::Tensor all = torch::matmul(plain->left(pictures), plain->right(texts).t());
        return torch::cross_entropy_loss(all, torch::arange(24));
    });
    ck_in_chunks(trainer);
    ck_same(net, plain, before);
}

/* ---- a frozen backbone ---------------------------------------------------------------------------------- */

struct WithBackbone : nn::Module {
    nn::Sequential backbone{register_module(
        "backbone", nn::Sequential(nn::Linear(4, 16), nn::BatchNorm1d(16), nn::ReLU()))};
    nn::Linear head{register_module("head", nn::Linear(16, 3))};
};

TEST("recipes", frozen) {
    using Net = WithBackbone;
    begin();
    auto net = std::make_shared<Net>(), before = twin_of(net), plain = twin_of(net);
    at::Tensor x = at::randn({24, 4}), labels = at::randint(3, {24}, at::kLong);
#include "recipe_frozen.cpp"
    plain->backbone->eval();
    auto loss = [&](int) {
        return torch::cross_entropy_loss(plain->head(plain->backbone->forward(x)), labels);
    };
    for (at::Tensor &p : plain->backbone->parameters()) p.requires_grad_(false);
    torch::optim::SGD first(plain->head->parameters(), 0.1);
    plain_loop(first, 10, loss);
    ck_assert(plain->backbone->parameters()[0].equal(before->backbone->parameters()[0]));
    for (at::Tensor &p : plain->backbone->parameters()) p.requires_grad_(true);
    torch::optim::SGD second(plain->parameters(), 0.01);
    plain_loop(second, 10, loss);
    ck_same(net, plain, before);
    ck_assert(!net->backbone->parameters()[0].equal(before->backbone->parameters()[0]));
    ck_assert(net->named_buffers()["backbone.1.running_mean"].equal(at::zeros({16})));
}

/* ---- what fits ------------------------------------------------------------------------------------------ */

struct WithWideLayer : nn::Module {
    nn::Linear in{register_module("in", nn::Linear(16, 1024))};
    nn::Linear out{register_module("out", nn::Linear(1024, 3))};
    at::Tensor forward(const at::Tensor &x) { return out(torch::relu(in(x))); }
};

TEST("recipes", forecast) {
    using Net = WithWideLayer;
    begin();
    auto net = std::make_shared<Net>(), before = twin_of(net);
    at::Tensor x = at::randn({512, 16}), labels = at::randint(3, {512}, at::kLong);
    ck_ok(mt_device_set_budget("cpu", check_shim::cpu_memory().allocated_bytes + (3 << 20)));
#include "recipe_forecast.cpp"
    ck_assert_double_eq(distance(net, before), 0);
    mt_step_report step = MT_STEP_REPORT_INIT;
    for (int i = 0; i < 6; i++) step = trainer.step({x, labels});
    ck_assert_uint_gt(mt_plan_chunks(&plan), 1);
    ck_assert_uint_eq(step.chunk_count, mt_plan_chunks(&plan));
    ck_assert_uint_eq(step.peak_bytes, plan.predicted_peak_bytes);
}

} // namespace

SUITE("recipe_snippets")
