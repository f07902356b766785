/*
 * profoct_flags.c - the command line of profoct; see profoct.h.
 */
#include "profoct.h"

#include <string.h>

#define DEFAULT_BUDGET "320MiB" /* room for one episode of 65 pictures of 48 x 48, not for two */

static const ex_word methods[] = {{"FSCT_cosine", FSCT}, {"ProFOCT_cosine", PROFOCT}, {NULL, 0}};
static const ex_word backbones[] = {{"ResNet18", 18}, {"ResNet34", 34}, {NULL, 0}};
static const ex_word weightings[] = {{"fixed", 0}, {"dynamic", 1}, {NULL, 0}};
static const ex_word covariances[] = {{"rows", 0}, {"matrix", 1}, {NULL, 0}};
static const ex_word statistics[] = {{"episode", 0}, {"running", 1}, {NULL, 0}};
static const ex_word amps[] = {{"0", MT_DTYPE_NONE}, {"1", EX_AMP_AUTO}, {NULL, 0}};

/* The three configurations of the script; steps are those of its gradient accumulation. */
static const struct {
    const char *name;
    int64_t method, depth, feti, queries, steps;
} presets[] = {{"minimal", FSCT, 18, 0, 8, 4},
               {"balanced", PROFOCT, 34, 0, 16, 2},
               {"maximum", PROFOCT, 34, 1, 16, 1}};

/* Sets several flags; those that come after it on the command line have the last word. */
static int read_preset(const char *text, void *target) {
    profoct *p = target;
    for (size_t i = 0; i < EX_ROWS(presets); i++) {
        if (strcmp(text, presets[i].name) != 0) continue;
        p->preset = presets[i].name;
        p->method = presets[i].method;
        p->depth = presets[i].depth;
        p->feti = presets[i].feti;
        p->shape.queries = presets[i].queries;
        p->flags.batch = presets[i].steps;
        p->flags.amp = EX_AMP_AUTO;
        return 1;
    }
    return 0;
}

#define FLAG(name, kind, field, ...) EX_FLAG(name, kind, profoct, field, __VA_ARGS__)

static const ex_option own_flags[] = {
    {.section = "Few-shot learning"},
    FLAG("size", EX_WORD, size, "small|published",
         "published: --preset balanced --image-size 224 --pool 7 --budget auto, where these are "
         "not given",
         .words = ex_size_words),
    FLAG("preset", EX_PARSED, flags, "NAME",
         "minimal, balanced or maximum: method, backbone, FETI, n_query, amp and accumulation for "
         "8, 16 and "
         "24 GB; flags after it change them",
         .read = read_preset, .accepts = "minimal, balanced or maximum", .by_default = "none"),
    FLAG("method", EX_WORD, method, "NAME",
         "FSCT_cosine, or ProFOCT_cosine with its terms of the loss", .words = methods,
         .decides = 1),
    FLAG("backbone", EX_WORD, depth, "NAME", "ResNet18 or ResNet34", .words = backbones,
         .decides = 1),
    FLAG("FETI", EX_WHOLE, feti, "0|1", "a stem of 5x5 without a max pool", .most = 1,
         .decides = 1),
    FLAG("pool", EX_WHOLE, pool, "N",
         "side of the averaged feature map: 512 x N x N features of a picture (the script: 7)",
         .least = 1, .most = 7, .decides = 1),
    FLAG("n-way", EX_WHOLE, shape.ways, "N", "classes of an episode", .least = 2, .most = 100,
         .decides = 1),
    FLAG("k-shot", EX_WHOLE, shape.shots, "N", "pictures of each that are known", .least = 1,
         .most = 100, .decides = 1),
    FLAG("n-query", EX_WHOLE, shape.queries, "N", "pictures of each that are to be told",
         .least = 1, .most = 100, .decides = 1),
    FLAG("gradient-accumulation-steps", EX_WHOLE, flags.batch, "N",
         "episodes of an optimiser step: the same as --batch", .least = 1, .most = 65536),
    FLAG("use-amp", EX_WORD, flags.amp, "0|1", "1: half precision on CUDA, as --amp auto; 0: never",
         .words = amps),
    FLAG("use-vic-on-attention", EX_WHOLE, vic_on_attention, "0|1",
         "variance and covariance of what attention gives count as well", .most = 1, .decides = 1),
    FLAG(
        "vic-detach", EX_WHOLE, vic_detach, "0|1",
        "1: those without their graph, for the weights of the terms alone; 0: they are learnt from",
        .most = 1, .decides = 1),
    FLAG("vic-weights", EX_WORD, vic_dynamic, "HOW",
         "of the terms: dynamic, by their size beside the cross entropy, or fixed",
         .words = weightings, .decides = 1),
    FLAG("covariance", EX_WORD, by_matrix, "HOW",
         "rows: by the products of an episode's pictures; matrix: by the matrix of all "
         "covariances, as the "
         "script has it, which is 2.35 GiB with --pool 7",
         .words = covariances, .decides = 1),
    FLAG("variants", EX_WHOLE, variants, "0|1",
         "in training classes are also turned by quarters, and their colours exchanged: more "
         "classes of few",
         .most = 1, .decides = 1),
    FLAG("eval-norm", EX_WORD, running, "HOW",
         "statistics of batch norm in evaluation: those of the episode's own pictures, or running",
         .words = statistics),
    FLAG("episodes", EX_WHOLE, episodes, "N", "of an epoch (the script: 200)", .least = 1,
         .most = 1000000, .decides = 1),
    FLAG("val-episodes", EX_WHOLE, val_episodes, "N", "of validation", .most = 1000000),
    FLAG("test-episodes", EX_WHOLE, test_episodes, "N",
         "at the end, with classes that were never seen (the script: 600)", .most = 1000000),
    FLAG("weights", EX_TEXT, weights, "FILE",
         "begin with the backbone of a safetensors file of torchvision's or timm's ResNet of that "
         "depth; --FETI leaves out the stem of a file that has another one",
         .accepts = "a safetensors file of the network's weights", .decides = 1,
         .file = EX_FILE_READ),
    FLAG("self-test", EX_SWITCH, self_test, NULL,
         "check accumulation, half precision, what is detached and clearing, and train nothing",
         .most = 1),
};

/* A size is a set of defaults. */
static profoct defaults(int64_t size) {
    profoct p = {.flags = EX_FLAGS_INIT,
                 .shape = {5, 5, 8},
                 .size = size,
                 .method = PROFOCT,
                 .depth = 18,
                 .pool = 1,
                 .vic_on_attention = 1,
                 .vic_detach = 1,
                 .vic_dynamic = 1,
                 .variants = 1,
                 .running = 1,
                 .episodes = 40,
                 .val_episodes = 10,
                 .test_episodes = 100,
                 .tested = MT_EVAL_REPORT_INIT};
    p.flags.image_size = 48;
    p.flags.batch = 2;
    p.flags.epochs = 4;
    p.flags.warmup = 10;
    p.flags.weight_decay = 1e-5;
    p.flags.schedule = MT_SCHEDULE_COSINE;
    p.flags.amp = EX_AMP_AUTO;
    if (size == EX_SIZE_SMALL) return p;
    read_preset("balanced", &p);
    p.flags.image_size = 224;
    p.pool = 7;
    return p;
}

int profoct_flags(profoct *p, ex_program *program, int argc, char **argv, int *out_status) {
    int64_t size = EX_SIZE_SMALL;
    program->budget = DEFAULT_BUDGET;
    program->data = "class folders, or folders train, val and test of these";
    program->own = (ex_table){own_flags, EX_ROWS(own_flags), p};
    for (int pass = 0; pass < 2; pass++, size = p->size) { /* for the size, and for the rest */
        *p = defaults(size);
        if (!ex_training_flags(program, "few-shot learning of clip art, inside a memory budget",
                               &p->flags, argc, argv, out_status))
            return 0;
    }
    if (p->size == EX_SIZE_PUBLISHED) program->budget = NULL;
    program->model_name = p->method == PROFOCT ? "ProFOCT_cosine" : "FSCT_cosine";
    *out_status = 0;
    if (p->flags.resume && p->weights)
        *out_status = ex_training_refuse(
            program, "--weights: not together with --resume, whose file has the weights");
    else if (p->self_test && ex_processes_asked(&p->flags) > 1)
        *out_status = ex_training_refuse(program, "--self-test: not by several processes");
    return !*out_status;
}
