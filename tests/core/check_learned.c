/*
 * check_learned.c - what a policy has learnt as a file: the next run begins with it, and a file that does not belong, or is
 * damaged in any way, is left out.
 */
#include "counting_allocator.h"
#include "trainer_tests.h"
#include "tuned.h"

#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64], log_text[4000];

static void keep_lines(void *user, mt_log_level level, const char *text) {
    size_t length = strlen(log_text);

    (void)user;
    (void)level;
    snprintf(log_text + length, sizeof(log_text) - length, "%s\n", text);
}

static void begin(void) {
    int file;

    begin_defaults();
    own.learned = path;
    snprintf(path, sizeof(path), "/tmp/check_learned.XXXXXX");
    file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    unlink(path);
    mt_set_log(keep_lines, NULL);
}

static void end(void) {
    end_trainer();
    unlink(path);
}

static void take_model(size_t fitting) {
    options = fits(fitting);
    options.model = 0xabc;
    options.threads = 2;
    options.seconds = fake_seconds;
}

/* ---- the next run ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t fits;
    int normalises, keeps;
    unsigned rungs, absent;
    size_t least;
} runs[] = {
    {"plain", 14, 0, 0, 0, 0, 0},
    {"normalises", 14, 1, 0, 0, 0, FIRST_CHUNK},
    {"keeps", 20, 0, 1, 0, 0, 0},
    /* So many do not fit without it. */
    {"rung", 1, 0, 0, MT_RUNG_BIT(MT_RUNG_CHECKPOINTING), 0, FIRST_CHUNK},
    {"unrecorded", 5, 0, 0, 0, FAKE_BIT(FAKE_RECORD), 0},
    {"few fit", 2, 0, 0, 0, 0, 0},
};

/* No OOM, nothing discarded, and the chunks that the run before had at its end. */
TEST_LOOP("next", next_run, LENGTH(runs)) {
    mt_run_report report = MT_RUN_REPORT_INIT;
    size_t chunks = 0, largest = 0;

    take_model(runs[_i].fits);
    options.normalises_over_batch = runs[_i].normalises;
    options.keep = options.tells_gradients = runs[_i].keeps;
    options.rungs = runs[_i].rungs;
    options.absent = runs[_i].absent;
    options.min_micro_batch = runs[_i].least;
    trainer = trainer_of(&options, &own);
    for (uint64_t id = 0; id < 10; id++) {
        mt_step_report last = step(trainer, 40, id);

        chunks = last.chunk_count;
        largest = last.chunks[0];
        evaluate(trainer, 40, id);
    }
    ck_ok(mt_trainer_finish(trainer, NULL));
    end_trainer();
    for (int again = 0; again < 2; again++) {
        trainer = trainer_of(&options, &own);
        for (uint64_t id = 0; id < 3; id++) {
            mt_step_report now = step(trainer, 40, id);

            ck_assert_msg(now.chunk_count == chunks && now.chunks[0] == largest,
                          "%s: %zu chunks, the first of %zu, instead of %zu, %zu", runs[_i].name,
                          now.chunk_count, now.chunks[0], chunks, largest);
            evaluate(trainer, 40, id);
        }
        ck_ok(mt_trainer_finish(trainer, &report));
        ck_assert_msg(report.ooms == 0 && report.samples_discarded == 0, "%s: %d, %d",
                      runs[_i].name, (int)report.ooms, (int)report.samples_discarded);
        end_trainer();
    }
    ck_assert_str_eq(log_text, "");
}

/*
 * A budget may follow what else takes memory, so the next run has a little more of it. It begins with the rung, and what did not fit
 * before is not tried again before it fits.
 */
TEST_LOOP("next", rung_in_more_room, 16) {
    mt_run_report report = MT_RUN_REPORT_INIT;
    size_t missing = fits(FIRST_CHUNK).budget_bytes - fits(1).budget_bytes;

    take_model(1);
    options.rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    options.min_micro_batch = FIRST_CHUNK;
    trainer = trainer_of(&options, &own);
    step(trainer, 40, 0);
    ck_ok(mt_trainer_finish(trainer, NULL));
    end_trainer();
    options.budget_bytes += missing * (size_t)_i / 16;
    trainer = trainer_of(&options, &own);
    for (uint64_t id = 0; id < 8; id++) step(trainer, 40, id);
    ck_ok(mt_trainer_finish(trainer, &report));
    ck_assert_msg(report.ooms == 0, "%d OOMs", (int)report.ooms);
}

/* Bytes and seconds hold in another budget too. */
TEST_LOOP("next", other_budget, 28) {
    const size_t fitting = (size_t)_i + 2;
    mt_run_report report = MT_RUN_REPORT_INIT;

    take_model(14);
    trainer = trainer_of(&options, &own);
    for (uint64_t id = 0; id < 12; id++) step(trainer, 40, id);
    ck_ok(mt_trainer_end_epoch(trainer, NULL));
    end_trainer();
    options.budget_bytes = fits(fitting).budget_bytes;
    trainer = trainer_of(&options, &own);
    for (uint64_t id = 0; id < 8; id++) step(trainer, 40, id);
    ck_ok(mt_trainer_finish(trainer, &report));
    ck_assert_uint_eq(report.ooms, 0);
    ck_assert_uint_eq(report.samples_discarded, 0);
    ck_assert_uint_le(report.largest_chunk, fitting);
}

/* ---- files that are left out -------------------------------------------------------------------- */

static void write_file(const char *text, size_t length) {
    FILE *file = fopen(path, "wb");

    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static size_t read_file(char *text, size_t capacity) {
    FILE *file = fopen(path, "rb");
    size_t length;

    ck_assert_ptr_nonnull(file);
    length = fread(text, 1, capacity, file);
    fclose(file);
    return length;
}

static mt_backend_info info_of(uint64_t model) {
    mt_backend_info info = {.size = sizeof(info), .device = "cpu", .version = "2.15"};

    info.model = model;
    info.threads = 4;
    return info;
}

/* What the run of run_once tells of itself. */
static mt_backend_info info_of_the_run(void) {
    mt_backend_info info = {.size = sizeof(info), .device = "fake:0", .version = "1.2.3"};

    info.model = 0xabc;
    info.threads = 2;
    return info;
}

/* How many kinds are read; what the log says is in log_text. */
static size_t loaded(const mt_backend_info *info, const mt_policy_options *wishes) {
    mt_policy *known;
    size_t kinds = 99;

    log_text[0] = 0;
    ck_ok(mt_policy_new(wishes, info, &known));
    ck_ok(mt_policy_load(known, path, &kinds));
    mt_policy_free(known);
    return kinds;
}

static void run_once(void) {
    take_model(14);
    options.shapes = 1;
    trainer = trainer_of(&options, &own);
    for (uint64_t id = 0; id < 9; id++) step(trainer, 40, id | id % 3 << 32);
    ck_ok(mt_trainer_finish(trainer, NULL));
    end_trainer();
}

static const struct {
    mt_backend_info info;
    const char *words[2];
} strangers[] = {
    {{.device = "fake:1", .version = "1.2.3", .model = 0xabc, .threads = 2}, {"fake:0", "fake:1"}},
    {{.device = "fake:0", .version = "1.2.4", .model = 0xabc, .threads = 2}, {"1.2.3", "1.2.4"}},
    {{.device = "fake:0", .version = "1.2.3", .model = 0xabd, .threads = 2}, {"0abc'", "0abd'"}},
    {{.device = "fake:0", .version = "1.2.3", .model = 0xabc, .threads = 20},
     {"threads 2'", "threads 20'"}},
    {{.device = NULL, .version = "1.2.3", .model = 0xabc, .threads = 2},
     {"fake:0", "device \"\"'"}},
};

TEST_LOOP("left_out", stranger, LENGTH(strangers)) {
    mt_backend_info info = strangers[_i].info;

    info.size = sizeof(info);
    run_once();
    ck_assert_uint_eq(loaded(&info, NULL), 0);
    ck_contains(log_text, path);
    ck_contains(log_text, strangers[_i].words[0]);
    ck_contains(log_text, strangers[_i].words[1]);
}

/* A run whose chunks must not depend on the runs before it. */
TEST("left_out", deterministic) {
    mt_backend_info info = info_of_the_run();

    run_once();
    ck_assert_uint_gt(loaded(&info, &policy), 0);
    policy.deterministic = 1;
    ck_assert_uint_eq(loaded(&info, &policy), 0);
    ck_contains(log_text, "deterministic");
}

TEST("left_out", no_file) {
    const mt_backend_info info = info_of(1);

    ck_assert_uint_eq(loaded(&info, NULL), 0);
    ck_assert_str_eq(log_text, "");
    snprintf(path, sizeof(path), "/tmp");
    ck_assert_uint_eq(loaded(&info, NULL), 0);
    ck_contains(log_text, "'/tmp' is left out");
    snprintf(path, sizeof(path), "/tmp/check_learned/no/folder");
}

/* Kinds are as old as they were, so that those that are forgotten first are the same: what is written again is the same file. */
TEST("next", written_again) {
    static char first[200000], again[200000];
    const mt_backend_info info = info_of(1);
    const mt_chunk_result result = {.size = sizeof(result), .peak_bytes = 1000};
    mt_policy *known;

    ck_ok(mt_policy_new(NULL, &info, &known));
    for (uint64_t id = 1; id <= 600; id++) {
        const mt_shape shape = {.id = id};

        ck_ok(mt_policy_begin(known, &shape));
        ck_ok(mt_policy_observe(known, MT_TRAIN, 8, 0, &result));
    }
    ck_ok(mt_policy_save(known, path));
    mt_policy_free(known);
    first[read_file(first, sizeof(first) - 1)] = 0;
    ck_ok(mt_policy_new(NULL, &info, &known));
    ck_ok(mt_policy_load(known, path, NULL));
    ck_ok(mt_policy_save(known, path));
    mt_policy_free(known);
    again[read_file(again, sizeof(again) - 1)] = 0;
    ck_assert_str_eq(first, again);
}

/* Kinds that are known already stay: of a file those are left out that have no place beside them. */
TEST("next", known_ones_stay) {
    enum { LIVE = 4000 };
    static char is_known[LIVE];
    const mt_backend_info info = info_of(1);
    const mt_chunk_result result = {.size = sizeof(result), .peak_bytes = 1000};
    mt_policy *known, *live;
    size_t kinds;

    ck_ok(mt_policy_new(NULL, &info, &known));
    ck_ok(mt_policy_new(NULL, &info, &live));
    for (uint64_t id = 0; id < LIVE; id++) {
        const mt_shape shape = {.id = id + 1}, other = {.id = id + LIVE + 1};

        ck_ok(mt_policy_begin(live, &shape));
        ck_ok(mt_policy_observe(live, MT_TRAIN, 8, 0, &result));
        if (id >= 100) continue;
        ck_ok(mt_policy_begin(known, &other));
        ck_ok(mt_policy_observe(known, MT_TRAIN, 8, 0, &result));
    }
    ck_ok(mt_policy_save(known, path));
    mt_policy_free(known);
    for (int loaded = 0; loaded < 2; loaded++) {
        for (uint64_t id = 0; id < LIVE; id++) {
            const mt_shape shape = {.id = id + 1};

            ck_ok(mt_policy_begin(live, &shape));
            int is_there = mt_policy_predict_bytes(live, MT_TRAIN, 8) > 0;
            ck_assert(!loaded || is_there == is_known[id]);
            is_known[id] = (char)is_there;
        }
        if (!loaded) ck_ok(mt_policy_load(live, path, &kinds));
    }
    ck_assert_uint_lt(kinds, 100);
    mt_policy_free(live);
}

/* Chunks of 64, which need bytes and time by the length; two sizes are recorded. */
static void run_length(mt_policy *p, size_t length, double seconds) {
    static char block;
    const mt_shape shape = {.id = length, .family = 5, .length = length};
    mt_memory memory = MT_MEMORY_INIT;
    mt_plan plan;

    memory.budget_bytes = 1 << 30;
    ck_ok(mt_policy_begin(p, &shape));
    ck_ok(mt_policy_plan(p, MT_TRAIN, 64, &memory, &plan));
    for (size_t m = 2; m <= 64; m *= 2) {
        const mt_chunk_result result = {
            .size = sizeof(result), .peak_bytes = m * length, .seconds = seconds * (double)m};
        mt_recording *r = mt_policy_recording(p, MT_TRAIN, m);

        if (r) mt_recording_event(r, &block, (int64_t)(m * length));
        if (r) mt_recording_event(r, &block, -(int64_t)(m * length));
        ck_ok(mt_policy_observe(p, MT_TRAIN, m, 0, &result));
    }
}

/* A length that others tell of when it is read has its own times all the same. */
TEST("next", times_of_each_length) {
    static const size_t lengths[] = {100, 200, 400, 800, 300};
    const mt_backend_info info = info_of(1);
    mt_policy *known[2];

    for (int i = 0; i < 2; i++) ck_ok(mt_policy_new(NULL, &info, &known[i]));
    for (size_t i = 0; i < LENGTH(lengths); i++) { /* none is told of by others */
        const mt_shape shape = {.id = lengths[i], .family = 5, .length = lengths[i]};
        mt_memory memory = MT_MEMORY_INIT;
        mt_plan plan;

        memory.budget_bytes = 1 << 30;
        ck_ok(mt_policy_begin(known[0], &shape));
        ck_ok(mt_policy_plan(known[0], MT_TRAIN, 64, &memory, &plan));
    }
    for (size_t i = 0; i < LENGTH(lengths); i++)
        run_length(known[0], lengths[i], 0.001 * (double)(i + 1));
    ck_ok(mt_policy_save(known[0], path));
    ck_ok(mt_policy_load(known[1], path, NULL));
    for (size_t i = 0; i < LENGTH(lengths); i++) {
        const mt_shape shape = {.id = lengths[i], .family = 5, .length = lengths[i]};

        for (int j = 0; j < 2; j++) {
            ck_ok(mt_policy_begin(known[j], &shape));
            ck_assert_double_eq_tol(mt_policy_predict_seconds(known[j], MT_TRAIN, 64),
                                    0.064 * (double)(i + 1), 1e-6);
        }
        ck_assert_uint_eq(mt_policy_predict_bytes(known[1], MT_TRAIN, 64), 64 * lengths[i]);
    }
    for (int i = 0; i < 2; i++) mt_policy_free(known[i]);
}

/* Each byte another one, and each length. */
TEST("left_out", damaged) {
    static char text[100000];
    mt_backend_info info = info_of_the_run();
    size_t length;

    run_once();
    length = read_file(text, sizeof(text));
    ck_assert_uint_gt(loaded(&info, NULL), 1);
    for (size_t i = 0; i < length; i += 1 + i / 64) {
        text[i] ^= (char)(1 + i % 7);
        write_file(text, length);
        ck_assert_uint_eq(loaded(&info, NULL), 0);
        text[i] ^= (char)(1 + i % 7);
        write_file(text, i);
        ck_assert_uint_eq(loaded(&info, NULL), 0);
        ck_assert_str_ne(log_text, "");
    }
}

/* Numbers that no policy writes, with a checksum that is right: nothing that is read from them breaks a run. */
static const char *const forged[] = {
    "x 1\n",
    "k\n",
    "o\n",
    "o 1 2\n",
    "k 0 0 0 0 0 0 0\n",
    "r 1 2\n",
    "k 2 0 0 0 0 0 0 0\n",
    "k 0 0 0 0 -1 0 0 0\n",
    "k 0 0 0 0 0 0 0 0 \n",
    "k 0 0 0 0 0 0 0 x\n",
    "k 0 0 0 0 0 0 0 99999999999999999999\n",
    "k 0 0 0 0 0 0 0 0\nr 2 1\n",
    "k 0 0 0 0 0 0 0 0\nr 0 1\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nr 2 3\n",
    "k 0 0 0 0 0 0 0 0\nr 1 1\nr 2 2\nr 3 3\nr 4 4\nr 5 5\n",
    "k 0 0 0 0 0 0 0 0\nm 0 0 1 1 5 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 2 0 1 1 5 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 0 5 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 0 1 5 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 -1 1 1 5 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 1 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 1 5 5 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 1 9223372036854775807 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 1 5 9223372036854775807\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 1 -9223372036854775807 5\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 1 5 -9223372036854775807\n",
    "k 0 0 0 0 0 0 0 0\nl 0 1\n",
    "k 0 0 0 0 0 0 0 0\nl 2 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n",
    "k 0 0 0 0 0 0 0 0\nl 0 1 1 1 1 1 1 1 1 1 1 1 1 1\n",
    "k 0 0 0 0 0 0 0 0\ns 1 1\n",
    "k 0 0 0 0 0 0 0 0\ns 0 1 1\n",
    "k 0 0 0 0 0 0 0 0\ns 1 0 1\n",
    "k 0 0 0 0 0 0 0 0\ns 1 1 -1\n",
    "k 0 0 0 0 0 0 0 1\n", /* partial without a range: as a kind of which nothing is known */
    "k 0 0 0 0 0 0 0 1\nr 2 2\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 1 5 5\nl 0 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1\n",
};

TEST_LOOP("left_out", forged_lines, LENGTH(forged)) {
    static char text[4000];
    mt_backend_info info = info_of(7);
    mt_memory memory = {.size = sizeof(memory), .budget_bytes = 1 << 20};
    uint64_t sum = 0xcbf29ce484222325u;
    mt_policy *known;
    mt_plan plan;
    size_t length;

    ck_ok(mt_policy_new(NULL, &info, &known));
    ck_ok(mt_policy_save(known, path));
    mt_policy_free(known);
    length = read_file(text, sizeof(text)) - 21;
    length += (size_t)sprintf(text + length, "%s", forged[_i]);
    for (size_t i = 0; i < length; i++) sum = (sum ^ (unsigned char)text[i]) * 0x100000001b3u;
    length += (size_t)sprintf(text + length, "end %016" PRIx64 "\n", sum);
    write_file(text, length);
    log_text[0] = 0;
    ck_ok(mt_policy_new(NULL, &info, &known));
    ck_ok(mt_policy_load(known, path, NULL));
    if (_i < LENGTH(forged) - 3) ck_contains(log_text, "not understood");
    (void)!mt_policy_plan(known, MT_TRAIN, 16, &memory, &plan);
    (void)!mt_policy_plan(known, MT_EVALUATE, 16, &memory, &plan);
    (void)mt_policy_predict_bytes(known, MT_TRAIN, 8);
    mt_policy_free(known);
}

/* ---- what cannot be done --------------------------------------------------------------------------- */

TEST("refused", no_model) {
    const mt_backend_info info = info_of(0);
    mt_backend seam;
    mt_trainer *none;
    mt_policy *known;

    ck_ok(mt_policy_new(NULL, &info, &known));
    ck_refused(mt_policy_save(known, path), MT_ENOTSUP, "mt_backend_info.model");
    ck_status(mt_policy_load(known, path, NULL), MT_ENOTSUP);
    ck_status(mt_policy_save(known, NULL), MT_EINVAL);
    ck_status(mt_policy_load(known, NULL, NULL), MT_EINVAL);
    mt_policy_free(known);
    ck_status(mt_policy_save(NULL, path), MT_EINVAL);
    ck_status(mt_policy_load(NULL, path, NULL), MT_EINVAL);
    options = fits(14);
    seam = new_seam();
    ck_status(mt_trainer_new(&seam, &own, &none), MT_ENOTSUP);
    ck_assert_int_ne(access(path, F_OK), 0);
}

/* Training goes on where the file cannot be written. */
TEST("refused", no_folder) {
    take_model(14);
    snprintf(path, sizeof(path), "/tmp/check_learned/no/folder");
    trainer = trainer_of(&options, &own);
    step(trainer, 40, 0);
    log_text[0] = 0;
    ck_ok(mt_trainer_end_epoch(trainer, NULL));
    ck_contains(log_text, "is not kept");
    ck_contains(log_text, path);
    ck_ok(mt_trainer_finish(trainer, NULL));
}

/* A trainer that cannot be made for want of host memory is none. */
TEST("refused", no_trainer) {
    mt_backend seam;

    ck_ok(counting_install());
    take_model(14);
    seam = new_seam();
    for (size_t n = 1, fired = 1; fired; n++) {
        mt_trainer *made;
        mt_status status;

        counting_fail_at(n, 0);
        status = mt_trainer_new(&seam, &own, &made);
        fired = counting_fired();
        counting_fail_at(0, 0);
        ck_status(status, fired ? MT_ENOMEM : MT_OK);
        mt_trainer_free(made);
        ck_assert_uint_eq(counting_live(), 0);
    }
}

/* Every request of host memory fails in turn; the file that was there stays, or a whole one takes its name. */
TEST("refused", no_host_memory) {
    mt_backend_info info = info_of_the_run();

    ck_ok(counting_install());
    run_once();
    for (int saves = 0; saves < 2; saves++)
        for (size_t n = 1, fired = 1; fired; n++) {
            mt_policy *known;
            mt_status status;
            size_t kinds;

            ck_ok(mt_policy_new(NULL, &info, &known));
            if (saves) ck_ok(mt_policy_load(known, path, NULL));
            counting_fail_at(n, 0);
            status = saves ? mt_policy_save(known, path) : mt_policy_load(known, path, NULL);
            fired = counting_fired();
            counting_fail_at(0, 0);
            if (!fired) ck_ok(status);
            if (fired && saves) ck_status(status, MT_ENOMEM);
            mt_policy_free(known);
            ck_ok(mt_policy_new(NULL, &info, &known));
            ck_ok(mt_policy_load(known, path, &kinds));
            ck_assert_uint_gt(kinds, 0);
            mt_policy_free(known);
            ck_assert_uint_eq(counting_live(), 0);
        }
}

int main(void) {
    suite_each_test(begin, end);
    return suite_run_named("learned");
}
