/*
 * car_clip_model.h - pictures and texts that find each other, for C programs: CLIP's towers, their
 * contrastive loss and their recall.
 *
 * A batch has two tensors: float pictures [B, 3, side, side], normalised as ImageNet's, and int64 tokens
 * [B, context], whose largest token ends the text. Each picture is compared with each text; the loss is the
 * mean of two cross entropies, that of a picture's text among all texts and that of a text's picture among
 * all pictures.
 *
 * Metrics are the shares of what finds its partner first, or among the first five, of all that it was
 * compared with: "recall@1" and "recall@5" are the means of both ways, "text@1" and "text@5" those of a
 * picture's text, "picture@1" and "picture@5" those of a text's picture. Where a caption comes several times
 * each of its pictures is right. An equal score of a wrong partner counts as the better one.
 */
#ifndef CAR_CLIP_MODEL_H
#define CAR_CLIP_MODEL_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CAR_CLIP_METRICS = 6 };

/* What the loss compares. */
typedef enum car_clip_contrastive {
    CAR_CLIP_CACHED =
        0, /* all pairs of a batch, however it is cut: cached embeddings (mt_prepare) */
    CAR_CLIP_PLAIN =
        1 /* the pairs of each chunk alone: chunks add up to another loss than the batch's */
} car_clip_contrastive;

typedef struct car_clip_model_options {
    size_t size;                   /* sizeof(car_clip_model_options) */
    int image_width, image_layers; /* widths are multiples of 64, the size of a head */
    int text_width, text_layers;
    int embedding;           /* numbers that stand for a picture or a text */
    int side, patch;         /* of the pictures; side at least patch */
    int vocabulary, context; /* of the texts */
    int contrastive;         /* a car_clip_contrastive */
    /* Above 0: CLIP's ResNet-50 with so many channels in its first blocks, 64 as published, in the place of the
       image transformer; side is a multiple of 32 then. Its batch norm sees the samples of a chunk. With
       CAR_CLIP_CACHED it has its running statistics, also in training: a pair's embedding is not to depend on
       its chunk. */
    int resnet_width;
} car_clip_model_options;

#define CAR_CLIP_MODEL_OPTIONS_INIT                                                                \
    { sizeof(car_clip_model_options), 192, 6, 192, 4, 192, 96, 16, 259, 64, CAR_CLIP_CACHED, 0 }

/*
 * Makes the model on the CPU with random weights, from libtorch's generator (mt_torch_seed).
 * @param out  new reference: free with mt_model_free
 * @return MT_OK; MT_EINVAL (names the field); MT_EDEVMEM when the parameters do not fit
 */
MT_NODISCARD mt_status car_clip_model_new(const car_clip_model_options *options, mt_model **out);

/*
 * Keeps the scale of the logits at 100 at most, as the published training does after each step: where all
 * training pairs are found it would grow for ever. Between steps.
 */
MT_NODISCARD mt_status car_clip_model_clamp(mt_torch *torch);

#ifdef __cplusplus
}
#endif
#endif
