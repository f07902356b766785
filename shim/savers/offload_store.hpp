/*
 * offload_store.hpp - where tensors wait that autograd has saved: as bf16 on their device, in memory of
 * the host that no budget counts, or in a file. What is saved, and when, is decided in offload.cpp.
 */
#ifndef MEMTRAIN_SHIM_OFFLOAD_STORE_HPP
#define MEMTRAIN_SHIM_OFFLOAD_STORE_HPP

#include <memory>

#include <ATen/core/Tensor.h>

#include <memtrain/torch.h>

namespace memtrain::shim {

/* The elements of one tensor; their room is given back with the object. */
class Stored {
public:
    virtual ~Stored() = default;

    /* Writes them into a tensor of the same shape, whatever its strides. */
    virtual void read(const at::Tensor &to) = 0;

    /* The tensor itself, where it is not gone from its device yet; else none. */
    virtual at::Tensor still_there() { return {}; }

    /*
     * Whether they can be written while the device computes: from begin() on, and what the device is given after end() finds
     * them there. The tensor is not to be freed in between.
     */
    virtual bool comes_by_itself() { return false; }
    virtual void begin(const at::Tensor &to) { read(to); }
    virtual void end() {}
};

/* Any thread. What fails is thrown: a refused request as libtorch's OOM, a file's error as Failure. */
class Store {
public:
    virtual ~Store() = default;

    virtual bool takes(c10::ScalarType dtype) const = 0;
    virtual std::unique_ptr<Stored> keep(const at::Tensor &tensor) = 0;

    /* What the elements of such a tensor take there. */
    virtual size_t bytes_of(const at::Tensor &tensor) const;
};

/*
 * kind: MT_OFFLOAD_HOST, MT_OFFLOAD_FILE or MT_OFFLOAD_PACK. folder: of the file, NULL for TMPDIR; the file
 * has no name there, and is gone with the store and the last of what it keeps.
 */
std::unique_ptr<Store> make_store(const char *function, int kind, const char *folder);

} // namespace memtrain::shim
#endif
