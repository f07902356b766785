/*
 * memtrain/torch_dry.h - chunks that take their memory and skip the arithmetic. Library libmemtrain_torch.
 *
 *     if (mt_dry_run(1) != MT_OK) ...
 *     status = backend.accumulate(...); // takes the blocks that it always takes, in seconds
 *     if (mt_dry_run(0) != MT_OK) ...
 *
 * A step at 1024 x 1024 pixels takes minutes, and nearly all of them are spent in convolutions and
 * matrix products. What it takes of memory does not depend on their values. In a dry run they make
 * their results, and the copies that oneDNN makes of what is row-major, and compute nothing. So do
 * batch norms, max pools, attention, softmax, and operators number by number such as add, mul and gelu.
 * Results of up to 1 MiB are zeros, or are computed. Larger ones hold what was there before. Activations
 * that wait in a file are not written. All else runs, and a budget stays as it is meanwhile.
 * So the allocations of a chunk are those of the real one, and so are recordings, predictions and
 * refusals.
 *
 * What is left out is scratch memory that does not grow with the samples. On CPUs without AVX-512
 * some convolutions take up to 4 times their weight for each thread; those in channels_last take some
 * times their weight on any. Peaks of large chunks are exact, or that much too low. In bfloat16 they
 * may be too high by copies of the weight. One thing grows: oneDNN rounds channels up to its vectors,
 * to 16 numbers with AVX-512. So networks whose channels are no multiple of that are told too low.
 *
 * A model whose own code looks at values may refuse what it finds. Results of sigmoid and softmax lie
 * between 0 and 1, and small products are zeros.
 *
 * Losses, gradients and metrics of a dry run mean nothing. Take its steps back (rollback), and use
 * no file that was written in one.
 */
#ifndef MEMTRAIN_TORCH_DRY_H
#define MEMTRAIN_TORCH_DRY_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Begins or ends a dry run, for all threads of the process and for tensors of the CPU, those of
 * simulated cards included. Dry are products (mm, addmm, bmm, baddbmm), convolutions and max pools in
 * two dimensions, batch norms, attention in float, softmax, and these: add, sub, mul, div, neg, exp,
 * log, sqrt, rsqrt, reciprocal, pow, relu, sigmoid, silu, tanh, gelu, their backward passes, and the
 * draws of dropout. Operands of several types are computed, and so are transposed convolutions and
 * those in one or three dimensions. No other thread may compute with libtorch meanwhile.
 *
 * @param on  1 or 0; what is so already stays so
 * @return MT_OK; MT_EINVAL (another number); MT_EBACKEND if libtorch refuses other kernels
 */
MT_API MT_NODISCARD mt_status mt_dry_run(int on);

#ifdef __cplusplus
}
#endif
#endif
