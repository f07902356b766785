/*
 * segments.cpp - what segments that are computed again save and cost: a chunk of 32 pictures of 64 x 64
 * pixels with all of a network's segments against the same chunk without. The two take turns. peak is
 * what a chunk takes beside parameters, optimiser state and gradients, at most; kept is what of it is
 * there when the forward pass is through (ResNet-18 alone).
 *
 * Of ResNet-50, a chunk of 8 pictures of 128 x 128 pixels: all segments, and those that are chosen for
 * budgets of 0.7 and 0.5 of the peak without. "costs" as an argument prints what was measured of each.
 */
#include <memory>
#include <string>

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
    bench::must(mt_accumulate(subject.torch, 0, batch.batch.count, 1.0, &result), "accumulate");
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

/* ---- segments that are chosen -------------------------------------------------------------------- */

/* A ResNet-50 that runs in one way; has had its first step, in which segments are measured. */
struct Way {
    std::string name;
    std::unique_ptr<Subject> subject;
    Side side = {};
    std::vector<double> ratios = {};

    Way(const char *n, int checkpointing, double share, const bench::Batch &batch) : name(n) {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        options.optimizer = MT_SGD;
        options.checkpointing = checkpointing;
        options.activation_share = share;
        networks::prepare();
        subject = std::make_unique<Subject>(networks::resnet50, 128, &options);
        bench::must(mt_train_step(subject->torch, &batch.batch, nullptr, nullptr), "step");
    }
};

mt_segments_stats stats_of(const Way &way) {
    mt_segments_stats stats = MT_SEGMENTS_STATS_INIT;
    bench::must(mt_torch_segments(way.subject->torch, &stats), "segments");
    return stats;
}

void print(const Way &way, const Way &plain) {
    mt_segments_stats stats = stats_of(way);
    std::printf(
        "segments  resnet50 %s peak_ratio=%.3f time_ratio=%.3f  peak_MB=%.1f of %.1f  ms=%.0f "
        "of %.0f",
        way.name.c_str(), static_cast<double>(way.side.peak) / static_cast<double>(plain.side.peak),
        bench::median(way.ratios), static_cast<double>(way.side.peak) / 1e6,
        static_cast<double>(plain.side.peak) / 1e6, 1e3 * bench::median(way.side.seconds),
        1e3 * bench::median(plain.side.seconds));
    if (stats.segments)
        std::printf("  %zu of %zu, predicted_MB=%.1f", stats.recomputed, stats.segments,
                    static_cast<double>(stats.peak_bytes) / 1e6);
    std::printf("\n");
}

void print_costs(const Way &way) {
    mt_segments_stats stats = stats_of(way);
    for (size_t i = 0; i < stats.segments; i++)
        std::printf("%s segment %2zu: kept_MB=%6.2f output_MB=%5.2f work_MB=%6.2f ms=%6.2f %s\n",
                    way.name.c_str(), i, static_cast<double>(stats.costs[i].kept_bytes) / 1e6,
                    static_cast<double>(stats.costs[i].output_bytes) / 1e6,
                    static_cast<double>(stats.costs[i].work_bytes) / 1e6,
                    1e3 * stats.costs[i].seconds, stats.recompute[i] ? "again" : "");
}

void compare_chosen(bool costs) {
    bench::Batch batch(8, 128, classes);
    std::vector<Way> ways;
    ways.emplace_back("plain     ", MT_CHECKPOINTING_AUTO, 0.0, batch);
    ways.emplace_back("all       ", MT_CHECKPOINTING_ON, 0.0, batch);
    ways.emplace_back("chosen 0.7", MT_CHECKPOINTING_CHOSEN, 0.7, batch);
    ways.emplace_back("chosen 0.5", MT_CHECKPOINTING_CHOSEN, 0.5, batch);
    for (int i = 0; i < 2 + 9; i++) {
        for (Way &way : ways) run_chunk(*way.subject, batch, way.side);
        if (i < 2) continue;
        for (Way &way : ways)
            way.ratios.push_back(way.side.seconds.back() / ways[0].side.seconds.back());
    }
    for (size_t i = 1; i < ways.size(); i++) print(ways[i], ways[0]);
    if (costs) print_costs(ways[2]);
    if (costs) print_costs(ways[3]);
}

} // namespace

int main(int argc, char **) {
    networks::prepare();
    compare_chosen(argc > 1);
    if (argc > 1) return 0;
    for (const networks::Network &network : networks::all) compare(network);
    compare_kept();
    return 0;
}
