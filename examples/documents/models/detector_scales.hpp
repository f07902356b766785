/*
 * detector_scales.hpp - a backbone, the neck of YOLOv5s and heads of three scales, at an eighth, a sixteenth and a
 * thirty-second of the picture's side.
 *
 * The neck goes down and up again: coarse maps are enlarged and meet finer ones, then the finer ones are halved and meet the
 * coarse ones. Its layers have the numbers of YOLOv5's list, 10 to 23, and the initial values of that. In front of it each
 * map of the backbone becomes 128, 256 and 512 channels wide. Batch norm sees the pictures of a chunk.
 */
#ifndef MEMTRAIN_MODELS_DETECTOR_SCALES_HPP
#define MEMTRAIN_MODELS_DETECTOR_SCALES_HPP

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/sequential.h>

#include "backbone.hpp"
#include "detection.hpp"

namespace memtrain_models {

/* A convolution without bias, batch norm as YOLOv5 has it, SiLU. */
class NeckConvImpl : public torch::nn::Module {
public:
    NeckConvImpl(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1)
        : conv(register_module("conv", torch::nn::Conv2d(plain_conv(in, out, kernel, stride)))),
          bn(register_module("bn",
                             torch::nn::BatchNorm2d(
                                 torch::nn::BatchNorm2dOptions(out).eps(1e-3).momentum(0.03)))) {}

    torch::Tensor forward(const torch::Tensor &x) { return at::silu(bn(conv(x))); }

private:
    torch::nn::Conv2d conv;
    torch::nn::BatchNorm2d bn;
};
TORCH_MODULE(NeckConv);

/* Two convolutions in a row, [B, width, H, W] -> the same; nothing goes around them. */
class NeckBlockImpl : public torch::nn::Module {
public:
    explicit NeckBlockImpl(int64_t width)
        : cv1(register_module("cv1", NeckConv(width, width, 1))),
          cv2(register_module("cv2", NeckConv(width, width, 3))) {}

    torch::Tensor forward(const torch::Tensor &x) { return cv2(cv1(x)); }

private:
    NeckConv cv1, cv2;
};
TORCH_MODULE(NeckBlock);

/* YOLOv5's C3 with one block: one half goes through it, the other around. */
class NeckStageImpl : public torch::nn::Module {
public:
    NeckStageImpl(int64_t in, int64_t out)
        : cv1(register_module("cv1", NeckConv(in, out / 2, 1))),
          cv2(register_module("cv2", NeckConv(in, out / 2, 1))),
          cv3(register_module("cv3", NeckConv(out, out, 1))),
          m(register_module("m", torch::nn::Sequential(NeckBlock(out / 2)))) {}

    torch::Tensor forward(const torch::Tensor &x) {
        return cv3(at::cat({m->forward(cv1(x)), cv2(x)}, 1));
    }

private:
    NeckConv cv1, cv2, cv3;
    torch::nn::Sequential m;
};
TORCH_MODULE(NeckStage);

constexpr size_t scale_count = 3;

struct ScalesOptions {
    int64_t classes = 7;
    int64_t side = 640;
    std::vector<float> anchors; /* as shares of the picture; the smallest are the finest scale's */
};

class ScalesDetector : public torch::nn::Module {
public:
    ScalesDetector(std::shared_ptr<Backbone> below, const ScalesOptions &options)
        : backbone(std::move(below)), o(options),
          count(static_cast<int64_t>(o.anchors.size() / 2 / scale_count)) {
        backbone->three = true;
        for (const auto &child : backbone->named_children())
            register_module(child.key(), child.value());
        auto lateral = child(*this, "lateral"), neck = child(*this, "neck");
        auto detect = child(*child(*this, "detect"), "m");
        const int64_t in[] = {backbone->finest_channels, backbone->fine_channels,
                              backbone->coarse_channels};
        for (size_t i = 0; i < scale_count; i++)
            laterals[i] =
                lateral->register_module(std::to_string(i), NeckConv(in[i], channels(i), 1));
        reduce5 = neck->register_module("10", NeckConv(channels(2), channels(1), 1));
        down4 = neck->register_module("13", NeckStage(2 * channels(1), channels(1)));
        reduce4 = neck->register_module("14", NeckConv(channels(1), channels(0), 1));
        out3 = neck->register_module("17", NeckStage(2 * channels(0), channels(0)));
        halve3 = neck->register_module("18", NeckConv(channels(0), channels(0), 3, 2));
        out4 = neck->register_module("20", NeckStage(2 * channels(0), channels(1)));
        halve4 = neck->register_module("21", NeckConv(channels(1), channels(1), 3, 2));
        out5 = neck->register_module("23", NeckStage(2 * channels(1), channels(2)));
        torch::Tensor all =
            at::tensor(o.anchors).reshape({static_cast<int64_t>(scale_count), count, 2});
        for (size_t i = 0; i < scale_count; i++) {
            auto last = torch::nn::Conv2dOptions(channels(i), count * (5 + o.classes), 1);
            heads[i] = detect->register_module(std::to_string(i), torch::nn::Conv2d(last));
            set_bias(*heads[i], grid(i));
            anchors[i] = register_buffer("anchors" + std::to_string(i),
                                         all[static_cast<int64_t>(i)] * grid(i));
        }
    }

    /* [B, 3, side, side] -> of each scale, the finest first, [B, A, G, G, 5 + C]: raw numbers as in detection.hpp. */
    std::array<torch::Tensor, scale_count> forward(const torch::Tensor &pictures) {
        Maps maps = backbone_maps(pictures);
        auto run = [this](const memtrain::Tensors &t) { return mix(t); };
        memtrain::Tensors x = memtrain::checkpoint(run, {maps.finest, maps.fine, maps.coarse},
                                                   scale_count, neck_modules());
        std::array<torch::Tensor, scale_count> out;
        for (size_t i = 0; i < scale_count; i++) {
            torch::Tensor y = heads[i](x[i]);
            out[i] = y.reshape({y.size(0), count, 5 + o.classes, y.size(2), y.size(3)})
                         .permute({0, 1, 3, 4, 2});
        }
        return out;
    }

    std::array<torch::Tensor, scale_count> anchors; /* in cells */

private:
    static constexpr int64_t channels(size_t scale) { return int64_t{128} << scale; }
    int64_t grid(size_t scale) const { return o.side / (int64_t{8} << scale); }

    static std::shared_ptr<torch::nn::Module> child(torch::nn::Module &parent, const char *name) {
        return parent.register_module(name, std::make_shared<torch::nn::Module>(name));
    }

    static torch::Tensor twice(const torch::Tensor &x) {
        return at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
    }

    memtrain::Tensors mix(const memtrain::Tensors &maps) {
        torch::Tensor p5 = reduce5(laterals[2](maps[2]));
        torch::Tensor p4 = down4(at::cat({twice(p5), laterals[1](maps[1])}, 1));
        p4 = reduce4(p4);
        torch::Tensor p3 = out3(at::cat({twice(p4), laterals[0](maps[0])}, 1));
        p4 = out4(at::cat({halve3(p3), p4}, 1));
        return {p3, p4, out5(at::cat({halve4(p4), p5}, 1))};
    }

    memtrain::Modules neck_modules() const {
        return {laterals[0].ptr(), laterals[1].ptr(), laterals[2].ptr(), reduce5.ptr(),
                down4.ptr(),       reduce4.ptr(),     out3.ptr(),        halve3.ptr(),
                out4.ptr(),        halve4.ptr(),      out5.ptr()};
    }

    /* Frozen is the backbone that has nothing to learn, so that whoever freezes it need not tell. */
    Maps backbone_maps(const torch::Tensor &pictures) {
        bool frozen = true;
        for (const torch::Tensor &parameter : backbone->parameters())
            frozen = frozen && !parameter.requires_grad();
        backbone->train(is_training() && !frozen);
        c10::AutoGradMode grad(c10::GradMode::is_enabled() && !frozen);
        return backbone->maps(pictures);
    }

    /* At first eight cells of each anchor are taken for a box's, and each class for as likely as can be. */
    void set_bias(torch::nn::Conv2dImpl &head, int64_t cells) const {
        c10::AutoGradMode grad(false);
        at::Tensor bias = head.bias.reshape({count, 5 + o.classes});
        bias.select(1, 4).add_(std::log(8.0 / static_cast<double>(cells * cells)));
        bias.narrow(1, 5, o.classes)
            .add_(std::log(0.6 / (static_cast<double>(o.classes) - 0.99999)));
    }

    std::shared_ptr<Backbone> backbone; /* its children are this module's, under their own names */
    ScalesOptions o;
    int64_t count; /* anchors of a scale */
    NeckConv laterals[scale_count] = {nullptr, nullptr, nullptr};
    NeckConv reduce5{nullptr}, reduce4{nullptr}, halve3{nullptr}, halve4{nullptr};
    NeckStage down4{nullptr}, out3{nullptr}, out4{nullptr}, out5{nullptr};
    torch::nn::Conv2d heads[scale_count] = {nullptr, nullptr, nullptr};
};

} // namespace memtrain_models

#endif
