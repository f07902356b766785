/* batch_norm.cpp - what a batch norm's backward pass needs is its input, weight and statistics. */
#include "batch_norm.hpp"

#include <cmath>
#include <optional>
#include <utility>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_batch_norm_impl_index.h>
#include <ATen/ops/_batch_norm_impl_index_backward.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/zeros_like.h>

#include "arguments.hpp"
#include "compat.hpp"
#include "guard.hpp"
#include "segment_end.hpp"
#include "tensor.hpp"

namespace memtrain::shim {
namespace {

std::optional<at::Tensor> optional(const at::Tensor &tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

void check_numbers(const char *function, const mt_batch_norm &norm) {
    if (!std::isfinite(norm.momentum))
        fail(MT_EINVAL, "%s: ops->batch_norm->momentum is %g; accepted: a number", function,
             norm.momentum);
    if (!(norm.epsilon >= 0.0 && std::isfinite(norm.epsilon)))
        fail(MT_EINVAL, "%s: ops->batch_norm->epsilon is %g; accepted: at least 0", function,
             norm.epsilon);
}

at::Tensor buffer(const char *function, const char *member, const mt_tensor *handle) {
    if (!handle) return {};
    check(check_handle(handle, MT__KIND_TENSOR, function, member));
    if (handle->tensor.requires_grad())
        fail(MT_EINVAL, "%s: %s needs a gradient; accepted: a buffer", function, member);
    return handle->tensor;
}

/*
 * The input as autocast hands it to at::batch_norm, which run() goes around: on MPS in float32, since its kernels take one type
 * alone; elsewhere as it is.
 */
at::Tensor as_autocast_would(const at::Tensor &input) {
    static const auto norm = c10::Dispatcher::singleton().findSchemaOrThrow("aten::batch_norm", "");
    c10::DeviceType type = input.device().type();
    if (!at::autocast::is_autocast_enabled(type)) return input;
    auto key = at::autocast::get_autocast_dispatch_key_from_device_type(type);
    return norm.hasKernelForDispatchKey(key) ? input.to(at::kFloat) : input;
}

} // namespace

BatchNorm::BatchNorm(const char *function, const mt_batch_norm &norm)
    : function_(function), training_(norm.training != 0), momentum_(norm.momentum),
      epsilon_(norm.epsilon) {
    weight_ = parameter_of(function, "ops->batch_norm->weight", norm.weight);
    bias_ = parameter_of(function, "ops->batch_norm->bias", norm.bias);
    running_mean_ = buffer(function, "ops->batch_norm->running_mean", norm.running_mean);
    running_var_ = buffer(function, "ops->batch_norm->running_var", norm.running_var);
    check_numbers(function, norm);
    if (running_mean_.defined() != running_var_.defined() ||
        !(training_ || running_mean_.defined()))
        fail(MT_EINVAL,
             "%s: ops->batch_norm has %s running_mean and %s running_var; accepted: both, or none "
             "with training",
             function, running_mean_.defined() ? "a" : "no", running_var_.defined() ? "a" : "no");
}

/* Of one value there is no variance. */
void BatchNorm::check_values(const at::Tensor &input) const {
    if (input.dim() < 2)
        fail(MT_EINVAL,
             "%s: ops->batch_norm is given a tensor of %lld dimensions; accepted: from 2 on",
             function_, static_cast<long long>(input.dim()));
    if (training_ && input.numel() == input.size(1))
        fail(MT_EINVAL,
             "%s: ops->batch_norm is given one value a channel; accepted with training: "
             "from 2 on",
             function_);
}

at::Tensor BatchNorm::operator()(const at::Tensor &input) const {
    check_values(input);
    return at::batch_norm(input, optional(weight_), optional(bias_), optional(running_mean_),
                          optional(running_var_), training_, momentum_, epsilon_,
                          at::globalContext().userEnabledCuDNN());
}

at::Tensor BatchNorm::run(const at::Tensor &input) {
    check_values(input);
    auto [output, mean, deviation, reserve, implementation] =
        at::_batch_norm_impl_index(as_autocast_would(input), optional(weight_), optional(bias_),
                                   optional(running_mean_), optional(running_var_), training_,
                                   momentum_, epsilon_, at::globalContext().userEnabledCuDNN());
    mean_ = std::move(mean);
    deviation_ = std::move(deviation);
    reserve_ = std::move(reserve);
    implementation_ = implementation;
    return output;
}

std::vector<at::Tensor> BatchNorm::needed() const {
    if (training_) return {weight_};
    return {weight_, running_mean_, running_var_};
}

/* A node that gives the gradients of input, weight and bias. */
class TakeBackNorm final : public torch::autograd::Node {
public:
    TakeBackNorm(const BatchNorm &norm, const at::Tensor &input)
        : Node(torch::autograd::collect_next_edges(input, norm.weight_, norm.bias_)), norm_(norm),
          input_(input.detach()) {}

    std::string name() const override { return "MemtrainBatchNorm"; }

    torch::autograd::variable_list apply(torch::autograd::variable_list &&gradients) override {
        if (!gradients[0].defined()) return torch::autograd::variable_list(3);
        at::Tensor gradient = std::move(gradients[0]), input = std::move(input_);
        const BatchNorm &n = norm_;
        auto type = input.scalar_type();
        input = input.to(gradient.scalar_type()); /* as the output was made from it */
        auto [of_input, of_weight, of_bias] = at::_batch_norm_impl_index_backward(
            n.implementation_, input, gradient, optional(n.weight_), optional(n.running_mean_),
            optional(n.running_var_), optional(n.mean_), optional(n.deviation_), n.training_,
            n.epsilon_,
            {task_should_compute_output(0), task_should_compute_output(1),
             task_should_compute_output(2)},
            n.reserve_);
        /* Of no samples libtorch leaves it out, where there is no weight. */
        if (!of_input.defined() && !input.numel()) of_input = at::zeros_like(input);
        return {of_input.defined() ? of_input.to(type) : of_input, of_weight, of_bias};
    }

private:
    BatchNorm norm_;
    at::Tensor input_;
};

torch::autograd::Edge BatchNorm::backward(const at::Tensor &input,
                                          const at::Tensor &gradient) const {
    if (!torch::autograd::any_variable_requires_grad({input, weight_, bias_})) return {};
    auto node = compat::new_node<TakeBackNorm>(*this, input);
    node->add_input_metadata(gradient);
    return {node, 0};
}

} // namespace memtrain::shim
