/*
 * step.cpp - what the trainer costs: a step at a fixed micro-batch against the same loop written by
 * hand in C++ with the same fused optimiser. ResNet-18, 64 x 64 pixels, batch 16, one chunk.
 *
 * The two take turns in one process, so that both see the same neighbours; the ratio is that of the
 * medians. To be at most 1.01.
 */
#include "bench.hpp"

#include <ATen/ops/_fused_adamw.h>
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
    double step(const at::Tensor &x, const at::Tensor &y) {
        auto loss = at::cross_entropy_loss(net->forward(x), y);
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

} // namespace

int main(int argc, char **argv) {
    const int64_t side = 64, count = 16, classes = 10;
    int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
    bench::must(mt_torch_init(nullptr), "init");
    bench::must(mt_torch_set_threads(1), "threads");
    bench::must(mt_torch_seed(1), "seed");
    bench::Batch batch(count, side, classes);
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
    Hand hand(classes);
    const at::Tensor &x = memtrain::tensor(batch.tensors[0]),
                     &y = memtrain::tensor(batch.tensors[1]);

    std::vector<double> ours, theirs;
    for (int i = 0; i < rounds + 3; i++) {
        double a = bench::now();
        bench::must(mt_trainer_step(trainer, &batch.batch, nullptr), "step");
        double b = bench::now();
        hand.step(x, y);
        double c = bench::now();
        if (i < 3) continue; /* set-up of the kernels */
        ours.push_back(b - a);
        theirs.push_back(c - b);
    }
    double mine = bench::median(ours), plain = bench::median(theirs);
    double best = *std::min_element(ours.begin(), ours.end());
    double plain_best = *std::min_element(theirs.begin(), theirs.end());
    std::printf(
        "step  ratio_median=%.4f ratio_best=%.4f  trainer_ms=%.2f by_hand_ms=%.2f rounds=%d\n",
        mine / plain, best / plain_best, 1e3 * mine, 1e3 * plain, rounds);
    mt_trainer_free(trainer);
    mt_torch_free(torch);
    mt_model_free(model);
    return 0;
}
