/*
 * snapshot.hpp - what a step can change beside gradients: random number generators and the model's
 * buffers. Parameters and optimiser state are changed by apply alone and are not kept here.
 */
#ifndef MEMTRAIN_SHIM_SNAPSHOT_HPP
#define MEMTRAIN_SHIM_SNAPSHOT_HPP

#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/MT19937RNGEngine.h>

#include "model.hpp"

namespace memtrain::shim {

/*
 * State of the CPU's generator and of the device's. Taking and restoring allocate nothing on the
 * CPU: the engine is copied as a value, where get_state() would make a tensor.
 */
class RngState {
public:
    void take(c10::Device device);
    void restore() const;

private:
    std::optional<at::mt19937> engine_;
    std::optional<float> next_float_; /* second half of a pair of normal samples */
    std::optional<double> next_double_;
    c10::Device device_ = c10::Device(c10::kCPU);
    uint64_t seed_ = 0, offset_ = 0; /* where these are all of it, as on CUDA and XPU */
    at::Tensor state_;               /* where they are not, as on MPS */
};

/* Puts the generators back, also when an exception passes. */
class KeepRng {
public:
    explicit KeepRng(c10::Device device) { state_.take(device); }
    ~KeepRng();
    KeepRng(const KeepRng &) = delete;
    KeepRng &operator=(const KeepRng &) = delete;

private:
    RngState state_;
};

/*
 * A tensor of the model's as it was: memory and shape, and a copy of what was there. Of elements that share
 * memory, as expand() has them, there is one copy: libtorch writes to no tensor of this kind.
 */
class Kept {
public:
    /* Memory and shape are those of now. Allocates no memory of a device's. */
    void look(const at::Tensor &tensor);

    /* Allocates the first time, and where the shape is another one. After look(). */
    void copy();

    /* The same in plain memory of the host's. */
    void copy_outside();

    /* Whether the tensor has memory and shape that look() saw. */
    bool is_in_place(const at::Tensor &tensor) const;

    /* The tensor is as it was, whatever it has become. Allocates nothing. After copy(). */
    void put_back(const at::Tensor &tensor) const;

    /* The same where the memory is known to be as it was. After look(). */
    void move_back(const at::Tensor &tensor) const;

    const at::Tensor &original() const { return original_; }
    size_t bytes() const { return saved_.defined() ? saved_.nbytes() : 0; }

private:
    at::Tensor original_; /* the memory and shape, whatever becomes of the tensor */
    at::Tensor elements_; /* the same memory, each element once */
    at::Tensor saved_;    /* a copy */
};

class BufferState {
public:
    /* Allocates only for buffers that are new or have another shape than the last time. */
    void take(const mt_model &model);
    void take(const std::vector<Named> &buffers);

    /* Allocates nothing. A buffer that the model has made anew becomes the old one again. */
    void restore(const mt_model &model) const;
    void restore(const std::vector<Named> &buffers) const;

    size_t bytes() const;

    /* The buffers themselves, without their names. */
    std::vector<Named> named() const;

private:
    struct Entry {
        at::Tensor buffer; /* the model's own */
        Kept kept;
    };
    std::vector<Entry> entries_;
};

/* Puts buffers back, also when an exception passes. Version counters do not see it. */
class KeepBuffers {
public:
    explicit KeepBuffers(std::vector<Named> buffers) : buffers_(std::move(buffers)) {
        state_.take(buffers_);
    }
    ~KeepBuffers();
    KeepBuffers(const KeepBuffers &) = delete;
    KeepBuffers &operator=(const KeepBuffers &) = delete;

private:
    std::vector<Named> buffers_;
    BufferState state_;
};

/* The generator states for the hash: "rng.cpu", "rng.cuda.N", "rng.xpu.N", "rng.mps". Disturbs none. */
void append_rng(c10::Device device, std::vector<Named> &list);

} // namespace memtrain::shim
#endif
