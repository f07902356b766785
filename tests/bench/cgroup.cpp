/*
 * cgroup.cpp - whether the kernel lets a run live that was promised to fit. Before the first step the
 * resident peak of whole batches is predicted from chunks of 2 and 4 samples; then 500 steps run in a control
 * group whose limit is a tenth above that, and the same steps of peers: tensors from the heap, and libtorch's
 * own allocator. To be: no kill where memory is planned, while a peer is killed. Skipped, with the reason,
 * where no group can be made.
 *
 * A group pays for the pages of a file that it was the first to read. Those of libtorch were read before, by
 * others, so what they take in the process is taken off the limit: it is as tight as if the group paid.
 *
 *     cgroup  side=... ended=... predicted_mib=... resident_mib=... file_mib=... limit_mib=... group_mib=...
 *             reached=... kills=...
 */
#include "networks/networks.hpp"
#include "process.hpp"
#include "recorded.hpp"

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>

#include <sys/stat.h>

namespace {

constexpr int64_t samples = 64;
constexpr double spare = 1.1;

struct Side {
    const char *name;
    int keeps_allocator, arena;
};
constexpr Side sides[] = {
    {"planned", 0, MT_ARENA_AUTO}, {"heap", 0, MT_ARENA_NEVER}, {"libtorch", 1, MT_ARENA_NEVER}};

/* ---- groups -------------------------------------------------------------------------------------- */

bool write_to(const std::string &path, const std::string &text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
}

/* The number behind a word in a file of "word number" lines, or the file's only one; 0: not there. */
size_t read_from(const std::string &path, const std::string &word) {
    std::ifstream file(path);
    std::string line, first;
    size_t number = 0;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        if (word.empty() && words >> number) return number;
        if (words >> first >> number && first == word) return number;
    }
    return 0;
}

/* A control group of its own, as version 1 or 2 has it, that goes with the object. */
class Group {
public:
    explicit Group(size_t limit) {
        is_v1_ = access("/sys/fs/cgroup/memory/cgroup.procs", F_OK) == 0;
        std::string root = is_v1_ ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
        dir_ = root + "/memtrain-bench-" + std::to_string(getpid());
        if (!is_v1_) write_to(root + "/cgroup.subtree_control", "+memory");
        if (mkdir(dir_.c_str(), 0755)) {
            why_ = "mkdir " + dir_ + ": " + std::strerror(errno);
            return;
        }
        std::string most = dir_ + (is_v1_ ? "/memory.limit_in_bytes" : "/memory.max");
        if (!write_to(most, std::to_string(limit))) why_ = most + " cannot be written";
        /* Nothing is to be swapped out. */
        write_to(dir_ + (is_v1_ ? "/memory.swappiness" : "/memory.swap.max"), "0");
    }
    ~Group() { rmdir(dir_.c_str()); }
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;

    /* Why there is none; empty: there is. */
    const std::string &why_not() const { return why_; }
    const std::string &dir() const { return dir_; }

    /* The most bytes that it held; how often it was at its limit, and how often somebody was killed. */
    size_t peak() const {
        return read_from(dir_ + (is_v1_ ? "/memory.max_usage_in_bytes" : "/memory.peak"), "");
    }
    size_t reached() const {
        return is_v1_ ? read_from(dir_ + "/memory.failcnt", "")
                      : read_from(dir_ + "/memory.events", "max");
    }
    size_t kills() const {
        return read_from(dir_ + (is_v1_ ? "/memory.oom_control" : "/memory.events"), "oom_kill");
    }

private:
    bool is_v1_;
    std::string dir_, why_;
};

/* ---- a side, in a process of its own --------------------------------------------------------------- */

void prepare(const Side &side) {
    mt_torch_init_options init = MT_TORCH_INIT_OPTIONS_INIT;
    init.keep_allocator = side.keeps_allocator;
    bench::must(mt_torch_init(&init), "init");
    networks::prepare();
    bench::must(mt_device_set_budget("cpu", SIZE_MAX / 2), "budget"); /* the kernel's word alone */
}

const networks::Network &network_of(const char *index) {
    return networks::all[std::atoi(index)];
}

mt_torch_options options_of(const Side &side) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.arena = side.arena;
    return options;
}

/* What is promised before the first step. */
void predict(const Side &side, const networks::Network &network) {
    size_t bytes = 0;
    prepare(side);
    mt_torch_options options = options_of(side);
    networks::Subject s(network, 2 * network.side, &options);
    bench::Batch batch(samples, 2 * network.side, 10);
    mt_memory_model *model = bench::learn(s.backend, batch.batch);
    size_t peak = networks::Subject::allocated() + mt_memory_model_peak(model, samples);
    bench::must(mt_device_predict_resident("cpu", peak, &bytes), "predict");
    bench::answer("%zu", bytes);
    mt_memory_model_free(model);
}

/* Whole batches; the most that was resident, and what of it are pages of files. */
void train(const Side &side, const networks::Network &network, int steps) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_resident resident = MT_RESIDENT_INIT;
    policy.micro_batch = samples;
    policy.keep_chunks = MT_KEEP_NEVER;
    options.policy = &policy;
    prepare(side);
    mt_torch_options torch_options = options_of(side);
    networks::Subject s(network, 2 * network.side, &torch_options);
    bench::Batch batch(samples, 2 * network.side, 10);
    mt_trainer *trainer = s.trainer(&options);
    for (int i = 0; i < steps; i++)
        bench::must(mt_trainer_step(trainer, &batch.batch, nullptr), "step");
    bench::must(mt_device_resident("cpu", &resident), "resident");
    bench::answer("%zu %zu", resident.peak_bytes, read_from("/proc/self/status", "RssFile:") << 10);
    mt_trainer_free(trainer);
}

/* A process is in the group from its start on: what the loader writes to is paid for there. */
[[noreturn]] void enter(char **argv) {
    if (!write_to(argv[2] + std::string("/cgroup.procs"), "0")) bench::give_up(argv[2]);
    argv[2] = argv[0];
    execv(argv[2], argv + 2);
    bench::give_up("execv");
}

/* ---- all sides -------------------------------------------------------------------------------------- */

struct Outcome {
    bool killed = false;
    size_t resident = 0, file = 0; /* bytes */
};

struct Job {
    std::string program, network;

    size_t predict() const {
        size_t bytes = 0;
        bench::Process process({program, "predict", "0", network});
        if (std::sscanf(process.finish().c_str(), "%zu", &bytes) != 1)
            bench::give_up("a side has said nothing");
        return bytes;
    }
    /* In the group, if one is given. */
    Outcome train(const Group *group, size_t side, int steps) const {
        std::vector<std::string> words = {program};
        if (group) words.insert(words.end(), {"enter", group->dir()});
        words.insert(words.end(), {"train", std::to_string(side), network, std::to_string(steps)});
        bench::Process process(words);
        std::string line;
        Outcome outcome;
        int status = process.end(&line);
        outcome.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (status && !outcome.killed) bench::give_up("a side has failed");
        if (!status && std::sscanf(line.c_str(), "%zu %zu", &outcome.resident, &outcome.file) != 2)
            bench::give_up("a side has said nothing");
        return outcome;
    }
};

double mib(size_t bytes) {
    return static_cast<double>(bytes) / (1 << 20);
}

/* Whether memory that is planned was enough. */
bool judge(const Job &job, int steps) {
    bool was_enough = true;
    size_t predicted = job.predict();
    Outcome alone = job.train(nullptr, 0, 3); /* reads all files, too */
    size_t limit = static_cast<size_t>(spare * static_cast<double>(predicted)) - alone.file;
    const char *network = network_of(job.network.c_str()).name;
    std::printf(
        "cgroup  network=%s side=alone predicted_mib=%.1f resident_mib=%.1f file_mib=%.1f\n",
        network, mib(predicted), mib(alone.resident), mib(alone.file));
    for (size_t side = 0; side < 3; side++) {
        Group group(limit);
        Outcome outcome = job.train(&group, side, steps);
        std::printf("cgroup  network=%s side=%s ended=%s resident_mib=%.1f limit_mib=%.1f "
                    "group_mib=%.1f reached=%zu kills=%zu\n",
                    network, sides[side].name, outcome.killed ? "killed" : "well",
                    mib(outcome.resident), mib(limit), mib(group.peak()), group.reached(),
                    group.kills());
        std::fflush(stdout);
        was_enough &= side > 0 || !outcome.killed;
    }
    return was_enough;
}

} // namespace

int main(int argc, char **argv) {
    if (argc > 3 && !std::strcmp(argv[1], "enter")) enter(argv);
    if (argc == 4 && !std::strcmp(argv[1], "predict")) {
        predict(sides[std::atoi(argv[2])], network_of(argv[3]));
        return 0;
    }
    if (argc == 5 && !std::strcmp(argv[1], "train")) {
        train(sides[std::atoi(argv[2])], network_of(argv[3]), std::atoi(argv[4]));
        return 0;
    }
    std::string why_not = Group(SIZE_MAX / 4).why_not();
    if (!why_not.empty()) {
        std::printf("SKIP: cgroup: %s\n", why_not.c_str());
        return 0;
    }
    int steps = argc > 1 ? std::atoi(argv[1]) : 500;
    bool well = true;
    for (int network = 0; network < networks::count; network++)
        well &= judge({argv[0], std::to_string(network)}, steps);
    return !well;
}
