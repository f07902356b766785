/*
 * memtrain/torch_recompute.h - activation checkpointing: parts of a forward pass that run again in the backward pass.
 *
 * It is a part of memtrain/torch.h, which says what holds for all its parts: errors, threads, sizes of
 * structs. Library libmemtrain_torch. docs/savers.md says what it costs.
 */
#ifndef MEMTRAIN_TORCH_RECOMPUTE_H
#define MEMTRAIN_TORCH_RECOMPUTE_H

#include <memtrain/torch_model.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A convolution at the end of a segment. Its backward pass needs only its input and its weight, so
 * the convolution is not run again. Such a segment pays twice only for the rest.
 *
 * Arrays have one entry for each spatial dimension of the weight. Further entries are not read.
 */
typedef struct mt_conv {
    size_t size;       /* sizeof(mt_conv) */
    mt_tensor *weight; /* [out, in / groups, k...], 1 to 3 spatial dimensions. A parameter */
    mt_tensor *bias;   /* [out], a parameter, or NULL */
    int64_t stride[3], padding[3], dilation[3]; /* a stride or dilation of 0 means 1 */
    int64_t groups;                             /* 0 means 1 */
} mt_conv;

#define MT_CONV_INIT                                                                               \
    { sizeof(mt_conv), NULL, NULL, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0 }

/*
 * A batch norm at the end of a segment, behind a convolution or without one (Ioffe and Szegedy
 * 2015, arXiv 1502.03167).
 *
 *     y = (x - mean) / sqrt(variance + epsilon) * weight + bias
 *
 * Its backward pass needs its input, and the mean and deviation of each channel. Mean and deviation
 * are kept, so the norm is not run again. Its running statistics count once, and visit_buffers need
 * not visit them. If batches are counted, the caller counts them. For a cumulative average, set
 * momentum to 1 / (batches so far + 1).
 */
typedef struct mt_batch_norm {
    size_t size;             /* sizeof(mt_batch_norm) */
    mt_tensor *weight;       /* [channels], a parameter, or NULL */
    mt_tensor *bias;         /* [channels], a parameter, or NULL */
    mt_tensor *running_mean; /* [channels]. NULL: none are kept, and running_var is NULL too */
    mt_tensor *running_var;  /* [channels] */
    int training;            /* 1: statistics of its input. 0: the running ones */
    double momentum;         /* share of the new statistics in the running ones */
    double epsilon;          /* at least 0 */
} mt_batch_norm;

#define MT_BATCH_NORM_INIT                                                                         \
    { sizeof(mt_batch_norm), NULL, NULL, NULL, NULL, 1, 0.1, 1e-5 }

/*
 * A segment: a part of a forward pass that can run a second time. A function that may raise C++
 * exceptions must end them: `catch (...) { return mt_torch_exception(); }`.
 */
typedef struct mt_segment_ops {
    size_t size; /* sizeof(mt_segment_ops) */
    /*
     * Computes the outputs from the inputs, and writes each into its handle. It must not change an
     * input or a parameter in place (MT_EINVAL).
     *
     * The backward pass calls it once more, with equal inputs, random numbers and autocast, on the
     * thread that libtorch uses for the backward pass. What it reads must not have changed in
     * between.
     */
    mt_status (*run)(void *self, mt_tensor *const *inputs, size_t input_count,
                     mt_tensor *const *outputs, size_t output_count);
    /*
     * Visits the buffers that run changes, such as the running statistics of BatchNorm. They are
     * put back after the second run, so that they count once. NULL: inside an mt_torch all buffers
     * of its model are put back, otherwise none.
     */
    mt_status (*visit_buffers)(void *self, mt_visit_fn fn, void *user);
    void (*destroy)(void *self); /* may be NULL */
    /*
     * NULL: run gives the outputs. Otherwise run gives one tensor, and the segment's only output is
     * this convolution of that tensor. Borrowed for the call. Its tensors are kept until destroy.
     */
    const mt_conv *conv;
    /*
     * The same for a batch norm, of what run gives or of the convolution of that. Behind a
     * convolution, the convolution is run again, and the norm is not.
     */
    const mt_batch_norm *batch_norm;
} mt_segment_ops;

#define MT_SEGMENT_OPS_INIT                                                                        \
    { sizeof(mt_segment_ops), NULL, NULL, NULL, NULL, NULL }

/*
 * Activation checkpointing: runs a segment and keeps nothing but its inputs for the backward pass.
 *
 * The backward pass runs the segment again for what it needs (Chen et al. 2016, arXiv 1604.06174).
 * So a chain of segments has the activations of one segment at a time. It costs a second forward
 * pass. Outputs and gradients have the bits of a plain run. One thing may differ: if several
 * segments use a parameter or an input, its gradients are added in another order.
 * memtrain/torch.hpp has checkpointing for C++.
 *
 * The first run makes no graph, and libtorch may choose a kernel by that. It does so for attention
 * and RMSNorm on MPS, on CUDA for attention with some sizes of heads, and on the CPU for an LSTM.
 * Then the outputs equal those of a plain run except for rounding.
 *
 * The segment simply runs when there is no graph (mt_evaluate), and inside an mt_torch whose
 * checkpointing is off. Segments may contain segments. Do not use mt_checkpoint if no input and no
 * parameter needs a gradient: the outputs would need one all the same.
 *
 * The second run must give the shapes and dtypes of the first. Otherwise the backward pass fails
 * with MT_EINVAL, and the line has both. It fails in the same way if a tensor of ops->conv or
 * ops->batch_norm that it needs was changed in place in between. A backward pass to some inputs
 * alone is refused with MT_ENOTSUP, and so is one with create_graph.
 *
 * @param ops      copied
 * @param self     first argument of every function; destroy(self) is called when the backward pass,
 *                 or the graph, no longer needs it, on the thread that ends it; also when this
 *                 function fails
 * @param inputs   borrowed for the call; handles may be empty
 * @param outputs  handles whose tensors are written; empty after a failure
 * @return MT_OK; what run returned
 */
MT_API MT_NODISCARD mt_status mt_checkpoint(const mt_segment_ops *ops, void *self,
                                            mt_tensor *const *inputs, size_t input_count,
                                            mt_tensor *const *outputs, size_t output_count);

/*
 * Says whether a segment that runs now on this thread may forget its activations.
 *
 * @return 0: the segment simply runs, and may be run without mt_checkpoint; 1: it would forget its
 *         activations, or mt_checkpoint decides which segments do (MT_CHECKPOINTING_CHOSEN)
 */
MT_API int mt_checkpoint_forgets(void);

#ifdef __cplusplus
}
#endif
#endif
