/*
 * explain.h - --explain: what will take memory and how a batch will be cut, said before training.
 */
#ifndef EX_EXPLAIN_H
#define EX_EXPLAIN_H

#include "device.h"

#include <memtrain/backend.h>

/*
 * Writes to standard output the bytes of parameters, gradients and optimiser state, the budget and
 * where it comes from, what chunks of a batch need, and the step that the run will take: the policy of
 * the run is asked (forecast.h), rungs that it has to take included. The first chunks are run on `batch`
 * for that and taken back: the run that follows is the same, bit by bit, as without --explain. Where they
 * cannot be recorded (MPS), it says how sizes will be found.
 * @return MT_OK; MT_EDEVMEM, after everything that is known was written, when the smallest chunk that
 *         the flags allow does not fit, with no rung that is allowed; else what the backend returned
 */
MT_NODISCARD mt_status ex_explain(const mt_backend *backend, const mt_batch *batch,
                                  const ex_flags *flags, const ex_device *device);

/*
 * What is known when not even parameters, gradients and optimiser state fit: the bytes of the same on the CPU
 * without a budget, and of all tensors there, against the budget.
 */
void ex_explain_state(const mt_backend_info *info, size_t allocated_bytes, const ex_device *device);

#endif
