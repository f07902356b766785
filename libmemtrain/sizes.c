/*
 * sizes.c - measured times of chunks: which sizes are to run, and which is the fastest. Rules: docs/policy.md.
 */
#include "sizes.h"

#include "tuned.h"

#include <math.h>
#include <string.h>

/* Index of the first entry of at least so many samples. */
static size_t position(const mt__sizes *s, size_t samples) {
    size_t i = 0;
    while (i < s->count && s->entry[i].samples < samples) i++;
    return i;
}

static const mt__size *find(const mt__sizes *s, size_t samples) {
    size_t i = position(s, samples);
    return i < s->count && s->entry[i].samples == samples ? &s->entry[i] : NULL;
}

/* What is known of a size. A new one is put where it belongs in the order. */
static mt__size *entry_of(mt__sizes *s, size_t samples) {
    if (!find(s, samples) && s->count == MT__SIZES) {
        size_t oldest = 0;
        for (size_t i = 1; i < s->count; i++)
            if (s->entry[i].last_batch < s->entry[oldest].last_batch) oldest = i;
        memmove(s->entry + oldest, s->entry + oldest + 1, (--s->count - oldest) * sizeof *s->entry);
    }
    mt__size *e = s->entry + position(s, samples);
    if (find(s, samples)) return e;
    memmove(e + 1, e, (size_t)(s->entry + s->count++ - e) * sizeof *e);
    *e = (mt__size){.samples = samples};
    return e;
}

/*
 * Expected is the least of the last runs. There are so few that a size which ran often has no luckier one than a size which
 * ran three times; and they follow a machine that becomes slower for good.
 */
void mt__sizes_note(mt__sizes *sizes, size_t samples, double seconds) {
    mt__size *e = entry_of(sizes, samples);
    e->times[e->runs++ % MT__TIMES] = seconds;
    e->seconds = seconds;
    for (size_t i = 0; i < mt__min(e->runs, MT__TIMES); i++)
        e->seconds = fmin(e->seconds, e->times[i]);
    e->last_batch = sizes->batches;
}

double mt__sizes_measured(const mt__sizes *sizes, size_t samples) {
    const mt__size *e = find(sizes, samples);
    return e ? e->seconds : 0;
}

int mt__sizes_is_known(const mt__sizes *sizes, size_t samples) {
    const mt__size *e = find(sizes, samples);
    return e && e->runs >= KNOWN_RUNS;
}

static double rate(const mt__size *e) {
    return e->seconds / (double)e->samples;
}

/*
 * Of sizes that ran at least so often: measured, or on the line between the two nearest, or in proportion to the nearest. A
 * first run, which sets the size up, counts where none ran again. 0: nothing was measured.
 */
static double chunk_seconds(const mt__sizes *s, size_t samples, size_t runs) {
    const mt__size *low = NULL, *high = NULL; /* neighbours */
    const mt__size *end = s->entry + s->count;
    for (const mt__size *e = s->entry; e < end && !(high && high->samples >= samples); e++) {
        if (e->runs < runs) continue;
        low = high;
        high = e;
    }
    if (!high) return runs > 1 ? chunk_seconds(s, samples, 1) : 0;
    if (!low || high->samples <= samples)
        return high->seconds * (double)samples / (double)high->samples;
    double share = (double)(samples - low->samples) / (double)(high->samples - low->samples);
    return low->seconds + share * (high->seconds - low->seconds);
}

/* A first run, which sets the size up, tells the most that it takes. */
static double expected(const mt__sizes *s, size_t samples) {
    double told = chunk_seconds(s, samples, 2), own = mt__sizes_measured(s, samples);
    return own > 0 ? fmin(own, told) : told;
}

double mt__sizes_batch_seconds(const mt__sizes *sizes, size_t samples, size_t chunks) {
    size_t small = samples / chunks, larger = samples % chunks;
    double seconds = (double)(chunks - larger) * expected(sizes, small);
    return larger ? seconds + (double)larger * expected(sizes, small + 1) : seconds;
}

/*
 * Whether a size has to run to be known: its first run sets it up, and others may meet busy moments.
 * - It is of no use above a size that was much slower than a smaller one: one that is known, or has run in this batch.
 * - Nor is one that is hardly another than a known one: batches of many sizes would have ever new ones.
 * - Where it is not far too slow it runs again after a while, since all its runs may have met busy moments.
 */
static int is_due(const mt__sizes *s, size_t samples) {
    const mt__size *own = NULL;
    double best = INFINITY; /* seconds a sample: of smaller sizes, which come first */
    int is_near = 0;
    for (const mt__size *e = s->entry; e < s->entry + s->count; e++) {
        size_t apart = mt__max(e->samples, samples) - mt__min(e->samples, samples);
        int is_known = e->runs >= KNOWN_RUNS, counts = is_known || e->last_batch == s->batches;
        if (e->samples < samples && counts && rate(e) > CLIFF * best) return 0;
        best = fmin(best, rate(e));
        is_near |= is_known && apart <= samples / NEARLY;
        if (!apart) own = e;
    }
    if (!own) return !is_near;
    int is_old = s->batches > RERUN_AFTER * own->last_batch;
    return own->runs < KNOWN_RUNS || (is_old && rate(own) < CLIFF * best);
}

/* The largest candidate below so many samples: top, or a power of two; 0: none is left. */
static size_t candidate_below(const mt__bounds *b, size_t samples) {
    size_t power = 1;
    if (samples > b->top) return b->top;
    while (2 * power < samples) power *= 2;
    return power >= b->least && power < samples ? power : 0;
}

/* The size that runs where a candidate is to: of even chunks, as many as are legal. */
static size_t run_size(const mt__bounds *b, size_t candidate) {
    if (!b->even) return candidate;
    return mt__ceil_div(b->even, mt__min(mt__ceil_div(b->even, candidate), b->even / b->legal));
}

size_t mt__sizes_next(const mt__sizes *sizes, const mt__bounds *bounds, size_t rest, size_t last) {
    size_t next = 0;
    double best = INFINITY; /* seconds a sample of the candidates so far */
    int is_best = 0;        /* the last one is known and has nearly these */
    /* Downwards, so that the smallest wins: sizes grow within a batch, and kernels of larger ones are met step by step. */
    for (size_t c = mt__max(bounds->top, bounds->alone); c > last; c = candidate_below(bounds, c)) {
        /* What is left has to be legal chunks that fit: 78 of at least 42 are one. */
        size_t left = mt__left(rest, c), size = run_size(bounds, c);
        /* Below a share of the largest only while the last one is nearly the fastest, and no larger one takes its turn. */
        if (c < bounds->top / SMALLEST_SHARE && (!is_best || next)) break;
        const mt__size *own = find(sizes, size);
        int due = is_due(sizes, size);
        is_best = !due && own && rate(own) <= best + best / NEARLY;
        if (own) best = fmin(best, rate(own));
        int leaves_legal =
            c == rest || (left >= bounds->left && mt__can_be_cut(left, bounds->legal, bounds->top));
        /* Where it cannot be now, no larger one takes its turn. */
        if (due) next = leaves_legal ? size : 0;
    }
    return next;
}

size_t mt__sizes_fastest(const mt__sizes *sizes, const mt__bounds *bounds, size_t samples) {
    size_t best = mt__ceil_div(samples, bounds->top), fewest = best;
    size_t most = samples / mt__min(samples, bounds->least);
    double least = mt__sizes_batch_seconds(sizes, samples, best);
    for (size_t i = sizes->count; i-- > 0;) { /* larger ones first */
        const mt__size *e = &sizes->entry[i];
        size_t chunks = mt__min(mt__ceil_div(samples, e->samples), most);
        if (chunks < fewest && e->samples != bounds->alone) continue;
        double seconds = mt__sizes_batch_seconds(sizes, samples, chunks);
        if (seconds >= least) continue;
        least = seconds;
        best = chunks;
    }
    return best;
}

size_t mt__sizes_that_ran(const mt__sizes *sizes, const mt__bounds *bounds, size_t samples) {
    const mt__size *best = NULL;
    for (const mt__size *e = sizes->entry; e < sizes->entry + sizes->count; e++) {
        size_t left = samples % e->samples;
        if (e->samples < bounds->least || e->samples > mt__min(bounds->top, samples)) continue;
        if ((!left || left >= bounds->left) && (!best || rate(e) <= rate(best))) best = e;
    }
    return best ? best->samples : 0;
}
