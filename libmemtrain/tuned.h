/*
 * tuned.h - all numbers of the policy that were chosen by trial, each with its reason and the benchmark that shows it.
 */
#ifndef MT_TUNED_H
#define MT_TUNED_H

/* Samples of the first chunk, which is recorded: one may take kernels of its own. tests/core/check_policy_learn */
#define FIRST_CHUNK 2
/* Samples below which layers that normalise over a chunk learn badly. docs/faq.md */
#define LEAST_NORMALISED 8
/* Candidates are no smaller than this part of the largest. bench/sizes */
#define SMALLEST_SHARE 8
/* Above a size that took so many times as long a sample as a smaller one none is tried. bench/cliff */
#define CLIFF 1.5
/* Batches in which a size runs until it is known: the first one sets it up, of two others one may be busy. bench/sizes */
#define KNOWN_RUNS 3
/* A size that did not run for so many batches runs again, if it is not much slower. bench/sizes */
#define RUN_AGAIN 96
/* A size that is this part away from one that is known is not tried. tests/core/check_policy_time */
#define NEARLY 16

/* A range speaks for a larger size if it has foretold its peak to this part. tests/shim/check_peaks */
#define MODEL_TOLERANCE 1024
/* Two recordings are of other kernels where they foretell this part of the peak more than there is. tests/shim/check_peaks */
#define MODEL_SPARE 8
/* Of two recordings so many allocations at most have no partner; else the larger one speaks alone. tests/core/check_recording */
#define MOST_SKIPPED 256
/* Of what one recording has, this part at least grows with the samples. tests/core/check_last_resort */
#define GROWS 16
/* Plans before a size that never went through is tried, or a rung is left; twice as many each time that it is in vain. */
/* bench/hog, tests/core/check_ladder_leave */
#define PATIENCE 8

/*
 * Steps for which a shortage's limit holds, and plans for which a size that had gone through is left alone after a failure;
 * one more each time that it is tried in vain. For as long nothing is tried for speed alone. bench/hog
 */
#define SHORTAGE_STEPS 4
/* At most so many, where there is no evidence: what had gone through does so again when others have gone. bench/hog */
#define MOST_SHORTAGE_STEPS 12
/* Of one step with the same rungs. */
#define DEFAULT_RETRIES 16
/* A length is told from others where their weights come to so much at most: far beyond them small errors become large. */
/* tests/bench/lengths */
#define MOST_WEIGHT 4.0
/* Logarithm of the least ratio of two of them. tests/bench/lengths */
#define LENGTHS_APART 0.15
/* Other lengths tell nothing of a kind whose peak is this part away from what they told. tests/bench/lengths */
#define LENGTH_TOLERANCE 100
/* Kinds that are remembered. bench/shapes */
#define MOST_KINDS 1024
/* Times as long where it is not known whether there is room without it. */
#define LONG 8
/* Of the batch, each time it is made smaller: what document after document did by hand. */
#define CUT 0.8
/* Automatic clearing takes one part in so many of the time, or of the steps where it has no price. bench/clear */
#define CLEAR_SHARE 100

#endif
