/*
 * food101.c - trains a classifier of food pictures inside a memory budget.
 *
 *     build/examples/food101 --batch 32 --image-size 96 --budget 240MiB
 *
 * The whole program, from top to bottom: the flags; then prepare() makes the data set, the model,
 * the backend (model + optimiser on a device) and the trainer; train() goes through the epochs; and
 * finish() says what came out. All that concerns memory happens inside mt_trainer_step and
 * mt_trainer_evaluate: they cut a batch into chunks that fit, and take a step back and do it again
 * when memory runs out all the same.
 *
 * What is here is the training; flags, pictures, progress bar and reports are in common/, the
 * network is in models/. Any folder of class folders can take the place of the pictures that come
 * with the program, Food-101 itself (101 classes of 1000 photographs) included.
 */
#include "common/batches.h"
#include "common/checkpoint.h"
#include "common/clock.h"
#include "common/device.h"
#include "common/explain.h"
#include "common/flags.h"
#include "common/html_report.h"
#include "common/inject.h"
#include "common/interrupt.h"
#include "common/output.h"
#include "common/pictures.h"
#include "common/progress.h"
#include "common/reexec.h"
#include "common/replay.h"
#include "common/report.h"
#include "common/tracefile.h"
#include "models/food101_model.h"

#include <math.h>
#include <memtrain/torch.h>
#include <memtrain/trainer.h>
#include <stdio.h>

#define NAME "food101"
#define DEFAULT_BUDGET "240MiB" /* room for 13 pictures of 96 x 96 at once */
#define DATA "examples/data/food"
#define DEV_SAMPLES 500 /* of --dev-mode alone */

typedef struct food101 {
    char **argv;
    ex_flags flags;
    int64_t depth, fit; /* --arch, --fit */
    int dev_mode;
    int64_t dev_samples;
    const char *weights, *save, *resume;
    ex_setting settings[EX_SETTINGS]; /* the flags that decide how the run ends */
    size_t setting_count;

    ex_device device;
    ex_dataset *pictures;
    ex_batches *batches;
    mt_model *model;
    mt_torch *torch;
    mt_backend backend;
    mt_backend_info info;
    mt_trainer *trainer;
    ex_tracefile *trace;
    ex_html_report *report;
    ex_replay *replay;
    ex_progress progress;

    ex_position at;       /* the next batch, and the steps gone through */
    uint64_t most_steps;  /* to go through at most */
    uint64_t saved_steps; /* those of the last checkpoint; UINT64_MAX: there is none */
    mt_epoch_report last; /* the last epoch that was completed */
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
    EX_FLAG("save", EX_TEXT, food101, save, "FILE",
            "write all that is needed to go on, after each epoch and when the run is stopped; the "
            "file before it becomes FILE.1",
            .accepts = "a file to write"),
    EX_FLAG("resume", EX_TEXT, food101, resume, "FILE",
            "go on where the run of that file was; --steps counts from its beginning",
            .accepts = "a file of --save"),
};

static int read_flags(food101 *f, int argc, char **argv, int *out_status) {
    const ex_command command = {NAME,
                                "a classifier of food pictures, trained inside a memory budget",
                                DEFAULT_BUDGET,
                                {own_flags, EX_ROWS(own_flags), f},
                                &f->flags};
    *f = (food101){.argv = argv,
                   .flags = EX_FLAGS_INIT,
                   .depth = 18,
                   .fit = EX_FIT_PAD,
                   .backend = MT_BACKEND_INIT};
    f->flags.image_size = 96;
    f->flags.epochs = 10;
    f->flags.schedule = MT_SCHEDULE_COSINE;
    if (!ex_flags_read(&command, argc, argv, out_status)) return 0;
    if (f->dev_mode && !f->dev_samples) f->dev_samples = DEV_SAMPLES;
    f->setting_count = ex_flags_settings(&f->flags, &command.own, f->settings);
    const char *wrong = NULL;
    if (f->resume && f->flags.replay)
        wrong = "--resume: not together with --replay, which begins at the first step";
    if (f->resume && f->weights)
        wrong = "--weights: not together with --resume, whose file has the weights";
    if (!wrong) return 1;
    fprintf(stderr, NAME ": %s\n", wrong);
    *out_status = 2;
    return 0;
}

/* ---- prepare ----------------------------------------------------------------------------------- */

/*
 * The pictures are decoded once and stay in memory as small RGB, as far as there is room; each batch is
 * rendered anew, by a thread while the step before it runs.
 */
static mt_status open_pictures(food101 *f) {
    const ex_batches_options options = ex_batches_options_of(&f->flags);
    mt_status status = ex_pictures_open(&f->flags, f->argv[0], DATA, (ex_fit)f->fit,
                                        (size_t)f->dev_samples, &f->pictures);
    if (status != MT_OK) return status;
    return ex_batches_new(f->pictures, &options, &f->batches);
}

static food101_model_options model_options(const food101 *f) {
    food101_model_options options = FOOD101_MODEL_OPTIONS_INIT;
    options.depth = (int)f->depth;
    options.classes = f->pictures->class_count;
    return options;
}

/* Pictures of an epoch's last batch; 0: it is as large as the others. */
static size_t rest_of_epoch(const food101 *f) {
    return ex_dataset_count(f->pictures, EX_TRAINING) % (size_t)f->flags.batch;
}

/* What a checkpoint says of the run beside its state. */
static ex_run this_run(const food101 *f) {
    return (ex_run){.program = NAME,
                    .seed = f->flags.seed,
                    .image_size = f->flags.image_size,
                    .threads = f->device.threads,
                    .settings = f->settings,
                    .setting_count = f->setting_count};
}

static mt_status read_weights(food101 *f) {
    mt_weights_options options = MT_WEIGHTS_OPTIONS_INIT;
    options.skip = "fc.";
    return f->weights ? mt_model_load_weights(f->model, f->weights, &options) : MT_OK;
}

/* The network, and beside it on the device its gradients and the optimiser's state. */
static mt_status make_backend(food101 *f) {
    food101_model_options model = model_options(f);
    mt_status status = food101_model_new(&model, &f->model);
    if (status == MT_OK) status = read_weights(f);
    if (status == MT_OK) status = ex_device_torch(&f->flags, &f->device, f->model, &f->torch);
    if (status == MT_OK && f->resume) status = mt_torch_load(f->torch, f->resume, NULL, 0);
    if (status == MT_OK) status = mt_torch_backend(f->torch, &f->backend);
    f->info.size = sizeof f->info;
    if (status == MT_OK) status = f->backend.describe(f->backend.self, &f->info);
    return status == MT_OK ? ex_flags_check(&f->flags, &f->info, rest_of_epoch(f)) : status;
}

static void on_trace(void *user, const char *line) {
    food101 *f = user;
    ex_tracefile_line(f->trace, line);
    ex_html_report_line(f->report, line);
}

static mt_status make_trainer(food101 *f) {
    mt_policy_options policy = ex_flags_policy(&f->flags);
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    options.policy = &policy;
    options.trace = f->trace || f->report ? on_trace : NULL;
    options.trace_user = f;
    options.batch = (size_t)f->flags.batch;
    options.seed = (uint64_t)f->flags.seed;
    options.drop_small = 1; /* a last batch too small for the network's batch norm */
    mt_status status = mt_trainer_new(&f->backend, &options, &f->trainer);
    if (status != MT_OK) return status;
    ex_trace_program(on_trace, f, NAME, f->device.threads, f->flags.image_size, f->settings,
                     f->setting_count, f->argv);
    return ex_tracefile_check(f->trace);
}

static const char *arch_name(int64_t depth) {
    const ex_word *arch = archs;
    while (arch->value != depth) arch++;
    return arch->name;
}

static void introduce(const food101 *f) {
    size_t rest = rest_of_epoch(f), least = ex_flags_least(&f->flags, &f->info);
    ex_report_pictures(f->pictures);
    ex_report_job(arch_name(f->depth), &f->flags, &f->device, &f->info);
    if (f->resume)
        mt_log(MT_LOG_INFO, "going on from '%s': epoch %llu, %zu of its batches are done",
               f->resume, (unsigned long long)f->at.epoch, f->at.index);
    if (rest && rest < least)
        mt_log(MT_LOG_INFO, "the last %zu of each epoch are left out: a chunk has at least %zu",
               rest, least);
}

static mt_status explain(food101 *f) {
    mt_batch batch;
    mt_status status = ex_batches_fill(f->batches, EX_TRAINING, 1, 0, &batch);
    return status == MT_OK ? ex_explain(&f->backend, &batch, &f->flags, &f->device) : status;
}

/*
 * The budget is too small even for what is there before the first step. A network that is made for a
 * moment without it tells the figures; the error line stays the one of the failure.
 */
static void explain_state(food101 *f) {
    char reason[512];
    size_t bytes;
    food101_model_options model = model_options(f);
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    mt_status status = mt_device_set_budget(f->device.name, 0);
    if (status == MT_OK) status = food101_model_bytes(&model, &bytes);
    if (status == MT_OK) ex_explain_state(bytes, &f->flags, &f->device);
    (void)!mt_set_error(MT_EDEVMEM, "%s", reason);
}

static mt_status prepare(food101 *f) {
    const ex_run run = this_run(f);
    mt_status status = ex_checkpoint_open(f->resume, &run, &f->at);
    f->saved_steps = UINT64_MAX;
    if (status == MT_OK) status = ex_checkpoint_check(f->save);
    if (status == MT_OK) status = ex_replay_open(f->flags.replay, &f->replay);
    if (status == MT_OK)
        status = ex_replay_check(f->replay, f->flags.seed, f->flags.image_size, f->settings,
                                 f->setting_count);
    int threads = f->resume ? f->at.threads : ex_replay_threads(f->replay);
    if (status == MT_OK) status = ex_device_open(&f->flags, DEFAULT_BUDGET, threads, &f->device);
    if (status == MT_OK) status = ex_tracefile_open(f->flags.trace, &f->trace);
    if (status == MT_OK) status = ex_html_report_open(f->flags.report, &f->report);
    if (status == MT_OK) status = open_pictures(f);
    if (status == MT_OK) status = make_backend(f);
    if (status == MT_EDEVMEM && f->flags.explain) explain_state(f);
    if (status == MT_OK) status = ex_replay_check_rungs(f->replay, f->info.rungs);
    if (status == MT_OK) introduce(f);
    if (status == MT_OK && f->flags.explain) status = explain(f);
    if (status == MT_OK) status = make_trainer(f);
    f->most_steps = ex_replay_steps(f->replay);
    if (f->flags.steps && (uint64_t)f->flags.steps < f->most_steps)
        f->most_steps = (uint64_t)f->flags.steps;
    return status;
}

/* ---- train ------------------------------------------------------------------------------------- */

static int goes_on(const food101 *f) {
    return !ex_interrupted() && f->at.steps < f->most_steps;
}

/* Between steps, where the position is that of the next batch. */
static mt_status save(food101 *f) {
    const ex_run run = this_run(f);
    if (!f->save) return MT_OK;
    f->saved_steps = f->at.steps;
    return ex_checkpoint_save(f->torch, f->save, &run, &f->at);
}

static mt_status set_lr(food101 *f, uint64_t epoch, size_t index) {
    uint64_t count = ex_batches_count(f->batches, EX_TRAINING);
    uint64_t all = (uint64_t)f->flags.epochs * count;
    return mt_torch_set_lr(f->torch, ex_flags_lr(&f->flags, (epoch - 1) * count + index, all));
}

static mt_status check_loss(const food101 *f, const mt_step_report *report) {
    if (isfinite(report->loss)) return MT_OK;
    return mt_set_error(MT_ESTATE,
                        "the loss of step %llu is not finite: there is nothing to go on from; a "
                        "smaller --lr than %g or --clip 1 may keep it finite",
                        (unsigned long long)report->step, f->flags.lr);
}

/* One optimiser step: whatever it takes, the batch goes through whole or nothing has happened. */
static mt_status train_step(food101 *f, uint64_t epoch, size_t index) {
    mt_batch batch;
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_status status = ex_batches_fill(f->batches, EX_TRAINING, epoch, index, &batch);
    if (status == MT_OK)
        status =
            ex_replay_next(f->replay, batch.count, ex_flags_least(&f->flags, &f->info), f->trainer);
    if (status == MT_OK) status = set_lr(f, epoch, index);
    if (status == MT_OK) status = ex_inject_arm(&f->flags.inject, f->at.steps + 1);
    if (status != MT_OK) return status;
    status = mt_trainer_step(f->trainer, &batch, &report);
    ex_inject_disarm(&f->flags.inject, f->at.steps + 1);
    if (status == MT_OK) f->at.index++;
    if (status != MT_OK || report.samples == 0) return status; /* 0: dropped, see introduce() */
    f->at.steps++;
    status = check_loss(f, &report);
    if (status == MT_OK) ex_progress_step(&f->progress, &report);
    return status;
}

static mt_status evaluate(food101 *f) {
    mt_batch batch;
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_status status = MT_OK;
    size_t count = ex_batches_count(f->batches, EX_VALIDATION);
    for (size_t i = 0; i < count && status == MT_OK && !ex_interrupted(); i++) {
        ex_progress_evaluate(&f->progress, i, count);
        status = ex_batches_fill(f->batches, EX_VALIDATION, 0, i, &batch);
        if (status == MT_OK) status = mt_trainer_evaluate(f->trainer, &batch, &report);
    }
    return status;
}

static mt_status train_epoch(food101 *f, uint64_t epoch) {
    mt_epoch_report report = MT_EPOCH_REPORT_INIT;
    mt_status status = MT_OK;
    size_t count = ex_batches_count(f->batches, EX_TRAINING);
    double started = ex_seconds();
    ex_progress_epoch(&f->progress, epoch, (uint64_t)f->flags.epochs, count);
    while (f->at.index < count && status == MT_OK && goes_on(f))
        status = train_step(f, epoch, f->at.index);
    if (status == MT_OK) status = evaluate(f);
    ex_progress_clear(&f->progress);
    if (status != MT_OK || ex_interrupted()) return status;
    status = mt_trainer_end_epoch(f->trainer, &report);
    if (status != MT_OK) return status;
    report.epoch = epoch; /* the trainer counts those of this process */
    f->last = report;
    ex_report_epoch(&report, f->info.metric_names[0], ex_seconds() - started);
    if (f->at.index == count) f->at = (ex_position){epoch + 1, 0, f->at.steps, f->at.threads};
    return save(f);
}

static mt_status train(food101 *f) {
    mt_status status = MT_OK;
    while (f->at.epoch <= (uint64_t)f->flags.epochs && status == MT_OK && goes_on(f))
        status = train_epoch(f, f->at.epoch);
    return status == MT_OK && f->saved_steps != f->at.steps ? save(f) : status;
}

/* ---- finish ------------------------------------------------------------------------------------ */

static void print_accuracy(const food101 *f) {
    if (!f->last.eval_samples) return;
    printf("validation accuracy %.1f %%", 100 * f->last.eval_metrics[0]);
    if (f->info.metric_count > 1)
        printf(", among the best %d %.1f %%", FOOD101_TOP, 100 * f->last.eval_metrics[1]);
    printf("; always guessing one class: %.1f %%\n", 100 * ex_pictures_majority(f->pictures, NULL));
}

static mt_status finish(food101 *f) {
    mt_run_report report = MT_RUN_REPORT_INIT;
    mt_status status = mt_trainer_finish(f->trainer, &report);
    if (status != MT_OK) return status;
    ex_inject_finish(&f->flags.inject, f->at.steps);
    if (ex_interrupted())
        printf("stopped by %s after step %llu, which is done; %s%s\n",
               ex_interrupt_name(ex_interrupted()), (unsigned long long)f->at.steps,
               f->save ? "go on with --resume " : "nothing was saved", f->save ? f->save : "");
    else
        print_accuracy(f);
    if (report.steps) ex_report_run(&report, (size_t)f->flags.batch);
    ex_report_resident(&f->flags, &f->device);
    return MT_OK;
}

/* The page says in one line how the run ended. */
static mt_status close_report(food101 *f, mt_status status, const char *reason) {
    char text[64];
    int stopped_by = ex_interrupted();
    if (status != MT_OK) return ex_html_report_close(f->report, EX_HTML_FAILED, reason);
    snprintf(text, sizeof text, "stopped by %s after step %llu", ex_interrupt_name(stopped_by),
             (unsigned long long)f->at.steps);
    return ex_html_report_close(f->report, stopped_by ? EX_HTML_STOPPED : EX_HTML_DONE,
                                stopped_by ? text : NULL);
}

/* In the reverse order; each takes a NULL. */
static mt_status clean_up(food101 *f) {
    mt_trainer_free(f->trainer);
    mt_torch_free(f->torch);
    mt_model_free(f->model);
    ex_batches_free(f->batches);
    ex_dataset_free(f->pictures);
    ex_replay_free(f->replay);
    return ex_tracefile_close(f->trace);
}

/* The first failure is what the exit status says; each has its line. */
static mt_status and_also(mt_status status, mt_status other) {
    if (other != MT_OK) fprintf(stderr, NAME ": %s\n", mt_last_error());
    return status != MT_OK ? status : other;
}

/* What a run has to say at its end, whatever that is; the status of all of it. */
static mt_status end(food101 *f, mt_status status) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", status != MT_OK ? mt_last_error() : "");
    if (status != MT_OK)
        ex_report_failure(NAME, status, f->trainer, f->torch != NULL, &f->flags, &f->device);
    if (status == MT_EDEVMEM && f->depth > 18)
        fprintf(stderr, "  --arch resnet18      has at most half the parameters\n");
    /* A step that failed has changed nothing: the trace ends like that of any run. */
    if (status != MT_OK && f->trainer) (void)!mt_trainer_finish(f->trainer, NULL);
    status = and_also(status, close_report(f, status, reason));
    status = and_also(status, clean_up(f));
    return ex_output_end(NAME) || status != MT_OK ? status : MT_EIO;
}

int main(int argc, char **argv) {
    food101 f;
    int exit_status;
    if (!read_flags(&f, argc, argv, &exit_status)) return exit_status;
    ex_reexec_passive(argv);
    ex_interrupt_catch();
    ex_progress_init(&f.progress, (ex_progress_mode)f.flags.progress, "pictures", stderr);
    mt_set_log(ex_progress_log, &f.progress);

    mt_status status = prepare(&f);
    if (status == MT_OK) status = train(&f);
    if (status == MT_OK) status = finish(&f);
    return ex_exit_status(end(&f, status), ex_interrupted());
}
