/* autocast.hpp - libtorch has no autocast guard in C++; this is one. */
#ifndef MEMTRAIN_SHIM_AUTOCAST_HPP
#define MEMTRAIN_SHIM_AUTOCAST_HPP

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace memtrain::shim {

/*
 * Autocast of one device type on this thread, as long as the object lives. Weights that were cast
 * are kept until the outermost one ends. The cache does not know its dtype, so it is emptied where
 * an inner one changes the dtype.
 */
class Autocast {
public:
    Autocast(c10::DeviceType device, c10::ScalarType dtype);
    ~Autocast();
    Autocast(const Autocast &) = delete;
    Autocast &operator=(const Autocast &) = delete;

private:
    c10::DeviceType device_;
    bool enabled_before_;
    c10::ScalarType dtype_before_;
    bool cache_before_;
    bool changes_dtype_;
};

} // namespace memtrain::shim
#endif
