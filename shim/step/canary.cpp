/* canary.cpp - a number on the GPU that is to be one larger. */
#include "canary.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "guard.hpp"

namespace memtrain::shim {
namespace {

constexpr int64_t most = 1 << 24; /* float32 counts so far */

} // namespace

void Canary::lay_out(const Device &device) {
    if (!device.is_mps()) return;
    number_ = at::zeros({}, at::device(device).dtype(at::kFloat));
    one_ = at::ones({}, number_.options());
    sent_ = 0;
}

void Canary::send(const Device &device) {
    if (!device.is_mps()) return;
    at::NoGradGuard no_grad;
    if (!number_.defined() || sent_ == most) lay_out(device);
    number_.add_(one_);
    sent_++;
}

void Canary::write(const at::Tensor &to) {
    if (!to.device().is_mps()) return;
    send(to.device());
    to.copy_(number_);
}

void Canary::check(bool is_update) {
    if (number_.defined()) compare(number_.item().toDouble(), is_update);
}

void Canary::compare(double number, bool is_update) {
    if (!number_.defined()) return;
    bool is_lost = number != static_cast<double>(sent_),
         is_last = is_lost && (was_lost_ || is_update);
    if (is_lost) number_.reset(); /* what is there now nobody knows */
    was_lost_ = is_lost;
    if (is_last)
        fail(MT_EIO, "the GPU ignores what it is given since an error that it has told on stderr "
                     "alone: the process has to be started anew, from the last checkpoint");
    if (is_lost)
        fail(MT_EDEVMEM, "the GPU has not done what it was given, most likely since memory ran out "
                         "while it worked: Metal tells so on stderr alone");
}

} // namespace memtrain::shim
