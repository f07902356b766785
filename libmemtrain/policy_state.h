/*
 * policy_state.h - the policy's inside, shared by policy.c, cut.c, oom.c, ladder.c and clear.c.
 */
#ifndef MT_POLICY_STATE_H
#define MT_POLICY_STATE_H

#include "curve.h"

enum {
    MT__CURVES = 32,
    MT__MODES = 2,
    MT__SAME_CAUSE = 8 /* steps within which a cache that is in the way again is no accident */
};

/* A chunk that did not fit while the cache held what was missing. */
typedef struct mt__helped {
    mt__kind kind;
    size_t chunk; /* 0: none yet */
    uint64_t step;
} mt__helped;

/* How long savers stay on before it is tried without. */
typedef struct mt__wait {
    unsigned steps;    /* training plans since they changed */
    unsigned patience; /* plans that must have been */
    int has_left;      /* they changed last because there was room */
} mt__wait;

struct mt_policy {
    mt_policy_options options;
    mt_backend_info info;
    mt__curve *curves[MT__CURVES]; /* made when first asked for */
    uint64_t uses;                 /* of curves, to find the one least recently used */
    uint64_t shape;                /* of the batches that calls are about */
    int cannot_record;             /* the backend has no recordings, for which chunks would run */
    int is_told;                   /* the backend wants to know all chunks before the first */
    /* this step */
    int replanning;       /* memory ran out since the last plan */
    int same_step;        /* the next plan is for the step of the last one */
    size_t step_cap;      /* largest chunk for the rest of this step; 0: no cap */
    size_t step_failed;   /* smallest chunk that did not fit in this step; 0: none */
    int has_moved_on;     /* a chunk that stays went through since memory ran out */
    unsigned unexplained; /* refusals of one chunk that the budget does not explain */
    int cleared;          /* the cache was cleared for the chunk size that is tried now */
    unsigned clears_here; /* in this step, with the same rungs */
    int keep;             /* of the last plan */
    int alone;            /* of the last training plan */
    int whole;            /* and whether that was one chunk */
    int tries_alone;      /* the whole batch alone is the last resort of these rungs, or was */
    int begun;            /* the plan that is extended is that of a step that has begun */
    unsigned wary;        /* training steps to come in which chunks are kept, after an OOM */
    size_t samples;       /* of the whole batch */
    size_t budget;        /* that the last plan was made for; 0: none */
    unsigned excused; /* OOMs of this step that are no retries: before a rung or a chunk that stays,
                          or of more clears */
    mt_oom explained; /* the last OOM of these rungs that was the budget's; chunk 0: none */
    mt__need least_need; /* of the smallest chunk, with the rungs that were climbed from */
    uint64_t steps;      /* planned so far, of either mode */
    /* 1 + the last step that was cut though the budget does not explain it, and the one before; 0: none */
    uint64_t cut_at, cut_before;
    mt__helped helped; /* the last chunk that went through, it may be, with an empty cache */
    /* the ladder */
    unsigned rungs;       /* MT_RUNG_BITs that are taken */
    unsigned cuts;        /* times that the batch was made smaller by 20 % ... */
    size_t cut_chunk;     /* ... which was in chunks of so many samples */
    unsigned unusable;    /* those that the backend cannot turn on ... */
    unsigned failed;      /* ... and not in this step */
    mt__wait rungs_wait;  /* for rungs to be left ... */
    mt__wait device_wait; /* ... and for the way back from the CPU */
    unsigned device;      /* MT_RUNG_CPU's bit, as in the last plan: where memory is told of */
    unsigned start_rungs; /* where this step began, to go back to when all was in vain */
    unsigned start_cuts;
    size_t start_cut_chunk;
    /* the cache */
    uint64_t calls[MT__MODES];
    int has_mode;
    mt_mode last_mode;
    uint64_t last_shape;
    uint64_t last_alloc_retries;
    uint64_t in_the_way; /* 1 + the step that last failed beside a cache, or was slowed; 0: none */
    uint64_t cleared_at; /* the call that last said so on evidence, of both modes; 0: none */
    double seconds, clear_seconds, last_clear_seconds;
};

/* Bytes of the budget that are not allocated. */
size_t mt__room(const mt_memory *memory);

/* The same where there is a budget; SIZE_MAX without. */
size_t mt__limit(const mt_memory *memory);

/* The smallest legal chunk of a batch of so many samples. */
size_t mt__policy_least(const mt_policy *policy, size_t samples);

/*
 * The largest number of chunks that a batch of so many samples can legally have, at least 1: the
 * smallest legal chunk goes before the size that the user fixed.
 */
size_t mt__policy_most_chunks(const mt_policy *policy, size_t samples);

/* Whether chunks are not chosen: they are the user's, or the whole batch. */
int mt__policy_is_fixed(const mt_policy *policy);

/* The way in which chunks run now: whether their gradients are a second set. */
int mt__policy_apart(const mt_policy *policy, mt_mode mode);

/* Whether the backend has recordings, with the rungs that are taken. */
int mt__policy_can_record(const mt_policy *policy);

/* The curve of the current shape; NULL when out of host memory, or for find when there is none. */
mt__curve *mt__policy_curve(mt_policy *policy, mt_mode mode, unsigned rungs);
mt__curve *mt__policy_find_curve(const mt_policy *policy, mt_mode mode, unsigned rungs);

/* That of the chunks that run now. It is there once a plan was made. */
mt__curve *mt__policy_current(mt_policy *policy, mt_mode mode);

/* ---- cut.c ---- */

/*
 * Whether the whole batch is to be tried as one chunk whose gradients are the only ones, before the next rung: the
 * next plan is that then. Once a step and rung; not where it is known not to fit beside what memory tells of, gradients
 * that are held included.
 */
int mt__policy_try_alone(mt_policy *policy, mt_mode mode, const mt_memory *memory);

/* ---- ladder.c ---- */

/* The rungs that are taken now. */
unsigned mt__ladder_rungs(const mt_policy *policy);

/* Samples of a step on this batch, less where the batch was made smaller; and the rate's factor. */
size_t mt__ladder_samples(const mt_policy *policy, size_t samples);
double mt__ladder_rate(const mt_policy *policy, size_t samples);

/* Takes the next rung that helps the batch of this step. Returns 0 at the end of the ladder. */
int mt__ladder_climb(mt_policy *policy, mt_mode mode);

/* Back to where the step began: the rungs that were taken in it were of no use. */
void mt__ladder_give_back(mt_policy *policy);

/* A step begins: this is where to go back to. */
void mt__ladder_begin(mt_policy *policy);

/* Leaves rungs where there is room, before a training step is planned. */
void mt__ladder_leave(mt_policy *policy, size_t samples, const mt_memory *memory);

/* Whether the rungs that are taken are of another device than that whose memory is known. */
int mt__ladder_crosses(const mt_policy *policy);

#endif
