/*
 * sample_norm.hpp - batch norm over the pictures of one sample, where a sample is many pictures (an episode).
 *
 * Statistics of the pictures that belong together, never of those of another sample: so it does not matter
 * how many samples a chunk has. Parameters, buffers and their names are those of torch::nn::BatchNorm2d, and
 * so are the numbers where there is one sample, and with running statistics.
 */
#ifndef MEMTRAIN_MODELS_SAMPLE_NORM_HPP
#define MEMTRAIN_MODELS_SAMPLE_NORM_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace memtrain_models {

class SampleNormImpl : public torch::nn::Module {
public:
    explicit SampleNormImpl(int64_t channels) : channels_(channels) {
        weight = register_parameter("weight", at::ones({channels}));
        bias = register_parameter("bias", at::zeros({channels}));
        running_mean = register_buffer("running_mean", at::zeros({channels}));
        running_var = register_buffer("running_var", at::ones({channels}));
        num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
    }

    /* Of one sample; 0: all that come are one sample's. */
    void set_pictures(int64_t pictures) { pictures_ = pictures; }

    /* Whether evaluation, too, has the statistics of the sample, not the running ones. */
    void set_own_statistics(bool own) { own_statistics_ = own; }

    /*
     * [pictures * B, C, H, W], the first picture of each sample, then the second of each, and so on: seen
     * as [pictures, B * C, H, W] each channel of each sample is a channel by itself.
     */
    torch::Tensor forward(const torch::Tensor &x) {
        if (!is_training() && !own_statistics_)
            return at::batch_norm(x, weight, bias, running_mean, running_var, false, momentum, eps,
                                  true);
        const int64_t pictures = pictures_ ? pictures_ : x.size(0);
        const int64_t samples = x.size(0) / pictures;
        TORCH_CHECK_VALUE(samples * pictures == x.size(0), x.size(0),
                          " pictures are no samples of ", pictures);
        const torch::Tensor same =
            wants_one_type(x.device().type()) ? x.to(weight.scalar_type()) : x;
        auto [y, mean, deviation] = at::native_batch_norm(
            same.reshape({pictures, samples * channels_, x.size(2), x.size(3)}),
            weight.repeat({samples}), bias.repeat({samples}), {}, {}, true, momentum, eps);
        if (is_training()) remember(mean, deviation, samples, pictures * x.size(2) * x.size(3));
        return at::_unsafe_view(y, x.sizes()); /* no view, so that a relu may write over it */
    }

    torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

private:
    /*
     * Whether the device's kernels take an input of the weight's type alone, as MPS's do. Then autocast casts what at::batch_norm
     * is given. Of the operator here it knows nothing.
     */
    static bool wants_one_type(c10::DeviceType type) {
        static const auto norm =
            c10::Dispatcher::singleton().findSchemaOrThrow("aten::batch_norm", "");
        return at::autocast::is_autocast_enabled(type) &&
               norm.hasKernelForDispatchKey(
                   at::autocast::get_autocast_dispatch_key_from_device_type(type));
    }

    static constexpr double momentum = 0.1, eps = 1e-5;

    /* The running statistics as if the samples had come one after another. */
    void remember(const torch::Tensor &mean, const torch::Tensor &deviation, int64_t samples,
                  int64_t values) {
        at::NoGradGuard no_grad;
        const double kept = 1 - momentum,
                     unbiased = static_cast<double>(values) /
                                static_cast<double>(std::max<int64_t>(values - 1, 1));
        torch::Tensor share =
            at::pow(kept, at::arange(samples - 1, -1, -1, running_mean.options()));
        torch::Tensor var = deviation.view({samples, channels_}).pow(-2).sub_(eps);
        share.mul_(momentum);
        const double before = std::pow(kept, static_cast<double>(samples));
        running_mean.mul_(before).add_(at::matmul(share, mean.view({samples, channels_})));
        running_var.mul_(before).add_(at::matmul(share, var), unbiased);
        num_batches_tracked.add_(samples);
    }

    int64_t channels_, pictures_ = 0;
    bool own_statistics_ = false;
};
TORCH_MODULE(SampleNorm);

} // namespace memtrain_models

#endif
