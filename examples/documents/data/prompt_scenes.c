/*
 * prompt_scenes.c - scenes with a prompt and a mask; see prompt_scenes.h.
 */
#include "prompt_scenes.h"

#include "content.h"
#include "dataset.h"
#include "folder.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUTOUT_SIDE 128  /* of what is kept in memory */
#define LEAST_SHARE 0.34 /* long side of a thing, of the canvas's */
#define MOST_SHARE 0.54
#define MOST_OVERLAP 0.1 /* of two boxes, intersection over union */
#define TRIES 30         /* to find a place */
#define STRENGTH 3       /* tenths of a pattern that are seen, the rest is white */

struct ex_prompt_scenes {
    ex_dataset *files;  /* names, classes and split; their pixels are not kept */
    ex_cutout *cutouts; /* one for each of the files */
    size_t *first[2];   /* of each class, in files->members[split]; one more marks the end */
    ex_image *patterns;
    size_t pattern_count;
    uint64_t pattern_names; /* their hash */
    ex_prompt_scenes_options options;
};

/* ---- opening ----------------------------------------------------------------------------------- */

static ex_status no_memory(ex_error *error, const char *name) {
    ex_error_set(error, name, "out of memory");
    return EX_ENOMEM;
}

static ex_status open_files(ex_prompt_scenes *s, ex_error *error) {
    const ex_dataset_options options = {.seed = s->options.seed,
                                        .max_bytes = 1, /* pixels with alpha are kept instead */
                                        .warn = s->options.warn};
    return ex_dataset_open(s->options.things, &options, &s->files, error);
}

static ex_status load_cutouts(ex_prompt_scenes *s, ex_error *error) {
    const ex_dataset *files = s->files;
    char path[4096];
    s->cutouts = calloc(files->sample_count, sizeof *s->cutouts);
    if (!s->cutouts) return no_memory(error, files->folder);
    for (size_t i = 0; i < files->sample_count; i++) {
        const ex_sample *sample = &files->samples[i];
        snprintf(path, sizeof path, "%s/%s/%s", files->folder, files->class_names[sample->label],
                 sample->name);
        ex_status status = ex_cutout_load(path, CUTOUT_SIDE, &s->cutouts[i], error);
        if (status != EX_OK) return status;
    }
    return EX_OK;
}

/* Members are in the order of their classes. */
static ex_status index_classes(ex_prompt_scenes *s, ex_error *error) {
    const ex_dataset *files = s->files;
    for (int split = 0; split < 2; split++) {
        size_t *first = malloc((files->class_count + 1) * sizeof *first), at = 0;
        if (!first) return no_memory(error, files->folder);
        for (size_t label = 0; label <= files->class_count; label++) {
            while (at < files->member_count[split] &&
                   files->samples[files->members[split][at]].label < label)
                at++;
            first[label] = at;
        }
        s->first[split] = first;
    }
    return EX_OK;
}

static ex_status load_pattern(void *user, const char *path, const char *name, ex_error *error) {
    ex_prompt_scenes *s = user;
    ex_image *grown = realloc(s->patterns, (s->pattern_count + 1) * sizeof *grown);
    if (!grown) return no_memory(error, path);
    s->patterns = grown;
    ex_status status = ex_image_load(path, &s->patterns[s->pattern_count], error);
    s->pattern_count += status == EX_OK;
    if (status == EX_OK) s->pattern_names = ex_hash_text(s->pattern_names, name);
    return status;
}

static ex_status load_patterns(ex_prompt_scenes *s, ex_error *error) {
    ex_status status = ex_folder_check(s->options.patterns, error);
    if (status == EX_OK) status = ex_folder_pngs(s->options.patterns, load_pattern, s, error);
    if (status != EX_OK || s->pattern_count) return status;
    ex_error_set(error, s->options.patterns, "no PNG picture; expected FOLDER/picture.png");
    return EX_EINPUT;
}

ex_status ex_prompt_scenes_open(const ex_prompt_scenes_options *options, ex_prompt_scenes **out,
                                ex_error *error) {
    ex_prompt_scenes *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return no_memory(error, options->things);
    s->options = *options;
    s->pattern_names = EX_HASH_INIT;
    ex_status status = open_files(s, error);
    if (status == EX_OK) status = load_cutouts(s, error);
    if (status == EX_OK) status = index_classes(s, error);
    if (status == EX_OK) status = load_patterns(s, error);
    if (status == EX_OK)
        *out = s;
    else
        ex_prompt_scenes_free(s);
    return status;
}

void ex_prompt_scenes_free(ex_prompt_scenes *s) {
    if (!s) return;
    for (size_t i = 0; s->cutouts && i < s->files->sample_count; i++)
        ex_cutout_clear(&s->cutouts[i]);
    for (size_t i = 0; i < s->pattern_count; i++) ex_image_clear(&s->patterns[i]);
    free(s->cutouts);
    free(s->patterns);
    free(s->first[0]);
    free(s->first[1]);
    ex_dataset_free(s->files);
    free(s);
}

size_t ex_prompt_scenes_classes(const ex_prompt_scenes *s) {
    return s->files->class_count;
}

/* ---- what is where ----------------------------------------------------------------------------- */

/* The random numbers of a scene, one after another. */
typedef struct draws {
    uint64_t seed, epoch, index, stream;
} draws;

static double unit(draws *d) {
    return ex_random_unit(d->seed, d->epoch, d->index, d->stream++);
}

static size_t below(draws *d, size_t count) {
    size_t drawn = (size_t)(unit(d) * (double)count);
    return drawn < count ? drawn : count - 1;
}

int ex_prompt_position(const ex_box *box, int side) {
    double middle = side / 2.0, x = box->x + box->width / 2, y = box->y + box->height / 2;
    if (box->x <= middle && box->x + box->width >= middle && box->y <= middle &&
        box->y + box->height >= middle)
        return 0;
    int quarter = 1 + (x >= middle) + 2 * (y >= middle);
    return hypot(x - middle, y - middle) <= 0.2 * side ? quarter + 4 : quarter;
}

/* A class without a picture in this split has those of training. */
static size_t pick_cutout(const ex_prompt_scenes *s, ex_split split, size_t label, draws *d) {
    const size_t *first = s->first[split];
    if (first[label] == first[label + 1]) {
        split = EX_TRAINING;
        first = s->first[split];
    }
    return s->files->members[split][first[label] + below(d, first[label + 1] - first[label])];
}

/* Somewhere on the canvas, all of it. */
static void place(const ex_prompt_scenes *s, ex_thing *thing, draws *d) {
    const ex_cutout *cutout = &s->cutouts[thing->sample];
    double side = s->options.side;
    double longest = cutout->width > cutout->height ? cutout->width : cutout->height;
    double scale = (LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * unit(d)) * side / longest;
    double width = cutout->width * scale, height = cutout->height * scale;
    thing->box = (ex_box){(side - width) * unit(d), (side - height) * unit(d), width, height};
    thing->placement = (ex_placement){.x = thing->box.x + width / 2,
                                      .y = thing->box.y + height / 2,
                                      .scale = scale,
                                      .mirrored = unit(d) < 0.5};
    thing->position = ex_prompt_position(&thing->box, s->options.side);
}

static double overlap(const ex_box *a, const ex_box *b) {
    double width = fmin(a->x + a->width, b->x + b->width) - fmax(a->x, b->x);
    double height = fmin(a->y + a->height, b->y + b->height) - fmax(a->y, b->y);
    if (width <= 0 || height <= 0) return 0;
    return width * height / (a->width * a->height + b->width * b->height - width * height);
}

static int may_stay(const ex_scene *scene, const ex_thing *thing) {
    for (size_t i = 0; i < scene->thing_count; i++) {
        const ex_thing *other = &scene->things[i];
        if (overlap(&thing->box, &other->box) > MOST_OVERLAP) return 0;
        if (thing->label == other->label && thing->position == other->position) return 0;
    }
    return 1;
}

/* Where no place is found there is one thing less. */
static void add_thing(const ex_prompt_scenes *s, ex_split split, size_t label, draws *d,
                      ex_scene *scene) {
    ex_thing thing = {.label = label};
    thing.sample = pick_cutout(s, split, label, d);
    for (int i = 0; i < TRIES; i++) {
        place(s, &thing, d);
        if (!may_stay(scene, &thing)) continue;
        scene->things[scene->thing_count++] = thing;
        return;
    }
}

void ex_prompt_scenes_describe(const ex_prompt_scenes *s, ex_split split, uint64_t epoch,
                               size_t index, ex_scene *out) {
    if (s->options.same) epoch = 1;
    draws d = {s->options.seed, split == EX_VALIDATION ? 0 : epoch, index, 0};
    size_t classes = s->files->class_count, wanted = 2 + below(&d, EX_PROMPT_THINGS - 1);
    size_t label = below(&d, classes);
    int comes_twice = unit(&d) < 1.0 / 3;
    memset(out, 0, sizeof *out);
    out->pattern = below(&d, s->pattern_count);
    out->shift_x = (int)below(&d, (size_t)s->patterns[out->pattern].width);
    out->shift_y = (int)below(&d, (size_t)s->patterns[out->pattern].height);
    add_thing(s, split, label, &d, out);
    for (size_t i = 1; i < wanted; i++)
        add_thing(s, split, i == 1 && comes_twice ? label : below(&d, classes), &d, out);
    out->named = below(&d, out->thing_count);
}

/* ---- words ------------------------------------------------------------------------------------- */

static const char *const positions[EX_PROMPT_POSITIONS] = {
    "in the center",
    "in the top left",
    "in the top right",
    "in the bottom left",
    "in the bottom right",
    "near the center in the top left",
    "near the center in the top right",
    "near the center in the bottom left",
    "near the center in the bottom right",
};

void ex_prompt_text(const ex_prompt_scenes *s, size_t label, int position,
                    char text[EX_PROMPT_TOKENS]) {
    snprintf(text, EX_PROMPT_TOKENS - 1, "segment the %s %s", s->files->class_names[label],
             positions[position]);
    for (char *c = text; *c; c++)
        if (*c == '_') *c = ' ';
}

void ex_prompt_tokens(const char *text, int64_t tokens[EX_PROMPT_TOKENS]) {
    size_t at = 0;
    tokens[at++] = EX_PROMPT_BEGIN;
    for (; *text && at < EX_PROMPT_TOKENS - 1; text++) tokens[at++] = (unsigned char)*text;
    tokens[at++] = EX_PROMPT_END;
    while (at < EX_PROMPT_TOKENS) tokens[at++] = EX_PROMPT_PADDING;
}

/* ---- pixels ------------------------------------------------------------------------------------ */

/* Faint, so that what lies on it stands out. */
static void draw_pattern(const ex_image *pattern, const ex_scene *scene, ex_image *canvas) {
    unsigned char *to = canvas->pixels;
    for (int y = 0; y < canvas->height; y++)
        for (int x = 0; x < canvas->width; x++) {
            size_t from_x = (size_t)((x + scene->shift_x) % pattern->width);
            size_t from_y = (size_t)((y + scene->shift_y) % pattern->height);
            const unsigned char *from =
                pattern->pixels + 3 * (from_y * (size_t)pattern->width + from_x);
            for (int i = 0; i < 3; i++)
                *to++ = (unsigned char)((STRENGTH * from[i] + (10 - STRENGTH) * 255) / 10);
        }
}

ex_status ex_prompt_scenes_draw(const ex_prompt_scenes *s, const ex_scene *scene, ex_image *canvas,
                                unsigned char *owner) {
    size_t pixels = (size_t)s->options.side * (size_t)s->options.side;
    unsigned char *coverage = malloc(pixels);
    if (!coverage) return EX_ENOMEM;
    memset(owner, 0, pixels);
    draw_pattern(&s->patterns[scene->pattern], scene, canvas);
    for (size_t i = 0; i < scene->thing_count; i++) {
        const ex_thing *thing = &scene->things[i];
        ex_cutout_draw(&s->cutouts[thing->sample], &thing->placement, canvas, coverage, NULL);
        for (size_t p = 0; p < pixels; p++)
            if (coverage[p] > 127) owner[p] = (unsigned char)(i + 1);
    }
    free(coverage);
    return EX_OK;
}

/* A canvas and who is seen where. */
typedef struct sheet {
    ex_image canvas;
    unsigned char *owner;
    size_t pixels;
} sheet;

static ex_status make_sheet(int side, sheet *out) {
    out->pixels = (size_t)side * (size_t)side;
    out->canvas = (ex_image){side, side, malloc(3 * out->pixels)};
    out->owner = malloc(out->pixels);
    return out->canvas.pixels && out->owner ? EX_OK : EX_ENOMEM;
}

static void clear_sheet(sheet *s) {
    ex_image_clear(&s->canvas);
    free(s->owner);
}

/* ---- the source -------------------------------------------------------------------------------- */

static size_t count(const void *self, ex_split split) {
    const ex_prompt_scenes *s = self;
    return s->options.count[split];
}

static void write_sample(const ex_prompt_scenes *s, const ex_scene *scene, const sheet *paper,
                         unsigned char *picture, float *mask, int64_t *tokens) {
    const ex_thing *named = &scene->things[scene->named];
    char text[EX_PROMPT_TOKENS];
    memcpy(picture, paper->canvas.pixels, 3 * paper->pixels);
    for (size_t p = 0; p < paper->pixels; p++) mask[p] = paper->owner[p] == scene->named + 1;
    ex_prompt_text(s, named->label, named->position, text);
    ex_prompt_tokens(text, tokens);
}

static ex_status fill(const void *self, ex_split split, uint64_t epoch, size_t first, size_t number,
                      void *const *buffers, ex_error *error) {
    const ex_prompt_scenes *s = self;
    sheet paper;
    ex_scene scene;
    ex_status status = make_sheet(s->options.side, &paper);
    for (size_t i = 0; i < number && status == EX_OK; i++) {
        ex_prompt_scenes_describe(s, split, epoch, first + i, &scene);
        status = ex_prompt_scenes_draw(s, &scene, &paper.canvas, paper.owner);
        if (status == EX_OK)
            write_sample(s, &scene, &paper, (unsigned char *)buffers[0] + 3 * i * paper.pixels,
                         (float *)buffers[1] + i * paper.pixels,
                         (int64_t *)buffers[2] + i * EX_PROMPT_TOKENS);
    }
    clear_sheet(&paper);
    return status == EX_OK ? EX_OK : no_memory(error, "a scene");
}

static ex_listing list_names(const ex_prompt_scenes *s) {
    ex_listing listing = ex_dataset_listing(s->files);
    listing.file_count += s->pattern_count;
    listing.file_hash = ex_hash(listing.file_hash, &s->pattern_names, sizeof s->pattern_names);
    return listing;
}

ex_source ex_prompt_scenes_source(const ex_prompt_scenes *s) {
    int64_t side = s->options.side;
    return (ex_source){.self = s,
                       .unit = "scenes",
                       .names = list_names(s),
                       .tensor_count = 3,
                       .tensors = {{MT_UINT8, 3, {3, side, side}},
                                   {MT_FLOAT32, 2, {side, side}},
                                   {MT_INT64, 1, {EX_PROMPT_TOKENS}}},
                       .count = count,
                       .fill = fill};
}

/* ---- chance ------------------------------------------------------------------------------------ */

static double dice(size_t both, size_t a, size_t b) {
    return a + b ? 2.0 * (double)both / (double)(a + b) : 1.0;
}

static void add_chance(const ex_scene *scene, const sheet *paper, ex_prompt_chance *sums) {
    size_t seen[EX_PROMPT_THINGS + 1] = {0}, all;
    for (size_t p = 0; p < paper->pixels; p++) seen[paper->owner[p]]++;
    size_t named = seen[scene->named + 1];
    all = paper->pixels - seen[0];
    sums->everything += dice(named, paper->pixels, named);
    sums->all_things += dice(named, all, named);
    sums->one_thing += 1.0 / (double)scene->thing_count; /* the others have nothing in common */
}

ex_status ex_prompt_scenes_chance(const ex_prompt_scenes *s, ex_prompt_chance *out) {
    sheet paper;
    ex_scene scene;
    size_t scenes = s->options.count[EX_VALIDATION];
    ex_status status = make_sheet(s->options.side, &paper);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < scenes && status == EX_OK; i++) {
        ex_prompt_scenes_describe(s, EX_VALIDATION, 0, i, &scene);
        status = ex_prompt_scenes_draw(s, &scene, &paper.canvas, paper.owner);
        if (status == EX_OK) add_chance(&scene, &paper, out);
    }
    clear_sheet(&paper);
    if (!scenes) return status;
    out->everything /= (double)scenes;
    out->all_things /= (double)scenes;
    out->one_thing /= (double)scenes;
    return status;
}
