/*
 * forecast.h - what a run will do with a batch, asked of the policy that the run will have.
 *
 * The chunks that a run would record first are recorded and taken back, and the policy is told of them, so
 * that what it plans then is what it plans in the run: chunks, rungs, gradients and peak. It is also how a
 * policy is driven from outside of mt_trainer.
 */
#ifndef EX_FORECAST_H
#define EX_FORECAST_H

#include <memtrain/policy.h>

typedef struct ex_recorded ex_recorded;

/* What a rung has come to. */
typedef struct ex_tried {
    unsigned rungs; /* that were on */
    size_t samples; /* of the step: fewer than the batch's with MT_RUNG_SMALLER_BATCH */
    size_t chunk;   /* the smallest legal one of these */
    int fits;
} ex_tried;

enum { EX_TRIED = 32 };

typedef struct ex_forecast {
    const mt_backend *backend;
    const mt_batch *batch;
    mt_policy_options options;
    mt_backend_info info;
    unsigned rungs;        /* that are on in the backend */
    ex_recorded *recorded; /* chunks that went through, each once */
    size_t failed;         /* samples of the first chunk that did not go through; 0: none */
    char error[512];       /* and what was said of it */
    size_t refused; /* with the rungs that are on, the smallest that did not go through; 0: none */
    size_t ran_alone; /* samples of the whole batch that went through as a chunk alone; 0: none */
    ex_tried tried[EX_TRIED];
    size_t tried_count;
} ex_forecast;

/* Whether a backend has recordings, with no rung on. */
int ex_forecast_can_record(const mt_backend *backend, const mt_backend_info *info);

/*
 * Takes the batch once for each of the first chunks, and back. sizes are chosen by memory alone, as with
 * mt_policy_options.deterministic: so the plan has the fewest chunks.
 * @param backend, batch  borrowed; the backend records
 * @param options         of the run; micro_batch and rungs count
 * @param out             free with ex_forecast_free in any case
 * @param plan            of a step once sizes are known, with the rungs that it takes, which are on until
 *                        ex_forecast_free; the first step may differ, by what it records. Where nothing
 *                        helps, no rung is on
 * @return MT_OK; MT_EDEVMEM: nothing that is allowed makes the smallest chunk fit; what the backend returned
 */
MT_NODISCARD mt_status ex_forecast_step(const mt_backend *backend, const mt_batch *batch,
                                        const mt_policy_options *options, ex_forecast *out,
                                        mt_plan *plan);

/*
 * A min_micro_batch below that of the options with which a step fits, the largest for its number of chunks: such
 * a step is looked for with the rungs that keep batch and device, and its chunks are run. 0: none.
 * @return MT_OK; what the backend returned
 */
MT_NODISCARD mt_status ex_forecast_least(const mt_backend *backend, const mt_batch *batch,
                                         const mt_policy_options *options, size_t *out);

/* Turns off what it has turned on, frees what it has recorded. @return what the backend returned */
MT_NODISCARD mt_status ex_forecast_free(ex_forecast *forecast);

/* What a chunk of so many samples needs, with the rungs that are on. */
typedef struct ex_need {
    size_t samples;
    size_t peak_bytes; /* with all else that is allocated */
    int is_bound;      /* 1: it may need less: its size has not run, and one other alone is known */
    int fits;          /* by what is known */
    int may_fit;       /* 1: the bound alone does not */
    int keep, alone;   /* as in mt_plan, where it fits; alone also where nothing less would do */
} ex_need;

/* Whether the peak of a plan is such a bound. */
int ex_forecast_is_bound(const ex_forecast *forecast, const mt_plan *plan);

/*
 * Records chunks that tell of all sizes, unless they have been: two sizes, or where only one goes through
 * that. Where not even the smallest that the options allow does, those that the network allows.
 * @return MT_EDEVMEM: none goes through
 */
MT_NODISCARD mt_status ex_forecast_record(ex_forecast *forecast);

/* @param samples  of the step, of which the chunk is the largest */
MT_NODISCARD mt_status ex_forecast_need(const ex_forecast *forecast, size_t samples, size_t chunk,
                                        ex_need *out);

/* The largest chunk of a step of so many that fits with its gradients in place; 0: none. */
MT_NODISCARD mt_status ex_forecast_largest(const ex_forecast *forecast, size_t samples,
                                           size_t *out);

#endif
