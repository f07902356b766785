/*
 * memtrain/torch_step.h - the parts of a step, for a loop without mt_trainer and its policy.
 *
 * It is a part of memtrain/torch.h, which says what holds for all its parts: errors, threads, sizes of
 * structs. Library libmemtrain_torch.
 */
#ifndef MEMTRAIN_TORCH_STEP_H
#define MEMTRAIN_TORCH_STEP_H

#include <memtrain/torch_backend.h>

#ifdef __cplusplus
extern "C" {
#endif

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
 *                        that follow; waits for the card unless out->deferred is 1
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
 *                        rolls back what the forward pass wrote, and what deferred chunks wrote
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

/* ---- around a forward pass of one's own ---------------------------------------------------------- */

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

#ifdef __cplusplus
}
#endif
#endif
