/*
 * rehearsal.c - chunks of long samples, told from chunks of short ones.
 */
#include <memtrain/policy.h>
#include <memtrain/rehearsal.h>

#include "handle.h"
#include "internal.h"
#include "recording.h"

#include <math.h>
#include <string.h>

enum { LENGTHS = MT_REHEARSAL_LENGTHS };

struct mt_rehearsal {
    mt_rehearsal_options options;
    mt_backend inner;
    mt_recording *of[LENGTHS];
    size_t samples;     /* of the batch */
    int is_marked;      /* the next chunk has gradients of its own */
    mt_event_sink sink; /* event NULL: nobody listens */
    size_t peak; /* of the chunks since reset_peak, above what the inner backend has in use */
};

/* ---- one chunk at a short length --------------------------------------------------------------- */

static void note(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

/* Inside of a step that has begun. */
static mt_status record_chunk(mt_rehearsal *r, mt_recording *to, size_t count, double weight,
                              mt_chunk_result *out) {
    const mt_backend *b = &r->inner;
    const mt_event_sink sink = {to, note};
    mt_status status = r->is_marked ? b->mark(b->self) : MT_OK;
    if (status == MT_OK) status = mt_recording_start(to, count);
    if (status == MT_OK) status = b->record(b->self, &sink);
    if (status != MT_OK) return status;
    status = b->accumulate(b->self, 0, count, weight, out);
    mt_status stopped = b->record(b->self, NULL);
    return status == MT_OK ? stopped : status;
}

static mt_status run_short(mt_rehearsal *r, size_t which, size_t count, double weight,
                           mt_chunk_result *out) {
    const mt_backend *b = &r->inner;
    mt_batch batch = MT_BATCH_INIT;
    mt_status status = r->options.batch(r->options.user, r->options.short_lengths[which], &batch);
    if (status == MT_OK && batch.count < count)
        status = mt_set_error(MT_EINVAL,
                              "mt_rehearsal: a batch of length %zu has %zu samples; accepted: %zu",
                              r->options.short_lengths[which], batch.count, r->samples);
    if (status == MT_OK) status = b->begin(b->self, &batch);
    if (status != MT_OK) return status;
    status = record_chunk(r, r->of[which], count, weight, out);
    mt_status back = b->rollback(b->self);
    if (back == MT_OK && status == MT_OK && r->of[which]->incomplete)
        status = mt_set_error(MT_ENOMEM, "mt_rehearsal: out of host memory");
    return back == MT_OK ? status : back;
}

/* ---- the same chunk at the full length --------------------------------------------------------- */

/* Whether two chunks do the same, block by block. */
static int are_alike(const mt_recording *a, const mt_recording *b) {
    if (a->count != b->count) return 0;
    for (size_t i = 0; i < a->count; i++)
        if (a->events[i].what != b->events[i].what || a->events[i].partner != b->events[i].partner)
            return 0;
    return 1;
}

static mt_status check_alike(const mt_rehearsal *r) {
    for (size_t i = 1; i < LENGTHS; i++)
        if (!are_alike(r->of[0], r->of[i]))
            return mt_set_error(
                MT_ENOTSUP,
                "mt_rehearsal: chunks of length %zu take %zu blocks and of length %zu take "
                "%zu, not all alike: the network does other things at other lengths",
                r->options.short_lengths[0], r->of[0]->allocations, r->options.short_lengths[i],
                r->of[i]->allocations);
    return MT_OK;
}

/*
 * The size of a block at the full length, rounded up to a whole byte: Newton's polynomial a + b (q - q0) + c (q - q0) (q - q1).
 * Scratch memory of a kernel may be no polynomial. Far away, a square would make much of that. So a block grows with the square
 * only where most of it does so already, as where each position attends to each other; else it lies on a line.
 */
static size_t size_of(const mt_rehearsal *r, size_t event) {
    const size_t *at = r->options.short_lengths;
    double q0 = (double)at[0], q1 = (double)at[1], q2 = (double)at[2],
           q = (double)r->options.length;
    double v0 = (double)r->of[0]->events[event].bytes, v1 = (double)r->of[1]->events[event].bytes;
    double v2 = (double)r->of[2]->events[event].bytes;
    double b = (v1 - v0) / (q1 - q0), c = ((v2 - v1) / (q2 - q1) - b) / (q2 - q0);
    double linear = b - c * (q0 + q1); /* coefficient of q, as that of q * q is c */
    int is_square = 2 * c * q2 * q2 > v2 && linear > -1e-6 * v2;
    double size =
        is_square ? v0 + (q - q0) * (b + c * (q - q1)) : v2 + (v2 - v0) / (q2 - q0) * (q - q2);
    size = ceil(size - 1e-3); /* roundings of these numbers are no byte */
    return size < 1 ? 1 : (size_t)size;
}

/* A block has an address, which nobody reads. Real ones are multiples of 64. */
static void *address_of(size_t event) {
    return (void *)(uintptr_t)(64 * (event + 1));
}

static void tell(const mt_rehearsal *r, size_t event, int64_t bytes) {
    if (r->sink.event) r->sink.event(r->sink.user, address_of(event), bytes);
}

static mt_status refuse(size_t bytes, size_t in_use, size_t budget, mt_chunk_result *out) {
    out->refused = 1;
    out->refused_bytes = bytes;
    out->refused_in_use_bytes = in_use;
    return mt_set_error(MT_EDEVMEM,
                        "rehearsed: %zu bytes asked for, with %zu in use and a budget of %zu",
                        bytes, in_use, budget);
}

/* Goes through the events, as the real chunk would. in_use: before it. */
static mt_status play(mt_rehearsal *r, size_t in_use, size_t budget, mt_chunk_result *out) {
    const mt_recording *like = r->of[0];
    size_t live = 0, peak = 0;
    mt_status status = MT_OK;
    for (size_t i = 0; i < like->count && status == MT_OK; i++) {
        const mt__event *event = &like->events[i];
        if (event->what == MT__HANDED_OVER) {
            tell(r, event->partner, 0);
        } else if (event->what == MT__RELEASED) {
            size_t bytes = size_of(r, event->partner);
            live -= bytes;
            tell(r, event->partner, -(int64_t)bytes);
        } else {
            size_t bytes = size_of(r, i);
            if (budget && mt__add(in_use + live, bytes) > budget) {
                status = refuse(bytes, in_use + live, budget, out);
            } else {
                live += bytes;
                peak = mt__max(peak, live);
                tell(r, i, (int64_t)bytes);
            }
        }
    }
    r->peak = mt__max(r->peak, peak);
    out->peak_bytes = in_use + peak;
    return status;
}

/* ---- the backend ------------------------------------------------------------------------------- */

static mt_status memory(void *self, mt_memory *out) {
    mt_rehearsal *r = self;
    mt_status status = r->inner.memory(r->inner.self, out);
    out->peak_bytes = out->allocated_bytes + r->peak;
    return status;
}

static mt_status describe(void *self, mt_backend_info *out) {
    mt_rehearsal *r = self;
    return r->inner.describe ? r->inner.describe(r->inner.self, out) : MT_OK;
}

static mt_status reset_peak(void *self) {
    ((mt_rehearsal *)self)->peak = 0;
    return MT_OK;
}

static mt_status begin(void *self, const mt_batch *batch) {
    mt_rehearsal *r = self;
    r->samples = batch->count;
    r->is_marked = 0;
    return MT_OK;
}

static mt_status accumulate(void *self, size_t first, size_t count, double weight,
                            mt_chunk_result *out) {
    mt_rehearsal *r = self;
    mt_memory now = MT_MEMORY_INIT;
    mt_status status = MT_OK;
    (void)first; /* samples are alike */
    for (size_t i = 0; i < LENGTHS && status == MT_OK; i++)
        status = run_short(r, i, count, weight, out);
    r->is_marked = 0;
    if (status == MT_OK) status = check_alike(r);
    if (status == MT_OK) status = r->inner.memory(r->inner.self, &now);
    out->seconds = 0;
    return status == MT_OK ? play(r, now.allocated_bytes, now.budget_bytes, out) : status;
}

static mt_status rollback(void *self) {
    ((mt_rehearsal *)self)->is_marked = 0;
    return MT_OK;
}

static mt_status apply(void *self, mt_apply_result *out) {
    (void)self;
    (void)out;
    return mt_set_error(MT_ENOTSUP, "mt_rehearsal: a rehearsal updates no parameters");
}

static mt_status record(void *self, const mt_event_sink *sink) {
    ((mt_rehearsal *)self)->sink = sink ? *sink : (mt_event_sink){NULL, NULL};
    return MT_OK;
}

static mt_status mark(void *self) {
    ((mt_rehearsal *)self)->is_marked = 1;
    return MT_OK;
}

static mt_status set_rung(void *self, mt_rung rung, int on) {
    mt_rehearsal *r = self;
    return r->inner.set_rung(r->inner.self, rung, on);
}

static mt_status hold_gradients(void *self, int on) {
    mt_rehearsal *r = self;
    return r->inner.hold_gradients(r->inner.self, on);
}

mt_status mt_rehearsal_backend(mt_rehearsal *rehearsal, mt_backend *out) {
    MT__CHECK_HANDLE(rehearsal, MT__KIND_REHEARSAL, "mt_rehearsal_backend");
    MT__CHECK(out, "mt_rehearsal_backend: out is NULL");
    const mt_backend *b = &rehearsal->inner;
    *out = (mt_backend)MT_BACKEND_INIT;
    out->self = rehearsal;
    out->describe = describe;
    out->memory = memory;
    out->reset_peak = reset_peak;
    out->begin = begin;
    out->accumulate = accumulate;
    out->rollback = rollback;
    out->apply = apply;
    out->record = record;
    if (b->mark && b->rewind) out->mark = mark, out->rewind = rollback;
    if (b->set_rung) out->set_rung = set_rung;
    if (b->hold_gradients) out->hold_gradients = hold_gradients;
    return MT_OK;
}

/* ---- making one -------------------------------------------------------------------------------- */

static mt_status check_options(const mt_rehearsal_options *o) {
    MT__CHECK(o->batch, "mt_rehearsal_new: options->batch is NULL");
    MT__CHECK(o->backend, "mt_rehearsal_new: options->backend is NULL");
    for (int i = 0; i < LENGTHS; i++)
        MT__CHECK(o->short_lengths[i] > (i ? o->short_lengths[i - 1] : 0),
                  "mt_rehearsal_new: options->short_lengths[%d] is %zu; accepted: above %zu", i,
                  o->short_lengths[i], i ? o->short_lengths[i - 1] : 0);
    MT__CHECK(
        o->length >= o->short_lengths[LENGTHS - 1],
        "mt_rehearsal_new: options->length is %zu; accepted: at least the longest short one, %zu",
        o->length, o->short_lengths[LENGTHS - 1]);
    if (!o->backend->record)
        return mt_set_error(MT_ENOTSUP,
                            "mt_rehearsal_new: options->backend has no record: it does not "
                            "tell of its allocations");
    if (o->backend->prepare)
        return mt_set_error(MT_ENOTSUP,
                            "mt_rehearsal_new: options->backend has prepare: its chunks "
                            "depend on the whole batch");
    return MT_OK;
}

mt_status mt_rehearsal_new(const mt_rehearsal_options *options, mt_rehearsal **out) {
    MT__CHECK(out, "mt_rehearsal_new: out is NULL");
    *out = NULL;
    MT__CHECK(options, "mt_rehearsal_new: options is NULL");
    MT__CHECK(options->size >= sizeof *options,
              "mt_rehearsal_new: options->size is %zu; accepted: %zu", options->size,
              sizeof *options);
    mt_status status = check_options(options);
    if (status != MT_OK) return status;
    mt_rehearsal *r = mt__alloc(1, sizeof *r);
    if (!r || !mt__handle_add(r, MT__KIND_REHEARSAL)) {
        mt__free(r);
        return mt_set_error(MT_ENOMEM, "mt_rehearsal_new: out of host memory");
    }
    r->options = *options;
    memcpy(&r->inner, options->backend, mt__min(options->backend->size, sizeof r->inner));
    for (int i = 0; i < LENGTHS && status == MT_OK; i++) status = mt_recording_new(&r->of[i]);
    if (status == MT_OK)
        *out = r;
    else
        mt_rehearsal_free(r);
    return status;
}

void mt_rehearsal_free(mt_rehearsal *r) {
    if (!mt__handle_remove(r, MT__KIND_REHEARSAL)) return;
    for (int i = 0; i < LENGTHS; i++) mt_recording_free(r->of[i]);
    mt__free(r);
}
