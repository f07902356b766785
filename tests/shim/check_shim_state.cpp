/*
 * check_shim_state.cpp - what a step may and may not change: gradients that code of the model's
 * replaces, parameters that get none, frozen and shared ones, buffers, generators; the state by
 * name and its hash.
 */
#include <map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

at::Tensor copy_of(const at::Tensor &tensor) {
    return tensor.detach().clone();
}

/* The generators' state after drawing from them in a way that leaves half a pair of normals. */
at::Tensor rng(void) {
    return at::detail::getDefaultCPUGenerator().get_state();
}

/* Names and tensors as mt_torch_visit_state tells them. */
struct State {
    std::vector<std::string> names;
    std::map<std::string, at::Tensor> tensors;

    explicit State(const Trainer &trainer) {
        ck_ok(mt_torch_visit_state(
            trainer.torch,
            [](void *user, const char *name, mt_tensor *tensor) {
                auto &self = *static_cast<State *>(user);
                self.names.emplace_back(name);
                self.tensors[name] = copy_of(memtrain::tensor(tensor));
                mt_tensor_free(tensor); /* borrowed: must do nothing */
                return MT_OK;
            },
            this));
    }
};

mt_torch_options plain_sgd(void) {
    mt_torch_options options = options_of(MT_SGD);
    options.momentum = options.weight_decay = 0.0;
    options.lr = 1.0;
    return options;
}

} // namespace

/* AdamW with a weight decay would move them; momentum and steps stay at 0 too. */
TEST("gradients", no_gradient_no_update) {
    for (mt_optimizer optimizer : {MT_SGD, MT_ADAM, MT_ADAMW}) {
        Trainer trainer(options_of(optimizer));
        Batch batch(8);
        at::Tensor before = copy_of(trainer.net->unused),
                   moved = copy_of(trainer.net->linear->bias);
        for (int i = 0; i < 3; i++) ck_ok(step(trainer, batch, {4, 4}));
        ck_assert(at::equal(trainer.net->unused, before));
        ck_assert(!at::equal(trainer.net->linear->bias, moved));
        State state(trainer);
        if (optimizer == MT_SGD) continue;
        ck_assert_double_eq(state.tensors["optimizer.step.unused"].item().toDouble(), 0.0);
        ck_assert_double_eq(state.tensors["optimizer.step.linear.bias"].item().toDouble(), 3.0);
    }
}

/* A gradient that arrives in one step and not in the next. */
TEST("gradients", gradient_now_and_then) {
    bool use = false;
    Trainer trainer(options_of(MT_ADAMW), {}, [&use](Net &net) {
        if (use) net.unused.sum().backward();
    });
    Batch batch(8);
    at::Tensor before = copy_of(trainer.net->unused);
    ck_ok(step(trainer, batch, {8}));
    ck_assert(at::equal(trainer.net->unused, before));
    use = true;
    ck_ok(step(trainer, batch, {8}));
    at::Tensor after = copy_of(trainer.net->unused);
    ck_assert(!at::equal(after, before));
    use = false;
    ck_ok(step(trainer, batch, {8}));
    ck_assert(at::equal(trainer.net->unused, after));
}

/* What the model's code puts into .grad is the gradient, and the view is back afterwards. */
TEST("gradients", replaced_gradient) {
    Trainer trainer(plain_sgd(), {},
                    [](Net &net) { net.unused.mutable_grad() = at::full_like(net.unused, 0.25); });
    Batch batch(8);
    void *slot = trainer.net->unused.grad().data_ptr();
    ck_ok(step(trainer, batch, {8}));
    ck_assert(at::equal(trainer.net->unused, at::full_like(trainer.net->unused, 0.75)));
    ck_assert_ptr_eq(trainer.net->unused.grad().data_ptr(), slot);
    ck_ok(step(trainer, batch, {4, 4}));
    ck_assert(at::equal(trainer.net->unused, at::full_like(trainer.net->unused, 0.5)));
}

/* zero_grad() in the loss takes the gradients away: what comes after it is the gradient. */
TEST("gradients", undefined_gradient) {
    int calls = 0;
    NetOptions plain;
    plain.norm = plain.dropout = false;
    Trainer trainer(plain_sgd(), plain, [&calls](Net &net) {
        if (calls++ == 0)
            net.unused.sum().backward();
        else
            net.zero_grad();
    });
    Trainer other(plain_sgd(), plain);
    Batch batch(8);
    at::Tensor before = copy_of(trainer.net->unused);
    mt_chunk_result result = chunk_result();
    mt_apply_result applied = apply_result();
    ck_ok(step(trainer, batch, {4, 4}));
    ck_assert(at::equal(trainer.net->unused, before));
    ck_ok(mt_begin(other.torch, batch.get()));
    ck_ok(mt_accumulate(other.torch, 4, 4, 0.5, &result));
    ck_ok(mt_apply(other.torch, &applied));
    ck_assert(at::equal(trainer.net->conv1->weight, other.net->conv1->weight));
    ck_assert(trainer.net->linear->bias.grad().defined());
}

/* A failed chunk whose code has replaced a gradient is taken back like any other. */
TEST("gradients", replaced_gradient_is_rolled_back) {
    Trainer trainer(plain_sgd(), {}, [](Net &net) { net.zero_grad(); });
    Batch batch(8);
    std::string before = trainer.hash();
    mt_chunk_result result = chunk_result();
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(mt_inject_oom(12, 0));
    ck_status(mt_accumulate(trainer.torch, 0, 8, 1.0, &result), MT_EDEVMEM);
    ck_ok(mt_rollback(trainer.torch));
    ck_assert(before == trainer.hash());
    for (const at::Tensor &parameter : trainer.net->parameters())
        ck_assert_double_eq(parameter.grad().abs().sum().item().toDouble(), 0.0);
}

/* Frozen parameters stay where they are and as they are; shared ones are laid out and moved once. */
TEST("layout", frozen_and_shared) {
    struct Tied : nn::Module {
        at::Tensor frozen = register_parameter("frozen", at::full_like(at::zeros({4}), 2.0), false);
        at::Tensor first = register_parameter("first", at::zeros({4}));
        at::Tensor second = register_parameter("second", first);
    };
    mt_model *model;
    mt_torch *torch;
    std::shared_ptr<Tied> net;
    mt_chunk_result result = chunk_result();
    mt_torch_options options = plain_sgd();
    Batch batch(2);
    auto loss = [](Tied &n, const memtrain::Tensors &) {
        return memtrain::Output{(n.first * n.frozen).sum() + n.second.sum(), {}};
    };
    ck_ok(memtrain::make_model(&model, [&] {
        net = std::make_shared<Tied>();
        return memtrain::model(net, {}, loss);
    }));
    void *place = net->frozen.data_ptr();
    ck_ok(mt_torch_new(model, &options, &torch));
    if (suite_on_cpu()) ck_assert_ptr_eq(net->frozen.data_ptr(), place);
    ck_assert_ptr_eq(net->first.data_ptr(), net->second.data_ptr());
    ck_ok(mt_train_step(torch, batch.get(), &result, nullptr));
    ck_assert(at::equal(net->first, at::full_like(net->first, -3.0)));
    ck_assert(at::equal(net->frozen, at::full_like(net->frozen, 2.0)));
    ck_assert(!net->frozen.grad().defined());

    mt_backend backend = MT_BACKEND_INIT;
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(mt_torch_backend(torch, &backend));
    ck_ok(backend.describe(backend.self, &info));
    ck_assert_uint_eq(info.parameter_bytes, 2 * 4 * sizeof(float));
    ck_assert_uint_eq(info.gradient_bytes, 64); /* one slot with its padding */
    mt_torch_free(torch);
    mt_model_free(model);
}

/* Parameters of the model lie in one block, 64-byte aligned, and the model keeps them afterwards. */
TEST("layout", layout) {
    mt_model *model;
    mt_torch *torch;
    std::shared_ptr<Net> net;
    ck_ok(mt_torch_init(nullptr));
    ck_ok(net_model_new({}, &model, &net));
    {
        c10::NoGradGuard no_grad;
        at::Tensor &weight = net->conv2->weight;
        weight.set_data(weight.contiguous(c10::MemoryFormat::ChannelsLast));
    }
    std::vector<at::Tensor> before;
    for (const at::Tensor &parameter : net->parameters()) before.push_back(copy_of(parameter));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    const void *storage = net->parameters()[0].storage().data();
    for (const at::Tensor &parameter : net->parameters()) {
        ck_assert_ptr_eq(parameter.storage().data(), storage);
        ck_assert_uint_eq(reinterpret_cast<uintptr_t>(parameter.data_ptr()) % 64, 0);
        ck_assert(parameter.is_leaf() && parameter.requires_grad());
        ck_assert(parameter.grad().strides() == parameter.strides());
    }
    ck_assert(net->conv2->weight.is_contiguous(c10::MemoryFormat::ChannelsLast));
    mt_torch *again;
    ck_status(mt_torch_new(model, nullptr, &again), MT_ESTATE);
    mt_torch_free(torch);
    for (size_t i = 0; i < before.size(); i++) {
        ck_assert(at::equal(net->parameters()[i], before[i]));
        ck_assert(!net->parameters()[i].grad().defined());
    }
    ck_ok(mt_torch_new(model, nullptr, &again));
    mt_model_free(model); /* while in use: freed with its mt_torch */
    ck_status(mt_torch_new(model, nullptr, &torch), MT_EINVAL);
    mt_torch_free(again);
}

/* Code that puts another tensor in the place of a buffer, or another shape. */
TEST("kept", buffers_made_anew) {
    bool replace = false;
    Trainer trainer(options_of(MT_ADAMW), {}, [&replace](Net &net) {
        if (!replace) return;
        c10::NoGradGuard no_grad;
        net.norm->running_mean.set_data(at::full_like(net.norm->running_mean, 5.0));
        net.norm->running_var.set_data(at::full_like(net.norm->running_var, 3.0));
    });
    Batch batch(8);
    mt_chunk_result result = chunk_result();
    ck_ok(step(trainer, batch, {8}));
    std::string before = trainer.hash();
    replace = true;
    for (int i = 0; i < 2; i++) {
        ck_ok(mt_begin(trainer.torch, batch.get()));
        ck_ok(mt_accumulate(trainer.torch, 0, 8, 1.0, &result));
        ck_assert_double_gt(trainer.net->norm->running_mean.mean().item().toDouble(), 4.0);
        ck_ok(mt_rollback(trainer.torch));
        ck_assert(before == trainer.hash());
    }
}

/* A module that assigns another tensor to its registered buffer, of another shape even. */
TEST("kept", buffers_assigned) {
    struct Counting : nn::Module {
        at::Tensor weight = register_parameter("weight", at::zeros({2}));
        at::Tensor &seen = register_buffer("seen", at::zeros({2}));
    };
    mt_model *model;
    mt_torch *torch;
    std::shared_ptr<Counting> net;
    mt_chunk_result result = chunk_result();
    mt_apply_result applied = apply_result();
    Batch batch(4);
    bool longer = false;
    ck_ok(memtrain::make_model(&model, [&] {
        net = std::make_shared<Counting>();
        return memtrain::model(net, {}, [&longer](Counting &n, const memtrain::Tensors &) {
            n.seen = longer ? at::ones({5}) : n.seen + 1;
            return memtrain::Output{(n.weight * 2).sum(), {}};
        });
    }));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    for (int round = 1; round < 4; round++) {
        ck_ok(mt_begin(torch, batch.get()));
        ck_ok(mt_accumulate(torch, 0, 4, 1.0, &result));
        ck_ok(mt_rollback(torch));
        ck_assert_double_eq(net->seen.sum().item().toDouble(), 2.0 * (round - 1));
        longer = true;
        ck_ok(mt_begin(torch, batch.get()));
        ck_ok(mt_accumulate(torch, 0, 2, 0.5, &result));
        ck_ok(mt_accumulate(torch, 2, 2, 0.5, &result));
        ck_assert_int_eq(net->seen.size(0), 5);
        ck_ok(mt_rollback(torch));
        longer = false;
        ck_ok(mt_begin(torch, batch.get()));
        ck_ok(mt_accumulate(torch, 0, 4, 1.0, &result));
        ck_ok(mt_apply(torch, &applied));
        ck_assert_double_eq(net->seen.sum().item().toDouble(), 2.0 * round);
    }
    mt_torch_free(torch);
    mt_model_free(model);
}

/* The generator comes back with the second half of a pair of normal samples. */
TEST("kept", generator_is_restored) {
    Trainer trainer(options_of(MT_ADAMW), {}, [](Net &) { at::randn({3}); });
    Batch batch(8);
    mt_chunk_result result = chunk_result();
    for (int64_t odd : {0, 1, 3, 17}) {
        at::randn({odd});
        at::Tensor before = rng();
        ck_ok(mt_begin(trainer.torch, batch.get()));
        ck_assert(at::equal(rng(), before));
        ck_ok(mt_accumulate(trainer.torch, 0, 8, 1.0, &result));
        ck_assert(!at::equal(rng(), before));
        ck_ok(mt_rollback(trainer.torch));
        ck_assert(at::equal(rng(), before));
    }
}

/* Evaluation: the model's other mode, no change of any state, and training mode afterwards. */
TEST("kept", evaluation) {
    std::vector<bool> modes;
    Trainer trainer(options_of(MT_ADAMW), {}, [&modes](Net &net) {
        modes.push_back(net.is_training());
        at::randn({1});
    });
    Batch batch(8);
    mt_chunk_result first = chunk_result(), second = chunk_result();
    ck_ok(step(trainer, batch, {8}));
    std::string before = trainer.hash();
    ck_ok(mt_evaluate(trainer.torch, batch.get(), 0, 8, &first));
    ck_ok(mt_evaluate(trainer.torch, batch.get(), 0, 8, &second));
    ck_assert(before == trainer.hash());
    ck_assert_double_eq(first.loss_sum, second.loss_sum);
    ck_assert_double_eq(first.units, 8.0);
    ck_assert_int_eq(first.peak_bytes > 0, !suite_on_mps());
    ck_ok(mt_inject_oom(5, 0));
    ck_status(mt_evaluate(trainer.torch, batch.get(), 0, 8, &second), MT_EDEVMEM);
    ck_assert_uint_eq(second.refused, suite_on_cpu());
    ck_assert(before == trainer.hash());
    ck_ok(step(trainer, batch, {8}));
    ck_assert(modes == std::vector<bool>({true, false, false, false, true}));
}

TEST("hash", state_by_name) {
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(8);
    ck_ok(step(trainer, batch, {8}));
    State state(trainer);
    for (size_t i = 1; i < state.names.size(); i++) ck_assert(state.names[i - 1] <= state.names[i]);
    for (const char *name : {"conv1.weight", "norm.running_mean", "norm.num_batches_tracked",
                             "unused", "optimizer.exp_avg.conv1.weight",
                             "optimizer.exp_avg_sq.linear.bias", "optimizer.step.unused"})
        ck_assert_msg(state.tensors.count(name) == 1, "%s", name);
    ck_assert_uint_eq(state.names.size(), 9 + 3 + 3 * 9);
    ck_assert(state.tensors["optimizer.exp_avg.conv1.weight"].sizes() ==
              trainer.net->conv1->weight.sizes());

    Trainer sgd(options_of(MT_SGD));
    ck_assert_uint_eq(State(sgd).tensors.count("optimizer.momentum_buffer.conv1.weight"), 1);
    ck_assert_uint_eq(State(Trainer(plain_sgd())).names.size(), 9 + 3);
}

/* The same run gives the same hash, twice in a process and, by its number, in another one. */
TEST("hash", hash_is_stable) {
    std::string hashes[2];
    for (std::string &hash : hashes) {
        Trainer trainer(options_of(MT_ADAMW));
        Batch batch(8);
        ck_ok(step(trainer, batch, {4, 4}));
        at::Tensor before = rng();
        hash = trainer.hash();
        ck_assert(at::equal(rng(), before));
        ck_assert(hash == trainer.hash());
        at::randn({1});
        ck_assert(hash != trainer.hash());
    }
    ck_assert_str_eq(hashes[0].c_str(), hashes[1].c_str());
    ck_assert_uint_eq(hashes[0].size(), 64);
}

/* Every byte counts: one element of each tensor changes the hash, and back again. */
TEST("hash", hash_sees_everything) {
    Trainer trainer(options_of(MT_ADAMW));
    std::string before = trainer.hash();
    c10::NoGradGuard no_grad;
    std::vector<at::Tensor> all = trainer.net->parameters();
    for (const at::Tensor &buffer : trainer.net->buffers()) all.push_back(buffer);
    for (at::Tensor &tensor : all) {
        tensor.add_(1);
        std::string changed = trainer.hash();
        ck_assert_str_ne(before.c_str(), changed.c_str());
        tensor.sub_(1);
    }
}

SUITE("shim_state")
