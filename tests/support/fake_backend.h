/*
 * fake_backend.h - a backend without a device, for tests of everything behind the seam.
 *
 * It trains a linear model on samples that are a pure function of (batch id, index), in plain C
 * arrays: parameters, momentum, buffers (running means that every chunk moves), and a random number
 * generator whose draw changes every chunk. Other chunks therefore give other bits, and a step that
 * half-happened shows in fake_hash().
 *
 * Memory is simulated: a chunk of m samples runs through a program of allocations whose sizes are
 * affine in m and whose lifetimes overlap. Each one is held against the budget. Every fallible call
 * is counted, the allocations included, and any of them can be told to fail.
 *
 * The fake also watches its caller: the first call out of order is kept in fake.complaint.
 */
#ifndef MEMTRAIN_TESTS_FAKE_BACKEND_H
#define MEMTRAIN_TESTS_FAKE_BACKEND_H

#include <memtrain/backend.h>

#define FAKE_PARAMETERS 6
#define FAKE_BUFFERS 3
#define FAKE_METRICS 2
#define FAKE_ALLOCATIONS_MAX 128
#define FAKE_CALLS_MAX 8192
#define FAKE_AT_END SIZE_MAX

/* The calls of the seam and, as one more kind, each simulated allocation. */
typedef enum fake_kind {
    FAKE_DESCRIBE = 0,
    FAKE_MEMORY = 1,
    FAKE_RESET_PEAK = 2,
    FAKE_EMPTY_CACHE = 3,
    FAKE_BEGIN = 4,
    FAKE_ACCUMULATE = 5,
    FAKE_ROLLBACK = 6,
    FAKE_APPLY = 7,
    FAKE_EVALUATE = 8,
    FAKE_RECORD = 9,
    FAKE_UNITS = 10,
    FAKE_SHA256 = 11,
    FAKE_ALLOCATION = 12,
    FAKE_MARK = 13,
    FAKE_REWIND = 14,
    FAKE_SET_RUNG = 15,
    FAKE_SET_RATE = 16,
    FAKE_SHAPE = 17,
    FAKE_HOLD_GRADIENTS = 18,
    FAKE_PREPARE = 19,
    FAKE_COLLECT = 20,
    FAKE_KINDS = 21
} fake_kind;

#define FAKE_BIT(kind) (1U << (kind))

/* One allocation: base + per_sample * m bytes, released just before allocation number dies_at. */
typedef struct fake_allocation {
    int64_t base;
    int64_t per_sample;
    size_t dies_at; /* FAKE_AT_END: with the chunk */
} fake_allocation;

typedef struct fake_program {
    const fake_allocation *allocations;
    size_t count;
} fake_program;

/* The twelve allocations of training and the five of evaluation that most tests use. */
extern const fake_program fake_train_program;
extern const fake_program fake_eval_program;

/*
 * The program while these rungs are on: each leaves 60 % of an allocation, but for a smaller batch,
 * which is none of the backend's. The allocations are kept in storage.
 */
fake_program fake_program_with(const fake_program *program, unsigned rungs,
                               fake_allocation storage[FAKE_ALLOCATIONS_MAX]);

/* What another kernel might need, for fake_options.wide. */
#define FAKE_WIDE_COUNT 6
extern const fake_allocation fake_wide_allocations[FAKE_WIDE_COUNT];

/* Units per sample with fractions and zeros, for fake_options.units. */
#define FAKE_UNITS_COUNT 11
extern const double fake_unit_table[FAKE_UNITS_COUNT];

/* A time of a chunk that is affine in its samples, for fake_options.seconds. */
double fake_seconds(size_t samples);

/* Bytes above the start at the peak of m samples, by playing the program. */
size_t fake_program_peak(const fake_program *program, size_t samples);

/* Sends the program's events for m samples to sink, addresses of released blocks used again. */
void fake_program_record(const fake_program *program, size_t samples, const mt_event_sink *sink);

typedef struct fake_options {
    uint64_t seed;
    size_t budget_bytes;      /* 0: none */
    size_t device_bytes;      /* a limit that memory() does not tell; 0: none */
    size_t resident_bytes;    /* parameters and the like, allocated for good */
    size_t cache_keeps_bytes; /* each chunk leaves so much more in the cache */
    size_t hog_bytes;         /* taken from the budget by others ... */
    uint64_t hog_from;        /* ... from this step on (counted from 1) ... */
    uint64_t hog_until;       /* ... until before this one */
    fake_program train, eval; /* count 0: the ones above */
    fake_program wide;        /* train program above wide_above samples; count 0: none */
    size_t wide_above;
    int tells_wide; /* 1: and describe tells of that */
    size_t min_micro_batch;
    int normalises_over_batch;
    int shows_norm; /* 1: chunks tell that they normalise, which describe does not; 2: of evaluations too */
    int needs_whole_batch;
    const double *units; /* units of sample i: units[i % unit_count]; NULL: 1 each */
    size_t unit_count;
    double units_off; /* units of a part of a batch are told as so many more */
    int spoilt;       /* 1: parameters are not finite, which look_at_parameters tells */
    double noise;     /* of the draws; 0: chunks sum up to the whole batch's gradient */
    double (*seconds)(size_t samples); /* simulated time of a chunk; NULL: not measured */
    double clear_seconds;              /* simulated time of empty_cache */
    unsigned absent;                   /* bits of optional functions to leave NULL */
    int no_peaks;                      /* 1: peak_bytes are not known */
    int no_evidence;                   /* 1: refusals leave no evidence */
    uint64_t skip_step;                /* the scaler skips the update of this step; 0: none */
    int not_finite;                    /* 1: losses are not numbers */
    int scales_loss;                   /* 1: describe tells of a loss scaler */
    int mean_of_nothing;   /* 1: a chunk without units has no number for a loss, nor for metric 0 */
    int keep;              /* 1: mark and rewind are there */
    int tells_gradients;   /* 1: and the sink hears of gradients handed over */
    int holds;             /* 1: hold_gradients is there; they are allocated too */
    unsigned record_rungs; /* of which one must be on for record; 0: none */
    unsigned rungs;        /* MT_RUNG_BITs there are; each one on leaves 60 % of a chunk's bytes */
    size_t cpu_bytes;      /* budget while MT_RUNG_CPU is on */
    unsigned refused_on, refused_off; /* rungs that cannot be turned on, or off ... */
    mt_status refused_status;         /* ... and why; 0: MT_ENOTSUP */
    double rung_seconds[MT_RUNGS];    /* factor of a chunk's time while a rung is on; 0: 1 */
    int may_shorten;                  /* 1: a step may cover less than its batch */
    int shapes;                       /* 1: samples of a batch are 1 + (id >> 32) times as large */
    int prepares;                     /* 1: prepare is there; what it leaves takes memory */
    int defers;     /* 1: collect is there, and chunks that may be deferred are; 2: none is */
    uint64_t model; /* and threads: what describe tells of them */
    int threads;
} fake_options;

#define FAKE_GRADIENT_BYTES 3000
#define FAKE_PREPARED_BYTES 24 /* a sample */
#define FAKE_TOLD_MAX 256
#define FAKE_DEFERRED_MAX 256

/* Budget of a mebibyte, the programs above, noise, nothing absent. */
extern const fake_options fake_defaults;

/* The defaults with a budget that holds chunks of at most m samples of the program. */
fake_options fake_fits(const fake_program *program, size_t m);

/* What a step may change; hashed field by field. */
typedef struct fake_state {
    double parameters[FAKE_PARAMETERS];
    double momentum[FAKE_PARAMETERS];
    double buffers[FAKE_BUFFERS];
    uint64_t rng;
    uint64_t updates;
} fake_state;

typedef struct fake_call {
    fake_kind kind;
    size_t first, count;
    double weight;
    mt_status status;
} fake_call;

typedef struct fake_backend {
    fake_options options;
    fake_state state, before; /* before: as begin saw it */
    double gradients[FAKE_PARAMETERS];
    const mt_batch *batch; /* of the step that is open, or NULL */
    mt_batch batch_seen;
    size_t covered; /* samples accumulated since begin */
    int marked;     /* mark was called, and accumulate not yet */
    int rewindable; /* from mark until that chunk is through */
    fake_state chunk_before;
    unsigned rungs; /* that are on */
    int holding;    /* the memory of gradients is there; 1 without options.holds */
    double rate;
    int disorder;                                                  /* 1: not one after the other */
    size_t told[FAKE_TOLD_MAX], told_count, told_next, told_first; /* chunks, by prepare */
    size_t prepared_bytes, prepared_blocks;
    mt_chunk_result
        deferred[FAKE_DEFERRED_MAX];      /* figures of chunks that are still to be told, ... */
    size_t deferred_count, deferred_next; /* ... and how many of them were */
    uint64_t deferrals;                   /* chunks that were deferred, ever */
    uint64_t deferred_preparations;       /* prepare was told that all of its chunks may be */
    mt_event_sink sink;                   /* sink.event NULL: not recording */
    uint64_t step;                        /* steps applied */
    size_t allocated, reserved, peak;
    uint64_t retries; /* the cache was emptied to serve a request */
    size_t live;      /* blocks of chunks that have not been released */
    /* faults */
    uint64_t calls, fail_at, fired;
    int persistent;
    mt_status fail_status;
    unsigned counted; /* bits of the kinds that count; all fallible ones at the start */
    uint64_t kind_calls[FAKE_KINDS], kind_fail_at[FAKE_KINDS], kind_fail_until[FAKE_KINDS];
    mt_status kind_status[FAKE_KINDS];
    /* what was seen */
    fake_call log[FAKE_CALLS_MAX];
    size_t logged;
    uint64_t genuine; /* refusals by the budget */
    uint64_t clears;
    const char *complaint; /* first call out of order; NULL: none */
} fake_backend;

void fake_init(fake_backend *fake, const fake_options *options);

/* The seam of this fake, functions in options.absent left out. */
mt_backend fake_seam(fake_backend *fake);

/*
 * From now on counts fallible calls from 1 and fails the n-th with MT_EDEVMEM, as an injected
 * refusal that the budget does not explain; persistent: that one and all after it. 0: none.
 * Rollback is not among them, since it must not fail.
 */
void fake_fail_at(fake_backend *fake, uint64_t n, int persistent);

/* The same, once, with another status and no evidence of a refusal. */
void fake_fail_with(fake_backend *fake, uint64_t n, mt_status status);

/* Fails the n-th call of one kind from now on, once; the other: that one and all after it. */
void fake_fail_kind_for_ever(fake_backend *fake, fake_kind kind, uint64_t n, mt_status status);
void fake_fail_kind(fake_backend *fake, fake_kind kind, uint64_t n, mt_status status);

/* Called for every injected failure; does nothing: a place for a breakpoint. */
void fake_fault(void);

/* FNV-1a over all that a step may change. */
uint64_t fake_hash(const fake_backend *fake);

/* Blocks not released, a step left open and a recording left running. */
size_t fake_live_handles(const fake_backend *fake);

/* 1: all gradients are zero. */
int fake_gradients_zero(const fake_backend *fake);

void fake_log_clear(fake_backend *fake);

/*
 * The calls of these kinds as text, "begin accumulate(0+16) apply", failed ones marked with "!".
 * Static: the next call overwrites it.
 */
const char *fake_log_text(const fake_backend *fake, unsigned kinds);

#define FAKE_STEP_KINDS                                                                            \
    (FAKE_BIT(FAKE_BEGIN) | FAKE_BIT(FAKE_ACCUMULATE) | FAKE_BIT(FAKE_ROLLBACK) |                  \
     FAKE_BIT(FAKE_APPLY) | FAKE_BIT(FAKE_EVALUATE) | FAKE_BIT(FAKE_REWIND) |                      \
     FAKE_BIT(FAKE_SET_RUNG) | FAKE_BIT(FAKE_HOLD_GRADIENTS) | FAKE_BIT(FAKE_PREPARE) |            \
     FAKE_BIT(FAKE_COLLECT))

/* The next number of a splitmix64 generator; tests use it for programs with fixed seeds. */
uint64_t fake_random(uint64_t *state);

#endif
