/*
 * food101_model.cpp - the ResNet of resnet.hpp as an mt_model; see food101_model.h.
 */
#include "food101_model.h"
#include "resnet.hpp"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <memtrain/torch.hpp>

using memtrain_models::ResNetImpl;
using memtrain_models::ResNetOptions;

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

ResNetOptions resnet_of(const food101_model_options *options) {
    return {options->depth, static_cast<int64_t>(options->classes)};
}

} // namespace

mt_status food101_model_new(const food101_model_options *options, mt_model **out) {
    mt_status status = check(options);
    if (status != MT_OK) return status;
    const bool top5 = options->classes > FOOD101_TOP;
    return memtrain::make_model(out, [&] {
        std::vector<std::string> metrics = {"accuracy"};
        if (top5) metrics.push_back("top5");
        auto description =
            memtrain::model(std::make_shared<ResNetImpl>(resnet_of(options)), metrics,
                            [top5](ResNetImpl &net, const memtrain::Tensors &batch) {
                                at::Tensor logits = net.forward(batch.at(0)), labels = batch.at(1);
                                return memtrain::Output{at::cross_entropy_loss(logits, labels),
                                                        top5 ? count_correct(logits, labels)
                                                             : memtrain::correct(logits, labels)};
                            });
        description.checkpoints = true;
        return description;
    });
}
