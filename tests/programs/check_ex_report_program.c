/*
 * check_ex_report_program.c - memtrain-report as a person runs it: traces of a backend in plain C, several runs, what is wrong
 * with a file, and a page that follows a run.
 */
#include "cli.h"
#include "page.h"

#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *out, *a, *b;

static void name_files(void) {
    out = cli_path("out.html");
    a = cli_path("a.jsonl");
    b = cli_path("b.jsonl");
}

#define RUN(version, device)                                                                       \
    "{\"event\":\"run\",\"version\":\"" version "\",\"torch\":\"own\",\"device\":\"" device        \
    "\",\"budget_bytes\":8388608,\"batch\":12}\n"
#define OURS RUN(MT_VERSION_STRING, "gpu")
#define STEP(n, loss, lr)                                                                          \
    "{\"event\":\"step\",\"step\":" n                                                              \
    ",\"epoch\":1,\"samples\":12,\"chunks\":[6,6],\"loss\":" loss                                  \
    ",\"metrics\":{\"hits\":0.5},\"seconds\":0.5,\"lr\":" lr                                       \
    ",\"peak_bytes\":4194304,\"allocated_bytes\":1048576,\"budget_bytes\":8388608}\n"
#define EPOCH(loss)                                                                                \
    "{\"event\":\"epoch\",\"epoch\":1,\"loss\":0.5,\"metrics\":{\"hits\":0.5},\"eval_loss\":" loss \
    ",\"eval_metrics\":{\"hits\":0.25},\"seconds\":1,\"peak_bytes\":4194304}\n"
#define END                                                                                        \
    "{\"event\":\"end\",\"steps\":2,\"samples_trained\":24,\"samples_discarded\":0,\"seconds\":1}" \
    "\n"

/* What every page is. */
static void read_out(void) {
    page_read_whole(out);
    page_has("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>");
    ck_assert_msg(!strstr(page, "min-width:6"), "a plot that is wider than a phone");
}

static void draw(const char *text) {
    cli_write_file(a, text);
    EXPECT(0, a, "-o", out);
    read_out();
}

/* ---- one run ----------------------------------------------------------------------------------- */

/* No libtorch and none of its programs: the trace of examples/plain_c.c. */
TEST("one", a_backend_of_ones_own) {
    cli_take_program("plain_c");
    EXPECT(0, "--trace", a, "--steps", "40", "--inject-oom", "3:2");
    cli_take_program("memtrain-report");
    EXPECT(0, a, "-o", out);
    ck_assert_str_eq(cli_err, "");
    read_out();
    page_has("<h1>a on cpu</h1><span class=\"pill done\">done</span>",
             "<b>40</b><span>steps</span>", "<title>1 OOM, step 3</title>",
             "Memory ran out 1 time; answers: ", "<h3>accuracy</h3>", "Learning rate",
             "learning rate 0.05", "class=\"eval\"", "dashed with dots: validation",
             "memory: grey what stays between steps; dashed the budget");
}

TEST("one", loss_and_validation) {
    draw(OURS STEP("1", "0.5", "0.1") STEP("2", "0.25", "0.1") EPOCH("0.375") END);
    ck_assert_uint_eq(page_count("<svg class=\"plot\""), 6);
    page_has("validation loss 0.375", "learning rate 0.1", "<h3>hits</h3>",
             "<h3>Peak memory <span>MiB, over the time of the steps in s</span></h3>",
             "data-over=\"time\" data-first=\"0\" data-last=\"1\"");
    ck_assert_uint_eq(page_count("log axis"), 0);
}

/* Decades, and what no logarithm has. */
static const struct {
    const char *text;
    int logs;
} scales[] = {
    {OURS STEP("1", "100", "0.1") STEP("2", "1", "0.1"), 1},
    {OURS STEP("1", "99", "0.1") STEP("2", "1", "0.1"), 0},
    {OURS STEP("1", "100", "0.1") STEP("2", "0", "0.1"), 0},
    {OURS STEP("1", "100", "0.1") STEP("2", "-1", "0.1"), 0},
    {OURS STEP("1", "1e-7", "1e-3") STEP("2", "1", "1e-6"), 2},
};

TEST_LOOP("one", an_axis_of_decades, LENGTH(scales)) {
    draw(scales[_i].text);
    ck_assert_uint_eq(page_count("log axis"), (size_t)scales[_i].logs);
}

/* A rate that goes down to nothing in its last steps does not span decades before. */
TEST("one", a_cosine_has_a_plain_axis) {
    char line[1024];
    cli_write_file(a, OURS);
    for (int i = 1; i <= 100; i++) {
        snprintf(line, sizeof line, "{\"event\":\"step\",\"step\":%d,\"loss\":1,\"lr\":%g}\n", i,
                 i < 95 ? 1.0 - i * 0.01 : 1e-6 * (101 - i));
        cli_append_file(a, line);
    }
    EXPECT(0, a, "-o", out);
    read_out();
    page_has("<h3>Learning rate</h3>");
}

TEST("one", a_run_that_left_its_device) {
    draw(OURS STEP("1", "0.5", "0.1") "{\"event\":\"rung\",\"step\":2,\"name\":\"cpu\",\"on\":true,"
                                      "\"reason\":\"oom\"}\n" STEP("2", "0.5", "0.1"));
    page_has("<h1>a on gpu</h1>",
             "<p>From step 2 on it trained on the CPU: the device&#39;s memory ran out.</p>",
             "<p>The trace has no last line: the run goes on, or was killed.</p>");
}

TEST("one", plots_alone) {
    cli_write_file(a, OURS STEP("1", "0.5", "0.1") STEP("2", "0.25", "0.1") EPOCH("0.375") END);
    out = cli_path("out.svg");
    EXPECT(0, a, "-o", out);
    page_read(out);
    page_check_well_formed();
    page_has("<svg xmlns=", ">a on gpu</text>");
    ck_assert_uint_eq(page_count("class=\"title\""), 1 + 6);
}

/* ---- several runs ------------------------------------------------------------------------------ */

TEST("several", runs_over_one_another) {
    cli_write_file(a, OURS STEP("1", "0.5", "0.1") EPOCH("0.375") END);
    cli_write_file(b, RUN(MT_VERSION_STRING, "cpu")
                          STEP("1", "0.75", "0.2") "{\"event\":\"oom\",\"step\":2,\"phase\":"
                                                   "\"accumulate\",\"action\":\"replan\"}\n");
    EXPECT(0, a, b, "-o", out);
    read_out();
    page_has("<h1>2 runs</h1>", "<th>best validation loss</th>",
             "<td>gpu</td><td>1</td><td>0.5</td><td>0.375</td>",
             "<td>cpu</td><td>1</td><td>0.75</td><td>-</td>", "<title>b: 1 OOM, step 2</title>",
             "<details><summary>b</summary>", "{name:\"b\",base:1,");
    ck_assert_uint_eq(page_count("<path class=\"line\" style=\"--c:var(--run1)\""), 6);
    ck_assert_uint_eq(page_count("<path class=\"line\" style=\"--c:var(--run2)\""), 6);
}

/* Names that would end the script or the page, and files of one name in two folders. */
TEST("several", names_of_runs) {
    const char *odd = cli_path("x/<i>\"&.jsonl"), *other = cli_path("x/a.jsonl");
    ck_assert_int_eq(mkdir(cli_path("x"), 0700), 0);
    cli_write_file(a, OURS STEP("1", "0.5", "0.1"));
    cli_write_file(odd, OURS STEP("1", "0.5", "0.1"));
    cli_write_file(other, OURS STEP("1", "0.5", "0.1"));
    EXPECT(0, a, odd, other, "-o", out);
    read_out();
    page_has("<summary>&lt;i&gt;&quot;&amp;</summary>", "name:\"i>\"", "/x/a</summary>");
}

TEST("several", a_file_with_two_runs) {
    draw(OURS STEP("1", "7.5", "0.1") STEP("2", "7.5", "0.1") END OURS STEP("1", "0.5", "0.1"));
    ck_contains(cli_err, "line 5 begins another run; it alone is drawn");
    page_has("<b>1</b><span>step</span>");
    ck_assert_uint_eq(page_count("loss 7.5"), 0);
}

/* ---- what is wrong ----------------------------------------------------------------------------- */

static const struct {
    const char *text, *says;
    int status;
} files[] = {
    {"", "is empty: its run has not begun", 2},
    {"hello\n", "is not a trace: no line is a JSON object with an event", 2},
    {"{\"event\":\"other\"}\n", "is not a trace", 2},
    {"{}\n", "is not a trace", 2},
    {"{\"event\":\"run\",\"ver", "is not a trace", 2},
    {"{\"event\":\"run\",\"ver", "is cut off in line 1, which is left out", 2},
    {OURS STEP("1", "0.5", "0.1") "{\"event\":\"st", "is cut off in line 3, which is left out", 0},
    {OURS "hello\n" STEP("1", "0.5", "0.1"),
     "has 1 line that is not JSON, left out; the first is line 2", 0},
    {OURS "[1\n7\n" STEP("1", "0.5", "0.1"),
     "has 2 lines that are not JSON, left out; the first is line 2", 0},
    {RUN("9.7.1", "gpu") STEP("1", "0.5", "0.1"),
     "was written by version 9.7.1, and this is " MT_VERSION_STRING, 0},
};

TEST_LOOP("wrong", a_file_that_is_wrong, LENGTH(files)) {
    cli_write_file(a, files[_i].text);
    EXPECT(files[_i].status, a, "-o", out);
    ck_says(cli_err, a, files[_i].says);
    ck_assert_int_eq(access(out, F_OK) == 0, files[_i].status == 0);
    if (files[_i].status == 0) read_out();
}

/* A line that is whole needs no newline behind it. */
TEST("wrong", a_last_line_without_an_end) {
    cli_write_file(a, OURS STEP("1", "0.5", "0.1"));
    ck_assert_int_eq(truncate(a, (off_t)strlen(OURS STEP("1", "0.5", "0.1")) - 1), 0);
    EXPECT(0, a, "-o", out);
    ck_assert_str_eq(cli_err, "");
    read_out();
    page_has("<b>1</b><span>step</span>");
}

/* All that is wrong is named, not the first alone. */
TEST("wrong", files_that_are_not_there) {
    cli_write_file(a, "");
    EXPECT(2, a, b, cli_root, "-o", out);
    ck_says(cli_err, "a.jsonl' is empty", "b.jsonl': No such file or directory", ": is a folder");
    ck_assert_int_ne(access(out, F_OK), 0);
}

TEST("wrong", an_output_that_cannot_be_written) {
    const char *link = cli_path("link.html");
    cli_write_file(a, OURS STEP("1", "0.5", "0.1"));
    EXPECT(2, a, "-o", "/nonexistent/out.html");
    ck_contains(cli_err, "memtrain-report: -o: cannot write '/nonexistent/out.html': No such file");
    EXPECT(2, a, "-o", cli_root);
    ck_contains(cli_err, "is there and is not a regular file");
    EXPECT(2, a, "-o", a);
    ck_contains(cli_err, "accepted: another file than the traces");
    EXPECT(2, a, "-o", "/dev/null", "--watch");
    ck_contains(cli_err, "accepted with --watch: a regular file");
    ck_assert_int_eq(symlink(out, link), 0);
    EXPECT(2, a, "-o", link);
    ck_contains(cli_err, "is a symbolic link");
    ck_assert_int_ne(access(out, F_OK), 0);
    if (!cli_has_full_disk("an_output_that_cannot_be_written")) return;
    EXPECT(1, a, "-o", "/dev/full");
    ck_contains(cli_err, "-o: cannot write '/dev/full': ");
}

static const char *const wrong_flags[][3] = {
    {"--watsh", NULL, "flag: '--watsh'; accepted: -o FILE, --watch, --help, --version"},
    {"-o", NULL, "-o: ''; accepted: the name of a file to write"},
    {"-o", "", "-o: ''; accepted: the name of a file to write"},
    {"-o", "x.html", "RUN.jsonl: ''; accepted: the name of a trace, or several"},
    {"x.jsonl", NULL, "-o: ''; accepted: the name of a file to write"},
};

TEST_LOOP("wrong", a_flag_that_is_wrong, LENGTH(wrong_flags)) {
    const char *const arguments[] = {wrong_flags[_i][0], wrong_flags[_i][1], NULL};
    cli_expect(2, arguments);
    ck_contains(cli_err, wrong_flags[_i][2]);
    cli_one_line("memtrain-report: ");
}

TEST("wrong", more_runs_than_colours) {
    cli_write_file(a, OURS STEP("1", "0.5", "0.1"));
    EXPECT(0, a, a, a, a, a, a, a, a, "-o", out);
    EXPECT(2, a, a, a, a, a, a, a, a, a, "-o", out);
    ck_contains(cli_err, "accepted: 8 files at most");
}

TEST("wrong", help_and_version) {
    EXPECT(0, "--help");
    ck_contains(cli_out, "Usage: memtrain-report RUN.jsonl... -o FILE [--watch]");
    EXPECT(0, "--version");
    ck_assert_str_eq(cli_out, MT_VERSION_STRING "\n");
    if (access("/dev/full", W_OK) != 0) return;
    cli_stdout = "/dev/full";
    EXPECT(1, "--help");
    cli_stdout = NULL;
}

/* ---- --watch ----------------------------------------------------------------------------------- */

/* Until the word is on the page. The program looks once a second; a machine may have other things to do. */
static void wait_for(const char *word) {
    const struct timespec moment = {0, 50000000};
    for (int i = 0; i < 4000; i++) {
        if (access(out, R_OK) == 0) {
            page_read(out);
            if (strstr(page, word)) return;
        }
        nanosleep(&moment, NULL);
    }
    ck_abort_msg("'%s' does not come", word);
}

/* The file of a run that has just begun is empty; lines come in pieces; another run takes its place. */
TEST_LOOP("watched", a_page_that_follows_a_run, 2) {
    const char *const arguments[] = {a, "-o", out, "--watch", NULL};
    signal(SIGINT, SIG_DFL); /* a shell's background job ignores it, and so would the program */
    cli_write_file(a, "");
    pid_t child = cli_start(arguments);
    wait_for("no step was completed");
    page_has("<meta http-equiv=\"refresh\"");
    cli_append_file(a, OURS STEP("1", "0.5", "0.1") "{\"event\":\"step\",\"step\":2,\"lo");
    wait_for("<b>1</b><span>step</span>");
    cli_append_file(a, "ss\":0.125}\n" END);
    wait_for("loss 0.125");
    page_has(">done<");
    page_check_well_formed();
    cli_write_file(b, OURS STEP("1", "0.0625", "0.1"));
    ck_assert_int_eq(rename(b, a), 0);
    wait_for("loss 0.0625");
    page_has("<b>1</b><span>step</span>");
    ck_assert_int_eq(kill(child, _i ? SIGTERM : SIGINT), 0);
    ck_assert_int_eq(cli_finish(child), 0);
    ck_assert_str_eq(cli_err, "");
    page_read(out);
    page_check_well_formed();
}

/* The trace goes, and comes back. */
TEST("watched", a_trace_that_goes) {
    const char *const arguments[] = {a, "-o", out, "--watch", NULL};
    cli_write_file(a, OURS STEP("1", "0.5", "0.1"));
    pid_t child = cli_start(arguments);
    wait_for("loss 0.5");
    ck_assert_int_eq(unlink(a), 0);
    cli_write_file(b, OURS STEP("1", "0.25", "0.1"));
    ck_assert_int_eq(rename(b, a), 0);
    wait_for("loss 0.25");
    ck_assert_int_eq(kill(child, SIGTERM), 0);
    ck_assert_int_eq(cli_finish(child), 0);
}

int main(void) {
    cli_program = "memtrain-report";
    static const char *const cases[] = {"one", "several", "wrong", "watched"};
    for (int i = 0; i < LENGTH(cases); i++)
        tcase_add_checked_fixture(cli_case_named(cases[i]), name_files, NULL);
    return suite_run_named("ex_report_program");
}
