/*
 * check_trainer_errors.c - what fails for good and is no matter of memory; a poisoned trainer.
 */
#include "suite.h"
#include "trainer_tests.h"

#include <math.h>
#include <stdio.h>

static const struct {
    fake_kind kind;
    mt_status status;
} failures[] = {
    {FAKE_MEMORY, MT_EIO},        {FAKE_RESET_PEAK, MT_ETORCH}, {FAKE_BEGIN, MT_ESTATE},
    {FAKE_ACCUMULATE, MT_EUSER},  {FAKE_ACCUMULATE, MT_ETORCH}, {FAKE_ACCUMULATE, MT_ENOMEM},
    {FAKE_ALLOCATION, MT_ETORCH}, {FAKE_APPLY, MT_EUSER},       {FAKE_APPLY, MT_EIO},
    {FAKE_RECORD, MT_ENOTSUP},    {FAKE_UNITS, MT_EINVAL},
};

/* A failure that is no matter of memory: the step is over and undone, its text arrives. */
TEST_LOOP("failure", failure_is_handed_on, LENGTH(failures)) {
    trainer = trainer_with(&fake_defaults, NULL);
    fake_fail_kind(&fake, failures[_i].kind, 1, failures[_i].status);
    step_refused(32, 1, failures[_i].status, "injected: ");
    ck_assert_uint_eq(fake.fired, 1);
    ck_assert(fake_gradients_zero(&fake));
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
    ck_assert_uint_le(count_kind(FAKE_BEGIN), 1);
    ck_assert_uint_eq(mt_trainer_explain(trainer, NULL, 0), 0); /* not for memory */
    ck_assert_uint_eq(step(trainer, 32, 1).step, 1);
}

/* A user's callback stops in the middle of a batch. */
TEST("failure", user_stops) {
    mt_run_report run = MT_RUN_REPORT_INIT;

    options = fits(6);
    trainer = trainer_with(&options, NULL);
    step(trainer, 30, 1);
    fake_log_clear(&fake);
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 3, MT_EUSER);
    step_fails(trainer, 30, 2, MT_EUSER);
    check_log("begin accumulate(0+6) accumulate(6+6) accumulate!(12+6) rollback");
    ck_ok(mt_trainer_summary(trainer, &run));
    ck_assert_uint_eq(run.steps, 1);
    ck_assert_uint_eq(run.samples_trained, 30);
    ck_assert_uint_eq(run.ooms, 0);
}

TEST("failure", describe_fails) {
    mt_backend seam = new_seam();
    mt_trainer *none;

    fake_fail_kind(&fake, FAKE_DESCRIBE, 1, MT_ENOTSUP);
    ck_refused(mt_trainer_new(&seam, NULL, &none), MT_ENOTSUP, "injected: describe");
    ck_assert_ptr_null(none);
}

static mt_status describe_too_many(void *self, mt_backend_info *out) {
    (void)self;
    out->metric_count = MT_METRICS_MAX + 1;
    return MT_OK;
}

static mt_status describe_without_names(void *self, mt_backend_info *out) {
    (void)self;
    out->metric_count = 1;
    return MT_OK;
}

static const struct {
    mt_status (*describe)(void *self, mt_backend_info *out);
    const char *says;
} bad_metrics[] = {{describe_too_many, "9 metrics"},
                   {describe_without_names, "metric_names is NULL"}};

TEST_LOOP("failure", metrics_are_checked, LENGTH(bad_metrics)) {
    mt_backend seam = new_seam();
    mt_trainer *none;

    seam.describe = bad_metrics[_i].describe;
    ck_refused(mt_trainer_new(&seam, NULL, &none), MT_EINVAL, bad_metrics[_i].says);
    ck_assert_ptr_null(none);
}

/* Numbers of samples that are none: nothing is begun. */
static const size_t bad_counts[] = {0, (size_t)INT64_MAX + 1, SIZE_MAX};

TEST_LOOP("failure", batch_is_checked, LENGTH(bad_counts)) {
    mt_batch batch = batch_of(bad_counts[_i], 1);
    char count[32];

    trainer = trainer_with(&fake_defaults, NULL);
    snprintf(count, sizeof(count), "batch->count is %zu", bad_counts[_i]);
    ck_refused(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL, count);
    ck_refused(mt_trainer_evaluate(trainer, &batch, NULL), MT_EINVAL, count);
    ck_assert_uint_eq(fake.logged, 0);
}

static mt_status begin_silently(void *self, const mt_batch *batch) {
    (void)self;
    (void)batch;
    return MT_EDEVMEM;
}

/* A backend without words: the line says what the status means, and no older line is taken for its own. */
TEST("failure", refused_without_words) {
    mt_batch batch = batch_of(8, 1);
    mt_backend seam = new_seam();

    seam.begin = begin_silently;
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    mt_set_error(MT_EIO, "an older line");
    ck_refused(mt_trainer_step(trainer, &batch, NULL), MT_EDEVMEM,
               "a batch of 8 samples does not fit on fake:0: ");
    ck_contains(mt_last_error(), mt_status_text(MT_EDEVMEM));
}

static mt_status stop(void *self, const mt_batch *batch) {
    (void)self;
    (void)batch;
    return MT_EUSER;
}

static mt_status evaluate_silently(void *self, const mt_batch *batch, size_t first, size_t count,
                                   mt_chunk_result *out) {
    (void)self, (void)batch, (void)first, (void)count, (void)out;
    return MT_EIO;
}

static mt_status hash_silently(void *self, char out[65]) {
    (void)self, (void)out;
    return MT_EIO;
}

static void says_that_it_does_not(mt_status status, mt_status expected) {
    ck_refused(status, expected, "the backend has failed and does not say why: ");
    ck_contains(mt_last_error(), mt_status_text(expected));
}

/* The same where it is no matter of memory. */
TEST("failure", failed_without_words) {
    mt_batch batch = batch_of(8, 1);
    mt_backend seam = new_seam();

    seam.begin = stop;
    seam.evaluate = evaluate_silently;
    seam.state_sha256 = hash_silently;
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    mt_set_error(MT_EIO, "an older line");
    says_that_it_does_not(mt_trainer_step(trainer, &batch, NULL), MT_EUSER);
    mt_set_error(MT_EIO, "an older line");
    says_that_it_does_not(mt_trainer_evaluate(trainer, &batch, NULL), MT_EIO);
    mt_set_error(MT_EUSER, "an older line");
    says_that_it_does_not(mt_trainer_finish(trainer, NULL), MT_EIO);
}

static double units_told;

static mt_status tell_units(void *self, const mt_batch *batch, size_t first, size_t count,
                            double *out) {
    (void)self, (void)batch, (void)first, (void)count;
    *out = units_told;
    return MT_OK;
}

/* What the weights of chunks would be no numbers of. */
TEST_LOOP("failure", units_that_are_none, 3) {
    static const double none[] = {-1, NAN, INFINITY};
    mt_batch batch = batch_of(8, 1);
    mt_backend seam = new_seam();

    seam.units = tell_units;
    units_told = none[_i];
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    ck_refused(mt_trainer_step(trainer, &batch, NULL), MT_EINVAL,
               "the backend's units of samples 0 to 8 are ");
}

/* ---- a backend that calls its own trainer ---------------------------------------------------------- */

static size_t refusals;

static void is_refused(mt_status status, const char *function) {
    ck_refused(status, MT_ESTATE, function);
    ck_contains(mt_last_error(), "called by a function that the trainer itself has called");
    refusals++;
}

static void call_back(void) {
    static const size_t chunks[] = {8};
    mt_batch batch = batch_of(8, 2);
    mt_run_report run = MT_RUN_REPORT_INIT;

    is_refused(mt_trainer_step(trainer, &batch, NULL), "mt_trainer_step");
    is_refused(mt_trainer_evaluate(trainer, &batch, NULL), "mt_trainer_evaluate");
    is_refused(mt_trainer_set_chunks(trainer, chunks, 1), "mt_trainer_set_chunks");
    is_refused(mt_trainer_set_rungs(trainer, 0, 1), "mt_trainer_set_rungs");
    is_refused(mt_trainer_end_epoch(trainer, NULL), "mt_trainer_end_epoch");
    is_refused(mt_trainer_finish(trainer, NULL), "mt_trainer_finish");
    mt_trainer_free(trainer);
    ck_contains(logged, "mt_trainer_free: called by its own backend");
    ck_ok(mt_trainer_summary(trainer, &run)); /* this is no more than reading */
}

static mt_status begin_calls_back(void *self, const mt_batch *batch) {
    call_back();
    return fake_seam(self).begin(self, batch);
}

static mt_status evaluate_calls_back(void *self, const mt_batch *batch, size_t first, size_t count,
                                     mt_chunk_result *out) {
    call_back();
    return fake_seam(self).evaluate(self, batch, first, count, out);
}

static mt_status clear_calls_back(void *self, mt_clear_result *out) {
    call_back();
    return fake_seam(self).empty_cache(self, out);
}

static mt_status hash_calls_back(void *self, char out[65]) {
    call_back();
    return fake_seam(self).state_sha256(self, out);
}

TEST_LOOP("failure", calls_its_own_trainer, 4) {
    mt_batch batch = batch_of(8, 1);
    mt_backend seam;

    policy.clear_every = MT_CLEAR_EPOCHS;
    own.policy = &policy;
    seam = new_seam();
    if (_i == 0) seam.begin = begin_calls_back;
    if (_i == 1) seam.evaluate = evaluate_calls_back;
    if (_i == 2) seam.empty_cache = clear_calls_back;
    if (_i == 3) seam.state_sha256 = hash_calls_back;
    refusals = 0;
    mt_set_log(keep_log, NULL);
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    ck_ok(mt_trainer_step(trainer, &batch, NULL));
    ck_ok(mt_trainer_evaluate(trainer, &batch, NULL));
    ck_ok(mt_trainer_end_epoch(trainer, NULL));
    ck_ok(mt_trainer_finish(trainer, NULL));
    ck_assert_uint_ge(refusals, 6);
    mt_set_log(NULL, NULL);
}

/* ---- ends ------------------------------------------------------------------------------------------ */

/* The state cannot be hashed: the run is not over, and can be ended later. */
TEST("failure", hash_fails) {
    mt_run_report run = MT_RUN_REPORT_INIT;

    trainer = trainer_with(&fake_defaults, NULL);
    step(trainer, 32, 1);
    fake_fail_kind(&fake, FAKE_SHA256, 1, MT_EIO);
    ck_refused(mt_trainer_finish(trainer, &run), MT_EIO, "injected: sha256");
    ck_assert_uint_eq(run.steps, 0);
    ck_ok(mt_trainer_finish(trainer, &run));
    ck_assert_uint_eq(run.steps, 1);
    ck_assert_uint_eq(strlen(run.state_sha256), 64);
}

/* After a failed rollback nothing is done any more, and each refusal says why. */
TEST_LOOP("failure", poisoned, 2) {
    static const size_t chunks[] = {8};
    mt_run_report run = MT_RUN_REPORT_INIT;
    mt_batch batch = batch_of(8, 1);
    size_t calls;

    trainer = trainer_with(&fake_defaults, NULL);
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 1, MT_EDEVMEM);
    fake_fail_kind(&fake, FAKE_ROLLBACK, 1, MT_EIO);
    ck_assert_int_ne(mt_trainer_step(trainer, &batch, NULL), MT_OK);
    calls = fake.logged;
    ck_refused(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE, "injected: rollback");
    ck_refused(mt_trainer_evaluate(trainer, &batch, NULL), MT_ESTATE, "injected: rollback");
    ck_assert_uint_eq(fake.logged, calls);
    if (_i == 1) {
        ck_status(mt_trainer_set_chunks(trainer, chunks, 1), MT_ESTATE);
        ck_status(mt_trainer_end_epoch(trainer, NULL), MT_ESTATE);
        ck_refused(mt_trainer_finish(trainer, &run), MT_ESTATE, "injected: rollback");
    }
}

TRAINER_SUITE("trainer_errors")
