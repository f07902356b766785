/*
 * choose.c - the number of chunks from measured times.
 *
 * time(m) is not monotone per sample (a chunk can be too large for a cache, or fall off a kernel's
 * edge), so the largest chunk that fits is only one candidate. Every chunk of training is a
 * measurement; sizes in between are interpolated. Expectations are a little too good where little
 * is known, so that such a size is tried once, on a real batch, and then known.
 */
#include "choose.h"

#include <math.h>
#include <string.h>

#define SPAN 16       /* runs of a size; older ones are forgotten with time */
#define WORTH_IT 0.98 /* a gain below 2 % is noise */
#define FIRST_RUN 0.9 /* the first run of a size pays for its set-up: expect less next time, ... */
#define MOST_SET_UP 0.4 /* ... as much less as other sizes have shown, up to this */
#define EARLY 0.9  /* what ran in the first batch alone, while heap and caches fill: expect less */
#define NEW 1.03   /* a size between two that are known well costs its set-up */
#define HOPE 0.9   /* what a first run says nothing of may be so much faster than the fastest */
#define CLIFF 1.5  /* so much slower a sample is no slope, and worth what new sizes cost */
#define SPENT 0.02 /* of the time so far may go into a second run, however slow the first was */
#define BEYOND 0.9 /* time grows as samples^0.9 where nothing was measured: larger is better */

/* Index of the first entry of at least so many samples. */
static size_t position(const mt__timings *t, size_t samples) {
    size_t i = 0;
    while (i < t->count && t->entry[i].samples < samples) i++;
    return i;
}

/* Of a second run, compared with the first; less than noise is none. */
static void note_set_up(mt__timings *t, double first, double second) {
    double share = second / first, more = first - second;
    t->set_up = fmax(MOST_SET_UP, t->set_up > 0 ? fmin(t->set_up, share) : share);
    if (share < WORTH_IT)
        t->set_up_seconds = t->set_up_seconds > 0 ? fmin(t->set_up_seconds, more) : more;
}

static void note_rate(mt__timings *t) {
    t->rate = 0;
    for (const mt__timing *e = t->entry; e < t->entry + t->count; e++) {
        double rate = e->seconds / (double)e->samples;
        if (e->runs < 2 || (t->rate > 0 && rate >= t->rate)) continue;
        t->rate = rate;
        t->fastest = e->samples;
    }
}

/* At the end of a span only its own runs count. */
static void note_again(mt__timing *e, double seconds) {
    e->seconds = fmin(e->seconds, seconds);
    e->recent = e->recent > 0 ? fmin(e->recent, seconds) : seconds;
    e->all++;
    if (++e->runs < 2 + SPAN) return;
    e->seconds = e->recent;
    e->recent = 0;
    e->runs = 2;
}

/* The size that ran least; not the largest, from which sizes grow. */
static void drop_one(mt__timings *t) {
    mt__timing *least = t->entry, *end = t->entry + t->count;
    for (mt__timing *e = t->entry; e < end - 1; e++)
        if (e->runs < least->runs) least = e;
    memmove(least, least + 1, (size_t)(end - least - 1) * sizeof *least);
    t->count--;
}

void mt__timings_note(mt__timings *timings, size_t samples, double seconds) {
    mt__timing *e = timings->entry;
    if (!(seconds > 0) || samples == 0) return;
    size_t i = position(timings, samples);
    if (i < timings->count && e[i].samples == samples) {
        if (e[i].runs == 1) note_set_up(timings, e[i].seconds, seconds);
        note_again(&e[i], seconds);
        e[i].early = e[i].early && !timings->batches;
        note_rate(timings);
        return;
    }
    if (timings->count == MT__TIMINGS) {
        drop_one(timings);
        i = position(timings, samples);
    }
    memmove(e + i + 1, e + i, (timings->count - i) * sizeof *e);
    e[i] = (mt__timing){samples, 1, 1, !timings->batches, seconds, seconds, 0, timings->batches};
    timings->count++;
}

void mt__timings_next_batch(mt__timings *timings) {
    timings->batches++;
}

double mt__measured_seconds(const mt__timings *timings, size_t samples) {
    size_t i = position(timings, samples);
    int found = i < timings->count && timings->entry[i].samples == samples;
    return found ? timings->entry[i].seconds : 0;
}

/*
 * One run of a size above the fastest, slower than that but not by a cliff: whatever else the machine had to do may
 * have been the reason, so it is worth another run.
 */
static int is_in_doubt(const mt__timings *all, const mt__timing *t) {
    double fast = all->rate * (double)t->samples;
    return all->batches && t->runs == 1 && t->samples > all->fastest && t->seconds <= CLIFF * fast;
}

static double expected(const mt__timings *all, const mt__timing *t) {
    double share = all->set_up > 0 ? fmin(all->set_up, FIRST_RUN) : FIRST_RUN;
    if (is_in_doubt(all, t))
        share = fmin(share, HOPE * all->rate * (double)t->samples / t->seconds);
    if (t->runs == 1) return share * t->seconds;
    return t->early && all->batches ? EARLY * t->seconds : t->seconds;
}

/*
 * A first run that took little more than its set-up, as those of few samples do, says nothing of the
 * second.
 */
static double hoped(const mt__timings *all, const mt__timing *t) {
    double second = t->seconds - all->set_up_seconds;
    if (t->runs > 1 || !(all->set_up_seconds > 0)) return expected(all, t);
    return fmin(expected(all, t), fmax(second, HOPE * all->rate * (double)t->samples));
}

static double power_law(const mt__timings *all, const mt__timing *t, size_t samples) {
    return expected(all, t) * pow((double)samples / (double)t->samples, BEYOND);
}

/* On a line from one measured size to the next, whose seconds are these. */
static double between(const mt__timing *lower, double from, double to, size_t samples) {
    double share = (double)(samples - lower->samples) / (double)(lower[1].samples - lower->samples);
    return from + share * (to - from);
}

double mt__chunk_seconds(const mt__timings *timings, size_t samples) {
    const mt__timing *e = timings->entry;
    size_t i = position(timings, samples);
    if (timings->count == 0) return 0;
    if (i == timings->count) return power_law(timings, &e[i - 1], samples);
    if (e[i].samples == samples) return hoped(timings, &e[i]);
    if (i == 0) return power_law(timings, &e[0], samples);
    const mt__timing *low = &e[i - 1];
    double from = expected(timings, low), to = expected(timings, &e[i]);
    double line = between(low, from, to, samples);
    if (timings->batches && low->runs > 1 && e[i].runs > 1) line *= NEW;
    /*
     * An upper end that is much slower a sample lies beyond a cliff: a line to it would hide what is before. In
     * the first batch what is left repeats the lower end, of which one run says little.
     */
    if (timings->batches && to / (double)e[i].samples > CLIFF * from / (double)low->samples)
        line = fmin(line, power_law(timings, low, samples));
    return low->runs > 1 ? line : fmin(line, between(low, hoped(timings, low), to, samples));
}

double mt__batch_seconds(const mt__timings *timings, size_t samples, size_t chunks) {
    size_t small = samples / chunks, larger = samples % chunks;
    double seconds = (double)(chunks - larger) * mt__chunk_seconds(timings, small);
    return larger ? seconds + (double)larger * mt__chunk_seconds(timings, small + 1) : seconds;
}

size_t mt__largest_measured(const mt__timings *timings) {
    return timings->count ? timings->entry[timings->count - 1].samples : 0;
}

double mt__least_seconds(const mt__timings *timings, size_t samples) {
    if (timings->count < 2) return 0;
    const mt__timing *low = timings->entry + timings->count - 2, *high = low + 1;
    return fmax(high->seconds, between(low, low->seconds, high->seconds, samples));
}

/* Seconds a sample of a size over those of another; first runs are compared with first runs. */
static double times_as_slow(const mt__timing *t, const mt__timing *other) {
    int twice = t->runs > 1 && other->runs > 1;
    double seconds = twice ? t->seconds : t->first;
    double others = twice ? other->seconds : other->first;
    return seconds / (double)t->samples / (others / (double)other->samples);
}

static int is_slower(const mt__timing *t, const mt__timing *other) {
    return WORTH_IT * times_as_slow(t, other) > 1;
}

/*
 * Of twice the samples a gain is asked for, once both are known: what a chunk takes whatever its size halves with each
 * doubling, so the next one would gain half as much, and memory that was never touched costs.
 */
static int gains(const mt__timings *all, const mt__timing *t, const mt__timing *other) {
    if (!all->batches || t->runs == 1 || other->runs == 1 || t->samples < 2 * other->samples)
        return !is_slower(t, other);
    return times_as_slow(t, other) < WORTH_IT * WORTH_IT;
}

/* Whether a size was no slower than all smaller ones, or has since been as fast as one that ran once. */
static int growth_pays(const mt__timings *timings, const mt__timing *t) {
    double seconds = t->seconds / (double)t->samples;
    for (const mt__timing *e = timings->entry; e < t; e++) {
        int catches_up = timings->batches && e->runs == 1 && t->runs > 1;
        if (catches_up && WORTH_IT * seconds <= e->first / (double)e->samples) continue;
        if (!gains(timings, t, e)) return 0;
    }
    return 1;
}

/*
 * Sizes in doubt may run again, but only others tell whether still larger ones are worth it; and a size that is no
 * whole step above the one before, such as what was left of a batch, does not end what that one promises.
 */
size_t mt__largest_worth(const mt__timings *timings) {
    size_t largest = mt__largest_measured(timings);
    if (largest == 0) return SIZE_MAX;
    const mt__timing *sure = timings->entry + timings->count - 1;
    while (sure > timings->entry && is_in_doubt(timings, sure)) sure--;
    /* The smallest of all pays, since there is nothing to compare it with. */
    while (!growth_pays(timings, sure)) sure--;
    return mt__max(largest, 2 * sure->samples);
}

size_t mt__smallest_worth(const mt__timings *timings, size_t floor) {
    const mt__timing *end = timings->entry + timings->count;
    const mt__timing *from = timings->entry + position(timings, floor);
    if (from == end && timings->count) from--; /* nothing so large has run: the largest that has */
    for (const mt__timing *e = timings->entry; e < from; e++) {
        const mt__timing *other = from;
        while (other < end && is_slower(other, e)) other++;
        if (other == end) return e->samples;
    }
    return floor;
}

size_t mt__cut_as_measured(const mt__timings *timings, size_t samples, size_t least, size_t most,
                           double *seconds) {
    size_t best = 0;
    double fastest = INFINITY;
    for (const mt__timing *e = timings->entry; e < timings->entry + timings->count; e++) {
        if (e->samples < least || e->samples > most || samples % e->samples) continue;
        double each = (double)(samples / e->samples) * mt__chunk_seconds(timings, e->samples);
        if (each >= fastest) continue;
        best = samples / e->samples;
        fastest = each;
    }
    if (seconds) *seconds = fastest;
    return best;
}

/*
 * Whether a size is to run again. Its second run is its first without its set-up; of sizes below the chosen one only
 * half the largest needs it, which tells whether growth pays, where there is room for that. One above may have met busy
 * moments only, so it has a third run 4 batches after its first, a fourth after 16, and so on.
 */
static int is_due(const mt__timings *all, const mt__timing *t, size_t chosen, size_t most) {
    size_t largest = mt__largest_measured(all);
    unsigned runs = 2;
    for (unsigned long age = all->batches - t->batch; age >= 4; age /= 4) runs++;
    if (t->runs > 1) return t->samples > chosen && t->all < runs;
    return t->samples >= chosen || (largest < most && 2 * t->samples >= largest);
}

/*
 * Whether a batch of so many samples costs little more with it, set-up apart, where others take so many seconds a
 * sample: what the size itself does, and what is left of the batch beside it.
 */
static int is_cheap(const mt__timings *all, const mt__timing *t, double rate, size_t batch,
                    double left) {
    double most = rate * (double)batch, others = rate * (double)t->samples;
    double more = t->seconds - others;
    double spent = fmax(0.5, SPENT * (double)all->batches); /* batches, on a second run */
    if (t->runs == 1) return more - all->set_up_seconds + left <= spent * most;
    return more <= (CLIFF - 1) * others && more + left <= most / 8;
}

size_t mt__run_again(const mt__timings *timings, size_t batch, size_t rest, size_t chunks,
                     size_t least, size_t most) {
    if (!timings->batches || !(timings->rate > 0)) return 0;
    double rate = mt__batch_seconds(timings, rest, chunks) / (double)rest;
    size_t chosen = mt__ceil_div(rest, chunks);
    for (const mt__timing *e = timings->entry + timings->count; e-- > timings->entry;) {
        if (e->samples > most || e->samples < least || !is_due(timings, e, chosen, most)) continue;
        size_t beside = rest - e->samples;
        double left = 0;
        if (beside) (void)mt__cut_as_measured(timings, beside, least, most, &left);
        if (is_cheap(timings, e, rate, batch, left - rate * (double)beside)) return e->samples;
    }
    return 0;
}

size_t mt__next_candidate(size_t chunks) {
    return mt__max(chunks + 1, chunks + chunks / 2);
}

/* Takes that number of chunks if it is expected to be faster than the best so far. */
static void try_chunks(const mt__timings *timings, size_t samples, size_t chunks, size_t *best,
                       double *least) {
    double seconds = mt__batch_seconds(timings, samples, chunks);
    if (seconds >= *least) return;
    *best = chunks;
    *least = seconds;
}

size_t mt__choose_chunks(const mt__timings *timings, size_t samples, size_t fewest, size_t most,
                         size_t current) {
    size_t best = fewest;
    double least = mt__batch_seconds(timings, samples, fewest);
    if (timings->count == 0) return fewest;
    for (size_t k = mt__next_candidate(fewest); k < most; k = mt__next_candidate(k))
        try_chunks(timings, samples, k, &best, &least);
    if (most > fewest) try_chunks(timings, samples, most, &best, &least);
    /* Sizes that were measured are no guess, and no new shape. */
    for (size_t i = 0; i < timings->count; i++) {
        size_t k = mt__ceil_div(samples, timings->entry[i].samples);
        if (k > fewest && k <= most) try_chunks(timings, samples, k, &best, &least);
    }
    if (current < fewest || current > most) return best;
    return least < WORTH_IT * mt__batch_seconds(timings, samples, current) ? best : current;
}
