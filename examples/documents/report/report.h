/*
 * report.h - the lines of a run on standard output, and its exit status.
 */
#ifndef EX_REPORT_H
#define EX_REPORT_H

#include "batches.h"
#include "device.h"
#include "flags.h"
#include "pictures.h"

#include <memtrain/trainer.h>

/*
 * 224 pictures for training, 55 for validation, 8 classes; always guessing 'fruit' is right for
 * 25.5 %
 */
void ex_report_pictures(const ex_dataset *pictures);

/* resnet18 at 96 pixels, parameters 42.7 MiB; cpu, 2 threads; budget 240.0 MiB (--budget 240MiB) */
void ex_report_job(const char *model, const ex_flags *flags, const ex_device *device,
                   const mt_backend_info *info);

/* epoch 1  train loss 1.91 accuracy 31.2 %  validation loss 1.80 accuracy 35.4 %  12.3 s */
void ex_report_epoch(const mt_epoch_report *report, const char *metric, double seconds);

/*
 * budget 280.0 MiB, peak 262.1 MiB; chunks of 8 to 12 for batch 32; 0 OOMs met, 6 samples discarded;
 * state sha256 ...
 */
void ex_report_run(const mt_run_report *report, size_t batch);

/*
 * process 361.2 MiB at most of 400.0 MiB; now tensors 131.1 MiB, arena 64.0 MiB, code and the rest 160.3 MiB
 *
 * Nothing where there is no resident budget.
 */
void ex_report_resident(const ex_flags *flags, const ex_device *device);

/* How a run ended early. */
typedef struct ex_failure {
    const char *program;
    mt_status status;
    const mt_trainer *trainer; /* NULL: there was none yet */
    int has_state;             /* 0: not even the model's state did fit */
    const mt_backend *backend; /* to try on what would do; NULL: none, as without batches */
    ex_batches *batches;
    const ex_flags *flags;
    const ex_device *device;
} ex_failure;

/*
 * Says on standard error why: the error line; and when it did not fit, the trainer's explanation and the flags
 * that help.
 */
void ex_report_failure(const ex_failure *failure);

/* 0 done, 2 a flag's value, 3 does not fit, 128 + the signal that stopped it, 1 anything else. */
int ex_exit_status(mt_status status, int interrupted);

#endif
