/*
 * onednn.hpp - keeps oneDNN on where memory ran out inside of it.
 *
 * libtorch computes products of matrices of bfloat16 and float16 with oneDNN. Whatever that throws, a refused request for
 * memory too, libtorch swallows: it computes the product in another way, and switches oneDNN off for the rest of the process
 * ("mkldnn_matmul failed, switching to BLAS gemm", aten/src/ATen/native/LinearAlgebra.cpp). The chunk goes through with other
 * roundings, and all that come after it are slower and have other roundings too.
 */
#ifndef MEMTRAIN_SHIM_ONEDNN_HPP
#define MEMTRAIN_SHIM_ONEDNN_HPP

#include <cstdint>

namespace memtrain::shim {

/* As long as it lives, a request that is refused does not switch oneDNN off: its end switches it on again. One a call. */
class KeepOneDnn {
public:
    KeepOneDnn();
    ~KeepOneDnn();
    KeepOneDnn(const KeepOneDnn &) = delete;
    KeepOneDnn &operator=(const KeepOneDnn &) = delete;

    /* Throws Failure, MT_EDEVMEM, where one did: what was computed since is not to be used. Without a KeepOneDnn: nothing. */
    static void check();

private:
    bool is_lost() const;

    const bool was_on_;
    const uint64_t refused_;
    KeepOneDnn *const outer_;
};

} // namespace memtrain::shim
#endif
