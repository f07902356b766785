/*
 * memtrain/segments.h - which segments of a chain are to be computed again in the backward pass.
 *
 * A segment that is computed again (mt_checkpoint in memtrain/torch.h) leaves its output alone behind
 * instead of all its activations, and costs its forward pass a second time. With room for some of the
 * activations it need not be all segments: of all sets that keep within a budget, the one is chosen that
 * costs the least time.
 *
 * The chain is Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019 ("Optimal checkpointing for
 * heterogeneous chains: how to train deep neural networks with limited memory", arXiv 1911.13214), with
 * one restriction: a segment is computed again at most once, from its input, which is kept. Their general
 * schedules also drop inputs and compute them several times; those need less memory and more time.
 *
 * Pure functions over the caller's arrays: no device, no clock, no memory but the host's.
 */
#ifndef MEMTRAIN_SEGMENTS_H
#define MEMTRAIN_SEGMENTS_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a segment of the chain takes; each one's output is the next one's input. */
typedef struct mt_segment_cost {
    size_t kept_bytes;   /* what a plain run keeps for the backward pass, its output included */
    size_t output_bytes; /* of these, its output */
    double seconds;      /* of its forward pass */
    size_t work_bytes;   /* most bytes of its own that are alive while it runs, forward or backward;
                            0, or less than kept_bytes: these */
} mt_segment_cost;

typedef struct mt_segments_choice {
    size_t size;       /* sizeof(mt_segments_choice) */
    size_t recomputed; /* segments that are computed again */
    size_t peak_bytes; /* most bytes of activations alive at a time */
    double seconds;    /* that the second runs take */
} mt_segments_choice;

#define MT_SEGMENTS_CHOICE_INIT                                                                    \
    { sizeof(mt_segments_choice), 0, 0, 0.0 }

/*
 * Chooses the set that takes the fewest seconds of those whose peak is within the budget; of several,
 * one that leaves the least behind.
 *
 * The peak: while a segment is computed again, or for the first time, its own activations are all
 * alive, and what its operators need beside them (work_bytes), and of each segment before it the
 * activations, or its output where that one is computed again. The largest of these sums is the peak;
 * parameters, their gradients and the chain's input are the caller's to leave room for.
 *
 * Exact as long as no more than some thousand partial sets are worth comparing; beyond, sets whose
 * bytes differ by less than a thousandth of the budget count as equal, so that what is chosen still keeps
 * within the budget and may be slower by a little.
 *
 * @param segments       count of them, in the order of the forward pass
 * @param budget_bytes   for activations
 * @param out_recompute  count numbers: 1 for a segment that is to be computed again, else 0. All 1
 *                       after MT_EDEVMEM, which is the least that can be done; else undefined after a failure
 * @param out            what it comes to; with MT_EDEVMEM, that of all segments
 * @return MT_OK; MT_EDEVMEM when the budget is too small even for all (the line has the bytes); MT_EINVAL
 *         (names the segment and the field); MT_ENOMEM. Any thread.
 */
MT_API MT_NODISCARD mt_status mt_segments_choose(const mt_segment_cost *segments, size_t count,
                                                 size_t budget_bytes, unsigned char *out_recompute,
                                                 mt_segments_choice *out);

/*
 * What a given set comes to, by the same sums.
 *
 * @param recompute  count numbers, not 0 for a segment that is computed again; NULL: none is
 * @return MT_OK; MT_EINVAL (names the segment and the field). Any thread.
 */
MT_API MT_NODISCARD mt_status mt_segments_price(const mt_segment_cost *segments, size_t count,
                                                const unsigned char *recompute,
                                                mt_segments_choice *out);

#ifdef __cplusplus
}
#endif
#endif
