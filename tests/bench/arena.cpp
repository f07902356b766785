/*
 * arena.cpp - planned memory against malloc: for each network and several sizes of chunk the time of a
 * step over that with tensors from the heap, both sides in lock step, each in a process of its own; the
 * arena over the most bytes alive at a time; page faults of a step; and the highest resident bytes, code and
 * libraries taken off, over that bound with parameters, gradients and optimiser state. In brackets those of
 * the heap. Both sides end with the same state, or the benchmark fails. To be at most 0.97 in the median,
 * 1.00 for each network; 1.03 over the bound in the median and 1.08 at most; 0 faults; 1.10 resident.
 *
 *     arena  network=... samples=... time=... over_bound=... faults=... (...) resident=... (...) missed=...
 */
#include "networks/networks.hpp"
#include "process.hpp"

#include <csignal>
#include <fstream>
#include <memory>
#include <string>

#include <sys/resource.h>

namespace {

constexpr int warm_up = 5, steps = 25;
constexpr struct {
    int64_t side;
    size_t samples[4];
} work[networks::count] = {{64, {2, 8, 16, 32}}, {64, {4, 8, 16, 32}}, {32, {4, 16, 64, 128}}};

long faults() {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

/* The highest resident bytes start again from those of now. */
void forget_peak() {
    std::ofstream("/proc/self/clear_refs") << "5";
}

/* ---- one side ------------------------------------------------------------------------------------ */

void run_side(int index, size_t samples, int arena) {
    const networks::Network &network = networks::all[index];
    mt_torch_options torch_options = MT_TORCH_OPTIONS_INIT;
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_arena_stats stats = MT_ARENA_STATS_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_resident resident = MT_RESIDENT_INIT;
    torch_options.arena = arena;
    policy.micro_batch = samples;
    policy.keep_chunks = MT_KEEP_NEVER; /* parameters, one set of gradients, optimiser state */
    options.policy = &policy;
    networks::prepare();
    size_t before = networks::Subject::allocated();
    networks::Subject s(network, work[index].side, &torch_options);
    bench::Batch batch(static_cast<int64_t>(samples), work[index].side, 10);
    mt_trainer *trainer = s.trainer(&options);
    size_t state = networks::Subject::allocated() - before;
    for (int64_t few : {2, 4}) { /* as a learning batch is: two small chunks are recorded */
        bench::Batch small(few, work[index].side, 10);
        bench::must(mt_trainer_step(trainer, &small.batch, nullptr), "step");
    }
    bench::must(mt_empty_cache("cpu", nullptr), "empty_cache");
    bench::must(mt_device_resident("cpu", &resident), "resident");
    size_t start = resident.resident_bytes - state; /* code, libraries, and their own memory */
    forget_peak();
    while (bench::asked()) {
        mt_step_report step = MT_STEP_REPORT_INIT;
        long faults_before = faults();
        double begin = bench::now();
        bench::must(mt_trainer_step(trainer, &batch.batch, &step), "step");
        bench::answer("%.6f %ld", bench::now() - begin, faults() - faults_before);
    }
    bench::must(mt_torch_arena(s.torch, &stats), "arena");
    /* Before the state is hashed, for which libcrypto takes 2 MB at its first use. */
    bench::must(mt_device_resident("cpu", &resident), "resident");
    bench::must(mt_trainer_finish(trainer, &run), "finish");
    bench::answer("%zu %zu %zu %zu %llu %.64s", stats.bytes, stats.lower_bound_bytes, state,
                  resident.peak_bytes - start, static_cast<unsigned long long>(stats.missed),
                  run.state_sha256);
    mt_trainer_free(trainer);
}

/* ---- two sides ------------------------------------------------------------------------------------ */

struct Side {
    bench::Process process;
    std::vector<double> seconds, faults;
    size_t bytes = 0, bound = 0, state = 0, resident = 0;
    unsigned long long missed = 0;
    char hash[65] = "";

    Side(const char *program, int network, size_t samples, int arena)
        : process(
              {program, std::to_string(network), std::to_string(samples), std::to_string(arena)}) {}

    void step() {
        double time;
        long count;
        if (std::sscanf(process.step().c_str(), "%lf %ld", &time, &count) != 2)
            bench::give_up("a side has said nothing");
        seconds.push_back(time);
        faults.push_back(static_cast<double>(count));
    }
    void finish() {
        if (std::sscanf(process.finish().c_str(), "%zu %zu %zu %zu %llu %64s", &bytes, &bound,
                        &state, &resident, &missed, hash) != 6)
            bench::give_up("a side has said nothing");
        seconds.erase(seconds.begin(), seconds.begin() + warm_up);
        faults.erase(faults.begin(), faults.begin() + warm_up);
    }
};

/* The time of a step over that from the heap. */
double compare(const char *program, int network, size_t samples) {
    Side planned(program, network, samples, MT_ARENA_AUTO);
    Side heap(program, network, samples, MT_ARENA_NEVER);
    for (int i = 0; i < warm_up + steps; i++) {
        (i % 2 ? planned : heap).step();
        (i % 2 ? heap : planned).step();
    }
    planned.finish();
    heap.finish();
    if (std::string(planned.hash) != heap.hash) {
        std::fprintf(stderr, "arena: the states differ\n");
        std::exit(1);
    }
    double ratio = bench::median(planned.seconds) / bench::median(heap.seconds);
    double bound = static_cast<double>(planned.bound);
    double needed = bound + static_cast<double>(planned.state);
    std::printf("arena  network=%s samples=%zu time=%.4f over_bound=%.4f faults=%.0f (%.0f) "
                "resident=%.3f (%.3f) missed=%llu arena_mib=%.1f heap_ms=%.2f\n",
                networks::all[network].name, samples, ratio,
                static_cast<double>(planned.bytes) / bound, bench::median(planned.faults),
                bench::median(heap.faults), static_cast<double>(planned.resident) / needed,
                static_cast<double>(heap.resident) / needed, planned.missed,
                static_cast<double>(planned.bytes) / (1 << 20), 1e3 * bench::median(heap.seconds));
    std::fflush(stdout);
    return ratio;
}

} // namespace

int main(int argc, char **argv) {
    std::vector<double> all;
    if (argc == 4) {
        run_side(std::atoi(argv[1]), std::strtoul(argv[2], nullptr, 10), std::atoi(argv[3]));
        return 0;
    }
    std::signal(SIGPIPE, SIG_IGN);
    for (int network = 0; network < networks::count; network++) {
        std::vector<double> own;
        for (size_t samples : work[network].samples)
            own.push_back(compare(argv[0], network, samples));
        all.insert(all.end(), own.begin(), own.end());
        std::printf("arena  network=%s time_median=%.4f\n", networks::all[network].name,
                    bench::median(own));
    }
    std::printf("arena  time_median=%.4f\n", bench::median(all));
    return 0;
}
