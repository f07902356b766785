/* segment_end.cpp - a convolution, a batch norm, or both. */
#include "segment_end.hpp"

#include "arguments.hpp"
#include "guard.hpp"
#include "tensor.hpp"

namespace memtrain::shim {

at::Tensor parameter_of(const char *function, const char *member, const mt_tensor *handle) {
    if (!handle) return {};
    check(check_handle(handle, MT__KIND_TENSOR, function, member));
    const at::Tensor &tensor = handle->tensor;
    if (tensor.requires_grad() && !tensor.is_leaf())
        fail(MT_ENOTSUP, "%s: %s is computed from other tensors; accepted: a parameter", function,
             member);
    return tensor;
}

std::optional<SegmentEnd> SegmentEnd::of(const char *function, const mt_segment_ops &ops,
                                         size_t output_count) {
    SegmentEnd end;
    mt_conv conv = MT_CONV_INIT;
    mt_batch_norm norm = MT_BATCH_NORM_INIT;
    if (!ops.conv && !ops.batch_norm) return std::nullopt;
    const char *member = ops.conv ? "ops->conv" : "ops->batch_norm";
    if (ops.conv) {
        check(check_sized(ops.conv, function, "ops->conv"));
        copy_in(conv, ops.conv);
    }
    if (ops.batch_norm) {
        check(check_sized(ops.batch_norm, function, "ops->batch_norm"));
        copy_in(norm, ops.batch_norm);
    }
    if (output_count != 1)
        fail(MT_EINVAL, "%s: %s is given and output_count is %zu; accepted: 1", function, member,
             output_count);
    if (ops.conv) end.conv_.emplace(function, conv);
    if (ops.batch_norm) end.norm_.emplace(function, norm);
    return end;
}

at::Tensor SegmentEnd::operator()(const at::Tensor &input) const {
    if (!norm_) return (*conv_)(input);
    return (*norm_)(conv_ ? (*conv_)(input) : input);
}

at::Tensor SegmentEnd::run(const at::Tensor &input) {
    if (!norm_) return (*conv_)(input);
    return norm_->run(conv_ ? (*conv_)(input) : input);
}

torch::autograd::Edge SegmentEnd::backward(const at::Tensor &input,
                                           const at::Tensor &gradient) const {
    if (!norm_) return conv_->backward(input, gradient);
    return norm_->backward(conv_ ? (*conv_)(input) : input, gradient);
}

} // namespace memtrain::shim
