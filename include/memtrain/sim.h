/*
 * memtrain/sim.h - a simulated accelerator: the caching allocators of CUDA and MPS as a model.
 *
 * A run on a card does not fail at the moment when its tensors exceed the card. It fails when the
 * allocator that caches the card's memory finds no segment for the next request. The model keeps
 * the figures of that allocator: blocks, segments, caches, limits, counters, the words of its
 * errors. It keeps no memory at all. So one can try without a card what a card would do:
 *
 *     mt_sim_options options = MT_SIM_OPTIONS_INIT;
 *     options.total_bytes = (size_t)8 << 30;
 *     mt_sim_new(&options, &sim);
 *     mt_sim_alloc(sim, 3 << 20, &block);          block.bytes: what it takes, rounded up
 *     mt_sim_release(sim, block.address);
 *     mt_sim_read_stats(sim, &stats);              stats.reserved_bytes: 20 MiB, all of it cached
 *
 * The functions are in libmemtrain_memory: link with -lmemtrain_memory -lmemtrain.
 * libmemtrain_torch runs its devices "sim:cuda" and "sim:mps" over this model (memtrain/torch.h).
 *
 * MT_SIM_CUDA follows PyTorch 2.11's c10/cuda/CUDACachingAllocator.cpp. Requests are rounded up to 512 bytes. Requests up to 1 MiB come from segments of 2 MiB, requests below 10
 * MiB from segments of 20 MiB. A larger request gets a segment of its own, rounded up to 2 MiB. The
 * smallest free block that is large enough is taken. It is split if what remains is worth it. Free
 * neighbours merge. A request that finds nothing empties the cache and tries again (alloc_retries).
 * If that does not help, it fails (ooms). Each stream has segments of its own (mt_sim_set_stream).
 *
 * MT_SIM_MPS follows aten/src/ATen/mps/MPSAllocator.mm. Buffers lie in heaps of 8 MiB, 32 MiB or
 * xlarge_heap_bytes, and are reused whole. A high watermark refuses requests. A low watermark
 * starts the collection of cached buffers. MPS has no counter of peaks, retries or failures.
 *
 * docs/devices.md lists the rules with their sources. It also lists what the model leaves out:
 * events, CUDA graphs, expandable segments, the context, the workspaces of libraries, and Metal's
 * own placement.
 *
 * Sizes are in bytes. Addresses are numbers: they rise, never repeat, and point nowhere. Operations
 * cost O(log n) in the number of blocks, except those that empty or collect caches.
 *
 * Thread rule for all functions here: one thread at a time. Beside the codes that it names, each
 * function may return MT_EINVAL for a NULL or stale argument.
 */
#ifndef MEMTRAIN_SIM_H
#define MEMTRAIN_SIM_H

#include <memtrain/backend.h>
#include <memtrain/blocks.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whose allocator is simulated. */
typedef enum mt_sim_flavour { MT_SIM_CUDA = 1, MT_SIM_MPS = 2 } mt_sim_flavour;

/* The card, and the settings of its allocator. Zero is the default of every field. */
typedef struct mt_sim_options {
    size_t size;            /* sizeof(mt_sim_options) */
    mt_sim_flavour flavour; /* default MT_SIM_CUDA */
    /*
     * Memory of the card, or of the machine on MPS. Default on CUDA: 8 GiB. Default on MPS: 16 GiB,
     * or 1.5 times recommended_bytes if that is set. Nothing is ever taken beyond it: no swap is
     * simulated.
     */
    size_t total_bytes;
    size_t others_bytes; /* held by others from the start, see mt_sim_set_others */
    /*
     * The allocator's own limit, as in mt_sim_set_ratio. Default: no limit on CUDA, 1.7 on MPS.
     * Below 0: no limit.
     */
    double ratio;

    /* only for CUDA */
    size_t max_split_bytes; /* max_split_size, at least 20 MiB. Default: none */
    /* Slack of an oversize block, at least 20 MiB, the default. */
    size_t max_non_split_rounding_bytes;
    size_t large_segment_bytes;        /* above 10 MiB. Default 20 MiB */
    unsigned roundup_power2_divisions; /* a power of two, one for all sizes. Default: off */
    double gc_threshold;               /* garbage_collection_threshold, 0 < x < 1. Default: off */

    /* only for MPS */
    /* recommendedMaxWorkingSetSize. Default: 2/3 of total_bytes up to 36 GB, 3/4 above. */
    size_t recommended_bytes;
    double low_watermark_ratio; /* at most the high one. Default 1.4. Below 0: off */
    size_t align_bytes;         /* buffers are rounded up to it, a power of two. Default 256 */
    size_t max_buffer_bytes;    /* maxBufferLength: less is accepted. Default half of total_bytes */
    /*
     * Size of the heap for requests that are at least 10 MiB and below half of this heap. Default 1
     * GiB. A machine may be smaller than real ones, with recommended_bytes below 8 GiB. Then the
     * default is an eighth of recommended_bytes in steps of 2 MiB, at least 32 MiB.
     */
    size_t xlarge_heap_bytes;
    /*
     * The number of buffer sizes from one power of two to the next, a power of two. Buffers above 1
     * MiB are rounded up to one of these sizes, in whole pages of 16 KiB. Default: off. PyTorch has
     * 32 of them since pull request 187441.
     */
    size_t large_buckets;
} mt_sim_options;

#define MT_SIM_OPTIONS_INIT                                                                        \
    { sizeof(mt_sim_options), MT_SIM_CUDA, 0, 0, 0.0, 0, 0, 0, 0, 0.0, 0, 0.0, 0, 0, 0, 0 }

/* A simulated card. */
typedef struct mt_sim mt_sim;

/*
 * Makes a simulated card.
 *
 * @param options  NULL: defaults; copied
 * @param out      new reference: free with mt_sim_free
 * @return MT_OK; MT_EINVAL (names the field, in the allocator's own words if it has some);
 *         MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_sim_new(const mt_sim_options *options, mt_sim **out);

/* Frees a card, with its blocks in use. NULL is a no-op. */
MT_API void mt_sim_free(mt_sim *sim);

/* One block of the card: a tensor, or a hole between tensors. */
typedef struct mt_sim_block {
    uint64_t address;         /* 0: a request of 0 bytes, which takes no memory */
    size_t bytes;             /* what it takes */
    size_t requested_bytes;   /* what was asked for. 0 when not in use */
    uint64_t segment_address; /* of the segment (CUDA) or heap (MPS) that it lies in */
    size_t segment_bytes;
    int in_use;
} mt_sim_block;

/*
 * Serves a request as the allocator would. If it finds nothing, it empties the cache and tries
 * again.
 *
 * @param out  the block; all zero after a failure
 * @return MT_OK.
 *         MT_EDEVMEM: mt_last_error() has the allocator's own words, cut at 511 bytes. On CUDA
 *         "CUDA out of memory. Tried to allocate ...", which libtorch throws as OutOfMemoryError.
 *         On MPS "MPS backend out of memory (MPS allocated: ..." or "Invalid buffer size: ...",
 *         which it throws as a plain c10::Error.
 *         MT_ENOMEM: the model's own host memory ran out. Nothing has changed then.
 */
MT_API MT_NODISCARD mt_status mt_sim_alloc(mt_sim *sim, size_t bytes, mt_sim_block *out);

/*
 * Gives a block back to the cache. It needs no host memory. Address 0 is a no-op.
 *
 * @return MT_OK; MT_EINVAL for an address at which no block in use starts
 */
MT_API MT_NODISCARD mt_status mt_sim_release(mt_sim *sim, uint64_t address);

/*
 * Gives the cache back to the card: segments that are wholly free, or heaps without buffers in use.
 *
 * @param out_released_bytes  bytes that were given back; may be NULL
 */
MT_API MT_NODISCARD mt_status mt_sim_empty_cache(mt_sim *sim, size_t *out_released_bytes);

/*
 * Sets the allocator's own limit. What is held already stays.
 *
 * @param ratio  on CUDA (setMemoryFraction) a share of total_bytes, 0 <= x <= 1, with 1 for no
 *               limit. On MPS the high watermark, a share of recommended_bytes, 0 <= x <= 2, with 0
 *               for no limit
 * @return MT_OK; MT_EINVAL with the allocator's words
 */
MT_API MT_NODISCARD mt_status mt_sim_set_ratio(mt_sim *sim, double ratio);

/*
 * Sets the stream that requests are made on from now on. CUDA keeps the free blocks of each stream for
 * that stream, so each stream has segments of its own. MPS has one pool for all.
 *
 * @param stream  any number. A new card is on stream 0
 * @return MT_OK; MT_ENOMEM: the model's own host memory ran out, and the stream is as before
 */
MT_API MT_NODISCARD mt_status mt_sim_set_stream(mt_sim *sim, uint64_t stream);

/*
 * Sets how many bytes others hold from now on. On CUDA these are other processes and the context.
 * On MPS it is other Metal memory of this process ("other allocations"). It may be more than what
 * is free.
 */
MT_API MT_NODISCARD mt_status mt_sim_set_others(mt_sim *sim, size_t bytes);

/*
 * Refuses a request as if there were no room for it: counts it, and sets the error line. It is for
 * tests that make allocations fail.
 *
 * @return MT_EDEVMEM with the allocator's words, or MT_EINVAL
 */
MT_API mt_status mt_sim_refuse(mt_sim *sim, size_t bytes);

/*
 * The figures of the model. CUDA's real allocator reports all of them. MPS reports only
 * allocated_bytes, reserved_bytes and recommended_bytes.
 */
typedef struct mt_sim_stats {
    size_t size;              /* sizeof(mt_sim_stats), set by the caller */
    size_t total_bytes;       /* as in the options, defaults filled in */
    size_t recommended_bytes; /* on MPS. 0 on CUDA */
    size_t limit_bytes;       /* the allocator's own limit. SIZE_MAX: none */
    size_t others_bytes;
    size_t free_bytes;           /* free on the card, after what others hold */
    size_t allocated_bytes;      /* blocks in use */
    size_t requested_bytes;      /* what was asked for them */
    size_t reserved_bytes;       /* segments, or heaps */
    size_t peak_allocated_bytes; /* since mt_sim_reset_peak */
    size_t peak_reserved_bytes;
    /*
     * Free bytes in segments that are partly in use. Emptying the cache does not give them back. On
     * MPS: bytes that are in no buffer at all.
     */
    size_t inactive_split_bytes;
    size_t allocations;     /* blocks in use */
    size_t segments;        /* segments, or heaps */
    uint64_t alloc_retries; /* times that a request had all of the cache emptied */
    uint64_t ooms;          /* refused requests, those of mt_sim_refuse included */
} mt_sim_stats;

#define MT_SIM_STATS_INIT                                                                          \
    { sizeof(mt_sim_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Reports the figures as they are now.
 *
 * @param out  its size is set by the caller
 * @return MT_OK, MT_EINVAL
 */
MT_API MT_NODISCARD mt_status mt_sim_read_stats(const mt_sim *sim, mt_sim_stats *out);

/* Restarts both peaks from what is held now. */
MT_API MT_NODISCARD mt_status mt_sim_reset_peak(mt_sim *sim);

/*
 * Reports the card as a backend does (memtrain/backend.h), for the memory function of a backend in
 * plain C.
 *
 * budget_bytes is the most that can be reserved now: the lesser of the limit and what others leave,
 * at least 1. peak_bytes and alloc_retries are 0 on MPS, which counts neither.
 *
 * @param out  its size is set by the caller
 */
MT_API MT_NODISCARD mt_status mt_sim_memory(const mt_sim *sim, mt_memory *out);

/*
 * Takes and releases the blocks of a chunk in their order, on the card as it is. At the end it
 * releases those that are left.
 *
 * Take the blocks of a chunk of any size from mt_recording_blocks. Afterwards mt_sim_read_stats
 * says what the allocator reserves for such a chunk, and what it allocates.
 *
 * @param blocks  count blocks, ascending by begin; offsets are not looked at
 * @return MT_OK; MT_EDEVMEM as mt_sim_alloc, with everything released that was taken; MT_EINVAL;
 *         MT_ENOMEM
 */
MT_API MT_NODISCARD mt_status mt_sim_play(mt_sim *sim, const mt_block *blocks, size_t count);

/* Receives one block, which is borrowed for the call. It must not change the card. */
typedef void (*mt_sim_block_fn)(void *user, const mt_sim_block *block);

/*
 * Calls fn for every block, used or not, in the order of their addresses. This is the map of the
 * card.
 */
MT_API MT_NODISCARD mt_status mt_sim_visit_blocks(const mt_sim *sim, mt_sim_block_fn fn,
                                                  void *user);

#ifdef __cplusplus
}
#endif
#endif
