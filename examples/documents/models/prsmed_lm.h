/*
 * prsmed_lm.h - a frozen language model of Mistral's shape that reads prompts, for C programs: what it says of each word of a
 * prompt, from a file of weights that is mapped or loaded, or from random weights.
 *
 * Tokens are those of prsmed_model.h. The language model sees the byte tokens of Llama's vocabulary: 3 + byte, with 1 for the
 * begin, 2 for the end and 0 for padding.
 */
#ifndef PRSMED_LM_H
#define PRSMED_LM_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum prsmed_lm_size {
    PRSMED_LM_TINY = 1, /* 3 layers of width 64, to try it out */
    PRSMED_LM_500M = 2, /* 513,590,784 parameters */
    PRSMED_LM_1_1B = 3, /* 1,100,048,384, as TinyLlama */
    PRSMED_LM_7B = 4    /* 7,241,732,096, as Mistral-7B */
} prsmed_lm_size;

#define PRSMED_LM_WORDS 16 /* of a prompt, at most; the last one has what is left */

typedef struct prsmed_lm_options {
    size_t size;         /* sizeof(prsmed_lm_options) */
    int model;           /* a prsmed_lm_size */
    const char *weights; /* a safetensors file, or the index of several. NULL: random, in memory */
    int load;            /* 1: the file is read into memory, not mapped */
    int keep; /* 1: what it says of a prompt is kept in memory, and the prompt is not read again */
    /* prompt_count rows of prompt_length tokens, to centre and scale by. Borrowed for the call. NULL: neither. */
    const int64_t *prompts;
    size_t prompt_count, prompt_length;
    int half; /* 1: it computes in bfloat16, and needs no casts of such a file; 0: in float32 */
    /* 1: until prsmed_lm_begin it reads nothing, and all states are zeros: to see what the rest takes. */
    int dry;
    /*
     * A file of what runs before have kept, which this one begins with; it needs keep, prompts and states_of, a mark of the
     * weights. A file of other weights, another type or other prompts to centre by, or a damaged one, is left out with a line. A
     * file that never had states is refused. NULL: none.
     */
    const char *states, *states_of;
} prsmed_lm_options;

#define PRSMED_LM_OPTIONS_INIT                                                                     \
    { sizeof(prsmed_lm_options), PRSMED_LM_TINY, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL }

typedef struct prsmed_lm prsmed_lm;

/*
 * @param out  new reference: free with prsmed_lm_free
 * @return MT_OK; MT_EINVAL (names the field, or what is wrong with the file); MT_EIO; MT_EDEVMEM when the weights, or
 *         what the prompts need, do not fit
 */
MT_NODISCARD mt_status prsmed_lm_new(const prsmed_lm_options *options, prsmed_lm **out);

/*
 * Ends a dry model's time, which has weights from a file: the prompts to centre by are read, or options->states.
 * @return as prsmed_lm_new
 */
MT_NODISCARD mt_status prsmed_lm_begin(prsmed_lm *lm);

/* NULL is a no-op. */
void prsmed_lm_free(prsmed_lm *lm);

typedef struct prsmed_lm_figures {
    size_t size; /* sizeof(prsmed_lm_figures) */
    int64_t width;
    int64_t parameters;
    uint64_t mapped_bytes, held_bytes; /* of the weights: clean pages of a file; in the budget */
    uint64_t passes, read_prompts;     /* of the network since it was made, and prompts in them */
    double seconds;                    /* of these passes */
    uint64_t disk_bytes; /* that the process read from a disk meanwhile; 0 where no system tells */
    uint64_t kept_prompts;
} prsmed_lm_figures;

#define PRSMED_LM_FIGURES_INIT                                                                     \
    { sizeof(prsmed_lm_figures), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

MT_NODISCARD mt_status prsmed_lm_figures_of(const prsmed_lm *lm, prsmed_lm_figures *out);

/*
 * Writes options->states anew, where something is kept that is not in there. A dry one writes nothing.
 * @return MT_OK, also without such a file; MT_EIO in the system's words, and the file stays as it was; MT_EINVAL; MT_ENOMEM
 */
MT_NODISCARD mt_status prsmed_lm_save_states(prsmed_lm *lm);

/* The width of a model's states. 0 for a number that is none. */
int64_t prsmed_lm_width(int model);

/*
 * What it says of the words of so many prompts: the mean state of each word's bytes, centred and scaled. All prompts are read in
 * one pass over the weights.
 * @param tokens  count rows of length tokens
 * @param states  count * PRSMED_LM_WORDS * width numbers
 * @param exist   count * PRSMED_LM_WORDS numbers: 1 where the prompt has such a word, else 0
 * @return MT_OK; MT_EIO when the mapped file has changed; MT_EDEVMEM
 */
MT_NODISCARD mt_status prsmed_lm_words(prsmed_lm *lm, const int64_t *tokens, size_t count,
                                       size_t length, float *states, float *exist);

/*
 * Writes random weights of a model, bfloat16, a few MiB at a time: 14.5 GB for PRSMED_LM_7B. Norms are 1, all else is even
 * between -0.035 and 0.035.
 * @return MT_OK; MT_EINVAL; MT_EIO in the system's words, such as a full disk
 */
MT_NODISCARD mt_status prsmed_lm_write(int model, const char *path);

/*
 * How much longer a product in bfloat16 takes here than one in float32, of matrices as a layer has them: the shorter of three
 * each, some ten milliseconds in all.
 * @return 0.5: half as long; 0: not known, as where there is no memory for them
 */
double prsmed_lm_half_ratio(void);

#ifdef __cplusplus
}
#endif
#endif
