/*
 * food101_model.h - a classifier of pictures for C programs: a ResNet, its loss and its metrics.
 *
 * A batch has two tensors: float pictures [B, 3, size, size], normalised as ImageNet's, and int64
 * labels [B]. The loss is the mean cross entropy. The first metric is "accuracy", the share of
 * pictures whose label has the largest logit; with more than FOOD101_TOP classes a second one,
 * "top5", the share whose label is among the FOOD101_TOP largest.
 *
 * With a nutrition head a batch has a third tensor, float [B, 5]: calories, grams of protein,
 * carbohydrates and fat, and the mass in grams. Half of the mean squared error, in units of 500 kcal and
 * 50, 100, 50, 500 g, is added to the loss, and five metrics follow: the mean absolute errors.
 */
#ifndef FOOD101_MODEL_H
#define FOOD101_MODEL_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FOOD101_TOP 5

typedef struct food101_model_options {
    size_t size;                /* sizeof(food101_model_options) */
    int depth;                  /* of the ResNet: 18, 34 or 50 */
    size_t classes;             /* at least 2 */
    int nutrition;              /* 1: with the nutrition head */
    const float *class_weights; /* classes of them, factors of a picture's cross entropy; copied.
                                   NULL: all 1. With a mean of 1 over the pictures, chunks of any
                                   size add up to the batch. */
} food101_model_options;

#define FOOD101_MODEL_OPTIONS_INIT                                                                 \
    { sizeof(food101_model_options), 18, 101, 0, NULL }

/*
 * Makes the model on the CPU with random weights, from libtorch's generator (mt_torch_seed).
 * @param out  new reference: free with mt_model_free
 * @return MT_OK; MT_EINVAL (names the field); MT_EDEVMEM when the parameters do not fit
 */
MT_NODISCARD mt_status food101_model_new(const food101_model_options *options, mt_model **out);

/* The same for who calls models of any kind. options: a food101_model_options. */
MT_NODISCARD static inline mt_status food101_model_make(void *options, mt_model **out) {
    return food101_model_new((const food101_model_options *)options, out);
}

#ifdef __cplusplus
}
#endif
#endif
