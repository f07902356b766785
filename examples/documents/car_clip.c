/*
 * car_clip.c - trains pictures and captions to find each other, inside a memory budget.
 *
 *     build/examples/car_clip --batch 16 --accumulate 8
 *
 * A contrastive loss compares each pair with all others of its batch, so it is the batch that cannot be made
 * smaller without becoming another training. --contrastive cached has the exact gradient of the whole batch at
 * the memory of a chunk; --contrastive plain adds up the losses of chunks, as a loop with gradient accumulation
 * does, and says what that is. main() is at the end of the file; common/training.c has the flow that all
 * programs share.
 */
#include "captions.h"
#include "checkpoint.h"
#include "tokens.h"
#include "training.h"
#include "car_clip_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "car_clip"
#define DEFAULT_BUDGET "150MiB" /* less than half of what 128 pairs at once take */
#define CHUNK 16                /* --batch */
#define CHUNKS 8                /* --accumulate */
#define LOG_EVERY 10            /* steps, where --clear-every is none */

typedef struct car_clip {
    ex_flags flags;
    int64_t contrastive; /* a car_clip_contrastive */
    int64_t network;     /* index into networks */
    int64_t patch;
    int64_t keywords; /* 1: said in training */
    const char *weights;
    ex_captions *captions;
    size_t peak_bytes; /* of all steps so far */
} car_clip;

/* ---- flags ------------------------------------------------------------------------------------- */

/*
 * Width and layers of the towers, the numbers that stand for a picture or a text, and the channels of a ResNet-50 in the
 * place of the picture tower. The published ones have CLIP's tokens, and their pictures and patches as defaults.
 */
enum { FIRST_PUBLISHED = 5 };
static const struct {
    int image_width, image_layers, text_width, text_layers, embedding, resnet_width, side, patch;
} networks[] = {
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

static size_t chunk_of(const car_clip *c) {
    return (size_t)(c->flags.batch / c->flags.accumulate);
}

/* The loss of a chunk depends on its size: it is what --batch was, and never chosen. */
static int fix_chunks(car_clip *c) {
    ex_flags *f = &c->flags;
    const int64_t chunk = (int64_t)chunk_of(c);
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
    size_t pairs = c->contrastive == CAR_CLIP_PLAIN ? chunk_of(c) : (size_t)c->flags.batch;
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
            (long long)chunk_of(c));
    if (!fix_chunks(c))
        return ex_training_refuse(program,
                                  "--micro-batch: not with --contrastive plain, whose chunks are "
                                  "those of --batch, %zu",
                                  chunk_of(c));
    return 0;
}

static int is_published(const car_clip *c) {
    return c->network >= FIRST_PUBLISHED;
}

/* ---- what the program adds to a run ------------------------------------------------------------ */

static mt_status open_data(void *self, const ex_training *run, ex_source *out) {
    car_clip *c = self;
    mt_status status =
        ex_captions_open(&c->flags, run->argv[0], (int)c->keywords, is_published(c), &c->captions);
    if (status == MT_OK) *out = ex_captions_source(c->captions);
    return status;
}

static mt_status make_model(void *self, const ex_training *run, mt_model **out) {
    const car_clip *c = self;
    car_clip_model_options options = CAR_CLIP_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    (void)run;
    options.image_width = networks[c->network].image_width;
    options.image_layers = networks[c->network].image_layers;
    options.text_width = networks[c->network].text_width;
    options.text_layers = networks[c->network].text_layers;
    options.embedding = networks[c->network].embedding;
    options.side = (int)c->flags.image_size;
    options.patch = (int)c->patch;
    options.resnet_width = networks[c->network].resnet_width;
    options.vocabulary = is_published(c) ? EX_CLIP_COUNT : EX_TOKEN_COUNT;
    options.context = is_published(c) ? EX_CLIP_CONTEXT : EX_CAPTION_CONTEXT;
    options.contrastive = (int)c->contrastive;
    mt_status status = car_clip_model_new(&options, out);
    weights.strict = 0; /* files of old have the tower's sizes as tensors */
    return status == MT_OK ? ex_checkpoint_weights(*out, c->weights, &weights) : status;
}

/* As CLIP was trained: gains, biases and the scale of the logits do not decay. */
static void set_optimizer(void *self, mt_torch_options *options) {
    static const mt_parameter_group groups[] = {
        {sizeof(mt_parameter_group), "*bias", 1, 0, 0},
        {sizeof(mt_parameter_group), "*ln_*", 1, 0, 0},
        {sizeof(mt_parameter_group), "logit_scale", 1, 0, 0},
        {sizeof(mt_parameter_group), "visual.class_embedding", 1, 0, 0}};
    static const mt_parameter_group resnet_groups[] = {
        {sizeof(mt_parameter_group), "*bias", 1, 0, 0},
        {sizeof(mt_parameter_group), "*ln_*", 1, 0, 0},
        {sizeof(mt_parameter_group), "logit_scale", 1, 0, 0},
        {sizeof(mt_parameter_group), "*bn*", 1, 0, 0},
        {sizeof(mt_parameter_group), "*downsample.1*", 1, 0, 0}};
    const car_clip *c = self;
    options->beta2 = 0.98;
    options->eps = 1e-6;
    options->groups = groups;
    options->group_count = EX_ROWS(groups);
    if (!networks[c->network].resnet_width) return;
    options->groups = resnet_groups;
    options->group_count = EX_ROWS(resnet_groups);
}

/* So many pairs are compared with each other in validation: a batch, or what there is. */
static size_t compared(const car_clip *c, const ex_training *run) {
    size_t pairs = run->source.count(run->source.self, EX_VALIDATION);
    return pairs < (size_t)c->flags.batch ? pairs : (size_t)c->flags.batch;
}

static void introduce(void *self, const ex_training *run) {
    const car_clip *c = self;
    const size_t chunk = chunk_of(c);
    printf("%zu pairs for training, %zu for validation, whose titles are others\n",
           run->source.count(run->source.self, EX_TRAINING) * (size_t)c->flags.processes,
           run->source.count(run->source.self, EX_VALIDATION));
    if (c->captions->skipped) printf("%zu pictures were skipped\n", c->captions->skipped);
    if (c->contrastive == CAR_CLIP_PLAIN && c->flags.accumulate > 1)
        printf(
            "Plain accumulation: each pair is told from the %zu others of its chunk alone; %lld "
            "such losses do not add up to that of a batch of %lld, as --contrastive cached does\n",
            chunk - 1, (long long)c->flags.accumulate, (long long)c->flags.batch);
}

/* Parameters as CLIP keeps them, and the line that the script printed. */
static void after_step(void *self, ex_training *run, const mt_step_report *report) {
    car_clip *c = self;
    const double gb = 1024.0 * 1024 * 1024;
    const int64_t every = c->flags.clear_every > 0 ? c->flags.clear_every : LOG_EVERY;
    mt_memory memory = MT_MEMORY_INIT;
    if (car_clip_model_clamp(run->torch) != MT_OK) mt_log(MT_LOG_WARNING, "%s", mt_last_error());
    if (report->peak_bytes > c->peak_bytes) c->peak_bytes = report->peak_bytes;
    if (run->at.steps % (uint64_t)every || mt_device_memory(run->device.name, &memory) != MT_OK)
        return;
    /* MPS tells no peak: what is there now is the least that it was. */
    if (memory.allocated_bytes > c->peak_bytes) c->peak_bytes = memory.allocated_bytes;
    ex_progress_clear(&run->progress);
    printf("%s Memory - Allocated: %.2f GB, Peak: %.2f GB\n",
           strcmp(run->device.name, "cpu") == 0 ? "CPU" : "GPU",
           (double)memory.allocated_bytes / gb, (double)c->peak_bytes / gb);
    fflush(stdout);
}

static void print_recall(size_t among, double loss, const double *metrics) {
    const double n = (double)among;
    printf("among %zu: loss %.3f; a picture finds its caption first in %.1f %%, among the first "
           "five in %.1f %%; a caption its picture in %.1f %% and %.1f %%; by chance %.1f %% and "
           "%.1f %%\n",
           among, loss, 100 * metrics[2], 100 * metrics[3], 100 * metrics[4], 100 * metrics[5],
           100 / n, among < 5 ? 100.0 : 500 / n);
}

/* Validation in chunks compares the pairs of a chunk alone: once more with whole batches. */
static mt_status evaluate_whole(const ex_training *run, double *loss, double *metrics) {
    size_t samples = 0;
    *loss = 0;
    for (size_t i = 0; i < ex_batches_count(run->batches, EX_VALIDATION); i++) {
        mt_batch batch;
        mt_chunk_result result = MT_CHUNK_RESULT_INIT;
        mt_status status = ex_batches_fill(run->batches, EX_VALIDATION, 0, i, &batch);
        if (status == MT_OK) status = mt_evaluate(run->torch, &batch, 0, batch.count, &result);
        if (status != MT_OK) return status;
        samples += batch.count;
        *loss += result.loss_sum;
        for (int m = 0; m < CAR_CLIP_METRICS; m++) metrics[m] += result.metric_sums[m];
    }
    *loss /= (double)samples;
    for (int m = 0; m < CAR_CLIP_METRICS; m++) metrics[m] /= (double)samples;
    return MT_OK;
}

static void print_result(void *self, const ex_training *run) {
    const car_clip *c = self;
    double loss, metrics[CAR_CLIP_METRICS] = {0};
    if (!run->last.eval_samples) return;
    if (c->contrastive == CAR_CLIP_CACHED)
        print_recall(compared(c, run), run->last.eval_loss, run->last.eval_metrics);
    else if (evaluate_whole(run, &loss, metrics) == MT_OK)
        print_recall(compared(c, run), loss, metrics);
    else
        mt_log(MT_LOG_WARNING, "validation of whole batches: %s", mt_last_error());
}

static void print_remedies(void *self, const ex_training *run) {
    const car_clip *c = self;
    (void)run;
    if (c->contrastive == CAR_CLIP_PLAIN)
        fprintf(stderr, "  --contrastive cached chunks of any size have the gradient of the whole "
                        "batch\n");
    if (c->network > 0) fprintf(stderr, "  --size w128-l4       is the smallest network\n");
}

static void close_data(void *self) {
    car_clip *c = self;
    ex_captions_free(c->captions);
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

int main(int argc, char **argv) {
    car_clip c;
    int64_t network = 0;
    ex_program program = {.name = NAME,
                          .budget = DEFAULT_BUDGET,
                          .data = "a folder with captions.json and the pictures that it names",
                          .own = {own_flags, EX_ROWS(own_flags), &c},
                          .self = &c,
                          .open = open_data,
                          .model = make_model,
                          .options = set_optimizer,
                          .introduce = introduce,
                          .after_step = after_step,
                          .result = print_result,
                          .remedies = print_remedies,
                          .close = close_data};
    int exit_status;
    /* A size is a set of defaults: once for the size, once for the rest. */
    for (int pass = 0; pass < 2; pass++, network = c.network) {
        c = (car_clip){.flags = defaults(network),
                       .contrastive = CAR_CLIP_CACHED,
                       .network = network,
                       .patch = networks[network].patch,
                       .keywords = 1};
        if (!ex_training_flags(&program,
                               "pictures and captions that find each other, trained inside a "
                               "memory budget",
                               &c.flags, argc, argv, &exit_status))
            return exit_status;
    }
    if (is_published(&c)) program.budget = NULL;
    exit_status = check_flags(&program, &c);
    if (exit_status) return exit_status;
    program.model_name = sizes[c.network].name;
    return ex_training_main(&program, &c.flags, argv);
}
