/*
 * check_ex_progress.c - the progress bar as text: what stands in it, and that it keeps within the
 * terminal.
 */
#include "html_text.h"
#include "progress.h"
#include "cli.h"

#define MIB ((size_t)1024 * 1024)

static FILE *stream; /* of a test */

static void open_stream(void) {
    stream = tmpfile();
}

static void close_stream(void) {
    fclose(stream);
}

/* All that stands in it. */
static const char *written(void) {
    static char text[4096];
    rewind(stream);
    text[fread(text, 1, sizeof text - 1, stream)] = '\0';
    return text;
}

/* An epoch of 20 steps after 12 of them, without a terminal. */
static ex_progress halfway(ex_progress_mode mode) {
    static const size_t chunks[] = {11, 11, 10};
    ex_progress progress;
    mt_step_report report = MT_STEP_REPORT_INIT;
    report.samples = 32;
    report.chunks = chunks;
    report.chunk_count = 3;
    report.loss = 1.43;
    report.peak_bytes = 214 * MIB;
    report.budget_bytes = 280 * MIB;
    ex_progress_init(&progress, mode, "pictures", stream);
    ex_progress_epoch(&progress, 2, 5, 0, 20);
    for (int i = 0; i < 12; i++) ex_progress_step(&progress, &report);
    return progress;
}

TEST("lines", a_wide_line_has_it_all) {
    char line[512];
    ex_progress progress = halfway(EX_PROGRESS_OFF);
    ex_progress_line(&progress, 120, line, sizeof line);
    ck_says(line, "epoch 2/5 [==================>           ] 12/20", "  loss 1.43  ",
            " pictures/s  214/280 MiB  chunks 11,11,10");
}

/* What was done of it before counts. */
TEST("lines", an_epoch_that_goes_on) {
    char line[512];
    ex_progress progress = halfway(EX_PROGRESS_OFF);
    const mt_step_report report = MT_STEP_REPORT_INIT;
    ex_progress_epoch(&progress, 1, 2, 3, 7);
    ex_progress_step(&progress, &report);
    ex_progress_line(&progress, 120, line, sizeof line);
    ck_contains(line, "] 4/7");
}

TEST("lines", the_line_keeps_within_the_terminal) {
    char line[512];
    ex_progress progress = halfway(EX_PROGRESS_OFF);
    for (size_t columns = 1; columns < 300; columns++) {
        ex_progress_line(&progress, columns, line, sizeof line);
        ck_assert_uint_lt(strlen(line), columns);
    }
}

/* The last column at which each part is still left out, from the one that goes first on. */
TEST("lines", memory_goes_last) {
    static const char *const parts[] = {"chunks", "pictures/s", "[", "loss", "MiB"};
    char line[512];
    size_t narrow[LENGTH(parts)] = {0};
    ex_progress progress = halfway(EX_PROGRESS_OFF);
    for (size_t columns = 1; columns < 200; columns++) {
        ex_progress_line(&progress, columns, line, sizeof line);
        for (int i = 0; i < LENGTH(parts); i++)
            if (!strstr(line, parts[i])) narrow[i] = columns;
    }
    for (int i = 1; i < LENGTH(parts); i++) ck_assert_uint_lt(narrow[i], narrow[i - 1]);
    ex_progress_line(&progress, 60, line, sizeof line);
    ck_says(line, "  loss 1.43  214/280 MiB", "epoch 2/5 [=");
}

static const struct {
    size_t chunks[9];
    size_t count;
    const char *text;
} lists[] = {
    {{0}, 0, ""},
    {{32}, 1, "32"},
    {{11, 11, 10}, 3, "11,11,10"},
    {{6, 6, 5, 5, 5, 5}, 6, "6,6,5,5,5,5"},
    {{4, 4, 4, 4, 4, 4, 4, 4}, 8, "8 of 4"},
    {{4, 4, 4, 4, 3, 3, 3}, 7, "7 of 3-4"},
};

TEST_LOOP("lines", chunks_are_short, LENGTH(lists)) {
    char text[32];
    ex_html_chunks(lists[_i].chunks, lists[_i].count, text, sizeof text);
    ck_assert_str_eq(text, lists[_i].text);
}

TEST("lines", huge_chunks_are_short_too) {
    const size_t chunks[] = {123456789, 123456789, 123456789, 123456788};
    char text[32];
    ex_html_chunks(chunks, 4, text, sizeof text);
    ck_assert_str_eq(text, "4 of 123456788-123456789");
}

TEST("modes", a_pipe_gets_a_few_plain_lines) {
    ex_progress progress = halfway(EX_PROGRESS_AUTO);
    ck_assert_int_eq(progress.mode, EX_PROGRESS_PLAIN);
    ex_progress_evaluate(&progress, 1, 2);
    ex_progress_clear(&progress);
    const char *text = written();
    ck_assert_ptr_null(strchr(text, '\r'));
    ck_assert_ptr_null(strchr(text, '\033'));
    ck_says(text, "epoch 2/5  step 5/20  loss 1.43", "epoch 2/5  step 10/20  loss 1.43");
    ck_assert_ptr_null(strstr(text, "step 12/20"));
}

TEST("modes", a_bar_is_taken_away) {
    ex_progress progress = halfway(EX_PROGRESS_BAR);
    ex_progress_log(&progress, MT_LOG_WARNING, "the cat sat on the keyboard");
    ex_progress_log(&progress, MT_LOG_DEBUG, "not for people");
    const char *text = written();
    ck_contains(text, "\r\033[Kwarning: the cat sat on the keyboard\n");
    ck_assert_ptr_null(strstr(text, "not for people"));
    ck_assert_int_eq(progress.on_screen, 0);
}

TEST("modes", a_bar_becomes_plain_lines) {
    static const struct {
        ex_progress_mode before, after;
    } modes[] = {{EX_PROGRESS_BAR, EX_PROGRESS_PLAIN},
                 {EX_PROGRESS_PLAIN, EX_PROGRESS_PLAIN},
                 {EX_PROGRESS_OFF, EX_PROGRESS_OFF}};
    for (int i = 0; i < LENGTH(modes); i++) {
        ex_progress progress = halfway(modes[i].before);
        ex_progress_no_bar(&progress);
        ck_assert_int_eq(progress.mode, modes[i].after);
        ck_assert_int_eq(progress.on_screen, 0);
    }
}

TEST("modes", off_is_silent) {
    ex_progress progress = halfway(EX_PROGRESS_OFF);
    ex_progress_evaluate(&progress, 1, 2);
    ex_progress_clear(&progress);
    ck_assert_int_eq(ftell(stream), 0);
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("lines"), open_stream, close_stream);
    tcase_add_checked_fixture(suite_case_named("modes"), open_stream, close_stream);
    return suite_run_named("ex_progress");
}
