/*
 * policy.c - a policy's life, the kinds of chunks that it knows of, and what it is told and asked.
 *
 * What it decides is in cut.c (plans), oom.c (when memory runs out), ladder.c and clear.c. The rules and
 * their reasons are in docs/policy.md.
 */
#include "policy_state.h"

#include <math.h>

enum { DEFAULT_RETRIES = 16 };

/* ---- life ------------------------------------------------------------------------------------- */

static mt_status check_sizes(const mt_policy_options *o) {
    MT__CHECK(o->min_micro_batch == 0 || o->max_micro_batch == 0 ||
                  o->min_micro_batch <= o->max_micro_batch,
              "mt_policy_options: min_micro_batch %zu is above max_micro_batch %zu",
              o->min_micro_batch, o->max_micro_batch);
    MT__CHECK(o->micro_batch == 0 || o->micro_batch >= o->min_micro_batch,
              "mt_policy_options: micro_batch %zu is below min_micro_batch %zu", o->micro_batch,
              o->min_micro_batch);
    MT__CHECK(o->micro_batch == 0 || o->max_micro_batch == 0 ||
                  o->micro_batch <= o->max_micro_batch,
              "mt_policy_options: micro_batch %zu is above max_micro_batch %zu", o->micro_batch,
              o->max_micro_batch);
    return MT_OK;
}

/* What the backend says holds where the user has not said otherwise. */
static mt_status check_backend_sizes(const mt_policy_options *o, size_t least) {
    if (o->min_micro_batch) return MT_OK;
    MT__CHECK(o->micro_batch == 0 || o->micro_batch >= least,
              "mt_policy_options: micro_batch is %zu; the backend accepts chunks of at least %zu",
              o->micro_batch, least);
    MT__CHECK(o->max_micro_batch == 0 || o->max_micro_batch >= least,
              "mt_policy_options: max_micro_batch is %zu; the backend accepts chunks of at least "
              "%zu",
              o->max_micro_batch, least);
    return MT_OK;
}

static mt_status check_options(const mt_policy_options *o) {
    const unsigned all = MT_RUNG_BIT(MT_RUNGS) - 1;
    MT__CHECK(
        o->clear_every >= MT_CLEAR_EPOCHS && o->eval_clear_every >= MT_CLEAR_NEVER,
        "mt_policy_options: clear_every %d, eval_clear_every %d; accepted: a number of steps, "
        "MT_CLEAR_AUTO (0), MT_CLEAR_NEVER (-1), and for clear_every MT_CLEAR_EPOCHS (-2)",
        o->clear_every, o->eval_clear_every);
    MT__CHECK(((o->allow_rungs | o->forbid_rungs) & ~all) == 0,
              "mt_policy_options: allow_rungs 0x%x, forbid_rungs 0x%x; accepted: sums of "
              "MT_RUNG_BIT, up to 0x%x",
              o->allow_rungs, o->forbid_rungs, all);
    MT__CHECK((o->allow_rungs & o->forbid_rungs) == 0,
              "mt_policy_options: allow_rungs 0x%x, forbid_rungs 0x%x; accepted: no rung in both",
              o->allow_rungs, o->forbid_rungs);
    MT__CHECK(o->keep_chunks >= MT_KEEP_NEVER && o->keep_chunks <= MT_KEEP_ALWAYS,
              "mt_policy_options: keep_chunks is %d; accepted: MT_KEEP_AUTO (0), MT_KEEP_ALWAYS "
              "(1), MT_KEEP_NEVER (-1)",
              o->keep_chunks);
    MT__CHECK((unsigned)o->rate_rule <= MT_RATE_SQRT,
              "mt_policy_options: rate_rule is %d; accepted: 0 to %d", (int)o->rate_rule,
              MT_RATE_SQRT);
    return check_sizes(o);
}

static void destroy(mt_policy *p) {
    for (size_t i = 0; i < MT__CURVES; i++) mt__curve_free(p->curves[i]);
    mt__free(p);
}

mt_status mt_policy_new(const mt_policy_options *options, const mt_backend_info *info,
                        mt_policy **out) {
    mt_policy_options own = MT_POLICY_OPTIONS_INIT;
    mt_backend_info told = {0};
    MT__CHECK(out, "mt_policy_new: out is NULL");
    *out = NULL;
    MT__CHECK(!options || options->size >= sizeof options->size,
              "mt_policy_new: options->size is not set; use MT_POLICY_OPTIONS_INIT");
    if (options) mt__copy_versioned(&own, sizeof own, options, options->size);
    mt_status status = check_options(&own);
    if (info) mt__copy_versioned(&told, sizeof told, info, info->size);
    if (status == MT_OK) status = check_backend_sizes(&own, told.min_micro_batch);
    if (status != MT_OK) return status;
    mt_policy *p = mt__alloc(1, sizeof *p);
    if (!p) return mt_set_error(MT_ENOMEM, "mt_policy_new: out of host memory");
    p->options = own;
    p->info = told;
    if (!p->options.max_retries) p->options.max_retries = DEFAULT_RETRIES;
    /* Made now, so that a policy that could be made can also plan. */
    if (!mt__policy_curve(p, MT_TRAIN, 0) || !mt__policy_curve(p, MT_EVALUATE, 0) ||
        !mt__handle_add(p, MT__KIND_POLICY)) {
        destroy(p);
        return mt_set_error(MT_ENOMEM, "mt_policy_new: out of host memory");
    }
    *out = p;
    return MT_OK;
}

void mt_policy_free(mt_policy *policy) {
    if (mt__handle_remove(policy, MT__KIND_POLICY)) destroy(policy);
}

/* ---- curves ------------------------------------------------------------------------------------ */

/* A smaller batch changes no chunk, so it is no kind of its own. */
static mt__kind kind_of(const mt_policy *p, mt_mode mode, unsigned rungs) {
    rungs &= ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    return (mt__kind){mode, p->shape, rungs};
}

mt__curve *mt__policy_find_curve(const mt_policy *p, mt_mode mode, unsigned rungs) {
    mt__kind kind = kind_of(p, mode, rungs);
    for (size_t i = 0; i < MT__CURVES; i++)
        if (p->curves[i] && mt__same_kind(&p->curves[i]->kind, &kind)) return p->curves[i];
    return NULL;
}

/* A free place for a curve, or that of the one least recently used. */
static mt__curve **place_for_curve(mt_policy *p) {
    mt__curve **oldest = &p->curves[0];
    for (size_t i = 0; i < MT__CURVES; i++) {
        if (!p->curves[i]) return &p->curves[i];
        if (p->curves[i]->used < (*oldest)->used) oldest = &p->curves[i];
    }
    return oldest;
}

mt__curve *mt__policy_curve(mt_policy *p, mt_mode mode, unsigned rungs) {
    mt__curve *c = mt__policy_find_curve(p, mode, rungs);
    if (!c) {
        mt__kind kind = kind_of(p, mode, rungs);
        mt__curve **place = place_for_curve(p);
        c = mt__curve_new(&kind, p->info.kernels_change);
        if (!c) return NULL;
        mt__curve_free(*place);
        *place = c;
    }
    c->used = ++p->uses;
    return c;
}

mt__curve *mt__policy_current(mt_policy *p, mt_mode mode) {
    return mt__policy_curve(p, mode, mt__ladder_rungs(p));
}

int mt__policy_apart(const mt_policy *p, mt_mode mode) {
    return mode == MT_TRAIN && p->keep;
}

mt_status mt_policy_select(mt_policy *policy, uint64_t shape) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_select");
    policy->shape = shape;
    return MT_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------- */

size_t mt__smallest_chunk(const mt_policy_options *options, const mt_backend_info *info) {
    return mt__max(1, options->min_micro_batch ? options->min_micro_batch : info->min_micro_batch);
}

size_t mt__policy_least(const mt_policy *p, size_t samples) {
    if (p->info.needs_whole_batch) return samples;
    return mt__min(mt__smallest_chunk(&p->options, &p->info), samples);
}

size_t mt__policy_most_chunks(const mt_policy *p, size_t samples) {
    size_t most = samples / mt__policy_least(p, samples), fixed = p->options.micro_batch;
    return fixed ? mt__min(most, mt__ceil_div(samples, fixed)) : most;
}

size_t mt__policy_attainable(const mt_policy *p, size_t samples) {
    return mt__ceil_div(samples, mt__policy_most_chunks(p, samples));
}

size_t mt__room(const mt_memory *memory) {
    return memory->budget_bytes - mt__min(memory->budget_bytes, memory->allocated_bytes);
}

size_t mt__limit(const mt_memory *memory) {
    return memory->budget_bytes ? mt__room(memory) : SIZE_MAX;
}

size_t mt__cached(const mt_memory *memory) {
    return memory->reserved_bytes - mt__min(memory->reserved_bytes, memory->allocated_bytes);
}

int mt__policy_is_fixed(const mt_policy *p) {
    return p->options.micro_batch || p->info.needs_whole_batch;
}

void mt__policy_begin_step(mt_policy *policy) {
    policy->replanning = policy->same_step = 0;
    policy->explained.chunk = 0;
    policy->least_need.bytes = 0;
}

void mt__policy_keeps(mt_policy *policy, int keep) {
    policy->keep = keep;
}

void mt__policy_same_step(mt_policy *policy) {
    policy->same_step = 1;
}

void mt__policy_cannot_record(mt_policy *policy) {
    policy->cannot_record = 1;
}

void mt__policy_describe(mt_policy *policy, const mt_backend_info *info) {
    policy->info.gradient_bytes = info->gradient_bytes;
}

void mt__policy_is_told(mt_policy *policy) {
    policy->is_told = 1;
}

void mt__policy_normalises(mt_policy *policy, size_t least) {
    policy->info.normalises_over_batch = 1;
    policy->info.min_micro_batch = least;
}

void mt__policy_recorded(mt_policy *policy, mt_mode mode) {
    mt__policy_current(policy, mode)->has_run = 1; /* made when that plan was */
}

unsigned mt__policy_rungs(const mt_policy *policy) {
    return mt__ladder_rungs(policy);
}

int mt__policy_can_record(const mt_policy *p) {
    unsigned needed = p->info.record_rungs;
    return !p->cannot_record && (!needed || (p->rungs & needed));
}

/* ---- recordings and measurements ---------------------------------------------------------------- */

mt_recording *mt_policy_recording(mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MT__MODES || samples == 0)
        return NULL;
    mt__curve *c = mt__policy_current(policy, mode);
    if (!c) return NULL;
    c->filling = 0;
    if (policy->options.micro_batch || !mt__policy_can_record(policy)) return NULL;
    /* From the whole batch alone, where nothing smaller fits, smaller chunks cannot be told. */
    int is_first_alone = mode == MT_TRAIN && policy->alone && !c->ranges;
    return is_first_alone ? NULL : mt__curve_record(c, samples);
}

/* Beside so many bytes in use, in the budget of the plan. */
static size_t room_from(const mt_policy *p, size_t allocated) {
    return p->budget ? p->budget - mt__min(p->budget, allocated) : SIZE_MAX;
}

mt_status mt_policy_observe(mt_policy *policy, mt_mode mode, size_t samples,
                            size_t allocated_before, const mt_chunk_result *result) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_observe");
    MT__CHECK((unsigned)mode < MT__MODES, "mt_policy_observe: mode is %d", (int)mode);
    MT__CHECK(result, "mt_policy_observe: result is NULL");
    MT__CHECK(samples > 0, "mt_policy_observe: samples is 0");
    mt__curve *c = mt__policy_current(policy, mode);
    if (!c) return mt_set_error(MT_ENOMEM, "mt_policy_observe: out of host memory");
    size_t peak = result->peak_bytes - mt__min(result->peak_bytes, allocated_before);
    int apart = mt__policy_apart(policy, mode);
    mt__curve_learn(c, apart, samples, peak);
    /* Where a budget is watched and not enforced, chunks go through above it. */
    if (!policy->budget || result->peak_bytes <= policy->budget)
        mt__curve_prove(c, apart, samples, room_from(policy, allocated_before));
    if (apart) policy->has_moved_on = 1;
    if (!(result->seconds > 0) || !isfinite(result->seconds)) return MT_OK;
    policy->seconds += result->seconds;
    if (!policy->options.deterministic) mt__timings_note(&c->timings, samples, result->seconds);
    return MT_OK;
}

/* ---- reports ----------------------------------------------------------------------------------- */

size_t mt_policy_predict_bytes(const mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MT__MODES || !samples)
        return 0;
    const mt__curve *c = mt__policy_find_curve(policy, mode, mt__ladder_rungs(policy));
    return c ? mt__curve_predict(c, 0, samples) : 0;
}

double mt_policy_predict_seconds(const mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MT__MODES || !samples)
        return 0;
    const mt__curve *c = mt__policy_find_curve(policy, mode, mt__ladder_rungs(policy));
    return c ? mt__measured_seconds(&c->timings, samples) : 0;
}
