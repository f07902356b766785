/*
 * oom.c - the answer when memory runs out: the same again, an empty cache, other chunks, the next rung.
 */
#include "policy_state.h"

enum { WARY_STEPS = 64 };

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

/* Whether the chunk is tried again in a shortage that lasts: a second try and an empty cache are of no use then. */
static int is_short(const mt_policy *p, const mt__curve *c, const mt_oom *oom) {
    const mt__evidence *e = &c->evidence[mt__policy_apart(p, oom->mode)];
    return oom->chunk && mt__evidence_is_short(e, oom->chunk, p->steps);
}

mt__need mt__policy_need(const mt_policy *p, const mt_oom *oom, size_t chunk) {
    size_t predicted = mt_policy_predict_bytes(p, oom->mode, chunk);
    size_t seen = mt__add(oom->refused_in_use_bytes, oom->refused_bytes);
    seen -= mt__min(seen, oom->allocated_before_bytes);
    if (oom->chunk > chunk) seen = 0; /* what a larger one has asked for */
    return (mt__need){chunk, mt__max(seen, predicted), seen > predicted};
}

mt__need mt__policy_least_need(const mt_policy *p) {
    return p->least_need;
}

/* The size did not fit: what ran is corrected, and where gradients lay apart nothing else is. */
static void learn_failure(const mt_policy *p, mt__curve *c, const mt_oom *oom) {
    mt_memory then = oom->memory;
    then.allocated_bytes = oom->allocated_before_bytes;
    mt__curve_fail(c, mt__policy_apart(p, oom->mode), oom->chunk, mt__limit(&then), p->steps);
}

/*
 * The cheapest answer, once for each chunk size: a cache may hold what is missing. Only the first one
 * of a step counts as a retry, or the way down to a small chunk would take too many of them.
 */
static mt_action clear(mt_policy *p) {
    p->cleared = 1;
    p->excused += p->clears_here > 0;
    p->clears_here++;
    return MT_ACTION_CLEAR;
}

/* Whether this chunk has needed an empty cache a few steps ago as well: then that is its size. */
static int needs_it_again(const mt_policy *p, const mt__curve *c, const mt_oom *oom) {
    return p->helped.chunk && p->helped.chunk == oom->chunk &&
           mt__same_kind(&p->helped.kind, &c->kind) && p->steps - p->helped.step <= MT__SAME_CAUSE;
}

static mt_action clear_or(mt_policy *p, mt_action other) {
    return p->cleared ? other : clear(p);
}

/* No cut is left: the whole batch alone, or else the next rung; unless the chunks are given. */
static mt_action climb(mt_policy *p, const mt_oom *oom) {
    if (oom->plan_is_fixed) return MT_ACTION_GIVE_UP;
    if (!mt__policy_try_alone(p, oom->mode, &oom->memory) && !mt__ladder_climb(p, oom->mode))
        return MT_ACTION_GIVE_UP;
    p->step_cap = p->step_failed = 0;
    p->unexplained = 0;
    p->excused = oom->attempt;
    p->cleared = p->clears_here = 0;
    return MT_ACTION_REPLAN;
}

/* Whether no smaller chunk is legal, or all of them have been in vain. */
static int is_smallest(const mt_policy *p, const mt_oom *oom) {
    if (oom->plan_is_fixed || !oom->chunk || mt__policy_is_fixed(p) || p->tries_alone) return 1;
    return oom->chunk <= mt__policy_attainable(p, mt__max(1, p->samples));
}

/* Whether a step of late was cut for the same reason: then something other than an accident takes the room. */
static int is_cut_again(mt_policy *p) {
    uint64_t now = p->steps + 1;
    if (p->cut_at != now) p->cut_before = p->cut_at;
    p->cut_at = now;
    return p->cut_before && now - p->cut_before <= MT__SAME_CAUSE;
}

static mt_action answer_unexplained(mt_policy *p, mt__curve *c, const mt_oom *oom) {
    p->unexplained++;
    if (p->unexplained == 1) return MT_ACTION_RETRY;
    if (!p->cleared) return clear(p);
    if (is_smallest(p, oom)) return climb(p, oom);
    p->step_cap = mt__smaller(oom->chunk); /* for this step alone, the first time */
    if (is_cut_again(p))
        mt__curve_fail(c, mt__policy_apart(p, oom->mode), oom->chunk, SIZE_MAX, p->steps);
    return MT_ACTION_REPLAN;
}

static mt_action answer_explained(mt_policy *p, mt__curve *c, const mt_oom *oom) {
    size_t cached = mt__cached(&oom->memory);
    if (oom->plan_is_fixed) return clear_or(p, MT_ACTION_GIVE_UP);
    /* A cache that holds what is missing is fragmentation, and teaches nothing of the size. */
    int may_help = cached > 0 && cached >= oom->refused_bytes && !is_short(p, c, oom);
    if (may_help && !p->cleared && !needs_it_again(p, c, oom)) {
        p->helped = (mt__helped){c->kind, oom->chunk, p->steps};
        p->in_the_way = p->steps + 1;
        return clear(p);
    }
    if (oom->chunk) learn_failure(p, c, oom);
    /* The second set of gradients is given up before anything else is. */
    if (oom->mode == MT_TRAIN && p->keep && !p->tries_alone) return MT_ACTION_REPLAN;
    /* What is left may be a batch that cannot be cut, even where the whole one can. */
    if (!p->cleared && mt__policy_most_chunks(p, mt__max(1, oom->chunk)) == 1) return clear(p);
    if (is_smallest(p, oom)) return climb(p, oom);
    p->step_failed = oom->chunk;
    p->cleared = 0;
    return MT_ACTION_REPLAN;
}

/* Of another chunk than the last one: what was tried for that is no reason not to try it for this. */
static void begin_trouble(mt_policy *p, const mt_oom *oom) {
    p->has_moved_on = 0;
    p->unexplained = 0;
    p->cleared = p->clears_here = 0;
    p->excused = (unsigned)(oom->attempt - mt__min(oom->attempt, 1));
}

/* What a user is told of is what the smallest chunk needs, beside gradients that are held. */
static void note_explained(mt_policy *p, const mt_oom *oom) {
    p->explained = *oom;
    if (!is_explained(oom)) p->explained.chunk = 0;
}

mt_status mt_policy_oom(mt_policy *policy, const mt_oom *oom, mt_action *out) {
    MT__CHECK(out, "mt_policy_oom: out is NULL");
    *out = MT_ACTION_GIVE_UP;
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_oom");
    MT__CHECK(oom, "mt_policy_oom: oom is NULL");
    MT__CHECK((unsigned)oom->mode < MT__MODES, "mt_policy_oom: mode is %d", (int)oom->mode);
    mt_policy *p = policy;
    mt__curve *c = mt__policy_current(p, oom->mode);
    if (!c) return mt_set_error(MT_ENOMEM, "mt_policy_oom: out of host memory");
    c->filling = 0;
    p->wary = WARY_STEPS;
    if (!p->tries_alone) note_explained(p, oom);
    if (oom->attempt <= 1 || p->has_moved_on) begin_trouble(p, oom);
    if (oom->attempt - p->excused <= p->options.max_retries)
        *out = is_explained(oom) || is_short(p, c, oom) ? answer_explained(p, c, oom)
                                                        : answer_unexplained(p, c, oom);
    p->replanning = *out == MT_ACTION_REPLAN;
    if (!p->replanning) p->step_failed = 0; /* the same plan is tried again */
    if (*out == MT_ACTION_GIVE_UP) mt__ladder_give_back(p);
    return MT_OK;
}
