/*
 * evidence.c - what measured peaks and failures say of other sizes, and for how long. Rules: docs/policy.md.
 */
#include "evidence.h"

enum {
    CLEARLY = 8, /* less by this part of it */
    /* steps before a size that failed is tried again; more when that is in vain */
    PATIENCE = 8,
    MOST_PATIENCE = 4096,
    SHORT_PATIENCE = 4 /* of one that had gone through */
};

/* ---- measured peaks ---------------------------------------------------------------------------- */

/* Clearly less a sample than the larger size: another tensor was there when that ran. */
static int is_tighter(const mt__evidence *e, size_t samples, size_t peak) {
    double told = (double)e->bound_peak / (double)e->bound_samples;
    double seen = (double)peak / (double)samples;
    return seen + seen / CLEARLY < told;
}

/* Of the same size the bound falls by half of what it was above the last peak, and rises at once. */
void mt__evidence_bound(mt__evidence *e, size_t samples, size_t peak) {
    if (samples < e->bound_samples && !is_tighter(e, samples, peak)) return;
    int falls = samples == e->bound_samples && peak < e->bound_peak;
    e->bound_peak = falls ? peak + (e->bound_peak - peak) / 2 : peak;
    e->bound_samples = samples;
}

/* ---- chunks that went through ------------------------------------------------------------------ */

/* Returns whether what was tried again has gone through. */
static int reassure(mt__failure *f, size_t samples) {
    if (!f->tried || samples < f->tried) return 0;
    f->tried = f->patience = 0;
    return 1;
}

void mt__evidence_ran(mt__evidence *e, size_t samples) {
    const mt__failure *f = &e->shortage;
    if (samples < mt__max(f->chunk, f->tried)) e->fits = mt__max(e->fits, samples);
    reassure(&e->beyond, samples);
    if (reassure(&e->shortage, samples)) e->fits = 0;
}

void mt__evidence_prove(mt__evidence *e, size_t samples, size_t room) {
    int is_larger = samples > e->largest_ran, is_same = samples == e->largest_ran;
    if (is_larger || (is_same && room < e->proven_room)) e->proven_room = room;
    e->largest_ran = mt__max(e->largest_ran, samples);
}

/* ---- failures ---------------------------------------------------------------------------------- */

size_t mt__smaller(size_t chunk) {
    return chunk - mt__max(1, chunk / 3);
}

/* Of failures for one reason: how long this one is remembered. */
static void remember(mt__failure *f, size_t samples, size_t room, unsigned longer, uint64_t step) {
    f->chunk = samples;
    f->room = room;
    f->patience = longer;
    f->tried = 0;
    f->forget_at = step + f->patience;
}

/* What may never fit is tried ever less often. Doubling bounds the corrections when the model is far off. */
static void fail_beyond(mt__evidence *e, size_t samples, size_t room, size_t predicted,
                        uint64_t step) {
    mt__failure *f = &e->beyond;
    size_t patience = f->tried ? mt__min(4 * f->patience, MOST_PATIENCE) : f->patience;
    if (predicted && predicted <= room && room < SIZE_MAX)
        e->missing = mt__add(e->missing, mt__max(e->missing, room + 1 - predicted));
    remember(f, samples, room, patience ? (unsigned)patience : PATIENCE, step);
}

/*
 * What has gone through is sure to do so again: it needs no more than predicted, something else has the room. How
 * much is not known, so the first time sizes fall by thirds, and when all was tried again in vain one half the way
 * up from what went through is, and then that.
 */
static void fall_short(mt__evidence *e, size_t samples, size_t room, uint64_t step) {
    mt__failure *f = &e->shortage;
    int in_vain = f->tried > 0, has_fits = e->fits && e->fits < samples;
    size_t half_way_up = e->fits + (samples - mt__min(samples, e->fits)) / 2;
    if (!has_fits) e->fits = 0;
    e->next = !has_fits ? mt__smaller(samples) : in_vain ? half_way_up : e->fits;
    unsigned patience = f->patience + (unsigned)in_vain;
    remember(f, samples, room, patience ? patience : SHORT_PATIENCE, step);
}

void mt__evidence_fail(mt__evidence *e, size_t samples, size_t room, size_t predicted,
                       uint64_t step) {
    if (samples <= e->largest_ran)
        fall_short(e, samples, room, step);
    else
        fail_beyond(e, samples, room, predicted, step);
}

int mt__evidence_is_short(const mt__evidence *e, size_t samples, uint64_t step) {
    const mt__failure *f = &e->shortage;
    int is_noted = f->chunk && f->forget_at == step + f->patience;
    return is_noted || (f->tried && samples >= f->tried);
}

static int is_within(const mt__failure *f, size_t samples, size_t room) {
    return f->chunk && samples >= f->chunk && room <= f->room;
}

int mt__evidence_has_failed(const mt__evidence *e, size_t samples, size_t room) {
    return is_within(&e->beyond, samples, room) || is_within(&e->shortage, samples, room);
}

static int forget(mt__failure *f, uint64_t step) {
    if (!f->chunk || step < f->forget_at) return 0;
    f->tried = f->chunk;
    f->chunk = 0;
    return 1;
}

void mt__evidence_forget(mt__evidence *e, uint64_t step) {
    e->residual /= 2; /* a chunk that needs more than was recorded will say so again */
    if (forget(&e->beyond, step)) e->missing = 0;
    forget(&e->shortage, step);
}

/* ---- corrections ------------------------------------------------------------------------------- */

size_t mt__evidence_half_way(const mt__evidence *e) {
    size_t ran = e->largest_ran, failed = e->beyond.chunk;
    return ran && failed > ran ? ran + (failed - ran) / 2 : ran;
}

size_t mt__evidence_correction(const mt__evidence *e, size_t samples) {
    int is_spared = samples <= mt__evidence_half_way(e), has_failed = samples >= e->beyond.chunk;
    return is_spared && !has_failed ? e->residual : mt__add(e->residual, e->missing);
}
