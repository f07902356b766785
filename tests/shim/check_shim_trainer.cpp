/*
 * check_shim_trainer.cpp - memtrain/trainer.hpp: who frees what when a Trainer is moved, models of other origins, what
 * is missing in a description, rates, files, policies and forecasts; and log functions that throw.
 */
#include <csignal>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/ops/rand.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <memtrain/trainer.hpp>

#include "script_subject.hpp"

using namespace script_subject;

namespace {

using Made = memtrain::Trainer; /* check_shim has a Trainer, too */

static_assert(!std::is_copy_constructible_v<Made> && std::is_nothrow_move_constructible_v<Made> &&
              std::is_nothrow_move_assignable_v<Made>);

memtrain::Output loss(nn::LinearImpl &net, const memtrain::Tensors &batch) {
    return {net.forward(batch[0]).square().mean(), {}};
}

Made trainer_of(const std::shared_ptr<nn::LinearImpl> &net) {
    return Made(memtrain::model(net, {}, loss), memtrain::sgd(0.1));
}

std::shared_ptr<nn::LinearImpl> linear() {
    return std::make_shared<nn::LinearImpl>(4, 2);
}

memtrain::Tensors data() {
    return {at::rand({8, 4})};
}

/* What goes to the log while it lives. */
struct Log {
    std::string text;
    Log() {
        mt_set_log([](void *user, mt_log_level,
                      const char *line) { static_cast<Log *>(user)->text += line; },
                   this);
    }
    ~Log() { mt_set_log(nullptr, nullptr); }
    Log(const Log &) = delete;
    Log &operator=(const Log &) = delete;
};

/* Status and line of the Error that the call throws. */
template <class Call> std::pair<mt_status, std::string> error_of(Call &&call) {
    try {
        call();
    } catch (const memtrain::Error &error) {
        return {error.status, error.what()};
    }
    return {MT_OK, "nothing was thrown"};
}

template <class Call> void refuses(Call &&call, const char *line) {
    auto thrown = error_of(call);
    ck_status(thrown.first, MT_EINVAL);
    ck_assert_str_eq(thrown.second.c_str(), line);
}

/* ---- moves ------------------------------------------------------------------------------------------- */

/* What the left side had is freed, trainer before backend before model, and nothing of the right side. */
TEST("moves", assigned_over) {
    prepare();
    size_t before = allocated();
    {
        Log log;
        std::weak_ptr<nn::LinearImpl> first, second;
        auto net = linear();
        first = net;
        Made one = trainer_of(net);
        net = linear();
        second = net;
        Made other = trainer_of(net);
        net.reset();
        one.step(data());
        mt_trainer *old = one.get();
        one = std::move(other);
        ck_assert(first.expired());
        ck_assert(!second.expired());
        ck_status(mt_trainer_step(old, nullptr, nullptr), MT_EINVAL);
        ck_assert_uint_eq(one.step(data()).samples, 8);
        one = trainer_of(linear());
        ck_assert(second.expired());
        ck_assert_uint_eq(one.step(data()).samples, 8);
        ck_assert_str_eq(log.text.c_str(), "");
    }
    ck_assert_uint_eq(allocated(), before);
}

TEST("moves", assigned_to_itself) {
    prepare();
    Log log;
    Made one = trainer_of(linear());
    Made &same = one;
    mt_trainer *handle = one.get();
    one = std::move(same);
    ck_assert_ptr_eq(one.get(), handle);
    ck_assert_uint_eq(one.step(data()).samples, 8);
    ck_assert_str_eq(log.text.c_str(), "");
}

TEST("moves", moved_from) {
    prepare();
    Made one = trainer_of(linear()), other = std::move(one);
    ck_assert_ptr_null(one.get());
    ck_assert_ptr_null(one.torch());
    ck_assert_ptr_null(one.model());
    refuses([&] { one.step(data()); }, "mt_trainer_step: trainer is NULL");
    refuses([&] { one.evaluate(data()); }, "mt_trainer_evaluate: trainer is NULL");
    refuses([&] { one.summary(); }, "mt_trainer_summary: trainer is NULL");
    one = trainer_of(linear());
    ck_assert_uint_eq(one.step(data()).samples, 8);
    ck_assert_uint_eq(other.step(data()).samples, 8);
}

/* ---- models of other origins -------------------------------------------------------------------------- */

TEST("models", a_model_from_a_file) {
    Folder folder;
    prepare();
    size_t before = allocated();
    {
        Batch batch(8);
        Made trainer(loaded(saved_net(folder)), memtrain::sgd(0.1));
        mt_step_report report =
            trainer.step({memtrain::tensor(batch.images()), memtrain::tensor(batch.labels())});
        ck_assert_uint_eq(report.samples, 8);
        ck_ok(mt_script_save(trainer.model(), folder.file("b.pt").c_str()));
    }
    ck_assert_uint_eq(allocated(), before);
}

/* Whatever goes wrong, the model is freed once. */
TEST("models", a_model_is_taken_over) {
    static int destroyed;
    auto make = [] {
        mt_model_ops ops = MT_MODEL_OPS_INIT;
        mt_model *model = nullptr;
        ops.visit_parameters = [](void *, mt_visit_fn, void *) { return MT_OK; };
        ops.loss = [](void *, mt_tensor *const *, size_t, mt_tensor *, mt_tensor *) {
            return MT_OK;
        };
        ops.destroy = [](void *) { destroyed++; };
        ck_ok(mt_model_new(&ops, nullptr, nullptr, &model));
        return model;
    };
    prepare();
    mt_torch_options options = memtrain::sgd(0.1);
    auto thrown = error_of([&] { Made trainer(make(), options); });
    ck_status(thrown.first, MT_EINVAL);
    ck_contains(thrown.second.c_str(), "the model has no parameters");
    ck_assert_int_eq(destroyed, 1);
    options.lr = -1;
    ck_status(error_of([&] { Made trainer(make(), options); }).first, MT_EINVAL);
    ck_assert_int_eq(destroyed, 2);
    mt_model *nothing = nullptr;
    refuses([&] { Made trainer(nothing); }, "mt_torch_new: model is NULL");
}

/* ---- what is missing ------------------------------------------------------------------------------------ */

TEST("models", descriptions_with_holes) {
    using Net = nn::LinearImpl;
    using Loss = memtrain::Output (*)(Net &, const memtrain::Tensors &);
    using Embed = std::function<memtrain::Tensors(Net &, const memtrain::Tensors &)>;
    using Join = std::function<memtrain::Output(Net &, const memtrain::Tensors &)>;
    const Embed embed = [](Net &net, const memtrain::Tensors &batch) {
        return memtrain::Tensors{net.forward(batch[0])};
    };
    const Join join = loss;
    const std::shared_ptr<Net> none, net = linear();
    prepare();
    refuses([&] { Made trainer(memtrain::model(none, {}, loss)); },
            "memtrain::model: net is empty");
    refuses([&] { Made trainer(memtrain::model(net, {}, Loss(nullptr))); },
            "memtrain::model: loss is empty");
    refuses([&] { Made trainer(memtrain::model(net, {}, Join())); },
            "memtrain::model: loss is empty");
    refuses([&] { Made trainer(memtrain::contrastive_model(none, {}, embed, join)); },
            "memtrain::contrastive_model: net is empty");
    refuses([&] { Made trainer(memtrain::contrastive_model(net, {}, Embed(), join)); },
            "memtrain::contrastive_model: embed is empty");
    refuses([&] { Made trainer(memtrain::contrastive_model(net, {}, embed, Join())); },
            "memtrain::contrastive_model: join is empty");
    mt_model *model = nullptr;
    ck_status(memtrain::make_model(&model, [&] { return memtrain::model(none, {}, loss); }),
              MT_EINVAL);
    ck_assert_ptr_null(model);
}

/* ---- what the class says for the functions of C --------------------------------------------------------- */

TEST("functions", optimisers_have_the_defaults_of_libtorch) {
    const mt_torch_options adam = memtrain::adam(), adamw = memtrain::adamw();
    torch::optim::AdamOptions their_adam;
    torch::optim::AdamWOptions their_adamw;
    ck_assert_int_eq(adam.optimizer, MT_ADAM);
    ck_assert_double_eq(adam.lr, their_adam.lr());
    ck_assert_double_eq(adam.weight_decay, their_adam.weight_decay());
    ck_assert_double_eq(adam.beta2, std::get<1>(their_adam.betas()));
    ck_assert_int_eq(adamw.optimizer, MT_ADAMW);
    ck_assert_double_eq(adamw.lr, their_adamw.lr());
    ck_assert_double_eq(adamw.weight_decay, their_adamw.weight_decay());
    ck_assert_double_eq(adamw.beta1, std::get<0>(their_adamw.betas()));
    ck_assert_double_eq(adamw.eps, their_adamw.eps());
}

/* A rate next to 0 changes nothing, and a file brings the whole state back. */
TEST("functions", rate_and_files) {
    prepare();
    Folder folder;
    const std::string file = folder.file("state");
    auto net = linear();
    Made trainer = trainer_of(net);
    trainer.save(file);
    at::Tensor before = net->weight.detach().clone();
    trainer.set_lr(1e-30);
    trainer.step(data());
    ck_assert(net->weight.equal(before));
    trainer.set_lr(0.1);
    trainer.step(data());
    ck_assert(!net->weight.equal(before));
    trainer.load(file);
    ck_assert(net->weight.equal(before));
    ck_status(error_of([&] { trainer.load(file + ".none"); }).first, MT_EIO);
    ck_status(error_of([&] { trainer.set_lr(-1); }).first, MT_EINVAL);
}

/* Each step trains and each evaluation evaluates, whatever mode the program has left its network in. */
TEST("functions", modes) {
    prepare();
    std::vector<bool> seen;
    auto net = linear();
    Made trainer(memtrain::model(net, {},
                                 [&](nn::LinearImpl &model, const memtrain::Tensors &batch) {
                                     seen.push_back(model.is_training());
                                     return loss(model, batch);
                                 }),
                 memtrain::sgd(0.1));
    auto saw = [&](bool training) {
        bool all = !seen.empty();
        for (bool one : seen) all &= one == training;
        seen.clear();
        return all;
    };
    for (bool training : {true, false}) {
        trainer.step(data());
        ck_assert(saw(true));
        net->train(training);
        trainer.step(data());
        ck_assert(saw(true));
        trainer.evaluate(data());
        ck_assert(saw(false));
        net->train(training);
        trainer.evaluate(data());
        ck_assert(saw(false));
    }
}

TEST("functions", a_policy_alone) {
    prepare();
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.micro_batch = 2;
    Made trainer(memtrain::model(linear(), {}, loss), memtrain::sgd(0.1), policy);
    ck_assert_uint_eq(trainer.step(data()).chunk_count, 4);
    ck_assert_str_eq(trainer.explain().c_str(), "");
    const memtrain::Tensors batch = data();
    ck_ok(mt_inject_oom(1, 1));
    ck_status(error_of([&] { trainer.step(batch); }).first, MT_EDEVMEM);
    ck_ok(mt_inject_oom(0, 0));
    ck_contains(trainer.explain().c_str(), "A batch of 8 samples does not fit on cpu");
    policy.micro_batch = 9;
    policy.max_micro_batch = 8;
    ck_status(error_of([&] {
                  Made refused(memtrain::model(linear(), {}, loss), memtrain::sgd(0.1), policy);
              }).first,
              MT_EINVAL);
}

/* The net of a forecast, whose step does not fit as one chunk within the budget. */
struct Wide : nn::Module {
    nn::Linear in{register_module("in", nn::Linear(64, 1024))};
    nn::Linear out{register_module("out", nn::Linear(1024, 2))};
};

Made trainer_of_wide(const std::shared_ptr<Wide> &net, const mt_policy_options &policy) {
    return Made(memtrain::model(net, {},
                                [](Wide &model, const memtrain::Tensors &batch) {
                                    at::Tensor y = model.out(torch::relu(model.in(batch[0])));
                                    return memtrain::Output{y.square().mean(), {}};
                                }),
                memtrain::sgd(0.1), policy);
}

/* What is told is the step that is made later, and telling it changes nothing. */
TEST("functions", a_forecast_is_what_steps_do) {
    prepare();
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.deterministic = 1;
    auto net = std::make_shared<Wide>();
    Made trainer = trainer_of_wide(net, policy);
    const memtrain::Tensors batch = {at::rand({512, 64})};
    ck_ok(mt_device_set_budget("cpu", allocated() + (3 << 20)));
    const at::Tensor before = net->in->weight.detach().clone();
    mt_plan plan = trainer.forecast(batch);
    ck_assert(net->in->weight.equal(before));
    ck_assert_uint_eq(plan.samples, 512);
    ck_assert_uint_gt(mt_plan_chunks(&plan), 1);
    ck_assert_uint_ne(plan.predicted_peak_bytes, 0);
    mt_step_report step = MT_STEP_REPORT_INIT;
    for (int i = 0; i < 6; i++) step = trainer.step(batch);
    ck_assert_uint_eq(step.chunk_count, mt_plan_chunks(&plan));
    ck_assert_uint_eq(step.peak_bytes, plan.predicted_peak_bytes);
    auto late = error_of([&] { trainer.forecast(batch); });
    ck_status(late.first, MT_ESTATE);
    ck_contains(late.second.c_str(), "before the first step");
}

/* The policy is the trainer's, also after a move, and of a batch that cannot fit it says so. */
TEST("functions", a_forecast_keeps_to_the_policy) {
    prepare();
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.micro_batch = 16;
    Made made = trainer_of_wide(std::make_shared<Wide>(), policy);
    Made trainer = trainer_of_wide(std::make_shared<Wide>(), MT_POLICY_OPTIONS_INIT);
    trainer = std::move(made);
    const memtrain::Tensors batch = {at::rand({64, 64})};
    mt_plan plan = trainer.forecast(batch);
    ck_assert_uint_eq(mt_plan_chunks(&plan), 4);
    refuses([&] { trainer.forecast({}); },
            "memtrain::Trainer: the batch has no tensors; accepted: tensors with the sample in "
            "dimension 0, at least one");
    ck_assert_uint_eq(trainer.step(batch).chunk_count, 4);
    policy.forbid_rungs = MT_RUNG_BIT(MT_RUNGS) - 1;
    Made hopeless = trainer_of_wide(std::make_shared<Wide>(), policy);
    ck_ok(mt_device_set_budget("cpu", allocated()));
    ck_status(error_of([&] { hopeless.forecast(batch); }).first, MT_EDEVMEM);
}

/* ---- a log function that throws --------------------------------------------------------------------------- */

void throws(void *, mt_log_level, const char *text) {
    throw std::runtime_error(text);
}

/* From C, and from C++ inside a guard and outside of one: each would be passed through another way. */
START_TEST(a_log_that_throws_ends_the_program) {
    prepare();
    mt_set_log(throws, nullptr);
    try {
        if (_i == 0) mt_log(MT_LOG_WARNING, "a line");
        if (_i == 1) {
            Made trainer = trainer_of(linear());
            mt_model_free(trainer.model()); /* in use: a warning */
        }
        if (_i == 2) {
            auto frozen = linear();
            for (at::Tensor &parameter : frozen->parameters()) parameter.requires_grad_(false);
            trainer_of(frozen); /* cannot be trained: a warning */
        }
    } catch (...) {
        std::exit(3);
    }
}
END_TEST

} // namespace

int main() {
    tcase_add_loop_test_raise_signal(suite_case_named("log"), a_log_that_throws_ends_the_program,
                                     SIGABRT, 0, 3);
    return suite_run_named("shim_trainer");
}
