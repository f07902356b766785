/*
 * memtrain/trainer.h - the transaction: a batch goes through inside the budget, or nothing happened.
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
 * When memory runs out the chunk that failed is taken back, or the whole step where there is no room
 * for a second set of gradients, and what is missing is done again under another plan; a run that
 * met OOMs ends bit-equal to a run that was given the same chunks from the start (which chunks a run
 * takes depends on measured times, unless the policy is deterministic). When nothing is
 * left to try the step returns MT_EDEVMEM, the model is as it was before the step, and the error
 * line (mt_trainer_explain: a longer text) says what would make it fit.
 *
 * Thread rule: a trainer and its backend belong to one thread at a time; two trainers may run in
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
 * Receives one line of the trace: a JSON object without a newline. Borrowed for the call.
 * docs/trace.md lists the events and their keys.
 */
typedef void (*mt_trace_fn)(void *user, const char *line);

typedef struct mt_trainer_options {
    size_t size;                     /* sizeof(mt_trainer_options) */
    const mt_policy_options *policy; /* NULL: defaults; copied */
    mt_trace_fn trace;               /* NULL: no trace */
    void *trace_user;
    size_t batch;         /* for the trace's first line only; 0: left out */
    uint64_t seed;        /* likewise */
    int drop_small;       /* 1: a batch below the smallest legal chunk is dropped;
                                        0: it is run as one chunk */
    int unused;           /* not read: older callers have padding here, with anything in it */
    int apply_not_finite; /* 0: a step whose loss is infinite or not a number is taken back before the
                             update, its report says so, and mt_log warns; 1: the update is made */
    /*
     * A file that what was learnt of chunks is read from (mt_policy_load), and written to at the end of each epoch and
     * by mt_trainer_finish (mt_policy_save): the next run begins with it. A file that cannot be written is told of in the
     * log. NULL: none. Copied.
     */
    const char *learned;
} mt_trainer_options;

#define MT_TRAINER_OPTIONS_INIT                                                                    \
    { sizeof(mt_trainer_options), NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL }

/*
 * @param backend  copied; what its self points to must outlive the trainer
 * @param options  NULL: defaults; copied
 * @param out      new reference: free with mt_trainer_free; NULL on failure
 * @return MT_OK; MT_EINVAL (names the function or field that is missing); MT_ENOMEM; what describe
 *         or memory returned
 */
MT_API MT_NODISCARD mt_status mt_trainer_new(const mt_backend *backend,
                                             const mt_trainer_options *options, mt_trainer **out);

/*
 * NULL is a no-op. The backend is not touched. From a function that the trainer itself has called it frees
 * nothing, and mt_log says so.
 */
MT_API void mt_trainer_free(mt_trainer *trainer);

/* Why a step has made no update. Parameters and the optimiser's state and counts are as they were. */
typedef enum mt_skip {
    MT_SKIP_NOT = 0,        /* the update was made */
    MT_SKIP_APPLY = 1,      /* the backend's apply left it out: a gradient was not finite */
    MT_SKIP_NOT_FINITE = 2, /* the loss was not finite */
    MT_SKIP_NO_UNITS = 3    /* the batch has no units: every label is masked, of all processes */
} mt_skip;

/*
 * What one step did; left alone when the step failed. To repeat a step bit for bit, hand its chunks to
 * mt_trainer_set_chunks: those of recordings that were taken back are not among them.
 */
typedef struct mt_step_report {
    size_t size;   /* sizeof(mt_step_report), set by the caller */
    uint64_t step; /* counted from 1 */
    /* Trained, by this process: the first of the batch, all but where it was made smaller; 0: dropped. */
    size_t samples;
    const size_t *chunks; /* samples of each chunk; borrowed until the next call */
    size_t chunk_count;
    double loss;                    /* mean over the batch's units; NaN: it has none */
    double metrics[MT_METRICS_MAX]; /* means, in the backend's order */
    double grad_norm;               /* before clipping; NaN: not computed */
    double seconds;                 /* as the backend measured, discarded work included */
    unsigned retries;               /* times that the step was taken back and done again */
    size_t discarded;      /* samples whose work was thrown away, the failed chunk's included */
    int skipped;           /* an mt_skip; 0: the update was made */
    mt_plan_reason reason; /* of the last plan */
    size_t predicted_peak_bytes; /* 0: no prediction */
    size_t peak_bytes;           /* highest allocated during the step */
    size_t allocated_bytes;      /* after the step */
    size_t reserved_bytes;
    size_t budget_bytes; /* after the step: it may have been changed on the way */
    unsigned rungs;      /* MT_RUNG_BITs that were on */
    double rate;         /* factor of the learning rate; 1 but where the batch was made smaller */
} mt_step_report;

/* Zero but for the size. */
#define MT_STEP_REPORT_INIT                                                                        \
    {                                                                                              \
        sizeof(mt_step_report), 0, 0, NULL, 0, 0, {0}, 0, 0, 0, 0, 0, MT_PLAN_START, 0, 0, 0, 0,   \
            0, 0, 0                                                                                \
    }

/*
 * One optimiser step on a batch.
 *
 * @param batch   borrowed for the call
 * @param report  may be NULL
 * @return MT_OK; MT_EDEVMEM: did not fit, nothing changed; MT_EINVAL; MT_ESTATE: the trainer is
 *         poisoned by a failed rollback, this step's or an earlier one's, or the call comes from a
 *         function that the trainer itself has called; any other status of the backend after a
 *         rollback. After MT_OK the update has been made, whatever the report lacks, unless
 *         report->skipped says why not.
 */
MT_API MT_NODISCARD mt_status mt_trainer_step(mt_trainer *trainer, const mt_batch *batch,
                                              mt_step_report *report);

/*
 * The chunks of the next step, instead of the policy's; for replaying a trace. Used once and
 * forgotten, also when that step fails; they must add up to the next batch, or to less with the rung
 * MT_RUNG_SMALLER_BATCH (mt_trainer_set_rungs). Such a step retries but never changes its chunks.
 * @return MT_OK, MT_EINVAL (a chunk of 0), MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_trainer_set_chunks(mt_trainer *trainer, const size_t *chunks,
                                                    size_t count);

/*
 * The rungs and the factor of the learning rate of the next step, beside mt_trainer_set_chunks and for
 * the same purpose; used once. Without it, such a step runs with no rung and a factor of 1. With
 * MT_RUNG_SMALLER_BATCH the chunks may be the first samples of the batch alone, as in the step that
 * was made smaller.
 * @return MT_OK, MT_EINVAL (a rung that the backend does not know, a factor not above 0)
 */
MT_API MT_NODISCARD mt_status mt_trainer_set_rungs(mt_trainer *trainer, unsigned rungs,
                                                   double rate);

/* What one evaluation call gave. */
typedef struct mt_eval_report {
    size_t size; /* sizeof(mt_eval_report), set by the caller */
    size_t samples;
    double loss;                    /* mean over the batch's units */
    double metrics[MT_METRICS_MAX]; /* means, as metric_over says */
    double seconds;
    unsigned retries;
    size_t peak_bytes;
    size_t chunk_count; /* chunks that went through */
} mt_eval_report;

#define MT_EVAL_REPORT_INIT                                                                        \
    { sizeof(mt_eval_report), 0, 0, {0}, 0, 0, 0, 0 }

/*
 * Forward only over a batch, in chunks that fit. Every sample counts once, whatever was retried. What a model's forward
 * pass writes to in evaluation mode, an average of weights say, stays written by the chunks that went through; a chunk that
 * failed is taken back.
 * @return as mt_trainer_step; MT_ENOTSUP when the backend has no evaluate
 */
MT_API MT_NODISCARD mt_status mt_trainer_evaluate(mt_trainer *trainer, const mt_batch *batch,
                                                  mt_eval_report *report);

/* Means over the steps and evaluation calls since the epoch before. */
typedef struct mt_epoch_report {
    size_t size;    /* sizeof(mt_epoch_report), set by the caller */
    uint64_t epoch; /* counted from 1 */
    size_t samples, eval_samples;
    double loss, eval_loss; /* NaN where nothing was run */
    double metrics[MT_METRICS_MAX], eval_metrics[MT_METRICS_MAX];
    double seconds; /* training and evaluation */
    size_t peak_bytes;
} mt_epoch_report;

#define MT_EPOCH_REPORT_INIT                                                                       \
    { sizeof(mt_epoch_report), 0, 0, 0, 0, 0, {0}, {0}, 0, 0 }

/* Ends an epoch: reports it, writes its line to the trace, starts the sums anew. report may be NULL. */
MT_API MT_NODISCARD mt_status mt_trainer_end_epoch(mt_trainer *trainer, mt_epoch_report *report);

/* The whole run so far. */
typedef struct mt_run_report {
    size_t size; /* sizeof(mt_run_report), set by the caller */
    uint64_t steps;
    uint64_t samples_trained;   /* once for each step that was applied or skipped */
    uint64_t samples_discarded; /* forward and backward work that a rollback threw away */
    uint64_t ooms, clears;
    size_t peak_bytes, budget_bytes;
    size_t smallest_chunk, largest_chunk; /* of the applied steps; 0 before the first */
    double seconds;
    char state_sha256[65]; /* "" where the backend has no hash, or before mt_trainer_finish */
} mt_run_report;

#define MT_RUN_REPORT_INIT                                                                         \
    {                                                                                              \
        sizeof(mt_run_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {                                     \
            0                                                                                      \
        }                                                                                          \
    }

/* The figures so far, without the hash. */
MT_API MT_NODISCARD mt_status mt_trainer_summary(const mt_trainer *trainer, mt_run_report *report);

/* The same with the hash of the state; writes the trace's last line. report may be NULL. */
MT_API MT_NODISCARD mt_status mt_trainer_finish(mt_trainer *trainer, mt_run_report *report);

/*
 * The policy inside, to ask for predictions; borrowed for the trainer's life. NULL for NULL.
 */
MT_API const mt_policy *mt_trainer_policy(const mt_trainer *trainer);

/*
 * Why the last step or evaluation did not fit, as a text of several lines: the budget, what is
 * allocated and by whom, what the smallest chunk needs, and what would make it fit.
 * @return the length without the final zero, as snprintf does; "" when nothing failed for memory
 */
MT_API size_t mt_trainer_explain(const mt_trainer *trainer, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
