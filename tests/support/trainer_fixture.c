/*
 * trainer_fixture.c - see trainer_fixture.h.
 */
#include "trainer_fixture.h"
#include "suite.h"

fake_backend fake;

mt_trainer *trainer_of(const fake_options *options, const mt_trainer_options *own) {
    mt_trainer *trainer;
    mt_backend seam;

    fake_init(&fake, options);
    seam = fake_seam(&fake);
    ck_ok(mt_trainer_new(&seam, own, &trainer));
    fake_log_clear(&fake);
    return trainer;
}

mt_trainer *trainer_with(const fake_options *options, const mt_policy_options *policy) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;

    own.policy = policy;
    return trainer_of(options, &own);
}

mt_batch batch_of(size_t count, uint64_t id) {
    mt_batch batch = {sizeof(batch), NULL, count, id};

    return batch;
}

fake_options fits(size_t m) {
    return fake_fits(&fake_train_program, m);
}

fake_options with_units(size_t m) {
    fake_options options = fits(m);

    options.units = fake_unit_table;
    options.unit_count = FAKE_UNITS_COUNT;
    options.noise = 0;
    return options;
}

double units_in(size_t first, size_t count) {
    double sum = 0;

    for (size_t i = first; i < first + count; i++) sum += fake_unit_table[i % FAKE_UNITS_COUNT];
    return sum;
}

mt_step_report step(mt_trainer *trainer, size_t count, uint64_t id) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_batch batch = batch_of(count, id);

    ck_ok(mt_trainer_step(trainer, &batch, &report));
    ck_assert_uint_eq(report.samples, count);
    return report;
}

mt_eval_report evaluate(mt_trainer *trainer, size_t count, uint64_t id) {
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_batch batch = batch_of(count, id);

    ck_ok(mt_trainer_evaluate(trainer, &batch, &report));
    ck_assert_uint_eq(report.samples, count);
    ck_assert_uint_eq(report.size, sizeof(report));
    return report;
}

void step_fails(mt_trainer *trainer, size_t count, uint64_t id, mt_status expected) {
    mt_batch batch = batch_of(count, id);
    uint64_t before = fake_hash(&fake);

    ck_status(mt_trainer_step(trainer, &batch, NULL), expected);
    ck_assert_uint_eq(fake_hash(&fake), before);
}

void done(mt_trainer *trainer) {
    mt_trainer_free(trainer);
    ck_assert_msg(fake.complaint == NULL, "%s", fake.complaint);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
}

void check_log(const char *expected) {
    ck_assert_str_eq(fake_log_text(&fake, FAKE_STEP_KINDS), expected);
    fake_log_clear(&fake);
}

void check_only_chunks_of(size_t count) {
    for (size_t i = 0; i < fake.logged; i++)
        ck_assert(fake.log[i].kind != FAKE_ACCUMULATE || fake.log[i].count == count);
}

size_t count_kind(fake_kind kind) {
    size_t count = 0;

    for (size_t i = 0; i < fake.logged; i++) count += fake.log[i].kind == kind;
    return count;
}
