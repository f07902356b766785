/*
 * training_parts.h - what the files of a run know of each other.
 */
#ifndef EX_TRAINING_PARTS_H
#define EX_TRAINING_PARTS_H

#include "training.h"

/* Files of the flags and the device, before the program's data. */
MT_NODISCARD mt_status ex_training_open(ex_training *run);

/* Fills in all that mt_fit is called with. */
void ex_training_fit(ex_training *run);

/* The generator as it is before a model is made: random numbers of each process's own, but for the first. */
MT_NODISCARD mt_status ex_training_seed(const ex_training *run);

/* --channels-last auto becomes on or off, by measurement; the model is made twice for it, and freed. */
MT_NODISCARD mt_status ex_training_order(ex_training *run, ex_make_fn make);

/* Samples of an epoch's last batch; 0: it is as large as the others. */
size_t ex_rest_of_epoch(const ex_training *run);

/* What a checkpoint says of the run beside its state. */
ex_run ex_this_run(const ex_training *run);

/* How a run gets its chunks: samples of --micro-batch, or one of ex_chunks. */
int64_t ex_chunks_of(const ex_flags *flags);

/* Ends what --inject-oom has armed, when its step is over or has failed. */
void ex_disarm(ex_training *run);

#endif
