/*
 * curve.c - predicted peaks of one kind of chunk, and what corrects them. Rules: docs/policy.md.
 */
#include "curve.h"

#include <math.h>

enum {
    TOLERANCE = 1024,
    FEW = 4,        /* samples: a bound of fewer is mostly the fixed part of a chunk */
    MOST_SPARE = 8, /* of a peak, this part: two recordings that foretell more above it disagree */
    UNMET = 32      /* of what grows, this part: what kernels that have not run yet may need more */
};

int mt__same_kind(const mt__kind *a, const mt__kind *b) {
    return a->mode == b->mode && a->shape == b->shape && a->rungs == b->rungs;
}

mt__curve *mt__curve_new(const mt__kind *kind, size_t change) {
    mt__curve *c = mt__alloc(1, sizeof *c);
    if (!c) return NULL;
    c->kind = *kind;
    c->change = change;
    if (mt_recording_new(&c->first) == MT_OK && mt_recording_new(&c->recording) == MT_OK) return c;
    mt__curve_free(c);
    return NULL;
}

void mt__curve_free(mt__curve *curve) {
    if (!curve) return;
    mt_recording_free(curve->first);
    mt_recording_free(curve->recording);
    for (size_t i = 0; i < curve->ranges; i++)
        for (int keep = 0; keep < 2; keep++) mt_memory_model_free(curve->range[i].model[keep]);
    mt__free(curve);
}

/* ---- prediction -------------------------------------------------------------------------------- */

/* Index of the range of so many samples; there is one. */
static size_t range_of(const mt__curve *c, size_t samples) {
    size_t i = c->ranges - 1;
    while (i > 0 && samples < c->range[i].from) i--;
    return i;
}

/* The range whose model a range uses: its own, but while there is only one recording of it. */
static size_t modelled(const mt__curve *c, size_t range) {
    return range - (range > 0 && !c->range[range].model[0]);
}

int mt__curve_is_recorded(const mt__curve *c, int keep) {
    for (size_t i = 0; i < c->ranges; i++)
        if (!c->range[modelled(c, i)].model[keep]) return 0;
    return c->ranges > 0;
}

static size_t scaled(double scale, size_t bytes) {
    double product = scale * (double)bytes;
    if (scale == 1) return bytes;
    return product > 9e18 ? SIZE_MAX : (size_t)product + 1;
}

/* What the recordings say, which there are: of a size that is the only one of its range its own. */
static size_t recorded_peak(const mt__curve *c, int keep, size_t samples) {
    size_t range = range_of(c, samples), own = c->range[range].own[keep];
    const mt_memory_model *model = c->range[modelled(c, range)].model[keep];
    size_t bytes = mt__add(mt_memory_model_peak(model, samples), mt_memory_model_margin(model));
    if (own && samples == c->range[range].from) return own;
    return mt__max(own, scaled(c->range[range].scale, bytes));
}

/* Whether so many samples take kernels that nothing was recorded of; something was of others. */
static int is_unmet(const mt__curve *c, size_t samples) {
    return c->change && samples >= c->change && c->range[c->ranges - 1].top < c->change;
}

size_t mt__curve_before(const mt__curve *c, size_t samples) {
    if (!c->ranges) return 0;
    size_t twice = c->has_first ? 2 * c->first->samples : SIZE_MAX;
    if (is_unmet(c, samples)) return mt__min(c->change, twice);
    return c->ranges > 1 && samples > twice ? twice : 0;
}

/* Whether one recording of these kernels is all there is, and of a smaller chunk. */
static int is_beyond_first(const mt__curve *c, size_t samples) {
    return c->has_first && samples > c->first->samples;
}

int mt__curve_is_bound(const mt__curve *c, size_t samples) {
    return c->ranges == 1 && is_beyond_first(c, samples);
}

/* Whether these may be kernels of one sample alone. */
static int is_single(const mt__curve *c, size_t samples) {
    return samples == 1 && c->ranges && c->range[0].from > 1;
}

int mt__curve_is_told(const mt__curve *c, int keep, size_t samples) {
    if (is_single(c, samples)) return c->single[keep] > 0;
    if (!mt__curve_is_recorded(c, keep)) return samples == c->evidence[keep].bound_samples;
    return !mt__curve_before(c, samples) && !is_beyond_first(c, samples);
}

/* With what is added, to what grows with the chunk, where kernels are not known yet. */
static size_t expected_peak(const mt__curve *c, int keep, size_t samples) {
    size_t bytes = recorded_peak(c, keep, samples);
    if (!is_unmet(c, samples)) return bytes;
    return mt__add(bytes, (bytes - mt__min(bytes, recorded_peak(c, keep, 1))) / UNMET);
}

/* The largest bytes that scaled() leaves within room. */
static size_t below_quotient(size_t room, double scale) {
    if (room > INT64_MAX / 4) return room; /* no limit, where values would saturate */
    size_t bytes = (size_t)((double)room / scale);
    while (bytes > 0 && scaled(scale, bytes) > room) bytes--;
    return bytes;
}

/* The largest size that fits into room as a range says; one below it where none of its own does. */
static size_t largest_of_range(const mt__curve *c, size_t range, int keep, size_t room) {
    const mt__range *r = &c->range[range];
    size_t left = r->scale == 1 ? room : below_quotient(room, r->scale);
    if (r->own[keep] > room) return r->from - 1;
    size_t m = mt_memory_model_largest(c->range[modelled(c, range)].model[keep], left);
    return r->own[keep] ? mt__max(m, r->from) : m;
}

/* The largest size of a range, or of those below, that fits into room. */
static size_t largest_recorded(const mt__curve *c, int keep, size_t room) {
    size_t below = SIZE_MAX; /* where the next range begins */
    for (size_t i = c->ranges - 1;; below = c->range[i--].from) {
        size_t m = mt__min(largest_of_range(c, i, keep, room), below - (below < SIZE_MAX));
        if (i == 0 || m >= c->range[i].from) return m;
    }
}

/* Before kernels that have not run yet one chunk of those is to, and fit with what it may need more. */
static size_t recorded_largest(const mt__curve *c, int keep, size_t room) {
    size_t m = largest_recorded(c, keep, room);
    return is_unmet(c, m) && expected_peak(c, keep, c->change) > room ? c->change - 1 : m;
}

size_t mt__curve_predict(const mt__curve *c, int keep, size_t samples) {
    const mt__evidence *e = &c->evidence[keep];
    if (is_single(c, samples) && c->single[keep]) return c->single[keep];
    if (mt__curve_is_recorded(c, keep))
        return mt__add(expected_peak(c, keep, samples), mt__evidence_correction(e, samples));
    size_t bytes = mt__evidence_bytes(e, samples);
    return bytes ? mt__add(bytes, mt__evidence_correction(e, samples)) : 0;
}

/*
 * The largest size that may be tried after one that never went through: where the prediction was compared
 * with a budget it has been corrected and says more, else there is nothing to go by.
 */
static size_t next_below(const mt__curve *c, int keep, const mt__failure *f) {
    int is_known = mt__curve_predict(c, keep, 1) > 0 && f->room < SIZE_MAX;
    return is_known ? f->chunk - 1 : mt__smaller(f->chunk);
}

/* No more samples than what is remembered to have failed in as much room allows. */
static size_t below_failures(const mt__curve *c, int keep, size_t room, size_t samples) {
    const mt__evidence *e = &c->evidence[keep];
    if (mt__failure_holds(&e->beyond, room))
        samples = mt__min(samples, next_below(c, keep, &e->beyond));
    return mt__failure_holds(&e->shortage, room) ? mt__min(samples, e->next) : samples;
}

static size_t largest_beside(const mt__curve *c, int keep, size_t room, size_t taken) {
    return room > taken ? recorded_largest(c, keep, room - taken) : 0;
}

/* As recordings say, with the two corrections there are: that up to half the way, and that beyond. */
static size_t corrected_largest(const mt__curve *c, int keep, size_t room) {
    const mt__evidence *e = &c->evidence[keep];
    size_t m = largest_beside(c, keep, room, mt__evidence_correction(e, SIZE_MAX));
    if (e->beyond.chunk <= e->largest_ran) return m;
    return mt__max(m,
                   mt__min(mt__evidence_half_way(e), largest_beside(c, keep, room, e->residual)));
}

size_t mt__curve_largest(const mt__curve *c, int keep, size_t room) {
    const mt__evidence *e = &c->evidence[keep];
    size_t left = room - mt__min(room, mt__evidence_correction(e, SIZE_MAX));
    int is_recorded = mt__curve_is_recorded(c, keep);
    size_t m = is_recorded ? corrected_largest(c, keep, room) : mt__evidence_fitting(e, left);
    m = below_failures(c, keep, room, m);
    int is_proven = room >= e->proven_room && !mt__curve_has_failed(c, keep, e->largest_ran, room);
    return is_proven ? mt__max(m, e->largest_ran) : m;
}

/* Of what so few samples need most may be what any number does. */
size_t mt__curve_beyond_bound(const mt__curve *c, size_t room) {
    int is_recorded = mt__curve_is_recorded(c, 0), is_alone = c->ranges == 1 && c->has_first;
    size_t samples = is_recorded ? c->first->samples : c->evidence[0].bound_samples;
    if (samples >= FEW || (is_recorded && !is_alone)) return 0;
    return below_failures(c, 0, room, 2 * samples);
}

/* Not of sizes below those recorded, nor where recordings did not agree. */
int mt__curve_rules_out(const mt__curve *c, size_t samples, size_t room) {
    if (!c->ranges || is_unmet(c, samples) || mt__curve_has_failures(c)) return 0;
    const mt__range *range = &c->range[range_of(c, samples)];
    const mt_memory_model *model = range->model[0];
    if (!model || samples < range->from || mt_memory_model_margin(model)) return 0;
    if (range->from == range->top) return 0; /* one recording speaks for all larger sizes */
    return mt_memory_model_peak(model, samples) > room;
}

/* ---- recordings -------------------------------------------------------------------------------- */

int mt__curve_covers(const mt__curve *c, size_t samples) {
    if (!c->ranges) return 0;
    if (c->has_first && c->first->samples == samples) return 1;
    if (c->has_first && c->ranges == 1) return 0;
    return samples <= c->range[range_of(c, samples)].top;
}

mt_recording *mt__curve_record(mt__curve *c, size_t samples) {
    c->filling = !mt__curve_covers(c, samples);
    if (c->filling) mt__recording_restart(c->recording, samples);
    return c->filling ? c->recording : NULL;
}

static void free_models(mt_memory_model *model[2]) {
    for (int keep = 0; keep < 2; keep++) {
        mt_memory_model_free(model[keep]);
        model[keep] = NULL;
    }
}

/* Both models. Where no gradient was seen to be handed over, that of chunks apart is not known. */
static mt_status make_models(const mt_recording *small, const mt_recording *large,
                             mt_memory_model *model[2]) {
    mt_status status = mt__memory_model_new(small, large, 0, &model[0]);
    if (status == MT_OK && small->handed_over)
        status = mt__memory_model_new(small, large, 1, &model[1]);
    if (status != MT_OK) {
        mt_log(MT_LOG_WARNING, "a recording is dropped: %s", mt_last_error());
        free_models(model);
    }
    return status;
}

/* Keeps what was recorded until there is another size. */
static void keep_recording(mt__curve *c) {
    mt_recording *other = c->first;
    c->first = c->recording;
    c->recording = other;
    c->has_first = 1;
}

static void start_over(mt__curve *c) {
    c->evidence[0].residual = c->evidence[1].residual = 0;
}

/* The first recording of all: every size is proportional to it. */
static void take_first(mt__curve *c) {
    mt_memory_model *model[2] = {NULL, NULL};
    size_t samples = c->recording->samples;
    if (make_models(c->recording, NULL, model) != MT_OK) return;
    c->range[0] = (mt__range){samples, samples, {model[0], model[1]}, 1, {0, 0}};
    c->ranges = 1;
    keep_recording(c);
    start_over(c);
}

/* Whether the model of the range that a recording falls in has predicted its peak. */
static int bears_out(const mt__curve *c, const mt_recording *recording) {
    size_t peak = mt__recording_peak(recording, 0);
    size_t predicted = recorded_peak(c, 0, recording->samples);
    size_t error = peak > predicted ? peak - predicted : predicted - peak;
    return error <= predicted / TOLERANCE;
}

/* Kernels have changed above the ranges that there are: this recording is the only one of a range for now. */
static void begin_range(mt__curve *c, const mt_recording *recording) {
    size_t samples = recording->samples;
    double peak = (double)mt__recording_peak(recording, 0);
    if (c->ranges == MT__RANGES) { /* it is the last one that speaks for them, well or badly */
        c->range[c->ranges - 1].top = mt__max(c->range[c->ranges - 1].top, samples);
        return;
    }
    double scale = peak / (double)mt__max(1, recorded_peak(c, 0, samples));
    mt__range *range = &c->range[c->ranges++];
    *range = (mt__range){samples, samples, {NULL, NULL}, scale, {(size_t)peak, 0}};
    if (recording->handed_over) range->own[1] = mt__recording_peak(recording, 1);
    if (recording == c->recording) keep_recording(c);
    start_over(c);
}

/* Whether two recordings foretell of the larger one much more than it has: what has no partner counts in full. */
static int disagree(const mt_memory_model *both, const mt_recording *large) {
    size_t peak = mt__recording_peak(large, 0);
    size_t told = mt__add(mt_memory_model_peak(both, large->samples), mt_memory_model_margin(both));
    return told > mt__add(peak, peak / MOST_SPARE);
}

/* Kernels have changed between two recordings: one range ends at the smaller, the next begins at the larger. */
static void split(mt__curve *c, const mt_recording *small, const mt_recording *large) {
    mt_memory_model *model[2] = {NULL, NULL};
    mt__range *range = &c->range[c->ranges - 1];
    if (make_models(small, NULL, model) != MT_OK) return;
    free_models(range->model);
    *range = (mt__range){small->samples, small->samples, {model[0], model[1]}, 1, {0, 0}};
    begin_range(c, large);
}

/* The newest range has come to its second recording. */
static void take_second(mt__curve *c) {
    mt_memory_model *model[2] = {NULL, NULL};
    mt__range *range = &c->range[c->ranges - 1];
    int is_larger = c->recording->samples > c->first->samples;
    const mt_recording *small = is_larger ? c->first : c->recording;
    const mt_recording *large = is_larger ? c->recording : c->first;
    if (make_models(small, large, model) != MT_OK) return;
    /* On both sides of a change that was told of a line through the two would be of neither. */
    int is_changed = small->samples < c->change && large->samples >= c->change;
    if (c->ranges < MT__RANGES && (is_changed || disagree(model[0], large))) {
        free_models(model);
        split(c, small, large);
        return;
    }
    free_models(range->model);
    *range = (mt__range){small->samples, large->samples, {model[0], model[1]}, 1, {0, 0}};
    c->has_first = 0;
    start_over(c);
}

/* A size between two ranges or above them all belongs to the one below if that has predicted it. */
static void take_other(mt__curve *c, size_t range) {
    size_t samples = c->recording->samples;
    if (bears_out(c, c->recording))
        c->range[range].top = samples;
    else if (range + 1 == c->ranges)
        begin_range(c, c->recording);
    else if (c->has_first && range + 2 == c->ranges)
        take_second(c);
    else
        c->range[range + 1].from = samples;
}

/*
 * One that is empty, or that host memory has no room for, is dropped: the next chunk will be recorded
 * instead. So is one of gradients apart that does not tell which blocks they are.
 */
static void take_recording(mt__curve *c, int keep) {
    mt_recording *last = c->recording;
    if (last->incomplete || last->allocations == 0 || (keep && !last->handed_over)) return;
    size_t range = c->ranges ? range_of(c, last->samples) : 0;
    if (!c->ranges)
        take_first(c);
    else if (c->has_first && range + 1 == c->ranges)
        take_second(c);
    else
        take_other(c, range);
}

/* ---- corrections ------------------------------------------------------------------------------- */

/* A measured peak against what was recorded, if that is of the same kernels. */
static void correct(mt__curve *c, int keep, size_t samples, size_t peak) {
    if (is_single(c, samples)) {
        c->single[keep] = peak;
        return;
    }
    size_t recorded = expected_peak(c, keep, samples), *residual = &c->evidence[keep].residual;
    if (peak > recorded) *residual = mt__max(*residual, peak - recorded);
}

/* What a chunk needs with gradients apart it needs at most with them in place. */
void mt__curve_learn(mt__curve *c, int keep, size_t samples, size_t peak) {
    if (c->filling) take_recording(c, keep);
    c->filling = 0;
    c->has_run = 1;
    for (int way = 0; way <= keep; way++) mt__evidence_ran(&c->evidence[way], samples);
    if (!peak) return;
    if (mt__curve_is_recorded(c, keep)) correct(c, keep, samples, peak);
    for (int way = 0; way <= keep; way++)
        if (!mt__curve_is_recorded(c, way)) mt__evidence_bound(&c->evidence[way], samples, peak);
}

/* What went through with gradients apart does so with them in place. */
void mt__curve_prove(mt__curve *c, int keep, size_t samples, size_t room) {
    for (int way = 0; way <= keep; way++) mt__evidence_prove(&c->evidence[way], samples, room);
}

void mt__curve_fail(mt__curve *c, int keep, size_t samples, size_t room, uint64_t step) {
    size_t predicted = mt__curve_predict(c, keep, samples);
    mt__evidence_fail(&c->evidence[keep], samples, room, predicted, step);
}

int mt__curve_has_failures(const mt__curve *c) {
    return c->evidence[0].beyond.chunk || c->evidence[0].shortage.chunk;
}

int mt__curve_has_failed(const mt__curve *c, int keep, size_t samples, size_t room) {
    return mt__evidence_has_failed(&c->evidence[keep], samples, room);
}

void mt__curve_forget(mt__curve *c, uint64_t step) {
    for (int way = 0; way < 2; way++) mt__evidence_forget(&c->evidence[way], step);
}

/* ---- plans seen -------------------------------------------------------------------------------- */

mt__seen *mt__curve_find_seen(mt__curve *c, size_t samples) {
    for (size_t i = 0; i < MT__SEEN; i++)
        if (c->seen[i].samples == samples) return &c->seen[i];
    return NULL;
}

mt__seen *mt__curve_new_seen(mt__curve *c) {
    return &c->seen[c->next_seen++ % MT__SEEN];
}
