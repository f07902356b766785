/*
 * check_shim_step.cpp - a step as a transaction: chunks add up to the batch, every allocation may
 * fail and nothing has happened, the update allocates nothing and is torch::optim's.
 */
#include <cmath>
#include <cstdio>

#include <ATen/ops/randn.h>
#include <ATen/ops/square.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

const mt_optimizer optimizers[] = {MT_SGD, MT_ADAM, MT_ADAMW};

std::vector<at::Tensor> copies(const std::vector<at::Tensor> &tensors) {
    std::vector<at::Tensor> list;
    for (const at::Tensor &tensor : tensors) list.push_back(tensor.detach().clone());
    return list;
}

/* Largest difference relative to the largest element of the pair. */
double difference(const std::vector<at::Tensor> &a, const std::vector<at::Tensor> &b) {
    double most = 0.0;
    ck_assert_uint_eq(a.size(), b.size());
    for (size_t i = 0; i < a.size(); i++) {
        double scale = std::max(b[i].detach().abs().max().item().toDouble(), 1e-12);
        most =
            std::max(most, (a[i].detach() - b[i].detach()).abs().max().item().toDouble() / scale);
    }
    return most;
}

std::vector<at::Tensor> gradients_of(const Net &net) {
    std::vector<at::Tensor> list;
    for (const at::Tensor &parameter : net.parameters()) list.push_back(parameter.grad());
    return list;
}

/* Gradients of a batch of 12 in chunks of these sizes, after begin. */
std::vector<at::Tensor> gradients_in(const std::vector<size_t> &sizes, double *out_loss) {
    NetOptions plain;
    plain.norm = plain.dropout = false;
    Trainer trainer(options_of(MT_ADAMW), plain);
    Batch batch(12);
    size_t first = 0;
    *out_loss = 0.0;
    ck_ok(mt_begin(trainer.torch, batch.get()));
    for (size_t size : sizes) {
        mt_chunk_result result = chunk_result();
        ck_ok(mt_accumulate(trainer.torch, first, size, static_cast<double>(size) / 12.0, &result));
        *out_loss += result.loss_sum;
        first += size;
    }
    return copies(gradients_of(*trainer.net));
}

} // namespace

TEST("sums", chunks_add_up) {
    double whole_loss, loss;
    auto whole = gradients_in({12}, &whole_loss);
    for (const std::vector<size_t> &sizes : {std::vector<size_t>{6, 6},
                                             {5, 7},
                                             {4, 4, 4},
                                             {1, 11},
                                             {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
        auto parts = gradients_in(sizes, &loss);
        ck_assert_double_lt(difference(parts, whole), 1e-5);
        ck_assert_double_eq_tol(loss, whole_loss, 1e-4);
    }
}

/* Counts of results against a forward pass by hand. */
TEST("sums", results) {
    NetOptions plain;
    plain.dropout = false;
    Trainer trainer(options_of(MT_SGD), plain);
    Batch batch(6);
    mt_chunk_result result = chunk_result();
    at::Device device = device_of(*trainer.net);
    at::Tensor images = memtrain::tensor(batch.images()).to(device);
    at::Tensor labels = memtrain::tensor(batch.labels()).to(device);
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(mt_accumulate(trainer.torch, 0, 6, 1.0, &result));
    trainer.net->train();
    c10::NoGradGuard no_grad;
    at::Tensor logits = trainer.net->forward(images);
    double loss = at::cross_entropy_loss(logits, labels).item().toDouble();
    double correct = memtrain::correct(logits, labels).item().toDouble();
    ck_assert_double_eq(result.units, 6.0);
    ck_assert_double_eq(result.loss_sum, loss * 6.0);
    ck_assert_double_eq(result.metric_sums[0], correct);
    ck_assert_double_gt(result.seconds, 0.0);
    ck_assert_int_eq(result.peak_bytes > 0, !suite_on_mps());
    ck_assert_uint_eq(result.refused, 0);
    ck_ok(mt_rollback(trainer.torch));
}

/* The state after one step, by the number of the request that failed; 0: none. */
static void run_to_the_end(mt_optimizer optimizer, double clip, uint64_t fail_at, bool persistent,
                           bool *out_fired, std::string *out_hash) {
    Trainer trainer(options_of(optimizer, clip));
    Batch batch(8);
    ck_ok(step(trainer, batch, {4, 4}));
    std::string before = trainer.hash();
    size_t held = tensor_memory().allocated_bytes;

    ck_ok(mt_inject_oom(fail_at, persistent));
    mt_status status = step(trainer, batch, {3, 5});
    uint64_t requests, failed;
    mt_injected(&requests, &failed);
    *out_fired = failed > 0;
    if (status != MT_OK) {
        ck_assert_msg(status == MT_EDEVMEM, "%s: %s", mt_status_name(status), mt_last_error());
        /* A begin that fails has begun nothing. */
        mt_status rolled = mt_rollback(trainer.torch);
        ck_assert(rolled == MT_OK || rolled == MT_ESTATE);
    }
    ck_ok(mt_inject_oom(0, 0));
    if (status != MT_OK) {
        *out_hash = trainer.hash();
        ck_assert_str_eq(out_hash->c_str(), before.c_str());
        ck_assert_uint_eq(settled(held, [] { return tensor_memory().allocated_bytes; }), held);
        ck_ok(step(trainer, batch, {3, 5}));
    }
    *out_hash = trainer.hash();
}

/* Every single allocation fails, once or from then on: nothing half-happened, and redoing is exact. */
TEST_LOOP("faults", every_allocation_fails, 6) {
    mt_optimizer optimizer = optimizers[_i / 2];
    bool fired = true, persistent = _i % 2;
    std::string expected, hash;
    run_to_the_end(optimizer, 0.5, 0, false, &fired, &expected);
    uint64_t n = 1;
    for (fired = true; fired; n++) {
        run_to_the_end(optimizer, 0.5, n, persistent, &fired, &hash);
        ck_assert_str_eq(hash.c_str(), expected.c_str());
    }
    ck_assert_uint_gt(n, suite_on_card() ? 80 : 100);
    if (getenv("CHECK_VERBOSE"))
        std::printf("%d: %u positions\n", _i, static_cast<unsigned>(n - 2));
}

/* On a card it does, before anything changes: every_allocation_fails has those requests. */
TEST_LOOP("updates", apply_allocates_nothing, 6) {
    mt_torch_options options = options_of(optimizers[_i / 2], _i % 2 ? 0.01 : 0.0);
    Trainer trainer(options);
    Batch batch(8);
    for (int round = 0; round < 3; round++) {
        mt_chunk_result result = chunk_result();
        mt_apply_result applied = apply_result();
        uint64_t requests, failed;
        ck_ok(mt_begin(trainer.torch, batch.get()));
        ck_ok(mt_accumulate(trainer.torch, 0, 8, 1.0, &result));
        ck_ok(mt_inject_oom(suite_on_cpu(), 1));
        ck_ok(mt_apply(trainer.torch, &applied));
        mt_injected(&requests, &failed);
        ck_ok(mt_inject_oom(0, 0));
        if (suite_on_cpu()) ck_assert_uint_eq(requests, 0);
        ck_assert_int_eq(std::isnan(applied.grad_norm), !(_i % 2));
        if (_i % 2) ck_assert_double_gt(applied.grad_norm, 0.01);
    }
}

TEST("faults", begin_and_rollback_allocate_nothing) {
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(8);
    uint64_t requests;
    mt_chunk_result result = chunk_result();
    /* The state of MPS's random numbers comes in a tensor. */
    bool needs_some = suite_on_mps() && suite_on_card();
    ck_ok(mt_inject_oom(needs_some ? 0 : 1, 1));
    ck_ok(mt_begin(trainer.torch, batch.get()));
    mt_injected(&requests, nullptr);
    if (!needs_some) ck_assert_uint_eq(requests, 0);
    ck_ok(mt_inject_oom(1, 1));
    ck_assert_int_eq(mt_accumulate(trainer.torch, 0, 8, 1.0, &result), MT_EDEVMEM);
    ck_assert_uint_eq(result.refused, suite_on_cpu());
    ck_ok(mt_inject_oom(1, 1));
    ck_ok(mt_rollback(trainer.torch));
    mt_injected(&requests, nullptr);
    ck_assert_uint_eq(requests, 0);
}

/* Three steps of torch::optim on a copy of the network, with the same gradients. */
template <class Optimizer, class Options>
static double distance_to(const mt_torch_options &options, const Options &theirs) {
    NetOptions plain;
    /* Without BatchNorm: the bias before it has a gradient of rounding errors alone, which Adam
     * makes as large as any other. */
    plain.norm = plain.dropout = false;
    Trainer trainer(options, plain);
    Net reference(plain);
    {
        c10::NoGradGuard no_grad;
        auto from = trainer.net->parameters(), to = reference.parameters();
        for (size_t i = 0; i < to.size(); i++) to[i].copy_(from[i]);
    }
    reference.to(device_of(*trainer.net));
    Optimizer optimizer(reference.parameters(), theirs);
    Batch batch(8);
    for (int round = 0; round < 3; round++) {
        ck_ok(step(trainer, batch, {8}));
        optimizer.zero_grad();
        at::Device device = device_of(*trainer.net);
        at::Tensor logits = reference.forward(memtrain::tensor(batch.images()).to(device));
        at::cross_entropy_loss(logits, memtrain::tensor(batch.labels()).to(device)).backward();
        if (options.clip_norm > 0) {
            double sum = 0;
            for (const auto &p : reference.parameters())
                if (p.grad().defined()) sum += std::pow(p.grad().norm().item().toDouble(), 2);
            for (auto &p : reference.parameters())
                if (p.grad().defined())
                    p.grad().mul_(std::min(1.0, options.clip_norm / (std::sqrt(sum) + 1e-6)));
        }
        optimizer.step();
    }
    return difference(trainer.net->parameters(), reference.parameters());
}

TEST("updates", same_as_torch_optim) {
    /* On a card the norm to clip by is added up in another order: SGD ends 6e-8 apart then. Adam divides by the size of a
     * gradient, so one that weight decay all but cancels moves its parameter another way. */
    const double adam_bound = suite_on_cpu() ? 1e-5 : 1e-3;
    mt_torch_options o = options_of(MT_SGD);
    o.lr = 0.05;
    o.weight_decay = 0.01;
    double clips[] = {0.0, 0.1};
    for (double clip : clips) {
        o.clip_norm = clip;
        o.optimizer = MT_SGD;
        for (int kind = 0; kind < 3; kind++) {
            o.momentum = kind ? 0.9 : 0.0;
            o.nesterov = kind == 2;
            auto sgd = torch::optim::SGDOptions(o.lr).weight_decay(0.01);
            sgd.momentum(o.momentum).nesterov(o.nesterov != 0);
            double distance = distance_to<torch::optim::SGD>(o, sgd);
            if (getenv("CHECK_VERBOSE")) std::printf("sgd %d clip %g: %g\n", kind, clip, distance);
            ck_assert_double_lt(distance, 1e-6);
        }
        auto adam = torch::optim::AdamOptions(o.lr).weight_decay(0.01);
        auto adamw = torch::optim::AdamWOptions(o.lr).weight_decay(0.01);
        o.optimizer = MT_ADAM;
        double distance = distance_to<torch::optim::Adam>(o, adam);
        if (getenv("CHECK_VERBOSE")) std::printf("adam clip %g: %g\n", clip, distance);
        ck_assert_double_lt(distance, adam_bound);
        o.optimizer = MT_ADAMW;
        distance = distance_to<torch::optim::AdamW>(o, adamw);
        if (getenv("CHECK_VERBOSE")) std::printf("adamw clip %g: %g\n", clip, distance);
        ck_assert_double_lt(distance, adam_bound);
    }
}

/* The norm is summed over fixed parts, in the same order whatever the number of threads. */
TEST("updates", norm_and_threads) {
    struct Wide : nn::Module {
        at::Tensor weight = register_parameter("weight", at::randn({300000}));
    };
    double norms[2];
    for (int threads = 1; threads <= 2; threads++) {
        mt_torch_options options = options_of(MT_SGD, 1.0);
        mt_model *model;
        mt_torch *torch;
        mt_apply_result applied = apply_result();
        std::shared_ptr<Wide> net;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_seed(3));
        ck_ok(mt_torch_set_threads(threads));
        ck_ok(memtrain::make_model(&model, [&] {
            net = std::make_shared<Wide>();
            return memtrain::model(net, {}, [](Wide &wide, const memtrain::Tensors &) {
                return memtrain::Output{wide.weight.square().sum(), {}};
            });
        }));
        Batch batch(1);
        double exact = net->weight.detach().to(at::kDouble).norm().item().toDouble() * 2.0;
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_train_step(torch, batch.get(), nullptr, &applied));
        ck_assert_double_eq_tol(applied.grad_norm / exact, 1.0, suite_on_cpu() ? 1e-12 : 1e-5);
        norms[threads - 1] = applied.grad_norm;
        mt_torch_free(torch);
        mt_model_free(model);
    }
    ck_assert_double_eq(norms[0], norms[1]);
}

int main() {
    tcase_set_timeout(suite_case_named("faults"), 120);
    return suite_run_named("shim_step");
}
