/*
 * clear.c - when to empty the cache: every so often, or on evidence and within 1 % of the time, or of
 * the steps where no time is to count.
 */
#include "policy_state.h"
#include "tuned.h"

const char *mt_clear_reason_name(mt_clear_reason reason) {
    static const char *const names[] = {"not", "every", "evidence", "epoch", "oom"};
    return (size_t)reason < sizeof names / sizeof *names ? names[reason] : "?";
}

/* Whether the allocator has had to clear by itself since the last call, which is remembered. */
static int has_retried(mt_policy *p, const mt_memory *m, int is_first) {
    int has = !is_first && m->alloc_retries > p->last_alloc_retries;
    p->last_alloc_retries = m->alloc_retries;
    return has;
}

/*
 * Whether the cache is in the way. That it and the peak exceed the budget is no evidence by itself: a step takes from the
 * cache what the one before has left there. Nor is that more is reserved than the budget where a clear of late has not
 * changed that: chunks that need what they need would pay for it in each step.
 */
static int has_evidence(const mt_memory *m, int retried, int is_late) {
    if (!mt__cached(m) || !m->budget_bytes) return 0;
    return retried || (is_late && m->reserved_bytes > m->budget_bytes);
}

/* The first one is, since its price is not known. Deterministic runs know no prices. */
static int is_affordable(const mt_policy *p, int is_late) {
    int is_priced = p->last_clear_seconds > 0 && p->seconds > 0 && !p->options.deterministic;
    if (is_priced) return p->clear_seconds + p->last_clear_seconds <= p->seconds / HUNDREDTH;
    return is_late;
}

mt_clear_reason mt_policy_clear(mt_policy *policy, mt_mode mode, const mt_memory *memory) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || !memory || (unsigned)mode >= MT__MODES)
        return MT_CLEAR_NOT;
    int every = mode == MT_TRAIN ? policy->options.clear_every : policy->options.eval_clear_every;
    uint64_t calls = policy->calls[mode]++;
    uint64_t call = policy->calls[MT_TRAIN] + policy->calls[MT_EVALUATE];
    int is_late = !policy->cleared_at || call - policy->cleared_at >= HUNDREDTH;
    int evidence = has_evidence(memory, has_retried(policy, memory, call == 1), is_late);
    if (every > 0) return calls && calls % (uint64_t)every == 0 ? MT_CLEAR_EVERY : MT_CLEAR_NOT;
    if (every != MT_CLEAR_AUTO || !evidence || !is_affordable(policy, is_late)) return MT_CLEAR_NOT;
    policy->cleared_at = call;
    return MT_CLEAR_EVIDENCE;
}

void mt_policy_cleared(mt_policy *policy, const mt_clear_result *result) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || !result || !(result->seconds > 0)) return;
    policy->clear_seconds += result->seconds;
    policy->last_clear_seconds = result->seconds;
}
