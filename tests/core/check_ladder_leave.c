/*
 * check_ladder_leave.c - the rungs: how long they stay, when they are left, and when a batch that was made
 * smaller has its samples back. Which are taken, and in which order: check_ladder.c.
 */
#include "ladder_fixture.h"
#include "suite.h"

enum { DEVICE_PATIENCE = PATIENCE * PATIENCE };

/* ---- down ----------------------------------------------------------------------------------- */

/* Batches until other rungs are on; 0: within so many none were. */
static int batches_until_other(device *dev, int most) {
    unsigned before = dev->rungs;

    for (int batch = 1; batch <= most; batch++) {
        ck_ok(device_batch(dev, MT_TRAIN, 32));
        ck_assert_uint_eq(dev->ooms, 0);
        if (dev->rungs != before) return batch;
    }
    return 0;
}

static double each_sample(size_t samples) {
    return 0.01 * (double)samples;
}

/* Budgets with a rung on and after it, and what is left of "co" then, however fast it is. */
static const struct {
    const char *name;
    int fits_without, fits_with_one; /* the room that there is later */
    double slower;
    const char *expected;
} leaves[] = {
    {"room for all", 1, 1, 0, "-"},  {"room for all, and faster", 1, 1, 1.3, "-"},
    {"room with one", 0, 1, 0, "c"}, {"room with one, and faster", 0, 1, 1.3, "c"},
    {"no room", 0, 0, 0, "co"},      {"room, and slower without", 1, 1, 0.5, "-"},
};

TEST_LOOP("down", leave, LENGTH(leaves)) {
    device dev = learnt(BIT(CHECKPOINTING) | BIT(OFFLOAD), need(40));
    int left;

    dev.seconds = leaves[_i].slower > 0 ? each_sample : NULL;
    dev.slower[MT_RUNG_CHECKPOINTING] = dev.slower[MT_RUNG_OFFLOAD] = leaves[_i].slower;
    for (int batch = 0; batch < 8; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 32));
    dev.budget = for_one_rung();
    for (int batch = 0; batch < 8; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 32));
    dev.budget = for_two_rungs();
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_str_eq(letters(dev.rungs), "co");
    dev.budget = leaves[_i].fits_without    ? need(40)
                 : leaves[_i].fits_with_one ? for_one_rung()
                                            : for_two_rungs();
    left = batches_until_other(&dev, 100);
    ck_assert_msg(strcmp(letters(dev.rungs), leaves[_i].expected) == 0, "%s: %s", leaves[_i].name,
                  letters(dev.rungs));
    ck_assert_int_eq(left, dev.rungs == (BIT(CHECKPOINTING) | BIT(OFFLOAD)) ? 0 : PATIENCE + 1);
    mt_policy_free(dev.policy);
}

/* Room comes and goes: each time the rung is kept for twice as long. */
TEST("down", patience_doubles) {
    device dev = learnt(BIT(CHECKPOINTING), need(40));
    int wait = PATIENCE;

    for (int round = 0; round < 8; round++) {
        dev.budget = for_one_rung();
        ck_assert_int_eq(batches_until_other(&dev, 1), 1);
        dev.budget = need(40);
        ck_assert_int_eq(batches_until_other(&dev, 5000), wait + 1);
        wait *= 2;
    }
    mt_policy_free(dev.policy);
}

/* A rung that is taken long after it was left was not left too soon. */
TEST("down", patience_starts_anew) {
    device dev = learnt(BIT(CHECKPOINTING), need(40));

    for (int round = 0; round < 4; round++) {
        dev.budget = for_one_rung();
        ck_assert_int_eq(batches_until_other(&dev, 1), 1);
        dev.budget = need(40);
        ck_assert_int_eq(batches_until_other(&dev, 100), PATIENCE + 1);
        ck_assert_int_eq(batches_until_other(&dev, 2 * PATIENCE), 0);
    }
    mt_policy_free(dev.policy);
}

/* Within twice its patience it was. */
TEST_LOOP("down", left_too_soon, 2) {
    device dev = learnt(BIT(CHECKPOINTING), need(40));

    dev.budget = for_one_rung();
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    dev.budget = need(40);
    ck_assert_int_eq(batches_until_other(&dev, 100), PATIENCE + 1);
    ck_assert_int_eq(batches_until_other(&dev, 2 * PATIENCE - 2 + _i), 0);
    dev.budget = for_one_rung();
    ck_assert_int_eq(batches_until_other(&dev, 1), 1);
    dev.budget = need(40);
    ck_assert_int_eq(batches_until_other(&dev, 100), (_i == 0 ? 2 : 1) * PATIENCE + 1);
    mt_policy_free(dev.policy);
}

/* A second rung is none that was left, and has the patience of the first. */
TEST("down", patience_of_a_second_rung) {
    device dev = learnt(BIT(CHECKPOINTING) | BIT(OFFLOAD), need(40));

    for (int round = 0; round < 2; round++) {
        dev.budget = for_one_rung();
        ck_assert_int_eq(batches_until_other(&dev, 1), 1);
        if (round == 1) dev.budget = for_two_rungs();
        if (round == 1) ck_assert_int_eq(batches_until_other(&dev, 1), 1);
        dev.budget = need(40);
        ck_assert_int_eq(batches_until_other(&dev, 100), (round + 1) * PATIENCE + 1);
        ck_assert_str_eq(letters(dev.rungs), "-");
    }
    mt_policy_free(dev.policy);
}

/* Where there is known to be no room nothing is tried in vain, even after long: when it comes the rung is left. */
TEST("down", no_try_where_it_is_known) {
    device dev = learnt(BIT(CHECKPOINTING), need(40));

    dev.budget = for_one_rung();
    for (int batch = 0; batch < 8 * PATIENCE + 4; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 32));
    dev.budget = need(40);
    ck_assert_int_eq(batches_until_other(&dev, 1), 1);
    mt_policy_free(dev.policy);
}

/* What changes the numbers is left where there is room, however fast it is. */
TEST("down", numbers_before_speed) {
    device dev = learnt(BIT(AMP), need(40));

    dev.seconds = each_sample;
    dev.slower[MT_RUNG_AMP] = 0.5;
    for (int batch = 0; batch < 8; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 32));
    dev.budget = dev.resident + rung_peak(BIT(AMP), 2);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_str_eq(letters(dev.rungs), "a");
    dev.budget = need(40);
    ck_assert_int_eq(batches_until_other(&dev, 100), PATIENCE + 1);
    mt_policy_free(dev.policy);
}

/* What is not known without a rung is not left for. */
TEST("down", stays_where_nothing_is_known) {
    device dev = device_new(for_one_rung(), (mt_policy_options){0},
                            (mt_backend_info){.rungs = BIT(CHECKPOINTING)});

    dev.records = 0;
    ck_ok(device_batch(&dev, MT_TRAIN, 1));
    ck_assert_str_eq(letters(dev.rungs), "c");
    for (int batch = 0; batch < 40; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 1));
    ck_assert_str_eq(letters(dev.rungs), "c");
    dev.budget = need(40);
    for (int batch = 0; batch < 40; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 1));
    ck_assert_str_eq(letters(dev.rungs), "-");
    mt_policy_free(dev.policy);
}

/* What is remembered to have failed without a rung is not tried, however long that is. */
TEST("down", stays_where_it_has_failed) {
    device dev = device_new(for_one_rung(), (mt_policy_options){0},
                            (mt_backend_info){.rungs = BIT(CHECKPOINTING)});
    int tries = 0;

    dev.records = 0;
    for (int batch = 0; batch < 5000; batch++) {
        ck_ok(device_batch(&dev, MT_TRAIN, 1));
        tries += dev.ooms > 0;
    }
    ck_assert_int_eq(tries, 11); /* ever more seldom */
    mt_policy_free(dev.policy);
}

/* Evaluation neither counts for the patience nor leaves a rung. */
TEST("down", evaluation_leaves_nothing) {
    device dev = learnt(BIT(CHECKPOINTING), need(40));

    dev.budget = for_one_rung();
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    dev.budget = need(40);
    for (int batch = 0; batch < 40; batch++) ck_ok(device_batch(&dev, MT_EVALUATE, 32));
    ck_assert_str_eq(letters(dev.rungs), "c");
    ck_assert_int_eq(batches_until_other(&dev, 40), PATIENCE + 1);
    mt_policy_free(dev.policy);
}

/* ---- samples that come back ------------------------------------------------------------------ */

/* Small batches that fit are no reason to give a large one all its samples back. */
TEST("back", small_batches_in_between) {
    device dev = whole_batches(64, MT_RATE_KEEP);

    for (int batch = 0; batch < 20 * PATIENCE; batch++) {
        size_t samples = batch % 10 == 0 ? 100 : 20;

        ck_ok(device_batch(&dev, MT_TRAIN, samples));
        ck_assert_uint_eq(dev.plan.samples, samples == 100 ? 64 : 20);
        ck_assert_str_eq(letters(dev.rungs), "s");
        ck_assert(dev.ooms == 0 || batch == 0);
    }
    mt_policy_free(dev.policy);
}

/* A step in which not even a sample fits changes nothing of what was made smaller before. */
TEST_LOOP("back", smaller_in_vain, 2) {
    device dev = whole_batches(64, MT_RATE_KEEP);

    ck_ok(device_batch(&dev, MT_TRAIN, 100));
    dev.budget = NOTHING_FITS;
    ck_status(device_batch(&dev, MT_TRAIN, _i == 0 ? 100 : 40), MT_EDEVMEM);
    dev.budget = need(200);
    ck_ok(device_plan(&dev, MT_TRAIN, 100));
    ck_assert_uint_eq(dev.plan.samples, 64);
    mt_policy_free(dev.policy);
}

/* More room: one cut less after each wait, as much as fits, and at last the whole batch. */
TEST("back", grows_back) {
    device dev = whole_batches(40, MT_RATE_LINEAR);
    static const size_t rooms[] = {49, 52, 64, 100};
    static const size_t grown[] = {40, 50, 63, 100};

    ck_ok(device_batch(&dev, MT_TRAIN, 100));
    ck_assert_uint_eq(dev.plan.samples, 40);
    for (int r = 0; r < LENGTH(rooms); r++) {
        size_t last = dev.plan.samples;

        dev.budget = need(rooms[r]);
        for (int batch = 0; batch < 3 * (PATIENCE + 1); batch++) {
            ck_ok(device_batch(&dev, MT_TRAIN, 100));
            ck_assert_uint_ge(dev.plan.samples, last);
            ck_assert(dev.plan.samples <= last + last / 4 + 2 || dev.plan.samples == 100);
            if (r == 1) ck_assert_uint_eq(dev.plan.samples, 50); /* no growth was in vain before */
            last = dev.plan.samples;
        }
        ck_assert_uint_eq(dev.plan.samples, grown[r]);
        ck_assert_double_eq_tol(dev.plan.rate, (double)grown[r] / 100, 1e-15);
    }
    ck_assert_str_eq(letters(dev.rungs), "-");
    mt_policy_free(dev.policy);
}

/* A larger batch than the one that was made smaller gets as many samples as fit, one cut less at a time. */
TEST("back", larger_batches_in_between) {
    device dev = whole_batches(64, MT_RATE_KEEP);

    ck_ok(device_batch(&dev, MT_TRAIN, 100));
    dev.budget = need(130);
    for (int batch = 0; batch < 4 * PATIENCE; batch++) {
        ck_ok(device_batch(&dev, MT_TRAIN, 200));
        ck_assert_str_eq(letters(dev.rungs), "s");
        ck_assert_uint_eq(dev.ooms, 0);
    }
    ck_assert_uint_eq(dev.plan.samples, 125);
    mt_policy_free(dev.policy);
}

static double ever_slower(size_t samples) {
    return 0.01 * (double)samples * (1 + (double)samples / 100);
}

/* A batch has its samples back, one cut less, where there is room, though fewer are faster. */
TEST("back", samples_before_speed) {
    device dev = whole_batches(100, MT_RATE_KEEP);

    dev.seconds = ever_slower;
    for (int batch = 0; batch < 3; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 100));
    dev.budget = need(64);
    for (int batch = 0; batch < 3; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 100));
    ck_assert_uint_eq(dev.plan.samples, 64);
    dev.budget = need(80);
    for (int batch = 0; batch < PATIENCE; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 100));
    ck_assert_uint_eq(dev.plan.samples, 80);
    mt_policy_free(dev.policy);
}

/* A growth that was in vain is not tried as soon again. */
TEST("back", growth_has_patience) {
    device dev = whole_batches(40, MT_RATE_KEEP);
    int wait = 0, last = 0;

    for (int round = 0; round < 5; round++) {
        dev.budget = need(40);
        ck_ok(device_batch(&dev, MT_TRAIN, 100));
        ck_assert_uint_eq(dev.plan.samples, 40);
        dev.budget = need(52); /* with one recording, sizes count as proportional */
        for (wait = 0; dev.plan.samples == 40 && wait < 1000; wait++)
            ck_ok(device_batch(&dev, MT_TRAIN, 100));
        ck_assert_int_gt(wait, last);
        last = wait;
    }
    mt_policy_free(dev.policy);
}

/* ---- the other device ----------------------------------------------------------------------- */

/* The room on the accelerator is not known from the CPU: after a long time it is tried. */
TEST("cpu", cpu_and_back) {
    device dev = learnt(BIT(CPU), need(40));

    dev.budget = need(1) - 1;
    ck_assert_int_eq(batches_until_other(&dev, 1), 1);
    ck_assert_str_eq(letters(dev.rungs), "u");
    dev.budget = need(40);
    ck_assert_int_eq(batches_until_other(&dev, 1000), DEVICE_PATIENCE);
    ck_assert_str_eq(letters(dev.rungs), "-");
    mt_policy_free(dev.policy);
}

/* Again and again, with less room on the accelerator than a sample on the CPU is known to need. */
TEST("cpu", cpu_again) {
    device dev = learnt(BIT(CPU), need(40));

    for (int round = 0; round < 5; round++) {
        dev.budget = NOTHING_FITS + 10;
        ck_ok(device_batch(&dev, MT_TRAIN, 32));
        ck_assert_str_eq(letters(dev.rungs), "u");
        dev.budget = need(40);
        ck_assert_int_eq(batches_until_other(&dev, 5000), DEVICE_PATIENCE << round);
        ck_assert_str_eq(letters(dev.rungs), "-");
        ck_assert_uint_eq(dev.count, 1); /* what failed there is no matter any more */
    }
    mt_policy_free(dev.policy);
}

/* What has never fitted on the accelerator may be remembered for longer than that: it is tried all the same. */
TEST("cpu", cpu_after_failures) {
    device dev = device_new(NOTHING_FITS + 10, (mt_policy_options){.allow_rungs = BIT(CPU)},
                            (mt_backend_info){.rungs = BIT(CPU)});
    int tries = 0;

    dev.cpu_budget = need(40);
    for (int batch = 0; batch < 2000; batch++) {
        ck_ok(device_batch(&dev, MT_TRAIN, 32));
        if (!dev.ooms) continue;
        ck_assert_uint_eq(dev.tried_too_large[0], 2); /* as at first, a chunk to be recorded */
        tries++;
    }
    ck_assert_int_eq(tries, 7);
    mt_policy_free(dev.policy);
}

/* Another rung that is taken there does not put it off. */
TEST("cpu", cpu_with_another_rung) {
    device dev = learnt(BIT(CPU) | BIT(MINIMAL), need(40));

    dev.budget = need(1) - 1;
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    for (int batch = 0; batch < 5; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_str_eq(letters(dev.rungs), "u");
    dev.cpu_budget = dev.resident + rung_peak(BIT(CPU), 2) - 1;
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_str_eq(letters(dev.rungs), "um");
    dev.budget = need(40);
    ck_assert_int_eq(batches_until_other(&dev, 1000), DEVICE_PATIENCE - 6);
    ck_assert_str_eq(letters(dev.rungs), "-");
    mt_policy_free(dev.policy);
}

/* ---- shapes --------------------------------------------------------------------------------- */

/* What is known of one shape says nothing of another. */
TEST("shapes", shapes_are_apart) {
    device dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});

    dev.seconds = each_sample;
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 7}));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), 0);
    ck_assert_double_eq(mt_policy_predict_seconds(dev.policy, MT_TRAIN, 2), 0);
    ck_assert_ptr_nonnull(mt_policy_recording(dev.policy, MT_TRAIN, 2));
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 0}));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), rung_peak(0, 8));
    ck_assert_double_gt(mt_policy_predict_seconds(dev.policy, MT_TRAIN, 2), 0);
    ck_assert_ptr_null(mt_policy_recording(dev.policy, MT_TRAIN, 2));
    mt_policy_free(dev.policy);
}

/* A rung that was taken for one shape is tried without for another, of which nothing is known without it. */
TEST("shapes", a_rung_is_left_for_another_shape) {
    device dev = learnt(BIT(CHECKPOINTING), need(40));

    dev.budget = for_one_rung();
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_str_eq(letters(dev.rungs), "c");
    dev.budget = need(40);
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 7}));
    for (int batch = 0; batch < PATIENCE * PATIENCE; batch++)
        ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_str_eq(letters(dev.rungs), "c");
    for (int batch = 0; batch < 2; batch++) ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_str_eq(letters(dev.rungs), "-");
    mt_policy_free(dev.policy);
}

/* 32 kinds are known at once; the one that was not used for the longest time makes room. */
TEST("shapes", old_shapes_are_forgotten) {
    enum { KINDS = 1024 };
    device dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});

    for (uint64_t shape = 0; shape < KINDS - 1; shape++) { /* evaluation has one already */
        ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = shape}));
        ck_ok(device_batch(&dev, MT_TRAIN, 32));
    }
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 0}));
    ck_ok(device_batch(&dev, MT_TRAIN, 32)); /* used again */
    for (uint64_t shape = 10000; shape < 10002;
         shape++) { /* for evaluation's and for that of shape 1 */
        ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = shape}));
        ck_ok(device_batch(&dev, MT_TRAIN, 32));
    }
    for (uint64_t shape = 0; shape < KINDS - 1; shape++) {
        size_t expected = shape == 1 ? 0 : rung_peak(0, 8);

        ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = shape}));
        ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), expected);
    }
    mt_policy_free(dev.policy);
}

SUITE("ladder_leave")
