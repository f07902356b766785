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
    mt_source source = fit_source(11, "t"), validation = fit_source(3, "v");
    mt_fit_options options = fit_options(4, 2);
    uint64_t hashes[STEPS + 1];
    mt_trainer *trainer;
    size_t failed = 0;

    fit_quiet = 1;
    options.validation = &validation;
    for (uint64_t steps = 0; steps <= STEPS; steps++) {
        mt_fit_callbacks callbacks = fit_callbacks();
        callbacks.stop = fit_on_stop;
        trainer = fit_trainer();
        fit_forget();
        fit_seen.stop_after =
            (size_t)(steps + 2 * (steps > 3)); /* before an evaluation, and each of its batches */
        if (steps == 6) fit_seen.stop_after = SIZE_MAX;
        ck_ok(mt_fit(trainer, &source, &options, &callbacks, NULL));
        ck_assert_uint_eq(fake.step, steps);
        hashes[steps] = fake_hash(&fake);
        done(trainer);
    }
    for (uint64_t n = 1;; n++) {
        const mt_fit_callbacks callbacks = fit_callbacks();
        mt_fit_report report = MT_FIT_REPORT_INIT;

        trainer = fit_trainer();
        fit_forget();
        fake_fail_at(&fake, n, _i);
        mt_status status = mt_fit(trainer, &source, &options, &callbacks, &report);
        if (!fake.fired) {
            ck_ok(status);
            done(trainer);
            break;
        }
        ck_assert_msg(status == MT_OK || status == MT_EDEVMEM, "%llu: %s", (unsigned long long)n,
                      mt_last_error());
        ck_assert_int_eq(report.end, status == MT_OK ? MT_FIT_DONE : MT_FIT_FAILED);
        ck_assert_uint_eq(report.steps, fake.step);
        ck_assert_uint_eq(fit_seen.loads, fit_seen.releases);
        ck_assert(fake_hash(&fake) == hashes[report.steps]);
        failed += status != MT_OK;
        done(trainer);
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
    mt_source source = fit_source(4, "t"), validation = fit_source(2, "v");
    mt_schedule schedule = MT_SCHEDULE_INIT;
    mt_fit_options options = fit_options(2, 2);
    const mt_fit_callbacks callbacks = fit_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = fit_trainer();

    options.schedule = &schedule;
    options.validation = &validation;
    options.best = "best";
    options.last = "last";
    if (strcmp(failures[_i].name, "position") == 0 || strcmp(failures[_i].name, "reload") == 0) {
        mt_trainer_free(trainer);
        fit_run(&source, &options);
        trainer = fit_trainer();
        fit_forget();
        options.resume = "last";
    }
    fit_seen.fails = failures[_i].name;
    fit_seen.fails_at = failures[_i].at;
    fit_seen.words = failures[_i].words;
    mt_set_error(MT_EIO, "of something else");
    ck_refused(mt_fit(trainer, &source, &options, &callbacks, &report), MT_EIO, failures[_i].told);
    ck_assert_int_eq(report.end, MT_FIT_FAILED);
    ck_assert_uint_eq(report.steps, failures[_i].steps);
    ck_assert_uint_eq(fake.step, failures[_i].steps);
    ck_assert_uint_eq(fit_seen.loads, fit_seen.releases);
    done(trainer);
}

/* Batches that the backend refuses, and a file that is not there. */
TEST("fit_errors", no_such_file) {
    mt_source source = fit_source(4, "t");
    mt_fit_options options = fit_options(2, 2);
    const mt_fit_callbacks callbacks = fit_callbacks();
    mt_trainer *trainer = fit_trainer();

    options.resume = "nowhere";
    ck_refused(mt_fit(trainer, &source, &options, &callbacks, NULL), MT_EIO,
               "there is no 'nowhere'");
    done(trainer);
}

TEST("fit_errors", host_memory) {
    mt_source source = fit_source(4, "t");
    mt_fit_report report = MT_FIT_REPORT_INIT;
    size_t live;

    ck_ok(counting_install());
    mt_trainer *trainer = fit_trainer();
    ck_ok(mt_fit(trainer, &source, NULL, NULL, NULL)); /* lists have grown */
    live = counting_live();
    counting_fail_at(1, 1);
    report.steps = 77;
    ck_status(mt_fit(trainer, &source, NULL, NULL, &report), MT_ENOMEM);
    ck_assert_uint_eq(report.steps, 77);
    counting_fail_at(0, 0);
    ck_ok(mt_fit(trainer, &source, NULL, NULL, &report));
    ck_assert_uint_eq(counting_live(), live);
    done(trainer);
}

/* ---- what is refused ------------------------------------------------------------------------------------ */

typedef struct refusal {
    mt_source source, validation;
    mt_fit_options options;
    mt_fit_callbacks callbacks;
    mt_schedule schedule;
    mt_fit_report report;
} refusal;

/* Each row is a change of arguments that are right. */
#define ROWS(XX)                                                                                   \
    XX(r->source.size = 0, "source->size is not set")                                              \
    XX(r->source.load = NULL, "source->load is NULL")                                              \
    XX(r->source.samples = 0, "source->samples is 0; at least 1")                                  \
    XX(r->source.samples = SIZE_MAX, "source->samples is 18446744073709551615")                    \
    XX(r->options.size = 1, "options->size is not set")                                            \
    XX(r->options.batch = 0, "options->batch is 0; at least 1")                                    \
    XX((r->options.batch = 9, r->options.drop_last = 1), "options->batch is 9; accepted with")     \
    XX(r->options.epochs = UINT64_MAX, "options->epochs is 18446744073709551615; accepted: less")  \
    XX(r->options.epochs = UINT64_MAX / 2, "options->epochs is 9223372036854775807")               \
    XX(r->options.evaluate_every = 0, "options->evaluate_every is 0")                              \
    XX(r->options.metric = -2, "options->metric is -2; accepted: MT_FIT_LOSS (-1)")                \
    XX(r->options.metric = FAKE_METRICS, "options->metric is 2; accepted")                         \
    XX(r->validation.load = NULL, "validation->load is NULL")                                      \
    XX(r->validation.samples = 0, "validation->samples is 0")                                      \
    XX(r->validation.size = 7, "validation->size is not set")                                      \
    XX((r->options.validation = NULL, r->options.best = "b"),                                      \
       "options->best is set, and options->v")                                                     \
    XX((r->options.validation = NULL, r->options.patience = 1), "options->patience is set, and")   \
    XX((r->callbacks.save = NULL, r->options.best = "b"),                                          \
       "options->best is set, and callbacks->s")                                                   \
    XX((r->callbacks.save = NULL, r->options.last = "l"),                                          \
       "options->last is set, and callbacks->s")                                                   \
    XX((r->callbacks.position = NULL, r->options.resume = "r"), "and callbacks->position is")      \
    XX((r->callbacks.load = NULL, r->options.resume = "r"), "resume is set, and callbacks->load")  \
    XX(r->callbacks.set_lr = NULL, "options->schedule is set, and callbacks->set_lr is NULL")      \
    XX(r->options.save_every = 1, "options->save_every is set, and options->last is NULL")         \
    XX(r->options.save_seconds = 1, "options->save_seconds is set, and options->last is NULL")     \
    XX((r->options.save_seconds = 1, r->options.last = "l"),                                       \
       "options->save_seconds is set, and callbacks->now is NULL")                                 \
    XX(r->options.save_seconds = -1, "options->save_seconds is -1; accepted: 0 for none")          \
    XX(r->options.save_seconds = NAN, "options->save_seconds is nan; accepted")                    \
    XX(r->callbacks.size = 3, "callbacks->size is not set")                                        \
    XX(r->schedule.size = 0, "schedule->size is not set")                                          \
    XX(r->schedule.rate = -1, "rate is -1; accepted: above 0")                                     \
    XX(r->report.size = 0, "report->size is not set")

#define ROW_FUNCTION(change, words)                                                                \
    if (row-- == 0) {                                                                              \
        (void)(change);                                                                            \
        return words;                                                                              \
    }

static const char *change(refusal *r, int row) {
    ROWS(ROW_FUNCTION)
    return NULL;
}

#define ONE(change, words) +1
enum { REFUSALS = 0 ROWS(ONE) };

TEST_LOOP("fit_errors", refused, REFUSALS) {
    refusal r = {fit_source(8, "t"), fit_source(2, "v"), fit_options(2, 2),
                 fit_callbacks(),    MT_SCHEDULE_INIT,   MT_FIT_REPORT_INIT};
    mt_trainer *trainer = fit_trainer();
    const uint64_t hash = fake_hash(&fake);

    r.options.validation = &r.validation;
    r.options.schedule = &r.schedule;
    r.report.steps = 77;
    const char *words = change(&r, _i);
    ck_refused(mt_fit(trainer, &r.source, &r.options, &r.callbacks, &r.report), MT_EINVAL, words);
    ck_assert_uint_eq(r.report.steps, 77);
    ck_assert_uint_eq(fit_seen.length, 0);
    ck_assert(fake_hash(&fake) == hash);
    done(trainer);
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
    mt_source source = fit_source(2, "t"), validation = fit_source(2, "v");
    mt_fit_options options = MT_FIT_OPTIONS_INIT;
    fake_options plain = fits(14);
    mt_trainer *trainer = fit_trainer();

    ck_refused(mt_fit(NULL, &source, NULL, NULL, NULL), MT_EINVAL, "mt_fit: trainer is NULL");
    ck_refused(mt_fit(trainer, NULL, NULL, NULL, NULL), MT_EINVAL, "mt_fit: source is NULL");
    done(trainer);
    ck_status(mt_fit(trainer, &source, NULL, NULL, NULL), MT_EINVAL);

    plain.absent = FAKE_BIT(FAKE_EVALUATE);
    trainer = trainer_of(&plain, NULL);
    options.validation = &validation;
    ck_refused(mt_fit(trainer, &source, &options, NULL, NULL), MT_ENOTSUP,
               "the backend has no evaluate");
    done(trainer);

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
    mt_source source = fit_source(8, "t");
    mt_schedule schedule = MT_SCHEDULE_INIT;
    mt_fit_options options = fit_options(2, 2);
    const mt_fit_callbacks callbacks = fit_callbacks();

    schedule.kind = MT_SCHEDULE_LINEAR;
    options.seed = 1;
    options.schedule = &schedule;
    options.last = "last";
    fit_run(&source, &options);
    options.resume = "last";
    options.seed = others[_i].seed;
    options.batch = others[_i].batch;
    options.shuffle = others[_i].shuffle;
    options.drop_last = others[_i].drop_last;
    options.epochs = others[_i].epochs;
    source.samples = others[_i].samples;
    mt_trainer *trainer = fit_trainer();
    const uint64_t hash = fake_hash(&fake);
    ck_refused(mt_fit(trainer, &source, &options, &callbacks, NULL), MT_EINVAL, others[_i].words);
    ck_assert(fake_hash(&fake) == hash); /* nothing was loaded */
    done(trainer);
}

#define ORDER "{\"seed\":0,\"samples\":8,\"batch\":2,\"shuffle\":1,\"drop_last\":0,\"steps\":0,"

static const struct {
    const char *position, *words; /* words NULL: it is taken */
} positions[] = {
    {ORDER "\"epochs_done\":1,\"batches_done\":4,\"best\":0,\"best_epoch\":0,\"worse\":0}", NULL},
    {ORDER "\"epochs_done\":1,\"batches_done\":5,\"best\":0,\"best_epoch\":0,\"worse\":0}",
     "is at batch 5 of epoch 2, which has 4"},
    {ORDER "\"epochs_done\":18446744073709551615,\"batches_done\":0,\"best\":0,\"best_epoch\":0,"
           "\"worse\":0}",
     "is at batch 0 of epoch"},
    {ORDER "\"epochs_done\":1,\"batches_done\":4,\"best\":0,\"best_epoch\":0,\"worse\":0",
     "does not say where"},
    {ORDER "\"epochs_done\":1,\"batches_done\":4,\"best\":0,\"best_epoch\":0,\"worse\":0}x",
     "does not say where"},
    {ORDER "\"epochs_done\":1,\"batches_done\":-4,\"best\":0,\"best_epoch\":0,\"worse\":0}",
     "does not say where"},
    {ORDER "\"epochs_done\":1,\"best\":0,\"best_epoch\":0,\"worse\":0}", "does not say where"},
    {ORDER, "does not say where"},
    {"{}", "does not say where"},
    {"", "does not say where a run of mt_fit was"},
};

TEST_LOOP("fit_errors", a_position, LENGTH(positions)) {
    mt_source source = fit_source(8, "t");
    mt_fit_options options = fit_options(2, 3);
    const mt_fit_callbacks callbacks = fit_callbacks();
    mt_trainer *trainer = fit_trainer();
    mt_fit_report report = MT_FIT_REPORT_INIT;

    fit_files[0].path = options.resume = "last";
    fit_files[0].state = fake.state;
    snprintf(fit_files[0].position, sizeof fit_files[0].position, "%s", positions[_i].position);
    mt_status status = mt_fit(trainer, &source, &options, &callbacks, &report);
    ck_status(status, positions[_i].words ? MT_EINVAL : MT_OK);
    if (positions[_i].words) ck_contains(mt_last_error(), positions[_i].words);
    ck_assert_uint_eq(fake.step, positions[_i].words ? 0 : 4);
    ck_assert_int_eq(report.end, positions[_i].words ? MT_FIT_FAILED : MT_FIT_DONE);
    done(trainer);
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("fit_errors"), fit_setup, NULL);
    return suite_run_named("fit_errors");
}
