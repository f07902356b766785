/*
 * clip_resnet.hpp - the picture tower of CLIP's ResNet-50 (Radford et al. 2021): three convolutions as a stem, an average in
 * the place of each stride, and attention in the place of the last mean.
 *
 * Names and shapes are the published ones. Each block is a segment (memtrain::checkpoint). Batch norm sees the samples of a
 * chunk; with `frozen_norm` it has its running statistics in training too, as where trained weights are refined.
 */
#ifndef MEMTRAIN_MODELS_CLIP_RESNET_HPP
#define MEMTRAIN_MODELS_CLIP_RESNET_HPP

#include <cmath>
#include <memory>

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <memtrain/torch.hpp>

#include "resnet.hpp"

namespace memtrain_models {

struct ClipResNetOptions {
    int64_t width = 64; /* of the first blocks; the last ones give 32 times as many channels */
    int64_t side = 224, embedding = 1024;
    bool frozen_norm = false;
};

/* 1x1, 3x3, mean, 1x1: [B, in, H, W] -> [B, 4 width, H / stride, W / stride]. */
class ClipBottleneckImpl : public torch::nn::Module {
public:
    ClipBottleneckImpl(int64_t in, int64_t width, int64_t stride) : stride_(stride) {
        using torch::nn::BatchNorm2d;
        conv1 = register_module("conv1", resnet_conv(in, width, 1));
        bn1 = register_module("bn1", BatchNorm2d(width));
        conv2 = register_module("conv2", resnet_conv(width, width, 3));
        bn2 = register_module("bn2", BatchNorm2d(width));
        conv3 = register_module("conv3", resnet_conv(width, 4 * width, 1));
        bn3 = register_module("bn3", BatchNorm2d(4 * width));
        torch::nn::init::zeros_(bn3->weight); /* a block begins as its input */
        if (stride == 1 && in == 4 * width) return;
        around = register_module("downsample", std::make_shared<torch::nn::Module>("downsample"));
        conv = around->register_module("0", resnet_conv(in, 4 * width, 1));
        norm = around->register_module("1", BatchNorm2d(4 * width));
    }

    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor y = bn1(conv1(x)).relu_();
        y = bn3(conv3(halved(bn2(conv2(y)).relu_())));
        return (y + (around ? norm(conv(halved(x))) : x)).relu_();
    }

private:
    torch::Tensor halved(const torch::Tensor &x) const {
        return stride_ == 1 ? x : at::avg_pool2d(x, stride_);
    }

    int64_t stride_;
    torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr}, conv{nullptr};
    torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr}, norm{nullptr};
    std::shared_ptr<torch::nn::Module> around;
};
TORCH_MODULE(ClipBottleneck);

/* The mean of all places asks what is at each: [B, C, h, w] -> [B, embedding]. */
class ClipAttentionPoolImpl : public torch::nn::Module {
public:
    ClipAttentionPoolImpl(int64_t places, int64_t width, int64_t embedding)
        : q_proj(register_module("q_proj", torch::nn::Linear(width, width))),
          k_proj(register_module("k_proj", torch::nn::Linear(width, width))),
          v_proj(register_module("v_proj", torch::nn::Linear(width, width))),
          c_proj(register_module("c_proj", torch::nn::Linear(width, embedding))) {
        const double deviation = 1 / std::sqrt(static_cast<double>(width));
        positional_embedding = register_parameter(
            "positional_embedding", at::empty({places + 1, width}).normal_(0.0, deviation));
        for (torch::nn::Linear *linear : {&q_proj, &k_proj, &v_proj, &c_proj})
            torch::nn::init::normal_((*linear)->weight, 0.0, deviation);
    }

    torch::Tensor forward(const torch::Tensor &maps) {
        torch::Tensor x = maps.flatten(2).transpose(1, 2); /* [B, places, C] */
        torch::Tensor mean = x.mean(1, true);
        x = at::cat({mean, x}, 1) + positional_embedding;
        torch::Tensor y = at::scaled_dot_product_attention(heads(q_proj(x.narrow(1, 0, 1))),
                                                           heads(k_proj(x)), heads(v_proj(x)));
        return c_proj(y.transpose(1, 2).flatten(2).squeeze(1));
    }

private:
    static torch::Tensor heads(const torch::Tensor &x) {
        return x.unflatten(2, {x.size(2) / 64, 64}).transpose(1, 2);
    }

    torch::nn::Linear q_proj, k_proj, v_proj, c_proj;
    torch::Tensor positional_embedding;
};
TORCH_MODULE(ClipAttentionPool);

/* [B, 3, side, side] -> [B, embedding] */
class ClipResNetImpl : public torch::nn::Module {
public:
    explicit ClipResNetImpl(const ClipResNetOptions &options) : o(options) {
        using torch::nn::BatchNorm2d;
        const int64_t w = o.width, blocks[4] = {3, 4, 6, 3};
        conv1 = register_module("conv1", resnet_conv(3, w / 2, 3, 2));
        bn1 = register_module("bn1", BatchNorm2d(w / 2));
        conv2 = register_module("conv2", resnet_conv(w / 2, w / 2, 3));
        bn2 = register_module("bn2", BatchNorm2d(w / 2));
        conv3 = register_module("conv3", resnet_conv(w / 2, w, 3));
        bn3 = register_module("bn3", BatchNorm2d(w));
        int64_t in = w;
        for (int64_t i = 0; i < 4; i++) {
            torch::nn::Sequential list;
            for (int64_t j = 0; j < blocks[i]; j++, in = 4 * w << i)
                list->push_back(ClipBottleneck(in, w << i, i && !j ? 2 : 1));
            layer[i] = register_module("layer" + std::to_string(i + 1), list);
        }
        const int64_t grid = o.side / 32;
        attnpool = register_module("attnpool", ClipAttentionPool(grid * grid, in, o.embedding));
    }

    torch::Tensor forward(const torch::Tensor &pictures) {
        auto stem = [this](const torch::Tensor &t) {
            torch::Tensor y = bn2(conv2(bn1(conv1(t)).relu_())).relu_();
            return at::avg_pool2d(bn3(conv3(y)).relu_(), 2);
        };
        torch::Tensor x = memtrain::checkpoint(stem, pictures, {bn1.ptr(), bn2.ptr(), bn3.ptr()});
        for (torch::nn::Sequential &blocks : layer)
            x = memtrain::checkpoint_sequential(blocks, blocks->size(), x);
        return memtrain::checkpoint(attnpool, x);
    }

    void train(bool on = true) override {
        torch::nn::Module::train(on);
        if (!o.frozen_norm) return;
        for (const auto &module : modules(/*include_self=*/false))
            if (module->as<torch::nn::BatchNorm2d>()) module->eval();
    }

private:
    ClipResNetOptions o;
    torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
    torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
    torch::nn::Sequential layer[4] = {nullptr, nullptr, nullptr, nullptr};
    ClipAttentionPool attnpool{nullptr};
};
TORCH_MODULE(ClipResNet);

} // namespace memtrain_models

#endif
