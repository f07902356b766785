/* bytes.cpp - tensors in pieces. */
#include "bytes.hpp"

#include <algorithm>
#include <memory>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/strides.h>

namespace memtrain::shim {
namespace {

bool is_in_order(const at::Tensor &tensor) {
    return tensor.is_cpu() && tensor.is_contiguous();
}

} // namespace

char *Staging::buffer() {
    if (buffer_.empty()) buffer_.resize(piece_bytes);
    return buffer_.data();
}

/*
 * Down the dimensions to rows that are small enough, and of these as many as the buffer holds. Offsets
 * are where such pieces begin, so they fall on rows.
 */
at::Tensor Staging::part_at(const at::Tensor &tensor, size_t offset) {
    at::Tensor part = tensor;
    if (is_in_order(tensor) && offset == 0) return part;
    for (;;) {
        if (part.nbytes() <= piece_bytes && offset == 0) return part;
        size_t row = part.nbytes() / static_cast<size_t>(part.size(0));
        int64_t first = static_cast<int64_t>(offset / row);
        if (row <= piece_bytes) {
            int64_t fit = static_cast<int64_t>(piece_bytes / row);
            return part.narrow(0, first, std::min(fit, part.size(0) - first));
        }
        part = part.select(0, first);
        offset %= row;
    }
}

at::Tensor Staging::place_of(const at::Tensor &part) {
    if (is_in_order(part)) return part;
    return at::from_blob(buffer(), part.sizes(), at::device(at::kCPU).dtype(part.scalar_type()));
}

Staging::Bytes Staging::get(const at::Tensor &tensor, size_t offset) {
    at::Tensor part = part_at(tensor, offset), place = place_of(part);
    if (!place.is_same(part)) place.copy_(part);
    return {place.const_data_ptr(), place.nbytes()};
}

at::Tensor host_tensor(c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
    std::vector<int64_t> steps(strides.begin(), strides.end());
    if (steps.size() != sizes.size()) {
        c10::DimVector row_major = c10::contiguous_strides(sizes);
        steps.assign(row_major.begin(), row_major.end());
    }
    size_t count = at::detail::computeStorageNbytes(sizes, steps, c10::elementSize(dtype));
    std::unique_ptr<char[]> bytes(new char[count ? count : 1]());
    at::Tensor tensor = at::from_blob(
        bytes.get(), sizes, steps, [](void *data) { delete[] static_cast<char *>(data); },
        at::device(at::kCPU).dtype(dtype));
    (void)bytes.release();
    return tensor;
}

} // namespace memtrain::shim
