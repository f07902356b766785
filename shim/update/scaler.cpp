/* scaler.cpp - growth and decay of the scale, and its state. */
#include "scaler.hpp"

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>

#include "guard.hpp"

namespace memtrain::shim {
namespace {

constexpr double default_scale = 65536;
constexpr uint64_t default_interval = 2000;
constexpr double most_steps = 9007199254740992.0; /* 2^53: a double counts no further */

} // namespace

Scaler::Scaler(double start, uint64_t growth_interval)
    : scale_(start > 0.0 ? start : default_scale),
      interval_(growth_interval ? growth_interval : default_interval) {}

bool Scaler::is_scale(double value) {
    int exponent;
    return value >= least && value <= most && std::frexp(value, &exponent) == 0.5;
}

void Scaler::count(bool skipped) {
    if (skipped) {
        scale_ = std::max(scale_ / 2, least);
        clean_ = 0;
    } else if (++clean_ >= interval_) {
        scale_ = std::min(scale_ * 2, most);
        clean_ = 0;
    }
}

void Scaler::give_up() const {
    fail(MT_ESTATE,
         "mt_apply: the loss or its gradient is not finite, and the loss scale is down to %g: the "
         "model itself gives an infinity or no number in half precision; nothing was changed",
         scale_);
}

at::Tensor Scaler::state() const {
    at::Tensor state = at::empty({2}, at::device(at::kCPU).dtype(at::kDouble));
    double *data = state.mutable_data_ptr<double>();
    data[0] = scale_;
    data[1] = static_cast<double>(clean_);
    return state;
}

void Scaler::check_state(const at::Tensor &state) {
    const double *data = state.const_data_ptr<double>();
    if (!is_scale(data[0]) || !(data[1] >= 0.0) || data[1] > most_steps)
        fail(MT_EINVAL, "%s is %g after %g steps; accepted: a power of two from 2^-16 to 2^32",
             name, data[0], data[1]);
}

void Scaler::set_state(const at::Tensor &state) {
    const double *data = state.const_data_ptr<double>();
    scale_ = data[0];
    clean_ = static_cast<uint64_t>(data[1]);
}

} // namespace memtrain::shim
