/*
 * check_lengths.c - what a policy knows of some lengths serves others: peaks by the parabola, times in proportion, and it
 * is dropped where it is not so.
 */
#include "counting_allocator.h"
#include "each_test.h"
#include "fake_backend.h"

#include "recording.h"
#include "tuned.h"

#include <math.h>

enum { BATCH = 64, RESIDENT = 5000 };

/* The device of a test, whose chunks are a little transformer: bytes of weights, of tokens, and of pairs of tokens. */
static struct {
    mt_policy *policy;
    size_t budget;
    size_t wide_from; /* samples this long take a kernel that needs twice as much; 0: none do */
    size_t odd;       /* of this length eight and more do; 0: none do */
    double (*seconds)(size_t samples, size_t length);
    size_t first, ran,
        recorded; /* of the last batch: its first chunk, chunks, those that were recorded */
    int ooms;
    int no_peaks; /* chunks do not tell theirs */
} dev;

static fake_program program_of(size_t length, size_t samples, fake_allocation storage[5]) {
    int is_wide = (dev.wide_from && length >= dev.wide_from) || (length == dev.odd && samples >= 8);
    int64_t tokens = (int64_t)length, more = is_wide ? 2 : 1;

    storage[0] = (fake_allocation){4096, 0, FAKE_AT_END};
    storage[1] = (fake_allocation){0, 64 * tokens, FAKE_AT_END};
    storage[2] = (fake_allocation){0, more * 2 * tokens * tokens, 3};
    storage[3] = (fake_allocation){512, 128 * tokens, 4};
    storage[4] = (fake_allocation){2048, 16 * tokens, FAKE_AT_END};
    return (fake_program){storage, 5};
}

static size_t peak_of(size_t length, size_t samples) {
    fake_allocation storage[5];
    fake_program program = program_of(length, samples, storage);

    return fake_program_peak(&program, samples);
}

static size_t fits(size_t length) {
    size_t m = 0;

    while (m < BATCH && RESIDENT + peak_of(length, m + 1) <= dev.budget) m++;
    return m;
}

static double by_tokens(size_t samples, size_t length) {
    return 2e-3 + 1e-6 * (double)(samples * length);
}

static void new_device(size_t budget, const mt_policy_options *options) {
    dev.budget = budget;
    dev.seconds = by_tokens;
    ck_ok(mt_policy_new(options, NULL, &dev.policy));
}

static void free_device(void) {
    mt_policy_free(dev.policy);
    memset(&dev, 0, sizeof(dev));
}

static void sink_recording(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

/* 0: there was no room. */
static int chunk(mt_mode mode, size_t length, size_t samples) {
    mt_event_sink sink = {mt_policy_recording(dev.policy, mode, samples), sink_recording};
    mt_chunk_result result = MT_CHUNK_RESULT_INIT;
    fake_allocation storage[5];
    fake_program program = program_of(length, samples, storage);

    result.peak_bytes = RESIDENT + fake_program_peak(&program, samples);
    if (result.peak_bytes > dev.budget) return 0;
    if (!dev.ran++) dev.first = samples;
    if (sink.user) fake_program_record(&program, samples, &sink);
    if (sink.user) dev.recorded++;
    if (dev.no_peaks) result.peak_bytes = 0;
    result.units = (double)samples;
    result.seconds = dev.seconds(samples, length);
    ck_ok(mt_policy_observe(dev.policy, mode, samples, RESIDENT, &result));
    return 1;
}

static void batch_of(mt_mode mode, uint64_t family, size_t length) {
    mt_memory memory = {.size = sizeof(memory), .budget_bytes = dev.budget};
    mt_shape shape = {family * 100000 + length, family, length};
    mt_plan plan;

    memory.allocated_bytes = memory.reserved_bytes = RESIDENT;
    dev.ooms = 0;
    dev.first = dev.ran = dev.recorded = 0;
    ck_ok(mt_policy_begin(dev.policy, &shape));
    ck_ok(mt_policy_plan(dev.policy, mode, BATCH, &memory, &plan));
    for (size_t i = 0, covered = 0; covered < BATCH || plan.discard; i++) {
        if (i == mt_plan_chunks(&plan) && plan.discard) {
            ck_ok(mt_policy_plan(dev.policy, mode, BATCH, &memory, &plan));
            i = covered = 0;
        } else if (i == mt_plan_chunks(&plan)) {
            ck_ok(mt_policy_extend(dev.policy, mode, &memory, &plan));
        }
        if (i == mt_plan_chunks(&plan)) continue; /* it says discard now */
        size_t m = mt_plan_chunk(&plan, i);
        if (chunk(mode, length, m)) {
            covered += m;
            continue;
        }
        mt_oom oom = {.size = sizeof(oom), .mode = mode, .phase = MT_PHASE_ACCUMULATE};
        mt_action action;

        oom.chunk = m;
        oom.attempt = (unsigned)++dev.ooms;
        oom.refused = 1;
        oom.refused_in_use_bytes = dev.budget - 100;
        oom.refused_bytes = 4096;
        oom.allocated_before_bytes = RESIDENT;
        oom.memory = memory;
        ck_ok(mt_policy_oom(dev.policy, &oom, &action));
        ck_assert_int_eq(action, MT_ACTION_REPLAN);
        ck_ok(mt_policy_plan(dev.policy, mode, BATCH, &memory, &plan));
        i = SIZE_MAX;
        covered = 0;
    }
}

static void learn(mt_mode mode, uint64_t family, const size_t *lengths, int count) {
    for (int i = 0; i < count; i++) batch_of(mode, family, lengths[i]);
}

static const size_t three[] = {100, 320, 200};

/* ---- what is told ------------------------------------------------------------------------------- */

/* The weights of the three for another length, without their signs. */
static double weight_for(size_t length) {
    double sum = 0;

    for (int i = 0; i < 3; i++) {
        double weight = 1;

        for (int j = 0; j < 3; j++)
            if (j != i)
                weight *=
                    ((double)length - (double)three[j]) / ((double)three[i] - (double)three[j]);
        sum += fabs(weight);
    }
    return sum;
}

/* The largest that is told from them. */
static size_t farthest(void) {
    size_t length = 320;

    while (weight_for(length + 1) <= MOST_WEIGHT) length++;
    return length;
}

static const size_t told[] = {101, 150, 199, 201, 250, 300, 319, 321, 350, 0, 90, 70};

/* The first batch of a length between three, or a little beyond, is that of a kind that is known; 0: the farthest. */
TEST_LOOP("told", new_length, LENGTH(told)) {
    size_t length = told[_i] ? told[_i] : farthest();
    new_device(4 << 20, NULL);
    learn(MT_TRAIN, 1, three, 3);
    ck_assert_uint_gt(dev.recorded, 0);
    batch_of(MT_TRAIN, 1, length);
    ck_assert_uint_eq(dev.recorded, 0);
    ck_assert_uint_gt(dev.first, FIRST_CHUNK);
    ck_assert_int_eq(dev.ooms, 0);
    for (size_t m = 1; m <= BATCH; m *= 2) {
        double is = (double)peak_of(length, m),
               was_told = (double)mt_policy_predict_bytes(dev.policy, MT_TRAIN, m);
        ck_assert_double_le(is, was_told);
        ck_assert_double_lt(was_told, is + is / HUNDREDTH);
    }
}

/* What is little beyond is told; what is far is learnt as a kind alone is. 0: the nearest of these. */
static const size_t far[] = {1, 0, 700, 1000};

TEST_LOOP("told", far_length, LENGTH(far)) {
    new_device((size_t)FIRST_CHUNK << 21, NULL); /* for a first chunk of the longest */
    learn(MT_TRAIN, 1, three, 3);
    batch_of(MT_TRAIN, 1, far[_i] ? far[_i] : farthest() + 1);
    ck_assert_uint_gt(dev.recorded, 0);
    ck_assert_uint_eq(dev.first, FIRST_CHUNK);
}

/* Two tell nothing, nor do those of another family or mode, nor where there is no length. */
static const struct {
    mt_mode mode;
    uint64_t family;
    int count;
    size_t length;
} strangers[] = {
    {MT_TRAIN, 1, 2, 150}, {MT_TRAIN, 2, 3, 150}, {MT_EVALUATE, 1, 3, 150}, {MT_TRAIN, 1, 3, 0}};

TEST_LOOP("told", stranger, LENGTH(strangers)) {
    new_device(4 << 20, NULL);
    learn(MT_TRAIN, 1, three, strangers[_i].count);
    batch_of(strangers[_i].mode, strangers[_i].family, strangers[_i].length);
    ck_assert_uint_gt(dev.recorded, 0);
}

/* A run that is stopped and goes on has seen other lengths before, and is to have the same chunks. */
TEST("told", deterministic) {
    mt_policy_options options = MT_POLICY_OPTIONS_INIT;

    options.deterministic = 1;
    new_device(4 << 20, &options);
    learn(MT_TRAIN, 1, three, 3);
    batch_of(MT_TRAIN, 1, 150);
    ck_assert_uint_gt(dev.recorded, 0);
}

/* ---- what is so all the same ---------------------------------------------------------------------- */

/*
 * Kernels that need more from a length on. Lengths around it do not tell of it; a chunk does, and costs one OOM where they
 * told too little. Away from it nearly all is told again.
 */
TEST("shown", other_kernels) {
    int ooms = 0, recorded = 0;

    new_device(4 << 20, NULL);
    dev.wide_from = 210;
    for (size_t i = 0; i < 120; i++) {
        size_t length = 90 + i * 97 % 241;

        batch_of(MT_TRAIN, 1, length);
        ck_assert_int_le(dev.ooms, 1);
        ooms += dev.ooms;
        recorded += i > 80 && (length < 150 || length > 270) && dev.recorded > 0;
    }
    ck_assert_int_le(ooms, 6);
    ck_assert_int_le(recorded, 2);
}

/* Where large chunks of one of the lengths take kernels of their own it tells nothing of another length's. */
TEST("shown", odd_one_out) {
    new_device(64 << 20, NULL);
    dev.odd = 200;
    for (int i = 0; i < 4; i++) learn(MT_TRAIN, 1, three, 3);
    batch_of(MT_TRAIN, 1, 150);
    ck_assert_uint_gt(dev.recorded, 0);
}

static double no_clock(size_t samples, size_t length) {
    (void)samples;
    (void)length;
    return 0;
}

/* Without times peaks are told all the same. */
TEST("shown", without_a_clock) {
    new_device(4 << 20, NULL);
    dev.seconds = no_clock;
    learn(MT_TRAIN, 1, three, 3);
    batch_of(MT_TRAIN, 1, 150);
    ck_assert_uint_eq(dev.recorded, 0);
    ck_assert_int_eq(dev.ooms, 0);
}

/* 300 lengths in turn: nearly all begin at once, and none fails. */
TEST("shown", many) {
    size_t learnt = 0;

    new_device(4 << 20, NULL);
    for (size_t i = 0; i < 300; i++) {
        size_t length = 40 + i * 97 % 361;

        batch_of(MT_TRAIN, 1, length);
        learnt += dev.recorded > 0;
        ck_assert_int_eq(dev.ooms, 0);
        if (!dev.recorded) ck_assert_uint_ge(dev.first, 2 * FIRST_CHUNK);
        ck_assert_uint_le(dev.first, fits(length));
    }
    ck_assert_uint_le(learnt, 16);
}

/* Chunks whose peaks nobody tells say nothing against what is told. */
TEST("shown", no_peaks) {
    new_device(4 << 20, NULL);
    learn(MT_TRAIN, 1, three, 3);
    dev.no_peaks = 1;
    for (int i = 0; i < 3; i++) {
        batch_of(MT_TRAIN, 1, 150);
        ck_assert_uint_eq(dev.recorded, 0);
    }
    /* Nor does one that runs in a way of which nothing was told. */
    dev.no_peaks = 0;
    ck_ok(mt_policy_given(dev.policy, 1));
    ck_assert_int_eq(chunk(MT_TRAIN, 150, 4), 1);
    batch_of(MT_TRAIN, 1, 150);
    ck_assert_uint_eq(dev.recorded, 0);
}

/* One sample does not fit, as is told: it is tried all the same, since nothing of that length has run. */
TEST("shown", told_not_to_fit) {
    mt_memory memory = {.size = sizeof(memory)};
    mt_shape shape = {100150, 1, 150};
    mt_plan plan;
    mt_oom oom = {.size = sizeof(oom), .mode = MT_TRAIN, .phase = MT_PHASE_ACCUMULATE, .chunk = 1};
    mt_action action;

    new_device(4 << 20, NULL);
    learn(MT_TRAIN, 1, three, 3);
    memory.allocated_bytes = memory.reserved_bytes = RESIDENT;
    memory.budget_bytes = RESIDENT + peak_of(150, 1) / 2;
    ck_ok(mt_policy_begin(dev.policy, &shape));
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, BATCH, &memory, &plan));
    ck_assert_uint_eq(mt_plan_chunk(&plan, 0), 1);
    /* Another program has the memory: less is needed than was told, which stays. */
    oom.attempt = 1;
    oom.refused = 1;
    oom.refused_in_use_bytes = memory.budget_bytes - 100;
    oom.refused_bytes = 200;
    oom.allocated_before_bytes = RESIDENT;
    oom.memory = memory;
    (void)!mt_policy_oom(dev.policy, &oom, &action);
    memory.budget_bytes = dev.budget;
    ck_ok(mt_policy_begin(dev.policy, &shape));
    ck_ok(mt_policy_plan(dev.policy, MT_TRAIN, BATCH, &memory, &plan));
    ck_assert_uint_gt(mt_plan_chunk(&plan, 0), FIRST_CHUNK);
}

/* ---- the model between lengths ----------------------------------------------------------------------- */

/* Of one block of so many bytes and more for each sample. */
static mt_memory_model *model_of(int64_t bytes, int64_t each) {
    mt_memory_model *model;
    mt_recording *small, *large;
    char block;

    ck_ok(mt_recording_new(&small));
    ck_ok(mt_recording_new(&large));
    ck_ok(mt_recording_start(small, 1));
    ck_ok(mt_recording_start(large, 2));
    mt_recording_event(small, &block, bytes + each);
    mt_recording_event(large, &block, bytes + 2 * each);
    ck_ok(mt_memory_model_new(small, large, &model));
    mt_recording_free(small);
    mt_recording_free(large);
    return model;
}

static const struct {
    int64_t bytes[3], each[3];
    double weight[3];
    size_t samples, peak, room, largest;
} models[] = {
    {{100, 200, 300}, {10, 20, 30}, {0.5, 0.25, 0.25}, 10, 350, 349, 9},
    {{100, 200, 300}, {10, 20, 30}, {0.5, 0.25, 0.25}, 10, 350, 350, 10},
    {{100, 200, 300}, {10, 20, 30}, {0.5, 0.25, 0.25}, 1, 193, 192, 0},
    {{100, 200, 300}, {0, 0, 0}, {1, 1, -1}, 10, 0, 5, SIZE_MAX},    /* it does not rise */
    {{100, 200, 400}, {10, 20, 40}, {1, 1, -1}, 10, 0, 0, SIZE_MAX}, /* nor fall below 0 */
    {{1, 1, 1}, {INT64_C(1) << 55, 1, 1}, {1e4, 0, 0}, 10, SIZE_MAX, 5, 0},
};

TEST_LOOP("shown", between, LENGTH(models)) {
    mt_memory_model *of[3];
    const mt_memory_model *all[3];

    for (int i = 0; i < 3; i++) all[i] = of[i] = model_of(models[_i].bytes[i], models[_i].each[i]);
    mt_memory_model *model = mt__memory_model_between(all, models[_i].weight);
    ck_assert_ptr_nonnull(model);
    for (int i = 0; i < 3; i++) mt_memory_model_free(of[i]);
    ck_assert_uint_eq(mt_memory_model_peak(model, models[_i].samples), models[_i].peak);
    ck_assert_uint_eq(mt_memory_model_largest(model, models[_i].room), models[_i].largest);
    mt_memory_model_free(model);
}

/* Where there is no memory for it the length is one like all others. */
TEST("shown", no_host_memory) {
    ck_ok(counting_install());
    for (size_t n = 1, fired = 1; fired; n++) {
        mt_memory memory = {.size = sizeof(memory), .budget_bytes = 4 << 20};
        mt_shape shape = {100150, 1, 150};
        mt_plan plan;
        mt_status status;

        new_device(4 << 20, NULL);
        memory.allocated_bytes = memory.reserved_bytes = RESIDENT;
        learn(MT_TRAIN, 1, three, 3);
        ck_ok(mt_policy_begin(dev.policy, &shape));
        counting_fail_at(n, 0);
        status = mt_policy_plan(dev.policy, MT_TRAIN, BATCH, &memory, &plan);
        fired = counting_fired();
        counting_fail_at(0, 0);
        if (status != MT_OK) ck_status(status, MT_ENOMEM);
        batch_of(MT_TRAIN, 1, 150);
        /* Without the kind the plan's second try has it. */
        if (n > 2) ck_assert_int_eq(dev.recorded > 0, fired && status == MT_OK);
        free_device();
        ck_assert_uint_eq(counting_live(), 0);
    }
}

int main(void) {
    suite_each_test(NULL, free_device);
    return suite_run_named("lengths");
}
