/*
 * memtrain/tensor.h - tensors in and out: over the caller's memory, through DLPack, as numbers in an array.
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
 * The library is libmemtrain_torch. This header needs neither libtorch's headers nor dlpack.h.
 *
 * Two ways in copy nothing. mt_tensor_wrap takes memory of the caller. mt_tensor_from_dlpack takes
 * what NumPy, PyTorch, JAX, CuPy and others hand out (https://dmlc.github.io/dlpack). A budget does
 * not count such a tensor, because its memory is not libtorch's. It does count a copy
 * (mt_tensor_copy). The ways out are mt_tensor_to_dlpack, without a copy, and mt_tensor_read.
 * docs/tensors.md is the page on it, with Python.
 *
 * mt_tensor_wrap and the functions that take a DLPack tensor always take over the memory. They give
 * it back exactly once (release, deleter), also when they fail. When they succeed, they give it
 * back when the last tensor over the memory is gone. Such tensors are handles, chunks of a batch,
 * what a graph has saved, and what mt_tensor_to_dlpack has handed out. It happens on the thread
 * that releases the last of them, which may be a thread of libtorch.
 *
 * Thread rule: one thread at a time for one handle. Any thread for different handles, also over the
 * same memory.
 *
 * Errors beside those that a function names: MT_EINVAL for a NULL or stale argument, MT_ESTATE for
 * a handle without a tensor in it, MT_ENOTSUP for a sparse tensor, MT_EDEVMEM, and MT_ETORCH with
 * libtorch's own words.
 */
#ifndef MEMTRAIN_TENSOR_H
#define MEMTRAIN_TENSOR_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most dimensions of a tensor here, as in NumPy and in libtorch's kernels. */
#define MT_TENSOR_DIMS_MAX 64

/* ---- memory of the caller ----------------------------------------------------------------------- */

/*
 * Gives the memory back to the caller. It must not wait for another thread that uses the library,
 * and must not free a trainer.
 */
typedef void (*mt_release_fn)(void *user);

/* Memory of the caller that holds the numbers of a tensor. */
typedef struct mt_tensor_memory {
    size_t size;          /* sizeof(mt_tensor_memory) */
    void *data;           /* the element with index 0 in every dimension, aligned for its type */
    size_t bytes;         /* bytes from data on. 0: not known, and not checked */
    mt_dtype dtype;       /* of the elements, in the machine's byte order */
    size_t dims;          /* at most MT_TENSOR_DIMS_MAX. 0: one number */
    const int64_t *shape; /* dims sizes, each at least 0. Copied */
    /*
     * dims steps from one index to the next, in elements, each at least 0. Copied. NULL: row-major
     * order.
     */
    const int64_t *strides;
    const char *device; /* whose memory it is: "cpu", "cuda", "cuda:1", "xpu". NULL: "cpu" */
    /*
     * 1: mt_tensor_write refuses the tensor, and DLPack says that it is read-only. libtorch itself
     * has no read-only tensors. It does not stop a model that changes its inputs in place.
     */
    int read_only;
    mt_release_fn release; /* NULL: nothing is called, and the memory must outlive all tensors */
    void *user;            /* argument of release */
} mt_tensor_memory;

#define MT_TENSOR_MEMORY_INIT                                                                      \
    { sizeof(mt_tensor_memory), NULL, 0, MT_DTYPE_NONE, 0, NULL, NULL, NULL, 0, NULL, NULL }

/*
 * Makes a tensor over memory of the caller. Nothing is copied.
 *
 * Elements may share memory: a stride of 0 repeats a value. Such a tensor can be read and trained
 * with, but not written to. A stride below 0, which NumPy has after a[::-1], is refused, because
 * libtorch cannot step backwards.
 *
 * @param memory  memory->release is called once, whether the call succeeds or not. It is not called
 *                if memory is NULL, or if its size is not set
 * @param out     new reference: free with mt_tensor_free
 * @return MT_OK; MT_EINVAL (the line names the field); MT_ENOTSUP for a device whose memory cannot
 *         be taken over, such as MPS and the simulated cards
 */
MT_API MT_NODISCARD mt_status mt_tensor_wrap(const mt_tensor_memory *memory, mt_tensor **out);

/* ---- what a tensor is ---------------------------------------------------------------------------- */

/* What a tensor is. */
typedef struct mt_tensor_info {
    size_t size;            /* sizeof(mt_tensor_info), set by the caller */
    mt_dtype dtype;         /* MT_DTYPE_NONE: a type that mt_dtype does not name, such as int8 */
    const char *dtype_name; /* libtorch's name in C++, "Float", "Long", "Char". Static */
    size_t item_bytes;      /* of one element */
    size_t dims;
    /* Dims sizes. Borrowed until the handle is freed or gets another tensor. */
    const int64_t *shape;
    const int64_t *strides; /* dims steps in elements. Borrowed likewise */
    size_t count;           /* elements */
    size_t bytes;           /* count x item_bytes, whatever the strides */
    void *data;             /* the first element, in memory of the device. NULL: there is none */
    char device[16];        /* "cpu", "cuda:0", "mps:0". "cpu" for tensors of a simulated card */
    int in_order;           /* 1: row-major order without gaps */
    int requires_grad;      /* 1: a parameter, or computed from one */
    int read_only;          /* 1: whoever lent the memory wants no writing */
} mt_tensor_info;

#define MT_TENSOR_INFO_INIT                                                                        \
    { sizeof(mt_tensor_info), MT_DTYPE_NONE, NULL, 0, 0, NULL, NULL, 0, 0, NULL, "", 0, 0, 0 }

/*
 * Says what a tensor is. It also accepts handles that are lent in callbacks (mt_torch_visit_state).
 *
 * @param out  its size is set by the caller
 */
MT_API MT_NODISCARD mt_status mt_tensor_describe(const mt_tensor *tensor, mt_tensor_info *out);

/* ---- numbers ------------------------------------------------------------------------------------- */

/*
 * Writes all elements of a tensor into an array of the caller, in row-major order. The tensor may
 * have any strides, dtype and device. The function waits for the device.
 *
 * Numbers are converted as libtorch does it. Floating point is rounded towards 0 for integers. A
 * number that does not fit into the integer type gives an undefined value.
 *
 * @param dtype  of the array
 * @param data   aligned for dtype; must not overlap the tensor's memory
 * @param bytes  of the array: at least the tensor's count x the size of dtype
 */
MT_API MT_NODISCARD mt_status mt_tensor_read(const mt_tensor *tensor, mt_dtype dtype, void *data,
                                             size_t bytes);

/*
 * Sets all elements of a tensor from an array of the caller, in row-major order. The write is not
 * part of a graph. A parameter can be written to between two steps.
 *
 * @param dtype  of the array
 * @param data   aligned for dtype; must not overlap the tensor's memory
 * @param bytes  of the array: at least the tensor's count x the size of dtype
 * @return MT_OK; MT_EINVAL for a tensor that is read-only, or whose elements share memory
 */
MT_API MT_NODISCARD mt_status mt_tensor_write(mt_tensor *tensor, mt_dtype dtype, const void *data,
                                              size_t bytes);

/*
 * Copies a tensor into memory of libtorch, which the device's budget counts. The copy is in
 * row-major order and not part of a graph. It can be written to, also if the original is read-only.
 *
 * @param device  of the copy; NULL: the tensor's own. MT_ENOTSUP for a simulated card
 * @param dtype   of the copy; MT_DTYPE_NONE: the tensor's own
 * @param out     new reference: free with mt_tensor_free
 */
MT_API MT_NODISCARD mt_status mt_tensor_copy(const mt_tensor *tensor, const char *device,
                                             mt_dtype dtype, mt_tensor **out);

/* ---- DLPack -------------------------------------------------------------------------------------- */

/* The structs of dlpack.h, which this header does not need. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

/*
 * Makes a tensor over what another library has handed out. Nothing is copied.
 *
 * Accepted devices are the CPU (with pinned memory), CUDA (or ROCm if libtorch is built for it) and
 * XPU. The function waits for a card, so everything is done then that the writer has given to any
 * stream of it. A dtype that mt_dtype does not name is accepted if libtorch has it.
 *
 * From Python, pass the pointer in the capsule that __dlpack__() returns. Before the call rename
 * the capsule to "used_dltensor" ("used_dltensor_versioned"), because the tensor is taken over in
 * every case.
 *
 * @param managed  its deleter is called once: when the last tensor over its memory is gone, or
 *                 before the function returns if it fails
 * @param out      new reference: free with mt_tensor_free
 * @return MT_OK; MT_EINVAL for a tensor that libtorch cannot have (strides below 0, memory that is
 *         not aligned); MT_ENOTSUP for a device or a dtype that it does not have
 */
MT_API MT_NODISCARD mt_status mt_tensor_from_dlpack(struct DLManagedTensor *managed,
                                                    mt_tensor **out);

/*
 * Does the same for the form with a version, which NumPy 2.1 and later hand out for
 * __dlpack__(max_version=(1, 0)). DLPACK_FLAG_BITMASK_READ_ONLY makes a read-only tensor
 * (mt_tensor_info).
 *
 * @param managed  as above
 * @param out      new reference: free with mt_tensor_free
 * @return as above; MT_ENOTSUP also for a major version other than 1
 */
MT_API MT_NODISCARD mt_status
mt_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *managed, mt_tensor **out);

/*
 * Hands a tensor out to another library. Nothing is copied, and both see what either writes. The
 * memory stays until out's deleter is called, also if the handle is freed earlier. On a card the
 * receiver has to wait for the device.
 *
 * @param out  new reference: the receiver calls its deleter once, on any thread
 * @return MT_OK; MT_ENOTSUP for a tensor that requires a gradient (mt_tensor_copy makes one that
 *         does not), and for a read-only tensor, because this form cannot say so
 */
MT_API MT_NODISCARD mt_status mt_tensor_to_dlpack(mt_tensor *tensor, struct DLManagedTensor **out);

/*
 * Does the same in the form with a version, 1, which says whether the tensor is read-only.
 *
 * @param copy  1: hands out a copy, and the flags say so (DLPACK_FLAG_BITMASK_IS_COPIED). The
 *              tensor may require a gradient then
 * @param out   new reference: the receiver calls its deleter once, on any thread
 * @return MT_OK; MT_ENOTSUP for a tensor that requires a gradient, without a copy
 */
MT_API MT_NODISCARD mt_status mt_tensor_to_dlpack_versioned(mt_tensor *tensor, int copy,
                                                            struct DLManagedTensorVersioned **out);

#ifdef __cplusplus
}
#endif
#endif
