/*
 * profoct_lines.c - what profoct prints of its own; see profoct.h.
 */
#include "profoct.h"

#include <math.h>

void profoct_introduce(void *self, const ex_training *run) {
    const profoct *p = self;
    (void)run;
    printf("%lld-way %lld-shot, %lld queries a class; classes: %zu for training, %zu for "
           "validation, %zu "
           "for tests; guessing is right for %.1f %%\n",
           (long long)p->shape.ways, (long long)p->shape.shots, (long long)p->shape.queries,
           p->classes.counts[EX_TRAIN_CLASSES], p->classes.counts[EX_VAL_CLASSES],
           p->classes.counts[EX_TEST_CLASSES], 100.0 / (double)p->shape.ways);
}

/* Half the width of the interval in which the mean lies 95 times of 100. */
static double half_interval(const mt_eval_report *report) {
    double mean = report->metrics[0], variance = report->metrics[1] - mean * mean;
    return 1.96 * sqrt(fmax(variance, 0) / (double)report->samples);
}

void profoct_result(const profoct *p) {
    if (!p->tested.samples) return;
    printf("test accuracy %.2f %%", 100 * p->tested.metrics[0]);
    if (p->tested.samples > 1) printf(" +- %.2f %%", 100 * half_interval(&p->tested));
    printf(" over %zu episode%s of classes that were never seen; guessing: %.1f %%\n",
           p->tested.samples, p->tested.samples == 1 ? "" : "s", 100.0 / (double)p->shape.ways);
}

void profoct_remedies(void *self, const ex_training *run) {
    const profoct *p = self;
    const double features = 512.0 * (double)(p->pool * p->pool);
    char matrix[32];
    (void)run;
    if (p->by_matrix)
        fprintf(stderr, "  --covariance rows    the same numbers without a matrix of %s\n",
                mt_format_size((uint64_t)(4 * features * features), matrix, sizeof matrix));
    if (p->shape.queries > 8)
        fprintf(stderr,
                "  --n_query 8          an episode is never cut, and has fewer pictures then\n");
    if (p->depth > 18) fprintf(stderr, "  --backbone ResNet18  has about half the parameters\n");
}
