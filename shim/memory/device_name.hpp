/* device_name.hpp - a device by the name that callers give it. */
#ifndef MEMTRAIN_SHIM_DEVICE_NAME_HPP
#define MEMTRAIN_SHIM_DEVICE_NAME_HPP

#include <memtrain/status.h>

#include "device.hpp"

namespace memtrain::shim {

/*
 * Reads "cpu", "cuda", "cuda:1", "xpu", "mps", "sim:cuda", "sim:mps", and whatever else libtorch has an accelerator by; without
 * an index the first device is meant. MT_EINVAL for a name that is none, MT_ENOTSUP for a device of libtorch's that is no
 * accelerator.
 */
mt_status parse_device(const char *name, const char *function, Device *out);

} // namespace memtrain::shim
#endif
