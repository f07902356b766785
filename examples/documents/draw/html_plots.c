/*
 * html_plots.c - see html_plots.h.
 */
#include "html_plots.h"
#include "html_plot.h"
#include "html_style.h"

#include <string.h>

enum { PLOTS = 7, LINES_MOST = 2 * EX_HTML_RUNS, SVG_GAP = 20, SVG_HEAD = 34 };

/* One measure: what is drawn of one run, and of each of several. */
typedef struct subject {
    const char *title, *colour;
    ex_plot_scale scale;
    int from_zero, by_time;
    int is_optional; /* left out where no run has it */
    ex_measure measure;
    ex_plot_line one[5];     /* of one run; the series is filled in */
    ex_plot_line several[2]; /* of each of several, in the run's colour */
} subject;

static const subject subjects[PLOTS] = {
    {"Loss", "--loss", EX_SCALE_PLAIN, 0, 0, 0, EX_LOSS,
     {{NULL, EX_LOSS, EX_PICK_MAX, EX_FORM_STAIRS, "faint", NULL},
      {NULL, EX_LOSS, EX_PICK_MIN, EX_FORM_STAIRS, "faint", NULL},
      {NULL, EX_LOSS, EX_PICK_MEAN, EX_FORM_STAIRS, "line", NULL},
      {NULL, EX_EVAL_LOSS, EX_PICK_MEAN, EX_FORM_POINTS, "eval", "--eval"}},
     {{NULL, EX_LOSS, EX_PICK_MEAN, EX_FORM_STAIRS, "line", NULL},
      {NULL, EX_EVAL_LOSS, EX_PICK_MEAN, EX_FORM_POINTS, "eval", NULL}}},
    {"Metric", "--metric", EX_SCALE_PLAIN, 0, 0, 1, EX_METRIC,
     {{NULL, EX_METRIC, EX_PICK_MEAN, EX_FORM_STAIRS, "line", NULL},
      {NULL, EX_EVAL_METRIC, EX_PICK_MEAN, EX_FORM_POINTS, "eval", "--eval"}},
     {{NULL, EX_METRIC, EX_PICK_MEAN, EX_FORM_STAIRS, "line", NULL},
      {NULL, EX_EVAL_METRIC, EX_PICK_MEAN, EX_FORM_POINTS, "eval", NULL}}},
    {"Learning rate", "--rate", EX_SCALE_PLAIN, 0, 0, 1, EX_RATE,
     {{NULL, EX_RATE, EX_PICK_MEAN, EX_FORM_STAIRS, "line", NULL}},
     {{NULL, EX_RATE, EX_PICK_MEAN, EX_FORM_STAIRS, "line", NULL}}},
    /* The budget is the first of the lines: is_budget_far() leaves it out. */
    {"Peak memory", "--peak", EX_SCALE_BYTES, 1, 1, 0, EX_PEAK,
     {{NULL, EX_BUDGET, EX_PICK_MIN, EX_FORM_STAIRS, "budget", NULL},
      {NULL, EX_PEAK, EX_PICK_MAX, EX_FORM_AREA, "area", NULL},
      {NULL, EX_STATE, EX_PICK_MAX, EX_FORM_AREA, "rest", NULL},
      {NULL, EX_PEAK, EX_PICK_MIN, EX_FORM_STAIRS, "faint", NULL},
      {NULL, EX_PEAK, EX_PICK_MAX, EX_FORM_STAIRS, "line", NULL}},
     {{NULL, EX_BUDGET, EX_PICK_MIN, EX_FORM_STAIRS, "budget", NULL},
      {NULL, EX_PEAK, EX_PICK_MAX, EX_FORM_STAIRS, "line", NULL}}},
    {"Samples of a chunk", "--chunk", EX_SCALE_COUNT, 1, 0, 0, EX_CHUNK,
     {{NULL, EX_CHUNK, EX_PICK_MAX, EX_FORM_AREA, "area", NULL},
      {NULL, EX_CHUNK, EX_PICK_MIN, EX_FORM_STAIRS, "faint", NULL},
      {NULL, EX_CHUNK, EX_PICK_MAX, EX_FORM_STAIRS, "line", NULL}},
     {{NULL, EX_CHUNK, EX_PICK_MAX, EX_FORM_STAIRS, "line", NULL}}},
    {"Time of a step", "--time", EX_SCALE_TIME, 0, 0, 0, EX_TIME,
     {{NULL, EX_TIME, EX_PICK_MAX, EX_FORM_AREA, "area", NULL},
      {NULL, EX_TIME, EX_PICK_MEAN, EX_FORM_STAIRS, "line", NULL}},
     {{NULL, EX_TIME, EX_PICK_MEAN, EX_FORM_STAIRS, "line", NULL}}},
    {NULL, NULL, EX_SCALE_PLAIN, 0, 0, 0, EX_LOSS, {{0}}, {{0}}},
};

const char *ex_html_colour(size_t run) {
    static const char *const colours[EX_HTML_RUNS] = {"--run1", "--run2", "--run3", "--run4",
                                                      "--run5", "--run6", "--run7", "--run8"};
    return colours[run % EX_HTML_RUNS];
}

/* ---- one plot ---------------------------------------------------------------------------------- */

/* Room for what a plot points to. */
typedef struct parts {
    ex_plot plot;
    ex_plot_line lines[LINES_MOST];
    ex_plot_run runs[EX_HTML_RUNS];
} parts;

static ex_span span_of(ex_html_run *const *runs, size_t count, ex_measure measure) {
    ex_span all = {0, 0, 0, 0};
    for (size_t i = 0; i < count; i++) {
        ex_span one = ex_series_span(&runs[i]->series, measure);
        if (!one.count) continue;
        if (!all.count || one.min < all.min) all.min = one.min;
        if (!all.count || one.max > all.max) all.max = one.max;
        all.count += one.count;
    }
    return all;
}

/* A budget that is so many times the peak would leave the peak a line at the bottom. */
static int is_budget_far(ex_html_run *const *runs, size_t count) {
    double peak = span_of(runs, count, EX_PEAK).max;
    return peak > 0 && span_of(runs, count, EX_BUDGET).min > 10 * peak;
}

static void add_line(parts *p, const ex_plot_line *line, const ex_series *series,
                     const char *colour) {
    if (!line->style || p->plot.line_count == LINES_MOST) return;
    ex_plot_line *own = &p->lines[p->plot.line_count++];
    *own = *line;
    own->series = series;
    if (colour) own->colour = colour;
}

/* 0: no run has it. */
static int make_plot(const subject *s, ex_html_run *const *runs, size_t count, parts *p) {
    memset(p, 0, sizeof *p);
    p->plot = (ex_plot){.title = s->title,
                        .colour = s->colour,
                        .scale = s->scale,
                        .from_zero = s->from_zero,
                        .by_time = s->by_time,
                        .lines = p->lines,
                        .runs = p->runs,
                        .run_count = count};
    const int is_far = s->measure == EX_PEAK && is_budget_far(runs, count);
    if (s->measure == EX_PEAK && !is_far) p->plot.at_least = runs[0]->budget_bytes;
    if (s->measure == EX_METRIC && *runs[0]->metric_names[0])
        p->plot.title = runs[0]->metric_names[0];
    for (size_t i = 0; i < count; i++) {
        p->runs[i].name = count > 1 ? runs[i]->name : NULL;
        p->runs[i].series = &runs[i]->series;
        p->runs[i].seconds = ex_series_sum(&runs[i]->series);
        for (int l = is_far; l < 5 && count == 1; l++)
            add_line(p, &s->one[l], &runs[i]->series, NULL);
        for (int l = is_far; l < 2 && count > 1; l++)
            add_line(p, &s->several[l], &runs[i]->series,
                     s->several[l].measure == EX_BUDGET ? NULL : ex_html_colour(i));
    }
    return !s->is_optional || span_of(runs, count, s->measure).count > 0;
}

/* ---- keys -------------------------------------------------------------------------------------- */

static void write_memory_key(ex_html_run *const *runs, size_t count, FILE *out) {
    char text[EX_FIGURE];
    const char *grey = count > 1 ? "" : "grey what stays between steps; ";
    if (is_budget_far(runs, count))
        fprintf(out, "<li>memory: %sthe budget, %s, is far above</li>", grey,
                ex_html_bytes(span_of(runs, count, EX_BUDGET).max, text));
    else
        fprintf(out, "<li>memory: %sdashed the budget</li>", grey);
}

static void write_keys(ex_html_run *const *runs, size_t count, FILE *out) {
    fprintf(out, "<ul class=\"legend key\">");
    for (size_t i = 0; i < count && count > 1; i++) {
        fprintf(out, "<li><i style=\"--c:var(%s)\"></i>", ex_html_colour(i));
        ex_html_escape(runs[i]->name, out);
        fprintf(out, "</li>");
    }
    if (span_of(runs, count, EX_EVAL_LOSS).count) fprintf(out, "<li>dashed with dots: validation</li>");
    fprintf(
        out,
        "<li class=\"oom\"><svg viewBox=\"-6 -6 12 12\"><path d=\"M-5 -4H5L0 5Z\"/></svg>OOM</li>"
        "<li class=\"clear\"><svg viewBox=\"-6 -6 12 12\"><path d=\"M0 -4A4 4 0 1 0 0 4A4 4 0 1 "
        "0 0 -4Z\"/></svg>cache emptied</li>"
        "<li class=\"rung\"><svg viewBox=\"-6 -6 12 12\"><path d=\"M0 -5L5 0L0 5L-5 0Z\"/></svg>"
        "memory saver switched</li>");
    write_memory_key(runs, count, out);
    fprintf(out, "</ul>\n");
}

/* ---- public ------------------------------------------------------------------------------------ */

void ex_html_plots(ex_html_run *const *runs, size_t count, FILE *out) {
    parts p;
    write_keys(runs, count, out);
    fprintf(out, "<div class=\"plots\">\n");
    for (const subject *s = subjects; s->title; s++)
        if (make_plot(s, runs, count, &p)) ex_html_plot(&p.plot, out);
    fprintf(out, "</div>\n");
}

static void write_svg_names(ex_html_run *const *runs, size_t count, FILE *out) {
    fprintf(out, "<text class=\"title\" x=\"8\" y=\"22\">");
    for (size_t i = 0; i < count; i++) {
        const ex_html_run *run = runs[i];
        if (count > 1) fprintf(out, "<tspan style=\"fill:var(%s)\" dx=\"%d\">", ex_html_colour(i), i ? 14 : 0);
        ex_html_escape(count > 1      ? run->name
                       : *run->program ? run->program
                                       : "run",
                       out);
        if (count == 1 && *run->device) fprintf(out, " on ");
        if (count == 1) ex_html_escape(run->device, out);
        if (count > 1) fprintf(out, "</tspan>");
    }
    fprintf(out, "</text>\n");
}

void ex_svg_page(ex_html_run *const *runs, size_t count, FILE *out) {
    static parts p[PLOTS];
    int plots = 0;
    for (const subject *s = subjects; s->title; s++) plots += make_plot(s, runs, count, &p[plots]);
    int width = 2 * EX_PLOT_WIDTH + SVG_GAP, height = SVG_HEAD + (plots + 1) / 2 * EX_SVG_PLOT;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\">\n"
            "<title>Report of a run</title>\n",
            width, height);
    ex_svg_style(out);
    fprintf(out, "<rect class=\"back\" width=\"%d\" height=\"%d\" rx=\"10\"/>\n", width, height);
    write_svg_names(runs, count, out);
    for (int i = 0; i < plots; i++)
        ex_svg_plot(&p[i].plot, i % 2 * (EX_PLOT_WIDTH + SVG_GAP), SVG_HEAD + i / 2 * EX_SVG_PLOT,
                    out);
    fprintf(out, "</svg>\n");
}
