/*
 * fnv.hpp - FNV-1a (Fowler, Noll, Vo): a hash of 64 bits that tells sets, shapes and layouts apart.
 */
#ifndef MEMTRAIN_SHIM_FNV_HPP
#define MEMTRAIN_SHIM_FNV_HPP

#include <cstddef>
#include <cstdint>

namespace memtrain::shim {

class Fnv {
public:
    /* One step for the whole number, not one for each of its bytes. */
    void add(uint64_t number) { hash_ = (hash_ ^ number) * 0x100000001b3U; }

    void add_bytes(const void *data, size_t bytes) {
        const auto *byte = static_cast<const unsigned char *>(data);
        for (size_t i = 0; i < bytes; i++) add(byte[i]);
    }

    uint64_t value() const { return hash_; }

private:
    uint64_t hash_ = 0xcbf29ce484222325U;
};

} // namespace memtrain::shim
#endif
