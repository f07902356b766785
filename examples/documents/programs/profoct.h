/*
 * profoct.h - what profoct holds, and what it has beside its data, its model and how they are trained.
 */
#ifndef EX_PROFOCT_H
#define EX_PROFOCT_H

#include "episodes.h"
#include "training.h"

enum { FSCT = 0, PROFOCT = 1 }; /* methods */

typedef struct profoct {
    ex_flags flags; /* first, see read_preset */
    ex_shape shape;
    int64_t size; /* --size */
    int64_t method, depth, feti, pool, vic_on_attention, vic_detach, vic_dynamic, by_matrix,
        variants, running;
    int64_t episodes, val_episodes, test_episodes;
    const char *preset, *weights;
    const char
        *unread; /* layers that are not read from --weights (mt_weights_options.skip); NULL: none */
    int self_test;
    ex_class_sets classes;
    ex_episodes learning, testing;
    mt_eval_report tested; /* means over the test episodes */
} profoct;

/* Reads the command line, and sets what of program depends on it. @return 1: go on; 0: *out_status is the exit status */
int profoct_flags(profoct *p, ex_program *program, int argc, char **argv, int *out_status);

/* Accuracy on the test episodes, beside that of guessing. */
void profoct_result(const profoct *p);

/* ex_program.introduce and remedies */
void profoct_introduce(void *self, const ex_training *run);
void profoct_remedies(void *self, const ex_training *run);

#endif
