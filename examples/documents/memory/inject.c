/*
 * inject.c - arms and disarms mt_inject_oom around one step; see inject.h.
 */
#include "inject.h"

#include <stdio.h>

mt_status ex_inject_arm(const ex_inject *inject, uint64_t step) {
    if (inject->step != step || mt_inject_oom(inject->request, inject->persistent) == MT_OK)
        return MT_OK;
    return mt_set_error(MT_EINVAL, "--inject-oom: not possible here: %s", mt_last_error());
}

void ex_inject_disarm(ex_inject *inject, uint64_t step) {
    uint64_t requests, failed;
    if (inject->step != step) return;
    mt_injected(&requests, &failed);
    inject->failed = failed;
    if (mt_inject_oom(0, 0) != MT_OK) return;
    if (!failed)
        mt_log(MT_LOG_WARNING, "--inject-oom: step %llu made %llu requests, so none has failed",
               (unsigned long long)step, (unsigned long long)requests);
}

void ex_inject_finish(const ex_inject *inject, uint64_t steps) {
    if (inject->step > steps)
        mt_log(MT_LOG_WARNING, "--inject-oom: the run had %llu steps, so step %llu did not fail",
               (unsigned long long)steps, (unsigned long long)inject->step);
}
