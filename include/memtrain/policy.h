/*
 * memtrain/policy.h - decides how a batch is cut: recordings, the memory model, plans, the policy.
 *
 * Everything here is plain C without a device, a tensor or a clock. Observations go in, decisions
 * come out. Most programs never call it, because mt_trainer (memtrain/trainer.h) does. Include it
 * to set options. Or include it to drive the policy from a training loop of your own that has to
 * stay in control. A step of such a loop is:
 *
 *     mt_policy_begin(policy, NULL);
 *     plan:
 *     mt_policy_plan(policy, MT_TRAIN, batch, &memory, &plan); // MT_EDEVMEM: it does not fit
 *     run:
 *     for (size_t i = 0;; i++) {
 *         if (i == mt_plan_chunks(&plan) && !plan.discard && mt_plan_covered(&plan) < plan.samples)
 *             if (mt_policy_extend(policy, MT_TRAIN, &memory, &plan) != MT_OK) {
 *                 roll the whole step back; mt_policy_replan(policy); goto plan;
 *             }
 *         size_t samples = mt_plan_chunk(&plan, i); if (samples == 0) break;
 *         mt_recording *recording = mt_policy_recording(policy, MT_TRAIN, samples);
 *         run the next samples; unless recording is NULL, give it each allocation and release;
 *         if (memory ran out) {
 *             roll the whole step back; mt_policy_oom(policy, &oom, &action);
 *             if (action == MT_ACTION_GIVE_UP) the batch does not fit;
 *             if (action == MT_ACTION_REPLAN) goto plan;
 *             if (action == MT_ACTION_CLEAR) empty the cache;
 *             goto run;
 *         }
 *         mt_policy_observe(policy, MT_TRAIN, samples, allocated_before, &result);
 *     }
 *     if (plan.discard) { roll the whole step back; goto plan; }
 *     update the weights;
 *
 * Set the size of memory, oom and result. Read memory anew before each plan and each extension. A
 * policy made without mt_backend_info asks for no rung but a smaller batch, and marks no chunk.
 *
 * Thread rule for all objects here: one thread at a time.
 */
#ifndef MEMTRAIN_POLICY_H
#define MEMTRAIN_POLICY_H

#include <memtrain/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a chunk runs for. Each mode has its own recordings and times. */
typedef enum mt_mode { MT_TRAIN = 0, MT_EVALUATE = 1 } mt_mode;

/* ---- recordings ----------------------------------------------------------------------------- */

/* The allocations and releases of one chunk, in their order. */
typedef struct mt_recording mt_recording;

/*
 * Makes an empty recording.
 *
 * @param out  new reference: free with mt_recording_free
 * @return MT_OK, MT_EINVAL, MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_recording_new(mt_recording **out);

/* Frees a recording. NULL is a no-op. */
MT_API void mt_recording_free(mt_recording *recording);

/*
 * Forgets all events and starts a new recording.
 *
 * @param samples  of the chunk that is recorded, at least 1
 */
MT_API MT_NODISCARD mt_status mt_recording_start(mt_recording *recording, size_t samples);

/*
 * Notes one event. Releases of blocks whose allocation the recording has not seen are ignored. If
 * the recorder itself runs out of host memory, it stops, and the recording counts as incomplete.
 *
 * @param address  of the block; it is compared, never read
 * @param bytes    above 0: the block was allocated; below 0: it was released; 0: it is a gradient
 *                 that is handed over (see mt_event_sink)
 */
MT_API void mt_recording_event(mt_recording *recording, void *address, int64_t bytes);

/*
 * Figures of a recording: the samples of the chunk, the number of allocations, and the highest
 * bytes above what was allocated at the start. 0 for NULL.
 */
MT_API size_t mt_recording_samples(const mt_recording *recording);
MT_API size_t mt_recording_allocations(const mt_recording *recording);
MT_API size_t mt_recording_peak_bytes(const mt_recording *recording);

/* ---- the memory model ------------------------------------------------------------------------ */

/*
 * Predicts the peak of any chunk size, from recordings of two sizes.
 *
 * The i-th allocation of a chunk of m samples has a size that is affine in m. So the bytes alive at
 * each instant t are affine in m too. The peak is the maximum of these lines: convex and piecewise
 * affine in m. The model keeps the upper envelope of the lines. A query goes through a few
 * segments.
 *
 * The two sequences may differ: a kernel changes with m, or several threads allocate. Then they are
 * aligned by a longest common subsequence. An event without a partner counts with its bytes. These
 * bytes are the model's margin.
 *
 * One recording alone gives an estimate. So does a pair in which more than 256 allocations have no
 * partner. Gradients that were handed over count as constant then. All else counts as
 * proportional to m above the recorded size. Below that size the peak is taken to be that of the
 * recording.
 */
typedef struct mt_memory_model mt_memory_model;

/*
 * Makes a memory model. The recordings are not needed afterwards.
 *
 * @param small  a complete recording
 * @param large  a complete recording of a larger chunk size; NULL: the model is made from small
 *               alone
 * @param out    new reference: free with mt_memory_model_free
 * @return MT_OK; MT_EINVAL (empty, incomplete, or sizes not ascending); MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_memory_model_new(const mt_recording *small,
                                                  const mt_recording *large, mt_memory_model **out);

/* Frees a memory model. NULL is a no-op. */
MT_API void mt_memory_model_free(mt_memory_model *model);

/*
 * Predicts the peak of a chunk of that many samples, in bytes above what was allocated at its
 * start. The margin is not included.
 */
MT_API size_t mt_memory_model_peak(const mt_memory_model *model, size_t samples);

/* The margin: the bytes of events without a partner. The peak may be off by as much. */
MT_API size_t mt_memory_model_margin(const mt_memory_model *model);

/*
 * Finds the largest chunk whose peak and margin are within room_bytes.
 *
 * @return samples; 0 when not even one sample fits; SIZE_MAX when every chunk fits. A room_bytes of
 *         2^61 or more means no limit, and gives SIZE_MAX too.
 */
MT_API size_t mt_memory_model_largest(const mt_memory_model *model, size_t room_bytes);

/* ---- plans ---------------------------------------------------------------------------------- */

/* Why a plan is as it is. */
typedef enum mt_plan_reason {
    MT_PLAN_START = 0,      /* the first plan of a run, or after a batch of another size */
    MT_PLAN_THROUGHPUT = 1, /* measured as faster, or to be measured */
    MT_PLAN_GROWTH = 2,     /* there is more room than before */
    MT_PLAN_OOM = 3,        /* memory ran out under the previous plan */
    MT_PLAN_BUDGET = 4,     /* there is less room than before */
    MT_PLAN_REPLAY = 5,     /* the caller gave the chunks, from a trace */
    MT_PLAN_USER = 6        /* the options fix the chunk size */
} mt_plan_reason;

/* The name of a reason, as in the trace: "start", "throughput" and so on. Static. Any thread. */
MT_API const char *mt_plan_reason_name(mt_plan_reason reason);

/* The most groups of chunks in a plan. */
#define MT_PLAN_GROUPS 8

/* Several chunks of one size. */
typedef struct mt_chunk_group {
    size_t samples; /* of each chunk */
    size_t times;   /* number of chunks */
} mt_chunk_group;

/*
 * The chunks of one batch, in the order of the groups. It is a plain value: copy it freely.
 *
 * With MT_RUNG_SMALLER_BATCH in rungs, samples may be less than was asked for. The step then trains
 * only the first samples of the batch. A batch whose chunks are small enough already stays whole.
 *
 * A plan is open when its chunks cover fewer than samples. Once its chunks have run and have been
 * recorded, mt_policy_extend adds the rest. A plan that turns MT_RUNG_CPU on or off is open too: it
 * has no chunks until the memory of that device is known.
 *
 * A plan with discard set only serves a recording. Run it, roll the step back, and ask for a plan
 * again.
 */
typedef struct mt_plan {
    size_t size;    /* sizeof(mt_plan) */
    size_t samples; /* of the step */
    mt_chunk_group group[MT_PLAN_GROUPS];
    size_t groups;
    mt_plan_reason reason;
    int discard; /* 1: run the chunks to record them, then roll back */
    /*
     * Predicted allocated bytes at the peak. 0: no prediction. It is exact for sizes between those
     * recorded, on the kernels that they ran on. It may be predicted from other lengths (mt_shape).
     * Once a chunk peaks a hundredth away from such a prediction, other lengths are no longer used.
     */
    size_t predicted_peak_bytes;
    unsigned rungs; /* MT_RUNG_BITs that are to be on */
    int keep;       /* 1: there is room for a second set of gradients, so mark before each chunk */
    double rate;    /* factor of the learning rate, for a batch made smaller. 1 otherwise */
    /*
     * 1: the plan has one chunk, and no memory is held for the sum of gradients. Call
     * hold_gradients with on 0 before begin.
     */
    int alone;
    size_t budget_bytes; /* that it was made for. 0: none */
} mt_plan;

/*
 * Figures of a plan: the number of chunks, the samples that the chunks cover together, and the
 * samples of the chunk at index (0 past the end).
 */
MT_API size_t mt_plan_chunks(const mt_plan *plan);
MT_API size_t mt_plan_covered(const mt_plan *plan);
MT_API size_t mt_plan_chunk(const mt_plan *plan, size_t index);

/*
 * Cuts samples into that many chunks whose sizes differ by at most one. Larger chunks come first.
 *
 * @return MT_OK; MT_EINVAL unless 1 <= chunks <= samples
 */
MT_API MT_NODISCARD mt_status mt_plan_balanced(size_t samples, size_t chunks, mt_plan *out);

/* ---- the policy ----------------------------------------------------------------------------- */

/*
 * The rungs that keep the numbers. They are used if the backend has them, unless forbid_rungs
 * forbids them.
 */
#define MT_RUNGS_DEFAULT (MT_RUNG_BIT(MT_RUNG_CHECKPOINTING) | MT_RUNG_BIT(MT_RUNG_OFFLOAD))

/* What becomes of the learning rate when the batch is made smaller, to a share s of its samples. */
typedef enum mt_rate_rule {
    MT_RATE_KEEP = 0,   /* it stays the same */
    MT_RATE_LINEAR = 1, /* times s (Goyal et al. 2017, arXiv 1706.02677) */
    MT_RATE_SQRT = 2    /* times the square root of s (Krizhevsky 2014, arXiv 1404.5997) */
} mt_rate_rule;

/*
 * Whether an OOM costs only the chunk that it hits, or the whole step. To lose only the chunk takes
 * room for a second set of gradients. MT_KEEP_AUTO keeps finished chunks when recordings say that
 * there is room. Without such recordings there is only a bound: the backend does not report
 * gradients, or nothing is recorded. MT_KEEP_AUTO uses the bound for fixed chunks alone.
 * MT_KEEP_ALWAYS uses it for all.
 */
#define MT_KEEP_AUTO 0
#define MT_KEEP_ALWAYS 1
#define MT_KEEP_NEVER (-1)

/*
 * When the cache is cleared. MT_CLEAR_AUTO: on evidence, for at most 1 % of the time and in at most
 * 1 % of the steps. MT_CLEAR_NEVER: only after an OOM. MT_CLEAR_EPOCHS: at the end of
 * each epoch (mt_trainer_end_epoch), and after an OOM.
 */
#define MT_CLEAR_AUTO 0
#define MT_CLEAR_NEVER (-1)
#define MT_CLEAR_EPOCHS (-2)

/* Options of a policy. Zero is the default of every field. */
typedef struct mt_policy_options {
    size_t size;        /* sizeof(mt_policy_options) */
    size_t micro_batch; /* largest chunk, fixed: as few balanced chunks as it allows. 0: chosen */
    /*
     * No chunk is smaller, except when the batch is smaller. 0: what the backend says
     * (mt_backend_info.min_micro_batch).
     */
    size_t min_micro_batch;
    /*
     * No chunk is larger, if the batch can be cut so with min_micro_batch kept. Otherwise
     * min_micro_batch wins: 8 samples in chunks of at least 5 and at most 5 are one chunk. 0: no
     * bound.
     */
    size_t max_micro_batch;
    int clear_every;      /* N: clear the cache every N training steps and after each epoch.
                              Or MT_CLEAR_AUTO, MT_CLEAR_NEVER, MT_CLEAR_EPOCHS */
    int eval_clear_every; /* N: every N evaluation calls. Or MT_CLEAR_AUTO, MT_CLEAR_NEVER */
    /*
     * 1: sizes follow memory alone, not times: equal budgets give equal chunks, also after a stop.
     * This needs recordings. Where there are none (MPS), set micro_batch: measured peaks differ.
     */
    int deterministic;
    unsigned max_retries;  /* of one step with the same rungs. 0: 16 */
    unsigned allow_rungs;  /* MT_RUNG_BITs that are allowed beside MT_RUNGS_DEFAULT */
    unsigned forbid_rungs; /* MT_RUNG_BITs that are never used. None of allow_rungs may be in it */
    mt_rate_rule rate_rule;
    int keep_chunks; /* MT_KEEP_AUTO, MT_KEEP_ALWAYS or MT_KEEP_NEVER */
} mt_policy_options;

#define MT_POLICY_OPTIONS_INIT                                                                     \
    { sizeof(mt_policy_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, MT_RATE_KEEP, 0 }

typedef struct mt_policy mt_policy;

/*
 * Makes a policy.
 *
 * @param options  NULL: defaults; copied
 * @param info     what the backend says of the model; NULL: nothing is known. Copied, except for
 *                 its strings, which must outlive the policy
 * @param out      new reference: free with mt_policy_free
 * @return MT_OK, MT_EINVAL (names the field), MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_policy_new(const mt_policy_options *options,
                                            const mt_backend_info *info, mt_policy **out);

/* Frees a policy. NULL is a no-op. */
MT_API void mt_policy_free(mt_policy *policy);

/*
 * Call it before each step and each evaluation. Then all calls are about batches of this shape.
 * What is known of a thousand shapes is kept. Then the oldest ones are forgotten.
 *
 * A length that was not seen before may lie between three that were, or a little beyond them. Then
 * it begins with what is known of these. Bytes follow the parabola through their bytes. Seconds a
 * sample are in proportion to those of the nearest length. Deterministic runs do without.
 *
 * @param shape  of the batch's samples (mt_backend.shape); NULL: one shape for all batches
 */
MT_API MT_NODISCARD mt_status mt_policy_begin(mt_policy *policy, const mt_shape *shape);

/*
 * Says that the description of the model has changed. gradient_bytes, normalises_over_batch and
 * min_micro_batch are read. During a step they count from the next plan on.
 *
 * @return MT_OK; MT_EINVAL when the options fix a size below min_micro_batch
 */
MT_API MT_NODISCARD mt_status mt_policy_describe(mt_policy *policy, const mt_backend_info *info);

/*
 * Says that the step was rolled back, though no memory ran out since the last plan. The next plan
 * is for the same step. A plan with discard set needs no such call.
 */
MT_API MT_NODISCARD mt_status mt_policy_replan(mt_policy *policy);

/*
 * Says that the caller chooses the next chunks, so that they are not those of a plan.
 *
 * @param keep  1: each chunk has a second set of gradients (mark); 0: gradients are added in place
 */
MT_API MT_NODISCARD mt_status mt_policy_given(mt_policy *policy, int keep);

/*
 * Writes what was learned of all kinds of chunks: peaks, times, what failed. The next run begins
 * with it. An existing file is replaced once the new one is complete.
 *
 * @return MT_OK; MT_EINVAL; MT_ENOTSUP when the backend gives no model (mt_backend_info.model);
 *         MT_EIO; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_policy_save(const mt_policy *policy, const char *path);

/*
 * Reads what another run has written with mt_policy_save. The budgets of the two runs may differ.
 * Kinds of chunks of which something is known already stay as they are.
 *
 * A file is ignored, with a line in the log, when it is damaged, or when its model, device, number
 * of threads or version is another one. So is any file in a deterministic run, whose chunks must
 * not depend on earlier runs. A missing file is not an error: the first run has none.
 *
 * @param kinds  receives the number of kinds that were read; may be NULL
 * @return MT_OK; MT_EINVAL; MT_ENOTSUP as for mt_policy_save; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_policy_load(mt_policy *policy, const char *path, size_t *kinds);

/*
 * Returns the MT_RUNG_BITs that are on. The policy takes every observation as made with these
 * rungs. 0 for NULL.
 */
MT_API unsigned mt_policy_rungs(const mt_policy *policy);

/*
 * Plans the chunks of the next batch of that many samples. Once the sizes of a shape are known, it
 * allocates nothing and takes well under 2 microseconds.
 *
 * When the smallest legal chunk does not fit, the plan has larger chunks, then the whole batch
 * alone. Each is tried once for a step and a set of rungs, unless it is known not to fit. After
 * that the plan asks for the next allowed rung. So may a plan for the rest of a step that has
 * begun. Then roll the step back, and ask for a plan of the whole batch.
 *
 * @param memory  as it is before the step. In training, add gradient_bytes to allocated_bytes while
 *                gradients are not held (mt_backend.hold_gradients)
 * @return MT_OK; MT_EINVAL; MT_ENOMEM; MT_EDEVMEM when the model knows that not even the smallest
 *         legal chunk fits (the error line says what is missing)
 */
MT_API MT_NODISCARD mt_status mt_policy_plan(mt_policy *policy, mt_mode mode, size_t samples,
                                             const mt_memory *memory, mt_plan *out);

/*
 * Adds the rest of the batch to an open plan whose chunks have run.
 *
 * @return as mt_policy_plan
 */
MT_API MT_NODISCARD mt_status mt_policy_extend(mt_policy *policy, mt_mode mode,
                                               const mt_memory *memory, mt_plan *plan);

/*
 * Returns the recording to fill while a chunk of that many samples runs. It is started already, and
 * borrowed until mt_policy_observe. NULL when nothing is to be learned from this chunk.
 */
MT_API mt_recording *mt_policy_recording(mt_policy *policy, mt_mode mode, size_t samples);

/*
 * Says that a chunk has succeeded. The policy learns from its recording (if it asked for one), its
 * time and its peak.
 *
 * @param allocated_before  allocated bytes when the chunk began
 */
MT_API MT_NODISCARD mt_status mt_policy_observe(mt_policy *policy, mt_mode mode, size_t samples,
                                                size_t allocated_before,
                                                const mt_chunk_result *result);

/*
 * Whether to wait for the device after a chunk of that many samples, so that its own time is known.
 * 1 until that size has run three times. 0 in a deterministic run, which uses no times.
 */
MT_API int mt_policy_wants_seconds(const mt_policy *policy, mt_mode mode, size_t samples);

/*
 * Gives the time of a chunk that was observed before its time was known (mt_chunk_result.deferred).
 * If several chunks ran without a wait between them, give each its share of their time.
 *
 * @param seconds  ignored if it is not above 0, or not finite
 * @return MT_OK; MT_EINVAL; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_policy_observe_seconds(mt_policy *policy, mt_mode mode,
                                                        size_t samples, double seconds);

/*
 * Says that the backend could not turn a rung of the plan on or off. Ask for a plan again.
 *
 * A rung that could not be turned on is not asked for again in this step. If why is MT_ENOTSUP, it
 * is never asked for again. A rung that could not be turned off stays on for longer.
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

/* The name of a phase: "begin", "accumulate", "apply", "evaluate". Static. Any thread. */
MT_API const char *mt_phase_name(mt_phase phase);

/* An OOM. The step, or its marked chunk, has been rolled back before it is reported. */
typedef struct mt_oom {
    size_t size; /* sizeof(mt_oom) */
    mt_mode mode;
    mt_phase phase;
    size_t chunk;      /* samples of the chunk. 0 outside of a chunk */
    unsigned attempt;  /* OOMs of this step so far, this one included: 1, 2, ... */
    int plan_is_fixed; /* 1: the chunks are given (replay) and must not be changed */
    uint64_t refused;  /* evidence, see mt_chunk_result. 0: none */
    size_t refused_bytes;
    size_t refused_in_use_bytes;
    size_t allocated_before_bytes; /* when the chunk began */
    mt_memory memory;              /* after the rollback. As for mt_policy_plan */
} mt_oom;

/* What to do after an OOM. */
typedef enum mt_action {
    MT_ACTION_RETRY = 0,  /* run the same plan again */
    MT_ACTION_CLEAR = 1,  /* empty the cache, then run the same plan again */
    MT_ACTION_REPLAN = 2, /* ask mt_policy_plan for another plan */
    MT_ACTION_GIVE_UP = 3 /* nothing is left to try */
} mt_action;

/*
 * Decides what to do after an OOM. docs/policy.md has the table.
 *
 * The budget explains a refusal when the bytes in use and the request together are above it. A
 * refusal without evidence counts as explained inside a chunk, and as not explained outside of one.
 *
 * A refusal that the budget does not explain is an accident at first. The same plan runs again,
 * then once more with an empty cache. The third refusal of a chunk, if there is evidence, is a
 * shortage. Then less may be allocated for some steps, in batches of all shapes.
 *
 * A refusal that the budget explains corrects the model. The next plan comes from the model.
 * Where nothing is recorded and no peak is measured, it is half of what failed.
 *
 * Retries are bounded by max_retries. In addition, the cache may be emptied once for each smaller
 * chunk. Before the first plan of a step nothing can be made smaller: then the answer is to try
 * again, or to give up.
 */
MT_API MT_NODISCARD mt_status mt_policy_oom(mt_policy *policy, const mt_oom *oom, mt_action *out);

/* Why the cache is cleared. */
typedef enum mt_clear_reason {
    MT_CLEAR_NOT = 0,
    MT_CLEAR_EVERY = 1,
    MT_CLEAR_EVIDENCE = 2,
    MT_CLEAR_EPOCH = 3,
    MT_CLEAR_OOM = 4
} mt_clear_reason;

/* The name of a reason: "every", "evidence", "epoch", "oom". Static. Any thread. */
MT_API const char *mt_clear_reason_name(mt_clear_reason reason);

/*
 * Decides whether to empty the cache now. Ask once before each step or evaluation call.
 *
 * MT_CLEAR_AUTO clears when more is reserved than the budget, or when the allocator had to retry.
 * There is one such clear in 100 calls of a mode at most. All together take at most 1 % of the time
 * that chunks were told to take; the last clear does not count. Deterministic runs do not look at the time.
 *
 * Clearing every N steps comes before step N + 1, 2 N + 1, and so on.
 */
MT_API mt_clear_reason mt_policy_clear(mt_policy *policy, mt_mode mode, const mt_memory *memory);

/* Says that the cache was emptied, and what that cost. */
MT_API void mt_policy_cleared(mt_policy *policy, const mt_clear_result *result);

/*
 * Predicts the peak and the time of a chunk of that many samples, for reports. The peak is in bytes
 * above what is allocated when the chunk begins, margin included. It is 0 when nothing has been
 * recorded or run. The time is what was measured, in seconds. It is 0 when that size has not run.
 *
 * The peak comes from the memory model. With one recording it is an estimate. Without recordings it
 * is a bound: the peak of the largest chunk that has run, in proportion for larger chunks. A chunk
 * may take far less. There are no recordings if chunks are fixed (mt_policy_options.micro_batch),
 * or if the backend has no record. docs/memory.md has an example, docs/policy.md the rules.
 */
MT_API size_t mt_policy_predict_bytes(const mt_policy *policy, mt_mode mode, size_t samples);
MT_API double mt_policy_predict_seconds(const mt_policy *policy, mt_mode mode, size_t samples);

#ifdef __cplusplus
}
#endif
#endif
