/*
 * breakdown.c - the tables of where memory goes; see breakdown.h.
 */
#include "breakdown.h"

#include <memtrain/policy.h>
#include <stdio.h>

/* ---- part by part -------------------------------------------------------------------------------- */

/* A figure that hangs on the peak of a step, which not every device tells. */
static const char *figure(size_t bytes, const ex_probed *step, char text[32]) {
    if (step->peak_bytes) return mt_format_size(bytes, text, 32);
    return "not told";
}

static void row(const char *name, size_t estimate, const char *measured, const char *published) {
    char text[32];
    printf("  %-32s %12s %12s  %s\n", name, mt_format_size(estimate, text, sizeof text), measured,
           published ? published : "");
}

static void row_of_bytes(const char *name, size_t estimate, size_t measured,
                         const char *published) {
    char text[32];
    row(name, estimate, mt_format_size(measured, text, sizeof text), published);
}

/* Peaks beside the state with nothing frozen, and with the first part that trains frozen. */
static mt_status measure_parts(const ex_breakdown *b, ex_probed *whole, size_t kept[EX_PARTS]) {
    ex_probe how = b->measure;
    how.options.amp = MT_DTYPE_NONE;
    how.options.checkpointing = MT_CHECKPOINTING_AUTO;
    mt_status status = ex_probe_step(&how, b->batch, whole);
    size_t before = whole->chunk_bytes;
    how.visit = NULL;
    for (size_t i = 0; i < b->part_count; i++) {
        ex_probed rest = {.chunk_bytes = 0};
        kept[i] = 0;
        if (!b->parts[i].prefix) continue;
        how.frozen = b->parts[i].prefix;
        if (status == MT_OK && i + 1 < b->part_count) status = ex_probe_step(&how, b->batch, &rest);
        kept[i] = before > rest.chunk_bytes ? before - rest.chunk_bytes : 0;
        before = rest.chunk_bytes;
    }
    return status;
}

static void print_part(const ex_part *part, size_t measured, const char *kept) {
    row_of_bytes(part->name, part->parameter_bytes, measured, part->published);
    if (!part->prefix) return;
    row("  its activations", part->activation_bytes, kept, "");
}

static void print_parts(const ex_breakdown *b, const ex_probed *whole,
                        const size_t kept[EX_PARTS]) {
    char text[32];
    size_t trained = 0, all = b->input_bytes;
    printf("A step on a batch of %zu, in one chunk, nothing saved\n  %-32s %12s %12s  %s\n",
           b->batch->count, "", "estimate", "measured", "published");
    row_of_bytes("input", b->input_bytes, b->input_bytes, b->published[0]);
    for (size_t i = 0; i < b->part_count; i++) {
        const ex_part *part = &b->parts[i];
        print_part(part, b->parameter_bytes[i], figure(kept[i], whole, text));
        all += part->parameter_bytes;
        if (!part->prefix) continue;
        all += part->activation_bytes;
        trained += part->parameter_bytes;
    }
    row_of_bytes("gradients", trained, whole->info.gradient_bytes, b->published[1]);
    row_of_bytes("optimiser state", 2 * trained, whole->info.optimizer_bytes, b->published[2]);
    row("all together", all + 3 * trained, figure(b->input_bytes + whole->peak_bytes, whole, text),
        b->published[3]);
}

/* ---- saver by saver ------------------------------------------------------------------------------ */

/* "41 %" of the step without a saver. */
static const char *share(size_t part, size_t whole, char text[16]) {
    if (!whole) return "";
    snprintf(text, 16, "%.0f %%", 100.0 * (double)part / (double)whole);
    return text;
}

static void print_saver(const ex_saver *saver, const ex_probed *with, const ex_probed *plain) {
    char chunk[32], peak[32], shares[2][16];
    printf("  %-32s %12s %7s %12s %7s %8.2f s  %s\n", saver->name,
           figure(with->chunk_bytes, with, chunk),
           share(with->chunk_bytes, plain->chunk_bytes, shares[0]),
           figure(with->peak_bytes, with, peak),
           share(with->peak_bytes, plain->peak_bytes, shares[1]), with->seconds,
           saver->published ? saver->published : "");
    fflush(stdout);
}

static mt_status print_savers(const ex_breakdown *b) {
    ex_probed plain = {.chunk_bytes = 0};
    mt_status status = MT_OK;
    printf("The same step with savers\n  %-32s %20s %20s %10s  %s\n", "", "activations", "peak",
           "step", "published");
    for (size_t i = 0; i < b->saver_count && status == MT_OK; i++) {
        ex_probe how = b->measure;
        ex_probed with;
        how.visit = NULL;
        how.options.amp = b->savers[i].amp;
        how.options.checkpointing = b->savers[i].checkpointing;
        how.micro_batch = b->savers[i].micro_batch;
        status = ex_probe_step(&how, b->batch, &with);
        if (i == 0) plain = with;
        if (status == MT_OK) print_saver(&b->savers[i], &with, &plain);
    }
    return status;
}

mt_status ex_breakdown_print(const ex_breakdown *b) {
    size_t kept[EX_PARTS] = {0};
    ex_probed whole;
    mt_status status = measure_parts(b, &whole, kept);
    if (status != MT_OK) return status;
    print_parts(b, &whole, kept);
    return print_savers(b);
}
