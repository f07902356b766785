/*
 * start.c - what it costs to link libmemtrain: the time of a program that links its shared library alone, from start
 * to end, and what the compiler takes over the library's headers above an empty file. Medians, the four sides taking
 * turns; the shell that starts each of them is in its time. To be below 5 ms and below 10 ms. Run from the project's
 * root; CC is the compiler, cc by default.
 *
 *     start  program_ms=... without_library_ms=... headers_ms=... compiler_alone_ms=...
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 41
#define PROGRAM_LIMIT_MS 5
#define HEADERS_LIMIT_MS 10

/* $1 is an empty folder, $2 that of the libraries. Headers of the core are those of neither of the other libraries. */
static const char prepare[] =
    "set -e\n"
    "echo 'int main(void) { return 0; }' >\"$1/empty.c\"\n"
    "for header in $(grep -LE '^#include <memtrain/torch' include/memtrain/*.h); do\n"
    "    case $header in */arena.h | */sim.h | */torch*.h) ;; *) echo \"#include "
    "<${header#include/}>\" ;; esac\n"
    "done >\"$1/program.c\"\n"
    "cp \"$1/program.c\" \"$1/headers.c\"\n"
    "echo 'int main(void) { return mt_version_number() != MT_VERSION_NUMBER; }' "
    ">>\"$1/program.c\"\n"
    "${CC:-cc} -O2 \"$1/empty.c\" -o \"$1/empty\"\n"
    "${CC:-cc} -O2 -Iinclude \"$1/program.c\" -o \"$1/program\" -L\"$2\" -lmemtrain "
    "\"-Wl,-rpath,$2\"\n";

typedef struct side {
    const char *command; /* $1 as in prepare */
    double ms[ROUNDS];
} side;

static side sides[] = {
    {"exec \"$1/program\"", {0}},
    {"exec \"$1/empty\"", {0}},
    {"exec ${CC:-cc} -Iinclude -fsyntax-only \"$1/headers.c\"", {0}},
    {"exec ${CC:-cc} -Iinclude -fsyntax-only -x c /dev/null", {0}},
};
enum { SIDES = sizeof sides / sizeof *sides };

static double now_ms(void) {
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

/* Whether the shell's exit status is 0. */
static int run(const char *script, const char *folder, const char *libraries) {
    pid_t child = fork();
    int status;

    if (child == 0) {
        execl("/bin/sh", "sh", "-c", script, "sh", folder, libraries, (char *)NULL);
        _exit(127);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(side *s) {
    qsort(s->ms, ROUNDS, sizeof *s->ms, by_size);
    return s->ms[ROUNDS / 2];
}

/* The order turns round with each round. */
static int measure(const char *folder) {
    for (int round = -1; round < ROUNDS; round++) /* the first one warms up */
        for (int i = 0; i < SIDES; i++) {
            side *s = &sides[round % 2 ? SIDES - 1 - i : i];
            double start = now_ms();

            if (!run(s->command, folder, NULL)) return 0;
            if (round >= 0) s->ms[round] = now_ms() - start;
        }
    return 1;
}

static int report(void) {
    double program = median(&sides[0]), empty = median(&sides[1]);
    double headers = median(&sides[2]), compiler = median(&sides[3]);

    printf(
        "start  program_ms=%.2f without_library_ms=%.2f headers_ms=%.2f compiler_alone_ms=%.2f\n",
        program, empty, headers - compiler, compiler);
    return program < PROGRAM_LIMIT_MS && headers - compiler < HEADERS_LIMIT_MS;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/memtrain.XXXXXX", libraries[4096], *slash;
    int done;

    (void)argc;
    if (realpath(argv[0], libraries) == NULL || mkdtemp(folder) == NULL) return EXIT_FAILURE;
    for (int up = 0; up < 3; up++) /* from build/tests/bench/start to build */
        if ((slash = strrchr(libraries, '/')) != NULL) *slash = '\0';
    if (strlen(libraries) + sizeof "/lib" > sizeof libraries) return EXIT_FAILURE;
    strcat(libraries, "/lib");
    done = run(prepare, folder, libraries) && measure(folder) && report();
    run("rm -rf \"$1\"", folder, NULL);
    return done ? EXIT_SUCCESS : EXIT_FAILURE;
}
