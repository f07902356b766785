/*
 * prsmed_half.c - whether --text-type bf16 is worth it here; see prsmed.h.
 */
#include "prsmed.h"

#include <stdio.h>

/* Below that the casts that float32 needs make up for it. */
#define SLOW 2.0

int prsmed_slow_half(double ratio, char *text, size_t capacity) {
    if (!(ratio > SLOW)) return 0;
    snprintf(text, capacity,
             "--text-type bf16: products in bfloat16 take %.1f times as long on this processor as "
             "in float32; --text-type float32 is faster",
             ratio);
    return 1;
}
