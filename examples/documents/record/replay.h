/*
 * replay.h - takes the chunks of each step from the trace of an earlier run.
 *
 * Same program, same flags, same number of threads and same chunks give the same bits, whatever
 * memory did in the earlier run. Of the trace the `step` lines count, and what has to be the same:
 * threads, seed, image size, and the flags that decide what is computed (ex_flags_settings).
 */
#ifndef EX_REPLAY_H
#define EX_REPLAY_H

#include "options.h"

#include <memtrain/trainer.h>

typedef struct ex_replay ex_replay;

/*
 * Reads the whole trace. path NULL: *out is NULL, which all functions here take as "no replay".
 * @param out  new reference: free with ex_replay_free
 * @return MT_OK; MT_EINVAL with a line that names the file, and the line where one is wrong;
 *         MT_ENOMEM
 */
MT_NODISCARD mt_status ex_replay_open(const char *path, ex_replay **out);

/* NULL is a no-op. */
void ex_replay_free(ex_replay *replay);

/* Steps in the trace: a replay stops where it ends. SIZE_MAX for NULL. */
size_t ex_replay_steps(const ex_replay *replay);

/*
 * Whether program, seed, image size and settings are those of the earlier run, as far as the trace
 * tells; what it does not is named in a warning.
 * @return MT_OK, also for NULL; MT_EINVAL with a line that names flag, value and trace
 */
MT_NODISCARD mt_status ex_replay_check(const ex_replay *replay, const char *program, int64_t seed,
                                       int64_t image_size, const ex_setting *settings,
                                       size_t count);

/*
 * Whether each saver that a step of the earlier run had on is to be had, before any of them is
 * replayed. known: mt_backend_info.rungs
 * @return MT_OK, also for NULL; MT_EINVAL naming file, line, saver and the earlier run's device
 */
MT_NODISCARD mt_status ex_replay_check_rungs(const ex_replay *replay, unsigned known);

/* What an epoch is cut into. */
typedef struct ex_epoch {
    size_t samples, batch; /* batches of so many, the last one of what is left */
    size_t least; /* a batch of fewer is left out, and has no line in a trace; 0: none is */
} ex_epoch;

/*
 * Whether each step of the trace is one of the batches to come: of as many samples, or of fewer where the step was made
 * smaller, and in the same epoch as far as the trace tells.
 * @return MT_OK, also for NULL; MT_EINVAL naming file and line, and what this run has instead
 */
MT_NODISCARD mt_status ex_replay_check_batches(const ex_replay *replay, const ex_epoch *epoch);

/* Whether the earlier run had --channels-last: 0, 1; -1 when the trace does not tell, and for NULL. */
int ex_replay_order(const ex_replay *replay);

/* Threads of the earlier run; 0 when the trace does not tell, and for NULL. */
int ex_replay_threads(const ex_replay *replay);

/*
 * Hands the chunks of the next step to the trainer. To be called before each mt_trainer_step, with
 * the samples of its batch.
 * @return MT_OK; MT_EINVAL naming file and line when the trace has another number of samples, or has
 *         ended
 */
MT_NODISCARD mt_status ex_replay_next(ex_replay *replay, size_t samples, mt_trainer *trainer);

#endif
