/*
 * cut.c - how a batch is cut: the fastest chunks whose predicted peak fits; where none do, the ladder.
 */
#include "policy_state.h"

#include <string.h>

enum { FIRST_RECORDED = 2, LEAST_NORMALISED = 8, SMALLEST_SHARE = 8 };

/* ---- reasons ---------------------------------------------------------------------------------- */

/* Why this plan, compared with the last one for a batch of this size; remembers it. */
static mt_plan_reason explain(mt_policy *p, mt__curve *c, size_t samples, size_t fewest,
                              size_t chunks) {
    mt__seen *s = mt__curve_find_seen(c, samples);
    mt_plan_reason reason = chunks > fewest ? MT_PLAN_THROUGHPUT : MT_PLAN_START;
    if (p->replanning)
        reason = MT_PLAN_OOM;
    else if (s && fewest < s->fewest)
        reason = MT_PLAN_GROWTH;
    else if (s && fewest > s->fewest)
        reason = MT_PLAN_BUDGET;
    else if (s)
        reason = chunks == s->chunks ? s->reason : MT_PLAN_THROUGHPUT;
    if (!s) s = mt__curve_new_seen(c);
    *s = (mt__seen){samples, fewest, chunks, reason};
    return reason;
}

static mt_status does_not_fit(const mt__curve *c, size_t samples, const mt_memory *memory) {
    char need[32], used[32], budget[32];
    size_t bytes = mt__curve_predict(c, 0, samples);
    mt_format_size(bytes, need, sizeof need);
    mt_format_size(memory->allocated_bytes, used, sizeof used);
    mt_format_size(memory->budget_bytes, budget, sizeof budget);
    if (!bytes || bytes <= mt__room(memory))
        return mt_set_error(
            MT_EDEVMEM,
            "a chunk of %zu did not fit beside the %s in use of %s, and no legal cut "
            "is smaller",
            samples, used, budget);
    return mt_set_error(MT_EDEVMEM,
                        "a chunk of %zu needs %s beside the %s in use, and the budget is %s; a "
                        "budget of %zu bytes would do, or smaller samples",
                        samples, need, used, budget, mt__add(bytes, memory->allocated_bytes));
}

/* ---- sizes ------------------------------------------------------------------------------------ */

/* The smallest chunk that may be tried for speed: where layers normalise over them still smaller ones do harm. */
static size_t smallest_tried(const mt_policy *p, const mt__curve *c, size_t fits, size_t least) {
    int is_normalised = p->info.normalises_over_batch && c->kind.mode == MT_TRAIN;
    size_t floor = mt__max(least, is_normalised ? LEAST_NORMALISED : 1);
    return mt__max(1, mt__min(floor, fits));
}

/* And the smallest that is worth it: an eighth of what fits, or one that was seen to be faster. */
static size_t smallest_worth(const mt_policy *p, const mt__curve *c, size_t fits, size_t least) {
    size_t floor = mt__min(mt__smallest_worth(&c->timings, fits / SMALLEST_SHARE), fits);
    return mt__max(floor, smallest_tried(p, c, fits, least));
}

/* The largest chunk that options and this step allow. */
static size_t largest_allowed(const mt_policy *p, size_t samples) {
    size_t top = p->options.max_micro_batch ? p->options.max_micro_batch : samples;
    if (p->step_failed)
        top = mt__min(top, p->step_failed - 1); /* in whatever room there is by now */
    return p->step_cap ? mt__min(top, p->step_cap) : top;
}

/*
 * Fewest chunks that memory allows for so many samples, and the most that the search for speed may
 * try. MT_EDEVMEM when the exact model says that the smallest legal cut does not fit.
 */
static mt_status limits(const mt_policy *p, const mt__curve *c, size_t samples,
                        const mt_memory *memory, size_t *fewest, size_t *most) {
    size_t least = mt__policy_least(p, samples), small = mt__policy_attainable(p, samples);
    size_t top = largest_allowed(p, samples);
    size_t room = mt__limit(memory);
    size_t fits = mt__max(mt__curve_largest(c, 0, room), mt__curve_beyond_bound(c, room));
    if (fits < small && mt__curve_rules_out(c, small, room)) return does_not_fit(c, small, memory);
    size_t chunk = mt__max(least, mt__min(mt__min(fits, top), samples));
    size_t worth = smallest_worth(p, c, mt__min(chunk, samples), least);
    size_t tried = smallest_tried(p, c, mt__min(chunk, samples), least);
    *fewest = mt__min(mt__ceil_div(samples, chunk), samples / least);
    /* Where it does not divide the batch some chunks are one smaller. */
    *most = mt__max(*fewest, mt__min(mt__ceil_div(samples, worth), samples / tried));
    /* No legal cut is below what has just failed: 10 samples in chunks of at least 4 that must be
       smaller than 5, say. */
    if (p->step_failed && mt__ceil_div(samples, *fewest) >= p->step_failed)
        return does_not_fit(c, mt__ceil_div(samples, *fewest), memory);
    return MT_OK;
}

/*
 * Whether the first step is to have the chunks that later ones have, so that a run that goes on has those of one that
 * was not stopped. What is run to learn from is taken back then.
 */
static int is_repeatable(const mt_policy *p, mt_mode mode) {
    return p->options.deterministic && mode == MT_TRAIN && mt__policy_can_record(p);
}

/* Whether chunks that are run to be recorded are taken back, also because chunks as small would do harm. */
static int discards(const mt_policy *p, mt_mode mode) {
    return (p->info.normalises_over_batch && mode == MT_TRAIN) || is_repeatable(p, mode);
}

/*
 * Whether the first chunk that is not taken back may be the second recording: a small one, but twice the first at
 * least, of the same kernels, in a batch that begins with one.
 */
static int may_begin_as_second(const mt_policy *p, size_t samples, size_t first) {
    size_t change = p->info.kernels_change, top = mt__min(largest_allowed(p, samples), samples);
    int is_changed = change > first && change <= LEAST_NORMALISED;
    return !p->options.deterministic && !p->is_told && !is_changed &&
           2 * first <= LEAST_NORMALISED && top >= 2 * LEAST_NORMALISED;
}

/* Whether it is to be: the first one has a time to grow from and, taken as proportional, tells of room for it. */
static int begins_as_second(const mt_policy *p, const mt__curve *c, const mt_memory *memory,
                            size_t samples) {
    if (!c->records_one || !c->has_first || !mt__largest_measured(&c->timings)) return 0;
    return may_begin_as_second(p, samples, c->first->samples) &&
           mt__curve_largest(c, 0, mt__room(memory)) >= LEAST_NORMALISED;
}

/*
 * Begins the first batch with a small chunk. From there sizes grow while that pays, so memory is touched
 * when it is worth it, and other kernels of larger chunks are met below the limit. What is left of the
 * batch is planned when it has run. Returns whether there is room for that.
 */
static int begin_small(const mt_policy *p, const mt__curve *c, const mt_memory *memory,
                       size_t fewest, mt_plan *plan) {
    size_t rest = plan->samples - mt_plan_covered(plan), top = mt__ceil_div(rest, fewest);
    size_t least = mt__max(FIRST_RECORDED, mt__policy_least(p, rest)); /* one takes other kernels */
    size_t chunk = mt__min(top / 2, mt__max(top / SMALLEST_SHARE, LEAST_NORMALISED));
    size_t before = mt__curve_before(c, chunk);
    if (begins_as_second(p, c, memory, rest)) {
        int is_same = chunk > LEAST_NORMALISED && (!c->change || chunk < c->change);
        return mt__plan_append(plan, is_same ? chunk : LEAST_NORMALISED, 1) == MT_OK;
    }
    if (chunk < mt__max(least, smallest_worth(p, c, top, least))) return 0;
    return mt__plan_append(plan, before >= least ? before : chunk, 1) == MT_OK;
}

/* The largest chunk of a plan. */
static size_t largest_chunk(const mt_plan *plan) {
    size_t largest = 0;
    for (size_t g = 0; g < plan->groups; g++) largest = mt__max(largest, plan->group[g].samples);
    return largest;
}

/* ---- gradients: a second set, or none held ---------------------------------------------------- */

/*
 * Whether a second set of gradients fits beside chunks up to that size: as recordings say, or else by the
 * bound that it adds no more than the gradients. Tells what the peak is then.
 */
static int has_room_to_keep(const mt_policy *p, mt__curve *c, size_t largest,
                            const mt_memory *memory, size_t *bytes) {
    size_t bound = mt__add(*bytes, p->info.gradient_bytes);
    size_t room = mt__limit(memory);
    int is_known = mt__curve_is_recorded(c, 1);
    /* A step made smaller is taken back whole: what is left of it would be made smaller again. */
    if (!p->info.keeps_chunks || p->options.keep_chunks == MT_KEEP_NEVER || p->cuts) return 0;
    if (p->options.keep_chunks == MT_KEEP_AUTO && !is_known && !p->wary && !mt__policy_is_fixed(p))
        return 0;
    if (is_known || c->evidence[1].bound_samples >= largest)
        bound = mt__curve_predict(c, 1, largest);
    if (memory->budget_bytes && (!*bytes || bound > room)) return 0;
    if (mt__curve_has_failed(c, 1, largest, room)) return 0;
    *bytes = bound;
    return 1;
}

/* Bytes in use while gradients are not held. */
static size_t allocated_alone(const mt_policy *p, const mt_memory *memory) {
    return memory->allocated_bytes - mt__min(memory->allocated_bytes, p->info.gradient_bytes);
}

/*
 * Fills in what a plan promises, once its chunks are known. The first ones of a plan that was open have
 * run by then, the largest of so many samples, with their gradients in place or as they were promised.
 */
static void promise(mt_policy *p, mt_mode mode, mt__curve *c, const mt_memory *memory, size_t ran,
                    size_t largest_ran, mt_plan *plan) {
    size_t largest = mt_plan_chunk(plan, ran); /* of those to come, larger ones are first */
    size_t bytes = mt__curve_predict(c, plan->alone, largest);
    size_t allocated = plan->alone ? allocated_alone(p, memory) : memory->allocated_bytes;
    plan->keep =
        plan->alone || (mode == MT_TRAIN && has_room_to_keep(p, c, largest, memory, &bytes));
    if (ran && bytes) bytes = mt__max(bytes, mt__curve_predict(c, 0, largest_ran));
    int is_told = bytes && memory->budget_bytes && mt__curve_is_told(c, plan->keep, largest);
    plan->predicted_peak_bytes =
        is_told ? mt__max(plan->predicted_peak_bytes, mt__add(bytes, allocated)) : 0;
    if (mode == MT_TRAIN) p->keep = plan->keep;
}

/*
 * Whether all is known of the chunks to come: they are the last, or one runs before the others whose size has run. One
 * that is to be recorded runs in place, since a recording with a second set of gradients may tell less.
 */
static int can_promise(const mt__curve *c, const mt_plan *plan) {
    if (plan->discard || !plan->groups) return 0;
    if (mt_plan_covered(plan) == plan->samples) return 1;
    return c->timings.batches && mt__curve_is_told(c, 0, plan->group[plan->groups - 1].samples);
}

/* Bytes for a chunk whose gradients are the only ones. */
static size_t room_alone(const mt_policy *p, const mt_memory *memory) {
    mt_memory without = *memory;
    without.allocated_bytes = allocated_alone(p, memory);
    return mt__limit(&without);
}

/* Whether a chunk of so many samples may be the only one of a step, and its gradients the only ones. */
static int may_be_alone(const mt_policy *p, mt_mode mode, size_t samples) {
    size_t most = p->options.max_micro_batch;
    if (!p->info.holds_gradients || !p->info.keeps_chunks || mode != MT_TRAIN) return 0;
    if (p->options.keep_chunks == MT_KEEP_NEVER || (most && samples > most)) return 0;
    /* A step made smaller, or what is left of one that has begun, is not the whole batch. */
    if (samples != p->samples) return 0;
    return !mt__policy_is_fixed(p) || mt__policy_most_chunks(p, samples) == 1;
}

/*
 * Whether the whole batch fits as one chunk whose gradients are the only ones, since nothing is there to
 * add up those of several: known by recordings, or because as many have run like that.
 */
static int fits_alone(const mt_policy *p, mt__curve *c, const mt_plan *plan,
                      const mt_memory *memory) {
    size_t n = plan->samples, room = room_alone(p, memory);
    int is_known = mt__curve_is_recorded(c, 1) || c->evidence[1].largest_ran >= n;
    /* What is left of a step that has begun has the gradients before it to add to. */
    if (p->begun || !is_known || !may_be_alone(p, c->kind.mode, n)) return 0;
    if (n > largest_allowed(p, n)) return 0; /* below what has failed in this step */
    return mt__curve_predict(c, 1, n) <= room && !mt__curve_has_failed(c, 1, n, room);
}

int mt__policy_try_alone(mt_policy *p, mt_mode mode, const mt_memory *memory) {
    size_t n = p->samples, room = room_alone(p, memory);
    const mt__curve *c = mt__policy_find_curve(p, mode, p->rungs); /* there since it was planned */
    if (p->tries_alone || !may_be_alone(p, mode, mt__ladder_samples(p, n))) return 0;
    if (mt__curve_has_failed(c, 1, n, room)) return 0;
    if (mt__curve_is_recorded(c, 1) && !mt__curve_is_bound(c, n) &&
        mt__curve_predict(c, 1, n) > room)
        return 0;
    return p->tries_alone = 1;
}

/* Whether the chunk that is to be recorded before so many samples has room, beside gradients that are held. */
static int can_record_before(const mt__curve *c, size_t samples, const mt_memory *memory) {
    size_t room = mt__limit(memory);
    return mt__curve_before(c, samples) <= mt__curve_largest(c, 0, room);
}

/* Whether the smallest chunk is known to fit beside gradients that are held. */
static int fits_in_place(const mt_policy *p, const mt__curve *c, size_t samples,
                         const mt_memory *memory) {
    size_t small = mt__policy_attainable(p, samples);
    size_t room = mt__limit(memory);
    int is_known = mt__curve_predict(c, 0, small) > 0 || room >= c->evidence[0].proven_room;
    return is_known && mt__curve_largest(c, 0, room) >= small;
}

/* ---- the number of chunks --------------------------------------------------------------------- */

/* The smallest chunk that a size may run in again, or beside one that does. One sample takes other kernels. */
static size_t smallest_again(const mt_policy *p, const mt__curve *c, size_t samples, size_t top) {
    size_t least = mt__policy_least(p, samples);
    return mt__max(smallest_tried(p, c, top, least), FIRST_RECORDED);
}

/* The fastest number of chunks, as far as times are known: without any, as where runs are deterministic, the fewest. */
static size_t fastest(const mt_policy *p, mt__curve *c, const mt_plan *plan, size_t samples,
                      size_t fewest, size_t most) {
    const mt__seen *s = mt__curve_find_seen(c, plan->samples);
    if (plan->groups && c->timings.batches) { /* beside a size that runs again */
        size_t top = mt__ceil_div(samples, fewest), least = smallest_again(p, c, samples, top);
        size_t same = mt__cut_as_measured(&c->timings, samples, least, top, NULL);
        if (same) return same;
    }
    size_t usual = s ? mt__ceil_div(plan->samples, s->chunks) : 0; /* samples of a chunk */
    return mt__choose_chunks(&c->timings, samples, fewest, most,
                             usual ? mt__ceil_div(samples, usual) : 0);
}

/* Whether one chunk is faster than as many as fit; sizes between the two, which do not, are no alternative. */
static int is_faster_alone(const mt_policy *p, mt__curve *c, const mt_plan *plan, size_t rest,
                           size_t fewest, size_t most) {
    size_t chunks = fastest(p, c, plan, rest, 1, most);
    if (chunks == 1 || chunks >= fewest) return chunks == 1;
    chunks = fastest(p, c, plan, rest, fewest, most);
    return mt__batch_seconds(&c->timings, rest, 1) <= mt__batch_seconds(&c->timings, rest, chunks);
}

/*
 * The number of chunks for what is left; fewest above that: only the whole batch alone fits. Sizes grow step
 * by step; the whole batch alone may be the step after the largest that fits else.
 */
static size_t choose(const mt_policy *p, mt__curve *c, int alone, size_t rest, size_t *fewest,
                     size_t most, mt_plan *plan) {
    size_t worth = mt__largest_worth(&c->timings), largest = mt__max(worth, largest_chunk(plan));
    int is_all = *fewest > rest, has_grown = is_all || worth >= mt__ceil_div(rest, *fewest);
    plan->alone =
        alone && has_grown && (is_all || is_faster_alone(p, c, plan, rest, *fewest, most));
    if (plan->alone) return *fewest = 1;
    size_t least = mt__min(most, mt__max(*fewest, mt__ceil_div(rest, largest)));
    return fastest(p, c, plan, rest, least, most);
}

/*
 * In the first batch a larger size than before runs once, before the rest is planned: twice the largest,
 * or all that is left when that is not much more. 0: the rest is cut at once.
 */
static size_t grown(const mt_policy *p, const mt__curve *c, const mt_plan *plan, size_t rest,
                    size_t top, size_t chunk) {
    size_t ran = mt__largest_measured(&c->timings), twice = mt__min(2 * ran, top);
    if (c->timings.batches || ran == 0 || chunk <= ran || chunk == rest) return 0;
    if (plan->groups + 4 > MT_PLAN_GROUPS || twice < mt__policy_least(p, rest)) return 0;
    /* Beside the largest of several balanced chunks half as much is left at least, and a legal one: no little. */
    int leaves_little = rest - twice < mt__max(twice / 2, mt__policy_least(p, rest));
    return leaves_little ? rest : twice;
}

/*
 * Where chunks take kernels that recordings do not speak for, one of the smallest such size runs first, and what
 * is left is planned when it has: twice the size then, if larger ones are to run. Not where a crumb would be left.
 * 0: no such chunk.
 */
static size_t recorded_first(const mt_policy *p, const mt__curve *c, const mt_memory *memory,
                             const mt_plan *plan, size_t rest, size_t chunk) {
    size_t before = mt__curve_before(c, chunk), left = rest - mt__min(rest, before);
    size_t least = smallest_tried(p, c, rest, mt__policy_least(p, rest));
    if (!memory->budget_bytes || plan->groups + 4 > MT_PLAN_GROUPS) return 0;
    return before < least || (left && left < least) ? 0 : before;
}

/*
 * A size that ran once, with its set-up and whatever else the machine had to do, runs again as one chunk of a batch
 * before it is compared with others. 0: there is none.
 */
static size_t runs_again(const mt_policy *p, const mt__curve *c, const mt_plan *plan, size_t rest,
                         size_t fewest, size_t chunks) {
    size_t top = mt__ceil_div(rest, fewest), least = smallest_again(p, c, rest, top);
    /* Not while memory is short, nor where all chunks are to be known before the first. */
    if (mt__curve_has_failures(c) || plan->alone || p->is_told) return 0;
    if (plan->groups + 4 > MT_PLAN_GROUPS) return 0;
    return mt__run_again(&c->timings, plan->samples, rest, chunks, least, top);
}

/* The chunk that runs before the rest is planned; 0: the rest is cut at once, into so many. */
static size_t single_chunk(const mt_policy *p, const mt__curve *c, const mt_memory *memory,
                           const mt_plan *plan, size_t rest, size_t fewest, size_t chunks) {
    size_t chunk = mt__ceil_div(rest, chunks);
    size_t next = grown(p, c, plan, rest, mt__ceil_div(rest, fewest), chunk);
    size_t before = recorded_first(p, c, memory, plan, rest, next ? next : chunk);
    if (before || next) return before ? before : next;
    return runs_again(p, c, plan, rest, fewest, chunks);
}

/*
 * The chunk that a deterministic step runs and takes back before its own, since it may tell of others that fit: the
 * largest of the plan, unless it is the whole batch, which nothing is above, or one before it. 0: all is known.
 */
static size_t learns_from(const mt_policy *p, const mt__curve *c, const mt_memory *memory,
                          const mt_plan *plan, size_t chunks, size_t next) {
    size_t samples = plan->samples - mt_plan_covered(plan);
    size_t chunk = next ? next : mt__ceil_div(samples, chunks);
    if (!is_repeatable(p, c->kind.mode) || plan->groups || p->begun) return 0;
    if (!memory->budget_bytes || mt__curve_has_failures(c) || chunk <= c->learnt) return 0;
    return chunk < samples && !mt__curve_covers(c, chunk) ? chunk : 0;
}

/* A plan of that chunk alone, which is taken back. */
static mt_status plan_learning(mt__curve *c, const mt_memory *memory, size_t chunk, mt_plan *plan) {
    plan->discard = 1;
    plan->alone = 0;
    c->learnt = chunk;
    if (mt__curve_is_told(c, 0, chunk))
        plan->predicted_peak_bytes =
            mt__add(mt__curve_predict(c, 0, chunk), memory->allocated_bytes);
    return mt__plan_append(plan, chunk, 1);
}

/* Appends the rest of the batch as the fastest cut that fits. */
static mt_status plan_rest(mt_policy *p, mt_mode mode, const mt_memory *memory, mt_plan *plan) {
    mt__curve *c = mt__policy_current(p, mode);
    size_t rest = plan->samples - mt_plan_covered(plan), fewest = 1, most = 1;
    int is_first = !plan->groups, alone = fits_alone(p, c, plan, memory);
    mt_status status = limits(p, c, rest, memory, &fewest, &most);
    int is_only = alone && (status != MT_OK || !fits_in_place(p, c, rest, memory));
    if (status != MT_OK && !alone) return status;
    if (is_only) fewest = rest + 1;
    if (c->has_begun && !p->begun) mt__timings_next_batch(&c->timings);
    int may_begin = memory->budget_bytes && !p->options.deterministic && !c->has_begun;
    int begins = may_begin && !is_only && begin_small(p, c, memory, fewest, plan);
    /* Without gradients held beside its own one chunk is faster, but not where every other batch needs them. */
    alone = alone && !begins && (fewest > 1 || p->whole);
    size_t asked = fewest; /* by memory, where the batch is not alone */
    size_t chunks = choose(p, c, alone, rest, &fewest, most, plan);
    /* Before the whole batch alone there is no smaller one where none is known to fit. */
    int is_single = begins || is_only || (plan->alone && !can_record_before(c, rest, memory));
    size_t next = is_single ? 0 : single_chunk(p, c, memory, plan, rest, fewest, chunks);
    size_t learnt = learns_from(p, c, memory, plan, chunks, next);
    c->has_begun = 1;
    if (learnt) return plan_learning(c, memory, learnt, plan);
    if (next) plan->alone = 0;
    if (is_first) plan->reason = explain(p, c, plan->samples, asked, chunks);
    if (begins) return MT_OK;
    return next ? mt__plan_append(plan, next, 1) : mt__plan_append(plan, rest, chunks);
}

/* ---- plans ------------------------------------------------------------------------------------ */

/*
 * The two recording chunks: the first part of an open plan, or run and taken back. Of the latter the second waits
 * where it may not be needed. 0: the batch is too small for them.
 */
static int plan_recording(const mt_policy *p, mt_mode mode, mt__curve *c, mt_plan *plan) {
    size_t least = mt__policy_least(p, plan->samples), first = mt__max(FIRST_RECORDED, least);
    size_t most = p->options.max_micro_batch ? p->options.max_micro_batch : SIZE_MAX;
    size_t second = 2 * first, change = p->info.kernels_change;
    /* Both on one side of where kernels change. */
    if (change == first + 1) second = 2 * ++first;
    if (change > first && change <= second) second = change - 1;
    size_t both = first + second;
    int discard = discards(p, mode), is_first = !c->has_run;
    if (second > most || plan->samples < (discard ? second : both)) return 0;
    /* What is left over must be a legal chunk. */
    if (!discard && plan->samples > both && plan->samples - both < least) return 0;
    plan->discard = discard;
    if (is_first) plan->group[plan->groups++] = (mt_chunk_group){first, 1};
    c->records_one = discard && is_first && may_begin_as_second(p, plan->samples, first);
    if (!c->records_one) plan->group[plan->groups++] = (mt_chunk_group){second, 1};
    return 1;
}

/* A batch too small for two recording chunks: chunks of the first recorded size, known by its end. */
static mt_status plan_small(const mt_policy *p, mt__curve *c, const mt_memory *memory,
                            mt_plan *plan) {
    size_t least = mt__policy_least(p, plan->samples), chunk = mt__max(FIRST_RECORDED, least);
    if (p->options.max_micro_batch) chunk = mt__min(chunk, p->options.max_micro_batch);
    size_t chunks = mt__min(mt__ceil_div(plan->samples, chunk), plan->samples / least);
    if (chunks < 2 || !is_repeatable(p, c->kind.mode))
        return mt__plan_append(plan, plan->samples, mt__max(1, chunks));
    return plan_learning(c, memory, chunk, plan);
}

/* The whole batch alone, of which it is not known whether it fits: nothing else does. */
static mt_status plan_alone(const mt_policy *p, mt__curve *c, mt_plan *plan) {
    plan->alone = c->has_begun = 1;
    plan->reason = p->replanning ? MT_PLAN_OOM : MT_PLAN_BUDGET;
    return mt__plan_append(plan, plan->samples, 1);
}

/* Whether one chunk that is all there may be goes alone: the one before was whole too, or it has no other way. */
static int goes_alone(const mt_policy *p, mt__curve *c, const mt_memory *memory,
                      const mt_plan *plan) {
    size_t n = plan->samples, room = mt__limit(memory);
    int fits = mt__curve_predict(c, 0, n) <= room && !mt__curve_has_failed(c, 0, n, room);
    return (p->whole || !fits) && fits_alone(p, c, plan, memory);
}

/* Chunks that the user fixed, or one of the whole batch where its loss couples the samples. */
static mt_status plan_fixed(mt_policy *p, mt__curve *c, const mt_memory *memory, mt_plan *plan) {
    size_t largest = mt__policy_attainable(p, plan->samples);
    plan->reason = p->replanning ? MT_PLAN_OOM : MT_PLAN_USER;
    plan->alone = goes_alone(p, c, memory, plan);
    if (!plan->alone && mt__curve_rules_out(c, largest, mt__limit(memory)))
        return does_not_fit(c, largest, memory);
    return mt__plan_append(plan, plan->samples, mt__policy_most_chunks(p, plan->samples));
}

/*
 * Whether recording chunks are to run: at the start alone. Where nothing came of it (no recordings, no peaks, no
 * room) sizes are tried.
 */
static int is_to_record(const mt_policy *p, mt_mode mode, const mt__curve *c,
                        const mt_memory *memory, size_t samples) {
    if (!memory->budget_bytes || mt__curve_has_failures(c) || p->step_cap) return 0;
    if (discards(p, mode) && !mt__policy_can_record(p)) return 0;
    if (!c->has_run) return 1;
    return c->records_one && !c->has_begun && !begins_as_second(p, c, memory, samples);
}

/* The first chunks of a plan, or all of them. */
static mt_status cut(mt_policy *p, mt_mode mode, mt__curve *c, const mt_memory *memory,
                     mt_plan *plan) {
    if (mode == MT_TRAIN && p->tries_alone) return plan_alone(p, c, plan);
    if (mt__policy_is_fixed(p)) return plan_fixed(p, c, memory, plan);
    if (!is_to_record(p, mode, c, memory, plan->samples)) return plan_rest(p, mode, memory, plan);
    if (plan_recording(p, mode, c, plan)) return MT_OK;
    c->records_one = 0;
    return plan_small(p, c, memory, plan);
}

/* The plan with the rungs that are taken: left open where they are of a device not known yet. */
static mt_status plan_here(mt_policy *p, mt_mode mode, size_t samples, const mt_memory *memory,
                           mt_plan *plan) {
    mt__curve *c = mt__policy_current(p, mode);
    mt_status status = MT_OK;
    if (!c) return mt_set_error(MT_ENOMEM, "mt_policy_plan: out of host memory");
    memset(plan, 0, sizeof *plan);
    plan->size = sizeof *plan;
    plan->samples = mode == MT_TRAIN ? mt__ladder_samples(p, samples) : samples;
    plan->rungs = mt__ladder_rungs(p);
    plan->rate = mt__ladder_rate(p, samples);
    if (!mt__ladder_crosses(p)) status = cut(p, mode, c, memory, plan);
    if (status == MT_OK && can_promise(c, plan))
        promise(p, mode, c, memory, 0, 0, plan);
    else if (mode == MT_TRAIN)
        p->keep = 0;
    return status;
}

/* What the step before left behind is over. */
static void begin_step(mt_policy *p, mt_mode mode, size_t samples, const mt_memory *memory) {
    p->step_cap = p->step_failed = 0;
    p->tries_alone = 0;
    p->steps++;
    for (size_t i = 0; i < MT__CURVES; i++)
        if (p->curves[i]) mt__curve_forget(p->curves[i], p->steps);
    p->samples = samples;
    mt__ladder_begin(p);
    if (mode == MT_TRAIN) mt__ladder_leave(p, samples, memory);
}

mt_status mt_policy_plan(mt_policy *policy, mt_mode mode, size_t samples, const mt_memory *memory,
                         mt_plan *out) {
    MT__CHECK(out, "mt_policy_plan: out is NULL");
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_plan");
    MT__CHECK((unsigned)mode < MT__MODES, "mt_policy_plan: mode is %d", (int)mode);
    MT__CHECK(memory, "mt_policy_plan: memory is NULL");
    MT__CHECK(samples > 0, "mt_policy_plan: samples is 0; at least 1 is accepted");
    mt_policy *p = policy;
    if (!p->replanning && !p->same_step) begin_step(p, mode, samples, memory);
    p->begun = 0;
    p->budget = memory->budget_bytes;
    mt_status status = plan_here(p, mode, samples, memory, out);
    /* Also what is known beforehand not to fit is a reason to try the last resort, and to climb. */
    while (status == MT_EDEVMEM &&
           (mt__policy_try_alone(p, mode, memory) || mt__ladder_climb(p, mode))) {
        p->step_cap = p->step_failed = 0;
        status = plan_here(p, mode, samples, memory, out);
    }
    if (status == MT_EDEVMEM) mt__ladder_give_back(p);
    if (status == MT_OK) p->device = p->rungs & MT_RUNG_BIT(MT_RUNG_CPU);
    if (status == MT_OK && mode == MT_TRAIN) {
        p->alone = out->alone;
        p->whole =
            !out->discard && mt_plan_chunks(out) == 1 && mt_plan_covered(out) == out->samples;
    }
    p->replanning = 0;
    p->same_step = status == MT_OK && out->discard;
    return status;
}

mt_status mt_policy_extend(mt_policy *policy, mt_mode mode, const mt_memory *memory,
                           mt_plan *plan) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_extend");
    MT__CHECK((unsigned)mode < MT__MODES, "mt_policy_extend: mode is %d", (int)mode);
    MT__CHECK(memory, "mt_policy_extend: memory is NULL");
    MT__CHECK(plan, "mt_policy_extend: plan is NULL");
    MT__CHECK(plan->groups <= MT_PLAN_GROUPS,
              "mt_policy_extend: plan->groups is %zu; at most %d is "
              "accepted",
              plan->groups, MT_PLAN_GROUPS);
    MT__CHECK(mt_plan_covered(plan) < plan->samples,
              "mt_policy_extend: the plan covers its %zu samples already", plan->samples);
    mt__curve *c = mt__policy_current(policy, mode);
    if (!c) return mt_set_error(MT_ENOMEM, "mt_policy_extend: out of host memory");
    policy->begun = 1;
    policy->budget = memory->budget_bytes;
    size_t ran = mt_plan_chunks(plan), largest_ran = largest_chunk(plan);
    mt_status status =
        plan->groups ? plan_rest(policy, mode, memory, plan) : cut(policy, mode, c, memory, plan);
    if (status == MT_OK && can_promise(c, plan))
        promise(policy, mode, c, memory, ran, largest_ran, plan);
    policy->same_step = plan->discard;
    return status;
}
