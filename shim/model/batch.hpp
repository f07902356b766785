/* batch.hpp - what an mt_batch of this backend must be like. */
#ifndef MEMTRAIN_SHIM_BATCH_HPP
#define MEMTRAIN_SHIM_BATCH_HPP

#include <memtrain/torch.h>

namespace memtrain::shim {

/*
 * The tensors behind an mt_batch. Throws Failure unless there are 1 to MT_TENSORS_MAX live handles,
 * all with as many samples in dimension 0, and at least batch->count.
 */
mt_torch_batch batch_of(const char *function, const mt_batch *batch);

/*
 * Of the samples: a hash of dtypes and the sizes of one sample of each tensor, the same over dtypes and
 * numbers of dimensions, and the elements of one sample.
 */
mt_shape shape_of(const mt_torch_batch &batch);

/* Throws Failure unless [first, first + count) is a part of samples, and not empty. */
void check_samples(const char *function, size_t first, size_t count, size_t samples);

} // namespace memtrain::shim
#endif
