/*
 * schedule.c - learning rates by the number of a step.
 */
#include <memtrain/schedule.h>

#include "internal.h"

#include <math.h>

/* A finite number of at least 0, or above it. */
static int is_number(double value, int open) {
    return isfinite(value) && (open ? value > 0.0 : value >= 0.0);
}

static mt_status check_end(const mt_schedule *s) {
    MT__CHECK(is_number(s->end_rate, 0), "mt_schedule_rate: end_rate is %g; accepted: at least 0",
              s->end_rate);
    MT__CHECK(s->steps > s->warmup,
              "mt_schedule_rate: steps is %llu; accepted: above warmup, which is %llu",
              (unsigned long long)s->steps, (unsigned long long)s->warmup);
    return MT_OK;
}

static mt_status check_steps(const mt_schedule *s) {
    MT__CHECK(s->step_every > 0, "mt_schedule_rate: step_every is 0; accepted: at least 1");
    MT__CHECK(is_number(s->step_factor, 1),
              "mt_schedule_rate: step_factor is %g; accepted: above 0", s->step_factor);
    return MT_OK;
}

static mt_status check(const mt_schedule *s) {
    MT__CHECK(is_number(s->rate, 1), "mt_schedule_rate: rate is %g; accepted: above 0", s->rate);
    MT__CHECK(!s->warmup || (is_number(s->warmup_factor, 0) && s->warmup_factor <= 1.0),
              "mt_schedule_rate: warmup_factor is %g; accepted: 0 to 1", s->warmup_factor);
    switch ((int)s->kind) {
    case MT_SCHEDULE_CONSTANT:
        return MT_OK;
    case MT_SCHEDULE_COSINE:
    case MT_SCHEDULE_LINEAR:
        return check_end(s);
    case MT_SCHEDULE_STEP:
        return check_steps(s);
    }
    return mt_set_error(MT_EINVAL,
                        "mt_schedule_rate: kind is %d; accepted: MT_SCHEDULE_CONSTANT (0) to "
                        "MT_SCHEDULE_STEP (3)",
                        (int)s->kind);
}

static mt_status check_sized(const mt_schedule *theirs, mt_schedule *own) {
    const mt_schedule initial = MT_SCHEDULE_INIT;
    *own = initial;
    return mt__take_versioned(own, sizeof *own, theirs, "mt_schedule_rate", "schedule");
}

/* Behind the warm-up; step counts from there. */
static double main_rate(const mt_schedule *s, uint64_t step) {
    const double pi = 3.14159265358979323846;
    uint64_t all = s->steps - s->warmup;
    double share = all ? (double)(step < all ? step : all) / (double)all : 0.0;
    switch (s->kind) {
    case MT_SCHEDULE_COSINE:
        if (step >= all) return s->end_rate;
        return s->end_rate +
               (s->rate - s->end_rate) * 0.5 * (1.0 + cos(pi * (double)step / (double)all));
    case MT_SCHEDULE_LINEAR:
        return s->rate * (1.0 - share) + s->end_rate * share;
    case MT_SCHEDULE_STEP:
        return s->rate * pow(s->step_factor, (double)(step / s->step_every));
    case MT_SCHEDULE_CONSTANT:
    default: /* others were refused */
        return s->rate;
    }
}

double mt_schedule_rate(const mt_schedule *schedule, uint64_t step) {
    mt_schedule own;
    if (check_sized(schedule, &own) != MT_OK || check(&own) != MT_OK) return (double)NAN;
    if (step >= own.warmup) return main_rate(&own, step - own.warmup);
    double share = (double)step / (double)own.warmup;
    return own.rate * (own.warmup_factor + (1.0 - own.warmup_factor) * share);
}
