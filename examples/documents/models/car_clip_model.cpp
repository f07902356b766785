/*
 * car_clip_model.cpp - the towers of clip.hpp as an mt_model; see car_clip_model.h.
 */
#include "car_clip_model.h"
#include "clip.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>

#include <cstring>
#include <limits>

using memtrain::Tensors;
using memtrain_models::ClipImpl;
using memtrain_models::ClipOptions;

namespace {

constexpr int64_t piece = 16; /* pairs that an evaluation embeds at once */

at::Tensor unit(const at::Tensor &x) {
    at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
    return wide / wide.norm(2, {1}, true);
}

/* Which texts are the same: [B, context] -> [B, B]. */
at::Tensor same_text(const at::Tensor &tokens) {
    return tokens.unsqueeze(0).eq(tokens.unsqueeze(1)).all(2);
}

/*
 * scores [B, B] -> how many of the rows have a right column first, and among the first five. What is not
 * below the best right one stands before it, so that scores that are all equal, or no numbers, find nothing.
 */
at::Tensor hits(const at::Tensor &scores, const at::Tensor &right) {
    const double least = -std::numeric_limits<double>::infinity();
    at::Tensor best = scores.masked_fill(right.logical_not(), least).amax(1, true);
    at::Tensor before = scores.lt(best).logical_or(right).logical_not().sum(1);
    return at::stack({before.lt(1).sum(), before.lt(5).sum()}).to(at::kFloat);
}

/* [6], in the order of the names. */
at::Tensor recalls(const at::Tensor &scores, const at::Tensor &tokens) {
    at::Tensor right = same_text(tokens), found = scores.detach();
    at::Tensor texts = hits(found, right), pictures = hits(found.t(), right);
    return at::cat({(texts + pictures) / 2, texts, pictures});
}

/* The embeddings of a chunk; its tokens are handed on to tell which texts are the same. */
Tensors embed(ClipImpl &net, const Tensors &batch) {
    return {net.encode_image(batch.at(0)), net.encode_text(batch.at(1)), batch.at(1)};
}

/* The loss of all pairs whose embeddings these are. */
memtrain::Output join(ClipImpl &net, const Tensors &embeddings) {
    at::Tensor scores = unit(embeddings.at(0)).matmul(unit(embeddings.at(1)).t());
    at::Tensor logits = net.logit_scale.exp() * scores;
    at::Tensor right = at::arange(logits.size(0), logits.options().dtype(at::kLong));
    at::Tensor loss =
        (at::cross_entropy_loss(logits, right) + at::cross_entropy_loss(logits.t(), right)) / 2;
    return {loss, recalls(scores, embeddings.at(2))};
}

/* So that pairs can be compared beyond the largest chunk that is trained, without a graph. */
Tensors embed_in_pieces(ClipImpl &net, const Tensors &batch) {
    std::vector<Tensors> parts(3);
    for (int64_t i = 0, count = batch.at(0).size(0); i < count; i += piece) {
        const int64_t n = std::min(piece, count - i);
        Tensors some = embed(net, {batch[0].narrow(0, i, n), batch[1].narrow(0, i, n)});
        for (size_t k = 0; k < parts.size(); k++) parts[k].push_back(some[k]);
    }
    return {at::cat(parts[0]), at::cat(parts[1]), at::cat(parts[2])};
}

mt_status check(const car_clip_model_options *o) {
    if (!o || o->size < sizeof *o)
        return mt_set_error(MT_EINVAL, "car_clip_model_new: use CAR_CLIP_MODEL_OPTIONS_INIT");
    const struct {
        const char *name;
        int value, least, step;
    } fields[] = {
        {"image_width", o->resnet_width ? 64 : o->image_width, 64, 64},
        {"image_layers", o->resnet_width ? 1 : o->image_layers, 1, 1},
        {"resnet_width", o->resnet_width, 0, 2},
        {"text_width", o->text_width, 64, 64},
        {"text_layers", o->text_layers, 1, 1},
        {"embedding", o->embedding, 1, 1},
        {"patch", o->patch, 1, 1},
        {"side", o->side, o->patch, 1},
        {"vocabulary", o->vocabulary, 1, 1},
        {"context", o->context, 1, 1},
    };
    for (const auto &f : fields)
        if (f.value < f.least || f.value % f.step)
            return mt_set_error(
                MT_EINVAL, "car_clip_model_new: %s is %d, not at least %d and a multiple of %d",
                f.name, f.value, f.least, f.step);
    if (o->resnet_width && o->side % 32)
        return mt_set_error(MT_EINVAL, "car_clip_model_new: side is %d, not a multiple of 32",
                            o->side);
    if (o->contrastive != CAR_CLIP_CACHED && o->contrastive != CAR_CLIP_PLAIN)
        return mt_set_error(MT_EINVAL, "car_clip_model_new: contrastive is %d, not 0 or 1",
                            o->contrastive);
    return MT_OK;
}

ClipOptions clip_of(const car_clip_model_options *o) {
    ClipOptions clip;
    clip.image = {o->image_width, o->image_layers};
    clip.text = {o->text_width, o->text_layers};
    clip.embedding = o->embedding;
    clip.side = o->side;
    clip.patch = o->patch;
    clip.vocabulary = o->vocabulary;
    clip.context = o->context;
    clip.resnet_width = o->resnet_width;
    clip.frozen_norm = o->contrastive == CAR_CLIP_CACHED;
    return clip;
}

std::vector<std::string> metric_names() {
    return {"recall@1", "recall@5", "text@1", "text@5", "picture@1", "picture@5"};
}

/* The batch's own loss, by the embeddings of its chunks. */
auto cached(std::shared_ptr<ClipImpl> net) {
    auto description = memtrain::contrastive_model(std::move(net), metric_names(), embed, join);
    description.embeddings = 3;
    description.checkpoints = true;
    return description;
}

/* A loss of each chunk alone. */
auto plain(std::shared_ptr<ClipImpl> net) {
    auto loss = [](ClipImpl &n, const Tensors &batch) {
        return join(n, n.is_training() ? embed(n, batch) : embed_in_pieces(n, batch));
    };
    auto description = memtrain::model(std::move(net), metric_names(), loss);
    description.checkpoints = true;
    return description;
}

mt_status clamp_scale(void *, const char *name, mt_tensor *handle) {
    if (std::strcmp(name, "logit_scale") != 0) return MT_OK;
    try {
        at::NoGradGuard no_graph;
        memtrain::tensor(handle).clamp_max_(std::log(100.0));
        return MT_OK;
    } catch (...) {
        return mt_torch_exception();
    }
}

} // namespace

mt_status car_clip_model_new(const car_clip_model_options *options, mt_model **out) {
    mt_status status = check(options);
    if (status != MT_OK) return status;
    auto net = [&] { return std::make_shared<ClipImpl>(clip_of(options)); };
    if (options->contrastive == CAR_CLIP_PLAIN)
        return memtrain::make_model(out, [&] { return plain(net()); });
    return memtrain::make_model(out, [&] { return cached(net()); });
}

mt_status car_clip_model_clamp(mt_torch *torch) {
    return mt_torch_visit_state(torch, clamp_scale, nullptr);
}
