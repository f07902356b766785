/*
 * food101.c - trains a classifier of food pictures inside a memory budget.
 *
 *     build/examples/food101 --batch 32 --image-size 96 --budget 240MiB
 *
 * train() shows what is trained and how: pictures, a ResNet, mt_fit. Memory is looked after within mt_fit, which cuts a
 * batch into chunks that fit, and takes a step back and does it again when memory runs out all the same.
 * programs/food101_flags.c has the flags, programs/food101_lines.c what is printed, run/training.h what all programs share.
 *
 * Any folder of class folders can take the place of the pictures that come with the program, Food-101
 * itself (101 classes of 1000 photographs) included.
 */
#include "food101.h"

#include "food101_model.h"
#include "report.h"

#include <stdlib.h>

#define DATA "examples/data/food"

/* The pictures are decoded once and stay in memory as small RGB, as far as there is room. */
static mt_status open_data(food101 *f, const ex_training *run, ex_source *out) {
    mt_status status = ex_pictures_open(&f->flags, run->argv[0], DATA, (ex_fit)f->fit,
                                        (size_t)f->dev_samples, &f->pictures.dataset);
    f->pictures.side = (int)f->flags.image_size;
    *out = ex_pictures_source(&f->pictures);
    if (status != MT_OK || !f->include_nutrition) return status;
    status = ex_nutrition_open(&f->pictures, &f->nutrition);
    if (status == MT_OK) *out = ex_nutrition_source(f->nutrition);
    return status;
}

static mt_status make_model(void *self, mt_model **out) {
    const food101 *f = self;
    food101_model_options options = FOOD101_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    float *balance = f->balance ? ex_pictures_balance(f->pictures.dataset) : NULL;
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

static void close_data(void *self) {
    food101 *f = self;
    ex_nutrition_free(f->nutrition);
    ex_dataset_free(f->pictures.dataset);
}

static mt_status train(void *self, ex_training *run) {
    food101 *f = self;
    ex_source pictures;
    mt_status s = open_data(f, run, &pictures);
    if (!s) s = ex_training_data(run, &pictures);
    if (!s) s = ex_training_model(run, make_model);
    if (!s) s = mt_fit(run->trainer, &run->training, &run->fit, &run->calls, &run->at);
    if (!s && ex_training_is_done(run)) food101_result(f, run);
    return s;
}

int main(int argc, char **argv) {
    food101 f;
    ex_program program = {.name = "food101",
                          .self = &f,
                          .train = train,
                          .introduce = introduce,
                          .remedies = food101_remedies,
                          .close = close_data};
    int exit_status;
    if (!food101_flags(&f, &program, argc, argv, &exit_status)) return exit_status;
    if (f.table) return food101_table(&f, &program, argv);
    return ex_training_main(&program, &f.flags, argv);
}
