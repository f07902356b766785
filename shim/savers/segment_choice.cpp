/* segment_choice.cpp - budgets, the choice itself (memtrain/segments.h decides), and its figures. */
#include "segment_choice.hpp"

#include <algorithm>
#include <cmath>

#include "arguments.hpp"
#include "fnv.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace {

constexpr size_t most_shapes = 64; /* beyond, all are measured anew */

/* By all parts of the chain; those between segments are not computed again. */
SegmentSet spread(const SegmentSet &set, const Chain &chain) {
    SegmentSet all(chain.size());
    for (size_t i = 0; i < segments_of(chain); i++) all[2 * i + 1] = i >= set.size() || set[i];
    return all;
}

mt_segments_choice price_of(const Chain &chain, const SegmentSet &set) {
    mt_segments_choice choice = MT_SEGMENTS_CHOICE_INIT;
    SegmentSet all = spread(set, chain);
    check(mt_segments_price(chain.data(), chain.size(), all.data(), &choice));
    return choice;
}

uint64_t number_of_set(const SegmentSet &set) {
    Fnv hash;
    for (unsigned char one : set) hash.add(one != 0);
    return hash.value() | 1;
}

/* For the log; a budget that even all of them do not keep within is worth a warning. */
void tell_of(const mt_segments_stats &stats) {
    char chosen[32], plain[32], budget[32];
    bool fits = stats.peak_bytes <= stats.budget_bytes;
    mt_log(fits ? MT_LOG_INFO : MT_LOG_WARNING,
           "%zu of %zu segments are computed again: %s of %s for a chunk of %zu, the budget of "
           "activations is %s%s",
           stats.recomputed, stats.segments,
           mt_format_size(stats.peak_bytes, chosen, sizeof chosen),
           mt_format_size(stats.plain_peak_bytes, plain, sizeof plain), stats.samples,
           mt_format_size(stats.budget_bytes, budget, sizeof budget),
           fits ? "" : ": more than that cannot be done");
}

} // namespace

SegmentChoice::SegmentChoice(const char *function, const mt_torch_options &options)
    : share_(options.activation_share), bytes_(options.activation_bytes) {
    if (!(share_ >= 0.0 && share_ <= 1.0))
        fail(MT_EINVAL,
             "%s: options->activation_share is %g; accepted: above 0 and at most 1, or 0", function,
             share_);
    if ((share_ > 0.0) == (bytes_ > 0))
        fail(MT_EINVAL,
             "%s: options->activation_share is %g, activation_bytes %zu; with "
             "MT_CHECKPOINTING_CHOSEN one of them is accepted, the other 0",
             function, share_, bytes_);
}

std::shared_ptr<const SegmentSet> SegmentChoice::set(uint64_t shape) const {
    if (given_) return given_;
    auto found = entries_.find(shape);
    return found == entries_.end() ? nullptr : found->second.set;
}

uint64_t SegmentChoice::kind(uint64_t shape) const {
    std::shared_ptr<const SegmentSet> now = set(shape);
    return now ? number_of_set(*now) : 0;
}

/* Of chunks of one size the shortest times: others disturb a measurement, and never to the better. */
void SegmentChoice::note(uint64_t shape, size_t samples, Chain &&chain) {
    if (entries_.size() >= most_shapes && !entries_.count(shape)) entries_.clear();
    Entry &entry = entries_[shape];
    if (entry.set || samples < entry.samples) return;
    if (samples == entry.samples && chain.size() == entry.chain.size())
        for (size_t i = 0; i < chain.size(); i++)
            chain[i].seconds = std::min(chain[i].seconds, entry.chain[i].seconds);
    entry.chain = std::move(chain);
    entry.samples = samples;
}

mt_segments_stats SegmentChoice::price(const Chain &chain, size_t samples,
                                       const SegmentSet &set) const {
    const size_t count = segments_of(chain);
    mt_segments_choice chosen = price_of(chain, set);
    mt_segments_choice all = price_of(chain, SegmentSet(count, 1));
    mt_segments_choice none = price_of(chain, SegmentSet(count, 0));
    mt_segments_stats stats = MT_SEGMENTS_STATS_INIT;
    stats.segments = count;
    stats.recomputed = chosen.recomputed;
    stats.samples = samples;
    stats.peak_bytes = chosen.peak_bytes;
    stats.plain_peak_bytes = none.peak_bytes;
    stats.least_peak_bytes = all.peak_bytes;
    stats.seconds = chosen.seconds;
    stats.all_seconds = all.seconds;
    stats.budget_bytes =
        bytes_ ? bytes_
               : static_cast<size_t>(std::ceil(share_ * static_cast<double>(none.peak_bytes)));
    return stats;
}

void SegmentChoice::choose_for(Entry &entry) const {
    const size_t count = segments_of(entry.chain);
    mt_segments_choice choice = MT_SEGMENTS_CHOICE_INIT;
    SegmentSet parts(entry.chain.size()), set(count);
    size_t budget = price(entry.chain, entry.samples, set).budget_bytes;
    mt_status status =
        mt_segments_choose(entry.chain.data(), entry.chain.size(), budget, parts.data(), &choice);
    if (status != MT_EDEVMEM)
        check(status); /* then it is all of them, the least that can be done */
    for (size_t i = 0; i < count; i++) {
        set[i] = parts[2 * i + 1];
        entry.costs.push_back(entry.chain[2 * i + 1]);
    }
    entry.stats = price(entry.chain, entry.samples, set);
    entry.set = std::make_shared<const SegmentSet>(std::move(set));
}

/* Without host memory nothing is chosen yet, and the next step measures as well. */
void SegmentChoice::choose(uint64_t shape) noexcept {
    auto found = entries_.find(shape);
    if (given_ || found == entries_.end() || found->second.set) return;
    Entry &entry = found->second;
    entry.costs.clear();
    if (guard([&] { choose_for(entry); }) == MT_OK) tell_of(entry.stats);
    mt_set_error(MT_OK, "%s", "");
}

void SegmentChoice::give(SegmentSet &&set) {
    given_ = set.empty() ? nullptr : std::make_shared<const SegmentSet>(std::move(set));
}

void SegmentChoice::tell(uint64_t shape, mt_segments_stats &out) const {
    auto found = entries_.find(shape);
    if (found == entries_.end() || found->second.costs.empty()) return;
    const Entry &entry = found->second;
    std::shared_ptr<const SegmentSet> now = set(shape);
    out = now == entry.set ? entry.stats : price(entry.chain, entry.samples, *now);
    out.costs = entry.costs.data();
    out.recompute = now->data();
}

} // namespace memtrain::shim
