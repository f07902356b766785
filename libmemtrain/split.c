/*
 * split.c - how a batch is split into chunks. Rules: docs/policy.md.
 */
#include "split.h"

#include "tuned.h"

size_t mt__begin_size(size_t samples) {
    return mt__max(LEAST_NORMALISED, samples / (2 * SMALLEST_SHARE));
}

/* Whether rest is known to fit as one chunk without an accumulator. */
static int fits_alone(const mt__facts *f, const mt__kind *k) {
    int is_known =
        mt__kind_is_recorded(k, MT__APART) || k->limits[MT__APART].largest_ran >= f->rest;
    return f->may_go_alone && is_known && f->rest <= f->most &&
           mt__kind_predict(k, MT__APART, f->rest) <= f->room_alone &&
           f->rest <= mt__kind_allowed(k, MT__APART, f->room_alone);
}

/*
 * The first chunk of a kind: a very small one where it is recorded; else one that batches could begin with. 0: there is none.
 */
static size_t first_chunk(const mt__facts *f, const mt__kind *k) {
    size_t begin = mt__min(mt__begin_size(f->rest), f->rest / 2);
    size_t first = mt__max(f->can_record ? FIRST_CHUNK : begin, f->least);
    if (k->has_run || f->room == SIZE_MAX || f->ran) return 0;
    if (!mt__can_be_cut(mt__left(f->rest, first), f->least, f->most)) return 0;
    if (first > f->most || first <= k->learnt) return 0;
    return first > mt__kind_allowed(k, MT__IN_PLACE, f->room) ? 0 : first;
}

static mt__split cut(size_t chunks, size_t fewest, int alone) {
    return (mt__split){.chunks = chunks, .fewest = fewest, .alone = alone};
}

mt__split mt__split_batch(const mt__facts *f, const mt__kind *k) {
    /* 1. The last resort of these rungs. */
    const size_t most_chunks = f->rest / f->least;
    const size_t none = f->rest + 1; /* more chunks than there can be */
    if (f->must_go_alone) return cut(1, none, 1);
    if (f->tries_larger && !k->limits[MT__IN_PLACE].largest_ran)
        return cut(mt__min(mt__ceil_div(f->rest, mt__begin_size(f->batch)), most_chunks), 1, 0);

    /* 2. Chunks that are given: the user's, or one of a loss that couples the samples. */
    int alone = fits_alone(f, k);
    size_t given = f->fixed ? mt__ceil_div(f->rest, f->fixed) : 0;
    int fits_given = alone || !given || !mt__kind_rules_out(k, MT__IN_PLACE, given, f->room);
    if (given) return cut(fits_given ? f->fixed : 0, f->fixed, alone);

    /* 3. A kind begins with a small chunk, which tells what each sample needs. */
    size_t first = first_chunk(f, k);
    int is_taken_back = f->is_deterministic || (f->normalises && f->all_at_once);
    is_taken_back = is_taken_back && f->can_record && f->is_training;
    if (first) return (mt__split){.size = first, .chunks = 1, .discard = is_taken_back};

    /* 4. The largest chunk that fits, balanced. */
    size_t small = mt__ceil_div(f->rest, most_chunks);
    size_t fits_batch = mt__min(mt__kind_largest(k, MT__IN_PLACE, f->room), f->most);
    size_t fits = mt__min(fits_batch, f->rest);
    int is_out = fits < small && mt__kind_rules_out(k, MT__IN_PLACE, small, f->room_told);
    if (alone && fits < small) return cut(1, none, 1);
    if (is_out || f->most < small) return cut(0, 0, 0);
    /* The smallest is tried where none is known to fit. */
    size_t fewest = mt__min(mt__ceil_div(f->rest, mt__max(fits, 1)), most_chunks);
    size_t top = mt__ceil_div(f->rest, fewest);

    /* 5. Sizes from memory alone: the fewest chunks, once a chunk as large has been recorded. */
    if (f->is_deterministic) {
        int learns = f->can_record && f->room < SIZE_MAX && f->is_training && !f->ran && !f->is_cut;
        /* Of one recorded size top is an estimate, so that the next one is twice as large. */
        const mt__range *r = k->range;
        int is_estimate = k->ranges == 1 && r->from == r->top;
        size_t chunk = is_estimate ? mt__min(top, mt__max(f->least, 2 * r->from)) : top;
        if (learns && top < f->rest && chunk > k->learnt && mt__kind_wants_recording(k, chunk))
            return (mt__split){.size = chunk, .chunks = 1, .fewest = fewest, .discard = 1};
        return cut(alone ? 1 : fewest, fewest, alone);
    }

    /* 6. Sizes that are to be known run as one chunk each; as a whole batch where the next length would set each up again. */
    const mt__sizes *sizes = &k->times->sizes;
    int whole = f->all_at_once || k->times->kinds > 1;
    size_t fewest_of_batch = mt__ceil_div(f->batch, mt__max(mt__min(fits_batch, f->batch), 1));
    size_t largest = mt__ceil_div(f->batch, fewest_of_batch);
    size_t floor = mt__max(f->least, f->normalises ? mt__min(LEAST_NORMALISED, top) : 1);
    mt__bounds tried = {.top = largest, .left = floor, .legal = f->least};
    tried.least = mt__max(mt__max(floor, 2 * FIRST_CHUNK), k->too_small + 1);
    tried.alone = alone && fewest > 1 ? f->rest : 0;
    tried.even = whole ? f->rest : 0;
    /* Without a clock nothing is to be known. Where not even the smallest is known to fit, it is tried alone. */
    int is_tried = !f->is_cut && sizes->count && fits >= small;
    size_t next = is_tried ? mt__sizes_next(sizes, &tried, f->rest, f->ran) : 0;
    /* What a tried chunk leaves has sizes that ran: others would be set up for this batch alone. */
    int is_left = is_tried && f->ran && !next && !whole;
    size_t size = is_left ? mt__sizes_that_ran(sizes, &tried, f->rest) : next;

    /* 7. All others have the size that is the fastest. */
    mt__bounds all = tried;
    all.top = top;
    all.least = mt__min(tried.least, top);
    size_t chunks = sizes->count ? mt__sizes_fastest(sizes, &all, f->rest) : all.alone ? 1 : fewest;
    if (size) chunks = is_left ? f->rest / size : whole ? mt__ceil_div(f->rest, size) : 1;
    if (whole || f->rest == size * chunks) size = 0;
    mt__split split = cut(chunks, fewest, !size && chunks == 1 && alone);
    split.size = size;

    /* 8. A first chunk that is less than half of those to come is not to count where chunks normalise. */
    size_t chunk = size ? size : mt__ceil_div(f->rest, chunks);
    split.starts_over = f->normalises && f->ran && 2 * f->ran < mt__min(chunk, LEAST_NORMALISED);
    return split;
}
