/*
 * memtrain/trainer.hpp - a trainer in C++: one object that frees all its parts, with exceptions for errors.
 *
 *     memtrain::must(mt_device_set_budget("cpu", 600 << 20));
 *     auto net = std::make_shared<Net>();
 *     memtrain::Trainer trainer(memtrain::model(net, {}, loss), memtrain::sgd(0.01, 0.5));
 *     for (auto &batch : *loader) sum += trainer.step({batch.data, batch.target}).loss;
 *
 * The object holds a model, an optimiser and a trainer. It is header only, and needs libtorch's
 * headers. memtrain/torch.h and memtrain/trainer.h describe the functions that it calls.
 * docs/adopt.md shows how an existing loop adopts it.
 */
#ifndef MEMTRAIN_TRAINER_HPP
#define MEMTRAIN_TRAINER_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <memtrain/check.h>
#include <memtrain/forecast.h>
#include <memtrain/torch_fit.h>
#include <memtrain/torch.hpp>
#include <memtrain/trainer.h>

namespace memtrain {

/* A call that failed. what() is the error line. */
struct Error : std::runtime_error {
    explicit Error(mt_status why) : std::runtime_error(mt_last_error()), status(why) {}
    mt_status status;
};

/* Throws Error unless the status is MT_OK. */
inline void must(mt_status status) {
    if (status != MT_OK) throw Error(status);
}

/*
 * SGD with the defaults of torch::optim::SGD. MT_TORCH_OPTIONS_INIT has others: a weight decay and
 * a momentum.
 */
inline mt_torch_options sgd(double lr, double momentum = 0.0, double weight_decay = 0.0) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.optimizer = MT_SGD;
    options.lr = lr;
    options.momentum = momentum;
    options.weight_decay = weight_decay;
    return options;
}

/* Adam with the defaults of torch::optim::Adam. */
inline mt_torch_options adam(double lr = 1e-3, double weight_decay = 0.0) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.optimizer = MT_ADAM;
    options.lr = lr;
    options.weight_decay = weight_decay;
    return options;
}

/* AdamW with the defaults of torch::optim::AdamW. */
inline mt_torch_options adamw(double lr = 1e-3, double weight_decay = 0.01) {
    mt_torch_options options = adam(lr, weight_decay);
    options.optimizer = MT_ADAMW;
    return options;
}

/* Samples that are numbered from 0 on: mt_source of memtrain/fit.h. */
struct Source {
    std::size_t samples = 0;
    /* The tensors of these samples, in this order, with the sample in dimension 0. What it throws ends the run. */
    std::function<Tensors(const std::vector<std::int64_t> &index)> load;
};

/* A data set in memory: row n of each tensor is sample n. */
inline Source rows(Tensors all) {
    Source source;
    if (!all.empty()) source.samples = static_cast<std::size_t>(all[0].size(0));
    source.load = [all = std::move(all)](const std::vector<std::int64_t> &index) {
        Tensors batch;
        at::Tensor rows = all[0].new_empty(static_cast<std::int64_t>(index.size()), at::kLong);
        std::copy(index.begin(), index.end(), rows.data_ptr<std::int64_t>());
        for (const at::Tensor &one : all) batch.push_back(one.index_select(0, rows));
        return batch;
    };
    return source;
}

/* What Trainer::fit tells and asks: mt_fit_callbacks. What they throw ends the run. */
struct Watch {
    std::function<void(const mt_fit_report &)> begin;
    std::function<void(const mt_fit_report &, const mt_step_report &)> step;
    std::function<void(const mt_fit_report &, const mt_epoch_report &)> epoch;
    std::function<bool()> stop; /* must not throw */
};

namespace detail {

/* A Source as an mt_source. The tensors of a batch live until it is released. */
class Loader {
public:
    explicit Loader(const Source &source) : source_(source) {}
    Loader(const Loader &) = delete;
    Loader &operator=(const Loader &) = delete;

    mt_source get() {
        mt_source source = MT_SOURCE_INIT;
        source.self = this;
        source.samples = source_.samples;
        source.load = source_.load ? load : nullptr;
        source.release = [](void *self, mt_batch *) {
            static_cast<Loader *>(self)->handles_.reset();
        };
        return source;
    }

private:
    static mt_status load(void *self, const std::size_t *index, std::size_t count, mt_batch *out) {
        auto &loader = *static_cast<Loader *>(self);
        return guard([&] {
            Tensors tensors = loader.source_.load({index, index + count});
            loader.handles_.emplace(tensors);
            loader.data_ = {sizeof loader.data_, loader.handles_->get(), tensors.size()};
            out->data = &loader.data_;
            return MT_OK;
        });
    }

    const Source &source_;
    std::optional<Handles> handles_;
    mt_torch_batch data_ = MT_TORCH_BATCH_INIT;
};

/* Watch behind mt_fit_callbacks; those that are empty are not called. */
inline void watch(const Watch &functions, mt_fit_callbacks *out) {
    out->user = const_cast<Watch *>(&functions);
    if (functions.begin)
        out->begin = [](void *user, const mt_fit_report *run) {
            return guard([&] { return static_cast<Watch *>(user)->begin(*run), MT_OK; });
        };
    if (functions.step)
        out->step = [](void *user, const mt_fit_report *run, const mt_step_report *report) {
            return guard([&] { return static_cast<Watch *>(user)->step(*run, *report), MT_OK; });
        };
    if (functions.epoch)
        out->epoch = [](void *user, const mt_fit_report *run, const mt_epoch_report *report) {
            return guard([&] { return static_cast<Watch *>(user)->epoch(*run, *report), MT_OK; });
        };
    if (functions.stop)
        out->stop = [](void *user) { return static_cast<Watch *>(user)->stop() ? 1 : 0; };
}

/* For mt_fit_callbacks.now. */
inline double seconds(void *) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

} // namespace detail

/*
 * A model that is being trained. It may be moved. It belongs to one thread at a time, like an
 * mt_trainer.
 *
 * A Trainer that was moved from has nothing. Its get(), torch() and model() are NULL. Its calls
 * throw Error with MT_EINVAL.
 */
class Trainer {
public:
    /*
     * Makes a trainer of a described model.
     *
     * @param description  of memtrain::model or memtrain::contrastive_model; its net belongs to the
     *                     caller too, and has the parameters of the last step
     * @param optimizer    device and optimiser
     * @param options      NULL: defaults
     */
    template <class Described>
    explicit Trainer(Described description,
                     const mt_torch_options &optimizer = MT_TORCH_OPTIONS_INIT,
                     const mt_trainer_options *options = nullptr) {
        mt_model *model = nullptr;
        must(make_model(&model, [&] { return std::move(description); }));
        train(model, optimizer, options);
    }

    /*
     * Makes a trainer of a model of another origin: mt_script_load, or a function that calls
     * mt_model_new.
     *
     * @param model  taken over, also when this throws; the trainer frees it, and the caller must
     *               not
     */
    explicit Trainer(mt_model *model, const mt_torch_options &optimizer = MT_TORCH_OPTIONS_INIT,
                     const mt_trainer_options *options = nullptr) {
        train(model, optimizer, options);
    }

    /* The same with the options of the policy alone. */
    template <class Described>
    Trainer(Described description, const mt_torch_options &optimizer,
            const mt_policy_options &policy)
        : Trainer(std::move(description), optimizer, Policy(policy).options()) {}
    Trainer(mt_model *model, const mt_torch_options &optimizer, const mt_policy_options &policy)
        : Trainer(model, optimizer, Policy(policy).options()) {}

    Trainer(Trainer &&) = default;

    /* Swaps with the argument. Its destructor then frees what this object had, in the right order. */
    Trainer &operator=(Trainer other) noexcept {
        model_.swap(other.model_);
        torch_.swap(other.torch_);
        trainer_.swap(other.trainer_);
        std::swap(policy_, other.policy_);
        return *this;
    }

    /* mt_trainer_step. The tensors are those that the loss function gets. Dimension 0 is the sample. */
    mt_step_report step(const Tensors &tensors) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        with_batch(tensors,
                   [&](const mt_batch *batch) { return mt_trainer_step(get(), batch, &report); });
        return report;
    }

    /* mt_trainer_evaluate */
    mt_eval_report evaluate(const Tensors &tensors) {
        mt_eval_report report = MT_EVAL_REPORT_INIT;
        with_batch(tensors, [&](const mt_batch *batch) {
            return mt_trainer_evaluate(get(), batch, &report);
        });
        return report;
    }

    /*
     * mt_fit: epochs over a source. Files are those of mt_torch_save, seconds those of a steady clock.
     * @param validation  what is evaluated, in the place of options.validation; no samples: nothing
     */
    mt_fit_report fit(const Source &source, mt_fit_options options = MT_FIT_OPTIONS_INIT,
                      const Watch &functions = {}, const Source &validation = {}) {
        mt_fit_report report = MT_FIT_REPORT_INIT;
        mt_fit_callbacks callbacks = MT_FIT_CALLBACKS_INIT;
        detail::Loader training(source), testing(validation);
        const mt_source from = training.get(), test = testing.get();
        must(mt_torch_callbacks(torch(), &callbacks));
        detail::watch(functions, &callbacks);
        callbacks.now = detail::seconds;
        options.validation = validation.samples ? &test : nullptr;
        must(mt_fit(get(), &from, &options, &callbacks, &report));
        return report;
    }

    /*
     * mt_forecast_step: the plan of the steps with these tensors, with its chunks, its rungs and its
     * peak. Some chunks are run, and taken back. Call it before the first step or evaluation.
     *
     * If nothing that the policy allows makes a step fit, it throws Error with MT_EDEVMEM. After a
     * step it throws MT_ESTATE. Link with -lmemtrain_memory.
     */
    mt_plan forecast(const Tensors &tensors) {
        mt_plan plan = {};
        with_batch(tensors, [&](const mt_batch *batch) { return forecast_of(batch, &plan); });
        return plan;
    }

    /* mt_torch_check, between steps; mt_check_explain makes a text of the report. */
    mt_check_report check(const Tensors &tensors) {
        mt_check_report report = MT_CHECK_REPORT_INIT;
        with_batch(tensors,
                   [&](const mt_batch *batch) { return mt_torch_check(torch(), batch, &report); });
        return report;
    }

    /* mt_torch_set_lr: the learning rate of the next steps. */
    void set_lr(double lr) { must(mt_torch_set_lr(torch(), lr)); }

    /* mt_torch_save, mt_torch_load: the whole state, between steps. */
    void save(const std::string &path) { must(mt_torch_save(torch(), path.c_str(), nullptr)); }
    void load(const std::string &path) { must(mt_torch_load(torch(), path.c_str(), nullptr, 0)); }

    /* mt_trainer_explain: why the last batch did not fit, and what would make it fit; "" where all did. */
    std::string explain() const {
        std::string text(mt_trainer_explain(get(), nullptr, 0) + 1, '\0');
        mt_trainer_explain(get(), text.data(), text.size());
        text.pop_back();
        return text;
    }

    /* mt_trainer_summary */
    mt_run_report summary() const {
        mt_run_report report = MT_RUN_REPORT_INIT;
        must(mt_trainer_summary(get(), &report));
        return report;
    }

    /* The handles, for functions that take them. Borrowed. */
    mt_trainer *get() const { return trainer_.get(); }
    mt_torch *torch() const { return torch_.get(); }
    mt_model *model() const { return model_.get(); }

private:
    /* Lives as long as the call that it is an argument of. */
    class Policy {
    public:
        explicit Policy(const mt_policy_options &policy) { options_.policy = &policy; }
        const mt_trainer_options *options() const { return &options_; }

    private:
        mt_trainer_options options_ = MT_TRAINER_OPTIONS_INIT;
    };

    template <auto release> struct Release {
        template <class T> void operator()(T *handle) const { release(handle); }
    };

    void train(mt_model *model, const mt_torch_options &optimizer,
               const mt_trainer_options *options) {
        mt_torch *torch = nullptr;
        mt_trainer *trainer = nullptr;
        mt_backend backend = MT_BACKEND_INIT;
        model_.reset(model);
        must(mt_torch_new(model, &optimizer, &torch));
        torch_.reset(torch);
        must(mt_torch_backend(torch, &backend));
        must(mt_trainer_new(&backend, options, &trainer));
        trainer_.reset(trainer);
        if (options && options->policy) policy_ = *options->policy;
    }

    mt_status forecast_of(const mt_batch *batch, mt_plan *out) const {
        mt_run_report run = MT_RUN_REPORT_INIT;
        mt_backend backend = MT_BACKEND_INIT;
        mt_forecast *forecast = nullptr;
        mt_status status = mt_trainer_summary(get(), &run);
        if (status == MT_OK && run.steps)
            status = mt_set_error(MT_ESTATE,
                                  "memtrain::Trainer: a forecast comes before the first step");
        if (status == MT_OK) status = mt_torch_backend(torch(), &backend);
        if (status == MT_OK) status = mt_forecast_new(&backend, batch, &policy_, &forecast);
        if (status == MT_OK) status = mt_forecast_step(forecast, out);
        mt_forecast_free(forecast);
        return status;
    }

    template <class Call> static void with_batch(const Tensors &tensors, Call &&call) {
        detail::Handles handles(tensors);
        mt_torch_batch data = {sizeof data, handles.get(), tensors.size()};
        mt_batch batch = MT_BATCH_INIT;
        batch.data = &data;
        const char *fault = fault_of(tensors);
        if (!fault) batch.count = static_cast<std::size_t>(tensors[0].size(0));
        mt_status status =
            call(&batch); /* also without samples: other processes wait for the call */
        if (status == MT_EINVAL && fault)
            status = mt_set_error(status,
                                  "memtrain::Trainer: %s; accepted: tensors with the sample in "
                                  "dimension 0, at least one",
                                  fault);
        must(status);
    }

    /* Why the number of the batch's samples is not known, or NULL. */
    static const char *fault_of(const Tensors &tensors) {
        if (tensors.empty()) return "the batch has no tensors";
        if (!tensors[0].defined()) return "tensor 0 of the batch is undefined";
        if (tensors[0].dim() < 1) return "tensor 0 of the batch has no dimensions";
        return tensors[0].size(0) ? nullptr : "tensor 0 of the batch has no samples";
    }

    /* Each is used by the next one, so it is freed after the next one. */
    std::unique_ptr<mt_model, Release<mt_model_free>> model_;
    std::unique_ptr<mt_torch, Release<mt_torch_free>> torch_;
    std::unique_ptr<mt_trainer, Release<mt_trainer_free>> trainer_;
    mt_policy_options policy_ = MT_POLICY_OPTIONS_INIT; /* of the trainer */
};

} // namespace memtrain
#endif
