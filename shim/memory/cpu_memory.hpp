/*
 * cpu_memory.hpp - the budgeted allocator of CPU tensors.
 *
 * Counts bytes of tensors in the whole process, refuses what exceeds the budget, and tells one sink a
 * thread of its allocations. Installed once and never taken back,
 * since buffers of oneDNN are freed by the allocator that is current. What each function promises
 * about threads: counters are the process's, refusals and sink the calling thread's.
 */
#ifndef MEMTRAIN_SHIM_CPU_MEMORY_HPP
#define MEMTRAIN_SHIM_CPU_MEMORY_HPP

#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>

#include <memtrain/backend.h>

namespace memtrain::shim::sim {
class Card;
}

namespace memtrain::shim::cpu {

class Arena;

/* Puts the allocator in place; before the first tensor. */
void install();
bool installed() noexcept;

/* Bytes of tensors, without the 64 bytes before each. */
size_t allocated() noexcept;

/* Whether a tensor's memory is of libtorch's own allocator, from before this one was installed: it is never counted. */
bool is_uncounted(const c10::DataPtr &data) noexcept;

/* One line in the log for so many bytes of that kind; none for 0. */
void warn_of_uncounted(const char *whose, size_t bytes) noexcept;

/* Highest allocated() since reset_peak(); never above the budget of its time. */
size_t peak() noexcept;
void reset_peak() noexcept;

/* So many bytes in use are no tensors, from now on. */
void hold(size_t bytes) noexcept;

/* And so many more, or less, that this library has beside tensors. */
void hold_more(ptrdiff_t bytes) noexcept;

/* So many more, if the budget has room for them, or nothing is enforced. Else refuse_held() throws as for a tensor. */
bool hold_if_room(size_t bytes) noexcept;
[[noreturn]] void refuse_held(size_t bytes);

/* The same for one call: the second mark lets a chunk be measured inside a longer stretch. */
size_t call_peak() noexcept;
void reset_call_peak() noexcept;

/*
 * Memory of the host beside the budget, for std::free; never NULL. It is refused as a tensor's is, by the
 * system or injected.
 */
void *take_beside(size_t bytes);

/* In bytes. 0 for the default: what the host has, and what this process holds of it already. */
void set_budget(size_t bytes) noexcept;
size_t budget() noexcept;

/* In bytes of the whole process; 0: none. Takes effect now and at each follow_host(). */
void set_resident_limit(size_t bytes) noexcept;
size_t resident_limit() noexcept;

/* What will be resident at most where tensors take so many bytes, some of which they take now. */
size_t resident_for(size_t tensor_bytes) noexcept;

/* Gives the free pages of the heap back to the system; some milliseconds. */
void trim_heap() noexcept;
/* on: pages that were freed stay, whatever asks for them, also those of large blocks. Off: as before, and they go. */
void keep_all_pages(bool on) noexcept;

/* Bytes of tensors that do not lie in an arena. */
size_t outside_arenas() noexcept;

/*
 * Whether arenas may touch so many bytes more, beside tensors outside of them, where resident bytes have a limit;
 * 0: whether these leave room for what was counted last. Pages that no tensor needs are given back first: those of
 * arenas where no chunk runs, and then the heap's.
 */
bool make_room(size_t bytes) noexcept;

/*
 * Brings the budget up to date with a resident limit, and the default with what the host has now: at most
 * five times a second, and where it has changed by a tenth; in a control group that binds at once where it
 * has become less. Where others than tensors seem to have grown by a tenth of the room, the heap's free pages are
 * given back first. Called between chunks, never within one.
 */
void follow_host();

/* Resident bytes of the process, now and at most so far; 0 where /proc has no figure. */
size_t resident_bytes() noexcept;
size_t peak_resident_bytes() noexcept;

/* Requests refused on the calling thread: over budget, by the system, or injected. */
struct Refusals {
    uint64_t count;
    size_t bytes;  /* size of the last one */
    size_t in_use; /* allocated() when it was refused */
};
Refusals refusals() noexcept;

/*
 * Of a chunk or an update: what was refused on the calling thread since then. CUDA counts its refusals and does not tell
 * their bytes. Told without bytes they would pass for requests within the budget, of which nothing is to be learnt, so they
 * are not told.
 */
template <class Result> void add_evidence(const Refusals &before, Result &result) noexcept {
    Refusals now = refusals();
    result.refused = now.count - before.count;
    if (!result.refused) return;
    result.refused_bytes = now.bytes;
    result.refused_in_use_bytes = now.in_use;
}

/* Requests of the calling thread that were refused, those by a simulated card too, which leaves no evidence. */
uint64_t refused_requests() noexcept;

/* Events of the calling thread; NULL stops them. *sink is copied. */
void set_sink(const mt_event_sink *sink) noexcept;

/*
 * The simulated card against which tensors of the calling thread count beside the budget; NULL: none,
 * which costs nothing. See sim::OnCard.
 */
void set_card(sim::Card *card) noexcept;
sim::Card *card() noexcept;

/*
 * The arena that serves the requests of the calling thread; NULL: the heap. Returns the one before. See
 * Planned.
 */
Arena *set_arena(Arena *arena) noexcept;

} // namespace memtrain::shim::cpu
#endif
