/*
 * fuzz_setup.c - draws a setup; see fuzz_setup.h.
 */
#include "fuzz_setup.h"

#include <math.h>
#include <stdio.h>

enum { PREPARED_MOST = 200 }; /* chunks of a batch, below FAKE_TOLD_MAX */

size_t fuzz_below(uint64_t *random, size_t bound) {
    return (size_t)(fake_random(random) % bound);
}

int fuzz_one_in(uint64_t *random, size_t cases) {
    return fuzz_below(random, cases) == 0;
}

/* ---- times of a chunk --------------------------------------------------------------------------- */

/* Beyond 12 samples each one takes longer. */
static double seconds_with_cliff(size_t samples) {
    return 0.001 + (samples <= 12 ? 0.0004 : 0.002) * (double)samples;
}

static double seconds_proportional(size_t samples) {
    return 0.0005 * (double)samples;
}

static double seconds_with_root(size_t samples) {
    return 0.0005 * sqrt((double)samples) + 0.0001 * (double)samples;
}

static const struct {
    const char *name;
    double (*of)(size_t samples);
} times[] = {
    {"none", NULL},
    {"affine", fake_seconds},
    {"cliff", seconds_with_cliff},
    {"proportional", seconds_proportional},
    {"root", seconds_with_root},
};

enum { TIMES = sizeof(times) / sizeof(times[0]) };

/* ---- the backend -------------------------------------------------------------------------------- */

static void draw_memory(fuzz_setup *s, uint64_t *random) {
    fake_options *o = &s->backend;

    s->fits = 1 + fuzz_below(random, 48);
    o->budget_bytes = o->resident_bytes + fake_program_peak(&fake_train_program, s->fits);
    o->budget_bytes += fuzz_below(random, 3) * fuzz_below(random, 9000);
    o->cache_keeps_bytes = fuzz_one_in(random, 3) ? fuzz_below(random, 40000) : 0;
    o->clear_seconds = 0.0002;
    if (fuzz_one_in(random, 5)) o->absent |= FAKE_BIT(FAKE_EMPTY_CACHE);
}

/* What the backend can tell of its memory. */
static void draw_knowledge(fake_options *o, uint64_t *random) {
    if (fuzz_one_in(random, 4)) o->absent |= FAKE_BIT(FAKE_RECORD);
    if (fuzz_one_in(random, 6)) {
        o->absent |= FAKE_BIT(FAKE_RESET_PEAK);
        o->no_peaks = 1;
    }
    o->no_evidence = fuzz_one_in(random, 4);
}

static void draw_model(fuzz_setup *s, uint64_t *random) {
    fake_options *o = &s->backend;

    if (fuzz_one_in(random, 3)) {
        o->units = fake_unit_table;
        o->unit_count = FAKE_UNITS_COUNT;
    }
    o->seconds = times[fuzz_below(random, TIMES)].of;
    o->normalises_over_batch = fuzz_one_in(random, 4);
    o->min_micro_batch = fuzz_one_in(random, 4) ? 1 + fuzz_below(random, s->fits) : 0;
    o->shapes = fuzz_one_in(random, 5);
    if (fuzz_one_in(random, 4)) {
        o->wide = (fake_program){fake_wide_allocations, FAKE_WIDE_COUNT};
        o->wide_above = 1 + fuzz_below(random, 20);
        o->tells_wide = fuzz_one_in(random, 2);
    }
}

/* What can be taken back, given up and told beforehand. */
static void draw_ways(fake_options *o, uint64_t *random) {
    o->keep = fuzz_one_in(random, 2);
    o->tells_gradients = fuzz_one_in(random, 2);
    o->prepares = fuzz_one_in(random, 8);
    o->defers = fuzz_one_in(random, 3);
    o->holds = o->keep && !o->prepares && fuzz_one_in(random, 2);
    if (o->holds) o->budget_bytes += FAKE_GRADIENT_BYTES * fuzz_below(random, 3);
}

static void draw_rungs(fake_options *o, uint64_t *random) {
    static const mt_rung savers[] = {MT_RUNG_CHECKPOINTING, MT_RUNG_OFFLOAD, MT_RUNG_MINIMAL};
    int has_savers = fuzz_one_in(random, 2);

    for (size_t i = 0; i < sizeof(savers) / sizeof(savers[0]); i++)
        if (has_savers && fuzz_one_in(random, 2)) o->rungs |= MT_RUNG_BIT(savers[i]);
    if (fuzz_one_in(random, 2)) {
        o->rungs |= MT_RUNG_BIT(MT_RUNG_CPU);
        o->cpu_bytes = 2000000;
    }
    for (int r = 0; r < MT_RUNGS; r++) o->rung_seconds[r] = 1.3;
}

/* ---- the policy and the batches ----------------------------------------------------------------- */

static void draw_shorter(fuzz_setup *s, uint64_t *random) {
    fake_options *o = &s->backend;

    if (o->prepares || fuzz_one_in(random, 2)) return;
    s->policy.allow_rungs |= MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    s->policy.rate_rule = (mt_rate_rule)fuzz_below(random, 3);
    o->may_shorten = 1;
    o->needs_whole_batch = fuzz_one_in(random, 2);
    if (o->needs_whole_batch) o->min_micro_batch = 0;
}

/* Where chunks may be cut at all: a largest one, or one that is fixed. */
static void draw_sizes(fuzz_setup *s, uint64_t *random) {
    size_t least = s->backend.min_micro_batch ? s->backend.min_micro_batch : 1;

    if (s->backend.needs_whole_batch) return;
    if (fuzz_one_in(random, 8))
        s->policy.micro_batch = least + fuzz_below(random, 4);
    else if (fuzz_one_in(random, 6))
        s->policy.max_micro_batch = least + fuzz_below(random, 20);
}

static void draw_policy(fuzz_setup *s, uint64_t *random) {
    s->policy.allow_rungs = s->backend.rungs & ~MT_RUNGS_DEFAULT;
    s->policy.keep_chunks = (int)fuzz_below(random, 3) - 1;
    s->policy.deterministic = fuzz_one_in(random, 4);
    s->policy.clear_every = (int)fuzz_below(random, 4) - 1;
    draw_shorter(s, random);
    draw_sizes(s, random);
}

static void draw_batches(fuzz_setup *s, uint64_t *random) {
    size_t most = fuzz_one_in(random, 4) ? 300 : 64;

    if (s->backend.needs_whole_batch) most = s->fits;
    if (s->backend.prepares && most > PREPARED_MOST) most = PREPARED_MOST;
    s->batch = 1 + fuzz_below(random, most);
    s->batches_vary = fuzz_one_in(random, 3);
    s->evaluates = fuzz_one_in(random, 3);
}

fuzz_setup fuzz_setup_of(uint64_t seed) {
    fuzz_setup s = {
        seed, (fuzz_trouble)(seed % FUZZ_TROUBLES), fake_defaults, MT_POLICY_OPTIONS_INIT, 0, 0, 0,
        0};
    uint64_t random = seed * 7919 + 17;

    draw_memory(&s, &random);
    draw_knowledge(&s.backend, &random);
    draw_model(&s, &random);
    draw_ways(&s.backend, &random);
    draw_rungs(&s.backend, &random);
    draw_policy(&s, &random);
    draw_batches(&s, &random);
    return s;
}

/* ---- words -------------------------------------------------------------------------------------- */

static const char *time_name(const fake_options *o) {
    for (int i = 0; i < TIMES; i++)
        if (times[i].of == o->seconds) return times[i].name;
    return "?";
}

static int backend_text(const fuzz_setup *s, char *text, size_t capacity) {
    const fake_options *o = &s->backend;

    return snprintf(
        text, capacity,
        "fits %zu, budget %zu, cache %zu, absent %x, no peaks %d, no evidence %d, "
        "times %s, units %d, norm %d, min %zu, shapes %d, wide above %zu (told %d), keep %d, "
        "tells %d, prepares %d, holds %d, rungs %x, whole %d",
        s->fits, o->budget_bytes, o->cache_keeps_bytes, o->absent, o->no_peaks, o->no_evidence,
        time_name(o), o->units != NULL, o->normalises_over_batch, o->min_micro_batch, o->shapes,
        o->wide_above, o->tells_wide, o->keep, o->tells_gradients, o->prepares, o->holds, o->rungs,
        o->needs_whole_batch);
}

const char *fuzz_setup_text(const fuzz_setup *s) {
    static const char *const troubles[FUZZ_TROUBLES] = {"budgets", "tensors", "refusals",
                                                        "no evidence", "device"};
    static char text[1000];
    const mt_policy_options *p = &s->policy;
    int length = backend_text(s, text, sizeof(text));

    snprintf(text + length, sizeof(text) - (size_t)length,
             "; allowed %x, keep chunks %d, deterministic %d, clear every %d, micro %zu, max %zu; "
             "batch %zu, varies %d, evaluates %d; %s",
             p->allow_rungs, p->keep_chunks, p->deterministic, p->clear_every, p->micro_batch,
             p->max_micro_batch, s->batch, s->batches_vary, s->evaluates, troubles[s->trouble]);
    return text;
}
