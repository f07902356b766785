/*
 * batches.hpp - batches that are made up, of the shapes and types that the models of the programs take: for their
 * suites and benchmarks. Random numbers are libtorch's, so a seed comes first.
 */
#ifndef NETWORKS_BATCHES_HPP
#define NETWORKS_BATCHES_HPP

#include <cstdint>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <memtrain/torch.hpp>

#include "prsmed_text.hpp"

namespace networks {

/* Tensors as the seam has them; dimension 0 is the sample. They stay the caller's too. */
class TensorBatch {
public:
    explicit TensorBatch(const memtrain::Tensors &tensors) : handles_(tensors) {
        data_.tensors = handles_.get();
        data_.count = tensors.size();
        batch_.data = &data_;
        batch_.count = static_cast<size_t>(tensors.at(0).size(0));
    }
    TensorBatch(const TensorBatch &) = delete;
    TensorBatch &operator=(const TensorBatch &) = delete;

    const mt_batch *get() const { return &batch_; }

private:
    memtrain::detail::Handles handles_;
    mt_torch_batch data_ = MT_TORCH_BATCH_INIT;
    mt_batch batch_ = MT_BATCH_INIT;
};

/* smartcash_model.h: pictures and boxes, of which the last one of each picture is none. */
inline memtrain::Tensors card_scenes(int64_t samples, int64_t side, int64_t classes, int64_t most) {
    at::Tensor boxes = at::rand({samples, most, 5});
    boxes.select(2, 0).mul_(classes).floor_();
    boxes.narrow(2, 1, 4).mul_(0.4).add_(0.25);
    boxes.select(1, most - 1).select(1, 0).fill_(-1);
    return {at::rand({samples, 3, side, side}) * 2 - 1, boxes};
}

/* Two prompts of different lengths in turn, padded: [samples, length]. */
inline at::Tensor prompts(int64_t samples, int64_t length) {
    using namespace memtrain_models;
    at::Tensor tokens = at::full({samples, length}, token_padding, at::kLong);
    for (int64_t i = 0; i < samples; i++) {
        const std::string text = i % 2 ? "the cat" : "a dog on the left";
        int64_t *row = tokens.data_ptr<int64_t>() + i * length;
        *row++ = token_begin;
        for (char c : text) *row++ = c;
        *row = token_end;
    }
    return tokens;
}

/* prsmed_model.h: pictures with a bright rectangle, its mask, and a prompt; side from 32 on. */
inline memtrain::Tensors prompt_scenes(int64_t samples, int64_t side, int64_t length) {
    at::Tensor pictures = at::randn({samples, 3, side, side});
    at::Tensor masks = at::zeros({samples, side, side});
    for (int64_t i = 0; i < samples; i++)
        masks[i].narrow(0, 4 * (i % 6), 10).narrow(1, 3 * (i % 8), 8).fill_(1);
    pictures += 2 * masks.unsqueeze(1);
    return {pictures, masks, prompts(samples, length)};
}

/* car_clip_model.h: pictures of noise and texts of any length, of which every third comes twice. */
inline memtrain::Tensors captioned(int64_t samples, int64_t side, int64_t vocabulary,
                                   int64_t context) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
    at::Tensor pictures = at::randn({samples, 3, side, side}, generator);
    at::Tensor tokens = at::randint(0, vocabulary - 2, {samples, context}, generator, at::kLong);
    for (int64_t i = 0; i < samples; i++) {
        tokens[i][2 + i % (context - 2)] = vocabulary - 1;
        if (i % 3 == 2) tokens[i].copy_(tokens[i - 1]);
    }
    return {pictures, tokens};
}

} // namespace networks
#endif
