/* slow.h - whether loops run at full size: `make check-oom` sets MT_TEST_SLOW=1. */
#ifndef MEMTRAIN_TESTS_SLOW_H
#define MEMTRAIN_TESTS_SLOW_H

#include <stdlib.h>

static inline int is_slow(void) {
    const char *text = getenv("MT_TEST_SLOW");

    return text != NULL && *text == '1';
}

#endif
