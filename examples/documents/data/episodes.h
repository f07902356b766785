/*
 * episodes.h - few-shot episodes as samples: some classes, of each a few pictures that are known and others that
 * are to be told. Classes of training are never those of validation or of tests.
 *
 *     DIR/train/CLASS/picture.png   DIR/val/CLASS/picture.png   DIR/test/CLASS/picture.png
 *
 * or one folder of class folders, DIR/CLASS/picture.png, whose classes are shared out by a hash of their
 * names: about a half for training, a sixth for validation, a third for tests.
 */
#ifndef EX_EPISODES_H
#define EX_EPISODES_H

#include "pictures.h"

/* "5-way 5-shot": an episode has `ways` classes with `shots` known pictures and `queries` others of each. */
typedef struct ex_shape {
    int64_t ways, shots, queries;
} ex_shape;

enum { EX_TRAIN_CLASSES = 0, EX_VAL_CLASSES, EX_TEST_CLASSES, EX_CLASS_SETS };

/* A class, as those samples of its data set that lie one after another. */
typedef struct ex_class {
    const ex_dataset *dataset;
    size_t label, first, count;
} ex_class;

/* Zeroed before it is opened. */
typedef struct ex_class_sets {
    ex_dataset *datasets[EX_CLASS_SETS]; /* one alone where the folder has no train, val and test */
    ex_class *classes[EX_CLASS_SETS];
    size_t counts[EX_CLASS_SETS];
    size_t left_out; /* classes of too few pictures */
} ex_class_sets;

/*
 * Opens --data, or where that is not given the folder `otherwise`, relative to the root of the source
 * tree. Classes with no more pictures than are known in an episode are left out with a
 * warning.
 * @param out  release with ex_class_sets_close, also after a failure
 * @return MT_OK; MT_EINVAL (names the flag and what is too few), MT_ENOMEM
 */
MT_NODISCARD mt_status ex_class_sets_open(const ex_flags *flags, const char *argv0,
                                          const char *otherwise, const ex_shape *shape,
                                          ex_class_sets *out);

/* A zeroed one may be closed. */
void ex_class_sets_close(ex_class_sets *sets);

/* Episodes of two sets of classes, as the training and the validation of a source. */
typedef struct ex_episodes {
    const ex_class_sets *classes;
    int set[2];        /* an EX_..._CLASSES for each split */
    int64_t counts[2]; /* episodes of each split */
    ex_shape shape;
    int side;
    int variants; /* 1: in training a class may be turned by quarters, and its colours may change places */
    uint64_t seed;
} ex_episodes;

/*
 * One tensor, [ways * (shots + queries), 3, side, side] a sample: class by class, the known pictures of a class
 * first. Pictures of training are scaled, shifted and mirrored at random; with variants all pictures of a
 * class in an episode are turned alike, and their colours exchanged alike, which makes more classes of few. A class that has fewer pictures
 * than are needed lends those that are to be told more than once, and the known ones never.
 * @param episodes  borrowed as long as the source is used
 */
ex_source ex_episodes_source(const ex_episodes *episodes);

#endif
