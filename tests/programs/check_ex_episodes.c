/*
 * check_ex_episodes.c - tests of examples/documents/data/episodes.h: classes and their sets, what an episode takes of
 * them, that it is a function of seed, epoch and number alone, and folders that do not do.
 */
#include "episodes.h"
#include "suite.h"

#include <stdio.h>

#define CLIPART "examples/data/clipart"

enum { SIDE = 32, PICTURE = 3 * SIDE * SIDE };

static const ex_shape shape = {5, 3, 2};
static ex_class_sets sets;

static ex_flags flags_of(const char *folder) {
    ex_flags flags = EX_FLAGS_INIT;
    flags.data = folder;
    flags.image_size = SIDE;
    return flags;
}

static void open_clipart(void) {
    const ex_flags flags = flags_of(NULL);
    ck_ok(ex_class_sets_open(&flags, NULL, CLIPART, &shape, &sets));
}

static void close_clipart(void) {
    ex_class_sets_close(&sets);
}

static ex_episodes episodes_of(int variants) {
    return (ex_episodes){.classes = &sets,
                         .set = {EX_TRAIN_CLASSES, EX_VAL_CLASSES},
                         .counts = {6, 4},
                         .shape = shape,
                         .side = SIDE,
                         .variants = variants,
                         .seed = 3};
}

/* So many episodes; free() them. */
static float *render(const ex_episodes *episodes, ex_split split, uint64_t epoch, size_t first,
                     size_t count) {
    const ex_source source = ex_episodes_source(episodes);
    size_t pictures = (size_t)(shape.ways * (shape.shots + shape.queries));
    float *pixels = calloc(count * pictures, PICTURE * sizeof *pixels);
    void *const buffers[1] = {pixels};
    ck_assert_ptr_nonnull(pixels);
    ck_assert_int_eq(source.fill(source.self, split, epoch, first, count, buffers, NULL), EX_OK);
    return pixels;
}

/* The class and the number of a picture that was rendered plainly; asserts that there is one. */
static const ex_class *find(const float *pixels, int set, size_t *out_number) {
    static float plain[PICTURE];
    for (size_t c = 0; c < sets.counts[set]; c++) {
        const ex_class *class = &sets.classes[set][c];
        for (size_t i = 0; i < class->count; i++) {
            ck_assert_int_eq(
                ex_dataset_picture(class->dataset, class->first + i, 0, SIDE, false, plain, NULL),
                EX_OK);
            *out_number = i;
            if (memcmp(plain, pixels, sizeof plain) == 0) return class;
        }
    }
    ck_abort_msg("a picture of no class");
    return NULL;
}

/* ---- sets ---------------------------------------------------------------------------------------- */

TEST("classes", the_classes_that_come_with_it) {
    static const size_t expected[EX_CLASS_SETS] = {20, 5, 8};
    for (int set = 0; set < EX_CLASS_SETS; set++) {
        ck_assert_uint_eq(sets.counts[set], expected[set]);
        for (size_t i = 0; i < sets.counts[set]; i++) {
            const ex_class *class = &sets.classes[set][i];
            ck_assert_uint_ge(class->count, 19);
            for (size_t j = 0; j < class->count; j++)
                ck_assert_uint_eq(class->dataset->samples[class->first + j].label, class->label);
        }
    }
}

/* A plain folder of class folders: each class is in one set, and each set has some. */
TEST("classes", a_plain_folder_is_shared_out) {
    static const size_t expected[EX_CLASS_SETS] = {11, 3, 6};
    const ex_flags flags = flags_of(CLIPART "/train");
    const ex_shape small = {3, 3, 2};
    ex_class_sets shared = {0};
    int seen[20] = {0};
    ck_ok(ex_class_sets_open(&flags, NULL, NULL, &small, &shared));
    for (int set = 0; set < EX_CLASS_SETS; set++) {
        ck_assert_uint_eq(shared.counts[set], expected[set]);
        for (size_t i = 0; i < shared.counts[set]; i++) seen[shared.classes[set][i].label]++;
    }
    for (int i = 0; i < 20; i++) ck_assert_int_eq(seen[i], 1);
    ex_class_sets_close(&shared);
}

TEST_LOOP("classes", too_few_classes_are_refused, 4) {
    static const struct {
        const char *folder, *word;
        ex_shape shape;
    } rows[] = {{CLIPART, "--n-way: 9 classes are more than the 5 for 'val'", {9, 3, 2}},
                {CLIPART, "more than the 20 pictures of --k-shot", {5, 20, 2}},
                {CLIPART "/val", "--n-way: 5 classes are more than the", {5, 3, 2}},
                {"/nonexistent", "--data: /nonexistent", {5, 3, 2}}};
    const ex_flags flags = flags_of(rows[_i].folder);
    ex_class_sets refused = {0};
    ck_refused(ex_class_sets_open(&flags, NULL, NULL, &rows[_i].shape, &refused), MT_EINVAL,
               rows[_i].word);
    ex_class_sets_close(&refused);
    ex_class_sets_close(&refused);
}

/* ---- episodes ------------------------------------------------------------------------------------ */

/* Classes differ, pictures of one class come together, and none is both known and to be told. */
TEST("episodes", an_episode_is_of_different_classes_and_pictures) {
    const ex_episodes episodes = episodes_of(0);
    float *pixels = render(&episodes, EX_VALIDATION, 0, 1, 1), *picture = pixels;
    const ex_class *classes[5];
    for (int c = 0; c < 5; c++) {
        size_t numbers[5];
        for (int i = 0; i < 5; i++, picture += PICTURE) {
            const ex_class *class = find(picture, EX_VAL_CLASSES, &numbers[i]);
            if (i == 0) classes[c] = class;
            ck_assert_ptr_eq(class, classes[c]);
            for (int j = 0; j < i; j++) ck_assert_uint_ne(numbers[i], numbers[j]);
        }
        for (int d = 0; d < c; d++) ck_assert_ptr_ne(classes[c], classes[d]);
    }
    free(pixels);
}

/* The same whoever renders it with whatever else, another in another epoch or place. */
TEST_LOOP("episodes", an_episode_is_a_function_of_its_place, 2) {
    const ex_episodes episodes = episodes_of(_i);
    const size_t floats = 25 * PICTURE;
    for (int split = 0; split < 2; split++) {
        float *all = render(&episodes, (ex_split)split, 2, 0, 4);
        float *one = render(&episodes, (ex_split)split, 2, 2, 1);
        float *other = render(&episodes, (ex_split)split, 3, 2, 1);
        ck_assert_int_eq(memcmp(all + 2 * floats, one, floats * sizeof *one), 0);
        ck_assert_int_ne(memcmp(all + floats, one, floats * sizeof *one), 0);
        ck_assert_int_ne(memcmp(other, one, floats * sizeof *one), 0);
        free(all);
        free(one);
        free(other);
    }
}

/* A class of fewer pictures than are needed lends those to be told again, the known ones never. */
TEST("episodes", a_small_class_lends_queries_again) {
    ex_episodes episodes = episodes_of(0);
    episodes.shape = (ex_shape){5, 15, 10}; /* of 20 pictures */
    const ex_source source = ex_episodes_source(&episodes);
    float *pixels = calloc(5 * 25, PICTURE * sizeof *pixels), *picture = pixels;
    void *const buffers[1] = {pixels};
    ck_assert_int_eq(source.fill(source.self, EX_VALIDATION, 0, 0, 1, buffers, NULL), EX_OK);
    for (int c = 0; c < 5; c++) {
        int times[20] = {0};
        for (int i = 0; i < 25; i++, picture += PICTURE) {
            size_t number;
            find(picture, EX_VAL_CLASSES, &number);
            times[number] += i < 15 ? 100 : 1;
        }
        for (int i = 0; i < 20; i++) ck_assert(times[i] == 100 || times[i] == 2);
    }
    free(pixels);
}

/* Validation is never changed; in training a class is turned and its colours exchanged as a whole. */
TEST("episodes", variants_are_of_training_alone) {
    const ex_episodes plain = episodes_of(0), changed = episodes_of(1);
    const size_t floats = 25 * PICTURE;
    for (int split = 0; split < 2; split++) {
        float *a = render(&plain, (ex_split)split, 1, 0, 4),
              *b = render(&changed, (ex_split)split, 1, 0, 4);
        int same = memcmp(a, b, 4 * floats * sizeof *a) == 0;
        double sums[2] = {0, 0};
        ck_assert_int_eq(same, split == EX_VALIDATION);
        for (size_t i = 0; i < 4 * floats; i++) {
            sums[0] += a[i];
            sums[1] += b[i];
        }
        ck_assert_double_eq_tol(sums[0], sums[1], 1e-3); /* pixels have changed places */
        free(a);
        free(b);
    }
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("classes"), open_clipart, close_clipart);
    tcase_add_checked_fixture(suite_case_named("episodes"), open_clipart, close_clipart);
    return suite_run_named("ex_episodes");
}
