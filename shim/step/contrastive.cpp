/* contrastive.cpp - steps and evaluations by cached embeddings; see contrastive.hpp. */
#include "contrastive.hpp"

#include <algorithm>

#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "arguments.hpp"
#include "autocast.hpp"
#include "recompute.hpp"
#include "cpu_memory.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "norm_watch.hpp"
#include "offload.hpp"
#include "onednn.hpp"
#include "step.hpp"
#include "watch.hpp"

namespace memtrain::shim {
namespace {

/* The heap serves this thread as long as the object lives: for what outlives a chunk. */
class OutsideArena {
public:
    OutsideArena() : before_(cpu::set_arena(nullptr)) {}
    ~OutsideArena() { cpu::set_arena(before_); }
    OutsideArena(const OutsideArena &) = delete;
    OutsideArena &operator=(const OutsideArena &) = delete;

private:
    cpu::Arena *before_;
};

std::vector<at::Tensor> embed_chunk(const mt_torch &torch, const Chunk &chunk, size_t samples) {
    AutocastIf autocast(torch.device.type(), torch.amp);
    return embed_of(*torch.model, chunk, samples);
}

Loss join_all(const mt_torch &torch, const std::vector<at::Tensor> &embeddings) {
    AutocastIf autocast(torch.device.type(), torch.amp);
    return join_of(*torch.model, embeddings);
}

} // namespace

void check_chunks(const char *function, const size_t *chunks, size_t count, size_t samples) {
    check(check_not_null(chunks, function, "chunks"));
    if (!count) fail(MT_EINVAL, "%s: count is 0; accepted: at least 1 chunk", function);
    for (size_t i = 0, left = samples; i < count; left -= chunks[i++])
        if (chunks[i] < 1 || chunks[i] > left)
            fail(MT_EINVAL,
                 "%s: chunks[%zu] is %zu; accepted: 1 to %zu, what is left of %zu samples",
                 function, i, chunks[i], left, samples);
}

mt_status check_cached(const char *function, const mt_torch &torch, bool wanted) {
    bool is_cached = torch.model->embedding_count != 0;
    if (is_cached == wanted) return MT_OK;
    return mt_set_error(MT_ENOTSUP, "%s: the model %s embeddings (embedding_count)", function,
                        is_cached ? "is trained by cached" : "has no");
}

/* ---- embeddings ---- */

void Embeddings::make(const std::vector<at::Tensor> &chunk, size_t total) {
    OutsideArena heap;
    std::vector<at::Tensor> made;
    for (const at::Tensor &one : chunk) {
        std::vector<int64_t> sizes = one.sizes().vec();
        sizes[0] = static_cast<int64_t>(total);
        made.push_back(at::empty(sizes, one.options()));
    }
    tensors_ = std::move(made);
}

/* Where a saver has moved the model or changed its dtype in the middle of an evaluation, rows follow. */
void Embeddings::put(const std::vector<at::Tensor> &chunk, size_t first, size_t count,
                     size_t total) {
    if (tensors_.empty()) make(chunk, total);
    for (size_t i = 0; i < chunk.size(); i++) {
        at::Tensor &all = tensors_[i];
        if (all.sizes().slice(1) != chunk[i].sizes().slice(1))
            fail(MT_EINVAL, "the model's embedding %zu has another shape than in the first chunk",
                 i);
        if (all.device() != chunk[i].device()) all = all.to(chunk[i].device());
        all.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(count)).copy_(chunk[i]);
    }
}

/* ---- a step ---- */

void CachedStep::clear() noexcept {
    told_.clear();
    gradients_.clear();
    values_ = {};
    next_ = samples_ = 0;
}

mt_status CachedStep::check_next(const char *function, size_t first, size_t count) const {
    if (next_ == told_.size())
        return mt_set_error(
            MT_ESTATE, "%s: samples %zu to %zu were not prepared (mt_prepare); no chunk is left",
            function, first, first + count - 1);
    const Told &told = told_[next_];
    if (told.first == first && told.count == count) return MT_OK;
    return mt_set_error(
        MT_ESTATE,
        "%s: samples %zu to %zu were not prepared as a chunk; the next one is %zu to "
        "%zu",
        function, first, first + count - 1, told.first, told.first + told.count - 1);
}

mt_status CachedStep::check_done(const char *function) const {
    if (told_.empty())
        return mt_set_error(MT_ESTATE, "%s: nothing was prepared (mt_prepare)", function);
    if (next_ == told_.size()) return MT_OK;
    return mt_set_error(MT_ESTATE, "%s: the chunk of samples %zu to %zu is missing", function,
                        told_[next_].first, told_[next_].first + told_[next_].count - 1);
}

/*
 * Buffers that the chunks have changed are put back, so that the chunks find what they found here, and
 * change them once.
 */
void CachedStep::prepare(mt_torch &torch, const cpu::Kind &kind, const size_t *chunks, size_t count,
                         bool deferred) {
    Embeddings all;
    for (size_t i = 0; i < count; samples_ += chunks[i++])
        told_.push_back({samples_, chunks[i], {}, 0.0});
    {
        c10::NoGradGuard no_graph;
        NormWatch watch(looks_for_norms(torch));
        for (Told &told : told_) embed(torch, kind, told, all, deferred);
        if (watch.found())
            fail(MT_EINVAL,
                 "the model has embeddings and normalises over the samples of a chunk (a batch "
                 "norm in "
                 "training mode): embeddings of chunks are not those of the batch; use layers that "
                 "normalise over a sample, or keep these in evaluation mode");
    }
    auto start = Clock::now();
    join(torch, all);
    after_.take(torch.device);
    torch.written.compare();
    put_back_state(torch, WrittenParameters::step);
    if (deferred) return;
    synchronize(torch.device);
    double seconds = seconds_since(start) / static_cast<double>(samples_);
    for (Told &told : told_) told.seconds += seconds * static_cast<double>(told.count);
}

/* The random numbers' state outlives the chunk, so it is taken before the arena serves. */
void CachedStep::embed(mt_torch &torch, const cpu::Kind &kind, Told &told, Embeddings &all,
                       bool deferred) {
    auto start = Clock::now();
    told.rng.take(torch.device);
    cpu::Planned planned(torch.device.is_host() ? torch.arena.get() : nullptr, kind, told.count,
                         false);
    Chunk chunk(torch.batch, told.first, told.count, torch.placement());
    all.put(embed_chunk(torch, chunk, told.count), told.first, told.count, samples_);
    if (deferred) return;
    synchronize(torch.device);
    told.seconds = seconds_since(start);
    planned.done(told.seconds);
}

void CachedStep::join(mt_torch &torch, Embeddings &all) {
    c10::AutoGradMode with_graph(true);
    std::vector<at::Tensor> leaves = all.take();
    for (at::Tensor &leaf : leaves)
        if (leaf.is_floating_point()) leaf.set_requires_grad(true);
    torch.flat->begin_chunk(false);
    Loss values = join_all(torch, leaves);
    check_graph(values.loss);
    at::Tensor weighted = weigh(torch, values.loss, 1.0);
    values.loss = values.loss.detach();
    weighted.backward();
    weighted.reset();
    KeepOneDnn::check();
    torch.flat->end_chunk(false, false);
    for (at::Tensor &leaf : leaves) gradients_.push_back(std::move(leaf.mutable_grad()));
    if (values.metrics.defined()) values.metrics = values.metrics.detach();
    values_ = std::move(values);
}

/* The metrics of all come with the first. */
void CachedStep::fill_result(mt_torch &torch, const Told &told, mt_chunk_result &result) const {
    double units = static_cast<double>(told.count), loss = 0.0;
    Loss values = {values_.loss, next_ == 0 ? values_.metrics : at::Tensor()};
    result.seconds = told.seconds;
    if (result.deferred) return torch.pending.put(values, units, told.count, torch.canary);
    read_values(torch, values, &loss, result.metric_sums);
    result.units = units;
    result.loss_sum = loss * units;
}

void CachedStep::accumulate(mt_torch &torch, mt_chunk_result &result) {
    const Told &told = told_[next_];
    c10::AutoGradMode with_graph(true);
    Forgetting rule = forgetting(torch, true);
    Checkpointing segments(rule, rule.on ? torch.buffers.named() : std::vector<Named>(),
                           &torch.written);
    Chunk chunk(torch.batch, told.first, told.count, torch.placement());
    std::vector<at::Tensor> embeddings;
    torch.flat->begin_chunk(false);
    told.rng.restore();
    {
        Offloading offloading(saved_tensors(torch, chunk, told.count));
        embeddings = embed_chunk(torch, chunk, told.count);
    }
    backward(torch, told, std::move(embeddings));
    check_unwritten("the backward pass", chunk);
    KeepOneDnn::check();
    torch.flat->end_chunk(false, false);
    note_segments(torch, rule, told.count, result);
    after_.restore();
    fill_result(torch, told, result);
    next_++;
}

/* What stands for no gradient, and what no parameter has made, has nothing to go back from. */
void CachedStep::backward(mt_torch &torch, const Told &told,
                          std::vector<at::Tensor> &&embeddings) const {
    std::vector<at::Tensor> roots, gradients;
    for (size_t i = 0; i < embeddings.size(); i++) {
        if (!gradients_[i].defined() || !embeddings[i].requires_grad()) continue;
        roots.push_back(std::move(embeddings[i]));
        gradients.push_back(gradients_[i].narrow(0, static_cast<int64_t>(told.first),
                                                 static_cast<int64_t>(told.count)));
    }
    if (roots.empty()) return;
    GradientWatch watch(*torch.flat, torch.sink, torch.arena ? torch.arena->recording() : nullptr);
    torch::autograd::backward(roots, gradients);
}

/* ---- an evaluation ---- */

void CachedEvaluation::clear() noexcept {
    all_.clear();
    done_ = samples_ = 0;
}

mt_status CachedEvaluation::check_next(const char *function, const mt_batch &batch,
                                       size_t first) const {
    if (first == 0 || (first == done_ && batch.count == samples_ && batch.id == id_)) return MT_OK;
    return mt_set_error(MT_ESTATE,
                        "%s: first is %zu, and of this batch %zu samples have gone through; with "
                        "embeddings its chunks come in their order",
                        function, first,
                        batch.count == samples_ && batch.id == id_ ? done_ : size_t{0});
}

void CachedEvaluation::run(mt_torch &torch, const mt_torch_batch &own, const mt_batch &batch,
                           size_t first, size_t count, mt_chunk_result &result) {
    c10::NoGradGuard no_graph;
    if (first == 0) clear();
    samples_ = batch.count;
    id_ = batch.id;
    Chunk chunk(own, first, count, torch.placement());
    all_.put(embed_chunk(torch, chunk, count), first, count, samples_);
    KeepOneDnn::check();
    if (first + count < samples_) return;
    double loss = 0.0;
    Loss joined = join_all(torch, all_.tensors());
    KeepOneDnn::check();
    read_values(torch, joined, &loss, result.metric_sums);
    result.units = static_cast<double>(samples_);
    result.loss_sum = loss * result.units;
}

void CachedEvaluation::end_chunk(size_t first, size_t count) noexcept {
    done_ = first + count;
    if (done_ == 0 || done_ == samples_) clear();
}

} // namespace memtrain::shim
