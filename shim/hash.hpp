/* hash.hpp - SHA-256 over named tensors. */
#ifndef MEMTRAIN_SHIM_HASH_HPP
#define MEMTRAIN_SHIM_HASH_HPP

#include <vector>

#include "tensor.hpp"

namespace memtrain::shim {

/* Sorts by name; equal names keep their order. */
void sort_by_name(std::vector<Named> &list);

/*
 * Writes 64 hex digits and a zero. Each tensor counts with its name, dtype and shape and with its
 * bytes in row-major order, wherever it lies; tensors of a device come to the CPU one at a time.
 */
void sha256(const std::vector<Named> &list, char out[65]);

} // namespace memtrain::shim
#endif
