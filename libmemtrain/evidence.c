/*
 * evidence.c - what measured peaks and failures say of other sizes, and for how long. Rules: docs/policy.md.
 */
#include "evidence.h"

#include <math.h>

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

/* Of the same size a peak falls by half of what it was above the last one, and rises at once. */
static size_t again(size_t before, size_t peak) {
    return peak < before ? peak + (before - peak) / 2 : peak;
}

static void note_low(mt__evidence *e, size_t samples, size_t peak) {
    if (e->low_samples && samples > e->low_samples) return;
    e->low_peak = samples == e->low_samples ? again(e->low_peak, peak) : peak;
    e->low_samples = samples;
}

void mt__evidence_bound(mt__evidence *e, size_t samples, size_t peak) {
    note_low(e, samples, peak);
    if (samples < e->bound_samples && !is_tighter(e, samples, peak)) return;
    e->bound_peak = samples == e->bound_samples ? again(e->bound_peak, peak) : peak;
    e->bound_samples = samples;
}

/* Whether a line leads from the smallest chunk up to the bound: peaks are convex, so they lie below it. */
static int has_line(const mt__evidence *e) {
    return e->low_samples < e->bound_samples && e->low_peak < e->bound_peak;
}

static size_t to_size(double value) {
    return value < 9e18 ? (size_t)value : SIZE_MAX;
}

size_t mt__evidence_bytes(const mt__evidence *e, size_t samples) {
    if (!e->bound_samples || samples == e->bound_samples) return e->bound_peak;
    if (samples > e->bound_samples)
        return to_size((double)e->bound_peak * (double)samples / (double)e->bound_samples + 1);
    if (!has_line(e)) return e->bound_peak;
    if (samples <= e->low_samples) return e->low_peak;
    double slope =
        (double)(e->bound_peak - e->low_peak) / (double)(e->bound_samples - e->low_samples);
    return e->low_peak + (size_t)ceil(slope * (double)(samples - e->low_samples));
}

size_t mt__evidence_fitting(const mt__evidence *e, size_t room) {
    if (!e->bound_samples) return SIZE_MAX;
    if (room >= e->bound_peak)
        return to_size((double)room / (double)e->bound_peak * (double)e->bound_samples);
    if (!has_line(e) || room < e->low_peak) return 0;
    double slope =
        (double)(e->bound_peak - e->low_peak) / (double)(e->bound_samples - e->low_samples);
    return e->low_samples + (size_t)((double)(room - e->low_peak) / slope);
}

/* ---- chunks that went through ------------------------------------------------------------------ */

/* Returns whether what was tried again has gone through. */
static int reassure(mt__failure *f, size_t samples) {
    if (!f->tried || samples < f->tried) return 0;
    f->tried = f->patience = 0;
    return 1;
}

/* In a shortage: more than before means that it eases, so the whole is tried soon. */
static void note_fits(mt__evidence *e, size_t samples) {
    mt__failure *f = &e->shortage;
    if (samples >= mt__max(f->chunk, f->tried) || samples <= e->fits) return;
    if (e->fits) f->patience = SHORT_PATIENCE;
    e->fits = samples;
}

void mt__evidence_ran(mt__evidence *e, size_t samples) {
    note_fits(e, samples);
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
    f->noted_at = step;
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

/* Between what goes through and what does not; and between that and the whole where the two are near. */
static size_t between(const mt__evidence *e, size_t whole) {
    size_t top = mt__min(e->ceiling, whole), near = e->fits + mt__max(2, e->fits / 2);
    return (size_t)sqrt((double)e->fits * (double)(top > near ? top : whole));
}

/*
 * What has gone through is sure to do so again: it needs no more than predicted, something else has the room. How
 * much is not known, so the first time sizes fall by thirds. When the whole was tried again in vain, one size
 * above what goes through is, in case the shortage has eased, and then that.
 */
static void fall_short(mt__evidence *e, size_t samples, size_t room, uint64_t step) {
    mt__failure *f = &e->shortage;
    int in_vain = f->tried > 0, has_fits = e->fits && e->fits < samples;
    if (!has_fits) e->fits = 0;
    e->next = !has_fits ? mt__smaller(samples) : in_vain ? between(e, samples) : e->fits;
    if (!in_vain) e->ceiling = samples;
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
    int is_noted = f->chunk && f->noted_at == step;
    return is_noted || (f->tried && samples >= f->tried);
}

int mt__failure_holds(const mt__failure *f, size_t room) {
    return f->chunk && room <= f->room;
}

static int rules_out(const mt__failure *f, size_t samples, size_t room) {
    return mt__failure_holds(f, room) && samples >= f->chunk;
}

int mt__evidence_has_failed(const mt__evidence *e, size_t samples, size_t room) {
    return rules_out(&e->beyond, samples, room) || rules_out(&e->shortage, samples, room);
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
