/*
 * train.c - a folder of pictures to a trained ResNet-18 in a memory budget: every call in its order, in main().
 *
 *     build/examples/train --data DIR --budget 240MiB --epochs 10
 */
#include "food101_model.h"
#include "needed.h"
#include "options.h"
#include "output.h"
#include "program_path.h"
#include "report.h"
#include "writable.h"

#include <memtrain/torch_fit.h>
#include <signal.h>
#include <stdio.h>

#define NAME "train"
#define WEIGHTS "resnet18.safetensors"
enum { BATCH = 32, SIDE = 96, PIXELS = 3 * SIDE * SIDE };

static struct run {
    const char *data;
    size_t budget;
    int64_t epochs;
    int help;
    ex_dataset *pictures;
    uint64_t epoch;               /* in each one pictures are cut a little otherwise */
    float pixels[BATCH * PIXELS]; /* of one batch */
    int64_t labels[BATCH];
    mt_tensor *tensors[2]; /* over these two */
} r = {.data = "examples/data/food", .budget = (size_t)240 << 20, .epochs = 10};
static volatile sig_atomic_t stop;
static ex_split splits[] = {EX_TRAINING, EX_VALIDATION};

static int read_budget(const char *text, void *target) {
    return mt_parse_size(text, 0, target) == MT_OK;
}

static const ex_option rows[] = {
    {.section = "Flags"},
    EX_FLAG("data", EX_TEXT, struct run, data, "DIR", "a folder of class folders"),
    EX_FLAG("budget", EX_PARSED, struct run, budget, "SIZE", "most memory of tensors",
            .read = read_budget, .by_default = "240MiB", .accepts = "a size such as 240MiB"),
    EX_FLAG("epochs", EX_WHOLE, struct run, epochs, "N", "times through the pictures", .least = 1,
            .most = 100000),
    EX_FLAG("help", EX_SWITCH, struct run, help, NULL, "this list", .most = 1),
};

static mt_status load(void *self, const size_t *index, size_t count, mt_batch *out) {
    static mt_torch_batch data = {sizeof data, r.tensors, 2};
    const ex_split split = *(const ex_split *)self;
    const int64_t shape[] = {(int64_t)count, 3, SIDE, SIDE};
    ex_error error;
    for (size_t i = 0; i < count; i++) {
        size_t sample = r.pictures->members[split][index[i]];
        r.labels[i] = (int64_t)r.pictures->samples[sample].label;
        if (ex_dataset_picture(r.pictures, sample, r.epoch, SIDE, split == EX_TRAINING,
                               r.pixels + i * PIXELS, &error) != EX_OK)
            return mt_set_error(MT_EINVAL, "--data: %s", error.text);
    }
    mt_tensor_free(r.tensors[0]), mt_tensor_free(r.tensors[1]); /* of the batch before */
    mt_status s = mt_tensor_from_memory(r.pixels, MT_FLOAT32, 4, shape, &r.tensors[0]);
    if (!s) s = mt_tensor_from_memory(r.labels, MT_INT64, 1, shape, &r.tensors[1]);
    return out->data = &data, s;
}

static mt_status begin(void *user, const mt_fit_report *at) {
    return (void)user, r.epoch = at->epoch, MT_OK;
}

static mt_status print(void *user, const mt_fit_report *at, const mt_epoch_report *e) {
    printf("epoch %d  loss %.4f  validation loss %.4f  accuracy %.1f %%%s\n", (int)e->epoch,
           e->loss, e->eval_loss, 100 * e->eval_metrics[0], at->is_best ? "  the best" : "");
    return (void)user, fflush(stdout), MT_OK;
}

static void print_line(void *user, mt_log_level level, const char *text) {
    if (level != MT_LOG_DEBUG) (void)user, fprintf(stderr, NAME ": %s\n", text);
}

static void on_signal(int number) {
    stop = number;
}

static mt_status open_pictures(const char *argv0) {
    static char found[4096];
    const ex_dataset_options options = {.keep_side = SIDE * 5 / 4};
    ex_error error;
    if (ex_find_in_tree(argv0, r.data, found, sizeof found)) r.data = found;
    if (ex_dataset_open(r.data, &options, &r.pictures, &error) == EX_OK)
        return ex_report_pictures(r.pictures), MT_OK;
    return mt_set_error(MT_EINVAL, "--data: %s", error.text);
}

int main(int argc, char **argv) {
    mt_reexec_passive(argv);      /* threads sleep while they wait */
    mt_set_log(print_line, NULL); /* the library itself prints nothing */
    const ex_table tables[] = {{rows, EX_ROWS(rows), &r}, {NULL, 0, NULL}};
    ex_error e;
    if (ex_options_parse(NAME, tables, argc, argv, &e)) return fprintf(stderr, "%s\n", e.text), 2;
    if (r.help) return ex_options_tell(NAME, "a folder of pictures to a trained ResNet-18", tables);
    food101_model_options network = FOOD101_MODEL_OPTIONS_INIT;
    mt_torch_options torch_options = MT_TORCH_OPTIONS_INIT; /* AdamW, on the CPU */
    mt_trainer_options trainer_options = MT_TRAINER_OPTIONS_INIT;
    mt_model *model = NULL;
    mt_torch *torch = NULL;
    mt_trainer *trainer = NULL;
    mt_backend backend = MT_BACKEND_INIT;
    mt_schedule cosine = MT_SCHEDULE_INIT; /* from 1e-3, its default, over the whole run */
    mt_fit_callbacks callbacks = MT_FIT_CALLBACKS_INIT;
    mt_fit_options options = MT_FIT_OPTIONS_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    char why[4096] = "", peak[32];
    mt_status s = mt_device_set_budget("cpu", r.budget); /* before the first tensor */
    if (!s) s = ex_check_writable("weights", WEIGHTS);   /* now, and not after the last epoch */
    if (!s) s = ex_check_writable("checkpoint", "train.ckpt");
    if (!s) s = open_pictures(argv[0]);
    if (!s) s = mt_torch_seed(1);
    /* Batch norm needs two pictures: a last batch of one is dropped. */
    if (!s) network.classes = r.pictures->class_count, trainer_options.drop_small = 1;
    if (!s) s = food101_model_new(&network, &model);
    if (!s) s = mt_torch_new(model, &torch_options, &torch); /* lays out all memory that stays */
    if (!s) s = mt_torch_backend(torch, &backend);
    if (!s) s = mt_trainer_new(&backend, &trainer_options, &trainer);
    if (!s) s = mt_torch_callbacks(torch, &callbacks); /* save, load and set_lr */
    mt_source training = {sizeof training, &splits[0], 0, load, NULL}, validation = training;
    validation.self = &splits[1];
    if (r.pictures) training.samples = r.pictures->member_count[EX_TRAINING];
    if (r.pictures) validation.samples = r.pictures->member_count[EX_VALIDATION];
    cosine.kind = MT_SCHEDULE_COSINE, callbacks.begin = begin, callbacks.epoch = print;
    options.batch = BATCH, options.epochs = (uint64_t)r.epochs, options.schedule = &cosine;
    options.validation = validation.samples ? &validation : NULL;
    options.last = "train.ckpt", options.stop = &stop; /* resume = "train.ckpt" goes on from it */
    signal(SIGINT, on_signal), signal(SIGTERM, on_signal);
    if (!s) s = mt_fit(trainer, &training, &options, &callbacks, NULL);
    if (!s) s = mt_trainer_finish(trainer, &run);
    if (!s) s = mt_model_save_weights(model, WEIGHTS);
    if (!s)
        printf("%s in chunks of %zu to %zu, peak %s: " WEIGHTS "\n", stop ? "stopped" : "done",
               run.smallest_chunk, run.largest_chunk,
               mt_format_size(run.peak_bytes, peak, sizeof peak));
    if (s == MT_EDEVMEM) mt_trainer_explain(trainer, why, sizeof why);
    if (s) fprintf(stderr, NAME ": %s\n%s", mt_last_error(), why);
    mt_trainer_free(trainer), mt_torch_free(torch), mt_model_free(model);
    const ex_needed needed = {food101_model_make, &network, &torch_options, &training, BATCH};
    if (s == MT_EDEVMEM) ex_needed_print(NAME, &needed, r.budget);
    mt_tensor_free(r.tensors[0]), mt_tensor_free(r.tensors[1]), ex_dataset_free(r.pictures);
    return s == MT_EINVAL ? 2 : s == MT_EDEVMEM ? 3 : s || !ex_output_end(NAME);
}
