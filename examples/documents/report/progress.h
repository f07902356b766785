/*
 * progress.h - what a person sees of a run on standard error while it trains.
 *
 *     epoch 2/5 [=====>    ] 12/20  loss 1.43  31 pictures/s  214/280 MiB  chunks 11,11,10
 *
 * On a terminal that is one line, drawn again in place; elsewhere a few plain lines an epoch. The
 * loss is the mean of the epoch so far, the memory the peak of the last step against the budget.
 */
#ifndef EX_PROGRESS_H
#define EX_PROGRESS_H

#include "flags.h"

#include <memtrain/trainer.h>
#include <stdio.h>

typedef struct ex_progress {
    ex_progress_mode mode; /* BAR, PLAIN or OFF: AUTO is decided by ex_progress_init */
    FILE *stream;
    const char *unit;                /* what a sample is called, "pictures" */
    uint64_t epoch, epochs;          /* this one and how many there will be */
    size_t steps, done;              /* of the epoch */
    int has_no_notes;                /* warnings alone are printed */
    size_t processes;                /* that train as many samples as this one; 0: as 1 */
    size_t samples;                  /* of the epoch so far ... */
    double loss_sum;                 /* ... their losses, and ... */
    double started;                  /* ... when it began */
    size_t peak_bytes, budget_bytes; /* of the last step */
    char chunks[32];                 /* likewise */
    double drawn_at;                 /* time of the last line */
    int on_screen;                   /* a bar stands on the terminal's line */
} ex_progress;

void ex_progress_init(ex_progress *progress, ex_progress_mode mode, const char *unit, FILE *stream);

/* An epoch begins, or goes on; so many of its steps are done, and so many belong to it. */
void ex_progress_epoch(ex_progress *progress, uint64_t epoch, uint64_t epochs, size_t done,
                       size_t steps);

/* A step went through. */
void ex_progress_step(ex_progress *progress, const mt_step_report *report);

/* So many batches of the validation pictures are done; a bar only. */
void ex_progress_evaluate(ex_progress *progress, size_t done, size_t total);

/* Takes the bar away. To be called before anything else is printed; the next step draws it again. */
void ex_progress_clear(ex_progress *progress);

/* From now on plain lines instead of the bar, if there is one. */
void ex_progress_no_bar(ex_progress *progress);

/* An mt_log_fn with an ex_progress as user: warnings and notes on standard error. */
void ex_progress_log(void *user, mt_log_level level, const char *text);

/*
 * The line as it is drawn for a terminal of so many columns. What does not fit is left out: the bar
 * gets shorter first, memory against the budget goes last.
 */
void ex_progress_line(const ex_progress *progress, size_t columns, char *line, size_t capacity);

#endif
