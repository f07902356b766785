/*
 * lend.hpp - tensors over memory that is not libtorch's: what is checked of it, and who gets it back.
 */
#ifndef MEMTRAIN_SHIM_LEND_HPP
#define MEMTRAIN_SHIM_LEND_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include <memtrain/torch.h>

#include "device.hpp"

namespace memtrain::shim {

/* The duty to give memory back, which is done when the object dies. Whoever has it last does it. */
class Loan {
public:
    using Return = void (*)(void *user);

    Loan() = default;
    Loan(Return give_back, void *user) noexcept : give_back_(give_back), user_(user) {}
    Loan(Loan &&other) noexcept
        : give_back_(std::exchange(other.give_back_, nullptr)), user_(other.user_) {}
    ~Loan();
    Loan &operator=(Loan &&) = delete;

    explicit operator bool() const { return give_back_ != nullptr; }

private:
    Return give_back_ = nullptr;
    void *user_ = nullptr;
};

/* Memory as a caller has told of it; nothing of it is checked yet. */
struct Lent {
    static constexpr size_t unknown = SIZE_MAX;

    const char *function; /* for error lines, with what stands before a field: "memory->" */
    const char *prefix;
    void *data;
    size_t bytes; /* unknown: not told */
    c10::ScalarType type;
    size_t dims;
    const int64_t *shape;
    const int64_t *strides = nullptr; /* NULL: row-major order */
    Device device = c10::Device(c10::kCPU);
    bool read_only = false;
};

/* The tensor over it. The loan ends with the last tensor over this memory, or here when it throws. */
at::Tensor lend(const Lent &memory, Loan loan);

/* Whether the tensor lies over memory that was lent for reading. */
bool is_read_only(const at::Tensor &tensor);

/* Nothing for a number that is no dtype. */
std::optional<c10::ScalarType> type_named(int dtype);

/* Throws Failure for one. */
c10::ScalarType scalar_type(const char *function, int dtype);

/* MT_DTYPE_NONE for one that mt_dtype does not name. */
mt_dtype dtype_of(c10::ScalarType type);

} // namespace memtrain::shim
#endif
