/*
 * split.h - how a batch is split into chunks: facts in, a split out. A pure function of its arguments.
 */
#ifndef MT_SPLIT_H
#define MT_SPLIT_H

#include "kind.h"

/* What is known when a split is asked for. Samples, but for bytes. */
typedef struct mt__facts {
    size_t batch;      /* of the step */
    size_t rest;       /* to be split: the batch, or what is left of it */
    size_t least;      /* the smallest legal chunk of rest */
    size_t most;       /* the largest that options and this step allow, at least one */
    size_t fixed;      /* chunks that the user has fixed; 0: they are chosen */
    size_t ran;        /* the chunk of this plan that ran last; 0: none */
    size_t room;       /* bytes beside what is in use; SIZE_MAX: no limit is known */
    size_t room_told;  /* the same without a shortage, and without a budget that is only watched */
    size_t room_alone; /* the same for one chunk without an accumulator beside it */
    int is_training;   /* not an evaluation */
    int can_record;    /* the backend can tell of allocations */
    int is_deterministic; /* sizes come from memory alone, the same in each step */
    int normalises;       /* chunks normalise over their samples: small ones are not to count */
    int all_at_once;      /* all chunks have to be known before the first one runs */
    int is_cut;           /* chunks of this step were made smaller: nothing is tried for speed */
    int may_go_alone;     /* rest is the whole batch and may be one chunk without an accumulator */
    int tries_larger;     /* chunks are to be larger, known to fit or not, until one went through */
    int must_go_alone;    /* it is to be, known or not: nothing else is left */
} mt__facts;

/* What is to be done. */
typedef struct mt__split {
    size_t size;   /* of each chunk, and what they leave is split anew; 0: balanced chunks of all */
    size_t chunks; /* so many; 0: it does not fit */
    size_t fewest; /* chunks that memory asks for; more than samples: no number of them would do */
    int alone;     /* the only chunk goes without an accumulator */
    int discard;   /* they are run to learn from, and taken back */
    int starts_over; /* what ran of this plan is to be taken back: chunks as small would do harm */
} mt__split;

/* A chunk that such a batch can begin with where nothing is known. */
size_t mt__begin_size(size_t samples);

mt__split mt__split_batch(const mt__facts *facts, const mt__kind *kind);

#endif
