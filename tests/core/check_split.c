/*
 * check_split.c - how a batch is split into chunks: a table of facts, what is known of the kind, and the split.
 */
#include "candidates.h"
#include "split.h"
#include "suite.h"

/* ---- kinds -------------------------------------------------------------------------------------- */

/* 100 bytes a sample and two gradients of 100, of which one is alive at a time, or both apart. */
static mt_recording *record(size_t m) {
    mt_recording *r;
    static char block[3];

    ck_ok(mt_recording_new(&r));
    mt__recording_restart(r, m);
    mt_recording_event(r, &block[0], (int64_t)(100 * m));
    for (int i = 1; i < 3; i++) {
        mt_recording_event(r, &block[i], 100);
        mt_recording_event(r, &block[i], 0);
    }
    return r;
}

#define IN_PLACE(m) (100 * (m) + 100)
#define APART(m) (100 * (m) + 200)

/* Sizes that ran, in the batch that was planned then; KNOWN: in as many, from the first one on, as make it known. */
enum { KNOWN = 1000 };

typedef struct run {
    uint64_t batch;
    size_t samples;
    double seconds;
} run;

typedef struct known {
    size_t recorded[3]; /* sizes; 0: no more */
    size_t ran;         /* a size that went through unrecorded, with 100 bytes a sample, in 5000 */
    size_t failed, failed_room;
    int failed_apart;
    int begun; /* plans since then */
    size_t learnt, too_small;
    int shares; /* times, with another length */
    uint64_t batches;
    run runs[4];
} known;

static mt__kind *other; /* that shares the times */

static mt__kind *kind_of(const known *what) {
    mt__key key = {MT_TRAIN, 0, 0};
    mt__kind *k = mt__kind_new(&key, &(mt_shape){0}, 0);
    mt_recording *none = NULL;

    for (int i = 0; i < 3 && what->recorded[i]; i++) {
        mt_recording *r = record(what->recorded[i]);

        mt__kind_learn(k, MT__IN_PLACE, what->recorded[i], 0, 0, &r);
        mt_recording_free(r);
    }
    if (what->ran) mt__kind_learn(k, MT__APART, what->ran, 100 * what->ran, 5000, &none);
    if (what->failed)
        mt__kind_fail(k, what->failed_apart ? MT__APART : MT__IN_PLACE, what->failed,
                      what->failed_room, 0, NULL);
    for (int i = 0; i < what->begun; i++) mt__kind_begin(k); /* the correction falls */
    for (int i = 0; i < 4 && what->runs[i].samples; i++) {
        const run *r = &what->runs[i];
        mt__sizes *sizes = &k->times->sizes;
        uint64_t last = r->batch == KNOWN ? KNOWN_RUNS : r->batch;

        for (sizes->batches = r->batch == KNOWN ? 1 : last; sizes->batches <= last;
             sizes->batches++)
            mt__sizes_note(sizes, r->samples, r->seconds);
    }
    k->times->sizes.batches = what->batches;
    k->learnt = what->learnt;
    k->too_small = what->too_small;
    if (what->shares) {
        other = mt__kind_new(&key, &(mt_shape){0}, 0);
        mt__kind_share_times(other, k);
    }
    return k;
}

/* ---- the table ---------------------------------------------------------------------------------- */

#define NO SIZE_MAX /* no limit is known of */

#define TRAIN .is_training = 1, .can_record = 1
#define DETERMINISTIC .is_deterministic = 1
#define NOTHING .batches = 0 /* is known */
#define RECORDED .recorded = {2, 4}
#define ONE(size)                                                                                  \
    { size, 1, 0, 0, 0, 0 }
#define CHUNKS(count)                                                                              \
    { 0, count, count, 0, 0, 0 }
/* All candidates of 64 are known, and took so many seconds. */
#define TIMED(of_8, of_16, of_32, of_64)                                                           \
    .batches = KNOWN_RUNS + 1,                                                                     \
    .runs = {{KNOWN, 8, of_8}, {KNOWN, 16, of_16}, {KNOWN, 32, of_32}, {KNOWN, 64, of_64}}
/* The first chunk of a kind has run alone. */
#define FIRST_RAN .batches = 1, .runs = {{1, FIRST_CHUNK, FIRST_CHUNK / 16.}}
/* What is left of a batch then. */
#define AFTER_FIRST(samples) .batch = samples, .rest = (samples)-FIRST_CHUNK, .ran = FIRST_CHUNK
/* A batch of which the smallest candidate is so many samples, for no other reason than its share. */
#define SHARED(samples) ((samples)*SMALLEST_SHARE)
/* A batch that begins with so many samples where nothing is recorded. */
#define BEGUN(samples) (2 * SHARED(samples))

/* Zeros: rest and most are the batch, least is 1, and room_told and room_alone are the room. */
static const struct {
    const char *name;
    mt__facts facts;
    known known;
    mt__split split; /* size, chunks, fewest, alone, discard, starts_over */
} rows[] = {
    {"1 last resort",
     {.batch = 64, .room = 100, TRAIN, .must_go_alone = 1},
     {NOTHING},
     {0, 1, 65, 1, 0, 0}},
    {"1 larger chunks",
     {.batch = BEGUN(10), .room = 100, TRAIN, .tries_larger = 1},
     {NOTHING},
     {0, BEGUN(1), 1, 0, 0, 0}},
    {"1 larger chunks, but legal ones",
     {.batch = BEGUN(14) + 1, .least = 14, .room = 100, TRAIN, .tries_larger = 1},
     {NOTHING},
     {0, BEGUN(1), 1, 0, 0, 0}},
    {"1 none has gone through",
     {.batch = 64, .room = 9000, TRAIN, .tries_larger = 1},
     {RECORDED, .ran = 8},
     CHUNKS(1)},

    {"2 given", {.batch = 64, .room = 100, TRAIN, .fixed = 4}, {NOTHING}, CHUNKS(4)},
    {"2 given, fits",
     {.batch = 64, .room = IN_PLACE(16), TRAIN, .fixed = 4},
     {RECORDED},
     CHUNKS(4)},
    {"2 given, ruled out",
     {.batch = 64, .room = IN_PLACE(16) - 1, TRAIN, .fixed = 4},
     {RECORDED},
     {0, 0, 4, 0, 0, 0}},
    {"2 all of it",
     {.batch = 64, .room = APART(64), TRAIN, .fixed = 1, .may_go_alone = 1},
     {RECORDED},
     {0, 1, 1, 1, 0, 0}},
    {"2 fits alone only",
     {.batch = 64, .room = 100, .room_alone = APART(64), TRAIN, .fixed = 1, .may_go_alone = 1},
     {RECORDED},
     {0, 1, 1, 1, 0, 0}},
    {"2 not even alone",
     {.batch = 64, .room = 100, .room_alone = APART(64) - 1, TRAIN, .fixed = 1, .may_go_alone = 1},
     {RECORDED},
     {0, 0, 1, 0, 0, 0}},
    {"2 has failed, so alone",
     {.batch = 64, .room = 9000, TRAIN, .fixed = 1, .may_go_alone = 1},
     {RECORDED, .failed = 64, .failed_room = 9000},
     {0, 1, 1, 1, 0, 0}},
    {"2 has failed alone",
     {.batch = 64, .room = 9000, TRAIN, .fixed = 1, .may_go_alone = 1},
     {RECORDED, .failed = 64, .failed_room = 9000, .failed_apart = 1},
     CHUNKS(1)},
    {"2 has failed alone before",
     {.batch = 64, .room = 9000, TRAIN, .fixed = 1, .may_go_alone = 1},
     {RECORDED, .failed = 64, .failed_room = 9000, .failed_apart = 1, .begun = 2},
     CHUNKS(1)},
    {"2 ran alone",
     {.batch = 64, .room = 9000, TRAIN, .fixed = 1, .may_go_alone = 1},
     {.ran = 64},
     {0, 1, 1, 1, 0, 0}},
    {"2 a smaller one did",
     {.batch = 64, .room = 9000, TRAIN, .fixed = 1, .may_go_alone = 1},
     {.ran = 63},
     CHUNKS(1)},

    {"3 first", {.batch = 64, .room = 9000, TRAIN}, {NOTHING}, ONE(FIRST_CHUNK)},
    {"3 legal",
     {.batch = 64, .least = FIRST_CHUNK + 3, .room = 9000, TRAIN},
     {NOTHING},
     ONE(FIRST_CHUNK + 3)},
    {"3 may be taken back later",
     {.batch = 64, .room = 9000, TRAIN, .normalises = 1},
     {NOTHING},
     ONE(FIRST_CHUNK)},
    {"3 is taken back at once",
     {.batch = 64, .room = 9000, TRAIN, .normalises = 1, .all_at_once = 1},
     {NOTHING},
     {FIRST_CHUNK, 1, 0, 0, 1, 0}},
    {"3 deterministic",
     {.batch = 64, .room = 9000, TRAIN, DETERMINISTIC},
     {NOTHING},
     {FIRST_CHUNK, 1, 0, 0, 1, 0}},
    {"3 an evaluation",
     {.batch = 64, .room = 9000, .can_record = 1, DETERMINISTIC},
     {NOTHING},
     ONE(FIRST_CHUNK)},
    {"3 no recordings",
     {.batch = BEGUN(LEAST_NORMALISED), .room = 9000, .is_training = 1},
     {NOTHING},
     ONE(LEAST_NORMALISED)},
    {"3 no recordings, normalises",
     {.batch = BEGUN(LEAST_NORMALISED),
      .room = 9000,
      .is_training = 1,
      .normalises = 1,
      .all_at_once = 1},
     {NOTHING},
     ONE(LEAST_NORMALISED)},
    {"3 no recordings, large",
     {.batch = BEGUN(2 * LEAST_NORMALISED), .room = 9000, .is_training = 1},
     {NOTHING},
     ONE(2 * LEAST_NORMALISED)},
    {"3 no recordings, small",
     {.batch = LEAST_NORMALISED + 3, .room = 9000, .is_training = 1},
     {NOTHING},
     ONE((LEAST_NORMALISED + 3) / 2)},
    {"3 what is left is legal", {.batch = 8, .least = 4, .room = 9000, TRAIN}, {NOTHING}, ONE(4)},
    {"3 it is not", {.batch = 7, .least = 4, .room = 9000, TRAIN}, {NOTHING}, CHUNKS(1)},
    {"3 nor is it to run",
     {.batch = 7, .least = 4, .room = 9000, TRAIN, DETERMINISTIC},
     {NOTHING},
     CHUNKS(1)},
    {"3 nor recorded",
     {.batch = 7, .least = 4, .room = 9000, .is_training = 1, DETERMINISTIC},
     {NOTHING},
     CHUNKS(1)},
    {"3 no limit", {.batch = 64, .room = NO, TRAIN}, {NOTHING}, CHUNKS(1)},
    {"3 in a plan", {AFTER_FIRST(64), .room = 9000, TRAIN}, {NOTHING}, CHUNKS(1)},
    {"3 all of it", {.batch = FIRST_CHUNK, .room = 9000, TRAIN}, {NOTHING}, CHUNKS(1)},
    {"3 above the most", {.batch = 8, .most = 1, .room = 9000, TRAIN}, {NOTHING}, CHUNKS(8)},
    {"3 taken back before", {.batch = 64, .room = 9000, TRAIN}, {.learnt = FIRST_CHUNK}, CHUNKS(1)},
    {"3 has failed", {.batch = 8, .room = 90, TRAIN}, {.failed = 2, .failed_room = 100}, CHUNKS(8)},

    {"4 balanced", {.batch = 64, .room = IN_PLACE(20), TRAIN}, {RECORDED}, CHUNKS(4)},
    {"4 all of it", {.batch = 64, .room = IN_PLACE(64), TRAIN}, {RECORDED}, CHUNKS(1)},
    {"4 the most", {.batch = 64, .most = 10, .room = 9000, TRAIN}, {RECORDED}, CHUNKS(7)},
    {"4 legal", {.batch = 64, .least = 15, .room = IN_PLACE(16), TRAIN}, {RECORDED}, CHUNKS(4)},
    {"4 ruled out",
     {.batch = 64, .least = 2, .room = IN_PLACE(2) - 1, TRAIN},
     {RECORDED},
     CHUNKS(0)},
    {"4 above what is allowed",
     {.batch = 64, .least = 8, .most = 7, .room = 9000, TRAIN},
     {RECORDED},
     CHUNKS(0)},
    {"4 not known to fit", {.batch = 64, .room = IN_PLACE(1) - 1, TRAIN}, {RECORDED}, CHUNKS(64)},
    {"4 something else has the room",
     {.batch = 64, .least = 2, .room = 10, .room_told = IN_PLACE(2), TRAIN},
     {RECORDED},
     CHUNKS(32)},
    {"4 alone, or not at all",
     {.batch = 64, .least = 33, .room = 1000, .room_alone = APART(64), TRAIN, .may_go_alone = 1},
     {RECORDED},
     {0, 1, 65, 1, 0, 0}},

    {"5 as large as its own",
     {.batch = 64, .room = IN_PLACE(20), TRAIN, DETERMINISTIC},
     {RECORDED},
     {16, 1, 4, 0, 1, 0}},
    {"5 twice as large as its own, but legal",
     {.batch = 64, .least = 12, .room = IN_PLACE(20), TRAIN, DETERMINISTIC},
     {.recorded = {4}},
     {12, 1, 4, 0, 1, 0}},
    {"5 once",
     {.batch = 64, .room = IN_PLACE(20), TRAIN, DETERMINISTIC},
     {RECORDED, .learnt = 16},
     CHUNKS(4)},
    {"5 recorded",
     {.batch = 64, .room = IN_PLACE(20), TRAIN, DETERMINISTIC},
     {.recorded = {2, 4, 16}},
     CHUNKS(4)},
    {"5 all of it",
     {.batch = 64, .room = IN_PLACE(64), TRAIN, DETERMINISTIC},
     {RECORDED},
     CHUNKS(1)},
    {"5 an evaluation",
     {.batch = 64, .room = IN_PLACE(20), .can_record = 1, DETERMINISTIC},
     {RECORDED},
     CHUNKS(4)},
    {"5 no recordings",
     {.batch = 64, .room = IN_PLACE(20), .is_training = 1, DETERMINISTIC},
     {RECORDED},
     CHUNKS(4)},
    {"5 no limit",
     {.batch = 64, .most = 20, .room = NO, TRAIN, DETERMINISTIC},
     {RECORDED},
     CHUNKS(4)},
    {"5 what is left",
     {.batch = 64, .rest = 48, .ran = 16, .room = IN_PLACE(20), TRAIN, DETERMINISTIC},
     {RECORDED},
     CHUNKS(3)},
    {"5 memory is short",
     {.batch = 64, .room = IN_PLACE(20), TRAIN, DETERMINISTIC, .is_cut = 1},
     {RECORDED},
     CHUNKS(4)},
    {"5 times do not count",
     {.batch = 64, .room = IN_PLACE(64), TRAIN, DETERMINISTIC},
     {RECORDED, TIMED(.1, 1, 1, 9)},
     CHUNKS(1)},
    {"5 alone",
     {.batch = 64,
      .room = IN_PLACE(20),
      .room_alone = APART(64),
      TRAIN,
      DETERMINISTIC,
      .may_go_alone = 1},
     {RECORDED, .learnt = 16},
     {0, 1, 4, 1, 0, 0}},
    {"5 alone above the most",
     {.batch = 64,
      .most = 20,
      .room = IN_PLACE(20),
      .room_alone = APART(64),
      TRAIN,
      DETERMINISTIC,
      .may_go_alone = 1},
     {RECORDED, .learnt = 16},
     CHUNKS(4)},
    {"5 alone",
     {.batch = 64, .room = APART(64), TRAIN, DETERMINISTIC, .may_go_alone = 1},
     {RECORDED},
     {0, 1, 1, 1, 0, 0}},

    {"6 the smallest candidate",
     {AFTER_FIRST(SHARED(8)), .room = IN_PLACE(SHARED(8)), TRAIN},
     {RECORDED, FIRST_RAN},
     {8, 1, 1, 0, 0, 0}},
    {"6 of few that fit",
     {AFTER_FIRST(64), .room = IN_PLACE(16), TRAIN},
     {RECORDED, FIRST_RAN},
     {POWER_FROM(2 * FIRST_CHUNK), 1, 4, 0, 0, 0}},
    {"6 legal",
     {.batch = 64, .rest = 48, .ran = 12, .least = 12, .room = IN_PLACE(64), TRAIN},
     {RECORDED, .batches = 1, .runs = {{1, 12, .125}}},
     {16, 1, 1, 0, 0, 0}},
    {"6 smaller ones need more",
     {AFTER_FIRST(64), .room = IN_PLACE(64), TRAIN},
     {RECORDED, .too_small = 15, FIRST_RAN},
     {16, 1, 1, 0, 0, 0}},
    {"6 all are too small",
     {AFTER_FIRST(64), .room = IN_PLACE(16), TRAIN},
     {RECORDED, .too_small = 99, FIRST_RAN},
     {16, 1, 4, 0, 0, 0}},
    {"6 grows",
     {.batch = 64, .rest = 54, .ran = 8, .room = IN_PLACE(64), TRAIN},
     {RECORDED, .batches = 1, .runs = {{1, 2, .1}, {1, 8, .2}}},
     {16, 1, 1, 0, 0, 0}},
    {"6 all that is left",
     {.batch = 24, .rest = 12, .ran = 8, .room = IN_PLACE(20), TRAIN},
     {RECORDED, .batches = 1, .runs = {{1, 8, .2}}},
     CHUNKS(1)},
    {"6 what is left has a size that ran",
     {.batch = 128, .rest = 52, .ran = 32, .room = IN_PLACE(32), TRAIN},
     {RECORDED, .batches = 1, .runs = {{1, 16, 1}, {1, 32, 1.9}}},
     {32, 1, 2, 0, 0, 0}},
    {"6 as many as there are",
     {.batch = 128, .rest = 52, .ran = 32, .room = IN_PLACE(32), TRAIN},
     {RECORDED, .batches = 2, .runs = {{KNOWN, 16, 1}, {KNOWN, 32, 2.1}}},
     {16, 3, 2, 0, 0, 0}},
    {"6 and nothing is left",
     {.batch = 128, .rest = 48, .ran = 32, .room = IN_PLACE(32), TRAIN},
     {RECORDED, .batches = 2, .runs = {{KNOWN, 16, 1}, {KNOWN, 32, 2.1}}},
     {0, 3, 2, 0, 0, 0}},
    {"6 unless times are shared",
     {.batch = 128, .rest = 56, .ran = 32, .room = IN_PLACE(32), TRAIN},
     {RECORDED, .shares = 1, .batches = 2, .runs = {{KNOWN, 16, 1}, {KNOWN, 32, 2.1}}},
     {0, 4, 2, 0, 0, 0}},
    {"6 none that ran leaves what is legal",
     {.batch = 128, .rest = 52, .ran = 32, .least = 5, .room = IN_PLACE(32), TRAIN},
     {RECORDED, .batches = 2, .runs = {{KNOWN, 16, 1}}},
     CHUNKS(2)},
    {"6 all at once",
     {.batch = SHARED(8), .room = IN_PLACE(SHARED(8)), TRAIN, .all_at_once = 1},
     {RECORDED, FIRST_RAN},
     {0, SMALLEST_SHARE, 1, 0, 0, 0}},
    {"6 times are shared",
     {.batch = SHARED(8), .room = IN_PLACE(SHARED(8)), TRAIN},
     {RECORDED, .shares = 1, FIRST_RAN},
     {0, SMALLEST_SHARE, 1, 0, 0, 0}},
    {"6 memory is short",
     {.batch = 64, .room = IN_PLACE(64), TRAIN, .is_cut = 1},
     {RECORDED, FIRST_RAN},
     CHUNKS(1)},
    {"6 the second batch",
     {.batch = SHARED(8), .room = IN_PLACE(SHARED(8)), TRAIN},
     {RECORDED, .batches = 2, .runs = {{1, 16, .1}}},
     {8, 1, 1, 0, 0, 0}},
    {"6 larger ones later in it",
     {.batch = 64, .rest = 56, .ran = 8, .room = IN_PLACE(64), TRAIN},
     {RECORDED, .batches = 2, .runs = {{1, 8, .1}, {2, 8, .1}, {1, 16, .2}}},
     {16, 1, 1, 0, 0, 0}},
    {"6 no clock", {.batch = 64, .room = IN_PLACE(64), TRAIN}, {RECORDED, .batches = 2}, CHUNKS(1)},
    {"6 the smallest is not known to fit",
     {.batch = 59, .least = 2, .room = IN_PLACE(2), .room_told = NO, TRAIN},
     {RECORDED, .batches = 2, .runs = {{1, 2, .1}}},
     {0, 20, 29, 0, 0, 0}},
    {"6 all at once, and legal",
     {.batch = 59, .least = 8, .room = IN_PLACE(40), TRAIN, .all_at_once = 1},
     {RECORDED, .batches = 2, .runs = {{1, 2, .1}}},
     {0, 7, 2, 0, 0, 0}},
    {"6 alone",
     {.batch = 64, .room = IN_PLACE(32), .room_alone = APART(64), TRAIN, .may_go_alone = 1},
     {RECORDED, .batches = KNOWN_RUNS + 1,
      .runs = {{KNOWN, 4, .1}, {KNOWN, 8, .2}, {KNOWN, 16, .5}, {KNOWN, 32, 1}}},
     {0, 1, 2, 1, 0, 0}},

    {"7 the fastest",
     {.batch = 64, .least = 8, .room = IN_PLACE(64), TRAIN},
     {RECORDED, TIMED(1, 2.1, 4.2, 8.4)},
     {0, 8, 1, 0, 0, 0}},
    {"7 of another batch",
     {.batch = 20, .room = IN_PLACE(64), TRAIN, .is_cut = 1},
     {RECORDED, TIMED(1, 3, 6, 12)},
     {0, 3, 1, 0, 0, 0}},
    {"7 the fastest that fits",
     {.batch = 64, .room = IN_PLACE(16), TRAIN, .is_cut = 1},
     {RECORDED, TIMED(1, 1.9, 3, 5)},
     CHUNKS(4)},
    {"7 hardly faster",
     {.batch = 64, .least = 8, .room = IN_PLACE(64), TRAIN},
     {RECORDED, TIMED(1, 2, 4, 7.9)},
     CHUNKS(1)},
    {"7 alone is the fastest",
     {.batch = 64,
      .room = IN_PLACE(32),
      .room_alone = APART(64),
      TRAIN,
      .may_go_alone = 1,
      .is_cut = 1},
     {RECORDED, TIMED(1, 2, 4, 7)},
     {0, 1, 2, 1, 0, 0}},
    {"7 alone is not",
     {.batch = 64,
      .room = IN_PLACE(32),
      .room_alone = APART(64),
      TRAIN,
      .may_go_alone = 1,
      .is_cut = 1},
     {RECORDED, TIMED(1, 2, 4, 9)},
     CHUNKS(2)},
    {"7 alone, no clock",
     {.batch = 64, .room = IN_PLACE(32), .room_alone = APART(64), TRAIN, .may_go_alone = 1},
     {RECORDED},
     {0, 1, 2, 1, 0, 0}},
    {"7 whole",
     {.batch = 64, .least = 8, .room = APART(64), TRAIN, .may_go_alone = 1},
     {RECORDED, TIMED(1, 2, 4, 7)},
     {0, 1, 1, 1, 0, 0}},
    {"7 smaller than the smallest candidate",
     {.batch = SHARED(32), .room = IN_PLACE(SHARED(32)), TRAIN, .is_cut = 1},
     {RECORDED, .batches = 3, .runs = {{1, 16, 1}, {2, 16, 1}, {1, 64, 9}, {2, 64, 9}}},
     {0, SHARED(2), 1, 0, 0, 0}},

    {"8 starts over",
     {AFTER_FIRST(SHARED(LEAST_NORMALISED)), .room = IN_PLACE(SHARED(LEAST_NORMALISED)), TRAIN,
      .normalises = 1},
     {RECORDED, FIRST_RAN},
     {POWER_FROM(LEAST_NORMALISED), 1, 1, 0, 0, 1}},
    {"8 no clock",
     {AFTER_FIRST(64), .room = IN_PLACE(64), TRAIN, .normalises = 1},
     {RECORDED},
     {0, 1, 1, 0, 0, 1}},
    {"8 half of those to come",
     {AFTER_FIRST(11 * FIRST_CHUNK), .room = IN_PLACE(2 * FIRST_CHUNK), TRAIN, .normalises = 1},
     {RECORDED},
     CHUNKS(5)},
    {"8 less than half",
     {AFTER_FIRST(11 * FIRST_CHUNK + 5), .room = IN_PLACE(2 * FIRST_CHUNK + 1), TRAIN,
      .normalises = 1},
     {RECORDED},
     {0, 5, 5, 0, 0, 1}},
    {"8 as large as others are",
     {AFTER_FIRST(32 * FIRST_CHUNK), .room = IN_PLACE(FIRST_CHUNK), TRAIN, .normalises = 1},
     {RECORDED},
     CHUNKS(31)},
    {"8 large enough",
     {.batch = 64,
      .rest = 64 - LEAST_NORMALISED,
      .ran = LEAST_NORMALISED,
      .room = IN_PLACE(64),
      TRAIN,
      .normalises = 1},
     {RECORDED, .batches = 1, .runs = {{1, 8, .1}}},
     {POWER_FROM(LEAST_NORMALISED + 1), 1, 1, 0, 0, 0}},
    {"8 large enough of a large batch",
     {.batch = SHARED(32),
      .rest = SHARED(32) - LEAST_NORMALISED,
      .ran = LEAST_NORMALISED,
      .room = IN_PLACE(SHARED(32)),
      TRAIN,
      .normalises = 1},
     {RECORDED, .batches = 1, .runs = {{1, 8, .1}}},
     {32, 1, 1, 0, 0, 0}},
};

TEST_LOOP("rules", batches_are_split, LENGTH(rows)) {
    mt__facts f = rows[_i].facts;
    mt__kind *k = kind_of(&rows[_i].known);

    if (!f.rest) f.rest = f.batch;
    if (!f.most) f.most = f.batch;
    if (!f.least) f.least = 1;
    if (!f.room_told) f.room_told = f.room;
    if (!f.room_alone) f.room_alone = f.room;
    mt__split s = mt__split_batch(&f, k), e = rows[_i].split;
    ck_assert_msg(s.size == e.size && s.chunks == e.chunks && s.fewest == e.fewest &&
                      s.alone == e.alone && s.discard == e.discard &&
                      s.starts_over == e.starts_over,
                  "%s: {%zu, %zu, %zu, %d, %d, %d}", rows[_i].name, s.size, s.chunks, s.fewest,
                  s.alone, s.discard, s.starts_over);
    mt__kind_free(other);
    mt__kind_free(k);
}

SUITE("split")
