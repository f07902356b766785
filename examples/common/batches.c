/*
 * batches.c - renders pictures into the buffer of a batch; see batches.h.
 */
#include "batches.h"

#include <memtrain/torch.h>
#include <stdlib.h>

/* The buffer seen as tensors of so many samples. A run has three sizes: the full batch, and what is
 * left at the end of either split. */
typedef struct view {
    size_t samples;
    mt_tensor *tensors[2]; /* pictures and labels */
    mt_torch_batch torch;
} view;

enum { VIEWS = 3 };

struct ex_batches {
    const ex_dataset *pictures;
    size_t batch;
    int side;
    float *pixels;   /* batch x 3 x side x side */
    int64_t *labels; /* batch */
    view views[VIEWS];
};

mt_status ex_batches_new(const ex_dataset *pictures, size_t batch, int side, ex_batches **out) {
    *out = NULL;
    ex_batches *b = calloc(1, sizeof *b);
    if (!b) return mt_set_error(MT_ENOMEM, "out of host memory");
    b->pictures = pictures;
    b->batch = batch;
    b->side = side;
    b->pixels = calloc(batch, (size_t)side * (size_t)side * 3 * sizeof *b->pixels);
    b->labels = calloc(batch, sizeof *b->labels);
    if (!b->pixels || !b->labels) {
        ex_batches_free(b);
        return mt_set_error(MT_ENOMEM, "out of host memory for a batch of %zu pictures", batch);
    }
    *out = b;
    return MT_OK;
}

void ex_batches_free(ex_batches *batches) {
    if (!batches) return;
    for (int i = 0; i < VIEWS; i++) {
        mt_tensor_free(batches->views[i].tensors[0]);
        mt_tensor_free(batches->views[i].tensors[1]);
    }
    free(batches->pixels);
    free(batches->labels);
    free(batches);
}

size_t ex_batches_count(const ex_batches *batches, ex_split split) {
    return (ex_dataset_count(batches->pictures, split) + batches->batch - 1) / batches->batch;
}

/* Wraps the first samples of the buffer; nothing is copied. */
static mt_status make_view(ex_batches *b, size_t samples, view *v) {
    const int64_t shape[] = {(int64_t)samples, 3, b->side, b->side};
    mt_status status = mt_tensor_from_memory(b->pixels, MT_FLOAT32, 4, shape, &v->tensors[0]);
    if (status == MT_OK)
        status = mt_tensor_from_memory(b->labels, MT_INT64, 1, shape, &v->tensors[1]);
    if (status != MT_OK) return status;
    v->torch = (mt_torch_batch){sizeof v->torch, v->tensors, 2};
    v->samples = samples;
    return MT_OK;
}

static mt_status find_view(ex_batches *b, size_t samples, view **out) {
    view *v = b->views;
    while (v->samples && v->samples != samples) v++;
    *out = v;
    return v->samples ? MT_OK : make_view(b, samples, v);
}

mt_status ex_batches_fill(ex_batches *batches, ex_split split, uint64_t epoch, size_t index,
                          mt_batch *out) {
    size_t total = ex_dataset_count(batches->pictures, split), first = index * batches->batch;
    size_t samples = total - first < batches->batch ? total - first : batches->batch;
    view *v;
    ex_status filled =
        ex_dataset_fill(batches->pictures, split, epoch, first, samples, batches->side,
                        split == EX_TRAINING, batches->pixels, batches->labels);
    if (filled != EX_OK)
        return mt_set_error(filled == EX_ENOMEM ? MT_ENOMEM : MT_EINVAL,
                            "a batch of %zu pictures could not be rendered%s", samples,
                            filled == EX_ENOMEM ? ": out of host memory" : "");
    mt_status status = find_view(batches, samples, &v);
    *out = (mt_batch){sizeof *out, &v->torch, samples, index};
    return status;
}
