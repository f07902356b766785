/*
 * means.c - see means.h.
 */
#include "means.h"

#include <math.h>

void ex_means_init(ex_means *means, const mt_backend_info *info) {
    *means = (ex_means){info->metric_over, info->metric_count, .total = MT_EVAL_REPORT_INIT};
}

/* What a metric's sum is divided by. */
static int over_of(const ex_means *means, size_t metric) {
    return means->over ? means->over[metric] : MT_OVER_SAMPLES;
}

/* The sum of a metric of a batch. depth bounds metrics that are over each other. */
static double sum_of(const ex_means *means, const mt_eval_report *report, double units,
                     size_t metric, int depth) {
    const int over = over_of(means, metric);
    double by = (double)report->samples;
    if (over == MT_OVER_UNITS) by = units;
    if (over >= 0 && depth < MT_METRICS_MAX)
        by = sum_of(means, report, units, (size_t)over, depth + 1);
    return by != 0 ? report->metrics[metric] * by : 0;
}

void ex_means_add(ex_means *means, const mt_eval_report *report, double units) {
    mt_eval_report *total = &means->total;
    for (size_t i = 0; i < means->count; i++) means->sums[i] += sum_of(means, report, units, i, 0);
    if (units > 0) means->loss += units * report->loss;
    means->units += units;
    total->samples += report->samples;
    total->seconds += report->seconds;
    total->retries += report->retries;
    total->chunk_count += report->chunk_count;
    if (report->peak_bytes > total->peak_bytes) total->peak_bytes = report->peak_bytes;
}

static double mean(double sum, double by) {
    return by != 0 ? sum / by : (double)NAN;
}

mt_eval_report ex_means_of(const ex_means *means) {
    mt_eval_report out = means->total;
    out.loss = mean(means->loss, means->units);
    for (size_t i = 0; i < means->count; i++) {
        const int over = over_of(means, i);
        double by = over == MT_OVER_UNITS ? means->units : (double)out.samples;
        if (over >= 0) by = means->sums[over];
        out.metrics[i] = mean(means->sums[i], by);
    }
    return out;
}
