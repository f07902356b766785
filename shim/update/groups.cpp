/* groups.cpp - patterns of names, and groups of the options. */
#include "groups.hpp"

#include <cmath>

#include "arguments.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace {

/* A star takes as little as it can, and more where that does not do: the last one alone matters. */
bool is_like(const char *pattern, const char *name) {
    const char *star = nullptr, *rest = nullptr;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            rest = name;
        } else if (*pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++rest;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

void check_group(const char *function, size_t i, const mt_parameter_group &group, size_t size) {
    if (group.size != size || size < sizeof(size_t))
        fail(MT_EINVAL, "%s: options->groups[%zu].size is %zu; accepted: that of groups[0], %zu",
             function, i, group.size, sizeof group);
    if (!group.pattern) fail(MT_EINVAL, "%s: options->groups[%zu].pattern is NULL", function, i);
    if (!(group.lr_factor > 0.0) || std::isinf(group.lr_factor))
        fail(MT_EINVAL, "%s: options->groups[%zu].lr_factor is %g, must be above 0", function, i,
             group.lr_factor);
    if (std::isinf(group.weight_decay) && group.weight_decay > 0.0)
        fail(MT_EINVAL, "%s: options->groups[%zu].weight_decay is %g", function, i,
             group.weight_decay);
}

/* An array of structs that may be older, and then smaller, than this library's. */
mt_parameter_group read_group(const mt_torch_options &options, size_t i) {
    mt_parameter_group own = MT_PARAMETER_GROUP_INIT;
    size_t stride = options.groups->size;
    const char *at = reinterpret_cast<const char *>(options.groups) + i * stride;
    copy_in(own, reinterpret_cast<const mt_parameter_group *>(at));
    std::memcpy(&own.size, at, sizeof own.size);
    return own;
}

} // namespace

bool matches(const std::string &pattern, const std::string &name) {
    if (pattern.find('*') == std::string::npos)
        return name.compare(0, pattern.size(), pattern) == 0;
    return is_like(pattern.c_str(), name.c_str());
}

std::vector<Group> groups_of(const char *function, const mt_torch_options &options) {
    std::vector<Group> list = {{"", 1.0, options.weight_decay, false}};
    if (options.group_count && !options.groups)
        fail(MT_EINVAL, "%s: options->groups is NULL, group_count is %zu", function,
             options.group_count);
    for (size_t i = 0; i < options.group_count; i++) {
        mt_parameter_group group = read_group(options, i);
        check_group(function, i, group, options.groups->size);
        bool own_decay = group.weight_decay >= 0.0;
        list.push_back({group.pattern, group.lr_factor,
                        own_decay ? group.weight_decay : options.weight_decay, group.frozen != 0});
    }
    return list;
}

size_t group_of(const std::vector<Group> &groups, const std::string &name) {
    for (size_t i = 1; i < groups.size(); i++)
        if (matches(groups[i].pattern, name)) return i;
    return 0;
}

} // namespace memtrain::shim
