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
 * Devices are named as libtorch names them: "cpu", "cuda", "cuda:1", "mps". Memory is counted in
 * bytes of tensors ("counted bytes"), not in resident bytes of the process.
 *
 * Structs that are handed out have their size set by the caller, as everywhere in the library.
 *
 * No C++ exception leaves any function. Besides the codes named, each may return MT_EINVAL for a
 * NULL or stale argument (named in the error line), MT_EDEVMEM when memory ran out, and MT_ETORCH
 * with libtorch's own words.
 */
#ifndef MEMTRAIN_TORCH_H
#define MEMTRAIN_TORCH_H

#include <memtrain/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the process ----------------------------------------------------------------------------- */

typedef struct mt_torch_init_options {
    size_t size;        /* sizeof(mt_torch_init_options) */
    int cuda;           /* 1: load libtorch_cuda if it is there; 0: the CPU alone */
    int keep_allocator; /* 1: leave libtorch's own CPU allocator: nothing enforces a CPU budget */
} mt_torch_init_options;

#define MT_TORCH_INIT_OPTIONS_INIT                                                                 \
    { sizeof(mt_torch_init_options), 1, 0 }

/*
 * Prepares libtorch: loads CUDA's part where there is one and installs the budgeted CPU allocator.
 * To be called before the first tensor, on the main thread; later calls do nothing. Every function
 * that needs it calls it with the defaults.
 *
 * In a process where Python's torch is loaded no allocator is installed, since tensors exist that
 * it did not make: CPU budgets are then watched, not enforced (see mt_torch_enforces_budget).
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_ENOTSUP for a libtorch outside the supported versions
 */
MT_API MT_NODISCARD mt_status mt_torch_init(const mt_torch_init_options *options);

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
 * Limits what tensors on the device may take, in bytes; 0: the default. On the CPU the default is
 * mt_host_memory's budget, the limit holds for the whole process and is enforced at each
 * allocation. On CUDA the default is 0.95 of free and own reserved memory, on MPS 0.95 of the
 * recommended working set; both also set the allocator's own limit. It may be changed at any time;
 * a limit below what is allocated refuses every further request until enough is released. CUDA's
 * allocator reads its limit once, when the device is first used, and for all cards alike: set later,
 * the budget is kept by the policy alone, and the log says so.
 */
MT_API MT_NODISCARD mt_status mt_device_set_budget(const char *device, size_t bytes);

/* Memory of the device as it is now. out->size is set by the caller. Any thread. */
MT_API MT_NODISCARD mt_status mt_device_memory(const char *device, mt_memory *out);

/* peak_bytes starts again from what is allocated now. MPS has no peak of its own: ENOTSUP there. */
MT_API MT_NODISCARD mt_status mt_device_reset_peak(const char *device);

/*
 * Gives cached memory back: on CUDA and MPS the allocator's wholly free segments; on the CPU the
 * free pages of the heap (malloc_trim, some milliseconds). out (may be NULL) gets seconds and
 * bytes, on the CPU resident bytes.
 */
MT_API MT_NODISCARD mt_status mt_empty_cache(const char *device, mt_clear_result *out);

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

typedef struct mt_tensor mt_tensor;

/*
 * A tensor over memory of the caller's, contiguous in row-major order. Nothing is copied; the
 * memory must stay until the handle is freed and no step uses it.
 * @param shape  dims sizes, each at least 0; all bytes together below 2^63
 * @param out    new reference: free with mt_tensor_free
 */
MT_API MT_NODISCARD mt_status mt_tensor_from_memory(void *data, mt_dtype dtype, size_t dims,
                                                    const int64_t *shape, mt_tensor **out);

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
    mt_tensor *const *tensors; /* inputs and targets as the model's loss wants them; dimension 0 is
                                  the sample, on the CPU; chunks are cut and moved by the backend */
    size_t count;              /* number of tensors, at most MT_TENSORS_MAX */
} mt_torch_batch;

#define MT_TENSORS_MAX 8
#define MT_TORCH_BATCH_INIT                                                                        \
    { sizeof(mt_torch_batch), NULL, 0 }

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct mt_model mt_model;

/* Told of one parameter or buffer: name as in the state, and the tensor (borrowed for the call). */
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
    /* What the loss is averaged over, from the CPU tensors of a chunk; NULL: its samples. */
    mt_status (*units)(void *self, mt_tensor *const *tensors, size_t count, double *out);
    mt_status (*to_device)(void *self, const char *device); /* may be NULL on the CPU */
    void (*destroy)(void *self);                            /* may be NULL */
} mt_model_ops;

#define MT_MODEL_OPS_INIT                                                                          \
    { sizeof(mt_model_ops), NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* What the policy must know of a model; see mt_backend_info. Zero is the default of every field. */
typedef struct mt_model_traits {
    size_t size; /* sizeof(mt_model_traits) */
    size_t min_micro_batch;
    int normalises_over_batch;
    int needs_whole_batch;
    size_t metric_count;
    const char *const *metric_names; /* copied */
} mt_model_traits;

#define MT_MODEL_TRAITS_INIT                                                                       \
    { sizeof(mt_model_traits), 0, 0, 0, 0, NULL }

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

/* ---- the backend ------------------------------------------------------------------------------ */

typedef enum mt_optimizer { MT_SGD = 1, MT_ADAM = 2, MT_ADAMW = 3 } mt_optimizer;

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
    mt_dtype amp;        /* MT_BFLOAT16: forward under autocast; MT_DTYPE_NONE: off */
} mt_torch_options;

#define MT_TORCH_OPTIONS_INIT                                                                      \
    {                                                                                              \
        sizeof(mt_torch_options), NULL, MT_ADAMW, 1e-3, 0.9, 0, 0.9, 0.999, 1e-8, 0.01, 0.0,       \
            MT_DTYPE_NONE                                                                          \
    }

/* One model and its optimiser on one device. */
typedef struct mt_torch mt_torch;

/*
 * Moves the model to the device and lays parameters, gradients and optimiser state out in flat
 * blocks, so that nothing can fail for memory in the middle of an update. Parameters stay where the
 * model's modules see them; `.grad` of each is a view of the gradient block.
 *
 * @param model    borrowed until mt_torch_free
 * @param options  NULL: defaults; copied
 * @param out      new reference: free with mt_torch_free
 * @return MT_OK; MT_EDEVMEM when parameters, gradients and optimiser state do not fit (the line
 *         gives the bytes of each); MT_EINVAL (names the field); MT_ENOTSUP
 */
MT_API MT_NODISCARD mt_status mt_torch_new(mt_model *model, const mt_torch_options *options,
                                           mt_torch **out);

/* NULL is a no-op. The model stays and keeps its parameters. */
MT_API void mt_torch_free(mt_torch *torch);

/*
 * Fills in the seam. out->size is set by the caller (MT_BACKEND_INIT); out->self is torch, which must
 * outlive the trainer. What the device cannot do stays NULL: MPS has no record and no reset_peak.
 */
MT_API MT_NODISCARD mt_status mt_torch_backend(mt_torch *torch, mt_backend *out);

/* ---- the primitives, for loops of one's own (no policy) --------------------------------------- */

/*
 * One plain step: begin, the whole batch as one chunk, apply. On any failure the step is taken back.
 * @param out_chunk, out_apply  may be NULL
 */
MT_API MT_NODISCARD mt_status mt_train_step(mt_torch *torch, const mt_batch *batch,
                                            mt_chunk_result *out_chunk, mt_apply_result *out_apply);

/* The parts of a step, as described in memtrain/backend.h. MT_ESTATE out of order. */
MT_API MT_NODISCARD mt_status mt_begin(mt_torch *torch, const mt_batch *batch);
MT_API MT_NODISCARD mt_status mt_accumulate(mt_torch *torch, size_t first, size_t count,
                                            double weight, mt_chunk_result *out);
MT_API MT_NODISCARD mt_status mt_rollback(mt_torch *torch);
MT_API MT_NODISCARD mt_status mt_apply(mt_torch *torch, mt_apply_result *out);
MT_API MT_NODISCARD mt_status mt_evaluate(mt_torch *torch, const mt_batch *batch, size_t first,
                                          size_t count, mt_chunk_result *out);

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
 * SHA-256 over name, dtype, shape and bytes of every tensor of the state, sorted by name:
 * parameters, buffers, optimiser state and rng.cpu (rng.cuda.N). 64 hex digits and a zero.
 */
MT_API MT_NODISCARD mt_status mt_torch_state_sha256(mt_torch *torch, char out[65]);

/* Tells fn of parameters, buffers and optimiser state, in name order. */
MT_API MT_NODISCARD mt_status mt_torch_visit_state(mt_torch *torch, mt_visit_fn fn, void *user);

/* ---- watching a recovery ----------------------------------------------------------------------- */

/*
 * Makes the nth request for CPU memory of the calling thread from now on fail once (persistent 0),
 * or that one and every later one (persistent 1); nth 0 disarms. Requests of 0 bytes do not count.
 * @return MT_OK; MT_ENOTSUP when our allocator is not installed
 */
MT_API MT_NODISCARD mt_status mt_inject_oom(uint64_t nth, int persistent);

/* Requests of the calling thread since its last mt_inject_oom, and how many of them were failed. */
MT_API void mt_injected(uint64_t *out_requests, uint64_t *out_failed);

#ifdef __cplusplus
}
#endif
#endif
