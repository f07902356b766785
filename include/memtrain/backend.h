/*
 * memtrain/backend.h - the struct of functions by which a trainer uses a model, an optimiser and a device.
 *
 * libmemtrain decides how to cut a batch, and what to do when memory runs out. A backend does the
 * work: it owns the model, the optimiser and the device. The two meet in one struct of functions,
 * mt_backend. libmemtrain_torch fills the struct in for libtorch (memtrain/torch.h). A trainer of
 * your own fills it in with a page of C. It gets budgets, chunks, recovery, trace and replay
 * without libtorch. docs/backend.md goes through a whole backend, examples/plain_c.c, one function
 * after the other.
 *
 * A backend has at least memory, begin, accumulate, rollback and apply. It leaves every other
 * function NULL that it does not have. The trainer does without that function.
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
 * The trainer keeps this order of calls in one step:
 *
 *     begin  accumulate...  apply              a step that succeeded
 *     begin  accumulate...  rollback           a step that was rolled back; it may begin again
 *     begin  mark accumulate  mark accumulate(failed) rewind  mark accumulate...  apply
 *                                              a step that keeps its finished chunks when one fails
 *     begin  prepare accumulate...  apply      where the backend has prepare
 *     begin  accumulate...  collect...  apply  where the backend has collect
 *     set_rung, set_rate, hold_gradients       outside a step only
 *     evaluate...                              outside a step only
 *     memory, reset_peak, empty_cache, units, record   inside or outside a step
 *
 * Thread rule: all calls for one trainer come from the thread that calls the trainer. Calls do not
 * re-enter: a function that calls its own trainer gets MT_ESTATE from it.
 *
 * Errors: return a status, and set its text with mt_set_error(). MT_EDEVMEM means "did not fit" and
 * nothing else. Every other failure ends the step and reaches the caller after rollback.
 */
#ifndef MEMTRAIN_BACKEND_H
#define MEMTRAIN_BACKEND_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most metrics that a backend can report beside the loss. */
#define MT_METRICS_MAX 8

/* What the sum of a metric is divided by, in mt_backend_info.metric_over. */
#define MT_OVER_SAMPLES (-1)
#define MT_OVER_UNITS (-2)

/*
 * The rungs of the ladder: savers for when the smallest legal chunk does not fit. They are in the
 * order of their price, and later ones come last. A rung is on or off: memtrain/policy.h says when.
 */
typedef enum mt_rung {
    MT_RUNG_CHECKPOINTING = 0, /* activations are computed again in the backward pass */
    MT_RUNG_OFFLOAD = 1,       /* saved activations are packed, or wait on the host */
    MT_RUNG_AMP = 2,           /* half precision where it is safe; other numbers */
    MT_RUNG_SMALLER_BATCH = 3, /* fewer samples a step, ever fewer; another optimisation */
    MT_RUNG_CPU = 4,           /* the CPU instead of the accelerator; other roundings, and slow */
    MT_RUNG_MINIMAL = 5        /* one thread; nothing runs beside the training */
} mt_rung;

/* The number of rungs, and a rung's bit. A set of rungs is the sum of their bits. */
#define MT_RUNGS 6
#define MT_RUNG_BIT(rung) (1U << (rung))

/*
 * The name of a rung: "checkpointing", "offload", "amp", "smaller_batch", "cpu", "minimal". Static.
 * Any thread.
 */
MT_API const char *mt_rung_name(mt_rung rung);

/*
 * The samples of one optimiser step, or of one evaluation call. The batch is borrowed and read-only
 * from begin to apply or rollback. After a rollback it must still be readable, since begin may
 * follow again. The caller and the backend agree on what data points to. libmemtrain never reads
 * it.
 */
typedef struct mt_batch {
    size_t size;      /* sizeof(mt_batch) */
    const void *data; /* for example an mt_torch_batch */
    size_t count;     /* samples, at least 1 */
    uint64_t id;      /* the caller's own number, which is not interpreted */
} mt_batch;

#define MT_BATCH_INIT                                                                              \
    { sizeof(mt_batch), NULL, 0, 0 }

/*
 * Memory of the backend's device as it is now, in bytes. A figure that is not known is 0.
 *
 * The budget may differ from call to call. If nothing is left of it, report 1: a budget of 0 means
 * that there is no limit. A backend without a cache reports its allocated bytes as reserved bytes
 * too.
 */
typedef struct mt_memory {
    size_t size; /* sizeof(mt_memory), set by the trainer, or by who calls the policy */
    /* Most that may be allocated. 0: no limit is known, nothing is predicted. */
    size_t budget_bytes;
    size_t allocated_bytes; /* in use by tensors */
    size_t reserved_bytes;  /* taken from the system: allocated bytes and cached bytes */
    size_t peak_bytes;      /* highest allocated bytes since reset_peak */
    size_t free_bytes;      /* free on the device, after what other processes take */
    /* Times that the device's allocator emptied its cache to serve a request. */
    uint64_t alloc_retries;
} mt_memory;

#define MT_MEMORY_INIT                                                                             \
    { sizeof(mt_memory), 0, 0, 0, 0, 0, 0 }

/*
 * What the policy must know of the model before the first step. All zero is a legal answer.
 *
 * The byte figures are full sizes, whether that memory is allocated yet or not. They serve the
 * trace and mt_trainer_explain. gradient_bytes also says whether there is room for a second set of
 * gradients (mark).
 */
typedef struct mt_backend_info {
    size_t size;        /* sizeof(mt_backend_info), set by the trainer */
    const char *device; /* "cpu", "cuda:0", ... Borrowed for the backend's life */
    /* Version of what does the work, "2.11.0". Borrowed for the backend's life. */
    const char *version;
    size_t min_micro_batch; /* smallest legal chunk. 0 means 1 */
    /*
     * 1: layers such as BatchNorm see the chunk in training mode. So the two small recording chunks
     * are run and rolled back. The trainer sets it itself for a backend with prepare.
     */
    int normalises_over_batch;
    /*
     * 1: the loss couples the samples (contrastive), so that cutting the batch would change the
     * loss. The trainer refuses to cut then.
     */
    int needs_whole_batch;
    size_t parameter_bytes;
    size_t gradient_bytes;
    size_t optimizer_bytes;
    size_t buffer_bytes;
    size_t metric_count;             /* at most MT_METRICS_MAX */
    const char *const *metric_names; /* metric_count names; borrowed for the backend's life */
    unsigned rungs;                  /* MT_RUNG_BITs that set_rung knows */
    int keeps_chunks;                /* 1: mark and rewind exist. The trainer sets it itself */
    /*
     * metric_count numbers: what each metric's sum is divided by for a report. Accepted are
     * MT_OVER_SAMPLES, MT_OVER_UNITS, and the index of another metric, whose sum is the divisor
     * then (IoU: intersection over union). NULL: samples. Borrowed for the backend's life.
     */
    const int *metric_over;
    int holds_gradients; /* 1: hold_gradients exists. The trainer sets it itself */
    /*
     * The number of samples from which on a chunk takes other kernels. Smaller chunks say nothing
     * of the memory of those kernels. So a recording below it and one above it are never paired. 0:
     * none is known.
     */
    size_t kernels_change;
    /*
     * MT_RUNG_BITs. record tells of allocations only while one of these rungs is on. MPS is an
     * example: the device tells nothing, but the CPU does (MT_RUNG_CPU). 0: record always tells.
     */
    unsigned record_rungs;
    /*
     * 1: apply has a loss scaler. When a gradient is not finite, apply skips the update and takes a
     * smaller scale. That is normal, so nothing is logged. 0: mt_log warns of an update that apply
     * skips.
     */
    int scales_loss;
    /* 1: record is missing, so chunks never run to be recorded. The trainer sets it itself. */
    int cannot_record;
    /* 1: prepare exists, and wants all chunks of a step. The trainer sets it itself. */
    int is_told;
    /*
     * What a run learns of chunks serves another run that has the same model, threads, device and
     * version (mt_policy_save). model is a number. It must be equal for runs whose code, layers,
     * dtypes and optimiser are equal. 0 means not known, for model and for threads.
     */
    uint64_t model;
    int threads;
} mt_backend_info;

/*
 * The shape of a batch's samples. Samples with equal ids have one shape: a picture size, or a
 * sequence length. Each shape has its own recordings and times.
 *
 * Shapes of one family differ in their length alone. What is known of some lengths serves the
 * others.
 */
typedef struct mt_shape {
    uint64_t id;     /* equal for samples of the same shape. How it is made does not matter */
    uint64_t family; /* equal for shapes that differ in length alone. Not read if length is 0 */
    size_t length;   /* elements of a sample: tokens or pixels. 0: not known */
} mt_shape;

/* What one chunk gave. The trainer zeroes the struct and sets size before the call. */
typedef struct mt_chunk_result {
    size_t size;     /* sizeof(mt_chunk_result) */
    double loss_sum; /* sum of the loss over units, without the weight. Not read if units is 0 */
    double units;    /* number of what the loss was averaged over: samples, tokens, pixels */
    /*
     * Sums over the chunk, in the order of metric_names. If units is 0, a sum that is not finite
     * counts as 0.
     */
    double metric_sums[MT_METRICS_MAX];
    double seconds; /* time of the chunk, with the wait for the device. 0: not measured */
    /* Highest allocated bytes during the call, earlier memory included. 0: not known. */
    size_t peak_bytes;
    /*
     * Evidence of an OOM: the requests that the allocator refused in this call. Fill it in when you
     * return MT_EDEVMEM; beside MT_OK it does no harm. By the evidence the policy compares an OOM
     * with the budget, and corrects the model by bytes. Without evidence (0) it assumes that the
     * size of the chunk did not fit.
     */
    uint64_t refused;     /* requests refused on this thread during this call */
    size_t refused_bytes; /* of the last refused request; 0: of other memory than the device's */
    size_t refused_in_use_bytes; /* allocated bytes when it was refused */
    /*
     * 1: the chunk has normalised over its samples in training mode. describe may not have known
     * that. After the first such chunk a chunk has at least 2 samples, and recordings are rolled
     * back, as with mt_backend_info.normalises_over_batch. If the step was cut in another way, it
     * is rolled back and planned anew. Read after accumulate alone.
     */
    int normalises_over_batch;
    /*
     * The trainer sets it to 1 before accumulate and evaluate if two things hold: the backend has
     * collect, and the figures of this chunk (loss, metrics, time) are not needed at once. A backend
     * that leaves it at 1 has not waited for the device. Then collect gives the figures. A backend
     * that has waited sets it to 0 and gives the figures here. Before prepare it is 1 if it may be
     * so for all chunks.
     */
    int deferred;
} mt_chunk_result;

#define MT_CHUNK_RESULT_INIT                                                                       \
    { sizeof(mt_chunk_result), 0.0, 0.0, {0.0}, 0.0, 0, 0, 0, 0, 0, 0 }

/*
 * What apply did. Before the call the trainer sets size, sets grad_norm to NaN, and zeroes the
 * rest.
 */
typedef struct mt_apply_result {
    size_t size;      /* sizeof(mt_apply_result) */
    double seconds;   /* 0: not measured */
    double grad_norm; /* L2 norm of the whole gradient before clipping. NaN: not computed */
    /* 1: nothing was changed: the gradient was not finite, or no chunk had a unit. */
    int skipped;
    double lr; /* learning rate of the update, before factors of groups. 0: not told */
    /* Evidence of an OOM, as in mt_chunk_result. 0: none */
    uint64_t refused;
    size_t refused_bytes, refused_in_use_bytes;
} mt_apply_result;

#define MT_APPLY_RESULT_INIT                                                                       \
    { sizeof(mt_apply_result), 0.0, 0.0, 0, 0.0, 0, 0, 0 }

/* What empty_cache did. The trainer zeroes the struct and sets size before the call. */
typedef struct mt_clear_result {
    size_t size;           /* sizeof(mt_clear_result) */
    double seconds;        /* time that it took. 0: not measured */
    size_t released_bytes; /* given back to the system. 0: not known */
} mt_clear_result;

#define MT_CLEAR_RESULT_INIT                                                                       \
    { sizeof(mt_clear_result), 0.0, 0 }

/*
 * Receives every allocation and release on the recording thread. bytes > 0: the block at address
 * was allocated. bytes < 0: it was released. The address is compared, never read.
 *
 * The recorder ignores releases of blocks that are older than the recording, so report these too.
 * event must not allocate on the device, and must not fail. Report the bytes by which
 * allocated_bytes of memory() changes. If memory() rounds in another way, predictions are off by as
 * much.
 *
 * bytes == 0: the block is a finished gradient, which is handed over to its parameter now. In a
 * marked chunk the block stays until the end of the chunk. Otherwise it is added to the existing
 * gradient and dies. If the recorder is told of gradients, it knows both peaks from one recording.
 *
 * A backend whose chunks always have gradients of their own reports each one where it adds it up,
 * before it releases it. If a backend with mark does not report gradients, gradient_bytes is added
 * to the prediction. That can only be too much.
 */
typedef struct mt_event_sink {
    void *user;
    void (*event)(void *user, void *address, int64_t bytes);
} mt_event_sink;

/* The functions of a backend. Those that are not optional have to be there. */
typedef struct mt_backend {
    size_t size; /* sizeof(mt_backend) */
    void *self;  /* first argument of every function */

    /*
     * Optional. Describes the model and the device. Called by mt_trainer_new. A backend with shape
     * is asked again before a step or evaluation whose shape differs from the one before. Then only
     * gradient_bytes, optimizer_bytes and buffer_bytes are read. After a step or evaluation that
     * did not fit, optimizer_bytes is asked for, and a failure is ignored.
     */
    mt_status (*describe)(void *self, mt_backend_info *out);

    /*
     * Reports the memory of the device as it is now. *out is zero but for its size. Called by
     * mt_trainer_new, several times a step, before each chunk and after each OOM. So it should take
     * microseconds. If it fails before begin, the failure reaches the caller as it is.
     */
    mt_status (*memory)(void *self, mt_memory *out);

    /* Optional. Restarts peak_bytes of memory() from what is allocated now. */
    mt_status (*reset_peak)(void *self);

    /*
     * Optional. Gives cached memory back to the system. It is legal after a failed chunk. If it
     * returns MT_EDEVMEM, the step does not fail: it goes on with the cache as it is.
     */
    mt_status (*empty_cache)(void *self, mt_clear_result *out);

    /*
     * Starts a step. Remembers what a step can change: random number generators and module buffers.
     * Parameters and optimiser state need not be remembered, because only apply changes them.
     * Gradients are zero afterwards.
     *
     * The batch stays borrowed until apply or rollback. Its parts may be asked for more than once:
     * a recording that is rolled back runs the first samples twice.
     *
     * It may return MT_EDEVMEM. If it fails, nothing has begun, and neither rollback nor apply
     * follows.
     *
     * Take memory that lives on (gradients, optimiser state) here or before. If accumulate took it,
     * it would be recorded as memory of the chunk.
     */
    mt_status (*begin)(void *self, const mt_batch *batch);

    /*
     * Runs samples [first, first + count) of the batch forward and backward, and adds to the
     * gradients. The loss is a mean over the chunk's units. It is multiplied by weight before the
     * backward pass. weight is units(chunk) / units(batch), so the gradients of the chunks add up
     * to that of the batch.
     *
     * Returns MT_EDEVMEM when memory ran out, std::bad_alloc and similar exceptions included. The
     * chunk's memory is released before it returns. Gradients may hold garbage then. The trainer
     * ends a recording, then calls rollback, or rewind for a marked chunk. Nothing else is legal.
     * Of out it reads only the evidence, seconds and peak_bytes.
     */
    mt_status (*accumulate)(void *self, size_t first, size_t count, double weight,
                            mt_chunk_result *out);

    /*
     * Restores what begin saw, and sets the gradients to zero. Allocates nothing. If it fails, the
     * state is lost: the trainer refuses every later call with MT_ESTATE.
     */
    mt_status (*rollback)(void *self);

    /*
     * Ends a step: unscales and clips the gradient, updates the parameters. Either it allocates
     * nothing, or it fails before anything has changed. It returns MT_EDEVMEM then, and rollback
     * follows.
     */
    mt_status (*apply)(void *self, mt_apply_result *out);

    /*
     * Optional. Runs samples forward only, in evaluation mode, outside a step. It changes no state.
     * Evidence and the release of memory are as in accumulate. No rollback follows a failure.
     */
    mt_status (*evaluate)(void *self, const mt_batch *batch, size_t first, size_t count,
                          mt_chunk_result *out);

    /*
     * Optional. Starts to report to sink every allocation and release that this thread makes on the
     * device. *sink is copied. sink NULL stops that, and must not fail.
     *
     * Called right before accumulate or evaluate of a single chunk, and right after it, also when
     * the chunk failed. Two chunks are recorded at the start, and later chunks of sizes that the
     * recordings do not cover. Nothing is recorded if mt_policy_options.micro_batch fixes the size,
     * or while no rung of mt_backend_info.record_rungs is on.
     *
     * Without record, chunks grow step by step, by measured peaks. A record that fails ends the
     * step. So leave it NULL if recording is not possible.
     */
    mt_status (*record)(void *self, const mt_event_sink *sink);

    /*
     * Optional. Gives the number of units that the loss of samples [first, first + count) of the
     * batch is averaged over. Without it, units are samples. Called before begin for the whole
     * batch, and before each chunk. So it must be cheap.
     *
     * 0 is legal. Such a chunk gets weight 0, must add nothing to the gradients (beware of 0 / 0),
     * and reports loss_sum 0 and units 0.
     *
     * The units of a step's chunks must add up to the units of all its samples: to a millionth if
     * both are whole numbers, otherwise to a ten-thousandth. If not, the step is rolled back and
     * returns MT_EINVAL.
     */
    mt_status (*units)(void *self, const mt_batch *batch, size_t first, size_t count, double *out);

    /*
     * Optional. Writes a hash of the state for the trace, as 64 hex digits and a zero. The hash is
     * SHA-256 over name, dtype, shape and bytes of every tensor of the state, in the order of
     * names. The state is parameters, buffers, optimiser state and random number generators. Any
     * other 64 digits that identify the state are fine too. They are compared, not verified.
     */
    mt_status (*state_sha256)(void *self, char out[65]);

    /*
     * Optional. If one of the two is missing, the other is not called.
     *
     * mark is called before a chunk whose failure must not cost the chunks before it. It remembers
     * what accumulate can change beside the gradients. The next accumulate then adds its gradients
     * only after its backward pass has succeeded. Until then they are a second set, of up to
     * gradient_bytes.
     *
     * rewind restores what mark saw, with the gradients of finished chunks. It allocates nothing.
     * It is legal until that accumulate has succeeded, and so is rollback.
     *
     * If mark fails with MT_EDEVMEM or MT_ENOTSUP, it has not happened, and the chunk runs without
     * it. If rewind fails, the state is lost, as after a failed rollback.
     */
    mt_status (*mark)(void *self);
    mt_status (*rewind)(void *self);

    /*
     * Optional. Turns a saver on or off, outside a step. It is called only for rungs of
     * mt_backend_info.rungs. MT_RUNG_CPU moves the whole state, with the random number generators.
     * From then on memory() reports the new device. If it fails, nothing has changed. After
     * MT_ENOTSUP or MT_EDEVMEM the policy does without the rung.
     */
    mt_status (*set_rung)(void *self, mt_rung rung, int on);

    /*
     * Optional. Sets the factor of the learning rate from now on, for a batch that was made
     * smaller. It is 1 at the start.
     */
    mt_status (*set_rate)(void *self, double factor);

    /*
     * Optional. Says what shape the samples of a batch have. *out is all zero before. Without it,
     * all batches are taken to have one shape. If it fails, the step ends before it has begun.
     */
    mt_status (*shape)(void *self, const mt_batch *batch, mt_shape *out);

    /*
     * Optional. It is used only if mark is there too. Called outside a step, and by mt_trainer_new
     * with on 1.
     *
     * on 0 gives back the memory in which the gradients of chunks are added up (gradient_bytes). It
     * must not fail. From then on each step is one marked chunk of all its samples. The gradients
     * of that chunk stay where they were made until apply or rollback.
     *
     * on 1 takes the memory again, unless it is there. If that fails (MT_EDEVMEM), nothing has
     * changed.
     */
    mt_status (*hold_gradients)(void *self, int on);

    /*
     * Optional. For a gradient that has to see all samples before the first of them is trained.
     * After begin it gets the sizes of the chunks that accumulate will run, from sample 0 on.
     * accumulate is then called for exactly these chunks, in this order. They are the whole step.
     * If they cover less than the batch, the step has only those samples.
     *
     * For recordings that are rolled back, it is called once for each chunk, each time from sample
     * 0 on. prepare then forgets what it prepared before.
     *
     * After a failure rollback follows. MT_EDEVMEM, with the evidence in out, is treated as an OOM
     * of the largest chunk. Of out only the evidence and peak_bytes are read. So add the time of
     * prepare to the seconds of the chunks. If all chunks may be deferred, the trainer sets
     * out->deferred to 1: prepare need not wait for the device either. Memory that is taken here
     * lives until apply or rollback.
     *
     * When such a step runs out of memory, all of it is rolled back and planned anew: mark, rewind
     * and hold_gradients off are not called for such a backend.
     */
    mt_status (*prepare)(void *self, const size_t *chunks, size_t count, mt_chunk_result *out);

    /*
     * Optional. For processes that train as one. Each process takes steps at the same time, on
     * samples of its own, and apply adds up the gradients of all. agree adds each of count values
     * over all processes, in place. All processes have the same sums afterwards. It returns when
     * all have called it. The n-th call of one process meets the n-th call of each other.
     *
     * A step calls it when it begins, to add up the units of all batches. weight is units(chunk)
     * divided by that sum, so that the gradients of all processes add up to the gradient of all
     * their samples. The step calls it once more before apply, when all chunks are done, or when
     * the step is given up. So apply follows on all processes or on none.
     *
     * An evaluation calls it once, at its end. A call of the trainer that is refused (MT_EINVAL,
     * MT_ESTATE) calls it once too. So no process waits for one that has failed. All processes must
     * make the same calls of the trainer.
     *
     * If it fails, with whatever status, the step is rolled back. It is not retried, since the
     * others may have gone on. The same holds when apply fails. mt_trainer_new refuses
     * MT_RUNG_SMALLER_BATCH for such a backend.
     */
    mt_status (*agree)(void *self, double *values, size_t count);

    /*
     * Optional. Says whether all numbers of the parameters that train are finite: *out is 1 or 0.
     * Called outside a step, after a step whose loss was not finite and that has made no update. So
     * it may take its time. If it fails, nothing is known of the parameters.
     */
    mt_status (*look_at_parameters)(void *self, int *out);

    /*
     * Optional. For a device that computes while the host goes on. Gives loss, units, metrics and
     * time of the oldest deferred chunk (mt_chunk_result.deferred) that was not collected yet. It is
     * called once for each, before apply or at the end of an evaluation. The first call waits for
     * the device. Chunks of known size are deferred. So the trainer waits once a step or evaluation,
     * and the host prepares a chunk while the device computes the one before.
     *
     * If it fails, the step fails. MT_EDEVMEM is treated as an OOM of the largest deferred chunk. A
     * rollback forgets the deferred chunks. A rewind does not. An evaluate or a collect that fails
     * outside of a step forgets them, and takes back what they wrote: they are run again.
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
