/*
 * check_oom_core.c - the loop: every fallible call of a whole run fails in turn, once or from then
 * on. Whatever fails, a step either goes through or leaves everything as it was, nothing stays
 * open, and the run ends bit-equal to one that was given the same chunks and met no failure.
 */
#include "fake_backend.h"
#include "suite.h"
#include "tuned.h"

#include <math.h>
#include <memtrain/trainer.h>
#include <stdio.h>

/* ---- the runs ------------------------------------------------------------------------------- */

/* What a run does, one after the other: batches to train on (> 0) or to evaluate (< 0). */
static const int script[] = {32, 32, -40, 20, 32, -24, 1, 32};

/* A way to set up a run; fits: samples of a chunk that the budget holds, 0: no budget. */
typedef struct variant {
    const char *name;
    size_t fits;
    fake_options options; /* zero: as in fake_defaults */
    mt_policy_options policy;
} variant;

#define ALL_ABSENT (~(FAKE_BIT(FAKE_EVALUATE) | FAKE_BIT(FAKE_DESCRIBE)))

#define BIT(rung) MT_RUNG_BIT(MT_RUNG_##rung)

static const variant variants[] = {
    {"plain", 14, {0}, {0}},
    {"roomy", 100, {0}, {0}},
    {"tight", 2, {0}, {0}},
    {"no budget", 0, {0}, {0}},
    {"timed", 14, {.seconds = fake_seconds}, {0}},
    {"deterministic", 14, {0}, {.deterministic = 1}},
    {"normalising", 14, {.normalises_over_batch = 1}, {0}},
    {"found to normalise", 14, {.shows_norm = 1, .seconds = fake_seconds}, {0}},
    {"found to normalise, tight", 2, {.shows_norm = 1, .keep = 1}, {0}},
    {"found to normalise, alone",
     32,
     {.shows_norm = 1, .keep = 1, .tells_gradients = 1, .holds = 1},
     {0}},
    {"units",
     14,
     {.units = fake_unit_table, .unit_count = FAKE_UNITS_COUNT, .mean_of_nothing = 1},
     {0}},
    {"large chunks", 14, {.min_micro_batch = 4}, {0}},
    {"fixed", 14, {0}, {.micro_batch = 8}},
    {"without recordings", 14, {.absent = FAKE_BIT(FAKE_RECORD)}, {0}},
    {"the least backend", 14, {.absent = ALL_ABSENT}, {0}},
    {"nothing known", 14, {.absent = FAKE_BIT(FAKE_RECORD), .no_peaks = 1, .no_evidence = 1}, {0}},
    {"another kernel",
     14,
     {.wide = {fake_wide_allocations, FAKE_WIDE_COUNT}, .wide_above = 6, .seconds = fake_seconds},
     {0}},
    {"less than told", 24, {.device_bytes = 150000}, {0}},
    {"growing cache",
     14,
     {.cache_keeps_bytes = 30000, .seconds = fake_seconds, .clear_seconds = 0.001},
     {0}},
    {"cleared", 14, {0}, {.clear_every = 2, .eval_clear_every = 1}},
    {"tight and normalising", 2, {.normalises_over_batch = 1}, {0}},
    {"tight, large chunks", 4, {.min_micro_batch = 4}, {.deterministic = 1}},
    {"bounded", 50, {0}, {.min_micro_batch = 2, .max_micro_batch = 6}},
    {"kept chunks", 14, {.keep = 1}, {.keep_chunks = MT_KEEP_ALWAYS}},
    {"kept chunks, tight",
     2 * FIRST_CHUNK + 1,
     {.keep = 1, .seconds = fake_seconds},
     {.keep_chunks = MT_KEEP_ALWAYS}},
    {"kept chunks, normalising",
     14,
     {.keep = 1, .normalises_over_batch = 1},
     {.keep_chunks = MT_KEEP_ALWAYS}},
    {"kept chunks, no budget", 0, {.keep = 1}, {.keep_chunks = MT_KEEP_ALWAYS}},
    {"kept chunks, fixed", 14, {.keep = 1}, {.micro_batch = 8}},
    {"kept chunks, hog",
     20,
     {.keep = 1, .hog_from = 3, .hog_until = 5, .hog_bytes = 60000, .seconds = fake_seconds},
     {.keep_chunks = MT_KEEP_ALWAYS}},
    {"whole steps", 14, {.keep = 1}, {.keep_chunks = MT_KEEP_NEVER}},
    {"a saver", 3, {.keep = 1, .rungs = BIT(CHECKPOINTING), .min_micro_batch = 4}, {0}},
    {"savers",
     2,
     {.rungs = BIT(CHECKPOINTING) | BIT(OFFLOAD), .min_micro_batch = 4, .seconds = fake_seconds},
     {0}},
    {"the other device",
     2,
     {.keep = 1, .rungs = BIT(CPU), .cpu_bytes = 1000000, .min_micro_batch = 4},
     {.allow_rungs = BIT(CPU)}},
    {"alone", 32, {.keep = 1, .tells_gradients = 1, .holds = 1}, {.deterministic = 1}},
    {"alone, normalising",
     32,
     {.keep = 1, .tells_gradients = 1, .holds = 1, .normalises_over_batch = 1},
     {0}},
    {"alone, hog",
     32,
     {.keep = 1,
      .tells_gradients = 1,
      .holds = 1,
      .hog_from = 3,
      .hog_until = 5,
      .hog_bytes = 60000,
      .seconds = fake_seconds},
     {0}},
    {"shapes", 60, {.shapes = 1, .keep = 1, .seconds = fake_seconds}, {0}},
    {"hog", 20, {.hog_from = 3, .hog_until = 5, .hog_bytes = 60000}, {0}},
    {"deferred", 14, {.defers = 1, .seconds = fake_seconds}, {0}},
    {"deferred, the same in each step", 14, {.defers = 1}, {.deterministic = 1}},
    {"deferred, kept chunks",
     20,
     {.defers = 1,
      .keep = 1,
      .hog_from = 3,
      .hog_until = 5,
      .hog_bytes = 60000,
      .seconds = fake_seconds},
     {.keep_chunks = MT_KEEP_ALWAYS}},
    {"deferred, units",
     14,
     {.defers = 1, .units = fake_unit_table, .unit_count = FAKE_UNITS_COUNT, .mean_of_nothing = 1},
     {.micro_batch = 8}},
    {"deferred, told", 14, {.defers = 1, .prepares = 1, .seconds = fake_seconds}, {0}},
    {"told", 14, {.prepares = 1}, {0}},
    {"told, tight", 2, {.prepares = 1, .seconds = fake_seconds}, {.deterministic = 1}},
    {"told, timed", 14, {.prepares = 1, .seconds = fake_seconds, .keep = 1, .holds = 1}, {0}},
    {"told, no budget", 0, {.prepares = 1}, {0}},
    {"told, fixed", 14, {.prepares = 1, .keep = 1}, {.micro_batch = 8}},
    {"told, without recordings", 14, {.prepares = 1, .absent = FAKE_BIT(FAKE_RECORD)}, {0}},
    {"told, a saver", 3, {.prepares = 1, .rungs = BIT(CHECKPOINTING), .min_micro_batch = 4}, {0}},
    {"told, the other device",
     2,
     {.prepares = 1, .rungs = BIT(CPU), .cpu_bytes = 1000000, .min_micro_batch = 4},
     {.allow_rungs = BIT(CPU)}},
    {"told, hog",
     20,
     {.prepares = 1, .hog_from = 3, .hog_until = 5, .hog_bytes = 60000, .seconds = fake_seconds},
     {0}},
};

static fake_options options_of(const variant *v) {
    fake_options options = v->options;

    options.seed = 7;
    options.noise = fake_defaults.noise;
    options.resident_bytes = fake_defaults.resident_bytes;
    if (v->fits > 0)
        options.budget_bytes =
            options.resident_bytes + fake_program_peak(&fake_train_program, v->fits);
    return options;
}

static fake_backend fake, clean;

/* Every other batch of a run with shapes has larger samples. */
static uint64_t id_of(const variant *v, int index) {
    return (uint64_t)index | (v->options.shapes ? (uint64_t)(index % 2) << 32 : 0);
}

/* Chunks of the steps of a run, one list after the other, and what evaluation said. */
#define CHUNKS_MAX 2000

static size_t chunks[CHUNKS_MAX], chunk_count;
static size_t chunks_of_step[LENGTH(script)];
static double loss_of_step[LENGTH(script)], eval_loss[LENGTH(script)];

static void keep_chunks(int index, const mt_step_report *report) {
    ck_assert_uint_le(chunk_count + report->chunk_count, CHUNKS_MAX);
    memcpy(chunks + chunk_count, report->chunks, report->chunk_count * sizeof(*chunks));
    chunk_count += report->chunk_count;
    chunks_of_step[index] = report->chunk_count;
    loss_of_step[index] = report->loss;
}

/* ---- one run under fault --------------------------------------------------------------------- */

static mt_status perform(mt_trainer *trainer, const variant *v, int index) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_eval_report eval = MT_EVAL_REPORT_INIT;
    mt_batch batch = {sizeof(batch), NULL, (size_t)abs(script[index]), id_of(v, index)};
    mt_status status;

    if (script[index] < 0) {
        status = mt_trainer_evaluate(trainer, &batch, &eval);
        eval_loss[index] = eval.loss;
        return status;
    }
    status = mt_trainer_step(trainer, &batch, &report);
    if (status == MT_OK) keep_chunks(index, &report);
    return status;
}

static const char *where(const variant *v, uint64_t n, int index) {
    static char text[200];

    snprintf(text, sizeof(text), "%s: call %llu failed, line %d of the script", v->name,
             (unsigned long long)n, index);
    return text;
}

/* What must hold after every call, whatever it returned. */
static void check_after(mt_status status, mt_status allowed, uint64_t before, const char *text) {
    ck_assert_msg(status == MT_OK || status == allowed, "%s: %s, '%s'", text,
                  mt_status_name(status), mt_last_error());
    ck_assert_msg(fake_live_handles(&fake) == 0, "%s: %zu handles", text, fake_live_handles(&fake));
    ck_assert_msg(fake.complaint == NULL, "%s: %s", text, fake.complaint);
    if (status == MT_OK) return;
    ck_assert_msg(!isnan(fake.gradients[0]), "%s: rubbish in the gradients", text);
    ck_assert_msg(fake_hash(&fake) == before, "%s: %s, but the state has changed", text,
                  mt_status_name(status));
    ck_assert_msg(strlen(mt_last_error()) > 0, "%s: no error line", text);
}

/* Whether what failed was the look at the memory after apply, which only the report needs. */
static int failed_after_apply(mt_status injected) {
    size_t apply = fake.logged;

    for (size_t i = 0; i < fake.logged; i++) {
        if (fake.log[i].kind == FAKE_APPLY && fake.log[i].status == MT_OK) apply = i;
        if (fake.log[i].status == injected) return i > apply && fake.log[i].kind == FAKE_MEMORY;
    }
    return 0;
}

/* Whether the injected failure hit what a retry can do again. */
static int failed_in_the_work(void) {
    const unsigned work = FAKE_BIT(FAKE_MARK) | FAKE_BIT(FAKE_SET_RUNG) | FAKE_BIT(FAKE_BEGIN) |
                          FAKE_BIT(FAKE_ACCUMULATE) | FAKE_BIT(FAKE_APPLY) |
                          FAKE_BIT(FAKE_EVALUATE) | FAKE_BIT(FAKE_HOLD_GRADIENTS) |
                          FAKE_BIT(FAKE_PREPARE);

    for (size_t i = 0; i < fake.logged; i++)
        if (fake.log[i].status != MT_OK && (FAKE_BIT(fake.log[i].kind) & work) == 0) return 0;
    return 1;
}

/*
 * Performs one line of the script. If it does not go through under the fault, it must once the
 * fault is gone. Returns the number of faults, so that the caller knows whether any is left.
 */
static uint64_t line_under_fault(mt_trainer *trainer, const variant *v, uint64_t n, int index,
                                 mt_status allowed) {
    uint64_t before = fake_hash(&fake), genuine = fake.genuine, fired = fake.fired;
    mt_status status;

    fake_log_clear(&fake);
    status = perform(trainer, v, index);
    check_after(status, allowed, before, where(v, n, index));
    ck_assert_msg(status != MT_OK || allowed == MT_EDEVMEM || fake.fired == fired ||
                      failed_after_apply(allowed),
                  "%s: the failure was swallowed", where(v, n, index));
    if (status == MT_OK) return 0;
    ck_assert_msg(fake.persistent || allowed != MT_EDEVMEM || fake.genuine > genuine ||
                      !failed_in_the_work(),
                  "%s: one failure, and it gave up: '%s'", where(v, n, index), mt_last_error());
    ck_assert_msg(fake.fired > fired || fake.genuine > genuine, "%s: gave up without a cause",
                  where(v, n, index));
    fired = fake.fired;
    fake_fail_at(&fake, 0, 0);
    status = perform(trainer, v, index);
    check_after(status, MT_OK, before, where(v, n, index));
    return fired;
}

static mt_trainer *trainer_under_fault(const variant *v, mt_status allowed) {
    mt_policy_options policy = v->policy;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    fake_options options = options_of(v);
    mt_trainer *trainer;
    mt_backend seam;
    mt_status status;

    policy.size = sizeof(policy);
    own.policy = &policy;
    fake.options = options;
    seam = fake_seam(&fake);
    status = mt_trainer_new(&seam, &own, &trainer);
    ck_assert(status == MT_OK || (status == allowed && trainer == NULL));
    return trainer;
}

/* The whole run; returns how many faults it met. */
static uint64_t run_under_fault(const variant *v, uint64_t n, int persistent, mt_status status) {
    fake_options options = options_of(v);
    mt_trainer *trainer;
    uint64_t fired = 0;

    chunk_count = 0;
    fake_init(&fake, &options);
    if (status == MT_EDEVMEM)
        fake_fail_at(&fake, n, persistent);
    else
        fake_fail_with(&fake, n, status);
    trainer = trainer_under_fault(v, status);
    if (trainer == NULL) {
        fired = fake.fired;
        fake_fail_at(&fake, 0, 0);
        trainer = trainer_under_fault(v, MT_OK);
    }
    for (int index = 0; index < LENGTH(script); index++)
        fired += line_under_fault(trainer, v, n, index, status);
    fired += fake.fired;
    mt_trainer_free(trainer);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
    return fired;
}

/* ---- the same chunks without a fault -------------------------------------------------------- */

static double eval_loss_of(const mt_batch *batch) {
    mt_chunk_result whole = {.size = sizeof(whole)};
    mt_backend seam = fake_seam(&clean);

    ck_ok(seam.evaluate(&clean, batch, 0, batch->count, &whole));
    return whole.loss_sum / whole.units;
}

/* Replays the chunks of the run in a backend without limits and compares the end, bit by bit. */
static void check_replay(const variant *v, uint64_t n) {
    fake_options options = options_of(v);
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_trainer *trainer;
    mt_backend seam;
    size_t at = 0;

    options.budget_bytes = options.device_bytes = 0;
    fake_init(&clean, &options);
    seam = fake_seam(&clean);
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    for (int i = 0; i < LENGTH(script); i++) {
        mt_batch batch = {sizeof(batch), NULL, (size_t)abs(script[i]), id_of(v, i)};

        if (script[i] < 0) {
            ck_assert_double_eq_tol(eval_loss[i], eval_loss_of(&batch), 1e-12);
            continue;
        }
        ck_ok(mt_trainer_set_chunks(trainer, chunks + at, chunks_of_step[i]));
        ck_ok(mt_trainer_step(trainer, &batch, &report));
        ck_assert_msg(report.loss == loss_of_step[i], "%s: another loss", where(v, n, i));
        at += chunks_of_step[i];
    }
    ck_assert_msg(fake_hash(&clean) == fake_hash(&fake),
                  "%s: call %llu failed: not the bits of the same chunks", v->name,
                  (unsigned long long)n);
    mt_trainer_free(trainer);
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void loop(const variant *v, int persistent, mt_status status) {
    uint64_t n;

    for (n = 1; n < 1000000; n++) {
        uint64_t fired = run_under_fault(v, n, persistent, status);

        check_replay(v, n);
        if (fired == 0) break;
    }
    ck_assert_uint_gt(n, 30);
}

TEST_LOOP("once", oom_once, LENGTH(variants)) {
    loop(&variants[_i], 0, MT_EDEVMEM);
}

TEST_LOOP("for ever", oom_for_ever, LENGTH(variants)) {
    loop(&variants[_i], 1, MT_EDEVMEM);
}

/* Failures that are no matter of memory end the step at once, and undo it. */
TEST_LOOP("other", other_failures, LENGTH(variants)) {
    static const mt_status others[] = {MT_EUSER, MT_ETORCH, MT_EIO};

    loop(&variants[_i], 0, others[_i % 3]);
}

/* Without any fault the budgets of all variants are enough for the script. */
TEST_LOOP("none", no_fault, LENGTH(variants)) {
    const variant *v = &variants[_i];

    ck_assert_uint_eq(run_under_fault(v, 0, 0, MT_EDEVMEM), 0);
    check_replay(v, 0);
    /* What is prepared takes memory that recordings know nothing of. */
    if (v->options.wide.count == 0 && v->options.device_bytes == 0 && v->fits > 4 &&
        !v->options.no_peaks && !v->options.prepares)
        ck_assert_uint_eq(fake.genuine, 0);
}

/* ---- many failures at once ------------------------------------------------------------------ */

static size_t below(uint64_t *state, size_t bound) {
    return (size_t)(fake_random(state) % bound);
}

/* A variant nobody thought of. */
static variant random_variant(uint64_t *state) {
    variant v = {.name = "random"};
    fake_options *o = &v.options;

    v.fits = 1 + below(state, 40);
    o->units = below(state, 2) ? fake_unit_table : NULL;
    o->unit_count = FAKE_UNITS_COUNT;
    o->seconds = below(state, 2) ? fake_seconds : NULL;
    o->cache_keeps_bytes = below(state, 2) * below(state, 50000);
    o->clear_seconds = 0.0001;
    o->normalises_over_batch = below(state, 4) == 0;
    o->min_micro_batch = below(state, 3) == 0 ? 1 + below(state, v.fits) : 0;
    o->absent = (unsigned)below(state, 1U << FAKE_ALLOCATION) & ALL_ABSENT;
    o->absent &= below(state, 2) ? ~0U : ~FAKE_BIT(FAKE_RECORD);
    o->no_peaks = below(state, 4) == 0;
    o->no_evidence = below(state, 4) == 0;
    if (below(state, 3) == 0) o->wide = (fake_program){fake_wide_allocations, FAKE_WIDE_COUNT};
    o->wide_above = 1 + below(state, 20);
    o->hog_from = below(state, 5);
    o->hog_until = o->hog_from + below(state, 4);
    o->keep = below(state, 2) == 0;
    o->tells_gradients = below(state, 2) == 0;
    o->holds = below(state, 2) == 0;
    o->shapes = below(state, 4) == 0;
    o->rungs = (unsigned)below(state, 1U << MT_RUNGS) & ~BIT(SMALLER_BATCH);
    o->cpu_bytes = 500000 + below(state, 1000000);
    v.policy.allow_rungs = (unsigned)below(state, 1U << MT_RUNGS) & ~BIT(SMALLER_BATCH);
    v.policy.forbid_rungs = below(state, 2) ? (unsigned)below(state, 1U << MT_RUNGS) : 0;
    v.policy.allow_rungs &= ~v.policy.forbid_rungs;
    v.policy.keep_chunks = (int)below(state, 3) - 1;
    v.policy.deterministic = below(state, 2) == 0;
    v.policy.max_retries = (unsigned)below(state, 12);
    v.policy.clear_every = (int)below(state, 4) - 1;
    v.policy.max_micro_batch = below(state, 4) == 0 ? o->min_micro_batch + 1 + below(state, 20) : 0;
    o->prepares = below(state, 3) == 0;
    return v;
}

/* Each line of the script under faults of its own; what fails is done again without them. */
static void line_at_random(mt_trainer *trainer, const variant *v, int index, uint64_t *state) {
    uint64_t before = fake_hash(&fake);
    mt_status status;

    if (below(state, 3) > 0) fake_fail_at(&fake, 1 + below(state, 150), below(state, 4) == 0);
    if (below(state, 3) == 0)
        fake_fail_kind(&fake, FAKE_ALLOCATION, 1 + below(state, 60), MT_EDEVMEM);
    fake_log_clear(&fake);
    status = perform(trainer, v, index);
    check_after(status, MT_EDEVMEM, before, where(v, (uint64_t)v->fits, index));
    fake_fail_at(&fake, 0, 0);
    fake_fail_kind(&fake, FAKE_ALLOCATION, 0, MT_OK);
    for (int tries = 0; status != MT_OK && tries < 4; tries++) {
        fake.options.cpu_bytes *= 2;
        fake.options.budget_bytes *= 2; /* it may have been too small for the bounds */
        status = perform(trainer, v, index);
        check_after(status, MT_EDEVMEM, before, where(v, (uint64_t)v->fits, index));
    }
    ck_ok(status);
}

TEST_LOOP("random", oom_at_random, 1000) {
    uint64_t state = (uint64_t)_i * 1000003;
    variant v = random_variant(&state);
    fake_options options = options_of(&v);
    mt_trainer *trainer;

    chunk_count = 0;
    fake_init(&fake, &options);
    trainer = trainer_under_fault(&v, MT_OK);
    for (int index = 0; index < LENGTH(script); index++) line_at_random(trainer, &v, index, &state);
    mt_trainer_free(trainer);
    check_replay(&v, (uint64_t)_i);
}

int main(void) {
    tcase_set_tags(suite_case_named("once"), "oom");
    tcase_set_tags(suite_case_named("for ever"), "oom");
    tcase_set_tags(suite_case_named("other"), "oom");
    tcase_set_tags(suite_case_named("random"), "oom");
    tcase_set_timeout(suite_case_named("random"), 10);
    return suite_run_named("oom_core");
}
