/*
 * vit.hpp - a small vision transformer (Dosovitskiy et al. 2020, arXiv 2010.11929) with dropout: no
 * layer that sees the batch, but random numbers in every block.
 */
#ifndef NETWORKS_VIT_HPP
#define NETWORKS_VIT_HPP

#include <cstdint>
#include <memory>

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <memtrain/torch.hpp>

namespace networks {

struct VitOptions {
    int64_t classes = 10, side = 32;
    int64_t patch = 8, width = 96, heads = 3, depth = 4;
    double dropout = 0.1;
};

inline torch::nn::LayerNorm layer_norm(int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

/* x + attention(norm(x)), then x + MLP(norm(x)): [B, T, width] -> the same. */
class VitBlockImpl : public torch::nn::Module {
public:
    explicit VitBlockImpl(const VitOptions &o)
        : norm1(register_module("norm1", layer_norm(o.width))),
          norm2(register_module("norm2", layer_norm(o.width))),
          qkv(register_module("qkv", torch::nn::Linear(o.width, 3 * o.width))),
          project(register_module("project", torch::nn::Linear(o.width, o.width))),
          widen(register_module("widen", torch::nn::Linear(o.width, 4 * o.width))),
          narrow(register_module("narrow", torch::nn::Linear(4 * o.width, o.width))),
          heads_(o.heads), dropout_(o.dropout) {}

    torch::Tensor forward(torch::Tensor x) {
        x = x + drop(project(attention(norm1(x))));
        return x + drop(narrow(drop(at::gelu(widen(norm2(x))))));
    }

private:
    torch::Tensor drop(const torch::Tensor &x) { return at::dropout(x, dropout_, is_training()); }

    torch::Tensor attention(const torch::Tensor &x) {
        const int64_t count = x.size(0), tokens = x.size(1), width = x.size(2);
        torch::Tensor all = qkv(x).view({count, tokens, 3, heads_, width / heads_});
        all = all.permute({2, 0, 3, 1, 4}); /* [3, B, heads, T, width / heads] */
        torch::Tensor y = at::scaled_dot_product_attention(all[0], all[1], all[2], /*attn_mask=*/{},
                                                           is_training() ? dropout_ : 0.0);
        return y.transpose(1, 2).reshape({count, tokens, width});
    }
    torch::nn::LayerNorm norm1, norm2;
    torch::nn::Linear qkv, project, widen, narrow;
    int64_t heads_;
    double dropout_;
};
TORCH_MODULE(VitBlock);

/* [B, 3, side, side] -> [B, classes]. About 0.5 million parameters. */
class VitImpl : public torch::nn::Module {
public:
    explicit VitImpl(const VitOptions &o) : dropout_(o.dropout) {
        const int64_t tokens = 1 + (o.side / o.patch) * (o.side / o.patch);
        embed = register_module(
            "embed",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(3, o.width, o.patch).stride(o.patch)));
        class_token = register_parameter("class_token", at::zeros({1, 1, o.width}));
        positions = register_parameter("positions", 0.02 * at::randn({1, tokens, o.width}));
        blocks = register_module("blocks", torch::nn::Sequential());
        for (int64_t i = 0; i < o.depth; i++) blocks->push_back(VitBlock(o));
        norm = register_module("norm", layer_norm(o.width));
        fc = register_module("fc", torch::nn::Linear(o.width, o.classes));
    }
    torch::Tensor forward(const torch::Tensor &images) {
        torch::Tensor x = embed(images).flatten(2).transpose(1, 2); /* [B, T - 1, width] */
        x = at::cat({class_token.expand({x.size(0), -1, -1}), x}, 1) + positions;
        x = at::dropout(x, dropout_, is_training());
        x = memtrain::checkpoint_sequential(blocks, blocks->size(), x);
        return fc(norm(x.select(1, 0))); /* what became of the class token */
    }

private:
    torch::nn::Conv2d embed{nullptr};
    torch::Tensor class_token, positions;
    torch::nn::Sequential blocks{nullptr};
    torch::nn::LayerNorm norm{nullptr};
    torch::nn::Linear fc{nullptr};
    double dropout_;
};

} // namespace networks
#endif
