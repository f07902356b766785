/* groups.cpp - patterns of names, groups of the options, and freezing. */
#include "groups.hpp"

#include <cmath>
#include <optional>

#include "arguments.hpp"
#include "guard.hpp"
#include "torch_state.hpp"

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

Resettled::Resettled(mt_torch &torch, const std::vector<bool> &placed)
    : torch_(torch), places_(torch.flat->make_places(placed)),
      moments_(torch.optimizer->make_moments(places_)) {
    swap();
}

Resettled::~Resettled() {
    if (!is_kept_) (void)guard([this] { swap(); });
}

void Resettled::swap() {
    torch_.flat->swap(places_);
    torch_.optimizer->swap(moments_);
}

namespace {

/* Throws Failure unless some parameter is meant and some is left to train. */
void check_freeze(const char *function, const mt_torch &torch, const char *pattern, bool on) {
    size_t matched = 0, trained = 0;
    for (const Slot &slot : torch.flat->slots()) {
        bool is_meant = matches(pattern, slot.name);
        matched += is_meant;
        trained += is_meant ? !on : !slot.frozen;
    }
    const std::vector<Slot> &slots = torch.flat->slots();
    if (!matched)
        fail(MT_EINVAL,
             "%s: pattern '%.100s' matches no trainable parameter; accepted: how a name begins, "
             "'%.100s' say, or * for any text",
             function, pattern, slots.empty() ? "" : slots[0].name.c_str());
    if (!trained)
        fail(MT_EINVAL, "%s: pattern '%.100s' would leave no parameter to train", function,
             pattern);
}

/* All processes have the same layout, since gradients are added up block by block. */
void resettle(mt_torch &torch, const std::vector<bool> &placed) {
    std::optional<Resettled> resettled;
    auto prepare = [&] {
        if (placed != torch.flat->placed()) resettled.emplace(torch, placed);
    };
    if (torch.shared)
        torch.shared->all_or_none(prepare);
    else
        prepare();
    if (resettled) resettled->keep();
}

void freeze(mt_torch &torch, const char *pattern, int on) {
    std::vector<bool> placed;
    for (const Slot &slot : torch.flat->slots()) {
        bool stays = on == MT_FREEZE_KEEP ? slot.placed : on == MT_FREEZE_OFF;
        placed.push_back(matches(pattern, slot.name) ? stays : slot.placed);
    }
    resettle(torch, placed);
    torch.flat->freeze([&](const Slot &slot) { return matches(pattern, slot.name); }, on != 0);
}

/* FNV-1a (Fowler, Noll, Vo) of the arguments. */
uint64_t call_number(const char *pattern, int on) {
    uint64_t hash = 0xcbf29ce484222325U ^ static_cast<unsigned>(on);
    for (; *pattern; pattern++)
        hash = (hash ^ static_cast<unsigned char>(*pattern)) * 0x100000001b3U;
    return hash;
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_torch_freeze(mt_torch *torch, const char *pattern, int on) {
    static const char name[] = "mt_torch_freeze";
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, name, "torch"));
    MT_RETURN_IF_FAILED(check_not_null(pattern, name, "pattern"));
    if (on < MT_FREEZE_OFF || on > MT_FREEZE_GIVE_BACK)
        return mt_set_error(MT_EINVAL,
                            "%s: on is %d; accepted: MT_FREEZE_OFF (0), MT_FREEZE_KEEP (1), "
                            "MT_FREEZE_GIVE_BACK (2)",
                            name, on);
    MT_RETURN_IF_FAILED(check_phase(name, *torch, Phase::idle, Phase::idle));
    return guard(torch->device, [&] {
        check_freeze(name, *torch, pattern, on != MT_FREEZE_OFF);
        if (torch->shared)
            torch->shared->compare_number(call_number(pattern, on), MT_EINVAL,
                                          "mt_torch_freeze: the processes have other patterns than "
                                          "each other, or other values of on");
        freeze(*torch, pattern, on);
    });
}
