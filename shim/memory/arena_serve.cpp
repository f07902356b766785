/* arena_serve.cpp - a request of a chunk: its place in the plan, or a guest's. */
#include "arena_plan.hpp"

#include <algorithm>

#include "cpu_memory.hpp"
#include "follow.hpp"

namespace memtrain::shim::cpu {
namespace {

constexpr size_t hopeless_share = 8; /* of a plan's requests an eighth in a row without a place */
constexpr size_t guest_bytes = 4096; /* what no plan knows of and is smaller goes to the heap */
constexpr size_t guests_a_list = 512;

} // namespace

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
 * else anywhere. Not where many tensors outlive their chunks, which these may do too: each would be looked past by
 * every later one, and would hold pages apart.
 */
Place *Arena::make_guest(size_t bytes) {
    bool keeps_to_plan = is_known() && !(plan_->bad & 1) && !misses_too_much();
    if (keeps_to_plan || keeps_many_ || bytes > SIZE_MAX / 4) return nullptr;
    bool is_hopeless = !is_known() || follower_->unknown() > plan_->count / hopeless_share;
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

/*
 * Whether the pages of a place are there already, or may be. A chunk may end early, and then has touched no more
 * than what it was given.
 */
bool Arena::may_touch(const Place &place) noexcept {
    size_t top = std::max(top_, place.offset + place.room), taken = taken_ + place.room;
    size_t touched = std::max(touched_before_, std::min(top, touched_before_ + taken));
    if (touched > touched_) {
        if (!make_room(touched - touched_)) return false;
        set_touched(touched);
    }
    top_ = top;
    taken_ = taken;
    return true;
}

char *Arena::serve(size_t bytes, Place **out) noexcept {
    Place *place = nullptr;
    try {
        bool to_heap = bytes < guest_bytes;
        if (plan_) place = find_planned(bytes, &to_heap);
        bool is_planned = place != nullptr;
        if (!place && !to_heap) place = make_guest(bytes);
        if (!place || !may_touch(*place)) {
            skipped_ |= is_planned;
            return nullptr;
        }
        if (is_planned) stats_.served++;
        if (is_planned && tracks_) hold(place);
    } catch (const std::bad_alloc &) {
        return nullptr; /* no host memory for the lists */
    }
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
} // namespace memtrain::shim::cpu
