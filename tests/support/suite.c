/*
 * suite.c - see suite.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* on_exit */
#endif
#include "suite.h"

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

int suite_run(Suite *suite) {
    SRunner *runner = srunner_create(suite);
    int failed;

    leave_at_once();
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
