/*
 * forecast.c - drives a policy through the beginning of a run, and takes each chunk back.
 */
#include <memtrain/forecast.h>

#include "handle.h"
#include "internal.h"

#include <stdio.h>
#include <string.h>

/* Plans until sizes are known: a few for each rung, and a batch may be made smaller often. */
enum { MOST_PLANS = 256, MOST_TRIED = 32, LINE = 512 };

/* No limit, but one: without any the policy predicts nothing. */
#define NO_LIMIT ((size_t)1 << 60)

typedef struct event {
    void *address;
    int64_t bytes;
} event;

typedef struct recorded {
    struct recorded *next;
    unsigned rungs;
    size_t samples, allocated_before;
    int alone; /* its gradients are the only ones */
    mt_chunk_result result;
    event *events;
    size_t count, capacity;
    int incomplete; /* host memory ran out */
} recorded;

struct mt_forecast {
    mt_backend own;
    const mt_backend *backend; /* own */
    mt_batch batch;
    mt_policy_options options;
    mt_backend_info info;
    unsigned rungs;     /* that are on in the backend */
    recorded *recorded; /* chunks that went through, each once, ascending */
    size_t failed;      /* samples of the first chunk that did not go through; 0: none */
    char error[LINE];   /* and what was said of it */
    size_t refused; /* with the rungs that are on, the smallest that did not go through; 0: none */
    size_t ran_alone; /* samples of the whole batch that went through as a chunk alone; 0: none */
    mt_rungs_tried tried[MOST_TRIED];
    size_t tried_count;
};

/* ---- chunks ------------------------------------------------------------------------------------ */

static void on_event(void *user, void *address, int64_t bytes) {
    recorded *r = user;
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 1024;
        event *grown = mt__alloc(capacity, sizeof *grown);
        r->incomplete = r->incomplete || !grown;
        if (!grown) return;
        if (r->count) memcpy(grown, r->events, r->count * sizeof *grown);
        mt__free(r->events);
        r->events = grown;
        r->capacity = capacity;
    }
    r->events[r->count++] = (event){address, bytes};
}

static void free_recorded(recorded *r) {
    while (r) {
        recorded *next = r->next;
        mt__free(r->events);
        mt__free(r);
        r = next;
    }
}

/* A smaller batch has the same chunks. */
static unsigned kind_of(unsigned rungs) {
    return rungs & ~MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
}

static const recorded *find(const mt_forecast *f, size_t samples) {
    const recorded *r = f->recorded;
    while (r && (r->samples != samples || r->rungs != kind_of(f->rungs))) r = r->next;
    return r;
}

static mt_status read_memory(const mt_forecast *f, mt_memory *out) {
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    mt_status status = f->backend->memory(f->backend->self, out);
    if (!out->budget_bytes) out->budget_bytes = NO_LIMIT;
    return status;
}

/* The chunk itself, inside of a step that has begun. */
static mt_status accumulate(const mt_forecast *f, recorded *r) {
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
    double weight = (double)r->samples / (double)f->batch.count;
    status = b->accumulate(b->self, 0, r->samples, weight, &r->result);
    mt_status stopped = b->record(b->self, NULL);
    return status == MT_OK ? stopped : status;
}

/* Runs the first samples of the batch as a chunk, and takes it back. */
static mt_status run(const mt_forecast *f, recorded *r) {
    const mt_backend *b = f->backend;
    r->result.size = sizeof r->result;
    mt_status status = b->begin(b->self, &f->batch);
    if (status != MT_OK) return status;
    status = accumulate(f, r);
    mt_status back = b->rollback(b->self);
    return back != MT_OK ? back : status;
}

/* The words of the first alone: what comes after it is another plan for the same reason. */
static void note_failure(mt_forecast *f, size_t samples) {
    if (!f->refused || samples < f->refused) f->refused = samples;
    if (f->failed) return;
    f->failed = samples;
    snprintf(f->error, sizeof f->error, "%s", mt_last_error());
}

/* One that has run already is not run again. failed: of one that does not fit, what it told. */
static mt_status record(mt_forecast *f, size_t samples, recorded *failed) {
    if (find(f, samples)) return MT_OK;
    recorded *r = mt__alloc(1, sizeof *r);
    if (!r) return mt_set_error(MT_ENOMEM, "mt_forecast: out of host memory");
    r->samples = samples;
    r->rungs = kind_of(f->rungs);
    mt_status status = run(f, r);
    if (status == MT_EDEVMEM) note_failure(f, samples);
    if (status != MT_OK) {
        *failed = *r; /* with its events */
        mt__free(r);
        return status;
    }
    if (samples >= f->refused) f->refused = 0; /* it was not for good */
    /* Ascending, as policies are to be told. */
    recorded **place = &f->recorded;
    while (*place && (*place)->samples < samples) place = &(*place)->next;
    r->next = *place;
    *place = r;
    return MT_OK;
}

/* Fills the recording that the policy wants of a chunk, if it wants one. */
static void tell_events(mt_policy *policy, const recorded *r) {
    mt_recording *recording = mt_policy_recording(policy, MT_TRAIN, r->samples);
    for (size_t i = 0; recording && !r->incomplete && i < r->count; i++)
        mt_recording_event(recording, r->events[i].address, r->events[i].bytes);
}

/* Tells a policy of a chunk as the run would. */
static mt_status tell(mt_policy *policy, const recorded *r) {
    tell_events(policy, r);
    return mt_policy_observe(policy, MT_TRAIN, r->samples, r->allocated_before, &r->result);
}

/* ---- rungs ------------------------------------------------------------------------------------- */

static mt_status set_rung(mt_forecast *f, unsigned rung, int on) {
    const mt_backend *b = f->backend;
    mt_status status = MT_OK;
    if (rung != MT_RUNG_SMALLER_BATCH) status = b->set_rung(b->self, (mt_rung)rung, on);
    if (status != MT_OK) return status;
    f->rungs ^= MT_RUNG_BIT(rung);
    if (rung != MT_RUNG_SMALLER_BATCH) f->refused = 0; /* that was another kind of chunk */
    return MT_OK;
}

/* What the plan asks of the ladder. *again: a rung could not be set, so that there is another plan. */
static mt_status take_rungs(mt_forecast *f, mt_policy *policy, const mt_plan *plan, int *again) {
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

static size_t least_of(const mt_forecast *f, size_t samples) {
    size_t least =
        f->options.min_micro_batch ? f->options.min_micro_batch : f->info.min_micro_batch;
    if (f->info.needs_whole_batch || least > samples) return samples;
    return least ? least : 1;
}

/* The smallest chunk that a batch of so many can be cut into: sizes differ by one at most. */
static size_t smallest_chunk(const mt_forecast *f, size_t samples) {
    size_t chunks = samples / least_of(f, samples), fixed = f->options.micro_batch;
    if (fixed && (samples + fixed - 1) / fixed < chunks) chunks = (samples + fixed - 1) / fixed;
    return (samples + chunks - 1) / chunks;
}

static void note_rungs(mt_forecast *f, const mt_plan *plan) {
    size_t n = f->tried_count, samples = plan->samples;
    if (n && f->tried[n - 1].rungs == plan->rungs && f->tried[n - 1].samples == samples) return;
    if ((!n && !plan->rungs) || n == MOST_TRIED) return;
    f->tried[f->tried_count++] = (mt_rungs_tried){sizeof(mt_rungs_tried), plan->rungs, 0, samples,
                                                  smallest_chunk(f, plan->samples)};
}

/* ---- the policy -------------------------------------------------------------------------------- */

/* What the trainer adds to what the backend says of itself. */
static mt_status describe(mt_forecast *f) {
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
static int is_known(const mt_forecast *f, const mt_policy *policy, const mt_plan *plan) {
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
static mt_status learn_alone(mt_forecast *f, mt_policy *policy, size_t samples, recorded *failed) {
    const mt_backend *b = f->backend;
    *failed = (recorded){.samples = samples, .alone = 1};
    mt_status status = b->hold_gradients(b->self, 0);
    if (status != MT_OK) return status;
    status = run(f, failed);
    mt_status held = b->hold_gradients(b->self, 1);
    if (held != MT_OK) status = held;
    f->ran_alone = status == MT_OK ? samples : 0;
    if (status == MT_OK) status = tell(policy, failed);
    mt__free(failed->events);
    failed->events = NULL;
    failed->count = 0;
    return status;
}

/* The first chunks of a plan, each once. */
static mt_status learn(mt_forecast *f, mt_policy *policy, const mt_plan *plan, recorded *failed) {
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
static mt_status answer(mt_forecast *f, mt_policy *policy, const recorded *failed, unsigned attempt,
                        int *replan) {
    const mt_backend *b = f->backend;
    mt_clear_result cleared = MT_CLEAR_RESULT_INIT;
    mt_action action;
    char reason[LINE];
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
static mt_status try_plan(mt_forecast *f, mt_policy *policy, const mt_plan *plan,
                          unsigned *attempt) {
    int replan = 0;
    for (;;) {
        recorded failed = {0};
        mt_status status = learn(f, policy, plan, &failed);
        if (status != MT_EDEVMEM) {
            if (status != MT_OK) mt__free(failed.events);
            return status;
        }
        status = answer(f, policy, &failed, ++*attempt, &replan);
        mt__free(failed.events);
        if (status != MT_OK || replan) return status;
    }
}

/* A plan whose rungs are on; of another device's memory its chunks are told once that is known. */
static mt_status ask(mt_forecast *f, mt_policy *policy, mt_plan *plan) {
    mt_memory memory;
    int again = 1;
    mt_status status = MT_OK;
    while (again && status == MT_OK) {
        again = 0;
        status = read_memory(f, &memory);
        if (status == MT_OK)
            status = mt_policy_plan(policy, MT_TRAIN, f->batch.count, &memory, plan);
        if (status == MT_OK) status = take_rungs(f, policy, plan, &again);
    }
    if (status != MT_OK) return status;
    note_rungs(f, plan);
    if (plan->groups) return MT_OK;
    status = read_memory(f, &memory);
    return status == MT_OK ? mt_policy_extend(policy, MT_TRAIN, &memory, plan) : status;
}

static mt_status plan_step(mt_forecast *f, mt_policy *policy, mt_plan *plan) {
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
static mt_status give_back(mt_forecast *f) {
    mt_status status = MT_OK;
    for (unsigned r = MT_RUNGS; r-- > 0 && status == MT_OK;)
        if (f->rungs & MT_RUNG_BIT(r)) status = set_rung(f, r, 0);
    return status;
}

/* Sizes that went through with the rungs that are on. */
static size_t count_sizes(const mt_forecast *f) {
    size_t count = 0;
    for (const recorded *r = f->recorded; r; r = r->next) count += r->rungs == kind_of(f->rungs);
    return count;
}

static int is_bound(const mt_forecast *f, size_t samples) {
    return count_sizes(f) < 2 && !find(f, samples);
}

static int is_bound_of_plan(const mt_forecast *f, const mt_plan *plan) {
    /* Chunks that are fixed are not recorded: of a second set of gradients nothing but its size is known. */
    if (f->options.micro_batch && plan->keep && !plan->alone) return 1;
    if (plan->alone && f->ran_alone == plan->samples) return 0;
    return is_bound(f, mt_plan_chunk(plan, 0));
}

/* Where the policy promises no peak, the most that it can be. */
static mt_status add_bound(const mt_forecast *f, const mt_policy *policy, mt_plan *plan) {
    mt_memory memory;
    size_t bytes = mt_policy_predict_bytes(policy, MT_TRAIN, mt_plan_chunk(plan, 0));
    if (plan->predicted_peak_bytes || !bytes || !is_bound_of_plan(f, plan)) return MT_OK;
    mt_status status = read_memory(f, &memory);
    plan->predicted_peak_bytes =
        memory.allocated_bytes + bytes + (plan->keep ? f->info.gradient_bytes : 0);
    return status;
}

/* What is unusable of what a caller hands in. */
static mt_status check_given(const char *function, const mt_backend *b, const mt_batch *batch,
                             const mt_policy_options *policy) {
    MT__CHECK(b, "%s: backend is NULL", function);
    MT__CHECK(b->size >= sizeof b->size, "%s: backend->size is not set; use MT_BACKEND_INIT",
              function);
    MT__CHECK(batch, "%s: batch is NULL", function);
    MT__CHECK(batch->size >= sizeof batch->size, "%s: batch->size is not set; use MT_BATCH_INIT",
              function);
    MT__CHECK(batch->count > 0, "%s: batch->count is 0; at least 1 is accepted", function);
    MT__CHECK(!policy || policy->size >= sizeof policy->size,
              "%s: policy->size is not set; use MT_POLICY_OPTIONS_INIT", function);
    return MT_OK;
}

static mt_status init(mt_forecast *f, const mt_policy_options *policy) {
    if (policy) mt__copy_versioned(&f->options, sizeof f->options, policy, policy->size);
    f->options.deterministic = 1;
    f->backend = &f->own;
    mt_status status = describe(f);
    if (status == MT_OK && (!f->own.record || f->info.record_rungs))
        status = mt_set_error(MT_ENOTSUP, "mt_forecast_new: the backend does not record%s",
                              f->own.record ? " without a rung" : "");
    return status;
}

mt_status mt_forecast_new(const mt_backend *backend, const mt_batch *batch,
                          const mt_policy_options *policy, mt_forecast **out) {
    MT__CHECK(out, "mt_forecast_new: out is NULL");
    *out = NULL;
    mt_status status = check_given("mt_forecast_new", backend, batch, policy);
    if (status != MT_OK) return status;
    mt_forecast *f = mt__alloc(1, sizeof *f);
    if (!f || !mt__handle_add(f, MT__KIND_FORECAST)) {
        mt__free(f);
        return mt_set_error(MT_ENOMEM, "mt_forecast_new: out of host memory");
    }
    f->options = (mt_policy_options)MT_POLICY_OPTIONS_INIT;
    mt__copy_versioned(&f->own, sizeof f->own, backend, backend->size);
    mt__copy_versioned(&f->batch, sizeof f->batch, batch, batch->size);
    status = init(f, policy);
    if (status == MT_OK)
        *out = f;
    else
        mt_forecast_free(f);
    return status;
}

mt_status mt_forecast_step(mt_forecast *forecast, mt_plan *plan) {
    mt_forecast *f = forecast;
    MT__CHECK_HANDLE(forecast, MT__KIND_FORECAST, "mt_forecast_step");
    MT__CHECK(plan, "mt_forecast_step: plan is NULL");
    mt_policy *policy = NULL;
    mt_status status = mt_policy_new(&f->options, &f->info, &policy);
    if (status == MT_OK) status = plan_step(f, policy, plan);
    if (status == MT_OK) status = add_bound(f, policy, plan);
    mt_policy_free(policy);
    if (status != MT_EDEVMEM) return status;
    char reason[LINE];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    status = give_back(f);
    return status == MT_OK ? mt_set_error(MT_EDEVMEM, "%s", reason) : status;
}

void mt_forecast_free(mt_forecast *f) {
    if (!mt__handle_remove(f, MT__KIND_FORECAST)) return;
    if (f->backend && give_back(f) != MT_OK)
        mt_log(MT_LOG_WARNING, "mt_forecast_free: a rung stays on: %s", mt_last_error());
    free_recorded(f->recorded);
    mt__free(f);
}

mt_status mt_forecast_summary(const mt_forecast *forecast, mt_forecast_report *report) {
    MT__CHECK_HANDLE(forecast, MT__KIND_FORECAST, "mt_forecast_summary");
    MT__CHECK(report, "mt_forecast_summary: report is NULL");
    MT__CHECK(report->size >= sizeof report->size,
              "mt_forecast_summary: report->size is not set; use MT_FORECAST_REPORT_INIT");
    const mt_forecast *f = forecast;
    const mt_forecast_report own = {sizeof own, f->rungs,   f->failed,
                                    f->error,   f->refused, f->tried_count};
    mt__copy_versioned(report, report->size, &own, sizeof own);
    return MT_OK;
}

mt_status mt_forecast_ladder(const mt_forecast *forecast, size_t index, mt_rungs_tried *out) {
    MT__CHECK_HANDLE(forecast, MT__KIND_FORECAST, "mt_forecast_ladder");
    MT__CHECK(out, "mt_forecast_ladder: out is NULL");
    MT__CHECK(out->size >= sizeof out->size,
              "mt_forecast_ladder: out->size is not set; use MT_RUNGS_TRIED_INIT");
    MT__CHECK(index < forecast->tried_count,
              "mt_forecast_ladder: index is %zu; accepted: below ladder_count, %zu", index,
              forecast->tried_count);
    mt__copy_versioned(out, out->size, &forecast->tried[index], sizeof *out);
    return MT_OK;
}

/* Of a policy without smallest and fixed sizes, whose chunks are below those that its own have. */
static mt_status least_below(const mt_backend *backend, const mt_batch *batch,
                             const mt_policy_options *policy, size_t *out) {
    mt_policy_options smaller = MT_POLICY_OPTIONS_INIT;
    mt_forecast *f;
    mt_plan plan;
    mt__copy_versioned(&smaller, sizeof smaller, policy, policy->size);
    size_t least = smaller.min_micro_batch;
    smaller.allow_rungs &= MT_RUNG_BIT(MT_RUNG_AMP);
    smaller.max_micro_batch = least - 1;
    smaller.micro_batch = smaller.min_micro_batch = 0;
    mt_status status = mt_forecast_new(backend, batch, &smaller, &f);
    if (status != MT_OK) return status;
    size_t own = f->info.min_micro_batch ? f->info.min_micro_batch : 1;
    if (!f->info.needs_whole_batch && least > own) status = mt_forecast_step(f, &plan);
    if (status == MT_OK && !f->info.needs_whole_batch && least > own)
        *out = batch->count / mt_plan_chunks(&plan);
    mt_forecast_free(f);
    return status == MT_EDEVMEM ? MT_OK : status;
}

mt_status mt_forecast_least(const mt_backend *backend, const mt_batch *batch,
                            const mt_policy_options *policy, size_t *out) {
    MT__CHECK(out, "mt_forecast_least: out is NULL");
    *out = 0;
    mt_status status = check_given("mt_forecast_least", backend, batch, policy);
    if (status != MT_OK) return status;
    MT__CHECK(policy, "mt_forecast_least: policy is NULL");
    return policy->min_micro_batch > 1 ? least_below(backend, batch, policy, out) : MT_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------- */

/* Of a chunk that does not fit only that is kept. */
static mt_status record_size(mt_forecast *f, size_t samples) {
    recorded failed = {0};
    mt_status status = record(f, samples, &failed);
    mt__free(failed.events);
    return status;
}

/* A size and twice as many; where these do not go through the next ones nearer to it. */
static mt_status record_pair(mt_forecast *f, size_t first) {
    size_t count = f->batch.count, second = 2 * first < count ? 2 * first : count;
    mt_status status = record_size(f, first);
    if (status == MT_OK) status = record_size(f, second);
    while (status == MT_EDEVMEM && second > first && count_sizes(f) < 2) {
        second = first + (second - first) / 2;
        status = record_size(f, second);
    }
    return status == MT_EDEVMEM && second > first ? MT_OK : status;
}

mt_status mt_forecast_record(mt_forecast *forecast) {
    MT__CHECK_HANDLE(forecast, MT__KIND_FORECAST, "mt_forecast_record");
    mt_forecast *f = forecast;
    size_t count = f->batch.count, least = least_of(f, count), first = least > 2 ? least : 2;
    size_t network = f->info.min_micro_batch ? f->info.min_micro_batch : 1;
    if (first > count) first = count;
    mt_status status = record_pair(f, first);
    if (status != MT_EDEVMEM || f->info.needs_whole_batch || network >= first) return status;
    if (network < 2 && first > 2) status = record_pair(f, 2); /* one takes other kernels */
    return status == MT_EDEVMEM ? record_pair(f, network) : status;
}

int mt_forecast_is_bound(const mt_forecast *forecast, const mt_plan *plan) {
    return plan && mt__handle_is(forecast, MT__KIND_FORECAST) && is_bound_of_plan(forecast, plan);
}

/* A policy of those chunks alone, which has no rungs: those that are on are the backend's own. */
static mt_status teach(const mt_forecast *f, size_t chunk, mt_policy **out) {
    mt_policy_options options = f->options;
    mt_backend_info info = f->info;
    info.rungs = options.allow_rungs = 0;
    options.micro_batch = options.min_micro_batch = 0;
    options.max_micro_batch = chunk;
    info.min_micro_batch = info.needs_whole_batch = 0;
    mt_status status = mt_policy_new(&options, &info, out);
    for (const recorded *r = f->recorded; r && status == MT_OK; r = r->next)
        if (r->rungs == kind_of(f->rungs)) status = tell(*out, r);
    return status;
}

/*
 * What the policy makes of that budget; 0: it has no such chunk. Of kernels of which one size has run it promises
 * nothing of the others, and the peak stays what it expects.
 */
static int fits_into(mt_policy *policy, size_t samples, const mt_memory *memory,
                     mt_chunk_need *need) {
    mt_plan plan;
    if (mt_policy_plan(policy, MT_TRAIN, samples, memory, &plan) != MT_OK) return 0;
    if (mt_plan_chunk(&plan, 0) != need->samples) return 0;
    if (!mt_policy_predict_bytes(policy, MT_TRAIN, need->samples)) return 0;
    if (plan.predicted_peak_bytes) need->peak_bytes = plan.predicted_peak_bytes;
    need->keep = plan.keep;
    need->alone = plan.alone;
    return 1;
}

static mt_status need_of(const mt_forecast *f, size_t samples, size_t chunk, mt_chunk_need *out) {
    mt_policy *policy = NULL;
    mt_memory memory;
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

mt_status mt_forecast_need(const mt_forecast *forecast, size_t samples, size_t chunk,
                           mt_chunk_need *out) {
    MT__CHECK_HANDLE(forecast, MT__KIND_FORECAST, "mt_forecast_need");
    MT__CHECK(chunk > 0 && chunk <= samples,
              "mt_forecast_need: chunk is %zu; accepted: 1 to samples, %zu", chunk, samples);
    MT__CHECK(out, "mt_forecast_need: out is NULL");
    MT__CHECK(out->size >= sizeof out->size,
              "mt_forecast_need: out->size is not set; use MT_CHUNK_NEED_INIT");
    mt_chunk_need own = MT_CHUNK_NEED_INIT;
    own.samples = chunk;
    own.is_bound = is_bound(forecast, chunk);
    mt_status status = need_of(forecast, samples, chunk, &own);
    if (status == MT_OK) mt__copy_versioned(out, out->size, &own, sizeof own);
    return status;
}

mt_status mt_forecast_largest(const mt_forecast *forecast, size_t samples, size_t *out) {
    MT__CHECK_HANDLE(forecast, MT__KIND_FORECAST, "mt_forecast_largest");
    MT__CHECK(out, "mt_forecast_largest: out is NULL");
    *out = 0;
    MT__CHECK(samples > 0, "mt_forecast_largest: samples is 0; at least 1 is accepted");
    const mt_forecast *f = forecast;
    mt_policy *policy = NULL;
    mt_memory memory;
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
