/*
 * peak.cpp - how well two small recordings predict the peak of larger chunks: each network at 32 and
 * 64 pixels, recorded at 2 and 4 samples, measured up to 32 times that. To be within 1 %. From where a
 * network's kernels are others, recordings of the smallest such size and twice that speak, as in a policy.
 */
#include "networks/networks.hpp"
#include "recorded.hpp"

#include <cmath>

namespace {

bool is_missed;

double worst_of(const networks::Network &network, int64_t side) {
    const size_t most = 128;
    networks::Subject s(network, side);
    bench::Batch batch(static_cast<int64_t>(most), side, 10);
    mt_memory_model *few = bench::learn(s.backend, batch.batch);
    mt_memory_model *many =
        network.change ? bench::learn(s.backend, batch.batch, network.change) : nullptr;
    double worst = 0;
    for (size_t m = 2; m <= most; m *= 2) {
        size_t measured = bench::run_chunk(s.backend, batch.batch, m, nullptr);
        size_t predicted = mt_memory_model_peak(many && m >= network.change ? many : few, m);
        double error = 100.0 * (static_cast<double>(predicted) / static_cast<double>(measured) - 1);
        std::printf("peak  network=%s pixels=%lld chunk=%zu predicted=%zu measured=%zu "
                    "error_percent=%.4f\n",
                    network.name, static_cast<long long>(side), m, predicted, measured, error);
        worst = std::max(worst, std::fabs(error));
        is_missed |= std::fabs(error) > 1;
    }
    mt_memory_model_free(few);
    mt_memory_model_free(many);
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
    return is_missed;
}
