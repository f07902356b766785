/*
 * device_memory.cpp - memory of the CPU, of MPS and of cards with an allocator of libtorch's, and the public functions that tell
 * of it.
 */
#include "device_memory.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "arguments.hpp"
#include "device_name.hpp"
#include "compat.hpp"
#include "arena.hpp"
#include "cpu_memory.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "injection.hpp"
#include "pinned.hpp"
#include "sim_memory.hpp"

namespace memtrain::shim {
namespace {

/* Share of what is free that is used when no budget is given. */
constexpr double default_share = 0.95;

/*
 * What is kept of a device whose allocator is not ours: the budget that was set, and where an allocator of libtorch's tells it
 * the peak seen before the last start_call_peak, and what was free or reserved when its driver was last asked. One for each
 * device, and for the simulated cards.
 */
struct Kept {
    std::atomic<size_t> budget{0}, peak{0}, room{0};
};
constexpr int most_devices = std::numeric_limits<c10::DeviceIndex>::max() + 1;
Kept device_kept[c10::COMPILE_TIME_MAX_DEVICE_TYPES][most_devices], simulated_kept[2];

Kept &kept(const Device &device) {
    if (device.card) return simulated_kept[device.card->is_mps()];
    return device_kept[static_cast<int>(device.type())][std::max<int>(device.index(), 0)];
}

std::atomic<size_t> watched_cpu_budget{0}; /* where no allocator of ours enforces one */

size_t share_of(size_t bytes) {
    return static_cast<size_t>(default_share * static_cast<double>(bytes));
}

mt_host_memory host_memory() {
    mt_host_memory host = {};
    host.size = sizeof host;
    check(mt_host_memory_read(nullptr, &host));
    return host;
}

/* Bytes that the host has left for this process; 0 where it has no figure. */
size_t host_room(const mt_host_memory &host) {
    size_t room = std::min(host.available_bytes, host.cgroup_room_bytes);
    return room == SIZE_MAX ? 0 : room;
}

/* ---- CPU ---- */

/*
 * Reading the host takes 0.1 ms, and a step asks at its start: the figure may be 50 ms old. Two
 * threads that read at once do no harm.
 */
size_t recent_host_room() {
    using Clock = std::chrono::steady_clock;
    static std::atomic<Clock::rep> fresh_until{0};
    static std::atomic<size_t> room{0};
    Clock::time_point now = Clock::now();
    if (now.time_since_epoch().count() >= fresh_until) {
        room = host_room(host_memory());
        fresh_until = (now + std::chrono::milliseconds(50)).time_since_epoch().count();
    }
    return room;
}

void check_resident(const char *function, const Device &device) {
    if (device.memory() != Memory::cpu || device.card)
        fail(MT_ENOTSUP, "%s: resident bytes are those of the CPU's process alone", function);
    if (!cpu::resident_bytes())
        fail(MT_ENOTSUP, "%s: the system does not tell them here", function);
}

mt_resident resident_memory() {
    mt_resident resident = MT_RESIDENT_INIT;
    resident.limit_bytes = cpu::resident_limit();
    resident.resident_bytes = cpu::resident_bytes();
    resident.tensor_bytes = std::min(cpu::outside_arenas(), resident.resident_bytes);
    resident.arena_bytes =
        std::min(cpu::Arena::touched_bytes(), resident.resident_bytes - resident.tensor_bytes);
    resident.other_bytes = resident.resident_bytes - resident.tensor_bytes - resident.arena_bytes;
    resident.peak_bytes = cpu::peak_resident_bytes();
    return resident;
}

mt_memory cpu_memory() {
    mt_memory memory = {};
    memory.free_bytes = recent_host_room();
    if (!cpu::installed()) {
        memory.budget_bytes = watched_cpu_budget;
        return memory;
    }
    cpu::follow_host();
    memory.budget_bytes = cpu::budget();
    memory.allocated_bytes = memory.reserved_bytes = cpu::allocated();
    memory.peak_bytes = cpu::peak();
    return memory;
}

/* ---- cards with an allocator of libtorch's ---- */

/* It keeps statistics once the device is initialised. */
c10::DeviceAllocator &allocator_of(const Device &device) {
    if (device.card) return device.card->cuda();
    c10::DeviceAllocator *allocator = compat::device_allocator(device.type());
    if (!allocator) fail(MT_ENOTSUP, "%s", why_absent(device.type()).c_str());
    at::globalContext().lazyInitDevice(device.type());
    return *allocator;
}

/* The most that was allocated, chunks before the last one included. */
size_t card_peak(const Device &device, const compat::DeviceStats &stats) {
    return std::max(static_cast<size_t>(stats.allocated_bytes[0].peak), kept(device).peak.load());
}

/*
 * Without the driver being asked for what is free: that takes up to a millisecond. Without a budget it is asked until it has
 * told once, and again after forget_room(). Some drivers do not tell, and then there is no budget by default. A simulated card
 * has no driver.
 */
mt_memory card_memory(const Device &device, bool wants_free) {
    c10::DeviceAllocator &allocator = allocator_of(device);
    compat::DeviceStats stats = allocator.getDeviceStats(device.index());
    mt_memory memory = {};
    /* Element 0 is the sum over the small and the large pool. */
    memory.allocated_bytes = static_cast<size_t>(stats.allocated_bytes[0].current);
    memory.reserved_bytes = static_cast<size_t>(stats.reserved_bytes[0].current);
    memory.peak_bytes = card_peak(device, stats);
    memory.alloc_retries = static_cast<uint64_t>(stats.num_alloc_retries);
    memory.budget_bytes = kept(device).budget;
    if (!wants_free && !memory.budget_bytes && !device.card)
        memory.budget_bytes = share_of(kept(device).room);
    if (!wants_free && memory.budget_bytes) return memory;
    auto [free_bytes, total_bytes] = compat::memory_info(allocator, device);
    memory.free_bytes = free_bytes;
    kept(device).room = total_bytes ? free_bytes + memory.reserved_bytes : 0;
    if (!memory.budget_bytes) memory.budget_bytes = share_of(kept(device).room);
    return memory;
}

/* A share of the card, which its allocator may reserve at most. */
bool set_share(const Device &device, double share) {
    if (!device.card) return compat::set_memory_fraction(allocator_of(device), device, share);
    device.card->set_ratio(share);
    return true;
}

void set_card_budget(const Device &device, size_t bytes) {
    auto total = static_cast<double>(compat::memory_info(allocator_of(device), device).second);
    double share = bytes ? std::min(static_cast<double>(bytes) / total, 1.0) : 1.0;
    bool is_limit = total > 0.0 && set_share(device, share);
    if (bytes && !is_limit)
        mt_log(MT_LOG_WARNING,
               "the budget of %s is watched, not enforced: its allocator takes no limit",
               device.name().c_str());
    kept(device).budget = bytes;
}

/* ---- MPS ---- */

const at::MPSHooksInterface &mps_hooks(const Device &device) {
    return device.card ? device.card->mps() : at::detail::getMPSHooks();
}

size_t mps_default_budget(const at::MPSHooksInterface &mps) {
    size_t left = host_memory().budget_bytes;
    size_t room = left < SIZE_MAX - mps.getDriverAllocatedMemory()
                      ? left + mps.getDriverAllocatedMemory()
                      : SIZE_MAX;
    return std::min(share_of(mps.getRecommendedMaxMemory()), room);
}

mt_memory mps_memory(const Device &device) {
    const auto &mps = mps_hooks(device);
    mt_memory memory = {};
    memory.allocated_bytes = mps.getCurrentAllocatedMemory();
    memory.reserved_bytes = mps.getDriverAllocatedMemory();
    memory.budget_bytes = kept(device).budget;
    if (!memory.budget_bytes) memory.budget_bytes = mps_default_budget(mps);
    memory.free_bytes = recent_host_room();
    return memory;
}

/* MPS takes ratios up to 2 of the recommended working set; 0 would remove the limit altogether. */
void set_mps_budget(const Device &device, size_t bytes) {
    const auto &mps = mps_hooks(device);
    double whole = static_cast<double>(std::max<size_t>(mps.getRecommendedMaxMemory(), 1));
    double ratio = bytes ? static_cast<double>(bytes) / whole : default_share;
    mps.setMemoryFraction(std::min(std::max(ratio, 1e-6), 2.0));
    kept(device).budget = bytes;
}

/* Devices of its type. A backend of a third party may have an allocator and no hooks, without which libtorch cannot use it. */
size_t count_of(const Device &device) {
    if (device.card) return cpu::installed();
    if (device.is_cpu()) return 1;
    if (device.is_mps()) return at::detail::getMPSHooks().hasMPS();
    if (!compat::device_allocator(device.type())) return 0;
    try {
        int count = at::globalContext().getAcceleratorHooksInterface(device.type()).deviceCount();
        return static_cast<size_t>(std::max(count, 0));
    } catch (const c10::Error &) {
        return 0;
    }
}

/* Such a system gathers a tensor that does not begin its buffer: in a block, each parameter but the first. */
void tell_of_copies() {
    static std::atomic_flag is_told = ATOMIC_FLAG_INIT;
    if (at::detail::getMPSHooks().isOnMacOSorNewer(15, 0) || is_told.test_and_set()) return;
    mt_log(MT_LOG_WARNING, "mps: before macOS 15 libtorch copies parameters at each use: steps "
                           "take longer, with the same numbers");
}

void check_mps(const char *function, const Device &device) {
    if (!count_of(device))
        fail(MT_ENOTSUP, "%s: no MPS here: it wants a Mac with Apple's chip; accepted: %s",
             function, devices_here().c_str());
    if (device.index() > 0)
        fail(MT_ENOTSUP, "%s: there is 1 MPS device; accepted: %s", function,
             devices_here().c_str());
    tell_of_copies();
}

void check_card(const char *function, const Device &device) {
    if (!compat::device_allocator(device.type()))
        fail(MT_ENOTSUP, "%s: %s; accepted: %s", function, why_absent(device.type()).c_str(),
             devices_here().c_str());
    size_t count = count_of(device);
    if (!count)
        fail(MT_ENOTSUP, "%s: %s; accepted: %s", function, why_no_card(device.type()).c_str(),
             devices_here().c_str());
    if (device.index() >= static_cast<int>(count))
        fail(MT_ENOTSUP, "%s: there %s %zu %s device%s; accepted: %s", function,
             count == 1 ? "is" : "are", count, c10::DeviceTypeName(device.type()).c_str(),
             count == 1 ? "" : "s", devices_here().c_str());
}

} // namespace

std::vector<c10::Device> cards_here() {
    std::vector<c10::Device> cards;
    for (int number = 1; number < c10::COMPILE_TIME_MAX_DEVICE_TYPES; number++) {
        const auto type = static_cast<c10::DeviceType>(number);
        const size_t count = count_of(c10::Device(type));
        for (size_t i = 0; i < count; i++)
            cards.emplace_back(type, static_cast<c10::DeviceIndex>(i));
    }
    return cards;
}

std::string devices_here() {
    std::string names = "cpu";
    for (const c10::Device &card : cards_here()) names += ", " + Device(card).name();
    return names;
}

void check_device(const char *function, const Device &device) {
    if (device.card && !cpu::installed())
        fail(MT_ENOTSUP, "%s: %s needs our CPU allocator, which is not installed", function,
             device.card->name());
    if (device.is_cpu()) return;
    if (device.is_mps())
        check_mps(function, device);
    else
        check_card(function, device);
}

bool has_pinned_memory(const Device &device) noexcept {
    if (device.memory() != Memory::allocator || device.card) return false;
    static std::atomic<int> known[c10::COMPILE_TIME_MAX_DEVICE_TYPES]; /* 1: no, 2: yes */
    std::atomic<int> &answer = known[static_cast<int>(device.type())];
    if (answer) return answer == 2;
    at::Allocator *pinned = nullptr;
    try {
        pinned = at::globalContext().getPinnedMemoryAllocator(device.type());
    } catch (const c10::Error &) {
        /* So hooks say that they have none. */
    }
    answer = pinned ? 2 : 1;
    return pinned != nullptr;
}

void set_device_budget(const Device &device, size_t bytes) {
    switch (device.memory()) {
    case Memory::allocator:
        return set_card_budget(device, bytes);
    case Memory::mps:
        return set_mps_budget(device, bytes);
    case Memory::cpu:
        watched_cpu_budget = bytes;
        return cpu::set_budget(bytes);
    case Memory::none:
        fail(MT_ENOTSUP, "%s has no memory", device.name().c_str());
    }
}

mt_memory device_memory(const Device &device, bool wants_free) {
    Memory kind = device.memory();
    mt_memory memory = kind == Memory::allocator ? card_memory(device, wants_free)
                       : kind == Memory::mps     ? mps_memory(device)
                       : kind == Memory::cpu     ? cpu_memory()
                                                 : mt_memory{};
    memory.size = sizeof memory;
    return memory;
}

void reset_device_peak(const Device &device) {
    if (device.memory() == Memory::mps) fail(MT_ENOTSUP, "mt_device_reset_peak: MPS keeps no peak");
    if (device.memory() == Memory::cpu) return cpu::reset_peak();
    allocator_of(device).resetPeakStats(device.index());
    kept(device).peak = 0;
}

void forget_room(const Device &device) {
    kept(device).room = 0;
}

/* Reserved bytes tell what was released, on the CPU resident ones: the heap is the cache there. */
mt_clear_result empty_device_cache(const Device &device) {
    Memory kind = device.memory();
    auto taken = [&] {
        return kind == Memory::cpu ? cpu::resident_bytes()
                                   : device_memory(device, false).reserved_bytes;
    };
    mt_clear_result result = {sizeof result, 0.0, 0};
    size_t before = taken();
    forget_room(device);
    auto start = std::chrono::steady_clock::now();
    if (kind == Memory::allocator)
        allocator_of(device).emptyCache();
    else if (kind == Memory::mps)
        mps_hooks(device).emptyCache();
    else {
        cpu::Arena::drop_all_pages();
        cpu::trim_heap();
    }
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    size_t after = taken();
    result.released_bytes = before > after ? before - after : 0;
    return result;
}

void synchronize(const Device &device) {
    if (device.memory() == Memory::mps)
        mps_hooks(device).deviceSynchronize();
    else if (!device.is_cpu())
        c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void start_call_peak(const Device &device) {
    if (device.memory() == Memory::cpu) cpu::reset_call_peak();
    if (device.memory() != Memory::allocator) return;
    c10::DeviceAllocator &allocator = allocator_of(device);
    size_t seen = card_peak(device, allocator.getDeviceStats(device.index()));
    allocator.resetPeakStats(device.index());
    kept(device).peak = seen;
}

size_t call_peak(const Device &device) {
    if (device.memory() == Memory::cpu) return cpu::installed() ? cpu::call_peak() : 0;
    if (device.memory() != Memory::allocator) return 0;
    compat::DeviceStats stats = allocator_of(device).getDeviceStats(device.index());
    return static_cast<size_t>(stats.allocated_bytes[0].peak);
}

size_t device_allocated(const Device &device) {
    if (device.memory() == Memory::mps) return mps_hooks(device).getCurrentAllocatedMemory();
    if (device.memory() == Memory::cpu) return cpu::installed() ? cpu::allocated() : 0;
    if (device.memory() != Memory::allocator) return 0;
    compat::DeviceStats stats = allocator_of(device).getDeviceStats(device.index());
    return static_cast<size_t>(stats.allocated_bytes[0].current);
}

void injection::reach_cards() {
    static std::mutex one_at_a_time;
    static bool done = false;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    for (int i = 0; i < c10::COMPILE_TIME_MAX_DEVICE_TYPES && !done; i++) {
        Device device = c10::Device(static_cast<c10::DeviceType>(i), 0);
        c10::DeviceAllocator *allocator = compat::device_allocator(device.type());
        if (!allocator || !injection::reach(*allocator) || !has_pinned_memory(device)) continue;
        (void)injection::reach(*at::globalContext().getPinnedMemoryAllocator(device.type()));
    }
    done = true;
}

int64_t device_ooms(const Device &device) noexcept {
    if (device.memory() != Memory::allocator) return 0;
    try {
        return allocator_of(device).getDeviceStats(device.index()).num_ooms;
    } catch (...) {
        return 0;
    }
}

static uint64_t host_refusals() noexcept {
    return cpu::refusals().count;
}

static sim::Card *swap_card(sim::Card *card) noexcept {
    sim::Card *before = cpu::card();
    cpu::set_card(card);
    return before;
}

static const bool witness_is_registered =
    (register_witness({host_refusals, device_ooms, swap_card}), true);

/* Pinned memory is the host's: with the CPU's cache that of all cards goes. */
static void empty_pinned_caches(const Device &device) {
    if (has_pinned_memory(device)) empty_pinned_cache(device.type());
    if (!device.is_host() || !pinned_memory_waits()) return;
    for (const c10::Device &card : cards_here())
        if (card.index() == 0 && has_pinned_memory(card)) empty_pinned_cache(card.type());
}

/*
 * A card on which this process has memory. Such a card may be lost since, and says so when it is waited for. One that is not used
 * is not asked, since that would take memory of the card.
 */
static bool is_used(const Device &device) {
    if (device.memory() != Memory::allocator || device.card) return false;
    try {
        c10::DeviceAllocator *allocator = compat::device_allocator(device.type());
        return allocator && allocator->initialized() &&
               at::globalContext()
                   .getAcceleratorHooksInterface(device.type())
                   .hasPrimaryContext(device.index());
    } catch (const c10::Error &) {
        return false; /* hooks of a third party that do not tell */
    }
}

/* Runs body(device) inside the guard, for a device that can be used. */
template <class Body>
static mt_status with_device(const char *function, const char *name, Body &&body) {
    Device device = c10::Device(c10::kCPU);
    MT_RETURN_IF_FAILED(ensure_init());
    MT_RETURN_IF_FAILED(parse_device(name, function, &device));
    return guard([&] {
        check_device(function, device);
        body(device);
    });
}

/* The same for a simulated card. */
template <class Body>
static mt_status with_card(const char *function, const char *name, Body &&body) {
    return with_device(function, name, [&](const Device &device) {
        if (!device.card) fail(MT_EINVAL, "%s: '%s' is no simulated device", function, name);
        body(device);
    });
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_device_check(const char *name) {
    return with_device("mt_device_check", name, [](const Device &device) {
        if (is_used(device)) synchronize(device);
    });
}

extern "C" mt_status mt_device_count(const char *type, size_t *out) {
    static const char function[] = "mt_device_count";
    Device device = c10::Device(c10::kCPU);
    MT_RETURN_IF_FAILED(check_not_null(out, function, "out"));
    *out = 0;
    MT_RETURN_IF_FAILED(ensure_init());
    MT_RETURN_IF_FAILED(parse_device(type, function, &device));
    if (!device.card && std::strchr(type, ':'))
        return mt_set_error(MT_EINVAL, "%s: '%s' is one device; accepted: its type, '%.*s'",
                            function, type, static_cast<int>(std::strcspn(type, ":")), type);
    return guard([&] { *out = count_of(device); });
}

extern "C" mt_status mt_device_here(size_t number, char *text, size_t size) {
    static const char function[] = "mt_device_here";
    MT_RETURN_IF_FAILED(check_not_null(text, function, "text"));
    if (!size) return mt_set_error(MT_EINVAL, "%s: size is 0; accepted: at least 64", function);
    *text = '\0';
    MT_RETURN_IF_FAILED(ensure_init());
    return guard([&] {
        std::vector<c10::Device> cards = cards_here();
        if (number > cards.size())
            fail(MT_EINVAL, "%s: number is %zu; accepted: 0 to %zu", function, number,
                 cards.size());
        std::string name = number ? Device(cards[number - 1]).name() : "cpu";
        if (name.size() >= size)
            fail(MT_EINVAL, "%s: size is %zu; accepted: at least %zu", function, size,
                 name.size() + 1);
        std::memcpy(text, name.c_str(), name.size() + 1);
    });
}

extern "C" mt_status mt_device_set_budget(const char *name, size_t bytes) {
    return with_device("mt_device_set_budget", name,
                       [&](const Device &device) { set_device_budget(device, bytes); });
}

extern "C" mt_status mt_device_set_resident_budget(const char *name, size_t bytes) {
    static const char function[] = "mt_device_set_resident_budget";
    return with_device(function, name, [&](const Device &device) {
        check_resident(function, device);
        if (!cpu::installed()) fail(MT_ENOTSUP, "%s: our CPU allocator is not installed", function);
        cpu::set_resident_limit(bytes);
    });
}

extern "C" mt_status mt_device_resident(const char *name, mt_resident *out) {
    static const char function[] = "mt_device_resident";
    MT_RETURN_IF_FAILED(check_sized(out, function, "out"));
    return with_device(function, name, [&](const Device &device) {
        check_resident(function, device);
        hand_over(resident_memory(), out);
    });
}

extern "C" mt_status mt_device_predict_resident(const char *name, size_t peak_bytes, size_t *out) {
    static const char function[] = "mt_device_predict_resident";
    MT_RETURN_IF_FAILED(check_not_null(out, function, "out"));
    *out = 0;
    return with_device(function, name, [&](const Device &device) {
        check_resident(function, device);
        *out = cpu::resident_for(peak_bytes);
    });
}

extern "C" mt_status mt_device_memory(const char *name, mt_memory *out) {
    MT_RETURN_IF_FAILED(check_sized(out, "mt_device_memory", "out"));
    return with_device("mt_device_memory", name,
                       [&](const Device &device) { hand_over(device_memory(device), out); });
}

extern "C" mt_status mt_device_reset_peak(const char *name) {
    return with_device("mt_device_reset_peak", name,
                       [](const Device &device) { reset_device_peak(device); });
}

extern "C" mt_status mt_empty_cache(const char *name, mt_clear_result *out) {
    if (out) MT_RETURN_IF_FAILED(check_sized(out, "mt_empty_cache", "out"));
    return with_device("mt_empty_cache", name, [&](const Device &device) {
        mt_clear_result result = empty_device_cache(device);
        empty_pinned_caches(device);
        if (out) hand_over(result, out);
    });
}

extern "C" mt_status mt_device_simulate(const char *name, const mt_sim_options *options) {
    static const char function[] = "mt_device_simulate";
    if (options) MT_RETURN_IF_FAILED(check_sized(options, function, "options"));
    return with_card(function, name, [&](const Device &device) {
        device.card->replace(function, options);
        kept(device).budget = kept(device).peak = 0;
    });
}

extern "C" mt_status mt_device_hold(const char *name, size_t bytes) {
    static const char function[] = "mt_device_hold";
    return with_device(function, name, [&](const Device &device) {
        if (device.card) return device.card->set_others(bytes);
        if (!device.is_cpu())
            fail(MT_EINVAL, "%s: '%s' is neither \"cpu\" nor a simulated device", function, name);
        if (!cpu::installed()) fail(MT_ENOTSUP, "%s: nothing counts the CPU's tensors", function);
        cpu::hold(bytes);
    });
}

extern "C" mt_status mt_device_sim_stats(const char *name, mt_sim_stats *out) {
    MT_RETURN_IF_FAILED(check_sized(out, "mt_device_sim_stats", "out"));
    return with_card("mt_device_sim_stats", name,
                     [&](const Device &device) { hand_over(device.card->stats(), out); });
}
