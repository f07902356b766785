/* optimizer.cpp - state, gradient norm and fused updates. */
#include "optimizer.hpp"

#include <cmath>
#include <limits>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "fnv.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace {

/* Elements of one partial sum of the norm: large enough to share out, small enough to round well. */
constexpr int64_t norm_block = 1 << 15;

constexpr int lanes = 8; /* independent sums, so that the compiler may use vector registers */

template <class Scalar> double sum_of_squares(const Scalar *data, int64_t count) {
    double sums[lanes] = {};
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes)
        for (int lane = 0; lane < lanes; lane++) {
            double x = static_cast<double>(data[i + lane]);
            sums[lane] += x * x;
        }
    for (; i < count; i++) sums[0] += static_cast<double>(data[i]) * static_cast<double>(data[i]);
    double sum = 0.0;
    for (double part : sums) sum += part;
    return sum;
}

int64_t parts_of(const at::Tensor &tensor) {
    return (tensor.numel() + norm_block - 1) / norm_block;
}

/* Writes the sums over the parts of a gradient into sums[parts_of(gradient)]. */
template <class Scalar> void sum_parts(const at::Tensor &gradient, double *sums) {
    const Scalar *data = gradient.const_data_ptr<Scalar>();
    at::parallel_for(0, parts_of(gradient), 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; part++) {
            int64_t first = part * norm_block;
            int64_t count = std::min(norm_block, gradient.numel() - first);
            sums[part] = sum_of_squares(data + first, count);
        }
    });
}

/* Gradients have no gaps, whatever the order of their strides. */
double cpu_sum_of_squares(const at::Tensor &gradient, std::vector<double> &sums) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, gradient.scalar_type(),
                                    "gradient_norm",
                                    [&] { sum_parts<scalar_t>(gradient, sums.data()); });
    double sum = 0.0;
    for (int64_t i = 0; i < parts_of(gradient); i++) sum += sums[static_cast<size_t>(i)];
    return sum;
}

/*
 * The same memory from its first byte to its last. The fused operators of the CPU copy gradients whose strides
 * are not row-major, channels_last for one, and an update must not need memory.
 */
at::Tensor row_of(const at::Tensor &tensor) {
    if (tensor.is_contiguous()) return tensor;
    return tensor.as_strided({tensor.numel()}, {1}).variable_data();
}

} // namespace

Optimizer::Optimizer(const mt_torch_options &options, const std::vector<Group> &groups,
                     const Flat &flat)
    : options_(options), flat_(flat), groups_(groups) {
    for (const Slot &slot : flat.slots()) group_of_.push_back(group_of(groups, slot.name));
    if (options.optimizer != MT_SGD) {
        moments_.push_back({"exp_avg", {}, {}, {}});
        moments_.push_back({"exp_avg_sq", {}, {}, {}});
    } else if (options.momentum > 0.0) {
        moments_.push_back({"momentum_buffer", {}, {}, {}});
    }
}

size_t Optimizer::bytes() const {
    size_t steps = options_.optimizer == MT_SGD ? 0 : flat_.slots().size() * sizeof(float);
    return moments_.size() * flat_.bytes() + steps;
}

void Optimizer::lay_out(const Device &where) {
    c10::NoGradGuard no_grad;
    c10::Device device = where;
    on_mps_ = where.memory() == Memory::mps;
    on_device_ = !where.is_host() && !on_mps_;
    host_divisor_ = at::zeros({}, at::device(at::kCPU).dtype(at::kFloat));
    host_outcome_ = at::zeros({2}, at::device(at::kCPU).dtype(at::kFloat));
    device_ = device;
    moments_ = make_moments(flat_.places());
    for (const Slot &slot : flat_.slots()) rows_.push_back(row_of(slot.parameter));
    gradient_rows_.resize(rows_.size());
    if (options_.optimizer != MT_SGD)
        steps_ = at::zeros({static_cast<int64_t>(flat_.slots().size())},
                           at::device(device).dtype(at::kFloat));
    if (steps_.defined() && !device.is_cpu()) one_ = at::ones({}, steps_.options());
    for (int64_t i = 0; steps_.defined() && i < steps_.numel(); i++)
        step_views_.push_back(steps_.select(0, i).variable_data());
    int64_t parts = 0;
    for (const Block &block : flat_.blocks())
        factors_.push_back(at::zeros({}, at::device(at::kCPU).dtype(block.dtype)));
    for (const Slot &slot : flat_.slots()) parts = std::max(parts, parts_of(slot.parameter));
    sums_.resize(static_cast<size_t>(parts));
    lists_.reserve(flat_.slots().size());
}

std::vector<Optimizer::Moment> Optimizer::make_moments(const Places &places) const {
    c10::NoGradGuard no_grad;
    std::vector<Moment> list;
    for (const Moment &now : moments_) {
        Moment moment = {now.name, {}, {}, {}};
        for (size_t b = 0; b < flat_.blocks().size(); b++)
            moment.blocks.push_back(at::zeros({places.elements[b]},
                                              at::device(device_).dtype(flat_.blocks()[b].dtype)));
        for (size_t i = 0; i < flat_.slots().size(); i++) {
            const Slot &slot = flat_.slots()[i];
            at::Tensor view;
            if (places.placed[i])
                view = Flat::view(moment.blocks[slot.block], slot.parameter, places.offsets[i]);
            if (view.defined() && i < now.views.size() && now.views[i].defined())
                view.copy_(now.views[i]);
            moment.views.push_back(view);
            moment.rows.push_back(view.defined() ? row_of(view) : view);
        }
        list.push_back(std::move(moment));
    }
    return list;
}

void Optimizer::swap(std::vector<Moment> &moments) {
    c10::NoGradGuard no_grad;
    moments_.swap(moments);
    for (size_t i = 0; i < step_views_.size(); i++)
        if (moments_[0].views[i].defined() && !moments[0].views[i].defined())
            step_views_[i].zero_();
}

void Optimizer::reset(size_t slot) {
    c10::NoGradGuard no_grad;
    for (const Moment &moment : moments_)
        if (moment.views[slot].defined()) moment.views[slot].zero_();
    if (steps_.defined()) step_views_[slot].zero_();
}

void Optimizer::copy_state(const Optimizer &other) {
    c10::NoGradGuard no_grad;
    for (size_t m = 0; m < moments_.size(); m++)
        for (size_t b = 0; b < moments_[m].blocks.size(); b++)
            moments_[m].blocks[b].copy_(other.moments_[m].blocks[b]);
    if (steps_.defined()) steps_.copy_(other.steps_);
    options_.lr = other.options_.lr;
    rate_ = other.rate_;
}

/*
 * On the CPU summed in double over fixed blocks, so that the result does not depend on the number of
 * threads; float32 cannot overflow there, so a sum that is not finite tells of a gradient that is not.
 */
double Optimizer::gradient_norm() {
    if (known_norm_ && known_norm_->stamp == gradient_stamp()) return known_norm_->norm;
    if (on_mps_) return norm_on_device().item().toDouble(); /* one wait, however many parameters */
    double sum = 0.0;
    for (const Slot &slot : flat_.slots())
        if (Flat::touched(slot)) sum += cpu_sum_of_squares(slot.parameter.grad(), sums_);
    return std::sqrt(sum);
}

/* Which tensors the gradients are, and how often each was written to. */
uint64_t Optimizer::gradient_stamp() const {
    Fnv stamp;
    for (const Slot &slot : flat_.slots()) {
        if (!Flat::touched(slot)) continue;
        const at::Tensor &gradient = slot.parameter.grad();
        stamp.add(reinterpret_cast<uintptr_t>(gradient.unsafeGetTensorImpl()));
        stamp.add(static_cast<uint64_t>(gradient._version()));
    }
    return stamp.value();
}

at::Tensor Optimizer::norm_ahead() {
    if (!on_mps_ || options_.clip_norm <= 0.0) return {};
    try {
        c10::NoGradGuard no_grad;
        return norm_on_device();
    } catch (const c10::Error &) {
        lists_.clear(); /* prepare() asks again, where an OOM is the update's */
        return {};
    }
}

void Optimizer::norm_is(double norm) {
    known_norm_ = {norm, gradient_stamp()};
}

/* A scalar tensor as factor: a number would be wrapped in a new tensor at each call. */
void Optimizer::scale_gradients(double factor) {
    for (at::Tensor &scalar : factors_)
        AT_DISPATCH_FLOATING_TYPES_AND2(
            at::kHalf, at::kBFloat16, scalar.scalar_type(), "scale_gradients",
            [&] { *scalar.mutable_data_ptr<scalar_t>() = static_cast<scalar_t>(factor); });
    for (const Slot &slot : flat_.slots())
        if (Flat::touched(slot)) slot.parameter.mutable_grad().mul_(factors_[slot.block]);
}

/*
 * In float32: gradients of half precision times the largest scale are far from its end. By block and
 * slot whatever the groups, so that the same gradients give the same bits.
 */
at::Tensor Optimizer::norm_on_device() {
    std::vector<at::Tensor> norms;
    for (size_t block = 0; block < flat_.blocks().size(); block++) {
        lists_.clear();
        for (const Slot &slot : flat_.slots())
            if (slot.block == block && Flat::touched(slot))
                lists_.gradients.push_back(slot.parameter.grad());
        if (lists_.gradients.empty()) continue;
        bool is_double = flat_.blocks()[block].dtype == at::kDouble;
        auto type = is_double ? at::kDouble : at::kFloat; /* a norm in half precision overflows */
        for (const at::Tensor &norm : at::_foreach_norm(lists_.gradients, 2, type))
            norms.push_back(norm.to(at::kFloat));
    }
    lists_.clear();
    if (norms.empty())
        return at::zeros({}, flat_.slots().at(0).parameter.options().dtype(at::kFloat));
    return at::linalg_vector_norm(at::stack(norms), 2);
}

/* Whether an update is left out where the norm of the gradient is looked at and is not finite. */
bool Optimizer::may_skip(bool scaled) const {
    return scaled || !options_.apply_not_finite;
}

/* As torch.nn.utils.clip_grad_norm_, where a norm that is not finite is to be applied: all gradients become NaN. */
void Optimizer::clip(double divisor) {
    double most = options_.clip_norm, factor = 1.0;
    if (most > 0.0) {
        update_.norm = gradient_norm() / divisor;
        update_.skipped = may_skip(false) && !std::isfinite(update_.norm);
        if (update_.skipped) return;
        factor = most / (update_.norm + 1e-6);
    }
    double scale = factor >= 1.0 ? 1.0 / divisor : factor / divisor;
    if (scale != 1.0) scale_gradients(scale);
}

/* The fused update divides and clips in one: it passes over the gradients anyway. */
void Optimizer::prepare_on_host(double divisor, bool scaled) {
    double most = options_.clip_norm, factor = 1.0;
    if (scaled || most > 0.0) {
        double norm = gradient_norm();
        update_ = {norm / divisor, may_skip(scaled) && !std::isfinite(norm)};
    }
    if (most > 0.0) factor = most / (update_.norm + 1e-6);
    *host_divisor_.mutable_data_ptr<float>() =
        static_cast<float>(factor >= 1.0 ? divisor : divisor / factor);
    divisor_ = host_divisor_;
}

/* The same without a word to the host. */
void Optimizer::prepare_on_device(double unit, bool scaled) {
    double most = options_.clip_norm;
    at::Tensor norm = norm_on_device();
    at::Tensor infinite = at::rsub(at::isfinite(norm).to(at::kFloat), 1);
    norm = norm.div(unit);
    at::Tensor divisor = most > 0.0 ? norm.add(1e-6).div(most).clamp_min(1.0).mul(unit)
                                    : at::full({}, unit, norm.options());
    at::Tensor counted = at::rsub(infinite, 1), outcome = at::stack({norm, infinite});
    divisor_ = divisor;
    outcome_ = outcome;
    if (!may_skip(scaled)) return;
    skips_ = infinite;
    counted_ = counted;
}

void Optimizer::prepare(double divisor, bool scaled) {
    c10::NoGradGuard no_grad;
    try {
        take_rows();
        look_at(divisor, scaled); /* changes gradients last, so that it may be done again */
    } catch (...) {
        forget_gradients();
        throw;
    }
}

void Optimizer::look_at(double divisor, bool scaled) {
    update_ = {std::numeric_limits<double>::quiet_NaN(), false};
    forget_outcome();
    if (!scaled && divisor == 1.0 && options_.clip_norm <= 0.0) return;
    if (on_device_)
        prepare_on_device(divisor, scaled);
    else if (scaled || (divisor != 1.0 && !on_mps_))
        prepare_on_host(divisor, scaled);
    else
        clip(divisor);
}

/* Views that need no memory but the host's for themselves. */
void Optimizer::take_rows() {
    for (size_t i = 0; i < rows_.size(); i++) {
        const Slot &slot = flat_.slots()[i];
        if (Flat::touched(slot)) gradient_rows_[i] = row_of(slot.parameter.grad());
    }
}

/* Else they would keep the memory of gradients that are taken back. */
void Optimizer::forget_gradients() {
    lists_.clear();
    for (at::Tensor &row : gradient_rows_) row.reset();
}

Update Optimizer::finish() {
    if (!outcome_.defined()) return update_;
    host_outcome_.copy_(outcome_); /* made beforehand: the update is made, and nothing may fail */
    const float *values = host_outcome_.const_data_ptr<float>();
    Update update = {values[0], skips_ && values[1] != 0.0f};
    forget_outcome(); /* which takes memory of the card */
    return update;
}

void Optimizer::forget_outcome() {
    divisor_.reset();
    skips_.reset();
    for (at::Tensor *tensor : {&counted_, &outcome_}) tensor->reset();
}

void Optimizer::Lists::clear() {
    for (auto *list : {&parameters, &gradients, &first, &second, &steps}) list->clear();
}

void Optimizer::Lists::reserve(size_t count) {
    for (auto *list : {&parameters, &gradients, &first, &second, &steps}) list->reserve(count);
}

/* Whether there is something to update. */
bool Optimizer::collect(size_t block, size_t group) {
    lists_.clear();
    for (size_t i = 0; i < flat_.slots().size(); i++) {
        const Slot &slot = flat_.slots()[i];
        if (slot.block != block || group_of_[i] != group || !Flat::touched(slot)) continue;
        lists_.parameters.push_back(rows_[i]);
        lists_.gradients.push_back(gradient_rows_[i]);
        if (moments_.size() > 0) lists_.first.push_back(moments_[0].rows[i]);
        if (moments_.size() > 1) lists_.second.push_back(moments_[1].rows[i]);
        if (steps_.defined()) lists_.steps.push_back(step_views_[i]);
    }
    return !lists_.parameters.empty();
}

/*
 * The fused operators read the steps and do not count them; with a step of 0 the bias correction
 * divides by zero. Adding a number to a tensor may need memory, so on a card a tensor is added, and on the CPU
 * memory is written.
 */
void Optimizer::count_step() {
    if (!steps_.defined()) return;
    if (counted_.defined())
        at::_foreach_add_(lists_.steps, counted_);
    else if (!steps_.is_cpu())
        at::_foreach_add_(lists_.steps, one_);
    else
        for (at::Tensor &step : lists_.steps) *step.mutable_data_ptr<float>() += 1.0f;
}

/*
 * SGD's momentum buffers begin as zeros, and is_first_step stays false: momentum * 0 + gradient is
 * the copy that the first step of torch::optim::SGD makes, and holds for each parameter by itself.
 */
void Optimizer::update(const Group &group) {
    const mt_torch_options &o = options_;
    double rate = o.lr * rate_ * group.lr_factor, decay = group.weight_decay;
    Lists &l = lists_;
    if (o.optimizer == MT_SGD)
        at::_fused_sgd_(l.parameters, l.gradients, l.first, decay, o.momentum, rate,
                        /*dampening=*/0.0, o.nesterov != 0, /*maximize=*/false,
                        /*is_first_step=*/false, divisor_, skips_);
    else if (o.optimizer == MT_ADAM)
        at::_fused_adam_(l.parameters, l.gradients, l.first, l.second, {}, l.steps, rate, o.beta1,
                         o.beta2, decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, divisor_,
                         skips_);
    else
        at::_fused_adamw_(l.parameters, l.gradients, l.first, l.second, {}, l.steps, rate, o.beta1,
                          o.beta2, decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, divisor_,
                          skips_);
}

void Optimizer::step() {
    c10::NoGradGuard no_grad;
    for (size_t block = 0; block < flat_.blocks().size() && !update_.skipped; block++)
        for (size_t group = 0; group < groups_.size(); group++) {
            if (!collect(block, group)) continue;
            count_step();
            update(groups_[group]);
        }
    forget_gradients();
}

std::vector<std::string> Optimizer::state_names(size_t slot) const {
    std::vector<std::string> names;
    const std::string &name = flat_.slots()[slot].name;
    for (const Moment &moment : moments_)
        names.push_back(std::string("optimizer.") + moment.name + "." + name);
    if (steps_.defined()) names.push_back("optimizer.step." + name);
    return names;
}

void Optimizer::append_state(std::vector<Named> &list) const {
    for (size_t i = 0; i < flat_.slots().size(); i++) {
        if (!flat_.slots()[i].placed) continue;
        std::vector<std::string> names = state_names(i);
        for (size_t m = 0; m < names.size(); m++)
            list.push_back({names[m], m < moments_.size() ? moments_[m].views[i] : step_views_[i]});
    }
}

} // namespace memtrain::shim
