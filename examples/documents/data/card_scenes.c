/*
 * card_scenes.c - reads the cut-outs, lays scenes out and draws them; see card_scenes.h.
 *
 * A scene is laid out by random numbers that depend on seed, split, epoch and the number of the scene alone,
 * and then drawn.
 */
#include "card_scenes.h"
#include "content.h"
#include "cutout.h"
#include "folder.h"
#include "kmeans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PI 3.14159265358979323846

/* A card's height as a share of the picture's side, how far it is turned, and how far cards overlap. */
#define LEAST_HEIGHT 0.35
#define MOST_HEIGHT 0.6
#define MOST_ANGLE (15 * PI / 180)
#define MOST_OVERLAP 0.3

#define STRAY_SHARE 0.25  /* of the scenes have something else among the cards */
#define PLAIN_SHARE 0.2   /* have one colour below instead of a pattern */
#define UNSEEN_PATTERNS 4 /* one pattern in so many is for validation alone */

enum {
    LAID_MOST = EX_CARDS_MOST + 1, /* the other thing included */
    TRIES = 20,                    /* places that are looked at for a card */
    CLASSES_MOST = 7,
    NAME = 16,
    ANCHOR_SCENES = 500,
    STRAY = -1 /* label of what is no card that is looked for */
};

static const char *const suit_names[] = {"clubs", "diamonds", "hearts", "spades"};
static const char *const rank_names[] = {"ace", "king", "queen", "jack", "ten", "nine", "joker"};
static const struct {
    const char *sign;
    int suit, rank;
} suits[] = {{"c", 0, -1}, {"d", 1, -1}, {"h", 2, -1}, {"s", 3, -1}, {"jk", -1, 6}},
  ranks[] = {{"a", -1, 0}, {"k", -1, 1}, {"q", -1, 2}, {"j", -1, 3}, {"10", -1, 4}, {"9", -1, 5}};

typedef struct card {
    ex_cutout picture;
    char style[NAME];
    int label; /* of the class, or STRAY */
} card;

/* Cut-outs of one kind that a split draws from, as numbers into a list. */
typedef struct choice {
    size_t *items;
    size_t count;
} choice;

struct ex_card_scenes {
    ex_card_scenes_options options;
    card *cards;
    size_t card_count;
    ex_cutout *patterns;
    size_t pattern_count;
    char unseen[NAME];
    ex_listing names;
    size_t class_count;
    choice by_class[2][CLASSES_MOST], strays, below[2]; /* by split */
};

/* ---- names -------------------------------------------------------------------------------------- */

/* "simple_h_10.png" -> style "simple", label as the classes have it; what is no card has none. */
static void read_name(const char *name, ex_card_classes classes, card *out) {
    char style[NAME] = "", suit[NAME] = "", rank[NAME] = "";
    int by_suit = classes == EX_CARDS_BY_SUIT, parts;
    out->label = STRAY;
    out->style[0] = '\0';
    parts = sscanf(name, "%15[^_]_%15[^_]_%15[^_.]", style, suit, rank);
    for (size_t i = 0; parts == 3 && i < sizeof suits / sizeof *suits; i++) {
        if (strcmp(suit, suits[i].sign) != 0) continue;
        memcpy(out->style, style, sizeof style);
        out->label = by_suit ? suits[i].suit : suits[i].rank;
    }
    for (size_t i = 0; !by_suit && out->style[0] && i < sizeof ranks / sizeof *ranks; i++)
        if (strcmp(rank, ranks[i].sign) == 0) out->label = ranks[i].rank;
}

/* A card of no class would be a card that the detector must not see; it is left out. */
static int is_left_out(const card *one) {
    return one->style[0] && one->label == STRAY;
}

static void list_file(ex_card_scenes *s, const char *name) {
    s->names.file_hash = ex_hash_text(s->names.file_hash, name);
    s->names.file_count++;
}

static void list_classes(ex_card_scenes *s) {
    s->names.label_count = s->class_count;
    for (size_t i = 0; i < s->class_count; i++)
        s->names.label_hash = ex_hash_text(s->names.label_hash, ex_card_scenes_class_name(s, i));
}

/* ---- reading ------------------------------------------------------------------------------------ */

static ex_status no_memory(ex_error *error, const char *name) {
    ex_error_set(error, name, "out of memory");
    return EX_ENOMEM;
}

static ex_status add_card(void *user, const char *path, const char *name, ex_error *error) {
    ex_card_scenes *s = user;
    int most = (int)(MOST_HEIGHT * s->options.side) + 1; /* never drawn larger */
    card one;
    read_name(name, s->options.classes, &one);
    if (is_left_out(&one)) return EX_OK;
    card *grown = realloc(s->cards, (s->card_count + 1) * sizeof *grown);
    if (!grown) return no_memory(error, path);
    s->cards = grown;
    ex_status status = ex_cutout_load(path, most, &one.picture, error);
    if (status != EX_OK) return status;
    s->cards[s->card_count++] = one;
    list_file(s, name);
    return EX_OK;
}

static ex_status add_pattern(void *user, const char *path, const char *name, ex_error *error) {
    ex_card_scenes *s = user;
    ex_cutout *grown = realloc(s->patterns, (s->pattern_count + 1) * sizeof *grown);
    if (!grown) return no_memory(error, path);
    s->patterns = grown;
    ex_status status = ex_cutout_load(path, s->options.side, &grown[s->pattern_count], error);
    if (status != EX_OK) return status;
    s->pattern_count++;
    list_file(s, name);
    return EX_OK;
}

/* A folder that is not there has none. */
static ex_status add_folder(ex_card_scenes *s, const char *inside, ex_folder_fn add,
                            ex_error *error) {
    char folder[2048];
    snprintf(folder, sizeof folder, "%s/%s", s->options.folder, inside);
    return ex_folder_pngs(folder, add, s, error);
}

static ex_status read_all(ex_card_scenes *s, ex_error *error) {
    static const char *const cards[] = {"cards",
                                        "recreation/games/cards/simple",
                                        "recreation/games/cards/white",
                                        "recreation/games/cards/bordered",
                                        "recreation/games/cards/ornamental",
                                        "recreation/games/cards/cardbacks"};
    static const char *const patterns[] = {"patterns", "special/patterns"};
    ex_status status = ex_folder_check(s->options.folder, error);
    for (size_t i = 0; i < sizeof cards / sizeof *cards && status == EX_OK; i++)
        status = add_folder(s, cards[i], add_card, error);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns && status == EX_OK; i++)
        status = add_folder(s, patterns[i], add_pattern, error);
    return status;
}

/* ---- who draws from what ------------------------------------------------------------------------ */

static ex_status add_choice(choice *list, size_t item, ex_error *error) {
    size_t *grown = realloc(list->items, (list->count + 1) * sizeof *grown);
    if (!grown) return no_memory(error, "cards");
    list->items = grown;
    list->items[list->count++] = item;
    return EX_OK;
}

/* The style that comes last by name is the one for validation. */
static void choose_unseen(ex_card_scenes *s) {
    for (size_t i = 0; i < s->card_count; i++)
        if (strcmp(s->cards[i].style, s->unseen) > 0)
            memcpy(s->unseen, s->cards[i].style, sizeof s->unseen);
}

static ex_status share_out(ex_card_scenes *s, ex_error *error) {
    ex_status status = EX_OK;
    choose_unseen(s);
    for (size_t i = 0; i < s->card_count && status == EX_OK; i++) {
        const card *one = &s->cards[i];
        int split = strcmp(one->style, s->unseen) == 0 ? EX_VALIDATION : EX_TRAINING;
        choice *list = one->label == STRAY ? &s->strays : &s->by_class[split][one->label];
        status = add_choice(list, i, error);
    }
    for (size_t i = 0; i < s->pattern_count && status == EX_OK; i++)
        status = add_choice(&s->below[i % UNSEEN_PATTERNS ? EX_TRAINING : EX_VALIDATION], i, error);
    return status;
}

/* Both splits need a card of each class and a pattern. */
static ex_status check_all(const ex_card_scenes *s, ex_error *error) {
    int whole = s->below[EX_TRAINING].count && s->below[EX_VALIDATION].count;
    for (size_t i = 0; i < s->class_count; i++)
        whole = whole && s->by_class[EX_TRAINING][i].count && s->by_class[EX_VALIDATION][i].count;
    if (whole) return EX_OK;
    ex_error_set(error, s->options.folder,
                 "%zu cards and %zu patterns are not enough; accepted: a folder with cards of two "
                 "styles or more in cards/STYLE_SUIT_RANK.png and pictures in patterns/, or that "
                 "of the package openclipart-png",
                 s->card_count, s->pattern_count);
    return EX_EINPUT;
}

ex_status ex_card_scenes_open(const ex_card_scenes_options *options, ex_card_scenes **out,
                              ex_error *error) {
    ex_card_scenes *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return no_memory(error, options->folder);
    s->options = *options;
    s->class_count = options->classes == EX_CARDS_BY_SUIT ? sizeof suit_names / sizeof *suit_names
                                                          : sizeof rank_names / sizeof *rank_names;
    s->names = (ex_listing){"classes", 0, 0, EX_HASH_INIT, EX_HASH_INIT};
    list_classes(s);
    ex_status status = read_all(s, error);
    if (status == EX_OK) status = share_out(s, error);
    if (status == EX_OK) status = check_all(s, error);
    if (status == EX_OK)
        *out = s;
    else
        ex_card_scenes_free(s);
    return status;
}

void ex_card_scenes_free(ex_card_scenes *scenes) {
    if (!scenes) return;
    for (size_t i = 0; i < scenes->card_count; i++) ex_cutout_clear(&scenes->cards[i].picture);
    for (size_t i = 0; i < scenes->pattern_count; i++) ex_cutout_clear(&scenes->patterns[i]);
    for (size_t split = 0; split < 2; split++) {
        for (size_t i = 0; i < CLASSES_MOST; i++) free(scenes->by_class[split][i].items);
        free(scenes->below[split].items);
    }
    free(scenes->strays.items);
    free(scenes->cards);
    free(scenes->patterns);
    free(scenes);
}

size_t ex_card_scenes_class_count(const ex_card_scenes *scenes) {
    return scenes->class_count;
}

const char *ex_card_scenes_class_name(const ex_card_scenes *scenes, size_t label) {
    return scenes->options.classes == EX_CARDS_BY_SUIT ? suit_names[label] : rank_names[label];
}

const char *ex_card_scenes_unseen(const ex_card_scenes *scenes) {
    return scenes->unseen;
}

size_t ex_card_scenes_cards(const ex_card_scenes *scenes, ex_split split) {
    size_t count = 0;
    for (size_t i = 0; i < scenes->class_count; i++) count += scenes->by_class[split][i].count;
    return count;
}

size_t ex_card_scenes_patterns(const ex_card_scenes *scenes, ex_split split) {
    return scenes->below[split].count;
}

/* ---- layout ------------------------------------------------------------------------------------- */

/* Draws one number after another for a scene. */
typedef struct dice {
    uint64_t seed, epoch, index, stream;
} dice;

static double roll(dice *d) {
    return ex_random_unit(d->seed, d->epoch, d->index, d->stream++);
}

static double between(dice *d, double low, double high) {
    return low + (high - low) * roll(d);
}

static size_t below(dice *d, size_t count) {
    return (size_t)(roll(d) * (double)count);
}

/* The same scenes for validation in each epoch. */
static dice dice_of(const ex_card_scenes *s, ex_split split, uint64_t epoch, size_t index) {
    return (dice){ex_random(s->options.seed, 0, 0, 1 + (uint64_t)split),
                  split == EX_TRAINING ? epoch : 0, index, 0};
}

typedef struct laid {
    const card *card;
    ex_placement at;
    ex_box box; /* of the turned rectangle */
} laid;

typedef struct layout {
    laid cards[LAID_MOST]; /* the lowest first */
    size_t count;
    dice dice; /* for what is drawn below */
} layout;

static double overlap(const ex_box *a, const ex_box *b) {
    double width = fmin(a->x + a->width, b->x + b->width) - fmax(a->x, b->x);
    double height = fmin(a->y + a->height, b->y + b->height) - fmax(a->y, b->y);
    double common = fmax(width, 0) * fmax(height, 0);
    return common / (a->width * a->height + b->width * b->height - common);
}

/* A size and an angle, and a place inside the picture. */
static laid place(const card *one, int side, dice *d) {
    laid l = {.card = one};
    double height = between(d, LEAST_HEIGHT, MOST_HEIGHT) * side;
    l.at.angle = between(d, -MOST_ANGLE, MOST_ANGLE);
    l.at.scale = height / one->picture.height;
    double width = l.at.scale * one->picture.width;
    double c = fabs(cos(l.at.angle)), s = fabs(sin(l.at.angle));
    l.box.width = width * c + height * s;
    l.box.height = height * c + width * s;
    l.box.x = between(d, 0, side - l.box.width);
    l.box.y = between(d, 0, side - l.box.height);
    l.at.x = l.box.x + l.box.width / 2;
    l.at.y = l.box.y + l.box.height / 2;
    return l;
}

static int is_clear(const layout *scene, const laid *l) {
    for (size_t i = 0; i < scene->count; i++)
        if (overlap(&scene->cards[i].box, &l->box) > MOST_OVERLAP) return 0;
    return 1;
}

/* Left out where there is no room for it. */
static void lay(const card *one, int side, layout *scene) {
    for (int i = 0; i < TRIES; i++) {
        laid l = place(one, side, &scene->dice);
        if (!is_clear(scene, &l)) continue;
        scene->cards[scene->count++] = l;
        return;
    }
}

static const card *pick(const ex_card_scenes *s, const choice *from, dice *d) {
    return &s->cards[from->items[below(d, from->count)]];
}

/* Each class is as likely as the others, however many cards it has. */
static layout lay_out(const ex_card_scenes *s, ex_split split, uint64_t epoch, size_t index) {
    layout scene = {.dice = dice_of(s, split, epoch, index)};
    size_t cards = 1 + below(&scene.dice, EX_CARDS_MOST);
    int stray = roll(&scene.dice) < STRAY_SHARE && s->strays.count;
    if (stray) lay(pick(s, &s->strays, &scene.dice), s->options.side, &scene);
    for (size_t i = 0; i < cards; i++) {
        const choice *list = &s->by_class[split][below(&scene.dice, s->class_count)];
        lay(pick(s, list, &scene.dice), s->options.side, &scene);
    }
    return scene;
}

void ex_card_scenes_anchors(const ex_card_scenes *scenes, size_t count, float (*anchors)[2]) {
    ex_size sizes[ANCHOR_SCENES * EX_CARDS_MOST], means[16];
    size_t known = 0;
    double side = scenes->options.side;
    for (size_t i = 0; i < ANCHOR_SCENES; i++) {
        layout scene = lay_out(scenes, EX_TRAINING, 0, i);
        for (size_t j = 0; j < scene.count; j++)
            if (scene.cards[j].card->label != STRAY)
                sizes[known++] =
                    (ex_size){scene.cards[j].box.width / side, scene.cards[j].box.height / side};
    }
    ex_kmeans(sizes, known, means, count);
    for (size_t i = 0; i < count; i++) {
        anchors[i][0] = (float)means[i].width;
        anchors[i][1] = (float)means[i].height;
    }
}

/* ---- drawing ------------------------------------------------------------------------------------ */

static void fill_plain(ex_image *canvas, dice *d) {
    unsigned char colour[3];
    for (int i = 0; i < 3; i++) colour[i] = (unsigned char)between(d, 0, 256);
    for (int i = 0; i < canvas->width * canvas->height; i++)
        memcpy(canvas->pixels + 3 * i, colour, 3);
}

/* The pattern again and again, from a corner that lies anywhere. */
static void fill_pattern(const ex_cutout *pattern, ex_image *canvas, dice *d) {
    ex_placement at = {.scale = between(d, 0.75, 1.5), .mirrored = roll(d) < 0.5};
    double width = at.scale * pattern->width, height = at.scale * pattern->height;
    double left = -roll(d) * width, top = -roll(d) * height;
    for (double y = top; y < canvas->height; y += height)
        for (double x = left; x < canvas->width; x += width) {
            at.x = x + width / 2;
            at.y = y + height / 2;
            ex_cutout_draw(pattern, &at, canvas, NULL, NULL);
        }
}

/* What shows through a pattern is the colour below it. */
static void draw_below(const ex_card_scenes *s, ex_split split, ex_image *canvas, dice *d) {
    const choice *list = &s->below[split];
    fill_plain(canvas, d);
    if (roll(d) < PLAIN_SHARE) return;
    fill_pattern(&s->patterns[list->items[below(d, list->count)]], canvas, d);
}

static void write_box(const ex_box *box, int label, double side, float *out) {
    out[0] = (float)label;
    out[1] = (float)((box->x + box->width / 2) / side);
    out[2] = (float)((box->y + box->height / 2) / side);
    out[3] = (float)(box->width / side);
    out[4] = (float)(box->height / side);
}

static void draw_scene(const ex_card_scenes *s, ex_split split, uint64_t epoch, size_t index,
                       ex_image *canvas, float (*boxes)[EX_CARD_NUMBERS]) {
    layout scene = lay_out(s, split, epoch, index);
    size_t told = 0;
    for (size_t i = 0; i < EX_CARDS_MOST; i++)
        memcpy(boxes[i], (const float[EX_CARD_NUMBERS]){-1, 0, 0, 0, 0}, sizeof boxes[i]);
    draw_below(s, split, canvas, &scene.dice);
    for (size_t i = 0; i < scene.count; i++) {
        const laid *l = &scene.cards[i];
        ex_box hull;
        ex_cutout_draw(&l->card->picture, &l->at, canvas, NULL, &hull);
        if (l->card->label != STRAY && hull.width > 0)
            write_box(&hull, l->card->label, s->options.side, boxes[told++]);
    }
}

static size_t count_scenes(const void *self, ex_split split) {
    const ex_card_scenes *s = self;
    return s->options.scenes[split];
}

static ex_status fill(const void *self, ex_split split, uint64_t epoch, size_t first, size_t count,
                      void *const *buffers, ex_error *error) {
    const ex_card_scenes *s = self;
    int side = s->options.side;
    float(*boxes)[EX_CARDS_MOST][EX_CARD_NUMBERS] = buffers[1];
    ex_image canvas = {side, side, buffers[0]};
    (void)error;
    for (size_t i = 0; i < count; i++, canvas.pixels += 3 * (size_t)side * (size_t)side)
        draw_scene(s, split, epoch, first + i, &canvas, boxes[i]);
    return EX_OK;
}

ex_source ex_card_scenes_source(const ex_card_scenes *scenes) {
    int64_t side = scenes->options.side;
    return (ex_source){.self = scenes,
                       .unit = "pictures",
                       .names = scenes->names,
                       .tensor_count = 2,
                       .tensors = {{MT_UINT8, 3, {3, side, side}},
                                   {MT_FLOAT32, 2, {EX_CARDS_MOST, EX_CARD_NUMBERS}}},
                       .count = count_scenes,
                       .fill = fill};
}
