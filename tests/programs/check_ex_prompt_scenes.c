/*
 * check_ex_prompt_scenes.c - scenes with a prompt: positions in words, tokens, what is where, masks, what a
 * seed decides, files that only validation has, and folders that are none.
 */
#include "prompt_scenes.h"

#include "suite.h"

#include <stdio.h>

enum { SIDE = 48, SCENES = 24, PIXELS = SIDE * SIDE };

static ex_prompt_scenes *scenes_that(uint64_t seed, int same) {
    const ex_prompt_scenes_options options = {.things = "examples/data/clipart/train",
                                              .patterns = "examples/data/patterns",
                                              .side = SIDE,
                                              .count = {SCENES, SCENES},
                                              .seed = seed,
                                              .same = same};
    ex_prompt_scenes *scenes;
    ex_error error;
    ck_assert_msg(ex_prompt_scenes_open(&options, &scenes, &error) == EX_OK, "%s", error.text);
    return scenes;
}

static ex_prompt_scenes *scenes_of(uint64_t seed) {
    return scenes_that(seed, 0);
}

/* ---- words --------------------------------------------------------------------------------------- */

/* On a canvas of 100: its middle covered; a quarter; a quarter, and less than 20 from the middle. */
static const struct {
    ex_box box;
    int position;
} boxes[] = {
    {{40, 40, 20, 20}, 0}, {{10, 20, 40, 30}, 0},    {{0, 0, 20, 20}, 1},   {{80, 0, 20, 20}, 2},
    {{0, 80, 20, 20}, 3},  {{80, 80, 20, 20}, 4},    {{30, 30, 19, 19}, 5}, {{51, 30, 19, 19}, 6},
    {{30, 51, 19, 19}, 7}, {{51, 51, 19, 19}, 8},    {{0, 45, 20, 20}, 3},  {{45, 0, 20, 20}, 2},
    {{29, 49, 20, 20}, 7}, {{0, 0, 100, 49}, 1 + 1}, {{24, 24, 25, 25}, 5},
};

TEST_LOOP("words", positions_in_words, LENGTH(boxes)) {
    ex_box box = boxes[_i].box;
    /* The middle of a strip along the top is above that of the canvas, and as far right as it. */
    ck_assert_int_eq(ex_prompt_position(&box, 100), boxes[_i].position);
}

TEST("words", prompts) {
    char text[EX_PROMPT_TOKENS];
    ex_prompt_scenes *scenes = scenes_of(1);
    ck_assert_uint_eq(ex_prompt_scenes_classes(scenes), 20);
    ex_prompt_text(scenes, 0, 1, text);
    ck_assert_str_eq(text, "segment the aiga in the top left");
    ex_prompt_text(scenes, 0, 8, text);
    ck_assert_str_eq(text, "segment the aiga near the center in the bottom right");
    ex_prompt_scenes_free(scenes);
}

TEST("words", tokens) {
    int64_t row[EX_PROMPT_TOKENS];
    char text[100] = "";
    ex_prompt_tokens("a\xc3\xa4", row);
    const int64_t expected[] = {EX_PROMPT_BEGIN, 'a', 0xc3, 0xa4, EX_PROMPT_END, EX_PROMPT_PADDING};
    for (int i = 0; i < EX_PROMPT_TOKENS; i++) ck_assert_int_eq(row[i], expected[i < 5 ? i : 5]);
    memset(text, 'x', sizeof text - 1);
    ex_prompt_tokens(text, row);
    ck_assert_int_eq(row[EX_PROMPT_TOKENS - 2], 'x');
    ck_assert_int_eq(row[EX_PROMPT_TOKENS - 1], EX_PROMPT_END);
}

/* ---- what is where ------------------------------------------------------------------------------- */

static double overlap(const ex_box *a, const ex_box *b) {
    double left = a->x > b->x ? a->x : b->x, top = a->y > b->y ? a->y : b->y;
    double right = a->x + a->width < b->x + b->width ? a->x + a->width : b->x + b->width;
    double bottom = a->y + a->height < b->y + b->height ? a->y + a->height : b->y + b->height;
    double both = right > left && bottom > top ? (right - left) * (bottom - top) : 0;
    return both / (a->width * a->height + b->width * b->height - both);
}

static void check_pair(const ex_thing *a, const ex_thing *b) {
    ck_assert(a->label != b->label || a->position != b->position);
    ck_assert_double_le(overlap(&a->box, &b->box), 0.1 + 1e-9);
}

TEST("pictures", each_prompt_means_one_thing) {
    ex_prompt_scenes *scenes = scenes_of(1);
    int twice = 0, numbers[EX_PROMPT_THINGS + 1] = {0}, seen[EX_PROMPT_POSITIONS] = {0};
    for (size_t i = 0; i < 600; i++) {
        ex_scene scene;
        ex_prompt_scenes_describe(scenes, EX_TRAINING, 1, i, &scene);
        ck_assert_uint_lt(scene.named, scene.thing_count);
        numbers[scene.thing_count]++;
        seen[scene.things[scene.named].position]++;
        for (size_t a = 0; a < scene.thing_count; a++) {
            const ex_box *box = &scene.things[a].box;
            ck_assert(box->x >= 0 && box->y >= 0 && box->x + box->width <= SIDE + 1e-9 &&
                      box->y + box->height <= SIDE + 1e-9);
            for (size_t b = 0; b < a; b++) check_pair(&scene.things[a], &scene.things[b]);
        }
        twice += scene.thing_count > 1 && scene.things[0].label == scene.things[1].label;
    }
    ck_assert_int_gt(twice, 100);
    ck_assert_int_gt(numbers[2], 200);
    ck_assert_int_gt(numbers[3], 100);
    ck_assert_int_lt(numbers[1], 60);
    for (int i = 0; i < EX_PROMPT_POSITIONS; i++) ck_assert_int_gt(seen[i], 0);
    ex_prompt_scenes_free(scenes);
}

TEST("pictures", epochs_may_be_the_same) {
    for (int same = 0; same < 2; same++) {
        ex_prompt_scenes *scenes = scenes_that(1, same);
        int equal = 0;
        for (size_t i = 0; i < SCENES; i++) {
            ex_scene first, third;
            ex_prompt_scenes_describe(scenes, EX_TRAINING, 1, i, &first);
            ex_prompt_scenes_describe(scenes, EX_TRAINING, 3, i, &third);
            equal += first.pattern == third.pattern && first.shift_x == third.shift_x &&
                     first.things[0].sample == third.things[0].sample && first.named == third.named;
        }
        ck_assert_int_eq(equal == SCENES, same);
        ex_prompt_scenes_free(scenes);
    }
}

TEST("pictures", validation_has_files_of_its_own) {
    enum { MOST = 1000 };
    static char used[2][MOST];
    ex_prompt_scenes *scenes = scenes_of(1);
    for (int split = 0; split < 2; split++)
        for (size_t i = 0; i < 1000; i++) {
            ex_scene scene;
            ex_prompt_scenes_describe(scenes, (ex_split)split, 1, i, &scene);
            for (size_t j = 0; j < scene.thing_count; j++) {
                ck_assert_uint_lt(scene.things[j].sample, MOST);
                used[split][scene.things[j].sample] = 1;
            }
        }
    int both = 0, files[2] = {0};
    for (int i = 0; i < MOST; i++) {
        both += used[0][i] && used[1][i];
        for (int split = 0; split < 2; split++) files[split] += used[split][i];
    }
    ck_assert_int_eq(both, 0);
    ck_assert_int_gt(files[0], 200);
    ck_assert_int_gt(files[1], 40);
    ex_prompt_scenes_free(scenes);
}

/* ---- samples ------------------------------------------------------------------------------------- */

typedef struct samples {
    unsigned char pictures[SCENES * 3 * PIXELS];
    float masks[SCENES * PIXELS];
    int64_t tokens[SCENES * EX_PROMPT_TOKENS];
} samples;

/* In pieces of this many, the last first. */
static void fill(const ex_prompt_scenes *scenes, ex_split split, uint64_t epoch, size_t piece,
                 samples *out) {
    const ex_source source = ex_prompt_scenes_source(scenes);
    ex_error error;
    ck_assert_uint_eq(source.count(source.self, split), SCENES);
    ck_assert_uint_eq(ex_tensor_bytes(&source.tensors[0]), 3 * PIXELS);
    for (size_t at = SCENES; at > 0;) {
        size_t count = at < piece ? at : piece;
        at -= count;
        void *const buffers[] = {out->pictures + at * 3 * PIXELS, out->masks + at * PIXELS,
                                 out->tokens + at * EX_PROMPT_TOKENS};
        ck_assert_int_eq(source.fill(source.self, split, epoch, at, count, buffers, &error), EX_OK);
    }
}

static samples one, other;

TEST("pictures", a_seed_decides) {
    ex_prompt_scenes *scenes = scenes_of(1), *again = scenes_of(1), *others = scenes_of(2);
    fill(scenes, EX_TRAINING, 3, SCENES, &one);
    fill(again, EX_TRAINING, 3, 5, &other);
    ck_assert_int_eq(memcmp(&one, &other, sizeof one), 0);
    fill(scenes, EX_TRAINING, 4, SCENES, &other);
    ck_assert_int_ne(memcmp(&one, &other, sizeof one), 0);
    fill(others, EX_TRAINING, 3, SCENES, &other);
    ck_assert_int_ne(memcmp(&one, &other, sizeof one), 0);
    fill(scenes, EX_VALIDATION, 0, SCENES, &one);
    fill(scenes, EX_VALIDATION, 7, SCENES, &other);
    ck_assert_int_eq(memcmp(&one, &other, sizeof one), 0);
    ex_prompt_scenes_free(scenes);
    ex_prompt_scenes_free(again);
    ex_prompt_scenes_free(others);
}

/* The mask lies in the box of what the prompt names, and is where the pattern is covered. */
TEST("pictures", a_mask_is_where_its_thing_is) {
    ex_prompt_scenes *scenes = scenes_of(1);
    double area = 0;
    fill(scenes, EX_VALIDATION, 0, SCENES, &one);
    for (size_t i = 0; i < SCENES; i++) {
        ex_scene scene;
        ex_prompt_scenes_describe(scenes, EX_VALIDATION, 0, i, &scene);
        const ex_box *box = &scene.things[scene.named].box;
        const float *mask = one.masks + i * PIXELS;
        for (int p = 0; p < PIXELS; p++) {
            int x = p % SIDE, y = p / SIDE;
            ck_assert(mask[p] == 0.0f || mask[p] == 1.0f);
            area += (double)mask[p];
            if (mask[p] == 0.0f) continue;
            ck_assert_double_ge(x + 2, box->x);
            ck_assert_double_ge(y + 2, box->y);
            ck_assert_double_le(x - 1, box->x + box->width);
            ck_assert_double_le(y - 1, box->y + box->height);
        }
    }
    ck_assert_double_gt(area / SCENES / PIXELS, 0.03);
    ck_assert_double_lt(area / SCENES / PIXELS, 0.3);
    ex_prompt_scenes_free(scenes);
}

/* ---- chance -------------------------------------------------------------------------------------- */

/* The first of the three by another way: from the masks. */
TEST("pictures", chance) {
    ex_prompt_scenes *scenes = scenes_of(1);
    ex_prompt_chance got;
    double everything = 0;
    fill(scenes, EX_VALIDATION, 0, SCENES, &one);
    for (size_t i = 0; i < SCENES; i++) {
        double area = 0;
        for (int p = 0; p < PIXELS; p++) area += (double)one.masks[i * PIXELS + (size_t)p];
        everything += 2 * area / (PIXELS + area) / SCENES;
    }
    ck_assert_int_eq(ex_prompt_scenes_chance(scenes, &got), EX_OK);
    ck_assert_double_eq_tol(got.everything, everything, 1e-9);
    ck_assert_double_gt(got.all_things, got.everything);
    ck_assert_double_lt(got.all_things, 0.9);
    ck_assert(got.one_thing > 1.0 / 3 && got.one_thing < 0.6);
    ex_prompt_scenes_free(scenes);
}

/* ---- folders ------------------------------------------------------------------------------------- */

TEST_LOOP("pictures", folders_that_are_none, 2) {
    ex_prompt_scenes_options options = {.things = "examples/data/clipart/train",
                                        .patterns = "examples/data/patterns",
                                        .side = SIDE,
                                        .count = {1, 1}};
    ex_prompt_scenes *scenes;
    ex_error error;
    *(_i ? &options.patterns : &options.things) = "examples/none";
    ck_assert_int_eq(ex_prompt_scenes_open(&options, &scenes, &error), EX_EINPUT);
    ck_contains(error.text, "examples/none");
    ck_assert_ptr_null(scenes);
}

SUITE("ex_prompt_scenes")
