/*
 * compat.hpp - what differs between the versions of libtorch that are supported (setup/libtorch.txt has them;
 * setup/libtorch.sh refuses others).
 *
 * libtorch's C++ interface has no stable ABI: this library is built for one minor version and
 * refuses another one at run time (init.cpp). Interfaces that move between the versions are named
 * here and nowhere else.
 */
#ifndef MEMTRAIN_SHIM_COMPAT_HPP
#define MEMTRAIN_SHIM_COMPAT_HPP

#include <cstdint>
#include <utility>

#include <torch/version.h>

/* The base class of caching device allocators. */
#include <c10/core/CachingDeviceAllocator.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <dlfcn.h>

#if TORCH_VERSION_MINOR < 10
#include <c10/core/DeviceGuard.h>
#else
#include <cstring>

#include <c10/util/Exception.h>
#endif
#if TORCH_VERSION_MINOR < 13
#include <memory>
#else
#include <c10/util/intrusive_ptr.h>
#endif

#if TORCH_VERSION_MINOR < 13
namespace torch::autograd {
struct Node;
TORCH_API void deleteNode(Node *node);
} // namespace torch::autograd
#endif

/* Exported by libtorch_cpu; its header wants more of the C shim than is needed here. */
extern "C" uint64_t aoti_torch_abi_version();

namespace memtrain::shim::compat {

/* libtorch's version as one number per minor: major in the top byte, minor in the next. */
constexpr uint64_t built_for = (uint64_t{TORCH_VERSION_MAJOR} << 8) | TORCH_VERSION_MINOR;

inline uint64_t loaded() {
    return aoti_torch_abi_version() >> 48;
}

/* The allocator of a device with statistics, or NULL: MPS has had one since 2.14, the CPU none. */
inline c10::DeviceAllocator *device_allocator(c10::DeviceType type) {
    return dynamic_cast<c10::DeviceAllocator *>(c10::GetAllocator(type));
}

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

/*
 * The base class of the simulated card's allocator, and a card's free and total bytes, zeros where nothing tells them.
 * Allocators tell these since 2.10, XPU's where the driver does. In 2.9 CUDA's runtime is asked, which is loaded where
 * CUDA's allocator is.
 */
#if TORCH_VERSION_MINOR >= 10
using DeviceAllocator = c10::DeviceAllocator;

inline std::pair<size_t, size_t> memory_info(c10::DeviceAllocator &allocator, c10::Device device) {
    try {
        return allocator.getMemoryInfo(device.index());
    } catch (const c10::NotImplementedError &) {
        return {0, 0};
    } catch (const c10::Error &error) {
        static const char no_figure[] = "doesn't support querying the available free memory";
        if (std::strstr(error.what_without_backtrace(), no_figure)) return {0, 0};
        throw;
    }
}
#else
class DeviceAllocator : public c10::DeviceAllocator {
public:
    virtual std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) = 0;
};

inline std::pair<size_t, size_t> memory_info(c10::DeviceAllocator &allocator, c10::Device device) {
    if (auto *card = dynamic_cast<DeviceAllocator *>(&allocator))
        return card->getMemoryInfo(device.index());
    if (!device.is_cuda()) return {0, 0};
    using Query = int (*)(size_t *, size_t *);
    /* By the part of libtorch that needs it: where Python has loaded that its names are no global ones. */
    void *part = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    auto query = reinterpret_cast<Query>(dlsym(part ? part : RTLD_DEFAULT, "cudaMemGetInfo"));
    if (part) dlclose(part);
    c10::DeviceGuard on(device);
    size_t free_bytes = 0, total_bytes = 0;
    TORCH_CHECK(query && query(&free_bytes, &total_bytes) == 0,
                "CUDA does not tell how much memory is free");
    return {free_bytes, total_bytes};
}
#endif

/*
 * What CUDA's allocator adds to a DeviceAllocator, up to the function that is called here. Its own header cannot be included
 * without CUDA's; tests/check_shim_cuda compares the two where it can.
 */
class CudaAllocator : public c10::DeviceAllocator {
public:
    virtual void *raw_alloc(size_t bytes) = 0;
    virtual void *raw_alloc_with_stream(size_t bytes, void *stream) = 0;
    virtual void raw_delete(void *address) = 0;
    virtual void init(int device_count) = 0;
    virtual double getMemoryFraction(c10::DeviceIndex index) = 0;
    virtual void setMemoryFraction(double fraction, c10::DeviceIndex index) = 0;
};

/*
 * A function of libc10_xpu, whose header cannot be included without SYCL's; NULL where it is not loaded, or has none yet. It is
 * not among the global symbols where Python has loaded libtorch.
 */
inline void (*xpu_set_memory_fraction())(double, c10::DeviceIndex) {
    static const char name[] = "_ZN3c103xpu19XPUCachingAllocator17setMemoryFractionEda";
    void *found = dlsym(RTLD_DEFAULT, name);
    void *library = found ? nullptr : dlopen("libc10_xpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library) {
        found = dlsym(library, name);
        dlclose(library); /* it stays: libtorch needs it */
    }
    return reinterpret_cast<void (*)(double, c10::DeviceIndex)>(found);
}

/* The share of a card that its allocator may reserve. false: it takes none. The device has to be initialised. */
inline bool set_memory_fraction(c10::DeviceAllocator &allocator, c10::Device device,
                                double fraction) {
    if (device.is_cuda()) {
        static_cast<CudaAllocator &>(allocator).setMemoryFraction(fraction, device.index());
        return true;
    }
    auto *set = device.is_xpu() ? xpu_set_memory_fraction() : nullptr;
    if (set) set(fraction, device.index());
    return set != nullptr;
}

/*
 * The reporter of libtorch's profiler. Its arguments were signed before 2.0 and have been size_t
 * since; the override in watch.hpp fails to compile should they change again.
 */
using ReporterBase = c10::MemoryReportingInfoBase;

/*
 * Samples from which on one thread of the CPU has oneDNN compute 1x1 convolutions, which takes other
 * temporaries; smaller chunks libtorch computes by itself (use_mkldnn in its Convolution.cpp).
 */
constexpr size_t pointwise_change = 16;

/*
 * A node of autograd's graph. Until 2.12 a shared pointer with a deleter that keeps long graphs from
 * recursing, from 2.13 on an intrusive one whose base class sees to that.
 */
#if TORCH_VERSION_MINOR < 13
template <class Node, class... Arguments> std::shared_ptr<Node> new_node(Arguments &&...arguments) {
    return {new Node(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode};
}
#else
template <class Node, class... Arguments>
c10::intrusive_ptr<Node> new_node(Arguments &&...arguments) {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
}
#endif

} // namespace memtrain::shim::compat
#endif
