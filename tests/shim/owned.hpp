/*
 * owned.hpp - what suites of the shim make and ask again and again: a model with its mt_torch, a trainer, a file, and a call
 * in which a request for memory fails.
 */
#ifndef OWNED_HPP
#define OWNED_HPP

#include <cstdio>
#include <type_traits>
#include <unistd.h>

#include <memtrain/trainer.h>

#include "check_shim.hpp"

namespace check_shim {

/* Our allocator and one thread; and a seed. */
inline void start() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
}

inline void prepare(uint64_t seed) {
    start();
    ck_ok(mt_torch_seed(seed));
}

inline std::string hash_of(mt_torch *torch) {
    char text[65];
    ck_ok(mt_torch_state_sha256(torch, text));
    return text;
}

inline mt_backend seam_of(mt_torch *torch) {
    mt_backend seam = MT_BACKEND_INIT;
    ck_ok(mt_torch_backend(torch, &seam));
    return seam;
}

/* What the trainer's side is told of a model, and of its device's memory. */
inline mt_backend_info info_of(const mt_backend &seam) {
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(seam.describe(seam.self, &info));
    return info;
}

inline mt_memory memory_of(const mt_backend &seam) {
    mt_memory memory = MT_MEMORY_INIT;
    ck_ok(seam.memory(seam.self, &memory));
    return memory;
}

/* A model and its mt_torch, which are freed with the object. */
struct Owned {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;

    Owned() = default;
    /* As make_model has it, from this seed on. */
    template <class Make>
    explicit Owned(Make &&describe, const mt_torch_options &options, uint64_t seed = 7) {
        make(describe, options, seed);
    }
    ~Owned() { close(); }
    Owned(const Owned &) = delete;
    Owned &operator=(const Owned &) = delete;

    template <class Make>
    void make(Make &&describe, const mt_torch_options &options, uint64_t seed = 7) {
        prepare(seed);
        ck_ok(memtrain::make_model(&model, describe));
        ck_ok(mt_torch_new(model, &options, &torch));
    }
    void close() {
        mt_torch_free(torch);
        mt_model_free(model);
        torch = nullptr;
        model = nullptr;
    }
    std::string hash() const { return hash_of(torch); }
    /* In one chunk. */
    mt_status train_step(const mt_batch *batch, mt_apply_result *applied = nullptr) const {
        return mt_train_step(torch, batch, nullptr, applied);
    }
};

/* Chunks are not chosen by time. */
inline mt_policy_options deterministic() {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.deterministic = 1;
    return policy;
}

/* A trainer that is freed with the object, and the chunks of its steps. */
struct Driver {
    mt_trainer *trainer = nullptr;
    std::vector<std::vector<size_t>> chunks;

    explicit Driver(const mt_backend &seam,
                    const mt_policy_options &policy = MT_POLICY_OPTIONS_INIT) {
        mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
        options.policy = &policy;
        ck_ok(mt_trainer_new(&seam, &options, &trainer));
    }
    ~Driver() { mt_trainer_free(trainer); }
    Driver(const Driver &) = delete;
    Driver &operator=(const Driver &) = delete;

    /* In these chunks, or in such as the policy chooses. */
    mt_step_report step(const mt_batch *batch, const std::vector<size_t> *given = nullptr) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        if (given) ck_ok(mt_trainer_set_chunks(trainer, given->data(), given->size()));
        ck_ok(mt_trainer_step(trainer, batch, &report));
        chunks.emplace_back(report.chunks, report.chunks + report.chunk_count);
        return report;
    }
};

/* What became of a call, how many of its requests for memory failed, and how many there were. */
struct Tried {
    mt_status status;
    uint64_t failed, requests;
};

/* The n-th request of the call fails, or all from the n-th on; 0: none. */
template <class Call> Tried with_fault(uint64_t n, Call &&call, int persistent = 0) {
    Tried tried = {};
    ck_ok(mt_inject_oom(n, persistent));
    tried.status = call();
    mt_injected(&tried.requests, &tried.failed);
    ck_ok(mt_inject_oom(0, 0));
    return tried;
}

/* The words of what it throws; "" when it does not. */
template <class Body> std::string thrown_by(Body &&body) {
    try {
        body();
    } catch (const c10::Error &e) {
        return e.what_without_backtrace();
    } catch (const std::exception &e) {
        return e.what();
    }
    return "";
}

template <class Body> void throws(Body &&body, const char *words) {
    std::string thrown = thrown_by(body);
    ck_contains(thrown.c_str(), words);
}

/* In bfloat16, where a suite's tensors are. */
template <class Body> void with_autocast(Body &&body) {
    auto call = [](void *user) {
        (*static_cast<std::remove_reference_t<Body> *>(user))();
        return MT_OK;
    };
    ck_ok(mt_amp_autocast(tensor_place(), MT_BFLOAT16, call, &body));
}

/* Of a simulated card. */
inline size_t held_on(const char *card) {
    mt_sim_stats stats = MT_SIM_STATS_INIT;
    ck_ok(mt_device_sim_stats(card, &stats));
    return stats.allocated_bytes;
}

/* A file in /tmp, removed with the object, and so is the one before it that a save keeps. */
class File {
public:
    File() {
        int file = mkstemp(&path_[0]);
        ck_assert_int_ge(file, 0);
        close(file);
    }
    ~File() {
        std::remove(path_.c_str());
        std::remove((path_ + ".1").c_str());
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    const char *path() const { return path_.c_str(); }

private:
    std::string path_ = "/tmp/check_shim.XXXXXX";
};

} // namespace check_shim
#endif
