/*
 * prsmed_model.h - segmentation from a prompt for C programs: a frozen transformer over bytes, an encoder of
 * pictures and a mask decoder, after PRS-Med (Trinh et al., arXiv 2505.11872); loss and metrics.
 *
 * A batch has three tensors: float pictures [B, 3, side, side], normalised as ImageNet's, float masks
 * [B, side, side] of 0 and 1, and int64 tokens [B, T]: bytes, and 256, 257 and 258 for begin, end and
 * padding. The loss is the mean over the pictures of binary cross entropy plus 1 - Dice. Metrics, also means
 * over the pictures, with what has a logit above 0 as the mask: "dice" and "iou".
 *
 * The language model is frozen: it has no gradient, keeps no activations, and stays in evaluation mode. It is
 * random, or trained on prompts alone before that; what it says of each word is centred and scaled by what
 * it says of the prompts that are given, which a decoder can tell apart either way.
 */
#ifndef PRSMED_MODEL_H
#define PRSMED_MODEL_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PRSMED_CONV 1   /* a small convolutional encoder, stride 4, and a decoder of 64 channels */
#define PRSMED_VIT_TI 2 /* ViT-Ti/8, and a decoder of 192 channels */
/* As published: TinySAM's TinyViT-5M, stride 16, and the mask decoder of 5,365,441 parameters. That reads states of
   4096 numbers; those of a narrower text model are spread to as many by a random matrix that is no parameter. */
#define PRSMED_TINY_VIT 3

typedef struct prsmed_model_options {
    size_t size;         /* sizeof(prsmed_model_options) */
    int encoder;         /* PRSMED_CONV, PRSMED_VIT_TI or PRSMED_TINY_VIT */
    int64_t side;        /* of the pictures, a multiple of the encoder's stride, 4, 8 or 16 */
    int64_t text_width;  /* a multiple of 64 */
    int64_t text_layers; /* at least 1 */
    double dropout;      /* of the decoder, 0 <= x < 1 */
    /* prompt_count rows of prompt_length tokens, to centre and scale by and to learn from; may be NULL without
       any. Borrowed for the call. */
    const int64_t *prompts;
    size_t prompt_count, prompt_length;
    int64_t text_steps; /* updates of the text model before it is frozen; 0: it stays random */
    /*
     * 1: there is no text model. A batch has two tensors more, of text_width, as prsmed_lm_words gives them: states
     * [B, PRSMED_LM_WORDS, text_width] and 1 or 0 [B, PRSMED_LM_WORDS] for words that exist.
     */
    int words;
} prsmed_model_options;

#define PRSMED_MODEL_OPTIONS_INIT                                                                  \
    { sizeof(prsmed_model_options), PRSMED_CONV, 64, 128, 4, 0.1, NULL, 0, 0, 0, 0 }

/* The parts of the network, as parameters are named: "text.", "vision.", "decoder.". */
typedef enum prsmed_part { PRSMED_TEXT = 0, PRSMED_VISION = 1, PRSMED_DECODER = 2 } prsmed_part;
#define PRSMED_PARTS 3

/* What a part takes by its architecture; nothing is made for it. */
typedef struct prsmed_estimate {
    size_t size;       /* sizeof(prsmed_estimate) */
    size_t parameters; /* numbers, not bytes */
    size_t
        activations; /* numbers that one sample keeps for the backward pass; of the text model, which
                           keeps none, those that are there at once */
} prsmed_estimate;

/*
 * Makes the model on the CPU with random weights, from libtorch's generator (mt_torch_seed), and trains the
 * text model there.
 * @param out  new reference: free with mt_model_free
 * @return MT_OK; MT_EINVAL (names the field); MT_EDEVMEM when the parameters, or the training of the text
 *         model, do not fit
 */
MT_NODISCARD mt_status prsmed_model_new(const prsmed_model_options *options, mt_model **out);

/* For mt_weights_options: what the names of the image encoder begin with, its neck left out. Static. */
const char *prsmed_model_encoder(void);

/*
 * For mt_weights_options: the names that the image encoder of PRSMED_TINY_VIT has in files of all of TinySAM, of the encoder
 * alone, and of timm's tiny_vit_5m_224.
 */
void prsmed_model_encoder_names(void *user, const char *name, char *other, size_t capacity);

/* @return MT_OK; MT_EINVAL (names the field) */
MT_NODISCARD mt_status prsmed_model_estimate(const prsmed_model_options *options,
                                             size_t prompt_length,
                                             prsmed_estimate out[PRSMED_PARTS]);

/* An mt_visit_fn: adds the bytes of each parameter to those of its part. user: a size_t[PRSMED_PARTS]. */
MT_NODISCARD mt_status prsmed_model_count(void *user, const char *name, mt_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
