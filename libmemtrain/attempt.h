/*
 * attempt.h - a step on its way: what trainer.c begins, attempt.c runs, and retry.c runs again.
 */
#ifndef MT_ATTEMPT_H
#define MT_ATTEMPT_H

#include "trainer_state.h"

/* A step on its way through its attempts. */
typedef struct mt__work {
    const mt_batch *batch;
    mt_mode mode;
    mt_plan plan;
    int forced;          /* the chunks come from mt_trainer_set_chunks */
    size_t count;        /* samples of the step: the batch's, or less where it was made smaller */
    double units;        /* of these, and of other processes' */
    double own_units;    /* of these alone, where there are other processes */
    double weighed;      /* units of the chunks that went through, in this attempt */
    int owes;            /* the other processes are to be told how the step ends */
    size_t unit_samples; /* that units was asked for */
    size_t done;         /* samples that went through, and have not been taken back */
    size_t next;         /* index of the next chunk in the plan */
    size_t planned;      /* samples that were done when the plan was made */
    size_t placed;       /* chunks that went through, of a step that is open or applied */
    size_t chunks;       /* that went through, in all attempts */
    size_t deferred;     /* those of this attempt whose figures are still to come */
    int open;            /* begun, and neither applied nor taken back */
    int marked;          /* a chunk that fails can be taken back alone */
    size_t allocated_before; /* the chunks of this attempt were told of and prepared */
    mt__sums sums;           /* of this attempt */
    mt_apply_result applied;
    mt_skip skipped; /* why the step is over without an update */
    int again;      /* to be taken back and planned anew: its chunks normalise over their samples */
    double seconds; /* all attempts */
    size_t peak_bytes; /* all attempts */
    size_t discarded;  /* samples whose work was thrown away */
    unsigned retries;
    unsigned rungs_before; /* the backend's, when the step began, ... */
    double rate_before;    /* ... and its rate */
    mt_oom oom;            /* the last one */
    mt_oom told;           /* the one that a user is told of, ... */
    char said[MT__LINE];   /* ... and the backend's words of it */
    size_t ruled_out;      /* samples for which there was no plan to try after it, or at all */
} mt__work;

/* ---- attempt.c: one attempt, and what has to be taken back ---- */

mt_status mt__read_memory(mt_trainer *t, mt_memory *out);

/* Makes room for so many chunks in a list. */
mt_status mt__reserve_chunks(mt__chunks *c, size_t count);

/* What the loss is averaged over in a part of the batch. */
mt_status mt__units_of(mt_trainer *t, const mt__work *w, size_t first, size_t count, double *out);

/*
 * Tells the other processes how this one has fared, and puts the sums over all in the place of its own. Without others
 * nothing is done. Returns status where that is a failure, MT_EPEER where another has failed.
 */
mt_status mt__agree(mt_trainer *t, mt_status status, mt__sums *sums);

/* Keeps what is known of a refusal for the policy and for the explanation. */
void mt__note_oom(mt__work *w, mt_phase phase, size_t chunk, const mt_chunk_result *r,
                  size_t allocated_before);

/* The chunks that are left of the plan. A recording to be taken back sees the first samples each time. */
mt_status mt__do_chunks(mt_trainer *t, mt__work *w);

/* Takes the step back and returns why, with the words that belong to it. */
mt_status mt__roll_back(mt_trainer *t, mt__work *w, mt_status because);

/* begin, chunks, apply; or what has to be taken back. After MT_EDEVMEM w->oom tells where. */
mt_status mt__attempt_step(mt_trainer *t, mt__work *w);

/* Whether an attempt needs the memory in which gradients of several chunks are added up. */
int mt__wants_gradients(const mt_trainer *trainer, const mt__work *w);

/*
 * Whether a step that ran out of memory beside gradients that are held may be tried without: its chunks are
 * given, and are one of the whole batch.
 */
int mt__may_go_alone(const mt_trainer *trainer, const mt__work *w);

/* Outside a step: gives the memory back in which gradients are added up, or takes it again. */
mt_status mt__hold_gradients(mt_trainer *trainer, int on);

/* ---- retry.c: plans, and what is done when memory runs out ---- */

/* A clear that memory does not suffice for is none: what it was for goes on without. */
mt_status mt__clear(mt_trainer *t, mt_clear_reason reason);

/* Brings the backend to these rungs; out_failed is the one that could not be set, or MT_RUNGS. */
mt_status mt__set_rungs(mt_trainer *t, unsigned rungs, double rate, const char *reason_on,
                        unsigned *out_failed);

/* Attempts until one goes through or nothing is left to try; then nothing has happened. */
mt_status mt__do_step(mt_trainer *t, mt__work *w);

/* The same for an evaluation: chunks that went through stay, an OOM takes back the one that it hit. */
mt_status mt__do_evaluation(mt_trainer *t, mt__work *w);

#endif
