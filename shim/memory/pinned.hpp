/* pinned.hpp - memory of the host that a card copies from, and to, while the host goes on. */
#ifndef MEMTRAIN_SHIM_PINNED_HPP
#define MEMTRAIN_SHIM_PINNED_HPP

#include <cstddef>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace memtrain::shim {

/*
 * So many bytes of pinned memory for cards of that type are in use while this is there. libtorch gives powers of two, and keeps
 * what it gets back for the next request of that power. So the CPU's budget counts the most of each power that libtorch had for us
 * at a time, until empty_pinned_cache(). Any thread.
 */
class PinnedBytes {
public:
    /* Where the CPU's budget has no room, what waits is given back first. Then it throws as the CPU's allocator does. */
    PinnedBytes(c10::DeviceType type, size_t bytes);

    /* Whether there is room now, for what can do without. What waits is given back where that makes room. */
    static bool has_room(c10::DeviceType type, size_t bytes) noexcept;

    /* The same, with so many bytes left free beside it. What waits is left as it is, unless it is such a block. */
    static bool has_room_beside(c10::DeviceType type, size_t bytes, size_t left) noexcept;
    ~PinnedBytes();
    PinnedBytes(const PinnedBytes &) = delete;
    PinnedBytes &operator=(const PinnedBytes &) = delete;

    /*
     * The memory, for one tensor of at most these bytes. A block that waits may still be read by a card. Then libtorch makes one
     * more, and that is counted. Where the budget has no room for it, the host waits for the card, and what waits is given back.
     */
    at::Tensor make(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

private:
    at::Tensor request(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

    c10::DeviceType type_;
    size_t power_;
    bool is_new_; /* libtorch is expected to make a block */
};

/* Whether libtorch keeps pinned memory that is not in use. */
bool pinned_memory_waits() noexcept;

/*
 * Pinned memory that is not in use goes back to the system, if libtorch can give it back for this type of device. The host waits
 * for these devices, which may read some of it.
 */
void empty_pinned_cache(c10::DeviceType type) noexcept;

/* One block. It grows and does not shrink. */
class Pinned {
public:
    /* What was in it is lost where it grows, so that no copy may be under way then. Where it throws there is none. */
    void need(c10::DeviceType type, size_t bytes);

    /* The same, but where the CPU's budget has no room it is empty afterwards, and 0 is returned. */
    bool need_if_room(c10::DeviceType type, size_t bytes);

    char *data() const { return static_cast<char *>(memory_.data_ptr()); }

private:
    std::optional<PinnedBytes> counted_; /* longer than memory_ is there */
    at::Tensor memory_;
    size_t bytes_ = 0;
};

} // namespace memtrain::shim
#endif
