/*
 * captions.c - reads captions.json with jansson, splits by title, renders pairs; see captions.h.
 */
#include "captions.h"
#include "content.h"
#include "pictures.h"
#include "program_path.h"
#include "tokens.h"
#include "view.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST "captions.json"
#define FORM "expected [[\"FILE\", \"TITLE\", [\"KEYWORD\", ...]], ...]"
#define NO_CLASS "captioned" /* a folder of pictures that have no class */
#define NO_KEYWORD "unsorted"
#define VALIDATION_SHARE 7 /* one in so many */

enum { CAPTION = 512 }; /* bytes of a caption, far more than its tokens */
/* What random numbers are used for, beside those of view.c. */
enum { STREAM_TITLE = 16, STREAM_WORD };

static ex_status no_memory(ex_error *error, const char *name) {
    ex_error_set(error, name, "out of host memory");
    return EX_ENOMEM;
}

/* ---- an entry ---------------------------------------------------------------------------------- */

/* The last folder on the way to the file: "birds" of animals/birds/crow.png, "" of crow.png. */
static char *folder_of(const char *file) {
    const char *end = strrchr(file, '/'), *begin = end;
    if (!end) return strdup("");
    while (begin > file && begin[-1] != '/') begin--;
    return strndup(begin, (size_t)(end - begin));
}

/* Of the title in small letters, up to a bracket: "glove" and "Glove (b and w)" are one group. */
static uint64_t group_of(const char *title) {
    size_t length = strcspn(title, "(");
    while (length && isspace((unsigned char)title[length - 1])) length--;
    uint64_t hash = length;
    for (size_t i = 0; i < length; i++)
        hash = ex_random(hash, (uint64_t)tolower((unsigned char)title[i]), 0, 0);
    return hash;
}

static int is_text(const json_t *value) {
    return json_is_string(value) && json_string_length(value) > 0;
}

static int take_keywords(const json_t *list, ex_pair *out) {
    size_t count = json_array_size(list);
    out->keywords = calloc(count + 1, sizeof *out->keywords);
    for (size_t i = 0; out->keywords && i < count; i++) {
        if (!is_text(json_array_get(list, i))) continue;
        char *copy = strdup(json_string_value(json_array_get(list, i)));
        if (!copy) return 0;
        out->keywords[out->keyword_count++] = copy;
    }
    return out->keywords != NULL;
}

static ex_status take_entry(const json_t *entry, ex_pair *out) {
    const json_t *file = json_array_get(entry, 0), *title = json_array_get(entry, 1);
    if (!is_text(file) || !is_text(title)) return EX_EINPUT;
    out->file = strdup(json_string_value(file));
    out->title = strdup(json_string_value(title));
    if (!out->file || !out->title || !take_keywords(json_array_get(entry, 2), out))
        return EX_ENOMEM;
    out->group = group_of(out->title);
    return EX_OK;
}

static void clear_pair(ex_pair *pair) {
    for (size_t i = 0; i < pair->keyword_count; i++) free(pair->keywords[i]);
    free(pair->keywords);
    free(pair->file);
    free(pair->title);
    free(pair->word);
    ex_image_clear(&pair->image);
    memset(pair, 0, sizeof *pair);
}

/* ---- words ------------------------------------------------------------------------------------- */

/* All keywords of all pairs, sorted. */
typedef struct words {
    const char **items;
    size_t count;
} words;

static int compare_words(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int collect_words(const ex_captions *c, words *out) {
    size_t count = 0;
    for (size_t i = 0; i < c->count; i++) count += c->pairs[i].keyword_count;
    *out = (words){malloc((count + 1) * sizeof *out->items), 0};
    for (size_t i = 0; out->items && i < c->count; i++)
        for (size_t j = 0; j < c->pairs[i].keyword_count; j++)
            out->items[out->count++] = c->pairs[i].keywords[j];
    if (out->count > 1) qsort(out->items, out->count, sizeof *out->items, compare_words);
    return out->items != NULL;
}

/* How many of the words come before this one; with it: or are this one. */
static size_t count_before(const words *w, const char *word, int with_it) {
    size_t low = 0, high = w->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(w->items[middle], word) < with_it)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The folder, or the keyword that most pairs have: one of a single picture tells nothing of others. */
static char *choose_word(const ex_pair *pair, const words *all) {
    char *folder = folder_of(pair->file);
    const char *best = "";
    size_t most = 0;
    if (!folder || strcmp(folder, NO_CLASS) != 0) return folder;
    free(folder);
    for (size_t i = 0; i < pair->keyword_count; i++) {
        const char *word = pair->keywords[i];
        size_t times = count_before(all, word, 1) - count_before(all, word, 0);
        if (times <= most || strcmp(word, NO_KEYWORD) == 0) continue;
        most = times;
        best = word;
    }
    return strdup(best);
}

static ex_status set_words(ex_captions *c, ex_error *error) {
    words all;
    int done = collect_words(c, &all);
    for (size_t i = 0; i < c->count && done; i++)
        done = (c->pairs[i].word = choose_word(&c->pairs[i], &all)) != NULL;
    free(all.items);
    return done ? EX_OK : no_memory(error, c->folder);
}

/* ---- pictures ------------------------------------------------------------------------------- */

static ex_status load(const ex_captions *c, const ex_pair *pair, ex_image *out, ex_error *error) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", c->folder, pair->file);
    ex_status status = ex_image_load(path, out, error);
    /* A crop needs a little more than what the network sees. */
    return status == EX_OK ? ex_view_shrink(out, c->options.side * 5 / 4) : status;
}

/* Keeps the picture as far as there is room for it. */
static void keep(ex_captions *c, ex_pair *pair, ex_image *image) {
    size_t bytes = (size_t)image->width * (size_t)image->height * 3;
    if (c->options.max_bytes && c->pixel_bytes + bytes > c->options.max_bytes) {
        ex_image_clear(image);
        c->not_kept++;
        return;
    }
    c->pixel_bytes += bytes;
    pair->image = *image;
}

/* Adds the pair to the list, or skips it where its picture cannot be used. */
static ex_status add(ex_captions *c, const ex_pair *pair, int *taken, ex_error *error) {
    ex_image image = {0, 0, NULL};
    ex_error reason;
    ex_status status = load(c, pair, &image, &reason);
    *taken = status == EX_OK;
    if (status != EX_OK) ex_image_clear(&image);
    if (status == EX_EINPUT) {
        c->skipped++;
        if (c->options.warn) c->options.warn(c->options.user, reason.text);
        return EX_OK;
    }
    if (status != EX_OK) return no_memory(error, pair->file);
    c->pairs[c->count] = *pair;
    keep(c, &c->pairs[c->count++], &image);
    return EX_OK;
}

/* ---- reading ----------------------------------------------------------------------------------- */

static ex_status take_list(ex_captions *c, const json_t *list, const char *path, ex_error *error) {
    ex_status status = EX_OK;
    if (!json_is_array(list)) {
        ex_error_set(error, path, "%s", FORM);
        return EX_EINPUT;
    }
    c->pairs = calloc(json_array_size(list) + 1, sizeof *c->pairs);
    if (!c->pairs) return no_memory(error, path);
    for (size_t i = 0; i < json_array_size(list) && status == EX_OK; i++) {
        ex_pair pair = {0};
        int taken = 0;
        status = take_entry(json_array_get(list, i), &pair);
        if (status == EX_EINPUT) ex_error_set(error, path, "entry %zu; %s", i + 1, FORM);
        if (status == EX_ENOMEM) no_memory(error, path);
        if (status == EX_OK) status = add(c, &pair, &taken, error);
        if (!taken) clear_pair(&pair);
    }
    return status;
}

static int compare(const void *a, const void *b) {
    const ex_pair *left = a, *right = b;
    if (left->group != right->group) return left->group < right->group ? -1 : 1;
    return strcmp(left->file, right->file);
}

/* Whole groups in the order of their hashes, until the share is reached. */
static ex_status split_pairs(ex_captions *c, const char *path, ex_error *error) {
    size_t n = c->count / VALIDATION_SHARE;
    if (c->count > 1) qsort(c->pairs, c->count, sizeof *c->pairs, compare);
    while (n && n < c->count && c->pairs[n].group == c->pairs[n - 1].group) n++;
    c->validation = n;
    if (n && n < c->count) return EX_OK;
    ex_error_set(error, path,
                 "%zu pictures of several titles that can be used; at least %d are needed",
                 c->count, VALIDATION_SHARE);
    return EX_EINPUT;
}

static ex_status read_list(ex_captions *c, ex_error *error) {
    char path[4096];
    json_error_t wrong;
    snprintf(path, sizeof path, "%s/" LIST, c->folder);
    json_t *list = json_load_file(path, 0, &wrong);
    if (!list) {
        ex_error_set(error, path, "%s; %s", wrong.text, FORM);
        return EX_EINPUT;
    }
    ex_status status = take_list(c, list, path, error);
    json_decref(list);
    if (status == EX_OK) status = set_words(c, error);
    return status == EX_OK ? split_pairs(c, path, error) : status;
}

/* The numbers of the training pairs, in the order of an epoch. */
static void write_order(const void *self, uint64_t epoch, size_t *order) {
    const ex_captions *c = self;
    size_t count = c->count - c->validation;
    for (size_t i = 0; i < count; i++) order[i] = c->validation + i;
    ex_shuffle(c->options.seed, epoch, order, count);
}

ex_status ex_captions_read(const char *folder, const ex_captions_options *options,
                           ex_captions **out, ex_error *error) {
    ex_captions *c = *out = calloc(1, sizeof *c);
    if (!c || !(c->folder = strdup(folder))) {
        ex_captions_free(c);
        *out = NULL;
        return no_memory(error, folder);
    }
    c->options = *options;
    ex_status status = read_list(c, error);
    if (status == EX_OK && !(c->orders = ex_orders_new(c->count - c->validation, write_order, c)))
        status = no_memory(error, folder);
    if (status == EX_OK) return EX_OK;
    ex_captions_free(c);
    *out = NULL;
    return status;
}

mt_status ex_captions_open(const ex_flags *flags, const char *argv0, int keywords, int clip_tokens,
                           ex_captions **out) {
    char found[4096];
    ex_error error;
    const ex_captions_options options = {.seed = (uint64_t)flags->seed,
                                         .side = (int)flags->image_size,
                                         .batch = (size_t)flags->batch,
                                         .keywords = keywords,
                                         .max_bytes = ex_pictures_most_bytes(),
                                         .warn = ex_pictures_warn,
                                         .clip_tokens = clip_tokens};
    const char *folder = flags->data;
    *out = NULL;
    if (!folder && ex_find_in_tree(argv0, "examples/data", found, sizeof found)) folder = found;
    if (!folder)
        return mt_set_error(MT_EINVAL, "--data: there is no folder 'examples/data' here; accepted: "
                                       "a folder with " LIST);
    ex_status status = ex_captions_read(folder, &options, out, &error);
    if (status == EX_OK) return MT_OK;
    return mt_set_error(status == EX_ENOMEM ? MT_ENOMEM : MT_EINVAL, "--data: %s", error.text);
}

void ex_captions_free(ex_captions *c) {
    if (!c) return;
    for (size_t i = 0; i < c->count; i++) clear_pair(&c->pairs[i]);
    ex_orders_free(c->orders);
    free(c->pairs);
    free(c->folder);
    free(c);
}

/* ---- batches ----------------------------------------------------------------------------------- */

static void write_text(const char *title, const char *word, char *text, size_t capacity) {
    snprintf(text, capacity, "a picture of %s%s%s", title, *word ? ", " : "", word);
}

void ex_captions_text(const ex_pair *pair, char *text, size_t capacity) {
    write_text(pair->title, pair->word, text, capacity);
}

/* What is said in a place of the caption: the usual, or every other time one of the keywords. */
static const char *draw_word(const ex_pair *pair, const ex_draw *draw, uint64_t place,
                             const char *usual) {
    uint64_t bits = ex_random(draw->seed, draw->epoch, draw->index, place);
    if (!pair->keyword_count || bits % 2) return usual;
    return pair->keywords[bits / 2 % pair->keyword_count];
}

/* draw NULL: the caption as it is for validation. */
static void draw_text(const ex_captions *c, const ex_pair *pair, const ex_draw *draw, char *text,
                      size_t capacity) {
    if (!draw || !c->options.keywords) {
        ex_captions_text(pair, text, capacity);
        return;
    }
    write_text(draw_word(pair, draw, STREAM_TITLE, pair->title),
               draw_word(pair, draw, STREAM_WORD, pair->word), text, capacity);
}

static size_t context_of(const ex_captions *c) {
    return c->options.clip_tokens ? EX_CLIP_CONTEXT : EX_CAPTION_CONTEXT;
}

static ex_status fill_one(const ex_captions *c, size_t index, const ex_draw *draw,
                          unsigned char *pixels, int64_t *tokens, ex_error *error) {
    const ex_pair *pair = &c->pairs[index];
    char text[CAPTION];
    ex_image again = {0, 0, NULL};
    ex_status status = pair->image.pixels ? EX_OK : load(c, pair, &again, error);
    if (status == EX_OK)
        status = ex_view_pixels(again.pixels ? &again : &pair->image, EX_FIT_PAD, c->options.side,
                                draw, pixels);
    ex_image_clear(&again);
    draw_text(c, pair, draw, text, sizeof text);
    if (c->options.clip_tokens)
        ex_tokens_write_clip(text, EX_CLIP_CONTEXT, tokens);
    else
        ex_tokens_write(text, EX_CAPTION_CONTEXT, tokens);
    return status;
}

static ex_status fill_pairs(const void *self, ex_split split, uint64_t epoch, size_t first,
                            size_t count, void *const *buffers, ex_error *error) {
    const ex_captions *c = self;
    const size_t bytes = 3 * (size_t)c->options.side * (size_t)c->options.side;
    /* Pairs for validation come first, in the order in which they are used. */
    const size_t *order = split == EX_TRAINING ? ex_orders_hold(c->orders, epoch) : NULL;
    ex_status status = order || split == EX_VALIDATION ? EX_OK : EX_ENOMEM;
    for (size_t i = 0; i < count && status == EX_OK; i++) {
        const size_t index = order ? order[first + i] : first + i;
        const ex_draw draw = {c->options.seed, epoch, index};
        status = fill_one(c, index, split == EX_TRAINING ? &draw : NULL,
                          (unsigned char *)buffers[0] + i * bytes,
                          (int64_t *)buffers[1] + i * context_of(c), error);
    }
    if (order) ex_orders_release(c->orders, order);
    return status;
}

/* A loss over pairs is another one in a smaller batch, so that none is made of what is left. */
static size_t count_pairs(const void *self, ex_split split) {
    const ex_captions *c = self;
    size_t all = split == EX_TRAINING ? c->count - c->validation : c->validation;
    size_t batch = c->options.batch;
    return batch && all > batch ? all - all % batch : all;
}

static uint64_t hash_caption(uint64_t hash, const ex_pair *pair) {
    hash = ex_hash_text(ex_hash_text(hash, pair->title), pair->word);
    for (size_t i = 0; i < pair->keyword_count; i++) hash = ex_hash_text(hash, pair->keywords[i]);
    return hash;
}

static ex_listing list_names(const ex_captions *c) {
    ex_listing listing = {"captions", c->count, c->count, EX_HASH_INIT, EX_HASH_INIT};
    for (size_t i = 0; i < c->count; i++) {
        listing.label_hash = hash_caption(listing.label_hash, &c->pairs[i]);
        listing.file_hash = ex_hash_text(listing.file_hash, c->pairs[i].file);
    }
    return listing;
}

ex_source ex_captions_source(const ex_captions *captions) {
    const int64_t side = captions->options.side;
    return (ex_source){
        .self = captions,
        .unit = "pairs",
        .names = list_names(captions),
        .tensor_count = 2,
        .tensors = {{MT_UINT8, 3, {3, side, side}}, {MT_INT64, 1, {(int64_t)context_of(captions)}}},
        .count = count_pairs,
        .fill = fill_pairs};
}
