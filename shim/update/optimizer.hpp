/*
 * optimizer.hpp - SGD, Adam and AdamW over the flat blocks, with libtorch's fused operators.
 *
 * An update is prepare, step, finish. prepare looks at the gradients: their norm, whether they are finite,
 * and what the update shall divide them by. On a card nothing of it comes back to the host before
 * finish; the fused operators read divisor and infinities where they lie.
 *
 * State is made beforehand and flat, so that a step on the CPU allocates nothing. A parameter that
 * got no gradient is left alone: AdamW would move it on a gradient of zero.
 */
#ifndef MEMTRAIN_SHIM_OPTIMIZER_HPP
#define MEMTRAIN_SHIM_OPTIMIZER_HPP

#include <optional>
#include <string>
#include <vector>

#include "flat.hpp"
#include "groups.hpp"

namespace memtrain::shim {

/* What an update came to. */
struct Update {
    double norm;  /* of the whole gradient, divided and before clipping; NaN: not computed */
    bool skipped; /* the gradient was not finite, and nothing was changed */
};

class Optimizer {
public:
    /* Plans and touches nothing. */
    Optimizer(const mt_torch_options &options, const std::vector<Group> &groups, const Flat &flat);

    /* Makes the state: zero moments, steps of 0. */
    void lay_out(const Device &device);

    /*
     * For a device whose update asks the host for the norm: that of the gradient, on the device, to be read with other figures,
     * which spares a wait. Undefined where none is wanted, or there is no memory for it. norm_is() gives what was read to
     * prepare(), which looks whether the gradient is still the same. A chunk makes another one: forget_norm().
     */
    at::Tensor norm_ahead();
    void norm_is(double norm);
    void forget_norm() { known_norm_.reset(); }

    /*
     * Before step(). The gradient is divided by divisor and clipped as the options say; scaled: a loss scaler's scale
     * is in the divisor. Where one of the two looks at the norm, an update whose norm is not finite is skipped.
     * Allocates nothing on the CPU; throws before anything has changed.
     */
    void prepare(double divisor, bool scaled);

    /* Updates every parameter that was touched. Allocates nothing on the CPU. */
    void step();

    /* Once the device has been waited for. */
    Update finish();

    /* The state of another, for the same parameters in the same order and places; on any device. */
    void copy_state(const Optimizer &other);

    /* One state tensor of all parameters, "exp_avg" say: blocks like those of gradients. */
    struct Moment {
        const char *name;
        std::vector<at::Tensor> blocks; /* as Flat's */
        std::vector<at::Tensor> views;  /* as Flat's slots; undefined without a place */
        std::vector<at::Tensor> rows;   /* the same, as the fused operators take them */
    };

    /* The state for these places: what is there now, and zeros where nothing is. Changes nothing. */
    std::vector<Moment> make_moments(const Places &places) const;

    /* Takes this state and leaves its own there. A parameter that had none has made no step. Allocates nothing. */
    void swap(std::vector<Moment> &moments);

    /* A slot that has made no step. Allocates nothing on the CPU. */
    void reset(size_t slot);

    /* Between step() and finish(): the card is to tell what became of it, so finish() waits. */
    bool tells() const { return outcome_.defined(); }

    void set_lr(double lr) { options_.lr = lr; }
    void set_rate(double factor) { rate_ = factor; }
    double lr() const { return options_.lr; }
    /* Before the factors of groups. */
    double lr_of_update() const { return options_.lr * rate_; }
    size_t bytes() const;

    /* Adds "optimizer.exp_avg.NAME" and so on to the list, of parameters that have a place. */
    void append_state(std::vector<Named> &list) const;

    /* Those names, of a slot with a place. */
    std::vector<std::string> state_names(size_t slot) const;

private:
    /* What the fused operators take, for touched slots of one block. */
    struct Lists {
        std::vector<at::Tensor> parameters, gradients, first, second, steps;
        void clear();
        void reserve(size_t count);
    };

    void look_at(double divisor, bool scaled);
    void take_rows();
    void forget_gradients();
    void forget_outcome();
    double gradient_norm();
    uint64_t gradient_stamp() const;
    void scale_gradients(double factor);
    at::Tensor norm_on_device();
    bool may_skip(bool scaled) const;
    void clip(double divisor);
    void prepare_on_host(double divisor, bool scaled);
    void prepare_on_device(double divisor, bool scaled);
    bool collect(size_t block, size_t group);
    void count_step();
    void update(const Group &group);

    mt_torch_options options_;
    double rate_ = 1.0; /* factor of the learning rate */
    const Flat &flat_;
    std::vector<Group> groups_;
    std::vector<size_t> group_of_; /* as Flat's slots */
    std::vector<Moment> moments_;
    std::vector<at::Tensor> rows_; /* parameters as Flat's slots, for the fused operators */
    std::vector<at::Tensor> gradient_rows_; /* theirs, from prepare() to step() */
    at::Tensor steps_; /* [slots] float32, as the fused operators want it; Adam and AdamW */
    std::vector<at::Tensor> step_views_;
    std::vector<at::Tensor> factors_; /* a CPU scalar per block's dtype, for scale_gradients */
    std::vector<double> sums_;        /* partial sums of gradient_norm */
    struct KnownNorm {
        double norm;
        uint64_t stamp; /* of the gradient that it is of */
    };
    std::optional<KnownNorm> known_norm_;
    Lists lists_;

    /* Of one update. Scalars in float32, where the parameters are; undefined: not wanted. */
    std::optional<at::Tensor> divisor_; /* of the gradients, as the fused operators want it */
    std::optional<at::Tensor> skips_;   /* 1: there was an infinity. On a device alone */
    at::Tensor counted_;                /* what is added to the steps: 1 less that */
    at::Tensor one_;                    /* what is added else, on a card */
    at::Tensor outcome_;                /* float32 [2]: norm, infinity */
    at::Tensor host_divisor_;           /* what divisor_ is on the CPU, made beforehand */
    at::Tensor host_outcome_;           /* outcome_ once it is read, likewise */
    Update update_ = {};                /* on the CPU */
    c10::Device device_ = c10::Device(c10::kCPU);
    bool on_device_ = false; /* a card whose fused operators divide, or a model of one */
    bool on_mps_ = false;    /* whose fused operators divide by nothing, or its model */
};

} // namespace memtrain::shim
#endif
