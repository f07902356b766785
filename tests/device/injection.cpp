/*
 * injection.cpp - mt_inject_oom in a process with a card: requests for memory of the host and of the card are counted together,
 * the host's by the shim. Those of kernels are none: on a real card kernels ask the host for nothing.
 *
 * A count belongs to the thread that asked for it, and goes with its work to libtorch's thread for the backward pass. The shim
 * counts for the thread alone. So that it goes on where the card stopped, it is asked anew, with what is left, after each request
 * for a card's memory and after each kernel.
 */
#include "card.hpp"

#include <memory>
#include <mutex>

#include <dlfcn.h>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace card {
namespace {

template <class Function> Function *next(const char *name) {
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

/* Without the shim, as in Python, requests for memory of the host are not counted. */
mt_status arm_host(uint64_t nth, int persistent) {
    static const auto real = next<mt_status(uint64_t, int)>("mt_inject_oom");
    return real ? real(nth, persistent) : MT_OK;
}

void read_host(uint64_t *requests, uint64_t *failed) {
    static const auto real = next<void(uint64_t *, uint64_t *)>("mt_injected");
    if (real) real(requests, failed);
}

struct Count : c10::DebugInfoBase {
    std::mutex mutex;
    bool is_armed = false, is_persistent = false;
    uint64_t left = 0; /* requests up to the one that is refused */
    uint64_t requests = 0, failed = 0;

    void fire() {
        failed++;
        is_armed = is_persistent;
    }
    /* What the host has counted of late is added; it counts on from nothing. */
    void add_host() {
        uint64_t more = 0, refused = 0;
        read_host(&more, &refused);
        requests += more;
        left -= more < left ? more : left;
        while (refused--) fire();
        (void)!arm_host(0, 0);
    }
    void rearm_host() {
        if (is_armed) (void)!arm_host(left ? left : 1, is_persistent);
    }
};

/* libtorch hands what lies there to the thread of the backward pass. */
c10::DebugInfoKind place() {
    return c10::DebugInfoKind::TEST_INFO;
}

thread_local std::shared_ptr<Count> own; /* that this thread asked for, or none */
thread_local bool is_uncounted = false;

} // namespace

bool is_refused() {
    auto *count = static_cast<Count *>(c10::ThreadLocalDebugInfo::get(place()));
    if (!count) return false;
    std::lock_guard<std::mutex> lock(count->mutex);
    bool with_host = count == own.get() && !is_uncounted;
    if (with_host) count->add_host();
    count->requests++;
    if (count->left) count->left--;
    bool refused = count->is_armed && !count->left;
    if (refused) count->fire();
    if (with_host) count->rearm_host();
    return refused;
}

Uncounted::Uncounted() : is_outermost_(own && !is_uncounted) {
    if (!is_outermost_) return;
    std::lock_guard<std::mutex> lock(own->mutex);
    own->add_host();
    is_uncounted = true;
}

Uncounted::~Uncounted() {
    if (!is_outermost_) return;
    std::lock_guard<std::mutex> lock(own->mutex);
    is_uncounted = false;
    (void)!arm_host(0, 0);
    own->rearm_host();
}

} // namespace card

/* In place of the shim's, which reaches the host's allocator alone: this library is loaded before it. */
extern "C" MT_CARD_FUNCTION mt_status mt_inject_oom(uint64_t nth, int persistent) {
    using namespace card;
    if (!own) own = std::make_shared<Count>();
    if (c10::ThreadLocalDebugInfo::get(place()) != own.get())
        c10::ThreadLocalDebugInfo::_push(place(), own);
    std::lock_guard<std::mutex> lock(own->mutex);
    own->left = nth;
    own->is_armed = nth > 0;
    own->is_persistent = persistent != 0;
    own->requests = own->failed = 0;
    return arm_host(nth, persistent);
}

extern "C" MT_CARD_FUNCTION void mt_injected(uint64_t *out_requests, uint64_t *out_failed) {
    using namespace card;
    uint64_t requests = 0, failed = 0;
    read_host(&requests, &failed);
    if (own) {
        std::lock_guard<std::mutex> lock(own->mutex);
        requests += own->requests;
        failed += own->failed;
    }
    if (out_requests) *out_requests = requests;
    if (out_failed) *out_failed = failed;
}
