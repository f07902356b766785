/*
 * view.c - squares of pictures, plain and at random; see view.h.
 */
#include "view.h"

#include <math.h>
#include <string.h>

#define MAX_ASPECT 4 /* of kept pictures: long side over short side */

/* What the random numbers of one sample are used for. */
enum { STREAM_SHUFFLE = 1, STREAM_AREA, STREAM_ASPECT, STREAM_X, STREAM_Y, STREAM_FLIP };

ex_status ex_view_shrink(ex_image *image, int side) {
    double low = fmin(image->width, image->height);
    double high = fmax(image->width, image->height);
    double scale = fmin(side / low, (double)MAX_ASPECT * side / high);
    ex_image smaller;
    if (scale >= 1.0) return EX_OK;
    ex_status status = ex_image_resize(image, NULL, (int)fmax(round(image->width * scale), 1.0),
                                       (int)fmax(round(image->height * scale), 1.0), &smaller);
    if (status != EX_OK) return status;
    ex_image_clear(image);
    *image = smaller;
    return EX_OK;
}

/* What of the picture (or around it) the network sees when nothing is drawn. */
static ex_box plain_box(const ex_image *image, ex_fit fit) {
    double width = image->width, height = image->height;
    double side = fit == EX_FIT_PAD ? fmax(width, height) : fmin(width, height);
    if (fit == EX_FIT_SQUASH) return (ex_box){0.0, 0.0, width, height};
    return (ex_box){(width - side) / 2.0, (height - side) / 2.0, side, side};
}

static double unit(const ex_draw *draw, uint64_t stream) {
    return ex_random_unit(draw->seed, draw->epoch, draw->index, stream);
}

/* Both sides stay above half the box, so the part always meets the middle of the picture. */
static ex_box random_box(ex_box plain, const ex_draw *draw) {
    double side = sqrt(0.64 + 0.36 * unit(draw, STREAM_AREA));
    double turn = 2.0 * unit(draw, STREAM_ASPECT) - 1.0;
    double aspect = exp(turn * 0.5 * log(1.15));
    ex_box box = {0.0, 0.0, plain.width * fmin(side * aspect, 1.0),
                  plain.height * fmin(side / aspect, 1.0)};
    box.x = plain.x + (plain.width - box.width) * unit(draw, STREAM_X);
    box.y = plain.y + (plain.height - box.height) * unit(draw, STREAM_Y);
    return box;
}

static ex_status make_view(const ex_image *image, ex_fit fit, int side, const ex_draw *draw,
                           ex_image *view) {
    ex_box box = plain_box(image, fit);
    if (draw) box = random_box(box, draw);
    ex_status status = ex_image_view(image, &box, side, view);
    if (status == EX_OK && draw && unit(draw, STREAM_FLIP) < 0.5) ex_image_flip(view);
    return status;
}

ex_status ex_view_fill(const ex_image *image, ex_fit fit, int side, const ex_draw *draw,
                       float *planes) {
    ex_image view;
    ex_status status = make_view(image, fit, side, draw, &view);
    if (status != EX_OK) return status;
    ex_image_normalise(&view, planes);
    ex_image_clear(&view);
    return EX_OK;
}

ex_status ex_view_pixels(const ex_image *image, ex_fit fit, int side, const ex_draw *draw,
                         unsigned char *pixels) {
    ex_image view;
    ex_status status = make_view(image, fit, side, draw, &view);
    if (status != EX_OK) return status;
    memcpy(pixels, view.pixels, (size_t)side * (size_t)side * 3);
    ex_image_clear(&view);
    return EX_OK;
}

void ex_shuffle(uint64_t seed, uint64_t epoch, size_t *order, size_t count) {
    for (size_t i = count; i > 1; i--) {
        size_t other = (size_t)(ex_random_unit(seed, epoch, i, STREAM_SHUFFLE) * (double)i);
        size_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}
