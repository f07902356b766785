/* arguments.cpp - checks of what callers hand in. */
#include "arguments.hpp"

#include <cstdlib>
#include <limits>

#include <ATen/DeviceAccelerator.h>

#include "guard.hpp"
#include "sim_memory.hpp"

namespace memtrain::shim {

mt_status check_not_null(const void *pointer, const char *function, const char *argument) {
    if (pointer) return MT_OK;
    return mt_set_error(MT_EINVAL, "%s: %s is NULL", function, argument);
}

mt_status check_handle(const void *handle, int kind, const char *function, const char *argument) {
    MT_RETURN_IF_FAILED(check_not_null(handle, function, argument));
    if (mt__handle_is(handle, kind)) return MT_OK;
    return mt_set_error(MT_EINVAL, "%s: %s is not a live handle", function, argument);
}

mt_status check_sized(const void *sized, const char *function, const char *argument) {
    MT_RETURN_IF_FAILED(check_not_null(sized, function, argument));
    size_t size;
    std::memcpy(&size, sized, sizeof size);
    if (size >= sizeof size) return MT_OK;
    return mt_set_error(MT_EINVAL, "%s: %s->size is not set", function, argument);
}

/* libtorch parses more of them: the devices that others bring (docs/devices.md). */
static const char device_names[] = "cpu, cuda, cuda:N, xpu, xpu:N, mps, sim:cuda, sim:mps";

/* Throws for one that is none. An index beyond what libtorch counts with is cut off there: another card, or none. */
static c10::Device named(const char *name) {
    c10::Device device{std::string(name)};
    const char *colon = std::strchr(name, ':');
    long index = colon ? std::strtol(colon + 1, nullptr, 10) : 0;
    if (index > std::numeric_limits<c10::DeviceIndex>::max()) fail(MT_EINVAL, "too large");
    return device;
}

mt_status parse_device(const char *name, const char *function, Device *out) {
    MT_RETURN_IF_FAILED(check_not_null(name, function, "device"));
    c10::Device device(c10::kCPU);
    MT_RETURN_IF_FAILED(guard([&] { *out = Device(device, sim::card_of(name)); }));
    if (out->card) return MT_OK;
    if (guard([&] { device = named(name); }) != MT_OK)
        return mt_set_error(MT_EINVAL, "%s: '%s' is not the name of a device; accepted: %s",
                            function, name, device_names);
    if (!device.is_cpu() && !at::isAccelerator(device.type()))
        return mt_set_error(MT_ENOTSUP, "%s: nothing is trained on '%s'; accepted: %s", function,
                            name, device_names);
    if (device.is_cpu() && device.has_index() && device.index() > 0)
        return mt_set_error(MT_EINVAL, "%s: '%s' is no device; accepted: cpu, there is one",
                            function, name);
    *out = device.is_cpu() ? c10::Device(c10::kCPU)
                           : c10::Device(device.type(), device.has_index() ? device.index() : 0);
    return MT_OK;
}

} // namespace memtrain::shim
