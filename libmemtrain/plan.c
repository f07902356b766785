/*
 * plan.c - plans: the chunks of one batch as a value of a few groups.
 */
#include "internal.h"

#include <string.h>

const char *mt_plan_reason_name(mt_plan_reason reason) {
    static const char *const names[] = {"start",  "throughput", "growth", "oom",
                                        "budget", "replay",     "user"};
    return (size_t)reason < sizeof names / sizeof *names ? names[reason] : "?";
}

size_t mt_plan_chunks(const mt_plan *plan) {
    size_t chunks = 0;
    for (size_t g = 0; plan && g < mt__min(plan->groups, MT_PLAN_GROUPS); g++)
        chunks += plan->group[g].times;
    return chunks;
}

size_t mt_plan_covered(const mt_plan *plan) {
    size_t samples = 0;
    for (size_t g = 0; plan && g < mt__min(plan->groups, MT_PLAN_GROUPS); g++)
        samples += plan->group[g].samples * plan->group[g].times;
    return samples;
}

size_t mt_plan_chunk(const mt_plan *plan, size_t index) {
    for (size_t g = 0; plan && g < mt__min(plan->groups, MT_PLAN_GROUPS); g++) {
        if (index < plan->group[g].times) return plan->group[g].samples;
        index -= plan->group[g].times;
    }
    return 0;
}

/* Adds a group of chunks; none of no chunks. */
static void add_group(mt_plan *plan, size_t samples, size_t times) {
    if (times) plan->group[plan->groups++] = (mt_chunk_group){samples, times};
}

mt_status mt__plan_append(mt_plan *plan, size_t samples, size_t chunks) {
    MT__CHECK(chunks >= 1 && chunks <= samples,
              "mt_plan_balanced: chunks is %zu; accepted is 1 to samples, %zu", chunks, samples);
    MT__CHECK(plan->groups + 2 <= MT_PLAN_GROUPS, "mt_plan_balanced: the plan has too many groups");
    size_t small = samples / chunks, larger = samples % chunks;
    add_group(plan, small + 1, larger);
    add_group(plan, small, chunks - larger);
    return MT_OK;
}

mt_status mt_plan_balanced(size_t samples, size_t chunks, mt_plan *out) {
    MT__CHECK(out, "mt_plan_balanced: out is NULL");
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    out->samples = samples;
    return mt__plan_append(out, samples, chunks);
}
