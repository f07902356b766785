/*
 * image.c - error texts, resizing, normalising and random numbers; see image.h. What reads files is in
 * decode.c.
 */
#include "image.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- error text ---------------------------------------------------------------------------- */

#define NAME_TAIL 300

void ex_error_set(ex_error *error, const char *name, const char *format, ...) {
    size_t length = strlen(name);
    const char *dots = length > NAME_TAIL ? "..." : "";
    const char *tail = length > NAME_TAIL ? name + length - NAME_TAIL : name;
    va_list arguments;
    int used;

    if (!error) {
        return;
    }
    used = snprintf(error->text, sizeof error->text, "%s%s: ", dots, tail);
    if (used > 0 && (size_t)used < sizeof error->text) {
        va_start(arguments, format);
        vsnprintf(error->text + used, sizeof error->text - (size_t)used, format, arguments);
        va_end(arguments);
    }
    for (char *c = error->text; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
}

void ex_image_clear(ex_image *image) {
    free(image->pixels);
    memset(image, 0, sizeof *image);
}

/* ---- resizing ------------------------------------------------------------------------------ */

/* For each output position: the first input position, how many, and their weights (sum 1). */
struct taps {
    int *first;
    int *count;
    float *weights; /* outputs x stride */
    int stride;
};

static void free_taps(struct taps *taps) {
    free(taps->first);
    free(taps->count);
    free(taps->weights);
}

static ex_status allocate_taps(struct taps *taps, int outputs, double support) {
    size_t n = (size_t)outputs;

    taps->stride = (int)ceil(support) * 2 + 1;
    taps->first = malloc(n * sizeof *taps->first);
    taps->count = malloc(n * sizeof *taps->count);
    taps->weights = malloc(n * (size_t)taps->stride * sizeof *taps->weights);
    if (!taps->first || !taps->count || !taps->weights) {
        free_taps(taps);
        return EX_ENOMEM;
    }
    return EX_OK;
}

/* Weights of one output whose centre lies at `centre` in input coordinates. */
static void fill_taps(struct taps *taps, int output, double centre, double support, int size) {
    float *weights = taps->weights + (size_t)output * (size_t)taps->stride;
    int first = (int)fmax(centre - support + 0.5, 0.0);
    int last = (int)fmin(centre + support + 0.5, size);
    double sum = 0.0;

    taps->first[output] = first;
    taps->count[output] = last - first;
    for (int i = first; i < last; i++) {
        double weight = fmax(1.0 - fabs(i + 0.5 - centre) / support, 0.0);

        weights[i - first] = (float)weight;
        sum += weight;
    }
    for (int i = first; i < last; i++) {
        weights[i - first] /= (float)sum;
    }
}

/* Taps that map `length` input units from `start` on to `outputs` positions. */
static ex_status make_taps(struct taps *taps, double start, double length, int size, int outputs) {
    double scale = length / outputs;
    double support = fmax(scale, 1.0);

    if (allocate_taps(taps, outputs, support) != EX_OK) {
        return EX_ENOMEM;
    }
    for (int i = 0; i < outputs; i++) {
        fill_taps(taps, i, start + (i + 0.5) * scale, support, size);
    }
    return EX_OK;
}

/*
 * One output pixel: a weighted sum of `count` pixels that lie `step` bytes apart. The sum is
 * positive, so adding a half and cutting rounds it.
 */
static void weigh(const unsigned char *from, size_t step, const float *weights, int count,
                  unsigned char *to) {
    float sum[3] = {0.5f, 0.5f, 0.5f};

    for (int i = 0; i < count; i++, from += step) {
        sum[0] += weights[i] * from[0];
        sum[1] += weights[i] * from[1];
        sum[2] += weights[i] * from[2];
    }
    for (int c = 0; c < 3; c++) {
        to[c] = (unsigned char)(sum[c] < 255.0f ? sum[c] : 255.0f);
    }
}

/* Shrinks or enlarges each of `rows` rows from `first_row` on to `width` pixels. */
static void pass_rows(const ex_image *image, const struct taps *taps, int first_row, int rows,
                      int width, unsigned char *to) {
    for (int y = 0; y < rows; y++) {
        const unsigned char *row =
            image->pixels + (size_t)(first_row + y) * (size_t)image->width * 3;

        for (int x = 0; x < width; x++, to += 3) {
            weigh(row + (size_t)taps->first[x] * 3, 3,
                  taps->weights + (size_t)x * (size_t)taps->stride, taps->count[x], to);
        }
    }
}

static void pass_columns(const unsigned char *from, const struct taps *taps, int first_row,
                         ex_image *out) {
    size_t stride = (size_t)out->width * 3;
    unsigned char *to = out->pixels;

    for (int y = 0; y < out->height; y++) {
        const unsigned char *top = from + (size_t)(taps->first[y] - first_row) * stride;

        for (int x = 0; x < out->width; x++, to += 3) {
            weigh(top + (size_t)x * 3, stride, taps->weights + (size_t)y * (size_t)taps->stride,
                  taps->count[y], to);
        }
    }
}

static ex_status allocate_image(ex_image *out, int width, int height) {
    out->width = width;
    out->height = height;
    out->pixels = malloc((size_t)width * (size_t)height * 3);
    return out->pixels ? EX_OK : EX_ENOMEM;
}

/* The two passes, rows first and only those rows that the second pass will look at. */
static ex_status resize_with(const ex_image *image, const struct taps *across,
                             const struct taps *down, ex_image *out) {
    int first_row = down->first[0];
    int rows = down->first[out->height - 1] + down->count[out->height - 1] - first_row;
    unsigned char *middle = malloc((size_t)rows * (size_t)out->width * 3);

    if (!middle) {
        return EX_ENOMEM;
    }
    pass_rows(image, across, first_row, rows, out->width, middle);
    pass_columns(middle, down, first_row, out);
    free(middle);
    return EX_OK;
}

/* Written so that a NaN is refused as well. */
static int box_is_inside(const ex_box *box, const ex_image *image) {
    const double slack = 1e-6; /* of rounding in the caller's arithmetic */

    return box->x >= 0.0 && box->y >= 0.0 && box->width > 0.0 && box->height > 0.0 &&
           box->x + box->width <= image->width + slack &&
           box->y + box->height <= image->height + slack;
}

ex_status ex_image_resize(const ex_image *image, const ex_box *box, int width, int height,
                          ex_image *out) {
    ex_box whole = {0.0, 0.0, image->width, image->height};
    struct taps across, down;
    ex_status status;

    memset(out, 0, sizeof *out);
    box = box ? box : &whole;
    if (width <= 0 || height <= 0 || (size_t)height > EX_IMAGE_MAX_PIXELS / (size_t)width ||
        !image->pixels || !box_is_inside(box, image)) {
        return EX_EINPUT;
    }
    if (make_taps(&across, box->x, box->width, image->width, width) != EX_OK) {
        return EX_ENOMEM;
    }
    status = make_taps(&down, box->y, box->height, image->height, height);
    if (status == EX_OK) {
        status = allocate_image(out, width, height);
        if (status == EX_OK) {
            status = resize_with(image, &across, &down, out);
        }
        free_taps(&down);
    }
    free_taps(&across);
    if (status != EX_OK) {
        ex_image_clear(out);
    }
    return status;
}

/*
 * One axis of a view: which output pixels lie on the picture, and which part of the picture
 * fills them exactly. At least one output pixel is kept however thin the overlap is.
 */
struct span {
    int first;
    int count;
    double start;
    double length;
};

static int find_span(double start, double length, int size, int side, struct span *out) {
    double low = fmax(start, 0.0);
    double high = fmin(start + length, size);
    double per_pixel = length / side;
    int last;

    if (!(length > 0.0) || !(high > low)) {
        return 0;
    }
    out->first = (int)fmin(floor((low - start) / per_pixel + 0.5), side - 1);
    last = (int)fmin(floor((high - start) / per_pixel + 0.5), side);
    out->count = last > out->first ? last - out->first : 1;
    out->start = fmax(start + out->first * per_pixel, 0.0);
    out->length = fmin(start + (out->first + out->count) * per_pixel, size) - out->start;
    if (out->length <= 0.0) {
        out->start = low;
        out->length = high - low;
    }
    return 1;
}

static void paste(const ex_image *part, int left, int top, ex_image *out) {
    for (int y = 0; y < part->height; y++) {
        memcpy(out->pixels + ((size_t)(top + y) * (size_t)out->width + (size_t)left) * 3,
               part->pixels + (size_t)y * (size_t)part->width * 3, (size_t)part->width * 3);
    }
}

ex_status ex_image_view(const ex_image *image, const ex_box *box, int side, ex_image *out) {
    ex_image part;
    struct span across, down;
    ex_box seen;
    ex_status status;

    memset(out, 0, sizeof *out);
    if (side <= 0 || (size_t)side > EX_IMAGE_MAX_PIXELS / (size_t)side ||
        !find_span(box->x, box->width, image->width, side, &across) ||
        !find_span(box->y, box->height, image->height, side, &down)) {
        return EX_EINPUT;
    }
    seen = (ex_box){across.start, down.start, across.length, down.length};
    status = ex_image_resize(image, &seen, across.count, down.count, &part);
    if (status != EX_OK) {
        return status;
    }
    if (part.width == side && part.height == side) {
        *out = part;
        return EX_OK;
    }
    status = allocate_image(out, side, side);
    if (status == EX_OK) {
        memset(out->pixels, 255, (size_t)side * (size_t)side * 3);
        paste(&part, across.first, down.first, out);
    } else {
        ex_image_clear(out);
    }
    ex_image_clear(&part);
    return status;
}

/* ---- pixels -------------------------------------------------------------------------------- */

void ex_image_flip(ex_image *image) {
    for (int y = 0; y < image->height; y++) {
        unsigned char *left = image->pixels + (size_t)y * (size_t)image->width * 3;
        unsigned char *right = left + (size_t)(image->width - 1) * 3;

        for (; left < right; left += 3, right -= 3) {
            for (int c = 0; c < 3; c++) {
                unsigned char kept = left[c];

                left[c] = right[c];
                right[c] = kept;
            }
        }
    }
}

void ex_image_normalise(const ex_image *image, float *planes) {
    static const float mean[3] = {0.485f, 0.456f, 0.406f};
    static const float deviation[3] = {0.229f, 0.224f, 0.225f};
    size_t count = (size_t)image->width * (size_t)image->height;
    float values[256];

    for (int c = 0; c < 3; c++) {
        for (int v = 0; v < 256; v++) {
            values[v] = ((float)v / 255.0f - mean[c]) / deviation[c];
        }
        for (size_t i = 0; i < count; i++) {
            *planes++ = values[image->pixels[i * 3 + (size_t)c]];
        }
    }
}

/* ---- random numbers ------------------------------------------------------------------------ */

static uint64_t mix(uint64_t z) {
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t ex_random(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t stream) {
    return mix(mix(mix(mix(seed) + epoch) + index) + stream);
}

double ex_random_unit(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t stream) {
    return (double)(ex_random(seed, epoch, index, stream) >> 11) * 0x1.0p-53;
}
