/*
 * forecast.c - drives a policy through the beginning of a run; see forecast.h.
 */
#include "forecast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Plans until sizes are known: a few for each rung, and a batch may be made smaller often. */
enum { MOST_PLANS = 256 };

/* No limit, but one: without any the policy predicts nothing. */
#define NO_LIMIT ((size_t)1 << 60)

typedef struct event {
    void *address;
    int64_t bytes;
} event;

struct ex_recorded {
    ex_recorded *next;
    unsigned rungs;
    size_t samples, allocated_before;
    int alone; /* its gradients are the only ones */
    mt_chunk_result result;
    event *events;
    size_t count, capacity;
    int incomplete; /* host memory ran out */
};

int ex_forecast_can_record(const mt_backend *backend, const mt_backend_info *info) {
    return backend->record && !info->record_rungs;
}

/* ---- chunks ------------------------------------------------------------------------------------ */

static void on_event(void *user, void *address, int64_t bytes) {
    ex_recorded *r = user;
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 1024;
        event *grown = realloc(r->events, capacity * sizeof *grown);
        r->incomplete = r->incomplete || !grown;
        if (!grown) return;
        r->events = grown;
        r->capacity = capacity;
    }
    r->events[r->count++] = (event){address, bytes};
}

static void free_recorded(ex_recorded *r) {
    while (r) {
        ex_recorded *next = r->next;
        free(r->events);
        free(r);
        r = next;
    }
}

/* A smaller batch has the same chunks. */
static unsigned kind_of(unsigned rungs) {
    return rungs & ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
}

static const ex_recorded *find(const ex_forecast *f, size_t samples) {
    const ex_recorded *r = f->recorded;
    while (r && (r->samples != samples || r->rungs != kind_of(f->rungs))) r = r->next;
    return r;
}

static mt_status read_memory(const ex_forecast *f, mt_memory *out) {
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    mt_status status = f->backend->memory(f->backend->self, out);
    if (!out->budget_bytes) out->budget_bytes = NO_LIMIT;
    return status;
}

/* The chunk itself, inside of a step that has begun. */
static mt_status accumulate(const ex_forecast *f, ex_recorded *r) {
    const mt_backend *b = f->backend;
    const mt_event_sink sink = {r, on_event};
    mt_memory memory;
    mt_status status = r->alone ? b->mark(b->self) : MT_OK;
    if (status == MT_OK) status = read_memory(f, &memory);
    if (status != MT_OK) return status;
    r->allocated_before = memory.allocated_bytes;
    if (b->prepare) /* a loss over pairs */
        status = b->prepare(b->self, &r->samples, 1, &r->result);
    if (status == MT_OK) status = b->record(b->self, &sink);
    if (status != MT_OK) return status;
    double weight = (double)r->samples / (double)f->batch->count;
    status = b->accumulate(b->self, 0, r->samples, weight, &r->result);
    mt_status stopped = b->record(b->self, NULL);
    return status == MT_OK ? stopped : status;
}

/* Runs the first samples of the batch as a chunk, and takes it back. */
static mt_status run(const ex_forecast *f, ex_recorded *r) {
    const mt_backend *b = f->backend;
    r->result.size = sizeof r->result;
    mt_status status = b->begin(b->self, f->batch);
    if (status != MT_OK) return status;
    status = accumulate(f, r);
    mt_status back = b->rollback(b->self);
    return back != MT_OK ? back : status;
}

/* The words of the first alone: what comes after it is another plan for the same reason. */
static void note_failure(ex_forecast *f, size_t samples) {
    if (!f->refused || samples < f->refused) f->refused = samples;
    if (f->failed) return;
    f->failed = samples;
    snprintf(f->error, sizeof f->error, "%s", mt_last_error());
}

/* One that has run already is not run again. failed: of one that does not fit, what it told. */
static mt_status record(ex_forecast *f, size_t samples, ex_recorded *failed) {
    if (find(f, samples)) return MT_OK;
    ex_recorded *r = calloc(1, sizeof *r);
    if (!r) return mt_set_error(MT_ENOMEM, "out of host memory");
    r->samples = samples;
    r->rungs = kind_of(f->rungs);
    mt_status status = run(f, r);
    if (status == MT_EDEVMEM) note_failure(f, samples);
    if (status != MT_OK) {
        *failed = *r; /* with its events */
        free(r);
        return status;
    }
    if (samples >= f->refused) f->refused = 0; /* it was not for good */
    /* Ascending, as policies are to be told. */
    ex_recorded **place = &f->recorded;
    while (*place && (*place)->samples < samples) place = &(*place)->next;
    r->next = *place;
    *place = r;
    return MT_OK;
}

/* Fills the recording that the policy wants of a chunk, if it wants one. */
static void tell_events(mt_policy *policy, const ex_recorded *r) {
    mt_recording *recording = mt_policy_recording(policy, MT_TRAIN, r->samples);
    for (size_t i = 0; recording && !r->incomplete && i < r->count; i++)
        mt_recording_event(recording, r->events[i].address, r->events[i].bytes);
}

/* Tells a policy of a chunk as the run would. */
static mt_status tell(mt_policy *policy, const ex_recorded *r) {
    tell_events(policy, r);
    return mt_policy_observe(policy, MT_TRAIN, r->samples, r->allocated_before, &r->result);
}

/* ---- rungs ------------------------------------------------------------------------------------- */

static mt_status set_rung(ex_forecast *f, unsigned rung, int on) {
    const mt_backend *b = f->backend;
    mt_status status = MT_OK;
    if (rung != MT_RUNG_SMALLER_BATCH) status = b->set_rung(b->self, (mt_rung)rung, on);
    if (status != MT_OK) return status;
    f->rungs ^= MT_RUNG_BIT(rung);
    if (rung != MT_RUNG_SMALLER_BATCH) f->refused = 0; /* that was another kind of chunk */
    return MT_OK;
}

/* What the plan asks of the ladder. *again: a rung could not be set, so that there is another plan. */
static mt_status take_rungs(ex_forecast *f, mt_policy *policy, const mt_plan *plan, int *again) {
    for (unsigned r = 0; r < MT_RUNGS; r++) {
        int on = (plan->rungs & MT_RUNG_BIT(r)) != 0;
        if (!((plan->rungs ^ f->rungs) & MT_RUNG_BIT(r))) continue;
        mt_status status = set_rung(f, r, on);
        *again = status == MT_EDEVMEM || status == MT_ENOTSUP;
        if (*again) return mt_policy_rung_failed(policy, (mt_rung)r, on, status);
        if (status != MT_OK) return status;
    }
    return MT_OK;
}

static size_t least_of(const ex_forecast *f, size_t samples) {
    size_t least =
        f->options.min_micro_batch ? f->options.min_micro_batch : f->info.min_micro_batch;
    if (f->info.needs_whole_batch || least > samples) return samples;
    return least ? least : 1;
}

/* The smallest chunk that a batch of so many can be cut into: sizes differ by one at most. */
static size_t smallest_chunk(const ex_forecast *f, size_t samples) {
    size_t chunks = samples / least_of(f, samples), fixed = f->options.micro_batch;
    if (fixed && (samples + fixed - 1) / fixed < chunks) chunks = (samples + fixed - 1) / fixed;
    return (samples + chunks - 1) / chunks;
}

static void note_rungs(ex_forecast *f, const mt_plan *plan) {
    size_t n = f->tried_count, samples = plan->samples;
    if (n && f->tried[n - 1].rungs == plan->rungs && f->tried[n - 1].samples == samples) return;
    if ((!n && !plan->rungs) || n == EX_TRIED) return;
    f->tried[f->tried_count++] =
        (ex_tried){plan->rungs, samples, smallest_chunk(f, plan->samples), 0};
}

/* ---- the policy -------------------------------------------------------------------------------- */

/* What the trainer adds to what the backend says of itself. */
static mt_status describe(ex_forecast *f) {
    const mt_backend *b = f->backend;
    f->info.size = sizeof f->info;
    mt_status status = b->describe ? b->describe(b->self, &f->info) : MT_OK;
    f->info.keeps_chunks = b->mark && b->rewind && !b->prepare;
    f->info.holds_gradients = b->hold_gradients && !b->prepare;
    if (b->prepare) f->info.normalises_over_batch = 1;
    if (!b->set_rung) f->info.rungs = 0;
    if (status == MT_OK && b->hold_gradients) status = b->hold_gradients(b->self, 1);
    return status;
}

/*
 * Whether there is nothing to learn before the chunks of a plan are those of every later step: one that has
 * been predicted alone may not fit yet, and of kernels that have not run nothing is promised. Not run are chunks
 * whose gradients lie otherwise than they do here.
 */
static int is_known(const ex_forecast *f, const mt_policy *policy, const mt_plan *plan) {
    size_t chunk = mt_plan_chunk(plan, 0);
    if (plan->discard || mt_plan_covered(plan) != plan->samples) return 0;
    if (!mt_policy_predict_bytes(policy, MT_TRAIN, chunk)) return 0;
    int is_promised = plan->predicted_peak_bytes && (plan->keep || plan->alone);
    return is_promised || find(f, chunk);
}

/*
 * The whole batch as one chunk whose gradients are the only ones: the memory of others is given back meanwhile. It tells
 * of no other size, so that it is not kept.
 */
static mt_status learn_alone(ex_forecast *f, mt_policy *policy, size_t samples,
                             ex_recorded *failed) {
    const mt_backend *b = f->backend;
    *failed = (ex_recorded){.samples = samples, .alone = 1};
    mt_status status = b->hold_gradients(b->self, 0);
    if (status != MT_OK) return status;
    status = run(f, failed);
    mt_status held = b->hold_gradients(b->self, 1);
    if (held != MT_OK) status = held;
    f->ran_alone = status == MT_OK ? samples : 0;
    if (status == MT_OK) status = tell(policy, failed);
    free(failed->events);
    failed->events = NULL;
    failed->count = 0;
    return status;
}

/* The first chunks of a plan, each once. */
static mt_status learn(ex_forecast *f, mt_policy *policy, const mt_plan *plan,
                       ex_recorded *failed) {
    mt_status status = MT_OK;
    if (plan->alone) return learn_alone(f, policy, plan->samples, failed);
    for (size_t g = 0; g < plan->groups && status == MT_OK; g++) {
        failed->samples = plan->group[g].samples;
        status = record(f, failed->samples, failed);
        if (status == MT_OK) status = tell(policy, find(f, failed->samples));
    }
    return status;
}

/* Asks what to do after an OOM. *replan: another plan; else the same chunks again. */
static mt_status answer(ex_forecast *f, mt_policy *policy, const ex_recorded *failed,
                        unsigned attempt, int *replan) {
    const mt_backend *b = f->backend;
    mt_clear_result cleared = MT_CLEAR_RESULT_INIT;
    mt_action action;
    char reason[512];
    mt_oom oom = {sizeof oom, MT_TRAIN, MT_PHASE_ACCUMULATE, .chunk = failed->samples};
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    oom.attempt = attempt;
    oom.refused = failed->result.refused;
    oom.refused_bytes = failed->result.refused_bytes;
    oom.refused_in_use_bytes = failed->result.refused_in_use_bytes;
    oom.allocated_before_bytes = failed->allocated_before;
    mt_status status = read_memory(f, &oom.memory);
    tell_events(policy, failed);
    if (status == MT_OK) status = mt_policy_oom(policy, &oom, &action);
    if (status != MT_OK) return status;
    *replan = action == MT_ACTION_REPLAN;
    if (action == MT_ACTION_GIVE_UP) return mt_set_error(MT_EDEVMEM, "%s", reason);
    if (action != MT_ACTION_CLEAR || !b->empty_cache) return MT_OK;
    status = b->empty_cache(b->self, &cleared);
    if (status == MT_OK) mt_policy_cleared(policy, &cleared);
    return status == MT_EDEVMEM ? MT_OK : status;
}

/* Runs what a plan wants to know, until another one is to be made. */
static mt_status try_plan(ex_forecast *f, mt_policy *policy, const mt_plan *plan,
                          unsigned *attempt) {
    int replan = 0;
    for (;;) {
        ex_recorded failed = {0};
        mt_status status = learn(f, policy, plan, &failed);
        if (status != MT_EDEVMEM) {
            if (status != MT_OK) free(failed.events);
            return status;
        }
        status = answer(f, policy, &failed, ++*attempt, &replan);
        free(failed.events);
        if (status != MT_OK || replan) return status;
    }
}

/* A plan whose rungs are on; of another device's memory its chunks are told once that is known. */
static mt_status ask(ex_forecast *f, mt_policy *policy, mt_plan *plan) {
    mt_memory memory;
    int again = 1;
    mt_status status = MT_OK;
    while (again && status == MT_OK) {
        again = 0;
        status = read_memory(f, &memory);
        if (status == MT_OK)
            status = mt_policy_plan(policy, MT_TRAIN, f->batch->count, &memory, plan);
        if (status == MT_OK) status = take_rungs(f, policy, plan, &again);
    }
    if (status != MT_OK) return status;
    note_rungs(f, plan);
    if (plan->groups) return MT_OK;
    status = read_memory(f, &memory);
    return status == MT_OK ? mt_policy_extend(policy, MT_TRAIN, &memory, plan) : status;
}

static mt_status plan_step(ex_forecast *f, mt_policy *policy, mt_plan *plan) {
    unsigned attempt = 0;
    mt_status status = MT_OK;
    for (int i = 0; i < MOST_PLANS && status == MT_OK; i++) {
        status = ask(f, policy, plan);
        if (status == MT_OK && is_known(f, policy, plan)) break;
        /* A chunk whose peak is told would run to be sure of it: for a forecast the telling is enough. */
        int is_told = plan->discard && plan->predicted_peak_bytes;
        if (status == MT_OK && !is_told) status = try_plan(f, policy, plan, &attempt);
    }
    if (status == MT_OK && f->tried_count) f->tried[f->tried_count - 1].fits = 1;
    return status;
}

/* Off again, the newest first. */
static mt_status give_back(ex_forecast *f) {
    mt_status status = MT_OK;
    for (unsigned r = MT_RUNGS; r-- > 0 && status == MT_OK;)
        if (f->rungs & MT_RUNG_BIT(r)) status = set_rung(f, r, 0);
    return status;
}

/* Where the policy promises no peak, the most that it can be. */
static mt_status add_bound(const ex_forecast *f, const mt_policy *policy, mt_plan *plan) {
    mt_memory memory;
    size_t bytes = mt_policy_predict_bytes(policy, MT_TRAIN, mt_plan_chunk(plan, 0));
    if (plan->predicted_peak_bytes || !bytes || !ex_forecast_is_bound(f, plan)) return MT_OK;
    mt_status status = read_memory(f, &memory);
    plan->predicted_peak_bytes =
        memory.allocated_bytes + bytes + (plan->keep ? f->info.gradient_bytes : 0);
    return status;
}

mt_status ex_forecast_step(const mt_backend *backend, const mt_batch *batch,
                           const mt_policy_options *options, ex_forecast *out, mt_plan *plan) {
    mt_policy *policy = NULL;
    memset(out, 0, sizeof *out);
    out->backend = backend;
    out->batch = batch;
    out->options = *options;
    out->options.deterministic = 1;
    mt_status status = describe(out);
    if (status == MT_OK) status = mt_policy_new(&out->options, &out->info, &policy);
    if (status == MT_OK) status = plan_step(out, policy, plan);
    if (status == MT_OK) status = add_bound(out, policy, plan);
    mt_policy_free(policy);
    if (status != MT_EDEVMEM) return status;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    status = give_back(out);
    return status == MT_OK ? mt_set_error(MT_EDEVMEM, "%s", reason) : status;
}

mt_status ex_forecast_free(ex_forecast *f) {
    mt_status status = give_back(f);
    free_recorded(f->recorded);
    f->recorded = NULL;
    return status;
}

mt_status ex_forecast_least(const mt_backend *backend, const mt_batch *batch,
                            const mt_policy_options *options, size_t *out) {
    mt_policy_options smaller = *options;
    mt_backend_info info = {.size = sizeof info};
    ex_forecast f;
    mt_plan plan;
    *out = 0;
    mt_status status = backend->describe(backend->self, &info);
    smaller.allow_rungs &= MT_RUNG_BIT(MT_RUNG_AMP);
    smaller.max_micro_batch = options->min_micro_batch - 1;
    smaller.micro_batch = smaller.min_micro_batch = 0;
    if (status != MT_OK || info.needs_whole_batch) return status;
    if (options->min_micro_batch <= info.min_micro_batch + !info.min_micro_batch) return MT_OK;
    status = ex_forecast_step(backend, batch, &smaller, &f, &plan);
    if (status == MT_OK) *out = batch->count / mt_plan_chunks(&plan);
    mt_status freed = ex_forecast_free(&f);
    return status == MT_OK || status == MT_EDEVMEM ? freed : status;
}

/* ---- sizes ------------------------------------------------------------------------------------- */

/* Sizes that went through with the rungs that are on. */
static size_t count_sizes(const ex_forecast *f) {
    size_t count = 0;
    for (const ex_recorded *r = f->recorded; r; r = r->next) count += r->rungs == kind_of(f->rungs);
    return count;
}

/* A size and twice as many; where these do not go through the next ones nearer to it. */
static mt_status record_pair(ex_forecast *f, size_t first) {
    ex_recorded failed;
    size_t count = f->batch->count, second = 2 * first < count ? 2 * first : count;
    mt_status status = record(f, first, &failed);
    if (status == MT_OK) status = record(f, second, &failed);
    while (status == MT_EDEVMEM && second > first && count_sizes(f) < 2) {
        second = first + (second - first) / 2;
        status = record(f, second, &failed);
    }
    return status == MT_EDEVMEM && second > first ? MT_OK : status;
}

mt_status ex_forecast_record(ex_forecast *f) {
    size_t count = f->batch->count, least = least_of(f, count), first = least > 2 ? least : 2;
    size_t network = f->info.min_micro_batch ? f->info.min_micro_batch : 1;
    if (first > count) first = count;
    mt_status status = record_pair(f, first);
    if (status != MT_EDEVMEM || f->info.needs_whole_batch || network >= first) return status;
    if (network < 2 && first > 2) status = record_pair(f, 2); /* one takes other kernels */
    return status == MT_EDEVMEM ? record_pair(f, network) : status;
}

static int is_bound(const ex_forecast *f, size_t samples) {
    return count_sizes(f) < 2 && !find(f, samples);
}

int ex_forecast_is_bound(const ex_forecast *f, const mt_plan *plan) {
    /* Chunks that are fixed are not recorded: of a second set of gradients nothing but its size is known. */
    if (f->options.micro_batch && plan->keep && !plan->alone) return 1;
    if (plan->alone && f->ran_alone == plan->samples) return 0;
    return is_bound(f, mt_plan_chunk(plan, 0));
}

/* A policy of those chunks alone, which has no rungs: those that are on are the backend's own. */
static mt_status teach(const ex_forecast *f, size_t chunk, mt_policy **out) {
    mt_policy_options options = f->options;
    mt_backend_info info = f->info;
    info.rungs = options.allow_rungs = 0;
    options.micro_batch = options.min_micro_batch = 0;
    options.max_micro_batch = chunk;
    info.min_micro_batch = info.needs_whole_batch = 0;
    mt_status status = mt_policy_new(&options, &info, out);
    for (const ex_recorded *r = f->recorded; r && status == MT_OK; r = r->next)
        if (r->rungs == kind_of(f->rungs)) status = tell(*out, r);
    return status;
}

/*
 * What the policy makes of that budget; 0: it has no such chunk. Of kernels of which one size has run it promises
 * nothing of the others, and the peak stays what it expects.
 */
static int fits_into(mt_policy *policy, size_t samples, const mt_memory *memory, ex_need *need) {
    mt_plan plan;
    if (mt_policy_plan(policy, MT_TRAIN, samples, memory, &plan) != MT_OK) return 0;
    if (mt_plan_chunk(&plan, 0) != need->samples) return 0;
    if (!mt_policy_predict_bytes(policy, MT_TRAIN, need->samples)) return 0;
    if (plan.predicted_peak_bytes) need->peak_bytes = plan.predicted_peak_bytes;
    need->keep = plan.keep;
    need->alone = plan.alone;
    return 1;
}

mt_status ex_forecast_need(const ex_forecast *f, size_t samples, size_t chunk, ex_need *out) {
    mt_policy *policy = NULL;
    mt_memory memory;
    *out = (ex_need){.samples = chunk, .is_bound = is_bound(f, chunk)};
    /* As many as such chunks are: a balanced cut of the batch has smaller ones. */
    size_t whole = (samples + chunk - 1) / chunk * chunk;
    mt_status status = read_memory(f, &memory);
    if (status == MT_OK) status = teach(f, chunk, &policy);
    if (status == MT_OK) {
        size_t in_place = mt_policy_predict_bytes(policy, MT_TRAIN, chunk);
        out->peak_bytes = memory.allocated_bytes + in_place;
        out->fits = fits_into(policy, whole, &memory, out);
        if (f->refused && chunk >= f->refused && !out->alone) out->fits = 0;
        out->may_fit = !out->fits && out->is_bound && !(f->refused && chunk >= f->refused);
        /* Less than in place is enough for a whole batch without other gradients. */
        memory.budget_bytes = out->peak_bytes - 1;
        if (!out->fits && chunk == samples) (void)fits_into(policy, samples, &memory, out);
    }
    mt_policy_free(policy);
    return status;
}

mt_status ex_forecast_largest(const ex_forecast *f, size_t samples, size_t *out) {
    mt_policy *policy = NULL;
    mt_memory memory;
    *out = 0;
    mt_status status = read_memory(f, &memory);
    if (status == MT_OK) status = teach(f, samples, &policy);
    size_t most = f->refused && f->refused <= samples ? f->refused - 1 : samples;
    for (size_t m = most; m > 0 && status == MT_OK && !*out; m--)
        if (memory.allocated_bytes + mt_policy_predict_bytes(policy, MT_TRAIN, m) <=
            memory.budget_bytes)
            *out = m;
    mt_policy_free(policy);
    return status;
}
