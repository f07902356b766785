/*
 * device_memory.hpp - what is known and set of the memory of a device, by device type.
 *
 * MPS is driven through its hooks, and CUDA, XPU and whatever else has a c10::DeviceAllocator through that, so that no header
 * of a device's own is needed, and a simulated card takes the same path with interfaces of its own. The functions throw what
 * libtorch throws.
 */
#ifndef MEMTRAIN_SHIM_DEVICE_MEMORY_HPP
#define MEMTRAIN_SHIM_DEVICE_MEMORY_HPP

#include <string>
#include <vector>

#include <memtrain/backend.h>

#include "device.hpp"

namespace memtrain::shim {

/* All cards that are here, those of third parties too. */
std::vector<c10::Device> cards_here();

/* The names of all devices that are here: "cpu, cuda:0". */
std::string devices_here();

/* Throws Failure (MT_ENOTSUP) when the device cannot be used, with what is to be installed. */
void check_device(const char *function, const Device &device);

/* Whether it copies from pinned memory of the host while the host goes on. MPS would read any memory later. */
bool has_pinned_memory(const Device &device) noexcept;

void set_device_budget(const Device &device, size_t bytes);

/*
 * Without an allocator of ours the CPU's figures are 0, but for a budget that was set. wants_free: also what is free on a card
 * with a budget, for which its driver has to be asked.
 */
mt_memory device_memory(const Device &device, bool wants_free = true);

/* What is allocated now, and nothing else: also within a chunk. 0 where it is not known. */
size_t device_allocated(const Device &device);

void reset_device_peak(const Device &device);
/* After a failure: others may use the card too, so a budget by default is worked out anew. */
void forget_room(const Device &device);

mt_clear_result empty_device_cache(const Device &device);

/* Waits until the device has done what it was given; nothing to wait for on the CPU. */
void synchronize(const Device &device);

/*
 * The peak of one call, without disturbing the peak that device_memory() tells. 0 on MPS, which
 * keeps no peak.
 */
void start_call_peak(const Device &device);
size_t call_peak(const Device &device);

/* Times that a card's allocator, or its model, gave up; 0 where none is counted. Never throws. */
int64_t device_ooms(const Device &device) noexcept;

} // namespace memtrain::shim
#endif
