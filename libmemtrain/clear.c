/*
 * clear.c - when to empty the cache: every so often, or on evidence, within 1 % of the steps and of the time.
 */
#include "policy_state.h"
#include "tuned.h"

mt_clear_reason mt_policy_clear(mt_policy *policy, mt_mode mode, const mt_memory *memory) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || !memory || (unsigned)mode >= MT__MODES)
        return MT_CLEAR_NOT;
    int every = mode == MT_TRAIN ? policy->options.clear_every : policy->options.eval_clear_every;
    uint64_t calls = policy->calls[mode]++;
    /* The allocator has had to clear by itself since the last call. */
    int has_retried = memory->alloc_retries > policy->last_alloc_retries;
    policy->last_alloc_retries = memory->alloc_retries;
    if (every > 0) return calls && calls % (uint64_t)every == 0 ? MT_CLEAR_EVERY : MT_CLEAR_NOT;
    if (every != MT_CLEAR_AUTO || !mt__cached(memory) || !memory->budget_bytes) return MT_CLEAR_NOT;
    /* That the cache and the peak exceed the budget is no evidence: a step takes from it what the one before has left. */
    if (!has_retried && memory->reserved_bytes <= memory->budget_bytes) return MT_CLEAR_NOT;
    /* Chunks that need what they need would pay for a clear in each step. */
    if (calls < HUNDREDTH || policy->clear_credit < 0) return MT_CLEAR_NOT;
    policy->calls[mode] = 1;
    return MT_CLEAR_EVIDENCE;
}

void mt_policy_cleared(mt_policy *policy, const mt_clear_result *result) {
    if (!mt__handle_is(policy, MT__KIND_POLICY) || !result || !(result->seconds > 0)) return;
    if (!policy->options.deterministic) policy->clear_credit -= result->seconds;
}
