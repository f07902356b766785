/*
 * memtrain/policy.h - what decides: recordings, the memory model, plans, the policy.
 *
 * Everything here is plain C without a device, a tensor or a clock: observations go in, decisions
 * come out. Most programs never call it, since mt_trainer (memtrain/trainer.h) does. Include it to
 * set options, or to drive the policy from a training loop that cannot be turned inside out:
 *
 *     mt_policy_begin(policy, NULL);
 *     mt_policy_plan(policy, MT_TRAIN, batch, &memory, &plan);
 *     for each chunk of the plan: run it, mt_policy_observe(policy, ...);
 *     on an OOM, after taking the step back: mt_policy_oom(policy, &oom, &action);
 *
 * Thread rule for all objects here: one thread at a time.
 */
#ifndef MEMTRAIN_POLICY_H
#define MEMTRAIN_POLICY_H

#include <memtrain/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a chunk is run for; each mode has recordings and times of its own. */
typedef enum mt_mode { MT_TRAIN = 0, MT_EVALUATE = 1 } mt_mode;

/* ---- recordings ----------------------------------------------------------------------------- */

/* The allocations and releases of one chunk in their order. */
typedef struct mt_recording mt_recording;

/* New reference: free with mt_recording_free. @return MT_OK, MT_EINVAL, MT_ENOMEM. */
MT_API MT_NODISCARD mt_status mt_recording_new(mt_recording **out);

/* NULL is a no-op. */
MT_API void mt_recording_free(mt_recording *recording);

/* Forgets all events and starts anew, for a chunk of that many samples (at least 1). */
MT_API MT_NODISCARD mt_status mt_recording_start(mt_recording *recording, size_t samples);

/*
 * Notes one event: bytes > 0, the block at address was allocated; bytes < 0, it was released;
 * bytes == 0, it is a gradient that is handed over (see mt_event_sink).
 * Releases of blocks that the recording has not seen allocated are ignored. If the recorder itself
 * runs out of host memory it stops and the recording counts as incomplete.
 */
MT_API void mt_recording_event(mt_recording *recording, void *address, int64_t bytes);

/* Samples of the chunk, number of allocations, highest bytes above the start. 0 for NULL. */
MT_API size_t mt_recording_samples(const mt_recording *recording);
MT_API size_t mt_recording_allocations(const mt_recording *recording);
MT_API size_t mt_recording_peak_bytes(const mt_recording *recording);

/* ---- the memory model ------------------------------------------------------------------------ */

/*
 * The peak of any chunk size, from recordings of two.
 *
 * The i-th allocation of a chunk of m samples has a size that is affine in m, so the bytes live at
 * each instant t are affine too, and the peak is the maximum of those lines: convex and piecewise
 * affine in m. The model keeps the upper envelope of the lines; a query walks a few segments.
 *
 * Where the two sequences differ (a kernel that changes with m, several threads), they are aligned
 * by a longest common subsequence; an event without a partner counts with its bytes, and these
 * bytes are the model's margin. With one recording alone, or where one has 256 allocations more than the other,
 * gradients that were handed over count as constant and all else as proportional to m above the recorded
 * size; below it the peak is taken to be that of the recording.
 */
typedef struct mt_memory_model mt_memory_model;

/*
 * @param small  a complete recording
 * @param large  one of another, larger chunk size; NULL: model from small alone
 * @param out    new reference: free with mt_memory_model_free
 * @return MT_OK; MT_EINVAL (empty, incomplete, or sizes not ascending); MT_ENOMEM. The recordings
 *         are not needed afterwards.
 */
MT_API MT_NODISCARD mt_status mt_memory_model_new(const mt_recording *small,
                                                  const mt_recording *large, mt_memory_model **out);

/* NULL is a no-op. */
MT_API void mt_memory_model_free(mt_memory_model *model);

/* Bytes above the start at the peak of a chunk of that many samples, margin not included. */
MT_API size_t mt_memory_model_peak(const mt_memory_model *model, size_t samples);

/* Bytes of events without a partner: how much the peak may be off. */
MT_API size_t mt_memory_model_margin(const mt_memory_model *model);

/*
 * Largest chunk whose peak and margin are within room_bytes; 0 when not even one sample is,
 * SIZE_MAX when every chunk is, or room_bytes is 2^61 and more: no limit.
 */
MT_API size_t mt_memory_model_largest(const mt_memory_model *model, size_t room_bytes);

/* ---- plans ---------------------------------------------------------------------------------- */

typedef enum mt_plan_reason {
    MT_PLAN_START = 0,      /* the first plan of a run, or of a batch size not seen before */
    MT_PLAN_THROUGHPUT = 1, /* measured (or to be measured) as faster */
    MT_PLAN_GROWTH = 2,     /* there is more room than before */
    MT_PLAN_OOM = 3,        /* memory ran out under the plan before */
    MT_PLAN_BUDGET = 4,     /* there is less room than before */
    MT_PLAN_REPLAY = 5,     /* given by the caller, from a trace */
    MT_PLAN_USER = 6        /* a chunk size fixed by the options */
} mt_plan_reason;

/* "start", "throughput", ...; the words of the trace. Static. Any thread. */
MT_API const char *mt_plan_reason_name(mt_plan_reason reason);

#define MT_PLAN_GROUPS 8

/* So many chunks of so many samples. */
typedef struct mt_chunk_group {
    size_t samples;
    size_t times;
} mt_chunk_group;

/*
 * The chunks of one batch, in the order of the groups. A plain value: copy it freely.
 *
 * With MT_RUNG_SMALLER_BATCH in rungs, samples may be less than was asked for: the step trains the first
 * samples of the batch alone. One whose chunks are small enough already stays whole. A plan that covers fewer than samples is open: once its chunks have
 * run (and have been recorded), mt_policy_extend adds the rest. So is one that turns MT_RUNG_CPU on
 * or off: it has no chunks until the memory of that device is known. A plan with discard set is a
 * recording only: run it, take the step back, and ask for a plan again.
 */
typedef struct mt_plan {
    size_t size;    /* sizeof(mt_plan) */
    size_t samples; /* of the step */
    mt_chunk_group group[MT_PLAN_GROUPS];
    size_t groups;
    mt_plan_reason reason;
    int discard;
    /*
     * Allocated bytes at the peak; 0: no prediction. Exact of sizes between those recorded, on the kernels that they ran on;
     * told from other lengths (mt_shape) a chunk that is a hundredth away ends that.
     */
    size_t predicted_peak_bytes;
    unsigned rungs; /* MT_RUNG_BITs that are to be on */
    int keep;       /* 1: there is room for a second set of gradients, so mark before each chunk */
    double rate;    /* factor of the learning rate, for a batch made smaller; 1 otherwise */
    int alone; /* 1: the one chunk's gradients are the only ones: hold_gradients off before begin */
} mt_plan;

/* Number of chunks, samples covered by them, and samples of chunk index (0 past the end). */
MT_API size_t mt_plan_chunks(const mt_plan *plan);
MT_API size_t mt_plan_covered(const mt_plan *plan);
MT_API size_t mt_plan_chunk(const mt_plan *plan, size_t index);

/*
 * Cuts samples into that many chunks whose sizes differ by at most one, larger ones first.
 * @return MT_OK; MT_EINVAL unless 1 <= chunks <= samples.
 */
MT_API MT_NODISCARD mt_status mt_plan_balanced(size_t samples, size_t chunks, mt_plan *out);

/* ---- the policy ----------------------------------------------------------------------------- */

/* The rungs that keep the numbers, used where the backend has them unless they are forbidden. */
#define MT_RUNGS_DEFAULT (MT_RUNG_BIT(MT_RUNG_CHECKPOINTING) | MT_RUNG_BIT(MT_RUNG_OFFLOAD))

/* What becomes of the learning rate when the batch is made smaller to a share s of what was asked. */
typedef enum mt_rate_rule {
    MT_RATE_KEEP = 0,   /* it stays */
    MT_RATE_LINEAR = 1, /* times s (Goyal et al. 2017, arXiv 1706.02677) */
    MT_RATE_SQRT = 2    /* times the root of s (Krizhevsky 2014, arXiv 1404.5997) */
} mt_rate_rule;

/*
 * Whether an OOM costs the chunk that it hits, by a second set of gradients where there is room for
 * one, or the whole step. Automatic: where recordings know what it needs; by a bound alone (the backend
 * does not tell of gradients, or nothing is recorded) for fixed chunks.
 */
#define MT_KEEP_AUTO 0
#define MT_KEEP_ALWAYS 1
#define MT_KEEP_NEVER (-1)

#define MT_CLEAR_AUTO 0 /* on evidence, at most 1 % of the time (of the steps, if deterministic) */
#define MT_CLEAR_NEVER (-1)
#define MT_CLEAR_EPOCHS (-2) /* at the end of each epoch (mt_trainer_end_epoch) alone */

/* Zero is the default of every field. */
typedef struct mt_policy_options {
    size_t size;        /* sizeof(mt_policy_options) */
    size_t micro_batch; /* largest chunk, fixed by the user: as few balanced chunks as it allows;
                               0: chosen */
    size_t
        min_micro_batch; /* never smaller, except for a batch that is; 0: what the backend says */
    size_t max_micro_batch; /* never larger, where a cut into chunks that are not too small allows
                               it (8 samples, at least 5 and at most 5: one chunk); 0: no bound */
    int clear_every;        /* clear the cache each N training steps and after each epoch, or
                               MT_CLEAR_AUTO, _NEVER or _EPOCHS */
    int eval_clear_every;   /* each N evaluation calls, MT_CLEAR_AUTO or _NEVER */
    int deterministic;      /* 1: sizes from memory alone: equal by budget, also after a stop */
    unsigned max_retries;   /* of one step with the same rungs; 0: 16 */
    unsigned allow_rungs;   /* MT_RUNG_BITs allowed beside MT_RUNGS_DEFAULT */
    unsigned forbid_rungs;  /* never used; none of allow_rungs */
    mt_rate_rule rate_rule;
    int keep_chunks; /* MT_KEEP_AUTO, MT_KEEP_ALWAYS or MT_KEEP_NEVER */
} mt_policy_options;

#define MT_POLICY_OPTIONS_INIT                                                                     \
    { sizeof(mt_policy_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, MT_RATE_KEEP, 0 }

typedef struct mt_policy mt_policy;

/*
 * @param options  NULL: defaults; copied
 * @param info     what the backend says of itself, NULL: nothing; copied, but for its strings, which must outlive the policy
 * @param out      new reference: free with mt_policy_free
 * @return MT_OK, MT_EINVAL (names the field), MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_policy_new(const mt_policy_options *options,
                                            const mt_backend_info *info, mt_policy **out);

/* NULL is a no-op. */
MT_API void mt_policy_free(mt_policy *policy);

/*
 * A step or an evaluation begins, on a batch whose samples look like that (mt_backend.shape; NULL: as all others).
 * From now on all calls are about such batches. What is known of a thousand shapes is kept, those that were used last.
 *
 * A length that was not seen before, between three that were, or a little beyond, begins with what is known of these:
 * bytes by the parabola through theirs, seconds a sample in proportion to the nearest. Not in deterministic runs.
 */
MT_API MT_NODISCARD mt_status mt_policy_begin(mt_policy *policy, const mt_shape *shape);

/*
 * What the backend says of itself has changed: gradient_bytes, normalises_over_batch and min_micro_batch are read. In a step
 * it counts from the next plan on. @return MT_OK; MT_EINVAL where a size that the options fix is below min_micro_batch
 */
MT_API MT_NODISCARD mt_status mt_policy_describe(mt_policy *policy, const mt_backend_info *info);

/*
 * The step was taken back, though no memory ran out since the last plan: the next plan is for the same step. A plan that
 * says discard needs no such call.
 */
MT_API MT_NODISCARD mt_status mt_policy_replan(mt_policy *policy);

/*
 * The chunks to come are not those of a plan, but the caller's own: with a second set of gradients each (keep), or in
 * place.
 */
MT_API MT_NODISCARD mt_status mt_policy_given(mt_policy *policy, int keep);

/*
 * Writes what was learnt of all kinds of chunks, so that the next run begins with it: peaks, times, what failed. A file that
 * has the name is replaced once the new one is whole.
 * @return MT_OK; MT_EINVAL; MT_ENOTSUP: the backend tells no model (mt_backend_info.model); MT_EIO; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_policy_save(const mt_policy *policy, const char *path);

/*
 * Reads what another run has written, at whatever budget. Kinds of which something is known already stay as they are.
 * A file that is damaged, or that is of another model, device, number of threads or version is left out, with a line in the
 * log; so is any file in a deterministic run, whose chunks must not depend on runs before it. One that is not there is that
 * of a first run.
 * @param kinds  becomes the number of kinds that were read; may be NULL
 * @return MT_OK; MT_EINVAL; MT_ENOTSUP as for mt_policy_save; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_policy_load(mt_policy *policy, const char *path, size_t *kinds);

/* The MT_RUNG_BITs that are taken, of which all observations are. 0 for NULL. */
MT_API unsigned mt_policy_rungs(const mt_policy *policy);

/*
 * The chunks of the next batch of that many samples, given the memory as it is before the step.
 * Allocates nothing once the sizes of a shape are known; costs well under 2 microseconds.
 *
 * In training, memory->allocated_bytes is told as if gradients were held: with gradient_bytes added while
 * they are not (mt_backend.hold_gradients).
 *
 * Where the smallest legal chunk does not fit, the plan is the whole batch alone, once a step and rung, unless that
 * is known not to fit; then it asks for the next rung that is allowed. What is left of a step that has begun may be
 * answered so too: take the step back then, and ask for the whole batch.
 *
 * A rung is left again when what is known of the plan without it says that it fits, and is not slower; one
 * that had to be taken again soon is kept twice as long the next time.
 *
 * @return MT_OK; MT_EINVAL; MT_ENOMEM; MT_EDEVMEM when the model knows that not even the smallest legal chunk
 *         fits (the error line says what is missing)
 */
MT_API MT_NODISCARD mt_status mt_policy_plan(mt_policy *policy, mt_mode mode, size_t samples,
                                             const mt_memory *memory, mt_plan *out);

/* Adds the rest of the batch to an open plan whose chunks have run. @return as mt_policy_plan. */
MT_API MT_NODISCARD mt_status mt_policy_extend(mt_policy *policy, mt_mode mode,
                                               const mt_memory *memory, mt_plan *plan);

/*
 * The recording to fill while a chunk of that many samples runs: borrowed until mt_policy_observe,
 * or NULL when nothing is to be learnt from this chunk. Started already.
 */
MT_API mt_recording *mt_policy_recording(mt_policy *policy, mt_mode mode, size_t samples);

/*
 * A chunk went through. Takes its recording (if one was asked for), its time and its peak.
 * @param allocated_before  allocated bytes when the chunk began
 */
MT_API MT_NODISCARD mt_status mt_policy_observe(mt_policy *policy, mt_mode mode, size_t samples,
                                                size_t allocated_before,
                                                const mt_chunk_result *result);

/*
 * Whether a chunk of that many samples is to be waited for, so that its time is known by itself: 1 until that size has run
 * three times. 0 also in a deterministic run, which knows no times.
 */
MT_API int mt_policy_wants_seconds(const mt_policy *policy, mt_mode mode, size_t samples);

/*
 * What a chunk took that was observed before its time was known (mt_chunk_result.deferred). Of chunks that ran on end it is
 * each one's share of their time.
 * @param seconds  not above 0, or not finite: ignored
 * @return MT_OK; MT_EINVAL; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_policy_observe_seconds(mt_policy *policy, mt_mode mode,
                                                        size_t samples, double seconds);

/*
 * The backend could not turn a rung of the plan on or off; ask for a plan again. A rung that could not be
 * turned on is not asked for again in this step, or never where why is MT_ENOTSUP; one that could not
 * be turned off stays on for longer.
 */
MT_API MT_NODISCARD mt_status mt_policy_rung_failed(mt_policy *policy, mt_rung rung, int on,
                                                    mt_status why);

/* Where a step was when memory ran out. */
typedef enum mt_phase {
    MT_PHASE_BEGIN = 0,
    MT_PHASE_ACCUMULATE = 1,
    MT_PHASE_APPLY = 2,
    MT_PHASE_EVALUATE = 3
} mt_phase;

/* "begin", "accumulate", "apply", "evaluate". Static. Any thread. */
MT_API const char *mt_phase_name(mt_phase phase);

/* An OOM as it was seen; the step has been taken back. */
typedef struct mt_oom {
    size_t size; /* sizeof(mt_oom) */
    mt_mode mode;
    mt_phase phase;
    size_t chunk;      /* samples of the chunk; 0 outside of one */
    unsigned attempt;  /* OOMs of this step so far, this one included: 1, 2, ... */
    int plan_is_fixed; /* 1: the chunks are given (replay) and may not be changed */
    uint64_t refused;  /* evidence, see mt_chunk_result; 0: none */
    size_t refused_bytes;
    size_t refused_in_use_bytes;
    size_t allocated_before_bytes; /* when the chunk began */
    mt_memory memory;              /* after the step was taken back; told as for mt_policy_plan */
} mt_oom;

typedef enum mt_action {
    MT_ACTION_RETRY = 0,  /* the same plan again */
    MT_ACTION_CLEAR = 1,  /* empty the cache, then the same plan again */
    MT_ACTION_REPLAN = 2, /* ask mt_policy_plan again */
    MT_ACTION_GIVE_UP = 3 /* nothing is left to try */
} mt_action;

/*
 * What to do after an OOM. A refusal that the budget does not explain (in use + request is within
 * it, or there was no chunk and no evidence) is an accident at first: the same plan again, then once more with
 * an empty cache. The third in a row is a shortage: for some steps less may be allocated, in batches of all shapes.
 * One that the budget does explain (or that came without evidence in a chunk) corrects the model, and the next plan comes
 * from the model, not from halving. Bounded by max_retries; each smaller chunk may have the cache emptied once beside
 * them. docs/policy.md has the table.
 */
MT_API MT_NODISCARD mt_status mt_policy_oom(mt_policy *policy, const mt_oom *oom, mt_action *out);

typedef enum mt_clear_reason {
    MT_CLEAR_NOT = 0,
    MT_CLEAR_EVERY = 1,
    MT_CLEAR_EVIDENCE = 2,
    MT_CLEAR_EPOCH = 3,
    MT_CLEAR_OOM = 4
} mt_clear_reason;

/* "every", "evidence", "epoch", "oom". Static. Any thread. */
MT_API const char *mt_clear_reason_name(mt_clear_reason reason);

/*
 * Whether to empty the cache now; asked once before each step (or evaluation call).
 * Automatic clearing acts when more is reserved than the budget, or when the allocator had to retry. All clears together
 * cost at most 1 % of the time, the first one apart. Where no time is measured, and in deterministic runs, it is one clear
 * in 100 calls instead.
 * Clearing each N steps comes before step N + 1, 2 N + 1, and so on.
 */
MT_API mt_clear_reason mt_policy_clear(mt_policy *policy, mt_mode mode, const mt_memory *memory);

/* The cache was emptied, at that cost. */
MT_API void mt_policy_cleared(mt_policy *policy, const mt_clear_result *result);

/*
 * What the policy knows of a mode, for reports: the predicted peak above the start of a chunk of so
 * many samples with margin, 0 when nothing has been recorded or run; and its measured time in seconds, 0
 * when it has not run.
 *
 * The peak is that of the memory model; with one recording it is an estimate. With none, which is so where chunks are fixed (mt_policy_options.micro_batch) and where the backend has
 * no record, it is a bound: the peak of the largest chunk that has run, in proportion for larger ones,
 * which may take far less (docs/memory.md has an example, docs/policy.md the rules).
 */
MT_API size_t mt_policy_predict_bytes(const mt_policy *policy, mt_mode mode, size_t samples);
MT_API double mt_policy_predict_seconds(const mt_policy *policy, mt_mode mode, size_t samples);

#ifdef __cplusplus
}
#endif
#endif
