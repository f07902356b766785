/*
 * html_plots.h - the plots of a report: which measures, of one run in detail or of several laid over one another.
 */
#ifndef EX_HTML_PLOTS_H
#define EX_HTML_PLOTS_H

#include "html_page.h"

/* Keys and plots inside of a page's section. One run at least has a step. */
void ex_html_plots(ex_html_run *const *runs, size_t count, FILE *out);

/* The CSS variable of a run's colour, "--run1". */
const char *ex_html_colour(size_t run);

#endif
