/*
 * follow.hpp - which place of a plan a request is for, also when requests depart from what was recorded.
 *
 * Requests and plan are two sequences of sizes, and the cheapest way is looked for to turn one into the
 * other: a request that the plan does not have costs something, places that nobody asks for cost something
 * together and hardly more if they are many. While all is as planned that is one comparison a request.
 * From one that departs on, the costs of all ways within some hundred places are kept (the distance of
 * Levenshtein with affine gaps, Gotoh 1982), until the cheapest one has proved itself.
 */
#ifndef MEMTRAIN_SHIM_FOLLOW_HPP
#define MEMTRAIN_SHIM_FOLLOW_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <memtrain/arena.h>

namespace memtrain::shim::cpu {

class Follower {
public:
    static constexpr size_t none = SIZE_MAX;

    /* Follows these sizes, which must stay, from the first on. */
    void begin(const std::vector<size_t> *sizes) noexcept;

    /* The place of the next request, or none. It may lie before that of an earlier one. */
    size_t next(size_t bytes) noexcept {
        if (!lost_ && next_ < sizes_->size() && (*sizes_)[next_] == bytes) return next_++;
        return find(bytes);
    }

    /* Requests in a row that no place was for. */
    size_t unknown() const { return unknown_; }

private:
    static constexpr size_t window = 256; /* places that may be left out at a time */

    size_t find(size_t bytes) noexcept;
    void get_lost() noexcept;
    uint32_t cost(size_t i) const noexcept;
    void compare(size_t bytes) noexcept;
    void skip() noexcept;
    void slide(size_t by) noexcept;

    const std::vector<size_t> *sizes_ = nullptr;
    bool lost_ = false;
    size_t next_ = 0;    /* of the cheapest way */
    size_t sure_ = 0;    /* places in a row that it found */
    size_t unknown_ = 0; /* requests in a row without one */
    size_t base_ = 0;    /* place of the first cost */
    size_t reach_ = 0;   /* the last one that the window holds is so many further */
    /* Costs of being before a place, after the one before it, a request without one, places left out. */
    std::array<uint32_t, window + 1> at_, after_extra_, after_skip_;
    std::array<bool, window + 1>
        is_found_; /* the last request has the size of the place before it */
};

/*
 * One sequence that holds two, of the blocks of two ways in which a chunk may go: what both have in common
 * is there once, and lives as long as in either.
 */
std::vector<mt_block> merge_blocks(const std::vector<mt_block> &one,
                                   const std::vector<mt_block> &other);

} // namespace memtrain::shim::cpu
#endif
