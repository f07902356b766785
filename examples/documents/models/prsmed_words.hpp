/*
 * prsmed_words.hpp - what a language model's states are for the decoder: a mean of each word's bytes.
 */
#ifndef MEMTRAIN_MODELS_PRSMED_WORDS_HPP
#define MEMTRAIN_MODELS_PRSMED_WORDS_HPP

#include "prsmed_text.hpp"

#include <ATen/ops/one_hot.h>

namespace memtrain_models {

constexpr int64_t most_words = 16;

/* What a prompt is for the decoder. */
struct Words {
    torch::Tensor states; /* [B, most_words, width] */
    torch::Tensor exist;  /* bool [B, most_words] */
};

/* The mean state of each word's bytes, from int64 [B, T] and [B, T, width]: eight words instead of forty bytes. */
inline Words mean_words(const torch::Tensor &tokens, const torch::Tensor &states) {
    torch::Tensor number = tokens.eq(' ').cumsum(1).clamp_max(most_words - 1);
    torch::Tensor is_text = tokens.ne(token_padding).unsqueeze(2);
    torch::Tensor members = (at::one_hot(number, most_words) * is_text).to(states.scalar_type());
    torch::Tensor sizes = members.sum(1); /* [B, most_words] */
    torch::Tensor sums = at::matmul(members.transpose(1, 2), states);
    return {sums / sizes.clamp_min(1).unsqueeze(2), sizes.gt(0)};
}

} // namespace memtrain_models

#endif
