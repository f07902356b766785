/*
 * check_recording.c - recordings and the memory model, against brute force: the reference plays the
 * affine program itself at every chunk size.
 */
#include "counting_allocator.h"
#include "each_test.h"
#include "fake_backend.h"
#include "recording.h"
#include "tuned.h"

#include <memtrain/policy.h>
#include <stdio.h>

#define SAMPLES_MAX 512

/* ---- helpers -------------------------------------------------------------------------------- */

static void sink_recording(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

static mt_recording *recording_of(const fake_program *program, size_t samples) {
    mt_recording *recording;
    mt_event_sink sink;

    ck_ok(mt_recording_new(&recording));
    ck_ok(mt_recording_start(recording, samples));
    sink.user = recording;
    sink.event = sink_recording;
    fake_program_record(program, samples, &sink);
    return recording;
}

static mt_memory_model *model; /* of the test */

static void free_model(void) {
    mt_memory_model_free(model);
    model = NULL;
}

static void make_model(mt_recording *small, mt_recording *large) {
    ck_ok(mt_memory_model_new(small, large, &model));
    mt_recording_free(small);
    mt_recording_free(large);
}

/* From chunks of so many samples; large 0: from one chunk. */
static void make_model_of(const fake_program *program, size_t small, size_t large) {
    make_model(recording_of(program, small), large > 0 ? recording_of(program, large) : NULL);
}

static size_t below(uint64_t *state, size_t bound) {
    return (size_t)(fake_random(state) % bound);
}

/* Between 1 and 60 allocations, lifetimes that overlap at random; seed 0 is the fake's own. Static. */
static fake_program random_program(uint64_t seed) {
    static fake_allocation allocations[64];
    fake_program program = {allocations, 0};
    uint64_t state = seed * 77;

    if (seed == 0) return fake_train_program;
    program.count = 1 + below(&state, 60);
    for (size_t i = 0; i < program.count; i++) {
        allocations[i].base = (int64_t)below(&state, 1 + below(&state, 200000));
        allocations[i].per_sample = (int64_t)below(&state, 1 + below(&state, 9000));
        if (allocations[i].base + allocations[i].per_sample == 0) allocations[i].per_sample = 1;
        allocations[i].dies_at = i + 1 + below(&state, program.count + 1 - i);
    }
    return program;
}

static const struct {
    size_t small, large;
} pairs[] = {{2, 4}, {1, 2}, {2, 3}, {4, 8}, {3, 10}, {8, 9}};

#define SEEDS 150

/* ---- recordings ----------------------------------------------------------------------------- */

TEST_LOOP("recording", recording_counts, 20) {
    fake_program program = random_program((uint64_t)_i);

    for (size_t m = 1; m < 40; m += 3) {
        mt_recording *recording = recording_of(&program, m);

        ck_assert_uint_eq(mt_recording_samples(recording), m);
        ck_assert_uint_eq(mt_recording_allocations(recording), program.count);
        ck_assert_uint_eq(mt_recording_peak_bytes(recording), fake_program_peak(&program, m));
        mt_recording_free(recording);
    }
}

/* A hand-made recording: event(block, bytes); the block's number is its address. */
static mt_recording *hand;

static void hand_start(size_t samples) {
    if (hand == NULL) ck_ok(mt_recording_new(&hand));
    ck_ok(mt_recording_start(hand, samples));
}

/* It is the caller's now. */
static mt_recording *hand_over(void) {
    mt_recording *recording = hand;

    hand = NULL;
    return recording;
}

static void event(size_t block, int64_t bytes) {
    mt_recording_event(hand, (void *)(uintptr_t)(0x100 * (block + 1)), bytes);
}

/* Of more samples than any chunk has, an allocation of a byte and a half a sample. */
TEST("model", model_of_very_many) {
    const size_t many = (size_t)1 << 30;
    mt_recording *r;
    char block;

    ck_ok(mt_recording_new(&r));
    ck_ok(mt_recording_start(r, many));
    mt_recording_event(r, &block, (int64_t)(many + many / 2));
    ck_ok(mt_memory_model_new(r, NULL, &model));
    mt_recording_free(r);
    ck_assert_uint_eq(mt_memory_model_peak(model, many << 15), (many + many / 2) << 15);
    ck_assert_uint_eq(mt_memory_model_largest(model, (many + many / 2) << 10), many << 10);
    free_model();
}

static void check_hand(size_t allocations, size_t peak) {
    ck_assert_uint_eq(mt_recording_allocations(hand), allocations);
    ck_assert_uint_eq(mt_recording_peak_bytes(hand), peak);
}

TEST("recording", recording_empty) {
    hand_start(3);
    check_hand(0, 0);
    ck_assert_uint_eq(mt_recording_samples(hand), 3);
}

TEST("recording", recording_unknown_releases) {
    hand_start(1);
    event(9, -1000);
    event(1, 100);
    event(8, -50);
    event(2, 30);
    event(1, -100);
    event(1, -100); /* a second time: unknown by now */
    event(3, 110);
    check_hand(3, 140);
}

TEST("recording", recording_reused_address) {
    hand_start(1);
    for (int i = 0; i < 1000; i++) {
        event(1, 100 + i);
        event(1, -(100 + i));
    }
    check_hand(1000, 1099);
}

TEST("recording", recording_releases_out_of_order) {
    hand_start(1);
    event(1, 1);
    event(2, 20);
    event(3, 300);
    event(2, -20);
    event(4, 4000);
    event(1, -1);
    event(3, -300);
    event(5, 299);
    event(5, -299);
    event(4, -4000);
    check_hand(5, 4301);
}

TEST("recording", recording_alive_at_the_end) {
    hand_start(1);
    event(1, 10);
    event(2, 20);
    event(1, -10);
    event(3, 30);
    check_hand(3, 50);
}

TEST("recording", recording_starts_anew) {
    hand_start(1);
    event(1, 1000);
    hand_start(2);
    check_hand(0, 0);
    event(1, -1000); /* of the recording before: unknown */
    event(2, 7);
    check_hand(1, 7);
    ck_assert_uint_eq(mt_recording_samples(hand), 2);
}

/* Thousands of blocks alive at addresses as a heap gives them, released in any order. */
TEST_LOOP("recording", recording_many_alive, 7) {
    enum { BLOCKS = 6000, EVENTS = 60000 };
    static int64_t bytes[BLOCKS];
    uint64_t state = (uint64_t)_i + 3;
    size_t live = 0, peak = 0, allocations = 0, spread = (size_t)1 << (4 * _i);

    hand_start(1);
    for (int i = 0; i < EVENTS; i++) {
        size_t block = below(&state, BLOCKS);

        if (bytes[block] == 0) {
            bytes[block] = (int64_t)(1 + below(&state, 5000));
            live += (size_t)bytes[block];
            peak = live > peak ? live : peak;
            allocations++;
            event(block * spread, bytes[block]);
        } else {
            live -= (size_t)bytes[block];
            event(block * spread, -bytes[block]);
            bytes[block] = 0;
        }
    }
    check_hand(allocations, peak);
    mt_recording_free(hand);
}

/* A gradient that is handed over twice, or not known, is no other block; in place it is dead then. */
TEST("recording", recording_handed_over_once) {
    ck_ok(mt_recording_new(&hand));
    event(1, 0);
    mt__recording_restart(hand, 2);
    event(1, 0);
    event(1, 64);
    event(1, 0);
    event(1, 0);
    event(2, 0);
    event(2, 32);
    ck_assert_uint_eq(hand->handed_over, 1);
    ck_assert_uint_eq(mt__recording_peak(hand, 0), 64);
    ck_assert_uint_eq(mt__recording_peak(hand, 1), 96);
    mt_recording_free(hand);
}

/* Zero bytes are neither an allocation nor a release. */
TEST("recording", recording_zero_bytes) {
    hand_start(1);
    event(1, 10);
    event(2, 0);
    event(1, 0);
    event(3, 5);
    check_hand(2, 15);
}

/* ---- the model: exactness ------------------------------------------------------------------- */

TEST_LOOP("model", model_exact, SEEDS) {
    fake_program program = random_program((uint64_t)_i);

    for (int p = 0; p < LENGTH(pairs); p++) {
        make_model_of(&program, pairs[p].small, pairs[p].large);
        ck_assert_uint_eq(mt_memory_model_margin(model), 0);
        for (size_t m = 1; m <= SAMPLES_MAX; m++)
            ck_assert_msg(mt_memory_model_peak(model, m) == fake_program_peak(&program, m),
                          "seed %d, recorded %zu and %zu, at %zu: %zu instead of %zu", _i,
                          pairs[p].small, pairs[p].large, m, mt_memory_model_peak(model, m),
                          fake_program_peak(&program, m));
        free_model();
    }
}

static size_t largest_by_force(size_t room) {
    size_t m = 0;

    while (m < 4 * SAMPLES_MAX &&
           mt_memory_model_peak(model, m + 1) + mt_memory_model_margin(model) <= room)
        m++;
    return m;
}

static void check_largest(size_t room) {
    size_t expected = largest_by_force(room);

    if (expected < 4 * SAMPLES_MAX)
        ck_assert_msg(mt_memory_model_largest(model, room) == expected,
                      "in %zu bytes: %zu instead of %zu", room,
                      mt_memory_model_largest(model, room), expected);
    else
        ck_assert_uint_ge(mt_memory_model_largest(model, room), expected);
}

/* Rooms at, just below and just above the peaks, and rooms at random. */
static void check_inverse(uint64_t seed) {
    size_t margin = mt_memory_model_margin(model);
    uint64_t state = seed + 5;

    check_largest(0);
    for (size_t m = 1; m < SAMPLES_MAX; m += 1 + m / 3) {
        size_t need = mt_memory_model_peak(model, m) + margin;

        check_largest(need);
        check_largest(need - 1);
        check_largest(need + 1);
    }
    for (int i = 0; i < 20; i++)
        check_largest(below(&state, mt_memory_model_peak(model, SAMPLES_MAX) + 1));
}

TEST_LOOP("model", model_inverse, SEEDS) {
    fake_program program = random_program((uint64_t)_i);

    for (size_t large = 0; large <= 4; large += 4) {
        make_model_of(&program, 2, large);
        check_inverse((uint64_t)_i);
        free_model();
    }
}

TEST_LOOP("model", model_grows_with_the_chunk, 20) {
    fake_program program = random_program((uint64_t)_i);
    size_t last = 0;

    make_model_of(&program, 2, 4);
    for (size_t m = 1; m <= SAMPLES_MAX; m++) {
        ck_assert_uint_ge(mt_memory_model_peak(model, m), last);
        last = mt_memory_model_peak(model, m);
    }
    ck_assert_uint_ge(mt_memory_model_peak(model, SIZE_MAX / 2), last);
    ck_assert_uint_ge(mt_memory_model_peak(model, SIZE_MAX), last);
}

/* Rooms beyond any memory: an answer, and at once. */
TEST_LOOP("endless", model_in_all_the_room, 4) {
    static const size_t rooms[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2, SIZE_MAX / 4};

    for (size_t large = 0; large <= 4; large += 4) {
        make_model_of(&fake_train_program, 2, large);
        ck_assert_uint_ge(mt_memory_model_largest(model, rooms[_i]), SAMPLES_MAX);
        free_model();
    }
}

TEST_LOOP("model", model_one_recording, SEEDS) {
    static const size_t recorded[] = {1, 2, 5};
    fake_program program = random_program((uint64_t)_i);

    for (int r = 0; r < LENGTH(recorded); r++) {
        size_t peak = fake_program_peak(&program, recorded[r]);

        make_model_of(&program, recorded[r], 0);
        for (size_t m = 1; m <= SAMPLES_MAX; m++)
            ck_assert_uint_ge(mt_memory_model_peak(model, m) + mt_memory_model_margin(model),
                              fake_program_peak(&program, m));
        ck_assert_uint_eq(mt_memory_model_peak(model, recorded[r]), peak);
        ck_assert_uint_eq(mt_memory_model_peak(model, 7 * recorded[r]), 7 * peak);
        free_model();
    }
}

/* Sizes beyond what a double holds exactly. */
TEST("model", model_huge) {
    static const fake_allocation allocations[] = {
        {1000000000000007, 123456789012345, 2},
        {3, 98765432109877, FAKE_AT_END},
        {77, 150000000000001, FAKE_AT_END},
    };
    fake_program program = {allocations, 3};

    make_model_of(&program, 2, 4);
    for (size_t m = 1; m <= SAMPLES_MAX; m++)
        ck_assert_uint_eq(mt_memory_model_peak(model, m), fake_program_peak(&program, m));
    check_inverse(11);
}

/* A byte a sample, in rooms about those beyond which sizes are not counted any more. */
TEST("model", model_tiny_samples) {
    static const fake_allocation allocations[] = {{1000, 1, FAKE_AT_END}};
    const size_t most = 1000000000000000, uncounted = (size_t)1 << 50;
    fake_program program = {allocations, 1};

    make_model_of(&program, 2, 4);
    ck_assert_uint_eq(mt_memory_model_largest(model, most + 1000 - 1), most - 1);
    ck_assert_uint_eq(mt_memory_model_largest(model, most + 1000), most);
    ck_assert_uint_eq(mt_memory_model_largest(model, most + 1100), most + 100);
    ck_assert_uint_eq(mt_memory_model_largest(model, uncounted + 1000 - 1), uncounted - 1);
    ck_assert_uint_eq(mt_memory_model_largest(model, uncounted + 1000), SIZE_MAX);
    ck_assert_uint_eq(mt_memory_model_largest(model, INT64_MAX / 4), SIZE_MAX);
}

/* Memory that does not depend on the chunk: any chunk fits, or none. */
TEST("model", model_constant) {
    static const fake_allocation allocations[] = {{100, 0, 2}, {50, 0, FAKE_AT_END}};
    fake_program program = {allocations, 2};

    make_model_of(&program, 2, 4);
    ck_assert_uint_eq(mt_memory_model_peak(model, 100000), 150);
    ck_assert_uint_ge(mt_memory_model_largest(model, 150), (size_t)1 << 30);
    ck_assert_uint_eq(mt_memory_model_largest(model, 149), 0);
}

/* Sizes that shrink as the chunk grows must not turn negative. */
TEST("model", model_shrinking_sizes) {
    static const fake_allocation allocations[] = {
        {1000, -100, FAKE_AT_END},
        {10, 100, FAKE_AT_END},
        {500, -10, 2},
    };
    fake_program program = {allocations, 3};

    make_model_of(&program, 2, 4);
    ck_assert_uint_eq(mt_memory_model_peak(model, 2), fake_program_peak(&program, 2));
    ck_assert_uint_eq(mt_memory_model_peak(model, 4), fake_program_peak(&program, 4));
    ck_assert_uint_lt(mt_memory_model_peak(model, 100), 1000000);
}

/* Allocators round; the two sizes recorded are exact nevertheless. */
TEST_LOOP("model", model_rounded_sizes, 20) {
    uint64_t state = (uint64_t)_i + 1;
    mt_recording *recordings[2];
    size_t peaks[2], slope[20];

    for (int i = 0; i < 20; i++) slope[i] = 1 + below(&state, 700);
    for (int r = 0; r < 2; r++) {
        hand_start(r == 0 ? 2 : 5);
        for (size_t i = 0; i < 20; i++)
            event(i, (int64_t)((slope[i] * (r == 0 ? 2 : 5) + 63) / 64 * 64));
        peaks[r] = mt_recording_peak_bytes(hand);
        recordings[r] = hand_over();
    }
    make_model(recordings[0], recordings[1]);
    ck_assert_uint_eq(mt_memory_model_peak(model, 2), peaks[0]);
    ck_assert_uint_eq(mt_memory_model_peak(model, 5), peaks[1]);
    ck_assert_uint_ge(mt_memory_model_peak(model, 3), peaks[0]);
}

/* ---- the model: what is refused ------------------------------------------------------------- */

static void check_refused(const mt_recording *small, const mt_recording *large) {
    mt_memory_model *none = (mt_memory_model *)(void *)&none;

    ck_status(mt_memory_model_new(small, large, &none), MT_EINVAL);
    ck_assert_ptr_null(none);
}

TEST("model", model_refuses_empty) {
    mt_recording *full = recording_of(&fake_train_program, 2), *unstarted;

    hand_start(4);
    check_refused(hand, NULL);
    check_refused(full, hand);
    ck_ok(mt_recording_new(&unstarted));
    check_refused(unstarted, NULL);
    check_refused(full, unstarted);
}

TEST("model", model_refuses_sizes_not_ascending) {
    mt_recording *two = recording_of(&fake_train_program, 2);
    mt_recording *four = recording_of(&fake_train_program, 4);

    check_refused(four, two);
    check_refused(two, two);
    mt_recording_free(two);
    mt_recording_free(four);
}

static void many_events(size_t count) {
    for (size_t i = 0; i < count; i++) {
        event(i, 64);
        if (i % 2 == 1) event(i - 1, -64);
    }
}

/* The recorder ran out of host memory: the recording says nothing any more, until started again. */
TEST("model", model_refuses_incomplete) {
    ck_ok(counting_install());
    hand_start(2);
    counting_fail_at(1, 0);
    many_events(200000);
    ck_assert_uint_eq(counting_fired(), 1);
    check_refused(hand, NULL);
    hand_start(2);
    many_events(10);
    ck_ok(mt_memory_model_new(hand, NULL, &model));
    free_model();
    mt_recording_free(hand);
    ck_assert_uint_eq(counting_live(), 0);
}

/* Each request for host memory fails in turn, with sequences alike and not: no model, and nothing kept. */
TEST_LOOP("model", model_without_host_memory, 2) {
    fake_program longer = fake_train_program, shorter = fake_train_program;
    mt_recording *small, *large;
    size_t n = 0, live;
    mt_status status;

    ck_ok(counting_install());
    shorter.count -= (size_t)_i;
    small = recording_of(&shorter, 2);
    large = recording_of(&longer, 4);
    live = counting_live();
    do {
        model = (mt_memory_model *)(void *)&model;
        counting_fail_at(++n, 0);
        status = mt_memory_model_new(small, large, &model);
        if (status != MT_OK) {
            ck_refused(status, MT_ENOMEM, "out of host memory");
            ck_assert_ptr_null(model);
        }
        free_model();
        ck_assert_uint_eq(counting_live(), live);
    } while (status != MT_OK && n < 100);
    /* Those that are not alike want lists and a table more. */
    ck_assert_uint_eq(n, _i == 0 ? 5 : 8);
    mt_recording_free(small);
    mt_recording_free(large);
    ck_assert_uint_eq(counting_live(), 0);
}

/* ---- the model: alignment ------------------------------------------------------------------- */

#define BOTH 3
#define SMALL 1
#define LARGE 2

/* One line of a script: an allocation of block, or (bytes < 0) its release; in one or both. */
typedef struct script_line {
    size_t block;
    int64_t base, per_sample;
    int in;
} script_line;

#define RELEASE (-1)

/* Sizes are far apart, so there is one sensible way to pair them. */
/* clang-format off */
#define HEAD { 0, 200, 10, BOTH }, { 1, 4000, 300, BOTH }

#define MIDDLE                                                                                     \
    { 2, 64000, 6400, BOTH }, { 3, 900, 60, BOTH }, { 2, RELEASE, 0, BOTH },                       \
    { 4, 256000, 25000, BOTH }, { 3, RELEASE, 0, BOTH }

#define TAIL                                                                                       \
    { 5, 16000, 1000, BOTH }, { 1, RELEASE, 0, BOTH }, { 4, RELEASE, 0, BOTH },                    \
    { 5, RELEASE, 0, BOTH }, { 0, RELEASE, 0, BOTH }
/* clang-format on */

static const struct {
    const char *name;
    size_t margin;
    script_line lines[24];
} scripts[] = {
    {"equal", 0, {HEAD, MIDDLE, TAIL}},
    {"temporary in small, early",
     2000000,
     {{9, 2000000, 0, SMALL}, {9, RELEASE, 0, SMALL}, HEAD, MIDDLE, TAIL}},
    {"temporary in large, early",
     2000000,
     {{9, 2000000, 0, LARGE}, {9, RELEASE, 0, LARGE}, HEAD, MIDDLE, TAIL}},
    {"temporary in small, amid",
     2000000,
     {HEAD, {9, 2000000, 0, SMALL}, {9, RELEASE, 0, SMALL}, MIDDLE, TAIL}},
    {"temporary in large, amid",
     2000000,
     {HEAD, MIDDLE, {9, 2000000, 0, LARGE}, {9, RELEASE, 0, LARGE}, TAIL}},
    {"temporary in large, late",
     16,
     {HEAD, MIDDLE, TAIL, {9, 16, 0, LARGE}, {9, RELEASE, 0, LARGE}}},
    {"lasting in small",
     3000000,
     {HEAD, {9, 3000000, 0, SMALL}, MIDDLE, {9, RELEASE, 0, SMALL}, TAIL}},
    {"lasting in large",
     3000000,
     {HEAD, {9, 3000000, 0, LARGE}, MIDDLE, {9, RELEASE, 0, LARGE}, TAIL}},
    {"alive at the end of large", 3000000, {HEAD, {9, 3000000, 0, LARGE}, MIDDLE, TAIL}},
    {"one in each",
     3000016,
     {{8, 16, 0, SMALL},
      HEAD,
      {9, 3000000, 0, LARGE},
      MIDDLE,
      {9, RELEASE, 0, LARGE},
      TAIL,
      {8, RELEASE, 0, SMALL}}},
    {"two in large",
     5000000,
     {HEAD,
      {9, 3000000, 0, LARGE},
      MIDDLE,
      {8, 2000000, 0, LARGE},
      {9, RELEASE, 0, LARGE},
      TAIL,
      {8, RELEASE, 0, LARGE}}},
};

/* Plays a script at m samples as in the recordings named by in; to the recorder, or to none. */
static size_t script_play(int which, size_t samples, int in, int record) {
    size_t bytes[10] = {0}, live = 0, peak = 0;

    for (const script_line *line = scripts[which].lines; line->in != 0; line++) {
        if ((line->in & in) == 0) continue;
        if (line->base == RELEASE) {
            live -= bytes[line->block];
            if (record) event(line->block, -(int64_t)bytes[line->block]);
            continue;
        }
        bytes[line->block] = (size_t)line->base + (size_t)line->per_sample * samples;
        live += bytes[line->block];
        peak = live > peak ? live : peak;
        if (record) event(line->block, (int64_t)bytes[line->block]);
    }
    return peak;
}

static mt_recording *script_record(int which, size_t samples, int in) {
    hand_start(samples);
    ck_assert_uint_eq(script_play(which, samples, in, 1), mt_recording_peak_bytes(hand));
    return hand_over();
}

TEST_LOOP("align", model_aligns, LENGTH(scripts)) {
    size_t margin;

    make_model(script_record(_i, 2, SMALL), script_record(_i, 4, LARGE));
    margin = mt_memory_model_margin(model);
    ck_assert_msg(margin == scripts[_i].margin, "%s: margin %zu instead of %zu", scripts[_i].name,
                  margin, scripts[_i].margin);
    for (size_t m = 1; m <= SAMPLES_MAX; m++) {
        size_t small = script_play(_i, m, SMALL, 0), large = script_play(_i, m, LARGE, 0);
        size_t either = script_play(_i, m, BOTH, 0), peak = mt_memory_model_peak(model, m);

        ck_assert_msg(peak + margin >= small && peak + margin >= large,
                      "%s, at %zu: %zu and margin %zu for %zu or %zu", scripts[_i].name, m, peak,
                      margin, small, large);
        ck_assert_uint_le(peak, either + margin);
    }
    check_inverse((uint64_t)_i);
}

/* A copy of the program that lacks some allocations, and the bytes they have at m samples. */
static fake_program thinned(const fake_program *program, fake_allocation *allocations,
                            uint64_t *state) {
    fake_program thin = {allocations, 0};
    size_t place[128], kept = 0;
    int drop[128];

    for (size_t i = 0; i < program->count; i++) {
        drop[i] = program->count > 3 && below(state, 12) == 0;
        place[i] = kept;
        kept += !drop[i];
    }
    place[program->count] = kept;
    for (size_t i = 0; i < program->count; i++) {
        size_t dies = program->allocations[i].dies_at;

        if (drop[i]) continue;
        allocations[thin.count] = program->allocations[i];
        allocations[thin.count].dies_at = dies <= program->count ? place[dies] : FAKE_AT_END;
        if (allocations[thin.count].dies_at <= thin.count)
            allocations[thin.count].dies_at = thin.count + 1;
        thin.count++;
    }
    return thin;
}

/*
 * Events missing at random on either side: what was recorded is never more than what the model says
 * of the sizes that were recorded.
 */
TEST_LOOP("align", model_covers_what_was_recorded, SEEDS) {
    fake_allocation some[64], others[64];
    uint64_t state = (uint64_t)_i * 31 + 9;
    fake_program program = random_program((uint64_t)_i + 1);
    fake_program small = thinned(&program, some, &state);
    fake_program large = thinned(&program, others, &state);
    size_t margin;

    if (small.count == 0 || large.count == 0) return;
    make_model(recording_of(&small, 2), recording_of(&large, 4));
    margin = mt_memory_model_margin(model);
    ck_assert_uint_ge(mt_memory_model_peak(model, 2) + margin, fake_program_peak(&small, 2));
    ck_assert_uint_ge(mt_memory_model_peak(model, 4) + margin, fake_program_peak(&large, 4));
}

/* A network of the size of real ones: 20000 allocations, a handful of them without a partner. */
static mt_recording *long_recording(size_t samples) {
    hand_start(samples);
    for (size_t i = 0; i < 20000; i++) {
        event(i, (int64_t)(1000 + (i * 7919 % 1000) * samples));
        if (i >= 100) event(i - 100, -1);
        if (samples == 4 && i % 4000 == 1999) {
            event(30000, 50);
            event(30000, -50);
        }
    }
    return hand_over();
}

TEST("align", model_of_long_recordings) {
    make_model(long_recording(2), long_recording(4));
    ck_assert_uint_eq(mt_memory_model_margin(model), 5 * 50);
    ck_assert_uint_ge(mt_memory_model_peak(model, 64), 100 * 1000);
    check_inverse(3);
}

/* What a model of one recording of 2 tells of 6 samples: gradients are as large in any chunk, all else grows. */
static const struct {
    size_t blocks[4]; /* bytes, all alive at the end */
    size_t gradients; /* of these, the last ones */
    size_t peak6;
} handed_over[] = {
    {{100, 40, 0, 0}, 0, 420},
    {{100, 40, 0, 0}, 1, 340},
    {{40, 100, 40, 0}, 1, 120 + 300 + 40}, /* whatever its size is */
    {{40, 100, 40, 30}, 2, 120 + 300 + 40 + 30},
};

TEST_LOOP("model", model_of_gradients_handed_over, LENGTH(handed_over)) {
    size_t count = 0, peak = 0;

    hand_start(2);
    while (count < 4 && handed_over[_i].blocks[count]) {
        peak += handed_over[_i].blocks[count];
        event(count, (int64_t)handed_over[_i].blocks[count]);
        count++;
    }
    for (size_t i = count - handed_over[_i].gradients; i < count; i++) event(i, 0);
    /* With gradients apart they live to the end. */
    ck_ok(mt__memory_model_new(hand, NULL, 1, &model));
    ck_assert_uint_eq(mt_memory_model_peak(model, 2), peak);
    ck_assert_uint_eq(mt_memory_model_peak(model, 6), handed_over[_i].peak6);
    ck_assert_uint_eq(mt_memory_model_peak(model, 1), peak); /* no less for fewer samples */
    mt_recording_free(hand);
}

/* A chunk that loops over its samples, with so many blocks of 8 bytes for each; and one of 8 a sample. */
static mt_recording *looping(size_t samples, size_t blocks) {
    hand_start(samples);
    event(1000000, (int64_t)(8 * samples));
    for (size_t i = 0; i < blocks * samples; i++) event(i, 8);
    return hand_over();
}

/* Where the larger recording has more allocations more than may be skipped, none is paired: it speaks alone. */
TEST_LOOP("align", model_of_loops, 2) {
    static const struct {
        size_t blocks; /* a sample; the recordings are of 2 and 4 samples */
        size_t margin, peak8;
    } rows[] = {{MOST_SKIPPED / 2, MOST_SKIPPED * 8, 64 + MOST_SKIPPED * 8},
                {MOST_SKIPPED / 2 + 1, 0, 64 + (MOST_SKIPPED / 2 + 1) * 8 * 8}};
    size_t four = 8 * 4 + rows[_i].blocks * 8 * 4;

    make_model(looping(2, rows[_i].blocks), looping(4, rows[_i].blocks));
    ck_assert_uint_eq(mt_memory_model_margin(model), rows[_i].margin);
    ck_assert_uint_ge(mt_memory_model_peak(model, 4) + mt_memory_model_margin(model), four);
    if (_i == 1) ck_assert_uint_eq(mt_memory_model_peak(model, 8), rows[_i].peak8);
}

/* Very long ones are paired as others are, in time that grows with their length. */
TEST_LOOP("align", model_of_very_long_recordings, 2) {
    mt_recording *pair[2];

    for (int r = 0; r < 2; r++) {
        hand_start(r ? 4 : 2);
        for (size_t i = 0; i < 270000; i++) {
            event(1, (int64_t)(100 * (r ? 4 : 2)));
            event(1, -1);
        }
        if (_i == 1 && r == 0) event(2, 7);
        event(3, 50);
        pair[r] = hand_over();
    }
    make_model(pair[0], pair[1]);
    ck_assert_uint_eq(mt_memory_model_margin(model), _i ? 7 : 0);
    ck_assert_uint_eq(mt_memory_model_peak(model, 8), 800);
}

/* A line that falls is flat from the recorded size on: a chunk of 1 that does not fit rules out none that does. */
TEST("model", model_of_less_for_more) {
    static const fake_allocation allocations[] = {{1000, -100, 1}, {10, 100, FAKE_AT_END}};
    static const struct {
        size_t room, largest;
    } rows[] = {{799, 0}, {800, 7}, {1010, 10}, {5010, 50}};
    fake_program program = {allocations, 2};

    make_model_of(&program, 2, 4);
    for (int i = 0; i < LENGTH(rows); i++)
        ck_assert_uint_eq(mt_memory_model_largest(model, rows[i].room), rows[i].largest);
}

int main(void) {
    suite_each_test(NULL, free_model);
    tcase_set_timeout(suite_case_named("endless"), 5);
    return suite_run_named("recording");
}
