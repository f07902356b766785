/*
 * memtrain/backend.h - the seam between deciding and doing.
 *
 * libmemtrain decides: how to cut a batch, what to do when memory runs out. A backend does: it owns
 * the model, the optimiser and the device. Between them stands one struct of functions, mt_backend.
 * libmemtrain_torch fills it in for libtorch (memtrain/torch.h); a trainer of your own fills it in
 * with a page of C and gets budgets, chunks, recovery, trace and replay without libtorch.
 * docs/backend.md goes through one function by function, examples/plain_c.c.
 *
 * The least a backend has: memory, begin, accumulate, rollback, apply. Whatever else it does not
 * have it leaves NULL, and the trainer does without.
 *
 *     mt_backend backend = MT_BACKEND_INIT;
 *     backend.self = &my_trainer;
 *     backend.memory = my_memory;
 *     backend.begin = my_begin;
 *     backend.accumulate = my_accumulate;
 *     backend.rollback = my_rollback;
 *     backend.apply = my_apply;
 *     mt_trainer_new(&backend, NULL, &trainer);
 *
 * Order of the calls in one step (the trainer keeps it):
 *
 *     begin  accumulate...  apply              a step that went through
 *     begin  accumulate...  rollback           a step taken back; the batch may be begun again
 *     begin  mark accumulate  mark accumulate(failed) rewind  mark accumulate...  apply
 *                                              the same, where finished chunks are kept
 *     begin  prepare accumulate...  apply      where the backend has prepare
 *     begin  accumulate...  collect...  apply  where the backend has collect
 *     set_rung, set_rate, hold_gradients       outside a step only
 *     evaluate...                              outside a step only
 *     memory, reset_peak, empty_cache, units, record   inside or outside
 *
 * Thread rule: all calls for one trainer come from the thread that calls the trainer. Calls do not
 * re-enter: a function that calls its own trainer gets MT_ESTATE from it. Errors: return a status,
 * with mt_set_error() for the text. MT_EDEVMEM means "did not fit" and nothing else; every other
 * failure ends the step and reaches the caller after rollback.
 */
#ifndef MEMTRAIN_BACKEND_H
#define MEMTRAIN_BACKEND_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most metrics that a backend can report beside the loss. */
#define MT_METRICS_MAX 8

#define MT_OVER_SAMPLES (-1)
#define MT_OVER_UNITS (-2)

/*
 * The rungs of the ladder: savers for when the smallest legal chunk does not fit, in the order of their
 * price. A rung is on or off; memtrain/policy.h says when.
 */
typedef enum mt_rung {
    MT_RUNG_CHECKPOINTING = 0, /* activations are computed again in the backward pass */
    MT_RUNG_OFFLOAD = 1,       /* activations are packed, or wait on the host */
    MT_RUNG_AMP = 2,           /* half precision where it is safe: other numbers */
    MT_RUNG_SMALLER_BATCH = 3, /* fewer samples a step, by 20 % at a time: another optimisation */
    MT_RUNG_CPU = 4,           /* off the accelerator: other roundings, and slow */
    MT_RUNG_MINIMAL = 5        /* one thread, nothing beside the training */
} mt_rung;

#define MT_RUNGS 6
#define MT_RUNG_BIT(rung) (1U << (rung)) /* sets of rungs are sums of these */

/* "checkpointing", "offload", "amp", "smaller_batch", "cpu", "minimal". Static. Any thread. */
MT_API const char *mt_rung_name(mt_rung rung);

/*
 * The samples of one optimiser step (or one evaluation call). Borrowed and read-only from begin to
 * apply or rollback, and readable again after a rollback. What data points to is between the caller
 * and the backend; libmemtrain never looks.
 */
typedef struct mt_batch {
    size_t size;      /* sizeof(mt_batch) */
    const void *data; /* e.g. an mt_torch_batch */
    size_t count;     /* samples, at least 1 */
    uint64_t id;      /* the caller's own number, not interpreted */
} mt_batch;

#define MT_BATCH_INIT                                                                              \
    { sizeof(mt_batch), NULL, 0, 0 }

/*
 * Memory of the backend's device as it is now, in bytes. What is not known is 0. The budget may differ
 * from call to call; with nothing left, report 1 and not 0, which means that there is no limit. A
 * backend without a cache reports what is allocated as reserved.
 */
typedef struct mt_memory {
    size_t size;         /* sizeof(mt_memory), set by the trainer */
    size_t budget_bytes; /* most that may be allocated; 0: no limit known, nothing is predicted */
    size_t allocated_bytes; /* in use by tensors */
    size_t reserved_bytes;  /* taken from the system: allocated and cached */
    size_t peak_bytes;      /* highest allocated since reset_peak */
    size_t free_bytes;      /* free on the device, other processes considered */
    uint64_t alloc_retries; /* times the device's allocator had to empty its cache to serve */
} mt_memory;

#define MT_MEMORY_INIT                                                                             \
    { sizeof(mt_memory), 0, 0, 0, 0, 0, 0 }

/*
 * What the policy must know of the model before the first step; all zero is a legal answer. The byte
 * figures are full sizes, allocated yet or not, for the trace and mt_trainer_explain; gradient_bytes
 * also tells whether there is room for a second set (mark).
 */
typedef struct mt_backend_info {
    size_t size;               /* sizeof(mt_backend_info), set by the trainer */
    const char *device;        /* "cpu", "cuda:0", ...; borrowed for the backend's life */
    const char *version;       /* of what does the work, "2.11.0"; borrowed likewise */
    size_t min_micro_batch;    /* smallest legal chunk; 0 means 1 */
    int normalises_over_batch; /* 1: layers such as BatchNorm in training mode see the chunk, so
                                     the two small recording chunks are run and taken back; the
                                     trainer sets it for a backend with prepare */
    int needs_whole_batch;     /* 1: the loss couples the samples (contrastive); cutting the
                                     batch would change it, and the trainer refuses to */
    size_t parameter_bytes;
    size_t gradient_bytes;
    size_t optimizer_bytes;
    size_t buffer_bytes;
    size_t metric_count;             /* at most MT_METRICS_MAX */
    const char *const *metric_names; /* metric_count names; borrowed for the backend's life */
    unsigned rungs;                  /* MT_RUNG_BITs that set_rung knows */
    int keeps_chunks;                /* 1: mark and rewind exist; the trainer sets it itself */
    const int *metric_over; /* metric_count numbers, what each metric's sum is divided by for a
                               report: MT_OVER_SAMPLES, MT_OVER_UNITS, or the index of another
                               metric's sum (IoU: intersection over union). NULL: samples. Borrowed */
    int holds_gradients;    /* 1: hold_gradients exists; the trainer sets it itself */
    /*
     * Samples from which on a chunk takes other kernels, whose memory smaller chunks do not tell; 0: none known.
     * Recordings on both sides of it are not taken for two points of one line.
     */
    size_t kernels_change;
    /*
     * MT_RUNG_BITs of which one must be on for record to tell anything: a device may be silent where the CPU is not
     * (MPS). 0: it always does.
     */
    unsigned record_rungs;
    /*
     * 1: apply has a loss scaler: it leaves an update out whose gradient is not finite, and takes a smaller scale, which is
     * no news. 0: mt_log warns of an update that apply leaves out.
     */
    int scales_loss;
    int cannot_record; /* 1: there is no record, so no chunk is to run for one; the trainer sets it itself */
    int is_told; /* 1: there is a prepare, which wants all chunks of a step; the trainer sets it itself */
    /*
     * What has been learnt of chunks is of use to another run that has the same: model, a number that is equal where code,
     * layers, dtypes and optimiser are (0: not known), threads (0: not known), device, version.
     */
    uint64_t model;
    int threads;
} mt_backend_info;

/*
 * What the samples of a batch look like. Samples of one id have one shape (picture size, sequence length): each has
 * recordings and times of its own. Where shapes differ in one number alone, its tokens or pixels, what is known of some of
 * them serves the others.
 */
typedef struct mt_shape {
    uint64_t id;     /* equal for samples of the same shape, in any way made */
    uint64_t family; /* equal for shapes that differ in length alone; not read where length is 0 */
    size_t
        length; /* elements of a sample, tokens or pixels; 0: not known, the shape stands alone */
} mt_shape;

/* What one chunk gave. The trainer zeroes the struct and sets size before the call. */
typedef struct mt_chunk_result {
    size_t size;     /* sizeof(mt_chunk_result) */
    double loss_sum; /* sum over units of the loss, without the weight; not read where units is 0 */
    double units;    /* what the loss was averaged over: samples, tokens, pixels */
    double metric_sums[MT_METRICS_MAX]; /* sums over the chunk, in the order of metric_names; where
                                           units is 0 one that is not finite counts as 0 */
    double seconds;    /* time that the chunk took, the device waited for; 0: not measured */
    size_t peak_bytes; /* highest allocated during the call, what was there before it included;
                          0: not known */
    /*
     * Evidence of an OOM, to be filled in with MT_EDEVMEM (it does no harm beside MT_OK): requests
     * that the allocator refused in this call. With it an OOM is compared with the budget and
     * corrects the model by bytes; left at 0, the chunk's size is taken for what did not fit.
     */
    uint64_t refused;            /* requests refused on this thread during this call */
    size_t refused_bytes;        /* size of the last one */
    size_t refused_in_use_bytes; /* what was allocated when it was refused */
    /*
     * 1: the chunk has normalised over its samples in training mode, though describe may not have known. After
     * the first such chunk the trainer keeps chunks at 2 samples at least and takes recordings back, as with
     * mt_backend_info.normalises_over_batch; a step that has been cut otherwise is taken back and planned anew.
     * Of accumulate alone.
     */
    int normalises_over_batch;
    /*
     * Set to 1 by the caller of accumulate, for a backend with collect: nobody needs loss, metrics and time of this chunk at
     * once. A backend that leaves it at 1 has not waited for the device, and collect tells them; one that has waited sets it
     * to 0 and tells them here.
     */
    int deferred;
} mt_chunk_result;

#define MT_CHUNK_RESULT_INIT                                                                       \
    { sizeof(mt_chunk_result), 0.0, 0.0, {0.0}, 0.0, 0, 0, 0, 0, 0, 0 }

/*
 * What apply did. The trainer sets size, grad_norm to NaN and the rest to zero before the call.
 */
typedef struct mt_apply_result {
    size_t size;      /* sizeof(mt_apply_result) */
    double seconds;   /* 0: not measured */
    double grad_norm; /* L2 norm of the whole gradient before clipping; NaN: not computed */
    int skipped; /* 1: everything was left as it was: the gradient was not finite, or no chunk had a unit */
} mt_apply_result;

#define MT_APPLY_RESULT_INIT                                                                       \
    { sizeof(mt_apply_result), 0.0, 0.0, 0 }

/* What empty_cache did. The trainer zeroes the struct and sets size before the call. */
typedef struct mt_clear_result {
    size_t size;           /* sizeof(mt_clear_result) */
    double seconds;        /* time that it took; 0: not measured */
    size_t released_bytes; /* given back to the system; 0: not known */
} mt_clear_result;

#define MT_CLEAR_RESULT_INIT                                                                       \
    { sizeof(mt_clear_result), 0.0, 0 }

/*
 * Receives every allocation and release on the recording thread: bytes > 0 is an allocation of the
 * block at address, bytes < 0 its release. Releases of blocks older than the recording come too and
 * are ignored by the recorder. The address is compared, never read. Must not allocate on the device
 * and must not fail. Bytes are those by which memory()'s allocated_bytes changes: where they are rounded
 * differently there, predictions are off by as much.
 *
 * bytes == 0: the block is a finished gradient that is now handed over to its parameter. Where chunks
 * are marked it stays to the end of the chunk, else it is added to the gradient that is there and
 * dies: told of these, the recorder knows both peaks from one recording. A backend whose chunks have
 * gradients of their own in any case tells of them where it adds them up, before it releases them. One with
 * mark that does not tell of gradients has gradient_bytes added, which can only be too much.
 */
typedef struct mt_event_sink {
    void *user;
    void (*event)(void *user, void *address, int64_t bytes);
} mt_event_sink;

typedef struct mt_backend {
    size_t size; /* sizeof(mt_backend) */
    void *self;  /* first argument of every function */

    /* Optional. Called once, by mt_trainer_new. */
    mt_status (*describe)(void *self, mt_backend_info *out);

    /*
     * Memory of the device as it is now; *out comes zeroed but for its size. Called by
     * mt_trainer_new, several times a step, before each chunk and after each OOM, so it should cost
     * microseconds. A failure before begin reaches the caller as it is.
     */
    mt_status (*memory)(void *self, mt_memory *out);

    /* Optional. peak_bytes of memory() starts again from what is allocated now. */
    mt_status (*reset_peak)(void *self);

    /* Optional. Gives cached memory back to the system; legal after a failed chunk. MT_EDEVMEM is no
       failure of the step: it goes on without. */
    mt_status (*empty_cache)(void *self, mt_clear_result *out);

    /*
     * Starts a step: remembers whatever a step can change (random number generators, module
     * buffers); parameters and optimiser state are changed by apply alone. Gradients are zero
     * afterwards. The batch stays borrowed until apply or rollback; its parts may be asked for more
     * than once (a recording that is taken back runs the first samples twice).
     * May return MT_EDEVMEM. On failure nothing has begun, and neither rollback nor apply follows.
     * Memory that lives on (gradients, optimiser state) is best taken here or before, not in
     * accumulate, where it would be recorded as the chunk's.
     */
    mt_status (*begin)(void *self, const mt_batch *batch);

    /*
     * Forward and backward on samples [first, first + count) of the batch, the loss (a mean over
     * the chunk's units) multiplied by weight before backward; adds to the gradients. weight is
     * units(chunk) / units(batch), so the chunks of a batch sum up to its gradient. MT_EDEVMEM when
     * memory ran out, std::bad_alloc and its like included; gradients may then hold rubbish: the
     * trainer ends a recording, then calls rollback (or rewind, where the chunk was marked), and nothing
     * else is legal. Memory of a chunk that failed is released before returning; of out only the
     * evidence, seconds and peak_bytes are read then.
     */
    mt_status (*accumulate)(void *self, size_t first, size_t count, double weight,
                            mt_chunk_result *out);

    /*
     * Back to what begin saw, gradients zero. Allocates nothing. If it fails, the state is lost:
     * the trainer is poisoned and refuses everything from then on.
     */
    mt_status (*rollback)(void *self);

    /*
     * Ends a step: unscale, clip, optimiser update. Allocates nothing, or fails before anything has
     * changed (MT_EDEVMEM then, and rollback follows).
     */
    mt_status (*apply)(void *self, mt_apply_result *out);

    /*
     * Optional. Forward only, in evaluation mode, outside a step; changes no state. Evidence and
     * release of memory as in accumulate; no rollback follows a failure.
     */
    mt_status (*evaluate)(void *self, const mt_batch *batch, size_t first, size_t count,
                          mt_chunk_result *out);

    /*
     * Optional. From now on, tells sink of every allocation and release that this thread makes on
     * the device; sink NULL stops, and must not fail. *sink is copied. Called around single chunks,
     * right before accumulate or evaluate and right after it, also where that failed: two at the start,
     * and sizes beyond those recorded; never where mt_policy_options.micro_batch fixes the size, nor while none
     * of mt_backend_info.record_rungs is on. Without it, chunks grow step by step from measured peaks. Any
     * failure of a record that is there ends the step: where it cannot be done, leave it NULL.
     */
    mt_status (*record)(void *self, const mt_event_sink *sink);

    /*
     * Optional. What the loss is averaged over in samples [first, first + count) of the batch.
     * Without it, units are samples. Called before begin for the whole batch and before each chunk,
     * so it must be cheap. 0 is legal: the chunk gets weight 0, must add nothing (mind 0 / 0) and
     * reports loss_sum 0 and units 0. The units of a step's chunks must add up to those of its samples: to a
     * millionth where both are whole numbers, else to a ten-thousandth. A step in which they do not is taken back
     * and returns MT_EINVAL.
     */
    mt_status (*units)(void *self, const mt_batch *batch, size_t first, size_t count, double *out);

    /*
     * Optional. SHA-256 over name, dtype, shape and bytes of every tensor of the state in name order
     * (parameters, buffers, optimiser state, RNG), as 64 hex digits and a zero, for the trace. Any
     * 64 digits that identify the state will do: they are compared, not verified.
     */
    mt_status (*state_sha256)(void *self, char out[65]);

    /*
     * Optional; one without the other is not called. mark is called before a chunk whose failure shall not cost the
     * chunks before it: remembers what accumulate can change beside the gradients, and has the next
     * accumulate add its gradients only once its backward is through; until then they are a second
     * set, of up to gradient_bytes. Until that accumulate has succeeded, rewind takes back to what mark
     * saw, gradients of finished chunks included, allocating nothing; rollback is legal then too. A
     * mark that fails with MT_EDEVMEM or MT_ENOTSUP has not happened, and the chunk runs without; a
     * rewind that fails has lost the state, as rollback.
     */
    mt_status (*mark)(void *self);
    mt_status (*rewind)(void *self);

    /*
     * Optional. Turns a saver on or off, outside a step. MT_RUNG_CPU moves the whole state, random
     * number generators included, and memory() tells of the new device from then on. Called for
     * rungs of mt_backend_info.rungs alone. On failure nothing has changed; MT_ENOTSUP and
     * MT_EDEVMEM make the policy do without the rung.
     */
    mt_status (*set_rung)(void *self, mt_rung rung, int on);

    /* Optional. Factor of the learning rate from now on, for a batch made smaller; 1 at the start. */
    mt_status (*set_rate)(void *self, double factor);

    /*
     * Optional. What the samples of a batch look like; *out is all 0 before. Without it, all batches are
     * taken to be of one shape. A failure ends the step before it began.
     */
    mt_status (*shape)(void *self, const mt_batch *batch, mt_shape *out);

    /*
     * Optional, and of use beside mark alone. Outside a step. on 0 gives the memory back in which the
     * gradients of chunks are added up (gradient_bytes), and must not fail. Each step from then on is one
     * marked chunk of all its samples, whose gradients stay where they were made until apply or rollback.
     * on 1 takes the memory again, or has it; where that fails (MT_EDEVMEM) nothing has changed.
     * mt_trainer_new asks for it.
     */
    mt_status (*hold_gradients)(void *self, int on);

    /*
     * Optional. For a gradient that wants to see all samples before the first of them is trained: after
     * begin, tells the sizes of the chunks that accumulate is going to be asked for, from sample 0 on, in
     * this order, and asks for exactly these. They are the whole step: where they cover less than the
     * batch, the step is made of those samples alone. A recording that is taken back is told chunk by
     * chunk, each time from sample 0 on: prepare then forgets what it prepared before.
     *
     * A failure is followed by rollback. MT_EDEVMEM, with the evidence in out, is answered as an OOM of
     * the largest chunk would be; of out only that and peak_bytes are read, so the time that this takes
     * belongs into the seconds of the chunks. Memory that is taken here lives until apply or rollback.
     *
     * A step that has run out of memory is taken back whole and planned anew: mark, rewind and
     * hold_gradients off are not called for such a backend.
     */
    mt_status (*prepare)(void *self, const size_t *chunks, size_t count, mt_chunk_result *out);

    /*
     * Optional, for processes that train as one: each takes steps at the same time, of samples of its own, and
     * apply adds up their gradients. Adds each of count values over all processes, in place; all have the
     * same sums then. Returns when all have called it, the n-th call of one with the n-th of each other.
     *
     * A step that begins calls it once, for the units of all batches: weight is then units(chunk) over these, so
     * that the gradients of all processes sum up to the one of all their samples. Once more where all chunks
     * are through, before apply, or where the step is given up: apply follows on all processes or on none.
     * An evaluation calls it once, at its end. A call that is refused (MT_EINVAL, MT_ESTATE) calls it once, too: so no
     * process waits for one that has failed, and all make the same calls of the trainer.
     *
     * A failure is one of the step, which is taken back, and not tried again, whatever the status: the others
     * may have gone on. So is one of apply. mt_trainer_new refuses MT_RUNG_SMALLER_BATCH beside it.
     */
    mt_status (*agree)(void *self, double *values, size_t count);

    /*
     * Optional. Whether each parameter that trains is a finite number: *out is 1 or 0. Asked outside a step, after
     * one whose loss was not finite and that has made no update, so it may take its time. A failure is no news.
     */
    mt_status (*look_at_parameters)(void *self, int *out);

    /*
     * Optional, for a device that computes while the host goes on. Loss, units, metrics and time of the oldest deferred
     * chunk (mt_chunk_result.deferred) that has not been told of; the first call waits for the device. Called once for each
     * of them, before apply. Chunks of known size are deferred, so that the device is waited for once a step and the host
     * prepares a chunk while the one before computes. A failure is one of the step: MT_EDEVMEM is answered as an OOM of the
     * largest of them. A rollback forgets them; a rewind does not.
     */
    mt_status (*collect)(void *self, mt_chunk_result *out);
} mt_backend;

#define MT_BACKEND_INIT                                                                            \
    {                                                                                              \
        sizeof(mt_backend), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,      \
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL                 \
    }

#ifdef __cplusplus
}
#endif
#endif
