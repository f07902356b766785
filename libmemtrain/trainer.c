/*
 * trainer.c - trainers, their steps and evaluations, and what is told of them.
 *
 * A step is run in attempt.c, and again in retry.c; what is to be done is decided in split.c and answer.c.
 */
#include "attempt.h"
#include "tuned.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* What runs before have learnt. */
static mt_status take_learned(mt_trainer *t) {
    if (!t->options.learned) return MT_OK;
    size_t bytes = strlen(t->options.learned) + 1;
    t->learned = mt__alloc(bytes, 1);
    if (!t->learned) return mt_set_error(MT_ENOMEM, "mt_trainer_new: out of host memory");
    memcpy(t->learned, t->options.learned, bytes);
    return mt_policy_load(t->policy, t->learned, NULL);
}

/* For the next run. Training goes on without it. */
static void keep_learned(const mt_trainer *t) {
    if (!t->learned || mt_policy_save(t->policy, t->learned) == MT_OK) return;
    mt_log(MT_LOG_WARNING, "what was learnt of chunks is not kept: %s", mt_last_error());
    mt_set_error(MT_OK, "%s", "");
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
    unsigned smaller = t->policy_options.allow_rungs & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    if (status == MT_OK && t->backend.agree && smaller)
        return mt_set_error(MT_ENOTSUP,
                            "mt_trainer_new: rung smaller_batch is allowed; with several "
                            "processes (backend->agree) batches keep their size");
    if (status == MT_OK && t->backend.hold_gradients)
        status = t->backend.hold_gradients(t->backend.self, 1);
    /* Chunks that are told beforehand are the step: none is taken back alone, and two small ones are no
       beginning of it. */
    int is_told = t->backend.prepare != NULL;
    t->info.keeps_chunks = t->backend.mark && t->backend.rewind && !is_told;
    t->info.holds_gradients = t->backend.hold_gradients && !is_told;
    t->info.cannot_record = !t->backend.record;
    t->info.is_told = is_told;
    t->normalises = t->info.normalises_over_batch;
    if (is_told) t->info.normalises_over_batch = 1;
    t->holding = 1;
    if (!t->backend.set_rung) t->info.rungs = 0;
    if (status == MT_OK) status = mt_policy_new(t->options.policy, &t->info, &t->policy);
    if (status == MT_OK) status = mt__read_memory(t, &memory);
    if (status != MT_OK) return status;
    status = take_learned(t);
    if (status != MT_OK) return status;
    t->options.policy = NULL; /* it was the caller's, as that path */
    t->options.learned = NULL;
    t->run.budget_bytes = memory.budget_bytes;
    mt__trace_run(t, &memory);
    return t->text.failed ? mt_set_error(MT_ENOMEM, "mt_trainer_new: out of host memory") : MT_OK;
}

static void destroy(mt_trainer *t) {
    mt_policy_free(t->policy);
    mt__free(t->learned);
    mt__free(t->text.data);
    mt__free(t->chunks.samples);
    mt__free(t->deferred.samples);
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
    if (mt__handle_is(trainer, MT__KIND_TRAINER) && trainer->is_busy)
        mt_log(MT_LOG_WARNING, "mt_trainer_free: called by its own backend, so it is not freed");
    else if (mt__handle_remove(trainer, MT__KIND_TRAINER))
        destroy(trainer);
}

mt_status mt__check_ready(const mt_trainer *t, const char *function) {
    if (!mt__handle_is(t, MT__KIND_TRAINER)) return mt__bad_handle(t, function, "trainer");
    if (t->is_busy)
        return mt_set_error(
            MT_ESTATE, "%s: called by a function that the trainer itself has called", function);
    if (t->poisoned)
        return mt_set_error(MT_ESTATE, "%s: the trainer is poisoned by a failed rollback: %s",
                            function, t->poison);
    return MT_OK;
}

/* ---- lists of chunks --------------------------------------------------------------------------- */

mt_status mt_trainer_set_chunks(mt_trainer *trainer, const size_t *chunks, size_t count) {
    mt_status ready = mt__check_ready(trainer, "mt_trainer_set_chunks");
    if (ready != MT_OK) return ready;
    MT__CHECK(chunks, "mt_trainer_set_chunks: chunks is NULL");
    MT__CHECK(count > 0, "mt_trainer_set_chunks: count is 0; at least 1 is accepted");
    for (size_t i = 0; i < count; i++)
        MT__CHECK(chunks[i] > 0, "mt_trainer_set_chunks: chunk %zu is 0; at least 1 is accepted",
                  i);
    mt_status status = mt__reserve_chunks(&trainer->forced, count);
    if (status != MT_OK) return status;
    memcpy(trainer->forced.samples, chunks, count * sizeof *chunks);
    trainer->forced.count = count;
    trainer->forced_rungs = 0;
    trainer->forced_rate = 1.0;
    return MT_OK;
}

mt_status mt_trainer_set_rungs(mt_trainer *trainer, unsigned rungs, double rate) {
    mt_status ready = mt__check_ready(trainer, "mt_trainer_set_rungs");
    if (ready != MT_OK) return ready;
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
double mt__means(const mt_trainer *t, const mt__sums *sums, double metrics[MT_METRICS_MAX]) {
    for (size_t i = 0; i < MT_METRICS_MAX; i++) {
        double by = divisor(t, sums, i);
        metrics[i] = by != 0 ? sums->metrics[i] / by : (double)NAN;
    }
    return sums->units > 0 ? sums->loss / sums->units : (double)NAN;
}

/* ---- checks ------------------------------------------------------------------------------------ */

static mt_status check_batch(const mt_trainer *t, const mt_batch *batch, const char *function) {
    mt_status ready = mt__check_ready(t, function);
    if (ready != MT_OK) return ready;
    MT__CHECK(batch, "%s: batch is NULL", function);
    /* What the first version had, so that its callers are served when fields are added. */
    MT__CHECK(batch->size >= offsetof(mt_batch, id) + sizeof batch->id,
              "%s: batch->size is not set; use MT_BATCH_INIT", function);
    MT__CHECK(batch->count > 0 && batch->count <= INT64_MAX,
              "%s: batch->count is %zu; at least 1 is accepted, and less than 2^63", function,
              batch->count);
    return MT_OK;
}

/* Whether chunks of so many samples are a step of the batch: all of it, or the first ones where it is made smaller. */
static int are_of(const mt_trainer *t, size_t samples, const mt_batch *batch) {
    int is_smaller = (t->forced_rungs & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH)) != 0;
    return samples == batch->count || (is_smaller && samples < batch->count);
}

/* What the options and the loss allow, and the chunks given. */
static mt_status check_cut(mt_trainer *t, const mt_batch *batch) {
    size_t forced = forced_samples(t), micro = t->policy_options.micro_batch;
    int cut = t->forced.count > 1 || (!t->forced.count && micro && micro < batch->count);
    if (t->forced.count && !are_of(t, forced, batch)) {
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

/* The optimiser's state may have been made since the backend was described. */
static void see_optimizer(mt_trainer *t) {
    mt_backend_info now = {.size = sizeof now};
    if (t->backend.describe && t->backend.describe(t->backend.self, &now) == MT_OK)
        t->info.optimizer_bytes = now.optimizer_bytes;
}

/* Keeps the failure for mt_trainer_explain and puts what it was about before the backend's words. */
static void keep_failure(mt_trainer *t, const mt__work *w) {
    char reason[MT__LINE];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    see_optimizer(t);
    t->has_failure = 1;
    t->failure = w->told.attempt && !w->ruled_out ? w->told : w->oom;
    t->ruled_out = w->ruled_out;
    t->failed_batch = w->batch->count;
    mt_set_error(MT_EDEVMEM, "a batch of %zu samples does not fit on %s: %s", w->batch->count,
                 t->info.device ? t->info.device : "the device",
                 reason[0] ? reason : mt_status_text(MT_EDEVMEM));
}

/* A backend may fail without a word. */
static mt_status told(mt_status status) {
    if (mt_last_error()[0]) return status;
    return mt_set_error(status, "the backend has failed and does not say why: %s",
                        mt_status_text(status));
}

/* ---- step -------------------------------------------------------------------------------------- */

/* Adds the finished step to the epoch and the run. */
static void count_step(mt_trainer *t, const mt__work *w) {
    mt_run_report *r = &t->run;
    r->steps++;
    r->samples_trained += w->done;
    for (size_t i = 0; i < t->chunks.count; i++) {
        size_t m = t->chunks.samples[i];
        r->largest_chunk = mt__max(r->largest_chunk, m);
        r->smallest_chunk = r->smallest_chunk ? mt__min(r->smallest_chunk, m) : m;
    }
    /* The epoch's mean stays a number. */
    int is_left_out = w->skipped && (w->skipped == MT_SKIP_NO_UNITS || !isfinite(w->sums.loss));
    if (!is_left_out) add_sums(&t->train, &w->sums);
}

/* Asked for only after a step whose loss is not finite, since it is a pass over them. */
static const char *state_of_parameters(const mt_trainer *t) {
    int are_finite = 1;
    mt_status status = MT_OK;
    if (t->backend.look_at_parameters)
        status = t->backend.look_at_parameters(t->backend.self, &are_finite);
    if (status != MT_OK) are_finite = 1; /* nothing is known of them */
    if (status != MT_OK) mt_set_error(MT_OK, "%s", "");
    if (are_finite) return "are as before";
    return "hold values that are not finite since an earlier step: load a checkpoint from before "
           "it, and set clip_norm, which leaves out updates by gradients that are not finite";
}

/* One line for a step without an update. Gradients that a loss scaler finds too large are no news. */
static void tell_skipped(const mt_trainer *t, const mt_step_report *r) {
    const unsigned long long step = r->step;
    int is_finite = isfinite(r->loss);
    double loss = isnan(r->loss) ? (double)NAN : r->loss; /* not -nan */
    if (r->skipped == MT_SKIP_NO_UNITS)
        mt_log(
            MT_LOG_WARNING,
            "step %llu is skipped: the batch of %zu samples has no units, so that every label is "
            "masked",
            step, r->samples);
    else if (r->skipped == MT_SKIP_NOT_FINITE)
        mt_log(MT_LOG_WARNING,
               "step %llu is taken back: its loss is %g, and the parameters %s "
               "(apply_not_finite makes the update; a chunk without labels whose mean is 0/0 wants "
               "a model with units)",
               step, loss, state_of_parameters(t));
    else if (r->skipped == MT_SKIP_APPLY && !is_finite)
        mt_log(MT_LOG_WARNING, "step %llu makes no update: its loss is %g, and the parameters %s",
               step, loss, state_of_parameters(t));
    else if (r->skipped == MT_SKIP_APPLY && !t->info.scales_loss)
        mt_log(MT_LOG_WARNING,
               "step %llu makes no update: its loss is %g and the norm of its gradient %g", step,
               loss, r->grad_norm);
}

/* Time and peak count whether the step went through or not. */
static void count_work(mt_trainer *t, const mt__work *w) {
    t->run.seconds += w->seconds;
    t->run.samples_discarded += w->discarded;
    t->run.peak_bytes = mt__max(t->run.peak_bytes, w->peak_bytes);
    t->epoch_seconds += w->seconds;
    t->epoch_peak_bytes = mt__max(t->epoch_peak_bytes, w->peak_bytes);
}

/*
 * Below 8 samples batch statistics are so noisy that accuracy suffers: ResNet-50 on ImageNet has an error of 24.8 % with
 * 8 samples, 27.3 % with 4 and 34.7 % with 2, against 23.6 % with 32 (Wu & He 2018, arXiv 1803.08494). The largest
 * chunk counts, since one small last chunk among many moves the running statistics little.
 */
static void tell_of_norm(mt_trainer *t, const mt_batch *batch) {
    size_t largest = 0;
    for (size_t i = 0; i < t->chunks.count; i++) largest = mt__max(largest, t->chunks.samples[i]);
    if (!t->normalises || t->told_of_norm || t->chunks.count < 2 || largest >= LEAST_NORMALISED)
        return;
    t->told_of_norm = 1;
    mt_log(
        MT_LOG_WARNING,
        "batch normalisation sees chunks of at most %zu of the batch's %zu samples while training, "
        "and below %d its statistics are noisy: a larger budget, a min_micro_batch of %d, or "
        "layers that normalise over a sample (GroupNorm) help",
        largest, batch->count, LEAST_NORMALISED, LEAST_NORMALISED);
}

static void fill_report(mt_trainer *t, const mt__work *w, const mt_memory *after,
                        mt_step_report *r) {
    memset(r, 0, sizeof *r);
    r->size = sizeof *r;
    r->step = t->run.steps;
    r->samples = w->done;
    r->chunks = t->chunks.samples;
    r->chunk_count = t->chunks.count;
    r->loss = mt__means(t, &w->sums, r->metrics);
    r->grad_norm = w->applied.grad_norm;
    r->lr = w->applied.lr;
    r->seconds = w->seconds;
    r->retries = w->retries;
    r->discarded = w->discarded;
    r->skipped = w->skipped;
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

/* Sizes are other ones where parameters have been frozen, or train again. */
static mt_status describe_anew(mt_trainer *t) {
    mt_backend_info now = {0};
    now.size = sizeof now;
    mt_status status = t->backend.describe ? t->backend.describe(t->backend.self, &now) : MT_OK;
    if (status != MT_OK || !t->backend.describe) return status;
    t->info.gradient_bytes = now.gradient_bytes;
    t->info.optimizer_bytes = now.optimizer_bytes;
    t->info.buffer_bytes = now.buffer_bytes;
    return mt_policy_describe(t->policy, &t->info);
}

/* Tells the policy that a step or an evaluation begins, and on what kind of batch. */
static mt_status begin(mt_trainer *t, const mt_batch *batch) {
    mt_shape shape = {0};
    if (!t->backend.shape) return mt_policy_begin(t->policy, NULL);
    mt_status status = t->backend.shape(t->backend.self, batch, &shape);
    if (status == MT_OK && t->has_shape && shape.id != t->shape) status = describe_anew(t);
    if (status != MT_OK) return status;
    t->shape = shape.id;
    t->has_shape = 1;
    return mt_policy_begin(t->policy, &shape);
}

/* The rungs of a step whose chunks are given. */
static mt_status force_rungs(mt_trainer *t) {
    unsigned failed;
    mt__trace_forced(t);
    return mt__set_rungs(t, t->forced_rungs, t->forced_rate, "replay", &failed);
}

/* Units of the step, those of other processes among them. Where one of them leaves its batch out all do. */
static mt_status join(mt_trainer *t, mt__work *w, int *is_left_out) {
    mt__sums all = {0};
    mt_status status = MT_OK;
    w->forced = t->forced.count > 0;
    w->count = w->unit_samples = w->forced ? forced_samples(t) : w->batch->count;
    if (!*is_left_out) status = mt__units_of(t, w, 0, w->count, &all.units);
    all.samples = (size_t)*is_left_out;
    w->own_units = all.units;
    status = mt__agree(t, status, &all);
    w->units = all.units;
    *is_left_out = all.samples > 0;
    w->owes = t->backend.agree && status == MT_OK && !*is_left_out;
    return status;
}

static mt_status prepare_step(mt_trainer *t, mt__work *w) {
    mt_memory memory;
    w->rungs_before = t->rungs;
    w->rate_before = t->rate;
    mt_status status = begin(t, w->batch);
    if (status == MT_OK) status = mt__read_memory(t, &memory);
    if (status != MT_OK) return status;
    t->run.budget_bytes = memory.budget_bytes;
    mt_clear_reason reason = mt_policy_clear(t->policy, MT_TRAIN, &memory);
    if (reason != MT_CLEAR_NOT) status = mt__clear(t, reason);
    if (status != MT_OK) return status;
    if (w->forced) (void)!mt_policy_given(t->policy, 0);
    if (w->forced) status = force_rungs(t);
    if (status != MT_OK) return status;
    return t->backend.reset_peak ? t->backend.reset_peak(t->backend.self) : MT_OK;
}

/* Takes the step, or drops the batch, and tells of it. */
static mt_status step(mt_trainer *t, const mt_batch *batch, mt_step_report *report) {
    mt_memory after;
    mt_step_report own;
    mt__work w;
    mt_status status;
    memset(&w, 0, sizeof w);
    w.batch = batch;
    t->chunks.count = 0;
    int is_left_out = is_dropped(t, batch);
    t->in_step = 1;
    status = join(t, &w, &is_left_out);
    if (status == MT_OK && !is_left_out) status = prepare_step(t, &w);
    if (status == MT_OK && !is_left_out) status = mt__do_step(t, &w);
    if (w.owes) status = mt__agree(t, status, &w.sums);
    t->in_step = 0;
    if (status == MT_EDEVMEM) keep_failure(t, &w);
    t->forced.count = 0; /* also those for a batch that is dropped */
    /* Only the report wants this figure: without it the step has gone through all the same. */
    if (status == MT_OK && mt__read_memory(t, &after) != MT_OK) memset(&after, 0, sizeof after);
    if (status == MT_OK && t->backend.reset_peak)
        w.peak_bytes = mt__max(w.peak_bytes, after.peak_bytes);
    count_work(t, &w);
    if (status != MT_OK) return told(status);
    if (w.done) count_step(t, &w);
    fill_report(t, &w, &after, &own);
    if (w.done) mt__trace_step(t, &own);
    tell_skipped(t, &own);
    tell_of_norm(t, batch);
    if (report) give(report, report->size, &own, sizeof own);
    return MT_OK;
}

static mt_status check_step(mt_trainer *t, const mt_batch *batch, const mt_step_report *report) {
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
    return MT_OK;
}

/* A call that is refused is one that other processes wait for. */
static mt_status refuse(mt_trainer *t, mt_status status) {
    mt__sums none = {0};
    if (!mt__handle_is(t, MT__KIND_TRAINER) || t->is_busy) return status;
    t->is_busy = 1;
    status = mt__agree(t, status, &none);
    t->is_busy = 0;
    return status;
}

mt_status mt_trainer_step(mt_trainer *trainer, const mt_batch *batch, mt_step_report *report) {
    mt_status status = check_step(trainer, batch, report);
    if (status != MT_OK) return refuse(trainer, status);
    trainer->is_busy = 1;
    status = step(trainer, batch, report);
    trainer->is_busy = 0;
    return status;
}

/* ---- evaluation -------------------------------------------------------------------------------- */

static mt_status run_evaluation(mt_trainer *t, mt__work *w) {
    mt_memory memory;
    mt_status status = begin(t, w->batch);
    if (status == MT_OK) status = mt__read_memory(t, &memory);
    if (status != MT_OK) return status;
    mt_clear_reason reason = mt_policy_clear(t->policy, MT_EVALUATE, &memory);
    if (reason != MT_CLEAR_NOT) status = mt__clear(t, reason);
    return status == MT_OK ? mt__do_evaluation(t, w) : status;
}

static mt_status evaluate(mt_trainer *t, const mt_batch *batch, mt_eval_report *report) {
    mt__work w;
    memset(&w, 0, sizeof w);
    w.batch = batch;
    w.mode = MT_EVALUATE;
    w.rungs_before = t->rungs;
    w.rate_before = t->rate;
    t->has_failure = 0;
    mt_status status = mt__agree(t, run_evaluation(t, &w), &w.sums);
    w.discarded = 0;
    count_work(t, &w);
    if (status == MT_EDEVMEM) keep_failure(t, &w);
    if (status != MT_OK) return told(status);
    add_sums(&t->eval, &w.sums);
    if (report) {
        mt_eval_report own = MT_EVAL_REPORT_INIT;
        own.samples = w.done;
        own.loss = mt__means(t, &w.sums, own.metrics);
        own.seconds = w.seconds;
        own.retries = w.retries;
        own.peak_bytes = w.peak_bytes;
        own.chunk_count = w.chunks;
        give(report, report->size, &own, sizeof own);
    }
    return MT_OK;
}

static mt_status check_evaluation(const mt_trainer *t, const mt_batch *batch,
                                  const mt_eval_report *report) {
    mt_status status = check_batch(t, batch, "mt_trainer_evaluate");
    if (status != MT_OK) return status;
    MT__CHECK(!report || report->size >= sizeof report->size,
              "mt_trainer_evaluate: report->size is not set; use MT_EVAL_REPORT_INIT");
    if (!t->backend.evaluate)
        return mt_set_error(MT_ENOTSUP, "mt_trainer_evaluate: the backend has no evaluate");
    return MT_OK;
}

mt_status mt_trainer_evaluate(mt_trainer *trainer, const mt_batch *batch, mt_eval_report *report) {
    mt_status status = check_evaluation(trainer, batch, report);
    if (status != MT_OK) return refuse(trainer, status);
    trainer->is_busy = 1;
    status = evaluate(trainer, batch, report);
    trainer->is_busy = 0;
    return status;
}

/* ---- epoch and run ------------------------------------------------------------------------------ */

static mt_status end_epoch(mt_trainer *t, mt_epoch_report *report) {
    mt_epoch_report own = MT_EPOCH_REPORT_INIT;
    mt_status status = MT_OK;
    own.samples = t->train.samples;
    own.eval_samples = t->eval.samples;
    own.loss = mt__means(t, &t->train, own.metrics);
    own.eval_loss = mt__means(t, &t->eval, own.eval_metrics);
    own.seconds = t->epoch_seconds;
    own.peak_bytes = t->epoch_peak_bytes;
    own.epoch = t->epoch + 1;
    int every = t->policy_options.clear_every;
    if (every > 0 || every == MT_CLEAR_EPOCHS) status = mt__clear(t, MT_CLEAR_EPOCH);
    if (status != MT_OK) return status;
    t->epoch++;
    mt__trace_epoch(t, &own);
    memset(&t->train, 0, sizeof t->train);
    memset(&t->eval, 0, sizeof t->eval);
    t->epoch_seconds = 0;
    t->epoch_peak_bytes = 0;
    keep_learned(t);
    if (report) give(report, report->size, &own, sizeof own);
    return MT_OK;
}

mt_status mt_trainer_end_epoch(mt_trainer *trainer, mt_epoch_report *report) {
    mt_status status = mt__check_ready(trainer, "mt_trainer_end_epoch");
    if (status != MT_OK) return status;
    MT__CHECK(!report || report->size >= sizeof report->size,
              "mt_trainer_end_epoch: report->size is not set; use MT_EPOCH_REPORT_INIT");
    trainer->is_busy = 1;
    status = end_epoch(trainer, report);
    trainer->is_busy = 0;
    return status;
}

mt_status mt_trainer_summary(const mt_trainer *trainer, mt_run_report *report) {
    MT__CHECK_HANDLE(trainer, MT__KIND_TRAINER, "mt_trainer_summary");
    MT__CHECK(report, "mt_trainer_summary: report is NULL");
    MT__CHECK(report->size >= sizeof report->size,
              "mt_trainer_summary: report->size is not set; use MT_RUN_REPORT_INIT");
    give(report, report->size, &trainer->run, sizeof trainer->run);
    return MT_OK;
}

static mt_status finish(mt_trainer *t) {
    if (t->backend.state_sha256) {
        mt_set_error(MT_OK, "%s", "");
        mt_status status = t->backend.state_sha256(t->backend.self, t->run.state_sha256);
        if (status != MT_OK) return told(status);
    }
    mt__trace_end(t);
    keep_learned(t);
    return MT_OK;
}

mt_status mt_trainer_finish(mt_trainer *trainer, mt_run_report *report) {
    mt_status status = mt__check_ready(trainer, "mt_trainer_finish");
    if (status != MT_OK) return status;
    MT__CHECK(!report || report->size >= sizeof report->size,
              "mt_trainer_finish: report->size is not set; use MT_RUN_REPORT_INIT");
    trainer->is_busy = 1;
    status = finish(trainer);
    trainer->is_busy = 0;
    return status == MT_OK && report ? mt_trainer_summary(trainer, report) : status;
}

const mt_policy *mt_trainer_policy(const mt_trainer *trainer) {
    return mt__handle_is(trainer, MT__KIND_TRAINER) ? trainer->policy : NULL;
}
