/*
 * suite.c - see suite.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* on_exit */
#endif
#include "suite.h"
#include "each_test.h"

#include <memtrain/torch.h>
#include <unistd.h>

#ifdef __GLIBC__
#pragma weak mt_torch_init /* where the suite is linked with the shim, it is there */

static void leave(int status, void *unused) {
    (void)unused;
    fflush(NULL);
    _exit(status);
}

/* The handlers of libtorch were there before, so they would run after this one. */
static void leave_at_once(void) {
    if (mt_torch_init) on_exit(leave, NULL);
}
#else
static void leave_at_once(void) {}
#endif

/* Products and convolutions of a real card in whole float32: TF32 has an error of 1e-3. Its libraries read that once. */
static void compute_in_float32(void) {
    if (suite_on_card()) setenv("NVIDIA_TF32_OVERRIDE", "0", 0);
}

int suite_run(Suite *suite) {
    SRunner *runner = srunner_create(suite);
    int failed;

    leave_at_once();
    compute_in_float32();
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- TEST and SUITE ----------------------------------------------------------------------------- */

enum { CASES_MOST = 32, LEFT_OUT_MOST = 128 };

static struct {
    const char *names[CASES_MOST];
    TCase *cases[CASES_MOST];
    int count;
    struct {
        const char *test, *reason;
    } left_out[LEFT_OUT_MOST];
    int left_out_count;
} named;

TCase *suite_case_named(const char *name) {
    for (int i = 0; i < named.count; i++)
        if (strcmp(named.names[i], name) == 0) return named.cases[i];
    if (named.count == CASES_MOST) abort();
    TCase *test_case = tcase_create(name);
    tcase_set_timeout(test_case, SUITE_SECONDS);
    named.names[named.count] = name;
    named.cases[named.count++] = test_case;
    return test_case;
}

void suite_add(const char *case_name, const TTest *test, int times) {
    if (times <= 0) {
        fprintf(stderr, "%s has no rows, and no reason: see TEST_LOOP_IF\n", test->name);
        abort();
    }
    tcase_add_loop_test(suite_case_named(case_name), test, 0, times);
}

void suite_leave_out(const char *test, const char *reason) {
    if (named.left_out_count == LEFT_OUT_MOST) abort();
    named.left_out[named.left_out_count].test = test;
    named.left_out[named.left_out_count++].reason = reason;
}

void suite_each_test(void (*before)(void), void (*after)(void)) {
    for (int i = 0; i < named.count; i++) tcase_add_checked_fixture(named.cases[i], before, after);
}

int suite_run_named(const char *name) {
    Suite *suite = suite_create(name);
    for (int i = 0; i < named.left_out_count; i++) {
        printf("SKIP: %s: %s: %s\n", name, named.left_out[i].test, named.left_out[i].reason);
        fflush(stdout);
    }
    for (int i = 0; i < named.count; i++) suite_add_tcase(suite, named.cases[i]);
    return suite_run(suite);
}
