/*
 * nutrition.c - a table of foods, and portions read off the pictures; see nutrition.h.
 */
#include "nutrition.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *const ex_nutrient_names[EX_NUTRIENTS] = {"calories", "protein_g", "carb_g", "fat_g",
                                                     "mass_g"};

enum { MASS = EX_NUTRIENTS - 1 };

/* Of a class: what one gram contains (of itself: 1), and what a portion weighs. */
typedef struct food {
    double in_a_gram[EX_NUTRIENTS], portion;
} food;

struct ex_nutrition {
    const ex_pictures *pictures;
    ex_source base;
    food *foods; /* by label */
};

/* ---- the table --------------------------------------------------------------------------------- */

static mt_status read_number(const char *path, const char *class_name, const json_t *row,
                             const char *name, double *out) {
    const json_t *value = json_object_get(row, name);
    *out = json_number_value(value);
    if (json_is_number(value) && *out >= 0) return MT_OK;
    return mt_set_error(MT_EINVAL, "--include-nutrition: '%s' has no number '%s' for class '%s'",
                        path, name, class_name);
}

static mt_status read_food(const char *path, const char *class_name, const json_t *row, food *f) {
    mt_status status = MT_OK;
    for (int i = 0; i < MASS && status == MT_OK; i++) {
        status = read_number(path, class_name, row, ex_nutrient_names[i], &f->in_a_gram[i]);
        f->in_a_gram[i] /= 100;
    }
    f->in_a_gram[MASS] = 1;
    return status == MT_OK ? read_number(path, class_name, row, "portion_g", &f->portion) : status;
}

static mt_status read_table(ex_nutrition *n) {
    char path[4096];
    json_error_t error;
    const ex_dataset *d = n->pictures->dataset;
    snprintf(path, sizeof path, "%s/nutrition.json", d->folder);
    json_t *table = json_load_file(path, 0, &error);
    if (!table)
        return mt_set_error(MT_EINVAL, "--include-nutrition: '%s', line %d: %s", path, error.line,
                            error.text);
    mt_status status = MT_OK;
    for (size_t i = 0; i < d->class_count && status == MT_OK; i++)
        status = read_food(path, d->class_names[i], json_object_get(table, d->class_names[i]),
                           &n->foods[i]);
    json_decref(table);
    return status;
}

mt_status ex_nutrition_open(const ex_pictures *pictures, ex_nutrition **out) {
    *out = NULL;
    ex_nutrition *n = calloc(1, sizeof *n);
    if (n) n->foods = calloc(pictures->dataset->class_count, sizeof *n->foods);
    if (!n || !n->foods) {
        ex_nutrition_free(n);
        return mt_set_error(MT_ENOMEM, "out of host memory");
    }
    n->pictures = pictures;
    n->base = ex_pictures_source(pictures);
    mt_status status = read_table(n);
    if (status != MT_OK)
        ex_nutrition_free(n);
    else
        *out = n;
    return status;
}

void ex_nutrition_free(ex_nutrition *n) {
    if (!n) return;
    free(n->foods);
    free(n);
}

/* ---- portions ---------------------------------------------------------------------------------- */

/* Share of the pixels that are not the white of the background, of three planes. */
static double share_drawn(const unsigned char *planes, size_t area) {
    const unsigned char white = 254; /* or nearly */
    size_t drawn = 0;
    for (size_t i = 0; i < area; i++)
        drawn += planes[i] < white || planes[area + i] < white || planes[2 * area + i] < white;
    return (double)drawn / (double)area;
}

/* From half a portion in an empty picture to one and a half in a full one. */
static void weigh(const food *f, double share, float out[EX_NUTRIENTS]) {
    for (int i = 0; i < EX_NUTRIENTS; i++)
        out[i] = (float)(f->in_a_gram[i] * f->portion * (0.5 + share));
}

static size_t count(const void *self, ex_split split) {
    const ex_nutrition *n = self;
    return n->base.count(n->pictures, split);
}

static ex_status fill(const void *self, ex_split split, uint64_t epoch, size_t first, size_t number,
                      void *const *buffers, ex_error *error) {
    const ex_nutrition *n = self;
    const unsigned char *planes = buffers[0];
    const int64_t *labels = buffers[1];
    float *contents = buffers[2];
    size_t area = (size_t)n->pictures->side * (size_t)n->pictures->side;
    ex_status status = n->base.fill(n->pictures, split, epoch, first, number, buffers, error);
    for (size_t i = 0; i < number && status == EX_OK; i++)
        weigh(&n->foods[labels[i]], share_drawn(planes + 3 * i * area, area),
              contents + i * EX_NUTRIENTS);
    return status;
}

ex_source ex_nutrition_source(const ex_nutrition *nutrition) {
    ex_source source = nutrition->base;
    source.self = nutrition;
    source.tensors[source.tensor_count++] = (ex_tensor){MT_FLOAT32, 1, {EX_NUTRIENTS}};
    source.count = count;
    source.fill = fill;
    return source;
}

/* ---- guessing ---------------------------------------------------------------------------------- */

/* Calls for each picture of a split, as it is in no epoch of training, with what it contains. */
static ex_status for_each(const ex_nutrition *n, ex_split split, unsigned char *planes,
                          void (*fn)(const float *contents, void *user), void *user,
                          ex_error *error) {
    int64_t label;
    float contents[EX_NUTRIENTS];
    void *const buffers[] = {planes, &label, contents};
    ex_status status = EX_OK;
    for (size_t i = 0; i < count(n, split) && status == EX_OK; i++) {
        status = fill(n, split, 0, i, 1, buffers, error);
        if (status == EX_OK) fn(contents, user);
    }
    return status;
}

typedef struct sums {
    double mean[EX_NUTRIENTS], of[EX_NUTRIENTS];
    size_t count;
} sums;

static void add(const float *contents, void *user) {
    sums *s = user;
    for (int i = 0; i < EX_NUTRIENTS; i++) s->of[i] += contents[i];
    s->count++;
}

static void add_error(const float *contents, void *user) {
    sums *s = user;
    for (int i = 0; i < EX_NUTRIENTS; i++) s->of[i] += fabs(contents[i] - s->mean[i]);
    s->count++;
}

mt_status ex_nutrition_guess(const ex_nutrition *n, double out[EX_NUTRIENTS]) {
    size_t side = (size_t)n->pictures->side;
    unsigned char *planes = calloc(3 * side * side, sizeof *planes);
    ex_split split = count(n, EX_VALIDATION) ? EX_VALIDATION : EX_TRAINING;
    ex_error error = {""};
    sums seen = {{0}, {0}, 0}, wrong = {{0}, {0}, 0};
    if (!planes) return mt_set_error(MT_ENOMEM, "out of host memory");
    ex_status status = for_each(n, EX_TRAINING, planes, add, &seen, &error);
    for (int i = 0; i < EX_NUTRIENTS; i++) wrong.mean[i] = seen.of[i] / (double)seen.count;
    if (status == EX_OK) status = for_each(n, split, planes, add_error, &wrong, &error);
    for (int i = 0; i < EX_NUTRIENTS; i++) out[i] = wrong.of[i] / (double)wrong.count;
    free(planes);
    if (status == EX_OK) return MT_OK;
    return mt_set_error(status == EX_ENOMEM ? MT_ENOMEM : MT_EINVAL, "%s", error.text);
}
