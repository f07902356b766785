/* tensor_memory.cpp - tensors over memory of the caller's, what a tensor is, its numbers in an array. */
#include <cstdio>

#include <ATen/ops/copy.h>

#include <memtrain/tensor.h>

#include "arguments.hpp"
#include "device_name.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "lend.hpp"
#include "tensor.hpp"
#include "tensor_handle.hpp"

namespace memtrain::shim {
namespace {

/* Simulated cards take no part: their tensors are made inside the calls of an mt_torch. */
Device usable_device(const char *function, const char *name) {
    Device device = c10::Device(c10::kCPU);
    if (!name) return device;
    check(parse_device(name, function, &device));
    if (device.card)
        fail(MT_ENOTSUP,
             "%s: device '%s' is simulated, and tensors get there by mt_torch_new alone", function,
             name);
    if (!device.is_cpu()) check_device(function, device);
    return device;
}

mt_tensor *wrap(const mt_tensor_memory &m, Loan loan) {
    static const char name[] = "mt_tensor_wrap";
    Device device = usable_device(name, m.device);
    if (device.is_mps())
        fail(MT_ENOTSUP, "%s: memory->device is '%s'; accepted: cpu, cuda, cuda:N, xpu, xpu:N",
             name, m.device);
    size_t bytes = m.bytes ? m.bytes : Lent::unknown;
    return new_handle(lend({name, "memory->", m.data, bytes, scalar_type(name, number_of(m.dtype)),
                            m.dims, m.shape, m.strides, device, m.read_only != 0},
                           std::move(loan)));
}

mt_tensor_info describe(const at::Tensor &tensor) {
    mt_tensor_info info = MT_TENSOR_INFO_INIT;
    info.dtype = dtype_of(tensor.scalar_type());
    info.dtype_name = c10::toString(tensor.scalar_type());
    info.item_bytes = tensor.element_size();
    info.dims = static_cast<size_t>(tensor.dim());
    info.shape = tensor.sizes().data();
    info.strides = tensor.strides().data();
    info.count = static_cast<size_t>(tensor.numel());
    info.bytes = info.count * info.item_bytes;
    info.data = info.count ? const_cast<void *>(tensor.const_data_ptr()) : nullptr;
    std::snprintf(info.device, sizeof info.device, "%s", tensor.device().str().c_str());
    info.in_order = tensor.is_contiguous();
    info.requires_grad = tensor.requires_grad();
    info.read_only = is_read_only(tensor);
    return info;
}

/* The array of a caller's as a tensor of that shape. */
at::Tensor array(const char *function, mt_dtype dtype, void *data, size_t bytes,
                 const at::Tensor &like) {
    return lend({function, "", data, bytes, scalar_type(function, number_of(dtype)),
                 static_cast<size_t>(like.dim()), like.sizes().data()},
                Loan());
}

void check_writable(const char *function, const at::Tensor &tensor) {
    if (is_read_only(tensor)) fail(MT_EINVAL, "%s: tensor is read-only", function);
    if (tensor.numel() && may_overlap(tensor))
        fail(MT_EINVAL, "%s: elements of tensor share memory, as its strides tell", function);
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_tensor_wrap(const mt_tensor_memory *memory, mt_tensor **out) {
    if (out) *out = nullptr;
    mt_tensor_memory own = MT_TENSOR_MEMORY_INIT;
    MT_RETURN_IF_FAILED(check_sized(memory, "mt_tensor_wrap", "memory"));
    copy_in(own, memory);
    return guard([&] {
        Loan loan(own.release, own.user);
        check(check_not_null(out, "mt_tensor_wrap", "out"));
        check(ensure_init());
        *out = wrap(own, std::move(loan));
    });
}

extern "C" mt_status mt_tensor_describe(const mt_tensor *tensor, mt_tensor_info *out) {
    static const char name[] = "mt_tensor_describe";
    MT_RETURN_IF_FAILED(check_sized(out, name, "out"));
    return with_tensor(name, tensor,
                       [&](const at::Tensor &inside) { hand_over(describe(inside), out); });
}

extern "C" mt_status mt_tensor_read(const mt_tensor *tensor, mt_dtype dtype, void *data,
                                    size_t bytes) {
    static const char name[] = "mt_tensor_read";
    return with_tensor(name, tensor, [&](const at::Tensor &inside) {
        if (inside.is_complex())
            fail(MT_ENOTSUP,
                 "%s: the tensor is complex, and no mt_dtype is; aten::view_as_real "
                 "makes two numbers of each",
                 name);
        array(name, dtype, data, bytes, inside).copy_(inside.detach());
    });
}

extern "C" mt_status mt_tensor_write(mt_tensor *tensor, mt_dtype dtype, const void *data,
                                     size_t bytes) {
    static const char name[] = "mt_tensor_write";
    return with_tensor(name, tensor, [&](const at::Tensor &inside) {
        check_writable(name, inside);
        inside.detach().copy_(array(name, dtype, const_cast<void *>(data), bytes, inside));
    });
}

extern "C" mt_status mt_tensor_copy(const mt_tensor *tensor, const char *device, mt_dtype dtype,
                                    mt_tensor **out) {
    static const char name[] = "mt_tensor_copy";
    MT_RETURN_IF_FAILED(check_not_null(out, name, "out"));
    *out = nullptr;
    return with_tensor(name, tensor, [&](const at::Tensor &inside) {
        c10::Device where = device ? usable_device(name, device).where : inside.device();
        int number = number_of(dtype);
        c10::ScalarType type = number ? scalar_type(name, number) : inside.scalar_type();
        check(guard(where, [&] { *out = new_handle(copy_of(inside, where, type)); }));
    });
}
