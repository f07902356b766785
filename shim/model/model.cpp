/* model.cpp - models as C functions: checks, calls, life. */
#include "model.hpp"

#include <cmath>
#include <new>
#include <sstream>

#include "arguments.hpp"
#include "guard.hpp"
#include "init.hpp"

mt_model::~mt_model() {
    if (ops.destroy) (void)memtrain::shim::guard([this] { ops.destroy(self); });
}

namespace memtrain::shim {
namespace {

void copy_traits(mt_model &model, const mt_model_traits &traits) {
    model.min_micro_batch = traits.min_micro_batch;
    model.normalises_over_batch = traits.normalises_over_batch != 0;
    model.needs_whole_batch = traits.needs_whole_batch != 0;
    model.checkpoints = traits.checkpoints != 0;
    model.embedding_count = traits.embedding_count;
    for (size_t i = 0; i < traits.metric_count; i++) {
        if (!traits.metric_names[i]) fail(MT_EINVAL, "mt_model_new: metric_names[%zu] is NULL", i);
        model.metrics.emplace_back(traits.metric_names[i]);
    }
    for (const auto &name : model.metrics) model.metric_names.push_back(name.c_str());
    if (traits.metric_over)
        model.metric_over.assign(traits.metric_over, traits.metric_over + traits.metric_count);
}

void check_traits(const mt_model_traits &traits) {
    if (traits.metric_count > MT_METRICS_MAX)
        fail(MT_EINVAL, "mt_model_new: metric_count is %zu, at most %d are possible",
             traits.metric_count, MT_METRICS_MAX);
    if (traits.metric_count && !traits.metric_names)
        fail(MT_EINVAL, "mt_model_new: metric_names is NULL");
    if (traits.embedding_count > MT_TENSORS_MAX)
        fail(MT_EINVAL, "mt_model_new: embedding_count is %zu; accepted: at most %d",
             traits.embedding_count, MT_TENSORS_MAX);
    if (traits.embedding_count && traits.normalises_over_batch)
        fail(MT_EINVAL,
             "mt_model_new: embedding_count is %zu and normalises_over_batch is set: statistics "
             "over a "
             "chunk couple its samples, so that embeddings of chunks are not those of the batch; "
             "use "
             "layers that normalise over a sample, or keep these in evaluation mode",
             traits.embedding_count);
    if (traits.embedding_count && traits.needs_whole_batch)
        fail(MT_EINVAL,
             "mt_model_new: embedding_count is %zu and needs_whole_batch is set; accepted: one of "
             "them",
             traits.embedding_count);
}

/* Either the loss of a chunk, or the embeddings of a chunk and the loss of all. */
void check_ops(const mt_model_ops &ops, size_t embedding_count) {
    if (!ops.visit_parameters) fail(MT_EINVAL, "mt_model_new: ops->visit_parameters is NULL");
    if (!embedding_count && !ops.loss) fail(MT_EINVAL, "mt_model_new: ops->loss is NULL");
    if (!embedding_count) return;
    if (!ops.embed) fail(MT_EINVAL, "mt_model_new: ops->embed is NULL");
    if (!ops.join) fail(MT_EINVAL, "mt_model_new: ops->join is NULL");
    if (ops.units)
        fail(MT_EINVAL, "mt_model_new: ops->units is set; with embeddings the loss is a mean over "
                        "samples, accepted: NULL");
}

void fill(mt_model &model, const mt_model_traits *traits) {
    mt_model_traits own = MT_MODEL_TRAITS_INIT;
    check(ensure_init());
    if (traits) {
        check(check_sized(traits, "mt_model_new", "traits"));
        copy_in(own, traits);
    }
    check_traits(own);
    check_ops(model.ops, own.embedding_count);
    copy_traits(model, own);
    if (!mt__handle_add(&model, MT__KIND_MODEL)) throw std::bad_alloc();
}

} // namespace

std::vector<Named> parameters_of(const mt_model &model) {
    std::vector<Named> list;
    call_model("visit_parameters", model.ops.visit_parameters, model.self, collect, &list);
    return list;
}

std::vector<Named> buffers_of(const mt_model &model) {
    std::vector<Named> list;
    if (model.ops.visit_buffers)
        call_model("visit_buffers", model.ops.visit_buffers, model.self, collect, &list);
    return list;
}

std::vector<Named> weights_of(const mt_model &model) {
    std::vector<Named> list = parameters_of(model);
    for (Named &buffer : buffers_of(model)) list.push_back(std::move(buffer));
    return list;
}

namespace {

double checked_units(double units) {
    if (!(units >= 0.0) || std::isinf(units))
        fail(MT_EINVAL, "the model counts %g units; accepted: a number, at least 0", units);
    return units;
}

void check_scalar(const char *function, const at::Tensor &loss) {
    if (!loss.defined())
        fail(MT_EINVAL, "the model's loss is missing: its %s has written nothing into out_loss",
             function);
    if (loss.numel() == 1) return;
    std::ostringstream shape;
    shape << loss.sizes();
    fail(MT_EINVAL,
         "the model's loss has the shape %.100s; accepted: a scalar, the mean over the chunk",
         shape.str().c_str());
}

/* Once. They are reported as 0, which reads like a result. */
void tell_of_no_metrics(const mt_model &model) {
    if (model.metrics.empty() || model.told_metrics) return;
    model.told_metrics = true;
    mt_log(
        MT_LOG_WARNING,
        "the model names %zu metrics ('%s' first) and its loss gave none: they are reported as 0",
        model.metrics.size(), model.metrics[0].c_str());
}

Loss checked(const mt_model &model, const char *function, TemporaryHandle &loss,
             TemporaryHandle &metrics) {
    check_scalar(function, loss.tensor());
    at::Tensor sums = metrics.tensor();
    if (!sums.defined()) tell_of_no_metrics(model);
    if (sums.defined() && static_cast<size_t>(sums.numel()) != model.metrics.size())
        fail(MT_EINVAL, "the model gave %lld metrics and names %zu",
             static_cast<long long>(sums.numel()), model.metrics.size());
    return {std::move(loss.tensor()), sums.defined() ? sums.detach() : sums, {}};
}

} // namespace

void check_unwritten(const char *what, const Chunk &chunk) {
    if (chunk.written() < chunk.count())
        fail(MT_EINVAL,
             "tensor %zu of the batch is written to by %s, and samples that run again would have "
             "that twice: clone() it there first; its values are not as before",
             chunk.written(), what);
}

namespace {

/* A function of the model's that gets a chunk. One that fails may have written to it before. */
template <class... Wanted, class... Given>
void call_with(const Chunk &chunk, const char *what, const char *name,
               mt_status (*function)(void *, mt_tensor *const *, size_t, Wanted...), void *self,
               Given... arguments) {
    try {
        call_model(name, function, self, chunk.handles(), chunk.count(), arguments...);
    } catch (...) {
        check_unwritten(what, chunk);
        throw;
    }
    check_unwritten(what, chunk);
}

constexpr char forward_pass[] = "the forward pass";

} // namespace

Loss loss_of(const mt_model &model, const Chunk &chunk) {
    TemporaryHandle loss, metrics;
    call_with(chunk, forward_pass, "loss", model.ops.loss, model.self, loss.get(), metrics.get());
    Loss values = checked(model, "loss", loss, metrics);
    if (model.loss_units) values.units = checked_units(*model.loss_units);
    return values;
}

std::vector<at::Tensor> embed_of(const mt_model &model, const Chunk &chunk, size_t samples) {
    Handles out{std::vector<at::Tensor>(model.embedding_count)};
    call_with(chunk, forward_pass, "embed", model.ops.embed, model.self, out.get(), out.count());
    std::vector<at::Tensor> list;
    for (size_t i = 0; i < out.count(); i++) {
        list.push_back(std::move(out.tensor(i)));
        const at::Tensor &one = list.back();
        if (!one.defined() || one.dim() < 1 || static_cast<size_t>(one.size(0)) != samples)
            fail(MT_EINVAL,
                 "the model's embedding %zu of a chunk is %s with %lld samples in dimension 0; "
                 "accepted: "
                 "the chunk's %zu",
                 i, !one.defined() ? "empty," : "a tensor",
                 static_cast<long long>(one.defined() && one.dim() ? one.size(0) : 0), samples);
    }
    return list;
}

Loss join_of(const mt_model &model, const std::vector<at::Tensor> &embeddings) {
    TemporaryHandle loss, metrics;
    Handles in(embeddings);
    call_model("join", model.ops.join, model.self, in.get(), in.count(), loss.get(), metrics.get());
    return checked(model, "join", loss, metrics);
}

double units_of(const mt_model &model, const mt_torch_batch &batch, size_t first, size_t count) {
    if (!model.ops.units) return static_cast<double>(count);
    double units = 0.0;
    Chunk chunk(batch, first, count, {c10::Device(c10::kCPU), false, true});
    call_with(chunk, "the function that counts its units", "units", model.ops.units, model.self,
              &units);
    return checked_units(units);
}

void set_training(const mt_model &model, bool on) {
    if (model.ops.set_training) call_model("set_training", model.ops.set_training, model.self, on);
}

void release_model(mt_model *model) noexcept {
    model->in_use = false;
    if (model->freed) (void)guard([&] { delete model; });
}

} // namespace memtrain::shim

using namespace memtrain::shim;

/* Whatever is wrong after ops has been read: the model is deleted, and with it self destroyed. */
extern "C" mt_status mt_model_new(const mt_model_ops *ops, void *self,
                                  const mt_model_traits *traits, mt_model **out) {
    mt_model_ops own = MT_MODEL_OPS_INIT;
    MT_RETURN_IF_FAILED(check_sized(ops, "mt_model_new", "ops"));
    copy_in(own, ops);
    mt_model *model = new (std::nothrow) mt_model(own, self);
    if (!model) {
        if (own.destroy) (void)guard([&] { own.destroy(self); });
        return mt_set_error(MT_ENOMEM, "mt_model_new: out of host memory");
    }
    mt_status status = check_not_null(out, "mt_model_new", "out");
    if (out) {
        *out = nullptr;
        status = guard([&] { fill(*model, traits); });
    }
    if (status == MT_OK)
        *out = model;
    else
        delete model;
    return status;
}

/* A model that trains stays until its mt_torch is freed. */
extern "C" void mt_model_free(mt_model *model) {
    if (!mt__handle_remove(model, MT__KIND_MODEL)) return;
    if (model->in_use) {
        model->freed = true;
        mt_log(MT_LOG_WARNING, "mt_model_free: in use; freed with its mt_torch");
        return;
    }
    (void)guard([&] { delete model; });
}
