/*
 * profoct.c - learns to tell classes from a few pictures of each, inside a memory budget.
 *
 *     build/examples/profoct --n_way 5 --k_shot 5 --n_query 8 --budget 400MiB
 *
 * A sample is an episode: five classes, of each five pictures that are known and eight to be told. The
 * network never sees the classes of the tests while it learns. Batch norm sees the pictures of one
 * episode, so an episode is never cut, and a batch of several is, exactly. For flags, data and what a
 * program is otherwise, see food101.c.
 */
#include "checkpoint.h"
#include "episodes.h"
#include "few_shot_test.h"
#include "report.h"
#include "training.h"
#include "profoct_model.h"

#include <math.h>
#include <memtrain/torch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "profoct"
#define DEFAULT_BUDGET "320MiB" /* room for one episode of 65 pictures of 48 x 48, not for two */
#define DATA "examples/data/clipart"
#define SEGMENTS "expandable_segments:True" /* for CUDA's allocator, before the device starts */

enum { FSCT = 0, PROFOCT = 1 }; /* methods */

typedef struct profoct {
    ex_flags flags; /* first, see read_preset */
    ex_shape shape;
    int64_t size; /* --size */
    int64_t method, depth, feti, pool, vic_on_attention, vic_detach, vic_dynamic, by_matrix,
        variants, running;
    int64_t episodes, val_episodes, test_episodes;
    const char *preset, *weights;
    int self_test;
    ex_class_sets classes;
    ex_episodes learning, testing;
    mt_eval_report tested; /* means over the test episodes */
} profoct;

/* ---- flags ------------------------------------------------------------------------------------- */

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
         "depth",
         .accepts = "a safetensors file of the network's weights", .decides = 1,
         .file = EX_FILE_READ),
    FLAG("self-test", EX_SWITCH, self_test, NULL,
         "check accumulation, half precision, what is detached and clearing, and train nothing",
         .most = 1),
};

/* ---- what the program adds to a run ------------------------------------------------------------ */

static ex_episodes episodes_of(const profoct *p, int first, int second) {
    return (ex_episodes){.classes = &p->classes,
                         .set = {first, second},
                         .counts = {p->episodes, p->val_episodes},
                         .shape = p->shape,
                         .side = (int)p->flags.image_size,
                         .variants = (int)p->variants,
                         .seed = (uint64_t)p->flags.seed};
}

static mt_status open_data(void *self, const ex_training *run, ex_source *out) {
    profoct *p = self;
    mt_status status = ex_class_sets_open(&p->flags, run->argv[0], DATA, &p->shape, &p->classes);
    p->learning = episodes_of(p, EX_TRAIN_CLASSES, EX_VAL_CLASSES);
    p->testing = episodes_of(p, EX_TEST_CLASSES, EX_TEST_CLASSES);
    p->testing.counts[EX_TRAINING] = 0;
    p->testing.counts[EX_VALIDATION] = p->test_episodes;
    p->testing.seed = 1; /* the same tests, whatever was learnt from */
    *out = ex_episodes_source(&p->learning);
    return status;
}

static profoct_model_options model_of(const profoct *p) {
    profoct_model_options options = PROFOCT_MODEL_OPTIONS_INIT;
    options.depth = (int)p->depth;
    options.feti = (int)p->feti;
    options.pool = (int)p->pool;
    options.ways = (int)p->shape.ways;
    options.shots = (int)p->shape.shots;
    options.queries = (int)p->shape.queries;
    options.vic = p->method == PROFOCT;
    options.vic_on_attention = (int)p->vic_on_attention;
    options.detach = (int)p->vic_detach;
    options.dynamic = (int)p->vic_dynamic;
    options.by_matrix = (int)p->by_matrix;
    options.running_statistics = (int)p->running;
    return options;
}

/* The backbone alone: the rest of the file's network is its classifier. */
static void backbone_name(void *user, const char *name, char *other, size_t capacity) {
    static const char feature[] = "feature.";
    (void)user;
    if (strncmp(name, feature, strlen(feature)) == 0)
        snprintf(other, capacity, "%s", name + strlen(feature));
}

static mt_status make_model(void *self, const ex_training *run, mt_model **out) {
    const profoct *p = self;
    const profoct_model_options options = model_of(p);
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    (void)run;
    mt_status status = profoct_model_new(&options, out);
    weights.strict = 0;
    weights.other_name = backbone_name;
    return status == MT_OK ? ex_checkpoint_weights(*out, p->weights, &weights) : status;
}

static void introduce(void *self, const ex_training *run) {
    const profoct *p = self;
    (void)run;
    printf("%lld-way %lld-shot, %lld queries a class; classes: %zu for training, %zu for "
           "validation, %zu "
           "for tests; guessing is right for %.1f %%\n",
           (long long)p->shape.ways, (long long)p->shape.shots, (long long)p->shape.queries,
           p->classes.counts[EX_TRAIN_CLASSES], p->classes.counts[EX_VAL_CLASSES],
           p->classes.counts[EX_TEST_CLASSES], 100.0 / (double)p->shape.ways);
}

/* Episodes of the classes that were never seen. */
static mt_status test(void *self, ex_training *run) {
    profoct *p = self;
    const ex_source source = ex_episodes_source(&p->testing);
    return ex_training_test(run, &source, &p->tested);
}

/* Half the width of the interval in which the mean lies 95 times of 100. */
static double half_interval(const mt_eval_report *report) {
    double mean = report->metrics[0], variance = report->metrics[1] - mean * mean;
    return 1.96 * sqrt(fmax(variance, 0) / (double)report->samples);
}

static void print_accuracy(void *self, const ex_training *run) {
    const profoct *p = self;
    (void)run;
    if (!p->tested.samples) return;
    printf("test accuracy %.2f %%", 100 * p->tested.metrics[0]);
    if (p->tested.samples > 1) printf(" +- %.2f %%", 100 * half_interval(&p->tested));
    printf(" over %zu episode%s of classes that were never seen; guessing: %.1f %%\n",
           p->tested.samples, p->tested.samples == 1 ? "" : "s", 100.0 / (double)p->shape.ways);
}

static void print_remedies(void *self, const ex_training *run) {
    const profoct *p = self;
    const double features = 512.0 * (double)(p->pool * p->pool);
    char matrix[32];
    (void)run;
    if (p->by_matrix)
        fprintf(stderr, "  --covariance rows    the same numbers without a matrix of %s\n",
                mt_format_size((uint64_t)(4 * features * features), matrix, sizeof matrix));
    if (p->shape.queries > 8)
        fprintf(stderr,
                "  --n_query 8          an episode is never cut, and has fewer pictures then\n");
    if (p->depth > 18) fprintf(stderr, "  --backbone ResNet18  has about half the parameters\n");
}

static void close_data(void *self) {
    profoct *p = self;
    ex_class_sets_close(&p->classes);
}

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

int main(int argc, char **argv) {
    profoct p;
    int64_t size = EX_SIZE_SMALL;
    ex_program program = {.name = NAME,
                          .budget = DEFAULT_BUDGET,
                          .data = "class folders, or folders train, val and test of these",
                          .own = {own_flags, EX_ROWS(own_flags), &p},
                          .self = &p,
                          .open = open_data,
                          .model = make_model,
                          .introduce = introduce,
                          .test = test,
                          .result = print_accuracy,
                          .remedies = print_remedies,
                          .close = close_data};
    int exit_status;
    for (int pass = 0; pass < 2; pass++, size = p.size) { /* for the size, and for the rest */
        p = defaults(size);
        if (!ex_training_flags(&program, "few-shot learning of clip art, inside a memory budget",
                               &p.flags, argc, argv, &exit_status))
            return exit_status;
    }
    if (p.size == EX_SIZE_PUBLISHED) program.budget = NULL;
    if (p.flags.resume && p.weights)
        return ex_training_refuse(
            &program, "--weights: not together with --resume, whose file has the weights");
    setenv("PYTORCH_CUDA_ALLOC_CONF", SEGMENTS, 0);
    if (p.self_test && ex_processes_asked(&p.flags) > 1)
        return ex_training_refuse(&program, "--self-test: not by several processes");
    if (p.self_test) {
        const profoct_model_options model = model_of(&p);
        return ex_few_shot_test(&p.flags, argv[0], DATA, &p.shape, &model);
    }
    program.model_name = p.method == PROFOCT ? "ProFOCT_cosine" : "FSCT_cosine";
    return ex_training_main(&program, &p.flags, argv);
}
