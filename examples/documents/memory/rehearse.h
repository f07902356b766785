/*
 * rehearse.h - --explain for large pictures, from chunks of small ones (memtrain/rehearsal.h).
 */
#ifndef EX_REHEARSE_H
#define EX_REHEARSE_H

#include "source.h"

#include <memtrain/rehearsal.h>
#include <memtrain/torch.h>

typedef enum ex_rehearse_mode {
    EX_REHEARSE_AUTO = 0,
    EX_REHEARSE_ON,
    EX_REHEARSE_OFF
} ex_rehearse_mode;

/* Set to all zero before. */
typedef struct ex_rehearsal {
    mt_rehearsal *rehearsal;
    mt_backend backend; /* to be asked instead of the real one */
    mt_batch batch;     /* and its batch: a number of samples */
    ex_source source;
    int64_t side;
    void *sample[EX_TENSORS];  /* the first of an epoch, at its full size */
    void *buffers[EX_TENSORS]; /* of the batch that was made last */
    mt_tensor *tensors[EX_TENSORS];
    mt_torch_batch torch;
} ex_rehearsal;

/* Whether pictures of that side are rehearsed: auto does so above 256 pixels, since smaller ones are as fast themselves. */
int ex_rehearse_wants(int64_t mode, int64_t side);

/* Whether chunks that cannot be rehearsed are a dry run (memtrain/torch_dry.h): of small pictures that saves no time. */
int ex_rehearse_is_dry(int64_t mode, int64_t side);

/*
 * Makes a rehearsal of batches of so many samples, and tries one chunk.
 *
 * @param backend  the real one. Borrowed
 * @param source   of the real batches; a dimension of `side` elements is one of the picture. Borrowed
 * @param least    samples of the chunk that is tried
 * @param out      free with ex_rehearse_close in any case
 * @return MT_OK; MT_EDEVMEM where the trial ran out of memory, so that it is not known whether smaller pictures tell what these
 *         take; MT_ENOTSUP for pictures whose side is no multiple of 32, and a network that cannot be rehearsed; what the
 *         backend returned, if the network takes no pictures of another size
 */
MT_NODISCARD mt_status ex_rehearse_open(const mt_backend *backend, const ex_source *source,
                                        int64_t side, size_t samples, size_t least,
                                        ex_rehearsal *out);

void ex_rehearse_close(ex_rehearsal *rehearsal);

#endif
