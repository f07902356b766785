/*
 * memtrain/torch.h - libtorch behind a C ABI: devices, tensors, models, and the backend for
 * mt_trainer. Library libmemtrain_torch; no libtorch header is needed to use this one.
 *
 *     mt_torch_init(NULL);
 *     mt_device_set_budget("cpu", 600 << 20);
 *     resnet_model_new(&resnet_options, &model);          (C++, see memtrain/torch.hpp)
 *     mt_torch_new(model, &torch_options, &torch);        (flat blocks, optimiser state)
 *     mt_torch_backend(torch, &backend);
 *     mt_trainer_new(&backend, NULL, &trainer);
 *
 * Devices are named as libtorch names them: "cpu", "cuda", "cuda:1", "xpu", "xpu:1", "mps"; others that libtorch has an
 * accelerator by, with a c10::DeviceAllocator, are taken too (docs/devices.md). Beside them there are
 * the simulated cards "sim:cuda" (or "sim") and "sim:mps", see mt_device_simulate. Memory is counted
 * in bytes of tensors ("counted bytes"), not in resident bytes of the process.
 *
 * Structs that are handed out have their size set by the caller, as everywhere in the library.
 *
 * No C++ exception leaves any function. Besides the codes named, each may return MT_EINVAL for a
 * NULL or stale argument (named in the error line), MT_EDEVMEM when memory ran out, and MT_ETORCH
 * with libtorch's own words.
 *
 * Thread rule: functions of the process and of devices any thread, where they do not say otherwise; a tensor's
 * handle one thread at a time, and so a model with its mt_torch. docs/threads.md has it all.
 */
#ifndef MEMTRAIN_TORCH_H
#define MEMTRAIN_TORCH_H

#include <memtrain/backend.h>
#include <memtrain/segments.h>
#include <memtrain/sim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the process ----------------------------------------------------------------------------- */

typedef struct mt_torch_init_options {
    size_t size;        /* sizeof(mt_torch_init_options) */
    int cuda;           /* 1: load libtorch_cuda or libtorch_xpu if it is there; 0: the CPU alone */
    int keep_allocator; /* 1: leave libtorch's own CPU allocator: nothing enforces a CPU budget */
} mt_torch_init_options;

#define MT_TORCH_INIT_OPTIONS_INIT                                                                 \
    { sizeof(mt_torch_init_options), 1, 0 }

/*
 * Prepares libtorch: loads CUDA's part or XPU's where there is one and installs the budgeted CPU allocator.
 * To be called before the first tensor, on the main thread; later calls do nothing. Every function
 * that needs it calls it with the defaults.
 *
 * In a process where Python's torch is loaded no allocator is installed, since tensors exist that
 * it did not make: CPU budgets are then watched, not enforced (see mt_torch_enforces_budget). Nor is
 * the engine of autograd that offload needs (mt_offload).
 *
 * Where threads of OpenMP spin while they wait, the log is told once, by this function or by
 * mt_torch_set_threads: more than one thread, GNU's OpenMP, and nothing in the environment that says how they
 * wait (see mt_reexec_passive). Not in a process of Python's, where the threads are Python's affair.
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_ENOTSUP for a libtorch outside the supported versions
 */
MT_API MT_NODISCARD mt_status mt_torch_init(const mt_torch_init_options *options);

/*
 * Starts the program again in its own place, once, so that its threads sleep while they wait for work.
 *
 * GNU's OpenMP, which libtorch brings along, has threads wait by spinning. As soon as another program wants a
 * core, two such threads are up to 60 times slower than one. How threads wait is read from the environment when
 * the library is loaded, before main. So this sets OMP_WAIT_POLICY=PASSIVE, GOMP_SPINCOUNT=0, KMP_BLOCKTIME=0 and
 * MEMTRAIN_REEXEC=1, and calls execv with the file of the running program and argv; the rest of the environment
 * stays. Call it first in main: what has been done by then is done twice. Streams of stdio are flushed, open
 * files stay open, other threads end.
 *
 * It does nothing where OMP_WAIT_POLICY, GOMP_SPINCOUNT, KMP_BLOCKTIME or MEMTRAIN_REEXEC is set (so it happens
 * once), where the process has one core, without OpenMP, and where the dynamic loader was called with the program's
 * name. That OMP_NUM_THREADS is 1 is no reason, since
 * mt_torch_set_threads may ask for more. It is not for a process of Python's, whose argv is another.
 *
 * The status may be left alone: a program that cannot be started again goes on, only slower.
 *
 * @param argv  main's own
 * @return MT_OK where there was nothing to do; MT_EIO with the system's words: nothing has changed; MT_EINVAL.
 *         It does not return where the program starts again
 */
MT_API mt_status mt_reexec_passive(char **argv);

/* libtorch's version, "2.11.0". Static. Any thread. */
MT_API const char *mt_torch_version(void);

/* 1 when our CPU allocator is installed and refuses what exceeds the budget. Any thread. */
MT_API int mt_torch_enforces_budget(void);

/* Seeds the generators of all devices. Any thread, but not during a step. */
MT_API MT_NODISCARD mt_status mt_torch_seed(uint64_t seed);

/* Threads that an operator may use on the CPU, at least 1. Before the first step. */
MT_API MT_NODISCARD mt_status mt_torch_set_threads(int threads);
MT_API int mt_torch_get_threads(void);

/* ---- devices --------------------------------------------------------------------------------- */

/*
 * Whether the device can be used: MT_OK; MT_ENOTSUP with the reason in the error line; MT_EINVAL for
 * a name that is none.
 */
MT_API MT_NODISCARD mt_status mt_device_check(const char *device);

/*
 * How many devices of a type there are: N of them are called TYPE:0 to TYPE:N-1. 0 where none can be used; 1 for "cpu", for
 * "mps" on a Mac, and for a simulated card.
 *
 * @param type  as a device is called, without a number: "cuda"
 * @param out   0 on failure
 * @return MT_OK; MT_EINVAL for a name that is none, and for one with a number; MT_ENOTSUP for a type that nothing here trains on
 */
MT_API MT_NODISCARD mt_status mt_device_count(const char *type, size_t *out);

/*
 * Limits what tensors on the device may take, in bytes; 0: the default. On the CPU the default is
 * mt_host_memory's budget, or in a control group that leaves less than the host what a resident budget
 * (below) of 0.95 of its limit would; it holds for the whole process and is enforced at each
 * allocation. On CUDA and XPU the default is 0.95 of free and own reserved memory, on MPS 0.95 of the
 * recommended working set; all also set the allocator's own limit. Where an allocator takes none the budget is
 * watched, not enforced, and the log is told. It may be changed at any time;
 * a limit below what is allocated refuses every further request until enough is released. The CPU's
 * default follows the host while the program runs, so memory that others take or give back is seen. On CUDA and XPU each card
 * has a budget of its own, and setting one initialises them.
 */
MT_API MT_NODISCARD mt_status mt_device_set_budget(const char *device, size_t bytes);

/*
 * Limits what the whole process holds in memory, code and libraries included (libtorch alone is 110 MB),
 * in bytes; 0: no such limit. When a chunk begins, and when mt_device_memory is asked, the budget of tensors
 * becomes what the limit leaves for them, and no more than the budget that is set. Pages that wait in planned memory
 * or in the heap are given back where others need them. What others than tensors take in the middle of a chunk is not
 * seen, so leave some room. "cpu" alone, and where the system tells (Linux, macOS); else MT_ENOTSUP.
 */
MT_API MT_NODISCARD mt_status mt_device_set_resident_budget(const char *device, size_t bytes);

/* What the process holds in memory, in bytes. */
typedef struct mt_resident {
    size_t size;           /* sizeof(mt_resident) */
    size_t limit_bytes;    /* the resident budget; 0: none */
    size_t resident_bytes; /* now, the sum of the next three ... */
    size_t tensor_bytes;   /* ... tensors outside of arenas, for parameters and optimiser state */
    size_t arena_bytes;    /* ... pages of arenas, in use or to be used by the next chunk */
    size_t other_bytes;    /* ... code, libraries, heap */
    size_t peak_bytes;     /* highest resident bytes since the process began; 0: not known */
} mt_resident;

#define MT_RESIDENT_INIT                                                                           \
    { sizeof(mt_resident), 0, 0, 0, 0, 0, 0 }

/* @param device "cpu"; MT_ENOTSUP for others, and where the system does not tell */
MT_API MT_NODISCARD mt_status mt_device_resident(const char *device, mt_resident *out);

/*
 * The most that the process will hold in memory while its tensors take at most so many counted bytes: a
 * plan's predicted_peak_bytes, or mt_memory's allocated_bytes with what mt_memory_model_peak or
 * mt_policy_predict_bytes tells. The rest is as it is now, so ask after some chunks have run; chunks are
 * taken to be served from planned memory (without it the heap may hold twice their bytes).
 *
 * @param device      "cpu"; MT_ENOTSUP for others, and where the system does not tell
 * @param peak_bytes  of all tensors together, those that are there now included
 * @param out         bytes, what is held now at the least; 0 on failure
 */
MT_API MT_NODISCARD mt_status mt_device_predict_resident(const char *device, size_t peak_bytes,
                                                         size_t *out);

/* Memory of the device as it is now. out->size is set by the caller. Any thread. */
MT_API MT_NODISCARD mt_status mt_device_memory(const char *device, mt_memory *out);

/* peak_bytes starts again from what is allocated now. MPS has no peak of its own: ENOTSUP there. */
MT_API MT_NODISCARD mt_status mt_device_reset_peak(const char *device);

/*
 * Gives cached memory back: on a card the allocator's wholly free segments, on CUDA and XPU those of all cards of the
 * type, each of which is waited for; on the CPU the
 * pages of planned memory in which no tensor lies, but of chunks that run, and the free pages of the heap
 * (malloc_trim, some milliseconds). out (may be NULL) gets seconds and
 * bytes, on the CPU resident bytes.
 */
MT_API MT_NODISCARD mt_status mt_empty_cache(const char *device, mt_clear_result *out);

/*
 * What the simulated card is like that stands behind "sim:cuda" or "sim:mps"; until it is called, a
 * card of the defaults in memtrain/sim.h. Tensors of such a device lie in the host's memory and are
 * computed by the CPU; each is booked on the card as well, by the rules of CUDA's or MPS's caching
 * allocator, and what the card has no room for is refused with that allocator's type and words.
 * Everything above goes for it as for the real device: budgets, figures, OOMs, their evidence.
 *
 * A tensor is on the card when it was made inside a call of an mt_torch on that device, on the
 * calling thread; batches, and models before mt_torch_new, are the host's. The CPU's own budget holds
 * beside the card's. The card is the process's: several mt_torch share it.
 *
 * @param device   the flavour; that of the options is not looked at
 * @param options  NULL: defaults; copied
 * @return MT_OK; MT_ESTATE while tensors lie on the card; MT_EINVAL for a device that is not
 *         simulated; MT_ENOTSUP without our CPU allocator (mt_torch_enforces_budget)
 */
MT_API MT_NODISCARD mt_status mt_device_simulate(const char *device, const mt_sim_options *options);

/*
 * Bytes that others than tensors hold from now on. "cpu": memory of the host that counts against its budget
 * as if it were allocated, such as a loader's buffers; MT_ENOTSUP without our allocator. A simulated card:
 * other processes, for instance to see a run shrink, see mt_sim_set_others. More than there is is legal.
 * Any thread.
 */
MT_API MT_NODISCARD mt_status mt_device_hold(const char *device, size_t bytes);

/* The books of the simulated card. out->size is set by the caller. Any thread. */
MT_API MT_NODISCARD mt_status mt_device_sim_stats(const char *device, mt_sim_stats *out);

/* ---- tensors --------------------------------------------------------------------------------- */

typedef enum mt_dtype {
    MT_DTYPE_NONE = 0,
    MT_FLOAT32 = 1,
    MT_FLOAT64 = 2,
    MT_FLOAT16 = 3,
    MT_BFLOAT16 = 4,
    MT_INT64 = 5,
    MT_INT32 = 6,
    MT_UINT8 = 7,
    MT_BOOL = 8
} mt_dtype;

/*
 * A tensor of libtorch's. Here one is made of a plain array, as a batch wants it, and handed over to a model;
 * memtrain/tensor.h has the other ways in and out (strides, a release callback, DLPack, numbers),
 * memtrain/call.h any operator that computes with it, and memtrain/script.h a model that was made in Python.
 */
typedef struct mt_tensor mt_tensor;

/*
 * A tensor over memory of the caller's, contiguous in row-major order. Nothing is copied; the
 * memory must stay until the handle is freed and no step uses it.
 * @param shape  dims sizes, each at least 0; all bytes together below 2^63
 * @param out    new reference: free with mt_tensor_free
 */
MT_API MT_NODISCARD mt_status mt_tensor_from_memory(void *data, mt_dtype dtype, size_t dims,
                                                    const int64_t *shape, mt_tensor **out);

/*
 * A handle without a tensor, for a function that writes one into it (mt_checkpoint).
 * @param out  new reference: free with mt_tensor_free
 */
MT_API MT_NODISCARD mt_status mt_tensor_new(mt_tensor **out);

/* NULL is a no-op. */
MT_API void mt_tensor_free(mt_tensor *tensor);

/*
 * The at::Tensor inside, for C++ (memtrain/torch.hpp casts it); borrowed until the handle is freed.
 * NULL for NULL or a stale handle.
 */
MT_API void *mt_tensor_get(mt_tensor *tensor);

/* What mt_batch.data points to for this backend. */
typedef struct mt_torch_batch {
    size_t size;               /* sizeof(mt_torch_batch) */
    mt_tensor *const *tensors; /* inputs and targets as the loss wants them, on the CPU; dimension 0
                                  is the sample, as many in each; chunks are cut by the backend */
    size_t count;              /* number of tensors, at most MT_TENSORS_MAX */
} mt_torch_batch;

#define MT_TENSORS_MAX 8
#define MT_TORCH_BATCH_INIT                                                                        \
    { sizeof(mt_torch_batch), NULL, 0 }

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct mt_model mt_model;

/*
 * Told of one parameter or buffer: its name in the state, which no other has, and the tensor (borrowed for the
 * call). An empty one (mt_tensor_new), such as a bias that a layer does without, is passed over. MT_EINVAL for
 * what is no live handle.
 */
typedef mt_status (*mt_visit_fn)(void *user, const char *name, mt_tensor *tensor);

/*
 * Calls fn with a handle to the at::Tensor at tensor (for C++; borrowed for the call) and returns
 * what fn returned. For the visit functions of mt_model_ops.
 */
MT_API MT_NODISCARD mt_status mt_visit_tensor(const void *tensor, const char *name, mt_visit_fn fn,
                                              void *user);

/*
 * A model as C functions; memtrain/torch.hpp makes one from any torch::nn::Module. Functions that
 * raise C++ exceptions must end them: `catch (...) { return mt_torch_exception(); }`.
 */
typedef struct mt_model_ops {
    size_t size; /* sizeof(mt_model_ops) */
    mt_status (*visit_parameters)(void *self, mt_visit_fn fn, void *user);
    mt_status (*visit_buffers)(void *self, mt_visit_fn fn, void *user); /* may be NULL */
    mt_status (*set_training)(void *self, int on);                      /* may be NULL */
    /*
     * Forward and loss of one chunk, on the device. Writes the loss (a scalar, the mean over the
     * chunk's units, with its graph) into out_loss, and into out_metrics a tensor of metric_count
     * sums over the samples (detached), or leaves it empty.
     */
    mt_status (*loss)(void *self, mt_tensor *const *tensors, size_t count, mt_tensor *out_loss,
                      mt_tensor *out_metrics);
    /*
     * What the loss is averaged over, from the CPU tensors of a chunk: tokens, pixels. NULL: its samples. Asked for the
     * whole batch, too, so that each chunk counts by its share.
     */
    mt_status (*units)(void *self, mt_tensor *const *tensors, size_t count, double *out);
    mt_status (*to_device)(void *self, const char *device); /* may be NULL on the CPU */
    void (*destroy)(void *self);                            /* may be NULL */
    /*
     * In the place of loss, where the loss couples the samples of the batch (contrastive) and
     * mt_model_traits.embedding_count is not 0. See mt_prepare.
     *
     * embed writes the embeddings of one chunk, on the device: tensors of any dtype whose dimension 0 is
     * the sample. What stands for a sample must depend on that sample alone.
     * join has those of the whole batch, in its order. It writes the loss (a scalar, the mean over the
     * batch's samples, with its graph) and the metrics (sums over the samples, detached, or nothing). What
     * it wants of the batch beside, such as labels, embed hands on as one more embedding.
     */
    mt_status (*embed)(void *self, mt_tensor *const *tensors, size_t count,
                       mt_tensor *const *out_embeddings, size_t embedding_count);
    mt_status (*join)(void *self, mt_tensor *const *embeddings, size_t embedding_count,
                      mt_tensor *out_loss, mt_tensor *out_metrics);
} mt_model_ops;

#define MT_MODEL_OPS_INIT                                                                          \
    { sizeof(mt_model_ops), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* What the policy must know of a model; see mt_backend_info. Zero is the default of every field. */
typedef struct mt_model_traits {
    size_t size; /* sizeof(mt_model_traits) */
    size_t min_micro_batch;
    int normalises_over_batch;
    int needs_whole_batch;
    size_t metric_count;
    const char *const *metric_names; /* copied */
    const int *metric_over;          /* see mt_backend_info; NULL: samples. Copied */
    int checkpoints; /* 1: the loss function calls mt_checkpoint, so that checkpointing can be on */
    size_t
        embedding_count; /* tensors that embed writes, at most MT_TENSORS_MAX; the model is trained by
                               cached embeddings then, and loss and units may be NULL */
} mt_model_traits;

#define MT_MODEL_TRAITS_INIT                                                                       \
    { sizeof(mt_model_traits), 0, 0, 0, 0, NULL, NULL, 0, 0 }

/*
 * @param ops     copied
 * @param self    first argument of every function; destroy(self) is called by mt_model_free, and
 *                also when this function fails
 * @param traits  NULL: defaults
 * @param out     new reference: free with mt_model_free
 */
MT_API MT_NODISCARD mt_status mt_model_new(const mt_model_ops *ops, void *self,
                                           const mt_model_traits *traits, mt_model **out);

/* NULL is a no-op. Not while an mt_torch uses it. */
MT_API void mt_model_free(mt_model *model);

/*
 * Inside a C++ `catch (...)` only: turns the exception in flight into a status and the error line.
 * The one place that tells OOM from other errors: by evidence (a request was refused), by type, by
 * text.
 */
MT_API mt_status mt_torch_exception(void);

/* ---- segments --------------------------------------------------------------------------------- */

/*
 * A convolution at the end of a segment. Its backward pass needs what it was given, its weight and nothing
 * else, so it is not run again: in segments that end so only the rest is paid for twice.
 *
 * Of the arrays the first entries count, one for each spatial dimension of the weight.
 */
typedef struct mt_conv {
    size_t size;       /* sizeof(mt_conv) */
    mt_tensor *weight; /* [out, in / groups, k...], 1 to 3 spatial dimensions; a parameter */
    mt_tensor *bias;   /* [out], a parameter; or NULL */
    int64_t stride[3], padding[3], dilation[3]; /* stride and dilation 0: 1 */
    int64_t groups;                             /* 0: 1 */
} mt_conv;

#define MT_CONV_INIT                                                                               \
    { sizeof(mt_conv), NULL, NULL, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0 }

/*
 * A batch norm at the end of a segment, behind a convolution or without one (Ioffe and Szegedy 2015, arXiv
 * 1502.03167). Its backward pass needs what it was given and the mean and deviation of each channel, which are
 * kept: it is not run again, and its running statistics count once; visit_buffers need not have them. Where
 * batches are counted the caller does so; with a cumulative average momentum is 1 / (batches so far + 1).
 *
 *     y = (x - mean) / sqrt(variance + epsilon) * weight + bias
 */
typedef struct mt_batch_norm {
    size_t size;             /* sizeof(mt_batch_norm) */
    mt_tensor *weight;       /* [channels], a parameter; or NULL */
    mt_tensor *bias;         /* [channels], a parameter; or NULL */
    mt_tensor *running_mean; /* [channels]; NULL, with running_var: none are kept */
    mt_tensor *running_var;  /* [channels] */
    int training;            /* 1: statistics of what it is given; 0: the running ones */
    double momentum;         /* share of the new ones in the running ones */
    double epsilon;          /* at least 0 */
} mt_batch_norm;

#define MT_BATCH_NORM_INIT                                                                         \
    { sizeof(mt_batch_norm), NULL, NULL, NULL, NULL, 1, 0.1, 1e-5 }

/*
 * A part of a forward pass that can be run a second time. Functions that raise C++ exceptions must end
 * them: `catch (...) { return mt_torch_exception(); }`.
 */
typedef struct mt_segment_ops {
    size_t size; /* sizeof(mt_segment_ops) */
    /*
     * Computes the outputs from the inputs and writes each into its handle; changes no input in place, and
     * no parameter (MT_EINVAL).
     * Called once more by the backward pass, with equal inputs, random numbers and autocast, on the
     * thread that libtorch uses for it: what it reads must not have changed in between.
     */
    mt_status (*run)(void *self, mt_tensor *const *inputs, size_t input_count,
                     mt_tensor *const *outputs, size_t output_count);
    /*
     * Buffers that run changes, such as the running statistics of BatchNorm: they are put back after the
     * second run, so that they count once. NULL: inside an mt_torch all buffers of its model, else none.
     */
    mt_status (*visit_buffers)(void *self, mt_visit_fn fn, void *user);
    void (*destroy)(void *self); /* may be NULL */
    /*
     * NULL: run gives the outputs. Else run gives one tensor, and the segment's only output is this
     * convolution of it. Borrowed for the call; its tensors are kept until destroy.
     */
    const mt_conv *conv;
    /*
     * The same for a batch norm of what run gives, or of the convolution of that. Behind a convolution it
     * is the convolution that is run again, not the norm.
     */
    const mt_batch_norm *batch_norm;
} mt_segment_ops;

#define MT_SEGMENT_OPS_INIT                                                                        \
    { sizeof(mt_segment_ops), NULL, NULL, NULL, NULL, NULL }

/*
 * Activation checkpointing: runs a segment and keeps nothing but its inputs for the backward pass,
 * which runs it again for what it needs (Chen et al. 2016, arXiv 1604.06174). The activations of a
 * chain of segments are then there one segment at a time; it costs a second forward pass. Outputs and
 * gradients have the bits of a plain run, unless a parameter or an input is used by several segments,
 * where their gradients are added in another order. memtrain/torch.hpp has it for C++.
 *
 * The first run makes no graph, and libtorch may choose a kernel by that. On MPS attention and RMSNorm are such, on CUDA
 * attention with some sizes of heads: with these the outputs are those of a plain run but for rounding.
 *
 * Without a graph (mt_evaluate) and inside an mt_torch whose checkpointing is off the segment is
 * simply run. Segments may contain segments. Where none of the inputs and parameters needs a gradient,
 * do without: the outputs would need one all the same.
 *
 * What the second run gives must have the shapes and dtypes of the first: else the backward pass fails
 * with MT_EINVAL, and the line has both. So it does where a tensor of ops->conv or ops->batch_norm that it
 * needs was changed in place in between. A backward pass to some inputs alone, and one with
 * create_graph, is refused with MT_ENOTSUP.
 *
 * @param ops      copied
 * @param self     first argument of every function; destroy(self) is called when the backward pass, or
 *                 the graph, is through with it, on the thread that ends it; also when this function fails
 * @param inputs   borrowed for the call; handles may be empty
 * @param outputs  handles whose tensors are written; empty after a failure
 * @return MT_OK; what run returned
 */
MT_API MT_NODISCARD mt_status mt_checkpoint(const mt_segment_ops *ops, void *self,
                                            mt_tensor *const *inputs, size_t input_count,
                                            mt_tensor *const *outputs, size_t output_count);

/*
 * 0 when a segment that runs now on this thread simply runs, and may be run without mt_checkpoint; 1 when
 * it would forget its activations, or mt_checkpoint is to say which ones do (MT_CHECKPOINTING_CHOSEN).
 */
MT_API int mt_checkpoint_forgets(void);

/* ---- the backend ------------------------------------------------------------------------------ */

typedef enum mt_optimizer { MT_SGD = 1, MT_ADAM = 2, MT_ADAMW = 3 } mt_optimizer;

/*
 * Whether the tensors of chunks on the CPU are served from planned memory (memtrain/arena.h): where
 * they lie is decided once for each size of chunk, so they need neither malloc nor page faults, and the
 * process holds hardly more than the tensors that are alive at once. Results are the same bits.
 */
#define MT_ARENA_AUTO 0 /* where our CPU allocator is installed */
#define MT_ARENA_NEVER (-1)

/* When segments of the model forget their activations (mt_checkpoint). */
#define MT_CHECKPOINTING_AUTO 0 /* as MT_RUNG_CHECKPOINTING says: where a chunk does not fit else */
#define MT_CHECKPOINTING_ON 1
/*
 * Those segments that cost the least time of all sets that keep within activation_share or
 * activation_bytes. In the first step with samples of a shape all segments forget, and what each keeps and
 * takes is measured; when that step is through the set is chosen (memtrain/segments.h), for its largest
 * chunk, and stays. To a policy chunks before and after it are of different shapes, with recordings and
 * times of their own; as MT_RUNG_CHECKPOINTING it can have all segments forget. The bits are the same, as far as
 * mt_checkpoint's are. MT_ENOTSUP on MPS, which tells no peaks.
 */
#define MT_CHECKPOINTING_CHOSEN 2

/*
 * Where tensors wait that autograd has saved for the backward pass, see mt_offload. HOST, FILE and PACK
 * are on from the start; as a rung (MT_RUNG_OFFLOAD) it is the host's memory on accelerators, and on the
 * CPU, whose memory that is, a file where offload_dir is set: without it there is no such rung there.
 */
#define MT_OFFLOAD_NEVER (-1)
#define MT_OFFLOAD_AUTO 0 /* as the rung says: where a chunk does not fit else; the same numbers */
#define MT_OFFLOAD_HOST 1
#define MT_OFFLOAD_FILE 2
#define MT_OFFLOAD_PACK 3
#define MT_OFFLOAD_AUTO_PACK 4 /* as the rung says, on every device packed: other numbers */

/*
 * Parameters that are trained in another way than the options say. A pattern without a * is what their
 * names begin with ("fc."); one with a * is the whole name, * standing for any letters or none
 * ("*.bias", "layer1.*.weight"). The first group whose pattern fits counts; tied weights go by their
 * first name.
 */
typedef struct mt_parameter_group {
    size_t size; /* sizeof(mt_parameter_group), the same in all of an array */
    const char *pattern;
    double lr_factor;    /* of the learning rate, > 0 */
    double weight_decay; /* below 0 or NaN: that of the options */
    int frozen; /* 1: from the start; no memory is taken for gradients or optimiser state */
} mt_parameter_group;

#define MT_PARAMETER_GROUP_INIT                                                                    \
    { sizeof(mt_parameter_group), NULL, 1.0, -1.0, 0 }

/* Fields count as they are written; MT_TORCH_OPTIONS_INIT has the usual values. */
typedef struct mt_torch_options {
    size_t size;        /* sizeof(mt_torch_options) */
    const char *device; /* NULL: "cpu" */
    mt_optimizer optimizer;
    double lr;           /* > 0 */
    double momentum;     /* SGD, 0 <= x < 1 */
    int nesterov;        /* SGD with momentum */
    double beta1, beta2; /* Adam and AdamW, 0 <= x < 1 */
    double eps;          /* Adam and AdamW, > 0 */
    double weight_decay; /* L2 in SGD and Adam; decoupled in AdamW (Loshchilov & Hutter 2019) */
    double clip_norm;    /* scale the gradient down to this L2 norm; 0: leave it */
    mt_dtype amp;        /* forward under autocast: MT_BFLOAT16, or MT_FLOAT16 with a loss scaler
                            (not on MPS); MT_DTYPE_NONE: off */
    int arena;           /* MT_ARENA_AUTO or MT_ARENA_NEVER */
    int checkpointing;   /* MT_CHECKPOINTING_AUTO, _ON or _CHOSEN, for models with segments */
    int offload;         /* one of MT_OFFLOAD_... */
    const char *offload_dir; /* folder of the file, NULL: TMPDIR, or /tmp; opened by mt_torch_new */
    double scale_start; /* first scale of the loss under MT_FLOAT16: a power of two from 2^-16 to
                           2^32; 0: 65536 */
    uint64_t scale_growth_interval; /* updates without an infinity before it is doubled; 0: 2000 */
    const mt_parameter_group *groups; /* group_count of them; may be NULL without any. Copied. A
                                         pattern that fits no trainable parameter is refused */
    size_t group_count;
    double activation_share; /* MT_CHECKPOINTING_CHOSEN: peak of a chunk beside parameters, their
                                gradients and optimiser state, of that without segments; up to 1 */
    size_t activation_bytes; /* the same in bytes. One of the two, the other 0 */
    int channels_last;       /* 1: parameters and a batch's tensors of four dimensions, pictures for
                                one, are channels_last in memory, so that convolutions keep to it:
                                what tensor cores want, and on CPUs no gain as a rule. Parameters
                                stay so afterwards, and 0 leaves them as they are; files of weights
                                are row-major all the same. A batch that is not is copied, as part
                                of its chunk. What draws random numbers over pictures draws others,
                                and view() of them may have to be reshape() */
    const struct mt_process_group *processes; /* that train this model together, see
                                memtrain/processes.h; NULL: this one alone. Copied; its self is
                                borrowed until mt_torch_free. mt_torch_new gives all of them the weights
                                of rank 0, so all call it at the same time, and then mt_apply. Not
                                with mt_train_step */
    int apply_not_finite; /* 0: mt_train_step takes a step back whose loss is infinite or not a
                             number, and with clip_norm mt_apply leaves an update out whose gradient has
                             no finite norm; 1: the updates are made, and spoil the parameters. A loss
                             scaler leaves them out whatever this says. Of a trainer's steps the loss is
                             looked at as mt_trainer_options.apply_not_finite says */
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
 * Moves the model to the device and lays parameters, gradients and optimiser state out in flat
 * blocks, so that nothing can fail for memory in the middle of an update. Parameters stay where the
 * model's modules see them; `.grad` of each is a view of the gradient block from the chunk that reaches
 * it to the end of the step, except in a marked chunk of the whole batch, whose gradients stay where
 * autograd has made them. Other tensors of a parameter's memory do not move with it, but the same tensor has any names.
 *
 * @param model    borrowed until mt_torch_free
 * @param options  NULL: defaults; copied
 * @param out      new reference: free with mt_torch_free
 * @return MT_OK; MT_EDEVMEM when parameters, gradients and optimiser state do not fit (the line gives the bytes of
 *         each); MT_EINVAL (names the field, a model without any parameter, a parameter that trains and another tensor
 *         of its memory); MT_ENOTSUP, also for a sparse, meta or quantised one (names it); MT_EIO where no file can be
 *         made in offload_dir, or another process not be reached. With options->processes also MT_EINVAL where their
 *         models differ, and MT_ENOTSUP for a model with embeddings: its loss would see the pairs of one process
 */
MT_API MT_NODISCARD mt_status mt_torch_new(mt_model *model, const mt_torch_options *options,
                                           mt_torch **out);

/*
 * NULL is a no-op. The model stays and keeps its parameters. From a function that a step has called it frees
 * nothing, and mt_log says so.
 */
MT_API void mt_torch_free(mt_torch *torch);

/*
 * Fills in the seam. out->size is set by the caller (MT_BACKEND_INIT); out->self is torch, which must
 * outlive the trainer. What the device cannot do stays NULL: MPS has no record and no reset_peak.
 */
MT_API MT_NODISCARD mt_status mt_torch_backend(mt_torch *torch, mt_backend *out);

/* How planned memory does. */
typedef struct mt_arena_stats {
    size_t size;              /* sizeof(mt_arena_stats) */
    size_t bytes;             /* of the largest plan */
    size_t lower_bound_bytes; /* most bytes alive at a time in that plan */
    size_t plans;             /* one for each size and kind of chunk */
    uint64_t chunks;          /* that ran */
    uint64_t recorded;        /* of these, such that served to make plans */
    uint64_t served;          /* requests of planned chunks that were served from the arena ... */
    uint64_t missed; /* ... and that were not: the plan had no place for them, or one that was
                                 not free. Not those that it leaves to the heap */
    uint64_t guests; /* requests without such a place that it served all the same */
} mt_arena_stats;

#define MT_ARENA_STATS_INIT                                                                        \
    { sizeof(mt_arena_stats), 0, 0, 0, 0, 0, 0, 0, 0 }

/* Zeros where there is no arena. @return MT_OK, MT_EINVAL */
MT_API MT_NODISCARD mt_status mt_torch_arena(const mt_torch *torch, mt_arena_stats *out);

/* Which segments are computed again, of chunks like those of the last step. */
typedef struct mt_segments_stats {
    size_t size;                    /* sizeof(mt_segments_stats) */
    size_t segments;                /* of a chunk; 0: not measured */
    size_t recomputed;              /* of these are computed again */
    size_t samples;                 /* of the chunk that was measured, whose figures these are */
    size_t budget_bytes;            /* for its peak above what was allocated before it ... */
    size_t peak_bytes;              /* ... which is expected with these segments, ... */
    size_t plain_peak_bytes;        /* ... with none ... */
    size_t least_peak_bytes;        /* ... and with all of them */
    double seconds;                 /* that the second runs of these take ... */
    double all_seconds;             /* ... and those of all */
    const mt_segment_cost *costs;   /* of each segment, and 1 for one that is computed again: */
    const unsigned char *recompute; /* borrowed until the next step or mt_torch_set_segments */
} mt_segments_stats;

#define MT_SEGMENTS_STATS_INIT                                                                     \
    { sizeof(mt_segments_stats), 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, NULL, NULL }

/*
 * Zeros until something was measured, and where checkpointing is not MT_CHECKPOINTING_CHOSEN. Not in there
 * are gradients of a marked chunk, and that the rung may have all segments forget.
 * @return MT_OK, MT_EINVAL
 */
MT_API MT_NODISCARD mt_status mt_torch_segments(const mt_torch *torch, mt_segments_stats *out);

/*
 * With MT_CHECKPOINTING_CHOSEN: the caller's own set from the next step on, whatever the shape, instead of
 * one that depends on measured times.
 *
 * @param recompute  count numbers, not 0 for a segment that is computed again, in the order in which the
 *                   forward pass comes to them (segments within segments not counted); those beyond are.
 *                   NULL with a count of 0: what is measured chooses, as before
 * @return MT_OK; MT_EINVAL; MT_ESTATE during a step, or with another checkpointing; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_torch_set_segments(mt_torch *torch, const unsigned char *recompute,
                                                    size_t count);

/* How offload does, since mt_torch_new. */
typedef struct mt_offload_stats {
    size_t size;              /* sizeof(mt_offload_stats) */
    int kind;                 /* MT_OFFLOAD_HOST, _FILE or _PACK; MT_OFFLOAD_NEVER: there is none */
    int on;                   /* whether the next chunk uses it */
    size_t packed_bytes;      /* that wait now: in the host's memory, in the file, or as bf16 ... */
    size_t peak_packed_bytes; /* ... and at most */
    uint64_t packed;          /* tensors that were put away */
    uint64_t shared;          /* saved once more, and there already */
    uint64_t left_alone;      /* small, not floating point, parameters, buffers, inputs */
    uint64_t unpacked;        /* brought back */
    uint64_t total_packed_bytes;   /* of all that were put away: there ... */
    uint64_t total_original_bytes; /* ... and as they were */
    double seconds;                /* that putting away and bringing back has taken */
} mt_offload_stats;

#define MT_OFFLOAD_STATS_INIT                                                                      \
    { sizeof(mt_offload_stats), MT_OFFLOAD_NEVER, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0 }

/* @return MT_OK, MT_EINVAL */
MT_API MT_NODISCARD mt_status mt_torch_offload_stats(const mt_torch *torch, mt_offload_stats *out);

/* ---- the primitives, for loops of one's own (no policy) --------------------------------------- */

/*
 * One plain step: begin, the whole batch as one chunk, apply. On any failure the step is taken back. Where
 * gradients are not held (mt_hold_gradients) the chunk is a marked one.
 *
 * A step whose loss is not finite is taken back too, unless options->apply_not_finite says otherwise; so is one of
 * a batch without units, where every label is masked. It returns MT_OK,
 * out_apply->skipped is 1, and mt_log warns in one line.
 * @param out_chunk, out_apply  may be NULL
 */
MT_API MT_NODISCARD mt_status mt_train_step(mt_torch *torch, const mt_batch *batch,
                                            mt_chunk_result *out_chunk, mt_apply_result *out_apply);

/*
 * The parts of a step; they are the functions of mt_backend with these names, and memtrain/backend.h says more of
 * each. mt_begin, then mt_accumulate for chunks that together are the batch, then mt_apply; after a failure of
 * mt_accumulate or mt_apply mt_rollback alone may follow, or mt_rewind where the chunk was marked.
 *
 * mt_begin         starts a step on a batch, borrowed until mt_apply or mt_rollback; gradients are zero
 * mt_accumulate    forward and backward of samples [first, first + count); the loss, a mean over them, times
 *                  weight (at least 0, the chunk's share of the batch's units) before backward
 * mt_collect       loss, metrics and time of the oldest chunk that was deferred (mt_chunk_result.deferred, on a card alone),
 *                  once each; the first call waits for the card. MT_ESTATE where none is left
 * mt_prepare       for a model with embeddings, below: the sizes of the count chunks that come
 * mt_mark          the next chunk adds its gradients once its backward pass is through
 * mt_rewind        after a marked chunk failed: back to what mt_mark saw, earlier chunks included
 * mt_hold_gradients  outside a step; 0 gives the memory of gradients back, and steps are one marked chunk each
 * mt_rollback      takes the step back: parameters, buffers and random numbers as before mt_begin
 * mt_apply         clips and updates, or leaves the update out (out->skipped), where the gradient is not finite or no
 *                  chunk had a unit; the step is over. Nothing has changed where it fails
 * mt_evaluate      forward alone, in evaluation mode, outside a step; a failure takes back what the forward pass wrote
 *
 * A parameter that the model's own code writes to (a momentum encoder, an average of weights, weights that are
 * clipped) is taken back like a buffer, whether it trains or not. Until one chunk has gone through each operator
 * is looked at, and what it is about to write to is copied into plain memory of the host, outside of the budget. From
 * then on each step keeps a copy within it (mt_backend_info.buffer_bytes). A warning names the first such
 * parameter: it changes once a chunk, so that its values depend on how batches are cut. One that is written to for
 * the first time in a later step is found by its version counter; where that very step fails the state is lost
 * (MT_ESTATE names it). Neither sees data pointers that are written through, nor a first write in a later step
 * through variable_data().
 *
 * @param out  size set by the caller (MT_CHUNK_RESULT_INIT, MT_APPLY_RESULT_INIT); figures of the chunk, or of
 *             the update. After a failure zero, but for the evidence of an OOM
 * @return MT_OK; MT_EDEVMEM when memory ran out; MT_ESTATE out of order, from a function of the model
 *         that a step has called, or when the state was lost, which only a mt_rollback or mt_rewind that
 *         fails does, and a skipped update that cannot be taken back; MT_EINVAL for samples that the batch does not
 *         have, for a model without a parameter to train, and for a loss that is not a scalar or has no graph; MT_EUSER,
 *         MT_ETORCH from the model; MT_ENOTSUP
 */
MT_API MT_NODISCARD mt_status mt_begin(mt_torch *torch, const mt_batch *batch);
MT_API MT_NODISCARD mt_status mt_accumulate(mt_torch *torch, size_t first, size_t count,
                                            double weight, mt_chunk_result *out);
MT_API MT_NODISCARD mt_status mt_collect(mt_torch *torch, mt_chunk_result *out);
MT_API MT_NODISCARD mt_status mt_prepare(mt_torch *torch, const size_t *chunks, size_t count,
                                         mt_chunk_result *out);
MT_API MT_NODISCARD mt_status mt_mark(mt_torch *torch);
MT_API MT_NODISCARD mt_status mt_rewind(mt_torch *torch);
MT_API MT_NODISCARD mt_status mt_hold_gradients(mt_torch *torch, int on);
MT_API MT_NODISCARD mt_status mt_rollback(mt_torch *torch);
MT_API MT_NODISCARD mt_status mt_apply(mt_torch *torch, mt_apply_result *out);
MT_API MT_NODISCARD mt_status mt_evaluate(mt_torch *torch, const mt_batch *batch, size_t first,
                                          size_t count, mt_chunk_result *out);

/*
 * A model with embeddings (mt_model_traits.embedding_count) is trained by cached embeddings (Gao et al.
 * 2021, arXiv 2101.06983): the exact gradient of the whole batch's loss over pairs, at the memory of a
 * chunk. mt_prepare, between mt_begin and the first mt_accumulate, runs the chunks that it is told of
 * (which together are the step's batch) forward without a graph, keeping their embeddings and the state of
 * the random numbers, and join forward and backward, which gives the gradient of each embedding and of what
 * join alone uses. Each mt_accumulate, for the chunks in this order, then draws the same random numbers
 * again and runs backward from these gradients. Its weight is not looked at. Two forward passes and one
 * backward pass are about 4/3 of the time.
 *
 * Losses, units and metrics of the chunks add up to those of the batch; the metrics come with the first.
 * Buffers that embed changes have changed once, those that only join changes not at all. Called again,
 * mt_prepare begins the step's work anew.
 *
 * Such a model has no mt_mark, and its gradients are held (MT_ENOTSUP). An mt_accumulate of other samples
 * than the next chunk's, and an mt_apply before all of them, is MT_ESTATE. mt_evaluate wants a batch's
 * chunks in their order, too, a failed one again: the last one tells loss and metrics of all, and those
 * before have no units. Their embeddings are kept until then, or until the next mt_begin or evaluation.
 *
 * mt_model_new refuses embeddings together with layers that normalise over the batch in training: what
 * stands for a sample would depend on the chunk, and not on the sample alone.
 */

/*
 * The loss scaler of MT_FLOAT16 (Micikevicius et al. 2018, arXiv 1710.03740). Half precision has no room
 * for small gradients, so each chunk's loss is multiplied by a scale, and mt_apply divides the gradient,
 * which is float32, by it again. A gradient that is not finite has mt_apply skip the update
 * (mt_apply_result.skipped) and halve the scale; after scale_growth_interval updates in a row it is
 * doubled, up to 2^32. A skipped step leaves parameters, buffers, optimiser state and its counts as they
 * were; random numbers have been drawn. Where a scale of 2^-16 does not help either, the gradient is not
 * finite by itself: mt_apply then fails with MT_ESTATE and nothing has changed.
 *
 * From the first chunk to mt_apply gradients are those of the scaled loss. The norm that is reported and
 * clipped is that of the gradient itself. The scale is part of the state: "amp.scaler", the scale and the
 * updates since it last changed.
 *
 * @return the scale of the next step; 0 where there is no scaler, or no such handle
 */
MT_API double mt_torch_scale(const mt_torch *torch);

/* What becomes of parameters that mt_torch_freeze is called for. */
#define MT_FREEZE_OFF 0       /* they train */
#define MT_FREEZE_KEEP 1      /* they are frozen; gradients and optimiser state keep their memory */
#define MT_FREEZE_GIVE_BACK 2 /* they are frozen, and that memory is given back */

/*
 * Freezes parameters or has them train again, between steps; patterns are those of mt_parameter_group. A
 * frozen parameter needs no gradient, which saves the time and the activations that it would take; it is
 * left out of the norm that is clipped, and stays as it is. What is frozen is no part of the state: whoever
 * loads a checkpoint freezes anew. mt_torch_free has everything train again.
 *
 * MT_FREEZE_KEEP keeps the optimiser state too: the parameter goes on with it, and MT_FREEZE_OFF cannot run
 * out of memory. MT_FREEZE_GIVE_BACK forgets it, 12 bytes a float with Adam: once it trains again the
 * parameter begins with zero moments, as one that has made no step. A group that is frozen from the start
 * begins like this. The state by name (mt_torch_visit_state, mt_torch_state_sha256, mt_torch_save) then has
 * no "optimizer.*" of it.
 *
 * Memory is taken before other memory is given back: for a moment the gradients and optimiser state of all
 * parameters that keep theirs are there twice. Without room for that nothing has changed. Of several
 * processes all call it alike, and none goes on where one has no room.
 *
 * A policy keeps recordings and times of its own for each set of frozen parameters.
 *
 * @param on  MT_FREEZE_OFF, MT_FREEZE_KEEP or MT_FREEZE_GIVE_BACK
 * @return MT_OK; MT_EINVAL for another on, when no trainable parameter fits the pattern, when none would be
 *         left to train, or when processes differ in what they ask for; MT_EDEVMEM without room, MT_EPEER
 *         where another process has none; MT_ESTATE during a step
 */
MT_API MT_NODISCARD mt_status mt_torch_freeze(mt_torch *torch, const char *pattern, int on);

/* The learning rate of the next step, > 0. */
MT_API MT_NODISCARD mt_status mt_torch_set_lr(mt_torch *torch, double lr);

/*
 * Calls body under autocast of that device and dtype (MT_BFLOAT16, or MT_FLOAT16 where the device
 * has it) and puts the state before back, whatever body returns or throws. May nest, dtypes may
 * differ. The state is the calling thread's own.
 * @return what body returned
 */
MT_API MT_NODISCARD mt_status mt_amp_autocast(const char *device, mt_dtype dtype,
                                              mt_status (*body)(void *user), void *user);

/*
 * Calls body, and what autograd saves in it on this thread for a backward pass waits elsewhere until that
 * asks for it: MT_OFFLOAD_HOST in memory of the host beside the budget, MT_OFFLOAD_FILE in a file of dir
 * without a name (NULL: of TMPDIR, or /tmp), MT_OFFLOAD_PACK as bf16 on the device, in half the bytes. Host and
 * file bring back the bits; bf16 is within 2^-8 of each number (from 2^-126 to 3.38e38, others lose more).
 * A tensor that is saved several times waits once; what is small (64 KiB), no floating-point number, or a
 * parameter stays where it is. May nest; the innermost counts. In an mt_torch it is
 * mt_torch_options.offload, and this need not be called.
 *
 * What is changed in place after it was saved: what waits keeps the numbers that were saved, what stays
 * is refused by the backward pass, as without.
 *
 * @param device  of the tensors
 * @param body    runs the forward pass; the backward pass may be in it or come later
 * @return what body returned; MT_EIO where no file can be made; MT_ENOTSUP inside Python's torch. The
 *         functions of libtorch throw what fails in it: in body, or in the backward pass
 */
MT_API MT_NODISCARD mt_status mt_offload(const char *device, int kind, const char *dir,
                                         mt_status (*body)(void *user), void *user);

/*
 * SHA-256 over name, dtype, shape and bytes of every tensor of the state, sorted by name:
 * parameters, buffers, optimiser state, amp.scaler and rng.cpu (rng.cuda.N, rng.xpu.N). 64 hex digits and a zero.
 */
MT_API MT_NODISCARD mt_status mt_torch_state_sha256(mt_torch *torch, char out[65]);

/* Tells fn of parameters, buffers, optimiser state and a copy of amp.scaler, in name order. */
MT_API MT_NODISCARD mt_status mt_torch_visit_state(mt_torch *torch, mt_visit_fn fn, void *user);

/* ---- checkpoints ------------------------------------------------------------------------------- */

typedef struct mt_torch_save_options {
    size_t size; /* sizeof(mt_torch_save_options) */
    const char
        *extra; /* the caller's own text, such as the position in the data, UTF-8; NULL: "" */
    int keep;   /* 1: the file that is there becomes PATH.1, in the place of an older one */
} mt_torch_save_options;

#define MT_TORCH_SAVE_OPTIONS_INIT                                                                 \
    { sizeof(mt_torch_save_options), NULL, 1 }

/*
 * Writes the whole state into one file of memtrain/safetensors.h, between steps: the tensors of
 * mt_torch_state_sha256 under their names, and as metadata the learning rate, the hash, versions and
 * extra ("memtrain.extra"). A crash or a full disk leaves a whole file, see
 * mt_safetensors_save. Tensors are written a few MiB at a time and need no room in the budget.
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_ESTATE while a step is open, or when the state is lost; MT_EIO and MT_EINVAL as
 *         mt_safetensors_save; MT_ENOTSUP for a tensor that such files cannot hold
 */
MT_API MT_NODISCARD mt_status mt_torch_save(mt_torch *torch, const char *path,
                                            const mt_torch_save_options *options);

/*
 * Puts the state back, between steps: the run then goes on bit for bit as the one that was saved, given
 * the same model, options, device, number of threads, batches and chunks. The options are the caller's
 * but for the learning rate, which is the file's; another kind of optimiser is refused. What a policy has
 * decided (chunks, rungs, the rate of a smaller batch) is not in it. A generator of a device that only
 * one of the two runs has is left alone, with a warning in the log, and so is a loss scaler.
 *
 * Parameters that had given their optimiser state back when the file was written (MT_FREEZE_GIVE_BACK) have none
 * afterwards either, or, where they train, begin without, with a warning in the log. For those that have it in
 * the file the memory is taken, also where they are frozen here. What is frozen does not change.
 *
 * First everything is compared (names, dtypes, shapes) and read once (the hash), then it is copied in
 * place: until then a failure has changed nothing. Should the file fail in the second reading, the state
 * is lost and MT_ESTATE what every step returns; a load that goes through is what revives it.
 *
 * @param extra     gets the text of mt_torch_save_options; NULL: not wanted
 * @param capacity  bytes of extra, the final zero counted; mt_safetensors_metadata tells it beforehand
 * @return MT_OK; MT_EINVAL for a file that is damaged, no checkpoint, or one of another network (the
 *         line names the first tensors that differ), with different numbers for elements that share memory in
 *         the model (expand), and when extra is too small; MT_EDEVMEM; MT_ESTATE; MT_EIO
 */
MT_API MT_NODISCARD mt_status mt_torch_load(mt_torch *torch, const char *path, char *extra,
                                            size_t capacity);

/*
 * Writes parameters and buffers alone, in row-major order whatever their strides are, under the names
 * that a state_dict has: Python's safetensors reads them. Tied weights, one tensor under several names,
 * are written under each. Not during a step.
 * @return MT_OK, MT_EIO, MT_EINVAL, MT_ENOTSUP, as mt_torch_save
 */
MT_API MT_NODISCARD mt_status mt_model_save_weights(mt_model *model, const char *path);

typedef struct mt_weights_options {
    size_t size; /* sizeof(mt_weights_options) */
    int strict;  /* 1: file and model have the same names; 0: what both have is loaded */
    const char
        *prefix; /* what the file's names begin with and the model's do not, "module." say; others
                           are no names of the model's. NULL: nothing */
    const char *skip; /* names of the model's that begin so are left alone, "fc." say. NULL: none */
} mt_weights_options;

#define MT_WEIGHTS_OPTIONS_INIT                                                                    \
    { sizeof(mt_weights_options), 1, NULL, NULL }

/*
 * Reads parameters and buffers by name, from mt_model_save_weights, mt_torch_save (strict 0) or Python.
 * Everything is compared and read once before anything changes; dtypes and shapes must be equal. Of
 * tied weights one name is enough, and the first that the file has counts. Not during a step; the
 * optimiser's state of an mt_torch stays as it is.
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_EINVAL (the line names the first tensors that differ); MT_EIO
 */
MT_API MT_NODISCARD mt_status mt_model_load_weights(mt_model *model, const char *path,
                                                    const mt_weights_options *options);

/* ---- watching a recovery ----------------------------------------------------------------------- */

/*
 * Makes the nth request for CPU memory of the calling thread from now on fail once (persistent 0),
 * or that one and every later one (persistent 1); nth 0 disarms. Requests of 0 bytes do not count.
 * One for a simulated card is refused as that card does.
 * @return MT_OK; MT_ENOTSUP when our allocator is not installed
 */
MT_API MT_NODISCARD mt_status mt_inject_oom(uint64_t nth, int persistent);

/* Requests of the calling thread since its last mt_inject_oom, and how many of them were failed. */
MT_API void mt_injected(uint64_t *out_requests, uint64_t *out_failed);

#ifdef __cplusplus
}
#endif
#endif
