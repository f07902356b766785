/*
 * efficientnet.hpp - the features of EfficientNet-B0 to B4 (Tan & Le 2019, arXiv 1905.11946).
 *
 * Names, their order and the initial values are torchvision's, so that its weights can be loaded by name;
 * its classifier is not there. Each block is a segment that can be computed again.
 */
#ifndef MEMTRAIN_MODELS_EFFICIENTNET_HPP
#define MEMTRAIN_MODELS_EFFICIENTNET_HPP

#include <algorithm>
#include <cmath>
#include <memory>
#include <regex>
#include <string>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <torch/nn/modules/container/sequential.h>

#include "backbone.hpp"

namespace memtrain_models {

struct EfficientNetOptions {
    double width = 1.4, depth = 1.8; /* B4; B0 has 1 and 1 */
    double drop = 0.2; /* stochastic depth of the last block, if there were one more */
    bool last = false; /* features.8, a 1x1 convolution that a detector has no use for */
};

/* Channels in multiples of 8, at most a tenth fewer than asked for. */
inline int64_t efficientnet_channels(double wanted) {
    auto channels = std::max<int64_t>(8, static_cast<int64_t>(wanted + 4) / 8 * 8);
    return static_cast<double>(channels) < 0.9 * wanted ? channels + 8 : channels;
}

inline ConvNorm efficientnet_conv(const torch::nn::Conv2dOptions &options,
                                  Activation activation = Activation::silu) {
    return ConvNorm(options, activation, ConvNormImpl::Names{"0", "1"});
}

/* Weighs channels by what all of the picture has of them. */
class SqueezeExcitationImpl : public torch::nn::Module {
public:
    SqueezeExcitationImpl(int64_t channels, int64_t squeezed)
        : fc1(register_module("fc1", conv(channels, squeezed))),
          fc2(register_module("fc2", conv(squeezed, channels))) {}

    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor weights = at::adaptive_avg_pool2d(x, {1, 1}); /* [B, channels, 1, 1] */
        return x * at::sigmoid(fc2(at::silu(fc1(weights))));
    }

private:
    static torch::nn::Conv2d conv(int64_t in, int64_t out) {
        return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1));
    }
    torch::nn::Conv2d fc1, fc2;
};
TORCH_MODULE(SqueezeExcitation);

struct MBConvOptions {
    int64_t in, out, expand, kernel, stride;
    double drop; /* share of the samples that go around the block in training */
};

/* [B, in, H, W] -> [B, out, H/stride, W/stride]: wider, a convolution of each channel, narrower. */
class MBConvImpl : public torch::nn::Module {
public:
    explicit MBConvImpl(const MBConvOptions &o)
        : drop(o.drop), goes_around(o.stride == 1 && o.in == o.out) {
        int64_t wide = o.in * o.expand;
        register_module("block", block);
        if (o.expand != 1) expand = add(efficientnet_conv(plain_conv(o.in, wide, 1)));
        depthwise = add(efficientnet_conv(plain_conv(wide, wide, o.kernel, o.stride).groups(wide)));
        squeeze = add(SqueezeExcitation(wide, std::max<int64_t>(1, o.in / 4)));
        project = add(efficientnet_conv(plain_conv(wide, o.out, 1), Activation::none));
    }

    torch::Tensor forward(const torch::Tensor &x) {
        torch::Tensor y = project(squeeze(depthwise(expand ? expand->forward(x) : x)));
        return goes_around ? x + dropped(y) : y;
    }

private:
    template <class Part> Part add(Part part) {
        return block->register_module(std::to_string(block->children().size()), part);
    }
    /* Stochastic depth (Huang et al. 2016, arXiv 1603.09382), each sample by itself. */
    torch::Tensor dropped(const torch::Tensor &y) const {
        if (!is_training() || drop == 0) return y;
        torch::Tensor stays = at::empty({y.size(0), 1, 1, 1}, y.options());
        return y * stays.bernoulli_(1 - drop).div_(1 - drop);
    }

    std::shared_ptr<torch::nn::Module> block = std::make_shared<torch::nn::Module>();
    ConvNorm expand{nullptr}, depthwise{nullptr}, project{nullptr};
    SqueezeExcitation squeeze{nullptr};
    double drop;
    bool goes_around;
};
TORCH_MODULE(MBConv);

/*
 * The name that timm's efficientnet_b0 to b4 have for one of torchvision's: features.4.1.block.1.0.weight is
 * blocks.3.1.conv_dw.weight. "": none.
 */
inline std::string efficientnet_timm_name(const std::string &name) {
    static const std::regex whole(R"(features\.(0|8)\.(0|1)\.(\w+))");
    static const std::regex part(R"(features\.(\d)\.(\d+)\.block\.(\d)\.(\w+)\.(\w+))");
    std::smatch m;
    if (std::regex_match(name, m, whole)) {
        const bool first = m[1] == "0";
        if (m[2] == "0") return (first ? "conv_stem." : "conv_head.") + m[3].str();
        return (first ? "bn1." : "bn2.") + m[3].str();
    }
    if (!std::regex_match(name, m, part)) return "";
    const int stage = std::stoi(m[1]), expands = stage > 1; /* the first stage has no first 1x1 */
    const int at =
        std::stoi(m[3]) + !expands; /* 0: wider, 1: each channel, 2: squeeze, 3: narrower */
    if (stage < 1 || stage > 7 || at > 3) return "";
    static const char *const convs[] = {"conv_pw", "conv_dw", "se", "conv_pwl"};
    std::string inner = convs[at];
    if (at == 3 && !expands) inner = "conv_pw";
    if (at == 2)
        inner += m[4] == "fc1" ? ".conv_reduce" : ".conv_expand";
    else if (m[4] == "1")
        inner = "bn" + std::to_string(at == 3 ? 2 + expands : at + expands);
    return "blocks." + std::to_string(stage - 1) + "." + m[2].str() + "." + inner + "." +
           m[5].str();
}

class EfficientNet : public Backbone {
public:
    explicit EfficientNet(const EfficientNetOptions &options = {}) : o(options) {
        register_module("features", features);
        int64_t in = efficientnet_channels(32 * o.width);
        for (const Stage &s : table) blocks_in_all += repeats(s);
        stem = add(efficientnet_conv(plain_conv(3, in, 3, 2)));
        for (int i = 0; i < stages; i++) in = add_stage(i, in);
        coarse_channels = in;
        if (o.last) last = add(efficientnet_conv(plain_conv(in, 4 * in, 1)));
        init_convolutions(*this);
    }

    Maps maps(const torch::Tensor &pictures) override {
        Maps out;
        torch::Tensor x = memtrain::checkpoint(stem, pictures); /* [B, 48, H/2, W/2] in B4 */
        for (int i = 0; i < stages; i++) {
            x = memtrain::checkpoint_sequential(stage[i], stage[i]->size(), x);
            if (i == fine_stage) out.fine = x;
            if (three && i == finest_stage) out.finest = x;
        }
        out.coarse = last ? last->forward(x) : x;
        return out;
    }

private:
    struct Stage {
        int64_t expand, kernel, stride, out, repeats; /* of B0 */
    };
    static constexpr int stages = 7, finest_stage = 2; /* features.3, the last one at stride 8 */
    static constexpr int fine_stage = 4;               /* features.5, at stride 16 */
    static constexpr Stage table[stages] = {
        {1, 3, 1, 16, 1},  {6, 3, 2, 24, 2},  {6, 5, 2, 40, 2},  {6, 3, 2, 80, 3},
        {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4}, {6, 3, 1, 320, 1},
    };

    template <class Part> Part add(Part part) {
        return features->register_module(std::to_string(features->children().size()), part);
    }
    int64_t repeats(const Stage &s) const {
        return static_cast<int64_t>(std::ceil(static_cast<double>(s.repeats) * o.depth));
    }
    int64_t add_stage(int i, int64_t in) {
        const Stage &s = table[i];
        int64_t out = efficientnet_channels(static_cast<double>(s.out) * o.width);
        torch::nn::Sequential list;
        for (int64_t j = 0; j < repeats(s); j++, blocks++) {
            double drop = o.drop * static_cast<double>(blocks) / static_cast<double>(blocks_in_all);
            list->push_back(MBConv(
                MBConvOptions{j ? out : in, out, s.expand, s.kernel, j ? 1 : s.stride, drop}));
        }
        stage[i] = add(list);
        if (i == finest_stage) finest_channels = out;
        if (i == fine_stage) fine_channels = out;
        return out;
    }

    EfficientNetOptions o;
    int64_t blocks = 0, blocks_in_all = 0;
    std::shared_ptr<torch::nn::Module> features = std::make_shared<torch::nn::Module>();
    ConvNorm stem{nullptr}, last{nullptr};
    torch::nn::Sequential stage[stages];
};

} // namespace memtrain_models

#endif
