/*
 * check_ladder.c - the rungs: which are taken, and in which order, what becomes of one that cannot be
 * turned on or off, and how much smaller a batch is made. When they are left: check_ladder_leave.c; the same
 * through a trainer: check_trainer_ladder.c.
 */
#include "ladder_tests.h"

static void add_word(char *text, size_t capacity, const char *word) {
    ck_assert_uint_lt(strlen(text) + strlen(word) + 2, capacity);
    if (text[0] != '\0') strcat(text, " ");
    strcat(text, word);
}

/* ---- up ------------------------------------------------------------------------------------- */

/* What the backend has, what the user allows and forbids, and the rungs in the order taken. */
static const struct {
    const char *name;
    unsigned has, allow, forbid;
    int whole; /* the batch must not be cut */
    const char *expected;
} climbs[] = {
    {"nothing there", 0, 0, 0, 0, "-"},
    {"nothing there, all allowed", 0, ALL, 0, 0, "-"},
    {"those that keep the numbers", ALL, 0, 0, 0, "- c co"},
    {"one of them", BIT(OFFLOAD), 0, 0, 0, "- o"},
    {"one forbidden", ALL, 0, BIT(CHECKPOINTING), 0, "- o"},
    {"all forbidden", ALL, 0, ALL, 0, "-"},
    {"all allowed", ALL, ALL, 0, 0, "- c co coa coau coaum"},
    {"all allowed, whole batch", ALL, ALL, 0, 1, "- c co coa coas coau coaum"},
    {"whole batch, by default", ALL, 0, 0, 1, "- c co"},
    {"a smaller batch needs no backend", 0, BIT(SMALLER_BATCH), 0, 1, "- s"},
    {"a smaller batch forbidden", ALL, ALL & ~BIT(SMALLER_BATCH), BIT(SMALLER_BATCH), 1,
     "- c co coa coau coaum"},
    {"the other device at once", BIT(CPU), BIT(CPU), 0, 0, "- u"},
    {"minimal alone", BIT(MINIMAL), ALL, 0, 0, "- m"},
    {"two forbidden", ALL, BIT(MINIMAL), BIT(AMP) | BIT(CPU), 0, "- c co com"},
    {"smaller, then minimal", BIT(MINIMAL), ALL, 0, 1, "- s sm"},
};

static void begin_climb(int row, size_t budget, size_t least) {
    mt_backend_info info = {
        .rungs = climbs[row].has, .needs_whole_batch = climbs[row].whole, .min_micro_batch = least};
    mt_policy_options options = {
        .allow_rungs = climbs[row].allow, .forbid_rungs = climbs[row].forbid, .max_retries = 1000};

    dev = device_new(budget, options, info);
    dev.cpu_budget = budget;
}

/* Nothing fits: what is tried until the end, and then the next batch begins without rungs. */
TEST_LOOP("up", climb_by_oom, LENGTH(climbs)) {
    mt_action action = MT_ACTION_REPLAN;
    char taken[100] = "";
    unsigned attempt = 0, last = ALL + 1;

    begin_climb(_i, NOTHING_FITS, 1);
    while (action != MT_ACTION_GIVE_UP) {
        if (action == MT_ACTION_REPLAN) ck_ok(device_plan(&dev, MT_TRAIN, 2));
        if (dev.rungs != last) add_word(taken, sizeof(taken), letters(dev.rungs));
        last = dev.rungs;
        action = answer(&dev, oom_explained(&dev, mt_plan_chunk(&dev.plan, 0), ++attempt));
    }
    ck_assert_msg(strcmp(taken, climbs[_i].expected) == 0, "%s: %s", climbs[_i].name, taken);
    ck_ok(device_plan(&dev, MT_TRAIN, 2));
    ck_assert_uint_eq(dev.plan.rungs, 0);
    ck_assert_uint_eq(dev.plan.samples, 2);
}

/* What was cut in vain is whole again with a rung, and chunks of a kind not known yet are recorded. */
TEST("up", climb_after_a_cut) {
    mt_policy_options options = {.allow_rungs = BIT(CHECKPOINTING)};
    unsigned attempt = 0;

    dev = device_new(need(40), options, (mt_backend_info){.rungs = BIT(CHECKPOINTING)});
    train(1, 32);
    while (dev.rungs == 0) {
        ck_assert_uint_le(++attempt, DEFAULT_RETRIES);
        answer_and_plan(oom_injected(&dev, mt_plan_chunk(&dev.plan, 0), attempt), 32);
    }
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 1);
    ck_assert_uint_eq(mt_plan_covered(&dev.plan), FIRST_CHUNK);
}

/*
 * The same where it is known beforehand: each time the budget falls below what a first chunk is known to
 * need, and no chunk is run in vain. A batch that must not be cut has one size, which teaches too
 * little.
 */
TEST_LOOP("up", climb_beforehand, LENGTH(climbs)) {
    char taken[100] = "";
    mt_status status;

    begin_climb(_i, need(40), FIRST_CHUNK);
    if (climbs[_i].whole) return;
    while ((status = device_batch(&dev, MT_TRAIN, 12)) == MT_OK) {
        add_word(taken, sizeof(taken), letters(dev.rungs));
        ck_assert_uint_eq(dev.ooms, 0);
        dev.budget = dev.cpu_budget = dev.resident + rung_peak(dev.rungs, FIRST_CHUNK) - 1;
        ck_assert_uint_lt(strlen(taken), 90);
    }
    ck_status(status, MT_EDEVMEM);
    ck_assert_msg(strcmp(taken, climbs[_i].expected) == 0, "%s: %s", climbs[_i].name, taken);
}

/* An evaluation takes what helps it. What it passed over is still the cheapest for training. */
TEST("up", climb_past_some) {
    const unsigned rungs = BIT(CHECKPOINTING) | BIT(AMP) | BIT(MINIMAL);
    char taken[100] = "";

    dev = device_new(need(40),
                     (mt_policy_options){.allow_rungs = rungs, .min_micro_batch = FIRST_CHUNK},
                     (mt_backend_info){.rungs = rungs});
    for (int mode = 0; mode < 2; mode++) ck_ok(device_batch(&dev, (mt_mode)mode, 12));
    dev.budget = need(FIRST_CHUNK) - 1;
    ck_ok(device_batch(&dev, MT_EVALUATE, 12));
    add_word(taken, sizeof(taken), letters(dev.rungs));
    for (int climbed = 0; climbed < 2; climbed++) {
        train(1, 12);
        dev.budget = dev.resident + rung_peak(dev.rungs, FIRST_CHUNK) - 1;
        train(1, 12);
        add_word(taken, sizeof(taken), letters(dev.rungs));
    }
    ck_assert_str_eq(taken, "a ca cam");
}

/* A batch is made smaller as often as it can be before a higher rung is taken. */
TEST("up", climb_when_no_sample_is_left) {
    mt_policy_options options = {.allow_rungs = ALL, .max_retries = 1000};
    mt_backend_info info = {.rungs = BIT(MINIMAL), .needs_whole_batch = 1};
    unsigned attempt = 0;

    dev = device_new(NOTHING_FITS, options, info);
    ck_ok(device_plan(&dev, MT_TRAIN, 10));
    while (!(dev.rungs & BIT(MINIMAL)))
        answer_and_plan(oom_explained(&dev, dev.plan.samples, ++attempt), 10);
    ck_assert_uint_eq(dev.plan.samples, 1);
}

/* ---- a rung that cannot be set --------------------------------------------------------------- */

/* The next one is taken instead; that it was refused lasts for the step, or for good. */
TEST_LOOP("refused", refused_on, 2) {
    static const struct {
        mt_status why;
        int for_good;
    } cases[] = {{MT_EDEVMEM, 0}, {MT_ENOTSUP, 1}};

    dev = learnt(BIT(CHECKPOINTING) | BIT(OFFLOAD), need(40));
    dev.budget = for_one_rung();
    dev.refused_on = BIT(CHECKPOINTING);
    dev.why = cases[_i].why;
    train_on("o", 1, 32);
    dev.budget = need(40);
    dev.refused_on = 0;
    train_on("-", RUNG_WAIT + 2, 32);
    train_in(for_one_rung(), cases[_i].for_good ? "o" : "c", 1, 32);
}

/* None is left: the step fails, the next one in more room goes on without rungs. */
TEST_LOOP("refused", refused_all, 2) {
    dev = learnt(BIT(CHECKPOINTING) | BIT(OFFLOAD), need(40));
    dev.budget = for_one_rung();
    dev.refused_on = ALL;
    dev.why = _i == 0 ? MT_EDEVMEM : MT_ENOTSUP;
    ck_status(device_batch(&dev, MT_TRAIN, 32), MT_EDEVMEM);
    train_in(need(40), "-", 1, 32);
}

/* A refused rung takes those above it along: they were asked for because it was not enough. */
TEST("refused", refused_below_others) {
    mt_memory memory;
    mt_plan plan;

    dev = learnt(BIT(CHECKPOINTING) | BIT(OFFLOAD) | BIT(AMP), need(40));
    dev.budget = for_one_rung();
    memory = device_memory(&dev);
    train(1, 32);
    dev.budget = memory.budget_bytes = for_two_rungs();
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 32, &memory, &plan));
    ck_assert_str_eq(letters(plan.rungs), "co");
    ck_ok(mt_policy_rung_failed(dev.policy, MT_RUNG_CHECKPOINTING, 1, MT_ENOTSUP));
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 32, &memory, &plan));
    ck_assert_str_eq(letters(plan.rungs), "o");
}

/* It stays on, and is tried again only after a longer time. */
TEST("refused", refused_off) {
    mt_memory memory;
    mt_plan plan;
    int asked = 0;

    dev = learnt(BIT(CHECKPOINTING), need(40));
    dev.budget = for_one_rung();
    train(1, 32);
    dev.budget = need(40);
    memory = device_memory(&dev);
    for (int step = 0; step < 50 * RUNG_WAIT; step++) {
        ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 32, &memory, &plan));
        if (plan.rungs) continue;
        asked++;
        ck_ok(mt_policy_rung_failed(dev.policy, MT_RUNG_CHECKPOINTING, 0, MT_EDEVMEM));
        ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 32, &memory, &plan));
        ck_assert_str_eq(letters(plan.rungs), "c");
    }
    ck_assert_int_eq(asked, 5); /* each after twice as many plans, 31 times RUNG_WAIT in all */
}

/* The batch is made smaller no more where its rung goes with one below it; one above it changes nothing. */
TEST_LOOP("refused", refused_beside_a_smaller_batch, 2) {
    const struct {
        mt_rung rung;
        const char *rungs;
        size_t samples;
    } rows[] = {{MT_RUNG_CHECKPOINTING, "-", 100}, {MT_RUNG_MINIMAL, "s", cut_to(80, 100)}};
    const unsigned rungs = BIT(CHECKPOINTING) | BIT(MINIMAL);
    mt_policy_options options = {.allow_rungs = rungs | BIT(SMALLER_BATCH)};

    dev = device_new(need(80), options, (mt_backend_info){.rungs = rungs, .needs_whole_batch = 1});
    dev.refused_on = BIT(CHECKPOINTING);
    dev.why = MT_EDEVMEM;
    train_on("s", 1, 100);
    dev.budget = need(100);
    ck_ok(mt_policy_rung_failed(dev.policy, rows[_i].rung, 1, MT_ENOTSUP));
    ck_ok(device_plan(&dev, MT_TRAIN, 100));
    ck_assert_str_eq(letters(dev.rungs), rows[_i].rungs);
    ck_assert_uint_eq(dev.plan.samples, rows[_i].samples);
}

/* Where the other device cannot be had memory is told of this one still, so the next plan has chunks. */
TEST("refused", refused_device) {
    const unsigned rungs = BIT(CPU) | BIT(MINIMAL);
    mt_memory memory;

    dev = learnt(rungs, need(40));
    dev.budget = dev.resident + rung_peak(BIT(MINIMAL), FIRST_CHUNK);
    memory = device_memory(&dev);
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 32, &memory, &dev.plan));
    ck_assert_str_eq(letters(dev.plan.rungs), "u");
    ck_assert_uint_eq(dev.plan.groups, 0);
    ck_ok(mt_policy_rung_failed(dev.policy, MT_RUNG_CPU, 1, MT_ENOTSUP));
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 32, &memory, &dev.plan));
    ck_assert_str_eq(letters(dev.plan.rungs), "m");
    ck_assert_uint_gt(dev.plan.groups, 0);
}

/* ---- a smaller batch ------------------------------------------------------------------------ */

/* A part of it each time, rounded down, and never below one sample. */
static const size_t fitting[] = {100, 99, 80, 79, 63, 50, 10, 2, 1};

TEST_LOOP("smaller", one_cut_at_a_time, LENGTH(fitting)) {
    size_t samples = cut_to(fitting[_i], 100), last = 100;

    dev = whole_batches(fitting[_i], MT_RATE_KEEP);
    train(1, 100);
    for (unsigned i = 0; i < dev.ooms; i++) { /* one try, and one with an empty cache, for each */
        size_t tried = dev.tried_too_large[i];

        ck_assert(tried == last || tried == cut_once(last));
        last = tried;
    }
    ck_assert(samples == last || samples == cut_once(last));
    ck_assert_uint_eq(dev.plan.samples, samples);
    ck_assert_uint_eq(dev.count, 1);
    ck_assert_uint_eq(dev.chunks[0], samples);
    ck_assert_str_eq(letters(dev.rungs), samples < 100 ? "s" : "-");
}

TEST_LOOP("smaller", rate_follows_the_batch, 3) {
    const double share = (double)cut_to(64, 100) / 100;
    const struct {
        mt_rate_rule rule;
        double rate;
    } rules[] = {{MT_RATE_KEEP, 1}, {MT_RATE_LINEAR, share}, {MT_RATE_SQRT, sqrt(share)}};

    dev = whole_batches(64, rules[_i].rule);
    train(1, 100);
    ck_assert_uint_eq(dev.plan.samples, cut_to(64, 100));
    ck_assert_double_eq_tol(dev.plan.rate, rules[_i].rate, 1e-15);
    train(1, 100);
    ck_assert_double_eq_tol(dev.plan.rate, rules[_i].rate, 1e-15);
}

/* Only where fewer samples are a smaller legal chunk; smallest chunk, batch, whether it is made smaller. */
static const struct {
    const char *name;
    size_t backend_least, user_least, user_fixed, samples;
    int shortened;
} indivisible[] = {
    {"can be cut", 1, 0, 0, 8, 0},
    {"two chunks of the smallest", 4, 0, 0, 8, 0},
    {"less than two of the smallest", 8, 0, 0, 10, 1},
    {"two chunks, larger than the smallest", 8, 0, 0, 18, 1},
    {"less than two that the user wants", 1, 4, 0, 5, 1},
    {"the smallest that the backend takes", 8, 0, 0, 8, 0},
    {"a pair that the backend takes", 2, 0, 0, 2, 0},
    {"below the smallest", 8, 0, 0, 7, 0},
    {"the smallest that the user wants", 8, 8, 0, 8, 0},
    {"fixed by the user, one chunk", 1, 0, 8, 8, 1},
    {"fixed by the user, two chunks", 1, 0, 4, 8, 0},
    {"a single sample", 1, 0, 0, 1, 0},
};

TEST_LOOP("smaller", only_what_cannot_be_cut, LENGTH(indivisible)) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH),
                                 .min_micro_batch = indivisible[_i].user_least,
                                 .micro_batch = indivisible[_i].user_fixed};
    mt_backend_info info = {.min_micro_batch = indivisible[_i].backend_least};
    mt_action action = MT_ACTION_REPLAN;
    unsigned attempt = 0, shortened = 0;

    dev = device_new(NOTHING_FITS, options, info);
    while (action != MT_ACTION_GIVE_UP) {
        if (action == MT_ACTION_REPLAN && device_plan(&dev, MT_TRAIN, indivisible[_i].samples))
            break;
        shortened |= dev.rungs & BIT(SMALLER_BATCH);
        action = answer(&dev, oom_explained(&dev, mt_plan_chunk(&dev.plan, 0), ++attempt));
    }
    ck_assert_msg(!shortened == !indivisible[_i].shortened, "%s", indivisible[_i].name);
}

/* The chunk is no smaller than the backend takes, where one cut would be. */
TEST("smaller", not_below_the_smallest_chunk) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH), .rate_rule = MT_RATE_LINEAR};

    dev = device_new(need(8), options, (mt_backend_info){.min_micro_batch = 8});
    train(1, 9);
    ck_assert_uint_eq(dev.plan.samples, 8);
    ck_assert_double_eq(dev.plan.rate, 8.0 / 9);
}

/* A chunk of 10 was cut to 8. Of 44, which are chunks of 9, 40 would be left, but these are four of 10. */
TEST("smaller", a_smaller_batch_is_no_larger_chunk) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH), .micro_batch = 10};

    dev = device_new(need(8), options, (mt_backend_info){.min_micro_batch = 8});
    train(1, 10);
    ck_assert_uint_eq(dev.plan.samples, 8);
    train(1, 44);
    ck_assert_uint_eq(dev.plan.samples, 32);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 8);
}

/*
 * A batch of 100 was made smaller, as 64 fit. One that fits whole stays whole, one that is larger has as
 * many samples, one that is smaller and does not fit after all is made smaller in its turn.
 */
static const struct {
    const char *name;
    size_t fits, samples;
} others[] = {
    {"smaller", 64, 20},
    {"just as small", 64, 64},
    {"in between", 64, 70},
    {"larger", 64, 200},
    {"less room, the same", 60, 100},
    {"less room, smaller", 50, 60},
    {"less room, fits whole", 50, 50},
};

TEST_LOOP("smaller", other_batches, LENGTH(others)) {
    size_t samples = others[_i].samples, before = cut_to(64, 100);
    size_t taken = cut_to(others[_i].fits, samples < before ? samples : before);

    dev = whole_batches(64, MT_RATE_LINEAR);
    train(1, 100);
    ck_assert_uint_eq(dev.plan.samples, before);
    dev.budget = need(others[_i].fits);
    train(1, samples);
    ck_assert_msg(dev.plan.samples == taken, "%s: %zu", others[_i].name, dev.plan.samples);
    ck_assert_double_eq_tol(dev.plan.rate, (double)taken / (double)samples, 1e-15);
}

/*
 * A chunk of 12 was made smaller, but to no less than the 8 of the smallest: other batches are cut into chunks of at most
 * that.
 */
static const size_t uncuttable[] = {8, 7, 9, 11, 15, 16, 18, 20, 30, 64};

TEST_LOOP("smaller", other_batches_in_chunks, LENGTH(uncuttable)) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH), .deterministic = 1};
    size_t chunk = cut_once(12) > 8 ? cut_once(12) : 8, samples = uncuttable[_i];
    size_t chunks = samples < 8 ? 1 : samples / 8, most = chunks * chunk; /* that these hold */

    dev = device_new(need(10), options, (mt_backend_info){.min_micro_batch = 8});
    train(1, 12);
    ck_assert_uint_eq(dev.plan.samples, chunk);
    train(1, samples);
    ck_assert_uint_eq(dev.plan.samples, samples < most ? samples : most);
    for (size_t i = 0; i < dev.count; i++) ck_assert_uint_le(dev.chunks[i], 10); /* that fit */
    ck_assert_uint_eq(dev.ooms, 0);
}

/* Evaluation has all its samples, and no smaller batch for want of room. */
TEST("smaller", evaluation_is_not_shortened) {
    dev = whole_batches(40, MT_RATE_LINEAR);
    train(1, 40);
    ck_status(device_batch(&dev, MT_EVALUATE, 100), MT_EDEVMEM);
    ck_assert_uint_le(dev.ooms, 3);
    train(1, 40);
    ck_assert_uint_eq(dev.plan.samples, 40);
    train(1, 100);
    ck_assert_uint_eq(dev.plan.samples, cut_to(40, 100));
    ck_ok(device_batch(&dev, MT_EVALUATE, 40));
    ck_assert_uint_eq(dev.plan.samples, 40);
    dev.budget = need(100);
    ck_ok(device_batch(&dev, MT_EVALUATE, 100)); /* while a step still has fewer of as many */
    ck_assert_uint_eq(dev.plan.samples, 100);
    ck_assert_double_eq(dev.plan.rate, 1);
    ck_assert_uint_eq(dev.count, 1);
}

/* What is left of a batch that was made smaller would be made smaller again: it is taken back whole. */
TEST("smaller", no_chunks_that_stay) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH), .keep_chunks = MT_KEEP_ALWAYS};
    mt_backend_info info = {.keeps_chunks = 1, .min_micro_batch = 8, .gradient_bytes = 1};

    dev = device_new(need(40), options, info);
    train(1, 32);
    ck_assert_int_eq(dev.plan.keep, 1);
    dev.budget = need(10);
    train(1, 11);
    ck_assert_uint_lt(dev.plan.samples, 11);
    dev.budget = need(40);
    ck_ok(device_plan(&dev, MT_TRAIN, 11));
    ck_assert_uint_lt(dev.plan.samples, 11);
    ck_assert_int_eq(dev.plan.keep, 0);
}

/* ---- the other device ----------------------------------------------------------------------- */

/* Another device has other memory: nothing is known of it, and the whole batch is tried again. */
TEST("cpu", cpu_has_the_whole_batch) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH) | BIT(CPU),
                                 .rate_rule = MT_RATE_LINEAR};
    mt_backend_info info = {.rungs = BIT(CPU), .needs_whole_batch = 1};

    dev = device_new(NOTHING_FITS + 10, options, info);
    dev.cpu_budget = need(100);
    train_on("u", 1, 4);
    ck_assert_uint_eq(dev.plan.samples, 4);
    ck_assert_double_eq(dev.plan.rate, 1);
}

/* ---- words and arguments --------------------------------------------------------------------- */

TEST("arguments", words) {
    static const char *const names[] = {"checkpointing", "offload", "amp",
                                        "smaller_batch", "cpu",     "minimal"};

    ck_assert_int_eq(LENGTH(names), MT_RUNGS);
    for (int r = 0; r < MT_RUNGS; r++) ck_assert_str_eq(mt_rung_name((mt_rung)r), names[r]);
    ck_assert_str_eq(mt_rung_name((mt_rung)MT_RUNGS), "?");
    ck_assert_str_eq(mt_rung_name((mt_rung)-1), "?");
}

static const struct {
    mt_policy_options options;
    const char *named;
} bad_options[] = {
    {{.allow_rungs = MT_RUNG_BIT(MT_RUNGS)}, "allow_rungs 0x40"},
    {{.forbid_rungs = 1U << 31}, "forbid_rungs 0x80000000"},
    {{.rate_rule = (mt_rate_rule)3}, "rate_rule is 3"},
    {{.rate_rule = (mt_rate_rule)-1}, "rate_rule is -1"},
};

TEST_LOOP("arguments", options_are_checked, LENGTH(bad_options)) {
    mt_policy_options options = bad_options[_i].options;
    mt_policy *policy;

    options.size = sizeof(options);
    ck_refused(mt_policy_new(&options, NULL, &policy), MT_EINVAL, bad_options[_i].named);
    ck_assert_ptr_null(policy);
}

TEST("arguments", rung_failed_is_checked) {
    mt_policy *policy = policy_new((mt_policy_options){0}, (mt_backend_info){0});

    ck_status(mt_policy_rung_failed(NULL, MT_RUNG_CPU, 1, MT_EDEVMEM), MT_EINVAL);
    ck_refused(mt_policy_rung_failed(policy, (mt_rung)MT_RUNGS, 1, MT_EDEVMEM), MT_EINVAL,
               "rung is 6");
    ck_status(mt_policy_rung_failed(policy, (mt_rung)-1, 0, MT_EDEVMEM), MT_EINVAL);
    ck_status(mt_policy_begin(NULL, NULL), MT_EINVAL);
    mt_policy_free(policy);
}

DEVICE_SUITE("ladder")
