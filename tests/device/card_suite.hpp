/*
 * card_suite.hpp - suites on the test device (tests/device/card.hpp): it is loaded before everything else, so the programs start
 * themselves again, once for each key of libtorch that it has.
 */
#ifndef CARD_SUITE_HPP
#define CARD_SUITE_HPP

#include <climits>
#include <cstdlib>
#include <initializer_list>

#include <libgen.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ops/ones.h>

#include "check_shim.hpp"
#include "card.h"

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

/* Weights in half precision, whose gradient is the batch. */
struct Half : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({4}).to(at::kHalf));
};

/* Under a sanitizer its own library has to come first. */
inline bool can_preload() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__APPLE__)
    return false;
#else
    return true;
#endif
}

/* The exit status of this program as one with a card of that kind; -1: that cannot be done. */
inline int run_with(const std::string &kind, char **argv) {
    char folder[PATH_MAX];
    if (!can_preload() || !realpath(argv[0], folder)) return -1;
    std::string library = std::string(dirname(folder)) + "/libcard_" + kind + ".so";
    if (access(library.c_str(), R_OK)) return -1;
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_PRELOAD", library.c_str(), 1);
        setenv("MT_TEST_DEVICE", kind.c_str(), 1);
        execv(argv[0], argv);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

/* What main returns: of the suite here, or of this program as one with each kind of card. */
inline int card_main(const char *name, char **argv,
                     std::initializer_list<const char *> kinds = {"cuda", "xpu", "mps"}) {
    if (mt_card_read) return suite_run_named(name);
    int failed = 0;
    for (const char *kind : kinds) {
        int status = run_with(kind, argv);
        if (status < 0) suite_skip(kind, "the test device cannot be loaded before all else");
        failed |= status > 0;
    }
    return failed;
}

} // namespace card_suite
#endif
