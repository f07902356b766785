/*
 * check_shim_cuda.cpp - what is read and set of CUDA's memory through libtorch's generic interface,
 * with hooks and an allocator of our own in their place. libtorch's CUDA part is not loaded, so no
 * model is trained here, and a card that is there is left alone.
 */
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#if __has_include(<cuda_runtime_api.h>) && __has_include(<crt/host_defines.h>)
#define HAS_CUDA_HEADERS
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <cstring>

#include <dlfcn.h>

#include <ATen/ops/empty.h>
#include <memtrain/tensor.h>

#include "check_shim.hpp"
#include "compat.hpp"

using namespace check_shim;

namespace {

constexpr size_t MiB = size_t{1} << 20;

/* A card of 1000 MiB, of which others hold 200. */
struct Card {
    int64_t allocated = 0, peak = 0, reserved = 0, retries = 0, ooms = 0;
    int inits = 0;
    double fraction[2] = {1.0, 1.0};
};

Card card;

struct FakeAllocator final : memtrain::shim::compat::CudaAllocator {
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
    virtual std::pair<size_t, size_t> getMemoryInfo(
        c10::DeviceIndex) { /* libtorch 2.9 has none to override */
        return {800 * MiB - static_cast<size_t>(card.reserved), 1000 * MiB};
    }
    void *raw_alloc(size_t) override { return nullptr; }
    void *raw_alloc_with_stream(size_t, void *) override { return nullptr; }
    void raw_delete(void *) override {}
    void init(int) override {}
    double getMemoryFraction(c10::DeviceIndex index) override { return card.fraction[index]; }
    void setMemoryFraction(double fraction, c10::DeviceIndex index) override {
        card.fraction[index] = fraction;
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

TEST("generic", presence) {
    ck_ok(mt_device_check("cuda"));
    ck_ok(mt_device_check("cuda:1"));
    size_t count = 0;
    ck_ok(mt_device_count("cuda", &count));
    ck_assert_uint_eq(count, 2);
    ck_status(mt_device_count("cuda:1", &count), MT_EINVAL);
    ck_assert_int_eq(card.inits, 0);
    ck_status(mt_device_check("cuda:2"), MT_ENOTSUP);
    ck_assert_str_eq(mt_last_error(),
                     "mt_device_check: there are 2 CUDA devices; accepted: cpu, cuda:0, cuda:1");
}

TEST("generic", figures) {
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

/* The allocator's own limit is a share of the card, whenever it is set, and each card has one. */
TEST("generic", budget) {
    (void)memory_of("cuda:0"); /* in use */
    ck_ok(mt_device_set_budget("cuda:0", 250 * MiB));
    ck_assert_double_eq(card.fraction[0], 0.25);
    ck_assert_double_eq(card.fraction[1], 1.0);
    ck_assert_uint_eq(memory_of("cuda:0").budget_bytes, 250 * MiB);
    ck_assert_uint_eq(memory_of("cuda:1").budget_bytes, 760 * MiB);
    ck_ok(mt_device_set_budget("cuda:1", 500 * MiB));
    ck_ok(mt_device_set_budget("cuda:0", 5000 * MiB));
    ck_assert_double_eq(card.fraction[0], 1.0);
    ck_assert_double_eq(card.fraction[1], 0.5);
    ck_ok(mt_device_set_budget("cuda:0", 0));
    ck_assert_double_eq(card.fraction[0], 1.0);
    ck_assert_uint_eq(memory_of("cuda:0").budget_bytes, 760 * MiB);
    ck_assert_int_gt(card.inits, 0);
}

/* A tensor without memory is no card's: asking about it leaves CUDA alone. */
TEST("generic", tensor_of_no_device) {
    mt_tensor_info info = MT_TENSOR_INFO_INIT;
    memtrain::detail::Handle handle(at::empty({2, 3}, at::device(at::kMeta)));
    ck_ok(mt_tensor_describe(handle.get(), &info));
    ck_assert_str_eq(info.device, "meta");
    mt_tensor *copy = nullptr;
    ck_status(mt_tensor_copy(handle.get(), "cpu", MT_DTYPE_NONE, &copy), MT_ETORCH);
    ck_assert_int_eq(card.inits, 0);
    float number = 1;
    int64_t shape = 1;
    mt_tensor_memory memory = MT_TENSOR_MEMORY_INIT;
    memory.data = &number;
    memory.dtype = MT_FLOAT32;
    memory.dims = 1;
    memory.shape = &shape;
    memory.device = "meta";
    ck_refused(mt_tensor_wrap(&memory, &copy), MT_ENOTSUP, "nothing is trained on 'meta'");
    ck_assert_int_eq(card.inits, 0);
}

/* Where CUDA's own header can be read, the functions that are called of its allocator are where it has them. */
TEST("generic", header) {
#ifdef HAS_CUDA_HEADERS
    using Real = c10::cuda::CUDACachingAllocator::CUDAAllocator;
    using Ours = memtrain::shim::compat::CudaAllocator;
    auto place = [](auto function) {
        ptrdiff_t parts[2] = {0,
                              0}; /* as the C++ ABI of Itanium has pointers to virtual functions */
        static_assert(sizeof function == sizeof parts, "another ABI");
        std::memcpy(parts, &function, sizeof parts);
        return parts[0];
    };
    ck_assert_int_eq(place(&Ours::setMemoryFraction), place(&Real::setMemoryFraction));
    ck_assert_int_eq(place(&Ours::getMemoryFraction), place(&Real::getMemoryFraction));
    ck_assert_int_eq(place(&Ours::raw_alloc), place(&Real::raw_alloc));
#else
    suite_skip("shim_cuda: header", "CUDA's headers are not there");
#endif
}

/* CUDA's own allocator, which loads without a driver: its limit is what is asked for, and it says that it knows no such card. */
TEST("generic", real_allocator) {
    void *library = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        suite_skip("shim_cuda: real_allocator", dlerror());
        return;
    }
    /* c10::cuda::CUDACachingAllocator::allocator, an atomic pointer */
    auto **real = static_cast<c10::DeviceAllocator **>(
        dlsym(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
    ck_assert_ptr_nonnull(real);
    ck_assert_ptr_nonnull(*real);
    auto words_of = [&](double fraction) {
        try {
            memtrain::shim::compat::set_memory_fraction(**real, c10::Device(c10::kCUDA, 0),
                                                        fraction);
        } catch (const c10::Error &error) {
            return std::string(error.what_without_backtrace());
        }
        return std::string();
    };
    ck_contains(words_of(0.25).c_str(), "Allocator not initialized for device");
}

TEST("generic", cache) {
    mt_clear_result result = {};
    result.size = sizeof result;
    card.allocated = static_cast<int64_t>(100 * MiB);
    card.reserved = static_cast<int64_t>(300 * MiB);
    ck_ok(mt_empty_cache("cuda", &result));
    ck_assert_uint_eq(result.released_bytes, 200 * MiB);
}

int main() {
    tcase_add_checked_fixture(suite_case_named("generic"), init, nullptr);
    return suite_run_named("shim_cuda");
}
