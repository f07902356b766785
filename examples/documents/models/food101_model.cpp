/*
 * food101_model.cpp - the ResNet of resnet.hpp as an mt_model; see food101_model.h.
 */
#include "food101_model.h"
#include "resnet.hpp"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <memtrain/torch.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

using memtrain_models::ResNetImpl;

namespace {

/* logits [B, classes], labels [B] -> how many labels are the largest, and among the five largest. */
at::Tensor count_correct(const at::Tensor &logits, const at::Tensor &labels) {
    at::Tensor top = std::get<1>(logits.detach().topk(FOOD101_TOP, 1)); /* [B, 5], best first */
    at::Tensor hits = top.eq(labels.unsqueeze(1)).sum(0).to(at::kFloat);
    return at::stack({hits[0], hits.sum()});
}

mt_status check(const food101_model_options *options) {
    if (!options || options->size < sizeof *options)
        return mt_set_error(MT_EINVAL, "food101_model_new: use FOOD101_MODEL_OPTIONS_INIT");
    if (options->depth != 18 && options->depth != 34 && options->depth != 50)
        return mt_set_error(MT_EINVAL, "food101_model_new: depth is %d, not 18, 34 or 50",
                            options->depth);
    if (options->classes < 2)
        return mt_set_error(MT_EINVAL, "food101_model_new: classes is %zu, not at least 2",
                            options->classes);
    return MT_OK;
}

/*
 * The ResNet, and beside its last layer, where asked for, a head for nutrition. The script that this
 * follows ends that head with a ReLU, which may die; softplus is never without a gradient.
 */
struct FoodNetImpl : ResNetImpl {
    explicit FoodNetImpl(const food101_model_options &options)
        : ResNetImpl({options.depth, static_cast<int64_t>(options.classes)}) {
        using namespace torch::nn;
        if (!options.nutrition) return;
        nutrition_head = register_module(
            "nutrition_head",
            Sequential(Dropout(0.3), Linear(fc->options.in_features(), 256), ReLU(), Dropout(0.15),
                       Linear(256, 128), ReLU(), Linear(128, 5), Softplus()));
    }
    torch::nn::Sequential nutrition_head{nullptr};
};

/* What the numbers of the nutrition head are in units of. */
at::Tensor units(const at::Tensor &like) {
    return at::tensor({500.f, 50.f, 100.f, 50.f, 500.f}, like.options());
}

/* Sums over the samples of the absolute errors, one a column. */
at::Tensor column_errors(const at::Tensor &output, const at::Tensor &target) {
    return (output.detach() - target).abs().sum(0);
}

/*
 * Divided by the pictures, not by their weights as libtorch's mean is: a chunk's weights differ from the
 * batch's, and its loss would not add up.
 */
at::Tensor weighted(const at::Tensor &logits, const at::Tensor &labels, const at::Tensor &weights) {
    at::Tensor each =
        at::cross_entropy_loss(logits, labels, weights.to(logits.device()), at::Reduction::None);
    return each.mean();
}

struct Loss {
    bool top5, nutrition;
    at::Tensor weights; /* undefined: all 1 */

    memtrain::Output operator()(FoodNetImpl &net, const memtrain::Tensors &batch) const {
        at::Tensor features = net.features(batch.at(0)), labels = batch.at(1);
        at::Tensor logits = net.fc(features);
        memtrain::Output out{weights.defined() ? weighted(logits, labels, weights)
                                               : at::cross_entropy_loss(logits, labels),
                             top5 ? count_correct(logits, labels)
                                  : memtrain::correct(logits, labels)};
        if (nutrition) add_nutrition(net.nutrition_head->forward(features), batch.at(2), out);
        return out;
    }
    static void add_nutrition(const at::Tensor &head, const at::Tensor &target,
                              memtrain::Output &out) {
        at::Tensor unit = units(target);
        out.loss = out.loss + 0.5 * at::mse_loss(head, target / unit);
        out.metrics = at::cat({out.metrics, column_errors(head * unit, target)});
    }
};

at::Tensor weights_of(const food101_model_options &options) {
    if (!options.class_weights) return {};
    return at::tensor(at::ArrayRef<float>(options.class_weights, options.classes));
}

} // namespace

mt_status food101_model_new(const food101_model_options *options, mt_model **out) {
    mt_status status = check(options);
    if (status != MT_OK) return status;
    return memtrain::make_model(out, [&] {
        const Loss loss = {options->classes > FOOD101_TOP, options->nutrition != 0,
                           weights_of(*options)};
        std::vector<std::string> metrics = {"accuracy"};
        if (loss.top5) metrics.push_back("top5");
        if (loss.nutrition)
            for (auto name : {"calories", "protein_g", "carb_g", "fat_g", "mass_g"})
                metrics.push_back(name);
        auto description = memtrain::model(std::make_shared<FoodNetImpl>(*options), metrics, loss);
        description.checkpoints = true;
        return description;
    });
}
