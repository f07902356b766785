/*
 * optimizer.hpp - SGD, Adam and AdamW over the flat blocks, with libtorch's fused operators.
 *
 * State is made beforehand and flat, so that a step on the CPU allocates nothing. A parameter that
 * got no gradient is left alone: AdamW would move it on a gradient of zero.
 */
#ifndef MEMTRAIN_SHIM_OPTIMIZER_HPP
#define MEMTRAIN_SHIM_OPTIMIZER_HPP

#include <vector>

#include "flat.hpp"

namespace memtrain::shim {

class Optimizer {
public:
    /* Plans and touches nothing. */
    Optimizer(const mt_torch_options &options, const Flat &flat);

    /* Makes the state: zero moments, steps of 0. */
    void lay_out(c10::Device device);

    /*
     * L2 norm of the whole gradient. On the CPU summed in double over fixed blocks, so that the
     * result does not depend on the number of threads.
     */
    double gradient_norm();

    /* Multiplies all gradients. Allocates nothing on the CPU. */
    void scale_gradients(double factor);

    /* Updates every parameter that was touched. Allocates nothing on the CPU. */
    void step();

    /* The state of another, for the same parameters in the same order; on any device. */
    void copy_state(const Optimizer &other);

    void set_lr(double lr) { options_.lr = lr; }
    void set_rate(double factor) { rate_ = factor; }
    double lr() const { return options_.lr; }
    size_t bytes() const;

    /* Adds "optimizer.exp_avg.NAME" and so on to the list. */
    void append_state(std::vector<Named> &list) const;

private:
    /* One state tensor of all parameters, "exp_avg" say: a block like those of the parameters. */
    struct Moment {
        const char *name;
        std::vector<at::Tensor> blocks; /* as Flat's */
        std::vector<at::Tensor> views;  /* as Flat's slots */
    };

    /* What the fused operators take, for the touched slots of one block. */
    struct Lists {
        std::vector<at::Tensor> parameters, gradients, first, second, steps;
        void clear();
        void reserve(size_t count);
    };

    void collect(size_t block);
    void count_step(double by);
    void update();

    mt_torch_options options_;
    double rate_ = 1.0; /* factor of the learning rate */
    const Flat &flat_;
    std::vector<Moment> moments_;
    at::Tensor steps_; /* [slots] float32, as the fused operators want it; Adam and AdamW */
    std::vector<at::Tensor> step_views_;
    std::vector<at::Tensor> factors_; /* a CPU scalar per block's dtype, for scale_gradients */
    std::vector<double> sums_;        /* partial sums of gradient_norm */
    Lists lists_;
};

} // namespace memtrain::shim
#endif
