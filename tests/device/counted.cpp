/*
 * counted.cpp - which requests for memory count for mt_inject_oom. The shim looks for its count in a place that libtorch hands
 * from thread to thread. Something else that lies there hides the count.
 */
#include "card.hpp"

#include <utility>

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

} // namespace

Uncounted::Uncounted() {
    if (!hidden()) hidden_.emplace(place(), std::make_shared<Hidden>());
}

Counted::Counted() : now_(ThreadLocalDebugInfo::current()) {
    if (const Hidden *there = hidden()) ThreadLocalDebugInfo::_forceCurrentDebugInfo(there->before);
}

Counted::~Counted() {
    ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::move(now_));
}

} // namespace card
