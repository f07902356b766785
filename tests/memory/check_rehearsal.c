/*
 * check_rehearsal.c - chunks of long samples, told from short ones: as if they had run, and only short ones do.
 */
#include "counting_allocator.h"
#include "suite.h"

#include <memtrain/blocks.h>
#include <memtrain/policy.h>
#include <memtrain/rehearsal.h>

/* ---- a backend whose chunks are polynomials ---------------------------------------------------- */

/* So many bytes, and so many a sample for each element, and each pair of elements; released before block dies_at. */
typedef struct block {
    size_t bytes, linear, square, dies_at;
    int is_gradient;
} block;

static const block network[] = {{512, 0, 0, 9, 0}, {0, 12, 0, 4, 0}, {0, 3, 0, 9, 0},
                                {64, 4, 2, 6, 0},  {0, 12, 0, 6, 0}, {640, 0, 0, 9, 1},
                                {0, 24, 1, 7, 0},  {1, 1, 0, 9, 0}};

enum { BLOCKS = LENGTH(network), IN_USE = 10000 };

/* A kernel's scratch memory at three lengths, which lie on no line and on no parabola that is of any use far away. */
static const size_t scratch[][3] = {
    {2200, 2000, 2000}, {1100, 1900, 2500}, {700, 800, 1900}, {500, 900, 800}};

typedef struct inner {
    size_t budget, length, longest; /* of the batch; that has run */
    size_t odd_length;              /* at which one block more is taken; 0: none */
    const size_t *scratch;          /* three more numbers of bytes; NULL: none */
    int calls, fails_at;            /* the call that fails, counted from 1; 0: none */
    int begun, recording, marks, rungs;
    mt_event_sink sink;
    mt_chunk_result result;
} inner;

static mt_status call(inner *b) {
    return ++b->calls == b->fails_at ? mt_set_error(MT_EIO, "call %d", b->calls) : MT_OK;
}

static size_t bytes_of(const block *k, size_t samples, size_t length) {
    return k->bytes + samples * length * (k->linear + k->square * length);
}

static void tell(const inner *b, size_t i, int64_t bytes) {
    if (b->recording) b->sink.event(b->sink.user, (void *)(uintptr_t)(4096 + 64 * i), bytes);
}

static size_t block_of(const inner *b, size_t i, size_t samples, size_t length) {
    if (i >= BLOCKS) return 1;
    if (i > 0 || !b->scratch) return bytes_of(&network[i], samples, length);
    return b->scratch[length == 64 ? 0 : length == 100 ? 1 : 2];
}

/* What a chunk does; *out_peak: above what is in use. */
static mt_status run(inner *b, size_t samples, size_t length, size_t *out_peak) {
    size_t live = 0, count = BLOCKS + (length == b->odd_length);
    *out_peak = 0;
    for (size_t i = 0; i <= count; i++) {
        for (size_t k = 0; k < i && k < BLOCKS; k++) {
            if (network[k].dies_at != i && !(i == count && network[k].dies_at > i)) continue;
            size_t bytes = block_of(b, k, samples, length);
            if (network[k].is_gradient) tell(b, k, 0);
            live -= bytes;
            tell(b, k, -(int64_t)bytes);
        }
        if (i == count) break;
        size_t bytes = block_of(b, i, samples, length);
        if (b->budget && IN_USE + live + bytes > b->budget) {
            b->result.refused_bytes = bytes;
            b->result.refused_in_use_bytes = IN_USE + live;
            return MT_EDEVMEM;
        }
        live += bytes;
        if (live > *out_peak) *out_peak = live;
        tell(b, i, (int64_t)bytes);
    }
    return MT_OK;
}

static mt_status inner_memory(void *self, mt_memory *out) {
    inner *b = self;
    out->budget_bytes = b->budget;
    out->allocated_bytes = out->reserved_bytes = IN_USE;
    return call(b);
}

static mt_status inner_describe(void *self, mt_backend_info *out) {
    out->device = "cpu";
    out->gradient_bytes = 640;
    out->rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    return call(self);
}

static mt_status inner_begin(void *self, const mt_batch *batch) {
    inner *b = self;
    mt_status status = call(b);
    if (status == MT_OK) b->begun++;
    b->length = *(const size_t *)batch->data;
    if (b->length > b->longest) b->longest = b->length;
    return status;
}

static mt_status inner_accumulate(void *self, size_t first, size_t count, double weight,
                                  mt_chunk_result *out) {
    inner *b = self;
    size_t peak;
    (void)first;
    (void)weight;
    mt_status status = call(b);
    if (status == MT_OK) status = run(b, count, b->length, &peak);
    out->units = (double)count;
    out->loss_sum = 1;
    return status;
}

static mt_status inner_rollback(void *self) {
    inner *b = self;
    b->begun--;
    return call(b);
}

static mt_status inner_apply(void *self, mt_apply_result *out) {
    (void)out;
    return call(self);
}

static mt_status inner_record(void *self, const mt_event_sink *sink) {
    inner *b = self;
    mt_status status = sink ? call(b) : MT_OK;
    b->recording = sink && status == MT_OK;
    if (b->recording) b->sink = *sink;
    return status;
}

static mt_status inner_mark(void *self) {
    ((inner *)self)->marks++;
    return call(self);
}

static mt_status inner_set_rung(void *self, mt_rung rung, int on) {
    ((inner *)self)->rungs = on ? (int)MT_RUNG_BIT(rung) : 0;
    return call(self);
}

static mt_status inner_hold(void *self, int on) {
    (void)on;
    return call(self);
}

static mt_backend seam(inner *b) {
    mt_backend out = MT_BACKEND_INIT;
    out.self = b;
    out.describe = inner_describe;
    out.memory = inner_memory;
    out.begin = inner_begin;
    out.accumulate = inner_accumulate;
    out.rollback = inner_rollback;
    out.apply = inner_apply;
    out.record = inner_record;
    out.mark = inner_mark;
    out.rewind = inner_rollback;
    out.set_rung = inner_set_rung;
    out.hold_gradients = inner_hold;
    return out;
}

/* ---- rehearsals of it -------------------------------------------------------------------------- */

enum { SAMPLES = 16, FULL = 100000, SIZE = sizeof(mt_rehearsal_options) };

static inner own;
static mt_backend real, outer;
static mt_rehearsal *rehearsal;
static mt_chunk_result result; /* of the last chunk that was rehearsed */
static size_t batch_length, batch_samples = SAMPLES;

static mt_status make_batch(void *user, size_t length, mt_batch *out) {
    ck_assert_ptr_eq(user, &own);
    batch_length = length;
    *out = (mt_batch){sizeof *out, &batch_length, batch_samples, 0};
    return call(&own);
}

static mt_rehearsal_options options(void) {
    real = seam(&own);
    return (mt_rehearsal_options){SIZE, &real, make_batch, &own, {64, 100, 144}, FULL};
}

static void start(void) {
    const mt_rehearsal_options o = options();
    ck_ok(mt_rehearsal_new(&o, &rehearsal));
    ck_ok(mt_rehearsal_backend(rehearsal, &outer));
}

static void end(void) {
    ck_assert_int_eq(own.begun, 0);
    ck_assert_int_eq(own.recording, 0);
    mt_rehearsal_free(rehearsal);
    mt_rehearsal_free(NULL);
}

static void event(void *recording, void *address, int64_t bytes) {
    mt_recording_event(recording, address, bytes);
}

static mt_status rehearse(size_t samples, int marked, mt_recording *to) {
    const mt_batch batch = {sizeof batch, NULL, SAMPLES, 0};
    const mt_event_sink sink = {to, event};
    result = (mt_chunk_result)MT_CHUNK_RESULT_INIT;
    mt_status status = outer.begin(outer.self, &batch);
    if (status == MT_OK && marked) status = outer.mark(outer.self);
    if (status == MT_OK && to) status = mt_recording_start(to, samples);
    if (status == MT_OK && to) status = outer.record(outer.self, &sink);
    if (status == MT_OK) status = outer.accumulate(outer.self, 0, samples, 0.5, &result);
    if (to) ck_ok(outer.record(outer.self, NULL));
    ck_ok(outer.rollback(outer.self));
    return status;
}

/* Block by block, of any number of samples, marked or not. */
TEST_LOOP("chunks", as_if_it_had_run, 24) {
    mt_recording *told, *ran;
    mt_block blocks[2][BLOCKS];
    mt_memory memory = MT_MEMORY_INIT;
    size_t samples = (size_t)_i / 2 + 1, peak, counts[2];
    ck_ok(mt_recording_new(&told));
    ck_ok(mt_recording_new(&ran));
    ck_ok(rehearse(samples, _i % 2, told));
    ck_assert_uint_eq(own.longest, 144);
    ck_assert_int_eq(own.marks, _i % 2 ? 3 : 0);
    ck_ok(mt_recording_start(ran, samples));
    own.sink = (mt_event_sink){ran, event};
    own.recording = 1;
    ck_ok(run(&own, samples, FULL, &peak));
    own.recording = 0;
    ck_assert_uint_eq(result.peak_bytes, IN_USE + peak);
    ck_assert_uint_eq(mt_recording_peak_bytes(told), peak);
    ck_ok(outer.memory(outer.self, &memory));
    ck_assert_uint_eq(memory.peak_bytes, IN_USE + peak);
    ck_ok(outer.reset_peak(outer.self));
    ck_ok(outer.memory(outer.self, &memory));
    ck_assert_uint_eq(memory.peak_bytes, IN_USE);
    for (int apart = 0; apart < 2; apart++) {
        ck_ok(mt_recording_blocks(told, NULL, samples, apart, blocks[0], BLOCKS, &counts[0]));
        ck_ok(mt_recording_blocks(ran, NULL, samples, apart, blocks[1], BLOCKS, &counts[1]));
        ck_assert_uint_eq(counts[0], BLOCKS);
        ck_assert_uint_eq(counts[1], BLOCKS);
        ck_assert_mem_eq(blocks[0], blocks[1], sizeof blocks[0]);
    }
    mt_recording_free(told);
    mt_recording_free(ran);
}

/* It is a small part of the peak, and stays one. */
TEST_LOOP("chunks", irregular_scratch_memory, LENGTH(scratch)) {
    size_t peak;
    own.scratch = scratch[_i];
    ck_ok(rehearse(3, 0, NULL));
    ck_ok(run(&own, 3, FULL, &peak));
    ck_assert_uint_ge(result.peak_bytes, IN_USE + peak - peak / 1000);
    ck_assert_uint_le(result.peak_bytes, IN_USE + peak + peak / 1000);
}

/* A request that the real chunk would be refused is refused, with the same evidence; a byte more, and the next one is. */
TEST("chunks", out_of_memory_where_it_would_be) {
    size_t peak, refusals = 0;
    ck_ok(run(&own, 3, FULL, &peak));
    for (own.budget = IN_USE + peak; own.budget > IN_USE + peak / 64; own.budget -= peak / 50) {
        mt_status expected = run(&own, 3, FULL, &(size_t){0});
        mt_chunk_result would = own.result;
        ck_status(rehearse(3, 0, NULL), expected);
        if (expected == MT_OK) continue;
        refusals++;
        ck_assert_uint_eq(result.refused, 1);
        ck_assert_uint_eq(result.refused_bytes, would.refused_bytes);
        ck_assert_uint_eq(result.refused_in_use_bytes, would.refused_in_use_bytes);
        ck_contains(mt_last_error(), "budget of");
    }
    ck_assert_uint_gt(refusals, 40);
}

/* The short chunks themselves may not fit. */
TEST("chunks", short_chunks_that_do_not_fit) {
    own.budget = IN_USE + 100;
    ck_status(rehearse(3, 0, NULL), MT_EDEVMEM);
}

TEST_LOOP("chunks", other_blocks_at_another_length, 3) {
    static const size_t odd[] = {64, 100, 144};
    own.odd_length = odd[_i];
    ck_refused(rehearse(2, 0, NULL), MT_ENOTSUP, "chunks of length 64 take ");
    ck_contains(mt_last_error(), " other things at other lengths");
}

TEST("chunks", fewer_samples_than_asked) {
    batch_samples = 3;
    ck_refused(rehearse(4, 0, NULL), MT_EINVAL, "a batch of length 64 has 3 samples; accepted: 16");
}

TEST("chunks", what_goes_to_the_inner_backend) {
    mt_backend_info info = {.size = sizeof info};
    mt_apply_result applied = MT_APPLY_RESULT_INIT;
    ck_ok(outer.describe(outer.self, &info));
    ck_assert_uint_eq(info.gradient_bytes, 640);
    ck_ok(outer.set_rung(outer.self, MT_RUNG_CHECKPOINTING, 1));
    ck_assert_int_eq(own.rungs, (int)MT_RUNG_BIT(MT_RUNG_CHECKPOINTING));
    ck_ok(outer.hold_gradients(outer.self, 1));
    ck_status(outer.apply(outer.self, &applied), MT_ENOTSUP);
    end();
    mt_rehearsal_options o = options();
    real.describe = NULL;
    real.mark = NULL;
    real.set_rung = NULL;
    real.hold_gradients = NULL;
    ck_ok(mt_rehearsal_new(&o, &rehearsal));
    ck_ok(mt_rehearsal_backend(rehearsal, &outer));
    ck_ok(outer.describe(outer.self, &info));
    ck_assert_ptr_null(outer.mark);
    ck_assert_ptr_null(outer.rewind);
    ck_assert_ptr_null(outer.set_rung);
    ck_assert_ptr_null(outer.hold_gradients);
}

/* Each call of the inner backend fails in turn: its status comes out, and nothing is left begun. */
TEST("chunks", each_call_fails) {
    mt_status status = MT_EIO;
    int n = 0;
    for (; status != MT_OK && n < 100; n++) {
        own.calls = 0;
        own.fails_at = n + 1;
        status = rehearse(2, 1, NULL);
        if (status != MT_OK) ck_status(status, MT_EIO);
        ck_assert_int_eq(own.begun, 0);
        ck_assert_int_eq(own.recording, 0);
    }
    /* Batch, begin, mark, record, accumulate, rollback; memory; one that is not reached. */
    ck_assert_int_eq(n, 3 * 6 + 2);
}

/* ---- bad input --------------------------------------------------------------------------------- */

static mt_status refuse_prepare(void *self, const size_t *chunks, size_t count,
                                mt_chunk_result *out) {
    (void)self, (void)chunks, (void)count, (void)out;
    return MT_OK;
}

static mt_backend silent, with_prepare;

/* clang-format off */
static const struct {
    mt_rehearsal_options options;
    mt_status status;
    const char *words;
} bad[] = {
    {{8, &real, make_batch, &own, {64, 100, 144}, FULL},
     MT_EINVAL, "options->size is 8; accepted: "},
    {{SIZE, &real, NULL, &own, {64, 100, 144}, FULL}, MT_EINVAL, "options->batch is NULL"},
    {{SIZE, NULL, make_batch, &own, {64, 100, 144}, FULL}, MT_EINVAL, "options->backend is NULL"},
    {{SIZE, &real, make_batch, &own, {0, 100, 144}, FULL},
     MT_EINVAL, "options->short_lengths[0] is 0; accepted: above 0"},
    {{SIZE, &real, make_batch, &own, {64, 100, 100}, FULL},
     MT_EINVAL, "options->short_lengths[2] is 100; accepted: above 100"},
    {{SIZE, &real, make_batch, &own, {64, 100, 144}, 143},
     MT_EINVAL, "options->length is 143; accepted: at least the longest short one, 144"},
    {{SIZE, &silent, make_batch, &own, {64, 100, 144}, FULL}, MT_ENOTSUP, "has no record"},
    {{SIZE, &with_prepare, make_batch, &own, {64, 100, 144}, FULL}, MT_ENOTSUP, "has prepare"},
};
/* clang-format on */

TEST_LOOP("edges", options_are_checked, LENGTH(bad)) {
    real = silent = with_prepare = seam(&own);
    silent.record = NULL;
    with_prepare.prepare = refuse_prepare;
    rehearsal = (mt_rehearsal *)&own;
    ck_refused(mt_rehearsal_new(&bad[_i].options, &rehearsal), bad[_i].status, bad[_i].words);
    ck_assert_ptr_null(rehearsal);
}

TEST("edges", arguments_are_checked) {
    mt_rehearsal_options o = options();
    ck_status(mt_rehearsal_new(NULL, &rehearsal), MT_EINVAL);
    ck_status(mt_rehearsal_new(&o, NULL), MT_EINVAL);
    ck_status(mt_rehearsal_backend(NULL, &outer), MT_EINVAL);
    start();
    ck_status(mt_rehearsal_backend(rehearsal, NULL), MT_EINVAL);
    end();
    ck_status(mt_rehearsal_backend(rehearsal, &outer), MT_EINVAL); /* freed */
}

TEST("edges", host_memory_runs_out) {
    mt_status status = MT_ENOMEM;
    size_t n = 0;
    ck_ok(counting_install());
    for (; status != MT_OK && n < 100; n++) {
        const mt_rehearsal_options o = options();
        counting_fail_at(n + 1, 0);
        status = mt_rehearsal_new(&o, &rehearsal);
        if (status == MT_OK) {
            ck_ok(mt_rehearsal_backend(rehearsal, &outer));
            status = rehearse(2, 0, NULL);
            mt_rehearsal_free(rehearsal);
        }
        if (status != MT_OK) ck_status(status, MT_ENOMEM);
        ck_assert_int_eq(own.begun, 0);
        counting_fail_at(0, 0);
    }
    ck_assert_uint_gt(n, 6);
    ck_assert_uint_eq(counting_live(), 0);
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("chunks"), start, end);
    return suite_run_named("rehearsal");
}
