/*
 * output.c - the last look at standard output; see output.h.
 */
#include "output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int ex_output_end(const char *program) {
    int lost = ferror(stdout);
    errno = 0;
    if (fflush(stdout) == 0 && !lost) return 1;
    fprintf(stderr, "%s: standard output could not be written%s%s\n", program,
            errno ? ": " : " as a whole", errno ? strerror(errno) : "");
    return 0;
}
