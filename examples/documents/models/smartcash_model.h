/*
 * smartcash_model.h - a detector for C programs: a backbone, heads of one scale or three, loss and metrics.
 *
 * A batch has two tensors: float pictures [B, 3, side, side], normalised as ImageNet's, and float boxes
 * [B, M, 5], each class, centre x and y, width and height as shares of the picture; class -1: none. The loss
 * is a mean over the pictures, so chunks of any size add up to the batch.
 *
 * The metrics are sums over the boxes: of those that are found on pictures (surer than a quarter, IoU of at
 * least a half with one that is there) and those that are there
 *
 *     f1         right ones, against the mean of those that are reported and those that are there
 *     recall     right ones of those that are there
 *     precision  right ones of those that are reported
 *     iou        of those that were located, whatever class was said
 *     located, reported, there and their sum "boxes", each a picture
 */
#ifndef SMARTCASH_MODEL_H
#define SMARTCASH_MODEL_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum smartcash_backbone {
    SMARTCASH_EFFICIENTNET_B4 = 1,
    SMARTCASH_EFFICIENTNET_B0 = 2,
    SMARTCASH_CSPDARKNET = 3,      /* CSPDarknet-53 */
    SMARTCASH_CSPDARKNET_SMALL = 4 /* a quarter of its channels, and fewer blocks */
} smartcash_backbone;

/* Numbers of the metrics. */
enum {
    SMARTCASH_F1,
    SMARTCASH_RECALL,
    SMARTCASH_PRECISION,
    SMARTCASH_IOU,
    SMARTCASH_LOCATED,
    SMARTCASH_REPORTED,
    SMARTCASH_THERE,
    SMARTCASH_BOXES,
    SMARTCASH_METRICS
};

enum { SMARTCASH_ANCHORS = 3, SMARTCASH_SCALES = 3, SMARTCASH_STEP = 32 };

typedef struct smartcash_model_options {
    size_t size; /* sizeof(smartcash_model_options) */
    smartcash_backbone backbone;
    size_t classes; /* at least 2 */
    int side;       /* of the pictures, a multiple of SMARTCASH_STEP, at least twice that */
    /* Width and height, as shares of the picture; of one scale the first SMARTCASH_ANCHORS, of three all of them, the
       finest scale's first. */
    float anchors[SMARTCASH_SCALES * SMARTCASH_ANCHORS][2];
    size_t
        least_chunk; /* fewest pictures at once; 0: 2, for the sake of BatchNorm. 1 is possible */
    /* 0: one head, at a sixteenth of the side, that normalises by groups of channels. 1: the neck of YOLOv5s and heads at
       an eighth, a sixteenth and a thirty-second, whose batch norm sees the pictures of a chunk. */
    int three_scales;
} smartcash_model_options;

#define SMARTCASH_MODEL_OPTIONS_INIT                                                               \
    {                                                                                              \
        sizeof(smartcash_model_options), SMARTCASH_EFFICIENTNET_B4, 7, 128,                        \
            {{0.2F, 0.3F}, {0.3F, 0.4F}, {0.4F, 0.5F}, {0.2F, 0.3F}, {0.3F, 0.4F},                 \
             {0.4F, 0.5F}, {0.2F, 0.3F}, {0.3F, 0.4F}, {0.4F, 0.5F}},                              \
            0, 0                                                                                   \
    }

/*
 * Makes the model on the CPU with random weights, from libtorch's generator (mt_torch_seed).
 *
 * The backbone has the names of torchvision's (EfficientNet) or timm's (CSPDarknet). While it is frozen
 * (mt_torch_freeze with smartcash_model_parts) it runs as in an evaluation: no activations are kept, and
 * BatchNorm takes its running statistics and leaves them as they are.
 *
 * @param out  new reference: free with mt_model_free
 * @return MT_OK; MT_EINVAL (names the field); MT_EDEVMEM when the parameters do not fit
 */
MT_NODISCARD mt_status smartcash_model_new(const smartcash_model_options *options, mt_model **out);

/* For mt_weights_options: the names of timm's efficientnet_b4 and b0, which are none of torchvision's. */
void smartcash_model_timm_name(void *user, const char *name, char *other, size_t capacity);

/* For mt_weights_options: what the names of the backbone begin with; NULL for none. Static. */
const char *smartcash_model_required(smartcash_backbone backbone);

/* What the names of the backbone's parameters begin with, NULL at the end; NULL for none. Static. */
const char *const *smartcash_model_parts(smartcash_backbone backbone);

#ifdef __cplusplus
}
#endif
#endif
