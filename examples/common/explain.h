/*
 * explain.h - --explain: what will take memory and how a batch will be cut, said before training.
 */
#ifndef EX_EXPLAIN_H
#define EX_EXPLAIN_H

#include "device.h"

#include <memtrain/backend.h>

/*
 * Writes to standard output the bytes of parameters, gradients and optimiser state, the budget and
 * where it comes from, and what chunks of a batch need. The last is known from a recording of two
 * small chunks, which are run on `batch` and taken back: the run that follows is the same, bit by
 * bit, as without --explain.
 * @return MT_OK also when nothing fits; else what the backend returned
 */
MT_NODISCARD mt_status ex_explain(const mt_backend *backend, const mt_batch *batch,
                                  const ex_flags *flags, const ex_device *device);

#endif
