/*
 * peak.cpp - how well two small recordings predict the peak of larger chunks: each network at 32 and
 * 64 pixels, recorded at 2 and 4 samples, measured up to 32 times that. To be within 1 %.
 */
#include "networks/networks.hpp"

#include <cmath>

namespace {

void on_event(void *user, void *address, int64_t bytes) {
    mt_recording_event(static_cast<mt_recording *>(user), address, bytes);
}

/* Runs one chunk and takes it back; returns its peak above the start. */
size_t run_chunk(const mt_backend &b, const mt_batch &batch, size_t count,
                 mt_recording *recording) {
    mt_memory memory = {};
    mt_chunk_result result = {};
    memory.size = sizeof memory;
    result.size = sizeof result;
    bench::must(b.begin(b.self, &batch), "begin");
    bench::must(b.memory(b.self, &memory), "memory");
    if (recording) {
        mt_event_sink sink = {recording, on_event};
        bench::must(mt_recording_start(recording, count), "recording");
        bench::must(b.record(b.self, &sink), "record");
    }
    bench::must(b.accumulate(b.self, 0, count, 1.0, &result), "accumulate");
    if (recording) bench::must(b.record(b.self, nullptr), "record");
    bench::must(b.rollback(b.self), "rollback");
    return result.peak_bytes - memory.allocated_bytes;
}

double worst_of(const networks::Network &network, int64_t side) {
    const size_t most = 128;
    networks::Subject s(network, side);
    mt_recording *small = nullptr, *large = nullptr;
    mt_memory_model *memory = nullptr;
    bench::Batch batch(static_cast<int64_t>(most), side, 10);
    bench::must(mt_recording_new(&small), "recording");
    bench::must(mt_recording_new(&large), "recording");
    run_chunk(s.backend, batch.batch, 2, small);
    run_chunk(s.backend, batch.batch, 4, large);
    bench::must(mt_memory_model_new(small, large, &memory), "model");
    double worst = 0;
    for (size_t m = 2; m <= most; m *= 2) {
        size_t measured = run_chunk(s.backend, batch.batch, m, nullptr);
        size_t predicted = mt_memory_model_peak(memory, m);
        double error = 100.0 * (static_cast<double>(predicted) / static_cast<double>(measured) - 1);
        std::printf("peak  network=%s pixels=%lld chunk=%zu predicted=%zu measured=%zu "
                    "error_percent=%.4f\n",
                    network.name, static_cast<long long>(side), m, predicted, measured, error);
        worst = std::max(worst, std::fabs(error));
    }
    mt_memory_model_free(memory);
    mt_recording_free(small);
    mt_recording_free(large);
    return worst;
}

} // namespace

int main() {
    double worst = 0;
    networks::prepare();
    for (const networks::Network &network : networks::all)
        for (int64_t side : {network.side, 2 * network.side})
            worst = std::max(worst, worst_of(network, side));
    worst = std::max(worst, worst_of(networks::all[0], 128)); /* ResNet-18 */
    std::printf("peak  worst_percent=%.4f\n", worst);
    return 0;
}
