/* tensor.hpp - the tensor handle, and handles that live for one call only. */
#ifndef MEMTRAIN_SHIM_TENSOR_HPP
#define MEMTRAIN_SHIM_TENSOR_HPP

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <memtrain/torch.h>

#include "device.hpp"

struct mt_tensor {
    at::Tensor tensor;
    bool owned = false; /* the caller's: mt_tensor_free frees no other */
};

namespace memtrain::shim {

struct Named {
    std::string name;
    at::Tensor tensor;
};

/* The list with each tensor once, under its first name. */
std::vector<Named> distinct(const std::vector<Named> &all);

/*
 * Each element once where dimensions repeat them, as those of expand() do: of these the first place alone. A
 * view; other tensors as they are.
 */
at::Tensor without_repeats(const at::Tensor &tensor);

/* Whether elements share memory, as the strides tell; some strides that mesh do so in vain. */
bool may_overlap(const at::Tensor &tensor);

/* An mt_visit_fn: appends what it is told of to the std::vector<Named> at user. */
mt_status collect(void *user, const char *name, mt_tensor *tensor);

/* A handle of the caller's, to be freed with mt_tensor_free. */
mt_tensor *new_handle(at::Tensor tensor);

/* A handle that is alive as long as this object, for callbacks. Throws std::bad_alloc. */
class TemporaryHandle {
public:
    explicit TemporaryHandle(at::Tensor tensor = {});
    ~TemporaryHandle();
    TemporaryHandle(const TemporaryHandle &) = delete;
    TemporaryHandle &operator=(const TemporaryHandle &) = delete;

    mt_tensor *get() { return &handle_; }
    at::Tensor &tensor() { return handle_.tensor; }

private:
    mt_tensor handle_;
};

/* Bytes from a dense tensor's first to its last; none of another. */
struct Span {
    explicit Span(const at::Tensor &tensor);
    bool meets(const Span &other) const { return begin < other.end && other.begin < end; }

    uintptr_t begin = 0, end = 0;
};

/* The version counter, which changes in place go up in; 0 for an undefined one, and one of inference mode without. */
uint32_t version_of(const at::Tensor &tensor);
std::vector<uint32_t> versions_of(const std::vector<at::Tensor> &tensors);

/* Handles that live as long as the object. */
class Handles {
public:
    explicit Handles(const std::vector<at::Tensor> &tensors) {
        for (const at::Tensor &tensor : tensors) {
            handles_.emplace_back(tensor);
            pointers_.push_back(handles_.back().get());
        }
    }
    mt_tensor *const *get() const { return pointers_.data(); }
    size_t count() const { return pointers_.size(); }
    at::Tensor &tensor(size_t i) { return handles_[i].tensor(); }

private:
    std::deque<TemporaryHandle> handles_;
    std::vector<mt_tensor *> pointers_;
};

class StagingSlots;
class Staged;

/* Where the tensors of a chunk are to be, and how they lie there. */
struct Placement {
    Device device;
    bool channels_last; /* those of four dimensions */
    bool only_counted =
        false; /* nothing but their units is asked for, so that none is worth a copy */
    StagingSlots *staging = nullptr; /* by which they get there, or none */
};

/*
 * Samples [first, first + count) of the batch's tensors as handles, on the device. On the CPU they
 * are views of the caller's memory, unless their order is another one. Those for CUDA are staged while the card
 * computes (staging.hpp); to a simulated card it is a copy in the host's
 * memory. Version counters are the chunk's own, so that it knows who has written to it; a tensor of inference mode
 * has none, and is copied.
 */
class Chunk {
public:
    Chunk(const mt_torch_batch &batch, size_t first, size_t count, const Placement &to);
    ~Chunk();
    Chunk(const Chunk &) = delete;
    Chunk &operator=(const Chunk &) = delete;

    mt_tensor *const *handles() const { return handles_; }
    size_t count() const { return count_; }

    /* The first tensor that has been written to since, or count(). */
    size_t written() const;

private:
    at::Tensor placed(const at::Tensor &part, const Placement &to);

    std::unique_ptr<Staged> staged_;   /* or none; goes last, after all that has its tensors */
    at::Tensor given_[MT_TENSORS_MAX]; /* as they were made, whatever becomes of the handles */
    uint32_t versions_[MT_TENSORS_MAX];
    mt_tensor tensors_[MT_TENSORS_MAX];
    mt_tensor *handles_[MT_TENSORS_MAX];
    size_t count_ = 0;
};

} // namespace memtrain::shim
#endif
