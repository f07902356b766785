/*
 * batches.c - renders pictures into the buffers of batches; see batches.h.
 */
#include "batches.h"

#include <memtrain/torch.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

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
    mt_tensor *tensors[2]; /* pictures and labels */
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
    float *pixels;   /* batch x 3 x side x side */
    int64_t *labels; /* batch */
    view views[VIEWS];
} slot;

struct ex_batches {
    const ex_dataset *pictures;
    ex_batches_options options;
    slot *slots; /* options.prefetch + 1 */
    size_t count;
    slot *current; /* the caller's, until the next call */
    uint64_t order;
    uint64_t epoch; /* of training, seen last */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t threads[EX_WORKERS_MAX];
    size_t running;
    int stop;
};

/* ---- rendering --------------------------------------------------------------------------------- */

static size_t samples_of(const ex_batches *b, place at) {
    size_t total = ex_dataset_count(b->pictures, at.split), first = at.index * b->options.batch;
    return total - first < b->options.batch ? total - first : b->options.batch;
}

/* By any thread, for a slot that is BUSY. */
static void render(const ex_batches *b, slot *s) {
    s->error.text[0] = '\0';
    s->status =
        ex_dataset_fill(b->pictures, s->place.split, s->place.epoch,
                        s->place.index * b->options.batch, samples_of(b, s->place), b->options.side,
                        s->place.split == EX_TRAINING, s->pixels, s->labels, &s->error);
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
    for (slot *s = b->slots; s < b->slots + b->count; s++)
        if (s->state == WANTED && (!first || s->order < first->order)) first = s;
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

static size_t slot_bytes(const ex_batches_options *options) {
    size_t side = (size_t)options->side;
    return options->batch * (side * side * 3 * sizeof(float) + sizeof(int64_t));
}

static int make_slot(const ex_batches *b, slot *s) {
    size_t side = (size_t)b->options.side;
    s->pixels = calloc(b->options.batch, side * side * 3 * sizeof *s->pixels);
    s->labels = calloc(b->options.batch, sizeof *s->labels);
    return s->pixels && s->labels;
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
                                .side = (int)flags->image_size,
                                .workers = (size_t)flags->workers,
                                .prefetch = (size_t)flags->prefetch};
}

mt_status ex_batches_new(const ex_dataset *pictures, const ex_batches_options *options,
                         ex_batches **out) {
    *out = NULL;
    ex_batches *b = calloc(1, sizeof *b);
    if (!b) return mt_set_error(MT_ENOMEM, "out of host memory");
    b->pictures = pictures;
    b->options = *options;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->changed, NULL);
    size_t wanted = options->workers ? options->prefetch + 1 : 1;
    b->slots = calloc(wanted, sizeof *b->slots);
    while (b->slots && b->count < wanted && make_slot(b, &b->slots[b->count])) b->count++;
    if (b->count < wanted) {
        b->count += b->slots != NULL; /* the one that was not made whole */
        ex_batches_free(b);
        return mt_set_error(MT_ENOMEM, "out of host memory for %zu batches of %zu pictures", wanted,
                            options->batch);
    }
    if (mt_device_hold("cpu", ex_batches_ahead_bytes(b)) != MT_OK)
        mt_log(MT_LOG_WARNING, "batches that are rendered ahead are not counted: %s",
               mt_last_error());
    start_threads(b);
    *out = b;
    return MT_OK;
}

static void free_slot(slot *s) {
    for (int i = 0; i < VIEWS; i++) {
        mt_tensor_free(s->views[i].tensors[0]);
        mt_tensor_free(s->views[i].tensors[1]);
    }
    free(s->pixels);
    free(s->labels);
}

void ex_batches_free(ex_batches *b) {
    if (!b) return;
    pthread_mutex_lock(&b->mutex);
    b->stop = 1;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->mutex);
    for (size_t i = 0; i < b->running; i++) pthread_join(b->threads[i], NULL);
    if (ex_batches_ahead_bytes(b)) (void)!mt_device_hold("cpu", 0);
    for (size_t i = 0; i < b->count; i++) free_slot(&b->slots[i]);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
    free(b->slots);
    free(b);
}

size_t ex_batches_count(const ex_batches *b, ex_split split) {
    return (ex_dataset_count(b->pictures, split) + b->options.batch - 1) / b->options.batch;
}

size_t ex_batches_ahead_bytes(const ex_batches *b) {
    return b->count ? (b->count - 1) * slot_bytes(&b->options) : 0;
}

size_t ex_flags_ahead_bytes(const ex_flags *flags) {
    ex_batches_options options = ex_batches_options_of(flags);
    return options.workers ? options.prefetch * slot_bytes(&options) : 0;
}

/* ---- ahead ------------------------------------------------------------------------------------- */

static int is_same(place a, place b) {
    return a.split == b.split && a.epoch == b.epoch && a.index == b.index;
}

static slot *find(const ex_batches *b, place at) {
    for (slot *s = b->slots; s < b->slots + b->count; s++)
        if (s->state != FREE && is_same(s->place, at)) return s;
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
    for (slot *s = b->slots; s < b->slots + b->count; s++) {
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
static mt_status make_view(const ex_batches *b, slot *s, size_t samples, view *v) {
    const int64_t shape[] = {(int64_t)samples, 3, b->options.side, b->options.side};
    mt_status status = mt_tensor_from_memory(s->pixels, MT_FLOAT32, 4, shape, &v->tensors[0]);
    if (status == MT_OK)
        status = mt_tensor_from_memory(s->labels, MT_INT64, 1, shape, &v->tensors[1]);
    if (status != MT_OK) return status;
    v->torch = (mt_torch_batch){sizeof v->torch, v->tensors, 2};
    v->samples = samples;
    return MT_OK;
}

static mt_status find_view(const ex_batches *b, slot *s, size_t samples, view **out) {
    view *v = s->views;
    while (v->samples && v->samples != samples) v++;
    *out = v;
    return v->samples ? MT_OK : make_view(b, s, samples, v);
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
        return mt_set_error(MT_ENOMEM, "out of host memory for a batch of %zu pictures", samples);
    if (s->status != EX_OK)
        return mt_set_error(MT_EINVAL, "a batch of %zu pictures could not be rendered: %s", samples,
                            s->error.text);
    mt_status status = find_view(b, s, samples, &v);
    *out = (mt_batch){sizeof *out, &v->torch, samples, index};
    return status;
}
