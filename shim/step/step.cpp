/*
 * step.cpp - the parts of a step: begin, accumulate, rollback, apply, evaluate, and one plain step
 * made of them. What is done when memory runs out is decided elsewhere.
 */
#include "step.hpp"

#include <cmath>
#include <cstdio>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include "arguments.hpp"
#include "autocast.hpp"
#include "backward_queue.hpp"
#include "batch.hpp"
#include "recompute.hpp"
#include "cpu_memory.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "injection.hpp"
#include "norm_watch.hpp"
#include "offload.hpp"
#include "onednn.hpp"
#include "watch.hpp"

namespace memtrain::shim {

mt_status check_phase(const char *function, const mt_torch &torch, Phase one, Phase other) {
    if (torch.call != Call::none)
        return mt_set_error(MT_ESTATE, "%s: called by a function that a step has called", function);
    if (torch.phase == one || torch.phase == other) return MT_OK;
    switch (torch.phase) {
    case Phase::idle:
        return mt_set_error(MT_ESTATE, "%s: no step has begun", function);
    case Phase::in_step:
        return mt_set_error(MT_ESTATE, "%s: a step has begun and not ended", function);
    case Phase::failed:
        return mt_set_error(MT_ESTATE, "%s: the step has failed and waits for its rollback",
                            function);
    case Phase::poisoned:
        break;
    }
    return mt_set_error(MT_ESTATE, "%s: the state is lost: %s", function, torch.poison.c_str());
}

/* Which of the batch's tensors are copied into another order, a bit each. */
static uint64_t copied_set(const mt_torch &torch, const mt_torch_batch &batch) {
    uint64_t set = 0;
    for (size_t i = 0; torch.options.channels_last && i < batch.count; i++) {
        const at::Tensor &tensor = batch.tensors[i]->tensor;
        bool is_copied = tensor.dim() == 4 && !tensor.is_contiguous(at::MemoryFormat::ChannelsLast);
        set |= uint64_t{is_copied} << i;
    }
    return set;
}

mt_shape shape_in(const mt_torch &torch, const mt_torch_batch &batch) {
    mt_shape shape = shape_of(batch);
    uint64_t set = torch.flat->frozen_set() ^ copied_set(torch, batch);
    shape.id ^= set;
    shape.family ^= set;
    /* What is kept is chosen for each shape, so that none tells of another. */
    if (torch.segments) shape.length = 0;
    return shape;
}

void keep_state(mt_torch &torch, WrittenParameters::When when) {
    bool is_step = when == WrittenParameters::step;
    std::vector<Named> buffers = buffers_of(*torch.model);
    (is_step ? torch.buffers : torch.chunk_buffers).take(buffers);
    torch.written.take(when);
    if (is_step) torch.written_buffers.begin(std::move(buffers));
}

void put_back_state(mt_torch &torch, WrittenParameters::When when) {
    bool is_step = when == WrittenParameters::step;
    (is_step ? torch.buffers : torch.chunk_buffers).restore(*torch.model);
    torch.written.put_back(when);
}

/* The largest magnitude is an infinity or no number where an element is, and cannot overflow. */
bool has_finite_parameters(const mt_torch &torch) {
    c10::NoGradGuard no_grad;
    for (const Slot &slot : torch.flat->slots()) {
        if (!slot.parameter.numel()) continue;
        at::Tensor largest = at::linalg_vector_norm(slot.parameter, HUGE_VAL);
        if (!std::isfinite(largest.item().toDouble())) return false;
    }
    return true;
}

mt_status poison(mt_torch &torch, mt_status status) {
    torch.phase = Phase::poisoned;
    (void)guard([&] { torch.poison = mt_last_error(); });
    return status;
}

/* ---- one chunk ---- */

namespace {

/* Forward, under autocast where that is on; backward is outside of it. */
Loss forward(const mt_torch &torch, const Chunk &chunk) {
    AutocastIf autocast(torch.device.type(), torch.amp);
    return loss_of(*torch.model, chunk);
}

/* The same in training. The first chunk shows whether the model normalises by operators, which no module tells of. */
Loss forward_in_training(mt_torch &torch, const Chunk &chunk) {
    NormWatch watch(looks_for_norms(torch));
    Loss values = forward(torch, chunk);
    torch.normalises |= watch.found();
    if (watch.found()) torch.statistics = watch.statistics();
    return values;
}

} // namespace

bool looks_for_norms(const mt_torch &torch) {
    return !torch.looked && !torch.model->normalises_over_batch &&
           torch.model->min_micro_batch != 1;
}

Forgetting forgetting(const mt_torch &torch, bool backward) {
    Forgetting rule;
    rule.on = torch.checkpointing || torch.segments;
    if (torch.checkpointing || !torch.segments) return rule;
    rule.inner = false;
    rule.set = torch.segments->set(torch.shape);
    if (!rule.set && backward) rule.meter = std::make_shared<SegmentMeter>(torch.device);
    return rule;
}

void note_segments(mt_torch &torch, const Forgetting &rule, size_t samples,
                   mt_chunk_result &result) {
    if (!rule.meter) return;
    torch.segments->note(torch.shape, samples, rule.meter->finish());
    result.peak_bytes = rule.meter->peak();
}

void check_graph(const at::Tensor &loss) {
    if (loss.requires_grad()) return;
    fail(MT_EINVAL,
         "the model's loss has no graph: it was detached, computed without gradients, or "
         "from nothing that trains");
}

/* A loss in half precision has no room for a scale. */
at::Tensor weigh(const mt_torch &torch, const at::Tensor &loss, double weight) {
    if (!torch.scaler) return at::mul(loss, weight);
    bool is_half = loss.scalar_type() == at::kHalf;
    return at::mul(is_half ? loss.to(at::kFloat) : loss, weight * torch.scaler->scale());
}

/*
 * One copy from a device; two where it has no doubles to put counts of pixels and a loss together in; on
 * the CPU they are read where they are.
 */
void read_values(const mt_torch &torch, const Loss &values, double *loss, double *metrics) {
    at::Tensor first = values.loss.detach().reshape({1}), sums = values.metrics;
    if (sums.defined()) sums = sums.reshape({-1});
    if (sums.defined() && !first.is_cpu() && sums.device() == first.device() &&
        torch.device.has_doubles()) {
        at::Tensor all = at::cat({first.to(at::kDouble), sums.to(at::kDouble)});
        all = all.to(at::kCPU);
        first = all.narrow(0, 0, 1);
        sums = all.narrow(0, 1, sums.numel());
    }
    if (sums.defined()) sums = sums.to(at::kCPU);
    *loss = first[0].item().toDouble();
    for (int64_t i = 0; sums.defined() && i < sums.numel(); i++)
        metrics[i] = sums[i].item().toDouble();
}

namespace {

/* Figures of a deferred chunk stay on the card. */
void fill_result(mt_torch &torch, const Loss &values, double units, size_t samples,
                 mt_chunk_result &result) {
    double loss = 0.0;
    if (result.deferred) return torch.pending.put(values, units, samples, torch.canary);
    read_values(torch, values, &loss, result.metric_sums);
    set_sums(loss, units, result);
}

/*
 * The weight of a chunk whose units were not known before it ran. Its caller has weighed samples; by the units of a
 * sample the chunks' weights are in proportion to units, and mt_apply divides by their sum. Not the units themselves,
 * whose size would leave no room in half precision.
 */
double weight_of(const Loss &values, double weight, size_t samples) {
    return values.units ? weight * *values.units / static_cast<double>(samples) : weight;
}

} // namespace

/* What is there anyway, the chunk's own tensors too, stays. */
std::shared_ptr<SavedTensors> saved_tensors(const mt_torch &torch, const Chunk &chunk,
                                            size_t samples) {
    std::shared_ptr<Offload> offload = offload_of(torch);
    if (!offload) return nullptr;
    auto saved = std::make_shared<SavedTensors>(offload, torch.device.type(), samples);
    for (const Named &named : weights_of(*torch.model)) saved->leave_alone(named.tensor);
    for (size_t i = 0; i < chunk.count(); i++) saved->leave_alone(chunk.handles()[i]->tensor);
    return saved;
}

namespace {

/* Whether a chunk is the step, and its gradients may stay where they are made. */
bool is_whole(const mt_torch &torch, size_t count) {
    return torch.marked && torch.fresh && count == torch.samples && !torch.shared;
}

/* The same as a number: chunks of one kind make the same requests. */
uint64_t segments_kind(const mt_torch &torch) {
    if (torch.checkpointing) return 1;
    if (!torch.segments) return 0;
    return 2 + torch.segments->kind(torch.shape);
}

/*
 * The loss is multiplied by the weight whatever it is, so that one chunk of 1.0 takes the same path
 * as many. With a weight of 0 there is nothing to add, and a gradient of 0 times NaN would harm.
 * Returns the weight that the chunk had in the end.
 */
double forward_backward(mt_torch &torch, size_t first, size_t count, double weight,
                        mt_chunk_result &result) {
    c10::AutoGradMode grad(true);
    Forgetting rule = forgetting(torch, weight != 0.0);
    Checkpointing segments(rule, rule.on ? torch.buffers.named() : std::vector<Named>(),
                           &torch.written);
    double units = units_of(*torch.model, torch.batch, first, count);
    Chunk chunk(torch.batch, first, count, torch.placement());
    torch.flat->begin_chunk(torch.marked);
    Loss values;
    {
        Offloading offloading(weight != 0.0 ? saved_tensors(torch, chunk, count) : nullptr);
        values = forward_in_training(torch, chunk);
    }
    weight = weight_of(values, weight, count);
    if (weight != 0.0) {
        check_graph(values.loss);
        GradientWatch watch(*torch.flat, torch.sink,
                            torch.arena ? torch.arena->recording() : nullptr);
        at::Tensor weighted = weigh(torch, values.loss, weight);
        values.loss = values.loss.detach();
        weighted.backward();
        check_unwritten("the backward pass", chunk);
    } else {
        values.loss = values.loss.detach();
    }
    KeepOneDnn::check();
    fill_result(torch, values, values.units.value_or(units), count, result);
    result.normalises_over_batch = torch.model->normalises_over_batch || torch.normalises;
    torch.flat->end_chunk(torch.marked, is_whole(torch, count));
    note_segments(torch, rule, count, result);
    return weight;
}

void forward_only(mt_torch &torch, const mt_torch_batch &batch, size_t first, size_t count,
                  mt_chunk_result &result) {
    c10::NoGradGuard no_grad;
    double units = units_of(*torch.model, batch, first, count);
    Chunk chunk(batch, first, count, torch.placement());
    Loss values = forward(torch, chunk);
    KeepOneDnn::check();
    fill_result(torch, values, values.units.value_or(units), count, result);
}

/* ---- measuring ---- */

size_t peak_of(mt_torch &torch, const Listening &listening) {
    if (!torch.device.is_cpu() || cpu::installed()) return call_peak(torch.device);
    size_t peak = torch.resident_bytes() + listening.peak();
    torch.watched_peak = std::max(torch.watched_peak, peak);
    return peak;
}

/* A chunk that is about to run; samples 0: several. */
struct Run {
    bool training, backward;
    uint64_t segments;
    int offload;
    const mt_torch_batch &batch;
    size_t samples;
    bool apart;
};

/* NULL where tensors are another device's, and where they are not those of one chunk. */
cpu::Arena *arena_of(const mt_torch &torch, const Run &run) {
    return torch.device.is_host() && run.samples ? torch.arena.get() : nullptr;
}

cpu::Kind kind_of(const mt_torch &torch, const Run &run) {
    return {run.training,
            run.backward,
            run.segments,
            run.offload,
            shape_in(torch, run.batch).id,
            at::get_num_threads(),
            torch.amp};
}

/* And looks whether the device has done what it was given. */
void wait_for_device(mt_torch &torch, bool is_update) {
    torch.canary.send(torch.device);
    synchronize(torch.device);
    torch.canary.check(is_update);
}

/* Whether the caller of a chunk does without its figures for now, and they can stay on the card. */
bool is_deferred(const mt_torch &torch, const Run &run, const mt_chunk_result *out) {
    mt_chunk_result given = {};
    copy_in(given, out);
    bool is_told_late =
        !run.training && torch.model->embedding_count; /* with the last of its batch */
    return given.deferred && !is_told_late && torch.pending.is_there();
}

/* What was given to the device before is not to be measured with what comes. */
void begin_chunk(mt_torch &torch, bool deferred) {
    torch.optimizer->forget_norm();
    if (deferred) return torch.pending.begin(torch.canary);
    torch.pending.read(torch.canary);
    synchronize(torch.device);
}

/*
 * Runs body(result) in the guard and hands the result over. After a failure it holds the evidence
 * alone. Where a model's own code has lost what the error was, a refusal tells that it was memory.
 */
template <class Body>
mt_status measured(mt_torch &torch, const Run &run, mt_chunk_result *out, Body &&body) {
    mt_chunk_result result = {};
    bool deferred = is_deferred(torch, run, out);
    cpu::Refusals before = cpu::refusals();
    Calling calling(torch, run.training ? Call::step : Call::evaluation);
    KeepOneDnn keep;
    injection::RefusalsEnd end(torch.device);
    result.deferred = deferred;
    mt_status status = guard(torch.device, [&] {
        begin_chunk(torch, deferred);
        start_call_peak(torch.device);
        Listening listening(torch.device, torch.sink);
        if (torch.device.is_host() && cpu::installed()) cpu::follow_host();
        cpu::Planned planned(arena_of(torch, run), kind_of(torch, run), run.samples, run.apart);
        WatchWrites watch(torch.written.learns(run.training) ? &torch.written : nullptr);
        auto start = Clock::now();
        body(result);
        if (!deferred) wait_for_device(torch, false);
        double seconds = seconds_since(start);
        if (!deferred) result.seconds += seconds;
        planned.done(seconds);
        result.peak_bytes = std::max(result.peak_bytes, peak_of(torch, listening));
    });
    if (status != MT_OK) result = {};
    cpu::add_evidence(before, result);
    /* What the host has no room for tells nothing of a card's, so it is told without its bytes. */
    if (!torch.device.is_host()) result.refused_bytes = result.refused_in_use_bytes = 0;
    if (status == MT_ETORCH && result.refused) status = MT_EDEVMEM;
    hand_over(result, out);
    return status;
}

/*
 * After an update that was made or skipped, the device waited for. What it throws has changed nothing.
 */
void settle(mt_torch &torch, const Update &update) {
    if (torch.scaler && update.skipped && torch.scaler->is_spent()) torch.scaler->give_up();
    if (update.skipped) put_back_state(torch, WrittenParameters::step);
    if (torch.scaler) torch.scaler->count(update.skipped);
}

/* Looked at only after a loss that is not finite. Where there is no memory for that nothing is known of them. */
const char *state_of_parameters(const mt_torch &torch) {
    bool are_finite = true;
    char line[512];
    std::snprintf(line, sizeof line, "%s", mt_last_error());
    (void)guard(torch.device, [&] { are_finite = has_finite_parameters(torch); });
    mt_set_error(MT_OK, "%s", line);
    return are_finite ? "are as before"
                      : "hold values that are not finite since an earlier step: load a checkpoint "
                        "from before it";
}

/* Whether a plain step ends without an update, which it then tells. */
bool is_skipped(const mt_torch &torch, const mt_chunk_result &chunk, size_t samples) {
    if (!(chunk.units > 0.0)) {
        mt_log(MT_LOG_WARNING,
               "mt_train_step: skipped: the batch of %zu samples has no units, so that every label "
               "is masked",
               samples);
        return true;
    }
    if (std::isfinite(chunk.loss_sum) || torch.options.apply_not_finite) return false;
    mt_log(MT_LOG_WARNING,
           "mt_train_step: taken back: the loss is %g, and the parameters %s "
           "(options->apply_not_finite makes the update)",
           chunk.loss_sum / chunk.units, state_of_parameters(torch));
    return true;
}

/* Does what a failure asks for, which may fail too; the line of the failure stays. */
template <class Body> mt_status after_failure(mt_status status, Body &&body) {
    char reason[512];
    std::snprintf(reason, sizeof reason, "%s", mt_last_error());
    (void)guard(body);
    return mt_set_error(status, "%s", reason);
}

/* The figures of a chunk that has gone through count, if they are still to come. */
void keep_deferred(mt_torch &torch, const mt_chunk_result &out) {
    if (out.size >= sizeof out && out.deferred) torch.pending.keep();
}

/* The device may still read the batch, which is its caller's again once the call has returned. */
mt_status wait_after_failure(mt_torch &torch, mt_status status) {
    forget_room(torch.device);
    return after_failure(status, [&] { synchronize(torch.device); });
}

/* A part of the step has failed. Without host memory for a new queue the old one's gradients stay until the next backward. */
mt_status fail_step(mt_torch &torch, mt_status status) {
    torch.phase = Phase::failed;
    status = after_failure(status, [] { BackwardQueue::replace(BackwardQueue::make()); });
    return wait_after_failure(torch, status);
}

/* Of the first batch: data that were made before the budget are the usual case. */
void tell_uncounted(mt_torch &torch, const mt_torch_batch &batch) {
    size_t bytes = 0;
    if (torch.met_batch) return;
    torch.met_batch = true;
    for (size_t i = 0; i < batch.count; i++) {
        const at::Tensor &tensor = batch.tensors[i]->tensor;
        if (tensor.has_storage() && cpu::is_uncounted(tensor.storage().data_ptr()))
            bytes += tensor.storage().nbytes();
    }
    cpu::warn_of_uncounted("the first batch's tensors", bytes);
}

mt_status begin(const char *function, mt_torch *torch, const mt_batch *batch) {
    MT_RETURN_IF_FAILED(check_phase(function, *torch, Phase::idle, Phase::idle));
    Calling calling(*torch);
    return guard(torch->device, [&] {
        mt_torch_batch own = batch_of(function, batch);
        tell_uncounted(*torch, own);
        if (torch->flat->slots().empty())
            fail(
                MT_EINVAL,
                "%s: the model has no parameter that requires a gradient, so that there is nothing "
                "to train; requires_grad_(true) has one train",
                function);
        torch->evaluation.clear();
        torch->pending.clear();
        set_training(*torch->model, true);
        torch->rng.take(torch->device);
        keep_state(*torch, WrittenParameters::step);
        torch->flat->begin();
        torch->batch = own;
        torch->shape = shape_in(*torch, own).id;
        torch->samples = batch->count;
        torch->share = 0.0;
        torch->fresh = true;
        torch->whole = false;
        torch->phase = Phase::in_step;
    });
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

#define CHECK_TORCH(function)                                                                      \
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, function, "torch"))

extern "C" mt_status mt_begin(mt_torch *torch, const mt_batch *batch) {
    CHECK_TORCH("mt_begin");
    return begin("mt_begin", torch, batch);
}

extern "C" mt_status mt_accumulate(mt_torch *torch, size_t first, size_t count, double weight,
                                   mt_chunk_result *out) {
    CHECK_TORCH("mt_accumulate");
    MT_RETURN_IF_FAILED(check_sized(out, "mt_accumulate", "out"));
    MT_RETURN_IF_FAILED(check_phase("mt_accumulate", *torch, Phase::in_step, Phase::in_step));
    if (!(weight >= 0.0) || std::isinf(weight))
        return mt_set_error(MT_EINVAL, "mt_accumulate: weight is %g", weight);
    MT_RETURN_IF_FAILED(
        guard([&] { check_samples("mt_accumulate", first, count, torch->samples); }));
    if (torch->model->embedding_count)
        MT_RETURN_IF_FAILED(torch->cached.check_next("mt_accumulate", first, count));
    if (torch->whole)
        return mt_set_error(MT_ESTATE, "mt_accumulate: all %zu samples have been one marked chunk",
                            torch->samples);
    bool whole = is_whole(*torch, count);
    if (!torch->flat->holds_gradients() && !whole)
        return mt_set_error(MT_ESTATE,
                            "mt_accumulate: gradients are not held (mt_hold_gradients), so a chunk "
                            "must be marked and the whole batch, %zu samples; this one has %zu",
                            torch->samples, count);
    std::shared_ptr<Offload> offload = offload_of(*torch);
    Run run = {true,         weight != 0.0, segments_kind(*torch), offload ? offload->kind() : 0,
               torch->batch, count,         torch->marked};
    double share = 0.0;
    mt_status status = measured(*torch, run, out, [&](mt_chunk_result &result) {
        if (torch->model->embedding_count)
            torch->cached.accumulate(*torch, result);
        else
            share = forward_backward(*torch, first, count, weight, result);
    });
    if (status != MT_OK) return fail_step(*torch, status);
    keep_deferred(*torch, *out);
    torch->written.end_chunk();
    torch->written_buffers.end_chunk(torch->statistics);
    torch->written.is_learnt(true);
    torch->share +=
        share; /* of chunks that went through alone, so that a rewind takes nothing back */
    torch->whole = whole;
    torch->looked = true;
    torch->marked = torch->fresh = false;
    return MT_OK;
}

/* All chunks have run, as far as is known here, so the norm of their gradient comes by the same wait. */
static void read_pending(mt_torch &torch) {
    if (!torch.pending.has_rows()) return;
    bool wants_norm = torch.phase == Phase::in_step && !torch.shared;
    at::Tensor norm = wants_norm ? torch.optimizer->norm_ahead() : at::Tensor();
    double value = torch.pending.read(torch.canary, norm);
    if (norm.defined()) torch.optimizer->norm_is(value);
}

/*
 * A chunk of an evaluation that fails is taken back as one of a step is: what its forward pass writes to is as before. So are
 * the chunks before it whose figures are still to come, since they are run again. What is kept for that lies where a marked
 * chunk's does, since there is no step.
 */
static void keep_for_evaluation(mt_torch &torch) {
    if (torch.pending.has_rows() || !torch.pending.is_empty()) return;
    torch.chunk_buffers.take(buffers_of(*torch.model));
    torch.written.take(WrittenParameters::step);
}

static mt_status take_back_evaluation(mt_torch &torch, mt_status status) {
    (void)wait_after_failure(torch, status);
    std::string reason = mt_last_error();
    torch.pending.clear();
    mt_status ended = guard(torch.device, [&] {
        torch.written.compare();
        torch.chunk_buffers.restore(*torch.model);
        torch.written.put_back(WrittenParameters::step);
    });
    if (ended != MT_OK) return poison(torch, ended);
    return mt_set_error(status, "%s", reason.c_str());
}

static mt_status end_evaluation(mt_torch &torch, mt_status status) {
    if (status != MT_OK) return take_back_evaluation(torch, status);
    status = guard(torch.device, [&] {
        torch.written.end_chunk();
        torch.written.is_learnt(false);
    });
    return status == MT_OK ? MT_OK : poison(torch, status);
}

extern "C" mt_status mt_collect(mt_torch *torch, mt_chunk_result *out) {
    CHECK_TORCH("mt_collect");
    MT_RETURN_IF_FAILED(check_sized(out, "mt_collect", "out"));
    MT_RETURN_IF_FAILED(check_phase("mt_collect", *torch, Phase::in_step, Phase::idle));
    mt_chunk_result result = {};
    mt_status status = guard(torch->device, [&] {
        read_pending(*torch);
        if (torch->staging) torch->staging->give_back();
        if (torch->pending.is_empty()) fail(MT_ESTATE, "mt_collect: no chunk was deferred");
        result = torch->pending.take();
    });
    hand_over(result, out);
    if (status == MT_OK || status == MT_ESTATE) return status;
    if (torch->phase == Phase::in_step) return fail_step(*torch, status);
    return take_back_evaluation(*torch, status);
}

extern "C" mt_status mt_prepare(mt_torch *torch, const size_t *chunks, size_t count,
                                mt_chunk_result *out) {
    CHECK_TORCH("mt_prepare");
    MT_RETURN_IF_FAILED(check_sized(out, "mt_prepare", "out"));
    MT_RETURN_IF_FAILED(check_phase("mt_prepare", *torch, Phase::in_step, Phase::in_step));
    MT_RETURN_IF_FAILED(check_cached("mt_prepare", *torch, true));
    MT_RETURN_IF_FAILED(guard([&] { check_chunks("mt_prepare", chunks, count, torch->samples); }));
    Run run = {true, false, 0, 0, torch->batch, 0, false}; /* no graph, so no savers */
    torch->pending.clear();
    mt_status status = measured(*torch, run, out, [&](mt_chunk_result &result) {
        torch->cached.clear();
        torch->flat->begin();
        if (!torch->fresh) {
            torch->written.compare();
            put_back_state(*torch, WrittenParameters::step);
            torch->rng.restore();
        }
        torch->fresh = false;
        torch->cached.prepare(*torch, kind_of(*torch, run), chunks, count, result.deferred);
    });
    return status == MT_OK ? MT_OK : fail_step(*torch, status);
}

extern "C" mt_status mt_mark(mt_torch *torch) {
    CHECK_TORCH("mt_mark");
    MT_RETURN_IF_FAILED(check_phase("mt_mark", *torch, Phase::in_step, Phase::in_step));
    MT_RETURN_IF_FAILED(check_cached("mt_mark", *torch, false));
    Calling calling(*torch);
    return guard(torch->device, [&] {
        if (!torch->fresh) {
            torch->chunk_rng.take(torch->device);
            keep_state(*torch, WrittenParameters::chunk);
        }
        torch->marked = true;
    });
}

extern "C" mt_status mt_hold_gradients(mt_torch *torch, int on) {
    CHECK_TORCH("mt_hold_gradients");
    MT_RETURN_IF_FAILED(check_phase("mt_hold_gradients", *torch, Phase::idle, Phase::idle));
    if (!on) MT_RETURN_IF_FAILED(check_cached("mt_hold_gradients", *torch, false));
    if (!on && torch->shared)
        return mt_set_error(MT_ENOTSUP,
                            "mt_hold_gradients: on is 0; several processes add up their "
                            "gradients where they are held");
    return guard(torch->device, [&] { torch->flat->hold_gradients(on != 0); });
}

extern "C" mt_status mt_rewind(mt_torch *torch) {
    CHECK_TORCH("mt_rewind");
    MT_RETURN_IF_FAILED(check_phase("mt_rewind", *torch, Phase::in_step, Phase::failed));
    if (!torch->marked)
        return mt_set_error(MT_ESTATE, "mt_rewind: no chunk was marked, or it went through");
    Calling calling(*torch);
    mt_status status = guard(torch->device, [&] {
        torch->flat->drop_chunk();
        torch->written.compare();
        put_back_state(*torch, torch->fresh ? WrittenParameters::step : WrittenParameters::chunk);
        (torch->fresh ? torch->rng : torch->chunk_rng).restore();
        torch->marked = false;
        torch->phase = Phase::in_step;
    });
    return status == MT_OK ? MT_OK : poison(*torch, status);
}

extern "C" mt_status mt_rollback(mt_torch *torch) {
    CHECK_TORCH("mt_rollback");
    MT_RETURN_IF_FAILED(check_phase("mt_rollback", *torch, Phase::in_step, Phase::failed));
    Calling calling(*torch);
    mt_status status = guard(torch->device, [&] {
        synchronize(torch->device); /* chunks that went through may not have been waited for */
        if (torch->staging) torch->staging->give_back();
        torch->cached.clear();
        torch->pending.clear();
        torch->flat->clear_gradients();
        torch->written.compare();
        put_back_state(*torch, WrittenParameters::step);
        torch->rng.restore();
        torch->marked = false;
        torch->phase = Phase::idle;
    });
    return status == MT_OK ? MT_OK : poison(*torch, status);
}

/* That of all processes together. */
static double divisor_of(mt_torch &torch) {
    double divisor = torch.divisor();
    if (torch.shared && torch.model->loss_units) torch.shared->sum(&divisor, 1);
    return divisor;
}

/*
 * All that may need memory comes before the first parameter changes. Of several processes none goes on where one has
 * not come through it; a device's cache may hold what is missing.
 */
static void prepare_update(mt_torch &torch, double divisor) {
    auto prepare = [&] {
        double scale = torch.scaler ? torch.scaler->scale() : 1.0;
        torch.optimizer->prepare(scale * divisor, torch.scaler.has_value());
    };
    if (!torch.shared) return prepare();
    torch.shared->sum_gradients(*torch.flat);
    torch.shared->all_or_none([&] {
        mt_status status = guard(torch.device, prepare);
        if (status != MT_EDEVMEM) return check(status);
        (void)!mt_empty_cache(torch.device_name.c_str(), nullptr);
        prepare();
    });
}

/* changing is true while a failure would leave the update half made. */
static Update update_weights(mt_torch &torch, bool &changing) {
    Update update = {std::numeric_limits<double>::quiet_NaN(), true};
    double divisor = divisor_of(torch);
    if (divisor > 0.0) {
        prepare_update(torch, divisor);
        changing = true;
        torch.optimizer->step();
        torch.canary.send(torch.device);
        /* Whatever is read of the card waits for it. */
        if (!torch.optimizer->tells() && !torch.canary.is_there()) synchronize(torch.device);
        torch.canary.check(true);
        update = torch.optimizer->finish();
        changing = !update.skipped;
        settle(torch, update);
    } else {
        /* There is no gradient, so nothing for the scaler to count. The batch may still be on its way. */
        synchronize(torch.device);
        put_back_state(torch, WrittenParameters::step);
    }
    changing = true;
    return update;
}

extern "C" mt_status mt_apply(mt_torch *torch, mt_apply_result *out) {
    CHECK_TORCH("mt_apply");
    MT_RETURN_IF_FAILED(check_sized(out, "mt_apply", "out"));
    MT_RETURN_IF_FAILED(check_phase("mt_apply", *torch, Phase::in_step, Phase::in_step));
    if (torch->model->embedding_count) MT_RETURN_IF_FAILED(torch->cached.check_done("mt_apply"));
    mt_apply_result result = {};
    bool changing = false;
    Calling calling(*torch);
    mt_status status = guard(torch->device, [&] {
        auto start = Clock::now();
        Update update = update_weights(*torch, changing);
        torch->flat->end_step();
        torch->cached.clear();
        torch->marked = false;
        result.grad_norm = update.norm;
        result.skipped = update.skipped;
        if (!update.skipped) result.lr = torch->optimizer->lr_of_update();
        if (torch->staging) torch->staging->give_back();
        result.seconds = seconds_since(start);
        torch->phase = Phase::idle;
    });
    if (status != MT_OK && changing) return poison(*torch, status);
    if (status != MT_OK) torch->phase = Phase::failed;
    if (status == MT_OK && torch->segments) torch->segments->choose(torch->shape);
    hand_over(result, out);
    return status;
}

extern "C" mt_status mt_evaluate(mt_torch *torch, const mt_batch *batch, size_t first, size_t count,
                                 mt_chunk_result *out) {
    CHECK_TORCH("mt_evaluate");
    MT_RETURN_IF_FAILED(check_sized(out, "mt_evaluate", "out"));
    if (torch->call != Call::evaluation)
        MT_RETURN_IF_FAILED(check_phase("mt_evaluate", *torch, Phase::idle, Phase::idle));
    mt_torch_batch own = MT_TORCH_BATCH_INIT;
    MT_RETURN_IF_FAILED(guard([&] {
        own = batch_of("mt_evaluate", batch);
        check_samples("mt_evaluate", first, count, batch->count);
    }));
    bool cached = torch->model->embedding_count != 0;
    if (cached) MT_RETURN_IF_FAILED(torch->evaluation.check_next("mt_evaluate", *batch, first));
    bool keeps =
        torch->call != Call::evaluation; /* else a model's own evaluation of another batch */
    if (keeps && first == 0) torch->pending.clear();
    if (keeps) MT_RETURN_IF_FAILED(guard(torch->device, [&] { keep_for_evaluation(*torch); }));
    mt_status status = measured(
        *torch, Run{false, false, 0, 0, own, count, false}, out, [&](mt_chunk_result &result) {
            KeepRng keep(torch->device);
            set_training(*torch->model, false);
            if (cached)
                torch->evaluation.run(*torch, own, *batch, first, count, result);
            else
                forward_only(*torch, own, first, count, result);
        });
    if (cached) torch->evaluation.end_chunk(first, status == MT_OK ? count : 0);
    if (status == MT_OK) keep_deferred(*torch, *out);
    if (keeps) return end_evaluation(*torch, status);
    return status == MT_OK ? MT_OK : wait_after_failure(*torch, status);
}

/*
 * An update of a plain step. One that clipping has left out is told. One of a loss scaler is no news, unless the loss
 * itself is not finite and was to be applied.
 */
static mt_status update(mt_torch *torch, double loss, mt_apply_result *out) {
    mt_status status = mt_apply(torch, out);
    if (status != MT_OK || !out->skipped) return status;
    if (!std::isfinite(loss))
        mt_log(MT_LOG_WARNING, "mt_train_step: no update: the loss is %g, and the parameters %s",
               loss, state_of_parameters(*torch));
    else if (!torch->scaler)
        mt_log(
            MT_LOG_WARNING,
            "mt_train_step: no update: the norm of the gradient is %g, and the parameters are as "
            "before (options->apply_not_finite makes the update)",
            out->grad_norm);
    return status;
}

extern "C" mt_status mt_train_step(mt_torch *torch, const mt_batch *batch,
                                   mt_chunk_result *out_chunk, mt_apply_result *out_apply) {
    mt_chunk_result chunk = {}, prepared = {};
    mt_apply_result applied = {};
    chunk.size = prepared.size = sizeof chunk;
    applied.size = sizeof applied;
    CHECK_TORCH("mt_train_step");
    if (out_chunk) MT_RETURN_IF_FAILED(check_sized(out_chunk, "mt_train_step", "out_chunk"));
    if (out_apply) MT_RETURN_IF_FAILED(check_sized(out_apply, "mt_train_step", "out_apply"));
    if (torch->shared)
        return mt_set_error(MT_ENOTSUP,
                            "mt_train_step: not by several processes, whose weights it does "
                            "not know; mt_trainer_step is for them");
    MT_RETURN_IF_FAILED(begin("mt_train_step", torch, batch));
    mt_status status = torch->flat->holds_gradients() ? MT_OK : mt_mark(torch);
    if (status == MT_OK && torch->model->embedding_count)
        status = mt_prepare(torch, &batch->count, 1, &prepared);
    if (status == MT_OK) status = mt_accumulate(torch, 0, batch->count, 1.0, &chunk);
    chunk.peak_bytes = std::max(chunk.peak_bytes, prepared.peak_bytes);
    applied.grad_norm = NAN;
    applied.skipped = status == MT_OK && is_skipped(*torch, chunk, batch->count);
    if (status == MT_OK)
        status = applied.skipped ? mt_rollback(torch)
                                 : update(torch, chunk.loss_sum / chunk.units, &applied);
    if (out_chunk) hand_over(chunk, out_chunk);
    if (out_apply) hand_over(applied, out_apply);
    if (status == MT_OK || torch->phase == Phase::poisoned) return status;
    mt_status rolled = mt_rollback(torch);
    return rolled == MT_OK ? status : rolled;
}

extern "C" double mt_torch_scale(const mt_torch *torch) {
    if (!mt__handle_is(torch, MT__KIND_TORCH) || !torch->scaler) return 0.0;
    return torch->scaler->scale();
}

extern "C" mt_status mt_torch_set_lr(mt_torch *torch, double lr) {
    CHECK_TORCH("mt_torch_set_lr");
    if (!(lr > 0.0) || std::isinf(lr))
        return mt_set_error(MT_EINVAL, "mt_torch_set_lr: lr is %g, must be above 0", lr);
    torch->optimizer->set_lr(lr);
    return MT_OK;
}
