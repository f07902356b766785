/*
 * ladder.c - savers for when the smallest legal chunk does not fit, in the order of their price.
 *
 * Climbing is forced by memory and adds the next rung that is allowed. Leaving drops a rung and those
 * above it, decided from what is known of the chunks without them; a rung that has to be taken again
 * soon is kept for twice as long the next time.
 */
#include "policy_state.h"

#include <math.h>

enum {
    PATIENCE = 8, /* plans before a rung is left; doubled each time that was in vain */
    MOST_PATIENCE = 4096,
    LONG = 8 /* times as long where it is not known whether there is room without it */
};

#define CUT 0.8 /* of the batch, each time: what document after document did by hand */

const char *mt_rung_name(mt_rung rung) {
    static const char *const names[] = {"checkpointing", "offload", "amp",
                                        "smaller_batch", "cpu",     "minimal"};
    return (size_t)rung < sizeof names / sizeof *names ? names[rung] : "?";
}

/* Rungs that the user allows and the backend has. A smaller batch needs nothing of the backend. */
static unsigned allowed(const mt_policy *p) {
    unsigned has = p->info.rungs | MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    unsigned may = MT_RUNGS_DEFAULT | p->options.allow_rungs;
    return has & may & ~p->options.forbid_rungs & ~p->unusable & ~p->failed;
}

/* The rungs below one of them. */
static unsigned below(unsigned rungs, unsigned rung) {
    return rungs & (MT_RUNG_BIT(rung) - 1);
}

unsigned mt__ladder_rungs(const mt_policy *p) {
    return p->rungs;
}

/* The chunk that was cut, so often, but not below the smallest legal one. */
static size_t cut_chunk(const mt_policy *p, unsigned cuts) {
    size_t samples = p->cut_chunk, least = mt__smallest_chunk(&p->options, &p->info);
    for (unsigned i = 0; i < cuts; i++) samples = mt__max(least, (size_t)((double)samples * CUT));
    return samples;
}

/*
 * What a step takes of a batch after so many cuts: all that goes into chunks of what is left of the one
 * that was cut. So a batch that is smaller, or can be cut into chunks, stays whole.
 */
static size_t shortened(const mt_policy *p, size_t samples, unsigned cuts) {
    size_t chunk = cut_chunk(p, cuts);
    /* Fewer samples may make larger chunks: 44 are five of 8 and 9, 40 are four of 10. */
    while (cuts && mt__policy_attainable(p, samples) > chunk)
        samples = mt__policy_most_chunks(p, samples) * chunk;
    return samples;
}

size_t mt__ladder_samples(const mt_policy *p, size_t samples) {
    return shortened(p, samples, p->cuts);
}

double mt__ladder_rate(const mt_policy *p, size_t samples) {
    double share = (double)mt__ladder_samples(p, samples) / (double)samples;
    if (p->options.rate_rule == MT_RATE_LINEAR) return share;
    return p->options.rate_rule == MT_RATE_SQRT ? sqrt(share) : 1.0;
}

/* ---- up ---------------------------------------------------------------------------------------- */

/*
 * A smaller batch helps training alone, and only where fewer samples are a smaller chunk that is legal:
 * a batch that cannot be cut, or not small enough. Not where the user has fixed the chunks.
 */
static int can_shorten(const mt_policy *p, mt_mode mode) {
    size_t now = mt__ladder_samples(p, p->samples);
    size_t least = mt__smallest_chunk(&p->options, &p->info);
    if (mode != MT_TRAIN || mt__policy_attainable(p, now) <= least) return 0;
    return !p->options.micro_batch || mt__policy_most_chunks(p, now) == 1;
}

/* One cut more; of this batch's chunk, where those so far have left it whole. */
static void shorten(mt_policy *p) {
    if (mt__ladder_samples(p, p->samples) == p->samples) {
        p->cut_chunk = mt__policy_attainable(p, p->samples);
        p->cuts = 0;
    }
    p->cuts++;
}

static int crosses_device(const mt_policy *p, unsigned rungs) {
    return ((rungs ^ p->rungs) & MT_RUNG_BIT(MT_RUNG_CPU)) != 0;
}

static void arrive(mt_policy *p, unsigned rungs) {
    if (crosses_device(p, rungs)) p->device_wait.steps = 0;
    p->rungs_wait.steps = 0;
    p->rungs = rungs;
}

/* A rung that is taken within twice the patience after one was left was left too soon. */
static void set_patience(mt__wait *w, int is_first) {
    int too_soon = w->has_left && w->steps < 2 * w->patience;
    if (too_soon) w->patience = (unsigned)mt__min(2 * w->patience, MOST_PATIENCE);
    if (!too_soon && is_first) w->patience = PATIENCE;
    w->has_left = 0;
}

static void take(mt_policy *p, unsigned rung) {
    if (rung == MT_RUNG_CPU)
        set_patience(&p->device_wait, 1);
    else
        set_patience(&p->rungs_wait, !p->rungs);
}

/* Some spare what the backward pass needs, which an evaluation has none of. */
static int helps(const mt_policy *p, unsigned rung, mt_mode mode) {
    const unsigned backward = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING) | MT_RUNG_BIT(MT_RUNG_OFFLOAD);
    if (rung == MT_RUNG_SMALLER_BATCH) return can_shorten(p, mode);
    return mode == MT_TRAIN || !(backward & MT_RUNG_BIT(rung));
}

/* Those that can still be taken: a batch may be made smaller again and again, but not on the CPU. */
static unsigned open_rungs(const mt_policy *p) {
    const unsigned shorter = MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    int is_whole = (p->rungs & MT_RUNG_BIT(MT_RUNG_CPU)) != 0;
    return is_whole ? allowed(p) & ~p->rungs & ~shorter : allowed(p) & (~p->rungs | shorter);
}

static unsigned rung_from(const mt_policy *p, unsigned rung, mt_mode mode) {
    unsigned open = open_rungs(p);
    while (rung < MT_RUNGS && !((open & MT_RUNG_BIT(rung)) && helps(p, rung, mode))) rung++;
    return rung;
}

/*
 * The next rung to take; MT_RUNGS: none is left. After the highest come those that were passed over: they were
 * no help to an evaluation, or to a batch that could not be made smaller.
 */
static unsigned next_rung(const mt_policy *p, mt_mode mode) {
    unsigned rung = MT_RUNGS;
    while (rung > 0 && !(p->rungs & MT_RUNG_BIT(rung - 1))) rung--;
    if (rung == MT_RUNG_SMALLER_BATCH + 1) rung--;
    rung = rung_from(p, rung, mode);
    return rung < MT_RUNGS ? rung : rung_from(p, 0, mode);
}

/* What would have been enough here is enough, whatever a rung that comes after needs. */
static void note_need(mt_policy *p, mt_mode mode) {
    mt_oom *oom = &p->explained;
    size_t samples = mode == MT_TRAIN ? mt__ladder_samples(p, p->samples) : p->samples;
    size_t chunk = mt__policy_attainable(p, mt__max(1, samples));
    if (!oom->chunk) *oom = (mt_oom){.mode = mode};
    mt__need need = mt__policy_need(p, oom, chunk);
    if (need.bytes && (!p->least_need.bytes || need.bytes < p->least_need.bytes))
        p->least_need = need;
    oom->chunk = 0;
}

int mt__ladder_climb(mt_policy *p, mt_mode mode) {
    note_need(p, mode);
    unsigned rung = next_rung(p, mode);
    if (rung == MT_RUNGS) return 0;
    p->tries_alone = 0;
    take(p, rung);
    arrive(p, p->rungs | MT_RUNG_BIT(rung));
    if (rung == MT_RUNG_SMALLER_BATCH) shorten(p);
    if (rung == MT_RUNG_CPU) { /* other memory, so the whole batch again */
        p->rungs &= ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
        p->cuts = 0;
        p->least_need.bytes = 0;
    }
    return 1;
}

/* ---- down -------------------------------------------------------------------------------------- */

/* Expected seconds a sample of the fastest cut that fits; 0: not known. */
static double sample_seconds(const mt_policy *p, const mt__curve *c, size_t samples, size_t fits) {
    size_t chunk = mt__max(fits, mt__policy_least(p, samples));
    size_t most = mt__policy_most_chunks(p, samples);
    size_t fewest = mt__policy_is_fixed(p) ? most : mt__min(most, mt__ceil_div(samples, chunk));
    if (!c->timings.count) return 0;
    size_t k = mt__choose_chunks(&c->timings, samples, fewest, most, 0);
    return mt__batch_seconds(&c->timings, samples, k) / (double)samples;
}

/*
 * sample_seconds() of rungs that are not on: where no chunk of half the size that fits was timed without them,
 * times of smaller ones say only how fast it may be at best.
 */
static double seconds_there(const mt_policy *p, const mt__curve *c, size_t samples, size_t fits) {
    size_t chunk = mt__min(fits, samples);
    double known = sample_seconds(p, c, samples, fits);
    if (mt__policy_is_fixed(p) || mt__largest_measured(&c->timings) >= chunk / 2) return known;
    return fmin(known, mt__least_seconds(&c->timings, chunk) / (double)chunk);
}

/* Leaving those that change the numbers is no matter of speed: they were the last resort. */
static int keeps_numbers(const mt_policy *p, unsigned rungs, unsigned cuts) {
    const unsigned same = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING) | MT_RUNG_BIT(MT_RUNG_OFFLOAD);
    return ((p->rungs ^ rungs) & ~same) == 0 && cuts == p->cuts;
}

/*
 * Whether chunks of these rungs are thought to fit. A bound is too much to ask for: where nothing is known
 * exactly, and nothing remembered to have failed, they are tried after a long time.
 */
static int may_fit(const mt_policy *p, const mt__curve *c, size_t chunk, const mt_memory *memory) {
    size_t room = mt__limit(memory);
    if (c && mt__curve_largest(c, 0, room) >= chunk) return 1;
    if (p->rungs_wait.steps <= LONG * p->rungs_wait.patience) return 0;
    return !c || (!mt__curve_rules_out(c, chunk, room) && !mt__curve_has_failed(c, 0, chunk, room));
}

/* Whether what is known of these rungs says that they may fit, and not that they are slower. */
static int is_better(const mt_policy *p, unsigned rungs, unsigned cuts, size_t samples,
                     const mt_memory *memory) {
    const mt__curve *there = mt__policy_find_curve(p, MT_TRAIN, rungs);
    const mt__curve *here = mt__policy_find_curve(p, MT_TRAIN, p->rungs);
    size_t room = mt__limit(memory);
    size_t wanted = shortened(p, samples, cuts);
    if (!may_fit(p, there, mt__policy_attainable(p, wanted), memory)) return 0;
    if (!here || !there || !keeps_numbers(p, rungs, cuts)) return 1;
    double then = seconds_there(p, there, wanted, mt__curve_largest(there, 0, room));
    double now =
        sample_seconds(p, here, mt__ladder_samples(p, samples), mt__curve_largest(here, 0, room));
    return then == 0 || now == 0 || then <= now;
}

/* The room on the accelerator is not known from the CPU: after a long time it is simply tried. */
static int try_device(mt_policy *p, unsigned rungs) {
    if (p->device_wait.steps < LONG * p->device_wait.patience) return 0;
    mt__curve *c = mt__policy_find_curve(p, MT_TRAIN, rungs);
    if (c) mt__curve_forget(c, UINT64_MAX);
    return 1;
}

static void leave(mt_policy *p, unsigned rungs, unsigned cuts) {
    *(crosses_device(p, rungs) ? &p->device_wait.has_left : &p->rungs_wait.has_left) = 1;
    arrive(p, rungs);
    p->cuts = cuts;
}

int mt__ladder_crosses(const mt_policy *p) {
    return crosses_device(p, p->device);
}

void mt__ladder_begin(mt_policy *p) {
    p->failed = 0;
    p->start_rungs = p->rungs;
    p->start_cuts = p->cuts;
    p->start_cut_chunk = p->cut_chunk;
}

void mt__ladder_leave(mt_policy *p, size_t samples, const mt_memory *memory) {
    p->rungs_wait.steps++;
    p->device_wait.steps++;
    p->wary -= p->wary > 0;
    int may = p->rungs_wait.steps > p->rungs_wait.patience;
    /* That a small batch fits says nothing of the chunk that was cut. */
    if (p->cuts) samples = mt__max(samples, p->cut_chunk);
    for (unsigned rung = 0; rung < MT_RUNGS; rung++) {
        unsigned rest = below(p->rungs, rung);
        if (!(p->rungs & MT_RUNG_BIT(rung))) continue;
        if (crosses_device(p, rest) ? !try_device(p, rest)
                                    : !may || !is_better(p, rest, 0, samples, memory))
            continue;
        leave(p, rest, 0);
        return;
    }
    /* The batch may grow by one cut at a time. */
    if (may && p->cuts > 1 && is_better(p, p->rungs, p->cuts - 1, samples, memory))
        leave(p, p->rungs, p->cuts - 1);
}

void mt__ladder_give_back(mt_policy *p) {
    p->rungs = p->start_rungs;
    p->cuts = p->start_cuts;
    p->cut_chunk = p->start_cut_chunk;
}

void mt__policy_rung_failed(mt_policy *p, mt_rung rung, int on, mt_status why) {
    if (on) {
        *(why == MT_ENOTSUP ? &p->unusable : &p->failed) |= MT_RUNG_BIT(rung);
        p->rungs = below(p->rungs, (unsigned)rung);
        if (!(p->rungs & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH))) p->cuts = 0;
    } else {
        take(p, rung);
        p->rungs |= MT_RUNG_BIT(rung);
    }
    p->rungs_wait.steps = p->device_wait.steps = 0;
    p->device = p->rungs & MT_RUNG_BIT(MT_RUNG_CPU);
    p->replanning = 1;
}

mt_status mt_policy_rung_failed(mt_policy *policy, mt_rung rung, int on, mt_status why) {
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_rung_failed");
    MT__CHECK((unsigned)rung < MT_RUNGS, "mt_policy_rung_failed: rung is %d; accepted: 0 to %d",
              (int)rung, MT_RUNGS - 1);
    mt__policy_rung_failed(policy, rung, on, why);
    return MT_OK;
}
