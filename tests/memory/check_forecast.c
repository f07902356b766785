/*
 * check_forecast.c - what a forecast asks of a policy, on a fake backend: the step that is foretold is the one that a
 * trainer takes, and a bound is called one.
 */
#include "counting_allocator.h"
#include "suite.h"
#include "trainer_fixture.h"

#include <memtrain/forecast.h>

enum { BATCH = 32 };

static mt_forecast *f;
static mt_plan plan;
static mt_backend backend;
static mt_batch batch;
static fake_options options;
static mt_policy_options policy;

/* Chunks of at most so many samples fit; of fewer than two none can be trained. */
static void fitting(size_t m) {
    options = fits(m);
    options.min_micro_batch = 2;
    options.normalises_over_batch = 1;
    policy = (mt_policy_options)MT_POLICY_OPTIONS_INIT;
    policy.deterministic = 1;
}

static void start(void) {
    fake_init(&fake, &options);
    backend = fake_seam(&fake);
    batch = batch_of(BATCH, 1);
}

static mt_status foretell(void) {
    ck_ok(counting_install());
    start();
    ck_ok(mt_forecast_new(&backend, &batch, &policy, &f));
    return mt_forecast_step(f, &plan);
}

static mt_forecast_report met(void) {
    mt_forecast_report report = MT_FORECAST_REPORT_INIT;
    ck_ok(mt_forecast_summary(f, &report));
    return report;
}

/* Nothing was left behind. */
static void end(void) {
    uint64_t before = fake_hash(&fake);
    mt_forecast_free(f);
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
    ck_assert_msg(!fake.complaint, "%s", fake.complaint);
    ck_assert_uint_eq(counting_live(), 0);
}

/* What was foretold is the last of so many steps. */
static void check_trainer_takes_it(uint64_t steps) {
    mt_trainer *trainer = trainer_with(&options, &policy);
    mt_step_report report;
    for (uint64_t id = 1; id <= steps; id++) report = step(trainer, BATCH, id);
    ck_assert_uint_eq(report.chunks[0], mt_plan_chunk(&plan, 0));
    ck_assert_uint_eq(report.predicted_peak_bytes, plan.predicted_peak_bytes);
    done(trainer);
}

/* Three do not fit where two do, which a bound in proportion to two cannot tell. */
TEST_LOOP("steps", the_step_is_the_one_that_a_trainer_takes, 10) {
    fitting((size_t)_i + 2);
    ck_ok(foretell());
    ck_assert_int_eq(mt_forecast_is_bound(f, &plan), 0);
    ck_assert_uint_le(plan.predicted_peak_bytes, options.budget_bytes);
    end();
    check_trainer_takes_it(2);
}

/* Of kernels that have not run nothing is promised: a chunk of them runs before it is told. */
TEST_LOOP("steps", kernels_that_have_not_run_are_run, 2) {
    fitting(12);
    options.wide = (fake_program){fake_wide_allocations, FAKE_WIDE_COUNT};
    options.wide_above = 4;
    options.tells_wide = _i;
    options.budget_bytes = options.resident_bytes + fake_program_peak(&options.wide, 6);
    ck_ok(foretell());
    ck_assert_uint_gt(mt_plan_chunk(&plan, 0), options.wide_above);
    end();
    check_trainer_takes_it(3);
}

/* ---- sizes ------------------------------------------------------------------------------------- */

static mt_chunk_need need_of(size_t chunk) {
    mt_chunk_need need = MT_CHUNK_NEED_INIT;
    ck_ok(mt_forecast_need(f, BATCH, chunk, &need));
    return need;
}

/* What three would need is told by two samples and by nothing else. */
TEST("sizes", one_size_alone_tells_a_bound) {
    const mt_plan other = {.samples = BATCH, .group = {{4, 8}}, .groups = 1};
    size_t largest;
    fitting(2);
    ck_ok(foretell());
    ck_ok(mt_forecast_record(f));
    ck_ok(mt_forecast_largest(f, BATCH, &largest));
    ck_assert_uint_eq(largest, 2);
    ck_assert_uint_eq(met().refused, 3);
    ck_assert(!need_of(2).is_bound && need_of(2).fits);
    ck_assert(need_of(3).is_bound && !need_of(3).fits && !need_of(3).may_fit);
    ck_assert_uint_gt(need_of(3).peak_bytes,
                      options.resident_bytes + fake_program_peak(&fake_train_program, 3));
    ck_assert_int_eq(mt_forecast_is_bound(f, &other), 1);
    end();
}

TEST("sizes", two_sizes_tell_of_all) {
    fitting(3);
    ck_ok(foretell());
    ck_ok(mt_forecast_record(f));
    for (size_t m = 2; m <= BATCH; m++) {
        mt_chunk_need need = need_of(m);
        size_t bytes = options.resident_bytes + fake_program_peak(&fake_train_program, m);
        ck_assert_int_eq(need.is_bound, 0);
        ck_assert_int_eq(need.fits, m <= 3);
        ck_assert_uint_ge(need.peak_bytes, bytes);
        if (m <= 3) ck_assert_uint_eq(need.peak_bytes, bytes);
    }
    end();
}

TEST("sizes", smaller_chunks_than_are_allowed_are_recorded_too) {
    size_t largest;
    fitting(6);
    policy.min_micro_batch = 12;
    ck_status(foretell(), MT_EDEVMEM);
    ck_ok(mt_forecast_record(f));
    ck_ok(mt_forecast_largest(f, BATCH, &largest));
    ck_assert_uint_eq(largest, 6);
    ck_assert(!need_of(6).is_bound && need_of(6).fits && !need_of(7).fits);
    end();
}

/* The batch of 32 in chunks of at most so many has a number of them, and that a smallest one. */
TEST_LOOP("sizes", a_smaller_least_chunk_is_found, 9) {
    const size_t m = (size_t)_i + 2;
    fitting(m);
    size_t least, chunks = (BATCH + m - 1) / m;
    start();
    policy.min_micro_batch = 12;
    ck_ok(mt_forecast_least(&backend, &batch, &policy, &least));
    ck_assert_uint_eq(least, BATCH / chunks);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
    policy.min_micro_batch = least;
    mt_trainer *trainer = trainer_with(&options, &policy);
    step(trainer, BATCH, 1);
    done(trainer);
}

TEST("sizes", no_smaller_least_chunk_is_found) {
    fitting(2);
    size_t least = 1;
    options.budget_bytes -= 1;
    start();
    for (policy.min_micro_batch = 1; policy.min_micro_batch < 5; policy.min_micro_batch++) {
        ck_ok(mt_forecast_least(&backend, &batch, &policy, &least));
        ck_assert_uint_eq(least, 0);
    }
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
}

TEST("sizes", where_nothing_goes_through_nothing_is_recorded) {
    fitting(2);
    options.budget_bytes = options.resident_bytes + 1;
    ck_status(foretell(), MT_EDEVMEM);
    ck_status(mt_forecast_record(f), MT_EDEVMEM);
    ck_assert_uint_eq(met().refused, 2);
    end();
}

/* ---- rungs ------------------------------------------------------------------------------------- */

/* Two samples need more than there is, and 0.6 of it fits: the rung is on until the end. */
TEST("rungs", rungs_are_told_and_go_off_again) {
    mt_rungs_tried tried = MT_RUNGS_TRIED_INIT;
    fitting(2);
    options.rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    options.budget_bytes -= 1;
    ck_ok(foretell());
    ck_assert_uint_eq(met().rungs, options.rungs);
    ck_assert_uint_eq(met().failed, 2);
    ck_assert_uint_gt(strlen(met().error), 0);
    ck_assert_uint_eq(met().ladder_count, 1);
    ck_ok(mt_forecast_ladder(f, 0, &tried));
    ck_assert_uint_eq(tried.rungs, options.rungs);
    ck_assert_uint_eq(tried.samples, BATCH);
    ck_assert_uint_eq(tried.chunk, 2);
    ck_assert_int_eq(tried.fits, 1);
    ck_assert_uint_eq(fake.rungs, options.rungs);
    end();
    ck_assert_uint_eq(fake.rungs, 0);
}

/* ---- what is refused --------------------------------------------------------------------------- */

static const struct {
    size_t *zeroed; /* NULL: none */
    mt_rung rung;   /* under which alone the backend records; MT_RUNGS: it does not at all */
    mt_status status;
    const char *words;
} unusable[] = {
    {&backend.size, 0, MT_EINVAL, "backend->size is not set"},
    {&batch.count, 0, MT_EINVAL, "batch->count is 0"},
    {&batch.size, 0, MT_EINVAL, "batch->size is not set"},
    {&policy.size, 0, MT_EINVAL, "policy->size is not set"},
    {NULL, MT_RUNGS, MT_ENOTSUP, "does not record"},
    {NULL, MT_RUNG_OFFLOAD, MT_ENOTSUP, "without a rung"},
};

TEST_LOOP("refused", unusable_arguments_are_refused, LENGTH(unusable)) {
    size_t least;
    fitting(4);
    policy.min_micro_batch = 12;
    start();
    if (unusable[_i].zeroed)
        *unusable[_i].zeroed = 0;
    else if (unusable[_i].rung == MT_RUNGS)
        backend.record = NULL;
    else
        fake.options.record_rungs = MT_RUNG_BIT(unusable[_i].rung);
    ck_refused(mt_forecast_new(&backend, &batch, &policy, &f), unusable[_i].status,
               unusable[_i].words);
    ck_assert_ptr_null(f);
    ck_refused(mt_forecast_least(&backend, &batch, &policy, &least), unusable[_i].status,
               unusable[_i].words);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
}

TEST("refused", unusable_handles_and_numbers_are_refused) {
    mt_forecast_report report = MT_FORECAST_REPORT_INIT;
    mt_rungs_tried tried = MT_RUNGS_TRIED_INIT;
    mt_chunk_need need = MT_CHUNK_NEED_INIT;
    size_t largest;
    fitting(4);
    ck_ok(foretell());
    ck_refused(mt_forecast_need(f, BATCH, 0, &need), MT_EINVAL, "chunk is 0; accepted: 1 to");
    ck_refused(mt_forecast_need(f, BATCH, 33, &need), MT_EINVAL, "chunk is 33");
    ck_refused(mt_forecast_largest(f, 0, &largest), MT_EINVAL, "samples is 0");
    ck_refused(mt_forecast_ladder(f, 0, &tried), MT_EINVAL, "index is 0; accepted: below");
    need.size = report.size = 0;
    ck_refused(mt_forecast_need(f, BATCH, 4, &need), MT_EINVAL, "MT_CHUNK_NEED_INIT");
    ck_refused(mt_forecast_summary(f, &report), MT_EINVAL, "MT_FORECAST_REPORT_INIT");
    ck_refused(mt_forecast_step(f, NULL), MT_EINVAL, "plan is NULL");
    end();
    ck_refused(mt_forecast_step(f, &plan), MT_EINVAL, "not a live handle");
    ck_refused(mt_forecast_record(NULL), MT_EINVAL, "forecast is NULL");
    ck_assert_int_eq(mt_forecast_is_bound(f, &plan), 0);
    mt_forecast_free(f);
    mt_forecast_free(NULL);
}

/* ---- faults ------------------------------------------------------------------------------------ */

/* Everything that --explain asks. */
static mt_status ask(void) {
    mt_chunk_need need = MT_CHUNK_NEED_INIT;
    size_t largest;
    mt_status status = mt_forecast_new(&backend, &batch, &policy, &f);
    if (status == MT_OK) status = mt_forecast_step(f, &plan);
    if (status == MT_OK) status = mt_forecast_record(f);
    if (status == MT_OK) status = mt_forecast_largest(f, BATCH, &largest);
    if (status == MT_OK) status = mt_forecast_need(f, BATCH, 4, &need);
    mt_forecast_free(f);
    return status;
}

/* Each request for host memory fails in turn, and each call of the backend. */
TEST_LOOP("faults", every_request_and_every_call_fails, 2) {
    int of_the_backend = _i, fired = 1;
    size_t lost = 0;
    ck_ok(counting_install());
    fitting(6);
    if (of_the_backend) options.rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    for (size_t n = 1; fired; n++) {
        start();
        uint64_t before = fake_hash(&fake);
        if (of_the_backend)
            fake_fail_at(&fake, n, 0);
        else
            counting_fail_at(n, 0);
        mt_status status = ask();
        fired = fake.fired > 0 || counting_fired() > 0;
        counting_fail_at(0, 0);
        if (status != MT_OK) ck_status(status, of_the_backend ? MT_EDEVMEM : MT_ENOMEM);
        ck_assert_msg(status == MT_OK || fired, "%s %zu: %s", of_the_backend ? "call" : "request",
                      n, mt_last_error());
        lost += status != MT_OK;
        ck_assert_uint_eq(fake_hash(&fake), before);
        ck_assert_uint_eq(fake_live_handles(&fake), 0);
        ck_assert_msg(!fake.complaint, "%s", fake.complaint);
        ck_assert_uint_eq(counting_live(), 0);
    }
    ck_assert_uint_gt(lost, 0);
}

SUITE("forecast")
