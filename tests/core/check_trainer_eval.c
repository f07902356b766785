/*
 * check_trainer_eval.c - evaluation and epochs: each sample counts once.
 */
#include "suite.h"
#include "trainer_tests.h"

#include <math.h>

/* ---- evaluation ----------------------------------------------------------------------------- */

static fake_options eval_fits(size_t m) {
    return fake_fits(&fake_eval_program, m);
}

/* Fails each allocation of an evaluation in turn: each sample counts once all the same. */
TEST("eval", evaluation_counts_once) {
    mt_eval_report clean;

    options = eval_fits(9);
    trainer = trainer_with(&options, NULL);
    uint64_t n, before = fake_hash(&fake);
    clean = evaluate(trainer, 40, 4);
    end_trainer();
    for (n = 1; n < 1000; n++) {
        mt_eval_report report;
        size_t went_through = 0;

        trainer = trainer_with(&options, NULL);
        fake_fail_kind(&fake, FAKE_ALLOCATION, n, MT_EDEVMEM);
        report = evaluate(trainer, 40, 4);
        ck_assert_double_eq_tol(report.loss, clean.loss, 1e-12);
        ck_assert_double_eq_tol(report.metrics[0], clean.metrics[0], 1e-12);
        ck_assert_double_eq_tol(report.metrics[1], clean.metrics[1], 1e-12);
        ck_assert_uint_eq(report.retries, fake.fired);
        for (size_t i = 0; i < fake.logged; i++)
            went_through += fake.log[i].kind == FAKE_EVALUATE && fake.log[i].status == MT_OK;
        ck_assert_uint_eq(report.chunk_count, went_through);
        ck_assert_uint_eq(fake_hash(&fake), before);
        end_trainer();
        if (fake.fired == 0) break;
    }
    ck_assert_uint_gt(n, 20);
}

TEST("eval", evaluation_in_its_own_chunks) {
    mt_eval_report report;

    options = eval_fits(9);
    trainer = trainer_with(&options, NULL);
    evaluate(trainer, 27, 1);
    fake_log_clear(&fake);
    report = evaluate(trainer, 27, 2);
    check_log("evaluate(0+9) evaluate(9+9) evaluate(18+9)");
    ck_assert_uint_eq(report.chunk_count, 3);
    ck_assert_uint_eq(report.peak_bytes, options.budget_bytes);
    ck_assert_uint_eq(report.retries, 0);
}

/* It fits by no means: no sums are handed over, the epoch does not count it. */
TEST("eval", evaluation_does_not_fit) {
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;

    options = eval_fits(1);
    options.budget_bytes--;
    trainer = trainer_with(&options, NULL);
    evaluation_fails(6, 1, MT_EDEVMEM);
    ck_assert_uint_gt(mt_trainer_explain(trainer, NULL, 0), 0);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.eval_samples, 0);
    ck_assert(isnan(epoch.eval_loss));
}

TEST("eval", evaluation_fails_otherwise) {
    trainer = trainer_with(&fake_defaults, NULL);
    fake_fail_kind(&fake, FAKE_EVALUATE, 1, MT_EUSER);
    evaluation_fails(16, 1, MT_EUSER);
    ck_contains(mt_last_error(), "injected: evaluate");
    ck_assert_uint_eq(fake.logged > 0 ? count_kind(FAKE_EVALUATE) : 0, 1);
    evaluate(trainer, 16, 1);
}

/* ---- epochs --------------------------------------------------------------------------------- */

TEST("eval", epoch_means) {
    options = with_units(6);
    options.seconds = fake_seconds;
    trainer = trainer_with(&options, NULL);
    for (uint64_t number = 1; number <= 3; number++) {
        mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;
        double loss = 0, units = 0, metric = 0, eval_loss = 0, seconds = 0;
        size_t samples = 0, peak = 0;

        for (uint64_t i = 0; i < 4; i++) {
            size_t count = 10 + 9 * (size_t)i;
            mt_step_report report = step(trainer, count, 10 * number + i);

            loss += report.loss * units_in(0, count);
            units += units_in(0, count);
            metric += report.metrics[1] * (double)count;
            seconds += report.seconds;
            samples += count;
            peak = report.peak_bytes > peak ? report.peak_bytes : peak;
        }
        for (uint64_t i = 0; i < 2; i++) {
            mt_eval_report report = evaluate(trainer, 12, number + i);

            eval_loss += report.loss * units_in(0, 12);
            seconds += report.seconds;
        }
        ck_ok(mt_trainer_end_epoch(trainer, &epoch));
        ck_assert_uint_eq(epoch.epoch, number);
        ck_assert_uint_eq(epoch.samples, samples);
        ck_assert_uint_eq(epoch.eval_samples, 24);
        ck_assert_double_eq_tol(epoch.loss, loss / units, 1e-12);
        ck_assert_double_eq_tol(epoch.eval_loss, eval_loss / (2 * units_in(0, 12)), 1e-12);
        ck_assert_double_eq_tol(epoch.metrics[1], metric / (double)samples, 1e-12);
        ck_assert_double_eq_tol(epoch.seconds, seconds, 1e-9);
        ck_assert_uint_ge(epoch.peak_bytes, peak);
    }
}

TEST("eval", epoch_of_nothing) {
    mt_epoch_report epoch = MT_EPOCH_REPORT_INIT;

    trainer = trainer_with(&fake_defaults, NULL);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.epoch, 1);
    ck_assert_uint_eq(epoch.samples, 0);
    ck_assert(isnan(epoch.loss) && isnan(epoch.eval_loss));
    step(trainer, 8, 1);
    ck_ok(mt_trainer_end_epoch(trainer, &epoch));
    ck_assert_uint_eq(epoch.epoch, 2);
    ck_assert_uint_eq(epoch.samples, 8);
    ck_assert(isfinite(epoch.loss) && isnan(epoch.eval_loss));
}

TRAINER_SUITE("trainer_eval")
