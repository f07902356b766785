/* check_runs.cpp - runs of a few samples that are taken back; see check_runs.hpp. */
#include "check_runs.hpp"

#include <cmath>
#include <cstring>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>

#include "autocast.hpp"
#include "guard.hpp"
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
    default:
        fail(MT_ENOTSUP, "mt_torch_check: a gradient is of type %s", c10::toString(type));
    }
}

} // namespace

void Sketch::take(const Flat &flat, double factor) {
    Staging staging;
    uint64_t place = 0;
    values_.assign(flat.slots().size() * sums, 0.0);
    for (size_t i = 0; i < flat.slots().size(); i++) {
        const Slot &slot = flat.slots()[i];
        const at::Tensor &gradient = slot.parameter.grad();
        const auto elements = static_cast<uint64_t>(slot.parameter.numel());
        for (size_t at = 0; Flat::touched(slot) && at < gradient.nbytes();) {
            Staging::Bytes bytes = staging.get(gradient, at);
            add_bytes(gradient.scalar_type(), bytes, place + at / gradient.element_size(), factor,
                      &values_[i * sums]);
            at += bytes.count;
        }
        place += elements;
    }
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

/* ---- runs ---- */

Runs::Runs(mt_torch &torch, const mt_torch_batch &batch, size_t part, size_t parts)
    : torch_(torch), batch_(batch), part_(part), parts_(parts), arena_(std::move(torch.arena)),
      segments_(std::move(torch.segments)), checkpointing_(torch.checkpointing),
      learns_(torch.written.learns()), amp_(torch.amp), shape_(torch.shape) {
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
        for (size_t part : parts)
            rows.push_back(batch_.tensors[i]->tensor.narrow(0, static_cast<int64_t>(part * part_),
                                                            static_cast<int64_t>(part_)));
        list.push_back(at::cat(rows));
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
    batch.count = parts.size() * part_;
    mt_status status = mt_begin(&torch_, &batch);
    if (status != MT_OK) return status;
    torch_.written.learn(true); /* what is written in this mode may not be in another */
    status = body(batch.count);
    std::snprintf(line, sizeof line, "%s", mt_last_error());
    mt_status rolled = mt_rollback(&torch_);
    if (rolled != MT_OK) return rolled;
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

/* Apart from the chunk of a step: a loss without a graph fails there, and a graph that is not used takes memory. */
mt_status Runs::forward(bool with_graph, size_t samples, RunResult &out) {
    return guard(torch_.device, [&] {
        Calling calling(torch_);
        c10::AutoGradMode mode(with_graph);
        AutocastIf autocast(torch_.device.type(), torch_.amp);
        WatchWrites watch(&torch_.written);
        double counted = units_of(*torch_.model, torch_.batch, 0, samples), loss = 0.0;
        Chunk chunk(torch_.batch, 0, samples, torch_.placement());
        Loss values = torch_.model->embedding_count
                          ? join_of(*torch_.model, embed_of(*torch_.model, chunk, samples))
                          : loss_of(*torch_.model, chunk);
        out.has_graph = values.loss.requires_grad();
        out.has_metrics = values.metrics.defined();
        read_values(torch_, values, &loss, out.metrics);
        torch_.written.end_chunk();
        out.units = values.units.value_or(counted);
        out.loss_sum = out.units > 0.0 ? loss * out.units : 0.0;
    });
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
            set_mode(torch_, mode);
            append_rng(torch_.device, before);
        });
        if (status != MT_OK) return status;
        if (depth != Depth::backward)
            status = forward(depth == Depth::graph, samples, out);
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

} // namespace memtrain::shim
