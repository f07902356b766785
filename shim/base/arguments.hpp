/*
 * arguments.hpp - checks of what callers hand in: handles, and structs that start with their size.
 */
#ifndef MEMTRAIN_SHIM_ARGUMENTS_HPP
#define MEMTRAIN_SHIM_ARGUMENTS_HPP

#include <cstddef>
#include <cstring>

#include <memtrain/torch.h>

#include "handle.h"

namespace memtrain::shim {

/* MT_OK, or MT_EINVAL with "FUNCTION: ARGUMENT is NULL" or "... is not a live handle". */
mt_status check_handle(const void *handle, int kind, const char *function, const char *argument);

mt_status check_not_null(const void *pointer, const char *function, const char *argument);

/*
 * Checks a struct that starts with its own size. A size below size_t itself is one that the caller
 * forgot to set.
 */
mt_status check_sized(const void *sized, const char *function, const char *argument);

/* Own copy of a caller's options: fields that an older caller does not know keep their value. */
template <class Struct> void copy_in(Struct &own, const Struct *theirs) {
    std::memcpy(&own, theirs, theirs->size < sizeof own ? theirs->size : sizeof own);
    own.size = sizeof own;
}

/* Fields of own into the caller's struct, as many as it has room for; its size tells how many bytes are filled in. */
template <class Struct> void hand_over(const Struct &own, Struct *theirs) {
    size_t size = theirs->size < sizeof own ? theirs->size : sizeof own;
    std::memcpy(theirs, &own, size);
    std::memcpy(theirs, &size, sizeof size);
}

/* The number in an enum of a C caller's, which may be none of its values: C++ must not load those. */
template <class Enum> int number_of(const Enum &value) {
    int number;
    static_assert(sizeof number == sizeof value, "enums of C have the size of an int");
    std::memcpy(&number, &value, sizeof number);
    return number;
}

} // namespace memtrain::shim

/* Leaves the function with the status unless it is MT_OK. Only while nothing is held. */
#define MT_RETURN_IF_FAILED(expression)                                                            \
    do {                                                                                           \
        mt_status status_ = (expression);                                                          \
        if (status_ != MT_OK) return status_;                                                      \
    } while (0)

#endif
