/* tensor.cpp - tensor handles: over the caller's memory, temporary ones, chunks of a batch. */
#include "tensor.hpp"

#include <limits>
#include <memory>
#include <new>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/narrow.h>

#include "arguments.hpp"
#include "guard.hpp"
#include "init.hpp"

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

mt_status collect(void *user, const char *name, mt_tensor *tensor) {
    auto &list = *static_cast<std::vector<Named> *>(user);
    return guard([&] {
        if (tensor->tensor.defined()) list.push_back({name, tensor->tensor});
    });
}

namespace {

void register_handle(mt_tensor *handle) {
    if (!mt__handle_add(handle, MT__KIND_TENSOR)) throw std::bad_alloc();
}

/* Throws Failure for a number that is no dtype. */
c10::ScalarType scalar_type(const char *function, int dtype) {
    switch (dtype) {
    case MT_FLOAT32:
        return c10::kFloat;
    case MT_FLOAT64:
        return c10::kDouble;
    case MT_FLOAT16:
        return c10::kHalf;
    case MT_BFLOAT16:
        return c10::kBFloat16;
    case MT_INT64:
        return c10::kLong;
    case MT_INT32:
        return c10::kInt;
    case MT_UINT8:
        return c10::kByte;
    case MT_BOOL:
        return c10::kBool;
    }
    fail(MT_EINVAL, "%s: dtype %d is none of mt_dtype", function, dtype);
}

void check_shape(const char *function, size_t dims, const int64_t *shape) {
    if (dims && !shape) fail(MT_EINVAL, "%s: shape is NULL", function);
    for (size_t i = 0; i < dims; i++)
        if (shape[i] < 0)
            fail(MT_EINVAL, "%s: shape[%zu] is %lld; accepted: at least 0", function, i,
                 static_cast<long long>(shape[i]));
}

/* A size of 0 counts as 1: strides are products too, and libtorch multiplies them unchecked. */
void check_bytes(const char *function, size_t dims, const int64_t *shape, size_t item) {
    const int64_t most = std::numeric_limits<int64_t>::max();
    int64_t left = most / static_cast<int64_t>(item);
    for (size_t i = 0; i < dims; i++) {
        if (shape[i] > left)
            fail(MT_EINVAL, "%s: shape[%zu] is %lld; accepted: at most %lld there, for %lld bytes",
                 function, i, static_cast<long long>(shape[i]), static_cast<long long>(left),
                 static_cast<long long>(most));
        if (shape[i] > 1) left /= shape[i];
    }
}

mt_tensor *tensor_over(void *data, int dtype, size_t dims, const int64_t *shape) {
    static const char name[] = "mt_tensor_from_memory";
    check_shape(name, dims, shape);
    auto handle = std::make_unique<mt_tensor>();
    c10::ScalarType type = scalar_type(name, dtype);
    check_bytes(name, dims, shape, c10::elementSize(type));
    handle->tensor =
        at::from_blob(data, at::IntArrayRef(shape, dims), at::device(c10::kCPU).dtype(type));
    if (!data && handle->tensor.numel()) fail(MT_EINVAL, "%s: data is NULL", name);
    handle->owned = true;
    register_handle(handle.get());
    return handle.release();
}

} // namespace

TemporaryHandle::TemporaryHandle(at::Tensor tensor) : handle_{std::move(tensor), false} {
    register_handle(&handle_);
}

TemporaryHandle::~TemporaryHandle() {
    mt__handle_remove(&handle_, MT__KIND_TENSOR);
}

Chunk::Chunk(const mt_torch_batch &batch, size_t first, size_t count, const Device &device) {
    for (size_t i = 0; i < batch.count; i++) {
        at::Tensor part = batch.tensors[i]->tensor.narrow(0, static_cast<int64_t>(first),
                                                          static_cast<int64_t>(count));
        tensors_[i].tensor = device.is_host() ? part
                             : device.card    ? part.clone()
                                              : part.to(device, /*non_blocking=*/true);
        handles_[i] = &tensors_[i];
    }
    /* Registered last: a constructor that throws has no destructor to take handles back. */
    for (; count_ < batch.count; count_++) {
        if (mt__handle_add(handles_[count_], MT__KIND_TENSOR)) continue;
        while (count_ > 0) mt__handle_remove(handles_[--count_], MT__KIND_TENSOR);
        throw std::bad_alloc();
    }
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
    return guard([&] { *out = tensor_over(data, number_of(dtype), dims, shape); });
}

extern "C" mt_status mt_tensor_new(mt_tensor **out) {
    MT_RETURN_IF_FAILED(check_not_null(out, "mt_tensor_new", "out"));
    *out = nullptr;
    return guard([&] {
        auto handle = std::make_unique<mt_tensor>();
        handle->owned = true;
        register_handle(handle.get());
        *out = handle.release();
    });
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
