/*
 * html_report.c - the file of --report; see html_report.h.
 */
#include "html_report.h"
#include "clock.h"
#include "html_file.h"
#include "html_trace.h"

#include <stdlib.h>
#include <string.h>

#define REWRITE_SECONDS 5.0

struct ex_html_report {
    ex_html_file *file;
    double written_at;
    ex_html_run run;
};

static mt_status write_page(ex_html_report *report) {
    ex_html_run *run = &report->run;
    report->written_at = ex_seconds();
    return ex_html_file_write(report->file, &run, 1, 0);
}

static void free_report(ex_html_report *report) {
    ex_html_run_end(&report->run);
    ex_html_file_close(report->file);
    free(report);
}

mt_status ex_html_report_open(const char *path, ex_html_report **out) {
    *out = NULL;
    if (!path) return MT_OK;
    ex_html_report *report = calloc(1, sizeof *report);
    if (!report) return mt_set_error(MT_ENOMEM, "out of host memory");
    ex_html_run_begin(&report->run);
    mt_status status = ex_html_file_open("--report", path, &report->file);
    /* Into a pipe there is one page only, the last; whether a device takes any is seen now. */
    if (status == MT_OK && !ex_html_file_takes_one(report->file)) status = write_page(report);
    if (status == MT_OK)
        *out = report;
    else
        free_report(report);
    return status;
}

void ex_html_report_line(void *user, const char *line) {
    ex_html_report *report = user;
    if (!report) return;
    int is_epoch = ex_html_run_line(&report->run, line) == EX_LINE_EPOCH;
    if (is_epoch && !ex_html_file_is_stream(report->file) &&
        ex_seconds() - report->written_at >= REWRITE_SECONDS)
        (void)!write_page(report); /* what fails here fails at the end too, and is told there */
}

mt_status ex_html_report_close(ex_html_report *report, ex_html_outcome outcome, const char *text) {
    if (!report) return MT_OK;
    report->run.outcome = outcome;
    if (text) ex_html_cut(text, report->run.outcome_text, sizeof report->run.outcome_text);
    mt_status status = write_page(report);
    mt_status closed = ex_html_file_close(report->file);
    report->file = NULL;
    free_report(report);
    return status == MT_OK ? closed : status;
}
