/*
 * fake_backend.c - the simulated model, its memory and its faults; see fake_backend.h.
 */
#include "fake_program.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const double fake_unit_table[FAKE_UNITS_COUNT] = {3, 1, 0, 0, 5, 2.5, 1, 7, 0, 0, 0};

const fake_options fake_defaults = {
    .seed = 1,
    .budget_bytes = (size_t)1 << 20,
    .resident_bytes = 10000,
    .noise = 0.25,
};

static const char *const kind_names[FAKE_KINDS] = {
    "describe", "memory",   "reset_peak", "empty_cache", "begin",  "accumulate", "rollback",
    "apply",    "evaluate", "record",     "units",       "sha256", "allocation", "mark",
    "rewind",   "set_rung", "set_rate",   "shape",       "hold",   "prepare",    "collect",
};

static const char *const metric_names[FAKE_METRICS] = {"positive", "mean"};

uint64_t fake_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15U);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1). */
static double uniform(uint64_t *state) {
    return (double)(fake_random(state) >> 11) / 4503599627370496.0 - 1.0;
}

double fake_seconds(size_t samples) {
    return 0.001 + 0.0005 * (double)samples;
}

static void complain(fake_backend *fake, const char *text) {
    if (fake->complaint == NULL) fake->complaint = text;
}

fake_options fake_fits(const fake_program *program, size_t m) {
    fake_options options = fake_defaults;

    options.budget_bytes = options.resident_bytes + fake_program_peak(program, m);
    return options;
}

/* ---- faults --------------------------------------------------------------------------------- */

void fake_fault(void) {}

static void fail_reset(fake_backend *fake) {
    fake->calls = 0;
    fake->fired = 0;
    fake->fail_at = 0;
    fake->persistent = 0;
    fake->fail_status = MT_EDEVMEM;
}

void fake_fail_at(fake_backend *fake, uint64_t n, int persistent) {
    fail_reset(fake);
    fake->fail_at = n;
    fake->persistent = persistent;
}

void fake_fail_with(fake_backend *fake, uint64_t n, mt_status status) {
    fail_reset(fake);
    fake->fail_at = n;
    fake->fail_status = status;
}

void fake_fail_kind(fake_backend *fake, fake_kind kind, uint64_t n, mt_status status) {
    fake->kind_calls[kind] = 0;
    fake->kind_fail_at[kind] = fake->kind_fail_until[kind] = n;
    fake->kind_status[kind] = status;
}

void fake_fail_kind_for_ever(fake_backend *fake, fake_kind kind, uint64_t n, mt_status status) {
    fake_fail_kind(fake, kind, n, status);
    fake->kind_fail_until[kind] = UINT64_MAX;
}

static int kind_fails(fake_backend *fake, fake_kind kind) {
    uint64_t call = ++fake->kind_calls[kind];

    return call >= fake->kind_fail_at[kind] && call <= fake->kind_fail_until[kind];
}

static int counted_call_fails(fake_backend *fake, fake_kind kind) {
    if ((fake->counted & FAKE_BIT(kind)) == 0) return 0;
    fake->calls++;
    if (fake->fail_at == 0 || fake->calls < fake->fail_at) return 0;
    return fake->persistent || fake->calls == fake->fail_at;
}

/* Counts a fallible call; anything but MT_OK is an injected failure with its text set. */
static mt_status fallible(fake_backend *fake, fake_kind kind) {
    mt_status status = MT_OK;

    if (counted_call_fails(fake, kind)) status = fake->fail_status;
    if (kind_fails(fake, kind)) status = fake->kind_status[kind];
    if (status == MT_OK) return MT_OK;
    fake->fired++;
    fake_fault();
    return mt_set_error(status, "injected: %s", kind_names[kind]);
}

/* ---- log ------------------------------------------------------------------------------------ */

static mt_status note(fake_backend *fake, fake_kind kind, size_t first, size_t count, double weight,
                      mt_status status) {
    fake_call call = {kind, first, count, weight, status};

    if (fake->logged < FAKE_CALLS_MAX) fake->log[fake->logged++] = call;
    return status;
}

void fake_log_clear(fake_backend *fake) {
    fake->logged = 0;
}

static size_t call_text(const fake_call *call, char *text, size_t capacity) {
    const char *mark = call->status == MT_OK ? "" : "!";
    int length;

    if (call->count > 0)
        length = snprintf(text, capacity, "%s%s(%zu+%zu) ", kind_names[call->kind], mark,
                          call->first, call->count);
    else
        length = snprintf(text, capacity, "%s%s ", kind_names[call->kind], mark);
    return (size_t)length;
}

const char *fake_log_text(const fake_backend *fake, unsigned kinds) {
    static char text[65536];
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < fake->logged && used + 100 < sizeof(text); i++)
        if (kinds & FAKE_BIT(fake->log[i].kind))
            used += call_text(&fake->log[i], text + used, sizeof(text) - used);
    if (used > 0) text[used - 1] = '\0';
    return text;
}

/* ---- memory --------------------------------------------------------------------------------- */

static size_t budget_now(const fake_backend *fake) {
    const fake_options *o = &fake->options;
    uint64_t step = fake->step + 1;

    if (fake->rungs & MT_RUNG_BIT(MT_RUNG_CPU)) return o->cpu_bytes;
    if (o->budget_bytes > 0 && o->hog_from > 0 && step >= o->hog_from && step < o->hog_until)
        return o->budget_bytes - o->hog_bytes;
    return o->budget_bytes;
}

/* The lesser of the budget that is told and the limit that is not. */
static size_t limit_now(const fake_backend *fake) {
    size_t budget = budget_now(fake), device = fake->options.device_bytes;

    if (budget == 0) budget = SIZE_MAX;
    return device > 0 && device < budget ? device : budget;
}

static mt_status refuse(fake_backend *fake, size_t bytes, mt_status status, mt_chunk_result *out) {
    if (status == MT_EDEVMEM && !fake->options.no_evidence) {
        out->refused++;
        out->refused_bytes = bytes;
        out->refused_in_use_bytes = fake->allocated;
    }
    return status;
}

static mt_status allocate(fake_backend *fake, size_t bytes, mt_chunk_result *out) {
    mt_status status = fallible(fake, FAKE_ALLOCATION);

    if (status != MT_OK) return refuse(fake, bytes, status, out);
    if (fake->allocated + bytes > limit_now(fake)) {
        fake->genuine++;
        mt_set_error(MT_EDEVMEM, "refused %zu bytes", bytes);
        return refuse(fake, bytes, MT_EDEVMEM, out);
    }
    fake->allocated += bytes;
    fake->live++;
    if (fake->allocated > fake->peak) fake->peak = fake->allocated;
    if (fake->allocated > fake->reserved) fake->reserved = fake->allocated;
    return MT_OK;
}

static void deallocate(fake_backend *fake, fake_live *all, size_t which) {
    if (!all->alive[which]) return;
    fake->allocated -= fake_block_release(all, which, &fake->sink);
    fake->live--;
}

/* The cache grows with each chunk until it meets the limit; then the allocator empties it. */
static void cache_grow(fake_backend *fake) {
    fake->reserved += fake->options.cache_keeps_bytes;
    if (fake->reserved > limit_now(fake)) {
        fake->reserved = fake->allocated;
        fake->retries++;
    }
}

/* Samples of the first shape that need as much as so many of the batch's. */
static size_t samples_of_first_shape(const fake_backend *fake, size_t samples) {
    size_t times = fake->options.shapes && fake->batch ? 1 + (size_t)(fake->batch->id >> 32) : 1;

    return samples * times;
}

static double seconds_now(const fake_backend *fake, size_t samples) {
    const fake_options *o = &fake->options;
    double seconds = o->seconds != NULL ? o->seconds(samples_of_first_shape(fake, samples)) : 0;

    for (unsigned r = 0; r < MT_RUNGS; r++)
        if ((fake->rungs & MT_RUNG_BIT(r)) && o->rung_seconds[r] > 0) seconds *= o->rung_seconds[r];
    return seconds;
}

/*
 * The second set of gradients comes to be at the end, when the chunk is through. In place they are
 * added as they come, and only a fake that tells of them needs memory for that.
 */
static mt_status run_gradients(fake_backend *fake, fake_live *all, size_t which, size_t *peak,
                               mt_chunk_result *out) {
    mt_status status;

    if (!fake->marked && !fake->options.tells_gradients) return MT_OK;
    status = allocate(fake, FAKE_GRADIENT_BYTES, out);
    if (status != MT_OK) return status;
    fake_block_take(all, which, FAKE_GRADIENT_BYTES, &fake->sink);
    if (fake->allocated > *peak) *peak = fake->allocated;
    if (fake->options.tells_gradients) fake_tell(&fake->sink, all->slot_of[which], 0);
    if (!fake->marked) deallocate(fake, all, which);
    return MT_OK;
}

static mt_status program_run(fake_backend *fake, const fake_program *program, size_t samples,
                             fake_live *all, size_t *peak, mt_chunk_result *out) {
    for (size_t i = 0; i < program->count; i++) {
        size_t bytes = fake_allocation_bytes(&program->allocations[i], samples);
        mt_status status;

        for (size_t j = 0; j < i; j++)
            if (fake_dies_before(program, j, i)) deallocate(fake, all, j);
        status = allocate(fake, bytes, out);
        if (status != MT_OK) return status;
        fake_block_take(all, i, bytes, &fake->sink);
        if (fake->allocated > *peak) *peak = fake->allocated;
    }
    return run_gradients(fake, all, program->count, peak, out);
}

/* Runs a chunk's allocations; whatever happens, none is alive afterwards. */
static mt_status chunk_memory(fake_backend *fake, const fake_program *program, size_t samples,
                              mt_chunk_result *out) {
    fake_allocation storage[FAKE_ALLOCATIONS_MAX];
    fake_program now = fake_program_with(program, fake->rungs, storage);
    fake_live all = {0};
    size_t peak = fake->allocated;
    mt_status status;

    if (fake->sink.event != NULL) /* a block older than the recording */
        fake->sink.event(fake->sink.user, (void *)(uintptr_t)0x10, -4096);
    status = program_run(fake, &now, samples_of_first_shape(fake, samples), &all, &peak, out);
    for (size_t i = program->count + 1; i-- > 0;) deallocate(fake, &all, i);
    cache_grow(fake);
    if (!fake->options.no_peaks) out->peak_bytes = peak;
    out->seconds = seconds_now(fake, samples);
    return status;
}

/* ---- the model ------------------------------------------------------------------------------ */

/* FAKE_PARAMETERS features and the target of one sample. */
static double sample_read(const mt_batch *batch, size_t index, double *features) {
    uint64_t state = batch->id * 0x100000001b3U + index;

    fake_random(&state);
    for (size_t j = 0; j < FAKE_PARAMETERS; j++) features[j] = uniform(&state);
    return uniform(&state);
}

static double sample_units(const fake_backend *fake, size_t index) {
    const fake_options *o = &fake->options;

    return o->units == NULL ? 1.0 : o->units[index % o->unit_count];
}

static double range_units(const fake_backend *fake, size_t first, size_t count) {
    double sum = 0;

    for (size_t i = first; i < first + count; i++) sum += sample_units(fake, i);
    return sum;
}

static double predict(const fake_backend *fake, const double *features, double scale) {
    double sum = 0;

    for (size_t j = 0; j < FAKE_PARAMETERS; j++)
        sum += fake->state.parameters[j] * features[j] * scale;
    return sum;
}

/* Adds one sample to the result; returns the derivative of its loss by the prediction. */
static double sample_run(const fake_backend *fake, const mt_batch *batch, size_t index,
                         double scale, double *features, mt_chunk_result *out) {
    double target = sample_read(batch, index, features);
    double prediction = predict(fake, features, scale);
    double error = prediction - target, units = sample_units(fake, index);

    out->loss_sum += fake->options.not_finite ? (double)NAN : 0.5 * error * error * units;
    out->units += units;
    out->metric_sums[0] += prediction > 0 ? 1.0 : 0.0;
    out->metric_sums[1] += features[0];
    return error * units;
}

/* What 0/0 leaves behind, in a backend that does not look at it. */
static void mean_of_nothing(const fake_backend *fake, mt_chunk_result *out) {
    if (!fake->options.mean_of_nothing || out->units != 0) return;
    out->loss_sum = out->metric_sums[0] = (double)NAN;
}

static void buffers_move(fake_backend *fake, const double *sums, size_t count) {
    for (size_t j = 0; j < FAKE_BUFFERS; j++)
        fake->state.buffers[j] += 0.1 * (sums[j] / (double)count - fake->state.buffers[j]);
}

static void chunk_train(fake_backend *fake, size_t first, size_t count, double weight,
                        mt_chunk_result *out) {
    double features[FAKE_PARAMETERS], sums[FAKE_BUFFERS] = {0};
    double scale = 1.0 + fake->options.noise * uniform(&fake->state.rng);
    double units = range_units(fake, first, count), own[FAKE_PARAMETERS] = {0};

    for (size_t i = first; i < first + count; i++) {
        double error = sample_run(fake, fake->batch, i, scale, features, out);

        for (size_t j = 0; j < FAKE_PARAMETERS && units > 0; j++)
            own[j] += weight / units * error * features[j] * scale;
        for (size_t j = 0; j < FAKE_BUFFERS; j++) sums[j] += features[j];
    }
    for (size_t j = 0; j < FAKE_PARAMETERS; j++) fake->gradients[j] += own[j];
    mean_of_nothing(fake, out);
    buffers_move(fake, sums, count);
}

/*
 * What a chunk that died leaves behind: rubbish everywhere that rollback must put right, and in a
 * marked chunk everywhere but in the gradients.
 */
static void chunk_spoil(fake_backend *fake) {
    fake_random(&fake->state.rng);
    fake->state.buffers[0] += 1.0;
    if (fake->marked) return;
    for (size_t j = 0; j < FAKE_PARAMETERS; j++) fake->gradients[j] = NAN;
}

/* ---- chunks that are told beforehand -------------------------------------------------------- */

static void forget_prepared(fake_backend *fake) {
    fake->allocated -= fake->prepared_bytes;
    fake->live -= fake->prepared_blocks;
    fake->prepared_bytes = fake->prepared_blocks = 0;
    fake->told_count = fake->told_next = fake->told_first = 0;
}

static mt_status take_prepared(fake_backend *fake, size_t samples, mt_chunk_result *out) {
    mt_status status = allocate(fake, FAKE_PREPARED_BYTES * samples, out);

    if (status != MT_OK) return status;
    fake->prepared_bytes += FAKE_PREPARED_BYTES * samples;
    fake->prepared_blocks++;
    return MT_OK;
}

static size_t prepare_check(fake_backend *fake, const size_t *chunks, size_t count,
                            const mt_chunk_result *out) {
    size_t samples = 0;

    if (fake->batch == NULL) complain(fake, "prepare outside a step");
    if (count == 0 || count > FAKE_TOLD_MAX) {
        complain(fake, "prepare: so many chunks");
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (chunks[i] == 0) complain(fake, "prepare: a chunk without samples");
        samples += chunks[i];
    }
    if (fake->batch != NULL && samples > fake->batch->count)
        complain(fake, "prepare: more samples than the batch has");
    if (out->size != sizeof(*out) || out->peak_bytes != 0 || out->refused != 0)
        complain(fake, "prepare: result not zeroed");
    return samples;
}

/* Whatever becomes of it, a number is drawn and memory is held: rollback must put both right. */
static mt_status fake_prepare(void *self, const size_t *chunks, size_t count,
                              mt_chunk_result *out) {
    fake_backend *fake = self;
    size_t samples = prepare_check(fake, chunks, count, out);
    mt_status status = fallible(fake, FAKE_PREPARE);

    if (out->deferred) fake->deferred_preparations++;
    forget_prepared(fake);
    fake_random(&fake->state.rng);
    for (size_t i = 0; i < count && status == MT_OK; i++)
        status = take_prepared(fake, chunks[i], out);
    if (!fake->options.no_peaks) out->peak_bytes = fake->allocated;
    if (status == MT_OK && count <= FAKE_TOLD_MAX) {
        memcpy(fake->told, chunks, count * sizeof(*chunks));
        fake->told_count = count;
    }
    return note(fake, FAKE_PREPARE, count, samples, 0, status);
}

static void told_check(fake_backend *fake, size_t first, size_t count) {
    if (!fake->options.prepares) return;
    if (fake->told_next == fake->told_count || fake->told[fake->told_next] != count ||
        fake->told_first != first)
        complain(fake, "accumulate of a chunk that was not told next");
}

/* One that failed is not asked for again without rollback and another prepare. */
static void told_done(fake_backend *fake, size_t count, mt_status status) {
    if (status != MT_OK) fake->told_count = fake->told_next = 0;
    if (status != MT_OK || !fake->options.prepares) return;
    fake->told_next++;
    fake->told_first += count;
}

/* ---- chunks that are not waited for --------------------------------------------------------- */

static void forget_deferred(fake_backend *fake) {
    fake->deferred_count = fake->deferred_next = 0;
}

/* Keeps loss, metrics and time of a chunk back, if that is allowed. */
static void defer(fake_backend *fake, mt_chunk_result *out) {
    mt_chunk_result *kept = &fake->deferred[fake->deferred_count];

    if (!fake->options.defers) {
        if (out->deferred) complain(fake, "accumulate: deferred without collect");
        return;
    }
    if (fake->deferred_count == FAKE_DEFERRED_MAX || fake->options.defers == 2) out->deferred = 0;
    if (!out->deferred) return;
    *kept = *out;
    out->loss_sum = out->units = out->seconds = 0;
    memset(out->metric_sums, 0, sizeof(out->metric_sums));
    fake->deferred_count++;
    fake->deferrals++;
}

static mt_status fake_collect(void *self, mt_chunk_result *out) {
    fake_backend *fake = self;
    size_t next = fake->deferred_next;
    mt_status status = fallible(fake, FAKE_COLLECT);

    if (out->size != sizeof(*out) || out->units != 0) complain(fake, "collect: result not zeroed");
    if (next == fake->deferred_count) {
        complain(fake, "collect though no chunk was deferred");
        return mt_set_error(MT_ESTATE, "collect: nothing to tell");
    }
    if (status == MT_OK) {
        const mt_chunk_result *kept = &fake->deferred[fake->deferred_next++];
        out->loss_sum = kept->loss_sum;
        out->units = kept->units;
        out->seconds = kept->seconds;
        memcpy(out->metric_sums, kept->metric_sums, sizeof(out->metric_sums));
    } else if (fake->batch == NULL) {
        forget_deferred(fake); /* an evaluation has no rollback */
    }
    return note(fake, FAKE_COLLECT, next, 1, 0, status);
}

/* ---- the seam ------------------------------------------------------------------------------- */

static mt_status fake_describe(void *self, mt_backend_info *out) {
    fake_backend *fake = self;

    if (out->size != sizeof(*out)) complain(fake, "describe: size not set");
    out->device = "fake:0";
    out->version = "1.2.3";
    out->kernels_change = fake->options.tells_wide ? fake->options.wide_above + 1 : 0;
    out->min_micro_batch = fake->options.min_micro_batch;
    out->normalises_over_batch = fake->options.normalises_over_batch;
    out->needs_whole_batch = fake->options.needs_whole_batch;
    out->parameter_bytes = 4000;
    out->gradient_bytes = FAKE_GRADIENT_BYTES;
    out->rungs = fake->options.rungs;
    out->record_rungs = fake->options.record_rungs;
    out->scales_loss = fake->options.scales_loss;
    out->model = fake->options.model;
    out->threads = fake->options.threads;
    out->optimizer_bytes = 2000;
    out->buffer_bytes = 1000;
    out->metric_count = FAKE_METRICS;
    out->metric_names = metric_names;
    return note(fake, FAKE_DESCRIBE, 0, 0, 0, fallible(fake, FAKE_DESCRIBE));
}

static mt_status fake_memory(void *self, mt_memory *out) {
    fake_backend *fake = self;

    if (out->size != sizeof(*out)) complain(fake, "memory: size not set");
    out->budget_bytes = budget_now(fake);
    out->allocated_bytes = fake->allocated;
    out->reserved_bytes = fake->reserved;
    out->peak_bytes = fake->peak;
    out->free_bytes = budget_now(fake) > fake->reserved ? budget_now(fake) - fake->reserved : 0;
    out->alloc_retries = fake->retries;
    return note(fake, FAKE_MEMORY, 0, 0, 0, fallible(fake, FAKE_MEMORY));
}

static mt_status fake_reset_peak(void *self) {
    fake_backend *fake = self;

    fake->peak = fake->allocated;
    return note(fake, FAKE_RESET_PEAK, 0, 0, 0, fallible(fake, FAKE_RESET_PEAK));
}

static mt_status fake_empty_cache(void *self, mt_clear_result *out) {
    fake_backend *fake = self;
    mt_status status = fallible(fake, FAKE_EMPTY_CACHE);

    if (out->size != sizeof(*out)) complain(fake, "empty_cache: size not set");
    if (status == MT_OK) {
        out->released_bytes = fake->reserved - fake->allocated;
        out->seconds = fake->options.clear_seconds;
        fake->reserved = fake->allocated;
        fake->clears++;
    }
    return note(fake, FAKE_EMPTY_CACHE, 0, 0, 0, status);
}

static mt_status fake_begin(void *self, const mt_batch *batch) {
    fake_backend *fake = self;
    mt_status status = fallible(fake, FAKE_BEGIN);

    if (fake->batch != NULL) complain(fake, "begin inside a step");
    if (status == MT_OK) {
        fake->before = fake->state;
        fake->batch = batch;
        fake->batch_seen = *batch;
        fake->covered = 0;
        fake->disorder = 0;
        fake->marked = fake->rewindable = 0;
        forget_prepared(fake);
        forget_deferred(fake);
        memset(fake->gradients, 0, sizeof(fake->gradients));
    }
    return note(fake, FAKE_BEGIN, 0, 0, 0, status);
}

static void accumulate_check(fake_backend *fake, size_t first, size_t count,
                             const mt_chunk_result *out) {
    if (fake->batch == NULL)
        complain(fake, "accumulate outside a step");
    else if (count == 0 || first + count > fake->batch->count)
        complain(fake, "accumulate: samples out of range");
    else if (!fake->holding && (!fake->marked || count != fake->batch->count))
        complain(fake, "accumulate in parts while gradients are not held");
    else if (fake->rewindable && !fake->marked)
        complain(fake, "accumulate after a failed one without rewind");
    else if (first != fake->covered)
        fake->disorder = 1; /* allowed in a step that is taken back */
    if (out->size != sizeof(*out) || out->units != 0 || out->loss_sum != 0 || out->refused != 0)
        complain(fake, "accumulate: result not zeroed");
}

static const fake_program *train_program(const fake_backend *fake, size_t samples) {
    const fake_options *o = &fake->options;

    if (o->wide.count > 0 && samples > o->wide_above) return &o->wide;
    return o->train.count > 0 ? &o->train : &fake_train_program;
}

static mt_status fake_accumulate(void *self, size_t first, size_t count, double weight,
                                 mt_chunk_result *out) {
    fake_backend *fake = self;
    mt_status status;

    accumulate_check(fake, first, count, out);
    told_check(fake, first, count);
    if (fake->batch == NULL) return mt_set_error(MT_ESTATE, "accumulate outside a step");
    status = fallible(fake, FAKE_ACCUMULATE);
    if (status == MT_OK) status = chunk_memory(fake, train_program(fake, count), count, out);
    if (status == MT_OK) {
        chunk_train(fake, first, count, weight, out);
        out->normalises_over_batch = fake->options.shows_norm;
        fake->covered += count;
        fake->rewindable = 0;
        defer(fake, out);
    } else {
        chunk_spoil(fake);
    }
    fake->marked = 0;
    told_done(fake, count, status);
    return note(fake, FAKE_ACCUMULATE, first, count, weight, status);
}

static mt_status fake_mark(void *self) {
    fake_backend *fake = self;
    mt_status status = fallible(fake, FAKE_MARK);

    if (fake->batch == NULL) complain(fake, "mark outside a step");
    if (fake->options.prepares) complain(fake, "mark though chunks are told");
    if (fake->marked || fake->rewindable) complain(fake, "mark twice");
    if (status == MT_OK) {
        fake->chunk_before = fake->state;
        fake->marked = fake->rewindable = 1;
    }
    return note(fake, FAKE_MARK, 0, 0, 0, status);
}

static mt_status fake_rewind(void *self) {
    fake_backend *fake = self;
    mt_status status = fallible(fake, FAKE_REWIND);

    if (!fake->rewindable) complain(fake, "rewind without a mark");
    fake->marked = fake->rewindable = 0;
    if (status == MT_OK) fake->state = fake->chunk_before;
    return note(fake, FAKE_REWIND, 0, 0, 0, status);
}

/* A rung that is refused whatever is tried. */
static mt_status rung_refused(const fake_backend *fake, mt_rung rung, int on) {
    const fake_options *o = &fake->options;

    if (!((on ? o->refused_on : o->refused_off) & MT_RUNG_BIT(rung))) return MT_OK;
    return mt_set_error(o->refused_status == MT_OK ? MT_ENOTSUP : o->refused_status, "refused: %s",
                        mt_rung_name(rung));
}

static mt_status fake_set_rung(void *self, mt_rung rung, int on) {
    fake_backend *fake = self;
    mt_status status = fallible(fake, FAKE_SET_RUNG);

    if (status == MT_OK) status = rung_refused(fake, rung, on);

    if (fake->batch != NULL) complain(fake, "set_rung inside a step");
    if (!(fake->options.rungs & MT_RUNG_BIT(rung))) complain(fake, "set_rung: not known");
    if (!on != !(fake->rungs & MT_RUNG_BIT(rung)) ? 0 : 1) complain(fake, "set_rung: no change");
    if (status == MT_OK) fake->rungs ^= MT_RUNG_BIT(rung);
    return note(fake, FAKE_SET_RUNG, (size_t)on, 1 + (size_t)rung, 0, status);
}

static mt_status fake_set_rate(void *self, double factor) {
    fake_backend *fake = self;
    mt_status status = fallible(fake, FAKE_SET_RATE);

    if (fake->batch != NULL) complain(fake, "set_rate inside a step");
    if (status == MT_OK) fake->rate = factor;
    return note(fake, FAKE_SET_RATE, 0, 0, factor, status);
}

static mt_status fake_hold_gradients(void *self, int on) {
    fake_backend *fake = self;
    mt_chunk_result unused = {0};
    mt_status status = on ? fallible(fake, FAKE_HOLD_GRADIENTS) : MT_OK;

    if (fake->batch != NULL) complain(fake, "hold_gradients inside a step");
    if (fake->options.prepares && !on) complain(fake, "hold_gradients off though chunks are told");
    if (status == MT_OK && on && !fake->holding) {
        status = allocate(fake, FAKE_GRADIENT_BYTES, &unused);
        if (status == MT_OK) fake->live--; /* no block of a chunk */
    }
    if (!on && fake->holding) fake->allocated -= FAKE_GRADIENT_BYTES;
    if (status == MT_OK) fake->holding = on;
    return note(fake, FAKE_HOLD_GRADIENTS, 0, (size_t)on, 0, status);
}

static mt_status fake_shape(void *self, const mt_batch *batch, mt_shape *out) {
    fake_backend *fake = self;

    out->id = batch->id >> 32;
    return note(fake, FAKE_SHAPE, 0, 0, 0, fallible(fake, FAKE_SHAPE));
}

static mt_status fake_rollback(void *self) {
    fake_backend *fake = self;
    mt_status status = fallible(fake, FAKE_ROLLBACK);

    if (fake->batch == NULL) complain(fake, "rollback outside a step");
    forget_prepared(fake);
    forget_deferred(fake);
    fake->batch = NULL;
    fake->marked = fake->rewindable = 0;
    if (status == MT_OK) {
        fake->state = fake->before;
        memset(fake->gradients, 0, sizeof(fake->gradients));
    }
    return note(fake, FAKE_ROLLBACK, 0, 0, 0, status);
}

static void update(fake_backend *fake) {
    for (size_t j = 0; j < FAKE_PARAMETERS; j++) {
        fake->state.momentum[j] = 0.9 * fake->state.momentum[j] + fake->gradients[j];
        fake->state.parameters[j] -= 0.05 * fake->rate * fake->state.momentum[j];
    }
    fake->state.updates++;
}

static mt_status fake_apply(void *self, mt_apply_result *out) {
    fake_backend *fake = self;
    mt_status status = fallible(fake, FAKE_APPLY);
    double squares = 0;

    if (fake->batch == NULL)
        complain(fake, "apply outside a step");
    else if (fake->disorder || fake->rewindable || fake->covered == 0 ||
             (fake->covered != fake->batch->count && !fake->options.may_shorten))
        complain(fake, "apply without each sample accumulated once, in order");
    if (fake->told_next != fake->told_count)
        complain(fake, "apply before all chunks that were told");
    if (fake->deferred_next != fake->deferred_count)
        complain(fake, "apply before all deferred chunks were collected");
    if (out->size != sizeof(*out)) complain(fake, "apply: size not set");
    if (status == MT_OK) {
        for (size_t j = 0; j < FAKE_PARAMETERS; j++)
            squares += fake->gradients[j] * fake->gradients[j];
        out->grad_norm = sqrt(squares);
        out->skipped = ++fake->step == fake->options.skip_step;
        if (!out->skipped) update(fake);
        if (!out->skipped) out->lr = 0.05 * fake->rate;
        forget_prepared(fake);
        fake->batch = NULL;
    }
    return note(fake, FAKE_APPLY, 0, 0, 0, status);
}

static mt_status fake_evaluate(void *self, const mt_batch *batch, size_t first, size_t count,
                               mt_chunk_result *out) {
    fake_backend *fake = self;
    const fake_program *program =
        fake->options.eval.count > 0 ? &fake->options.eval : &fake_eval_program;
    double features[FAKE_PARAMETERS];
    mt_status status;

    if (fake->batch != NULL) complain(fake, "evaluate inside a step");
    if (first == 0) forget_deferred(fake);
    if (out->size != sizeof(*out) || out->units != 0) complain(fake, "evaluate: result not zeroed");
    if (count == 0 || first + count > batch->count)
        complain(fake, "evaluate: samples out of range");
    status = fallible(fake, FAKE_EVALUATE);
    if (status == MT_OK) status = chunk_memory(fake, program, count, out);
    for (size_t i = first; i < first + count && status == MT_OK; i++)
        sample_run(fake, batch, i, 1.0, features, out);
    if (status == MT_OK) mean_of_nothing(fake, out);
    if (status == MT_OK) defer(fake, out);
    if (status != MT_OK) forget_deferred(fake);
    out->normalises_over_batch = fake->options.shows_norm == 2;
    return note(fake, FAKE_EVALUATE, first, count, 0, status);
}

static mt_status fake_record(void *self, const mt_event_sink *sink) {
    static const mt_event_sink none = {NULL, NULL};
    fake_backend *fake = self;
    mt_status status = MT_OK;

    if (sink != NULL && fake->options.record_rungs != 0 &&
        (fake->options.record_rungs & fake->rungs) == 0)
        complain(fake, "record where nothing is told");
    if (sink != NULL) /* stopping does not fail */
        status = fallible(fake, FAKE_RECORD);
    if (status == MT_OK) fake->sink = sink != NULL ? *sink : none;
    return note(fake, FAKE_RECORD, 0, 0, 0, status);
}

static mt_status fake_units(void *self, const mt_batch *batch, size_t first, size_t count,
                            double *out) {
    fake_backend *fake = self;

    if (count == 0 || first + count > batch->count) complain(fake, "units: samples out of range");
    *out = range_units(fake, first, count) + (count < batch->count ? fake->options.units_off : 0);
    return note(fake, FAKE_UNITS, first, count, 0, fallible(fake, FAKE_UNITS));
}

static mt_status fake_sha256(void *self, char out[65]) {
    fake_backend *fake = self;
    unsigned long long hash = fake_hash(fake);

    snprintf(out, 65, "%016llx%016llx%016llx%016llx", hash, hash ^ 1, hash ^ 2, hash ^ 3);
    return note(fake, FAKE_SHA256, 0, 0, 0, fallible(fake, FAKE_SHA256));
}

/* Not among the calls that fail: its failure is none of the step's. */
static mt_status fake_look_at_parameters(void *self, int *out) {
    fake_backend *fake = self;

    if (fake->batch != NULL) complain(fake, "look_at_parameters in a step");
    if (fake->options.spoilt < 0) return mt_set_error(MT_EDEVMEM, "look_at_parameters");
    *out = !fake->options.spoilt;
    return MT_OK;
}

/* ---- setting up, looking in ----------------------------------------------------------------- */

void fake_init(fake_backend *fake, const fake_options *options) {
    uint64_t state = options->seed;

    memset(fake, 0, sizeof(*fake));
    fake->options = *options;
    for (size_t j = 0; j < FAKE_PARAMETERS; j++) fake->state.parameters[j] = uniform(&state);
    fake->state.rng = fake_random(&state);
    fake->allocated = options->resident_bytes + (options->holds ? FAKE_GRADIENT_BYTES : 0);
    fake->reserved = fake->peak = fake->allocated;
    fake->holding = 1;
    fake->rate = 1.0;
    fake->counted = ~(FAKE_BIT(FAKE_ROLLBACK) | FAKE_BIT(FAKE_REWIND) | FAKE_BIT(FAKE_DESCRIBE) |
                      FAKE_BIT(FAKE_SHA256));
    fail_reset(fake);
}

static int present(const fake_backend *fake, fake_kind kind) {
    return (fake->options.absent & FAKE_BIT(kind)) == 0;
}

mt_backend fake_seam(fake_backend *fake) {
    mt_backend seam = MT_BACKEND_INIT;

    seam.self = fake;
    seam.memory = fake_memory;
    seam.begin = fake_begin;
    seam.accumulate = fake_accumulate;
    seam.rollback = fake_rollback;
    seam.apply = fake_apply;
    seam.describe = present(fake, FAKE_DESCRIBE) ? fake_describe : NULL;
    seam.reset_peak = present(fake, FAKE_RESET_PEAK) ? fake_reset_peak : NULL;
    seam.empty_cache = present(fake, FAKE_EMPTY_CACHE) ? fake_empty_cache : NULL;
    seam.evaluate = present(fake, FAKE_EVALUATE) ? fake_evaluate : NULL;
    seam.record = present(fake, FAKE_RECORD) ? fake_record : NULL;
    seam.units = present(fake, FAKE_UNITS) ? fake_units : NULL;
    seam.state_sha256 = present(fake, FAKE_SHA256) ? fake_sha256 : NULL;
    seam.mark = fake->options.keep ? fake_mark : NULL;
    seam.rewind = fake->options.keep ? fake_rewind : NULL;
    seam.set_rung = fake->options.rungs ? fake_set_rung : NULL;
    seam.set_rate = present(fake, FAKE_SET_RATE) ? fake_set_rate : NULL;
    seam.shape = fake->options.shapes ? fake_shape : NULL;
    seam.hold_gradients = fake->options.holds ? fake_hold_gradients : NULL;
    seam.look_at_parameters = fake_look_at_parameters;
    seam.prepare = fake->options.prepares ? fake_prepare : NULL;
    seam.collect = fake->options.defers ? fake_collect : NULL;
    return seam;
}

static uint64_t fnv(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *byte = data;

    for (size_t i = 0; i < bytes; i++) hash = (hash ^ byte[i]) * 0x100000001b3U;
    return hash;
}

uint64_t fake_hash(const fake_backend *fake) {
    const fake_state *state = &fake->state;
    uint64_t hash = 0xcbf29ce484222325U;

    hash = fnv(hash, state->parameters, sizeof(state->parameters));
    hash = fnv(hash, state->momentum, sizeof(state->momentum));
    hash = fnv(hash, state->buffers, sizeof(state->buffers));
    hash = fnv(hash, &state->rng, sizeof(state->rng));
    return fnv(hash, &state->updates, sizeof(state->updates));
}

size_t fake_live_handles(const fake_backend *fake) {
    return fake->live + (fake->batch != NULL) + (fake->sink.event != NULL);
}

int fake_gradients_zero(const fake_backend *fake) {
    for (size_t j = 0; j < FAKE_PARAMETERS; j++)
        if (fake->gradients[j] != 0) return 0;
    return 1;
}
