/*
 * offload_subject.hpp - where saved tensors wait, and an mt_torch whose do. Comes after the C++ headers, since check.h does.
 */
#ifndef OFFLOAD_SUBJECT_HPP
#define OFFLOAD_SUBJECT_HPP

#include "networks/steps.hpp"

namespace offload_subject {

using namespace check_shim;

const struct {
    const char *name;
    int kind;
} kinds[] = {{"host", MT_OFFLOAD_HOST}, {"file", MT_OFFLOAD_FILE}, {"pack", MT_OFFLOAD_PACK}};

enum { KINDS = 3, EXACT = 2 };

inline void prepare() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_torch_seed(7));
}

using networks::CLASSES;
using networks::accumulate;
using networks::hash_of;
using networks::Ladder;
using networks::Network;
using networks::step;
using networks::Subject;

inline mt_torch_options options_for(int offload, mt_dtype amp = MT_DTYPE_NONE,
                                    int checkpointing = 0) {
    mt_torch_options options = options_of(MT_SGD, 1.0);
    options.offload = offload;
    options.amp = amp;
    options.checkpointing = checkpointing;
    return options;
}

inline mt_offload_stats stats_of(const mt_torch *torch) {
    mt_offload_stats stats = MT_OFFLOAD_STATS_INIT;
    ck_ok(mt_torch_offload_stats(torch, &stats));
    return stats;
}

} // namespace offload_subject
#endif
