/* staging.cpp - see staging.hpp. */
#include "staging.hpp"

#include <exception>
#include <iterator>

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

bool is_sent_as_it_is(const at::Tensor &tensor, at::MemoryFormat order) {
    if (!tensor.numel()) return true;
    bool is_in_order = order == at::MemoryFormat::Preserve ? tensor.is_non_overlapping_and_dense()
                                                           : tensor.is_contiguous(order);
    return is_in_order && tensor.is_pinned();
}

} // namespace

std::unique_ptr<StagingSlots> StagingSlots::open(const Device &device) {
    if (!has_pinned_memory(device) || !compat::device_allocator(device.type())) return nullptr;
    try {
        c10::impl::VirtualGuardImpl guard(device.type());
        c10::Stream one = guard.getStreamFromGlobalPool(device);
        c10::Stream other = guard.getStreamFromGlobalPool(device);
        return std::unique_ptr<StagingSlots>(new StagingSlots(device, one, other));
    } catch (const c10::Error &) {
        return nullptr; /* so it has no streams, or no events */
    }
}

/* Events are made when they are recorded first; later that needs no memory. */
StagingSlots::StagingSlots(const Device &device, const c10::Stream &one, const c10::Stream &other)
    : device_(device), lanes_{{one, c10::Event(device.type())},
                              {other, c10::Event(device.type())}} {
    for (Lane &lane : lanes_) lane.over.record(lane.stream);
}

void StagingSlots::clear() noexcept {
    try {
        for (Slot &slot : filled_) slot.copied.synchronize();
    } catch (const std::exception &) {
        /* The card is lost, and whatever comes next says so. Its driver may still know the memory, which is left to the process. */
        new std::list<Slot>(std::move(filled_));
    }
    filled_.clear();
}

void StagingSlots::give_back() noexcept {
    try {
        while (filled_.size() > 1 && filled_.front().copied.query()) filled_.pop_front();
    } catch (const std::exception &) {
        /* as in clear() */
    }
}

void StagingSlots::take_oldest(std::list<Slot> &slots) {
    slots.splice(slots.end(), filled_, filled_.begin());
}

/*
 * One whose copies are over, or a new one, or none. What else is over goes back to libtorch. The first one may have libtorch give
 * back what waits there; the others leave that alone, since offload needs it more, and leave the host as much room as slots take.
 */
std::list<StagingSlots::Slot> StagingSlots::free_slot(size_t bytes, size_t most) {
    std::list<Slot> free;
    while (!filled_.empty() && filled_.front().copied.query()) take_oldest(free);
    if (!free.empty()) {
        free.erase(std::next(free.begin()), free.end());
    } else if (filled_.empty() ||
               (filled_.size() < most &&
                PinnedBytes::has_room_beside(device_.type(), bytes, filled_.size() * bytes))) {
        free.emplace_back(device_.type()).copied.record(lanes_[0].stream);
    }
    return free;
}

/* Where the system refuses one more, those that are filled have to do. */
bool StagingSlots::has_room(Slot &slot, size_t bytes) {
    try {
        return slot.memory.need_if_room(device_.type(), bytes);
    } catch (const std::exception &) {
        if (filled_.empty()) throw;
        return false;
    }
}

StagingSlots::Slot *StagingSlots::next(size_t bytes, size_t most) {
    std::list<Slot> free = free_slot(bytes, most);
    while (free.empty() || !has_room(free.front(), bytes)) {
        free.clear();
        if (filled_.empty()) return nullptr;
        filled_.front().copied.synchronize();
        take_oldest(free);
    }
    filled_.splice(filled_.end(), free);
    return &filled_.back();
}

size_t Staged::room(const at::Tensor &tensor, at::MemoryFormat order) {
    if (is_sent_as_it_is(tensor, order)) return 0;
    return rounded_up(static_cast<size_t>(tensor.numel()) * tensor.itemsize());
}

std::unique_ptr<Staged> Staged::open(StagingSlots &staging, size_t bytes, size_t most) {
    StagingSlots::Slot *slot = staging.next(bytes, most);
    return std::unique_ptr<Staged>(slot ? new Staged(staging, *slot) : nullptr);
}

Staged::Staged(StagingSlots &staging, StagingSlots::Slot &slot)
    : device_(staging.device_), lane_(staging.next_lane()), slot_(&slot),
      computing_(current_stream(device_)) {}

/*
 * Somebody else holds a tensor still, and may use it when the chunk is over: libtorch keeps its memory then until the stream is
 * through. Looked at before the end of the chunk is recorded, since who gives it up meanwhile may have used it since.
 */
void Staged::keep_for_others() {
    for (const at::Tensor &tensor : sent_)
        if (tensor.storage().use_count() > 1)
            compat::device_allocator(device_.type())
                ->recordStream(tensor.storage().data_ptr(), computing_);
}

/*
 * The chunk is over for the host, and the card goes on. The memory is given back to its stream, which has been told by then to wait
 * for the chunk. A chunk that was not sent whole has used none of it, but its copies may be under way.
 */
Staged::~Staged() {
    try {
        if (slot_) slot_->copied.record(lane_.stream);
        keep_for_others();
        lane_.over.record(computing_);
        lane_.over.block(lane_.stream);
    } catch (const std::exception &) {
        /* The card is lost, and whatever comes next says so. */
    }
}

at::Tensor Staged::in_slot(const at::Tensor &tensor, at::IntArrayRef strides) {
    char *place = slot_->memory.data() + used_;
    at::Tensor mine = at::from_blob(place, tensor.sizes(), strides,
                                    at::device(at::kCPU).dtype(tensor.scalar_type()));
    used_ += rounded_up(tensor.nbytes());
    return mine.copy_(tensor);
}

/* The memory is the copying stream's, which so need not wait for what the card computes. */
at::Tensor Staged::send(const at::Tensor &tensor, at::MemoryFormat order) {
    c10::StreamGuard on(lane_.stream);
    at::Tensor there = sent_.emplace_back(at::empty_like(tensor, at::device(device_.where), order));
    bool is_ready = is_sent_as_it_is(tensor, order);
    return there.copy_(is_ready ? tensor : in_slot(tensor, there.strides()), /*non_blocking=*/true);
}

void Staged::finish() {
    slot_->copied.record(lane_.stream);
    slot_->copied.block(computing_);
    slot_ = nullptr;
}

} // namespace memtrain::shim
