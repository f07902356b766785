/* tensor_handle.hpp - what the functions on a tensor of the caller's have in common. */
#ifndef MEMTRAIN_SHIM_TENSOR_HANDLE_HPP
#define MEMTRAIN_SHIM_TENSOR_HANDLE_HPP

#include <ATen/core/Tensor.h>

#include "arguments.hpp"
#include "guard.hpp"
#include "tensor.hpp"

namespace memtrain::shim {

/* Calls body with the tensor inside, guarded and on its device, where there is one and it is dense. */
template <class Body>
mt_status with_tensor(const char *function, const mt_tensor *handle, Body &&body) noexcept {
    MT_RETURN_IF_FAILED(check_handle(handle, MT__KIND_TENSOR, function, "tensor"));
    const at::Tensor &tensor = handle->tensor;
    if (!tensor.defined())
        return mt_set_error(MT_ESTATE, "%s: tensor is a handle without a tensor in it", function);
    return guard(tensor.device(), [&] {
        if (tensor.layout() != c10::kStrided) fail(MT_ENOTSUP, "%s: tensor is sparse", function);
        body(tensor);
    });
}

/* In row-major order and memory of its own, no part of a graph. */
inline at::Tensor copy_of(const at::Tensor &tensor, c10::Device device, c10::ScalarType type) {
    return tensor.detach().to(at::device(device).dtype(type), /*non_blocking=*/false,
                              /*copy=*/true, c10::MemoryFormat::Contiguous);
}

} // namespace memtrain::shim
#endif
