/*
 * backbone.hpp - what a detector asks of the network below it, and the layer that these are made of.
 */
#ifndef MEMTRAIN_MODELS_BACKBONE_HPP
#define MEMTRAIN_MODELS_BACKBONE_HPP

#include <cstdint>

#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/silu.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <memtrain/torch.hpp>

namespace memtrain_models {

/* Two maps of a picture, at a sixteenth and at a thirty-second of its side; and one at an eighth, where asked for. */
struct Maps {
    torch::Tensor finest; /* [B, finest_channels, H/8, W/8]; undefined without Backbone::three */
    torch::Tensor fine;   /* [B, fine_channels, H/16, W/16] */
    torch::Tensor coarse; /* [B, coarse_channels, H/32, W/32] */
};

class Backbone : public torch::nn::Module {
public:
    virtual Maps maps(const torch::Tensor &pictures) = 0; /* of [B, 3, H, W] */
    int64_t finest_channels = 0, fine_channels = 0, coarse_channels = 0;
    bool three = false; /* the finest map is wanted too */
};

enum class Activation { none, silu, leaky };

/* Convolution, BatchNorm, activation. The children are named as the network's source names them. */
class ConvNormImpl : public torch::nn::Module {
public:
    struct Names {
        const char *conv, *norm;
    };

    ConvNormImpl(const torch::nn::Conv2dOptions &options, Activation how, const Names &names)
        : conv(register_module(names.conv, torch::nn::Conv2d(options))),
          norm(register_module(names.norm, torch::nn::BatchNorm2d(options.out_channels()))),
          activation(how) {}

    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor y = norm(conv(x));
        if (activation == Activation::silu)
            return at::silu(y); /* its backward needs what went in */
        return activation == Activation::leaky ? at::leaky_relu_(y, 0.01) : y;
    }

private:
    torch::nn::Conv2d conv;
    torch::nn::BatchNorm2d norm;
    Activation activation;
};
TORCH_MODULE(ConvNorm);

/* A convolution that keeps H and W at stride 1. No bias: the norm behind it has one. */
inline torch::nn::Conv2dOptions plain_conv(int64_t in, int64_t out, int64_t kernel,
                                           int64_t stride = 1) {
    return torch::nn::Conv2dOptions(in, out, kernel)
        .stride(stride)
        .padding((kernel - 1) / 2)
        .bias(false);
}

/* Kaiming's normal values by what goes out, for each convolution; biases 0. */
inline void init_convolutions(torch::nn::Module &net) {
    for (const auto &module : net.modules(/*include_self=*/false)) {
        auto *conv = module->as<torch::nn::Conv2d>();
        if (!conv) continue;
        torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
        if (conv->bias.defined()) torch::nn::init::zeros_(conv->bias);
    }
}

} // namespace memtrain_models

#endif
