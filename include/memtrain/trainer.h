/*
 * memtrain/trainer.h - trains batch by batch inside a memory budget: a step succeeds, or changes nothing.
 *
 *     mt_trainer *trainer;
 *     mt_step_report report = MT_STEP_REPORT_INIT;
 *     if (mt_trainer_new(&backend, NULL, &trainer) != MT_OK) ...
 *     while (next batch)
 *         if (mt_trainer_step(trainer, &batch, &report) != MT_OK) {
 *             fprintf(stderr, "%s\n", mt_last_error());
 *             break;
 *         }
 *     mt_trainer_free(trainer);
 *
 * A step cuts the batch into chunks, accumulates their gradients and updates the parameters once.
 *
 * When memory runs out, the trainer rolls back and retries under another plan. Where there is room
 * for a second set of gradients, it rolls back only the chunk that failed. Otherwise it rolls back
 * the whole step. A run that met OOMs ends bit-equal to a run that was given the same chunks from
 * the start. Which chunks a run takes depends on measured times, unless the policy is
 * deterministic.
 *
 * When nothing is left to try, the step returns MT_EDEVMEM. The model is then as it was before the
 * step. The error line says what would make the batch fit. mt_trainer_explain gives a longer text.
 *
 * Thread rule: a trainer and its backend belong to one thread at a time. Two trainers may run in
 * two threads.
 */
#ifndef MEMTRAIN_TRAINER_H
#define MEMTRAIN_TRAINER_H

#include <memtrain/backend.h>
#include <memtrain/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mt_trainer mt_trainer;

/*
 * Receives one line of the trace: a JSON object without a newline. The line is borrowed for the
 * call. docs/trace.md lists the events and their keys.
 */
typedef void (*mt_trace_fn)(void *user, const char *line);

typedef struct mt_trainer_options {
    size_t size;                     /* sizeof(mt_trainer_options) */
    const mt_policy_options *policy; /* NULL: defaults. Copied */
    mt_trace_fn trace;               /* NULL: no trace */
    void *trace_user;                /* first argument of trace */
    size_t batch;                    /* written into the trace's first line only. 0: left out */
    uint64_t seed;                   /* written into the trace's first line only. 0: left out */
    int drop_small; /* a batch below the smallest legal chunk: 1: dropped; 0: run as one chunk */
    int unused;     /* not read: older callers have padding with any content here */
    /*
     * What happens when the loss of a step is infinite or not a number.
     * 0: the step is rolled back before the update, its report says so, and mt_log warns.
     * 1: the update is made.
     */
    int apply_not_finite;
    /*
     * A file with what was learned of chunks. mt_trainer_new reads it (mt_policy_load), so the run
     * begins with what the run before has learned. It is written (mt_policy_save) at the end of
     * each epoch and by mt_trainer_finish. If it cannot be written, the log says so. NULL: no file.
     * Copied.
     */
    const char *learned;
} mt_trainer_options;

#define MT_TRAINER_OPTIONS_INIT                                                                    \
    { sizeof(mt_trainer_options), NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL }

/*
 * Makes a trainer for a backend.
 *
 * @param backend  copied; what its self points to must outlive the trainer
 * @param options  NULL: defaults; copied
 * @param out      new reference: free with mt_trainer_free; NULL on failure
 * @return MT_OK; MT_EINVAL (names the function or field that is missing); MT_ENOMEM; what describe
 *         or memory returned
 */
MT_API MT_NODISCARD mt_status mt_trainer_new(const mt_backend *backend,
                                             const mt_trainer_options *options, mt_trainer **out);

/*
 * Frees a trainer. NULL is a no-op. The backend is not touched. A function that the trainer itself
 * has called must not free it: then nothing is freed, and mt_log says so.
 */
MT_API void mt_trainer_free(mt_trainer *trainer);

/*
 * Why a step has made no update. Parameters, optimiser state and the optimiser's counts are as they
 * were before the step.
 */
typedef enum mt_skip {
    MT_SKIP_NOT = 0,        /* the update was made */
    MT_SKIP_APPLY = 1,      /* the backend's apply skipped it: a gradient was not finite */
    MT_SKIP_NOT_FINITE = 2, /* the loss was not finite */
    MT_SKIP_NO_UNITS = 3    /* the batches of all processes have no units: every label is masked */
} mt_skip;

/*
 * What one step did. It is not written when the step failed.
 *
 * To repeat a step bit for bit, give its chunks to mt_trainer_set_chunks. Chunks that only ran to
 * be recorded, and were rolled back, are not in the list.
 */
typedef struct mt_step_report {
    size_t size;   /* sizeof(mt_step_report), set by the caller */
    uint64_t step; /* counted from 1 */
    /*
     * Samples that this process trained on: all of the batch, or its first ones where the batch was
     * made smaller (MT_RUNG_SMALLER_BATCH). 0: the batch was dropped.
     */
    size_t samples;
    const size_t *chunks; /* samples of each chunk. Borrowed until the next call */
    size_t chunk_count;
    double loss;                    /* mean over the batch's units. NaN: the batch has no units */
    double metrics[MT_METRICS_MAX]; /* means, in the backend's order */
    double grad_norm;               /* before clipping. NaN: not computed */
    double seconds;                 /* as the backend measured. Discarded work is included */
    unsigned retries;               /* times that the step was rolled back and retried */
    size_t discarded; /* samples whose work was discarded, those of the failed chunk included */
    int skipped;      /* an mt_skip. 0: the update was made */
    mt_plan_reason reason;       /* of the last plan */
    size_t predicted_peak_bytes; /* 0: no prediction */
    size_t peak_bytes;           /* highest allocated bytes during the step */
    size_t allocated_bytes;      /* after the step */
    size_t reserved_bytes;       /* after the step */
    size_t budget_bytes;         /* after the step: it may have changed during the step */
    unsigned rungs;              /* MT_RUNG_BITs that were on */
    double rate; /* factor of the learning rate. 1 unless the batch was made smaller */
    double lr;   /* as mt_apply_result has it, the factor included. 0: not told, or no update */
} mt_step_report;

/* All fields are zero except size. */
#define MT_STEP_REPORT_INIT                                                                        \
    {                                                                                              \
        sizeof(mt_step_report), 0, 0, NULL, 0, 0, {0}, 0, 0, 0, 0, 0, MT_PLAN_START, 0, 0, 0, 0,   \
            0, 0, 0, 0                                                                             \
    }

/*
 * Makes one optimiser step on a batch.
 *
 * @param batch   borrowed for the call
 * @param report  may be NULL
 * @return MT_OK: the update has been made, unless report->skipped says why not, or the batch was
 *         dropped.
 *         If the memory could not be read after the update, the report's figures of it are 0.
 *         MT_EDEVMEM: the batch did not fit, and nothing has changed.
 *         MT_EINVAL: an argument is wrong.
 *         MT_ESTATE: a rollback has failed in this step or an earlier one, so the state is lost; or
 *         a function that the trainer itself has called made this call.
 *         Any other status of the backend, after a rollback.
 */
MT_API MT_NODISCARD mt_status mt_trainer_step(mt_trainer *trainer, const mt_batch *batch,
                                              mt_step_report *report);

/*
 * Gives the chunks of the next step, for replaying a trace. The policy does not choose them then.
 *
 * The chunks are used once. They are forgotten also when that step fails. They must add up to the
 * next batch. With the rung MT_RUNG_SMALLER_BATCH (mt_trainer_set_rungs) they may add up to less. A
 * step with given chunks retries, but never changes them.
 *
 * @return MT_OK, MT_EINVAL (a chunk of 0), MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_trainer_set_chunks(mt_trainer *trainer, const size_t *chunks,
                                                    size_t count);

/*
 * Gives the rungs and the factor of the learning rate of the next step, for replaying a trace. It
 * goes with mt_trainer_set_chunks, and is used once too.
 *
 * A step with given chunks but without this call runs with no rung and a factor of 1. With
 * MT_RUNG_SMALLER_BATCH the chunks may cover only the first samples of the batch, as in the step
 * that was made smaller.
 *
 * @return MT_OK, MT_EINVAL (a rung that the backend does not know, a factor not above 0)
 */
MT_API MT_NODISCARD mt_status mt_trainer_set_rungs(mt_trainer *trainer, unsigned rungs,
                                                   double rate);

/* What one evaluation call gave. */
typedef struct mt_eval_report {
    size_t size; /* sizeof(mt_eval_report), set by the caller */
    size_t samples;
    double loss;                    /* mean over the batch's units */
    double metrics[MT_METRICS_MAX]; /* means, as mt_backend_info.metric_over says */
    double seconds;
    unsigned retries;
    size_t peak_bytes;
    size_t chunk_count; /* chunks that succeeded */
} mt_eval_report;

#define MT_EVAL_REPORT_INIT                                                                        \
    { sizeof(mt_eval_report), 0, 0, {0}, 0, 0, 0, 0 }

/*
 * Runs a batch forward only, in chunks that fit. Every sample counts once, whatever was retried.
 *
 * A forward pass may write to tensors in evaluation mode, such as an average of weights. What a
 * failed chunk wrote is rolled back, and what chunks wrote that are run again with it. The rest stays.
 *
 * @return as mt_trainer_step; MT_ENOTSUP when the backend has no evaluate
 */
MT_API MT_NODISCARD mt_status mt_trainer_evaluate(mt_trainer *trainer, const mt_batch *batch,
                                                  mt_eval_report *report);

/* Means over the steps and evaluation calls since the previous epoch. */
typedef struct mt_epoch_report {
    size_t size;    /* sizeof(mt_epoch_report), set by the caller */
    uint64_t epoch; /* counted from 1 */
    size_t samples, eval_samples;
    double loss, eval_loss; /* NaN when nothing was run */
    double metrics[MT_METRICS_MAX], eval_metrics[MT_METRICS_MAX];
    double seconds; /* training and evaluation */
    size_t peak_bytes;
} mt_epoch_report;

#define MT_EPOCH_REPORT_INIT                                                                       \
    { sizeof(mt_epoch_report), 0, 0, 0, 0, 0, {0}, {0}, 0, 0 }

/*
 * Ends an epoch: reports it, writes its line to the trace, and starts the sums anew.
 *
 * @param report  may be NULL
 */
MT_API MT_NODISCARD mt_status mt_trainer_end_epoch(mt_trainer *trainer, mt_epoch_report *report);

/* The whole run so far. */
typedef struct mt_run_report {
    size_t size; /* sizeof(mt_run_report), set by the caller */
    uint64_t steps;
    uint64_t samples_trained;   /* each counts once for each step that was applied or skipped */
    uint64_t samples_discarded; /* whose forward and backward work a rollback discarded */
    uint64_t ooms, clears;
    size_t peak_bytes, budget_bytes;
    size_t smallest_chunk, largest_chunk; /* of the applied steps. 0 before the first */
    double seconds;
    char state_sha256[65]; /* "" before mt_trainer_finish, and when the backend has no hash */
} mt_run_report;

#define MT_RUN_REPORT_INIT                                                                         \
    {                                                                                              \
        sizeof(mt_run_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {                                     \
            0                                                                                      \
        }                                                                                          \
    }

/* Reports the run so far, without the hash of the state. */
MT_API MT_NODISCARD mt_status mt_trainer_summary(const mt_trainer *trainer, mt_run_report *report);

/*
 * Reports the run with the hash of the state, and writes the trace's last line.
 *
 * @param report  may be NULL
 */
MT_API MT_NODISCARD mt_status mt_trainer_finish(mt_trainer *trainer, mt_run_report *report);

/*
 * Returns the policy of a trainer, to ask it for predictions. It is borrowed for the trainer's
 * life. NULL for NULL.
 */
MT_API const mt_policy *mt_trainer_policy(const mt_trainer *trainer);

/*
 * Says why the last step or evaluation did not fit. The text has several lines: the budget, what is
 * allocated and by whom, what the smallest chunk needs, and what would make it fit. The text is ""
 * when no step or evaluation failed for memory. A batch that its source could not load is neither.
 *
 * @return the length without the final zero, as snprintf does
 */
MT_API size_t mt_trainer_explain(const mt_trainer *trainer, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
