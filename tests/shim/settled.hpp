/* settled.hpp - memory that is in use after a step that failed. */
#ifndef MEMTRAIN_TESTS_SETTLED_HPP
#define MEMTRAIN_TESTS_SETTLED_HPP

#include <cstddef>

#include <unistd.h>

/*
 * Bytes that allocated() tells once they are not above `wanted`, or after a second. The thread that libtorch has for the backward
 * pass of a card wakes the caller with the error first, and drops its last tensors then.
 */
template <class Allocated> size_t settled(size_t wanted, const Allocated &allocated) {
    for (int i = 0; i < 1000 && allocated() > wanted; i++) usleep(1000);
    return allocated();
}

#endif
