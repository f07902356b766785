/*
 * digits.c - see digits.h.
 */
#include "digits.h"

#include <math.h>

/* ---- pictures ---------------------------------------------------------------------------------- */

/* Seven rows of five pixels; the leftmost is the highest bit. */
static const unsigned char font[DIGITS][7] = {
    {0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e}, {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e},
    {0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f}, {0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e},
    {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02}, {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e},
    {0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e}, {0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08},
    {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e}, {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c},
};

/* SplitMix64 (Steele, Lea & Flood 2014). */
uint64_t draw_number(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

float draw_uniform(uint64_t *state) {
    return (float)(draw_number(state) >> 40) / 8388608.0F - 1;
}

/* Twice as large as in the font. */
void draw_picture(uint64_t seed, size_t n, float picture[PIXELS]) {
    uint64_t state = seed * 1000003 + n;
    size_t left = draw_number(&state) % 7, top = draw_number(&state) % 3;
    float ink = 1 + 0.5F * draw_uniform(&state);
    for (size_t p = 0; p < PIXELS; p++) {
        size_t x = p % SIDE - left, y = p / SIDE - top; /* huge where they are below 0 */
        int is_ink = x < 10 && y < 14 && (font[n % DIGITS][y / 2] >> (4 - x / 2) & 1);
        picture[p] = (is_ink ? ink : 0) + 0.7F * draw_uniform(&state);
    }
}

/* ---- network ----------------------------------------------------------------------------------- */

static const int planes[LAYERS + 1] = {1, 8, 16, 32, DIGITS}; /* before and behind each layer */

/* Pixels a side before layer i. */
static int side(int i) {
    return SIDE >> i;
}

/* What layer i adds up for a place behind it: a window of all planes, and a constant. */
static int terms(int i) {
    return 9 * planes[i] + 1;
}

size_t layer_floats(int i) {
    return (size_t)(planes[i] * side(i) * side(i));
}

size_t layer_weights(int i) {
    return (size_t)(terms(i) * planes[i + 1]);
}

void init_weights(float weights[WEIGHTS], uint64_t *state) {
    for (int i = 0; i < LAYERS; weights += layer_weights(i++))
        for (size_t k = 0; k < layer_weights(i); k++)
            weights[k] = sqrtf(6.0F / (float)terms(i)) * draw_uniform(state);
}

enum { OUTSIDE = -1, CONSTANT = -2 };

/* Term k of place p: where in the picture it lies. */
static int pixel(int i, int p, int k) {
    int y = 2 * (p / side(i + 1)) - 1 + k / planes[i] / 3;
    int x = 2 * (p % side(i + 1)) - 1 + k / planes[i] % 3;
    if (k + 1 == terms(i)) return CONSTANT;
    if (y < 0 || y >= side(i) || x < 0 || x >= side(i)) return OUTSIDE;
    return (y * side(i) + x) * planes[i] + k % planes[i];
}

static void convolve_one(int i, const float *weights, const float *in, float *out) {
    int n = planes[i + 1], places = side(i + 1) * side(i + 1);
    for (int p = 0; p < places; p++)
        for (int k = 0, at; k < terms(i); k++) {
            if ((at = pixel(i, p, k)) == OUTSIDE) continue;
            float value = at == CONSTANT ? 1 : in[at];
            for (int o = 0; o < n; o++) out[p * n + o] += weights[k * n + o] * value;
        }
    for (int j = 0; j < places * n && i + 1 < LAYERS; j++)
        if (out[j] < 0) out[j] = 0;
}

static void convolve_one_back(int i, const float *weights, const float *in, const float *out,
                              float *out_slopes, float *weight_slopes, float *in_slopes) {
    int n = planes[i + 1], places = side(i + 1) * side(i + 1);
    for (int j = 0; j < places * n && i + 1 < LAYERS; j++)
        if (out[j] <= 0) out_slopes[j] = 0;
    for (int p = 0; p < places; p++)
        for (int k = 0, at; k < terms(i); k++) {
            if ((at = pixel(i, p, k)) == OUTSIDE) continue;
            float value = at == CONSTANT ? 1 : in[at], sum = 0;
            for (int o = 0; o < n; o++) {
                weight_slopes[k * n + o] += out_slopes[p * n + o] * value;
                sum += out_slopes[p * n + o] * weights[k * n + o];
            }
            if (at != CONSTANT) in_slopes[at] += sum;
        }
}

void convolve(int i, size_t count, const float *weights, const float *in, float *out) {
    for (size_t s = 0; s < count; s++)
        convolve_one(i, weights, in + s * layer_floats(i), out + s * layer_floats(i + 1));
}

void convolve_back(int i, size_t count, const float *weights, const float *in, const float *out,
                   float *out_slopes, float *weight_slopes, float *in_slopes) {
    size_t before = layer_floats(i), behind = layer_floats(i + 1);
    for (size_t s = 0; s < count; s++)
        convolve_one_back(i, weights, in + s * before, out + s * behind, out_slopes + s * behind,
                          weight_slopes, in_slopes + s * before);
}

double score(const float values[DIGITS], size_t digit, double factor, float *slopes, int *hit) {
    size_t best = 0;
    double sum = 0;
    for (size_t k = 1; k < DIGITS; k++)
        if (values[k] > values[best]) best = k;
    for (size_t k = 0; k < DIGITS; k++) sum += exp((double)values[k] - values[best]);
    for (size_t k = 0; slopes && k < DIGITS; k++)
        slopes[k] = (float)(factor * (exp((double)values[k] - values[best]) / sum - (k == digit)));
    *hit = best == digit;
    return log(sum) + values[best] - values[digit];
}
