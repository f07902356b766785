/*
 * fuzz_run.c - see fuzz_run.h.
 */
#include "fuzz_run.h"

#include "tuned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CALLS_MOST = 400000, /* of the backend in a step; beyond that it is taken for endless */
    PEACE_STEPS =
        25 * (FAILURE_WAIT + SHORTAGE_WAIT +
              RUNG_WAIT), /* none of what is tried ever more rarely is in the last of them, ... */
    PACE_STEPS = 20,      /* ... which are compared */
    STEPS_MOST = 120 + PEACE_STEPS,
    CHUNKS_MOST = 300
};

typedef struct run {
    fake_backend fake;     /* first: the seam's self is that of the fake's own */
    mt_backend plain_seam; /* of the fake, without trouble */
    const fuzz_setup *setup;
    fuzz_outcome *out;
    mt_trainer *trainer;
    uint64_t random;
    int is_in_trouble;
    double share;             /* of the chunks that meet some */
    size_t least, most;       /* bytes of a budget */
    size_t tensors;           /* bytes that someone else holds */
    size_t calls;             /* of the backend in this step */
    size_t evaluated;         /* samples, in order, ... */
    size_t told;              /* ... and those before the first chunk that is not waited for */
    char *traced[STEPS_MOST]; /* lines of steps that went through */
    uint64_t ids[STEPS_MOST]; /* and their batches */
    size_t trained;
} run;

/* The first of them is kept. */
static void fails(run *r, const char *what) {
    fuzz_outcome *out = r->out;

    if (*out->failure) return;
    snprintf(out->failure, sizeof(out->failure), "seed %llu: %s (%s) | %s",
             (unsigned long long)r->setup->seed, what, mt_last_error(), fuzz_setup_text(r->setup));
}

static int has_failed(const run *r) {
    return *r->out->failure != '\0';
}

/* ---- trouble ------------------------------------------------------------------------------------ */

static void take_tensors(run *r, size_t bytes) {
    r->tensors = bytes;
    r->fake.allocated += bytes;
    if (r->fake.reserved < r->fake.allocated) r->fake.reserved = r->fake.allocated;
}

static void drop_tensors(run *r) {
    r->fake.allocated -= r->tensors;
    r->tensors = 0;
}

static size_t any_budget(run *r) {
    return r->least + fuzz_below(&r->random, r->most - r->least + 1);
}

static void make_trouble(run *r) {
    fake_options *o = &r->fake.options;

    switch (r->setup->trouble) {
    case FUZZ_BUDGETS:
        o->budget_bytes = any_budget(r);
        break;
    case FUZZ_TENSORS:
        if (r->tensors)
            drop_tensors(r);
        else
            take_tensors(r, any_budget(r) - r->least);
        break;
    case FUZZ_REFUSALS:
        fake_fail_kind(&r->fake, FAKE_ALLOCATION, 1 + fuzz_below(&r->random, 12), MT_EDEVMEM);
        break;
    case FUZZ_NO_EVIDENCE:
        fake_fail_kind(&r->fake, FAKE_ACCUMULATE, 1, MT_EDEVMEM);
        break;
    default:
        o->device_bytes = o->device_bytes ? 0 : any_budget(r);
        break;
    }
}

static void end_trouble(run *r) {
    r->is_in_trouble = 0;
    drop_tensors(r);
    r->fake.options.budget_bytes = r->setup->backend.budget_bytes;
    r->fake.options.device_bytes = 0;
    fake_fail_kind(&r->fake, FAKE_ALLOCATION, 0, MT_OK);
    fake_fail_kind(&r->fake, FAKE_ACCUMULATE, 0, MT_OK);
}

/* A call of the backend. One too many in a step ends it. */
static mt_status called(run *r, size_t cases) {
    double draw = (double)(fake_random(&r->random) >> 11) / 9007199254740992.0;

    if (++r->calls > CALLS_MOST) {
        fails(r, "no end of calls");
        return mt_set_error(MT_ESTATE, "no end of calls");
    }
    if (r->is_in_trouble && draw * (double)cases < r->share) make_trouble(r);
    return MT_OK;
}

static mt_status run_memory(void *self, mt_memory *out) {
    run *r = self;

    if (++r->calls > CALLS_MOST) fails(r, "no end of calls of memory");
    return has_failed(r) ? MT_ESTATE : r->plain_seam.memory(self, out);
}

static mt_status run_begin(void *self, const mt_batch *batch) {
    run *r = self;
    mt_status status = called(r, 4);

    return status == MT_OK ? r->plain_seam.begin(self, batch) : status;
}

static mt_status run_accumulate(void *self, size_t first, size_t count, double weight,
                                mt_chunk_result *out) {
    run *r = self;
    mt_status status = called(r, 1);

    return status == MT_OK ? r->plain_seam.accumulate(self, first, count, weight, out) : status;
}

static mt_status run_evaluate(void *self, const mt_batch *batch, size_t first, size_t count,
                              mt_chunk_result *out) {
    run *r = self;
    int has_untold = r->fake.deferred_count > r->fake.deferred_next;
    mt_status status = called(r, 1);

    if (!has_untold) r->told = r->evaluated;
    if (status == MT_OK) status = r->plain_seam.evaluate(self, batch, first, count, out);
    if (status != MT_OK && has_untold) r->evaluated = r->told; /* it goes back to there */
    if (status != MT_OK) return status;
    if (first != r->evaluated) fails(r, "evaluation: samples out of order");
    r->evaluated += count;
    return MT_OK;
}

/* ---- a trainer, and what its trace says --------------------------------------------------------- */

static void on_trace(void *user, const char *line) {
    static const char *const no_numbers[] = {":nan", ":-nan", ":inf", ":-inf"};
    run *r = user;

    if (line[0] != '{' || line[strlen(line) - 1] != '}') fails(r, "trace: no object");
    for (size_t i = 0; i < sizeof(no_numbers) / sizeof(no_numbers[0]); i++)
        if (strstr(line, no_numbers[i])) fails(r, "trace: no number");
    if (strncmp(line, "{\"event\":\"step\"", 15) != 0) return;
    if (r->trained == STEPS_MOST || !(r->traced[r->trained] = strdup(line)))
        fails(r, "trace: so many steps");
    else
        r->trained++;
}

static void begin(run *r, const fuzz_setup *setup, fuzz_outcome *out) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    mt_backend seam;

    memset(r, 0, sizeof(*r));
    r->setup = setup;
    r->out = out;
    r->random = setup->seed * 104729 + 5;
    fake_init(&r->fake, &setup->backend);
    r->plain_seam = seam = fake_seam(&r->fake);
    seam.memory = run_memory;
    seam.begin = run_begin;
    seam.accumulate = run_accumulate;
    seam.evaluate = run_evaluate;
    own.policy = &setup->policy;
    own.trace = on_trace;
    own.trace_user = r;
    if (mt_trainer_new(&seam, &own, &r->trainer) != MT_OK) fails(r, "no trainer");
}

static void end(run *r) {
    mt_trainer_free(r->trainer);
    for (size_t i = 0; i < r->trained; i++) free(r->traced[i]);
}

/* ---- what must hold ----------------------------------------------------------------------------- */

static void check_state(run *r, mt_status status, uint64_t before) {
    if (status != MT_OK && status != MT_EDEVMEM) fails(r, mt_status_name(status));
    if (status != MT_OK && fake_hash(&r->fake) != before) fails(r, "failed, and the state moved");
    if (status != MT_OK && *mt_last_error() == '\0') fails(r, "failed without words");
    if (r->fake.complaint != NULL) fails(r, r->fake.complaint);
    if (fake_live_handles(&r->fake) != 0) fails(r, "handles are left over");
}

static void check_report(run *r, size_t samples, const mt_step_report *report) {
    int is_shorter = (report->rungs & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH)) != 0;
    size_t sum = 0, least = r->setup->policy.min_micro_batch;

    if (!least) least = r->setup->backend.min_micro_batch;
    for (size_t i = 0; i < report->chunk_count; i++) {
        sum += report->chunks[i];
        if (report->chunks[i] < least && report->chunk_count > 1) fails(r, "too small a chunk");
    }
    if (sum == 0 || sum != report->samples) fails(r, "chunks are not the samples");
    if (sum > samples || (sum < samples && !is_shorter)) fails(r, "not the samples of the batch");
    if (sum == samples && report->rate != 1) fails(r, "another rate for the whole batch");
}

static mt_status train(run *r, size_t samples, uint64_t id, mt_step_report *report) {
    mt_batch batch = {sizeof(batch), NULL, samples, id};
    uint64_t before = fake_hash(&r->fake);
    size_t trained = r->trained;
    mt_status status;

    *report = (mt_step_report)MT_STEP_REPORT_INIT;
    r->calls = 0;
    status = mt_trainer_step(r->trainer, &batch, report);
    check_state(r, status, before);
    if (status == MT_OK) check_report(r, samples, report);
    if (r->trained != trained + (status == MT_OK)) fails(r, "trace: not one line a step");
    if (status == MT_OK && !has_failed(r)) r->ids[trained] = id;
    return status;
}

static void evaluate(run *r, size_t samples, uint64_t id) {
    mt_batch batch = {sizeof(batch), NULL, samples, id};
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    uint64_t before = fake_hash(&r->fake);
    mt_status status;

    r->calls = r->evaluated = 0;
    status = mt_trainer_evaluate(r->trainer, &batch, &report);
    check_state(r, status, before);
    if (fake_hash(&r->fake) != before) fails(r, "an evaluation moved the state");
    if (status == MT_OK && (r->evaluated != samples || report.samples != samples))
        fails(r, "evaluation: not the samples of the batch");
}

/* ---- the replay --------------------------------------------------------------------------------- */

/* What follows a key of a line, or NULL. */
static const char *value_of(const char *line, const char *key) {
    const char *at = strstr(line, key);

    return at ? at + strlen(key) : NULL;
}

static size_t read_chunks(const char *line, size_t chunks[CHUNKS_MOST], size_t *samples) {
    const char *at = value_of(line, "\"chunks\":[");
    size_t count = 0;

    for (*samples = 0; at && *at != ']' && count < CHUNKS_MOST; at += *at == ',') {
        char *after;

        chunks[count] = strtoull(at, &after, 10);
        if (after == at) return 0;
        *samples += chunks[count++];
        at = after;
    }
    return count;
}

static unsigned read_rungs(const char *line) {
    const char *at = value_of(line, "\"rungs\":[");
    size_t length = at ? strcspn(at, "]") : 0;
    unsigned rungs = 0;

    for (unsigned i = 0; i < MT_RUNGS; i++) {
        const char *name = at ? strstr(at, mt_rung_name((mt_rung)i)) : NULL;

        if (name && (size_t)(name - at) < length) rungs |= MT_RUNG_BIT(i);
    }
    return rungs;
}

static int replay_step(mt_trainer *trainer, const char *line, uint64_t id) {
    mt_batch batch = {sizeof(batch), NULL, 0, id};
    size_t chunks[CHUNKS_MOST], count = read_chunks(line, chunks, &batch.count);
    const char *rate = value_of(line, "\"rate\":");

    return mt_trainer_set_chunks(trainer, chunks, count) == MT_OK &&
           mt_trainer_set_rungs(trainer, read_rungs(line), rate ? strtod(rate, NULL) : 1) ==
               MT_OK &&
           mt_trainer_step(trainer, &batch, NULL) == MT_OK;
}

/* The fake for it has no limits, and no samples that must stay together. */
static void replay(run *r) {
    fake_backend *fake = calloc(1, sizeof(*fake));
    fake_options options = r->setup->backend;
    mt_trainer *trainer = NULL;
    mt_backend seam;

    options.budget_bytes = options.cpu_bytes = 0;
    options.needs_whole_batch = 0;
    if (fake) fake_init(fake, &options);
    if (fake) seam = fake_seam(fake);
    if (!fake || mt_trainer_new(&seam, NULL, &trainer) != MT_OK) fails(r, "replay: no trainer");
    for (size_t i = 0; i < r->trained && !has_failed(r); i++)
        if (!replay_step(trainer, r->traced[i], r->ids[i])) fails(r, "replay: a step fails");
    if (!has_failed(r) && fake_hash(fake) != fake_hash(&r->fake)) fails(r, "replay: other bits");
    mt_trainer_free(trainer);
    free(fake);
}

/* ---- peace and trouble -------------------------------------------------------------------------- */

/* How the trainer has come to run. */
typedef struct pace {
    double seconds; /* of PACE_STEPS */
    size_t chunks, first_chunk;
    unsigned rungs, retries, failed; /* failed: of all steps in peace */
} pace;

static pace run_in_peace(run *r) {
    pace result = {0, 0, 0, 0, 0, 0};

    for (int i = 0; i < PEACE_STEPS && !has_failed(r); i++) {
        mt_step_report report;

        if (train(r, r->setup->batch, 100000 + (uint64_t)i, &report) != MT_OK) {
            result.failed++;
            continue;
        }
        result.chunks = report.chunk_count;
        result.first_chunk = report.chunk_count ? report.chunks[0] : 0;
        result.rungs = report.rungs;
        if (i < PEACE_STEPS - PACE_STEPS) continue;
        result.seconds += report.seconds;
        result.retries += report.retries;
    }
    return result;
}

/*
 * Budgets from the least that a chunk of the smallest size fits into (balanced chunks can be twice as large, less
 * one), or where there are other ways than smaller chunks from about that of one sample.
 */
static void set_trouble(run *r) {
    const fuzz_setup *s = r->setup;
    const fake_options *o = &s->backend;
    const fake_program *program = o->wide.count > 0 ? &o->wide : &fake_train_program;
    size_t chunk = s->policy.micro_batch ? s->policy.micro_batch : o->min_micro_batch;
    size_t bytes = fake_program_peak(&fake_train_program, chunk ? 2 * chunk - 1 : 1);
    size_t wide = fake_program_peak(program, chunk ? 2 * chunk - 1 : 1);
    int is_rare = s->trouble == FUZZ_REFUSALS || s->trouble == FUZZ_NO_EVIDENCE;

    if (wide > bytes) bytes = wide;
    r->least = r->fake.allocated + bytes + FAKE_GRADIENT_BYTES;
    if ((o->rungs & MT_RUNG_BIT(MT_RUNG_CPU)) || o->may_shorten)
        r->least = r->fake.allocated + 45000;
    r->most = o->budget_bytes;
    if (r->least > r->most) r->least = r->most;
    r->share =
        (is_rare ? 0.001 : 0.02) + (double)fuzz_below(&r->random, 1000) * (is_rare ? 1e-5 : 1e-4);
    r->is_in_trouble = 1;
}

static void run_in_trouble(run *r) {
    const fuzz_setup *s = r->setup;
    size_t steps = 60 + fuzz_below(&r->random, 60);

    for (uint64_t i = 0; i < steps && !has_failed(r); i++) {
        size_t samples = s->batches_vary ? 1 + fuzz_below(&r->random, s->batch) : s->batch;
        uint64_t shape = s->backend.shapes ? fuzz_below(&r->random, 2) : 0;
        mt_step_report report;

        r->out->steps++;
        r->out->failed_steps += train(r, samples, i | shape << 32, &report) != MT_OK;
        if (s->evaluates && fuzz_one_in(&r->random, 5))
            evaluate(r, 1 + fuzz_below(&r->random, s->batch), i | shape << 32);
        if (fuzz_one_in(&r->random, 30) && mt_trainer_end_epoch(r->trainer, NULL) != MT_OK)
            fails(r, "no end of the epoch");
    }
}

/* ---- scars -------------------------------------------------------------------------------------- */

/* Rungs that are on in one and not in the other, but for savers with which the step is faster. */
static unsigned other_rungs(const pace *now, const pace *fresh) {
    unsigned other = now->rungs ^ fresh->rungs;

    if (now->seconds < fresh->seconds) other &= ~(MT_RUNGS_DEFAULT | MT_RUNG_BIT(MT_RUNG_MINIMAL));
    return other;
}

/* Where chunks are not timed, so many of them are as good as that. */
static int is_worse(const fuzz_setup *s, const pace *now, const pace *fresh) {
    if (now->seconds > 1.05 * fresh->seconds) return 1;
    if (!s->backend.seconds && now->chunks > fresh->chunks + 1 + fresh->chunks / 4) return 1;
    return other_rungs(now, fresh) != 0 || now->failed > 0 || now->retries > fresh->retries + 2;
}

/* A setup in which steps fail without any trouble has nothing to come back to. */
static void compare(const run *r, const pace *now, const pace *fresh) {
    fuzz_outcome *out = r->out;

    if (fresh->failed > 0 || !is_worse(r->setup, now, fresh)) return;
    snprintf(out->scar, sizeof(out->scar),
             "seed %llu: %g s in %zu chunks of %zu, rungs %x, %u retries, %u steps failed; "
             "without trouble %g s in %zu chunks of %zu, rungs %x, %u retries | %s",
             (unsigned long long)r->setup->seed, now->seconds, now->chunks, now->first_chunk,
             now->rungs, now->retries, now->failed, fresh->seconds, fresh->chunks,
             fresh->first_chunk, fresh->rungs, fresh->retries, fuzz_setup_text(r->setup));
}

static pace run_fresh(run *r, const fuzz_setup *setup, fuzz_outcome *out) {
    pace result = {0, 0, 0, 0, 0, 0};

    begin(r, setup, out);
    if (!has_failed(r)) result = run_in_peace(r);
    /* What does not fit is tried ever more rarely. */
    if (!has_failed(r) && !result.failed && result.retries > 2)
        fails(r, "steps run out of memory for ever");
    end(r);
    return result;
}

static pace run_troubled(run *r, const fuzz_setup *setup, fuzz_outcome *out) {
    pace result = {0, 0, 0, 0, 0, 0};

    begin(r, setup, out);
    if (!has_failed(r)) {
        set_trouble(r);
        run_in_trouble(r);
        end_trouble(r);
        result = run_in_peace(r);
    }
    if (!has_failed(r)) replay(r);
    end(r);
    return result;
}

void fuzz_run(uint64_t seed, fuzz_outcome *out) {
    fuzz_setup setup = fuzz_setup_of(seed);
    run *r = malloc(sizeof(*r));
    pace fresh, troubled;

    memset(out, 0, sizeof(*out));
    if (!r) snprintf(out->failure, sizeof(out->failure), "out of host memory");
    if (!r) return;
    fresh = run_fresh(r, &setup, out);
    if (!has_failed(r)) troubled = run_troubled(r, &setup, out);
    if (!has_failed(r)) compare(r, &troubled, &fresh);
    free(r);
}

/* ---- many of them ------------------------------------------------------------------------------- */

void fuzz_runs(uint64_t from, uint64_t count, fuzz_totals *totals) {
    static fuzz_outcome out;

    for (uint64_t seed = from; seed < from + count; seed++) {
        fuzz_run(seed, &out);
        totals->runs++;
        totals->failures += *out.failure != '\0';
        totals->scars += *out.scar != '\0';
        totals->steps += out.steps;
        totals->failed_steps += out.failed_steps;
        if (*out.failure) printf("failure: %s\n", out.failure);
        if (*out.scar) printf("scar: %s\n", out.scar);
        if (*out.failure || *out.scar) fflush(stdout);
    }
}

size_t fuzz_scars_allowed(size_t runs) {
    return 1 + runs / 200;
}
