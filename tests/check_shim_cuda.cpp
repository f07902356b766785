/*
 * check_shim_cuda.cpp - what is read and set of CUDA's memory through libtorch's generic interface,
 * with hooks and an allocator of our own in their place. libtorch's CUDA part is not loaded, so no
 * model is trained here, and a card that is there is left alone.
 */
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>
#include <locale>

#include "check_shim.hpp"
#include "common/locales.h"

using namespace check_shim;

namespace {

constexpr size_t MiB = size_t{1} << 20;

/* A card of 1000 MiB, of which others hold 200. */
struct Card {
    int64_t allocated = 0, peak = 0, reserved = 0, retries = 0, ooms = 0;
    int inits = 0;
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
        TORCH_CHECK(index < 2, "Invalid device argument");
        stats.allocated_bytes[0].current = card.allocated;
        stats.allocated_bytes[0].peak = card.peak;
        stats.reserved_bytes[0].current = card.reserved;
        stats.num_alloc_retries = card.retries;
        stats.num_ooms = card.ooms;
        return stats;
    }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex) override { card.peak = card.allocated; }
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
        return {800 * MiB - static_cast<size_t>(card.reserved), 1000 * MiB};
    }
};

void init(void) {
    static FakeAllocator allocator;
    mt_torch_init_options options = MT_TORCH_INIT_OPTIONS_INIT;
    options.cuda = 0;
    ck_ok(mt_torch_init(&options));
    c10::SetAllocator(c10::kCUDA, &allocator, 255);
}

mt_memory memory_of(const char *device) {
    mt_memory memory = {};
    memory.size = sizeof memory;
    ck_ok(mt_device_memory(device, &memory));
    return memory;
}

} // namespace

namespace at {

struct FakeCUDAHooks : CUDAHooksInterface {
    explicit FakeCUDAHooks(CUDAHooksArgs) {}
    void init() const override { card.inits++; }
    bool hasCUDA() const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 2; }
};

/* The key "CUDAHooks" is the one that libtorch asks for. */
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeCUDAHooks)

} // namespace at

START_TEST(presence) {
    ck_ok(mt_device_check("cuda"));
    ck_ok(mt_device_check("cuda:1"));
    ck_assert_int_eq(card.inits, 0);
    ck_status(mt_device_check("cuda:2"), MT_ENOTSUP);
    ck_assert_str_eq(mt_last_error(), "mt_device_check: there are 2 CUDA devices");
}
END_TEST

START_TEST(figures) {
    card.allocated = static_cast<int64_t>(100 * MiB);
    card.peak = static_cast<int64_t>(150 * MiB);
    card.reserved = static_cast<int64_t>(300 * MiB);
    card.retries = 4;
    mt_memory memory = memory_of("cuda:0");
    ck_assert_uint_eq(memory.allocated_bytes, 100 * MiB);
    ck_assert_uint_eq(memory.peak_bytes, 150 * MiB);
    ck_assert_uint_eq(memory.reserved_bytes, 300 * MiB);
    ck_assert_uint_eq(memory.free_bytes, 500 * MiB);
    ck_assert_uint_eq(memory.budget_bytes, 760 * MiB); /* 0.95 of what is free and our own */
    ck_assert_uint_eq(memory.alloc_retries, 4);
    ck_ok(mt_device_reset_peak("cuda:0"));
    ck_assert_uint_eq(memory_of("cuda").peak_bytes, 100 * MiB);
}
END_TEST

/*
 * The allocator's own limit is a share of the whole card, and is read when CUDA is initialised;
 * all other settings stay. A later budget is only told.
 */
START_TEST(budget) {
    using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
    c10::CachingAllocator::setAllocatorSettings(
        "roundup_power2_divisions:[256:4,512:2,>:8],max_split_size_mb:64,"
        "max_non_split_rounding_mb:64,"
        "per_process_memory_fraction:0.9,garbage_collection_threshold:0.8");
    ck_ok(mt_device_set_budget("cuda:0", 250 * MiB));
    std::string settings = c10::CachingAllocator::getAllocatorSettings();
    ck_contains(settings.c_str(), "per_process_memory_fraction:0.250000");
    ck_assert_uint_eq(Config::max_split_size(), 64 * MiB);
    ck_assert_double_eq(Config::garbage_collection_threshold(), 0.8);
    ck_assert_uint_eq(Config::max_non_split_rounding_size(), 64 * MiB);
    ck_assert_uint_eq(Config::roundup_power2_divisions(128 * MiB), 4);
    ck_assert_uint_eq(Config::roundup_power2_divisions(512 * MiB), 2);
    ck_assert_uint_eq(Config::roundup_power2_divisions(4096 * MiB), 8);
    ck_ok(mt_device_set_budget("cuda:0", 5000 * MiB));
    settings = c10::CachingAllocator::getAllocatorSettings();
    ck_contains(settings.c_str(), "per_process_memory_fraction:1.000000");
    ck_assert_ptr_null(std::strstr(settings.c_str(), "fraction:0."));
    ck_assert_uint_eq(Config::max_split_size(), 64 * MiB);
    ck_ok(mt_device_set_budget("cuda:0", 250 * MiB));
    ck_assert_uint_eq(memory_of("cuda:0").budget_bytes, 250 * MiB);
    ck_assert_uint_eq(memory_of("cuda:1").budget_bytes, 760 * MiB);
    ck_assert_int_eq(card.inits, 1);
    ck_ok(mt_device_set_budget("cuda:0", 300 * MiB));
    settings = c10::CachingAllocator::getAllocatorSettings();
    ck_contains(settings.c_str(), "per_process_memory_fraction:0.250000");
    ck_assert_uint_eq(memory_of("cuda:0").budget_bytes, 300 * MiB);
    ck_ok(mt_device_set_budget("cuda:0", 0));
    ck_assert_uint_eq(memory_of("cuda:0").budget_bytes, 760 * MiB);
}
END_TEST

/* The C library's locale and C++'s, which also has dots between thousands. */
START_TEST(budget_in_a_locale) {
    using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
    static const char *const locales[] = {LOCALE_COMMA, LOCALE_ARABIC};
    static double fraction;
    if (!locales_make("shim_cuda: budget_in_a_locale")) return;
    c10::CachingAllocator::setAllocatorSettings("garbage_collection_threshold:0.8,"
                                                "max_split_size_mb:12345");
    std::locale::global(std::locale(locales[_i])); /* setlocale too */
    ck_assert(std::to_string(0.5) != "0.500000");
    /* As CUDA's own part reads it. */
    auto parse = [](const std::string &settings) {
        fraction = std::stod(settings.substr(settings.find("fraction:") + 9));
    };
    Config::registerDeviceConfigParserHook(parse, {"per_process_memory_fraction"});
    ck_ok(mt_device_set_budget("cuda:0", 250 * MiB));
    ck_assert_double_eq(Config::garbage_collection_threshold(), 0.8);
    ck_assert_uint_eq(Config::max_split_size(), 12345 * MiB);
    ck_assert_double_eq(fraction, 0.25);
    ck_assert(std::to_string(0.5) != "0.500000"); /* the program's own is back */
    locales_remove();
}
END_TEST

START_TEST(cache) {
    mt_clear_result result = {};
    result.size = sizeof result;
    card.allocated = static_cast<int64_t>(100 * MiB);
    card.reserved = static_cast<int64_t>(300 * MiB);
    ck_ok(mt_empty_cache("cuda", &result));
    ck_assert_uint_eq(result.released_bytes, 200 * MiB);
}
END_TEST

int main() {
    Suite *suite = suite_create("shim_cuda");
    TCase *cases = suite_case(suite, "generic");
    tcase_add_checked_fixture(cases, init, nullptr);
    tcase_add_test(cases, presence);
    tcase_add_test(cases, figures);
    tcase_add_test(cases, budget);
    tcase_add_loop_test(cases, budget_in_a_locale, 0, 2);
    tcase_add_test(cases, cache);
    return suite_run(suite);
}
