/*
 * pictures.h - opens the data set that the flags ask for.
 */
#ifndef EX_PICTURES_H
#define EX_PICTURES_H

#include "dataset.h"
#include "flags.h"

/*
 * Opens --data, or where that is not given the folder `otherwise`, relative to the root of the source
 * tree. Files that cannot be used are skipped with a warning that names them. Pictures are kept a
 * little larger than --image-size, in at most half of the memory that the host has free; what does not go
 * into that is decoded whenever it is used.
 *
 * @param fit      how they become square
 * @param samples  take so many, evenly from the classes; 0: all
 * @param out      new reference: free with ex_dataset_free
 * @return MT_OK; MT_EINVAL (names the flag and the folder), MT_ENOMEM
 */
MT_NODISCARD mt_status ex_pictures_open(const ex_flags *flags, const char *argv0,
                                        const char *otherwise, ex_fit fit, size_t samples,
                                        ex_dataset **out);

/* Logs the line of a picture that is skipped. */
void ex_pictures_warn(void *user, const char *line);

/*
 * Bytes of pictures to keep in memory: half of what the host has free, since the rest is for the batches, the
 * network and the system. 0: not known.
 */
size_t ex_pictures_most_bytes(void);

/* A data set as the source of batches: pictures [3, side, side], normalised, and labels. */
typedef struct ex_pictures {
    ex_dataset *dataset;
    int side;
} ex_pictures;

/* @param pictures  borrowed as long as the source is used */
ex_source ex_pictures_source(const ex_pictures *pictures);

/*
 * The share of validation pictures (of training pictures, where there are none) that are right for
 * who always guesses the class with most training pictures: what a classifier has to beat.
 * @param out_label  that class; may be NULL
 */
double ex_pictures_majority(const ex_dataset *pictures, size_t *out_label);

/*
 * A weight for each class, inverse to its training pictures, with a mean of 1 over all of these.
 * @return an array of class_count, free() it; NULL: out of host memory
 */
float *ex_pictures_balance(const ex_dataset *pictures);

#endif
