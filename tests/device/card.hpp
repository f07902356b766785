/*
 * card.hpp - a test device: a card of the type that CARD names (CUDA, XPU, MPS or PrivateUse1, the accelerators of others), registered under libtorch's own key for it
 * in a process whose libtorch has no part for that type.
 *
 * So the shim, the suites and the programs run their code for cards, unmodified, on any Linux machine. What a card does that
 * the simulated ones of memtrain/sim.h do not: its memory cannot be touched by the host; what kernels write and copies bring is
 * there when it is waited for; the backward pass runs on a thread of its own; random numbers are its own. Behind its allocator is
 * the model of memtrain/sim.h. Kernels are the CPU's, over the same memory by another address. Each card has streams of its own.
 *
 * memory.cpp has the memory, counted.cpp which requests count, queue.cpp streams, events and the clock, operators.cpp
 * the kernels, card.cpp the rest of what libtorch asks of a device.
 */
#ifndef MEMTRAIN_TESTS_CARD_HPP
#define MEMTRAIN_TESTS_CARD_HPP

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memtrain/sim.h>

#define MT_CARD_ITSELF
#include "card.h"

namespace card {

#define CARD_TYPE_OF(name) c10::DeviceType::name
#define CARD_KEY_OF(name) c10::DispatchKey::name
#define CARD_AUTOGRAD_OF(name) Autograd##name
#define CARD_AUTOGRAD(name) CARD_AUTOGRAD_OF(name)
#define CARD_TYPE(name) CARD_TYPE_OF(name)
#define CARD_KEY(name) CARD_KEY_OF(name)

constexpr c10::DeviceType type = CARD_TYPE(CARD);
constexpr c10::DispatchKey key = CARD_KEY(CARD);
constexpr bool is_mps = type == c10::DeviceType::MPS, is_xpu = type == c10::DeviceType::XPU;
constexpr bool is_cuda = type == c10::DeviceType::CUDA,
               is_other = type == c10::DeviceType::PrivateUse1;
constexpr int most_cards = 4;

/* MT_TEST_CARDS of the environment, or 1. */
int count();

/* Each card has streams of its own. */
struct Stream {
    c10::DeviceIndex card = 0;
    c10::StreamId id = 0; /* 0: the default one */
};
inline bool operator==(const Stream &a, const Stream &b) {
    return a.card == b.card && a.id == b.id;
}
inline bool operator<(const Stream &a, const Stream &b) {
    return a.card != b.card ? a.card < b.card : a.id < b.id;
}

/* The card that the calling thread is on, and its stream of that card, or of any. */
c10::DeviceIndex current();
Stream current_stream();
Stream current_stream(c10::DeviceIndex card);
c10::DeviceIndex exchange(c10::DeviceIndex index);

inline Stream of(const c10::Stream &stream) {
    return {stream.device_index(), stream.id()};
}

struct Counters {
    std::atomic<uint64_t> kernels{0}, waits{0}, event_waits{0}, to_card{0}, to_host{0}, requests{0},
        questions{0}, detours{0}, pinned_clears{0};
    std::atomic<size_t> work_space{0}, kept_work_space{0};
    std::atomic<bool> broken{false}, ignores{false}, lacks_bfloat16{false}, lacks_doubles{false},
        lets_race{false}, in_use{false};
};
extern Counters counters;

/* ---- memory.cpp ---- */

/* Memory of the host that a card can copy from while the host goes on. */
at::HostAllocator &pinned_memory();
bool is_pinned(const void *address);
size_t pinned_bytes();

/* Of all cards: tensors come from it. */
c10::DeviceAllocator &allocator();

/* Where kernels see what tensors have at a place that the host may not touch. NULL for NULL. */
void *seen_at(const void *address);
c10::DeviceIndex index_of(const void *address);

mt_sim_stats stats(c10::DeviceIndex index);
/* Of a card that its allocator may reserve at most: 1 is all of CUDA's, on MPS of the recommended working set. */
double share(c10::DeviceIndex index);
void set_share(c10::DeviceIndex index, double share);
void empty_cache();

/* A library's own request: refused, it throws nothing. */
void try_work_space(size_t bytes);

/*
 * The current stream is about to read memory of a card, or to write to it. It has to be after what wrote there last, and a writer
 * after what has read there since.
 */
void touch(const void *address, bool writes);

/* A stream other than the one that the memory was asked for on uses it: given back, it is kept until that stream is through. */
void use_on(const void *address, Stream stream);

/* ---- counted.cpp ---- */

/*
 * While one is there the thread's requests for memory of the host neither count for mt_inject_oom nor fail, and no budget knows of
 * them: on a real card kernels ask the host for nothing.
 */
class Uncounted {
public:
    Uncounted();
    ~Uncounted();
    Uncounted(const Uncounted &) = delete;
    Uncounted &operator=(const Uncounted &) = delete;

private:
    std::optional<c10::DebugInfoGuard> hidden_;
};

/* Those that it makes while this one is there do, as before: a kernel asks the card for memory of its results. */
class Counted {
public:
    Counted();
    ~Counted();
    Counted(const Counted &) = delete;
    Counted &operator=(const Counted &) = delete;

private:
    std::shared_ptr<c10::ThreadLocalDebugInfo> now_;
};

/* ---- queue.cpp ---- */

/* Done when the current stream goes on, at the latest. */
void later(std::function<void()> work);

/* Before a kernel of the current stream. Failure where the card is broken. */
void start();

/* How much a stream was given so far, and whether so much is done. */
uint64_t given_to(Stream stream);
bool has_done(Stream stream, uint64_t work);

/* The host waits for all streams of a card, or for one. */
void wait(c10::DeviceIndex card);
void wait(Stream stream);

/* What libtorch's guard is asked to do with events; one that was never recorded is over. */
struct Event {
    Stream stream;
    uint64_t work = 0, time = 0; /* what the stream was given, and when it has done it */
};
void record(void **event, Stream stream);
void destroy(void *event);
void block(void *event, Stream stream);
bool is_over(void *event);
void wait_for(void *event);
bool is_idle(Stream stream);

/* An operation of a stream, the last one so far; whether a stream is after a point. */
struct Point {
    Stream stream;
    uint64_t operation = 0;
};
Point point_of(Stream stream);
bool is_after(Stream stream, const Point &point);
void check_order(const Point &written);

/* Done when the host has waited for that. */
void when_waited_for(const Point &point, std::function<void()> copy);

/* What the stream is given from now on comes after what the other one was given so far. */
void follow(Stream stream, Stream other);

/*
 * What the current stream did last reads memory of the host, which has to stay as it is until the host knows that the stream is
 * through with it. If it did not, whoever waits then is told so. What is given back, or the card itself writes to, is read no more.
 */
void still_read(const void *begin, size_t bytes);
void no_longer_read(const void *begin, size_t bytes);

/* What the current stream is given takes its time. */
void charge_kernel();
void charge_copy(bool to_card, size_t bytes);

/* ---- card.cpp ---- */

/* Of the card: a seed, and an offset that each kernel moves on. */
const at::Generator &generator(c10::DeviceIndex index);

/* Numbers for one kernel. */
uint64_t next_numbers();

} // namespace card
#endif
