/*
 * explain.c - describes a run by its backend and what its policy makes of the batch; see explain.h.
 */
#include "explain.h"

#include "rehearse.h"

#include <memtrain/forecast.h>
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

/* Pages of files are nobody's: the system drops them where it needs the memory. */
static void print_mapped(const ex_device *device) {
    if (device->mapped_bytes) row("mapped weights, not counted", device->mapped_bytes);
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
    print_mapped(device);
    row("in use before the first step", memory->allocated_bytes);
    if (!memory->budget_bytes) return;
    print_budget(memory->budget_bytes, device);
    row("left for activations", room_of(memory));
}

/* On the CPU nothing that is allocated is left out; what else lies there is no matter of another device. */
void ex_explain_state(const mt_backend_info *info, size_t allocated_bytes,
                      const ex_device *device) {
    size_t all = info->parameter_bytes + info->gradient_bytes + info->optimizer_bytes;
    all += info->buffer_bytes;
    print_parts(info, device);
    row("buffers", info->buffer_bytes);
    all += print_ahead(device);
    if (strcmp(device->name, "cpu") == 0 && allocated_bytes > all) {
        row("other tensors", allocated_bytes - all);
        all = allocated_bytes;
    }
    print_mapped(device);
    row("these together", all);
    print_budget(device->budget_bytes, device);
    if (all > device->budget_bytes) row("missing", all - device->budget_bytes);
    printf("Activations come on top: what a chunk needs is known once these fit.\n\n");
    fflush(stdout);
}

/* ---- sizes ------------------------------------------------------------------------------------- */

/* "kept" and "alone": how gradients are, see docs/policy.md. */
static const char *way_of(int keep, int alone) {
    return alone ? "alone" : keep ? "kept" : "";
}

static void print_chunk(const mt_chunk_need *need, int has_budget) {
    char size[32], text[48];
    const char *verdict = need->fits ? "  fits" : need->may_fit ? "  not known" : "  does not fit";
    const char *way = way_of(need->keep, need->alone);
    mt_format_size(need->peak_bytes, size, sizeof size);
    snprintf(text, sizeof text, "%s%s", need->is_bound ? "at most " : "", size);
    printf("  %17zu %22s%s%s%s\n", need->samples, text, has_budget ? verdict : "", *way ? "  " : "",
           way);
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
    size_t least = info->needs_whole_batch ? batch : ex_flags_least(flags, info);
    cuts c = {batch, least < 1 ? 1 : least > batch ? batch : least, 0};
    size_t chunks =
        flags->micro_batch ? ceil_div(batch, (size_t)flags->micro_batch) : batch / c.least;
    c.smallest = ceil_div(batch, chunks);
    return c;
}

/* As small as the network allows. */
static cuts cuts_of_network(const mt_backend_info *info, const cuts *allowed) {
    cuts c = *allowed;
    if (!info->needs_whole_batch) c.least = info->min_micro_batch ? info->min_micro_batch : 1;
    return c;
}

/* One row; the words that are in it are to be explained below. */
static mt_status explain_chunk(const mt_forecast *f, const cuts *c, size_t samples, int has_budget,
                               mt_chunk_need *words) {
    mt_chunk_need need = MT_CHUNK_NEED_INIT;
    mt_status status = mt_forecast_need(f, c->batch, samples, &need);
    if (status != MT_OK) return status;
    print_chunk(&need, has_budget);
    words->alone |= need.alone;
    words->keep |= need.keep && !need.alone;
    words->is_bound |= need.is_bound;
    return MT_OK;
}

static void print_words(const mt_chunk_need *words) {
    if (words->is_bound)
        printf("at most: in proportion to the one size that went through, so it may be less.\n");
    if (words->keep)
        printf("kept: finished chunks stay when one fails, by a second set of gradients, for which "
               "there is room.\n");
    if (words->alone) printf("alone: no other gradients are held, since there is one chunk.\n");
}

static mt_forecast_report met_by(const mt_forecast *f) {
    mt_forecast_report report = MT_FORECAST_REPORT_INIT;
    (void)!mt_forecast_summary(f, &report);
    return report;
}

static void print_rungs(unsigned rungs) {
    const char *before = "";
    for (unsigned r = 0; r < MT_RUNGS; r++) {
        if (!(rungs & MT_RUNG_BIT(r))) continue;
        printf("%s%s", before, mt_rung_name((mt_rung)r));
        before = ", ";
    }
}

/*
 * The sizes of a batch cut into 1, 2, 3, 4, 8 ... chunks, and the largest that fits. Where nothing that is
 * allowed does, also those that are too small for the flags.
 */
static mt_status explain_sizes(const mt_forecast *f, const mt_backend_info *info,
                               const cuts *allowed, size_t largest, int has_budget) {
    const mt_forecast_report met = met_by(f);
    const cuts shown = largest < allowed->least ? cuts_of_network(info, allowed) : *allowed;
    const cuts *c = &shown;
    mt_chunk_need words = MT_CHUNK_NEED_INIT;
    size_t last = 0;
    mt_status status = MT_OK;
    printf("What a chunk of the batch needs");
    if (met.rungs || met.ladder_count) printf(met.rungs ? " with " : " with none of these");
    print_rungs(met.rungs);
    printf("\n  samples at once       peak with all else\n");
    for (size_t cut = c->batch / c->least; cut >= 1; cut = cut > 4 ? cut / 2 : cut - 1) {
        size_t samples = ceil_div(c->batch, cut);
        if (largest > last && largest < samples && largest >= c->least && status == MT_OK)
            status = explain_chunk(f, c, largest, has_budget, &words);
        if (samples > last && status == MT_OK)
            status = explain_chunk(f, c, samples, has_budget, &words);
        last = samples;
    }
    print_words(&words);
    return status;
}

/* Two sizes tell of all; where none goes through nothing is told. */
static mt_status explain_table(mt_forecast *f, const mt_backend_info *info, const cuts *c,
                               int has_budget, size_t *largest) {
    *largest = 0;
    mt_status status = mt_forecast_record(f);
    if (status == MT_EDEVMEM) return MT_OK;
    if (status == MT_OK) status = mt_forecast_largest(f, c->batch, largest);
    return status == MT_OK ? explain_sizes(f, info, c, *largest, has_budget) : status;
}

/* ---- the step ---------------------------------------------------------------------------------- */

static void print_fixed(const ex_flags *flags) {
    if (flags->micro_batch)
        printf("--micro-batch %lld fixes the chunks.\n", (long long)flags->micro_batch);
}

static void print_peak(const mt_plan *plan, int is_bound) {
    char text[32];
    size_t chunks = mt_plan_chunks(plan), bytes = plan->predicted_peak_bytes;
    const char *way = way_of(plan->keep, plan->alone);
    if (bytes)
        printf("A step of %zu chunk%s of %zu%s%s takes %s%s at its peak (%zu bytes).\n", chunks,
               chunks == 1 ? "" : "s", mt_plan_chunk(plan, 0), *way ? ", " : "", way,
               is_bound ? "at most " : "", mt_format_size(bytes, text, sizeof text), bytes);
}

static void print_plan(const ex_flags *flags, const cuts *c, const mt_plan *plan, int is_bound) {
    const char *choice = flags->deterministic ? "--deterministic takes the fewest chunks"
                                              : "the fastest number of chunks is measured";
    size_t chunks = mt_plan_chunks(plan);
    print_fixed(flags);
    if (!flags->micro_batch && c->batch / c->least == 1)
        printf("A batch of %zu is one chunk: each has at least %zu samples.\n", c->batch, c->least);
    else if (!flags->micro_batch)
        printf("A batch of %zu is cut into %zu chunk%s or more; %s.\n", c->batch, chunks,
               chunks == 1 ? "" : "s", choice);
    print_peak(plan, is_bound);
}

static void print_refusal(const mt_forecast *f, const ex_flags *flags, const cuts *c,
                          size_t largest) {
    const mt_forecast_report met = met_by(f);
    print_fixed(flags);
    if (!largest && met.refused && met.refused < c->smallest)
        printf("%s even %zu at once do, the fewest that this network can be trained on.\n",
               met.ladder_count ? "With none of these not" : "Not", met.refused);
    if (!flags->micro_batch && largest && largest < c->smallest)
        printf("At most %zu at once fit, and chunks of at least %zu leave a "
               "batch of %zu in chunks of %zu at the smallest.\n",
               largest, c->least, c->batch, c->smallest);
}

/* What --budget-resident and a control group's limit are about, where /proc tells of it. */
static void print_process(const mt_plan *plan, const ex_device *device) {
    char text[32];
    size_t bytes;
    if (!plan->predicted_peak_bytes || strcmp(device->name, "cpu") != 0) return;
    if (mt_device_predict_resident(device->name, plan->predicted_peak_bytes, &bytes) != MT_OK)
        return;
    printf("With %zu at once the process takes %s at most, code and libraries included.\n",
           mt_plan_chunk(plan, 0), mt_format_size(bytes, text, sizeof text));
}

/* The rungs that had to be taken, one after the other, and what came of each. */
static void print_ladder(const mt_forecast *f, size_t batch) {
    const mt_forecast_report met = met_by(f);
    mt_rungs_tried t = MT_RUNGS_TRIED_INIT;
    if (met.failed)
        printf("%zu sample%s at once do%s not fit: %s\n", met.failed, met.failed == 1 ? "" : "s",
               met.failed == 1 ? "es" : "", met.error);
    for (size_t i = 0; i < met.ladder_count && mt_forecast_ladder(f, i, &t) == MT_OK; i++) {
        printf("With ");
        print_rungs(t.rungs);
        if (t.samples < batch) printf(" (%zu of %zu)", t.samples, batch);
        printf(": %zu at once %s.\n", t.chunk, t.fits ? "fit" : "do not fit either");
    }
    if (!met.rungs) return;
    printf("Rungs that the run takes: ");
    print_rungs(met.rungs);
    printf("\n");
}

static mt_status refuse(const cuts *c) {
    return mt_set_error(MT_EDEVMEM, "the smallest chunk, of %zu sample%s, does not fit: %s",
                        c->smallest, c->smallest == 1 ? "" : "s", mt_last_error());
}

/* plan NULL: nothing that is allowed helps. */
static mt_status explain_outcome(mt_forecast *f, const mt_backend_info *info, const mt_batch *batch,
                                 const cuts *c, const mt_plan *plan, int has_budget,
                                 const ex_flags *flags, const ex_device *device) {
    size_t largest;
    print_ladder(f, batch->count);
    mt_status status = explain_table(f, info, c, has_budget, &largest);
    if (!plan) {
        print_refusal(f, flags, c, largest);
        return status;
    }
    size_t chunk = mt_plan_chunk(plan, 0);
    if (!largest) printf("%zu at once fit%s.\n", chunk, chunk == 1 ? "s" : "");
    print_plan(flags, c, plan, mt_forecast_is_bound(f, plan));
    /* Where no chunk ran for real, what chunks leave in the heap is not known. */
    if (batch->data && !ex_rehearse_is_dry(flags->rehearse, flags->image_size))
        print_process(plan, device);
    return status;
}

static mt_status explain_step(const mt_backend *backend, const mt_backend_info *info,
                              const mt_batch *batch, int has_budget, const ex_flags *flags,
                              const ex_device *device) {
    const mt_policy_options options = ex_flags_policy(flags);
    char reason[512];
    mt_forecast *f;
    mt_plan plan;
    mt_status status = mt_forecast_new(backend, batch, &options, &f);
    if (status != MT_OK) return status;
    status = mt_forecast_step(f, &plan);
    int fits = status == MT_OK;
    const cuts c = cuts_of(flags, info, fits ? plan.samples : batch->count);
    if (status == MT_EDEVMEM) status = refuse(&c);
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    if (fits || status == MT_EDEVMEM) {
        mt_status told =
            explain_outcome(f, info, batch, &c, fits ? &plan : NULL, has_budget, flags, device);
        if (fits) snprintf(reason, sizeof reason, "%s", mt_last_error());
        if (fits) status = told;
    }
    mt_forecast_free(f);
    return status == MT_OK ? MT_OK : mt_set_error(status, "%s", reason);
}

/* ---- what is not known ------------------------------------------------------------------------- */

/*
 * How the trainer finds its sizes where nothing is recorded, see docs/policy.md. Chunks that are recorded come
 * first where they need not be taken back, though nothing comes of it.
 */
static const char *search_of(const mt_backend *backend, const mt_backend_info *info, int has_budget,
                             const ex_flags *flags) {
    int is_taken_back = info->normalises_over_batch || backend->prepare;
    if (backend->reset_peak)
        return "Chunks grow from step to step, by the peaks of those that went through.";
    if (has_budget && !flags->deterministic)
        return "Chunks begin small, where the batch is large enough for that, and grow while that "
               "pays; one that is refused is taken back, and the next is about two thirds of it, "
               "or less.";
    if (has_budget && !is_taken_back)
        return "After two small chunks the largest is tried; one that is refused is taken back, "
               "and the next is about two thirds of it, or less.";
    return "The largest chunk is tried first; one that is refused is taken back, and the next is "
           "about two thirds of it, or less.";
}

/* Those that are left to take: allowed, and there. */
static void print_rungs_left(const mt_backend_info *info, const ex_flags *flags) {
    const mt_policy_options options = ex_flags_policy(flags);
    unsigned has = info->rungs | MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    unsigned left = has & (MT_RUNGS_DEFAULT | options.allow_rungs) & ~options.forbid_rungs;
    if (!left) return;
    printf("Where not even the smallest chunk fits, the run takes one rung after the other: ");
    print_rungs(left);
    printf("\n");
}

static void explain_unknown(const mt_backend *backend, const mt_backend_info *info, int has_budget,
                            const ex_flags *flags, const ex_device *device) {
    printf("What a chunk needs is not known beforehand on %s, which does not tell of its "
           "allocations; --device cpu tells what it needs there.\n",
           device->name);
    print_fixed(flags);
    if (!flags->micro_batch) printf("%s\n", search_of(backend, info, has_budget, flags));
    print_rungs_left(info, flags);
}

mt_status ex_explain(const mt_backend *backend, const mt_batch *batch, const ex_flags *flags,
                     const ex_device *device) {
    mt_backend_info info = {.size = sizeof info};
    mt_memory memory = MT_MEMORY_INIT;
    mt_status status = backend->describe(backend->self, &info);
    if (status == MT_OK) status = backend->memory(backend->self, &memory);
    if (status != MT_OK) return status;
    print_state(&info, &memory, device);
    if (backend->record && !info.record_rungs)
        status = explain_step(backend, &info, batch, memory.budget_bytes > 0, flags, device);
    else
        explain_unknown(backend, &info, memory.budget_bytes > 0, flags, device);
    printf("\n");
    fflush(stdout);
    return status;
}
