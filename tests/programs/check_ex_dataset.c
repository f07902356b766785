/*
 * check_ex_dataset.c - tests of examples/documents/data/dataset.h: opening good and bad folders, the
 * split, the order of an epoch, batches.
 *
 * Runs from the project's root (it reads examples/data). Folders with bad files are made here, in
 * a temporary place.
 */
#include "dataset.h"

#include "jpeg_file.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include <png.h>

#define DATA "examples/data/food"
#define SIDE 32
#define FLOATS (3 * SIDE * SIDE)

/* ---- fixtures and file writers -------------------------------------------------------------- */

static void make_class(const char *name) {
    ck_assert_int_eq(mkdir(cli_path(name), 0700), 0);
}

static void write_text(const char *name) {
    cli_write_file(cli_path(name), "hello");
}

/* A picture of one colour. */
static void write_png(const char *name, int width, int height, int value) {
    size_t count = (size_t)width * (size_t)height * 3;
    unsigned char *pixels = malloc(count);
    png_image image = {.version = PNG_IMAGE_VERSION, .format = PNG_FORMAT_RGB};
    ck_assert_ptr_nonnull(pixels);
    memset(pixels, value, count);
    image.width = (png_uint_32)width;
    image.height = (png_uint_32)height;
    ck_assert(png_image_write_to_file(&image, cli_path(name), 0, pixels, 0, NULL));
    free(pixels);
}

/* Two classes of `count` pictures each; in class "a" all pixels are 10, in "b" 200. */
static void make_two_classes(int count) {
    char name[32];
    make_class("a");
    make_class("b");
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "a/%03d.png", i);
        write_png(name, 20, 20, 10);
        snprintf(name, sizeof name, "b/%03d.png", i);
        write_png(name, 20, 20, 200);
    }
}

static struct {
    int count;
    char text[8192];
} warnings; /* of one test: each is a process of its own */

static void remember(void *user, const char *line) {
    size_t used = strlen(warnings.text);
    ck_assert_ptr_eq(user, &warnings);
    warnings.count++;
    snprintf(warnings.text + used, sizeof warnings.text - used, "%s\n", line);
}

static ex_dataset *open_good(const char *folder, const ex_dataset_options *options) {
    ex_dataset *dataset;
    ex_error error;
    ck_assert_msg(ex_dataset_open(folder, options, &dataset, &error) == EX_OK, "%s", error.text);
    return dataset;
}

static void check_refused(const char *folder, const ex_dataset_options *options, const char *names,
                          const char *reason) {
    ex_dataset *dataset = (ex_dataset *)&cli_root; /* must become NULL */
    ex_error error = {{0}};
    ck_assert_int_eq(ex_dataset_open(folder, options, &dataset, &error), EX_EINPUT);
    ck_assert_ptr_null(dataset);
    ck_says(error.text, names, reason);
    ck_assert_ptr_null(strchr(error.text, '\n'));
}

/* Pictures of one epoch and split, from the first on, in their side's size. */
static void fill(const ex_dataset *dataset, ex_split split, uint64_t epoch, size_t first,
                 size_t count, int side, bool augments, float *pixels, int64_t *labels) {
    ck_assert_int_eq(
        ex_dataset_fill(dataset, split, epoch, first, count, side, augments, pixels, labels, NULL),
        EX_OK);
}

/* ---- opening -------------------------------------------------------------------------------- */

TEST("opening", embedded_data_opens) {
    static const char *const classes[8] = {"bread_carbs", "drink",     "fast_food", "fruit",
                                           "ice_cream",   "meat_eggs", "sweets",    "vegetables"};
    ex_dataset *dataset = open_good(DATA, NULL);
    ck_assert_uint_eq(dataset->class_count, 8);
    for (size_t i = 0; i < 8; i++) ck_assert_str_eq(dataset->class_names[i], classes[i]);
    ck_assert_uint_eq(dataset->sample_count, 279);
    ck_assert_uint_eq(dataset->skipped, 0);
    ck_assert_uint_le(dataset->pixel_bytes, 279 * 128 * 128 * 3);
    ex_dataset_free(dataset);
}

/* All the bad files of one folder are skipped, counted and named; the good one is kept. */
TEST("opening", bad_files_are_skipped) {
    static const unsigned char pixel[4] = {77, 77, 77, 77};
    ex_dataset_options options = {.warn = remember, .user = &warnings};
    make_two_classes(1);
    write_jpeg("a/cmyk.jpg", 32, JCS_CMYK, pixel, 4, 0, 0);
    write_jpeg("a/cut.jpg", 32, JCS_RGB, pixel, 3, 0, 30);
    write_jpeg("a/good.jpg", 32, JCS_RGB, pixel, 3, 0, 0);
    write_png("a/dot.png", 1, 1, 0);
    cli_write_file(cli_path("a/empty.png"), "");
    write_text("a/text.png");
    write_text("a/notes.txt");
    write_text("a/.hidden.png"); /* ignored, not skipped */
    make_class("a/deeper");      /* ignored */
    make_class(".git");          /* ignored */
    write_text("README.md");     /* ignored */
    ex_dataset *dataset = open_good(cli_root, &options);
    ck_assert_uint_eq(dataset->class_count, 2);
    ck_assert_uint_eq(dataset->sample_count, 3);
    ck_assert_uint_eq(dataset->skipped, 6);
    ck_assert_int_eq(warnings.count, 6);
    ck_says(warnings.text, "cmyk.jpg", "cut.jpg", "dot.png", "empty.png", "text.png", "notes.txt");
    ex_dataset_free(dataset);
}

TEST("opening", missing_folder_is_refused) {
    check_refused(cli_path("nowhere"), NULL, "nowhere", "No such file");
}

TEST("opening", file_as_folder_is_refused) {
    write_text("file");
    check_refused(cli_path("file"), NULL, "file", "FOLDER/CLASS/picture.jpg");
}

TEST("opening", folder_without_classes_is_refused) {
    write_png("picture.png", 20, 20, 0);
    check_refused(cli_root, NULL, cli_root, "no class folder");
}

TEST("opening", one_class_is_refused) {
    make_class("only");
    write_png("only/picture.png", 20, 20, 0);
    check_refused(cli_root, NULL, cli_root, "only one class folder");
}

TEST("opening", class_without_pictures_is_refused) {
    ex_dataset_options options = {.warn = remember, .user = &warnings};
    make_two_classes(2);
    make_class("c");
    write_text("c/text.png");
    check_refused(cli_root, &options, "/c: ", "no usable picture (1 files tried)");
    ck_assert_int_eq(warnings.count, 1);
}

/* One without any file is no class; where that leaves one alone, nothing can be learnt. */
TEST("opening", empty_classes_are_left_out) {
    ex_dataset_options options = {.warn = remember, .user = &warnings};
    make_two_classes(2);
    make_class("Empty");
    make_class("aa");
    make_class("c");
    ex_dataset *dataset = open_good(cli_root, &options);
    ck_assert_int_eq(warnings.count, 3);
    ck_assert_uint_eq(dataset->empty, 3);
    ck_assert_uint_eq(dataset->skipped, 0);
    ck_assert_uint_eq(dataset->class_count, 2);
    ck_assert_str_eq(dataset->class_names[0], "a");
    ck_assert_str_eq(dataset->class_names[1], "b");
    ck_assert_uint_eq(dataset->sample_count, 4);
    ck_assert_uint_eq(dataset->samples[3].label, 1);
    ex_dataset_free(dataset);
    cli_shell("rm -r '%s/a'", cli_root);
    make_class("a");
    check_refused(cli_root, &options, cli_root, "only one class folder with files in it");
    cli_shell("rm -r '%s/b'", cli_root);
    check_refused(cli_root, &options, cli_root, "no class folder with files in it");
}

TEST("opening", memory_bound_is_kept) {
    ex_dataset_options options = {.max_bytes = 4 * 20 * 20 * 3};
    make_two_classes(2);
    ex_dataset *dataset = open_good(cli_root, &options);
    ck_assert_uint_eq(dataset->pixel_bytes, options.max_bytes);
    ck_assert_uint_eq(dataset->not_kept, 0);
    ex_dataset_free(dataset);
    options.max_bytes--;
    dataset = open_good(cli_root, &options);
    ck_assert_uint_eq(dataset->pixel_bytes, 3 * 20 * 20 * 3);
    ck_assert_uint_eq(dataset->not_kept, 1);
    ex_dataset_free(dataset);
}

/* What is decoded again looks as it does when it is kept, also where it is kept smaller. */
TEST("opening", not_kept_is_decoded_again) {
    static float kept[4 * 3 * 16 * 16], again[4 * 3 * 16 * 16];
    ex_dataset_options options = {.keep_side = 18, .validation = -1, .seed = 5};
    ex_dataset *dataset;
    int64_t labels[4], others[4];
    ex_error error;
    make_two_classes(2);
    for (int i = 0; i < 2; i++) {
        options.max_bytes = (size_t)i;
        dataset = open_good(cli_root, &options);
        ck_assert_uint_eq(dataset->not_kept, i ? 4 : 0);
        fill(dataset, EX_TRAINING, 3, 0, 4, 16, true, i ? again : kept, i ? others : labels);
        if (i == 0) ex_dataset_free(dataset);
    }
    ck_assert_mem_eq(kept, again, sizeof(kept));
    ck_assert_mem_eq(labels, others, sizeof(labels));
    remove(cli_path("a/000.png"));
    ck_assert_int_eq(
        ex_dataset_fill(dataset, EX_TRAINING, 3, 0, 4, 16, true, again, others, &error), EX_EINPUT);
    ck_contains(error.text, "a/000.png");
    ex_dataset_free(dataset);
}

/* Large pictures are kept small, strips as well; small ones as they are. */
TEST("opening", pictures_are_kept_small) {
    ex_dataset_options options = {.keep_side = 40};
    make_two_classes(1);
    write_png("a/large.png", 300, 200, 50);
    write_png("a/strip.png", 8, 4000, 50);
    ex_dataset *dataset = open_good(cli_root, &options);
    ck_assert_int_eq(dataset->samples[0].image.width, 20);
    ck_assert_str_eq(dataset->samples[1].name, "large.png");
    ck_assert_int_eq(dataset->samples[1].image.width, 60);
    ck_assert_int_eq(dataset->samples[1].image.height, 40);
    ck_assert_str_eq(dataset->samples[2].name, "strip.png");
    ck_assert_int_eq(dataset->samples[2].image.width, 1);
    ck_assert_int_eq(dataset->samples[2].image.height, 160);
    ex_dataset_free(dataset);
}

/* A bound on the samples takes them evenly, and the same ones each time. */
TEST("opening", sample_bound_is_even) {
    ex_dataset_options options = {.max_samples = 50};
    ex_dataset *first = open_good(DATA, &options), *second = open_good(DATA, &options);
    size_t counts[8] = {0};
    ck_assert_uint_eq(first->sample_count, 50);
    for (size_t i = 0; i < 50; i++) {
        counts[first->samples[i].label]++;
        ck_assert_str_eq(first->samples[i].name, second->samples[i].name);
    }
    for (size_t i = 0; i < 8; i++) ck_assert(counts[i] == 6 || counts[i] == 7);
    ex_dataset_free(first);
    ex_dataset_free(second);
    options.max_samples = 7;
    check_refused(DATA, &options, DATA, "7 samples are too few for 8 classes");
}

/* A class that runs out leaves its share to the others. */
TEST("opening", sample_bound_uses_what_is_there) {
    ex_dataset_options options = {.max_samples = 10};
    make_two_classes(8);
    make_class("c");
    write_png("c/one.png", 20, 20, 0);
    ex_dataset *dataset = open_good(cli_root, &options);
    ck_assert_uint_eq(dataset->sample_count, 10);
    ex_dataset_free(dataset);
}

/* ---- split ---------------------------------------------------------------------------------- */

/* Disjoint, complete, about a fifth of each class. */
TEST("split and order", split_is_stratified) {
    ex_dataset *dataset = open_good(DATA, NULL);
    size_t all[8] = {0}, validation[8] = {0};
    unsigned char seen[279] = {0};
    for (int split = 0; split < 2; split++) {
        for (size_t i = 0; i < dataset->member_count[split]; i++) {
            size_t index = dataset->members[split][i];
            ck_assert_uint_lt(index, 279);
            ck_assert_int_eq(seen[index]++, 0);
            ck_assert_int_eq(dataset->samples[index].validation, split == EX_VALIDATION);
            all[dataset->samples[index].label]++;
            validation[dataset->samples[index].label] += split == EX_VALIDATION;
        }
    }
    ck_assert_uint_eq(
        ex_dataset_count(dataset, EX_TRAINING) + ex_dataset_count(dataset, EX_VALIDATION), 279);
    for (size_t i = 0; i < 8; i++)
        ck_assert_double_eq_tol((double)validation[i] / (double)all[i], 0.2, 0.05);
    ex_dataset_free(dataset);
}

static size_t stem_length(const char *name) {
    const char *end = strstr(name, "__");
    return end ? (size_t)(end - name) : strlen(name);
}

/* Twins (equal up to "__") are never on both sides. */
TEST("split and order", split_keeps_groups_together) {
    ex_dataset *dataset = open_good(DATA, NULL);
    size_t pairs = 0;
    for (size_t i = 1; i < dataset->sample_count; i++) {
        const ex_sample *left = &dataset->samples[i - 1], *right = &dataset->samples[i];
        size_t length = stem_length(left->name);
        if (left->label == right->label && length == stem_length(right->name) &&
            strncmp(left->name, right->name, length) == 0) {
            ck_assert_int_eq(left->validation, right->validation);
            pairs++;
        }
    }
    ck_assert_uint_gt(pairs, 60);
    ex_dataset_free(dataset);
}

/* The seed does not move pictures between training and validation. */
TEST("split and order", split_does_not_depend_on_the_seed) {
    ex_dataset_options options = {.seed = 12345};
    ex_dataset *first = open_good(DATA, NULL), *second = open_good(DATA, &options);
    for (size_t i = 0; i < 279; i++) {
        ck_assert_str_eq(first->samples[i].name, second->samples[i].name);
        ck_assert_int_eq(first->samples[i].validation, second->samples[i].validation);
    }
    ex_dataset_free(first);
    ex_dataset_free(second);
}

/* One picture: training only. Two: one each. One group only: training only. None wanted: none. */
TEST("split and order", small_classes_split_sensibly) {
    ex_dataset_options none = {.validation = -1.0};
    make_class("one");
    make_class("two");
    make_class("twins");
    write_png("one/x.png", 20, 20, 0);
    write_png("two/x.png", 20, 20, 0);
    write_png("two/y.png", 20, 20, 0);
    write_png("twins/x__a.png", 20, 20, 0);
    write_png("twins/x__b.png", 20, 20, 0);
    ex_dataset *dataset = open_good(cli_root, NULL);
    ck_assert_uint_eq(ex_dataset_count(dataset, EX_TRAINING), 4);
    ck_assert_uint_eq(ex_dataset_count(dataset, EX_VALIDATION), 1);
    ck_assert_uint_eq(dataset->samples[dataset->members[EX_VALIDATION][0]].label, 2);
    ex_dataset_free(dataset);
    dataset = open_good(cli_root, &none);
    ck_assert_uint_eq(ex_dataset_count(dataset, EX_VALIDATION), 0);
    ex_dataset_free(dataset);
}

/* ---- order ---------------------------------------------------------------------------------- */

static void check_permutation(const ex_dataset *dataset, ex_split split, const size_t *order) {
    unsigned char seen[279] = {0};
    for (size_t i = 0; i < ex_dataset_count(dataset, split); i++) {
        ck_assert_uint_lt(order[i], 279);
        ck_assert_int_eq(seen[order[i]]++, 0);
        ck_assert_int_eq(dataset->samples[order[i]].validation, split == EX_VALIDATION);
    }
}

/* A permutation that depends on seed and epoch, and on nothing else. */
TEST("split and order", order_is_a_function_of_seed_and_epoch) {
    ex_dataset_options options = {.seed = 5};
    ex_dataset *zero = open_good(DATA, NULL), *five = open_good(DATA, &options);
    size_t a[279], b[279], bytes = ex_dataset_count(zero, EX_TRAINING) * sizeof *a;
    ex_dataset_order(zero, EX_TRAINING, 3, a);
    check_permutation(zero, EX_TRAINING, a);
    ex_dataset_order(zero, EX_TRAINING, 4, b);
    check_permutation(zero, EX_TRAINING, b);
    ck_assert_mem_ne(a, b, bytes);
    ex_dataset_order(five, EX_TRAINING, 3, b);
    ck_assert_mem_ne(a, b, bytes);
    ex_dataset_order(zero, EX_TRAINING, 3, b);
    ck_assert_mem_eq(a, b, bytes);
    ex_dataset_free(zero);
    ex_dataset_free(five);
}

TEST("split and order", validation_order_is_fixed) {
    ex_dataset *dataset = open_good(DATA, NULL);
    size_t order[279];
    ex_dataset_order(dataset, EX_VALIDATION, 9, order);
    check_permutation(dataset, EX_VALIDATION, order);
    ck_assert_mem_eq(order, dataset->members[EX_VALIDATION],
                     ex_dataset_count(dataset, EX_VALIDATION) * sizeof *order);
    ex_dataset_free(dataset);
}

/* Over 2,000 epochs each sample comes first about as often as any other. */
TEST("split and order", order_is_fair) {
    size_t counts[20] = {0}, order[20];
    ex_dataset_options options = {.validation = -1.0};
    make_two_classes(10);
    ex_dataset *dataset = open_good(cli_root, &options);
    for (uint64_t epoch = 0; epoch < 2000; epoch++) {
        ex_dataset_order(dataset, EX_TRAINING, epoch, order);
        counts[order[0]]++;
    }
    for (size_t i = 0; i < 20; i++) { /* expected 100, standard deviation 10 */
        ck_assert_uint_ge(counts[i], 55);
        ck_assert_uint_le(counts[i], 145);
    }
    ex_dataset_free(dataset);
}

/* ---- batches -------------------------------------------------------------------------------- */

/* The pixels and the label of a batch belong together. */
TEST("batches", fill_gives_pixels_and_labels) {
    ex_dataset_options options = {.validation = -1.0};
    static float pixels[20 * FLOATS];
    int64_t labels[20];
    make_two_classes(10);
    ex_dataset *dataset = open_good(cli_root, &options);
    fill(dataset, EX_TRAINING, 0, 0, 20, SIDE, true, pixels, labels);
    for (size_t i = 0; i < 20; i++) { /* the middle pixel's red: class a is 10, class b 200 */
        float value = labels[i] ? 200.0f : 10.0f;
        float red = pixels[i * FLOATS + SIDE / 2 * SIDE + SIDE / 2];
        ck_assert(labels[i] == 0 || labels[i] == 1);
        ck_assert_float_eq_tol(red, (value / 255.0f - 0.485f) / 0.229f, 1e-4f);
    }
    ex_dataset_free(dataset);
}

/* Two batches of 12 are one batch of 24, whichever is asked for first. */
TEST("batches", fill_does_not_depend_on_the_batch) {
    static float whole[24 * FLOATS], parts[24 * FLOATS];
    int64_t labels[24], part_labels[24];
    ex_dataset *dataset = open_good(DATA, NULL);
    fill(dataset, EX_TRAINING, 2, 8, 24, SIDE, true, whole, labels);
    fill(dataset, EX_TRAINING, 2, 20, 12, SIDE, true, parts + 12 * FLOATS, part_labels + 12);
    fill(dataset, EX_TRAINING, 2, 8, 12, SIDE, true, parts, part_labels);
    ck_assert(memcmp(whole, parts, sizeof whole) == 0);
    ck_assert_mem_eq(labels, part_labels, sizeof labels);
    ex_dataset_free(dataset);
}

/* Augmentation changes with the epoch; without it the same picture comes out every time. */
TEST("batches", augmentation_follows_the_epoch) {
    static float plain[4 * FLOATS], first[4 * FLOATS], second[4 * FLOATS];
    int64_t labels[4];
    ex_dataset *dataset = open_good(DATA, NULL);
    fill(dataset, EX_VALIDATION, 0, 0, 4, SIDE, false, plain, labels);
    fill(dataset, EX_VALIDATION, 1, 0, 4, SIDE, false, first, labels);
    ck_assert(memcmp(plain, first, sizeof plain) == 0);
    fill(dataset, EX_VALIDATION, 0, 0, 4, SIDE, true, first, labels);
    fill(dataset, EX_VALIDATION, 1, 0, 4, SIDE, true, second, labels);
    for (size_t i = 0; i < 4 * FLOATS; i += FLOATS) {
        ck_assert(memcmp(plain + i, first + i, FLOATS * sizeof *plain) != 0);
        ck_assert(memcmp(plain + i, second + i, FLOATS * sizeof *plain) != 0);
        ck_assert(memcmp(first + i, second + i, FLOATS * sizeof *plain) != 0);
    }
    ex_dataset_free(dataset);
}

static float corner_of(ex_fit fit) {
    static float pixels[FLOATS];
    ex_dataset_options options = {.validation = -1.0, .fit = fit};
    ex_dataset *dataset = open_good(cli_root, &options);
    int64_t label;
    fill(dataset, EX_TRAINING, 0, 0, 1, SIDE, false, pixels, &label);
    ex_dataset_free(dataset);
    return pixels[0];
}

/* Only padding shows white in the corner of a wide black picture. */
TEST("batches", fits_differ) {
    const float black = -0.485f / 0.229f, white = (1.0f - 0.485f) / 0.229f;
    make_class("a");
    make_class("b");
    write_png("a/wide.png", 40, 20, 0);
    write_png("b/wide.png", 40, 20, 0);
    ck_assert_float_eq_tol(corner_of(EX_FIT_PAD), white, 1e-5f);
    ck_assert_float_eq_tol(corner_of(EX_FIT_CROP), black, 1e-5f);
    ck_assert_float_eq_tol(corner_of(EX_FIT_SQUASH), black, 1e-5f);
}

/* Every embedded picture at the size of the documents' configurations, all finite. */
TEST("batches", fill_covers_all) {
    static float pixels[3 * 224 * 224];
    ex_dataset *dataset = open_good(DATA, NULL);
    int64_t label;
    for (int split = 0; split < 2; split++) {
        for (size_t i = 0; i < ex_dataset_count(dataset, (ex_split)split); i++) {
            int finite = 1;
            fill(dataset, (ex_split)split, 1, i, 1, 224, true, pixels, &label);
            for (size_t j = 0; j < 3 * 224 * 224; j++) finite &= fabsf(pixels[j]) < 3.0f;
            ck_assert(finite);
        }
    }
    ex_dataset_free(dataset);
}

TEST("batches", fill_refuses_bad_positions) {
    ex_dataset *dataset = open_good(DATA, NULL);
    const size_t total = ex_dataset_count(dataset, EX_TRAINING);
    const struct {
        size_t first, count;
        int side;
        ex_status status;
    } rows[] = {{total, 0, 1, EX_OK},
                {total, 1, 1, EX_EINPUT},
                {1, SIZE_MAX, 1, EX_EINPUT},
                {0, 1, 0, EX_EINPUT}};
    float pixel[3];
    int64_t label;
    for (int i = 0; i < LENGTH(rows); i++)
        ck_assert_msg(ex_dataset_fill(dataset, EX_TRAINING, 0, rows[i].first, rows[i].count,
                                      rows[i].side, false, pixel, &label, NULL) == rows[i].status,
                      "row %d", i);
    ex_dataset_free(dataset);
    ex_dataset_free(NULL);
}

int main(void) {
    cli_folder_case("opening");
    cli_folder_case("split and order");
    cli_folder_case("batches");
    return suite_run_named("ex_dataset");
}
