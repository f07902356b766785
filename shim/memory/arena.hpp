/*
 * arena.hpp - planned memory: the tensors of a chunk on the CPU, each where a layout has put it.
 *
 * A chunk of one kind and size makes the same requests in the same order every time. The first chunks
 * are recorded (memtrain/arena.h makes layouts of any size from two); from then on requests are matched
 * against the plan in their order and served from one mapping, without malloc and without page faults.
 *
 * What departs from the plan is a guest: a request of another size, one whose place overlaps a tensor that
 * is still alive, since somebody kept it, and every one of a chunk without a plan. A few go to the heap;
 * those of a chunk that is not as planned lie where the mapping is free at that moment. Where that repeats,
 * the chunk is recorded anew, and a place whose tensors outlive their chunks is left to the heap.
 *
 * An arena belongs to one mt_torch and is used by one thread at a time; requests of other threads never
 * meet it. Tensors may be released on any thread, also after the mt_torch.
 */
#ifndef MEMTRAIN_SHIM_ARENA_HPP
#define MEMTRAIN_SHIM_ARENA_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <memtrain/arena.h>

namespace memtrain::shim::cpu {

class Arena;
class Follower;
struct Plan;

/* What the requests of a chunk depend on beside its size. */
struct Kind {
    bool training, backward; /* backward: not without a weight */
    uint64_t segments;       /* which of them are computed again */
    int offload;             /* an MT_OFFLOAD_..., 0: off */
    uint64_t shape;          /* of a sample */
    int threads;
    int amp; /* mt_dtype of autocast */

    bool operator==(const Kind &other) const {
        return training == other.training && backward == other.backward &&
               segments == other.segments && offload == other.offload && shape == other.shape &&
               threads == other.threads && amp == other.amp;
    }
};

/* The place of one request of a plan. */
struct Place {
    Arena *arena;
    Plan *plan;
    size_t bytes;  /* as they are requested */
    size_t offset; /* of the block, its header first */
    size_t room;   /* of the block, rounded up */
    uint32_t before,
        before_end; /* in Plan::before: places that it overlaps and that come before it */
    uint64_t busy;  /* window in which it is not to be served */
    unsigned kept;  /* times that its tensor outlived its chunk */
    bool on_heap;   /* it has no place */
    std::atomic<bool> alive;
};

/* An address range that grows in place; pages are there when they are touched. */
class Mapping {
public:
    ~Mapping();
    Mapping() = default;
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;

    /* Whether so many bytes can be used now. */
    bool reserve(size_t bytes) noexcept;
    char *base() const { return base_; }
    size_t bytes() const { return bytes_; }

    /* Gives the pages between two offsets back; their contents are lost. */
    void drop_pages(size_t from, size_t top) noexcept;

private:
    char *start_ = nullptr, *base_ = nullptr;
    size_t range_ = 0, bytes_ = 0;
};

struct ArenaStats {
    size_t bytes = 0;       /* of the mapping in use, the largest plan's */
    size_t lower_bound = 0; /* of that plan: the most bytes alive at a time */
    size_t plans = 0;
    uint64_t windows = 0, recorded = 0; /* chunks, and those that were recorded */
    uint64_t served = 0, missed = 0;    /* requests of planned chunks, by their plan or not */
    uint64_t guests = 0; /* that no plan had a place for, and that were served all the same */
};

class Arena {
public:
    static Arena *open() { return new Arena; }

    /* The owner lets go; tensors in it keep it until the last of them is released. */
    void close() noexcept;

    /* A chunk begins on this thread. Never throws: without host memory the heap serves. */
    void begin(const Kind &kind, size_t samples, bool apart) noexcept;

    /* It has ended after so many seconds; 0: it failed, and nothing is learnt. */
    void end(double seconds) noexcept;

    /* Memory for so many bytes behind a header of header_bytes, and its place; NULL: take the heap's. */
    char *serve(size_t bytes, Place **place) noexcept;
    static void release(Place *place) noexcept;

    /* On the owner's thread. */
    bool in_window() const { return in_window_; }

    /* The recording that requests of this chunk go to, or NULL. */
    mt_recording *recording() const { return recording_; }

    ArenaStats stats() const;

    /* Bytes of all arenas that chunks have used since pages were given back; they are resident. */
    static size_t touched_bytes() noexcept;

    /* Gives the pages of all arenas back in which no tensor lies; not while a chunk runs there. */
    static void drop_all_pages() noexcept;

    static constexpr size_t header_bytes = 64;

private:
    struct Family;
    Arena();
    ~Arena();
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;

    void release_reference() noexcept;
    Family &family_of(const Kind &kind);
    Plan *find_plan(const Kind &kind, size_t samples, bool apart);
    std::unique_ptr<Plan> new_plan(const Kind &kind, size_t samples, bool apart, size_t count);
    Plan *make_plan(Family &family, size_t samples, bool apart);
    void start_recording(Family &family, size_t samples);
    void take_recording(double seconds) noexcept;
    void replace(Plan &plan, const mt_recording *recording);
    void retire_size(const Kind &kind, size_t samples);
    void retire(Plan *plan);
    void mark_busy();
    std::vector<mt_block> find_kept() const;
    void drop_free_pages() noexcept;
    bool touches_too_much() const noexcept;
    void plan_around_kept();
    void adopt_search(Plan &plan);
    void search(Plan &plan, double seconds);
    void judge(Plan &plan);
    bool is_free(size_t index);
    bool departs(const Plan &plan) const;
    bool is_known() const;
    bool misses_too_much() const;
    bool is_given_up() const;
    Place *find_planned(size_t bytes, bool *to_heap);
    Place *make_guest(size_t bytes);
    Place *guest_place();
    size_t find_gap(size_t from, size_t room) const;
    void track();
    void hold(const Place *place);
    bool may_touch(const Place &place) noexcept;
    void set_touched(size_t bytes) noexcept;

    std::atomic<size_t> references_{1}; /* the owner's, and one a tensor */
    mutable std::mutex mutex_;          /* of the next one, against drop_all_pages() */
    bool in_window_ = false;
    std::atomic<size_t> touched_{0}; /* see touched_bytes() */
    Mapping mapping_;
    std::vector<std::unique_ptr<Family>> families_;
    std::vector<std::unique_ptr<Plan>> plans_, retired_;
    ArenaStats stats_;

    /* of this window */
    Plan *plan_ = nullptr;
    Family *recorded_family_ = nullptr;
    mt_recording *recording_ = nullptr;
    uint64_t window_ = 0;
    std::unique_ptr<Follower> follower_;
    size_t next_ = 0;               /* after the place that was found last */
    size_t found_ = 0, missed_ = 0; /* requests that have a place, and such without, or not free */
    size_t top_ = 0, taken_ = 0;    /* of what was served: where it ends, and its sum */
    size_t touched_before_ = 0;     /* touched_ when the window began */
    size_t in_the_way_ = 0;         /* of these, places on which tensors of earlier chunks lay */
    bool keeps_many_ = false;       /* of earlier chunks, too many for guests to join */
    bool skipped_ = false;          /* a place was not served though its turn had come */
    bool tracks_ = false;           /* something was skipped, or has no plan; from then on: */
    std::vector<const Place *> held_; /* what is alive in the mapping, by offset */
    std::unique_ptr<Plan> guests_;    /* places of requests that no plan knows of */
};

struct CloseArena {
    void operator()(Arena *arena) const noexcept { arena->close(); }
};

/*
 * A chunk on this thread, served by an arena (NULL: by the heap) as long as the object lives. A chunk that
 * is run from within another one of the same arena is served by the heap.
 */
class Planned {
public:
    Planned(Arena *arena, const Kind &kind, size_t samples, bool apart) noexcept;
    ~Planned();
    Planned(const Planned &) = delete;
    Planned &operator=(const Planned &) = delete;

    /* It went through, in so many seconds. */
    void done(double seconds) { seconds_ = seconds; }

private:
    Arena *arena_, *before_;
    double seconds_ = 0;
};

} // namespace memtrain::shim::cpu
#endif
