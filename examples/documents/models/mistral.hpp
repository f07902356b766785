/*
 * mistral.hpp - a decoder language model of Mistral-7B's shape (Jiang et al. 2023, arXiv 2310.06825): RMSNorm, rotary
 * positions, queries in groups that share keys and values, SwiGLU. It does not train.
 *
 *     memtrain_models::Mistral net(memtrain_models::mistral_options("7b"), at::kFloat);
 *     torch::Tensor states = net->forward(tokens); // int64 [B, T] -> [B, T, width]
 *
 * Parameters have transformers' names ("model.layers.0.self_attn.q_proj.weight"). Until they are mapped, loaded or drawn
 * they have shapes and no memory. Each layer is a frozen block (memtrain/torch_map.hpp).
 */
#ifndef MEMTRAIN_MODELS_MISTRAL_HPP
#define MEMTRAIN_MODELS_MISTRAL_HPP

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <memtrain/torch_map.hpp>

namespace memtrain_models {

struct MistralOptions {
    int64_t vocabulary, width, layers, heads, key_heads, hidden;
    double base = 10000, epsilon = 1e-5;
};

/* tiny, 500m (the shape of h2o-danube3-500m), 1.1b (TinyLlama's), 7b (Mistral-7B's). */
inline MistralOptions mistral_options(const std::string &name) {
    if (name == "tiny") return {300, 64, 3, 4, 2, 160};
    if (name == "500m") return {32000, 1536, 16, 16, 8, 4096};
    if (name == "1.1b") return {32000, 2048, 22, 32, 4, 5632};
    if (name == "7b") return {32000, 4096, 32, 32, 8, 14336};
    throw std::invalid_argument("no language model is called " + name);
}

/* A matrix [out, in] or the scale of a norm. */
struct FrozenWeightImpl : torch::nn::Module {
    torch::Tensor weight;

    FrozenWeightImpl(at::IntArrayRef shape, at::ScalarType dtype)
        : weight(register_parameter("weight", at::zeros({1}, dtype).expand(shape), false)) {}
};
TORCH_MODULE(FrozenWeight);

/* x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension; the mean in float32. */
inline torch::Tensor rms_norm(const torch::Tensor &x, const torch::Tensor &weight, double epsilon) {
    torch::Tensor wide = x.to(at::kFloat);
    wide = wide * at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + epsilon);
    return wide.to(x.scalar_type()) * weight;
}

/* Cosines and sines of the angles position * base^(-2i/d): [T, d] each, both halves alike. */
struct Rotation {
    torch::Tensor cosines, sines;

    Rotation(int64_t tokens, int64_t d, double base, at::ScalarType dtype) {
        torch::Tensor powers = at::arange(0, d, 2, at::kFloat) / static_cast<double>(d);
        torch::Tensor angles = at::outer(at::arange(tokens, at::kFloat), at::pow(base, -powers));
        angles = at::cat({angles, angles}, 1);
        cosines = angles.cos().to(dtype);
        sines = angles.sin().to(dtype);
    }

    /* [B, heads, T, d] -> the same: dimension i turns with dimension i + d / 2. */
    torch::Tensor turn(const torch::Tensor &x) const {
        const auto halves = x.chunk(2, -1);
        return x * cosines + at::cat({-halves[1], halves[0]}, -1) * sines;
    }
};

class MistralAttentionImpl : public torch::nn::Module {
public:
    MistralAttentionImpl(const MistralOptions &o, at::ScalarType dtype) : options(o) {
        const int64_t d = o.width / o.heads;
        q = register_module("q_proj", FrozenWeight(at::IntArrayRef{o.heads * d, o.width}, dtype));
        k = register_module("k_proj",
                            FrozenWeight(at::IntArrayRef{o.key_heads * d, o.width}, dtype));
        v = register_module("v_proj",
                            FrozenWeight(at::IntArrayRef{o.key_heads * d, o.width}, dtype));
        o_ = register_module("o_proj", FrozenWeight(at::IntArrayRef{o.width, o.heads * d}, dtype));
    }
    torch::Tensor forward(const torch::Tensor &x) {
        const int64_t group = options.heads / options.key_heads;
        const Rotation rotation(x.size(1), options.width / options.heads, options.base,
                                x.scalar_type());
        torch::Tensor queries = rotation.turn(split(at::linear(x, q->weight), options.heads));
        torch::Tensor keys = rotation.turn(split(at::linear(x, k->weight), options.key_heads));
        torch::Tensor values = split(at::linear(x, v->weight), options.key_heads);
        torch::Tensor y = at::scaled_dot_product_attention(
            queries, keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1),
            /*attn_mask=*/{}, 0.0, /*is_causal=*/true);
        return at::linear(y.transpose(1, 2).flatten(2), o_->weight);
    }

private:
    /* [B, T, heads * d] -> [B, heads, T, d] */
    static torch::Tensor split(const torch::Tensor &x, int64_t heads) {
        return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
    }
    MistralOptions options;
    FrozenWeight q{nullptr}, k{nullptr}, v{nullptr}, o_{nullptr};
};
TORCH_MODULE(MistralAttention);

class MistralMlpImpl : public torch::nn::Module {
public:
    MistralMlpImpl(const MistralOptions &o, at::ScalarType dtype)
        : gate(register_module("gate_proj",
                               FrozenWeight(at::IntArrayRef{o.hidden, o.width}, dtype))),
          up(register_module("up_proj", FrozenWeight(at::IntArrayRef{o.hidden, o.width}, dtype))),
          down(register_module("down_proj",
                               FrozenWeight(at::IntArrayRef{o.width, o.hidden}, dtype))) {}
    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor wide = at::silu(at::linear(x, gate->weight)) * at::linear(x, up->weight);
        return at::linear(wide, down->weight);
    }

private:
    FrozenWeight gate, up, down;
};
TORCH_MODULE(MistralMlp);

class MistralLayerImpl : public torch::nn::Module {
public:
    MistralLayerImpl(const MistralOptions &o, at::ScalarType dtype)
        : attention(register_module("self_attn", MistralAttention(o, dtype))),
          mlp(register_module("mlp", MistralMlp(o, dtype))),
          norm1(register_module("input_layernorm", FrozenWeight(at::IntArrayRef{o.width}, dtype))),
          norm2(register_module("post_attention_layernorm",
                                FrozenWeight(at::IntArrayRef{o.width}, dtype))),
          epsilon(o.epsilon) {}

    /* Without a graph some rows at a time: the weights stay, and so little else is there at once. */
    torch::Tensor forward(const torch::Tensor &x) {
        const int64_t rows = std::max<int64_t>(1, most_tokens / std::max<int64_t>(x.size(1), 1));
        if (c10::GradMode::is_enabled() || x.size(0) <= rows) return some(x);
        std::vector<torch::Tensor> parts;
        for (const torch::Tensor &part : x.split(rows)) parts.push_back(some(part));
        return at::cat(parts);
    }

private:
    static constexpr int64_t most_tokens = 512;

    torch::Tensor some(torch::Tensor x) {
        x = x + attention(rms_norm(x, norm1->weight, epsilon));
        return x + mlp(rms_norm(x, norm2->weight, epsilon));
    }
    MistralAttention attention;
    MistralMlp mlp;
    FrozenWeight norm1, norm2;
    double epsilon;
};
TORCH_MODULE(MistralLayer);

/* What transformers calls "model": without the head. */
class MistralBodyImpl : public torch::nn::Module {
public:
    MistralBodyImpl(const MistralOptions &o, at::ScalarType dtype) : options(o), computes(dtype) {
        embedding = register_module("embed_tokens",
                                    FrozenWeight(at::IntArrayRef{o.vocabulary, o.width}, dtype));
        auto list = register_module("layers", std::make_shared<torch::nn::Module>());
        for (int64_t i = 0; i < o.layers; i++)
            layers.push_back(list->register_module(std::to_string(i), MistralLayer(o, dtype)));
        norm = register_module("norm", FrozenWeight(at::IntArrayRef{o.width}, dtype));
    }
    torch::Tensor forward(const torch::Tensor &tokens) {
        torch::Tensor x =
            at::embedding(embedding->weight, tokens).to(computes); /* its rows alone */
        for (MistralLayer &layer : layers) x = memtrain::frozen(layer, x);
        return rms_norm(x, norm->weight.to(computes), options.epsilon);
    }

private:
    MistralOptions options;
    at::ScalarType computes;
    FrozenWeight embedding{nullptr}, norm{nullptr};
    std::vector<MistralLayer> layers;
};
TORCH_MODULE(MistralBody);

class MistralImpl : public torch::nn::Module {
public:
    /* dtype: that it computes in, whatever the file has. */
    MistralImpl(const MistralOptions &o, at::ScalarType dtype)
        : body(register_module("model", MistralBody(o, dtype))),
          head(register_module("lm_head",
                               FrozenWeight(at::IntArrayRef{o.vocabulary, o.width}, dtype))),
          computes(dtype) {}

    /* The normed states of the last layer: int64 [B, T] -> [B, T, width]. */
    torch::Tensor forward(const torch::Tensor &tokens) { return body(tokens); }

    /* [B, T] -> [B, T, vocabulary] */
    torch::Tensor logits(const torch::Tensor &tokens) {
        auto multiply = [head = head](const memtrain::Tensors &in) {
            return memtrain::Tensors{at::linear(in[0], head->weight)};
        };
        return memtrain::frozen_block(multiply, {forward(tokens)}, 1, {head.ptr()})[0];
    }

    /* Mean cross entropy of each token but the first, from those before it. */
    torch::Tensor loss(const torch::Tensor &tokens) {
        torch::Tensor guesses = logits(tokens.narrow(1, 0, tokens.size(1) - 1)).to(at::kFloat);
        return at::cross_entropy_loss(guesses.flatten(0, 1),
                                      tokens.narrow(1, 1, tokens.size(1) - 1).flatten());
    }

    /* Numbers, not bytes. */
    int64_t size() const {
        int64_t all = 0;
        for (const torch::Tensor &parameter : parameters()) all += parameter.numel();
        return all;
    }

    /* In memory, from libtorch's generator: norms are 1, all else has a deviation of 0.02. */
    void draw() {
        torch::NoGradGuard no_grad;
        allocate();
        for (torch::Tensor &parameter : parameters())
            (void)(parameter.dim() == 1 ? parameter.fill_(1) : parameter.normal_(0, 0.02));
    }

    /* Memory alone, for who wants to see what it takes. */
    void allocate() {
        for (torch::Tensor &parameter : parameters())
            parameter.set_data(at::empty(parameter.sizes(), parameter.scalar_type()));
    }

private:
    MistralBody body;
    FrozenWeight head;
    at::ScalarType computes;
};
TORCH_MODULE(Mistral);

} // namespace memtrain_models

#endif
