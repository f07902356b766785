/*
 * step.cpp - what the trainer costs: a step at a fixed micro-batch against the same loop written by
 * hand in C++ with the same fused optimiser. ResNet-18, 64 x 64 pixels, batch 16, one chunk.
 *
 * Each side runs in a process of its own, since in one heap the pages that one side gives back are
 * faulted in by the other; the sides take turns, a step each, so that both see the same neighbours. What
 * a step costs depends a little on where a process happens to lie in memory, so there are several pairs
 * of processes. The ratio is the median over all pairs of steps. To be at most 1.01.
 */
#include "bench.hpp"
#include "process.hpp"

#include <cstring>
#include <string>

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace {

/* The loop as one writes it with libtorch alone. */
struct Hand {
    std::shared_ptr<memtrain_models::ResNetImpl> net;
    std::vector<at::Tensor> parameters, averages, squares, steps;

    explicit Hand(int64_t classes) {
        memtrain_models::ResNetOptions options;
        options.classes = classes;
        net = std::make_shared<memtrain_models::ResNetImpl>(options);
        parameters = net->parameters();
        for (auto &p : parameters) {
            averages.push_back(at::zeros_like(p));
            squares.push_back(at::zeros_like(p));
            steps.push_back(at::zeros({}, at::kFloat));
        }
    }
    /* Without its segments: outside an mt_torch these would be computed a second time. */
    at::Tensor forward(const at::Tensor &images) {
        auto part = net->named_children();
        at::Tensor x = part["conv1"]->as<torch::nn::Conv2d>()->forward(images);
        x = part["bn1"]->as<torch::nn::BatchNorm2d>()->forward(x).relu_();
        x = at::max_pool2d(x, 3, 2, 1);
        for (auto name : {"layer1", "layer2", "layer3", "layer4"})
            x = part[name]->as<torch::nn::Sequential>()->forward(x);
        x = at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
        return part["fc"]->as<torch::nn::Linear>()->forward(x);
    }
    double step(const at::Tensor &x, const at::Tensor &y) {
        auto loss = at::cross_entropy_loss(forward(x), y);
        loss.backward();
        torch::NoGradGuard no_grad;
        std::vector<at::Tensor> gradients;
        for (auto &p : parameters) gradients.push_back(p.grad());
        for (auto &s : steps) *s.data_ptr<float>() += 1;
        at::_fused_adamw_(parameters, gradients, averages, squares, {}, steps, 1e-3, 0.9, 0.999,
                          0.01, 1e-8, false, false);
        for (auto &p : parameters) p.mutable_grad().reset();
        return loss.item<double>();
    }
};

constexpr int64_t pixels = 64, count = 16, classes = 10;
constexpr int warm_up = 3; /* steps that set the kernels up */

/* Answers each request with the seconds of one step. */
template <class Step> void serve_steps(Step &&step) {
    for (int i = 0; i < warm_up; i++) step();
    while (bench::asked()) {
        double start = bench::now();
        step();
        bench::answer("%.6f", bench::now() - start);
    }
    bench::answer("%s", "done");
}

void run_trainer() {
    bench::Batch batch(count, pixels, classes);
    mt_model *model = bench::resnet18(classes);
    mt_torch *torch = nullptr;
    mt_backend backend = MT_BACKEND_INIT;
    mt_trainer *trainer = nullptr;
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    policy.micro_batch = static_cast<size_t>(count);
    options.policy = &policy;
    bench::must(mt_torch_new(model, nullptr, &torch), "torch");
    bench::must(mt_torch_backend(torch, &backend), "backend");
    bench::must(mt_trainer_new(&backend, &options, &trainer), "trainer");
    serve_steps([&] { bench::must(mt_trainer_step(trainer, &batch.batch, nullptr), "step"); });
    mt_trainer_free(trainer);
    mt_torch_free(torch);
    mt_model_free(model);
}

void run_hand() {
    bench::Batch batch(count, pixels, classes);
    Hand hand(classes);
    const at::Tensor &x = memtrain::tensor(batch.tensors[0]);
    const at::Tensor &y = memtrain::tensor(batch.tensors[1]);
    serve_steps([&] { hand.step(x, y); });
}

} // namespace

int main(int argc, char **argv) {
    const int pairs = 8, steps = 20;
    if (argc > 1) {
        /* The loop by hand runs on libtorch's own allocator, as it would without this library. */
        mt_torch_init_options options = MT_TORCH_INIT_OPTIONS_INIT;
        options.keep_allocator = std::strcmp(argv[1], "hand") == 0;
        bench::must(mt_torch_init(&options), "init");
        bench::must(mt_torch_set_threads(1), "threads");
        bench::must(mt_torch_seed(1), "seed");
        std::strcmp(argv[1], "trainer") == 0 ? run_trainer() : run_hand();
        return 0;
    }
    std::vector<double> ours, theirs, ratios;
    for (int i = 0; i < pairs; i++) {
        bench::Process trainer({argv[0], "trainer"}), hand({argv[0], "hand"});
        for (int k = 0; k < steps; k++) {
            ours.push_back(std::stod(trainer.step()));
            theirs.push_back(std::stod(hand.step()));
            ratios.push_back(ours.back() / theirs.back());
        }
    }
    std::printf("step  ratio=%.4f  trainer_ms=%.2f by_hand_ms=%.2f steps=%zu\n",
                bench::median(ratios), 1e3 * bench::median(ours), 1e3 * bench::median(theirs),
                ratios.size());
    return 0;
}
