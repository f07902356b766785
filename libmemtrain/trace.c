/*
 * trace.c - writes the trace: one JSON object a line, observations and decisions.
 *
 * docs/trace.md lists the events. Keys are stable; new ones may be added.
 */
#include "trainer_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- JSON -------------------------------------------------------------------------------------- */

static void put_string(mt__text *x, const char *key, const char *value) {
    mt__put(x, ",\"%s\":", key);
    mt__put_quoted(x, value ? value : "");
}

static void put_size(mt__text *x, const char *key, uint64_t value) {
    mt__put(x, ",\"%s\":%llu", key, (unsigned long long)value);
}

/* Above 2^63 - 1 as a string: many readers have no larger integers and would refuse the line. */
static void put_seed(mt__text *x, uint64_t seed) {
    const char *quote = seed > INT64_MAX ? "\"" : "";
    mt__put(x, ",\"seed\":%s%llu%s", quote, (unsigned long long)seed, quote);
}

/* A number that reads back bit-equal; null for what JSON has no number for. */
static void put_value(mt__text *x, double value) {
    char piece[40];
    if (!isfinite(value)) {
        mt__put(x, "null");
        return;
    }
    snprintf(piece, sizeof piece, "%.17g", value);
    /* The program may have set a locale in which the decimal point is another, of several bytes even. */
    size_t whole = strspn(piece, "-0123456789"), point = strcspn(piece + whole, "0123456789e");
    mt__put(x, "%.*s%s%s", (int)whole, piece, point ? "." : "", piece + whole + point);
}

static void put_double(mt__text *x, const char *key, double value) {
    mt__put(x, ",\"%s\":", key);
    put_value(x, value);
}

static void put_list(mt__text *x, const char *key, const size_t *values, size_t count) {
    mt__put(x, ",\"%s\":[", key);
    for (size_t i = 0; i < count; i++) mt__put(x, i ? ",%zu" : "%zu", values[i]);
    mt__put(x, "]");
}

static void put_metrics(mt__text *x, const char *key, const mt_trainer *t, const double *values) {
    mt__put(x, ",\"%s\":{", key);
    for (size_t i = 0; i < t->info.metric_count; i++) {
        const char *name = t->info.metric_names[i];
        if (i) mt__put(x, ",");
        mt__put_quoted(x, name ? name : "");
        mt__put(x, ":");
        put_value(x, values[i]);
    }
    mt__put(x, "}");
}

/* ---- lines ------------------------------------------------------------------------------------- */

/* NULL without a trace. */
static mt__text *start(mt_trainer *t, const char *event) {
    if (!t->options.trace) return NULL;
    t->text.length = 0;
    t->text.failed = 0;
    mt__put(&t->text, "{\"event\":\"%s\"", event);
    return &t->text;
}

static void finish(mt_trainer *t) {
    mt__put(&t->text, "}");
    if (!t->text.failed) t->options.trace(t->options.trace_user, t->text.data);
}

/* The number of the step that is under way; outside of one of the last, 0 before the first. */
static uint64_t current_step(const mt_trainer *t) {
    return t->run.steps + (t->in_step ? 1 : 0);
}

void mt__trace_run(mt_trainer *t, const mt_memory *memory) {
    mt__text *x = start(t, "run");
    if (!x) return;
    put_string(x, "version", mt_version_string());
    put_string(x, "torch", t->info.version);
    put_string(x, "device", t->info.device);
    put_size(x, "budget_bytes", memory->budget_bytes);
    if (t->options.batch) put_size(x, "batch", t->options.batch);
    put_seed(x, t->options.seed);
    put_size(x, "allocated_bytes", memory->allocated_bytes);
    put_size(x, "parameter_bytes", t->info.parameter_bytes);
    put_size(x, "gradient_bytes", t->info.gradient_bytes);
    put_size(x, "optimizer_bytes", t->info.optimizer_bytes);
    finish(t);
}

static int same_plan(const mt_plan *a, const mt_plan *b) {
    if (a->samples != b->samples || a->groups != b->groups || a->reason != b->reason ||
        a->keep != b->keep || a->alone != b->alone || a->rungs != b->rungs)
        return 0;
    return memcmp(a->group, b->group, a->groups * sizeof *a->group) == 0; /* it has no padding */
}

void mt__trace_plan(mt_trainer *t, const mt_plan *plan) {
    if (!t->options.trace || same_plan(plan, &t->traced)) return;
    t->traced = *plan;
    mt__text *x = start(t, "plan");
    put_size(x, "step", current_step(t));
    mt__put(x, ",\"chunks\":[");
    for (size_t i = 0, n = mt_plan_chunks(plan); i < n; i++)
        mt__put(x, i ? ",%zu" : "%zu", mt_plan_chunk(plan, i));
    mt__put(x, "]");
    put_string(x, "reason", mt_plan_reason_name(plan->reason));
    put_size(x, "predicted_peak_bytes", plan->predicted_peak_bytes);
    if (plan->discard) mt__put(x, ",\"discard\":true");
    if (plan->keep) mt__put(x, ",\"keep\":true");
    if (plan->alone) mt__put(x, ",\"alone\":true");
    finish(t);
}

void mt__trace_forced(mt_trainer *t) {
    mt__text *x = start(t, "plan");
    if (!x) return;
    put_size(x, "step", current_step(t));
    put_list(x, "chunks", t->forced.samples, t->forced.count);
    put_string(x, "reason", mt_plan_reason_name(MT_PLAN_REPLAY));
    put_size(x, "predicted_peak_bytes", 0);
    finish(t);
}

void mt__trace_oom(mt_trainer *t, const mt_oom *oom, mt_action action) {
    static const char *const actions[] = {"retry", "clear", "replan", "give_up"};
    mt__text *x = start(t, "oom");
    if (!x) return;
    put_size(x, "step", current_step(t));
    put_string(x, "phase", mt_phase_name(oom->phase));
    put_size(x, "chunk", oom->chunk);
    put_size(x, "requested_bytes", oom->refused_bytes);
    put_size(x, "allocated_bytes", oom->refused_in_use_bytes);
    put_size(x, "budget_bytes", oom->memory.budget_bytes);
    put_size(x, "attempt", oom->attempt);
    put_string(x, "action", actions[action]);
    finish(t);
}

void mt__trace_clear(mt_trainer *t, mt_clear_reason reason, const mt_clear_result *result) {
    mt__text *x = start(t, "clear");
    if (!x) return;
    put_size(x, "step", current_step(t));
    put_string(x, "reason", mt_clear_reason_name(reason));
    put_size(x, "released_bytes", result->released_bytes);
    put_double(x, "seconds", result->seconds);
    finish(t);
}

void mt__trace_rung(mt_trainer *t, mt_rung rung, int on, const char *reason) {
    mt__text *x = start(t, "rung");
    if (!x) return;
    put_size(x, "step", current_step(t));
    put_string(x, "name", mt_rung_name(rung));
    mt__put(x, ",\"on\":%s", on ? "true" : "false");
    put_string(x, "reason", reason);
    finish(t);
}

/* Rungs by name, and what a replay needs beside them; nothing where none is on. */
static void put_rungs(mt__text *x, unsigned rungs, double rate) {
    int some = 0;
    for (unsigned r = 0; r < MT_RUNGS; r++) {
        if (!(rungs & MT_RUNG_BIT(r))) continue;
        mt__put(x, some ? ",\"%s\"" : ",\"rungs\":[\"%s\"", mt_rung_name((mt_rung)r));
        some = 1;
    }
    if (some) mt__put(x, "]");
    if (rate != 1.0) put_double(x, "rate", rate);
}

void mt__trace_step(mt_trainer *t, const mt_step_report *report) {
    mt__text *x = start(t, "step");
    if (!x) return;
    put_size(x, "step", report->step);
    put_size(x, "epoch", t->epoch + 1);
    put_size(x, "samples", report->samples);
    put_list(x, "chunks", report->chunks, report->chunk_count);
    put_double(x, "loss", report->loss);
    put_metrics(x, "metrics", t, report->metrics);
    put_double(x, "seconds", report->seconds);
    put_size(x, "retries", report->retries);
    put_size(x, "discarded", report->discarded);
    if (report->skipped) mt__put(x, ",\"skipped\":true");
    put_rungs(x, report->rungs, report->rate);
    if (report->lr > 0) put_double(x, "lr", report->lr);
    put_double(x, "grad_norm", report->grad_norm);
    put_size(x, "predicted_peak_bytes", report->predicted_peak_bytes);
    put_size(x, "peak_bytes", report->peak_bytes);
    put_size(x, "allocated_bytes", report->allocated_bytes);
    put_size(x, "reserved_bytes", report->reserved_bytes);
    put_size(x, "budget_bytes", report->budget_bytes);
    finish(t);
}

void mt__trace_epoch(mt_trainer *t, const mt_epoch_report *report) {
    mt__text *x = start(t, "epoch");
    if (!x) return;
    put_size(x, "epoch", report->epoch);
    put_double(x, "loss", report->loss);
    put_metrics(x, "metrics", t, report->metrics);
    if (report->eval_samples) {
        put_double(x, "eval_loss", report->eval_loss);
        put_metrics(x, "eval_metrics", t, report->eval_metrics);
    }
    put_double(x, "seconds", report->seconds);
    put_size(x, "peak_bytes", report->peak_bytes);
    finish(t);
}

void mt__trace_end(mt_trainer *t) {
    const mt_run_report *r = &t->run;
    mt__text *x = start(t, "end");
    if (!x) return;
    put_size(x, "steps", r->steps);
    put_size(x, "samples_trained", r->samples_trained);
    put_size(x, "samples_discarded", r->samples_discarded);
    put_size(x, "ooms", r->ooms);
    put_size(x, "clears", r->clears);
    put_size(x, "peak_bytes", r->peak_bytes);
    put_size(x, "budget_bytes", r->budget_bytes);
    put_double(x, "seconds", r->seconds);
    put_string(x, "state_sha256", r->state_sha256);
    finish(t);
}
