/*
 * food101_flags.c - the command line of food101; see food101.h.
 */
#include "food101.h"

#define DEFAULT_BUDGET "240MiB" /* room for 12 pictures of 96 x 96 at once */
#define TABLE_BUDGET "300MiB"   /* the batch of 24 fits at once, that of 32 does not */
#define DEV_SAMPLES 500         /* of --dev-mode alone */

static const ex_word archs[] = {{"resnet18", 18}, {"resnet34", 34}, {"resnet50", 50}, {NULL, 0}};
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
            .words = food101_profiles),
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

int food101_flags(food101 *f, ex_program *program, int argc, char **argv, int *out_status) {
    int64_t size = EX_SIZE_SMALL;
    program->budget = DEFAULT_BUDGET;
    program->own = (ex_table){own_flags, EX_ROWS(own_flags), f};
    for (int pass = 0; pass < 2; pass++, size = f->size) { /* for the size, and for the rest */
        *f = defaults(size);
        if (!ex_training_flags(program,
                               "a classifier of food pictures, trained inside a memory budget",
                               &f->flags, argc, argv, out_status))
            return 0;
    }
    if (f->size == EX_SIZE_PUBLISHED) program->budget = NULL;
    if (f->table) program->budget = TABLE_BUDGET;
    if (f->dev_mode && !f->dev_samples) f->dev_samples = DEV_SAMPLES;
    program->model_name = arch_name(f->depth);
    *out_status = 0;
    if (f->flags.resume && f->weights)
        *out_status = ex_training_refuse(
            program, "--weights: not together with --resume, whose file has the weights");
    else if (f->table)
        *out_status = check_table(&f->flags, program);
    return !*out_status;
}
