/*
 * memtrain/script.h - a model from Python: a TorchScript file, trained here and written back.
 *
 *     torch.jit.script(net).save("net.pt")                             (Python)
 *
 *     mt_script_load("net.pt", NULL, &model);                          (C)
 *     mt_torch_new(model, &options, &torch);                           (and so on, see memtrain/torch.h)
 *     mt_script_save(model, "trained.pt");
 *
 *     net = torch.jit.load("trained.pt")                               (Python)
 *
 * The library is libmemtrain_torch. The model is an mt_model like any other. It has budgets,
 * chunks, steps that are rolled back, and checkpoints. Its weights have the names that they have in
 * Python (mt_model_save_weights). docs/script.md says which networks can be loaded, and what it
 * means that TorchScript is deprecated.
 */
#ifndef MEMTRAIN_SCRIPT_H
#define MEMTRAIN_SCRIPT_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What forward takes and gives. */
typedef struct mt_script_options {
    size_t size; /* sizeof(mt_script_options) */
    /*
     * 0: forward has one input, and gives logits [samples, classes]. A batch has two tensors:
     * inputs, and int64 labels [samples]. The loss is the mean cross entropy. The metrics are
     * "accuracy", and "top5" if there are more than 5 classes, by the field classes or by a run
     * with input_shape.
     *
     * 1: forward has as many inputs as a batch has tensors, and gives the loss. The loss is a
     * scalar, the mean over the samples. There are no metrics.
     *
     * The loss may be a mean over something else, such as tokens. Then forward gives the pair
     * (loss, units). units is the number of tokens in the inputs: an int, a float, or a tensor of
     * one number. Chunks then count by their units. A chunk without units adds nothing. Units are
     * known only after a chunk has run. So the weights of mt_accumulate are still shares of
     * samples, and mt_apply divides.
     */
    int own_loss;
    size_t classes; /* columns of the logits, at least 2. 0: as many as the model gives */
    /*
     * Shape of one sample's float32 input, such as [3,96,96]. The model is then run once on two
     * such samples. It has to give logits with the right number of classes. NULL: not run. The
     * first step shows whether the model works.
     */
    const int64_t *input_shape;
    size_t input_dims;
} mt_script_options;

#define MT_SCRIPT_OPTIONS_INIT                                                                     \
    { sizeof(mt_script_options), 0, 0, NULL, 0 }

/*
 * Reads a TorchScript file, as torch.jit.save writes it, into the CPU's memory.
 *
 * The graph runs as it is written, without the optimisations of libtorch's executor. With them the
 * first chunks would ask for other memory than later chunks.
 *
 * A TorchScript file is a program. A file from a stranger can do whatever a program can do.
 *
 * @param options  NULL: defaults
 * @param out      new reference: free with mt_model_free
 * @return MT_OK.
 *         MT_EINVAL: the file is of another kind (the line says of which, and what to do), or
 *         damaged; or the model cannot be trained. Such a model has no parameters, or a forward
 *         that assigns to the module's attributes, or other logits than the options say.
 *         MT_EIO: the file cannot be read.
 *         MT_EDEVMEM.
 */
MT_API MT_NODISCARD mt_status mt_script_load(const char *path, const mt_script_options *options,
                                             mt_model **out);

/*
 * Writes the model with its current parameters and buffers as a TorchScript file. torch.jit.load
 * opens it in evaluation mode. Call it between steps. The file takes its name as with
 * mt_safetensors_save. Tensors of other devices are copied to the CPU first.
 *
 * @param model  from mt_script_load
 * @return MT_OK; MT_EINVAL for another model, and for the name of a link, a folder or a device;
 *         MT_EIO with the system's words, also when another process writes the same file
 */
MT_API MT_NODISCARD mt_status mt_script_save(mt_model *model, const char *path);

#ifdef __cplusplus
}
#endif
#endif
