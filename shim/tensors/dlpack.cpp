/* dlpack.cpp - tensors that other libraries hand out, and ours handed out to them. */
#include <limits>

#include <ATen/Context.h>
#include <ATen/DLConvertor.h>

#include <memtrain/tensor.h>

#include "arguments.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "lend.hpp"
#include "tensor.hpp"
#include "tensor_handle.hpp"

namespace memtrain::shim {
namespace {

static_assert(DLPACK_MAJOR_VERSION == 1, "another major version has another layout");

template <class Managed> void give_back(void *managed) {
    auto *tensor = static_cast<Managed *>(managed);
    if (tensor->deleter) tensor->deleter(tensor);
}

c10::ScalarType type_of(const char *function, const DLDataType &dtype) {
    try {
        return at::toScalarType(dtype);
    } catch (const c10::Error &) {
        fail(MT_ENOTSUP, "%s: dtype has code %d, %d bits and %d lanes, which libtorch has not",
             function, dtype.code, dtype.bits, dtype.lanes);
    }
}

/* What libtorch calls CUDA is ROCm where it was built for that. */
DLDeviceType type_of_cuda() {
    return at::detail::getCUDAHooks().hasROCM() ? kDLROCM : kDLCUDA;
}

Device card(const char *function, c10::DeviceType type, int index) {
    constexpr int most = std::numeric_limits<c10::DeviceIndex>::max();
    if (index < 0 || index > most)
        fail(MT_EINVAL, "%s: device_id is %d; accepted: 0 to %d", function, index, most);
    Device device = c10::Device(type, static_cast<c10::DeviceIndex>(index));
    check_device(function, device);
    return device;
}

/* DLPack counts XPUs as the driver does, which may see more of them than libtorch: where the memory lies is asked. */
Device xpu_of(const char *function, const DLTensor &tensor) {
    Device first = card(function, c10::kXPU, 0);
    if (!tensor.data) return first;
    return at::globalContext().getDeviceFromPtr(tensor.data, c10::kXPU);
}

Device device_of(const char *function, const DLTensor &tensor) {
    DLDeviceType type = tensor.device.device_type, cuda = type_of_cuda();
    if (type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost) return c10::Device(c10::kCPU);
    if (type == cuda) return card(function, c10::kCUDA, tensor.device.device_id);
    if (type == kDLOneAPI) return xpu_of(function, tensor);
    fail(MT_ENOTSUP, "%s: device_type is %d; accepted: %d (CPU), %d (CUDA), %d (XPU), %d (pinned)",
         function, static_cast<int>(type), kDLCPU, cuda, kDLOneAPI, kDLCUDAHost);
}

mt_tensor *take(const char *function, const DLTensor &tensor, bool read_only, Loan loan) {
    check(ensure_init());
    if (tensor.ndim < 0)
        fail(MT_EINVAL, "%s: ndim is %d; accepted: 0 to %d", function, tensor.ndim,
             MT_TENSOR_DIMS_MAX);
    void *data = tensor.data ? static_cast<char *>(tensor.data) + tensor.byte_offset : nullptr;
    Device where = device_of(function, tensor);
    synchronize(where); /* its writer may have used any stream */
    return new_handle(
        lend({function, "", data, Lent::unknown, type_of(function, tensor.dtype),
              static_cast<size_t>(tensor.ndim), tensor.shape, tensor.strides, where, read_only},
             std::move(loan)));
}

/* What is checked of a version before anything else is looked at: the layout is another one there. */
void check_major(const char *function, const DLPackVersion &version) {
    if (version.major != DLPACK_MAJOR_VERSION)
        fail(MT_ENOTSUP, "%s: the version of DLPack is %u.%u; accepted: %d.x", function,
             version.major, version.minor, DLPACK_MAJOR_VERSION);
}

void check_shareable(const char *function, const at::Tensor &tensor) {
    if (tensor.requires_grad())
        fail(MT_ENOTSUP,
             "%s: tensor requires a gradient, which DLPack cannot tell: hand out a copy "
             "(mt_tensor_copy)",
             function);
    if (tensor.is_conj() || tensor.is_neg())
        fail(MT_ENOTSUP, "%s: tensor is a lazy conjugate: hand out a copy (mt_tensor_copy)",
             function);
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_tensor_from_dlpack(DLManagedTensor *managed, mt_tensor **out) {
    static const char name[] = "mt_tensor_from_dlpack";
    if (out) *out = nullptr;
    MT_RETURN_IF_FAILED(check_not_null(managed, name, "managed"));
    return guard([&] {
        Loan loan(give_back<DLManagedTensor>, managed);
        check(check_not_null(out, name, "out"));
        *out = take(name, managed->dl_tensor, false, std::move(loan));
    });
}

extern "C" mt_status mt_tensor_from_dlpack_versioned(DLManagedTensorVersioned *managed,
                                                     mt_tensor **out) {
    static const char name[] = "mt_tensor_from_dlpack_versioned";
    if (out) *out = nullptr;
    MT_RETURN_IF_FAILED(check_not_null(managed, name, "managed"));
    return guard([&] {
        Loan loan(give_back<DLManagedTensorVersioned>, managed);
        check_major(name, managed->version);
        check(check_not_null(out, name, "out"));
        bool read_only = managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
        *out = take(name, managed->dl_tensor, read_only, std::move(loan));
    });
}

extern "C" mt_status mt_tensor_to_dlpack(mt_tensor *tensor, DLManagedTensor **out) {
    static const char name[] = "mt_tensor_to_dlpack";
    MT_RETURN_IF_FAILED(check_not_null(out, name, "out"));
    *out = nullptr;
    return with_tensor(name, tensor, [&](const at::Tensor &inside) {
        check_shareable(name, inside);
        if (is_read_only(inside))
            fail(MT_ENOTSUP,
                 "%s: tensor is read-only, which this form cannot tell: "
                 "mt_tensor_to_dlpack_versioned can",
                 name);
        *out = at::toDLPack(inside);
    });
}

extern "C" mt_status mt_tensor_to_dlpack_versioned(mt_tensor *tensor, int copy,
                                                   DLManagedTensorVersioned **out) {
    static const char name[] = "mt_tensor_to_dlpack_versioned";
    MT_RETURN_IF_FAILED(check_not_null(out, name, "out"));
    *out = nullptr;
    return with_tensor(name, tensor, [&](const at::Tensor &inside) {
        if (!copy) check_shareable(name, inside);
        *out = at::toDLPackVersioned(copy ? copy_of(inside, inside.device(), inside.scalar_type())
                                          : inside);
        if (copy) (*out)->flags |= DLPACK_FLAG_BITMASK_IS_COPIED;
        if (!copy && is_read_only(inside)) (*out)->flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    });
}
