/* follow.cpp - the cheapest way between what was recorded and what is asked for. */
#include "follow.hpp"

#include <algorithm>

namespace memtrain::shim::cpu {
namespace {

/*
 * A request that is not in the plan and each one after it, one of another size in the place of one that is, and
 * places that nobody asks for. These cost more than requests at first, since what nothing is known of is
 * better not served than served where others belong, and networks repeat themselves: many requests more are
 * likelier than a block left out. Then they cost less, so that few requests tell that many places are.
 */
constexpr uint32_t extra = 40, next_extra = 20, instead = 50, first_skipped = 44, next_skipped = 3;
constexpr uint32_t no_way = UINT32_MAX / 2;
constexpr size_t enough = 8; /* places in a row prove a way */

} // namespace

void Follower::begin(const std::vector<size_t> *sizes) noexcept {
    sizes_ = sizes;
    lost_ = false;
    next_ = sure_ = unknown_ = 0;
}

/* Up to here all went well. */
void Follower::get_lost() noexcept {
    lost_ = true;
    sure_ = 0;
    base_ = next_;
    at_.fill(no_way);
    after_extra_.fill(no_way);
    at_[0] = 0;
    reach_ = std::min(window, sizes_->size() - base_);
    skip();
}

/* The cheapest way to be before a place, however it came there. */
uint32_t Follower::cost(size_t i) const noexcept {
    return std::min({at_[i], after_extra_[i], after_skip_[i]});
}

void Follower::skip() noexcept {
    after_skip_[0] = no_way;
    for (size_t i = 1; i <= reach_; i++) {
        uint32_t first = std::min(at_[i - 1], after_extra_[i - 1]) + first_skipped;
        after_skip_[i] = std::min({first, after_skip_[i - 1] + next_skipped, no_way});
    }
}

/* From the last one down, so that the costs before it are those before the request. */
void Follower::compare(size_t bytes) noexcept {
    for (size_t i = reach_;; i--) {
        uint32_t stay =
            std::min(std::min(at_[i], after_skip_[i]) + extra, after_extra_[i] + next_extra);
        uint32_t step = no_way;
        is_found_[i] = i > 0 && (*sizes_)[base_ + i - 1] == bytes;
        if (i > 0) step = cost(i - 1) + (is_found_[i] ? 0 : instead);
        after_extra_[i] = std::min(stay, no_way);
        at_[i] = std::min(step, no_way);
        if (i == 0) break;
    }
    skip();
}

void Follower::slide(size_t by) noexcept {
    for (auto *costs : {&at_, &after_extra_}) {
        std::copy(costs->begin() + static_cast<ptrdiff_t>(by), costs->end(), costs->begin());
        std::fill(costs->end() - static_cast<ptrdiff_t>(by), costs->end(), no_way);
    }
    base_ += by;
    reach_ = std::min(window, sizes_->size() - base_);
    skip();
}

/* Where the way is another one than before, the second request on it is the first that is believed. */
size_t Follower::find(size_t bytes) noexcept {
    if (!lost_) get_lost();
    compare(bytes);
    size_t best = 0, before = next_;
    for (size_t i = 1; i <= reach_; i++)
        if (std::min(at_[i], after_extra_[i]) < std::min(at_[best], after_extra_[best])) best = i;
    next_ = base_ + best;
    bool found = is_found_[best] && at_[best] <= after_extra_[best];
    bool goes_on = found && next_ == before + 1;
    unknown_ = goes_on ? 0 : unknown_ + 1;
    sure_ = goes_on ? sure_ + 1 : 0;
    if (best > window / 2) slide(best - window / 4);
    if (sure_ == enough) lost_ = false;
    return goes_on ? next_ - 1 : none;
}

/* ---- two sequences in one ------------------------------------------------------------------------- */

namespace {

using Blocks = std::vector<mt_block>;

/* For each block of the other one its like in the first, in rising order, or none. */
std::vector<size_t> find_alike(const Blocks &one, const Blocks &other) {
    Follower follower;
    std::vector<size_t> sizes, alike;
    for (const mt_block &block : one) sizes.push_back(block.bytes);
    follower.begin(&sizes);
    size_t last = 0; /* the first that is still free */
    for (const mt_block &block : other) {
        size_t index = follower.next(block.bytes);
        bool rises = index != Follower::none && index >= last;
        if (rises) last = index + 1;
        alike.push_back(rises ? index : Follower::none);
    }
    /* What follows tells where the first ones after a departure belong. */
    for (size_t i = 0, from = 0, free = 0; i < other.size(); i++) {
        if (alike[i] == Follower::none) continue;
        size_t mine = i, like = alike[i];
        while (mine > from && like > free && one[like - 1].bytes == other[mine - 1].bytes)
            alike[--mine] = --like;
        from = i + 1;
        free = alike[i] + 1;
    }
    return alike;
}

/* Adds blocks to a sequence; instants are numbers of blocks, those that they were told in come last. */
struct Merger {
    const Blocks &one, &other;
    std::vector<size_t> from_one, from_other; /* their numbers in all */
    Blocks all = {};

    void add(const Blocks &from, std::vector<size_t> &numbers) {
        mt_block block = from[numbers.size()];
        numbers.push_back(all.size());
        all.push_back(block);
    }
    size_t end_of(const mt_block &block, const std::vector<size_t> &numbers) const {
        if (block.end == SIZE_MAX) return SIZE_MAX;
        return block.end < numbers.size() ? numbers[block.end] : all.size();
    }
    void set_lives() {
        for (size_t i = 0; i < all.size(); i++) all[i].begin = i, all[i].end = 0;
        for (size_t i = 0; i < one.size(); i++) all[from_one[i]].end = end_of(one[i], from_one);
        for (size_t i = 0; i < other.size(); i++) {
            size_t &end = all[from_other[i]].end;
            end = std::max(end, end_of(other[i], from_other));
        }
    }
};

} // namespace

std::vector<mt_block> merge_blocks(const Blocks &one, const Blocks &other) {
    std::vector<size_t> alike = find_alike(one, other);
    Merger merger{one, other, {}, {}};
    for (size_t i = 0; i < other.size(); i++) {
        if (alike[i] == Follower::none) {
            merger.add(other, merger.from_other);
            continue;
        }
        while (merger.from_one.size() <= alike[i]) merger.add(one, merger.from_one);
        merger.from_other.push_back(merger.all.size() - 1);
    }
    while (merger.from_one.size() < one.size()) merger.add(one, merger.from_one);
    merger.set_lives();
    return merger.all;
}

} // namespace memtrain::shim::cpu
