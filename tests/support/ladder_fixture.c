/*
 * ladder_fixture.c - see ladder_fixture.h.
 */
#include "ladder_fixture.h"
#include "suite.h"

const char *letters(unsigned rungs) {
    static const char letter[MT_RUNGS + 1] = "coasum";
    static char text[MT_RUNGS + 1];
    size_t used = 0;

    ck_assert_uint_eq(strlen(letter), MT_RUNGS);
    for (unsigned r = 0; r < MT_RUNGS; r++)
        if (rungs & MT_RUNG_BIT(r)) text[used++] = letter[r];
    text[used] = '\0';
    return used > 0 ? text : "-";
}

device learnt(unsigned rungs, size_t budget) {
    device dev = device_new(budget, (mt_policy_options){.allow_rungs = rungs},
                            (mt_backend_info){.rungs = rungs, .min_micro_batch = FIRST_CHUNK});

    dev.cpu_budget = need(40);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(dev.rungs, 0);
    return dev;
}

size_t for_one_rung(void) {
    size_t budget = 5000 + rung_peak(BIT(CHECKPOINTING), FEW);

    ck_assert_uint_lt(budget, need(1));
    return budget;
}

size_t for_two_rungs(void) {
    size_t budget = 5000 + rung_peak(BIT(CHECKPOINTING) | BIT(OFFLOAD), FEW);

    ck_assert_uint_lt(budget, 5000 + rung_peak(BIT(CHECKPOINTING), 1));
    return budget;
}

device whole_batches(size_t fits, mt_rate_rule rule) {
    mt_policy_options options = {
        .allow_rungs = BIT(SMALLER_BATCH), .rate_rule = rule, .max_retries = 1000};

    return device_new(need(fits), options, (mt_backend_info){.needs_whole_batch = 1});
}
