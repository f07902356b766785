/*
 * trainer_tests.h - what the tests of a trainer have in common: options that each of them may change, and one trainer,
 * which is freed at the end.
 */
#ifndef MEMTRAIN_TESTS_TRAINER_TESTS_H
#define MEMTRAIN_TESTS_TRAINER_TESTS_H

#include "each_test.h"
#include "trainer_fixture.h"

#include <stdarg.h>

/* Each test runs in a process of its own, so there is one of each for all. */
static fake_options options;
static mt_policy_options policy;
static mt_trainer_options own;
static mt_trainer *trainer;

/* What a test begins with, where its suite has nothing else. */
static inline void begin_defaults(void) {
    options = fake_defaults;
    policy = (mt_policy_options)MT_POLICY_OPTIONS_INIT;
    own = (mt_trainer_options)MT_TRAINER_OPTIONS_INIT;
}

/* What it ends with; a test may end one trainer itself and make another. */
static inline void end_trainer(void) {
    if (trainer != NULL) done(trainer);
    trainer = NULL;
}

/* The seam of a fake that is made anew, for a test that puts functions of its own in it. */
static inline mt_backend new_seam(void) {
    fake_init(&fake, &options);
    return fake_seam(&fake);
}

/* One step that goes through, and is these calls of those in check_log. */
static inline mt_step_report step_by(size_t count, uint64_t id, const char *calls) {
    mt_step_report report = step(trainer, count, id);

    check_log(calls);
    return report;
}

/* Calls whose numbers are computed. Static. */
__attribute__((format(printf, 1, 2))) static inline const char *printed(const char *format, ...) {
    static char text[1000];
    va_list values;

    va_start(values, format);
    ck_assert_int_lt(vsnprintf(text, sizeof(text), format, values), (int)sizeof(text));
    va_end(values);
    return text;
}

/* One step that fails as in step_fails, with these words in the error line. */
static inline void step_refused(size_t count, uint64_t id, mt_status expected, const char *words) {
    step_fails(trainer, count, id, expected);
    ck_contains(mt_last_error(), words);
}

/* One evaluation that fails with this status. */
static inline void evaluation_fails(size_t count, uint64_t id, mt_status expected) {
    mt_batch batch = batch_of(count, id);

    ck_status(mt_trainer_evaluate(trainer, &batch, NULL), expected);
}

/* One step in chunks that are given. */
static inline mt_step_report step_in(const size_t *chunks, size_t chunk_count, size_t count,
                                     uint64_t id) {
    ck_ok(mt_trainer_set_chunks(trainer, chunks, chunk_count));
    return step(trainer, count, id);
}

/* The last line of the log, and how many there were. Each must be a warning. */
static char logged[512];
static int log_lines;

static inline void keep_log(void *user, mt_log_level level, const char *message) {
    (void)user;
    ck_assert_int_eq(level, MT_LOG_WARNING);
    snprintf(logged, sizeof(logged), "%s", message);
    log_lines++;
}

/* What the trainer explains, or an empty text. */
static inline const char *explanation(void) {
    static char text[4000];
    size_t length = mt_trainer_explain(trainer, text, sizeof(text));

    ck_assert_uint_eq(length, strlen(text));
    return text;
}

/* In place of SUITE. */
#define TRAINER_SUITE(name) TRAINER_SUITE_FROM(name, begin_defaults)
#define TRAINER_SUITE_FROM(name, begin)                                                            \
    int main(void) {                                                                               \
        suite_each_test(begin, end_trainer);                                                       \
        return suite_run_named(name);                                                              \
    }

#endif
