/*
 * memtrain/safetensors.h - files of named tensors in the safetensors format, read and written.
 *
 *     mt_safetensors *file;
 *     mt_safetensors_tensor tensor;
 *     size_t index;
 *     if (mt_safetensors_open("resnet18.safetensors", &file) == MT_OK &&
 *         mt_safetensors_find(file, "fc.bias", &index) == MT_OK &&
 *         mt_safetensors_get(file, index, &tensor) == MT_OK)
 *         status = mt_safetensors_read(file, index, 0, memory, (size_t)tensor.bytes);
 *     mt_safetensors_free(file);
 *
 * Such a file begins with 8 bytes: the length of its header (little-endian). Then comes the header,
 * which is JSON. Then come the bytes of the tensors, in row-major order, little-endian. Nothing in
 * the file is ever executed. The whole file is checked before any of it is handed out. So what
 * these functions say of a tensor is true.
 *
 * This is plain C without libtorch. memtrain/torch.h has checkpoints of a whole training state.
 */
#ifndef MEMTRAIN_SAFETENSORS_H
#define MEMTRAIN_SAFETENSORS_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The types of elements. The format's name of a type is what follows MT_ST_. */
typedef enum mt_st_dtype {
    MT_ST_NONE = 0,
    MT_ST_BOOL = 1,
    MT_ST_U8 = 5,
    MT_ST_I8 = 6,
    MT_ST_F8_E5M2 = 7,
    MT_ST_F8_E4M3 = 8,
    MT_ST_F8_E8M0 = 9,
    MT_ST_I16 = 10,
    MT_ST_U16 = 11,
    MT_ST_F16 = 12,
    MT_ST_BF16 = 13,
    MT_ST_I32 = 14,
    MT_ST_U32 = 15,
    MT_ST_F32 = 16,
    MT_ST_C64 = 17, /* two F32 */
    MT_ST_F64 = 18,
    MT_ST_I64 = 19,
    MT_ST_U64 = 20
} mt_st_dtype;

/*
 * The name of a type, "F32", and the bytes of an element. "?" and 0 for a number that is not a
 * type. Any thread.
 */
MT_API const char *mt_st_dtype_name(mt_st_dtype dtype);
MT_API size_t mt_st_dtype_bytes(mt_st_dtype dtype);

/* One tensor of a file. */
typedef struct mt_safetensors_tensor {
    const char *name; /* UTF-8, any text but "__metadata__" */
    mt_st_dtype dtype;
    size_t dims;          /* 0: a scalar, one element */
    const int64_t *shape; /* dims sizes, each at least 0 */
    uint64_t bytes;       /* of all elements, below 2^63 */
    const void *data;     /* for writing. A reader leaves it NULL */
} mt_safetensors_tensor;

/* A text and its name in the file's metadata, both UTF-8. */
typedef struct mt_safetensors_text {
    const char *key, *value;
} mt_safetensors_text;

/* ---- reading --------------------------------------------------------------------------------- */

/*
 * An open file. It stays open, so a file that is replaced by another of its name can still be read.
 *
 * Thread rule: any number of threads may read from it at once. Free it last.
 */
typedef struct mt_safetensors mt_safetensors;

/*
 * Opens a file and checks it. These are checked: the length of the header (at most 100 MB, as in
 * the format) and its JSON; names that occur twice; dtypes; shapes against bytes; bytes that
 * overlap, are missing, or belong to no tensor.
 *
 * @param out  new reference: free with mt_safetensors_free; NULL on failure
 * @return MT_OK; MT_EINVAL for a wrong file: the line names the file, the tensor, what is wrong and
 *         what is accepted; MT_EIO when it cannot be read; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_safetensors_open(const char *path, mt_safetensors **out);

/* Closes a file. NULL is a no-op. */
MT_API void mt_safetensors_free(mt_safetensors *file);

/* The number of tensors. 0 for NULL or a stale handle. */
MT_API size_t mt_safetensors_count(const mt_safetensors *file);

/*
 * Describes a tensor. Indices count from 0, in the byte order of the names. What out points to is
 * borrowed until the file is freed.
 *
 * @return MT_OK, MT_EINVAL (index beyond the last)
 */
MT_API MT_NODISCARD mt_status mt_safetensors_get(const mt_safetensors *file, size_t index,
                                                 mt_safetensors_tensor *out);

/*
 * Finds the index of the tensor with this name.
 *
 * @return MT_OK; MT_EINVAL when there is none
 */
MT_API MT_NODISCARD mt_status mt_safetensors_find(const mt_safetensors *file, const char *name,
                                                  size_t *out_index);

/*
 * Reads bytes [offset, offset + bytes) of a tensor into data.
 *
 * @return MT_OK; MT_EINVAL beyond the tensor's bytes; MT_EIO, and data may have been written to
 */
MT_API MT_NODISCARD mt_status mt_safetensors_read(const mt_safetensors *file, size_t index,
                                                  uint64_t offset, void *data, size_t bytes);

/*
 * Returns the metadata's text of that name, borrowed until the file is freed. NULL when there is
 * none.
 */
MT_API const char *mt_safetensors_metadata(const mt_safetensors *file, const char *key);

/* ---- writing --------------------------------------------------------------------------------- */

/*
 * Gives the bytes of a tensor without data, piece by piece.
 *
 * It sets *out_data to the bytes from offset on, and *out_bytes to their number: at least one, at
 * most what is left. They are borrowed until the next call. A status other than MT_OK ends the
 * writing. mt_safetensors_save then returns that status.
 *
 * @param index  in the list that was given to mt_safetensors_save
 */
typedef mt_status (*mt_safetensors_fetch_fn)(void *user, size_t index, uint64_t offset,
                                             const void **out_data, size_t *out_bytes);

/* Options of mt_safetensors_save. */
typedef struct mt_safetensors_save_options {
    size_t size;                         /* sizeof(mt_safetensors_save_options) */
    const mt_safetensors_text *metadata; /* metadata_count texts with different keys. NULL: none */
    size_t metadata_count;
    mt_safetensors_fetch_fn fetch; /* for tensors without data. NULL: there are none */
    void *user;
    int keep; /* 1: an existing file is renamed to PATH.1, which replaces an older PATH.1 */
} mt_safetensors_save_options;

#define MT_SAFETENSORS_SAVE_OPTIONS_INIT                                                           \
    { sizeof(mt_safetensors_save_options), NULL, 0, NULL, NULL, 0 }

/*
 * Writes a file. The tensors may come in any order. In the file the largest elements come first,
 * and names are in byte order. So every tensor is aligned to its elements.
 *
 * The file is written as PATH.memtrain-tmp beside PATH. It takes the name PATH when it is safely on
 * the disk. So PATH is always a complete file, the old one or the new one, also after a crash.
 * After a failure it is the old one, and PATH.memtrain-tmp is gone. If a crash leaves
 * PATH.memtrain-tmp behind, the next call removes it. On a file system without hard links, keep has
 * a moment in which the good file is PATH.1 alone.
 *
 * A new file takes over the mode of the file that it replaces, and its owner and group if the
 * system allows that. A file that replaces none has the mode that the umask leaves of 0666. Access
 * control lists and other attributes are not kept.
 *
 * @param path     of a regular file, or of nothing yet. The same holds for PATH.memtrain-tmp, and
 *                 with keep for PATH.1
 * @param tensors  count tensors, borrowed for the call; bytes must agree with dtype and shape
 * @param options  NULL: defaults
 * @return MT_OK; MT_EIO with the system's words (such as a full disk), also when another process
 *         writes the same file; MT_EINVAL (names the tensor or the field), also when a link, a
 *         folder or a device has one of the names; MT_ENOMEM; what fetch returned
 */
MT_API MT_NODISCARD mt_status mt_safetensors_save(const char *path,
                                                  const mt_safetensors_tensor *tensors,
                                                  size_t count,
                                                  const mt_safetensors_save_options *options);

#ifdef __cplusplus
}
#endif
#endif
