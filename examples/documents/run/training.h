/*
 * training.h - what all example programs have in common around their model, their data and mt_fit.
 *
 * A program fills in an ex_program, reads its flags and calls ex_training_main, which opens the device and calls the
 * program's train:
 *
 *     mt_status s = open_data(f, run, &source);
 *     if (!s) s = ex_training_data(run, &source);          (batches, rendered ahead)
 *     if (!s) s = ex_training_model(run, make_model);      (model, mt_torch and mt_trainer)
 *     if (!s) s = mt_fit(run->trainer, &run->training, &run->fit, &run->calls, &run->at);
 *
 * All that concerns memory happens inside mt_fit. Traces, replays, checkpoints, reports, signals and failures are
 * looked after here, alike for every program.
 */
#ifndef EX_TRAINING_H
#define EX_TRAINING_H

#include "batches.h"
#include "checkpoint.h"
#include "device.h"
#include "flags.h"
#include "html_report.h"
#include "processes.h"
#include "progress.h"
#include "replay.h"
#include "source.h"
#include "tracefile.h"

#include <memtrain/torch.h>
#include <memtrain/trainer.h>
#include <stdio.h>

typedef struct ex_training ex_training;

/* What a program is. Functions get the program's own self. */
typedef struct ex_program {
    const char *name;       /* "food101" */
    const char *model_name; /* "resnet18" */
    const char *budget;     /* --budget where none is given, on the CPU; NULL: auto */
    const char *data;       /* what --data DIR is; NULL: a folder of class folders */
    ex_table own;           /* its own flags */
    void *self;
    /* Data, model, mt_fit and the result, in this order; the device is ready. */
    mt_status (*train)(void *self, ex_training *run);
    /* Says in a line or two what the data is, once the model is made. NULL: nothing. */
    void (*introduce)(void *self, const ex_training *run);
    /* Before the first step of an epoch (from 1 on): layers that are frozen. Also called before the first step of a run
       that goes on. NULL: nothing. */
    mt_status (*begin_epoch)(void *self, ex_training *run, uint64_t epoch);
    /* After each step, and after each epoch. NULL: nothing. */
    void (*after_step)(void *self, ex_training *run, const mt_step_report *report);
    mt_status (*after_epoch)(void *self, ex_training *run, const mt_epoch_report *report);
    /* More flags that would help where memory does not do, in lines for stderr. NULL: none. */
    void (*remedies)(void *self, const ex_training *run);
    /* Frees what train made of data. Also called when train failed; not when the flags were wrong. */
    void (*close)(void *self);
} ex_program;

/* Open for reading. */
struct ex_training {
    const ex_program *program;
    char **argv;
    ex_flags *flags;
    ex_setting settings[EX_SETTINGS]; /* the flags that decide how the run ends */
    size_t setting_count;

    ex_processes processes;
    ex_device device;
    ex_source source;
    ex_batches *batches;
    mt_torch_options
        torch_options; /* as the flags say; for the program to change before its model */
    mt_model *model;
    mt_torch *torch;
    mt_backend backend;
    mt_status (*set_rung)(void *self, mt_rung rung, int on); /* the backend's own */
    mt_backend_info info;
    mt_trainer *trainer;
    ex_tracefile *trace;
    ex_html_report *report;
    ex_replay *replay;
    ex_progress progress;
    ex_position from; /* where the run of --resume was */

    /* What mt_fit is called with. */
    mt_source training, validation;
    mt_schedule schedule;
    mt_fit_options fit;
    mt_fit_callbacks calls;
    char best[4096]; /* file of the epoch with the best validation */

    mt_fit_report at;     /* where the run is */
    double began;         /* its epoch, by ex_seconds; 0: none has */
    double seconds;       /* of the training steps of the epoch so far */
    int is_armed;         /* by --inject-oom, until the step is over */
    mt_epoch_report last; /* the last epoch that was completed */
    int stopped_by;       /* a signal that one of the processes has got; 0: none */
    int quiet;            /* 1: nothing is printed but errors: a row of a table */
    double least_seconds; /* of the training steps of an epoch; 0 before the first */
    unsigned not_finite;  /* losses in a row that were no numbers */
    size_t faults;        /* that --check has found */
};

/*
 * Reads shared and own flags; summary is the first line of --help.
 * @return 1: go on; 0: the program ends, with *out_status
 */
int ex_training_flags(const ex_program *program, const char *summary, ex_flags *flags, int argc,
                      char **argv, int *out_status);

/*
 * For ex_program.train: from a source to batches, of several processes each with its share.
 * @param source  copied; its self must live until ex_program.close
 */
MT_NODISCARD mt_status ex_training_data(ex_training *run, const ex_source *source);

/* Makes the model on the CPU. self: the program's. */
typedef mt_status (*ex_make_fn)(void *self, mt_model **out);

/*
 * For ex_program.train, after its data: makes the model, puts it with gradients and optimiser on the device, makes the
 * trainer, and fills in what mt_fit is called with. Says what will be trained. make may be called twice.
 */
MT_NODISCARD mt_status ex_training_model(ex_training *run, ex_make_fn make);

/* After mt_fit: whether there is a result to print. 0: the run was stopped, is a row of a table, or has only checked. */
int ex_training_is_done(const ex_training *run);

/* The whole run. @return the exit status */
int ex_training_main(const ex_program *program, ex_flags *flags, char **argv);

/* What one run of several gave. */
typedef struct ex_row {
    mt_status status;     /* MT_EDEVMEM: did not fit; others have been printed */
    double seconds;       /* of the training steps of its fastest epoch */
    size_t samples;       /* of that epoch */
    mt_run_report report; /* without the hash */
} ex_row;

/* A run that prints nothing, for a table of runs; mt_reexec_passive comes before the first. */
void ex_training_row(const ex_program *program, ex_flags *flags, char **argv, ex_row *out);

/*
 * mt_fit_evaluate of all of a source's validation, after the training.
 * @param out  unchanged when no step was made, and where the source has nothing for validation
 */
MT_NODISCARD mt_status ex_training_test(ex_training *run, const ex_source *source,
                                        mt_eval_report *out);

/* Prints "NAME: TEXT" for flags that only the program can tell are wrong. @return exit status 2 */
int ex_training_refuse(const ex_program *program, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#endif
