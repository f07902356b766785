/* arena.cpp - the chunks of an arena: what is recorded, when plans are made anew, and the arena's life. */
#include "arena_plan.hpp"

#include <algorithm>

#include "cpu_memory.hpp"
#include "follow.hpp"
#include "guard.hpp"

namespace memtrain::shim::cpu {
namespace {

constexpr size_t merged_share = 10;  /* what departs of a plan of several sequences: a tenth */
constexpr int bad_windows = 2;       /* among the last eight, before one is recorded anew ... */
constexpr unsigned to_record = 32;   /* ... of so many, if it departs ... */
constexpr unsigned most_retries = 4; /* ... as often as this */
constexpr size_t most_merged = 4;    /* times the requests of a chunk that a merged plan may have */
constexpr size_t most_own = 64;      /* sizes of a kind that were recorded anew; the smallest go */
constexpr size_t most_kept = 16;     /* tensors that outlived their chunks, for guests to join */
constexpr size_t idle_share = 10;    /* of an arena's pages, that no tensor can use */
constexpr size_t most_recordings = 6; /* of a kind; the oldest go */

/* All arenas, for drop_all_pages(). */
std::mutex arenas_mutex;
std::vector<Arena *> &arenas() {
    static auto *all = new std::vector<Arena *>;
    return *all;
}

std::atomic<size_t> all_touched{0};

} // namespace

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
 * to do so, chunks go more than one way, and the next plan is of both. The last one is of this chunk alone where one
 * of several serves less than half: chunks have no way in common, and such a plan is given up where one departs.
 */
void Arena::replace(Plan &plan, const mt_recording *recording) {
    Family &family = *recorded_family_;
    bool is_useless = 2 * missed_ > mt_recording_allocations(recording);
    bool takes_turns = (plan.bad & (plan.bad + 1)) || plan.merged;
    auto found = family.own.find(plan.samples);
    Own own, old = found == family.own.end() ? Own() : found->second;
    own.retries = old.retries + 1;
    for (bool apart : {false, true}) {
        std::vector<mt_block> &blocks = own.blocks[apart], &before = old.blocks[apart];
        check(blocks_of(recording, nullptr, plan.samples, apart, blocks));
        if (!takes_turns && !old.retries) continue;
        if (own.retries == most_retries && is_useless) continue;
        if (!old.retries && !find_blocks(family.recordings, plan.samples, apart, before)) continue;
        before = merge_blocks(before, blocks);
        own.merged = before.size() <= most_merged * blocks.size();
        if (own.merged) blocks = std::move(before);
    }
    if (family.own.size() == most_own && !old.retries) family.own.erase(family.own.begin());
    family.own[plan.samples] = std::move(own);
    retire_size(plan.kind, plan.samples);
}

/*
 * Whether the pages are by a tenth more than what tensors outside of arenas leave of the budget. Those came later, as an
 * optimiser's state does with its first update.
 */
bool Arena::touches_too_much() const noexcept {
    size_t most = budget(), room = most - std::min(most, outside_arenas());
    return touched_ > room && touched_ - room > touched_ / idle_share;
}

void Arena::begin(const Kind &kind, size_t samples, bool apart) noexcept {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (touches_too_much()) drop_free_pages();
        in_window_ = true;
    }
    window_++;
    next_ = missed_ = found_ = in_the_way_ = top_ = taken_ = 0;
    touched_before_ = touched_;
    skipped_ = tracks_ = false;
    keeps_many_ = references_ > 1 + most_kept;
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
    if (plan_) stats_.missed += missed_;
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
    plan_ = nullptr;
    in_window_ = false;
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
    set_touched(0);
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
        size_t from = 0, touched = 0;
        for (const mt_block &block : kept) {
            mapping_.drop_pages(from, block.offset);
            from = block.offset + block.bytes;
            touched += block.bytes;
        }
        mapping_.drop_pages(from, mapping_.bytes());
        set_touched(std::min<size_t>(touched, touched_));
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
    return all_touched.load(std::memory_order_relaxed);
}

void Arena::set_touched(size_t bytes) noexcept {
    all_touched += bytes - touched_; /* modulo 2^64 */
    touched_ = bytes;
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
