/*
 * staging.hpp - chunks of a batch on their way to a card. They go through pinned memory on a stream of their own, so that the
 * next one is copied while the card computes.
 */
#ifndef MEMTRAIN_SHIM_STAGING_HPP
#define MEMTRAIN_SHIM_STAGING_HPP

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "device.hpp"
#include "pinned.hpp"

namespace memtrain::shim {

/*
 * Two slots of pinned memory, as large as the largest chunk so far needs. The host fills one once the card is through with the
 * chunk that was in it before, so that two chunks at most are on the card, or on their way. The CPU's budget counts the memory
 * as in use. Where that has room for one slot, chunks take turns in it; where it has none, they are not staged.
 */
class StagingSlots {
public:
    /* NULL for a device that is not copied to beside what it computes: the host, a simulated card, MPS. */
    static std::unique_ptr<StagingSlots> open(const Device &device);
    StagingSlots(const StagingSlots &) = delete;
    StagingSlots &operator=(const StagingSlots &) = delete;

private:
    friend class Staged;
    struct Slot {
        explicit Slot(c10::DeviceType type) : copied(type), over(type) {}
        Pinned memory;
        c10::Event copied, over;
    };

    StagingSlots(const Device &device, const c10::Stream &stream);
    Slot *next(size_t bytes);

    Device device_;
    c10::Stream stream_;
    Slot slots_[2];
    size_t turn_ = 0;
};

/* One chunk in a slot. It may live as long as the chunk does, or go with what has failed. */
class Staged {
public:
    /* Waits until the slot is free; bytes: of all that is sent. NULL where the CPU's budget has no room for a slot. */
    static std::unique_ptr<Staged> open(StagingSlots &staging, size_t bytes);
    ~Staged();
    Staged(const Staged &) = delete;
    Staged &operator=(const Staged &) = delete;

    /* A copy on the card, which is on its way. The tensor is one of the host's. */
    at::Tensor send(const at::Tensor &tensor, at::MemoryFormat order);

    /* That was all: what the card is given from now on is done after the copies. */
    void finish();

    /* What a tensor takes of a slot. */
    static size_t room(const at::Tensor &tensor);

private:
    Staged(StagingSlots &staging, StagingSlots::Slot &slot);
    at::Tensor in_slot(const at::Tensor &tensor, at::IntArrayRef strides);

    StagingSlots &staging_;
    StagingSlots::Slot &slot_;
    c10::Stream computing_; /* of the chunk */
    size_t used_ = 0;
    bool is_sent_ = false;
};

} // namespace memtrain::shim
#endif
