/*
 * decide.c - what a decision costs: a million steps of mt_trainer_step over a backend that does
 * nothing, less the same calls made directly. Prints nanoseconds a step and the allocations that
 * the steps made, which are none.
 *
 *     decide  ns_per_step=... allocations=...
 */
#include <memtrain/trainer.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEPS 1000000
#define WARM_UP 100 /* steps in which the sizes are found */
#define BATCH 32
#define RESIDENT ((size_t)1000000)
#define PER_SAMPLE ((size_t)100000)
#define BUDGET (RESIDENT + 16 * PER_SAMPLE + 5000) /* two chunks of 16 */

/* ---- a backend that does nothing, plausibly ------------------------------------------------- */

typedef struct nothing {
    mt_event_sink sink;
    double checksum; /* keeps the calls from being optimised away */
} nothing;

static mt_status nothing_memory(void *self, mt_memory *out) {
    (void)self;
    out->budget_bytes = BUDGET;
    out->allocated_bytes = out->reserved_bytes = out->peak_bytes = RESIDENT;
    return MT_OK;
}

static mt_status nothing_begin(void *self, const mt_batch *batch) {
    nothing *own = self;

    own->checksum += (double)batch->count;
    return MT_OK;
}

static mt_status nothing_accumulate(void *self, size_t first, size_t count, double weight,
                                    mt_chunk_result *out) {
    nothing *own = self;
    int64_t bytes = (int64_t)(count * PER_SAMPLE);

    if (own->sink.event != NULL) {
        own->sink.event(own->sink.user, own, bytes);
        own->sink.event(own->sink.user, own, -bytes);
    }
    own->checksum += weight * (double)first;
    out->loss_sum = 2.3 * (double)count;
    out->units = (double)count;
    out->seconds = 5e-3 + 1e-3 * (double)count;
    out->peak_bytes = RESIDENT + (size_t)bytes;
    return MT_OK;
}

static mt_status nothing_rollback(void *self) {
    (void)self;
    return MT_OK;
}

static mt_status nothing_apply(void *self, mt_apply_result *out) {
    nothing *own = self;

    own->checksum += 1;
    out->grad_norm = 1;
    return MT_OK;
}

static mt_status nothing_record(void *self, const mt_event_sink *sink) {
    static const mt_event_sink none = {NULL, NULL};
    nothing *own = self;

    own->sink = sink != NULL ? *sink : none;
    return MT_OK;
}

static mt_backend nothing_backend(nothing *own) {
    mt_backend backend = MT_BACKEND_INIT;

    backend.self = own;
    backend.memory = nothing_memory;
    backend.begin = nothing_begin;
    backend.accumulate = nothing_accumulate;
    backend.rollback = nothing_rollback;
    backend.apply = nothing_apply;
    backend.record = nothing_record;
    return backend;
}

/* ---- counting and timing -------------------------------------------------------------------- */

static unsigned long allocations;

static void *counting_malloc(size_t bytes) {
    allocations++;
    return malloc(bytes);
}

static void *counting_realloc(void *block, size_t bytes) {
    allocations++;
    return realloc(block, bytes);
}

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The calls of a step of two chunks, without deciding anything. */
static void direct_step(const mt_backend *backend, const mt_batch *batch) {
    mt_memory memory = {.size = sizeof(memory)};
    mt_chunk_result result = {.size = sizeof(result)};
    mt_apply_result applied = {.size = sizeof(applied)};

    backend->memory(backend->self, &memory);
    backend->begin(backend->self, batch);
    backend->accumulate(backend->self, 0, BATCH / 2, 0.5, &result);
    backend->accumulate(backend->self, BATCH / 2, BATCH / 2, 0.5, &result);
    backend->apply(backend->self, &applied);
}

static double time_direct(const mt_backend *backend, mt_batch *batch) {
    double start = now();

    for (batch->id = 1; batch->id <= STEPS; batch->id++) direct_step(backend, batch);
    return (now() - start) / STEPS;
}

/* A negative time: a step failed. */
static double time_steps(mt_trainer *trainer, mt_batch *batch, uint64_t steps,
                         mt_step_report *report) {
    double start = now();

    for (batch->id = 1; batch->id <= steps; batch->id++)
        if (mt_trainer_step(trainer, batch, report) != MT_OK) return -1;
    return (now() - start) / (double)steps;
}

static int run(mt_trainer *trainer, const mt_backend *backend) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_batch batch = {sizeof(batch), NULL, BATCH, 0};
    double steps = time_steps(trainer, &batch, WARM_UP, &report), direct;

    if (steps < 0) return EXIT_FAILURE;
    allocations = 0;
    steps = time_steps(trainer, &batch, STEPS, &report);
    direct = time_direct(backend, &batch);
    if (steps < 0) return EXIT_FAILURE;
    if (report.chunk_count != 2) {
        fprintf(stderr, "decide: %zu chunks instead of 2\n", report.chunk_count);
        return EXIT_FAILURE;
    }
    printf("decide  ns_per_step=%.1f allocations=%lu\n", steps - direct, allocations);
    return allocations == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(void) {
    nothing own = {{NULL, NULL}, 0};
    mt_backend backend = nothing_backend(&own);
    mt_trainer *trainer = NULL;
    int result = EXIT_FAILURE;

    if (mt_set_allocator(counting_malloc, counting_realloc, free) == MT_OK &&
        mt_trainer_new(&backend, NULL, &trainer) == MT_OK)
        result = run(trainer, &backend);
    if (result != EXIT_SUCCESS) fprintf(stderr, "decide: %s\n", mt_last_error());
    mt_trainer_free(trainer);
    return result;
}
