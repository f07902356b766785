/*
 * inject.h - --inject-oom: lets a request for memory fail, so that a recovery can be watched.
 */
#ifndef EX_INJECT_H
#define EX_INJECT_H

#include "flags.h"

/* Right before a step: arms the fault if this is the step. @return MT_OK, MT_EINVAL (names the flag) */
MT_NODISCARD mt_status ex_inject_arm(const ex_inject *inject, uint64_t step);

/* Right after it: disarms, notes how many have failed, and says so when the step made fewer requests than that. */
void ex_inject_disarm(ex_inject *inject, uint64_t step);

/* After the run: says so when it had no such step. */
void ex_inject_finish(const ex_inject *inject, uint64_t steps);

#endif
