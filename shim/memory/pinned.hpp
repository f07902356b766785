/* pinned.hpp - memory of the host that a card copies from, and to, while the host goes on. */
#ifndef MEMTRAIN_SHIM_PINNED_HPP
#define MEMTRAIN_SHIM_PINNED_HPP

#include <cstddef>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace memtrain::shim {

/*
 * So many bytes of pinned memory are in use while this is there. libtorch gives powers of two, and keeps what it gets back for
 * the next request of that power. So the CPU's budget counts the most of each power that were in use at a time, until
 * empty_pinned_cache(). Any thread.
 */
class PinnedBytes {
public:
    explicit PinnedBytes(size_t bytes) noexcept;
    ~PinnedBytes();
    PinnedBytes(const PinnedBytes &) = delete;
    PinnedBytes &operator=(const PinnedBytes &) = delete;

private:
    size_t power_;
};

/* Whether libtorch keeps pinned memory that is not in use. */
bool pinned_memory_waits() noexcept;

/* Pinned memory that is not in use goes back to the system, if libtorch can give it back for this type of device. */
void empty_pinned_cache(c10::DeviceType type) noexcept;

/* One block. It grows and does not shrink. */
class Pinned {
public:
    /* What was in it is lost where it grows, so that no copy may be under way then. */
    void need(size_t bytes);

    char *data() const { return static_cast<char *>(memory_.data_ptr()); }

private:
    at::Tensor memory_;
    size_t bytes_ = 0;
    std::optional<PinnedBytes> counted_;
};

} // namespace memtrain::shim
#endif
