/*
 * html_plots.c - see html_plots.h.
 */
#include "html_plots.h"
#include "html_plot.h"
#include "html_style.h"

#include <string.h>

enum { PLOTS = 6, LINES_MOST = 2 * EX_HTML_RUNS, SVG_GAP = 20, SVG_HEAD = 34 };

/* FROM_ZERO: unless LOG makes a logarithmic axis of it. OPTIONAL: left out where no run has it. */
enum { FROM_ZERO = 1, LOG = 2, BY_TIME = 4, OPTIONAL = 8 };

/* One measure: what is drawn of one run, and of each of several in the run's colour. The series is filled in. */
typedef struct subject {
    const char *title, *colour;
    ex_plot_scale scale;
    int how;
    ex_measure measure;
    ex_plot_line one[5], several[2];
} subject;

#define STAIRS(measure, pick, style)                                                               \
    { NULL, measure, pick, EX_FORM_STAIRS, style, NULL }
#define AREA(measure, style)                                                                       \
    { NULL, measure, EX_PICK_MAX, EX_FORM_AREA, style, NULL }
#define MEAN(measure) STAIRS(measure, EX_PICK_MEAN, "line")
#define EVALUATION(measure)                                                                        \
    { NULL, measure, EX_PICK_MEAN, EX_FORM_POINTS, "eval", "--eval" }
/* The first of its lines: is_budget_far() leaves it out. */
#define BUDGET                                                                                     \
    { NULL, EX_BUDGET, EX_PICK_MIN, EX_FORM_STAIRS, "budget", "--oom" }

static const subject subjects[PLOTS] = {
    {"Loss",
     "--loss",
     EX_SCALE_PLAIN,
     LOG,
     EX_LOSS,
     {STAIRS(EX_LOSS, EX_PICK_MAX, "faint"), STAIRS(EX_LOSS, EX_PICK_MIN, "faint"), MEAN(EX_LOSS),
      EVALUATION(EX_EVAL_LOSS)},
     {MEAN(EX_LOSS), EVALUATION(EX_EVAL_LOSS)}},
    {"Metric",
     "--metric",
     EX_SCALE_PLAIN,
     OPTIONAL,
     EX_METRIC,
     {MEAN(EX_METRIC), EVALUATION(EX_EVAL_METRIC)},
     {MEAN(EX_METRIC), EVALUATION(EX_EVAL_METRIC)}},
    {"Learning rate",
     "--rate",
     EX_SCALE_PLAIN,
     FROM_ZERO | LOG | OPTIONAL,
     EX_RATE,
     {MEAN(EX_RATE)},
     {MEAN(EX_RATE)}},
    {"Peak memory",
     "--peak",
     EX_SCALE_BYTES,
     FROM_ZERO | BY_TIME,
     EX_PEAK,
     {BUDGET, AREA(EX_PEAK, "area"), AREA(EX_STATE, "rest"), STAIRS(EX_PEAK, EX_PICK_MIN, "faint"),
      STAIRS(EX_PEAK, EX_PICK_MAX, "line")},
     {BUDGET, STAIRS(EX_PEAK, EX_PICK_MAX, "line")}},
    {"Samples of a chunk",
     "--chunk",
     EX_SCALE_COUNT,
     FROM_ZERO,
     EX_CHUNK,
     {AREA(EX_CHUNK, "area"), STAIRS(EX_CHUNK, EX_PICK_MIN, "faint"),
      STAIRS(EX_CHUNK, EX_PICK_MAX, "line")},
     {STAIRS(EX_CHUNK, EX_PICK_MAX, "line")}},
    {"Time of a step",
     "--time",
     EX_SCALE_TIME,
     FROM_ZERO | LOG,
     EX_TIME,
     {AREA(EX_TIME, "area"), MEAN(EX_TIME)},
     {MEAN(EX_TIME)}},
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
                        .from_zero = (s->how & FROM_ZERO) != 0,
                        .may_be_log = (s->how & LOG) != 0,
                        .by_time = (s->how & BY_TIME) != 0,
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
            add_line(p, &s->several[l], &runs[i]->series, ex_html_colour(i));
    }
    return !(s->how & OPTIONAL) || span_of(runs, count, s->measure).count > 0;
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
    if (span_of(runs, count, EX_EVAL_LOSS).count)
        fprintf(out, "<li>dashed with dots: validation</li>");
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
    for (int i = 0; i < PLOTS; i++)
        if (make_plot(&subjects[i], runs, count, &p)) ex_html_plot(&p.plot, out);
    fprintf(out, "</div>\n");
}

static void write_svg_names(ex_html_run *const *runs, size_t count, FILE *out) {
    fprintf(out, "<text class=\"title\" x=\"8\" y=\"22\">");
    for (size_t i = 0; i < count; i++) {
        const ex_html_run *run = runs[i];
        if (count > 1)
            fprintf(out, "<tspan style=\"fill:var(%s)\" dx=\"%d\">", ex_html_colour(i), i ? 14 : 0);
        const char *name = *run->name ? run->name : "run";
        ex_html_escape(count == 1 && *run->program ? run->program : name, out);
        if (count == 1 && *run->device) fprintf(out, " on ");
        if (count == 1) ex_html_escape(run->device, out);
        if (count > 1) fprintf(out, "</tspan>");
    }
    fprintf(out, "</text>\n");
}

void ex_svg_page(ex_html_run *const *runs, size_t count, FILE *out) {
    static parts p[PLOTS];
    int plots = 0;
    for (int i = 0; i < PLOTS; i++) plots += make_plot(&subjects[i], runs, count, &p[plots]);
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
