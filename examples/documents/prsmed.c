/*
 * prsmed.c - trains a segmenter that is told in words what to outline, inside a memory budget.
 *
 *     build/examples/prsmed --batch 8 --image-size 64 --budget 24MiB
 *     build/examples/prsmed --config 1        (2 x 4, checkpointing, half precision where there is a GPU)
 *     build/examples/prsmed --breakdown --epochs 0
 *
 * "segment the bird in the top left": a frozen language model reads the prompt, an encoder the picture, and
 * a decoder draws the mask. The scenes are made of cut-outs with transparency, so the masks are exact. From
 * main() at the end of the file upwards: flags, data, model, result; common/training.c has the flow that all
 * programs share, and docs/prsmed.md says what is trained here and what a paper's network would take.
 */
#include "breakdown.h"
#include "checkpoint.h"
#include "prompt_scenes.h"
#include "program_path.h"
#include "report.h"
#include "training.h"
#include "prsmed_lm.h"
#include "prsmed_model.h"

#include <memtrain/torch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "prsmed"
#define DEFAULT_BUDGET "32MiB" /* a batch of 8 scenes of 64 x 64 takes 42 MiB at once */
#define THINGS "examples/data/clipart/train"
#define PATTERNS "examples/data/patterns"

typedef struct prsmed {
    ex_flags flags;
    int64_t size, encoder, text,
        text_steps;                      /* --size, --encoder, --text by its width, --text-steps */
    int64_t scenes[2];                   /* of an epoch, by split */
    int64_t lm_size, frozen, half;       /* --text-model, or 0; --frozen load; --text-type bf16 */
    const char *lm_weights, *lm_written; /* --text-weights, --write-text-weights */
    int cache_frozen, same_scenes;
    prsmed_lm *lm;
    prsmed_lm_figures told; /* at the end of the epoch before */
    const char *patterns, *weights;
    int use_amp, no_use_amp, checkpointing, compile, breakdown;
    ex_prompt_scenes *data;
} prsmed;

/* ---- flags ------------------------------------------------------------------------------------- */

static const ex_word encoders[] = {
    {"conv", PRSMED_CONV}, {"vit_ti", PRSMED_VIT_TI}, {"tiny_vit", PRSMED_TINY_VIT}, {NULL, 0}};
static const ex_word texts[] = {{"d128", 128}, {"d256", 256}, {"d384", 384},
                                {"d512", 512}, {"d768", 768}, {NULL, 0}};
static const struct {
    int64_t width, layers;
} text_sizes[] = {{128, 4}, {256, 6}, {384, 8}, {512, 8}, {768, 12}};

/* Batch, times that it is accumulated, and whether activations are computed again. */
static const struct {
    const char *name;
    int64_t batch, accumulate, checkpointing;
} configs[] = {{"0", 8, 1, MT_CHECKPOINTING_AUTO},
               {"1", 2, 4, MT_CHECKPOINTING_ON},
               {"2", 4, 2, MT_CHECKPOINTING_AUTO},
               {"3", 8, 1, MT_CHECKPOINTING_AUTO},
               {"16gb", 1, 8, MT_CHECKPOINTING_ON}};

static int read_config(const char *text, void *target) {
    ex_flags *flags = target;
    for (size_t i = 0; i < EX_ROWS(configs); i++) {
        if (strcmp(text, configs[i].name) != 0) continue;
        flags->batch = configs[i].batch;
        flags->accumulate = configs[i].accumulate;
        flags->checkpointing = configs[i].checkpointing;
        return 1;
    }
    return 0;
}

static int read_gpu_size(const char *text, void *target) {
    static const char *const sizes[][2] = {{"80", "0"}, {"24", "2"}, {"16", "1"}, {"8", "16gb"}};
    for (size_t i = 0; i < EX_ROWS(sizes); i++)
        if (strcmp(text, sizes[i][0]) == 0) return read_config(sizes[i][1], target);
    return 0;
}

static const ex_word lm_sizes[] = {{"off", 0},
                                   {"tiny", PRSMED_LM_TINY},
                                   {"500m", PRSMED_LM_500M},
                                   {"1.1b", PRSMED_LM_1_1B},
                                   {"7b", PRSMED_LM_7B},
                                   {NULL, 0}};
static const ex_word text_types[] = {{"float32", 0}, {"bf16", 1}, {NULL, 0}};
static const ex_word frozen_ways[] = {{"map", 0}, {"load", 1}, {NULL, 0}};

#define OWN(name, kind, field, ...) EX_FLAG(name, kind, prsmed, field, __VA_ARGS__)

static const ex_option own_flags[] = {
    {.section = "Segmentation from a prompt"},
    OWN("size", EX_WORD, size, "small|published",
        "published: --encoder tiny_vit --image-size 1024 --budget auto, where these are not given",
        .words = ex_size_words),
    OWN("encoder", EX_WORD, encoder, "NAME",
        "of the picture: conv (small, learns within minutes), vit_ti (ViT-Ti/8) or tiny_vit "
        "(TinySAM's TinyViT-5M, with the mask decoder of 5,365,441 parameters)",
        .words = encoders, .decides = 1),
    OWN("text", EX_WORD, text, "NAME", "the frozen text model: d128, d256, d384, d512 or d768",
        .words = texts, .decides = 1),
    OWN("text-steps", EX_WHOLE, text_steps, "N",
        "updates of the text model, on prompts alone, before it is frozen; 0: it stays random",
        .most = 1000000, .decides = 1),
    OWN("text-model", EX_WORD, lm_size, "NAME",
        "a language model of Mistral's shape instead of --text: off, tiny, 500m, 1.1b or 7b; it "
        "reads each batch once, before the batch is cut",
        .words = lm_sizes, .decides = 1),
    OWN("text-weights", EX_TEXT, lm_weights, "FILE",
        "its weights, a safetensors file or the index of several; without, they are random",
        .accepts = "a safetensors file", .by_default = "random"),
    OWN("frozen", EX_WORD, frozen, "WAY",
        "map: its weights are pages of the file, which no budget counts; load: they are in memory",
        .words = frozen_ways),
    OWN("text-type", EX_WORD, half, "TYPE",
        "that it computes in: float32; bf16, which needs no casts of a file of that type",
        .words = text_types, .decides = 1),
    OWN("cache-frozen", EX_SWITCH, cache_frozen, NULL,
        "keep what it says of a prompt in memory, and read no prompt twice", .most = 1),
    OWN("write-text-weights", EX_TEXT, lm_written, "FILE",
        "write random weights of --text-model, bfloat16, and end", .accepts = "a file",
        .by_default = "none"),
    OWN("scenes", EX_WHOLE, scenes[EX_TRAINING], "N", "scenes of an epoch", .least = 1,
        .most = 1000000000, .decides = 1),
    OWN("val-scenes", EX_WHOLE, scenes[EX_VALIDATION], "N",
        "scenes for validation, always the same", .least = 1, .most = 1000000),
    OWN("same-scenes", EX_SWITCH, same_scenes, NULL,
        "each epoch has the scenes of the first one, and so the same prompts", .most = 1,
        .decides = 1),
    OWN("patterns", EX_TEXT, patterns, "DIR", "a folder of PNG pictures to lay under the scenes",
        .accepts = "a folder of PNG pictures", .by_default = "those that come with the programs"),
    OWN("weights", EX_TEXT, weights, "FILE",
        "begin with the image encoder of a safetensors file of TinySAM's or MobileSAM's weights, "
        "for "
        "--encoder tiny_vit",
        .accepts = "a safetensors file of the network's weights", .decides = 1,
        .file = EX_FILE_READ),
    OWN("config", EX_PARSED, flags, "NAME",
        "0: batch 8; 1: 2 x 4 and checkpointing; 2: 4 x 2; 3: 8, the paper's; 16gb: 1 x 8 and "
        "checkpointing; each with --use-amp; flags after it change them",
        .read = read_config, .accepts = "0, 1, 2, 3 or 16gb", .by_default = "3"),
    OWN("gpu-size", EX_PARSED, flags, "GB",
        "the configuration for a card of 80, 24, 16 or 8 GB: 0, 2, 1 or 16gb",
        .read = read_gpu_size, .accepts = "80, 24, 16 or 8", .by_default = ""),
    OWN("use-amp", EX_SWITCH, use_amp, NULL, "as --amp auto, which is the default", .most = 1),
    OWN("no-use-amp", EX_SWITCH, no_use_amp, NULL, "as --amp off", .most = 1),
    OWN("gradient-accumulation-steps", EX_WHOLE, flags.accumulate, "N", "--accumulate", .least = 1,
        .most = 65536),
    OWN("gradient-checkpointing", EX_SWITCH, checkpointing, NULL, "as --checkpointing on",
        .most = 1),
    OWN("compile-model", EX_SWITCH, compile, NULL, "refused: libtorch has no compiler", .most = 1),
    OWN("batch-size", EX_WHOLE, flags.batch, "N", "--batch", .least = 1, .most = 65536),
    OWN("num-workers", EX_WHOLE, flags.workers, "N", "--workers", .most = EX_WORKERS_MAX),
    OWN("breakdown", EX_SWITCH, breakdown, NULL,
        "measure beforehand where memory goes and what each saver takes off it; with --epochs 0 "
        "that "
        "is all",
        .most = 1),
};

/* ---- what the program adds to a run ------------------------------------------------------------ */

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

/* All prompts that there can be. */
static int64_t *all_prompts(const prsmed *p, size_t *count) {
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

/* ---- the language model ------------------------------------------------------------------------ */

/* Of a batch that is rendered: the prompts are its third tensor, what is made of them the fourth and the fifth. */
static mt_status make_words(void *self, size_t count, void *const *buffers) {
    prsmed *p = self;
    return prsmed_lm_words(p->lm, buffers[2], count, EX_PROMPT_TOKENS, buffers[3], buffers[4]);
}

/* It is centred by some of the prompts: to read all would take longer than an epoch. */
static mt_status open_language_model(prsmed *p) {
    enum { SOME = 16 };
    prsmed_lm_options options = PRSMED_LM_OPTIONS_INIT;
    size_t count;
    int64_t *prompts = all_prompts(p, &count);
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
    mt_status status = prsmed_lm_new(&options, &p->lm);
    free(prompts);
    return status;
}

static mt_status add_words(prsmed *p, ex_source *out) {
    int64_t width = prsmed_lm_width((int)p->lm_size);
    mt_status status = open_language_model(p);
    if (status != MT_OK) return status;
    out->tensors[out->tensor_count++] = (ex_tensor){MT_FLOAT32, 2, {PRSMED_LM_WORDS, width}};
    out->tensors[out->tensor_count++] = (ex_tensor){MT_FLOAT32, 1, {PRSMED_LM_WORDS}};
    out->make = make_words;
    out->make_self = p;
    return MT_OK;
}

/* What it did since the last time: the time is part of the epoch's. */
static void tell_language_model(prsmed *p) {
    prsmed_lm_figures now = PRSMED_LM_FIGURES_INIT;
    char read[32];
    if (!p->lm || prsmed_lm_figures_of(p->lm, &now) != MT_OK) return;
    uint64_t passes = now.passes - p->told.passes, bytes = now.disk_bytes - p->told.disk_bytes;
    printf("language model: %llu passes in %s, of %llu prompts, %.1f s; ",
           (unsigned long long)passes, p->half ? "bf16" : "float32",
           (unsigned long long)(now.read_prompts - p->told.read_prompts),
           now.seconds - p->told.seconds);
    printf("%s read from the disk", mt_format_size(bytes, read, sizeof read));
    if (passes && now.mapped_bytes)
        printf(", %.2f of the file a pass",
               (double)bytes / (double)passes / (double)now.mapped_bytes);
    printf("; %llu prompts kept\n", (unsigned long long)now.kept_prompts);
    fflush(stdout);
    p->told = now;
}

static void introduce_language_model(prsmed *p) {
    prsmed_lm_figures figures = PRSMED_LM_FIGURES_INIT;
    char held[32], mapped[32];
    if (!p->lm || prsmed_lm_figures_of(p->lm, &figures) != MT_OK) return;
    printf("language model: %lld parameters, %s in memory, %s mapped, which no budget counts\n",
           (long long)figures.parameters, mt_format_size(figures.held_bytes, held, sizeof held),
           mt_format_size(figures.mapped_bytes, mapped, sizeof mapped));
    if (figures.passes) tell_language_model(p); /* of what centres its words */
}

/* @return the exit status */
static int write_weights(const prsmed *p) {
    mt_status status = prsmed_lm_write((int)p->lm_size, p->lm_written);
    if (status != MT_OK) {
        fprintf(stderr, NAME ": --write-text-weights: %s\n", mt_last_error());
        return 1;
    }
    printf("wrote %s\n", p->lm_written);
    return 0;
}

static mt_status open_data(void *self, const ex_training *run, ex_source *out) {
    prsmed *p = self;
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
    return p->lm_size ? add_words(p, out) : MT_OK;
}

static prsmed_model_options options_of(const prsmed *p) {
    prsmed_model_options options = PRSMED_MODEL_OPTIONS_INIT;
    size_t size = 0;
    while (text_sizes[size].width != p->text) size++;
    options.encoder = (int)p->encoder;
    options.side = p->flags.image_size;
    options.text_width = p->text;
    options.text_layers = text_sizes[size].layers;
    options.text_steps = p->text_steps;
    if (!p->lm_size) return options;
    options.words = 1;
    options.text_width = prsmed_lm_width((int)p->lm_size);
    return options;
}

static void introduce(void *self, const ex_training *run) {
    prsmed *p = self;
    (void)run;
    printf("%lld scenes an epoch for training, %lld for validation, of %zu classes\n",
           (long long)p->scenes[EX_TRAINING], (long long)p->scenes[EX_VALIDATION],
           ex_prompt_scenes_classes(p->data));
    introduce_language_model(p);
}

/* What a card's memory monitor would say. */
static mt_status log_memory(void *self, ex_training *run, const mt_epoch_report *report) {
    mt_memory m = MT_MEMORY_INIT;
    (void)report;
    tell_language_model(self);
    mt_status status = mt_device_memory(run->device.name, &m);
    if (status != MT_OK) return status;
    /* The two are read one after the other, so that the first may have grown meanwhile. */
    size_t cached = m.reserved_bytes > m.allocated_bytes ? m.reserved_bytes - m.allocated_bytes : 0;
    printf("%s Memory Allocated: %.3f GB, Reserved: %.3f GB, Cached: %.3f GB\n",
           strcmp(run->device.name, "cpu") == 0 ? "CPU" : "GPU", (double)m.allocated_bytes / 1e9,
           (double)m.reserved_bytes / 1e9, (double)cached / 1e9);
    return MT_OK;
}

static void print_dice(void *self, const ex_training *run) {
    const prsmed *p = self;
    const double *metrics = run->last.eval_metrics;
    ex_prompt_chance chance;
    if (!run->last.eval_samples || ex_prompt_scenes_chance(p->data, &chance) != EX_OK) return;
    printf("validation Dice %.1f %%, IoU %.1f %%; without the prompt: all pixels %.1f %%, perfect "
           "outlines of all things %.1f %%, of one at random %.1f %%\n",
           100 * metrics[0], 100 * metrics[1], 100 * chance.everything, 100 * chance.all_things,
           100 * chance.one_thing);
}

static void close_data(void *self) {
    prsmed *p = self;
    prsmed_lm_free(p->lm);
    ex_prompt_scenes_free(p->data);
}

/* ---- where memory goes ------------------------------------------------------------------------- */

static const ex_saver savers[] = {
    {"none", MT_DTYPE_NONE, MT_CHECKPOINTING_AUTO, 0, "18-24 GB"},
    {"half precision (bf16)", MT_BFLOAT16, MT_CHECKPOINTING_AUTO, 0, "about 50 %: 9-12 GB"},
    {"checkpointing", MT_DTYPE_NONE, MT_CHECKPOINTING_ON, 0, "30-50 % less"},
    {"chunks of 2", MT_DTYPE_NONE, MT_CHECKPOINTING_AUTO, 2, "with bf16: 4.5-6 GB"},
    {"chunks of 1", MT_DTYPE_NONE, MT_CHECKPOINTING_AUTO, 1, ""},
    {"bf16, checkpointing, chunks of 2", MT_BFLOAT16, MT_CHECKPOINTING_ON, 2, "2.3-4.2 GB"},
    {"bf16, checkpointing, chunks of 1", MT_BFLOAT16, MT_CHECKPOINTING_ON, 1, ""},
};

/* A text model that stays random takes the same memory. */
static mt_status random_model(void *self, mt_model **out) {
    prsmed_model_options options = options_of(self);
    options.text_steps = 0;
    return prsmed_model_new(&options, out);
}

static mt_status measure(prsmed *p, const ex_training *run, const mt_batch *batch) {
    const prsmed_model_options options = options_of(p);
    prsmed_estimate by_size[PRSMED_PARTS];
    size_t parameter_bytes[PRSMED_PARTS] = {0};
    ex_part parts[PRSMED_PARTS] = {
        {"frozen text model", NULL, 0, 0, "14-16 GB"},
        {"vision backbone", "vision.", 0, 0, "500-800 MB with its activations"},
        {"mask head", "decoder.", 0, 0, "200-300 MB with its activations"}};
    mt_status status = prsmed_model_estimate(&options, EX_PROMPT_TOKENS, by_size);
    if (status != MT_OK) return status;
    for (int i = 0; i < PRSMED_PARTS; i++) {
        parts[i].parameter_bytes = by_size[i].parameters * sizeof(float);
        parts[i].activation_bytes = by_size[i].activations * sizeof(float) * batch->count;
    }
    const ex_breakdown breakdown = {
        .measure = {.model = random_model,
                    .user = p,
                    .options = ex_flags_torch(&p->flags, run->device.name),
                    .visit = prsmed_model_count,
                    .visit_user = parameter_bytes},
        .batch = batch,
        .input_bytes =
            batch->count * 3 * sizeof(float) * (size_t)(p->flags.image_size * p->flags.image_size),
        .parts = parts,
        .parameter_bytes = parameter_bytes,
        .part_count = PRSMED_PARTS,
        .savers = savers,
        .saver_count = EX_ROWS(savers),
        .published = {"100 MB", "1-2 GB", "2-4 GB", "18-24 GB"}};
    return ex_breakdown_print(&breakdown);
}

/* Without the budget, which the plain step is not to fit; the run's own random numbers start anew. */
static mt_status print_breakdown(prsmed *p, const ex_training *run) {
    mt_batch batch;
    mt_status status = ex_batches_fill(run->batches, EX_TRAINING, 1, 0, &batch);
    if (status == MT_OK) status = mt_device_set_budget(run->device.name, 0);
    if (status == MT_OK) status = measure(p, run, &batch);
    mt_status back = mt_device_set_budget(run->device.name, run->device.budget_bytes);
    if (status == MT_OK) status = back;
    return status == MT_OK ? mt_torch_seed((uint64_t)p->flags.seed) : status;
}

/* ---- the model --------------------------------------------------------------------------------- */

/* As a file of all of TinySAM has it. */
static void tinysam_name(void *user, const char *name, char *other, size_t capacity) {
    static const char vision[] = "vision.";
    (void)user;
    if (strncmp(name, vision, strlen(vision)) == 0)
        snprintf(other, capacity, "image_encoder.%s", name + strlen(vision));
}

static mt_status make_model(void *self, const ex_training *run, mt_model **out) {
    prsmed *p = self;
    prsmed_model_options options = options_of(p);
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    mt_status status = p->breakdown ? print_breakdown(p, run) : MT_OK;
    if (status != MT_OK) return status;
    int64_t *prompts = all_prompts(p, &options.prompt_count); /* for the text model to learn from */
    if (!prompts) return mt_set_error(MT_ENOMEM, "out of memory for the prompts");
    options.prompts = prompts;
    options.prompt_length = EX_PROMPT_TOKENS;
    if (p->flags.resume) options.text_steps = 0; /* the file has what it learnt */
    status = prsmed_model_new(&options, out);
    free(prompts);
    weights.strict = 0; /* the file has a mask decoder of its own */
    weights.other_name = tinysam_name;
    return status == MT_OK ? ex_checkpoint_weights(*out, p->weights, &weights) : status;
}

/* ---- main -------------------------------------------------------------------------------------- */

/* What only flags together can get wrong. @return 0, or the exit status */
static int check(const prsmed *p, const ex_program *program) {
    int64_t stride = p->encoder == PRSMED_CONV ? 4 : p->encoder == PRSMED_VIT_TI ? 8 : 16;
    if (p->compile)
        return ex_training_refuse(
            program,
            "--compile-model: not accepted; it needs Python's torch.compile, or on CUDA a "
            "graph captured of a step whose chunks never change: libtorch has no compiler, "
            "and chunks here follow the memory that there is");
    if (p->use_amp && p->no_use_amp)
        return ex_training_refuse(program, "--no-use-amp: not together with --use-amp");
    if (p->use_amp && p->flags.amp == MT_DTYPE_NONE)
        return ex_training_refuse(program, "--use-amp: not together with --amp off");
    if (p->checkpointing && p->flags.checkpointing == EX_CHECKPOINTING_OFF)
        return ex_training_refuse(
            program, "--gradient-checkpointing: not together with --checkpointing off");
    if (p->weights && p->encoder != PRSMED_TINY_VIT)
        return ex_training_refuse(program, "--weights: not without --encoder tiny_vit");
    if (p->weights && p->flags.resume)
        return ex_training_refuse(
            program, "--weights: not together with --resume, whose file has the weights");
    if (!p->lm_size && (p->lm_weights || p->lm_written || p->cache_frozen || p->frozen || p->half))
        return ex_training_refuse(program, "%s: needs --text-model",
                                  p->lm_weights     ? "--text-weights"
                                  : p->lm_written   ? "--write-text-weights"
                                  : p->cache_frozen ? "--cache-frozen"
                                  : p->frozen       ? "--frozen load"
                                                    : "--text-type bf16");
    if (p->lm_size && p->text_steps)
        return ex_training_refuse(program, "--text-steps: not together with --text-model");
    if (p->lm_size && p->breakdown)
        return ex_training_refuse(program, "--breakdown: not together with --text-model");
    if (p->flags.image_size % stride)
        return ex_training_refuse(
            program,
            "--image-size: '%lld' is not accepted; accepted: a multiple of %lld, the encoder's "
            "stride",
            (long long)p->flags.image_size, (long long)stride);
    return 0;
}

static void apply_switches(prsmed *p) {
    if (p->use_amp) p->flags.amp = EX_AMP_AUTO;
    if (p->no_use_amp) p->flags.amp = MT_DTYPE_NONE;
    if (p->checkpointing) p->flags.checkpointing = MT_CHECKPOINTING_ON;
}

/* The paper's batch, optimiser and clipping; a rate for networks that begin at random. */
static void set_defaults(ex_flags *flags, int64_t size) {
    flags->image_size = size == EX_SIZE_PUBLISHED ? 1024 : 64;
    flags->batch = flags->lr_batch = 8;
    flags->epochs = 8;
    flags->lr = 1e-3;
    flags->warmup = 20;
    flags->weight_decay = 1e-5;
    flags->clip = 1.0;
    flags->schedule = MT_SCHEDULE_COSINE;
    flags->amp = EX_AMP_AUTO;
    flags->clear_every = 10;
}

int main(int argc, char **argv) {
    prsmed p;
    int64_t size = EX_SIZE_SMALL;
    ex_program program = {
        .name = NAME,
        .model_name = NAME,
        .budget = DEFAULT_BUDGET,
        .data = "a folder of class folders with PNG cut-outs, whose names are prompts",
        .own = {own_flags, EX_ROWS(own_flags), &p},
        .self = &p,
        .open = open_data,
        .model = make_model,
        .introduce = introduce,
        .after_epoch = log_memory,
        .result = print_dice,
        .close = close_data};
    int exit_status;
    for (int pass = 0; pass < 2; pass++, size = p.size) { /* for the size, and for the rest */
        p = (prsmed){.flags = EX_FLAGS_INIT,
                     .size = size,
                     .encoder = size == EX_SIZE_PUBLISHED ? PRSMED_TINY_VIT : PRSMED_CONV,
                     .text = 128,
                     .scenes = {640, 128}};
        set_defaults(&p.flags, size);
        if (!ex_training_flags(&program, "a segmenter that is told in words what to outline",
                               &p.flags, argc, argv, &exit_status))
            return exit_status;
    }
    if (p.size == EX_SIZE_PUBLISHED) program.budget = NULL;
    exit_status = check(&p, &program);
    if (exit_status) return exit_status;
    apply_switches(&p);
    if (p.lm_written) return write_weights(&p);
    return ex_training_main(&program, &p.flags, argv);
}
