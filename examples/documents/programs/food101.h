/*
 * food101.h - what food101 holds, and what it has beside its data, its model and how they are trained.
 */
#ifndef EX_FOOD101_H
#define EX_FOOD101_H

#include "nutrition.h"
#include "pictures.h"
#include "training.h"

typedef struct food101 {
    ex_flags flags;
    int64_t size, depth, fit; /* --size, --arch, --fit */
    int dev_mode, include_nutrition, balance, table;
    int64_t dev_samples;
    const char *weights;
    ex_pictures pictures;
    ex_nutrition *nutrition; /* NULL: not included */
} food101;

/* --profile: names of batches. */
extern const ex_word food101_profiles[];

/* Reads the command line, and sets what of program depends on it. @return 1: go on; 0: *out_status is the exit status */
int food101_flags(food101 *f, ex_program *program, int argc, char **argv, int *out_status);

/* Accuracies, and errors of nutrition, beside those of guessing. */
void food101_result(const food101 *f, const ex_training *run);

/* ex_program.remedies */
void food101_remedies(void *self, const ex_training *run);

/* --table: short runs of each profile. @return the exit status */
int food101_table(food101 *f, ex_program *program, char **argv);

#endif
