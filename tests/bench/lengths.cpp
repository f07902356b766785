/*
 * lengths.cpp - 300 batches of 16 samples, each of a length between 40 and 400 that was not there before, of a transformer
 * and of a convolution: time against the best micro-batch of each length, and against the one that is the best for all of
 * them and always fits; how far the peaks are from what was foretold of lengths never seen; resident bytes.
 *
 *     lengths transformer  time=... of_one=... ooms=... discarded=... told=... error=... worst=... resident_mib=...
 *
 * Every side is a process of its own, and they go in lock step. Three of each are timed, and the one in the middle counts: a
 * busy moment of the machine triples one batch. A fourth of each micro-batch finds the best of a length, since the least of
 * several times is lucky. A name of a network as an argument runs that one alone.
 */
#include "bench.hpp"
#include "process.hpp"

#include <cmath>
#include <memory>
#include <string>

#include <ATen/ops/avg_pool1d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <memtrain/trainer.hpp>

namespace {

namespace nn = torch::nn;

constexpr int64_t words = 100, width = 64, heads = 4, batches = 300;
constexpr size_t samples = 16;
constexpr size_t micros[] = {16, 8, 4, 2};
constexpr double most_ratio = 1.05, most_error = 0.01;

struct Block : nn::Module {
    nn::LayerNorm first{register_module("first", nn::LayerNorm(nn::LayerNormOptions({width})))};
    nn::LayerNorm second{register_module("second", nn::LayerNorm(nn::LayerNormOptions({width})))};
    nn::Linear qkv{register_module("qkv", nn::Linear(width, 3 * width))};
    nn::Linear out{register_module("out", nn::Linear(width, width))};
    nn::Linear up{register_module("up", nn::Linear(width, 4 * width))};
    nn::Linear down{register_module("down", nn::Linear(4 * width, width))};

    at::Tensor forward(const at::Tensor &x) {
        int64_t n = x.size(0), length = x.size(1);
        at::Tensor all = qkv(first(x)).view({n, length, 3, heads, width / heads});
        at::Tensor part = all.permute({2, 0, 3, 1, 4});
        at::Tensor seen = at::scaled_dot_product_attention(part[0], part[1], part[2]);
        at::Tensor y = x + out(seen.transpose(1, 2).reshape({n, length, width}));
        return y + down(at::gelu(up(second(y))));
    }
};

struct Transformer : nn::Module {
    nn::Embedding table{register_module("table", nn::Embedding(words, width))};
    std::shared_ptr<Block> one{register_module("one", std::make_shared<Block>())};
    std::shared_ptr<Block> two{register_module("two", std::make_shared<Block>())};
    nn::Linear last{register_module("last", nn::Linear(width, words))};

    at::Tensor loss(const memtrain::Tensors &batch) {
        at::Tensor y = last(two->forward(one->forward(table(batch[0]))));
        return at::cross_entropy_loss(y.flatten(0, 1), batch[0].flatten());
    }
};

struct Convolution : nn::Module {
    nn::Embedding table{register_module("table", nn::Embedding(words, width))};
    nn::Conv1d one{
        register_module("one", nn::Conv1d(nn::Conv1dOptions(width, 2 * width, 5).padding(2)))};
    nn::Conv1d two{
        register_module("two", nn::Conv1d(nn::Conv1dOptions(2 * width, 2 * width, 5).padding(2)))};
    nn::Linear last{register_module("last", nn::Linear(2 * width, words))};

    at::Tensor loss(const memtrain::Tensors &batch) {
        at::Tensor x = table(batch[0]).transpose(1, 2).contiguous();
        at::Tensor y = at::avg_pool1d(at::relu(two(at::relu(one(x)))), {2});
        return at::cross_entropy_loss(last(y.mean(2)), batch[0].select(1, 0));
    }
};

constexpr struct {
    const char *name;
    size_t room; /* bytes for chunks */
} networks[] = {{"transformer", size_t(24) << 20}, {"convolution", size_t(8) << 20}};

/* All from 40 to 400 come once, in an order that looks like none. */
int64_t length_of(int64_t i) {
    return 40 + i * 223 % 361;
}

/* ---- one side: a batch for each byte that comes in ------------------------------------------------------ */

template <class Net> memtrain::Trainer trainer_of(size_t micro) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    policy.micro_batch = micro;
    if (micro) policy.keep_chunks = MT_KEEP_NEVER;
    options.policy = &policy;
    return memtrain::Trainer(memtrain::model(std::make_shared<Net>(), {},
                                             [](Net &net, const memtrain::Tensors &batch) {
                                                 return memtrain::Output{net.loss(batch), {}};
                                             }),
                             memtrain::sgd(1e-3, 0.9), &options);
}

size_t resident_bytes() {
    unsigned long pages = 0;
    FILE *file = std::fopen("/proc/self/statm", "r");
    if (file && std::fscanf(file, "%*u %lu", &pages) != 1) pages = 0;
    if (file) std::fclose(file);
    return pages * 4096;
}

void run_side(size_t network, size_t micro) {
    bench::must(mt_torch_init(nullptr), "init");
    bench::must(mt_torch_set_threads(1), "threads");
    bench::must(mt_torch_seed(1), "seed");
    memtrain::Trainer trainer =
        network ? trainer_of<Convolution>(micro) : trainer_of<Transformer>(micro);
    mt_memory memory = {};
    memory.size = sizeof memory;
    bench::must(mt_device_memory("cpu", &memory), "memory");
    bench::must(mt_device_set_budget("cpu", memory.allocated_bytes + networks[network].room),
                "budget");
    for (int64_t i = 0; bench::asked(); i++) {
        at::Tensor ids =
            at::randint(words, {static_cast<int64_t>(samples), length_of(i)}, at::kLong);
        mt_step_report step = MT_STEP_REPORT_INIT;
        double start = bench::now();
        int fits = 1;
        try {
            step = trainer.step({ids});
        } catch (const std::exception &failure) {
            fits = 0; /* a micro-batch that is too large for this length */
            if (!micro) bench::give_up(failure.what());
        }
        bench::answer("%d %.6f %zu %zu", fits, bench::now() - start, step.peak_bytes,
                      step.predicted_peak_bytes);
    }
    mt_run_report run = trainer.summary();
    bench::answer("%llu %llu %zu", static_cast<unsigned long long>(run.ooms),
                  static_cast<unsigned long long>(run.samples_discarded), resident_bytes());
}

/* ---- all sides -------------------------------------------------------------------------------------------- */

struct Side {
    bench::Process process;
    int fits = 0;
    double seconds = 0;
    size_t peak = 0, told = 0;

    Side(const char *program, size_t network, size_t micro)
        : process({program, std::to_string(network), std::to_string(micro)}) {}
    void step() {
        if (std::sscanf(process.step().c_str(), "%d %lf %zu %zu", &fits, &seconds, &peak, &told) !=
            4)
            bench::give_up("a side has said nothing");
    }
};

/* Three sides that do the same. */
struct Sides {
    Side one, two, three;

    Sides(const char *program, size_t network, size_t micro)
        : one(program, network, micro), two(program, network, micro),
          three(program, network, micro) {}
    void step() {
        one.step();
        two.step();
        three.step();
    }
    double seconds() const { return bench::median({one.seconds, two.seconds, three.seconds}); }
};

/* A micro-batch: the side that finds the best one, and those that are timed. */
struct Fixed {
    Side finds;
    Sides timed;
    double total = 0;

    Fixed(const char *program, size_t network, size_t micro)
        : finds(program, network, micro), timed(program, network, micro) {}
    void step() {
        finds.step();
        timed.step();
        total += finds.fits ? timed.seconds() : INFINITY;
    }
};

bool race(const char *program, size_t network) {
    Sides chosen(program, network, 0);
    std::vector<std::unique_ptr<Fixed>> fixed;
    for (size_t micro : micros) fixed.push_back(std::make_unique<Fixed>(program, network, micro));
    Side &side = chosen.one;
    double ours = 0, best = 0, error = 0, worst = 0;
    int told = 0;
    for (int64_t i = 0; i < batches; i++) {
        const Fixed *found = nullptr;
        if (i % 2 == 0) chosen.step();
        for (auto &f : fixed) {
            f->step();
            bool is_better = !found || f->finds.seconds < found->finds.seconds;
            if (f->finds.fits && is_better) found = f.get();
        }
        if (i % 2) chosen.step();
        if (!found) bench::give_up("no micro-batch fits");
        ours += chosen.seconds();
        best += found->timed.seconds();
        if (!side.told) continue;
        double apart =
            std::abs(static_cast<double>(side.peak) / static_cast<double>(side.told) - 1);
        told++;
        error += apart;
        worst = std::max(worst, apart);
    }
    double one = INFINITY;
    for (const auto &f : fixed) one = std::min(one, f->total);
    unsigned long long ooms = 0, discarded = 0;
    size_t resident = 0;
    if (std::sscanf(side.process.finish().c_str(), "%llu %llu %zu", &ooms, &discarded, &resident) !=
        3)
        bench::give_up("a side has said nothing");
    std::printf("lengths %s  time=%.3f of_one=%.3f ooms=%llu discarded=%llu told=%d error=%.4f "
                "worst=%.4f resident_mib=%zu\n",
                networks[network].name, ours / best, ours / one, ooms, discarded, told,
                told ? error / told : 0, worst, resident >> 20);
    return ours <= most_ratio * best && error <= most_error * told && told >= batches / 2;
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 3) {
        run_side(std::strtoul(argv[1], nullptr, 10), std::strtoul(argv[2], nullptr, 10));
        return 0;
    }
    bool is_well = true;
    for (size_t i = 0; i < 2; i++)
        if (argc == 1 || networks[i].name == std::string(argv[1])) is_well &= race(argv[0], i);
    return is_well ? 0 : 1;
}
