/* flat.cpp - layout of the flat blocks, and the life of a gradient in them. */
#include "flat.hpp"

#include <algorithm>
#include <unordered_set>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/add.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zero.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "guard.hpp"

namespace memtrain::shim {
namespace {

constexpr int64_t align_bytes = 64;

/* Index of the block of that dtype, made when there is none. */
size_t block_of(std::vector<Block> &blocks, c10::ScalarType dtype) {
    for (size_t i = 0; i < blocks.size(); i++)
        if (blocks[i].dtype == dtype) return i;
    blocks.push_back({dtype, 0, {}, {}});
    return blocks.size() - 1;
}

/* Whether adding one to the other needs no memory. */
bool is_alike(const at::Tensor &a, const at::Tensor &b) {
    return a.layout() == b.layout() && a.dtype() == b.dtype() && a.device() == b.device() &&
           a.sizes() == b.sizes() && a.strides() == b.strides();
}

/* Of a gradient that there may be no memory for. */
int64_t version_of(const at::Tensor &gradient) {
    return gradient.defined() ? gradient._version() : 0;
}

int64_t padded(int64_t elements, c10::ScalarType dtype) {
    int64_t unit = align_bytes / static_cast<int64_t>(c10::elementSize(dtype));
    return (elements + unit - 1) / unit * unit;
}

} // namespace

Flat::Flat(const std::vector<Named> &parameters, const Flat *before) {
    for (const Named &parameter : parameters)
        if (parameter.tensor.requires_grad() || (before && before->has_frozen(parameter.name)))
            plan(parameter);
}

void Flat::plan(const Named &parameter) {
    const at::Tensor &tensor = parameter.tensor;
    for (const Slot &slot : slots_)
        if (slot.parameter.is_same(tensor)) return;
    if (!tensor.is_leaf() || tensor.layout() != c10::kStrided || !tensor.is_floating_point())
        fail(MT_ENOTSUP, "parameter '%s' is no dense tensor of floats", parameter.name.c_str());
    size_t index = block_of(blocks_, tensor.scalar_type());
    Block &block = blocks_[index];
    slots_.push_back({parameter.name, tensor, {}, index, block.elements, 0, false, false});
    block.elements += padded(tensor.numel(), block.dtype);
}

Flat::~Flat() {
    for (Slot &slot : slots_) {
        if (slot.frozen) set_frozen(slot, false);
        if (is_laid_out_) slot.parameter.mutable_grad().reset();
    }
}

void Flat::hand_over(Flat &other) {
    for (size_t i = 0; i < slots_.size(); i++) {
        slots_[i].parameter.mutable_grad().reset();
        other.slots_[i].frozen = slots_[i].frozen;
    }
    slots_.clear();
}

void Flat::set_frozen(Slot &slot, bool on) {
    slot.parameter.set_requires_grad(!on);
    slot.frozen = on;
}

bool Flat::has_frozen(const std::string &name) const {
    for (const Slot &slot : slots_)
        if (slot.frozen && slot.name == name) return true;
    return false;
}

/* FNV-1a (Fowler, Noll, Vo) over the slots' numbers. */
uint64_t Flat::frozen_set() const {
    uint64_t hash = 0;
    for (size_t i = 0; i < slots_.size(); i++) {
        if (!slots_[i].frozen) continue;
        if (!hash) hash = 0xcbf29ce484222325U;
        hash = (hash ^ (i + 1)) * 0x100000001b3U;
    }
    return hash;
}

/* Strides are kept where they cover the slot without gaps, channels_last for one. */
at::Tensor Flat::view(const at::Tensor &block, const Slot &slot) {
    const at::Tensor &shape = slot.parameter;
    if (shape.is_non_overlapping_and_dense())
        return block.as_strided(shape.sizes(), shape.strides(), slot.offset).variable_data();
    return block.narrow(0, slot.offset, shape.numel()).view(shape.sizes()).variable_data();
}

/*
 * variable_data() gives each view a version counter of its own, which detach() would not. The old
 * memory of the parameters is released before the gradients are made, so that at no time more is
 * needed than twice the parameters.
 */
void Flat::lay_out(c10::Device device) {
    c10::NoGradGuard no_grad;
    for (Block &block : blocks_)
        block.parameters = at::zeros({block.elements}, at::device(device).dtype(block.dtype));
    for (Slot &slot : slots_) {
        at::Tensor place = view(blocks_[slot.block].parameters, slot);
        place.copy_(slot.parameter);
        slot.parameter.set_data(place);
    }
    is_laid_out_ = true;
    make_gradients();
}

/* Nothing changes until all of the memory is there. */
void Flat::make_gradients() {
    std::vector<at::Tensor> blocks, views;
    for (const Block &block : blocks_) blocks.push_back(at::zeros_like(block.parameters));
    for (const Slot &slot : slots_) views.push_back(view(blocks[slot.block], slot));
    for (size_t i = 0; i < blocks.size(); i++) blocks_[i].gradients = std::move(blocks[i]);
    for (size_t i = 0; i < views.size(); i++) slots_[i].gradient = std::move(views[i]);
    holds_ = true;
    clear_gradients();
}

void Flat::hold_gradients(bool on) {
    c10::NoGradGuard no_grad;
    if (on == holds_) return;
    if (on) return make_gradients();
    for (Slot &slot : slots_) {
        slot.parameter.mutable_grad().reset();
        slot.gradient.reset();
    }
    for (Block &block : blocks_) block.gradients.reset();
    holds_ = false;
}

void Flat::clear_gradients() {
    c10::NoGradGuard no_grad;
    for (Block &block : blocks_)
        if (holds_) block.gradients.zero_();
    for (Slot &slot : slots_) {
        if (!slot.parameter.grad().is_same(slot.gradient))
            slot.parameter.mutable_grad() = slot.gradient;
        slot.version = version_of(slot.gradient);
        slot.received = false;
    }
    stale_ = false;
}

void Flat::begin() {
    for (Slot &slot : slots_) slot.received = false;
    stale_ = true;
}

/* Nothing received yet is the usual case, and one pass over each block. */
void Flat::zero_the_rest() {
    bool some = false;
    if (!stale_) return;
    for (const Slot &slot : slots_) some |= slot.received;
    for (Block &block : blocks_)
        if (!some) block.gradients.zero_();
    for (Slot &slot : slots_)
        if (some && !slot.received) slot.gradient.zero_();
    stale_ = false;
}

void Flat::begin_chunk(bool apart) {
    c10::NoGradGuard no_grad;
    if (!apart) zero_the_rest();
    for (Slot &slot : slots_) {
        at::Tensor &current = slot.parameter.mutable_grad();
        if (apart)
            current.reset();
        else if (!current.is_same(slot.gradient))
            current = slot.gradient;
        slot.version = version_of(slot.gradient);
    }
}

/*
 * Only what the model's own code has put there, or a sparse gradient, is not. Where gradients stay, two may
 * share their memory, those of a.view(s) + b.view(s): what is done to one in place is done to the other.
 */
void Flat::make_addable(bool stay) {
    std::unordered_set<const c10::StorageImpl *> seen;
    for (Slot &slot : slots_) {
        at::Tensor &current = slot.parameter.mutable_grad();
        if (!current.defined()) continue;
        bool is_shared = stay && !current.is_sparse() &&
                         !seen.insert(current.storage().unsafeGetStorageImpl()).second;
        if (!is_shared && is_alike(current, slot.parameter)) continue;
        at::Tensor dense = at::empty_like(slot.parameter);
        current = dense.copy_(current.is_sparse() ? current.to_dense() : current);
    }
}

void Flat::end_chunk(bool apart, bool whole) {
    c10::NoGradGuard no_grad;
    if (!apart) return gather();
    make_addable(whole);
    for (Slot &slot : slots_) {
        at::Tensor &current = slot.parameter.mutable_grad();
        if (current.defined() && !whole) {
            slot.received ? slot.gradient.add_(current) : slot.gradient.copy_(current);
            current.reset();
        }
        slot.received |= current.defined() || version_of(slot.gradient) != slot.version;
        if (slot.received && !current.defined()) current = slot.gradient;
    }
}

void Flat::drop_chunk() {
    for (Slot &slot : slots_) {
        slot.parameter.mutable_grad().reset();
        if (slot.received) slot.parameter.mutable_grad() = slot.gradient;
    }
}

void Flat::complete() {
    c10::NoGradGuard no_grad;
    zero_the_rest();
}

void Flat::receive(const std::vector<double> &times) {
    for (size_t i = 0; i < slots_.size(); i++) {
        Slot &slot = slots_[i];
        if (!(times[i] > 0) || slot.frozen) continue;
        slot.received = true;
        if (!slot.parameter.grad().is_same(slot.gradient))
            slot.parameter.mutable_grad() = slot.gradient;
    }
}

void Flat::end_step() {
    for (Slot &slot : slots_)
        if (!slot.parameter.grad().is_same(slot.gradient)) slot.parameter.mutable_grad().reset();
}

/* In place: what is in `.grad` after the chunk. */
void Flat::gather() {
    for (Slot &slot : slots_) {
        at::Tensor &current = slot.parameter.mutable_grad();
        if (current.is_same(slot.gradient)) {
            slot.received |= slot.gradient._version() != slot.version;
            continue;
        }
        slot.received = current.defined();
        if (current.defined())
            slot.gradient.copy_(current);
        else
            slot.gradient.zero_();
        current = slot.gradient;
    }
}

size_t Flat::bytes() const {
    size_t bytes = 0;
    for (const Block &block : blocks_)
        bytes += static_cast<size_t>(block.elements) * c10::elementSize(block.dtype);
    return bytes;
}

} // namespace memtrain::shim
