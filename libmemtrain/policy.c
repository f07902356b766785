/*
 * policy.c - a policy's life, the kinds of chunks that it knows of, and what it is told and asked.
 *
 * It gathers facts and applies what is decided by split.c (chunks), answer.c (when memory runs out), rungs.c and clear.c.
 * The rules and their reasons are in docs/policy.md.
 */
#include "policy_state.h"
#include "tuned.h"

#include <math.h>
#include <string.h>

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

mt_status mt__check_backend_sizes(const mt_policy_options *o, size_t least, const char *since) {
    if (o->min_micro_batch) return MT_OK;
    MT__CHECK(o->micro_batch == 0 || o->micro_batch >= least,
              "mt_policy_options: micro_batch is %zu; the backend accepts chunks of at least %zu%s",
              o->micro_batch, least, since);
    MT__CHECK(o->max_micro_batch == 0 || o->max_micro_batch >= least,
              "mt_policy_options: max_micro_batch is %zu; the backend accepts chunks of at least "
              "%zu%s",
              o->max_micro_batch, least, since);
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
    for (size_t i = 0; i < MT__BUCKETS; i++) {
        while (p->kinds[i]) {
            mt__kind *k = p->kinds[i];
            p->kinds[i] = k->next;
            mt__kind_free(k);
        }
    }
    mt_recording_free(p->recording);
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
    MT__CHECK(!info || info->size >= sizeof info->size,
              "mt_policy_new: info->size is not set; sizeof(mt_backend_info) is accepted");
    if (info) mt__copy_versioned(&told, sizeof told, info, info->size);
    if (status == MT_OK) status = mt__check_backend_sizes(&own, told.min_micro_batch, "");
    if (status != MT_OK) return status;
    mt_policy *p = mt__alloc(1, sizeof *p);
    if (!p) return mt_set_error(MT_ENOMEM, "mt_policy_new: out of host memory");
    p->options = own;
    p->info = told;
    if (!p->options.max_retries) p->options.max_retries = DEFAULT_RETRIES;
    /* Made now, so that a policy that could be made can also plan. */
    if (!mt__policy_kind(p, MT_TRAIN, 0) || !mt__policy_kind(p, MT_EVALUATE, 0) ||
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

/* ---- what the trainer tells -------------------------------------------------------------------- */

mt_status mt_policy_begin(mt_policy *policy, const mt_shape *shape) {
    const mt_shape none = {0};
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_begin");
    policy->shape = shape ? *shape : none;
    policy->next = MT__NEXT_STEP;
    policy->explained.chunk = 0;
    policy->least_need.bytes = 0;
    policy->discarded = 0;
    mt__policy_end_recording(policy); /* it was of another shape */
    return MT_OK;
}

mt_status mt_policy_describe(mt_policy *policy, const mt_backend_info *info) {
    mt_backend_info now = {0};
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_describe");
    MT__CHECK(info && info->size >= sizeof info->size,
              "mt_policy_describe: info is NULL or has no size");
    mt__copy_versioned(&now, sizeof now, info, info->size);
    int is_other = now.normalises_over_batch != policy->info.normalises_over_batch ||
                   now.min_micro_batch != policy->info.min_micro_batch;
    mt_status status = MT_OK;
    if (is_other)
        status = mt__check_backend_sizes(
            &policy->options, now.min_micro_batch,
            now.normalises_over_batch ? ", since they normalise over their samples" : "");
    if (status != MT_OK) return status;
    policy->info.gradient_bytes = now.gradient_bytes;
    if (!is_other) return MT_OK;
    policy->info.normalises_over_batch = now.normalises_over_batch;
    policy->info.min_micro_batch = now.min_micro_batch;
    policy->discarded = 0;
    /* A smaller chunk than is legal may have come of one refusal, which says nothing. */
    policy->step.cap = 0;
    for (size_t i = 0; i < MT__BUCKETS; i++)
        for (mt__kind *k = policy->kinds[i]; k; k = k->next) mt__kind_forget(k);
    return MT_OK;
}

mt_status mt_policy_replan(mt_policy *policy) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_replan");
    policy->next = MT__SAME_STEP;
    policy->discarded = 0; /* it has not run */
    return MT_OK;
}

mt_status mt_policy_given(mt_policy *policy, int keep) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_given");
    policy->keep = keep ? MT__KEPT_APART : MT__ADDED;
    return MT_OK;
}

unsigned mt_policy_rungs(const mt_policy *policy) {
    return mt__handle_is(policy, MT__KIND_POLICY) ? policy->ladder.rungs : 0;
}

static int can_record(const mt_policy *p) {
    unsigned needed = p->info.record_rungs;
    return !p->info.cannot_record && !p->options.micro_batch &&
           (!needed || (p->ladder.rungs & needed));
}

/* ---- plans ------------------------------------------------------------------------------------- */

static mt_status does_not_fit(const mt_policy *p, const mt__kind *k, size_t samples,
                              const mt_memory *memory) {
    char need[32], used[32], budget[32];
    size_t bytes = mt__kind_predict(k, MT__IN_PLACE, samples);
    mt_format_size(bytes, need, sizeof need);
    mt_format_size(memory->allocated_bytes, used, sizeof used);
    mt_format_size(memory->budget_bytes, budget, sizeof budget);
    if (!bytes || bytes <= mt__policy_room(p, memory))
        return mt_set_error(
            MT_EDEVMEM,
            "a chunk of %zu did not fit beside the %s in use of %s, and no legal cut is smaller",
            samples, used, budget);
    return mt_set_error(MT_EDEVMEM,
                        "a chunk of %zu needs %s beside the %s in use, and the budget is %s; a "
                        "budget of %zu bytes would do, or smaller samples",
                        samples, need, used, budget, mt__add(bytes, memory->allocated_bytes));
}

/* All that a split depends on, for what a plan does not cover yet. */
static mt__facts facts_of(const mt_policy *p, mt_mode mode, const mt_memory *memory,
                          const mt_plan *plan) {
    size_t rest = plan->samples - mt_plan_covered(plan), least = mt__policy_least(p, rest);
    size_t small = mt__policy_attainable(p, rest), most = p->options.max_micro_batch;
    mt__facts f = {
        .batch = plan->samples, .rest = rest, .least = least, .fixed = mt__policy_fixed(p, rest)};
    f.most = most ? mt__max(most, small) : plan->samples;
    if (p->step.cap) f.most = mt__min(f.most, p->step.cap);
    f.size = p->step.try_size;
    f.ran = plan->groups ? plan->group[plan->groups - 1].samples : 0;
    f.room = mt__policy_room(p, memory);
    f.room_told = SIZE_MAX;
    if (memory->budget_bytes && !p->is_watched)
        f.room_told = memory->budget_bytes - mt__min(memory->budget_bytes, memory->allocated_bytes);
    f.room_alone = mt__policy_room_alone(p, memory);
    f.is_training = mode == MT_TRAIN;
    f.can_record = can_record(p);
    f.is_deterministic = p->options.deterministic;
    f.normalises = p->info.normalises_over_batch && f.is_training;
    f.all_at_once = p->info.is_told && f.is_training;
    f.is_short = p->step.cap || plan->groups + 4 > MT_PLAN_GROUPS;
    /* What is left of a step that has begun has the gradients before it to add to. */
    f.may_go_alone = rest == p->step.samples && mt__policy_may_go_alone(p, mode, rest);
    f.must_go_alone = p->step.resort == MT__RESORT_ALONE;
    return f;
}

/* Why this plan, compared with the last one if it was for a batch of this size; remembers it. */
static mt_plan_reason reason_of(const mt_policy *p, mt__kind *k, size_t samples, size_t fewest,
                                size_t chunks) {
    const mt__seen *s = k->seen.samples == samples ? &k->seen : NULL;
    mt_plan_reason reason = chunks > fewest ? MT_PLAN_THROUGHPUT : MT_PLAN_START;
    if (p->next == MT__AFTER_OOM)
        reason = MT_PLAN_OOM;
    else if (mt__policy_fixed(p, samples))
        reason = MT_PLAN_USER;
    else if (s && fewest < s->fewest)
        reason = MT_PLAN_GROWTH;
    else if (s && fewest > s->fewest)
        reason = MT_PLAN_BUDGET;
    else if (s)
        reason = chunks == s->chunks ? s->reason : MT_PLAN_THROUGHPUT;
    k->seen = (mt__seen){samples, fewest, chunks, reason};
    return reason;
}

/* Splits what a plan does not cover yet, or the first part of that. */
static mt_status add_chunks(mt_policy *p, mt_mode mode, mt__kind *k, const mt_memory *memory,
                            mt_plan *plan) {
    mt__facts f = facts_of(p, mode, memory, plan);
    mt__split s = mt__split_batch(&f, k);
    if (s.starts_over) {
        plan->discard = 1;
        return MT_OK;
    }
    if (!s.single && !s.chunks) {
        size_t small = mt__policy_attainable(p, f.rest);
        return does_not_fit(p, k, small, memory);
    }
    plan->discard = s.discard;
    plan->alone = s.alone;
    if (!plan->groups && !s.fewest) /* it is not known yet */
        plan->reason = p->next == MT__AFTER_OOM ? MT_PLAN_OOM : MT_PLAN_START;
    else if (!plan->groups && !s.discard)
        plan->reason = reason_of(p, k, plan->samples, s.fewest, s.chunks);
    return s.single ? mt__plan_append(plan, s.single, 1) : mt__plan_append(plan, f.rest, s.chunks);
}

/* ---- what a plan promises ---- */

/*
 * Whether a second set of gradients fits beside chunks up to that size: as recordings say, or else by the bound that it
 * adds no more than the gradients. *bytes becomes the peak then.
 */
static int has_room_to_keep(const mt_policy *p, const mt__kind *k, size_t largest,
                            const mt_memory *memory, size_t *bytes) {
    size_t room = mt__policy_room(p, memory), bound = mt__add(*bytes, p->info.gradient_bytes);
    int is_known = mt__kind_is_recorded(k, MT__APART) || k->limits[MT__APART].high >= largest;
    int is_asked = p->options.keep_chunks == MT_KEEP_ALWAYS || mt__policy_fixed(p, largest);
    /* A step made smaller is taken back whole: what is left of it would be made smaller again. */
    if (!p->info.keeps_chunks || p->options.keep_chunks == MT_KEEP_NEVER || p->ladder.chunk)
        return 0;
    if (!is_known && !is_asked) return 0;
    if (is_known) bound = mt__kind_predict(k, MT__APART, largest);
    if (memory->budget_bytes && (!*bytes || bound > room)) return 0;
    if (mt__kind_has_failed(k, MT__APART, largest, room)) return 0;
    *bytes = bound;
    return 1;
}

/* Whether all is known of the chunks to come, so that their peak can be told. */
static int is_complete(const mt_plan *plan) {
    return !plan->discard && plan->groups && mt_plan_covered(plan) == plan->samples;
}

/* Fills in what a plan promises once its chunks are known; so many of them have run. */
static void promise(mt_policy *p, mt_mode mode, const mt__kind *k, const mt_memory *memory,
                    size_t ran, mt_plan *plan) {
    size_t largest = mt_plan_chunk(plan, ran); /* of those to come, larger ones are first */
    mt__way way = plan->alone ? MT__APART : MT__IN_PLACE;
    size_t bytes = mt__kind_predict(k, way, largest);
    size_t allocated =
        plan->alone ? mt__policy_allocated_alone(p, memory) : memory->allocated_bytes;
    plan->keep =
        plan->alone || (mode == MT_TRAIN && has_room_to_keep(p, k, largest, memory, &bytes));
    for (size_t i = 0; bytes && i < ran; i++)
        bytes = mt__max(bytes, mt__kind_predict(k, MT__IN_PLACE, mt_plan_chunk(plan, i)));
    int is_sure = mt__kind_is_sure(k, plan->keep ? MT__APART : MT__IN_PLACE, largest);
    if (bytes && memory->budget_bytes && is_sure)
        plan->predicted_peak_bytes = mt__max(plan->predicted_peak_bytes, mt__add(bytes, allocated));
    else
        plan->predicted_peak_bytes = 0;
}

/* The plan with the rungs that are taken: left open where they are of a device not known yet. */
static mt_status plan_here(mt_policy *p, mt_mode mode, size_t samples, const mt_memory *memory,
                           mt_plan *plan) {
    mt__kind *k = mt__policy_current(p, mode);
    mt_status status = MT_OK;
    if (!k) return mt_set_error(MT_ENOMEM, "mt_policy_plan: out of host memory");
    memset(plan, 0, sizeof *plan);
    plan->size = sizeof *plan;
    plan->samples = mode == MT_TRAIN ? mt__rungs_samples(p, samples) : samples;
    plan->rungs = p->ladder.rungs;
    plan->rate = mt__rungs_rate(p, samples);
    if (p->device == (p->ladder.rungs & MT_RUNG_BIT(MT_RUNG_CPU)))
        status = add_chunks(p, mode, k, memory, plan);
    if (status == MT_OK && is_complete(plan)) promise(p, mode, k, memory, 0, plan);
    return status;
}

/* What the step before left behind is over. */
static void begin_step(mt_policy *p, mt_mode mode, size_t samples, const mt_memory *memory) {
    p->step = (mt__step){.samples = samples, .start = p->ladder};
    p->steps++;
    if (mode == MT_TRAIN) mt__rungs_leave(p, samples, memory);
    mt__kind *k = mt__policy_current(p, mode);
    if (k) mt__kind_begin(k);
}

/* What is to be remembered of a plan that was made or extended. */
static void note_plan(mt_policy *p, mt_mode mode, const mt_plan *plan, mt_status status) {
    int is_taken_back = status == MT_OK && plan->discard;
    p->discarded = is_taken_back ? plan->group[plan->groups - 1].samples : 0;
    p->next = p->discarded ? MT__SAME_STEP : MT__NEXT_STEP;
    if (status != MT_OK || mode != MT_TRAIN) return;
    p->keep = plan->alone ? MT__ONLY_ONES : plan->keep ? MT__KEPT_APART : MT__ADDED;
}

/* What the last plan was to tell ran, and was taken back. Without units it has left no other trace. */
static void note_discarded(mt_policy *p, mt_mode mode) {
    mt__kind *k = mt__policy_find_kind(p, mode, p->ladder.rungs);
    if (k) k->learnt = mt__max(k->learnt, p->discarded);
    p->discarded = 0;
}

mt_status mt_policy_plan(mt_policy *policy, mt_mode mode, size_t samples, const mt_memory *memory,
                         mt_plan *out) {
    mt_memory own = {0};
    MT__CHECK(out, "mt_policy_plan: out is NULL");
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_plan");
    MT__CHECK((unsigned)mode < MT__MODES, "mt_policy_plan: mode is %d", (int)mode);
    mt_status status = mt__take_versioned(&own, sizeof own, memory, "mt_policy_plan", "memory");
    if (status != MT_OK) return status;
    MT__CHECK(samples > 0, "mt_policy_plan: samples is 0; at least 1 is accepted");
    mt_policy *p = policy;
    if (p->next == MT__SAME_STEP) note_discarded(p, mode);
    if (p->next == MT__NEXT_STEP) begin_step(p, mode, samples, &own);
    p->budget = own.budget_bytes;
    status = plan_here(p, mode, samples, &own, out);
    /* Also what is known beforehand not to fit is a reason for a rung. */
    while (status == MT_EDEVMEM && mt__rungs_take(p, mode, &own))
        status = plan_here(p, mode, samples, &own, out);
    if (status == MT_EDEVMEM) p->ladder = p->step.start;
    if (status == MT_OK) p->device = p->ladder.rungs & MT_RUNG_BIT(MT_RUNG_CPU);
    note_plan(p, mode, out, status);
    return status;
}

mt_status mt_policy_extend(mt_policy *policy, mt_mode mode, const mt_memory *memory,
                           mt_plan *plan) {
    mt_memory own = {0};
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_extend");
    MT__CHECK((unsigned)mode < MT__MODES, "mt_policy_extend: mode is %d", (int)mode);
    mt_status status = mt__take_versioned(&own, sizeof own, memory, "mt_policy_extend", "memory");
    if (status != MT_OK) return status;
    MT__CHECK(plan, "mt_policy_extend: plan is NULL");
    MT__CHECK(plan->size >= sizeof *plan, "mt_policy_extend: plan is not of mt_policy_plan");
    MT__CHECK(plan->groups <= MT_PLAN_GROUPS,
              "mt_policy_extend: plan->groups is %zu; at most %d is accepted", plan->groups,
              MT_PLAN_GROUPS);
    MT__CHECK(mt_plan_covered(plan) < plan->samples,
              "mt_policy_extend: the plan covers its %zu samples already", plan->samples);
    mt_policy *p = policy;
    mt__kind *k = mt__policy_current(p, mode);
    if (!k) return mt_set_error(MT_ENOMEM, "mt_policy_extend: out of host memory");
    p->budget = own.budget_bytes;
    size_t ran = mt_plan_chunks(plan);
    status = add_chunks(p, mode, k, &own, plan);
    if (status == MT_OK && is_complete(plan)) promise(p, mode, k, &own, ran, plan);
    note_plan(p, mode, plan, status);
    return status;
}

/* ---- recordings and measurements ---------------------------------------------------------------- */

mt_recording *mt_policy_recording(mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MT__MODES || samples == 0)
        return NULL;
    mt_policy *p = policy;
    mt__kind *k = mt__policy_current(p, mode);
    mt__policy_end_recording(p);
    if (!k || !can_record(p) || !mt__kind_wants_recording(k, samples)) return NULL;
    if (!p->recording && mt_recording_new(&p->recording) != MT_OK) return NULL;
    mt__recording_restart(p->recording, samples);
    return p->recording;
}

mt_status mt_policy_observe(mt_policy *policy, mt_mode mode, size_t samples,
                            size_t allocated_before, const mt_chunk_result *result) {
    mt_chunk_result own = {0};
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_observe");
    MT__CHECK((unsigned)mode < MT__MODES, "mt_policy_observe: mode is %d", (int)mode);
    mt_status status = mt__take_versioned(&own, sizeof own, result, "mt_policy_observe", "result");
    if (status != MT_OK) return status;
    MT__CHECK(samples > 0, "mt_policy_observe: samples is 0");
    mt_policy *p = policy;
    mt__kind *k = mt__policy_current(p, mode);
    if (!k) return mt_set_error(MT_ENOMEM, "mt_policy_observe: out of host memory");
    mt__way way = mt__policy_way(p, mode);
    size_t peak = own.peak_bytes - mt__min(own.peak_bytes, allocated_before);
    size_t room = p->budget ? p->budget - mt__min(p->budget, allocated_before) : SIZE_MAX;
    /* Where a budget is watched and not enforced, chunks go through above it: that proves nothing. */
    int is_above = p->budget && own.peak_bytes > p->budget;
    if (is_above) room = 0;
    p->is_watched |= is_above;
    mt__kind_learn(k, way, samples, peak, room, &p->recording);
    mt__policy_end_recording(p);
    if (way == MT__APART) p->step.moved_on = 1;
    if (p->shortage.limit && own.peak_bytes > p->shortage.limit) p->shortage.limit = 0;
    return mt_policy_observe_seconds(p, mode, samples, own.seconds);
}

int mt_policy_wants_seconds(const mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MT__MODES) return 0;
    const mt__kind *k = mt__policy_find_kind(policy, mode, policy->ladder.rungs);
    if (policy->options.deterministic) return 0;
    return !k || !mt__sizes_is_known(&k->times->sizes, samples);
}

mt_status mt_policy_observe_seconds(mt_policy *policy, mt_mode mode, size_t samples,
                                    double seconds) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_observe_seconds");
    MT__CHECK((unsigned)mode < MT__MODES, "mt_policy_observe_seconds: mode is %d", (int)mode);
    MT__CHECK(samples > 0, "mt_policy_observe_seconds: samples is 0");
    mt_policy *p = policy;
    if (!(seconds > 0) || !isfinite(seconds)) return MT_OK;
    mt__kind *k = mt__policy_find_kind(p, mode, p->ladder.rungs); /* there since it was planned */
    if (p->options.deterministic) return MT_OK;
    p->clear_credit += seconds / HUNDREDTH;
    if (k) mt__kind_note_time(k, samples, seconds);
    return MT_OK;
}
