/*
 * html_report.h - --report: one HTML file that draws a run, made from the lines of its trace.
 *
 * What is kept of a run does not grow with it (series.h), and neither does the file: a million steps
 * make one of a few hundred kilobytes. The file is there from the first moment, and is written anew
 * at the end of an epoch when the last time is some seconds ago: also a run that is killed leaves
 * what it knew. The page before stays until the new one is whole, and a link is refused. Names below /dev/ and pipes are
 * written to, once at the end.
 */
#ifndef EX_HTML_REPORT_H
#define EX_HTML_REPORT_H

#include "html_page.h"

#include <memtrain/status.h>

typedef struct ex_html_report ex_html_report;

/*
 * Writes a report of nothing. path NULL: *out is NULL, which all functions here take as "no report".
 * @param out  new reference: close with ex_html_report_close
 * @return MT_OK, MT_EINVAL (the file cannot be opened), MT_EIO (not written), MT_ENOMEM
 */
MT_NODISCARD mt_status ex_html_report_open(const char *path, ex_html_report **out);

/* An mt_trace_fn with an ex_html_report as user. Events that it does not know are left out. */
void ex_html_report_line(void *user, const char *line);

/*
 * Writes the file for the last time.
 * @param text  how the run ended, in words of the program; may be NULL
 * @return MT_OK; MT_EIO
 */
MT_NODISCARD mt_status ex_html_report_close(ex_html_report *report, ex_html_outcome outcome,
                                            const char *text);

#endif
