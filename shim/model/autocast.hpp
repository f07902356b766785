/* autocast.hpp - libtorch has no autocast guard in C++; this is one. */
#ifndef MEMTRAIN_SHIM_AUTOCAST_HPP
#define MEMTRAIN_SHIM_AUTOCAST_HPP

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "device.hpp"

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
    bool changes_dtype_;
};

/* The same where it is wanted; amp: an mt_dtype, MT_DTYPE_NONE for no autocast. */
class AutocastIf {
public:
    AutocastIf(c10::DeviceType device, int amp);

private:
    std::optional<Autocast> on_;
};

/*
 * Autocast keeps no casts while it lives. Versions of libtorch that keep one made without a graph would use
 * it for others, whose weights would get no gradient; and a kept cast takes memory.
 */
class AutocastUncached {
public:
    AutocastUncached();
    ~AutocastUncached();
    AutocastUncached(const AutocastUncached &) = delete;
    AutocastUncached &operator=(const AutocastUncached &) = delete;

private:
    bool before_;
};

/*
 * Fails with MT_ENOTSUP where the device cannot compute in bfloat16. Cards before CUDA's compute capability 8.0 take it and have no
 * engine for some convolutions; so one is run.
 */
void check_bfloat16(const char *function, const Device &device);

/* Autocast of the CPU and of one device type as it is on this thread when the object is made. */
class AutocastState {
public:
    explicit AutocastState(c10::DeviceType device);
    void set() const;
    c10::DeviceType device() const { return settings_[1].type; }

private:
    struct Setting {
        c10::DeviceType type;
        bool enabled;
        c10::ScalarType dtype;
    };
    Setting settings_[2];
};

/* That state again as long as the object lives, with casts of its own. */
class ReplayAutocast {
public:
    explicit ReplayAutocast(const AutocastState &state);
    ~ReplayAutocast();
    ReplayAutocast(const ReplayAutocast &) = delete;
    ReplayAutocast &operator=(const ReplayAutocast &) = delete;

private:
    AutocastState before_;
};

} // namespace memtrain::shim
#endif
