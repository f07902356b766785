/*
 * dry.cpp - kernels that make what they would make and compute nothing: see memtrain/torch_dry.h.
 *
 * They stand in the dispatcher's place of the CPU's kernels, below autograd and autocast, as long as a dry run
 * lasts. Each asks for the same blocks in the same order as libtorch's; check_shim_dry compares the two.
 */
#include <memtrain/torch_dry.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_slow_conv2d_backward_native.h>
#include <ATen/ops/_slow_conv2d_forward_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h>
#include <ATen/ops/bernoulli_native.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/mkldnn_convolution_native.h>
#include <ATen/ops/zeros.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "cpu_memory.hpp"
#include "dry.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Maybe = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

/* To write more than that takes longer than all else that a kernel does here. */
constexpr size_t most_zeros = size_t(1) << 20;

Tensor &clear(Tensor &out) {
    return out.nbytes() > most_zeros && out.is_floating_point() ? out : out.zero_();
}

Tensor blank(IntArrayRef sizes, const at::TensorOptions &options,
             at::MemoryFormat format = at::MemoryFormat::Contiguous) {
    Tensor out = at::empty(sizes, options.memory_format(format));
    return clear(out);
}

/* Of the same shape, order and type; operators for such tensors shape their results and refuse what they always refuse. */
Tensor without_memory(const Tensor &tensor) {
    Tensor meta =
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
        meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    return meta;
}

/* ---- products ---------------------------------------------------------------------------------- */

/* What BLAS cannot read is copied first, and the copies are there together: neither rows nor columns are dense. */
Tensor copy_for_blas(const Tensor &matrix) {
    int64_t r = matrix.stride(-2), c = matrix.stride(-1);
    bool by_rows = c == 1 && r >= std::max<int64_t>(1, matrix.size(-1));
    bool by_columns = r == 1 && c >= std::max<int64_t>(1, matrix.size(-2));
    if (by_rows || by_columns) return {};
    return matrix.clone(at::MemoryFormat::Contiguous);
}

void copy_both(const Tensor &a, const Tensor &b) {
    const Tensor left = copy_for_blas(a), right = copy_for_blas(b);
}

void check_product(const Tensor &a, const Tensor &b, int64_t dimensions) {
    TORCH_CHECK(a.dim() == dimensions && b.dim() == dimensions && a.size(-1) == b.size(-2) &&
                    (dimensions == 2 || a.size(0) == b.size(0)),
                "matrices of ", a.sizes(), " and ", b.sizes(), " cannot be multiplied");
    TORCH_CHECK(a.scalar_type() == b.scalar_type(),
                "expected both matrices to have one dtype, got ", a.scalar_type(), " and ",
                b.scalar_type());
}

Tensor product(const Tensor &a, const Tensor &b, int64_t dimensions) {
    check_product(a, b, dimensions);
    Tensor out = dimensions == 2 ? blank({a.size(0), b.size(1)}, a.options())
                                 : blank({a.size(0), a.size(1), b.size(2)}, a.options());
    if (dimensions == 2) copy_both(a, b);
    return out;
}

Tensor &product_into(const Tensor &a, const Tensor &b, int64_t dimensions, Tensor &out) {
    check_product(a, b, dimensions);
    if (dimensions == 2) {
        out.resize_({a.size(0), b.size(1)});
        copy_both(a, b);
    } else {
        out.resize_({a.size(0), a.size(1), b.size(2)});
    }
    return clear(out);
}

Tensor mm(const Tensor &a, const Tensor &b) {
    return product(a, b, 2);
}
Tensor bmm(const Tensor &a, const Tensor &b) {
    return product(a, b, 3);
}
Tensor &mm_out(const Tensor &a, const Tensor &b, Tensor &out) {
    return product_into(a, b, 2, out);
}
Tensor &bmm_out(const Tensor &a, const Tensor &b, Tensor &out) {
    return product_into(a, b, 3, out);
}

using at::Scalar;

/* What is added is refused where its shape does not go with the product's. */
Tensor sum(const Tensor &self, const Tensor &a, const Tensor &b, int64_t dimensions) {
    Tensor out = product(a, b, dimensions);
    (void)self.expand(out.sizes());
    return out;
}

Tensor addmm(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &, const Scalar &) {
    return sum(self, a, b, 2);
}
Tensor baddbmm(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &,
               const Scalar &) {
    return sum(self, a, b, 3);
}
Tensor &addmm_out(const Tensor &, const Tensor &a, const Tensor &b, const Scalar &, const Scalar &,
                  Tensor &out) {
    return product_into(a, b, 2, out);
}
Tensor &baddbmm_out(const Tensor &, const Tensor &a, const Tensor &b, const Scalar &,
                    const Scalar &, Tensor &out) {
    return product_into(a, b, 3, out);
}
Tensor &addmm_(Tensor &self, const Tensor &a, const Tensor &b, const Scalar &, const Scalar &) {
    check_product(a, b, 2);
    copy_both(a, b);
    return self;
}
Tensor &baddbmm_(Tensor &self, const Tensor &a, const Tensor &b, const Scalar &, const Scalar &) {
    check_product(a, b, 3);
    return self;
}

/* ---- convolutions ------------------------------------------------------------------------------ */

at::MemoryFormat format_of(bool channels_last) {
    return channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

/* Memory of that size in oneDNN's own order. Padding of odd channel counts is left out. */
Tensor block(const Tensor &like) {
    return at::empty({static_cast<int64_t>(like.nbytes())}, like.options().dtype(at::kByte));
}

Tensor block_of(IntArrayRef sizes, const Tensor &like) {
    int64_t bytes = static_cast<int64_t>(c10::multiply_integers(sizes) * like.element_size());
    return at::empty({bytes}, like.options().dtype(at::kByte));
}

/* Pictures of three channels are read as they are. */
Tensor reordered(const Tensor &tensor) {
    return tensor.size(1) > 3 ? block(tensor) : Tensor();
}

/*
 * oneDNN reorders what is row-major, inputs and results; in channels_last only the weight. These copies are blocks of our
 * allocator too, and they live while a kernel runs.
 */
Tensor onednn(const Tensor &input, const Tensor &weight, const Maybe &bias, IntArrayRef padding,
              IntArrayRef stride, IntArrayRef dilation, int64_t groups) {
    if (input.dim() != 4)
        return at::native::mkldnn_convolution(input, weight, bias, padding, stride, dilation,
                                              groups);
    at::MemoryFormat format = format_of(at::native::mkldnn_conv_use_channels_last(input, weight));
    Tensor in = input.contiguous(format), kernel = weight.contiguous(format);
    std::vector<int64_t> sizes =
        at::native::conv_output_size(in.sizes(), kernel.sizes(), padding, stride, dilation);
    if (format == at::MemoryFormat::ChannelsLast) {
        Tensor out = blank(sizes, in.options(), format);
        block(kernel);
        return out;
    }
    Tensor in_blocks = reordered(in), weight_blocks = block(kernel), result = block_of(sizes, in);
    in_blocks.reset(), weight_blocks.reset();
    return blank(sizes, in.options());
}

/* With a stride it makes the result twice, but for kernels of 1 x 1 and where channels are in groups. */
Tensor onednn_grad_input(const Tensor &out, const Tensor &in, const Tensor &kernel,
                         at::MemoryFormat format, bool has_stride) {
    if (format == at::MemoryFormat::ChannelsLast) {
        Tensor grad = blank(in.sizes(), out.options(), format);
        block(kernel);
        return grad;
    }
    Tensor out_blocks = block(out), weight_blocks = block(kernel), result = block(in), again;
    out_blocks.reset(), weight_blocks.reset();
    if (has_stride) again = block(in);
    return blank(in.sizes(), out.options());
}

Tensor onednn_grad_weight(const Tensor &out, const Tensor &in, const Tensor &kernel,
                          at::MemoryFormat format) {
    bool is_row_major = format == at::MemoryFormat::Contiguous;
    Tensor out_blocks, in_blocks;
    if (is_row_major) out_blocks = block(out), in_blocks = reordered(in);
    Tensor result = block(kernel);
    /* In half precision it is summed in float first. */
    if (kernel.scalar_type() != at::kFloat) block(kernel.to(at::kFloat));
    in_blocks.reset(), out_blocks.reset();
    Tensor dense = blank(kernel.sizes(), kernel.options());
    return is_row_major ? dense : dense.contiguous(format);
}

Three onednn_backward(const Tensor &grad, const Tensor &input, const Tensor &weight,
                      bool has_stride, std::array<bool, 3> wanted) {
    at::MemoryFormat format = format_of(at::native::mkldnn_conv_use_channels_last(input, weight));
    Tensor in = input.contiguous(format), kernel = weight.contiguous(format);
    Tensor out = grad.contiguous(format), grad_input, grad_weight, grad_bias;
    if (wanted[0]) grad_input = onednn_grad_input(out, in, kernel, format, has_stride);
    if (wanted[1] || wanted[2]) grad_weight = onednn_grad_weight(out, in, kernel, format);
    if (wanted[2]) grad_bias = blank({kernel.size(0)}, kernel.options());
    return {grad_input, grad_weight, grad_bias};
}

bool is_pointwise(const Tensor &weight, IntArrayRef stride, IntArrayRef padding) {
    return weight.size(2) == 1 && weight.size(3) == 1 && stride[0] == 1 && stride[1] == 1 &&
           padding[0] == 0 && padding[1] == 0;
}

/* libtorch's own are for small inputs, and on one thread for kernels of 1 x 1. Only the latter take time. */
Tensor slow(const Tensor &input, const Tensor &weight, IntArrayRef kernel, const Maybe &bias,
            IntArrayRef stride, IntArrayRef padding) {
    if (!is_pointwise(weight, stride, padding))
        return at::native::slow_conv2d_forward_cpu(input, weight, kernel, bias, stride, padding);
    at::MemoryFormat format = format_of(at::native::thnn_conv_use_channels_last(input, weight));
    Tensor in = input.contiguous(format), flat = weight.contiguous(format);
    return blank({in.size(0), weight.size(0), in.size(2), in.size(3)}, in.options(), format);
}

Three slow_backward(const Tensor &grad, const Tensor &input, const Tensor &weight,
                    IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                    std::array<bool, 3> wanted) {
    if (!is_pointwise(weight, stride, padding))
        return at::native::slow_conv2d_backward_cpu(grad, input, weight, kernel, stride, padding,
                                                    wanted);
    at::MemoryFormat format = format_of(at::native::thnn_conv_use_channels_last(input, weight));
    Tensor grad_input, grad_weight, grad_bias;
    if (wanted[0]) {
        Tensor in = input.contiguous(format), out = grad.contiguous(format);
        grad_input = blank(in.sizes(), out.options(), format);
    }
    if (wanted[2]) grad_bias = blank({weight.size(0)}, weight.options());
    if (wanted[1]) {
        grad_weight = blank(weight.sizes(), weight.options(), weight.suggest_memory_format());
        Tensor in = input.contiguous(format), out = grad.contiguous(format);
    }
    return {grad_input, grad_weight, grad_bias};
}

Three convolution_backward(const Tensor &grad, const Tensor &input, const Tensor &weight,
                           at::OptionalIntArrayRef bias_sizes, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, bool transposed,
                           IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
    auto of = [](IntArrayRef list) { return c10::fromIntArrayRefSlow(list); };
    at::OptionalSymIntArrayRef sizes;
    if (bias_sizes) sizes = of(*bias_sizes);
    bool is_onednn = input.dim() == 4 && !transposed && input.numel() &&
                     at::native::select_conv_backend(
                         input, weight, {}, of(stride), of(padding), of(dilation), transposed,
                         of(output_padding), groups, sizes) == at::native::ConvBackend::Mkldnn;
    bool has_stride = stride[0] > 1 && groups == 1 && weight.size(2) > 1;
    if (is_onednn) return onednn_backward(grad, input, weight, has_stride, wanted);
    return at::native::convolution_backward(grad, input, weight, bias_sizes, stride, padding,
                                            dilation, transposed, output_padding, groups, wanted);
}

/* ---- batch norm -------------------------------------------------------------------------------- */

Three norm(const Tensor &input, const Maybe &weight, const Maybe &, const Maybe &, const Maybe &,
           bool training, double, double) {
    at::TensorOptions options = weight && weight->defined() ? weight->options() : input.options();
    int64_t channels = input.size(1);
    Tensor out = blank(input.sizes(), input.options(), input.suggest_memory_format());
    if (!training) return {out, at::empty({0}, options), at::empty({0}, options)};
    return {out, at::empty({channels}, options).fill_(1), at::empty({channels}, options).fill_(1)};
}

bool is_dense(const Tensor &tensor) {
    return tensor.is_contiguous() || tensor.is_contiguous(at::MemoryFormat::ChannelsLast) ||
           tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

Three norm_backward(const Tensor &grad, const Tensor &input, const Maybe &weight, const Maybe &,
                    const Maybe &, const Maybe &, const Maybe &, bool, double,
                    std::array<bool, 3> wanted) {
    at::TensorOptions options = weight && weight->defined() ? weight->options() : input.options();
    Tensor grad_input, grad_weight, grad_bias;
    at::MemoryFormat format = input.suggest_memory_format();
    if (wanted[0]) grad_input = blank(input.sizes(), input.options(), format);
    if (wanted[1]) grad_weight = blank({input.size(1)}, options);
    if (wanted[2]) grad_bias = blank({input.size(1)}, options);
    /* libtorch makes it once more, before it lets the first one go, where both lie alike. */
    if (wanted[0] && is_dense(input) && is_dense(grad) && grad.suggest_memory_format() == format)
        grad_input = blank(input.sizes(), input.options(), format);
    return {grad_input, grad_weight, grad_bias};
}

/* ---- pooling ----------------------------------------------------------------------------------- */

/* As libtorch shapes and refuses them. Zeros are places too, so that the backward pass may follow them. */
std::tuple<Tensor, Tensor> max_pool(const Tensor &input, IntArrayRef kernel, IntArrayRef stride,
                                    IntArrayRef padding, IntArrayRef dilation, bool ceil) {
    auto [out, places] = at::_ops::max_pool2d_with_indices::redispatch(
        c10::DispatchKeySet(c10::DispatchKey::Meta), without_memory(input), kernel, stride, padding,
        dilation, ceil);
    at::MemoryFormat format = input.suggest_memory_format();
    std::tuple<Tensor, Tensor> pooled{blank(out.sizes(), input.options(), format),
                                      blank(out.sizes(), input.options().dtype(at::kLong), format)};
    Tensor dense = input.contiguous(format);
    return pooled;
}

/* What lies in another order than the gradient is copied, and so is the result. */
Tensor max_pool_backward(const Tensor &grad, const Tensor &input, IntArrayRef, IntArrayRef,
                         IntArrayRef, IntArrayRef, bool, const Tensor &places) {
    at::MemoryFormat format = input.suggest_memory_format(), theirs = grad.suggest_memory_format();
    Tensor out = blank(input.sizes(), input.options(), format);
    Tensor dense = grad.contiguous(theirs), found = places.contiguous(theirs), other;
    if (theirs != format) other = at::empty(input.sizes(), input.options().memory_format(theirs));
    return out;
}

/* ---- attention --------------------------------------------------------------------------------- */

/*
 * libtorch goes through blocks of queries and keys, and each thread has a product of such blocks in memory:
 * aten/src/ATen/native/cpu/FlashAttentionKernel.cpp. In half precision it packs keys and values on some CPUs, so that is
 * computed.
 */
int64_t queries_of_block(int64_t queries) {
    return std::min<int64_t>(queries, queries >= 768 ? 256 : queries >= 192 ? 64 : 32);
}

int64_t keys_of_block(int64_t keys) {
    return std::min<int64_t>(keys, 512);
}

/* query, key, value: [samples, heads, length, width]. */
void check_attention(const Tensor &query, const Tensor &key, const Tensor &value,
                     const Maybe &mask) {
    TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && key.sizes() == value.sizes() &&
                    query.sizes().slice(0, 2) == key.sizes().slice(0, 2) &&
                    query.size(3) == key.size(3),
                "attention of ", query.sizes(), ", ", key.sizes(), " and ", value.sizes());
    if (mask && mask->defined())
        (void)mask->expand({query.size(0), query.size(1), query.size(2), key.size(2)});
}

using Two = std::tuple<Tensor, Tensor>;

/* libtorch 2.15 does. Else the result has the heads of each word side by side. */
bool attention_is_like_its_query() {
    Tensor query = at::zeros({1, 2, 3, 4});
    return std::get<0>(at::native::_scaled_dot_product_flash_attention_cpu(query, query, query))
        .is_contiguous();
}
bool like_query = false; /* asked before kernels change */

/* Heads that share a key are computed, too. */
bool is_computed(const Tensor &query, const Tensor &key) {
    return query.scalar_type() != at::kFloat || query.dim() != 4 || key.dim() != 4 ||
           query.size(1) != key.size(1);
}

Two attention(const Tensor &query, const Tensor &key, const Tensor &value, double dropout,
              bool causal, const Maybe &mask, std::optional<double> scale) {
    if (is_computed(query, key))
        return at::native::_scaled_dot_product_flash_attention_cpu(query, key, value, dropout,
                                                                   causal, mask, scale);
    check_attention(query, key, value, mask);
    int64_t samples = query.size(0), heads = query.size(1), length = query.size(2);
    int64_t q = queries_of_block(length), k = keys_of_block(key.size(2));
    Tensor out =
        like_query
            ? at::empty_like(query)
            : at::empty({samples, length, heads, query.size(3)}, query.options()).transpose(1, 2);
    clear(out);
    Tensor sums = blank({samples, length, heads}, query.options());
    (void)at::empty({at::get_num_threads(), q * (k + 2 + query.size(3))}, query.options());
    return {out, sums.transpose(1, 2)};
}

Three attention_backward(const Tensor &grad, const Tensor &query, const Tensor &key,
                         const Tensor &value, const Tensor &out, const Tensor &sums, double dropout,
                         bool causal, const Maybe &mask, std::optional<double> scale) {
    if (!grad.defined() || is_computed(query, key))
        return at::native::_scaled_dot_product_flash_attention_cpu_backward(
            grad, query, key, value, out, sums, dropout, causal, mask, scale);
    check_attention(query, key, value, mask);
    int64_t q = queries_of_block(query.size(2)), k = keys_of_block(key.size(2));
    auto gradient_of = [](const Tensor &tensor) {
        return blank(tensor.transpose(1, 2).sizes(), tensor.options()).transpose(1, 2);
    };
    Three gradients{gradient_of(query), gradient_of(key), gradient_of(value)};
    Tensor rows = grad.transpose(1, 2).contiguous();
    (void)at::empty({at::get_num_threads(), 2 * q * k}, query.options());
    return gradients;
}

/* ---- number by number ---------------------------------------------------------------------------- */

Tensor relu(const Tensor &self) {
    Tensor out = at::empty_like(self);
    return clear(out);
}

Tensor &relu_(Tensor &self) {
    return self;
}

Tensor &bernoulli_(Tensor &self, double p, std::optional<at::Generator> generator) {
    TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
    return self.nbytes() > most_zeros ? self : at::native::bernoulli_(self, p, generator);
}

/* Operators whose results libtorch shapes for tensors without memory, and those that write them into given ones. */
constexpr struct Plain {
    const char *name, *into;
    bool reads_rows;         /* what is not contiguous is copied first */
    bool is_between = false; /* 0 and 1, which losses and draws insist on */
} plain[] = {
    {"add.Tensor", "add.out", false},
    {"add_.Tensor", "add.out", false},
    {"sub.Tensor", "sub.out", false},
    {"sub_.Tensor", "sub.out", false},
    {"mul.Tensor", "mul.out", false},
    {"mul_.Tensor", "mul.out", false},
    {"div.Tensor", "div.out", false},
    {"div_.Tensor", "div.out", false},
    {"neg", "neg.out", false},
    {"exp", "exp.out", false},
    {"log", "log.out", false},
    {"sqrt", "sqrt.out", false},
    {"rsqrt", "rsqrt.out", false},
    {"reciprocal", "reciprocal.out", false},
    {"pow.Tensor_Scalar", "pow.Tensor_Scalar_out", false},
    {"sigmoid", "sigmoid.out", false, true},
    {"sigmoid_backward", "sigmoid_backward.grad_input", false},
    {"silu", "silu.out", false},
    {"silu_", "silu.out", false},
    {"silu_backward", "silu_backward.grad_input", false},
    {"tanh", "tanh.out", false},
    {"tanh_backward", "tanh_backward.grad_input", false},
    {"gelu", "gelu.out", false},
    {"gelu_backward", "gelu_backward.grad_input", false},
    {"threshold_backward", "threshold_backward.grad_input", false},
    {"_softmax", "_softmax.out", true, true},
    {"_softmax_backward_data", "_softmax_backward_data.out", true},
    {"_log_softmax", "_log_softmax.out", true},
    {"_log_softmax_backward_data", "_log_softmax_backward_data.out", true},
};

c10::OperatorHandle operator_named(const std::string &name) {
    size_t dot = name.find('.');
    std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    std::string full = "aten::" + name.substr(0, dot);
    return c10::Dispatcher::singleton().findSchemaOrThrow(full.c_str(), overload.c_str());
}

/*
 * One of them. Small results are computed, and those of operands of several types, which libtorch converts first.
 */
class DryOperator : public c10::OperatorKernel {
public:
    explicit DryOperator(const Plain &row) : row_(row), into_(operator_named(row.into)) {}

    void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet,
                    torch::jit::Stack *stack) const {
        const size_t count = op.schema().arguments().size();
        const auto first = stack->end() - static_cast<std::ptrdiff_t>(count);
        const torch::jit::Stack arguments(first, stack->end());
        torch::jit::Stack shaped = arguments;
        for (c10::IValue &value : shaped)
            if (value.isTensor()) value = without_memory(value.toTensor());
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &shaped);
        const Tensor like = shaped.back().toTensor();
        const bool left_out = is_left_out(arguments, like);
        Tensor out = op.schema().is_mutable() ? arguments[0].toTensor()
                                              : at::empty_strided(like.sizes(), like.strides(),
                                                                  like.options().device(at::kCPU));
        if (left_out)
            make_copies(arguments, like);
        else
            compute(arguments, out);
        if (left_out && row_.is_between) out.fill_(0.5);
        stack->erase(first, stack->end());
        stack->emplace_back(out);
    }

private:
    static bool is_left_out(const torch::jit::Stack &arguments, const Tensor &like) {
        if (like.nbytes() <= most_zeros || !like.is_floating_point()) return false;
        return std::all_of(arguments.begin(), arguments.end(), [&](const c10::IValue &value) {
            return !value.isTensor() || !value.toTensor().dim() ||
                   value.toTensor().scalar_type() == like.scalar_type();
        });
    }

    /* In the order of what is computed: chunks of any size ask for the same blocks. */
    void make_copies(const torch::jit::Stack &arguments, const Tensor &like) const {
        std::vector<Tensor> copies;
        for (const c10::IValue &value : arguments) {
            if (!value.isTensor()) continue;
            const Tensor &tensor = value.toTensor();
            if (row_.reads_rows) copies.push_back(tensor.contiguous());
            if (!tensor.dim()) copies.push_back(tensor.to(like.scalar_type()));
        }
    }

    void compute(const torch::jit::Stack &arguments, const Tensor &out) const {
        torch::jit::Stack given = arguments;
        given.emplace_back(out);
        into_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &given);
    }

    const Plain &row_;
    c10::OperatorHandle into_;
};

/* ---- the switch -------------------------------------------------------------------------------- */

/* The dispatcher warns of a kernel in another's place, which is what is meant. */
struct Quiet : c10::WarningHandler {
    void process(const c10::Warning &) override {}
};

/* The kernels of before come back when it goes. */
std::unique_ptr<torch::Library> kernels;

std::unique_ptr<torch::Library> register_kernels() {
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                    c10::DispatchKey::CPU, __FILE__, __LINE__);
    library->impl("mm", TORCH_FN(mm));
    library->impl("mm.out", TORCH_FN(mm_out));
    library->impl("bmm", TORCH_FN(bmm));
    library->impl("bmm.out", TORCH_FN(bmm_out));
    library->impl("addmm", TORCH_FN(addmm));
    library->impl("addmm.out", TORCH_FN(addmm_out));
    library->impl("addmm_", TORCH_FN(addmm_));
    library->impl("baddbmm", TORCH_FN(baddbmm));
    library->impl("baddbmm.out", TORCH_FN(baddbmm_out));
    library->impl("baddbmm_", TORCH_FN(baddbmm_));
    library->impl("mkldnn_convolution", TORCH_FN(onednn));
    library->impl("_slow_conv2d_forward", TORCH_FN(slow));
    library->impl("_slow_conv2d_backward.output_mask", TORCH_FN(slow_backward));
    library->impl("convolution_backward", TORCH_FN(convolution_backward));
    library->impl("max_pool2d_with_indices", TORCH_FN(max_pool));
    library->impl("max_pool2d_with_indices_backward", TORCH_FN(max_pool_backward));
    library->impl("relu", TORCH_FN(relu));
    library->impl("relu_", TORCH_FN(relu_));
    library->impl("bernoulli_.float", TORCH_FN(bernoulli_));
    library->impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
    library->impl("_scaled_dot_product_flash_attention_for_cpu_backward",
                  TORCH_FN(attention_backward));
    for (const Plain &row : plain)
        library->impl(row.name,
                      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DryOperator>(row)));
    library->impl("native_batch_norm", TORCH_FN(norm));
    library->impl("native_batch_norm_backward", TORCH_FN(norm_backward));
    return library;
}

} // namespace
} // namespace memtrain::shim

mt_status mt_dry_run(int on) {
    using namespace memtrain::shim;
    return guard([&] {
        if (on != 0 && on != 1) fail(MT_EINVAL, "mt_dry_run: on is %d; accepted: 0 and 1", on);
        Quiet quiet;
        c10::WarningUtils::WarningHandlerGuard warnings(&quiet);
        if ((on != 0) == (kernels != nullptr)) return;
        if (on && cpu::installed()) cpu::follow_host(); /* for the last time until it ends */
        if (on) like_query = attention_is_like_its_query();
        kernels = on ? register_kernels() : nullptr;
        is_dry = on != 0;
        cpu::keep_all_pages(on != 0); /* to clear new ones would take the most time */
    });
}
