/*
 * car_clip_flags.c - the command line of car_clip; see car_clip.h.
 */
#include "car_clip.h"

#include "car_clip_model.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_BUDGET "150MiB" /* less than half of what 128 pairs at once take */
#define CHUNK 16                /* --batch */
#define CHUNKS 8                /* --accumulate */

enum { FIRST_PUBLISHED = 5 };
static const car_clip_network networks[] = {
    {128, 4, 128, 2, 128, 0, 32, 8},    {192, 6, 192, 4, 192, 0, 32, 8},
    {192, 12, 192, 6, 192, 0, 32, 8},   {384, 6, 256, 4, 256, 0, 32, 8},
    {384, 12, 256, 6, 256, 0, 32, 8},   {768, 12, 512, 12, 512, 0, 224, 32},
    {0, 0, 512, 12, 1024, 64, 224, 32},
};
static const ex_word sizes[] = {{"w128-l4", 0},        {"w192-l6", 1},  {"w192-l12", 2},
                                {"w384-l6", 3},        {"w384-l12", 4}, {"published", 5},
                                {"published-rn50", 6}, {NULL, 0}};
static const ex_word ways[] = {{"cached", CAR_CLIP_CACHED}, {"plain", CAR_CLIP_PLAIN}, {NULL, 0}};
static const ex_word switches[] = {{"on", 1}, {"off", 0}, {NULL, 0}};
static const ex_word precisions[] = {{"on", EX_AMP_AUTO}, {"off", MT_DTYPE_NONE}, {NULL, 0}};

/* A share of the device's memory, as the budget that it is. */
static int read_fraction(const char *text, void *target) {
    char *end;
    double share = strtod(text, &end);
    if (strspn(text, ".0123456789") < strlen(text) || end == text || *end) return 0;
    if (!(share > 0 && share <= 1)) return 0;
    *(const char **)target = share < 1 ? text : "100%";
    return 1;
}

#define ALIAS(name, kind, field, value, of, ...)                                                   \
    EX_FLAG(name, kind, car_clip, flags.field, value, "the same as --" of, .by_default = "",       \
            __VA_ARGS__)

static const ex_option own_flags[] = {
    {.section = "Pictures and captions (--data: a folder with captions.json)"},
    EX_FLAG("contrastive", EX_WORD, car_clip, contrastive, "HOW",
            "cached: the loss of all pairs of a batch, however it is cut; plain: a loss of each "
            "chunk of --batch alone, which is another one",
            .words = ways, .decides = 1),
    EX_FLAG("size", EX_WORD, car_clip, network, "NAME",
            "width and layers of the picture tower: w128-l4, w192-l6, w192-l12, w384-l6 or "
            "w384-l12; published: ViT-B/32; published-rn50: ResNet-50; these two at 224 pixels, "
            "with CLIP's 49,408 tokens, 77 of them a text, and --budget auto",
            .words = sizes, .decides = 1),
    EX_FLAG("patch", EX_WHOLE, car_clip, patch, "N",
            "side of the squares of a picture that are a token each, in pixels", .least = 4,
            .most = 32, .decides = 1),
    EX_FLAG(
        "keywords", EX_WORD, car_clip, keywords, "on|off",
        "on: captions in training say a keyword in the place of the title every other time, and "
        "in that of the folder",
        .words = switches, .decides = 1),
    EX_FLAG("weights", EX_TEXT, car_clip, weights, "FILE",
            "begin with the weights of a safetensors file of that network, as open_clip names them",
            .accepts = "a safetensors file of the network's weights", .decides = 1,
            .file = EX_FILE_READ),
    {.section = "Other names of shared flags"},
    ALIAS("batch-size", EX_WHOLE, batch, "N", "batch", .least = 1, .most = 65536),
    ALIAS("gradient-accumulation", EX_WHOLE, accumulate, "N", "accumulate", .least = 1,
          .most = 65536),
    ALIAS("gradient-accumulation-steps", EX_WHOLE, accumulate, "N", "accumulate", .least = 1,
          .most = 65536),
    ALIAS("num-epochs", EX_WHOLE, epochs, "N", "epochs", .most = 1000000000),
    ALIAS("learning-rate", EX_REAL, lr, "X", "lr", .min = 1e-30, .max = 1e30,
          .accepts = "a number above 0"),
    ALIAS("clip-grad-norm", EX_REAL, clip, "X", "clip", .max = 1e30,
          .accepts = "a number of at least 0; 0 leaves the gradient as it is"),
    ALIAS("empty-cache-frequency", EX_WHOLE, clear_every, "N", "clear-every", .least = 1,
          .most = 1000000000),
    ALIAS("prefetch-factor", EX_WHOLE, prefetch, "N", "prefetch", .least = 1, .most = 64),
    ALIAS("memory-fraction", EX_PARSED, budget, "X", "budget with a share of what is there",
          .read = read_fraction, .accepts = "a number above 0 and up to 1"),
    ALIAS("mixed-precision", EX_WORD, amp, "on|off", "amp auto, or off", .words = precisions),
};

size_t car_clip_chunk(const car_clip *c) {
    return (size_t)(c->flags.batch / c->flags.accumulate);
}

/* The loss of a chunk depends on its size: it is what --batch was, and never chosen. */
static int fix_chunks(car_clip *c) {
    ex_flags *f = &c->flags;
    const int64_t chunk = (int64_t)car_clip_chunk(c);
    if (c->contrastive != CAR_CLIP_PLAIN) return 1;
    if ((f->micro_batch && f->micro_batch != chunk) || f->min_micro_batch > chunk ||
        (f->max_micro_batch && f->max_micro_batch != chunk))
        return 0;
    f->micro_batch = chunk;
    f->min_micro_batch = f->max_micro_batch = 0;
    return 1;
}

/* What only flags together can get wrong. @return 0, or the exit status */
static int check_flags(const ex_program *program, car_clip *c) {
    size_t pairs = c->contrastive == CAR_CLIP_PLAIN ? car_clip_chunk(c) : (size_t)c->flags.batch;
    if (c->flags.image_size % c->patch)
        return ex_training_refuse(
            program, "--patch: '%lld' is not accepted; accepted: a divisor of --image-size, %lld",
            (long long)c->patch, (long long)c->flags.image_size);
    if (networks[c->network].resnet_width && c->flags.image_size % 32)
        return ex_training_refuse(
            program, "--image-size: '%lld' is not accepted; accepted: a multiple of 32",
            (long long)c->flags.image_size);
    if (c->flags.resume && c->weights)
        return ex_training_refuse(
            program, "--weights: not together with --resume, whose file has the weights");
    if (c->contrastive == CAR_CLIP_CACHED && ex_processes_asked(&c->flags) > 1)
        return ex_training_refuse(program,
                                  "--contrastive: 'cached' is not accepted for several processes, "
                                  "of which each sees its own pairs; accepted: plain");
    if (pairs < 2)
        return ex_training_refuse(
            program,
            "--batch: '%lld' is not accepted; accepted: at least 2, since a pair is told "
            "from the others",
            (long long)car_clip_chunk(c));
    if (!fix_chunks(c))
        return ex_training_refuse(program,
                                  "--micro-batch: not with --contrastive plain, whose chunks are "
                                  "those of --batch, %zu",
                                  car_clip_chunk(c));
    return 0;
}

int car_clip_is_published(const car_clip *c) {
    return c->network >= FIRST_PUBLISHED;
}

const car_clip_network *car_clip_network_of(const car_clip *c) {
    return &networks[c->network];
}

static ex_flags defaults(int64_t network) {
    ex_flags f = EX_FLAGS_INIT;
    f.image_size = networks[network].side;
    f.batch = CHUNK;
    f.accumulate = CHUNKS;
    f.lr_batch = CHUNK * CHUNKS;
    f.epochs = 16;
    f.lr = 6e-4;
    f.schedule = MT_SCHEDULE_COSINE;
    f.warmup = 10;
    f.weight_decay = 0.2;
    f.clip = 1.0;
    f.clear_every = 10;
    f.prefetch = 2;
    f.amp = EX_AMP_AUTO;
    return f;
}

int car_clip_flags(car_clip *c, ex_program *program, int argc, char **argv, int *out_status) {
    int64_t network = 0;
    program->budget = DEFAULT_BUDGET;
    program->data = "a folder with captions.json and the pictures that it names";
    program->own = (ex_table){own_flags, EX_ROWS(own_flags), c};
    /* A size is a set of defaults: once for the size, once for the rest. */
    for (int pass = 0; pass < 2; pass++, network = c->network) {
        *c = (car_clip){.flags = defaults(network),
                        .contrastive = CAR_CLIP_CACHED,
                        .network = network,
                        .patch = networks[network].patch,
                        .keywords = 1};
        if (!ex_training_flags(program,
                               "pictures and captions that find each other, trained inside a "
                               "memory budget",
                               &c->flags, argc, argv, out_status))
            return 0;
    }
    if (car_clip_is_published(c)) program->budget = NULL;
    program->model_name = sizes[c->network].name;
    *out_status = check_flags(program, c);
    return !*out_status;
}
