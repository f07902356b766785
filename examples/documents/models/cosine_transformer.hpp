/*
 * cosine_transformer.hpp - the head of FSCT (Nguyen et al. 2022, arXiv 2211.06828): from the features of an
 * episode's pictures to a score of each query for each class.
 *
 * An episode has `ways` classes of `shots` support pictures each, and queries. A class' prototype is a
 * weighted mean of its support; prototypes attend to a query, and the attention is the cosine between
 * the two, without a softmax. All functions take B episodes at once and treat each by itself.
 */
#ifndef MEMTRAIN_MODELS_COSINE_TRANSFORMER_HPP
#define MEMTRAIN_MODELS_COSINE_TRANSFORMER_HPP

#include <cstdint>
#include <memory>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace memtrain_models {

inline torch::nn::LayerNorm layer_norm(int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

inline torch::Tensor length_of(const torch::Tensor &x) {
    return at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, true);
}

/* 2 cos(x, v) in place of a linear layer without bias: [..., in] -> [..., 1]. */
class CosineLinearImpl : public torch::nn::Module {
public:
    explicit CosineLinearImpl(int64_t in) {
        torch::nn::Linear like(
            torch::nn::LinearOptions(in, 1).bias(false)); /* its initial values */
        torch::Tensor v = like->weight.detach();
        auto holder = register_module("L", std::make_shared<torch::nn::Module>("L"));
        weight_g = holder->register_parameter("weight_g", length_of(v));
        weight_v = holder->register_parameter("weight_v", v.clone());
    }

    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor weight = weight_v * (weight_g / length_of(weight_v));
        return at::linear(x / (length_of(x) + 1e-5), weight) * 2;
    }

    torch::Tensor weight_g, weight_v; /* [1, 1], [1, in] */
};
TORCH_MODULE(CosineLinear);

struct CosineTransformerOptions {
    int64_t ways = 5, shots = 5;
    int64_t width = 512; /* of the features, d */
    int64_t heads = 8, head_width = 64;
};

/* The one map W that queries, keys and values share, and the way back. */
class CosineAttentionImpl : public torch::nn::Module {
public:
    explicit CosineAttentionImpl(const CosineTransformerOptions &o) : heads(o.heads) {
        const int64_t inner = o.heads * o.head_width;
        input_linear = register_module(
            "input_linear",
            torch::nn::Sequential(
                layer_norm(o.width),
                torch::nn::Linear(torch::nn::LinearOptions(o.width, inner).bias(false))));
        output_linear = register_module("output_linear", torch::nn::Linear(inner, o.width));
    }

    /* prototypes [B, n, d], queries [B, Q, d] -> [B, Q, n, d]: what each prototype takes of each query */
    torch::Tensor forward(const torch::Tensor &prototypes, const torch::Tensor &queries) {
        torch::Tensor p = split(prototypes), q = split(queries); /* [B, h, n, w], [B, h, Q, w] */
        torch::Tensor cosine =
            at::matmul(q, p.transpose(2, 3)) / (length_of(q) * length_of(p).transpose(2, 3) + 1e-8);
        torch::Tensor taken = cosine.unsqueeze(4) * q.unsqueeze(3); /* [B, h, Q, n, w] */
        return output_linear(taken.permute({0, 2, 3, 1, 4}).flatten(3));
    }

private:
    torch::Tensor split(const torch::Tensor &x) {
        torch::Tensor y = input_linear->forward(x);
        return y.unflatten(2, {heads, y.size(2) / heads}).transpose(1, 2);
    }

    int64_t heads;
    torch::nn::Sequential input_linear{nullptr};
    torch::nn::Linear output_linear{nullptr};
};
TORCH_MODULE(CosineAttention);

/* What the head gives beside the scores, for terms of the loss. */
struct CosineScores {
    torch::Tensor scores;    /* [B, Q, n] */
    torch::Tensor attention; /* [B, Q, n, d] */
};

class CosineTransformerImpl : public torch::nn::Module {
public:
    explicit CosineTransformerImpl(const CosineTransformerOptions &o) {
        using torch::nn::Linear;
        const int64_t inner = o.heads * o.head_width;
        ATTN = register_module("ATTN", CosineAttention(o));
        proto_weight = register_parameter("proto_weight", at::ones({o.ways, o.shots, 1}));
        FFN = register_module("FFN",
                              torch::nn::Sequential(layer_norm(o.width), Linear(o.width, inner),
                                                    torch::nn::GELU(), Linear(inner, o.width)));
        linear = register_module("linear", torch::nn::Sequential(layer_norm(o.width),
                                                                 Linear(o.width, o.head_width),
                                                                 CosineLinear(o.head_width)));
    }

    /* support [B, n, k, d] -> [B, n, d]: weights belong to places among the shots, not to contents */
    torch::Tensor prototypes(const torch::Tensor &support) {
        return (support * proto_weight.softmax(1)).sum(2);
    }

    /* support [B, n, k, d], queries [B, Q, d] */
    CosineScores forward(const torch::Tensor &support, const torch::Tensor &queries) {
        torch::Tensor p = prototypes(support);
        torch::Tensor attention = ATTN->forward(p, queries);
        torch::Tensor x = attention + p.unsqueeze(1); /* [B, Q, n, d] */
        x = FFN->forward(x) + x;
        return {linear->forward(x).squeeze(3), attention};
    }

private:
    CosineAttention ATTN{nullptr};
    torch::Tensor proto_weight;
    torch::nn::Sequential FFN{nullptr}, linear{nullptr};
};

} // namespace memtrain_models

#endif
