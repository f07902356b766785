/*
 * series.c - buckets that become wider as a run becomes longer; see series.h.
 */
#include "series.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void join_spans(ex_span *into, const ex_span *other) {
    if (!other->count) return;
    if (!into->count) {
        *into = *other;
        return;
    }
    into->min = fmin(into->min, other->min);
    into->max = fmax(into->max, other->max);
    into->sum += other->sum;
    into->count += other->count;
}

static void join(ex_bucket *into, const ex_bucket *other) {
    for (int m = 0; m < EX_MEASURES; m++) join_spans(&into->spans[m], &other->spans[m]);
    for (int k = 0; k < EX_MARKS; k++) into->marks[k] += other->marks[k];
    if (into->steps && other->steps)
        into->chunks[0] = '\0';
    else if (other->steps)
        memcpy(into->chunks, other->chunks, sizeof into->chunks);
    into->steps += other->steps;
}

/* Two neighbours become one, and the second half is free. */
static void widen(ex_series *series) {
    ex_bucket *b = series->buckets;
    size_t kept = (series->count + 1) / 2;
    for (size_t i = 0; i < kept; i++) {
        ex_bucket joined = b[2 * i];
        if (2 * i + 1 < series->count) join(&joined, &b[2 * i + 1]);
        b[i] = joined;
    }
    memset(b + kept, 0, (series->count - kept) * sizeof *b);
    series->count = kept;
    series->width *= 2;
}

static int begin(ex_series *series, uint64_t step) {
    series->buckets = calloc(EX_BUCKETS, sizeof *series->buckets);
    series->base = series->last = step;
    series->width = 1;
    return series->buckets != NULL;
}

ex_bucket *ex_series_at(ex_series *series, uint64_t step) {
    if (!series->buckets && !begin(series, step)) return NULL;
    if (step < series->base) step = series->base;
    if (step > series->last) series->last = step;
    while ((step - series->base) / series->width >= EX_BUCKETS) widen(series);
    size_t i = (size_t)((step - series->base) / series->width);
    if (i >= series->count) series->count = i + 1;
    return &series->buckets[i];
}

void ex_bucket_add(ex_bucket *bucket, ex_measure measure, double value) {
    ex_span one = {value, value, value, 1};
    int is_signed = measure == EX_LOSS || measure >= EX_METRIC;
    if (!isfinite(value) || (value < 0 && !is_signed)) return;
    join_spans(&bucket->spans[measure], &one);
}

uint64_t ex_series_first(const ex_series *series, size_t i) {
    return series->base + i * series->width;
}

uint64_t ex_series_last(const ex_series *series, size_t i) {
    uint64_t last = ex_series_first(series, i) + series->width - 1;
    return last < series->last ? last : series->last;
}

ex_span ex_series_span(const ex_series *series, ex_measure measure) {
    ex_span all = {0, 0, 0, 0};
    for (size_t i = 0; i < series->count; i++) join_spans(&all, &series->buckets[i].spans[measure]);
    return all;
}

double ex_series_sum(ex_series *series) {
    double seconds = 0;
    for (size_t i = 0; i < series->count; i++) {
        series->buckets[i].before = seconds;
        seconds += series->buckets[i].spans[EX_TIME].sum;
    }
    return seconds;
}

void ex_series_clear(ex_series *series) {
    free(series->buckets);
    memset(series, 0, sizeof *series);
}
