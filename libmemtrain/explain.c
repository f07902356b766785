/*
 * explain.c - says why a batch did not fit and what would make it fit.
 */
#include "trainer_state.h"

#include <stdarg.h>
#include <stdio.h>

/* Text that grows within the caller's buffer; length counts on past its end, as snprintf's does. */
typedef struct page {
    char *text;
    size_t capacity, length;
} page;

MT_PRINTF(2, 3) static void say(page *p, const char *format, ...) {
    size_t at = mt__min(p->length, p->capacity);
    va_list list;
    va_start(list, format);
    int n = vsnprintf(p->capacity ? p->text + at : NULL, p->capacity - at, format, list);
    va_end(list);
    if (n > 0) p->length += (size_t)n;
}

static void row(page *p, const char *name, size_t bytes) {
    char text[32];
    if (bytes) say(p, "  %-28s %12s\n", name, mt_format_size(bytes, text, sizeof text));
}

/* Bytes that the smallest chunk needs above what is in use: predicted, or seen until it was refused. */
static size_t needed(const mt_trainer *t, size_t chunk, int *at_least) {
    const mt_oom *oom = &t->failure;
    size_t predicted = mt_policy_predict_bytes(t->policy, oom->mode, chunk);
    size_t seen = mt__add(oom->refused_in_use_bytes, oom->refused_bytes);
    seen -= mt__min(seen, oom->allocated_before_bytes);
    *at_least = seen >= predicted;
    return mt__max(seen, predicted);
}

/* Whether the request that was refused would have exceeded the budget; so when nothing is known. */
static int budget_explains(const mt_trainer *t) {
    const mt_oom *oom = &t->failure;
    size_t wanted = mt__add(oom->refused_in_use_bytes, oom->refused_bytes);
    return !oom->refused || !oom->memory.budget_bytes || wanted > oom->memory.budget_bytes;
}

static void say_consumers(page *p, const mt_trainer *t) {
    const mt_backend_info *i = &t->info;
    size_t known = i->parameter_bytes + i->gradient_bytes + i->optimizer_bytes + i->buffer_bytes;
    size_t in_use = t->failure.memory.allocated_bytes;
    row(p, "in use before the chunk", in_use);
    row(p, "  parameters", i->parameter_bytes);
    row(p, "  gradients", i->gradient_bytes);
    row(p, "  optimiser state", i->optimizer_bytes);
    row(p, "  buffers", i->buffer_bytes);
    if (known) row(p, "  other tensors", in_use - mt__min(in_use, known));
}

static void say_remedies(page *p, const mt_trainer *t, size_t chunk, size_t bytes, int at_least) {
    char text[32], less[32];
    size_t budget = mt__add(t->failure.memory.allocated_bytes, bytes);
    say(p, "What would make it fit:\n");
    if (!budget_explains(t))
        say(p, "  what the system or a test refuses, not the budget: the request was within it\n");
    else if (at_least)
        say(p,
            "  a budget of more than %s, how much is not known: the chunk stopped at the first "
            "request that was refused (try half as much again)\n",
            mt_format_size(budget, text, sizeof text));
    else
        say(p, "  a budget of %s (%zu bytes)\n", mt_format_size(budget, text, sizeof text), budget);
    if (t->info.needs_whole_batch)
        say(p, "  a smaller batch: its loss couples the samples, so it cannot be cut\n");
    else if (t->policy_options.micro_batch > 1)
        say(p, "  a smaller micro-batch than the %zu that is asked for, or one that is chosen\n",
            t->policy_options.micro_batch);
    else if (chunk > 1)
        say(p, "  a smaller min_micro_batch than %zu, if the network allows it\n", chunk);
    say(p, "  smaller samples: a smaller picture, a shorter sequence\n");
    unsigned free = ~(t->policy_options.allow_rungs | MT_RUNGS_DEFAULT);
    if (t->info.needs_whole_batch && (free & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH)))
        say(p,
            "  rung smaller_batch, which takes 20 %% off the batch at a time, if it is allowed\n");
    if (t->info.rungs & free & MT_RUNG_BIT(MT_RUNG_CPU))
        say(p, "  rung cpu, which goes on there, if it is allowed\n");
    if (t->info.optimizer_bytes > t->info.parameter_bytes)
        say(p, "  an optimiser with less state: SGD keeps %s less, without momentum %s\n",
            mt_format_size(t->info.optimizer_bytes - t->info.parameter_bytes, less, sizeof less),
            mt_format_size(t->info.optimizer_bytes, text, sizeof text));
}

size_t mt_trainer_explain(const mt_trainer *trainer, char *text, size_t capacity) {
    const mt_trainer *t = trainer;
    page p = {text, text ? capacity : 0, 0};
    char size[32];
    int at_least;
    if (p.capacity) text[0] = '\0';
    if (!mt__handle_is(t, MT__KIND_TRAINER) || !t->has_failure) return 0;
    const mt_oom *oom = &t->failure;
    size_t least = mt__smallest_chunk(&t->policy_options, &t->info);
    size_t chunk = oom->chunk ? oom->chunk : mt__min(least, t->failed_batch);
    size_t bytes = needed(t, chunk, &at_least);
    const char *device = t->info.device ? t->info.device : "the device";
    if (oom->attempt)
        say(&p,
            "A batch of %zu samples does not fit on %s: memory ran out in %s, and nothing is left "
            "to try.\n",
            t->failed_batch, device, mt_phase_name(oom->phase));
    else
        say(&p, "A batch of %zu samples does not fit on %s: it is known before it is tried.\n",
            t->failed_batch, device);
    if (oom->memory.budget_bytes)
        row(&p, "budget", oom->memory.budget_bytes);
    else
        say(&p, "  %-28s %12s\n", "budget", "not known");
    say_consumers(&p, t);
    if (bytes)
        say(&p, "  %-28s %12s (activations and work space of %zu sample%s%s)\n",
            "a chunk needs beside it", mt_format_size(bytes, size, sizeof size), chunk,
            chunk == 1 ? "" : "s", at_least ? ", at least" : "");
    say_remedies(&p, t, chunk, bytes, at_least);
    return p.length;
}
