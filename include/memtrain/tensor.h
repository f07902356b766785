/*
 * memtrain/tensor.h - tensors in and out: over memory of the caller's, through DLPack, as numbers in a
 * plain array. Library libmemtrain_torch; neither libtorch's headers nor dlpack.h are needed.
 *
 *     mt_tensor_memory memory = MT_TENSOR_MEMORY_INIT;
 *     memory.data = pixels;              (row-major order, unless memory.strides says otherwise)
 *     memory.dtype = MT_FLOAT32;
 *     memory.dims = 4;
 *     memory.shape = shape;
 *     memory.release = give_back;        (called when no tensor needs the pixels any more)
 *     memory.user = pixels;
 *     mt_tensor_wrap(&memory, &tensor);
 *
 * Two ways in copy nothing: mt_tensor_wrap, and mt_tensor_from_dlpack for what NumPy, PyTorch, JAX, CuPy and
 * others hand out (https://dmlc.github.io/dlpack). What comes in so is not counted by a budget, since its
 * memory is not libtorch's; a copy (mt_tensor_copy) is. The way out is mt_tensor_to_dlpack, without a copy, or
 * mt_tensor_read. docs/tensors.md has a page on it, with Python.
 *
 * Memory is handed over in every case: mt_tensor_wrap and the functions that take a DLPack tensor give it back
 * (release, deleter) exactly once, also when they fail. When they succeed, that is when the last tensor over the
 * memory is gone: handles, chunks of a batch, what a graph has saved, what mt_tensor_to_dlpack has given out. It
 * happens on the thread that lets go of it, which may be one of libtorch's.
 *
 * Thread rule: one thread at a time for one handle; different handles, also over the same memory, any thread.
 * Errors beside those that are named: MT_EINVAL for a NULL or stale argument, MT_ESTATE for a handle without a
 * tensor in it, MT_ENOTSUP for a sparse tensor, MT_EDEVMEM, and MT_ETORCH with libtorch's own words.
 */
#ifndef MEMTRAIN_TENSOR_H
#define MEMTRAIN_TENSOR_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most dimensions that a tensor has here, as in NumPy and in libtorch's kernels. */
#define MT_TENSOR_DIMS_MAX 64

/* ---- memory of the caller's ---------------------------------------------------------------------- */

/* Gets memory back. Must not wait for another thread that uses the library, nor free a trainer. */
typedef void (*mt_release_fn)(void *user);

/* Where numbers lie, and how. */
typedef struct mt_tensor_memory {
    size_t size;    /* sizeof(mt_tensor_memory) */
    void *data;     /* the element with index 0 in every dimension, aligned as its type wants it */
    size_t bytes;   /* how many there are from data on; 0: not known, and not checked */
    mt_dtype dtype; /* of the elements, in the machine's byte order */
    size_t dims;    /* at most MT_TENSOR_DIMS_MAX; 0: one number */
    const int64_t *shape;   /* dims sizes, each at least 0; copied */
    const int64_t *strides; /* dims steps from an index to the next, in elements, each at least 0;
                               copied. NULL: row-major order */
    const char *device;     /* whose memory it is: "cpu", "cuda", "cuda:1", "xpu"; NULL: "cpu" */
    int read_only;         /* 1: mt_tensor_write refuses, and DLPack is told. libtorch itself has no
                               such tensors: it stops no model that changes its inputs in place */
    mt_release_fn release; /* NULL: nothing is called, and the memory has to outlive all tensors */
    void *user;            /* argument of release */
} mt_tensor_memory;

#define MT_TENSOR_MEMORY_INIT                                                                      \
    { sizeof(mt_tensor_memory), NULL, 0, MT_DTYPE_NONE, 0, NULL, NULL, NULL, 0, NULL, NULL }

/*
 * A tensor over memory of the caller's; nothing is copied. Elements may share memory (a stride of 0 repeats a
 * value): such a tensor can be read and trained with, and nothing can be written to it. A stride below 0, which
 * NumPy has after a[::-1], is refused: libtorch cannot step backwards.
 *
 * @param memory  what there is. memory->release is called once, whether the call succeeds or not; not at all
 *                where memory is NULL or its size is not set
 * @param out     new reference: free with mt_tensor_free
 * @return MT_OK; MT_EINVAL (the line names the field); MT_ENOTSUP for a device whose memory cannot be handed
 *         in, among them MPS and the simulated cards
 */
MT_API MT_NODISCARD mt_status mt_tensor_wrap(const mt_tensor_memory *memory, mt_tensor **out);

/* ---- what a tensor is ---------------------------------------------------------------------------- */

typedef struct mt_tensor_info {
    size_t size;            /* sizeof(mt_tensor_info), set by the caller */
    mt_dtype dtype;         /* MT_DTYPE_NONE: one that mt_dtype does not name, such as int8 */
    const char *dtype_name; /* as libtorch calls it in C++, "Float", "Long", "Char"; static */
    size_t item_bytes;      /* of one element */
    size_t dims;
    const int64_t
        *shape; /* dims sizes; borrowed until the handle is freed or gets another tensor */
    const int64_t *strides; /* dims steps in elements; borrowed likewise */
    size_t count;           /* elements */
    size_t bytes;           /* count x item_bytes, whatever the strides */
    void *data;             /* the first element, memory of the device; NULL where there is none */
    char device[16];   /* "cpu", "cuda:0", "mps:0"; a simulated card's tensors are on the "cpu" */
    int in_order;      /* 1: row-major order without gaps */
    int requires_grad; /* 1: a parameter, or computed from one */
    int read_only;     /* 1: of a lender that wants no writing */
} mt_tensor_info;

#define MT_TENSOR_INFO_INIT                                                                        \
    { sizeof(mt_tensor_info), MT_DTYPE_NONE, NULL, 0, 0, NULL, NULL, 0, 0, NULL, "", 0, 0, 0 }

/* Tells what the tensor is. It goes for handles that are lent in callbacks as well (mt_torch_visit_state). */
MT_API MT_NODISCARD mt_status mt_tensor_describe(const mt_tensor *tensor, mt_tensor_info *out);

/* ---- numbers ------------------------------------------------------------------------------------- */

/*
 * Writes all elements into an array of the caller's in row-major order, whatever the tensor's strides, dtype
 * and device are, and waits for the device. Numbers are converted as libtorch does: towards 0 from floating
 * point to integers, and what does not fit there is undefined.
 *
 * @param dtype  of the array
 * @param data   aligned as dtype wants it; must not overlap the tensor's memory
 * @param bytes  of the array: at least the tensor's count x the size of dtype
 */
MT_API MT_NODISCARD mt_status mt_tensor_read(const mt_tensor *tensor, mt_dtype dtype, void *data,
                                             size_t bytes);

/*
 * The other way round: the tensor's elements become those of the array. It is no part of a graph, and a
 * parameter can be written to between two steps.
 *
 * @param dtype  of the array
 * @param data   aligned as dtype wants it; must not overlap the tensor's memory
 * @param bytes  of the array: at least the tensor's count x the size of dtype
 * @return MT_OK; MT_EINVAL for a tensor that is read-only, or whose elements share memory
 */
MT_API MT_NODISCARD mt_status mt_tensor_write(mt_tensor *tensor, mt_dtype dtype, const void *data,
                                              size_t bytes);

/*
 * A copy in memory of libtorch's, which the device's budget counts: row-major order, no part of a graph, to be
 * written to whatever the original was.
 *
 * @param device  where it shall lie; NULL: where the tensor is. MT_ENOTSUP for a simulated card
 * @param dtype   what it shall be; MT_DTYPE_NONE: what the tensor is
 * @param out     new reference: free with mt_tensor_free
 */
MT_API MT_NODISCARD mt_status mt_tensor_copy(const mt_tensor *tensor, const char *device,
                                             mt_dtype dtype, mt_tensor **out);

/* ---- DLPack -------------------------------------------------------------------------------------- */

/* The structs of dlpack.h, which this header does not need. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

/*
 * A tensor over what another library has handed out; nothing is copied. Of devices there are the CPU (with
 * pinned memory), CUDA (or ROCm, where libtorch is built for that) and XPU. A card is waited for: what its writer has given to
 * any stream of it before the call is done then. A dtype that mt_dtype does not name is taken where libtorch has it.
 *
 * From Python: the pointer in the capsule that __dlpack__() returns. Rename it to "used_dltensor"
 * ("used_dltensor_versioned") before the call, since the tensor is handed over in every case.
 *
 * @param managed  its deleter is called once: when the last tensor over its memory is gone, or before the
 *                 function returns where that fails
 * @param out      new reference: free with mt_tensor_free
 * @return MT_OK; MT_EINVAL for what is no tensor that libtorch can have (strides below 0, memory that is not
 *         aligned); MT_ENOTSUP for a device or a dtype that it does not have
 */
MT_API MT_NODISCARD mt_status mt_tensor_from_dlpack(struct DLManagedTensor *managed,
                                                    mt_tensor **out);

/*
 * The same for the form that tells its version, as NumPy 2.1 and later hand out for __dlpack__(max_version=(1,
 * 0)). DLPACK_FLAG_BITMASK_READ_ONLY makes it a read-only tensor (mt_tensor_info).
 *
 * @return as above; MT_ENOTSUP also for another major version than 1
 */
MT_API MT_NODISCARD mt_status
mt_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *managed, mt_tensor **out);

/*
 * Hands the tensor out to another library; nothing is copied, and both see what either writes. The memory stays
 * until out's deleter is called, also when the handle is freed before. On a card the receiver has to wait for
 * the device.
 *
 * @param out  new reference: whoever receives it calls its deleter, once, on any thread
 * @return MT_OK; MT_ENOTSUP for a tensor that requires a gradient (mt_tensor_copy makes one that does not)
 *         and for a read-only one, which this form cannot tell
 */
MT_API MT_NODISCARD mt_status mt_tensor_to_dlpack(mt_tensor *tensor, struct DLManagedTensor **out);

/*
 * The same in the form that tells its version, 1, and whether it is read-only.
 *
 * @param copy  1: a copy, which the flags tell (DLPACK_FLAG_BITMASK_IS_COPIED); it may be one of a tensor that
 *              requires a gradient
 * @param out   new reference: whoever receives it calls its deleter, once, on any thread
 * @return MT_OK; MT_ENOTSUP for a tensor that requires a gradient, without a copy
 */
MT_API MT_NODISCARD mt_status mt_tensor_to_dlpack_versioned(mt_tensor *tensor, int copy,
                                                            struct DLManagedTensorVersioned **out);

#ifdef __cplusplus
}
#endif
#endif
