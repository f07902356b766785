/*
 * trainer_rungs.c - see trainer_rungs.h.
 */
#include "trainer_rungs.h"
#include "suite.h"

size_t budget_with(unsigned rungs, size_t m) {
    fake_allocation storage[FAKE_ALLOCATIONS_MAX];
    fake_program program = fake_program_with(&fake_train_program, rungs, storage);

    return fake_defaults.resident_bytes + fake_program_peak(&program, m);
}

fake_options with_rungs(unsigned rungs, size_t budget) {
    fake_options options = fake_defaults;

    options.rungs = rungs & ~BIT(SMALLER_BATCH);
    options.budget_bytes = budget;
    options.cpu_bytes = budget_with(0, 40);
    options.may_shorten = 1;
    options.min_micro_batch = FIRST_CHUNK;
    return options;
}

fake_options whole(size_t fits) {
    fake_options options = with_rungs(0, budget_with(0, fits));

    options.min_micro_batch = 0;
    options.needs_whole_batch = 1;
    options.units = fake_unit_table;
    options.unit_count = FAKE_UNITS_COUNT;
    return options;
}

mt_policy_options allowing(unsigned rungs) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;

    policy.allow_rungs = rungs;
    return policy;
}

mt_step_report some(mt_trainer *trainer, size_t count, uint64_t id) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    mt_batch batch = batch_of(count, id);

    ck_ok(mt_trainer_step(trainer, &batch, &report));
    return report;
}
