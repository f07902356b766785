/*
 * dataset.h - a folder of class folders as a classification data set for the example programs.
 *
 *     FOLDER/apple/1.jpg  FOLDER/apple/2.png  FOLDER/bread/1.jpg ...
 *
 * Classes are the folders directly below FOLDER in the byte order of their names; pictures are
 * the files directly inside them. Hidden entries, files beside the class folders and folders
 * inside them are ignored; symbolic links are followed. Each picture is decoded once, when the
 * data set is opened, and kept small in memory as far as there is room; the others are decoded again
 * whenever they are used. Nothing prints.
 */
#ifndef EX_DATASET_H
#define EX_DATASET_H

#include "orders.h"
#include "source.h"
#include "view.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise and set what matters; zero means the default. */
typedef struct ex_dataset_options {
    uint64_t seed;      /* of shuffling and augmentation; the split does not depend on it */
    int keep_side;      /* larger pictures are kept with this short side; 0: 256 */
    double validation;  /* share of each class kept for validation; 0: 0.2, negative: none */
    size_t max_samples; /* stop at this many pictures, taken evenly from the classes; 0: all */
    size_t max_bytes;   /* keep no more than this in memory; 0: no bound */
    ex_fit fit;
    void (*warn)(void *user, const char *line); /* one call for each skipped file; may be NULL */
    void *user;
} ex_dataset_options;

typedef struct ex_sample {
    ex_image image; /* short side at most keep_side, long side at most 4 * keep_side; pixels NULL:
                       not kept, to be decoded again */
    size_t label;
    bool validation;
    char *name; /* file name without the folder */
} ex_sample;

/* Open for reading; only the functions below write. */
typedef struct ex_dataset {
    char **class_names;
    size_t class_count;
    ex_sample *samples; /* by class, then by file name */
    size_t sample_count;
    size_t *members[2]; /* sample numbers of each split, ascending */
    size_t member_count[2];
    ex_orders *orders;  /* of training */
    size_t skipped;     /* files that could not be used ... */
    ex_error skip;      /* ... and why the first could not */
    size_t empty;       /* class folders without a file, which are left out */
    size_t not_kept;    /* pictures that are decoded whenever they are used */
    size_t pixel_bytes; /* memory the kept pictures take */
    char *folder;
    int keep_side;
    uint64_t seed;
    ex_fit fit;
} ex_dataset;

/*
 * Opens `folder` with `options` (NULL: all defaults). A file that cannot be used is skipped,
 * counted and reported through `warn`, and so is a class folder without any file, which is no class.
 * Opening fails only if a folder cannot be read, fewer than two classes are left, or a class has files
 * and none of them can be used. `error` then names the folder.
 *
 * Memory: 3 * width * height bytes for each kept picture, e.g. at most 49 kB for one of 128 x 128
 * and about 260 kB for a 4:3 photograph at the default keep_side; see pixel_bytes. While opening,
 * additionally what decoding one picture takes.
 *
 * The split is a function of class and file names alone: in each class groups of pictures go to
 * validation in the order of a hash of their name until the share is reached. Pictures whose
 * names agree up to a double underscore (apple__bw.png, apple__colour.jpg) form one group and
 * stay together; any other picture is a group of its own. A class of one picture has training
 * only.
 *
 * @return EX_OK and a new data set in `out`, free with ex_dataset_free(); EX_EINPUT or EX_ENOMEM
 * with the line in `error` and NULL in `out`.
 */
ex_status ex_dataset_open(const char *folder, const ex_dataset_options *options, ex_dataset **out,
                          ex_error *error);

void ex_dataset_free(ex_dataset *dataset);

/* Names of classes, and of the files that are samples, with the split that each is in. NULL: nothing is told. */
ex_listing ex_dataset_listing(const ex_dataset *dataset);

/* How many pictures a split has. */
size_t ex_dataset_count(const ex_dataset *dataset, ex_split split);

/*
 * Writes the sample numbers of a split in the order of an epoch, ex_dataset_count() of them:
 * training is shuffled as a pure function of (seed, epoch), validation always comes in the same
 * order.
 */
void ex_dataset_order(const ex_dataset *dataset, ex_split split, uint64_t epoch, size_t *order);

/*
 * Writes `count` pictures from position `first` of the epoch's order as normalised floats
 * (count x 3 x image_size x image_size, planes red, green, blue) and their labels.
 * With `augment` each picture is scaled, shifted and mirrored at random as a pure function of
 * (seed, epoch, sample number). Calls may run on several threads at once: the data set is only
 * read. What comes out depends on neither the batch size nor the order of the calls, nor on which
 * pictures are kept.
 * @param error  names a picture that can no longer be decoded; may be NULL
 * @return EX_OK; EX_EINPUT for such a picture, if the positions do not exist or image_size is not
 * positive; EX_ENOMEM.
 */
ex_status ex_dataset_fill(const ex_dataset *dataset, ex_split split, uint64_t epoch, size_t first,
                          size_t count, int image_size, bool augment, float *pixels,
                          int64_t *labels, ex_error *error);

/* The same before they are normalised: count x image_size x image_size x 3 bytes. */
ex_status ex_dataset_fill_pixels(const ex_dataset *dataset, ex_split split, uint64_t epoch,
                                 size_t first, size_t count, int image_size, bool augment,
                                 unsigned char *pixels, int64_t *labels, ex_error *error);

/*
 * Writes one picture, by its number among the samples, as ex_dataset_fill does: 3 x image_size x
 * image_size floats.
 * @return EX_OK; EX_EINPUT for a picture that was not kept and can no longer be read; EX_ENOMEM
 */
ex_status ex_dataset_picture(const ex_dataset *dataset, size_t index, uint64_t epoch,
                             int image_size, bool augment, float *pixels, ex_error *error);

#endif
