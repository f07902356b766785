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
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/topk.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

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
    return sums.is_mps() ? sums : sums.to(at::kDouble); /* MPS has no doubles */
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
};

template <class Net, class Loss>
Description<Net, Loss> model(std::shared_ptr<Net> net, std::vector<std::string> metrics,
                             Loss loss) {
    return Description<Net, Loss>{
        std::move(net), std::move(metrics), std::move(loss), 0, false, {}};
}

namespace detail {

template <class Body> mt_status guard(Body &&body) noexcept {
    try {
        return body();
    } catch (...) {
        return mt_torch_exception();
    }
}

/* Whether a layer in training mode normalises over the samples of a chunk. */
inline bool normalises_over_batch(const torch::nn::Module &module) {
    for (const auto &m : module.modules()) {
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

/* A description as the self of mt_model_ops. */
template <class Net, class Loss> struct Holder {
    Description<Net, Loss> description;

    static Net &net(void *self) { return *static_cast<Holder *>(self)->description.net; }

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
        return guard([&] {
            Tensors batch;
            batch.reserve(count);
            for (size_t i = 0; i < count; i++) batch.push_back(tensor(handles[i]));
            Output output = static_cast<Holder *>(self)->description.loss(net(self), batch);
            tensor(out_loss) = std::move(output.loss);
            tensor(out_metrics) = std::move(output.metrics);
            return MT_OK;
        });
    }
    static void destroy(void *self) { delete static_cast<Holder *>(self); }
};

template <class Net, class Loss>
mt_status wrap(Description<Net, Loss> description, mt_model **out) {
    using H = Holder<Net, Loss>;
    bool normalises = normalises_over_batch(*description.net);
    std::vector<const char *> names;
    for (const auto &name : description.metrics) names.push_back(name.c_str());

    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    traits.normalises_over_batch = normalises;
    traits.min_micro_batch =
        description.min_micro_batch ? description.min_micro_batch : (normalises ? 2 : 1);
    traits.needs_whole_batch = description.needs_whole_batch;
    traits.metric_count = names.size();
    traits.metric_names = names.data();
    std::vector<int> over = description.metric_over;
    if (!over.empty()) over.resize(names.size(), MT_OVER_SAMPLES);
    traits.metric_over = over.empty() ? nullptr : over.data();

    mt_model_ops ops = MT_MODEL_OPS_INIT;
    ops.visit_parameters = H::visit_parameters;
    ops.visit_buffers = H::visit_buffers;
    ops.set_training = H::set_training;
    ops.loss = H::loss;
    ops.to_device = H::to_device;
    ops.destroy = H::destroy;
    /* mt_model_new takes the holder over, also when it fails. */
    return mt_model_new(&ops, new H{std::move(description)}, &traits, out);
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

} // namespace memtrain
#endif
