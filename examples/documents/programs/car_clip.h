/*
 * car_clip.h - what car_clip holds, and what it has beside its data, its model and how they are trained.
 */
#ifndef EX_CAR_CLIP_H
#define EX_CAR_CLIP_H

#include "captions.h"
#include "training.h"

typedef struct car_clip {
    ex_flags flags;
    int64_t contrastive; /* a car_clip_contrastive */
    int64_t network;     /* index into networks */
    int64_t patch;
    int64_t keywords; /* 1: said in training */
    const char *weights;
    ex_captions *captions;
    size_t peak_bytes; /* of all steps so far */
} car_clip;

/*
 * Width and layers of the towers, the numbers that stand for a picture or a text, and the channels of a ResNet-50 in the
 * place of the picture tower. The published ones have CLIP's tokens, and their pictures and patches as defaults.
 */
typedef struct car_clip_network {
    int image_width, image_layers, text_width, text_layers, embedding, resnet_width, side, patch;
} car_clip_network;

/* That of --size. */
const car_clip_network *car_clip_network_of(const car_clip *c);
int car_clip_is_published(const car_clip *c);

/* Pairs of --batch, before --accumulate. */
size_t car_clip_chunk(const car_clip *c);

/* Reads the command line, and sets what of program depends on it. @return 1: go on; 0: *out_status is the exit status */
int car_clip_flags(car_clip *c, ex_program *program, int argc, char **argv, int *out_status);

/* How often a picture finds its caption, beside chance. */
void car_clip_result(const car_clip *c, const ex_training *run);

/* ex_program.introduce and remedies */
void car_clip_introduce(void *self, const ex_training *run);
void car_clip_remedies(void *self, const ex_training *run);

/* The line of memory that the script printed, every so many steps. */
void car_clip_memory(car_clip *c, ex_training *run, const mt_step_report *report);

#endif
