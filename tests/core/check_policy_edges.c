/*
 * check_policy_edges.c - conditions that a run seldom or never meets: arguments that make no sense, host
 * memory that has run out, tables that are full. With the other suites of the policy they leave no
 * branch of it untried (make coverage).
 */
#include "counting_allocator.h"
#include "policy_tests.h"
#include "rungs.h"

#include <math.h>

/* ---- arguments ------------------------------------------------------------------------------ */

static const struct {
    mt_policy_options options;
    const char *named;
} bad_options[] = {
    {{.micro_batch = 3, .min_micro_batch = 4}, "micro_batch 3 is below min_micro_batch 4"},
    {{.micro_batch = 9, .max_micro_batch = 8}, "micro_batch 9 is above max_micro_batch 8"},
    {{.min_micro_batch = 9, .max_micro_batch = 8}, "min_micro_batch 9 is above max_micro_batch 8"},
    {{.clear_every = -3}, "clear_every -3"},
    {{.eval_clear_every = -2}, "eval_clear_every -2"},
    {{.keep_chunks = -2}, "keep_chunks is -2"},
    {{.keep_chunks = 2}, "keep_chunks is 2"},
    {{.allow_rungs = BIT(CPU) | BIT(AMP), .forbid_rungs = BIT(AMP)},
     "allow_rungs 0x14, forbid_rungs 0x4; accepted: no rung in both"},
};

TEST_LOOP("arguments", options_are_checked, LENGTH(bad_options)) {
    mt_policy_options options = bad_options[_i].options;
    mt_policy *policy;

    options.size = sizeof(options);
    ck_refused(mt_policy_new(&options, NULL, &policy), MT_EINVAL, bad_options[_i].named);
    ck_assert_ptr_null(policy);
}

/* What the backend says of its smallest chunk; a smallest one of the user's goes before it. */
static const struct {
    mt_policy_options options;
    const char *named; /* NULL: accepted */
} of_backend[] = {
    {{.micro_batch = 3}, "micro_batch is 3; the backend accepts chunks of at least 4"},
    {{.max_micro_batch = 3}, "max_micro_batch is 3; the backend accepts chunks of at least 4"},
    {{.micro_batch = 4, .max_micro_batch = 4}, NULL},
    {{.min_micro_batch = 2, .micro_batch = 3, .max_micro_batch = 3}, NULL},
};

TEST_LOOP("arguments", options_and_the_backend, LENGTH(of_backend)) {
    mt_backend_info info = {.size = sizeof(info), .min_micro_batch = 4};
    mt_policy_options options = of_backend[_i].options;
    const char *named = of_backend[_i].named;
    mt_policy *policy;

    options.size = sizeof(options);
    ck_status(mt_policy_new(&options, &info, &policy), named != NULL ? MT_EINVAL : MT_OK);
    if (named != NULL) ck_contains(mt_last_error(), named);
    mt_policy_free(policy);
}

/* Options that lie on the bounds of each other. */
TEST_LOOP("arguments", options_on_the_bounds, 5) {
    static const mt_policy_options options[] = {
        {.micro_batch = 4, .min_micro_batch = 4},
        {.micro_batch = 8, .max_micro_batch = 8},
        {.min_micro_batch = 8, .max_micro_batch = 8},
        {.clear_every = -1, .eval_clear_every = -1, .keep_chunks = -1},
        {.keep_chunks = 1, .allow_rungs = BIT(AMP), .forbid_rungs = BIT(CPU)},
    };

    mt_policy_free(policy_new(options[_i], (mt_backend_info){0}));
}

TEST("arguments", arguments_are_checked) {
    mt_chunk_result result = {.size = sizeof(result)};
    mt_backend_info info = {.size = 1};
    const mt_mode bad = (mt_mode)2;
    mt_policy *none;
    mt_action action;
    mt_plan plan;

    dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = device_memory(&dev);
    mt_oom oom = oom_explained(&dev, 4, 1);
    mt_policy *p = dev.policy;
    ck_status(mt_policy_new(NULL, NULL, NULL), MT_EINVAL);
    ck_status(mt_policy_new(NULL, &info, &none), MT_EINVAL);
    ck_status(mt_policy_plan(p, bad, 8, &memory, &plan), MT_EINVAL);
    ck_status(mt_policy_plan(p, MT_TRAIN, 0, &memory, &plan), MT_EINVAL);
    ck_status(mt_policy_plan(p, MT_TRAIN, 8, NULL, &plan), MT_EINVAL);
    ck_status(mt_policy_plan(p, MT_TRAIN, 8, &memory, NULL), MT_EINVAL);
    ck_assert_ptr_null(mt_policy_recording(p, bad, 8));
    ck_assert_ptr_null(mt_policy_recording(p, MT_TRAIN, 0));
    ck_assert_ptr_null(mt_policy_recording(NULL, MT_TRAIN, 8));
    ck_status(mt_policy_observe(p, bad, 8, 0, &result), MT_EINVAL);
    ck_status(mt_policy_observe(p, MT_TRAIN, 0, 0, &result), MT_EINVAL);
    ck_status(mt_policy_observe(p, MT_TRAIN, 8, 0, NULL), MT_EINVAL);
    ck_status(mt_policy_oom(p, &oom, NULL), MT_EINVAL);
    ck_status(mt_policy_oom(p, NULL, &action), MT_EINVAL);
    oom.mode = bad;
    ck_status(mt_policy_oom(p, &oom, &action), MT_EINVAL);
    ck_assert_int_eq(action, MT_ACTION_GIVE_UP);
    ck_assert_double_eq(mt_policy_predict_seconds(p, bad, 8), 0);
    ck_assert_double_eq(mt_policy_predict_seconds(p, MT_TRAIN, 0), 0);
    ck_assert_uint_eq(mt_policy_predict_bytes(p, bad, 8), 0);
    ck_assert_uint_eq(mt_policy_predict_bytes(p, MT_TRAIN, 0), 0);
    ck_assert_int_eq(mt_policy_clear(p, bad, &memory), MT_CLEAR_NOT);
    ck_assert_int_eq(mt_policy_clear(p, MT_TRAIN, NULL), MT_CLEAR_NOT);
    ck_assert_int_eq(mt_policy_clear(NULL, MT_TRAIN, &memory), MT_CLEAR_NOT);
    ck_assert_uint_eq(mt_policy_predict_bytes(p, bad, 8), 0);
    ck_assert_uint_eq(mt_policy_predict_bytes(NULL, MT_TRAIN, 8), 0);
    ck_assert_double_eq(mt_policy_predict_seconds(p, bad, 8), 0);
    ck_assert_double_eq(mt_policy_predict_seconds(p, MT_TRAIN, 0), 0);
    ck_assert_double_eq(mt_policy_predict_seconds(NULL, MT_TRAIN, 8), 0);
}

/* A struct whose size is not set would be read as all zeroes. */
TEST("arguments", structs_have_sizes) {
    mt_memory no_memory = {0};
    mt_chunk_result no_result = {0};
    mt_oom no_oom = {0};
    mt_action action;
    mt_plan plan;

    dev = device_new(need(12), (mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = device_memory(&dev);
    ck_refused(mt_policy_plan(dev.policy, MT_TRAIN, 8, &no_memory, &plan), MT_EINVAL,
               "mt_policy_plan: memory->size is not set");
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, 8, &memory, &plan));
    ck_refused(mt_policy_extend(dev.policy, MT_TRAIN, &no_memory, &plan), MT_EINVAL,
               "mt_policy_extend: memory->size is not set");
    plan.size = 0;
    ck_refused(mt_policy_extend(dev.policy, MT_TRAIN, &memory, &plan), MT_EINVAL,
               "mt_policy_extend: plan is not of mt_policy_plan");
    ck_refused(mt_policy_observe(dev.policy, MT_TRAIN, 8, 0, &no_result), MT_EINVAL,
               "mt_policy_observe: result->size is not set");
    ck_refused(mt_policy_oom(dev.policy, &no_oom, &action), MT_EINVAL,
               "mt_policy_oom: oom->size is not set");
}

/* What extends a plan: an open one, with groups left for it. */
TEST("arguments", extend_is_checked) {
    mt_plan plan = {.size = sizeof(plan), .samples = 8, .groups = 1, .group = {{8, 1}}};

    dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = device_memory(&dev);
    ck_status(mt_policy_extend(dev.policy, (mt_mode)2, &memory, &plan), MT_EINVAL);
    ck_status(mt_policy_extend(dev.policy, MT_TRAIN, NULL, &plan), MT_EINVAL);
    ck_status(mt_policy_extend(dev.policy, MT_TRAIN, &memory, NULL), MT_EINVAL);
    plan.groups = MT_PLAN_GROUPS + 1;
    ck_refused(mt_policy_extend(dev.policy, MT_TRAIN, &memory, &plan), MT_EINVAL,
               "plan->groups is 9; at most 8");
    plan.groups = 1;
    ck_refused(mt_policy_extend(dev.policy, MT_TRAIN, &memory, &plan), MT_EINVAL,
               "covers its 8 samples already");
}

/* A plan by hand that has so many groups already is refused, not written past its end. */
TEST_LOOP("arguments", extend_a_full_plan, 2) {
    mt_plan plan = {.size = sizeof(plan), .samples = 200};

    dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});
    mt_memory memory = device_memory(&dev);
    plan.groups = 7 + (size_t)_i; /* a group short, or full */
    for (size_t g = 0; g < plan.groups; g++) plan.group[g] = (mt_chunk_group){2, 1};
    ck_ok(device_chunk(&dev, MT_TRAIN, 2));
    ck_ok(device_chunk(&dev, MT_TRAIN, 4));
    ck_refused(mt_policy_extend(dev.policy, MT_TRAIN, &memory, &plan), MT_EINVAL,
               "too many groups");
    ck_assert_uint_le(plan.groups, MT_PLAN_GROUPS);
}

/* ---- host memory ----------------------------------------------------------------------------- */

/* Each request in turn: an error, nothing kept, and the same call goes through afterwards. */
TEST("host memory", new_without_host_memory) {
    mt_policy *policy = NULL;
    size_t n = 0, live;

    ck_ok(counting_install());
    live = counting_live();
    do {
        mt_status status;

        counting_fail_at(++n, 0);
        status = mt_policy_new(NULL, NULL, &policy);
        ck_assert(status == MT_OK || status == MT_ENOMEM);
        if (status == MT_OK) break;
        ck_assert_ptr_null(policy);
        ck_contains(mt_last_error(), "out of host memory");
        ck_assert_uint_eq(counting_live(), live);
    } while (n < 100);
    ck_assert_uint_ge(n, 4); /* the policy and its first two kinds */
    ck_assert_uint_lt(n, 100);
    mt_policy_free(policy);
}

/* A shape not seen before needs memory: each call says so, and leaves what is known alone. */
static mt_status ask(int call) {
    mt_memory memory = device_memory(&dev);
    mt_chunk_result result = {.size = sizeof(result)};
    mt_oom oom = oom_explained(&dev, 4, 1);
    mt_plan open = {.size = sizeof(open), .samples = 8, .groups = 1, .group = {{4, 1}}};
    mt_action action;

    switch (call) {
    case 0:
        return mt_policy_plan(dev.policy, MT_TRAIN, 8, &memory, &dev.plan);
    case 1:
        return mt_policy_extend(dev.policy, MT_TRAIN, &memory, &open);
    case 2:
        return mt_policy_observe(dev.policy, MT_TRAIN, 8, 0, &result);
    case 3:
        return mt_policy_oom(dev.policy, &oom, &action);
    default:
        return mt_policy_recording(dev.policy, MT_TRAIN, 8) != NULL ? MT_OK : MT_ENOMEM;
    }
}

/* What is told of a step, by a trainer or by a loop of one's own. */
TEST("arguments", facts_are_checked) {
    mt_backend_info info = {.size = sizeof(info)};
    mt_policy *policy = policy_new((mt_policy_options){.micro_batch = 3}, info);

    ck_status(mt_policy_begin(NULL, NULL), MT_EINVAL);
    ck_status(mt_policy_replan(NULL), MT_EINVAL);
    ck_status(mt_policy_given(NULL, 1), MT_EINVAL);
    ck_assert_uint_eq(mt_policy_rungs(NULL), 0);
    ck_assert_uint_eq(mt_policy_rungs(policy), 0);
    ck_status(mt_policy_describe(NULL, &info), MT_EINVAL);
    ck_status(mt_policy_describe(policy, NULL), MT_EINVAL);
    info.size = 0;
    ck_status(mt_policy_describe(policy, &info), MT_EINVAL);
    info.size = sizeof(info);
    ck_ok(mt_policy_describe(policy, &info));
    info.min_micro_batch = 3;
    ck_ok(mt_policy_describe(policy, &info));
    info.min_micro_batch = 4;
    ck_refused(mt_policy_describe(policy, &info), MT_EINVAL, "micro_batch is 3");
    info.normalises_over_batch = 1;
    ck_refused(mt_policy_describe(policy, &info), MT_EINVAL, "since they normalise");
    mt_policy_free(policy);
}

/* A plan that says discard, and then a plan for something else: nothing was learnt of that. */
TEST("arguments", discard_and_another_mode) {
    mt_backend_info info = {.normalises_over_batch = 1, .min_micro_batch = 2};
    mt_memory memory = {.size = sizeof(memory), .budget_bytes = 1 << 20};
    mt_policy *policy = policy_new((mt_policy_options){.deterministic = 1}, info);
    mt_plan plan;

    ck_ok(mt_policy_begin(policy, &(mt_shape){.id = 3}));
    ck_ok(mt_policy_plan(policy, MT_TRAIN, 32, &memory, &plan));
    ck_assert_int_eq(plan.discard, 1);
    ck_ok(mt_policy_plan(policy, MT_EVALUATE, 32, &memory, &plan));
    ck_assert_uint_gt(mt_plan_chunks(&plan), 0);
    mt_policy_free(policy);
}

TEST_LOOP("host memory", shape_without_host_memory, 5) {
    mt_policy_options options = {.deterministic = 1, .keep_chunks = MT_KEEP_ALWAYS};

    ck_ok(counting_install());
    dev = device_new(need(40), options, (mt_backend_info){.keeps_chunks = 1});
    train(2, 64);
    ck_assert_int_eq(dev.plan.keep, 1); /* so that a chunk is of two kinds */
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 7}));
    counting_fail_at(1, 1);
    ck_status(ask(_i), MT_ENOMEM);
    counting_fail_at(0, 0);
    ck_ok(ask(_i));
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 0}));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, 8), rung_peak(0, 8));
    free_device();
    ck_assert_uint_eq(counting_live(), 0);
}

/* No recording without host memory for one, and none of what was told is lost. */
TEST("host memory", recording_without_host_memory) {
    ck_ok(counting_install());
    dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});
    counting_fail_at(1, 1);
    ck_assert_ptr_null(mt_policy_recording(dev.policy, MT_TRAIN, 8));
    counting_fail_at(0, 0);
    ck_assert_ptr_nonnull(mt_policy_recording(dev.policy, MT_TRAIN, 8));
}

/* ---- sizes and times ------------------------------------------------------------------------- */

/* So many samples that their bytes are no number any more. */
TEST("sizes", endless_samples) {
    dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){0});
    dev.records = 0;
    ck_ok(device_chunk(&dev, MT_TRAIN, 8));
    ck_assert_uint_eq(mt_policy_predict_bytes(dev.policy, MT_TRAIN, SIZE_MAX), SIZE_MAX);
}

/* A time without an end is none. */
TEST("sizes", endless_time_is_none) {
    mt_policy *policy = policy_new((mt_policy_options){0}, (mt_backend_info){0});
    mt_chunk_result result = {.size = sizeof(result), .seconds = INFINITY};

    ck_ok(mt_policy_observe(policy, MT_TRAIN, 8, 0, &result));
    ck_assert_double_eq(mt_policy_predict_seconds(policy, MT_TRAIN, 8), 0);
    result.seconds = 2;
    ck_ok(mt_policy_observe(policy, MT_TRAIN, 8, 0, &result));
    ck_assert_double_eq(mt_policy_predict_seconds(policy, MT_TRAIN, 8), 2);
    mt_policy_free(policy);
}

/* Where a budget is watched alone a chunk may go through above it: that is no sign that it fits. */
TEST_LOOP("sizes", above_the_budget_is_no_proof, 2) {
    mt_policy *policy = policy_new((mt_policy_options){.deterministic = 1}, (mt_backend_info){0});
    mt_memory memory = {.size = sizeof(memory), .budget_bytes = 1000};
    mt_chunk_result result = {.size = sizeof(result), .peak_bytes = _i == 0 ? 1200 : 1000};
    mt_plan plan;

    ck_ok(mt_policy_plan(policy, MT_TRAIN, 8, &memory, &plan));
    ck_ok(mt_policy_observe(policy, MT_TRAIN, 8, 0, &result));
    ck_ok(mt_policy_plan(policy, MT_TRAIN, 8, &memory, &plan));
    ck_assert_int_eq(mt_plan_chunk(&plan, 0) == 8, _i);
    mt_policy_free(policy);
}

/* ---- what does not fit ----------------------------------------------------------------------- */

/* It failed in less room than there is now, but no legal cut is smaller: the line says just that. */
TEST("fit", failed_though_it_should_fit) {
    mt_oom oom;

    dev = device_new(need(24), (mt_policy_options){.min_micro_batch = 4}, (mt_backend_info){0});
    train(1, 32);
    dev.budget = need(5) - 1;
    train(1, 8);
    oom = oom_explained(&dev, 5, 1); /* it cannot be cut, and the budget explains it */
    ck_assert_int_eq(answer(&dev, oom), MT_ACTION_REPLAN); /* the batch of 8 can */
    dev.budget = need(24);
    ck_refused(device_plan(&dev, MT_TRAIN, 5), MT_EDEVMEM, "did not fit beside");
}

/* The same of a chunk of which nothing is known. */
TEST("fit", failed_and_nothing_is_known) {
    mt_policy_options options = {.min_micro_batch = 4, .max_micro_batch = LEAST_NORMALISED - 1};

    dev = device_new(need(24), options, (mt_backend_info){0});
    ck_ok(device_plan(&dev, MT_TRAIN, 8));
    ck_assert_int_eq(answer(&dev, oom_explained(&dev, 5, 1)), MT_ACTION_REPLAN);
    ck_refused(device_plan(&dev, MT_TRAIN, 5), MT_EDEVMEM, "a chunk of 5 did not fit beside");
}

/* The same where gradients need not be held: the whole batch alone is planned at once, before that is an error. */
TEST("fit", failed_and_the_batch_may_be_alone) {
    mt_backend_info info = {.holds_gradients = 1, .keeps_chunks = 1, .gradient_bytes = 100};

    dev = device_new(need(24), (mt_policy_options){.min_micro_batch = 4}, info);
    ck_ok(device_plan(&dev, MT_TRAIN, 5));
    ck_assert_int_eq(answer_and_plan(oom_explained(&dev, 5, 1), 5), MT_ACTION_REPLAN);
    ck_assert(dev.plan.alone && dev.plan.keep);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_OOM);
    /* A trainer takes the step back and asks for all of it. */
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 5);
}

/* That no chunk fits is known before one is tried, and of the batch alone nothing is: that is planned. */
TEST("fit", ruled_out_but_for_the_batch_alone) {
    mt_backend_info info = {.holds_gradients = 1, .keeps_chunks = 1, .gradient_bytes = 100};

    dev = device_new(need(24), (mt_policy_options){.min_micro_batch = FIRST_CHUNK}, info);
    train(2, 32);
    dev.budget = need(FIRST_CHUNK) - 1;
    ck_ok(device_plan(&dev, MT_TRAIN, 32));
    ck_assert(dev.plan.alone);
    ck_assert_int_eq(dev.plan.reason, MT_PLAN_BUDGET);
    ck_assert_uint_eq(mt_plan_chunk(&dev.plan, 0), 32);
}

/* No budget is told, and a single sample has failed: it is tried again all the same. */
TEST("fit", one_sample_without_a_budget) {
    dev = device_new(0, (mt_policy_options){0}, (mt_backend_info){0});
    mt_oom oom = oom_explained(&dev, 1, 1);
    ck_ok(device_plan(&dev, MT_TRAIN, 1));
    oom.memory.budget_bytes = 0;
    ck_assert(is_again(answer(&dev, oom)));
    oom.attempt = 2;
    ck_assert_int_eq(answer(&dev, oom), MT_ACTION_GIVE_UP);
    ck_ok(device_plan(&dev, MT_TRAIN, 1));
    check_balanced(&dev.plan, 1, 1);
}

/* A batch that must not be cut, and is known from two sizes not to fit: said beforehand. */
TEST("fit", whole_batch_known_not_to_fit) {
    dev = device_new(need(40), (mt_policy_options){0}, (mt_backend_info){.needs_whole_batch = 1});
    train(1, 20);
    train(1, 30);
    dev.budget = need(25) - 1;
    ck_refused(device_plan(&dev, MT_TRAIN, 25), MT_EDEVMEM, "a chunk of 25 needs");
    dev.budget++;
    train(1, 25);
}

/* 11 samples in chunks of at least 6 are one chunk: that is what is looked at, and what is told. */
TEST("fit", attainable_chunk_known_not_to_fit) {
    dev = device_new(need(40), (mt_policy_options){.min_micro_batch = 6}, (mt_backend_info){0});
    train(1, 64);
    dev.budget = need(8);
    ck_refused(device_plan(&dev, MT_TRAIN, 11), MT_EDEVMEM, "a chunk of 11 needs");
    train(1, 12);
    dev.budget = need(11);
    train(1, 11);
    ck_assert_uint_eq(dev.ooms, 0);
}

/* One OOM of such a chunk that says nothing: cleared and tried again, as any other. */
TEST_LOOP("fit", attainable_chunk_fails_once, 2) {
    mt_mode mode = _i == 0 ? MT_TRAIN : MT_EVALUATE;
    mt_oom oom;

    dev = device_new(need(40), (mt_policy_options){.min_micro_batch = 6}, (mt_backend_info){0});
    ck_ok(device_batch(&dev, mode, 64));
    ck_ok(device_plan(&dev, mode, 11));
    oom = oom_untold(11, 1);
    oom.mode = mode;
    ck_assert(is_again(answer(&dev, oom)));
    oom.attempt = 2;
    ck_assert_int_eq(answer(&dev, oom), MT_ACTION_GIVE_UP);
}

/* Chunks of 4 need more than those of 8 do: these are planned again, unless they do not fit either any more. */
TEST("fit", small_chunks_need_more) {
    dev = device_new(need(24), (mt_policy_options){0}, (mt_backend_info){0});
    dev.records = 0;
    for (int fits = 1; fits >= 0; fits--) {
        ck_ok(device_plan(&dev, MT_TRAIN, 16));
        if (fits) ck_ok(device_chunk(&dev, MT_TRAIN, 8));
        if (!fits) dev.budget = need(4);
        ck_assert_int_eq(answer_and_plan(oom_explained(&dev, 4, 1), 16), MT_ACTION_REPLAN);
        ck_assert_int_eq(mt_plan_chunk(&dev.plan, 0) > 4, fits);
        /* That was in vain. */
        ck_assert_int_eq(answer_and_plan(oom_explained(&dev, 4, 2), 16), MT_ACTION_REPLAN);
        ck_assert_uint_lt(mt_plan_chunk(&dev.plan, 0), 4);
    }
}

/* ---- the ladder ------------------------------------------------------------------------------ */

/* A rung is on, long after it was taken, and no batch has been planned in more room. */
static const struct {
    const char *name;
    unsigned rung;
    int wait;       /* batches */
    size_t fits;    /* then; 0: the budget is not known any more */
    uint64_t shape; /* that comes; 7 has been seen without the rung, and not with it */
    unsigned on;
} on_a_rung[] = {
    {"nothing is known of a shape without the rung, which stays", BIT(CHECKPOINTING), RUNG_WAIT, 40,
     99, BIT(CHECKPOINTING)},
    {"the way back from the CPU is just tried", BIT(CPU), RUNG_WAIT, 40, 99, 0},
    {"a shape known without the rung", BIT(CHECKPOINTING), RUNG_WAIT, 40, 7, 0},
    {"without a budget there is room", BIT(CHECKPOINTING), RUNG_WAIT, 0, 0, 0},
};

TEST_LOOP("ladder", leaves_a_rung, LENGTH(on_a_rung)) {
    unsigned rung = on_a_rung[_i].rung;

    dev = device_new(need(40), (mt_policy_options){.allow_rungs = rung},
                     (mt_backend_info){.rungs = rung});
    dev.cpu_budget = need(40);
    train(1, 32);
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 7}));
    train(1, 32);
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = 0}));
    dev.budget = 5000 + rung_peak(rung, FEW);
    train(1, 32);
    ck_assert_uint_eq(dev.rungs, rung);
    train(on_a_rung[_i].wait, 32);
    dev.budget = on_a_rung[_i].fits ? need(on_a_rung[_i].fits) : 0;
    ck_ok(mt_policy_begin(dev.policy, &(mt_shape){.id = on_a_rung[_i].shape}));
    train(1, 32);
    ck_assert_msg(dev.rungs == on_a_rung[_i].on, "%s", on_a_rung[_i].name);
}

static double steady(size_t samples) {
    return 0.01 * (double)samples;
}

/* Times are known without the rung, and not with it: it is left all the same. */
TEST("ladder", leaves_without_times) {
    dev = device_new(need(40), (mt_policy_options){0},
                     (mt_backend_info){.rungs = BIT(CHECKPOINTING)});
    dev.seconds = steady;
    train(1, 32);
    dev.seconds = NULL;
    dev.budget = 5000 + rung_peak(BIT(CHECKPOINTING), FEW);
    train(RUNG_WAIT + 1, 32);
    ck_assert_uint_eq(dev.rungs, BIT(CHECKPOINTING));
    dev.budget = need(40);
    train(1, 32);
    ck_assert_uint_eq(dev.rungs, 0);
}

/* A batch of one sample has nothing to give, however often others were made smaller. */
TEST("ladder", one_sample_is_not_shortened) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH), .rate_rule = MT_RATE_LINEAR};

    dev = device_new(need(4), options, (mt_backend_info){.needs_whole_batch = 1});
    train(1, 8);
    ck_assert_uint_eq(dev.plan.samples, cut_to(4, 8));
    train(1, 1);
    ck_assert_uint_eq(dev.plan.samples, 1);
    ck_assert_double_eq(dev.plan.rate, 1);
}

/* A rung above the smaller batch is refused: the batch stays as small as it was. */
TEST("ladder", refused_above_a_smaller_batch) {
    mt_policy_options options = {.allow_rungs = BIT(SMALLER_BATCH) | BIT(MINIMAL)};
    mt_backend_info info = {.rungs = BIT(MINIMAL), .needs_whole_batch = 1};

    dev = device_new(need(1) - 1, options, info);
    dev.refused_on = BIT(MINIMAL);
    dev.why = MT_EDEVMEM;
    ck_status(device_batch(&dev, MT_TRAIN, 8), MT_EDEVMEM);
    ck_assert_uint_eq(dev.plan.samples, 1);
    ck_assert_uint_eq(dev.plan.rungs, BIT(SMALLER_BATCH));
}

/* On another device the first batch may be a recording and nothing else. */
TEST("ladder", recording_on_the_cpu) {
    mt_backend_info info = {.rungs = BIT(CPU), .normalises_over_batch = 1};

    dev = device_new(need(40), (mt_policy_options){.allow_rungs = BIT(CPU)}, info);
    dev.cpu_budget = need(40);
    train(1, 4 * FIRST_CHUNK);
    dev.budget = need(1) - 1;
    train(1, 4 * FIRST_CHUNK);
    ck_assert_uint_eq(dev.rungs, BIT(CPU));
    ck_assert_uint_eq(dev.discarded, FIRST_CHUNK);
    ck_assert_uint_eq(dev.count, 1);
}

DEVICE_SUITE("policy_edges")
