/*
 * check_ex_ends.c - how a run of food101 ends when something ends it: a signal, a full disk, a budget
 * that is known to be too small.
 */
#include "cli.h"
#include "common/suite.h"

#include <signal.h>
#include <unistd.h>

/* ---- signals ------------------------------------------------------------------------------------- */

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGINT, "stopped by Ctrl-C after step "},
               {SIGTERM, "stopped by SIGTERM after step "}};

START_TEST(a_signal_finishes_the_step) {
    const char *const arguments[] = {SMALL, "--epochs", "1000", "--trace", cli_trace, NULL};
    pid_t child = cli_start(arguments);
    cli_wait_for_step(2);
    ck_assert_int_eq(kill(child, signals[_i].number), 0);
    ck_assert_int_eq(cli_finish(child), 128 + signals[_i].number);
    ck_contains(cli_out, signals[_i].name);
    ck_contains(cli_out, "; state sha256 ");
    ck_assert_int_ge(cli_number(cli_trace, "end", 1, "steps"), 2);
    EXPECT(0, SMALL, "--epochs", "1000", "--replay", cli_trace, "--trace", cli_replayed);
    cli_same_state();
}
END_TEST

/* ---- what cannot be written -------------------------------------------------------------------------- */

static const char *const printing[] = {"--help", "--version", "--explain"};

START_TEST(a_full_standard_output_is_told) {
    if (access("/dev/full", W_OK) != 0) return;
    cli_stdout = "/dev/full";
    EXPECT(1, SMALL, "--steps", "1", "--progress", "off", printing[_i]);
    ck_contains(cli_err, "food101: standard output could not be written");
    ck_assert_ptr_eq(strchr(cli_err, '\n'), cli_err + strlen(cli_err) - 1);
}
END_TEST

/* Before anything is trained. */
START_TEST(a_full_disk_for_the_trace_is_told_at_once) {
    if (access("/dev/full", W_OK) != 0) return;
    EXPECT(1, SMALL, "--epochs", "100000", "--trace", "/dev/full");
    ck_contains(cli_err, "food101: --trace: cannot write '/dev/full': ");
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}
END_TEST

START_TEST(a_loss_that_explodes_ends_the_trace) {
    EXPECT(1, SMALL, "--optimizer", "sgd", "--lr", "1e30", "--steps", "5", "--trace", cli_trace);
    ck_assert_int_ge(cli_number(cli_trace, "end", 1, "steps"), 1);
}
END_TEST

/* ---- what cannot fit ----------------------------------------------------------------------------- */

static const struct {
    const char *flags[2];
    const char *has[3];
} tight[] = {
    {{"--budget", "1MiB"}, {"these together                  170.6 MiB", "169.6 MiB", "1.0 MiB"}},
    {{"--budget", "100MiB"},
     {"optimiser state                  85.3 MiB", "70.6 MiB", "100.0 MiB"}},
    {{"--budget", "172MiB"}, {"left for activations", "at once do not fit: ", "172.0 MiB"}},
    {{"--micro-batch", "32"}, {"does not fit", "fixes the chunks", "32 "}},
};

START_TEST(explaining_what_cannot_fit_exits_3) {
    const char *budget = strcmp(tight[_i].flags[0], "--budget") == 0 ? "1GiB" : "240MiB";
    EXPECT(3, "--image-size", "96", "--threads", "1", "--explain", "--epochs", "0", "--budget",
           budget, tight[_i].flags[0], tight[_i].flags[1]);
    ck_contains(cli_out, "What takes memory on cpu");
    ck_contains(cli_out, "gradients                        42.7 MiB");
    for (int i = 0; i < LENGTH(tight[_i].has); i++) ck_contains(cli_out, tight[_i].has[i]);
    ck_contains(cli_err, "--budget SIZE");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("ex_ends");
    TCase *stops = cli_case(suite, "signals"), *full = cli_case(suite, "full");
    TCase *fits = cli_case(suite, "fits");

    tcase_add_loop_test(stops, a_signal_finishes_the_step, 0, LENGTH(signals));
    tcase_add_loop_test(full, a_full_standard_output_is_told, 0, LENGTH(printing));
    tcase_add_test(full, a_full_disk_for_the_trace_is_told_at_once);
    tcase_add_test(full, a_loss_that_explodes_ends_the_trace);
    tcase_add_loop_test(fits, explaining_what_cannot_fit_exits_3, 0, LENGTH(tight));
    return suite_run(suite);
}
