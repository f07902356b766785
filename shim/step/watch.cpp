/* watch.cpp - listening to allocations through the profiler's reporter. */
#include "watch.hpp"

#include <algorithm>

#include "cpu_memory.hpp"
#include "guard.hpp"

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

GradientWatch::GradientWatch(const Flat &flat, const mt_event_sink &sink, mt_recording *recording) {
    if (!sink.event && !recording) return;
    auto tell = [sink, recording](const at::TensorBase &gradient) {
        if (!gradient.defined() || !gradient.has_storage()) return;
        void *address = const_cast<void *>(gradient.storage().data());
        if (sink.event) sink.event(sink.user, address, 0);
        if (recording) mt_recording_event(recording, address, 0);
    };
    hooks_.reserve(flat.slots().size());
    try {
        for (const Slot &slot : flat.slots())
            if (slot.parameter.requires_grad()) /* not frozen since */
                hooks_.emplace_back(slot.parameter, slot.parameter.register_hook(tell));
    } catch (...) {
        remove();
        throw;
    }
}

GradientWatch::~GradientWatch() {
    remove();
}

void GradientWatch::remove() noexcept {
    (void)guard([this] {
        for (const auto &[parameter, hook] : hooks_) parameter.remove_hook(hook);
    });
}

} // namespace memtrain::shim
