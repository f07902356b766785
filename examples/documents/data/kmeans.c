/*
 * kmeans.c - Lloyd's iteration for sizes; see kmeans.h.
 */
#include "kmeans.h"

#include <stdlib.h>

enum { ROUNDS = 50 }; /* a few dozen sizes settle in ten */

static int compare(double a, double b) {
    return (a > b) - (a < b);
}

static int by_area(const void *left, const void *right) {
    const ex_size *a = left, *b = right;
    int order = compare(a->width * a->height, b->width * b->height);
    return order ? order : compare(a->width, b->width);
}

static double distance(const ex_size *a, const ex_size *b) {
    double width = a->width - b->width, height = a->height - b->height;
    return width * width + height * height;
}

static size_t nearest(const ex_size *size, const ex_size *means, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (distance(size, &means[i]) < distance(size, &means[best])) best = i;
    return best;
}

/* The mean of those that are nearest to means[which]; it stays where there are none. */
static ex_size centre(const ex_size *sizes, size_t count, const ex_size *means, size_t mean_count,
                      size_t which) {
    ex_size sum = {0, 0};
    size_t members = 0;
    for (size_t i = 0; i < count; i++) {
        if (nearest(&sizes[i], means, mean_count) != which) continue;
        sum.width += sizes[i].width;
        sum.height += sizes[i].height;
        members++;
    }
    if (!members) return means[which];
    return (ex_size){sum.width / (double)members, sum.height / (double)members};
}

void ex_kmeans(ex_size *sizes, size_t count, ex_size *means, size_t mean_count) {
    qsort(sizes, count, sizeof *sizes, by_area);
    for (size_t i = 0; i < mean_count; i++)
        means[i] = sizes[(2 * i + 1) * count / (2 * mean_count)];
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < mean_count; i++)
            means[i] = centre(sizes, count, means, mean_count, i);
    qsort(means, mean_count, sizeof *means, by_area);
}
