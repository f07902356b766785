/*
 * staging.hpp - chunks of a batch on their way to a card. They go through pinned memory on streams of their own, so that the
 * next one is copied while the card computes.
 */
#ifndef MEMTRAIN_SHIM_STAGING_HPP
#define MEMTRAIN_SHIM_STAGING_HPP

#include <cstddef>
#include <list>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "device.hpp"
#include "pinned.hpp"

namespace memtrain::shim {

/*
 * What chunks take turns in. The host waits for none of it while there is room.
 *
 * Two streams copy, every other chunk each. A chunk's memory on the card is its stream's. When the chunk is over, that stream is
 * told to wait for it, on the card, and the memory goes back: the stream's next copy may take it. So two chunks at most are on the
 * card, or on their way, however far the host is ahead.
 *
 * A slot is pinned memory that copies are read from. When these are over it is filled again, or goes back to libtorch, where
 * whoever needs pinned memory finds it. Where none is over there is one more, up to the chunks of a batch, if the CPU's budget has
 * room for it, and as much again as the others take: slots are to leave the host room. Otherwise the host waits for the oldest.
 * Where there is no room for one, chunks are not staged. When a step is over one slot is kept.
 */
class StagingSlots {
public:
    /* NULL for a device that is not copied to beside what it computes: the host, a simulated card, MPS. */
    static std::unique_ptr<StagingSlots> open(const Device &device);
    ~StagingSlots() { clear(); }
    StagingSlots(const StagingSlots &) = delete;
    StagingSlots &operator=(const StagingSlots &) = delete;

    /* Waits for the copies that are under way. The slots' memory goes back to libtorch. */
    void clear() noexcept;

    /* All slots but one, of those whose copies are over: mt_empty_cache and others may have their memory. */
    void give_back() noexcept;

private:
    friend class Staged;
    struct Lane {
        c10::Stream stream;
        c10::Event over; /* the chunk that it has copied last */
    };
    struct Slot {
        explicit Slot(c10::DeviceType type) : copied(type) {}
        Pinned memory;
        c10::Event copied;
    };

    StagingSlots(const Device &device, const c10::Stream &one, const c10::Stream &other);
    Slot *next(size_t bytes, size_t most);
    std::list<Slot> free_slot(size_t bytes, size_t most);
    void take_oldest(std::list<Slot> &slots);
    bool has_room(Slot &slot, size_t bytes);
    Lane &next_lane() { return lanes_[turn_ = 1 - turn_]; }

    Device device_;
    Lane lanes_[2];
    size_t turn_ = 0;
    std::list<Slot> filled_; /* the oldest first; of the last ones the copies may be under way */
};

/* One chunk in a slot, and on the card. It lives as long as the chunk does, or goes with what has failed. */
class Staged {
public:
    /*
     * bytes: of all that needs room in a slot; most: slots that there may be. NULL where the CPU's budget has no room for a slot.
     */
    static std::unique_ptr<Staged> open(StagingSlots &staging, size_t bytes, size_t most);
    ~Staged();
    Staged(const Staged &) = delete;
    Staged &operator=(const Staged &) = delete;

    /* A copy on the card, which is on its way. The tensor is one of the host's. */
    at::Tensor send(const at::Tensor &tensor, at::MemoryFormat order);

    /* That was all: what the card is given from now on is done after the copies. */
    void finish();

    /* What a tensor takes of a slot. 0: it lies in pinned memory, in that order, and is sent from there. */
    static size_t room(const at::Tensor &tensor, at::MemoryFormat order);

private:
    Staged(StagingSlots &staging, StagingSlots::Slot &slot);
    at::Tensor in_slot(const at::Tensor &tensor, at::IntArrayRef strides);
    void keep_for_others();

    Device device_;
    StagingSlots::Lane &lane_;
    StagingSlots::Slot *slot_; /* until its copies are recorded; then others may fill it */
    c10::Stream computing_;    /* of the chunk */
    std::vector<at::Tensor> sent_;
    size_t used_ = 0;
};

} // namespace memtrain::shim
#endif
