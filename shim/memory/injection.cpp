/* injection.cpp - counts of requests, and the way into an allocator whose source is not ours. */
#include "injection.hpp"

#include "compat.hpp"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <memtrain/status.h>

namespace memtrain::shim::injection {
namespace {

/* Below the exabyte from which on CUDA's allocator refuses without a look at the card. */
constexpr size_t more_than_there_is = size_t{1} << 59;

struct Count : c10::DebugInfoBase {
    std::atomic<uint64_t> requests{0}, refused{0};
    std::atomic<uint64_t> refuse_at{0}; /* 0: none */
    std::atomic<bool> is_persistent{false};

    bool add() noexcept {
        uint64_t number = ++requests, at = refuse_at;
        bool now = at && (is_persistent ? number >= at : number == at);
        refused += now;
        return now;
    }
};

thread_local std::shared_ptr<Count> own;
std::atomic<bool> is_in_use{false}; /* a thread has asked for a count */

/* Where libtorch keeps what it hands to the threads that work for this one. The place is meant for tests. */
c10::DebugInfoKind place() {
    return c10::DebugInfoKind::TEST_INFO;
}

/* What others have put there hides the count: the test device does, while a kernel runs. */
Count *current() {
    c10::DebugInfoBase *there = c10::ThreadLocalDebugInfo::get(place());
    return there ? dynamic_cast<Count *>(there) : own.get();
}

/* ---- allocators of cards ---- */

using Allocate = c10::DataPtr (*)(c10::Allocator *, size_t);

/* A class of allocators, by its table of virtual functions. */
struct Reached {
    void **table;
    Allocate allocate; /* its own */
};

constexpr size_t most_classes = 8;
Reached all_reached[most_classes];
std::atomic<size_t> count_reached{0};
std::mutex reaching;

void **table_of(const c10::Allocator &allocator) {
    void **table;
    std::memcpy(&table, &allocator, sizeof table);
    return table;
}

const Reached *find(void *const *table) {
    for (size_t i = 0; i < count_reached.load(std::memory_order_acquire); i++)
        if (all_reached[i].table == table) return &all_reached[i];
    return nullptr;
}

/* Where a RefusalsEnd is noted. libtorch itself reads nothing there. */
c10::DebugInfoKind noted_at() {
    return c10::DebugInfoKind::INFERENCE_CONTEXT;
}

struct Noted : c10::DebugInfoBase {};

c10::DataPtr allocate_or_refuse(c10::Allocator *allocator, size_t bytes) {
    Allocate real = find(table_of(*allocator))->allocate;
    if (bytes && is_refused()) bytes = more_than_there_is;
    try {
        return real(allocator, bytes);
    } catch (const c10::OutOfMemoryError &e) {
        if (!dynamic_cast<Noted *>(c10::ThreadLocalDebugInfo::get(noted_at()))) throw;
        throw c10::Error(e);
    }
}

/* A pointer to a virtual function holds its offset in the table; the Itanium ABI for x86 adds 1 to it, that for Arm does not. */
size_t place_of_allocate() {
    c10::DataPtr (c10::Allocator::*member)(size_t) = &c10::Allocator::allocate;
    ptrdiff_t offset;
    std::memcpy(&offset, &member, sizeof offset);
    return static_cast<size_t>(offset) / sizeof(void *);
}

bool make_writable(void *address) {
    auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto begin = reinterpret_cast<uintptr_t>(address) / page * page;
    return mprotect(reinterpret_cast<void *>(begin), page, PROT_READ | PROT_WRITE) == 0;
}

} // namespace

void arm(uint64_t nth, bool persistent) {
    if (!own) own = std::make_shared<Count>();
    if (c10::ThreadLocalDebugInfo::get(place()) != own.get())
        c10::ThreadLocalDebugInfo::_push(place(), own);
    own->refuse_at = 0;
    own->is_persistent = persistent;
    own->requests = own->refused = 0;
    own->refuse_at = nth;
    is_in_use = true;
}

void read(uint64_t *out_requests, uint64_t *out_refused) noexcept {
    if (out_requests) *out_requests = own ? own->requests.load() : 0;
    if (out_refused) *out_refused = own ? own->refused.load() : 0;
}

bool is_refused() noexcept {
    if (!is_in_use.load(std::memory_order_relaxed)) return false;
    Count *count = current();
    return count && count->add();
}

bool reach(c10::Allocator &allocator) noexcept {
    std::lock_guard<std::mutex> lock(reaching);
    void **table = table_of(allocator), **entry = table + place_of_allocate();
    size_t next = count_reached;
    if (find(table)) return true;
    if (next == most_classes || !make_writable(entry)) return false;
    all_reached[next] = {table, reinterpret_cast<Allocate>(*entry)};
    count_reached.store(next + 1, std::memory_order_release);
    *entry = reinterpret_cast<void *>(&allocate_or_refuse);
    return true;
}

RefusalsEnd::RefusalsEnd(const Device &device) {
    const at::Context &context = at::globalContext();
    if (!device.where.is_cuda() || !context.deterministicCuDNN() || context.benchmarkCuDNN())
        return;
    c10::DeviceAllocator *allocator = compat::device_allocator(c10::kCUDA);
    if (!allocator) return;
    static std::atomic<bool> is_told{false};
    if (!reach(*allocator)) {
        if (!is_told.exchange(true))
            mt_log(MT_LOG_WARNING,
                   "the allocator of CUDA cannot be reached: where memory runs out in a "
                   "convolution, cuDNN may "
                   "go on with another kernel, and later steps may have other bits");
        return;
    }
    guard_.emplace(noted_at(), std::make_shared<Noted>());
}

} // namespace memtrain::shim::injection
