/*
 * scaler.hpp - the scale of the loss in half precision: when it grows and when it shrinks.
 *
 * The rules are those that torch.amp.GradScaler documents, with a floor: a loss that is not finite would
 * halve the scale for ever. Numbers of the host alone: a scale is needed before the step, and whether the
 * step was skipped is known after it.
 */
#ifndef MEMTRAIN_SHIM_SCALER_HPP
#define MEMTRAIN_SHIM_SCALER_HPP

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace memtrain::shim {

class Scaler {
public:
    static constexpr char name[] = "amp.scaler";
    static constexpr double least = 1.0 / 65536, most = 4294967296.0;

    /* 0: the default of each. */
    Scaler(double start, uint64_t growth_interval);

    double scale() const { return scale_; }

    /* A step went through, or was skipped. */
    void count(bool skipped);

    /* No smaller scale is left to try. */
    bool is_spent() const { return scale_ <= least; }

    /* Throws Failure that says so. */
    [[noreturn]] void give_up() const;

    /* float64 [2], on the CPU: the scale, and the steps since it last changed. */
    at::Tensor state() const;

    /* Throws Failure for what is no state, and changes nothing then. */
    static void check_state(const at::Tensor &state);
    void set_state(const at::Tensor &state);

    static bool is_scale(double value);

private:
    double scale_;
    uint64_t clean_ = 0, interval_;
};

} // namespace memtrain::shim
#endif
