/*
 * memtrain/check.h - mt_torch_check: checks whether a model can be trained in chunks.
 *
 *     mt_check_report report = MT_CHECK_REPORT_INIT;
 *     char text[8192];
 *     mt_torch_check(torch, &batch, &report);
 *     mt_check_explain(&report, text, sizeof text);
 *
 * The library is libmemtrain_torch.
 */
#ifndef MEMTRAIN_CHECK_H
#define MEMTRAIN_CHECK_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What mt_torch_check has found. */
typedef enum mt_check_kind {
    MT_CHECK_NONE = 0,
    /* Faults: steps in chunks, or steps that are retried, differ from those of the whole batch. */
    MT_CHECK_HIDDEN_STATE = 1, /* equal samples and random numbers give another loss or gradient */
    MT_CHECK_WEIGHTING = 2,    /* the loss is not a mean over the model's units */
    MT_CHECK_COUPLING = 3,     /* the loss of a sample depends on the other samples of its chunk */
    MT_CHECK_CHUNK_FAILS = 4,  /* a legal chunk fails, and a larger one succeeds */
    MT_CHECK_NO_GRADIENT = 5,  /* a parameter that has to train has received no gradient */
    MT_CHECK_WRITTEN = 6,      /* the forward pass writes to a parameter, or to the batch */
    MT_CHECK_METRIC_MEAN = 7,  /* a metric is not a sum over the samples */
    MT_CHECK_METRIC_MISSING = 8, /* metrics are named, but the loss function gives none */
    MT_CHECK_NO_GRAPH = 9,       /* the loss cannot be differentiated */
    MT_CHECK_NOT_FINITE = 10,    /* loss or gradient are infinite or not a number */
    MT_CHECK_BUFFER = 11, /* a buffer, not that of a norm, has values that depend on the cut */
    /* Information, which the text explains. */
    MT_CHECK_RANDOM = 100,     /* gradients differ by rounding from run to run */
    MT_CHECK_NORMALISES = 101, /* layers normalise over the samples of a chunk */
    MT_CHECK_SKIPPED = 102     /* something was not checked */
} mt_check_kind;

/* One finding. */
typedef struct mt_check_finding {
    mt_check_kind kind;
    double difference; /* relative difference of what should be equal. 0: the kind has none */
    char name[88];     /* of the first parameter, buffer or metric. "": none */
    char text[400];    /* one line: what differs, by how much, likely reason, what to do */
} mt_check_finding;

/* The most findings of a report. */
#define MT_CHECK_FINDINGS_MAX 24

/* All findings. */
typedef struct mt_check_report {
    size_t size;        /* sizeof(mt_check_report) */
    size_t samples;     /* samples that were run at once */
    size_t fault_count; /* several parameters or buffers with one fault count once */
    size_t count;       /* of findings: faults, the worst first, then information */
    mt_check_finding findings[MT_CHECK_FINDINGS_MAX];
} mt_check_report;

#define MT_CHECK_REPORT_INIT                                                                       \
    {                                                                                              \
        sizeof(mt_check_report), 0, 0, 0, {                                                        \
            { MT_CHECK_NONE, 0.0, "", "" }                                                         \
        }                                                                                          \
    }

/*
 * Checks two things: whether steps in chunks give the numbers of the whole batch, and whether steps
 * that are retried after an OOM do. A step itself does not look for that. Call it between steps.
 *
 * It runs samples of the batch in steps that are rolled back: the first, the middle and the last
 * ones, or others that differ more. Afterwards parameters, buffers, random numbers and optimiser
 * state are as before. A model may also keep state in plain members. The check looks for such
 * state, but nobody can roll it back. Meanwhile copies of all parameters are in the host's memory,
 * which no budget counts. If the model writes through a pointer, these copies undo it.
 *
 * It runs three parts of the batch. Each is as large as the smallest chunk: one sample as a rule,
 * two with batch norm. Three is the fewest that can be cut unevenly, and in which one part can take
 * the place of another. If three do not fit in the budget, it runs two. If two do not fit, it runs
 * one in training mode, with its segments computed again. Other cuts then run without a graph, and
 * only their losses are compared.
 *
 * In training mode, as the options say:
 *
 *     - All parts run twice with the same random numbers, and a third time if loss or gradient
 *       differ. A difference beyond rounding means hidden state. On the CPU with one thread, a
 *       single bit that differs means it too.
 *     - It notes which parameters receive a gradient, and which the forward pass writes to.
 *     - Buffers after all parts as one chunk are compared with buffers after two chunks, unless
 *       random numbers change the buffers.
 *
 * In evaluation mode, so that dropout and batch norm do not matter, and without autocast:
 *
 *     - A chunk of three parts is compared with chunks of two and one, weighted by their units as a
 *       trainer does. Loss, gradient and metrics have to be equal.
 *     - Write s(x) for units times loss of the parts x. For three parts a, b and c, s(a, b) - s(a, c)
 *       has to be s(b) - s(c). And s(b, a) has to be s(a, b).
 *
 * If these differ, the losses show the likely reason: a sum instead of a mean, a mean over other
 * units, or samples that depend on each other.
 *
 * Smaller differences than these do not count, because sums come in another order in another chunk:
 *
 *     of loss   of gradient's length
 *     1e-5      1e-3                   float32
 *     1e-9      1e-7                   float64
 *     5e-3      5e-2                   CUDA and MPS, where float32 may be computed with fewer bits
 *     5e-2      2e-1                   half precision, of parameters or of tensors in the loss's graph
 *
 * A metric may differ by a tenth, because a count changes with the rounding of a logit. A gradient
 * is compared by 16 random sums of its elements for each parameter, which takes no memory.
 *
 * In three cases only the part in training mode is checked: the model has needs_whole_batch; it
 * draws random numbers in evaluation mode; the batch has fewer than two smallest chunks. For a
 * model with embeddings only one thing is checked: whether loss and gradient depend on the chunks.
 * The report says what was left out.
 *
 * @param batch   as for a step
 * @param report  size set by the caller (MT_CHECK_REPORT_INIT). If nothing is found, fault_count is
 *                0
 * @return MT_OK: the samples could be run, whatever was found.
 *         MT_EDEVMEM: the budget has no room for the smallest chunk.
 *         MT_ENOMEM: the host has no room for the copies.
 *         MT_EINVAL: a wrong argument, or a batch smaller than the smallest chunk.
 *         MT_ESTATE: during a step.
 *         What the model's functions return, if they fail both for some samples and for the whole
 *         batch.
 */
MT_API MT_NODISCARD mt_status mt_torch_check(mt_torch *torch, const mt_batch *batch,
                                             mt_check_report *report);

/*
 * Writes the report as a text: a line with the number of findings, then a line for each. Any
 * thread.
 *
 * @return the length without the final zero, as snprintf does; 0 for a wrong report
 */
MT_API size_t mt_check_explain(const mt_check_report *report, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
