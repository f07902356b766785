/*
 * openmp.cpp - threads of OpenMP that sleep while they wait: the program that starts itself again, and the warning
 * where threads spin.
 *
 * The runtime is asked by the names of its functions, since this library is not linked to one: libtorch is.
 */
#include "openmp.hpp"

#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#else
#include <link.h>
#endif

#include <memtrain/torch.h>

namespace memtrain::shim {
namespace {

/* Any of these says how threads wait. The last one is set by a program that has started itself again. */
constexpr const char *settings[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME",
                                    "MEMTRAIN_REEXEC"};

bool is_set() {
    for (const char *name : settings)
        if (std::getenv(name)) return true;
    return false;
}

/* A number that OpenMP tells; 1 where there is no OpenMP. */
int ask(const char *name) {
    void *function = dlsym(RTLD_DEFAULT, name);
    return function ? reinterpret_cast<int (*)()>(function)() : 1;
}

/* LLVM's and Intel's runtimes have the names of GNU's functions too, so the file decides. Theirs wait for 0.2 s at most. */
bool is_gnu() {
    Dl_info info;
    void *function = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    return function && dladdr(function, &info) && info.dli_fname &&
           std::strstr(info.dli_fname, "libgomp");
}

/* As the system tells it: with the real path `ps` shows the program's own name. */
bool program_path(char (&path)[PATH_MAX]) {
#ifdef __APPLE__
    uint32_t size = sizeof path;
    return _NSGetExecutablePath(path, &size) == 0;
#else
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length > 0) path[length] = '\0';
    return length > 0;
#endif
}

/*
 * Whether the program was handed to the dynamic loader (`ld-linux.so ./program`): the loader is the running file then,
 * and takes argv for another program's. The main program's headers come first, and lie in a mapping of its file.
 */
#ifdef __linux__
bool runs_in_loader() {
    char running[PATH_MAX], line[PATH_MAX + 128];
    bool is_other = false;
    uintptr_t place = 0;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *out) {
            *static_cast<uintptr_t *>(out) = reinterpret_cast<uintptr_t>(info->dlpi_phdr);
            return 1;
        },
        &place);
    std::FILE *maps = program_path(running) ? std::fopen("/proc/self/maps", "re") : nullptr;
    while (maps && std::fgets(line, sizeof line, maps)) {
        uintptr_t begin = 0, end = 0;
        int name = 0;
        line[std::strcspn(line, "\n")] = '\0';
        if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &begin, &end,
                        &name) == 2 &&
            begin <= place && place < end)
            is_other = name && std::strcmp(line + name, running) != 0;
    }
    if (maps) std::fclose(maps);
    return is_other;
}
#else
bool runs_in_loader() {
    return false;
}
#endif

/* Returns where it has failed, with errno. */
void start_again(char **argv) {
    char path[PATH_MAX];
    std::fflush(nullptr);
    if (program_path(path)) execv(path, argv);
#ifndef __APPLE__
    execv("/proc/self/exe", argv); /* the file was moved or replaced */
#endif
}

bool set_passive() {
    return setenv("OMP_WAIT_POLICY", "PASSIVE", 1) == 0 && setenv("GOMP_SPINCOUNT", "0", 1) == 0 &&
           setenv("KMP_BLOCKTIME", "0", 1) == 0 && setenv("MEMTRAIN_REEXEC", "1", 1) == 0;
}

} // namespace

void warn_of_spinning(int threads) noexcept {
    static std::atomic<bool> told{false};
    if (is_set() || !is_gnu()) return;
    if (threads == 0) threads = ask("omp_get_max_threads");
    if (threads < 2 || told.exchange(true)) return;
    mt_log(
        MT_LOG_WARNING,
        "%d threads of OpenMP spin while they wait, which is many times slower as soon as another "
        "program wants a core: export OMP_WAIT_POLICY=PASSIVE, or call mt_reexec_passive(argv) "
        "first in main",
        threads);
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_reexec_passive(char **argv) {
    if (!argv || !argv[0])
        return mt_set_error(MT_EINVAL, "mt_reexec_passive: argv is %s", argv ? "empty" : "NULL");
    if (is_set() || ask("omp_get_num_procs") < 2 || runs_in_loader()) return MT_OK;
    if (set_passive()) start_again(argv);
    int why = errno;
    for (const char *name : settings) unsetenv(name); /* none was set */
    return mt_set_error(MT_EIO, "mt_reexec_passive: the program cannot be started again: %s",
                        std::strerror(why));
}
