/* staging.cpp - see staging.hpp. */
#include "staging.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include "compat.hpp"
#include "device_memory.hpp"
#include "streams.hpp"

namespace memtrain::shim {
namespace {

constexpr size_t alignment = 64;

size_t rounded_up(size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
}

} // namespace

std::unique_ptr<StagingSlots> StagingSlots::open(const Device &device) {
    if (!has_pinned_memory(device) || !compat::device_allocator(device.type())) return nullptr;
    try {
        c10::impl::VirtualGuardImpl guard(device.type());
        return std::unique_ptr<StagingSlots>(
            new StagingSlots(device, guard.getStreamFromGlobalPool(device)));
    } catch (const c10::Error &) {
        return nullptr; /* so it has no streams, or no events */
    }
}

/* Events are made when they are recorded first; later that needs no memory. */
StagingSlots::StagingSlots(const Device &device, const c10::Stream &stream)
    : device_(device), stream_(stream), slots_{Slot(device.type()), Slot(device.type())} {
    for (Slot &slot : slots_) {
        slot.copied.record(stream_);
        slot.over.record(stream_);
    }
}

StagingSlots::Slot *StagingSlots::next(size_t bytes) {
    for (int tries = 0; tries < 2; tries++) {
        Slot &slot = slots_[turn_];
        turn_ = 1 - turn_;
        slot.over.synchronize();
        if (slot.memory.need_if_room(device_.type(), bytes)) return &slot;
    }
    return nullptr;
}

size_t Staged::room(const at::Tensor &tensor) {
    return rounded_up(static_cast<size_t>(tensor.numel()) * tensor.itemsize());
}

std::unique_ptr<Staged> Staged::open(StagingSlots &staging, size_t bytes) {
    StagingSlots::Slot *slot = staging.next(bytes);
    return std::unique_ptr<Staged>(slot ? new Staged(staging, *slot) : nullptr);
}

Staged::Staged(StagingSlots &staging, StagingSlots::Slot &slot)
    : staging_(staging), slot_(slot), computing_(current_stream(staging.device_)) {}

/* The slot is free when the chunk is through; of one that was not sent whole, when its copies are. */
Staged::~Staged() {
    try {
        slot_.over.record(is_sent_ ? computing_ : staging_.stream_);
    } catch (const c10::Error &) {
        /* The card is lost, and whatever comes next says so. */
    }
}

at::Tensor Staged::in_slot(const at::Tensor &tensor, at::IntArrayRef strides) {
    char *place = slot_.memory.data() + used_;
    at::Tensor mine = at::from_blob(place, tensor.sizes(), strides,
                                    at::device(at::kCPU).dtype(tensor.scalar_type()));
    used_ += room(tensor);
    return mine.copy_(tensor);
}

/*
 * The memory is the copying stream's, which so need not wait for what the card computes; given back, it is kept until that is
 * through. What lies in pinned memory already, in the same order, is sent from there.
 */
at::Tensor Staged::send(const at::Tensor &tensor, at::MemoryFormat order) {
    c10::StreamGuard on(staging_.stream_);
    at::Tensor there = at::empty_like(tensor, at::device(staging_.device_.where), order);
    bool is_ready = tensor.is_pinned() && tensor.strides() == there.strides();
    there.copy_(is_ready ? tensor : in_slot(tensor, there.strides()), /*non_blocking=*/true);
    compat::device_allocator(staging_.device_.type())
        ->recordStream(there.storage().data_ptr(), computing_);
    return there;
}

/* A chunk that comes before this one is through may take the slot, when there are three: its copies are waited for at least. */
void Staged::finish() {
    slot_.copied.record(staging_.stream_);
    slot_.copied.block(computing_);
    slot_.over.record(staging_.stream_);
    is_sent_ = true;
}

} // namespace memtrain::shim
