/*
 * smartcash.h - what smartcash holds, and what it has beside its data, its model and how they are trained.
 */
#ifndef EX_SMARTCASH_H
#define EX_SMARTCASH_H

#include "card_scenes.h"
#include "tiers.h"
#include "training.h"

typedef struct smartcash {
    ex_flags flags;
    int64_t size, tier, backbone,
        classes; /* --size, an ex_tier, a smartcash_backbone, an ex_card_classes */
    int64_t phase1_epochs, phase2_epochs; /* below 0: as the tier has them */
    int64_t scenes, validation_scenes;
    double backbone_lr;
    int force_cpu, disable_tqdm;
    size_t cpu_budget; /* bytes; 0: that of the host */
    const char *weights;
    ex_card_scenes *data;
    ex_tier now; /* of the last step; EX_TIER_AUTO: there was none */
    int is_frozen;
    mt_parameter_group groups[2];
} smartcash;

/* Reads the command line, and sets what of program depends on it. @return 1: go on; 0: *out_status is the exit status */
int smartcash_flags(smartcash *f, ex_program *program, int argc, char **argv, int *out_status);

/* Says when a step has run in another tier. ex_program.after_step */
void smartcash_tier(void *self, ex_training *run, const mt_step_report *report);

/* What the cards of an epoch's validation come to. ex_program.after_epoch */
mt_status smartcash_details(void *self, ex_training *run, const mt_epoch_report *report);

/* The last epoch's F1, beside guessing. */
void smartcash_result(const smartcash *f, const ex_training *run);

/* ex_program.introduce and remedies */
void smartcash_introduce(void *self, const ex_training *run);
void smartcash_remedies(void *self, const ex_training *run);

#endif
