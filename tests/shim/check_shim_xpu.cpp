/*
 * check_shim_xpu.cpp - cards that are neither CUDA nor MPS: which names are taken, what is said of a card that cannot be used, and
 * what is read and set of its memory, with hooks of XPU's and an allocator of our own. It has no kernels, and libc10_xpu is
 * not there, so that its allocator takes no limit.
 */
#include <cstring>
#include <string>

#include <ATen/DLConvertor.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <memtrain/tensor.h>

#include "check_shim.hpp"
#include "compat.hpp"

using namespace check_shim;

namespace {

constexpr size_t MiB = size_t{1} << 20;

/* A card of 1000 MiB. */
struct Card {
    int64_t allocated = 0, peak = 0, reserved = 0, ooms = 0;
    int inits = 0;
    c10::DeviceIndex count = 2;
    bool tells_free = true;
};

Card card;

struct FakeAllocator final : c10::DeviceAllocator {
    c10::DataPtr allocate(size_t) override { return {}; }
    void copy_data(void *, const void *, size_t) const override {}
    bool initialized() override { return card.inits > 0; }
    void emptyCache(c10::MempoolId_t) override { card.reserved = card.allocated; }
    void recordStream(const c10::DataPtr &, c10::Stream) override {}
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
        c10::CachingDeviceAllocator::DeviceStats stats;
        TORCH_CHECK(card.inits, "Invalid device argument ", int(index), ": did you call init?");
        stats.allocated_bytes[0].current = card.allocated;
        stats.allocated_bytes[0].peak = card.peak;
        stats.reserved_bytes[0].current = card.reserved;
        stats.num_ooms = card.ooms;
        return stats;
    }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex) override { card.peak = card.allocated; }
    /* Not marked as an override: libtorch 2.9 has none. */
    virtual std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) {
        TORCH_CHECK(card.tells_free, "The device (Arc) doesn't support querying the available free "
                                     "memory. You can file an issue");
        return {800 * MiB - static_cast<size_t>(card.reserved), 1000 * MiB};
    }
};

std::string logged;

void keep_log(void *, mt_log_level, const char *line) {
    logged += line;
}

void init(void) {
    mt_torch_init_options options = MT_TORCH_INIT_OPTIONS_INIT;
    options.cuda = 0;
    ck_ok(mt_torch_init(&options));
}

void init_with_card(void) {
    static FakeAllocator allocator;
    init();
    c10::SetAllocator(c10::kXPU, &allocator, 255);
}

mt_memory memory_of(const char *device) {
    mt_memory memory = MT_MEMORY_INIT;
    ck_ok(mt_device_memory(device, &memory));
    return memory;
}

} // namespace

namespace at {

struct FakeXPUHooks : XPUHooksInterface {
    FakeXPUHooks() = default; /* from libtorch 2.15 on */
    explicit FakeXPUHooks(XPUHooksArgs) {}
    void init() const override { card.inits++; }
    bool hasXPU() const override { return true; }
    c10::DeviceIndex deviceCount() const override { return card.count; }
};

/* The key "XPUHooks" is the one that libtorch asks for. */
C10_REGISTER_CLASS(XPUHooksRegistry, XPUHooks, FakeXPUHooks)

} // namespace at

/* ---- names --------------------------------------------------------------------------------------- */

#define NAMES "accepted: cpu, cuda, cuda:N, xpu, xpu:N, mps, sim:cuda, sim:mps; here: cpu"

/* Names that are none, and devices of libtorch's that no model is trained on. */
static const struct {
    const char *name;
    mt_status status;
    const char *line;
} refused_names[] = {
    {"toaster", MT_EINVAL, "mt_device_check: 'toaster' is not the name of a device; " NAMES},
    {"xpu:", MT_EINVAL, "mt_device_check: 'xpu:' is not the name of a device; " NAMES},
    {"xpu:-1", MT_EINVAL, "mt_device_check: 'xpu:-1' is not the name of a device; " NAMES},
    {"xpu:x", MT_EINVAL, "mt_device_check: 'xpu:x' is not the name of a device; " NAMES},
    {"xpu:99999999999999999999", MT_EINVAL,
     "mt_device_check: 'xpu:99999999999999999999' is not the name of a device; " NAMES},
    {"XPU", MT_EINVAL, "mt_device_check: 'XPU' is not the name of a device; " NAMES},
    {"sim:xpu", MT_EINVAL, "mt_device_check: 'sim:xpu' is not the name of a device; " NAMES},
    {"meta", MT_ENOTSUP, "mt_device_check: nothing is trained on 'meta'; " NAMES},
    {"vulkan", MT_ENOTSUP, "mt_device_check: nothing is trained on 'vulkan'; " NAMES},
    {"mkldnn", MT_ENOTSUP, "mt_device_check: nothing is trained on 'mkldnn'; " NAMES},
};

TEST_LOOP("names", names_that_are_refused, LENGTH(refused_names)) {
    const auto &one = refused_names[_i];
    ck_status(mt_device_check(one.name), one.status);
    ck_assert_str_eq(mt_last_error(), one.line);
}

/* The hooks are there, the allocator is not: the part of libtorch was not loaded. */
TEST("names", told_to_leave_cards) {
    for (const char *name : {"cuda", "xpu", "xpu:1"}) {
        if (!strcmp(name, suite_device())) continue; /* the test device is there */
        ck_refused(mt_device_check(name), MT_ENOTSUP,
                   "is not loaded: mt_torch_init was told to leave it");
        ck_contains(mt_last_error(), "accepted: cpu");
    }
    DLManagedTensor managed = {};
    mt_tensor *tensor = nullptr;
    managed.dl_tensor.data = &managed;
    managed.dl_tensor.dtype = {kDLFloat, 32, 1};
    managed.dl_tensor.device = {kDLOneAPI, 0};
    ck_refused(mt_tensor_from_dlpack(&managed, &tensor), MT_ENOTSUP, "XPU is not loaded");
    ck_refused(mt_device_check("mtia"), MT_ENOTSUP, "no library that brings MTIA is loaded");
}

/* A third party's library that brings an allocator and no hooks: libtorch cannot ask it anything, and it is none that is here. */
TEST("names", an_allocator_without_hooks) {
    static FakeAllocator allocator;
    char name[64];
    init();
    c10::SetAllocator(c10::kPrivateUse1, &allocator, 255);
    ck_refused(mt_device_check("privateuseone"), MT_ENOTSUP, "accepted: cpu");
    ck_refused(mt_device_check("toaster"), MT_EINVAL, "; here: cpu");
    size_t count = 7;
    ck_ok(mt_device_count("privateuseone", &count));
    ck_assert_uint_eq(count, 0);
    for (size_t i = 0; mt_device_here(i, name, sizeof name) == MT_OK; i++)
        ck_assert_ptr_null(std::strstr(name, "privateuse"));
}

/* It says whose driver is missing; where there is a driver, what else is. */
TEST("drivers", what_is_to_be_installed) {
    static const struct {
        const char *name, *driver;
    } cards[] = {{"cuda", "NVIDIA's driver"}, {"xpu", "Intel's driver"}};
    ck_ok(mt_torch_init(nullptr));
    for (const auto &one : cards) {
        if (mt_device_check(one.name) == MT_OK) continue; /* it is here */
        ck_contains(mt_last_error(), "install");
        ck_contains(mt_last_error(), "docs/building.md");
        if (!std::strstr(mt_last_error(), "it cannot be loaded") &&
            !std::strstr(mt_last_error(), "finds no card"))
            ck_contains(mt_last_error(), one.driver);
    }
}

/* ---- a card -------------------------------------------------------------------------------------- */

TEST("generic", presence) {
    ck_ok(mt_device_check("xpu"));
    ck_ok(mt_device_check("xpu:1"));
    ck_assert_int_eq(card.inits, 0);
    ck_status(mt_device_check("xpu:2"), MT_ENOTSUP);
    ck_assert_str_eq(mt_last_error(),
                     "mt_device_check: there are 2 XPU devices; accepted: cpu, xpu:0, xpu:1");
    card.count = 1;
    ck_status(mt_device_check("xpu:1"), MT_ENOTSUP);
    ck_assert_str_eq(mt_last_error(),
                     "mt_device_check: there is 1 XPU device; accepted: cpu, xpu:0");
    card.count = 0;
    ck_refused(mt_device_check("xpu"), MT_ENOTSUP, "finds no card");
    ck_contains(mt_last_error(), "install a newer driver");
}

TEST("generic", figures) {
    card.allocated = static_cast<int64_t>(100 * MiB);
    card.peak = static_cast<int64_t>(150 * MiB);
    card.reserved = static_cast<int64_t>(300 * MiB);
    mt_memory memory = memory_of("xpu:0");
    ck_assert_uint_eq(memory.allocated_bytes, 100 * MiB);
    ck_assert_uint_eq(memory.peak_bytes, 150 * MiB);
    ck_assert_uint_eq(memory.reserved_bytes, 300 * MiB);
    ck_assert_uint_eq(memory.free_bytes, 500 * MiB);
    ck_assert_uint_eq(memory.budget_bytes, 760 * MiB); /* 0.95 of what is free and our own */
    ck_ok(mt_device_reset_peak("xpu:0"));
    ck_assert_uint_eq(memory_of("xpu").peak_bytes, 100 * MiB);
    mt_clear_result result = {};
    result.size = sizeof result;
    ck_ok(mt_empty_cache("xpu", &result));
    ck_assert_uint_eq(result.released_bytes, 200 * MiB);
}

/* A limit that the allocator does not take is watched, and the log is told; each card has a budget of its own. */
TEST("generic", budget_is_told_to_be_watched) {
    mt_set_log(keep_log, nullptr);
    ck_ok(mt_device_set_budget("xpu:0", 250 * MiB));
    ck_assert_uint_eq(memory_of("xpu:0").budget_bytes, 250 * MiB);
    ck_assert_uint_eq(memory_of("xpu:1").budget_bytes, 760 * MiB);
    ck_contains(logged.c_str(), "the budget of xpu:0 is watched, not enforced");
    logged.clear();
    ck_ok(mt_device_set_budget("xpu:0", 0));
    ck_assert_uint_eq(memory_of("xpu:0").budget_bytes, 760 * MiB);
    ck_assert_str_eq(logged.c_str(), "");
    mt_set_log(nullptr, nullptr);
}

/* Some drivers do not tell what is free: no budget by default then, and one that is set is as it is. */
TEST("generic", driver_that_does_not_tell) {
    card.tells_free = false;
    card.reserved = static_cast<int64_t>(300 * MiB);
    ck_assert_uint_eq(memory_of("xpu").budget_bytes, 0);
    ck_assert_uint_eq(memory_of("xpu").free_bytes, 0);
    ck_ok(mt_device_set_budget("xpu", 250 * MiB));
    ck_assert_uint_eq(memory_of("xpu").budget_bytes, 250 * MiB);
}

int main() {
    tcase_add_checked_fixture(suite_case_named("names"), init, nullptr);
    tcase_add_checked_fixture(suite_case_named("generic"), init_with_card, nullptr);
    return suite_run_named("shim_xpu");
}
