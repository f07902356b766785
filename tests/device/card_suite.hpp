/*
 * card_suite.hpp - suites on the test device (tests/device/card.hpp), whose programs start themselves again, once for each key of
 * libtorch that it has.
 */
#ifndef CARD_SUITE_HPP
#define CARD_SUITE_HPP

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ops/ones.h>

#include <memtrain/safetensors.h>
#include <memtrain/trainer.h>

#include "check_shim.hpp"
#include "card.h"
#include "card_process.hpp"

using namespace check_shim;

namespace card_suite {

constexpr size_t MiB = size_t{1} << 20;

inline mt_card_counters counters() {
    mt_card_counters now = {};
    mt_card_read(&now);
    return now;
}

inline mt_status train(const Trainer &trainer, const Batch &batch) {
    return mt_train_step(trainer.torch, batch.get(), nullptr, nullptr);
}

/* Eight chunks of two; the backend does without collect, or has it. */
struct Loop {
    Batch batch{16};
    Trainer trainer;
    mt_trainer *loop = nullptr;
    Loop(double clip, bool collects, int keep = MT_KEEP_AUTO)
        : trainer(options_of(MT_ADAMW, clip)) {
        mt_backend seam = seam_of(trainer);
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        policy.micro_batch = 2;
        policy.keep_chunks = keep;
        own.policy = &policy;
        ck_assert_ptr_nonnull(reinterpret_cast<void *>(seam.collect));
        if (!collects) seam.collect = nullptr;
        ck_ok(mt_trainer_new(&seam, &own, &loop));
    }
    ~Loop() { mt_trainer_free(loop); }
    std::string hash() const { return trainer.hash(); }
    mt_step_report step() {
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(mt_trainer_step(loop, batch.get(), &report));
        return report;
    }
    mt_eval_report evaluate() {
        mt_eval_report report = MT_EVAL_REPORT_INIT;
        ck_ok(mt_trainer_evaluate(loop, batch.get(), &report));
        return report;
    }
};

/* Weights in half precision, whose gradient is the batch. */
struct Half : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({4}).to(at::kHalf));
};

/* The signal that ends a process in which the body runs; 0: none does. What it says of that is left out. */
template <class Body> int signal_of(Body &&body) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        if (!std::freopen("/dev/null", "w", stderr)) _exit(1);
        body();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* A file of the first has the generator of that name, and the second takes it up. */
inline void same_by_file(const Trainer &one, const Trainer &other, const std::string &generator) {
    char path[] = "/tmp/check_card.XXXXXX";
    mt_torch_save_options options = MT_TORCH_SAVE_OPTIONS_INIT;
    mt_safetensors *file = nullptr;
    size_t index = 0;
    int number = mkstemp(path);
    ck_assert_int_ge(number, 0);
    close(number);
    options.keep = 0;
    ck_ok(mt_torch_save(one.torch, path, &options));
    ck_ok(mt_safetensors_open(path, &file));
    ck_ok(mt_safetensors_find(file, generator.c_str(), &index));
    mt_safetensors_free(file);
    ck_ok(mt_torch_load(other.torch, path, nullptr, 0));
    ck_assert(one.hash() == other.hash());
    ck_assert_int_eq(std::remove(path), 0);
}

/* What main returns: of the suite here, or of this program as one with each kind of card. */
inline int card_main(const char *name, char **argv,
                     std::initializer_list<const char *> kinds = {"cuda", "xpu", "mps"}) {
    if (mt_card_read) return suite_run_named(name);
    int failed = 0;
    for (const char *kind : kinds) {
        int status = run_with_card(kind, argv);
        if (status < 0) suite_skip(kind, "the test device cannot be loaded before all else");
        failed |= status > 0;
    }
    return failed;
}

} // namespace card_suite
#endif
