/*
 * model_check.h - --check: whether the network is one that can be trained in chunks, said instead of training it.
 */
#ifndef EX_MODEL_CHECK_H
#define EX_MODEL_CHECK_H

#include <memtrain/torch.h>

/* Exit status of a check that has found a fault. */
#define EX_EXIT_FAULTS 4

/*
 * mt_torch_check on `batch`; writes its text to standard output.
 * @param out_faults  their number
 * @return what mt_torch_check returned
 */
MT_NODISCARD mt_status ex_model_check(mt_torch *torch, const mt_batch *batch, size_t *out_faults);

#endif
