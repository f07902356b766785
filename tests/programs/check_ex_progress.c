/*
 * check_ex_progress.c - the progress bar as text: what stands in it, and that it keeps within the
 * terminal.
 */
#include "html_text.h"
#include "progress.h"
#include "suite.h"

#include <stdio.h>

#define MIB ((size_t)1024 * 1024)

/* An epoch of 20 steps after 12 of them, without a terminal. */
static ex_progress halfway(FILE *stream, ex_progress_mode mode) {
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
    ex_progress_epoch(&progress, 2, 5, 20);
    for (int i = 0; i < 12; i++) ex_progress_step(&progress, &report);
    return progress;
}

TEST("lines", a_wide_line_has_it_all) {
    char line[512];
    FILE *file = tmpfile();
    ex_progress progress = halfway(file, EX_PROGRESS_OFF);
    ex_progress_line(&progress, 120, line, sizeof line);
    ck_contains(line, "epoch 2/5 [==================>           ] 12/20");
    ck_contains(line, "  loss 1.43  ");
    ck_contains(line, " pictures/s  214/280 MiB  chunks 11,11,10");
    fclose(file);
}

TEST("lines", the_line_keeps_within_the_terminal) {
    char line[512];
    FILE *file = tmpfile();
    ex_progress progress = halfway(file, EX_PROGRESS_OFF);
    for (size_t columns = 1; columns < 300; columns++) {
        ex_progress_line(&progress, columns, line, sizeof line);
        ck_assert_uint_lt(strlen(line), columns);
    }
    fclose(file);
}

/* The last column at which each part is still left out, from the one that goes first on. */
TEST("lines", memory_goes_last) {
    static const char *const parts[] = {"chunks", "pictures/s", "[", "loss", "MiB"};
    char line[512];
    size_t narrow[LENGTH(parts)] = {0};
    FILE *file = tmpfile();
    ex_progress progress = halfway(file, EX_PROGRESS_OFF);
    for (size_t columns = 1; columns < 200; columns++) {
        ex_progress_line(&progress, columns, line, sizeof line);
        for (int i = 0; i < LENGTH(parts); i++)
            if (!strstr(line, parts[i])) narrow[i] = columns;
    }
    for (int i = 1; i < LENGTH(parts); i++) ck_assert_uint_lt(narrow[i], narrow[i - 1]);
    ex_progress_line(&progress, 60, line, sizeof line);
    ck_contains(line, "  loss 1.43  214/280 MiB");
    ck_contains(line, "epoch 2/5 [=");
    fclose(file);
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
    char text[2048];
    FILE *file = tmpfile();
    ex_progress progress = halfway(file, EX_PROGRESS_AUTO);
    ck_assert_int_eq(progress.mode, EX_PROGRESS_PLAIN);
    ex_progress_evaluate(&progress, 1, 2);
    ex_progress_clear(&progress);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    ck_assert_ptr_null(strchr(text, '\r'));
    ck_assert_ptr_null(strchr(text, '\033'));
    ck_contains(text, "epoch 2/5  step 5/20  loss 1.43");
    ck_contains(text, "epoch 2/5  step 10/20  loss 1.43");
    ck_assert_ptr_null(strstr(text, "step 12/20"));
    fclose(file);
}

TEST("modes", a_bar_is_taken_away) {
    char text[4096];
    FILE *file = tmpfile();
    ex_progress progress = halfway(file, EX_PROGRESS_BAR);
    ex_progress_log(&progress, MT_LOG_WARNING, "the cat sat on the keyboard");
    ex_progress_log(&progress, MT_LOG_DEBUG, "not for people");
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    ck_contains(text, "\r\033[Kwarning: the cat sat on the keyboard\n");
    ck_assert_ptr_null(strstr(text, "not for people"));
    ck_assert_int_eq(progress.on_screen, 0);
    fclose(file);
}

TEST("modes", a_bar_becomes_plain_lines) {
    static const struct {
        ex_progress_mode before, after;
    } modes[] = {{EX_PROGRESS_BAR, EX_PROGRESS_PLAIN},
                 {EX_PROGRESS_PLAIN, EX_PROGRESS_PLAIN},
                 {EX_PROGRESS_OFF, EX_PROGRESS_OFF}};
    FILE *file = tmpfile();
    for (int i = 0; i < LENGTH(modes); i++) {
        ex_progress progress = halfway(file, modes[i].before);
        ex_progress_no_bar(&progress);
        ck_assert_int_eq(progress.mode, modes[i].after);
        ck_assert_int_eq(progress.on_screen, 0);
    }
    fclose(file);
}

TEST("modes", off_is_silent) {
    FILE *file = tmpfile();
    ex_progress progress = halfway(file, EX_PROGRESS_OFF);
    ex_progress_evaluate(&progress, 1, 2);
    ex_progress_clear(&progress);
    ck_assert_int_eq(ftell(file), 0);
    fclose(file);
}

SUITE("ex_progress")
