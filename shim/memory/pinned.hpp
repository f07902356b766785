/* pinned.hpp - memory of the host that a card copies from, and to, while the host goes on. */
#ifndef MEMTRAIN_SHIM_PINNED_HPP
#define MEMTRAIN_SHIM_PINNED_HPP

#include <cstddef>

#include <ATen/core/Tensor.h>

namespace memtrain::shim {

/* Grows and does not shrink. The CPU's budget counts it as in use. */
class Pinned {
public:
    Pinned() = default;
    ~Pinned();
    Pinned(const Pinned &) = delete;
    Pinned &operator=(const Pinned &) = delete;

    /* What was in it is lost where it grows, so that no copy may be under way then. */
    void need(size_t bytes);

    char *data() const { return static_cast<char *>(memory_.data_ptr()); }

private:
    at::Tensor memory_;
    size_t bytes_ = 0, held_ = 0; /* of it; and what the budget was told */
};

} // namespace memtrain::shim
#endif
