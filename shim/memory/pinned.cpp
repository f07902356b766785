/* pinned.cpp - see pinned.hpp. */
#include "pinned.hpp"

#include <ATen/ops/empty.h>

#include "cpu_memory.hpp"

namespace memtrain::shim {
namespace {

/* What libtorch takes for so many bytes. */
size_t power_of_two(size_t bytes) {
    size_t power = 64;
    while (power < bytes) power *= 2;
    return power;
}

} // namespace

Pinned::~Pinned() {
    cpu::hold_more(-static_cast<ptrdiff_t>(held_));
}

/* libtorch keeps the memory that this has grown out of, so it goes on to count. */
void Pinned::need(size_t bytes) {
    if (bytes <= bytes_) return;
    size_t whole = power_of_two(bytes);
    bytes_ = 0;
    memory_.reset();
    memory_ = at::empty({static_cast<int64_t>(whole)},
                        at::device(at::kCPU).dtype(at::kByte).pinned_memory(true));
    bytes_ = whole;
    cpu::hold_more(static_cast<ptrdiff_t>(whole));
    held_ += whole;
}

} // namespace memtrain::shim
