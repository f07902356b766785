/*
 * policy_state.c - what the decisions of a policy share: kinds, legal sizes, room. It decides nothing.
 */
#include "policy_state.h"
#include "tuned.h"

/* ---- kinds ------------------------------------------------------------------------------------- */

size_t mt__policy_bucket(const mt__key *key) {
    uint64_t hash =
        (key->shape ^ ((uint64_t)key->rungs << 1) ^ (uint64_t)key->mode) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 56) % MT__BUCKETS; /* its best bits */
}

mt__kind *mt__policy_find_kind(const mt_policy *p, mt_mode mode, unsigned rungs) {
    mt__key key = {mode, p->shape.id, rungs};
    mt__kind *k = p->kinds[mt__policy_bucket(&key)];
    while (k && ((k->key.mode != mode) | (k->key.shape != key.shape) | (k->key.rungs != rungs)))
        k = k->next;
    return k;
}

mt__kind *mt__policy_kind(mt_policy *p, mt_mode mode, unsigned rungs) {
    mt__kind *k = mt__policy_find_kind(p, mode, rungs);
    mt__key key = {mode, p->shape.id, rungs};
    if (k || !(k = mt__kind_new(&key, &p->shape, p->info.kernels_change))) return k;
    if (!p->options.deterministic) mt__lengths_inherit(p, k);
    /* It is the first of its bucket. Where there are too many, the oldest one is forgotten. */
    mt__kind **last = &p->kinds[mt__policy_bucket(&key)];
    k->next = *last;
    *last = k;
    for (int i = 0; i < MT__IN_BUCKET && *last; i++) last = &(*last)->next;
    mt__kind_free(*last);
    *last = NULL;
    return k;
}

mt__kind *mt__policy_current(mt_policy *p, mt_mode mode) {
    return mt__policy_kind(p, mode, p->ladder.rungs);
}

void mt__policy_end_recording(mt_policy *p) {
    if (p->recording) p->recording->allocations = 0; /* what is empty tells nothing */
}

mt__way mt__policy_way(const mt_policy *p, mt_mode mode) {
    return mode == MT_TRAIN && p->plan.keep ? MT__APART : MT__IN_PLACE;
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

size_t mt__cached(const mt_memory *memory) {
    return mt__left(memory->reserved_bytes, memory->allocated_bytes);
}

size_t mt__policy_fixed(const mt_policy *p, size_t samples) {
    return p->options.micro_batch || p->info.needs_whole_batch ? mt__policy_most_chunks(p, samples)
                                                               : 0;
}

int mt__policy_may_go_alone(const mt_policy *p, mt_mode mode, size_t samples) {
    size_t most = p->options.max_micro_batch;
    if (!p->info.holds_gradients || !p->info.keeps_chunks || mode != MT_TRAIN) return 0;
    if (p->options.keep_chunks == MT_KEEP_NEVER || (most && samples > most)) return 0;
    return !mt__policy_fixed(p, samples) || mt__policy_fixed(p, samples) == 1;
}

void mt__policy_go_on(mt_policy *p, mt_plan_reason reason) {
    p->plan.discard = 1;
    p->plan.groups = 0; /* nothing is learnt of it */
    p->plan.reason = reason;
}

size_t mt__policy_limit(const mt_policy *p, const mt_memory *memory) {
    size_t budget = memory->budget_bytes ? memory->budget_bytes : SIZE_MAX;
    const mt__shortage *s = &p->shortage; /* after its wait a step is tried without the limit */
    return s->limit && s->wait.steps < s->wait.patience ? mt__min(budget, s->limit) : budget;
}

size_t mt__policy_room(const mt_policy *p, const mt_memory *memory, size_t allocated) {
    return mt__left(mt__policy_limit(p, memory), allocated);
}

size_t mt__policy_allocated_alone(const mt_policy *p, const mt_memory *memory) {
    return mt__left(memory->allocated_bytes, p->info.gradient_bytes);
}

size_t mt__policy_asked(const mt_oom *oom) {
    return mt__add(oom->refused_in_use_bytes, oom->refused_bytes);
}

size_t mt__policy_seen_need(const mt_oom *oom) {
    return mt__left(mt__policy_asked(oom), oom->allocated_before_bytes);
}
