/*
 * check_ex_report.c - --report: the page is well-formed, fetches nothing, shows what the trace said,
 * and stays small however long the run.
 */
#include "cli.h"
#include "locales.h"
#include "html_report.h"
#include "page.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a page ------------------------------------------------------------------------------------ */

enum { SIZE_MOST = 500 * 1024 };

static const char *path; /* of the page */
static ex_html_report *report;

static void name_page(void) {
    path = cli_path("r.html");
}

static void begin(void) {
    ck_ok(ex_html_report_open(path, &report));
}

static void tell(const char *line) {
    ex_html_report_line(report, line);
}

static void tell_step(unsigned long long step, int chunk, long long peak, const char *loss) {
    char line[512];
    snprintf(line, sizeof line,
             "{\"event\":\"step\",\"step\":%llu,\"epoch\":1,\"samples\":%d,\"chunks\":[%d,%d],"
             "\"loss\":%s,\"seconds\":0.25,\"peak_bytes\":%lld,\"allocated_bytes\":1048576,"
             "\"predicted_peak_bytes\":0,\"budget_bytes\":8388608,\"retries\":0,\"discarded\":0}",
             step, 2 * chunk, chunk, chunk, loss, peak);
    tell(line);
}

/* Closes the report and looks at what every page must be like. */
static void finish(void) {
    ck_ok(ex_html_report_close(report, EX_HTML_DONE, NULL));
    page_read_whole(path);
    ck_assert_uint_lt(strlen(page), SIZE_MOST);
}

/* All of a page, from the lines of its trace. */
#define DRAW(...) draw((const char *const[]){__VA_ARGS__, NULL})
static void draw(const char *const *lines) {
    begin();
    for (; *lines; lines++) tell(*lines);
    finish();
}

/* ---- what is drawn ----------------------------------------------------------------------------- */

TEST("pages", nothing_happened) {
    begin();
    finish();
    ck_assert_uint_eq(page_count("no step was completed"), 1);
    page_has("no epoch was completed", "the run did not begin", "prefers-color-scheme:dark");
    ck_assert_uint_eq(page_count("<svg class=\"plot\""), 0);
}

/* Before anything has happened there is a page already: a run that is killed leaves one. */
TEST("pages", a_page_from_the_first_moment) {
    begin();
    page_read(path);
    page_check_well_formed();
    page_has(">running<");
    finish();
    page_has(">done<");
}

TEST("pages", one_step) {
    begin();
    tell_step(1, 6, 4194304, "0.5");
    finish();
    ck_assert_uint_eq(page_count("<svg class=\"plot\""), 4);
    page_has("50.0 % of the budget of 8.0 MiB", "chunks of 6 samples, 2 chunks a step",
             "\"step 1; chunks 6,6; peak 4.0 MiB; budget 8.0 MiB; 250 ms; loss 0.5\"",
             "Memory never ran out.");
}

TEST("pages", values_that_are_none) {
    begin();
    tell_step(1, 6, 4194304, "null");
    tell("{\"event\":\"step\",\"step\":2}");
    tell("{\"event\":\"step\",\"step\":3,\"chunks\":[0,-4,null],\"loss\":-2.5,\"peak_bytes\":-1}");
    tell("{\"event\":\"epoch\",\"epoch\":1,\"loss\":null,\"metrics\":{\"a\":null},\"seconds\":"
         "null}");
    finish();
    page_has("\"step 2\"", "loss -2.5", "<td>-</td>");
    ck_assert_uint_eq(page_count("nothing was measured"), 0);
}

static const char *const bad[] = {
    "",
    "not JSON",
    "[]",
    "7",
    "{}",
    "{\"event\":7}",
    "{\"event\":\"unheard-of\"}",
    "{\"event\":\"step\"}",
    "{\"event\":\"step\",\"step\":9223372036854775807,\"chunks\":7}",
    "{\"event\":\"step\",\"step\":\"one\"}",
    "{\"event\":\"run\",\"budget_bytes\":\"many\"}",
    "{\"event\":\"end\"}",
    "{\"event\":\"oom\"}",
    "{\"event\":\"epoch\",\"metrics\":[1]}",
    "{\"event\":\"rung\",\"on\":7}",
};

TEST_LOOP("pages", lines_that_say_little, LENGTH(bad)) {
    begin();
    tell_step(1, 6, 4194304, "0.5");
    tell(bad[_i]);
    tell_step(2, 6, 4194304, "0.5");
    finish();
}

TEST("pages", what_was_not_measured) {
    DRAW("{\"event\":\"step\",\"step\":1,\"chunks\":[4],\"loss\":null}");
    ck_assert_uint_eq(page_count("nothing was measured"), 3);
    page_has("there was no budget");
}

TEST("pages", steps_with_savers) {
    begin();
    tell("{\"event\":\"rung\",\"step\":1,\"name\":\"amp\",\"on\":true,\"reason\":\"budget\"}");
    tell("{\"event\":\"step\",\"step\":1,\"rungs\":[\"amp\",\"<x>\",7]}");
    tell("{\"event\":\"step\",\"step\":2,\"rungs\":[\"amp\"]}");
    for (int i = 0; i < 20; i++) {
        char line[80];
        snprintf(line, sizeof line, "{\"event\":\"step\",\"step\":3,\"rungs\":[\"r%d\"]}", i);
        tell(line);
    }
    finish();
    page_has("switched 1 time; steps with them: amp (2), &lt;x&gt; (1), r0 (1)");
}

/* A run that failed in its first step: a share of nothing is none. */
TEST("pages", work_of_a_run_that_trained_nothing) {
    DRAW("{\"event\":\"oom\",\"step\":1,\"phase\":\"accumulate\",\"chunk\":8,"
         "\"action\":\"give_up\"}",
         "{\"event\":\"end\",\"steps\":0,\"samples_trained\":0,\"samples_discarded\":8}");
    page_has("The work of 8 samples was thrown away; none was trained.</li>");
    DRAW("{\"event\":\"end\",\"steps\":1,\"samples_trained\":32,\"samples_discarded\":8}");
    page_has("The work of 8 samples was thrown away, 25.0 % of those trained.</li>");
}

/* A share of the budget is one of the budget at that time. */
TEST("pages", a_budget_that_changes) {
    DRAW("{\"event\":\"step\",\"step\":1,\"peak_bytes\":6291456,\"budget_bytes\":8388608}",
         "{\"event\":\"step\",\"step\":2,\"peak_bytes\":2097152,\"budget_bytes\":4194304}");
    page_has("at most 75.0 % of the budget of its step, which was 4.0 MiB to 8.0 MiB.",
             "75.0 % of the budget</span>");
}

/* A budget of a whole machine is no measure for a run of some megabytes: the axis is the curve's. */
TEST("pages", a_budget_that_is_far_above) {
    DRAW("{\"event\":\"step\",\"step\":1,\"samples\":8,\"chunks\":[8],\"loss\":1,\"seconds\":1,"
         "\"peak_bytes\":104857600,\"allocated_bytes\":1048576,\"budget_bytes\":22548578304}");
    page_has("the budget, 21.0 GiB, is far above</li>",
             "<h3>Peak memory <span>MiB, over the time of the steps in s</span></h3>");
    ck_assert_uint_eq(page_count("<path class=\"budget\""), 0);
    begin();
    tell_step(1, 4, 4194304, "1.0");
    finish();
    page_has("dashed the budget</li>");
    ck_assert_uint_eq(page_count("<path class=\"budget\""), 1);
}

/* What was asked for stands beside what was used. */
TEST("pages", a_device_that_was_too_small) {
    DRAW("{\"event\":\"run\",\"device\":\"cpu\",\"batch\":8}",
         "{\"event\":\"program\",\"name\":\"smartcash\",\"device_asked\":\"sim:mps\","
         "\"device_left\":\"mt_torch_new: 32 MiB < 40 MiB\"}");
    page_has("smartcash on cpu</h1>",
             "<p>sim:mps was asked for, and is too small: mt_torch_new: 32 MiB &lt; 40 MiB</p>");
}

TEST("pages", marks) {
    begin();
    tell("{\"event\":\"oom\",\"step\":1,\"phase\":\"begin\",\"attempt\":1,\"action\":\"retry\"}");
    for (unsigned step = 1; step <= 40; step++) {
        if (step == 10 || step == 11 || step == 30)
            tell("{\"event\":\"oom\",\"step\":30,\"phase\":\"accumulate\",\"chunk\":12,"
                 "\"requested_bytes\":4194304,\"allocated_bytes\":6291456,\"budget_bytes\":8388608,"
                 "\"attempt\":1,\"action\":\"replan\"}");
        if (step == 20)
            tell("{\"event\":\"clear\",\"step\":20,\"reason\":\"evidence\",\"released_bytes\":1024,"
                 "\"seconds\":0.002}");
        if (step == 25)
            tell("{\"event\":\"rung\",\"step\":25,\"name\":\"checkpointing\",\"on\":true,"
                 "\"reason\":\"oom\"}");
        if (step == 35)
            tell("{\"event\":\"rung\",\"step\":35,\"name\":\"checkpointing\",\"on\":false}");
        tell_step(step, 6, 4194304, "0.5");
    }
    finish();
    ck_assert_uint_eq(page_count("<g class=\"mark oom\">"), 2 * 4); /* in each of the four plots */
    ck_assert_uint_eq(page_count("<g class=\"mark clear\">"), 4);
    ck_assert_uint_eq(page_count("<g class=\"mark rung\">"), 2 * 4);
    page_has("<title>3 OOMs, step 30</title>",
             "Memory ran out 4 times; answers: tried again (1), smaller chunks",
             "accumulate, chunk of 12: 4.0 MiB more on 6.0 MiB of 8.0 MiB; replan",
             "evidence: 1.0 KiB released in 2 ms", "checkpointing on: oom", "checkpointing off<",
             "Memory savers were switched 2 times");
}

TEST("pages", the_whole_run) {
    begin();
    tell("{\"event\":\"run\",\"version\":\"1\",\"device\":\"cpu\",\"budget_bytes\":8388608,"
         "\"batch\":12,\"seed\":\"18446744073709551615\",\"parameter_bytes\":1048576,"
         "\"gradient_bytes\":1048576,\"optimizer_bytes\":2097152}");
    tell("{\"event\":\"program\",\"name\":\"cats\",\"threads\":2,\"arguments\":[\"--batch\",\"12\"]"
         "}");
    tell("{\"event\":\"plan\",\"step\":1,\"chunks\":[6,6],\"reason\":\"growth\"}");
    tell_step(1, 6, 7340032, "0.5");
    tell("{\"event\":\"epoch\",\"epoch\":1,\"loss\":0.5,\"metrics\":{\"purrs\":0.25},"
         "\"eval_loss\":0.75,\"eval_metrics\":{\"purrs\":0.125},\"seconds\":61,"
         "\"peak_bytes\":7340032}");
    tell("{\"event\":\"end\",\"steps\":1,\"samples_trained\":1234,\"samples_discarded\":6,"
         "\"seconds\":4000,\"state_sha256\":\"0123\"}");
    finish();
    page_has("<h1>cats on cpu</h1>", "<td>batch</td><td><code>12</code>", "18446744073709551615",
             "<code>--batch 12</code>", "<th>purrs</th>", "<th>validation purrs</th>",
             "<td>0.125</td>", "<td>61 s</td>", "growth (1)", "<b>1,234</b>", "66 min 40 s",
             "parameters 1.0 MiB", "activations and all else at the peak 3.0 MiB",
             "never used 1.0 MiB", "<code>0123</code>");
}

#define EVIL "</title><script>'\\\"&amp;\\u0001\xc3\xa9"

/* Each flag that decides how the run ends has a row; what the first line told too has one. */
TEST("pages", the_flags_of_the_program) {
    DRAW("{\"event\":\"run\",\"device\":\"cpu\",\"batch\":12,\"seed\":7}",
         "{\"event\":\"program\",\"name\":\"cats\",\"settings\":{\"lr\":\"0.125\",\"batch\":\"12\","
         "\"optimizer\":\"adamw\",\"weight-decay\":\"0.01\"},\"arguments\":[]}");
    page_has("<td>lr</td><td><code>0.125</code>", "<td>optimizer</td><td><code>adamw</code>",
             "<td>weight-decay</td><td><code>0.01</code>");
    ck_assert_uint_eq(page_count("<td>batch</td>"), 1);
    ck_assert_uint_eq(page_count("<td>settings</td>"), 0);
}

TEST("pages", text_is_escaped) {
    begin();
    tell("{\"event\":\"run\",\"device\":\"" EVIL "\",\"" EVIL "\":\"" EVIL "\"}");
    tell("{\"event\":\"program\",\"name\":\"" EVIL "\",\"arguments\":[\"" EVIL "\"]}");
    tell("{\"event\":\"oom\",\"step\":1,\"phase\":\"" EVIL "\",\"action\":\"" EVIL "\"}");
    tell("{\"event\":\"rung\",\"step\":1,\"name\":\"" EVIL "\",\"reason\":\"" EVIL "\"}");
    tell("{\"event\":\"clear\",\"step\":1,\"reason\":\"" EVIL "\"}");
    tell_step(1, 6, 4194304, "0.5");
    tell("{\"event\":\"epoch\",\"epoch\":1,\"metrics\":{\"" EVIL "\":1}}");
    ck_ok(ex_html_report_close(report, EX_HTML_FAILED, "<b>\"no\"</b> & \x02"));
    page_read_whole(path);
    ck_assert_uint_eq(page_count("<script>"), 1); /* the page's own */
    page_has("<p>&lt;b&gt;&quot;no&quot;&lt;/b&gt; &amp; ?</p>",
             "&lt;/title&gt;&lt;script&gt;&#39;&quot;&amp;amp;?\xc3\xa9");
}

/* Never half a character, wherever it is cut. */
TEST_LOOP("pages", long_text_is_cut, 3) {
    char line[3000] = "{\"event\":\"program\",\"name\":\"";
    for (int i = 0; i < _i; i++) strcat(line, "x");
    for (int i = 0; i < 600; i++) strcat(line, "\xe2\x82\xac");
    strcat(line, "\"}");
    DRAW(line);
    const char *name = strstr(page, "<h1>") + 4;
    ck_assert_uint_eq((strcspn(name, "<") - (size_t)_i) % 3, 0);
}

/* ---- long runs --------------------------------------------------------------------------------- */

TEST("pages", a_million_steps) {
    static const unsigned long long steps = 1000000;
    begin();
    for (unsigned long long step = 1; step <= steps; step++) {
        char line[200];
        snprintf(
            line, sizeof line,
            "{\"event\":\"%s\",\"step\":%llu,\"chunks\":[%llu],\"seconds\":%llu.5,\"loss\":%llu,"
            "\"peak_bytes\":%llu}",
            step % 7 ? "step" : "oom", step, 1 + step * 7919 % 1000, step % 13, step % 91,
            step == 777777 ? 99999999999ULL : 1000000 + step * 104729 % 9000000);
        tell(line);
        if (step % 1000 == 0) tell("{\"event\":\"epoch\",\"epoch\":1,\"loss\":1}");
    }
    finish();
    /* The second of them are OOMs. */
    page_has("<b>857,143</b>", "<b>142,857</b>", "and 142757 more", "<b>1 to 1000</b>");
}

/* ---- series ------------------------------------------------------------------------------------ */

TEST("series", buckets_keep_extremes) {
    ex_series series = {0};
    for (uint64_t step = 5; step < 5 + 123456; step++) {
        ex_bucket *bucket = ex_series_at(&series, step);
        ck_assert_ptr_nonnull(bucket);
        bucket->steps++;
        ex_bucket_add(bucket, EX_PEAK, step == 60000 ? 1e9 : step == 70000 ? 1 : 1000);
        if (step % 1000 == 0) bucket->marks[EX_OOM]++;
    }
    ex_span all = ex_series_span(&series, EX_PEAK);
    ck_assert_uint_le(series.count, EX_BUCKETS);
    ck_assert_uint_gt(series.count, EX_BUCKETS / 3);
    ck_assert_uint_eq(all.count, 123456);
    ck_assert(all.max == 1e9 && all.min == 1);
    uint64_t steps = 0, ooms = 0;
    for (size_t i = 0; i < series.count; i++) {
        const ex_span *span = &series.buckets[i].spans[EX_PEAK];
        uint64_t first = ex_series_first(&series, i), last = ex_series_last(&series, i);
        steps += series.buckets[i].steps;
        ooms += series.buckets[i].marks[EX_OOM];
        ck_assert_uint_eq(series.buckets[i].steps, last - first + 1);
        ck_assert_int_eq(span->max == 1e9, first <= 60000 && 60000 <= last);
    }
    ck_assert_uint_eq(steps, 123456);
    ck_assert_uint_eq(ooms, 123);
    ck_assert_uint_eq(ex_series_last(&series, series.count - 1), 5 + 123455);
    ex_series_clear(&series);
    ck_assert_ptr_null(series.buckets);
}

TEST("series", steps_far_apart) {
    ex_series series = {0};
    ex_series_at(&series, 100)->marks[EX_RUNG]++;
    ex_series_at(&series, UINT64_MAX)->marks[EX_RUNG]++;
    ex_series_at(&series, 3)->marks[EX_RUNG]++; /* before the first: counted there */
    ck_assert_uint_eq(series.buckets[0].marks[EX_RUNG], 2);
    ck_assert_uint_le(series.count, EX_BUCKETS);
    ck_assert_uint_eq(series.buckets[series.count - 1].marks[EX_RUNG], 1);
    ex_series_clear(&series);
}

/* ---- files and the program --------------------------------------------------------------------- */

TEST("runs", a_file_that_cannot_be_written) {
    ck_refused(ex_html_report_open("/nonexistent/r.html", &report), MT_EINVAL,
               "--report: cannot write '/nonexistent/r.html': ");
    ck_assert_ptr_null(report);
    if (cli_has_full_disk("a_file_that_cannot_be_written"))
        ck_status(ex_html_report_open("/dev/full", &report), MT_EIO);
    ck_ok(ex_html_report_open(NULL, &report));
    ex_html_report_line(report, "{}");
    ck_ok(ex_html_report_close(report, EX_HTML_DONE, NULL));
    const char *name = cli_path("link.html"), *target = cli_path("target");
    struct stat info;
    ck_assert_int_eq(symlink(target, name), 0);
    ck_refused(ex_html_report_open(name, &report), MT_EINVAL, "is a symbolic link");
    ck_assert_int_ne(access(target, F_OK), 0);
    /* A file that is there is replaced as a whole, and keeps its mode. */
    ck_assert_int_eq(close(open(target, O_WRONLY | O_CREAT, 0600)), 0);
    name = cli_path("second.html");
    ck_assert_int_eq(link(target, name), 0);
    ck_ok(ex_html_report_open(name, &report));
    ck_ok(ex_html_report_close(report, EX_HTML_DONE, NULL));
    ck_assert(stat(target, &info) == 0 && info.st_size == 0);
    ck_assert(stat(name, &info) == 0 && info.st_size > 0 && (info.st_mode & 0777) == 0600);
    EXPECT(2, FEW_PICTURES, "--report", "/nonexistent/r.html");
    ck_assert_str_eq(cli_out, "");
    cli_one_line("food101: --report: cannot write '/nonexistent/r.html': No such file");
}

TEST("runs", a_run_is_drawn) {
    EXPECT(0, FEW_PICTURES, "--steps", "3", "--epochs", "1", "--inject-oom", "2:100", "--report",
           path);
    page_read_whole(path);
    page_has(">done<", "<h1>food101 on cpu</h1>", "<title>1 OOM, step 2</title>",
             "--inject-oom 2:100", "validation accuracy");
}

TEST("runs", a_run_that_failed_is_drawn) {
    EXPECT(3, FEW_PICTURES, "--steps", "3", "--inject-oom", "2:40:persistent", "--report", path);
    page_read_whole(path);
    page_has(">failed<", "step 1; chunks ", "given up (1)");
    EXPECT(3, FEW_PICTURES, "--budget", "100MiB", "--report", path);
    page_read_whole(path);
    page_has("parameters 42.7 MiB");
}

/* The user's locale is not the drawing's. */
TEST("runs", a_run_in_a_locale_is_drawn) {
    if (!locales_make("ex_report: a_run_in_a_locale_is_drawn")) return;
    setenv("LC_ALL", LOCALE_COMMA, 1);
    EXPECT(0, FEW_PICTURES, "--lr", "0.001", "--steps", "2", "--trace", cli_trace, "--report",
           path);
    locales_remove();
    page_read(path);
    page_check_well_formed();
    size_t lines = 0;
    for (const char *at = page; (at = strstr(at, " x1=\"")) != NULL; lines++) {
        at += 5;
        ck_assert_uint_eq(strspn(at, "-0123456789."), strcspn(at, "\""));
    }
    ck_assert_uint_gt(lines, 5);
    ck_assert_int_eq(cli_number(cli_trace, "end", 1, "steps"), 2);
}

TEST("runs", a_run_that_was_stopped_is_drawn) {
    const char *const arguments[] = {FEW_PICTURES, "--trace",  cli_trace, "--report",
                                     path,         "--epochs", "1000",    NULL};
    pid_t child = cli_start(arguments);
    cli_wait_for_step(2);
    ck_assert_int_eq(kill(child, SIGTERM), 0);
    ck_assert_int_eq(cli_finish(child), 128 + SIGTERM);
    page_read_whole(path);
    page_has("<p>stopped by SIGTERM after step ", "state sha256");
}

int main(void) {
    tcase_add_checked_fixture(cli_case_named("pages"), name_page, NULL);
    tcase_add_checked_fixture(cli_case_named("runs"), name_page, NULL);
    return suite_run_named("ex_report");
}
