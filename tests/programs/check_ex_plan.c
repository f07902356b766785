/*
 * check_ex_plan.c - build/examples/plan as a person runs it: the list, one configuration, and all of a
 * program against budgets.
 */
#include "cli.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A program that is moved does not find libtorch beside it, where this build is not one folder below it. */
static void tell_where_libtorch_is(void) {
    const char *folder = getenv("TORCH_LIB");
    if (folder) ck_assert_int_eq(setenv("LD_LIBRARY_PATH", folder, 1), 0);
}

TEST("flags", a_list_without_a_budget) {
    EXPECT(0, NULL);
    ck_says(cli_out, "food101    original", "smartcash  tier1", "prsmed     0", "car_clip   16x8",
            "profoct    minimal");
    EXPECT(0, "--example", "profoct");
    ck_assert_ptr_null(strstr(cli_out, "food101"));
}

static const char *const wrong[][4] = {
    {"--budget", "much", NULL, "--budget: 'much'"},
    {"--budget", "1", NULL, "--budget: '1' is not accepted; accepted: a size of at least 1MiB"},
    {"--config", "best", NULL,
     "--config: 'best' is not accepted; accepted: first, original, target, safe, tier1, "},
    {"--config=tier1", "--example=profoct", NULL,
     "--config: 'tier1' is not accepted; accepted for profoct: minimal, balanced, maximum\n"},
    {"--example", "nothing", NULL,
     "--example: 'nothing' is not accepted; accepted: food101, smartcash, prsmed, car_clip, "
     "profoct\n"},
    {"--nothing", NULL, NULL, "--nothing"},
};

TEST_LOOP("flags", wrong_flags_exit_2, LENGTH(wrong)) {
    cli_expect(2, wrong[_i]);
    ck_says(cli_err, "plan: ", wrong[_i][3]);
    ck_assert_str_eq(cli_out, "");
}

/* The state of FSCT alone takes 187 MiB: without a network, with a chunk of one, and with all four. The other presets fit none. */
static const char *const budgets[][2] = {
    {"100MiB", "minimal      does not fit: mt_torch_new: "},
    {"300MiB", "minimal      fits in chunks of 1"},
    {"900MiB", "minimal      fits: 4 at once take "},
};

TEST_LOOP("runs", a_program_against_budgets, LENGTH(budgets)) {
    EXPECT(3, "--example", "profoct", "--budget", budgets[_i][0]);
    ck_contains(cli_out, budgets[_i][1]);
    /* Between the two halves some CPUs need ", with checkpointing". */
    if (_i == 1) ck_contains(cli_out, "; 4 at once would take at most ");
    if (_i >= 1) ck_contains(cli_out, "; a step takes ");
}

/* A row that fits with its activations in a file is told so; the state of the other presets fits in no way. */
TEST("runs", what_makes_a_row_fit_is_told) {
    EXPECT(3, "--example", "profoct", "--budget", "3700MiB");
    ck_says(cli_out, "maximum      does not fit: the smallest chunk, of 1 sample, ",
            "; it fits with --offload file, in chunks of 1; a step takes ");
    EXPECT(3, "--example", "profoct", "--config", "maximum", "--budget", "3700MiB");
    ck_contains(cli_out, "\nIt fits with --offload file, in chunks of 1; a step takes ");
    EXPECT(3, "--example", "profoct", "--budget", "100MiB");
    ck_assert_ptr_null(strstr(cli_out, "--offload"));
}

/* A language model in a file, where there is such a file. */
TEST("runs", a_file_of_weights) {
    EXPECT(0, "--example", "prsmed");
    ck_contains(cli_out,
                "prsmed     7b           the same as 0, beside a frozen language model of");
    EXPECT(3, "--example", "prsmed", "--budget", "100MiB", "--weights", "/nonexistent");
    ck_contains(cli_out,
                "7b           is left out: there is no '/nonexistent/7b.safetensors', which ");
    cli_write_file(cli_path("7b.safetensors"), "no such file");
    EXPECT(1, "--example", "prsmed", "--budget", "100MiB", "--weights", cli_root);
    ck_says(cli_out, "7b           not known: ", "7b.safetensors' is no safetensors file");
}

/* Programs that are not there say nothing of a budget: plan alone, in a folder beside the libraries. */
TEST("runs", a_program_that_is_not_there) {
    char command[8 * CLI_PATH];
    const char *self = cli_self();
    snprintf(
        command, sizeof command,
        "cd %s && mkdir examples && ln -s '%s/../lib' lib && ln -s '%s/../libtorch' libtorch && cp "
        "'%s/../examples/plan' examples && examples/plan --example car_clip --budget "
        "8GiB > out",
        cli_root, self, self, self);
    tell_where_libtorch_is();
    int status = system(command);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    cli_read_file(cli_path("out"), cli_out);
    ck_contains(cli_out, "not known: car_clip is not there to be run");
    ck_assert_ptr_null(strstr(cli_out, "does not fit"));
}

/* Folders that a shell would read as words, and as commands of its own. */
static const char *const folders[] = {"with a blank", "x';touch INJECTED;'",
                                      "\"$(touch INJECTED)\"", "two\nlines", "*"};

TEST_LOOP("runs", the_folder_is_no_command, LENGTH(folders)) {
    char path[2 * CLI_PATH], here[CLI_PATH];
    const char *self = cli_self(), *to = cli_path(folders[_i]);
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    cli_shell("ln -s '%s/../lib' '%s/../libtorch' '%s'", self, self, cli_root);
    ck_assert_int_eq(mkdir(to, 0700), 0);
    ck_assert_int_eq(chdir(to), 0);
    cli_shell("cp '%s/../examples/plan' '%s/../examples/profoct' .", self, self);
    ck_assert_int_eq(chdir(here), 0);
    snprintf(path, sizeof path, "%s/plan", to);
    cli_take_path(path);
    tell_where_libtorch_is();
    EXPECT(3, "--example", "profoct", "--config", "minimal", "--budget", "100MiB");
    ck_says(cli_out, "profoct, minimal: few-shot episodes", "What takes memory on cpu");
    ck_assert_int_ne(unlink("INJECTED"), 0);
}

/* Which row is asked is said before its answer, which may take minutes: on standard error, one line each. */
TEST("runs", rows_are_told_while_they_are_asked) {
    EXPECT(3, "--example", "profoct", "--budget", "100MiB");
    ck_says(cli_err, "plan: 1 of 3: profoct minimal, few-shot episodes",
            "plan: 3 of 3: profoct maximum, ");
    ck_assert_ptr_null(strstr(cli_out, " of 3: "));
}

TEST("runs", one_configuration_alone) {
    EXPECT(0, "--example", "profoct", "--config", "minimal", "--budget", "900MiB");
    ck_says(cli_out, "--preset minimal\n", "What takes memory on cpu");
    EXPECT(3, "--example", "profoct", "--config", "minimal", "--budget", "100MiB");
}

/* The line of a step in bytes, which is told of chunks that ran and of those that did not. */
static void step_of(const char *program, const char *const *arguments, char *line,
                    size_t capacity) {
    cli_take_program(program);
    cli_expect(0, arguments);
    const char *start = strstr(cli_out, "A step of ");
    ck_assert_msg(start != NULL, "%s", cli_out);
    snprintf(line, capacity, "%.*s", (int)strcspn(start, "\n"), start);
}

static const struct {
    const char *program, *flags[7];
} rehearsed[] = {
    {"food101", {"--image-size", "224", "--budget", "400MiB", "--batch", "8"}},
    {"food101", {"--image-size", "256", "--budget", "300MiB", "--checkpointing", "on"}},
    {"smartcash", {"--image-size", "192", "--budget", "2GiB", "--batch", "4"}},
};

TEST_LOOP("runs", a_rehearsal_tells_what_a_run_tells, LENGTH(rehearsed)) {
    /* Batches that are rendered ahead are there at one moment and not yet at another. */
    const char *arguments[18] = {"--workers", "0",   "--explain", "--epochs", "0",
                                 "--device",  "cpu", "--threads", "1",        "--rehearse"};
    char ran[256], told[256];
    for (int i = 0; rehearsed[_i].flags[i]; i++) arguments[11 + i] = rehearsed[_i].flags[i];
    arguments[10] = "off";
    step_of(rehearsed[_i].program, arguments, ran, sizeof ran);
    ck_assert_ptr_null(strstr(cli_out, "are not run"));
    ck_contains(cli_out, "the process takes ");
    arguments[10] = "on";
    step_of(rehearsed[_i].program, arguments, told, sizeof told);
    ck_contains(cli_out, "are not run: those of 96, 128 and 160 pixels tell what they take");
    ck_assert_ptr_null(strstr(cli_out, "the process takes "));
    ck_assert_str_eq(ran, told);
}

/* CLIP's positions are of one size of picture, and its loss is over the whole batch. */
TEST("runs", a_network_that_cannot_be_rehearsed) {
    cli_take_program("car_clip");
    EXPECT(1, "--explain", "--epochs", "0", "--device", "cpu", "--image-size", "224", "--batch",
           "4", "--rehearse", "on");
    ck_contains(cli_err, "its chunks depend on the whole batch");
    cli_take_program("food101");
    EXPECT(1, "--explain", "--epochs", "0", "--device", "cpu", "--image-size", "100", "--rehearse",
           "on");
    ck_contains(
        cli_err,
        "pictures of 100 pixels cannot be rehearsed; accepted: a multiple of 32, at least 160");
}

int main(void) {
    cli_program = "plan";
    cli_case_named("flags");
    cli_case_named("runs");
    return suite_run_named("ex_plan");
}
