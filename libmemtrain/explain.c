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

/* The chunk that does not fit; 0: it was no chunk that memory ran out in. */
static size_t failed_chunk(const mt_trainer *t) {
    return t->ruled_out ? mt__policy_attainable(t->policy, t->ruled_out) : t->failure.chunk;
}

static int is_of_update(const mt_trainer *t) {
    return t->failure.phase == MT_PHASE_APPLY && !t->ruled_out;
}

/* What an update had and asked for beside what was in use before it. */
static mt__need need_of_update(const mt_trainer *t) {
    size_t seen = mt__add(t->failure.refused_in_use_bytes, t->failure.refused_bytes);
    return (mt__need){0, seen - mt__min(seen, t->failure.memory.allocated_bytes), 1};
}

/* Of the rungs that ask for least, of those that may be used and are known; or where there was room for that, of the last. */
static mt__need need_of(const mt_trainer *t, size_t chunk) {
    const mt_memory *memory = &t->failure.memory;
    mt__need least = mt__policy_least_need(t->policy, t->failure.mode, chunk);
    int is_too_much = mt__add(memory->allocated_bytes, least.bytes) > memory->budget_bytes;
    return least.bytes && is_too_much ? least : mt__policy_need(t->policy, &t->failure, chunk);
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
    row(p, is_of_update(t) ? "in use before the update" : "in use before the chunk", in_use);
    row(p, "  parameters", i->parameter_bytes);
    row(p, "  gradients", i->gradient_bytes);
    row(p, "  optimiser state", i->optimizer_bytes);
    row(p, "  buffers", i->buffer_bytes);
    if (known) row(p, "  other tensors", in_use - mt__min(in_use, known));
    row(p, "held beside it, unused", mt__cached(&t->failure.memory));
}

/* No budget is named that there is already: then it is not known what is missing. */
static void say_budget(page *p, const mt_trainer *t, const mt__need *need) {
    const mt_memory *memory = &t->failure.memory;
    size_t budget = mt__add(memory->allocated_bytes, need->bytes);
    char text[32];
    if (!budget_explains(t))
        say(p, "  no larger budget: the system or a test refused a request that was within it\n");
    else if (!need->bytes || budget <= memory->budget_bytes)
        say(p, "  more memory, how much is not known: the error line "
               "says what was refused, if anything does\n");
    else if (need->at_least)
        say(p,
            "  a budget of more than %s, how much is not known: the %s stopped at the first "
            "request that was refused (try half as much again)\n",
            mt_format_size(budget, text, sizeof text), is_of_update(t) ? "update" : "chunk");
    else
        say(p, "  a budget of %s (%zu bytes)\n", mt_format_size(budget, text, sizeof text), budget);
}

/* What makes a chunk smaller. */
static void say_sizes(page *p, const mt_trainer *t) {
    size_t least = mt__smallest_chunk(&t->policy_options, &t->info);
    if (t->info.needs_whole_batch)
        say(p, "  a smaller batch: its loss couples the samples, so it cannot be cut\n");
    else if (t->failure.plan_is_fixed)
        say(p, "  smaller chunks than those that are given\n");
    else if (t->policy_options.micro_batch > 1)
        say(p, "  a smaller micro-batch than the %zu that is asked for, or one that is chosen\n",
            t->policy_options.micro_batch);
    else if (least > 1)
        say(p, "  a smaller min_micro_batch than %zu, if the network allows it\n", least);
    say(p, "  smaller samples: a smaller picture, a shorter sequence\n");
}

/* Rungs that the backend has, and the user has forbidden or not asked for. */
static void say_rungs(page *p, const mt_trainer *t) {
    static const char *const words[MT_RUNGS] = {
        [MT_RUNG_CHECKPOINTING] = "computes activations again in the backward pass",
        [MT_RUNG_OFFLOAD] = "has activations wait elsewhere",
        [MT_RUNG_AMP] = "computes in half precision",
        [MT_RUNG_SMALLER_BATCH] = "makes the batch smaller, step by step",
        [MT_RUNG_CPU] = "goes on there",
    };
    const mt_policy_options *o = &t->policy_options;
    unsigned taken = (MT_RUNGS_DEFAULT | o->allow_rungs) & ~o->forbid_rungs, has = t->info.rungs;
    if (t->info.needs_whole_batch) has |= MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    for (unsigned r = 0; r < MT_RUNGS; r++)
        if (words[r] && (has & ~taken & MT_RUNG_BIT(r)))
            say(p, "  rung %s, which %s, if allow_rungs has it\n", mt_rung_name((mt_rung)r),
                words[r]);
}

static void say_remedies(page *p, const mt_trainer *t, const mt__need *need) {
    char text[32], less[32];
    say(p, "What would make it fit:\n");
    say_budget(p, t, need);
    if (is_of_update(t)) say(p, "  not smaller chunks or samples: the update takes as much\n");
    if (need->chunk) say_sizes(p, t);
    say_rungs(p, t);
    /* SGD keeps a momentum of each weight that trains. What keeps hardly more is SGD already, or as small. */
    size_t momentum = t->info.gradient_bytes ? t->info.gradient_bytes : t->info.parameter_bytes;
    if (t->info.optimizer_bytes > momentum + momentum / 2)
        say(p, "  an optimiser with less state: SGD keeps %s less, without momentum %s\n",
            mt_format_size(t->info.optimizer_bytes - momentum, less, sizeof less),
            mt_format_size(t->info.optimizer_bytes, text, sizeof text));
}

size_t mt_trainer_explain(const mt_trainer *trainer, char *text, size_t capacity) {
    const mt_trainer *t = trainer;
    page p = {text, text ? capacity : 0, 0};
    char size[32], asked[32];
    mt__need need = {0, 0, 0};
    if (p.capacity) text[0] = '\0';
    if (!mt__handle_is(t, MT__KIND_TRAINER) || !t->has_failure) return 0;
    const mt_oom *oom = &t->failure;
    size_t chunk = failed_chunk(t);
    if (chunk) need = need_of(t, chunk);
    if (is_of_update(t) && oom->refused) need = need_of_update(t);
    const char *device = t->info.device ? t->info.device : "the device";
    if (oom->attempt)
        say(&p, "A batch of %zu samples does not fit on %s: memory ran out in %s%s, and %s.\n",
            t->failed_batch, device, mt_phase_name(oom->phase),
            is_of_update(t) ? ", the optimiser's update after chunks that did fit" : "",
            t->ruled_out ? "what is left to try is known not to fit" : "nothing is left to try");
    else
        say(&p, "A batch of %zu samples does not fit on %s: it is known before it is tried.\n",
            t->failed_batch, device);
    if (oom->memory.budget_bytes)
        row(&p, "budget", oom->memory.budget_bytes);
    else
        say(&p, "  %-28s %12s\n", "budget", "not known");
    say_consumers(&p, t);
    if (is_of_update(t) && need.bytes)
        say(&p, "  %-28s %12s (at least; the last request was for %s)\n",
            "the update needs beside it", mt_format_size(need.bytes, size, sizeof size),
            mt_format_size(oom->refused_bytes, asked, sizeof asked));
    else if (need.bytes)
        say(&p, "  %-28s %12s (activations and work space of %zu sample%s%s)\n",
            "a chunk needs beside it", mt_format_size(need.bytes, size, sizeof size), need.chunk,
            need.chunk == 1 ? "" : "s", need.at_least ? ", at least" : "");
    say_remedies(&p, t, &need);
    return p.length;
}
