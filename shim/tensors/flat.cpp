/* flat.cpp - layout of the flat blocks, and the life of a gradient in them. */
#include "flat.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/add.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zero.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "fnv.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace {

constexpr int64_t align_bytes = 64;

/* Whether adding one to the other needs no memory. */
bool is_alike(const at::Tensor &a, const at::Tensor &b) {
    return a.layout() == b.layout() && a.dtype() == b.dtype() && a.device() == b.device() &&
           a.sizes() == b.sizes() && a.strides() == b.strides();
}

int64_t padded(int64_t elements, c10::ScalarType dtype) {
    int64_t unit = align_bytes / static_cast<int64_t>(c10::elementSize(dtype));
    return (elements + unit - 1) / unit * unit;
}

} // namespace

Flat::Flat(const std::vector<Named> &parameters, const IsFrozen &is_frozen, const Flat *before,
           size_t most_bytes)
    : most_bytes_(most_bytes) {
    for (const Named &parameter : parameters) {
        const Slot *old = before ? before->find(parameter.name) : nullptr;
        if (!parameter.tensor.requires_grad() && !(old && old->frozen)) continue;
        plan(parameter, old ? old->placed : !is_frozen(parameter.name));
    }
    Places places = plan_places(placed());
    swap(places);
}

void Flat::plan(const Named &parameter, bool placed) {
    const at::Tensor &tensor = parameter.tensor;
    for (const Slot &slot : slots_)
        if (slot.parameter.is_same(tensor)) return;
    if (!tensor.is_leaf() || tensor.layout() != c10::kStrided || !tensor.is_floating_point())
        fail(MT_ENOTSUP, "parameter '%s' is no dense tensor of floats", parameter.name.c_str());
    size_t index = block_for(tensor);
    slots_.push_back({parameter.name, tensor, {}, index, 0, 0, false, false, placed});
}

/*
 * The last block of that dtype where there is room in it, else a new one. Parameters without a place are counted too, since they
 * may be given one.
 */
size_t Flat::block_for(const at::Tensor &parameter) {
    c10::ScalarType dtype = parameter.scalar_type();
    int64_t elements = padded(parameter.numel(), dtype);
    auto most = static_cast<int64_t>(most_bytes_ / c10::elementSize(dtype));
    size_t i = blocks_.size();
    while (i > 0 && blocks_[i - 1].dtype != dtype) i--;
    if (i == 0 || (room_[i - 1] && room_[i - 1] + elements > most)) {
        blocks_.push_back({dtype, 0, {}});
        room_.push_back(0);
        i = blocks_.size();
    }
    room_[i - 1] += elements;
    return i - 1;
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

const Slot *Flat::find(const std::string &name) const {
    for (const Slot &slot : slots_)
        if (slot.name == name) return &slot;
    return nullptr;
}

/* A hash of the slots' numbers, 0 if none is frozen. A slot without a place is frozen, or is about to be. */
uint64_t Flat::frozen_set() const {
    Fnv hash;
    bool any = false;
    for (size_t i = 0; i < slots_.size(); i++) {
        if (!slots_[i].frozen && slots_[i].placed) continue;
        any = true;
        hash.add(2 * i + 2 + !slots_[i].placed);
    }
    return any ? hash.value() : 0;
}

/* Strides are kept where they cover the slot without gaps, channels_last for one. */
at::Tensor Flat::view(const at::Tensor &block, const at::Tensor &parameter, int64_t offset) {
    if (parameter.is_non_overlapping_and_dense())
        return block.as_strided(parameter.sizes(), parameter.strides(), offset).variable_data();
    return block.narrow(0, offset, parameter.numel()).view(parameter.sizes()).variable_data();
}

/*
 * variable_data() gives each view a version counter of its own, which detach() would not. The old
 * memory of the parameters is released before the gradients are made, so that at no time more is
 * needed than twice the parameters. One without a place may get one later, where gaps have none.
 */
void Flat::lay_out(c10::Device device) {
    c10::NoGradGuard no_grad;
    device_ = device;
    {
        std::vector<at::Tensor> blocks;
        for (const Block &block : blocks_)
            blocks.push_back(at::zeros({block.elements}, at::device(device).dtype(block.dtype)));
        for (Slot &slot : slots_) {
            at::Tensor place;
            if (slot.placed)
                place = view(blocks[slot.block], slot.parameter, slot.offset).copy_(slot.parameter);
            else if (!slot.parameter.is_non_overlapping_and_dense())
                place = slot.parameter.contiguous().variable_data();
            if (place.defined()) slot.parameter.set_data(place);
        }
    }
    is_laid_out_ = true;
    hold_gradients(true);
}

void Flat::hold_gradients(bool on) {
    c10::NoGradGuard no_grad;
    if (on == holds_) return;
    Places places = plan_places(placed());
    if (on) make_gradients(places);
    holds_ = on;
    swap(places);
}

/* ---- places ---- */

std::vector<bool> Flat::placed() const {
    std::vector<bool> placed;
    for (const Slot &slot : slots_) placed.push_back(slot.placed);
    return placed;
}

Places Flat::plan_places(std::vector<bool> placed) const {
    Places places;
    places.elements.assign(blocks_.size(), 0);
    places.gradients.resize(blocks_.size());
    places.views.resize(slots_.size());
    for (size_t i = 0; i < slots_.size(); i++) {
        int64_t &end = places.elements[slots_[i].block];
        places.offsets.push_back(end);
        if (placed[i]) end += padded(slots_[i].parameter.numel(), blocks_[slots_[i].block].dtype);
    }
    places.placed = std::move(placed);
    return places;
}

void Flat::make_gradients(Places &places) const {
    for (size_t b = 0; b < blocks_.size(); b++)
        places.gradients[b] =
            at::zeros({places.elements[b]}, at::device(device_).dtype(blocks_[b].dtype));
    for (size_t i = 0; i < slots_.size(); i++)
        if (places.placed[i])
            places.views[i] =
                view(places.gradients[slots_[i].block], slots_[i].parameter, places.offsets[i]);
}

Places Flat::make_places(std::vector<bool> placed) const {
    c10::NoGradGuard no_grad;
    Places places = plan_places(std::move(placed));
    if (holds_) make_gradients(places);
    return places;
}

void Flat::swap(Places &places) {
    for (size_t b = 0; b < blocks_.size(); b++) {
        std::swap(blocks_[b].elements, places.elements[b]);
        std::swap(blocks_[b].gradients, places.gradients[b]);
    }
    for (size_t i = 0; i < slots_.size(); i++) {
        bool placed = slots_[i].placed;
        slots_[i].placed = places.placed[i];
        places.placed[i] = placed;
        std::swap(slots_[i].offset, places.offsets[i]);
        std::swap(slots_[i].gradient, places.views[i]);
    }
    if (is_laid_out_) clear_gradients();
}

/* ---- a step ---- */

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
        if (some && !slot.received && slot.placed) slot.gradient.zero_();
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
        if (!slot.placed) current.reset(); /* the model's code has put it there */
        if (!current.defined()) continue;
        bool is_shared = stay && !current.is_sparse() &&
                         !seen.insert(current.storage().unsafeGetStorageImpl()).second;
        if (!is_shared && is_alike(current, slot.parameter)) continue;
        at::Tensor dense = at::empty_like(slot.parameter);
        current = dense.copy_(current.is_sparse() ? current.to_dense() : current);
    }
}

/* What a chunk adds to slots that have received something, and writes to the others. */
void Flat::add_chunk() {
    for (Slot &slot : slots_) {
        at::Tensor &current = slot.parameter.mutable_grad();
        if (!current.defined()) continue;
        slot.received ? slot.gradient.add_(current) : slot.gradient.copy_(current);
        slot.received = true;
        current.reset();
    }
}

/* The same with two kernels a block on a card, where each one has to be started. They need not count versions. */
void Flat::add_chunk_by_block() {
    struct Pairs {
        std::vector<at::Tensor> to, from;
    };
    std::vector<Pairs> added(blocks_.size()), written(blocks_.size());
    for (const Slot &slot : slots_) {
        if (!slot.parameter.grad().defined()) continue;
        Pairs &pairs = (slot.received ? added : written)[slot.block];
        pairs.to.push_back(slot.gradient);
        pairs.from.push_back(slot.parameter.grad());
    }
    for (const Pairs &pairs : added)
        if (!pairs.to.empty()) at::_foreach_add_(pairs.to, pairs.from);
    for (const Pairs &pairs : written)
        if (!pairs.to.empty()) at::_foreach_copy_(pairs.to, pairs.from);
    for (Slot &slot : slots_) {
        slot.received |= slot.parameter.grad().defined();
        slot.parameter.mutable_grad().reset();
    }
}

void Flat::end_chunk(bool apart, bool whole) {
    c10::NoGradGuard no_grad;
    if (!apart) return gather();
    make_addable(whole);
    if (!whole) device_.is_cpu() ? add_chunk() : add_chunk_by_block();
    for (Slot &slot : slots_) {
        at::Tensor &current = slot.parameter.mutable_grad();
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
        if (!slot.placed) current.reset(); /* the model's code has put it there */
        if (current.is_same(slot.gradient)) {
            slot.received |= version_of(slot.gradient) != slot.version;
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
