/*
 * fuzz_trainer.c - runs of a trainer on random backends, in trouble and then in peace; what must hold is
 * in fuzz_run.h.
 *
 *     fuzz_trainer FROM COUNT      the seeds FROM to FROM + COUNT - 1; `make check-fuzz` runs it
 *
 * Prints scars as they are found, and a line at the end. Exits with 1 where something did not hold, or
 * where there are more scars than are allowed, and with 2 where the arguments do not do.
 */
#include "fuzz_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_number(const char *name, const char *text, unsigned long long least,
                       uint64_t *out) {
    char *after;
    unsigned long long value = strtoull(text, &after, 10);

    *out = value;
    if (*text >= '0' && *text <= '9' && *after == '\0' && value >= least && value <= 1000000000)
        return 1;
    fprintf(stderr, "%s: '%s'; accepted: %llu to 1000000000\n", name, text, least);
    return 0;
}

static int report(const fuzz_totals *totals) {
    int has_held = totals->failures == 0 && totals->scars <= fuzz_scars_allowed(totals->runs);

    printf("%s: %zu runs, %zu failed, %zu scars (%zu are allowed); %zu of %zu steps in trouble "
           "failed\n",
           has_held ? "ok" : "FAIL", totals->runs, totals->failures, totals->scars,
           fuzz_scars_allowed(totals->runs), totals->failed_steps, totals->steps);
    return has_held ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    fuzz_totals totals = {0};
    uint64_t from, count;

    if (argc != 3) fprintf(stderr, "usage: fuzz_trainer FROM COUNT\n");
    if (argc != 3 || !read_number("FROM", argv[1], 0, &from) ||
        !read_number("COUNT", argv[2], 1, &count))
        return 2;
    fuzz_runs(from, count, &totals);
    return report(&totals);
}
