/*
 * series.h - what happened over the steps of a run, in bounded room: at most EX_BUCKETS buckets, each
 * for the same number of steps. When they are all taken, two become one, and none of the extremes
 * is lost.
 */
#ifndef EX_SERIES_H
#define EX_SERIES_H

#include <stddef.h>
#include <stdint.h>

enum { EX_BUCKETS = 1000 };

/* What is measured of a step. */
typedef enum ex_measure {
    EX_CHUNK = 0, /* samples of a chunk: as many values as chunks */
    EX_PEAK,
    EX_STATE, /* allocated after the step */
    EX_BUDGET,
    EX_TIME,
    EX_LOSS,
    EX_RATE,        /* learning rate of the update */
    EX_METRIC,      /* the first of the metrics */
    EX_EVAL_LOSS,   /* of an evaluation, at the last step before it */
    EX_EVAL_METRIC, /* likewise */
    EX_MEASURES
} ex_measure;

/* What is counted. */
typedef enum ex_mark { EX_OOM = 0, EX_CLEAR, EX_RUNG, EX_EPOCH, EX_MARKS } ex_mark;

typedef struct ex_span {
    double min, max, sum;
    uint64_t count; /* 0: no value, the others are 0 */
} ex_span;

typedef struct ex_bucket {
    ex_span spans[EX_MEASURES];
    uint64_t marks[EX_MARKS];
    uint64_t steps;  /* that went through */
    double before;   /* seconds of all steps before it, once ex_series_sum was called */
    char chunks[32]; /* of its one step, as ex_html_chunks writes them; else "" */
} ex_bucket;

/* Zero-initialised it is empty. */
typedef struct ex_series {
    ex_bucket *buckets;
    size_t count;         /* buckets from the first on that a step belongs to */
    uint64_t base, width; /* the first step, and the steps of a bucket */
    uint64_t last;        /* the last step that was heard of */
} ex_series;

/*
 * The bucket that a step belongs to; it makes room for steps that come after all before, and gives
 * the first bucket for one that comes before the first.
 * @return NULL without host memory; valid until the next call
 */
ex_bucket *ex_series_at(ex_series *series, uint64_t step);

/* Leaves out a value that is not finite, and a negative one where it cannot be: losses and metrics may be. */
void ex_bucket_add(ex_bucket *bucket, ex_measure measure, double value);

/* First and last step of a bucket. */
uint64_t ex_series_first(const ex_series *series, size_t i);
uint64_t ex_series_last(const ex_series *series, size_t i);

/* Over all buckets. */
ex_span ex_series_span(const ex_series *series, ex_measure measure);

/* Fills in `before` of each bucket. @return the seconds of all steps */
double ex_series_sum(ex_series *series);

/* Leaves it empty. */
void ex_series_clear(ex_series *series);

#endif
