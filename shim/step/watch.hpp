/*
 * watch.hpp - listening to allocations where no allocator of ours is in place: on CUDA, and on the
 * CPU inside a Python process. Uses the slot of libtorch's profiler, so both cannot run at once.
 */
#ifndef MEMTRAIN_SHIM_WATCH_HPP
#define MEMTRAIN_SHIM_WATCH_HPP

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "compat.hpp"
#include "flat.hpp"

#include <memtrain/policy.h>

namespace memtrain::shim {

/* Passes events of one device type to a sink and follows the bytes in use. */
class Reporter final : public compat::ReporterBase {
public:
    Reporter(c10::DeviceType device, const mt_event_sink &sink) : device_(device), sink_(sink) {}
    void reportMemoryUsage(void *data, int64_t bytes, size_t total_allocated, size_t total_reserved,
                           c10::Device device) override;
    bool memoryProfilingEnabled() const override { return true; }

    /* Highest sum of the events so far, at least 0: bytes above those at the start. */
    size_t peak() const { return static_cast<size_t>(peak_); }

private:
    c10::DeviceType device_;
    mt_event_sink sink_;
    int64_t in_use_ = 0, peak_ = 0;
};

/*
 * Listens on this thread, and on those that backward uses for it, as long as the object lives. It
 * does nothing where our own allocator tells the sink (the CPU), and none of it is needed where
 * nobody listens and the device keeps its own peak.
 */
class Listening {
public:
    Listening(c10::Device device, const mt_event_sink &sink);
    size_t peak() const { return reporter_ ? reporter_->peak() : 0; }

private:
    std::shared_ptr<Reporter> reporter_;
    std::optional<c10::DebugInfoGuard> guard_;
};

/*
 * As long as it lives, tells the sink and the recording when a backward pass has a gradient ready for its parameter. The
 * gradient itself is left alone: autograd takes it as it is or adds it, as without anybody watching.
 */
class GradientWatch {
public:
    /* The recording may be NULL. */
    GradientWatch(const Flat &flat, const mt_event_sink &sink, mt_recording *recording);
    ~GradientWatch();
    GradientWatch(const GradientWatch &) = delete;
    GradientWatch &operator=(const GradientWatch &) = delete;

private:
    void remove() noexcept;
    std::vector<std::pair<at::Tensor, unsigned>> hooks_; /* a parameter and its hook */
};

} // namespace memtrain::shim
#endif
