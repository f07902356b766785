/*
 * view.h - what a network sees of a picture: all of it or a part, made square, as normalised floats.
 */
#ifndef EX_VIEW_H
#define EX_VIEW_H

#include "image.h"

/* How a picture that is not square becomes square. */
typedef enum ex_fit {
    EX_FIT_PAD = 0, /* all of it, white beside it: right for cut-outs, loses nothing */
    EX_FIT_CROP,    /* the middle square: usual for photographs */
    EX_FIT_SQUASH   /* all of it, distorted */
} ex_fit;

/* Which random part: a pure function of these three. */
typedef struct ex_draw {
    uint64_t seed, epoch, index;
} ex_draw;

/*
 * Shrinks a picture in place to a short side of at most `side`, and a long side of at most four times that,
 * so that a strip of 8 x 5,000,000 pixels does not keep its full size. @return EX_OK, EX_ENOMEM
 */
ex_status ex_view_shrink(ex_image *image, int side);

/*
 * Writes 3 planes of side x side floats (ex_image_normalise).
 * @param draw  scales, shifts and mirrors at random: 64 to 100 % of the area, the aspect changed by up to
 *              15 %; NULL: the picture as it is
 * @return EX_OK, EX_EINPUT, EX_ENOMEM
 */
ex_status ex_view_fill(const ex_image *image, ex_fit fit, int side, const ex_draw *draw,
                       float *planes);

/* The same before it is normalised: 3 bytes for each pixel, as a picture has them. */
ex_status ex_view_pixels(const ex_image *image, ex_fit fit, int side, const ex_draw *draw,
                         unsigned char *pixels);

/* Puts the numbers of `order` into a random order, a pure function of seed and epoch. */
void ex_shuffle(uint64_t seed, uint64_t epoch, size_t *order, size_t count);

#endif
