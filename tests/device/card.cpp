/* card.cpp - what libtorch asks of a device beside memory and kernels: hooks, a guard, streams, random numbers. */
#include "card.hpp"

#include <cstring>
#include <mutex>

#include <dlfcn.h>

#include <torch/version.h>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#ifdef CARD_IS_MPS
#include <ATen/detail/MPSHooksInterface.h>
#elif defined(CARD_IS_XPU)
#include <ATen/detail/XPUHooksInterface.h>
#elif defined(CARD_IS_OTHER)
#include <ATen/detail/PrivateUse1HooksInterface.h>
#endif
#include <c10/core/Allocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace card {

Counters counters;

namespace {
thread_local c10::DeviceIndex on = 0;
thread_local c10::StreamId streams[most_cards] = {};

constexpr c10::StreamId most_streams = 32; /* in the pool, as CUDA's has */
} // namespace

c10::DeviceIndex current() {
    return on;
}

Stream current_stream() {
    return current_stream(on);
}

Stream current_stream(c10::DeviceIndex card) {
    return {card, streams[card]};
}

c10::DeviceIndex exchange(c10::DeviceIndex index) {
    TORCH_CHECK(index < count(), "CUDA error: invalid device ordinal");
    return std::exchange(on, index < 0 ? on : index);
}

namespace {

class Guard final : public c10::impl::DeviceGuardImplInterface {
public:
    Guard() = default;
    explicit Guard(c10::DeviceType) {}
    c10::DeviceType type() const override { return card::type; }
    c10::Device exchangeDevice(c10::Device device) const override {
        return {card::type, exchange(device.index())};
    }
    c10::Device getDevice() const override { return {card::type, current()}; }
    void setDevice(c10::Device device) const override { exchange(device.index()); }
    void uncheckedSetDevice(c10::Device device) const noexcept override { on = device.index(); }
    c10::Stream getStream(c10::Device device) const override {
        return stream_of(device, streams[index_of(device)]);
    }
    c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
        static std::atomic<c10::StreamId> next{0};
        return stream_of(device, 1 + next++ % most_streams);
    }
    c10::Stream getNewStream(c10::Device device, int) const override {
        return getStreamFromGlobalPool(device, false);
    }
    c10::Stream exchangeStream(c10::Stream next) const override {
        return stream_of(next.device(), std::exchange(streams[index_of(next.device())], next.id()));
    }
    void destroyEvent(void *event, c10::DeviceIndex) const noexcept override { destroy(event); }
    /* An event is of the card that it was recorded on first, as CUDA's. */
    void record(void **event, const c10::Stream &on_it, c10::DeviceIndex index,
                c10::EventFlag) const override {
        TORCH_CHECK(index == -1 || index == on_it.device_index(), "Event device index ",
                    static_cast<int>(index), " does not match recording stream's device index ",
                    static_cast<int>(on_it.device_index()), ".");
        card::record(event, of(on_it));
    }
    void block(void *event, const c10::Stream &other) const override {
        card::block(event, of(other));
    }
    bool queryEvent(void *event) const override { return is_over(event); }
    c10::DeviceIndex deviceCount() const noexcept override {
        return static_cast<c10::DeviceIndex>(count());
    }
    bool queryStream(const c10::Stream &other) const override { return is_idle(of(other)); }
    void synchronizeStream(const c10::Stream &other) const override { wait(of(other)); }
    void synchronizeEvent(void *event) const override { wait_for(event); }
    void synchronizeDevice(c10::DeviceIndex index) const override {
        wait(index < 0 ? current() : index);
    }
    void recordDataPtrOnStream(const c10::DataPtr &data, const c10::Stream &other) const override {
        use_on(data.get(), of(other));
    }

private:
    static c10::DeviceIndex index_of(c10::Device device) {
        return device.has_index() ? device.index() : current();
    }
    static c10::Stream stream_of(c10::Device device, c10::StreamId id) {
        return c10::Stream(c10::Stream::UNSAFE, c10::Device(card::type, index_of(device)), id);
    }
};

C10_REGISTER_GUARD_IMPL(CARD, Guard)

/* ---- random numbers ---- */

/* As CUDA's: the state is a seed and an offset, which is a multiple of 4. MPS has more in it. */
class Generator final : public c10::GeneratorImpl {
public:
    explicit Generator(c10::DeviceIndex index)
        : GeneratorImpl(c10::Device(card::type, index), c10::DispatchKeySet(card::key)) {}
    void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
    void set_offset(uint64_t offset) override {
        TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
        state_.offset = offset;
    }
    uint64_t get_offset() const override { return state_.offset; }
    uint64_t current_seed() const override { return state_.seed; }
    uint64_t seed() override {
        set_current_seed(c10::detail::getNonDeterministicRandom());
        return state_.seed;
    }
    void set_state(const c10::TensorImpl &state) override {
        std::memcpy(&state_, state.data(), sizeof state_);
    }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
        constexpr int64_t bytes = sizeof state_ + (is_mps ? 20 : 0);
        at::Tensor state = at::detail::empty_cpu({bytes}, c10::kByte, {}, {}, {}, {});
        std::memset(state.mutable_data_ptr(), 0, bytes);
        std::memcpy(state.mutable_data_ptr(), &state_, sizeof state_);
        return state.getIntrusivePtr();
    }
    static c10::DeviceType device_type() { return card::type; }

    uint64_t next() {
        uint64_t numbers = state_.seed * 1000003 + state_.offset;
        state_.offset += 4;
        return numbers;
    }

private:
    Generator *clone_impl() const override {
        auto *copy = new Generator(device().index());
        copy->state_ = state_;
        return copy;
    }
    struct {
        uint64_t seed = c10::default_rng_seed_val, offset = 0;
    } state_;
};

} // namespace

const at::Generator &generator(c10::DeviceIndex index) {
    static auto *const all = [] {
        auto *list = new std::vector<at::Generator>;
        for (int i = 0; i < most_cards; i++)
            list->push_back(at::make_generator<Generator>(static_cast<c10::DeviceIndex>(i)));
        return list;
    }();
    return all->at(static_cast<size_t>(index < 0 ? current() : index));
}

uint64_t next_numbers() {
    return generator(current()).get<Generator>()->next();
}

} // namespace card

/* ---- hooks ---- */

namespace at {
namespace {

#ifdef CARD_IS_MPS
struct CardHooks final : MPSHooksInterface {
    CardHooks() = default; /* from libtorch 2.15 on */
    explicit CardHooks(MPSHooksArgs) {}
    bool hasMPS() const override { return true; }
    bool isOnMacOSorNewer(unsigned, unsigned) const override { return true; }
    void deviceSynchronize() const override { card::wait(0); }
    void emptyCache() const override { card::empty_cache(); }
    size_t getCurrentAllocatedMemory() const override { return card::stats(0).allocated_bytes; }
    size_t getDriverAllocatedMemory() const override { return card::stats(0).reserved_bytes; }
    size_t getRecommendedMaxMemory() const override { return card::stats(0).recommended_bytes; }
    void setMemoryFraction(double share) const override { card::set_share(0, share); }
    Allocator *getMPSDeviceAllocator() const override { return &card::allocator(); }
#elif defined(CARD_IS_XPU)
struct CardHooks final : XPUHooksInterface {
    CardHooks() = default; /* from libtorch 2.15 on */
    explicit CardHooks(XPUHooksArgs) {}
    bool hasXPU() const override { return true; }
    int32_t getGlobalIdxFromDevice(const Device &device) const override { return device.index(); }
    DeviceIndex getNumGPUs() const override { return static_cast<DeviceIndex>(card::count()); }
    DeviceIndex current_device() const override { return card::current(); }
    void deviceSynchronize(DeviceIndex index) const override { card::wait(index); }
#elif defined(CARD_IS_OTHER)
struct CardHooks final : PrivateUse1HooksInterface {
    DeviceIndex getCurrentDevice() const override { return card::current(); }
#else
struct CardHooks final : CUDAHooksInterface {
    explicit CardHooks(CUDAHooksArgs) {}
    bool hasCUDA() const override { return true; }
    DeviceIndex current_device() const override { return card::current(); }
#endif
    void init() const override {
        card::counters.in_use = true;
    }
    bool isBuilt() const override {
        return true;
    }
    bool isAvailable() const override {
        return true;
    }
    bool hasPrimaryContext(DeviceIndex) const override {
        return card::counters.in_use;
    }
    DeviceIndex deviceCount() const override {
        return static_cast<DeviceIndex>(card::count());
    }
    const Generator &getDefaultGenerator(DeviceIndex index) const override {
        return card::generator(index);
    }
    Generator getNewGenerator(DeviceIndex index) const override {
        return make_generator<card::Generator>(index < 0 ? card::current() : index);
    }
    Device getDeviceFromPtr(void *address) const override {
        return {card::type, card::index_of(address)};
    }
    bool isPinnedPtr(const void *address) const override {
        return card::is_pinned(address);
    }
    Allocator *getPinnedMemoryAllocator() const override {
        return &card::pinned_memory();
    }
};

#ifdef CARD_IS_MPS
C10_REGISTER_CLASS(MPSHooksRegistry, MPSHooks, CardHooks)
#elif defined(CARD_IS_XPU)
C10_REGISTER_CLASS(XPUHooksRegistry, XPUHooks, CardHooks)
#elif defined(CARD_IS_OTHER)
const bool is_registered = [] {
    static CardHooks hooks;
    c10::register_privateuse1_backend("custom");
    RegisterPrivateUse1HooksInterface(&hooks);
    return true;
}();
#endif

/* A Python's torch may bring libtorch's part for CUDA along, which has its hooks there. libtorch has one kind of card at a time. */
#if defined(CARD_IS_MPS) || defined(CARD_IS_XPU) || defined(CARD_IS_OTHER)
struct NoCuda final : CUDAHooksInterface {
    explicit NoCuda(CUDAHooksArgs) {}
};
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, NoCuda)
#else
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, CardHooks)
#endif

struct Installed {
    Installed() {
        c10::SetAllocator(card::type, &card::allocator(), 255);
        at::setHostAllocator(card::type, &card::pinned_memory(), 255);
    }
} installed;

} // namespace
} // namespace at

/* ---- for tests ---- */

/* For who looks into the file before it is loaded (python/tests/test_devices.py). */
extern "C" MT_CARD_FUNCTION const char mt_card_built_for[];
const char mt_card_built_for[] = "test device for torch " TORCH_VERSION;

extern "C" void mt_card_read(mt_card_counters *out) {
    const card::Counters &now = card::counters;
    *out = {now.kernels,   now.waits,       now.to_card, now.to_host,       now.requests,
            now.questions, now.event_waits, now.detours, now.pinned_clears, card::pinned_bytes()};
}

extern "C" void mt_card_break(int broken) {
    card::counters.broken = broken != 0;
}

extern "C" void mt_card_lack_bfloat16(int lacks) {
    card::counters.lacks_bfloat16 = lacks != 0;
}

extern "C" void mt_card_lack_doubles(int lacks) {
    card::counters.lacks_doubles = lacks != 0;
}

extern "C" void mt_card_let_race(int lets) {
    card::counters.lets_race = lets != 0;
}

extern "C" void mt_card_ignore(int ignores) {
    card::counters.ignores = ignores != 0;
}

extern "C" void mt_card_use_work_space(size_t bytes) {
    card::counters.work_space = bytes;
}

extern "C" void mt_card_keep_work_spaces(size_t bytes) {
    card::counters.kept_work_space = bytes;
}

/* A machine with a driver has a real card, whose part of libtorch must not come into this process. */
extern "C" MT_CARD_FUNCTION void *dlopen(const char *name, int mode) {
    using Open = void *(*)(const char *, int);
    static const auto real = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "dlopen"));
    for (const char *driver : {"libcuda.so", "libze_loader.so", "libze_intel_gpu.so"})
        if (name && std::strncmp(name, driver, std::strlen(driver)) == 0) return nullptr;
    return real(name, mode);
}
