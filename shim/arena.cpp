/* arena.cpp - recordings become plans, plans serve requests. */
#include "arena.hpp"

#include <algorithm>
#include <chrono>
#include <map>

#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "cpu_memory.hpp"
#include "follow.hpp"
#include "guard.hpp"

namespace memtrain::shim::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t alignment = 64;
constexpr size_t huge_page = size_t(2) << 20;
constexpr size_t huge_from = 16 * huge_page; /* the last page of a smaller arena is much of it */
constexpr size_t departed_share =
    50;                              /* more than a fiftieth of a plan's requests is too much ... */
constexpr size_t merged_share = 10;  /* ... a tenth where it is of several sequences */
constexpr size_t hopeless = 16;      /* requests in a row that the plan has no place for */
constexpr size_t guest_bytes = 4096; /* what no plan knows of and is smaller goes to the heap */
constexpr size_t guests_a_list = 512;
constexpr int bad_windows = 2;       /* among the last eight, before one is recorded anew ... */
constexpr unsigned to_record = 32;   /* ... of so many, if it departs ... */
constexpr unsigned most_retries = 4; /* ... as often as this */
constexpr size_t most_merged = 4;    /* times the requests of a chunk that a merged plan may have */
constexpr size_t most_own = 64;      /* sizes of a kind that were recorded anew; the smallest go */
constexpr unsigned kept_times = 2; /* tensors that outlive their chunk, before the heap has them */
constexpr size_t most_recordings = 6;              /* of a kind; the oldest go */
constexpr size_t most_kinds = 32, most_plans = 64; /* the oldest go */
constexpr double search_share = 0.002;             /* of the time */
constexpr unsigned most_tries = 3000;
constexpr double warm_share = 0.1;       /* of the time of a chunk, once a plan */
constexpr size_t warm_tries = 150;       /* a block, at most ... */
constexpr size_t warm_slice = 2000;      /* ... so many at a time */
constexpr double worth_searching = 1.02; /* over the lower bound: a tight layout is colder ... */
constexpr double tight = 1.003;          /* ... and wanted where resident bytes are limited */
constexpr size_t worth_adopting = 100;   /* a hundredth less, since what is adopted is cold */

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

size_t rounded(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

void poison([[maybe_unused]] void *data, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(data, bytes);
#endif
}

void unpoison([[maybe_unused]] void *data, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(data, bytes);
#endif
}

struct RecordingDeleter {
    void operator()(mt_recording *recording) const { mt_recording_free(recording); }
};
using Recording = std::unique_ptr<mt_recording, RecordingDeleter>;

struct SearchDeleter {
    void operator()(mt_arena_search *search) const { mt_arena_search_free(search); }
};

/* All arenas, for drop_all_pages(). */
std::mutex arenas_mutex;
std::vector<Arena *> &arenas() {
    static auto *all = new std::vector<Arena *>;
    return *all;
}

} // namespace

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

/* ---- the mapping --------------------------------------------------------------------------------- */

Mapping::~Mapping() {
    if (start_) munmap(start_, range_);
}

/* Addresses for all the memory there is cost nothing; under a limit of addresses less will do. */
bool Mapping::reserve(size_t bytes) noexcept {
    long pages = sysconf(_SC_PHYS_PAGES);
    size_t wanted = static_cast<size_t>(std::max(pages, 1L)) * static_cast<size_t>(getpagesize());
    bytes = rounded(bytes, huge_page);
    for (size_t range = std::max(wanted, bytes); !start_ && range >= bytes; range /= 2) {
        void *start = mmap(nullptr, range + huge_page, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) continue;
        start_ = static_cast<char *>(start);
        range_ = range + huge_page;
        base_ = reinterpret_cast<char *>(rounded(reinterpret_cast<size_t>(start), huge_page));
    }
    if (bytes <= bytes_) return true;
    if (!start_ || bytes > range_ - huge_page) return false;
    if (mprotect(base_ + bytes_, bytes - bytes_, PROT_READ | PROT_WRITE)) return false;
#ifdef MADV_HUGEPAGE
    if (bytes >= huge_from) (void)madvise(base_, bytes, MADV_HUGEPAGE);
#endif
    poison(base_ + bytes_, bytes - bytes_);
    bytes_ = bytes;
    return true;
}

void Mapping::drop_pages(size_t from, size_t top) noexcept {
    size_t page = static_cast<size_t>(getpagesize());
    from = rounded(from, page);
    top = std::min(top, bytes_) / page * page;
    if (from < top) (void)madvise(base_ + from, top - from, MADV_DONTNEED);
}

/* ---- plans ---------------------------------------------------------------------------------------- */

namespace {

/* Writes the offsets of the blocks into the places. */
void take_offsets(Plan &plan) {
    size_t block = plan.fixed;
    for (size_t i = 0; i < plan.count; i++)
        if (!plan.places[i].on_heap) plan.places[i].offset = plan.blocks[block++].offset;
}

/*
 * For each place those that had its bytes last: when they are released, so is all that was there before.
 */
void find_before(Plan &plan) {
    struct Piece {
        size_t top;
        uint32_t owner;
    };
    std::map<size_t, Piece> pieces; /* by where they begin */
    plan.before.clear();
    for (uint32_t i = 0; i < plan.count; i++) {
        Place &place = plan.places[i];
        size_t from = place.offset, top = place.offset + place.room;
        place.before = place.before_end = static_cast<uint32_t>(plan.before.size());
        if (place.on_heap) continue;
        auto piece = pieces.upper_bound(from);
        if (piece != pieces.begin()) --piece;
        while (piece != pieces.end() && piece->first < top) {
            auto [start, rest] = *piece;
            if (rest.top <= from) {
                ++piece;
                continue;
            }
            plan.before.push_back(rest.owner);
            piece = pieces.erase(piece);
            if (start < from) pieces[start] = {from, rest.owner};
            if (rest.top > top) piece = pieces.emplace(top, Piece{rest.top, rest.owner}).first;
        }
        pieces[from] = {top, i};
        place.before_end = static_cast<uint32_t>(plan.before.size());
    }
}

/* For as long as it is cheap beside the chunks that will be the faster for it. */
void warm(Plan &plan) {
    auto start = Clock::now();
    size_t count = plan.blocks.size(), tries = 0;
    if (count == plan.fixed) return;
    uint64_t random = 0;
    double cold = 0;
    while (tries < warm_tries * count && seconds_since(start) < warm_share * plan.chunk_seconds) {
        tries += warm_slice;
        if (mt_arena_warm(plan.blocks.data(), count, plan.fixed, alignment, plan.layout.bytes,
                          warm_slice, &random, &cold) != MT_OK)
            return;
    }
}

/* Lays out the blocks of all places that are not on the heap, around those that stay. */
bool lay_out(Plan &plan, const std::vector<mt_block> &all, const std::vector<mt_block> &fixed) {
    plan.blocks = fixed;
    plan.fixed = fixed.size();
    for (size_t i = 0; i < plan.count; i++) {
        if (plan.places[i].on_heap) continue;
        mt_block block = all[i];
        block.bytes = plan.places[i].room;
        plan.blocks.push_back(block);
    }
    auto start = Clock::now();
    if (mt_arena_layout(plan.blocks.data(), plan.blocks.size(), plan.fixed, alignment,
                        &plan.layout) != MT_OK)
        return false;
    plan.try_seconds = seconds_since(start); /* beginning a search lays out once more */
    warm(plan);
    take_offsets(plan);
    find_before(plan);
    return true;
}

mt_status blocks_of(const mt_recording *small, const mt_recording *large, size_t samples,
                    bool apart, std::vector<mt_block> &out) {
    size_t count = 0;
    mt_status status = mt_recording_blocks(small, large, samples, apart, nullptr, 0, &count);
    if (status != MT_OK) return status;
    out.resize(count);
    return mt_recording_blocks(small, large, samples, apart, out.data(), count, &count);
}

/* The blocks of m samples: from its own recording, or from the two that are nearest. */
bool find_blocks(const std::vector<Recording> &recordings, size_t samples, bool apart,
                 std::vector<mt_block> &out) {
    std::vector<std::pair<size_t, const mt_recording *>> near; /* by distance */
    for (const Recording &recording : recordings) {
        size_t m = mt_recording_samples(recording.get());
        if (m == samples) return blocks_of(recording.get(), nullptr, samples, apart, out) == MT_OK;
        near.emplace_back(m > samples ? m - samples : samples - m, recording.get());
    }
    if (near.size() < 2) return false;
    std::sort(near.begin(), near.end());
    const mt_recording *small = near[0].second, *large = near[1].second;
    if (mt_recording_samples(small) > mt_recording_samples(large)) std::swap(small, large);
    return blocks_of(small, large, samples, apart, out) == MT_OK;
}

/* Calls f(place) for each place of a plan whose tensor is alive. */
template <class F> void for_alive(const Plan &plan, F &&f) {
    for (size_t i = 0; plan.alive && i < plan.count; i++)
        if (plan.places[i].alive.load(std::memory_order_acquire)) f(plan.places[i]);
}

} // namespace

/* A plan whose places are still to be filled in. */
std::unique_ptr<Plan> Arena::new_plan(const Kind &kind, size_t samples, bool apart, size_t count) {
    auto plan = std::make_unique<Plan>();
    plan->kind = kind;
    plan->samples = samples;
    plan->apart = apart;
    plan->count = count;
    plan->sizes.resize(count);
    plan->places = std::make_unique<Place[]>(count);
    for (size_t i = 0; i < count; i++) {
        plan->places[i].arena = this;
        plan->places[i].plan = plan.get();
    }
    return plan;
}

/* What is alive now, for plans to lie around. */
std::vector<mt_block> Arena::find_kept() const {
    std::vector<mt_block> blocks;
    auto add = [&](const Plan &plan) {
        for_alive(plan, [&](const Place &place) {
            blocks.push_back({place.room, 0, SIZE_MAX, place.offset});
        });
    };
    for (auto &plan : plans_) add(*plan);
    for (auto &plan : retired_) add(*plan);
    if (guests_) add(*guests_);
    return blocks;
}

Plan *Arena::make_plan(Family &family, size_t samples, bool apart) {
    std::vector<mt_block> blocks;
    auto own = family.own.find(samples);
    if (own != family.own.end())
        blocks = own->second.blocks[apart];
    else if (!find_blocks(family.recordings, samples, apart, blocks))
        return nullptr;
    auto plan = new_plan(family.kind, samples, apart, blocks.size());
    plan->chunk_seconds = family.seconds;
    plan->merged = own != family.own.end() && own->second.merged;
    for (size_t i = 0; i < plan->count; i++) {
        plan->places[i].bytes = blocks[i].bytes;
        plan->places[i].room = rounded(blocks[i].bytes + header_bytes, alignment);
        plan->sizes[i] = blocks[i].bytes;
    }
    if (!lay_out(*plan, blocks, find_kept()) || !mapping_.reserve(plan->layout.bytes))
        return nullptr;
    if (plans_.size() == most_plans) retire(plans_.front().get());
    plans_.push_back(std::move(plan));
    return plans_.back().get();
}

Arena::Family &Arena::family_of(const Kind &kind) {
    for (auto &family : families_)
        if (family->kind == kind) return *family;
    if (families_.size() == most_kinds) families_.erase(families_.begin());
    families_.push_back(std::make_unique<Family>());
    families_.back()->kind = kind;
    return *families_.back();
}

Plan *Arena::find_plan(const Kind &kind, size_t samples, bool apart) {
    for (auto &plan : plans_)
        if (plan->kind == kind && plan->samples == samples && plan->apart == apart)
            return plan.get();
    return nullptr;
}

/* All plans of a size, whose blocks are not those any more. */
void Arena::retire_size(const Kind &kind, size_t samples) {
    for (size_t i = plans_.size(); i-- > 0;)
        if (plans_[i]->kind == kind && plans_[i]->samples == samples) retire(plans_[i].get());
}

/* It stays until its last tensor is gone. */
void Arena::retire(Plan *plan) {
    for (size_t i = 0; i < plans_.size(); i++) {
        if (plans_[i].get() != plan) continue;
        retired_.push_back(std::move(plans_[i]));
        plans_.erase(plans_.begin() + static_cast<ptrdiff_t>(i));
        return;
    }
}

/* ---- tensors that are kept ------------------------------------------------------------------------- */

namespace {

bool overlap(const Place &a, const Place &b) {
    return a.offset < b.offset + b.room && b.offset < a.offset + a.room;
}

} // namespace

/* Tensors of earlier chunks are alive: places that overlap them are not served in this window. */
void Arena::mark_busy() {
    bool some = false;
    auto mark = [&](const Place &old) {
        for (size_t i = 0; i < plan_->count; i++) {
            Place &place = plan_->places[i];
            if (place.on_heap || !overlap(place, old)) continue;
            place.busy = window_;
            some = true;
        }
    };
    for (auto &plan : plans_) for_alive(*plan, mark);
    for (auto &plan : retired_) for_alive(*plan, mark);
    if (guests_) for_alive(*guests_, mark);
    plan_->busy = some ? plan_->busy + 1 : 0;
}

/*
 * A plan anew where tensors outlive their chunks: those places are left to the heap from now on, and
 * the others lie around what is alive. It is made once more when nothing is alive any more.
 */
void Arena::plan_around_kept() {
    bool some = plan_->busy >= plan_->patience || (plan_->fixed && references_ == 1);
    for_alive(*plan_, [&](Place &place) { some |= ++place.kept == kept_times; });
    if (!some) return;
    std::vector<mt_block> blocks(plan_->count), fixed = find_kept();
    auto plan = new_plan(plan_->kind, plan_->samples, plan_->apart, plan_->count);
    plan->chunk_seconds = plan_->chunk_seconds;
    plan->patience = std::min(2 * plan_->patience, 1u << 16);
    plan->sizes = plan_->sizes;
    plan->merged = plan_->merged;
    plan->proved = plan_->proved;
    plan->bad = plan_->bad;
    plan->to_record = plan_->to_record;
    for (size_t i = 0, block = plan_->fixed; i < plan->count; i++) {
        const Place &old = plan_->places[i];
        Place &place = plan->places[i];
        if (!old.on_heap) blocks[i] = plan_->blocks[block++];
        place.bytes = old.bytes;
        place.room = old.room;
        place.kept = old.kept;
        place.on_heap = old.on_heap || old.kept >= kept_times;
    }
    if (!lay_out(*plan, blocks, fixed) || !mapping_.reserve(plan->layout.bytes)) return;
    retire(plan_);
    plans_.push_back(std::move(plan));
    plan_ = plans_.back().get();
}

/* ---- a smaller layout, by and by --------------------------------------------------------------------- */

namespace {

bool is_small_enough(const Plan &plan, size_t bytes) {
    double accepted = resident_limit() ? tight : worth_searching;
    return double(bytes) <= accepted * double(plan.layout.lower_bound_bytes);
}

} // namespace

void Arena::search(Plan &plan, double seconds) {
    if (plan.tries >= most_tries || plan.blocks.size() == plan.fixed) return;
    if (is_small_enough(plan, plan.layout.bytes)) return;
    plan.credit += search_share * seconds;
    if (plan.credit < plan.try_seconds) return;
    auto start = Clock::now();
    if (!plan.search) {
        mt_arena_search *search = nullptr;
        if (mt_arena_search_new(plan.blocks.data(), plan.blocks.size(), plan.fixed, alignment,
                                &search) != MT_OK)
            plan.tries = most_tries;
        plan.search.reset(search);
        plan.credit -= seconds_since(start);
        plan.try_seconds /= 10; /* there were ten orders */
        return;
    }
    while (plan.tries < most_tries && plan.credit >= plan.try_seconds) {
        start = Clock::now();
        (void)mt_arena_search_run(plan.search.get(), 1);
        plan.try_seconds = seconds_since(start);
        plan.credit -= plan.try_seconds;
        plan.tries++;
    }
}

/* Takes what the search has found, while no tensor lies where the old layout had it. */
void Arena::adopt_search(Plan &plan) {
    if (!plan.search || plan.alive) return;
    size_t found = mt_arena_search_run(plan.search.get(), 0), now = plan.layout.bytes;
    bool ended = plan.tries >= most_tries || is_small_enough(plan, found);
    if (!found || found >= now || (!ended && found > now - now / worth_adopting)) return;
    if (mt_arena_search_result(plan.search.get(), plan.blocks.data(), plan.blocks.size(),
                               &plan.layout) != MT_OK)
        return;
    warm(plan);
    take_offsets(plan);
    find_before(plan);
}

/* ---- a window ---------------------------------------------------------------------------------------- */

void Arena::start_recording(Family &family, size_t samples) {
    mt_recording *recording = nullptr;
    if (mt_recording_new(&recording) != MT_OK) return;
    if (mt_recording_start(recording, samples) != MT_OK) {
        mt_recording_free(recording);
        return;
    }
    recording_ = recording;
    recorded_family_ = &family;
}

/* Another one of the same size is older, and goes. */
void Arena::take_recording(double seconds) noexcept {
    Recording recording(recording_);
    Family &family = *recorded_family_;
    recording_ = nullptr;
    if (!mt_recording_allocations(recording.get())) return;
    family.seconds = seconds;
    (void)guard([&] {
        if (plan_) replace(*plan_, recording.get());
        size_t samples = mt_recording_samples(recording.get());
        auto &all = family.recordings;
        for (size_t i = 0; i < all.size(); i++)
            if (mt_recording_samples(all[i].get()) == samples)
                all.erase(all.begin() + static_cast<ptrdiff_t>(i));
        if (all.size() == most_recordings) all.erase(all.begin());
        all.push_back(std::move(recording));
        stats_.recorded++;
    });
}

/*
 * The blocks of a chunk that departed from the plan. Where others of late have not, or it is not the first
 * to do so, chunks go more than one way, and the next plan is of both.
 */
void Arena::replace(Plan &plan, const mt_recording *recording) {
    Family &family = *recorded_family_;
    bool takes_turns = (plan.bad & (plan.bad + 1)) || plan.merged;
    auto found = family.own.find(plan.samples);
    Own own, old = found == family.own.end() ? Own() : found->second;
    own.retries = old.retries + 1;
    for (bool apart : {false, true}) {
        std::vector<mt_block> &blocks = own.blocks[apart], &before = old.blocks[apart];
        check(blocks_of(recording, nullptr, plan.samples, apart, blocks));
        if (!takes_turns && !old.retries) continue;
        if (!old.retries && !find_blocks(family.recordings, plan.samples, apart, before)) continue;
        before = merge_blocks(before, blocks);
        own.merged = before.size() <= most_merged * blocks.size();
        if (own.merged) blocks = std::move(before);
    }
    if (family.own.size() == most_own && !old.retries) family.own.erase(family.own.begin());
    family.own[plan.samples] = std::move(own);
    retire_size(plan.kind, plan.samples);
}

void Arena::begin(const Kind &kind, size_t samples, bool apart) noexcept {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        in_window_ = true;
    }
    window_++;
    next_ = missed_ = found_ = in_the_way_ = top_ = taken_ = 0;
    skipped_ = tracks_ = false;
    held_.clear();
    plan_ = nullptr;
    mt_status status = guard([&] {
        if (guests_ && !guests_->alive) guests_->count = 0;
        retired_.erase(std::remove_if(retired_.begin(), retired_.end(),
                                      [](const auto &plan) { return !plan->alive; }),
                       retired_.end());
        Family &family = family_of(kind);
        plan_ = find_plan(kind, samples, apart);
        if (plan_) adopt_search(*plan_);
        if (plan_ && (plan_->alive || plan_->busy || plan_->fixed)) plan_around_kept();
        if (!plan_) plan_ = make_plan(family, samples, apart);
        if (!plan_ || plan_->to_record) start_recording(family, samples);
        if (plan_) follower_->begin(&plan_->sizes);
    });
    if (status != MT_OK && plan_) plan_->samples = 0; /* half made: it is never found again */
    if (status != MT_OK) plan_ = nullptr;
    if (plan_ && references_ > 1)
        mark_busy();
    else if (plan_)
        plan_->busy = 0;
    stats_.windows++;
}

/*
 * Whether too much departed from the plan: requests without a place, and places that nobody asked for,
 * unless each chunk makes a part of the plan alone.
 */
bool Arena::departs(const Plan &plan) const {
    if (plan.merged) return missed_ > plan.count / merged_share + 1;
    return missed_ + (plan.count - std::min(found_, plan.count)) > plan.count / departed_share + 1;
}

/*
 * Has a chunk that departs be recorded beside its plan, once several have: that is the next plan. What is
 * in the way would be in the way of that, too.
 */
void Arena::judge(Plan &plan) {
    bool departed = departs(plan);
    plan.bad = in_the_way_ ? 0 : static_cast<uint8_t>(plan.bad << 1 | departed);
    plan.proved |= !departed;
    stats_.missed += missed_;
    if (plan.to_record) {
        plan.to_record--;
        return;
    }
    const auto &own = family_of(plan.kind).own;
    auto found = own.find(plan.samples);
    bool may = found == own.end() || found->second.retries < most_retries;
    if (may && (plan.bad & 1) && __builtin_popcount(plan.bad) >= bad_windows)
        plan.to_record = to_record;
}

void Arena::end(double seconds) noexcept {
    if (plan_ && seconds > 0)
        (void)guard([&] {
            search(*plan_, seconds);
            judge(*plan_);
        });
    bool is_new = !plan_ || (plan_->bad & 1);
    if (recording_ && seconds > 0 && is_new) take_recording(seconds);
    mt_recording_free(recording_); /* of a chunk that failed, or that was as planned */
    recording_ = nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    touched_ = std::max(touched_, std::min(top_, touched_ + taken_)); /* a chunk may end early */
    plan_ = nullptr;
    in_window_ = false;
}

/*
 * Whether nothing lies where the place is. As long as every place before it was served in its turn, those
 * that had its bytes last speak for all others.
 */
bool Arena::is_free(size_t index) {
    const Place &place = plan_->places[index];
    if (place.busy == window_) return false;
    if (skipped_ || tracks_) track();
    if (tracks_)
        return std::none_of(held_.begin(), held_.end(),
                            [&](const Place *other) { return overlap(place, *other); });
    for (uint32_t i = place.before; i < place.before_end; i++)
        if (plan_->places[plan_->before[i]].alive.load(std::memory_order_acquire)) return false;
    return true;
}

/* Whether chunks have kept to the plan, or to the sequences that it is of. */
bool Arena::is_known() const {
    return plan_ && (plan_->proved || plan_->merged);
}

/* By now, without the places that nobody asked for. */
bool Arena::misses_too_much() const {
    return missed_ > plan_->count / departed_share + 1;
}

/*
 * Whether the rest of the chunk does without its plan: it departs from one that none has kept to yet, as
 * where a kernel changes with the size, so it will not find back to what never was.
 */
bool Arena::is_given_up() const {
    return !is_known() && misses_too_much();
}

/* What the plan has for a request, NULL if it cannot be served there. */
Place *Arena::find_planned(size_t bytes, bool *to_heap) {
    size_t index = is_given_up() ? Follower::none : follower_->next(bytes);
    if (index == Follower::none) {
        missed_++;
        return nullptr;
    }
    found_++;
    skipped_ |= index != next_;
    next_ = index + 1;
    Place &place = plan_->places[index];
    *to_heap = place.on_heap;
    if (place.on_heap) return nullptr;
    if (is_free(index)) return &place;
    in_the_way_ += place.busy == window_;
    skipped_ = true;
    missed_++;
    return nullptr;
}

/* ---- guests ------------------------------------------------------------------------------------------ */

/* Brings the list of what is alive up to date: the entries that stay do not overlap. */
void Arena::track() {
    auto hold_all = [this](const Plan &plan) {
        for_alive(plan, [this](const Place &place) { held_.push_back(&place); });
    };
    if (tracks_) {
        held_.erase(std::remove_if(held_.begin(), held_.end(),
                                   [](const Place *place) { return !place->alive; }),
                    held_.end());
        return;
    }
    held_.clear();
    for (const auto &plan : plans_) hold_all(*plan);
    for (const auto &plan : retired_) hold_all(*plan);
    if (guests_) hold_all(*guests_);
    std::sort(held_.begin(), held_.end(),
              [](const Place *a, const Place *b) { return a->offset < b->offset; });
    tracks_ = true;
}

void Arena::hold(const Place *place) {
    auto at =
        std::upper_bound(held_.begin(), held_.end(), place->offset,
                         [](size_t offset, const Place *other) { return offset < other->offset; });
    held_.insert(at, place);
}

/* The smallest gap from an offset on, or above all that is alive. */
size_t Arena::find_gap(size_t from, size_t room) const {
    size_t best = SIZE_MAX, offset = SIZE_MAX;
    for (const Place *place : held_) {
        if (place->offset > from && place->offset - from >= room && place->offset - from < best) {
            best = place->offset - from;
            offset = from;
        }
        from = std::max(from, place->offset + place->room);
    }
    return best < SIZE_MAX ? offset : from;
}

/* A place that is still to be filled in. A full list stays until nothing in it is alive. */
Place *Arena::guest_place() {
    if (guests_ && guests_->count == guests_a_list) retired_.push_back(std::move(guests_));
    if (!guests_) {
        guests_ = new_plan(Kind{}, 0, false, guests_a_list);
        guests_->count = 0;
    }
    return &guests_->places[guests_->count];
}

/*
 * A chunk that keeps to its plan has few guests, which go to the heap: in the mapping those that are kept
 * would be in the way of plans. One that departs from it, or did the last time, or has none, has its memory
 * here once and not twice: above a plan that others have kept to while it may still be found back to, and
 * else anywhere.
 */
Place *Arena::make_guest(size_t bytes) {
    bool keeps_to_plan = is_known() && !(plan_->bad & 1) && !misses_too_much();
    if (keeps_to_plan || bytes > SIZE_MAX / 4) return nullptr;
    bool is_hopeless = !is_known() || follower_->unknown() >= hopeless;
    size_t room = rounded(bytes + header_bytes, alignment);
    track();
    size_t offset = find_gap(is_hopeless ? 0 : plan_->layout.bytes, room);
    if (!mapping_.reserve(offset + room)) return nullptr;
    Place *place = guest_place();
    place->bytes = bytes;
    place->offset = offset;
    place->room = room;
    hold(place);
    guests_->count++;
    stats_.guests++;
    return place;
}

char *Arena::serve(size_t bytes, Place **out) noexcept {
    Place *place = nullptr;
    try {
        bool to_heap = bytes < guest_bytes;
        if (plan_) place = find_planned(bytes, &to_heap);
        if (place) stats_.served++;
        if (place && tracks_) hold(place);
        if (!place && !to_heap) place = make_guest(bytes);
    } catch (const std::bad_alloc &) {
        return nullptr; /* no host memory for the lists */
    }
    if (!place) return nullptr;
    top_ = std::max(top_, place->offset + place->room);
    taken_ += place->room;
    place->alive.store(true, std::memory_order_relaxed);
    place->plan->alive++;
    references_++;
    *out = place;
    unpoison(mapping_.base() + place->offset, place->room);
    return mapping_.base() + place->offset + header_bytes;
}

/* The place is free once alive is false, and may be another tensor's: nothing of it is read after that. */
void Arena::release(Place *place) noexcept {
    Arena *arena = place->arena;
    Plan *plan = place->plan; /* which stays until it has none alive */
    poison(arena->mapping_.base() + place->offset, place->room);
    place->alive.store(false, std::memory_order_release);
    plan->alive--;
    arena->release_reference();
}

Planned::Planned(Arena *arena, const Kind &kind, size_t samples, bool apart) noexcept
    : arena_(arena && arena->in_window() ? nullptr : arena), before_(set_arena(nullptr)) {
    if (!arena_) return;
    arena_->begin(kind, samples, apart);
    set_arena(arena_);
}

Planned::~Planned() {
    set_arena(before_);
    if (arena_) arena_->end(seconds_);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

Arena::Arena() : follower_(std::make_unique<Follower>()) {
    std::lock_guard<std::mutex> lock(arenas_mutex);
    arenas().push_back(this);
}

Arena::~Arena() {
    std::lock_guard<std::mutex> lock(arenas_mutex);
    arenas().erase(std::find(arenas().begin(), arenas().end(), this));
    mt_recording_free(recording_);
    unpoison(mapping_.base(), mapping_.bytes());
}

/* One reference is a tensor's from now on: its pages must stay. */
void Arena::close() noexcept {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        drop_free_pages();
    }
    release_reference();
}

void Arena::release_reference() noexcept {
    if (--references_ == 0) delete this;
}

/* Between two chunks nothing is served, so what is free stays so: tensors may be released meanwhile. */
void Arena::drop_free_pages() noexcept {
    (void)guard([&] {
        std::vector<mt_block> kept = find_kept();
        std::sort(kept.begin(), kept.end(),
                  [](const mt_block &a, const mt_block &b) { return a.offset < b.offset; });
        size_t from = 0;
        touched_ = 0;
        for (const mt_block &block : kept) {
            mapping_.drop_pages(from, block.offset);
            from = block.offset + block.bytes;
            touched_ += block.bytes;
        }
        mapping_.drop_pages(from, mapping_.bytes());
    });
}

void Arena::drop_all_pages() noexcept {
    std::lock_guard<std::mutex> list(arenas_mutex);
    for (Arena *arena : arenas()) {
        std::lock_guard<std::mutex> lock(arena->mutex_);
        if (!arena->in_window_) arena->drop_free_pages();
    }
}

size_t Arena::touched_bytes() noexcept {
    size_t bytes = 0;
    std::lock_guard<std::mutex> list(arenas_mutex);
    for (Arena *arena : arenas()) {
        std::lock_guard<std::mutex> lock(arena->mutex_);
        bytes += arena->touched_;
    }
    return bytes;
}

ArenaStats Arena::stats() const {
    ArenaStats stats = stats_;
    stats.plans = plans_.size();
    for (const auto &plan : plans_) {
        if (plan->layout.bytes < stats.bytes) continue;
        stats.bytes = plan->layout.bytes;
        stats.lower_bound = plan->layout.lower_bound_bytes;
    }
    return stats;
}

} // namespace memtrain::shim::cpu
