/*
 * report.c - what is said of a policy's decisions: names, the reason of a plan, what a chunk needs. It decides nothing.
 */
#include "policy_state.h"

const char *mt_phase_name(mt_phase phase) {
    static const char *const names[] = {"begin", "accumulate", "apply", "evaluate"};
    return (size_t)phase < sizeof names / sizeof *names ? names[phase] : "?";
}

const char *mt_rung_name(mt_rung rung) {
    static const char *const names[MT_RUNGS] = {"checkpointing", "offload", "amp",
                                                "smaller_batch", "cpu",     "minimal"};
    return (size_t)rung < MT_RUNGS ? names[rung] : "?";
}

const char *mt_clear_reason_name(mt_clear_reason reason) {
    static const char *const names[] = {"not", "every", "evidence", "epoch", "oom"};
    return (size_t)reason < sizeof names / sizeof *names ? names[reason] : "?";
}

mt_plan_reason mt__policy_reason(const mt_policy *p, mt__kind *k, size_t samples,
                                 const mt__split *split) {
    const size_t fewest = split->fewest, chunks = split->chunks;
    const mt__seen *s = k->seen.samples == samples ? &k->seen : NULL;
    mt_plan_reason reason = chunks > fewest ? MT_PLAN_THROUGHPUT : MT_PLAN_START;
    int is_after_oom = p->plan.discard && p->plan.reason == MT_PLAN_OOM;
    if (!fewest || split->discard) /* it is not known yet */
        return is_after_oom ? MT_PLAN_OOM : MT_PLAN_START;
    if (is_after_oom)
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

mt_status mt__policy_does_not_fit(const mt_policy *p, const mt__kind *k, size_t samples,
                                  const mt_memory *memory) {
    char need[32], used[32], budget[32];
    size_t bytes = mt__kind_predict(k, MT__IN_PLACE, samples);
    mt_format_size(bytes, need, sizeof need);
    mt_format_size(memory->allocated_bytes, used, sizeof used);
    mt_format_size(memory->budget_bytes, budget, sizeof budget);
    if (!bytes || bytes <= mt__policy_room(p, memory, memory->allocated_bytes))
        return mt_set_error(
            MT_EDEVMEM,
            "a chunk of %zu did not fit beside the %s in use of %s, and no legal cut is smaller",
            samples, used, budget);
    return mt_set_error(MT_EDEVMEM,
                        "a chunk of %zu needs %s beside the %s in use, and the budget is %s; a "
                        "budget of %zu bytes would do, or smaller samples",
                        samples, need, used, budget, mt__add(bytes, memory->allocated_bytes));
}

mt__need mt__policy_need(const mt_policy *p, const mt_oom *oom, size_t chunk) {
    size_t predicted = mt_policy_predict_bytes(p, oom->mode, chunk);
    /* A larger one asks for more. */
    size_t seen = oom->chunk > chunk ? 0 : mt__policy_seen_need(oom);
    return (mt__need){chunk, mt__max(seen, predicted), seen > predicted};
}

mt__need mt__policy_least_need(const mt_policy *p, mt_mode mode, size_t chunk) {
    mt__need least = {0, 0, 0};
    for (size_t i = 0; i < MT__BUCKETS; i++)
        for (const mt__kind *k = p->kinds[i]; k; k = k->next) {
            unsigned changed = k->key.rungs ^ p->plan.rungs; /* since memory was told of */
            if (k->key.mode != mode || k->key.shape != p->shape.id ||
                (changed & MT_RUNG_BIT(MT_RUNG_CPU)))
                continue;
            if (k->key.rungs & p->options.forbid_rungs) continue; /* that a file has told of */
            /* What was cut short tells of chunks as large that they need as much at least. */
            if (k->is_partial && k->range[0].from > chunk) continue;
            size_t bytes = mt__kind_predict(k, MT__IN_PLACE, chunk);
            if (bytes && (!least.bytes || bytes < least.bytes))
                least = (mt__need){chunk, bytes, k->is_partial};
        }
    return least;
}

size_t mt_policy_predict_bytes(const mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MT__MODES || !samples)
        return 0;
    const mt__kind *k = mt__policy_find_kind(policy, mode, policy->ladder.rungs);
    return k && !k->is_partial ? mt__kind_predict(k, MT__IN_PLACE, samples) : 0;
}

double mt_policy_predict_seconds(const mt_policy *policy, mt_mode mode, size_t samples) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || (unsigned)mode >= MT__MODES || !samples)
        return 0;
    const mt__kind *k = mt__policy_find_kind(policy, mode, policy->ladder.rungs);
    return k ? mt__kind_seconds(k, samples) : 0;
}

unsigned mt_policy_rungs(const mt_policy *policy) {
    if (!mt__handle_is(policy, MT__KIND_POLICY)) return 0;
    return policy->ladder.rungs | (policy->ladder.chunk ? MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH) : 0);
}
