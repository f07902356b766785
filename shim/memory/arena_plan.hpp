/*
 * arena_plan.hpp - what the parts of an arena share: plans and what is known of a kind of chunk. Windows are
 * in arena.cpp, plans in arena_plan.cpp, requests in arena_serve.cpp, pages in arena_mapping.cpp.
 */
#ifndef MEMTRAIN_SHIM_ARENA_PLAN_HPP
#define MEMTRAIN_SHIM_ARENA_PLAN_HPP

#include <chrono>
#include <map>

#include "arena.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace memtrain::shim::cpu {

constexpr size_t alignment = 64;
constexpr size_t departed_share =
    50; /* more than a fiftieth of a plan's requests is too much to depart */

inline size_t rounded(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

inline void poison([[maybe_unused]] void *data, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(data, bytes);
#endif
}

inline void unpoison([[maybe_unused]] void *data, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(data, bytes);
#endif
}

/* Whether the address lies in any of all arenas' mappings. Any thread. */
bool lies_in_mapping(const void *data) noexcept;

struct RecordingDeleter {
    void operator()(mt_recording *recording) const { mt_recording_free(recording); }
};
using Recording = std::unique_ptr<mt_recording, RecordingDeleter>;

struct SearchDeleter {
    void operator()(mt_arena_search *search) const { mt_arena_search_free(search); }
};

struct Plan {
    Kind kind;
    size_t samples;
    bool apart;
    std::vector<mt_block> blocks; /* tensors that stay, and places that are not on the heap */
    size_t fixed = 0;             /* of them stay */
    unsigned patience = 2;        /* so many of the following, before it is made anew */
    unsigned busy = 0; /* windows in a row in which tensors of earlier ones were in the way */
    std::unique_ptr<Place[]> places;
    size_t count = 0;
    std::vector<size_t> sizes; /* of their requests */
    bool merged = false;       /* of several sequences, of which each chunk makes a part */
    bool proved = false;       /* a chunk has kept to it */
    std::vector<uint32_t> before;
    mt_layout layout = MT_LAYOUT_INIT;
    std::atomic<size_t> alive{0};
    uint8_t bad = 0; /* of the last windows those in which too much departed, the last one 1 */
    unsigned to_record = 0; /* so many windows more, until one departs */
    std::unique_ptr<mt_arena_search, SearchDeleter> search;
    double chunk_seconds = 0;           /* of one that was recorded */
    double credit = 0, try_seconds = 0; /* time the search may take, and what the last try took */
    unsigned tries = 0;
};

/* The requests of a size that were recorded since chunks departed from a plan. */
struct Own {
    unsigned retries = 0;
    bool merged = false;
    std::vector<mt_block> blocks[2]; /* by whether gradients are apart */
};

/* What is known of a kind of chunk. */
struct Arena::Family {
    Kind kind;
    std::vector<Recording> recordings;
    double seconds = 0; /* of the one that was recorded last */
    std::map<size_t, Own> own;
};

/* Calls f(place) for each place of a plan whose tensor is alive. */
template <class F> void for_alive(const Plan &plan, F &&f) {
    for (size_t i = 0; plan.alive && i < plan.count; i++)
        if (plan.places[i].alive.load(std::memory_order_acquire)) f(plan.places[i]);
}

inline bool overlap(const Place &a, const Place &b) {
    return a.offset < b.offset + b.room && b.offset < a.offset + a.room;
}

/* The requests of one recording, or of so many samples from two. */
mt_status blocks_of(const mt_recording *small, const mt_recording *large, size_t samples,
                    bool apart, std::vector<mt_block> &out);

/* The blocks of m samples: from its own recording, or from the two that are nearest. */
bool find_blocks(const std::vector<Recording> &recordings, size_t samples, bool apart,
                 std::vector<mt_block> &out);

} // namespace memtrain::shim::cpu
#endif
