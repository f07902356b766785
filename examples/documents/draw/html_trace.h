/*
 * html_trace.h - from the lines of a trace (docs/trace.md) to what a report draws.
 */
#ifndef EX_HTML_TRACE_H
#define EX_HTML_TRACE_H

#include "html_page.h"

/* A run of which nothing is known. What a run keeps does not grow with the trace, but for its first events. */
void ex_html_run_begin(ex_html_run *run);

/* Frees what it holds, and makes it such a run again. */
void ex_html_run_end(ex_html_run *run);

/* What a line was. */
typedef enum ex_html_line {
    EX_LINE_NOT_JSON, /* or not an object */
    EX_LINE_UNKNOWN,  /* an object, without an event that is known: left out */
    EX_LINE_EPOCH,
    EX_LINE_EVENT /* another event */
} ex_html_line;

/* The first line of another run begins anew, and run->restarts counts that. */
ex_html_line ex_html_run_line(ex_html_run *run, const char *line);

#endif
