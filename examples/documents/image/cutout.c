/*
 * cutout.c - cut-outs on a canvas; see cutout.h.
 *
 * Each pixel of the canvas asks what of the cut-out lies below it: as many points as it takes to meet all
 * of its pixels there, each between four of them. Colours are weighed by their alpha, so that what
 * is transparent lends no colour to what is beside it; outside the cut-out all is transparent.
 */
#include "cutout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_POINTS 16 /* on a side, for one pixel of the canvas */
#define HALF 128       /* of the alpha: from here on a pixel belongs to the hull */

/* From a point of the canvas to one of the cut-out, both in pixels. */
typedef struct mapping {
    double x0, y0;         /* where the canvas' (0, 0) lies */
    double xx, xy, yx, yy; /* x = x0 + xx * X + xy * Y, and y likewise */
    int points;            /* on a side */
} mapping;

/* Whole pixels of the canvas, from first to before end. */
typedef struct area {
    int first_x, end_x, first_y, end_y;
} area;

void ex_cutout_clear(ex_cutout *cutout) {
    free(cutout->rgba);
    memset(cutout, 0, sizeof *cutout);
}

/* ---- looking at a cut-out ---------------------------------------------------------------------- */

/* sum += weight * pixel, with alpha in sum[3] and colours times alpha. */
static void add_pixel(const ex_cutout *cutout, int x, int y, double weight, double sum[4]) {
    if (x < 0 || y < 0 || x >= cutout->width || y >= cutout->height) return;
    const unsigned char *pixel = cutout->rgba + ((size_t)y * (size_t)cutout->width + (size_t)x) * 4;
    double alpha = weight * pixel[3];
    for (int c = 0; c < 3; c++) sum[c] += alpha * pixel[c];
    sum[3] += alpha;
}

/* A point between the centres of four pixels. */
static void add_point(const ex_cutout *cutout, double x, double y, double sum[4]) {
    if (!(x > -1 && y > -1 && x < cutout->width + 1.0 && y < cutout->height + 1.0)) return;
    double left = floor(x - 0.5), top = floor(y - 0.5);
    double right = x - 0.5 - left, below = y - 0.5 - top; /* shares of the pixels there */
    int u = (int)left, v = (int)top;
    add_pixel(cutout, u, v, (1 - right) * (1 - below), sum);
    add_pixel(cutout, u + 1, v, right * (1 - below), sum);
    add_pixel(cutout, u, v + 1, (1 - right) * below, sum);
    add_pixel(cutout, u + 1, v + 1, right * below, sum);
}

/* What a pixel of the canvas sees: sum[3] is its alpha, from 0 to 255. */
static void look(const ex_cutout *cutout, const mapping *map, int x, int y, double sum[4]) {
    int n = map->points;
    memset(sum, 0, 4 * sizeof *sum);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < n; i++) {
            double across = x + (i + 0.5) / n, down = y + (j + 0.5) / n;
            add_point(cutout, map->x0 + map->xx * across + map->xy * down,
                      map->y0 + map->yx * across + map->yy * down, sum);
        }
    for (int c = 0; c < 4; c++) sum[c] /= n * n;
}

/* scale: pixels of the canvas for one of the cut-out. */
static int points_for(double scale) {
    return (int)fmin(fmax(ceil(1 / scale - 1e-9), 1), MOST_POINTS);
}

/* ---- loading ----------------------------------------------------------------------------------- */

static unsigned char byte_of(double value) {
    return (unsigned char)fmin(fmax(value + 0.5, 0), 255);
}

/* Straight alpha again: what is transparent is black. */
static void write_pixel(const double sum[4], unsigned char *pixel) {
    for (int c = 0; c < 3; c++) pixel[c] = byte_of(sum[3] > 0 ? sum[c] / sum[3] : 0);
    pixel[3] = byte_of(sum[3]);
}

static void write_pixels(const ex_cutout *from, const mapping *map, ex_cutout *to) {
    unsigned char *pixel = to->rgba;
    double sum[4];
    for (int y = 0; y < to->height; y++)
        for (int x = 0; x < to->width; x++, pixel += 4) {
            look(from, map, x, y, sum);
            write_pixel(sum, pixel);
        }
}

static ex_status shrink(ex_cutout *cutout, int max_side) {
    double scale = max_side / fmax(cutout->width, cutout->height);
    if (max_side <= 0 || scale >= 1) return EX_OK;
    ex_cutout smaller = {(int)fmax(round(cutout->width * scale), 1),
                         (int)fmax(round(cutout->height * scale), 1), NULL};
    mapping map = {.xx = (double)cutout->width / smaller.width,
                   .yy = (double)cutout->height / smaller.height,
                   .points = points_for(scale)};
    smaller.rgba = malloc((size_t)smaller.width * (size_t)smaller.height * 4);
    if (!smaller.rgba) return EX_ENOMEM;
    write_pixels(cutout, &map, &smaller);
    free(cutout->rgba);
    *cutout = smaller;
    return EX_OK;
}

ex_status ex_cutout_load(const char *path, int max_side, ex_cutout *out, ex_error *error) {
    ex_image image;
    memset(out, 0, sizeof *out);
    ex_status status = ex_image_load_alpha(path, &image, error);
    if (status != EX_OK) return status;
    *out = (ex_cutout){image.width, image.height, image.pixels};
    status = shrink(out, max_side);
    if (status == EX_OK) return EX_OK;
    ex_cutout_clear(out);
    ex_error_set(error, path, "out of host memory");
    return status;
}

/* ---- drawing ----------------------------------------------------------------------------------- */

static mapping mapping_of(const ex_cutout *cutout, const ex_placement *p) {
    double c = cos(p->angle) / p->scale, s = sin(p->angle) / p->scale;
    double side = p->mirrored ? -1 : 1;
    mapping map = {.xx = side * c, .xy = side * s, .yx = -s, .yy = c};
    map.x0 = cutout->width / 2.0 - map.xx * p->x - map.xy * p->y;
    map.y0 = cutout->height / 2.0 - map.yx * p->x - map.yy * p->y;
    map.points = points_for(p->scale);
    return map;
}

/* Whole pixels of the canvas between two of its points. */
static void clip(double low, double high, int size, int *first, int *end) {
    *first = (int)fmin(fmax(floor(low), 0), size);
    *end = (int)fmin(fmax(ceil(high), 0), size);
}

/* The part of the canvas that a cut-out can reach, with a pixel more for the blur of its edge. */
static area area_of(const ex_cutout *cutout, const ex_placement *p, const ex_image *canvas) {
    double c = fabs(cos(p->angle)), s = fabs(sin(p->angle)), half = p->scale / 2;
    double across = half * (c * cutout->width + s * cutout->height) + half + 1;
    double down = half * (s * cutout->width + c * cutout->height) + half + 1;
    area reach;
    clip(p->x - across, p->x + across, canvas->width, &reach.first_x, &reach.end_x);
    clip(p->y - down, p->y + down, canvas->height, &reach.first_y, &reach.end_y);
    return reach;
}

static void blend(const double sum[4], unsigned char *pixel) {
    for (int c = 0; c < 3; c++) pixel[c] = byte_of((sum[c] + (255 - sum[3]) * pixel[c]) / 255);
}

/* The smallest area that has the pixel as well; an empty one has nothing. */
static void stretch(area *hull, int x, int y) {
    if (hull->end_x == 0) *hull = (area){x, x + 1, y, y + 1};
    if (x < hull->first_x) hull->first_x = x;
    if (x >= hull->end_x) hull->end_x = x + 1;
    if (y >= hull->end_y) hull->end_y = y + 1; /* rows come from top to bottom */
}

static ex_box box_of(const area *hull) {
    return (ex_box){hull->first_x, hull->first_y, hull->end_x - hull->first_x,
                    hull->end_y - hull->first_y};
}

void ex_cutout_draw(const ex_cutout *cutout, const ex_placement *placement, ex_image *canvas,
                    unsigned char *coverage, ex_box *hull) {
    const mapping map = mapping_of(cutout, placement);
    const area reach = area_of(cutout, placement, canvas);
    area seen = {0, 0, 0, 0};
    double sum[4];
    if (coverage) memset(coverage, 0, (size_t)canvas->width * (size_t)canvas->height);
    for (int y = reach.first_y; y < reach.end_y; y++)
        for (int x = reach.first_x; x < reach.end_x; x++) {
            size_t at = (size_t)y * (size_t)canvas->width + (size_t)x;
            look(cutout, &map, x, y, sum);
            blend(sum, canvas->pixels + 3 * at);
            if (coverage) coverage[at] = byte_of(sum[3]);
            if (byte_of(sum[3]) >= HALF) stretch(&seen, x, y);
        }
    if (hull) *hull = box_of(&seen);
}
