/*
 * check_shim_mps.cpp - what reaches MPS through libtorch's hooks, with hooks of our own in their
 * place. There are no kernels behind them, so no model is trained here. On a Mac, where the real
 * hooks are registered, the suite is skipped.
 */
#include <algorithm>

#include <ATen/detail/MPSHooksInterface.h>

#include "check_shim.hpp"

using namespace check_shim;

#ifndef __APPLE__

namespace {

constexpr size_t MiB = size_t{1} << 20;

struct Fake {
    bool present = true;
    unsigned macos = 15;
    size_t current = 0, driver = 0, recommended = 100 * MiB;
    size_t cached = 0; /* leaves driver with emptyCache */
    double fraction = 0.0;
    int waits = 0;
};

Fake fake;

} // namespace

namespace at {

struct FakeMPSHooks : MPSHooksInterface {
    FakeMPSHooks() = default; /* from libtorch 2.15 on */
    explicit FakeMPSHooks(MPSHooksArgs) {}
    void init() const override {}
    bool hasMPS() const override { return fake.present; }
    bool isOnMacOSorNewer(unsigned major, unsigned) const override { return fake.macos >= major; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    void deviceSynchronize() const override { fake.waits++; }
    size_t getCurrentAllocatedMemory() const override { return fake.current; }
    size_t getDriverAllocatedMemory() const override { return fake.driver; }
    size_t getRecommendedMaxMemory() const override { return fake.recommended; }
    void setMemoryFraction(double ratio) const override { fake.fraction = ratio; }
    void emptyCache() const override { fake.driver -= std::exchange(fake.cached, 0); }
};

/* The key "MPSHooks" is the one that libtorch asks for. */
C10_REGISTER_CLASS(MPSHooksRegistry, MPSHooks, FakeMPSHooks)

} // namespace at

namespace {

mt_memory memory_of_mps(void) {
    mt_memory memory = {};
    memory.size = sizeof memory;
    ck_ok(mt_device_memory("mps", &memory));
    return memory;
}

} // namespace

TEST("hooks", presence) {
    ck_ok(mt_device_check("mps"));
    ck_ok(mt_device_check("mps:0"));
    size_t count = 0;
    ck_ok(mt_device_count("mps", &count));
    ck_assert_uint_eq(count, 1);
    fake.present = false;
    ck_ok(mt_device_count("mps", &count));
    ck_assert_uint_eq(count, 0);
    ck_refused(mt_device_check("mps"), MT_ENOTSUP, "MPS");
}

/* Before macOS 15 steps take longer, which is said once. */
TEST("hooks", older_system) {
    static std::string log;
    ck_ok(mt_torch_init(nullptr)); /* which has words of its own */
    mt_set_log([](void *, mt_log_level, const char *text) { log += text; }, nullptr);
    ck_ok(mt_device_check("mps"));
    ck_assert_str_eq(log.c_str(), "");
    fake.macos = 14;
    ck_ok(mt_device_check("mps"));
    ck_contains(log.c_str(), "before macOS 15");
    log.clear();
    ck_ok(mt_device_check("mps"));
    ck_assert_str_eq(log.c_str(), "");
}

TEST("hooks", figures) {
    fake.current = 10 * MiB;
    fake.driver = 16 * MiB;
    mt_memory memory = memory_of_mps();
    ck_assert_uint_eq(memory.allocated_bytes, 10 * MiB);
    ck_assert_uint_eq(memory.reserved_bytes, 16 * MiB);
    ck_assert_uint_eq(memory.budget_bytes, 95 * MiB);
    ck_assert_uint_eq(memory.peak_bytes, 0);
    ck_assert_uint_gt(memory.free_bytes, 0);
    ck_status(mt_device_reset_peak("mps"), MT_ENOTSUP);
}

/* The default never exceeds what the machine has left. */
TEST("hooks", default_is_bounded_by_ram) {
    fake.recommended = size_t{1} << 60;
    ck_assert_uint_lt(memory_of_mps().budget_bytes, size_t{1} << 50);
}

/* The ratio is of the recommended working set; never 0, which would remove the limit. */
TEST("hooks", budget) {
    ck_ok(mt_device_set_budget("mps", 25 * MiB));
    ck_assert_double_eq(fake.fraction, 0.25);
    ck_assert_uint_eq(memory_of_mps().budget_bytes, 25 * MiB);
    ck_ok(mt_device_set_budget("mps", 1));
    ck_assert_double_gt(fake.fraction, 0.0);
    ck_ok(mt_device_set_budget("mps", 1000 * MiB));
    ck_assert_double_eq(fake.fraction, 2.0);
    ck_ok(mt_device_set_budget("mps", 0));
    ck_assert_double_eq(fake.fraction, 0.95);
    ck_assert_uint_eq(memory_of_mps().budget_bytes, 95 * MiB);
}

TEST("hooks", cache) {
    mt_clear_result result = {};
    result.size = sizeof result;
    fake.driver = 50 * MiB;
    fake.cached = 30 * MiB;
    ck_ok(mt_empty_cache("mps", &result));
    ck_assert_uint_eq(result.released_bytes, 30 * MiB);
}

/* MPS throws plain errors: their texts tell. */
TEST("hooks", texts) {
    const char *const lines[] = {
        "MPS backend out of memory (MPS allocated: 1.00 GB, other allocations: 2 MB). Tried to "
        "allocate 3 MB on private pool.",
        "Invalid buffer size: 12.00 GB",
    };
    for (const char *line : lines) {
        try {
            TORCH_CHECK(false, line);
        } catch (...) {
            ck_status(mt_torch_exception(), MT_EDEVMEM);
        }
        ck_assert_str_eq(mt_last_error(), line);
    }
}

SUITE("shim_mps")

#else

int main() {
    printf("SKIP: shim_mps: MPS itself is here\n");
    return EXIT_SUCCESS;
}

#endif
