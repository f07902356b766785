/*
 * prsmed.h - what prsmed holds, and what it has beside its data, its model and how they are trained.
 */
#ifndef EX_PRSMED_H
#define EX_PRSMED_H

#include "prompt_scenes.h"
#include "prsmed_lm.h"
#include "prsmed_model.h"
#include "training.h"

typedef struct prsmed {
    ex_flags flags;
    int64_t size, encoder, text,
        text_steps;                      /* --size, --encoder, --text by its width, --text-steps */
    int64_t scenes[2];                   /* of an epoch, by split */
    int64_t lm_size, frozen, half;       /* --text-model, or 0; --frozen load; --text-type bf16 */
    const char *lm_weights, *lm_written; /* --text-weights, --write-text-weights */
    int cache_frozen, same_scenes;
    const char *states; /* --cache-frozen-file, or NULL */
    double dropout;
    prsmed_lm *lm;
    prsmed_lm_figures told; /* at the end of the epoch before */
    const char *patterns, *weights;
    int use_amp, no_use_amp, checkpointing, compile, breakdown;
    ex_prompt_scenes *data;
} prsmed;

/* Reads the command line, and sets what of program depends on it. @return 1: go on; 0: *out_status is the exit status */
int prsmed_flags(prsmed *p, ex_program *program, int argc, char **argv, int *out_status);

/* The network that the flags ask for, without its prompts. */
prsmed_model_options prsmed_options(const prsmed *p);

/* All prompts that there can be: *count times EX_PROMPT_TOKENS. free() it; NULL: out of memory */
int64_t *prsmed_prompts(const prsmed *p, size_t *count);

/* --text-model: what it says of a batch's prompts becomes two tensors more of the source. */
MT_NODISCARD mt_status prsmed_add_words(prsmed *p, ex_source *out);

/* After --explain, which reads nothing, and before training: the prompts are read by which words are centred. */
MT_NODISCARD mt_status prsmed_begin_words(prsmed *p, ex_training *run);

/* What the language model did since this was printed last: the time is part of the epoch's. */
void prsmed_tell_words(prsmed *p);

/* --cache-frozen-file: what is kept, for the next run. A file that cannot be written is told of, and the run goes on. */
void prsmed_save_states(const prsmed *p, const ex_training *run);

/*
 * What to say of --text-type bf16 where a product in bfloat16 takes that many times as long as one in float32.
 * @return 1: text has it; 0: nothing, up to twice as long, or where the ratio is not known (0)
 */
int prsmed_slow_half(double ratio, char *text, size_t capacity);

/* --write-text-weights. @return the exit status */
int prsmed_write_weights(const prsmed *p);

/* --breakdown: where memory goes, measured without the budget. The run's random numbers start anew. */
MT_NODISCARD mt_status prsmed_breakdown(prsmed *p, const ex_training *run);

/* Dice and IoU, beside those of guessing without the prompt. */
void prsmed_result(const prsmed *p, const ex_training *run);

/* ex_program.introduce, and after_epoch: what the language model did, and what a card's memory monitor would say */
void prsmed_introduce(void *self, const ex_training *run);
mt_status prsmed_memory(void *self, ex_training *run, const mt_epoch_report *report);

#endif
