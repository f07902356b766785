/*
 * segment_choice.hpp - which segments of a model are computed again: chosen once for each shape of the
 * samples, from what the first step with such samples has measured, or given by the caller.
 */
#ifndef MEMTRAIN_SHIM_SEGMENT_CHOICE_HPP
#define MEMTRAIN_SHIM_SEGMENT_CHOICE_HPP

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <memtrain/torch.h>

#include "segment_meter.hpp"

namespace memtrain::shim {

/* A number for each segment, not 0: it is computed again. */
using SegmentSet = std::vector<unsigned char>;

class SegmentChoice {
public:
    /* Throws Failure for a share or a number of bytes that are none. */
    SegmentChoice(const char *function, const mt_torch_options &options);

    /* The set for such samples; NULL: none yet, so all segments are computed again and measured. */
    std::shared_ptr<const SegmentSet> set(uint64_t shape) const;

    /* A number for the set: 0 for none yet. Chunks with different ones have nothing in common. */
    uint64_t kind(uint64_t shape) const;

    /* A chunk of so many samples was measured. */
    void note(uint64_t shape, size_t samples, Chain &&chain);

    /* A step is through: chooses where there is something to choose from. Never throws. */
    void choose(uint64_t shape) noexcept;

    /* The caller's set from now on, whatever the shape; empty: chosen again. */
    void give(SegmentSet &&set);

    /* Of the shape; out->costs and out->recompute are borrowed until the next call that is not const. */
    void tell(uint64_t shape, mt_segments_stats &out) const;

private:
    struct Entry {
        size_t samples = 0; /* of the chunk that was measured, the largest */
        Chain chain;
        std::vector<mt_segment_cost> costs; /* of the segments alone */
        std::shared_ptr<const SegmentSet> set;
        mt_segments_stats stats = MT_SEGMENTS_STATS_INIT;
    };
    void choose_for(Entry &entry) const;
    mt_segments_stats price(const Chain &chain, size_t samples, const SegmentSet &set) const;

    double share_;
    size_t bytes_;
    std::map<uint64_t, Entry> entries_;
    std::shared_ptr<const SegmentSet> given_;
};

} // namespace memtrain::shim
#endif
