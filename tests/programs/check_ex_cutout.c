/*
 * check_ex_cutout.c - tests of examples/documents/image/cutout.h: alpha that is kept, sizes, quarter turns, mirrors, the
 * hull, the coverage, and what lies beyond the canvas.
 */
#include "cutout.h"
#include "suite.h"

#include <png.h>
#include <stdio.h>
#include <unistd.h>

#define CARD "examples/data/cards/simple_h_10.png"
#define PHOTO "examples/data/food/fruit/an_apple_01.jpg" /* has no alpha */
#define QUARTER 1.5707963267948966

enum { W = 4, H = 3, SIDE = 10 };

/* ---- helpers ----------------------------------------------------------------------------------- */

/* Each pixel has a colour of its own. */
static unsigned char red_of(int x, int y) {
    return (unsigned char)(40 * x + 10 * y);
}

static unsigned char cut_pixels[W * H * 4];

static ex_cutout make_cutout(unsigned char alpha) {
    unsigned char *pixel = cut_pixels;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++, pixel += 4) {
            pixel[0] = red_of(x, y);
            pixel[1] = 7;
            pixel[2] = 250;
            pixel[3] = alpha;
        }
    return (ex_cutout){W, H, cut_pixels};
}

static unsigned char canvas_pixels[SIDE * SIDE * 3];
static unsigned char coverage[SIDE * SIDE];

static ex_image make_canvas(unsigned char grey) {
    memset(canvas_pixels, grey, sizeof canvas_pixels);
    memset(coverage, 77, sizeof coverage);
    return (ex_image){SIDE, SIDE, canvas_pixels};
}

static const unsigned char *at(int x, int y) {
    return canvas_pixels + 3 * (y * SIDE + x);
}

static void check_box(const ex_box *box, int x, int y, int width, int height) {
    ck_assert_msg(box->x == x && box->y == y && box->width == width && box->height == height,
                  "%g, %g, %g x %g instead of %d, %d, %d x %d", box->x, box->y, box->width,
                  box->height, x, y, width, height);
}

static void draw(const ex_cutout *cutout, ex_placement placement, ex_box *hull) {
    ex_image canvas = make_canvas(100);
    ex_cutout_draw(cutout, &placement, &canvas, coverage, hull);
}

/* ---- drawing ----------------------------------------------------------------------------------- */

/* At its own size on whole pixels every pixel arrives as it was, and nothing else changes. */
TEST("drawing", whole_pixels_are_copied) {
    const ex_cutout cutout = make_cutout(255);
    ex_box hull;
    draw(&cutout, (ex_placement){.x = 2 + W / 2.0, .y = 5 + H / 2.0, .scale = 1}, &hull);
    check_box(&hull, 2, 5, W, H);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            int inside = x >= 2 && x < 2 + W && y >= 5 && y < 5 + H;
            ck_assert_int_eq(at(x, y)[0], inside ? red_of(x - 2, y - 5) : 100);
            ck_assert_int_eq(at(x, y)[2], inside ? 250 : 100);
            ck_assert_int_eq(coverage[y * SIDE + x], inside ? 255 : 0);
        }
}

/* Pixel (x, y) of the cut-out after so many quarter turns, clockwise, of one that is mirrored or not. */
static void turned(int turns, int mirrored, int x, int y, int *out_x, int *out_y) {
    int width = W, height = H;
    if (mirrored) x = W - 1 - x;
    for (int i = 0; i < turns; i++) {
        int kept = x;
        x = height - 1 - y;
        y = kept;
        kept = width;
        width = height;
        height = kept;
    }
    *out_x = x;
    *out_y = y;
}

TEST_LOOP("drawing", quarter_turns_and_mirrors_are_exact, 8) {
    int turns = _i % 4, mirrored = _i / 4, width = turns % 2 ? H : W, height = turns % 2 ? W : H;
    const ex_cutout cutout = make_cutout(255);
    ex_box hull;
    draw(&cutout, (ex_placement){1 + width / 2.0, 2 + height / 2.0, 1, turns * QUARTER, mirrored},
         &hull);
    check_box(&hull, 1, 2, width, height);
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            int u, v;
            turned(turns, mirrored, x, y, &u, &v);
            ck_assert_int_eq(at(1 + u, 2 + v)[0], red_of(x, y));
        }
}

/* Half of a colour and half of what was there; a hull has what is at least half opaque. */
TEST_LOOP("drawing", alpha_mixes, 5) {
    static const struct {
        unsigned char alpha;
        int blue, width;
    } rows[] = {{0, 100, 0}, {51, 130, 0}, {127, 175, 0}, {128, 175, W}, {255, 250, W}};
    const ex_cutout cutout = make_cutout(rows[_i].alpha);
    ex_box hull;
    draw(&cutout, (ex_placement){.x = 5, .y = 4.5, .scale = 1}, &hull);
    ck_assert_int_eq(at(4, 4)[2], rows[_i].blue);
    ck_assert_int_eq(coverage[4 * SIDE + 4], rows[_i].alpha);
    ck_assert(hull.width == rows[_i].width);
}

/* Where it shrinks, pixels are averaged: rows of black and white become grey. */
TEST("drawing", shrinking_averages) {
    unsigned char pixels[8 * 8 * 4];
    const ex_cutout cutout = {8, 8, pixels};
    ex_box hull;
    for (int i = 0; i < 8 * 8; i++) {
        memset(pixels + 4 * i, i % 2 ? 200 : 0, 3);
        pixels[4 * i + 3] = 255;
    }
    draw(&cutout, (ex_placement){.x = 5, .y = 5, .scale = 0.25}, &hull);
    check_box(&hull, 4, 4, 2, 2);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(at(4 + i % 2, 4 + i / 2)[0], 100);
    draw(&cutout, (ex_placement){.x = 5, .y = 5, .scale = 0.5}, &hull);
    check_box(&hull, 3, 3, 4, 4);
}

/* Where it grows, the middle of a large pixel has its colour. */
TEST("drawing", growing_keeps_colours) {
    const ex_cutout cutout = make_cutout(255);
    ex_box hull;
    draw(&cutout, (ex_placement){.x = 6, .y = 4.5, .scale = 3}, &hull);
    check_box(&hull, 0, 0, 10, 9); /* 12 x 9 of which two columns are beyond the canvas */
    ck_assert_int_eq(at(1, 1)[0], red_of(0, 0));
    ck_assert_int_eq(at(7, 4)[0], red_of(2, 1));
}

/* A transparent pixel's colour is not seen beside it, however it is scaled. */
TEST_LOOP("drawing", hidden_colours_do_not_bleed, 5) {
    unsigned char pixels[2 * 4] = {10, 10, 10, 255, 250, 250, 250, 0};
    const ex_cutout cutout = {2, 1, pixels};
    const double scales[] = {0.4, 0.5, 1, 3, 7};
    ex_image canvas = make_canvas(10);
    ex_cutout_draw(&cutout, &(ex_placement){.x = 5.3, .y = 4.9, .scale = scales[_i], .angle = 0.4},
                   &canvas, NULL, NULL);
    for (size_t i = 0; i < sizeof canvas_pixels; i++) ck_assert_int_eq(canvas_pixels[i], 10);
}

/* Parts beyond the canvas are cut off, whatever lies there; all beyond is nothing at all. */
TEST_LOOP("drawing", beyond_the_canvas_is_cut_off, 7) {
    static const struct {
        double x, y;
        int left, top, width, height;
    } rows[] = {{0, 4.5, 0, 3, 2, 3},   {10, 4.5, 8, 3, 2, 3}, {5, 0.5, 3, 0, 4, 2},
                {5, 9.5, 3, 8, 4, 2},   {-40, 5, 0, 0, 0, 0},  {5, 400, 0, 0, 0, 0},
                {1e9, -1e9, 0, 0, 0, 0}};
    const ex_cutout cutout = make_cutout(255);
    ex_box hull;
    int seen = 0;
    draw(&cutout, (ex_placement){.x = rows[_i].x, .y = rows[_i].y, .scale = 1}, &hull);
    check_box(&hull, rows[_i].left, rows[_i].top, rows[_i].width, rows[_i].height);
    for (int i = 0; i < SIDE * SIDE; i++) seen += coverage[i] == 255;
    ck_assert_int_eq(seen, rows[_i].width * rows[_i].height);
}

/* Turned by an eighth, a square's hull is that of its diagonal, and the area it covers stays. */
TEST("drawing", an_eighth_of_a_turn_keeps_the_area) {
    unsigned char pixels[4 * 4 * 4];
    const ex_cutout cutout = {4, 4, pixels};
    ex_box hull;
    double area = 0;
    memset(pixels, 255, sizeof pixels);
    draw(&cutout, (ex_placement){.x = 5, .y = 5, .scale = 1, .angle = QUARTER / 2}, &hull);
    for (int i = 0; i < SIDE * SIDE; i++) area += coverage[i] / 255.0;
    ck_assert_double_eq_tol(area, 16, 0.8);
    ck_assert(hull.width >= 4 && hull.width <= 6); /* 4 * sqrt(2), whose tips are thin */
    ck_assert(hull.width == hull.height && hull.x == hull.y);
}

/* ---- loading ----------------------------------------------------------------------------------- */

/* A PNG of two colours, the right half of it transparent. */
static void write_png(const char *path) {
    unsigned char pixels[8 * 16 * 4];
    png_image image = {.version = PNG_IMAGE_VERSION, .width = 16, .height = 8};
    image.format = PNG_FORMAT_RGBA;
    for (int i = 0; i < 8 * 16; i++) {
        const unsigned char pixel[4] = {20, 40, 60, i % 16 < 8 ? 255 : 0};
        memcpy(pixels + 4 * i, pixel, 4);
    }
    ck_assert(png_image_write_to_file(&image, path, 0, pixels, 0, NULL));
}

TEST("loading", alpha_is_loaded) {
    char path[] = "/tmp/check_ex_cutout.XXXXXX";
    ex_cutout cutout;
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    write_png(path);
    ck_assert_int_eq(ex_cutout_load(path, 0, &cutout, NULL), EX_OK);
    ck_assert_int_eq(cutout.width, 16);
    ck_assert_mem_eq(cutout.rgba, ((unsigned char[]){20, 40, 60, 255}), 4);
    ck_assert_int_eq(cutout.rgba[4 * 15 + 3], 0);
    ex_cutout_clear(&cutout);
    ck_assert_int_eq(ex_cutout_load(path, 4, &cutout, NULL), EX_OK);
    ck_assert(cutout.width == 4 && cutout.height == 2);
    ck_assert_mem_eq(cutout.rgba, ((unsigned char[]){20, 40, 60, 255}), 4);
    ck_assert_int_eq(cutout.rgba[4 * 3 + 3], 0);
    ex_cutout_clear(&cutout);
    ex_cutout_clear(&cutout);
    remove(path);
}

TEST("loading", embedded_files_load) {
    ex_cutout cutout;
    ck_assert_int_eq(ex_cutout_load(CARD, 64, &cutout, NULL), EX_OK);
    ck_assert_int_eq(cutout.height, 64);
    ck_assert_int_eq(cutout.rgba[3] < 128, 1); /* a card has round corners */
    ck_assert_int_ge(cutout.rgba[4 * (32 * cutout.width + cutout.width / 2) + 3], 250);
    ex_cutout_clear(&cutout);
    ck_assert_int_eq(ex_cutout_load(PHOTO, 0, &cutout, NULL), EX_OK);
    for (int i = 0; i < cutout.width * cutout.height; i++)
        ck_assert_int_eq(cutout.rgba[4 * i + 3], 255);
    ex_cutout_clear(&cutout);
}

TEST("loading", what_is_no_picture_is_refused) {
    ex_cutout cutout = {1, 1, cut_pixels};
    ex_error error;
    ck_assert_int_eq(ex_cutout_load("examples/data/README.md", 0, &cutout, &error), EX_EINPUT);
    ck_contains(error.text, "README.md");
    ck_assert_ptr_null(cutout.rgba);
    ck_assert_int_eq(cutout.width, 0);
}

SUITE("ex_cutout")
