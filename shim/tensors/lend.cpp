/* lend.cpp - tensors over memory that is not libtorch's. */
#include "lend.hpp"

#include <limits>

#include <ATen/ops/from_blob.h>

#include <memtrain/tensor.h>

#include "guard.hpp"

namespace memtrain::shim {
namespace {

const struct {
    mt_dtype ours;
    c10::ScalarType theirs;
} dtypes[] = {
    {MT_FLOAT32, c10::kFloat},     {MT_FLOAT64, c10::kDouble}, {MT_FLOAT16, c10::kHalf},
    {MT_BFLOAT16, c10::kBFloat16}, {MT_INT64, c10::kLong},     {MT_INT32, c10::kInt},
    {MT_UINT8, c10::kByte},        {MT_BOOL, c10::kBool},
};

constexpr int64_t most_bytes = std::numeric_limits<int64_t>::max();

/* What a tensor's storage keeps of the lender. */
struct Kept {
    Loan loan;
    bool read_only;
};

void forget(void *kept) {
    delete static_cast<Kept *>(kept);
}

void check_shape(const Lent &m) {
    if (m.dims > MT_TENSOR_DIMS_MAX)
        fail(MT_EINVAL, "%s: %sdims is %zu; accepted: at most %d", m.function, m.prefix, m.dims,
             MT_TENSOR_DIMS_MAX);
    if (m.dims && !m.shape) fail(MT_EINVAL, "%s: %sshape is NULL", m.function, m.prefix);
    for (size_t i = 0; i < m.dims; i++)
        if (m.shape[i] < 0)
            fail(MT_EINVAL, "%s: %sshape[%zu] is %lld; accepted: at least 0", m.function, m.prefix,
                 i, static_cast<long long>(m.shape[i]));
}

/* A size of 0 counts as 1: strides are products too, and libtorch multiplies them unchecked. */
void check_product(const Lent &m) {
    int64_t left = most_bytes / static_cast<int64_t>(c10::elementSize(m.type));
    for (size_t i = 0; i < m.dims; i++) {
        if (m.shape[i] > left)
            fail(MT_EINVAL,
                 "%s: %sshape[%zu] is %lld; accepted: at most %lld there, for %lld bytes",
                 m.function, m.prefix, i, static_cast<long long>(m.shape[i]),
                 static_cast<long long>(left), static_cast<long long>(most_bytes));
        if (m.shape[i] > 1) left /= m.shape[i];
    }
}

bool is_empty(const Lent &m) {
    for (size_t i = 0; i < m.dims; i++)
        if (m.shape[i] == 0) return true;
    return false;
}

/* Elements from the first to the last one in memory, where there are any. */
int64_t extent(const Lent &m) {
    int64_t step = 1, last = 0;
    int64_t most = most_bytes / static_cast<int64_t>(c10::elementSize(m.type)) - 1;
    for (size_t i = m.dims; i-- > 0;) {
        int64_t stride = m.strides ? m.strides[i] : step, above = m.shape[i] - 1;
        if (above > 0 && stride > (most - last) / above)
            fail(MT_EINVAL,
                 "%s: %sstrides[%zu] is %lld; accepted: at most %lld there, for %lld "
                 "bytes",
                 m.function, m.prefix, i, static_cast<long long>(stride),
                 static_cast<long long>((most - last) / above), static_cast<long long>(most_bytes));
        if (above > 0) last += stride * above;
        step *= m.shape[i];
    }
    return last + 1;
}

void check_strides(const Lent &m) {
    for (size_t i = 0; m.strides && i < m.dims; i++)
        if (m.strides[i] < 0)
            fail(MT_EINVAL,
                 "%s: %sstrides[%zu] is %lld; accepted: at least 0, libtorch cannot step "
                 "backwards: copy the values first",
                 m.function, m.prefix, i, static_cast<long long>(m.strides[i]));
}

/* Of a complex number it is that of its two parts. */
void check_alignment(const Lent &m) {
    size_t wanted = c10::elementSize(m.type) / (c10::isComplexType(m.type) ? 2 : 1);
    if (reinterpret_cast<uintptr_t>(m.data) % wanted)
        fail(MT_EINVAL, "%s: %sdata is %p; accepted for %s: a multiple of %zu", m.function,
             m.prefix, m.data, c10::toString(m.type), wanted);
}

void check_memory(const Lent &m) {
    check_shape(m);
    check_product(m);
    check_strides(m);
    if (is_empty(m)) return;
    size_t needed = static_cast<size_t>(extent(m)) * c10::elementSize(m.type);
    if (!m.data) fail(MT_EINVAL, "%s: %sdata is NULL", m.function, m.prefix);
    if (needed > m.bytes)
        fail(MT_EINVAL, "%s: %sbytes is %zu; accepted: at least %zu, to the last element",
             m.function, m.prefix, m.bytes, needed);
    check_alignment(m);
}

} // namespace

Loan::~Loan() {
    if (!give_back_) return;
    try {
        give_back_(user_);
    } catch (...) {
        mt_log(MT_LOG_WARNING, "an exception left the function that gets memory back");
    }
}

at::Tensor lend(const Lent &m, Loan loan) {
    check_memory(m);
    at::TensorMaker maker = at::for_blob(m.data, at::IntArrayRef(m.shape, m.dims));
    if (m.strides) maker.strides(at::IntArrayRef(m.strides, m.dims));
    if (loan || m.read_only) maker.context(new Kept{std::move(loan), m.read_only}, forget);
    return maker.options(at::device(m.device.where).dtype(m.type))
        .target_device(m.device.where)
        .make_tensor();
}

bool is_read_only(const at::Tensor &tensor) {
    if (!tensor.has_storage()) return false;
    const Kept *kept = tensor.storage().data_ptr().cast_context<Kept>(forget);
    return kept && kept->read_only;
}

std::optional<c10::ScalarType> type_named(int dtype) {
    for (const auto &row : dtypes)
        if (row.ours == dtype) return row.theirs;
    return std::nullopt;
}

c10::ScalarType scalar_type(const char *function, int dtype) {
    if (auto type = type_named(dtype)) return *type;
    fail(MT_EINVAL, "%s: dtype %d is none of mt_dtype", function, dtype);
}

mt_dtype dtype_of(c10::ScalarType type) {
    for (const auto &row : dtypes)
        if (row.theirs == type) return row.ours;
    return MT_DTYPE_NONE;
}

} // namespace memtrain::shim
