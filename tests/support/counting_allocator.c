/*
 * counting_allocator.c - see counting_allocator.h.
 */
#include "counting_allocator.h"

#include <stdlib.h>

static struct {
    size_t live, requests, fail_at, fired;
    int persistent;
} counting;

static int request_fails(void) {
    size_t n = ++counting.requests;

    if (counting.fail_at == 0 || n < counting.fail_at) return 0;
    if (n > counting.fail_at && !counting.persistent) return 0;
    counting.fired++;
    return 1;
}

static void *counting_malloc(size_t bytes) {
    void *block = request_fails() ? NULL : malloc(bytes);

    counting.live += block != NULL;
    return block;
}

static void *counting_realloc(void *old, size_t bytes) {
    void *block = request_fails() ? NULL : realloc(old, bytes);

    counting.live += old == NULL && block != NULL;
    return block;
}

static void counting_free(void *block) {
    counting.live -= block != NULL;
    free(block);
}

mt_status counting_install(void) {
    return mt_set_allocator(counting_malloc, counting_realloc, counting_free);
}

size_t counting_live(void) {
    return counting.live;
}

size_t counting_requests(void) {
    return counting.requests;
}

void counting_fail_at(size_t n, int persistent) {
    counting.requests = 0;
    counting.fired = 0;
    counting.fail_at = n;
    counting.persistent = persistent;
}

size_t counting_fired(void) {
    return counting.fired;
}
