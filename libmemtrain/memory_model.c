/*
 * memory_model.c - the peak of any chunk size from recordings of two.
 *
 * The two sequences of allocations are paired; a pair of sizes (a at m1 samples, c at m2) stands for
 * the line a + (c - a) (m - m1) / (m2 - m1). The bytes live at an instant are a sum of such lines,
 * again a line, and the peak is the largest of them: only the upper envelope is kept.
 *
 * Pairing is a global alignment by dynamic programming (Needleman & Wunsch 1970) within a band,
 * since the sequences differ in a few places only.
 */
#include "recording.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* start + rise * (m - from) / run bytes. */
typedef struct line {
    int64_t start, rise;
} line;

/* The envelope of one sample length. */
typedef struct part {
    size_t from;  /* samples of the smaller recording */
    size_t run;   /* samples between the recordings */
    size_t count; /* of lines, in rising order of rise */
    double weight;
} part;

struct mt_memory_model {
    size_t margin; /* bytes without a partner */
    size_t parts;  /* 1, of weight 1; or MT__LENGTHS */
    part part[MT__LENGTHS];
    line lines[]; /* of all parts, one after the other */
};

static const size_t MOST_SAMPLES = (size_t)1 << 40;
static const int64_t MOST_BYTES = INT64_MAX / 8; /* of a line that was written */

/* ---- pairing --------------------------------------------------------------------------------- */

enum {
    GAP_COST = 2,
    BAND_EXTRA = 128,
    MOST_APART = 256,      /* allocations that one recording may have more */
    MOST_CELLS = 64 << 20, /* of the table, a byte each */
    UNPAIRED = -1
};
enum { STEP_PAIR = 0, STEP_SKIP_SMALL = 1, STEP_SKIP_LARGE = 2 };

/* The allocations of a recording in their order, and how many there are. */
typedef struct sequence {
    const mt_recording *recording;
    size_t *events; /* index of the i-th allocation */
    size_t count;
} sequence;

static int list_allocations(const mt_recording *r, sequence *out) {
    out->recording = r;
    out->count = 0;
    out->events = mt__alloc(r->allocations, sizeof *out->events);
    if (!out->events) return 0;
    for (size_t i = 0; i < r->count; i++)
        if (r->events[i].bytes) out->events[out->count++] = i;
    return 1;
}

static size_t bytes_at(const sequence *s, size_t i) {
    return s->recording->events[s->events[i]].bytes;
}

/*
 * Cost of pairing sizes a (m1 samples) and c (m2 > m1 samples): 0 where they are equal or
 * proportional, 1 for another affine size that neither falls nor starts below zero, else more than
 * two gaps.
 */
static int pair_cost(size_t a, size_t c, size_t m1, size_t m2) {
    double proportional = (double)a * (double)m2 / (double)m1;
    if (a == c || (double)c == proportional) return 0;
    return c > a && (double)c < proportional ? 1 : 2 * GAP_COST + 1;
}

/* Whether the sequences have the same events in the same order: partners tell of what kind each is. */
static int same_shape(const mt_recording *a, const mt_recording *b) {
    if (a->count != b->count) return 0;
    for (size_t i = 0; i < a->count; i++)
        if (a->events[i].partner != b->events[i].partner) return 0;
    return 1;
}

/* State of the banded dynamic programme: row i, columns i - below .. i + above. */
typedef struct band {
    size_t below, width;
    uint32_t *cost;      /* two rows */
    unsigned char *step; /* (rows + 1) x width */
} band;

static void fill_cell(band *b, const sequence *s, const sequence *l, size_t i, size_t j) {
    const uint32_t far = UINT32_MAX / 2;
    size_t x = j + b->below - i; /* column within the band */
    uint32_t *row = b->cost + (i % 2) * b->width, *above = b->cost + ((i + 1) % 2) * b->width;
    uint32_t best = far;
    unsigned char step = STEP_SKIP_SMALL;
    if (i == 0 && j == 0) {
        row[x] = 0;
        return;
    }
    if (i > 0 && x + 1 < b->width) best = above[x + 1] + GAP_COST; /* row i - 1, same column */
    if (j > 0 && x > 0 && row[x - 1] + GAP_COST < best) {
        best = row[x - 1] + GAP_COST;
        step = STEP_SKIP_LARGE;
    }
    if (i > 0 && j > 0) {
        uint32_t cost =
            above[x] + (uint32_t)pair_cost(bytes_at(s, i - 1), bytes_at(l, j - 1),
                                           s->recording->samples, l->recording->samples);
        if (cost <= best) {
            best = cost;
            step = STEP_PAIR;
        }
    }
    row[x] = best;
    b->step[i * b->width + x] = step;
}

/* Follows the steps back from the end and writes for each allocation of l its partner in s. */
static void trace_back(const band *b, const sequence *s, const sequence *l, ptrdiff_t *partner) {
    size_t i = s->count, j = l->count;
    for (size_t k = 0; k < l->count; k++) partner[k] = UNPAIRED;
    while (i > 0 || j > 0) {
        unsigned char step = b->step[i * b->width + (j + b->below - i)];
        if (step == STEP_PAIR) partner[j - 1] = (ptrdiff_t)(i - 1);
        if (step != STEP_SKIP_LARGE) i--;
        if (step != STEP_SKIP_SMALL) j--;
    }
}

static int align(const sequence *s, const sequence *l, ptrdiff_t *partner) {
    size_t longer = mt__max(s->count, l->count), shorter = mt__min(s->count, l->count);
    band b;
    b.below = mt__min(longer, longer - shorter + BAND_EXTRA);
    b.width = 2 * b.below + 1;
    b.cost = mt__alloc(2 * b.width, sizeof *b.cost);
    b.step = mt__alloc(s->count + 1, b.width);
    int done = b.cost && b.step;
    for (size_t i = 0; done && i <= s->count; i++) {
        uint32_t *row = b.cost + (i % 2) * b.width;
        for (size_t x = 0; x < b.width; x++) row[x] = UINT32_MAX / 2;
        size_t first = i > b.below ? i - b.below : 0;
        for (size_t j = first; j <= mt__min(l->count, i + b.below); j++) fill_cell(&b, s, l, i, j);
    }
    if (done) trace_back(&b, s, l, partner);
    mt__free(b.cost);
    mt__free(b.step);
    return done;
}

/*
 * Whether sequences are to be paired at all. A chunk that loops over its samples has ever more allocations, of which those of
 * one more sample have no partner; and a table for it would grow with the square of their number.
 */
static int can_be_paired(const mt_recording *a, const mt_recording *b) {
    size_t longer = mt__max(a->allocations, b->allocations);
    size_t apart = longer - mt__min(a->allocations, b->allocations);
    if (same_shape(a, b)) return 1;
    return apart <= MOST_APART && longer + 1 <= MOST_CELLS / (2 * (apart + BAND_EXTRA) + 1);
}

/* Writes for the i-th allocation of l the index of its partner in s, or UNPAIRED. */
static int pair_up(const sequence *s, const sequence *l, ptrdiff_t *partner) {
    if (!same_shape(s->recording, l->recording)) return align(s, l, partner);
    for (size_t i = 0; i < l->count; i++) partner[i] = (ptrdiff_t)i;
    return 1;
}

int mt__pair_up(const mt_recording *small, const mt_recording *large, ptrdiff_t *partner) {
    sequence s = {NULL, NULL, 0}, l = {NULL, NULL, 0};
    int done = list_allocations(small, &s) && list_allocations(large, &l);
    if (done) done = pair_up(&s, &l, partner);
    mt__free(s.events);
    mt__free(l.events);
    return done;
}

/* Bytes on either side that have no partner. */
static size_t unpaired_bytes(const sequence *s, const sequence *l, const ptrdiff_t *partner) {
    size_t total = 0;
    for (size_t i = 0; i < s->count; i++) total += bytes_at(s, i);
    for (size_t i = 0; i < l->count; i++) {
        if (partner[i] == UNPAIRED)
            total += bytes_at(l, i);
        else
            total -= bytes_at(s, (size_t)partner[i]);
    }
    return total;
}

/* ---- the envelope ------------------------------------------------------------------------------ */

/* Order among the allocations, whose events ascend, of one of them. */
static size_t order_of(const sequence *s, size_t event) {
    size_t low = 0, high = s->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->events[middle] <= event)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The size of each allocation of the larger chunk as a line in m. */
static void sizes_of_two(const sequence *s, const sequence *l, const ptrdiff_t *partner,
                         line *out) {
    for (size_t i = 0; i < l->count; i++) {
        int64_t large = (int64_t)bytes_at(l, i);
        int64_t small = partner[i] == UNPAIRED ? large : (int64_t)bytes_at(s, (size_t)partner[i]);
        out[i] = (line){small, large - small};
    }
}

/* The same from one recording: gradients are as large in any chunk, all else is taken to grow with the samples. */
static void sizes_of_one(const sequence *l, line *out) {
    for (size_t i = 0; i < l->count; i++) {
        const mt__event *event = &l->recording->events[l->events[i]];
        out[i] = (line){(int64_t)event->bytes, event->handed_over ? 0 : (int64_t)event->bytes};
    }
}

/* Bytes live after each allocation, as lines in m, from the sizes of each. */
static size_t collect(const sequence *l, const line *sizes, int apart, line *out) {
    const mt_recording *r = l->recording;
    line now = {0, 0};
    size_t allocation = 0;
    for (size_t e = 0; e < r->count; e++) {
        if (r->events[e].what == MT__TAKEN) {
            now.start += sizes[allocation].start;
            now.rise += sizes[allocation].rise;
            out[allocation++] = now;
        } else if (mt__ends_life(r, &r->events[e], apart)) {
            size_t dead = order_of(l, r->events[e].partner);
            now.start -= sizes[dead].start;
            now.rise -= sizes[dead].rise;
        }
    }
    return allocation;
}

/* Rising rise; for equal rise the higher line first. */
static int by_rise(const void *a, const void *b) {
    const line *x = a, *y = b;
    if (x->rise != y->rise) return x->rise < y->rise ? -1 : 1;
    return (x->start < y->start) - (x->start > y->start);
}

/*
 * Whether b is nowhere the largest between a and c (rises ascending): the meeting point of a and c
 * is at or left of that of a and b. In double: bytes squared exceed 64 bits, and a line that is kept
 * for nothing does no harm.
 */
static int is_hidden(const line *a, const line *b, const line *c) {
    double ac = (double)(a->start - c->start) * (double)(b->rise - a->rise);
    double ab = (double)(a->start - b->start) * (double)(c->rise - a->rise);
    return ac < ab;
}

/* Keeps the upper envelope (Andrew's monotone chain) in place; returns its size. */
static size_t envelope(line *lines, size_t count) {
    size_t kept = 0;
    qsort(lines, count, sizeof *lines, by_rise);
    for (size_t i = 0; i < count; i++) {
        if (kept && lines[kept - 1].rise == lines[i].rise) continue;
        while (kept >= 2 && is_hidden(&lines[kept - 2], &lines[kept - 1], &lines[i])) kept--;
        lines[kept++] = lines[i];
    }
    return kept;
}

/* ---- the model --------------------------------------------------------------------------------- */

static mt_status out_of_memory(void) {
    return mt_set_error(MT_ENOMEM, "mt_memory_model_new: out of host memory");
}

static mt_memory_model *new_model(size_t lines) {
    mt_memory_model *model = mt__alloc(1, sizeof *model + lines * sizeof *model->lines);
    if (model && mt__handle_add(model, MT__KIND_MEMORY_MODEL)) return model;
    mt__free(model);
    out_of_memory();
    return NULL;
}

static mt_status finish(const line *lines, size_t count, size_t from, size_t run, size_t margin,
                        mt_memory_model **out) {
    mt_memory_model *model = new_model(count);
    if (!model) return MT_ENOMEM;
    model->margin = margin;
    model->parts = 1;
    model->part[0] = (part){from, run, count, 1};
    memcpy(model->lines, lines, count * sizeof *lines);
    *out = model;
    return MT_OK;
}

static mt_status from_one(const mt_recording *r, int apart, mt_memory_model **out) {
    sequence l = {NULL, NULL, 0};
    mt_status status = MT_ENOMEM;
    line *lines = mt__alloc(2 * r->allocations + 1, sizeof *lines),
         *sizes = lines + r->allocations + 1;
    if (lines && list_allocations(r, &l)) {
        sizes_of_one(&l, sizes);
        size_t count = collect(&l, sizes, apart, lines);
        lines[count++] = (line){(int64_t)mt__recording_peak(r, apart), 0}; /* for fewer samples */
        status = finish(lines, envelope(lines, count), r->samples, r->samples, 0, out);
    } else {
        out_of_memory();
    }
    mt__free(lines);
    mt__free(l.events);
    return status;
}

static mt_status from_two(const mt_recording *small, const mt_recording *large, int apart,
                          mt_memory_model **out) {
    sequence s = {NULL, NULL, 0}, l = {NULL, NULL, 0};
    mt_status status = MT_ENOMEM;
    ptrdiff_t *partner = mt__alloc(large->allocations, sizeof *partner);
    line *lines = mt__alloc(2 * large->allocations, sizeof *lines),
         *sizes = lines + large->allocations;
    if (partner && lines && list_allocations(small, &s) && list_allocations(large, &l) &&
        pair_up(&s, &l, partner)) {
        sizes_of_two(&s, &l, partner, sizes);
        size_t count = envelope(lines, collect(&l, sizes, apart, lines));
        status = finish(lines, count, small->samples, large->samples - small->samples,
                        unpaired_bytes(&s, &l, partner), out);
    } else {
        out_of_memory();
    }
    mt__free(partner);
    mt__free(lines);
    mt__free(s.events);
    mt__free(l.events);
    return status;
}

static mt_status check_recording(const mt_recording *r, const char *name) {
    if (!mt__handle_is(r, MT__KIND_RECORDING))
        return mt__bad_handle(r, "mt_memory_model_new", name);
    MT__CHECK(!r->incomplete,
              "mt_memory_model_new: recording '%s' is incomplete: host memory ran out", name);
    MT__CHECK(r->allocations > 0, "mt_memory_model_new: recording '%s' is empty", name);
    return MT_OK;
}

mt_status mt__memory_model_new(const mt_recording *small, const mt_recording *large, int apart,
                               mt_memory_model **out) {
    if (!large) return from_one(small, apart, out);
    return can_be_paired(small, large) ? from_two(small, large, apart, out)
                                       : from_one(large, apart, out);
}

mt_status mt_memory_model_new(const mt_recording *small, const mt_recording *large,
                              mt_memory_model **out) {
    MT__CHECK(out, "mt_memory_model_new: out is NULL");
    *out = NULL;
    mt_status status = check_recording(small, "small");
    if (status == MT_OK && large) status = check_recording(large, "large");
    if (status != MT_OK) return status;
    MT__CHECK(
        !large || small->samples < large->samples,
        "mt_memory_model_new: 'small' is of %zu samples and 'large' of %zu; large must be larger",
        small->samples, large->samples);
    return mt__memory_model_new(small, large, 0, out);
}

void mt__memory_model_put(const mt_memory_model *model, mt__text *out) {
    const part *p = model->part;
    mt__put(out, " %zu %zu %zu", model->margin, p->from, p->run);
    for (const line *l = model->lines; l < model->lines + p->count; l++)
        mt__put(out, " %" PRId64 " %" PRId64, l->start, l->rise);
}

mt_memory_model *mt__memory_model_take(const int64_t *numbers, size_t count) {
    mt_memory_model *model = NULL;
    size_t lines = count < 5 ? 0 : (count - 3) / 2;
    line *all = lines ? mt__alloc(lines, sizeof *all) : NULL;
    int is_one = all && count % 2 && numbers[0] >= 0 && numbers[1] > 0 && numbers[2] > 0;
    for (size_t i = 0; is_one && i < lines; i++) {
        all[i] = (line){numbers[3 + 2 * i], numbers[4 + 2 * i]};
        is_one = all[i].start > -MOST_BYTES && all[i].start < MOST_BYTES &&
                 all[i].rise > -MOST_BYTES && all[i].rise < MOST_BYTES;
    }
    if (is_one)
        (void)!finish(all, lines, (size_t)numbers[1], (size_t)numbers[2], (size_t)numbers[0],
                      &model);
    mt__free(all);
    return model;
}

void mt_memory_model_free(mt_memory_model *model) {
    if (mt__handle_remove(model, MT__KIND_MEMORY_MODEL)) mt__free(model);
}

mt_status mt__memory_model_between(const mt_memory_model *const of[MT__LENGTHS],
                                   const double weight[MT__LENGTHS], mt_memory_model **out) {
    size_t count = 0;
    *out = NULL;
    for (int i = 0; i < MT__LENGTHS; i++) count += of[i]->part[0].count;
    mt_memory_model *model = new_model(count);
    if (!model) return MT_ENOMEM;
    line *to = model->lines;
    for (int i = 0; i < MT__LENGTHS; i++) {
        part *p = &model->part[model->parts++];
        *p = of[i]->part[0];
        p->weight = weight[i];
        memcpy(to, of[i]->lines, p->count * sizeof *to);
        to += p->count;
        model->margin = mt__max(model->margin, of[i]->margin);
    }
    *out = model;
    return MT_OK;
}

/* Value of a line at m, rounded up, SIZE_MAX where it leaves 63 bits. */
static size_t value_at(const part *p, const line *l, size_t samples) {
    double steps = (double)samples - (double)p->from;
    double rough = (double)l->start + (double)l->rise * steps / (double)p->run;
    if (rough > 9e18) return SIZE_MAX;
    if (rough <= 0) return 0;
    /* Exact from here: whole + rest keeps every product below 2^63. */
    int64_t k = (int64_t)samples - (int64_t)p->from, run = (int64_t)p->run;
    int64_t whole = l->rise / run, rest = l->rise % run;
    int64_t over = rest * k;
    int64_t up = over / run + (over % run > 0);
    int64_t value = l->start + whole * k + up;
    return value > 0 ? (size_t)value : 0;
}

static size_t peak_of_part(const part *p, const line *lines, size_t samples) {
    size_t peak = 0;
    for (size_t i = 0; i < p->count; i++) peak = mt__max(peak, value_at(p, &lines[i], samples));
    return peak;
}

size_t mt_memory_model_peak(const mt_memory_model *model, size_t samples) {
    double sum = 0;
    if (!mt__handle_is(model, MT__KIND_MEMORY_MODEL)) return 0;
    if (model->parts == 1) return peak_of_part(model->part, model->lines, samples);
    const line *lines = model->lines;
    for (const part *p = model->part; p < model->part + MT__LENGTHS; lines += p++->count)
        sum += p->weight * (double)peak_of_part(p, lines, samples);
    return sum > 9e18 ? SIZE_MAX : (size_t)ceil(fmax(sum, 0));
}

size_t mt_memory_model_margin(const mt_memory_model *model) {
    return mt__handle_is(model, MT__KIND_MEMORY_MODEL) ? model->margin : 0;
}

/* Largest m at which one line is within room; SIZE_MAX where it never rises above. One that falls counts as flat. */
static size_t largest_on(const part *p, const line *l, size_t room) {
    if (l->rise <= 0) return (size_t)l->start <= room ? SIZE_MAX : 0;
    double m =
        (double)p->from + ((double)room - (double)l->start) * (double)p->run / (double)l->rise;
    if (m < 1) return 0;
    return m > 1e15 ? SIZE_MAX : (size_t)m;
}

/* The same of a model between lengths, whose peak is taken to rise with the samples. */
static size_t largest_between(const mt_memory_model *model, size_t room) {
    size_t low = 0, high = 1;
    while (mt_memory_model_peak(model, high) <= room)
        if ((high *= 2) > MOST_SAMPLES) return SIZE_MAX; /* it does not rise */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(mt_memory_model_peak(model, middle) <= room ? &low : &high) = middle;
    }
    return low;
}

size_t mt_memory_model_largest(const mt_memory_model *model, size_t room_bytes) {
    size_t m = SIZE_MAX, margin;
    if (!mt__handle_is(model, MT__KIND_MEMORY_MODEL)) return 0;
    if (room_bytes > INT64_MAX / 4) return SIZE_MAX; /* no limit, where values would saturate */
    margin = model->margin;
    if (room_bytes < margin) return 0;
    if (model->parts > 1) return largest_between(model, room_bytes - margin);
    for (size_t i = 0; i < model->part[0].count; i++)
        m = mt__min(m, largest_on(model->part, &model->lines[i], room_bytes - margin));
    if (m == SIZE_MAX) return m;
    /* The division was in floating point: step to the exact answer. */
    while (m > 0 && mt_memory_model_peak(model, m) > room_bytes - margin) m--;
    while (mt_memory_model_peak(model, m + 1) <= room_bytes - margin) m++;
    return m;
}
