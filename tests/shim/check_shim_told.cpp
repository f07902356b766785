/*
 * check_shim_told.cpp - what would go wrong in silence is refused, taken back or told in one line of the log: losses
 * and gradients that are not finite, batches without a label, batches of uneven tensors, batch norms that are no
 * modules, metrics that are not given, tensors that no budget counts.
 */
#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/instance_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <memtrain/call.h>
#include <memtrain/trainer.hpp>

#include "check_shim.hpp"

using namespace check_shim;
using memtrain::Tensors;

namespace {

std::string logged;
int log_lines = 0;

void keep_line(void *, mt_log_level, const char *message) {
    logged = message;
    log_lines++;
}

void listen() {
    log_lines = 0;
    mt_set_log(keep_line, nullptr);
}

std::string hash_of(mt_torch *torch) {
    char text[65];
    ck_ok(mt_torch_state_sha256(torch, text));
    return text;
}

/* A batch of any tensors. */
struct Given {
    explicit Given(const Tensors &tensors)
        : handles(tensors), data{sizeof data, handles.get(), tensors.size()} {
        batch.data = &data;
        batch.count = static_cast<size_t>(tensors[0].size(0));
    }
    memtrain::detail::Handles handles;
    mt_torch_batch data;
    mt_batch batch = MT_BATCH_INIT;
};

/* Six features to three classes; a label below 0 is masked. What it does is up to the test. */
struct Small : nn::Module {
    at::Tensor weight = register_parameter("weight", at::randn({3, 6}) * 0.1);
    std::function<at::Tensor(const at::Tensor &)> before;

    at::Tensor logits(const at::Tensor &x) { return (before ? before(x) : x).matmul(weight.t()); }
};

/* The same by C functions, which can tell of units. Loss and metric of no label are 0/0. */
struct Masked {
    Small net;

    static Masked &of(void *self) { return *static_cast<Masked *>(self); }
    static mt_status visit(void *self, mt_visit_fn fn, void *user) {
        return mt_visit_tensor(&of(self).net.weight, "weight", fn, user);
    }
    static mt_status to_device(void *self, const char *device) {
        of(self).net.to(at::Device(device));
        return MT_OK;
    }
    static mt_status loss(void *self, mt_tensor *const *tensors, size_t, mt_tensor *out_loss,
                          mt_tensor *out_metrics) {
        at::Tensor labels = memtrain::tensor(tensors[1]), is_label = labels.ge(0);
        at::Tensor logits = of(self).net.logits(memtrain::tensor(tensors[0]));
        at::Tensor correct = logits.argmax(1).eq(labels).sum(), count = is_label.sum();
        memtrain::tensor(out_loss) = at::cross_entropy_loss(logits, labels); /* -100 is ignored */
        memtrain::tensor(out_metrics) = (correct / count * count).detach().reshape({1});
        return MT_OK;
    }
    static mt_status units(void *, mt_tensor *const *tensors, size_t, double *out) {
        *out = memtrain::tensor(tensors[1]).ge(0).sum().item().toDouble();
        return MT_OK;
    }
    static void destroy(void *self) { delete &of(self); }
};

struct MaskedTrainer {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_trainer *trainer = nullptr;
    Masked *masked = nullptr;

    explicit MaskedTrainer(mt_torch_options options) {
        static const char *const metrics[] = {"accuracy"};
        static const int over[] = {MT_OVER_UNITS};
        mt_model_ops ops = MT_MODEL_OPS_INIT;
        mt_model_traits traits = MT_MODEL_TRAITS_INIT;
        mt_backend backend = MT_BACKEND_INIT;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
        ck_ok(mt_torch_seed(7));
        ops.visit_parameters = Masked::visit;
        ops.to_device = Masked::to_device;
        ops.loss = Masked::loss;
        ops.units = Masked::units;
        ops.destroy = Masked::destroy;
        traits.metric_count = 1;
        traits.metric_names = metrics;
        traits.metric_over = over;
        masked = new Masked;
        ck_ok(mt_model_new(&ops, masked, &traits, &model));
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_torch_backend(torch, &backend));
        ck_ok(mt_trainer_new(&backend, nullptr, &trainer));
    }
    ~MaskedTrainer() {
        mt_trainer_free(trainer);
        mt_torch_free(torch);
        mt_model_free(model);
    }
};

/* 8 samples, of which the first so many have no label. */
Tensors masked_batch(int64_t masked) {
    at::Tensor x = at::arange(48, at::kFloat).reshape({8, 6}).sin();
    at::Tensor labels = at::arange(8, at::kLong).remainder(3);
    labels.narrow(0, 0, masked).fill_(-100);
    return {x, labels};
}

/* A model of C++ whose forward pass begins with this. */
memtrain::Trainer trainer_before(std::function<at::Tensor(const at::Tensor &)> before,
                                 size_t min_micro_batch = 0) {
    auto net = std::make_shared<Small>();
    net->before = std::move(before);
    mt_torch_options options = options_of(MT_SGD);
    auto description = memtrain::model(net, {}, [](Small &small, const Tensors &batch) {
        at::Tensor logits = small.logits(batch[0]);
        return memtrain::Output{at::cross_entropy_loss(logits, batch[1]), {}};
    });
    description.min_micro_batch = min_micro_batch;
    return memtrain::Trainer(std::move(description), options);
}

Tensors samples(int64_t count) {
    return {at::randn({count, 6}), at::arange(count, at::kLong).remainder(3)};
}

} // namespace

/* ---- what is not finite -------------------------------------------------------------------------- */

/* A plain step: nothing has changed, generators included, and the result says so; the update is made where asked for. */
TEST_LOOP("finite", loss_of_a_plain_step, 2) {
    mt_torch_options options = options_of(MT_ADAMW);
    options.apply_not_finite = _i;
    Trainer trainer(options);
    Batch batch(8), bad(8);
    mt_chunk_result chunk = chunk_result();
    mt_apply_result applied = apply_result();
    *memtrain::tensor(bad.images()).mutable_data_ptr<float>() = NAN;
    ck_ok(mt_train_step(trainer.torch, batch.get(), nullptr, nullptr));
    std::string before = trainer.hash();
    listen();
    ck_ok(mt_train_step(trainer.torch, bad.get(), &chunk, &applied));
    ck_assert_int_eq(applied.skipped, !_i);
    ck_assert(std::isnan(chunk.loss_sum));
    ck_assert_int_eq(trainer.hash() == before, !_i);
    ck_assert_int_eq(log_lines, !_i);
    if (!_i) ck_contains(logged.c_str(), "mt_train_step: taken back: the loss is nan");
    ck_ok(mt_train_step(trainer.torch, batch.get(), nullptr, &applied));
    ck_assert_int_eq(applied.skipped, 0);
}

/* The loss is a number and its gradient is not: the norm, which clipping takes anyway, tells. */
TEST_LOOP("finite", gradient_where_it_is_clipped, suite_on_cpu() ? 4 : 2) {
    static const char *const devices[] = {nullptr, "sim:cuda"};
    simulate("sim:cuda", 256 << 20);
    mt_torch_options options = options_of(MT_ADAM, 1.0);
    if (devices[_i / 2]) options.device = devices[_i / 2];
    options.apply_not_finite = _i % 2;
    mt_model *model;
    mt_torch *torch;
    mt_apply_result applied = apply_result();
    std::shared_ptr<Small> net;
    ck_ok(memtrain::make_model(&model, [&] {
        net = std::make_shared<Small>();
        return memtrain::model(net, {}, [](Small &small, const Tensors &) {
            return memtrain::Output{small.weight.mul(0).sum().sqrt(), {}};
        });
    }));
    ck_ok(mt_torch_new(model, &options, &torch));
    Given batch(samples(4)); /* which draws random numbers */
    std::string before = hash_of(torch);
    listen();
    ck_ok(mt_train_step(torch, &batch.batch, nullptr, &applied));
    ck_assert(!std::isfinite(applied.grad_norm));
    ck_assert_int_eq(log_lines, !(_i % 2));
    if (log_lines) ck_contains(logged.c_str(), "no update: the norm of the gradient is ");
    ck_assert_int_eq(applied.skipped, !(_i % 2));
    ck_assert_int_eq(hash_of(torch) == before, !(_i % 2));
    mt_torch_free(torch);
    mt_model_free(model);
}

/* By a trainer, whose report gives the loss, or the norm. */
TEST("finite", steps_of_a_trainer) {
    memtrain::Trainer trainer = trainer_before({});
    Tensors good = samples(16), bad = samples(16);
    bad[0][3][0] = INFINITY;
    trainer.step(good);
    std::string before = hash_of(trainer.torch());
    listen();
    mt_step_report report = trainer.step(bad);
    ck_assert_int_eq(report.skipped, MT_SKIP_NOT_FINITE);
    ck_assert(hash_of(trainer.torch()) == before);
    ck_assert_int_eq(log_lines, 1);
    ck_contains(logged.c_str(), "step 2 is taken back: its loss is");
    ck_assert_int_eq(trainer.step(good).skipped, MT_SKIP_NOT);
}

/* A gradient that is none spoils the parameters without a word; the next loss is none either, and the line says why. */
TEST("finite", parameters_that_are_spoilt) {
    memtrain::Trainer trainer = trainer_before({});
    memtrain::Trainer spoilt(
        memtrain::model(
            std::make_shared<Small>(), {},
            [](Small &small, const Tensors &batch) {
                at::Tensor none = small.weight.mul(0).sum().sqrt();
                at::Tensor out = small.logits(batch[0]);
                return memtrain::Output{at::cross_entropy_loss(out, batch[1]) + none, {}};
            }),
        options_of(MT_SGD));
    Given batch(samples(8));
    Tensors bad = samples(8);
    bad[0][0][0] = NAN;
    listen();
    trainer.step(bad);
    ck_contains(logged.c_str(), "the parameters are as before");
    ck_assert_int_eq(spoilt.step(samples(8)).skipped, MT_SKIP_NOT);
    ck_assert_int_eq(log_lines, 1);
    ck_assert_int_eq(spoilt.step(samples(8)).skipped, MT_SKIP_NOT_FINITE);
    ck_contains(logged.c_str(), "the parameters hold values that are not finite");
    ck_ok(mt_train_step(spoilt.torch(), &batch.batch, nullptr, nullptr));
    ck_assert_int_eq(log_lines, 3);
    ck_contains(logged.c_str(), "mt_train_step: taken back");
    ck_contains(logged.c_str(), "the parameters hold values that are not finite");
}

/* A loss scaler's overflow is no news; a loss that is none is. */
TEST_LOOP("finite", losses_beside_a_scaler, 2) {
    if (has_no_scaler("losses_beside_a_scaler")) return;
    mt_torch_options options = options_of(MT_SGD);
    options.amp = MT_FLOAT16;
    options.scale_start = _i ? 4294967296.0 : 1.0;
    memtrain::Trainer trainer(
        memtrain::model(std::make_shared<Small>(), {},
                        [](Small &small, const Tensors &batch) {
                            at::Tensor out = small.logits(batch[0]);
                            return memtrain::Output{out.square().mean().to(at::kFloat), {}};
                        }),
        options);
    Given batch({at::full({8, 6}, _i ? 100.0 : NAN)});
    mt_step_report report = MT_STEP_REPORT_INIT;
    listen();
    ck_ok(mt_trainer_step(trainer.get(), &batch.batch, &report));
    ck_assert_int_eq(report.skipped, _i ? MT_SKIP_APPLY : MT_SKIP_NOT_FINITE);
    ck_assert_int_eq(std::isfinite(report.loss), _i);
    ck_assert_int_eq(log_lines, !_i);
    if (!_i) ck_contains(logged.c_str(), "step 1 is taken back: its loss is nan");
    ck_ok(mt_train_step(trainer.torch(), &batch.batch, nullptr, nullptr));
    ck_assert_int_eq(log_lines, _i ? 0 : 2);
    if (!_i) ck_contains(logged.c_str(), "mt_train_step: taken back: the loss is nan");
}

/*
 * The mean over a chunk without a label is 0/0, and its gradient is finite, so that the scaler has nothing against it: the
 * loss is looked at, and neither weights nor scale change.
 */
TEST("finite", no_label_beside_a_scaler) {
    if (has_no_scaler("no_label_beside_a_scaler")) return;
    static const size_t pieces[] = {4, 4};
    mt_torch_options options = options_of(MT_ADAMW);
    options.amp = MT_FLOAT16;
    memtrain::Trainer trainer(memtrain::model(std::make_shared<Small>(), {},
                                              [](Small &small, const Tensors &batch) {
                                                  at::Tensor out = small.logits(batch[0]);
                                                  at::Tensor each = at::cross_entropy_loss(
                                                      out, batch[1], {}, at::Reduction::Sum);
                                                  at::Tensor labels = batch[1].ne(-100).sum();
                                                  return memtrain::Output{each / labels, {}};
                                              }),
                              options);
    Tensors tensors = samples(8);
    tensors[1].narrow(0, 4, 4).fill_(-100);
    Given batch(tensors);
    mt_step_report report = MT_STEP_REPORT_INIT;
    char before[65], after[65];
    ck_ok(mt_torch_state_sha256(trainer.torch(), before));
    listen();
    ck_ok(mt_trainer_set_chunks(trainer.get(), pieces, 2));
    ck_ok(mt_trainer_step(trainer.get(), &batch.batch, &report));
    ck_assert_int_eq(report.skipped, MT_SKIP_NOT_FINITE);
    ck_assert(std::isnan(report.loss));
    ck_contains(logged.c_str(), "step 1 is taken back: its loss is nan");
    ck_contains(logged.c_str(), "wants a model with units");
    ck_ok(mt_torch_state_sha256(trainer.torch(), after));
    ck_assert_str_eq(before, after);
}

/* ---- no label ------------------------------------------------------------------------------------- */

/* A chunk without a label adds nothing: step and evaluation are those of the whole batch. */
TEST("labels", chunks_without_a_label) {
    static const size_t whole[] = {8}, pieces[] = {2, 3, 1, 2};
    mt_step_report reports[2];
    mt_eval_report evals[2];
    at::Tensor weights[2];
    for (int cut = 0; cut < 2; cut++) {
        MaskedTrainer m(options_of(MT_SGD));
        Given batch(masked_batch(5));
        reports[cut] = MT_STEP_REPORT_INIT;
        evals[cut] = MT_EVAL_REPORT_INIT;
        ck_ok(mt_trainer_set_chunks(m.trainer, cut ? pieces : whole, cut ? 4 : 1));
        ck_ok(mt_trainer_step(m.trainer, &batch.batch, &reports[cut]));
        ck_ok(mt_trainer_evaluate(m.trainer, &batch.batch, &evals[cut]));
        weights[cut] = m.masked->net.weight.detach().clone();
    }
    ck_assert_int_eq(reports[1].skipped, MT_SKIP_NOT);
    ck_assert_double_eq_tol(reports[1].loss, reports[0].loss, 1e-6);
    ck_assert_double_eq_tol(reports[1].metrics[0], reports[0].metrics[0], 1e-6);
    ck_assert_double_eq_tol(evals[1].loss, evals[0].loss, 1e-6);
    ck_assert_double_lt((weights[1] - weights[0]).abs().max().item().toDouble(), 1e-6);
}

/* A batch without any is no step of the optimiser, nor of the loss scaler. */
TEST_LOOP("labels", batch_without_a_label, 3) {
    mt_torch_options options = options_of(MT_ADAM, _i == 2 ? 1.0 : 0.0);
    if (_i == 1) options.amp = half_precision();
    MaskedTrainer m(options);
    Given good(masked_batch(2)), none(masked_batch(8));
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_eval_report eval = MT_EVAL_REPORT_INIT;
    mt_apply_result applied = apply_result();
    ck_ok(mt_trainer_step(m.trainer, &good.batch, nullptr));
    std::string before = hash_of(m.torch);
    double scale = mt_torch_scale(m.torch);
    listen();
    ck_ok(mt_trainer_step(m.trainer, &none.batch, &report));
    ck_assert_int_eq(report.skipped, MT_SKIP_NO_UNITS);
    ck_assert_int_eq(log_lines, 1);
    ck_contains(logged.c_str(), "step 2 is skipped: the batch of 8 samples has no units");
    ck_ok(mt_train_step(m.torch, &none.batch, nullptr, &applied));
    ck_assert_int_eq(applied.skipped, 1);
    ck_assert_int_eq(log_lines, 2);
    ck_assert(hash_of(m.torch) == before);
    ck_assert_double_eq(mt_torch_scale(m.torch), scale);
    ck_ok(mt_trainer_evaluate(m.trainer, &none.batch, &eval));
    ck_assert(std::isnan(eval.loss));
    ck_ok(mt_trainer_step(m.trainer, &good.batch, &report));
    ck_assert_int_eq(report.skipped, MT_SKIP_NOT);
}

/* ---- uneven tensors --------------------------------------------------------------------------------- */

TEST_LOOP("uneven", uneven_batches, 4) {
    static const struct {
        int64_t first, second;
        size_t count;
        const char *says;
    } cases[] = {
        {64, 63, 63, "tensor 0 has 64 samples, tensor 1 has 63"},
        {63, 64, 63, "tensor 0 has 63 samples, tensor 1 has 64"},
        {16, 16, 17, "batch->count is 17; accepted: 1 to 16, the samples of the tensors"},
        {16, 16, 3, nullptr},
    };
    memtrain::Trainer trainer = trainer_before({});
    Given given({at::randn({cases[_i].first, 6}), at::zeros({cases[_i].second}, at::kLong)});
    mt_chunk_result chunk = chunk_result();
    given.batch.count = cases[_i].count;
    const mt_batch *batch = &given.batch;
    struct {
        const char *name;
        mt_status status;
        std::string line;
    } calls[5];
    auto call = [&](int i, const char *name, mt_status status) {
        calls[i] = {name, status, status == MT_OK ? "" : mt_last_error()};
    };
    call(0, "mt_trainer_step: ", mt_trainer_step(trainer.get(), batch, nullptr));
    call(1, "mt_trainer_evaluate: ", mt_trainer_evaluate(trainer.get(), batch, nullptr));
    call(2, "mt_train_step: ", mt_train_step(trainer.torch(), batch, nullptr, nullptr));
    call(3, "mt_evaluate: ", mt_evaluate(trainer.torch(), batch, 0, 1, &chunk));
    call(4, "mt_begin: ", mt_begin(trainer.torch(), batch));
    for (const auto &c : calls) {
        ck_status(c.status, cases[_i].says ? MT_EINVAL : MT_OK);
        if (!cases[_i].says) continue;
        ck_assert_uint_eq(c.line.find(c.name), 0);
        ck_contains(c.line.c_str(), cases[_i].says);
    }
    if (!cases[_i].says) ck_ok(mt_rollback(trainer.torch()));
}

TEST("uneven", tensor_that_is_null) {
    memtrain::Trainer trainer = trainer_before({});
    Given given(samples(4));
    mt_tensor *handles[] = {given.handles.get()[0], nullptr};
    given.data.tensors = handles;
    ck_status(mt_trainer_step(trainer.get(), &given.batch, nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_trainer_step: tensor 1 of the batch is NULL");
}

/* ---- batches that are none -------------------------------------------------------------------------- */

/* In the words of who gives tensors, not a count. */
TEST("uneven", batches_without_samples) {
    static const struct {
        Tensors tensors;
        const char *says;
    } cases[] = {
        {{}, "the batch has no tensors"},
        {{at::Tensor()}, "tensor 0 of the batch is undefined"},
        {{at::zeros({})}, "tensor 0 of the batch has no dimensions"},
        {{at::zeros({0, 6})}, "tensor 0 of the batch has no samples"},
        {{at::zeros({4, 6})}, "the batch has 1 tensor"},
    };
    memtrain::Trainer trainer(
        memtrain::model(std::make_shared<Small>(), {},
                        [](Small &small, const Tensors &batch) {
                            at::Tensor out = small.logits(batch.at(0));
                            return memtrain::Output{at::cross_entropy_loss(out, batch.at(1)), {}};
                        }),
        options_of(MT_SGD));
    for (const auto &c : cases)
        for (int call = 0; call < 3; call++) {
            bool throws = false;
            try {
                if (call == 0) trainer.step(c.tensors);
                if (call == 1) trainer.evaluate(c.tensors);
                if (call == 2) trainer.check(c.tensors);
            } catch (const memtrain::Error &error) {
                throws = true;
                ck_contains(error.what(), c.says);
            }
            ck_assert(throws);
        }
    ck_contains(mt_last_error(), "the loss function failed: ");
}

/* ---- what is written to ----------------------------------------------------------------------------- */

namespace {

/* Places where a forward pass may halve its input: itself, a view, without a graph, in a hook, in evaluation alone. */
at::Tensor halved(const at::Tensor &x, int way) {
    c10::NoGradGuard no_grad;
    if (way == 0) x.div_(2);
    if (way == 1) x.select(1, 0).div_(2);
    if (way == 2) x.detach().div_(2);
    return x;
}

} // namespace

/* Samples that run again would be halved twice: the step fails, whether memory runs out in it or not. */
TEST_LOOP("written", batch_that_is_written_to, 3) {
    for (uint64_t n = 0; n < 30; n++) {
        memtrain::Trainer trainer =
            trainer_before([_i](const at::Tensor &x) { return halved(x, _i); });
        Given batch(samples(16));
        std::string before = hash_of(trainer.torch());
        if (n) ck_ok(mt_inject_oom(n, 0));
        mt_status status = mt_trainer_step(trainer.get(), &batch.batch, nullptr);
        ck_ok(mt_inject_oom(0, 0));
        ck_refused(status, MT_EINVAL, "tensor 0 of the batch is written to by the forward pass");
        ck_assert(hash_of(trainer.torch()) == before);
        ck_refused(mt_trainer_evaluate(trainer.get(), &batch.batch, nullptr), MT_EINVAL,
                   "tensor 0 of the batch is written to by the forward pass");
        ck_status(mt_train_step(trainer.torch(), &batch.batch, nullptr, nullptr), MT_EINVAL);
    }
}

TEST("written", batch_that_is_written_to_backwards) {
    memtrain::Trainer trainer(
        memtrain::model(std::make_shared<Small>(), {},
                        [](Small &small, const Tensors &batch) {
                            at::Tensor out = small.logits(batch[0]), labels = batch[1];
                            out.register_hook([labels](const at::Tensor &gradient) {
                                labels.fill_(0);
                                return gradient;
                            });
                            return memtrain::Output{out.square().mean(), {}};
                        }),
        options_of(MT_SGD));
    Given batch(samples(16));
    ck_refused(mt_trainer_step(trainer.get(), &batch.batch, nullptr), MT_EINVAL,
               "tensor 1 of the batch is written to by the backward pass");
}

/* Embeddings run twice in any case. */
TEST("written", batch_that_is_written_to_for_embeddings) {
    ck_ok(mt_torch_init(nullptr));
    auto embed = [](Small &small, const Tensors &batch) {
        return Tensors{small.logits(batch[0]), small.logits(batch[1].mul_(2))};
    };
    auto join = [](Small &, const Tensors &all) {
        return memtrain::Output{(all[0] * all[1]).mean(), {}};
    };
    memtrain::Trainer trainer(
        memtrain::contrastive_model(std::make_shared<Small>(), {}, embed, join),
        options_of(MT_SGD));
    Given batch({at::randn({8, 6}), at::randn({8, 6})});
    ck_refused(mt_trainer_step(trainer.get(), &batch.batch, nullptr), MT_EINVAL,
               "tensor 1 of the batch is written to by the forward pass");
    ck_status(mt_trainer_evaluate(trainer.get(), &batch.batch, nullptr), MT_EINVAL);
}

TEST("written", units_that_write_to_the_batch) {
    ck_ok(mt_torch_init(nullptr));
    auto description =
        memtrain::model(std::make_shared<Small>(), {}, [](Small &small, const Tensors &batch) {
            return memtrain::Output{small.logits(batch[0]).square().mean(), {}};
        });
    description.units = [](const Tensors &batch) {
        return static_cast<double>(batch[1].clamp_(0, 2).size(0));
    };
    memtrain::Trainer trainer(std::move(description), options_of(MT_SGD));
    Given batch(samples(8));
    ck_refused(mt_trainer_step(trainer.get(), &batch.batch, nullptr), MT_EINVAL,
               "tensor 1 of the batch is written to by the function that counts");
}

/* Tensors of inference mode have no version counter: a chunk of them is a copy, and they stay as they were. */
TEST("written", batch_of_inference_mode) {
    memtrain::Trainer trainer = trainer_before([](const at::Tensor &x) { return halved(x, 0); }),
                      reads = trainer_before({});
    c10::InferenceMode inference;
    Tensors batch = samples(16);
    at::Tensor before = batch[0].clone();
    Given given(batch);
    (void)!mt_trainer_evaluate(trainer.get(), &given.batch, nullptr);
    ck_assert(at::equal(batch[0], before));
    ck_ok(mt_trainer_evaluate(reads.get(), &given.batch, nullptr));
}

/* Another tensor of the same memory may be written to meanwhile, as a loader does that fills the next batch. */
TEST("written", batch_beside_another) {
    at::Tensor ring = at::randn({2, 16, 6}), next = ring.select(0, 1);
    at::Tensor labels = samples(16)[1];
    memtrain::Trainer trainer = trainer_before([&](const at::Tensor &x) {
        c10::NoGradGuard no_grad;
        next.fill_(1);
        return x;
    });
    trainer.step({ring.select(0, 0), labels});
    trainer.evaluate({ring.select(0, 0), labels});
}

namespace {

/* A layer, and buffers that its forward pass counts in. */
struct Counting : Small {
    at::Tensor counter = register_buffer("counter", at::zeros({}));
    at::Tensor once = register_buffer("once", at::zeros({}));
    at::Tensor mean = register_buffer("mean", at::zeros({6}));
    at::Tensor var = register_buffer("var", at::ones({6}));
    at::Tensor running_mean = register_buffer("running_mean", at::zeros({6}));
    int kind = 0;

    at::Tensor run(const at::Tensor &x) {
        c10::NoGradGuard no_grad;
        if (kind == 1) counter.add_(1);
        if (kind == 2) counter.set_data(counter + 1);
        if (kind == 3 && !once.item().toBool()) once.fill_(1);
        if (kind == 4) running_mean.add_(1);
        if (kind == 5) return at::batch_norm(x, {}, {}, mean, var, is_training(), 0.1, 1e-5, false);
        return x;
    }
};

} // namespace

/* Once, and only where a step has several chunks; of norms and of what is written once nothing is said. */
TEST_LOOP("written", buffers_that_chunks_change, 6) {
    static const size_t halves[] = {8, 8}, whole[] = {16};
    auto net = std::make_shared<Counting>();
    net->kind = _i;
    memtrain::Trainer trainer(
        memtrain::model(net, {},
                        [](Counting &counting, const Tensors &batch) {
                            at::Tensor out = counting.logits(counting.run(batch[0]));
                            return memtrain::Output{at::cross_entropy_loss(out, batch[1]), {}};
                        }),
        options_of(MT_SGD));
    listen();
    for (int i = 0; i < 2; i++) {
        ck_ok(mt_trainer_set_chunks(trainer.get(), whole, 1));
        trainer.step(samples(16));
    }
    ck_assert_int_eq(log_lines, 0);
    for (int i = 0; i < 3; i++) {
        ck_ok(mt_trainer_set_chunks(trainer.get(), halves, 2));
        trainer.step(samples(16));
    }
    bool is_told = _i == 1 || _i == 2;
    ck_assert_int_eq(log_lines, is_told);
    if (is_told) ck_contains(logged.c_str(), "buffer 'counter' is changed by the forward pass");
}

/* ---- batch norms that are no modules ---------------------------------------------------------------- */

namespace {

at::Tensor norm(const at::Tensor &x, bool training) {
    at::Tensor mean = at::zeros({x.size(1)}, x.options()), var = at::ones({x.size(1)}, x.options());
    return at::batch_norm(x, {}, {}, mean, var, training, 0.1, 1e-5, false);
}

/* By its name, as a C program has it. */
at::Tensor norm_by_name(const at::Tensor &x) {
    mt_tensor *in = nullptr, *mean = nullptr, *var = nullptr, *out = nullptr;
    at::Tensor result;
    for (mt_tensor **handle : {&in, &mean, &var}) ck_ok(mt_tensor_new(handle));
    memtrain::tensor(in) = x;
    memtrain::tensor(mean) = at::zeros({x.size(1)}, x.options());
    memtrain::tensor(var) = at::ones({x.size(1)}, x.options());
    const mt_value values[] = {mt_value_tensor(in),   mt_value_none(),       mt_value_none(),
                               mt_value_tensor(mean), mt_value_tensor(var),  mt_value_bool(1),
                               mt_value_double(0.1),  mt_value_double(1e-5), mt_value_bool(0)};
    ck_ok(mt_tensor_new(&out));
    ck_ok(mt_call_into("aten::batch_norm", values, 9, nullptr, 0, out));
    result = memtrain::tensor(out);
    for (mt_tensor *handle : {in, mean, var, out}) mt_tensor_free(handle);
    return result;
}

const struct {
    const char *name;
    std::function<at::Tensor(const at::Tensor &)> before;
    bool found;
    size_t min_micro_batch; /* what the model says; 0: nothing */
} norms[] = {
    {"training", [](const at::Tensor &x) { return norm(x, true); }, true, 0},
    {"by name", norm_by_name, true, 0},
    {"chunks of one are legal", [](const at::Tensor &x) { return norm(x, true); }, false, 1},
    {"evaluation", [](const at::Tensor &x) { return norm(x, false); }, false, 0},
    {"instance",
     [](const at::Tensor &x) {
         return at::instance_norm(x.reshape({x.size(0), 2, 3}), {}, {}, {}, {}, true, 0.1, 1e-5,
                                  false)
             .reshape({x.size(0), 6});
     },
     false, 0},
    {"none", {}, false, 0},
};

} // namespace

/* The first chunk shows it: the two recordings are taken back, and no chunk has one sample. */
TEST_LOOP("norms", norms_by_operators, 6) {
    ck_ok(mt_device_set_budget("cpu", 64 << 20));
    memtrain::Trainer trainer = trainer_before(norms[_i].before, norms[_i].min_micro_batch);
    mt_backend backend = MT_BACKEND_INIT;
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(mt_torch_backend(trainer.torch(), &backend));
    mt_step_report report = trainer.step(samples(64));
    size_t smallest = 64;
    for (size_t i = 0; i < report.chunk_count; i++) smallest = std::min(smallest, report.chunks[i]);
    ck_ok(backend.describe(backend.self, &info));
    ck_assert_msg(info.normalises_over_batch == norms[_i].found, "%s", norms[_i].name);
    ck_assert_uint_eq(info.min_micro_batch, norms[_i].found ? 2 : 1);
    ck_assert_int_eq(report.discarded > 0, norms[_i].found);
    if (norms[_i].found) ck_assert_uint_gt(smallest, 2);
    ck_assert_uint_eq(trainer.step(samples(64)).discarded, 0);
}

/* A size of one that the options fix is refused as it is beside a module, and the step taken back. */
TEST_LOOP("norms", norms_in_chunks_of_one, 6) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    policy.micro_batch = 1;
    own.policy = &policy;
    auto net = std::make_shared<Small>();
    net->before = norms[_i].before;
    auto description = memtrain::model(net, {}, [](Small &small, const Tensors &batch) {
        return memtrain::Output{at::cross_entropy_loss(small.logits(batch[0]), batch[1]), {}};
    });
    description.min_micro_batch = norms[_i].min_micro_batch;
    memtrain::Trainer trainer(std::move(description), options_of(MT_SGD), &own);
    Given batch(samples(8));
    std::string before = hash_of(trainer.torch());
    for (int i = 0; i < 2; i++) {
        mt_status status = mt_trainer_step(trainer.get(), &batch.batch, nullptr);
        ck_status(status, norms[_i].found ? MT_EINVAL : MT_OK);
        if (!norms[_i].found) continue;
        ck_contains(mt_last_error(), "micro_batch is 1; the backend accepts chunks of at least 2");
        ck_assert(hash_of(trainer.torch()) == before);
    }
}

/* One chunk is listened to. */
TEST("norms", looks_at_the_first_chunk_alone) {
    bool on = false;
    memtrain::Trainer trainer =
        trainer_before([&](const at::Tensor &x) { return on ? norm(x, true) : x; });
    mt_chunk_result chunk = chunk_result();
    Given batch(samples(4));
    for (int i = 0; i < 2; i++) {
        on = i == 1;
        ck_ok(mt_train_step(trainer.torch(), &batch.batch, &chunk, nullptr));
        ck_assert_int_eq(chunk.normalises_over_batch, 0);
    }
}

/* Embeddings of chunks would not be those of the batch; over all embeddings it is the batch. */
TEST_LOOP("norms", embeddings_that_are_normalised, 2) {
    ck_ok(mt_torch_init(nullptr));
    auto net = std::make_shared<Small>();
    bool in_join = _i;
    auto embed = [=](Small &small, const Tensors &batch) {
        at::Tensor one = small.logits(batch[0]);
        return Tensors{in_join ? one : norm(one, true), small.logits(batch[1])};
    };
    auto join = [=](Small &, const Tensors &all) {
        at::Tensor one = in_join ? norm(all[0], true) : all[0];
        return memtrain::Output{(one * all[1]).mean(), {}};
    };
    memtrain::Trainer trainer(memtrain::contrastive_model(net, {}, embed, join),
                              options_of(MT_SGD));
    Given batch({at::randn({8, 6}), at::randn({8, 6})});
    mt_status status = mt_trainer_step(trainer.get(), &batch.batch, nullptr);
    ck_status(status, in_join ? MT_OK : MT_EINVAL);
    if (!in_join) ck_contains(mt_last_error(), "the model has embeddings and normalises");
}

/* ---- told once --------------------------------------------------------------------------------------- */

TEST("once", metrics_that_are_not_given) {
    ck_ok(mt_torch_init(nullptr));
    memtrain::Trainer trainer(
        memtrain::model(std::make_shared<Small>(), {"accuracy", "top5"},
                        [](Small &small, const Tensors &batch) {
                            return memtrain::Output{
                                at::cross_entropy_loss(small.logits(batch[0]), batch[1]), {}};
                        }),
        options_of(MT_SGD));
    listen();
    for (int i = 0; i < 3; i++) ck_assert_double_eq(trainer.step(samples(4)).metrics[0], 0.0);
    trainer.evaluate(samples(4));
    ck_assert_int_eq(log_lines, 1);
    ck_contains(logged.c_str(), "names 2 metrics ('accuracy' first) and its loss gave none");
}

/* Buffers, frozen parameters and data from before the allocator: parameters that train move into memory that counts. */
TEST("once", tensors_from_before) {
    if (suite_on_card()) return suite_skip("tensors_from_before", "of the CPU's allocator alone");
    struct Old : Small {
        at::Tensor table = register_buffer("table", at::zeros({1 << 18}));
        at::Tensor frozen = register_parameter("frozen", at::zeros({1 << 18}), false);
    };
    at::Tensor x = at::randn({1 << 16, 6});
    auto net = std::make_shared<Old>();
    std::shared_ptr<Small> young;
    auto loss = [](Small &small, const Tensors &batch) {
        return memtrain::Output{small.logits(batch[0]).square().mean(), {}};
    };
    ck_ok(mt_torch_init(nullptr)); /* which may have a word to say of threads */
    listen();
    memtrain::Trainer trainer(memtrain::model(net, {}, loss), options_of(MT_SGD));
    ck_assert_int_eq(log_lines, 1);
    ck_contains(logged.c_str(), "the model's buffers and frozen parameters take 2.0 MiB");
    ck_contains(logged.c_str(), "mt_torch_init");
    for (int i = 0; i < 2; i++) trainer.step({x.narrow(0, 0, 8)});
    ck_assert_int_eq(log_lines, 2);
    ck_contains(logged.c_str(), "the first batch's tensors take 1.5 MiB");
    young = std::make_shared<Small>();
    memtrain::Trainer other(memtrain::model(young, {}, loss), options_of(MT_SGD));
    std::vector<float> mine(48);
    other.step({at::from_blob(mine.data(), {8, 6})});
    ck_assert_int_eq(log_lines, 2);
}

SUITE("shim_told")
