/*
 * profoct.hpp - FSCT and ProFOCT as a torch::nn module: a ResNet without its last layer, the cosine transformer
 * behind it, and the loss of an episode.
 */
#ifndef MEMTRAIN_MODELS_PROFOCT_HPP
#define MEMTRAIN_MODELS_PROFOCT_HPP

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "cosine_transformer.hpp"
#include "profoct_model.h"
#include "resnet.hpp"
#include "sample_norm.hpp"
#include "vic.hpp"

namespace memtrain_models {

/* What an episode gives, each [B]. */
struct EpisodeLoss {
    torch::Tensor loss, accuracy, cross_entropy;
    torch::Tensor variance, invariance, covariance; /* undefined without the terms of ProFOCT */
};

/*
 * Weights of the terms that follow their sizes, as the script has them: a term that is large beside the
 * cross entropy gets more weight, within bounds. They come from numbers, not from a graph.
 */
struct VicWeights {
    float alpha, beta, gamma; /* as they are kept, so that it does not matter where a chunk ends */

    void follow(double cross_entropy, double variance, double covariance) {
        const double all = variance + covariance + cross_entropy + 1e-8;
        alpha = bounded(0.9 * alpha + 0.1 * (0.5 + 2 * std::abs(variance) / all), 0.1, 5);
        gamma = bounded(0.9 * gamma + 0.1 * (0.5 + 2 * std::abs(covariance) / all), 0.1, 5);
        beta = bounded(0.9 * beta + 0.1 * 9 * (1 - 0.5 * std::abs(cross_entropy) / all), 1, 20);
    }

private:
    static float bounded(double value, double least, double most) {
        return static_cast<float>(std::min(std::max(value, least), most));
    }
};

/* The head's parts are its own, as in the script: ATTN, proto_weight, FFN, linear; and feature. */
class ProfoctImpl : public CosineTransformerImpl {
public:
    using Backbone = ResNetOf<SampleNorm>;

    explicit ProfoctImpl(const profoct_model_options &o)
        : CosineTransformerImpl(head_of(o)), options(o) {
        const ResNetOptions backbone{o.depth, 0, o.feti != 0, o.width};
        feature = register_module("feature", std::make_shared<Backbone>(backbone));
        if (o.vic)
            vic_weights = register_buffer("vic_weights",
                                          at::tensor({o.alpha, o.beta, o.gamma}).to(at::kFloat));
        for (const auto &module : feature->modules())
            if (auto *norm = module->as<SampleNorm>()) {
                norm->set_pictures(pictures());
                norm->set_own_statistics(!o.running_statistics);
            }
    }

    /* Of an episode. */
    int64_t pictures() const { return options.ways * (options.shots + options.queries); }

    /* pictures [B, n (k + q), 3, s, s] -> features [B, n, k + q, d] */
    torch::Tensor features(const torch::Tensor &pictures) {
        /* The first picture of each episode, then the second of each: see SampleNorm. */
        torch::Tensor x = feature->maps(pictures.transpose(0, 1).flatten(0, 1));
        x = at::adaptive_avg_pool2d(x, {options.pool, options.pool}).flatten(1);
        x = x.view({pictures.size(1), pictures.size(0), x.size(1)}).transpose(0, 1);
        return x.unflatten(1, {int64_t{options.ways}, int64_t{options.shots + options.queries}});
    }

    EpisodeLoss forward(const torch::Tensor &pictures) {
        torch::Tensor z = features(pictures);
        torch::Tensor support = z.narrow(2, 0, options.shots);
        torch::Tensor queries = z.narrow(2, options.shots, options.queries).flatten(1, 2);
        CosineScores out = CosineTransformerImpl::forward(support, queries);
        EpisodeLoss result = cross_entropy(out.scores.to(at::kFloat));
        result.loss = result.cross_entropy;
        if (options.vic) add_vic(support, out.attention, result);
        return result;
    }

    const profoct_model_options options;

private:
    /* scores [B, n q, n]: queries come class by class */
    EpisodeLoss cross_entropy(const torch::Tensor &scores) const {
        const int64_t episodes = scores.size(0);
        torch::Tensor labels = at::arange(options.ways, scores.options().dtype(at::kLong))
                                   .repeat_interleave(options.queries)
                                   .repeat({episodes});
        torch::Tensor rows = scores.flatten(0, 1);
        torch::Tensor each = at::cross_entropy_loss(rows, labels, {}, at::Reduction::None);
        torch::Tensor right = rows.detach().argmax(1).eq(labels).to(at::kFloat);
        EpisodeLoss result;
        result.cross_entropy = each.view({episodes, -1}).mean(1);
        result.accuracy = right.view({episodes, -1}).mean(1);
        return result;
    }

    /*
     * In float, also under autocast: half precision has too few digits for a sum of squares less another.
     */
    void add_vic(const torch::Tensor &support, const torch::Tensor &attention,
                 EpisodeLoss &result) {
        c10::impl::ExcludeDispatchKeyGuard in_float(c10::autocast_dispatch_keyset);
        torch::Tensor known = support.to(at::kFloat), centred = vic_centred(known.flatten(1, 2));
        result.variance = vic_variance(centred);
        result.covariance = covariance_of(centred);
        result.invariance = vic_invariance(known);
        if (options.vic_on_attention) add_attention(attention.to(at::kFloat), result);
        torch::Tensor weights = next_weights(result); /* [B, 3] */
        result.loss = result.loss + weights.select(1, 0) * result.variance +
                      weights.select(1, 1) * result.invariance +
                      weights.select(1, 2) * result.covariance;
    }

    torch::Tensor covariance_of(const torch::Tensor &centred) const {
        return options.by_matrix ? vic_covariance_by_matrix(centred) : vic_covariance(centred);
    }

    /* Of a tensor without its graph no gradient comes: then it is for the weights, and what is reported. */
    void add_attention(const torch::Tensor &attention, EpisodeLoss &result) const {
        torch::Tensor rows = (options.detach ? attention.detach() : attention).flatten(1, 2);
        torch::Tensor centred = vic_centred(rows);
        result.variance = result.variance + vic_variance(centred);
        result.covariance = result.covariance + covariance_of(centred);
    }

    /* [B, 3], of each episode; in training they go on from it to the next, and from chunk to chunk. */
    torch::Tensor next_weights(const EpisodeLoss &terms) {
        at::NoGradGuard no_grad;
        const torch::Tensor kept = vic_weights.cpu();
        const float *values = kept.const_data_ptr<float>();
        VicWeights weights{values[0], values[1], values[2]};
        if (!is_training() || !options.dynamic)
            return vic_weights.clone().unsqueeze(
                0); /* the buffer may change before the backward pass */
        const torch::Tensor sizes =
            at::stack({terms.cross_entropy, terms.variance, terms.covariance}, 1).cpu();
        std::vector<float> rows;
        for (int64_t b = 0; b < sizes.size(0); b++) {
            const float *size = sizes.const_data_ptr<float>() + 3 * b;
            rows.insert(rows.end(), {weights.alpha, weights.beta, weights.gamma});
            weights.follow(size[0], size[1], size[2]);
        }
        vic_weights.copy_(at::tensor({weights.alpha, weights.beta, weights.gamma}));
        return at::tensor(rows).view({-1, 3}).to(vic_weights.device());
    }

    static CosineTransformerOptions head_of(const profoct_model_options &o) {
        CosineTransformerOptions head;
        head.ways = o.ways;
        head.shots = o.shots;
        head.width = 8 * o.width * o.pool * o.pool;
        return head;
    }

    std::shared_ptr<Backbone> feature;
    torch::Tensor vic_weights; /* alpha, beta, gamma */
};

} // namespace memtrain_models

#endif
