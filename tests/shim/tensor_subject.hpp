/*
 * tensor_subject.hpp - memory that a suite lends to tensors, and what has to come back.
 */
#ifndef TENSOR_SUBJECT_HPP
#define TENSOR_SUBJECT_HPP

#include <memtrain/tensor.h>

#include "check_shim.hpp"

namespace check_shim {

inline void init(void) {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
}

inline void count_release(void *user) {
    ++*static_cast<int *>(user);
}

/* Two rows of three, and what has to come back. */
struct Memory {
    float data[6] = {1, 2, 3, 4, 5, 6};
    int64_t shape[3] = {2, 3, 0}, strides[3] = {3, 1, 1};
    int released = 0;
    mt_tensor_memory m = MT_TENSOR_MEMORY_INIT;
    mt_tensor *tensor = nullptr;

    Memory() {
        m.data = data;
        m.bytes = sizeof data;
        m.dtype = MT_FLOAT32;
        m.dims = 2;
        m.shape = shape;
        m.release = count_release;
        m.user = &released;
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
};

inline mt_tensor_info info_of(mt_tensor *tensor) {
    mt_tensor_info info = MT_TENSOR_INFO_INIT;
    ck_ok(mt_tensor_describe(tensor, &info));
    return info;
}

/* The status, and the line word for word. */
inline void refused(mt_status status, mt_status expected, const char *line) {
    ck_status(status, expected);
    ck_assert_str_eq(mt_last_error(), line);
}

} // namespace check_shim
#endif
