/*
 * check_shim_openmp.cpp - threads that sleep while they wait: a program starts itself again at most once, with its
 * arguments and environment, and is warned where its threads spin.
 *
 * Each case runs this file as a program of its own, since what is looked at is read when a process starts.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifdef __linux__
#include <link.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <memtrain/torch.h>

#include "suite.h"

namespace {

/* ---- the program ----------------------------------------------------------------------------------- */

void print_log(void *, mt_log_level, const char *text) {
    std::printf("log %s\n", text);
}

void print_setting(const char *name) {
    const char *value = std::getenv(name);
    std::printf("%s=%s\n", name, value ? value : "-");
}

/* With an argument of 1 MiB, which no system takes. */
mt_status reexec_too_much(char **argv) {
    std::string big(1 << 20, 'x');
    char *arguments[] = {argv[0], &big[0], nullptr};
    return mt_reexec_passive(arguments);
}

/* argv: the program, "program", then "reexec", "too much" or "", the threads to set or "", anything. */
int program(char **argv) {
    std::printf("start %d\n", static_cast<int>(getpid()));
    mt_set_log(print_log, nullptr);
    if (*argv[2]) {
        bool is_too_much = std::strcmp(argv[2], "too much") == 0;
        mt_status status = is_too_much ? reexec_too_much(argv) : mt_reexec_passive(argv);
        std::printf("status %s %s\n", mt_status_name(status), mt_last_error());
    }
    for (const char *name :
         {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MEMTRAIN_REEXEC", "OTHER"})
        print_setting(name);
    for (int i = 4; argv[i]; i++) std::printf("argument [%.20s]\n", argv[i]);
    if (mt_torch_init(nullptr) != MT_OK) return 1;
    if (*argv[3] && mt_torch_set_threads(std::atoi(argv[3])) != MT_OK) return 1;
    return 0;
}

/* ---- what it prints -------------------------------------------------------------------------------- */

std::string own_path;
const char *loader; /* that is called with the path; NULL: none */

/* Runs the program with this environment alone, and returns what it has printed. */
std::string run(const std::vector<const char *> &environment, std::vector<const char *> arguments) {
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        std::vector<char *> argv = {const_cast<char *>(own_path.c_str()),
                                    const_cast<char *>("program")};
        if (loader) argv.insert(argv.begin(), const_cast<char *>(loader));
        std::vector<char *> envp;
        for (const char *text : arguments) argv.push_back(const_cast<char *>(text));
        for (const char *text : environment) envp.push_back(const_cast<char *>(text));
        argv.push_back(nullptr);
        envp.push_back(nullptr);
        dup2(ends[1], 1);
        execve(argv[0], argv.data(), envp.data());
        _exit(99);
    }
    close(ends[1]);
    std::string text;
    char piece[4096];
    for (ssize_t n; (n = read(ends[0], piece, sizeof piece)) > 0;)
        text.append(piece, static_cast<size_t>(n));
    close(ends[0]);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(status == 0, "ended with %d: %s", status, text.c_str());
    return text;
}

size_t count(const std::string &text, const char *word) {
    size_t found = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
        found++;
    return found;
}

constexpr const char *spin = "threads of OpenMP spin while they wait";

/* ---- the cases ------------------------------------------------------------------------------------- */

TEST("reexec", a_program_starts_again_once) {
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        std::printf("SKIP: there is one core, whose threads do not wait for each other\n");
        return;
    }
    std::string text =
        run({"OMP_NUM_THREADS=2", "OTHER=kept"}, {"reexec", "", "with a blank", "", "last"});
    ck_assert_uint_eq(count(text, "start "), 2);
    ck_assert(text.substr(0, text.find('\n')) ==
              text.substr(text.rfind("start "), text.find('\n'))); /* one process */
    ck_contains(text.c_str(), "status MT_OK \n");
    ck_contains(text.c_str(),
                "OMP_WAIT_POLICY=PASSIVE\nGOMP_SPINCOUNT=0\nKMP_BLOCKTIME=0\nMEMTRAIN_REEXEC=1\n"
                "OTHER=kept\nargument [with a blank]\nargument []\nargument [last]\n");
    ck_assert_uint_eq(count(text, spin), 0);
}

/* What is set says how threads wait, and a guard alone is enough to end it. */
const char *const left_alone[] = {"OMP_WAIT_POLICY=ACTIVE", "GOMP_SPINCOUNT=5", "KMP_BLOCKTIME=7",
                                  "MEMTRAIN_REEXEC=1"};

TEST_LOOP("reexec", a_program_is_left_alone, LENGTH(left_alone)) {
    const char *setting = left_alone[_i];
    std::string text = run({"OMP_NUM_THREADS=2", setting}, {"reexec", ""});
    ck_assert_uint_eq(count(text, "start "), 1);
    ck_contains(text.c_str(), "status MT_OK \n");
    ck_contains(text.c_str(), setting);
    ck_assert_uint_eq(count(text, "PASSIVE"), 0);
    ck_assert_uint_eq(count(text, spin), 0);
}

#ifdef __linux__
TEST("reexec", threads_that_spin_are_told_once) {
    std::string text = run({"OMP_NUM_THREADS=2"}, {"", "2"});
    ck_contains(text.c_str(), "log 2 threads of OpenMP spin");
    ck_contains(text.c_str(), "export OMP_WAIT_POLICY=PASSIVE, or call mt_reexec_passive(argv)");
    ck_assert_uint_eq(count(text, spin), 1);
}

/* OpenMP is told of one, and libtorch of more. */
TEST("reexec", threads_that_are_set_are_told) {
    ck_assert_uint_eq(count(run({"OMP_NUM_THREADS=1"}, {"", "1"}), spin), 0);
    ck_contains(run({"OMP_NUM_THREADS=1"}, {"", "3"}).c_str(), "log 3 threads of OpenMP spin");
}

/* The dynamic loader is the running file then, and is not started in the program's place. */
TEST("reexec", a_program_in_a_loader_is_left_alone) {
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *) {
            for (int i = 0; i < info->dlpi_phnum; i++)
                if (info->dlpi_phdr[i].p_type == PT_INTERP)
                    loader = reinterpret_cast<const char *>(info->dlpi_addr +
                                                            info->dlpi_phdr[i].p_vaddr);
            return 1;
        },
        nullptr);
    ck_assert_ptr_nonnull(loader);
    std::string text = run({"OMP_NUM_THREADS=2"}, {"reexec", "", "last"});
    ck_assert_uint_eq(count(text, "start "), 1);
    ck_contains(text.c_str(), "status MT_OK \n");
    ck_contains(text.c_str(),
                "OMP_WAIT_POLICY=-\nGOMP_SPINCOUNT=-\nKMP_BLOCKTIME=-\nMEMTRAIN_REEXEC=-\n");
    ck_contains(text.c_str(), "argument [last]\n");
}

/* The system refuses to start it: it goes on as it was, and is warned. */
TEST("reexec", a_program_that_cannot_start_again_goes_on) {
    std::string text = run({"OMP_NUM_THREADS=2", "OTHER=kept"}, {"too much", ""});
    ck_assert_uint_eq(count(text, "start "), 1);
    ck_contains(text.c_str(), "status MT_EIO mt_reexec_passive: the program cannot be started "
                              "again: Argument list too long\n");
    ck_contains(
        text.c_str(),
        "OMP_WAIT_POLICY=-\nGOMP_SPINCOUNT=-\nKMP_BLOCKTIME=-\nMEMTRAIN_REEXEC=-\nOTHER=kept\n");
    ck_assert_uint_eq(count(text, spin), 1);
}
#endif

TEST("reexec", argv_is_needed) {
    char *none[] = {nullptr};
    ck_status(mt_reexec_passive(nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_reexec_passive: argv is NULL");
    ck_status(mt_reexec_passive(none), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_reexec_passive: argv is empty");
}

} // namespace

int main(int argc, char **argv) {
    if (argc > 3 && std::strcmp(argv[1], "program") == 0) return program(argv);
    char *path = realpath(argv[0], nullptr);
    own_path = path ? path : argv[0];
    std::free(path);
    return suite_run_named("shim_openmp");
}
