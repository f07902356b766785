/*
 * cspdarknet.hpp - CSPDarknet-53 (Wang et al. 2019, arXiv 1911.11929) without its classifier, and smaller
 * ones of the same kind.
 *
 * Names and their order are those of timm's cspdarknet53, so that its weights can be loaded by name (head.fc
 * left out). Each block is a segment that can be computed again, and so is what is before and behind the
 * blocks of a stage.
 */
#ifndef MEMTRAIN_MODELS_CSPDARKNET_HPP
#define MEMTRAIN_MODELS_CSPDARKNET_HPP

#include <memory>
#include <vector>

#include <ATen/ops/cat.h>
#include <torch/nn/modules/container/sequential.h>

#include "backbone.hpp"

namespace memtrain_models {

struct CspDarknetOptions {
    double width = 1; /* of the channels of CSPDarknet-53; a quarter is the least */
    std::vector<int64_t> blocks = {1, 2, 8, 8, 4};
};

inline ConvNorm csp_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
    return ConvNorm(plain_conv(in, out, kernel, stride), Activation::leaky,
                    ConvNormImpl::Names{"conv", "bn"});
}

/* [B, C, H, W] -> [B, C, H, W], the bottleneck of a Darknet. */
class DarkBlockImpl : public torch::nn::Module {
public:
    DarkBlockImpl(int64_t channels, int64_t inner)
        : conv1(register_module("conv1", csp_conv(channels, inner, 1))),
          conv2(register_module("conv2", csp_conv(inner, channels, 3))) {}

    torch::Tensor forward(const torch::Tensor &x) { return conv2(conv1(x)) + x; }

private:
    ConvNorm conv1, conv2;
};
TORCH_MODULE(DarkBlock);

struct CspStageOptions {
    int64_t in, out, expanded, inner, blocks;
};

/* [B, in, H, W] -> [B, out, H/2, W/2]: one half goes through the blocks, the other around them. */
class CspStageImpl : public torch::nn::Module {
public:
    explicit CspStageImpl(const CspStageOptions &o)
        : conv_down(register_module("conv_down", csp_conv(o.in, o.out, 3, 2))),
          conv_exp(register_module("conv_exp", csp_conv(o.out, o.expanded, 1))),
          blocks(register_module("blocks", torch::nn::Sequential())),
          conv_transition_b(
              register_module("conv_transition_b", csp_conv(o.expanded / 2, o.expanded / 2, 1))),
          conv_transition(register_module("conv_transition", csp_conv(o.expanded, o.out, 1))) {
        for (int64_t i = 0; i < o.blocks; i++)
            blocks->push_back(DarkBlock(o.expanded / 2, o.inner));
    }

    torch::Tensor forward(const torch::Tensor &x) {
        auto begin = [this](const torch::Tensor &t) { return conv_exp(conv_down(t)); };
        auto end = [this](const memtrain::Tensors &t) {
            torch::Tensor halves = at::cat({half(t[0], 0), conv_transition_b(t[1])}, 1);
            return memtrain::Tensors{conv_transition(halves)};
        };
        torch::Tensor wide = memtrain::checkpoint(begin, x, {conv_down.ptr(), conv_exp.ptr()});
        torch::Tensor deep = memtrain::checkpoint_sequential(blocks, blocks->size(), half(wide, 1));
        return memtrain::checkpoint(end, {wide, deep}, 1,
                                    {conv_transition_b.ptr(), conv_transition.ptr()})[0];
    }

private:
    static torch::Tensor half(const torch::Tensor &x, int64_t which) {
        int64_t channels = x.size(1) / 2;
        return x.narrow(1, which * channels, channels);
    }

    ConvNorm conv_down, conv_exp;
    torch::nn::Sequential blocks;
    ConvNorm conv_transition_b, conv_transition;
};
TORCH_MODULE(CspStage);

class CspDarknet : public Backbone {
public:
    explicit CspDarknet(const CspDarknetOptions &options = {}) : o(options) {
        stem = register_module("stem", std::make_shared<torch::nn::Module>());
        stages = register_module("stages", torch::nn::Sequential());
        conv1 = stem->register_module("conv1", csp_conv(3, wide(32), 3));
        int64_t in = wide(32);
        for (size_t i = 0; i < o.blocks.size(); i++) in = add_stage(i, in);
        coarse_channels = in;
        init_convolutions(*this);
    }

    Maps maps(const torch::Tensor &pictures) override {
        Maps out;
        torch::Tensor x = memtrain::checkpoint(conv1, pictures); /* [B, 32, H, W] */
        for (size_t i = 0; i < stages->size(); i++) {
            x = stages[i]->as<CspStage>()->forward(x); /* halves H and W */
            if (i == fine_stage) out.fine = x;
            if (three && i == finest_stage) out.finest = x;
        }
        out.coarse = x;
        return out;
    }

private:
    static constexpr size_t finest_stage = 2, fine_stage = 3;

    int64_t wide(int64_t channels) const {
        return static_cast<int64_t>(static_cast<double>(channels) * o.width);
    }
    /* The first stage is wider inside than outside; the others work on one half of their channels. */
    int64_t add_stage(size_t i, int64_t in) {
        int64_t out = wide(64) << i, expanded = i ? out : 2 * out;
        stages->push_back(CspStage(CspStageOptions{in, out, expanded, out / 2, o.blocks[i]}));
        if (i == finest_stage) finest_channels = out;
        if (i == fine_stage) fine_channels = out;
        return out;
    }

    CspDarknetOptions o;
    std::shared_ptr<torch::nn::Module> stem;
    ConvNorm conv1{nullptr};
    torch::nn::Sequential stages{nullptr};
};

} // namespace memtrain_models

#endif
