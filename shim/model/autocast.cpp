/* autocast.cpp - the autocast guard and mt_amp_autocast. */
#include "autocast.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/zeros.h>

#include "arguments.hpp"
#include "device_name.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "init.hpp"

namespace memtrain::shim {

namespace autocast = at::autocast;

void check_bfloat16(const char *function, const Device &device) {
    if (device.is_cpu() || device.is_mps()) return;
    at::NoGradGuard no_grad;
    auto half = at::device(device).dtype(at::kBFloat16);
    try {
        at::conv2d(at::zeros({1, 8, 4, 4}, half), at::zeros({8, 1, 3, 3}, half), {}, 1, 1, 1, 8);
    } catch (const c10::OutOfMemoryError &) {
        throw;
    } catch (const c10::Error &error) {
        fail(MT_ENOTSUP,
             "%s: %s cannot run a convolution in bfloat16 (%s); accepted there: MT_FLOAT16",
             function, device.name().c_str(), error.what_without_backtrace());
    }
}

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype)
    : device_(device), enabled_before_(autocast::is_autocast_enabled(device)),
      dtype_before_(autocast::get_autocast_dtype(device)),
      changes_dtype_(enabled_before_ && dtype_before_ != dtype) {
    if (changes_dtype_) autocast::clear_cache();
    autocast::set_autocast_enabled(device, true);
    autocast::set_autocast_dtype(device, dtype);
    autocast::increment_nesting();
}

Autocast::~Autocast() {
    bool outermost = autocast::decrement_nesting() == 0;
    if (outermost || changes_dtype_) autocast::clear_cache();
    autocast::set_autocast_enabled(device_, enabled_before_);
    autocast::set_autocast_dtype(device_, dtype_before_);
}

AutocastIf::AutocastIf(c10::DeviceType device, int amp) {
    if (amp != MT_DTYPE_NONE) on_.emplace(device, amp == MT_FLOAT16 ? c10::kHalf : c10::kBFloat16);
}

AutocastUncached::AutocastUncached() : before_(autocast::is_autocast_cache_enabled()) {
    autocast::set_autocast_cache_enabled(false);
}

AutocastUncached::~AutocastUncached() {
    autocast::set_autocast_cache_enabled(before_);
}

AutocastState::AutocastState(c10::DeviceType device) {
    const c10::DeviceType types[] = {c10::kCPU, device};
    for (int i = 0; i < 2; i++)
        settings_[i] = {types[i], autocast::is_autocast_enabled(types[i]),
                        autocast::get_autocast_dtype(types[i])};
}

void AutocastState::set() const {
    for (const Setting &setting : settings_) {
        autocast::set_autocast_enabled(setting.type, setting.enabled);
        autocast::set_autocast_dtype(setting.type, setting.dtype);
    }
}

ReplayAutocast::ReplayAutocast(const AutocastState &state) : before_(state.device()) {
    autocast::clear_cache();
    state.set();
    autocast::increment_nesting();
}

ReplayAutocast::~ReplayAutocast() {
    autocast::decrement_nesting();
    autocast::clear_cache();
    before_.set();
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_amp_autocast(const char *name, mt_dtype dtype,
                                     mt_status (*body)(void *user), void *user) {
    Device device = c10::Device(c10::kCPU);
    MT_RETURN_IF_FAILED(
        check_not_null(reinterpret_cast<const void *>(body), "mt_amp_autocast", "body"));
    int type = number_of(dtype);
    if (type != MT_BFLOAT16 && type != MT_FLOAT16)
        return mt_set_error(MT_EINVAL,
                            "mt_amp_autocast: dtype is neither MT_BFLOAT16 nor MT_FLOAT16");
    MT_RETURN_IF_FAILED(ensure_init());
    MT_RETURN_IF_FAILED(parse_device(name, "mt_amp_autocast", &device));
    return guard([&] {
        check_device("mt_amp_autocast", device);
        Autocast on(device.type(), type == MT_FLOAT16 ? c10::kHalf : c10::kBFloat16);
        return body(user);
    });
}
