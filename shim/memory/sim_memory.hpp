/*
 * sim_memory.hpp - the devices "sim:cuda" and "sim:mps": tensors on the CPU, memory on a model card
 * (memtrain/sim.h).
 *
 * Tensors count against a card when they are made on a thread where it is in use (OnCard): inside the
 * calls of an mt_torch on that device, as device tensors are. Whatever the host makes outside of them,
 * batches and models before mt_torch_new, counts against the CPU alone. A tensor is given back to its
 * card whenever and on whichever thread it dies. The CPU's own budget holds beside the card.
 *
 * A card shows itself through the interfaces that libtorch's CUDA and MPS have for the real ones, so
 * that device_memory.cpp does with it what it does with those.
 */
#ifndef MEMTRAIN_SHIM_SIM_MEMORY_HPP
#define MEMTRAIN_SHIM_SIM_MEMORY_HPP

#include <memory>
#include <mutex>

#include <ATen/detail/MPSHooksInterface.h>

#include <memtrain/sim.h>

#include "compat.hpp"

namespace memtrain::shim::sim {

/* What an allocator of libtorch's tells of such a card. */
inline compat::DeviceStats as_told(const mt_sim_stats &now) {
    compat::DeviceStats stats;
    stats.allocated_bytes[0].current = static_cast<int64_t>(now.allocated_bytes);
    stats.allocated_bytes[0].peak = static_cast<int64_t>(now.peak_allocated_bytes);
    stats.reserved_bytes[0].current = static_cast<int64_t>(now.reserved_bytes);
    stats.reserved_bytes[0].peak = static_cast<int64_t>(now.peak_reserved_bytes);
    stats.num_alloc_retries = static_cast<int64_t>(now.alloc_retries);
    stats.num_ooms = static_cast<int64_t>(now.ooms);
    return stats;
}

/* A tensor's block: the address on the card, and the bytes that it takes there. */
struct Place {
    uint64_t address;
    size_t bytes;
};

/* One card of each flavour, for the life of the process. Any thread. */
class Card {
public:
    explicit Card(mt_sim_flavour flavour);
    Card(const Card &) = delete;
    Card &operator=(const Card &) = delete;

    bool is_mps() const { return flavour_ == MT_SIM_MPS; }
    const char *name() const { return is_mps() ? "sim:mps" : "sim:cuda"; }

    /* Another card in its place; NULL: the default one. Failure (MT_ESTATE) while tensors lie on it. */
    void replace(const char *function, const mt_sim_options *options);

    /* Throws what libtorch throws on such a device: typed for CUDA, plain for MPS. */
    Place take(size_t bytes);
    [[noreturn]] void refuse(size_t bytes);
    void give_back(const Place &place) noexcept;

    mt_sim_stats stats() const;
    void set_ratio(double ratio);
    void set_others(size_t bytes);
    void reset_peak();
    void empty_cache();

    /* The interface of the flavour; not to be asked for the other one's. */
    c10::DeviceAllocator &cuda() const { return *cuda_; }
    const at::MPSHooksInterface &mps() const { return *mps_; }

private:
    [[noreturn]] void throw_refusal() const;

    const mt_sim_flavour flavour_;
    mutable std::mutex mutex_;
    mt_sim *model_ = nullptr;
    std::unique_ptr<c10::DeviceAllocator> cuda_;
    std::unique_ptr<at::MPSHooksInterface> mps_;
};

/* The card behind "sim", "sim:cuda" or "sim:mps"; NULL for every other name. */
Card *card_of(const char *name);

/* Tensors made on this thread count against the card while the object lives. NULL: as before. */
class OnCard {
public:
    explicit OnCard(Card *card) noexcept;
    ~OnCard();
    OnCard(const OnCard &) = delete;
    OnCard &operator=(const OnCard &) = delete;

private:
    Card *before_;
};

} // namespace memtrain::shim::sim
#endif
