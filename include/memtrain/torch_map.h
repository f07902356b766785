/*
 * memtrain/torch_map.h - frozen weights that are mapped from a file, not loaded.
 *
 *     mt_map_options options = MT_MAP_OPTIONS_INIT;
 *     options.model_prefix = "text.";
 *     status = mt_model_map_weights(model, "model.safetensors.index.json", &options);
 *     status = mt_torch_new(model, &torch_options, &torch);
 *
 * A parameter that does not train becomes a view of a file that is mapped read-only. Its pages are
 * clean: the system may drop them and read them again. Several processes share them. No budget
 * counts them. So a frozen network may be larger than the memory.
 *
 * A frozen block (mt_frozen) is a part of the forward pass with such parameters. While it runs, its
 * parameters are cast to the model's type where theirs is another one. The casts count in the
 * budget. Its pages are read ahead, in the order of the last pass, and given back at its end. If a
 * gradient passes through it, it keeps only its inputs, and runs again in the backward pass.
 *
 * What can go wrong with a mapped file:
 *
 * - A file that changes. Each frozen block compares its size and time of modification with those of
 *   the moment when it was mapped. A difference is MT_EIO. A file that is replaced by another one
 *   of its name is no change: the mapping keeps the old one.
 * - A page that cannot be read, since the file was cut off or the disk fails. The system sends
 *   SIGBUS. The library handles that signal for its own mappings from the first of them on: the
 *   frozen block fails with MT_EIO, and so does each later one. Elsewhere a handler that was there
 *   before gets the signal, or the process ends. A handler that a program installs later replaces
 *   the library's. Outside of frozen blocks a page that cannot be read is read as zeros, and the
 *   next frozen block fails.
 * - Code that writes to a mapped parameter. The system ends it with SIGSEGV.
 *
 * The thread rule is that of memtrain/torch.h: a model belongs to one thread at a time.
 */
#ifndef MEMTRAIN_TORCH_MAP_H
#define MEMTRAIN_TORCH_MAP_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What happens to a parameter that trains and is in the file. */
#define MT_MAP_TRAINED_REFUSE 0 /* MT_EINVAL, with its name */
#define MT_MAP_TRAINED_LOAD 1   /* it is read into memory, as its starting point */

/* Whether the page cache keeps what a frozen block has read. */
#define MT_MAP_DROP_AUTO 0 /* not where the mapped files exceed half of the memory that is free */
#define MT_MAP_DROP_ALWAYS 1
#define MT_MAP_DROP_NEVER 2

/* Options of mt_model_map_weights. Zero is the default of every field but strict. */
typedef struct mt_map_options {
    size_t size; /* sizeof(mt_map_options) */
    /*
     * 1: the file has all parameters and buffers of the model below model_prefix, and no other
     * tensor. 0: what both have.
     */
    int strict;
    const char *prefix;       /* of the names in the file, left out. NULL: none */
    const char *model_prefix; /* of the model's names, left out; others are not meant. NULL: none */
    const char *skip; /* names that begin so, prefixes left out, are not meant. NULL: none */
    int load; /* 1: everything is read into memory instead, cast to the model's types. The bits of
                    a run are the same */
    int trained; /* MT_MAP_TRAINED_REFUSE or MT_MAP_TRAINED_LOAD */
    int drop;    /* one of MT_MAP_DROP_... */
} mt_map_options;

#define MT_MAP_OPTIONS_INIT                                                                        \
    { sizeof(mt_map_options), 1, NULL, NULL, NULL, 0, MT_MAP_TRAINED_REFUSE, MT_MAP_DROP_AUTO }

/*
 * Gives a model's frozen parameters the memory of a safetensors file.
 *
 * The types in the file are float32, float16 and bfloat16, whatever the model's floating-point
 * types are. Shapes have to be equal. A parameter that was mapped keeps the type of the file. In a
 * frozen block it has the type that it had before the call: the type that the network computes in.
 * Outside of frozen blocks code sees the file's type.
 *
 * Frozen parameters (requires_grad is false) become views. Parameters that train are refused or
 * loaded, as options->trained says. Buffers are loaded. So is a tensor whose bytes are not aligned
 * in the file; the log names it. A frozen parameter may hold no memory before the call: one number,
 * expanded to its shape.
 *
 * Tied parameters are one tensor under several names. The first name that the file has counts.
 *
 * A mapped parameter is not in checkpoints of mt_torch_save, and not in the state's hash: the file
 * has it. mt_model_load_weights refuses it. mt_model_save_weights writes it, in the file's type.
 *
 * Call it before mt_torch_new, whose device has to be "cpu". It may be called several times, for
 * several files.
 *
 * @param path     a safetensors file; or a file whose name ends with ".json", which has the names
 *                 of several (weight_map: {tensor: file}). Those lie in the same folder
 * @param options  NULL: defaults
 * @return MT_OK. After a failure the model is as it was.
 *         MT_EINVAL: a file that is cut off or no safetensors file; no such index, a file without
 *         a tensor that the index promises, or an index that leaves out a tensor of such a file;
 *         shapes that differ; with strict, names that are missing or too many; parameters that
 *         train (all with names).
 *         MT_EIO: no such file, named by an index or not; the system cannot read or map it.
 *         MT_ESTATE: an mt_torch uses the model.
 *         MT_EDEVMEM: what is loaded does not fit.
 */
MT_API MT_NODISCARD mt_status mt_model_map_weights(mt_model *model, const char *path,
                                                   const mt_map_options *options);

/* What of a model is mapped. */
typedef struct mt_map_stats {
    size_t size;               /* sizeof(mt_map_stats) */
    size_t files;              /* that are mapped */
    size_t tensors;            /* parameters that are views of them */
    uint64_t mapped_bytes;     /* of these, which no budget counts */
    uint64_t loaded_bytes;     /* of what the calls have read into memory instead */
    uint64_t blocks;           /* frozen blocks that have begun, second runs included */
    uint64_t read_ahead_bytes; /* that the system was asked to read before a block began */
    uint64_t given_back_bytes; /* that it was told are not needed for now */
    uint64_t most_cast_bytes;  /* of the casts of one frozen block: in the budget while it runs */
    int drops;                 /* 1: given back to the system; 0: the page cache keeps them */
} mt_map_stats;

#define MT_MAP_STATS_INIT                                                                          \
    { sizeof(mt_map_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Reports what is mapped. All figures are 0 for a model without mapped weights.
 *
 * @param out  its size is set by the caller
 */
MT_API MT_NODISCARD mt_status mt_model_map_stats(const mt_model *model, mt_map_stats *out);

/*
 * Looks at the mapped files of a model: whether they are as they were when they were mapped. Each
 * frozen block does the same for its own.
 *
 * @return MT_OK, also without mapped files; MT_EIO (names the file and what has changed)
 */
MT_API MT_NODISCARD mt_status mt_model_check_mapped(const mt_model *model);

/*
 * A part of a forward pass whose parameters do not train, apart from a few if any (adapters). A
 * function that may raise C++ exceptions must end them: `catch (...) { return
 * mt_torch_exception(); }`.
 */
typedef struct mt_frozen_ops {
    size_t size; /* sizeof(mt_frozen_ops) */
    /* As in mt_segment_ops: it may run a second time, in the backward pass. */
    mt_status (*run)(void *self, mt_tensor *const *inputs, size_t input_count,
                     mt_tensor *const *outputs, size_t output_count);
    mt_status (*visit_parameters)(void *self, mt_visit_fn fn, void *user); /* all that run uses */
    mt_status (*visit_buffers)(void *self, mt_visit_fn fn, void *user);    /* see mt_segment_ops */
    void (*destroy)(void *self);                                           /* may be NULL */
} mt_frozen_ops;

#define MT_FROZEN_OPS_INIT                                                                         \
    { sizeof(mt_frozen_ops), NULL, NULL, NULL, NULL }

/*
 * Runs a frozen block. memtrain/torch_map.hpp has it for C++.
 *
 * If neither an input nor a parameter needs a gradient, it runs once and without a graph. Otherwise
 * it keeps its inputs, and the backward pass runs it again, as mt_checkpoint does, whatever
 * checkpointing is. Outputs and gradients are the bits of the same block with loaded parameters.
 * Against a plain block, one that is not frozen, the bits may differ where those of mt_checkpoint
 * may.
 *
 * Mapped parameters have the type that the network computes in while run is called, and while the
 * gradient passes through the block. Nothing that run makes may hold them longer. In a block within
 * a block they stay as the outer one has them.
 *
 * It works without mapped parameters too.
 *
 * @param ops      copied
 * @param self     as in mt_checkpoint; destroy(self) is called when it is no longer needed, also
 *                 when this function fails
 * @param inputs   borrowed for the call; handles may be empty
 * @param outputs  handles whose tensors are written; empty after a failure
 * @return MT_OK; MT_EIO when a mapped file has changed or cannot be read (names it); MT_EDEVMEM
 *         when the casts do not fit; what run returned. The backward pass may fail in the same ways
 */
MT_API MT_NODISCARD mt_status mt_frozen(const mt_frozen_ops *ops, void *self,
                                        mt_tensor *const *inputs, size_t input_count,
                                        mt_tensor *const *outputs, size_t output_count);

#ifdef __cplusplus
}
#endif
#endif
