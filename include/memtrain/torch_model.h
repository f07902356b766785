/*
 * memtrain/torch_model.h - tensors and batches for a model, and a model as C functions.
 *
 * It is a part of memtrain/torch.h, which says what holds for all its parts: errors, threads, sizes of
 * structs. Library libmemtrain_torch. memtrain/torch.hpp makes a model of a torch::nn::Module.
 */
#ifndef MEMTRAIN_TORCH_MODEL_H
#define MEMTRAIN_TORCH_MODEL_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

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
    /*
     * Called with 1 at the beginning of each step, and with 0 before each chunk of an evaluation.
     * A module that is to stay in another mode is put there by loss. May be NULL.
     */
    mt_status (*set_training)(void *self, int on);
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

#ifdef __cplusplus
}
#endif
#endif
