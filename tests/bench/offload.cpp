/*
 * offload.cpp - what saved tensors that wait elsewhere save and cost: a chunk of 32 pictures of 64 x 64
 * pixels of ResNet-18 with each place against the same chunk without; all take turns. peak is what a chunk
 * takes beside parameters, optimiser state and gradients, at most; packed is what the tensors that are
 * put away take there, of what they took.
 */
#include "networks/networks.hpp"

namespace {

using networks::Subject;

constexpr int64_t pixels = 64, classes = 10;
constexpr size_t count = 32;
constexpr int warm_up = 3, rounds = 15;

struct Side {
    const char *name;
    int offload;
    std::unique_ptr<Subject> subject = nullptr;
    std::vector<double> seconds = {}, ratios = {};
    size_t peak = 0;
};

mt_offload_stats stats_of(const Side &side) {
    mt_offload_stats stats = MT_OFFLOAD_STATS_INIT;
    bench::must(mt_torch_offload_stats(side.subject->torch, &stats), "stats");
    return stats;
}

void run_chunk(const bench::Batch &batch, Side &side) {
    mt_chunk_result result = {};
    result.size = sizeof result;
    bench::must(mt_begin(side.subject->torch, &batch.batch), "begin");
    size_t before = Subject::allocated();
    bench::must(mt_accumulate(side.subject->torch, 0, count, 1.0, &result), "accumulate");
    side.seconds.push_back(result.seconds);
    side.peak = result.peak_bytes - before;
    bench::must(mt_rollback(side.subject->torch), "rollback");
}

void print(const Side &side, const Side &plain) {
    mt_offload_stats stats = stats_of(side);
    std::printf("offload   resnet18  %s: packed_ratio=%.3f peak_ratio=%.3f time_ratio=%.3f  "
                "waiting_MB=%.1f  peak_MB=%.1f of %.1f  ms=%.1f of %.1f\n",
                side.name,
                static_cast<double>(stats.total_packed_bytes) /
                    static_cast<double>(stats.total_original_bytes),
                static_cast<double>(side.peak) / static_cast<double>(plain.peak),
                bench::median(side.ratios), static_cast<double>(stats.peak_packed_bytes) / 1e6,
                static_cast<double>(side.peak) / 1e6, static_cast<double>(plain.peak) / 1e6,
                1e3 * bench::median(side.seconds), 1e3 * bench::median(plain.seconds));
}

} // namespace

int main() {
    Side sides[] = {{"none", MT_OFFLOAD_NEVER},
                    {"host", MT_OFFLOAD_HOST},
                    {"file", MT_OFFLOAD_FILE},
                    {"pack", MT_OFFLOAD_PACK}};
    networks::prepare();
    bench::Batch batch(static_cast<int64_t>(count), pixels, classes);
    for (Side &side : sides) {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        options.optimizer = MT_SGD;
        options.offload = side.offload;
        side.subject = std::make_unique<Subject>(networks::all[0], pixels, &options);
    }
    for (int i = 0; i < warm_up + rounds; i++)
        for (Side &side : sides) {
            run_chunk(batch, side);
            if (i >= warm_up) side.ratios.push_back(side.seconds.back() / sides[0].seconds.back());
        }
    for (int i = 1; i < 4; i++) print(sides[i], sides[0]);
    return 0;
}
