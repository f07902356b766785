/*
 * compat.hpp - what differs between the versions of libtorch that are supported, 2.9 to 2.13.
 *
 * libtorch's C++ interface has no stable ABI: this library is built for one minor version and
 * refuses another one at run time (init.cpp). Interfaces that move between the versions are named
 * here and nowhere else.
 */
#ifndef MEMTRAIN_SHIM_COMPAT_HPP
#define MEMTRAIN_SHIM_COMPAT_HPP

#include <cstdint>

#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 9 || TORCH_VERSION_MINOR > 13
#error "libmemtrain_torch supports libtorch 2.9 to 2.13"
#endif

/* The base class of caching device allocators, and the settings without CUDA's own headers. */
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

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

inline void set_allocator_settings(const std::string &settings) {
    c10::CachingAllocator::setAllocatorSettings(settings);
}

/* The settings that a later call would put back to their defaults when it does not name them. */
inline size_t max_split_bytes() {
    return c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size();
}

inline double collection_threshold() {
    return c10::CachingAllocator::AcceleratorAllocatorConfig::garbage_collection_threshold();
}

/*
 * The reporter of libtorch's profiler. Its arguments were signed before 2.0 and have been size_t
 * since; the override in watch.hpp fails to compile should they change again.
 */
using ReporterBase = c10::MemoryReportingInfoBase;

} // namespace memtrain::shim::compat
#endif
