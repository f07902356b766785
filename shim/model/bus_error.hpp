/*
 * bus_error.hpp - SIGBUS for pages of mapped files that cannot be read: zeros take their place, and who computes
 * with them is told.
 */
#ifndef MEMTRAIN_SHIM_BUS_ERROR_HPP
#define MEMTRAIN_SHIM_BUS_ERROR_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace memtrain::shim {

/*
 * Addresses for which the signal is handled while the object lives. The handler is put in place with the first of
 * them; other addresses are the business of the one before. Throws std::bad_alloc, and Failure where the system
 * takes no handler.
 */
class WatchedRange {
public:
    WatchedRange(const void *begin, size_t bytes);
    ~WatchedRange();
    WatchedRange(const WatchedRange &) = delete;
    WatchedRange &operator=(const WatchedRange &) = delete;

    /* Whether a page of it could not be read, so that there are zeros. */
    bool failed() const;

    /* An entry of the handler's list, which only grows: it may be read at any moment. */
    struct Entry {
        std::atomic<uintptr_t> begin, end; /* equal: free */
        std::atomic<bool> failed;
        Entry *next;
    };

private:
    Entry *entry_;
};

} // namespace memtrain::shim
#endif
