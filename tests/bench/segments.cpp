/*
 * segments.cpp - what segments that are computed again save and cost: a chunk of 32 pictures of 64 x 64
 * pixels with all of a network's segments against the same chunk without. The two take turns. peak is
 * what a chunk takes beside parameters, optimiser state and gradients, at most; kept is what of it is
 * there when the forward pass is through (ResNet-18 alone).
 */
#include "networks/networks.hpp"

namespace {

using networks::Subject;

constexpr int64_t pixels = 64, classes = 10;
constexpr size_t count = 32;
constexpr int warm_up = 4, rounds = 15;

struct Side {
    std::vector<double> seconds;
    size_t peak = 0;
};

void run_chunk(const Subject &subject, const bench::Batch &batch, Side &side) {
    mt_chunk_result result = {};
    result.size = sizeof result;
    bench::must(mt_begin(subject.torch, &batch.batch), "begin");
    size_t before = Subject::allocated();
    bench::must(mt_accumulate(subject.torch, 0, count, 1.0, &result), "accumulate");
    side.seconds.push_back(result.seconds);
    side.peak = result.peak_bytes - before;
    bench::must(mt_rollback(subject.torch), "rollback");
}

void compare(const networks::Network &network) {
    Subject subject(network, pixels);
    bench::Batch batch(static_cast<int64_t>(count), pixels, classes);
    Side sides[2];
    std::vector<double> ratios;
    for (int i = 0; i < warm_up + rounds; i++) {
        for (int on = 0; on < 2; on++) {
            bench::must(subject.backend.set_rung(subject.torch, MT_RUNG_CHECKPOINTING, on), "rung");
            run_chunk(subject, batch, sides[on]);
        }
        if (i >= warm_up) ratios.push_back(sides[1].seconds.back() / sides[0].seconds.back());
    }
    std::printf("segments  %-9s peak_ratio=%.3f time_ratio=%.3f  peak_MB=%.1f of %.1f  ms=%.1f of "
                "%.1f\n",
                network.name,
                static_cast<double>(sides[1].peak) / static_cast<double>(sides[0].peak),
                bench::median(ratios), static_cast<double>(sides[1].peak) / 1e6,
                static_cast<double>(sides[0].peak) / 1e6, 1e3 * bench::median(sides[1].seconds),
                1e3 * bench::median(sides[0].seconds));
}

void compare_kept() {
    memtrain_models::ResNetOptions options;
    size_t kept[2];
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    bench::Batch batch(static_cast<int64_t>(count), pixels, classes);
    options.classes = classes;
    for (int on = 0; on < 2; on++) {
        size_t before = 0, after = 0;
        mt_torch_options own = MT_TORCH_OPTIONS_INIT;
        own.checkpointing = on;
        bench::must(
            memtrain::make_model(
                &model,
                [&] {
                    using Net = memtrain_models::ResNetImpl;
                    return memtrain::model(
                        std::make_shared<Net>(options), {},
                        [&](Net &net, const memtrain::Tensors &b) {
                            before = Subject::allocated();
                            at::Tensor logits = net.forward(b.at(0));
                            after = Subject::allocated();
                            return memtrain::Output{at::cross_entropy_loss(logits, b.at(1)), {}};
                        });
                }),
            "model");
        bench::must(mt_torch_new(model, &own, &torch), "torch");
        bench::must(mt_train_step(torch, &batch.batch, nullptr, nullptr), "step");
        mt_torch_free(torch);
        mt_model_free(model);
        kept[on] = after - before;
    }
    std::printf("segments  resnet18  kept_ratio=%.3f  kept_MB=%.1f of %.1f\n",
                static_cast<double>(kept[1]) / static_cast<double>(kept[0]),
                static_cast<double>(kept[1]) / 1e6, static_cast<double>(kept[0]) / 1e6);
}

} // namespace

int main() {
    networks::prepare();
    for (const networks::Network &network : networks::all) compare(network);
    compare_kept();
    return 0;
}
