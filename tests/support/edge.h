/*
 * edge.h - structs that end where memory ends: whoever reads or writes behind them is stopped by the system.
 *
 * A struct that begins with its size may be a caller's of an older version, and so shorter than the library's.
 * For each size that ends on a field, edge_each places as much of it before a page that nobody may touch.
 */
#ifndef MEMTRAIN_TESTS_EDGE_H
#define MEMTRAIN_TESTS_EDGE_H

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "suite.h"

typedef struct edge_row {
    const char *name;
    size_t full; /* sizeof the struct */
    size_t
        least; /* from this size on the call succeeds; below it may be refused, and nothing else */
    const void *initial;
    mt_status (*call)(void *given);
} edge_row;

/* The first bytes of what is at from, with that as their size, against the end of a page. */
static inline void *edge_place(const void *from, size_t full, size_t size) {
    static char *page;
    size_t length = (size_t)sysconf(_SC_PAGESIZE);

    if (!page) {
        page = (char *)mmap(NULL, 2 * length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0);
        ck_assert_ptr_ne(page, MAP_FAILED);
        ck_assert_int_eq(mprotect(page + length, length, PROT_NONE), 0);
    }
    memset(page, 0, length);
    memcpy(page + length - size, from, size < full ? size : full);
    memcpy(page + length - size, &size, sizeof size);
    return page + length - size;
}

/* Fields lie at multiples of 8 bytes, or two ints share them; the last size is a newer caller's. */
static inline void edge_each(const edge_row *row) {
    for (size_t size = sizeof(size_t); size <= row->full + 64; size += sizeof(size_t)) {
        void *given = edge_place(row->initial, row->full, size);
        mt_status status = row->call(given);
        size_t after;

        memcpy(&after, given, sizeof after);
        ck_assert_msg(status == MT_OK || (size < row->least && status == MT_EINVAL),
                      "%s of %zu of %zu bytes: %s, %s", row->name, size, row->full,
                      mt_status_name(status), mt_last_error());
        ck_assert_msg(after == size || (size > row->full && after == row->full),
                      "%s of %zu bytes says %zu afterwards", row->name, size, after);
    }
}

#endif
