/*
 * check_ex_ends.c - how a run of food101 ends when something ends it: a signal, a full disk, a budget
 * that is known to be too small.
 */
#include "cli.h"
#include "common/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
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

/* There is nothing to save yet, and it may take long: here it reads a trace that does not end. */
START_TEST(a_signal_before_training_ends_at_once) {
    const char *const arguments[] = {SMALL, "--replay", cli_trace, NULL};
    int writer;
    ck_assert_int_eq(mkfifo(cli_trace, 0600), 0);
    pid_t child = cli_start(arguments);
    while ((writer = open(cli_trace, O_WRONLY | O_NONBLOCK)) < 0) usleep(10000);
    ck_assert_int_eq(kill(child, signals[_i].number), 0);
    ck_assert_int_eq(cli_finish(child), 128 + signals[_i].number);
    close(writer);
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
    ck_assert_ptr_eq(strchr(cli_err, '\n'), cli_err + strlen(cli_err) - 1); /* once */
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
    {{"--budget", "1MiB"}, {"these together                  174.0 MiB", "173.0 MiB", "1.0 MiB"}},
    {{"--budget", "100MiB"},
     {"optimiser state                  85.3 MiB", "batches ahead (--workers)         3.4 MiB",
      "74.0 MiB"}},
    {{"--budget", "176MiB"}, {"left for activations", "at once do not fit: ", "176.0 MiB"}},
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

START_TEST(a_model_that_no_card_holds_goes_on_on_the_cpu) {
    EXPECT(0, SMALL, "--device", "sim:cuda", "--budget", "150MiB", "--fallback", "cpu", "--steps",
           "2");
    ck_contains(cli_err, "--fallback: going on on the CPU: ");
    ck_contains(cli_out, "cpu");
    EXPECT(3, SMALL, "--device", "sim:cuda", "--budget", "150MiB", "--steps", "2");
}
END_TEST

/* ---- what is known beforehand -------------------------------------------------------------------- */

static const struct {
    const char *flags[6];
    int status;
    const char *has[3], *has_not[2];
} explained[] = {
    /* BatchNorm at 32 pixels needs two samples: one is in no table. */
    {{"--batch", "8"}, 0, {"    2 ", "    8 ", "is cut into 1 chunk or more"}, {"    1 ", ""}},
    {{"--batch", "5", "--max-micro-batch", "2"}, 0, {"is cut into 2 chunks", "", ""}, {"", ""}},
    {{"--max-micro-batch", "4"}, 0, {"is cut into 8 chunks or more", "", ""}, {"", ""}},
    {{"--min-micro-batch", "30"},
     0,
     {"    32 ", "A batch of 32 is one chunk: each has at least 30", ""},
     {"2 chunks", "    30 "}},
    {{"--min-micro-batch", "30", "--budget", "200MiB"},
     3,
     {"at once fit, and chunks of at least 30 leave a batch of 32 in chunks of 32",
      "the smallest chunk, of 32 samples", "--min-micro-batch N  at most 16, instead of 30"},
     {"cut into", ""}},
    /* The state alone is too large: another device helps, and the card's size is what there is. */
    {{"--device", "sim:mps", "--budget", "150MiB"},
     3,
     {"missing", "a simulated card of more than 150.0 MiB", "  --device cpu "},
     {"are free", ""}},
    {{"--device", "sim:cuda", "--budget", "150MiB"},
     3,
     {"missing", "a simulated card of more than 150.0 MiB",
      "--fallback cpu       goes on there where not even the model fits"},
     {"are free", ""}},
    {{"--device", "cpu", "--budget", "100MiB"},
     3,
     {"missing", "more than the 100.0 MiB of now; ", "are free"},
     {"--device cpu", "--fallback"}},
    {{"--device", "cpu", "--arch", "resnet50"},
     3,
     {"missing", "or auto, instead of the 240.0 MiB that suit the defaults", "are free"},
     {"of now", ""}},
    {{"--device", "sim:mps", "--budget", "auto"},
     0,
     {"of a simulated card of the default size", "", ""},
     {"are free", ""}},
    {{"--micro-batch", "20", "--budget", "196MiB"}, 0, {"fixes the chunks", "", ""}, {"", ""}},
    {{"--device", "sim:mps", "--budget", "300MiB"},
     0,
     {"not known beforehand on sim:mps", "two thirds of it", ""},
     {"samples at once", ""}},
    {{"--device", "sim:mps", "--budget", "300MiB", "--micro-batch", "8"},
     0,
     {"not known beforehand on sim:mps", "--micro-batch 8 fixes the chunks", ""},
     {"two thirds", ""}},
};

START_TEST(explaining_says_what_is_known) {
    const char *const *flags = explained[_i].flags;
    const char *arguments[CLI_MOST_ARGUMENTS] = {SMALL, "--explain", "--epochs", "0"};
    static char all[2 * CLI_CAPACITY];
    int n = 0;
    while (arguments[n]) n++;
    for (int i = 0; i < LENGTH(explained[_i].flags) && flags[i]; i++) arguments[n++] = flags[i];
    cli_expect(explained[_i].status, arguments);
    snprintf(all, sizeof all, "%s%s", cli_out, cli_err);
    for (int i = 0; i < LENGTH(explained[_i].has); i++) ck_contains(all, explained[_i].has[i]);
    for (int i = 0; i < LENGTH(explained[_i].has_not); i++)
        if (*explained[_i].has_not[i])
            ck_assert_msg(!strstr(all, explained[_i].has_not[i]), "%s", all);
}
END_TEST

#define ON_A_SMALL_CARD                                                                            \
    "--device", "sim:cuda", "--budget", "200MiB", "--image-size", "96", "--threads", "1",          \
        "--batch", "8", "--steps", "1", "--progress", "off"

START_TEST(explaining_a_fallback) {
    EXPECT(3, ON_A_SMALL_CARD, "--explain");
    ck_contains(cli_err, "--fallback cpu");
    EXPECT(0, ON_A_SMALL_CARD, "--fallback", "cpu", "--trace", cli_trace);
    EXPECT(0, ON_A_SMALL_CARD, "--fallback", "cpu", "--trace", cli_replayed, "--explain");
    ck_contains(cli_out, "--fallback goes on on the CPU: 2 at once fit.");
    cli_same_state();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("ex_ends");
    TCase *stops = cli_case(suite, "signals"), *full = cli_case(suite, "full");
    TCase *fits = cli_case(suite, "fits");

    tcase_add_loop_test(stops, a_signal_finishes_the_step, 0, LENGTH(signals));
    tcase_add_loop_test(stops, a_signal_before_training_ends_at_once, 0, LENGTH(signals));
    tcase_add_loop_test(full, a_full_standard_output_is_told, 0, LENGTH(printing));
    tcase_add_test(full, a_full_disk_for_the_trace_is_told_at_once);
    tcase_add_test(full, a_loss_that_explodes_ends_the_trace);
    tcase_add_test(fits, a_model_that_no_card_holds_goes_on_on_the_cpu);
    tcase_add_loop_test(fits, explaining_what_cannot_fit_exits_3, 0, LENGTH(tight));
    tcase_add_loop_test(fits, explaining_says_what_is_known, 0, LENGTH(explained));
    tcase_add_test(fits, explaining_a_fallback);
    return suite_run(suite);
}
