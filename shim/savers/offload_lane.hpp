/*
 * offload_lane.hpp - tensors of a card that wait in pinned memory of the host. They go out and come back on streams of their
 * own, while the card computes.
 */
#ifndef MEMTRAIN_SHIM_OFFLOAD_LANE_HPP
#define MEMTRAIN_SHIM_OFFLOAD_LANE_HPP

#include <deque>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "device.hpp"
#include "offload_store.hpp"

namespace memtrain::shim {

/* One tensor in the host's memory, and while it goes out on the card too. */
class OnLane;

/* The two streams of a card. Any thread. */
class Lane : public std::enable_shared_from_this<Lane> {
public:
    /* NULL for a device that is not copied from beside what it computes: the host, a simulated card, MPS. */
    static std::shared_ptr<Lane> open(const c10::Device &device);

    /* A dense tensor of the device goes out. Where two are on their way already the host waits for the first of these. */
    std::unique_ptr<Stored> send(const at::Tensor &tensor);

    c10::Device device() const { return device_; }

private:
    friend class OnLane;
    Lane(const c10::Device &device, const c10::Stream &out, const c10::Stream &in)
        : device_(device), out_(out), in_(in) {}
    void make_room();
    void remove(const OnLane &tensor) noexcept;

    c10::Device device_;
    c10::Stream out_, in_;
    std::mutex mutex_;
    std::deque<OnLane *> going_; /* out, the first one first */
};

} // namespace memtrain::shim
#endif
