/*
 * prsmed_vision.hpp - two encoders of pictures, from [B, 3, side, side] to a grid of features [B, C, g, g]:
 * a small convolutional one that learns within minutes, and a ViT-Ti/8 (Dosovitskiy et al. 2020, arXiv
 * 2010.11929). Neither has a layer that sees the batch. Each block is a segment (memtrain::checkpoint).
 */
#ifndef MEMTRAIN_MODELS_PRSMED_VISION_HPP
#define MEMTRAIN_MODELS_PRSMED_VISION_HPP

#include "prsmed_text.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <torch/nn/modules/conv.h>

namespace memtrain_models {

/* A 3x3 convolution and GroupNorm: [B, in, H, W] -> [B, out, H / stride, W / stride]. */
class ConvGroupNormImpl : public torch::nn::Module {
public:
    ConvGroupNormImpl(int64_t in, int64_t out, int64_t stride)
        : conv(register_module(
              "conv",
              torch::nn::Conv2d(
                  torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)))),
          norm(register_module("norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(8, out)))) {
    }

    torch::Tensor forward(const torch::Tensor &x) { return norm(conv(x)); }

private:
    torch::nn::Conv2d conv;
    torch::nn::GroupNorm norm;
};
TORCH_MODULE(ConvGroupNorm);

/* Two of these around the input: [B, width, H, W] -> the same. */
class ConvBlockImpl : public torch::nn::Module {
public:
    explicit ConvBlockImpl(int64_t width)
        : first(register_module("first", ConvGroupNorm(width, width, 1))),
          second(register_module("second", ConvGroupNorm(width, width, 1))) {}

    torch::Tensor forward(const torch::Tensor &x) { return (second(first(x).relu_()) + x).relu_(); }

private:
    ConvGroupNorm first, second;
};
TORCH_MODULE(ConvBlock);

/* LayerNorm over the channels of each pixel: [B, C, H, W] -> the same. */
inline torch::Tensor norm_channels(torch::nn::LayerNorm &norm, const torch::Tensor &x) {
    return norm(x.permute({0, 2, 3, 1})).permute({0, 3, 1, 2});
}

/* A grid of features. */
class VisionEncoder : public torch::nn::Module {
public:
    virtual torch::Tensor forward(const torch::Tensor &pictures) = 0;
};

/*
 * Where each token of a grid is: sines and cosines of x and y at frequencies from 1 to 8, [1, width, g, g].
 * Near tokens have near codes, so that what is learnt of one place holds beside it.
 */
inline torch::Tensor grid_codes(int64_t width, int64_t grid) {
    torch::Tensor line = at::linspace(-1, 1, grid), rates = at::logspace(0, 3, width / 4, 2);
    torch::Tensor angles = rates.unsqueeze(1) * line;               /* [width / 4, g] */
    torch::Tensor codes = at::cat({angles.sin(), angles.cos()}, 0); /* [width / 2, g] */
    torch::Tensor x = codes.unsqueeze(1).expand({-1, grid, grid});
    return at::cat({x, x.transpose(1, 2)}, 0).unsqueeze(0);
}

/* Stride 4: two convolutions that halve the sides, blocks, and where a token is, learnt from there on. */
class ConvEncoderImpl : public VisionEncoder {
public:
    static constexpr int64_t stride = 4, width = 64, depth = 3;

    explicit ConvEncoderImpl(int64_t side)
        : stem1(register_module("stem1", ConvGroupNorm(3, width / 2, 2))),
          stem2(register_module("stem2", ConvGroupNorm(width / 2, width, 2))),
          blocks(register_module("blocks", torch::nn::Sequential())),
          norm(register_module("norm", prsmed_norm(width))) {
        for (int64_t i = 0; i < depth; i++) blocks->push_back(ConvBlock(width));
        positions = register_parameter("positions", grid_codes(width, side / stride));
    }

    torch::Tensor forward(const torch::Tensor &pictures) override {
        auto stem = [this](const torch::Tensor &x) { return stem2(stem1(x).relu_()).relu_(); };
        torch::Tensor x = memtrain::checkpoint(stem, pictures, {stem1.ptr(), stem2.ptr()});
        x = memtrain::checkpoint_sequential(blocks, blocks->size(), x);
        return norm_channels(norm, x) + positions;
    }

private:
    ConvGroupNorm stem1, stem2;
    torch::nn::Sequential blocks;
    torch::nn::LayerNorm norm;
    torch::Tensor positions;
};
TORCH_MODULE(ConvEncoder);

/* Patches of 8 x 8 pixels, 12 blocks of width 192, no class token. */
class VitEncoderImpl : public VisionEncoder {
public:
    static constexpr int64_t stride = 8, width = 192, depth = 12, heads = 3;

    explicit VitEncoderImpl(int64_t side)
        : embed(register_module(
              "embed",
              torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, stride).stride(stride)))) {
        const int64_t grid = side / stride;
        positions = register_parameter("positions", 0.02 * at::randn({1, grid * grid, width}));
        blocks = register_module("blocks", torch::nn::Sequential());
        for (int64_t i = 0; i < depth; i++)
            blocks->push_back(PreNormBlock(BlockOptions{width, heads, false}));
        norm = register_module("norm", prsmed_norm(width));
    }

    torch::Tensor forward(const torch::Tensor &pictures) override {
        torch::Tensor grid = embed(pictures); /* [B, width, g, g] */
        torch::Tensor x = grid.flatten(2).transpose(1, 2) + positions;
        x = norm(memtrain::checkpoint_sequential(blocks, blocks->size(), x));
        return x.transpose(1, 2).reshape(grid.sizes());
    }

private:
    torch::nn::Conv2d embed;
    torch::Tensor positions;
    torch::nn::Sequential blocks{nullptr};
    torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(VitEncoder);

} // namespace memtrain_models

#endif
