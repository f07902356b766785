/* watch.cpp - listening to allocations through the profiler's reporter. */
#include "watch.hpp"

#include <algorithm>

#include "cpu_memory.hpp"

namespace memtrain::shim {

void Reporter::reportMemoryUsage(void *data, int64_t bytes, size_t, size_t, c10::Device device) {
    if (device.type() != device_) return;
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    if (sink_.event) sink_.event(sink_.user, data, bytes);
}

Listening::Listening(c10::Device device, const mt_event_sink &sink) {
    bool counts = device.is_cpu() && !cpu::installed();
    if (!counts && (device.is_cpu() || !sink.event)) return;
    reporter_ = std::make_shared<Reporter>(device.type(), sink);
    guard_.emplace(c10::DebugInfoKind::PROFILER_STATE, reporter_);
}

} // namespace memtrain::shim
