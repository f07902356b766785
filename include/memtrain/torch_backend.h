/*
 * memtrain/torch_backend.h - a model in training: its options, its optimiser, and the backend for mt_trainer.
 *
 * It is a part of memtrain/torch.h, which says what holds for all its parts: errors, threads, sizes of
 * structs. Library libmemtrain_torch.
 */
#ifndef MEMTRAIN_TORCH_BACKEND_H
#define MEMTRAIN_TORCH_BACKEND_H

#include <memtrain/backend.h>
#include <memtrain/segments.h>
#include <memtrain/torch_model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The kind of optimiser. */
typedef enum mt_optimizer { MT_SGD = 1, MT_ADAM = 2, MT_ADAMW = 3 } mt_optimizer;

/*
 * Whether the tensors of chunks on the CPU are served from planned memory (memtrain/arena.h). Their
 * places are decided once for each size of chunk, so they need neither malloc nor page faults. The
 * process holds hardly more than the tensors that are alive at once. Results are the same bits.
 */
#define MT_ARENA_AUTO 0 /* yes, if the library's CPU allocator is installed */
#define MT_ARENA_NEVER (-1)

/* When segments of the model forget their activations (mt_checkpoint). */
#define MT_CHECKPOINTING_AUTO 0 /* as the rung says: when no legal chunk fits without */
#define MT_CHECKPOINTING_ON 1
/*
 * Some segments forget: of all sets of segments that keep within activation_share or
 * activation_bytes, the set that costs the least time.
 *
 * In the first step with samples of a shape all segments forget. What each segment keeps, and how
 * long it takes, is measured. After that step the set is chosen for its largest chunk
 * (memtrain/segments.h). It does not change any more. For a policy the chunks before and after it
 * have different shapes, each with its own recordings and times. As the rung MT_RUNG_CHECKPOINTING,
 * the policy can still have all segments forget.
 *
 * The bits are the same, as far as those of mt_checkpoint are. MT_ENOTSUP on MPS, which reports no
 * peaks.
 */
#define MT_CHECKPOINTING_CHOSEN 2

/*
 * Where the tensors wait that autograd has saved for the backward pass, see mt_offload.
 *
 * MT_OFFLOAD_HOST, MT_OFFLOAD_FILE and MT_OFFLOAD_PACK are on from the start. The two AUTO kinds
 * are on while the rung MT_RUNG_OFFLOAD is. With MT_OFFLOAD_AUTO tensors of an accelerator wait in
 * the host's memory. On the CPU that memory is what the budget protects. There they wait in a file
 * if offload_dir is set. Otherwise the CPU has no such rung.
 */
#define MT_OFFLOAD_NEVER (-1)
#define MT_OFFLOAD_AUTO 0 /* as the rung says: when no legal chunk fits without. The same numbers */
#define MT_OFFLOAD_HOST 1
#define MT_OFFLOAD_FILE 2
#define MT_OFFLOAD_PACK 3
#define MT_OFFLOAD_AUTO_PACK 4 /* as the rung says, packed on every device. Other numbers */

/*
 * Parameters that are trained in another way than the options say.
 *
 * A pattern without a * is the beginning of their names ("fc."). A pattern with a * is the whole
 * name. Each * stands for any letters or none ("*.bias", "layer1.*.weight"). The first group whose
 * pattern fits counts. Tied weights go by their first name.
 */
typedef struct mt_parameter_group {
    size_t size; /* sizeof(mt_parameter_group), the same in all entries of an array */
    const char *pattern;
    double lr_factor;    /* factor of the learning rate, > 0 */
    double weight_decay; /* below 0 or NaN: the weight_decay of the options */
    int frozen; /* 1: frozen from the start, without memory for gradients and optimiser state */
} mt_parameter_group;

#define MT_PARAMETER_GROUP_INIT                                                                    \
    { sizeof(mt_parameter_group), NULL, 1.0, -1.0, 0 }

/*
 * Options of an mt_torch. There are no zero defaults: MT_TORCH_OPTIONS_INIT has the usual values.
 */
typedef struct mt_torch_options {
    size_t size;        /* sizeof(mt_torch_options) */
    const char *device; /* NULL: "cpu" */
    mt_optimizer optimizer;
    double lr;           /* > 0 */
    double momentum;     /* SGD, 0 <= x < 1 */
    int nesterov;        /* SGD with momentum */
    double beta1, beta2; /* Adam and AdamW, 0 <= x < 1 */
    double eps;          /* Adam and AdamW, > 0 */
    double weight_decay; /* L2 in SGD and Adam. Decoupled in AdamW (Loshchilov & Hutter 2019) */
    double clip_norm;    /* scale the gradient down to this L2 norm. 0: do not clip */
    /*
     * The dtype of autocast in the forward pass: MT_BFLOAT16, or MT_FLOAT16 with a loss scaler (not
     * on MPS). MT_DTYPE_NONE: off.
     */
    mt_dtype amp;
    int arena;         /* MT_ARENA_AUTO or MT_ARENA_NEVER */
    int checkpointing; /* MT_CHECKPOINTING_AUTO, _ON or _CHOSEN, for models with segments */
    int offload;       /* one of MT_OFFLOAD_... */
    /* Folder of the file, which mt_torch_new opens. NULL: TMPDIR, or /tmp. */
    const char *offload_dir;
    /* First loss scale under MT_FLOAT16: a power of two, 2^-16 to 2^32. 0: 65536. */
    double scale_start;
    /* Updates without an infinity before the scale is doubled. 0: 2000. */
    uint64_t scale_growth_interval;
    /*
     * group_count groups. May be NULL without any. Copied. A pattern that fits no trainable
     * parameter is refused.
     */
    const mt_parameter_group *groups;
    size_t group_count;
    /*
     * For MT_CHECKPOINTING_CHOSEN: the allowed peak of a chunk, as a share of its peak without
     * segments, up to 1. Parameters, their gradients and optimiser state do not count.
     */
    double activation_share;
    size_t activation_bytes; /* the same in bytes. Set one of the two, and leave the other 0 */
    /*
     * 1: parameters and tensors of a batch with four dimensions (pictures) are channels_last in
     * memory, and convolutions keep to it. Tensor cores want that. On CPUs it gains nothing as a
     * rule.
     *
     * Parameters stay channels_last afterwards, and 0 leaves them as they are. Files of weights are
     * row-major all the same. A batch that is not channels_last is copied, as part of its chunk.
     * Layers that draw random numbers over pictures draw others. view() of pictures may have to be
     * reshape().
     */
    int channels_last;
    /*
     * The processes that train this model together, see memtrain/processes.h. NULL: this one alone.
     * Copied. Its self is borrowed until mt_torch_free. mt_torch_new gives all processes the
     * weights of rank 0. So all of them call it at the same time, and later mt_apply. Not with
     * mt_train_step.
     */
    const struct mt_process_group *processes;
    /*
     * What happens when a loss or a gradient is infinite or not a number.
     *
     * 0: mt_train_step rolls back a step whose loss is not finite. With clip_norm, mt_apply skips
     * an update whose gradient has no finite norm.
     *
     * 1: the updates are made, and spoil the parameters.
     *
     * A loss scaler skips such updates in both cases. For the loss in a step of a trainer,
     * mt_trainer_options.apply_not_finite counts instead.
     */
    int apply_not_finite;
} mt_torch_options;

#define MT_TORCH_OPTIONS_INIT                                                                      \
    {                                                                                              \
        sizeof(mt_torch_options), NULL, MT_ADAMW, 1e-3, 0.9, 0, 0.9, 0.999, 1e-8, 0.01, 0.0,       \
            MT_DTYPE_NONE, MT_ARENA_AUTO, MT_CHECKPOINTING_AUTO, MT_OFFLOAD_AUTO, NULL, 0.0, 0,    \
            NULL, 0, 0.0, 0, 0, NULL, 0                                                            \
    }

/* One model and its optimiser on one device. */
typedef struct mt_torch mt_torch;

/*
 * Makes an mt_torch of a model: moves the model to the device, and lays out parameters, gradients
 * and optimiser state in flat blocks. So nothing can fail for memory in the middle of an update.
 *
 * Modules of the model see their parameters as before. `.grad` of a parameter is a view of the
 * gradient block. It is there from the chunk that reaches the parameter to the end of the step. A
 * marked chunk of the whole batch is the exception: its gradients stay where autograd has made
 * them.
 *
 * If a tensor shares memory with a parameter, it stays where it is. One tensor under several names
 * moves once.
 *
 * With options->processes all processes must have equal models. A model with embeddings is not
 * accepted then: its loss would see the pairs of one process only.
 *
 * @param model    borrowed until mt_torch_free
 * @param options  NULL: defaults; copied
 * @param out      new reference: free with mt_torch_free
 * @return MT_OK.
 *         MT_EDEVMEM: parameters, gradients and optimiser state do not fit. The line gives the
 *         bytes of each.
 *         MT_EINVAL: a wrong option (names the field); a model without a parameter; a parameter
 *         that trains and shares memory with another tensor; processes whose models differ.
 *         MT_ENOTSUP: the device or an option is not supported; a sparse, meta or quantised tensor
 *         (names it); embeddings with several processes.
 *         MT_EIO: no file can be made in offload_dir, or another process cannot be reached.
 */
MT_API MT_NODISCARD mt_status mt_torch_new(mt_model *model, const mt_torch_options *options,
                                           mt_torch **out);

/*
 * Frees an mt_torch. NULL is a no-op. The model stays and keeps its parameters. A function that a
 * step has called must not free it: then nothing is freed, and mt_log says so.
 */
MT_API void mt_torch_free(mt_torch *torch);

/*
 * Fills in the functions of a backend for mt_trainer_new. Functions that the device does not
 * support stay NULL: MPS has no record and no reset_peak.
 *
 * @param out  its size is set by the caller (MT_BACKEND_INIT); out->self is torch, which must
 *             outlive the trainer
 */
MT_API MT_NODISCARD mt_status mt_torch_backend(mt_torch *torch, mt_backend *out);

/* Figures of planned memory. */
typedef struct mt_arena_stats {
    size_t size;              /* sizeof(mt_arena_stats) */
    size_t bytes;             /* of the largest plan */
    size_t lower_bound_bytes; /* most bytes alive at a time in that plan */
    size_t plans;             /* one for each size and kind of chunk */
    uint64_t chunks;          /* chunks that ran */
    uint64_t recorded;        /* chunks that ran and served to make plans */
    uint64_t served;          /* requests of planned chunks that got a place in the arena */
    /*
     * Requests of planned chunks that got none: the plan had no place for them, or the place was
     * not free. Requests that the plan leaves to the heap do not count.
     */
    uint64_t missed;
    uint64_t guests; /* requests without a place that the arena served all the same */
} mt_arena_stats;

#define MT_ARENA_STATS_INIT                                                                        \
    { sizeof(mt_arena_stats), 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Reports the figures of planned memory. All are 0 if there is no arena.
 *
 * @return MT_OK, MT_EINVAL
 */
MT_API MT_NODISCARD mt_status mt_torch_arena(const mt_torch *torch, mt_arena_stats *out);

/*
 * Figures of segments (MT_CHECKPOINTING_CHOSEN), for chunks like those of the last step. The four
 * peaks are for the chunk that was measured, above what was allocated before it.
 */
typedef struct mt_segments_stats {
    size_t size;             /* sizeof(mt_segments_stats) */
    size_t segments;         /* of a chunk. 0: not measured */
    size_t recomputed;       /* number of segments that are computed again */
    size_t samples;          /* of the chunk that was measured */
    size_t budget_bytes;     /* allowed peak */
    size_t peak_bytes;       /* expected peak with these segments */
    size_t plain_peak_bytes; /* expected peak if no segment is computed again */
    size_t least_peak_bytes; /* expected peak if all are */
    double seconds;          /* that the second runs of these segments take */
    double all_seconds;      /* that second runs of all segments would take */
    /* Costs of each segment. Borrowed until the next step or mt_torch_set_segments. */
    const mt_segment_cost *costs;
    /* 1 for each segment that is computed again. Borrowed likewise. */
    const unsigned char *recompute;
} mt_segments_stats;

#define MT_SEGMENTS_STATS_INIT                                                                     \
    { sizeof(mt_segments_stats), 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, NULL, NULL }

/*
 * Reports the figures of segments. All are 0 until something was measured, and if checkpointing is
 * not MT_CHECKPOINTING_CHOSEN. Two things are not in the figures: the gradients of a marked chunk,
 * and the rung, which may have all segments forget.
 *
 * @return MT_OK, MT_EINVAL
 */
MT_API MT_NODISCARD mt_status mt_torch_segments(const mt_torch *torch, mt_segments_stats *out);

/*
 * With MT_CHECKPOINTING_CHOSEN: sets which segments are computed again, from the next step on, for
 * all shapes. The choice then does not depend on measured times.
 *
 * @param recompute  count numbers, in the order in which the forward pass comes to the segments;
 *                   segments within segments do not count. Not 0: the segment is computed again.
 *                   Segments beyond count are computed again too. NULL with a count of 0: the
 *                   choice is by measurement, as before
 * @return MT_OK; MT_EINVAL; MT_ESTATE during a step, or with another checkpointing; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_torch_set_segments(mt_torch *torch, const unsigned char *recompute,
                                                    size_t count);

/* Figures of offload, since mt_torch_new. */
typedef struct mt_offload_stats {
    size_t size;              /* sizeof(mt_offload_stats) */
    int kind;                 /* MT_OFFLOAD_HOST, _FILE or _PACK. MT_OFFLOAD_NEVER: there is none */
    int on;                   /* 1: the next chunk uses it */
    size_t packed_bytes;      /* that wait now, in the host's memory, in the file, or as bf16 */
    size_t peak_packed_bytes; /* most that waited at a time */
    uint64_t packed;          /* tensors that were put away */
    uint64_t shared;          /* tensors that were saved again while they were put away already */
    /* Tensors that stay: small, not floating point, parameters, buffers, inputs. */
    uint64_t left_alone;
    uint64_t unpacked;             /* tensors that were brought back */
    uint64_t total_packed_bytes;   /* of all tensors that were put away, as they waited */
    uint64_t total_original_bytes; /* of the same tensors, as they were before */
    double seconds;                /* that putting away and bringing back has taken */
} mt_offload_stats;

#define MT_OFFLOAD_STATS_INIT                                                                      \
    { sizeof(mt_offload_stats), MT_OFFLOAD_NEVER, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0 }

/*
 * Reports the figures of offload.
 *
 * @return MT_OK, MT_EINVAL
 */
MT_API MT_NODISCARD mt_status mt_torch_offload_stats(const mt_torch *torch, mt_offload_stats *out);

/* ---- between steps ------------------------------------------------------------------------------- */

/*
 * Returns the scale of the loss scaler of MT_FLOAT16.
 *
 * The loss scaler is that of Micikevicius et al. 2018 (arXiv 1710.03740). Half precision has no
 * room for small gradients. So each chunk's loss is multiplied by a scale. The gradient is float32.
 * mt_apply divides it by the scale again.
 *
 * If the gradient is not finite, mt_apply skips the update (mt_apply_result.skipped) and halves the
 * scale. After scale_growth_interval updates in a row the scale is doubled, up to 2^32. A skipped
 * step leaves parameters, buffers, optimiser state and its counts as they were. Random numbers have
 * been drawn. If a scale of 2^-16 does not help either, the gradient itself is not finite. Then
 * mt_apply fails with MT_ESTATE, and nothing has changed.
 *
 * From the first chunk to mt_apply, gradients are those of the scaled loss. The norm that is
 * reported and clipped is that of the unscaled gradient. The scale is part of the state. Its tensor
 * "amp.scaler" holds the scale and the number of updates since it last changed.
 *
 * @return the scale of the next step; 0 without a scaler, and for NULL or a stale handle
 */
MT_API double mt_torch_scale(const mt_torch *torch);

/* What mt_torch_freeze does with parameters. */
#define MT_FREEZE_OFF 0       /* they train */
#define MT_FREEZE_KEEP 1      /* they are frozen. Gradients and optimiser state keep their memory */
#define MT_FREEZE_GIVE_BACK 2 /* they are frozen, and that memory is given back */

/*
 * Freezes parameters, or has them train again, between steps.
 *
 * A frozen parameter needs no gradient. That saves the time and the activations for it. The
 * parameter is left out of the norm that is clipped, and does not change. What is frozen is not
 * part of the state: a program that loads a checkpoint has to freeze again. mt_torch_free has
 * everything train again.
 *
 * MT_FREEZE_KEEP keeps the optimiser state. The parameter later goes on with it, and MT_FREEZE_OFF
 * cannot run out of memory. MT_FREEZE_GIVE_BACK forgets the optimiser state, 12 bytes a float with
 * Adam. Once the parameter trains again, its moments begin at zero, as if it had made no step. The
 * same holds for a group that is frozen from the start. The state by name (mt_torch_visit_state,
 * mt_torch_state_sha256, mt_torch_save) then has no "optimizer.*" of these parameters.
 *
 * New memory is taken before old memory is given back. For a moment there are two copies of the
 * gradients and optimiser state of all parameters that keep theirs. If there is no room for that,
 * nothing has changed. Several processes must make the same call. If one of them has no room, none
 * changes anything.
 *
 * A policy keeps separate recordings and times for each set of frozen parameters.
 *
 * @param pattern  as in mt_parameter_group
 * @param on       MT_FREEZE_OFF, MT_FREEZE_KEEP or MT_FREEZE_GIVE_BACK
 * @return MT_OK.
 *         MT_EINVAL: another on; no trainable parameter fits the pattern; none would be left to
 *         train; or processes ask for different things.
 *         MT_EDEVMEM: there is no room. MT_EPEER: another process has no room.
 *         MT_ESTATE: during a step.
 */
MT_API MT_NODISCARD mt_status mt_torch_freeze(mt_torch *torch, const char *pattern, int on);

/* Sets the learning rate from the next step on, > 0. */
MT_API MT_NODISCARD mt_status mt_torch_set_lr(mt_torch *torch, double lr);

#ifdef __cplusplus
}
#endif
#endif
