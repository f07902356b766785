/*
 * check_learned.c - what a policy has learnt as a file: the next run begins with it, and a file that does not belong, or is
 * damaged in any way, is left out.
 */
#include "counting_allocator.h"
#include "suite.h"
#include "trainer_fixture.h"

#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64], log_text[4000];

static void keep_log(void *user, mt_log_level level, const char *text) {
    size_t length = strlen(log_text);

    (void)user;
    (void)level;
    snprintf(log_text + length, sizeof(log_text) - length, "%s\n", text);
}

static void set_up(void) {
    int file;

    snprintf(path, sizeof(path), "/tmp/check_learned.XXXXXX");
    file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    unlink(path);
    mt_set_log(keep_log, NULL);
}

static void tear_down(void) {
    unlink(path);
}

static fake_options of_model(size_t fitting) {
    fake_options options = fits(fitting);

    options.model = 0xabc;
    options.threads = 2;
    options.seconds = fake_seconds;
    return options;
}

static mt_trainer *learning(const fake_options *options) {
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;

    own.learned = path;
    return trainer_of(options, &own);
}

/* ---- the next run ------------------------------------------------------------------------------- */

static fake_options plain(void) {
    return of_model(14);
}
static fake_options normalising(void) {
    fake_options options = of_model(14);

    options.normalises_over_batch = 1;
    options.min_micro_batch = 2;
    return options;
}
static fake_options keeping(void) {
    fake_options options = of_model(20);

    options.keep = options.tells_gradients = 1;
    return options;
}
/* Two samples do not fit without it. */
static fake_options checkpointing(void) {
    fake_options options = of_model(1);

    options.rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    options.min_micro_batch = 2;
    return options;
}
static fake_options unrecorded(void) {
    fake_options options = of_model(5);

    options.absent = FAKE_BIT(FAKE_RECORD);
    return options;
}
static fake_options few(void) {
    return of_model(2);
}

static const struct {
    const char *name;
    fake_options (*options)(void);
} runs[] = {{"plain", plain},        {"normalises", normalising}, {"keeps", keeping},
            {"rung", checkpointing}, {"unrecorded", unrecorded},  {"few fit", few}};

/* No OOM, nothing discarded, and the chunks that the run before had at its end. */
TEST_LOOP("next", next_run, LENGTH(runs)) {
    fake_options options = runs[_i].options();
    mt_run_report report = MT_RUN_REPORT_INIT;
    mt_trainer *trainer = learning(&options);
    size_t chunks = 0, largest = 0;

    for (uint64_t id = 0; id < 10; id++) {
        mt_step_report last = step(trainer, 40, id);

        chunks = last.chunk_count;
        largest = last.chunks[0];
        ck_ok(mt_trainer_evaluate(trainer, &(mt_batch){sizeof(mt_batch), NULL, 40, id}, NULL));
    }
    ck_ok(mt_trainer_finish(trainer, NULL));
    done(trainer);
    for (int again = 0; again < 2; again++) {
        trainer = learning(&options);
        for (uint64_t id = 0; id < 3; id++) {
            mt_step_report now = step(trainer, 40, id);

            ck_assert_msg(now.chunk_count == chunks && now.chunks[0] == largest,
                          "%s: %zu chunks, the first of %zu, instead of %zu, %zu", runs[_i].name,
                          now.chunk_count, now.chunks[0], chunks, largest);
            ck_ok(mt_trainer_evaluate(trainer, &(mt_batch){sizeof(mt_batch), NULL, 40, id}, NULL));
        }
        ck_ok(mt_trainer_finish(trainer, &report));
        ck_assert_msg(report.ooms == 0 && report.samples_discarded == 0, "%s: %d, %d",
                      runs[_i].name, (int)report.ooms, (int)report.samples_discarded);
        done(trainer);
    }
    ck_assert_str_eq(log_text, "");
}

/* Bytes and seconds hold in another budget too. */
TEST_LOOP("next", other_budget, 28) {
    const size_t fitting = (size_t)_i + 2;
    fake_options options = of_model(14);
    mt_run_report report = MT_RUN_REPORT_INIT;
    mt_trainer *trainer = learning(&options);

    for (uint64_t id = 0; id < 12; id++) step(trainer, 40, id);
    ck_ok(mt_trainer_end_epoch(trainer, NULL));
    done(trainer);
    options.budget_bytes = fits(fitting).budget_bytes;
    trainer = learning(&options);
    for (uint64_t id = 0; id < 8; id++) step(trainer, 40, id);
    ck_ok(mt_trainer_finish(trainer, &report));
    ck_assert_uint_eq(report.ooms, 0);
    ck_assert_uint_eq(report.samples_discarded, 0);
    ck_assert_uint_le(report.largest_chunk, fitting);
    done(trainer);
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

/* How many kinds are read; what the log says is in log_text. */
static size_t loaded(const mt_backend_info *info, const mt_policy_options *options) {
    mt_policy *policy;
    size_t kinds = 99;

    log_text[0] = 0;
    ck_ok(mt_policy_new(options, info, &policy));
    ck_ok(mt_policy_load(policy, path, &kinds));
    mt_policy_free(policy);
    return kinds;
}

static void run_once(uint64_t model) {
    fake_options options = of_model(14);
    mt_trainer *trainer;

    options.model = model;
    options.shapes = 1;
    trainer = learning(&options);
    for (uint64_t id = 0; id < 9; id++) step(trainer, 40, id | id % 3 << 32);
    ck_ok(mt_trainer_finish(trainer, NULL));
    done(trainer);
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
    run_once(0xabc);
    ck_assert_uint_eq(loaded(&info, NULL), 0);
    ck_contains(log_text, path);
    ck_contains(log_text, strangers[_i].words[0]);
    ck_contains(log_text, strangers[_i].words[1]);
}

/* A run whose chunks must not depend on the runs before it. */
TEST("left_out", deterministic) {
    mt_backend_info info = {.size = sizeof(info), .device = "fake:0", .version = "1.2.3"};
    mt_policy_options options = MT_POLICY_OPTIONS_INIT;

    info.model = 0xabc;
    info.threads = 2;
    run_once(0xabc);
    ck_assert_uint_gt(loaded(&info, &options), 0);
    options.deterministic = 1;
    ck_assert_uint_eq(loaded(&info, &options), 0);
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

/* Each byte another one, and each length. */
TEST("left_out", damaged) {
    static char text[100000];
    mt_backend_info info = {.size = sizeof(info), .device = "fake:0", .version = "1.2.3"};
    size_t length;

    info.model = 0xabc;
    info.threads = 2;
    run_once(0xabc);
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
    "k 0 0 0 0 0 0 0 0\nl 2 1 1 1 1 1 1 1 1 1 1 1 1 1\n",
    "k 0 0 0 0 0 0 0 0\ns 1 1\n",
    "k 0 0 0 0 0 0 0 0\ns 0 1 1\n",
    "k 0 0 0 0 0 0 0 0\ns 1 0 1\n",
    "k 0 0 0 0 0 0 0 0\ns 1 1 -1\n",
    "k 0 0 0 0 0 0 0 1\n", /* partial without a range: as a kind of which nothing is known */
    "k 0 0 0 0 0 0 0 1\nr 2 2\n",
    "k 0 0 0 0 0 0 0 0\nr 1 2\nm 0 0 1 1 5 5\nl 0 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1\n",
};

TEST_LOOP("left_out", forged_lines, LENGTH(forged)) {
    static char text[4000];
    mt_backend_info info = info_of(7);
    mt_memory memory = {.size = sizeof(memory), .budget_bytes = 1 << 20};
    uint64_t sum = 0xcbf29ce484222325u;
    mt_policy *policy;
    mt_plan plan;
    size_t length;

    ck_ok(mt_policy_new(NULL, &info, &policy));
    ck_ok(mt_policy_save(policy, path));
    mt_policy_free(policy);
    length = read_file(text, sizeof(text)) - 21;
    length += (size_t)sprintf(text + length, "%s", forged[_i]);
    for (size_t i = 0; i < length; i++) sum = (sum ^ (unsigned char)text[i]) * 0x100000001b3u;
    length += (size_t)sprintf(text + length, "end %016" PRIx64 "\n", sum);
    write_file(text, length);
    log_text[0] = 0;
    ck_ok(mt_policy_new(NULL, &info, &policy));
    ck_ok(mt_policy_load(policy, path, NULL));
    if (_i < LENGTH(forged) - 3) ck_contains(log_text, "not understood");
    (void)!mt_policy_plan(policy, MT_TRAIN, 16, &memory, &plan);
    (void)!mt_policy_plan(policy, MT_EVALUATE, 16, &memory, &plan);
    (void)mt_policy_predict_bytes(policy, MT_TRAIN, 8);
    mt_policy_free(policy);
}

/* ---- what cannot be done --------------------------------------------------------------------------- */

TEST("refused", no_model) {
    const mt_backend_info info = info_of(0);
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    fake_options none = fits(14);
    mt_backend seam;
    mt_trainer *trainer;
    mt_policy *policy;

    ck_ok(mt_policy_new(NULL, &info, &policy));
    ck_refused(mt_policy_save(policy, path), MT_ENOTSUP, "mt_backend_info.model");
    ck_status(mt_policy_load(policy, path, NULL), MT_ENOTSUP);
    ck_status(mt_policy_save(policy, NULL), MT_EINVAL);
    ck_status(mt_policy_load(policy, NULL, NULL), MT_EINVAL);
    mt_policy_free(policy);
    ck_status(mt_policy_save(NULL, path), MT_EINVAL);
    ck_status(mt_policy_load(NULL, path, NULL), MT_EINVAL);
    fake_init(&fake, &none);
    seam = fake_seam(&fake);
    options.learned = path;
    ck_status(mt_trainer_new(&seam, &options, &trainer), MT_ENOTSUP);
    ck_assert_int_ne(access(path, F_OK), 0);
}

/* Training goes on where the file cannot be written. */
TEST("refused", no_folder) {
    fake_options options = of_model(14);
    mt_trainer *trainer;

    snprintf(path, sizeof(path), "/tmp/check_learned/no/folder");
    trainer = learning(&options);
    step(trainer, 40, 0);
    log_text[0] = 0;
    ck_ok(mt_trainer_end_epoch(trainer, NULL));
    ck_contains(log_text, "is not kept");
    ck_contains(log_text, path);
    ck_ok(mt_trainer_finish(trainer, NULL));
    done(trainer);
}

/* A trainer that cannot be made for want of host memory is none. */
TEST("refused", no_trainer) {
    fake_options options = of_model(14);
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    mt_backend seam;

    ck_ok(counting_install());
    own.learned = path;
    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    for (size_t n = 1, fired = 1; fired; n++) {
        mt_trainer *trainer;
        mt_status status;

        counting_fail_at(n, 0);
        status = mt_trainer_new(&seam, &own, &trainer);
        fired = counting_fired();
        counting_fail_at(0, 0);
        ck_status(status, fired ? MT_ENOMEM : MT_OK);
        mt_trainer_free(trainer);
        ck_assert_uint_eq(counting_live(), 0);
    }
}

/* Every request of host memory fails in turn; the file that was there stays, or a whole one takes its name. */
TEST("refused", no_host_memory) {
    mt_backend_info info = {.size = sizeof(info), .device = "fake:0", .version = "1.2.3"};

    ck_ok(counting_install());
    info.model = 0xabc;
    info.threads = 2;
    run_once(0xabc);
    for (int saves = 0; saves < 2; saves++)
        for (size_t n = 1, fired = 1; fired; n++) {
            mt_policy *policy;
            mt_status status;
            size_t kinds;

            ck_ok(mt_policy_new(NULL, &info, &policy));
            if (saves) ck_ok(mt_policy_load(policy, path, NULL));
            counting_fail_at(n, 0);
            status = saves ? mt_policy_save(policy, path) : mt_policy_load(policy, path, NULL);
            fired = counting_fired();
            counting_fail_at(0, 0);
            if (!fired) ck_ok(status);
            if (fired && saves) ck_status(status, MT_ENOMEM);
            mt_policy_free(policy);
            ck_ok(mt_policy_new(NULL, &info, &policy));
            ck_ok(mt_policy_load(policy, path, &kinds));
            ck_assert_uint_gt(kinds, 0);
            mt_policy_free(policy);
            ck_assert_uint_eq(counting_live(), 0);
        }
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("next"), set_up, tear_down);
    tcase_add_checked_fixture(suite_case_named("left_out"), set_up, tear_down);
    tcase_add_checked_fixture(suite_case_named("refused"), set_up, tear_down);
    return suite_run_named("learned");
}
