/* torch_new.cpp - options, construction and end of an mt_torch. */
#include "torch_state.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <set>

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include "arguments.hpp"
#include "device_name.hpp"
#include "autocast.hpp"
#include "cpu_memory.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "offload.hpp"
#include "relocate.hpp"
#include "sim_memory.hpp"
#include "tensor_file.hpp"

namespace memtrain::shim {
namespace {

constexpr char name_of[] = "mt_torch_new";

/* Bytes that a model needs before its first step, and others have; known before anything is allocated. */
struct Needs {
    size_t parameters = 0, gradients = 0, optimizer = 0, buffers = 0, others = 0;
};

/* Throws Failure unless low <= value, or low < value, and value < high. */
void check_range(const char *field, double value, double low, bool open, double high) {
    if ((open ? value > low : value >= low) && value < high) return;
    fail(MT_EINVAL, "%s: options->%s is %g, must be %s %g%s", name_of, field, value,
         open ? "above" : "at least", low, high < HUGE_VAL ? " and below 1" : "");
}

void check_options(const mt_torch_options &o) {
    int optimizer = number_of(o.optimizer), amp = number_of(o.amp);
    if (o.arena != MT_ARENA_AUTO && o.arena != MT_ARENA_NEVER)
        fail(MT_EINVAL,
             "%s: options->arena is %d; accepted: MT_ARENA_AUTO (0), MT_ARENA_NEVER (-1)", name_of,
             o.arena);
    if (o.channels_last != 0 && o.channels_last != 1)
        fail(MT_EINVAL, "%s: options->channels_last is %d; accepted: 0 and 1", name_of,
             o.channels_last);
    if (o.checkpointing < MT_CHECKPOINTING_AUTO || o.checkpointing > MT_CHECKPOINTING_CHOSEN)
        fail(MT_EINVAL,
             "%s: options->checkpointing is %d; accepted: MT_CHECKPOINTING_AUTO (0), "
             "MT_CHECKPOINTING_ON (1), MT_CHECKPOINTING_CHOSEN (2)",
             name_of, o.checkpointing);
    if (o.offload < MT_OFFLOAD_NEVER || o.offload > MT_OFFLOAD_AUTO_PACK)
        fail(
            MT_EINVAL,
            "%s: options->offload is %d; accepted: MT_OFFLOAD_NEVER (-1), AUTO (0), HOST (1), FILE "
            "(2), PACK (3), AUTO_PACK (4)",
            name_of, o.offload);
    if (o.offload > MT_OFFLOAD_AUTO && o.offload != MT_OFFLOAD_AUTO_PACK)
        check_offload(name_of, "options->offload", o.offload);
    if (optimizer != MT_SGD && optimizer != MT_ADAM && optimizer != MT_ADAMW)
        fail(MT_EINVAL,
             "%s: options->optimizer is %d; accepted: MT_SGD (%d), MT_ADAM (%d), MT_ADAMW (%d)",
             name_of, optimizer, MT_SGD, MT_ADAM, MT_ADAMW);
    check_range("lr", o.lr, 0, true, HUGE_VAL);
    check_range("weight_decay", o.weight_decay, 0, false, HUGE_VAL);
    check_range("clip_norm", o.clip_norm, 0, false, HUGE_VAL);
    if (optimizer == MT_SGD) {
        check_range("momentum", o.momentum, 0, false, 1);
        if (o.nesterov && !(o.momentum > 0))
            fail(MT_EINVAL, "%s: options->nesterov needs a momentum above 0", name_of);
    } else {
        check_range("beta1", o.beta1, 0, false, 1);
        check_range("beta2", o.beta2, 0, false, 1);
        check_range("eps", o.eps, 0, true, HUGE_VAL);
    }
    if (amp != MT_DTYPE_NONE && amp != MT_BFLOAT16 && amp != MT_FLOAT16)
        fail(MT_EINVAL, "%s: options->amp is %d; accepted: MT_DTYPE_NONE, MT_BFLOAT16, MT_FLOAT16",
             name_of, amp);
    if (o.scale_start != 0 && !Scaler::is_scale(o.scale_start))
        fail(MT_EINVAL,
             "%s: options->scale_start is %g; accepted: a power of two from 2^-16 to 2^32, or 0",
             name_of, o.scale_start);
}

/* MPS has fused updates that do not divide by a scale. */
void check_amp(const mt_torch_options &o, const Device &device) {
    if (number_of(o.amp) == MT_FLOAT16 && device.is_mps())
        fail(MT_ENOTSUP, "%s: options->amp is MT_FLOAT16; accepted on MPS: MT_BFLOAT16", name_of);
    if (number_of(o.amp) == MT_BFLOAT16) check_bfloat16(name_of, device);
}

size_t bytes_of(const std::vector<Named> &list) {
    size_t bytes = 0;
    for (const Named &named : list) bytes += without_repeats(named.tensor).nbytes();
    return bytes;
}

/* Weights [out, in, 1, 1]. */
bool is_pointwise(const Named &named) {
    const at::Tensor &t = named.tensor;
    return t.dim() == 4 && t.size(2) == 1 && t.size(3) == 1;
}

/* Only strides change, which Flat, the files of weights and other devices keep. */
void make_channels_last(const mt_torch &torch) {
    c10::NoGradGuard no_grad;
    constexpr auto order = at::MemoryFormat::ChannelsLast;
    for (const Named &named : without_mapped(distinct(parameters_of(*torch.model))))
        if (named.tensor.dim() == 4 && !named.tensor.is_contiguous(order))
            named.tensor.set_data(named.tensor.contiguous(order));
}

/* What a step keeps of them it copies, and puts back where they lie; files have them too. */
void check_kind(const Named &named) {
    const char *name = named.name.c_str();
    if (named.tensor.layout() != c10::kStrided)
        fail(MT_ENOTSUP,
             "%s: parameter or buffer '%.100s' has the layout %s; accepted: Strided, as dense "
             "tensors have it",
             name_of, name, c10::str(named.tensor.layout()).c_str());
    if (named.tensor.is_meta())
        fail(MT_ENOTSUP,
             "%s: parameter or buffer '%.100s' is on the device meta, which has no values; "
             "accepted: tensors with memory",
             name_of, name);
    if (named.tensor.is_inference() && named.tensor.requires_grad())
        fail(MT_EINVAL,
             "%s: parameter '%.100s' was made in c10::InferenceMode, so that it cannot be trained; "
             "accepted: a model that is made outside of it",
             name_of, name);
    if (!has_file_type(named.tensor))
        fail(MT_ENOTSUP,
             "%s: parameter or buffer '%.100s' is of the type %s, which no file of weights has; "
             "accepted: floats, integers, booleans, complex64",
             name_of, name, c10::toString(named.tensor.scalar_type()));
}

/* Frozen blocks compute where the mapped memory is. */
void check_mapped(const mt_torch &torch) {
    if (torch.model->mapping && !torch.device.is_host())
        fail(MT_ENOTSUP,
             "%s: options->device is %s, and the model has mapped weights (mt_model_map_weights); "
             "accepted: cpu, or weights that are loaded (mt_map_options.load)",
             name_of, torch.device_name.c_str());
}

void check_kinds(const mt_torch &torch) {
    for (const Named &named : weights_of(*torch.model)) check_kind(named);
}

/* Calls fn with the offset of each element. */
template <class Fn>
void each_element(const at::Tensor &tensor, Fn &&fn, int64_t dim = 0, int64_t offset = 0) {
    if (dim == tensor.dim()) return fn(offset);
    for (int64_t i = 0; i < tensor.size(dim); i++)
        each_element(tensor, fn, dim + 1, offset + i * tensor.stride(dim));
}

/* Whether they have a byte in common. Columns of one matrix mesh and have none. */
bool share_elements(const at::Tensor &a, const at::Tensor &b) {
    Span span(a), other(b);
    if (!span.meets(other)) return false;
    if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()) return true;
    std::vector<bool> taken(span.end - span.begin);
    size_t bytes_a = a.element_size(), bytes_b = b.element_size();
    bool found = false;
    each_element(a, [&](int64_t offset) {
        for (size_t i = 0; i < bytes_a; i++)
            taken[static_cast<size_t>(offset) * bytes_a + i] = true;
    });
    each_element(b, [&](int64_t offset) {
        uintptr_t at = other.begin + static_cast<size_t>(offset) * bytes_b;
        for (uintptr_t end = at + bytes_b; at < end; at++)
            found |= at >= span.begin && at < span.end && taken[at - span.begin];
    });
    return found;
}

/* Elsewhere than on the host addresses may be those of handles: there one storage tells. */
bool share_memory(const at::Tensor &a, const at::Tensor &b) {
    if (!a.is_alias_of(b) && !(a.is_cpu() && b.is_cpu())) return false;
    return share_elements(a, b);
}

/*
 * A parameter that trains moves to a place of its own, and another tensor that was a view of its memory would keep the
 * old values. The same tensor under two names is one.
 */
void check_sharing(const mt_torch &torch) {
    std::vector<Named> weights = distinct(weights_of(*torch.model));
    for (const Slot &slot : torch.flat->slots()) {
        Span span(slot.parameter);
        for (const Named &other : weights) {
            if (other.tensor.is_same(slot.parameter) || !span.meets(Span(other.tensor))) continue;
            if (!share_memory(slot.parameter, other.tensor)) continue;
            fail(MT_EINVAL,
                 "%s: '%.80s' and '%.80s' share memory and are two tensors: '%.80s' trains in "
                 "memory of its own, and the other one would keep the old values; accepted: the "
                 "same tensor registered under both names, or a copy (clone)",
                 name_of, slot.name.c_str(), other.name.c_str(), slot.name.c_str());
        }
    }
}

void plan(mt_torch &torch) {
    std::vector<Named> parameters = parameters_of(*torch.model);
    torch.parameter_bytes = bytes_of(without_mapped(distinct(parameters)));
    torch.has_pointwise = std::any_of(parameters.begin(), parameters.end(), is_pointwise);
    torch.flat = std::make_unique<Flat>(parameters, [&](const std::string &name) {
        return torch.groups[group_of(torch.groups, name)].frozen;
    });
    torch.optimizer = std::make_unique<Optimizer>(torch.options, torch.groups, *torch.flat);
}

/* Without one that needs a gradient it can still be evaluated. */
void check_parameters(const mt_torch &torch) {
    if (!torch.parameter_bytes && parameters_of(*torch.model).empty())
        fail(MT_EINVAL,
             "%s: the model has no parameters; a module knows those of register_parameter and "
             "register_module, and in C visit_parameters tells of them",
             name_of);
    if (torch.flat->slots().empty())
        mt_log(MT_LOG_WARNING,
               "%s: no parameter of the model requires a gradient (requires_grad_), so that it can "
               "be evaluated and not trained",
               name_of);
}

bool is_frozen(const mt_torch &torch, const Slot &slot) {
    return torch.groups[group_of(torch.groups, slot.name)].frozen;
}

/* Files of weights go by name. */
void check_names(const mt_torch &torch) {
    std::set<std::string> names;
    for (const Named &named : distinct(weights_of(*torch.model)))
        if (!names.insert(named.name).second)
            fail(MT_EINVAL, "%s: two parameters or buffers of the model have the name '%.100s'",
                 name_of, named.name.c_str());
}

/* A pattern that fits nothing is a slip of the pen, and a loss without parameters has no gradient. */
void check_groups(const mt_torch &torch) {
    const std::vector<Slot> &slots = torch.flat->slots();
    size_t trained = 0;
    for (size_t i = 1; i < torch.groups.size(); i++) {
        const char *pattern = torch.groups[i].pattern.c_str();
        bool fits = false;
        for (const Slot &slot : slots) fits |= matches(pattern, slot.name);
        if (!fits)
            fail(MT_EINVAL,
                 "%s: options->groups[%zu].pattern '%.100s' matches no trainable parameter; "
                 "accepted: how a name begins, '%.100s' say, or * for any text",
                 name_of, i - 1, pattern, slots.empty() ? "" : slots[0].name.c_str());
    }
    for (const Slot &slot : slots) trained += !is_frozen(torch, slot);
    if (!slots.empty() && !trained)
        fail(MT_EINVAL, "%s: options->groups leave no parameter to train", name_of);
}

/* None where libtorch asks others for hooks. */
void open_offload(mt_torch &torch, const mt_torch_options &options) {
    int kind = offload_kind(options, torch.device);
    if (kind == MT_OFFLOAD_NEVER || !has_saving_hooks()) return;
    torch.offload = std::make_shared<Offload>(name_of, kind, options.offload_dir);
    torch.offloading = options.offload == kind;
}

/* Chunks of embeddings have the weight of a whole batch's loss, which is one process's. */
void check_processes(const mt_torch_options &o, const mt_model &model) {
    if (!o.processes) return;
    check(check_sized(o.processes, name_of, "options->processes"));
    check_group(name_of, *o.processes);
    if (o.processes->count > 1 && model.embedding_count)
        fail(
            MT_ENOTSUP,
            "%s: options->processes has %d processes, and the loss of a model with embeddings sees "
            "the pairs of one; accepted: 1",
            name_of, o.processes->count);
}

/* What is chosen by is measured: where nothing counts tensors there is nothing to choose by. */
void open_segments(mt_torch &torch, const mt_torch_options &options) {
    if (options.checkpointing != MT_CHECKPOINTING_CHOSEN) return;
    if (torch.device.is_cpu() && !cpu::installed())
        fail(MT_ENOTSUP,
             "%s: options->checkpointing is MT_CHECKPOINTING_CHOSEN, which needs the budgeted CPU "
             "allocator (mt_torch_enforces_budget)",
             name_of);
    if (torch.device.memory() == Memory::mps)
        fail(MT_ENOTSUP,
             "%s: options->checkpointing is MT_CHECKPOINTING_CHOSEN, and MPS tells no peaks to "
             "choose by; accepted: MT_CHECKPOINTING_AUTO or MT_CHECKPOINTING_ON",
             name_of);
    torch.segments = std::make_unique<SegmentChoice>(name_of, options);
}

/* All processes begin with the weights of rank 0. */
void share(mt_torch &torch, const mt_process_group &group) {
    std::vector<Named> weights = distinct(weights_of(*torch.model));
    torch.shared = std::make_unique<SharedTraining>(group);
    torch.shared->compare(weights, torch.options);
    torch.shared->compare_number(
        torch.flat->frozen_set(), MT_EINVAL,
        "options->groups: the processes freeze other parameters than each other");
    torch.shared->spread(without_mapped(std::move(weights)));
}

/* On the host the model's own tensors are in use already. */
Needs needs_of(const mt_torch &torch) {
    Needs needs{torch.parameter_bytes, torch.flat->bytes(), torch.optimizer->bytes(),
                bytes_of(distinct(buffers_of(*torch.model))), 0};
    size_t held = torch.device.is_host() ? needs.parameters + needs.buffers : 0;
    size_t in_use = device_memory(torch.device, false).allocated_bytes;
    needs.others = in_use - std::min(in_use, held);
    return needs;
}

/* Parameters that train have moved into flat blocks; frozen ones and buffers lie where they were made. */
void tell_uncounted(const mt_torch &torch) {
    std::set<const void *> seen;
    size_t bytes = 0;
    for (const Named &named : weights_of(*torch.model)) {
        if (!named.tensor.has_storage()) continue;
        const c10::Storage &storage = named.tensor.storage();
        if (!cpu::is_uncounted(storage.data_ptr()) || !seen.insert(storage.data()).second) continue;
        bytes += storage.nbytes();
    }
    cpu::warn_of_uncounted("the model's buffers and frozen parameters", bytes);
}

/*
 * cuBLAS takes a work space of the card's memory for each thread that multiplies, at its first product, and keeps it; cuBLASLt takes
 * another one at the first product with a bias. This thread and that of the backward pass, which computes segments again, take theirs
 * before a chunk is recorded: else the first recording would have them and no other.
 */
void take_work_spaces(const Device &device) {
    if (!device.where.is_cuda()) return;
    c10::AutoGradMode grad(true);
    at::Tensor row = at::ones({16}, at::device(device.where));
    at::Tensor square = at::ones({16, 16}, row.options()).requires_grad_(true);
    square.register_hook([&](const at::Tensor &gradient) { at::addmm(row, gradient, gradient); });
    at::addmm(row, at::mm(square, square), square).sum().backward();
}

/* Else cuDNN, and oneDNN on XPU, may take kernels that add in any order, and the same chunks would give other bits. */
void add_in_one_order(const Device &device) {
    if (device.where.is_cuda()) at::globalContext().setDeterministicCuDNN(true);
    if (device.where.is_xpu()) at::globalContext().setDeterministicMkldnn(true);
}

/* Planned twice: moving may give the model other tensors, but the needs are told when it fails. */
std::unique_ptr<mt_torch> build(mt_model *model, const mt_torch_options &options,
                                const Device &device, Needs &needs) {
    sim::OnCard on_card(device.card);
    auto torch = std::make_unique<mt_torch>();
    torch->model = model;
    torch->options = options;
    torch->options.device = torch->options.offload_dir = nullptr;
    torch->groups = groups_of(name_of, options);
    torch->options.groups = nullptr; /* the caller's */
    torch->options.processes = nullptr;
    torch->device = torch->home = device;
    torch->device_name = device.name();
    torch->checkpointing = options.checkpointing == MT_CHECKPOINTING_ON;
    torch->amp = number_of(options.amp);
    if (torch->amp == MT_FLOAT16)
        torch->scaler.emplace(options.scale_start, options.scale_growth_interval);
    open_offload(*torch, options);
    open_segments(*torch, options);
    if (cpu::installed() && options.arena != MT_ARENA_NEVER) torch->arena.reset(cpu::Arena::open());
    check_mapped(*torch);
    check_kinds(*torch);
    plan(*torch);
    check_sharing(*torch);
    check_parameters(*torch);
    check_names(*torch);
    check_groups(*torch);
    needs = needs_of(*torch);
    move_model(*torch, device);
    add_in_one_order(device);
    take_work_spaces(device);
    if (options.channels_last) make_channels_last(*torch);
    plan(*torch);
    torch->flat->lay_out(device);
    torch->optimizer->lay_out(device);
    torch->canary.lay_out(device);
    torch->pending.lay_out(device, model->metrics.size());
    torch->staging = StagingSlots::open(device);
    if (options.processes && options.processes->count > 1) share(*torch, *options.processes);
    torch->written.follow(without_mapped(distinct(parameters_of(*model))));
    RngState().take(device); /* so that the device has told what its generator's state is */
    torch->buffers.take(*model);
    torch->chunk_buffers.take(*model); /* so that a mark needs no memory */
    torch->flat->freeze([&](const Slot &slot) { return is_frozen(*torch, slot); }, true);
    if (device.is_host()) tell_uncounted(*torch);
    if (!mt__handle_add(torch.get(), MT__KIND_TORCH)) throw std::bad_alloc();
    return torch;
}

mt_status does_not_fit(const Device &device, const Needs &needs) {
    char parameters[32], gradients[32], optimizer[32], buffers[32], others[32];
    char all[32], budget[32] = "unknown";
    size_t sum =
        needs.parameters + needs.gradients + needs.optimizer + needs.buffers + needs.others;
    (void)guard([&] {
        mt_memory memory = device_memory(device);
        if (memory.budget_bytes) mt_format_size(memory.budget_bytes, budget, sizeof budget);
    });
    return mt_set_error(
        MT_EDEVMEM,
        "%s: does not fit: parameters %s, gradients %s, optimiser state %s, "
        "buffers %s, other tensors %s; together %s, budget %s; activations come on top%s",
        name_of, mt_format_size(needs.parameters, parameters, sizeof parameters),
        mt_format_size(needs.gradients, gradients, sizeof gradients),
        mt_format_size(needs.optimizer, optimizer, sizeof optimizer),
        mt_format_size(needs.buffers, buffers, sizeof buffers),
        mt_format_size(needs.others, others, sizeof others), mt_format_size(sum, all, sizeof all),
        budget,
        device.memory() == Memory::mps
            ? "; MPS reserves up to 1 GiB at a time, so that a budget below 1.5 GiB may not do"
            : "");
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_torch_new(mt_model *model, const mt_torch_options *options,
                                  mt_torch **out) {
    mt_torch_options own = MT_TORCH_OPTIONS_INIT;
    Device device = c10::Device(c10::kCPU);
    Needs needs;
    MT_RETURN_IF_FAILED(check_not_null(out, name_of, "out"));
    *out = nullptr;
    MT_RETURN_IF_FAILED(ensure_init());
    MT_RETURN_IF_FAILED(check_handle(model, MT__KIND_MODEL, name_of, "model"));
    if (options) {
        MT_RETURN_IF_FAILED(check_sized(options, name_of, "options"));
        copy_in(own, options);
        /* The first callers' struct ends with amp, and has padding where arena is. */
        if (options->size == offsetof(mt_torch_options, checkpointing)) own.arena = MT_ARENA_AUTO;
    }
    MT_RETURN_IF_FAILED(parse_device(own.device ? own.device : "cpu", name_of, &device));
    if (model->in_use)
        return mt_set_error(MT_ESTATE, "%s: model is in use by another mt_torch", name_of);
    mt_status status = guard([&] {
        check_options(own);
        check_device(name_of, device);
        check_amp(own, device);
        check_processes(own, *model);
        *out = build(model, own, device, needs).release();
        model->in_use = true;
        cpu::trim_heap(); /* the memory that the parameters had before */
    });
    return status == MT_EDEVMEM ? does_not_fit(device, needs) : status;
}

extern "C" void mt_torch_free(mt_torch *torch) {
    if (mt__handle_is(torch, MT__KIND_TORCH) && torch->call != Call::none) {
        mt_log(MT_LOG_WARNING, "mt_torch_free: called by a function that a step has called, so it "
                               "is not freed");
        return;
    }
    if (!mt__handle_remove(torch, MT__KIND_TORCH)) return;
    mt_model *model = torch->model;
    if (torch->sink.event) cpu::set_sink(nullptr);
    /* Of a step that was not ended the device may still read the batch. */
    if (torch->phase != Phase::idle)
        (void)guard(torch->device, [&] { synchronize(torch->device); });
    (void)guard(torch->device, [&] { delete torch; });
    release_model(model);
}

extern "C" mt_status mt_torch_arena(const mt_torch *torch, mt_arena_stats *out) {
    mt_arena_stats own = MT_ARENA_STATS_INIT;
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, "mt_torch_arena", "torch"));
    MT_RETURN_IF_FAILED(check_sized(out, "mt_torch_arena", "out"));
    if (torch->arena) {
        cpu::ArenaStats stats = torch->arena->stats();
        own = {sizeof own,     stats.bytes,  stats.lower_bound, stats.plans, stats.windows,
               stats.recorded, stats.served, stats.missed,      stats.guests};
    }
    hand_over(own, out);
    return MT_OK;
}

extern "C" mt_status mt_torch_offload_stats(const mt_torch *torch, mt_offload_stats *out) {
    mt_offload_stats own = MT_OFFLOAD_STATS_INIT;
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, "mt_torch_offload_stats", "torch"));
    MT_RETURN_IF_FAILED(check_sized(out, "mt_torch_offload_stats", "out"));
    if (torch->offload) own = torch->offload->stats();
    own.on = torch->offloading;
    hand_over(own, out);
    return MT_OK;
}
