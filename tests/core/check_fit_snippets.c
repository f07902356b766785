/*
 * check_fit_snippets.c - what docs/fit.md shows, on the fake backend.
 */
#include "suite.h"
#include "trainer_fixture.h"

#include <memtrain/fit.h>

struct pictures {
    double batch[32], all[100];
};

static size_t lines;

static int count_lines(const char *format, ...) {
    (void)format;
    return (int)++lines;
}

#define printf count_lines
#include "fit_source.c"
#undef printf

TEST("page", a_run) {
    static struct pictures pictures, others;
    fake_options fitting = fits(14);
    mt_trainer *trainer = trainer_of(&fitting, NULL);
    mt_status status;

#include "fit_call.c"
    ck_ok(status);
    ck_assert_uint_eq(lines, report.epochs_done);
    ck_assert_uint_eq(report.steps, 4 * report.epochs_done);
    ck_assert_uint_eq(report.best_epoch + report.worse, report.epochs_done);
    done(trainer);
}

SUITE("fit_snippets")
