/*
 * policy_state.c - what the decisions of a policy share: kinds, legal sizes, room. It decides nothing.
 */
#include "policy_state.h"
#include "tuned.h"

/* ---- kinds ------------------------------------------------------------------------------------- */

static size_t bucket_of(const mt__key *key) {
    uint64_t hash =
        (key->shape ^ ((uint64_t)key->rungs << 1) ^ (uint64_t)key->mode) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 32) % MT__BUCKETS;
}

mt__kind *mt__policy_find_kind(const mt_policy *p, mt_mode mode, unsigned rungs) {
    rungs &= ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH); /* it changes no chunk */
    mt__key key = {mode, p->shape.id, rungs};
    mt__kind *k = p->kinds[bucket_of(&key)];
    while (k && ((k->key.mode != mode) | (k->key.shape != key.shape) | (k->key.rungs != rungs)))
        k = k->next;
    return k;
}

/* Where there is no place for another kind, the one that was not asked for for longest is forgotten. */
static void make_place(mt_policy *p) {
    mt__kind **oldest = NULL;
    size_t count = 0;
    for (size_t i = 0; i < MT__BUCKETS; i++)
        for (mt__kind **k = &p->kinds[i]; *k; k = &(*k)->next, count++)
            if (!oldest || (*k)->used < (*oldest)->used) oldest = k;
    if (count < MT__KINDS) return;
    mt__kind *gone = *oldest;
    *oldest = gone->next;
    mt__kind_free(gone);
}

mt__kind *mt__policy_kind(mt_policy *p, mt_mode mode, unsigned rungs) {
    mt__kind *k = mt__policy_find_kind(p, mode, rungs);
    if (!k) {
        mt__key key = {mode, p->shape.id, rungs & ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH)};
        k = mt__kind_new(&key, &p->shape, p->info.kernels_change);
        if (!k) return NULL;
        if (!p->options.deterministic) mt__lengths_inherit(p, k);
        make_place(p);
        k->next = p->kinds[bucket_of(&key)];
        p->kinds[bucket_of(&key)] = k;
    }
    k->used = p->steps;
    return k;
}

mt__kind *mt__policy_current(mt_policy *p, mt_mode mode) {
    return mt__policy_kind(p, mode, p->ladder.rungs);
}

void mt__policy_end_recording(mt_policy *p) {
    if (p->recording) p->recording->allocations = 0; /* what is empty tells nothing */
}

mt__way mt__policy_way(const mt_policy *p, mt_mode mode) {
    return mode == MT_TRAIN && p->keep ? MT__APART : MT__IN_PLACE;
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
    return memory->reserved_bytes - mt__min(memory->reserved_bytes, memory->allocated_bytes);
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

int mt__policy_shortage_is_old(const mt_policy *p) {
    return p->steps >= p->shortage.noted_at + p->shortage.patience;
}

size_t mt__policy_limit(const mt_policy *p, const mt_memory *memory) {
    size_t budget = memory->budget_bytes ? memory->budget_bytes : SIZE_MAX;
    int is_short = p->shortage.limit && !mt__policy_shortage_is_old(p);
    return is_short ? mt__min(budget, p->shortage.limit) : budget;
}

size_t mt__policy_room(const mt_policy *p, const mt_memory *memory, size_t allocated) {
    size_t limit = mt__policy_limit(p, memory);
    return limit == SIZE_MAX ? limit : limit - mt__min(limit, allocated);
}

size_t mt__policy_allocated_alone(const mt_policy *p, const mt_memory *memory) {
    return memory->allocated_bytes - mt__min(memory->allocated_bytes, p->info.gradient_bytes);
}

size_t mt__policy_seen_need(const mt_oom *oom) {
    size_t asked = mt__add(oom->refused_in_use_bytes, oom->refused_bytes);
    return asked - mt__min(asked, oom->allocated_before_bytes);
}
