/*
 * check_ex_replay.c - traces as files: written by a run, read back, replayed to the same state; and
 * traces that are damaged or belong to another run.
 */
#include "cli.h"
#include "fake_backend.h"
#include "replay.h"
#include "tracefile.h"

#include <sys/stat.h>
#include <unistd.h>

#define STEP(step, samples, chunks)                                                                \
    "{\"event\":\"step\",\"step\":" #step ",\"samples\":" #samples ",\"chunks\":" chunks "}\n"
#define PROGRAM(threads) "{\"event\":\"program\",\"threads\":" threads "}\n"
#define RUN "{\"event\":\"run\",\"version\":\"0.1.0\"}\n"

static ex_replay *open_text(const char *text) {
    ex_replay *replay;
    cli_write_file(cli_trace, text);
    ck_ok(ex_replay_open(cli_trace, &replay));
    return replay;
}

/* ---- a run on the fake backend ------------------------------------------------------------------- */

enum { STEPS = 6 };

typedef struct run {
    fake_backend fake;
    ex_tracefile *trace;
    mt_trainer *trainer;
    char chunks[STEPS][64];
    uint64_t hash;
} run;

static void start_on(run *r, const fake_options *fake, const mt_policy_options *policy,
                     const char *trace) {
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    fake_init(&r->fake, fake);
    r->fake.counted = FAKE_BIT(FAKE_ALLOCATION);
    ck_ok(ex_tracefile_open(trace, &r->trace));
    options.policy = policy;
    mt_backend backend = fake_seam(&r->fake);
    options.trace = r->trace ? ex_tracefile_line : NULL;
    options.trace_user = r->trace;
    ck_ok(mt_trainer_new(&backend, &options, &r->trainer));
}

static void start(run *r, size_t budget, const char *trace) {
    fake_options fake = fake_defaults;
    fake.budget_bytes = budget;
    start_on(r, &fake, NULL, trace);
}

/* Where a batch cannot be cut, and is made smaller instead, at a rate to go with it. */
static void start_whole(run *r, size_t budget, const char *trace) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    fake_options fake = fake_defaults;
    fake.budget_bytes = budget;
    fake.needs_whole_batch = 1;
    policy.allow_rungs = MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    policy.rate_rule = MT_RATE_LINEAR;
    start_on(r, &fake, &policy, trace);
}

/* Batches of 32, the last one of 20. The n-th allocation of step 2 fails; 0: none. */
static void train(run *r, uint64_t n, ex_replay *replay) {
    for (uint64_t i = 1; i <= STEPS; i++) {
        mt_batch batch = {sizeof batch, NULL, i < STEPS ? 32 : 20, i};
        mt_step_report report = MT_STEP_REPORT_INIT;
        if (i == 2 && n) fake_fail_at(&r->fake, n, 0);
        ck_ok(ex_replay_next(replay, batch.count, r->trainer));
        ck_ok(mt_trainer_step(r->trainer, &batch, &report));
        size_t used = 0;
        for (size_t c = 0; c < report.chunk_count; c++)
            used += (size_t)snprintf(r->chunks[i - 1] + used, sizeof r->chunks[0] - used, "%zu ",
                                     report.chunks[c]);
        if (replay) ck_assert_int_eq(report.reason, MT_PLAN_REPLAY);
    }
    r->hash = fake_hash(&r->fake);
    ck_ok(mt_trainer_finish(r->trainer, NULL));
    mt_trainer_free(r->trainer);
    ck_ok(ex_tracefile_close(r->trace));
}

/* Budget in which the fake's batch of 32 has to be cut. */
static size_t tight(void) {
    return fake_defaults.resident_bytes + fake_program_peak(&fake_train_program, 13);
}

static void run_and_replay(uint64_t n) {
    static run first, second;
    ex_replay *replay;
    start(&first, tight(), cli_trace);
    train(&first, n, NULL);
    ck_ok(ex_replay_open(cli_trace, &replay));
    ck_assert_uint_eq(ex_replay_steps(replay), STEPS);
    start(&second, 0, NULL); /* without a limit it would not cut at all */
    train(&second, 0, replay);
    for (int i = 0; i < STEPS; i++) ck_assert_str_eq(first.chunks[i], second.chunks[i]);
    ck_assert_uint_eq(first.hash, second.hash);
    ex_replay_free(replay);
}

TEST("same state", a_replay_ends_in_the_same_state) {
    run_and_replay(0);
}

TEST_LOOP("same state", a_replay_of_a_recovery_ends_in_the_same_state, 39) {
    run_and_replay((uint64_t)_i + 1);
}

/* Smaller batches of a run that has too little memory are replayed from whole ones. */
TEST("same state", a_replay_of_smaller_batches_ends_in_the_same_state) {
    static run first, second;
    ex_replay *replay;
    start_whole(&first, tight(), cli_trace);
    train(&first, 0, NULL);
    ck_assert_str_eq(first.chunks[STEPS - 2], "12 ");
    ck_ok(ex_replay_open(cli_trace, &replay));
    start_whole(&second, 0, NULL);
    train(&second, 0, replay);
    for (int i = 0; i < STEPS; i++) ck_assert_str_eq(first.chunks[i], second.chunks[i]);
    ck_assert_uint_eq(first.hash, second.hash);
    ex_replay_free(replay);
}

/* ---- reading ------------------------------------------------------------------------------------- */

TEST("reading", no_trace_is_no_replay) {
    ex_replay *replay;
    ex_tracefile *file;
    ck_ok(ex_replay_open(NULL, &replay));
    ck_assert_ptr_null(replay);
    ck_assert_uint_eq(ex_replay_steps(NULL), SIZE_MAX);
    ck_assert_int_eq(ex_replay_threads(NULL), 0);
    ck_ok(ex_replay_check(NULL, "cat", 1, 32, NULL, 0));
    ck_ok(ex_replay_check_rungs(NULL, 0));
    ck_ok(ex_replay_next(NULL, 32, NULL));
    ex_replay_free(NULL);
    ck_ok(ex_tracefile_open(NULL, &file));
    ck_assert_ptr_null(file);
    ex_tracefile_line(NULL, "{}");
    ck_ok(ex_tracefile_close(NULL));
}

TEST("reading", other_events_are_passed_over) {
    ex_replay *replay = open_text(RUN "{\"event\":\"oom\",\"chunks\":0}\n" STEP(
        1, 5, "[3,2]") "{\"event\":\"of a later version\"}\n" STEP(2, 4, "[4]"));
    ck_assert_uint_eq(ex_replay_steps(replay), 2);
    ck_assert_int_eq(ex_replay_threads(replay), 0);
    ex_replay_free(replay);
}

TEST("reading", the_program_line_tells_the_threads) {
    ex_tracefile *file;
    ex_replay *replay;
    char quoted[] = "say \"hi\"\n", broken[] = "\xff", program[] = "cat";
    char *argv[] = {program, quoted, broken, NULL};
    const ex_setting settings[] = {{"batch", "3"}, {"lr", "0.001"}}, rate = {"lr", "0.1"};
    const ex_setting later = {"of-a-later-version", "1"};
    ck_ok(ex_tracefile_open(cli_trace, &file));
    ex_tracefile_line(file, "{\"event\":\"run\"}");
    ex_trace_program(ex_tracefile_line, file, "cat", 7, 32, NULL, NULL, settings, LENGTH(settings),
                     argv);
    ex_tracefile_line(file, "{\"event\":\"step\",\"step\":1,\"samples\":3,\"chunks\":[3]}");
    ck_ok(ex_tracefile_close(file));
    ck_ok(ex_replay_open(cli_trace, &replay));
    ck_assert_int_eq(ex_replay_threads(replay), 7);
    ck_ok(ex_replay_check(replay, "cat", 1, 32, settings, LENGTH(settings)));
    ck_ok(ex_replay_check(replay, "cat", 1, 32, &later, 1));
    ck_refused(ex_replay_check(replay, "cat", 1, 32, &rate, 1), MT_EINVAL, "--lr: 0.1, but '");
    ck_contains(mt_last_error(), "' was written with 0.001; a replay needs the same");
    ck_refused(ex_replay_check(replay, "cat", 1, 64, settings, LENGTH(settings)), MT_EINVAL,
               "--image-size: 64");
    ck_refused(ex_replay_check(replay, "dog", 1, 32, settings, LENGTH(settings)), MT_EINVAL,
               "' is a run of cat");
    ck_assert_uint_eq(ex_replay_steps(replay), 1);
    ex_replay_free(replay);
}

static char logged[1024];

static void keep_log(void *user, mt_log_level level, const char *text) {
    (void)user;
    if (level == MT_LOG_WARNING) snprintf(logged, sizeof logged, "%s", text);
}

#define SEED "{\"event\":\"run\",\"seed\":1}\n"
#define CAT                                                                                        \
    "{\"event\":\"program\",\"name\":\"cat\",\"threads\":1,\"image_size\":32,\"settings\":{"       \
    "\"lr\":\"1\"}}\n"

/* A trace that has lost lines, and what is said not to be compared. */
static const struct {
    const char *text, *untold;
} lost[] = {
    {SEED CAT STEP(1, 4, "[4]"), NULL},
    {CAT STEP(1, 4, "[4]"), ": --seed; "},
    {SEED STEP(1, 4, "[4]"), ": the program, --threads, --image-size, --lr; "},
    {STEP(1, 4, "[4]"), ": the program, --seed, --threads, --image-size, --lr; "},
    {SEED
     "{\"event\":\"program\",\"name\":\"cat\",\"threads\":1,\"image_size\":32,\"settings\":{\"a\":"
     "\"1\"}}\n" STEP(1, 4, "[4]"),
     ": --lr, --a; "},
};

TEST_LOOP("reading", what_a_trace_does_not_tell_is_said, LENGTH(lost)) {
    const ex_setting rate = {"lr", "1"};
    ex_replay *replay = open_text(lost[_i].text);
    *logged = '\0';
    mt_set_log(keep_log, NULL);
    ck_ok(ex_replay_check(replay, "cat", 1, 32, &rate, 1));
    mt_set_log(NULL, NULL);
    if (lost[_i].untold)
        ck_contains(logged, lost[_i].untold);
    else
        ck_assert_str_eq(logged, "");
    ex_replay_free(replay);
}

/* From 2^63 on it is written as text, since not every reader of JSON has such numbers. */
TEST("reading", a_large_seed_is_compared_too) {
    ex_replay *replay =
        open_text("{\"event\":\"run\",\"seed\":\"9223372036854775808\"}\n" STEP(1, 4, "[4]"));
    ck_refused(ex_replay_check(replay, "cat", 1, 32, NULL, 0), MT_EINVAL, "--seed: 1, but '");
    ck_contains(mt_last_error(), "' was written with 9223372036854775808; a replay needs the same");
    ex_replay_free(replay);
}

#define LOST_LOSS(more)                                                                            \
    "{\"event\":\"step\",\"step\":1,\"samples\":4,\"chunks\":[4],\"loss\":null" more "}\n"

/* What an earlier version applied is taken back today, unless the same is asked for. */
TEST("reading", updates_of_losses_that_are_not_finite) {
    const ex_setting off = {"apply-not-finite", "0"}, on = {"apply-not-finite", "1"};
    ex_replay *replay = open_text(RUN LOST_LOSS(""));
    ck_refused(ex_replay_check(replay, "cat", 1, 32, &off, 1), MT_EINVAL, "line 2");
    ck_contains(mt_last_error(), "the loss of step 1 is not finite and its update was made");
    ck_contains(mt_last_error(), "--apply-not-finite");
    ck_ok(ex_replay_check(replay, "cat", 1, 32, &on, 1));
    ex_replay_free(replay);
    replay = open_text(RUN LOST_LOSS(",\"skipped\":true"));
    ck_ok(ex_replay_check(replay, "cat", 1, 32, &off, 1));
    ex_replay_free(replay);
}

static const struct {
    const char *text;
    const char *has[2];
} damaged[] = {
    {"", {"has no step", ""}},
    {RUN, {"has no step", ""}},
    {RUN "{\"event\":\"st", {"line 2", "not JSON"}},
    {RUN "hello\n", {"line 2", "not JSON"}},
    {RUN "\n", {"line 2", "not JSON"}},
    {"[1,2]\n", {"line 1", "no 'event'"}},
    {"{\"step\":1}\n", {"line 1", "no 'event'"}},
    {RUN STEP(2, 4, "[4]"), {"line 2", "step 1 is expected here, not 2"}},
    {RUN STEP(1, 4, "[4]") STEP(1, 4, "[4]"), {"line 3", "step 2 is expected here, not 1"}},
    {RUN STEP(1, 4, "[]"), {"line 2", "no list of chunks"}},
    {RUN STEP(1, 4, "4"), {"line 2", "no list of chunks"}},
    {RUN STEP(1, 4, "[4,0]"), {"line 2", "chunk 2 is not a number"}},
    {RUN STEP(1, 4, "[4,\"a\"]"), {"line 2", "chunk 2 is not a number"}},
    {RUN STEP(1, 4, "[-4,8]"), {"line 2", "chunk 1 is not a number"}},
    {RUN STEP(1, 5, "[4]"), {"line 2", "add up to 4 samples"}},
    {RUN "{\"event\":\"step\",\"step\":1,\"chunks\":[4]}\n", {"line 2", "add up to 4"}},
    {RUN STEP(1, 4, "[4],\"rungs\":\"cpu\""), {"line 2", "'rungs' is not a list"}},
    {RUN STEP(1, 4, "[4],\"rungs\":[1]"), {"line 2", "'?' is no rung that is known"}},
    {RUN STEP(1, 4, "[4],\"rate\":0"), {"line 2", "'rate' is not a number above 0"}},
    {PROGRAM("0") STEP(1, 4, "[4]"), {"line 1", "'threads' is not a number from 1 to"}},
    {PROGRAM("1099511627776") STEP(1, 4, "[4]"), {"line 1", "'threads' is not a number from 1"}},
};

TEST_LOOP("reading", damaged_traces_are_refused_by_line, LENGTH(damaged)) {
    ex_replay *replay = (ex_replay *)cli_trace;
    cli_write_file(cli_trace, damaged[_i].text);
    ck_status(ex_replay_open(cli_trace, &replay), MT_EINVAL);
    ck_assert_ptr_null(replay);
    ck_says(mt_last_error(), cli_trace, "--replay", damaged[_i].has[0], damaged[_i].has[1]);
}

TEST("reading", files_that_cannot_be_had) {
    ex_replay *replay;
    ex_tracefile *file;
    ck_refused(ex_replay_open("/nonexistent/t.jsonl", &replay), MT_EINVAL,
               "--replay: cannot read '/nonexistent/t.jsonl'");
    ck_refused(ex_replay_open("/tmp", &replay), MT_EINVAL, "/tmp");
    ck_refused(ex_tracefile_open("/nonexistent/t.jsonl", &file), MT_EINVAL,
               "--trace: cannot write '/nonexistent/t.jsonl'");
}

TEST("reading", a_full_disk_is_told) {
    ex_tracefile *file;
    if (!cli_has_full_disk("a_full_disk_is_told")) return;
    ck_ok(ex_tracefile_open("/dev/full", &file));
    ex_tracefile_line(file, "{}");
    ck_refused(ex_tracefile_close(file), MT_EIO, "/dev/full");
}

/* Until the first new line comes the old ones are there: a run may be refused before. */
TEST("reading", an_older_trace_stays_until_the_first_line) {
    static char text[CLI_CAPACITY];
    ex_tracefile *file;
    cli_write_file(cli_trace, "{\"old\":1}\n");
    for (int i = 0; i < 2; i++) {
        ck_ok(ex_tracefile_open(cli_trace, &file));
        if (i) ex_tracefile_line(file, "{}");
        ck_ok(ex_tracefile_close(file));
        cli_read_file(cli_trace, text);
        ck_assert_str_eq(text, i ? "{}\n" : "{\"old\":1}\n");
    }
}

/* A trace is written into what has the name, unlike a checkpoint: a link stays one, and a file keeps its mode. */
TEST("reading", a_trace_through_a_link) {
    static char text[CLI_CAPACITY];
    const char *name = cli_path("link");
    struct stat info;
    ex_tracefile *file;
    cli_write_file(cli_trace, "");
    ck_assert_int_eq(chmod(cli_trace, 0600), 0);
    ck_assert_int_eq(symlink(cli_trace, name), 0);
    ck_ok(ex_tracefile_open(name, &file));
    ex_tracefile_line(file, "{}");
    ck_ok(ex_tracefile_close(file));
    ck_assert(lstat(name, &info) == 0 && S_ISLNK(info.st_mode));
    ck_assert(stat(cli_trace, &info) == 0 && (info.st_mode & 0777) == 0600);
    cli_read_file(cli_trace, text);
    ck_assert_str_eq(text, "{}\n");
}

/* ---- a trace of another run ---------------------------------------------------------------------- */

TEST("another run", other_samples_are_refused) {
    static run r;
    ex_replay *replay = open_text(RUN STEP(1, 32, "[16,16]") STEP(2, 32, "[32]"));
    start(&r, 0, NULL);
    ck_ok(ex_replay_next(replay, 32, r.trainer));
    ck_refused(ex_replay_next(replay, 20, r.trainer), MT_EINVAL, "line 3");
    ck_contains(mt_last_error(), "step 2 has 32 samples there and 20 here");
    mt_trainer_free(r.trainer);
    ex_replay_free(replay);
}

#define SMALLER(step, samples, epoch)                                                              \
    "{\"event\":\"step\",\"step\":" #step ",\"epoch\":" #epoch ",\"samples\":" #samples            \
    ",\"chunks\":[" #samples "],\"rungs\":[\"smaller_batch\"],\"rate\":0.5}\n"

/* An epoch of 50 samples in batches of 20, with the last 10 or without, and what is said of the trace. */
static const struct {
    const char *text;
    size_t least;
    const char *has[2]; /* NULL: it is one of this run */
} batches[] = {
    {RUN STEP(1, 20, "[20]") STEP(2, 20, "[8,12]") STEP(3, 10, "[10]") STEP(4, 20, "[20]"),
     0,
     {NULL}},
    {RUN STEP(1, 20, "[20]") STEP(2, 20, "[20]") STEP(3, 20, "[20]"), 11, {NULL}},
    {RUN STEP(1, 20, "[20]") STEP(2, 20, "[20]") STEP(3, 20, "[20]"),
     10,
     {"line 4", "step 3 has 20 samples there and 10 here"}},
    {RUN STEP(1, 20, "[20]") STEP(2, 20, "[20]") STEP(3, 9, "[9]"),
     10,
     {"line 4", "step 3 has 9 samples there and 10 here"}},
    {SMALLER(1, 9, 1) SMALLER(2, 9, 1) SMALLER(3, 10, 1) SMALLER(4, 20, 2), 0, {NULL}},
    {SMALLER(1, 9, 1) SMALLER(2, 9, 1) SMALLER(3, 9, 2), 11, {NULL}},
    {SMALLER(1, 9, 1) SMALLER(2, 9, 1) SMALLER(3, 9, 2),
     10,
     {"line 3", "step 3 is of epoch 2 there and of 1 here"}},
    {SMALLER(1, 9, 1) SMALLER(2, 21, 1), 0, {"line 2", "step 2 has 21 samples there and 20 here"}},
};

TEST_LOOP("another run", other_batches_are_refused_before_the_first_step, LENGTH(batches)) {
    const ex_epoch epoch = {50, 20, batches[_i].least};
    ex_replay *replay = open_text(batches[_i].text);
    ck_status(ex_replay_check_batches(replay, &epoch), batches[_i].has[0] ? MT_EINVAL : MT_OK);
    for (int i = 0; i < 2 && batches[_i].has[i]; i++)
        ck_contains(mt_last_error(), batches[_i].has[i]);
    ck_ok(ex_replay_check_batches(NULL, &epoch));
    ex_replay_free(replay);
}

TEST("another run", the_end_of_the_trace_is_told) {
    static run r;
    ex_replay *replay = open_text(STEP(1, 32, "[16,16]"));
    start(&r, 0, NULL);
    ck_ok(ex_replay_next(replay, 32, r.trainer));
    ck_refused(ex_replay_next(replay, 32, r.trainer), MT_EINVAL, "ends after step 1");
    mt_trainer_free(r.trainer);
    ex_replay_free(replay);
}

#define SAVED(step, rungs)                                                                         \
    "{\"event\":\"step\",\"step\":" #step ",\"samples\":4,\"chunks\":[4],\"rungs\":[" rungs "]}\n"
#define ON_CARD "{\"event\":\"run\",\"device\":\"cuda:1\"}\n"

/* What the device of the replay has beside smaller batches, and the line about it; NULL: it is enough. */
static const struct {
    const char *text;
    unsigned known;
    const char *has[3];
} savers[] = {
    {ON_CARD STEP(1, 4, "[4]"), 0, {NULL}},
    {ON_CARD SAVED(1, "\"cpu\""), MT_RUNG_BIT(MT_RUNG_CPU), {NULL}},
    {ON_CARD SAVED(1, "\"smaller_batch\""), 0, {NULL}},
    {ON_CARD STEP(1, 4, "[4]") SAVED(2, "\"cpu\",\"minimal\""),
     MT_RUNG_BIT(MT_RUNG_MINIMAL),
     {"line 3: step 2 went on with cpu, which", "--device cuda:1", "--replay"}},
    {ON_CARD SAVED(1, "\"cpu\",\"minimal\""), 0, {"line 2", "with cpu, minimal, which", "cuda:1"}},
    {SAVED(1, "\"cpu\""), 0, {"line 1", "with cpu, which", "of another kind"}},
};

TEST_LOOP("another run", savers_of_another_device_are_refused, LENGTH(savers)) {
    ex_replay *replay = open_text(savers[_i].text);
    mt_status status = ex_replay_check_rungs(replay, savers[_i].known);
    ck_status(status, savers[_i].has[0] ? MT_EINVAL : MT_OK);
    for (int i = 0; i < 3 && savers[_i].has[i]; i++)
        ck_contains(mt_last_error(), savers[_i].has[i]);
    ex_replay_free(replay);
}

int main(void) {
    cli_folder_case("same state");
    cli_folder_case("reading");
    cli_folder_case("another run");
    return suite_run_named("ex_replay");
}
