/*
 * resnet.hpp - ResNet-18, 34 and 50 (He et al. 2015, arXiv 1512.03385) as a torch::nn module.
 *
 *     memtrain_models::ResNet net(memtrain_models::ResNetOptions{18, 101});
 *     torch::Tensor logits = net->forward(images); // [B, 3, H, W] -> [B, 101]
 *
 * Names, their order and the initial values are torchvision's, so that its weights can be loaded by
 * name. Images are expected with the mean (.485, .456, .406) and the deviation (.229, .224, .225)
 * of ImageNet; H and W are free, from 32 on. The stem and each block is a segment that can be computed
 * again in the backward pass (memtrain::checkpoint), or several; all else in here is libtorch's alone.
 *
 * ResNetOf<Norm> is the same with another norm than BatchNorm2d, Norm(channels).
 */
#ifndef MEMTRAIN_MODELS_RESNET_HPP
#define MEMTRAIN_MODELS_RESNET_HPP

#include <cstdint>
#include <memory>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <memtrain/torch.hpp>

namespace memtrain_models {

struct ResNetOptions {
    int depth = 18;         /* 18, 34 or 50 */
    int64_t classes = 1000; /* columns of the logits; 0: no fc, maps() and features() alone */
    bool small = false;     /* for small pictures: a stem of 5x5, padding 1, and no max pool */
    int64_t width =
        64; /* channels of the stem and of layer1; layer2 has twice as many, and so on */
};

/* A convolution; no bias: the batch norm behind it has one. */
inline torch::nn::Conv2d resnet_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                     int64_t padding) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
}

/* One that keeps H and W at stride 1. */
inline torch::nn::Conv2d resnet_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
    return resnet_conv(in, out, kernel, stride, (kernel - 1) / 2);
}

/* The way around a block whose shape changes: [B, in, H, W] -> [B, out, H/stride, W/stride]. */
template <class Norm> class DownsampleOf : public torch::nn::Module {
public:
    DownsampleOf(int64_t in, int64_t out, int64_t stride)
        : conv(register_module("0", resnet_conv(in, out, 1, stride))),
          norm(register_module("1", Norm(out))) {}

    torch::Tensor forward(const torch::Tensor &x) {
        if (!memtrain::forgets(*this, x)) return norm(conv(x));
        auto nothing = [](const torch::Tensor &t) { return t; };
        /* Named: the convolution, so that no buffers are put back, for nothing has any. */
        return memtrain::checkpoint_conv_norm(nothing, x, conv, norm, {conv.ptr()});
    }

private:
    torch::nn::Conv2d conv;
    Norm norm;
};

/*
 * Two 3x3 convolutions: [B, in, H, W] -> [B, width, H/stride, W/stride].
 *
 * The sum and the relus write over their input, which the backward pass does not need: batch norm
 * keeps what went in, not what came out. It is one tensor less at the moment of each relu. A segment that
 * ends in a norm has neither norm, sum nor relu run again.
 */
template <class Norm> class BasicBlockOf : public torch::nn::Module {
public:
    static constexpr int64_t expansion = 1; /* channels that come out, per unit of width */

    BasicBlockOf(int64_t in, int64_t width, int64_t stride)
        : conv1(register_module("conv1", resnet_conv(in, width, 3, stride))),
          bn1(register_module("bn1", Norm(width))),
          conv2(register_module("conv2", resnet_conv(width, width, 3))),
          bn2(register_module("bn2", Norm(width))) {
        if (stride != 1 || in != width)
            downsample = register_module("downsample",
                                         std::make_shared<DownsampleOf<Norm>>(in, width, stride));
    }

    torch::Tensor forward(const torch::Tensor &x) {
        auto begin = [this](const torch::Tensor &t) { return bn1(conv1(t)).relu_(); };
        torch::Tensor y = memtrain::forgets(*this, x)
                              ? memtrain::checkpoint_conv_norm(begin, x, conv2, bn2, {bn1.ptr()})
                              : bn2(conv2(begin(x))); /* [B, width, H/stride, W/stride] */
        y += downsample ? downsample->forward(x) : x;
        return y.relu_();
    }

private:
    torch::nn::Conv2d conv1;
    Norm bn1;
    torch::nn::Conv2d conv2;
    Norm bn2;
    std::shared_ptr<DownsampleOf<Norm>> downsample;
};

/*
 * 1x1, 3x3, 1x1: [B, in, H, W] -> [B, 4 width, H/stride, W/stride].
 *
 * The 3x3 has the stride ("v1.5"); in the paper it is the first 1x1, which is less accurate. A block is
 * two segments, and a third where its shape changes: cut behind the 3x3, which is half of its work and so is not
 * run again, and behind the norms, which on large pictures take longer than the 1x1 before them.
 */
template <class Norm> class BottleneckOf : public torch::nn::Module {
public:
    static constexpr int64_t expansion = 4;

    BottleneckOf(int64_t in, int64_t width, int64_t stride)
        : conv1(register_module("conv1", resnet_conv(in, width, 1))),
          bn1(register_module("bn1", Norm(width))),
          conv2(register_module("conv2", resnet_conv(width, width, 3, stride))),
          bn2(register_module("bn2", Norm(width))),
          conv3(register_module("conv3", resnet_conv(width, 4 * width, 1))),
          bn3(register_module("bn3", Norm(4 * width))) {
        if (stride != 1 || in != 4 * width)
            downsample = register_module(
                "downsample", std::make_shared<DownsampleOf<Norm>>(in, 4 * width, stride));
    }

    torch::Tensor forward(const torch::Tensor &x) {
        auto begin = [this](const torch::Tensor &t) { return bn1(conv1(t)).relu_(); };
        auto middle = [this](const torch::Tensor &t) { return bn2(t).relu_(); };
        const bool forgets = memtrain::forgets(*this, x);
        torch::Tensor y = forgets ? memtrain::checkpoint_conv(begin, x, conv2, {bn1.ptr()})
                                  : conv2(begin(x)); /* [B, width, H/stride, W/stride] */
        y = forgets ? memtrain::checkpoint_conv_norm(middle, y, conv3, bn3, {bn2.ptr()})
                    : bn3(conv3(middle(y)));
        y += downsample ? downsample->forward(x) : x;
        return y.relu_();
    }

private:
    torch::nn::Conv2d conv1;
    Norm bn1;
    torch::nn::Conv2d conv2;
    Norm bn2;
    torch::nn::Conv2d conv3;
    Norm bn3;
    std::shared_ptr<DownsampleOf<Norm>> downsample;
};

template <class Norm> class ResNetOf : public torch::nn::Module {
public:
    explicit ResNetOf(const ResNetOptions &options = {}) : small(options.small) {
        const int64_t width = options.width;
        conv1 = register_module("conv1", small ? resnet_conv(3, width, 5, 2, 1)
                                               : resnet_conv(3, width, 7, 2));
        bn1 = register_module("bn1", Norm(width));
        TORCH_CHECK_VALUE(options.depth == 18 || options.depth == 34 || options.depth == 50,
                          "depth is ", options.depth, ", not 18, 34 or 50");
        if (options.depth == 18)
            add_layers<BasicBlockOf<Norm>>({2, 2, 2, 2}, options);
        else if (options.depth == 34)
            add_layers<BasicBlockOf<Norm>>({3, 4, 6, 3}, options);
        else
            add_layers<BottleneckOf<Norm>>({3, 4, 6, 3}, options);
        /* Batch norms start at weight 1 and bias 0, fc as libtorch's Linear does. */
        for (const auto &module : modules(/*include_self=*/false))
            if (auto *conv = module->template as<torch::nn::Conv2d>())
                torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
    }

    /* [B, 3, H, W] -> [B, 512 e, h, w]; the sizes in the comments are those of H = W = 224, width 64. */
    torch::Tensor maps(const torch::Tensor &images) {
        auto stem = [this](const torch::Tensor &x) {
            torch::Tensor y = bn1(conv1(x)).relu_();
            return small ? y : at::max_pool2d(y, 3, 2, 1);
        };
        torch::Tensor x = memtrain::checkpoint(stem, images, {bn1.ptr()}); /* [B, 64, 56, 56] */
        x = layer1->forward(x);    /* [B, 64 e, 56, 56], e = expansion */
        x = layer2->forward(x);    /* [B, 128 e, 28, 28] */
        x = layer3->forward(x);    /* [B, 256 e, 14, 14] */
        return layer4->forward(x); /* [B, 512 e, 7, 7] */
    }
    /* [B, 3, H, W] -> [B, 512 e] */
    torch::Tensor features(const torch::Tensor &images) {
        return at::adaptive_avg_pool2d(maps(images), {1, 1}).flatten(1);
    }
    /* [B, 3, H, W] -> [B, classes] */
    torch::Tensor forward(const torch::Tensor &images) { return fc(features(images)); }

    torch::nn::Linear fc{nullptr};

private:
    template <class Block> void add_layers(const int (&blocks)[4], const ResNetOptions &options) {
        const int64_t e = Block::expansion, w = options.width;
        layer1 = register_module("layer1", layer<Block>(blocks[0], w, w, 1));
        layer2 = register_module("layer2", layer<Block>(blocks[1], w * e, 2 * w, 2));
        layer3 = register_module("layer3", layer<Block>(blocks[2], 2 * w * e, 4 * w, 2));
        layer4 = register_module("layer4", layer<Block>(blocks[3], 4 * w * e, 8 * w, 2));
        if (options.classes)
            fc = register_module("fc", torch::nn::Linear(8 * w * e, options.classes));
    }

    /* The first block of a layer changes the shape, the others keep it. */
    template <class Block>
    static torch::nn::Sequential layer(int blocks, int64_t in, int64_t width, int64_t stride) {
        torch::nn::Sequential layer(std::make_shared<Block>(in, width, stride));
        for (int i = 1; i < blocks; i++)
            layer->push_back(std::make_shared<Block>(width * Block::expansion, width, 1));
        return layer;
    }

    bool small;
    torch::nn::Conv2d conv1{nullptr};
    Norm bn1{nullptr};
    torch::nn::Sequential layer1{nullptr}, layer2{nullptr}, layer3{nullptr}, layer4{nullptr};
};
using ResNetImpl = ResNetOf<torch::nn::BatchNorm2d>;
TORCH_MODULE(ResNet);

} // namespace memtrain_models

#endif
