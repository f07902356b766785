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

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <utility>

#include <memtrain/check.h>
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

    Trainer(Trainer &&) = default;

    /* Swaps with the argument. Its destructor then frees what this object had, in the right order. */
    Trainer &operator=(Trainer other) noexcept {
        model_.swap(other.model_);
        torch_.swap(other.torch_);
        trainer_.swap(other.trainer_);
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

    /* mt_torch_check, between steps. mt_check_explain makes a text of the report. */
    mt_check_report check(const Tensors &tensors) {
        mt_check_report report = MT_CHECK_REPORT_INIT;
        with_batch(tensors,
                   [&](const mt_batch *batch) { return mt_torch_check(torch(), batch, &report); });
        return report;
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
};

} // namespace memtrain
#endif
