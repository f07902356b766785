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
 * There is no state. A run that goes on from a checkpoint passes the number of its next step.
 *
 * The formulas are those that PyTorch documents for LinearLR, CosineAnnealingLR and StepLR. The
 * warm-up comes first. The other schedule follows from its own step 0 on, as with SequentialLR.
 */
#ifndef MEMTRAIN_SCHEDULE_H
#define MEMTRAIN_SCHEDULE_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the rate changes after the warm-up. */
typedef enum mt_schedule_kind {
    MT_SCHEDULE_CONSTANT = 0,
    /* Down to end_rate, as half a wave of a cosine (Loshchilov & Hutter 2017). */
    MT_SCHEDULE_COSINE = 1,
    MT_SCHEDULE_LINEAR = 2, /* down to end_rate, in a straight line */
    MT_SCHEDULE_STEP = 3    /* multiplied by step_factor after every step_every steps */
} mt_schedule_kind;

/* A schedule. Fields say for which kinds they count. */
typedef struct mt_schedule {
    size_t size; /* sizeof(mt_schedule) */
    mt_schedule_kind kind;
    double rate;          /* of the first step after the warm-up, > 0 */
    double end_rate;      /* cosine, linear: from step number `steps` on, >= 0 */
    uint64_t steps;       /* cosine, linear: of the whole run, warm-up included, > warmup */
    uint64_t step_every;  /* step: > 0 */
    double step_factor;   /* step: > 0 */
    uint64_t warmup;      /* steps in which the rate rises in a straight line to `rate`. 0: none */
    double warmup_factor; /* the first step's share of `rate`, 0 to 1 */
} mt_schedule;

#define MT_SCHEDULE_INIT                                                                           \
    { sizeof(mt_schedule), MT_SCHEDULE_CONSTANT, 1e-3, 0.0, 0, 0, 0.1, 0, 1.0 / 3 }

/*
 * Computes the learning rate of a step. The first step has number 0. The same schedule and step
 * give the same bits wherever cos gives the same bits. Any thread.
 *
 * @return the rate; NaN for a wrong schedule, with a line that names the field
 */
MT_API double mt_schedule_rate(const mt_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif
#endif
