/*
 * batches.c - renders samples into the buffers of batches; see batches.h.
 */
#include "batches.h"

#include <memtrain/torch.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Which batch. */
typedef struct place {
    ex_split split;
    uint64_t epoch;
    size_t index;
} place;

/* The buffer seen as tensors of so many samples. A run has three sizes: the full batch, and what is
 * left at the end of either split. */
typedef struct view {
    size_t samples;
    mt_tensor *tensors[EX_TENSORS];
    mt_torch_batch torch;
} view;

enum { VIEWS = 3 };

typedef enum state {
    FREE,
    WANTED, /* to be rendered by whoever comes first */
    BUSY,   /* being rendered: nobody else looks at it */
    READY
} state;

typedef struct slot {
    state state;
    place place;
    uint64_t order; /* smaller ones are wanted first */
    ex_status status;
    ex_error error;
    int made;                  /* by source.make, since it was rendered */
    void *buffers[EX_TENSORS]; /* a batch of each tensor */
    view views[VIEWS];
} slot;

struct ex_batches {
    ex_source source;
    ex_batches_options options;
    slot **slots; /* options.prefetch + 1 */
    size_t count;
    slot *current;            /* the caller's, until the next call */
    void *floats[EX_TENSORS]; /* of the current batch, where pictures wait as pixels */
    const slot *shown;        /* the one whose pictures are in floats */
    uint64_t order;
    uint64_t epoch; /* of training, seen last */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t threads[EX_WORKERS_MAX];
    size_t running;
    int stop;
    size_t held; /* bytes that count against the budget */
};

/* ---- rendering --------------------------------------------------------------------------------- */

static size_t samples_of(const ex_batches *b, place at) {
    size_t total = b->source.count(b->source.self, at.split), first = at.index * b->options.batch;
    return total - first < b->options.batch ? total - first : b->options.batch;
}

/* By any thread, for a slot that is BUSY. */
static void render(const ex_batches *b, slot *s) {
    s->error.text[0] = '\0';
    s->made = 0;
    s->status = b->source.fill(b->source.self, s->place.split, s->place.epoch,
                               s->place.index * b->options.batch, samples_of(b, s->place),
                               s->buffers, &s->error);
}

/* Called and left with the mutex locked. */
static void render_unlocked(ex_batches *b, slot *s) {
    s->state = BUSY;
    pthread_mutex_unlock(&b->mutex);
    render(b, s);
    pthread_mutex_lock(&b->mutex);
    s->state = READY;
    pthread_cond_broadcast(&b->changed);
}

static slot *first_wanted(const ex_batches *b) {
    slot *first = NULL;
    for (size_t i = 0; i < b->count; i++) {
        slot *s = b->slots[i];
        if (s->state == WANTED && (!first || s->order < first->order)) first = s;
    }
    return first;
}

static void *work(void *user) {
    ex_batches *b = user;
    pthread_mutex_lock(&b->mutex);
    while (!b->stop) {
        slot *s = first_wanted(b);
        if (s)
            render_unlocked(b, s);
        else
            pthread_cond_wait(&b->changed, &b->mutex);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

/* ---- life -------------------------------------------------------------------------------------- */

static size_t slot_bytes(const ex_batches *b) {
    size_t bytes = 0;
    for (size_t i = 0; i < b->source.tensor_count; i++)
        bytes += ex_tensor_bytes(&b->source.tensors[i]);
    return b->options.batch * bytes;
}

/* Empty again: whoever needs a view of so many samples makes it anew. */
static void clear_view(view *v) {
    for (int t = 0; t < EX_TENSORS; t++) mt_tensor_free(v->tensors[t]);
    memset(v, 0, sizeof *v);
}

static void free_slot(slot *s) {
    for (int i = 0; s && i < VIEWS; i++) clear_view(&s->views[i]);
    for (int t = 0; s && t < EX_TENSORS; t++) free(s->buffers[t]);
    free(s);
}

/* Its pages are there from the beginning, so that whoever counts what the process holds counts them. */
static void *zeros(size_t count, size_t bytes) {
    void *buffer = calloc(count, bytes);
    if (buffer) memset(buffer, 0, count * bytes);
    return buffer;
}

static int make_floats(ex_batches *b) {
    int made = 1;
    for (size_t i = 0; made && i < b->source.tensor_count; i++) {
        const ex_tensor *tensor = &b->source.tensors[i], seen = ex_tensor_seen(tensor);
        if (seen.dtype == tensor->dtype) continue;
        b->floats[i] = zeros(b->options.batch, ex_tensor_bytes(&seen));
        made = b->floats[i] != NULL;
    }
    return made;
}

static slot *make_slot(const ex_batches *b) {
    slot *s = calloc(1, sizeof *s);
    int made = s != NULL;
    for (size_t i = 0; made && i < b->source.tensor_count; i++) {
        s->buffers[i] = zeros(b->options.batch, ex_tensor_bytes(&b->source.tensors[i]));
        made = s->buffers[i] != NULL;
    }
    if (made) return s;
    free_slot(s);
    return NULL;
}

/* Signals are the main thread's. */
static void start_threads(ex_batches *b) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (b->running < b->options.workers &&
           pthread_create(&b->threads[b->running], NULL, work, b) == 0)
        b->running++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (b->running < b->options.workers)
        mt_log(MT_LOG_WARNING, "the system gives no more than %zu of %zu threads to render batches",
               b->running, b->options.workers);
}

ex_batches_options ex_batches_options_of(const ex_flags *flags) {
    return (ex_batches_options){.batch = (size_t)flags->batch,
                                .workers = (size_t)flags->workers,
                                .prefetch = (size_t)flags->prefetch};
}

/* Of all that there are: the library is told one figure for the process. */
static size_t held_by_all;
static pthread_mutex_t holding = PTHREAD_MUTEX_INITIALIZER;

static mt_status hold_instead(ex_batches *b, size_t bytes) {
    pthread_mutex_lock(&holding);
    size_t all = held_by_all - b->held + bytes;
    mt_status status = mt_device_hold("cpu", all);
    if (status == MT_OK) held_by_all = all;
    if (status == MT_OK) b->held = bytes;
    pthread_mutex_unlock(&holding);
    return status;
}

static void hold_ahead(ex_batches *b) {
    size_t bytes = ex_batches_ahead_bytes(b);
    if (bytes && hold_instead(b, bytes) != MT_OK)
        mt_log(MT_LOG_WARNING, "batches that are rendered ahead are not counted: %s",
               mt_last_error());
}

static void release_ahead(ex_batches *b) {
    if (b->held) (void)!hold_instead(b, 0);
}

mt_status ex_batches_new(const ex_source *source, const ex_batches_options *options,
                         ex_batches **out) {
    *out = NULL;
    ex_batches *b = calloc(1, sizeof *b);
    if (!b) return mt_set_error(MT_ENOMEM, "out of host memory");
    b->source = *source;
    b->options = *options;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->changed, NULL);
    size_t wanted = options->workers ? options->prefetch + 1 : 1;
    b->slots = calloc(wanted, sizeof *b->slots);
    int made = b->slots && make_floats(b);
    while (made && b->count < wanted && (b->slots[b->count] = make_slot(b))) b->count++;
    if (b->count < wanted) {
        ex_batches_free(b);
        return mt_set_error(MT_ENOMEM, "out of host memory for %zu batches of %zu %s", wanted,
                            options->batch, source->unit);
    }
    hold_ahead(b);
    start_threads(b);
    *out = b;
    return MT_OK;
}

/* What is being rendered is waited for, and counts no longer. */
static void stop_threads(ex_batches *b) {
    pthread_mutex_lock(&b->mutex);
    b->stop = 1;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->mutex);
    for (size_t i = 0; i < b->running; i++) pthread_join(b->threads[i], NULL);
    b->running = 0;
    release_ahead(b);
}

void ex_batches_stop_ahead(ex_batches *b) {
    if (b->count == 1) return;
    stop_threads(b);
    slot *kept = b->current ? b->current : b->slots[0];
    for (size_t i = 0; i < b->count; i++)
        if (b->slots[i] != kept) free_slot(b->slots[i]);
    b->slots[0] = kept;
    b->count = 1;
    if (b->shown != kept) b->shown = NULL;
}

void ex_batches_free(ex_batches *b) {
    if (!b) return;
    stop_threads(b);
    for (size_t i = 0; i < b->count; i++) free_slot(b->slots[i]);
    for (size_t i = 0; i < EX_TENSORS; i++) free(b->floats[i]);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
    free(b->slots);
    free(b);
}

void ex_batches_make_anew(ex_batches *b) {
    pthread_mutex_lock(&b->mutex); /* what is being rendered is not made */
    for (size_t i = 0; i < b->count; i++)
        if (b->slots[i]->state == READY) b->slots[i]->made = 0;
    pthread_mutex_unlock(&b->mutex);
}

size_t ex_batches_count(const ex_batches *b, ex_split split) {
    return (b->source.count(b->source.self, split) + b->options.batch - 1) / b->options.batch;
}

size_t ex_batches_ahead_bytes(const ex_batches *b) {
    return b->count ? (b->count - 1) * slot_bytes(b) : 0;
}

/* ---- ahead ------------------------------------------------------------------------------------- */

static int is_same(place a, place b) {
    return a.split == b.split && a.epoch == b.epoch && a.index == b.index;
}

static slot *find(const ex_batches *b, place at) {
    for (size_t i = 0; i < b->count; i++) {
        slot *s = b->slots[i];
        if (s->state != FREE && is_same(s->place, at)) return s;
    }
    return NULL;
}

/* The batch that is likely to be asked for after this one. */
static place after(const ex_batches *b, place at) {
    if (at.index + 1 < ex_batches_count(b, at.split))
        return (place){at.split, at.epoch, at.index + 1};
    if (at.split == EX_TRAINING && ex_batches_count(b, EX_VALIDATION))
        return (place){EX_VALIDATION, 0, 0};
    return (place){EX_TRAINING, b->epoch + 1, 0};
}

/* A slot that nobody needs: free, or of a batch that is not among those to come. */
static slot *spare(const ex_batches *b, uint64_t needed_since) {
    slot *oldest = NULL;
    for (size_t i = 0; i < b->count; i++) {
        slot *s = b->slots[i];
        if (s->state == BUSY || s == b->current || s->order >= needed_since) continue;
        if (!oldest || s->order < oldest->order) oldest = s;
    }
    return oldest;
}

/* Slots of the batches to come, those that are there included, get a new order. */
static void want_ahead(ex_batches *b, place at) {
    uint64_t since = b->order + 1;
    for (size_t i = 0; b->running && i + 1 < b->count; i++) {
        at = after(b, at);
        slot *s = find(b, at);
        if (!s) s = spare(b, since);
        if (!s) return;
        if (s->state == FREE || !is_same(s->place, at)) {
            s->place = at;
            s->state = WANTED;
        }
        s->order = ++b->order;
    }
    pthread_cond_broadcast(&b->changed);
}

/* The slot of a batch that is READY. Called and left with the mutex locked. */
static slot *take(ex_batches *b, place at) {
    slot *s;
    b->current = NULL;
    while (!(s = find(b, at)) && !(s = spare(b, UINT64_MAX)))
        pthread_cond_wait(&b->changed, &b->mutex); /* all are being rendered, for other places */
    if (s->state == FREE || !is_same(s->place, at)) {
        s->place = at;
        s->state = WANTED;
    }
    b->current = s;
    if (s->state == WANTED) render_unlocked(b, s);
    while (s->state != READY) pthread_cond_wait(&b->changed, &b->mutex);
    return s;
}

/* ---- tensors ----------------------------------------------------------------------------------- */

/* Wraps the first samples of the buffer; nothing is copied. */
static mt_status wrap(const ex_tensor *tensor, void *buffer, size_t samples, mt_tensor **out) {
    int64_t shape[EX_DIMS + 1] = {(int64_t)samples};
    memcpy(shape + 1, tensor->shape, sizeof tensor->shape);
    return mt_tensor_from_memory(buffer, tensor->dtype, tensor->dims + 1, shape, out);
}

static mt_status make_view(const ex_batches *b, slot *s, size_t samples, view *v) {
    mt_status status = MT_OK;
    for (size_t i = 0; i < b->source.tensor_count && status == MT_OK; i++) {
        ex_tensor seen = ex_tensor_seen(&b->source.tensors[i]);
        void *buffer = b->floats[i] ? b->floats[i] : s->buffers[i];
        status = wrap(&seen, buffer, samples, &v->tensors[i]);
    }
    if (status != MT_OK) {
        clear_view(v);
        return status;
    }
    v->torch = (mt_torch_batch){sizeof v->torch, v->tensors, b->source.tensor_count};
    v->samples = samples;
    return MT_OK;
}

static mt_status find_view(const ex_batches *b, slot *s, size_t samples, view **out) {
    view *v = s->views;
    while (v->samples && v->samples != samples) v++;
    *out = v;
    return v->samples ? MT_OK : make_view(b, s, samples, v);
}

/* Pictures that waited as pixels become the floats that the views are of. */
static void show(ex_batches *b, const slot *s, size_t samples) {
    if (b->shown == s && s->made) return;
    for (size_t i = 0; i < b->source.tensor_count; i++)
        if (b->floats[i])
            ex_tensor_normalise(&b->source.tensors[i], samples, s->buffers[i], b->floats[i]);
    b->shown = s;
}

mt_status ex_batches_fill(ex_batches *b, ex_split split, uint64_t epoch, size_t index,
                          mt_batch *out) {
    const place at = {split, epoch, index};
    size_t samples = samples_of(b, at);
    view *v;
    pthread_mutex_lock(&b->mutex);
    if (split == EX_TRAINING) b->epoch = epoch;
    slot *s = take(b, at);
    want_ahead(b, at);
    pthread_mutex_unlock(&b->mutex);
    if (s->status == EX_ENOMEM)
        return mt_set_error(MT_ENOMEM, "out of host memory for a batch of %zu %s", samples,
                            b->source.unit);
    if (s->status != EX_OK)
        return mt_set_error(MT_EINVAL, "a batch of %zu %s could not be rendered: %s", samples,
                            b->source.unit, s->error.text);
    mt_status status = find_view(b, s, samples, &v);
    show(b, s, samples);
    if (status == MT_OK && b->source.make && !s->made)
        status = b->source.make(b->source.make_self, samples, s->buffers);
    s->made = status == MT_OK;
    *out = (mt_batch){sizeof *out, &v->torch, samples, index};
    return status;
}
