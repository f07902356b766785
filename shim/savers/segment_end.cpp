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
    end.function_ = function;
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

/* What the norm is given. */
at::Tensor SegmentEnd::given(const at::Tensor &input) const {
    if (!conv_) return input;
    at::Tensor output = (*conv_)(input);
    if (output.dim() != conv_->weight().dim())
        fail(MT_EINVAL,
             "%s: ops->batch_norm is given a tensor of %lld dimensions by a convolution whose "
             "weight has "
             "%lld; accepted: as many",
             function_, static_cast<long long>(output.dim()),
             static_cast<long long>(conv_->weight().dim()));
    return output;
}

/* What the backward pass needs as it was. */
std::vector<at::Tensor> SegmentEnd::watched() const {
    std::vector<at::Tensor> list;
    if (conv_) list.push_back(conv_->weight());
    if (conv_ && norm_) list.push_back(conv_->bias());
    if (norm_)
        for (const at::Tensor &tensor : norm_->needed()) list.push_back(tensor);
    return list;
}

at::Tensor SegmentEnd::operator()(const at::Tensor &input) const {
    return norm_ ? (*norm_)(given(input)) : (*conv_)(input);
}

at::Tensor SegmentEnd::run(const at::Tensor &input) {
    at::Tensor output = norm_ ? norm_->run(given(input)) : (*conv_)(input);
    versions_ = versions_of(watched());
    return output;
}

torch::autograd::Edge SegmentEnd::backward(const at::Tensor &input,
                                           const at::Tensor &gradient) const {
    if (versions_of(watched()) != versions_)
        fail(MT_EINVAL,
             "%s: a tensor of ops->%s was changed in place between the forward and the backward "
             "pass",
             function_, norm_ ? conv_ ? "conv or batch_norm" : "batch_norm" : "conv");
    return norm_ ? norm_->backward(given(input), gradient) : conv_->backward(input, gradient);
}

} // namespace memtrain::shim
