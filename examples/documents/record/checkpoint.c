/*
 * checkpoint.c - the position as JSON in a checkpoint's metadata; see checkpoint.h.
 */
#include "checkpoint.h"

#include <errno.h>
#include <math.h>
#include <memtrain/safetensors.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int ex_position_is_better(const ex_position *position, double metric) {
    return isfinite(metric) && (!position->best_epoch || metric > position->best);
}

mt_status ex_checkpoint_save(mt_torch *torch, const char *path, const ex_run *run,
                             const ex_position *position) {
    mt_torch_save_options options = MT_TORCH_SAVE_OPTIONS_INIT;
    json_t *object = json_pack(
        "{ss sI sI sI sI sI sI si sI sI sf sI so}", "program", run->program, "epoch",
        (json_int_t)position->epoch, "batches", (json_int_t)position->index, "steps",
        (json_int_t)position->steps, "replans", (json_int_t)position->replans, "budget",
        (json_int_t)position->budget, "chunks", (json_int_t)position->chunks, "threads",
        run->threads, "seed", (json_int_t)run->seed, "image_size", (json_int_t)run->image_size,
        "best", position->best, "best_epoch", (json_int_t)position->best_epoch, "settings",
        ex_settings_json(run->settings, run->setting_count));
    char *extra = object ? json_dumps(object, JSON_COMPACT) : NULL;
    options.extra = extra;
    mt_status status = extra ? mt_torch_save(torch, path, &options)
                             : mt_set_error(MT_ENOMEM, "out of host memory for --save");
    free(extra);
    json_decref(object);
    return status;
}

static mt_status take_position(const char *path, const json_t *object, const ex_run *run,
                               ex_position *out) {
    const json_t *epoch = json_object_get(object, "epoch"),
                 *done = json_object_get(object, "batches"),
                 *steps = json_object_get(object, "steps");
    const char *program = json_string_value(json_object_get(object, "program"));
    if (!program || !json_is_integer(epoch) || !json_is_integer(done) || !json_is_integer(steps) ||
        json_integer_value(epoch) < 1 || json_integer_value(done) < 0 ||
        json_integer_value(steps) < 0)
        return mt_set_error(MT_EINVAL, "--resume: '%s' does not say where its run was", path);
    if (strcmp(program, run->program) != 0)
        return mt_set_error(MT_EINVAL, "--resume: '%s' is a run of %s", path, program);
    *out = (ex_position){
        .epoch = (uint64_t)json_integer_value(epoch),
        .index = (size_t)json_integer_value(done),
        .steps = (uint64_t)json_integer_value(steps),
        .replans = (uint64_t)json_integer_value(json_object_get(object, "replans")),
        .budget = (uint64_t)json_integer_value(json_object_get(object, "budget")),
        .chunks = json_integer_value(json_object_get(object, "chunks")),
        .threads = (int)json_integer_value(json_object_get(object, "threads")),
        .best = json_number_value(json_object_get(object, "best")),
        .best_epoch = (uint64_t)json_integer_value(json_object_get(object, "best_epoch"))};
    return MT_OK;
}

static const char *value_of(const ex_run *run, const char *name) {
    for (size_t i = 0; i < run->setting_count; i++)
        if (strcmp(run->settings[i].name, name) == 0) return run->settings[i].value;
    return NULL;
}

/* A rate that goes down over all epochs would be another one, in those that are done too. A constant one has no such setting. */
static mt_status check_epochs(const char *path, const json_t *settings, const ex_run *run) {
    const char *now = value_of(run, "epochs"), *schedule = value_of(run, "schedule");
    const char *then = json_string_value(json_object_get(settings, "epochs"));
    if (!now || !*now || !then || !schedule || strcmp(now, then) == 0) return MT_OK;
    return mt_set_error(MT_EINVAL,
                        "--epochs: %s, but '%s' was written with %s, over which --schedule %s goes "
                        "down; a run with --schedule constant goes on for more",
                        now, path, then, schedule);
}

static mt_status take_run(const char *path, const json_t *object, const ex_run *run,
                          ex_position *out) {
    const ex_earlier earlier = {path, "a run that goes on", 1};
    mt_status status = take_position(path, object, run, out);
    if (status == MT_OK)
        status = ex_settings_same_number(&earlier, "seed", run->seed,
                                         json_integer_value(json_object_get(object, "seed")));
    if (status == MT_OK)
        status = ex_settings_same_number(&earlier, "image-size", run->image_size,
                                         json_integer_value(json_object_get(object, "image_size")));
    const json_t *settings = json_object_get(object, "settings");
    if (status == MT_OK) status = check_epochs(path, settings, run);
    if (status != MT_OK) return status;
    return ex_settings_same(&earlier, settings, run->settings, run->setting_count);
}

/* A path that is wrong is a flag that is wrong. */
static mt_status cannot_open(const char *flag) {
    return mt_set_error(MT_EINVAL, "%s: %s", flag, mt_last_error());
}

mt_status ex_checkpoint_weights(mt_model *model, const char *path,
                                const mt_weights_options *options) {
    if (!path) return MT_OK;
    mt_status status = mt_model_load_weights(model, path, options);
    return status == MT_EIO || status == MT_EINVAL ? cannot_open("--weights") : status;
}

mt_status ex_checkpoint_open(const char *path, const ex_run *run, ex_position *out) {
    mt_safetensors *file;
    *out = (ex_position){.epoch = 1};
    if (!path) return MT_OK;
    mt_status status = mt_safetensors_open(path, &file);
    if (status != MT_OK) return status == MT_ENOMEM ? status : cannot_open("--resume");
    const char *extra = mt_safetensors_metadata(file, "memtrain.extra");
    json_t *object = json_loads(extra ? extra : "", 0, NULL);
    status = take_run(path, object, run, out);
    json_decref(object);
    mt_safetensors_free(file);
    return status;
}
