/*
 * tuned.h - all numbers of the policy that were chosen by trial, each with its reason and the benchmark that shows it.
 */
#ifndef MT_TUNED_H
#define MT_TUNED_H

/* Samples of the first chunk, which is recorded: one may take kernels of its own. tests/core/check_policy_learn */
#define FIRST_CHUNK 2
/* Samples below which layers that normalise over a chunk learn badly. docs/faq.md */
#define LEAST_NORMALISED 8
/* Candidates are no smaller than this part of the largest, while smaller ones are slower. bench/sizes */
#define SMALLEST_SHARE 4
/* Above a size that took so many times as long a sample as a smaller one none is tried. bench/cliff */
#define CLIFF 1.5
/* Batches in which a size runs until it is known: the first one sets it up, of two others one may be busy. bench/sizes */
#define KNOWN_RUNS 3
/*
 * What differs by this part or less is nearly the same: a size that is known (tests/core/check_policy_time), the time of one
 * below which smaller ones are tried (bench/sizes), the peak that two recordings of the same kernels foretell
 * (tests/shim/check_peaks). Of what one recording has, more than this part grows with the samples (tests/core/check_last_resort).
 */
#define NEARLY 16
/*
 * What is promised to a hundredth: peaks of lengths never seen, or other lengths tell nothing of a kind (tests/bench/lengths);
 * peaks of sizes beside those recorded, or a new range begins (tests/shim/check_peaks);
 * the time of automatic clearing, and its steps (bench/clear).
 */
#define HUNDREDTH 100
/* Of two recordings so many allocations at most have no partner; else the larger one speaks alone. tests/core/check_recording */
#define MOST_SKIPPED 256
/* Logarithm of the least ratio of two lengths that others are told from: twice what is nearly the same. tests/bench/lengths */
#define LENGTHS_APART (2.0 / NEARLY)
/* A length is told from others where their weights come to so much at most: far beyond them small errors become large. */
/* tests/bench/lengths */
#define MOST_WEIGHT 4.0

/* All waits are equally long until a benchmark asks for another one. Each has a name, so that it can be changed alone. */
#define PATIENCE 4
/* Plans from the one in which a size failed to the one that tries it again, for the first time. tests/core/check_kind */
#define FAILURE_WAIT PATIENCE
/* Steps from the one that meets a shortage to the one that is tried without its limit, for the first time. bench/hog */
#define SHORTAGE_WAIT PATIENCE
/* Plans before a rung is left, for the first time. tests/core/check_ladder_leave */
#define RUNG_WAIT PATIENCE
/* So many times as many where nothing is known without it. tests/core/check_ladder_leave */
#define UNKNOWN_WAITS PATIENCE
/* A size that is known runs again after so many times as many batches as had been when it ran last. bench/sizes */
#define RERUN_AFTER (PATIENCE * PATIENCE)
/* Of one step with the same rungs. tests/core/check_policy_oom */
#define DEFAULT_RETRIES 16
/* Of the batch, each time it is made smaller: what document after document did by hand. tests/core/check_ladder */
#define CUT 0.8

#endif
