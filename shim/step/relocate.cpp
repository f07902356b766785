/*
 * relocate.cpp - from one device to another between steps: parameters, optimiser state and buffers.
 *
 * New memory is filled first and takes the old one's place last, in ways that cannot fail; when memory
 * runs out before that, the model is given its old tensors again, and nothing has happened.
 */
#include "relocate.hpp"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "guard.hpp"
#include "sim_memory.hpp"

namespace memtrain::shim {
namespace {

/* A tensor of the model and the memory that it had. */
struct Before {
    at::Tensor tensor, original;
};

/* All tensors of the model as they are, so that they can be put back. */
std::vector<Before> keep_all(const mt_model &model) {
    std::vector<Before> list;
    for (const Named &named : distinct(weights_of(model)))
        list.push_back({named.tensor, named.tensor.variable_data()});
    return list;
}

/* set_data() moves no bytes and needs no memory of the device. */
void put_back(const std::vector<Before> &list) {
    for (const Before &kept : list) kept.tensor.set_data(kept.original);
}

/* New memory of the device for every tensor, as a module's to() takes it. */
void copy_tensors(const mt_model &model, const Device &to) {
    c10::NoGradGuard no_grad;
    for (const Before &kept : keep_all(model)) {
        at::Tensor elements = without_repeats(kept.original);
        at::Tensor copy = at::empty_like(elements, at::device(to.where));
        copy.copy_(elements);
        kept.tensor.set_data(copy.expand(kept.original.sizes()));
    }
}

void tell_model(const mt_model &model, const Device &to) {
    if (model.ops.to_device)
        call_model("to_device", model.ops.to_device, model.self,
                   to.card ? "cpu" : to.name().c_str());
    else if (!to.is_cpu())
        fail(MT_ENOTSUP, "the model has no to_device");
}

/* The state on the other device, beside the old one. */
struct Moved {
    std::unique_ptr<Flat> flat;
    std::unique_ptr<Optimizer> optimizer;
    Canary canary;
    Pending pending;
    BufferState buffers, chunk_buffers;
    WrittenParameters written;
};

Moved move(const mt_torch &torch, const Device &to) {
    sim::OnCard on_card(to.card);
    Moved moved;
    move_model(torch, to);
    moved.flat = std::make_unique<Flat>(
        parameters_of(*torch.model), [](const std::string &) { return false; }, torch.flat.get());
    moved.optimizer = std::make_unique<Optimizer>(torch.options, torch.groups, *moved.flat);
    moved.flat->lay_out(to);
    moved.optimizer->lay_out(to);
    moved.canary.lay_out(to);
    moved.pending.lay_out(to, torch.model->metrics.size());
    moved.optimizer->copy_state(*torch.optimizer);
    moved.flat->hold_gradients(torch.flat->holds_gradients());
    moved.buffers.take(*torch.model);
    moved.chunk_buffers.take(*torch.model);
    moved.written = torch.written;
    moved.written.follow(distinct(parameters_of(*torch.model)));
    return moved;
}

} // namespace

void move_model(const mt_torch &torch, const Device &to) {
    tell_model(*torch.model, to);
    if (to.card || torch.device.card) copy_tensors(*torch.model, to);
}

void relocate(mt_torch &torch, const Device &to) {
    c10::NoGradGuard no_grad;
    std::vector<Before> before = keep_all(*torch.model);
    try {
        Moved moved = move(torch, to);
        torch.flat->hand_over(*moved.flat);
        torch.optimizer = std::move(moved.optimizer); /* refers to the old flat until here */
        torch.flat = std::move(moved.flat);
        torch.canary = std::move(moved.canary);
        torch.pending = std::move(moved.pending);
        torch.buffers = std::move(moved.buffers);
        torch.chunk_buffers = std::move(moved.chunk_buffers);
        torch.written = std::move(moved.written);
        torch.device = to;
        torch.device_name = to.name();
        if (torch.staging && to.is_cpu())
            torch.staging->clear(); /* the host needs its memory now */
    } catch (...) {
        (void)guard([&] { tell_model(*torch.model, torch.device); });
        put_back(before);
        throw;
    }
}

} // namespace memtrain::shim
