/* check_runs.cpp - runs of a few samples that are taken back; see check_runs.hpp. */
#include "check_runs.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include "autocast.hpp"
#include "guard.hpp"
#include "norm_watch.hpp"
#include "injection.hpp"
#include "onednn.hpp"
#include "step.hpp"

namespace memtrain::shim {

/* ---- sketches ---- */

namespace {

/* The output function of SplitMix64 (Steele, Lea and Flood 2014). */
uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

template <class T>
void add_elements(const void *data, size_t count, uint64_t place, double factor, double *values) {
    const T *elements = static_cast<const T *>(data);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = mixed(place + i);
        double value = static_cast<double>(elements[i]) * factor;
        values[bits % Sketch::sums] += bits >> 63 ? value : -value;
    }
}

void add_bytes(c10::ScalarType type, const Staging::Bytes &bytes, uint64_t place, double factor,
               double *values) {
    size_t count = bytes.count / c10::elementSize(type);
    switch (type) {
    case at::kFloat:
        return add_elements<float>(bytes.data, count, place, factor, values);
    case at::kDouble:
        return add_elements<double>(bytes.data, count, place, factor, values);
    case at::kHalf:
        return add_elements<c10::Half>(bytes.data, count, place, factor, values);
    case at::kBFloat16:
        return add_elements<c10::BFloat16>(bytes.data, count, place, factor, values);
    case at::kLong:
        return add_elements<int64_t>(bytes.data, count, place, factor, values);
    case at::kInt:
        return add_elements<int32_t>(bytes.data, count, place, factor, values);
    default:
        return add_elements<uint8_t>(bytes.data, bytes.count, place, factor, values);
    }
}

void add_tensor(const at::Tensor &tensor, uint64_t place, double factor, double *values) {
    Staging staging;
    for (size_t at = 0; at < tensor.nbytes();) {
        Staging::Bytes bytes = staging.get(tensor, at);
        add_bytes(tensor.scalar_type(), bytes, place + at / tensor.element_size(), factor, values);
        at += bytes.count;
    }
}

} // namespace

void Sketch::take(const Flat &flat, double factor) {
    uint64_t place = 0;
    values_.assign(flat.slots().size() * sums, 0.0);
    for (size_t i = 0; i < flat.slots().size(); i++) {
        const Slot &slot = flat.slots()[i];
        const at::Tensor &gradient = slot.parameter.grad();
        if (Flat::touched(slot) && !at::isFloatingType(gradient.scalar_type()))
            fail(MT_ENOTSUP, "mt_torch_check: a gradient is of type %s",
                 c10::toString(gradient.scalar_type()));
        if (Flat::touched(slot)) add_tensor(gradient, place, factor, &values_[i * sums]);
        place += static_cast<uint64_t>(slot.parameter.numel());
    }
}

void Sketch::take(const std::vector<Named> &tensors) {
    values_.assign(tensors.size() * sums, 0.0);
    for (size_t i = 0; i < tensors.size(); i++)
        add_tensor(without_repeats(tensors[i].tensor), 0, 1.0, &values_[i * sums]);
}

void Sketch::add(const Sketch &other, double factor) {
    if (values_.empty()) values_.assign(other.values_.size(), 0.0);
    for (size_t i = 0; i < other.values_.size(); i++) values_[i] += other.values_[i] * factor;
}

double Sketch::length_of(size_t parameter) const {
    double square = 0.0;
    for (size_t i = 0; i < sums; i++) {
        double value = values_[parameter * sums + i];
        square += value * value;
    }
    return std::sqrt(square);
}

size_t Sketch::first_not_finite() const {
    size_t i = 0;
    while (i < values_.size() && std::isfinite(values_[i])) i++;
    return i / sums;
}

double Sketch::times(const Sketch &other) const {
    double product = 0.0;
    for (size_t i = 0; i < values_.size(); i++) product += values_[i] * other.values_[i];
    return product;
}

double Sketch::length() const {
    return std::sqrt(times(*this));
}

bool Sketch::equals(const Sketch &other) const {
    for (size_t i = 0; i < values_.size(); i++) {
        bool is_number = std::isfinite(values_[i]);
        if (is_number != std::isfinite(other.values_[i])) return false;
        if (is_number && values_[i] != other.values_[i]) return false;
    }
    return true;
}

/* ---- parameters ---- */

ParameterCopies::ParameterCopies(const mt_model &model) {
    for (Named &named : without_mapped(distinct(parameters_of(model))))
        parameters_.push_back({std::move(named.name), without_repeats(named.tensor.detach())});
    Staging staging;
    for (const Named &named : parameters_) {
        bytes_.emplace_back(named.tensor.nbytes());
        for (size_t at = 0; at < named.tensor.nbytes();) {
            Staging::Bytes piece = staging.get(named.tensor, at);
            std::memcpy(bytes_.back().data() + at, piece.data, piece.count);
            at += piece.count;
        }
    }
}

void ParameterCopies::put_back() {
    c10::NoGradGuard no_grad;
    Staging staging;
    for (size_t i = 0; i < parameters_.size(); i++) {
        const auto &[name, tensor] = parameters_[i];
        bool is_same = true;
        for (size_t at = 0; is_same && at < tensor.nbytes();) {
            Staging::Bytes piece = staging.get(tensor, at);
            is_same = std::memcmp(bytes_[i].data() + at, piece.data, piece.count) == 0;
            at += piece.count;
        }
        if (is_same) continue;
        staging.put(tensor, [&](size_t at, void *data, size_t count) {
            std::memcpy(data, bytes_[i].data() + at, count);
        });
        if (std::find(changed_.begin(), changed_.end(), name) == changed_.end())
            changed_.push_back(name);
    }
}

/* ---- runs ---- */

Runs::Runs(mt_torch &torch, const mt_torch_batch &batch, size_t count, size_t part, size_t parts)
    : torch_(torch), batch_(batch), count_(count), part_(part),
      parts_(spread_parts(batch, count, part, parts)), copies_(*torch.model),
      arena_(std::move(torch.arena)), segments_(std::move(torch.segments)),
      checkpointing_(torch.checkpointing), learns_(torch.written.learning()), amp_(torch.amp),
      shape_(torch.shape) {
    torch.checkpointing |= segments_ != nullptr;
}

Runs::~Runs() {
    torch_.arena = std::move(arena_);
    torch_.segments = std::move(segments_);
    torch_.checkpointing = checkpointing_;
    torch_.written.learn(learns_);
    torch_.amp = amp_;
    torch_.shape = shape_;
}

std::vector<at::Tensor> Runs::gather(const std::vector<size_t> &parts) const {
    std::vector<at::Tensor> list;
    for (size_t i = 0; i < batch_.count; i++) {
        std::vector<at::Tensor> rows;
        const at::Tensor &all = batch_.tensors[i]->tensor;
        for (size_t part : parts)
            rows.push_back(all.narrow(0, parts_.first[part], static_cast<int64_t>(part_)));
        list.push_back(rows.empty() ? all : at::cat(rows));
    }
    return list;
}

/* body runs in a step of these parts. Its error line outlives the rollback. */
template <class Body> mt_status Runs::taken_back(const std::vector<size_t> &parts, Body &&body) {
    char line[512];
    c10::NoGradGuard no_grad;
    Handles handles(gather(parts));
    mt_torch_batch data = {sizeof data, handles.get(), handles.count()};
    mt_batch batch = MT_BATCH_INIT;
    batch.data = &data;
    batch.count = parts.empty() ? count_ : parts.size() * part_;
    mt_status status = mt_begin(&torch_, &batch);
    if (status != MT_OK) return status;
    torch_.written.learn(); /* what is written in this mode may not be in another */
    status = body(batch.count);
    std::snprintf(line, sizeof line, "%s", mt_last_error());
    mt_status rolled = mt_rollback(&torch_);
    if (rolled != MT_OK) return rolled;
    copies_.put_back();
    return status == MT_OK ? MT_OK : mt_set_error(status, "%s", line);
}

mt_status Runs::chunk(size_t samples, RunResult &out) {
    mt_chunk_result result = MT_CHUNK_RESULT_INIT;
    mt_status status = torch_.flat->holds_gradients() ? MT_OK : mt_mark(&torch_);
    if (status == MT_OK) status = mt_accumulate(&torch_, 0, samples, 1.0, &result);
    out.loss_sum = result.loss_sum;
    out.units = result.units;
    std::memcpy(out.metrics, result.metric_sums, sizeof out.metrics);
    return status;
}

/* Whether a tensor that the loss is computed from, and that trains, has fewer bits than float32. */
static bool computes_in_half(const at::Tensor &loss) {
    std::unordered_set<const torch::autograd::Node *> seen = {nullptr};
    std::vector<const torch::autograd::Node *> nodes = {loss.grad_fn().get()};
    while (!nodes.empty()) {
        const torch::autograd::Node *node = nodes.back();
        nodes.pop_back();
        if (!seen.insert(node).second) continue;
        for (uint32_t i = 0; i < node->num_inputs(); i++) {
            const caffe2::TypeMeta type = node->input_metadata(i).options().dtype();
            bool is_floating = at::isFloatingType(type.toScalarType());
            if (is_floating && type.itemsize() < sizeof(float)) return true;
        }
        for (const torch::autograd::Edge &edge : node->next_edges())
            nodes.push_back(edge.function.get());
    }
    return false;
}

/* Apart from the chunk of a step: a loss without a graph fails there, and a graph that is not used takes memory. */
void Runs::forward(bool with_graph, size_t first, size_t samples, RunResult &out) {
    Calling calling(torch_);
    KeepOneDnn keep;
    injection::RefusalsEnd end(torch_.device);
    c10::AutoGradMode mode(with_graph);
    AutocastIf autocast(torch_.device.type(), torch_.amp);
    WatchWrites watch(&torch_.written);
    double counted = units_of(*torch_.model, torch_.batch, first, samples), loss = 0.0;
    Chunk chunk(torch_.batch, first, samples, torch_.placement());
    Loss values;
    try {
        values = torch_.model->embedding_count
                     ? join_of(*torch_.model, embed_of(*torch_.model, chunk, samples))
                     : loss_of(*torch_.model, chunk);
    } catch (const Failure &) {
        if (chunk.written() == chunk.count()) throw;
        out.written = chunk.written();
        return;
    }
    KeepOneDnn::check();
    out.has_graph = values.loss.requires_grad();
    out.has_metrics = values.metrics.defined();
    out.in_half = with_graph && computes_in_half(values.loss);
    read_values(torch_, values, &loss, out.metrics);
    torch_.written.end_chunk();
    out.units = values.units.value_or(counted);
    out.loss_sum = out.units > 0.0 ? loss * out.units : 0.0;
}

mt_status Runs::chunks(const std::vector<size_t> &chunks, RunResult &out) {
    std::vector<size_t> sizes;
    for (size_t parts : chunks) sizes.push_back(parts * part_);
    mt_chunk_result result = MT_CHUNK_RESULT_INIT;
    mt_status status = mt_prepare(&torch_, sizes.data(), sizes.size(), &result);
    for (size_t i = 0, first = 0; status == MT_OK && i < sizes.size(); first += sizes[i++]) {
        status = mt_accumulate(&torch_, first, sizes[i], 1.0, &result);
        out.loss_sum += result.loss_sum;
        out.units += result.units;
        for (size_t m = 0; m < MT_METRICS_MAX; m++) out.metrics[m] += result.metric_sums[m];
    }
    return status;
}

static void note_untouched(const Flat &flat, std::vector<size_t> &out) {
    for (size_t i = 0; i < flat.slots().size(); i++)
        if (!flat.slots()[i].frozen && !flat.slots()[i].received) out.push_back(i);
}

static bool are_same(const std::vector<Named> &a, const std::vector<Named> &b) {
    for (size_t i = 0; i < a.size(); i++)
        if (!at::equal(a[i].tensor, b[i].tensor)) return false;
    return true;
}

mt_status Runs::run(Mode mode, Depth depth, const std::vector<size_t> &parts,
                    const std::vector<size_t> &chunks, RunResult &out) {
    out = {};
    return taken_back(parts, [&](size_t samples) {
        std::vector<Named> before, after;
        mt_status status = guard(torch_.device, [&] {
            Calling calling(torch_);
            set_training(*torch_.model, mode == Mode::training);
            append_rng(torch_.device, before);
        });
        if (status != MT_OK) return status;
        if (depth != Depth::backward)
            status = guard(torch_.device, [&] { forward(depth == Depth::graph, 0, samples, out); });
        else
            status =
                torch_.model->embedding_count ? this->chunks(chunks, out) : chunk(samples, out);
        if (status != MT_OK) return status;
        return guard(torch_.device, [&] {
            append_rng(torch_.device, after);
            out.drew = !are_same(before, after);
            if (depth != Depth::backward) return;
            note_untouched(*torch_.flat, out.untouched);
            double scale = torch_.scaler ? torch_.scaler->scale() : 1.0;
            double divisor = torch_.divisor() > 0.0 ? torch_.divisor() : 1.0;
            out.gradient.take(*torch_.flat, 1.0 / (scale * divisor));
        });
    });
}

/* ---- buffers ---- */

/* By name, or because a batch norm was given their memory. */
static bool is_norms(const Named &buffer, const std::vector<const void *> &statistics) {
    return is_named_as_a_norms(buffer.name) ||
           std::count(statistics.begin(), statistics.end(), buffer.tensor.const_data_ptr()) != 0;
}

mt_status Runs::run_state(const std::vector<size_t> &parts, const std::vector<size_t> &chunks,
                          bool others, StateResult &out) {
    out = {};
    return taken_back(parts, [&](size_t) {
        RunResult result;
        NormWatch watch(true);
        mt_status status = guard(torch_.device, [&] {
            Calling calling(torch_);
            set_training(*torch_.model, true);
            out.buffers = buffers_of(*torch_.model);
            out.before.take(out.buffers);
            if (others) (void)at::rand({1}, at::device(torch_.device));
            if (torch_.model->embedding_count) return;
            for (size_t first = 0, i = 0; i < chunks.size(); first += chunks[i++] * part_)
                forward(false, first, chunks[i] * part_, result);
        });
        if (status == MT_OK && torch_.model->embedding_count) status = this->chunks(chunks, result);
        if (status != MT_OK) return status;
        return guard(torch_.device, [&] {
            out.buffers = buffers_of(*torch_.model);
            out.after.take(out.buffers);
            for (const Named &buffer : out.buffers)
                out.is_norms.push_back(is_norms(buffer, watch.statistics()));
        });
    });
}

} // namespace memtrain::shim
