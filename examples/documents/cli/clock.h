/*
 * clock.h - time for people, in seconds from some moment on.
 */
#ifndef EX_CLOCK_H
#define EX_CLOCK_H

#include <time.h>

static inline double ex_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
