/*
 * blocks.c - the blocks of a chunk of any size, from the recordings of two.
 */
#include <memtrain/blocks.h>

#include "internal.h"
#include "recording.h"

#include <math.h>

/* Sizes and samples above it count as so many: what is made of them stays within 63 bits. */
#define MOST (SIZE_MAX / 8)

/* The size of a block at m samples on the line through two, rounded up, at least 1. */
static size_t size_at(size_t small, size_t large, size_t from, size_t to, size_t samples) {
    int64_t a = (int64_t)small, c = (int64_t)large, run = (int64_t)(to - from);
    int64_t steps = (int64_t)mt__min(samples, MOST) - (int64_t)from;
    double rough = (double)a + (double)(c - a) * (double)steps / (double)run;
    if (rough < 1) return 1;
    if (rough > (double)MOST || small > MOST || large > MOST) return MOST;
    int64_t each = (c - a) / run, over = (c - a) % run;
    if (fabs((double)over * (double)steps) > (double)MOST) return (size_t)rough + 1;
    int64_t whole = each * steps, rest = over * steps;
    return (size_t)(a + whole + rest / run + (rest % run > 0));
}

/*
 * The blocks of a recording, instants counted in allocations: what is released between two of them, in
 * whatever order, is gone before the second.
 */
static void list_blocks(const mt_recording *r, int apart, mt_block *blocks) {
    size_t now = 0;
    for (size_t e = 0; e < r->count; e++) {
        const mt__event *event = &r->events[e];
        if (event->what == MT__TAKEN)
            blocks[now] = (mt_block){event->bytes, now, SIZE_MAX, 0}, now++;
        else if (mt__ends_life(r, event, apart))
            blocks[r->events[event->partner].number].end = now;
    }
}

static mt_status check_pair(const mt_recording *small, const mt_recording *large, size_t samples) {
    MT__CHECK_HANDLE(small, MT__KIND_RECORDING, "mt_recording_blocks");
    if (large) MT__CHECK_HANDLE(large, MT__KIND_RECORDING, "mt_recording_blocks");
    MT__CHECK(!small->incomplete && (!large || !large->incomplete),
              "mt_recording_blocks: a recording is incomplete: host memory ran out");
    MT__CHECK(samples > 0, "mt_recording_blocks: samples is 0; at least 1 is accepted");
    MT__CHECK(large || samples == small->samples,
              "mt_recording_blocks: samples is %zu; one recording of %zu tells of no other size",
              samples, small->samples);
    if (!large) return MT_OK;
    MT__CHECK(large->samples <= MOST,
              "mt_recording_blocks: 'large' is of %zu samples; accepted: up to %zu", large->samples,
              MOST);
    MT__CHECK(
        small->samples < large->samples,
        "mt_recording_blocks: 'small' is of %zu samples and 'large' of %zu; large must be larger",
        small->samples, large->samples);
    return MT_OK;
}

/*
 * The blocks of the larger one, with sizes on the lines through them and their partners. Where both have
 * as many, the longer of two lifetimes counts.
 */
static mt_status combine(const mt_recording *small, const mt_recording *large, size_t samples,
                         const mt_block *other, mt_block *blocks) {
    int is_alike = small->allocations == large->allocations;
    ptrdiff_t *partner = mt__alloc(large->allocations, sizeof *partner);
    if (!partner || !mt__pair_up(small, large, partner)) {
        mt__free(partner);
        return mt_set_error(MT_ENOMEM, "mt_recording_blocks: out of host memory");
    }
    for (size_t i = 0; i < large->allocations; i++) {
        if (is_alike) blocks[i].end = mt__max(blocks[i].end, other[i].end);
        if (partner[i] < 0) continue;
        blocks[i].bytes = size_at(other[partner[i]].bytes, blocks[i].bytes, small->samples,
                                  large->samples, samples);
    }
    mt__free(partner);
    return MT_OK;
}

static mt_status blocks_of_two(const mt_recording *small, const mt_recording *large, size_t samples,
                               int apart, mt_block *blocks) {
    mt_block *other = mt__alloc(small->allocations, sizeof *other);
    if (!other) return mt_set_error(MT_ENOMEM, "mt_recording_blocks: out of host memory");
    list_blocks(small, apart, other);
    list_blocks(large, apart, blocks);
    mt_status status = combine(small, large, samples, other, blocks);
    mt__free(other);
    return status;
}

mt_status mt_recording_blocks(const mt_recording *small, const mt_recording *large, size_t samples,
                              int apart, mt_block *blocks, size_t capacity, size_t *count) {
    MT__CHECK(count, "mt_recording_blocks: count is NULL");
    *count = 0;
    mt_status status = check_pair(small, large, samples);
    if (status != MT_OK) return status;
    MT__CHECK(blocks || capacity == 0, "mt_recording_blocks: blocks is NULL");
    size_t all = large ? large->allocations : small->allocations;
    MT__CHECK(capacity == 0 || capacity >= all,
              "mt_recording_blocks: capacity is %zu; there are %zu blocks", capacity, all);
    if (capacity && large && small->allocations && large->allocations)
        status = blocks_of_two(small, large, samples, apart, blocks);
    else if (capacity)
        list_blocks(large ? large : small, apart, blocks);
    if (status == MT_OK) *count = all;
    return status;
}
