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

/* A place for a new size, where it belongs in the order. */
static mt__size *insert(mt__sizes *s, size_t samples) {
    if (s->count == MT__SIZES) {
        size_t oldest = 0;
        for (size_t i = 1; i < s->count; i++)
            if (s->entry[i].last_batch < s->entry[oldest].last_batch) oldest = i;
        memmove(s->entry + oldest, s->entry + oldest + 1, (--s->count - oldest) * sizeof *s->entry);
    }
    size_t i = position(s, samples);
    memmove(s->entry + i + 1, s->entry + i, (s->count++ - i) * sizeof *s->entry);
    s->entry[i] = (mt__size){.samples = samples};
    return &s->entry[i];
}

/*
 * Expected is the least of the last runs. There are so few that a size which ran often has no luckier one than a size which
 * ran three times; and they follow a machine that becomes slower for good.
 */
void mt__sizes_note(mt__sizes *sizes, size_t samples, double seconds) {
    if (!(seconds > 0) || !isfinite(seconds) || !samples) return;
    size_t i = position(sizes, samples);
    int is_known = i < sizes->count && sizes->entry[i].samples == samples;
    mt__size *e = is_known ? &sizes->entry[i] : insert(sizes, samples);
    e->times[e->runs++ % MT__TIMES] = seconds;
    e->seconds = seconds;
    for (i = 0; i < mt__min(e->runs, MT__TIMES); i++) e->seconds = fmin(e->seconds, e->times[i]);
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

/* Measured, or on the line between the two nearest sizes, or in proportion to the nearest. */
static double chunk_seconds(const mt__sizes *s, size_t samples) {
    size_t i = position(s, samples);
    const mt__size *e = s->entry;
    if (i < s->count && e[i].samples == samples) return e[i].seconds;
    e += i ? i - 1 : 0;
    if (i == 0 || i == s->count) return e->seconds * (double)samples / (double)e->samples;
    double share = ((double)samples - (double)e->samples) / (double)(e[1].samples - e->samples);
    return e->seconds + share * (e[1].seconds - e->seconds);
}

double mt__sizes_batch_seconds(const mt__sizes *sizes, size_t samples, size_t chunks) {
    size_t small = samples / chunks, larger = samples % chunks;
    if (!sizes->count) return 0;
    double seconds = (double)(chunks - larger) * chunk_seconds(sizes, small);
    return larger ? seconds + (double)larger * chunk_seconds(sizes, small + 1) : seconds;
}

/*
 * Whether a size has to run to be known: its first run sets it up, and others may meet busy moments.
 * - It is of no use above a size that was much slower than a smaller one: one that is known, or has run in this batch.
 * - Nor is one that is hardly another than a known one: batches of many sizes would have ever new ones.
 * - Where it is not far too slow it runs again after a while, since all its runs may have met busy moments.
 */
static int is_due(const mt__sizes *s, size_t samples) {
    const mt__size *own = NULL;
    double best =
        INFINITY; /* seconds a sample: of smaller sizes, which come first; at last of all */
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
    if (samples > b->alone && b->alone > b->top) return b->alone;
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
    /* Downwards, so that the smallest wins: sizes grow within a batch, and kernels of larger ones are met step by step. */
    for (size_t c = SIZE_MAX; (c = candidate_below(bounds, c)) > last;) {
        /* What is left has to be legal chunks that fit: 78 of at least 42 are one. */
        size_t left = mt__left(rest, c), size = run_size(bounds, c);
        int leaves_legal =
            c == rest || (left >= bounds->left && mt__can_be_cut(left, bounds->legal, bounds->top));
        /* Where it cannot be now, no larger one takes its turn. */
        if (is_due(sizes, size)) next = leaves_legal ? size : 0;
    }
    return next;
}

size_t mt__sizes_fastest(const mt__sizes *sizes, const mt__bounds *bounds, size_t samples) {
    size_t best = mt__ceil_div(samples, bounds->top), fewest = best;
    size_t most = samples / mt__min(samples, bounds->least);
    if (!sizes->count) return 0;
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
