/*
 * html_page.c - see html_page.h. The page is well-formed as XML too, so that tests can read it.
 */
#include "html_page.h"
#include "html_plots.h"
#include "html_style.h"

#include <math.h>
#include <string.h>

/* ---- pieces ------------------------------------------------------------------------------------ */

static void put(const char *before, const char *text, const char *after, FILE *out) {
    fputs(before, out);
    ex_html_escape(text, out);
    fputs(after, out);
}

/* A run of the example programs says what it is; of another one the name of its trace is known. */
static const char *name_of(const ex_html_run *run) {
    return *run->program ? run->program : *run->name ? run->name : "run";
}

static const char *plural(uint64_t count) {
    return count == 1 ? "" : "s";
}

static double peak_of(const ex_html_run *run) {
    return ex_series_span(&run->series, EX_PEAK).max;
}

/* ---- head -------------------------------------------------------------------------------------- */

/* Of a rung, as docs/trace.md lists them. */
static const char *reason_in_words(const char *reason) {
    return strcmp(reason, "oom") == 0 ? "the device's memory ran out"
           : strcmp(reason, "budget") == 0
               ? "the smallest chunk did not fit into the device's budget"
           : strcmp(reason, "replay") == 0 ? "the run that it repeats did"
                                           : reason;
}

static void write_header(const ex_html_run *run, FILE *out) {
    static const char *const classes[] = {"running", "done", "stopped", "failed"};
    static const char *const words[] = {"running", "done", "stopped", "failed"};
    put("<header><h1>", name_of(run), "", out);
    if (*run->device) put(" on ", run->device, "", out);
    fprintf(out, "</h1><span class=\"pill %s\">%s</span>\n", classes[run->outcome],
            words[run->outcome]);
    if (*run->left) {
        put("<p>", run->asked, " was asked for, and is too small: ", out);
        put("", run->left, "</p>\n", out);
    }
    if (run->fell_at) {
        fprintf(out, "<p>From step %llu on it trained on the CPU",
                (unsigned long long)run->fell_at);
        put(": ", reason_in_words(run->fell_because), ".</p>\n", out);
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

static void write_plots(ex_html_run *const *runs, size_t count, FILE *out) {
    uint64_t steps = 0;
    for (size_t i = 0; i < count; i++) steps += runs[i]->steps;
    fprintf(out, "<section><h2>Over the steps</h2>\n");
    if (steps)
        ex_html_plots(runs, count, out);
    else
        fprintf(out, "<p class=\"none\">no step was completed</p>");
    fprintf(out, "</section>\n");
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

/* ---- what the pointer shows ---------------------------------------------------------------------- */

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
    write_range("validation loss ", &bucket->spans[EX_EVAL_LOSS], format_plain, out);
    write_range("learning rate ", &bucket->spans[EX_RATE], format_plain, out);
    if (bucket->marks[EX_OOM])
        fprintf(out, "; %llu OOM%s", (unsigned long long)bucket->marks[EX_OOM],
                plural(bucket->marks[EX_OOM]));
    fprintf(out, "\"%s", i + 1 < series->count ? ",\n" : "");
}

/* A name in quotes, for the script: what could end the quotes or the script is left out. */
static void write_name(const char *name, FILE *out) {
    fputc('"', out);
    for (; *name; name++)
        if (!strchr("\"\\<&", *name) && (unsigned char)*name >= 32) fputc(*name, out);
    fputc('"', out);
}

static void write_data(const ex_html_run *run, int is_named, FILE *out) {
    const ex_series *series = &run->series;
    fprintf(out, "{name:");
    write_name(is_named ? run->name : "", out);
    fprintf(out, ",base:%llu,width:%llu,before:[", (unsigned long long)series->base,
            (unsigned long long)series->width);
    for (size_t i = 0; i < series->count; i++)
        fprintf(out, i ? ",%.5g" : "%.5g", series->buckets[i].before);
    fprintf(out, "],texts:[\n");
    for (size_t i = 0; i < series->count; i++) write_text(series, i, out);
    fprintf(out, "]}");
}

static void write_script(ex_html_run *const *runs, size_t count, FILE *out) {
    const char *comma = "";
    fprintf(out, "<script>\nvar runs=[");
    for (size_t i = 0; i < count; i++) {
        if (!runs[i]->series.count) continue;
        fprintf(out, "%s", comma);
        write_data(runs[i], count > 1, out);
        comma = ",\n";
    }
    fprintf(out, "];\n");
    ex_html_script(out);
    fprintf(out, "</script>\n");
}

/* ---- several runs ------------------------------------------------------------------------------- */

static void write_row(const ex_html_run *run, size_t i, FILE *out) {
    char text[EX_FIGURE];
    ex_span chunks = ex_series_span(&run->series, EX_CHUNK);
    fprintf(out, "<tr><td><span class=\"legend\"><span><i style=\"background:var(%s)\"></i>",
            ex_html_colour(i));
    put("", run->name, "</span></span></td>", out);
    put("<td>", run->device, run->fell_at ? ", then cpu</td>" : "</td>", out);
    fprintf(out, "<td>%s</td>", ex_html_count(run->steps, text));
    write_value(run->last_loss, out);
    write_value(run->best_eval, out);
    fprintf(out, "<td>%s</td>", ex_html_bytes(peak_of(run), text));
    fprintf(out, "<td>%s</td>",
            run->budget_bytes > 0 ? ex_html_bytes(run->budget_bytes, text) : "-");
    fprintf(out, "<td>%.0f to %.0f</td>", chunks.min, chunks.max);
    fprintf(out, "<td>%s</td>", ex_html_count(run->marks[EX_OOM], text));
    fprintf(out, "<td>%s</td>", ex_html_count(run->discarded, text));
    fprintf(out, "<td>%s</td></tr>\n", ex_html_seconds(run->seconds, text));
}

static void write_runs(ex_html_run *const *runs, size_t count, FILE *out) {
    fprintf(out,
            "<header><h1>%zu runs</h1></header>\n<section><h2>Side by side</h2>\n"
            "<div class=\"wrap\"><table><tr><th>run</th><th>device</th><th>steps</th>"
            "<th>last loss</th><th>best validation loss</th><th>peak</th><th>budget</th>"
            "<th>samples of a chunk</th><th>OOMs</th><th>samples discarded</th>"
            "<th>time</th></tr>\n",
            count);
    for (size_t i = 0; i < count; i++) write_row(runs[i], i, out);
    fprintf(out, "</table></div></section>\n");
}

/* ---- the page ----------------------------------------------------------------------------------- */

static void write_tables(const ex_html_run *run, FILE *out) {
    write_epochs(run, out);
    write_events(run, out);
    write_settings(run, out);
}

static void write_one(ex_html_run *const *runs, FILE *out) {
    write_header(runs[0], out);
    write_tiles(runs[0], out);
    write_summary(runs[0], out);
    write_plots(runs, 1, out);
    write_tables(runs[0], out);
}

static void write_several(ex_html_run *const *runs, size_t count, FILE *out) {
    write_runs(runs, count, out);
    write_plots(runs, count, out);
    for (size_t i = 0; i < count; i++) {
        put("<details><summary>", runs[i]->name, "</summary>\n", out);
        write_header(runs[i], out);
        write_summary(runs[i], out);
        write_tables(runs[i], out);
        fprintf(out, "</details>\n");
    }
}

void ex_html_page(ex_html_run *const *runs, size_t count, int refresh, FILE *out) {
    const char *name = count > 1 ? "several runs" : name_of(runs[0]);
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
    if (refresh) fprintf(out, "<meta http-equiv=\"refresh\" content=\"%d\"/>\n", refresh);
    put("<title>", name, ": report of a run</title>\n", out);
    ex_html_style(out);
    fprintf(out, "</head>\n<body>\n<main>\n");
    if (count > 1)
        write_several(runs, count, out);
    else
        write_one(runs, out);
    put("<footer>libmemtrain ", mt_version_string(), "</footer>\n</main>\n", out);
    fprintf(out, "<div id=\"tip\" hidden=\"hidden\"></div>\n");
    write_script(runs, count, out);
    fprintf(out, "</body>\n</html>\n");
}
