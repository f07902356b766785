/*
 * check_fit_errors.c - what fails in the loop, what is refused, and files of other runs
 */
#include "fit_fixture.h"
#include "suite.h"
#include "counting_allocator.h"

#include <math.h>

/* ---- what fails ------------------------------------------------------------------------------------------- */

/* Each call and allocation of the fake fails in turn, once and for good: the state is that of whole steps. */
TEST_LOOP("fit_errors", every_call_fails, 2) {
    enum { STEPS = 6 };
    uint64_t hashes[STEPS + 1];
    size_t failed = 0;

    fit_quiet = 1;
    fit_begin(11, 3, 4, 2);
    fit.callbacks.stop = fit_on_stop;
    for (uint64_t steps = 0; steps <= STEPS; steps++) {
        fit_forget();
        fit_seen.stop_after =
            (size_t)(steps + 2 * (steps > 3)); /* before an evaluation, and each of its batches */
        if (steps == 6) fit_seen.stop_after = SIZE_MAX;
        ck_ok(fit_goes());
        ck_assert_uint_eq(fake.step, steps);
        hashes[steps] = fake_hash(&fake);
        fit_end();
    }
    fit.callbacks.stop = NULL;
    for (uint64_t n = 1;; n++) {
        fit.trainer = fit_trainer();
        fit_forget();
        fake_fail_at(&fake, n, _i);
        mt_status status = fit_goes();
        if (!fake.fired) {
            ck_ok(status);
            break;
        }
        ck_assert_msg(status == MT_OK || status == MT_EDEVMEM, "%llu: %s", (unsigned long long)n,
                      mt_last_error());
        ck_assert_int_eq(fit.report.end, status == MT_OK ? MT_FIT_DONE : MT_FIT_FAILED);
        ck_assert_uint_eq(fit.report.steps, fake.step);
        ck_assert_uint_eq(fit_seen.loads, fit_seen.releases);
        ck_assert(fake_hash(&fake) == hashes[fit.report.steps]);
        failed += status != MT_OK;
        fit_end();
    }
    ck_assert_uint_gt(failed, 0);
}

static const struct {
    const char *name, *words;
    size_t at;
    const char *told;
    uint64_t steps;
} failures[] = {
    {"load", "a picture is gone", 2, "a picture is gone", 1},
    {"load", NULL, 1, "mt_fit: load has failed and does not say why", 0},
    {"load", NULL, 3, "mt_fit: load has failed", 2}, /* of the validation */
    {"begin", "no", 2, "no", 2},
    {"begin", NULL, 1, "mt_fit: begin has failed", 0},
    {"step", "not finite", 2, "not finite", 2},
    {"step", NULL, 3, "mt_fit: step has failed", 3},
    {"epoch", NULL, 1, "mt_fit: epoch has failed", 2},
    {"save", "the disk is full", 1, "the disk is full", 2},
    {"save", NULL, 2, "mt_fit: save has failed", 2},
    {"position", NULL, 1, "mt_fit: position has failed", 0},
    {"reload", NULL, 1, "mt_fit: load has failed", 0},
    {"set_lr", NULL, 3, "mt_fit: set_lr has failed", 2},
};

TEST_LOOP("fit_errors", a_failure, LENGTH(failures)) {
    fit_begin(4, 2, 2, 2);
    fit.options.schedule = &fit.schedule;
    fit.options.best = "best";
    fit.options.last = "last";
    if (strcmp(failures[_i].name, "position") == 0 || strcmp(failures[_i].name, "reload") == 0) {
        fit_run();
        fit_forget();
        fit.options.resume = "last";
    }
    fit_seen.fails = failures[_i].name;
    fit_seen.fails_at = failures[_i].at;
    fit_seen.words = failures[_i].words;
    mt_set_error(MT_EIO, "of something else");
    ck_refused(fit_goes(), MT_EIO, failures[_i].told);
    ck_assert_int_eq(fit.report.end, MT_FIT_FAILED);
    ck_assert_uint_eq(fit.report.steps, failures[_i].steps);
    ck_assert_uint_eq(fake.step, failures[_i].steps);
    ck_assert_uint_eq(fit_seen.loads, fit_seen.releases);
}

/* Batches that the backend refuses, and a file that is not there. */
TEST("fit_errors", no_such_file) {
    fit_begin(4, 0, 2, 2);
    fit.options.resume = "nowhere";
    ck_refused(fit_goes(), MT_EIO, "there is no 'nowhere'");
}

TEST("fit_errors", host_memory) {
    size_t live;

    ck_ok(counting_install());
    fit_begin(4, 0, 1, 1);
    fit.trainer = fit_trainer();
    ck_ok(mt_fit(fit.trainer, &fit.source, NULL, NULL, NULL)); /* lists have grown */
    live = counting_live();
    counting_fail_at(1, 1);
    fit.report.steps = 77;
    ck_status(mt_fit(fit.trainer, &fit.source, NULL, NULL, &fit.report), MT_ENOMEM);
    ck_assert_uint_eq(fit.report.steps, 77);
    counting_fail_at(0, 0);
    ck_ok(mt_fit(fit.trainer, &fit.source, NULL, NULL, &fit.report));
    ck_assert_uint_eq(counting_live(), live);
}

/* ---- what is refused ------------------------------------------------------------------------------------ */

/* Each row is a change of arguments that are right. */
#define ROWS(XX)                                                                                   \
    XX(fit.source.size = 0, "source->size is not set")                                             \
    XX(fit.source.load = NULL, "source->load is NULL")                                             \
    XX(fit.source.samples = 0, "source->samples is 0; at least 1")                                 \
    XX(fit.source.samples = SIZE_MAX, "source->samples is 18446744073709551615")                   \
    XX(fit.options.size = 1, "options->size is not set")                                           \
    XX(fit.options.batch = 0, "options->batch is 0; at least 1")                                   \
    XX((fit.options.batch = 9, fit.options.drop_last = 1), "options->batch is 9; accepted with")   \
    XX(fit.options.epochs = UINT64_MAX, "options->epochs is 18446744073709551615; accepted: less") \
    XX(fit.options.epochs = UINT64_MAX / 2, "options->epochs is 9223372036854775807")              \
    XX(fit.options.evaluate_every = 0, "options->evaluate_every is 0")                             \
    XX(fit.options.metric = -2, "options->metric is -2; accepted: MT_FIT_LOSS (-1)")               \
    XX(fit.options.metric = FAKE_METRICS, "options->metric is 2; accepted")                        \
    XX(fit.validation.load = NULL, "validation->load is NULL")                                     \
    XX(fit.validation.samples = 0, "validation->samples is 0")                                     \
    XX(fit.validation.size = 7, "validation->size is not set")                                     \
    XX((fit.options.validation = NULL, fit.options.best = "b"),                                    \
       "options->best is set, and options->v")                                                     \
    XX((fit.options.validation = NULL, fit.options.patience = 1), "options->patience is set, and") \
    XX((fit.callbacks.save = NULL, fit.options.best = "b"),                                        \
       "options->best is set, and callbacks->s")                                                   \
    XX((fit.callbacks.save = NULL, fit.options.last = "l"),                                        \
       "options->last is set, and callbacks->s")                                                   \
    XX((fit.callbacks.position = NULL, fit.options.resume = "r"), "and callbacks->position is")    \
    XX((fit.callbacks.load = NULL, fit.options.resume = "r"),                                      \
       "resume is set, and callbacks->load")                                                       \
    XX(fit.callbacks.set_lr = NULL, "options->schedule is set, and callbacks->set_lr is NULL")     \
    XX(fit.options.save_every = 1, "options->save_every is set, and options->last is NULL")        \
    XX(fit.options.save_seconds = 1, "options->save_seconds is set, and options->last is NULL")    \
    XX((fit.options.save_seconds = 1, fit.options.last = "l"),                                     \
       "options->save_seconds is set, and callbacks->now is NULL")                                 \
    XX(fit.options.save_seconds = -1, "options->save_seconds is -1; accepted: 0 for none")         \
    XX(fit.options.save_seconds = NAN, "options->save_seconds is nan; accepted")                   \
    XX(fit.callbacks.size = 3, "callbacks->size is not set")                                       \
    XX(fit.schedule.size = 0, "schedule->size is not set")                                         \
    XX(fit.schedule.rate = -1, "rate is -1; accepted: above 0")                                    \
    XX(fit.report.size = 0, "report->size is not set")

#define ROW_FUNCTION(change, words)                                                                \
    if (row-- == 0) {                                                                              \
        (void)(change);                                                                            \
        return words;                                                                              \
    }

static const char *change(int row) {
    ROWS(ROW_FUNCTION)
    return NULL;
}

#define ONE(change, words) +1
enum { REFUSALS = 0 ROWS(ONE) };

TEST_LOOP("fit_errors", refused, REFUSALS) {
    fit_begin(8, 2, 2, 2);
    fit.trainer = fit_trainer();
    fit.options.schedule = &fit.schedule;
    fit.report.steps = 77;
    const uint64_t hash = fake_hash(&fake);
    const char *words = change(_i);
    ck_refused(fit_goes(), MT_EINVAL, words);
    ck_assert_uint_eq(fit.report.steps, 77);
    ck_assert_uint_eq(fit_seen.length, 0);
    ck_assert(fake_hash(&fake) == hash);
}

/* A call from within a step, which the trainer's sums are of. */
static mt_trainer *outer;
static mt_status inner_status;

static mt_status calls_back(void *self, mt_memory *out) {
    mt_source source = fit_source(2, "t");
    mt_backend seam = fake_seam(self);
    if (outer) inner_status = mt_fit(outer, &source, NULL, NULL, NULL);
    return seam.memory(self, out);
}

TEST("fit_errors", no_trainer) {
    mt_trainer *trainer = fit_trainer();
    fake_options plain = fits(14);

    fit_begin(2, 2, 1, 1);
    ck_refused(mt_fit(NULL, &fit.source, NULL, NULL, NULL), MT_EINVAL, "mt_fit: trainer is NULL");
    ck_refused(mt_fit(trainer, NULL, NULL, NULL, NULL), MT_EINVAL, "mt_fit: source is NULL");
    done(trainer);
    ck_status(mt_fit(trainer, &fit.source, NULL, NULL, NULL), MT_EINVAL);

    plain.absent = FAKE_BIT(FAKE_EVALUATE);
    fit.trainer = trainer_of(&plain, NULL);
    ck_refused(mt_fit(fit.trainer, &fit.source, &fit.options, NULL, NULL), MT_ENOTSUP,
               "the backend has no evaluate");
    fit_end();

    mt_backend seam = fake_seam(&fake);
    mt_batch batch = batch_of(4, 1);
    seam.memory = calls_back;
    ck_ok(mt_trainer_new(&seam, NULL, &outer));
    ck_ok(mt_trainer_step(outer, &batch, NULL));
    ck_status(inner_status, MT_ESTATE);
    done(outer);
}

/* ---- files of other runs ---------------------------------------------------------------------------------- */

static const struct {
    uint64_t seed;
    size_t batch, samples;
    int shuffle, drop_last;
    uint64_t epochs;
    const char *words;
} others[] = {
    {2, 2, 8, 1, 0, 2, "mt_fit: seed is 2; accepted: 1, as in the run of options->resume 'last'"},
    {1, 4, 8, 1, 0, 2, "mt_fit: batch is 4; accepted: 2"},
    {1, 2, 9, 1, 0, 2, "mt_fit: samples is 9; accepted: 8"},
    {1, 2, 8, 0, 0, 2, "mt_fit: shuffle is 0; accepted: 1"},
    {1, 2, 8, 1, 1, 2, "mt_fit: drop_last is 1; accepted: 0"},
    {1, 2, 8, 1, 0, 3, "mt_fit: steps is 12; accepted: 8"},
};

TEST_LOOP("fit_errors", another_run, LENGTH(others)) {
    fit_begin(8, 0, 2, 2);
    fit.schedule.kind = MT_SCHEDULE_LINEAR;
    fit.options.seed = 1;
    fit.options.schedule = &fit.schedule;
    fit.options.last = "last";
    fit_run();
    fit.options.resume = "last";
    fit.options.seed = others[_i].seed;
    fit.options.batch = others[_i].batch;
    fit.options.shuffle = others[_i].shuffle;
    fit.options.drop_last = others[_i].drop_last;
    fit.options.epochs = others[_i].epochs;
    fit.source.samples = others[_i].samples;
    fit.trainer = fit_trainer();
    const uint64_t hash = fake_hash(&fake);
    ck_refused(fit_goes(), MT_EINVAL, others[_i].words);
    ck_assert(fake_hash(&fake) == hash); /* nothing was loaded */
}

#define ORDER "{\"seed\":0,\"samples\":8,\"batch\":2,\"shuffle\":1,\"drop_last\":0,\"steps\":0,"
#define BEST ",\"best\":0,\"best_epoch\":0,\"worse\":0"

static const struct {
    const char *position, *words; /* words NULL: it is taken */
} positions[] = {
    {ORDER "\"epochs_done\":1,\"batches_done\":4" BEST "}", NULL},
    {ORDER "\"epochs_done\":1,\"batches_done\":5" BEST "}",
     "is at batch 5 of epoch 2, which has 4"},
    {ORDER "\"epochs_done\":18446744073709551615,\"batches_done\":0" BEST "}",
     "is at batch 0 of epoch"},
    {ORDER "\"epochs_done\":1,\"batches_done\":4" BEST, "does not say where"},
    {ORDER "\"epochs_done\":1,\"batches_done\":4" BEST "}x", "does not say where"},
    {ORDER "\"epochs_done\":1,\"batches_done\":-4" BEST "}", "does not say where"},
    {ORDER "\"epochs_done\":1" BEST "}", "does not say where"},
    {ORDER, "does not say where"},
    {"{}", "does not say where"},
    {"", "does not say where a run of mt_fit was"},
};

TEST_LOOP("fit_errors", a_position, LENGTH(positions)) {
    fit_begin(8, 0, 2, 3);
    fit.trainer = fit_trainer();
    fit_files[0].path = fit.options.resume = "last";
    fit_files[0].state = fake.state;
    snprintf(fit_files[0].position, sizeof fit_files[0].position, "%s", positions[_i].position);
    ck_status(fit_goes(), positions[_i].words ? MT_EINVAL : MT_OK);
    if (positions[_i].words) ck_contains(mt_last_error(), positions[_i].words);
    ck_assert_uint_eq(fake.step, positions[_i].words ? 0 : 4);
    ck_assert_int_eq(fit.report.end, positions[_i].words ? MT_FIT_FAILED : MT_FIT_DONE);
}

FIT_SUITE("fit_errors")
