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
#include "checkpoint.h"
#include "interrupt.h"
#include "nutrition.h"
#include "pictures.h"
#include "report.h"
#include "training.h"
#include "food101_model.h"

#include <memtrain/torch.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME "food101"
#define DEFAULT_BUDGET "240MiB" /* room for 12 pictures of 96 x 96 at once */
#define TABLE_BUDGET "300MiB"   /* the batch of 24 fits at once, that of 32 does not */
#define DATA "examples/data/food"
#define DEV_SAMPLES 500 /* of --dev-mode alone */

typedef struct food101 {
    ex_flags flags;
    int64_t size, depth, fit; /* --size, --arch, --fit */
    int dev_mode, include_nutrition, balance, table;
    int64_t dev_samples;
    const char *weights;
    ex_pictures pictures;
    ex_nutrition *nutrition; /* NULL: not included */
} food101;

/* ---- flags ------------------------------------------------------------------------------------- */

static const ex_word archs[] = {{"resnet18", 18}, {"resnet34", 34}, {"resnet50", 50}, {NULL, 0}};
static const ex_word profiles[] = {{"ultra-safe", 4}, {"safe", 8},      {"moderate", 16},
                                   {"target", 24},    {"original", 32}, {NULL, 0}};
static const ex_word fits[] = {
    {"pad", EX_FIT_PAD}, {"crop", EX_FIT_CROP}, {"squash", EX_FIT_SQUASH}, {NULL, 0}};

static const ex_option own_flags[] = {
    {.section = "Food recognition"},
    EX_FLAG("size", EX_WORD, food101, size, "small|published",
            "published: --arch resnet50 --image-size 224 --budget auto, where these are not given",
            .words = ex_size_words),
    EX_FLAG("arch", EX_WORD, food101, depth, "NAME", "resnet18, resnet34 or resnet50",
            .words = archs, .decides = 1),
    EX_FLAG("profile", EX_WORD, food101, flags.batch, "NAME",
            "--batch by name: ultra-safe 4, safe 8, moderate 16, target 24, original 32",
            .words = profiles),
    EX_FLAG("fit", EX_WORD, food101, fit, "HOW",
            "how a picture becomes square: pad (clip art), crop (photographs) or squash",
            .words = fits, .decides = 1),
    EX_FLAG("table", EX_SWITCH, food101, table, NULL,
            "instead of one run, a table of short ones (3 epochs): which batches fit at once, and "
            "how fast they are; in " TABLE_BUDGET " where --budget is not given",
            .most = 1),
    EX_FLAG("class-weights", EX_SWITCH, food101, balance, NULL,
            "weigh pictures so that each class counts alike, however many it has", .most = 1,
            .decides = 1),
    EX_FLAG("include-nutrition", EX_SWITCH, food101, include_nutrition, NULL,
            "train a second head, on calories, protein, carbohydrates, fat and mass made up from "
            "DIR/nutrition.json and the size of what is drawn",
            .most = 1, .decides = 1),
    EX_FLAG("dev-mode", EX_SWITCH, food101, dev_mode, NULL, "as --dev-samples 500", .most = 1),
    EX_FLAG("dev-samples", EX_WHOLE, food101, dev_samples, "N",
            "use so many pictures only, evenly from the classes, those for validation (one in "
            "five) among them; 0: all",
            .most = 1000000000, .decides = 1),
    EX_FLAG(
        "weights", EX_TEXT, food101, weights, "FILE",
        "begin with the weights of a safetensors file, of torchvision's or timm's network of that "
        "name; the last layer (fc) is trained anew, since its classes are others",
        .accepts = "a safetensors file of the network's weights", .decides = 1,
        .file = EX_FILE_READ),
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
    if (status != MT_OK || !f->include_nutrition) return status;
    status = ex_nutrition_open(&f->pictures, &f->nutrition);
    if (status == MT_OK) *out = ex_nutrition_source(f->nutrition);
    return status;
}

static mt_status make_model(void *self, const ex_training *run, mt_model **out) {
    const food101 *f = self;
    food101_model_options options = FOOD101_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    float *balance = f->balance ? ex_pictures_balance(f->pictures.dataset) : NULL;
    (void)run;
    if (f->balance && !balance) return mt_set_error(MT_ENOMEM, "out of host memory");
    options.depth = (int)f->depth;
    options.classes = f->pictures.dataset->class_count;
    options.nutrition = f->include_nutrition;
    options.class_weights = balance;
    mt_status status = food101_model_new(&options, out);
    free(balance);
    weights.skip = "fc.";
    return status == MT_OK ? ex_checkpoint_weights(*out, f->weights, &weights) : status;
}

static void introduce(void *self, const ex_training *run) {
    const food101 *f = self;
    (void)run;
    ex_report_pictures(f->pictures.dataset);
}

static void print_accuracy(const food101 *f, const ex_training *run) {
    const double *metrics = run->last.eval_metrics;
    printf("validation accuracy %.1f %%", 100 * metrics[0]);
    if (f->pictures.dataset->class_count > FOOD101_TOP)
        printf(", among the best %d %.1f %%", FOOD101_TOP, 100 * metrics[1]);
    printf("; always guessing one class: %.1f %%\n",
           100 * ex_pictures_majority(f->pictures.dataset, NULL));
}

/* The mean absolute errors, the last of the metrics, beside those of guessing the mean. */
static void print_nutrition(const food101 *f, const ex_training *run) {
    double guess[EX_NUTRIENTS];
    const double *errors = run->last.eval_metrics + run->info.metric_count - EX_NUTRIENTS;
    if (ex_nutrition_guess(f->nutrition, guess) != MT_OK) return;
    printf("mean absolute errors on made-up nutrition (always guessing the mean):");
    for (int i = 0; i < EX_NUTRIENTS; i++)
        printf("%s %s %.1f (%.1f)", i ? "," : "", ex_nutrient_names[i], errors[i], guess[i]);
    printf("\n");
}

static void print_result(void *self, const ex_training *run) {
    const food101 *f = self;
    if (!run->last.eval_samples) return;
    print_accuracy(f, run);
    if (f->nutrition) print_nutrition(f, run);
}

static void print_remedies(void *self, const ex_training *run) {
    const food101 *f = self;
    (void)run;
    if (f->depth > 18) fprintf(stderr, "  --arch resnet18      has about half the parameters\n");
}

static void close_data(void *self) {
    food101 *f = self;
    ex_nutrition_free(f->nutrition);
    ex_dataset_free(f->pictures.dataset);
}

/* ---- --table ----------------------------------------------------------------------------------- */

/* Numbers of a run that fitted. */
static void print_row(const ex_row *row) {
    char peak[32], chunks[32];
    size_t least = row->report.smallest_chunk, most = row->report.largest_chunk;
    snprintf(chunks, sizeof chunks, least == most ? "%zu" : "%zu to %zu", least, most);
    printf("%-14s %-14s %16.2f %14s\n", chunks, "ok", 50 * row->seconds / (double)row->samples,
           mt_format_size(row->report.peak_bytes, peak, sizeof peak));
}

/* One batch, at once with nothing saved, as the script had it, or as the budget allows. */
static mt_status run_row(food101 *f, ex_program *program, char **argv, const ex_word *profile,
                         int at_once) {
    ex_row row;
    const int64_t checkpointing = f->flags.checkpointing;
    f->flags.batch = profile->value;
    f->flags.micro_batch = at_once ? profile->value : 0;
    if (at_once) f->flags.checkpointing = EX_CHECKPOINTING_OFF;
    f->flags.by_hand = at_once;
    ex_training_row(program, &f->flags, argv, &row);
    f->flags.checkpointing = checkpointing;
    f->nutrition = NULL; /* freed with the run */
    f->pictures.dataset = NULL;
    if (ex_interrupted()) return MT_OK; /* half a run has no figures */
    printf("%-12s %6lld   ", profile->name, (long long)profile->value);
    if (row.status == MT_OK)
        print_row(&row);
    else if (row.status == MT_EDEVMEM)
        printf("%-14lld does not fit\n", (long long)profile->value);
    fflush(stdout);
    return row.status == MT_EDEVMEM ? MT_OK : row.status;
}

/* Several runs have no one file. @return 0, or the exit status */
static int check_table(const ex_flags *flags, const ex_program *program) {
    if (flags->save || flags->resume || flags->trace || flags->report || flags->replay)
        return ex_training_refuse(program, "--table: not together with --save, --resume, --trace, "
                                           "--report or --replay, which are of one run");
    if (ex_processes_asked(flags) > 1)
        return ex_training_refuse(program, "--table: not by several processes, which would share "
                                           "the machine that it measures");
    if (!flags->epochs)
        return ex_training_refuse(
            program, "--epochs: '0' is not accepted; accepted: at least 1, for --table");
    return 0;
}

/* The table of the script that this follows: each profile's batch at once; and the last one in chunks. */
static int print_table(food101 *f, ex_program *program, char **argv) {
    mt_status status = MT_OK;
    const ex_word *profile = profiles;
    program->budget = TABLE_BUDGET;
    if (f->flags.epochs > 3) f->flags.epochs = 3;
    mt_reexec_passive(argv);
    printf("%-12s %6s   %-14s %-14s %16s %14s\n", "profile", "batch", "chunks", "status",
           "s / 50 pictures", "peak");
    for (; profile->name && status == MT_OK && !ex_interrupted(); profile++)
        status = run_row(f, program, argv, profile, 1);
    if (status == MT_OK && !ex_interrupted()) status = run_row(f, program, argv, profile - 1, 0);
    return ex_exit_status(status, ex_interrupted());
}

/* A size is a set of defaults. */
static food101 defaults(int64_t size) {
    const int is_published = size == EX_SIZE_PUBLISHED;
    food101 f = {
        .flags = EX_FLAGS_INIT, .size = size, .depth = is_published ? 50 : 18, .fit = EX_FIT_PAD};
    f.flags.image_size = is_published ? 224 : 96;
    f.flags.epochs = 10;
    f.flags.schedule = MT_SCHEDULE_COSINE;
    return f;
}

int main(int argc, char **argv) {
    food101 f;
    int64_t size = EX_SIZE_SMALL;
    ex_program program = {.name = NAME,
                          .budget = DEFAULT_BUDGET,
                          .own = {own_flags, EX_ROWS(own_flags), &f},
                          .self = &f,
                          .open = open_data,
                          .model = make_model,
                          .introduce = introduce,
                          .result = print_result,
                          .remedies = print_remedies,
                          .close = close_data};
    int exit_status;
    for (int pass = 0; pass < 2; pass++, size = f.size) { /* for the size, and for the rest */
        f = defaults(size);
        if (!ex_training_flags(&program,
                               "a classifier of food pictures, trained inside a memory budget",
                               &f.flags, argc, argv, &exit_status))
            return exit_status;
    }
    if (f.size == EX_SIZE_PUBLISHED) program.budget = NULL;
    if (f.flags.resume && f.weights)
        return ex_training_refuse(
            &program, "--weights: not together with --resume, whose file has the weights");
    if (f.dev_mode && !f.dev_samples) f.dev_samples = DEV_SAMPLES;
    program.model_name = arch_name(f.depth);
    if (f.table) exit_status = check_table(&f.flags, &program);
    if (exit_status) return exit_status;
    if (f.table) return print_table(&f, &program, argv);
    return ex_training_main(&program, &f.flags, argv);
}
