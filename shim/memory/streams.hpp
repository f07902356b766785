/* streams.hpp - the order of what a device is given on several streams. */
#ifndef MEMTRAIN_SHIM_STREAMS_HPP
#define MEMTRAIN_SHIM_STREAMS_HPP

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace memtrain::shim {

inline c10::Stream current_stream(const c10::Device &device) {
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/* What the stream is given from now on comes after what the other one was given so far. */
inline void follow(const c10::Stream &stream, const c10::Stream &other) {
    c10::Event now(stream.device_type());
    now.record(other);
    now.block(stream);
}

} // namespace memtrain::shim
#endif
