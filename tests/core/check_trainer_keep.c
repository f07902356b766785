/*
 * check_trainer_keep.c - chunks that are finished stay: with mark and rewind an OOM costs the chunk that
 * it hits, where there is room for a second set of gradients.
 */
#include "suite.h"
#include "trainer_rungs.h"
#include "trainer_tests.h"

/* One allocation that lives as long as the chunk: a second set of gradients adds to the peak. */
static const fake_allocation plain_allocations[] = {{1000, 2000, FAKE_AT_END}};
static const fake_program plain = {plain_allocations, 1};

#define KEEP_KINDS (FAKE_STEP_KINDS | FAKE_BIT(FAKE_MARK))

/* Bytes for a chunk of m samples, and for a second set of gradients beside it. */
static size_t room_for(size_t m) {
    return fake_defaults.resident_bytes + fake_program_peak(&plain, m);
}

/* Chunks of 16, as memory and options have it, and room for more. */
static void begin(void) {
    begin_defaults();
    options.train = plain;
    options.keep = 1;
    options.budget_bytes = room_for(40);
    policy.deterministic = 1;
    policy.max_micro_batch = 16;
    policy.keep_chunks = MT_KEEP_ALWAYS;
}

static void check_calls(const char *expected) {
    ck_assert_str_eq(fake_log_text(&fake, KEEP_KINDS), expected);
    fake_log_clear(&fake);
}

/* The budget becomes another in the middle of a step, before so many more chunks. */
static struct {
    mt_backend seam;
    int chunks;
    size_t budget;
} change;

static int calls_to_fail[2]; /* of accumulate from here on; 0: none */

static mt_status accumulate_and_change(void *self, size_t first, size_t count, double weight,
                                       mt_chunk_result *out) {
    if (change.chunks > 0 && --change.chunks == 0) fake.options.budget_bytes = change.budget;
    for (int i = 0; i < 2; i++)
        if (calls_to_fail[i] > 0 && --calls_to_fail[i] == 0)
            fake_fail_kind(&fake, FAKE_ALLOCATION, 1, MT_EDEVMEM);
    return change.seam.accumulate(self, first, count, weight, out);
}

static void change_budget_at(int chunks, size_t budget) {
    change.chunks = chunks;
    change.budget = budget;
}

/* The trainer has learnt, and its log is empty. */
static void learn(void) {
    mt_backend seam = change.seam = new_seam();

    own.policy = &policy;
    seam.accumulate = accumulate_and_change;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    step(trainer, 64, 1);
    fake_log_clear(&fake);
}

/* The last step's chunks, given to a trainer that meets no OOM, end with the same bits. */
static void check_same_bits(const mt_step_report *report) {
    static const size_t first[] = {16, 16, 16, 16}; /* as the one that has learnt took them */
    size_t chunks[64], count = report->chunk_count;
    uint64_t hash = fake_hash(&fake);

    memcpy(chunks, report->chunks, count * sizeof(*chunks));
    end_trainer();
    options.budget_bytes = 0;
    trainer = trainer_with(&options, &policy);
    step_in(first, LENGTH(first), 64, 1);
    step_in(chunks, count, 64, 2);
    ck_assert_uint_eq(fake_hash(&fake), hash);
}

/* ---- one chunk is taken back ----------------------------------------------------------------- */

static const struct {
    const char *name;
    int first, second; /* calls of accumulate that fail */
    const char *calls;
    unsigned retries;
    size_t discarded;
} failures[] = {
    {"none", 0, 0,
     "begin mark accumulate(0+16) mark accumulate(16+16) mark accumulate(32+16) mark "
     "accumulate(48+16) apply",
     0, 0},
    {"the first chunk", 1, 0,
     "begin mark accumulate!(0+16) rewind mark accumulate(0+16) mark accumulate(16+16) mark "
     "accumulate(32+16) mark accumulate(48+16) apply",
     1, 16},
    {"the third", 3, 0,
     "begin mark accumulate(0+16) mark accumulate(16+16) mark accumulate!(32+16) rewind mark "
     "accumulate(32+16) mark accumulate(48+16) apply",
     1, 16},
    {"the last", 4, 0,
     "begin mark accumulate(0+16) mark accumulate(16+16) mark accumulate(32+16) mark "
     "accumulate!(48+16) rewind mark accumulate(48+16) apply",
     1, 16},
    {"two", 2, 4,
     "begin mark accumulate(0+16) mark accumulate!(16+16) rewind mark accumulate(16+16) mark "
     "accumulate!(32+16) rewind mark accumulate(32+16) mark accumulate(48+16) apply",
     2, 32},
    {"one twice", 2, 3,
     "begin mark accumulate(0+16) mark accumulate!(16+16) rewind mark accumulate!(16+16) rewind "
     "mark accumulate(16+16) mark accumulate(32+16) mark accumulate(48+16) apply",
     2, 32},
};

TEST_LOOP("back", finished_chunks_stay, LENGTH(failures)) {
    mt_step_report report;

    learn();
    calls_to_fail[0] = failures[_i].first;
    calls_to_fail[1] = failures[_i].second;
    report = step(trainer, 64, 2);
    check_calls(failures[_i].calls);
    ck_assert_uint_eq(report.retries, failures[_i].retries);
    ck_assert_uint_eq(report.discarded, failures[_i].discarded);
    ck_assert_uint_eq(report.chunk_count, 4);
    check_same_bits(&report);
}

/* Apply and begin have nothing that could be kept. */
TEST("back", apply_fails) {
    mt_step_report report;

    learn();
    fake_fail_kind(&fake, FAKE_APPLY, 1, MT_EDEVMEM);
    report =
        step_by(32, 2,
                "begin accumulate(0+16) accumulate(16+16) apply! rollback begin accumulate(0+16) "
                "accumulate(16+16) apply");
    ck_assert_uint_eq(report.discarded, 32);
}

/* A plan for what was left of a step is none for the whole of it, once that is taken back. */
TEST("back", apply_fails_after_a_chunk) {
    mt_step_report report;

    learn();
    change_budget_at(4, room_for(12));
    fake_fail_kind(&fake, FAKE_APPLY, 1, MT_EDEVMEM);
    report = step(trainer, 64, 2);
    ck_assert_uint_eq(report.samples, 64);
    ck_assert_uint_eq(count_kind(FAKE_APPLY), 2);
    check_same_bits(&report);
}

/* ---- when there is room ----------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t budget; /* above a chunk of 16; SIZE_MAX: no budget */
    int absent, whole_steps, normalises;
    size_t marks;
} rooms[] = {
    {"to the byte", FAKE_GRADIENT_BYTES, 0, 0, 0, 4},
    {"one byte is missing", FAKE_GRADIENT_BYTES - 1, 0, 0, 0, 0},
    {"the chunk alone", 0, 0, 0, 0, 0},
    {"much", 100000, 0, 0, 0, 4},
    {"no budget", SIZE_MAX, 0, 0, 0, 4},
    {"whole steps are wanted", 100000, 0, 1, 0, 0},
    {"no mark", 100000, FAKE_MARK, 0, 0, 0},
    {"no rewind", 100000, FAKE_REWIND, 0, 0, 0},
    {"normalising", 100000, 0, 0, 1, 4},
};

TEST_LOOP("room", room_for_a_second_set, LENGTH(rooms)) {
    size_t more = rooms[_i].budget;
    mt_backend seam;

    options.budget_bytes = more == SIZE_MAX ? 0 : room_for(16) + more;
    policy.keep_chunks = rooms[_i].whole_steps ? MT_KEEP_NEVER : MT_KEEP_ALWAYS;
    own.policy = &policy;
    options.normalises_over_batch = rooms[_i].normalises;
    seam = new_seam();
    if (rooms[_i].absent == FAKE_MARK) seam.mark = NULL;
    if (rooms[_i].absent == FAKE_REWIND) seam.rewind = NULL;
    ck_ok(mt_trainer_new(&seam, &own, &trainer));
    step(trainer, 64, 1);
    fake_log_clear(&fake);
    step(trainer, 64, 2);
    ck_assert_msg(count_kind(FAKE_MARK) == rooms[_i].marks, "%s", rooms[_i].name);
    ck_assert_uint_eq(count_kind(FAKE_ACCUMULATE), 4);
    ck_assert_uint_eq(fake.genuine, 0);
}

/* What chunks with a second set were measured to need goes before the bound. */
TEST("room", known_by_measuring) {
    options.train = fake_train_program; /* its peak is past when the gradients come */
    options.budget_bytes = fake_defaults.resident_bytes +
                           fake_program_peak(&fake_train_program, 16) + FAKE_GRADIENT_BYTES;
    trainer = trainer_with(&options, &policy);
    for (uint64_t id = 1; id < 3; id++) step(trainer, 64, id);
    fake.options.budget_bytes -= FAKE_GRADIENT_BYTES;
    fake_log_clear(&fake);
    step(trainer, 64, 5);
    ck_assert_uint_eq(count_kind(FAKE_MARK), 4);
    ck_assert_uint_eq(fake.genuine, 0);
}

/*
 * Told of the gradients in it, one recording knows both peaks: chunks are kept from the first step on
 * where there is room for that, without an OOM before.
 */
static const struct {
    const char *name;
    const fake_program *program;
    size_t budget; /* above a chunk of 16 */
    int tells;
    size_t marks, chunks;
} known_rooms[] = {
    {"past the peak", &fake_train_program, 0, 1, 4, 4},
    {"past the peak, not told", &fake_train_program, 0, 0, 0, 4},
    {"at the peak", &plain, FAKE_GRADIENT_BYTES, 1, 4, 4},
    {"at the peak, one byte is missing", &plain, FAKE_GRADIENT_BYTES - 1, 1, 5, 5},
    {"at the peak, not told", &plain, FAKE_GRADIENT_BYTES, 0, 0, 4},
};

TEST_LOOP("room", known_from_one_recording, LENGTH(known_rooms)) {
    policy.keep_chunks = MT_KEEP_AUTO;
    options.train = *known_rooms[_i].program;
    options.tells_gradients = known_rooms[_i].tells;
    options.budget_bytes = fake_defaults.resident_bytes + known_rooms[_i].budget +
                           fake_program_peak(&options.train, 16);
    trainer = trainer_with(&options, &policy);
    step(trainer, 64, 1);
    fake_log_clear(&fake);
    step(trainer, 64, 2);
    ck_assert_msg(count_kind(FAKE_MARK) == known_rooms[_i].marks, "%s", known_rooms[_i].name);
    ck_assert_uint_eq(count_kind(FAKE_ACCUMULATE), known_rooms[_i].chunks);
    ck_assert_uint_eq(fake.genuine, 0);
}

/* Chunks of an evaluation, of a replay and of a recording that is taken back are not marked. */
TEST("room", not_marked) {
    static const size_t chunks[] = {16, 16};

    options.normalises_over_batch = 1;
    trainer = trainer_with(&options, &policy);
    step(trainer, 6, 1);
    check_calls(
        printed("begin accumulate(0+%d) rollback begin mark accumulate(0+6) apply", FIRST_CHUNK));
    evaluate(trainer, 32, 1);
    ck_assert_uint_eq(count_kind(FAKE_MARK), 0);
    fake_log_clear(&fake);
    ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 2, MT_EDEVMEM);
    step(trainer, 32, 2);
    check_calls("begin accumulate(0+16) accumulate!(16+16) rollback begin accumulate(0+16) "
                "accumulate(16+16) apply");
}

/* ---- the second set is given up ---------------------------------------------------------------- */

static size_t ooms, given_up;

static void count_ooms(void *user, const char *line) {
    (void)user;
    if (strstr(line, "\"event\":\"oom\"") == NULL) return;
    ooms++;
    given_up += strstr(line, "\"action\":\"give_up\"") != NULL;
}

/*
 * Not even the smallest chunk fits any more. What is left has no plan, so the finished chunk is taken back as well and
 * the batch is planned anew; that there is none for that either is told once.
 */
TEST("given up", nothing_fits_any_more) {
    options.budget_bytes = room_for(16) + FAKE_GRADIENT_BYTES;
    policy.min_micro_batch = 8;
    own.trace = count_ooms;
    learn();
    ooms = given_up = 0;
    change_budget_at(2, room_for(8) - 1);
    step_fails(trainer, 64, 2, MT_EDEVMEM);
    check_calls("begin mark accumulate(0+16) mark accumulate!(16+16) rewind rollback");
    ck_assert_uint_eq(ooms, 2); /* that of the chunk, and that nothing is left to try */
    ck_assert_uint_eq(given_up, 1);
    fake.options.budget_bytes = options.budget_bytes;
    step(trainer, 64, 2);
}

/* The budget shrinks in the middle of a step; what is done stays wherever it can. */
static const struct {
    const char *name;
    int chunk;       /* before which it does */
    size_t fits;     /* chunks of so many samples, ... */
    size_t more;     /* and these bytes */
    size_t smallest; /* legal chunk */
    size_t discarded, chunks;
    const char *calls;
} shrinks[] = {
    {"the room for the second set is gone: chunks keep their size", 2, 16, 100, 0, 16, 4,
     "begin mark accumulate(0+16) mark accumulate!(16+16) rewind accumulate(16+16) "
     "accumulate(32+16) accumulate(48+16) apply"},
    {"less room than for the chunk itself: then it is made smaller", 2, 9, 0, 0, 16, 7,
     "begin mark accumulate(0+16) mark accumulate!(16+16) rewind accumulate(16+8) accumulate(24+8) "
     "accumulate(32+8) accumulate(40+8) accumulate(48+8) accumulate(56+8) apply"},
    {"what is left may be no more to cut, where the whole batch is: then that is", 4, 14, 0, 12, 64,
     5,
     "begin mark accumulate(0+16) mark accumulate(16+16) mark accumulate(32+16) mark "
     "accumulate!(48+16) rewind rollback begin accumulate(0+13) accumulate(13+13) "
     "accumulate(26+13) accumulate(39+13) accumulate(52+12) apply"},
};

TEST_LOOP("given up", given_up_first, LENGTH(shrinks)) {
    mt_step_report report;

    options.budget_bytes = room_for(16) + FAKE_GRADIENT_BYTES;
    policy.min_micro_batch = shrinks[_i].smallest;
    own.trace = count_ooms;
    learn();
    change_budget_at(shrinks[_i].chunk, room_for(shrinks[_i].fits) + shrinks[_i].more);
    report = step(trainer, 64, 2);
    ck_assert_msg(strcmp(fake_log_text(&fake, KEEP_KINDS), shrinks[_i].calls) == 0, "%s: %s",
                  shrinks[_i].name, fake_log_text(&fake, KEEP_KINDS));
    ck_assert_uint_eq(report.discarded, shrinks[_i].discarded);
    ck_assert_uint_eq(report.chunk_count, shrinks[_i].chunks);
    ck_assert_uint_eq(given_up, 0);
    check_same_bits(&report);
}

/* Wherever in a step with an OOM the backend's memory cannot be read: the step is over and undone. */
TEST("given up", memory_is_not_told) {
    uint64_t n = 0, failed = 0, fired;

    options.budget_bytes = room_for(16) + FAKE_GRADIENT_BYTES;
    do {
        mt_batch batch = batch_of(64, 2);
        uint64_t before;
        mt_status status;

        learn();
        before = fake_hash(&fake);
        change_budget_at(2, room_for(9));
        fake_fail_kind(&fake, FAKE_MEMORY, ++n, MT_EIO);
        status = mt_trainer_step(trainer, &batch, NULL);
        fired = fake.fired;
        ck_assert(status == MT_OK || (status == MT_EIO && fired));
        ck_assert((fake_hash(&fake) == before) == (status != MT_OK));
        if (status != MT_OK) ck_contains(mt_last_error(), "injected: memory");
        failed += status != MT_OK;
        change_budget_at(0, 0);
        fake_fail_kind(&fake, FAKE_MEMORY, 0, MT_OK);
        step(trainer, 64, 2);
        end_trainer();
    } while (fired);
    ck_assert_uint_ge(failed, 10); /* all but the one of the report */
    ck_assert_uint_eq(failed, n - 2);
}

/* More room than there was when it failed: it is kept again at once. */
TEST("given up", kept_again_in_more_room) {
    options.budget_bytes = room_for(16) + FAKE_GRADIENT_BYTES;
    learn();
    change_budget_at(2, room_for(16) + 100);
    step(trainer, 64, 2);
    fake_log_clear(&fake);
    step(trainer, 64, 3);
    ck_assert_uint_eq(count_kind(FAKE_MARK), 0);
    fake.options.budget_bytes = options.budget_bytes;
    step(trainer, 64, 4);
    ck_assert_uint_eq(count_kind(FAKE_MARK), 4);
}

/* The budget says that there is room, and there is not: tried again ever more seldom. */
TEST("given up", forgotten_after_a_while) {
    uint64_t id = 2;

    options.budget_bytes = room_for(16) + FAKE_GRADIENT_BYTES;
    options.device_bytes = room_for(16) + 100;
    options.no_evidence = 1;
    learn(); /* it fails, and is given up */
    for (int round = 0, wait = FAILURE_WAIT; round < 3; round++, wait *= 2) {
        int without = 0;

        for (fake_log_clear(&fake); count_kind(FAKE_MARK) == 0 && without < 200; without++)
            step(trainer, 64, id++);
        ck_assert_int_ge(without, wait - 1);
        ck_assert_int_le(without, wait);
    }
}

/* ---- other rungs ------------------------------------------------------------------------------- */

/* They change outside a step alone: what is done has to be taken back after all. */
TEST("rungs", other_rungs) {
    mt_step_report report;

    options.rungs = BIT(CHECKPOINTING);
    policy.min_micro_batch = 8;
    learn();
    change_budget_at(3, room_for(8) - 1);
    report = step(trainer, 64, 2);
    ck_assert_uint_eq(report.rungs, BIT(CHECKPOINTING));
    ck_assert_uint_eq(count_kind(FAKE_REWIND), 1);
    ck_assert_ptr_nonnull(strstr(fake_log_text(&fake, FAKE_STEP_KINDS),
                                 "accumulate!(32+16) rewind rollback set_rung(1+1) begin "));
    ck_assert_uint_ge(report.discarded, 48);
}

/* A batch made smaller: its chunks cover its samples, in every attempt. */
TEST_LOOP("rungs", with_a_smaller_batch, 3) {
    static const fake_kind kinds[] = {FAKE_ACCUMULATE, FAKE_MARK, FAKE_APPLY};
    const size_t least = 8, chunk = cut_once(12) > least ? cut_once(12) : least;
    /* A chunk that fails twice is made smaller again. */
    const size_t taken[] = {3 * least, 3 * chunk, 3 * chunk};

    policy = allowing(BIT(SMALLER_BATCH));
    options.may_shorten = 1;
    options.min_micro_batch = least;
    options.units = fake_unit_table;
    options.unit_count = FAKE_UNITS_COUNT;
    policy.rate_rule = MT_RATE_LINEAR;
    trainer = trainer_with(&options, &policy);
    step(trainer, 64, 1);
    fake.options.budget_bytes = room_for(12) - 1;
    ck_assert_uint_eq(some(trainer, 12, 1).samples, chunk);
    fake.options.budget_bytes = room_for(12) + FAKE_GRADIENT_BYTES;
    fake_fail_kind_for_ever(&fake, kinds[_i], 2, MT_EDEVMEM);
    fake.kind_fail_until[kinds[_i]] = 3; /* twice: the second time it is planned again */
    ck_assert_uint_eq(some(trainer, 30, 2).samples, taken[_i]);
    ck_assert_double_eq(fake.rate, (double)taken[_i] / 30);
    fake_log_clear(&fake);
    ck_assert_uint_eq(some(trainer, 30, 2).samples, taken[_i]);
    ck_assert_uint_eq(count_kind(FAKE_MARK), 0); /* what is left would be made smaller again */
}

/* Samples of the chunks that failed. */
static size_t samples_failed(void) {
    size_t samples = 0;

    for (const char *at = fake_log_text(&fake, FAKE_BIT(FAKE_ACCUMULATE)); *at; at++) {
        size_t first, count;

        if (sscanf(at, "accumulate!(%zu+%zu)", &first, &count) == 2) samples += count;
    }
    return samples;
}

/* A step of one chunk that has failed for no reason again and again is made smaller outside of it. */
TEST("rungs", made_smaller_outside_the_step) {
    const size_t less = cut_once(50), least = cut_once(less);
    mt_step_report report;

    options.budget_bytes = room_for(100);
    policy = allowing(BIT(SMALLER_BATCH));
    options.may_shorten = 1;
    options.needs_whole_batch = 1;
    policy.rate_rule = MT_RATE_LINEAR;
    policy.max_retries = 100;
    trainer = trainer_with(&options, &policy);
    step(trainer, 50, 1);
    fake_fail_kind_for_ever(&fake, FAKE_ALLOCATION, 1, MT_EDEVMEM);
    fake.kind_fail_until[FAKE_ALLOCATION] = 6;
    report = some(trainer, 50, 2);
    ck_assert_uint_eq(report.samples, least);
    ck_assert_uint_eq(report.discarded, samples_failed());
}

static char told[2000]; /* lines of the trace */

static void keep_lines(void *user, const char *line) {
    (void)user;
    if (strstr(line, "\"event\":\"oom\"") != NULL)
        snprintf(told + strlen(told), sizeof(told) - strlen(told), "%s\n", line);
}

/* Memory that runs out between two chunks is told as none of a chunk, also after one that ran out itself. */
TEST_LOOP("room", between_chunks, 12) {
    mt_batch batch = batch_of(48, 2);
    size_t of_a_chunk = 0;

    own.trace = keep_lines;
    learn();
    told[0] = '\0';
    calls_to_fail[0] = 2;
    fake_fail_kind(&fake, FAKE_MEMORY, (uint64_t)_i + 1, MT_EDEVMEM);
    (void)!mt_trainer_step(trainer, &batch, NULL);
    for (const char *at = told; (at = strstr(at, "\"chunk\":16,")) != NULL; at++) of_a_chunk++;
    ck_assert_uint_le(of_a_chunk, 1);
}

/* ---- what fails -------------------------------------------------------------------------------- */

/* A mark for which there was no room has not happened: the chunk runs without. */
TEST_LOOP("fails", mark_refused, 4) {
    static const mt_status why[] = {MT_EDEVMEM, MT_ENOTSUP};

    learn();
    fake_fail_kind(&fake, FAKE_MARK, 2, why[_i % 2]);
    if (_i / 2 == 1) fake_fail_kind(&fake, FAKE_ACCUMULATE, 2, MT_EDEVMEM);
    ck_assert_uint_eq(step(trainer, 48, 2).retries, (unsigned)_i / 2);
    if (_i / 2 == 0)
        check_calls("begin mark accumulate(0+16) mark! accumulate(16+16) mark accumulate(32+16) "
                    "apply");
    else /* and where it fails it costs the step */
        check_calls("begin mark accumulate(0+16) mark! accumulate!(16+16) rollback begin mark "
                    "accumulate(0+16) mark accumulate(16+16) mark accumulate(32+16) apply");
}

TEST_LOOP("fails", mark_fails, 3) {
    static const mt_status why[] = {MT_EIO, MT_EUSER, MT_ETORCH};

    learn();
    fake_fail_kind(&fake, FAKE_MARK, 2, why[_i]);
    step_refused(48, 2, why[_i], "injected: mark");
    check_calls("begin mark accumulate(0+16) mark! rollback");
    step(trainer, 48, 2);
}

/* A chunk that fails for another reason than memory ends the step, which is taken back whole. */
TEST("fails", chunk_fails) {
    learn();
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 2, MT_EUSER);
    step_fails(trainer, 48, 2, MT_EUSER);
    check_calls("begin mark accumulate(0+16) mark accumulate!(16+16) rollback");
}

TEST("fails", rewind_fails) {
    mt_batch batch = batch_of(48, 2);
    size_t calls;

    learn();
    fake_fail_kind(&fake, FAKE_ACCUMULATE, 2, MT_EDEVMEM);
    fake_fail_kind(&fake, FAKE_REWIND, 1, MT_EIO);
    ck_refused(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE, "rewind");
    calls = fake.logged;
    ck_refused(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE, "injected: rewind");
    ck_status(mt_trainer_set_rungs(trainer, 0, 1), MT_ESTATE);
    ck_assert_uint_eq(fake.logged, calls);
    mt_trainer_free(trainer); /* its mark stays open */
    trainer = NULL;
}

/* A recording that does not stop, of a chunk that went through or of one that did not fit. */
static struct {
    uint64_t stops, fail_at;
    int chunk_fails;
} stop;

static mt_status record_and_fail(void *self, const mt_event_sink *sink) {
    mt_status status = change.seam.record(self, sink);

    if (sink != NULL && stop.chunk_fails && stop.stops + 1 == stop.fail_at)
        fake_fail_kind(&fake, FAKE_ALLOCATION, 1, MT_EDEVMEM);
    if (sink != NULL || ++stop.stops != stop.fail_at) return status;
    return mt_set_error(MT_EIO, "still recording");
}

/* It is no chunk that failed, so none is taken back alone. */
TEST_LOOP("fails", recording_does_not_stop, 2) {
    options.budget_bytes = 0; /* as much as it likes: chunks are marked from the first on */
    own.policy = &policy;
    stop.chunk_fails = _i;
    for (stop.fail_at = 1; stop.fail_at < 100; stop.fail_at++) {
        mt_batch batch = batch_of(64, 1);
        mt_backend seam = change.seam = new_seam();
        uint64_t before;
        mt_status status;

        seam.record = record_and_fail;
        stop.stops = 0;
        ck_ok(mt_trainer_new(&seam, &own, &trainer));
        before = fake_hash(&fake);
        status = mt_trainer_step(trainer, &batch, NULL);
        ck_assert_uint_eq(count_kind(FAKE_REWIND), 0);
        if (stop.stops < stop.fail_at) { /* so many chunks were recorded */
            ck_ok(status);
            break;
        }
        ck_assert_uint_eq(count_kind(FAKE_ROLLBACK), 1);
        ck_status(status, _i == 0 ? MT_EIO : MT_OK); /* an OOM is tried again */
        if (_i == 0) ck_contains(mt_last_error(), "still recording");
        ck_assert((fake_hash(&fake) == before) == (_i == 0));
        step(trainer, 64, 2);
        end_trainer();
    }
    ck_assert_uint_gt(stop.fail_at, 1);
    ck_assert_uint_lt(stop.fail_at, 100);
}

/* What is finished is to be taken back after all, for a plan of the whole, and cannot be. */
TEST("fails", rollback_fails) {
    mt_batch batch = batch_of(64, 2);

    options.budget_bytes = room_for(16) + FAKE_GRADIENT_BYTES;
    policy.min_micro_batch = 12;
    learn();
    change_budget_at(4, room_for(14));
    fake_fail_kind(&fake, FAKE_ROLLBACK, 1, MT_EIO);
    ck_refused(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE, "injected: rollback");
    check_calls("begin mark accumulate(0+16) mark accumulate(16+16) mark accumulate(32+16) mark "
                "accumulate!(48+16) rewind rollback!");
    ck_status(mt_trainer_step(trainer, &batch, NULL), MT_ESTATE);
    check_calls("");
}

/* ---- the trace --------------------------------------------------------------------------------- */

static size_t plans, plans_with_keep;

static void count_plans(void *user, const char *line) {
    (void)user;
    if (strstr(line, "\"event\":\"plan\"") == NULL) return;
    plans++;
    plans_with_keep += strstr(line, ",\"keep\":true") != NULL;
}

/* Plans say whether chunks are kept; giving that up is another plan. */
TEST("trace", keep_in_the_trace) {
    options.budget_bytes = room_for(16) + FAKE_GRADIENT_BYTES;
    own.policy = &policy;
    own.trace = count_plans;
    trainer = trainer_of(&options, &own);
    plans = plans_with_keep = 0;
    for (uint64_t id = 1; id < 3; id++) step(trainer, 64, id);
    ck_assert_uint_eq(plans, 4); /* three are taken back */
    ck_assert_uint_eq(plans_with_keep, 1);
    fake.options.budget_bytes -= FAKE_GRADIENT_BYTES;
    step(trainer, 64, 3);
    ck_assert_uint_eq(plans, 5);
    ck_assert_uint_eq(plans_with_keep, 1);
}

TRAINER_SUITE_FROM("trainer_keep", begin)
