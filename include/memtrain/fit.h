/*
 * memtrain/fit.h - the loop: epochs over a source of samples, evaluations, learning rates, checkpoints.
 *
 *     mt_source source = MT_SOURCE_INIT;
 *     mt_fit_options options = MT_FIT_OPTIONS_INIT;
 *     mt_fit_callbacks callbacks = MT_FIT_CALLBACKS_INIT;
 *     source.self = &pictures;
 *     source.samples = 5000;
 *     source.load = load;                                 (makes a batch of the samples it is told)
 *     options.batch = 32;
 *     options.epochs = 10;
 *     options.last = "run.ckpt";
 *     callbacks.epoch = print;
 *     if (mt_torch_callbacks(torch, &callbacks) != MT_OK) ...    (files and rates: memtrain/torch_fit.h)
 *     if (mt_fit(trainer, &source, &options, &callbacks, NULL) != MT_OK) ...
 *
 * mt_fit decides which samples a step gets, and when to evaluate, to save and to end. Each step is an
 * mt_trainer_step with all its promises: a step that fails has changed nothing. The library has no clock, prints
 * nothing and catches no signal: these come as callbacks. docs/fit.md is the guide.
 *
 * A run that was stopped and goes on has the same order of samples and the same rates. It ends with the same bits
 * where the chunks are the same (docs/checkpoints.md): given, or of a deterministic policy.
 *
 * Thread rule: as the trainer's. All callbacks run on the thread that calls mt_fit. A callback may evaluate with
 * the trainer; it must not free it.
 */
#ifndef MEMTRAIN_FIT_H
#define MEMTRAIN_FIT_H

#include <memtrain/schedule.h>
#include <memtrain/trainer.h>

#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- samples ------------------------------------------------------------------------------------ */

/* Samples that are numbered from 0 on, and how to make a batch of some of them. */
typedef struct mt_source {
    size_t size;    /* sizeof(mt_source) */
    void *self;     /* given to both functions; borrowed until mt_fit returns */
    size_t samples; /* at least 1 */
    /*
     * Makes one batch. index has the numbers of its samples, count of them, in the batch's order; borrowed for the
     * call. out->count is count already; set out->data, and out->id where the backend wants it. What data points to
     * stays valid until release, or without a release until the next load. A status other than MT_OK ends the run
     * and is what mt_fit returns; use mt_set_error for the words.
     */
    mt_status (*load)(void *self, const size_t *index, size_t count, mt_batch *out);
    /* Once for each batch that was loaded; may be NULL. */
    void (*release)(void *self, mt_batch *batch);
} mt_source;

#define MT_SOURCE_INIT                                                                             \
    { sizeof(mt_source), NULL, 0, NULL, NULL }

/*
 * The order of one epoch, as mt_fit has it with shuffle. It is a permutation of 0 to samples - 1. It depends on seed,
 * epoch and samples alone, and is the same on every platform. The numbers come from splitmix64 (Steele, Lea & Flood 2014).
 * The generator starts in the state x xor epoch. x is the first number that splitmix64 draws from the state `seed`. For i
 * from samples - 1 down to 1 it draws r, and exchanges places i and r mod (i + 1) (Fisher & Yates). If r is not below the
 * largest multiple of i + 1 that is at most 2^64, it is drawn again.
 *
 * @param epoch  counted from 1
 * @param out    room for samples numbers
 * @return MT_OK; MT_EINVAL (out is NULL). Any thread.
 */
MT_API MT_NODISCARD mt_status mt_fit_order(uint64_t seed, uint64_t epoch, size_t samples,
                                           size_t *out);

/* ---- how a run goes ----------------------------------------------------------------------------- */

#define MT_FIT_LOSS (-1) /* of mt_fit_options.metric */

/* Begin with MT_FIT_OPTIONS_INIT: a 0 is not a default here. All pointers are borrowed for the call. */
typedef struct mt_fit_options {
    size_t size;  /* sizeof(mt_fit_options) */
    size_t batch; /* samples of a step, at least 1 */
    uint64_t
        epochs;    /* of the whole run, those before a resume included; 0: only `last` is written */
    uint64_t seed; /* of the order */
    int shuffle;   /* 1: each epoch has an order of its own, see mt_fit_order; 0: 0, 1, 2, ... */
    int drop_last; /* 1: an epoch's last batch is left out where it is smaller than the others */
    /*
     * The rate of each step, told to set_lr. The number of a step counts over all epochs, from 0 on. A schedule whose
     * `steps` is 0 has those of `epochs` epochs, whatever `steps` below says. NULL: the rate stays as it is.
     */
    const mt_schedule *schedule;
    const mt_source *validation; /* what is evaluated, in its own order; NULL: nothing */
    uint64_t evaluate_every;     /* epochs, at least 1; the last epoch has an evaluation too */
    int metric;        /* which figure tells the best epoch: MT_FIT_LOSS, or a metric's index */
    int maximise;      /* 1: the highest is the best; 0: the lowest. It is a finite number */
    uint64_t patience; /* evaluations in a row that are not better end the run; 0: never */
    const char *best;  /* file of the epoch with the best evaluation; NULL: none */
    const char *last; /* file of the end of each epoch, of the run, and of save_every; NULL: none */
    const char *resume; /* best or last of the run that goes on; NULL: from the start */
    const volatile sig_atomic_t *stop; /* read between steps; not 0: the run stops. NULL: none */
    /*
     * Writes last within epochs too: each time the run has made so many steps, counted over all epochs, and each time so
     * many seconds of `now` are over since it was written. 0: not for that reason. An epoch's last step is written with
     * the end of the epoch. MT_EIO of `save` for last then ends no run: a line in the log says why, and the next save
     * tries again. At the run's end it is an error.
     */
    uint64_t save_every;
    double save_seconds;
    /*
     * Most steps of the whole run, those before a resume included. The run then ends as after its last epoch: with an
     * evaluation, the files and the callback `epoch`. A run that goes on does the next batch of that epoch. 0: no bound.
     */
    uint64_t steps;
} mt_fit_options;

#define MT_FIT_OPTIONS_INIT                                                                        \
    {                                                                                              \
        sizeof(mt_fit_options), 32, 1, 0, 1, 0, NULL, NULL, 1, MT_FIT_LOSS, 0, 0, NULL, NULL,      \
            NULL, NULL, 0, 0.0, 0                                                                  \
    }

typedef enum mt_fit_end {
    MT_FIT_RUNNING = 0,  /* in a callback */
    MT_FIT_DONE = 1,     /* all epochs are done, or all steps of the options */
    MT_FIT_PATIENCE = 2, /* no evaluation was better for long enough */
    MT_FIT_STOPPED = 3,  /* stop said so */
    MT_FIT_FAILED = 4    /* mt_fit returns why */
} mt_fit_end;

/* Where a run is. Epochs, steps and best count runs before a resume in. */
typedef struct mt_fit_report {
    size_t size;            /* sizeof(mt_fit_report), set by the caller */
    uint64_t epoch, epochs; /* the one that is under way, from 1 on; those of the options */
    size_t batch, batches;  /* of this epoch: those that are done, and all */
    uint64_t epochs_done;   /* whole ones, evaluation included */
    uint64_t steps;         /* batches that went through, skipped and dropped ones included */
    uint64_t total_steps;   /* epochs times batches */
    double rate;            /* told to set_lr last; NaN: none */
    double seconds;         /* since mt_fit was called; 0 without `now` */
    double best;            /* best figure of an evaluation; NaN: none */
    uint64_t best_epoch;    /* its epoch; 0: none */
    uint64_t worse;         /* evaluations since the best one */
    int evaluated;          /* in `epoch`: 1: this epoch had an evaluation */
    int is_best;            /* in `epoch`: 1: it was the best so far */
    mt_fit_end end;
} mt_fit_report;

#define MT_FIT_REPORT_INIT                                                                         \
    { sizeof(mt_fit_report), 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0, MT_FIT_RUNNING }

/* Most bytes of a position, the final zero included. */
#define MT_FIT_POSITION_MAX 512

/*
 * What a run tells and asks. Every function may be NULL where nothing needs it. Reports are borrowed for the call. A
 * status other than MT_OK ends the run and is what mt_fit returns. MT_EIO of `save` may not (save_every).
 */
typedef struct mt_fit_callbacks {
    size_t size; /* sizeof(mt_fit_callbacks) */
    void *user;  /* given to the first five */
    /* Before the first step of an epoch, and of a run that goes on: run->epoch says which. */
    mt_status (*begin)(void *user, const mt_fit_report *run);
    /* After a step that went through, or whose batch was dropped or skipped, as the report says. */
    mt_status (*step)(void *user, const mt_fit_report *run, const mt_step_report *report);
    /* After an epoch and its evaluation, before its files, which have what it changes. report->epoch is run->epoch. */
    mt_status (*epoch)(void *user, const mt_fit_report *run, const mt_epoch_report *report);
    /* Asked between steps and between evaluation's batches; not 0: the run stops. */
    int (*stop)(void *user);
    /* Seconds since any point in time. */
    double (*now)(void *user);
    /* Given to the four below, which concern what is trained. mt_torch_callbacks sets all five. */
    void *state;
    /* Writes the whole state and the text of the position, at most MT_FIT_POSITION_MAX bytes of ASCII. */
    mt_status (*save)(void *state, const char *path, const char *position);
    /*
     * Reads the text of a file's position into position[capacity], and changes nothing. For a file without one, "" and
     * MT_OK.
     */
    mt_status (*position)(void *state, const char *path, char *position, size_t capacity);
    /* Puts the state back, after the position was found to be one of this run. */
    mt_status (*load)(void *state, const char *path);
    /* The learning rate of the next step. */
    mt_status (*set_lr)(void *state, double rate);
} mt_fit_callbacks;

#define MT_FIT_CALLBACKS_INIT                                                                      \
    { sizeof(mt_fit_callbacks), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/*
 * Trains: `epochs` times over the source. An epoch is its steps, an evaluation where one is due, mt_trainer_end_epoch,
 * the callback, and the checkpoints. mt_trainer_finish is the caller's.
 *
 * With save_every or save_seconds, last is also written between two steps, after the callback `step`. A run that goes on
 * from there does the next batch of the same epoch.
 *
 * A run that is stopped ends between two steps, or between two batches of an evaluation, and returns MT_OK. A run that
 * goes on from there does the evaluation anew. A run that returns MT_OK has written its end to `last`. A run that fails
 * writes nothing: what was trained since the last checkpoint is in the model, and nothing of the step that failed. The
 * mean losses and metrics of an epoch in which a run goes on are over the steps of this call.
 *
 * With several processes (mt_backend.agree) each has a source of its own, with as many batches as the others', and the
 * same answers of stop at the same time. When save_seconds are over for one of them, all write `last`. Two processes
 * must not write the same file: set best and last in one of them alone, or give each its own.
 *
 * @param trainer    borrowed for the call
 * @param source     what is trained on
 * @param options    NULL: defaults
 * @param callbacks  NULL: none
 * @param report     where the run ended, also when it failed; left alone when the arguments were refused. May be NULL
 * @return MT_OK, also for a run that was stopped; MT_EINVAL (names the field, its value and what is accepted; also for
 *         a `resume` whose run had another order: nothing was loaded then); MT_ENOMEM; MT_ENOTSUP (a validation, and a backend without
 *         evaluate); what mt_trainer_step and mt_trainer_evaluate return; what a callback or the source returned
 */
MT_API MT_NODISCARD mt_status mt_fit(mt_trainer *trainer, const mt_source *source,
                                     const mt_fit_options *options,
                                     const mt_fit_callbacks *callbacks, mt_fit_report *report);

/*
 * Evaluates all of a source outside of epochs: a test set, when the training is over. It uses options->batch, and asks
 * options->stop and callbacks->stop between batches. Other options have to be valid all the same. If an epoch is under
 * way, its report will have no evaluation: neither this one nor one before it.
 *
 * @param options    NULL: defaults
 * @param callbacks  NULL: none
 * @param report     means over all that was evaluated, as mt_backend_info.metric_over says; NaN for none. samples is this
 *                   process's, less than source->samples where stop said so. retries, peak_bytes and chunk_count are 0
 * @return MT_OK; MT_EINVAL (names the field); MT_ENOMEM; what mt_trainer_evaluate and the source returned
 */
MT_API MT_NODISCARD mt_status mt_fit_evaluate(mt_trainer *trainer, const mt_source *source,
                                              const mt_fit_options *options,
                                              const mt_fit_callbacks *callbacks,
                                              mt_eval_report *report);

#ifdef __cplusplus
}
#endif
#endif
