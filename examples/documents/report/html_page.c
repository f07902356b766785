/*
 * html_page.c - see html_page.h. The page is well-formed as XML too, so that tests can read it.
 */
#include "html_page.h"
#include "html_plot.h"

#include <math.h>
#include <string.h>

/* ---- what stands on every page ----------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light dark;--bg:#f4f6f8;--card:#fff;--ink:#1b2430;--soft:#5f6b7a;"
    "--line:#dfe4ea;--grid:#ebeef2;--chunk:#3267d6;--peak:#0b8482;--state:#7d8998;--time:#b26b00;"
    "--loss:#7446c9;--oom:#d22f3d;--clear:#1583cf;--rung:#b136b0;--good:#1f8a55}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#11151b;--card:#1a2028;--ink:#e7ebf1;"
    "--soft:#98a5b5;--line:#2d3743;--grid:#252d38;--chunk:#78a2ff;--peak:#3fc6bd;--state:#8b97a7;"
    "--time:#f0ad4a;--loss:#b594ff;--oom:#ff6b74;--clear:#56b6ff;--rung:#ee82ec;--good:#55cd8f}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;"
    "font-variant-numeric:tabular-nums}\n"
    "main{max-width:1080px;margin:0 auto;padding:28px 16px 48px}"
    "h1{font-size:26px;line-height:1.2;margin:0 12px 0 0;display:inline}"
    "h2{font-size:17px;margin:0 0 12px}h3{font-size:14px;margin:18px 0 2px}h3 "
    "span{font-weight:400;color:var(--soft)}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:18px 20px;margin-top:16px}.none{color:var(--soft);margin:4px 0}"
    "ul{margin:0;padding-left:20px}\n"
    ".pill{display:inline-block;border-radius:99px;padding:2px 12px;font-size:13px;color:#fff;"
    "vertical-align:4px;background:var(--soft)}.done{background:#1f8a55}.stopped{background:#"
    "a86400}"
    ".failed{background:#c92a37}header p{margin:8px 0 0;color:var(--soft);"
    "overflow-wrap:anywhere}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:12px;"
    "margin-top:18px}.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:12px 16px}.tile b{display:block;font-size:21px;font-weight:600;line-height:1.3}"
    ".tile span{color:var(--soft);font-size:13px}.bad b{color:var(--oom)}\n"
    ".bar{display:flex;height:22px;border-radius:6px;overflow:hidden;background:var(--grid);"
    "margin:14px 0 8px}.bar "
    "div{min-width:0}.p1{background:var(--chunk)}.p2{background:var(--clear)}"
    ".p3{background:var(--loss)}.p4{background:var(--peak)}.p5{background:var(--grid)}"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0;padding:0;list-style:none;"
    "font-size:13px;color:var(--soft)}.legend i{display:inline-block;width:11px;height:11px;"
    "border-radius:3px;margin-right:6px;border:1px solid var(--line)}\n"
    ".wrap{overflow-x:auto}.plot{display:block;width:100%;min-width:620px;height:auto}"
    ".plot line,.plot path{vector-effect:non-scaling-stroke}.grid{stroke:var(--grid)}"
    ".axis{stroke:var(--soft)}.tick{fill:var(--soft);font-size:11.5px}"
    ".area{fill:var(--c);opacity:.16}.line{fill:none;stroke:var(--c);stroke-width:1.7}"
    ".faint{fill:none;stroke:var(--c);opacity:.45}.rest{fill:var(--state);opacity:.35}"
    ".budget{fill:none;stroke:var(--oom);stroke-width:1.5;stroke-dasharray:7 4}"
    ".dot{fill:var(--c)}.epoch{stroke:var(--state);stroke-dasharray:2 4;opacity:.6}"
    ".hair{stroke:var(--ink);opacity:.55}.mark line{stroke:currentColor;opacity:.3}"
    ".mark path,.key path{fill:currentColor}.oom{color:var(--oom)}.clear{color:var(--clear)}"
    ".rung{color:var(--rung)}.key "
    "svg{width:12px;height:12px;margin-right:6px;vertical-align:-1px}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px}th,td{padding:5px 12px 5px 0;"
    "text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}"
    "th{color:var(--soft);font-weight:500}.text td,.text th{text-align:left;white-space:normal;"
    "vertical-align:top;overflow-wrap:anywhere}.text td:first-child{white-space:nowrap}"
    "code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}\n"
    "#tip{position:fixed;left:0;bottom:0;right:0;background:var(--ink);color:var(--bg);"
    "padding:8px 16px;font-size:13px;text-align:center;pointer-events:none}\n"
    "footer{color:var(--soft);font-size:13px;margin-top:20px}";

/* No "less than" and no ampersand in it: they would have to be escaped in XML. */
static const char script[] =
    "var tip=document.getElementById('tip'),plots=document.querySelectorAll('svg.plot');\n"
    "function hair(x){plots.forEach(function(p){var h=p.querySelector('.hair');"
    "h.setAttribute('x1',x);h.setAttribute('x2',x)})}\n"
    "function hide(){tip.hidden=true;hair(-9)}\n"
    "function show(e){var b=this.getBoundingClientRect(),x=(e.clientX-b.left)*size/b.width,"
    "step=low+(x-left)/(right-left)*(high-low),i=Math.floor((step-base+0.5)/width);\n"
    "if(x>left){if(right>x){if(texts[i]){tip.textContent=texts[i];tip.hidden=false;hair(x);return}}"
    "}"
    "hide()}\n"
    "plots.forEach(function(p){p.addEventListener('pointermove',show);"
    "p.addEventListener('pointerleave',hide)});\n";

/* ---- pieces ------------------------------------------------------------------------------------ */

static void put(const char *before, const char *text, const char *after, FILE *out) {
    fputs(before, out);
    ex_html_escape(text, out);
    fputs(after, out);
}

static const char *plural(uint64_t count) {
    return count == 1 ? "" : "s";
}

static double peak_of(const ex_html_run *run) {
    return ex_series_span(&run->series, EX_PEAK).max;
}

/* ---- head -------------------------------------------------------------------------------------- */

static void write_header(const ex_html_run *run, FILE *out) {
    static const char *const classes[] = {"running", "done", "stopped", "failed"};
    static const char *const words[] = {"running", "done", "stopped", "failed"};
    put("<header><h1>", *run->program ? run->program : "run", "", out);
    if (*run->device) put(" on ", run->device, "", out);
    fprintf(out, "</h1><span class=\"pill %s\">%s</span>\n", classes[run->outcome],
            words[run->outcome]);
    if (*run->left) {
        put("<p>", run->asked, " was asked for, and is too small: ", out);
        put("", run->left, "</p>\n", out);
    }
    if (*run->outcome_text) put("<p>", run->outcome_text, "</p>\n", out);
    fprintf(out, "</header>\n");
}

static void tile(const char *value, const char *what, int is_bad, FILE *out) {
    fprintf(out, "<div class=\"tile%s\"><b>%s</b><span>%s</span></div>\n", is_bad ? " bad" : "",
            value, what);
}

static void write_chunk_tile(const ex_html_run *run, FILE *out) {
    char text[2 * EX_FIGURE] = "none", what[2 * EX_FIGURE] = "samples of a chunk";
    ex_span chunks = ex_series_span(&run->series, EX_CHUNK);
    if (chunks.count && chunks.min == chunks.max)
        snprintf(text, sizeof text, "%.0f", chunks.max);
    else if (chunks.count)
        snprintf(text, sizeof text, "%.0f to %.0f", chunks.min, chunks.max);
    if (run->batch)
        snprintf(what, sizeof what, "samples of a chunk, of %llu", (unsigned long long)run->batch);
    tile(text, what, 0, out);
}

static void write_peak_tile(const ex_html_run *run, FILE *out) {
    char text[EX_FIGURE], share[EX_FIGURE], what[2 * EX_FIGURE] = "at the peak";
    if (run->most_used > 0)
        snprintf(what, sizeof what, "at the peak; %s of the budget",
                 ex_html_percent(run->most_used, 1, share));
    tile(ex_html_bytes(peak_of(run), text), what, run->most_used > 1, out);
}

static void write_tiles(const ex_html_run *run, FILE *out) {
    char text[EX_FIGURE];
    fprintf(out, "<div class=\"tiles\">\n");
    tile(ex_html_count(run->steps, text), run->steps == 1 ? "step" : "steps", 0, out);
    tile(ex_html_count(run->samples, text), "samples trained", 0, out);
    tile(ex_html_seconds(run->seconds, text), "of work on the device", 0, out);
    write_peak_tile(run, out);
    write_chunk_tile(run, out);
    tile(ex_html_count(run->marks[EX_OOM], text), run->marks[EX_OOM] == 1 ? "OOM met" : "OOMs met",
         run->marks[EX_OOM] > 0, out);
    fprintf(out, "</div>\n");
}

/* ---- what the budget did ----------------------------------------------------------------------- */

static void write_budget_line(const ex_html_run *run, FILE *out) {
    char text[EX_FIGURE], share[EX_FIGURE];
    ex_span budgets = ex_series_span(&run->series, EX_BUDGET);
    fprintf(out, "<li>The peak was %s", ex_html_bytes(peak_of(run), text));
    if (!budgets.count) {
        fprintf(out, "; there was no budget.</li>\n");
        return;
    }
    ex_html_percent(run->most_used, 1, share);
    if (budgets.min == budgets.max)
        fprintf(out, ", %s of the budget of %s.</li>\n", share, ex_html_bytes(budgets.max, text));
    else
        fprintf(out, ", at most %s of the budget of its step, which was %s", share,
                ex_html_bytes(budgets.min, text));
    if (budgets.min < budgets.max) fprintf(out, " to %s.</li>\n", ex_html_bytes(budgets.max, text));
}

static void write_chunk_line(const ex_html_run *run, FILE *out) {
    ex_span chunks = ex_series_span(&run->series, EX_CHUNK);
    if (!chunks.count) return;
    fprintf(out, "<li>Batches went through in chunks of %.0f", chunks.min);
    if (chunks.max > chunks.min) fprintf(out, " to %.0f", chunks.max);
    fprintf(out, " samples, %.3g chunks a step on average.</li>\n",
            (double)chunks.count / (double)run->steps);
}

static void write_counts(const char *intro, const char *const *words, const uint64_t *counts,
                         size_t count, FILE *out) {
    const char *comma = "";
    fprintf(out, "%s", intro);
    for (size_t i = 0; i < count; i++) {
        if (!counts[i]) continue;
        fprintf(out, "%s%s (%llu)", comma, words[i], (unsigned long long)counts[i]);
        comma = ", ";
    }
}

static void write_oom_line(const ex_html_run *run, FILE *out) {
    static const char *const answers[EX_HTML_ACTIONS] = {
        "tried again", "tried again with an empty cache", "smaller chunks or a memory saver",
        "given up"};
    char discarded[EX_FIGURE], share[EX_FIGURE];
    uint64_t ooms = run->marks[EX_OOM];
    if (!ooms)
        fprintf(out, run->steps ? "<li>Memory never ran out." : "<li>No step was completed.");
    else {
        fprintf(out, "<li>Memory ran out %llu time%s; answers: ", (unsigned long long)ooms,
                plural(ooms));
        write_counts("", answers, run->actions, EX_HTML_ACTIONS, out);
        fprintf(out, ".");
    }
    if (run->discarded)
        fprintf(out, " The work of %s samples was thrown away",
                ex_html_count(run->discarded, discarded));
    if (run->discarded && run->samples)
        fprintf(out, ", %s of those trained",
                ex_html_percent((double)run->discarded, (double)run->samples, share));
    if (run->discarded) fprintf(out, run->samples ? "." : "; none was trained.");
    fprintf(out, "</li>\n");
}

static void write_savers(const ex_html_run *run, FILE *out) {
    if (!run->marks[EX_RUNG] && !run->saver_count) return;
    fprintf(out, "<li>Memory savers were switched %llu time%s",
            (unsigned long long)run->marks[EX_RUNG], plural(run->marks[EX_RUNG]));
    for (size_t i = 0; i < run->saver_count; i++) {
        put(i ? ", " : "; steps with them: ", run->savers[i].name, "", out);
        fprintf(out, " (%llu)", (unsigned long long)run->savers[i].steps);
    }
    fprintf(out, ".</li>\n");
}

static void write_other_lines(const ex_html_run *run, FILE *out) {
    char text[EX_FIGURE];
    uint64_t plans = 0;
    for (int i = 0; i < EX_HTML_REASONS; i++) plans += run->plans[i];
    if (plans) {
        write_counts("<li>Plans that differ from the one before, by reason: ", ex_html_reasons,
                     run->plans, EX_HTML_REASONS, out);
        fprintf(out, ".</li>\n");
    }
    if (run->marks[EX_CLEAR])
        fprintf(out, "<li>The cache was emptied %llu time%s, which took %s.</li>\n",
                (unsigned long long)run->marks[EX_CLEAR], plural(run->marks[EX_CLEAR]),
                ex_html_seconds(run->clear_seconds, text));
    write_savers(run, out);
    if (run->worst_prediction == 0)
        fprintf(out, "<li>Predicted peaks were those measured, to the byte.</li>\n");
    else if (run->worst_prediction > 0)
        fprintf(out, "<li>Predicted peaks were off by at most %.3g %%.</li>\n",
                100 * run->worst_prediction);
    if (run->skipped)
        fprintf(out,
                "<li>%llu update%s left out: the loss or a gradient was not finite, or no sample "
                "had a label.</li>\n",
                (unsigned long long)run->skipped, plural(run->skipped));
}

/* The budget, or without one the peak, as a bar of what took it. */
static void write_bar(const ex_html_run *run, FILE *out) {
    double peak = peak_of(run),
           state = run->parameter_bytes + run->gradient_bytes + run->optimizer_bytes;
    double whole = fmax(run->budget_bytes, fmax(peak, state));
    const struct {
        const char *name;
        double bytes;
    } parts[] = {{"parameters", run->parameter_bytes},
                 {"gradients", run->gradient_bytes},
                 {"optimiser state", run->optimizer_bytes},
                 {"activations and all else at the peak", fmax(peak - state, 0)},
                 {"never used", fmax(whole - fmax(peak, state), 0)}};
    char text[EX_FIGURE];
    if (state <= 0) return;
    fprintf(out, "<div class=\"bar\">");
    for (int i = 0; i < 5; i++)
        fprintf(out, "<div class=\"p%d\" style=\"width:%.2f%%\" title=\"%s %s\"></div>", i + 1,
                100 * parts[i].bytes / whole, parts[i].name, ex_html_bytes(parts[i].bytes, text));
    fprintf(out, "</div>\n<ul class=\"legend\">");
    for (int i = 0; i < 5; i++)
        fprintf(out, "<li><i class=\"p%d\"></i>%s %s</li>", i + 1, parts[i].name,
                ex_html_bytes(parts[i].bytes, text));
    fprintf(out, "</ul>\n");
}

static void write_summary(const ex_html_run *run, FILE *out) {
    fprintf(out, "<section><h2>What the budget did</h2>\n<ul>\n");
    if (run->steps) write_budget_line(run, out);
    if (run->steps) write_chunk_line(run, out);
    write_oom_line(run, out);
    write_other_lines(run, out);
    fprintf(out, "</ul>\n");
    write_bar(run, out);
    fprintf(out, "</section>\n");
}

/* ---- plots ------------------------------------------------------------------------------------- */

/* A budget that is so many times the peak would leave the peak a line at the bottom. */
static int is_budget_far(const ex_html_run *run) {
    double peak = peak_of(run);
    return peak > 0 && ex_series_span(&run->series, EX_BUDGET).min > 10 * peak;
}

static void write_memory_key(const ex_html_run *run, FILE *out) {
    char text[EX_FIGURE];
    if (is_budget_far(run))
        fprintf(out, "<li>memory: grey what stays between steps; the budget, %s, is far above</li>",
                ex_html_bytes(ex_series_span(&run->series, EX_BUDGET).max, text));
    else
        fprintf(out, "<li>memory: dashed the budget, grey what stays between steps</li>");
}

static void write_keys(const ex_html_run *run, FILE *out) {
    fprintf(
        out,
        "<ul class=\"legend key\">"
        "<li class=\"oom\"><svg viewBox=\"-6 -6 12 12\"><path d=\"M-5 -4H5L0 5Z\"/></svg>OOM</li>"
        "<li class=\"clear\"><svg viewBox=\"-6 -6 12 12\"><path d=\"M0 -4A4 4 0 1 0 0 4A4 4 0 1 "
        "0 0 -4Z\"/></svg>cache emptied</li>"
        "<li class=\"rung\"><svg viewBox=\"-6 -6 12 12\"><path d=\"M0 -5L5 0L0 5L-5 0Z\"/></svg>"
        "memory saver switched</li>");
    write_memory_key(run, out);
    fprintf(out, "</ul>\n");
}

static void write_plots(const ex_html_run *run, FILE *out) {
    static const ex_plot_line chunk[] = {{EX_CHUNK, EX_PICK_MAX, "area", 1},
                                         {EX_CHUNK, EX_PICK_MIN, "faint", 0},
                                         {EX_CHUNK, EX_PICK_MAX, "line", 0}};
    static const ex_plot_line memory[] = {{EX_BUDGET, EX_PICK_MIN, "budget", 0},
                                          {EX_PEAK, EX_PICK_MAX, "area", 1},
                                          {EX_STATE, EX_PICK_MAX, "rest", 1},
                                          {EX_PEAK, EX_PICK_MIN, "faint", 0},
                                          {EX_PEAK, EX_PICK_MAX, "line", 0}};
    static const ex_plot_line time[] = {{EX_TIME, EX_PICK_MAX, "area", 1},
                                        {EX_TIME, EX_PICK_MEAN, "line", 0}};
    static const ex_plot_line loss[] = {{EX_LOSS, EX_PICK_MAX, "faint", 0},
                                        {EX_LOSS, EX_PICK_MIN, "faint", 0},
                                        {EX_LOSS, EX_PICK_MEAN, "line", 0}};
    const size_t left_out = is_budget_far(run); /* of the lines of memory, its first */
    const ex_plot plots[] = {
        {"Samples of a chunk", "--chunk", EX_SCALE_COUNT, 1, 0, chunk, 3},
        {"Peak memory", "--peak", EX_SCALE_BYTES, 1, left_out ? 0 : run->budget_bytes,
         memory + left_out, 5 - left_out},
        {"Time of a step", "--time", EX_SCALE_TIME, 1, 0, time, 2},
        {"Loss", "--loss", EX_SCALE_PLAIN, 0, 0, loss, 3},
    };
    fprintf(out, "<section><h2>Over the steps</h2>\n");
    if (!run->steps) {
        fprintf(out, "<p class=\"none\">no step was completed</p></section>\n");
        return;
    }
    write_keys(run, out);
    fprintf(out, "<div class=\"wrap\">\n");
    for (int i = 0; i < 4; i++) ex_html_plot(&run->series, &plots[i], out);
    fprintf(out, "</div></section>\n");
}

/* ---- tables ------------------------------------------------------------------------------------ */

static void write_value(double value, FILE *out) {
    if (isfinite(value))
        fprintf(out, "<td>%.4g</td>", value);
    else
        fprintf(out, "<td>-</td>");
}

static void write_epoch(const ex_html_run *run, const ex_html_epoch *epoch, FILE *out) {
    char text[EX_FIGURE];
    fprintf(out, "<tr><td>%llu</td>", (unsigned long long)epoch->epoch);
    write_value(epoch->loss, out);
    for (size_t i = 0; i < run->metric_count; i++) write_value(epoch->metrics[i], out);
    write_value(epoch->eval_loss, out);
    for (size_t i = 0; i < run->metric_count; i++) write_value(epoch->eval_metrics[i], out);
    fprintf(out, "<td>%s</td>", ex_html_seconds(epoch->seconds, text));
    fprintf(out, "<td>%s</td></tr>\n", ex_html_bytes(epoch->peak_bytes, text));
}

static void write_epochs(const ex_html_run *run, FILE *out) {
    const ex_html_epoch *last = &run->last_epoch;
    fprintf(out, "<section><h2>Epochs</h2>\n");
    if (!run->epoch_total) {
        fprintf(out, "<p class=\"none\">no epoch was completed</p></section>\n");
        return;
    }
    fprintf(out, "<div class=\"wrap\"><table><tr><th>epoch</th><th>loss</th>");
    for (size_t i = 0; i < run->metric_count; i++) put("<th>", run->metric_names[i], "</th>", out);
    fprintf(out, "<th>validation loss</th>");
    for (size_t i = 0; i < run->metric_count; i++)
        put("<th>validation ", run->metric_names[i], "</th>", out);
    fprintf(out, "<th>time</th><th>peak</th></tr>\n");
    for (size_t i = 0; i < run->epoch_count; i++) write_epoch(run, &run->epochs[i], out);
    if (run->epochs[run->epoch_count - 1].epoch != last->epoch) write_epoch(run, last, out);
    fprintf(out, "</table></div>");
    if (run->epoch_stride > 1)
        fprintf(out, "<p class=\"none\">one of %llu epochs is shown, and the last</p>",
                (unsigned long long)run->epoch_stride);
    fprintf(out, "</section>\n");
}

static void write_events(const ex_html_run *run, FILE *out) {
    static const char *const kinds[EX_MARKS] = {"OOM", "clear", "memory saver", ""};
    static const char *const classes[EX_MARKS] = {"oom", "clear", "rung", ""};
    uint64_t shown = run->event_count < EX_HTML_EVENTS ? run->event_count : EX_HTML_EVENTS;
    if (!shown) return;
    fprintf(out, "<section><h2>Events</h2>\n<table class=\"text\"><tr><th>step</th><th>what</th>"
                 "<th>how</th></tr>\n");
    for (uint64_t i = 0; i < shown; i++) {
        const ex_html_event *event = &run->events[i];
        fprintf(out, "<tr><td>%llu</td><td class=\"%s\">%s</td>", (unsigned long long)event->step,
                classes[event->kind], kinds[event->kind]);
        put("<td>", event->text, "</td></tr>\n", out);
    }
    fprintf(out, "</table>");
    if (run->event_count > shown)
        fprintf(out, "<p class=\"none\">and %llu more</p>",
                (unsigned long long)(run->event_count - shown));
    fprintf(out, "</section>\n");
}

static void write_settings(const ex_html_run *run, FILE *out) {
    fprintf(out, "<section><h2>Settings</h2>\n");
    if (!run->setting_count) {
        fprintf(out, "<p class=\"none\">the run did not begin</p></section>\n");
        return;
    }
    fprintf(out, "<table class=\"text\">\n");
    for (size_t i = 0; i < run->setting_count; i++) {
        put("<tr><td>", run->settings[i].name, "</td>", out);
        put("<td><code>", run->settings[i].value, "</code></td></tr>\n", out);
    }
    if (*run->state_sha256)
        put("<tr><td>state sha256</td><td><code>", run->state_sha256, "</code></td></tr>\n", out);
    fprintf(out, "</table></section>\n");
}

/* ---- script ------------------------------------------------------------------------------------ */

static void write_range(const char *intro, const ex_span *span,
                        const char *(*format)(double, char *), FILE *out) {
    char low[EX_FIGURE], high[EX_FIGURE];
    if (!span->count) return;
    format(span->min, low);
    format(span->max, high);
    if (strcmp(low, high) == 0)
        fprintf(out, "; %s%s", intro, high);
    else
        fprintf(out, "; %s%s to %s", intro, low, high);
}

static const char *format_plain(double value, char *text) {
    snprintf(text, EX_FIGURE, "%.4g", value);
    return text;
}

/* What the pointer shows of a bucket: digits, words and units alone, so nothing is to be escaped. */
static void write_text(const ex_series *series, size_t i, FILE *out) {
    const ex_bucket *bucket = &series->buckets[i];
    uint64_t first = ex_series_first(series, i), last = ex_series_last(series, i);
    fprintf(out, "\"step%s %llu", first == last ? "" : "s", (unsigned long long)first);
    if (first != last) fprintf(out, " to %llu", (unsigned long long)last);
    if (*bucket->chunks)
        fprintf(out, "; chunks %s", bucket->chunks);
    else
        write_range("chunks ", &bucket->spans[EX_CHUNK], format_plain, out);
    write_range("peak ", &bucket->spans[EX_PEAK], ex_html_bytes, out);
    write_range("budget ", &bucket->spans[EX_BUDGET], ex_html_bytes, out);
    write_range("", &bucket->spans[EX_TIME], ex_html_seconds, out);
    write_range("loss ", &bucket->spans[EX_LOSS], format_plain, out);
    if (bucket->marks[EX_OOM])
        fprintf(out, "; %llu OOM%s", (unsigned long long)bucket->marks[EX_OOM],
                plural(bucket->marks[EX_OOM]));
    fprintf(out, "\"%s", i + 1 < series->count ? ",\n" : "");
}

static void write_script(const ex_series *series, FILE *out) {
    if (!series->count) return;
    fprintf(out,
            "<script>\nvar size=%d,left=%d,right=%d,base=%llu,width=%llu,low=base-0.5,"
            "high=%llu.5,texts=[\n",
            EX_PLOT_WIDTH, EX_PLOT_LEFT, EX_PLOT_RIGHT, (unsigned long long)series->base,
            (unsigned long long)series->width, (unsigned long long)series->last);
    for (size_t i = 0; i < series->count; i++) write_text(series, i, out);
    fprintf(out, "];\n%s</script>\n", script);
}

void ex_html_page(const ex_html_run *run, FILE *out) {
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
    put("<title>", *run->program ? run->program : "run", ": report of a run</title>\n", out);
    fprintf(out, "<style>\n%s\n</style>\n</head>\n<body>\n<main>\n", style);
    write_header(run, out);
    write_tiles(run, out);
    write_summary(run, out);
    write_plots(run, out);
    write_epochs(run, out);
    write_events(run, out);
    write_settings(run, out);
    put("<footer>libmemtrain ", mt_version_string(), "</footer>\n</main>\n", out);
    fprintf(out, "<div id=\"tip\" hidden=\"hidden\"></div>\n");
    write_script(&run->series, out);
    fprintf(out, "</body>\n</html>\n");
}
