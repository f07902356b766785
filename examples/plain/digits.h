/*
 * digits.h - what plain_c trains, and on what: pictures of digits, and a network of four convolutions.
 *
 * Plain loops over arrays that the caller brings; nothing here knows of memory, budgets or libmemtrain.
 */
#ifndef PLAIN_DIGITS_H
#define PLAIN_DIGITS_H

#include <stddef.h>
#include <stdint.h>

/* ---- pictures ---------------------------------------------------------------------------------- */

enum { SIDE = 16, PIXELS = SIDE * SIDE, DIGITS = 10 };

/* Random numbers: any of 64 bits, and one in [-1, 1). Each changes the state. */
uint64_t draw_number(uint64_t *state);
float draw_uniform(uint64_t *state);

/* Picture n of a seed, always the same one: digit n % DIGITS somewhere, under noise. */
void draw_picture(uint64_t seed, size_t n, float picture[PIXELS]);

/* ---- network ----------------------------------------------------------------------------------- */

/* Each layer looks at 3 x 3 pixels and halves the picture: from 16 pixels a side down to 1. */
enum { LAYERS = 4, WEIGHTS = 10 * 8 + 73 * 16 + 145 * 32 + 289 * DIGITS };

/* Floats of a picture before layer i, and behind layer i - 1; the weights of layer i. */
size_t layer_floats(int i);
size_t layer_weights(int i);

/* He et al. 2015, arXiv 1502.01852. All layers, one after the other. */
void init_weights(float weights[WEIGHTS], uint64_t *state);

/* Layer i on `count` pictures; but for the last layer, what is below 0 becomes 0. out: zeros. */
void convolve(int i, size_t count, const float *weights, const float *in, float *out);

/*
 * The way back: slopes of the loss by `out` become slopes by the weights, which are added, and by `in`,
 * which are zeros before. out_slopes are changed.
 */
void convolve_back(int i, size_t count, const float *weights, const float *in, const float *out,
                   float *out_slopes, float *weight_slopes, float *in_slopes);

/*
 * Cross entropy of the last layer's values of a picture and its digit. The slopes of the loss by these
 * values, times factor, go to slopes, unless that is NULL; *hit: whether the digit was told right.
 */
double score(const float values[DIGITS], size_t digit, double factor, float *slopes, int *hit);

#endif
