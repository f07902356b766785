/*
 * html_plot.c - axes, paths and marks; see html_plot.h.
 */
#include "html_plot.h"
#include "html_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOP = 26, BOTTOM = 184, DOTS_MOST = 30, MARK_WIDTH = 5 };

/* Units of an axis. */
typedef struct axis_unit {
    ex_plot_scale scale;
    double from, unit; /* for values from here on; of one unit */
    const char *name;
} axis_unit;

/* From steps and values to coordinates. */
typedef struct frame {
    const ex_plot *plot;
    double low, high;   /* of the y axis, in units; with is_log their decimal logarithms */
    double tick;        /* of the y axis, likewise */
    double first, last; /* of the x axis: half a step beyond the steps, or seconds */
    const axis_unit *y, *x;
    int is_log, by_time;
} frame;

/* ---- scales ------------------------------------------------------------------------------------ */

/* 1, 2 or 5 times a power of ten, at least `least`. */
static double nice_tick(double least, int whole) {
    double power = pow(10, floor(log10(least > 0 ? least : 1)));
    double tick = power;
    if (tick < least) tick = 2 * power;
    if (tick < least) tick = 5 * power;
    if (tick < least) tick = 10 * power;
    return whole && tick < 1 ? 1 : tick;
}

static const axis_unit *choose_unit(ex_plot_scale scale, double most) {
    static const axis_unit units[] = {
        {EX_SCALE_BYTES, 1073741824.0, 1073741824.0, "GiB"},
        {EX_SCALE_BYTES, 1048576.0, 1048576.0, "MiB"},
        {EX_SCALE_BYTES, 1024.0, 1024.0, "KiB"},
        {EX_SCALE_BYTES, 0, 1, "bytes"},
        {EX_SCALE_TIME, 7200, 3600, "h"},
        {EX_SCALE_TIME, 120, 60, "min"},
        {EX_SCALE_TIME, 1, 1, "s"},
        {EX_SCALE_TIME, 1e-3, 1e-3, "ms"},
        {EX_SCALE_TIME, 0, 1e-6, "\xc2\xb5s"},
        {EX_SCALE_COUNT, 0, 1, ""},
        {EX_SCALE_PLAIN, 0, 1, ""},
    };
    const axis_unit *u = units;
    while (u->scale != scale || (u->from > 0 && most < u->from)) u++;
    return u;
}

static ex_span span_of(const frame *f) {
    ex_span all = {0, 0, 0, 0};
    for (size_t i = 0; i < f->plot->line_count; i++) {
        const ex_plot_line *line = &f->plot->lines[i];
        ex_span one = ex_series_span(line->series, line->measure);
        if (!one.count) continue;
        all.min = all.count ? fmin(all.min, one.min) : one.min;
        all.max = all.count ? fmax(all.max, one.max) : one.max;
        all.count += one.count;
    }
    return all;
}

static double pick(const ex_span *span, ex_plot_pick which) {
    return which == EX_PICK_MAX   ? span->max
           : which == EX_PICK_MIN ? span->min
                                  : span->sum / (double)span->count;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/*
 * The value that a tenth of the drawn values are below: the last steps of a rate that goes down to nothing are few, and no
 * reason for decades. 0: none is known, or one is not above 0.
 */
static double low_tenth(const frame *f) {
    size_t count = 0;
    double *values = malloc(f->plot->line_count * EX_BUCKETS * sizeof *values);
    for (size_t l = 0; values && l < f->plot->line_count; l++) {
        const ex_plot_line *line = &f->plot->lines[l];
        for (size_t i = 0; i < line->series->count; i++) {
            const ex_span *span = &line->series->buckets[i].spans[line->measure];
            if (span->count) values[count++] = pick(span, line->pick);
        }
    }
    if (count) qsort(values, count, sizeof *values, ascending);
    double low = count && values[0] >= 0 ? values[count / 10] : 0;
    free(values);
    return low;
}

/* Whole decades; a value that is far below the others is drawn at the bottom. */
static int make_log(frame *f, double least, double most) {
    if (!f->plot->may_be_log || !(least >= 0)) return 0;
    double low = low_tenth(f);
    if (!(low > 0) || most < 100 * low) return 0;
    f->is_log = 1;
    f->high = log10(most / f->y->unit);
    f->low = floor(log10(fmax(least, low / 1000) / f->y->unit));
    f->tick = fmax(1, ceil((f->high - f->low) / 6));
    f->high += 0.06 * (f->high - f->low);
    return 1;
}

static void make_x(frame *f) {
    double seconds = 0;
    f->first = INFINITY;
    f->last = -INFINITY;
    for (size_t i = 0; i < f->plot->run_count; i++) {
        const ex_plot_run *run = &f->plot->runs[i];
        if (!run->series->count) continue;
        f->first = fmin(f->first, (double)run->series->base - 0.5);
        f->last = fmax(f->last, (double)run->series->last + 0.5);
        seconds = fmax(seconds, run->seconds);
    }
    f->by_time = f->plot->by_time && seconds > 0;
    f->x = choose_unit(f->by_time ? EX_SCALE_TIME : EX_SCALE_PLAIN, seconds);
    if (!f->by_time) return;
    f->first = 0;
    f->last = seconds;
}

/* 1 when there is anything to draw. */
static int make_frame(frame *f) {
    ex_span span = span_of(f);
    if (!span.count) return 0;
    double most = fmax(span.max, f->plot->at_least);
    make_x(f);
    f->y = choose_unit(f->plot->scale, most > 0 ? most : 0);
    if (make_log(f, span.min, most)) return 1;
    double low = f->plot->from_zero ? 0 : span.min / f->y->unit, high = most / f->y->unit;
    if (high - low <= 1e-9 * fabs(high)) { /* one value: in the middle, or at the top of its bar */
        double around = fmax(fabs(high) / 10, 1e-6);
        low = f->plot->from_zero ? 0 : low - around;
        high = f->plot->from_zero ? fmax(high, 1) : high + around;
    }
    f->tick = nice_tick((high - low) / 5, f->plot->scale == EX_SCALE_COUNT);
    f->low = f->plot->from_zero ? 0 : f->tick * floor(low / f->tick);
    f->high = high + 0.06 * (high - low);
    return 1;
}

static double x_of(const frame *f, double at) {
    return EX_PLOT_LEFT + (EX_PLOT_RIGHT - EX_PLOT_LEFT) * (at - f->first) / (f->last - f->first);
}

static double y_of(const frame *f, double value) {
    double scaled = value / f->y->unit;
    if (f->is_log) scaled = scaled > 0 ? log10(scaled) : f->low;
    double share = (scaled - f->low) / (f->high - f->low);
    return BOTTOM - (BOTTOM - TOP) * fmin(fmax(share, 0), 1);
}

/* Where a bucket begins and ends on the x axis. */
static double left_of(const frame *f, const ex_series *series, size_t i) {
    return x_of(f,
                f->by_time ? series->buckets[i].before : (double)ex_series_first(series, i) - 0.5);
}

static double right_of(const frame *f, const ex_series *series, size_t i) {
    const ex_bucket *bucket = &series->buckets[i];
    return x_of(f, f->by_time ? bucket->before + bucket->spans[EX_TIME].sum
                              : (double)ex_series_last(series, i) + 0.5);
}

/* ---- axes -------------------------------------------------------------------------------------- */

/* A step as it stands below the axis: "250", "12k", "1.5M". */
static const char *step_text(double step, char text[EX_FIGURE]) {
    if (step >= 1e6)
        snprintf(text, EX_FIGURE, "%.6gM", step / 1e6);
    else if (step >= 1e4)
        snprintf(text, EX_FIGURE, "%.6gk", step / 1e3);
    else
        snprintf(text, EX_FIGURE, "%.6g", step);
    return text;
}

static void draw_y_axis(const frame *f, FILE *out) {
    for (int i = 0; i < 20; i++) {
        double at = f->low + i * f->tick;
        if (at > f->high) break;
        double value = f->is_log ? pow(10, at) : fabs(at) < f->tick / 1e6 ? 0 : at;
        double y = y_of(f, value * f->y->unit);
        fprintf(out,
                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
                EX_PLOT_LEFT, EX_PLOT_RIGHT, y, y, EX_PLOT_LEFT - 6, y + 4, value);
    }
}

static void draw_x_axis(const frame *f, FILE *out) {
    char text[EX_FIGURE];
    double unit = f->x->unit, first = f->first / unit, last = f->last / unit;
    double tick = nice_tick((last - first) / 6, !f->by_time);
    double at = tick * ceil(first / tick);
    if (!f->by_time && last - first <= 6) at = first + 0.5;
    for (; at <= last; at += tick)
        fprintf(out, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                x_of(f, at * unit), BOTTOM + 18, step_text(at, text));
    fprintf(out, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", EX_PLOT_LEFT,
            EX_PLOT_RIGHT, BOTTOM, BOTTOM);
}

/* ---- paths ------------------------------------------------------------------------------------- */

static void begin_path(const ex_plot_line *line, FILE *out) {
    fprintf(out, "<path class=\"%s\"", line->style);
    if (line->colour) fprintf(out, " style=\"--c:var(%s)\"", line->colour);
    fprintf(out, " d=\"");
}

/* A bucket without a value is a gap. */
static void draw_stairs(const frame *f, const ex_plot_line *line, FILE *out) {
    const ex_series *series = line->series;
    const int area = line->form == EX_FORM_AREA;
    double y = -1;
    int is_open = 0;
    begin_path(line, out);
    for (size_t i = 0; i <= series->count; i++) {
        const ex_span *span = i < series->count ? &series->buckets[i].spans[line->measure] : NULL;
        if (!span || !span->count) {
            if (is_open && area) fprintf(out, "V%dZ", BOTTOM);
            is_open = 0;
            continue;
        }
        double left = left_of(f, series, i), now = y_of(f, pick(span, line->pick));
        if (!is_open && area)
            fprintf(out, "M%.1f %dV%.1f", left, BOTTOM, now);
        else if (!is_open)
            fprintf(out, "M%.1f %.1f", left, now);
        else if (fabs(now - y) >= 0.05)
            fprintf(out, "V%.1f", now);
        fprintf(out, "H%.1f", right_of(f, series, i));
        y = now;
        is_open = 1;
    }
    fprintf(out, "\"/>\n");
}

/* A value stands where its bucket ends: after the step that it was measured behind. */
static void draw_points(const frame *f, const ex_plot_line *line, FILE *out) {
    const ex_series *series = line->series;
    char command = 'M';
    begin_path(line, out);
    for (size_t i = 0; i < series->count; i++) {
        const ex_span *span = &series->buckets[i].spans[line->measure];
        if (!span->count) continue;
        fprintf(out, "%c%.1f %.1f", command, right_of(f, series, i),
                y_of(f, pick(span, line->pick)));
        command = 'L';
    }
    fprintf(out, "\"/>\n");
}

/* Of a few values each one is worth a dot. */
static void draw_dots(const frame *f, const ex_plot_line *line, FILE *out) {
    const ex_series *series = line->series;
    size_t count = 0;
    for (size_t i = 0; i < series->count; i++)
        count += series->buckets[i].spans[line->measure].count > 0;
    if (count > DOTS_MOST) return;
    for (size_t i = 0; i < series->count; i++) {
        const ex_span *span = &series->buckets[i].spans[line->measure];
        if (!span->count) continue;
        double right = right_of(f, series, i), left = left_of(f, series, i);
        fprintf(out, "<circle class=\"dot\"");
        if (line->colour) fprintf(out, " style=\"--c:var(%s)\"", line->colour);
        fprintf(out, " cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n",
                line->form == EX_FORM_POINTS ? right : (left + right) / 2,
                y_of(f, pick(span, line->pick)));
    }
}

static void draw_line(const frame *f, const ex_plot_line *line, FILE *out) {
    if (!ex_series_span(line->series, line->measure).count) return;
    if (line->form == EX_FORM_POINTS)
        draw_points(f, line, out);
    else
        draw_stairs(f, line, out);
    if (line->form == EX_FORM_POINTS || strncmp(line->style, "line", 4) == 0)
        draw_dots(f, line, out);
}

/* ---- marks ------------------------------------------------------------------------------------- */

static const struct {
    const char *style, *one, *many, *shape; /* the shape is drawn around 0, 0 */
} marks[] = {
    [EX_OOM] = {"oom", "OOM", "OOMs", "M-5 -4H5L0 5Z"},
    [EX_CLEAR] = {"clear", "clear of the cache", "clears of the cache",
                  "M0 -4A4 4 0 1 0 0 4A4 4 0 1 0 0 -4Z"},
    [EX_RUNG] = {"rung", "change of a memory saver", "changes of memory savers",
                 "M0 -5L5 0L0 5L-5 0Z"},
};

/* Several steps that lie closer together than a mark is wide share one. */
static void draw_mark(const frame *f, const ex_plot_run *run, ex_mark kind, uint64_t count,
                      size_t from, size_t to, FILE *out) {
    char number[EX_FIGURE];
    uint64_t first = ex_series_first(run->series, from), last = ex_series_last(run->series, to);
    double x = (left_of(f, run->series, from) + right_of(f, run->series, to)) / 2;
    fprintf(out,
            "<g class=\"mark %s\"><line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
            "<path transform=\"translate(%.1f %d)\" d=\"%s\"><title>",
            marks[kind].style, x, x, TOP - 8, BOTTOM, x, TOP - 12, marks[kind].shape);
    if (run->name) {
        ex_html_escape(run->name, out);
        fprintf(out, ": ");
    }
    fprintf(out, "%s %s, step%s %llu", ex_html_count(count, number),
            count == 1 ? marks[kind].one : marks[kind].many, first == last ? "" : "s",
            (unsigned long long)first);
    if (first != last) fprintf(out, " to %llu", (unsigned long long)last);
    fprintf(out, "</title></path></g>\n");
}

static void draw_marks(const frame *f, const ex_plot_run *run, ex_mark kind, FILE *out) {
    const ex_series *series = run->series;
    size_t from = 0, to = 0;
    uint64_t count = 0;
    for (size_t i = 0; i < series->count; i++) {
        uint64_t here = series->buckets[i].marks[kind];
        if (!here) continue;
        if (count && left_of(f, series, i) - left_of(f, series, from) >= MARK_WIDTH) {
            draw_mark(f, run, kind, count, from, to, out);
            count = 0;
        }
        if (!count) from = i;
        to = i;
        count += here;
    }
    if (count) draw_mark(f, run, kind, count, from, to, out);
}

/* Where epochs end, while they can be told apart. */
static void draw_epochs(const frame *f, const ex_series *series, FILE *out) {
    size_t ends = 0;
    for (size_t i = 0; i < series->count; i++) ends += series->buckets[i].marks[EX_EPOCH] > 0;
    if (ends > 30) return;
    for (size_t i = 0; i < series->count; i++) {
        if (!series->buckets[i].marks[EX_EPOCH]) continue;
        double x = right_of(f, series, i);
        fprintf(out, "<line class=\"epoch\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x,
                TOP, BOTTOM);
    }
}

/* ---- public ------------------------------------------------------------------------------------ */

static void draw(const frame *f, FILE *out) {
    const ex_plot *plot = f->plot;
    draw_y_axis(f, out);
    if (plot->run_count == 1) draw_epochs(f, plot->runs[0].series, out);
    for (size_t i = 0; i < plot->line_count; i++) draw_line(f, &plot->lines[i], out);
    draw_x_axis(f, out);
    for (int kind = EX_RUNG; kind >= EX_OOM; kind--)
        for (size_t i = 0; i < plot->run_count; i++)
            draw_marks(f, &plot->runs[i], (ex_mark)kind, out);
}

/* "MiB, log, over s": unit, axis, and what it is over unless that is steps. */
static void write_axes(const frame *f, FILE *out) {
    const char *comma = "";
    if (*f->y->name) comma = (fputs(f->y->name, out), ", ");
    if (f->is_log) comma = (fprintf(out, "%slog axis", comma), ", ");
    if (f->by_time) fprintf(out, "%sover the time of the steps in %s", comma, f->x->name);
}

void ex_html_plot(const ex_plot *plot, FILE *out) {
    frame f = {.plot = plot};
    int has_values = make_frame(&f);
    fprintf(out, "<figure><h3>");
    ex_html_escape(plot->title, out);
    if (has_values && (*f.y->name || f.is_log || f.by_time)) {
        fprintf(out, " <span>");
        write_axes(&f, out);
        fprintf(out, "</span>");
    }
    fprintf(out, "</h3>\n");
    if (!has_values) {
        fprintf(out, "<p class=\"none\">nothing was measured</p></figure>\n");
        return;
    }
    fprintf(out, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
            EX_PLOT_WIDTH, EX_PLOT_HEIGHT);
    ex_html_escape(plot->title, out);
    fprintf(out,
            " over the %s\" data-over=\"%s\" data-first=\"%.9g\" data-last=\"%.9g\" "
            "style=\"--c:var(%s)\">\n",
            f.by_time ? "time" : "steps", f.by_time ? "time" : "steps", f.first, f.last,
            plot->colour);
    draw(&f, out);
    fprintf(out,
            "<line class=\"hair\" x1=\"-9\" x2=\"-9\" y1=\"%d\" y2=\"%d\"/>\n</svg></figure>\n",
            TOP, BOTTOM);
}

void ex_svg_plot(const ex_plot *plot, int x, int y, FILE *out) {
    frame f = {.plot = plot};
    int has_values = make_frame(&f);
    fprintf(out,
            "<g transform=\"translate(%d %d)\" style=\"--c:var(%s)\">\n<text class=\"title\" "
            "x=\"8\" y=\"16\">",
            x, y, plot->colour);
    ex_html_escape(plot->title, out);
    fprintf(out, "<tspan class=\"tick\" dx=\"8\">");
    if (has_values)
        write_axes(&f, out);
    else
        fprintf(out, "nothing was measured");
    fprintf(out, "</tspan></text>\n<g transform=\"translate(0 %d)\">\n",
            EX_SVG_PLOT - EX_PLOT_HEIGHT - 8);
    if (has_values) draw(&f, out);
    fprintf(out, "</g></g>\n");
}
