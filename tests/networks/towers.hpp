/*
 * towers.hpp - an image tower and a text tower whose embeddings are compared in pairs (Radford et al. 2021,
 * arXiv 2103.00020): two small transformers with LayerNorm and dropout, and a learnt scale of the logits.
 */
#ifndef NETWORKS_TOWERS_HPP
#define NETWORKS_TOWERS_HPP

#include <cmath>
#include <memory>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/embedding.h>

#include "vit.hpp"

namespace networks {

struct TowersOptions {
    VitOptions image;
    int64_t vocabulary = 64, length = 16, embedding = 32;
    bool shared = false; /* a parameter that both the towers and the loss use */
};

class TowersImpl : public torch::nn::Module {
public:
    explicit TowersImpl(const TowersOptions &o) : shared_(o.shared) {
        VitOptions tower = o.image;
        tower.classes = o.embedding;
        visual = register_module("visual", std::make_shared<VitImpl>(tower));
        tokens = register_module("tokens", torch::nn::Embedding(o.vocabulary, tower.width));
        positions = register_parameter("positions", 0.02 * at::randn({1, o.length, tower.width}));
        blocks = register_module("blocks", torch::nn::Sequential());
        for (int64_t i = 0; i < tower.depth; i++) blocks->push_back(VitBlock(tower));
        norm = register_module("norm", layer_norm(tower.width));
        project = register_module("project", torch::nn::Linear(tower.width, o.embedding));
        shift = register_parameter("shift", 0.1 * at::randn({o.embedding}), o.shared);
        logit_scale = register_parameter("logit_scale", at::zeros({}) + std::log(1 / 0.07));
    }

    /* [B, 3, side, side] -> [B, embedding] */
    torch::Tensor image(const torch::Tensor &pictures) {
        torch::Tensor x = visual->forward(pictures);
        return shared_ ? x + shift : x;
    }

    /* [B, length] -> [B, embedding] */
    torch::Tensor text(const torch::Tensor &words) {
        torch::Tensor x = tokens->forward(words) + positions;
        x = memtrain::checkpoint_sequential(blocks, blocks->size(), x);
        return project(norm(x.mean(1)));
    }

    /* Mean over the pairs of both cross entropies, and how many pictures find their text first. */
    memtrain::Output join(const memtrain::Tensors &embeddings) const {
        torch::Tensor i = unit(shared_ ? embeddings[0] * shift : embeddings[0]);
        torch::Tensor t = unit(embeddings[1]);
        torch::Tensor logits = logit_scale.exp() * i.matmul(t.t());
        torch::Tensor right = at::arange(logits.size(0), logits.options().dtype(at::kLong));
        torch::Tensor loss =
            (at::cross_entropy_loss(logits, right) + at::cross_entropy_loss(logits.t(), right)) / 2;
        return {loss, memtrain::correct(logits, right)};
    }
    memtrain::Tensors embed(const memtrain::Tensors &batch) {
        return {image(batch[0]), text(batch[1])};
    }

    torch::Tensor logit_scale, shift, positions;

private:
    static torch::Tensor unit(const torch::Tensor &x) { return x / x.norm(2, {1}, true); }

    std::shared_ptr<VitImpl> visual;
    torch::nn::Embedding tokens{nullptr};
    torch::nn::Sequential blocks{nullptr};
    torch::nn::LayerNorm norm{nullptr};
    torch::nn::Linear project{nullptr};
    bool shared_;
};

/* The towers trained by cached embeddings. */
inline auto contrastive(const std::shared_ptr<TowersImpl> &net) {
    auto description = memtrain::contrastive_model(
        net, {"recall"},
        [](TowersImpl &n, const memtrain::Tensors &batch) { return n.embed(batch); },
        [](TowersImpl &n, const memtrain::Tensors &embeddings) { return n.join(embeddings); });
    description.checkpoints = true;
    return description;
}

/* The same with a loss of each chunk alone. */
inline auto plain(const std::shared_ptr<TowersImpl> &net) {
    return memtrain::model(net, {"recall"}, [](TowersImpl &n, const memtrain::Tensors &batch) {
        return n.join(n.embed(batch));
    });
}

/* Made-up pictures and texts; freed with the object. */
class Pairs {
public:
    Pairs(size_t samples, const TowersOptions &o, at::ScalarType type = at::kFloat) {
        auto n = static_cast<int64_t>(samples);
        torch::Tensor noise = at::randn({n, 3, o.image.side, o.image.side}, generator());
        pictures = noise.to(type);
        words = (at::randn({n, o.length}, generator()).abs() * 20).to(at::kLong);
        words.clamp_(0, o.vocabulary - 1);
        tensors_[0] = handle(pictures, type == at::kDouble ? MT_FLOAT64 : MT_FLOAT32);
        tensors_[1] = handle(words, MT_INT64);
        data_.tensors = tensors_;
        data_.count = 2;
        batch.data = &data_;
        batch.count = samples;
    }
    ~Pairs() {
        for (mt_tensor *tensor : tensors_) mt_tensor_free(tensor);
    }
    Pairs(const Pairs &) = delete;
    Pairs &operator=(const Pairs &) = delete;

    torch::Tensor pictures, words;
    mt_batch batch = MT_BATCH_INIT;

private:
    at::Generator generator() {
        if (!generator_.defined()) generator_ = at::make_generator<at::CPUGeneratorImpl>(5);
        return generator_;
    }
    static mt_tensor *handle(const torch::Tensor &tensor, mt_dtype type) {
        mt_tensor *made = nullptr;
        if (mt_tensor_from_memory(tensor.data_ptr(), type, static_cast<size_t>(tensor.dim()),
                                  tensor.sizes().data(), &made) != MT_OK)
            throw std::runtime_error(mt_last_error());
        return made;
    }
    at::Generator generator_;
    mt_tensor *tensors_[2] = {nullptr, nullptr};
    mt_torch_batch data_ = MT_TORCH_BATCH_INIT;
};

} // namespace networks
#endif
