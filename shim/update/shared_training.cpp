/* shared_training.cpp - see shared_training.hpp. */
#include "shared_training.hpp"

#include <algorithm>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "device_memory.hpp"
#include "flat.hpp"
#include "fnv.hpp"
#include "guard.hpp"
#include "streams.hpp"

namespace memtrain::shim {
namespace {

/* Numbers that go through a buffer at a time, and bytes through a pinned one. */
constexpr int64_t slice = 1 << 18, pinned_bytes = 16 << 20;

/* A tensor's memory from its first number to its last, whatever the order of its strides. */
at::Tensor row_of(const at::Tensor &tensor) {
    return tensor.as_strided({tensor.numel()}, {1}).variable_data();
}

uint64_t layout_of(const std::vector<Named> &list) {
    Fnv hash;
    for (const Named &named : list) {
        hash.add_bytes(named.name.data(), named.name.size() + 1);
        hash.add(static_cast<uint64_t>(named.tensor.scalar_type()));
        for (int64_t size : named.tensor.sizes()) hash.add(static_cast<uint64_t>(size));
        for (int64_t stride : named.tensor.strides()) hash.add(static_cast<uint64_t>(stride));
    }
    return hash.value();
}

/* What decides how gradients become updates. */
uint64_t update_of(const mt_torch_options &o) {
    const double numbers[] = {static_cast<double>(o.optimizer),
                              o.lr,
                              o.momentum,
                              static_cast<double>(o.nesterov),
                              o.beta1,
                              o.beta2,
                              o.eps,
                              o.weight_decay,
                              o.clip_norm,
                              static_cast<double>(o.apply_not_finite)};
    Fnv hash;
    hash.add_bytes(numbers, sizeof numbers);
    return hash.value();
}

} // namespace

void check_group(const char *function, const mt_process_group &group) {
    if (group.count < 1 || group.rank < 0 || group.rank >= group.count)
        fail(MT_EINVAL, "%s: options->processes has rank %d and count %d; accepted: 0 to count - 1",
             function, group.rank, group.count);
    if (group.count > 1 && (!group.sum_floats || !group.sum_doubles))
        fail(MT_EINVAL, "%s: options->processes->%s is NULL", function,
             group.sum_floats ? "sum_doubles" : "sum_floats");
}

SharedTraining::SharedTraining(const mt_process_group &group) : group_(group) {}

void SharedTraining::sum(double *values, size_t n) {
    check(group_.sum_doubles(group_.self, values, n));
}

void SharedTraining::sum(float *values, size_t n) {
    check(group_.sum_floats(group_.self, values, n));
}

template <class Number>
void SharedTraining::sum_slices(const at::Tensor &row, std::vector<Number> &buffer) {
    buffer.resize(slice);
    for (int64_t first = 0; first < row.numel(); first += slice) {
        int64_t count = std::min(slice, row.numel() - first);
        at::Tensor here = row.narrow(0, first, count);
        at::Tensor there = at::from_blob(buffer.data(), {count},
                                         at::dtype(c10::CppTypeToScalarType<Number>::value));
        there.copy_(here);
        sum(buffer.data(), static_cast<size_t>(count));
        here.copy_(there);
    }
}

/*
 * Two pieces are under way: one comes from the card while the one before is summed, and goes back without being waited for. The
 * card does these copies in the order in which they are given, so that what comes into a buffer comes after what left it.
 */
template <class Number> void SharedTraining::sum_pinned(const at::Tensor &row) {
    auto type = row.device().type();
    int64_t total = row.numel(), most = pinned_bytes / static_cast<int64_t>(sizeof(Number));
    c10::Stream stream = current_stream(row.device());
    c10::Event come[2] = {c10::Event(type), c10::Event(type)};
    auto on_card = [&](int64_t first) {
        return row.narrow(0, first, std::min(most, total - first));
    };
    auto on_host = [&](int64_t first) {
        return at::from_blob(pinned_[first / most % 2].data(), {std::min(most, total - first)},
                             at::dtype(c10::CppTypeToScalarType<Number>::value));
    };
    auto fetch = [&](int64_t first) {
        on_host(first).copy_(on_card(first), /*non_blocking=*/true);
        come[first / most % 2].record(stream);
    };
    if (sent_) sent_->synchronize();
    for (int64_t i = 0; i < std::min<int64_t>(2, (total + most - 1) / most); i++)
        pinned_[i].need(type, static_cast<size_t>(std::min(most, total)) * sizeof(Number));
    fetch(0);
    for (int64_t first = 0; first < total; first += most) {
        at::Tensor piece = on_host(first);
        if (first + most < total) fetch(first + most);
        come[first / most % 2].synchronize();
        sum(piece.mutable_data_ptr<Number>(), static_cast<size_t>(piece.numel()));
        on_card(first).copy_(piece, /*non_blocking=*/true);
    }
    sent_.emplace(type);
    sent_->record(stream);
}

void SharedTraining::sum(const at::Tensor &tensor) {
    c10::NoGradGuard no_grad;
    if (!tensor.is_non_overlapping_and_dense()) {
        at::Tensor dense = tensor.contiguous();
        sum(dense);
        tensor.copy_(dense);
        return;
    }
    at::Tensor row = row_of(tensor);
    size_t count = static_cast<size_t>(row.numel());
    auto type = row.scalar_type();
    bool is_small = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
    if (!count) return;
    if (row.is_cpu() && type == at::kFloat)
        sum(row.mutable_data_ptr<float>(), count);
    else if (row.is_cpu() && type == at::kDouble)
        sum(row.mutable_data_ptr<double>(), count);
    else if (has_pinned_memory(row.device()))
        is_small ? sum_pinned<float>(row) : sum_pinned<double>(row);
    else if (is_small)
        sum_slices(row, floats_);
    else
        sum_slices(row, doubles_);
}

/* In pieces that are exact as doubles, also squared: all are x where n * sum(x^2) is sum(x)^2. */
bool SharedTraining::is_equal(uint64_t number) {
    constexpr int pieces = 4, bits = 16;
    double values[2 * pieces], n = group_.count;
    bool equal = true;
    for (int i = 0; i < pieces; i++) {
        values[i] = static_cast<double>((number >> (i * bits)) & 0xffff);
        values[pieces + i] = values[i] * values[i];
    }
    sum(values, 2 * pieces);
    for (int i = 0; i < pieces; i++) equal &= n * values[pieces + i] == values[i] * values[i];
    return equal;
}

void SharedTraining::compare(const std::vector<Named> &list, const mt_torch_options &options) {
    if (!is_equal(layout_of(list)))
        fail(MT_EINVAL,
             "options->processes: the %d processes have models with other names, shapes or dtypes "
             "than each other",
             group_.count);
    if (!is_equal(update_of(options)))
        fail(MT_EINVAL,
             "options->processes: the %d processes have other optimisers than each other, or other "
             "numbers for them",
             group_.count);
}

void SharedTraining::compare_number(uint64_t number, mt_status status, const char *line) {
    if (!is_equal(number)) fail(status, "%s", line);
}

void SharedTraining::compare_values(const std::vector<Named> &list) {
    Fnv hash;
    for (const Named &named : list) {
        at::Tensor values = named.tensor.to(at::kCPU).contiguous();
        hash.add_bytes(values.const_data_ptr(), values.nbytes());
    }
    if (!is_equal(hash.value()))
        fail(MT_ESTATE,
             "the %d processes have other parameters or optimiser states than each other",
             group_.count);
}

void SharedTraining::tell(const std::exception_ptr &reason) {
    double failed = reason ? 1 : 0;
    mt_status status = group_.sum_doubles(group_.self, &failed, 1);
    if (reason) std::rethrow_exception(reason);
    check(status);
    if (failed > 0)
        fail(MT_EPEER, "%.0f of the processes could not make their update, so none does", failed);
}

void SharedTraining::spread(const std::vector<Named> &list) {
    c10::NoGradGuard no_grad;
    for (const Named &named : list) {
        at::Tensor elements = without_repeats(named.tensor.variable_data());
        if (group_.rank != 0) elements.zero_();
        sum(elements);
    }
}

void SharedTraining::sum_gradients(Flat &flat) {
    flat.complete();
    received_.resize(flat.slots().size());
    for (size_t i = 0; i < received_.size(); i++)
        received_[i] = Flat::touched(flat.slots()[i]) ? 1 : 0;
    sum(received_.data(), received_.size());
    for (const Block &block : flat.blocks()) sum(block.gradients);
    flat.receive(received_);
}

} // namespace memtrain::shim
