/*
 * first.cpp - the first step where few samples fit: networks at the sizes of their papers, a batch of 16, and budgets for so
 * many samples at once. Its time over that of a fresh process that is given the best chunks; OOMs, and samples that were
 * computed in vain. Then the same by a second run, which reads what the first has learnt.
 *
 *     first  network=... fits=... time=... ooms=... discarded=... time_second=... ooms_second=... discarded_second=...
 *
 * Every step is a process of its own. The best chunks are looked for first; where layers normalise, among those of at least 8
 * samples, as the policy's, or the largest that fit. Then the three take turns, and the least time of each counts. At most 1.3,
 * 1 OOM, 2 samples; the second run 1.02, none, none. The name of a network as an argument, and how many samples fit, run that
 * alone.
 */
#include "networks/networks.hpp"
#include "process.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <string>

#include <unistd.h>

#include "tuned.h" /* last: its macros have short names */

namespace {

constexpr size_t samples = 16;
constexpr int search_turns = 2, turns = 3;

mt_model *vit_b_16(int64_t classes, int64_t side) {
    auto build = +[](int64_t n, int64_t s) {
        networks::VitOptions options;
        options.classes = n;
        options.side = s;
        options.patch = 16;
        options.width = 768;
        options.heads = 12;
        options.depth = 12;
        return std::make_shared<networks::VitImpl>(options);
    };
    return networks::classifier<networks::VitImpl>(build, classes, side);
}

const struct {
    networks::Network network;
    int64_t side;
    std::vector<size_t> fits;
} works[] = {
    {networks::resnet50, 512, {2, 3, 5}},
    {{"vit_b_16", vit_b_16, 224, false, 0}, 224, {1, 2, 3, 5}},
};

/* ---- one side --------------------------------------------------------------------------------------- */

/* Bytes that one chunk of so many samples needs beside the state. */
void run_probe(int index, size_t count) {
    networks::prepare();
    networks::Subject s(works[index].network, works[index].side);
    bench::Batch batch(static_cast<int64_t>(count), works[index].side, 10);
    const mt_backend &b = s.backend;
    mt_chunk_result result = {};
    result.size = sizeof result;
    size_t before = networks::Subject::allocated();
    bench::must(b.begin(b.self, &batch.batch), "begin");
    bench::must(b.accumulate(b.self, 0, count, 1.0, &result), "chunk");
    bench::answer("%zu", result.peak_bytes - before);
}

/* A step in so much room; micro 0: chunks are chosen. */
void run_step(int index, size_t room, size_t micro, const char *learned) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    networks::prepare();
    networks::Subject s(works[index].network, works[index].side);
    bench::Batch batch(static_cast<int64_t>(samples), works[index].side, 10);
    policy.micro_batch = micro;
    options.policy = &policy;
    options.learned = *learned ? learned : nullptr;
    networks::Subject::set_budget(room);
    mt_trainer *trainer = s.trainer(&options);
    mt_step_report step = MT_STEP_REPORT_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    double start = bench::now();
    mt_status status = mt_trainer_step(trainer, &batch.batch, &step);
    double seconds = status == MT_OK ? bench::now() - start : INFINITY;
    if (!micro) bench::must(status, "step");
    bench::must(mt_trainer_finish(trainer, &run), "finish"); /* which writes what was learnt */
    bench::answer("%.6f %llu %llu %zu", seconds, static_cast<unsigned long long>(run.ooms),
                  static_cast<unsigned long long>(run.samples_discarded), run.largest_chunk);
    mt_trainer_free(trainer);
}

/* ---- seen from the parent --------------------------------------------------------------------------- */

struct Result {
    double seconds = INFINITY;
    unsigned long long ooms = 0, discarded = 0;
    size_t largest = 0;

    /* The least time, and the most of what is to be none. */
    void add(const std::string &line) {
        double time;
        unsigned long long more_ooms, more_discarded;
        if (std::sscanf(line.c_str(), "%lf %llu %llu %zu", &time, &more_ooms, &more_discarded,
                        &largest) != 4)
            bench::give_up("a side has said nothing");
        seconds = std::min(seconds, time);
        ooms = std::max(ooms, more_ooms);
        discarded = std::max(discarded, more_discarded);
    }
};

std::string line_of(const char *program, int index, size_t room, size_t micro,
                    const std::string &learned) {
    bench::Process side(
        {program, std::to_string(index), std::to_string(room), std::to_string(micro), learned});
    return side.finish();
}

size_t room_for(const char *program, int index, size_t count) {
    size_t bytes = 0;
    bench::Process side({program, std::to_string(index), std::to_string(count)});
    if (std::sscanf(side.finish().c_str(), "%zu", &bytes) != 1)
        bench::give_up("a side has said nothing");
    return bytes;
}

bool race(const char *program, int index, size_t fits) {
    char learned[] = "/tmp/first.XXXXXX";
    Result first, second, best;
    size_t room = room_for(program, index, fits), micro = 0;
    int file = mkstemp(learned);
    if (file < 0) bench::give_up("mkstemp");
    close(file);
    /* Each number of chunks of which the largest fits. */
    size_t fewest = (samples + fits - 1) / fits, largest = (samples + fewest - 1) / fewest;
    size_t least =
        works[index].network.normalises ? std::min<size_t>(largest, LEAST_NORMALISED) : 1;
    double fastest = INFINITY;
    for (size_t size = fits; size >= least; size--) {
        if (size < fits && (samples + size - 1) / size == (samples + size) / (size + 1)) continue;
        Result fixed;
        for (int turn = 0; turn < search_turns; turn++)
            fixed.add(line_of(program, index, room, size, ""));
        if (fixed.seconds < fastest) micro = size;
        fastest = std::min(fastest, fixed.seconds);
    }
    /* Anew, as often as the others: the least of many would be the luckiest. */
    for (int turn = 0; turn < turns; turn++) {
        unlink(learned);
        first.add(line_of(program, index, room, 0, learned));
        best.add(line_of(program, index, room, micro, ""));
        second.add(line_of(program, index, room, 0, learned));
    }
    unlink(learned);
    double time = first.seconds / best.seconds, time_second = second.seconds / best.seconds;
    std::printf(
        "first  network=%s fits=%zu room_mib=%.1f best_micro_batch=%zu best_s=%.2f time=%.3f "
        "largest=%zu ooms=%llu discarded=%llu time_second=%.3f largest_second=%zu "
        "ooms_second=%llu discarded_second=%llu\n",
        works[index].network.name, fits, static_cast<double>(room) / (1 << 20), micro, best.seconds,
        time, first.largest, first.ooms, first.discarded, time_second, second.largest, second.ooms,
        second.discarded);
    std::fflush(stdout);
    return time <= 1.3 && first.ooms <= 1 && first.discarded <= 2 && time_second <= 1.02 &&
           second.ooms == 0 && second.discarded == 0;
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 3 && std::isdigit(static_cast<unsigned char>(argv[1][0]))) {
        run_probe(std::atoi(argv[1]), std::strtoul(argv[2], nullptr, 10));
        return 0;
    }
    if (argc == 5) {
        run_step(std::atoi(argv[1]), std::strtoul(argv[2], nullptr, 10),
                 std::strtoul(argv[3], nullptr, 10), argv[4]);
        return 0;
    }
    bool is_well = true;
    size_t only = argc == 3 ? std::strtoul(argv[2], nullptr, 10) : 0;
    for (int i = 0; i < 2; i++)
        if (argc == 1 || works[i].network.name == std::string(argv[1]))
            for (size_t fits : works[i].fits)
                if (!only || fits == only) is_well &= race(argv[0], i, fits);
    return is_well ? 0 : 1;
}
