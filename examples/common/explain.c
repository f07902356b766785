/*
 * explain.c - describes a run by its backend and a recording of two chunks; see explain.h.
 *
 * It also shows how the policy's parts are used by themselves: a recording, the memory model that is
 * made of two, and the questions that it answers.
 */
#include "explain.h"

#include <memtrain/policy.h>
#include <memtrain/torch.h>
#include <stdio.h>
#include <string.h>

static void row(const char *name, size_t bytes) {
    char text[32];
    printf("  %-28s %12s\n", name, mt_format_size(bytes, text, sizeof text));
}

static size_t room_of(const mt_memory *memory) {
    return memory->budget_bytes > memory->allocated_bytes
               ? memory->budget_bytes - memory->allocated_bytes
               : 0;
}

static void print_parts(const mt_backend_info *info, const ex_device *device) {
    printf("What takes memory on %s\n", device->name);
    row("parameters", info->parameter_bytes);
    row("gradients", info->gradient_bytes);
    row("optimiser state", info->optimizer_bytes);
}

/* Batches that are rendered ahead count against the CPU's budget. */
static size_t print_ahead(const ex_device *device) {
    size_t bytes = strcmp(device->name, "cpu") == 0 ? device->ahead_bytes : 0;
    if (bytes) row("batches ahead (--workers)", bytes);
    return bytes;
}

static void print_budget(size_t bytes, const ex_device *device) {
    row("budget", bytes);
    printf("  %-28s %s\n", "  which comes from", device->budget_from);
}

static void print_state(const mt_backend_info *info, const mt_memory *memory,
                        const ex_device *device) {
    print_parts(info, device);
    row("buffers", info->buffer_bytes);
    print_ahead(device);
    row("in use before the first step", memory->allocated_bytes);
    if (!memory->budget_bytes) return;
    print_budget(memory->budget_bytes, device);
    row("left for activations", room_of(memory));
}

/* Numbers of optimiser state for each parameter. */
static size_t moments(const ex_flags *flags) {
    return flags->optimizer != MT_SGD ? 2 : flags->momentum > 0;
}

void ex_explain_state(size_t parameter_bytes, const ex_flags *flags, const ex_device *device) {
    mt_backend_info info = {.size = sizeof info};
    size_t all = (2 + moments(flags)) * parameter_bytes;
    info.parameter_bytes = info.gradient_bytes = parameter_bytes;
    info.optimizer_bytes = moments(flags) * parameter_bytes;
    print_parts(&info, device);
    all += print_ahead(device);
    row("these together", all);
    print_budget(device->budget_bytes, device);
    if (all > device->budget_bytes) row("missing", all - device->budget_bytes);
    printf("Activations come on top: what a chunk needs is known once these fit.\n\n");
    fflush(stdout);
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
    if (backend->prepare) /* a loss over pairs */
        status = backend->prepare(backend->self, &samples, 1, &result);
    if (status == MT_OK) status = backend->record(backend->self, &sink);
    if (status == MT_OK) {
        double weight = (double)samples / (double)batch->count;
        status = backend->accumulate(backend->self, 0, samples, weight, &result);
        mt_status stopped = backend->record(backend->self, NULL);
        if (status == MT_OK) status = stopped;
    }
    mt_status back = backend->rollback(backend->self);
    return back != MT_OK ? back : status;
}

/*
 * A memory model from chunks of `first` and twice as many samples. *tried: samples of the last chunk
 * that was run, so of the one that did not fit after MT_EDEVMEM.
 */
static mt_status learn(const mt_backend *backend, const mt_batch *batch, size_t first,
                       size_t *tried, mt_memory_model **out) {
    mt_recording *small = NULL, *large = NULL;
    int has_two = 2 * first <= batch->count;
    *out = NULL;
    *tried = first;
    mt_status status = mt_recording_new(&small);
    if (status == MT_OK) status = mt_recording_new(&large);
    if (status == MT_OK) status = record(backend, batch, first, small);
    if (status == MT_OK && has_two) {
        *tried = 2 * first;
        status = record(backend, batch, 2 * first, large);
    }
    if (status == MT_OK) status = mt_memory_model_new(small, has_two ? large : NULL, out);
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

/* How a batch may be cut: samples that a chunk must have, and those of the chunks of the finest cut. */
typedef struct cuts {
    size_t batch, least, smallest;
} cuts;

static size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}

/*
 * 32 samples in chunks of at least 30 are one chunk of 32: what counts is the number of chunks, whose
 * sizes differ by one at most.
 */
static cuts cuts_of(const ex_flags *flags, const mt_backend_info *info, size_t batch) {
    size_t least = ex_flags_least(flags, info);
    cuts c = {batch, least < 1 ? 1 : least > batch ? batch : least, 0};
    size_t chunks =
        flags->micro_batch ? ceil_div(batch, (size_t)flags->micro_batch) : batch / c.least;
    c.smallest = ceil_div(batch, chunks);
    return c;
}

/* The sizes of a batch cut into 1, 2, 3, 4, 8 ... chunks, and the largest that fits. */
static void print_chunks(const mt_memory_model *model, const mt_memory *memory, const cuts *c,
                         size_t largest) {
    size_t last = 0;
    printf("What a chunk of the batch needs\n  samples at once       peak with all else\n");
    for (size_t cut = c->batch / c->least; cut >= 1; cut = cut > 4 ? cut / 2 : cut - 1) {
        size_t samples = ceil_div(c->batch, cut);
        if (largest > last && largest < samples && largest >= c->least)
            print_chunk(model, memory, largest);
        if (samples > last) print_chunk(model, memory, samples);
        last = samples;
    }
}

static void print_verdict(const ex_flags *flags, const cuts *c, size_t largest) {
    const char *choice = flags->deterministic ? "--deterministic takes the fewest chunks"
                                              : "the fastest number of chunks is measured";
    size_t most = flags->max_micro_batch ? (size_t)flags->max_micro_batch : c->batch;
    if (most > largest) most = largest;
    size_t fewest = most ? ceil_div(c->batch, most) : 0, finest = c->batch / c->least;
    if (fewest > finest) fewest = finest; /* what is legal comes before --max-micro-batch */
    if (flags->micro_batch)
        printf("--micro-batch %lld fixes the chunks.\n", (long long)flags->micro_batch);
    else if (largest == 0)
        printf("Not even one sample fits.\n");
    else if (largest < c->smallest)
        printf(
            "At most %zu at once fit, and chunks of at least %zu leave a batch of %zu in chunks of "
            "%zu at the smallest.\n",
            largest, c->least, c->batch, c->smallest);
    else if (finest == 1)
        printf("A batch of %zu is one chunk: each has at least %zu samples.\n", c->batch, c->least);
    else
        printf("A batch of %zu is cut into %zu chunk%s or more; %s.\n", c->batch, fewest,
               fewest == 1 ? "" : "s", choice);
}

/* What --budget-resident and a control group's limit are about, where /proc tells of it. */
static void print_process(const mt_memory_model *model, const mt_memory *memory, size_t samples,
                          const ex_device *device) {
    char text[32];
    size_t peak = memory->allocated_bytes + mt_memory_model_peak(model, samples), bytes;
    if (!samples || strcmp(device->name, "cpu") != 0) return;
    if (mt_device_predict_resident(device->name, peak, &bytes) != MT_OK) return;
    printf("With %zu at once the process takes %s at most, code and libraries included.\n", samples,
           mt_format_size(bytes, text, sizeof text));
}

/* ---- whether it can fit at all ----------------------------------------------------------------- */

static size_t least_of(const mt_batch *batch, size_t samples) {
    return samples < 1 ? 1 : samples > batch->count ? batch->count : samples;
}

static int fits(const mt_backend *backend, const mt_batch *batch, size_t samples) {
    mt_recording *recording = NULL;
    mt_status status = mt_recording_new(&recording);
    if (status == MT_OK) status = record(backend, batch, samples, recording);
    mt_recording_free(recording);
    return status == MT_OK;
}

/*
 * A recording did not fit: no sizes can be told, but whether the smallest chunk goes through can.
 * went_through: samples of one that did; 0: of none so far.
 */
static mt_status explain_tight(const mt_backend *backend, const mt_batch *batch, size_t failed,
                               size_t went_through, size_t smallest) {
    printf("%zu sample%s at once do%s not fit: %s\n", failed, failed == 1 ? "" : "s",
           failed == 1 ? "es" : "", mt_last_error());
    if (smallest < failed && !went_through && fits(backend, batch, smallest))
        went_through = smallest;
    if (went_through) printf("%zu at once fit%s.\n", went_through, went_through == 1 ? "s" : "");
    if (went_through && smallest < failed) return MT_OK;
    return mt_set_error(MT_EDEVMEM, "the smallest chunk, of %zu sample%s, does not fit", smallest,
                        smallest == 1 ? "" : "s");
}

/* The margin is left out: what is refused here must be known not to fit. */
static mt_status check_smallest(const mt_memory_model *model, const mt_memory *memory,
                                size_t smallest) {
    char needs[32], budget[32];
    size_t peak = memory->allocated_bytes + mt_memory_model_peak(model, smallest);
    if (!memory->budget_bytes || peak <= memory->budget_bytes) return MT_OK;
    return mt_set_error(
        MT_EDEVMEM, "the smallest chunk, of %zu sample%s, needs %s, and the budget is %s", smallest,
        smallest == 1 ? "" : "s", mt_format_size(peak, needs, sizeof needs),
        mt_format_size(memory->budget_bytes, budget, sizeof budget));
}

static mt_status explain_chunks(const mt_backend *backend, const mt_backend_info *info,
                                const mt_batch *batch, const mt_memory *memory,
                                const ex_flags *flags, const ex_device *device) {
    size_t first = least_of(batch, info->min_micro_batch > 2 ? info->min_micro_batch : 2);
    const cuts c = cuts_of(flags, info, batch->count);
    size_t tried;
    mt_memory_model *model;
    mt_status status = learn(backend, batch, first, &tried, &model);
    if (status == MT_EDEVMEM)
        return explain_tight(backend, batch, tried, tried > first ? first : 0, c.smallest);
    if (status != MT_OK) return status;
    size_t largest =
        memory->budget_bytes ? mt_memory_model_largest(model, room_of(memory)) : batch->count;
    if (largest > batch->count) largest = batch->count;
    print_chunks(model, memory, &c, largest);
    print_verdict(flags, &c, largest);
    print_process(model, memory, largest, device);
    status = check_smallest(model, memory, c.smallest);
    mt_memory_model_free(model);
    return status;
}

/* ---- what else can be done --------------------------------------------------------------------- */

/* The savers in the order in which the policy takes them. */
static const struct {
    mt_rung rung;
    const char *what;
} savers[] = {{MT_RUNG_CPU, "on the CPU"}, {MT_RUNG_MINIMAL, "there with one thread"}};

/*
 * The smallest chunk does not fit. Turns on the savers that --fallback allows, one after the other as
 * the run would, to see whether it fits with them, and then off again. failed: the status so far, with
 * its line, which is returned where nothing helps.
 */
static mt_status explain_fallback(const mt_backend *backend, const mt_backend_info *info,
                                  const mt_batch *batch, const ex_flags *flags, mt_status failed) {
    char reason[512];
    size_t smallest = cuts_of(flags, info, batch->count).smallest;
    unsigned allowed = (unsigned)flags->fallback & info->rungs, on = 0;
    int helps = 0;
    if (!allowed || !backend->set_rung) return failed;
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    for (size_t i = 0; i < EX_ROWS(savers) && !helps; i++) {
        if (!(allowed & MT_RUNG_BIT(savers[i].rung))) continue;
        if (backend->set_rung(backend->self, savers[i].rung, 1) != MT_OK) continue;
        on |= MT_RUNG_BIT(savers[i].rung);
        helps = fits(backend, batch, smallest);
        printf("--fallback goes on %s: %zu at once %s.\n",
               info->rungs & MT_RUNG_BIT(MT_RUNG_CPU) ? savers[i].what : "with one thread",
               smallest, helps ? "fit" : "do not fit either");
    }
    for (size_t i = EX_ROWS(savers); i-- > 0;) {
        if (!(on & MT_RUNG_BIT(savers[i].rung))) continue;
        mt_status status = backend->set_rung(backend->self, savers[i].rung, 0);
        if (status != MT_OK) return status;
    }
    return helps ? MT_OK : mt_set_error(failed, "%s", reason);
}

/* No allocations can be watched: how the trainer finds its sizes then, see docs/policy.md. */
static void explain_unknown(const mt_backend *backend, const ex_flags *flags,
                            const ex_device *device) {
    printf("What a chunk needs is not known beforehand on %s, which does not tell of its "
           "allocations.\n",
           device->name);
    if (flags->micro_batch)
        printf("--micro-batch %lld fixes the chunks.\n", (long long)flags->micro_batch);
    else if (backend->reset_peak)
        printf("Chunks grow from step to step, by the peaks of those that went through.\n");
    else
        printf(
            "The largest chunk is tried first; one that is refused is taken back, and the next is "
            "two thirds of it.\n");
}

mt_status ex_explain(const mt_backend *backend, const mt_batch *batch, const ex_flags *flags,
                     const ex_device *device) {
    mt_backend_info info = {.size = sizeof info};
    mt_memory memory = {.size = sizeof memory};
    mt_status status = backend->describe(backend->self, &info);
    if (status == MT_OK) status = backend->memory(backend->self, &memory);
    if (status != MT_OK) return status;
    print_state(&info, &memory, device);
    if (backend->record)
        status = explain_chunks(backend, &info, batch, &memory, flags, device);
    else
        explain_unknown(backend, flags, device);
    if (status == MT_EDEVMEM) status = explain_fallback(backend, &info, batch, flags, status);
    printf("\n");
    fflush(stdout);
    return status;
}
