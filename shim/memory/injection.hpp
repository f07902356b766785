/*
 * injection.hpp - requests for memory that are counted, and refused on demand: mt_inject_oom. The host's allocator asks before
 * each request. An allocator of a card is libtorch's own, so it is reached from outside. Then it also tells of a refusal in a
 * way that no library takes for something to go on from.
 *
 * A count belongs to the thread that asked for it. libtorch takes it along to its threads for the backward pass, which count on.
 */
#ifndef MEMTRAIN_SHIM_INJECTION_HPP
#define MEMTRAIN_SHIM_INJECTION_HPP

#include <cstdint>

#include <optional>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "device.hpp"

namespace memtrain::shim::injection {

/* Refuses the nth request from now on, or with persistent that one and all later ones; 0: counts alone. */
void arm(uint64_t nth, bool persistent);

/* Since arm(). Either may be NULL. */
void read(uint64_t *out_requests, uint64_t *out_refused) noexcept;

/* Counts a request of this thread; whether it is to be refused. */
bool is_refused() noexcept;

/*
 * From now on requests to allocators of this one's class count too. One that is to be refused asks for more than there can be,
 * so the refusal is the allocator's own: its words, its counters, its emptied cache. False where that cannot be done.
 */
bool reach(c10::Allocator &allocator) noexcept;

/*
 * As long as it lives, a request that CUDA's allocator refuses ends what this thread computes, and libtorch's threads for it.
 *
 * cuDNN's convolutions catch a c10::OutOfMemoryError over their work space. They empty the cache, take the next engine, and keep
 * it for all later convolutions of that shape on that thread (aten/src/ATen/native/cudnn/Conv_v8.cpp, try_configs). The chunk
 * goes through, and from then on the same chunks have other bits. So a refusal is thrown as a plain c10::Error. It does nothing
 * where the program has unset deterministicCuDNN or set benchmarkCuDNN, and where reach() cannot reach the allocator.
 */
class RefusalsEnd {
public:
    explicit RefusalsEnd(const Device &device);

private:
    std::optional<c10::DebugInfoGuard> guard_;
};

/* The allocators of all cards, and of their pinned memory (device_memory.cpp). On a Mac none of them. */
void reach_cards();

} // namespace memtrain::shim::injection
#endif
