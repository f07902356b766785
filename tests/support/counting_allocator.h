/*
 * counting_allocator.h - the C library's allocator with a count and a fault, for mt_set_allocator.
 *
 * counting_install() is to be called before anything else of libmemtrain. Tests run in a process of
 * their own each, so the counters start at zero.
 */
#ifndef MEMTRAIN_TESTS_COUNTING_ALLOCATOR_H
#define MEMTRAIN_TESTS_COUNTING_ALLOCATOR_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What mt_set_allocator returned. */
mt_status counting_install(void);

/* Blocks that have not been freed, and requests for a new or larger one so far. */
size_t counting_live(void);
size_t counting_requests(void);

/*
 * Counts requests from 1 again and makes the n-th return NULL, or that one and all after it when
 * persistent; 0: none. counting_fired() says how many were refused.
 */
void counting_fail_at(size_t n, int persistent);
size_t counting_fired(void);

#ifdef __cplusplus
}
#endif
#endif
