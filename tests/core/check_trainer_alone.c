/*
 * check_trainer_alone.c - a batch that fits as one chunk only where its gradients are the only ones: the
 * memory in which those of several are added up is given back, and taken again when it is needed.
 */
#include "suite.h"
#include "trainer_tests.h"
#include "tuned.h"

/* One allocation that lives as long as the chunk: the gradients add to the peak. */
static const fake_allocation plain_allocations[] = {{1000, 2000, FAKE_AT_END}};
static const fake_program plain = {plain_allocations, 1};

#define BATCH 64
#define MANY 384 /* never one chunk, nor chunks that are nearly as large as BATCH */

/* Bytes that a batch of so many samples needs without gradients beside its own. */
static size_t room_for(size_t samples) {
    return fake_defaults.resident_bytes + fake_program_peak(&plain, samples) + FAKE_GRADIENT_BYTES;
}

/* Gradients that are held, chunks by memory alone, and room for a batch without gradients beside its own. */
static void begin(void) {
    begin_defaults();
    options.train = plain;
    options.keep = options.tells_gradients = options.holds = 1;
    options.budget_bytes = room_for(BATCH);
    policy.deterministic = 1;
}

/* The budget becomes another before so many more chunks. */
static struct {
    mt_backend seam;
    int chunks; /* 0: it stays */
    size_t budget;
} change;

static void change_in(int chunks, size_t budget) {
    change.chunks = chunks;
    change.budget = budget;
}

static mt_status accumulate_and_change(void *self, size_t first, size_t count, double weight,
                                       mt_chunk_result *out) {
    if (change.chunks && --change.chunks == 0) fake.options.budget_bytes = change.budget;
    return change.seam.accumulate(self, first, count, weight, out);
}

static size_t many[MANY], many_count; /* the chunks of the one that was cut */

/* The trainer has learnt from one batch, and had one that was cut; its log is empty. */
static void learn(void) {
    mt_backend seam = change.seam = new_seam();
    mt_step_report cut;

    own.policy = &policy;
    seam.accumulate = accumulate_and_change;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    step(trainer, BATCH, 1);
    cut = step(trainer, MANY, 1);
    memcpy(many, cut.chunks, cut.chunk_count * sizeof(*many));
    many_count = cut.chunk_count;
    fake_log_clear(&fake);
}

/* Its gradients are not held any more: a batch has been one chunk without. */
static void run_alone(void) {
    learn();
    step(trainer, BATCH, 2);
    fake_log_clear(&fake);
}

#define PARTS "begin accumulate(0+32) accumulate(32+32) apply"
#define WHOLE "begin accumulate(0+64) apply"
#define ALONE "hold begin accumulate(0+64) apply"

/* ---- when it is done ------------------------------------------------------------------------- */

static const struct {
    const char *name;
    long more; /* bytes above what the batch alone needs */
    fake_options options;
    mt_policy_options policy;
    const char *calls;
} rooms[] = {
    {"to the byte", 0, {0}, {0}, ALONE},
    {"one byte is missing", -1, {0}, {0}, PARTS},
    {"gradients fit beside it", FAKE_GRADIENT_BYTES, {0}, {0}, ALONE},
    {"whole steps are wanted", 0, {0}, {.keep_chunks = MT_KEEP_NEVER}, PARTS},
    {"chunks are bounded", 0, {0}, {.max_micro_batch = 63}, PARTS},
    {"chunks are given", 0, {0}, {.micro_batch = 32}, PARTS},
    {"nothing is recorded", 0, {.absent = FAKE_BIT(FAKE_RECORD)}, {0}, NULL},
    {"normalising", 0, {.normalises_over_batch = 1}, {0}, ALONE},
};

TEST_LOOP("when", room_for_it_alone, LENGTH(rooms)) {
    mt_step_report report;

    options.budget_bytes = room_for(BATCH) + (size_t)rooms[_i].more;
    policy = rooms[_i].policy;
    policy.size = sizeof(policy);
    policy.deterministic = 1;
    options.absent = rooms[_i].options.absent;
    options.normalises_over_batch = rooms[_i].options.normalises_over_batch;
    learn();
    report = step(trainer, BATCH, 2);
    if (rooms[_i].calls != NULL) check_log(rooms[_i].calls);
    ck_assert_uint_eq(fake.genuine, 0);
    ck_assert_uint_le(report.peak_bytes, options.budget_bytes);
    if (options.absent == 0 && policy.micro_batch == 0)
        ck_assert_uint_eq(report.predicted_peak_bytes, report.peak_bytes);
}

/* Chunks that are faster are taken where they are: memory that is given back gains nothing then. */
static double cliff(size_t samples) {
    return 0.001 * (double)samples * (samples > 40 ? 3 : 1);
}

static double no_cliff(size_t samples) {
    return 0.010 + 0.001 * (double)samples;
}

static const struct {
    double (*seconds)(size_t samples);
    int holding;
} speeds[] = {{cliff, 1}, {no_cliff, 0}};

TEST_LOOP("when", the_fastest_that_fits, LENGTH(speeds)) {
    options.seconds = speeds[_i].seconds;
    policy.deterministic = 0;
    learn();
    for (uint64_t id = 2; id < 11; id++) step(trainer, BATCH, id);
    ck_assert_int_eq(fake.holding, speeds[_i].holding);
    ck_assert_uint_eq(fake.genuine, 0);
}

/*
 * Sizes grow step by step to the largest that fits beside gradients; only then is it the whole batch. How many chunks that
 * takes follows from FIRST_CHUNK and KNOWN_RUNS.
 */
TEST("when", not_at_once) {
    static const size_t chunks[] = {4, 3, 2, 1, 1};

    options.seconds = no_cliff;
    trainer = trainer_with(&options, NULL);
    step(trainer, 16, 1);
    for (int i = 0; i < LENGTH(chunks); i++)
        ck_assert_uint_eq(step(trainer, BATCH, 2 + (uint64_t)i).chunk_count, chunks[i]);
    ck_assert_uint_eq(fake.genuine, 0);
}

/* No cut is legal, and the whole batch does not fit beside gradients: known before it is tried. */
TEST_LOOP("when", no_other_way, 2) {
    options.budget_bytes = room_for(4 * BATCH);
    policy.min_micro_batch = BATCH;
    policy.deterministic = _i;
    trainer = trainer_with(&options, &policy);
    step(trainer, 3 * BATCH, 1);
    fake.options.budget_bytes = room_for(BATCH);
    fake_log_clear(&fake);
    step_by(BATCH, 2, _i ? WHOLE : ALONE); /* without a clock the larger one went alone too */
    fake.options.budget_bytes -= 1;
    step_fails(trainer, BATCH, 3, MT_EDEVMEM);
    ck_assert_uint_eq(fake.genuine, 0);
}

/* ---- and back --------------------------------------------------------------------------------- */

/* What needs parts takes the memory again; what does not leaves it where it is. */
TEST("and back", there_and_back) {
    learn();
    step_by(BATCH, 2, ALONE);
    step_by(BATCH, 3, WHOLE);
    step(trainer, 20, 4); /* would fit beside them too */
    check_log("begin accumulate(0+20) apply");
    step_by(2 * BATCH, 5,
            "hold(0+1) begin accumulate(0+43) accumulate(43+43) accumulate(86+42) apply");
    step_by(BATCH, 6, ALONE);
    fake.options.budget_bytes -= 1;
    step_by(BATCH, 7, "hold(0+1) begin accumulate(0+32) accumulate(32+32) apply");
    fake.options.budget_bytes += FAKE_GRADIENT_BYTES + 1;
    step_by(BATCH, 8, ALONE);
    ck_assert_uint_eq(fake.genuine, 0);
}

/* Also where there is room for the gradients of a sum, one chunk is faster without. */
TEST("and back", room_for_both) {
    options.budget_bytes = room_for(BATCH) + FAKE_GRADIENT_BYTES;
    learn();
    for (uint64_t id = 2; id < 10; id++) {
        step(trainer, id % 2 ? 2 * BATCH : BATCH, id);
        ck_assert_int_eq(fake.holding, id % 2);
    }
    ck_assert_uint_eq(fake.genuine, 0);
}

/* Of larger batches: a chunk's gradients need as much as the samples that two recordings take. */
static const fake_allocation flat_allocations[] = {{1000, 100, FAKE_AT_END}};
static const fake_program flat = {flat_allocations, 1};

/* Bytes for a chunk of so many samples beside gradients that are held. */
static size_t beside(size_t samples) {
    return fake_defaults.resident_bytes + fake_program_peak(&flat, samples) +
           2 * FAKE_GRADIENT_BYTES;
}

/* What is left of a first batch has the gradients of its recordings to add to. */
TEST("and back", a_step_has_begun) {
    /* One recording tells that all but its gradients grows. */
    const size_t room = fake_program_peak(&flat, BATCH) - FAKE_GRADIENT_BYTES;
    const size_t fitting = room * FIRST_CHUNK / fake_program_peak(&flat, FIRST_CHUNK);
    char calls[1000];
    mt_plan left;

    ck_ok(mt_plan_balanced(BATCH - FIRST_CHUNK, (BATCH - FIRST_CHUNK + fitting - 1) / fitting,
                           &left));
    snprintf(calls, sizeof(calls), "begin accumulate(0+%d) ", FIRST_CHUNK);
    for (size_t i = 0, at = FIRST_CHUNK; at < BATCH; at += mt_plan_chunk(&left, i++))
        snprintf(calls + strlen(calls), sizeof(calls) - strlen(calls), "accumulate(%zu+%zu) ", at,
                 mt_plan_chunk(&left, i));
    strcat(calls, "apply");
    options.train = flat;
    options.budget_bytes = beside(BATCH) - FAKE_GRADIENT_BYTES;
    trainer = trainer_with(&options, NULL);
    step_by(BATCH, 1, calls);
    step_by(BATCH, 2, ALONE);
}

/* So has what is left after a chunk that failed: it would fit alone, but finished chunks stay. */
TEST("and back", what_is_left_of_a_step) {
    options.budget_bytes = room_for(BATCH / 2) + FAKE_GRADIENT_BYTES;
    learn();
    step_by(BATCH, 2, PARTS);
    change_in(2, room_for(BATCH / 2));
    step_by(BATCH, 3,
            "begin accumulate(0+32) accumulate!(32+32) rewind accumulate(32+16) "
            "accumulate(48+16) apply");
}

/* Kernels of larger chunks run once beside gradients that are held, whatever the batch needs alone. */
TEST("and back", other_kernels_come_first) {
    options.train = options.wide = flat;
    options.budget_bytes = beside(BATCH) - 500;
    options.wide_above = 47;
    options.tells_wide = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, 20, 1);
    fake_log_clear(&fake);
    step_by(BATCH, 2,
            "hold(0+1) begin accumulate(0+32) rollback hold begin accumulate(0+64) apply");
    step_by(BATCH, 3, WHOLE);
}

/* Where they have no room beside gradients that are held, no chunk of them comes before the batch alone. */
TEST("and back", other_kernels_have_no_room) {
    options.train = options.wide = flat;
    options.budget_bytes = beside(BATCH + 3) - FAKE_GRADIENT_BYTES; /* with a 32nd to spare */
    ck_assert_uint_lt(options.budget_bytes, beside(48));
    options.wide_above = 47;
    options.tells_wide = 1;
    trainer = trainer_with(&options, &policy);
    for (uint64_t id = 1; id <= 8; id++) {
        fake_log_clear(&fake);
        step(trainer, BATCH, id);
        ck_assert_uint_eq(fake.genuine, 0);
    }
    check_log(WHOLE);
}

/* Where no chunk fits beside gradients that are held nothing comes first. */
TEST("and back", nothing_else_fits) {
    static const fake_allocation hardly_growing[] = {{1000, 10, FAKE_AT_END}};

    options.train = options.wide = (fake_program){hardly_growing, 1};
    options.wide_above = 47;
    options.tells_wide = 1;
    options.min_micro_batch = 2;
    trainer = trainer_with(&options, &policy);
    step(trainer, 20, 1);
    fake_log_clear(&fake);
    fake.options.budget_bytes = options.resident_bytes + fake_program_peak(&options.train, BATCH) +
                                FAKE_GRADIENT_BYTES + 50;
    step_by(BATCH, 2, WHOLE); /* as the one before */
}

/* Without a budget there is room beside them too, which is no reason to take the memory again. */
TEST("and back", no_budget_is_told) {
    run_alone();
    fake.options.budget_bytes = 0;
    step_by(BATCH, 3, WHOLE);
    ck_assert_int_eq(fake.holding, 0);
}

/* What a batch needs alone is not known where recordings do not tell of gradients: it is not tried. */
TEST("and back", gradients_are_not_told) {
    options.tells_gradients = 0;
    learn();
    for (uint64_t id = 2; id < 6; id++) {
        step(trainer, BATCH, id);
        step(trainer, 2 * BATCH, id);
    }
    ck_assert_uint_eq(count_kind(FAKE_HOLD_GRADIENTS), 0);
}

TEST("and back", evaluation_in_between) {
    run_alone();
    evaluate(trainer, 20, 3);
    ck_assert_uint_eq(count_kind(FAKE_HOLD_GRADIENTS), 0);
    step(trainer, BATCH, 4);
    ck_assert_uint_eq(count_kind(FAKE_HOLD_GRADIENTS), 0);
}

/* A replay may cut as it likes. */
TEST("and back", chunks_are_given) {
    static const size_t chunks[] = {30, 30};

    run_alone();
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    step_by(60, 3, "hold(0+1) begin accumulate(0+30) accumulate(30+30) apply");
}

/* A whole batch that is given goes without them where it does not fit else, and leaves them where they are. */
TEST("and back", a_whole_batch_is_given) {
    static const size_t whole[] = {BATCH};
    mt_step_report report;

    learn();
    ck_ok(mt_trainer_set_chunks(trainer, whole, 1));
    report =
        step_by(BATCH, 2, "begin accumulate!(0+64) rollback hold begin accumulate(0+64) apply");
    ck_assert_uint_le(report.peak_bytes, options.budget_bytes);
    fake_log_clear(&fake);
    ck_ok(mt_trainer_set_chunks(trainer, whole, 1));
    step_by(BATCH, 3, WHOLE);
}

/* A step that was made smaller is none, also where it is one chunk: gradients are held for it. */
TEST_LOOP("and back", a_part_of_a_batch_is_given, 2) {
    static const size_t part[] = {BATCH / 2};
    mt_batch batch = batch_of(BATCH, 3);

    run_alone();
    fake.options.may_shorten = 1;
    fake.options.budget_bytes = room_for(BATCH / 2) + (_i ? 0 : FAKE_GRADIENT_BYTES);
    ck_ok(mt_trainer_set_chunks(trainer, part, 1));
    ck_ok(mt_trainer_set_rungs(trainer, MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH), 1.0));
    ck_status(mt_trainer_step(trainer, &batch, NULL), _i ? MT_EDEVMEM : MT_OK);
    ck_assert_int_eq(fake.holding, 1);
}

/* With less room still it gives up, bounded; without the permission, or a chunk of its own, at once. */
static const struct {
    size_t missing; /* bytes */
    int keeps;      /* the backend has mark and rewind */
    int keep_chunks;
    size_t given_back; /* times */
} too_large[] = {
    {0, 1, MT_KEEP_NEVER, 0},
    {1, 1, MT_KEEP_AUTO, 1},
    {0, 0, MT_KEEP_AUTO, 0},
};

TEST_LOOP("and back", a_whole_batch_that_does_not_fit, LENGTH(too_large)) {
    static const size_t whole[] = {BATCH};

    options.budget_bytes = room_for(BATCH) - too_large[_i].missing;
    policy.keep_chunks = too_large[_i].keep_chunks;
    options.keep = too_large[_i].keeps;
    learn();
    ck_ok(mt_trainer_set_chunks(trainer, whole, 1));
    step_fails(trainer, BATCH, 2, MT_EDEVMEM);
    ck_assert_uint_eq(count_kind(FAKE_HOLD_GRADIENTS), too_large[_i].given_back);
    step(trainer, BATCH, 3);
}

/* The backend of one that held nothing is another trainer's now. */
TEST("and back", another_trainer) {
    learn();
    mt_backend seam = fake_seam(&fake);
    step(trainer, BATCH, 2);
    mt_trainer_free(trainer);
    ck_assert_int_eq(fake.holding, 0);
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    ck_assert_int_eq(fake.holding, 1);
    step(trainer, BATCH, 3);
}

/* ---- what fails ------------------------------------------------------------------------------- */

/* The same chunks with gradients held all the time end with the same bits. */
static void check_same_bits(const mt_step_report *last) {
    static const size_t whole[] = {BATCH};
    uint64_t hash = fake_hash(&fake);
    size_t chunks[8], count = last->chunk_count;

    memcpy(chunks, last->chunks, count * sizeof(*chunks));
    end_trainer();
    options.budget_bytes = 0;
    trainer = trainer_with(&options, &policy);
    step_in(whole, 1, BATCH, 1);
    step_in(many, many_count, MANY, 1);
    step_in(whole, 1, BATCH, 2);
    step_in(chunks, count, BATCH, 3);
    ck_assert_uint_eq(fake_hash(&fake), hash);
}

/* Less room in the middle of such a step: it is taken back, and cut. */
TEST("fails", less_room) {
    mt_step_report report;

    run_alone();
    change_in(1, room_for(40) + FAKE_GRADIENT_BYTES);
    report = step_by(BATCH, 3,
                     "begin accumulate!(0+64) rewind rollback hold(0+1) begin accumulate(0+32) "
                     "accumulate(32+32) apply");
    ck_assert_uint_eq(report.discarded, BATCH);
    check_same_bits(&report);
}

/* A limit that nobody tells of: what did not fit is not tried again. */
TEST("fails", no_budget_any_more) {
    run_alone();
    fake.options.budget_bytes = 0;
    fake.options.device_bytes = room_for(BATCH) - 1;
    step(trainer, BATCH, 3);
    ck_assert_uint_le(fake.genuine, 2);
    ck_assert_int_eq(fake.holding, 1);
}

/* On another device it is cut as that device's memory has it, in the step that goes there. */
TEST("fails", on_the_way_to_the_cpu) {
    options.rungs = policy.allow_rungs = MT_RUNG_BIT(MT_RUNG_CPU);
    options.cpu_bytes = options.budget_bytes;
    learn();
    step(trainer, BATCH, 2);
    fake.options.budget_bytes = 1;
    step(trainer, BATCH, 3);
    ck_assert_int_eq(fake.holding, 0); /* it has room for it alone */
    step(trainer, BATCH, 4);
    ck_assert_uint_eq(fake.rungs, MT_RUNG_BIT(MT_RUNG_CPU));
}

/* A refusal that the budget does not explain costs the chunk. */
TEST("fails", an_accident) {
    mt_step_report report;

    run_alone();
    fake_fail_kind(&fake, FAKE_ALLOCATION, 1, MT_EDEVMEM);
    report = step_by(BATCH, 3, "begin accumulate!(0+64) rewind accumulate(0+64) apply");
    check_same_bits(&report);
}

/* Without a mark the chunk must not run: its gradients would have no place. */
TEST("fails", mark_fails) {
    run_alone();
    fake_fail_kind(&fake, FAKE_MARK, 1, MT_EDEVMEM);
    step_by(BATCH, 3, "begin rollback begin accumulate(0+64) apply");
}

/* The memory is not there when it is wanted again: tried like any other that is refused. */
TEST("fails", not_given_back) {
    run_alone();
    fake_fail_kind(&fake, FAKE_HOLD_GRADIENTS, 1, MT_EDEVMEM);
    step_by(2 * BATCH, 3,
            "hold!(0+1) hold(0+1) begin accumulate(0+43) accumulate(43+43) accumulate(86+42) "
            "apply");
    step(trainer, BATCH, 4);
    fake_fail_kind_for_ever(&fake, FAKE_HOLD_GRADIENTS, 1, MT_EDEVMEM);
    step_fails(trainer, 2 * BATCH, 5, MT_EDEVMEM);
    fake_fail_kind(&fake, FAKE_HOLD_GRADIENTS, 0, MT_OK);
    step(trainer, 2 * BATCH, 5);
    fake_fail_kind(&fake, FAKE_HOLD_GRADIENTS, 1, MT_EUSER);
    step(trainer, BATCH, 6);
    step_fails(trainer, 2 * BATCH, 7, MT_EUSER);
}

/* ---- the trace -------------------------------------------------------------------------------- */

static size_t plans_alone;

static void count_plans(void *user, const char *line) {
    (void)user;
    plans_alone +=
        strstr(line, "\"chunks\":[64]") != NULL && strstr(line, "\"alone\":true") != NULL;
}

TEST("trace", in_the_trace) {
    own.policy = &policy;
    own.trace = count_plans;
    trainer = trainer_of(&options, &own);
    for (uint64_t id = 1; id < 4; id++) step(trainer, BATCH, id);
    ck_assert_uint_eq(plans_alone, 1);
}

/* The same chunk of other samples, beside gradients that are held and then without: another plan. */
TEST("trace", in_the_trace_of_two_shapes) {
    static const uint64_t large[] = {1, 0, 1};  /* twice as large */
    static const size_t expected[] = {1, 2, 2}; /* the last one is the plan of before */

    options.budget_bytes = room_for(2 * BATCH);
    policy.keep_chunks = MT_KEEP_ALWAYS;
    policy.deterministic = 0;
    options.shapes = 1;
    own.policy = &policy;
    own.trace = count_plans;
    trainer = trainer_of(&options, &own);
    for (int i = 0; i < LENGTH(large); i++) {
        for (uint64_t id = 0; id < 4; id++) step(trainer, BATCH, (large[i] << 32) + id);
        ck_assert_uint_eq(plans_alone, expected[i]);
    }
}

static int plans_by_memory;

static void count_reasons(void *user, const char *line) {
    (void)user;
    plans_by_memory += strstr(line, "\"reason\":\"growth\"") != NULL ||
                       strstr(line, "\"reason\":\"budget\"") != NULL;
}

/* Whether the batch is one chunk or several is a matter of speed while memory stays what it is. */
TEST_LOOP("trace", the_reason_is_speed, LENGTH(speeds)) {
    options.seconds = speeds[_i].seconds;
    own.trace = count_reasons;
    trainer = trainer_of(&options, &own);
    for (uint64_t id = 1; id < 12; id++) step(trainer, BATCH, id);
    ck_assert_int_eq(fake.holding, speeds[_i].holding);
    ck_assert_int_eq(plans_by_memory, 0);
}

TRAINER_SUITE_FROM("trainer_alone", begin)
