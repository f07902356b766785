/*
 * explain.c - describes a run by its backend and a recording of two chunks; see explain.h.
 *
 * It also shows how the policy's parts are used by themselves: a recording, the memory model that is
 * made of two, and the questions that it answers.
 */
#include "explain.h"

#include <memtrain/policy.h>
#include <stdio.h>

static void row(const char *name, size_t bytes) {
    char text[32];
    printf("  %-28s %12s\n", name, mt_format_size(bytes, text, sizeof text));
}

static void print_state(const mt_backend_info *info, const mt_memory *memory,
                        const ex_device *device) {
    printf("What takes memory on %s\n", device->name);
    row("parameters", info->parameter_bytes);
    row("gradients", info->gradient_bytes);
    row("optimiser state", info->optimizer_bytes);
    row("buffers", info->buffer_bytes);
    row("in use before the first step", memory->allocated_bytes);
    if (!memory->budget_bytes) return;
    row("budget", memory->budget_bytes);
    printf("  %-28s %s\n", "  which comes from", device->budget_from);
    row("left for activations", memory->budget_bytes > memory->allocated_bytes
                                    ? memory->budget_bytes - memory->allocated_bytes
                                    : 0);
}

/* ---- recording --------------------------------------------------------------------------------- */

static void on_event(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

/* Runs the first samples of the batch as a chunk, recorded, and takes it back. */
static mt_status record(const mt_backend *backend, const mt_batch *batch, size_t samples,
                        mt_recording *recording) {
    mt_chunk_result result = {.size = sizeof result};
    mt_event_sink sink = {recording, on_event};
    mt_status status = mt_recording_start(recording, samples);
    if (status == MT_OK) status = backend->begin(backend->self, batch);
    if (status != MT_OK) return status;
    status = backend->record(backend->self, &sink);
    if (status == MT_OK) {
        double weight = (double)samples / (double)batch->count;
        status = backend->accumulate(backend->self, 0, samples, weight, &result);
        mt_status stopped = backend->record(backend->self, NULL);
        if (status == MT_OK) status = stopped;
    }
    mt_status back = backend->rollback(backend->self);
    return back != MT_OK ? back : status;
}

/* A memory model from chunks of `first` and twice as many samples. */
static mt_status learn(const mt_backend *backend, const mt_batch *batch, size_t first,
                       mt_memory_model **out) {
    mt_recording *small = NULL, *large = NULL;
    *out = NULL;
    mt_status status = mt_recording_new(&small);
    if (status == MT_OK) status = mt_recording_new(&large);
    if (status == MT_OK) status = record(backend, batch, first, small);
    if (status == MT_OK && 2 * first <= batch->count)
        status = record(backend, batch, 2 * first, large);
    if (status == MT_OK)
        status = mt_memory_model_new(small, 2 * first <= batch->count ? large : NULL, out);
    mt_recording_free(large);
    mt_recording_free(small);
    return status;
}

/* ---- what the model says ----------------------------------------------------------------------- */

static void print_chunk(const mt_memory_model *model, const mt_memory *memory, size_t samples) {
    char text[32];
    size_t peak = memory->allocated_bytes + mt_memory_model_peak(model, samples) +
                  mt_memory_model_margin(model);
    const char *verdict = !memory->budget_bytes          ? ""
                          : peak <= memory->budget_bytes ? "fits"
                                                         : "does not fit";
    printf("  %17zu %22s  %s\n", samples, mt_format_size(peak, text, sizeof text), verdict);
}

/* The sizes of a batch cut into 1, 2, 3, 4, 8 ... chunks, and the largest that fits. */
static void print_chunks(const mt_memory_model *model, const mt_memory *memory, size_t batch,
                         size_t largest) {
    size_t last = 0;
    printf("What a chunk of the batch needs\n  samples at once       peak with all else\n");
    for (size_t cut = batch; cut >= 1; cut = cut > 4 ? cut / 2 : cut - 1) {
        size_t samples = (batch + cut - 1) / cut;
        if (largest > last && largest < samples) print_chunk(model, memory, largest);
        if (samples > last) print_chunk(model, memory, samples);
        last = samples;
    }
}

static void print_verdict(const ex_flags *flags, size_t batch, size_t largest) {
    const char *choice = flags->deterministic ? "--deterministic takes the fewest chunks"
                                              : "the fastest number of chunks is measured";
    if (flags->micro_batch)
        printf("--micro-batch %lld fixes the chunks.\n", (long long)flags->micro_batch);
    else if (largest == 0)
        printf("Not even one sample fits.\n");
    else
        printf("A batch of %zu is cut into %zu chunk%s or more; %s.\n", batch,
               (batch + largest - 1) / largest, largest >= batch ? "" : "s", choice);
}

static mt_status explain_chunks(const mt_backend *backend, const mt_backend_info *info,
                                const mt_batch *batch, const mt_memory *memory,
                                const ex_flags *flags) {
    size_t first = info->min_micro_batch > 2 ? info->min_micro_batch : 2;
    mt_memory_model *model;
    if (first > batch->count) first = batch->count;
    mt_status status = learn(backend, batch, first, &model);
    if (status == MT_EDEVMEM) {
        printf("Not even %zu samples at once fit: %s\n", first, mt_last_error());
        return MT_OK;
    }
    if (status != MT_OK) return status;
    size_t room = memory->budget_bytes > memory->allocated_bytes
                      ? memory->budget_bytes - memory->allocated_bytes
                      : 0;
    size_t largest = memory->budget_bytes ? mt_memory_model_largest(model, room) : batch->count;
    if (largest > batch->count) largest = batch->count;
    print_chunks(model, memory, batch->count, largest);
    print_verdict(flags, batch->count, largest);
    mt_memory_model_free(model);
    return MT_OK;
}

mt_status ex_explain(const mt_backend *backend, const mt_batch *batch, const ex_flags *flags,
                     const ex_device *device) {
    mt_backend_info info = {.size = sizeof info};
    mt_memory memory = {.size = sizeof memory};
    mt_status status = backend->describe(backend->self, &info);
    if (status == MT_OK) status = backend->memory(backend->self, &memory);
    if (status != MT_OK) return status;
    print_state(&info, &memory, device);
    if (backend->record) status = explain_chunks(backend, &info, batch, &memory, flags);
    printf("\n");
    fflush(stdout);
    return status;
}
