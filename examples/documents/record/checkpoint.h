/*
 * checkpoint.h - where a run was and which one it was, beside its state in one file (mt_torch_save).
 */
#ifndef EX_CHECKPOINT_H
#define EX_CHECKPOINT_H

#include "settings.h"
#include "source.h"

#include <memtrain/torch_fit.h>

/* What a run has to have in common with the one that it goes on from. */
typedef struct ex_run {
    const char *program;
    int64_t seed, image_size;
    int threads; /* 0: not known yet */
    const ex_setting *settings;
    size_t setting_count;
    ex_listing names; /* of its data, for ex_checkpoint_save */
} ex_run;

/* How a run gets its chunks where --micro-batch does not say. */
enum ex_chunks { EX_CHUNKS_UNKNOWN = 0, EX_CHUNKS_MEASURED = -1, EX_CHUNKS_DETERMINISTIC = -2 };

typedef struct ex_position {
    char place[MT_FIT_POSITION_MAX]; /* what mt_fit says of it; "": the beginning */
    uint64_t epoch;                  /* from 1 on, the one that the next batch is of ... */
    uint64_t batches;                /* ... and how many of it are done: read from place */
    int threads;                     /* of the run that was saved; 0: not known */
    uint64_t replans;                /* steps of it that were planned anew because memory ran out */
    uint64_t budget;                 /* bytes, of the run that was saved; 0: not known, or none */
    int64_t chunks;                  /* of it: samples of --micro-batch, or one of ex_chunks */
    int channels_last;               /* of it: 0, 1; -1: not known */
    int has_names;                   /* 0: the file does not tell names */
    ex_listing names;                /* of its data */
} ex_position;

/* Writes the file; the one that was there becomes PATH.1. */
MT_NODISCARD mt_status ex_checkpoint_save(mt_torch *torch, const char *path, const ex_run *run,
                                          const ex_position *position);

/*
 * The weights of --weights. path NULL: MT_OK, and nothing is loaded.
 * @return MT_OK; MT_EINVAL with a line that names flag and file; else as mt_model_load_weights
 */
MT_NODISCARD mt_status ex_checkpoint_weights(mt_model *model, const char *path,
                                             const mt_weights_options *options);

/*
 * Where the run of a file was, before anything is prepared. path NULL: MT_OK, and the beginning.
 * @return MT_OK; MT_EINVAL for a file that is none of this program's, or whose run had other settings
 *         (names the flag); MT_ENOMEM
 */
MT_NODISCARD mt_status ex_checkpoint_open(const char *path, const ex_run *run, ex_position *out);

/*
 * Whether the data is what that run had, by its names. path NULL: MT_OK. A file that does not tell, of an earlier version, is
 * accepted with a warning.
 * @return MT_OK; MT_EINVAL with a line that says whether classes or files differ, and what to do
 */
MT_NODISCARD mt_status ex_checkpoint_names(const char *path, const ex_position *then,
                                           const ex_listing *now);

#endif
