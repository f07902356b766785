/*
 * oracle.cpp - automatic sizing against the best fixed micro-batch, found by trying all of them: for
 * each network and three budgets the time of 20 batches, learning included, over that of the oracle;
 * and the samples that were thrown away. To be at most 1.05, and at most 6 where layers normalise, else 0. There the
 * best has chunks of at least 8, as the policy's, if they fit.
 *
 * Every side is a process of its own, since a heap remembers the sizes it has served. The processes
 * go in lock step, one batch each in turn: a slow moment of the machine hits all of them. The name of a
 * network as an argument runs that one alone.
 */
#include "networks/networks.hpp"
#include "process.hpp"

#include <cmath>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>

#include <sys/mman.h>

#include "tuned.h" /* last: its macros have short names */

namespace {

constexpr int batches = 20;
constexpr double most_ratio = 1.05;
constexpr size_t least_turns = 4, most_turns = 16; /* more of them where the machine is not quiet */
constexpr double close_enough = 0.01;              /* error of the median ratio */
constexpr double budgets[] = {0.3, 0.6, 1.1}; /* between the smallest chunk and the whole batch */

/*
 * Pictures and batches of each network, in its order: small, but what a new size costs once (40 ms with
 * ResNet-18, whose kernels oneDNN makes anew for each of five) is not most of a batch. MobileNetV2 was published for
 * pictures of 96 pixels and more.
 */
constexpr struct {
    int64_t side, samples;
} work[networks::count] = {{64, 64}, {96, 128}, {32, 128}};

/* ---- one side: a step for each byte that comes in --------------------------------------------------- */

void report(mt_trainer *trainer) {
    mt_run_report run = MT_RUN_REPORT_INIT;
    bench::must(mt_trainer_summary(trainer, &run), "summary");
    bench::answer("%llu %llu %zu", static_cast<unsigned long long>(run.ooms),
                  static_cast<unsigned long long>(run.samples_discarded), run.largest_chunk);
}

/* micro 0: automatic; room 0: without a budget of its own. */
void run_side(int index, size_t micro, size_t room) {
    const networks::Network &network = networks::all[index];
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    networks::prepare();
    networks::Subject s(network, work[index].side);
    bench::Batch batch(work[index].samples, work[index].side, 10);
    policy.micro_batch = micro;
    if (!room) policy.keep_chunks = MT_KEEP_NEVER; /* what is tried fits into the least memory */
    options.policy = &policy;
    if (room) networks::Subject::set_budget(room);
    mt_trainer *trainer = s.trainer(&options);
    size_t before = networks::Subject::allocated();
    while (bench::asked()) {
        mt_step_report step = MT_STEP_REPORT_INIT;
        double start = bench::now();
        bench::must(mt_trainer_step(trainer, &batch.batch, &step), "step");
        bench::answer("%.6f %zu", bench::now() - start, step.peak_bytes - before);
    }
    report(trainer);
    mt_trainer_free(trainer);
}

/* ---- a side seen from the parent, which never uses libtorch itself ---------------------------------- */

struct Side {
    size_t micro;
    bench::Process process;
    std::vector<double> seconds;
    size_t peak = 0;
    unsigned long long ooms = 0, discarded = 0;
    size_t largest = 0;

    Side(const char *program, int network, size_t micro_batch, size_t room)
        : micro(micro_batch), process({program, std::to_string(network),
                                       std::to_string(micro_batch), std::to_string(room)}) {}

    void step() {
        double time;
        if (std::sscanf(process.step().c_str(), "%lf %zu", &time, &peak) != 2)
            bench::give_up("a side has said nothing");
        seconds.push_back(time);
    }
    void finish() {
        if (std::sscanf(process.finish().c_str(), "%llu %llu %zu", &ooms, &discarded, &largest) !=
            3)
            bench::give_up("a side has said nothing");
    }
    double total() const {
        double sum = 0;
        for (double s : seconds) sum += s;
        return sum;
    }
};

using Sides = std::vector<std::unique_ptr<Side>>;

/* In alternating order, so that none is always behind the same one. */
void lock_step(const Sides &sides, int count) {
    for (int i = 0; i < count; i++)
        for (size_t j = 0; j < sides.size(); j++) sides[i % 2 ? sides.size() - 1 - j : j]->step();
}

/*
 * A virtual machine pays its host for memory that none of its programs has touched yet: 128 MiB took 550 ms, and
 * 35 ms the next time. The side that comes to it first would pay for both, so it is touched before.
 */
void touch_memory() {
    constexpr size_t bytes = size_t(2) << 30;
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    std::memset(memory, 1, bytes);
    munmap(memory, bytes);
}

/* ---- the oracle --------------------------------------------------------------------------------------- */

size_t room_of(double share, const Sides &sides) {
    double whole = static_cast<double>(sides.front()->peak);
    double least = static_cast<double>(sides.back()->peak);
    return static_cast<size_t>(least + share * (whole - least));
}

/* Of a batch, the first one left out. */
double seconds_of(const Side &side) {
    return bench::median(std::vector<double>(side.seconds.begin() + 1, side.seconds.end()));
}

/* Where layers normalise over a chunk, those of few samples are another training: only where no larger ones fit. */
const Side &best_within(const Sides &sides, size_t room, bool normalises) {
    const Side *best = nullptr;
    for (auto &side : sides) { /* the largest comes first */
        bool is_another = normalises && best && side->micro < LEAST_NORMALISED;
        if (side->peak > room || is_another) continue;
        if (!best || seconds_of(*side) < seconds_of(*best)) best = side.get();
    }
    if (!best) bench::give_up("nothing fits");
    return *best;
}

/* One micro-batch for each number of chunks; the first is the whole batch, the last the smallest. */
Sides start_all(const char *program, int network) {
    const int64_t least = networks::all[network].normalises ? 2 : 1, all = work[network].samples;
    Sides sides;
    for (int64_t chunks = 1; chunks * least <= all; chunks++) {
        int64_t micro = (all + chunks - 1) / chunks;
        if (!sides.empty() && sides.back()->micro == static_cast<size_t>(micro)) continue;
        sides.push_back(std::make_unique<Side>(program, network, static_cast<size_t>(micro), 0));
    }
    return sides;
}

/* Goes on with those that are nearly the best within some budget: there the choice is close. */
void run_finalists(const Sides &sides, bool normalises) {
    std::vector<size_t> finalists;
    for (size_t i = 0; i < sides.size(); i++)
        for (double share : budgets) {
            size_t room = room_of(share, sides);
            if (sides[i]->peak > room) continue;
            if (seconds_of(*sides[i]) > 1.1 * seconds_of(best_within(sides, room, normalises)))
                continue;
            finalists.push_back(i);
            break;
        }
    for (int batch = 0; batch < 6; batch++)
        for (size_t i : finalists) sides[i]->step();
}

/* Standard error of the median, from the median distance to it, as for a normal distribution. */
double error_of_median(const std::vector<double> &values) {
    double middle = bench::median(values);
    std::vector<double> distances;
    for (double value : values) distances.push_back(std::abs(value - middle));
    return 1.253 * 1.483 * bench::median(distances) / std::sqrt(static_cast<double>(values.size()));
}

/* The median is known well, and on which side of the bound it is. */
bool is_settled(const std::vector<double> &ratios) {
    if (ratios.size() < least_turns || ratios.size() % 2) return false;
    if (ratios.size() >= most_turns) return true;
    double error = error_of_median(ratios);
    return error <= close_enough && std::abs(bench::median(ratios) - most_ratio) > 2 * error;
}

/*
 * Automatic sizing against the best fixed micro-batch, both from their first batch on. The side that is started
 * first takes half a hundredth longer, so they take turns in that too. Returns the median ratio.
 */
double race(const char *program, int network, size_t oracle, size_t room) {
    std::vector<double> ratios;
    double ours = 0, theirs = 0;
    unsigned long long ooms = 0, discarded = 0;
    size_t largest = 0;
    while (!is_settled(ratios)) {
        Sides sides;
        bool is_first = ratios.size() % 2 == 0;
        sides.push_back(std::make_unique<Side>(program, network, is_first ? 0 : oracle, room));
        sides.push_back(std::make_unique<Side>(program, network, is_first ? oracle : 0, room));
        lock_step(sides, batches);
        for (auto &side : sides) side->finish();
        if (!is_first) std::swap(sides[0], sides[1]);
        ratios.push_back(sides[0]->total() / sides[1]->total());
        ours += sides[0]->total();
        theirs += sides[1]->total();
        ooms = std::max(ooms, sides[0]->ooms);
        discarded = std::max(discarded, sides[0]->discarded);
        largest = sides[0]->largest;
    }
    double turns = static_cast<double>(ratios.size());
    std::printf(
        "oracle  network=%s room_mib=%.1f ratio_median=%.4f error=%.4f ratio_best=%.4f turns=%zu "
        "auto_ms=%.1f oracle_ms=%.1f oracle_micro_batch=%zu largest_chunk=%zu discarded=%llu "
        "ooms=%llu\n",
        networks::all[network].name, static_cast<double>(room) / (1 << 20), bench::median(ratios),
        error_of_median(ratios), *std::min_element(ratios.begin(), ratios.end()), ratios.size(),
        1e3 * ours / turns, 1e3 * theirs / turns, oracle, largest, discarded, ooms);
    std::fflush(stdout);
    return bench::median(ratios);
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 4) {
        run_side(std::atoi(argv[1]), std::strtoul(argv[2], nullptr, 10),
                 std::strtoul(argv[3], nullptr, 10));
        return 0;
    }
    int missed = 0;
    std::signal(SIGPIPE, SIG_IGN);
    for (int network = 0; network < networks::count; network++) {
        if (argc == 2 && std::strcmp(argv[1], networks::all[network].name) != 0) continue;
        Sides sides = start_all(argv[0], network);
        lock_step(sides, 3);
        bool normalises = networks::all[network].normalises;
        run_finalists(sides, normalises);
        for (auto &side : sides) side->finish();
        for (auto &side : sides)
            std::printf("oracle  network=%s micro_batch=%zu ms=%.2f peak=%zu\n",
                        networks::all[network].name, side->micro, 1e3 * seconds_of(*side),
                        side->peak);
        for (double share : budgets) {
            size_t room = room_of(share, sides);
            touch_memory();
            double ratio = race(argv[0], network, best_within(sides, room, normalises).micro, room);
            missed += ratio > most_ratio;
        }
    }
    return missed > 0;
}
