/*
 * check_trainer_deferred.c - chunks that are not waited for: their figures come once a step or evaluation, and nothing
 * else changes.
 */
#include "counting_allocator.h"
#include "suite.h"
#include "trainer_tests.h"
#include "tuned.h"

#include <math.h>
#include <memtrain/policy.h>

enum { STEPS = 60, BATCH = 64 };

/* A step as it is reported. */
typedef struct seen {
    size_t chunks[BATCH];
    size_t count, discarded;
    double loss, metrics[FAKE_METRICS], seconds;
} seen;

/* A backend that defers, and chunks of 16, which are known after a batch of four. */
static void begin(void) {
    begin_defaults();
    options = fits(20);
    options.seconds = fake_seconds;
    options.defers = 1;
    policy.micro_batch = 16;
}

static void run(seen *out) {
    trainer = trainer_with(&options, &policy);
    for (uint64_t i = 0; i < STEPS; i++) {
        mt_step_report report = step(trainer, BATCH, i);

        memset(&out[i], 0, sizeof(out[i]));
        memcpy(out[i].chunks, report.chunks, report.chunk_count * sizeof(*report.chunks));
        out[i].count = report.chunk_count;
        out[i].discarded = report.discarded;
        out[i].loss = report.loss;
        memcpy(out[i].metrics, report.metrics, sizeof(out[i].metrics));
        out[i].seconds = report.seconds;
    }
    end_trainer();
}

static void check_same(const seen *a, const seen *b) {
    for (size_t i = 0; i < STEPS; i++) {
        ck_assert_uint_eq(a[i].count, b[i].count);
        ck_assert_mem_eq(a[i].chunks, b[i].chunks, sizeof(a[i].chunks));
        ck_assert_uint_eq(a[i].discarded, b[i].discarded);
        ck_assert_mem_eq(&a[i].loss, &b[i].loss, sizeof(a[i].loss));
        ck_assert_mem_eq(a[i].metrics, b[i].metrics, sizeof(a[i].metrics));
        ck_assert_double_eq_tol(a[i].seconds, b[i].seconds, 1e-12);
    }
}

static const struct {
    const char *name;
    fake_options options;
    mt_policy_options policy;
    uint64_t least; /* chunks that are deferred, of all steps */
} rows[] = {
    {"timed", {.seconds = fake_seconds}, {0}, 200},
    {"untimed", {.seconds = NULL}, {.deterministic = 1}, 200},
    {"fixed", {.seconds = fake_seconds}, {.micro_batch = 8}, 400},
    {"kept", {.seconds = fake_seconds, .keep = 1}, {.keep_chunks = MT_KEEP_ALWAYS}, 200},
    {"told", {.seconds = fake_seconds, .prepares = 1}, {0}, 200},
    {"units", {.seconds = fake_seconds, .units = fake_unit_table, .unit_count = 11}, {0}, 200},
    {"normalising", {.seconds = fake_seconds, .normalises_over_batch = 1}, {0}, 200},
    {"hog",
     {.seconds = fake_seconds, .keep = 1, .hog_from = 9, .hog_until = 14, .hog_bytes = 70000},
     {0},
     200},
};

/* Chunks, sums and times are those of a backend that waits for each chunk. */
TEST_LOOP("same", nothing_else_changes, LENGTH(rows)) {
    static seen waits[STEPS], defers[STEPS], never[STEPS];
    fake_options base = fits(14);

    options = rows[_i].options;
    policy = rows[_i].policy;
    policy.size = sizeof(policy);
    options.seed = base.seed;
    options.noise = base.noise;
    options.resident_bytes = base.resident_bytes;
    options.budget_bytes = base.budget_bytes;
    run(waits);
    options.defers = 1;
    run(defers);
    ck_assert_uint_ge(fake.deferrals, rows[_i].least);
    check_same(waits, defers);
    options.defers = 2;
    run(never);
    ck_assert_uint_eq(fake.deferrals, 0);
    check_same(waits, never);
}

/* A step has gone through, and the log is empty. */
static void learn(int keep, int how) {
    options.keep = keep;
    policy.keep_chunks = how;
    trainer = trainer_with(&options, &policy);
    step(trainer, BATCH, 0);
    fake_log_clear(&fake);
}

#define CALLS (FAKE_BIT(FAKE_ACCUMULATE) | FAKE_BIT(FAKE_COLLECT) | FAKE_BIT(FAKE_APPLY))

/* Adds a call for each chunk of 16, from the n-th to before the last one. */
static void add_calls(char text[400], const char *name, size_t from, size_t to) {
    for (size_t n = from; n < to; n++)
        snprintf(text + strlen(text), 400 - strlen(text), "%s(%zu+16) ", name, 16 * n);
}

/* All figures of a step are asked for at its end, once a size is known. */
TEST("when", asked_for_once_a_step) {
    char expected[400] = "";

    trainer = trainer_with(&options, &policy);
    step(trainer, (size_t)16 * KNOWN_RUNS, 1); /* the first chunks of a size are waited for */
    add_calls(expected, "accumulate", 0, KNOWN_RUNS);
    strcat(expected, "apply");
    ck_assert_str_eq(fake_log_text(&fake, CALLS), expected);
    fake_log_clear(&fake);
    step(trainer, 32, 2);
    ck_assert_str_eq(fake_log_text(&fake, CALLS),
                     "accumulate(0+16) accumulate(16+16) collect(0+1) collect(1+1) apply");
}

/* What is prepared for chunks need not be waited for where none of them is. */
TEST("when", preparations) {
    options.prepares = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, (size_t)16 * KNOWN_RUNS, 1);
    ck_assert_uint_eq(fake.deferred_preparations, 0);
    step(trainer, 32, 2);
    ck_assert_uint_eq(fake.deferred_preparations, 1);
    step(trainer, 40, 3); /* 16, 16, and 8, a size that has not run */
    ck_assert_uint_eq(fake.deferred_preparations, 1);
}

/* A size that is not known is waited for, and none is in a run without times. */
TEST("when", sizes_that_are_known) {
    mt_policy_options wishes = MT_POLICY_OPTIONS_INIT;
    mt_memory memory = MT_MEMORY_INIT;
    mt_chunk_result result = MT_CHUNK_RESULT_INIT;
    mt_policy *asked;
    mt_plan plan;

    result.seconds = 0.5;
    wishes.micro_batch = 8;
    ck_ok(mt_policy_new(&wishes, NULL, &asked));
    for (int i = 0; i < KNOWN_RUNS; i++) {
        ck_ok(mt_policy_plan(asked, MT_TRAIN, 8, &memory, &plan));
        ck_assert_int_eq(mt_policy_wants_seconds(asked, MT_TRAIN, 8), 1);
        ck_ok(mt_policy_observe(asked, MT_TRAIN, 8, 0, &result));
    }
    ck_assert_int_eq(mt_policy_wants_seconds(asked, MT_TRAIN, 8), 0);
    ck_assert_int_eq(mt_policy_wants_seconds(asked, MT_TRAIN, 7), 1);
    ck_assert_int_eq(mt_policy_wants_seconds(asked, MT_EVALUATE, 8), 1);
    ck_assert_int_eq(mt_policy_wants_seconds(NULL, MT_TRAIN, 8), 0);
    ck_assert_int_eq(mt_policy_wants_seconds(asked, (mt_mode)9, 8), 0);
    mt_policy_free(asked);
    wishes.deterministic = 1;
    ck_ok(mt_policy_new(&wishes, NULL, &asked));
    ck_assert_int_eq(mt_policy_wants_seconds(asked, MT_TRAIN, 8), 0);
    mt_policy_free(asked);
}

/* Seconds that come later are as good as those that come at once. */
TEST("when", seconds_that_come_later) {
    static const double bad[] = {0, -1, NAN, INFINITY};
    mt_policy *asked;

    ck_ok(mt_policy_new(NULL, NULL, &asked));
    for (size_t i = 0; i < 4; i++) ck_ok(mt_policy_observe_seconds(asked, MT_TRAIN, 8, bad[i]));
    ck_assert_double_eq(mt_policy_predict_seconds(asked, MT_TRAIN, 8), 0);
    ck_ok(mt_policy_observe_seconds(asked, MT_TRAIN, 8, 0.25));
    ck_assert_double_eq(mt_policy_predict_seconds(asked, MT_TRAIN, 8), 0.25);
    ck_ok(mt_policy_begin(asked, &(mt_shape){.id = 5})); /* of which nothing was planned */
    ck_ok(mt_policy_observe_seconds(asked, MT_TRAIN, 8, 0.25));
    ck_assert_double_eq(mt_policy_predict_seconds(asked, MT_TRAIN, 8), 0);
    ck_status(mt_policy_observe_seconds(NULL, MT_TRAIN, 8, 1), MT_EINVAL);
    ck_status(mt_policy_observe_seconds(asked, (mt_mode)9, 8, 1), MT_EINVAL);
    ck_status(mt_policy_observe_seconds(asked, MT_TRAIN, 0, 1), MT_EINVAL);
    mt_policy_free(asked);
}

/* Memory that ran out while the device worked is told of late. The step is taken back whole and goes through. */
TEST_LOOP("fails", memory_runs_out_late, 2) {
    static seen reference[STEPS];
    mt_step_report report;

    options.keep = _i;
    run(reference);
    learn(_i, MT_KEEP_AUTO);
    fake_fail_kind(&fake, FAKE_COLLECT, 2, MT_EDEVMEM);
    report = step(trainer, BATCH, 1);
    ck_assert_uint_eq(report.retries, 1);
    ck_assert_uint_eq(report.discarded, BATCH);
    ck_assert_double_eq(report.loss, reference[1].loss);
    ck_assert_ptr_nonnull(strstr(fake_log_text(&fake, CALLS | FAKE_BIT(FAKE_ROLLBACK)),
                                 "collect(0+1) collect!(1+1) rollback"));
}

TEST("fails", another_failure) {
    learn(0, MT_KEEP_AUTO);
    fake_fail_kind(&fake, FAKE_COLLECT, 4, MT_EIO);
    step_fails(trainer, BATCH, 1, MT_EIO);
    step(trainer, BATCH, 1);
}

/* A chunk that is taken back alone leaves those before it: their figures are asked for all the same. */
TEST("fails", a_rewind_keeps_them) {
    mt_step_report report;

    learn(1, MT_KEEP_ALWAYS);
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 3, MT_EDEVMEM);
    report = step(trainer, BATCH, 1);
    ck_assert_uint_eq(report.discarded, 16);
    ck_assert_str_eq(fake_log_text(&fake, CALLS | FAKE_BIT(FAKE_REWIND)),
                     "accumulate(0+16) accumulate(16+16) accumulate!(32+16) rewind "
                     "accumulate(32+16) accumulate(48+16) collect(0+1) collect(1+1) collect(2+1) "
                     "collect(3+1) apply");
}

/* Where host memory is short a step fails as a whole, or goes through. */
TEST("fails", no_host_memory) {
    mt_batch batch = batch_of(8, 0);
    int failed = 0;

    policy.micro_batch = 1;
    ck_ok(counting_install());
    for (size_t n = 1, fired = 1; fired; n++) {
        trainer = trainer_with(&options, &policy);
        uint64_t before = fake_hash(&fake);
        counting_fail_at(n, 0);
        mt_status status = mt_trainer_step(trainer, &batch, NULL);
        fired = counting_fired();
        counting_fail_at(0, 0);
        failed += status != MT_OK;
        if (status != MT_OK) ck_status(status, MT_ENOMEM);
        if (status != MT_OK) ck_assert_uint_eq(fake_hash(&fake), before);
        step(trainer, 8, 0);
        end_trainer();
    }
    ck_assert_int_ge(failed, 2); /* the lists of chunks: of all, and of those that are deferred */
}

/* ---- evaluations ------------------------------------------------------------------------------------ */

#define EVALUATIONS (FAKE_BIT(FAKE_EVALUATE) | FAKE_BIT(FAKE_COLLECT))

/* An evaluation has gone through, so that times are known, and the log is empty. */
static void learn_to_evaluate(int defers) {
    end_trainer();
    options.defers = defers;
    trainer = trainer_with(&options, &policy);
    evaluate(trainer, BATCH, 0);
    fake_log_clear(&fake);
}

/* Has the figures of a backend that waits for each chunk; the trainer is then one that does not. */
static mt_eval_report waited_for(void) {
    learn_to_evaluate(2);
    mt_eval_report report = evaluate(trainer, BATCH, 1);

    ck_assert_uint_eq(fake.deferrals, 0);
    learn_to_evaluate(1);
    return report;
}

static void check_same_figures(const mt_eval_report *a, const mt_eval_report *b) {
    ck_assert_mem_eq(&a->loss, &b->loss, sizeof(a->loss));
    ck_assert_mem_eq(a->metrics, b->metrics, sizeof(a->metrics));
    ck_assert_uint_eq(a->samples, b->samples);
}

#define ALL "evaluate(0+16) evaluate(16+16) evaluate(32+16) evaluate(48+16)"
#define TOLD "collect(0+1) collect(1+1) collect(2+1) collect(3+1)"

/* What fails once, by memory, and the calls then: what was not told is forgotten, and all is done again. */
static const struct {
    const char *name;
    fake_kind call;
    uint64_t at; /* 0: never */
    const char *calls;
} evaluations[] = {
    {"nothing", FAKE_EVALUATE, 0, ALL " " TOLD},
    {"the first chunk", FAKE_EVALUATE, 1, "evaluate!(0+16) " ALL " " TOLD},
    {"a later chunk", FAKE_EVALUATE, 3,
     "evaluate(0+16) evaluate(16+16) evaluate!(32+16) " ALL " " TOLD},
    {"the first figures", FAKE_COLLECT, 1, ALL " collect!(0+1) " ALL " " TOLD},
    {"later figures", FAKE_COLLECT, 3,
     ALL " collect(0+1) collect(1+1) collect!(2+1) " ALL " " TOLD},
    {"what is in use, before a later chunk: nothing is lost", FAKE_MEMORY, 5,
     "evaluate(0+16) evaluate(16+16) collect(0+1) collect(1+1) evaluate(32+16) evaluate(48+16) "
     "collect(2+1) collect(3+1)"},
};

TEST_LOOP("evaluate", told_at_the_end, LENGTH(evaluations)) {
    uint64_t at = evaluations[_i].at;
    mt_eval_report waits = waited_for(), defers;

    if (at) fake_fail_kind(&fake, evaluations[_i].call, at, MT_EDEVMEM);
    defers = evaluate(trainer, BATCH, 1);
    ck_assert_msg(strcmp(fake_log_text(&fake, EVALUATIONS), evaluations[_i].calls) == 0, "%s: %s",
                  evaluations[_i].name, fake_log_text(&fake, EVALUATIONS));
    check_same_figures(&waits, &defers);
    ck_assert_uint_eq(defers.retries, at != 0);
}

/* Figures that are still to come fail too, where it was no chunk that failed. */
TEST("evaluate", two_failures_in_a_row) {
    mt_eval_report waits = waited_for(), defers;

    fake_fail_kind(&fake, FAKE_MEMORY, 5, MT_EDEVMEM);
    fake_fail_kind(&fake, FAKE_COLLECT, 2, MT_EDEVMEM);
    defers = evaluate(trainer, BATCH, 1);
    ck_assert_str_eq(fake_log_text(&fake, EVALUATIONS),
                     "evaluate(0+16) evaluate(16+16) collect(0+1) collect!(1+1) " ALL " " TOLD);
    check_same_figures(&waits, &defers);
}

/* What was told stays: the first chunks of a size are waited for, and the three others are done again. */
TEST_LOOP("evaluate", what_was_told_stays, 2) {
    enum { ALL_CHUNKS = KNOWN_RUNS + 3 };
    char expected[400] = "";
    mt_eval_report reports[2];

    for (int is_hit = 0; is_hit < 2; is_hit++) {
        end_trainer();
        options.defers = 1;
        trainer = trainer_with(&options, &policy);
        if (is_hit)
            fake_fail_kind(&fake, _i ? FAKE_COLLECT : FAKE_EVALUATE, _i ? 2 : ALL_CHUNKS,
                           MT_EDEVMEM);
        reports[is_hit] = evaluate(trainer, (size_t)16 * ALL_CHUNKS, 1);
    }
    add_calls(expected, "evaluate", 0, _i ? ALL_CHUNKS : ALL_CHUNKS - 1);
    if (_i) strcat(expected, "collect(0+1) collect!(1+1) ");
    if (!_i) add_calls(expected, "evaluate!", ALL_CHUNKS - 1, ALL_CHUNKS);
    add_calls(expected, "evaluate", KNOWN_RUNS, ALL_CHUNKS);
    strcat(expected, "collect(0+1) collect(1+1) collect(2+1)");
    ck_assert_str_eq(fake_log_text(&fake, EVALUATIONS), expected);
    check_same_figures(&reports[0], &reports[1]);
}

/* Another failure ends the evaluation. What was not told is not taken for figures of the next one. */
TEST_LOOP("evaluate", a_failure_ends_it, 2) {
    mt_eval_report waits = waited_for(), defers;

    fake_fail_kind(&fake, _i ? FAKE_COLLECT : FAKE_EVALUATE, 3, MT_EIO);
    evaluation_fails(BATCH, 1, MT_EIO);
    defers = evaluate(trainer, BATCH, 1);
    check_same_figures(&waits, &defers);
}

/* A size that is not known is waited for. */
TEST("evaluate", sizes_that_are_not_known) {
    learn_to_evaluate(1);
    evaluate(trainer, 40, 1);
    ck_assert_str_eq(fake_log_text(&fake, EVALUATIONS),
                     "evaluate(0+14) evaluate(14+13) evaluate(27+13)");
}

TRAINER_SUITE_FROM("trainer_deferred", begin)
