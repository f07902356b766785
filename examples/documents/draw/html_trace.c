/*
 * html_trace.c - reads the events of a trace as they come; see html_trace.h.
 */
#include "html_trace.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS_MOST = 64, VALUE_MOST = 4096 }; /* chunks that are put in words; bytes of a setting */

const char *const ex_html_actions[EX_HTML_ACTIONS] = {"retry", "clear", "replan", "give_up"};
const char *const ex_html_reasons[EX_HTML_REASONS] = {"start",  "throughput", "growth", "oom",
                                                      "budget", "replay",     "user"};

/* ---- JSON -------------------------------------------------------------------------------------- */

/* NaN where there is no number. */
static double number(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static double at_least_0(double value) {
    return value > 0 ? value : 0; /* also for NaN */
}

static uint64_t whole(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
    return n > 0 ? (uint64_t)n : 0;
}

static const char *word(const json_t *line, const char *key) {
    const char *text = json_string_value(json_object_get(line, key));
    return text ? text : "";
}

/* ---- settings ---------------------------------------------------------------------------------- */

static void append(char *text, size_t capacity, const char *more) {
    size_t used = strlen(text);
    ex_html_cut(more, text + used, capacity - used);
}

static void append_value(const char *key, const json_t *value, char *text, size_t capacity) {
    char piece[EX_FIGURE];
    size_t length = strlen(key), i;
    const json_t *item;
    if (json_is_string(value)) append(text, capacity, json_string_value(value));
    if (json_is_boolean(value)) append(text, capacity, json_is_true(value) ? "yes" : "no");
    if (json_is_number(value) && length > 6 && strcmp(key + length - 6, "_bytes") == 0)
        append(text, capacity, ex_html_bytes(json_number_value(value), piece));
    else if (json_is_number(value)) {
        snprintf(piece, sizeof piece, "%.15g", json_number_value(value));
        append(text, capacity, piece);
    }
    json_array_foreach(value, i, item) {
        if (i) append(text, capacity, " ");
        if (!json_is_array(item)) append_value("", item, text, capacity);
    }
}

/* "parameter_bytes" is "parameters" to people, or nearly. */
static void name_setting(const char *key, char name[EX_HTML_NAME]) {
    ex_html_cut(key, name, EX_HTML_NAME);
    size_t length = strlen(name);
    if (length > 6 && strcmp(name + length - 6, "_bytes") == 0) name[length - 6] = '\0';
    for (char *c = name; *c; c++)
        if (*c == '_') *c = ' ';
}

/* Some flags stand in more than one line. */
static int is_there(const ex_html_run *run, const char *name, const char *value) {
    for (size_t i = 0; i < run->setting_count; i++)
        if (strcmp(run->settings[i].name, name) == 0 && strcmp(run->settings[i].value, value) == 0)
            return 1;
    return 0;
}

static void add_setting(ex_html_run *run, const char *key, const json_t *value) {
    static char text[VALUE_MOST];
    if (run->setting_count == EX_HTML_SETTINGS) return;
    *text = '\0';
    append_value(key, value, text, sizeof text);
    ex_html_setting *setting = &run->settings[run->setting_count];
    name_setting(key, setting->name);
    if (!*text || is_there(run, setting->name, text)) return;
    setting->value = strdup(text);
    run->setting_count += setting->value != NULL;
}

/* What stands in an object, as the flags of a program do, is a row each. */
static void add_settings(ex_html_run *run, json_t *line) {
    const char *key;
    json_t *value;
    json_object_foreach(line, key, value) {
        if (json_is_object(value))
            add_settings(run, value);
        else if (strcmp(key, "event") != 0)
            add_setting(run, key, value);
    }
}

/* ---- events ------------------------------------------------------------------------------------ */

static void on_run(ex_html_run *run, json_t *line) {
    add_settings(run, line);
    ex_html_cut(word(line, "device"), run->device, sizeof run->device);
    ex_html_cut(word(line, "version"), run->version, sizeof run->version);
    run->batch = whole(line, "batch");
    run->budget_bytes = at_least_0(number(line, "budget_bytes"));
    run->parameter_bytes = at_least_0(number(line, "parameter_bytes"));
    run->gradient_bytes = at_least_0(number(line, "gradient_bytes"));
    run->optimizer_bytes = at_least_0(number(line, "optimizer_bytes"));
}

static void on_program(ex_html_run *run, json_t *line) {
    add_settings(run, line);
    ex_html_cut(word(line, "name"), run->program, sizeof run->program);
    ex_html_cut(word(line, "device_asked"), run->asked, sizeof run->asked);
    ex_html_cut(word(line, "device_left"), run->left, sizeof run->left);
}

static void on_plan(ex_html_run *run, json_t *line) {
    for (int i = 0; i < EX_HTML_REASONS; i++)
        run->plans[i] += strcmp(word(line, "reason"), ex_html_reasons[i]) == 0;
}

/* A mark at the step of the line; its words are to be written to what is returned. */
static char *add_event(ex_html_run *run, json_t *line, ex_mark kind) {
    static char beyond[EX_HTML_TEXT];
    uint64_t step = whole(line, "step");
    ex_bucket *bucket = ex_series_at(&run->series, step);
    if (bucket) bucket->marks[kind]++;
    run->marks[kind]++;
    if (run->event_count++ >= EX_HTML_EVENTS) return beyond;
    ex_html_event *event = &run->events[run->event_count - 1];
    event->step = step;
    event->kind = kind;
    return event->text;
}

static void on_oom(ex_html_run *run, json_t *line) {
    char requested[EX_FIGURE], allocated[EX_FIGURE], budget[EX_FIGURE];
    char *text = add_event(run, line, EX_OOM);
    double in_use = at_least_0(number(line, "allocated_bytes"));
    for (int i = 0; i < EX_HTML_ACTIONS; i++)
        run->actions[i] += strcmp(word(line, "action"), ex_html_actions[i]) == 0;
    ex_html_bytes(at_least_0(number(line, "requested_bytes")), requested);
    ex_html_bytes(in_use, allocated);
    ex_html_bytes(at_least_0(number(line, "budget_bytes")), budget);
    int used = snprintf(text, EX_HTML_TEXT, "%.12s", word(line, "phase"));
    if (whole(line, "chunk"))
        used += snprintf(text + used, EX_HTML_TEXT - (size_t)used, ", chunk of %llu",
                         (unsigned long long)whole(line, "chunk"));
    if (in_use > 0)
        used += snprintf(text + used, EX_HTML_TEXT - (size_t)used, ": %s more on %s of %s",
                         requested, allocated, budget);
    snprintf(text + used, EX_HTML_TEXT - (size_t)used, "; %.12s", word(line, "action"));
}

static void on_clear(ex_html_run *run, json_t *line) {
    char released[EX_FIGURE], seconds[EX_FIGURE];
    char *text = add_event(run, line, EX_CLEAR);
    run->clear_seconds += at_least_0(number(line, "seconds"));
    snprintf(text, EX_HTML_TEXT, "%.12s: %s released in %s", word(line, "reason"),
             ex_html_bytes(at_least_0(number(line, "released_bytes")), released),
             ex_html_seconds(at_least_0(number(line, "seconds")), seconds));
}

static void on_rung(ex_html_run *run, json_t *line) {
    char name[EX_HTML_NAME], reason[EX_HTML_NAME];
    char *text = add_event(run, line, EX_RUNG);
    ex_html_cut(word(line, "name"), name, sizeof name);
    ex_html_cut(word(line, "reason"), reason, sizeof reason);
    int on = json_is_true(json_object_get(line, "on"));
    snprintf(text, EX_HTML_TEXT, "%s %s%s%s", name, on ? "on" : "off", *reason ? ": " : "", reason);
    if (strcmp(name, "cpu") != 0 || !on) return;
    run->fell_at = whole(line, "step");
    memcpy(run->fell_because, reason, sizeof reason);
}

static void add_chunks(ex_bucket *bucket, const json_t *chunks) {
    size_t sizes[CHUNKS_MOST], count = json_array_size(chunks), i;
    const json_t *chunk;
    json_array_foreach(chunks, i, chunk) {
        json_int_t samples = json_integer_value(chunk);
        if (samples > 0) ex_bucket_add(bucket, EX_CHUNK, (double)samples);
        if (i < CHUNKS_MOST) sizes[i] = samples > 0 ? (size_t)samples : 0;
    }
    bucket->chunks[0] = '\0';
    if (bucket->steps == 1 && count <= CHUNKS_MOST)
        ex_html_chunks(sizes, count, bucket->chunks, sizeof bucket->chunks);
}

/* The budget may be another one at each step. */
static void note_share(ex_html_run *run, double peak, double budget) {
    if (!(budget > 0)) return;
    run->budget_bytes = budget;
    if (peak > 0) run->most_used = fmax(run->most_used, peak / budget);
}

static void note_prediction(ex_html_run *run, const json_t *line) {
    double predicted = number(line, "predicted_peak_bytes"), peak = number(line, "peak_bytes");
    if (!(predicted > 0) || !(peak > 0)) return;
    run->worst_prediction = fmax(run->worst_prediction, fabs(predicted - peak) / peak);
}

static void note_savers(ex_html_run *run, const json_t *names) {
    char name[EX_HTML_NAME];
    const json_t *item;
    size_t i, known;
    json_array_foreach(names, i, item) {
        if (!json_is_string(item)) continue;
        ex_html_cut(json_string_value(item), name, sizeof name);
        for (known = 0; known < run->saver_count; known++)
            if (strcmp(run->savers[known].name, name) == 0) break;
        if (known == EX_HTML_SAVERS) continue;
        if (known == run->saver_count) strcpy(run->savers[run->saver_count++].name, name);
        run->savers[known].steps++;
    }
}

/* Metrics have the same order in each line. */
static double first_of(json_t *metrics) {
    const json_t *value = json_object_iter_value(json_object_iter(metrics));
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void on_step(ex_html_run *run, json_t *line) {
    ex_bucket *bucket = ex_series_at(&run->series, whole(line, "step"));
    double budget = number(line, "budget_bytes"), peak = number(line, "peak_bytes");
    if (!bucket) return;
    bucket->steps++;
    add_chunks(bucket, json_object_get(line, "chunks"));
    ex_bucket_add(bucket, EX_PEAK, peak);
    ex_bucket_add(bucket, EX_STATE, number(line, "allocated_bytes"));
    if (budget > 0) ex_bucket_add(bucket, EX_BUDGET, budget);
    ex_bucket_add(bucket, EX_TIME, number(line, "seconds"));
    ex_bucket_add(bucket, EX_LOSS, number(line, "loss"));
    ex_bucket_add(bucket, EX_RATE, number(line, "lr"));
    ex_bucket_add(bucket, EX_METRIC, first_of(json_object_get(line, "metrics")));
    run->last_loss = number(line, "loss");
    note_prediction(run, line);
    note_savers(run, json_object_get(line, "rungs"));
    note_share(run, peak, budget);
    run->steps++;
    run->samples += whole(line, "samples");
    run->discarded += whole(line, "discarded");
    run->skipped += json_is_true(json_object_get(line, "skipped"));
    run->seconds += at_least_0(number(line, "seconds"));
}

/* The names are those of the first epoch; later values are found by them. */
static void read_metrics(ex_html_run *run, json_t *metrics, double *values) {
    const char *key;
    json_t *value;
    if (!run->epoch_total && !run->metric_count) json_object_foreach(metrics, key, value) {
            if (run->metric_count == MT_METRICS_MAX) break;
            ex_html_cut(key, run->metric_names[run->metric_count++], EX_HTML_NAME);
        }
    for (size_t i = 0; i < run->metric_count; i++)
        values[i] = number(metrics, run->metric_names[i]);
}

/* The table is full: every second epoch goes. */
static void thin_epochs(ex_html_run *run) {
    for (size_t i = 0; 2 * i < run->epoch_count; i++) run->epochs[i] = run->epochs[2 * i];
    run->epoch_count = (run->epoch_count + 1) / 2;
    run->epoch_stride *= 2;
}

/* It stands behind the last step. */
static void note_evaluation(ex_html_run *run, const ex_html_epoch *epoch, const json_t *line) {
    if (!(run->best_eval <= epoch->eval_loss)) run->best_eval = epoch->eval_loss;
    if (!run->series.count) return;
    ex_bucket *bucket = ex_series_at(&run->series, run->series.last);
    bucket->marks[EX_EPOCH]++;
    ex_bucket_add(bucket, EX_EVAL_LOSS, epoch->eval_loss);
    ex_bucket_add(bucket, EX_EVAL_METRIC, first_of(json_object_get(line, "eval_metrics")));
}

static void on_epoch(ex_html_run *run, json_t *line) {
    ex_html_epoch *epoch = &run->last_epoch;
    epoch->epoch = whole(line, "epoch");
    epoch->loss = number(line, "loss");
    epoch->eval_loss = number(line, "eval_loss");
    epoch->seconds = at_least_0(number(line, "seconds"));
    epoch->peak_bytes = at_least_0(number(line, "peak_bytes"));
    read_metrics(run, json_object_get(line, "metrics"), epoch->metrics);
    read_metrics(run, json_object_get(line, "eval_metrics"), epoch->eval_metrics);
    note_evaluation(run, epoch, line);
    if (run->epoch_count == EX_HTML_EPOCHS) thin_epochs(run);
    if (run->epoch_total++ % run->epoch_stride == 0) run->epochs[run->epoch_count++] = *epoch;
}

/* Its figures are the trainer's own: they know of work that no step line tells. */
static void on_end(ex_html_run *run, json_t *line) {
    run->has_ended = 1;
    run->samples = whole(line, "samples_trained");
    run->discarded = whole(line, "samples_discarded");
    run->seconds = at_least_0(number(line, "seconds"));
    ex_html_cut(word(line, "state_sha256"), run->state_sha256, sizeof run->state_sha256);
}

static const struct {
    const char *name;
    void (*read)(ex_html_run *run, json_t *line);
} events[] = {
    {"step", on_step},   {"plan", on_plan},       {"oom", on_oom},
    {"clear", on_clear}, {"rung", on_rung},       {"epoch", on_epoch},
    {"run", on_run},     {"program", on_program}, {"end", on_end},
};

/* ---- public ------------------------------------------------------------------------------------ */

void ex_html_run_begin(ex_html_run *run) {
    memset(run, 0, sizeof *run);
    run->epoch_stride = 1;
    run->worst_prediction = -1;
    run->last_loss = run->best_eval = NAN;
}

void ex_html_run_end(ex_html_run *run) {
    for (size_t i = 0; i < run->setting_count; i++) free(run->settings[i].value);
    ex_series_clear(&run->series);
    ex_html_run_begin(run);
}

/* A file may hold runs one behind the other: what is drawn is the last. */
static void begin_again(ex_html_run *run) {
    uint64_t restarts = run->restarts + 1;
    ex_html_run_end(run);
    run->restarts = restarts;
}

ex_html_line ex_html_run_line(ex_html_run *run, const char *line) {
    json_t *object = json_loads(line, 0, NULL);
    const char *event = json_is_object(object) ? word(object, "event") : "";
    ex_html_line result = json_is_object(object) ? EX_LINE_UNKNOWN : EX_LINE_NOT_JSON;
    if (strcmp(event, "run") == 0 && run->has_begun) begin_again(run);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (strcmp(event, events[i].name) != 0) continue;
        events[i].read(run, object);
        result = strcmp(event, "epoch") == 0 ? EX_LINE_EPOCH : EX_LINE_EVENT;
        run->has_begun = 1;
    }
    json_decref(object);
    return result;
}
