/* snapshot.cpp - keeping and restoring generators and buffers. */
#include "snapshot.hpp"

#include <atomic>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "bytes.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace {

at::CPUGeneratorImpl &cpu_generator() {
    return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

/*
 * Whether a seed and an offset are all of the generator's state, as of CUDA's and XPU's. To keep these takes no memory; the state
 * in a tensor, which all have, does. Asked once for each type of device.
 */
bool has_offset(const at::Generator &generator) {
    static std::atomic<signed char> known[c10::COMPILE_TIME_MAX_DEVICE_TYPES]; /* 1: no, 2: yes */
    auto &answer = known[static_cast<int>(generator.device().type())];
    if (answer) return answer == 2;
    bool has = generator.get_state().nbytes() == sizeof(uint64_t) + sizeof(uint64_t);
    try {
        if (has) (void)generator.get_offset();
    } catch (const c10::Error &) {
        has = false; /* so its state is of two other numbers */
    }
    answer = has ? 2 : 1;
    return has;
}

bool same_kind(const at::Tensor &a, const at::Tensor &b) {
    return a.sizes() == b.sizes() && a.dtype() == b.dtype() && a.device() == b.device();
}

/* Whether both are the same elements of the same memory. */
bool same_place(const at::Tensor &a, const at::Tensor &b) {
    return same_kind(a, b) && a.strides() == b.strides() && a.data_ptr() == b.data_ptr();
}

} // namespace

void RngState::take(c10::Device device) {
    at::CPUGeneratorImpl &cpu = cpu_generator();
    {
        std::lock_guard<std::mutex> lock(cpu.mutex_);
        engine_ = cpu.engine();
        next_float_ = cpu.next_float_normal_sample();
        next_double_ = cpu.next_double_normal_sample();
    }
    device_ = device;
    if (device.is_cpu()) return;
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    if (has_offset(generator)) {
        seed_ = generator.current_seed();
        offset_ = generator.get_offset();
    } else {
        state_ = generator.get_state();
    }
}

void RngState::restore() const {
    at::CPUGeneratorImpl &cpu = cpu_generator();
    if (!engine_) return;
    {
        std::lock_guard<std::mutex> lock(cpu.mutex_);
        cpu.set_engine(*engine_);
        cpu.set_next_float_normal_sample(next_float_);
        cpu.set_next_double_normal_sample(next_double_);
    }
    if (device_.is_cpu()) return;
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    std::lock_guard<std::mutex> lock(generator.mutex());
    if (has_offset(generator)) {
        generator.set_current_seed(seed_); /* puts the offset to 0 */
        generator.set_offset(offset_);
    } else {
        generator.set_state(state_);
    }
}

KeepRng::~KeepRng() {
    (void)guard([this] { state_.restore(); });
}

/* ---- tensors ---- */

void Kept::look(const at::Tensor &tensor) {
    if (original_.defined() && same_place(original_, tensor)) return;
    original_ = tensor.variable_data();
    elements_ = without_repeats(original_);
}

bool Kept::is_in_place(const at::Tensor &tensor) const {
    return same_place(original_, tensor);
}

void Kept::copy() {
    c10::NoGradGuard no_grad;
    if (!saved_.defined() || !same_kind(saved_, elements_)) saved_ = at::empty_like(elements_);
    saved_.copy_(elements_);
}

/* With the strides that it has: libtorch needs memory to copy from some others. */
void Kept::copy_outside() {
    c10::NoGradGuard no_grad;
    bool is_dense = elements_.is_non_overlapping_and_dense();
    saved_ = host_tensor(elements_.scalar_type(), elements_.sizes(),
                         is_dense ? elements_.strides() : at::IntArrayRef());
    saved_.copy_(elements_);
}

/* set_data() gives the model's tensor the old memory and shape, without an allocation. */
void Kept::move_back(const at::Tensor &tensor) const {
    if (!is_in_place(tensor)) tensor.set_data(original_);
}

void Kept::put_back(const at::Tensor &tensor) const {
    c10::NoGradGuard no_grad;
    elements_.copy_(saved_);
    move_back(tensor);
}

void BufferState::take(const mt_model &model) {
    take(buffers_of(model));
}

void BufferState::take(const std::vector<Named> &buffers) {
    c10::NoGradGuard no_grad;
    entries_.resize(buffers.size());
    for (size_t i = 0; i < buffers.size(); i++) {
        entries_[i].buffer = buffers[i].tensor;
        entries_[i].kept.look(buffers[i].tensor);
        entries_[i].kept.copy();
    }
}

void BufferState::restore(const mt_model &model) const {
    restore(buffers_of(model));
}

void BufferState::restore(const std::vector<Named> &buffers) const {
    if (buffers.size() != entries_.size())
        fail(MT_ESTATE, "the model has %zu buffers, %zu when the step began", buffers.size(),
             entries_.size());
    for (size_t i = 0; i < entries_.size(); i++) entries_[i].kept.put_back(buffers[i].tensor);
}

size_t BufferState::bytes() const {
    size_t bytes = 0;
    for (const Entry &entry : entries_) bytes += entry.kept.bytes();
    return bytes;
}

std::vector<Named> BufferState::named() const {
    std::vector<Named> list;
    for (const Entry &entry : entries_) list.push_back({"", entry.buffer});
    return list;
}

KeepBuffers::~KeepBuffers() {
    (void)guard([this] { state_.restore(buffers_); });
}

void append_rng(c10::Device device, std::vector<Named> &list) {
    auto append = [&](std::string name, at::Generator generator) {
        std::lock_guard<std::mutex> lock(generator.mutex());
        list.push_back({std::move(name), generator.get_state()});
    };
    append("rng.cpu", at::detail::getDefaultCPUGenerator());
    if (device.is_cpu()) return;
    std::string name = "rng." + c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    if (!device.is_mps()) name += "." + std::to_string(device.index());
    append(name, at::globalContext().defaultGenerator(device));
}

} // namespace memtrain::shim
