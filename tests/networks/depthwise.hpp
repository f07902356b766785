/*
 * depthwise.hpp - a small network of inverted residuals (MobileNetV2, Sandler et al. 2018, arXiv
 * 1801.04381): depthwise convolutions, whose kernels change with the size of the chunk.
 */
#ifndef NETWORKS_DEPTHWISE_HPP
#define NETWORKS_DEPTHWISE_HPP

#include <cstdint>
#include <memory>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/relu6.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <memtrain/torch.hpp>

namespace networks {

/* Convolution and batch norm: [B, in, H, W] -> [B, out, H/stride, W/stride]; ReLU6 if asked for. */
class ConvNormImpl : public torch::nn::Module {
public:
    ConvNormImpl(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t groups, bool relu)
        : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                                                             .stride(stride)
                                                             .padding(kernel / 2)
                                                             .groups(groups)
                                                             .bias(false)))),
          norm(register_module("norm", torch::nn::BatchNorm2d(out))), relu_(relu) {
        torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor y = norm(conv(x));
        return relu_ ? at::relu6_(y) : y; /* in place: batch norm does not need what came out */
    }

private:
    torch::nn::Conv2d conv;
    torch::nn::BatchNorm2d norm;
    bool relu_;
};
TORCH_MODULE(ConvNorm);

/* Widen by 1x1, 3x3 each channel for itself, narrow by 1x1; around it where the shape stays. */
class InvertedResidualImpl : public torch::nn::Module {
public:
    static constexpr int64_t expansion = 6;

    InvertedResidualImpl(int64_t in, int64_t out, int64_t stride)
        : around_(stride == 1 && in == out) {
        const int64_t wide = expansion * in;
        widen = register_module("widen", ConvNorm(in, wide, 1, 1, 1, true));
        depthwise = register_module("depthwise", ConvNorm(wide, wide, 3, stride, wide, true));
        narrow = register_module("narrow", ConvNorm(wide, out, 1, 1, 1, false));
    }
    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor y = narrow(depthwise(widen(x)));
        return around_ ? y + x : y;
    }

private:
    ConvNorm widen{nullptr}, depthwise{nullptr}, narrow{nullptr};
    bool around_;
};
TORCH_MODULE(InvertedResidual);

/* [B, 3, side, side] -> [B, classes]; side from 32 on. About 0.3 million parameters. */
class DepthwiseImpl : public torch::nn::Module {
public:
    explicit DepthwiseImpl(int64_t classes) {
        stem = register_module("stem", ConvNorm(3, 16, 3, 2, 1, true));
        blocks = register_module("blocks", torch::nn::Sequential());
        add(16, 24, 1, 2); /* side / 4 */
        add(24, 32, 2, 2); /* side / 8 */
        add(32, 96, 2, 2); /* side / 16 */
        add(96, 96, 1, 1);
        head = register_module("head", ConvNorm(96, 256, 1, 1, 1, true));
        fc = register_module("fc", torch::nn::Linear(256, classes));
    }
    torch::Tensor forward(const torch::Tensor &images) {
        torch::Tensor x = memtrain::checkpoint(stem, images);
        x = memtrain::checkpoint_sequential(blocks, blocks->size(), x);
        x = memtrain::checkpoint(head, x);
        return fc(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
    }

private:
    void add(int64_t in, int64_t out, int count, int64_t stride) {
        for (int i = 0; i < count; i++)
            blocks->push_back(InvertedResidual(i ? out : in, out, i ? 1 : stride));
    }
    ConvNorm stem{nullptr}, head{nullptr};
    torch::nn::Sequential blocks{nullptr};
    torch::nn::Linear fc{nullptr};
};

} // namespace networks
#endif
