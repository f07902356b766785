/*
 * policy.c - what decides. One curve a mode: recordings, the memory model and times; a plan is the
 * fastest cut whose predicted peak fits; an OOM corrects the curve.
 *
 * The rules and their reasons are in docs/policy.md.
 */
#include "choose.h"
#include "recording.h"

#include <string.h>

enum { MODES = 2, SEEN = 8, DEFAULT_RETRIES = 16, FIRST_RECORDED = 2, LEAST_NORMALISED = 8 };

#define CLEAR_SHARE 0.01     /* of the time, for automatic clearing */
#define PHASE_CACHE_SHARE 10 /* a cache above budget / 10 is worth clearing at a change of mode */

/* The last plan for a batch size, to tell why the next one differs. */
typedef struct seen_batch {
    size_t samples; /* 0: free */
    size_t fewest;  /* chunks that memory asked for */
    size_t chunks;  /* chunks that were planned */
    mt_plan_reason reason;
} seen_batch;

/* What is known of one mode. */
typedef struct curve {
    mt_recording *recording[2];
    size_t recorded;                  /* complete recordings, 0 to 2 */
    int filling;                      /* the next recording is being filled */
    mt_memory_model *model;           /* from the recordings */
    size_t bound_peak, bound_samples; /* without recordings: measured peak of the largest chunk */
    size_t residual;                  /* bytes by which the prediction was seen to be too low */
    size_t failed_chunk;              /* a size that did not fit ... */
    size_t failed_room;               /* ... into this many bytes */
    mt__timings timings;
    int has_run;    /* a chunk went through: two sizes are recorded before that, or never */
    int has_spread; /* the plan that measures several sizes has been given */
    seen_batch seen[SEEN];
    size_t next_seen;
} curve;

struct mt_policy {
    mt_policy_options options;
    mt_backend_info info;
    curve curves[MODES];
    int replanning;       /* memory ran out since the last plan */
    size_t step_cap;      /* largest chunk for the rest of this step; 0: no cap */
    size_t step_failed;   /* smallest chunk that did not fit in this step; 0: none */
    unsigned unexplained; /* refusals of this step that the budget does not explain */
    int cleared;          /* the cache was cleared in this step's recovery */
    uint64_t calls[MODES];
    int has_mode;
    mt_mode last_mode;
    uint64_t last_alloc_retries;
    double seconds, clear_seconds, last_clear_seconds;
};

/* ---- life ------------------------------------------------------------------------------------- */

static mt_status check_options(const mt_policy_options *o) {
    MT__CHECK(o->min_micro_batch == 0 || o->max_micro_batch == 0 ||
                  o->min_micro_batch <= o->max_micro_batch,
              "mt_policy_options: min_micro_batch %zu is above max_micro_batch %zu",
              o->min_micro_batch, o->max_micro_batch);
    MT__CHECK(
        o->clear_every >= MT_CLEAR_NEVER && o->eval_clear_every >= MT_CLEAR_NEVER,
        "mt_policy_options: clear_every %d, eval_clear_every %d; accepted: a number of steps, "
        "MT_CLEAR_AUTO (0), MT_CLEAR_NEVER (-1)",
        o->clear_every, o->eval_clear_every);
    return MT_OK;
}

static int new_recordings(mt_policy *p) {
    for (int m = 0; m < MODES; m++)
        for (int i = 0; i < 2; i++)
            if (mt_recording_new(&p->curves[m].recording[i]) != MT_OK) return 0;
    return 1;
}

static void destroy(mt_policy *p) {
    for (int m = 0; m < MODES; m++) {
        mt_recording_free(p->curves[m].recording[0]);
        mt_recording_free(p->curves[m].recording[1]);
        mt_memory_model_free(p->curves[m].model);
    }
    mt__free(p);
}

mt_status mt_policy_new(const mt_policy_options *options, const mt_backend_info *info,
                        mt_policy **out) {
    mt_policy_options own = MT_POLICY_OPTIONS_INIT;
    MT__CHECK(out, "mt_policy_new: out is NULL");
    *out = NULL;
    MT__CHECK(!options || options->size >= sizeof options->size,
              "mt_policy_new: options->size is not set; use MT_POLICY_OPTIONS_INIT");
    if (options) mt__copy_versioned(&own, sizeof own, options, options->size);
    mt_status status = check_options(&own);
    if (status != MT_OK) return status;
    mt_policy *p = mt__alloc(1, sizeof *p);
    if (!p) return mt_set_error(MT_ENOMEM, "mt_policy_new: out of host memory");
    p->options = own;
    if (info) mt__copy_versioned(&p->info, sizeof p->info, info, info->size);
    if (!p->options.max_retries) p->options.max_retries = DEFAULT_RETRIES;
    if (!new_recordings(p) || !mt__handle_add(p, MT__KIND_POLICY)) {
        destroy(p);
        return mt_set_error(MT_ENOMEM, "mt_policy_new: out of host memory");
    }
    *out = p;
    return MT_OK;
}

void mt_policy_free(mt_policy *policy) {
    if (mt__handle_remove(policy, MT__KIND_POLICY)) destroy(policy);
}

/* ---- sizes ------------------------------------------------------------------------------------ */

static size_t smallest_chunk(const mt_policy *p) {
    if (p->options.min_micro_batch) return p->options.min_micro_batch;
    size_t most = p->options.max_micro_batch ? p->options.max_micro_batch : SIZE_MAX;
    return mt__max(1, mt__min(p->info.min_micro_batch, most));
}

static size_t room_of(const mt_memory *memory) {
    return memory->budget_bytes - mt__min(memory->budget_bytes, memory->allocated_bytes);
}

/* Predicted bytes above the start, corrections included; 0: nothing known. */
static size_t predict(const curve *c, size_t samples) {
    if (c->model)
        return mt__add(mt_memory_model_peak(c->model, samples),
                       mt__add(mt_memory_model_margin(c->model), c->residual));
    if (!c->bound_samples) return 0;
    if (samples <= c->bound_samples) return mt__add(c->bound_peak, c->residual);
    double proportional = (double)c->bound_peak * (double)samples / (double)c->bound_samples;
    return proportional > 9e18 ? SIZE_MAX : mt__add((size_t)proportional + 1, c->residual);
}

/* The next size to try where nothing predicts one: two thirds, as candidates are spaced. */
static size_t smaller(size_t chunk) {
    return chunk - mt__max(1, chunk / 3);
}

/*
 * The largest size that may be tried after one that did not fit: where the prediction was compared
 * with a budget it has been corrected and says more, else there is nothing to go by.
 */
static size_t next_below(const curve *c) {
    int is_known = predict(c, 1) > 0 && c->failed_room < SIZE_MAX;
    return is_known ? c->failed_chunk - 1 : smaller(c->failed_chunk);
}

/* Largest chunk that is predicted to fit; SIZE_MAX when nothing is known. */
static size_t largest(const curve *c, size_t room) {
    size_t left = room - mt__min(room, c->residual);
    size_t m = SIZE_MAX;
    if (c->model)
        m = mt_memory_model_largest(c->model, left);
    else if (c->bound_samples && left < c->bound_peak)
        m = 0;
    else if (c->bound_samples && c->bound_peak)
        m = (size_t)((double)left / (double)c->bound_peak * (double)c->bound_samples);
    if (c->failed_chunk && room <= c->failed_room) m = mt__min(m, next_below(c));
    return m;
}

/* ---- recordings -------------------------------------------------------------------------------- */

mt_recording *mt_policy_recording(mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MODES || samples == 0)
        return NULL;
    curve *c = &policy->curves[mode];
    c->filling = 0;
    if (c->recorded == 2 || policy->options.micro_batch) return NULL;
    if (c->recorded == 1 && mt_recording_samples(c->recording[0]) == samples) return NULL;
    mt_recording *r = c->recording[c->recorded];
    if (mt_recording_start(r, samples) != MT_OK) return NULL;
    c->filling = 1;
    return r;
}

/*
 * Builds the model anew after a recording. One that is empty, or that host memory has no room for,
 * is dropped: the next chunk will be recorded instead.
 */
static void take_recording(curve *c) {
    mt_memory_model *model;
    mt_recording **r = c->recording;
    if (!c->filling) return;
    c->filling = 0;
    if (r[c->recorded]->incomplete || r[c->recorded]->allocations == 0) return;
    c->recorded++;
    if (c->recorded == 2 && r[0]->samples > r[1]->samples) {
        mt_recording *swap = r[0];
        r[0] = r[1];
        r[1] = swap;
    }
    if (mt_memory_model_new(r[0], c->recorded == 2 ? r[1] : NULL, &model) != MT_OK) {
        mt_log(MT_LOG_WARNING, "a recording is dropped: %s", mt_last_error());
        c->recorded--;
        return;
    }
    mt_memory_model_free(c->model);
    c->model = model;
    c->residual = 0;
}

/*
 * A correction that measured peaks do not bear out came from something that passed: it fades by a
 * sixteenth a chunk, so that one refusal without evidence does not keep chunks small for ever.
 */
static void forget_slowly(curve *c, size_t samples, size_t peak) {
    if (!c->residual || peak > predict(c, samples) - c->residual) return;
    c->residual -= mt__ceil_div(c->residual, 16);
    if (!c->residual) c->failed_chunk = 0;
}

/* Compares a measured peak with the prediction, or keeps it where there are no recordings. */
static void learn_peak(curve *c, size_t samples, size_t peak) {
    if (c->model) {
        size_t predicted = predict(c, samples);
        if (peak > predicted)
            c->residual += peak - predicted;
        else
            forget_slowly(c, samples, peak);
    } else if (samples > c->bound_samples ||
               (samples == c->bound_samples && peak > c->bound_peak)) {
        c->bound_samples = samples;
        c->bound_peak = peak;
    }
}

mt_status mt_policy_observe(mt_policy *policy, mt_mode mode, size_t samples,
                            size_t allocated_before, const mt_chunk_result *result) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_observe");
    MT__CHECK((unsigned)mode < MODES, "mt_policy_observe: mode is %d", (int)mode);
    MT__CHECK(result, "mt_policy_observe: result is NULL");
    MT__CHECK(samples > 0, "mt_policy_observe: samples is 0");
    curve *c = &policy->curves[mode];
    c->has_run = 1;
    take_recording(c);
    if (result->peak_bytes > allocated_before)
        learn_peak(c, samples, result->peak_bytes - allocated_before);
    if (result->seconds > 0) policy->seconds += result->seconds;
    if (!policy->options.deterministic) mt__timings_note(&c->timings, samples, result->seconds);
    return MT_OK;
}

/* ---- plans ------------------------------------------------------------------------------------ */

static seen_batch *find_seen(curve *c, size_t samples) {
    for (size_t i = 0; i < SEEN; i++)
        if (c->seen[i].samples == samples) return &c->seen[i];
    return NULL;
}

/* Why this plan, compared with the last one for a batch of this size; remembers it. */
static mt_plan_reason explain(mt_policy *p, curve *c, size_t samples, size_t fewest,
                              size_t chunks) {
    seen_batch *s = find_seen(c, samples);
    mt_plan_reason reason = MT_PLAN_START;
    if (p->replanning)
        reason = MT_PLAN_OOM;
    else if (s && fewest < s->fewest)
        reason = MT_PLAN_GROWTH;
    else if (s && fewest > s->fewest)
        reason = MT_PLAN_BUDGET;
    else if (s)
        reason = chunks == s->chunks ? s->reason : MT_PLAN_THROUGHPUT;
    if (!s) s = &c->seen[c->next_seen++ % SEEN];
    *s = (seen_batch){samples, fewest, chunks, reason};
    p->replanning = 0;
    return reason;
}

static mt_status does_not_fit(const curve *c, size_t samples, const mt_memory *memory) {
    char need[32], used[32], budget[32];
    size_t bytes = predict(c, samples);
    mt_format_size(bytes, need, sizeof need);
    mt_format_size(memory->allocated_bytes, used, sizeof used);
    mt_format_size(memory->budget_bytes, budget, sizeof budget);
    if (!bytes || bytes <= room_of(memory))
        return mt_set_error(
            MT_EDEVMEM,
            "a chunk of %zu did not fit beside the %s in use of %s, and no legal cut "
            "is smaller",
            samples, used, budget);
    return mt_set_error(MT_EDEVMEM,
                        "a chunk of %zu needs %s beside the %s in use, and the budget is %s; a "
                        "budget of %zu bytes would do, or smaller samples",
                        samples, need, used, budget, mt__add(bytes, memory->allocated_bytes));
}

/*
 * The smallest chunk that the search for speed tries: an eighth of what fits. Still smaller ones gain
 * nothing and, where layers normalise over them, do harm.
 */
static size_t smallest_worth(const mt_policy *p, mt_mode mode, size_t fits, size_t least) {
    size_t floor = mt__max(least, fits / 8);
    if (p->info.normalises_over_batch && mode == MT_TRAIN) floor = mt__max(floor, LEAST_NORMALISED);
    return mt__max(1, mt__min(floor, fits));
}

/*
 * Fewest chunks that memory allows for so many samples, and the most that the search for speed may
 * try. MT_EDEVMEM when the exact model says that the smallest legal chunk does not fit.
 */
static mt_status limits(const mt_policy *p, mt_mode mode, size_t samples, const mt_memory *memory,
                        size_t *fewest, size_t *most) {
    const curve *c = &p->curves[mode];
    size_t least = mt__min(smallest_chunk(p), samples);
    size_t top = p->options.max_micro_batch ? p->options.max_micro_batch : samples;
    if (p->step_cap) top = mt__min(top, p->step_cap);
    size_t fits = memory->budget_bytes ? largest(c, room_of(memory)) : largest(c, SIZE_MAX);
    if (fits < least && c->recorded == 2 && !c->failed_chunk &&
        mt_memory_model_peak(c->model, least) > room_of(memory))
        return does_not_fit(c, least, memory);
    size_t chunk = mt__max(least, mt__min(mt__min(fits, top), samples));
    *fewest = mt__min(mt__ceil_div(samples, chunk), samples / least);
    *most = mt__max(*fewest, samples / smallest_worth(p, mode, mt__min(chunk, samples), least));
    /* No legal cut is below what has just failed: 10 samples in chunks of at least 4 that must be
       smaller than 5, say. */
    if (p->step_failed && mt__ceil_div(samples, *fewest) >= p->step_failed)
        return does_not_fit(c, mt__ceil_div(samples, *fewest), memory);
    return MT_OK;
}

/*
 * Cuts the first batch into sizes of several kinds, a quarter and a half of what fits and then all of
 * it, so that times are known from the second batch on. Returns whether there is room for that.
 */
static int spread(const mt_policy *p, mt_mode mode, size_t fewest, mt_plan *plan) {
    size_t rest = plan->samples - mt_plan_covered(plan), top = mt__ceil_div(rest, fewest);
    size_t least = smallest_chunk(p), first = mt__max(top / 4, smallest_worth(p, mode, top, least));
    if (top < 4 || 2 * first >= top || rest < 3 * first + least) return 0;
    rest -= 3 * first;
    size_t chunks = mt__ceil_div(rest, top);
    if (rest / chunks < least) return 0;
    if (mt__plan_append(plan, first, 1) != MT_OK) return 0;
    if (mt__plan_append(plan, 2 * first, 1) != MT_OK) return 0;
    return mt__plan_append(plan, rest, chunks) == MT_OK;
}

/* Predicted highest allocated bytes of a plan; 0: nothing known. */
static size_t plan_peak(const curve *c, const mt_plan *plan, const mt_memory *memory) {
    size_t peak = 0;
    if (!memory->budget_bytes) return 0;
    for (size_t g = 0; g < plan->groups; g++)
        peak = mt__max(peak, predict(c, plan->group[g].samples));
    return peak ? mt__add(peak, memory->allocated_bytes) : 0;
}

/* Appends the rest of the batch as the fastest cut that fits. */
static mt_status plan_rest(mt_policy *p, mt_mode mode, const mt_memory *memory, mt_plan *plan) {
    curve *c = &p->curves[mode];
    size_t rest = plan->samples - mt_plan_covered(plan), fewest = 1, most = 1;
    mt_status status = limits(p, mode, rest, memory, &fewest, &most);
    if (status != MT_OK) return status;
    const seen_batch *s = find_seen(c, plan->samples);
    size_t chunks = p->options.deterministic
                        ? fewest
                        : mt__choose_chunks(&c->timings, rest, fewest, most, s ? s->chunks : 0);
    int several = !p->options.deterministic && !c->has_spread && memory->budget_bytes;
    if (!plan->groups) plan->reason = explain(p, c, plan->samples, fewest, chunks);
    c->has_spread = 1;
    if (!several || !spread(p, mode, fewest, plan)) status = mt__plan_append(plan, rest, chunks);
    plan->predicted_peak_bytes = plan_peak(c, plan, memory);
    return status;
}

/* The two recording chunks: run and taken back, or the first part of an open plan. */
static int plan_recording(const mt_policy *p, mt_mode mode, mt_plan *plan) {
    size_t first = mt__max(FIRST_RECORDED, smallest_chunk(p));
    int discard = p->info.normalises_over_batch && mode == MT_TRAIN;
    size_t most = p->options.max_micro_batch ? p->options.max_micro_batch : SIZE_MAX;
    size_t second = 2 * first, both = first + second;
    if (second > most || plan->samples < (discard ? second : both)) return 0;
    /* What is left over must be a legal chunk. */
    if (!discard && plan->samples > both && plan->samples - both < smallest_chunk(p)) return 0;
    plan->discard = discard;
    plan->group[0] = (mt_chunk_group){first, 1};
    plan->group[1] = (mt_chunk_group){second, 1};
    plan->groups = 2;
    return 1;
}

/* A batch too small for two recording chunks: chunks of the first recorded size, known by its end. */
static void plan_small(const mt_policy *p, mt_plan *plan) {
    size_t chunk = mt__max(FIRST_RECORDED, smallest_chunk(p));
    if (p->options.max_micro_batch) chunk = mt__min(chunk, p->options.max_micro_batch);
    size_t chunks = mt__ceil_div(plan->samples, chunk), most = plan->samples / smallest_chunk(p);
    if (mt__plan_append(plan, plan->samples, mt__max(1, mt__min(chunks, most))) != MT_OK) return;
}

static mt_status plan_fixed(mt_policy *p, mt_mode mode, const mt_memory *memory, mt_plan *plan) {
    size_t chunks = mt__ceil_div(plan->samples, p->options.micro_batch);
    mt_status status = mt__plan_append(plan, plan->samples, chunks);
    plan->reason = MT_PLAN_USER;
    plan->predicted_peak_bytes = plan_peak(&p->curves[mode], plan, memory);
    return status;
}

mt_status mt_policy_plan(mt_policy *policy, mt_mode mode, size_t samples, const mt_memory *memory,
                         mt_plan *out) {
    MT__CHECK(out, "mt_policy_plan: out is NULL");
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_plan");
    MT__CHECK((unsigned)mode < MODES, "mt_policy_plan: mode is %d", (int)mode);
    MT__CHECK(memory, "mt_policy_plan: memory is NULL");
    MT__CHECK(samples > 0, "mt_policy_plan: samples is 0; at least 1 is accepted");
    out->samples = samples;
    if (!policy->replanning) policy->step_cap = policy->step_failed = 0;
    if (policy->options.micro_batch) return plan_fixed(policy, mode, memory, out);
    /* At the start alone: where nothing came of it (no recordings, no peaks) sizes are tried. */
    curve *c = &policy->curves[mode];
    if (memory->budget_bytes && !c->has_run && !c->failed_chunk) {
        if (!plan_recording(policy, mode, out)) plan_small(policy, out);
        return MT_OK;
    }
    mt_status status = plan_rest(policy, mode, memory, out);
    if (status != MT_OK) policy->replanning = 0;
    return status;
}

mt_status mt_policy_extend(mt_policy *policy, mt_mode mode, const mt_memory *memory,
                           mt_plan *plan) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_extend");
    MT__CHECK((unsigned)mode < MODES, "mt_policy_extend: mode is %d", (int)mode);
    MT__CHECK(memory, "mt_policy_extend: memory is NULL");
    MT__CHECK(plan, "mt_policy_extend: plan is NULL");
    MT__CHECK(mt_plan_covered(plan) < plan->samples,
              "mt_policy_extend: the plan covers its %zu samples already", plan->samples);
    return plan_rest(policy, mode, memory, plan);
}

/* ---- OOM --------------------------------------------------------------------------------------- */

const char *mt_phase_name(mt_phase phase) {
    static const char *const names[] = {"begin", "accumulate", "apply", "evaluate"};
    return (size_t)phase < sizeof names / sizeof *names ? names[phase] : "?";
}

/* Whether the budget explains the refusal: no evidence, or in use + request above it. */
static int is_explained(const mt_oom *oom) {
    size_t budget = oom->memory.budget_bytes;
    if (!oom->refused) return oom->chunk > 0; /* begin and apply have no size that could be wrong */
    if (!budget) return 1;
    return mt__add(oom->refused_in_use_bytes, oom->refused_bytes) > budget;
}

/* The size did not fit: corrects the prediction so that it says so. */
static void learn_failure(curve *c, const mt_oom *oom) {
    mt_memory then = oom->memory;
    then.allocated_bytes = oom->allocated_before_bytes;
    size_t room = then.budget_bytes ? room_of(&then) : SIZE_MAX;
    size_t predicted = predict(c, oom->chunk);
    c->failed_chunk = oom->chunk;
    c->failed_room = room;
    /* Doubling bounds the number of corrections when the model is far off. */
    if (predicted && predicted <= room && room < SIZE_MAX)
        c->residual = mt__add(c->residual, mt__max(c->residual, room + 1 - predicted));
}

/* The first rung: clear once a step where a cache may hold what is missing. */
static mt_action clear_or(mt_policy *p, mt_action other) {
    if (p->cleared) return other;
    p->cleared = 1;
    return MT_ACTION_CLEAR;
}

static mt_action answer_unexplained(mt_policy *p, const mt_oom *oom, int fixed) {
    p->unexplained++;
    if (p->unexplained == 1) return MT_ACTION_RETRY;
    if (!p->cleared) return clear_or(p, MT_ACTION_RETRY);
    if (fixed || oom->chunk <= smallest_chunk(p)) return MT_ACTION_GIVE_UP;
    p->step_cap = smaller(oom->chunk); /* for this step alone: nothing is learnt */
    return MT_ACTION_REPLAN;
}

static mt_action answer_explained(mt_policy *p, const mt_oom *oom, int fixed) {
    if (fixed) return clear_or(p, MT_ACTION_GIVE_UP);
    if (oom->chunk) {
        learn_failure(&p->curves[oom->mode], oom);
        p->step_failed = oom->chunk;
    }
    if (oom->chunk <= smallest_chunk(p)) return clear_or(p, MT_ACTION_GIVE_UP);
    size_t cached = oom->memory.reserved_bytes -
                    mt__min(oom->memory.reserved_bytes, oom->memory.allocated_bytes);
    if (cached >= oom->refused_bytes && cached > 0 && !p->cleared) {
        p->curves[oom->mode].failed_chunk = 0; /* fragmentation, not the size */
        return clear_or(p, MT_ACTION_REPLAN);
    }
    return MT_ACTION_REPLAN;
}

mt_status mt_policy_oom(mt_policy *policy, const mt_oom *oom, mt_action *out) {
    MT__CHECK(out, "mt_policy_oom: out is NULL");
    *out = MT_ACTION_GIVE_UP;
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_oom");
    MT__CHECK(oom, "mt_policy_oom: oom is NULL");
    MT__CHECK((unsigned)oom->mode < MODES, "mt_policy_oom: mode is %d", (int)oom->mode);
    if (oom->attempt <= 1) {
        policy->unexplained = 0;
        policy->cleared = 0;
    }
    policy->curves[oom->mode].filling = 0;
    if (oom->attempt > policy->options.max_retries) return MT_OK;
    int fixed = oom->plan_is_fixed || policy->options.micro_batch > 0 || oom->chunk == 0;
    *out = is_explained(oom) ? answer_explained(policy, oom, fixed)
                             : answer_unexplained(policy, oom, fixed);
    policy->replanning = *out == MT_ACTION_REPLAN;
    if (!policy->replanning) policy->step_failed = 0; /* the same plan is tried again */
    return MT_OK;
}

/* ---- cache ------------------------------------------------------------------------------------ */

const char *mt_clear_reason_name(mt_clear_reason reason) {
    static const char *const names[] = {"not", "every", "evidence", "epoch", "oom"};
    return (size_t)reason < sizeof names / sizeof *names ? names[reason] : "?";
}

/* Whether cached bytes stand in the way, or the allocator had to clear by itself. */
static int has_evidence(const mt_policy *p, const mt_memory *m, size_t predicted,
                        int mode_changed) {
    size_t cached = m->reserved_bytes - mt__min(m->reserved_bytes, m->allocated_bytes);
    if (!cached || !m->budget_bytes) return 0;
    if (predicted && mt__add(predicted, cached) > m->budget_bytes) return 1;
    if (m->alloc_retries > p->last_alloc_retries) return 1;
    return mode_changed && cached > m->budget_bytes / PHASE_CACHE_SHARE;
}

static int is_affordable(const mt_policy *p) {
    return p->clear_seconds + p->last_clear_seconds <= CLEAR_SHARE * p->seconds;
}

mt_clear_reason mt_policy_clear(mt_policy *policy, mt_mode mode, const mt_memory *memory,
                                size_t predicted_peak_bytes) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || !memory || (unsigned)mode >= MODES)
        return MT_CLEAR_NOT;
    int every = mode == MT_TRAIN ? policy->options.clear_every : policy->options.eval_clear_every;
    int mode_changed = policy->has_mode && policy->last_mode != mode;
    int evidence = has_evidence(policy, memory, predicted_peak_bytes, mode_changed);
    uint64_t calls = policy->calls[mode]++;
    policy->has_mode = 1;
    policy->last_mode = mode;
    policy->last_alloc_retries = memory->alloc_retries;
    if (every > 0) return calls && calls % (uint64_t)every == 0 ? MT_CLEAR_EVERY : MT_CLEAR_NOT;
    if (every == MT_CLEAR_NEVER || !evidence || !is_affordable(policy)) return MT_CLEAR_NOT;
    return MT_CLEAR_EVIDENCE;
}

void mt_policy_cleared(mt_policy *policy, const mt_clear_result *result) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || !result || !(result->seconds > 0)) return;
    policy->clear_seconds += result->seconds;
    policy->last_clear_seconds = result->seconds;
}

/* ---- reports ---------------------------------------------------------------------------------- */

size_t mt_policy_predict_bytes(const mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MODES || !samples) return 0;
    return predict(&policy->curves[mode], samples);
}

double mt_policy_predict_seconds(const mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MODES || !samples) return 0;
    return mt__measured_seconds(&policy->curves[mode].timings, samples);
}
