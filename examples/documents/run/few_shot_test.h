/*
 * few_shot_test.h - checks that the savers of profoct do what is said of them, on the device of the flags: what
 * --self-test runs.
 */
#ifndef EX_FEW_SHOT_TEST_H
#define EX_FEW_SHOT_TEST_H

#include "episodes.h"

#include "profoct_model.h"

/*
 * Gradient accumulation, half precision, what is detached, and clearing of the cache: a line on standard
 * output for each that says whether it passed, and what was seen.
 * @param argv0     where the program is, to find the pictures that come with it
 * @param folder    the pictures, where --data names none
 * @param model     the network; its terms of the loss are turned on where they are checked
 * @return the exit status: 0 when all passed
 */
int ex_few_shot_test(const ex_flags *flags, const char *argv0, const char *folder,
                     const ex_shape *shape, const profoct_model_options *model);

#endif
