/* hash.hpp - SHA-256 over named tensors, also such that lie in a file. */
#ifndef MEMTRAIN_SHIM_HASH_HPP
#define MEMTRAIN_SHIM_HASH_HPP

#include <memory>
#include <vector>

#include "tensor.hpp"

namespace memtrain::shim {

/*
 * The text that is hashed: for each tensor its head, then its bytes in row-major order. What shall have
 * the same hash comes in the order of the names.
 */
class StateHash {
public:
    StateHash();
    ~StateHash();
    StateHash(const StateHash &) = delete;
    StateHash &operator=(const StateHash &) = delete;

    void head(const std::string &name, c10::ScalarType type, at::IntArrayRef sizes);
    void bytes(const void *data, size_t count);

    /* Writes 64 hex digits and a zero; once. */
    void finish(char out[65]);

private:
    class Digest;
    std::unique_ptr<Digest> digest_;
};

/* Sorts by name; equal names keep their order. */
void sort_by_name(std::vector<Named> &list);

/*
 * Writes 64 hex digits and a zero. Each tensor counts with its name, dtype and shape and with its
 * bytes in row-major order, wherever it lies; tensors of a device come to the CPU one at a time.
 */
void sha256(const std::vector<Named> &list, char out[65]);

} // namespace memtrain::shim
#endif
