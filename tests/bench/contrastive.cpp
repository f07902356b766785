/*
 * contrastive.cpp - what a loss over pairs costs by cached embeddings: batches of 128 pairs in chunks of 16
 * against a batch of 16, in memory, and against the same chunks each with a loss of its own (plain
 * accumulation: another gradient, of 15 negatives in the place of 127), in time. All take turns.
 * peak_ratio is to be at most 1.10, time_ratio at most 1.6; 4/3 is what two forward passes and one backward
 * pass come to where a backward pass takes twice as long as a forward one.
 */
#include "bench.hpp"
#include "networks/networks.hpp"
#include "networks/towers.hpp"

namespace {

constexpr size_t batch = 128, chunk = 16;
constexpr int warm_up = 3, rounds = 11;

networks::TowersOptions towers() {
    networks::TowersOptions o;
    o.image.side = 64;
    o.image.width = 192;
    o.length = 64;
    o.vocabulary = 256;
    o.embedding = 128;
    return o;
}

/* One way to train the towers. */
struct Side {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    size_t peak = 0; /* above what is there between steps */
    std::vector<double> seconds;

    template <class Describe> explicit Side(Describe &&describe) {
        auto net = std::make_shared<networks::TowersImpl>(towers());
        bench::must(memtrain::make_model(&model, [&] { return describe(net); }), "model");
        bench::must(mt_torch_new(model, nullptr, &torch), "torch");
    }
    ~Side() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Side(const Side &) = delete;
    Side &operator=(const Side &) = delete;

    /* The time is that of the whole step, from begin to apply. */
    void step(const networks::Pairs &pairs, bool is_cached) {
        mt_chunk_result result = {};
        mt_apply_result applied = {};
        size_t before = networks::Subject::allocated(), samples = pairs.batch.count;
        std::vector<size_t> chunks(samples / chunk, chunk);
        result.size = sizeof result;
        applied.size = sizeof applied;
        double start = bench::now(), most = 0;
        bench::must(mt_begin(torch, &pairs.batch), "begin");
        if (is_cached)
            bench::must(mt_prepare(torch, chunks.data(), chunks.size(), &result), "prepare");
        if (is_cached) most = static_cast<double>(result.peak_bytes);
        for (size_t first = 0; first < samples; first += chunk) {
            double weight = static_cast<double>(chunk) / static_cast<double>(samples);
            bench::must(mt_accumulate(torch, first, chunk, weight, &result), "accumulate");
            most = std::max(most, static_cast<double>(result.peak_bytes));
        }
        bench::must(mt_apply(torch, &applied), "apply");
        seconds.push_back(bench::now() - start);
        peak = static_cast<size_t>(most) - before;
    }
};

} // namespace

int main() {
    networks::prepare();
    Side cached(networks::contrastive), small(networks::contrastive), plain(networks::plain);
    networks::Pairs pairs(batch, towers()), few(chunk, towers());
    std::vector<double> ratios;
    for (int i = 0; i < warm_up + rounds; i++) {
        cached.step(pairs, true);
        plain.step(pairs, false);
        small.step(few, true);
        if (i >= warm_up) ratios.push_back(cached.seconds.back() / plain.seconds.back());
    }
    std::printf(
        "contrastive  128 in chunks of 16: peak_ratio=%.3f time_ratio=%.3f  peak_MB=%.2f of "
        "%.2f  ms=%.1f of %.1f\n",
        static_cast<double>(cached.peak) / static_cast<double>(small.peak), bench::median(ratios),
        static_cast<double>(cached.peak) / 1e6, static_cast<double>(small.peak) / 1e6,
        1e3 * bench::median(cached.seconds), 1e3 * bench::median(plain.seconds));
    return 0;
}
