/*
 * check_shim_fit.cpp - mt_fit over libtorch: files and rates of an mt_torch, Trainer::fit, a run in parts that ends with the
 * bits of one in one, and what is thrown in the functions of C++.
 */
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include <memtrain/trainer.hpp>

#include "suite.h" /* last: its macro fail would break C++ headers */

namespace {

constexpr int64_t samples = 50, held_out = 20;

/* With dropout, so that random numbers have to go on too. */
struct Net : torch::nn::Module {
    torch::nn::Linear in{register_module("in", torch::nn::Linear(2, 16))};
    torch::nn::Linear out{register_module("out", torch::nn::Linear(16, 2))};
    at::Tensor forward(const at::Tensor &x) {
        return out(at::dropout(at::relu(in(x)), 0.1, is_training()));
    }
};

memtrain::Output loss(Net &net, const memtrain::Tensors &batch) {
    at::Tensor logits = net.forward(batch[0]);
    return {at::cross_entropy_loss(logits, batch[1]), memtrain::correct(logits, batch[1])};
}

/* In chunks of 4 samples. */
memtrain::Trainer new_trainer() {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_torch_options optimizer = MT_TORCH_OPTIONS_INIT;
    policy.micro_batch = 4;
    options.policy = &policy;
    optimizer.device = suite_device();
    memtrain::must(mt_torch_seed(3));
    return memtrain::Trainer(memtrain::model(std::make_shared<Net>(), {"accuracy"}, loss),
                             optimizer, &options);
}

/* Points in a square; whether they lie in a circle. */
memtrain::Source points(int64_t count) {
    memtrain::must(mt_torch_seed(static_cast<uint64_t>(count)));
    at::Tensor x = at::rand({count, 2});
    return memtrain::rows({x, x.square().sum(1).lt(0.6).to(at::kLong)});
}

/* A name for a file that is removed at the end, with the one before it. */
struct File {
    std::string path;
    File() {
        char name[] = "/tmp/check_shim_fit.XXXXXX";
        close(mkstemp(name));
        path = name;
        unlink(name);
    }
    ~File() {
        unlink(path.c_str());
        unlink((path + ".1").c_str());
    }
    const char *get() const { return path.c_str(); }
};

mt_fit_options some_options() {
    mt_fit_options options = MT_FIT_OPTIONS_INIT;
    options.batch = 8;
    options.epochs = 3;
    options.metric = 0;
    options.maximise = 1;
    return options;
}

std::string hash_of(const memtrain::Trainer &trainer) {
    char hash[65];
    memtrain::must(mt_torch_state_sha256(trainer.torch(), hash));
    return hash;
}

/* Stopped after each number of steps and on with the file, by another trainer. */
TEST("fit", in_parts) {
    File last;
    memtrain::Source training = points(samples), validation = points(held_out);
    mt_schedule schedule = MT_SCHEDULE_INIT;
    mt_fit_options options = some_options();
    schedule.kind = MT_SCHEDULE_COSINE;
    options.schedule = &schedule;
    memtrain::Trainer whole = new_trainer();
    mt_fit_report first = whole.fit(training, options, {}, validation);
    ck_assert_uint_eq(first.steps, 21);
    ck_assert_int_eq(first.end, MT_FIT_DONE);
    options.last = last.get();
    for (size_t n = 0; n < 36; n += 5) {
        size_t asked = 0;
        memtrain::Watch watch;
        watch.stop = [&] { return ++asked > n; };
        options.resume = nullptr;
        memtrain::Trainer before = new_trainer(), after = new_trainer();
        mt_fit_report part = before.fit(training, options, watch, validation);
        ck_assert_int_eq(part.end, asked > n ? MT_FIT_STOPPED : MT_FIT_DONE);
        options.resume = last.get();
        memtrain::must(mt_torch_seed(99)); /* the file has the generator's state */
        mt_fit_report end = after.fit(training, options, {}, validation);
        ck_assert_uint_eq(end.steps, 21);
        ck_assert(end.best == first.best && end.best_epoch == first.best_epoch);
        ck_assert(hash_of(after) == hash_of(whole));
    }
}

template <class Call> void throws(Call &&call, mt_status status, const char *words) {
    try {
        call();
    } catch (const memtrain::Error &error) {
        ck_status(error.status, status);
        ck_contains(error.what(), words);
        return;
    }
    ck_abort_msg("nothing was thrown for '%s'", words);
}

/* Lost in the middle of an epoch, and on with the file that was written within it. */
TEST("fit", saved_within_an_epoch) {
    File last;
    memtrain::Source training = points(samples), validation = points(held_out);
    mt_fit_options options = some_options();
    memtrain::Trainer whole = new_trainer();
    whole.fit(training, options, {}, validation);
    options.last = last.get();
    for (int by_time = 0; by_time < 2; by_time++) {
        memtrain::Trainer lost = new_trainer(), after = new_trainer();
        memtrain::Watch watch;
        watch.step = [](const mt_fit_report &run, const mt_step_report &) {
            if (run.steps == 11) throw std::runtime_error("lost");
        };
        options.resume = nullptr;
        options.save_every = by_time ? 0 : 5;
        options.save_seconds = by_time ? 1e-12 : 0; /* whenever it is asked */
        throws([&] { lost.fit(training, options, watch, validation); }, MT_ETORCH, "lost");
        options.resume = last.get();
        memtrain::must(mt_torch_seed(99)); /* the file has the generator's state */
        uint64_t first = 0;
        watch.step = [&](const mt_fit_report &run, const mt_step_report &) {
            if (!first) first = run.steps;
        };
        mt_fit_report end = after.fit(training, options, watch, validation);
        ck_assert_uint_eq(first, 11); /* the callback of step 11 comes before its file */
        ck_assert_uint_eq(end.steps, 21);
        ck_assert(hash_of(after) == hash_of(whole));
    }
}

TEST("fit", watched) {
    memtrain::Source training = points(samples), validation = points(held_out);
    mt_fit_options options = some_options();
    memtrain::Watch watch;
    memtrain::Trainer trainer = new_trainer();
    size_t begun = 0, steps = 0, epochs = 0;
    watch.begin = [&](const mt_fit_report &run) { ck_assert_uint_eq(run.epoch, ++begun); };
    watch.step = [&](const mt_fit_report &run, const mt_step_report &report) {
        ck_assert_uint_eq(run.steps, ++steps);
        ck_assert_uint_eq(report.samples, run.batch == 7 ? 2 : 8);
    };
    watch.epoch = [&](const mt_fit_report &run, const mt_epoch_report &report) {
        ck_assert_uint_eq(report.epoch, ++epochs);
        ck_assert_uint_eq(report.samples, samples);
        ck_assert_uint_eq(report.eval_samples, held_out);
        ck_assert_int_eq(run.evaluated, 1);
    };
    trainer.fit(training, options, watch, validation);
    ck_assert_uint_eq(steps, 21);
    ck_assert_uint_eq(epochs, 3);
    mt_fit_report end = new_trainer().fit(training);
    ck_assert_uint_eq(end.steps, 2); /* 32 and 18 */
}

/* The samples of a step are those of its order. */
TEST("fit", row_by_row) {
    memtrain::Source source = memtrain::rows({at::rand({9, 3}), at::rand({9})});
    ck_assert_uint_eq(source.samples, 9);
    memtrain::Tensors batch = source.load({7, 0, 7});
    memtrain::Tensors all = source.load({0, 1, 2, 3, 4, 5, 6, 7, 8});
    ck_assert_int_eq(batch[0].size(0), 3);
    ck_assert(batch[0][0].equal(all[0][7]) && batch[0][1].equal(all[0][0]));
    ck_assert(batch[1][2].equal(all[1][7]));
    ck_assert_uint_eq(memtrain::rows({}).samples, 0);
}

TEST("fit", what_is_thrown) {
    memtrain::Source training = points(samples), gone = training;
    mt_fit_options options = some_options();
    memtrain::Watch watch;
    memtrain::Trainer trainer = new_trainer(), other = std::move(trainer);
    gone.load = [](const std::vector<int64_t> &) -> memtrain::Tensors {
        throw std::runtime_error("a file is gone");
    };
    throws([&] { other.fit(gone, options); }, MT_ETORCH, "a file is gone");
    throws([&] { other.fit(training, options, {}, gone); }, MT_ETORCH, "a file is gone");
    watch.epoch = [](const mt_fit_report &, const mt_epoch_report &) {
        throw std::runtime_error("no more");
    };
    throws([&] { other.fit(training, options, watch); }, MT_ETORCH, "no more");
    throws([&] { other.fit({}, options); }, MT_EINVAL, "source->load is NULL");
    throws([&] { other.fit(memtrain::rows({}), options); }, MT_EINVAL, "source->samples is 0");
    throws([&] { trainer.fit(training, options); }, MT_EINVAL, "torch is NULL");
    gone.load = [](const std::vector<int64_t> &) { return memtrain::Tensors{}; };
    throws([&] { other.fit(gone, options); }, MT_EINVAL, "");
    options.resume = "/nowhere/at.all";
    throws([&] { other.fit(training, options); }, MT_EIO, "/nowhere/at.all");
}

/* A file without a position is refused by what it is. */
TEST("fit", another_file) {
    File file;
    memtrain::Trainer trainer = new_trainer();
    mt_fit_options options = some_options();
    memtrain::must(mt_torch_save(trainer.torch(), file.get(), nullptr));
    options.resume = file.get();
    memtrain::Source source = points(samples); /* draws numbers, whose generator is in the state */
    trainer.step(source.load({0, 1, 2}));
    const std::string before = hash_of(trainer);
    throws([&] { trainer.fit(source, options); }, MT_EINVAL,
           "does not say where a run of mt_fit was");
    ck_assert(hash_of(trainer) == before);
}

TEST("fit", callbacks) {
    mt_fit_callbacks out = MT_FIT_CALLBACKS_INIT;
    memtrain::Trainer trainer = new_trainer();
    out.user = &trainer;
    ck_ok(mt_torch_callbacks(trainer.torch(), &out));
    ck_assert(out.state == trainer.torch() && out.save && out.position && out.load && out.set_lr);
    ck_assert(out.user == &trainer && !out.begin && !out.step && !out.epoch && !out.stop &&
              !out.now);
    ck_ok(out.set_lr(out.state, 0.5));
    ck_status(out.set_lr(out.state, 0), MT_EINVAL);
    ck_refused(mt_torch_callbacks(nullptr, &out), MT_EINVAL, "mt_torch_callbacks: torch is NULL");
    ck_refused(mt_torch_callbacks(trainer.torch(), nullptr), MT_EINVAL, "out is NULL");
    out.size = sizeof out - 8;
    ck_refused(mt_torch_callbacks(trainer.torch(), &out), MT_EINVAL, "out->size is 88");
}

} // namespace

SUITE("shim_fit")
