/*
 * prsmed_words.c - the prompts of prsmed, and the language model that reads them; see prsmed.h.
 */
#include "prsmed.h"

#include "content.h"
#include "writable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t *prsmed_prompts(const prsmed *p, size_t *count) {
    size_t classes = ex_prompt_scenes_classes(p->data);
    char text[EX_PROMPT_TOKENS];
    *count = classes * EX_PROMPT_POSITIONS;
    int64_t *tokens = malloc(*count * EX_PROMPT_TOKENS * sizeof *tokens);
    for (size_t i = 0; tokens && i < *count; i++) {
        ex_prompt_text(p->data, i / EX_PROMPT_POSITIONS, (int)(i % EX_PROMPT_POSITIONS), text);
        ex_prompt_tokens(text, tokens + i * EX_PROMPT_TOKENS);
    }
    return tokens;
}

/* Of a batch that is rendered: the prompts are its third tensor, what is made of them the fourth and the fifth. */
static mt_status make_words(void *self, size_t count, void *const *buffers) {
    prsmed *p = self;
    return prsmed_lm_words(p->lm, buffers[2], count, EX_PROMPT_TOKENS, buffers[3], buffers[4]);
}

/* The tiny one takes no time either way. */
static void warn_of_slow_half(const prsmed *p) {
    char text[256];
    if (!p->half || p->lm_size == PRSMED_LM_TINY || !ex_processes_is_first()) return;
    if (prsmed_slow_half(prsmed_lm_half_ratio(), text, sizeof text))
        mt_log(MT_LOG_WARNING, "%s", text);
}

/* It is centred by some of the prompts: to read all would take longer than an epoch. */
static mt_status open_language_model(prsmed *p) {
    enum { SOME = 16 };
    prsmed_lm_options options = PRSMED_LM_OPTIONS_INIT;
    char mark[32] = "";
    size_t count;
    int64_t *prompts = prsmed_prompts(p, &count);
    if (!prompts) return mt_set_error(MT_ENOMEM, "out of memory for the prompts");
    options.prompt_count = count < SOME ? count : SOME;
    for (size_t i = 0; i < options.prompt_count; i++)
        memmove(prompts + i * EX_PROMPT_TOKENS,
                prompts + i * count / options.prompt_count * EX_PROMPT_TOKENS,
                EX_PROMPT_TOKENS * sizeof *prompts);
    options.prompts = prompts;
    options.prompt_length = EX_PROMPT_TOKENS;
    options.model = (int)p->lm_size;
    options.weights = p->lm_weights;
    options.load = (int)p->frozen;
    options.keep = p->cache_frozen;
    options.half = (int)p->half;
    /* Random weights are drawn here, where runs draw them that explain nothing. */
    options.dry = p->flags.explain && (p->lm_weights || !p->flags.epochs);
    options.states = p->states;
    if (p->states) ex_content_mark(p->lm_weights, mark, sizeof mark);
    options.states_of = mark;
    if (!options.dry) warn_of_slow_half(p);
    mt_status status = prsmed_lm_new(&options, &p->lm);
    free(prompts);
    return status;
}

mt_status prsmed_add_words(prsmed *p, ex_source *out) {
    int64_t width = prsmed_lm_width((int)p->lm_size);
    mt_status status = ex_check_writable("--cache-frozen-file", p->states);
    if (status == MT_OK) status = open_language_model(p);
    if (status != MT_OK) return status;
    out->tensors[out->tensor_count++] = (ex_tensor){MT_FLOAT32, 2, {PRSMED_LM_WORDS, width}};
    out->tensors[out->tensor_count++] = (ex_tensor){MT_FLOAT32, 1, {PRSMED_LM_WORDS}};
    out->make = make_words;
    out->make_self = p;
    return MT_OK;
}

mt_status prsmed_begin_words(prsmed *p, ex_training *run) {
    if (!p->lm || !p->lm_weights || !p->flags.explain || !p->flags.epochs) return MT_OK;
    warn_of_slow_half(p);
    mt_status status = prsmed_lm_begin(p->lm);
    if (status == MT_OK && !run->quiet) prsmed_tell_words(p);
    ex_batches_make_anew(run->batches);
    return status;
}

void prsmed_save_states(const prsmed *p, const ex_training *run) {
    if (!p->states || p->flags.check || run->processes.group.rank) return;
    if (prsmed_lm_save_states(p->lm) == MT_OK) return;
    mt_log(MT_LOG_WARNING, "--cache-frozen-file: what is kept is not written: %s", mt_last_error());
    (void)!mt_set_error(MT_OK, "%s", "");
}

int prsmed_write_weights(const prsmed *p) {
    mt_status status = prsmed_lm_write((int)p->lm_size, p->lm_written);
    if (status != MT_OK) {
        fprintf(stderr, "prsmed: --write-text-weights: %s\n", mt_last_error());
        return 1;
    }
    printf("wrote %s\n", p->lm_written);
    return 0;
}
