/*
 * cli.h - runs build/examples/food101, or another example, and looks at what it left behind, for the
 * check_ex_*.c and check_plain_c.c.
 *
 * The program is found beside the test. Pictures of 32 x 32 keep the runs short; --threads 1 and
 * --deterministic keep them the same on any machine.
 */
#ifndef MEMTRAIN_TESTS_CLI_H
#define MEMTRAIN_TESTS_CLI_H

#include "suite.h"

#include <sys/types.h>

enum { CLI_CAPACITY = 65536, CLI_PATH = 512, CLI_MOST_ARGUMENTS = 32 };

/* A folder of the test's own, and two traces in it. */
extern char cli_root[CLI_PATH], cli_trace[CLI_PATH], cli_replayed[CLI_PATH];

/* What has this name in it: static, one of 32 that take turns. */
const char *cli_path(const char *name);

/* The folder that the running program is in. */
const char *cli_self(void);

/* A line of the shell, as of printf, which has to succeed. */
void cli_shell(const char *format, ...) CK_ATTRIBUTE_FORMAT(printf, 1, 2);

/* What the last run wrote. */
extern char cli_out[CLI_CAPACITY], cli_err[CLI_CAPACITY];

/* Where its standard output goes, "/dev/full" say; NULL: to cli_out. */
extern const char *cli_stdout;

/* What is run, "food101" unless a suite sets another before its cases run. */
extern const char *cli_program;

/* Another one within a test. */
void cli_take_program(const char *name);

/* The same by its path. */
void cli_take_path(const char *path);

/* "NAME=VALUE", ..., NULL, for its environment; NULL: nothing beside this one. */
extern const char *const *cli_environment;

/* Whether it is started as from a shell that does not set OMP_WAIT_POLICY: a program executes itself anew then, which loads
   libtorch twice. */
extern int cli_says_nothing_of_threads;

/* MEASURED: without --deterministic. */
#define MEASURED "--device", "cpu", "--image-size", "32", "--threads", "1"
#define SMALL MEASURED, "--deterministic"

/* food101 with 60 of its pictures, 48 of them for training, where their number is no matter. */
#define FEW_PICTURES SMALL, "--dev-samples", "60"

/* A run that has to end with this exit status. */
#define EXPECT(status, ...) cli_expect(status, (const char *const[]){__VA_ARGS__, NULL})
void cli_expect(int expected, const char *const *arguments);

/* The two halves: the arguments end with NULL; the exit status is 128 + number after a signal. */
pid_t cli_start(const char *const *arguments);
int cli_finish(pid_t child);

/* Waits until the n-th step stands in cli_trace. */
void cli_wait_for_step(int n);

void cli_read_file(const char *path, char *text);
void cli_write_file(const char *path, const char *text);
void cli_append_file(const char *path, const char *text);
void cli_write_bytes(const char *path, const void *bytes, size_t count);

/* A safetensors file of one tensor of zeros, float32: shape "32,3,3,3", bytes 4 * 32 * 3 * 3 * 3. */
void cli_write_tensor(const char *path, const char *name, const char *shape, size_t bytes);

/* The text must have each of these words in it. */
#define ck_says(text, ...)                                                                         \
    do {                                                                                           \
        const char *const words_[] = {__VA_ARGS__};                                                \
        for (int word_ = 0; word_ < LENGTH(words_); word_++) ck_contains(text, words_[word_]);     \
    } while (0)

/* What the last run wrote on standard error is one line, which begins so. */
void cli_one_line(const char *begin);

/* Whether there is a disk that is always full, "/dev/full"; else the test says that it is skipped. */
int cli_has_full_disk(const char *test);

/* A number of the n-th line (from 1) of an event in a trace; -1 when there is none. */
long long cli_number(const char *path, const char *name, int n, const char *key);
double cli_real(const char *path, const char *name, int n, const char *key); /* NaN likewise */

/* The two traces end with the same state_sha256. */
void cli_same_state(void);

/* A case, among those of TEST, whose tests run the program: with a folder, and time enough to load libtorch. */
TCase *cli_case_named(const char *name);

/* One of tests that run no program, with a folder alone. */
TCase *cli_folder_case(const char *name);

#endif
