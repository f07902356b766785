/*
 * kind.c - predicted peaks of one kind of chunk, and what corrects them. Rules: docs/policy.md.
 */
#include "kind.h"

#include "tuned.h"

mt__kind *mt__kind_new(const mt__key *key, const mt_shape *shape, size_t change) {
    mt__times *times = mt__alloc(1, sizeof *times);
    mt__kind *k = times ? mt__alloc(1, sizeof *k) : NULL;
    if (!k) mt__free(times);
    if (!k) return NULL;
    *times = (mt__times){.kinds = 1, .length = shape->length};
    *k = (mt__kind){.key = *key, .family = shape->family, .length = shape->length};
    k->change = change;
    k->times = times;
    return k;
}

static void free_models(mt__range *range) {
    for (int way = 0; way < MT__WAYS; way++) mt_memory_model_free(range->model[way]);
}

void mt__kind_drop_ranges(mt__kind *k) {
    while (k->ranges) free_models(&k->range[--k->ranges]);
    k->is_partial = k->is_inherited = 0;
}

static void leave_times(mt__kind *k) {
    if (--k->times->kinds == 0) mt__free(k->times);
}

void mt__kind_free(mt__kind *kind) {
    if (!kind) return;
    mt_recording_free(kind->first);
    mt__kind_drop_ranges(kind);
    leave_times(kind);
    mt__free(kind);
}

/* ---- prediction -------------------------------------------------------------------------------- */

/* Index of the range of so many samples; there is one. Sizes between two ranges are taken to be of the lower one. */
static size_t range_of(const mt__kind *k, size_t samples) {
    size_t i = k->ranges - 1;
    while (i > 0 && samples < k->range[i].from) i--;
    return i;
}

int mt__kind_is_recorded(const mt__kind *k, mt__way way) {
    for (size_t i = 0; i < k->ranges; i++)
        if (!k->range[i].model[way]) return 0;
    return k->ranges > 0;
}

static size_t told_by(const mt_memory_model *model, size_t samples) {
    return mt__add(mt_memory_model_peak(model, samples), mt_memory_model_margin(model));
}

static int is_near(size_t told, size_t peak) {
    return (peak > told ? peak - told : told - peak) <= told / HUNDREDTH;
}

size_t mt__kind_recorded(const mt__kind *k, mt__way way, size_t samples) {
    return told_by(k->range[range_of(k, samples)].model[way], samples);
}

static size_t to_size(double value) {
    return value < 9e18 ? (size_t)value : SIZE_MAX;
}

/* Bytes that each sample adds between the smallest and the largest chunk that were measured; 0: not known. */
static double slope_of(const mt__peak *low, const mt__peak *high) {
    if (low->samples >= high->samples || low->bytes >= high->bytes) return 0;
    return (double)(high->bytes - low->bytes) / (double)(high->samples - low->samples);
}

/*
 * By measured peaks: on the line between the two, in proportion above it. Peaks are convex, so the line is a bound
 * between the two.
 */
static size_t measured_peak(const mt__peak *low, const mt__peak *high, size_t samples) {
    double slope = slope_of(low, high);
    if (samples > high->samples && high->samples)
        return to_size((double)high->bytes * (double)samples / (double)high->samples + 1);
    if (samples >= high->samples || slope == 0) return high->bytes;
    if (samples <= low->samples) return low->bytes;
    return low->bytes + to_size(slope * (double)(samples - low->samples) + 1);
}

size_t mt__kind_predict(const mt__kind *k, mt__way way, size_t samples) {
    const mt__limits *l = &k->limits[way];
    size_t bytes = mt__kind_is_recorded(k, way) ? mt__kind_recorded(k, way, samples)
                                                : measured_peak(&l->low, &l->high, samples);
    return bytes ? mt__add(bytes, l->residual) : 0;
}

int mt__kind_is_sure(const mt__kind *k, mt__way way, size_t samples) {
    if (!mt__kind_is_recorded(k, way)) return k->limits[way].high.samples == samples;
    const mt__range *r = &k->range[range_of(k, samples)];
    int is_unmet = k->change > r->top && samples >= k->change;
    if (k->is_partial || samples < r->from || is_unmet) return 0;
    return samples == r->from || r->from < r->top;
}

/* The largest size that fits as recordings say: of the highest range of which one does. */
static size_t largest_recorded(const mt__kind *k, mt__way way, size_t room) {
    size_t below = SIZE_MAX; /* where the next range begins */
    for (size_t i = k->ranges - 1;; below = k->range[i--].from) {
        size_t m = mt_memory_model_largest(k->range[i].model[way], room);
        if (below < SIZE_MAX) m = mt__min(m, below - 1);
        if (i == 0 || m >= k->range[i].from) return m;
    }
}

static size_t largest_measured(const mt__peak *low, const mt__peak *high, size_t room) {
    double slope = slope_of(low, high);
    if (!high->samples) return SIZE_MAX;
    if (room >= high->bytes)
        return to_size((double)room / (double)high->bytes * (double)high->samples);
    if (slope == 0 || room < low->bytes) return 0;
    return low->samples + to_size((double)(room - low->bytes) / slope);
}

/*
 * The only size that was measured, if it is small and what it needs may be what any number of samples does: nothing has
 * told which of its bytes grow.
 */
static size_t small_and_alone(const mt__kind *k, mt__way way) {
    size_t only = k->limits[way].high.samples;
    const mt__range *r = &k->range[mt__max(k->ranges, 1) - 1];
    if (k->ranges) only = r->from == r->top && !r->model[MT__APART] ? r->from : 0;
    return !k->is_partial && only < 2 * FIRST_CHUNK ? only : 0;
}

size_t mt__kind_allowed(const mt__kind *k, mt__way way, size_t room) {
    const mt__failure *f = k->limits[way].failed;
    size_t most = SIZE_MAX;
    for (int i = 0; i < 2; i++)
        if (f[i].chunk && k->plans < f[i].until && room <= f[i].room)
            most = mt__min(most, f[i].chunk - 1);
    return most;
}

size_t mt__kind_largest(const mt__kind *k, mt__way way, size_t room) {
    const mt__limits *l = &k->limits[way];
    size_t left = mt__left(room, l->residual);
    size_t allowed = mt__kind_allowed(k, way, room);
    size_t m = mt__kind_is_recorded(k, way) ? largest_recorded(k, way, left)
                                            : largest_measured(&l->low, &l->high, left);
    m = mt__max(m, 2 * small_and_alone(k, way));
    m = mt__min(m, allowed);
    return room >= l->proven_room && l->largest_ran <= allowed ? mt__max(m, l->largest_ran) : m;
}

int mt__kind_rules_out(const mt__kind *k, mt__way way, size_t samples, size_t room) {
    if (!mt__kind_is_recorded(k, way) || k->is_inherited) return 0;
    const mt__range *r = &k->range[range_of(k, samples)];
    const mt_memory_model *model = r->model[way];
    size_t told = mt_memory_model_peak(model, r->from);
    if (samples < r->from || mt_memory_model_margin(model)) return 0;
    /* Of one recording it is not known which bytes grow; some do. */
    if (samples > r->from && r->from == r->top)
        return told - told / NEARLY +
                   to_size((double)told / NEARLY / (double)r->from * (double)samples) >
               room;
    return mt_memory_model_peak(model, samples) > room;
}

void mt__kind_forget(mt__kind *k) {
    for (int way = 0; way < MT__WAYS; way++)
        for (int i = 0; i < 2; i++) k->limits[way].failed[i].until = 0;
}

/* ---- recordings -------------------------------------------------------------------------------- */

int mt__kind_wants_recording(const mt__kind *k, size_t samples) {
    if (k->is_inherited) return 0;
    if (!k->ranges || k->is_partial) return 1;
    const mt__range *r = &k->range[range_of(k, samples)];
    return samples < r->from || samples > r->top;
}

/* Both models of one or two recordings. Where no gradient was seen to be handed over, that of chunks apart is not known. */
static mt_status make_range(const mt_recording *small, const mt_recording *large, mt__range *out) {
    *out = (mt__range){small->samples, large ? large->samples : small->samples, {NULL, NULL}};
    mt_status status = mt__memory_model_new(small, large, 0, &out->model[MT__IN_PLACE]);
    if (status == MT_OK && small->handed_over)
        status = mt__memory_model_new(small, large, 1, &out->model[MT__APART]);
    if (status == MT_OK) return MT_OK;
    mt_log(MT_LOG_WARNING, "a recording is dropped: %s", mt_last_error());
    free_models(out);
    return status;
}

/* Corrections were of what was told before. */
static void set_range(mt__kind *k, size_t i, const mt__range *range) {
    k->range[i] = *range;
    k->limits[MT__IN_PLACE].residual = k->limits[MT__APART].residual = 0;
}

/* Whether two recordings are of the same kernels: they foretell of the larger one little more than it has. */
static int agree(const mt__kind *k, const mt__range *both, const mt_recording *small,
                 const mt_recording *large) {
    size_t peak = mt__recording_peak(large, 0);
    size_t told = told_by(both->model[MT__IN_PLACE], large->samples);
    int is_changed = small->samples < k->change && large->samples >= k->change;
    return small->samples > 1 && !is_changed && told <= mt__add(peak, peak / NEARLY);
}

/* A recording of a size that no range speaks for. It is the second one of a range, or bears it out, or begins another one. */
static void take_recording(mt__kind *k, mt_recording **recording) {
    const mt_recording *r = *recording, *first = k->first;
    mt__range range;
    if (k->is_partial) mt__kind_drop_ranges(k);
    size_t at = k->ranges ? range_of(k, r->samples) : 0;
    mt__range *old = &k->range[at];
    int is_second = k->ranges && first && first->samples == old->from;
    if (is_second) {
        int is_larger = r->samples > first->samples;
        const mt_recording *small = is_larger ? first : r, *large = is_larger ? r : first;
        if (make_range(small, large, &range) != MT_OK) return;
        if (agree(k, &range, small, large)) {
            free_models(old);
            set_range(k, at, &range);
            mt_recording_free(k->first);
            k->first = NULL;
            return;
        }
        free_models(&range);
    }
    int bears_out =
        k->ranges && !is_second &&
        is_near(told_by(old->model[MT__IN_PLACE], r->samples), mt__recording_peak(r, 0));
    /* Where there are too many one speaks for others, well or badly. */
    if (bears_out || k->ranges == MT__RANGES) {
        old->top = mt__max(old->top, r->samples);
        old->from = mt__min(old->from, r->samples);
        return;
    }
    if (make_range(r, NULL, &range) != MT_OK) return;
    at += k->ranges && r->samples > old->top;
    for (size_t i = k->ranges++; i > at; i--) k->range[i] = k->range[i - 1];
    set_range(k, at, &range);
    mt_recording_free(k->first);
    k->first = *recording;
    *recording = NULL;
}

/* ---- what is learnt ---------------------------------------------------------------------------- */

void mt__kind_begin(mt__kind *k) {
    k->plans++;
    k->times->sizes.batches++;
    for (int way = 0; way < MT__WAYS; way++) k->limits[way].residual /= 2;
}

/* A chunk went through in that room; 0: not known. */
static void note_run(mt__limits *l, size_t samples, size_t room, uint64_t plans) {
    /* As large as what failed, in no more room or later: it was not the size, or is no more. */
    for (mt__failure *f = l->failed; f < l->failed + 2; f++)
        if (samples >= f->chunk && (plans >= f->until || room <= f->room)) f->chunk = 0;
    if (!room) return;
    int is_tighter = samples == l->largest_ran && room < l->proven_room;
    if (samples > l->largest_ran || is_tighter) l->proven_room = room;
    l->largest_ran = mt__max(l->largest_ran, samples);
    if (!l->smallest_ran || samples < l->smallest_ran) l->smallest_ran = samples;
}

static void note_peak(mt__limits *l, mt__peak peak) {
    if (!l->low.samples || peak.samples <= l->low.samples) l->low = peak;
    if (peak.samples >= l->high.samples) l->high = peak;
}

void mt__kind_learn(mt__kind *k, mt__way way, size_t samples, size_t peak, size_t room,
                    mt_recording **recording) {
    const mt_recording *r = *recording;
    k->has_run = 1;
    /* What other lengths told of it is dropped where it is not so: kernels are others. */
    if (k->is_inherited && peak && mt__kind_is_recorded(k, way) &&
        !is_near(mt__kind_recorded(k, way, samples), peak))
        mt__kind_drop_ranges(k);
    int is_whole = r && !r->incomplete && r->allocations && r->samples == samples;
    if (is_whole && (way == MT__IN_PLACE || r->handed_over)) take_recording(k, recording);
    /* What a chunk needs with gradients apart it needs at most with them in place. */
    for (int i = 0; i <= (int)way; i++) {
        note_run(&k->limits[i], samples, room, k->plans);
        if (peak && !mt__kind_is_recorded(k, (mt__way)i))
            note_peak(&k->limits[i], (mt__peak){samples, peak});
    }
    if (!peak || !mt__kind_is_recorded(k, way)) return;
    size_t told = mt__kind_recorded(k, way, samples), *residual = &k->limits[way].residual;
    if (peak > told) *residual = mt__max(*residual, peak - told);
}

void mt__kind_fail(mt__kind *k, mt__way way, size_t samples, size_t room, size_t need,
                   mt_recording *recording) {
    mt__limits *l = &k->limits[way];
    int has_run = samples <= l->largest_ran;
    mt__failure *f = &l->failed[has_run];
    if (need && samples < l->smallest_ran && room >= l->proven_room) {
        k->too_small = mt__max(k->too_small, samples);
        return;
    }
    /* It was cut short at the first request for which there was no room: it needs what it had at least. */
    if (way == MT__IN_PLACE && !k->ranges && recording && !recording->incomplete &&
        recording->allocations && make_range(recording, NULL, &k->range[0]) == MT_OK)
        k->ranges = k->is_partial = 1;
    size_t told = mt__kind_predict(k, way, samples),
           least = mt__max(need, room == SIZE_MAX ? 0 : room + 1);
    int is_again = k->plans < f->until && samples < f->chunk; /* the smaller chunk fails too */
    /* Kernels are others than those of the lengths that told of it: it begins as a kind alone does. */
    if (k->is_inherited && need > told) {
        mt__kind_drop_ranges(k);
        k->has_run = 0;
        told = 0;
    }
    if (told && least > told) {
        size_t more = mt__add(l->residual, least - told);
        l->residual = is_again ? mt__max(more, 2 * l->residual) : more;
    }
    /* Tried again in vain: what did not fit then does not now, and it is tried later the next time. */
    int in_vain = f->chunk && k->plans >= f->until && room <= f->room;
    unsigned patience = is_again ? f->patience : FAILURE_WAIT;
    if (in_vain) patience = has_run && !need ? f->patience + 1 : 2 * f->patience;
    *f = (mt__failure){in_vain ? mt__min(samples, f->chunk) : samples, room, k->plans + patience,
                       patience};
}

/* ---- times ------------------------------------------------------------------------------------- */

static double unit_of(const mt__kind *k) {
    return k->length ? (double)k->length : 1;
}

void mt__kind_note_time(mt__kind *k, size_t samples, double seconds) {
    mt__sizes_note(&k->times->sizes, samples, seconds / unit_of(k));
}

double mt__kind_seconds(const mt__kind *k, size_t samples) {
    return mt__sizes_measured(&k->times->sizes, samples) * unit_of(k);
}

void mt__kind_share_times(mt__kind *kind, const mt__kind *with) {
    leave_times(kind);
    kind->times = with->times;
    kind->times->kinds++;
}
