/*
 * memtrain/torch.hpp - a C++ model of one's own as an mt_model. Header only; needs libtorch headers.
 *
 *     struct Net : torch::nn::Module { torch::Tensor forward(torch::Tensor x); ... };
 *
 *     extern "C" mt_status net_model_new(mt_model **out) {
 *         return memtrain::make_model(out, [] {
 *             return memtrain::model(std::make_shared<Net>(), {"accuracy"},
 *                 [](Net &net, const memtrain::Tensors &batch) {
 *                     auto logits = net.forward(batch.at(0));
 *                     return memtrain::Output{torch::cross_entropy_loss(logits, batch.at(1)),
 *                                             memtrain::correct(logits, batch.at(1))};
 *                 });
 *         });
 *     }
 *
 * Exceptions end in this header, on the caller's side of the C boundary.
 */
#ifndef MEMTRAIN_TORCH_HPP
#define MEMTRAIN_TORCH_HPP

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/topk.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <torch/enum.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <memtrain/torch.h>

namespace memtrain {

using Tensors = std::vector<at::Tensor>;

/* What the loss function returns. */
struct Output {
    at::Tensor loss;    /* scalar: mean over the chunk's units, with its graph */
    at::Tensor metrics; /* [metric_count] sums over the samples, or undefined */
};

/* The tensor inside a handle. */
inline at::Tensor &tensor(mt_tensor *handle) {
    return *static_cast<at::Tensor *>(mt_tensor_get(handle));
}

namespace detail {

/* Shapes that differ would broadcast to pairs that nobody asked for, [8,1] and [8] to 64. */
inline void check_shapes(const char *metric, at::IntArrayRef output, at::IntArrayRef target) {
    if (output == target) return;
    std::ostringstream text;
    text << metric << ": the output is " << output << " and the target " << target
         << "; the same shape is needed";
    throw std::invalid_argument(text.str());
}

/* Logits have one dimension more than labels, the second: that of the classes. */
inline void check_labels(const char *metric, const at::Tensor &logits, const at::Tensor &target) {
    std::vector<int64_t> labels = logits.sizes().vec();
    if (labels.size() > 1) labels.erase(labels.begin() + 1);
    if (logits.dim() > 1 && at::IntArrayRef(labels) == target.sizes()) return;
    std::ostringstream text;
    text << metric << ": the logits are " << logits.sizes() << " and the labels " << target.sizes()
         << "; the shape of the logits without its second dimension is needed";
    throw std::invalid_argument(text.str());
}

/* Half precision has 8 or 11 bits: enough for a value, not for a difference or a sum. */
inline at::Tensor difference(const char *metric, const at::Tensor &output,
                             const at::Tensor &target) {
    check_shapes(metric, output.sizes(), target.sizes());
    auto type = at::promote_types(at::promote_types(output.scalar_type(), target.scalar_type()),
                                  at::kFloat);
    return output.detach().to(type) - target.to(type);
}

inline at::Tensor sum_over_samples(const at::Tensor &each) {
    double size = static_cast<double>(each.numel()) / static_cast<double>(each.size(0));
    return each.sum().div(size).reshape({1}).to(at::kFloat);
}

/* The same numbers in doubles, or as they are where the device has none: MPS, and some of Intel's cards. */
inline at::Tensor in_doubles(const at::Tensor &numbers) {
    try {
        return numbers.to(at::kDouble);
    } catch (const c10::OutOfMemoryError &) {
        throw;
    } catch (const std::exception &) {
        return numbers;
    }
}

} // namespace detail

/*
 * A tensor without its graph, on the CPU. Metrics of such tensors are computed there, and take nothing of
 * the device: correct(on_cpu(logits), on_cpu(labels)). The copy waits for the device; metrics that stay on
 * it do not, since they are read with the loss when the chunk has ended.
 */
inline at::Tensor on_cpu(const at::Tensor &tensor) {
    return tensor.detach().to(at::kCPU);
}

/*
 * All metrics throw std::invalid_argument, with both shapes, where those of output and target do not
 * belong together.
 */

/* Number of samples whose largest logit is the target's, as the [1] tensor of one metric. */
inline at::Tensor correct(const at::Tensor &logits, const at::Tensor &target) {
    detail::check_labels("correct", logits, target);
    return logits.detach().argmax(1).eq(target).sum().reshape({1}).to(at::kFloat);
}

/* Number of samples whose target is among the k largest logits (all of them where k is too large). */
inline at::Tensor top_k(const at::Tensor &logits, const at::Tensor &target, int64_t k) {
    detail::check_labels("top_k", logits, target);
    at::Tensor best = std::get<1>(logits.detach().topk(std::min(k, logits.size(1)), 1));
    return best.eq(target.unsqueeze(1)).sum().reshape({1}).to(at::kFloat);
}

/* Sum over the samples of a sample's mean absolute error: over the samples, the MAE. */
inline at::Tensor absolute_error(const at::Tensor &output, const at::Tensor &target) {
    return detail::sum_over_samples(detail::difference("absolute_error", output, target).abs());
}

/* The same of the squared error: over the samples, the MSE. */
inline at::Tensor squared_error(const at::Tensor &output, const at::Tensor &target) {
    return detail::sum_over_samples(detail::difference("squared_error", output, target).square());
}

/*
 * [2]: elements that two masks (of ones and zeros, or booleans) have in common, and elements that
 * either has. As metrics "iou" with metric_over 1 and "union": the IoU over all pixels seen. Whole
 * numbers, and exact; beside a floating-point metric (at::cat) as exact as that type is.
 */
inline at::Tensor intersection_union(const at::Tensor &output, const at::Tensor &target) {
    detail::check_shapes("intersection_union", output.sizes(), target.sizes());
    at::Tensor a = output.detach().to(at::kBool), b = target.to(at::kBool);
    at::Tensor sums =
        at::cat({a.logical_and(b).sum().reshape({1}), a.logical_or(b).sum().reshape({1})});
    return detail::in_doubles(sums);
}

/*
 * What the loss of a chunk is averaged over, from the chunk's tensors on the CPU. It is asked for the whole batch before
 * a step and for each chunk, so it should be cheap. 0 is legal: such a chunk adds nothing.
 */
using Units = std::function<double(const Tensors &)>;

namespace detail {

template <class Number> double count_others(const at::Tensor &tensor, int64_t ignored) {
    const Number *data = tensor.const_data_ptr<Number>();
    auto is_other = [ignored](Number x) {
        return static_cast<double>(x) != static_cast<double>(ignored);
    };
    return static_cast<double>(std::count_if(data, data + tensor.numel(), is_other));
}

} // namespace detail

/*
 * Units of a loss that is a mean over tokens: the elements of one of the batch's tensors that are not `ignored`. It is
 * what cross_entropy_loss divides by, given labels and the same ignore_index. Of a mask count_not(0, mask) are its ones.
 * Allocates nothing where the tensor is contiguous.
 *
 *     auto described = memtrain::model(net, {}, loss);
 *     described.units = memtrain::count_not(-100);
 *
 * @param tensor  index in the batch; 1: the labels of a batch {inputs, labels}
 */
inline Units count_not(int64_t ignored, size_t tensor = 1) {
    return [ignored, tensor](const Tensors &batch) {
        if (tensor >= batch.size())
            throw std::invalid_argument("count_not: tensor is " + std::to_string(tensor) +
                                        "; the batch has " + std::to_string(batch.size()));
        at::Tensor dense = batch[tensor].contiguous();
        return AT_DISPATCH_ALL_TYPES_AND3(
            at::kBool, at::kHalf, at::kBFloat16, dense.scalar_type(), "count_not",
            [&] { return detail::count_others<scalar_t>(dense, ignored); });
    };
}

/* Describes a model for make_model. Loss: Output(Net &, const Tensors &). */
template <class Net, class Loss> struct Description {
    std::shared_ptr<Net> net;
    std::vector<std::string> metrics;
    Loss loss;
    /* Smallest legal chunk; 0: 2 where BatchNorm layers train, else 1. */
    size_t min_micro_batch = 0;
    /* The loss couples the samples of a batch (contrastive): it must not be cut. */
    bool needs_whole_batch = false;
    /* What each metric's sum is divided by, see mt_backend_info; empty: samples. */
    std::vector<int> metric_over = {};
    /* The forward pass has segments (checkpoint), so that checkpointing can be turned on for it. */
    bool checkpoints = false;
    /* What the loss is averaged over, where that is not the samples: tokens, pixels, weights of classes. */
    Units units = {};
};

template <class Net, class Loss>
Description<Net, Loss> model(std::shared_ptr<Net> net, std::vector<std::string> metrics,
                             Loss loss) {
    return Description<Net, Loss>{
        std::move(net), std::move(metrics), std::move(loss), 0, false, {}, false, {}};
}

/*
 * Describes a model whose loss is one over pairs of samples (mt_prepare). Embed: Tensors(Net &, const
 * Tensors &batch), the embeddings of one chunk; Join: Output(Net &, const Tensors &embeddings), the loss as
 * a mean over the samples of the batch whose embeddings these are, and metrics of all of them.
 */
template <class Net, class Embed, class Join> struct ContrastiveDescription {
    std::shared_ptr<Net> net;
    std::vector<std::string> metrics;
    Embed embed;
    Join join;
    size_t embeddings = 2; /* that Embed gives */
    size_t min_micro_batch = 0;
    std::vector<int> metric_over = {};
    bool checkpoints = false; /* Embed has segments */
};

template <class Net, class Embed, class Join>
ContrastiveDescription<Net, Embed, Join> contrastive_model(std::shared_ptr<Net> net,
                                                           std::vector<std::string> metrics,
                                                           Embed embed, Join join) {
    return ContrastiveDescription<Net, Embed, Join>{
        std::move(net), std::move(metrics), std::move(embed), std::move(join), 2, 0, {}, false};
}

namespace detail {

template <class Body> mt_status guard(Body &&body) noexcept {
    try {
        return body();
    } catch (...) {
        return mt_torch_exception();
    }
}

/* The same for a function of the caller's. An index that is out of range wants to know what there is. */
template <class Body>
mt_status guard_of(const char *function, const char *what, size_t count, Body &&body) noexcept {
    try {
        return body();
    } catch (const std::out_of_range &) {
        char line[400];
        mt_status status = mt_torch_exception();
        std::snprintf(line, sizeof line, "%s", mt_last_error());
        return mt_set_error(status, "the %s function failed: %s; %s has %zu tensor%s", function,
                            line, what, count, count == 1 ? "" : "s");
    } catch (...) {
        return mt_torch_exception();
    }
}

/* Whether a layer in training mode normalises over the samples of a chunk; now: one that is in it. */
inline bool normalises_over_batch(const torch::nn::Module &module, bool now = false) {
    for (const auto &m : module.modules()) {
        if (now && !m->is_training()) continue;
        if (m->as<torch::nn::BatchNorm1d>() || m->as<torch::nn::BatchNorm2d>() ||
            m->as<torch::nn::BatchNorm3d>())
            return true;
    }
    return false;
}

/* Hands name and tensor of each item to a C callback. */
template <class Items> mt_status visit(const Items &items, mt_visit_fn fn, void *user) {
    for (const auto &item : items) {
        mt_status status = mt_visit_tensor(&item.value(), item.key().c_str(), fn, user);
        if (status != MT_OK) return status;
    }
    return MT_OK;
}

inline Tensors tensors_of(mt_tensor *const *handles, size_t count) {
    Tensors list;
    list.reserve(count);
    for (size_t i = 0; i < count; i++) list.push_back(tensor(handles[i]));
    return list;
}

inline void write(Output &&output, mt_tensor *out_loss, mt_tensor *out_metrics) {
    tensor(out_loss) = std::move(output.loss);
    tensor(out_metrics) = std::move(output.metrics);
}

/* A description, of either kind, as the self of mt_model_ops. */
template <class Described> struct Holder {
    Described description;

    static Described &of(void *self) { return static_cast<Holder *>(self)->description; }
    static auto &net(void *self) { return *of(self).net; }

    static mt_status visit_parameters(void *self, mt_visit_fn fn, void *user) {
        return guard([&] { return visit(net(self).named_parameters(), fn, user); });
    }
    static mt_status visit_buffers(void *self, mt_visit_fn fn, void *user) {
        return guard([&] { return visit(net(self).named_buffers(), fn, user); });
    }
    static mt_status set_training(void *self, int on) {
        return guard([&] { return net(self).train(on != 0), MT_OK; });
    }
    static mt_status to_device(void *self, const char *device) {
        return guard([&] { return net(self).to(c10::Device(device)), MT_OK; });
    }
    static mt_status loss(void *self, mt_tensor *const *handles, size_t count, mt_tensor *out_loss,
                          mt_tensor *out_metrics) {
        return guard_of("loss", "the batch", count, [&] {
            write(of(self).loss(net(self), tensors_of(handles, count)), out_loss, out_metrics);
            return MT_OK;
        });
    }
    static mt_status units(void *self, mt_tensor *const *handles, size_t count, double *out) {
        return guard_of("units", "the batch", count,
                        [&] { return *out = of(self).units(tensors_of(handles, count)), MT_OK; });
    }
    static mt_status embed(void *self, mt_tensor *const *handles, size_t count,
                           mt_tensor *const *out, size_t out_count) {
        return guard_of("embed", "the batch", count, [&] {
            Tensors embeddings = of(self).embed(net(self), tensors_of(handles, count));
            if (embeddings.size() != out_count)
                throw std::invalid_argument("embed gave " + std::to_string(embeddings.size()) +
                                            " tensors instead of " + std::to_string(out_count));
            for (size_t i = 0; i < out_count; i++) tensor(out[i]) = std::move(embeddings[i]);
            return MT_OK;
        });
    }
    static mt_status join(void *self, mt_tensor *const *handles, size_t count, mt_tensor *out_loss,
                          mt_tensor *out_metrics) {
        return guard_of("join", "the list of embeddings", count, [&] {
            write(of(self).join(net(self), tensors_of(handles, count)), out_loss, out_metrics);
            return MT_OK;
        });
    }
    static void destroy(void *self) { delete static_cast<Holder *>(self); }
};

/* What both kinds have in common; the rest of ops and traits is set. */
template <class Described>
mt_status wrap_as(Described description, mt_model_ops ops, mt_model_traits traits, mt_model **out) {
    using H = Holder<Described>;
    std::vector<const char *> names;
    for (const auto &name : description.metrics) names.push_back(name.c_str());
    traits.checkpoints = description.checkpoints;
    traits.metric_count = names.size();
    traits.metric_names = names.data();
    std::vector<int> over = description.metric_over;
    if (!over.empty()) over.resize(names.size(), MT_OVER_SAMPLES);
    traits.metric_over = over.empty() ? nullptr : over.data();
    ops.visit_parameters = H::visit_parameters;
    ops.visit_buffers = H::visit_buffers;
    ops.set_training = H::set_training;
    ops.to_device = H::to_device;
    ops.destroy = H::destroy;
    /* mt_model_new takes the holder over, also when it fails. */
    return mt_model_new(&ops, new H{std::move(description)}, &traits, out);
}

/* Function pointers and std::functions may be; a lambda is not. */
template <class Fn> bool is_empty(const Fn &fn) {
    if constexpr (std::is_pointer_v<Fn>)
        return fn == nullptr;
    else if constexpr (std::is_constructible_v<Fn, std::nullptr_t>)
        return !fn;
    else
        return false;
}

inline mt_status refuse_empty(const char *function, const char *argument) {
    return mt_set_error(MT_EINVAL, "memtrain::%s: %s is empty", function, argument);
}

template <class Net, class Loss>
mt_status wrap(Description<Net, Loss> description, mt_model **out) {
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    if (!description.net) return refuse_empty("model", "net");
    if (is_empty(description.loss)) return refuse_empty("model", "loss");
    bool normalises = normalises_over_batch(*description.net);
    traits.normalises_over_batch = normalises;
    traits.min_micro_batch =
        description.min_micro_batch ? description.min_micro_batch : (normalises ? 2 : 0);
    traits.needs_whole_batch = description.needs_whole_batch;
    ops.loss = Holder<Description<Net, Loss>>::loss;
    if (description.units) ops.units = Holder<Description<Net, Loss>>::units;
    return wrap_as(std::move(description), ops, traits, out);
}

/* A BatchNorm layer that the net's own train() keeps in evaluation mode is a layer like others. */
template <class Net, class Embed, class Join>
mt_status wrap(ContrastiveDescription<Net, Embed, Join> description, mt_model **out) {
    using H = Holder<ContrastiveDescription<Net, Embed, Join>>;
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    if (!description.net) return refuse_empty("contrastive_model", "net");
    if (is_empty(description.embed)) return refuse_empty("contrastive_model", "embed");
    if (is_empty(description.join)) return refuse_empty("contrastive_model", "join");
    description.net->train();
    traits.normalises_over_batch = normalises_over_batch(*description.net, true);
    traits.min_micro_batch = description.min_micro_batch;
    traits.embedding_count = description.embeddings;
    ops.embed = H::embed;
    ops.join = H::join;
    return wrap_as(std::move(description), ops, traits, out);
}

} // namespace detail

/*
 * Makes an mt_model of what build() describes; every exception becomes a status. The budgeted
 * allocator is in place before build() makes its first tensor.
 * @param out  new reference: free with mt_model_free
 */
template <class Build> mt_status make_model(mt_model **out, Build &&build) noexcept {
    if (!out) return mt_set_error(MT_EINVAL, "make_model: out is NULL");
    *out = nullptr;
    mt_status status = mt_torch_init(nullptr);
    if (status != MT_OK) return status;
    return detail::guard([&] { return detail::wrap(build(), out); });
}

/* ---- segments, see mt_checkpoint --------------------------------------------------------------- */

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

namespace detail {

/* A handle of one's own, to hand a tensor to a C function. */
class Handle {
public:
    explicit Handle(const at::Tensor &content = {}) {
        if (mt_tensor_new(&handle_) != MT_OK) throw std::runtime_error(mt_last_error());
        tensor(handle_) = content;
    }
    Handle(Handle &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Handle &operator=(Handle &&) = delete;
    ~Handle() { mt_tensor_free(handle_); }
    mt_tensor *get() const { return handle_; }

private:
    mt_tensor *handle_ = nullptr;
};

/* Handles to the tensors as C has them. */
class Handles {
public:
    explicit Handles(const Tensors &tensors) {
        handles_.reserve(tensors.size());
        for (const at::Tensor &one : tensors) {
            handles_.emplace_back(one);
            pointers_.push_back(handles_.back().get());
        }
    }
    mt_tensor *const *get() const { return pointers_.data(); }

private:
    std::vector<Handle> handles_;
    std::vector<mt_tensor *> pointers_;
};

/* fn: Tensors(const Tensors &), as the self of mt_segment_ops. */
template <class Fn> struct Segment {
    Fn fn;
    Modules modules;
    std::shared_ptr<std::exception_ptr> thrown; /* by fn, for the caller of checkpoint */

    static mt_status run(void *self, mt_tensor *const *inputs, size_t input_count,
                         mt_tensor *const *outputs, size_t output_count) {
        auto &segment = *static_cast<Segment *>(self);
        return guard([&] {
            try {
                return segment.call(inputs, input_count, outputs, output_count);
            } catch (...) {
                *segment.thrown = std::current_exception();
                throw;
            }
        });
    }
    mt_status call(mt_tensor *const *inputs, size_t input_count, mt_tensor *const *outputs,
                   size_t output_count) {
        Tensors in, out;
        for (size_t i = 0; i < input_count; i++) in.push_back(tensor(inputs[i]));
        out = fn(in);
        if (out.size() != output_count)
            throw std::invalid_argument("checkpoint: the segment gave " +
                                        std::to_string(out.size()) + " tensors instead of " +
                                        std::to_string(output_count));
        for (size_t i = 0; i < output_count; i++) tensor(outputs[i]) = std::move(out[i]);
        return MT_OK;
    }
    static mt_status visit_buffers(void *self, mt_visit_fn visitor, void *user) {
        return guard([&] {
            for (const auto &module : static_cast<Segment *>(self)->modules) {
                mt_status status = visit(module->named_buffers(), visitor, user);
                if (status != MT_OK) return status;
            }
            return MT_OK;
        });
    }
    static void destroy(void *self) { delete static_cast<Segment *>(self); }
};

/* What fn threw; memory that ran out always as libtorch says so. */
[[noreturn]] inline void raise(mt_status status, const std::exception_ptr &thrown) {
    std::string line = mt_last_error();
    TORCH_CHECK_WITH(OutOfMemoryError, status != MT_EDEVMEM, line);
    if (thrown) std::rethrow_exception(thrown);
    throw std::runtime_error(line);
}

/* What a module, a holder of one, or an AnyModule of a Sequential is; NULL for a function. */
template <class T> std::shared_ptr<torch::nn::Module> module_of(const T &callable) {
    if constexpr (std::is_base_of<torch::detail::ModuleHolderIndicator, T>::value ||
                  std::is_same<torch::nn::AnyModule, T>::value)
        return callable.ptr();
    else if constexpr (std::is_convertible<T, std::shared_ptr<torch::nn::Module>>::value)
        return callable;
    else
        return nullptr;
}

template <class T> at::Tensor call(T &callable, const at::Tensor &input) {
    if constexpr (std::is_convertible<T, std::shared_ptr<torch::nn::Module>>::value ||
                  std::is_base_of<torch::detail::ModuleHolderIndicator, T>::value)
        return callable->forward(input);
    else if constexpr (std::is_same<torch::nn::AnyModule, T>::value)
        return callable.forward(input);
    else
        return callable(input);
}

/* A part that learns nothing and passes no gradient on keeps nothing either. */
inline bool needs_gradient(const torch::nn::Module &module, const at::Tensor &input) {
    if (input.requires_grad()) return true;
    for (const at::Tensor &parameter : module.parameters())
        if (parameter.requires_grad()) return true;
    return false;
}

template <class Fn>
Tensors run_segment(Fn fn, const Tensors &inputs, size_t outputs, Modules modules,
                    const mt_conv *conv = nullptr, const mt_batch_norm *batch_norm = nullptr) {
    using Own = Segment<Fn>;
    mt_segment_ops ops = MT_SEGMENT_OPS_INIT;
    ops.run = Own::run;
    ops.visit_buffers = modules.empty() ? nullptr : Own::visit_buffers;
    ops.destroy = Own::destroy;
    ops.conv = conv;
    ops.batch_norm = batch_norm;
    Handles in(inputs), out{Tensors(outputs)};
    auto thrown = std::make_shared<std::exception_ptr>();
    mt_status status = mt_checkpoint(&ops, new Own{std::move(fn), std::move(modules), thrown},
                                     in.get(), inputs.size(), out.get(), outputs);
    if (status != MT_OK) raise(status, *thrown);
    Tensors results;
    for (size_t i = 0; i < outputs; i++) results.push_back(tensor(out.get()[i]));
    return results;
}

/* A convolution module as the end of a segment. */
class ConvEnd {
public:
    template <class Conv>
    ConvEnd(const Conv &conv, const char *function) : weight_(conv->weight), bias_(conv->bias) {
        const auto &options = conv->options;
        using Array = std::decay_t<decltype(options.stride())>;
        const Array *padding = std::get_if<Array>(&options.padding());
        if (!padding || !std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode()))
            throw std::invalid_argument(std::string(function) +
                                        ": the padding is not a number of zeros");
        conv_.weight = weight_.get();
        conv_.bias = conv->bias.defined() ? bias_.get() : nullptr;
        std::copy(options.stride()->begin(), options.stride()->end(), conv_.stride);
        std::copy((*padding)->begin(), (*padding)->end(), conv_.padding);
        std::copy(options.dilation()->begin(), options.dilation()->end(), conv_.dilation);
        conv_.groups = options.groups();
    }
    const mt_conv *get() const { return &conv_; }

private:
    Handle weight_, bias_;
    mt_conv conv_ = MT_CONV_INIT;
};

template <class Norm>
constexpr bool is_batch_norm = std::is_same<Norm, torch::nn::BatchNorm1d>::value ||
                               std::is_same<Norm, torch::nn::BatchNorm2d>::value ||
                               std::is_same<Norm, torch::nn::BatchNorm3d>::value;

/* Of what it is given, the samples among them. */
template <class Norm>
constexpr int64_t dimensions_of = std::is_same<Norm, torch::nn::BatchNorm1d>::value   ? 3
                                  : std::is_same<Norm, torch::nn::BatchNorm2d>::value ? 4
                                                                                      : 5;

/* A batch norm module as the end of a segment. */
class NormEnd {
public:
    template <class Norm>
    explicit NormEnd(const Norm &norm)
        : weight_(norm->weight), bias_(norm->bias), mean_(norm->running_mean),
          variance_(norm->running_var) {
        const auto &options = norm->options;
        const bool tracks = options.track_running_stats();
        if (norm->is_training() && tracks) batches_ = norm->num_batches_tracked;
        norm_.weight = options.affine() ? weight_.get() : nullptr;
        norm_.bias = options.affine() ? bias_.get() : nullptr;
        norm_.running_mean = tracks ? mean_.get() : nullptr;
        norm_.running_var = tracks ? variance_.get() : nullptr;
        norm_.training = norm->is_training() || !tracks;
        norm_.epsilon = options.eps();
        norm_.momentum = options.momentum()   ? *options.momentum()
                         : batches_.defined() ? 1.0 / (batches_.item<double>() + 1.0)
                                              : 0.0;
    }
    /* It was run: counts the batch, as the module's own forward does. */
    void count() {
        if (batches_.defined()) batches_ += 1;
    }
    const mt_batch_norm *get() const { return &norm_; }

private:
    Handle weight_, bias_, mean_, variance_;
    at::Tensor batches_; /* undefined: not counted */
    mt_batch_norm norm_ = MT_BATCH_NORM_INIT;
};

} // namespace detail

/*
 * fn(inputs), of which nothing but the inputs is kept: the backward pass calls fn again, with the same
 * random numbers and autocast. Inside an mt_torch that holds while its checkpointing is on; outside
 * always. Throws what fn throws.
 *
 *     x = memtrain::checkpoint(block, x);             (a module: its buffers are known)
 *     x = memtrain::checkpoint([this](const torch::Tensor &t) { return stem(t); }, x);
 *
 * @param fn       Tensors(const Tensors &); copied, and kept until the backward pass is through: what it
 *                 refers to must live as long
 * @param outputs  number of tensors that fn gives
 * @param modules  those whose buffers fn changes (BatchNorm), which are to count once; inside an
 *                 mt_torch all buffers of the model are watched where none are named
 */
template <class Fn>
Tensors checkpoint(Fn fn, const Tensors &inputs, size_t outputs, Modules modules = {}) {
    if (!mt_checkpoint_forgets()) return fn(inputs);
    return detail::run_segment(std::move(fn), inputs, outputs, std::move(modules));
}

/* The same for one tensor. fn: a function of a tensor, or a module in any of libtorch's holders. */
template <class Fn> at::Tensor checkpoint(Fn fn, const at::Tensor &input, Modules modules = {}) {
    auto module = detail::module_of(fn);
    if (!mt_checkpoint_forgets() || (module && !detail::needs_gradient(*module, input)))
        return detail::call(fn, input);
    if (module) modules.push_back(module);
    auto run = [fn = std::move(fn)](const Tensors &in) mutable {
        return Tensors{detail::call(fn, in[0])};
    };
    return checkpoint(std::move(run), Tensors{input}, 1, std::move(modules))[0];
}

/* Whether segments that make up a module would forget now: where nothing learns there is nothing to forget. */
inline bool forgets(const torch::nn::Module &module, const at::Tensor &input) {
    return mt_checkpoint_forgets() && detail::needs_gradient(module, input);
}

/*
 * conv(fn(input)), as a segment of which fn alone runs again: the convolution's own backward pass needs what it
 * was given and no more (mt_conv).
 *
 *     x = memtrain::checkpoint_conv([this](const torch::Tensor &t) { return bn1(conv1(t)).relu_(); },
 *                                   x, conv2, {bn1.ptr()});
 *
 * @param fn    at::Tensor(const at::Tensor &), as that of checkpoint
 * @param conv  torch::nn::Conv1d, 2d or 3d, whose padding is a number of zeros
 */
template <class Fn, class Conv>
at::Tensor checkpoint_conv(Fn fn, const at::Tensor &input, Conv conv, Modules modules = {}) {
    if (!mt_checkpoint_forgets()) return conv(fn(input));
    detail::ConvEnd end(conv, "checkpoint_conv");
    auto run = [fn = std::move(fn)](const Tensors &in) mutable { return Tensors{fn(in[0])}; };
    return detail::run_segment(std::move(run), Tensors{input}, 1, std::move(modules), end.get())[0];
}

/*
 * norm(conv(fn(input))), as a segment of which fn and the convolution run again, but not the norm: that one's own
 * backward pass needs what it was given and the statistics of each channel, which are kept (mt_batch_norm).
 *
 *     x = memtrain::checkpoint_conv_norm([this](const torch::Tensor &t) { return bn2(t).relu_(); },
 *                                        x, conv3, bn3, {bn2.ptr()});
 *
 * @param norm     torch::nn::BatchNorm1d, 2d or 3d, not one that fn runs too; any other module is run again like
 *                 the rest
 * @param modules  those whose buffers fn changes, without norm
 */
template <class Fn, class Conv, class Norm>
at::Tensor checkpoint_conv_norm(Fn fn, const at::Tensor &input, Conv conv, Norm norm,
                                Modules modules = {}) {
    if (!mt_checkpoint_forgets()) return norm(conv(fn(input)));
    if constexpr (detail::is_batch_norm<Norm>) {
        if (conv->weight.dim() != detail::dimensions_of<Norm>)
            throw std::invalid_argument("checkpoint_conv_norm: the convolution gives " +
                                        std::to_string(conv->weight.dim()) +
                                        " dimensions, the norm wants " +
                                        std::to_string(detail::dimensions_of<Norm>));
        detail::ConvEnd conv_end(conv, "checkpoint_conv_norm");
        detail::NormEnd norm_end(norm);
        auto run = [fn = std::move(fn)](const Tensors &in) mutable { return Tensors{fn(in[0])}; };
        Tensors out = detail::run_segment(std::move(run), Tensors{input}, 1, std::move(modules),
                                          conv_end.get(), norm_end.get());
        norm_end.count();
        return out[0];
    } else {
        if (!modules.empty()) modules.push_back(norm.ptr());
        auto run = [fn = std::move(fn), conv, norm](const Tensors &in) mutable {
            return Tensors{norm(conv(fn(in[0])))};
        };
        return detail::run_segment(std::move(run), Tensors{input}, 1, std::move(modules))[0];
    }
}

/* The modules of a Sequential, as so many segments of about as many modules each. */
inline at::Tensor checkpoint_sequential(torch::nn::Sequential sequential, size_t segments,
                                        at::Tensor x) {
    size_t count = sequential->size();
    if (!segments || segments > count)
        throw std::invalid_argument("checkpoint_sequential: segments is " +
                                    std::to_string(segments) + "; accepted: 1 to " +
                                    std::to_string(count));
    if (!mt_checkpoint_forgets()) return sequential->forward(x);
    for (size_t i = 0; i < segments; i++) {
        torch::nn::Sequential part;
        for (size_t j = count * i / segments; j < count * (i + 1) / segments; j++)
            part->push_back(*(sequential->begin() + static_cast<std::ptrdiff_t>(j)));
        x = checkpoint(part, x);
    }
    return x;
}

} // namespace memtrain
#endif
