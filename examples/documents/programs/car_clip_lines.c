/*
 * car_clip_lines.c - what car_clip prints of its own; see car_clip.h.
 */
#include "car_clip.h"

#include "car_clip_model.h"

#include <string.h>

#define LOG_EVERY 10 /* steps, where --clear-every is none */

/* So many pairs are compared with each other in validation: a batch, or what there is. */
static size_t compared(const car_clip *c, const ex_training *run) {
    size_t pairs = run->source.count(run->source.self, EX_VALIDATION);
    return pairs < (size_t)c->flags.batch ? pairs : (size_t)c->flags.batch;
}

void car_clip_introduce(void *self, const ex_training *run) {
    const car_clip *c = self;
    const size_t chunk = car_clip_chunk(c);
    printf("%zu pairs for training, %zu for validation, whose titles are others\n",
           run->source.count(run->source.self, EX_TRAINING) * (size_t)c->flags.processes,
           run->source.count(run->source.self, EX_VALIDATION));
    if (c->captions->skipped) printf("%zu pictures were skipped\n", c->captions->skipped);
    if (c->contrastive == CAR_CLIP_PLAIN && c->flags.accumulate > 1)
        printf(
            "Plain accumulation: each pair is told from the %zu others of its chunk alone; %lld "
            "such losses do not add up to that of a batch of %lld, as --contrastive cached does\n",
            chunk - 1, (long long)c->flags.accumulate, (long long)c->flags.batch);
}

void car_clip_memory(car_clip *c, ex_training *run, const mt_step_report *report) {
    const double gb = 1024.0 * 1024 * 1024;
    const int64_t every = c->flags.clear_every > 0 ? c->flags.clear_every : LOG_EVERY;
    mt_memory memory = MT_MEMORY_INIT;
    if (report->peak_bytes > c->peak_bytes) c->peak_bytes = report->peak_bytes;
    if (run->at.steps % (uint64_t)every || mt_device_memory(run->device.name, &memory) != MT_OK)
        return;
    /* MPS tells no peak: what is there now is the least that it was. */
    if (memory.allocated_bytes > c->peak_bytes) c->peak_bytes = memory.allocated_bytes;
    ex_progress_clear(&run->progress);
    printf("%s Memory - Allocated: %.2f GB, Peak: %.2f GB\n",
           strcmp(run->device.name, "cpu") == 0 ? "CPU" : "GPU",
           (double)memory.allocated_bytes / gb, (double)c->peak_bytes / gb);
    fflush(stdout);
}

static void print_recall(size_t among, double loss, const double *metrics) {
    const double n = (double)among;
    printf("among %zu: loss %.3f; a picture finds its caption first in %.1f %%, among the first "
           "five in %.1f %%; a caption its picture in %.1f %% and %.1f %%; by chance %.1f %% and "
           "%.1f %%\n",
           among, loss, 100 * metrics[2], 100 * metrics[3], 100 * metrics[4], 100 * metrics[5],
           100 / n, among < 5 ? 100.0 : 500 / n);
}

/* Validation in chunks compares the pairs of a chunk alone: once more with whole batches. */
static mt_status evaluate_whole(const ex_training *run, double *loss, double *metrics) {
    size_t samples = 0;
    *loss = 0;
    for (size_t i = 0; i < ex_batches_count(run->batches, EX_VALIDATION); i++) {
        mt_batch batch;
        mt_chunk_result result = MT_CHUNK_RESULT_INIT;
        mt_status status = ex_batches_fill(run->batches, EX_VALIDATION, 0, i, &batch);
        if (status == MT_OK) status = mt_evaluate(run->torch, &batch, 0, batch.count, &result);
        if (status != MT_OK) return status;
        samples += batch.count;
        *loss += result.loss_sum;
        for (int m = 0; m < CAR_CLIP_METRICS; m++) metrics[m] += result.metric_sums[m];
    }
    *loss /= (double)samples;
    for (int m = 0; m < CAR_CLIP_METRICS; m++) metrics[m] /= (double)samples;
    return MT_OK;
}

void car_clip_result(const car_clip *c, const ex_training *run) {
    double loss, metrics[CAR_CLIP_METRICS] = {0};
    if (!run->last.eval_samples) return;
    if (c->contrastive == CAR_CLIP_CACHED)
        print_recall(compared(c, run), run->last.eval_loss, run->last.eval_metrics);
    else if (evaluate_whole(run, &loss, metrics) == MT_OK)
        print_recall(compared(c, run), loss, metrics);
    else
        mt_log(MT_LOG_WARNING, "validation of whole batches: %s", mt_last_error());
}

void car_clip_remedies(void *self, const ex_training *run) {
    const car_clip *c = self;
    (void)run;
    if (c->contrastive == CAR_CLIP_PLAIN)
        fprintf(stderr, "  --contrastive cached chunks of any size have the gradient of the whole "
                        "batch\n");
    if (c->network > 0) fprintf(stderr, "  --size w128-l4       is the smallest network\n");
}
