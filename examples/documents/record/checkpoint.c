/*
 * checkpoint.c - the position as JSON in a checkpoint's metadata; see checkpoint.h.
 */
#include "checkpoint.h"

#include <memtrain/safetensors.h>
#include <stdlib.h>
#include <string.h>

/* Hashes as numbers of 64 bits with a sign, which is what JSON has. NULL: a source that tells none. New reference. */
static json_t *names_json(const ex_listing *names) {
    if (!names->labels) return NULL;
    return json_pack("{sI sI sI sI}", "labels", (json_int_t)names->label_count, "label_hash",
                     (json_int_t)names->label_hash, "files", (json_int_t)names->file_count,
                     "file_hash", (json_int_t)names->file_hash);
}

static void take_names(const json_t *names, ex_position *out) {
    out->has_names = json_is_integer(json_object_get(names, "label_hash")) &&
                     json_is_integer(json_object_get(names, "file_hash"));
    out->names = (ex_listing){
        .label_count = (size_t)json_integer_value(json_object_get(names, "labels")),
        .label_hash = (uint64_t)json_integer_value(json_object_get(names, "label_hash")),
        .file_count = (size_t)json_integer_value(json_object_get(names, "files")),
        .file_hash = (uint64_t)json_integer_value(json_object_get(names, "file_hash"))};
}

mt_status ex_checkpoint_save(mt_torch *torch, const char *path, const ex_run *run,
                             const ex_position *position) {
    mt_torch_save_options options = MT_TORCH_SAVE_OPTIONS_INIT;
    json_t *object = json_pack(
        "{ss ss sI sI sI si sI sI so so*}", "program", run->program, "place", position->place,
        "replans", (json_int_t)position->replans, "budget", (json_int_t)position->budget, "chunks",
        (json_int_t)position->chunks, "threads", run->threads, "seed", (json_int_t)run->seed,
        "image_size", (json_int_t)run->image_size, "settings",
        ex_settings_json(run->settings, run->setting_count), "names", names_json(&run->names));
    char *extra = object ? json_dumps(object, JSON_COMPACT) : NULL;
    options.extra = extra;
    mt_status status = extra ? mt_torch_save(torch, path, &options)
                             : mt_set_error(MT_ENOMEM, "out of host memory for --save");
    free(extra);
    json_decref(object);
    return status;
}

/* A number of the text that mt_fit has written; -1: it is not there. Those of its floats have more bits than json_int_t. */
static double number_of(const json_t *place, const char *name) {
    const json_t *value = json_object_get(place, name);
    return json_is_number(value) ? json_number_value(value) : -1;
}

static mt_status take_position(const char *path, const json_t *object, const ex_run *run,
                               ex_position *out) {
    const char *program = json_string_value(json_object_get(object, "program"));
    const char *text = json_string_value(json_object_get(object, "place"));
    json_t *place = json_loads(text ? text : "", JSON_DECODE_INT_AS_REAL, NULL);
    double epochs = number_of(place, "epochs_done"), batches = number_of(place, "batches_done");
    json_decref(place);
    const double most = 9007199254740992.0; /* 2^53: whole numbers up to there are exact */
    int is_place = epochs >= 0 && epochs < most && batches >= 0 && batches < most;
    if (!program || !text || !is_place || strlen(text) >= sizeof out->place)
        return mt_set_error(MT_EINVAL, "--resume: '%s' does not say where its run was", path);
    if (strcmp(program, run->program) != 0)
        return mt_set_error(MT_EINVAL, "--resume: '%s' is a run of %s", path, program);
    *out =
        (ex_position){.epoch = (uint64_t)epochs + 1,
                      .batches = (uint64_t)batches,
                      .replans = (uint64_t)json_integer_value(json_object_get(object, "replans")),
                      .budget = (uint64_t)json_integer_value(json_object_get(object, "budget")),
                      .chunks = json_integer_value(json_object_get(object, "chunks")),
                      .threads = (int)json_integer_value(json_object_get(object, "threads"))};
    strcpy(out->place, text);
    take_names(json_object_get(object, "names"), out);
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
    out->channels_last = ex_settings_order(settings);
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
    *out = (ex_position){.epoch = 1, .channels_last = -1};
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

/* Numbers stand for names: with others a label means another class, and a place in the data another file. */
static mt_status other_names(const char *path, const char *what, size_t now, size_t then) {
    return mt_set_error(
        MT_EINVAL,
        "--resume: the %s, %zu of them, are not the %zu that '%s' was written with: "
        "names or order differ; accepted: the data of that run. Without --resume a "
        "run begins anew",
        what, now, then, path);
}

mt_status ex_checkpoint_names(const char *path, const ex_position *then, const ex_listing *now) {
    const ex_listing *names = &then->names;
    if (!path || !now->labels) return MT_OK;
    if (!then->has_names) {
        mt_log(MT_LOG_WARNING,
               "'%s' does not tell names: whether its run had these %s and files is not checked",
               path, now->labels);
        return MT_OK;
    }
    if (names->label_hash != now->label_hash)
        return other_names(path, now->labels, now->label_count, names->label_count);
    if (names->file_hash != now->file_hash)
        return other_names(path, "files", now->file_count, names->file_count);
    return MT_OK;
}
