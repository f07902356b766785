/*
 * groups.hpp - parameters by pattern: groups with a learning rate and a weight decay of their own, and such
 * that are frozen.
 */
#ifndef MEMTRAIN_SHIM_GROUPS_HPP
#define MEMTRAIN_SHIM_GROUPS_HPP

#include <string>
#include <vector>

#include <memtrain/torch.h>

namespace memtrain::shim {

struct Group {
    std::string pattern;
    double lr_factor, weight_decay;
    bool frozen;
};

/* Whether the name begins with the pattern, or, where that has a *, is as the whole pattern says. */
bool matches(const std::string &pattern, const std::string &name);

/*
 * The groups of the options behind a first one, of what matches none of them. Throws Failure for what no
 * group can be.
 */
std::vector<Group> groups_of(const char *function, const mt_torch_options &options);

/* Index of the name's group: the first that it matches, or 0. */
size_t group_of(const std::vector<Group> &groups, const std::string &name);

} // namespace memtrain::shim
#endif
