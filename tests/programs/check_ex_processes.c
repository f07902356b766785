/*
 * check_ex_processes.c - programs by several processes as a person runs them: --processes starts the others, one
 * speaks for all, each has files of its own, and what ends one ends all.
 */
#include "cli.h"
#include "processes.h"
#include "suite.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Few scenes, small ones, and a text model that stays random; chunks that do not depend on times. */
#define QUICK                                                                                      \
    "--device", "cpu", "--image-size", "32", "--threads", "1", "--text-steps", "0", "--scenes",    \
        "49", "--val-scenes", "8", "--epochs", "2", "--batch", "4", "--micro-batch", "2"
#define TWO QUICK, "--processes", "2"

/* 64 digits of the state in which the last run ended. */
static void read_state(char out[65]) {
    const char *at = strstr(cli_out, "state sha256 ");
    ck_assert_msg(at != NULL, "%s%s", cli_out, cli_err);
    memcpy(out, at + strlen("state sha256 "), 64);
    out[64] = '\0';
}

enum { PATH = CLI_PATH + 32 };

/* A file of --save, and the other process's beside it. */
static void saved_files(char file[PATH], char other[PATH]) {
    snprintf(file, PATH, "%s/state", cli_root);
    snprintf(other, PATH, "%s/state.rank1", cli_root);
}

/* Loss of the n-th step, from 1, of a trace. */
static double loss_of(const char *path, int n) {
    static char text[CLI_CAPACITY];
    const char *at = text;
    cli_read_file(path, text);
    for (int i = 0; i < n; i++) {
        at = strstr(at, "\"event\":\"step\"");
        ck_assert_ptr_nonnull(at);
        at++;
    }
    at = strstr(at, "\"loss\":");
    ck_assert_ptr_nonnull(at);
    return strtod(at + strlen("\"loss\":"), NULL);
}

/* ---- runs ---------------------------------------------------------------------------------------- */

/* 24 of 49 scenes are each one's, six batches of four in an epoch. */
TEST("runs", one_speaks_for_all) {
    char other[PATH];
    EXPECT(0, TWO, "--trace", cli_trace);
    ck_contains(cli_out, "2 processes, each with its share of the samples, in batches of 4");
    ck_contains(cli_out, "Effective batch size: 8");
    ck_assert_ptr_null(strstr(strstr(cli_out, "epoch 1") + 1, "epoch 1"));
    snprintf(other, sizeof other, "%s.rank1", cli_trace);
    ck_assert_int_eq(cli_number(cli_trace, "step", 12, "samples"), 4);
    ck_assert_int_eq(cli_number(cli_trace, "step", 13, "samples"), -1);
    ck_assert_int_eq(cli_number(other, "step", 12, "samples"), 4);
    /* Losses are those of both, in either file. */
    for (int n = 1; n <= 12; n++) {
        ck_assert(loss_of(cli_trace, n) > 0);
        ck_assert(loss_of(cli_trace, n) == loss_of(other, n));
    }
}

/* Stopped after a few steps and taken up again, it ends where it would have, given the same chunks. */
TEST("runs", goes_on_to_the_same_state) {
    char whole[65], resumed[65], file[PATH], other[PATH];
    EXPECT(0, TWO);
    read_state(whole);
    saved_files(file, other);
    EXPECT(0, TWO, "--steps", "5", "--save", file);
    ck_assert_int_eq(access(other, R_OK), 0);
    EXPECT(0, TWO, "--resume", file);
    read_state(resumed);
    ck_assert_str_eq(whole, resumed);
}

/* A signal to one is one to all, and each saves. */
TEST("runs", a_signal_stops_all) {
    static const char *const arguments[] = {TWO,  "--epochs", "1000", "--trace",
                                            NULL, "--save",   NULL,   NULL};
    const char *given[CLI_MOST_ARGUMENTS] = {NULL};
    char file[PATH], other[PATH];
    size_t count = 0;
    saved_files(file, other);
    for (size_t i = 0; i + 1 < sizeof arguments / sizeof *arguments; i++, count++)
        given[i] = arguments[i];
    given[count - 3] = cli_trace;
    given[count - 1] = file;
    pid_t child = cli_start(given);
    cli_wait_for_step(3);
    kill(child, SIGTERM);
    ck_assert_int_eq(cli_finish(child), 128 + SIGTERM);
    ck_contains(cli_out, "stopped by SIGTERM");
    ck_assert_int_eq(access(file, R_OK), 0);
    ck_assert_int_eq(access(other, R_OK), 0);
}

/* The one process that the program has started; 0 where the system does not tell. */
static pid_t child_of(pid_t parent) {
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%d", &child) != 1) child = 0;
    if (file) fclose(file);
    return child;
}

TEST("runs", one_is_killed) {
    static const char *const arguments[] = {TWO, "--epochs", "1000", "--trace", NULL, NULL};
    const char *given[CLI_MOST_ARGUMENTS] = {NULL};
    size_t count = sizeof arguments / sizeof *arguments;
    memcpy(given, arguments, sizeof arguments);
    given[count - 2] = cli_trace;
    pid_t parent = cli_start(given);
    cli_wait_for_step(3);
    pid_t child = child_of(parent);
    if (child) kill(child, SIGKILL);
    if (!child) printf("SKIP: the system does not tell of children\n");
    if (!child) kill(parent, SIGTERM);
    int status = cli_finish(parent);
    if (!child) return;
    ck_assert_int_eq(status, 1);
    ck_contains(cli_err, "process 0 of 2: the others are not to be reached");
    ck_contains(cli_err, "1 of the processes that --processes started did not end well");
}

/* Killed before they have met: nobody waits for it. */
TEST("runs", one_never_comes) {
    static const char *const arguments[] = {TWO, NULL};
    pid_t child = 0, parent = cli_start(arguments);
    for (int i = 0; i < 2000 && !(child = child_of(parent)); i++) usleep(1000);
    if (!child) printf("SKIP: the system does not tell of children\n");
    kill(child ? child : parent, SIGKILL);
    int status = cli_finish(parent);
    if (!child) return;
    ck_assert_int_eq(status, 1);
    ck_contains(cli_err, "ended before all have met");
}

/* Ctrl-Z reaches all of them while they meet; one that goes on again has not ended. */
TEST("runs", one_is_stopped_for_a_while) {
    static const char *const arguments[] = {TWO, "--epochs", "1", NULL};
    pid_t child = 0, parent = cli_start(arguments);
    for (int i = 0; i < 2000 && !(child = child_of(parent)); i++) usleep(1000);
    if (!child) printf("SKIP: the system does not tell of children\n");
    if (child) kill(child, SIGSTOP);
    usleep(300000);
    if (child) kill(child, SIGCONT);
    int status = cli_finish(parent);
    ck_assert_msg(status == 0, "%d: %s", status, cli_err);
}

/* Of two that torchrun has started, or somebody by hand, the first is killed: the other does not wait for it. */
TEST("runs", the_first_is_killed) {
    char port[32];
    const char *const first[] = {"WORLD_SIZE=2", "RANK=0", "MASTER_ADDR=127.0.0.1", port, NULL};
    const char *const second[] = {"WORLD_SIZE=2", "RANK=1", "MASTER_ADDR=127.0.0.1", port, NULL};
    const char *const arguments[] = {QUICK, "--epochs", "1000", "--trace", cli_trace, NULL};
    int status;
    snprintf(port, sizeof port, "MASTER_PORT=%d", ex_processes_free_port());
    cli_environment = first;
    pid_t killed = cli_start(arguments);
    cli_environment = second;
    pid_t other = cli_start(arguments);
    cli_wait_for_step(3);
    ck_assert_int_eq(kill(killed, SIGKILL), 0);
    ck_assert_int_eq(waitpid(killed, &status, 0), killed);
    ck_assert_int_eq(cli_finish(other), 1);
    ck_contains(cli_err, "process 1 of 2: the others are not to be reached");
}

/* One whose parent has died before it could ask to be told has another parent by then. */
TEST("parents", a_parent_that_has_gone) {
    ck_assert(ex_processes_end_with(getppid()));
    ck_assert(!ex_processes_end_with(getpid()));
}

TEST("runs", the_best_goes_on) {
    char file[PATH], other[PATH], best[PATH + 8];
    saved_files(file, other);
    EXPECT(0, TWO, "--schedule", "constant", "--epochs", "1", "--save", file);
    snprintf(best, sizeof best, "%s.best", file);
    EXPECT(0, TWO, "--schedule", "constant", "--resume", best);
}

/* ---- what is refused ------------------------------------------------------------------------------ */

static const struct {
    const char *arguments[5], *words;
} wrong[] = {
    {{"--processes", "0"}, "--processes: '0' is not accepted"},
    {{"--processes", "65"}, "--processes: '65' is not accepted"},
    {{"--processes", "2", "--replay", "x"}, "--replay: not together with several processes"},
    {{"--processes", "2", "--fallback", "smaller-batch"}, "--fallback: smaller-batch is not for"},
    {{"--processes", "3", "--scenes", "2"}, "--processes: 3 leave each 0 scenes for training"},
};

TEST_LOOP("refused", wrong_values_exit_2, LENGTH(wrong)) {
    cli_expect(2, wrong[_i].arguments);
    ck_contains(cli_err, wrong[_i].words);
}

TEST("refused", the_environment_is_checked) {
    static const char *const lacking[] = {"WORLD_SIZE=2", "RANK=1", NULL};
    static const char *const other[] = {"WORLD_SIZE=2", "RANK=1", "MASTER_ADDR=localhost",
                                        "MASTER_PORT=1", NULL};
    cli_environment = lacking;
    EXPECT(2, QUICK);
    ck_contains(cli_err, "MASTER_PORT is not set");
    cli_environment = other;
    EXPECT(2, TWO, "--processes", "3");
    ck_contains(cli_err, "--processes: 3, but WORLD_SIZE is 2");
}

/* Programs that cannot, or not all that they can. */
static const struct {
    const char *program, *arguments[5], *words;
} others[] = {
    {"car_clip", {"--processes", "2"}, "--contrastive: 'cached' is not accepted for several"},
    {"food101", {"--processes", "2", "--table"}, "--table: not by several processes"},
    {"profoct", {"--processes", "2", "--self-test"}, "--self-test: not by several processes"},
};

TEST_LOOP("refused", what_others_refuse, LENGTH(others)) {
    cli_take_program(others[_i].program);
    cli_expect(2, others[_i].arguments);
    ck_contains(cli_err, others[_i].words);
}

/* Each of the other programs, a few steps. */
static const struct {
    const char *program, *arguments[16];
} trainers[] = {
    {"food101", {"--image-size", "32", "--batch", "8"}},
    {"smartcash", {"--image-size", "64", "--batch", "2"}},
    {"car_clip", {"--image-size", "32", "--contrastive", "plain", "--batch", "8"}},
    {"profoct", {"--image-size", "32", "--preset", "minimal"}},
};

TEST_LOOP("runs", the_others_train, LENGTH(trainers)) {
    const char *given[CLI_MOST_ARGUMENTS] = {"--processes", "2", "--threads", "1", "--steps", "2"};
    cli_take_program(trainers[_i].program);
    for (size_t i = 0; trainers[_i].arguments[i]; i++) given[6 + i] = trainers[_i].arguments[i];
    cli_expect(0, given);
    ck_contains(cli_out, "2 processes, each with its share");
}

/* Files of --save that do not belong together. */
TEST("refused", files_of_other_steps) {
    char file[PATH], other[PATH];
    saved_files(file, other);
    EXPECT(0, TWO, "--steps", "3", "--save", file);
    ck_assert_int_eq(rename(other, cli_replayed), 0);
    EXPECT(0, TWO, "--steps", "5", "--save", file);
    ck_assert_int_eq(rename(cli_replayed, other), 0);
    EXPECT(2, TWO, "--resume", file);
    ck_contains(cli_err, "files of --resume that are of other steps");
    ck_assert_int_eq(unlink(other), 0);
    EXPECT(1, TWO, "--resume", file);
    ck_contains(cli_err, "state.rank1'");
}

/* Flags that differ, as torchrun would hand them out by no mistake of its own. */
TEST("refused", flags_that_differ) {
    char port[32];
    const char *const first[] = {"WORLD_SIZE=2", "RANK=0", "MASTER_ADDR=127.0.0.1", port, NULL};
    const char *const second[] = {"WORLD_SIZE=2", "RANK=1", "MASTER_ADDR=127.0.0.1", port, NULL};
    static const char *const arguments[] = {QUICK, "--lr", "0.01", NULL};
    snprintf(port, sizeof port, "MASTER_PORT=%d", ex_processes_free_port());
    cli_environment = second;
    pid_t other = cli_start(arguments);
    cli_environment = first;
    EXPECT(2, QUICK, "--lr", "0.02");
    ck_contains(cli_err, "the 2 processes have other ");
    ck_assert_int_eq(cli_finish(other), 2);
}

int main(void) {
    cli_program = "prsmed";
    cli_case_named("runs");
    cli_case_named("refused");
    return suite_run_named("ex_processes");
}
