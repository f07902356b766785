/*
 * torch_backend.cpp - an mt_torch behind the seam: the struct of functions, description, memory,
 * recording, units, and the state by name.
 */
#include "fnv.hpp"
#include "torch_state.hpp"

#include <cmath>

#include <ATen/Parallel.h>

#include "arguments.hpp"
#include "autocast.hpp"
#include "batch.hpp"
#include "compat.hpp"
#include "cpu_memory.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "hash.hpp"
#include "offload.hpp"
#include "relocate.hpp"

namespace memtrain::shim {
namespace {

mt_torch *torch_of(void *self) {
    return static_cast<mt_torch *>(self);
}

mt_status check_self(void *self, const char *function) {
    return check_handle(self, MT__KIND_TORCH, function, "torch");
}

/*
 * The caller's function where a batch is wrong: a trainer asks for the units of a batch before all else in a step,
 * and for its shape before all else in an evaluation.
 */
constexpr char in_step[] = "mt_trainer_step", in_evaluation[] = "mt_trainer_evaluate";

/* A rung only where it is not on from the start. Where segments are chosen, it is all of them. */
bool can_checkpoint(const mt_torch &torch) {
    return torch.model->checkpoints && torch.options.checkpointing != MT_CHECKPOINTING_ON;
}

/* Likewise. */
bool can_offload(const mt_torch &torch) {
    int option = torch.options.offload;
    return torch.offload && (option == MT_OFFLOAD_AUTO || option == MT_OFFLOAD_AUTO_PACK);
}

bool can_amp(const mt_torch &torch) {
    return number_of(torch.options.amp) == MT_DTYPE_NONE;
}

/* The chunk size whose kernels are known not to be those of smaller ones; 0: none. */
size_t kernels_change(const mt_torch &torch) {
    bool is_single = torch.device.is_cpu() && at::get_num_threads() == 1;
    return is_single && torch.has_pointwise ? compat::pointwise_change : 0;
}

/*
 * What chunks depend on beside their shape, rungs, threads and versions: a hash of parameters, buffers and
 * options. Of a model's code nothing is known.
 */
uint64_t model_key(const mt_torch &torch) {
    Fnv hash;
    auto add_tensor = [&](const std::string &name, const at::Tensor &tensor) {
        hash.add_bytes(name.data(), name.size());
        hash.add(static_cast<uint64_t>(tensor.scalar_type()));
        for (int64_t size : tensor.sizes()) hash.add(static_cast<uint64_t>(size));
    };
    const mt_torch_options &o = torch.options;
    for (const Slot &slot : torch.flat->slots()) add_tensor(slot.name, slot.parameter);
    for (const Named &buffer : buffers_of(*torch.model)) add_tensor(buffer.name, buffer.tensor);
    /* What is mapped is cast within chunks. */
    for (const Named &parameter : parameters_of(*torch.model))
        if (mapped_view(parameter.tensor)) add_tensor(parameter.name, parameter.tensor);
    for (int option : {static_cast<int>(o.amp), o.arena, o.checkpointing, o.offload,
                       o.channels_last, static_cast<int>(torch.shared != nullptr)})
        hash.add(static_cast<uint64_t>(option));
    hash.add(static_cast<uint64_t>(o.activation_share * 1e6));
    hash.add(o.activation_bytes);
    return hash.value() | 1; /* 0 would be none */
}

mt_status describe(void *self, mt_backend_info *out) {
    MT_RETURN_IF_FAILED(check_self(self, "describe"));
    MT_RETURN_IF_FAILED(check_sized(out, "describe", "out"));
    mt_torch &torch = *torch_of(self);
    const mt_model &model = *torch.model;
    mt_backend_info info = {};
    if (!torch.key) MT_RETURN_IF_FAILED(guard([&] { torch.key = model_key(torch); }));
    info.device = torch.device_name.c_str();
    info.version = mt_torch_version();
    info.min_micro_batch = std::max(model.min_micro_batch, size_t{torch.normalises ? 2U : 1U});
    info.normalises_over_batch = model.normalises_over_batch || torch.normalises;
    info.needs_whole_batch = model.needs_whole_batch;
    info.parameter_bytes = torch.parameter_bytes;
    info.gradient_bytes = torch.flat->bytes();
    info.optimizer_bytes = torch.optimizer->bytes();
    info.buffer_bytes = torch.buffers.bytes() + torch.written.bytes();
    info.metric_count = model.metric_names.size();
    info.metric_names = model.metric_names.data();
    info.metric_over = model.metric_over.empty() ? nullptr : model.metric_over.data();
    info.rungs = MT_RUNG_BIT(MT_RUNG_MINIMAL);
    if (can_checkpoint(torch)) info.rungs |= MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    if (can_offload(torch)) info.rungs |= MT_RUNG_BIT(MT_RUNG_OFFLOAD);
    if (can_amp(torch)) info.rungs |= MT_RUNG_BIT(MT_RUNG_AMP);
    /* All processes are to make their updates with the same kernels. */
    if (!torch.home.is_host() && !torch.shared) info.rungs |= MT_RUNG_BIT(MT_RUNG_CPU);
    info.kernels_change = kernels_change(torch);
    info.scales_loss = torch.scaler.has_value();
    if (torch.home.memory() == Memory::mps) info.record_rungs = MT_RUNG_BIT(MT_RUNG_CPU);
    info.model = torch.key;
    info.threads = at::get_num_threads();
    hand_over(info, out);
    return MT_OK;
}

/* Where nothing counts for us, what is known to be there is told, and the peak that was watched. */
void add_watched(const mt_torch &torch, mt_memory &memory) {
    memory.allocated_bytes = memory.reserved_bytes = torch.resident_bytes();
    memory.peak_bytes = std::max(torch.watched_peak, memory.allocated_bytes);
}

mt_status memory(void *self, mt_memory *out) {
    MT_RETURN_IF_FAILED(check_self(self, "memory"));
    MT_RETURN_IF_FAILED(check_sized(out, "memory", "out"));
    mt_torch &torch = *torch_of(self);
    return guard([&] {
        mt_memory now = device_memory(torch.device, false);
        if (torch.device.is_cpu() && !cpu::installed()) add_watched(torch, now);
        hand_over(now, out);
    });
}

mt_status reset_peak(void *self) {
    MT_RETURN_IF_FAILED(check_self(self, "reset_peak"));
    mt_torch &torch = *torch_of(self);
    torch.watched_peak = 0;
    return guard([&] { reset_device_peak(torch.device); });
}

mt_status empty_cache(void *self, mt_clear_result *out) {
    MT_RETURN_IF_FAILED(check_self(self, "empty_cache"));
    return mt_empty_cache(torch_of(self)->device_name.c_str(), out);
}

mt_status begin(void *self, const mt_batch *batch) {
    return mt_begin(torch_of(self), batch);
}

mt_status accumulate(void *self, size_t first, size_t count, double weight, mt_chunk_result *out) {
    return mt_accumulate(torch_of(self), first, count, weight, out);
}

mt_status collect(void *self, mt_chunk_result *out) {
    return mt_collect(torch_of(self), out);
}

mt_status prepare(void *self, const size_t *chunks, size_t count, mt_chunk_result *out) {
    return mt_prepare(torch_of(self), chunks, count, out);
}

mt_status rollback(void *self) {
    return mt_rollback(torch_of(self));
}

mt_status apply(void *self, mt_apply_result *out) {
    return mt_apply(torch_of(self), out);
}

mt_status evaluate(void *self, const mt_batch *batch, size_t first, size_t count,
                   mt_chunk_result *out) {
    return mt_evaluate(torch_of(self), batch, first, count, out);
}

/* On the CPU our allocator tells the sink; elsewhere a chunk listens while it runs, but MPS reports nothing. */
mt_status record(void *self, const mt_event_sink *sink) {
    MT_RETURN_IF_FAILED(check_self(self, "record"));
    if (sink)
        MT_RETURN_IF_FAILED(
            check_not_null(reinterpret_cast<const void *>(sink->event), "record", "sink->event"));
    mt_torch &torch = *torch_of(self);
    torch.sink = sink ? *sink : mt_event_sink{nullptr, nullptr};
    if (torch.device.is_cpu()) cpu::set_sink(sink);
    return MT_OK;
}

mt_status mark(void *self) {
    return mt_mark(torch_of(self));
}

mt_status rewind(void *self) {
    return mt_rewind(torch_of(self));
}

mt_status hold_gradients(void *self, int on) {
    return mt_hold_gradients(torch_of(self), on);
}

mt_status agree(void *self, double *values, size_t count) {
    MT_RETURN_IF_FAILED(check_self(self, "agree"));
    return guard([&] { torch_of(self)->shared->sum(values, count); });
}

mt_status shape(void *self, const mt_batch *batch, mt_shape *out) {
    MT_RETURN_IF_FAILED(check_self(self, "shape"));
    MT_RETURN_IF_FAILED(check_not_null(out, "shape", "out"));
    const mt_torch &torch = *torch_of(self);
    return guard([&] {
        *out = shape_in(torch, batch_of(in_evaluation, batch));
        if (torch.segments) out->id ^= torch.segments->kind(out->id);
    });
}

mt_status set_rate(void *self, double factor) {
    MT_RETURN_IF_FAILED(check_self(self, "set_rate"));
    if (!(factor > 0.0) || std::isinf(factor))
        return mt_set_error(MT_EINVAL, "set_rate: factor is %g, must be above 0", factor);
    torch_of(self)->optimizer->set_rate(factor);
    return MT_OK;
}

/* One thread: scratch memory of operators that have one share a thread goes. */
void set_minimal(mt_torch &torch, bool on) {
    if ((torch.threads != 0) == on) return;
    if (on) torch.threads = mt_torch_get_threads();
    check(mt_torch_set_threads(on ? 1 : torch.threads));
    if (!on) torch.threads = 0;
}

/* Peaks and recordings of the accelerator say nothing of the CPU, nor the other way round. */
void set_cpu(mt_torch &torch, bool on) {
    Device to = on ? Device(c10::Device(c10::kCPU)) : torch.home;
    if (torch.home.is_host() || torch.device.is_host() == on) return;
    relocate(torch, to);
}

mt_status set_rung(void *self, mt_rung rung, int on) {
    MT_RETURN_IF_FAILED(check_self(self, "set_rung"));
    mt_torch &torch = *torch_of(self);
    MT_RETURN_IF_FAILED(check_phase("set_rung", torch, Phase::idle, Phase::idle));
    switch (number_of(rung)) {
    case MT_RUNG_CHECKPOINTING:
        if (!can_checkpoint(torch)) break;
        torch.checkpointing = on != 0;
        torch.written.learn(); /* what segments write to is to be seen */
        return MT_OK;
    case MT_RUNG_OFFLOAD:
        if (!can_offload(torch)) break;
        torch.offloading = on != 0;
        return MT_OK;
    case MT_RUNG_AMP:
        if (!can_amp(torch)) break;
        if (on)
            MT_RETURN_IF_FAILED(
                guard(torch.device, [&] { check_bfloat16("set_rung", torch.device); }));
        torch.amp = on ? MT_BFLOAT16 : MT_DTYPE_NONE;
        return MT_OK;
    case MT_RUNG_CPU:
        return guard(on ? Device(c10::Device(c10::kCPU)) : torch.home,
                     [&] { set_cpu(torch, on != 0); });
    case MT_RUNG_MINIMAL:
        return guard(torch.device, [&] { set_minimal(torch, on != 0); });
    }
    return mt_set_error(MT_ENOTSUP, "set_rung: %s is not there", mt_rung_name(rung));
}

/* Before a step nobody answers an OOM: the model's function, which needs little memory, is called once more. */
mt_status units(void *self, const mt_batch *batch, size_t first, size_t count, double *out) {
    MT_RETURN_IF_FAILED(check_self(self, "units"));
    MT_RETURN_IF_FAILED(check_not_null(out, "units", "out"));
    auto ask = [&] {
        mt_torch_batch own = batch_of(in_step, batch);
        check_samples(in_step, first, count, batch->count);
        *out = units_of(*torch_of(self)->model, own, first, count);
    };
    mt_status status = guard(ask);
    if (status != MT_EDEVMEM) return status;
    (void)!mt_empty_cache("cpu", nullptr);
    return guard(ask);
}

mt_status look_at_parameters(void *self, int *out) {
    MT_RETURN_IF_FAILED(check_self(self, "look_at_parameters"));
    MT_RETURN_IF_FAILED(check_not_null(out, "look_at_parameters", "out"));
    mt_torch &torch = *torch_of(self);
    return guard(torch.device, [&] { *out = has_finite_parameters(torch); });
}

mt_status state_sha256(void *self, char out[65]) {
    return mt_torch_state_sha256(torch_of(self), out);
}

} // namespace

std::shared_ptr<Offload> offload_of(const mt_torch &torch) {
    if (!torch.offloading) return nullptr;
    bool is_rung_elsewhere = can_offload(torch) && torch.device.is_host() != torch.home.is_host();
    if (is_rung_elsewhere && torch.offload->kind() == MT_OFFLOAD_HOST) return nullptr;
    return torch.offload;
}

std::vector<Named> state_of(const mt_torch &torch) {
    std::vector<Named> list = without_mapped(weights_of(*torch.model));
    torch.optimizer->append_state(list);
    if (torch.scaler) list.push_back({Scaler::name, torch.scaler->state()});
    return list;
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_torch_backend(mt_torch *torch, mt_backend *out) {
    MT_RETURN_IF_FAILED(check_sized(out, "mt_torch_backend", "out"));
    MT_RETURN_IF_FAILED(check_self(torch, "mt_torch_backend"));
    mt_backend backend = MT_BACKEND_INIT;
    backend.self = torch;
    backend.describe = describe;
    backend.memory = memory;
    bool is_mps = torch->device.memory() == Memory::mps;
    backend.reset_peak = is_mps ? nullptr : reset_peak;
    backend.empty_cache = empty_cache;
    backend.begin = begin;
    backend.accumulate = accumulate;
    backend.rollback = rollback;
    backend.apply = apply;
    backend.evaluate = evaluate;
    backend.record = record;
    backend.units = units;
    if (torch->model->embedding_count) {
        backend.prepare = prepare;
    } else {
        backend.mark = mark;
        backend.rewind = rewind;
        backend.hold_gradients = torch->shared ? nullptr : hold_gradients;
    }
    if (torch->pending.is_there()) backend.collect = collect;
    backend.agree = torch->shared ? agree : nullptr;
    backend.set_rung = set_rung;
    backend.set_rate = set_rate;
    backend.shape = shape;
    backend.state_sha256 = state_sha256;
    backend.look_at_parameters = look_at_parameters;
    hand_over(backend, out);
    return MT_OK;
}

extern "C" mt_status mt_torch_state_sha256(mt_torch *torch, char out[65]) {
    MT_RETURN_IF_FAILED(check_self(torch, "mt_torch_state_sha256"));
    MT_RETURN_IF_FAILED(check_not_null(out, "mt_torch_state_sha256", "out"));
    return guard(torch->device, [&] {
        std::vector<Named> list = state_of(*torch);
        append_rng(torch->device, list);
        sort_by_name(list);
        sha256(list, out);
    });
}

/* Buffers and generators are each process's own. */
extern "C" mt_status mt_torch_check_processes(mt_torch *torch) {
    MT_RETURN_IF_FAILED(check_self(torch, "mt_torch_check_processes"));
    if (!torch->shared) return MT_OK;
    return guard(torch->device, [&] {
        std::vector<Named> list;
        for (const Slot &slot : torch->flat->slots()) list.push_back({slot.name, slot.parameter});
        torch->optimizer->append_state(list);
        torch->shared->compare_values(list);
    });
}

extern "C" mt_status mt_torch_visit_state(mt_torch *torch, mt_visit_fn fn, void *user) {
    MT_RETURN_IF_FAILED(check_self(torch, "mt_torch_visit_state"));
    MT_RETURN_IF_FAILED(
        check_not_null(reinterpret_cast<const void *>(fn), "mt_torch_visit_state", "fn"));
    return guard(torch->device, [&] {
        std::vector<Named> list = state_of(*torch);
        sort_by_name(list);
        for (const Named &named : list)
            check(mt_visit_tensor(&named.tensor, named.name.c_str(), fn, user));
    });
}
