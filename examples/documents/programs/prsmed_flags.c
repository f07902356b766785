/*
 * prsmed_flags.c - the command line of prsmed; see prsmed.h.
 */
#include "prsmed.h"

#include <float.h>
#include <string.h>

#define DEFAULT_BUDGET "32MiB" /* a batch of 8 scenes of 64 x 64 takes 42 MiB at once */

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
        .accepts = "a safetensors file", .by_default = "random", .decides = EX_BY_CONTENT,
        .file = EX_FILE_READ),
    OWN("frozen", EX_WORD, frozen, "WAY",
        "map: its weights are pages of the file, which no budget counts; load: they are in memory",
        .words = frozen_ways),
    OWN("text-type", EX_WORD, half, "TYPE",
        "that it computes in: float32; bf16, which needs no casts of a file of that type",
        .words = text_types, .decides = 1),
    OWN("cache-frozen", EX_SWITCH, cache_frozen, NULL,
        "keep what it says of a prompt in memory, and read no prompt twice; a pass of other "
        "prompts rounds otherwise, so bits may differ",
        .most = 1, .decides = 1),
    OWN("cache-frozen-file", EX_TEXT, states, "FILE",
        "--cache-frozen, and begin with what runs before have kept there, and leave it there for "
        "the next one, which then reads none of these prompts; a file of other weights is left out",
        .accepts = "a file to write", .by_default = "none", .file = EX_FILE_REPLACED),
    OWN("write-text-weights", EX_TEXT, lm_written, "FILE",
        "write random weights of --text-model, bfloat16, each time the same ones, and end",
        .accepts = "a file", .by_default = "none"),
    OWN("dropout", EX_REAL, dropout, "X", "of the decoder's transformer layer",
        .max = 1.0 - DBL_EPSILON, .decides = 1),
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
        "or of "
        "timm's tiny_vit_5m_224, which has no neck; for --encoder tiny_vit",
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

prsmed_model_options prsmed_options(const prsmed *p) {
    prsmed_model_options options = PRSMED_MODEL_OPTIONS_INIT;
    size_t size = 0;
    while (text_sizes[size].width != p->text) size++;
    options.encoder = (int)p->encoder;
    options.side = p->flags.image_size;
    options.text_width = p->text;
    options.text_layers = text_sizes[size].layers;
    options.text_steps = p->text_steps;
    options.dropout = p->dropout;
    if (!p->lm_size) return options;
    options.words = 1;
    options.text_width = prsmed_lm_width((int)p->lm_size);
    return options;
}

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
    if (!p->lm_size &&
        (p->lm_weights || p->lm_written || p->states || p->cache_frozen || p->frozen || p->half))
        return ex_training_refuse(program, "%s: needs --text-model",
                                  p->lm_weights     ? "--text-weights"
                                  : p->lm_written   ? "--write-text-weights"
                                  : p->states       ? "--cache-frozen-file"
                                  : p->cache_frozen ? "--cache-frozen"
                                  : p->frozen       ? "--frozen load"
                                                    : "--text-type bf16");
    if (p->states && !p->lm_weights)
        return ex_training_refuse(
            program, "--cache-frozen-file: needs --text-weights, whose states the file has");
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
    if (p->states) p->cache_frozen = 1;
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

int prsmed_flags(prsmed *p, ex_program *program, int argc, char **argv, int *out_status) {
    int64_t size = EX_SIZE_SMALL;
    program->model_name = program->name;
    program->budget = DEFAULT_BUDGET;
    program->data = "a folder of class folders with PNG cut-outs, whose names are prompts";
    program->own = (ex_table){own_flags, EX_ROWS(own_flags), p};
    for (int pass = 0; pass < 2; pass++, size = p->size) { /* for the size, and for the rest */
        *p = (prsmed){.flags = EX_FLAGS_INIT,
                      .size = size,
                      .encoder = size == EX_SIZE_PUBLISHED ? PRSMED_TINY_VIT : PRSMED_CONV,
                      .text = 128,
                      .dropout = 0.1,
                      .scenes = {640, 128}};
        set_defaults(&p->flags, size);
        if (!ex_training_flags(program, "a segmenter that is told in words what to outline",
                               &p->flags, argc, argv, out_status))
            return 0;
    }
    if (p->size == EX_SIZE_PUBLISHED) program->budget = NULL;
    *out_status = check(p, program);
    apply_switches(p);
    return !*out_status;
}
