/*
 * retry.c - plans for a step, the rungs and clears that they ask for, and new ones when memory runs out.
 */
#include "attempt.h"

#include <stdio.h>
#include <string.h>

/* ---- cache ------------------------------------------------------------------------------------- */

mt_status mt__clear(mt_trainer *t, mt_clear_reason reason) {
    mt_clear_result result = {sizeof result, 0, 0};
    if (!t->backend.empty_cache) return MT_OK;
    mt_status status = t->backend.empty_cache(t->backend.self, &result);
    if (status == MT_EDEVMEM) {
        mt_log(MT_LOG_WARNING, "the cache is not emptied: %s", mt_last_error());
        return mt_set_error(MT_OK, "%s", "");
    }
    if (status != MT_OK) return status;
    mt_policy_cleared(t->policy, &result);
    t->run.clears++;
    mt__trace_clear(t, reason, &result);
    return MT_OK;
}

/* ---- the ladder -------------------------------------------------------------------------------- */

/* Turns one rung on or off. A smaller batch is the trainer's own affair. */
static mt_status set_rung(mt_trainer *t, mt_rung rung, int on, const char *reason) {
    mt_status status = MT_OK;
    if (rung != MT_RUNG_SMALLER_BATCH) status = t->backend.set_rung(t->backend.self, rung, on);
    if (status == MT_EDEVMEM) {
        status = mt__clear(t, MT_CLEAR_OOM);
        if (status == MT_OK) status = t->backend.set_rung(t->backend.self, rung, on);
    }
    if (status != MT_OK) return status;
    t->rungs ^= MT_RUNG_BIT(rung);
    mt__trace_rung(t, rung, on, reason);
    return MT_OK;
}

static mt_status set_rate(mt_trainer *t, double rate) {
    if (rate == t->rate || !t->backend.set_rate) return MT_OK;
    mt_status status = t->backend.set_rate(t->backend.self, rate);
    if (status == MT_OK) t->rate = rate;
    return status;
}

mt_status mt__set_rungs(mt_trainer *t, unsigned rungs, double rate, const char *reason_on,
                        unsigned *out_failed) {
    *out_failed = MT_RUNGS;
    for (unsigned r = 0; r < MT_RUNGS; r++) {
        int on = (rungs & MT_RUNG_BIT(r)) != 0;
        if (!((rungs ^ t->rungs) & MT_RUNG_BIT(r))) continue;
        mt_status status = set_rung(t, (mt_rung)r, on, on ? reason_on : "room");
        if (status != MT_OK) {
            *out_failed = r;
            return status;
        }
    }
    return set_rate(t, rate);
}

/* ---- retries ----------------------------------------------------------------------------------- */

/* As if gradients were held, which is how the policy is told. */
static void add_gradients(const mt_trainer *t, mt_memory *memory) {
    memory->allocated_bytes = mt__add(memory->allocated_bytes, t->info.gradient_bytes);
    memory->reserved_bytes = mt__add(memory->reserved_bytes, t->info.gradient_bytes);
}

/* One plan for what is left of the step. */
static mt_status ask_plan(mt_trainer *t, mt__work *w) {
    mt_memory memory;
    mt_status status = mt__read_memory(t, &memory);
    if (status != MT_OK) return status;
    if (w->mode == MT_TRAIN && !t->holding) add_gradients(t, &memory);
    status = mt_policy_plan(t->policy, w->mode, w->count - w->done, &memory, &w->plan);
    w->next = 0;
    w->planned = w->done;
    if (status != MT_EDEVMEM) return status;
    /* What an OOM of this step has shown is all the evidence there is. */
    if (!w->oom.attempt)
        mt__note_oom(w, w->mode == MT_TRAIN ? MT_PHASE_BEGIN : MT_PHASE_EVALUATE, 0, NULL,
                     memory.allocated_bytes);
    w->ruled_out = w->count - w->done;
    w->oom.memory = memory;
    if (!w->open) mt__trace_oom(t, &w->oom, MT_ACTION_GIVE_UP);
    return status;
}

/* What the plan asks of the ladder; a rung that cannot be set makes another plan. */
static mt_status take_rungs(mt_trainer *t, mt__work *w) {
    unsigned failed;
    for (;;) {
        mt_status status = mt__set_rungs(t, w->plan.rungs, w->plan.rate,
                                         w->oom.attempt ? "oom" : "budget", &failed);
        if (failed == MT_RUNGS || (status != MT_EDEVMEM && status != MT_ENOTSUP)) return status;
        int on = (w->plan.rungs & MT_RUNG_BIT(failed)) != 0;
        mt_log(MT_LOG_WARNING, "rung %s cannot be turned %s: %s", mt_rung_name((mt_rung)failed),
               on ? "on" : "off", mt_last_error());
        (void)!mt_policy_rung_failed(t->policy, (mt_rung)failed, on, status);
        status = ask_plan(t, w);
        if (status != MT_OK) return status;
    }
}

/* The step is to have fewer samples than the batch: the first ones. */
static mt_status shorten(mt_trainer *t, mt__work *w) {
    if (w->mode != MT_TRAIN || w->done) return MT_OK;
    w->count = w->plan.samples;
    if (w->unit_samples == w->count) return MT_OK;
    w->unit_samples = w->count;
    return mt__units_of(t, w, 0, w->count, &w->units);
}

/* Whether what the plan asks for changes outside a step alone. */
static int wants_a_new_step(const mt_trainer *t, const mt__work *w) {
    return w->plan.rungs != t->rungs || mt__wants_gradients(t, w) != t->holding;
}

/*
 * Plans what is left. Where there is no plan for that, or one that wants other rungs, or gradients held
 * that are not, the finished chunks are taken back too, and the whole batch is planned.
 */
static mt_status make_plan(mt_trainer *t, mt__work *w) {
    if (!w->open) w->count = w->batch->count;
    mt_status status = ask_plan(t, w);
    if (w->open && (status == MT_EDEVMEM || (status == MT_OK && wants_a_new_step(t, w)))) {
        mt_status rolled = mt__roll_back(t, w, status);
        if (rolled != status) return rolled;
        w->count = w->batch->count;
        (void)!mt_policy_replan(t->policy);
        status = ask_plan(t, w);
    }
    if (status == MT_OK) status = take_rungs(t, w);
    if (status == MT_OK) status = shorten(t, w);
    if (status == MT_OK && w->mode == MT_TRAIN &&
        (w->plan.discard || mt_plan_covered(&w->plan) == w->count - w->done))
        mt__trace_plan(t, &w->plan);
    return status;
}

/* What is replayed ran in this budget, so it may have run without gradients held beside its own. */
static mt_status go_alone(mt_trainer *t, mt__work *w) {
    mt__trace_oom(t, &w->oom, MT_ACTION_RETRY);
    w->retries++;
    return mt__hold_gradients(t, 0);
}

/* Others may have applied the step by now, so it is not tried again. */
static mt_status end_here(mt_trainer *t, mt__work *w, mt_status status) {
    w->oom.attempt++;
    t->run.ooms++;
    (void)!mt__read_memory(t, &w->oom.memory);
    mt__trace_oom(t, &w->oom, MT_ACTION_GIVE_UP);
    return status;
}

/* Asks the policy what to do after an OOM and does it. MT_OK: try again; else the step is over. */
static mt_status answer_oom(mt_trainer *t, mt__work *w) {
    mt_action action = MT_ACTION_GIVE_UP;
    /* A user is told of the smallest chunk, not of larger ones that were tried after it. */
    int is_told = !w->told.attempt || w->oom.chunk <= w->told.chunk;
    if (is_told) snprintf(w->said, sizeof w->said, "%s", mt_last_error());
    w->oom.attempt++;
    w->oom.plan_is_fixed = w->forced;
    t->run.ooms++;
    /* A plan that was still open has not been told. */
    if (w->mode == MT_TRAIN && !w->forced) mt__trace_plan(t, &w->plan);
    mt_status status = mt__read_memory(t, &w->oom.memory);
    if (status == MT_OK && mt__may_go_alone(t, w)) return go_alone(t, w);
    if (w->mode == MT_TRAIN && !w->forced && !t->holding) add_gradients(t, &w->oom.memory);
    if (is_told) w->told = w->oom;
    if (status == MT_OK) status = mt_policy_oom(t->policy, &w->oom, &action);
    if (status != MT_OK) return status;
    mt__trace_oom(t, &w->oom, action);
    if (action == MT_ACTION_GIVE_UP) return mt_set_error(MT_EDEVMEM, "%s", w->said);
    w->retries++;
    if (action == MT_ACTION_CLEAR) status = mt__clear(t, MT_CLEAR_OOM);
    if (status != MT_OK) return status;
    if (action == MT_ACTION_REPLAN) return make_plan(t, w);
    /* Evaluation goes on behind the chunks that went through. A training step that has been taken back
       behind the place where its plan begins needs one for all of it. */
    if (w->mode != MT_EVALUATE && w->planned <= w->done) return MT_OK;
    (void)!mt_policy_replan(t->policy);
    return make_plan(t, w);
}

/* ---- ends --------------------------------------------------------------------------------------- */

/* One rung back to where the step found it. One that cannot be set back is told to the policy. */
static mt_status give_rung_back(mt_trainer *t, const mt__work *w, mt_rung rung) {
    int on = (w->rungs_before & MT_RUNG_BIT(rung)) != 0;
    if (!((w->rungs_before ^ t->rungs) & MT_RUNG_BIT(rung))) return MT_OK;
    mt_status status = set_rung(t, rung, on, "oom");
    if (status != MT_EDEVMEM && status != MT_ENOTSUP) return status;
    mt_log(MT_LOG_WARNING, "rung %s cannot be turned %s: %s", mt_rung_name(rung), on ? "on" : "off",
           mt_last_error());
    return mt_policy_rung_failed(t->policy, rung, on, status);
}

/* The rungs that were taken in vain are turned off, the newest first. Returns why, or what failed. */
static mt_status give_rungs_back(mt_trainer *t, const mt__work *w) {
    char reason[MT__LINE];
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    for (unsigned r = MT_RUNGS; r-- > 0;) {
        mt_status status = give_rung_back(t, w, (mt_rung)r);
        if (status != MT_OK) return status;
    }
    mt_status status = set_rate(t, w->rate_before);
    return status == MT_OK ? mt_set_error(MT_EDEVMEM, "%s", reason) : status;
}

/*
 * The whole step, since its chunks normalise over their samples. What memory has refused in it says nothing: one refusal
 * may have led to a chunk that is smaller than what is legal now.
 */
static mt_status plan_again(mt_trainer *t, mt__work *w) {
    w->again = 0;
    return make_plan(t, w);
}

mt_status mt__do_step(mt_trainer *t, mt__work *w) {
    mt_status status = w->forced ? MT_OK : make_plan(t, w);
    while (status == MT_OK) {
        status = mt__attempt_step(t, w);
        if (status == MT_OK && w->again)
            status = plan_again(t, w);
        else if (status == MT_OK && !w->plan.discard)
            return MT_OK;
        else if (status == MT_OK)
            status = make_plan(t, w); /* what was recorded has run and is taken back */
        else if (status == MT_EDEVMEM)
            status = w->owes || !t->backend.agree ? answer_oom(t, w) : end_here(t, w, status);
    }
    if (w->open && !t->poisoned) status = mt__roll_back(t, w, status);
    return status == MT_EDEVMEM ? give_rungs_back(t, w) : status;
}

mt_status mt__do_evaluation(mt_trainer *t, mt__work *w) {
    mt_status status = make_plan(t, w);
    while (status == MT_OK && w->done < w->count) {
        mt_set_error(MT_OK, "%s", "");
        status = mt__do_chunks(t, w);
        if (status == MT_EDEVMEM) status = answer_oom(t, w);
    }
    return status == MT_EDEVMEM ? give_rungs_back(t, w) : status;
}
