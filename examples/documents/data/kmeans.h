/*
 * kmeans.h - the middle of so many groups of sizes (Lloyd 1982).
 */
#ifndef EX_KMEANS_H
#define EX_KMEANS_H

#include <stddef.h>

typedef struct ex_size {
    double width, height;
} ex_size;

/*
 * Groups sizes around means and writes these, from the smallest to the largest area. The first ones are
 * sizes at equal steps of the order by area, so the same sizes give the same means in whatever order they
 * come. sizes is sorted on return.
 * @param count  at least 1 and at least as many as means
 */
void ex_kmeans(ex_size *sizes, size_t count, ex_size *means, size_t mean_count);

#endif
