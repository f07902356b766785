/*
 * train_script.c - trains a model from Python, a TorchScript file, inside a memory budget.
 *
 *     torch.jit.script(net).save("net.pt")                             (Python)
 *     build/examples/train_script --model net.pt --data DIR --image-size 96 --budget 300MiB \
 *         --save-script trained.pt --save-weights trained.safetensors
 *     net = torch.jit.load("trained.pt")                               (Python)
 *
 * The network is a classifier of pictures: its forward has one input, float [samples, 3, side, side], and
 * gives logits of as many classes as DIR has folders. The rest is as in food101.c; docs/script.md says which
 * networks can be had this way.
 */
#include "checkpoint.h"
#include "pictures.h"
#include "processes.h"
#include "report.h"
#include "training.h"
#include "writable.h"

#include <memtrain/script.h>
#include <memtrain/torch.h>
#include <stdio.h>
#include <string.h>

#define NAME "train_script"
#define DATA "examples/data/food"
#define WRITE "torch.jit.script(net).save(FILE)"

typedef struct train_script {
    ex_flags flags;
    const char *model, *weights, *save_script, *save_weights;
    int64_t fit;
    ex_pictures pictures;
} train_script;

/* ---- flags ------------------------------------------------------------------------------------- */

static const ex_word fits[] = {
    {"pad", EX_FIT_PAD}, {"crop", EX_FIT_CROP}, {"squash", EX_FIT_SQUASH}, {NULL, 0}};

static const ex_option own_flags[] = {
    {.section = "The model"},
    EX_FLAG("model", EX_TEXT, train_script, model, "FILE",
            "the network, a TorchScript file that " WRITE
            " has written in Python; it must be given",
            .accepts = "a TorchScript file", .file = EX_FILE_READ),
    EX_FLAG(
        "weights", EX_TEXT, train_script, weights, "FILE",
        "begin with the weights of a safetensors file, in the place of those in the model's file",
        .accepts = "a safetensors file of the network's weights", .decides = 1,
        .file = EX_FILE_READ),
    EX_FLAG("save-script", EX_TEXT, train_script, save_script, "FILE",
            "write the trained network as TorchScript, for torch.jit.load",
            .file = EX_FILE_REPLACED),
    EX_FLAG("save-weights", EX_TEXT, train_script, save_weights, "FILE",
            "write the trained weights as safetensors, under the names that they have in Python",
            .file = EX_FILE_REPLACED),
    EX_FLAG("fit", EX_WORD, train_script, fit, "HOW",
            "how a picture becomes square: pad (clip art), crop (photographs) or squash",
            .words = fits, .decides = 1),
};

/* ---- what the program adds to a run ------------------------------------------------------------ */

static mt_status open_data(train_script *t, const ex_training *run, ex_source *out) {
    mt_status status = ex_check_writable("--save-script", t->save_script);
    if (status == MT_OK) status = ex_check_writable("--save-weights", t->save_weights);
    if (status == MT_OK)
        status = ex_pictures_open(&t->flags, run->argv[0], DATA, (ex_fit)t->fit, 0,
                                  &t->pictures.dataset);
    t->pictures.side = (int)t->flags.image_size;
    *out = ex_pictures_source(&t->pictures);
    return status;
}

/* A file that cannot be trained is a flag that is wrong. */
static mt_status wrong_model(mt_status status) {
    if (status != MT_EINVAL && status != MT_EIO) return status;
    return mt_set_error(MT_EINVAL, "--model: %s", mt_last_error());
}

/* Tried on two samples, so that a network for other classes or sizes is told of before anything is trained. */
static mt_status make_model(void *self, mt_model **out) {
    const train_script *t = self;
    const int64_t side = t->flags.image_size, shape[] = {3, side, side};
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    options.classes = t->pictures.dataset->class_count;
    options.input_shape = shape;
    options.input_dims = 3;
    mt_status status = mt_script_load(t->model, &options, out);
    if (status != MT_OK) return wrong_model(status);
    return ex_checkpoint_weights(*out, t->weights, NULL);
}

static void introduce(void *self, const ex_training *run) {
    const train_script *t = self;
    (void)run;
    ex_report_pictures(t->pictures.dataset);
}

/*
 * What was trained is written after the last epoch; a run that is stopped goes on from its --save. Several processes
 * have the same weights: the first one writes them.
 */
static mt_status save(const train_script *t, const ex_training *run) {
    mt_status status = MT_OK;
    if (!run->at.steps || !ex_processes_is_first()) return MT_OK;
    if (t->save_weights) status = mt_model_save_weights(run->model, t->save_weights);
    if (status == MT_OK && t->save_script) status = mt_script_save(run->model, t->save_script);
    return status;
}

static void print_result(const train_script *t, const ex_training *run) {
    const double *metrics = run->last.eval_metrics;
    if (run->last.eval_samples) {
        printf("validation accuracy %.1f %%", 100 * metrics[0]);
        if (run->info.metric_count > 1) printf(", among the best 5 %.1f %%", 100 * metrics[1]);
        printf("; always guessing one class: %.1f %%\n",
               100 * ex_pictures_majority(t->pictures.dataset, NULL));
    }
    if (!run->at.steps) return;
    if (t->save_weights) printf("weights are in %s\n", t->save_weights);
    if (t->save_script) printf("the trained network is in %s\n", t->save_script);
}

static void close_data(void *self) {
    train_script *t = self;
    ex_dataset_free(t->pictures.dataset);
}

static mt_status train(void *self, ex_training *run) {
    train_script *t = self;
    ex_source pictures;
    mt_status s = open_data(t, run, &pictures);
    if (!s) s = ex_training_data(run, &pictures);
    if (!s) s = ex_training_model(run, make_model);
    if (!s) s = mt_fit(run->trainer, &run->training, &run->fit, &run->calls, &run->at);
    if (!s && ex_training_is_done(run)) s = save(t, run);
    if (!s && ex_training_is_done(run)) print_result(t, run);
    return s;
}

int main(int argc, char **argv) {
    train_script t = {.flags = EX_FLAGS_INIT, .fit = EX_FIT_PAD};
    ex_program program = {.name = NAME,
                          .own = {own_flags, EX_ROWS(own_flags), &t},
                          .self = &t,
                          .train = train,
                          .introduce = introduce,
                          .close = close_data};
    int exit_status;
    t.flags.schedule = MT_SCHEDULE_COSINE;
    if (!ex_training_flags(&program,
                           "a model from Python (TorchScript), trained inside a memory budget",
                           &t.flags, argc, argv, &exit_status))
        return exit_status;
    if (!t.model)
        return ex_training_refuse(&program, "--model: a TorchScript file must be given; " WRITE
                                            " writes one in Python");
    if (t.flags.resume && t.weights)
        return ex_training_refuse(
            &program, "--weights: not together with --resume, whose file has the weights");
    program.model_name = strrchr(t.model, '/') ? strrchr(t.model, '/') + 1 : t.model;
    return ex_training_main(&program, &t.flags, argv);
}
