/*
 * detector.hpp - a backbone and a head of one scale, at a sixteenth of the picture's side.
 *
 * The finer map of the backbone sees the detail, the coarser one the whole; both come to the head in as many
 * channels, the coarser one enlarged. The head normalises by groups of channels, each sample by itself, so
 * that while the backbone is frozen a picture is computed in the same way whatever chunk it is in.
 */
#ifndef MEMTRAIN_MODELS_DETECTOR_HPP
#define MEMTRAIN_MODELS_DETECTOR_HPP

#include <cmath>
#include <memory>

#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include "backbone.hpp"
#include "detection.hpp"

namespace memtrain_models {

/* Convolution, GroupNorm, SiLU. */
class HeadConvImpl : public torch::nn::Module {
public:
    HeadConvImpl(int64_t in, int64_t out, int64_t kernel)
        : conv(register_module("conv", torch::nn::Conv2d(plain_conv(in, out, kernel)))),
          norm(register_module("norm", torch::nn::GroupNorm(out / 8, out))) {}

    torch::Tensor forward(const torch::Tensor &x) { return at::silu(norm(conv(x))); }

private:
    torch::nn::Conv2d conv;
    torch::nn::GroupNorm norm;
};
TORCH_MODULE(HeadConv);

struct DetectorOptions {
    int64_t classes = 7;
    int64_t width = 128; /* channels of the head, a multiple of 8 */
    int64_t side = 128;
    std::vector<float> anchors; /* width and height in turn, as shares of the picture */
};

class Detector : public torch::nn::Module {
public:
    Detector(std::shared_ptr<Backbone> below, const DetectorOptions &options)
        : backbone(std::move(below)), o(options),
          count(static_cast<int64_t>(o.anchors.size()) / 2) {
        for (const auto &child : backbone->named_children())
            register_module(child.key(), child.value());
        fine = register_module("head_fine", HeadConv(backbone->fine_channels, o.width, 1));
        coarse = register_module("head_coarse", HeadConv(backbone->coarse_channels, o.width, 1));
        joined = register_module("head_joined", HeadConv(2 * o.width, o.width, 3));
        auto last = torch::nn::Conv2dOptions(o.width, count * (5 + o.classes), 1);
        head = register_module("head", torch::nn::Conv2d(last));
        int64_t grid = o.side / 16;
        anchors = register_buffer("anchors", at::tensor(o.anchors).reshape({count, 2}) * grid);
        set_bias(grid);
    }

    /* [B, 3, side, side] -> [B, A, G, G, 5 + C], raw numbers as in detection.hpp. */
    torch::Tensor forward(const torch::Tensor &pictures) {
        Maps maps = backbone_maps(pictures);
        torch::Tensor small = coarse(maps.coarse);
        torch::Tensor x =
            at::cat({fine(maps.fine),
                     at::upsample_nearest2d(small, {maps.fine.size(2), maps.fine.size(3)})},
                    1);
        x = head(joined(x)); /* [B, A (5 + C), G, G] */
        return x.reshape({x.size(0), count, 5 + o.classes, x.size(2), x.size(3)})
            .permute({0, 1, 3, 4, 2});
    }

    torch::Tensor anchors; /* in cells */

    bool is_frozen() const {
        for (const torch::Tensor &parameter : backbone->parameters())
            if (parameter.requires_grad()) return false;
        return true;
    }

private:
    /* Frozen is the backbone that has nothing to learn, so that whoever freezes it need not tell. */
    Maps backbone_maps(const torch::Tensor &pictures) {
        bool frozen = is_frozen();
        backbone->train(is_training() && !frozen);
        c10::AutoGradMode grad(c10::GradMode::is_enabled() && !frozen);
        return backbone->maps(pictures);
    }

    /* At first eight cells of each anchor are taken for a box's, and each class for as likely as can be. */
    void set_bias(int64_t grid) {
        c10::AutoGradMode grad(false);
        at::Tensor bias = head->bias.reshape({count, 5 + o.classes});
        bias.select(1, 4).add_(std::log(8.0 / static_cast<double>(grid * grid)));
        bias.narrow(1, 5, o.classes)
            .add_(std::log(0.6 / (static_cast<double>(o.classes) - 0.99999)));
    }

    std::shared_ptr<Backbone> backbone; /* its children are this module's, under their own names */
    DetectorOptions o;
    int64_t count;
    HeadConv fine{nullptr}, coarse{nullptr}, joined{nullptr};
    torch::nn::Conv2d head{nullptr};
};

} // namespace memtrain_models

#endif
