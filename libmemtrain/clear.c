/*
 * clear.c - when to empty the cache: every so often, or on evidence and within 1 % of the time.
 */
#include "policy_state.h"

#define CLEAR_SHARE 0.01     /* of the time, for automatic clearing */
#define PHASE_CACHE_SHARE 10 /* a cache above budget / 10 is worth clearing at a change of mode */

const char *mt_clear_reason_name(mt_clear_reason reason) {
    static const char *const names[] = {"not", "every", "evidence", "epoch", "oom"};
    return (size_t)reason < sizeof names / sizeof *names ? names[reason] : "?";
}

/* Whether cached bytes stand in the way, or the allocator had to clear by itself. */
static int has_evidence(const mt_policy *p, const mt_memory *m, size_t predicted, int changed) {
    size_t cached = mt__cached(m);
    if (!cached || !m->budget_bytes) return 0;
    if (predicted && mt__add(predicted, cached) > m->budget_bytes) return 1;
    if (m->alloc_retries > p->last_alloc_retries) return 1;
    return changed && cached > m->budget_bytes / PHASE_CACHE_SHARE;
}

static int is_affordable(const mt_policy *p) {
    return p->clear_seconds + p->last_clear_seconds <= CLEAR_SHARE * p->seconds;
}

mt_clear_reason mt_policy_clear(mt_policy *policy, mt_mode mode, const mt_memory *memory,
                                size_t predicted_peak_bytes) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || !memory || (unsigned)mode >= MT__MODES)
        return MT_CLEAR_NOT;
    int every = mode == MT_TRAIN ? policy->options.clear_every : policy->options.eval_clear_every;
    int changed =
        policy->has_mode && (policy->last_mode != mode || policy->last_shape != policy->shape);
    int evidence = has_evidence(policy, memory, predicted_peak_bytes, changed);
    uint64_t calls = policy->calls[mode]++;
    policy->has_mode = 1;
    policy->last_mode = mode;
    policy->last_shape = policy->shape;
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
