/*
 * batches.h - a source as the batches of mt_trainer, rendered ahead by threads while steps run.
 *
 * Buffers are ordinary host memory, allocated once. What is rendered ahead counts against the budget of
 * the CPU (mt_device_hold); the buffer of the batch that is being computed does not, since the budget is
 * what the network, its optimiser and its activations take.
 */
#ifndef EX_BATCHES_H
#define EX_BATCHES_H

#include "flags.h"
#include "source.h"

#include <memtrain/backend.h>

typedef struct ex_batches ex_batches;

typedef struct ex_batches_options {
    size_t batch;    /* samples of a batch; the last one of a split has what is left */
    size_t workers;  /* threads that render, at most EX_WORKERS_MAX; 0: each when it is asked for */
    size_t prefetch; /* batches ahead, at least 1 where there are workers */
} ex_batches_options;

/* As --batch, --workers and --prefetch say. */
ex_batches_options ex_batches_options_of(const ex_flags *flags);

/*
 * @param source  copied; what its self points to is borrowed until ex_batches_free
 * @param out     new reference: free with ex_batches_free
 * @return MT_OK, MT_ENOMEM. Where the system gives no thread it goes without.
 */
MT_NODISCARD mt_status ex_batches_new(const ex_source *source, const ex_batches_options *options,
                                      ex_batches **out);

/* Waits for what is being rendered. NULL is a no-op. */
void ex_batches_free(ex_batches *batches);

/* Batches that a split has in an epoch. */
size_t ex_batches_count(const ex_batches *batches, ex_split split);

/*
 * From now on each batch is rendered when it is asked for: threads end, and what was rendered ahead is freed
 * and counts no longer. The last batch stays as it is.
 */
void ex_batches_stop_ahead(ex_batches *batches);

/* What source.make has made is made again when a batch is asked for next. */
void ex_batches_make_anew(ex_batches *batches);

/* Bytes of the buffers that are filled ahead. */
size_t ex_batches_ahead_bytes(const ex_batches *batches);

/*
 * A batch: the source's tensors, with the samples as dimension 0. The batches after it are begun with:
 * those of the split, then the other split's. One thread at a time.
 * @param out  borrowed until the next call
 * @return MT_OK; MT_EINVAL for a sample that can no longer be read, MT_ENOMEM; what source.make returned
 */
MT_NODISCARD mt_status ex_batches_fill(ex_batches *batches, ex_split split, uint64_t epoch,
                                       size_t index, mt_batch *out);

#endif
