/*
 * trainer.c - the transaction over mt_backend: begin, chunks, apply; or rollback, and again.
 *
 * What is to be done is decided in policy.c; here is the order of the calls and the bookkeeping.
 */
#include "trainer_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A step on its way through its attempts. */
typedef struct work {
    const mt_batch *batch;
    mt_mode mode;
    mt_plan plan;
    int forced;          /* the chunks come from mt_trainer_set_chunks */
    size_t count;        /* samples of the step: the batch's, or less where it was made smaller */
    double units;        /* of these */
    size_t unit_samples; /* that units was asked for */
    size_t done;         /* samples that went through, and have not been taken back */
    size_t next;         /* index of the next chunk in the plan */
    size_t planned;      /* samples that were done when the plan was made */
    size_t placed;       /* chunks that went through, of a step that is open or applied */
    size_t chunks;       /* that went through, in all attempts */
    int open;            /* begun, and neither applied nor taken back */
    int marked;          /* a chunk that fails can be taken back alone */
    mt__sums sums;       /* of this attempt */
    mt_apply_result applied;
    double seconds;    /* all attempts */
    size_t peak_bytes; /* all attempts */
    size_t discarded;  /* samples whose work was thrown away */
    unsigned retries;
    unsigned rungs_before; /* the backend's, when the step began, ... */
    double rate_before;    /* ... and its rate */
    mt_oom oom;            /* the last one */
    size_t ruled_out;      /* samples for which there was no plan to try after it, or at all */
} work;

/* ---- life -------------------------------------------------------------------------------------- */

static mt_status check_backend(const mt_backend *b) {
    MT__CHECK(b, "mt_trainer_new: backend is NULL");
    MT__CHECK(b->size >= sizeof b->size,
              "mt_trainer_new: backend->size is not set; use MT_BACKEND_INIT");
    mt_backend own = MT_BACKEND_INIT;
    mt__copy_versioned(&own, sizeof own, b, b->size);
    MT__CHECK(own.memory, "mt_trainer_new: backend->memory is NULL");
    MT__CHECK(own.begin, "mt_trainer_new: backend->begin is NULL");
    MT__CHECK(own.accumulate, "mt_trainer_new: backend->accumulate is NULL");
    MT__CHECK(own.rollback, "mt_trainer_new: backend->rollback is NULL");
    MT__CHECK(own.apply, "mt_trainer_new: backend->apply is NULL");
    return MT_OK;
}

static mt_status describe(mt_trainer *t) {
    t->info.size = sizeof t->info;
    mt_status status = t->backend.describe ? t->backend.describe(t->backend.self, &t->info) : MT_OK;
    if (status != MT_OK) return status;
    MT__CHECK(t->info.metric_count <= MT_METRICS_MAX,
              "mt_trainer_new: the backend has %zu metrics; at most %d are accepted",
              t->info.metric_count, MT_METRICS_MAX);
    MT__CHECK(t->info.metric_count == 0 || t->info.metric_names,
              "mt_trainer_new: the backend has metrics, but metric_names is NULL");
    for (size_t i = 0; t->info.metric_over && i < t->info.metric_count; i++)
        MT__CHECK(t->info.metric_over[i] >= MT_OVER_UNITS &&
                      t->info.metric_over[i] < (int)t->info.metric_count,
                  "mt_trainer_new: metric_over[%zu] is %d; accepted: MT_OVER_SAMPLES (-1), "
                  "MT_OVER_UNITS (-2), or a metric below %zu",
                  i, t->info.metric_over[i], t->info.metric_count);
    return MT_OK;
}

static mt_status read_memory(mt_trainer *t, mt_memory *out) {
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    return t->backend.memory(t->backend.self, out);
}

static mt_status init(mt_trainer *t, const mt_backend *backend, const mt_trainer_options *options) {
    mt_memory memory;
    mt__copy_versioned(&t->backend, sizeof t->backend, backend, backend->size);
    if (options) mt__copy_versioned(&t->options, sizeof t->options, options, options->size);
    t->rate = 1.0;
    if (t->options.policy)
        mt__copy_versioned(&t->policy_options, sizeof t->policy_options, t->options.policy,
                           t->options.policy->size);
    mt_status status = describe(t);
    if (status == MT_OK && t->backend.hold_gradients)
        status = t->backend.hold_gradients(t->backend.self, 1);
    t->info.keeps_chunks = t->backend.mark && t->backend.rewind;
    t->info.holds_gradients = t->backend.hold_gradients != NULL;
    t->holding = 1;
    if (!t->backend.set_rung) t->info.rungs = 0;
    if (status == MT_OK) status = mt_policy_new(t->options.policy, &t->info, &t->policy);
    if (status == MT_OK) status = read_memory(t, &memory);
    if (status != MT_OK) return status;
    t->options.policy = NULL; /* it was the caller's */
    t->run.budget_bytes = memory.budget_bytes;
    mt__trace_run(t, &memory);
    return t->text.failed ? mt_set_error(MT_ENOMEM, "mt_trainer_new: out of host memory") : MT_OK;
}

static void destroy(mt_trainer *t) {
    mt_policy_free(t->policy);
    mt__free(t->text.data);
    mt__free(t->chunks.samples);
    mt__free(t->forced.samples);
    mt__free(t);
}

mt_status mt_trainer_new(const mt_backend *backend, const mt_trainer_options *options,
                         mt_trainer **out) {
    MT__CHECK(out, "mt_trainer_new: out is NULL");
    *out = NULL;
    mt_status status = check_backend(backend);
    if (status != MT_OK) return status;
    MT__CHECK(!options || options->size >= sizeof options->size,
              "mt_trainer_new: options->size is not set; use MT_TRAINER_OPTIONS_INIT");
    mt_trainer *t = mt__alloc(1, sizeof *t);
    if (!t) return mt_set_error(MT_ENOMEM, "mt_trainer_new: out of host memory");
    status = init(t, backend, options);
    if (status == MT_OK && !mt__handle_add(t, MT__KIND_TRAINER))
        status = mt_set_error(MT_ENOMEM, "mt_trainer_new: out of host memory");
    if (status != MT_OK) {
        destroy(t);
        return status;
    }
    *out = t;
    return MT_OK;
}

void mt_trainer_free(mt_trainer *trainer) {
    if (mt__handle_remove(trainer, MT__KIND_TRAINER)) destroy(trainer);
}

/* ---- lists of chunks --------------------------------------------------------------------------- */

static mt_status reserve(mt__chunks *c, size_t count) {
    if (count <= c->capacity) return MT_OK;
    size_t capacity = mt__max(count, mt__max(16, 2 * c->capacity));
    size_t *samples = mt__grow(c->samples, capacity, sizeof *samples);
    if (!samples)
        return mt_set_error(MT_ENOMEM, "out of host memory for a list of %zu chunks", count);
    c->samples = samples;
    c->capacity = capacity;
    return MT_OK;
}

static mt_status is_poisoned(const mt_trainer *t, const char *function) {
    return mt_set_error(MT_ESTATE, "%s: the trainer is poisoned by a failed rollback: %s", function,
                        t->poison);
}

mt_status mt_trainer_set_chunks(mt_trainer *trainer, const size_t *chunks, size_t count) {
    MT__CHECK_HANDLE(trainer, MT__KIND_TRAINER, "mt_trainer_set_chunks");
    if (trainer->poisoned) return is_poisoned(trainer, "mt_trainer_set_chunks");
    MT__CHECK(chunks, "mt_trainer_set_chunks: chunks is NULL");
    MT__CHECK(count > 0, "mt_trainer_set_chunks: count is 0; at least 1 is accepted");
    for (size_t i = 0; i < count; i++)
        MT__CHECK(chunks[i] > 0, "mt_trainer_set_chunks: chunk %zu is 0; at least 1 is accepted",
                  i);
    mt_status status = reserve(&trainer->forced, count);
    if (status != MT_OK) return status;
    memcpy(trainer->forced.samples, chunks, count * sizeof *chunks);
    trainer->forced.count = count;
    trainer->forced_rungs = 0;
    trainer->forced_rate = 1.0;
    return MT_OK;
}

mt_status mt_trainer_set_rungs(mt_trainer *trainer, unsigned rungs, double rate) {
    MT__CHECK_HANDLE(trainer, MT__KIND_TRAINER, "mt_trainer_set_rungs");
    if (trainer->poisoned) return is_poisoned(trainer, "mt_trainer_set_rungs");
    unsigned known = trainer->info.rungs | MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    MT__CHECK((rungs & ~known) == 0, "mt_trainer_set_rungs: rungs is 0x%x; the backend knows 0x%x",
              rungs, known);
    MT__CHECK(rate > 0 && isfinite(rate),
              "mt_trainer_set_rungs: rate is %g; a factor above 0 is accepted", rate);
    MT__CHECK(trainer->forced.count,
              "mt_trainer_set_rungs: no chunks are set; call mt_trainer_set_chunks first");
    trainer->forced_rungs = rungs;
    trainer->forced_rate = rate;
    return MT_OK;
}

static size_t forced_samples(const mt_trainer *t) {
    size_t sum = 0;
    for (size_t i = 0; i < t->forced.count; i++) sum = mt__add(sum, t->forced.samples[i]);
    return sum;
}

/* ---- sums -------------------------------------------------------------------------------------- */

static void add_chunk(mt__sums *sums, const mt_chunk_result *r, size_t samples) {
    sums->loss += r->loss_sum;
    sums->units += r->units;
    sums->samples += samples;
    for (size_t i = 0; i < MT_METRICS_MAX; i++) sums->metrics[i] += r->metric_sums[i];
}

static void add_sums(mt__sums *sums, const mt__sums *more) {
    sums->loss += more->loss;
    sums->units += more->units;
    sums->samples += more->samples;
    for (size_t i = 0; i < MT_METRICS_MAX; i++) sums->metrics[i] += more->metrics[i];
}

/* What the sum of a metric is divided by. */
static double divisor(const mt_trainer *t, const mt__sums *sums, size_t metric) {
    int over = MT_OVER_SAMPLES;
    if (t->info.metric_over && metric < t->info.metric_count) over = t->info.metric_over[metric];
    if (over == MT_OVER_UNITS) return sums->units;
    return over < 0 ? (double)sums->samples : sums->metrics[over];
}

/* Mean loss over units and metrics over what they say; NaN where there was none. */
static double means(const mt_trainer *t, const mt__sums *sums, double metrics[MT_METRICS_MAX]) {
    for (size_t i = 0; i < MT_METRICS_MAX; i++) {
        double by = divisor(t, sums, i);
        metrics[i] = by != 0 ? sums->metrics[i] / by : (double)NAN;
    }
    return sums->units > 0 ? sums->loss / sums->units : (double)NAN;
}

/* ---- one chunk --------------------------------------------------------------------------------- */

static void on_event(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

/* Whether chunks run with the rungs that the policy takes them to: those of a replay may not. */
static int is_of_the_policys_kind(const mt_trainer *t) {
    const unsigned no_kind = MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    return ((t->rungs ^ mt__policy_rungs(t->policy)) & ~no_kind) == 0;
}

/*
 * Starts recording when the policy wants this chunk recorded. It is asked in any case, so that a
 * recording that an error cut short is started anew and never taken for a whole one.
 */
static mt_status start_recording(mt_trainer *t, const work *w, size_t samples, double weight,
                                 int *recording) {
    mt_event_sink sink = {mt_policy_recording(t->policy, w->mode, samples), on_event};
    *recording = 0;
    if (!sink.user || !t->backend.record || weight == 0 || !is_of_the_policys_kind(t)) return MT_OK;
    mt_status status = t->backend.record(t->backend.self, &sink);
    *recording = status == MT_OK;
    return status;
}

static mt_status units_of(mt_trainer *t, const work *w, size_t first, size_t count, double *out) {
    *out = (double)count;
    if (!t->backend.units) return MT_OK;
    mt_status status = t->backend.units(t->backend.self, w->batch, first, count, out);
    if (status == MT_OK && !(*out >= 0))
        return mt_set_error(MT_EINVAL,
                            "the backend's units of samples %zu to %zu are %g; at least 0 "
                            "is accepted",
                            first, first + count, *out);
    return status;
}

/* A chunk's share of the batch; of an evaluation 1. */
static mt_status weigh(mt_trainer *t, const work *w, size_t first, size_t count, double *weight) {
    double units;
    *weight = 1;
    if (w->mode == MT_EVALUATE) return MT_OK;
    mt_status status = units_of(t, w, first, count, &units);
    *weight = status == MT_OK && w->units > 0 ? units / w->units : 0;
    return status;
}

static mt_status run_chunk(mt_trainer *t, work *w, size_t first, size_t count, double weight,
                           mt_chunk_result *r) {
    memset(r, 0, sizeof *r);
    r->size = sizeof *r;
    if (w->mode == MT_EVALUATE)
        return t->backend.evaluate(t->backend.self, w->batch, first, count, r);
    return t->backend.accumulate(t->backend.self, first, count, weight, r);
}

static mt_phase phase_of(const work *w) {
    return w->mode == MT_TRAIN ? MT_PHASE_ACCUMULATE : MT_PHASE_EVALUATE;
}

/* Keeps what is known of a refusal for the policy and for the explanation. */
static void note_oom(work *w, mt_phase phase, size_t chunk, const mt_chunk_result *r,
                     size_t allocated_before) {
    unsigned attempt = w->oom.attempt;
    memset(&w->oom, 0, sizeof w->oom);
    w->ruled_out = 0;
    w->oom.size = sizeof w->oom;
    w->oom.mode = w->mode;
    w->oom.phase = phase;
    w->oom.chunk = chunk;
    w->oom.attempt = attempt;
    w->oom.plan_is_fixed = w->forced;
    w->oom.allocated_before_bytes = allocated_before;
    if (!r) return;
    w->oom.refused = r->refused;
    w->oom.refused_bytes = r->refused_bytes;
    w->oom.refused_in_use_bytes = r->refused_in_use_bytes;
}

/* Has the next chunk be one that can be taken back alone. Without that it runs all the same. */
static mt_status mark(mt_trainer *t, work *w) {
    w->marked = 0;
    if (w->mode != MT_TRAIN || w->forced || !w->plan.keep) return MT_OK;
    mt_status status = t->backend.mark(t->backend.self);
    w->marked = status == MT_OK;
    if (!t->holding) return status; /* its gradients have no other place */
    return status == MT_EDEVMEM || status == MT_ENOTSUP ? MT_OK : status;
}

/* Runs samples [first, first + count) as one chunk and lets the policy learn from it. */
static mt_status do_chunk(mt_trainer *t, work *w, size_t first, size_t count) {
    mt_memory before;
    mt_chunk_result r;
    int recording;
    double weight;
    mt_status status = weigh(t, w, first, count, &weight);
    if (status == MT_OK) status = mark(t, w);
    if (status == MT_OK) status = read_memory(t, &before);
    if (status == MT_OK) status = start_recording(t, w, count, weight, &recording);
    if (status != MT_OK) return status;
    status = run_chunk(t, w, first, count, weight, &r);
    if (recording) {
        mt_status stopped = t->backend.record(t->backend.self, NULL);
        if (stopped != MT_OK) w->marked = 0; /* no chunk that failed: not to be taken back alone */
        if (status == MT_OK) status = stopped;
    }
    w->peak_bytes = mt__max(w->peak_bytes, r.peak_bytes);
    if (r.seconds > 0) w->seconds += r.seconds;
    if (status == MT_EDEVMEM) note_oom(w, phase_of(w), count, &r, before.allocated_bytes);
    if (status != MT_OK) return status;
    add_chunk(&w->sums, &r, count);
    w->done += count;
    w->placed++;
    w->chunks++;
    w->next++;
    w->marked = 0;
    /* Without a weight there is no backward pass, which tells nothing of other chunks. */
    if (weight == 0 || !is_of_the_policys_kind(t)) return MT_OK;
    return mt_policy_observe(t->policy, w->mode, count, before.allocated_bytes, &r);
}

/* ---- one attempt ------------------------------------------------------------------------------- */

/* Size of the next chunk, 0 at the end; extends an open plan whose chunks have run. */
static mt_status next_chunk(mt_trainer *t, work *w, size_t *out) {
    mt_memory memory;
    *out = 0;
    if (w->forced) {
        if (w->next < t->forced.count) *out = t->forced.samples[w->next];
        return MT_OK;
    }
    *out = mt_plan_chunk(&w->plan, w->next);
    if (*out || w->plan.discard || mt_plan_covered(&w->plan) >= w->plan.samples) return MT_OK;
    mt_status status = read_memory(t, &memory);
    if (status == MT_OK) status = mt_policy_extend(t->policy, w->mode, &memory, &w->plan);
    if (status == MT_EDEVMEM) {
        note_oom(w, phase_of(w), 0, NULL, memory.allocated_bytes);
        w->ruled_out = w->plan.samples - mt_plan_covered(&w->plan);
    }
    if (status != MT_OK) return status;
    if (w->mode == MT_TRAIN) mt__trace_plan(t, &w->plan);
    *out = mt_plan_chunk(&w->plan, w->next);
    return MT_OK;
}

/* Keeps the size of a chunk for the report. */
static mt_status list_chunk(mt_trainer *t, const work *w, size_t count) {
    if (w->mode != MT_TRAIN || w->plan.discard) return MT_OK;
    mt_status status = reserve(&t->chunks, w->placed + 1);
    if (status != MT_OK) return status;
    t->chunks.samples[w->placed] = count;
    t->chunks.count = w->placed + 1;
    return MT_OK;
}

/* The chunks that are left. A recording that is to be taken back sees the first samples each time. */
static mt_status do_chunks(mt_trainer *t, work *w) {
    size_t count;
    for (;;) {
        mt_status status = next_chunk(t, w, &count);
        if (status != MT_OK || count == 0) return status;
        status = list_chunk(t, w, count);
        if (status != MT_OK) return status;
        w->discarded += count; /* until apply says otherwise */
        status = do_chunk(t, w, w->plan.discard ? 0 : w->done, count);
        if (status != MT_OK) return status;
    }
}

/* After a failed rollback or rewind nothing can be relied on any more. */
static mt_status poison(mt_trainer *t, const char *what, mt_status status) {
    t->poisoned = 1;
    snprintf(t->poison, sizeof t->poison, "%s: %.200s", mt_status_name(status), mt_last_error());
    return mt_set_error(MT_ESTATE, "the %s of a step failed and the model's state is lost: %s",
                        what, t->poison);
}

/* Forgets what this step has done so far; its work counts as discarded. */
static void forget(work *w) {
    memset(&w->sums, 0, sizeof w->sums);
    w->done = w->next = w->placed = 0;
    w->open = w->marked = 0;
}

/* Takes the step back and returns why, with the words that belong to it. */
static mt_status roll_back(mt_trainer *t, work *w, mt_status because) {
    char reason[sizeof t->poison];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    mt_status status = t->backend.rollback(t->backend.self);
    forget(w);
    if (status != MT_OK) return poison(t, "rollback", status);
    if (because != MT_OK) mt_set_error(because, "%s", reason);
    return because;
}

/* Takes one chunk back, finished ones stay; or the whole step where that cannot be done. */
static mt_status take_back(mt_trainer *t, work *w, mt_status because) {
    char reason[sizeof t->poison];
    if (because != MT_EDEVMEM || !w->marked || w->plan.discard) return roll_back(t, w, because);
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    w->marked = 0;
    mt_status status = t->backend.rewind(t->backend.self);
    if (status != MT_OK) return poison(t, "rewind", status);
    mt_set_error(because, "%s", reason);
    return because;
}

/* Whether the next attempt needs the memory in which gradients are added up. */
static int wants_gradients(const work *w) {
    return w->forced || !w->plan.alone;
}

static mt_status hold_gradients(mt_trainer *t, int on) {
    if (on == t->holding) return MT_OK;
    mt_status status = t->backend.hold_gradients(t->backend.self, on);
    if (status == MT_OK) t->holding = on;
    return status;
}

static mt_status begin(mt_trainer *t, work *w) {
    note_oom(w, MT_PHASE_BEGIN, 0, NULL, 0);
    mt_status status = hold_gradients(t, wants_gradients(w));
    if (status != MT_OK) return status;
    status = t->backend.begin(t->backend.self, w->batch);
    w->open = status == MT_OK;
    return status;
}

/* begin, chunks, apply; or what has to be taken back. After MT_EDEVMEM w->oom tells where. */
static mt_status attempt_step(mt_trainer *t, work *w) {
    mt_set_error(MT_OK, "%s", ""); /* a backend may fail without a word: no older line is its own */
    mt_status status = w->open ? MT_OK : begin(t, w);
    if (status != MT_OK) return status;
    status = do_chunks(t, w);
    if (status != MT_OK || w->plan.discard) return take_back(t, w, status);
    memset(&w->applied, 0, sizeof w->applied);
    w->applied.size = sizeof w->applied;
    w->applied.grad_norm = (double)NAN;
    note_oom(w, MT_PHASE_APPLY, 0, NULL, 0);
    status = t->backend.apply(t->backend.self, &w->applied);
    if (status != MT_OK) return roll_back(t, w, status);
    w->open = 0;
    w->discarded -= w->done;
    if (w->applied.seconds > 0) w->seconds += w->applied.seconds;
    return MT_OK;
}

/* ---- cache ------------------------------------------------------------------------------------- */

/* A clear that memory does not suffice for is none: what it was for goes on without. */
static mt_status clear(mt_trainer *t, mt_clear_reason reason) {
    mt_clear_result result = {sizeof result, 0, 0};
    if (!t->backend.empty_cache) return MT_OK;
    mt_status status = t->backend.empty_cache(t->backend.self, &result);
    if (status == MT_EDEVMEM) {
        mt_log(MT_LOG_WARNING, "the cache is not emptied: %s", mt_last_error());
        return mt_set_error(MT_OK, "%s", "");
    }
    if (status != MT_OK) return status;
    mt_policy_cleared(t->policy, &result);
    t->run.clears++;
    mt__trace_clear(t, reason, &result);
    return MT_OK;
}

/* ---- the ladder -------------------------------------------------------------------------------- */

/* Turns one rung on or off. A smaller batch is the trainer's own affair. */
static mt_status set_rung(mt_trainer *t, mt_rung rung, int on, const char *reason) {
    mt_status status = MT_OK;
    if (rung != MT_RUNG_SMALLER_BATCH) status = t->backend.set_rung(t->backend.self, rung, on);
    if (status == MT_EDEVMEM && clear(t, MT_CLEAR_OOM) == MT_OK)
        status = t->backend.set_rung(t->backend.self, rung, on);
    if (status != MT_OK) return status;
    t->rungs ^= MT_RUNG_BIT(rung);
    mt__trace_rung(t, rung, on, reason);
    return MT_OK;
}

static mt_status set_rate(mt_trainer *t, double rate) {
    if (rate == t->rate || !t->backend.set_rate) return MT_OK;
    mt_status status = t->backend.set_rate(t->backend.self, rate);
    if (status == MT_OK) t->rate = rate;
    return status;
}

/* Brings the backend to these rungs; out_failed is the one that could not be set, or MT_RUNGS. */
static mt_status set_rungs(mt_trainer *t, unsigned rungs, double rate, const char *reason_on,
                           unsigned *out_failed) {
    *out_failed = MT_RUNGS;
    for (unsigned r = 0; r < MT_RUNGS; r++) {
        int on = (rungs & MT_RUNG_BIT(r)) != 0;
        if (!((rungs ^ t->rungs) & MT_RUNG_BIT(r))) continue;
        mt_status status = set_rung(t, (mt_rung)r, on, on ? reason_on : "room");
        if (status != MT_OK) {
            *out_failed = r;
            return status;
        }
    }
    return set_rate(t, rate);
}

/* ---- retries ----------------------------------------------------------------------------------- */

/* As if gradients were held, which is how the policy is told. */
static void add_gradients(const mt_trainer *t, mt_memory *memory) {
    memory->allocated_bytes = mt__add(memory->allocated_bytes, t->info.gradient_bytes);
    memory->reserved_bytes = mt__add(memory->reserved_bytes, t->info.gradient_bytes);
}

/* One plan for what is left of the step. */
static mt_status ask_plan(mt_trainer *t, work *w) {
    mt_memory memory;
    mt_status status = read_memory(t, &memory);
    if (status != MT_OK) return status;
    if (w->mode == MT_TRAIN && !t->holding) add_gradients(t, &memory);
    status = mt_policy_plan(t->policy, w->mode, w->count - w->done, &memory, &w->plan);
    w->next = 0;
    w->planned = w->done;
    if (status != MT_EDEVMEM) return status;
    /* What an OOM of this step has shown is all the evidence there is. */
    if (!w->oom.attempt)
        note_oom(w, w->mode == MT_TRAIN ? MT_PHASE_BEGIN : MT_PHASE_EVALUATE, 0, NULL,
                 memory.allocated_bytes);
    w->ruled_out = w->count - w->done;
    w->oom.memory = memory;
    if (!w->open) mt__trace_oom(t, &w->oom, MT_ACTION_GIVE_UP);
    return status;
}

/* What the plan asks of the ladder; a rung that cannot be set makes another plan. */
static mt_status take_rungs(mt_trainer *t, work *w) {
    unsigned failed;
    for (;;) {
        mt_status status =
            set_rungs(t, w->plan.rungs, w->plan.rate, w->oom.attempt ? "oom" : "budget", &failed);
        if (failed == MT_RUNGS || (status != MT_EDEVMEM && status != MT_ENOTSUP)) return status;
        int on = (w->plan.rungs & MT_RUNG_BIT(failed)) != 0;
        mt_log(MT_LOG_WARNING, "rung %s cannot be turned %s: %s", mt_rung_name((mt_rung)failed),
               on ? "on" : "off", mt_last_error());
        status = mt_policy_rung_failed(t->policy, (mt_rung)failed, on, status);
        if (status == MT_OK) status = ask_plan(t, w);
        if (status != MT_OK) return status;
    }
}

/* The step is to have fewer samples than the batch: the first ones. */
static mt_status shorten(mt_trainer *t, work *w) {
    if (w->mode != MT_TRAIN || w->done) return MT_OK;
    w->count = w->plan.samples;
    if (w->unit_samples == w->count) return MT_OK;
    w->unit_samples = w->count;
    return units_of(t, w, 0, w->count, &w->units);
}

/* Whether what the plan asks for changes outside a step alone. */
static int wants_a_new_step(const mt_trainer *t, const work *w) {
    return w->plan.rungs != t->rungs || wants_gradients(w) != t->holding;
}

/*
 * Plans what is left. Where the plan wants other rungs, or gradients held that are not, the finished
 * chunks are taken back too, and the whole batch is planned.
 */
static mt_status make_plan(mt_trainer *t, work *w) {
    if (!w->open) w->count = w->batch->count;
    mt_status status = ask_plan(t, w);
    if (w->open && (status == MT_EDEVMEM || (status == MT_OK && wants_a_new_step(t, w)))) {
        mt_status rolled = roll_back(t, w, status);
        if (rolled != MT_OK) return rolled;
        w->count = w->batch->count;
        mt__policy_same_step(t->policy);
        status = ask_plan(t, w);
    }
    if (status == MT_OK) status = take_rungs(t, w);
    if (status == MT_OK) status = shorten(t, w);
    if (status == MT_OK && w->mode == MT_TRAIN &&
        (w->plan.discard || mt_plan_covered(&w->plan) == w->count - w->done))
        mt__trace_plan(t, &w->plan);
    return status;
}

/* Asks the policy what to do after an OOM and does it. MT_OK: try again; else the step is over. */
static mt_status answer_oom(mt_trainer *t, work *w) {
    mt_action action = MT_ACTION_GIVE_UP;
    char reason[256];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    w->oom.attempt++;
    w->oom.plan_is_fixed = w->forced;
    t->run.ooms++;
    mt_status status = read_memory(t, &w->oom.memory);
    if (status == MT_OK) status = mt_policy_oom(t->policy, &w->oom, &action);
    if (status != MT_OK) return status;
    mt__trace_oom(t, &w->oom, action);
    if (action == MT_ACTION_GIVE_UP) return mt_set_error(MT_EDEVMEM, "%s", reason);
    w->retries++;
    if (action == MT_ACTION_CLEAR) status = clear(t, MT_CLEAR_OOM);
    if (status != MT_OK) return status;
    if (action == MT_ACTION_REPLAN) return make_plan(t, w);
    /* Evaluation goes on behind the chunks that went through. A training step that has been taken back
       behind the place where its plan begins needs one for all of it. */
    if (w->mode != MT_EVALUATE && w->planned <= w->done) return MT_OK;
    mt__policy_same_step(t->policy);
    return make_plan(t, w);
}

/* Keeps the failure for mt_trainer_explain and puts what it was about before the backend's words. */
static void keep_failure(mt_trainer *t, const work *w) {
    char reason[256];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    t->has_failure = 1;
    t->failure = w->oom;
    t->ruled_out = w->ruled_out;
    t->failed_batch = w->batch->count;
    mt_set_error(MT_EDEVMEM, "a batch of %zu samples does not fit on %s: %s", w->batch->count,
                 t->info.device ? t->info.device : "the device",
                 reason[0] ? reason : mt_status_text(MT_EDEVMEM));
}

/* One rung back to where the step found it. One that cannot be set back is told to the policy. */
static mt_status give_rung_back(mt_trainer *t, const work *w, mt_rung rung) {
    int on = (w->rungs_before & MT_RUNG_BIT(rung)) != 0;
    if (!((w->rungs_before ^ t->rungs) & MT_RUNG_BIT(rung))) return MT_OK;
    mt_status status = set_rung(t, rung, on, "oom");
    if (status != MT_EDEVMEM && status != MT_ENOTSUP) return status;
    mt_log(MT_LOG_WARNING, "rung %s cannot be turned %s: %s", mt_rung_name(rung), on ? "on" : "off",
           mt_last_error());
    return mt_policy_rung_failed(t->policy, rung, on, status);
}

/* The rungs that were taken in vain are turned off, the newest first. Returns why, or what failed. */
static mt_status give_rungs_back(mt_trainer *t, const work *w) {
    char reason[256];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    for (unsigned r = MT_RUNGS; r-- > 0;) {
        mt_status status = give_rung_back(t, w, (mt_rung)r);
        if (status != MT_OK) return status;
    }
    mt_status status = set_rate(t, w->rate_before);
    return status == MT_OK ? mt_set_error(MT_EDEVMEM, "%s", reason) : status;
}

/* Attempts until one goes through or nothing is left to try; then nothing has happened. */
static mt_status do_step(mt_trainer *t, work *w) {
    mt_status status = w->forced ? MT_OK : make_plan(t, w);
    while (status == MT_OK) {
        status = attempt_step(t, w);
        if (status == MT_OK && !w->plan.discard) return MT_OK;
        if (status == MT_OK)
            status = make_plan(t, w); /* the recording is known now */
        else if (status == MT_EDEVMEM)
            status = answer_oom(t, w);
    }
    if (w->open && !t->poisoned) status = roll_back(t, w, status);
    return status == MT_EDEVMEM ? give_rungs_back(t, w) : status;
}

/* ---- checks ------------------------------------------------------------------------------------ */

static mt_status check_batch(const mt_trainer *t, const mt_batch *batch, const char *function) {
    if (!mt__handle_is(t, MT__KIND_TRAINER)) return mt__bad_handle(t, function, "trainer");
    MT__CHECK(batch, "%s: batch is NULL", function);
    MT__CHECK(batch->size >= sizeof(mt_batch), "%s: batch->size is not set; use MT_BATCH_INIT",
              function);
    MT__CHECK(batch->count > 0 && batch->count <= INT64_MAX,
              "%s: batch->count is %zu; at least 1 is accepted, and less than 2^63", function,
              batch->count);
    return t->poisoned ? is_poisoned(t, function) : MT_OK;
}

/* What the options and the loss allow, and the chunks given. */
static mt_status check_cut(mt_trainer *t, const mt_batch *batch) {
    size_t forced = forced_samples(t), micro = t->policy_options.micro_batch;
    int cut = t->forced.count > 1 || (!t->forced.count && micro && micro < batch->count);
    if (t->forced.count && forced != batch->count) {
        size_t chunks = t->forced.count;
        return mt_set_error(MT_EINVAL,
                            "mt_trainer_step: the %zu chunks given add up to %zu samples; "
                            "the batch has %zu",
                            chunks, forced, batch->count);
    }
    MT__CHECK(
        !t->info.needs_whole_batch || !cut,
        "mt_trainer_step: the loss couples the samples of the batch, so that cutting %zu of them "
        "into chunks would change it; run the batch whole",
        batch->count);
    return MT_OK;
}

static int is_dropped(const mt_trainer *t, const mt_batch *batch) {
    return t->options.drop_small && batch->count < mt__smallest_chunk(&t->policy_options, &t->info);
}

/* ---- step -------------------------------------------------------------------------------------- */

/* Adds the finished step to the epoch and the run. */
static void count_step(mt_trainer *t, const work *w) {
    mt_run_report *r = &t->run;
    r->steps++;
    r->samples_trained += w->done;
    for (size_t i = 0; i < t->chunks.count; i++) {
        size_t m = t->chunks.samples[i];
        r->largest_chunk = mt__max(r->largest_chunk, m);
        r->smallest_chunk = r->smallest_chunk ? mt__min(r->smallest_chunk, m) : m;
    }
    add_sums(&t->train, &w->sums);
}

/* Time and peak count whether the step went through or not. */
static void count_work(mt_trainer *t, const work *w) {
    t->run.seconds += w->seconds;
    t->run.samples_discarded += w->discarded;
    t->run.peak_bytes = mt__max(t->run.peak_bytes, w->peak_bytes);
    t->epoch_seconds += w->seconds;
    t->epoch_peak_bytes = mt__max(t->epoch_peak_bytes, w->peak_bytes);
}

static void fill_report(mt_trainer *t, const work *w, const mt_memory *after, mt_step_report *r) {
    memset(r, 0, sizeof *r);
    r->size = sizeof *r;
    r->step = t->run.steps;
    r->samples = w->done;
    r->chunks = t->chunks.samples;
    r->chunk_count = t->chunks.count;
    r->loss = means(t, &w->sums, r->metrics);
    r->grad_norm = w->applied.grad_norm;
    r->seconds = w->seconds;
    r->retries = w->retries;
    r->discarded = w->discarded;
    r->skipped = w->applied.skipped;
    r->reason = w->forced ? MT_PLAN_REPLAY : w->plan.reason;
    r->predicted_peak_bytes = w->plan.predicted_peak_bytes;
    r->peak_bytes = w->peak_bytes;
    r->allocated_bytes = after->allocated_bytes;
    r->reserved_bytes = after->reserved_bytes;
    r->budget_bytes = after->budget_bytes;
    r->rungs = t->rungs;
    r->rate = t->rate;
}

/* Hands a report of the library's own size to a caller whose struct may be older. */
static void give(void *theirs, size_t theirs_size, const void *own, size_t own_size) {
    memcpy(theirs, own, mt__min(theirs_size, own_size));
    memcpy(theirs, &theirs_size, sizeof theirs_size);
}

/* Tells the policy what kind of batch comes. */
static mt_status select_shape(mt_trainer *t, const mt_batch *batch) {
    uint64_t shape = 0;
    if (!t->backend.shape) return MT_OK;
    mt_status status = t->backend.shape(t->backend.self, batch, &shape);
    return status == MT_OK ? mt_policy_select(t->policy, shape) : status;
}

/* The rungs of a step whose chunks are given. */
static mt_status force_rungs(mt_trainer *t) {
    unsigned failed;
    mt__trace_forced(t);
    return set_rungs(t, t->forced_rungs, t->forced_rate, "replay", &failed);
}

static mt_status prepare_step(mt_trainer *t, work *w) {
    mt_memory memory;
    w->rungs_before = t->rungs;
    w->rate_before = t->rate;
    w->forced = t->forced.count > 0;
    w->count = w->unit_samples = w->batch->count;
    mt_status status = units_of(t, w, 0, w->count, &w->units);
    if (status == MT_OK) status = select_shape(t, w->batch);
    if (status == MT_OK) status = read_memory(t, &memory);
    if (status != MT_OK) return status;
    t->run.budget_bytes = memory.budget_bytes;
    size_t expected = mt_policy_predict_bytes(t->policy, MT_TRAIN, t->run.largest_chunk);
    if (expected) expected = mt__add(expected, memory.allocated_bytes);
    mt__policy_begin_step(t->policy);
    mt_clear_reason reason = mt_policy_clear(t->policy, MT_TRAIN, &memory, expected);
    if (reason != MT_CLEAR_NOT) status = clear(t, reason);
    if (status != MT_OK) return status;
    mt__policy_forced(t->policy, w->forced);
    if (w->forced) status = force_rungs(t);
    if (status != MT_OK) return status;
    return t->backend.reset_peak ? t->backend.reset_peak(t->backend.self) : MT_OK;
}

mt_status mt_trainer_step(mt_trainer *trainer, const mt_batch *batch, mt_step_report *report) {
    mt_trainer *t = trainer;
    mt_memory after;
    mt_step_report own;
    work w;
    mt_status status = check_batch(t, batch, "mt_trainer_step");
    if (status != MT_OK) return status;
    t->has_failure = 0;
    status = check_cut(t, batch);
    if (status != MT_OK) {
        t->forced.count = 0;
        return status;
    }
    MT__CHECK(!report || report->size >= sizeof report->size,
              "mt_trainer_step: report->size is not set; use MT_STEP_REPORT_INIT");
    memset(&w, 0, sizeof w);
    w.batch = batch;
    t->chunks.count = 0;
    if (!is_dropped(t, batch)) {
        status = prepare_step(t, &w);
        if (status == MT_OK) status = do_step(t, &w);
        if (status == MT_EDEVMEM) keep_failure(t, &w);
    }
    t->forced.count = 0; /* also those for a batch that is dropped */
    /* Only the report wants this figure: without it the step has gone through all the same. */
    if (status == MT_OK && read_memory(t, &after) != MT_OK) memset(&after, 0, sizeof after);
    if (status == MT_OK && t->backend.reset_peak)
        w.peak_bytes = mt__max(w.peak_bytes, after.peak_bytes);
    count_work(t, &w);
    if (status != MT_OK) return status;
    if (w.done) count_step(t, &w);
    fill_report(t, &w, &after, &own);
    if (w.done) mt__trace_step(t, &own);
    if (report) give(report, report->size, &own, sizeof own);
    return MT_OK;
}

/* ---- evaluation -------------------------------------------------------------------------------- */

/* Chunks that went through stay; an OOM takes back only the chunk that it hit. */
static mt_status do_evaluation(mt_trainer *t, work *w) {
    mt_status status = make_plan(t, w);
    while (status == MT_OK && w->done < w->count) {
        mt_set_error(MT_OK, "%s", "");
        status = do_chunks(t, w);
        if (status == MT_EDEVMEM) status = answer_oom(t, w);
    }
    return status == MT_EDEVMEM ? give_rungs_back(t, w) : status;
}

mt_status mt_trainer_evaluate(mt_trainer *trainer, const mt_batch *batch, mt_eval_report *report) {
    mt_trainer *t = trainer;
    mt_memory memory;
    work w;
    mt_status status = check_batch(t, batch, "mt_trainer_evaluate");
    if (status != MT_OK) return status;
    MT__CHECK(!report || report->size >= sizeof report->size,
              "mt_trainer_evaluate: report->size is not set; use MT_EVAL_REPORT_INIT");
    if (!t->backend.evaluate)
        return mt_set_error(MT_ENOTSUP, "mt_trainer_evaluate: the backend has no evaluate");
    memset(&w, 0, sizeof w);
    w.batch = batch;
    w.mode = MT_EVALUATE;
    w.rungs_before = t->rungs;
    w.rate_before = t->rate;
    t->has_failure = 0;
    status = select_shape(t, batch);
    if (status == MT_OK) status = read_memory(t, &memory);
    if (status != MT_OK) return status;
    mt__policy_begin_step(t->policy);
    mt_clear_reason reason = mt_policy_clear(t->policy, MT_EVALUATE, &memory, 0);
    if (reason != MT_CLEAR_NOT) status = clear(t, reason);
    if (status == MT_OK) status = do_evaluation(t, &w);
    w.discarded = 0;
    count_work(t, &w);
    if (status == MT_EDEVMEM) keep_failure(t, &w);
    if (status != MT_OK) return status;
    add_sums(&t->eval, &w.sums);
    if (report) {
        mt_eval_report own = MT_EVAL_REPORT_INIT;
        own.samples = w.done;
        own.loss = means(t, &w.sums, own.metrics);
        own.seconds = w.seconds;
        own.retries = w.retries;
        own.peak_bytes = w.peak_bytes;
        own.chunk_count = w.chunks;
        give(report, report->size, &own, sizeof own);
    }
    return MT_OK;
}

/* ---- epoch and run ------------------------------------------------------------------------------ */

mt_status mt_trainer_end_epoch(mt_trainer *trainer, mt_epoch_report *report) {
    mt_trainer *t = trainer;
    mt_epoch_report own = MT_EPOCH_REPORT_INIT;
    mt_status status = MT_OK;
    MT__CHECK_HANDLE(trainer, MT__KIND_TRAINER, "mt_trainer_end_epoch");
    MT__CHECK(!report || report->size >= sizeof report->size,
              "mt_trainer_end_epoch: report->size is not set; use MT_EPOCH_REPORT_INIT");
    if (t->poisoned) return is_poisoned(t, "mt_trainer_end_epoch");
    own.samples = t->train.samples;
    own.eval_samples = t->eval.samples;
    own.loss = means(t, &t->train, own.metrics);
    own.eval_loss = means(t, &t->eval, own.eval_metrics);
    own.seconds = t->epoch_seconds;
    own.peak_bytes = t->epoch_peak_bytes;
    own.epoch = t->epoch + 1;
    int every = t->policy_options.clear_every;
    if (every > 0 || every == MT_CLEAR_EPOCHS) status = clear(t, MT_CLEAR_EPOCH);
    if (status != MT_OK) return status;
    t->epoch++;
    mt__trace_epoch(t, &own);
    memset(&t->train, 0, sizeof t->train);
    memset(&t->eval, 0, sizeof t->eval);
    t->epoch_seconds = 0;
    t->epoch_peak_bytes = 0;
    if (report) give(report, report->size, &own, sizeof own);
    return MT_OK;
}

mt_status mt_trainer_summary(const mt_trainer *trainer, mt_run_report *report) {
    MT__CHECK_HANDLE(trainer, MT__KIND_TRAINER, "mt_trainer_summary");
    MT__CHECK(report, "mt_trainer_summary: report is NULL");
    MT__CHECK(report->size >= sizeof report->size,
              "mt_trainer_summary: report->size is not set; use MT_RUN_REPORT_INIT");
    give(report, report->size, &trainer->run, sizeof trainer->run);
    return MT_OK;
}

mt_status mt_trainer_finish(mt_trainer *trainer, mt_run_report *report) {
    mt_trainer *t = trainer;
    MT__CHECK_HANDLE(trainer, MT__KIND_TRAINER, "mt_trainer_finish");
    MT__CHECK(!report || report->size >= sizeof report->size,
              "mt_trainer_finish: report->size is not set; use MT_RUN_REPORT_INIT");
    if (t->poisoned) return is_poisoned(t, "mt_trainer_finish");
    if (t->backend.state_sha256) {
        mt_status status = t->backend.state_sha256(t->backend.self, t->run.state_sha256);
        if (status != MT_OK) return status;
    }
    mt__trace_end(t);
    return report ? mt_trainer_summary(t, report) : MT_OK;
}

const mt_policy *mt_trainer_policy(const mt_trainer *trainer) {
    return mt__handle_is(trainer, MT__KIND_TRAINER) ? trainer->policy : NULL;
}
