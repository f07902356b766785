/*
 * food101.c - trains a classifier of food pictures inside a memory budget.
 *
 *     build/examples/food101 --batch 32 --image-size 96 --budget 240MiB
 *
 * A program is its flags, its data, its network and the line that it ends with: these are here, from
 * main() at the end of the file upwards. common/training.c has the flow that all programs share. All
 * that concerns memory happens inside mt_trainer_step and mt_trainer_evaluate, which are called there:
 * they cut a batch into chunks that fit, and take a step back and do it again when memory runs out all
 * the same.
 *
 * Any folder of class folders can take the place of the pictures that come with the program, Food-101
 * itself (101 classes of 1000 photographs) included.
 */
#include "common/pictures.h"
#include "common/report.h"
#include "common/training.h"
#include "models/food101_model.h"

#include <memtrain/torch.h>
#include <stdio.h>

#define NAME "food101"
#define DEFAULT_BUDGET "240MiB" /* room for 13 pictures of 96 x 96 at once */
#define DATA "examples/data/food"
#define DEV_SAMPLES 500 /* of --dev-mode alone */

typedef struct food101 {
    ex_flags flags;
    int64_t depth, fit; /* --arch, --fit */
    int dev_mode;
    int64_t dev_samples;
    const char *weights;
    ex_pictures pictures;
} food101;

/* ---- flags ------------------------------------------------------------------------------------- */

static const ex_word archs[] = {{"resnet18", 18}, {"resnet34", 34}, {"resnet50", 50}, {NULL, 0}};
static const ex_word profiles[] = {{"ultra-safe", 4}, {"safe", 8},      {"moderate", 16},
                                   {"target", 24},    {"original", 32}, {NULL, 0}};
static const ex_word fits[] = {
    {"pad", EX_FIT_PAD}, {"crop", EX_FIT_CROP}, {"squash", EX_FIT_SQUASH}, {NULL, 0}};

static const ex_option own_flags[] = {
    {.section = "Food recognition"},
    EX_FLAG("arch", EX_WORD, food101, depth, "NAME", "resnet18, resnet34 or resnet50",
            .words = archs, .decides = 1),
    EX_FLAG("profile", EX_WORD, food101, flags.batch, "NAME",
            "--batch by name: ultra-safe 4, safe 8, moderate 16, target 24, original 32",
            .words = profiles),
    EX_FLAG("fit", EX_WORD, food101, fit, "HOW",
            "how a picture becomes square: pad (clip art), crop (photographs) or squash",
            .words = fits, .decides = 1),
    EX_FLAG("dev-mode", EX_SWITCH, food101, dev_mode, NULL, "as --dev-samples 500", .most = 1),
    EX_FLAG("dev-samples", EX_WHOLE, food101, dev_samples, "N",
            "use so many pictures only, evenly from the classes, those for validation (one in "
            "five) among them; 0: all",
            .most = 1000000000, .decides = 1),
    EX_FLAG(
        "weights", EX_TEXT, food101, weights, "FILE",
        "begin with the weights of a safetensors file, of torchvision's or timm's network of that "
        "name; the last layer (fc) is trained anew, since its classes are others",
        .accepts = "a safetensors file of the network's weights", .decides = 1),
};

static const char *arch_name(int64_t depth) {
    const ex_word *arch = archs;
    while (arch->value != depth) arch++;
    return arch->name;
}

/* ---- what the program adds to a run ------------------------------------------------------------ */

/* The pictures are decoded once and stay in memory as small RGB, as far as there is room. */
static mt_status open_data(void *self, const ex_training *run, ex_source *out) {
    food101 *f = self;
    mt_status status = ex_pictures_open(&f->flags, run->argv[0], DATA, (ex_fit)f->fit,
                                        (size_t)f->dev_samples, &f->pictures.dataset);
    f->pictures.side = (int)f->flags.image_size;
    *out = ex_pictures_source(&f->pictures);
    return status;
}

static mt_status make_model(void *self, const ex_training *run, mt_model **out) {
    const food101 *f = self;
    food101_model_options options = FOOD101_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    (void)run;
    options.depth = (int)f->depth;
    options.classes = f->pictures.dataset->class_count;
    mt_status status = food101_model_new(&options, out);
    weights.skip = "fc.";
    return status == MT_OK && f->weights ? mt_model_load_weights(*out, f->weights, &weights)
                                         : status;
}

static void introduce(void *self, const ex_training *run) {
    const food101 *f = self;
    (void)run;
    ex_report_pictures(f->pictures.dataset);
}

static void print_accuracy(void *self, const ex_training *run) {
    const food101 *f = self;
    const double *metrics = run->last.eval_metrics;
    if (!run->last.eval_samples) return;
    printf("validation accuracy %.1f %%", 100 * metrics[0]);
    if (run->info.metric_count > 1)
        printf(", among the best %d %.1f %%", FOOD101_TOP, 100 * metrics[1]);
    printf("; always guessing one class: %.1f %%\n",
           100 * ex_pictures_majority(f->pictures.dataset, NULL));
}

static void print_remedies(void *self, const ex_training *run) {
    const food101 *f = self;
    (void)run;
    if (f->depth > 18) fprintf(stderr, "  --arch resnet18      has about half the parameters\n");
}

static void close_data(void *self) {
    food101 *f = self;
    ex_dataset_free(f->pictures.dataset);
}

int main(int argc, char **argv) {
    food101 f = {.flags = EX_FLAGS_INIT, .depth = 18, .fit = EX_FIT_PAD};
    ex_program program = {.name = NAME,
                          .budget = DEFAULT_BUDGET,
                          .own = {own_flags, EX_ROWS(own_flags), &f},
                          .self = &f,
                          .open = open_data,
                          .model = make_model,
                          .introduce = introduce,
                          .result = print_accuracy,
                          .remedies = print_remedies,
                          .close = close_data};
    int exit_status;
    f.flags.image_size = 96;
    f.flags.epochs = 10;
    f.flags.schedule = MT_SCHEDULE_COSINE;
    if (!ex_training_flags(&program,
                           "a classifier of food pictures, trained inside a memory budget",
                           &f.flags, argc, argv, &exit_status))
        return exit_status;
    if (f.flags.resume && f.weights)
        return ex_training_refuse(
            &program, "--weights: not together with --resume, whose file has the weights");
    if (f.dev_mode && !f.dev_samples) f.dev_samples = DEV_SAMPLES;
    program.model_name = arch_name(f.depth);
    return ex_training_main(&program, &f.flags, argv);
}
