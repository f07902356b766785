/*
 * bus_error.cpp - the handler of SIGBUS. What it calls is safe within a signal: mmap is a system call, and the list is
 * of atomics that are never freed.
 */
#include "bus_error.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

#include "guard.hpp"

namespace memtrain::shim {
namespace {

using Entry = WatchedRange::Entry;

std::atomic<Entry *> entries{nullptr};
std::mutex adding;
struct sigaction before;  /* the handler that was there */
uintptr_t page_bytes = 0; /* 0: ours is not in place yet */

Entry *entry_at(uintptr_t address) {
    for (Entry *entry = entries.load(); entry; entry = entry->next)
        if (address >= entry->begin && address < entry->end) return entry;
    return nullptr;
}

/* Without a handler the fault comes again, and ends the process as it would have. */
void pass_on(int number, siginfo_t *info, void *context) {
    if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        return before.sa_handler(number);
    struct sigaction plain = {};
    plain.sa_handler = SIG_DFL;
    sigaction(number, &plain, nullptr);
    if (info->si_code <= 0)
        (void)raise(number); /* sent by a process, and no fault that comes again */
}

void on_bus_error(int number, siginfo_t *info, void *context) {
    int error = errno;
    auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    Entry *entry = entry_at(address);
    void *page = reinterpret_cast<void *>(address / page_bytes * page_bytes);
    constexpr int zeros = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (entry && mmap(page, page_bytes, PROT_READ, zeros, -1, 0) == page)
        entry->failed = true;
    else
        pass_on(number, info, context);
    errno = error;
}

void put_in_place() {
    if (page_bytes) return;
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction own = {};
    own.sa_sigaction = on_bus_error;
    own.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&own.sa_mask);
    if (sigaction(SIGBUS, &own, &before) == 0) return;
    page_bytes = 0;
    fail(MT_EIO, "the system takes no handler of SIGBUS: %s", std::strerror(errno));
}

Entry *free_entry() {
    for (Entry *entry = entries.load(); entry; entry = entry->next)
        if (entry->begin == entry->end) return entry;
    auto *entry = new Entry{{0}, {0}, {false}, entries.load()};
    entries.store(entry);
    return entry;
}

} // namespace

WatchedRange::WatchedRange(const void *begin, size_t bytes) {
    std::lock_guard<std::mutex> lock(adding);
    put_in_place();
    entry_ = free_entry();
    entry_->failed = false;
    entry_->begin = reinterpret_cast<uintptr_t>(begin);
    entry_->end = reinterpret_cast<uintptr_t>(begin) + bytes;
}

/* The end goes first, so that no address is in it meanwhile. */
WatchedRange::~WatchedRange() {
    std::lock_guard<std::mutex> lock(adding);
    entry_->end = entry_->begin.load();
}

bool WatchedRange::failed() const {
    return entry_->failed;
}

} // namespace memtrain::shim
