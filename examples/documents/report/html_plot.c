/*
 * html_plot.c - axes, paths and marks; see html_plot.h.
 */
#include "html_plot.h"
#include "html_text.h"

#include <math.h>
#include <string.h>

enum { HEIGHT = 212, TOP = 26, BOTTOM = 184, DOTS_MOST = 60, MARK_WIDTH = 5 };

/* From steps and values to coordinates. */
typedef struct frame {
    const ex_series *series;
    const ex_plot *plot;
    double low, high;   /* of the y axis, in units */
    double tick, unit;  /* of the y axis */
    const char *suffix; /* of the unit, "MiB" */
    double first, last; /* of the x axis: half a step beyond the steps */
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

static void choose_unit(frame *f, double most) {
    static const struct {
        ex_plot_scale scale;
        double from, unit;
        const char *suffix;
    } units[] = {
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
    size_t i = 0;
    while (units[i].scale != f->plot->scale || most < units[i].from) i++;
    f->unit = units[i].unit;
    f->suffix = units[i].suffix;
}

static ex_span span_of(const frame *f) {
    ex_span all = {0, 0, 0, 0};
    for (size_t i = 0; i < f->plot->line_count; i++) {
        ex_span one = ex_series_span(f->series, f->plot->lines[i].measure);
        if (!one.count) continue;
        all.min = all.count ? fmin(all.min, one.min) : one.min;
        all.max = all.count ? fmax(all.max, one.max) : one.max;
        all.count += one.count;
    }
    return all;
}

/* 1 when there is anything to draw. */
static int make_frame(frame *f) {
    ex_span span = span_of(f);
    if (!span.count) return 0;
    double most = fmax(span.max, f->plot->at_least);
    choose_unit(f, most > 0 ? most : 0);
    double low = f->plot->from_zero ? 0 : span.min / f->unit, high = most / f->unit;
    if (high - low <= 1e-9 * fabs(high)) { /* one value: in the middle, or at the top of its bar */
        double around = fmax(fabs(high) / 10, 1e-6);
        low = f->plot->from_zero ? 0 : low - around;
        high = f->plot->from_zero ? fmax(high, 1) : high + around;
    }
    f->tick = nice_tick((high - low) / 5, f->plot->scale == EX_SCALE_COUNT);
    f->low = f->plot->from_zero ? 0 : f->tick * floor(low / f->tick);
    f->high = high + 0.06 * (high - low);
    f->first = (double)f->series->base - 0.5;
    f->last = (double)f->series->last + 0.5;
    return 1;
}

static double x_of(const frame *f, double step) {
    return EX_PLOT_LEFT + (EX_PLOT_RIGHT - EX_PLOT_LEFT) * (step - f->first) / (f->last - f->first);
}

static double y_of(const frame *f, double value) {
    double share = (value / f->unit - f->low) / (f->high - f->low);
    return BOTTOM - (BOTTOM - TOP) * fmin(fmax(share, 0), 1);
}

/* ---- axes -------------------------------------------------------------------------------------- */

/* A step as it stands below the axis: "250", "12k", "1.5M". */
static const char *step_text(double step, char text[EX_FIGURE]) {
    if (step >= 1e6)
        snprintf(text, EX_FIGURE, "%.6gM", step / 1e6);
    else if (step >= 1e4)
        snprintf(text, EX_FIGURE, "%.6gk", step / 1e3);
    else
        snprintf(text, EX_FIGURE, "%.0f", step);
    return text;
}

static void draw_y_axis(const frame *f, FILE *out) {
    for (int i = 0; i < 20; i++) {
        double value = f->low + i * f->tick;
        if (value > f->high) break;
        double y = y_of(f, value * f->unit);
        fprintf(out,
                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
                EX_PLOT_LEFT, EX_PLOT_RIGHT, y, y, EX_PLOT_LEFT - 8, y + 4,
                fabs(value) < f->tick / 1e6 ? 0 : value);
    }
}

static void draw_x_axis(const frame *f, FILE *out) {
    char text[EX_FIGURE];
    double tick = nice_tick((f->last - f->first) / 8, 1);
    double step = tick * ceil(f->first / tick);
    if (f->last - f->first <= 8) step = (double)f->series->base;
    for (; step <= f->last; step += tick)
        fprintf(out, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                x_of(f, step), BOTTOM + 18, step_text(step, text));
    fprintf(out, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", EX_PLOT_LEFT,
            EX_PLOT_RIGHT, BOTTOM, BOTTOM);
}

/* ---- paths ------------------------------------------------------------------------------------- */

static double pick(const ex_span *span, ex_plot_pick which) {
    return which == EX_PICK_MAX   ? span->max
           : which == EX_PICK_MIN ? span->min
                                  : span->sum / (double)span->count;
}

/* Stairs, since a step has one value and the next another; a bucket without a value is a gap. */
static void draw_stairs(const frame *f, const ex_plot_line *line, FILE *out) {
    double y = -1;
    int is_open = 0;
    fprintf(out, "<path class=\"%s\" d=\"", line->style);
    for (size_t i = 0; i <= f->series->count; i++) {
        const ex_span *span =
            i < f->series->count ? &f->series->buckets[i].spans[line->measure] : NULL;
        if (!span || !span->count) {
            if (is_open && line->area) fprintf(out, "V%dZ", BOTTOM);
            is_open = 0;
            continue;
        }
        double left = x_of(f, (double)ex_series_first(f->series, i) - 0.5);
        double right = x_of(f, (double)ex_series_last(f->series, i) + 0.5);
        double now = y_of(f, pick(span, line->pick));
        if (!is_open && line->area)
            fprintf(out, "M%.1f %dV%.1f", left, BOTTOM, now);
        else if (!is_open)
            fprintf(out, "M%.1f %.1f", left, now);
        else if (fabs(now - y) >= 0.05)
            fprintf(out, "V%.1f", now);
        fprintf(out, "H%.1f", right);
        y = now;
        is_open = 1;
    }
    fprintf(out, "\"/>\n");
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
static void draw_mark(const frame *f, ex_mark kind, uint64_t count, size_t from, size_t to,
                      FILE *out) {
    char number[EX_FIGURE];
    uint64_t first = ex_series_first(f->series, from), last = ex_series_last(f->series, to);
    double x = x_of(f, ((double)first + (double)last) / 2);
    fprintf(out,
            "<g class=\"mark %s\"><line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
            "<path transform=\"translate(%.1f %d)\" d=\"%s\"><title>",
            marks[kind].style, x, x, TOP - 8, BOTTOM, x, TOP - 12, marks[kind].shape);
    fprintf(out, "%s %s, step%s %llu", ex_html_count(count, number),
            count == 1 ? marks[kind].one : marks[kind].many, first == last ? "" : "s",
            (unsigned long long)first);
    if (first != last) fprintf(out, " to %llu", (unsigned long long)last);
    fprintf(out, "</title></path></g>\n");
}

static void draw_marks(const frame *f, ex_mark kind, FILE *out) {
    size_t from = 0, to = 0;
    uint64_t count = 0;
    for (size_t i = 0; i < f->series->count; i++) {
        uint64_t here = f->series->buckets[i].marks[kind];
        if (!here) continue;
        double away = x_of(f, (double)ex_series_first(f->series, i)) -
                      x_of(f, (double)ex_series_first(f->series, from));
        if (count && away >= MARK_WIDTH) {
            draw_mark(f, kind, count, from, to, out);
            count = 0;
        }
        if (!count) from = i;
        to = i;
        count += here;
    }
    if (count) draw_mark(f, kind, count, from, to, out);
}

/* Where epochs end, while they can be told apart. */
static void draw_epochs(const frame *f, FILE *out) {
    size_t ends = 0;
    for (size_t i = 0; i < f->series->count; i++) ends += f->series->buckets[i].marks[EX_EPOCH] > 0;
    if (ends > 60) return;
    for (size_t i = 0; i < f->series->count; i++) {
        if (!f->series->buckets[i].marks[EX_EPOCH]) continue;
        double x = x_of(f, (double)ex_series_last(f->series, i) + 0.5);
        fprintf(out, "<line class=\"epoch\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x,
                TOP, BOTTOM);
    }
}

/* Of a few steps each one is worth a dot. */
static void draw_dots(const frame *f, const ex_plot_line *line, FILE *out) {
    for (size_t i = 0; i < f->series->count && f->series->count <= DOTS_MOST; i++) {
        const ex_span *span = &f->series->buckets[i].spans[line->measure];
        if (!span->count) continue;
        double step =
            ((double)ex_series_first(f->series, i) + (double)ex_series_last(f->series, i)) / 2;
        fprintf(out, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n", x_of(f, step),
                y_of(f, pick(span, line->pick)));
    }
}

/* ---- public ------------------------------------------------------------------------------------ */

static void draw(const frame *f, FILE *out) {
    const ex_plot *plot = f->plot;
    fprintf(
        out,
        "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s over the steps\" "
        "style=\"--c:var(%s)\">\n",
        EX_PLOT_WIDTH, HEIGHT, plot->title, plot->colour);
    draw_y_axis(f, out);
    draw_epochs(f, out);
    for (size_t i = 0; i < plot->line_count; i++) draw_stairs(f, &plot->lines[i], out);
    if (plot->line_count) draw_dots(f, &plot->lines[plot->line_count - 1], out);
    draw_x_axis(f, out);
    for (int kind = EX_RUNG; kind >= EX_OOM; kind--) draw_marks(f, (ex_mark)kind, out);
    fprintf(out, "<line class=\"hair\" x1=\"-9\" x2=\"-9\" y1=\"%d\" y2=\"%d\"/>\n</svg>\n", TOP,
            BOTTOM);
}

void ex_html_plot(const ex_series *series, const ex_plot *plot, FILE *out) {
    frame f = {.series = series, .plot = plot};
    int has_values = series->count > 0 && make_frame(&f);
    fprintf(out, "<h3>%s", plot->title);
    if (has_values && *f.suffix) fprintf(out, " <span>%s</span>", f.suffix);
    fprintf(out, "</h3>\n");
    if (has_values)
        draw(&f, out);
    else
        fprintf(out, "<p class=\"none\">nothing was measured</p>\n");
}
