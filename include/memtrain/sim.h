/*
 * memtrain/sim.h - a simulated accelerator: the caching allocators of CUDA and MPS as a model.
 *
 * A run on a card does not fail when its tensors exceed the card, but when the allocator that
 * caches the card's memory finds no segment for the next request. The model keeps that allocator's
 * books (blocks, segments, caches, limits, counters, the words of its errors) and no memory at
 * all, so what a card would do can be tried where there is none:
 *
 *     mt_sim_options options = MT_SIM_OPTIONS_INIT;
 *     options.total_bytes = (size_t)8 << 30;
 *     mt_sim_new(&options, &sim);
 *     mt_sim_alloc(sim, 3 << 20, &block);          block.bytes: what it takes, rounded up
 *     mt_sim_release(sim, block.address);
 *     mt_sim_read_stats(sim, &stats);              stats.reserved_bytes: 20 MiB, all of it cached
 *
 * The functions are in libmemtrain_memory: link with -lmemtrain_memory -lmemtrain. libmemtrain_torch runs
 * its device "sim:cuda" or "sim:mps" over this model (memtrain/torch.h).
 *
 * MT_SIM_CUDA follows PyTorch 2.11's c10/cuda/CUDACachingAllocator.cpp with one stream: requests
 * are rounded to 512 bytes; up to 1 MiB they come from segments of 2 MiB, below 10 MiB from
 * segments of 20 MiB, larger ones from a segment of their own, rounded to 2 MiB; the smallest free
 * block that is large enough is taken, and split when what remains is worth it; free neighbours
 * merge. A request that finds nothing empties the cache and tries again (alloc_retries) before it
 * fails (ooms).
 *
 * MT_SIM_MPS follows aten/src/ATen/mps/MPSAllocator.mm: buffers live in heaps of 8 MiB, 32 MiB or
 * xlarge_heap_bytes, and are reused whole; a high watermark refuses, a low one starts the
 * collection of cached buffers. It has no counter of peaks, retries or failures.
 *
 * docs/devices.md lists the rules with their sources, and what the model leaves out: streams, CUDA
 * graphs, expandable segments, the context and the libraries' workspaces, and Metal's own
 * placement.
 *
 * Sizes are in bytes. Addresses are numbers: they rise, never repeat, and point nowhere.
 * Thread rule for all functions here: one thread at a time. Operations cost O(log n) in the number
 * of blocks, but for those that empty or collect caches. Besides the codes named, each function
 * may return MT_EINVAL for a NULL or stale argument.
 */
#ifndef MEMTRAIN_SIM_H
#define MEMTRAIN_SIM_H

#include <memtrain/backend.h>
#include <memtrain/blocks.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mt_sim_flavour { MT_SIM_CUDA = 1, MT_SIM_MPS = 2 } mt_sim_flavour;

/* What the card is like, and how its allocator is set. Zero is the default of every field. */
typedef struct mt_sim_options {
    size_t size;            /* sizeof(mt_sim_options) */
    mt_sim_flavour flavour; /* default MT_SIM_CUDA */
    /*
     * Memory of the card, on MPS of the machine. Default 8 GiB on CUDA; on MPS 16 GiB, or one and a
     * half times recommended_bytes. Nothing is ever taken beyond it: no swap is simulated.
     */
    size_t total_bytes;
    size_t others_bytes; /* held by others from the start, see mt_sim_set_others */
    /*
     * The allocator's own limit, as mt_sim_set_ratio. Default: no limit on CUDA, 1.7 on MPS. Below
     * 0: no limit.
     */
    double ratio;

    /* CUDA alone */
    size_t max_split_bytes;              /* max_split_size; default: none; least 20 MiB */
    size_t max_non_split_rounding_bytes; /* slack of an oversize block; default and least 20 MiB */
    size_t large_segment_bytes;          /* default 20 MiB; above 10 MiB */
    unsigned roundup_power2_divisions;   /* a power of two, one for all sizes; default: off */
    double gc_threshold;                 /* garbage_collection_threshold, 0 < x < 1; default: off */

    /* MPS alone */
    size_t recommended_bytes;   /* recommendedMaxWorkingSetSize; default 2/3 of total_bytes up to
                                   36 GB, 3/4 above */
    double low_watermark_ratio; /* default 1.4, must not exceed the high one; below 0: off */
    size_t align_bytes;         /* buffers are rounded to it, a power of two; default 256 */
    size_t max_buffer_bytes;    /* maxBufferLength: less is accepted; default half of total_bytes */
    /*
     * Heap of requests from 10 MiB on that are below half of it; default 1 GiB, and for a smaller
     * machine than real ones, with recommended_bytes below 8 GiB, an eighth of these in steps of
     * 2 MiB, at least 32 MiB.
     */
    size_t xlarge_heap_bytes;
    /*
     * Buffers above 1 MiB are rounded up to one of so many sizes from a power of two to the next, in whole pages of 16 KiB; a
     * power of two. Default: off. PyTorch has 32 of them since pull request 187441.
     */
    size_t large_buckets;
} mt_sim_options;

#define MT_SIM_OPTIONS_INIT                                                                        \
    { sizeof(mt_sim_options), MT_SIM_CUDA, 0, 0, 0.0, 0, 0, 0, 0, 0.0, 0, 0.0, 0, 0, 0, 0 }

typedef struct mt_sim mt_sim;

/*
 * @param options  NULL: defaults; copied
 * @param out      new reference: free with mt_sim_free
 * @return MT_OK; MT_EINVAL (names the field, where the allocator has words for it in these);
 * MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_sim_new(const mt_sim_options *options, mt_sim **out);

/* Blocks in use go with it. NULL is a no-op. */
MT_API void mt_sim_free(mt_sim *sim);

/* One block of the card: a tensor, or a hole between tensors. */
typedef struct mt_sim_block {
    uint64_t address;         /* 0: a request of 0 bytes, which takes nothing */
    size_t bytes;             /* what it takes */
    size_t requested_bytes;   /* what was asked for; 0 when not in use */
    uint64_t segment_address; /* of the segment (CUDA) or heap (MPS) that it lies in */
    size_t segment_bytes;
    int in_use;
} mt_sim_block;

/*
 * Serves a request as the allocator would, cache emptied and tried again included.
 *
 * @param out  the block; all zero after a failure
 * @return MT_OK; MT_EDEVMEM with the allocator's own words, cut at 511 bytes, in mt_last_error():
 *         "CUDA out of memory. Tried to allocate ...", which libtorch throws as OutOfMemoryError,
 *         or "MPS backend out of memory (MPS allocated: ..." and "Invalid buffer size: ...", which
 *         it throws as a plain c10::Error; MT_ENOMEM when the model's own host memory ran out, and
 *         then nothing has changed
 */
MT_API MT_NODISCARD mt_status mt_sim_alloc(mt_sim *sim, size_t bytes, mt_sim_block *out);

/*
 * Gives a block back, to the cache. Needs no host memory. Address 0 is a no-op.
 * @return MT_OK; MT_EINVAL for an address at which no block in use starts
 */
MT_API MT_NODISCARD mt_status mt_sim_release(mt_sim *sim, uint64_t address);

/*
 * Gives the cache back to the card: wholly free segments, heaps without buffers in use.
 * @param out_released_bytes  how much; may be NULL
 */
MT_API MT_NODISCARD mt_status mt_sim_empty_cache(mt_sim *sim, size_t *out_released_bytes);

/*
 * Sets the allocator's own limit. On CUDA (setMemoryFraction) a share of total_bytes, 0 <= x <= 1,
 * 1 for no limit; on MPS the high watermark, a share of recommended_bytes, 0 <= x <= 2, 0 for no
 * limit. What is held already stays.
 * @return MT_OK; MT_EINVAL with the allocator's words
 */
MT_API MT_NODISCARD mt_status mt_sim_set_ratio(mt_sim *sim, double ratio);

/*
 * Bytes that others hold from now on: on CUDA other processes and the context, on MPS other Metal
 * memory of this process ("other allocations"). More than is free is legal.
 */
MT_API MT_NODISCARD mt_status mt_sim_set_others(mt_sim *sim, size_t bytes);

/*
 * Refuses a request as if there were no room for it: counts it and words it. For tests that make
 * allocations fail.
 * @return MT_EDEVMEM with the allocator's words, or MT_EINVAL
 */
MT_API mt_status mt_sim_refuse(mt_sim *sim, size_t bytes);

/*
 * What the model knows. Of this CUDA's allocator tells all; MPS tells allocated_bytes,
 * reserved_bytes and recommended_bytes alone.
 */
typedef struct mt_sim_stats {
    size_t size;              /* sizeof(mt_sim_stats), set by the caller */
    size_t total_bytes;       /* as in the options, defaults filled in */
    size_t recommended_bytes; /* MPS; 0 on CUDA */
    size_t limit_bytes;       /* the allocator's own; SIZE_MAX: none */
    size_t others_bytes;
    size_t free_bytes;           /* of the card, others considered */
    size_t allocated_bytes;      /* blocks in use */
    size_t requested_bytes;      /* what was asked for them */
    size_t reserved_bytes;       /* segments, or heaps */
    size_t peak_allocated_bytes; /* since mt_sim_reset_peak */
    size_t peak_reserved_bytes;
    size_t inactive_split_bytes; /* free, but in a segment that is in use in part, so that emptying
                                    the cache does not return it; on MPS: in no buffer at all */
    size_t allocations;          /* blocks in use */
    size_t segments;             /* or heaps */
    uint64_t alloc_retries;      /* times all of the cache had to be emptied for a request */
    uint64_t ooms;               /* requests refused, mt_sim_refuse included */
} mt_sim_stats;

#define MT_SIM_STATS_INIT                                                                          \
    { sizeof(mt_sim_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* The figures as they are now; out->size is set by the caller. @return MT_OK, MT_EINVAL */
MT_API MT_NODISCARD mt_status mt_sim_read_stats(const mt_sim *sim, mt_sim_stats *out);

/* Both peaks start again from what there is now. */
MT_API MT_NODISCARD mt_status mt_sim_reset_peak(mt_sim *sim);

/*
 * The card as a backend tells of it (memtrain/backend.h), for the memory function of one in plain
 * C. budget_bytes is the most that can be reserved now: the lesser of the limit and what others
 * leave; at least 1. peak_bytes and alloc_retries are 0 on MPS, which counts neither. out->size is
 * set by the caller.
 */
MT_API MT_NODISCARD mt_status mt_sim_memory(const mt_sim *sim, mt_memory *out);

/*
 * Takes and releases the blocks of a chunk in their turn, on the card as it is, and in the end what is
 * left of them. With those of a chunk of any size (mt_recording_blocks), mt_sim_read_stats tells afterwards
 * what the allocator reserves for such a chunk, beside what it allocates.
 *
 * @param blocks  count of them, ascending by begin; offsets are not looked at
 * @return MT_OK; MT_EDEVMEM as mt_sim_alloc, and all that was taken is released; MT_EINVAL; MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_sim_play(mt_sim *sim, const mt_block *blocks, size_t count);

/* Told of one block; borrowed for the call. Must not change the card. */
typedef void (*mt_sim_block_fn)(void *user, const mt_sim_block *block);

/* Tells fn of every block, used or not, in the order of their addresses: the map of the card. */
MT_API MT_NODISCARD mt_status mt_sim_visit_blocks(const mt_sim *sim, mt_sim_block_fn fn,
                                                  void *user);

#ifdef __cplusplus
}
#endif
#endif
