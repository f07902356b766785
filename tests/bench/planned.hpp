/*
 * planned.hpp - planned memory against malloc: for each network and several sizes of chunk the time of a
 * step over that with libtorch's own allocator, which takes each tensor from malloc, and over that with our
 * heap, which is malloc that keeps its pages (time_heap); the three in lock step, each in a process of its own. Then
 * the arena over the most bytes alive at a time; page faults of a step; and the highest resident bytes, code and
 * libraries taken off, over that bound with parameters, gradients and optimiser state. In brackets those of
 * our heap. What is taken off is what is resident without tensors after a step; resident_first has in it what
 * the first step of the size maps and keeps, code of libtorch and kernels that are made, which is no tensor's.
 *
 * All end with the same state, or the benchmark fails. time is to be at most 0.97 in the median, 1.00 for each
 * network, which is asked of time_heap too; 1.03 over the bound in the median and 1.08 at most; 0 faults; 1.10
 * resident at most.
 *
 *     NAME  network=... samples=... time=... time_heap=... over_bound=... faults=... (...) resident=... (...)
 */
#ifndef BENCH_PLANNED_HPP
#define BENCH_PLANNED_HPP

#include "networks/batches.hpp"
#include "networks/networks.hpp"
#include "process.hpp"

#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include <sys/resource.h>

namespace planned {

constexpr int warm_up = 5;

/* Where the tensors of a side lie. */
enum Memory { PLANNED, HEAP, MALLOC };

/* A network, and how it is run. */
struct Work {
    networks::Network network;
    int64_t side;                                                /* of its pictures */
    memtrain::Tensors (*tensors)(int64_t samples, int64_t side); /* of a batch */
    std::vector<size_t> samples;                                 /* of a chunk, one size a row */
    size_t chunks;                                               /* of a batch */
    int steps;                                                   /* that are timed */
};

inline long faults() {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

/* The highest resident bytes start again from those of now. */
inline void forget_peak() {
    std::ofstream("/proc/self/clear_refs") << "5";
}

/* ---- one side ------------------------------------------------------------------------------------ */

inline networks::TensorBatch batch_of(const Work &work, size_t samples) {
    return networks::TensorBatch(work.tensors(static_cast<int64_t>(samples), work.side));
}

inline mt_resident resident_now() {
    mt_resident resident = MT_RESIDENT_INIT;
    bench::must(mt_device_resident("cpu", &resident), "resident");
    return resident;
}

/* Code, libraries, their own memory: what is resident without the state. */
inline size_t others(size_t state) {
    return resident_now().resident_bytes - state;
}

/* As a learning batch does: two small chunks are recorded. */
inline void learn(const Work &work, mt_trainer *trainer) {
    for (size_t few : {2, 4}) {
        networks::TensorBatch small = batch_of(work, few);
        bench::must(mt_trainer_step(trainer, small.get(), nullptr), "step");
    }
    bench::must(mt_empty_cache("cpu", nullptr), "empty_cache");
}

/* A step for each piece of work that is asked for. */
inline void serve_steps(mt_trainer *trainer, const mt_batch *batch) {
    while (bench::asked()) {
        long faults_before = faults();
        double begin = bench::now();
        bench::must(mt_trainer_step(trainer, batch, nullptr), "step");
        bench::answer("%.6f %ld", bench::now() - begin, faults() - faults_before);
    }
}

inline void run_side(const Work &work, size_t samples, Memory memory) {
    mt_torch_init_options init = MT_TORCH_INIT_OPTIONS_INIT;
    mt_torch_options torch_options = MT_TORCH_OPTIONS_INIT;
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_arena_stats stats = MT_ARENA_STATS_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    init.keep_allocator = memory == MALLOC;
    torch_options.arena = memory == PLANNED ? MT_ARENA_AUTO : MT_ARENA_NEVER;
    policy.micro_batch = samples;
    policy.keep_chunks = MT_KEEP_NEVER; /* parameters, one set of gradients, optimiser state */
    options.policy = &policy;
    bench::must(mt_torch_init(&init), "init");
    networks::prepare();
    networks::TensorBatch batch = batch_of(work, work.chunks * samples);
    size_t before = networks::Subject::allocated();
    networks::Subject s(work.network, work.side, &torch_options);
    mt_trainer *trainer = s.trainer(&options);
    size_t state = networks::Subject::allocated() - before;
    learn(work, trainer);
    size_t before_first = others(state);
    forget_peak();
    bench::must(mt_trainer_step(trainer, batch.get(), nullptr), "step");
    size_t first = resident_now().peak_bytes - before_first;
    bench::must(mt_empty_cache("cpu", nullptr), "empty_cache");
    size_t start = others(state);
    forget_peak();
    serve_steps(trainer, batch.get());
    bench::must(mt_torch_arena(s.torch, &stats), "arena");
    /* Before the state is hashed, for which libcrypto takes 2 MB at its first use. */
    size_t peak = resident_now().peak_bytes;
    first = std::max(first, peak - before_first);
    bench::must(mt_trainer_finish(trainer, &run), "finish");
    bench::answer("%zu %zu %zu %zu %zu %llu %.64s", stats.bytes, stats.lower_bound_bytes, state,
                  peak - start, first, static_cast<unsigned long long>(stats.missed),
                  run.state_sha256);
    mt_trainer_free(trainer);
}

/* ---- three sides ---------------------------------------------------------------------------------- */

struct Side {
    bench::Process process;
    std::vector<double> seconds, faults;
    size_t bytes = 0, bound = 0, state = 0, resident = 0, first = 0;
    unsigned long long missed = 0;
    char hash[65] = "";

    Side(const char *program, size_t work, size_t samples, Memory memory)
        : process(
              {program, std::to_string(work), std::to_string(samples), std::to_string(memory)}) {}

    void step() {
        double time;
        long count;
        if (std::sscanf(process.step().c_str(), "%lf %ld", &time, &count) != 2)
            bench::give_up("a side has said nothing");
        seconds.push_back(time);
        faults.push_back(static_cast<double>(count));
    }
    void finish() {
        if (std::sscanf(process.finish().c_str(), "%zu %zu %zu %zu %zu %llu %64s", &bytes, &bound,
                        &state, &resident, &first, &missed, hash) != 7)
            bench::give_up("a side has said nothing");
        seconds.erase(seconds.begin(), seconds.begin() + warm_up);
        faults.erase(faults.begin(), faults.begin() + warm_up);
    }
};

/* A benchmark: its name, its file, and what it runs. */
struct Bench {
    const char *name, *program;
    std::vector<Work> works;
    std::vector<double> times = {}, heap_times = {}, over_bounds = {},
                        residents = {};   /* of all rows so far */
    bool is_slow = false, faults = false; /* a network's own median, and any row's */

    /* Three sides take turns, and in turn to be the first. */
    void compare(size_t index, size_t samples) {
        Side planned(program, index, samples, PLANNED), heap(program, index, samples, HEAP);
        Side malloc(program, index, samples, MALLOC);
        Side *sides[] = {&planned, &heap, &malloc};
        for (int i = 0; i < warm_up + works[index].steps; i++)
            for (int j = 0; j < 3; j++) sides[(i + j) % 3]->step();
        for (Side *side : sides) side->finish();
        if (std::string(planned.hash) != heap.hash || std::string(heap.hash) != malloc.hash) {
            std::fprintf(stderr, "%s: the states differ\n", name);
            std::exit(1);
        }
        times.push_back(bench::median(planned.seconds) / bench::median(malloc.seconds));
        heap_times.push_back(bench::median(planned.seconds) / bench::median(heap.seconds));
        print_row(works[index].network.name, samples, planned, heap, malloc);
    }

    void print_row(const char *network, size_t samples, const Side &planned, const Side &heap,
                   const Side &malloc) {
        double bound = static_cast<double>(planned.bound);
        double needed = bound + static_cast<double>(planned.state);
        over_bounds.push_back(static_cast<double>(planned.bytes) / bound);
        residents.push_back(static_cast<double>(planned.resident) / needed);
        faults |= bench::median(planned.faults) > 0;
        std::printf(
            "%s  network=%s samples=%zu time=%.4f time_heap=%.4f over_bound=%.4f "
            "faults=%.0f (%.0f, malloc %.0f) resident=%.3f (%.3f) resident_first=%.3f "
            "missed=%llu arena_mib=%.1f malloc_ms=%.2f\n",
            name, network, samples, times.back(), heap_times.back(), over_bounds.back(),
            bench::median(planned.faults), bench::median(heap.faults), bench::median(malloc.faults),
            residents.back(), static_cast<double>(heap.resident) / needed,
            static_cast<double>(planned.first) / needed, planned.missed,
            static_cast<double>(planned.bytes) / (1 << 20), 1e3 * bench::median(malloc.seconds));
        std::fflush(stdout);
    }

    void compare_all(size_t index) {
        size_t first = times.size();
        for (size_t samples : works[index].samples) compare(index, samples);
        auto own = [&](const std::vector<double> &all) {
            return bench::median({all.begin() + static_cast<std::ptrdiff_t>(first), all.end()});
        };
        std::printf("%s  network=%s time_median=%.4f time_heap_median=%.4f\n", name,
                    works[index].network.name, own(times), own(heap_times));
        is_slow |= own(times) > 1.0 || own(heap_times) > 1.0;
    }

    /* Prints what is true of all rows; false: above the limits. */
    bool summarise() const {
        double time = bench::median(times), over_bound = bench::median(over_bounds);
        double most = *std::max_element(over_bounds.begin(), over_bounds.end());
        double resident = *std::max_element(residents.begin(), residents.end());
        std::printf("%s  time_median=%.4f time_heap_median=%.4f over_bound_median=%.4f "
                    "over_bound_most=%.4f resident_most=%.3f\n",
                    name, time, bench::median(heap_times), over_bound, most, resident);
        return time <= 0.97 && !is_slow && over_bound <= 1.03 && most <= 1.08 && !faults &&
               resident <= 1.10;
    }
};

/* The whole program; an argument is the name of the only network to run. */
inline int run(const char *name, const std::vector<Work> &works, int argc, char **argv) {
    if (argc == 4) {
        run_side(works.at(std::strtoul(argv[1], nullptr, 10)), std::strtoul(argv[2], nullptr, 10),
                 static_cast<Memory>(std::atoi(argv[3])));
        return 0;
    }
    std::signal(SIGPIPE, SIG_IGN);
    Bench rows{name, argv[0], works};
    for (size_t i = 0; i < works.size(); i++)
        if (argc < 2 || !std::strcmp(argv[1], works[i].network.name)) rows.compare_all(i);
    if (rows.times.empty()) {
        std::fprintf(stderr, "%s: '%s' is no network of this benchmark\n", name, argv[1]);
        return 2;
    }
    return rows.summarise() ? 0 : 1;
}

} // namespace planned
#endif
