/*
 * flat.hpp - parameters and gradients in flat blocks, one pair a dtype, or several where one would be too large.
 *
 * Each trainable parameter becomes a view of its block, so that modules go on seeing it; frozen
 * parameters stay where they are. One that is frozen from the start, or whose memory has been given back, has no
 * place in the blocks of gradients, nor in those of the optimiser's state, which are laid out alike. Gradients of a chunk come to their block in one of two ways:
 *
 * In place: `.grad` is the view of the slot, zero at first, and autograd adds to it. Which parameters
 * received a gradient is read off the version counters of the views, without hooks.
 *
 * Apart: `.grad` is undefined when the chunk begins, so that autograd leaves the chunk's gradients as
 * they are made, a second set; once the backward is through they are added to the block, and are gone.
 * A chunk that fails has not touched the block. Where the chunk is the whole batch they are not moved
 * at all: the update reads them where they lie, and the blocks of gradients may be given back.
 */
#ifndef MEMTRAIN_SHIM_FLAT_HPP
#define MEMTRAIN_SHIM_FLAT_HPP

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor.hpp"

namespace memtrain::shim {

/*
 * A block is one buffer, and larger ones are refused on MPS: by MPSGraph above 2^32 bytes, by Metal above its maxBufferLength. What
 * is there on a Mac is there on each device, so that state moves block by block. A parameter above it has a block of its own.
 */
constexpr size_t most_block_bytes = size_t{1} << 32;

/* A parameter and its place in a block of its dtype; offsets and sizes are in elements. */
struct Slot {
    std::string name;
    at::Tensor parameter; /* the model's own */
    at::Tensor gradient;  /* view with a version counter of its own; undefined while none is held */
    size_t block;
    int64_t offset;  /* unless it has no place */
    int64_t version; /* of gradient when the chunk began, in place */
    bool received;   /* a gradient, in this step */
    bool frozen;     /* no gradient is wanted for now */
    bool placed;     /* has a place; without one it is frozen */
};

struct Block {
    c10::ScalarType dtype;
    int64_t elements; /* slots are padded to 64 bytes; the padding is zero and stays zero */
    at::Tensor gradients;
};

/* A layout for some set of slots, with the memory for gradients where they are held. */
struct Places {
    std::vector<bool> placed;          /* by slot */
    std::vector<int64_t> offsets;      /* by slot */
    std::vector<int64_t> elements;     /* by block */
    std::vector<at::Tensor> gradients; /* by block */
    std::vector<at::Tensor> views;     /* of them, by slot */
};

class Flat {
public:
    /*
     * Plans the layout and touches nothing. Throws Failure for parameters that cannot be trained.
     * A parameter under two names (tied weights) is laid out once, under its first.
     * Names for which is_frozen holds get no place. Those of another Flat (NULL: there is none) are laid out as
     * there, what it has frozen too. No block of several has more than most_bytes.
     */
    using IsFrozen = std::function<bool(const std::string &)>;
    explicit Flat(const std::vector<Named> &parameters, const IsFrozen &is_frozen,
                  const Flat *before = nullptr, size_t most_bytes = most_block_bytes);

    /* Takes the gradients away from the parameters, which keep their values and can be trained. */
    ~Flat();
    Flat(const Flat &) = delete;
    Flat &operator=(const Flat &) = delete;

    /* Allocates the blocks and moves the parameters that have a place into them. */
    void lay_out(c10::Device device);

    /* Gives the blocks of gradients back or makes them again, zero. Outside a step. */
    void hold_gradients(bool on);
    bool holds_gradients() const { return holds_; }

    /* A step begins, without gradients. The blocks are made zero when that is needed. */
    void begin();

    /* Gradients zero, each `.grad` the view of its slot. Allocates nothing. */
    void clear_gradients();

    /* Before the forward pass of a chunk. Allocates nothing. */
    void begin_chunk(bool apart);

    /*
     * After its backward pass. In place, what the model's code has put in the place of a `.grad` is
     * the gradient from now on; none means that there is none. Apart, a chunk that is the whole batch
     * keeps its gradients where they are until end_step(). Throws before it changes anything, or not
     * at all.
     */
    void end_chunk(bool apart, bool whole);

    /* Forgets the gradients of a chunk that ran apart and failed. Allocates nothing. */
    void drop_chunk();

    /* Where gradients are held, before the update: slots that received none are zero. Allocates nothing. */
    void complete();

    /* Others have added to the blocks: these slots, by number, have received a gradient too. */
    void receive(const std::vector<double> &times);

    /* After the update: gradients that are no views of the block are released. */
    void end_step();

    /* Freezes the slots that are meant, or has them train again. Between steps. */
    template <class Predicate> void freeze(Predicate &&is_meant, bool on) {
        for (Slot &slot : slots_)
            if (is_meant(slot)) set_frozen(slot, on);
    }

    /* Which slots have a place. */
    std::vector<bool> placed() const;

    /* Its own, without gradients. */
    Places places() const { return plan_places(placed()); }

    /* Places for those slots, and zero gradients in them. Changes nothing. */
    Places make_places(std::vector<bool> placed) const;

    /* Takes these places and leaves its own there. Gradients are zero. Allocates nothing. Between steps. */
    void swap(Places &places);

    /* A number that is equal for equal sets of frozen slots and of places, 0 where nothing is frozen. */
    uint64_t frozen_set() const;

    /* Another Flat with the same slots has the parameters now: they are no business of this one's. */
    void hand_over(Flat &other);

    /* Whether the slot received a gradient in this step; it is the parameter's `.grad` then. */
    static bool touched(const Slot &slot) { return slot.received && !slot.frozen; }

    /* A view of a block from offset on, with the shape and strides of the parameter. */
    static at::Tensor view(const at::Tensor &block, const at::Tensor &parameter, int64_t offset);

    const std::vector<Slot> &slots() const { return slots_; }
    const std::vector<Block> &blocks() const { return blocks_; }

    /* Bytes of the blocks of gradients, held or not; each state of the optimiser has as many. */
    size_t bytes() const;

private:
    void plan(const Named &parameter, bool placed);
    size_t block_for(const at::Tensor &parameter);
    static void set_frozen(Slot &slot, bool on);
    const Slot *find(const std::string &name) const;
    Places plan_places(std::vector<bool> placed) const;
    void make_gradients(Places &places) const;
    void gather();
    void zero_the_rest();
    void make_addable(bool stay);
    void add_chunk();
    void add_chunk_by_block();
    std::vector<Slot> slots_;
    std::vector<Block> blocks_;
    c10::Device device_ = c10::Device(c10::kCPU);
    bool holds_ = false; /* the blocks of gradients are there */
    bool is_laid_out_ = false;
    bool stale_ = false; /* slots that received nothing hold an older step's gradients */
    const size_t most_bytes_;
    std::vector<int64_t> room_; /* of each block: elements of all its slots, placed or not */
};

} // namespace memtrain::shim
#endif
