/*
 * html_plot.h - measures over the steps or the time of one run or several, as an inline SVG with axes and marks.
 * Nothing has to be fetched. Colours are CSS variables of the page.
 */
#ifndef EX_HTML_PLOT_H
#define EX_HTML_PLOT_H

#include "series.h"

#include <stdio.h>

/* Units of the SVG's coordinates; the page's script knows them too. A plot is half a page wide, or a phone's screen. */
enum { EX_PLOT_WIDTH = 520, EX_PLOT_HEIGHT = 212, EX_PLOT_LEFT = 56, EX_PLOT_RIGHT = 510 };

typedef enum ex_plot_scale {
    EX_SCALE_COUNT,
    EX_SCALE_BYTES,
    EX_SCALE_TIME,
    EX_SCALE_PLAIN
} ex_plot_scale;

/* What is drawn of a measure. */
typedef enum ex_plot_pick { EX_PICK_MAX, EX_PICK_MIN, EX_PICK_MEAN } ex_plot_pick;

/* How it is drawn: a step has one value and the next another; an evaluation is a point between others. */
typedef enum ex_plot_form { EX_FORM_STAIRS, EX_FORM_AREA, EX_FORM_POINTS } ex_plot_form;

typedef struct ex_plot_line {
    const ex_series *series;
    ex_measure measure;
    ex_plot_pick pick;
    ex_plot_form form;
    const char *style;  /* CSS class of the path */
    const char *colour; /* CSS variable, "--run3"; NULL: the plot's */
} ex_plot_line;

/* A run whose steps the axis has, and whose marks are drawn. ex_series_sum was called. */
typedef struct ex_plot_run {
    const char *name; /* for the marks; NULL: the only one */
    const ex_series *series;
    double seconds; /* of all its steps */
} ex_plot_run;

typedef struct ex_plot {
    const char *title;
    const char *colour; /* CSS variable of lines and areas, "--chunk" */
    ex_plot_scale scale;
    int from_zero;             /* unless it is logarithmic */
    int may_be_log;            /* where values span two decades or more */
    int by_time;               /* over the seconds of the steps, where there are any */
    double at_least;           /* the axis reaches this value; 0: no such bound */
    const ex_plot_line *lines; /* in the order in which they are drawn */
    size_t line_count;
    const ex_plot_run *runs;
    size_t run_count;
} ex_plot;

/* With a heading; without a value a line of text says so. */
void ex_html_plot(const ex_plot *plot, FILE *out);

/* The same inside of an SVG, its upper left corner at x, y. EX_PLOT_WIDTH and EX_SVG_PLOT high. */
enum { EX_SVG_PLOT = EX_PLOT_HEIGHT + 28 };
void ex_svg_plot(const ex_plot *plot, int x, int y, FILE *out);

#endif
