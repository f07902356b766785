/*
 * device.hpp - a device by name: one of libtorch's, or a simulated card whose tensors lie on the CPU.
 */
#ifndef MEMTRAIN_SHIM_DEVICE_HPP
#define MEMTRAIN_SHIM_DEVICE_HPP

#include <string>

#include <c10/core/Device.h>

namespace memtrain::shim {

namespace sim {
class Card;
}

/*
 * What tells of the memory of a device, really or as a model: our allocator, Metal's hooks, or the c10::DeviceAllocator that
 * libtorch has for cards of that type. none: nothing does, as of tensors that have no memory ("meta").
 */
enum class Memory { none, cpu, mps, allocator };

/*
 * For libtorch it is a c10::Device, which is the CPU for a simulated card. Whatever concerns memory
 * asks memory(); whatever concerns kernels asks what it is for libtorch.
 */
struct Device {
    c10::Device where;
    sim::Card *card; /* NULL: the device itself; never freed */

    Device(c10::Device device, sim::Card *simulated = nullptr) : where(device), card(simulated) {}
    operator c10::Device() const { return where; }

    bool is_cpu() const { return where.is_cpu(); }
    bool is_mps() const { return where.is_mps(); }
    c10::DeviceType type() const { return where.type(); }
    c10::DeviceIndex index() const { return where.index(); }

    Memory memory() const;

    /* What libtorch says of it; a simulated card has what the card has. Asked once, in mt_torch_new. */
    bool has_doubles() const;

    /* Whether tensors of the host are tensors of the device. */
    bool is_host() const { return is_cpu() && !card; }

    /* "cpu", "cuda:0", "xpu:0", "mps", "sim:cuda", "sim:mps". */
    std::string name() const;
};

} // namespace memtrain::shim
#endif
