/*
 * prsmed_net.hpp - text model, encoder and decoder as one module, and its loss; see prsmed_model.h.
 */
#ifndef MEMTRAIN_MODELS_PRSMED_NET_HPP
#define MEMTRAIN_MODELS_PRSMED_NET_HPP

#include "prsmed_decoder.hpp"
#include "prsmed_model.h"
#include "prsmed_words.hpp"
#include "tiny_vit.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/where.h>

namespace memtrain_models {

/* Numbers of a state of the language model that the published decoder reads. */
constexpr int64_t published_prompt = 4096;

/* What the options of prsmed_model.h stand for. */
struct PrsmedSizes {
    ByteGptOptions text;
    MaskDecoderOptions decoder;
    int64_t stride;
};

inline MaskDecoderOptions mask_decoder_sizes(const prsmed_model_options &o) {
    switch (o.encoder) {
    case PRSMED_TINY_VIT: /* as published */
        return {std::max(o.text_width, published_prompt), 512, TinyVitEncoderImpl::width, 512,
                o.dropout};
    case PRSMED_VIT_TI:
        return {o.text_width, 256, VitEncoderImpl::width, 2 * VitEncoderImpl::width, o.dropout};
    default:
        return {o.text_width, 128, ConvEncoderImpl::width, 2 * ConvEncoderImpl::width, o.dropout};
    }
}

inline PrsmedSizes prsmed_sizes(const prsmed_model_options &o) {
    PrsmedSizes sizes;
    sizes.text.width = o.text_width;
    sizes.text.layers = o.text_layers;
    sizes.stride = o.encoder == PRSMED_CONV     ? ConvEncoderImpl::stride
                   : o.encoder == PRSMED_VIT_TI ? VitEncoderImpl::stride
                                                : TinyVitEncoderImpl::stride;
    sizes.decoder = mask_decoder_sizes(o);
    return sizes;
}

inline std::shared_ptr<VisionEncoder> vision_encoder(const prsmed_model_options &o) {
    if (o.encoder == PRSMED_TINY_VIT) return std::make_shared<TinyVitEncoderImpl>();
    if (o.encoder == PRSMED_VIT_TI) return std::make_shared<VitEncoderImpl>(o.side);
    return std::make_shared<ConvEncoderImpl>(o.side);
}

class PrsmedImpl : public torch::nn::Module {
public:
    explicit PrsmedImpl(const prsmed_model_options &o) {
        const PrsmedSizes sizes = prsmed_sizes(o);
        if (!o.words) text = register_module("text", ByteGpt(sizes.text));
        vision = register_module("vision", vision_encoder(o));
        decoder = register_module("decoder", MaskDecoder(sizes.decoder));
        word_mean = register_buffer("word_mean", at::zeros({o.text_width}));
        word_scale = register_buffer("word_scale", at::ones({o.text_width}));
        if (sizes.decoder.prompt > o.text_width) {
            const double scale = 1 / std::sqrt(static_cast<double>(o.text_width));
            word_spread = register_buffer("word_spread",
                                          at::randn({o.text_width, sizes.decoder.prompt}) * scale);
        }
    }

    /*
     * From now on the text model is as it is. What its words have in common in these prompts is taken off, and
     * what is left is scaled to 1: else they differ by a twentieth of their size, and the decoder does not
     * learn to tell them apart.
     */
    void freeze_text(const torch::Tensor &prompts) {
        if (!text) return;
        torch::NoGradGuard no_grad;
        if (prompts.defined()) {
            std::vector<torch::Tensor> seen;
            for (const torch::Tensor &some : prompts.split(8)) {
                const Words words = mean_words(some, text(some));
                seen.push_back(words.states.index({words.exist}));
            }
            torch::Tensor all = at::cat(seen); /* [words, width] */
            word_mean.copy_(all.mean(0));
            word_scale.copy_(1 / (all - word_mean).square().mean(0).sqrt().clamp_min(1e-6));
        }
        for (torch::Tensor &parameter : text->parameters()) parameter.set_requires_grad(false);
    }

    /* The frozen part stays in evaluation mode. */
    void train(bool on = true) override {
        torch::nn::Module::train(on);
        if (text) text->eval();
    }

    /* [B, 3, side, side] and int64 [B, T] -> logits [B, side, side] */
    torch::Tensor forward(const torch::Tensor &pictures, const torch::Tensor &tokens) {
        return forward(pictures, words_of(tokens));
    }

    /* The same with words that another language model has read. */
    torch::Tensor forward(const torch::Tensor &pictures, const Words &words) {
        torch::Tensor x = decoder(vision->forward(pictures), words.states, words.exist);
        x = at::upsample_bilinear2d(x, pictures.sizes().slice(2), /*align_corners=*/true);
        return x.squeeze(1);
    }

    /* What the prompts are for the decoder. */
    Words words_of(const torch::Tensor &tokens) {
        torch::NoGradGuard no_grad;
        Words words = mean_words(tokens, text(tokens));
        words.states = (words.states - word_mean) * word_scale;
        if (word_spread.defined()) words.states = at::matmul(words.states, word_spread);
        return words;
    }

    ByteGpt text{nullptr};
    std::shared_ptr<VisionEncoder> vision;
    MaskDecoder decoder{nullptr};
    torch::Tensor word_mean, word_scale; /* [text width] */
    /* [text width, published_prompt], random: a narrow text model in the place of a wide one. Undefined: none. */
    torch::Tensor word_spread;
};
TORCH_MODULE(Prsmed);

/* Dice of each picture, smoothed by 1: [B, side, side] twice -> [B]. Probabilities or a mask of 0 and 1. */
inline torch::Tensor soft_dice(const torch::Tensor &a, const torch::Tensor &b) {
    torch::Tensor both = (a * b).sum({1, 2}), all = a.sum({1, 2}) + b.sum({1, 2});
    return (2 * both + 1) / (all + 1);
}

/* Mean over the pictures of cross entropy plus 1 - Dice. */
inline torch::Tensor mask_loss(const torch::Tensor &logits, const torch::Tensor &masks) {
    torch::Tensor entropy = at::binary_cross_entropy_with_logits(logits, masks);
    return entropy + (1 - soft_dice(logits.sigmoid(), masks)).mean();
}

/* Sums over the pictures of Dice and IoU, of what has a logit above 0; nothing and nothing are alike. */
inline torch::Tensor mask_metrics(const torch::Tensor &logits, const torch::Tensor &masks) {
    torch::Tensor chosen = logits.detach().gt(0).to(at::kFloat);
    torch::Tensor both = (chosen * masks).sum({1, 2});
    torch::Tensor all = chosen.sum({1, 2}) + masks.sum({1, 2}), either = all - both;
    torch::Tensor one = at::ones_like(all), empty = all.eq(0);
    torch::Tensor dice = at::where(empty, one, 2 * both / all.clamp_min(1));
    torch::Tensor iou = at::where(empty, one, both / either.clamp_min(1));
    return at::stack({dice.sum(), iou.sum()});
}

} // namespace memtrain_models

#endif
