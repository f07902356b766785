/*
 * memtrain/forecast.h - what a run will do with a batch: its chunks, its peak, and the rungs that it takes.
 *
 *     mt_forecast *forecast;
 *     mt_plan plan;
 *     mt_status status = mt_forecast_new(&backend, &batch, &policy, &forecast);
 *     if (status == MT_OK) status = mt_forecast_step(forecast, &plan);
 *     if (status == MT_OK) printf("chunks of %zu, %zu bytes\n", mt_plan_chunk(&plan, 0), plan.predicted_peak_bytes);
 *     mt_forecast_free(forecast);
 *
 * A run records its first chunks. A forecast runs and records the same chunks, and takes them back.
 * It tells a policy of them. What this policy then plans is what it plans in the run. No update is
 * made: parameters, buffers, optimiser state and random numbers stay as they are.
 *
 * The backend has to record its allocations. One that does so costs a few chunks. For samples that
 * are large, memtrain/rehearsal.h is such a backend, and runs none of their chunks.
 *
 * Thread rule: a forecast and its backend belong to one thread at a time. No trainer may have a step
 * of that backend under way. It is in libmemtrain_memory: link with -lmemtrain_memory -lmemtrain.
 */
#ifndef MEMTRAIN_FORECAST_H
#define MEMTRAIN_FORECAST_H

#include <memtrain/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mt_forecast mt_forecast;

/*
 * Makes a forecast. Nothing runs yet.
 *
 * @param backend  copied; what its self points to is borrowed until mt_forecast_free
 * @param batch    copied; its data is borrowed until mt_forecast_free
 * @param policy   of the run; NULL: defaults. Copied. Chunks are chosen by memory alone, as with
 *                 deterministic, so a plan has the fewest chunks
 * @param out      new reference: free with mt_forecast_free; NULL on failure
 * @return MT_OK; MT_EINVAL; MT_ENOTSUP for a backend that does not record, or only with a rung
 *         (mt_backend_info.record_rungs); MT_ENOMEM; what describe returned
 */
MT_API MT_NODISCARD mt_status mt_forecast_new(const mt_backend *backend, const mt_batch *batch,
                                              const mt_policy_options *policy, mt_forecast **out);

/*
 * Frees a forecast, and turns off the rungs that it has turned on. If the backend fails to do so,
 * mt_log says it. NULL is a no-op.
 */
MT_API void mt_forecast_free(mt_forecast *forecast);

/*
 * Runs the chunks that a run would learn from, and tells the step that follows once sizes are known.
 * Call it once. The rungs that the step takes stay on until mt_forecast_free. The first step of a run may differ,
 * because it has chunks that are recorded.
 *
 * @param plan  the step, with its peak. If nothing helps, it is not a plan, and no rung is on
 * @return MT_OK; MT_EDEVMEM: nothing that is allowed makes the smallest chunk fit; MT_ENOMEM; what
 *         the backend returned
 */
MT_API MT_NODISCARD mt_status mt_forecast_step(mt_forecast *forecast, mt_plan *plan);

/* What a forecast has met. */
typedef struct mt_forecast_report {
    size_t size;       /* sizeof(mt_forecast_report), set by the caller */
    unsigned rungs;    /* MT_RUNG_BITs that are on */
    size_t failed;     /* samples of the first chunk that did not fit. 0: each did */
    const char *error; /* what the backend said of that chunk. Borrowed from the forecast */
    size_t refused; /* samples of the smallest chunk that does not fit with these rungs. 0: none */
    size_t ladder_count; /* how many mt_forecast_ladder tells */
} mt_forecast_report;

#define MT_FORECAST_REPORT_INIT                                                                    \
    { sizeof(mt_forecast_report), 0, 0, NULL, 0, 0 }

/* @return MT_OK, MT_EINVAL */
MT_API MT_NODISCARD mt_status mt_forecast_summary(const mt_forecast *forecast,
                                                  mt_forecast_report *report);

/* Rungs that were tried together, and what came of it. */
typedef struct mt_rungs_tried {
    size_t size;    /* sizeof(mt_rungs_tried), set by the caller */
    unsigned rungs; /* MT_RUNG_BITs that were on */
    int fits;       /* 1: a step fitted */
    size_t samples; /* of the step: fewer than the batch has, with MT_RUNG_SMALLER_BATCH */
    size_t chunk;   /* samples of the smallest legal chunk of the step */
} mt_rungs_tried;

#define MT_RUNGS_TRIED_INIT                                                                        \
    { sizeof(mt_rungs_tried), 0, 0, 0, 0 }

/* @param index  in the order of trying; below ladder_count. @return MT_OK, MT_EINVAL */
MT_API MT_NODISCARD mt_status mt_forecast_ladder(const mt_forecast *forecast, size_t index,
                                                 mt_rungs_tried *out);

/* ---- other sizes than that of the step -------------------------------------------------------- */

/*
 * Runs chunks that tell of all sizes: two sizes, or one if only one fits. If none fits that the
 * options allow, smaller ones are run that the network allows. Call it after mt_forecast_step.
 *
 * @return MT_OK; MT_EDEVMEM: none fits; MT_ENOMEM; what the backend returned
 */
MT_API MT_NODISCARD mt_status mt_forecast_record(mt_forecast *forecast);

/* What a chunk needs, with the rungs that are on. */
typedef struct mt_chunk_need {
    size_t size;       /* sizeof(mt_chunk_need), set by the caller */
    size_t samples;    /* of the chunk */
    size_t peak_bytes; /* with all else that is allocated */
    int is_bound;      /* 1: it may need less, since only one other size has run */
    int fits;          /* 1: by what is known */
    int may_fit;       /* 1: only the bound does not fit */
    int keep, alone;   /* as in mt_plan, if it fits. alone also if nothing less would do */
} mt_chunk_need;

#define MT_CHUNK_NEED_INIT                                                                         \
    { sizeof(mt_chunk_need), 0, 0, 0, 0, 0, 0, 0 }

/*
 * Tells what a chunk needs. Nothing runs.
 *
 * @param samples  of the step
 * @param chunk    samples of its largest chunk, from 1 to samples
 * @return MT_OK, MT_EINVAL, MT_ENOMEM; what the backend's memory returned
 */
MT_API MT_NODISCARD mt_status mt_forecast_need(const mt_forecast *forecast, size_t samples,
                                               size_t chunk, mt_chunk_need *out);

/*
 * Tells the largest chunk of a step of so many samples that fits with its gradients in place. Nothing
 * runs.
 *
 * @param out  0: none fits
 * @return MT_OK, MT_EINVAL, MT_ENOMEM; what the backend's memory returned
 */
MT_API MT_NODISCARD mt_status mt_forecast_largest(const mt_forecast *forecast, size_t samples,
                                                  size_t *out);

/* Whether the peak of a plan is a bound, as in mt_chunk_need. 0 also for NULL. */
MT_API int mt_forecast_is_bound(const mt_forecast *forecast, const mt_plan *plan);

/*
 * Looks for a min_micro_batch below that of the policy with which a step fits. It tries the rungs
 * that keep batch and device, and runs chunks of the step.
 *
 * @param backend, batch, policy  as of mt_forecast_new; borrowed for the call
 * @param out  the largest for its number of chunks; 0: none
 * @return as mt_forecast_new; MT_OK if none fits
 */
MT_API MT_NODISCARD mt_status mt_forecast_least(const mt_backend *backend, const mt_batch *batch,
                                                const mt_policy_options *policy, size_t *out);

#ifdef __cplusplus
}
#endif
#endif
