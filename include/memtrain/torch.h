/*
 * memtrain/torch.h - libtorch behind a C ABI: devices, tensors, models, and the backend for mt_trainer.
 *
 *     mt_torch_init(NULL);
 *     mt_device_set_budget("cpu", 600 << 20);
 *     resnet_model_new(&resnet_options, &model);          (C++, see memtrain/torch.hpp)
 *     mt_torch_new(model, &torch_options, &torch);        (flat blocks, optimiser state)
 *     mt_torch_backend(torch, &backend);
 *     mt_trainer_new(&backend, NULL, &trainer);
 *
 * The library is libmemtrain_torch. This header needs no header of libtorch.
 *
 * Devices have libtorch's names: "cpu", "cuda", "cuda:1", "xpu", "xpu:1", "mps". Other devices are
 * accepted too if libtorch has an accelerator of that name with a c10::DeviceAllocator
 * (docs/devices.md). The simulated cards are "sim:cuda" (or "sim") and "sim:mps", see
 * mt_device_simulate.
 *
 * Memory is counted in bytes of tensors ("counted bytes"), not in resident bytes of the process.
 *
 * The caller sets the size of structs that are filled in, as everywhere in the library.
 *
 * Errors: no C++ exception leaves any function. Each function names its codes. It may also return
 * MT_EINVAL for a NULL or stale argument (named in the error line), MT_EDEVMEM when memory ran out,
 * and MT_ETORCH with libtorch's own words.
 *
 * Thread rule: functions of the process and of devices may be called on any thread, unless they say
 * otherwise. A handle of a tensor belongs to one thread at a time, and so does a model with its
 * mt_torch. docs/threads.md has all rules.
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
    int cuda;           /* 1: load libtorch_cuda, _hip or _xpu if it exists. 0: only the CPU */
    int keep_allocator; /* 1: keep libtorch's own CPU allocator. Then CPU budgets are not enforced */
} mt_torch_init_options;

#define MT_TORCH_INIT_OPTIONS_INIT                                                                 \
    { sizeof(mt_torch_init_options), 1, 0 }

/*
 * Prepares libtorch: loads the part for CUDA or XPU if there is one, and installs the budgeted CPU
 * allocator.
 *
 * Call it before the first tensor, on the main thread. Later calls do nothing. Every function that
 * needs it calls it with the defaults.
 *
 * In a process where Python's torch is loaded, no allocator is installed, because tensors exist
 * already that it did not make. CPU budgets are then watched, not enforced (see
 * mt_torch_enforces_budget). The engine of autograd that offload needs is not installed either
 * (mt_offload).
 *
 * Threads of OpenMP may spin while they wait. Then this function or mt_torch_set_threads warns once
 * in the log. It does so if there is more than one thread, if OpenMP is GNU's, and if nothing in
 * the environment says how threads wait (see mt_reexec_passive). In a process of Python there is no
 * warning: its threads are the affair of Python.
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_ENOTSUP for a libtorch outside the supported versions
 */
MT_API MT_NODISCARD mt_status mt_torch_init(const mt_torch_init_options *options);

/*
 * Starts the program again in its own place, once, so that its threads sleep while they wait for
 * work.
 *
 * libtorch comes with GNU's OpenMP, whose threads spin while they wait. As soon as another program
 * wants a core, two such threads are up to 60 times slower than one. How threads wait is read from
 * the environment when the library is loaded, before main. So this function sets
 * OMP_WAIT_POLICY=PASSIVE, GOMP_SPINCOUNT=0, KMP_BLOCKTIME=0 and MEMTRAIN_REEXEC=1. Then it calls
 * execv with the file of the running program and argv. The rest of the environment stays.
 *
 * Call it first in main, since everything before the call is done twice. Streams of stdio are
 * flushed, open files stay open, other threads end.
 *
 * It does nothing in these cases: OMP_WAIT_POLICY, GOMP_SPINCOUNT, KMP_BLOCKTIME or MEMTRAIN_REEXEC
 * is set (so it happens once); the process has one core; there is no OpenMP; the dynamic loader was
 * called with the program's name. It does not look at OMP_NUM_THREADS, since mt_torch_set_threads
 * may ask for more than 1. Do not call it in a process of Python, whose argv is another one.
 *
 * The status may be ignored: a program that cannot be started again goes on, only slower.
 *
 * @param argv  main's own
 * @return MT_OK when there was nothing to do; MT_EIO with the system's words: nothing has changed;
 *         MT_EINVAL.
 *         It does not return when the program starts again
 */
MT_API mt_status mt_reexec_passive(char **argv);

/* The version of libtorch, "2.11.0". Static. Any thread. */
MT_API const char *mt_torch_version(void);

/*
 * Returns 1 if the library's CPU allocator is installed, which refuses requests beyond the budget.
 * Any thread.
 */
MT_API int mt_torch_enforces_budget(void);

/* Seeds the random number generators of all devices. Any thread, but not during a step. */
MT_API MT_NODISCARD mt_status mt_torch_seed(uint64_t seed);

/*
 * Sets or gets the number of threads that an operator may use on the CPU, at least 1. Set it before
 * the first step.
 */
MT_API MT_NODISCARD mt_status mt_torch_set_threads(int threads);
MT_API int mt_torch_get_threads(void);

/* ---- devices --------------------------------------------------------------------------------- */

/*
 * Says whether a device can be used.
 *
 * @return MT_OK; MT_ENOTSUP with the reason in the error line; MT_EINVAL for a name that is not a
 *         device's
 */
MT_API MT_NODISCARD mt_status mt_device_check(const char *device);

/*
 * Counts the devices of a type. N devices are called TYPE:0 to TYPE:N-1. The count is 0 if none can
 * be used. It is 1 for "cpu", for "mps" on a Mac, and for a simulated card.
 *
 * @param type  the name of a device without a number: "cuda"
 * @param out   0 on failure
 * @return MT_OK; MT_EINVAL for a name that is not a device's, or that has a number; MT_ENOTSUP for
 *         a type that the library cannot train on
 */
MT_API MT_NODISCARD mt_status mt_device_count(const char *type, size_t *out);

/*
 * Limits the bytes of tensors on the device. 0: the default.
 *
 * On the CPU the budget holds for the whole process, and is enforced at each allocation. The
 * default is the budget of mt_host_memory. It follows the host while the program runs, so it sees
 * memory that others take or give back. A control group may leave less than the host. Then the
 * default is what a resident budget (below) leaves: 0.95 of what the process holds plus what the
 * group has left.
 *
 * On CUDA and XPU the default is 0.95 of the sum of free memory and own reserved memory. On MPS it
 * is 0.95 of the recommended working set. All three also set the limit of the device's own
 * allocator. If an allocator takes no limit, the budget is watched, not enforced, and the log says
 * so. On CUDA and XPU each card has its own budget. To set one initialises the cards.
 *
 * The budget may be changed at any time. A budget below what is allocated refuses every further
 * request until enough is released.
 */
MT_API MT_NODISCARD mt_status mt_device_set_budget(const char *device, size_t bytes);

/*
 * Limits what the whole process holds in memory, in bytes. 0: no such limit. Code and libraries
 * count too: libtorch alone takes 110 MB.
 *
 * The budget of tensors becomes what the limit leaves for them, but never more than the budget that
 * is set. That happens when a chunk begins, and when mt_device_memory is called. Pages that wait in
 * planned memory or in the heap are given back when something else needs memory. Non-tensor memory
 * that is taken in the middle of a chunk is not seen, so leave some room.
 *
 * @param device  only "cpu", and only on systems that report the figures (Linux, macOS); otherwise
 *                MT_ENOTSUP
 */
MT_API MT_NODISCARD mt_status mt_device_set_resident_budget(const char *device, size_t bytes);

/* What the process holds in memory, in bytes. */
typedef struct mt_resident {
    size_t size;           /* sizeof(mt_resident) */
    size_t limit_bytes;    /* the resident budget. 0: none */
    size_t resident_bytes; /* now: the sum of the next three fields */
    size_t tensor_bytes;   /* tensors outside of arenas: parameters, optimiser state */
    size_t arena_bytes;    /* pages of arenas, in use or kept for the next chunk */
    size_t other_bytes;    /* code, libraries, heap */
    size_t peak_bytes;     /* highest resident bytes since the process began. 0: not known */
} mt_resident;

#define MT_RESIDENT_INIT                                                                           \
    { sizeof(mt_resident), 0, 0, 0, 0, 0, 0 }

/*
 * Reports what the process holds in memory.
 *
 * @param device  only "cpu", and only on systems that report the figures; otherwise MT_ENOTSUP
 */
MT_API MT_NODISCARD mt_status mt_device_resident(const char *device, mt_resident *out);

/*
 * Predicts the most that the process will hold in memory while its tensors take at most peak_bytes.
 *
 * Non-tensor memory is taken to stay as it is now. So ask after some chunks have run. Chunks are
 * taken to be served from planned memory. Without planned memory the heap may hold twice their
 * bytes.
 *
 * @param device      only "cpu", and only on systems that report the figures; otherwise MT_ENOTSUP
 * @param peak_bytes  counted bytes of all tensors together, with those that exist now:
 *                    predicted_peak_bytes of a plan, or allocated_bytes of mt_memory plus what
 *                    mt_memory_model_peak or mt_policy_predict_bytes gives
 * @param out         bytes, at least what is held now; 0 on failure
 */
MT_API MT_NODISCARD mt_status mt_device_predict_resident(const char *device, size_t peak_bytes,
                                                         size_t *out);

/*
 * Reports the memory of the device as it is now. Any thread.
 *
 * @param out  its size is set by the caller
 */
MT_API MT_NODISCARD mt_status mt_device_memory(const char *device, mt_memory *out);

/*
 * Restarts peak_bytes from what is allocated now. MT_ENOTSUP on MPS, which has no peak of its own.
 */
MT_API MT_NODISCARD mt_status mt_device_reset_peak(const char *device);

/*
 * Gives cached memory back to the system.
 *
 * On a card it gives back the segments of the allocator that are wholly free. On CUDA and XPU that
 * is done for all cards of the type, and each card is waited for. On the CPU it gives back the
 * pages of planned memory in which no tensor lies, except those of running chunks. It also gives
 * back the free pages of the heap (malloc_trim, some milliseconds).
 *
 * @param out  receives seconds and bytes, on the CPU resident bytes; may be NULL
 */
MT_API MT_NODISCARD mt_status mt_empty_cache(const char *device, mt_clear_result *out);

/*
 * Sets what the simulated card behind "sim:cuda" or "sim:mps" is like. Until it is called, the card
 * has the defaults of memtrain/sim.h.
 *
 * Tensors of such a device lie in the host's memory, and the CPU computes them. Each tensor is also
 * booked on the card, by the rules of the caching allocator of CUDA or MPS. If the card has no
 * room, the request is refused with that allocator's type and words. Everything above holds as for
 * the real device: budgets, figures, OOMs, their evidence.
 *
 * A tensor is on the card if it was made inside a call of an mt_torch on that device, on the
 * calling thread. Batches are on the host, and so are models before mt_torch_new. The budget of the
 * CPU holds beside that of the card. The card belongs to the process: several mt_torch share it.
 *
 * @param device   says which card; the flavour of the options is not looked at
 * @param options  NULL: defaults; copied
 * @return MT_OK; MT_ESTATE while tensors lie on the card; MT_EINVAL for a device that is not
 *         simulated; MT_ENOTSUP without the library's CPU allocator (mt_torch_enforces_budget)
 */
MT_API MT_NODISCARD mt_status mt_device_simulate(const char *device, const mt_sim_options *options);

/*
 * Sets how many bytes are held by others than tensors, from now on. It replaces the previous value.
 * It may be more than there is. Any thread.
 *
 * On the CPU it is non-tensor memory of the host, such as a loader's buffers. It counts against the
 * budget as if it were allocated. MT_ENOTSUP without the library's CPU allocator.
 *
 * On a simulated card it is memory of other processes (mt_sim_set_others), for instance to see a
 * run shrink.
 */
MT_API MT_NODISCARD mt_status mt_device_hold(const char *device, size_t bytes);

/*
 * Reports the figures of a simulated card. Any thread.
 *
 * @param out  its size is set by the caller
 */
MT_API MT_NODISCARD mt_status mt_device_sim_stats(const char *device, mt_sim_stats *out);

/* ---- tensors --------------------------------------------------------------------------------- */

/* The type of the elements of a tensor. */
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
 * A handle of a tensor of libtorch. The functions here make one of a plain array, as a batch needs
 * it, and give it to a model. memtrain/tensor.h has other ways in and out: strides, a release
 * callback, DLPack, numbers. memtrain/call.h has any operator that computes with it.
 * memtrain/script.h has models that were made in Python.
 */
typedef struct mt_tensor mt_tensor;

/*
 * Makes a tensor over an array of the caller, contiguous in row-major order. Nothing is copied. The
 * array must stay until the handle is freed and no step uses the tensor.
 *
 * @param shape  dims sizes, each at least 0; all bytes together below 2^63
 * @param out    new reference: free with mt_tensor_free
 */
MT_API MT_NODISCARD mt_status mt_tensor_from_memory(void *data, mt_dtype dtype, size_t dims,
                                                    const int64_t *shape, mt_tensor **out);

/*
 * Makes a handle without a tensor, for a function that writes one into it (mt_checkpoint).
 *
 * @param out  new reference: free with mt_tensor_free
 */
MT_API MT_NODISCARD mt_status mt_tensor_new(mt_tensor **out);

/* Frees a handle. NULL is a no-op. */
MT_API void mt_tensor_free(mt_tensor *tensor);

/*
 * Returns the at::Tensor inside, for C++ (memtrain/torch.hpp casts it). It is borrowed until the
 * handle is freed. NULL for NULL or a stale handle.
 */
MT_API void *mt_tensor_get(mt_tensor *tensor);

/* What mt_batch.data points to for this backend. */
typedef struct mt_torch_batch {
    size_t size; /* sizeof(mt_torch_batch) */
    /*
     * Inputs and targets as the loss takes them, on the CPU. Dimension 0 is the sample. It has the
     * same size in all tensors. The backend cuts the chunks.
     */
    mt_tensor *const *tensors;
    size_t count; /* number of tensors, at most MT_TENSORS_MAX */
} mt_torch_batch;

/* The most tensors of a batch. */
#define MT_TENSORS_MAX 8
#define MT_TORCH_BATCH_INIT                                                                        \
    { sizeof(mt_torch_batch), NULL, 0 }

/* ---- models ---------------------------------------------------------------------------------- */

/* A network with its loss. */
typedef struct mt_model mt_model;

/*
 * Receives one parameter or buffer.
 *
 * Names in the state are unique. The tensor is borrowed for the call. An empty handle
 * (mt_tensor_new) is passed over: a layer may have no bias, for instance. The function returns
 * MT_EINVAL for a tensor that is not a live handle.
 */
typedef mt_status (*mt_visit_fn)(void *user, const char *name, mt_tensor *tensor);

/*
 * Calls fn with a handle of an at::Tensor, for the visit functions of mt_model_ops in C++.
 *
 * @param tensor  points to the at::Tensor; borrowed for the call
 * @return what fn returned
 */
MT_API MT_NODISCARD mt_status mt_visit_tensor(const void *tensor, const char *name, mt_visit_fn fn,
                                              void *user);

/*
 * A model as C functions. memtrain/torch.hpp makes them from any torch::nn::Module. A function that
 * may raise C++ exceptions must end them: `catch (...) { return mt_torch_exception(); }`.
 */
typedef struct mt_model_ops {
    size_t size; /* sizeof(mt_model_ops) */
    mt_status (*visit_parameters)(void *self, mt_visit_fn fn, void *user);
    mt_status (*visit_buffers)(void *self, mt_visit_fn fn, void *user); /* may be NULL */
    mt_status (*set_training)(void *self, int on);                      /* may be NULL */
    /*
     * Computes the forward pass and the loss of one chunk, on the device. Writes the loss into
     * out_loss: a scalar with its graph, the mean over the chunk's units. Writes the metrics into
     * out_metrics: a detached tensor of metric_count sums over the samples. It may leave
     * out_metrics empty.
     */
    mt_status (*loss)(void *self, mt_tensor *const *tensors, size_t count, mt_tensor *out_loss,
                      mt_tensor *out_metrics);
    /*
     * Counts what the loss is averaged over (tokens, pixels), from the CPU tensors of a chunk.
     * NULL: samples. It is called for the whole batch too, so that each chunk counts by its share.
     */
    mt_status (*units)(void *self, mt_tensor *const *tensors, size_t count, double *out);
    mt_status (*to_device)(void *self, const char *device); /* may be NULL on the CPU */
    void (*destroy)(void *self);                            /* may be NULL */
    /*
     * embed and join take the place of loss if the loss couples the samples of the batch
     * (contrastive). They are used when mt_model_traits.embedding_count is not 0. See mt_prepare.
     *
     * embed writes the embeddings of one chunk, on the device. They are tensors of any dtype.
     * Dimension 0 is the sample. The embedding of a sample must depend on that sample alone.
     */
    mt_status (*embed)(void *self, mt_tensor *const *tensors, size_t count,
                       mt_tensor *const *out_embeddings, size_t embedding_count);
    /*
     * join gets the embeddings of the whole batch, in the order of its samples. It writes the loss:
     * a scalar with its graph, the mean over the batch's samples. It writes the metrics: detached
     * sums over the samples, or nothing. If it needs more of the batch, such as labels, embed has
     * to pass them on as one more embedding.
     */
    mt_status (*join)(void *self, mt_tensor *const *embeddings, size_t embedding_count,
                      mt_tensor *out_loss, mt_tensor *out_metrics);
} mt_model_ops;

#define MT_MODEL_OPS_INIT                                                                          \
    { sizeof(mt_model_ops), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* What the policy must know of a model, see mt_backend_info. Zero is the default of every field. */
typedef struct mt_model_traits {
    size_t size; /* sizeof(mt_model_traits) */
    size_t min_micro_batch;
    int normalises_over_batch;
    int needs_whole_batch;
    size_t metric_count;
    const char *const *metric_names; /* copied */
    const int *metric_over;          /* see mt_backend_info. NULL: samples. Copied */
    int checkpoints; /* 1: the loss function calls mt_checkpoint, so checkpointing can be on */
    /*
     * Number of tensors that embed writes, at most MT_TENSORS_MAX. If it is not 0, the model is
     * trained by cached embeddings. loss and units may be NULL then.
     */
    size_t embedding_count;
} mt_model_traits;

#define MT_MODEL_TRAITS_INIT                                                                       \
    { sizeof(mt_model_traits), 0, 0, 0, 0, NULL, NULL, 0, 0 }

/*
 * Makes a model of C functions.
 *
 * @param ops     copied
 * @param self    first argument of every function; mt_model_free calls destroy(self), and so does
 *                this function when it fails
 * @param traits  NULL: defaults
 * @param out     new reference: free with mt_model_free
 */
MT_API MT_NODISCARD mt_status mt_model_new(const mt_model_ops *ops, void *self,
                                           const mt_model_traits *traits, mt_model **out);

/* Frees a model. NULL is a no-op. Do not call it while an mt_torch uses the model. */
MT_API void mt_model_free(mt_model *model);

/*
 * Turns the exception in flight into a status and the error line. Call it inside a C++ `catch
 * (...)` only.
 *
 * It is the one place that tells an OOM from other errors. It does so by evidence (a request was
 * refused), by the exception's type, and by its text.
 *
 * A program with a C++ runtime of its own (-static-libstdc++) has exceptions that this function does
 * not see. Then evidence alone decides: MT_EDEVMEM if a request was refused during the call,
 * otherwise MT_ESTATE.
 */
MT_API mt_status mt_torch_exception(void);

/* ---- segments --------------------------------------------------------------------------------- */

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
 * and RMSNorm on MPS, and on CUDA for attention with some sizes of heads. Then the outputs equal
 * those of a plain run except for rounding.
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

/* ---- the backend ------------------------------------------------------------------------------ */

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
 * A tensor that shares memory with a parameter does not move with it. One tensor under several
 * names does.
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

/* ---- the primitives, for loops of one's own (no policy) --------------------------------------- */

/*
 * Makes one plain step: begin, the whole batch as one chunk, apply. After any failure the step is
 * rolled back. If gradients are not held (mt_hold_gradients), the chunk is a marked one.
 *
 * A step whose loss is not finite is rolled back too, unless options->apply_not_finite says
 * otherwise. So is a step on a batch without units, in which every label is masked. Such a step
 * returns MT_OK, out_apply->skipped is 1, and mt_log warns in one line.
 *
 * @param out_chunk  may be NULL
 * @param out_apply  may be NULL
 */
MT_API MT_NODISCARD mt_status mt_train_step(mt_torch *torch, const mt_batch *batch,
                                            mt_chunk_result *out_chunk, mt_apply_result *out_apply);

/*
 * The parts of a step. They are the functions of mt_backend with these names. memtrain/backend.h
 * says more of each.
 *
 * Call mt_begin, then mt_accumulate for chunks that together are the batch, then mt_apply. After a
 * failure of mt_accumulate or mt_apply, only mt_rollback may follow, or mt_rewind if the chunk was
 * marked.
 *
 *     mt_begin           starts a step on a batch, which is borrowed until mt_apply or mt_rollback;
 *                        gradients are zero afterwards
 *     mt_accumulate      runs samples [first, first + count) forward and backward; the loss is a
 *                        mean over them; it is multiplied by weight before the backward pass;
 *                        weight is at least 0: the chunk's share of the batch's units
 *     mt_collect         gives loss, metrics and time of the oldest deferred chunk, only on a card
 *                        (mt_chunk_result.deferred); call it once for each; the first call waits
 *                        for the card; MT_ESTATE when none is left
 *     mt_prepare         for a model with embeddings, below: takes the sizes of the count chunks
 *                        that follow
 *     mt_mark            has the next chunk add its gradients only after its backward pass
 *     mt_rewind          after a marked chunk failed: restores what mt_mark saw, with the gradients
 *                        of earlier chunks
 *     mt_hold_gradients  outside a step: 0 gives back the memory of gradients; each step is one
 *                        marked chunk then
 *     mt_rollback        rolls the step back: parameters, buffers and random numbers are as before
 *                        mt_begin
 *     mt_apply           clips and updates, and ends the step; skips the update (out->skipped) when
 *                        the gradient is not finite or no chunk had a unit; nothing has changed if
 *                        it fails
 *     mt_evaluate        runs samples forward only, in evaluation mode, outside a step; a failure
 *                        rolls back what the forward pass wrote
 *
 * The model's own code may write to a parameter: a momentum encoder, an average of weights, weights
 * that are clipped. Such a parameter is rolled back like a buffer, whether it trains or not. A
 * warning names the first one, because it changes once a chunk: its values depend on how batches
 * are cut.
 *
 * Until one chunk has succeeded, the library looks at each operator. What the operator is about to
 * write to is copied into plain memory of the host, which no budget counts. From then on each step
 * keeps a copy, which the budget counts (mt_backend_info.buffer_bytes).
 *
 * A parameter may be written to for the first time in a later step. It is then found by its version
 * counter. If that very step fails, the state is lost (MT_ESTATE names the parameter). Two things
 * are not seen: writes through data pointers, and a first write in a later step through
 * variable_data().
 *
 * @param out  size set by the caller (MT_CHUNK_RESULT_INIT, MT_APPLY_RESULT_INIT). Receives the
 *             figures of the chunk or of the update. After a failure it is zero except for the
 *             evidence of an OOM
 * @return MT_OK.
 *         MT_EDEVMEM: memory ran out.
 *         MT_ESTATE: the call is out of order; or it comes from a function of the model that a step
 *         has called; or the state was lost. Only a failure of mt_rollback or mt_rewind loses the
 *         state, or a skipped update that cannot be rolled back.
 *         MT_EINVAL: samples that the batch does not have; a model without a parameter to train; a
 *         loss that is not a scalar or has no graph.
 *         MT_EUSER, MT_ETORCH: from the model.
 *         MT_ENOTSUP.
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
 * A model with embeddings (mt_model_traits.embedding_count) is trained by cached embeddings (Gao et
 * al. 2021, arXiv 2101.06983). This gives the exact gradient of a loss over all pairs of the batch,
 * with the memory of a chunk.
 *
 * Call mt_prepare between mt_begin and the first mt_accumulate. Its chunks together are the step's
 * batch. It runs embed for each chunk without a graph. It keeps the embeddings and the state of the
 * random numbers. Then it runs join forward and backward. That gives the gradient of each
 * embedding, and of the parameters that join alone uses.
 *
 * Then call mt_accumulate for the chunks in the same order. Each call draws the same random numbers
 * again, and runs backward from the gradients of the embeddings. Its weight is not looked at. Two
 * forward passes and one backward pass take about 4/3 of the time.
 *
 * Losses, units and metrics of the chunks add up to those of the batch. The metrics come with the
 * first chunk. Buffers that embed changes have changed once. Buffers that only join changes have
 * not changed at all. If mt_prepare is called again, it begins the step's work anew.
 *
 * Such a model has no mt_mark, and its gradients are always held (MT_ENOTSUP). MT_ESTATE when
 * mt_accumulate gets other samples than the next chunk's, or when mt_apply comes before all chunks
 * have run.
 *
 * mt_evaluate needs the chunks of a batch in their order too. Run a failed chunk again. The last
 * chunk gives loss and metrics of all chunks. Those before it have no units. Their embeddings are
 * kept until then, or until the next mt_begin or evaluation.
 *
 * mt_model_new refuses embeddings together with layers that normalise over the batch in training.
 * There the embedding of a sample would depend on its chunk, not on the sample alone.
 */

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

/*
 * Calls body under autocast, and restores the state of autocast afterwards, whatever body returns
 * or throws. Calls may nest, with different dtypes. The state belongs to the calling thread.
 *
 * @param dtype  MT_BFLOAT16, or MT_FLOAT16 if the device has it
 * @return what body returned
 */
MT_API MT_NODISCARD mt_status mt_amp_autocast(const char *device, mt_dtype dtype,
                                              mt_status (*body)(void *user), void *user);

/*
 * Calls body under offload. What autograd saves on this thread during body waits elsewhere, until
 * the backward pass asks for it.
 *
 * With MT_OFFLOAD_HOST it waits in memory of the host that no budget counts. With MT_OFFLOAD_FILE
 * it waits in a file without a name. Both bring back the same bits. With MT_OFFLOAD_PACK it waits
 * as bf16 on the device, in half the bytes. Then each number comes back within 2^-8 of itself. That
 * holds from 2^-126 to 3.38e38; other numbers lose more.
 *
 * A tensor that is saved several times waits once. Some tensors stay where they are: small ones,
 * those that are not floating point, and parameters. Small is below 64 KiB. In an mt_torch, a
 * tensor of a chunk's samples is small below 2 KiB a sample. Calls may nest; the innermost one
 * counts. In an mt_torch set mt_torch_options.offload instead.
 *
 * A tensor may be changed in place after it was saved. If it waits, it keeps the numbers that were
 * saved. If it stays, the backward pass refuses it, as without offload.
 *
 * @param device  of the tensors
 * @param kind    MT_OFFLOAD_HOST, MT_OFFLOAD_FILE or MT_OFFLOAD_PACK
 * @param dir     folder of the file; NULL: TMPDIR, or /tmp
 * @param body    runs the forward pass; the backward pass may be in it or come later
 * @return what body returned; MT_EIO when no file can be made; MT_ENOTSUP in a process with
 *         Python's torch. If putting away or bringing back fails, the functions of libtorch throw:
 *         in body, or in the backward pass
 */
MT_API MT_NODISCARD mt_status mt_offload(const char *device, int kind, const char *dir,
                                         mt_status (*body)(void *user), void *user);

/*
 * Writes the SHA-256 of the state as 64 hex digits and a zero. It is over name, dtype, shape and
 * bytes of every tensor, sorted by name. The state is parameters, buffers, optimiser state,
 * amp.scaler and rng.cpu (also rng.cuda.N or rng.xpu.N).
 */
MT_API MT_NODISCARD mt_status mt_torch_state_sha256(mt_torch *torch, char out[65]);

/*
 * Calls fn for parameters, buffers, optimiser state and a copy of amp.scaler, in the order of
 * names.
 */
MT_API MT_NODISCARD mt_status mt_torch_visit_state(mt_torch *torch, mt_visit_fn fn, void *user);

/* ---- checkpoints ------------------------------------------------------------------------------- */

/* Options of mt_torch_save. */
typedef struct mt_torch_save_options {
    size_t size; /* sizeof(mt_torch_save_options) */
    /* A text of the caller in UTF-8, such as the position in the data. NULL: "". */
    const char *extra;
    int keep; /* 1: an existing file is renamed to PATH.1, which replaces an older PATH.1 */
} mt_torch_save_options;

#define MT_TORCH_SAVE_OPTIONS_INIT                                                                 \
    { sizeof(mt_torch_save_options), NULL, 1 }

/*
 * Writes the whole state into one file of memtrain/safetensors.h, between steps.
 *
 * The file has the tensors of mt_torch_state_sha256 under their names. Its metadata has the
 * learning rate, the hash, versions, and extra ("memtrain.extra"). A crash or a full disk leaves a
 * complete file, see mt_safetensors_save. Tensors are written a few MiB at a time, and need no room
 * in the budget.
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_ESTATE while a step is open, or when the state is lost; MT_EIO and MT_EINVAL as
 *         mt_safetensors_save; MT_ENOTSUP for a tensor that such files cannot hold
 */
MT_API MT_NODISCARD mt_status mt_torch_save(mt_torch *torch, const char *path,
                                            const mt_torch_save_options *options);

/*
 * Loads the state from a file of mt_torch_save, between steps. The run then goes on bit for bit as
 * the saved run, if model, options, device, number of threads, batches and chunks are the same.
 *
 * The options stay the caller's, except for the learning rate, which is the file's. A file of
 * another kind of optimiser is refused. What a policy has decided is not in the file: chunks,
 * rungs, the rate of a smaller batch. A random number generator of a device that only one of the
 * two runs has is left alone, with a warning in the log. So is a loss scaler.
 *
 * Parameters may have had no optimiser state when the file was written (MT_FREEZE_GIVE_BACK). If
 * they are frozen here, they have none afterwards. If they train here, they begin without, with a
 * warning in the log. For parameters whose state is in the file, memory is taken, also if they are
 * frozen here. What is frozen does not change.
 *
 * First everything is compared (names, dtypes, shapes) and read once (the hash). A failure until
 * then has changed nothing. Then everything is copied in place. If the file fails in this second
 * reading, the state is lost, and every step returns MT_ESTATE until a load succeeds.
 *
 * @param extra     receives the text of mt_torch_save_options; NULL: not wanted
 * @param capacity  bytes of extra, with the final zero; mt_safetensors_metadata gives the length
 *                  beforehand
 * @return MT_OK.
 *         MT_EINVAL: the file is damaged, or not a checkpoint, or of another network (the line
 *         names the first tensors that differ); it has different numbers for elements that share
 *         memory in the model (expand); or extra is too small.
 *         MT_EDEVMEM; MT_ESTATE; MT_EIO.
 */
MT_API MT_NODISCARD mt_status mt_torch_load(mt_torch *torch, const char *path, char *extra,
                                            size_t capacity);

/*
 * Writes parameters and buffers alone, under the names of a state_dict. Python's safetensors reads
 * the file. Tensors are written in row-major order, whatever their strides are. Tied weights, one
 * tensor under several names, are written under each name. Not during a step.
 *
 * @return MT_OK, MT_EIO, MT_EINVAL, MT_ENOTSUP, as mt_torch_save
 */
MT_API MT_NODISCARD mt_status mt_model_save_weights(mt_model *model, const char *path);

/* Options of mt_model_load_weights. */
typedef struct mt_weights_options {
    size_t size; /* sizeof(mt_weights_options) */
    int strict;  /* 1: file and model must have the same names. 0: what both have is loaded */
    /*
     * The beginning that the names in the file have and those of the model do not have, such as
     * "module.". Names in the file without it are not names of the model. NULL: no such beginning.
     */
    const char *prefix;
    /* Names of the model that begin so are left alone, such as "fc.". NULL: none. */
    const char *skip;
    /*
     * Where the file has no tensor of the model's name: writes another name that it may have there, zero included, into
     * other[capacity], which is "" before. Files of several libraries with the same network are read so. NULL: none.
     */
    void (*other_name)(void *user, const char *name, char *other, size_t capacity);
    void *user; /* given to other_name */
} mt_weights_options;

#define MT_WEIGHTS_OPTIONS_INIT                                                                    \
    { sizeof(mt_weights_options), 1, NULL, NULL, NULL, NULL }

/*
 * Reads parameters and buffers by name, from a file of mt_model_save_weights, mt_torch_save (strict
 * 0) or Python. A path that ends with ".json" is that of an index of several files ("weight_map"), which lie beside it.
 *
 * Everything is compared and read once before anything changes. Dtypes and shapes must be equal.
 * For tied weights one name is enough; the first that the file has counts. Not during a step. The
 * optimiser state of an mt_torch stays as it is.
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_EINVAL (the line names the first tensors that differ); MT_EIO
 */
MT_API MT_NODISCARD mt_status mt_model_load_weights(mt_model *model, const char *path,
                                                    const mt_weights_options *options);

/* ---- watching a recovery ----------------------------------------------------------------------- */

/*
 * Makes requests of the calling thread for memory fail: for the CPU's, and for a card's. Requests of 0
 * bytes do not count. The requests of a backward pass on libtorch's own thread count too. A card
 * refuses such a request in its own words, and empties its cache first. On a Mac requests to MPS do
 * not count.
 *
 * @param nth         the request to fail, counted from now on, from 1; 0: no request fails any more
 * @param persistent  0: only that request fails; 1: every later one fails too
 * @return MT_OK; MT_ENOTSUP when the library's CPU allocator is not installed
 */
MT_API MT_NODISCARD mt_status mt_inject_oom(uint64_t nth, int persistent);

/*
 * Counts the requests of mt_inject_oom's kind since its last mt_inject_oom, and how many of them have
 * failed.
 */
MT_API void mt_injected(uint64_t *out_requests, uint64_t *out_failed);

#ifdef __cplusplus
}
#endif
#endif
