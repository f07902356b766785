/*
 * profoct_model.cpp - the network of profoct.hpp as an mt_model; see profoct_model.h.
 */
#include "profoct_model.h"
#include "profoct.hpp"

#include <ATen/ops/stack.h>
#include <memtrain/torch.hpp>

using memtrain_models::EpisodeLoss;
using memtrain_models::ProfoctImpl;

namespace {

mt_status check(const profoct_model_options *options) {
    if (!options || options->size < sizeof *options)
        return mt_set_error(MT_EINVAL, "profoct_model_new: use PROFOCT_MODEL_OPTIONS_INIT");
    if (options->depth != 18 && options->depth != 34)
        return mt_set_error(MT_EINVAL, "profoct_model_new: depth is %d, not 18 or 34",
                            options->depth);
    const struct {
        const char *name;
        int value, least;
    } counts[] = {{"ways", options->ways, 2},
                  {"shots", options->shots, 1},
                  {"queries", options->queries, 1},
                  {"width", options->width, 1},
                  {"pool", options->pool, 1}};
    for (const auto &count : counts)
        if (count.value < count.least)
            return mt_set_error(MT_EINVAL, "profoct_model_new: %s is %d, not at least %d",
                                count.name, count.value, count.least);
    return MT_OK;
}

/* [metrics]: sums over the episodes. */
at::Tensor metrics_of(const EpisodeLoss &e) {
    std::vector<at::Tensor> each = {e.accuracy, e.accuracy.square()};
    if (e.variance.defined())
        each.insert(each.end(), {e.cross_entropy, e.variance, e.invariance, e.covariance});
    return at::stack(each, 1).detach().sum(0);
}

} // namespace

mt_status profoct_model_new(const profoct_model_options *options, mt_model **out) {
    mt_status status = check(options);
    if (status != MT_OK) return status;
    return memtrain::make_model(out, [&] {
        std::vector<std::string> metrics = {"accuracy", "accuracy_squared"};
        if (options->vic)
            for (const char *name : {"cross_entropy", "variance", "invariance", "covariance"})
                metrics.push_back(name);
        auto description =
            memtrain::model(std::make_shared<ProfoctImpl>(*options), metrics,
                            [](ProfoctImpl &net, const memtrain::Tensors &batch) {
                                EpisodeLoss e = net.forward(batch.at(0));
                                return memtrain::Output{e.loss.mean(), metrics_of(e)};
                            });
        description.min_micro_batch = 1;
        description.checkpoints = true;
        return description;
    });
}
