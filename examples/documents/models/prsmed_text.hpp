/*
 * prsmed_text.hpp - a transformer over bytes (a GPT: pre-norm, causal, the head tied to the embedding) and
 * the block that it is made of, which the ViT of prsmed_vision.hpp has too.
 *
 *     memtrain_models::ByteGpt gpt(memtrain_models::ByteGptOptions{256, 6});
 *     torch::Tensor states = gpt->forward(tokens); // int64 [B, T] -> [B, T, 256]
 *
 * Tokens are bytes, and three more: begin, end, and padding, which only follows the end.
 */
#ifndef MEMTRAIN_MODELS_PRSMED_TEXT_HPP
#define MEMTRAIN_MODELS_PRSMED_TEXT_HPP

#include <cstdint>

#include <ATen/ops/gelu.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <memtrain/torch.hpp>

namespace memtrain_models {

constexpr int64_t token_begin = 256, token_end = 257, token_padding = 258, token_count = 259;

struct BlockOptions {
    int64_t width = 128;
    int64_t heads = 2;   /* divide width */
    bool causal = false; /* a token sees itself and those before it */
};

inline torch::nn::LayerNorm prsmed_norm(int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

/* [B, T, C] -> [B, heads, T, C / heads], and back. */
inline torch::Tensor split_heads(const torch::Tensor &x, int64_t heads) {
    return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}
inline torch::Tensor join_heads(const torch::Tensor &x) {
    return x.transpose(1, 2).flatten(2);
}

/* x + attention(norm(x)), then x + MLP(norm(x)): [B, T, width] -> the same. 12 w^2 + 13 w parameters. */
class PreNormBlockImpl : public torch::nn::Module {
public:
    explicit PreNormBlockImpl(const BlockOptions &o)
        : norm1(register_module("norm1", prsmed_norm(o.width))),
          qkv(register_module("qkv", torch::nn::Linear(o.width, 3 * o.width))),
          project(register_module("project", torch::nn::Linear(o.width, o.width))),
          norm2(register_module("norm2", prsmed_norm(o.width))),
          widen(register_module("widen", torch::nn::Linear(o.width, 4 * o.width))),
          narrow(register_module("narrow", torch::nn::Linear(4 * o.width, o.width))), options(o) {}

    torch::Tensor forward(torch::Tensor x) {
        auto parts = qkv(norm1(x)).chunk(3, -1); /* query, key, value: [B, T, width] each */
        torch::Tensor y = at::scaled_dot_product_attention(
            split_heads(parts[0], options.heads), split_heads(parts[1], options.heads),
            split_heads(parts[2], options.heads), /*attn_mask=*/{}, 0.0, options.causal);
        x = x + project(join_heads(y));
        return x + narrow(at::gelu(widen(norm2(x))));
    }

private:
    torch::nn::LayerNorm norm1;
    torch::nn::Linear qkv, project;
    torch::nn::LayerNorm norm2;
    torch::nn::Linear widen, narrow;
    BlockOptions options;
};
TORCH_MODULE(PreNormBlock);

struct ByteGptOptions {
    int64_t width = 128, layers = 4;
    int64_t context = 256; /* most tokens */
};

class ByteGptImpl : public torch::nn::Module {
public:
    explicit ByteGptImpl(const ByteGptOptions &o) {
        tokens = register_module("tokens", torch::nn::Embedding(token_count, o.width));
        positions = register_parameter("positions", 0.002 * at::randn({o.context, o.width}));
        blocks = register_module("blocks", torch::nn::Sequential());
        for (int64_t i = 0; i < o.layers; i++)
            blocks->push_back(PreNormBlock(BlockOptions{o.width, (o.width + 63) / 64, true}));
        norm = register_module("norm", prsmed_norm(o.width));
        torch::NoGradGuard no_grad;
        tokens->weight.mul_(0.02); /* it is the head as well: logits near 0 at the start. Positions
                                      begin smaller: a word is to be nearly the same in all places */
    }

    /* The states of the last layer: int64 [B, T] -> [B, T, width]. */
    torch::Tensor forward(const torch::Tensor &text) {
        torch::Tensor x = tokens(text) + positions.narrow(0, 0, text.size(1));
        return norm(blocks->forward(x));
    }

    /* Mean cross entropy of each token but the first, from those before it; padding is left out. */
    torch::Tensor loss(const torch::Tensor &text) {
        const int64_t last = text.size(1) - 1;
        torch::Tensor states = forward(text.narrow(1, 0, last));       /* [B, T - 1, width] */
        torch::Tensor logits = at::matmul(states, tokens->weight.t()); /* [B, T - 1, 259] */
        return at::cross_entropy_loss(logits.flatten(0, 1), text.narrow(1, 1, last).flatten(),
                                      /*weight=*/{}, at::Reduction::Mean, token_padding);
    }

private:
    torch::nn::Embedding tokens{nullptr};
    torch::Tensor positions;
    torch::nn::Sequential blocks{nullptr};
    torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(ByteGpt);

/*
 * Trains it on rows of tokens, int64 [N, T], drawn at random: what stands in for the pretraining of a
 * language model. One row at a time whatever the budget, so that it ends in the same numbers. Returns the
 * last loss.
 */
inline double train_bytes(ByteGptImpl &gpt, const torch::Tensor &rows, int64_t steps) {
    constexpr int64_t batch = 16;
    torch::optim::AdamW adam(gpt.parameters(), torch::optim::AdamWOptions(2e-3));
    double last = 0;
    for (int64_t i = 0; i < steps; i++) {
        torch::Tensor drawn = rows.index_select(0, at::randint(rows.size(0), {batch}, at::kLong));
        adam.zero_grad();
        last = 0;
        for (const torch::Tensor &chunk : drawn.split(1)) {
            torch::Tensor loss = gpt.loss(chunk) / batch;
            loss.backward();
            last += loss.item<double>();
        }
        adam.step();
    }
    adam.zero_grad();
    return last;
}

} // namespace memtrain_models

#endif
