/* device_name.cpp - from the names of devices to devices. */
#include "device_name.hpp"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include <ATen/DeviceAccelerator.h>

#include "arguments.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "sim_memory.hpp"

namespace memtrain::shim {

/* libtorch parses more of them: the devices that others bring (docs/devices.md). */
static const char device_names[] = "cpu, cuda, cuda:N, xpu, xpu:N, mps, sim:cuda, sim:mps";

/*
 * Throws for one that is none. An index beyond what libtorch counts with would be cut off there, to that of another card. The
 * last one takes its place, which no machine has either.
 */
static c10::Device named(const char *name) {
    constexpr long last = std::numeric_limits<c10::DeviceIndex>::max();
    c10::Device device{std::string(name)};
    const char *colon = std::strchr(name, ':');
    bool is_beyond = colon && std::strtol(colon + 1, nullptr, 10) > last;
    return is_beyond ? c10::Device(device.type(), last) : device;
}

/* Refuses a name, beside those that may be given and those that are here. */
static mt_status refuse(mt_status status, const char *function, const char *what,
                        const char *name) {
    std::string here;
    (void)guard([&] { here = devices_here(); });
    return mt_set_error(status, what, function, name, device_names, here.c_str());
}

mt_status parse_device(const char *name, const char *function, Device *out) {
    MT_RETURN_IF_FAILED(check_not_null(name, function, "device"));
    c10::Device device(c10::kCPU);
    MT_RETURN_IF_FAILED(guard([&] { *out = Device(device, sim::card_of(name)); }));
    if (out->card) return MT_OK;
    if (guard([&] { device = named(name); }) != MT_OK)
        return refuse(MT_EINVAL, function,
                      "%s: '%s' is not the name of a device; accepted: %s; here: %s", name);
    if (!device.is_cpu() && !at::isAccelerator(device.type()))
        return refuse(MT_ENOTSUP, function,
                      "%s: nothing is trained on '%s'; accepted: %s; here: %s", name);
    if (device.is_cpu() && device.has_index() && device.index() > 0)
        return mt_set_error(MT_EINVAL, "%s: '%s' is no device; accepted: cpu, there is one",
                            function, name);
    *out = device.is_cpu() ? c10::Device(c10::kCPU)
                           : c10::Device(device.type(), device.has_index() ? device.index() : 0);
    return MT_OK;
}

} // namespace memtrain::shim
