/*
 * clip.hpp - the two towers of CLIP (Radford et al. 2021, arXiv 2103.00020) as a torch::nn module: a vision
 * transformer, a text transformer, and the scale of the logits between their embeddings.
 *
 *     memtrain_models::Clip net(memtrain_models::ClipOptions{});
 *     torch::Tensor i = net->encode_image(pictures); // [B, 3, side, side] -> [B, embedding]
 *     torch::Tensor t = net->encode_text(tokens);    // [B, context]       -> [B, embedding]
 *
 * Names, shapes and initial values of the parameters are those of the published network, so that its
 * weights can be loaded by name. A text is read at its largest token, which has to be the one that ends
 * it. Each block of the towers is a segment that can be computed again in the backward pass
 * (memtrain::checkpoint).
 */
#ifndef MEMTRAIN_MODELS_CLIP_HPP
#define MEMTRAIN_MODELS_CLIP_HPP

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <memtrain/torch.hpp>

#include "clip_resnet.hpp"

namespace memtrain_models {

/* A stack of blocks; one head for each 64 of its width. */
struct ClipTower {
    int64_t width, layers;
};

struct ClipOptions {
    ClipTower image{192, 6}, text{192, 4};
    int64_t embedding = 192;
    int64_t side = 96, patch = 16;          /* of the pictures, in pixels */
    int64_t vocabulary = 259, context = 64; /* of the texts, in tokens */
    int64_t resnet_width = 0; /* above 0: a ResNet-50 in the place of `image`; 64 as published */
    bool frozen_norm = false; /* of its batch norm, see clip_resnet.hpp */
};

constexpr int64_t clip_head = 64;

inline torch::nn::LayerNorm clip_norm(int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

inline at::Tensor clip_normal(at::IntArrayRef shape, double deviation) {
    return at::empty(shape).normal_(0.0, deviation);
}

/* Among all tokens of a sample, or among those up to each: [B, T, width] -> the same. */
class ClipAttentionImpl : public torch::nn::Module {
public:
    ClipAttentionImpl(int64_t width, bool causal)
        : in_proj_weight(register_parameter("in_proj_weight", at::empty({3 * width, width}))),
          in_proj_bias(register_parameter("in_proj_bias", at::zeros({3 * width}))),
          out_proj(register_module("out_proj", torch::nn::Linear(width, width))), causal_(causal) {
        torch::nn::init::xavier_uniform_(in_proj_weight);
        torch::nn::init::zeros_(out_proj->bias);
    }

    torch::Tensor forward(const torch::Tensor &x) {
        const int64_t count = x.size(0), tokens = x.size(1), width = x.size(2);
        torch::Tensor all = at::linear(x, in_proj_weight, in_proj_bias)
                                .view({count, tokens, 3, width / clip_head, clip_head})
                                .permute({2, 0, 3, 1, 4}); /* [3, B, heads, T, clip_head] */
        torch::Tensor y = at::scaled_dot_product_attention(all[0], all[1], all[2], /*attn_mask=*/{},
                                                           /*dropout_p=*/0.0, causal_);
        return out_proj(y.transpose(1, 2).reshape({count, tokens, width}));
    }

    torch::Tensor in_proj_weight, in_proj_bias;
    torch::nn::Linear out_proj;

private:
    bool causal_;
};
TORCH_MODULE(ClipAttention);

/* x * sigmoid(1.702 x), a GELU that is quick to compute, is what the published weights were trained with. */
class ClipMlpImpl : public torch::nn::Module {
public:
    explicit ClipMlpImpl(int64_t width)
        : c_fc(register_module("c_fc", torch::nn::Linear(width, 4 * width))),
          c_proj(register_module("c_proj", torch::nn::Linear(4 * width, width))) {}

    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor wide = c_fc(x);
        return c_proj(wide * at::sigmoid(1.702 * wide));
    }

    torch::nn::Linear c_fc, c_proj;
};
TORCH_MODULE(ClipMlp);

class ClipBlockImpl : public torch::nn::Module {
public:
    ClipBlockImpl(int64_t width, bool causal)
        : attn(register_module("attn", ClipAttention(width, causal))),
          ln_1(register_module("ln_1", clip_norm(width))),
          mlp(register_module("mlp", ClipMlp(width))),
          ln_2(register_module("ln_2", clip_norm(width))) {}

    torch::Tensor forward(torch::Tensor x) {
        x = x + attn(ln_1(x));
        return x + mlp(ln_2(x));
    }

    /* As the text tower begins: each way back to the input counts as much, however deep the tower. */
    void reset(int64_t width, int64_t layers) {
        const auto w = static_cast<double>(width), l = static_cast<double>(layers);
        const double narrow = 1 / std::sqrt(w), out = narrow / std::sqrt(2 * l);
        torch::nn::init::normal_(attn->in_proj_weight, 0.0, narrow);
        torch::nn::init::normal_(attn->out_proj->weight, 0.0, out);
        torch::nn::init::normal_(mlp->c_fc->weight, 0.0, 1 / std::sqrt(2 * w));
        torch::nn::init::normal_(mlp->c_proj->weight, 0.0, out);
    }

    ClipAttention attn;
    torch::nn::LayerNorm ln_1;
    ClipMlp mlp;
    torch::nn::LayerNorm ln_2;
};
TORCH_MODULE(ClipBlock);

class ClipTransformerImpl : public torch::nn::Module {
public:
    ClipTransformerImpl(const ClipTower &tower, bool causal) {
        torch::nn::Sequential blocks;
        for (int64_t i = 0; i < tower.layers; i++)
            blocks->push_back(ClipBlock(tower.width, causal));
        resblocks = register_module("resblocks", blocks);
    }
    torch::Tensor forward(const torch::Tensor &x) {
        return memtrain::checkpoint_sequential(resblocks, resblocks->size(), x);
    }
    torch::nn::Sequential resblocks{nullptr};
};
TORCH_MODULE(ClipTransformer);

/* Pictures in patches, read at a token of its own: [B, 3, side, side] -> [B, embedding]. */
class ClipVisualImpl : public torch::nn::Module {
public:
    explicit ClipVisualImpl(const ClipOptions &o) {
        const int64_t w = o.image.width, patches = (o.side / o.patch) * (o.side / o.patch);
        const double deviation = 1 / std::sqrt(static_cast<double>(w));
        class_embedding = register_parameter("class_embedding", clip_normal({w}, deviation));
        positional_embedding =
            register_parameter("positional_embedding", clip_normal({patches + 1, w}, deviation));
        proj = register_parameter("proj", clip_normal({w, o.embedding}, deviation));
        auto patch = torch::nn::Conv2dOptions(3, w, o.patch).stride(o.patch).bias(false);
        conv1 = register_module("conv1", torch::nn::Conv2d(patch));
        ln_pre = register_module("ln_pre", clip_norm(w));
        transformer = register_module("transformer", ClipTransformer(o.image, /*causal=*/false));
        ln_post = register_module("ln_post", clip_norm(w));
    }

    torch::Tensor forward(const torch::Tensor &pictures) {
        torch::Tensor x = conv1(pictures).flatten(2).transpose(1, 2); /* [B, patches, w] */
        torch::Tensor first = class_embedding.to(x.scalar_type()).expand({x.size(0), 1, -1});
        x = transformer(ln_pre(at::cat({first, x}, 1) + positional_embedding));
        return ln_post(x.select(1, 0)).matmul(proj);
    }

    torch::Tensor class_embedding, positional_embedding, proj;
    torch::nn::Conv2d conv1{nullptr};
    torch::nn::LayerNorm ln_pre{nullptr}, ln_post{nullptr};
    ClipTransformer transformer{nullptr};
};
TORCH_MODULE(ClipVisual);

inline void clip_check_width(const char *tower, const ClipTower &t) {
    if (t.width >= clip_head && t.width % clip_head == 0 && t.layers >= 1) return;
    throw std::invalid_argument("Clip: the " + std::string(tower) + " tower is " +
                                std::to_string(t.width) + " wide and has " +
                                std::to_string(t.layers) +
                                " layers; needed are a multiple of 64, and at least 1");
}

class ClipImpl : public torch::nn::Module {
public:
    explicit ClipImpl(const ClipOptions &o) {
        if (!o.resnet_width) clip_check_width("image", o.image);
        clip_check_width("text", o.text);
        const int64_t w = o.text.width;
        positional_embedding =
            register_parameter("positional_embedding", clip_normal({o.context, w}, 0.01));
        text_projection = register_parameter(
            "text_projection",
            clip_normal({w, o.embedding}, 1 / std::sqrt(static_cast<double>(w))));
        logit_scale = register_parameter("logit_scale", at::full({}, std::log(1 / 0.07)));
        if (o.resnet_width) {
            ClipResNetOptions tower{o.resnet_width, o.side, o.embedding, o.frozen_norm};
            visual_resnet = register_module("visual", ClipResNet(tower));
        } else {
            visual = register_module("visual", ClipVisual(o));
        }
        transformer = register_module("transformer", ClipTransformer(o.text, /*causal=*/true));
        token_embedding = register_module("token_embedding", torch::nn::Embedding(o.vocabulary, w));
        ln_final = register_module("ln_final", clip_norm(w));
        torch::nn::init::normal_(token_embedding->weight, 0.0, 0.02);
        for (const auto &block : transformer->resblocks->children())
            block->as<ClipBlockImpl>()->reset(w, o.text.layers);
    }

    torch::Tensor encode_image(const torch::Tensor &pictures) {
        return visual ? visual(pictures) : visual_resnet(pictures);
    }

    /* What stands behind a text's end cannot reach it under the causal mask. */
    torch::Tensor encode_text(const torch::Tensor &tokens) {
        torch::Tensor x = ln_final(transformer(token_embedding(tokens) + positional_embedding));
        torch::Tensor end = tokens.argmax(1).view({-1, 1, 1}).expand({-1, 1, x.size(2)});
        return x.gather(1, end).squeeze(1).matmul(text_projection);
    }

    torch::Tensor positional_embedding, text_projection, logit_scale;
    ClipVisual visual{nullptr};
    ClipResNet visual_resnet{nullptr}; /* one of the two */
    ClipTransformer transformer{nullptr};
    torch::nn::Embedding token_embedding{nullptr};
    torch::nn::LayerNorm ln_final{nullptr};
};
TORCH_MODULE(Clip);

} // namespace memtrain_models

#endif
