/* tensor.cpp - tensor handles: over the caller's memory, temporary ones, chunks of a batch. */
#include "tensor.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/narrow.h>

#include "arguments.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "lend.hpp"
#include "pinned.hpp"
#include "staging.hpp"

namespace memtrain::shim {

std::vector<Named> distinct(const std::vector<Named> &all) {
    std::vector<Named> list;
    for (const Named &named : all) {
        bool seen = false;
        for (size_t i = 0; i < list.size() && !seen; i++)
            seen = list[i].tensor.is_same(named.tensor);
        if (!seen) list.push_back(named);
    }
    return list;
}

at::Tensor without_repeats(const at::Tensor &tensor) {
    at::Tensor part = tensor;
    for (int64_t i = 0; part.layout() == c10::kStrided && i < part.dim(); i++)
        if (part.stride(i) == 0 && part.size(i) > 1) part = part.narrow(i, 0, 1);
    return part;
}

/*
 * Whether some step is no longer than what the shorter ones reach. Then elements share memory, but for
 * strides that mesh, which no view of an array in order has.
 */
bool may_overlap(const at::Tensor &tensor) {
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (int64_t i = 0; i < tensor.dim(); i++)
        if (tensor.size(i) > 1) steps.emplace_back(tensor.stride(i), tensor.size(i) - 1);
    std::sort(steps.begin(), steps.end());
    int64_t reach = 0;
    for (const auto &[stride, times] : steps) {
        if (stride <= reach) return true;
        reach += stride * times;
    }
    return false;
}

Span::Span(const at::Tensor &tensor) {
    if (tensor.layout() != c10::kStrided || !tensor.numel()) return;
    int64_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); i++) last += (tensor.size(i) - 1) * tensor.stride(i);
    begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    end = begin + static_cast<size_t>(last + 1) * tensor.element_size();
}

uint32_t version_of(const at::Tensor &tensor) {
    bool is_counted = tensor.defined() && !tensor.is_inference();
    return is_counted ? static_cast<uint32_t>(tensor._version()) : 0;
}

std::vector<uint32_t> versions_of(const std::vector<at::Tensor> &tensors) {
    std::vector<uint32_t> list;
    for (const at::Tensor &tensor : tensors) list.push_back(version_of(tensor));
    return list;
}

mt_status collect(void *user, const char *name, mt_tensor *tensor) {
    auto &list = *static_cast<std::vector<Named> *>(user);
    MT_RETURN_IF_FAILED(check_not_null(name, "the model's visit function", "name"));
    MT_RETURN_IF_FAILED(check_handle(tensor, MT__KIND_TENSOR, "the model's visit function", name));
    return guard([&] {
        if (tensor->tensor.defined()) list.push_back({name, tensor->tensor});
    });
}

namespace {

void register_handle(mt_tensor *handle) {
    if (!mt__handle_add(handle, MT__KIND_TENSOR)) throw std::bad_alloc();
}

} // namespace

mt_tensor *new_handle(at::Tensor tensor) {
    auto handle = std::make_unique<mt_tensor>();
    handle->tensor = std::move(tensor);
    handle->owned = true;
    register_handle(handle.get());
    return handle.release();
}

TemporaryHandle::TemporaryHandle(at::Tensor tensor) : handle_{std::move(tensor), false} {
    register_handle(&handle_);
}

TemporaryHandle::~TemporaryHandle() {
    mt__handle_remove(&handle_, MT__KIND_TENSOR);
}

namespace {

at::Tensor part_of(const mt_torch_batch &batch, size_t i, size_t first, size_t count) {
    return batch.tensors[i]->tensor.narrow(0, static_cast<int64_t>(first),
                                           static_cast<int64_t>(count));
}

bool is_staged(const at::Tensor &part, const Placement &to) {
    return to.staging && part.is_cpu() && !part.requires_grad() && !part.is_inference();
}

at::MemoryFormat order_of(const at::Tensor &part, const Placement &to) {
    return to.channels_last && part.dim() == 4 ? at::MemoryFormat::ChannelsLast
                                               : at::MemoryFormat::Preserve;
}

/* As many slots as the batch has chunks, so that no more than about a batch is pinned. */
std::unique_ptr<Staged> stage(const mt_torch_batch &batch, size_t first, size_t count,
                              const Placement &to) {
    size_t bytes = 0, staged = 0, samples = 0;
    for (size_t i = 0; i < batch.count; i++) {
        at::Tensor part = part_of(batch, i, first, count);
        if (!is_staged(part, to)) continue;
        bytes += Staged::room(part, order_of(part, to));
        samples = static_cast<size_t>(batch.tensors[i]->tensor.size(0));
        staged++;
    }
    return staged ? Staged::open(*to.staging, bytes, (samples + count - 1) / count) : nullptr;
}

/*
 * MPS reads memory of the host where it lies, later. A batch is its step's until the host has waited for that. But what has to be
 * put into another order first would be a temporary tensor, which is gone by then.
 */
bool is_read_in_place(const at::Tensor &part, const Placement &to, at::MemoryFormat order) {
    return to.device.is_mps() && order == at::MemoryFormat::Preserve && part.is_contiguous();
}

size_t bytes_of(const at::Tensor &part) {
    return at::detail::computeStorageNbytes(part.sizes(), part.strides(), part.itemsize());
}

/* Whether it is, or there is room for a copy of it that is. */
bool may_be_pinned(const at::Tensor &part, const Device &device) {
    return part.is_cpu() && has_pinned_memory(device) &&
           (part.is_pinned() || PinnedBytes::has_room(device.type(), bytes_of(part)));
}

/* Counted while it is filled: libtorch keeps it until the copy from it is through. */
at::Tensor pinned_copy(const at::Tensor &part, const Device &device) {
    if (part.is_pinned()) return part;
    PinnedBytes counted(device.type(), bytes_of(part));
    return counted.make(part.sizes(), part.strides(), part.scalar_type()).copy_(part);
}

} // namespace

/*
 * Where nothing is staged the host waits for the copy, unless the memory is pinned, which libtorch keeps until the copy is
 * through, or MPS reads it in place. What comes from a card would be read before it is there.
 */
at::Tensor Chunk::placed(const at::Tensor &part, const Placement &to) {
    at::MemoryFormat order = order_of(part, to);
    bool is_uncounted = part.is_inference() && !to.only_counted;
    if (to.device.card || is_uncounted) return part.clone(order).to(at::device(to.device.where));
    if (staged_ && is_staged(part, to)) return staged_->send(part, order);
    bool is_pinned = may_be_pinned(part, to.device);
    bool goes_on = is_pinned || (part.is_cpu() && is_read_in_place(part, to, order));
    at::Tensor from = is_pinned ? pinned_copy(part, to.device) : part;
    return from.to(at::device(to.device.where), /*non_blocking=*/goes_on, /*copy=*/false, order);
}

Chunk::Chunk(const mt_torch_batch &batch, size_t first, size_t count, const Placement &to)
    : staged_(stage(batch, first, count, to)) {
    for (size_t i = 0; i < batch.count; i++) {
        at::Tensor part = placed(part_of(batch, i, first, count), to);
        tensors_[i].tensor = part.requires_grad() || to.only_counted ? part : part.variable_data();
        given_[i] = tensors_[i].tensor;
        versions_[i] = version_of(given_[i]);
        handles_[i] = &tensors_[i];
    }
    if (staged_) staged_->finish();
    /* Registered last: a constructor that throws has no destructor to take handles back. */
    for (; count_ < batch.count; count_++) {
        if (mt__handle_add(handles_[count_], MT__KIND_TENSOR)) continue;
        while (count_ > 0) mt__handle_remove(handles_[--count_], MT__KIND_TENSOR);
        throw std::bad_alloc();
    }
}

size_t Chunk::written() const {
    size_t i = 0;
    while (i < count_ && version_of(given_[i]) == versions_[i]) i++;
    return i;
}

Chunk::~Chunk() {
    for (size_t i = 0; i < count_; i++) mt__handle_remove(handles_[i], MT__KIND_TENSOR);
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_tensor_from_memory(void *data, mt_dtype dtype, size_t dims,
                                           const int64_t *shape, mt_tensor **out) {
    MT_RETURN_IF_FAILED(check_not_null(out, "mt_tensor_from_memory", "out"));
    *out = nullptr;
    MT_RETURN_IF_FAILED(ensure_init());
    return guard([&] {
        static const char name[] = "mt_tensor_from_memory";
        c10::ScalarType type = scalar_type(name, number_of(dtype));
        *out = new_handle(lend({name, "", data, Lent::unknown, type, dims, shape}, Loan()));
    });
}

extern "C" mt_status mt_tensor_new(mt_tensor **out) {
    MT_RETURN_IF_FAILED(check_not_null(out, "mt_tensor_new", "out"));
    *out = nullptr;
    return guard([&] { *out = new_handle({}); });
}

extern "C" void mt_tensor_free(mt_tensor *tensor) {
    if (!mt__handle_is(tensor, MT__KIND_TENSOR) || !tensor->owned) return;
    if (!mt__handle_remove(tensor, MT__KIND_TENSOR)) return;
    (void)guard([&] { delete tensor; });
}

extern "C" void *mt_tensor_get(mt_tensor *tensor) {
    return mt__handle_is(tensor, MT__KIND_TENSOR) ? &tensor->tensor : nullptr;
}

extern "C" mt_status mt_visit_tensor(const void *tensor, const char *name, mt_visit_fn fn,
                                     void *user) {
    MT_RETURN_IF_FAILED(check_not_null(tensor, "mt_visit_tensor", "tensor"));
    MT_RETURN_IF_FAILED(check_not_null(name, "mt_visit_tensor", "name"));
    MT_RETURN_IF_FAILED(
        check_not_null(reinterpret_cast<const void *>(fn), "mt_visit_tensor", "fn"));
    return guard([&] {
        TemporaryHandle handle(*static_cast<const at::Tensor *>(tensor));
        return fn(user, name, handle.get());
    });
}
