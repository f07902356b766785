/*
 * check_status.c - status codes, error line, log, host allocator; and what every public function of
 * status.h, policy.h and trainer.h does with a NULL, a freed object or a host out of memory.
 */
#include "counting_allocator.h"
#include "fake_backend.h"
#include "internal.h"
#include "suite.h"

#include <memtrain/trainer.h>
#include <pthread.h>
#include <stdio.h>

/* ---- version, names, texts ------------------------------------------------------------------ */

TEST("codes", version) {
    ck_assert_int_eq(mt_version_number(), MT_VERSION_NUMBER);
    ck_assert_str_eq(mt_version_string(), MT_VERSION_STRING);
}

static const struct {
    mt_status status;
    const char *name;
    int value;
    const char *text;
} statuses[] = {
#define STATUS_ROW(name, value, text) {MT_##name, "MT_" #name, value, text},
    MT_STATUS_MAP(STATUS_ROW)
#undef STATUS_ROW
};

TEST_LOOP("codes", status_row, LENGTH(statuses)) {
    ck_assert_int_eq((int)statuses[_i].status, statuses[_i].value);
    ck_assert_str_eq(mt_status_name(statuses[_i].status), statuses[_i].name);
    ck_assert_str_eq(mt_status_text(statuses[_i].status), statuses[_i].text);
    for (int j = 0; j < _i; j++) ck_assert_int_ne(statuses[j].value, statuses[_i].value);
}

TEST("codes", status_unknown) {
    ck_assert_str_eq(mt_status_name((mt_status)-77), "MT_?");
    ck_assert_str_eq(mt_status_name((mt_status)1), "MT_?");
    ck_assert_ptr_nonnull(mt_status_text((mt_status)-77));
}

/* ---- the error line ------------------------------------------------------------------------- */

TEST("error", error_empty_at_start) {
    ck_assert_str_eq(mt_last_error(), "");
}

TEST("error", error_is_set) {
    mt_status status = mt_set_error(MT_EIO, "cannot read '%s', %d", "a.txt", 7);

    ck_assert_int_eq(status, MT_EIO);
    ck_assert_str_eq(mt_last_error(), "cannot read 'a.txt', 7");
    mt_set_error(MT_EUSER, "other");
    ck_assert_str_eq(mt_last_error(), "other");
}

/* Lengths around the limit of 511 bytes. */
TEST_LOOP("error", error_is_cut, 6) {
    static const size_t lengths[] = {1, 510, 511, 512, 513, 5000};
    size_t length = lengths[_i];
    char *text = malloc(length + 1);

    memset(text, 'x', length);
    text[length] = '\0';
    mt_set_error(MT_EIO, "%s", text);
    ck_assert_uint_eq(strlen(mt_last_error()), length < 511 ? length : 511);
    ck_assert_int_eq(strstr(mt_last_error(), "x...") != NULL, length > 511);
    free(text);
}

TEST("error", error_may_quote_itself) {
    mt_set_error(MT_EIO, "disk full");
    mt_set_error(MT_EIO, "step 3: %s", mt_last_error());
    ck_assert_str_eq(mt_last_error(), "step 3: disk full");
}

TEST("error", success_keeps_the_error) {
    size_t bytes;

    mt_set_error(MT_EIO, "before");
    ck_ok(mt_parse_size("1KiB", 0, &bytes));
    ck_assert_str_eq(mt_last_error(), "before");
}

static void *error_thread(void *seen) {
    strcpy(seen, mt_last_error());
    mt_set_error(MT_EIO, "theirs");
    return NULL;
}

TEST("error", error_per_thread) {
    char seen[600] = "not run";
    pthread_t thread;

    mt_set_error(MT_EIO, "mine");
    ck_assert_int_eq(pthread_create(&thread, NULL, error_thread, seen), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_str_eq(seen, "");
    ck_assert_str_eq(mt_last_error(), "mine");
}

/* ---- log ------------------------------------------------------------------------------------ */

static char log_text[2000];
static mt_log_level log_level;
static int log_lines;

static void log_keep(void *user, mt_log_level level, const char *text) {
    ck_assert_ptr_eq(user, &log_lines);
    log_level = level;
    strcpy(log_text, text);
    log_lines++;
}

TEST("error", log_reaches_the_function) {
    mt_log(MT_LOG_WARNING, "dropped");
    mt_set_log(log_keep, &log_lines);
    mt_log(MT_LOG_INFO, "%d of %s", 3, "four");
    ck_assert_int_eq(log_lines, 1);
    ck_assert_int_eq(log_level, MT_LOG_INFO);
    ck_assert_str_eq(log_text, "3 of four");
    mt_log(MT_LOG_WARNING, "%2000d", 1);
    ck_assert_uint_eq(strlen(log_text), 511);
    mt_set_log(NULL, NULL);
    mt_log(MT_LOG_WARNING, "dropped");
    ck_assert_int_eq(log_lines, 2);
}

/* A line that is none. */
TEST("error", no_format) {
    /* Called by pointers that do not say what they take, or a compiler would refuse it. */
    mt_status (*set_error)(mt_status, const char *, ...) = mt_set_error;
    void (*log_line)(mt_log_level, const char *, ...) = mt_log;

    mt_set_error(MT_EIO, "older");
    ck_status(set_error(MT_EINVAL, NULL), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "");
    mt_set_log(log_keep, &log_lines);
    log_line(MT_LOG_WARNING, NULL);
    ck_assert_int_eq(log_lines, 0);
    mt_set_log(NULL, NULL);
}

/* ---- the host allocator --------------------------------------------------------------------- */

static void trace_drop(void *user, const char *line) {
    (void)user;
    (void)line;
}

static void sink_recording(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

static mt_status record_program(mt_recording *recording, size_t samples) {
    mt_event_sink sink = {recording, sink_recording};
    mt_status status = mt_recording_start(recording, samples);

    if (status == MT_OK) fake_program_record(&fake_train_program, samples, &sink);
    return status;
}

TEST("host", allocator_all_or_none) {
    ck_status(mt_set_allocator(malloc, NULL, NULL), MT_EINVAL);
    ck_status(mt_set_allocator(NULL, realloc, free), MT_EINVAL);
    ck_status(mt_set_allocator(malloc, realloc, NULL), MT_EINVAL);
    ck_ok(mt_set_allocator(NULL, NULL, NULL));
    ck_ok(counting_install());
}

TEST("host", allocator_is_used) {
    mt_recording *recording;

    ck_ok(counting_install());
    ck_ok(mt_recording_new(&recording));
    ck_assert_uint_gt(counting_live(), 0);
    mt_recording_free(recording);
    ck_assert_uint_eq(counting_live(), 0);
}

static const struct {
    size_t count, size;
    int fits;
} requests[] = {
    {1, 1, 1}, {3, 8, 1}, {0, 8, 0}, {8, 0, 0}, {SIZE_MAX, 2, 0}, {2, SIZE_MAX / 2 + 1, 0},
};

/* Products that do not overflow, of new blocks and of others; a block that cannot grow stays. */
TEST_LOOP("host", requests_of_many, LENGTH(requests)) {
    size_t count = requests[_i].count, size = requests[_i].size;
    char *block = mt__alloc(count, size), *old = mt__alloc(1, 1), *grown;

    ck_assert_int_eq(block != NULL, requests[_i].fits);
    for (size_t i = 0; requests[_i].fits && i < count * size; i++) ck_assert_int_eq(block[i], 0);
    mt__free(block);
    *old = 'x';
    grown = mt__grow(old, count, size);
    ck_assert_int_eq(grown != NULL, requests[_i].fits);
    ck_assert_int_eq(grown ? *grown : *old, 'x');
    mt__free(grown ? grown : old);
}

TEST("host", allocator_too_late) {
    mt_recording *recording;

    ck_ok(mt_recording_new(&recording));
    ck_status(counting_install(), MT_ESTATE);
    mt_recording_free(recording);
}

/* Makes, and frees again, one object of each kind; the index chooses the kind. */
static mt_status make_recording(void) {
    mt_recording *recording;
    mt_status status = mt_recording_new(&recording);

    ck_assert(status == MT_OK || recording == NULL);
    if (status == MT_OK) status = mt_recording_start(recording, 2);
    mt_recording_free(recording);
    return status;
}

static mt_recording *given_small, *given_large;

static mt_status make_model(void) {
    mt_memory_model *model;
    mt_status status = mt_memory_model_new(given_small, given_large, &model);

    ck_assert(status == MT_OK || model == NULL);
    mt_memory_model_free(model);
    return status;
}

static mt_status make_policy(void) {
    mt_policy *policy;
    mt_status status = mt_policy_new(NULL, NULL, &policy);

    ck_assert(status == MT_OK || policy == NULL);
    mt_policy_free(policy);
    return status;
}

static fake_backend fake;

static mt_status make_trainer(void) {
    static const size_t chunks[40] = {[0] = 1, [1] = 2, [39] = 3};
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_backend seam = fake_seam(&fake);
    mt_trainer *trainer;
    mt_status status;

    options.trace = trace_drop;
    status = mt_trainer_new(&seam, &options, &trainer);
    ck_assert(status == MT_OK || trainer == NULL);
    if (status == MT_OK) status = mt_trainer_set_chunks(trainer, chunks, 2);
    mt_trainer_free(trainer);
    return status;
}

/* One trainer through two steps and an evaluation. */
static mt_status make_steps(void) {
    mt_backend seam;
    mt_batch batch = MT_BATCH_INIT;
    mt_trainer *trainer;
    mt_status status;
    uint64_t before;

    fake_init(&fake, &fake_defaults);
    seam = fake_seam(&fake);
    status = mt_trainer_new(&seam, NULL, &trainer);
    for (batch.id = 1, batch.count = 32; batch.id <= 2 && status == MT_OK; batch.id++) {
        before = fake_hash(&fake);
        status = mt_trainer_step(trainer, &batch, NULL);
        ck_assert(status == MT_OK || fake_hash(&fake) == before);
        if (status == MT_OK) status = mt_trainer_evaluate(trainer, &batch, NULL);
    }
    mt_trainer_free(trainer);
    ck_assert_uint_eq(fake_live_handles(&fake), 0);
    return status;
}

static const struct {
    const char *name;
    mt_status (*make)(void);
} makers[] = {
    {"recording", make_recording}, {"model", make_model}, {"policy", make_policy},
    {"trainer", make_trainer},     {"steps", make_steps},
};

static void makers_prepare(void) {
    ck_ok(counting_install());
    ck_ok(mt_recording_new(&given_small));
    ck_ok(mt_recording_new(&given_large));
    ck_ok(record_program(given_small, 2));
    ck_ok(record_program(given_large, 4));
    fake_init(&fake, &fake_defaults);
}

/*
 * Fails allocation n for n = 1, 2, ... until none is left to fail, alone or with all behind it. Making an object must then
 * say MT_ENOMEM; steps may do without (a recording is given up). Nothing may be left over.
 */
TEST_LOOP("host", host_memory_runs_out, 2 * LENGTH(makers)) {
    mt_status (*make)(void) = makers[_i / 2].make;
    size_t n, live;
    mt_status status = MT_ENOMEM;

    makers_prepare();
    live = counting_live();
    for (n = 1; n < 100000; n++) {
        counting_fail_at(n, _i % 2);
        status = make();
        ck_assert_msg(counting_live() == live, "%s: allocation %zu failed, %zu blocks leaked",
                      makers[_i / 2].name, n, counting_live() - live);
        if (counting_fired() == 0) break;
        if (make != make_steps || status != MT_OK) ck_status(status, MT_ENOMEM);
        counting_fail_at(0, 0);
    }
    ck_ok(status);
    ck_assert_uint_gt(n, 1);
    mt_recording_free(given_small);
    mt_recording_free(given_large);
    ck_assert_uint_eq(counting_live(), 0);
}

/* ---- NULL and other impossible arguments ---------------------------------------------------- */

/* MT_EINVAL, and the argument is named. */
#define refuses(expression, word)                                                                  \
    do {                                                                                           \
        mt_set_error(MT_EIO, "-");                                                                 \
        ck_refused(expression, MT_EINVAL, word);                                                   \
    } while (0)

TEST("null", null_status) {
    size_t bytes;
    mt_host_memory memory = {0};

    refuses(mt_parse_size(NULL, 0, &bytes), "text");
    refuses(mt_parse_size("1", 0, NULL), "out_bytes");
    refuses(mt_host_memory_read(NULL, NULL), "out");
    refuses(mt_host_memory_read(NULL, &memory), "size");
    (void)mt_format_size(1, NULL, 0);
    (void)mt_format_size(1, NULL, 10);
}

TEST("null", null_recording) {
    mt_recording *recording;
    int block;

    refuses(mt_recording_new(NULL), "out");
    refuses(mt_recording_start(NULL, 1), "recording");
    ck_ok(mt_recording_new(&recording));
    refuses(mt_recording_start(recording, 0), "samples");
    mt_recording_event(NULL, &block, 10);
    mt_recording_event(recording, NULL, 0);
    ck_assert_uint_eq(mt_recording_samples(NULL), 0);
    ck_assert_uint_eq(mt_recording_allocations(NULL), 0);
    ck_assert_uint_eq(mt_recording_peak_bytes(NULL), 0);
    mt_recording_free(recording);
    mt_recording_free(NULL);
}

TEST("null", null_model) {
    mt_memory_model *model;
    mt_recording *recording;

    ck_ok(mt_recording_new(&recording));
    ck_ok(record_program(recording, 2));
    refuses(mt_memory_model_new(NULL, NULL, &model), "small");
    ck_assert_ptr_null(model);
    refuses(mt_memory_model_new(NULL, recording, &model), "small");
    refuses(mt_memory_model_new(recording, NULL, NULL), "out");
    mt_memory_model_free(NULL);
    ck_assert_uint_eq(mt_memory_model_peak(NULL, 1), 0);
    ck_assert_uint_eq(mt_memory_model_margin(NULL), 0);
    ck_assert_uint_eq(mt_memory_model_largest(NULL, 1000), 0);
    mt_recording_free(recording);
}

TEST("null", null_plan) {
    mt_plan plan;

    ck_assert_uint_eq(mt_plan_chunks(NULL), 0);
    ck_assert_uint_eq(mt_plan_covered(NULL), 0);
    ck_assert_uint_eq(mt_plan_chunk(NULL, 0), 0);
    refuses(mt_plan_balanced(4, 2, NULL), "out");
    refuses(mt_plan_balanced(4, 0, &plan), "chunks");
    refuses(mt_plan_balanced(4, 5, &plan), "chunks");
    ck_assert_ptr_nonnull(mt_plan_reason_name((mt_plan_reason)99));
    ck_assert_ptr_nonnull(mt_phase_name((mt_phase)99));
    ck_assert_ptr_nonnull(mt_clear_reason_name((mt_clear_reason)99));
}

TEST("null", null_policy) {
    mt_policy_options options = MT_POLICY_OPTIONS_INIT;
    mt_memory memory = {.size = sizeof(memory)};
    mt_chunk_result result = {.size = sizeof(result)};
    mt_clear_result cleared = {.size = sizeof(cleared)};
    mt_oom oom = {.size = sizeof(oom), .attempt = 1, .memory = {.size = sizeof(mt_memory)}};
    mt_plan plan = {.size = sizeof(plan)};
    mt_policy *policy;
    mt_action action;

    refuses(mt_policy_new(NULL, NULL, NULL), "out");
    options.size = 0;
    refuses(mt_policy_new(&options, NULL, &policy), "size");
    ck_assert_ptr_null(policy);
    ck_ok(mt_policy_new(NULL, NULL, &policy));
    refuses(mt_policy_plan(NULL, MT_TRAIN, 4, &memory, &plan), "policy");
    refuses(mt_policy_plan(policy, (mt_mode)9, 4, &memory, &plan), "mode");
    refuses(mt_policy_plan(policy, MT_TRAIN, 0, &memory, &plan), "samples");
    refuses(mt_policy_plan(policy, MT_TRAIN, 4, NULL, &plan), "memory");
    refuses(mt_policy_plan(policy, MT_TRAIN, 4, &memory, NULL), "out");
    ck_ok(mt_policy_plan(policy, MT_TRAIN, 4, &memory, &plan));
    refuses(mt_policy_extend(NULL, MT_TRAIN, &memory, &plan), "policy");
    refuses(mt_policy_extend(policy, (mt_mode)9, &memory, &plan), "mode");
    refuses(mt_policy_extend(policy, MT_TRAIN, NULL, &plan), "memory");
    refuses(mt_policy_extend(policy, MT_TRAIN, &memory, NULL), "plan");
    ck_assert_ptr_null(mt_policy_recording(NULL, MT_TRAIN, 4));
    ck_assert_ptr_null(mt_policy_recording(policy, (mt_mode)9, 4));
    refuses(mt_policy_observe(NULL, MT_TRAIN, 4, 0, &result), "policy");
    refuses(mt_policy_observe(policy, (mt_mode)9, 4, 0, &result), "mode");
    refuses(mt_policy_observe(policy, MT_TRAIN, 0, 0, &result), "samples");
    refuses(mt_policy_observe(policy, MT_TRAIN, 4, 0, NULL), "result");
    refuses(mt_policy_oom(NULL, &oom, &action), "policy");
    refuses(mt_policy_oom(policy, NULL, &action), "oom");
    refuses(mt_policy_oom(policy, &oom, NULL), "out");
    ck_assert_int_eq(mt_policy_clear(NULL, MT_TRAIN, &memory), MT_CLEAR_NOT);
    ck_assert_int_eq(mt_policy_clear(policy, MT_TRAIN, NULL), MT_CLEAR_NOT);
    mt_policy_cleared(NULL, &cleared);
    mt_policy_cleared(policy, NULL);
    ck_assert_uint_eq(mt_policy_predict_bytes(NULL, MT_TRAIN, 4), 0);
    ck_assert_double_eq(mt_policy_predict_seconds(NULL, MT_TRAIN, 4), 0);
    mt_policy_free(policy);
    mt_policy_free(NULL);
}

/* A field of the policy's options that makes no sense is named. */
TEST("null", policy_options_refused) {
    static const struct {
        mt_policy_options options;
        const char *word;
    } rows[] = {
        {{.min_micro_batch = 8, .max_micro_batch = 4}, "micro_batch"},
        {{.clear_every = -3}, "clear_every"},
        {{.eval_clear_every = -2}, "eval_clear_every"},
    };

    for (int i = 0; i < LENGTH(rows); i++) {
        mt_policy_options options = rows[i].options;
        mt_policy *policy;

        options.size = sizeof(options);
        refuses(mt_policy_new(&options, NULL, &policy), rows[i].word);
        ck_assert_ptr_null(policy);
    }
}

TEST("null", null_trainer_new) {
    static const char *const words[] = {"memory", "begin", "accumulate", "rollback", "apply"};
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    mt_backend seam;
    mt_trainer *trainer;

    fake_init(&fake, &fake_defaults);
    for (int i = 0; i < LENGTH(words); i++) {
        seam = fake_seam(&fake);
        seam.memory = i == 0 ? NULL : seam.memory;
        seam.begin = i == 1 ? NULL : seam.begin;
        seam.accumulate = i == 2 ? NULL : seam.accumulate;
        seam.rollback = i == 3 ? NULL : seam.rollback;
        seam.apply = i == 4 ? NULL : seam.apply;
        refuses(mt_trainer_new(&seam, NULL, &trainer), words[i]);
        ck_assert_ptr_null(trainer);
    }
    seam = fake_seam(&fake);
    refuses(mt_trainer_new(NULL, NULL, &trainer), "backend");
    refuses(mt_trainer_new(&seam, NULL, NULL), "out");
    options.size = 0;
    refuses(mt_trainer_new(&seam, &options, &trainer), "size");
    seam.size = 0;
    refuses(mt_trainer_new(&seam, NULL, &trainer), "size");
}

static mt_trainer *new_trainer(void) {
    mt_backend seam;
    mt_trainer *trainer;

    fake_init(&fake, &fake_defaults);
    seam = fake_seam(&fake);
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    return trainer;
}

TEST("null", null_trainer) {
    mt_batch batch = {sizeof(batch), NULL, 4, 1}, none = MT_BATCH_INIT;
    mt_run_report run = MT_RUN_REPORT_INIT;
    size_t chunks[2] = {2, 0};
    mt_trainer *trainer = new_trainer();
    char text[10];

    refuses(mt_trainer_step(NULL, &batch, NULL), "trainer");
    refuses(mt_trainer_step(trainer, NULL, NULL), "batch");
    refuses(mt_trainer_step(trainer, &none, NULL), "count");
    refuses(mt_trainer_set_chunks(NULL, chunks, 1), "trainer");
    refuses(mt_trainer_set_chunks(trainer, NULL, 1), "chunks");
    refuses(mt_trainer_set_chunks(trainer, chunks, 2), "chunk");
    refuses(mt_trainer_set_chunks(trainer, chunks, 0), "chunks");
    refuses(mt_trainer_evaluate(NULL, &batch, NULL), "trainer");
    refuses(mt_trainer_evaluate(trainer, NULL, NULL), "batch");
    refuses(mt_trainer_evaluate(trainer, &none, NULL), "count");
    refuses(mt_trainer_end_epoch(NULL, NULL), "trainer");
    refuses(mt_trainer_summary(NULL, &run), "trainer");
    refuses(mt_trainer_summary(trainer, NULL), "report");
    refuses(mt_trainer_finish(NULL, &run), "trainer");
    ck_assert_ptr_null(mt_trainer_policy(NULL));
    ck_assert_ptr_nonnull(mt_trainer_policy(trainer));
    ck_assert_uint_eq(mt_trainer_explain(NULL, text, sizeof(text)), 0);
    ck_assert_uint_eq(mt_trainer_explain(trainer, NULL, 0), 0);
    ck_assert_uint_eq(mt_trainer_explain(trainer, NULL, 10), 0);
    ck_ok(mt_trainer_step(trainer, &batch, NULL));
    ck_ok(mt_trainer_evaluate(trainer, &batch, NULL));
    ck_ok(mt_trainer_end_epoch(trainer, NULL));
    ck_ok(mt_trainer_finish(trainer, NULL));
    mt_trainer_free(trainer);
    mt_trainer_free(NULL);
}

/* A report or batch whose size was not set is refused before anything happens. */
TEST("null", size_not_set) {
    mt_batch batch = {sizeof(batch), NULL, 4, 1};
    mt_step_report step = {0};
    mt_eval_report eval = {0};
    mt_epoch_report epoch = {0};
    mt_run_report run = {0};
    mt_trainer *trainer = new_trainer();
    uint64_t before = fake_hash(&fake);

    refuses(mt_trainer_step(trainer, &batch, &step), "size");
    refuses(mt_trainer_evaluate(trainer, &batch, &eval), "size");
    refuses(mt_trainer_end_epoch(trainer, &epoch), "size");
    refuses(mt_trainer_summary(trainer, &run), "size");
    refuses(mt_trainer_finish(trainer, &run), "size");
    batch.size = 0;
    refuses(mt_trainer_step(trainer, &batch, NULL), "size");
    refuses(mt_trainer_evaluate(trainer, &batch, NULL), "size");
    ck_assert_uint_eq(fake_hash(&fake), before);
    mt_trainer_free(trainer);
}

/* ---- stale handles -------------------------------------------------------------------------- */

TEST("stale", stale_recording) {
    mt_recording *recording;
    mt_memory_model *model;

    ck_ok(mt_recording_new(&recording));
    ck_ok(record_program(recording, 2));
    ck_ok(mt_memory_model_new(recording, NULL, &model));
    mt_memory_model_free(model);
    mt_recording_free(recording);
    ck_assert_uint_eq(mt_memory_model_peak(model, 2), 0);
    ck_assert_uint_eq(mt_memory_model_largest(model, 1000000), 0);
    ck_assert_uint_eq(mt_recording_peak_bytes(recording), 0);
    mt_recording_event(recording, &model, 8);
    refuses(mt_recording_start(recording, 1), "recording");
    refuses(mt_memory_model_new(recording, NULL, &model), "small");
    mt_recording_free(recording);
}

TEST("stale", stale_policy) {
    mt_memory memory = {.size = sizeof(memory)};
    mt_chunk_result result = {.size = sizeof(result)};
    mt_plan plan;
    mt_policy *policy;

    ck_ok(mt_policy_new(NULL, NULL, &policy));
    mt_policy_free(policy);
    refuses(mt_policy_plan(policy, MT_TRAIN, 4, &memory, &plan), "policy");
    refuses(mt_policy_observe(policy, MT_TRAIN, 4, 0, &result), "policy");
    ck_assert_ptr_null(mt_policy_recording(policy, MT_TRAIN, 4));
    mt_policy_free(policy);
}

TEST("stale", stale_trainer) {
    mt_batch batch = {sizeof(batch), NULL, 4, 1};
    mt_trainer *trainer = new_trainer();

    mt_trainer_free(trainer);
    refuses(mt_trainer_step(trainer, &batch, NULL), "trainer");
    refuses(mt_trainer_evaluate(trainer, &batch, NULL), "trainer");
    refuses(mt_trainer_finish(trainer, NULL), "trainer");
    ck_assert_ptr_null(mt_trainer_policy(trainer));
    mt_trainer_free(trainer);
}

/* Thousands of handles alive at once, freed in another order; none is mistaken for another. */
TEST("stale", many_handles) {
    enum { HANDLES = 3000 };
    static mt_recording *handles[HANDLES];

    for (int i = 0; i < HANDLES; i++) ck_ok(mt_recording_new(&handles[i]));
    for (int i = 0; i < HANDLES; i++) ck_ok(mt_recording_start(handles[i], (size_t)i + 1));
    for (int i = 0; i < HANDLES; i += 3) mt_recording_free(handles[i]);
    for (int i = 0; i < HANDLES; i++)
        ck_assert_uint_eq(mt_recording_samples(handles[i]), i % 3 == 0 ? 0 : (size_t)i + 1);
    for (int i = HANDLES; i-- > 0;) mt_recording_free(handles[i]);
    for (int i = 0; i < HANDLES; i++) refuses(mt_recording_start(handles[i], 1), "recording");
}

/* A handle of another kind is no handle either. */
TEST("stale", foreign_handle) {
    mt_batch batch = {sizeof(batch), NULL, 4, 1};
    mt_policy *policy;

    ck_ok(mt_policy_new(NULL, NULL, &policy));
    refuses(mt_trainer_step((mt_trainer *)(void *)policy, &batch, NULL), "trainer");
    refuses(mt_recording_start((mt_recording *)(void *)policy, 2), "recording");
    mt_policy_free(policy);
}

SUITE("status")
