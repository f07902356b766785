/*
 * check_ex_forecast.c - what --explain asks of a policy, on a fake backend: the step that is foretold is the
 * one that a trainer takes, and a bound is called one.
 */
#include "forecast.h"
#include "suite.h"
#include "trainer_fixture.h"

enum { BATCH = 32 };

static ex_forecast f;
static mt_plan plan;

/* Chunks of at most so many samples fit; of fewer than two none can be trained. */
static fake_options fitting(size_t m) {
    fake_options options = fits(m);
    options.min_micro_batch = 2;
    options.normalises_over_batch = 1;
    return options;
}

static mt_policy_options deterministic(void) {
    mt_policy_options options = MT_POLICY_OPTIONS_INIT;
    options.deterministic = 1;
    return options;
}

static mt_status foretell(const fake_options *options, const mt_policy_options *policy) {
    static mt_backend backend;
    static mt_batch batch;
    fake_init(&fake, options);
    backend = fake_seam(&fake);
    batch = batch_of(BATCH, 1);
    return ex_forecast_step(&backend, &batch, policy, &f, &plan);
}

/* Nothing was left behind. */
static void end(void) {
    uint64_t before = fake_hash(&fake);
    ck_ok(ex_forecast_free(&f));
    ck_assert_uint_eq(fake_hash(&fake), before);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
    ck_assert_msg(!fake.complaint, "%s", fake.complaint);
}

/* Three do not fit where two do, which a bound in proportion to two cannot tell. */
START_TEST(the_step_is_the_one_that_a_trainer_takes) {
    const fake_options options = fitting((size_t)_i);
    const mt_policy_options policy = deterministic();
    ck_ok(foretell(&options, &policy));
    size_t chunk = mt_plan_chunk(&plan, 0), bytes = plan.predicted_peak_bytes;
    ck_assert_int_eq(ex_forecast_is_bound(&f, &plan), 0);
    ck_assert_uint_le(bytes, options.budget_bytes);
    end();
    mt_trainer *trainer = trainer_with(&options, &policy);
    step(trainer, BATCH, 1);
    mt_step_report report = step(trainer, BATCH, 2);
    ck_assert_uint_eq(report.chunks[0], chunk);
    ck_assert_uint_eq(report.predicted_peak_bytes, bytes);
    done(trainer);
}
END_TEST

/* ---- sizes ------------------------------------------------------------------------------------- */

static ex_need need_of(size_t chunk) {
    ex_need need;
    ck_ok(ex_forecast_need(&f, BATCH, chunk, &need));
    return need;
}

/* What three would need is told by two samples and by nothing else. */
START_TEST(one_size_alone_tells_a_bound) {
    const fake_options options = fitting(2);
    const mt_policy_options policy = deterministic();
    const mt_plan other = {.samples = BATCH, .group = {{4, 8}}, .groups = 1};
    size_t largest;
    ck_ok(foretell(&options, &policy));
    ck_ok(ex_forecast_record(&f));
    ck_ok(ex_forecast_largest(&f, BATCH, &largest));
    ck_assert_uint_eq(largest, 2);
    ck_assert_uint_eq(f.refused, 3);
    ck_assert(!need_of(2).is_bound && need_of(2).fits);
    ck_assert(need_of(3).is_bound && !need_of(3).fits && !need_of(3).may_fit);
    ck_assert_uint_gt(need_of(3).peak_bytes,
                      options.resident_bytes + fake_program_peak(&fake_train_program, 3));
    ck_assert_int_eq(ex_forecast_is_bound(&f, &other), 1);
    end();
}
END_TEST

START_TEST(two_sizes_tell_of_all) {
    const fake_options options = fitting(3);
    const mt_policy_options policy = deterministic();
    ck_ok(foretell(&options, &policy));
    ck_ok(ex_forecast_record(&f));
    for (size_t m = 2; m <= BATCH; m++) {
        ex_need need = need_of(m);
        size_t bytes = options.resident_bytes + fake_program_peak(&fake_train_program, m);
        ck_assert_int_eq(need.is_bound, 0);
        ck_assert_int_eq(need.fits, m <= 3);
        ck_assert_uint_ge(need.peak_bytes, bytes);
        if (m <= 3) ck_assert_uint_eq(need.peak_bytes, bytes);
    }
    end();
}
END_TEST

START_TEST(smaller_chunks_than_are_allowed_are_recorded_too) {
    const fake_options options = fitting(6);
    mt_policy_options policy = deterministic();
    size_t largest;
    policy.min_micro_batch = 12;
    ck_status(foretell(&options, &policy), MT_EDEVMEM);
    ck_ok(ex_forecast_record(&f));
    ck_ok(ex_forecast_largest(&f, BATCH, &largest));
    ck_assert_uint_eq(largest, 6);
    ck_assert(!need_of(6).is_bound && need_of(6).fits && !need_of(7).fits);
    end();
}
END_TEST

/* The batch of 32 in chunks of at most so many has a number of them, and that a smallest one. */
START_TEST(a_smaller_least_chunk_is_found) {
    const fake_options options = fitting((size_t)_i);
    mt_policy_options policy = deterministic();
    mt_backend backend;
    mt_batch batch = batch_of(BATCH, 1);
    size_t least, chunks = (BATCH + (size_t)_i - 1) / (size_t)_i;
    fake_init(&fake, &options);
    backend = fake_seam(&fake);
    policy.min_micro_batch = 12;
    ck_ok(ex_forecast_least(&backend, &batch, &policy, &least));
    ck_assert_uint_eq(least, BATCH / chunks);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
    policy.min_micro_batch = least;
    mt_trainer *trainer = trainer_with(&options, &policy);
    step(trainer, BATCH, 1);
    done(trainer);
}
END_TEST

START_TEST(no_smaller_least_chunk_is_found) {
    fake_options options = fitting(2);
    mt_policy_options policy = deterministic();
    mt_backend backend;
    mt_batch batch = batch_of(BATCH, 1);
    size_t least = 1;
    options.budget_bytes -= 1;
    fake_init(&fake, &options);
    backend = fake_seam(&fake);
    for (policy.min_micro_batch = 1; policy.min_micro_batch < 5; policy.min_micro_batch++) {
        ck_ok(ex_forecast_least(&backend, &batch, &policy, &least));
        ck_assert_uint_eq(least, 0);
    }
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
}
END_TEST

START_TEST(where_nothing_goes_through_nothing_is_recorded) {
    fake_options options = fitting(2);
    const mt_policy_options policy = deterministic();
    options.budget_bytes = options.resident_bytes + 1;
    ck_status(foretell(&options, &policy), MT_EDEVMEM);
    ck_status(ex_forecast_record(&f), MT_EDEVMEM);
    ck_assert_uint_eq(f.refused, 2);
    end();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("ex_forecast");
    TCase *steps = suite_case(suite, "steps"), *sizes = suite_case(suite, "sizes");
    tcase_add_loop_test(steps, the_step_is_the_one_that_a_trainer_takes, 2, 12);
    tcase_add_test(sizes, one_size_alone_tells_a_bound);
    tcase_add_test(sizes, two_sizes_tell_of_all);
    tcase_add_test(sizes, smaller_chunks_than_are_allowed_are_recorded_too);
    tcase_add_loop_test(sizes, a_smaller_least_chunk_is_found, 2, 11);
    tcase_add_test(sizes, no_smaller_least_chunk_is_found);
    tcase_add_test(sizes, where_nothing_goes_through_nothing_is_recorded);
    return suite_run(suite);
}
