/*
 * segments.c - which segments of a chain to compute again: a walk along the chain with all partial sets
 * that could still be the best.
 *
 * Of the segments so far, a partial set matters by two numbers alone: the bytes that they leave behind,
 * and the seconds that it costs. One that is worse in neither than another is dropped, so what is left
 * is a list of sets with rising bytes and falling seconds. Each segment takes the list to the next one.
 */
#include <memtrain/segments.h>

#include "internal.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
    MOST_SETS = 4096,
    STEPS = 1024
}; /* a longer list is thinned out to so many steps of bytes */

/* A partial set: one of the list before, and whether this segment is computed again. */
typedef struct set {
    size_t bytes; /* left behind so far */
    double seconds;
    uint32_t before; /* in the list before */
    uint8_t again;
} set;

typedef struct list {
    set *sets;
    size_t count;
} list;

/* ---- the chain --------------------------------------------------------------------------------- */

static mt_status check_segment(const char *function, const mt_segment_cost *s, size_t i) {
    MT__CHECK(s->output_bytes <= s->kept_bytes,
              "%s: segments[%zu].output_bytes is %zu; accepted: up to its kept_bytes, %zu",
              function, i, s->output_bytes, s->kept_bytes);
    MT__CHECK(s->seconds >= 0 && isfinite(s->seconds),
              "%s: segments[%zu].seconds is %g; accepted: at least 0", function, i, s->seconds);
    return MT_OK;
}

/* Most bytes of its own that are alive at a time. */
static size_t alive(const mt_segment_cost *s) {
    return mt__max(s->kept_bytes, s->work_bytes);
}

static mt_status check_chain(const char *function, const mt_segment_cost *segments, size_t count) {
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        mt_status status = check_segment(function, &segments[i], i);
        if (status != MT_OK) return status;
        MT__CHECK(alive(&segments[i]) <= SIZE_MAX - sum,
                  "%s: segments[%zu].%s is %zu, with those before it beyond any memory", function,
                  i, segments[i].work_bytes > segments[i].kept_bytes ? "work_bytes" : "kept_bytes",
                  alive(&segments[i]));
        sum += segments[i].kept_bytes;
    }
    return MT_OK;
}

static mt_status check_arguments(const char *function, const mt_segment_cost *segments,
                                 size_t count, const mt_segments_choice *out) {
    MT__CHECK(segments, "%s: segments is NULL", function);
    MT__CHECK(count, "%s: count is 0; accepted: at least 1", function);
    mt_status status = mt__check_sized(out, function, "out");
    return status == MT_OK ? check_chain(function, segments, count) : status;
}

static size_t left_behind(const mt_segment_cost *s, int again) {
    return again ? s->output_bytes : s->kept_bytes;
}

static void summarise(const mt_segment_cost *segments, size_t count, const unsigned char *again,
                      mt_segments_choice *out) {
    mt_segments_choice own = MT_SEGMENTS_CHOICE_INIT;
    size_t behind = 0;
    for (size_t i = 0; i < count; i++) {
        int is_again = again && again[i];
        own.peak_bytes = mt__max(own.peak_bytes, behind + alive(&segments[i]));
        behind += left_behind(&segments[i], is_again);
        own.recomputed += (size_t)is_again;
        own.seconds += is_again ? segments[i].seconds : 0.0;
    }
    mt__copy_versioned(out, out->size, &own, sizeof own);
}

/* ---- the walk ---------------------------------------------------------------------------------- */

static set extend(const list *before, size_t index, const mt_segment_cost *s, int again) {
    const set *from = &before->sets[index];
    set next = {from->bytes + left_behind(s, again), from->seconds + (again ? s->seconds : 0.0),
                (uint32_t)index, (uint8_t)again};
    return next;
}

static int comes_first(const set *a, const set *b) {
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->seconds <= b->seconds;
}

/* Sets come by rising bytes: one that saves no seconds over the last is not worth its bytes. */
static void append(list *to, const set *next) {
    if (to->count && next->seconds >= to->sets[to->count - 1].seconds) return;
    to->sets[to->count++] = *next;
}

/* Of each step of bytes the fastest set, and the smallest of all. */
static void thin_out(list *l, size_t budget) {
    size_t step = budget / STEPS + 1, count = 1;
    if (l->count <= MOST_SETS) return;
    for (size_t i = 1; i < l->count; i++) {
        int last = i + 1 == l->count || l->sets[i + 1].bytes / step != l->sets[i].bytes / step;
        if (last) l->sets[count++] = l->sets[i];
    }
    l->count = count;
}

/* Both ways to go on from each set that what the segment needs fits beside, merged. */
static mt_status walk(const list *before, const mt_segment_cost *s, size_t budget, list *out) {
    size_t i = 0, j = 0, fit = 0;
    while (fit < before->count && alive(s) <= budget &&
           before->sets[fit].bytes <= budget - alive(s))
        fit++;
    out->count = 0;
    out->sets = mt__alloc(2 * fit + 1, sizeof *out->sets);
    if (!out->sets) return mt_set_error(MT_ENOMEM, "mt_segments_choose: out of host memory");
    while (i < fit || j < fit) {
        set again = i < fit ? extend(before, i, s, 1) : (set){0, 0, 0, 0};
        set plain = j < fit ? extend(before, j, s, 0) : (set){0, 0, 0, 0};
        int take_again = j == fit || (i < fit && comes_first(&again, &plain));
        append(out, take_again ? &again : &plain);
        take_again ? i++ : j++;
    }
    thin_out(out, budget);
    return MT_OK;
}

/* The fastest set is the last of the last list; back from it. */
static void trace_back(const list *lists, size_t count, unsigned char *out) {
    size_t index = lists[count].count - 1;
    for (size_t i = count; i > 0; i--) {
        const set *s = &lists[i].sets[index];
        out[i - 1] = s->again;
        index = s->before;
    }
}

/* lists[i] is that of i segments. MT_EDEVMEM where no set gets to the end. */
static mt_status walk_all(const mt_segment_cost *segments, size_t count, size_t budget,
                          list *lists) {
    lists[0].sets = mt__alloc(1, sizeof *lists[0].sets);
    if (!lists[0].sets) return mt_set_error(MT_ENOMEM, "mt_segments_choose: out of host memory");
    lists[0].count = 1;
    for (size_t i = 0; i < count; i++) {
        mt_status status = walk(&lists[i], &segments[i], budget, &lists[i + 1]);
        if (status != MT_OK) return status;
        if (!lists[i + 1].count) return MT_EDEVMEM;
    }
    return MT_OK;
}

static mt_status does_not_fit(size_t least, size_t budget) {
    char needed[32], there[32];
    return mt_set_error(MT_EDEVMEM, "mt_segments_choose: all segments computed again take %s of %s",
                        mt_format_size(least, needed, sizeof needed),
                        mt_format_size(budget, there, sizeof there));
}

mt_status mt_segments_choose(const mt_segment_cost *segments, size_t count, size_t budget_bytes,
                             unsigned char *out_recompute, mt_segments_choice *out) {
    mt_status status = check_arguments("mt_segments_choose", segments, count, out);
    if (status != MT_OK) return status;
    MT__CHECK(out_recompute, "mt_segments_choose: out_recompute is NULL");
    list *lists = mt__alloc(count + 1, sizeof *lists);
    if (!lists) return mt_set_error(MT_ENOMEM, "mt_segments_choose: out of host memory");
    status = walk_all(segments, count, budget_bytes, lists);
    if (status == MT_OK) trace_back(lists, count, out_recompute);
    for (size_t i = 0; i <= count; i++) mt__free(lists[i].sets);
    mt__free(lists);
    if (status == MT_EDEVMEM) memset(out_recompute, 1, count);
    if (status == MT_OK || status == MT_EDEVMEM) summarise(segments, count, out_recompute, out);
    return status == MT_EDEVMEM ? does_not_fit(out->peak_bytes, budget_bytes) : status;
}

mt_status mt_segments_price(const mt_segment_cost *segments, size_t count,
                            const unsigned char *recompute, mt_segments_choice *out) {
    mt_status status = check_arguments("mt_segments_price", segments, count, out);
    if (status == MT_OK) summarise(segments, count, recompute, out);
    return status;
}
