/*
 * check_evaluate_deferred.c - evaluations whose chunks are not waited for: their figures come at the end, and are the same.
 */
#include "suite.h"
#include "trainer_fixture.h"

enum { BATCH = 64 };

#define CALLS (FAKE_BIT(FAKE_EVALUATE) | FAKE_BIT(FAKE_COLLECT))

/* A trainer with chunks of 16, whose times are known, and whose log is empty. */
static mt_trainer *by_sixteen(int defers) {
    fake_options options = fits(20);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer *trainer;

    options.seconds = fake_seconds;
    options.defers = defers;
    policy.micro_batch = 16;
    trainer = trainer_with(&options, &policy);
    evaluate(trainer, BATCH, 0);
    fake_log_clear(&fake);
    return trainer;
}

/* Of a backend that waits for each chunk. */
static mt_eval_report reference(void) {
    mt_trainer *trainer = by_sixteen(2);
    mt_eval_report report = evaluate(trainer, BATCH, 1);

    ck_assert_uint_eq(fake.deferrals, 0);
    done(trainer);
    return report;
}

static void check_same(const mt_eval_report *a, const mt_eval_report *b) {
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
} rows[] = {
    {"nothing", FAKE_EVALUATE, 0, ALL " " TOLD},
    {"the first chunk", FAKE_EVALUATE, 1, "evaluate!(0+16) " ALL " " TOLD},
    {"a later chunk", FAKE_EVALUATE, 3,
     "evaluate(0+16) evaluate(16+16) evaluate!(32+16) " ALL " " TOLD},
    {"the first figures", FAKE_COLLECT, 1, ALL " collect!(0+1) " ALL " " TOLD},
    {"later figures", FAKE_COLLECT, 3,
     ALL " collect(0+1) collect(1+1) collect!(2+1) " ALL " " TOLD},
};

TEST_LOOP("evaluate", told_at_the_end, LENGTH(rows)) {
    mt_eval_report waits = reference();
    mt_trainer *trainer = by_sixteen(1);
    if (rows[_i].at) fake_fail_kind(&fake, rows[_i].call, rows[_i].at, MT_EDEVMEM);
    mt_eval_report defers = evaluate(trainer, BATCH, 1);

    ck_assert_msg(strcmp(fake_log_text(&fake, CALLS), rows[_i].calls) == 0, "%s: %s", rows[_i].name,
                  fake_log_text(&fake, CALLS));
    check_same(&waits, &defers);
    ck_assert_uint_eq(defers.retries, rows[_i].at != 0);
    done(trainer);
}

/* Another failure ends the evaluation. What was not told is not taken for figures of the next one. */
TEST_LOOP("evaluate", another_failure, 2) {
    mt_eval_report waits = reference(), defers;
    mt_trainer *trainer = by_sixteen(1);
    mt_batch batch = batch_of(BATCH, 1);

    fake_fail_kind(&fake, _i ? FAKE_COLLECT : FAKE_EVALUATE, 3, MT_EIO);
    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), MT_EIO);
    defers = evaluate(trainer, BATCH, 1);
    check_same(&waits, &defers);
    done(trainer);
}

/* A size that has not run three times is waited for. */
TEST("evaluate", sizes_that_are_not_known) {
    mt_trainer *trainer = by_sixteen(1);

    evaluate(trainer, 40, 1);
    ck_assert_str_eq(fake_log_text(&fake, CALLS), "evaluate(0+14) evaluate(14+13) evaluate(27+13)");
    done(trainer);
}

SUITE("evaluate_deferred")
