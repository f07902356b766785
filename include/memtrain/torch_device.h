/*
 * memtrain/torch_device.h - devices: budgets, figures of memory, simulated cards, requests that fail on purpose.
 *
 * It is a part of memtrain/torch.h, which says what holds for all its parts: names of devices, counted
 * bytes, errors, threads. Library libmemtrain_torch.
 */
#ifndef MEMTRAIN_TORCH_DEVICE_H
#define MEMTRAIN_TORCH_DEVICE_H

#include <memtrain/backend.h>
#include <memtrain/sim.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Says whether a device can be used.
 *
 * @return MT_OK; MT_ENOTSUP with the reason in the error line; MT_ETORCH in the driver's words for a
 *         card that this process has used and that is lost; MT_EINVAL for a name that is not a
 *         device's
 */
MT_API MT_NODISCARD mt_status mt_device_check(const char *device);

/*
 * Counts the devices of a type. N devices are called TYPE:0 to TYPE:N-1. The count is 0 if none can
 * be used. It is 1 for "cpu", for "mps" on a Mac, and for a simulated card.
 *
 * @param type  the name of a device without a number: "cuda"
 * @param out   0 on failure
 * @return MT_OK; MT_EINVAL for a name that is not a device's, or that has a number; MT_ENOTSUP for
 *         a type that the library cannot train on
 */
MT_API MT_NODISCARD mt_status mt_device_count(const char *type, size_t *out);

/*
 * The devices that are here, one after another: number 0 is "cpu", then come all cards, those of third parties too. Simulated
 * cards are not among them.
 *
 * @param number  from 0 on
 * @param text    the name, or "" on failure
 * @param size    of text in bytes; 64 are enough for every name
 * @return MT_OK; MT_EINVAL for a number of which there is no device, which ends the list, or a text that is too short
 */
MT_API MT_NODISCARD mt_status mt_device_here(size_t number, char *text, size_t size);

/*
 * Limits the bytes of tensors on the device. 0: the default.
 *
 * On the CPU the budget holds for the whole process, and is enforced at each allocation. The
 * default is the budget of mt_host_memory. It follows the host while the program runs, so it sees
 * memory that others take or give back. A control group may leave less than the host. Then the
 * default is what a resident budget (below) leaves: 0.95 of what the process holds plus what the
 * group has left.
 *
 * On CUDA and XPU the default is 0.95 of the sum of free memory and own reserved memory. On MPS it
 * is 0.95 of the recommended working set. All three also set the limit of the device's own
 * allocator. If an allocator takes no limit, the budget is watched, not enforced, and the log says
 * so. On CUDA and XPU each card has its own budget. To set one initialises the cards.
 *
 * The budget may be changed at any time. A budget below what is allocated refuses every further
 * request until enough is released.
 */
MT_API MT_NODISCARD mt_status mt_device_set_budget(const char *device, size_t bytes);

/*
 * Limits what the whole process holds in memory, in bytes. 0: no such limit. Code and libraries
 * count too: libtorch alone takes 110 MB.
 *
 * The budget of tensors becomes what the limit leaves for them, but never more than the budget that
 * is set. That happens when a chunk begins, and when mt_device_memory is called. Pages that wait in
 * planned memory or in the heap are given back when something else needs memory. Non-tensor memory
 * that is taken in the middle of a chunk is not seen, so leave some room.
 *
 * @param device  only "cpu", and only on systems that report the figures (Linux, macOS); otherwise
 *                MT_ENOTSUP
 */
MT_API MT_NODISCARD mt_status mt_device_set_resident_budget(const char *device, size_t bytes);

/* What the process holds in memory, in bytes. */
typedef struct mt_resident {
    size_t size;           /* sizeof(mt_resident) */
    size_t limit_bytes;    /* the resident budget. 0: none */
    size_t resident_bytes; /* now: the sum of the next three fields */
    size_t tensor_bytes;   /* tensors outside of arenas: parameters, optimiser state */
    size_t arena_bytes;    /* pages of arenas, in use or kept for the next chunk */
    size_t other_bytes;    /* code, libraries, heap */
    size_t peak_bytes;     /* highest resident bytes since the process began. 0: not known */
} mt_resident;

#define MT_RESIDENT_INIT                                                                           \
    { sizeof(mt_resident), 0, 0, 0, 0, 0, 0 }

/*
 * Reports what the process holds in memory.
 *
 * @param device  only "cpu", and only on systems that report the figures; otherwise MT_ENOTSUP
 */
MT_API MT_NODISCARD mt_status mt_device_resident(const char *device, mt_resident *out);

/*
 * Predicts the most that the process will hold in memory while its tensors take at most peak_bytes.
 *
 * Non-tensor memory is taken to stay as it is now. So ask after some chunks have run. Chunks are
 * taken to be served from planned memory. Without planned memory the heap may hold twice their
 * bytes.
 *
 * @param device      only "cpu", and only on systems that report the figures; otherwise MT_ENOTSUP
 * @param peak_bytes  counted bytes of all tensors together, with those that exist now:
 *                    predicted_peak_bytes of a plan, or allocated_bytes of mt_memory plus what
 *                    mt_memory_model_peak or mt_policy_predict_bytes gives
 * @param out         bytes, at least what is held now; 0 on failure
 */
MT_API MT_NODISCARD mt_status mt_device_predict_resident(const char *device, size_t peak_bytes,
                                                         size_t *out);

/*
 * Reports the memory of the device as it is now. Any thread.
 *
 * @param out  its size is set by the caller
 */
MT_API MT_NODISCARD mt_status mt_device_memory(const char *device, mt_memory *out);

/*
 * Restarts peak_bytes from what is allocated now. MT_ENOTSUP on MPS, which has no peak of its own.
 */
MT_API MT_NODISCARD mt_status mt_device_reset_peak(const char *device);

/*
 * Gives cached memory back to the system.
 *
 * On a card it gives back the segments of the allocator that are wholly free. On CUDA and XPU that
 * is done for all cards of the type, and each card is waited for. Pinned memory of the host that is
 * not in use goes back too. On the CPU it gives back the pages of planned memory in which no tensor
 * lies, except those of running chunks. It also gives back the free pages of the heap (malloc_trim,
 * some milliseconds).
 *
 * @param out  receives seconds and bytes, on the CPU resident bytes; may be NULL
 */
MT_API MT_NODISCARD mt_status mt_empty_cache(const char *device, mt_clear_result *out);

/*
 * Sets what the simulated card behind "sim:cuda" or "sim:mps" is like. Until it is called, the card
 * has the defaults of memtrain/sim.h.
 *
 * Tensors of such a device lie in the host's memory, and the CPU computes them. Each tensor is also
 * booked on the card, by the rules of the caching allocator of CUDA or MPS. If the card has no
 * room, the request is refused with that allocator's type and words. Everything above holds as for
 * the real device: budgets, figures, OOMs, their evidence.
 *
 * A tensor is on the card if it was made inside a call of an mt_torch on that device, on the
 * calling thread. Batches are on the host, and so are models before mt_torch_new. The budget of the
 * CPU holds beside that of the card. The card belongs to the process: several mt_torch share it.
 *
 * @param device   says which card; the flavour of the options is not looked at
 * @param options  NULL: defaults; copied
 * @return MT_OK; MT_ESTATE while tensors lie on the card; MT_EINVAL for a device that is not
 *         simulated; MT_ENOTSUP without the library's CPU allocator (mt_torch_enforces_budget)
 */
MT_API MT_NODISCARD mt_status mt_device_simulate(const char *device, const mt_sim_options *options);

/*
 * Sets how many bytes are held by others than tensors, from now on. It replaces the previous value.
 * It may be more than there is. Any thread.
 *
 * On the CPU it is non-tensor memory of the host, such as a loader's buffers. It counts against the
 * budget as if it were allocated. MT_ENOTSUP without the library's CPU allocator.
 *
 * On a simulated card it is memory of other processes (mt_sim_set_others), for instance to see a
 * run shrink.
 */
MT_API MT_NODISCARD mt_status mt_device_hold(const char *device, size_t bytes);

/*
 * Reports the figures of a simulated card. Any thread.
 *
 * @param out  its size is set by the caller
 */
MT_API MT_NODISCARD mt_status mt_device_sim_stats(const char *device, mt_sim_stats *out);

/* ---- watching a recovery ------------------------------------------------------------------------- */

/*
 * Makes requests of the calling thread for memory fail: for the CPU's, and for a card's. Requests of 0
 * bytes do not count. The requests of a backward pass on libtorch's own thread count too. A card
 * refuses such a request in its own words, and empties its cache first. On a Mac requests to MPS do
 * not count.
 *
 * @param nth         the request to fail, counted from now on, from 1; 0: no request fails any more
 * @param persistent  0: only that request fails; 1: every later one fails too
 * @return MT_OK; MT_ENOTSUP when the library's CPU allocator is not installed
 */
MT_API MT_NODISCARD mt_status mt_inject_oom(uint64_t nth, int persistent);

/*
 * Counts the requests of mt_inject_oom's kind since its last mt_inject_oom, and how many of them have
 * failed.
 */
MT_API void mt_injected(uint64_t *out_requests, uint64_t *out_failed);

#ifdef __cplusplus
}
#endif
#endif
