/* sim_memory.cpp - the simulated cards: one model each, and the interfaces of CUDA and MPS over it. */
#include "sim_memory.hpp"

#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "cpu_memory.hpp"
#include "device.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace sim {
namespace {

/* What libtorch_cuda's allocator tells and does, as far as device_memory.cpp asks. */
class CudaAllocator final : public compat::DeviceAllocator {
public:
    explicit CudaAllocator(Card &card) : card_(card) {}
    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t) override { card_.empty_cache(); }
    void recordStream(const c10::DataPtr &, c10::Stream) override {}
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex) override { card_.reset_peak(); }
    compat::DeviceStats getDeviceStats(c10::DeviceIndex) override { return as_told(card_.stats()); }
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
        mt_sim_stats now = card_.stats();
        return {now.free_bytes, now.total_bytes};
    }

    /* Tensors come from the CPU's allocator, which asks the card itself. */
    c10::DataPtr allocate(size_t) override {
        fail(MT_ENOTSUP, "%s allocates nothing", card_.name());
    }
    void copy_data(void *to, const void *from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }

private:
    Card &card_;
};

/* libtorch's MPS backend, likewise. There is no counter of peaks here, and none on a Mac. */
class MpsHooks final : public at::MPSHooksInterface {
public:
    explicit MpsHooks(Card &card) : card_(card) {}
    bool hasMPS() const override { return true; }
    void deviceSynchronize() const override {}
    void emptyCache() const override { card_.empty_cache(); }
    size_t getCurrentAllocatedMemory() const override { return card_.stats().allocated_bytes; }
    size_t getDriverAllocatedMemory() const override {
        mt_sim_stats now = card_.stats();
        return now.reserved_bytes + now.others_bytes;
    }
    size_t getRecommendedMaxMemory() const override { return card_.stats().recommended_bytes; }
    void setMemoryFraction(double ratio) const override { card_.set_ratio(ratio); }

private:
    Card &card_;
};

mt_sim *new_model(mt_sim_flavour flavour, const mt_sim_options *options) {
    mt_sim_options own = MT_SIM_OPTIONS_INIT;
    mt_sim *model = nullptr;
    if (options) std::memcpy(&own, options, std::min(options->size, sizeof own));
    own.size = sizeof own;
    own.flavour = flavour;
    check(mt_sim_new(&own, &model));
    return model;
}

/* Under the card's lock. */
mt_sim_stats read_stats(const mt_sim *model) {
    mt_sim_stats now = {};
    now.size = sizeof now;
    check(mt_sim_read_stats(model, &now));
    return now;
}

} // namespace

Card::Card(mt_sim_flavour flavour) : flavour_(flavour), model_(new_model(flavour, nullptr)) {
    if (is_mps())
        mps_ = std::make_unique<MpsHooks>(*this);
    else
        cuda_ = std::make_unique<CudaAllocator>(*this);
}

/* One lock for both, so that no tensor comes in between, which the new card would know nothing of. */
void Card::replace(const char *function, const mt_sim_options *options) {
    std::unique_ptr<mt_sim, decltype(&mt_sim_free)> model(new_model(flavour_, options),
                                                          &mt_sim_free);
    std::lock_guard<std::mutex> lock(mutex_);
    if (read_stats(model_).allocations)
        fail(MT_ESTATE, "%s: there are tensors on %s", function, name());
    mt_sim_free(model_);
    model_ = model.release();
}

/* The words are in the error line. */
void Card::throw_refusal() const {
    std::string words = mt_last_error();
    TORCH_CHECK_WITH(OutOfMemoryError, is_mps(), words);
    TORCH_CHECK(false, words);
}

Place Card::take(size_t bytes) {
    mt_sim_block block = {};
    mutex_.lock();
    mt_status status = mt_sim_alloc(model_, bytes, &block);
    mutex_.unlock();
    if (status == MT_EDEVMEM) throw_refusal();
    if (status != MT_OK) throw std::bad_alloc();
    return {block.address, block.bytes};
}

void Card::refuse(size_t bytes) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        mt_sim_refuse(model_, bytes);
    }
    throw_refusal();
}

void Card::give_back(const Place &place) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    (void)!mt_sim_release(model_, place.address);
}

mt_sim_stats Card::stats() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return read_stats(model_);
}

void Card::set_ratio(double ratio) {
    std::lock_guard<std::mutex> lock(mutex_);
    check(mt_sim_set_ratio(model_, ratio));
}

void Card::set_others(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    check(mt_sim_set_others(model_, bytes));
}

void Card::reset_peak() {
    std::lock_guard<std::mutex> lock(mutex_);
    check(mt_sim_reset_peak(model_));
}

void Card::empty_cache() {
    std::lock_guard<std::mutex> lock(mutex_);
    check(mt_sim_empty_cache(model_, nullptr));
}

/* Never destroyed: tensors may be freed by destructors of static objects. */
template <mt_sim_flavour flavour> Card *only_card() {
    static Card *const card = new Card(flavour);
    return card;
}

Card *card_of(const char *name) {
    if (std::strcmp(name, "sim") == 0 || std::strcmp(name, "sim:cuda") == 0)
        return only_card<MT_SIM_CUDA>();
    return std::strcmp(name, "sim:mps") == 0 ? only_card<MT_SIM_MPS>() : nullptr;
}

OnCard::OnCard(Card *card) noexcept : before_(cpu::card()) {
    if (card) cpu::set_card(card);
}

OnCard::~OnCard() {
    cpu::set_card(before_);
}

} // namespace sim

Memory Device::memory() const {
    if (card) return card->is_mps() ? Memory::mps : Memory::allocator;
    if (is_cpu()) return Memory::cpu;
    if (is_mps()) return Memory::mps;
    return compat::device_allocator(type()) ? Memory::allocator : Memory::none;
}

/*
 * Metal computes without doubles, and so do some of Intel's cards. Newer versions of libtorch ask XPU and MPS for the types that they
 * have, and CUDA not even in 2.15. So a number is converted: on MPS there is no such tensor, on XPU no such kernel. What has another
 * cause, a full card or a lost one, is thrown and says nothing of doubles.
 */
static bool converts_to_doubles(c10::Device device) {
    at::Tensor number = at::zeros({1}, at::device(device).dtype(at::kFloat));
    try {
        (void)number.to(at::kDouble);
    } catch (const std::exception &error) {
        if (is_of_card(error)) throw;
        return false;
    }
    return true;
}

bool Device::has_doubles() const {
    if (card) return !card->is_mps();
    if (is_cpu()) return true;
    constexpr int indices = std::numeric_limits<c10::DeviceIndex>::max() + 1;
    static std::atomic<signed char> known[c10::COMPILE_TIME_MAX_DEVICE_TYPES]
                                         [indices]; /* 1: no, 2: yes */
    auto &answer = known[static_cast<int>(type())][where.has_index() ? index() : 0];
    if (!answer) answer = converts_to_doubles(where) ? 2 : 1;
    return answer == 2;
}

std::string Device::name() const {
    if (card) return card->name();
    return is_mps() ? "mps" : where.str();
}

} // namespace memtrain::shim
