/*
 * offload.hpp - tensors that autograd saves for the backward pass wait elsewhere, by libtorch's hooks for
 * saved tensors (offload_store.hpp has the places).
 *
 * libtorch asks its engine for hooks each time that it saves a tensor; the engine that is put in place here
 * has some while an Offloading lives on the thread, and none else.
 */
#ifndef MEMTRAIN_SHIM_OFFLOAD_HPP
#define MEMTRAIN_SHIM_OFFLOAD_HPP

#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "offload_store.hpp"
#include "tensor.hpp"

namespace memtrain::shim {

/* Puts the engine in place; before autograd is first used. */
void install_saving_hooks();

/* Whether it is there still: Python's torch, loaded later, has an engine of its own. */
bool has_saving_hooks();

/* A place, and its figures. Any thread. */
class Offload {
public:
    Offload(const char *function, int kind, const char *folder);

    int kind() const { return stats_.kind; }
    Store &store() { return *store_; }
    mt_offload_stats stats() const;

    void add_packed(size_t bytes, size_t original_bytes, double seconds);
    void add_unpacked(double seconds);
    void add_shared();
    void add_left_alone();
    void remove(size_t bytes) noexcept;

private:
    std::unique_ptr<Store> store_;
    mutable std::mutex mutex_;
    mt_offload_stats stats_ = MT_OFFLOAD_STATS_INIT;
};

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

class Packed;
struct CommonStorage;

/* What of a storage was saved, and as which Packed; it was saved with these numbers in it. */
struct SavedView {
    const void *data;
    std::vector<int64_t> sizes, strides;
    c10::ScalarType dtype;
    int64_t version;
    std::weak_ptr<Packed> packed;

    SavedView(const at::Tensor &tensor, const std::shared_ptr<Packed> &as);
    bool is(const at::Tensor &tensor) const;
};

/* A storage by its address, which no other one gets while this is here. */
struct SavedStorage {
    WeakStorage storage;
    std::vector<SavedView> views;
};

/*
 * The tensors that the graph of one chunk saves. One that is saved several times is packed once: it is
 * known again by its storage, where it lies in it, and its version.
 */
class SavedTensors {
public:
    /* samples: of the chunk, so that the same tensors are packed whatever their number; 0: not known. */
    SavedTensors(std::shared_ptr<Offload> offload, c10::DeviceType device, size_t samples);

    /* Tensors in this one's storage are left alone: it is there anyway. */
    void leave_alone(const at::Tensor &tensor);

    /* NULL: the tensor is left alone. */
    std::shared_ptr<Packed> pack(const at::Tensor &tensor);
    at::Tensor unpack(const std::shared_ptr<Packed> &packed);

    Offload &offload() { return *offload_; }

private:
    bool is_small(const at::Tensor &tensor) const;
    bool wants(const at::Tensor &tensor) const;
    std::vector<SavedView> &views_of(const at::Tensor &tensor);
    std::shared_ptr<Packed> find(const at::Tensor &tensor);
    std::shared_ptr<CommonStorage> common_of(const at::Tensor &tensor);
    void note_last(const std::shared_ptr<Packed> &packed);

    std::shared_ptr<Offload> offload_;
    c10::DeviceType device_;
    size_t samples_;
    std::unordered_set<const c10::StorageImpl *> left_alone_;
    std::mutex mutex_;
    std::unordered_map<const c10::StorageImpl *, SavedStorage> known_;
    std::vector<std::weak_ptr<Packed>> order_; /* in which they were packed */
    std::weak_ptr<Packed> last_, coming_;      /* that was asked for; that is fetched ahead */
};

/* While it lives, what autograd saves on this thread goes there; NULL: it stays where it is. */
class Offloading {
public:
    explicit Offloading(std::shared_ptr<SavedTensors> saved);
    ~Offloading();
    Offloading(const Offloading &) = delete;
    Offloading &operator=(const Offloading &) = delete;

    /* Of the innermost on this thread, or NULL. */
    static std::shared_ptr<SavedTensors> current();

private:
    std::shared_ptr<SavedTensors> before_;
};

/* Throws Failure for what is no kind (MT_EINVAL), and where there are no hooks (MT_ENOTSUP). */
void check_offload(const char *function, const char *argument, int kind);

/* The kind that the options ask for on the device: from the start, or as a rung. */
int offload_kind(const mt_torch_options &options, const Device &device);

} // namespace memtrain::shim
#endif
