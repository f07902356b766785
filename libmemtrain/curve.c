/*
 * curve.c - predicted peaks of one kind of chunk, and what corrects them. Rules: docs/policy.md.
 */
#include "curve.h"

enum { FORGOTTEN_AFTER = 64 };

mt__curve *mt__curve_new(const mt__kind *kind) {
    mt__curve *c = mt__alloc(1, sizeof *c);
    if (!c) return NULL;
    c->kind = *kind;
    if (mt_recording_new(&c->recording[0]) == MT_OK && mt_recording_new(&c->recording[1]) == MT_OK)
        return c;
    mt__curve_free(c);
    return NULL;
}

void mt__curve_free(mt__curve *curve) {
    if (!curve) return;
    mt_recording_free(curve->recording[0]);
    mt_recording_free(curve->recording[1]);
    mt_memory_model_free(curve->model);
    mt__free(curve);
}

/* ---- prediction -------------------------------------------------------------------------------- */

size_t mt__curve_predict(const mt__curve *c, size_t samples) {
    if (c->model)
        return mt__add(mt_memory_model_peak(c->model, samples),
                       mt__add(mt_memory_model_margin(c->model), c->residual));
    if (!c->bound_samples) return 0;
    if (samples <= c->bound_samples) return mt__add(c->bound_peak, c->residual);
    double proportional = (double)c->bound_peak * (double)samples / (double)c->bound_samples;
    return proportional > 9e18 ? SIZE_MAX : mt__add((size_t)proportional + 1, c->residual);
}

size_t mt__smaller(size_t chunk) {
    return chunk - mt__max(1, chunk / 3);
}

/*
 * The largest size that may be tried after one that did not fit: where the prediction was compared
 * with a budget it has been corrected and says more, else there is nothing to go by.
 */
static size_t next_below(const mt__curve *c) {
    int is_known = mt__curve_predict(c, 1) > 0 && c->failed_room < SIZE_MAX;
    return is_known ? c->failed_chunk - 1 : mt__smaller(c->failed_chunk);
}

size_t mt__curve_largest(const mt__curve *c, size_t room) {
    size_t left = room - mt__min(room, c->residual);
    size_t m = SIZE_MAX;
    if (c->model)
        m = mt_memory_model_largest(c->model, left);
    else if (c->bound_samples && left < c->bound_peak)
        m = 0;
    else if (c->bound_samples)
        m = (size_t)((double)left / (double)c->bound_peak * (double)c->bound_samples);
    if (c->failed_chunk && room <= c->failed_room) m = mt__min(m, next_below(c));
    return m;
}

int mt__curve_rules_out(const mt__curve *c, size_t samples, size_t room) {
    return c->recorded == 2 && !c->failed_chunk && mt_memory_model_peak(c->model, samples) > room;
}

/* ---- recordings -------------------------------------------------------------------------------- */

mt_recording *mt__curve_record(mt__curve *c, size_t samples) {
    c->filling = 0;
    if (c->recorded == 2) return NULL;
    if (c->recorded == 1 && c->recording[0]->samples == samples) return NULL;
    mt__recording_restart(c->recording[c->recorded], samples);
    c->filling = 1;
    return c->recording[c->recorded];
}

/* The smaller of two recordings comes first. */
static void sort_recordings(mt__curve *c) {
    mt_recording **r = c->recording;
    if (c->recorded < 2 || r[0]->samples < r[1]->samples) return;
    mt_recording *larger = r[0];
    r[0] = r[1];
    r[1] = larger;
}

/*
 * Builds the model anew after a recording. One that is empty, or that host memory has no room for,
 * is dropped: the next chunk will be recorded instead.
 */
static void take_recording(mt__curve *c) {
    mt_recording *first = c->recording[0], *last = c->recording[c->recorded];
    mt_memory_model *model;
    if (last->incomplete || last->allocations == 0) return;
    if (c->recorded == 1 && first->samples > last->samples) {
        first = last;
        last = c->recording[0];
    }
    if (mt_memory_model_new(first, c->recorded ? last : NULL, &model) != MT_OK) {
        mt_log(MT_LOG_WARNING, "a recording is dropped: %s", mt_last_error());
        return;
    }
    mt_memory_model_free(c->model);
    c->model = model;
    c->recorded++;
    c->residual = 0;
    sort_recordings(c);
}

/* ---- corrections ------------------------------------------------------------------------------- */

/*
 * A correction that measured peaks do not bear out came from something that passed: it fades by a
 * sixteenth a chunk, so that one refusal without evidence does not keep chunks small for ever.
 */
static void forget_slowly(mt__curve *c, size_t samples, size_t peak) {
    if (!c->residual || peak > mt__curve_predict(c, samples) - c->residual) return;
    c->residual -= mt__ceil_div(c->residual, 16);
    if (!c->residual) c->failed_chunk = 0;
}

void mt__curve_learn(mt__curve *c, size_t samples, size_t peak) {
    if (c->filling) take_recording(c);
    c->filling = 0;
    c->has_run = 1;
    if (!peak) return;
    if (c->model) {
        size_t predicted = mt__curve_predict(c, samples);
        if (peak > predicted)
            c->residual += peak - predicted;
        else
            forget_slowly(c, samples, peak);
    } else if (samples > c->bound_samples ||
               (samples == c->bound_samples && peak > c->bound_peak)) {
        c->bound_samples = samples;
        c->bound_peak = peak;
    }
}

/* Doubling bounds the number of corrections when the model is far off. */
void mt__curve_fail(mt__curve *c, size_t samples, size_t room) {
    size_t predicted = mt__curve_predict(c, samples);
    c->failed_chunk = samples;
    c->failed_room = room;
    if (predicted && predicted <= room && room < SIZE_MAX)
        c->residual = mt__add(c->residual, mt__max(c->residual, room + 1 - predicted));
}

int mt__curve_has_failed(mt__curve *c, size_t samples, size_t room) {
    if (!c->failed_chunk || samples < c->failed_chunk || room > c->failed_room) return 0;
    if (++c->refusals < FORGOTTEN_AFTER) return 1;
    c->refusals = 0;
    c->failed_chunk = 0;
    return 0;
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
