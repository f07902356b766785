/* check_samples.hpp - which samples of a batch mt_torch_check runs: some that lie apart and differ. */
#ifndef MEMTRAIN_SHIM_CHECK_SAMPLES_HPP
#define MEMTRAIN_SHIM_CHECK_SAMPLES_HPP

#include <cstdint>
#include <vector>

#include <memtrain/torch.h>

namespace memtrain::shim {

struct Parts {
    std::vector<int64_t> first; /* sample of each, ascending */
    bool are_alike;             /* all hold the same numbers */
};

/*
 * Parts of `part` samples of a batch of `count`: the first, the last and the middle one. Others come in their place
 * that differ more from those that are chosen: in how many elements have the smallest value, as masks and padding
 * have it, since a batch may be sorted by length, and then in whether they differ at all.
 */
Parts spread_parts(const mt_torch_batch &batch, size_t count, size_t part, size_t parts);

} // namespace memtrain::shim
#endif
