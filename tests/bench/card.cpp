/*
 * card.cpp - whether a card is kept busy, by the clock of the test device (tests/device/card.h), on which kernels, copies and
 * waits cost what a table says. A step of 8 chunks of a chain of 24 layers, which the trainer knows already:
 *
 *   waits     times that the host waits for the card, be it for all that it was given or for an event, on a host that is faster
 *             than the card; and questions to its driver
 *   staging   a chunk's copy takes a quarter of the time of its kernels: the step against its kernels alone
 *   offload   what goes out takes as long as the kernels of the forward pass, and as long to come back: a step whose saved
 *             tensors wait on the host against one without
 *   sums      gradients of 128 MiB are summed over two processes, a copy each way takes half as long as the sum of as many
 *             numbers: a step against one whose copies take no time
 *
 * As CUDA, as XPU, and the waits as MPS, whose copies are not hidden; or as those of them that are named:
 *
 *     build/tests/bench/card [cuda] [xpu] [mps]
 *
 * No card has been asked. The test device has to be loaded before everything else, so the program starts itself again, once for
 * each of them.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <torch/nn/modules/linear.h>

#include <memtrain/processes.h>
#include <memtrain/trainer.hpp>

#include "card.h"
#include "card_process.hpp"

namespace {

constexpr int64_t width = 640, layers = 24, chunk = 2, chunks = 8;
constexpr uint64_t launch = 5000, kernel = 100000, wait = 20000; /* ns */
constexpr double MiB = 1 << 20;

struct Chain : torch::nn::Module {
    std::vector<torch::nn::Linear> linears;
    Chain() {
        for (int64_t i = 0; i < layers; i++)
            linears.push_back(
                register_module("linear" + std::to_string(i), torch::nn::Linear(width, width)));
    }
    at::Tensor forward(at::Tensor x) {
        for (torch::nn::Linear &linear : linears) x = at::sigmoid(linear->forward(x));
        return x;
    }
};

const char *device() {
    return std::getenv("MT_TEST_DEVICE");
}

mt_card_counters counters() {
    mt_card_counters now = {};
    mt_card_read(&now);
    return now;
}

/* What a step has taken: on the clock, and of the counters. */
struct Taken {
    mt_card_clock clock;
    uint64_t waits, event_waits, questions, kernels;
};

class Loop {
public:
    explicit Loop(int offload) : batch_{at::randn({chunk * chunks, width})} {
        mt_torch_options options = memtrain::sgd(0.01);
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        options.device = device();
        options.offload = offload;
        policy.micro_batch = chunk;
        own.policy = &policy;
        trainer_.emplace(
            memtrain::model(std::make_shared<Chain>(), {},
                            [](Chain &net, const memtrain::Tensors &batch) {
                                at::Tensor out = net.forward(batch[0]);
                                return memtrain::Output{at::mse_loss(out, batch[0]), {}};
                            }),
            options, &own);
        for (int i = 0; i < 3; i++) (void)trainer_->step(batch_);
    }

    Taken step(const mt_card_costs &costs) {
        Taken taken = {};
        mt_card_counters before = counters();
        mt_card_start_clock(&costs);
        (void)trainer_->step(batch_);
        mt_card_read_clock(&taken.clock);
        mt_card_start_clock(nullptr);
        mt_card_counters after = counters();
        taken.waits = after.waits - before.waits;
        taken.event_waits = after.event_waits - before.event_waits;
        taken.questions = after.questions - before.questions;
        taken.kernels = after.kernels - before.kernels;
        return taken;
    }

    /* MiB that a step copies to the host. */
    double out() { return static_cast<double>(step({0, 0, 1000000, 0}).clock.to_host) / 1e6; }

    /* Kernels of the forward passes of all chunks. */
    uint64_t forward_kernels() {
        uint64_t before = counters().kernels;
        (void)trainer_->evaluate(batch_);
        return counters().kernels - before;
    }

private:
    memtrain::Tensors batch_;
    std::optional<memtrain::Trainer> trainer_;
};

mt_card_costs costs_of(double copy_of_mib) {
    return {launch, kernel, static_cast<uint64_t>(copy_of_mib), wait};
}

double in_ms(uint64_t ns) {
    return static_cast<double>(ns) / 1e6;
}

bool print(const char *row, double ratio, double most, const Taken &taken) {
    bool holds = ratio <= most;
    std::printf(
        "card      %-4s %-8s ratio=%.3f (at most %.2f)%s  ms=%.2f  kernels=%.2f  to_card=%.2f  "
        "to_host=%.2f  event_waits=%llu\n",
        device(), row, ratio, most, holds ? "" : "  ABOVE", in_ms(taken.clock.host),
        in_ms(taken.clock.kernels), in_ms(taken.clock.to_card), in_ms(taken.clock.to_host),
        static_cast<unsigned long long>(taken.event_waits));
    return holds;
}

bool waits() {
    Taken taken = Loop(MT_OFFLOAD_NEVER).step(costs_of(0));
    bool holds = taken.waits + taken.event_waits <= 2 && taken.questions == 0;
    std::printf("card      %-4s waits    waits=%llu  event_waits=%llu (at most 2 together)  "
                "questions=%llu (0)%s\n",
                device(), static_cast<unsigned long long>(taken.waits),
                static_cast<unsigned long long>(taken.event_waits),
                static_cast<unsigned long long>(taken.questions), holds ? "" : "  ABOVE");
    return holds;
}

bool staging() {
    Loop loop(MT_OFFLOAD_NEVER);
    double mib = static_cast<double>(chunk * chunks * width) * sizeof(float) / MiB;
    double kernels = static_cast<double>(loop.step({}).kernels * kernel);
    Taken taken = loop.step(costs_of(kernels / 4 / mib));
    double ratio = static_cast<double>(taken.clock.host) / static_cast<double>(taken.clock.kernels);
    return print("staging", ratio, 1.05, taken);
}

bool offload() {
    Loop without(MT_OFFLOAD_NEVER), with(MT_OFFLOAD_HOST);
    double kernels = static_cast<double>(without.forward_kernels() * kernel);
    mt_card_costs costs = costs_of(kernels / with.out());
    Taken taken = with.step(costs);
    double plain = static_cast<double>(without.step(costs).clock.host);
    return print("offload", static_cast<double>(taken.clock.host) / plain, 1.1, taken);
}

/* 128 MiB: eight pieces of what goes through a pinned buffer. */
struct Long : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({32 << 20}));
};

constexpr uint64_t sum_of_mib = 2000000; /* ns */

/* Another process that has the same numbers. */
template <class Number> mt_status twice(void *, Number *values, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] *= 2;
    mt_card_pass(n * sizeof(Number) * sum_of_mib >> 20);
    return MT_OK;
}

bool sums() {
    mt_process_group group = MT_PROCESS_GROUP_INIT;
    group.self = &group;
    group.count = 2;
    group.sum_floats = &twice<float>;
    group.sum_doubles = &twice<double>;
    mt_torch_options options = memtrain::sgd(0.01);
    options.device = device();
    options.processes = &group;
    memtrain::Trainer trainer(
        memtrain::model(std::make_shared<Long>(), {},
                        [](Long &self, const memtrain::Tensors &batch) {
                            return memtrain::Output{self.weight.mean() * batch[0].mean(), {}};
                        }),
        options);
    memtrain::Tensors batch{at::randn({2, 1})};
    Taken taken = {};
    uint64_t free = 0;
    for (uint64_t copy_of_mib : {uint64_t{0}, sum_of_mib / 2}) {
        mt_card_costs costs = {launch, kernel, copy_of_mib, wait};
        for (int i = 0; i < 3; i++) (void)trainer.step(batch);
        mt_card_counters before = counters();
        mt_card_start_clock(&costs);
        (void)trainer.step(batch);
        mt_card_read_clock(&taken.clock);
        mt_card_start_clock(nullptr);
        taken.event_waits = counters().event_waits - before.event_waits;
        if (!copy_of_mib) free = taken.clock.host;
    }
    return print("sums", static_cast<double>(taken.clock.host) / static_cast<double>(free), 1.15,
                 taken);
}

const char *const kinds[] = {"cuda", "xpu", "mps"};

bool is_in(const char *const *first, const char *const *end, const char *kind) {
    return std::any_of(first, end, [&](const char *one) { return !std::strcmp(one, kind); });
}

/* Those that are named, in this order; all without a name. */
int run_as_each(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++)
        if (!is_in(std::begin(kinds), std::end(kinds), argv[i])) {
            std::fprintf(stderr, "card: '%s' is no kind of card; accepted: cuda, xpu, mps\n",
                         argv[i]);
            return 2;
        }
    for (const char *kind : kinds) {
        if (argc > 1 && !is_in(argv + 1, argv + argc, kind)) continue;
        int status = run_with_card(kind, argv, "../");
        if (status < 0)
            std::printf("SKIP: card: %s: the test device cannot be loaded before all else\n", kind);
        failed |= status > 0;
    }
    return failed;
}

} // namespace

int main(int argc, char **argv) {
    if (!mt_card_read) return run_as_each(argc, argv);
    memtrain::must(mt_device_set_budget(device(), size_t{2} << 30));
    bool holds = waits();
    if (!std::strcmp(device(), "mps")) return !holds;
    holds &= staging();
    holds &= offload();
    holds &= sums();
    return !holds;
}
