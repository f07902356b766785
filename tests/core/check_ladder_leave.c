/*
 * check_ladder_leave.c - the rungs: how long they stay, when they are left, and when a batch that was made
 * smaller has its samples back. Which are taken, and in which order: check_ladder.c.
 */
#include "ladder_tests.h"
#include "policy_state.h"

/* ---- down ----------------------------------------------------------------------------------- */

/* Batches in this budget until other rungs are on; 0: within so many none were. */
static int batches_until_other(size_t budget, int most) {
    unsigned before = dev.rungs;

    dev.budget = budget;
    for (int batch = 1; batch <= most; batch++) {
        train(1, 32);
        ck_assert_uint_eq(dev.ooms, 0);
        if (dev.rungs != before) return batch;
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
    int left;

    dev = learnt(BIT(CHECKPOINTING) | BIT(OFFLOAD), need(40));
    dev.seconds = leaves[_i].slower > 0 ? each_sample : NULL;
    dev.slower[MT_RUNG_CHECKPOINTING] = dev.slower[MT_RUNG_OFFLOAD] = leaves[_i].slower;
    train(8, 32);
    dev.budget = for_one_rung();
    train(8, 32);
    train_in(for_two_rungs(), "co", 1, 32);
    left = batches_until_other(leaves[_i].fits_without    ? need(40)
                               : leaves[_i].fits_with_one ? for_one_rung()
                                                          : for_two_rungs(),
                               100);
    ck_assert_msg(strcmp(letters(dev.rungs), leaves[_i].expected) == 0, "%s: %s", leaves[_i].name,
                  letters(dev.rungs));
    ck_assert_int_eq(left, dev.rungs == (BIT(CHECKPOINTING) | BIT(OFFLOAD)) ? 0 : RUNG_WAIT + 1);
}

/* Room comes and goes: each time the rung is kept for twice as long. */
TEST("down", patience_doubles) {
    int wait = RUNG_WAIT;

    dev = learnt(BIT(CHECKPOINTING), need(40));
    for (int round = 0; round < 8; round++) {
        ck_assert_int_eq(batches_until_other(for_one_rung(), 1), 1);
        ck_assert_int_eq(batches_until_other(need(40), 5000), wait + 1);
        wait *= 2;
    }
}

/* A rung that is taken long after it was left was not left too soon. */
TEST("down", patience_starts_anew) {
    dev = learnt(BIT(CHECKPOINTING), need(40));
    for (int round = 0; round < 4; round++) {
        ck_assert_int_eq(batches_until_other(for_one_rung(), 1), 1);
        ck_assert_int_eq(batches_until_other(need(40), 100), RUNG_WAIT + 1);
        ck_assert_int_eq(batches_until_other(dev.budget, 2 * RUNG_WAIT), 0);
    }
}

/* Within twice its patience it was. */
TEST_LOOP("down", left_too_soon, 2) {
    dev = learnt(BIT(CHECKPOINTING), need(40));
    dev.budget = for_one_rung();
    train(1, 32);
    ck_assert_int_eq(batches_until_other(need(40), 100), RUNG_WAIT + 1);
    ck_assert_int_eq(batches_until_other(dev.budget, 2 * RUNG_WAIT - 2 + _i), 0);
    ck_assert_int_eq(batches_until_other(for_one_rung(), 1), 1);
    ck_assert_int_eq(batches_until_other(need(40), 100), (_i == 0 ? 2 : 1) * RUNG_WAIT + 1);
}

/* A second rung is none that was left, and has the patience of the first. */
TEST("down", patience_of_a_second_rung) {
    dev = learnt(BIT(CHECKPOINTING) | BIT(OFFLOAD), need(40));
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(batches_until_other(for_one_rung(), 1), 1);
        if (round == 1) ck_assert_int_eq(batches_until_other(for_two_rungs(), 1), 1);
        ck_assert_int_eq(batches_until_other(need(40), 100), (round + 1) * RUNG_WAIT + 1);
        ck_assert_str_eq(letters(dev.rungs), "-");
    }
}

/* Where there is known to be no room nothing is tried in vain, even after long: when it comes the rung is left. */
TEST("down", no_try_where_it_is_known) {
    dev = learnt(BIT(CHECKPOINTING), need(40));
    dev.budget = for_one_rung();
    train(8 * RUNG_WAIT + 4, 32);
    ck_assert_int_eq(batches_until_other(need(40), 1), 1);
}

/* What changes the numbers is left where there is room, however fast it is. */
TEST("down", numbers_before_speed) {
    dev = learnt(BIT(AMP), need(40));
    dev.seconds = each_sample;
    dev.slower[MT_RUNG_AMP] = 0.5;
    train(8, 32);
    train_in(dev.resident + rung_peak(BIT(AMP), FEW), "a", 1, 32);
    ck_assert_int_eq(batches_until_other(need(40), 100), RUNG_WAIT + 1);
}

/* What is not known without a rung is not left for. */
TEST("down", stays_where_nothing_is_known) {
    dev = device_new(for_one_rung(), (mt_policy_options){0},
                     (mt_backend_info){.rungs = BIT(CHECKPOINTING)});
    dev.records = 0;
    train_on("c", 1, 1);
    train_on("c", 40, 1);
    train_in(need(40), "-", 40, 1);
}

/* What is remembered to have failed without a rung is tried ever more seldom. */
TEST("down", stays_where_it_has_failed) {
    int last = 0, wait = RUNG_WAIT, tries = 0;

    dev = device_new(for_one_rung(), (mt_policy_options){0},
                     (mt_backend_info){.rungs = BIT(CHECKPOINTING)});
    dev.records = 0;
    train(1, 1);
    for (int batch = 1; batch < 5000; batch++) {
        train(1, 1);
        if (!dev.ooms) continue;
        ck_assert_int_gt(batch - last, wait); /* ever more seldom */
        wait = 3 * (batch - last) / 2;
        last = batch;
        tries++;
    }
    ck_assert_int_ge(tries, 4);
}

/* Evaluation neither counts for the patience nor leaves a rung. */
TEST("down", evaluation_leaves_nothing) {
    dev = learnt(BIT(CHECKPOINTING), need(40));
    dev.budget = for_one_rung();
    train(1, 32);
    dev.budget = need(40);
    for (int batch = 0; batch < 40; batch++) ck_ok(device_batch(&dev, MT_EVALUATE, 32));
    ck_assert_str_eq(letters(dev.rungs), "c");
    ck_assert_int_eq(batches_until_other(dev.budget, 40), RUNG_WAIT + 1);
}

/* ---- samples that come back ------------------------------------------------------------------ */

/* Small batches that fit are no reason to give a large one all its samples back. */
TEST("back", small_batches_in_between) {
    dev = whole_batches(64, MT_RATE_KEEP);
    for (int batch = 0; batch < 20 * RUNG_WAIT; batch++) {
        train_on("s", 1, batch % 10 == 0 ? 100 : 20);
        ck_assert_uint_eq(dev.plan.samples, batch % 10 == 0 ? cut_to(64, 100) : 20);
        ck_assert(dev.ooms == 0 || batch == 0);
    }
}

/*
 * After a step in which not even a sample fits a batch is whole again; after such an evaluation it is as small as before, unless
 * that went on to the CPU, which begins with whole batches.
 */
TEST_LOOP("back", smaller_in_vain, 4) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH) | (_i < 2 ? 0 : BIT(CPU)),
                                 .max_retries = 1000};
    mt_backend_info info = {.rungs = BIT(CPU), .needs_whole_batch = 1};
    const mt_mode mode = _i % 2 ? MT_EVALUATE : MT_TRAIN;

    dev = device_new(need(64), options, info);
    dev.cpu_budget = NOTHING_FITS;
    train(1, 100);
    dev.budget = NOTHING_FITS;
    ck_status(device_batch(&dev, mode, 100), MT_EDEVMEM);
    dev.budget = need(200);
    ck_ok(device_plan(&dev, MT_TRAIN, 100));
    ck_assert_uint_eq(dev.plan.samples, _i == 1 ? cut_to(64, 100) : 100);
}

/* Rungs of a run before take the place of those that are on: a batch is whole again. */
TEST("back", smaller_and_then_loaded) {
    dev = whole_batches(64, MT_RATE_KEEP);
    train_on("s", 1, 100);
    mt__rungs_begin_with(dev.policy, 0);
    dev.budget = need(200);
    train_on("-", 1, 100);
    ck_assert_uint_eq(dev.plan.samples, 100);
}

/* More room: one cut less after each wait, as much as fits, and at last the whole batch. */
TEST("back", grows_back) {
    const size_t first = cut_to(40, 100), second = one_cut_less(first),
                 third = one_cut_less(second);
    const size_t rooms[] = {second - 1, second + 2, third + 1, 100};
    const size_t grown[] = {first, second, third, 100};

    dev = whole_batches(40, MT_RATE_LINEAR);
    train(1, 100);
    ck_assert_uint_eq(dev.plan.samples, first);
    for (int r = 0; r < LENGTH(rooms); r++) {
        size_t last = dev.plan.samples;

        /* In the first room none is tried that is not known to fit. */
        int batches = r ? 3 * (RUNG_WAIT + 1) : UNKNOWN_WAITS * RUNG_WAIT - 1;

        dev.budget = need(rooms[r]);
        for (int batch = 0; batch < batches; batch++) {
            train(1, 100);
            ck_assert_uint_ge(dev.plan.samples, last);
            ck_assert(dev.plan.samples <= one_cut_less(last) || dev.plan.samples == 100);
            if (r == 1) ck_assert_uint_eq(dev.plan.samples, second); /* none was in vain before */
            last = dev.plan.samples;
        }
        ck_assert_uint_eq(dev.plan.samples, grown[r]);
        ck_assert_double_eq_tol(dev.plan.rate, (double)grown[r] / 100, 1e-15);
    }
    ck_assert_str_eq(letters(dev.rungs), "-");
}

/* A larger batch than the one that was made smaller gets as many samples as fit, one cut less at a time. */
TEST("back", larger_batches_in_between) {
    size_t most = cut_to(64, 100);

    while (one_cut_less(most) <= 130) most = one_cut_less(most);
    dev = whole_batches(64, MT_RATE_KEEP);
    train(1, 100);
    dev.budget = need(130);
    for (int batch = 0; batch < 16 * RUNG_WAIT; batch++) {
        train_on("s", 1, 200);
        ck_assert_uint_eq(dev.ooms, 0);
    }
    ck_assert_uint_eq(dev.plan.samples, most);
}

static double ever_slower(size_t samples) {
    return 0.01 * (double)samples * (1 + (double)samples / 100);
}

/* A batch has its samples back, one cut less, where there is room, though fewer are faster. */
TEST("back", samples_before_speed) {
    const size_t less = cut_once(100), least = cut_once(less);

    dev = whole_batches(100, MT_RATE_KEEP);
    dev.seconds = ever_slower;
    train(3, 100);
    dev.budget = need(least);
    train(3, 100);
    ck_assert_uint_eq(dev.plan.samples, least);
    dev.budget = need(less);
    train(RUNG_WAIT, 100);
    ck_assert_uint_eq(dev.plan.samples, one_cut_less(least));
}

/* A growth that was in vain is not tried as soon again. */
TEST("back", growth_has_patience) {
    const size_t few = cut_to(40, 100);
    int wait = 0, last = 0;

    dev = whole_batches(40, MT_RATE_KEEP);
    for (int round = 0; round < 5; round++) {
        dev.budget = need(40);
        train(1, 100);
        ck_assert_uint_eq(dev.plan.samples, few);
        /* With one recording, sizes count as proportional. */
        dev.budget = need(one_cut_less(few) + 2);
        for (wait = 0; dev.plan.samples == few && wait < 1000; wait++) train(1, 100);
        ck_assert_int_gt(wait, last);
        last = wait;
    }
}

/* ---- the other device ----------------------------------------------------------------------- */

/* The room on the accelerator is not known from the CPU: after a while it is tried. */
TEST("cpu", cpu_and_back) {
    dev = learnt(BIT(CPU), need(40));
    ck_assert_int_eq(batches_until_other(need(1) - 1, 1), 1);
    ck_assert_str_eq(letters(dev.rungs), "u");
    ck_assert_int_eq(batches_until_other(need(40), 1000), RUNG_WAIT + 1);
    ck_assert_str_eq(letters(dev.rungs), "-");
}

/* Again and again, with less room on the accelerator than a sample on the CPU is known to need. */
TEST("cpu", cpu_again) {
    dev = learnt(BIT(CPU), need(40));
    for (int round = 0, waited = 0, before; round < 5; round++) {
        train_in(NOTHING_FITS + 10, "u", 1, 32);
        before = waited;
        waited = batches_until_other(need(40), 5000);
        ck_assert_int_gt(waited, before); /* ever later */
        ck_assert_int_lt(waited, 5000);
        ck_assert_str_eq(letters(dev.rungs), "-");
        ck_assert_uint_eq(dev.count, 1); /* what failed there is no matter any more */
    }
}

/* What has never fitted on the accelerator may be remembered for longer than that: it is tried all the same. */
TEST("cpu", cpu_after_failures) {
    int last = 0, wait = 0, tries = 0;

    dev = device_new(NOTHING_FITS + 10, (mt_policy_options){.allow_rungs = BIT(CPU)},
                     (mt_backend_info){.rungs = BIT(CPU)});
    dev.cpu_budget = need(40);
    for (int batch = 0; batch < 2000; batch++) {
        train(1, 32);
        if (!dev.ooms) continue;
        ck_assert_uint_eq(dev.tried_too_large[0], FIRST_CHUNK); /* as at first, to be recorded */
        if (tries++) ck_assert_int_gt(batch - last, wait);      /* ever later */
        wait = batch - last;
        last = batch;
    }
    ck_assert_int_ge(tries, 5);
}

/* ---- shapes --------------------------------------------------------------------------------- */

/* What is known of one shape says nothing of another. */
TEST("shapes", shapes_are_apart) {
    dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});
    dev.seconds = each_sample;
    train(1, 32);
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 7}));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), 0);
    ck_assert_double_eq(mt_policy_predict_seconds(dev.policy, MT_TRAIN, FIRST_CHUNK), 0);
    ck_assert_ptr_nonnull(mt_policy_recording(dev.policy, MT_TRAIN, FIRST_CHUNK));
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 0}));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), rung_peak(0, 8));
    ck_assert_double_gt(mt_policy_predict_seconds(dev.policy, MT_TRAIN, FIRST_CHUNK), 0);
    ck_assert_ptr_null(mt_policy_recording(dev.policy, MT_TRAIN, FIRST_CHUNK));
}

/* A rung that was taken for one shape is tried without for another, of which nothing is known without it. */
TEST("shapes", a_rung_is_left_for_another_shape) {
    dev = learnt(BIT(CHECKPOINTING), need(40));
    train_in(for_one_rung(), "c", 1, 32);
    dev.budget = need(40);
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 7}));
    train_on("c", UNKNOWN_WAITS * RUNG_WAIT, 32);
    train_on("-", 2, 32);
}

/* A thousand kinds are known at once; the oldest make room. */
TEST("shapes", old_shapes_are_forgotten) {
    enum { KINDS = 10000, MOST = MT__BUCKETS * MT__IN_BUCKET };
    size_t known = 0;

    dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});
    for (uint64_t shape = 0; shape < KINDS; shape++) {
        ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = shape}));
        train(1, 32);
    }
    for (uint64_t shape = 0; shape < KINDS; shape++) {
        ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = shape}));
        size_t bytes = mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8);
        known += bytes > 0;
        if (bytes) ck_assert_uint_eq(bytes, rung_peak(0, 8));
        if (shape < KINDS - 2 * MOST) ck_assert_uint_eq(bytes, 0);
        if (shape >= KINDS - MOST / 4) ck_assert_uint_gt(bytes, 0);
    }
    ck_assert_uint_le(known, MOST);
    ck_assert_uint_ge(known, 1000);
}

DEVICE_SUITE("ladder_leave")
