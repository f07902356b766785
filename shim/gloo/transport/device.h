/* gloo/transport/device.h - names alone, see gloo/context.h. */
#ifndef MEMTRAIN_SHIM_GLOO_DEVICE_H
#define MEMTRAIN_SHIM_GLOO_DEVICE_H

namespace gloo::transport {

class Device;
class UnboundBuffer;

} // namespace gloo::transport
#endif
