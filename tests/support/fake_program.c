/*
 * fake_program.c - what a chunk of the simulated model allocates, and when it gives that back; see fake_program.h.
 */
#include "fake_program.h"

/* Convex peak: the early instants have the large constants, the late ones the steep slopes. */
static const fake_allocation train_allocations[] = {
    {40000, 100, 2}, /* a workspace that is large whatever the chunk */
    {1000, 2000, FAKE_AT_END},
    {512, 1500, 9},
    {64, 3000, 5},
    {20000, 700, 6},
    {256, 2500, 11},
    {128, 4000, 8},
    {8, 0, 8}, /* a scalar */
    {300, 1250, 10},
    {0, 3500, FAKE_AT_END},
    {4096, 16, FAKE_AT_END},
    {96, 900, FAKE_AT_END},
};

static const fake_allocation eval_allocations[] = {
    {1000, 2000, 2}, {512, 1500, 3}, {64, 1800, 4}, {2000, 40, FAKE_AT_END}, {8, 8, FAKE_AT_END},
};

const fake_allocation fake_wide_allocations[FAKE_WIDE_COUNT] = {
    {40000, 100, 2}, {1000, 2000, FAKE_AT_END},  {90000, 9000, 4}, {512, 1500, 9},
    {64, 3000, 6},   {30000, 8000, FAKE_AT_END},
};

const fake_program fake_train_program = {train_allocations, 12};
const fake_program fake_eval_program = {eval_allocations, 5};

size_t fake_allocation_bytes(const fake_allocation *allocation, size_t samples) {
    return (size_t)(allocation->base + allocation->per_sample * (int64_t)samples);
}

static int64_t share(int64_t bytes, unsigned rungs) {
    for (rungs &= ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH); rungs > 0; rungs &= rungs - 1)
        bytes = bytes * 3 / 5;
    return bytes;
}

fake_program fake_program_with(const fake_program *program, unsigned rungs,
                               fake_allocation storage[FAKE_ALLOCATIONS_MAX]) {
    fake_program scaled = {storage, program->count};

    for (size_t i = 0; i < program->count; i++) {
        storage[i] = program->allocations[i];
        storage[i].base = share(storage[i].base, rungs);
        storage[i].per_sample = share(storage[i].per_sample, rungs);
    }
    return scaled;
}

int fake_dies_before(const fake_program *program, size_t which, size_t now) {
    return program->allocations[which].dies_at == now && which < now;
}

size_t fake_program_peak(const fake_program *program, size_t samples) {
    size_t live = 0, peak = 0;

    for (size_t i = 0; i < program->count; i++) {
        for (size_t j = 0; j < i; j++)
            if (fake_dies_before(program, j, i))
                live -= fake_allocation_bytes(&program->allocations[j], samples);
        live += fake_allocation_bytes(&program->allocations[i], samples);
        if (live > peak) peak = live;
    }
    return peak;
}

static void *slot_address(size_t slot) {
    return (void *)(uintptr_t)(0x10000 + 0x1000 * slot);
}

void fake_tell(const mt_event_sink *sink, size_t slot, int64_t bytes) {
    if (sink->event != NULL) sink->event(sink->user, slot_address(slot), bytes);
}

void fake_block_take(fake_live *all, size_t which, size_t bytes, const mt_event_sink *sink) {
    size_t slot = 0;

    while (all->taken[slot]) slot++;
    all->taken[slot] = 1;
    all->alive[which] = 1;
    all->slot_of[which] = slot;
    all->bytes[which] = bytes;
    fake_tell(sink, slot, (int64_t)bytes);
}

size_t fake_block_release(fake_live *all, size_t which, const mt_event_sink *sink) {
    if (!all->alive[which]) return 0;
    all->alive[which] = 0;
    all->taken[all->slot_of[which]] = 0;
    fake_tell(sink, all->slot_of[which], -(int64_t)all->bytes[which]);
    return all->bytes[which];
}

void fake_program_record(const fake_program *program, size_t samples, const mt_event_sink *sink) {
    fake_live all = {0};

    for (size_t i = 0; i < program->count; i++) {
        for (size_t j = 0; j < i; j++)
            if (fake_dies_before(program, j, i)) fake_block_release(&all, j, sink);
        fake_block_take(&all, i, fake_allocation_bytes(&program->allocations[i], samples), sink);
    }
    for (size_t i = program->count; i-- > 0;) fake_block_release(&all, i, sink);
}
