/*
 * memtrain/torch_state.h - the state of a training: its hash, checkpoints, files of weights.
 *
 * It is a part of memtrain/torch.h, which says what holds for all its parts: errors, threads, sizes of
 * structs. Library libmemtrain_torch. docs/checkpoints.md is the page on it.
 */
#ifndef MEMTRAIN_TORCH_STATE_H
#define MEMTRAIN_TORCH_STATE_H

#include <memtrain/torch_backend.h>

#ifdef __cplusplus
extern "C" {
#endif

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
    /* Names of the model that begin so are left alone, such as "fc." or "fc.,conv1.". NULL: none. */
    const char *skip;
    /*
     * Where the file has no tensor of the model's name: writes another name that it may have there, zero included, into
     * other[capacity], which is "" before. Of several, with commas between them, the first that is there counts. Files of
     * several libraries with the same network are read so. NULL: none.
     */
    void (*other_name)(void *user, const char *name, char *other, size_t capacity);
    void *user; /* given to other_name */
    /*
     * With strict 0: the beginnings of those names of the model that the file must have, with commas between them, such as
     * "stem.,stages.". "": of all names. Names that skip leaves alone need not be there. NULL: none.
     */
    const char *required;
} mt_weights_options;

#define MT_WEIGHTS_OPTIONS_INIT                                                                    \
    { sizeof(mt_weights_options), 1, NULL, NULL, NULL, NULL, NULL }

/*
 * Reads parameters and buffers by name, from a file of mt_model_save_weights, mt_torch_save (strict
 * 0) or Python. A path that ends with ".json" is that of an index of several files ("weight_map"), which lie beside it.
 *
 * Everything is compared and read once before anything changes. Shapes must be equal, and dtypes
 * too, but float16 and bfloat16 of the file are widened to float32 and float64 of the model, and
 * float32 to float64, which rounds nothing. A norm's num_batches_tracked may be missing, and stays.
 * For tied weights one name is enough; the first that the file has counts. Not during a step. The
 * optimiser state of an mt_torch stays as it is.
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_EINVAL (the line names the first tensors that differ, or the first one of options->required that is
 *         missing and how many are); MT_EIO
 */
MT_API MT_NODISCARD mt_status mt_model_load_weights(mt_model *model, const char *path,
                                                    const mt_weights_options *options);

#ifdef __cplusplus
}
#endif
#endif
