/*
 * arena.cpp - planned memory against malloc (planned.hpp) for the networks of the tests, chunks from the
 * smallest to the largest; those of the programs are in programs.cpp.
 */
#include "planned.hpp"

namespace {

constexpr int steps = 25, classes = 10;
static_assert(networks::count == 3, "each network has its sizes below");

memtrain::Tensors pictures(int64_t samples, int64_t side) {
    return {at::randn({samples, 3, side, side}), at::randint(classes, {samples}, at::kLong)};
}

planned::Work work(const networks::Network &network, int64_t side, std::vector<size_t> samples) {
    return {network, side, pictures, std::move(samples), 1, steps};
}

} // namespace

int main(int argc, char **argv) {
    const networks::Network *all = networks::all;
    return planned::run("arena",
                        {work(all[0], 64, {2, 8, 16, 32}), work(all[1], 64, {4, 8, 16, 32}),
                         work(all[2], 32, {4, 16, 64, 128})},
                        argc, argv);
}
