/*
 * memtrain/schedule.h - the learning rate of a step, as a function of its number.
 *
 *     mt_schedule schedule = MT_SCHEDULE_INIT;
 *     schedule.kind = MT_SCHEDULE_COSINE;
 *     schedule.rate = 0.1;
 *     schedule.warmup = 500;
 *     schedule.steps = 10000;
 *     mt_torch_set_lr(torch, mt_schedule_rate(&schedule, step));
 *
 * There is no state: a run that goes on from a checkpoint asks with the number that its next step has.
 * Formulas are those that PyTorch documents for LinearLR, CosineAnnealingLR and StepLR, the warm-up first
 * and the other schedule from its own step 0 on, as SequentialLR does.
 */
#ifndef MEMTRAIN_SCHEDULE_H
#define MEMTRAIN_SCHEDULE_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mt_schedule_kind {
    MT_SCHEDULE_CONSTANT = 0,
    MT_SCHEDULE_COSINE =
        1, /* down to end_rate, as half a wave of a cosine (Loshchilov & Hutter 2017) */
    MT_SCHEDULE_LINEAR = 2, /* down to end_rate, in a line */
    MT_SCHEDULE_STEP = 3    /* times step_factor after each step_every steps */
} mt_schedule_kind;

typedef struct mt_schedule {
    size_t size; /* sizeof(mt_schedule) */
    mt_schedule_kind kind;
    double rate;          /* of the first step behind the warm-up, > 0 */
    double end_rate;      /* from step number `steps` on, >= 0; cosine and linear */
    uint64_t steps;       /* of the whole run, warm-up included, > warmup; cosine and linear */
    uint64_t step_every;  /* > 0; step */
    double step_factor;   /* > 0; step */
    uint64_t warmup;      /* steps in which the rate rises in a line to `rate`; 0: none */
    double warmup_factor; /* the first step's share of `rate`, 0 to 1 */
} mt_schedule;

#define MT_SCHEDULE_INIT                                                                           \
    { sizeof(mt_schedule), MT_SCHEDULE_CONSTANT, 1e-3, 0.0, 0, 0, 0.1, 0, 1.0 / 3 }

/*
 * The rate of a step; the first one's number is 0. The same schedule and step give the same bits
 * wherever cos does. Any thread.
 * @return the rate; NaN, with a line that names the field, for a schedule that is none
 */
MT_API double mt_schedule_rate(const mt_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif
#endif
