/*
 * check_trainer_oom.c - memory runs out for good, budgets that change, models that are wrong,
 * and the cache.
 */
#include "rungs.h"
#include "suite.h"
#include "trainer_tests.h"
#include "tuned.h"

#include <stdio.h>
#include <string.h>

/* ---- memory runs out for good --------------------------------------------------------------- */

TEST_LOOP("memory", retries_are_bounded, 4) {
    static const unsigned retries[] = {0, 1, 2, 5};
    unsigned bound = retries[_i] > 0 ? retries[_i] : DEFAULT_RETRIES;

    options = fits(14);
    policy.max_retries = retries[_i];
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    fake_log_clear(&fake);
    fake.counted = FAKE_BIT(FAKE_ALLOCATION);
    fake_fail_at(&fake, 1, 1);
    step_fails(trainer, 32, 2, MT_EDEVMEM);
    ck_assert_uint_le(count_kind(FAKE_BEGIN), bound + 1);
    ck_assert_uint_ge(count_kind(FAKE_BEGIN), 2);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), count_kind(FAKE_ROLLBACK));
    fake_fail_at(&fake, 0, 0);
    step(trainer, 32, 2);
}

/* The text names the budget, what is allocated and by whom, what a chunk needs, what would help. */
TEST("memory", explained) {
    char text[4000], budget[40], cut[20];
    size_t length;

    options = fits(1);
    options.budget_bytes--;
    trainer = trainer_with(&options, NULL);
    ck_assert_uint_eq(mt_trainer_explain(trainer, text, sizeof(text)), 0);
    ck_assert_str_eq(text, "");
    step_fails(trainer, 32, 1, MT_EDEVMEM);
    length = mt_trainer_explain(trainer, text, sizeof(text));
    ck_assert_uint_eq(length, strlen(text));
    ck_contains(text, "budget");
    ck_contains(text, mt_format_size(options.budget_bytes, budget, sizeof(budget)));
    ck_contains(text, "parameter");
    ck_contains(text, "gradient");
    ck_contains(text, "optimi");
    ck_contains(text, "fit");
    ck_contains(text, "\n");
    ck_assert_uint_eq(mt_trainer_explain(trainer, cut, sizeof(cut)), length);
    ck_assert_uint_eq(strlen(cut), sizeof(cut) - 1);
    ck_assert_int_eq(strncmp(cut, text, sizeof(cut) - 1), 0);
    fake.options.budget_bytes *= 10;
    step(trainer, 32, 1);
    ck_assert_uint_eq(mt_trainer_explain(trainer, text, sizeof(text)), 0);
}

static char last_oom[1000];

static void keep_oom(void *user, const char *line) {
    (void)user;
    if (strstr(line, "\"event\":\"oom\"")) snprintf(last_oom, sizeof(last_oom), "%s", line);
}

static const struct {
    mt_mode mode;
    const char *phase;
} ruled_out[] = {
    {MT_TRAIN, "\"phase\":\"begin\",\"chunk\":0,"},
    {MT_EVALUATE, "\"phase\":\"evaluate\",\"chunk\":0,"},
};

/* Known not to fit before anything runs: nothing does, and the trace says where it would have been. */
TEST_LOOP("memory", known_not_to_fit, LENGTH(ruled_out)) {
    own.trace = keep_oom;
    options.min_micro_batch = 4;
    trainer = trainer_of(&options, &own);
    step(trainer, 32, 1);
    evaluate(trainer, 32, 1);
    fake.options.budget_bytes = fake_defaults.resident_bytes + 10;
    fake_log_clear(&fake);
    if (ruled_out[_i].mode == MT_TRAIN)
        step_fails(trainer, 32, 2, MT_EDEVMEM);
    else
        evaluation_fails(32, 2, MT_EDEVMEM);
    check_log("");
    ck_contains(last_oom, ruled_out[_i].phase);
    ck_contains(last_oom, "\"attempt\":0,\"action\":\"give_up\"");
    ck_assert_str_ne(explanation(), "");
}

static mt_status describe_adam(void *self, mt_backend_info *out) {
    (void)self;
    out->parameter_bytes = 4000;
    out->optimizer_bytes = 8000;
    return MT_OK;
}

/* For a trainer that is made, and no more. */
static mt_status describe_once(void *self, mt_backend_info *out) {
    static int times;
    return times++ ? mt_set_error(MT_ETORCH, "no description") : describe_adam(self, out);
}

/* What would help depends: on the size that was fixed, on the optimiser, on what is known. */
TEST_LOOP("memory", explained_by_case, 5) {
    static const char *const words[] = {"micro-batch", "optimiser", "not known", "optimiser",
                                        "micro-batch"};
    mt_backend seam;

    options = fits(2);
    if (_i == 2) { /* a device with a limit that it does not tell */
        options.device_bytes = options.resident_bytes + 100;
        options.budget_bytes = 0;
    }
    seam = new_seam();
    seam.describe = _i < 3 ? describe_adam : _i == 3 ? describe_once : NULL;
    policy.micro_batch = 8;
    own.policy = &policy;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    step_fails(trainer, 32, 1, MT_EDEVMEM);
    ck_contains(explanation(), words[_i]);
}

static size_t kept_by_optimiser;

static mt_status describe_optimiser(void *self, mt_backend_info *out) {
    mt_status status = describe_adam(self, out);
    out->optimizer_bytes = kept_by_optimiser;
    return status;
}

/* An optimiser with less state is named to who has one with more than SGD's. */
TEST_LOOP("memory", explained_optimiser, 4) {
    static const size_t kept[] = {0, 4000, 4096, 8000};
    mt_backend seam;

    options = fits(1);
    options.budget_bytes--;
    kept_by_optimiser = kept[_i];
    seam = new_seam();
    seam.describe = describe_optimiser;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    step_fails(trainer, 32, 1, MT_EDEVMEM);
    ck_assert_int_eq(strstr(explanation(), "SGD keeps 3.9 KiB less, without momentum 7.8") != NULL,
                     _i == 3);
    ck_assert_int_eq(strstr(explanation(), "less state") != NULL, _i == 3);
}

/* Rungs that there are and that are not taken are named, those that were of no use are not. */
TEST_LOOP("memory", explained_rungs, 4) {
    static const struct {
        unsigned has, allow, forbid;
        const char *named, *not_named;
    } rows[] = {
        {BIT(CHECKPOINTING), 0, BIT(CHECKPOINTING), "rung checkpointing, which", "rung amp"},
        {BIT(OFFLOAD), 0, BIT(OFFLOAD), "rung offload", "rung ch"},
        {BIT(AMP) | BIT(CHECKPOINTING), 0, 0, "rung amp", "rung checkpointing"},
        {BIT(CPU) | BIT(AMP), BIT(AMP), 0, "rung cpu", "rung amp"},
    };

    options = fits(1);
    policy.allow_rungs = rows[_i].allow;
    policy.forbid_rungs = rows[_i].forbid;
    options.rungs = rows[_i].has;
    options.budget_bytes = options.resident_bytes + 100;
    trainer = trainer_with(&options, &policy);
    step_fails(trainer, 32, 1, MT_EDEVMEM);
    ck_contains(explanation(), rows[_i].named);
    ck_assert_ptr_null(strstr(explanation(), rows[_i].not_named));
}

/* The budget that the text asks for is the one that suffices, to the byte, also where that was refused. */
static const size_t smallest[] = {8, 1};

TEST_LOOP("memory", explained_budget_suffices, LENGTH(smallest)) {
    size_t enough = fits(smallest[_i]).budget_bytes;
    char number[40];

    options = fits(40);
    policy.min_micro_batch = smallest[_i];
    trainer = trainer_with(&options, &policy);
    step(trainer, 32, 1);
    fake.options.budget_bytes = enough - 1;
    step_fails(trainer, 32, 1, MT_EDEVMEM);
    snprintf(number, sizeof(number), "(%zu bytes)", enough);
    ck_contains(explanation(), number);
    fake.options.budget_bytes = enough;
    step(trainer, 32, 1);
}

static const fake_allocation costly_allocations[] = {{90000, 9000, FAKE_AT_END}};
static mt_backend cheap; /* before its rungs cost more than they spare */

static mt_status set_costly_rung(void *self, mt_rung rung, int on) {
    fake.options.train = on ? (fake_program){costly_allocations, 1} : fake_train_program;
    return cheap.set_rung(self, rung, on);
}

/* The line that names a budget, of a job with that rung or with none. */
static void explain_budget(unsigned rung, int known, char line[200]) {
    mt_backend seam;

    options = fits(40);
    options.rungs = policy.allow_rungs = rung;
    policy.min_micro_batch = 4;
    own.policy = &policy;
    seam = cheap = new_seam();
    seam.set_rung = rung ? set_costly_rung : NULL;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    if (known) step(trainer, 32, 1);
    fake.options.budget_bytes = fits(3).budget_bytes;
    step_fails(trainer, 32, 2, MT_EDEVMEM);
    ck_contains(explanation(), "a budget of ");
    snprintf(line, 200, "%s", strstr(explanation(), "a budget of "));
    *strchr(line, '\n') = '\0';
    end_trainer();
}

/* What the last rung needs is no reason to ask for more than would do without it. */
TEST_LOOP("memory", explained_budget_is_the_least_of_all_rungs, 2) {
    char without[200], with[200];

    explain_budget(0, _i, without);
    explain_budget(BIT(AMP), _i, with);
    ck_assert_str_eq(with, without);
    ck_assert_int_eq(strstr(with, "more than") == NULL, _i);
}

/*
 * No budget is named below the one that there is, whatever failed: the figures of a chunk are no reason
 * for what begin or apply lacked, and what was seen of an OOM is not forgotten where no plan is left.
 */
static const struct {
    fake_kind kind; /* fails from the n-th call on, without evidence */
    uint64_t n;
    size_t samples, least;
    const char *phase;  /* that is told */
    const char *has;    /* told as well ... */
    const char *has_no; /* ... or not */
} untold[] = {
    {FAKE_BEGIN, 1, 32, 0, "begin", "how much is not known", "a chunk needs"},
    {FAKE_APPLY, 1, 32, 0, "apply", "how much is not known", "min_micro_batch"},
    {FAKE_ACCUMULATE, 1, 32, 8, "accumulate", "min_micro_batch than 8", "before it is tried"},
    {FAKE_ACCUMULATE, 1, 11, 6, "accumulate", "of 11 samples)", "before it is tried"},
    {FAKE_EVALUATE, 2, 23, 6, "evaluate", "of 11 samples", "before it is tried"},
};

TEST_LOOP("memory", explained_without_evidence, LENGTH(untold)) {
    char phase[60];
    const char *text, *budget;

    options = fits(12);
    options.eval = fake_train_program;
    policy.min_micro_batch = untold[_i].least;
    policy.deterministic = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, 36, 1);
    evaluate(trainer, 36, 1);
    fake_fail_kind_for_ever(&fake, untold[_i].kind, untold[_i].n, MT_EDEVMEM);
    if (untold[_i].kind == FAKE_EVALUATE)
        evaluation_fails(untold[_i].samples, 2, MT_EDEVMEM);
    else
        step_fails(trainer, untold[_i].samples, 2, MT_EDEVMEM);
    text = explanation();
    snprintf(phase, sizeof(phase), "memory ran out in %s,", untold[_i].phase);
    ck_contains(text, phase);
    ck_contains(text, untold[_i].has);
    ck_contains(text, strstr(mt_last_error(), "no legal cut is smaller") ||
                              strstr(mt_last_error(), "would do")
                          ? "is known not to fit"
                          : "nothing is left");
    ck_assert_msg(strstr(text, untold[_i].has_no) == NULL, "%s", text);
    budget = strstr(text, "  a budget of ");
    budget = budget != NULL ? strchr(budget, '(') : NULL;
    if (budget != NULL) ck_assert_uint_gt(strtoull(budget + 1, NULL, 10), options.budget_bytes);
}

/* Chunks that went through are taken back with the update that did not: the step has not moved on, and gives up. */
TEST("memory", update_that_never_fits) {
    options = fits(64);
    options.keep = options.tells_gradients = 1;
    policy.keep_chunks = MT_KEEP_ALWAYS;
    trainer = trainer_with(&options, &policy);
    step(trainer, 36, 1);
    fake_fail_kind_for_ever(&fake, FAKE_APPLY, 1, MT_EDEVMEM);
    step_fails(trainer, 36, 2, MT_EDEVMEM);
    ck_assert_uint_le(fake.kind_calls[FAKE_APPLY], DEFAULT_RETRIES + 1);
}

static mt_backend fits_in_chunks; /* before its update asks for more than there is */

static mt_status greedy_apply(void *self, mt_apply_result *out) {
    ck_assert_uint_eq(out->refused, 0);
    ck_status(fits_in_chunks.apply(self, out), MT_EDEVMEM);
    out->refused = 1;
    out->refused_bytes = 3000;
    out->refused_in_use_bytes = fake.options.budget_bytes - 1000;
    return mt_set_error(MT_EDEVMEM, "no room");
}

static size_t state_bytes; /* of the optimiser, now */

static mt_status describe_state(void *self, mt_backend_info *out) {
    mt_status status = fits_in_chunks.describe(self, out);
    out->optimizer_bytes = state_bytes;
    return status;
}

/*
 * An update that the budget explains is not tried again, nor after the whole batch alone, which does not fit here: the
 * text is about the update. _i: whether the backend tells what was refused.
 */
TEST_LOOP("memory", explained_update, 2) {
    char more[120], has[40];
    const char *text;
    mt_backend seam;

    options = fits(12);
    options.keep = options.tells_gradients = options.holds = 1;
    /* So the whole batch alone may fit, for all that is known. */
    options.absent = FAKE_BIT(FAKE_RECORD);
    seam = fits_in_chunks = new_seam();
    seam.describe = describe_state;
    if (_i) seam.apply = greedy_apply;
    state_bytes = 0;
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    state_bytes = 7 * 1024;
    fake_fail_kind_for_ever(&fake, FAKE_APPLY, 1, MT_EDEVMEM);
    step_fails(trainer, 36, 1, MT_EDEVMEM);
    if (_i) ck_assert_uint_eq(fake.kind_calls[FAKE_APPLY], 2); /* once more with an empty cache */
    ck_assert_int_eq(fake.holding, 1);
    text = explanation();
    ck_contains(text, "memory ran out in apply, the optimiser's update");
    ck_contains(text, "in use before the update");
    ck_contains(text, "7.0 KiB"); /* the optimiser's state, made since */
    ck_contains(text, "not smaller chunks");
    ck_assert_ptr_null(strstr(text, "a chunk needs"));
    mt_format_size(options.budget_bytes + 2000, has, sizeof(has));
    snprintf(more, sizeof(more), "a budget of more than %s, how much is not known: the update",
             has);
    ck_contains(text, _i ? more : "how much is not known: the error line");
    if (_i) ck_contains(text, "last request was for 2.9 KiB");
}

/* What the allocator holds beside tensors is in the way of a chunk as well. */
TEST("memory", explained_with_a_cache) {
    char held[32];

    options = fits(12);
    options.cache_keeps_bytes = 3000;
    options.no_evidence = 1;
    trainer = trainer_with(&options, NULL);
    step(trainer, 8, 1);
    fake.options.budget_bytes = options.resident_bytes + 6000;
    fake_fail_kind_for_ever(&fake, FAKE_EMPTY_CACHE, 1, MT_EDEVMEM);
    step_fails(trainer, 8, 2, MT_EDEVMEM);
    ck_contains(explanation(), "held beside it, unused");
    ck_contains(strstr(explanation(), "held beside"), mt_format_size(3000, held, sizeof(held)));
}

/* Chunks that were given can be given smaller. */
TEST("memory", explained_for_given_chunks) {
    static const size_t chunks[] = {16};

    options = fits(12);
    trainer = trainer_with(&options, NULL);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 1));
    step_fails(trainer, 16, 1, MT_EDEVMEM);
    ck_contains(explanation(), "smaller chunks than those that are given");
}

/* A size that the user fixed is not made smaller behind the user's back. */
TEST("memory", fixed_micro_batch_does_not_fit) {
    options = fits(6);
    policy.micro_batch = 8;
    trainer = trainer_with(&options, &policy);
    step_fails(trainer, 32, 1, MT_EDEVMEM);
    ck_assert_uint_le(count_kind(FAKE_BEGIN), DEFAULT_RETRIES + 1);
    check_only_chunks_of(8);
    step(trainer, 6, 2); /* one chunk of 6 */
}

/* ---- budgets that change, models that are wrong ---------------------------------------------- */

/* Memory taken by others and given back, between steps: no OOM at all. */
TEST("memory", hog_comes_and_goes) {
    size_t largest[31];

    options = fits(20);
    options.hog_from = 10;
    options.hog_until = 20;
    options.hog_bytes = 100000;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 30; id++) largest[id] = step(trainer, 64, id).chunks[0];
    ck_assert_uint_eq(fake.genuine, 0);
    for (uint64_t id = 10; id < 20; id++) ck_assert_uint_lt(largest[id], largest[9]);
    ck_assert_uint_eq(largest[30], largest[9]);
}

/* A limit of the device below the budget that it tells. */
TEST_LOOP("memory", device_holds_less_than_it_says, 2) {
    options = fits(40);
    options.device_bytes = options.resident_bytes + fake_program_peak(&fake_train_program, 13);
    options.no_evidence = _i;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 10; id++) step(trainer, 64, id);
}

/* Another kernel above 10 samples, which the first two recordings do not show. */
TEST_LOOP("memory", kernel_changes_with_the_chunk, 2) {
    options = fits(25);
    options.wide = (fake_program){fake_wide_allocations, FAKE_WIDE_COUNT};
    options.wide_above = 10;
    options.absent = _i == 0 ? 0 : FAKE_BIT(FAKE_RECORD);
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 30; id++) step(trainer, 64, id);
    ck_assert_uint_le(fake.genuine, 2); /* it learns: not one OOM a step */
}

/* A recording that is run and taken back, and from which nothing is learnt, is not run for ever. */
TEST_LOOP("endless", nothing_is_learnt_from_the_recording, 2) {
    options = fits(_i == 0 ? 30 : 12);
    options.normalises_over_batch = 1;
    options.absent = FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK);
    options.no_peaks = 1;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 10; id++) {
        mt_step_report report = step(trainer, 32, id);

        ck_assert_uint_le(report.discarded, id == 1 ? 200 : 96);
    }
}

/* Nothing but the budget is known: no recordings, no peaks, no evidence. */
TEST("memory", nothing_is_known) {
    options = fits(13);
    options.absent = FAKE_BIT(FAKE_RECORD) | FAKE_BIT(FAKE_RESET_PEAK);
    options.no_peaks = 1;
    options.no_evidence = 1;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 30; id++) step(trainer, 64, id);
    ck_assert_uint_le(fake.genuine, 12);
}

/* ---- cache ---------------------------------------------------------------------------------- */

TEST("cache", cache_every) {
    mt_run_report run = MT_RUN_REPORT_INIT;

    policy.clear_every = 3;
    trainer = trainer_with(&fake_defaults, &policy);
    for (uint64_t id = 1; id <= 31; id++) step(trainer, 16, id);
    ck_assert_uint_eq(count_kind(FAKE_EMPTY_CACHE), 10);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.clears, 10);
}

TEST("cache", cache_after_epochs) {
    options = fits(14);
    policy.clear_every = MT_CLEAR_EPOCHS;
    options.cache_keeps_bytes = 30000;
    trainer = trainer_with(&options, &policy);
    for (int epoch = 0; epoch < 3; epoch++) {
        for (uint64_t id = 1; id <= 10; id++) step(trainer, 16, id);
        ck_assert_uint_eq(count_kind(FAKE_EMPTY_CACHE), epoch);
        ck_ok(mt_trainer_end_epoch(trainer, NULL));
        ck_assert_uint_eq(count_kind(FAKE_EMPTY_CACHE), epoch + 1);
    }
}

TEST("cache", cache_never) {
    options = fits(14);
    policy.clear_every = MT_CLEAR_NEVER;
    policy.eval_clear_every = MT_CLEAR_NEVER;
    options.cache_keeps_bytes = 30000;
    trainer = trainer_with(&options, &policy);
    for (uint64_t id = 1; id <= 20; id++) {
        step(trainer, 32, id);
        evaluate(trainer, 16, id);
    }
    ck_assert_uint_eq(count_kind(FAKE_EMPTY_CACHE), 0);
}

/* On evidence, at no more than a hundredth of the time. */
TEST("cache", cache_automatic) {
    mt_run_report run = MT_RUN_REPORT_INIT;

    options = fits(14);
    options.cache_keeps_bytes = 30000;
    options.seconds = fake_seconds;
    options.clear_seconds = 0.004;
    trainer = trainer_with(&options, NULL);
    for (uint64_t id = 1; id <= 400; id++) step(trainer, 32, id);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_gt(fake.clears, 2);
    ck_assert_double_le((double)fake.clears * 0.004, run.seconds / HUNDREDTH + 0.004);
}

/* The cache cannot be emptied for want of memory: whatever it was for goes on. */
TEST_LOOP("cache", cache_is_not_emptied, 2) {
    mt_status why = _i == 0 ? MT_EDEVMEM : MT_EIO;
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_batch batch = batch_of(16, 1);

    policy.clear_every = policy.eval_clear_every = 1;
    trainer = trainer_with(&fake_defaults, &policy);
    step(trainer, 16, 1);
    evaluate(trainer, 16, 1);
    fake_fail_kind_for_ever(&fake, FAKE_EMPTY_CACHE, 1, why);
    ck_assert_int_eq(mt_trainer_step(trainer, &batch, NULL), _i == 0 ? MT_OK : why);
    ck_assert_int_eq(mt_trainer_evaluate(trainer, &batch, &report), _i == 0 ? MT_OK : why);
    ck_assert_int_eq(mt_trainer_end_epoch(trainer, NULL), _i == 0 ? MT_OK : why);
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.clears, 0);
}

/* Nor does it matter in the answer to an OOM. */
TEST("cache", cache_is_not_emptied_for_an_oom) {
    options = fits(6);
    policy.micro_batch = 8;
    options.no_evidence = 1;
    trainer = trainer_with(&options, &policy);
    fake_fail_kind_for_ever(&fake, FAKE_EMPTY_CACHE, 1, MT_EDEVMEM);
    step_refused(32, 1, MT_EDEVMEM, "a batch of 32 samples does not fit");
    ck_assert_uint_ge(count_kind(FAKE_EMPTY_CACHE), 1);
    step(trainer, 6, 2);
}

int main(void) {
    suite_each_test(begin_defaults, end_trainer);
    tcase_set_timeout(suite_case_named("endless"), 5);
    return suite_run_named("trainer_oom");
}
