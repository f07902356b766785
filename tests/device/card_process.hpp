/*
 * card_process.hpp - a program that starts itself again with the test device, which is loaded before everything else.
 */
#ifndef CARD_PROCESS_HPP
#define CARD_PROCESS_HPP

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <libgen.h>
#include <sys/wait.h>
#include <unistd.h>

/* Under a sanitizer its own library has to come first. */
inline bool can_preload() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__APPLE__)
    return false;
#else
    return true;
#endif
}

/*
 * The exit status of this program as one with a card of that kind; -1: that cannot be done. Its library lies beside the program,
 * or, for a benchmark, a folder above.
 */
inline int run_with_card(const std::string &kind, char **argv, const std::string &up = "") {
    char folder[PATH_MAX];
    /* It was started so, and the card was not loaded. */
    if (!can_preload() || std::getenv("MT_TEST_DEVICE") || !realpath(argv[0], folder)) return -1;
    std::string library = std::string(dirname(folder)) + "/" + up + "libcard_" + kind + ".so";
    if (access(library.c_str(), R_OK)) return -1;
    std::fflush(stdout);
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

#endif
