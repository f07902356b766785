/*
 * check_report.c - what a chunk needs, as a policy tells of what it knows: of this shape, on this device, with whatever rungs.
 */
#include "policy_state.h"
#include "suite.h"

enum { SHAPE = 7, OTHER = 8 };

static mt_policy *policy;

static void setup(void) {
    const mt_shape shape = {SHAPE, 0, 0};
    mt_policy_options options = MT_POLICY_OPTIONS_INIT;

    options.forbid_rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    ck_ok(mt_policy_new(&options, NULL, &policy));
    ck_ok(mt_policy_begin(policy, &shape));
}

static void teardown(void) {
    mt_policy_free(policy);
}

/* Chunks of that kind have so many bytes a sample; cut_short: one of so many samples got no further. */
static void know(uint64_t shape, mt_mode mode, unsigned rungs, size_t a_sample, size_t cut_short) {
    const mt_shape before = policy->shape, own = {shape, 0, 0};
    size_t samples = cut_short ? cut_short : 2;
    mt_recording *r;
    mt__kind *k;

    policy->shape = own;
    k = mt__policy_kind(policy, mode, rungs);
    policy->shape = before;
    if (!a_sample) return;
    ck_ok(mt_recording_new(&r));
    ck_ok(mt_recording_start(r, samples));
    mt_recording_event(r, &k, (int64_t)(a_sample * samples));
    if (cut_short)
        mt__kind_fail(k, MT__IN_PLACE, samples, 0, 0, r);
    else
        mt__kind_learn(k, MT__IN_PLACE, samples, 0, 0, &r);
    mt_recording_free(r);
}

#define CPU MT_RUNG_BIT(MT_RUNG_CPU)
#define OFFLOAD MT_RUNG_BIT(MT_RUNG_OFFLOAD)
#define FORBIDDEN MT_RUNG_BIT(MT_RUNG_CHECKPOINTING)

static const struct {
    struct {
        uint64_t shape;
        mt_mode mode;
        unsigned rungs;
        size_t a_sample, cut_short;
    } known[2];
    size_t bytes;
    int at_least;
} needs[] = {
    {{{SHAPE, MT_TRAIN, 0, 0, 0}}, 0, 0}, /* nothing is known */
    {{{SHAPE, MT_TRAIN, 0, 100, 0}}, 400, 0},
    {{{SHAPE, MT_TRAIN, 0, 100, 0}, {SHAPE, MT_TRAIN, OFFLOAD, 60, 0}}, 240, 0},
    {{{SHAPE, MT_TRAIN, 0, 100, 0}, {SHAPE, MT_TRAIN, OFFLOAD, 160, 0}}, 400, 0},
    {{{SHAPE, MT_TRAIN, 0, 100, 0}, {SHAPE, MT_TRAIN, CPU, 60, 0}}, 400, 0}, /* other memory */
    {{{SHAPE, MT_TRAIN, 0, 100, 0}, {SHAPE, MT_TRAIN, FORBIDDEN, 60, 0}}, 400, 0},
    {{{SHAPE, MT_TRAIN, 0, 100, 0}, {OTHER, MT_TRAIN, 0, 60, 0}}, 400, 0},
    {{{SHAPE, MT_TRAIN, 0, 100, 0}, {SHAPE, MT_EVALUATE, 0, 60, 0}}, 400, 0},
    {{{SHAPE, MT_TRAIN, 0, 100, 4}}, 400, 1}, /* as much at least */
    {{{SHAPE, MT_TRAIN, 0, 100, 8}}, 0, 0},   /* which tells nothing of fewer samples */
};

/* Of 4 samples. */
TEST_LOOP("need", the_least_of_all_rungs, LENGTH(needs)) {
    mt__need need;

    for (int i = 0; i < 2 && needs[_i].known[i].shape; i++)
        know(needs[_i].known[i].shape, needs[_i].known[i].mode, needs[_i].known[i].rungs,
             needs[_i].known[i].a_sample, needs[_i].known[i].cut_short);
    need = mt__policy_least_need(policy, MT_TRAIN, 4);
    ck_assert_uint_eq(need.bytes, needs[_i].bytes);
    ck_assert_int_eq(need.at_least, needs[_i].at_least);
}

/* What a refused chunk had and asked for is told of chunks that are as large. */
TEST_LOOP("need", what_was_seen, 2) {
    mt_oom oom = {.mode = MT_TRAIN, .refused_in_use_bytes = 500, .refused_bytes = 200};
    mt__need need;

    know(SHAPE, MT_TRAIN, 0, 100, 0);
    oom.chunk = _i ? 8 : 4;
    need = mt__policy_need(policy, &oom, 4);
    ck_assert_uint_eq(need.bytes, _i ? 400 : 700);
    ck_assert_int_eq(need.at_least, !_i);
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("need"), setup, teardown);
    return suite_run_named("report");
}
