/*
 * policy_state.h - the policy's inside. What its files share in code is in policy_state.c.
 */
#ifndef MT_POLICY_STATE_H
#define MT_POLICY_STATE_H

#include "kind.h"
#include "split.h"

/* Kinds that are known at once: a thousand, as their hashes fall. */
enum { MT__BUCKETS = 256, MT__IN_BUCKET = 8, MT__MODES = 2 };

/* How long a decision holds before it is tried without. */
typedef struct mt__wait {
    int64_t steps;    /* since then. Below 0: until it is sure that it was not ended too soon */
    int64_t patience; /* steps that it holds */
} mt__wait;

/* Where the ladder stands. */
typedef struct mt__ladder {
    unsigned rungs; /* MT_RUNG_BITs that are taken, but for a smaller batch: ... */
    size_t chunk;   /* one that needs larger chunks is made smaller; 0: none is */
} mt__ladder;

/* Something that nobody has told of takes memory of the device. */
typedef struct mt__shortage {
    size_t limit;  /* bytes that may be allocated beside it; 0: none is known of */
    mt__wait wait; /* from the step in which the limit was met last; evaluations are steps too */
} mt__shortage;

/* In this order, in which they are compared. */
typedef enum mt__tried { MT__NOTHING, MT__THE_SAME, MT__CLEARED } mt__tried;

/* What was tried for the chunk that did not fit. */
typedef struct mt__trouble {
    unsigned retries; /* that count towards max_retries */
    mt__tried tried;  /* what has been tried for this chunk: all up to it */
} mt__trouble;

/* What is tried before the next rung, in this order. */
typedef enum mt__resort { MT__RESORT_NONE, MT__RESORT_LARGER, MT__RESORT_ALONE } mt__resort;

/* The step that is planned. */
typedef struct mt__step {
    size_t samples;    /* of the whole batch; 0: none is planned yet */
    size_t cap;        /* the largest chunk for the rest of the step; 0: no cap */
    mt__resort resort; /* that was tried last */
    int moved_on; /* a chunk that stays, as all of an evaluation do, went through since memory ran out */
    mt__trouble trouble;
    unsigned start;  /* rungs that were on when it began */
    unsigned failed; /* those that could not be set in it */
} mt__step;

struct mt_policy {
    mt_policy_options options;
    mt_backend_info info;
    mt_shape shape; /* of the batches that calls are about */
    /* what is known */
    mt__kind *kinds[MT__BUCKETS];
    mt_recording *recording; /* of the chunk that runs, or empty; NULL: none was needed yet */
    mt__shortage shortage;
    /* the step */
    mt__step step;
    mt_plan plan;   /* the last one. discard: what ran of it is taken back, and the step goes on */
    int is_watched; /* the budget is not enforced: a chunk went through above it */
    /* the ladder */
    mt__ladder ladder;
    mt__wait wait; /* in training plans, from the change of rungs */
    /* the cache */
    uint64_t calls[MT__MODES]; /* with MT_CLEAR_AUTO from the last clear */
    uint64_t last_alloc_retries;
    double clear_credit; /* seconds that clears may take; below 0: they took more than they may */
};

/* The next plan is for the same step, for this reason. */
void mt__policy_go_on(mt_policy *policy, mt_plan_reason reason);

/* Bytes that may be allocated in all: the budget, or less where something else takes room; SIZE_MAX: no limit. */
size_t mt__policy_limit(const mt_policy *policy, const mt_memory *memory);

/* Those of them that are left beside so many; SIZE_MAX: no limit. */
size_t mt__policy_room(const mt_policy *policy, const mt_memory *memory, size_t allocated);

/* Bytes in use while gradients are not held. */
size_t mt__policy_allocated_alone(const mt_policy *policy, const mt_memory *memory);

/* The smallest legal chunk of a batch of so many samples. */
size_t mt__policy_least(const mt_policy *policy, size_t samples);

/* The number of chunks of a batch where they are not chosen; 0: they are. */
size_t mt__policy_fixed(const mt_policy *policy, size_t samples);

/* Whether so many samples may be one chunk whose gradients are the only ones. */
int mt__policy_may_go_alone(const mt_policy *policy, mt_mode mode, size_t samples);

/* The largest number of chunks that a batch of so many samples can legally have. */
size_t mt__policy_most_chunks(const mt_policy *policy, size_t samples);

/* The way in which chunks run now. */
mt__way mt__policy_way(const mt_policy *policy, mt_mode mode);

/* Index in kinds. */
size_t mt__policy_bucket(const mt__key *key);

/* The kind of the current shape; NULL when out of host memory, or for find when there is none. */
mt__kind *mt__policy_kind(mt_policy *policy, mt_mode mode, unsigned rungs);
mt__kind *mt__policy_find_kind(const mt_policy *policy, mt_mode mode, unsigned rungs);

/* That of the chunks that run now. It is there once a plan was made. */
mt__kind *mt__policy_current(mt_policy *policy, mt_mode mode);

/* No chunk is recorded any more. */
void mt__policy_end_recording(mt_policy *policy);

/* Bytes that were in use and asked for when memory was refused; those above the chunk's start. 0: no evidence. */
size_t mt__policy_asked(const mt_oom *oom);
size_t mt__policy_seen_need(const mt_oom *oom);

/* ---- options.c, report.c ---- */

mt_status mt__policy_check_options(const mt_policy_options *options);

/* Why a batch is split like this, compared with the last one if it was of this size; remembers it. */
mt_plan_reason mt__policy_reason(const mt_policy *policy, mt__kind *kind, size_t samples,
                                 const mt__split *split);

/* MT_EDEVMEM, with what a chunk of so many samples would need. */
mt_status mt__policy_does_not_fit(const mt_policy *policy, const mt__kind *kind, size_t samples,
                                  const mt_memory *memory);

/* ---- lengths.c: a new kind begins with what is known of other lengths of its family ---- */

void mt__lengths_inherit(const mt_policy *policy, mt__kind *kind);

/* ---- rungs.c, which calls no other decision ---- */

/* Samples of a step on this batch, less where the batch was made smaller; and the rate's factor. */
size_t mt__rungs_samples(const mt_policy *policy, size_t samples);
double mt__rungs_rate(const mt_policy *policy, size_t samples);

/*
 * No chunk fits: the next thing that may help. A larger chunk, where smaller ones may need more; the whole batch
 * without an accumulator; the next rung. Returns 0 where nothing is left.
 * @param oom  that showed it; NULL: it is known beforehand
 */
int mt__rungs_take(mt_policy *policy, mt_mode mode, const mt_memory *memory, const mt_oom *oom);

/* Nothing has helped: those that were on when the step began are, and a batch is whole again. */
void mt__rungs_give_back(mt_policy *policy, mt_mode mode);

/* Rungs that a run before ended with, of which those are taken that leave the numbers as they are. */
void mt__rungs_begin_with(mt_policy *policy, unsigned rungs);

/* Leaves rungs where there is room, before a training step is planned. */
void mt__rungs_leave(mt_policy *policy, size_t samples, const mt_memory *memory);

#endif
