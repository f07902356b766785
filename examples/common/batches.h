/*
 * batches.h - a data set as the batches of mt_trainer: one buffer of floats, filled again and again.
 *
 * The buffer is ordinary host memory, allocated once. It is not counted in the budget: the budget
 * is what the network, its optimiser and its activations take, and only the chunk that is being
 * computed is copied to another device.
 */
#ifndef EX_BATCHES_H
#define EX_BATCHES_H

#include "dataset.h"

#include <memtrain/backend.h>

typedef struct ex_batches ex_batches;

/*
 * @param pictures  borrowed until ex_batches_free
 * @param batch     pictures of a batch; the last one of a split has what is left
 * @param side      of the pictures in pixels
 * @param out       new reference: free with ex_batches_free
 */
MT_NODISCARD mt_status ex_batches_new(const ex_dataset *pictures, size_t batch, int side,
                                      ex_batches **out);

/* NULL is a no-op. */
void ex_batches_free(ex_batches *batches);

/* Batches that a split has in an epoch. */
size_t ex_batches_count(const ex_batches *batches, ex_split split);

/*
 * Renders a batch: training pictures shuffled and augmented as a function of (seed, epoch, picture)
 * alone, validation pictures always alike. Two tensors: pictures [B, 3, side, side], labels [B].
 * @param out  borrowed until the next call
 */
MT_NODISCARD mt_status ex_batches_fill(ex_batches *batches, ex_split split, uint64_t epoch,
                                       size_t index, mt_batch *out);

#endif
