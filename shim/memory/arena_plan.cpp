/* arena_plan.cpp - plans: from recordings, around what is alive, and smaller by and by. */
#include "arena_plan.hpp"

#include <algorithm>

#include "cpu_memory.hpp"

namespace memtrain::shim::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kept_times = 2; /* tensors that outlive their chunk, before the heap has them */
constexpr size_t most_kinds = 64, most_plans = 128;
constexpr double search_share = 0.002; /* of the time */
constexpr unsigned most_tries = 3000;
constexpr double warm_share = 0.1;       /* of the time of a chunk, once a plan */
constexpr size_t warm_tries = 150;       /* a block, at most ... */
constexpr size_t warm_slice = 2000;      /* ... so many at a time */
constexpr double worth_searching = 1.02; /* over the lower bound: a tight layout is colder ... */
constexpr double tight = 1.003;          /* ... and wanted where resident bytes are limited */
constexpr size_t worth_adopting = 100;   /* a hundredth less, since what is adopted is cold */

/* The one to go of so many: the oldest would be the next that is wanted where kinds come in turn. */
size_t any_of(size_t count, uint64_t window) {
    return static_cast<size_t>(window * 0x9e3779b97f4a7c15u >> 33) % count;
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/* ---- layouts -------------------------------------------------------------------------------------- */

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
} // namespace

mt_status blocks_of(const mt_recording *small, const mt_recording *large, size_t samples,
                    bool apart, std::vector<mt_block> &out) {
    size_t count = 0;
    mt_status status = mt_recording_blocks(small, large, samples, apart, nullptr, 0, &count);
    if (status != MT_OK) return status;
    out.resize(count);
    return mt_recording_blocks(small, large, samples, apart, out.data(), count, &count);
}
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
    if (plans_.size() == most_plans) retire(plans_[any_of(most_plans, window_)].get());
    plans_.push_back(std::move(plan));
    return plans_.back().get();
}

Arena::Family &Arena::family_of(const Kind &kind) {
    for (auto &family : families_)
        if (family->kind == kind) return *family;
    if (families_.size() == most_kinds)
        families_.erase(families_.begin() + ptrdiff_t(any_of(most_kinds, window_)));
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
} // namespace memtrain::shim::cpu
