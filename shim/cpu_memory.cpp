/*
 * cpu_memory.cpp - the budgeted allocator: header, counters, refusals, injection.
 */
#include "cpu_memory.hpp"

#include <atomic>
#include <cstdlib>

#include <c10/util/Exception.h>

#include "compat.hpp"

namespace memtrain::shim::cpu {
namespace {

/* Alignment of tensors, and size of the header, so that the data behind it keeps the alignment. */
constexpr size_t line_bytes = 64;

constexpr uintptr_t cookie_key = 0x6d656d747261696eu; /* "memtrain" */

/*
 * The last 16 bytes before the data, where glibc's malloc has its own header: they can be read also
 * before a block that libtorch's allocator made, and the cookie tells that it is not ours.
 */
struct Header {
    size_t bytes;
    uintptr_t cookie; /* the data's address ^ cookie_key; 0 once freed */
};

struct Thread {
    Refusals refusals = {0, 0, 0};
    mt_event_sink sink = {nullptr, nullptr};
    uint64_t requests = 0; /* since inject() */
    uint64_t failed = 0;
    uint64_t fail_at = 0; /* 0: disarmed */
    bool persistent = false;
};

thread_local Thread thread;

std::atomic<size_t> used{0};
std::atomic<size_t> highest{0};
std::atomic<size_t> highest_in_call{0};
std::atomic<size_t> limit{0}; /* 0: not yet asked of the host */
std::atomic<bool> in_place{false};

Header *header_of(void *data) {
    return reinterpret_cast<Header *>(static_cast<char *>(data) - sizeof(Header));
}

uintptr_t cookie_of(const void *data) {
    return reinterpret_cast<uintptr_t>(data) ^ cookie_key;
}

/* Reads before blocks that are not ours, which the address sanitizer would take for an error. */
__attribute__((no_sanitize("address"))) bool is_ours(void *data) {
    return header_of(data)->cookie == cookie_of(data);
}

void raise(std::atomic<size_t> &mark, size_t value) noexcept {
    size_t seen = mark.load(std::memory_order_relaxed);
    while (value > seen && !mark.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
}

/* Sign of bytes: + allocated, - released. Both listeners cost a load each while nobody listens. */
void tell(void *data, int64_t bytes) noexcept {
    if (thread.sink.event) thread.sink.event(thread.sink.user, data, bytes);
    if (!c10::memoryProfilingEnabled()) return;
    try {
        size_t total = allocated();
        c10::reportMemoryUsageToProfiler(data, bytes, total, total, c10::Device(c10::kCPU));
    } catch (...) {
        /* A profiler without memory must not turn into a leak or a lost tensor. */
    }
}

[[noreturn]] void refuse(const char *who, size_t bytes) {
    char wanted[32], in_use[32], most[32];
    size_t now = allocated(), allowed = budget();
    thread.refusals = {thread.refusals.count + 1, bytes, now};
    TORCH_CHECK_WITH(OutOfMemoryError, false, "budget: ", who, " a request for ",
                     mt_format_size(bytes, wanted, sizeof wanted), " with ",
                     mt_format_size(now, in_use, sizeof in_use), " in use of ",
                     mt_format_size(allowed, most, sizeof most));
    std::abort(); /* not reached: the check always throws */
}

/* Counts one request of this thread; whether it is one that shall fail. */
bool shall_fail() noexcept {
    thread.requests++;
    bool now = thread.fail_at && (thread.persistent ? thread.requests >= thread.fail_at
                                                    : thread.requests == thread.fail_at);
    thread.failed += now;
    return now;
}

/*
 * Adds to the bytes in use unless that would exceed the budget, so no peak can exceed it either.
 * Returns the new sum, or 0.
 */
size_t reserve(size_t bytes) noexcept {
    size_t allowed = budget(), now = used.load(std::memory_order_relaxed);
    do {
        if (bytes > allowed || now > allowed - bytes) return 0;
    } while (!used.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
    return now + bytes;
}

void *take(size_t bytes) {
    void *block = nullptr;
    if (shall_fail()) refuse("injected refusal of", bytes);
    size_t sum = reserve(bytes);
    if (!sum) refuse("there is no room for", bytes);
    if (bytes > SIZE_MAX - line_bytes || posix_memalign(&block, line_bytes, bytes + line_bytes)) {
        used.fetch_sub(bytes, std::memory_order_relaxed);
        refuse("the system refuses", bytes);
    }
    raise(highest, sum);
    raise(highest_in_call, sum);
    void *data = static_cast<char *>(block) + line_bytes;
    *header_of(data) = {bytes, cookie_of(data)};
    return data;
}

/* Deleter of every tensor, and of buffers that oneDNN took through raw_allocate. */
void give_back(void *data) {
    if (!data) return;
    if (!is_ours(data)) {
        std::free(data); /* made by libtorch's own allocator before ours was installed */
        return;
    }
    Header *header = header_of(data);
    size_t bytes = header->bytes;
    header->cookie = 0;
    used.fetch_sub(bytes, std::memory_order_relaxed);
    tell(data, -static_cast<int64_t>(bytes));
    std::free(static_cast<char *>(data) - line_bytes);
}

class Allocator final : public c10::Allocator {
public:
    c10::DataPtr allocate(size_t bytes) override {
        void *data = bytes ? take(bytes) : nullptr;
        if (data) tell(data, static_cast<int64_t>(bytes));
        return {data, data, &give_back, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
    void copy_data(void *to, const void *from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
};

} // namespace

void install() {
    /* Never destroyed: tensors may be freed by destructors of static objects. */
    static Allocator *allocator = new Allocator;
    c10::SetCPUAllocator(allocator, 255);
    in_place = true;
}

bool installed() noexcept {
    return in_place.load(std::memory_order_relaxed);
}

size_t allocated() noexcept {
    return used.load(std::memory_order_relaxed);
}

size_t peak() noexcept {
    return highest.load(std::memory_order_relaxed);
}

void reset_peak() noexcept {
    highest.store(allocated(), std::memory_order_relaxed);
}

size_t call_peak() noexcept {
    return highest_in_call.load(std::memory_order_relaxed);
}

void reset_call_peak() noexcept {
    highest_in_call.store(allocated(), std::memory_order_relaxed);
}

void set_budget(size_t bytes) noexcept {
    limit.store(bytes, std::memory_order_relaxed);
}

/* Without any figure of the host there is no limit. */
size_t budget() noexcept {
    size_t now = limit.load(std::memory_order_relaxed);
    if (now) return now;
    mt_host_memory host = {};
    host.size = sizeof host;
    size_t bytes = SIZE_MAX;
    if (mt_host_memory_read(nullptr, &host) == MT_OK && host.budget_bytes < SIZE_MAX - allocated())
        bytes = host.budget_bytes + allocated();
    if (!bytes) bytes = 1; /* 0 would mean "ask again" */
    return limit.compare_exchange_strong(now, bytes) ? bytes : now;
}

Refusals refusals() noexcept {
    return thread.refusals;
}

void set_sink(const mt_event_sink *sink) noexcept {
    thread.sink = sink ? *sink : mt_event_sink{nullptr, nullptr};
}

void inject(uint64_t nth, bool persistent) noexcept {
    thread.fail_at = nth;
    thread.persistent = persistent;
    thread.requests = thread.failed = 0;
}

void injected(uint64_t *out_requests, uint64_t *out_failed) noexcept {
    if (out_requests) *out_requests = thread.requests;
    if (out_failed) *out_failed = thread.failed;
}

} // namespace memtrain::shim::cpu
