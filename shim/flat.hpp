/*
 * flat.hpp - parameters and gradients in flat blocks, one pair a dtype.
 *
 * Each trainable parameter becomes a view of its block, so that modules go on seeing it, and its
 * `.grad` a view of the gradient block. Which parameters received a gradient is read off the
 * version counters of the gradient views, without hooks. Frozen parameters stay where they are.
 */
#ifndef MEMTRAIN_SHIM_FLAT_HPP
#define MEMTRAIN_SHIM_FLAT_HPP

#include <cstdint>
#include <vector>

#include "tensor.hpp"

namespace memtrain::shim {

/* Where a parameter lies in the block of its dtype; offsets and sizes are in elements. */
struct Slot {
    std::string name;
    at::Tensor parameter; /* the model's own, now a view of the block */
    at::Tensor gradient;  /* view with a version counter of its own */
    size_t block;
    int64_t offset;
    int64_t version; /* of gradient when the step began */
};

struct Block {
    c10::ScalarType dtype;
    int64_t elements; /* slots are padded to 64 bytes; the padding is zero and stays zero */
    at::Tensor parameters;
    at::Tensor gradients;
};

class Flat {
public:
    /*
     * Plans the layout and touches nothing. Throws Failure for parameters that cannot be trained.
     * A parameter under two names (tied weights) is laid out once, under its first.
     */
    explicit Flat(const std::vector<Named> &parameters);

    /* Takes the gradients away from the parameters, which keep their values. */
    ~Flat();
    Flat(const Flat &) = delete;
    Flat &operator=(const Flat &) = delete;

    /* Allocates the blocks and moves the parameters into them. */
    void lay_out(c10::Device device);

    /* Gradients zero, each `.grad` the view of its slot, nothing touched. Allocates nothing. */
    void clear_gradients();

    /*
     * Takes over what the model's code has put in the place of a `.grad`: another tensor is the
     * gradient from now on, none means that there is none.
     */
    void gather();

    /* Whether the slot received a gradient since clear_gradients(). */
    static bool touched(const Slot &slot) { return slot.gradient._version() != slot.version; }

    /* A view of a block laid out like this one, with the shape and strides of the parameter. */
    static at::Tensor view(const at::Tensor &block, const Slot &slot);

    const std::vector<Slot> &slots() const { return slots_; }
    const std::vector<Block> &blocks() const { return blocks_; }

    /* Bytes of the blocks of parameters; those of gradients are as many. */
    size_t bytes() const;

private:
    void plan(const Named &parameter);
    std::vector<Slot> slots_;
    std::vector<Block> blocks_;
};

} // namespace memtrain::shim
#endif
