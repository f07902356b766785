/*
 * html_page.h - the report of one run or several as one page of HTML: plots, what the budget did, epochs, events and
 * settings. Nothing is fetched; a script shows figures below the pointer, and without it all else is there.
 */
#ifndef EX_HTML_PAGE_H
#define EX_HTML_PAGE_H

#include "html_text.h"
#include "series.h"

#include <memtrain/backend.h> /* MT_METRICS_MAX */

enum {
    EX_HTML_EPOCHS = 128, /* in the table; of more, each second one, fourth, ... and the last */
    EX_HTML_EVENTS = 100, /* the first ones */
    EX_HTML_SETTINGS = 64,
    EX_HTML_SAVERS = 8,
    EX_HTML_NAME = 48,
    EX_HTML_TEXT = 160,
    EX_HTML_RUNS = 8 /* on one page */
};

typedef struct ex_html_epoch {
    uint64_t epoch;
    double loss, eval_loss; /* NaN: none */
    double metrics[MT_METRICS_MAX], eval_metrics[MT_METRICS_MAX];
    double seconds, peak_bytes;
} ex_html_epoch;

typedef struct ex_html_event {
    uint64_t step;
    ex_mark kind;
    char text[EX_HTML_TEXT];
} ex_html_event;

typedef struct ex_html_setting {
    char name[EX_HTML_NAME];
    char *value; /* owned */
} ex_html_setting;

typedef enum ex_html_outcome {
    EX_HTML_RUNNING = 0,
    EX_HTML_DONE,
    EX_HTML_STOPPED,
    EX_HTML_FAILED
} ex_html_outcome;

/* A memory saver and the steps that it was on in. */
typedef struct ex_html_saver {
    char name[EX_HTML_NAME];
    uint64_t steps;
} ex_html_saver;

/* Words of the trace, counted. */
enum { EX_HTML_ACTIONS = 4, EX_HTML_REASONS = 7 };
extern const char *const ex_html_actions[EX_HTML_ACTIONS];
extern const char *const ex_html_reasons[EX_HTML_REASONS];

/* What is known of a run; zero is a run of which nothing is. */
typedef struct ex_html_run {
    ex_series series;
    char name[EX_HTML_TEXT]; /* what it is called where there are several */
    char program[EX_HTML_NAME], device[EX_HTML_NAME];
    char version[EX_HTML_NAME]; /* of the library that wrote the trace */
    char asked[EX_HTML_NAME],
        left[EX_HTML_TEXT]; /* device of --device; why it was left, "": it was not */
    ex_html_setting settings[EX_HTML_SETTINGS];
    size_t setting_count;
    double parameter_bytes, gradient_bytes, optimizer_bytes, budget_bytes;
    uint64_t batch;

    char metric_names[MT_METRICS_MAX][EX_HTML_NAME];
    size_t metric_count;
    ex_html_epoch epochs[EX_HTML_EPOCHS], last_epoch;
    size_t epoch_count; /* in the table */
    uint64_t epoch_total, epoch_stride;

    ex_html_event events[EX_HTML_EVENTS];
    uint64_t event_count; /* of them all */

    uint64_t steps, samples, discarded, skipped;
    uint64_t marks[EX_MARKS], actions[EX_HTML_ACTIONS], plans[EX_HTML_REASONS];
    ex_html_saver savers[EX_HTML_SAVERS];
    size_t saver_count;
    uint64_t fell_at; /* the step in which it last went on on the CPU; 0: it did not */
    char fell_because[EX_HTML_NAME];
    double last_loss, best_eval; /* of the last step; the least of an evaluation. NaN: none */
    double seconds, clear_seconds;
    double most_used;        /* largest share of the budget of its step that a peak took */
    double worst_prediction; /* share that a predicted peak was off by; -1: none was predicted */
    char state_sha256[65];

    int has_begun, has_ended; /* its trace has an event; the last line */
    uint64_t restarts;        /* runs before it in its trace */
    ex_html_outcome outcome;
    char outcome_text[512];
} ex_html_run;

/*
 * Writes the page of 1 to EX_HTML_RUNS runs, laid over one another.
 * @param refresh  seconds after which a browser reads the page again; 0: never
 */
void ex_html_page(ex_html_run *const *runs, size_t count, int refresh, FILE *out);

/* The plots alone, as an SVG that needs no page. */
void ex_svg_page(ex_html_run *const *runs, size_t count, FILE *out);

#endif
