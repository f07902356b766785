/*
 * plain_c.c - a trainer in plain C inside a memory budget: libmemtrain, and nothing of libtorch.
 *
 * It teaches a small network to read digits that it draws itself. Memory, network, backward pass and
 * optimiser are its own. From libmemtrain it gets chunks that fit into the budget, steps that are taken
 * back when memory runs out, a trace, and replays; for that it fills in an mt_backend. docs/backend.md
 * goes through that part function by function. What is trained is in plain/digits.c, flags and the
 * reading of traces in plain/command.c.
 *
 *     cc -std=c11 -Iinclude examples/plain_c.c examples/plain/{command,digits}.c -Lbuild/lib -lmemtrain -lm
 */
#include "plain/command.h"
#include "plain/digits.h"

#include <memtrain/trainer.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRAINED = 2000, TESTED = 500 }; /* pictures */

/* ---- device ------------------------------------------------------------------------------------ */

/* A piece of the device's memory; data NULL: none. */
typedef struct block {
    float *data;
    size_t bytes;
} block;

/* Here it is the heap with books kept. On a card take and give would call its allocator. */
typedef struct device {
    size_t budget_bytes, used_bytes;
    mt_event_sink sink;                /* is told of each block; event NULL: nobody is */
    mt_chunk_result *result;           /* of the chunk that runs; NULL: none does */
    uint64_t step, fail_step, fail_at; /* --inject-oom: the step that runs, and where to fail */
    uint64_t requests;                 /* in step fail_step so far */
} device;

/* MT_EDEVMEM means that it did not fit, and nothing else. The evidence lets the policy learn by bytes. */
static mt_status refuse(device *d, size_t bytes) {
    if (d->result) {
        d->result->refused++;
        d->result->refused_bytes = bytes;
        d->result->refused_in_use_bytes = d->used_bytes;
    }
    return mt_set_error(MT_EDEVMEM, "%zu bytes are refused beside the %zu in use of %zu", bytes,
                        d->used_bytes, d->budget_bytes);
}

/* Zeros, or MT_EDEVMEM. */
static mt_status take(device *d, block *b, size_t floats) {
    size_t bytes = floats * sizeof *b->data;
    int is_injected = d->step && d->step == d->fail_step && ++d->requests == d->fail_at;
    float *data = NULL;
    if (!is_injected && bytes <= d->budget_bytes - d->used_bytes) data = calloc(1, bytes);
    if (!data) return refuse(d, bytes);
    *b = (block){data, bytes};
    d->used_bytes += bytes;
    if (d->result && d->used_bytes > d->result->peak_bytes) d->result->peak_bytes = d->used_bytes;
    if (d->sink.event) d->sink.event(d->sink.user, data, (int64_t)bytes);
    return MT_OK;
}

static void give(device *d, block *b) {
    if (!b->data) return;
    if (d->sink.event) d->sink.event(d->sink.user, b->data, -(int64_t)b->bytes);
    d->used_bytes -= b->bytes;
    free(b->data);
    *b = (block){NULL, 0};
}

/* ---- backend: its state ------------------------------------------------------------------------ */

typedef struct model {
    device device;
    block weights, momentum; /* apply alone changes them */
    block gradient;          /* of the chunks of this step that have gone through */
    uint64_t noise;          /* state of the random numbers: each chunk changes it */
    uint64_t noise_at_begin, noise_at_mark;
    uint64_t seed;         /* of the pictures */
    const mt_batch *batch; /* of this step, borrowed; its data are uint32_t numbers of pictures */
} model;

/* What one chunk has in the device's memory, on its way. */
typedef struct chunk {
    const uint32_t *pictures;
    size_t count;
    block value[LAYERS + 1]; /* the pictures, and what each layer has made of them */
    block slope[LAYERS + 1]; /* of the loss by these */
    block gradient;          /* of the loss by the weights, of this chunk alone */
    double started;
} chunk;

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The pictures are the chunk's memory too, and are drawn when they are wanted. */
static mt_status open_chunk(model *m, chunk *c, const mt_batch *batch, size_t first, size_t count,
                            mt_chunk_result *out) {
    *c = (chunk){.pictures = (const uint32_t *)batch->data + first, .count = count};
    c->started = now();
    m->device.result = out;
    mt_status status = take(&m->device, &c->value[0], count * PIXELS);
    for (size_t s = 0; status == MT_OK && s < count; s++)
        draw_picture(m->seed, c->pictures[s], c->value[0].data + s * PIXELS);
    return status;
}

/* However it went, nothing of it is left. */
static mt_status close_chunk(model *m, chunk *c, mt_status status) {
    for (int l = 0; l <= LAYERS; l++) {
        give(&m->device, &c->value[l]);
        give(&m->device, &c->slope[l]);
    }
    give(&m->device, &c->gradient);
    m->device.result->seconds = now() - c->started;
    m->device.result = NULL;
    return status;
}

/* keep: a backward pass will want what the layers made. */
static mt_status forward(model *m, chunk *c, int keep) {
    const float *weights = m->weights.data;
    for (int i = 0; i < LAYERS; weights += layer_weights(i++)) {
        mt_status status = take(&m->device, &c->value[i + 1], c->count * layer_floats(i + 1));
        if (status != MT_OK) return status;
        convolve(i, c->count, weights, c->value[i].data, c->value[i + 1].data);
        if (!keep) give(&m->device, &c->value[i]);
    }
    return MT_OK;
}

/* Sums, not means: the trainer divides by the units of all chunks. slopes may be NULL. */
static void sum_up(const chunk *c, double factor, float *slopes, mt_chunk_result *out) {
    for (size_t s = 0; s < c->count; s++) {
        int hit;
        out->loss_sum += score(c->value[LAYERS].data + s * DIGITS, c->pictures[s] % DIGITS, factor,
                               slopes ? slopes + s * DIGITS : NULL, &hit);
        out->metric_sums[0] += hit;
    }
    out->units = (double)c->count;
}

/* Memory is asked for on the way, and what has been used is given back on the way. */
static mt_status backward(model *m, chunk *c, double weight, mt_chunk_result *out) {
    mt_status status = take(&m->device, &c->gradient, WEIGHTS);
    if (status == MT_OK) status = take(&m->device, &c->slope[LAYERS], c->count * DIGITS);
    if (status != MT_OK) return status;
    /* The loss is a mean over the chunk, times the chunk's share of the batch. */
    sum_up(c, weight / (double)c->count, c->slope[LAYERS].data, out);
    size_t at = WEIGHTS;
    for (int i = LAYERS - 1; i >= 0; i--) {
        status = take(&m->device, &c->slope[i], c->count * layer_floats(i));
        if (status != MT_OK) return status;
        at -= layer_weights(i);
        convolve_back(i, c->count, m->weights.data + at, c->value[i].data, c->value[i + 1].data,
                      c->slope[i + 1].data, c->gradient.data + at, c->slope[i].data);
        give(&m->device, &c->slope[i + 1]);
        give(&m->device, &c->value[i + 1]);
    }
    return MT_OK;
}

/* ---- backend: what libmemtrain calls ----------------------------------------------------------- */

static mt_status describe(void *self, mt_backend_info *out) {
    static const char *const names[] = {"accuracy"};
    const model *m = self;
    out->device = "cpu";
    out->version = "plain_c";
    out->parameter_bytes = m->weights.bytes;
    out->gradient_bytes = m->gradient.bytes;
    out->optimizer_bytes = m->momentum.bytes;
    out->metric_count = 1;
    out->metric_names = names;
    return MT_OK;
}

static mt_status memory(void *self, mt_memory *out) {
    const device *d = &((model *)self)->device;
    out->budget_bytes = d->budget_bytes;
    out->allocated_bytes = out->reserved_bytes = d->used_bytes; /* there is no cache */
    return MT_OK;
}

static mt_status record(void *self, const mt_event_sink *sink) {
    const mt_event_sink nobody = {NULL, NULL};
    ((model *)self)->device.sink = sink ? *sink : nobody;
    return MT_OK;
}

/* What a step can change before apply: the gradient, which starts at 0, and the random numbers. */
static mt_status begin(void *self, const mt_batch *batch) {
    model *m = self;
    m->batch = batch;
    m->noise_at_begin = m->noise;
    memset(m->gradient.data, 0, m->gradient.bytes);
    return MT_OK;
}

static mt_status rollback(void *self) {
    model *m = self;
    m->noise = m->noise_at_begin;
    memset(m->gradient.data, 0, m->gradient.bytes);
    return MT_OK;
}

/* A chunk adds its gradient at its very end, when nothing can fail any more: one that failed has
   changed the random numbers alone, and can be taken back without those before it. */
static mt_status mark(void *self) {
    model *m = self;
    m->noise_at_mark = m->noise;
    return MT_OK;
}

static mt_status rewind_to_mark(void *self) {
    model *m = self;
    m->noise = m->noise_at_mark;
    return MT_OK;
}

/* The gradient is handed over (0 bytes): marked or not, it is in memory to the end of the chunk. */
static void add_gradient(model *m, chunk *c) {
    const mt_event_sink *sink = &m->device.sink;
    for (size_t i = 0; i < WEIGHTS; i++) m->gradient.data[i] += c->gradient.data[i];
    if (sink->event) sink->event(sink->user, c->gradient.data, 0);
}

static mt_status accumulate(void *self, size_t first, size_t count, double weight,
                            mt_chunk_result *out) {
    model *m = self;
    chunk c;
    mt_status status = open_chunk(m, &c, m->batch, first, count, out);
    /* Fresh noise on each picture, each time: a network that cannot learn the pictures by heart. */
    for (size_t i = 0; status == MT_OK && i < count * PIXELS; i++)
        c.value[0].data[i] += 0.3F * draw_uniform(&m->noise);
    if (status == MT_OK) status = forward(m, &c, 1);
    if (status == MT_OK) status = backward(m, &c, weight, out);
    if (status == MT_OK) add_gradient(m, &c);
    return close_chunk(m, &c, status);
}

static mt_status evaluate(void *self, const mt_batch *batch, size_t first, size_t count,
                          mt_chunk_result *out) {
    model *m = self;
    chunk c;
    mt_status status = open_chunk(m, &c, batch, first, count, out);
    if (status == MT_OK) status = forward(m, &c, 0);
    if (status == MT_OK) sum_up(&c, 0, NULL, out);
    return close_chunk(m, &c, status);
}

/* Gradient descent with momentum, in place: nothing here can fail halfway through. */
static mt_status apply(void *self, mt_apply_result *out) {
    model *m = self;
    double started = now(), squares = 0;
    for (size_t i = 0; i < WEIGHTS; i++) {
        float g = m->gradient.data[i];
        squares += (double)g * g;
        m->momentum.data[i] = 0.9F * m->momentum.data[i] + g;
        m->weights.data[i] -= 0.05F * m->momentum.data[i];
    }
    out->lr = 0.05;
    out->grad_norm = sqrt(squares);
    out->seconds = now() - started;
    return MT_OK;
}

static uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3U;
    return hash;
}

/* 64 digits that tell states apart will do; these are of FNV-1a, behind zeros. */
static mt_status state_hash(void *self, char out[65]) {
    const model *m = self;
    uint64_t hash = fnv1a(0xcbf29ce484222325U, m->weights.data, m->weights.bytes);
    hash = fnv1a(hash, m->momentum.data, m->momentum.bytes);
    hash = fnv1a(hash, &m->noise, sizeof m->noise);
    snprintf(out, 65, "%064llx", (unsigned long long)hash);
    return MT_OK;
}

static mt_backend backend_of(model *m) {
    mt_backend b = MT_BACKEND_INIT;
    b.self = m;
    b.memory = memory, b.begin = begin, b.accumulate = accumulate; /* these have to be there */
    b.rollback = rollback, b.apply = apply;
    b.describe = describe, b.evaluate = evaluate; /* these need not */
    b.record = record, b.mark = mark, b.rewind = rewind_to_mark, b.state_sha256 = state_hash;
    return b;
}

/* What lives as long as the model is taken once, before the first step. */
static mt_status init_model(model *m, uint64_t seed) {
    m->seed = m->noise = seed;
    mt_status status = take(&m->device, &m->weights, WEIGHTS);
    if (status == MT_OK) status = take(&m->device, &m->momentum, WEIGHTS);
    if (status == MT_OK) status = take(&m->device, &m->gradient, WEIGHTS);
    if (status != MT_OK)
        return mt_set_error(status, "--budget: %zu bytes; weights, momentum and gradient take %zu",
                            m->device.budget_bytes, 3 * WEIGHTS * sizeof(float));
    init_weights(m->weights.data, &m->noise);
    return MT_OK;
}

static void free_model(model *m) {
    give(&m->device, &m->weights);
    give(&m->device, &m->momentum);
    give(&m->device, &m->gradient);
}

/* ---- run --------------------------------------------------------------------------------------- */

typedef struct run {
    plain_flags flags;
    FILE *trace, *replay;
    model model;
    mt_trainer *trainer;
    uint64_t step;
    int is_over;
} run;

static void write_trace(void *user, const char *line) {
    fprintf(user, "%s\n", line);
}

/* Empties the file of an older run, so what may refuse this one comes before. */
static mt_status open_trace(run *r) {
    if (!r->flags.trace) return MT_OK;
    r->trace = fopen(r->flags.trace, "we");
    if (r->trace) return MT_OK;
    return mt_set_error(MT_EINVAL, "--trace: '%s': %s", r->flags.trace, strerror(errno));
}

static mt_status start(run *r) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_backend backend = backend_of(&r->model);
    r->model.device.budget_bytes = r->flags.budget_bytes;
    r->model.device.fail_step = r->flags.fail_step;
    r->model.device.fail_at = r->flags.fail_at;
    mt_status status = plain_replay_open(&r->flags, &r->replay);
    if (status == MT_OK) status = init_model(&r->model, r->flags.seed);
    if (status == MT_OK) status = open_trace(r);
    if (status != MT_OK) return status;
    policy.micro_batch = r->flags.micro_batch;
    options.policy = &policy;
    options.trace = r->trace ? write_trace : NULL;
    options.trace_user = r->trace;
    options.batch = r->flags.batch;
    options.seed = r->flags.seed;
    return mt_trainer_new(&backend, &options, &r->trainer);
}

static mt_status run_step(run *r, const mt_batch *batch) {
    size_t chunks[PLAIN_MOST_BATCH], count = 0;
    mt_status status = MT_OK;
    if (r->replay) status = plain_replay_next(r->replay, r->step + 1, chunks, &count);
    if (status == MT_OK && count) status = mt_trainer_set_chunks(r->trainer, chunks, count);
    r->is_over = r->replay && !count;
    if (status != MT_OK || r->is_over) return status;
    r->model.device.step = ++r->step;
    status = mt_trainer_step(r->trainer, batch, NULL);
    r->model.device.step = 0;
    r->is_over = r->step == r->flags.steps;
    return status;
}

/* All pictures once, in an order that seed and epoch decide. */
static mt_status train(run *r, uint64_t epoch) {
    uint32_t order[TRAINED];
    uint64_t state = (epoch << 32) + r->flags.seed;
    mt_batch batch = MT_BATCH_INIT;
    mt_status status = MT_OK;
    for (uint32_t i = 0, j; i < TRAINED; order[j] = i++) {
        j = (uint32_t)(draw_number(&state) % (i + 1));
        order[i] = order[j];
    }
    for (size_t i = 0; status == MT_OK && !r->is_over && i < TRAINED; i += batch.count) {
        batch.data = order + i;
        batch.count = TRAINED - i < r->flags.batch ? TRAINED - i : r->flags.batch;
        status = run_step(r, &batch);
    }
    return status;
}

/* Pictures that it was not trained on. They are one batch, which is cut like any other. */
static mt_status test(run *r, uint64_t epoch) {
    uint32_t pictures[TESTED];
    mt_batch batch = {sizeof batch, pictures, TESTED, epoch};
    mt_epoch_report e = MT_EPOCH_REPORT_INIT;
    for (uint32_t i = 0; i < TESTED; i++) pictures[i] = TRAINED + i;
    mt_status status = mt_trainer_evaluate(r->trainer, &batch, NULL);
    if (status == MT_OK) status = mt_trainer_end_epoch(r->trainer, &e);
    if (status == MT_OK)
        printf("epoch %llu  train loss %.3f accuracy %.1f %%  test loss %.3f accuracy %.1f %%\n",
               (unsigned long long)epoch, e.loss, 100 * e.metrics[0], e.eval_loss,
               100 * e.eval_metrics[0]);
    return status;
}

static mt_status run_epochs(run *r) {
    mt_status status = MT_OK;
    printf("%d weights, %d digits; accuracy by guessing %.1f %%\n", WEIGHTS, DIGITS,
           100.0 / DIGITS);
    for (uint64_t e = 1; status == MT_OK && !r->is_over && e <= r->flags.epochs; e++) {
        uint64_t before = r->step;
        status = train(r, e);
        if (status == MT_OK && r->step > before) status = test(r, e); /* a replay may end before */
    }
    return status;
}

static mt_status finish(run *r) {
    const device *d = &r->model.device;
    mt_run_report f = MT_RUN_REPORT_INIT;
    char budget[32], peak[32];
    mt_status status = mt_trainer_finish(r->trainer, &f);
    if (status != MT_OK) return status;
    if (d->requests < d->fail_at)
        fprintf(stderr, "plain_c: warning: --inject-oom: step %llu made %llu requests for memory\n",
                (unsigned long long)d->fail_step, (unsigned long long)d->requests);
    printf("budget %s, peak %s (%.1f %%): chunks of %zu to %zu for batch %zu; %llu OOM%s met, %llu "
           "samples discarded; state %s\n",
           mt_format_size(f.budget_bytes, budget, sizeof budget),
           mt_format_size(f.peak_bytes, peak, sizeof peak),
           100 * (double)f.peak_bytes / (double)f.budget_bytes, f.smallest_chunk, f.largest_chunk,
           r->flags.batch, (unsigned long long)f.ooms, f.ooms == 1 ? "" : "s",
           (unsigned long long)f.samples_discarded, f.state_sha256 + 48);
    return MT_OK;
}

/* Gives everything back, also after a failure, which is then the one that counts. */
static mt_status close_run(run *r, mt_status status) {
    int is_written = !r->trace || !ferror(r->trace);
    if (r->trace && fclose(r->trace) != 0) is_written = 0;
    if (r->replay) fclose(r->replay);
    mt_trainer_free(r->trainer);
    free_model(&r->model);
    if (is_written || status != MT_OK) return status;
    return mt_set_error(MT_EIO, "--trace: '%s' could not be written", r->flags.trace);
}

int main(int argc, char **argv) {
    run r = {.step = 0};
    char why[4096] = "";
    mt_status status = plain_read_flags(argc, argv, &r.flags);
    if (status == MT_OK && r.flags.help) return fputs(plain_help, stdout) < 0;
    if (status == MT_OK) status = start(&r);
    if (status == MT_OK) status = run_epochs(&r);
    if (status == MT_OK) status = finish(&r);
    if (status == MT_EDEVMEM) mt_trainer_explain(r.trainer, why, sizeof why);
    status = close_run(&r, status);
    if (status != MT_OK) fprintf(stderr, "plain_c: %s\n%s", mt_last_error(), why);
    return status == MT_OK ? 0 : status == MT_EINVAL ? 2 : status == MT_EDEVMEM ? 3 : 1;
}
