/*
 * answer.c - what is done when memory runs out: the same again, an empty cache, other chunks, the next rung.
 * Rules: docs/policy.md.
 */
#include "policy_state.h"
#include "tuned.h"

/*
 * What may be allocated from now on: less than was asked for. Where a try without the limit was in vain, the limit stays and
 * holds longer. If less than that was refused, it is another shortage.
 */
static void note_shortage(mt_policy *p, const mt_oom *oom, size_t predicted) {
    mt__shortage *s = &p->shortage;
    size_t limit = mt__add(oom->allocated_before_bytes, predicted);
    if (oom->refused) limit = mt__policy_asked(oom);
    limit = mt__max(2, limit) - 1; /* 0 stands for none */
    int in_vain = s->limit && limit >= s->limit;
    int64_t patience = in_vain ? s->wait.patience + 1 : SHORTAGE_WAIT;
    *s = (mt__shortage){in_vain ? s->limit : limit, {0, patience}};
}

/* The rows of the table in docs/policy.md, in its order. First what is seen. */
static mt_action answer(mt_policy *p, mt__kind *k, const mt_oom *oom) {
    mt__trouble *t = &p->step.trouble;
    mt__way way = mt__policy_way(p, oom->mode);
    const mt__limits *l = &k->limits[way];
    size_t samples = mt__max(1, p->step.samples), least = mt__policy_attainable(p, samples);
    /* Elsewhere: other memory than the device's was refused, as the host's where a card trains. */
    int elsewhere = oom->refused && !oom->refused_bytes;
    size_t room = elsewhere ? SIZE_MAX /* not known */
                            : mt__policy_room(p, &oom->memory, oom->allocated_before_bytes);
    size_t predicted = oom->chunk ? mt__kind_predict(k, way, oom->chunk) : 0;
    /* Explained: with what was asked for there is more than may be allocated. Without evidence it is taken to be so for */
    /* a chunk; begin and apply have no size that could be wrong. */
    int is_above = mt__policy_asked(oom) > mt__policy_limit(p, &oom->memory);
    int explained =
        oom->refused ? !elsewhere && (is_above || !oom->memory.budget_bytes) : oom->chunk > 0;
    /* Short: something else has room that was told to be free. What was asked for is within the limit; or there is no */
    /* evidence, and a chunk as large went through in no more room. */
    int has_run = oom->chunk && oom->chunk <= l->largest_ran && room >= l->proven_room;
    int is_short =
        oom->refused ? !explained && !elsewhere : predicted && has_run && room < SIZE_MAX;
    int none_ran = !k->limits[MT__IN_PLACE].largest_ran;
    int is_last =
        p->step.resort == MT__RESORT_ALONE || (p->step.resort == MT__RESORT_LARGER && none_ran);
    /* No smaller chunk is legal, or all of them have been in vain. */
    int cannot_shrink = oom->plan_is_fixed || is_last || oom->chunk <= least;

    /* 1. Enough is enough, of these rungs and of the step. Clears for smaller chunks are no retries. */
    if (++t->retries > p->options.max_retries) return MT_ACTION_GIVE_UP;
    if (oom->attempt / p->options.max_retries > 2 * samples + MT_RUNGS) return MT_ACTION_GIVE_UP;

    /* 2. An accident, until it happens three times in a row: nothing explains it. It is none where something else is known */
    /* to have the room, or elsewhere, where a chunk of this step was cut before. */
    int is_expected = is_short ? p->shortage.limit > 0 : elsewhere && p->step.cap;
    int is_accident = !explained && !is_expected;
    if (is_accident && t->tried < MT__THE_SAME) {
        t->tried = MT__THE_SAME;
        return MT_ACTION_RETRY;
    }

    /* 3. It may fit with an empty cache; not where the request and what is in use are above the limit. A chunk that */
    /* cannot shrink is tried once more, unless there is no cache and that is sure to fail. */
    int has_cache = mt__cached(&oom->memory) > 0;
    int may_fit = !explained || !oom->refused_bytes || !oom->memory.budget_bytes;
    int may_help = is_accident || (explained && has_cache && may_fit);
    if (t->tried < MT__CLEARED && (may_help || (cannot_shrink && (has_cache || may_fit)))) {
        t->tried = MT__CLEARED;
        if (p->step.cap) t->retries--; /* it is none */
        return MT_ACTION_CLEAR;
    }

    /* 4. Given chunks stay as they are, and before the first plan of a step there is nothing to change. */
    if (oom->plan_is_fixed || !p->step.samples) return MT_ACTION_GIVE_UP;

    /* 5. What it tells is a fact of the device, or of chunks of this kind. */
    if (is_short)
        note_shortage(p, oom, predicted);
    else if (oom->chunk)
        mt__kind_fail(k, way, oom->chunk, room, oom->refused_bytes ? mt__policy_seen_need(oom) : 0,
                      elsewhere ? NULL : p->recording);

    /* 6. A second set of gradients is given up before anything else is. */
    if (explained && oom->chunk && way == MT__APART && !p->plan.alone) return MT_ACTION_REPLAN;

    /* 7. Smaller chunks; or larger ones, where a smaller one needs more. */
    if (!none_ran && oom->chunk && oom->chunk <= k->too_small &&
        p->step.resort == MT__RESORT_NONE && mt__kind_largest(k, MT__IN_PLACE, room) > oom->chunk) {
        p->step.resort = MT__RESORT_LARGER;
        p->step.cap = 0;
        return MT_ACTION_REPLAN;
    }
    if (!cannot_shrink) {
        /* Half where nothing tells of a smaller one, but a legal chunk. */
        int is_told =
            (predicted || k->is_partial) && room < SIZE_MAX && (oom->refused || !is_short);
        p->step.cap = mt__max(is_told ? oom->chunk - 1 : oom->chunk / 2, least);
        t->tried = MT__NOTHING;
        return MT_ACTION_REPLAN;
    }

    /* 8. Rungs. The whole batch alone is passed over where an update failed, which takes no less after it. */
    if (oom->phase == MT_PHASE_APPLY) p->step.resort = MT__RESORT_ALONE;
    if (!mt__rungs_take(p, oom->mode, &oom->memory, oom)) return MT_ACTION_GIVE_UP;
    *t = (mt__trouble){0, MT__NOTHING};
    return MT_ACTION_REPLAN;
}

mt_status mt_policy_oom(mt_policy *policy, const mt_oom *oom, mt_action *out) {
    mt_oom own = {0};
    MT__CHECK(out, "mt_policy_oom: out is NULL");
    *out = MT_ACTION_GIVE_UP;
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_oom");
    mt_status status = mt__take_versioned(&own, sizeof own, oom, "mt_policy_oom", "oom");
    if (status != MT_OK) return status;
    MT__CHECK((unsigned)own.mode < MT__MODES, "mt_policy_oom: mode is %d", (int)own.mode);
    mt_policy *p = policy;
    mt__kind *k = mt__policy_current(p, own.mode);
    if (!k) return mt_set_error(MT_ENOMEM, "mt_policy_oom: out of host memory");
    /* An update that runs out of memory takes the chunks before it back, so the step has not moved on. */
    int moved_on = p->step.moved_on && own.phase != MT_PHASE_APPLY;
    if (moved_on) p->step.trouble = (mt__trouble){0, MT__NOTHING};
    p->step.moved_on = 0;
    *out = answer(p, k, &own);
    mt__policy_end_recording(p);
    if (*out == MT_ACTION_REPLAN) mt__policy_go_on(p, MT_PLAN_OOM);
    if (*out != MT_ACTION_GIVE_UP) return MT_OK;
    /* Nothing of all that has helped, so it tells nothing. */
    if (!p->shortage.wait.steps) p->shortage.limit = 0; /* that was noted in this step */
    mt__rungs_give_back(p, own.mode);
    return MT_OK;
}
