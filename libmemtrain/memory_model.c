/*
 * memory_model.c - the peak of any chunk size from recordings of two.
 *
 * The two sequences of allocations are paired; a pair of sizes (a at m1 samples, c at m2) stands for
 * the line a + (c - a) (m - m1) / (m2 - m1). The bytes live at an instant are a sum of such lines,
 * again a line, and the peak is the largest of them: only the upper envelope is kept.
 *
 * Pairing keeps the order and skips the fewest blocks (Myers 1986, "An O(ND) difference algorithm"),
 * since the sequences differ in a few places only.
 */
#include "recording.h"

#include "tuned.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t MOST_SAMPLES = (size_t)1 << 50;

/* ---- pairing --------------------------------------------------------------------------------- */

enum { UNPAIRED = -1 };

/* Bytes of the allocations of a recording, in their order; NULL when out of host memory. */
static size_t *list_bytes(const mt_recording *r) {
    size_t *bytes = mt__alloc(r->allocations, sizeof *bytes);
    for (size_t i = 0; bytes && i < r->count; i++)
        if (r->events[i].what == MT__TAKEN) bytes[r->events[i].number] = r->events[i].bytes;
    return bytes;
}

/* Whether two sizes may be of one block: it neither falls nor grows faster than the samples. */
static int is_alike(size_t small, size_t of_small, size_t large, size_t of_large) {
    return small <= large && (double)large * (double)of_small <= (double)small * (double)of_large;
}

/* Whether the sequences have the same events in the same order: partners tell of what kind each is. */
static int same_shape(const mt_recording *a, const mt_recording *b) {
    if (a->count != b->count) return 0;
    for (size_t i = 0; i < a->count; i++)
        if (a->events[i].partner != b->events[i].partner) return 0;
    return 1;
}

/* How many blocks of s are behind the start of a path that skips so many of s, and of both, from the paths that skip one less. */
static size_t start_of(const size_t *before, size_t of_s, size_t skipped) {
    size_t by_s = of_s ? before[of_s - 1] + 1 : 0, by_l = of_s < skipped ? before[of_s] : 0;
    return mt__max(by_s, by_l);
}

/* Pairs from the end of a path back to its start. */
static void trace_back(const size_t *row, size_t of_s, size_t skipped, ptrdiff_t *partner) {
    for (;;) {
        const size_t *before = row - skipped;
        size_t end = row[of_s], start = start_of(before, of_s, skipped);
        for (size_t i = start; i < end; i++) partner[i + skipped - 2 * of_s] = (ptrdiff_t)i;
        if (!skipped--) return;
        row = before;
        if (of_s && before[of_s - 1] + 1 == start) of_s--;
    }
}

int mt__pair_up(const mt_recording *small, const mt_recording *large, ptrdiff_t *partner) {
    int is_same = same_shape(small, large), found = -1;
    for (size_t i = 0; i < large->allocations; i++) partner[i] = is_same ? (ptrdiff_t)i : UNPAIRED;
    if (is_same) return 1;
    size_t *s = list_bytes(small), *l = list_bytes(large);
    /* A row for each number of skipped blocks, an entry for each number of these in s: how far in s that leads. */
    size_t *reached = mt__alloc((MOST_SKIPPED + 1) * (MOST_SKIPPED + 2) / 2, sizeof *reached),
           *row = reached;
    if (!s || !l || !reached) found = 0;
    for (size_t skipped = 0; skipped <= MOST_SKIPPED && found < 0; row += ++skipped) {
        for (size_t of_s = 0; of_s <= skipped && found < 0; of_s++) {
            size_t i = start_of(row - skipped, of_s, skipped), j = i + skipped - 2 * of_s;
            while (i < small->allocations && j < large->allocations &&
                   is_alike(s[i], small->samples, l[j], large->samples))
                i++, j++;
            row[of_s] = i;
            if (i < small->allocations || j < large->allocations) continue;
            trace_back(row, of_s, skipped, partner);
            found = 1;
        }
    }
    mt__free(reached);
    mt__free(s);
    mt__free(l);
    return found;
}

/* ---- the envelope ------------------------------------------------------------------------------ */

/*
 * Bytes live after each allocation, as lines in m. The size of an allocation is the line through it and its partner among the
 * smaller bytes, or constant where it has none. Without partners gradients are constant, and all else grows with the samples.
 * Adds what has no partner to *margin, which is the sum of the smaller bytes before. Returns the number of lines.
 */
static size_t collect(const mt_recording *r, const size_t *small, const ptrdiff_t *partner,
                      int apart, mt__line *sizes, mt__line *out, size_t *margin) {
    mt__line now = {0, 0};
    size_t count = 0;
    for (size_t e = 0; e < r->count; e++) {
        const mt__event *event = &r->events[e];
        if (event->what == MT__TAKEN) {
            ptrdiff_t other = partner ? partner[count] : UNPAIRED;
            size_t from = other == UNPAIRED ? event->bytes : small[other];
            int grows = !partner && !event->handed_over;
            int64_t rise = (int64_t)event->bytes - (grows ? 0 : (int64_t)from);
            *margin += other == UNPAIRED ? from : 0 - from;
            sizes[count] = (mt__line){(int64_t)from, rise};
            now.start += sizes[count].start;
            now.rise += sizes[count].rise;
            out[count++] = now;
        } else if (mt__ends_life(r, event, apart)) {
            size_t dead = r->events[event->partner].number;
            now.start -= sizes[dead].start;
            now.rise -= sizes[dead].rise;
        }
    }
    return count;
}

/* Rising rise; for equal rise the higher line first. */
static int by_rise(const void *a, const void *b) {
    const mt__line *x = a, *y = b;
    if (x->rise != y->rise) return x->rise < y->rise ? -1 : 1;
    return (x->start < y->start) - (x->start > y->start);
}

/*
 * Whether b is nowhere the largest between a and c (rises ascending): the meeting point of a and c
 * is at or left of that of a and b. In double: bytes squared exceed 64 bits, and a line that is kept
 * for nothing does no harm.
 */
static int is_hidden(const mt__line *a, const mt__line *b, const mt__line *c) {
    double ac = (double)(a->start - c->start) * (double)(b->rise - a->rise);
    double ab = (double)(a->start - b->start) * (double)(c->rise - a->rise);
    return ac < ab;
}

/* Keeps the upper envelope (Andrew's monotone chain) in place; returns its size. */
static size_t envelope(mt__line *lines, size_t count) {
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

static mt_memory_model *new_model(size_t lines) {
    mt_memory_model *model = mt__alloc(1, sizeof *model + lines * sizeof *model->lines);
    if (model && mt__handle_add(model, MT__KIND_MEMORY_MODEL)) return model;
    mt__free(model);
    return NULL;
}

mt_memory_model *mt__memory_model_of(const mt__line *lines, const mt__part *part, size_t margin) {
    mt_memory_model *model = new_model(part->count);
    if (!model) return NULL;
    model->margin = margin;
    model->parts = 1;
    model->part[0] = *part;
    memcpy(model->lines, lines, part->count * sizeof *lines);
    return model;
}

mt_status mt__memory_model_new(const mt_recording *small, const mt_recording *large, int apart,
                               mt_memory_model **out) {
    const mt_recording *r = large ? large : small;
    ptrdiff_t *partner = large ? mt__alloc(large->allocations, sizeof *partner) : NULL;
    size_t *bytes = large ? list_bytes(small) : NULL, margin = 0;
    mt__line *lines = mt__alloc(2 * r->allocations + 1, sizeof *lines);
    int pairs = !large ? -1 : partner && bytes ? mt__pair_up(small, large, partner) : 0;
    *out = NULL;
    if (lines && pairs) {
        mt__part part = {r->samples, r->samples, 0, 1};
        if (pairs > 0) part.run = large->samples - (part.from = small->samples);
        for (size_t i = 0; pairs > 0 && i < small->allocations; i++) margin += bytes[i];
        part.count = collect(r, bytes, pairs > 0 ? partner : NULL, apart,
                             lines + r->allocations + 1, lines, &margin);
        if (pairs < 0) /* for fewer samples */
            lines[part.count++] = (mt__line){(int64_t)mt__recording_peak(r, apart), 0};
        part.count = envelope(lines, part.count);
        *out = mt__memory_model_of(lines, &part, pairs > 0 ? margin : 0);
    }
    mt__free(partner);
    mt__free(bytes);
    mt__free(lines);
    return *out ? MT_OK : mt_set_error(MT_ENOMEM, "mt_memory_model_new: out of host memory");
}

static mt_status check_recording(const mt_recording *r, const char *name) {
    if (!mt__handle_is(r, MT__KIND_RECORDING))
        return mt__bad_handle(r, "mt_memory_model_new", name);
    MT__CHECK(!r->incomplete,
              "mt_memory_model_new: recording '%s' is incomplete: host memory ran out", name);
    MT__CHECK(r->allocations > 0, "mt_memory_model_new: recording '%s' is empty", name);
    return MT_OK;
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

void mt_memory_model_free(mt_memory_model *model) {
    if (mt__handle_remove(model, MT__KIND_MEMORY_MODEL)) mt__free(model);
}

mt_memory_model *mt__memory_model_between(const mt_memory_model *const of[MT__LENGTHS],
                                          const double weight[MT__LENGTHS]) {
    size_t count = 0;
    for (int i = 0; i < MT__LENGTHS; i++) count += of[i]->part[0].count;
    mt_memory_model *model = new_model(count);
    if (!model) return NULL;
    for (mt__line *to = model->lines; model->parts < MT__LENGTHS; model->parts++) {
        const mt_memory_model *one = of[model->parts];
        mt__part *p = &model->part[model->parts];
        *p = one->part[0];
        p->weight = weight[model->parts];
        memcpy(to, one->lines, p->count * sizeof *to);
        to += p->count;
        model->margin = mt__max(model->margin, one->margin);
    }
    return model;
}

/* Value of a line at m, rounded up, SIZE_MAX where it leaves 63 bits. */
static size_t value_at(const mt__part *p, const mt__line *l, size_t samples) {
    double steps = (double)samples - (double)p->from;
    double rough = (double)l->start + (double)l->rise * steps / (double)p->run;
    if (rough > 9e18) return SIZE_MAX;
    if (rough <= 0) return 0;
    /* Exact from here, unless a product would leave 63 bits: of more samples than any chunk has. */
    int64_t k = (int64_t)samples - (int64_t)p->from, run = (int64_t)p->run;
    int64_t whole = l->rise / run, rest = l->rise % run;
    if (fabs((double)rest * (double)k) > 9e18) return (size_t)ceil(rough);
    int64_t over = rest * k;
    int64_t up = over / run + (over % run > 0);
    int64_t value = l->start + whole * k + up;
    return value > 0 ? (size_t)value : 0;
}

static size_t peak_of(const mt_memory_model *model, size_t samples) {
    const mt__line *line = model->lines;
    double sum = 0;
    size_t peak = 0;
    for (const mt__part *p = model->part; p < model->part + model->parts; p++) {
        peak = 0;
        for (const mt__line *end = line + p->count; line < end; line++)
            peak = mt__max(peak, value_at(p, line, samples));
        sum += p->weight * (double)peak;
    }
    if (model->parts == 1) return peak; /* to the byte */
    return sum > 9e18 ? SIZE_MAX : (size_t)ceil(fmax(sum, 0));
}

size_t mt_memory_model_peak(const mt_memory_model *model, size_t samples) {
    return mt__handle_is(model, MT__KIND_MEMORY_MODEL) ? peak_of(model, samples) : 0;
}

size_t mt_memory_model_margin(const mt_memory_model *model) {
    return mt__handle_is(model, MT__KIND_MEMORY_MODEL) ? model->margin : 0;
}

/* Peaks are convex in the samples: from a recorded size that fits on they rise, and a fall below it counts as flat. */
size_t mt_memory_model_largest(const mt_memory_model *model, size_t room_bytes) {
    if (!mt__handle_is(model, MT__KIND_MEMORY_MODEL)) return 0;
    if (room_bytes > INT64_MAX / 4) return SIZE_MAX; /* no limit, where values would saturate */
    if (room_bytes < model->margin) return 0;
    size_t room = room_bytes - model->margin, low = 0, high = model->part[0].from;
    while (peak_of(model, high) <= room) {
        low = high;
        if ((high *= 2) > MOST_SAMPLES) return SIZE_MAX; /* it does not rise */
    }
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(peak_of(model, middle) <= room ? &low : &high) = middle;
    }
    return low;
}
