/*
 * prsmed.c - trains a segmenter that is told in words what to outline, inside a memory budget.
 *
 *     build/examples/prsmed --batch 8 --image-size 64 --budget 24MiB
 *     build/examples/prsmed --config 1        (2 x 4, checkpointing, half precision where there is a GPU)
 *     build/examples/prsmed --breakdown --epochs 0
 *
 * "segment the bird in the top left": a frozen language model reads the prompt, an encoder the picture, and
 * a decoder draws the mask. The scenes are made of cut-outs with transparency, so the masks are exact. train()
 * shows what is trained and how; programs/prsmed_flags.c has the flags, programs/prsmed_words.c the language model,
 * run/training.h what all programs share. docs/prsmed.md says what is trained here and what a paper's network would take.
 */
#include "prsmed.h"

#include "program_path.h"

#include <stdlib.h>
#include <string.h>

#define THINGS "examples/data/clipart/train"
#define PATTERNS "examples/data/patterns"

static void warn(void *user, const char *line) {
    (void)user;
    mt_log(MT_LOG_WARNING, "skipped %s", line);
}

/* A folder that was named, or one that comes with the programs. */
static const char *folder_of(const char *named, const char *argv0, const char *otherwise,
                             char found[4096]) {
    if (named) return named;
    return ex_find_in_tree(argv0, otherwise, found, 4096) ? found : otherwise;
}

/* An error begins with the path that is wrong. */
static const char *flag_of(const ex_prompt_scenes_options *options, const char *error) {
    size_t length = strlen(options->patterns);
    return strncmp(error, options->patterns, length) == 0 ? "--patterns" : "--data";
}

/* The language model is read before the batches, which hold its states. */
static mt_status open_language_model(prsmed *p, ex_training *run, ex_source *out) {
    prsmed_lm_figures figures = PRSMED_LM_FIGURES_INIT;
    if (!p->lm_size) return MT_OK;
    mt_status status = prsmed_add_words(p, out);
    if (status == MT_OK) status = prsmed_lm_figures_of(p->lm, &figures);
    run->device.mapped_bytes = (size_t)figures.mapped_bytes;
    return status;
}

static mt_status open_data(prsmed *p, ex_training *run, ex_source *out) {
    char found[2][4096];
    ex_error error;
    const ex_prompt_scenes_options options = {
        .things = folder_of(p->flags.data, run->argv[0], THINGS, found[0]),
        .patterns = folder_of(p->patterns, run->argv[0], PATTERNS, found[1]),
        .side = (int)p->flags.image_size,
        .count = {(size_t)p->scenes[EX_TRAINING], (size_t)p->scenes[EX_VALIDATION]},
        .seed = (uint64_t)p->flags.seed,
        .same = p->same_scenes,
        .warn = warn};
    ex_status status = ex_prompt_scenes_open(&options, &p->data, &error);
    if (status == EX_ENOMEM) return mt_set_error(MT_ENOMEM, "%s", error.text);
    if (status != EX_OK)
        return mt_set_error(MT_EINVAL, "%s: %s", flag_of(&options, error.text), error.text);
    *out = ex_prompt_scenes_source(p->data);
    return open_language_model(p, run, out);
}

static mt_status make_model(void *self, mt_model **out) {
    prsmed *p = self;
    prsmed_model_options options = prsmed_options(p);
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    int64_t *prompts =
        prsmed_prompts(p, &options.prompt_count); /* for the text model to learn from */
    if (!prompts) return mt_set_error(MT_ENOMEM, "out of memory for the prompts");
    options.prompts = prompts;
    options.prompt_length = EX_PROMPT_TOKENS;
    if (p->flags.resume) options.text_steps = 0; /* the file has what it learnt */
    mt_status status = prsmed_model_new(&options, out);
    free(prompts);
    weights.strict = 0; /* the file has a mask decoder of its own, or a classifier */
    weights.required = prsmed_model_encoder();
    weights.other_name = prsmed_model_encoder_names;
    return status == MT_OK ? ex_checkpoint_weights(*out, p->weights, &weights) : status;
}

static void close_data(void *self) {
    prsmed *p = self;
    prsmed_lm_free(p->lm);
    ex_prompt_scenes_free(p->data);
}

static mt_status train(void *self, ex_training *run) {
    prsmed *p = self;
    ex_source scenes;
    mt_status s = open_data(p, run, &scenes);
    if (!s) s = ex_training_data(run, &scenes);
    if (!s && p->breakdown) s = prsmed_breakdown(p, run);
    if (!s) s = ex_training_model(run, make_model);
    if (!s) s = prsmed_begin_words(p, run);
    if (!s) s = mt_fit(run->trainer, &run->training, &run->fit, &run->calls, &run->at);
    if (!s) prsmed_save_states(p, run);
    if (!s && ex_training_is_done(run)) prsmed_result(p, run);
    return s;
}

int main(int argc, char **argv) {
    prsmed p;
    ex_program program = {.name = "prsmed",
                          .self = &p,
                          .train = train,
                          .introduce = prsmed_introduce,
                          .after_epoch = prsmed_memory,
                          .close = close_data};
    int exit_status;
    if (!prsmed_flags(&p, &program, argc, argv, &exit_status)) return exit_status;
    if (p.lm_written) return prsmed_write_weights(&p);
    return ex_training_main(&program, &p.flags, argv);
}
