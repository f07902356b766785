/* torch_segments.cpp - which segments are computed again: told, and given by the caller. */
#include "arguments.hpp"
#include "guard.hpp"
#include "torch_state.hpp"

using namespace memtrain::shim;

extern "C" mt_status mt_torch_segments(const mt_torch *torch, mt_segments_stats *out) {
    mt_segments_stats own = MT_SEGMENTS_STATS_INIT;
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, "mt_torch_segments", "torch"));
    MT_RETURN_IF_FAILED(check_sized(out, "mt_torch_segments", "out"));
    mt_status status = guard([&] {
        if (torch->segments) torch->segments->tell(torch->shape, own);
    });
    if (status == MT_OK) hand_over(own, out);
    return status;
}

extern "C" mt_status mt_torch_set_segments(mt_torch *torch, const unsigned char *recompute,
                                           size_t count) {
    static const char name[] = "mt_torch_set_segments";
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, name, "torch"));
    if (!recompute != !count)
        return mt_set_error(MT_EINVAL, "%s: recompute is %s, count is %zu; accepted: NULL with 0",
                            name, recompute ? "not NULL" : "NULL", count);
    if (!torch->segments)
        return mt_set_error(MT_ESTATE, "%s: options->checkpointing is not MT_CHECKPOINTING_CHOSEN",
                            name);
    MT_RETURN_IF_FAILED(check_phase(name, *torch, Phase::idle, Phase::idle));
    return guard([&] { torch->segments->give(SegmentSet(recompute, recompute + count)); });
}
