/*
 * memtrain/segments.h - chooses which segments of a chain are computed again in the backward pass.
 *
 * A segment that is computed again (mt_checkpoint in memtrain/torch.h) keeps only its output, not
 * all its activations. It costs its forward pass a second time. If there is room for some of the
 * activations, not all segments have to be computed again. Of all sets that keep within a budget,
 * the set is chosen that costs the least time.
 *
 * The chain is that of Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019 ("Optimal
 * checkpointing for heterogeneous chains: how to train deep neural networks with limited memory",
 * arXiv 1911.13214), with one restriction. A segment is computed again at most once, from its
 * input, which is kept. Their general schedules also drop inputs and compute them several times.
 * Those need less memory and more time.
 *
 * All functions are pure functions over the caller's arrays. They use no device, no clock, and only
 * memory of the host.
 */
#ifndef MEMTRAIN_SEGMENTS_H
#define MEMTRAIN_SEGMENTS_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a segment of the chain costs. The output of each segment is the input of the next. */
typedef struct mt_segment_cost {
    size_t kept_bytes;   /* what a plain run keeps for the backward pass, its output included */
    size_t output_bytes; /* the output's part of kept_bytes */
    double seconds;      /* of its forward pass */
    /*
     * Most bytes of its own that are alive while it runs, forward or backward. A value below
     * kept_bytes, such as 0, means kept_bytes.
     */
    size_t work_bytes;
} mt_segment_cost;

/* What a set of segments costs. */
typedef struct mt_segments_choice {
    size_t size;       /* sizeof(mt_segments_choice) */
    size_t recomputed; /* segments that are computed again */
    size_t peak_bytes; /* most bytes of activations alive at a time */
    double seconds;    /* that the second runs take */
} mt_segments_choice;

#define MT_SEGMENTS_CHOICE_INIT                                                                    \
    { sizeof(mt_segments_choice), 0, 0, 0.0 }

/*
 * Chooses the set that takes the fewest seconds among those whose peak is within the budget. Of
 * several such sets it chooses one that keeps the least.
 *
 * The peak is the largest of these sums, one for each segment. While a segment runs, for the first
 * time or again, three things are alive: its own activations; what its operators need beside them
 * (work_bytes); and a part of each segment before it. That part is the output if the segment is
 * computed again, otherwise the activations. Parameters, their gradients and the chain's input are
 * not counted. The caller has to leave room for them.
 *
 * The choice is exact as long as no more than some thousand partial sets are worth comparing.
 * Beyond that, sets count as equal if their bytes differ by less than a thousandth of the budget.
 * The chosen set still keeps within the budget, but may be slightly slower. Any thread.
 *
 * @param segments       count segments, in the order of the forward pass
 * @param budget_bytes   for activations
 * @param out_recompute  count numbers: 1 for a segment that is to be computed again, otherwise 0.
 *                       After MT_EDEVMEM all are 1, which needs the least memory. After another
 *                       failure they are undefined
 * @param out            what the set costs; with MT_EDEVMEM what all segments cost
 * @return MT_OK; MT_EDEVMEM when the budget is too small even for the set of all segments (the line
 *         has the bytes); MT_EINVAL (names the segment and the field); MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_segments_choose(const mt_segment_cost *segments, size_t count,
                                                 size_t budget_bytes, unsigned char *out_recompute,
                                                 mt_segments_choice *out);

/*
 * Computes what a given set costs, by the same sums. Any thread.
 *
 * @param recompute  count numbers, not 0 for a segment that is computed again; NULL: none is
 * @return MT_OK; MT_EINVAL (names the segment and the field)
 */
MT_API MT_NODISCARD mt_status mt_segments_price(const mt_segment_cost *segments, size_t count,
                                                const unsigned char *recompute,
                                                mt_segments_choice *out);

#ifdef __cplusplus
}
#endif
#endif
