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

static void reassure(mt__failure *f, size_t samples) {
    if (f->tried && samples >= f->tried) f->tried = f->patience = 0;
}

void mt__evidence_ran(mt__evidence *e, size_t samples) {
    reassure(&e->beyond, samples);
    reassure(&e->shortage, samples);
}

void mt__evidence_prove(mt__evidence *e, size_t samples, size_t room) {
    int is_larger = samples > e->largest_ran, is_same = samples == e->largest_ran;
    if (is_larger || (is_same && room < e->proven_room)) e->proven_room = room;
    e->largest_ran = mt__max(e->largest_ran, samples);
}

/* ---- failures ---------------------------------------------------------------------------------- */

/* Doubling bounds the number of corrections when the model is far off. */
static void remember(mt__failure *f, size_t samples, size_t room, size_t predicted) {
    if (predicted && predicted <= room && room < SIZE_MAX)
        f->missing = mt__add(f->missing, mt__max(f->missing, room + 1 - predicted));
    f->chunk = samples;
    f->room = room;
}

/* What never fits is tried ever less often; what has gone through is sure to do so again. */
void mt__evidence_fail(mt__evidence *e, size_t samples, size_t room, size_t predicted,
                       uint64_t step) {
    int has_run = samples <= e->largest_ran;
    mt__failure *f = has_run ? &e->shortage : &e->beyond;
    remember(f, samples, room, predicted);
    size_t more = has_run ? f->patience + 1 : mt__min(4 * f->patience, MOST_PATIENCE);
    if (f->tried) f->patience = (unsigned)more;
    if (!f->patience) f->patience = has_run ? SHORT_PATIENCE : PATIENCE;
    f->tried = 0;
    f->forget_at = step + f->patience;
}

static int is_within(const mt__failure *f, size_t samples, size_t room) {
    return f->chunk && samples >= f->chunk && room <= f->room;
}

int mt__evidence_has_failed(const mt__evidence *e, size_t samples, size_t room) {
    return is_within(&e->beyond, samples, room) || is_within(&e->shortage, samples, room);
}

static void forget(mt__failure *f, uint64_t step) {
    if (!f->chunk || step < f->forget_at) return;
    f->tried = f->chunk;
    f->chunk = f->missing = 0;
}

void mt__evidence_forget(mt__evidence *e, uint64_t step) {
    e->residual /= 2; /* a chunk that needs more than was recorded will say so again */
    forget(&e->beyond, step);
    forget(&e->shortage, step);
}

/* ---- corrections ------------------------------------------------------------------------------- */

size_t mt__evidence_half_way(const mt__evidence *e) {
    size_t ran = e->largest_ran, failed = e->beyond.chunk;
    return ran && failed > ran ? ran + (failed - ran) / 2 : ran;
}

static size_t missing(const mt__evidence *e, const mt__failure *f, size_t samples) {
    int is_spared = samples <= mt__evidence_half_way(e), has_failed = samples >= f->chunk;
    return is_spared && !has_failed ? 0 : f->missing;
}

size_t mt__evidence_correction(const mt__evidence *e, size_t samples) {
    size_t more = mt__add(missing(e, &e->beyond, samples), missing(e, &e->shortage, samples));
    return mt__add(e->residual, more);
}
