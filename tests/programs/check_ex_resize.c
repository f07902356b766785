/*
 * check_ex_resize.c - tests of what examples/documents/image/image.h does with decoded pictures: resizing
 * against values computed by Pillow, views, mirroring, normalising; and of its random numbers.
 */
#include "image.h"

#include "pixels.h"
#include "suite.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A picture that has no symmetry, the same as in the script the golden values come from. */
static ex_image make_pattern(void) {
    ex_image image = {37, 23, malloc(37 * 23 * 3)};
    unsigned char *to = image.pixels;

    ck_assert_ptr_nonnull(to);
    for (int y = 0; y < image.height; y++) {
        for (int x = 0; x < image.width; x++, to += 3) {
            to[0] = (unsigned char)(x * 7 + y * 3);
            to[1] = (unsigned char)(x * y);
            to[2] = (unsigned char)(x * x + 5 * y);
        }
    }
    return image;
}

static ex_image make_constant(int width, int height, int value) {
    size_t count = (size_t)width * (size_t)height * 3;
    ex_image image = {width, height, malloc(count)};

    ck_assert_ptr_nonnull(image.pixels);
    memset(image.pixels, value, count);
    return image;
}

/* ---- resizing ------------------------------------------------------------------------------- */

struct golden {
    int x, y;
    unsigned char pixel[3];
};

/*
 * From Pillow 13: make_pattern()'s picture through resize(size, BILINEAR[, box]). Pillow weighs
 * in fixed point, this code in float: one level of tolerance for the different rounding.
 */
static const struct golden golden_down[] = {{0, 0, {8, 1, 4}},        {5, 3, {105, 76, 182}},
                                            {15, 11, {54, 146, 117}}, {8, 6, {170, 208, 173}},
                                            {12, 1, {206, 67, 97}},   {3, 10, {112, 149, 156}}};
static const struct golden golden_up[] = {{0, 0, {0, 0, 0}},       {17, 9, {102, 62, 180}},
                                          {49, 39, {62, 24, 126}}, {25, 20, {163, 207, 138}},
                                          {40, 3, {211, 44, 109}}, {6, 33, {86, 81, 113}}};
static const struct golden golden_box[] = {
    {0, 0, {43, 14, 41}}, {5, 3, {197, 177, 115}}, {7, 7, {26, 95, 131}}, {2, 6, {138, 198, 159}}};

static void check_resize(const ex_box *box, int width, int height, const struct golden *golden,
                         size_t count) {
    ex_image pattern = make_pattern();
    ex_image out;

    ck_assert_int_eq(ex_image_resize(&pattern, box, width, height, &out), EX_OK);
    ck_assert_int_eq(out.width, width);
    ck_assert_int_eq(out.height, height);
    for (size_t i = 0; i < count; i++) {
        check_pixel(&out, golden[i].x, golden[i].y, golden[i].pixel, 1);
    }
    ex_image_clear(&out);
    ex_image_clear(&pattern);
}

TEST("resizing", resize_matches_pillow) {
    static const ex_box box = {3.5, 2.25, 30.5, 18.5};

    check_resize(NULL, 16, 12, golden_down, 6);
    check_resize(NULL, 50, 40, golden_up, 6);
    check_resize(&box, 8, 8, golden_box, 4);
}

/* A ramp of 256 levels to 8 pixels, also from Pillow: the ends show how edges are weighed. */
TEST("resizing", ramp_matches_pillow) {
    static const unsigned char expected[8] = {19, 48, 80, 112, 144, 176, 208, 236};
    ex_image ramp = make_constant(256, 8, 0);
    ex_image out;

    for (size_t i = 0; i < 256 * 8 * 3; i++) {
        ramp.pixels[i] = (unsigned char)(i / 3 % 256);
    }
    ck_assert_int_eq(ex_image_resize(&ramp, NULL, 8, 1, &out), EX_OK);
    for (int x = 0; x < 8; x++) {
        const unsigned char grey[3] = {expected[x], expected[x], expected[x]};
        check_pixel(&out, x, 0, grey, 1);
    }
    ex_image_clear(&out);
    ex_image_clear(&ramp);
}

/* Weights that do not add up to one would show here, at any scale. */
TEST_LOOP("resizing", constant_stays_constant, 256) {
    static const int sizes[][2] = {{1, 1}, {3, 5}, {31, 17}, {32, 32}, {100, 7}, {224, 224}};
    const unsigned char value[3] = {(unsigned char)_i, (unsigned char)_i, (unsigned char)_i};
    ex_image image = make_constant(31, 17, _i);
    ex_image out;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ck_assert_int_eq(ex_image_resize(&image, NULL, sizes[i][0], sizes[i][1], &out), EX_OK);
        for (int j = 0; j < sizes[i][0] * sizes[i][1]; j++) {
            check_pixel(&out, j % sizes[i][0], j / sizes[i][0], value, 0);
        }
        ex_image_clear(&out);
    }
    ex_image_clear(&image);
}

TEST("resizing", same_size_is_a_copy) {
    ex_image pattern = make_pattern();
    ex_image out;

    ck_assert_int_eq(ex_image_resize(&pattern, NULL, 37, 23, &out), EX_OK);
    ck_assert_mem_eq(out.pixels, pattern.pixels, 37 * 23 * 3);
    ex_image_clear(&out);
    ex_image_clear(&pattern);
}

TEST("resizing", resize_refuses_bad_arguments) {
    static const ex_box bad[] = {
        {-1, 0, 5, 5}, {0, 0, 38, 5}, {0, 0, 5, 24}, {0, 0, 0, 5}, {0, 0, NAN, 5}};
    ex_image pattern = make_pattern();
    ex_image out;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(ex_image_resize(&pattern, &bad[i], 4, 4, &out), EX_EINPUT);
        ck_assert_ptr_null(out.pixels);
    }
    ck_assert_int_eq(ex_image_resize(&pattern, NULL, 0, 4, &out), EX_EINPUT);
    ck_assert_int_eq(ex_image_resize(&pattern, NULL, 1 << 20, 1 << 20, &out), EX_EINPUT);
    ex_image_clear(&pattern);
}

/* ---- views ---------------------------------------------------------------------------------- */

/* A 20 x 10 picture in a 20 x 20 box: five rows of white above and below, exactly. */
TEST("resizing", view_pads_with_white) {
    static const unsigned char white[3] = {255, 255, 255}, dark[3] = {40, 40, 40};
    static const ex_box box = {0, -5, 20, 20};
    ex_image image = make_constant(20, 10, 40);
    ex_image out;

    ck_assert_int_eq(ex_image_view(&image, &box, 20, &out), EX_OK);
    for (int y = 0; y < 20; y++) {
        check_pixel(&out, 0, y, y < 5 || y >= 15 ? white : dark, 0);
        check_pixel(&out, 19, y, y < 5 || y >= 15 ? white : dark, 0);
    }
    ex_image_clear(&out);
    ex_image_clear(&image);
}

/* A box inside the picture is the same as resizing that box. */
TEST("resizing", view_crops) {
    static const ex_box box = {7, 0, 23, 23};
    ex_image pattern = make_pattern();
    ex_image view, resized;

    ck_assert_int_eq(ex_image_view(&pattern, &box, 16, &view), EX_OK);
    ck_assert_int_eq(ex_image_resize(&pattern, &box, 16, 16, &resized), EX_OK);
    ck_assert_mem_eq(view.pixels, resized.pixels, 16 * 16 * 3);
    ex_image_clear(&view);
    ex_image_clear(&resized);
    ex_image_clear(&pattern);
}

/* Any box that meets the picture gives side x side pixels, however thin the overlap. */
TEST("resizing", view_takes_any_overlap) {
    ex_image pattern = make_pattern();

    for (uint64_t i = 0; i < 500; i++) {
        ex_box box = {60 * ex_random_unit(1, i, 0, 0) - 30, 60 * ex_random_unit(1, i, 0, 1) - 30,
                      0.01 + 50 * ex_random_unit(1, i, 0, 2),
                      0.01 + 50 * ex_random_unit(1, i, 0, 3)};
        int meets = box.x + box.width > 0 && box.y + box.height > 0 && box.x < 37 && box.y < 23;
        ex_image out;

        ck_assert_int_eq(ex_image_view(&pattern, &box, 13, &out), meets ? EX_OK : EX_EINPUT);
        ck_assert_int_eq(out.width, meets ? 13 : 0);
        ex_image_clear(&out);
    }
    ex_image_clear(&pattern);
}

/* ---- pixels and random numbers -------------------------------------------------------------- */

TEST("pixels", flip_mirrors) {
    ex_image once = make_pattern(), twice = make_pattern();

    ex_image_flip(&once);
    ex_image_flip(&twice);
    ex_image_flip(&twice);
    for (int y = 0; y < 23; y++) {
        for (int x = 0; x < 37; x++) {
            check_pixel(&once, x, y, pixel_at(&twice, 36 - x, y), 0);
        }
    }
    ex_image_clear(&once);
    ex_image_clear(&twice);
}

/* Planes in the order red, green, blue; the values follow from the published constants. */
TEST("pixels", normalise_gives_planes) {
    ex_image image = make_constant(2, 1, 0);
    float planes[6];

    image.pixels[3] = 255;
    image.pixels[4] = 128;
    ex_image_normalise(&image, planes);
    ck_assert_float_eq_tol(planes[0], -2.117904f, 1e-5f);
    ck_assert_float_eq_tol(planes[1], 2.248908f, 1e-5f);
    ck_assert_float_eq_tol(planes[2], -2.035714f, 1e-5f);
    ck_assert_float_eq_tol(planes[3], 0.205182f, 1e-5f);
    ck_assert_float_eq_tol(planes[4], -1.804444f, 1e-5f);
    ck_assert_float_eq_tol(planes[5], -1.804444f, 1e-5f);
    ex_image_clear(&image);
}

/* Fixed values: a change would silently give every run another shuffle. */
TEST("pixels", random_is_fixed) {
    ck_assert_uint_eq(ex_random(1, 2, 3, 4), UINT64_C(0x336c3255cbcc01fe));
    ck_assert_uint_eq(ex_random(0, 0, 0, 0), UINT64_C(0x2130748aaac80268));
    ck_assert_uint_ne(ex_random(1, 2, 3, 4), ex_random(1, 2, 4, 3));
    ck_assert_uint_ne(ex_random(1, 2, 3, 4), ex_random(2, 1, 3, 4));
}

/* Mean 1/2 and variance 1/12 of 100,000 draws, within about four standard errors. */
TEST("pixels", random_unit_is_uniform) {
    double sum = 0, squares = 0, low = 1, high = 0;

    for (uint64_t i = 0; i < 100000; i++) {
        double unit = ex_random_unit(3, 1, i, 0);
        low = fmin(low, unit);
        high = fmax(high, unit);
        sum += unit;
        squares += (unit - 0.5) * (unit - 0.5);
    }
    ck_assert(low >= 0.0 && high < 1.0);
    ck_assert_double_eq_tol(sum / 100000, 0.5, 0.004);
    ck_assert_double_eq_tol(squares / 100000, 1.0 / 12.0, 0.001);
}

SUITE("ex_resize")
