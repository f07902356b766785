/*
 * memtrain/check.h - mt_torch_check: is the model one that can be trained in chunks? Library libmemtrain_torch.
 *
 *     mt_check_report report = MT_CHECK_REPORT_INIT;
 *     char text[8192];
 *     mt_torch_check(torch, &batch, &report);
 *     mt_check_explain(&report, text, sizeof text);
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
    /* Faults: steps in chunks, or steps that are done again, are not what the whole batch would give. */
    MT_CHECK_HIDDEN_STATE =
        1,                  /* the same samples and random numbers give another loss or gradient */
    MT_CHECK_WEIGHTING = 2, /* the loss is no mean over the units that the model tells */
    MT_CHECK_COUPLING = 3,  /* the loss of a sample depends on the others of its chunk */
    MT_CHECK_CHUNK_FAILS = 4,    /* a legal chunk fails, a larger one goes through */
    MT_CHECK_NO_GRADIENT = 5,    /* a parameter that is to train has received no gradient */
    MT_CHECK_WRITTEN = 6,        /* the forward pass writes to a parameter, or to the batch */
    MT_CHECK_METRIC_MEAN = 7,    /* a metric is no sum over the samples */
    MT_CHECK_METRIC_MISSING = 8, /* metrics are named, and the loss function gives none */
    MT_CHECK_NO_GRAPH = 9,       /* the loss cannot be differentiated */
    MT_CHECK_NOT_FINITE = 10,    /* loss or gradient are infinite or not a number */
    MT_CHECK_BUFFER = 11,        /* a buffer, of no norm, whose values depend on the cut */
    /* Information, which the text explains. */
    MT_CHECK_RANDOM = 100,     /* gradients that differ by rounding from run to run */
    MT_CHECK_NORMALISES = 101, /* layers normalise over the samples of a chunk */
    MT_CHECK_SKIPPED = 102     /* something was not looked at */
} mt_check_kind;

typedef struct mt_check_finding {
    mt_check_kind kind;
    double difference; /* relative, of what should be equal; 0 where the kind has none */
    char name[88];     /* of the parameter, buffer or metric, the first of several; "" for none */
    char text[400];    /* one line: what differs, by how much, the likely reason, what to do */
} mt_check_finding;

#define MT_CHECK_FINDINGS_MAX 24

typedef struct mt_check_report {
    size_t size;        /* sizeof(mt_check_report) */
    size_t samples;     /* that were run at once */
    size_t fault_count; /* several parameters or buffers with the same fault are one */
    size_t count;       /* of the findings below: faults, the gravest first, then information */
    mt_check_finding findings[MT_CHECK_FINDINGS_MAX];
} mt_check_report;

#define MT_CHECK_REPORT_INIT                                                                       \
    {                                                                                              \
        sizeof(mt_check_report), 0, 0, 0, {                                                        \
            { MT_CHECK_NONE, 0.0, "", "" }                                                         \
        }                                                                                          \
    }

/*
 * Looks, between steps, for what cannot be seen for free in a step: whether a step in chunks, and one that is done
 * again after memory ran out, gives the numbers of the whole batch. It runs samples of the batch, first, middle and
 * last or others that differ more, as steps that are taken back: afterwards parameters, buffers, random numbers and
 * the optimiser's state are as before. State in plain members of the model, which it looks for, no one can take back.
 * It keeps copies of all parameters meanwhile, in the host's memory and outside of the budget: what the model writes
 * by a pointer is found and put back by them.
 *
 * It runs three parts of the batch, each as large as the smallest chunk (a sample, as a rule; two with batch norm): the
 * fewest that can be cut unevenly, and of which one can stand in the place of another. Where three do not fit in
 * the budget it runs two; where two do not, one in training mode, its segments computed again, and of the cuts the
 * losses alone, without a graph.
 *
 * In training mode, as the options say:
 *   all parts twice from the same random numbers, and a third time where loss or gradient differ. A difference
 *   beyond rounding is hidden state; on the CPU with one thread, each bit that differs;
 *   which parameters receive a gradient, and which the forward pass writes to;
 *   buffers after all parts as one chunk against those after two, unless random numbers change them.
 * In evaluation mode, so that dropout and batch norm do not matter, and without autocast:
 *   a chunk of three parts against chunks of two and one, weighted by their units as a trainer does: loss, gradient
 *   and metrics;
 *   the loss of one part beside two different ones: units x loss of {a, b} less that of {a, c} is that of {b}
 *   less that of {c}; and {b, a} against {a, b}.
 * Where these differ, the losses tell the likely reason: a sum in the place of a mean, a mean over other units, or
 * samples that depend on each other.
 *
 * Differences count from 1e-5 of the loss and 1e-3 of the gradient's length on in float32, whose sums come in
 * another order in another chunk; in float64 from 1e-9 and 1e-7 on; on CUDA and MPS, where float32 may be computed
 * with fewer bits, from 5e-3 and 5e-2 on; for parameters of half precision, and where the loss's graph has tensors of
 * half precision, from 5e-2 and 2e-1 on. A metric may differ by a tenth, since a count turns with the rounding of a
 * logit. A gradient is compared by 16 random sums of its elements a parameter, and takes no memory.
 *
 * Of a model with needs_whole_batch, of one that draws random numbers in evaluation mode, and of a batch of fewer
 * than two smallest chunks, only the part in training mode is looked at; of a model with embeddings whether loss and
 * gradient depend on the chunks. The report says what was left out.
 *
 * @param batch   as that of a step
 * @param report  size set by the caller (MT_CHECK_REPORT_INIT); nothing found: fault_count is 0
 * @return MT_OK when the samples could be run, whatever was found; MT_EDEVMEM when the budget has no room for the
 *         smallest chunk; MT_ENOMEM when the host has none for the copies; MT_EINVAL, also for a batch smaller than
 *         the smallest chunk; MT_ESTATE during a step; what the model's functions return when they fail for some
 *         samples and for the whole batch
 */
MT_API MT_NODISCARD mt_status mt_torch_check(mt_torch *torch, const mt_batch *batch,
                                             mt_check_report *report);

/*
 * The report as a text, a line for each finding below one that tells their number.
 * @return the length without the final zero, as snprintf does; 0 for no such report. Any thread
 */
MT_API size_t mt_check_explain(const mt_check_report *report, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
