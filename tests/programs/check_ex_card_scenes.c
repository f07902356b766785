/*
 * check_ex_card_scenes.c - scenes of cards: the same in whatever parts they are asked for, boxes where the
 * cards are, splits that share nothing, folders that cannot be used; and the means of sizes.
 */
#include "card_scenes.h"
#include "suite.h"
#include "kmeans.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

enum { SIDE = 64, SCENES = 40, PIXELS = 3 * SIDE * SIDE };

typedef float boxes[EX_CARDS_MOST][EX_CARD_NUMBERS];

static unsigned char pictures[SCENES][PIXELS], again[SCENES][PIXELS];
static boxes told[SCENES], told_again[SCENES];

static ex_card_scenes *open_scenes(ex_card_classes classes, uint64_t seed) {
    ex_card_scenes_options options = {.folder = "examples/data",
                                      .classes = classes,
                                      .side = SIDE,
                                      .scenes = {SCENES, SCENES},
                                      .seed = seed};
    ex_card_scenes *scenes;
    ex_error error;
    ck_assert_msg(ex_card_scenes_open(&options, &scenes, &error) == EX_OK, "%s", error.text);
    return scenes;
}

static void fill(const ex_card_scenes *scenes, ex_split split, uint64_t epoch, size_t first,
                 size_t count, unsigned char (*into)[PIXELS], boxes *of) {
    ex_source source = ex_card_scenes_source(scenes);
    ck_assert_uint_eq(ex_tensor_bytes(&source.tensors[0]), PIXELS);
    void *buffers[] = {into, of};
    ex_error error;
    ck_assert_int_eq(source.fill(scenes, split, epoch, first, count, buffers, &error), EX_OK);
}

TEST("scenes", the_same_in_parts) {
    ex_card_scenes *scenes = open_scenes(EX_CARDS_BY_SUIT, 1);
    fill(scenes, EX_TRAINING, 2, 0, 20, pictures, told);
    for (size_t i = 0; i < 20; i++)
        fill(scenes, EX_TRAINING, 2, 19 - i, 1, again + 19 - i, told_again + 19 - i);
    ck_assert_int_eq(memcmp(pictures, again, 20 * sizeof *pictures), 0);
    ck_assert_int_eq(memcmp(told, told_again, 20 * sizeof *told), 0);
    ex_card_scenes_free(scenes);
}

/* Another epoch, seed or split is another scene; validation is the same in each epoch. */
TEST("scenes", scenes_depend_on_what_they_should) {
    ex_card_scenes *one = open_scenes(EX_CARDS_BY_SUIT, 1), *two = open_scenes(EX_CARDS_BY_SUIT, 2);
    fill(one, EX_TRAINING, 1, 0, 4, pictures, told);
    fill(one, EX_TRAINING, 2, 0, 4, again, told_again);
    for (int i = 0; i < 4; i++) ck_assert_int_ne(memcmp(pictures[i], again[i], sizeof *again), 0);
    fill(two, EX_TRAINING, 1, 0, 4, again, told_again);
    for (int i = 0; i < 4; i++) ck_assert_int_ne(memcmp(pictures[i], again[i], sizeof *again), 0);
    fill(one, EX_VALIDATION, 1, 0, 4, again, told_again);
    for (int i = 0; i < 4; i++) ck_assert_int_ne(memcmp(pictures[i], again[i], sizeof *again), 0);
    fill(one, EX_VALIDATION, 7, 0, 4, pictures, told);
    ck_assert_int_eq(memcmp(pictures, again, 4 * sizeof *again), 0);
    ex_card_scenes_free(one);
    ex_card_scenes_free(two);
}

/* Boxes are inside, as large as a card can be, those that are there first, and not one upon another. */
static void check_boxes(boxes of, size_t classes, size_t *seen) {
    int none = 0;
    for (int i = 0; i < EX_CARDS_MOST; i++) {
        const float *b = of[i];
        if (b[0] < 0) none = 1;
        if (b[0] < 0) continue;
        ck_assert(!none && b[0] < (float)classes && b[0] == floorf(b[0]));
        seen[(size_t)b[0]]++;
        ck_assert(b[1] - b[3] / 2 > -0.02F && b[1] + b[3] / 2 < 1.02F);
        ck_assert(b[2] - b[4] / 2 > -0.02F && b[2] + b[4] / 2 < 1.02F);
        ck_assert(b[3] > 0.2F && b[3] < 0.65F && b[4] > 0.3F && b[4] < 0.75F);
        for (int j = 0; j < i; j++)
            ck_assert(fabsf(of[j][1] - b[1]) + fabsf(of[j][2] - b[2]) > 0.1F);
    }
    ck_assert(of[0][0] >= 0);
}

TEST_LOOP("scenes", boxes_are_where_cards_can_be, 4) {
    static const size_t counts[] = {4, 7};
    ex_card_scenes *scenes = open_scenes((ex_card_classes)(_i / 2), 3);
    size_t seen[7] = {0}, classes = ex_card_scenes_class_count(scenes);
    ck_assert_uint_eq(classes, counts[_i / 2]);
    fill(scenes, (ex_split)(_i % 2), 1, 0, SCENES, pictures, told);
    for (size_t i = 0; i < SCENES; i++) check_boxes(told[i], classes, seen);
    for (size_t i = 0; i < classes; i++) ck_assert_uint_gt(seen[i], 0);
    ex_card_scenes_free(scenes);
}

/*
 * What the boxes say is there to be seen: cards are light and have a light middle row somewhere; between the
 * inside of a box and the same place of another scene the pictures differ.
 */
TEST("scenes", cards_are_light) {
    ex_card_scenes *scenes = open_scenes(EX_CARDS_BY_SUIT, 5);
    double light = 0;
    size_t cards = 0;
    fill(scenes, EX_VALIDATION, 1, 0, SCENES, pictures, told);
    for (size_t i = 0; i < SCENES; i++) {
        const float *b = told[i][0];
        int x = (int)((b[1] - 0.3F * b[3]) * SIDE), y = (int)(b[2] * SIDE);
        int last = told[i][1][0] < 0; /* alone, so nothing lies upon it */
        if (!last) continue;
        cards++;
        light += pictures[i][3 * (y * SIDE + x) + 1]; /* green, between the pips */
    }
    ck_assert_uint_gt(cards, 5);
    ck_assert_double_gt(light / (double)cards,
                        170); /* white is 255, the mean of all pictures 116 */
    ex_card_scenes_free(scenes);
}

TEST("scenes", splits_share_nothing) {
    ex_card_scenes *suits = open_scenes(EX_CARDS_BY_SUIT, 1),
                   *ranks = open_scenes(EX_CARDS_BY_RANK, 1);
    ck_assert_str_eq(ex_card_scenes_unseen(suits), "white");
    ck_assert_uint_eq(ex_card_scenes_cards(suits, EX_TRAINING), 3 * 52);
    ck_assert_uint_eq(ex_card_scenes_cards(suits, EX_VALIDATION), 52);
    ck_assert_uint_eq(ex_card_scenes_cards(ranks, EX_TRAINING), 3 * (6 * 4 + 2));
    ck_assert_uint_eq(ex_card_scenes_cards(ranks, EX_VALIDATION), 6 * 4 + 2);
    ck_assert_uint_gt(ex_card_scenes_patterns(suits, EX_VALIDATION), 5);
    ck_assert_str_eq(ex_card_scenes_class_name(suits, 3), "spades");
    ck_assert_str_eq(ex_card_scenes_class_name(ranks, 6), "joker");
    ex_card_scenes_free(suits);
    ex_card_scenes_free(ranks);
    ex_card_scenes_free(NULL);
}

TEST_LOOP("scenes", a_folder_without_cards_is_refused, 2) {
    ex_card_scenes_options options = {
        .folder = _i ? "examples/data/food" : "/nonexistent", .side = SIDE, .scenes = {1, 1}};
    ex_card_scenes *scenes = (ex_card_scenes *)&options;
    ex_error error;
    ck_assert_int_eq(ex_card_scenes_open(&options, &scenes, &error), EX_EINPUT);
    ck_assert_ptr_null(scenes);
    ck_contains(error.text, options.folder);
    ck_contains(error.text, _i ? "STYLE_SUIT_RANK.png" : "No such file");
}

/* ---- sizes --------------------------------------------------------------------------------------- */

TEST("sizes", means_of_three_groups) {
    ex_size sizes[] = {{5, 6}, {1, 1}, {5, 5}, {1, 2}, {9, 1}, {5, 7}, {2, 1}, {9, 2}, {9, 3}};
    ex_size means[3];
    ex_kmeans(sizes, 9, means, 3);
    ck_assert_double_eq_tol(means[0].width, 4.0 / 3, 1e-12);
    ck_assert_double_eq_tol(means[0].height, 4.0 / 3, 1e-12);
    ck_assert_double_eq_tol(means[1].width, 9, 1e-12);
    ck_assert_double_eq_tol(means[1].height, 2, 1e-12);
    ck_assert_double_eq_tol(means[2].width, 5, 1e-12);
    ck_assert_double_eq_tol(means[2].height, 6, 1e-12);
}

TEST("sizes", means_of_equal_sizes) {
    ex_size sizes[] = {{2, 3}, {2, 3}, {2, 3}}, means[3];
    ex_kmeans(sizes, 3, means, 3);
    for (int i = 0; i < 3; i++) ck_assert(means[i].width == 2 && means[i].height == 3);
}

TEST("sizes", anchors_are_sizes_of_cards) {
    ex_card_scenes *scenes = open_scenes(EX_CARDS_BY_SUIT, 1);
    float anchors[3][2];
    ex_card_scenes_anchors(scenes, 3, anchors);
    for (int i = 0; i < 3; i++) {
        ck_assert(anchors[i][0] > 0.25F && anchors[i][0] < anchors[i][1] && anchors[i][1] < 0.7F);
        if (i) ck_assert(anchors[i][1] > anchors[i - 1][1]);
    }
    ex_card_scenes_free(scenes);
}

SUITE("ex_card_scenes")
