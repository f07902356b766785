/* pinned.cpp - see pinned.hpp. */
#include "pinned.hpp"

#include <algorithm>
#include <exception>
#include <mutex>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>

#include "cpu_memory.hpp"

namespace memtrain::shim {
namespace {

constexpr size_t powers = 8 * sizeof(size_t);

/* Blocks of one power of two: those in use, and those that libtorch has. */
struct Blocks {
    size_t in_use = 0, all = 0;
};

std::mutex counting;
Blocks blocks[powers];

size_t power_of(size_t bytes) {
    size_t power = 0;
    while (power + 1 < powers && (size_t{1} << power) < bytes) power++;
    return power;
}

} // namespace

PinnedBytes::PinnedBytes(size_t bytes) noexcept : power_(power_of(bytes)) {
    std::lock_guard<std::mutex> lock(counting);
    Blocks &those = blocks[power_];
    if (++those.in_use <= those.all) return;
    those.all++;
    cpu::hold_more(static_cast<ptrdiff_t>(size_t{1} << power_));
}

PinnedBytes::~PinnedBytes() {
    std::lock_guard<std::mutex> lock(counting);
    blocks[power_].in_use--;
}

bool pinned_memory_waits() noexcept {
    std::lock_guard<std::mutex> lock(counting);
    return std::any_of(blocks, blocks + powers, [](const Blocks &b) { return b.all > b.in_use; });
}

void empty_pinned_cache(c10::DeviceType type) noexcept {
    std::lock_guard<std::mutex> lock(counting);
    try {
        at::getHostAllocator(type)->empty_cache();
    } catch (const std::exception &) {
        return; /* so this type of device has none that can */
    }
    for (size_t power = 0; power < powers; power++) {
        Blocks &those = blocks[power];
        cpu::hold_more(-static_cast<ptrdiff_t>((those.all - those.in_use) << power));
        those.all = those.in_use;
    }
}

void Pinned::need(size_t bytes) {
    if (bytes <= bytes_) return;
    size_t whole = size_t{1} << std::max<size_t>(power_of(bytes), 6);
    bytes_ = 0;
    memory_.reset();
    counted_.reset();
    memory_ = at::empty({static_cast<int64_t>(whole)},
                        at::device(at::kCPU).dtype(at::kByte).pinned_memory(true));
    bytes_ = whole;
    counted_.emplace(whole);
}

} // namespace memtrain::shim
