/*
 * prompt_scenes.h - pictures with two or three things on a pattern, a prompt that names one of them, and its
 * mask: "segment the bird in the top left".
 *
 * The things are cut-outs from a folder of class folders. A scene is a pure function of seed, split, epoch
 * and index. The files of each class are split as ex_dataset_open does, so validation shows pictures that
 * training never has; the patterns are the same in both.
 *
 * Where a thing is, in words: its box covers the middle of the canvas: "in the center"; else the quarter
 * that the box's middle lies in, "in the top left", and "near the center in the top left" where that is
 * within a fifth of the side from the canvas's middle. In a third of the scenes a class comes twice; no
 * two things of a scene have both class and position in common, so each prompt means one thing.
 */
#ifndef EX_PROMPT_SCENES_H
#define EX_PROMPT_SCENES_H

#include "cutout.h"
#include "source.h"

enum { EX_PROMPT_TOKENS = 64, EX_PROMPT_THINGS = 3, EX_PROMPT_POSITIONS = 9 };

/* What the bytes of a prompt stand between, and what follows them. */
enum { EX_PROMPT_BEGIN = 256, EX_PROMPT_END = 257, EX_PROMPT_PADDING = 258 };

typedef struct ex_prompt_scenes_options {
    const char *things;   /* folder of class folders */
    const char *patterns; /* folder of PNG pictures */
    int side;             /* of the canvas */
    size_t count[2];      /* scenes of an epoch, by split */
    uint64_t seed;
    int same; /* 1: each epoch of training has the scenes of the first one */
    void (*warn)(void *user, const char *line); /* one call for each skipped file; may be NULL */
} ex_prompt_scenes_options;

typedef struct ex_prompt_scenes ex_prompt_scenes;

/*
 * @param out  new reference: free with ex_prompt_scenes_free
 * @return EX_OK; EX_EINPUT (error names the folder or file), EX_ENOMEM
 */
ex_status ex_prompt_scenes_open(const ex_prompt_scenes_options *options, ex_prompt_scenes **out,
                                ex_error *error);

/* NULL is a no-op. */
void ex_prompt_scenes_free(ex_prompt_scenes *scenes);

/*
 * Tensors: the picture [3, side, side], normalised; its mask [side, side] of 0 and 1; the prompt's tokens
 * [EX_PROMPT_TOKENS].
 */
ex_source ex_prompt_scenes_source(const ex_prompt_scenes *scenes);

size_t ex_prompt_scenes_classes(const ex_prompt_scenes *scenes);

/* ---- scenes one by one ------------------------------------------------------------------------- */

typedef struct ex_thing {
    size_t sample; /* which cut-out */
    size_t label;
    int position; /* 0 to EX_PROMPT_POSITIONS - 1 */
    ex_placement placement;
    ex_box box;
} ex_thing;

typedef struct ex_scene {
    size_t pattern;
    int shift_x, shift_y; /* of the pattern */
    ex_thing things[EX_PROMPT_THINGS];
    size_t thing_count, named;
} ex_scene;

/* What is where; things of higher index lie in front. */
void ex_prompt_scenes_describe(const ex_prompt_scenes *scenes, ex_split split, uint64_t epoch,
                               size_t index, ex_scene *out);

/*
 * Draws a scene.
 * @param canvas  side * side pixels of the caller's
 * @param owner   side * side bytes: 1 + the thing that is seen there, 0 for none. A thing is seen where its
 *                alpha is above a half and no thing in front has that
 * @return EX_OK, EX_ENOMEM
 */
ex_status ex_prompt_scenes_draw(const ex_prompt_scenes *scenes, const ex_scene *scene,
                                ex_image *canvas, unsigned char *owner);

int ex_prompt_position(const ex_box *box, int side);

/* "segment the bird in the top left", cut off where it is too long for its tokens. */
void ex_prompt_text(const ex_prompt_scenes *scenes, size_t label, int position,
                    char text[EX_PROMPT_TOKENS]);

void ex_prompt_tokens(const char *text, int64_t tokens[EX_PROMPT_TOKENS]);

/* ---- what a model has to beat ------------------------------------------------------------------- */

/* Mean Dice over the validation scenes of who ignores the prompt. */
typedef struct ex_prompt_chance {
    double everything; /* all pixels */
    double all_things; /* all things, outlined perfectly */
    double one_thing;  /* one of the things, outlined perfectly, at random: the mean over them */
} ex_prompt_chance;

ex_status ex_prompt_scenes_chance(const ex_prompt_scenes *scenes, ex_prompt_chance *out);

#endif
