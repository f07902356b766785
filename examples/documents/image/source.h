/*
 * source.h - where samples come from: what a program's data has to offer to be cut into batches.
 *
 * A source is its table of tensors and two functions. It owns nothing here: who makes it frees what
 * self points to, after the batches that read it.
 */
#ifndef EX_SOURCE_H
#define EX_SOURCE_H

#include "image.h"

#include <memtrain/torch.h>

typedef enum ex_split { EX_TRAINING = 0, EX_VALIDATION = 1 } ex_split;

enum { EX_TENSORS = 6, EX_DIMS = 5 };

/*
 * What one sample has of a tensor: a picture is {MT_FLOAT32, 3, {3, 96, 96}}, a label {MT_INT64, 0, {0}}. With MT_UINT8 a
 * picture waits as its pixels, a quarter of the bytes, and becomes normalised floats when its batch is asked for.
 */
typedef struct ex_tensor {
    mt_dtype dtype; /* MT_FLOAT32, MT_INT64, or MT_UINT8 with a shape of {3, height, width} */
    size_t dims;
    int64_t shape[EX_DIMS];
} ex_tensor;

/* Of one sample. */
size_t ex_tensor_bytes(const ex_tensor *tensor);

/* What the network sees of it: floats, where it waits as pixels. */
ex_tensor ex_tensor_seen(const ex_tensor *tensor);

/* Pictures as floats (ex_image_normalise), of a tensor of MT_UINT8. */
void ex_tensor_normalise(const ex_tensor *tensor, size_t samples, unsigned char *pixels,
                         float *floats);

/*
 * What samples are called. Labels and the place in the data are numbers, so a run that goes on needs the same names in the same
 * order. Hashes (ex_hash) are of names alone: what is in the files is not looked at.
 */
typedef struct ex_listing {
    const char *labels; /* what they are called, "classes" or "captions"; NULL: no names are told */
    size_t label_count, file_count;
    uint64_t label_hash, file_hash;
} ex_listing;

typedef struct ex_source {
    const void *self;
    const char *unit; /* what samples are called: "pictures" */
    ex_listing names;
    size_t tensor_count;
    ex_tensor tensors[EX_TENSORS];
    /* Samples of an epoch. */
    size_t (*count)(const void *self, ex_split split);
    /*
     * Writes samples first to first + count - 1 in the order of an epoch, one after another in each of
     * the buffers. A pure function of its arguments and the seed, since several threads call it at
     * once, in whatever order: ex_random draws its numbers. Validation is the same in each epoch.
     * @return EX_OK; EX_EINPUT for what can no longer be read, with its name in error; EX_ENOMEM
     */
    ex_status (*fill)(const void *self, ex_split split, uint64_t epoch, size_t first, size_t count,
                      void *const *buffers, ex_error *error);
    /*
     * Writes what is made of a whole batch, into tensors that fill passes over: once a batch, on the thread that asks for
     * it. NULL: there is none.
     * @return MT_OK, or why the batch cannot be had
     */
    mt_status (*make)(void *make_self, size_t count, void *const *buffers);
    void *make_self;
} ex_source;

#endif
