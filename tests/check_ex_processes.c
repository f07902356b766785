/*
 * check_ex_processes.c - programs by several processes as a person runs them: --processes starts the others, one
 * speaks for all, each has files of its own, and what ends one ends all.
 */
#include "cli.h"
#include "common/suite.h"

#include <signal.h>
#include <stdio.h>
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
START_TEST(one_speaks_for_all) {
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
END_TEST

/* Stopped after a few steps and taken up again, it ends where it would have, given the same chunks. */
START_TEST(goes_on_to_the_same_state) {
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
END_TEST

/* A signal to one is one to all, and each saves. */
START_TEST(a_signal_stops_all) {
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
END_TEST

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

START_TEST(one_is_killed) {
    static const char *const arguments[] = {TWO, "--epochs", "1000", "--trace", NULL, NULL};
    const char *given[CLI_MOST_ARGUMENTS] = {NULL};
    size_t count = sizeof arguments / sizeof *arguments;
    memcpy(given, arguments, sizeof arguments);
    given[count - 2] = cli_trace;
    pid_t parent = cli_start(given);
    cli_wait_for_step(3);
    pid_t child = child_of(parent);
    if (child) kill(child, SIGKILL);
    if (!child) kill(parent, SIGTERM);
    int status = cli_finish(parent);
    if (!child) return;
    ck_assert_int_eq(status, 1);
    ck_contains(cli_err, "process 0 of 2: the others are not to be reached");
    ck_contains(cli_err, "1 of the processes that --processes started did not end well");
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------------ */

static const struct {
    const char *arguments[5], *words;
} wrong[] = {
    {{"--processes", "0"}, "--processes: '0' is not accepted"},
    {{"--processes", "65"}, "--processes: '65' is not accepted"},
    {{"--processes", "2", "--replay", "x"}, "--replay: not together with several processes"},
};

START_TEST(wrong_values_exit_2) {
    cli_expect(2, wrong[_i].arguments);
    ck_contains(cli_err, wrong[_i].words);
}
END_TEST

START_TEST(the_environment_is_checked) {
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
END_TEST

/* What the processes cannot have together ends each of them. */
START_TEST(what_they_cannot_have) {
    EXPECT(1, TWO, "--fallback", "smaller-batch");
    ck_contains(cli_err, "smaller_batch");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("ex_processes");
    cli_program = "prsmed";
    TCase *runs = cli_case(suite, "runs"), *refused = cli_case(suite, "refused");

    tcase_add_test(runs, one_speaks_for_all);
    tcase_add_test(runs, goes_on_to_the_same_state);
    tcase_add_test(runs, a_signal_stops_all);
    tcase_add_test(runs, one_is_killed);
    tcase_add_loop_test(refused, wrong_values_exit_2, 0, LENGTH(wrong));
    tcase_add_test(refused, the_environment_is_checked);
    tcase_add_test(refused, what_they_cannot_have);
    return suite_run(suite);
}
