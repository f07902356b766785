/* step.hpp - what the chunks of a step have in common, however they are trained; see step.cpp. */
#ifndef MEMTRAIN_SHIM_STEP_HPP
#define MEMTRAIN_SHIM_STEP_HPP

#include <chrono>

#include "recompute.hpp"
#include "torch_state.hpp"

namespace memtrain::shim {

class SavedTensors;

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/* Whether the next training chunk is to show if the model normalises over its samples by operators. */
bool looks_for_norms(const mt_torch &torch);

/* Which segments of the next chunk forget. Without a backward pass there is nothing to measure. */
Forgetting forgetting(const mt_torch &torch, bool backward);

/* Such a chunk is through: keeps what was measured of its segments, if anything was. */
void note_segments(mt_torch &torch, const Forgetting &rule, size_t samples,
                   mt_chunk_result &result);

/* Throws Failure for a loss that no backward pass can begin at. */
void check_graph(const at::Tensor &loss);

/* What is differentiated: the loss times weight, and times the loss scale where there is one. */
at::Tensor weigh(const mt_torch &torch, const at::Tensor &loss, double weight);

/* Loss and metrics as doubles. */
void read_values(const mt_torch &torch, const Loss &values, double *loss, double *metrics);

/* Where tensors that autograd saves for a chunk's backward pass wait; NULL: they stay. */
std::shared_ptr<SavedTensors> saved_tensors(const mt_torch &torch, const Chunk &chunk,
                                            size_t samples);

} // namespace memtrain::shim
#endif
