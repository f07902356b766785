/*
 * check_policy.c - plans and the policy, driven without a trainer: a little device in this file
 * plays the chunks, and every rule of policy.h has a table or a property.
 */
#include "counting_allocator.h"
#include "fake_backend.h"
#include "suite.h"

#include <memtrain/policy.h>

/* ---- plans ---------------------------------------------------------------------------------- */

static void check_balanced(const mt_plan *plan, size_t samples, size_t chunks) {
    size_t sum = 0, last = SIZE_MAX;

    ck_assert_uint_eq(mt_plan_chunks(plan), chunks);
    ck_assert_uint_eq(mt_plan_covered(plan), samples);
    for (size_t i = 0; i < chunks; i++) {
        size_t m = mt_plan_chunk(plan, i);

        ck_assert_uint_ge(m, samples / chunks);
        ck_assert_uint_le(m, samples / chunks + 1);
        ck_assert_uint_le(m, last);
        last = m;
        sum += m;
    }
    ck_assert_uint_eq(sum, samples);
    ck_assert_uint_eq(mt_plan_chunk(plan, chunks), 0);
    ck_assert_uint_eq(mt_plan_chunk(plan, SIZE_MAX), 0);
}

START_TEST(balanced) {
    mt_plan plan;

    for (size_t samples = 1; samples <= 64; samples++)
        for (size_t chunks = 1; chunks <= samples; chunks++) {
            ck_ok(mt_plan_balanced(samples, chunks, &plan));
            ck_assert_uint_eq(plan.size, sizeof(plan));
            ck_assert_uint_eq(plan.samples, samples);
            ck_assert_int_eq(plan.discard, 0);
            check_balanced(&plan, samples, chunks);
        }
}
END_TEST

START_TEST(balanced_refused) {
    mt_plan plan;

    ck_status(mt_plan_balanced(0, 0, &plan), MT_EINVAL);
    ck_status(mt_plan_balanced(0, 1, &plan), MT_EINVAL);
    ck_status(mt_plan_balanced(5, 0, &plan), MT_EINVAL);
    ck_status(mt_plan_balanced(5, 6, &plan), MT_EINVAL);
    ck_status(mt_plan_balanced(5, SIZE_MAX, &plan), MT_EINVAL);
}
END_TEST

START_TEST(plan_by_hand) {
    static const size_t expected[] = {2, 4, 9, 9, 9, 8, 0, 0};
    mt_plan plan = {.size = sizeof(plan),
                    .samples = 60,
                    .groups = 4,
                    .group = {{2, 1}, {4, 1}, {9, 3}, {8, 1}}};

    ck_assert_uint_eq(mt_plan_chunks(&plan), 6);
    ck_assert_uint_eq(mt_plan_covered(&plan), 41);
    for (int i = 0; i < LENGTH(expected); i++)
        ck_assert_uint_eq(mt_plan_chunk(&plan, (size_t)i), expected[i]);
}
END_TEST

START_TEST(words) {
    static const char *const reasons[] = {"start",  "throughput", "growth", "oom",
                                          "budget", "replay",     "user"};
    static const char *const phases[] = {"begin", "accumulate", "apply", "evaluate"};
    static const char *const clears[] = {"every", "evidence", "epoch", "oom"};

    for (int i = 0; i < LENGTH(reasons); i++)
        ck_assert_str_eq(mt_plan_reason_name((mt_plan_reason)i), reasons[i]);
    for (int i = 0; i < LENGTH(phases); i++)
        ck_assert_str_eq(mt_phase_name((mt_phase)i), phases[i]);
    for (int i = 0; i < LENGTH(clears); i++)
        ck_assert_str_eq(mt_clear_reason_name((mt_clear_reason)(i + 1)), clears[i]);
}
END_TEST

/* ---- a device to play chunks on -------------------------------------------------------------- */

#define CHUNKS_MAX 600

typedef struct device {
    mt_policy *policy;
    size_t budget, resident;
    double (*seconds)(size_t samples);
    int records; /* recordings are filled */
    /* of the last batch */
    mt_plan plan;
    size_t chunks[CHUNKS_MAX], count;
    unsigned ooms;
    size_t discarded;
    size_t tried_too_large[CHUNKS_MAX];
} device;

static mt_policy *policy_new(mt_policy_options options, mt_backend_info info) {
    mt_policy *policy;

    options.size = sizeof(options);
    info.size = sizeof(info);
    ck_ok(mt_policy_new(&options, &info, &policy));
    return policy;
}

static device device_new(size_t budget, mt_policy_options options, mt_backend_info info) {
    device dev = {.budget = budget, .resident = 5000, .records = 1};

    dev.policy = policy_new(options, info);
    return dev;
}

static mt_memory device_memory(const device *dev) {
    mt_memory memory = {.size = sizeof(memory)};

    memory.budget_bytes = dev->budget;
    memory.allocated_bytes = memory.reserved_bytes = memory.peak_bytes = dev->resident;
    return memory;
}

/* Largest chunk that the device can run in its budget. */
static size_t device_fits(const device *dev) {
    size_t m = 0;

    while (dev->resident + fake_program_peak(&fake_train_program, m + 1) <= dev->budget) m++;
    return m;
}

static void sink_recording(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

static mt_status device_chunk(device *dev, mt_mode mode, size_t samples) {
    mt_event_sink sink = {mt_policy_recording(dev->policy, mode, samples), sink_recording};
    mt_chunk_result result = {.size = sizeof(result)};
    size_t peak = dev->resident + fake_program_peak(&fake_train_program, samples);

    if (dev->budget > 0 && peak > dev->budget) return mt_set_error(MT_EDEVMEM, "refused");
    if (sink.user != NULL && dev->records) fake_program_record(&fake_train_program, samples, &sink);
    result.peak_bytes = peak;
    result.loss_sum = result.units = (double)samples;
    result.seconds = dev->seconds != NULL ? dev->seconds(samples) : 0;
    return mt_policy_observe(dev->policy, mode, samples, dev->resident, &result);
}

/* An OOM of a chunk as the budget explains it. */
static mt_oom oom_explained(const device *dev, size_t chunk, unsigned attempt) {
    mt_oom oom = {.size = sizeof(oom), .mode = MT_TRAIN, .phase = MT_PHASE_ACCUMULATE};

    oom.chunk = chunk;
    oom.attempt = attempt;
    oom.refused = 1;
    oom.refused_in_use_bytes = dev->budget - 100;
    oom.refused_bytes = 4096;
    oom.allocated_before_bytes = dev->resident;
    oom.memory = device_memory(dev);
    return oom;
}

/* One that it does not: in use and request are within it. */
static mt_oom oom_injected(const device *dev, size_t chunk, unsigned attempt) {
    mt_oom oom = oom_explained(dev, chunk, attempt);

    oom.refused_in_use_bytes = dev->resident;
    oom.refused_bytes = 8;
    return oom;
}

static mt_action answer(device *dev, mt_oom oom) {
    mt_action action = (mt_action)99;

    ck_ok(mt_policy_oom(dev->policy, &oom, &action));
    ck_assert_int_ge((int)action, MT_ACTION_RETRY);
    ck_assert_int_le((int)action, MT_ACTION_GIVE_UP);
    return action;
}

static mt_status device_plan(device *dev, mt_mode mode, size_t samples) {
    mt_memory memory = device_memory(dev);

    return mt_policy_plan(dev->policy, mode, samples, &memory, &dev->plan);
}

/* All chunks of the plan, extended where it is open. */
static mt_status device_attempt(device *dev, mt_mode mode, size_t *failed) {
    mt_memory memory = device_memory(dev);
    mt_status status = MT_OK;
    size_t m;

    dev->count = 0;
    for (size_t i = 0; status == MT_OK; i++) {
        m = mt_plan_chunk(&dev->plan, i);
        if (m == 0 && !dev->plan.discard && mt_plan_covered(&dev->plan) < dev->plan.samples) {
            status = mt_policy_extend(dev->policy, mode, &memory, &dev->plan);
            m = mt_plan_chunk(&dev->plan, i);
        }
        if (m == 0 || status != MT_OK) return status;
        ck_assert_uint_lt(dev->count, CHUNKS_MAX);
        dev->chunks[dev->count++] = *failed = m;
        status = device_chunk(dev, mode, m);
    }
    return status;
}

/* One batch, as a trainer would run it. */
static mt_status device_batch(device *dev, mt_mode mode, size_t samples) {
    mt_status status = device_plan(dev, mode, samples);
    size_t failed = 0;

    dev->ooms = 0;
    dev->discarded = 0;
    while (status == MT_OK) {
        mt_action action;

        status = device_attempt(dev, mode, &failed);
        if (status == MT_OK && !dev->plan.discard) return MT_OK;
        if (status == MT_OK) {
            dev->discarded += mt_plan_covered(&dev->plan);
            status = device_plan(dev, mode, samples);
            continue;
        }
        dev->tried_too_large[dev->ooms++] = failed;
        action = answer(dev, oom_explained(dev, failed, dev->ooms));
        if (action == MT_ACTION_GIVE_UP) return MT_EDEVMEM;
        status = action == MT_ACTION_REPLAN ? device_plan(dev, mode, samples) : MT_OK;
    }
    return status;
}

static void check_covers(const device *dev, size_t samples) {
    size_t sum = 0;

    for (size_t i = 0; i < dev->count; i++) sum += dev->chunks[i];
    ck_assert_uint_eq(sum, samples);
}

/* The bytes that m samples need in all, resident ones included. */
static size_t need(size_t m) {
    return 5000 + fake_program_peak(&fake_train_program, m);
}

/* ---- learning ------------------------------------------------------------------------------- */

START_TEST(learning_open) {
    device dev =
        device_new(need(12), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    mt_memory memory = device_memory(&dev);

    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_int_eq(dev.plan.discard, 0);
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 2);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 2);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 1), 4);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_START);
    ck_ok(device_chunk(&dev, MT_TRAIN, 2));
    ck_ok(device_chunk(&dev, MT_TRAIN, 4));
    ck_ok(mt_policy_extend(dev.policy, MT_TRAIN, &memory, &dev.plan));
    ck_assert_uint_eq(mt_plan_covered(&dev.plan), 32);
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 5); /* 2, 4 and 26 in chunks of at most 12 */
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 2), 9);
    mt_policy_free(dev.policy);
}
END_TEST

/* The bytes are exact from the second chunk on, and recording is over. */
START_TEST(learning_is_exact) {
    device dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});

    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), 0);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    check_covers(&dev, 32);
    ck_assert_uint_eq(dev.ooms, 0);
    for (size_t m = 1; m < 100; m++)
        ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, m),
                          fake_program_peak(&fake_train_program, m));
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(dev.plan.predicted_peak_bytes, need(mt_plan_chunk(&dev.plan, 0)));
    ck_assert_ptr_null(mt_policy_recording(dev.policy, MT_TRAIN, 7));
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(learning_discards) {
    mt_backend_info info = {.normalises_over_batch = 1};
    device dev = device_new(need(12), (mt_policy_options){0}, info);

    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_int_eq(dev.plan.discard, 1);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 2);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 1), 4);
    ck_assert_uint_eq(mt_plan_covered(&dev.plan), 6);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(dev.discarded, 6);
    ck_assert_uint_eq(dev.count, 3); /* no tiny chunk is among those that count */
    check_covers(&dev, 32);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(dev.discarded, 0);
    mt_policy_free(dev.policy);
}
END_TEST

/* Evaluation does not normalise over the chunk: nothing is thrown away. It learns on its own. */
START_TEST(learning_by_mode) {
    mt_backend_info info = {.normalises_over_batch = 1};
    device dev = device_new(need(12), (mt_policy_options){0}, info);

    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_EVALUATE, 8), 0);
    ck_ok(device_plan(&dev, MT_EVALUATE, 32));
    ck_assert_int_eq(dev.plan.discard, 0);
    ck_assert_uint_lt(mt_plan_covered(&dev.plan), 32);
    ck_ok(device_batch(&dev, MT_EVALUATE, 32));
    ck_assert_uint_gt(mt_policy_predict_bytes(dev.policy, MT_EVALUATE, 8), 0);
    mt_policy_free(dev.policy);
}
END_TEST

/* Batches of every size as the first one, for every smallest legal chunk. */
START_TEST(learning_any_batch) {
    size_t samples = (size_t)_i + 1;

    for (size_t least = 0; least <= 9; least++)
        for (int normalises = 0; normalises < 2; normalises++) {
            mt_backend_info info = {.min_micro_batch = least, .normalises_over_batch = normalises};
            device dev = device_new(need(30), (mt_policy_options){0}, info);

            for (int step = 0; step < 3; step++) {
                ck_ok(device_batch(&dev, MT_TRAIN, samples));
                check_covers(&dev, samples);
                ck_assert_uint_eq(dev.ooms, 0);
                for (size_t i = 0; i < dev.count; i++)
                    ck_assert(dev.chunks[i] >= least || samples < least);
            }
            mt_policy_free(dev.policy);
        }
}
END_TEST

START_TEST(learning_from_the_smallest_legal) {
    mt_backend_info info = {.min_micro_batch = 8};
    mt_policy_options options = {.min_micro_batch = 3};
    device backend_says = device_new(need(40), (mt_policy_options){0}, info);
    device user_says = device_new(need(40), options, info);

    ck_ok(device_plan(&backend_says, MT_TRAIN, 64));
    ck_assert_uint_eq(mt_plan_chunk(&backend_says.plan, 0), 8);
    ck_assert_uint_gt(mt_plan_chunk(&backend_says.plan, 1), 8);
    ck_ok(device_plan(&user_says, MT_TRAIN, 64));
    ck_assert_uint_eq(mt_plan_chunk(&user_says.plan, 0), 3);
    ck_assert_uint_gt(mt_plan_chunk(&user_says.plan, 1), 3);
    mt_policy_free(backend_says.policy);
    mt_policy_free(user_says.policy);
}
END_TEST

/* A backend without recordings: sizes are found by trying, from the peaks that were measured. */
START_TEST(learning_without_recordings) {
    device dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});

    dev.records = 0;
    for (int step = 0; step < 20; step++) {
        ck_ok(device_batch(&dev, MT_TRAIN, 32));
        check_covers(&dev, 32);
    }
    ck_assert_uint_eq(dev.ooms, 0);
    ck_assert_uint_le(dev.count, 8);
    mt_policy_free(dev.policy);
}
END_TEST

/* A recording that an OOM cut short is not taken for that of a later chunk. */
START_TEST(learning_after_an_oom) {
    device dev = device_new(need(1), (mt_policy_options){0}, (mt_backend_info){0});
    mt_recording *recording = mt_policy_recording(dev.policy, MT_TRAIN, 2);
    mt_chunk_result result = {.size = sizeof(result)};

    ck_assert_ptr_nonnull(recording);
    mt_recording_event(recording, &dev, 100);
    answer(&dev, oom_explained(&dev, 2, 1));
    ck_ok(mt_policy_observe(dev.policy, MT_TRAIN, 1, dev.resident, &result));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 1), 0);
    mt_policy_free(dev.policy);
}
END_TEST

/* ---- sizes ---------------------------------------------------------------------------------- */

/*
 * Deterministic plans after learning, by brute force: as few balanced chunks as memory and bounds
 * allow. Rows whose bounds leave no legal cut are in bounds_conflict below.
 */
static const struct {
    size_t fits, samples, least, most;
    size_t chunks;
} cuts[] = {
    {32, 32, 0, 0, 1},   {31, 32, 0, 0, 2},   {16, 32, 0, 0, 2},   {15, 32, 0, 0, 3},
    {7, 32, 0, 0, 5},    {6, 32, 0, 0, 6},    {6, 6, 0, 0, 1},     {6, 7, 0, 0, 2},
    {100, 64, 0, 16, 4}, {100, 64, 0, 10, 7}, {12, 64, 0, 16, 6},  {12, 64, 4, 0, 6},
    {12, 64, 4, 8, 8},   {50, 5, 8, 0, 1},    {50, 17, 8, 0, 1},   {6, 512, 0, 0, 86},
    {300, 512, 0, 0, 2}, {100, 1, 0, 0, 1},   {100, 64, 0, 3, 22}, {100, 64, 0, 1, 64},
    {100, 64, 0, 2, 32},
};

START_TEST(cut_deterministic) {
    mt_policy_options options = {.deterministic = 1};
    device dev;

    options.min_micro_batch = cuts[_i].least;
    options.max_micro_batch = cuts[_i].most;
    dev = device_new(need(cuts[_i].fits), options, (mt_backend_info){0});
    ck_assert_uint_eq(device_fits(&dev), cuts[_i].fits);
    for (int step = 0; step < 4; step++) {
        ck_ok(device_batch(&dev, MT_TRAIN, cuts[_i].samples));
        check_covers(&dev, cuts[_i].samples);
        ck_assert_uint_eq(dev.ooms, 0);
        for (size_t i = 0; i < dev.count && cuts[_i].most > 0; i++)
            ck_assert_uint_le(dev.chunks[i], cuts[_i].most);
    }
    check_balanced(&dev.plan, cuts[_i].samples, cuts[_i].chunks);
    mt_policy_free(dev.policy);
}
END_TEST

/* The same for many budgets at once, without a table. */
START_TEST(cut_property) {
    size_t fits = 4 + (size_t)_i;
    mt_policy_options options = {.deterministic = 1};
    device dev = device_new(need(fits), options, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    for (size_t samples = 1; samples <= 64; samples++) {
        ck_ok(device_batch(&dev, MT_TRAIN, samples));
        ck_assert_uint_eq(dev.ooms, 0);
        check_balanced(&dev.plan, samples, (samples + fits - 1) / fits);
        ck_assert_uint_eq(dev.plan.predicted_peak_bytes, need(dev.chunks[0]));
    }
    mt_policy_free(dev.policy);
}
END_TEST

/* No cut of 10 has all chunks between 4 and 4: no size may be tried that has just failed. */
START_TEST(bounds_conflict) {
    mt_policy_options options = {.min_micro_batch = 4};
    device dev = device_new(need(4), options, (mt_backend_info){0});
    mt_status status = device_batch(&dev, MT_TRAIN, 10);

    ck_assert(status == MT_OK || status == MT_EDEVMEM);
    for (unsigned i = 1; i < dev.ooms; i++)
        ck_assert_msg(dev.tried_too_large[i] < dev.tried_too_large[i - 1],
                      "%zu samples did not fit, and were tried again", dev.tried_too_large[i]);
    dev.budget = need(40); /* there is room now: what failed before is no obstacle */
    for (int step = 0; step < 3; step++) ck_ok(device_batch(&dev, MT_TRAIN, 10));
    check_covers(&dev, 10);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(no_budget) {
    mt_backend_info info = {.normalises_over_batch = _i};
    device dev = device_new(0, (mt_policy_options){0}, info);

    for (size_t samples = 1; samples < 600; samples += 37) {
        ck_ok(device_plan(&dev, MT_TRAIN, samples));
        check_balanced(&dev.plan, samples, 1);
        ck_assert_int_eq(dev.plan.discard, 0);
        ck_ok(device_chunk(&dev, MT_TRAIN, samples));
    }
    mt_policy_free(dev.policy);
}
END_TEST

/* The budget is not known any more after the sizes are: whole batches, and no hanging. */
START_TEST(budget_forgotten) {
    device dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    dev.budget = 0;
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 1);
    mt_policy_free(dev.policy);
}
END_TEST

/* More budget than any memory: the same. */
START_TEST(budget_endless) {
    static const size_t budgets[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 62};
    device dev = device_new(budgets[_i], (mt_policy_options){0}, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(mt_plan_chunks(&dev.plan), 1);
    mt_policy_free(dev.policy);
}
END_TEST

/* Known not to fit: said before anything is run. */
START_TEST(nothing_fits) {
    static const size_t least[] = {0, 8};
    mt_policy_options options = {.min_micro_batch = least[_i]};
    device dev = device_new(need(24), options, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    dev.budget = need(least[_i] > 0 ? least[_i] : 1) - 1;
    ck_status(device_plan(&dev, MT_TRAIN, 32), MT_EDEVMEM);
    ck_assert_uint_gt(strlen(mt_last_error()), 20); /* it says what is missing */
    dev.budget++;
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), least[_i] > 0 ? least[_i] : 1);
    dev.budget = need(24);
    ck_ok(device_batch(&dev, MT_TRAIN, 32));
    mt_policy_free(dev.policy);
}
END_TEST

/* A budget in which not even the first recording fits is found out by trying. */
START_TEST(first_recording_does_not_fit) {
    device dev = device_new(need(1), (mt_policy_options){0}, (mt_backend_info){0});
    device none = device_new(need(1) - 1, (mt_policy_options){0}, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 8));
    check_covers(&dev, 8);
    ck_assert_uint_le(dev.ooms, 3);
    ck_status(device_batch(&none, MT_TRAIN, 8), MT_EDEVMEM);
    ck_assert_uint_le(none.ooms, 5);
    mt_policy_free(dev.policy);
    mt_policy_free(none.policy);
}
END_TEST

START_TEST(fixed_micro_batch) {
    static const size_t samples[] = {32, 33, 5, 1, 64};
    mt_policy_options options = {.micro_batch = 8};
    device dev = device_new(need(30), options, (mt_backend_info){0});

    for (int i = 0; i < LENGTH(samples); i++) {
        ck_ok(device_batch(&dev, MT_TRAIN, samples[i]));
        check_covers(&dev, samples[i]);
        ck_assert_uint_eq(dev.count, (samples[i] + 7) / 8);
        ck_assert_int_eq(dev.plan.reason, MT_PLAN_USER);
        for (size_t j = 0; j < dev.count; j++) ck_assert_uint_le(dev.chunks[j], 8);
    }
    ck_assert_uint_eq(dev.chunks[0], 8);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(plans_allocate_nothing) {
    mt_memory memory;
    device dev;

    ck_ok(counting_install());
    dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});
    counting_fail_at(1, 1);
    memory = device_memory(&dev);
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 32, &memory, &dev.plan));
    counting_fail_at(0, 0);
    for (int step = 0; step < 3; step++) ck_ok(device_batch(&dev, MT_TRAIN, 32));
    counting_fail_at(1, 1);
    for (size_t samples = 1; samples < 64; samples++) ck_ok(device_batch(&dev, MT_TRAIN, samples));
    ck_assert_uint_eq(counting_requests(), 0);
    mt_policy_free(dev.policy);
    ck_assert_uint_eq(counting_live(), 0);
}
END_TEST

/* ---- time ----------------------------------------------------------------------------------- */

/* 41 s an epoch at 16 samples and 266 s at 24: seven times slower beyond the edge. */
static double cliff(size_t m) {
    return m > 16 ? 0.266 * (double)m : 0.02 + 0.041 * (double)m;
}

/* Larger is always better. */
static double steady(size_t m) {
    return 0.05 + 0.01 * (double)m;
}

/* 12 % slower at 64 than at 16, as measured for a ResNet-18. */
static double shallow(size_t m) {
    return (double)m * (m > 32 ? 0.0112 : m > 8 ? 0.0100 : 0.0140);
}

static size_t largest_chunk_of_the_last(device *dev, size_t samples, int steps, int last) {
    size_t largest = 0;

    for (int step = 0; step < steps; step++) {
        ck_ok(device_batch(dev, MT_TRAIN, samples));
        check_covers(dev, samples);
        for (size_t i = 0; i < dev->count && step >= steps - last; i++)
            largest = dev->chunks[i] > largest ? dev->chunks[i] : largest;
    }
    return largest;
}

START_TEST(time_cliff) {
    device dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});
    size_t largest;

    dev.seconds = cliff;
    largest = largest_chunk_of_the_last(&dev, 96, 60, 40);
    ck_assert_uint_le(largest, 16);
    ck_assert_uint_ge(largest, 8);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_THROUGHPUT);
    ck_assert_double_eq_tol(mt_policy_predict_seconds(dev.policy, MT_TRAIN, dev.chunks[0]),
                            cliff(dev.chunks[0]), 1e-12);
    ck_assert_double_eq(mt_policy_predict_seconds(dev.policy, MT_TRAIN, 199), 0);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(time_steady) {
    device dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});

    dev.seconds = steady;
    ck_assert_uint_eq(largest_chunk_of_the_last(&dev, 96, 60, 40), 96);
    ck_assert_uint_eq(dev.count, 1);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(time_shallow) {
    device dev = device_new(need(200), (mt_policy_options){0}, (mt_backend_info){0});
    size_t largest;

    dev.seconds = shallow;
    largest = largest_chunk_of_the_last(&dev, 64, 60, 40);
    ck_assert_uint_le(largest, 32);
    ck_assert_uint_gt(largest, 8);
    mt_policy_free(dev.policy);
}
END_TEST

/* The fastest of those that fit, not the fastest. */
START_TEST(time_within_memory) {
    device dev = device_new(need(20), (mt_policy_options){0}, (mt_backend_info){0});

    dev.seconds = steady;
    ck_assert_uint_eq(largest_chunk_of_the_last(&dev, 96, 60, 40), 20);
    ck_assert_uint_eq(dev.ooms, 0);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(time_deterministic) {
    mt_policy_options options = {.deterministic = 1};
    device dev[2];

    for (int d = 0; d < 2; d++) dev[d] = device_new(need(40), options, (mt_backend_info){0});
    dev[0].seconds = cliff;
    dev[1].seconds = steady;
    for (int step = 0; step < 30; step++) {
        for (int d = 0; d < 2; d++) ck_ok(device_batch(&dev[d], MT_TRAIN, step % 3 == 2 ? 50 : 96));
        ck_assert_uint_eq(dev[0].count, dev[1].count);
        ck_assert_mem_eq(dev[0].chunks, dev[1].chunks, dev[0].count * sizeof(size_t));
    }
    check_balanced(&dev[0].plan, 50, 2);
    mt_policy_free(dev[0].policy);
    mt_policy_free(dev[1].policy);
}
END_TEST

/* ---- room ----------------------------------------------------------------------------------- */

START_TEST(room_shrinks_and_grows) {
    mt_policy_options options = {.deterministic = 1};
    device dev = device_new(need(40), options, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 2);
    dev.budget = need(20);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 4);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_BUDGET);
    ck_assert_uint_eq(dev.ooms, 0);
    dev.budget = need(70);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 1);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_GROWTH);
    mt_policy_free(dev.policy);
}
END_TEST

/* More allocated at the start leaves as much less room as a smaller budget. */
START_TEST(room_is_what_is_left) {
    mt_policy_options options = {.deterministic = 1};
    device dev = device_new(need(40), options, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    dev.resident += need(40) - need(20);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 4);
    mt_policy_free(dev.policy);
}
END_TEST

START_TEST(another_batch_size_is_a_start) {
    device dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_ok(device_plan(&dev, MT_TRAIN, 17));
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_START);
    mt_policy_free(dev.policy);
}
END_TEST

/* ---- OOM ------------------------------------------------------------------------------------ */

/* A device that has learnt, at a plan of two chunks of 32. */
static device oom_device(mt_policy_options options) {
    device dev = device_new(need(40), options, (mt_backend_info){0});

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    return dev;
}

/*
 * The model is wrong, chunks of 32 do not fit: smaller ones are planned, and 32 is never planned
 * again in the same room.
 */
START_TEST(oom_by_the_budget) {
    mt_policy_options options = {.deterministic = 1};
    device dev = oom_device(options);
    size_t failed = mt_plan_chunk(&dev.plan, 0);

    ck_assert_uint_eq(failed, 32);
    ck_assert_int_eq(answer(&dev, oom_explained(&dev, failed, 1)), MT_ACTION_REPLAN);
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_OOM);
    for (int step = 0; step < 20; step++) {
        ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), failed);
        ck_ok(device_batch(&dev, MT_TRAIN, 64));
        ck_ok(device_plan(&dev, MT_TRAIN, 64));
    }
    mt_policy_free(dev.policy);
}
END_TEST

/* Refused again and again: each plan is smaller than what has failed, until none is left. */
START_TEST(oom_again_and_again) {
    mt_policy_options options = {.deterministic = _i};
    device dev = oom_device(options);
    mt_action action = MT_ACTION_REPLAN;
    mt_status status = MT_OK;
    unsigned attempt = 0;
    size_t last = SIZE_MAX;

    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    while (status == MT_OK && action != MT_ACTION_GIVE_UP) {
        size_t m = mt_plan_chunk(&dev.plan, 0);

        if (action == MT_ACTION_REPLAN) ck_assert_uint_lt(m, last);
        last = m;
        ck_assert_uint_le(++attempt, 17);
        action = answer(&dev, oom_explained(&dev, m, attempt));
        if (action == MT_ACTION_REPLAN) status = device_plan(&dev, MT_TRAIN, 64);
    }
    ck_assert(status == MT_EDEVMEM || status == MT_OK);
    mt_policy_free(dev.policy);
}
END_TEST

/* Injected: the same plan once more, and nothing is learnt. */
START_TEST(oom_not_by_the_budget) {
    device dev = oom_device((mt_policy_options){.deterministic = 1});
    mt_plan before = dev.plan;
    size_t bytes = mt_policy_predict_bytes(dev.policy, MT_TRAIN, 32);

    for (int step = 0; step < 10; step++) {
        ck_assert_int_eq(answer(&dev, oom_injected(&dev, 32, 1)), MT_ACTION_RETRY);
        ck_ok(device_plan(&dev, MT_TRAIN, 64));
        check_balanced(&dev.plan, 64, mt_plan_chunks(&before));
        ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 32), bytes);
        ck_ok(device_batch(&dev, MT_TRAIN, 64));
    }
    mt_policy_free(dev.policy);
}
END_TEST

/* Whatever is answered to endless refusals, it ends; the next step is as if nothing had been. */
START_TEST(oom_injected_for_ever) {
    static const unsigned retries[] = {0, 1, 3, 30};
    mt_policy_options options = {.deterministic = 1, .max_retries = retries[_i]};
    device dev = oom_device(options);
    unsigned bound = retries[_i] > 0 ? retries[_i] : 16, attempt = 0;
    mt_action action;

    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    do {
        size_t m = mt_plan_chunk(&dev.plan, 0);

        ck_assert_uint_le(++attempt, bound + 1);
        action = answer(&dev, oom_injected(&dev, m, attempt));
        if (action == MT_ACTION_REPLAN) ck_ok(device_plan(&dev, MT_TRAIN, 64));
    } while (action != MT_ACTION_GIVE_UP);
    ck_assert_uint_gt(attempt, 1);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 2);
    mt_policy_free(dev.policy);
}
END_TEST

/* Fixed chunks, by replay or by the options, are tried again but never cut anew. */
START_TEST(oom_fixed_plan) {
    mt_policy_options options = {.micro_batch = _i / 2 == 0 ? 0 : 32};
    device dev = oom_device(options);
    mt_action action;
    unsigned attempt = 0;

    do {
        mt_oom oom =
            _i % 2 == 0 ? oom_explained(&dev, 32, ++attempt) : oom_injected(&dev, 32, ++attempt);

        oom.plan_is_fixed = _i / 2 == 0;
        ck_assert_uint_le(attempt, 17);
        action = answer(&dev, oom);
        ck_assert_int_ne(action, MT_ACTION_REPLAN);
    } while (action != MT_ACTION_GIVE_UP);
    mt_policy_free(dev.policy);
}
END_TEST

/* Outside of a chunk there is nothing to make smaller. */
START_TEST(oom_outside_a_chunk) {
    static const mt_phase phases[] = {MT_PHASE_BEGIN, MT_PHASE_APPLY};
    device dev = oom_device((mt_policy_options){.deterministic = 1});
    mt_oom oom = {.size = sizeof(oom), .phase = phases[_i]};
    unsigned attempt = 0;

    oom.memory = device_memory(&dev);
    do {
        oom.attempt = ++attempt;
        ck_assert_uint_le(attempt, 17);
    } while (answer(&dev, oom) != MT_ACTION_GIVE_UP);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 2);
    mt_policy_free(dev.policy);
}
END_TEST

/* What failed in little room may be tried in more. */
START_TEST(oom_is_forgotten_in_more_room) {
    device dev = oom_device((mt_policy_options){.deterministic = 1});

    ck_assert_int_eq(answer(&dev, oom_explained(&dev, 32, 1)), MT_ACTION_REPLAN);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_assert_uint_lt(dev.chunks[0], 32);
    dev.budget = 4 * need(64);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 1);
    mt_policy_free(dev.policy);
}
END_TEST

/* What once failed in little room is no reason against a cut that is made for another reason. */
START_TEST(oom_long_ago) {
    mt_policy_options options = {.deterministic = 1};
    device dev = device_new(need(12), options, (mt_backend_info){0});
    mt_action action = MT_ACTION_RETRY;

    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    ck_assert_int_eq(answer(&dev, oom_explained(&dev, 5, 1)), MT_ACTION_REPLAN);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    dev.budget = need(400);
    ck_ok(device_batch(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 1);
    for (unsigned attempt = 1; attempt < 8 && action != MT_ACTION_REPLAN; attempt++) {
        action = answer(&dev, oom_injected(&dev, 64, attempt));
        ck_assert_int_ne(action, MT_ACTION_GIVE_UP);
    }
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    ck_assert_uint_ge(mt_plan_chunks(&dev.plan), 2);
    ck_ok(device_plan(&dev, MT_TRAIN, 64));
    check_balanced(&dev.plan, 64, 1); /* nothing was learnt */
    mt_policy_free(dev.policy);
}
END_TEST

/* No budget is known: sizes shrink by a third, not by one chunk, until they fit. */
START_TEST(oom_without_a_budget) {
    device dev = device_new(0, (mt_policy_options){0}, (mt_backend_info){0});
    mt_action action = MT_ACTION_REPLAN;
    size_t chunk = 90;
    unsigned attempt = 0;

    ck_ok(device_plan(&dev, MT_TRAIN, 90));
    ck_ok(device_chunk(&dev, MT_TRAIN, 4));
    while (chunk > 8) {
        mt_oom oom = oom_explained(&dev, chunk, ++attempt);

        oom.memory.budget_bytes = 0;
        action = answer(&dev, oom);
        ck_assert_int_eq(action, MT_ACTION_REPLAN);
        ck_ok(device_plan(&dev, MT_TRAIN, 90));
        ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), chunk);
        chunk = mt_plan_chunk(&dev.plan, 0);
    }
    ck_assert_uint_le(attempt, 8);
    mt_policy_free(dev.policy);
}
END_TEST

/* Eight refusals without evidence that never come again: the plan is as before some batches later. */
START_TEST(oom_that_passes_is_forgotten) {
    device dev =
        device_new(need(64), (mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    size_t before, after;

    for (int step = 0; step < 2; step++) ck_ok(device_batch(&dev, MT_TRAIN, 128));
    before = mt_plan_chunks(&dev.plan);
    for (unsigned attempt = 1; attempt <= 8; attempt++) {
        mt_oom oom = oom_explained(&dev, mt_plan_chunk(&dev.plan, 0), attempt);

        oom.refused = oom.refused_bytes = oom.refused_in_use_bytes = 0;
        if (answer(&dev, oom) == MT_ACTION_REPLAN) ck_ok(device_plan(&dev, MT_TRAIN, 128));
    }
    ck_assert_uint_gt(mt_plan_chunks(&dev.plan), before);
    for (int step = 0; step < 100; step++) ck_ok(device_batch(&dev, MT_TRAIN, 128));
    after = mt_plan_chunks(&dev.plan);
    ck_assert_uint_eq(after, before);
    ck_assert_uint_eq(dev.ooms, 0);
    mt_policy_free(dev.policy);
}
END_TEST

/* ---- cache ---------------------------------------------------------------------------------- */

static mt_memory cached(size_t allocated, size_t reserved, uint64_t retries) {
    mt_memory memory = {.size = sizeof(memory)};

    memory.budget_bytes = 1000;
    memory.allocated_bytes = allocated;
    memory.reserved_bytes = reserved;
    memory.alloc_retries = retries;
    return memory;
}

static void spend(mt_policy *policy, double seconds) {
    mt_chunk_result result = {.size = sizeof(result), .seconds = seconds};

    ck_ok(mt_policy_observe(policy, MT_TRAIN, 8, 0, &result));
}

static const struct {
    const char *name;
    int every;
    size_t allocated, reserved;
    size_t predicted;
    uint64_t retries; /* there were 5 before */
    mt_mode before, now;
    mt_clear_reason expected;
} clears[] = {
    {"nothing cached", 0, 300, 300, 900, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"cache and peak fit", 0, 300, 400, 900, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"cache and peak do not fit", 0, 300, 401, 900, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_EVIDENCE},
    {"peak not known", 0, 300, 390, 0, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"the allocator had to retry", 0, 300, 390, 400, 6, MT_TRAIN, MT_TRAIN, MT_CLEAR_EVIDENCE},
    {"retries of before", 0, 300, 390, 400, 5, MT_TRAIN, MT_TRAIN, MT_CLEAR_NOT},
    {"another mode, large cache", 0, 300, 401, 0, 5, MT_TRAIN, MT_EVALUATE, MT_CLEAR_EVIDENCE},
    {"another mode, small cache", 0, 300, 400, 0, 5, MT_TRAIN, MT_EVALUATE, MT_CLEAR_NOT},
    {"and back, large cache", 0, 300, 401, 0, 5, MT_EVALUATE, MT_TRAIN, MT_CLEAR_EVIDENCE},
    {"never, with all evidence", -1, 300, 900, 900, 9, MT_TRAIN, MT_EVALUATE, MT_CLEAR_NOT},
};

START_TEST(clear_automatic) {
    mt_policy_options options = {.clear_every = clears[_i].every,
                                 .eval_clear_every = clears[_i].every};
    mt_policy *policy = policy_new(options, (mt_backend_info){0});
    mt_memory memory = cached(300, 300, 5);

    spend(policy, 100);
    ck_assert_int_eq(mt_policy_clear(policy, clears[_i].before, &memory, 0), MT_CLEAR_NOT);
    memory = cached(clears[_i].allocated, clears[_i].reserved, clears[_i].retries);
    ck_assert_msg(mt_policy_clear(policy, clears[_i].now, &memory, clears[_i].predicted) ==
                      clears[_i].expected,
                  "%s", clears[_i].name);
    mt_policy_free(policy);
}
END_TEST

/* Each N-th step, whatever the evidence; the two modes count for themselves. */
START_TEST(clear_every) {
    mt_policy_options options = {.clear_every = 5, .eval_clear_every = 3};
    mt_policy *policy = policy_new(options, (mt_backend_info){0});
    mt_memory memory = cached(300, 300, 0);
    int cleared[2] = {0, 0}, last[2] = {-1, -1};
    static const int every[2] = {5, 3};

    for (int call = 0; call < 60; call++)
        for (int mode = 0; mode < 2; mode++) {
            mt_clear_reason reason = mt_policy_clear(policy, (mt_mode)mode, &memory, 5000);

            if (reason == MT_CLEAR_NOT) continue;
            ck_assert_int_eq(reason, MT_CLEAR_EVERY);
            if (last[mode] >= 0) ck_assert_int_eq(call - last[mode], every[mode]);
            last[mode] = call;
            cleared[mode]++;
        }
    ck_assert_int_ge(cleared[0], 11);
    ck_assert_int_le(cleared[0], 12);
    ck_assert_int_ge(cleared[1], 19);
    ck_assert_int_le(cleared[1], 20);
    mt_policy_free(policy);
}
END_TEST

/* Evidence at every step: the clears cost no more than 1 % of the time, one of them apart. */
START_TEST(clear_costs_at_most_one_percent) {
    static const double costs[] = {0.001, 0.05, 0.5, 30};
    mt_clear_result result = {.size = sizeof(result), .seconds = costs[_i]};
    mt_policy *policy = policy_new((mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = cached(300, 900, 0);
    double time = 0, cost = 0;

    for (int step = 0; step < 10000; step++) {
        if (mt_policy_clear(policy, MT_TRAIN, &memory, 900) == MT_CLEAR_EVIDENCE) {
            mt_policy_cleared(policy, &result);
            cost += costs[_i];
        }
        spend(policy, 0.5);
        time += 0.5;
        ck_assert_double_le(cost, 0.01 * time + costs[_i]);
    }
    ck_assert_double_ge(cost, costs[_i] < 0.005 ? 9999 * costs[_i] : 0.004 * time);
    mt_policy_free(policy);
}
END_TEST

static Suite *suite_policy(void) {
    Suite *suite = suite_create("policy");
    TCase *plan = suite_case(suite, "plan"), *learning = suite_case(suite, "learning"),
          *sizes = suite_case(suite, "sizes"), *time = suite_case(suite, "time"),
          *room = suite_case(suite, "room"), *oom = suite_case(suite, "oom"),
          *cache = suite_case(suite, "cache"), *endless = suite_case(suite, "endless");

    tcase_set_timeout(endless, 5);
    tcase_set_tags(oom, "oom");
    tcase_add_test(plan, balanced);
    tcase_add_test(plan, balanced_refused);
    tcase_add_test(plan, plan_by_hand);
    tcase_add_test(plan, words);
    tcase_add_test(learning, learning_open);
    tcase_add_test(learning, learning_is_exact);
    tcase_add_test(learning, learning_discards);
    tcase_add_test(learning, learning_by_mode);
    tcase_add_loop_test(learning, learning_any_batch, 0, 40);
    tcase_add_test(learning, learning_from_the_smallest_legal);
    tcase_add_test(learning, learning_without_recordings);
    tcase_add_test(learning, learning_after_an_oom);
    tcase_add_loop_test(sizes, cut_deterministic, 0, LENGTH(cuts));
    tcase_add_loop_test(sizes, cut_property, 0, 70);
    tcase_add_test(sizes, bounds_conflict);
    tcase_add_loop_test(sizes, no_budget, 0, 2);
    tcase_add_loop_test(sizes, nothing_fits, 0, 2);
    tcase_add_test(sizes, first_recording_does_not_fit);
    tcase_add_test(sizes, fixed_micro_batch);
    tcase_add_test(sizes, plans_allocate_nothing);
    tcase_add_test(endless, budget_forgotten);
    tcase_add_loop_test(endless, budget_endless, 0, 3);
    tcase_add_test(time, time_cliff);
    tcase_add_test(time, time_steady);
    tcase_add_test(time, time_shallow);
    tcase_add_test(time, time_within_memory);
    tcase_add_test(time, time_deterministic);
    tcase_add_test(room, room_shrinks_and_grows);
    tcase_add_test(room, room_is_what_is_left);
    tcase_add_test(room, another_batch_size_is_a_start);
    tcase_add_test(oom, oom_by_the_budget);
    tcase_add_loop_test(oom, oom_again_and_again, 0, 2);
    tcase_add_test(oom, oom_not_by_the_budget);
    tcase_add_loop_test(oom, oom_injected_for_ever, 0, 4);
    tcase_add_loop_test(oom, oom_fixed_plan, 0, 4);
    tcase_add_loop_test(oom, oom_outside_a_chunk, 0, 2);
    tcase_add_test(oom, oom_is_forgotten_in_more_room);
    tcase_add_test(oom, oom_long_ago);
    tcase_add_test(oom, oom_without_a_budget);
    tcase_add_test(oom, oom_that_passes_is_forgotten);
    tcase_add_loop_test(cache, clear_automatic, 0, LENGTH(clears));
    tcase_add_test(cache, clear_every);
    tcase_add_loop_test(cache, clear_costs_at_most_one_percent, 0, 4);
    return suite;
}

int main(void) {
    return suite_run(suite_policy());
}
