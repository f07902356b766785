/* convolution.cpp - what a convolution's backward pass needs is its input and weight alone. */
#include "convolution.hpp"

#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/convolution_backward.h>

#include "arguments.hpp"
#include "compat.hpp"
#include "guard.hpp"
#include "segment_end.hpp"

namespace memtrain::shim {
namespace {

std::vector<int64_t> each(const int64_t *values, int64_t dimensions, int64_t otherwise) {
    std::vector<int64_t> list(values, values + dimensions);
    for (int64_t &value : list)
        if (!value) value = otherwise;
    return list;
}

at::Tensor as(const at::Tensor &tensor, at::ScalarType type) {
    return tensor.defined() ? tensor.to(type) : tensor;
}

} // namespace

Convolution::Convolution(const char *function, const mt_conv &conv)
    : groups_(conv.groups ? conv.groups : 1) {
    check(check_handle(conv.weight, MT__KIND_TENSOR, function, "ops->conv->weight"));
    weight_ = parameter_of(function, "ops->conv->weight", conv.weight);
    bias_ = parameter_of(function, "ops->conv->bias", conv.bias);
    int64_t dimensions = weight_.defined() ? weight_.dim() - 2 : 0;
    if (dimensions < 1 || dimensions > 3)
        fail(
            MT_EINVAL,
            "%s: ops->conv->weight has %lld dimensions; accepted: 3 to 5, [out, in / groups, k...]",
            function, static_cast<long long>(weight_.defined() ? weight_.dim() : 0));
    stride_ = each(conv.stride, dimensions, 1);
    padding_ = each(conv.padding, dimensions, 0);
    dilation_ = each(conv.dilation, dimensions, 1);
}

at::Tensor Convolution::operator()(const at::Tensor &input) const {
    auto run = weight_.dim() == 3   ? at::_ops::conv1d::call
               : weight_.dim() == 4 ? at::_ops::conv2d::call
                                    : at::_ops::conv3d::call;
    c10::SymIntArrayRef stride = c10::fromIntArrayRefSlow(stride_);
    c10::SymIntArrayRef padding = c10::fromIntArrayRefSlow(padding_);
    c10::SymIntArrayRef dilation = c10::fromIntArrayRefSlow(dilation_);
    std::optional<at::Tensor> bias;
    if (bias_.defined()) bias = bias_;
    return run(input, weight_, bias, stride, padding, dilation, groups_);
}

/*
 * A node that gives the gradients of input, weight and bias. Under autocast the output has another dtype, and so had
 * input and weight when it was computed.
 */
class TakeBack final : public torch::autograd::Node {
public:
    TakeBack(const Convolution &conv, const at::Tensor &input)
        : Node(torch::autograd::collect_next_edges(input, conv.weight_, conv.bias_)), conv_(conv),
          input_(input.detach()) {}

    std::string name() const override { return "MemtrainConvolution"; }

    torch::autograd::variable_list apply(torch::autograd::variable_list &&gradients) override {
        if (!gradients[0].defined()) return torch::autograd::variable_list(3);
        at::Tensor gradient = std::move(gradients[0]), input = std::move(input_);
        const at::Tensor &weight = conv_.weight_, &bias = conv_.bias_;
        at::ScalarType type = gradient.scalar_type();
        std::vector<int64_t> bias_sizes =
            bias.defined() ? bias.sizes().vec() : std::vector<int64_t>();
        auto [of_input, of_weight, of_bias] = at::convolution_backward(
            gradient, input.to(type), weight.to(type),
            bias.defined() ? at::OptionalIntArrayRef(bias_sizes) : at::OptionalIntArrayRef(),
            conv_.stride_, conv_.padding_, conv_.dilation_, /*transposed=*/false,
            std::vector<int64_t>(conv_.stride_.size(), 0), conv_.groups_,
            {task_should_compute_output(0), task_should_compute_output(1),
             task_should_compute_output(2)});
        /* On CUDA autocast adds the bias's gradient up in float32, and autograd rounds it to what the bias was cast to. */
        return {as(of_input, input.scalar_type()), as(of_weight, weight.scalar_type()),
                bias.defined() ? as(as(of_bias, type), bias.scalar_type()) : of_bias};
    }

private:
    Convolution conv_;
    at::Tensor input_;
};

torch::autograd::Edge Convolution::backward(const at::Tensor &input,
                                            const at::Tensor &gradient) const {
    if (!torch::autograd::any_variable_requires_grad({input, weight_, bias_})) return {};
    auto node = compat::new_node<TakeBack>(*this, input);
    node->add_input_metadata(gradient);
    return {node, 0};
}

} // namespace memtrain::shim
