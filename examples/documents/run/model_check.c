/*
 * model_check.c - --check; see model_check.h.
 */
#include "model_check.h"

#include <memtrain/check.h>
#include <stdio.h>

mt_status ex_model_check(mt_torch *torch, const mt_batch *batch, size_t *out_faults) {
    mt_check_report report = MT_CHECK_REPORT_INIT;
    char text[MT_CHECK_FINDINGS_MAX * sizeof report.findings[0]];
    mt_status status = mt_torch_check(torch, batch, &report);
    *out_faults = report.fault_count;
    if (status != MT_OK) return status;
    mt_check_explain(&report, text, sizeof text);
    fputs(text, stdout);
    return MT_OK;
}
