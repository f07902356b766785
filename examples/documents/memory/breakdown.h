/*
 * breakdown.h - where the memory of a step goes, part by part, and what each saver takes off it: two tables,
 * estimate beside measurement.
 */
#ifndef EX_BREAKDOWN_H
#define EX_BREAKDOWN_H

#include "probe.h"

enum { EX_PARTS = 4 };

/* A part of the network. */
typedef struct ex_part {
    const char *name;        /* "vision backbone" */
    const char *prefix;      /* what its parameters' names begin with; NULL: it does not train */
    size_t parameter_bytes;  /* by the architecture */
    size_t activation_bytes; /* the same, of the whole batch in one chunk */
    const char *published;   /* what others say of theirs, in words */
} ex_part;

/* Something that makes a step need less. */
typedef struct ex_saver {
    const char *name;
    mt_dtype amp;
    int checkpointing;     /* as in mt_torch_options */
    size_t micro_batch;    /* 0: the whole batch */
    const char *published; /* what others say of it, in words */
} ex_saver;

typedef struct ex_breakdown {
    ex_probe measure;
    const mt_batch *batch;
    size_t input_bytes;            /* of the batch */
    const ex_part *parts;          /* at most two train, and these come last */
    const size_t *parameter_bytes; /* of each part, as the measure's visit has counted them */
    size_t part_count;
    const ex_saver *savers; /* the first is none */
    size_t saver_count;
    const char *published[4]; /* of inputs, gradients, optimiser state, all together */
} ex_breakdown;

/*
 * Measures and prints both tables. The measured activations of the first part that trains are what the peak
 * loses when it is frozen; the rest is the second's.
 * @return MT_OK; as ex_probe_step
 */
MT_NODISCARD mt_status ex_breakdown_print(const ex_breakdown *b);

#endif
