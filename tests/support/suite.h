/*
 * suite.h - what every check_*.c has in common: running its one suite, and a few assertions.
 */
#ifndef MEMTRAIN_TESTS_SUITE_H
#define MEMTRAIN_TESTS_SUITE_H

#include <check.h>
#include <memtrain/status.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* The status must be this one; a difference shows both names and the error line. */
#define ck_status(expression, expected)                                                            \
    do {                                                                                           \
        mt_status status_ = (expression);                                                          \
        ck_assert_msg(status_ == (expected), "%s: %s instead of %s, '%s'", #expression,            \
                      mt_status_name(status_), mt_status_name(expected), mt_last_error());         \
    } while (0)

#define ck_ok(expression) ck_status(expression, MT_OK)

/* A call that must fail with this status and an error line that has the words in it. */
#define ck_refused(expression, expected, words)                                                    \
    do {                                                                                           \
        ck_status(expression, expected);                                                           \
        ck_contains(mt_last_error(), words);                                                       \
    } while (0)

/* The text must have the word in it. */
#define ck_contains(text, word)                                                                    \
    ck_assert_msg(strstr(text, word) != NULL, "'%s' is not in '%s'", word, text)

/* The timeout that all cases have; Check's own of 4 is too short. */
enum { SUITE_SECONDS = 60 };

static inline TCase *suite_case(Suite *suite, const char *name) {
    TCase *test_case = tcase_create(name);

    tcase_set_timeout(test_case, SUITE_SECONDS);
    suite_add_tcase(suite, test_case);
    return test_case;
}

/* A test that cannot run here says so, in a line that setup/run_tests.sh counts, and returns. */
static inline void suite_skip(const char *test, const char *reason) {
    printf("SKIP: %s: %s\n", test, reason);
    fflush(stdout);
}

/* The device of `make check DEVICE=...`; without one the CPU. */
static inline const char *suite_device(void) {
    const char *name = getenv("MT_TEST_DEVICE");

    return name && *name ? name : "cpu";
}

/*
 * What a test may expect of it: the CPU's allocator tells the bytes of what it refuses, and MPS, or
 * its model, has no peaks and nothing but the text of an error.
 */
static inline int suite_on_cpu(void) {
    return strcmp(suite_device(), "cpu") == 0;
}

/* A card, simulated ones apart, whose tensors are the host's: its memory is not the host's. */
static inline int suite_on_card(void) {
    return !suite_on_cpu() && !strstr(suite_device(), "sim");
}

/* One that is there, with kernels and libraries of its own: the test device would have been loaded first. */
static inline int suite_on_real_card(void) {
    const char *loaded = getenv("LD_PRELOAD");

    return suite_on_card() && !(loaded && strstr(loaded, "libcard_"));
}

static inline int suite_on_mps(void) {
    return strstr(suite_device(), "mps") != NULL;
}

static inline int suite_on_xpu(void) {
    return strstr(suite_device(), "xpu") != NULL;
}

static inline int suite_has_peaks(void) {
    return !suite_on_mps();
}

/* Planned memory is the CPU's. */
static inline int suite_has_arena(void) {
    return suite_on_cpu();
}

/*
 * Runs the suite and frees it: what main returns. Where libtorch is loaded, the processes of its tests end without tidying up:
 * libtorch takes out its operators one by one, for 0.12 s a test.
 */
#ifdef __cplusplus
extern "C" {
#endif
int suite_run(Suite *suite);

/* The case of this name among those of TEST; one that suite_case makes. */
TCase *suite_case_named(const char *name);

/* The test is left out for this reason, which runs of the suite print. */
void suite_leave_out(const char *test, const char *reason);

/* TEST and its kin with their rows, of which there is at least one. Without one the program ends: a reason is missing. */
void suite_add(const char *case_name, const TTest *test, int times);

/* Runs these. */
int suite_run_named(const char *name);
#ifdef __cplusplus
}
#endif

/*
 * A test where it stands, in a case by name, and the program that runs all of a file:
 *
 *     TEST("plans", a_batch_that_fits) { ck_ok(...); }
 *     TEST_LOOP("plans", sizes, LENGTH(sizes)) { ck_ok(plan(sizes[_i])); }
 *     SUITE("policy")
 *
 * Some run only where a condition holds. Elsewhere they are left out, and the reason is printed:
 *
 *     TEST_IF(suite_has_peaks(), "MPS tells no peaks", "plans", the_peak_is_told) { ... }
 */
#define TEST(case_, name) TEST_LOOP(case_, name, 1)
#define TEST_LOOP(case_, name, times) TEST_LOOP_IF(1, "", case_, name, times)
#define TEST_IF(condition, reason, case_, name) TEST_LOOP_IF(condition, reason, case_, name, 1)
#define TEST_LOOP_IF(condition, reason, case_, name, times)                                        \
    static void name##_body(int _i CK_ATTRIBUTE_UNUSED);                                           \
    START_TEST(name) {                                                                             \
        name##_body(_i);                                                                           \
    }                                                                                              \
    END_TEST                                                                                       \
    __attribute__((constructor)) static void name##_add(void) {                                    \
        if (condition)                                                                             \
            suite_add(case_, name, times);                                                         \
        else                                                                                       \
            suite_leave_out(#name, reason);                                                        \
    }                                                                                              \
    static void name##_body(int _i CK_ATTRIBUTE_UNUSED)
#define SUITE(name)                                                                                \
    int main(void) {                                                                               \
        return suite_run_named(name);                                                              \
    }

#endif
