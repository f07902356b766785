/*
 * cutout.h - pictures with transparency, to be drawn on a canvas: how scenes of cards and of things are made.
 *
 * Nothing here prints or keeps global state: every function may run on any thread, as long as two
 * threads do not write the same picture.
 */
#ifndef EX_CUTOUT_H
#define EX_CUTOUT_H

#include "image.h"

/* `rgba` holds width * height * 4 bytes, alpha not multiplied in; release with ex_cutout_clear(). */
typedef struct ex_cutout {
    int width;
    int height;
    unsigned char *rgba;
} ex_cutout;

/* How a cut-out lies on a canvas. */
typedef struct ex_placement {
    double x, y;  /* of its centre, in pixels of the canvas */
    double scale; /* pixels of the canvas for one of its own */
    double angle; /* in radians, clockwise */
    int mirrored; /* left and right, before it is turned */
} ex_placement;

/*
 * Reads and decodes a PNG with its alpha (a JPEG, or a PNG without, is opaque), and shrinks it to at most
 * max_side on its long side; 0: not at all. What is refused is what ex_image_load refuses.
 * @return EX_OK, EX_EINPUT or EX_ENOMEM; on failure `out` is {0, 0, NULL}
 */
ex_status ex_cutout_load(const char *path, int max_side, ex_cutout *out, ex_error *error);

/* Releases the pixels; a cleared or zeroed one may be cleared again. */
void ex_cutout_clear(ex_cutout *cutout);

/*
 * Draws a cut-out over what is on the canvas, with averaging where it shrinks.
 * @param coverage  canvas width * height bytes that get the alpha of what was drawn, from 0 to 255, 0
 *                  where nothing was; may be NULL
 * @param hull      gets the box of what has at least half of its alpha (empty: width 0); may be NULL
 */
void ex_cutout_draw(const ex_cutout *cutout, const ex_placement *placement, ex_image *canvas,
                    unsigned char *coverage, ex_box *hull);

#endif
