/*
 * policy.c - a policy's life, and what it is told and asked.
 *
 * It gathers facts and applies what is decided by split.c (chunks), answer.c (when memory runs out), rungs.c and clear.c.
 * The rules and their reasons are in docs/policy.md.
 */
#include "policy_state.h"
#include "tuned.h"

#include <math.h>

/* ---- life ------------------------------------------------------------------------------------- */

static void destroy(mt_policy *p) {
    for (size_t i = 0; i < MT__BUCKETS; i++)
        for (mt__kind *k; (k = p->kinds[i]); mt__kind_free(k)) p->kinds[i] = k->next;
    mt_recording_free(p->recording);
    mt__free(p);
}

mt_status mt_policy_new(const mt_policy_options *options, const mt_backend_info *info,
                        mt_policy **out) {
    mt_policy_options own = MT_POLICY_OPTIONS_INIT;
    mt_backend_info told = {0};
    mt_status status = MT_OK;
    MT__CHECK(out, "mt_policy_new: out is NULL");
    *out = NULL;
    if (options) status = mt__take_versioned(&own, sizeof own, options, "mt_policy_new", "options");
    if (status == MT_OK) status = mt__policy_check_options(&own);
    if (status == MT_OK && info)
        status = mt__take_versioned(&told, sizeof told, info, "mt_policy_new", "info");
    if (status == MT_OK) status = mt__check_backend_sizes(&own, told.min_micro_batch, "");
    if (status != MT_OK) return status;
    mt_policy *p = mt__alloc(1, sizeof *p);
    if (!p) return mt_set_error(MT_ENOMEM, "mt_policy_new: out of host memory");
    p->options = own;
    p->info = told;
    if (!p->options.max_retries) p->options.max_retries = DEFAULT_RETRIES;
    /* The first may be at once. */
    p->calls[MT_TRAIN] = own.clear_every == MT_CLEAR_AUTO ? HUNDREDTH : 0;
    p->calls[MT_EVALUATE] = own.eval_clear_every == MT_CLEAR_AUTO ? HUNDREDTH : 0;
    p->last_alloc_retries = UINT64_MAX; /* those from before are nobody's */
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
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_begin");
    policy->shape = shape ? *shape : (mt_shape){0};
    policy->plan.discard = 0;
    policy->step = (mt__step){.start = policy->ladder.rungs};
    mt__policy_end_recording(policy); /* it was of another shape */
    return MT_OK;
}

mt_status mt_policy_describe(mt_policy *policy, const mt_backend_info *info) {
    mt_backend_info now = {0};
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_describe");
    mt_status status = mt__take_versioned(&now, sizeof now, info, "mt_policy_describe", "info");
    int is_other = now.normalises_over_batch != policy->info.normalises_over_batch ||
                   now.min_micro_batch != policy->info.min_micro_batch;
    const char *why = now.normalises_over_batch ? ", since they normalise over their samples" : "";
    if (status == MT_OK)
        status = mt__check_backend_sizes(&policy->options, now.min_micro_batch, why);
    if (status != MT_OK) return status;
    policy->info.gradient_bytes = now.gradient_bytes;
    policy->info.normalises_over_batch = now.normalises_over_batch;
    policy->info.min_micro_batch = now.min_micro_batch;
    if (!is_other) return MT_OK;
    policy->plan.groups = 0; /* what ran of it is not learnt */
    /* A smaller chunk than is legal may have come of one refusal, which says nothing. */
    policy->step.cap = 0;
    for (size_t i = 0; i < MT__BUCKETS; i++)
        for (mt__kind *k = policy->kinds[i]; k; k = k->next) mt__kind_forget(k);
    return MT_OK;
}

mt_status mt_policy_replan(mt_policy *policy) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_replan");
    mt__policy_go_on(policy, MT_PLAN_START);
    return MT_OK;
}

mt_status mt_policy_given(mt_policy *policy, int keep) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_given");
    policy->plan.keep = keep;
    policy->plan.alone = 0;
    return MT_OK;
}

static int can_record(const mt_policy *p) {
    unsigned needed = p->info.record_rungs;
    return !p->info.cannot_record && !p->options.micro_batch &&
           (!needed || (p->ladder.rungs & needed));
}

/* ---- plans ------------------------------------------------------------------------------------- */

/* All that a split depends on, for what a plan does not cover yet. */
static mt__facts facts_of(const mt_policy *p, mt_mode mode, const mt_memory *memory,
                          const mt_plan *plan) {
    size_t rest = plan->samples - mt_plan_covered(plan), used = memory->allocated_bytes;
    size_t most = p->options.max_micro_batch, cap = p->step.cap ? p->step.cap : SIZE_MAX;
    int is_training = mode == MT_TRAIN, is_told = memory->budget_bytes && !p->is_watched;
    if (most) most = mt__max(most, mt__policy_attainable(p, rest));
    return (mt__facts){
        .batch = plan->samples,
        .rest = rest,
        .least = mt__policy_least(p, rest),
        .most = mt__min(most ? most : plan->samples, cap),
        .fixed = mt__policy_fixed(p, rest),
        .tries_larger = p->step.resort == MT__RESORT_LARGER,
        .ran = plan->groups ? plan->group[plan->groups - 1].samples : 0,
        .room = mt__policy_room(p, memory, used),
        .room_told = mt__left(is_told ? memory->budget_bytes : SIZE_MAX, used),
        .room_alone = mt__policy_room(p, memory, mt__policy_allocated_alone(p, memory)),
        .is_training = is_training,
        .can_record = can_record(p),
        .is_deterministic = p->options.deterministic,
        .normalises = p->info.normalises_over_batch && is_training,
        .all_at_once = p->info.is_told && is_training,
        .is_cut = p->step.cap || plan->groups + 3 > MT_PLAN_GROUPS,
        /* What is left of a step that has begun has the gradients before it to add to. */
        .may_go_alone = rest == p->step.samples && mt__policy_may_go_alone(p, mode, rest),
        .must_go_alone = p->step.resort == MT__RESORT_ALONE};
}

/* ---- what a plan promises ---- */

/*
 * Whether a second set of gradients fits beside chunks up to that size: as recordings say, or else by the bound that it
 * adds no more than the gradients. *bytes becomes the peak then.
 */
static int has_room_to_keep(const mt_policy *p, const mt__kind *k, size_t largest,
                            const mt_memory *memory, size_t *bytes) {
    size_t room = mt__policy_room(p, memory, memory->allocated_bytes);
    size_t bound = mt__add(*bytes, p->info.gradient_bytes);
    int is_known =
        mt__kind_is_recorded(k, MT__APART) || k->limits[MT__APART].high.samples >= largest;
    int is_asked = p->options.keep_chunks == MT_KEEP_ALWAYS || mt__policy_fixed(p, largest);
    /* A step made smaller is taken back whole: what is left of it would be made smaller again. */
    if (!p->info.keeps_chunks || p->options.keep_chunks == MT_KEEP_NEVER || p->ladder.chunk)
        return 0;
    if (!is_known && !is_asked) return 0;
    if (is_known) bound = mt__kind_predict(k, MT__APART, largest);
    if (memory->budget_bytes && (!*bytes || bound > room)) return 0;
    if (largest > mt__kind_allowed(k, MT__APART, room)) return 0;
    *bytes = bound;
    return 1;
}

/* Fills in what a plan promises, once all is known of the chunks to come; so many of them have run. */
static void promise(const mt_policy *p, mt_mode mode, const mt__kind *k, const mt_memory *memory,
                    size_t ran, mt_plan *plan) {
    if (plan->discard || mt_plan_covered(plan) < plan->samples) return;
    size_t largest = mt_plan_chunk(plan, ran); /* of those to come, larger ones are first */
    size_t bytes = mt__kind_predict(k, plan->alone ? MT__APART : MT__IN_PLACE, largest);
    size_t used = plan->alone ? mt__policy_allocated_alone(p, memory) : memory->allocated_bytes;
    plan->keep =
        plan->alone || (mode == MT_TRAIN && has_room_to_keep(p, k, largest, memory, &bytes));
    for (size_t i = 0; bytes && i < ran; i++)
        bytes = mt__max(bytes, mt__kind_predict(k, MT__IN_PLACE, mt_plan_chunk(plan, i)));
    int is_sure = mt__kind_is_sure(k, plan->keep ? MT__APART : MT__IN_PLACE, largest);
    plan->predicted_peak_bytes = bytes && memory->budget_bytes && is_sure
                                     ? mt__max(plan->predicted_peak_bytes, mt__add(bytes, used))
                                     : 0;
}

/* Splits what a plan does not cover yet, or the first part of that. */
static mt_status fill(mt_policy *p, mt_mode mode, const mt_memory *memory, mt_plan *plan) {
    mt__kind *k = mt__policy_current(p, mode);
    if (!k) return mt_set_error(MT_ENOMEM, "a plan of chunks: out of host memory");
    mt__facts f = facts_of(p, mode, memory, plan);
    mt__split s = mt__split_batch(&f, k);
    size_t ran = mt_plan_chunks(plan);
    plan->discard = s.discard || s.starts_over;
    if (s.starts_over) return MT_OK;
    if (!s.chunks) return mt__policy_does_not_fit(p, k, mt__policy_attainable(p, f.rest), memory);
    plan->alone = s.alone;
    if (!plan->groups) plan->reason = mt__policy_reason(p, k, plan->samples, &s);
    mt_status status = mt__plan_append(plan, s.size ? s.size * s.chunks : f.rest, s.chunks);
    if (status == MT_OK) promise(p, mode, k, memory, ran, plan);
    return status;
}

/* The checks of a call, and its struct. */
static mt_status enter(const mt_policy *policy, mt_mode mode, const char *function, void *own,
                       size_t size, const void *theirs, const char *name) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, function);
    MT__CHECK((unsigned)mode < MT__MODES, "%s: mode is %d", function, (int)mode);
    return own ? mt__take_versioned(own, size, theirs, function, name) : MT_OK;
}

mt_status mt_policy_plan(mt_policy *policy, mt_mode mode, size_t samples, const mt_memory *memory,
                         mt_plan *out) {
    mt_policy *p = policy;
    mt_memory own = {0};
    MT__CHECK(out, "mt_policy_plan: out is NULL");
    *out = (mt_plan){.size = sizeof *out};
    mt_status status = enter(p, mode, "mt_policy_plan", &own, sizeof own, memory, "memory");
    if (status != MT_OK) return status;
    MT__CHECK(samples > 0, "mt_policy_plan: samples is 0; at least 1 is accepted");
    /* What was to be learnt from ran. Without units it left no other trace. */
    if (p->plan.discard && p->step.samples) {
        mt__kind *k = mt__policy_find_kind(p, mode, p->ladder.rungs);
        size_t ran = mt_plan_chunk(&p->plan, mt_plan_chunks(&p->plan) - 1);
        if (k) k->learnt = mt__max(k->learnt, ran);
    } else { /* what the step before left behind is over */
        p->step = (mt__step){.samples = samples, .start = p->ladder.rungs};
        p->shortage.wait.steps++;
        if (mode == MT_TRAIN) mt__rungs_leave(p, samples, &own);
        mt__kind *k = mt__policy_current(p, mode);
        if (k) mt__kind_begin(k);
    }
    do {
        *out = (mt_plan){.size = sizeof *out, .rungs = mt_policy_rungs(p)};
        out->budget_bytes = own.budget_bytes;
        out->samples = mode == MT_TRAIN ? mt__rungs_samples(p, samples) : samples;
        out->rate = mode == MT_TRAIN ? mt__rungs_rate(p, samples) : 1.0;
        /* Where rungs are of a device not known yet the plan is left open. */
        int is_known = !((p->plan.rungs ^ p->ladder.rungs) & MT_RUNG_BIT(MT_RUNG_CPU));
        status = is_known ? fill(p, mode, &own, out) : MT_OK;
        /* Also what is known beforehand not to fit is a reason for a rung. */
    } while (status == MT_EDEVMEM && mt__rungs_take(p, mode, &own, NULL));
    if (status == MT_OK) p->plan = *out;
    if (status == MT_EDEVMEM) mt__rungs_give_back(p, mode);
    if (status != MT_OK) p->plan.discard = 0;
    return status;
}

mt_status mt_policy_extend(mt_policy *policy, mt_mode mode, const mt_memory *memory,
                           mt_plan *plan) {
    mt_memory own = {0};
    mt_status status = enter(policy, mode, "mt_policy_extend", &own, sizeof own, memory, "memory");
    if (status != MT_OK) return status;
    MT__CHECK(plan, "mt_policy_extend: plan is NULL");
    MT__CHECK(plan->size >= sizeof *plan, "mt_policy_extend: plan is not of mt_policy_plan");
    MT__CHECK(plan->groups <= MT_PLAN_GROUPS,
              "mt_policy_extend: plan->groups is %zu; at most %d is accepted", plan->groups,
              MT_PLAN_GROUPS);
    MT__CHECK(mt_plan_covered(plan) < plan->samples,
              "mt_policy_extend: the plan covers its %zu samples already", plan->samples);
    plan->budget_bytes = own.budget_bytes;
    status = fill(policy, mode, &own, plan);
    if (status == MT_OK) policy->plan = *plan;
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
    mt_status status = enter(policy, mode, "mt_policy_observe", &own, sizeof own, result, "result");
    if (status != MT_OK) return status;
    MT__CHECK(samples > 0, "mt_policy_observe: samples is 0");
    mt_policy *p = policy;
    mt__kind *k = mt__policy_current(p, mode);
    if (!k) return mt_set_error(MT_ENOMEM, "mt_policy_observe: out of host memory");
    mt__way way = mt__policy_way(p, mode);
    size_t peak = mt__left(own.peak_bytes, allocated_before);
    size_t budget = p->plan.budget_bytes;
    /* Where a budget is watched and not enforced, chunks go through above it: that proves nothing. */
    int is_above = budget && own.peak_bytes > budget;
    size_t room = is_above ? 0 : mt__left(budget ? budget : SIZE_MAX, allocated_before);
    p->is_watched |= is_above;
    mt__kind_learn(k, way, samples, peak, room, &p->recording);
    mt__policy_end_recording(p);
    p->step.moved_on |= way == MT__APART || mode == MT_EVALUATE;
    if (p->shortage.limit && own.peak_bytes > p->shortage.limit) p->shortage.limit = 0;
    return mt_policy_observe_seconds(p, mode, samples, own.seconds);
}

int mt_policy_wants_seconds(const mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MT__MODES) return 0;
    const mt__kind *k = mt__policy_find_kind(policy, mode, policy->ladder.rungs);
    int is_known = k && mt__sizes_is_known(&k->times->sizes, samples);
    return !policy->options.deterministic && !is_known;
}

mt_status mt_policy_observe_seconds(mt_policy *policy, mt_mode mode, size_t samples,
                                    double seconds) {
    mt_status status = enter(policy, mode, "mt_policy_observe_seconds", NULL, 0, NULL, NULL);
    if (status != MT_OK) return status;
    MT__CHECK(samples > 0, "mt_policy_observe_seconds: samples is 0");
    mt_policy *p = policy;
    if (!(seconds > 0) || !isfinite(seconds) || p->options.deterministic) return MT_OK;
    mt__kind *k = mt__policy_find_kind(p, mode, p->ladder.rungs); /* there since it was planned */
    p->clear_credit += seconds / HUNDREDTH;
    if (k) mt__kind_note_time(k, samples, seconds);
    return MT_OK;
}
