/*
 * memory_order.c - --channels-last auto: the faster order of pictures in memory, by running a chunk in each.
 */
#include "training_parts.h"

#include "clock.h"

/* Each order is tried so often at least, and more often until so many seconds have gone by. */
enum { LEAST_TRIES = 2, MOST_TRIES = 20 };
static const double enough_seconds = 0.5;

/* What a chunk has of pixels: more take longer and tell no more. */
static const int64_t most_pixels = 8 * 224 * 224;

/* Channels side by side have other roundings, so a little is no reason for them. */
static const double enough = 0.95;

/* How both orders are tried: with less memory where the first way does not fit. */
typedef struct way {
    size_t samples; /* at most */
    int checkpoints;
} way;

typedef struct trial {
    mt_model *model;
    mt_torch *torch;
    mt_backend backend;
    size_t samples, least; /* in the chunk; in any chunk */
    int can_checkpoint;
    double seconds; /* of the fastest try; 0: none */
    double spent;   /* by all tries */
} trial;

static mt_status run_chunk(trial *r, const mt_batch *batch) {
    const mt_backend *b = &r->backend;
    mt_chunk_result result = MT_CHUNK_RESULT_INIT;
    double since = ex_seconds(), share = (double)r->samples / (double)batch->count;
    mt_status status = b->begin(b->self, batch);
    if (status != MT_OK) return status;
    if (b->prepare) status = b->prepare(b->self, &r->samples, 1, &result);
    if (status == MT_OK) status = b->accumulate(b->self, 0, r->samples, share, &result);
    double seconds = ex_seconds() - since;
    mt_status back = b->rollback(b->self);
    if (!r->seconds || seconds < r->seconds) r->seconds = seconds;
    r->spent += seconds;
    return status == MT_OK ? back : status;
}

static mt_status open_trial(const ex_training *t, ex_make_fn make, int channels_last, const way *w,
                            trial *r) {
    mt_torch_options options = t->torch_options;
    mt_backend_info info = {.size = sizeof info};
    options.device = t->device.name;
    options.channels_last = channels_last;
    if (w->checkpoints) options.checkpointing = MT_CHECKPOINTING_ON;
    mt_status status = make(t->program->self, &r->model);
    if (status == MT_OK) status = mt_torch_new(r->model, &options, &r->torch);
    if (status == MT_OK) status = mt_torch_backend(r->torch, &r->backend);
    if (status == MT_OK) status = r->backend.describe(r->backend.self, &info);
    if (status != MT_OK) return status;
    r->least = ex_flags_least(t->flags, &info);
    if (!r->least) r->least = 1;
    if (info.needs_whole_batch) r->least = SIZE_MAX;
    r->can_checkpoint = (info.rungs & MT_RUNG_BIT(MT_RUNG_CHECKPOINTING)) != 0 &&
                        t->flags->checkpointing != EX_CHECKPOINTING_OFF;
    r->samples = (size_t)(most_pixels / (t->flags->image_size * t->flags->image_size));
    if (r->samples > w->samples) r->samples = w->samples;
    if (r->samples < r->least) r->samples = r->least;
    return MT_OK;
}

static int wants_try(const trial *r, int tries) {
    return tries < LEAST_TRIES || (tries < MOST_TRIES && r->spent < enough_seconds);
}

/* Goes on with what earlier tries have found. */
static mt_status try_order(ex_training *t, ex_make_fn make, int channels_last, const way *w,
                           trial *out) {
    trial r = {.backend.size = sizeof r.backend, .seconds = out->seconds};
    mt_batch batch;
    mt_status status = open_trial(t, make, channels_last, w, &r);
    if (status == MT_OK) status = ex_batches_fill(t->batches, EX_TRAINING, 1, 0, &batch);
    if (status == MT_OK && r.samples > batch.count) r.samples = batch.count;
    for (int i = 0; status == MT_OK && wants_try(&r, i); i++) status = run_chunk(&r, &batch);
    if (status != MT_OK) r.seconds = 0;
    mt_torch_free(r.torch);
    mt_model_free(r.model);
    *out = r;
    return status;
}

/* Twice in turn where that is quick: a busy moment of the machine is that of one order alone else. */
static mt_status try_orders(ex_training *t, ex_make_fn make, const way *w, trial *rows,
                            trial *last) {
    mt_status status = MT_OK;
    for (int round = 0; status == MT_OK && round < 2; round++) {
        if (rows->spent + last->spent > 4 * enough_seconds) break;
        status = try_order(t, make, 0, w, rows);
        if (status == MT_OK) status = try_order(t, make, 1, w, last);
    }
    return status;
}

/* Half of the samples, down to the fewest; then with checkpointing, as the run itself would. @return 0: there is no other way */
static int take_less(const trial *rows, const trial *last, way *w) {
    const trial *failed = last->samples ? last : rows;
    if (failed->samples > failed->least) {
        w->samples = failed->samples / 2;
        return 1;
    }
    if (w->checkpoints || !failed->samples || !failed->can_checkpoint) return 0;
    return w->checkpoints = 1;
}

static mt_status measure(ex_training *t, ex_make_fn make, way *w, trial *rows, trial *last) {
    mt_status status = try_orders(t, make, w, rows, last);
    while (status == MT_EDEVMEM && take_less(rows, last, w)) {
        *rows = *last = (trial){0};
        status = try_orders(t, make, w, rows, last);
    }
    return status;
}

/*
 * The sums over all processes are what they all see, and so they choose alike. A process that has failed shares that it has no
 * time, so that no other waits for it.
 */
static mt_status share_times(ex_training *t, trial *rows, trial *last) {
    double sums[] = {rows->seconds, last->seconds, rows->seconds == 0 || last->seconds == 0};
    if (t->processes.group.count > 1) {
        mt_status status = t->processes.group.sum_doubles(t->processes.group.self, sums, 3);
        if (status != MT_OK) return status;
    }
    rows->seconds = sums[2] > 0 ? 0 : sums[0];
    last->seconds = sums[2] > 0 ? 0 : sums[1];
    return MT_OK;
}

static void tell(const trial *rows, const trial *last, const way *w, mt_status status, int is_on) {
    const char *how = w->checkpoints ? " with checkpointing" : "";
    if (status == MT_EDEVMEM && rows->samples)
        mt_log(MT_LOG_INFO,
               "--channels-last auto: off, since not even a chunk of %zu%s fits in both orders, "
               "which are not timed",
               rows->samples, how);
    else if (!rows->seconds)
        mt_log(MT_LOG_INFO, "--channels-last auto: off, since there is no room to try both orders");
    else
        mt_log(MT_LOG_INFO,
               "--channels-last auto: %s. A chunk of %zu%s takes %.2f of the time with channels "
               "side by side; %s",
               is_on ? "on" : "off", rows->samples, how, last->seconds / rows->seconds,
               is_on ? "results have other roundings than with 'off'"
                     : "the bits are those of a run without this flag");
}

static void take_order(ex_training *t, int is_on) {
    t->flags->channels_last = t->torch_options.channels_last = is_on;
    t->setting_count = ex_flags_settings(t->flags, &t->program->own, t->settings);
}

/* Why no order is tried: equal runs are to have equal bits, which times are not, or nothing is trained in it. NULL: one is. */
static const char *why_not(const ex_flags *flags) {
    if (flags->deterministic) return "--deterministic leaves nothing to measured times";
    return flags->explain && !flags->epochs ? "nothing is trained" : NULL;
}

mt_status ex_training_order(ex_training *t, ex_make_fn make) {
    trial rows = {0}, last = {0};
    way w = {SIZE_MAX, 0};
    if (t->flags->channels_last != EX_CHANNELS_LAST_AUTO) return MT_OK;
    const char *reason = why_not(t->flags);
    if (reason) {
        if (!t->quiet) mt_log(MT_LOG_INFO, "--channels-last auto: off, since %s", reason);
        take_order(t, 0);
        return MT_OK;
    }
    if (!t->quiet) mt_log(MT_LOG_INFO, "chunks run in both orders of pictures in memory");
    mt_status status = measure(t, make, &w, &rows, &last);
    mt_status shared = share_times(t, &rows, &last);
    if (status != MT_OK && status != MT_EDEVMEM) return status;
    if (shared != MT_OK) return shared;
    int is_on = rows.seconds > 0 && last.seconds < enough * rows.seconds;
    take_order(t, is_on);
    if (!t->quiet) tell(&rows, &last, &w, status, is_on);
    return ex_training_seed(t);
}
