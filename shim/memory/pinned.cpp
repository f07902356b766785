/* pinned.cpp - see pinned.hpp. */
#include "pinned.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "cpu_memory.hpp"

namespace memtrain::shim {
namespace {

constexpr size_t powers = 8 * sizeof(size_t);

/* Blocks of one power of two: those in use, and those that libtorch has. */
struct Blocks {
    size_t in_use = 0, all = 0;
};

/* libtorch has a cache for each type of card. */
struct Cache {
    Blocks blocks[powers];
};

std::mutex counting;
Cache caches[c10::COMPILE_TIME_MAX_DEVICE_TYPES];

Cache &cache_of(c10::DeviceType type) {
    return caches[static_cast<int>(type)];
}

size_t power_of(size_t bytes) {
    size_t power = 0;
    while (power + 1 < powers && (size_t{1} << power) < bytes) power++;
    return power;
}

/*
 * What a cache has, in use or not. libtorch's statistics have other names since they tell apart what is active: reserved_bytes
 * became allocated_bytes, which before were those in use. All versions that are supported have get_stats().
 */
template <class Stats>
auto bytes_of(const Stats &stats, int) -> decltype(stats.reserved_bytes.current) {
    return stats.reserved_bytes.current;
}
template <class Stats> int64_t bytes_of(const Stats &stats, long) {
    return stats.allocated_bytes.current;
}

/* The same of the cache for a type; 0 where libtorch keeps no statistics of it. */
int64_t bytes_told(c10::DeviceType type) noexcept {
    try {
        return bytes_of(at::getHostAllocator(type)->get_stats(), 0);
    } catch (const std::exception &) {
        return 0;
    }
}

void hold(size_t power, ptrdiff_t blocks) noexcept {
    cpu::hold_more(blocks * static_cast<ptrdiff_t>(size_t{1} << power));
}

void wait_for_all(c10::DeviceType type) {
    c10::impl::VirtualGuardImpl guard(type);
    for (c10::DeviceIndex i = 0; i < guard.deviceCount(); i++) guard.synchronizeDevice(i);
}

/* Of the lock's holder. Whether libtorch can. */
bool empty(c10::DeviceType type) noexcept {
    try {
        wait_for_all(type);
        at::getHostAllocator(type)->empty_cache();
    } catch (const std::exception &) {
        return false; /* so this type of device has none that can, or the card is lost */
    }
    for (size_t power = 0; power < powers; power++) {
        Blocks &those = cache_of(type).blocks[power];
        hold(power, -static_cast<ptrdiff_t>(those.all - those.in_use));
        those.all = those.in_use;
    }
    return true;
}

bool waits(const Cache &cache) noexcept {
    return std::any_of(cache.blocks, std::end(cache.blocks),
                       [](const Blocks &b) { return b.all > b.in_use; });
}

/* Counts one block more, if there is room for it, or what waits makes some. */
bool hold_block(c10::DeviceType type, size_t power) noexcept {
    size_t block = size_t{1} << power;
    return cpu::hold_if_room(block) ||
           (waits(cache_of(type)) && empty(type) && cpu::hold_if_room(block));
}

} // namespace

PinnedBytes::PinnedBytes(c10::DeviceType type, size_t bytes)
    : type_(type), power_(power_of(bytes)), is_new_(false) {
    std::lock_guard<std::mutex> lock(counting);
    Blocks &those = cache_of(type).blocks[power_];
    if (those.in_use == those.all) {
        if (!hold_block(type, power_)) cpu::refuse_held(size_t{1} << power_);
        those.all++;
        is_new_ = true;
    }
    those.in_use++;
}

bool PinnedBytes::has_room(c10::DeviceType type, size_t bytes) noexcept {
    size_t power = power_of(bytes);
    std::lock_guard<std::mutex> lock(counting);
    const Blocks &those = cache_of(type).blocks[power];
    if (those.in_use < those.all) return true;
    if (!hold_block(type, power)) return false;
    hold(power, -1);
    return true;
}

bool PinnedBytes::has_room_beside(c10::DeviceType type, size_t bytes, size_t left) noexcept {
    size_t power = power_of(bytes);
    std::lock_guard<std::mutex> lock(counting);
    const Blocks &those = cache_of(type).blocks[power];
    size_t more = left + (those.in_use < those.all ? 0 : size_t{1} << power);
    if (!cpu::hold_if_room(more)) return false;
    cpu::hold_more(-static_cast<ptrdiff_t>(more));
    return true;
}

PinnedBytes::~PinnedBytes() {
    std::lock_guard<std::mutex> lock(counting);
    cache_of(type_).blocks[power_].in_use--;
}

/* A block that libtorch was expected to make, and could not, is no longer counted. */
at::Tensor PinnedBytes::request(at::IntArrayRef sizes, at::IntArrayRef strides,
                                at::ScalarType dtype) {
    try {
        return at::detail::empty_strided_generic(
            sizes, strides, at::globalContext().getPinnedMemoryAllocator(type_),
            c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
    } catch (...) {
        std::lock_guard<std::mutex> lock(counting);
        if (!is_new_) throw;
        hold(power_, -1);
        cache_of(type_).blocks[power_].all--;
        is_new_ = false;
        throw;
    }
}

at::Tensor PinnedBytes::make(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
    int64_t before = is_new_ ? 0 : bytes_told(type_);
    at::Tensor tensor = request(sizes, strides, dtype);
    if (is_new_ || bytes_told(type_) <= before) return tensor;
    {
        std::lock_guard<std::mutex> lock(counting);
        size_t block = size_t{1} << power_;
        if (cpu::hold_if_room(block)) {
            cache_of(type_).blocks[power_].all++;
            return tensor;
        }
        tensor.reset();
        /* The blocks that waited are gone with it, and one of these is counted in the place of the next. */
        is_new_ = empty(type_);
        if (!is_new_) cpu::refuse_held(block);
    }
    return request(sizes, strides, dtype);
}

bool pinned_memory_waits() noexcept {
    std::lock_guard<std::mutex> lock(counting);
    return std::any_of(caches, std::end(caches), waits);
}

void empty_pinned_cache(c10::DeviceType type) noexcept {
    std::lock_guard<std::mutex> lock(counting);
    (void)empty(type);
}

bool Pinned::need_if_room(c10::DeviceType type, size_t bytes) {
    if (bytes <= bytes_) return true;
    bytes_ = 0;
    memory_.reset();
    counted_.reset();
    if (!PinnedBytes::has_room(type, bytes)) return false;
    need(type, bytes);
    return true;
}

void Pinned::need(c10::DeviceType type, size_t bytes) {
    if (bytes <= bytes_) return;
    size_t whole = size_t{1} << std::max<size_t>(power_of(bytes), 6);
    bytes_ = 0;
    memory_.reset();
    counted_.reset();
    counted_.emplace(type, whole);
    try {
        memory_ = counted_->make({static_cast<int64_t>(whole)}, {1}, at::kByte);
    } catch (...) {
        counted_.reset();
        throw;
    }
    bytes_ = whole;
}

} // namespace memtrain::shim
