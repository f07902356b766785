/*
 * optimizer.cpp - an update of 25 million parameters in 62 tensors: mt_apply with AdamW against
 * torch::optim::AdamW on the same, taking turns, on one thread, and with clip_grad_norm_ where we clip. To be
 * at least twice as fast; unscaling is with us alone. Our requests for memory are to be 0.
 */
#include "bench.hpp"

#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

namespace {

constexpr int tensors = 62, rounds = 15;
constexpr int64_t elements = 403226; /* of each: 25.0 million in all */

struct Many : torch::nn::Module {
    Many() {
        for (int i = 0; i < tensors; i++)
            register_parameter("p" + std::to_string(i), torch::ones({elements}));
    }
    /* The gradient of each parameter is 0.001, cheaply. */
    at::Tensor forward() {
        at::Tensor sum = torch::zeros({});
        for (const at::Tensor &p : parameters()) sum = sum + p.sum();
        return sum * 0.001;
    }
};

struct Ours {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;

    explicit Ours(const mt_torch_options &options) {
        bench::must(memtrain::make_model(&model,
                                         [] {
                                             return memtrain::model(
                                                 std::make_shared<Many>(), {},
                                                 [](Many &net, const memtrain::Tensors &) {
                                                     return memtrain::Output{net.forward(), {}};
                                                 });
                                         }),
                    "model");
        bench::must(mt_torch_new(model, &options, &torch), "torch");
    }
    ~Ours() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    /* Seconds and requests for memory of one update. */
    double step(const mt_batch &batch, uint64_t *requests) {
        mt_chunk_result chunk = {};
        mt_apply_result applied = {};
        uint64_t failed;
        chunk.size = sizeof chunk;
        applied.size = sizeof applied;
        bench::must(mt_begin(torch, &batch), "begin");
        bench::must(mt_accumulate(torch, 0, batch.count, 1.0, &chunk), "chunk");
        bench::must(mt_inject_oom(0, 0), "count");
        double start = bench::now();
        bench::must(mt_apply(torch, &applied), "apply");
        double seconds = bench::now() - start;
        mt_injected(requests, &failed);
        if (applied.skipped) std::printf("skipped\n");
        return seconds;
    }
};

struct Theirs {
    Many net;
    torch::optim::AdamW optimizer{net.parameters(), torch::optim::AdamWOptions(1e-3)};

    double step(double clip, uint64_t *requests) {
        uint64_t failed;
        optimizer.zero_grad();
        net.forward().backward();
        bench::must(mt_inject_oom(0, 0), "count");
        double start = bench::now();
        if (clip > 0) torch::nn::utils::clip_grad_norm_(net.parameters(), clip);
        optimizer.step();
        double seconds = bench::now() - start;
        mt_injected(requests, &failed);
        return seconds;
    }
};

mt_torch_options options_of(double clip, mt_dtype amp) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.clip_norm = clip;
    options.amp = amp;
    options.scale_start = 1.0;
    return options;
}

void compare(const char *name, const mt_torch_options &options) {
    bench::Batch batch(1, 1, 2);
    std::vector<double> ours, theirs, ratios;
    uint64_t here = 0, there = 0, requests = 0;
    Ours mine(options);
    Theirs other;
    for (int i = -2; i < rounds; i++) {
        double a = i % 2 ? mine.step(batch.batch, &requests) : 0;
        double b = other.step(options.clip_norm, &there);
        if (!(i % 2)) a = mine.step(batch.batch, &requests);
        here = std::max(here, requests);
        if (i < 0) continue;
        ours.push_back(a);
        theirs.push_back(b);
        ratios.push_back(b / a);
    }
    std::printf("optimizer  %s  speedup=%.2f  here_ms=%.1f libtorch_ms=%.1f  requests=%llu "
                "libtorch_requests=%llu\n",
                name, bench::median(ratios), 1e3 * bench::median(ours), 1e3 * bench::median(theirs),
                static_cast<unsigned long long>(here), static_cast<unsigned long long>(there));
}

} // namespace

int main() {
    bench::must(mt_torch_init(nullptr), "init");
    bench::must(mt_torch_set_threads(1), "threads");
    compare("adamw", options_of(0.0, MT_DTYPE_NONE));
    compare("adamw+clip", options_of(1e-3, MT_DTYPE_NONE));
    compare("adamw+clip+unscale", options_of(1e-3, MT_FLOAT16));
    return 0;
}
