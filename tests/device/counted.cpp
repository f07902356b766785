/*
 * counted.cpp - which requests for memory are the host's. The shim looks for the count of mt_inject_oom in a place that libtorch
 * hands from thread to thread. Something else that lies there hides the count. And a card has memory of its own for what its kernels
 * need meanwhile: here that is the heap's, which no budget counts.
 */
#include "card.hpp"

#include <cstdlib>
#include <new>
#include <utility>

#include <dlfcn.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace card {
namespace {

using c10::ThreadLocalDebugInfo;

c10::DebugInfoKind place() {
    return c10::DebugInfoKind::TEST_INFO;
}

struct Hidden : c10::DebugInfoBase {
    std::shared_ptr<ThreadLocalDebugInfo> before = ThreadLocalDebugInfo::current();
};

const Hidden *hidden() {
    return dynamic_cast<Hidden *>(ThreadLocalDebugInfo::get(place()));
}

/* Of the thread: how many Uncounted are there. */
thread_local int uncounted = 0;

using HostOf = c10::Allocator *(*)(const c10::DeviceType &);

c10::Allocator *real_allocator(const c10::DeviceType &device) {
    static const auto real =
        reinterpret_cast<HostOf>(dlsym(RTLD_NEXT, "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE"));
    return real(device);
}

/* A kernel may give back what was asked for before it, and leave what it has asked for: the host's allocator knows what is not its own. */
class Heap final : public c10::Allocator {
public:
    c10::DataPtr allocate(size_t bytes) override {
        void *data = nullptr;
        if (bytes && posix_memalign(&data, 64, bytes)) throw std::bad_alloc();
        return {data, data, &std::free, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return real_allocator(c10::kCPU)->raw_deleter();
    }
    void copy_data(void *to, const void *from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
};

c10::Allocator *heap() {
    static auto *const one = new Heap;
    return one;
}

} // namespace

Uncounted::Uncounted() {
    uncounted++;
    if (!hidden()) hidden_.emplace(place(), std::make_shared<Hidden>());
}

Uncounted::~Uncounted() {
    uncounted--;
}

Counted::Counted() : now_(ThreadLocalDebugInfo::current()) {
    if (const Hidden *there = hidden()) ThreadLocalDebugInfo::_forceCurrentDebugInfo(there->before);
}

Counted::~Counted() {
    ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::move(now_));
}

} // namespace card

/* Before libtorch's own, which comes later in the process: whoever asks for memory of the host asks one of these first. */
namespace c10 {

MT_CARD_FUNCTION Allocator *GetAllocator(const DeviceType &device) {
    bool is_cards = device == kCPU && card::uncounted;
    return is_cards ? card::heap() : card::real_allocator(device);
}

MT_CARD_FUNCTION Allocator *GetCPUAllocator() {
    return GetAllocator(kCPU);
}

} // namespace c10
