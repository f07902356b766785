/*
 * check_ex_learned.c - --learned: the second run of food101 throws nothing away, one of another network or number of threads
 * leaves the file out, and --check leaves it alone.
 */
#include "cli.h"

#include <unistd.h>

static const char *learned;

static void name_file(void) {
    learned = cli_path("l.txt");
}

/* Pictures of 32 x 32, chunks of some pictures each. */
#define RUN(...)                                                                                   \
    EXPECT(0, "--device", "cpu", "--image-size", "32", "--budget", "225MiB", "--epochs", "1",      \
           "--steps", "4", "--learned", learned, "--trace", cli_trace, __VA_ARGS__)

static long long discarded(void) {
    long long sum = 0;
    for (int n = 1; n <= 4; n++) sum += cli_number(cli_trace, "step", n, "discarded");
    return sum;
}

TEST("runs", the_second_run) {
    RUN("--threads", "1");
    long long first = discarded();
    ck_assert_int_eq(access(learned, R_OK), 0);
    RUN("--threads", "1");
    ck_assert_int_eq(discarded(), 0);
    ck_assert_int_le(discarded(), first);
    ck_contains(cli_out, "0 OOMs met");
    ck_assert_msg(strstr(cli_err, "left out") == NULL, "%s", cli_err);
}

TEST("runs", another_run) {
    RUN("--threads", "1", "--budget", "400MiB");
    RUN("--threads", "2", "--budget", "400MiB");
    ck_says(cli_err, "threads 1", "threads 2");
    RUN("--threads", "2", "--arch", "resnet34", "--budget", "600MiB");
    ck_contains(cli_err, "is left out: it was written for 'model ");
}

TEST("runs", a_check_leaves_it) {
    EXPECT(0, SMALL, "--check", "--learned", learned);
    ck_assert_int_ne(access(learned, F_OK), 0);
    EXPECT(2, SMALL, "--epochs", "1", "--learned", learned, "--trace", learned);
    ck_contains(cli_err, "--learned");
}

/* The file is replaced, so a file of something else is not taken. */
TEST("runs", no_other_file) {
    cli_write_file(learned, "my notes\n");
    EXPECT(2, SMALL, "--epochs", "1", "--learned", learned);
    cli_one_line("food101: --learned: '");
    ck_contains(cli_err, "is a file of something else");
    EXPECT(2, SMALL, "--epochs", "1", "--learned", "/nonexistent/l");
    ck_contains(cli_err, "--learned: cannot write '/nonexistent/l'");
}

int main(void) {
    tcase_add_checked_fixture(cli_case_named("runs"), name_file, NULL);
    return suite_run_named("ex_learned");
}
