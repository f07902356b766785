/*
 * rungs.c - what helps when the smallest legal chunk does not fit, in the order of its price.
 *
 * First what costs nothing: a larger chunk, where the library takes more memory for small ones; the whole batch as one chunk
 * without an accumulator. Then the rungs of the ladder. Climbing is forced by memory and adds the next rung that is allowed.
 * Leaving drops a rung and those above it, decided from what is known of the chunks without them; a rung that has to be taken
 * again soon is kept for twice as long the next time.
 */
#include "policy_state.h"
#include "tuned.h"

#include <math.h>

/* They spare what a backward pass needs, and leave the numbers as they are. */
static const unsigned SAME_NUMBERS =
    MT_RUNG_BIT(MT_RUNG_CHECKPOINTING) | MT_RUNG_BIT(MT_RUNG_OFFLOAD);

/* Rungs that the user allows and the backend has. A smaller batch needs nothing of the backend. */
static unsigned allowed(const mt_policy *p) {
    unsigned has = p->info.rungs | MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    unsigned may = MT_RUNGS_DEFAULT | p->options.allow_rungs;
    return has & may & ~p->options.forbid_rungs & ~p->step.failed;
}

/* All of a batch that can be split into chunks which are small enough, or else as much as can. */
size_t mt__rungs_samples(const mt_policy *p, size_t samples) {
    const size_t chunk = p->ladder.chunk;
    /* Fewer samples may make larger chunks: 44 are five of 8 and 9, 40 are four of 10. */
    while (chunk && mt__policy_attainable(p, samples) > chunk)
        samples = mt__policy_most_chunks(p, samples) * chunk;
    return samples;
}

double mt__rungs_rate(const mt_policy *p, size_t samples) {
    double share = (double)mt__rungs_samples(p, samples) / (double)samples;
    if (p->options.rate_rule == MT_RATE_LINEAR) return share;
    return p->options.rate_rule == MT_RATE_SQRT ? sqrt(share) : 1.0;
}

/* ---- up ---------------------------------------------------------------------------------------- */

static int crosses_device(const mt_policy *p, unsigned rungs) {
    return ((rungs ^ p->ladder.rungs) & MT_RUNG_BIT(MT_RUNG_CPU)) != 0;
}

static void move_to(mt_policy *p, unsigned rungs, size_t chunk, int is_left) {
    if (crosses_device(p, rungs)) p->shortage.limit = 0; /* it is the other device's */
    p->wait.steps = is_left ? -2 * p->wait.patience : 0;
    p->ladder = (mt__ladder){rungs & ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH), chunk};
}

/*
 * A rung that is taken within twice the patience after one was left was left too soon. Its patience doubles as that of a size
 * does that failed with evidence: the two are to stay in step.
 */
static void set_patience(mt_policy *p) {
    if (p->wait.steps < 0)
        p->wait.patience *= 2;
    else if (!mt_policy_rungs(p))
        p->wait.patience = RUNG_WAIT;
}

/* Takes the cheapest rung that helps. Returns 0 where none is left. */
static int climb(mt_policy *p, mt_mode mode) {
    const unsigned taken = p->ladder.rungs;
    size_t least = mt__smallest_chunk(&p->options, &p->info), chunk = p->ladder.chunk;
    size_t samples = mt__rungs_samples(p, p->step.samples);
    /* Fewer samples help where they are a smaller chunk that is legal: a batch that cannot be split, or not small enough. */
    int can_shorten = mode == MT_TRAIN && mt__policy_attainable(p, samples) > least &&
                      !(taken & MT_RUNG_BIT(MT_RUNG_CPU)) &&
                      (!p->options.micro_batch || mt__policy_most_chunks(p, samples) == 1);
    unsigned rung = 0, may = allowed(p) & ~taken;
    if (mode != MT_TRAIN) may &= ~SAME_NUMBERS;
    if (!can_shorten) may &= ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH); /* else again and again */
    while (rung < MT_RUNGS && !(may & MT_RUNG_BIT(rung))) rung++;
    if (rung == MT_RUNGS) return 0;
    if (rung == MT_RUNG_SMALLER_BATCH)
        chunk = mt__max(least, (size_t)((double)mt__policy_attainable(p, samples) * CUT));
    unsigned rungs = taken | MT_RUNG_BIT(rung);
    if (rung == MT_RUNG_CPU) chunk = 0; /* other memory, so the whole batch again */
    set_patience(p);
    move_to(p, rungs, chunk, 0);
    p->step.resort = MT__RESORT_NONE;
    return 1;
}

/* Whether larger chunks, of so many samples, may fit where the smallest did not: what is known does not rule it out. */
static int may_be_larger(const mt_policy *p, const mt__kind *k, size_t samples, size_t room) {
    size_t larger = mt__begin_size(samples), most = p->options.max_micro_batch;
    if (k->limits[MT__IN_PLACE].largest_ran || mt__policy_fixed(p, samples)) return 0;
    if (room == SIZE_MAX || larger > samples || (most && larger > most)) return 0;
    if (larger <= mt__policy_attainable(p, samples)) return 0;
    /* Of what was cut short most grows, if not all. */
    return !k->is_partial || mt__kind_recorded(k, MT__IN_PLACE, larger / 2) <= room;
}

/* Whether the whole batch may fit as one chunk without an accumulator. Where that is known the split has it. */
static int may_fit_alone(const mt_policy *p, const mt__kind *k, size_t samples, size_t room) {
    int is_known = mt__kind_is_recorded(k, MT__APART) && mt__kind_is_sure(k, MT__APART, samples);
    /* A batch made smaller is not the whole one. */
    if (samples != p->step.samples || !mt__policy_may_go_alone(p, MT_TRAIN, samples)) return 0;
    if (is_known || samples > mt__kind_allowed(k, MT__APART, room)) return 0;
    return !k->is_partial || !mt__kind_rules_out(k, MT__IN_PLACE, samples, room);
}

int mt__rungs_take(mt_policy *p, mt_mode mode, const mt_memory *memory, const mt_oom *oom) {
    const mt__kind *k = mt__policy_find_kind(p, mode, p->ladder.rungs); /* it was planned */
    size_t samples = mode == MT_TRAIN ? mt__rungs_samples(p, p->step.samples) : p->step.samples;
    size_t room = mt__policy_room(p, memory, memory->allocated_bytes);
    size_t room_alone = mt__policy_room(p, memory, mt__policy_allocated_alone(p, memory));
    mt__resort *resort = &p->step.resort;
    if (*resort < MT__RESORT_LARGER && oom && oom->refused && may_be_larger(p, k, samples, room))
        *resort = MT__RESORT_LARGER;
    else if (*resort < MT__RESORT_ALONE && mode == MT_TRAIN &&
             may_fit_alone(p, k, samples, room_alone))
        *resort = MT__RESORT_ALONE;
    else if (!climb(p, mode))
        return 0;
    p->step.cap = 0;
    return 1;
}

/* ---- down -------------------------------------------------------------------------------------- */

/*
 * Whether these rungs, of whose kind k is, are tried: a chunk is thought to fit. A bound is too much to ask for: where nothing
 * is known exactly, they are tried after a long time. The room on the accelerator is not known from the CPU: it is simply
 * tried, and what failed there is forgotten.
 */
static int are_tried(const mt_policy *p, mt__kind *k, unsigned rungs, size_t chunk, size_t room) {
    if (p->wait.steps <= p->wait.patience) return 0;
    if (k && crosses_device(p, rungs)) mt__kind_forget(k);
    if (crosses_device(p, rungs)) return 1;
    if (k && mt__kind_largest(k, MT__IN_PLACE, room) >= chunk) return 1;
    if (p->wait.steps <= UNKNOWN_WAITS * p->wait.patience) return 0;
    return !k || !mt__kind_rules_out(k, MT__IN_PLACE, chunk, room);
}

void mt__rungs_leave(mt_policy *p, size_t samples, const mt_memory *memory) {
    const unsigned rungs = p->ladder.rungs, all = mt_policy_rungs(p);
    const size_t chunk = p->ladder.chunk;
    mt__kind *here = mt__policy_find_kind(p, MT_TRAIN, rungs);
    size_t room = mt__policy_room(p, memory, memory->allocated_bytes);
    size_t before = (size_t)ceil((double)chunk / CUT); /* one cut less */
    size_t whole = mt__policy_attainable(p, samples);
    p->wait.steps++;
    if (chunk >= whole) whole = before; /* that a small batch fits says nothing of larger ones */
    for (unsigned rung = 0; rung < MT_RUNGS; rung++) {
        unsigned rest = rungs & (MT_RUNG_BIT(rung) - 1); /* the rungs below it */
        if (!(all & MT_RUNG_BIT(rung))) continue;
        mt__kind *there = mt__policy_find_kind(p, MT_TRAIN, rest);
        /* What failed there is forgotten as if it had been planned. Without fewer samples it is the same kind. */
        if (there && there != here) there->plans++;
        if (are_tried(p, there, rest, whole, room)) {
            move_to(p, rest, rung > MT_RUNG_SMALLER_BATCH ? chunk : 0, 1);
            return;
        }
    }
    /* Or the batch grows by one cut. */
    if (chunk && before < whole && are_tried(p, here, rungs, before, room))
        move_to(p, rungs, before, 1);
}

void mt__rungs_give_back(mt_policy *p, mt_mode mode) {
    p->ladder.rungs = p->step.start;
    if (mode == MT_TRAIN && p->step.samples) p->ladder.chunk = 0;
}

void mt__rungs_begin_with(mt_policy *p, unsigned rungs) {
    p->ladder = (mt__ladder){rungs & allowed(p) & SAME_NUMBERS, 0};
    if (p->ladder.rungs) p->wait.patience = RUNG_WAIT; /* as if they had been taken now */
}

mt_status mt_policy_rung_failed(mt_policy *policy, mt_rung rung, int on, mt_status why) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_rung_failed");
    MT__CHECK((unsigned)rung < MT_RUNGS, "mt_policy_rung_failed: rung is %d; accepted: 0 to %d",
              (int)rung, MT_RUNGS - 1);
    mt_policy *p = policy;
    unsigned rungs = p->ladder.rungs | MT_RUNG_BIT(rung);
    if (on) {
        *(why == MT_ENOTSUP ? &p->options.forbid_rungs : &p->step.failed) |= MT_RUNG_BIT(rung);
        rungs = p->ladder.rungs & (MT_RUNG_BIT(rung) - 1); /* nor those above it */
    } else {
        set_patience(p);
    }
    move_to(p, rungs, !on || rung > MT_RUNG_SMALLER_BATCH ? p->ladder.chunk : 0, 0);
    p->plan.rungs = p->ladder.rungs;
    mt__policy_go_on(p, MT_PLAN_OOM);
    return MT_OK;
}
