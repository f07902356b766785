/*
 * memtrain/rehearsal.h - what chunks of large samples take, without running one.
 *
 * A step at 1024 x 1024 pixels takes minutes, and may not fit at all. The same network at 128 x 128
 * pixels takes seconds. It asks for the same blocks in the same order, and only their sizes differ.
 * The size of a block is a polynomial of the length of a sample (its pixels or its tokens): of
 * degree 0 for parameters, 1 for activations, 2 where each position attends to each other. So three
 * short lengths tell the sizes at any length. Some blocks fit no straight line. Such a block counts
 * as square if the square term is most of it at the longest short length. Otherwise a line through
 * the first and the last length is used: irregular scratch memory is a small part of a peak.
 *
 * A rehearsal is a backend around a backend. The inner one runs chunks of short samples. The outer
 * one answers for samples of the full length: it reports the allocations that a chunk would make,
 * and runs out of memory where the budget ends. A policy that is driven by it plans what it would
 * plan for the real step, savers included.
 *
 * A rehearsal does not train. It is in libmemtrain_memory: link with -lmemtrain_memory -lmemtrain.
 */
#ifndef MEMTRAIN_REHEARSAL_H
#define MEMTRAIN_REHEARSAL_H

#include <memtrain/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The lengths at which chunks run. */
#define MT_REHEARSAL_LENGTHS 3

typedef struct mt_rehearsal mt_rehearsal;

typedef struct mt_rehearsal_options {
    size_t size;               /* sizeof(mt_rehearsal_options) */
    const mt_backend *backend; /* the inner one, with record and without prepare. Borrowed */
    /*
     * Makes a batch of the inner backend: samples of that length, as many as the batch of the full
     * length has. The batch is borrowed until the next call. The values of its samples do not
     * matter, but the loss must be defined for them.
     */
    mt_status (*batch)(void *user, size_t length, mt_batch *out);
    void *user;                                 /* first argument of batch */
    size_t short_lengths[MT_REHEARSAL_LENGTHS]; /* ascending; elements of a sample */
    size_t length; /* that is asked about; at least the longest short one */
} mt_rehearsal_options;

#define MT_REHEARSAL_OPTIONS_INIT                                                                  \
    { sizeof(mt_rehearsal_options), NULL, NULL, NULL, {0, 0, 0}, 0 }

/*
 * Makes a rehearsal.
 *
 * @param options  copied; backend and what user points to are borrowed until mt_rehearsal_free
 * @param out      new reference: free with mt_rehearsal_free
 * @return MT_OK; MT_EINVAL; MT_ENOTSUP for a backend without record or with prepare; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_rehearsal_new(const mt_rehearsal_options *options,
                                               mt_rehearsal **out);

/* Frees a rehearsal. NULL is a no-op. */
MT_API void mt_rehearsal_free(mt_rehearsal *rehearsal);

/*
 * Gives the outer backend. Its functions have the thread rule of the inner one's.
 *
 * begin wants a batch whose count alone is read. accumulate runs the inner backend once at each of
 * the short lengths, takes these chunks back, and answers for the full length. It returns
 * MT_ENOTSUP if the chunks of two lengths ask for other blocks than each other. set_rung and
 * hold_gradients go to the inner backend. apply returns MT_ENOTSUP.
 *
 * @param out  borrows the rehearsal
 * @return MT_OK, MT_EINVAL
 */
MT_API MT_NODISCARD mt_status mt_rehearsal_backend(mt_rehearsal *rehearsal, mt_backend *out);

#ifdef __cplusplus
}
#endif
#endif
