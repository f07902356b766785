/*
 * trainer_state.h - the trainer's inside, shared by trainer.c, fit.c, trace.c and explain.c.
 */
#ifndef MT_TRAINER_STATE_H
#define MT_TRAINER_STATE_H

#include "json.h"

/* Sums over samples that make the means of a report. */
typedef struct mt__sums {
    double loss, units;
    double metrics[MT_METRICS_MAX];
    size_t samples;
} mt__sums;

/* A growing list of chunk sizes. */
typedef struct mt__chunks {
    size_t *samples;
    size_t count, capacity;
} mt__chunks;

struct mt_trainer {
    mt_backend backend;
    mt_backend_info info;
    mt_trainer_options options;
    mt_policy_options policy_options;
    mt_policy *policy;
    char *learned; /* the file for what it has learnt, or NULL */
    mt__text text;
    mt__chunks chunks;   /* of the step that runs, or ran last */
    mt__chunks forced;   /* of the next step; count 0: the policy's */
    mt__chunks deferred; /* those of the attempt whose figures collect tells */
    unsigned forced_rungs;
    double forced_rate;
    unsigned rungs;   /* that are on */
    uint64_t shape;   /* of the last batch, as the backend tells it */
    int has_shape;    /* there is one */
    int normalises;   /* chunks normalise over their samples in training */
    int told_of_norm; /* the log has heard that their chunks are small */
    int means_seen
        [MT_METRICS_MAX]; /* chunks whose metric may be a mean; -1: it is none, or was told */
    int holding;          /* the backend has the memory in which gradients are added up */
    double rate;          /* factor of the learning rate that the backend was told last */
    mt_plan traced;       /* the last plan in the trace */
    mt__sums train, eval; /* of the epoch */
    double epoch_seconds;
    size_t epoch_peak_bytes;
    uint64_t epoch;
    mt_run_report run;
    int in_step; /* 1: a step is under way, the one after those of run */
    int is_busy; /* 1: the backend is being called, and must not call back */
    int poisoned;
    char poison[MT__LINE]; /* why */
    int has_failure;       /* the last call did not fit: the rest is for mt_trainer_explain */
    mt_oom failure;
    size_t ruled_out; /* samples that no plan was left for; 0: it was an attempt that failed */
    size_t failed_batch;
};

/* trainer.c: whether a call may begin: not from within another one, and not after the state was lost. */
mt_status mt__check_ready(const mt_trainer *t, const char *function);

/* trace.c: each writes one line, or nothing without a trace. */
void mt__trace_run(mt_trainer *t, const mt_memory *memory);
void mt__trace_plan(mt_trainer *t, const mt_plan *plan);
void mt__trace_forced(mt_trainer *t);
void mt__trace_oom(mt_trainer *t, const mt_oom *oom, mt_action action);
void mt__trace_clear(mt_trainer *t, mt_clear_reason reason, const mt_clear_result *result);
void mt__trace_rung(mt_trainer *t, mt_rung rung, int on, const char *reason);
void mt__trace_step(mt_trainer *t, const mt_step_report *report);
/* Mean loss, and means of all metrics as the backend says what they are over; NaN where there was none. */
double mt__means(const mt_trainer *t, const mt__sums *sums, double metrics[MT_METRICS_MAX]);
void mt__trace_epoch(mt_trainer *t, const mt_epoch_report *report);
void mt__trace_end(mt_trainer *t);

#endif
