/*
 * checkpointing.hpp - segments of a model that forget their activations and are computed again in the
 * backward pass; here the part that a step sees of it.
 */
#ifndef MEMTRAIN_SHIM_CHECKPOINTING_HPP
#define MEMTRAIN_SHIM_CHECKPOINTING_HPP

#include <vector>

#include "tensor.hpp"

namespace memtrain::shim {

/*
 * While it lives, segments on this thread forget their activations, or do not. buffers: those that a
 * segment may change that does not name its own. Outside of any, segments forget, and have none.
 */
class Checkpointing {
public:
    Checkpointing(bool on, std::vector<Named> buffers);
    ~Checkpointing();
    Checkpointing(const Checkpointing &) = delete;
    Checkpointing &operator=(const Checkpointing &) = delete;

    bool on() const { return on_; }
    const std::vector<Named> &buffers() const { return buffers_; }

private:
    bool on_;
    std::vector<Named> buffers_;
    const Checkpointing *before_;
};

} // namespace memtrain::shim
#endif
