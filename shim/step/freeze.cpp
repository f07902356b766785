/* freeze.cpp - parameters that stop training, and go on, while their names match a pattern. */
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "fnv.hpp"
#include "groups.hpp"
#include "guard.hpp"
#include "torch_state.hpp"

namespace memtrain::shim {

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

/* A hash of the arguments. */
uint64_t call_number(const char *pattern, int on) {
    Fnv hash;
    hash.add(static_cast<unsigned>(on));
    hash.add_bytes(pattern, std::strlen(pattern));
    return hash.value();
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
