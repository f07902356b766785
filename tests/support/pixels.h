/* pixels.h - pixels of a decoded image. */
#ifndef MEMTRAIN_TESTS_PIXELS_H
#define MEMTRAIN_TESTS_PIXELS_H

#include "image.h"
#include "suite.h"

static inline const unsigned char *pixel_at(const ex_image *image, int x, int y) {
    return image->pixels + ((size_t)y * (size_t)image->width + (size_t)x) * 3;
}

/* Asserts only on failure: every ck_assert that passes costs a write to the parent process. */
static inline void check_pixel(const ex_image *image, int x, int y, const unsigned char *expected,
                               int tolerance) {
    const unsigned char *got = pixel_at(image, x, y);

    for (int c = 0; c < 3; c++) {
        if (abs(got[c] - expected[c]) > tolerance) {
            ck_abort_msg("(%d, %d)[%d]: %d, expected %d", x, y, c, got[c], expected[c]);
        }
    }
}

#endif
