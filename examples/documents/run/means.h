/*
 * means.h - one evaluation made of those of its batches.
 *
 * A report has means alone; what a metric's sum was divided by in it (mt_backend_info.metric_over) gives the
 * sum back, and the sums of all batches the mean over them: an IoU is one of areas, not of batches.
 */
#ifndef EX_MEANS_H
#define EX_MEANS_H

#include <memtrain/trainer.h>

typedef struct ex_means {
    const int *over; /* as mt_backend_info.metric_over; NULL: samples. Borrowed */
    size_t count;    /* of the metrics */
    double units, loss, sums[MT_METRICS_MAX];
    mt_eval_report total; /* samples, seconds, retries, chunks and the highest peak */
} ex_means;

/* What the backend says of its metrics. */
void ex_means_init(ex_means *means, const mt_backend_info *info);

/* Adds a batch. units: what its loss is a mean over. A mean of nothing is no number and adds nothing. */
void ex_means_add(ex_means *means, const mt_eval_report *report, double units);

/* Means over all that was added; NaN where there was nothing. */
mt_eval_report ex_means_of(const ex_means *means);

#endif
