/*
 * handle.c - the registry of live handles: an open-addressing hash table behind a spin lock.
 *
 * Lookups are a few nanoseconds and happen once a public call. The table takes its memory from the
 * C library and gives it back when the last handle is gone.
 */
#include "handle.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct slot {
    const void *handle; /* NULL: free */
    int kind;
} slot;

static atomic_flag lock = ATOMIC_FLAG_INIT;
static slot *slots;
static size_t capacity; /* a power of two, or 0 */
static size_t used;

static void acquire(void) {
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) {
    }
}

static void release(void) {
    atomic_flag_clear_explicit(&lock, memory_order_release);
}

static size_t home(const void *handle, size_t size) {
    uint64_t x = (uint64_t)(uintptr_t)handle >> 4;
    x *= 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: Fibonacci hashing (Knuth, TAOCP 6.4) */
    return (size_t)(x >> 32) & (size - 1);
}

/* The slot of the handle, or the free one where it belongs. The table is never full. */
static size_t find(const slot *table, size_t size, const void *handle) {
    size_t i = home(handle, size);
    while (table[i].handle && table[i].handle != handle) i = (i + 1) & (size - 1);
    return i;
}

/* Keeps the load below one half. */
static int reserve(void) {
    if (capacity && used + 1 <= capacity / 2) return 1;
    size_t size = capacity ? capacity * 2 : 64;
    slot *table = calloc(size, sizeof *table);
    if (!table) return 0;
    for (size_t i = 0; i < capacity; i++)
        if (slots[i].handle) table[find(table, size, slots[i].handle)] = slots[i];
    free(slots);
    slots = table;
    capacity = size;
    return 1;
}

int mt__handle_add(const void *handle, int kind) {
    acquire();
    int done = reserve();
    if (done) {
        size_t i = find(slots, capacity, handle);
        used += !slots[i].handle;
        slots[i] = (slot){handle, kind};
    }
    release();
    return done;
}

int mt__handle_is(const void *handle, int kind) {
    int found = 0;
    if (!handle) return 0;
    acquire();
    if (capacity) {
        const slot *s = &slots[find(slots, capacity, handle)];
        found = s->handle == handle && s->kind == kind;
    }
    release();
    return found;
}

/* Closes the gap at i by moving later members of the probe sequence up (Knuth's algorithm R). */
static void close_gap(size_t i) {
    size_t mask = capacity - 1;
    for (size_t j = (i + 1) & mask; slots[j].handle; j = (j + 1) & mask) {
        size_t distance = (j - home(slots[j].handle, capacity)) & mask;
        if (distance >= ((j - i) & mask)) {
            slots[i] = slots[j];
            i = j;
        }
    }
    slots[i].handle = NULL;
}

int mt__handle_remove(const void *handle, int kind) {
    int found = 0;
    if (!handle) return 0;
    acquire();
    if (capacity) {
        size_t i = find(slots, capacity, handle);
        found = slots[i].handle == handle && slots[i].kind == kind;
        if (found) {
            close_gap(i);
            if (--used == 0) {
                free(slots);
                slots = NULL;
                capacity = 0;
            }
        }
    }
    release();
    return found;
}
