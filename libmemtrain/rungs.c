/*
 * rungs.c - what helps when the smallest legal chunk does not fit, in the order of its price.
 *
 * First what costs nothing: a larger chunk, where the library takes more memory for small ones; the whole batch as one chunk
 * without an accumulator. Then the rungs of the ladder. Climbing is forced by memory and adds the next rung that is allowed. Leaving drops a rung and those
 * above it, decided from what is known of the chunks without them; a rung that has to be taken again
 * soon is kept for twice as long the next time.
 */
#include "policy_state.h"
#include "tuned.h"

#include <math.h>

const char *mt_rung_name(mt_rung rung) {
    static const char *const names[MT_RUNGS] = {"checkpointing", "offload", "amp",
                                                "smaller_batch", "cpu",     "minimal"};
    return (size_t)rung < MT_RUNGS ? names[rung] : "?";
}

/* They spare what a backward pass needs, and leave the numbers as they are. */
static const unsigned SAME_NUMBERS =
    MT_RUNG_BIT(MT_RUNG_CHECKPOINTING) | MT_RUNG_BIT(MT_RUNG_OFFLOAD);

/* Rungs that the user allows and the backend has. A smaller batch needs nothing of the backend. */
static unsigned allowed(const mt_policy *p) {
    unsigned has = p->info.rungs | MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    unsigned may = MT_RUNGS_DEFAULT | p->options.allow_rungs;
    return has & may & ~p->options.forbid_rungs & ~p->step.failed;
}

/* The rungs below one of them. */
static unsigned below(unsigned rungs, unsigned rung) {
    return rungs & (MT_RUNG_BIT(rung) - 1);
}

/*
 * What a step takes of a batch that is to go into chunks of so many samples at most: all that does. So a batch that is
 * smaller, or can be cut into chunks, stays whole.
 */
static size_t shortened(const mt_policy *p, size_t samples, size_t chunk) {
    /* Fewer samples may make larger chunks: 44 are five of 8 and 9, 40 are four of 10. */
    while (chunk && mt__policy_attainable(p, samples) > chunk)
        samples = mt__policy_most_chunks(p, samples) * chunk;
    return samples;
}

size_t mt__rungs_samples(const mt_policy *p, size_t samples) {
    return shortened(p, samples, p->ladder.chunk);
}

double mt__rungs_rate(const mt_policy *p, size_t samples) {
    double share = (double)mt__rungs_samples(p, samples) / (double)samples;
    if (p->options.rate_rule == MT_RATE_LINEAR) return share;
    return p->options.rate_rule == MT_RATE_SQRT ? sqrt(share) : 1.0;
}

/* ---- up ---------------------------------------------------------------------------------------- */

/*
 * A smaller batch helps training alone, and only where fewer samples are a smaller chunk that is legal:
 * a batch that cannot be cut, or not small enough. Not where the user has fixed the chunks.
 */
static int can_shorten(const mt_policy *p, mt_mode mode) {
    size_t now = mt__rungs_samples(p, p->step.samples);
    size_t least = mt__smallest_chunk(&p->options, &p->info);
    if (mode != MT_TRAIN || mt__policy_attainable(p, now) <= least) return 0;
    return !p->options.micro_batch || mt__policy_most_chunks(p, now) == 1;
}

static int crosses_device(const mt_policy *p, unsigned rungs) {
    return ((rungs ^ p->ladder.rungs) & MT_RUNG_BIT(MT_RUNG_CPU)) != 0;
}

static void arrive(mt_policy *p, unsigned rungs) {
    if (crosses_device(p, rungs)) p->shortage.limit = 0; /* it is the other device's */
    p->wait.steps = 0;
    p->ladder.rungs = rungs;
}

/* A rung that is taken within twice the patience after one was left was left too soon. */
static void set_patience(mt_policy *p) {
    mt__wait *w = &p->wait;
    if (w->has_left && w->steps < 2 * w->patience)
        w->patience *= 2;
    else if (!p->ladder.rungs)
        w->patience = RUNG_WAIT;
    w->has_left = 0;
}

/* The cheapest rung that helps; MT_RUNGS: none is left. A batch may be made smaller again and again, but not on the CPU. */
static unsigned next_rung(const mt_policy *p, mt_mode mode) {
    int on_cpu = (p->ladder.rungs & MT_RUNG_BIT(MT_RUNG_CPU)) != 0;
    for (unsigned rung = 0; rung < MT_RUNGS; rung++) {
        unsigned bit = MT_RUNG_BIT(rung);
        int is_open = !(p->ladder.rungs & bit);
        int helps = mode == MT_TRAIN || !(SAME_NUMBERS & bit);
        if (rung == MT_RUNG_SMALLER_BATCH) {
            is_open = !on_cpu;
            helps = can_shorten(p, mode);
        }
        if ((allowed(p) & bit) && is_open && helps) return rung;
    }
    return MT_RUNGS;
}

/* What would have been enough here is enough, whatever a rung that comes after needs. */
static void note_need(mt_policy *p, mt_mode mode) {
    mt_oom *oom = &p->explained;
    size_t samples = mode == MT_TRAIN ? mt__rungs_samples(p, p->step.samples) : p->step.samples;
    size_t chunk = mt__policy_attainable(p, mt__max(1, samples));
    if (!oom->chunk) *oom = (mt_oom){.mode = mode};
    mt__need need = mt__policy_need(p, oom, chunk), *least = &p->least_need;
    if (need.bytes && (!least->bytes || need.bytes < least->bytes)) *least = need;
    oom->chunk = 0;
}

/*
 * A size that a batch would begin with, where nothing has gone through yet: a library may take an algorithm for
 * small chunks that needs more memory than the one for large ones. 0: what did run rules it out.
 */
static size_t larger_size(const mt_policy *p, const mt__kind *k, size_t samples, size_t room) {
    size_t size = mt__max(LEAST_NORMALISED, samples / SMALLEST_SHARE);
    size_t most = p->options.max_micro_batch ? p->options.max_micro_batch : samples;
    if (k->limits[MT__IN_PLACE].largest_ran || mt__policy_fixed(p, samples)) return 0;
    if (room == SIZE_MAX || !p->explained.refused) return 0;
    if (size > mt__min(most, samples) || size <= mt__policy_attainable(p, samples)) return 0;
    /* Of what was cut short most grows, if not all. */
    return k->is_partial && mt__kind_recorded(k, MT__IN_PLACE, size / 2) > room ? 0 : size;
}

/* Whether the whole batch may fit as one chunk without an accumulator. */
static int may_fit_alone(const mt_policy *p, const mt__kind *k, size_t samples,
                         const mt_memory *memory) {
    size_t room = mt__policy_room_alone(p, memory);
    int is_known = mt__kind_is_recorded(k, MT__APART) && mt__kind_is_sure(k, MT__APART, samples);
    /* A batch made smaller is not the whole one. */
    if (samples != p->step.samples || !mt__policy_may_go_alone(p, MT_TRAIN, samples)) return 0;
    if (mt__kind_has_failed(k, MT__APART, samples, room)) return 0;
    if (is_known) return 0; /* where it fits the split has it */
    return !k->is_partial || !mt__kind_rules_out(k, MT__IN_PLACE, samples, room);
}

static int climb(mt_policy *p, mt_mode mode) {
    note_need(p, mode);
    unsigned rung = next_rung(p, mode);
    if (rung == MT_RUNGS) return 0;
    p->step.resort = MT__RESORT_NONE;
    set_patience(p);
    arrive(p, p->ladder.rungs | MT_RUNG_BIT(rung));
    if (rung == MT_RUNG_SMALLER_BATCH) {
        size_t least = mt__smallest_chunk(&p->options, &p->info);
        size_t now = mt__policy_attainable(p, mt__rungs_samples(p, p->step.samples));
        p->ladder.chunk = mt__max(least, (size_t)((double)now * CUT));
    }
    if (rung == MT_RUNG_CPU) { /* other memory, so the whole batch again */
        p->ladder.rungs &= ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
        p->ladder.chunk = 0;
        p->least_need.bytes = 0;
    }
    return 1;
}

int mt__rungs_take(mt_policy *p, mt_mode mode, const mt_memory *memory) {
    const mt__kind *k =
        mt__policy_find_kind(p, mode, p->ladder.rungs); /* there since it was planned */
    size_t samples = mode == MT_TRAIN ? mt__rungs_samples(p, p->step.samples) : p->step.samples;
    size_t larger = larger_size(p, k, samples, mt__policy_room(p, memory));
    mt__step *step = &p->step;
    step->try_size = 0;
    if (larger && step->resort < MT__RESORT_LARGER) {
        step->resort = MT__RESORT_LARGER;
        step->try_size = larger;
    } else if (mode == MT_TRAIN && step->resort < MT__RESORT_ALONE &&
               may_fit_alone(p, k, samples, memory)) {
        step->resort = MT__RESORT_ALONE;
    } else if (!climb(p, mode)) {
        return 0;
    }
    step->cap = 0;
    return 1;
}

/* ---- down -------------------------------------------------------------------------------------- */

/*
 * Whether a chunk is thought to fit with these rungs, of whose kind k is. A bound is too much to ask for: where nothing is
 * known exactly, they are tried after a long time. The room on the accelerator is not known from the CPU: it is simply tried.
 */
static int may_fit(const mt_policy *p, mt__kind *k, unsigned rungs, size_t chunk,
                   const mt_memory *memory) {
    size_t room = mt__policy_room(p, memory);
    if (p->wait.steps <= p->wait.patience) return 0;
    if (k && crosses_device(p, rungs)) mt__kind_forget(k);
    if (crosses_device(p, rungs)) return 1;
    if (k && mt__kind_largest(k, MT__IN_PLACE, room) >= chunk) return 1;
    if (p->wait.steps <= UNKNOWN_WAITS * p->wait.patience) return 0;
    return !k || !mt__kind_rules_out(k, MT__IN_PLACE, chunk, room);
}

static void leave(mt_policy *p, unsigned rungs, size_t chunk) {
    p->wait.has_left = 1;
    arrive(p, rungs);
    p->ladder.chunk = chunk;
}

void mt__rungs_leave(mt_policy *p, size_t samples, const mt_memory *memory) {
    const unsigned rungs = p->ladder.rungs;
    const size_t chunk = p->ladder.chunk;
    size_t before = (size_t)ceil((double)chunk / CUT); /* one cut less */
    size_t whole = mt__policy_attainable(p, samples);
    p->wait.steps++;
    if (chunk >= whole) whole = before; /* that a small batch fits says nothing of larger ones */
    for (unsigned rung = 0; rung < MT_RUNGS; rung++) {
        unsigned rest = below(rungs, rung);
        if (!(rungs & MT_RUNG_BIT(rung))) continue;
        mt__kind *there = mt__policy_find_kind(p, MT_TRAIN, rest);
        if (there) there->plans++; /* what failed there is forgotten as if it had been planned */
        if (may_fit(p, there, rest, whole, memory)) {
            leave(p, rest, 0);
            return;
        }
    }
    /* Or the batch grows by one cut. */
    mt__kind *here = mt__policy_find_kind(p, MT_TRAIN, rungs);
    if (chunk && before < whole && may_fit(p, here, rungs, before, memory)) leave(p, rungs, before);
}

void mt__rungs_begin_with(mt_policy *p, unsigned rungs) {
    p->ladder.rungs = rungs & allowed(p) & SAME_NUMBERS;
    if (p->ladder.rungs) p->wait.patience = RUNG_WAIT; /* as if they had been taken now */
}

mt_status mt_policy_rung_failed(mt_policy *policy, mt_rung rung, int on, mt_status why) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_rung_failed");
    MT__CHECK((unsigned)rung < MT_RUNGS, "mt_policy_rung_failed: rung is %d; accepted: 0 to %d",
              (int)rung, MT_RUNGS - 1);
    mt_policy *p = policy;
    if (on) {
        *(why == MT_ENOTSUP ? &p->options.forbid_rungs : &p->step.failed) |= MT_RUNG_BIT(rung);
        p->ladder.rungs = below(p->ladder.rungs, (unsigned)rung);
        if (!(p->ladder.rungs & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH))) p->ladder.chunk = 0;
    } else {
        set_patience(p);
        p->ladder.rungs |= MT_RUNG_BIT(rung);
    }
    p->wait.steps = 0;
    p->device = p->ladder.rungs & MT_RUNG_BIT(MT_RUNG_CPU);
    p->next = MT__AFTER_OOM;
    return MT_OK;
}
