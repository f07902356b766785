/*
 * recording.c - notes the allocations and releases of one chunk.
 *
 * An event costs one lookup in a hash table from block addresses to events; the tables keep their
 * memory between recordings.
 */
#include "recording.h"

#include <string.h>

struct mt__live {
    const void *address; /* NULL: free */
    size_t event;
};

mt_status mt_recording_new(mt_recording **out) {
    MT__CHECK(out, "mt_recording_new: out is NULL");
    *out = NULL;
    mt_recording *r = mt__alloc(1, sizeof *r);
    if (!r || !mt__handle_add(r, MT__KIND_RECORDING)) {
        mt__free(r);
        return mt_set_error(MT_ENOMEM, "mt_recording_new: out of host memory");
    }
    *out = r;
    return MT_OK;
}

void mt_recording_free(mt_recording *r) {
    if (!mt__handle_remove(r, MT__KIND_RECORDING)) return;
    mt__free(r->events);
    mt__free(r->live);
    mt__free(r);
}

void mt__recording_restart(mt_recording *r, size_t samples) {
    r->samples = samples;
    r->count = r->allocations = r->handed_over = 0;
    r->live_bytes = r->peak_bytes = 0;
    r->incomplete = 0;
    r->live_count = 0;
    if (r->live) memset(r->live, 0, r->live_capacity * sizeof *r->live);
}

mt_status mt_recording_start(mt_recording *recording, size_t samples) {
    MT__CHECK_HANDLE(recording, MT__KIND_RECORDING, "mt_recording_start");
    MT__CHECK(samples > 0, "mt_recording_start: samples is 0; at least 1 is accepted");
    mt__recording_restart(recording, samples);
    return MT_OK;
}

static size_t home(const void *address, size_t size) {
    uint64_t x = (uint64_t)(uintptr_t)address >> 6; /* blocks are 64-byte aligned */
    x *= 0x9e3779b97f4a7c15u;                       /* Fibonacci hashing, as in handle.c */
    return (size_t)(x >> 32) & (size - 1);
}

static size_t find(const struct mt__live *table, size_t size, const void *address) {
    size_t i = home(address, size);
    while (table[i].address && table[i].address != address) i = (i + 1) & (size - 1);
    return i;
}

static int reserve_live(mt_recording *r) {
    if (r->live_capacity && r->live_count + 1 <= r->live_capacity / 2) return 1;
    size_t size = r->live_capacity ? r->live_capacity * 2 : 256;
    struct mt__live *table = mt__alloc(size, sizeof *table);
    if (!table) return 0;
    for (size_t i = 0; i < r->live_capacity; i++)
        if (r->live[i].address) table[find(table, size, r->live[i].address)] = r->live[i];
    mt__free(r->live);
    r->live = table;
    r->live_capacity = size;
    return 1;
}

static int reserve_events(mt_recording *r) {
    if (r->count + 2 <= r->capacity) return 1; /* one event adds at most two */
    size_t capacity = r->capacity ? r->capacity * 2 : 1024;
    mt__event *events = mt__grow(r->events, capacity, sizeof *events);
    if (!events) return 0;
    r->events = events;
    r->capacity = capacity;
    return 1;
}

/* Closes the gap at i (Knuth's algorithm R, as in handle.c). */
static void remove_live(mt_recording *r, size_t i) {
    size_t mask = r->live_capacity - 1;
    for (size_t j = (i + 1) & mask; r->live[j].address; j = (j + 1) & mask) {
        size_t distance = (j - home(r->live[j].address, r->live_capacity)) & mask;
        if (distance >= ((j - i) & mask)) {
            r->live[i] = r->live[j];
            i = j;
        }
    }
    r->live[i].address = NULL;
    r->live_count--;
}

static void note_release(mt_recording *r, const void *address) {
    if (!r->live_capacity) return;
    size_t i = find(r->live, r->live_capacity, address);
    if (!r->live[i].address) return; /* older than the recording */
    size_t event = r->live[i].event;
    remove_live(r, i);
    r->events[event].partner = r->count;
    r->live_bytes -= r->events[event].bytes;
    r->events[r->count++] = (mt__event){0, event, 0, MT__RELEASED, 0};
}

/* Once a block: a parameter has one gradient. */
static void note_handed_over(mt_recording *r, const void *address) {
    if (!r->live_capacity) return;
    size_t i = find(r->live, r->live_capacity, address);
    if (!r->live[i].address || r->events[r->live[i].event].handed_over) return;
    r->events[r->live[i].event].handed_over = 1;
    r->events[r->count++] = (mt__event){0, r->live[i].event, 0, MT__HANDED_OVER, 0};
    r->handed_over++;
}

static void note_allocation(mt_recording *r, const void *address, size_t bytes) {
    note_release(r, address); /* where the release was missed, say on another thread */
    size_t i = find(r->live, r->live_capacity, address);
    r->live_count++;
    r->live[i] = (struct mt__live){address, r->count};
    r->events[r->count++] = (mt__event){bytes, SIZE_MAX, r->allocations++, MT__TAKEN, 0};
    r->live_bytes += bytes;
    r->peak_bytes = mt__max(r->peak_bytes, r->live_bytes);
}

void mt_recording_event(mt_recording *r, void *address, int64_t bytes) {
    if (!mt__handle_is(r, MT__KIND_RECORDING) || !address || r->incomplete) return;
    if (!reserve_events(r) || (bytes > 0 && !reserve_live(r))) {
        r->incomplete = 1;
        return;
    }
    if (bytes > 0)
        note_allocation(r, address, (size_t)bytes);
    else if (bytes < 0)
        note_release(r, address);
    else
        note_handed_over(r, address);
}

int mt__ends_life(const mt_recording *r, const mt__event *e, int apart) {
    if (!r->events[e->partner].handed_over) return e->what == MT__RELEASED;
    return e->what == MT__HANDED_OVER && !apart;
}

size_t mt__recording_peak(const mt_recording *r, int apart) {
    size_t now = 0, peak = 0;
    for (size_t e = 0; e < r->count; e++) {
        const mt__event *event = &r->events[e];
        if (event->what == MT__TAKEN)
            peak = mt__max(peak, now += event->bytes);
        else if (mt__ends_life(r, event, apart))
            now -= r->events[event->partner].bytes;
    }
    return peak;
}

size_t mt_recording_samples(const mt_recording *r) {
    return mt__handle_is(r, MT__KIND_RECORDING) ? r->samples : 0;
}

size_t mt_recording_allocations(const mt_recording *r) {
    return mt__handle_is(r, MT__KIND_RECORDING) ? r->allocations : 0;
}

size_t mt_recording_peak_bytes(const mt_recording *r) {
    return mt__handle_is(r, MT__KIND_RECORDING) ? r->peak_bytes : 0;
}
