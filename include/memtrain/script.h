/*
 * memtrain/script.h - a model from Python: a TorchScript file, trained here and written back. Library
 * libmemtrain_torch.
 *
 *     torch.jit.script(net).save("net.pt")                             (Python)
 *
 *     mt_script_load("net.pt", NULL, &model);                          (C)
 *     mt_torch_new(model, &options, &torch);                           (and so on, see memtrain/torch.h)
 *     mt_script_save(model, "trained.pt");
 *
 *     net = torch.jit.load("trained.pt")                               (Python)
 *
 * The model is an mt_model like others: budgets, chunks, steps that are taken back, checkpoints, and weights
 * under the names that they have in Python (mt_model_save_weights). docs/script.md says which networks can be
 * had this way, and what it means that TorchScript is deprecated.
 */
#ifndef MEMTRAIN_SCRIPT_H
#define MEMTRAIN_SCRIPT_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mt_script_options {
    size_t size; /* sizeof(mt_script_options) */
    /*
     * 0: forward has one input and gives logits [samples, classes]. A batch has two tensors, inputs and int64
     * labels [samples]; the loss is the mean cross entropy, the metrics are "accuracy" and, where more than
     * five classes are known, "top5".
     * 1: forward has as many inputs as a batch has tensors and gives the loss, a scalar that is the mean over
     * the samples; or the pair (loss, units), where it is a mean over something else, such as tokens. units is how
     * many of them the inputs have: an int, a float, or a tensor of one. Chunks then count by their units, and
     * one without any adds nothing. They are known once a chunk has run: weights of mt_accumulate stay shares of
     * samples, and mt_apply divides. There are no metrics.
     */
    int own_loss;
    size_t classes; /* columns of the logits, at least 2; 0: as many as the model gives */
    /*
     * Shape of one sample's float32 input, [3,96,96] say: the model is run once on two of them, and what it
     * gives must be logits of so many classes. NULL: the first step tells whether it works.
     */
    const int64_t *input_shape;
    size_t input_dims;
} mt_script_options;

#define MT_SCRIPT_OPTIONS_INIT                                                                     \
    { sizeof(mt_script_options), 0, 0, NULL, 0 }

/*
 * Reads a TorchScript file, as torch.jit.save writes it, into the CPU's memory. The graph runs as it is
 * written, without the optimisations of libtorch's executor, which would have the first chunks ask for other
 * memory than later ones.
 *
 * A TorchScript file is a program: one from a stranger can do what a program can.
 *
 * @param options  NULL: defaults
 * @param out      new reference: free with mt_model_free
 * @return MT_OK; MT_EINVAL for a file of another kind (the line says of which, and what to do), one that is
 *         damaged, and a model that cannot be trained: without parameters, with a forward that assigns to the
 *         module's attributes, or whose logits are others than the options say; MT_EIO where it cannot be
 *         read; MT_EDEVMEM
 */
MT_API MT_NODISCARD mt_status mt_script_load(const char *path, const mt_script_options *options,
                                             mt_model **out);

/*
 * Writes the model with its parameters and buffers as they are, as a TorchScript file that torch.jit.load
 * opens, in evaluation mode. How the file takes its name: as in mt_safetensors_save. Between
 * steps. Tensors of other devices than the CPU are copied there first.
 *
 * @param model  from mt_script_load
 * @return MT_OK; MT_EINVAL for another model, and for the name of a link, a folder or a device; MT_EIO with the
 *         system's words, also when another process writes the same file
 */
MT_API MT_NODISCARD mt_status mt_script_save(mt_model *model, const char *path);

#ifdef __cplusplus
}
#endif
#endif
