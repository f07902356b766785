/*
 * html_plot.h - one measure over the steps of a run as an inline SVG with axes, marks and nothing
 * that has to be fetched. Colours are CSS variables of the page.
 */
#ifndef EX_HTML_PLOT_H
#define EX_HTML_PLOT_H

#include "series.h"

#include <stdio.h>

/* Units of the SVG's coordinates; the page's script knows them too. */
enum { EX_PLOT_WIDTH = 960, EX_PLOT_LEFT = 64, EX_PLOT_RIGHT = 944 };

typedef enum ex_plot_scale {
    EX_SCALE_COUNT,
    EX_SCALE_BYTES,
    EX_SCALE_TIME,
    EX_SCALE_PLAIN
} ex_plot_scale;

/* What is drawn of a measure. */
typedef enum ex_plot_pick { EX_PICK_MAX, EX_PICK_MIN, EX_PICK_MEAN } ex_plot_pick;

typedef struct ex_plot_line {
    ex_measure measure;
    ex_plot_pick pick;
    const char *style; /* CSS class of the path */
    int area;          /* filled down to the axis */
} ex_plot_line;

typedef struct ex_plot {
    const char *title;
    const char *colour; /* CSS variable of lines and areas, "--chunk" */
    ex_plot_scale scale;
    int from_zero;
    double at_least;           /* the axis reaches this value; 0: no such bound */
    const ex_plot_line *lines; /* in the order in which they are drawn */
    size_t line_count;
} ex_plot;

/* With a heading; without a value a line of text says so. */
void ex_html_plot(const ex_series *series, const ex_plot *plot, FILE *out);

#endif
