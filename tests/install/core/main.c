/*
 * A trainer of one's own inside a memory budget, in plain C without libtorch: a line through points.
 *
 *     cc main.c $(pkg-config --cflags --libs memtrain) -o line && ./line
 *
 * The least a backend has: memory, begin, accumulate, rollback, apply. What stands for a device here
 * has 64 KiB, and a sample takes 256 bytes of it: a batch of 1000 goes through in chunks.
 */
#include <memtrain/trainer.h>

#include <math.h>
#include <stdio.h>

#define SAMPLES 1000
#define STEPS 200
#define BUDGET_BYTES ((size_t)64 << 10)
#define SAMPLE_BYTES 256

typedef struct point {
    double x, y;
} point;

typedef struct line {
    double slope, height;                   /* the parameters */
    double slope_gradient, height_gradient; /* summed up over the chunks of a step */
    const point *points;                    /* of the step's batch */
    size_t peak_bytes;
} line;

static mt_status line_memory(void *self, mt_memory *out) {
    out->budget_bytes = BUDGET_BYTES;
    out->peak_bytes = ((line *)self)->peak_bytes;
    return MT_OK;
}

/* Also what begin does: gradients are zero, parameters are changed by apply alone. */
static mt_status line_rollback(void *self) {
    line *l = self;

    l->slope_gradient = l->height_gradient = 0;
    return MT_OK;
}

static mt_status line_begin(void *self, const mt_batch *batch) {
    ((line *)self)->points = batch->data;
    return line_rollback(self);
}

/* Adds weight times the gradient of the chunk's mean squared error. */
static mt_status line_accumulate(void *self, size_t first, size_t count, double weight,
                                 mt_chunk_result *out) {
    line *l = self;

    out->peak_bytes = count * SAMPLE_BYTES;
    if (out->peak_bytes > BUDGET_BYTES)
        return mt_set_error(MT_EDEVMEM, "%zu samples do not fit", count);
    if (out->peak_bytes > l->peak_bytes) l->peak_bytes = out->peak_bytes;
    for (size_t i = first; i < first + count; i++) {
        double error = l->slope * l->points[i].x + l->height - l->points[i].y;

        out->loss_sum += error * error;
        l->slope_gradient += weight * 2 * error * l->points[i].x / (double)count;
        l->height_gradient += weight * 2 * error / (double)count;
    }
    out->units = (double)count;
    return MT_OK;
}

static mt_status line_apply(void *self, mt_apply_result *out) {
    line *l = self;

    l->slope -= 0.1 * l->slope_gradient;
    l->height -= 0.1 * l->height_gradient;
    (void)out; /* norm and time are not measured */
    return MT_OK;
}

static mt_status train(mt_trainer *trainer, const mt_batch *batch, mt_step_report *report) {
    mt_status status = MT_OK;

    for (int step = 0; step < STEPS && status == MT_OK; step++)
        status = mt_trainer_step(trainer, batch, report);
    return status;
}

int main(void) {
    static point points[SAMPLES];
    line l = {0};
    mt_backend backend = MT_BACKEND_INIT;
    mt_batch batch = MT_BATCH_INIT;
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_trainer *trainer = NULL;
    mt_status status;

    for (int i = 0; i < SAMPLES; i++) {
        points[i].x = 2.0 * i / SAMPLES - 1;
        points[i].y = 3 * points[i].x - 2;
    }
    backend.self = &l;
    backend.memory = line_memory;
    backend.begin = line_begin;
    backend.accumulate = line_accumulate;
    backend.rollback = line_rollback;
    backend.apply = line_apply;
    batch.data = points;
    batch.count = SAMPLES;

    status = mt_trainer_new(&backend, NULL, &trainer);
    if (status == MT_OK) status = train(trainer, &batch, &report);
    if (status != MT_OK) {
        fprintf(stderr, "%s: %s\n", mt_status_name(status), mt_last_error());
        return 1;
    }
    printf("memtrain %s: y = %.3f x %+.3f after %d steps of %zu chunks\n", mt_version_string(),
           l.slope, l.height, STEPS, report.chunk_count);
    mt_trainer_free(trainer);
    return fabs(l.slope - 3) > 1e-3 || fabs(l.height + 2) > 1e-3 ||
           mt_version_number() != MT_VERSION_NUMBER;
}
