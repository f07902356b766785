/*
 * replay.c - reads a trace with jansson; see replay.h.
 */
#include "replay.h"
#include "settings.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What other batches come from. */
#define SAME "were --data, --batch and --min-micro-batch the same?"

/* A step of the trace: where its chunks lie in the list of all. */
typedef struct step {
    size_t line, first, count, samples;
    size_t epoch; /* from 1 on; 0: the trace does not tell */
    unsigned rungs;
    double rate;
} step;

struct ex_replay {
    char *path;
    step *steps;
    size_t count, capacity;
    size_t *chunks; /* of all steps */
    size_t chunk_count, chunk_capacity;
    size_t next;
    int threads;
    int64_t seed, image_size; /* -1: the trace does not tell */
    json_t *settings;         /* an object of texts; NULL: the trace does not tell */
    char *device, *program;   /* NULL: the trace does not tell */
    char *resumed;            /* the file that the run went on from; NULL: none */
    char *large_seed;         /* of 2^63 and more, which stands there as text; NULL: none */
    size_t applied;           /* first step whose loss is not finite and was applied; 0: none */
};

/* ---- room -------------------------------------------------------------------------------------- */

/* Room for one more item in an array that doubles; NULL leaves the old one. */
static void *room_for_one(void *items, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return items;
    size_t more = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(items, more * size);
    if (grown) *capacity = more;
    return grown;
}

static mt_status no_memory(void) {
    return mt_set_error(MT_ENOMEM, "out of host memory for the trace to replay");
}

static mt_status add_chunk(ex_replay *r, size_t samples) {
    size_t *grown = room_for_one(r->chunks, r->chunk_count, &r->chunk_capacity, sizeof *grown);
    if (!grown) return no_memory();
    r->chunks = grown;
    r->chunks[r->chunk_count++] = samples;
    return MT_OK;
}

static mt_status add_step(ex_replay *r, const step *s) {
    step *grown = room_for_one(r->steps, r->count, &r->capacity, sizeof *grown);
    if (!grown) return no_memory();
    r->steps = grown;
    r->steps[r->count++] = *s;
    return MT_OK;
}

/* ---- lines ------------------------------------------------------------------------------------- */

MT_PRINTF(3, 4)
static mt_status bad_line(const ex_replay *r, size_t line, const char *format, ...) {
    char reason[256];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    return mt_set_error(MT_EINVAL, "--replay: '%s', line %zu: %s", r->path, line, reason);
}

/* A whole number of at least 1 in an object; 0 when there is none. */
static size_t positive(const json_t *value) {
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : 0;
    return number > 0 ? (size_t)number : 0;
}

/* The savers that were on, by name, and the factor of the learning rate. */
static mt_status take_rungs(const ex_replay *r, size_t line, const json_t *object, step *s) {
    const json_t *rungs = json_object_get(object, "rungs"), *rate = json_object_get(object, "rate");
    if (rungs && !json_is_array(rungs)) return bad_line(r, line, "'rungs' is not a list");
    if (rate && !(json_number_value(rate) > 0))
        return bad_line(r, line, "'rate' is not a number above 0");
    for (size_t i = 0; i < json_array_size(rungs); i++) {
        const char *name = json_string_value(json_array_get(rungs, i));
        unsigned rung = 0;
        while (rung < MT_RUNGS && (!name || strcmp(name, mt_rung_name((mt_rung)rung)) != 0)) rung++;
        if (rung == MT_RUNGS)
            return bad_line(r, line, "'%s' is no rung that is known", name ? name : "?");
        s->rungs |= MT_RUNG_BIT(rung);
    }
    if (rate) s->rate = json_number_value(rate);
    return MT_OK;
}

static mt_status take_step(ex_replay *r, size_t line, const json_t *object) {
    const json_t *chunks = json_object_get(object, "chunks");
    step s = {.line = line,
              .first = r->chunk_count,
              .count = json_array_size(chunks),
              .epoch = positive(json_object_get(object, "epoch")),
              .rate = 1.0};
    size_t number = positive(json_object_get(object, "step"));
    if (number != r->count + 1)
        return bad_line(r, line, "step %zu is expected here, not %zu", r->count + 1, number);
    if (s.count == 0) return bad_line(r, line, "this step has no list of chunks");
    for (size_t i = 0; i < s.count; i++) {
        size_t samples = positive(json_array_get(chunks, i));
        if (!samples) return bad_line(r, line, "chunk %zu is not a number of at least 1", i + 1);
        mt_status status = add_chunk(r, samples);
        if (status != MT_OK) return status;
        s.samples += samples;
    }
    if (s.samples != positive(json_object_get(object, "samples")))
        return bad_line(r, line,
                        "the chunks add up to %zu samples, and 'samples' is another number",
                        s.samples);
    mt_status status = take_rungs(r, line, object, &s);
    if (status == MT_OK) status = add_step(r, &s);
    int has_no_loss = json_is_null(json_object_get(object, "loss"));
    int is_skipped = json_is_true(json_object_get(object, "skipped"));
    if (has_no_loss && !is_skipped && !r->applied) r->applied = number;
    return status;
}

/* The number behind a key, where there is one. */
static void take_number(const json_t *object, const char *key, int64_t *out) {
    const json_t *value = json_object_get(object, key);
    if (json_is_integer(value)) *out = json_integer_value(value);
}

/* The number of threads, where a line tells it. */
static mt_status take_threads(ex_replay *r, size_t line, const json_t *object) {
    const json_t *value = json_object_get(object, "threads");
    size_t threads = positive(value);
    if (!value) return MT_OK;
    if (threads == 0 || threads > INT_MAX)
        return bad_line(r, line, "'threads' is not a number from 1 to %d", INT_MAX);
    r->threads = (int)threads;
    return MT_OK;
}

/* A copy of the text behind a key, unless an earlier line had one. */
static mt_status take_text(const json_t *object, const char *key, char **out) {
    const char *text = json_string_value(json_object_get(object, key));
    return text && !*out && !(*out = strdup(text)) ? no_memory() : MT_OK;
}

/* The device stands in the first line, the settings in the program's. */
static mt_status take_texts(ex_replay *r, const char *event, const json_t *object) {
    json_t *settings = json_object_get(object, "settings");
    mt_status status = take_text(object, "device", &r->device);
    if (status == MT_OK && strcmp(event, "program") == 0)
        status = take_text(object, "name", &r->program);
    if (status == MT_OK) status = take_text(object, "resumed", &r->resumed);
    if (status == MT_OK) status = take_text(object, "seed", &r->large_seed);
    if (settings && !r->settings) r->settings = json_incref(settings);
    return status;
}

/* Only what a replay needs is looked at; events and keys that are not known are none of its business. */
static mt_status take_line(ex_replay *r, size_t line, const char *text) {
    json_error_t error;
    json_t *object = json_loads(text, 0, &error);
    const char *event = json_string_value(json_object_get(object, "event"));
    mt_status status = MT_OK;
    if (!object)
        status = bad_line(r, line, "not JSON: %s", error.text);
    else if (!event)
        status = bad_line(r, line, "not a line of a trace: no 'event'");
    else if (strcmp(event, "step") == 0)
        status = take_step(r, line, object);
    if (status == MT_OK) status = take_threads(r, line, object);
    if (status == MT_OK) status = take_texts(r, event, object);
    take_number(object, "seed", &r->seed);
    take_number(object, "image_size", &r->image_size);
    json_decref(object);
    return status;
}

static mt_status read_lines(ex_replay *r, FILE *stream) {
    char *text = NULL;
    size_t capacity = 0, line = 0;
    mt_status status = MT_OK;
    while (status == MT_OK && getline(&text, &capacity, stream) > 0)
        status = take_line(r, ++line, text);
    if (status == MT_OK && ferror(stream)) status = bad_line(r, line + 1, "%s", strerror(errno));
    free(text);
    if (status == MT_OK && r->count == 0)
        status = mt_set_error(MT_EINVAL, "--replay: '%s' has no step to replay", r->path);
    return status;
}

/* ---- public ------------------------------------------------------------------------------------ */

mt_status ex_replay_open(const char *path, ex_replay **out) {
    *out = NULL;
    if (!path) return MT_OK;
    FILE *stream = fopen(path, "re");
    if (!stream)
        return mt_set_error(MT_EINVAL, "--replay: cannot read '%s': %s", path, strerror(errno));
    ex_replay *r = calloc(1, sizeof *r);
    if (r) {
        r->path = strdup(path);
        r->seed = r->image_size = -1;
    }
    mt_status status = r && r->path ? read_lines(r, stream) : no_memory();
    fclose(stream);
    if (status == MT_OK)
        *out = r;
    else
        ex_replay_free(r);
    return status;
}

void ex_replay_free(ex_replay *replay) {
    if (!replay) return;
    json_decref(replay->settings);
    free(replay->device);
    free(replay->program);
    free(replay->resumed);
    free(replay->large_seed);
    free(replay->path);
    free(replay->steps);
    free(replay->chunks);
    free(replay);
}

int ex_replay_order(const ex_replay *replay) {
    return replay ? ex_settings_order(replay->settings) : -1;
}

size_t ex_replay_steps(const ex_replay *replay) {
    return replay ? replay->count : SIZE_MAX;
}

/* What a line that is gone would have told, or an earlier version did not. */
static void warn_of_untold(const ex_replay *r, const ex_setting *settings, size_t count) {
    char names[512];
    snprintf(names, sizeof names, "%s%s%s%s", r->program ? "" : ", the program",
             r->seed < 0 && !r->large_seed ? ", --seed" : "", r->threads ? "" : ", --threads",
             r->image_size < 0 ? ", --image-size" : "");
    ex_settings_untold(r->settings, settings, count, names, sizeof names);
    if (!*names) return;
    mt_log(MT_LOG_WARNING,
           "--replay: not compared, as '%s' and this program do not both tell it: %s; "
           "another value ends in another state",
           r->path, names + 2);
}

/* Earlier versions made updates that are made today only where that is asked for. */
static mt_status check_applied(const ex_replay *r, const ex_setting *settings, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(settings[i].name, "apply-not-finite") == 0 && *settings[i].value == '1')
            return MT_OK;
    if (!r->applied) return MT_OK;
    return bad_line(r, r->steps[r->applied - 1].line,
                    "the loss of step %zu is not finite and its update was made, which only "
                    "--apply-not-finite does again",
                    r->applied);
}

mt_status ex_replay_check(const ex_replay *replay, const char *program, int64_t seed,
                          int64_t image_size, const ex_setting *settings, size_t count) {
    if (!replay) return MT_OK;
    if (replay->program && strcmp(replay->program, program) != 0)
        return mt_set_error(MT_EINVAL, "--replay: '%s' is a run of %s", replay->path,
                            replay->program);
    if (replay->resumed)
        return mt_set_error(MT_EINVAL,
                            "--replay: '%s' is of a run that went on from '%s'; a replay begins "
                            "at the first step",
                            replay->path, replay->resumed);
    const ex_earlier earlier = {replay->path, "a replay", 0};
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)seed);
    mt_status status = ex_settings_same_number(&earlier, "seed", seed, replay->seed);
    if (status == MT_OK) status = ex_settings_same_text(&earlier, "seed", text, replay->large_seed);
    if (status == MT_OK)
        status = ex_settings_same_number(&earlier, "image-size", image_size, replay->image_size);
    if (status == MT_OK) status = ex_settings_same(&earlier, replay->settings, settings, count);
    if (status == MT_OK) status = check_applied(replay, settings, count);
    if (status == MT_OK) warn_of_untold(replay, settings, count);
    return status;
}

/* "cpu, minimal" */
static void write_rungs(unsigned rungs, char *text, size_t capacity) {
    size_t used = 0;
    *text = '\0';
    for (unsigned r = 0; r < MT_RUNGS && used < capacity; r++)
        if (rungs & MT_RUNG_BIT(r))
            used += (size_t)snprintf(text + used, capacity - used, "%s%s", used ? ", " : "",
                                     mt_rung_name((mt_rung)r));
}

mt_status ex_replay_check_rungs(const ex_replay *replay, unsigned known) {
    char names[96];
    known |= MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH); /* the trainer's own */
    for (size_t i = 0; replay && i < replay->count; i++) {
        const step *s = &replay->steps[i];
        if (!(s->rungs & ~known)) continue;
        write_rungs(s->rungs & ~known, names, sizeof names);
        return bad_line(replay, s->line,
                        "step %zu went on with %s, which this device does not have; the trace was "
                        "made with %s%s",
                        i + 1, names, replay->device ? "--device " : "a device of another kind",
                        replay->device ? replay->device : "");
    }
    return MT_OK;
}

/* Whether step i is one of a batch of so many samples: all of them, or the first of a batch that was made smaller. */
static mt_status check_samples(const ex_replay *r, size_t i, size_t samples) {
    const step *s = &r->steps[i];
    int is_smaller = (s->rungs & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH)) != 0;
    if (s->samples == samples || (is_smaller && s->samples < samples)) return MT_OK;
    return bad_line(r, s->line, "step %zu has %zu samples there and %zu here; " SAME, i + 1,
                    s->samples, samples);
}

mt_status ex_replay_check_batches(const ex_replay *replay, const ex_epoch *epoch) {
    size_t whole = epoch->samples / epoch->batch, rest = epoch->samples % epoch->batch;
    size_t batches = whole + (rest > 0 && rest >= epoch->least);
    mt_status status = MT_OK;
    for (size_t i = 0; replay && batches && i < replay->count && status == MT_OK; i++) {
        const step *s = &replay->steps[i];
        status = check_samples(replay, i, i % batches < whole ? epoch->batch : rest);
        /* A step that was made smaller may be of any batch: epochs tell them apart. */
        if (status == MT_OK && s->epoch && s->epoch != i / batches + 1)
            status =
                bad_line(replay, s->line, "step %zu is of epoch %zu there and of %zu here; " SAME,
                         i + 1, s->epoch, i / batches + 1);
    }
    return status;
}

int ex_replay_threads(const ex_replay *replay) {
    return replay ? replay->threads : 0;
}

mt_status ex_replay_next(ex_replay *replay, size_t samples, mt_trainer *trainer) {
    ex_replay *r = replay;
    if (!r) return MT_OK;
    if (r->next == r->count)
        return mt_set_error(MT_EINVAL, "--replay: '%s' ends after step %zu", r->path, r->count);
    const step *s = &r->steps[r->next];
    mt_status status = check_samples(r, r->next, samples);
    if (status == MT_OK) status = mt_trainer_set_chunks(trainer, r->chunks + s->first, s->count);
    if (status == MT_OK) status = mt_trainer_set_rungs(trainer, s->rungs, s->rate);
    if (status == MT_OK) r->next++;
    return status;
}
