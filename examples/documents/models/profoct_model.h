/*
 * profoct_model.h - a few-shot classifier for C programs: a ResNet, the cosine transformer and its loss.
 *
 * A sample is an episode: `ways` classes, and of each `shots` pictures that are known and `queries` that are to
 * be told. A batch has one tensor, float pictures [B, ways * (shots + queries), 3, side, side], normalised
 * as ImageNet's; class by class, and of each class the known ones first, so that no labels are needed.
 *
 * The loss is the mean cross entropy of the queries; of ProFOCT with terms for the variance, invariance and
 * covariance of the known pictures' features. Batch norm sees the pictures of one episode: so an
 * episode is never cut, and how many of them a chunk has changes nothing.
 *
 * Metrics: "accuracy", the share of queries that are told right, and "accuracy_squared", the mean of its square
 * over the episodes, from which follows how much it differs between them. Of ProFOCT also
 * "cross_entropy", "variance", "invariance" and "covariance".
 */
#ifndef PROFOCT_MODEL_H
#define PROFOCT_MODEL_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct profoct_model_options {
    size_t size; /* sizeof(profoct_model_options) */
    int depth;   /* of the ResNet: 18 or 34 */
    int feti;    /* 1: a stem of 5x5 without a max pool */
    int width;   /* channels of the ResNet's first layer, 64 in the paper */
    int pool;    /* side of the averaged feature map: a picture has 8 * width * pool^2 features */
    int ways, shots, queries; /* of an episode; queries are those of a class */
    int vic;                  /* 1: the terms of ProFOCT */
    int vic_on_attention;     /* 1: variance and covariance of what attention gives, too */
    int detach;               /* 1: these without their graph, as numbers of the loss alone */
    int dynamic;   /* 1: weights of the terms follow their sizes; 0: they stay as they are */
    int by_matrix; /* 1: covariances by the d x d matrix of all of them, as the script has it */
    double alpha, beta, gamma; /* the weights at the start: variance, invariance, covariance */
    int running_statistics; /* of batch norm in evaluation; 0: those of the episode, as in training */
} profoct_model_options;

#define PROFOCT_MODEL_OPTIONS_INIT                                                                 \
    { sizeof(profoct_model_options), 18, 0, 64, 1, 5, 5, 8, 1, 1, 1, 1, 0, 0.5, 9.0, 0.5, 0 }

/*
 * Makes the model on the CPU with random weights, from libtorch's generator (mt_torch_seed).
 * @param out  new reference: free with mt_model_free
 * @return MT_OK; MT_EINVAL (names the field); MT_EDEVMEM when the parameters do not fit
 */
MT_NODISCARD mt_status profoct_model_new(const profoct_model_options *options, mt_model **out);

#ifdef __cplusplus
}
#endif
#endif
