/*
 * attempt.c - the transaction over mt_backend: begin, chunks, apply; or rollback.
 *
 * What is to be done is decided in split.c and answer.c, and done again in retry.c; here is the order of calls.
 */
#include "attempt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

mt_status mt__read_memory(mt_trainer *t, mt_memory *out) {
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    return t->backend.memory(t->backend.self, out);
}

mt_status mt__reserve_chunks(mt__chunks *c, size_t count) {
    if (count <= c->capacity) return MT_OK;
    size_t capacity = mt__max(count, mt__max(16, 2 * c->capacity));
    size_t *samples = mt__grow(c->samples, capacity, sizeof *samples);
    if (!samples)
        return mt_set_error(MT_ENOMEM, "out of host memory for a list of %zu chunks", count);
    c->samples = samples;
    c->capacity = capacity;
    return MT_OK;
}

mt_status mt__agree(mt_trainer *t, mt_status status, mt__sums *sums) {
    double values[4 + MT_METRICS_MAX] = {status != MT_OK, sums->loss, sums->units,
                                         (double)sums->samples};
    char reason[MT__LINE];
    if (!t->backend.agree) return status;
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    memcpy(values + 4, sums->metrics, sizeof sums->metrics);
    mt_status agreed = t->backend.agree(t->backend.self, values, sizeof values / sizeof *values);
    if (status != MT_OK) return mt_set_error(status, "%s", reason);
    if (agreed != MT_OK) return agreed;
    if (values[0] > 0)
        return mt_set_error(MT_EPEER, "%.0f of the processes could not do their part of it",
                            values[0]);
    sums->loss = values[1];
    sums->units = values[2];
    sums->samples = (size_t)values[3];
    memcpy(sums->metrics, values + 4, sizeof sums->metrics);
    return MT_OK;
}

/* ---- one chunk --------------------------------------------------------------------------------- */

/*
 * The mean over nothing is 0/0: a chunk without units adds no loss, and of its metrics those that are numbers.
 * Its samples count, as they do where they are a part of a larger chunk.
 */
static void add_chunk(mt__sums *sums, const mt_chunk_result *r, size_t samples) {
    int has_units = r->units != 0;
    if (has_units) sums->loss += r->loss_sum;
    sums->units += r->units;
    sums->samples += samples;
    for (size_t i = 0; i < MT_METRICS_MAX; i++)
        if (has_units || isfinite(r->metric_sums[i])) sums->metrics[i] += r->metric_sums[i];
}

/* ---- metrics that look like means ---- */

/*
 * The usual slip is the share of right answers in the place of their number: k of n samples give k / n. So a metric
 * of a chunk of many samples may be a mean where it is within [0, 1] and a whole number of n-ths. A count is 0 or 1 then,
 * which is no evidence, and a sum of real numbers hits an n-th to a thousandth in one of 500 chunks, so that 8 chunks without
 * one that is something else are no accident. Means of real numbers cannot be told from small sums, and are not.
 */
enum { MANY_SAMPLES = 16, CHUNKS_THAT_AGREE = 8 };

static int may_be_mean(double metric, size_t samples) {
    double count = metric * (double)samples;
    return metric >= 0 && metric <= 1 && fabs(count - round(count)) < 1e-3;
}

static void tell_of_mean(const mt_trainer *t, size_t metric, double value, size_t samples) {
    mt_log(
        MT_LOG_WARNING,
        "metric '%s' looks like a mean: it is %g of a chunk of %zu samples; metrics are sums over "
        "a chunk's samples, and the report divides by their number",
        t->info.metric_names[metric], value, samples);
}

static void look_at_metrics(mt_trainer *t, const mt_chunk_result *r, size_t samples) {
    for (size_t i = 0; i < t->info.metric_count && samples >= MANY_SAMPLES; i++) {
        int *seen = &t->means_seen[i];
        double value = r->metric_sums[i];
        int is_sum = !t->info.metric_over || t->info.metric_over[i] == MT_OVER_SAMPLES;
        if (*seen < 0 || !is_sum || !isfinite(value)) continue;
        if (!may_be_mean(value, samples)) *seen = -1;
        if (*seen < 0 || value == 0 || value == 1 || ++*seen < CHUNKS_THAT_AGREE) continue;
        *seen = -1;
        tell_of_mean(t, i, value, samples);
    }
}

static void add_figures(mt_trainer *t, mt__work *w, const mt_chunk_result *r, size_t samples) {
    add_chunk(&w->sums, r, samples);
    look_at_metrics(t, r, samples);
}

static void on_event(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

/* Whether chunks run with the rungs that the policy takes them to: those of a replay may not. */
static int is_of_the_policys_kind(const mt_trainer *t) {
    const unsigned no_kind = MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    return ((t->rungs ^ mt_policy_rungs(t->policy)) & ~no_kind) == 0;
}

/*
 * Starts recording when the policy wants this chunk recorded. It is asked in any case, so that a
 * recording that an error cut short is started anew and never taken for a whole one.
 */
static mt_status start_recording(mt_trainer *t, const mt__work *w, size_t samples, double weight,
                                 int *recording) {
    mt_event_sink sink = {mt_policy_recording(t->policy, w->mode, samples), on_event};
    *recording = 0;
    if (!sink.user || weight == 0 || !is_of_the_policys_kind(t)) return MT_OK;
    mt_status status = t->backend.record(t->backend.self, &sink);
    *recording = status == MT_OK;
    return status;
}

mt_status mt__units_of(mt_trainer *t, const mt__work *w, size_t first, size_t count, double *out) {
    *out = (double)count;
    if (!t->backend.units) return MT_OK;
    mt_status status = t->backend.units(t->backend.self, w->batch, first, count, out);
    if (status == MT_OK && !(*out >= 0 && isfinite(*out)))
        return mt_set_error(MT_EINVAL,
                            "the backend's units of samples %zu to %zu are %g; accepted: a number, "
                            "at least 0",
                            first, first + count, *out);
    return status;
}

/* A chunk's units and its share of the batch; of an evaluation 0 and 1. */
static mt_status weigh(mt_trainer *t, const mt__work *w, size_t first, size_t count, double *units,
                       double *weight) {
    *units = 0;
    *weight = 1;
    if (w->mode == MT_EVALUATE) return MT_OK;
    mt_status status = mt__units_of(t, w, first, count, units);
    *weight = status == MT_OK && w->units > 0 ? *units / w->units : 0;
    return status;
}

/* Counts add up exactly. Sums of weights are rounded, in float32 over many samples by more than its last digit. */
static int are_equal(double a, double b) {
    double larger = a > b ? a : b;
    int are_counts = a == floor(a) && b == floor(b);
    return fabs(a - b) <= (are_counts ? 1e-6 : 1e-4) * larger;
}

/* Otherwise the weights of the chunks do not add up to 1, and the gradient is a multiple of the batch's. */
static mt_status check_units(const mt_trainer *t, const mt__work *w) {
    double own = t->backend.agree ? w->own_units : w->units;
    if (are_equal(own, w->weighed)) return MT_OK;
    return mt_set_error(MT_EINVAL,
                        "the units of the chunks add up to %.9g, and those of the batch's %zu "
                        "samples are %.9g; accepted: units that add up, as numbers of labels do",
                        w->weighed, w->count, own);
}

static void clear_result(mt_chunk_result *r, int deferred) {
    memset(r, 0, sizeof *r);
    r->size = sizeof *r;
    r->deferred = deferred;
}

/* Runs it; deferred: its figures may come later, and r->deferred tells whether they do. */
static mt_status run_chunk(mt_trainer *t, mt__work *w, size_t first, size_t count, double weight,
                           int deferred, mt_chunk_result *r) {
    clear_result(r, deferred);
    if (w->mode == MT_EVALUATE)
        return t->backend.evaluate(t->backend.self, w->batch, first, count, r);
    return t->backend.accumulate(t->backend.self, first, count, weight, r);
}

static mt_phase phase_of(const mt__work *w) {
    return w->mode == MT_TRAIN ? MT_PHASE_ACCUMULATE : MT_PHASE_EVALUATE;
}

void mt__note_oom(mt__work *w, mt_phase phase, size_t chunk, const mt_chunk_result *r,
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
static mt_status mark(mt_trainer *t, mt__work *w) {
    w->marked = 0;
    if (w->mode != MT_TRAIN || (w->forced ? t->holding : !w->plan.keep)) return MT_OK;
    if (w->forced) (void)!mt_policy_given(t->policy, 1);
    mt_status status = t->backend.mark(t->backend.self);
    w->marked = status == MT_OK;
    if (!t->holding) return status; /* its gradients have no other place */
    return status == MT_EDEVMEM || status == MT_ENOTSUP ? MT_OK : status;
}

/* Whether the backend is told beforehand of the chunks. */
static int is_told(const mt_trainer *t, const mt__work *w) {
    return t->backend.prepare && w->mode == MT_TRAIN;
}

/*
 * Bytes in use that a chunk's peak comes on top of. What was prepared for the chunks counts as theirs: it
 * is not there yet when the next step is planned.
 */
static size_t base_of(const mt_trainer *t, const mt__work *w, const mt_memory *before) {
    return is_told(t, w) ? w->allocated_before : before->allocated_bytes;
}

static size_t smallest_in(const mt_plan *plan) {
    size_t smallest = SIZE_MAX;
    for (size_t i = 0; i < mt_plan_chunks(plan); i++)
        smallest = mt__min(smallest, mt_plan_chunk(plan, i));
    return smallest;
}

/*
 * The first chunk has shown what describe did not know: it normalises over its samples. Where this one is not the whole
 * batch, it may be too small, or a recording that is not kept, so all is done again. A size that the user has fixed is
 * kept, or refused; chunks that are given are the caller's affair.
 */
static mt_status learn_of_norm(mt_trainer *t, mt__work *w, size_t count) {
    size_t least, fixed = t->policy_options.micro_batch;
    mt_backend_info now = t->info;
    now.normalises_over_batch = 1;
    now.min_micro_batch = mt__max(2, t->info.min_micro_batch);
    mt_status status = mt_policy_describe(t->policy, &now);
    if (status != MT_OK) return w->forced ? mt_set_error(MT_OK, "%s", "") : status;
    t->info = now;
    t->normalises = 1;
    least = mt__smallest_chunk(&t->policy_options, &t->info);
    if (w->forced || w->plan.alone || (fixed && smallest_in(&w->plan) >= least)) return MT_OK;
    w->again = count < w->count;
    return MT_OK;
}

static int is_open(const mt__work *w) {
    return !w->plan.discard && mt_plan_covered(&w->plan) < w->plan.samples;
}

/*
 * Whether the chunk need not be waited for: nothing is to be learnt from it, and how the step goes on does not depend on
 * it. In a plan that is open it does.
 */
static int may_be_deferred(const mt_trainer *t, const mt__work *w, size_t count, double weight) {
    if (!t->backend.collect || weight == 0) return 0;
    if (!w->forced && (w->plan.discard || is_open(w))) return 0;
    return !mt_policy_wants_seconds(t->policy, w->mode, count);
}

/* Memory ran out in one of the deferred chunks, which one is not known: the largest is the likeliest. */
static mt_status note_deferred_oom(mt_trainer *t, mt__work *w, const mt_chunk_result *r) {
    mt_memory now;
    size_t largest = 0;
    for (size_t i = 0; i < w->deferred; i++) largest = mt__max(largest, t->deferred.samples[i]);
    mt_status status = mt__read_memory(t, &now);
    mt__note_oom(w, phase_of(w), largest, r, status == MT_OK ? now.allocated_bytes : 0);
    return status == MT_OK ? MT_EDEVMEM : status;
}

/* The figures of one chunk that was not waited for. */
static mt_status collect_one(mt_trainer *t, mt__work *w, size_t samples) {
    mt_chunk_result r;
    clear_result(&r, 0);
    mt_status status = t->backend.collect(t->backend.self, &r);
    if (r.seconds > 0) w->seconds += r.seconds;
    if (status == MT_EDEVMEM) status = note_deferred_oom(t, w, &r);
    if (status != MT_OK) return status;
    add_figures(t, w, &r, samples);
    if (!is_of_the_policys_kind(t)) return MT_OK;
    return mt_policy_observe_seconds(t->policy, w->mode, samples, r.seconds);
}

/* An evaluation has no rollback: with what fails go the chunks whose figures are still to come. Those before stay. */
static void lose_deferred(const mt_trainer *t, mt__work *w) {
    if (w->mode != MT_EVALUATE) return;
    while (w->deferred) w->done -= t->deferred.samples[--w->deferred];
}

/*
 * Of all that were not. Sums are made in the order of the chunks, so this comes before those of a later one are added. It is
 * all of them or none.
 */
static mt_status collect(mt_trainer *t, mt__work *w) {
    mt_status status = MT_OK;
    const mt__sums before = w->sums;
    for (size_t i = 0; status == MT_OK && i < w->deferred; i++)
        status = collect_one(t, w, t->deferred.samples[i]);
    if (status == MT_OK) {
        w->deferred = 0;
    } else {
        w->sums = before;
        lose_deferred(t, w);
    }
    return status;
}

/* Runs samples [first, first + count) as one chunk and lets the policy learn from it. */
static mt_status do_chunk(mt_trainer *t, mt__work *w, size_t first, size_t count) {
    mt_memory before;
    mt_chunk_result r;
    int recording;
    double units, weight;
    mt__note_oom(w, phase_of(w), 0, NULL, 0); /* until the chunk runs: what fails is no chunk */
    mt_status status = weigh(t, w, first, count, &units, &weight);
    int deferred = may_be_deferred(t, w, count, weight);
    if (status == MT_OK && deferred) status = mt__reserve_chunks(&t->deferred, w->deferred + 1);
    if (status == MT_OK) status = mark(t, w);
    if (status == MT_OK) status = mt__read_memory(t, &before);
    if (status == MT_OK) status = start_recording(t, w, count, weight, &recording);
    if (status != MT_OK) return status;
    status = run_chunk(t, w, first, count, weight, deferred && !recording, &r);
    if (status != MT_OK) lose_deferred(t, w);
    if (recording) {
        mt_status stopped = t->backend.record(t->backend.self, NULL);
        if (stopped != MT_OK) w->marked = 0; /* no chunk that failed: not to be taken back alone */
        if (status == MT_OK) status = stopped;
    }
    w->peak_bytes = mt__max(w->peak_bytes, r.peak_bytes);
    if (r.seconds > 0) w->seconds += r.seconds;
    if (status == MT_EDEVMEM) mt__note_oom(w, phase_of(w), count, &r, base_of(t, w, &before));
    if (status != MT_OK) return status;
    w->marked = 0;
    if (r.deferred)
        t->deferred.samples[w->deferred++] = count;
    else
        status = collect(t, w);
    if (status != MT_OK) return status;
    if (!r.deferred) add_figures(t, w, &r, count);
    w->weighed += units;
    w->done += count;
    w->placed++;
    w->chunks++;
    w->next++;
    if (r.normalises_over_batch && !t->normalises && w->mode == MT_TRAIN)
        status = learn_of_norm(t, w, count);
    if (status != MT_OK) return status;
    /* Without a weight there is no backward pass, which tells nothing of other chunks. */
    if (weight == 0 || !is_of_the_policys_kind(t)) return MT_OK;
    return mt_policy_observe(t->policy, w->mode, count, base_of(t, w, &before), &r);
}

/* ---- one attempt ------------------------------------------------------------------------------- */

/* Adds the rest to an open plan. */
static mt_status extend(mt_trainer *t, mt__work *w) {
    mt_memory memory;
    mt_status status = mt__read_memory(t, &memory);
    if (status == MT_OK) status = mt_policy_extend(t->policy, w->mode, &memory, &w->plan);
    if (status == MT_EDEVMEM) {
        mt__note_oom(w, phase_of(w), 0, NULL, memory.allocated_bytes);
        w->ruled_out = w->plan.samples - mt_plan_covered(&w->plan);
    }
    if (status != MT_OK) return status;
    if (w->mode == MT_TRAIN) mt__trace_plan(t, &w->plan);
    return MT_OK;
}

/*
 * Size of the next chunk, 0 at the end; extends an open plan whose chunks have run, or at once where all
 * of them are to be told.
 */
static mt_status next_chunk(mt_trainer *t, mt__work *w, size_t *out) {
    *out = 0;
    if (w->forced) {
        if (w->next < t->forced.count) *out = t->forced.samples[w->next];
        return MT_OK;
    }
    *out = mt_plan_chunk(&w->plan, w->next);
    while (is_open(w) && (*out == 0 || is_told(t, w))) {
        mt_status status = extend(t, w);
        if (status != MT_OK) return status;
        *out = mt_plan_chunk(&w->plan, w->next);
    }
    return MT_OK;
}

/* The backend's prepare. What does not fit there is taken to be the largest chunk. If any chunk is timed, this is too. */
static mt_status prepare(mt_trainer *t, mt__work *w, const size_t *chunks, size_t count) {
    mt_memory before;
    mt_chunk_result r;
    size_t largest = 0;
    int deferred = 1;
    mt_status status = mt__read_memory(t, &before);
    if (status != MT_OK) return status;
    for (size_t i = 0; i < count; i++) {
        largest = mt__max(largest, chunks[i]);
        deferred = deferred && may_be_deferred(t, w, chunks[i], 1.0);
    }
    clear_result(&r, deferred);
    w->allocated_before = before.allocated_bytes;
    status = t->backend.prepare(t->backend.self, chunks, count, &r);
    w->peak_bytes = mt__max(w->peak_bytes, r.peak_bytes);
    if (status == MT_EDEVMEM) mt__note_oom(w, phase_of(w), largest, &r, before.allocated_bytes);
    return status;
}

/* Tells of all chunks before the first, in the list where they will be reported from; of those of a
   recording one by one. */
static mt_status tell_chunks(mt_trainer *t, mt__work *w, size_t next) {
    if (!is_told(t, w)) return MT_OK;
    if (w->plan.discard) return prepare(t, w, &next, 1);
    if (w->next > 0) return MT_OK;
    size_t count = w->forced ? t->forced.count : mt_plan_chunks(&w->plan);
    mt_status status = mt__reserve_chunks(&t->chunks, count);
    if (status != MT_OK) return status;
    for (size_t i = 0; i < count; i++)
        t->chunks.samples[i] = w->forced ? t->forced.samples[i] : mt_plan_chunk(&w->plan, i);
    return prepare(t, w, t->chunks.samples, count);
}

/* Keeps the size of a chunk for the report. */
static mt_status list_chunk(mt_trainer *t, const mt__work *w, size_t count) {
    if (w->mode != MT_TRAIN || w->plan.discard) return MT_OK;
    mt_status status = mt__reserve_chunks(&t->chunks, w->placed + 1);
    if (status != MT_OK) return status;
    t->chunks.samples[w->placed] = count;
    t->chunks.count = w->placed + 1;
    return MT_OK;
}

/* The chunks that are left. A recording that is to be taken back sees the first samples each time. */
static mt_status run_chunks(mt_trainer *t, mt__work *w) {
    size_t count;
    for (;;) {
        mt_status status = next_chunk(t, w, &count);
        if (status != MT_OK) return status;
        if (count == 0) return collect(t, w);
        status = tell_chunks(t, w, count);
        if (status == MT_OK) status = list_chunk(t, w, count);
        if (status != MT_OK) return status;
        w->discarded += count; /* until apply says otherwise */
        status = do_chunk(t, w, w->plan.discard ? 0 : w->done, count);
        if (status != MT_OK || w->again) return status;
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
static void forget(mt__work *w) {
    memset(&w->sums, 0, sizeof w->sums);
    w->weighed = 0;
    w->done = w->next = w->placed = w->deferred = 0;
    w->open = w->marked = 0;
}

mt_status mt__do_chunks(mt_trainer *t, mt__work *w) {
    mt_status status = run_chunks(t, w);
    if (status != MT_EDEVMEM || w->mode != MT_EVALUATE) return status;
    /* Where no chunk has failed, figures that are still to come do so before there is another plan. */
    mt_status told = collect(t, w);
    return told == MT_OK ? status : told;
}

mt_status mt__roll_back(mt_trainer *t, mt__work *w, mt_status because) {
    char reason[sizeof t->poison];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    mt_status status = t->backend.rollback(t->backend.self);
    forget(w);
    if (status != MT_OK) return poison(t, "rollback", status);
    if (because != MT_OK) mt_set_error(because, "%s", reason);
    return because;
}

/* Takes one chunk back, finished ones stay; or the whole step where that cannot be done. */
static mt_status take_back(mt_trainer *t, mt__work *w, mt_status because) {
    char reason[sizeof t->poison];
    if (because != MT_EDEVMEM || !w->marked) return mt__roll_back(t, w, because);
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    w->marked = 0;
    mt_status status = t->backend.rewind(t->backend.self);
    if (status != MT_OK) return poison(t, "rewind", status);
    mt_set_error(because, "%s", reason);
    return because;
}

/* Whether the chunks are given and are one, of the whole batch, that can do without gradients beside its own. */
static int is_given_whole(const mt_trainer *t, const mt__work *w) {
    return w->forced && t->forced.count == 1 && t->forced.samples[0] == w->batch->count &&
           t->info.holds_gradients && t->info.keeps_chunks &&
           t->policy_options.keep_chunks != MT_KEEP_NEVER;
}

int mt__wants_gradients(const mt_trainer *t, const mt__work *w) {
    return w->forced ? t->holding || !is_given_whole(t, w) : !w->plan.alone;
}

int mt__may_go_alone(const mt_trainer *t, const mt__work *w) {
    return t->holding && is_given_whole(t, w);
}

mt_status mt__hold_gradients(mt_trainer *t, int on) {
    if (on == t->holding) return MT_OK;
    mt_status status = t->backend.hold_gradients(t->backend.self, on);
    if (status == MT_OK) t->holding = on;
    return status;
}

static mt_status begin(mt_trainer *t, mt__work *w) {
    mt__note_oom(w, MT_PHASE_BEGIN, 0, NULL, 0);
    mt_status status = mt__hold_gradients(t, mt__wants_gradients(t, w));
    if (status != MT_OK) return status;
    status = t->backend.begin(t->backend.self, w->batch);
    w->open = status == MT_OK;
    return status;
}

/* Takes back what would spoil the parameters; samples and sums stay for the report. */
static mt_status skip(mt_trainer *t, mt__work *w, mt_skip why) {
    mt_status status = t->backend.rollback(t->backend.self);
    if (status != MT_OK) return poison(t, "rollback", status);
    w->open = w->marked = 0;
    w->skipped = why;
    return MT_OK;
}

/*
 * Whether the step must not, or need not, come to an update. Units that chunks tell once they have run may be none,
 * though there were some to weigh them by. A loss that is not finite is no loss scaler's doing, which scales gradients: of a
 * mean over no labels, 0/0, the gradient is finite.
 */
static mt_skip reason_to_skip(const mt_trainer *t, const mt__work *w) {
    if (!(w->units > 0) || !(w->sums.units > 0)) return MT_SKIP_NO_UNITS;
    int may_apply = isfinite(w->sums.loss) || t->options.apply_not_finite;
    return may_apply ? MT_SKIP_NOT : MT_SKIP_NOT_FINITE;
}

static mt_status apply(mt_trainer *t, mt__work *w) {
    mt__note_oom(w, MT_PHASE_APPLY, 0, NULL, 0);
    mt_status status = t->backend.apply(t->backend.self, &w->applied);
    w->oom.refused = w->applied.refused;
    w->oom.refused_bytes = w->applied.refused_bytes;
    w->oom.refused_in_use_bytes = w->applied.refused_in_use_bytes;
    if (status != MT_OK) return mt__roll_back(t, w, status);
    w->open = 0;
    if (w->applied.skipped) w->skipped = MT_SKIP_APPLY;
    w->discarded -= w->done;
    if (w->applied.seconds > 0) w->seconds += w->applied.seconds;
    return MT_OK;
}

mt_status mt__attempt_step(mt_trainer *t, mt__work *w) {
    mt_set_error(MT_OK, "%s", ""); /* a backend may fail without a word: no older line is its own */
    mt_status status = w->open ? MT_OK : begin(t, w);
    if (status != MT_OK) return status;
    status = mt__do_chunks(t, w);
    if (status != MT_OK || w->plan.discard || w->again) return take_back(t, w, status);
    status = check_units(t, w);
    if (status != MT_OK) return mt__roll_back(t, w, status);
    w->owes = 0;
    status = mt__agree(t, MT_OK, &w->sums);
    if (status != MT_OK) return mt__roll_back(t, w, status);
    memset(&w->applied, 0, sizeof w->applied);
    w->applied.size = sizeof w->applied;
    w->applied.grad_norm = (double)NAN;
    mt_skip why = reason_to_skip(t, w);
    return why ? skip(t, w, why) : apply(t, w);
}
