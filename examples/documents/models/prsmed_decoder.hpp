/*
 * prsmed_decoder.hpp - from a grid of features and the states of a prompt to the logits of a mask: the
 * graph of PRS-Med's mask decoder (Trinh et al., arXiv 2505.11872) in any size.
 *
 *     memtrain_models::MaskDecoder decoder(memtrain_models::MaskDecoderOptions{});
 *     torch::Tensor logits = decoder->forward(features, states, tokens); // [B, 1, g, g]
 *
 * The picture's tokens ask, the prompt's answer; then the tokens see each other, the features come back in,
 * and convolutions on the grid draw the mask. Two things are not as published, and cost no parameter: what
 * the attention gives is added to the token that asked (published: it replaces it), and of the norms in front
 * of and behind the last MLP both are used (published: one of them is idle).
 */
#ifndef MEMTRAIN_MODELS_PRSMED_DECODER_HPP
#define MEMTRAIN_MODELS_PRSMED_DECODER_HPP

#include "prsmed_vision.hpp"

#include <ATen/ops/dropout.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/instancenorm.h>

namespace memtrain_models {

struct MaskDecoderOptions {
    int64_t prompt = 128,
            hidden = 128; /* widths of the prompt's states, and between its two layers */
    int64_t image = 64;   /* channels of the grid, a multiple of 32 */
    int64_t ff = 128;
    double dropout = 0.1; /* of the one transformer layer */
};

/* Attention with weights of its own for query, key and value: 4 (w^2 + w) parameters. */
class AttentionImpl : public torch::nn::Module {
public:
    AttentionImpl(int64_t width, int64_t heads)
        : query(register_module("query", torch::nn::Linear(width, width))),
          key(register_module("key", torch::nn::Linear(width, width))),
          value(register_module("value", torch::nn::Linear(width, width))),
          project(register_module("project", torch::nn::Linear(width, width))), heads_(heads) {}

    /* [B, T, width] asks [B, S, width]; mask [B, 1, 1, S]: false where nobody is to look. */
    torch::Tensor forward(const torch::Tensor &x, const torch::Tensor &from,
                          const torch::Tensor &mask = {}) {
        c10::optional<torch::Tensor> seen;
        if (mask.defined()) seen = mask;
        return project(join_heads(at::scaled_dot_product_attention(
            split_heads(query(x), heads_), split_heads(key(from), heads_),
            split_heads(value(from), heads_), seen)));
    }

private:
    torch::nn::Linear query, key, value, project;
    int64_t heads_;
};
TORCH_MODULE(Attention);

/* A post-norm transformer layer over the tokens of the picture. */
class PostNormLayerImpl : public torch::nn::Module {
public:
    PostNormLayerImpl(const MaskDecoderOptions &o, int64_t heads)
        : attention(register_module("attention", Attention(o.image, heads))),
          norm1(register_module("norm1", prsmed_norm(o.image))),
          widen(register_module("widen", torch::nn::Linear(o.image, o.ff))),
          narrow(register_module("narrow", torch::nn::Linear(o.ff, o.image))),
          norm2(register_module("norm2", prsmed_norm(o.image))), dropout_(o.dropout) {}

    torch::Tensor forward(torch::Tensor x) {
        x = norm1(x + drop(attention(x, x)));
        return norm2(x + drop(narrow(drop(widen(x).relu_()))));
    }

private:
    torch::Tensor drop(const torch::Tensor &x) { return at::dropout(x, dropout_, is_training()); }

    Attention attention;
    torch::nn::LayerNorm norm1;
    torch::nn::Linear widen, narrow;
    torch::nn::LayerNorm norm2;
    double dropout_;
};
TORCH_MODULE(PostNormLayer);

inline torch::nn::Conv2d prsmed_conv(int64_t in, int64_t out, int64_t kernel, int64_t padding) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).padding(padding));
}

inline torch::nn::InstanceNorm2d instance_norm(int64_t width) {
    return torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(width).affine(true));
}

/* [B, in, g, g] -> [B, out, g, g]; the 1x1 grows a border that the second 3x3 takes off again. */
class MaskBlockImpl : public torch::nn::Module {
public:
    MaskBlockImpl(int64_t in, int64_t out)
        : conv1(register_module("conv1", prsmed_conv(in, in, 3, 1))),
          norm1(register_module("norm1", instance_norm(in))),
          conv2(register_module("conv2", prsmed_conv(in, out, 1, 1))),
          norm2(register_module("norm2", instance_norm(out))),
          conv3(register_module("conv3", prsmed_conv(out, out, 3, 0))) {}

    torch::Tensor forward(const torch::Tensor &x) {
        return conv3(norm2(conv2(norm1(conv1(x)).relu_() + x)));
    }

private:
    torch::nn::Conv2d conv1;
    torch::nn::InstanceNorm2d norm1;
    torch::nn::Conv2d conv2;
    torch::nn::InstanceNorm2d norm2;
    torch::nn::Conv2d conv3;
};
TORCH_MODULE(MaskBlock);

class MaskDecoderImpl : public torch::nn::Module {
public:
    explicit MaskDecoderImpl(const MaskDecoderOptions &o) {
        prompt1 = register_module("prompt1", torch::nn::Linear(o.prompt, o.hidden));
        prompt_norm1 = register_module("prompt_norm1", prsmed_norm(o.hidden));
        prompt2 = register_module("prompt2", torch::nn::Linear(o.hidden, o.image));
        prompt_norm2 = register_module("prompt_norm2", prsmed_norm(o.image));
        attention = register_module("attention", Attention(o.image, o.image / 32));
        norm = register_module("norm", prsmed_norm(o.image));
        layer = register_module("layer", PostNormLayer(o, o.image / 16));
        ffn_norm1 = register_module("ffn_norm1", prsmed_norm(o.image));
        ffn1 = register_module("ffn1", torch::nn::Linear(o.image, o.image));
        ffn2 = register_module("ffn2", torch::nn::Linear(o.image, o.image));
        ffn_norm2 = register_module("ffn_norm2", prsmed_norm(o.image));
        draw = register_module("draw", torch::nn::Sequential(MaskBlock(o.image, o.image),
                                                             MaskBlock(o.image, o.image / 2),
                                                             MaskBlock(o.image / 2, o.image / 4)));
        out =
            register_module("out", torch::nn::Conv2d(torch::nn::Conv2dOptions(o.image / 4, 1, 1)));
        initialise();
    }

    /* [B, image, g, g], [B, T, prompt], and false for padding in [B, T] -> logits [B, 1, g, g]. */
    torch::Tensor forward(const torch::Tensor &features, const torch::Tensor &states,
                          const torch::Tensor &is_text) {
        auto fuse = [this](const memtrain::Tensors &in) {
            return memtrain::Tensors{mix(in[0], project(in[1]), in[2])};
        };
        torch::Tensor x = memtrain::checkpoint(fuse, {features, states, is_text}, 1)[0];
        x = memtrain::checkpoint_sequential(draw, draw->size(), x);
        return out(x);
    }

private:
    torch::Tensor project(const torch::Tensor &states) {
        return prompt_norm2(prompt2(prompt_norm1(prompt1(states)).relu_())).relu_();
    }

    torch::Tensor mix(const torch::Tensor &features, const torch::Tensor &prompt,
                      const torch::Tensor &is_text) {
        torch::Tensor tokens = features.flatten(2).transpose(1, 2); /* [B, g g, image] */
        torch::Tensor mask = is_text.unsqueeze(1).unsqueeze(1);     /* [B, 1, 1, T] */
        torch::Tensor x = layer(norm(tokens + attention(tokens, prompt, mask)));
        x = ffn_norm2(ffn2(ffn1(ffn_norm1(x)).relu_() + x).relu_());
        return (tokens + x).transpose(1, 2).reshape(features.sizes());
    }

    /* Linear layers as published; norms and convolutions begin as libtorch has them. */
    void initialise() {
        for (const auto &module : modules(/*include_self=*/false))
            if (auto *linear = module->as<torch::nn::Linear>()) {
                torch::nn::init::xavier_uniform_(linear->weight);
                torch::nn::init::zeros_(linear->bias);
            }
    }

    torch::nn::Linear prompt1{nullptr}, prompt2{nullptr}, ffn1{nullptr}, ffn2{nullptr};
    torch::nn::LayerNorm prompt_norm1{nullptr}, prompt_norm2{nullptr}, norm{nullptr};
    torch::nn::LayerNorm ffn_norm1{nullptr}, ffn_norm2{nullptr};
    Attention attention{nullptr};
    PostNormLayer layer{nullptr};
    torch::nn::Sequential draw{nullptr};
    torch::nn::Conv2d out{nullptr};
};
TORCH_MODULE(MaskDecoder);

} // namespace memtrain_models

#endif
